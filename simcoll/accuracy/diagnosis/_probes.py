"""Search a family of hypotheses for the variant that is nearest to a few measured points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from simcoll.accuracy.diagnosis._fits import Fit, MeasuredTable, log_errors
from simcoll.accuracy.diagnosis._hypothesis import HEALTHY, Hypothesis
from simcoll.accuracy.diagnosis._hypothesis_times import HypothesisTimes
from simcoll.config.arrays import Numbers
from simcoll.nccl.algorithm_names import SCHEDULES

SLACK: Final = 0.02  # share by which a call on a slower machine may be quicker: transfers meet in another order
ROUNDING: Final = 1e-9  # share of a sum of errors by which sums of the same errors may differ


class Probes:
    """Times of single points under hypotheses, with the launch that the healthy machine shows; each asked for once."""

    def __init__(self, times: HypothesisTimes, table: MeasuredTable, base: Fit):
        self._times, self._table, self._base = times, table, base
        self._known: dict[tuple[int, int], float | None] = {}  # by hypothesis, which the ranking keeps, and point

    def nearest(self, variants: Sequence[Hypothesis], probes: Numbers, most: float) -> int | None:
        """The number of the variant of a family, in order of slowness, with the least mean error at the probes; None if
        all are above `most`.

        Where a range of variants may have one that is nearer, its halves are asked, the more promising one first.
        """
        ends = probes[[0, len(probes) // 2, -1]].tolist()  # often enough to drop a range
        points = list(dict.fromkeys([*ends, *probes.tolist()]))
        if len(variants) == 1:  # whose errors are all summed, unless they are too much: small calls are quicker to run
            points.sort(key=lambda point: self._table.scenarios[point].nbytes)
        found, least = None, most * len(points) * (1 + ROUNDING)
        ranges = [(self._bound(variants, points, least), 0, len(variants))]
        while ranges:
            known, first, end = ranges.pop()
            if known > least or (found is not None and known == least):
                continue
            if end - first == 1:
                found, least = first, known
                continue
            half = (first + end) // 2
            halves = [(self._bound(variants[a:b], points, least), a, b) for a, b in ((first, half), (half, end))]
            ranges += sorted(halves, reverse=True)  # of equals the less slow one comes first
        return found

    def _bound(self, variants: Sequence[Hypothesis], points: Sequence[int], most: float) -> float:
        """The error of a variant, summed over points, or less than that of each of several; inf where above `most`."""
        total = 0.0
        for point in points:
            error = self._least_error(variants, point)
            total += error
            if total > most:
                return np.inf
            if not error and len(variants) > 1:
                break
        return total

    def _least_error(self, variants: Sequence[Hypothesis], point: int) -> float:
        """The error of a variant, inf if it cannot be simulated; of several the least that they can have.

        What is slower takes longer, so between the times of two variants lie those of all between them. Messages from
        each to each are the exception: where they come more slowly fewer of them meet, and all may be there sooner.
        """
        if len(variants) == 1:
            predicted = self._predicted(variants[0], point)
            return np.inf if predicted is None else self._error(point, predicted, predicted)
        if ("p2p", self._table.scenarios[point].collective) in SCHEDULES:
            return 0.0
        # First the end on whose side the measured time lies: it may be beyond that end, and so beyond all.
        slow = bool(self._table.measured[point] > self._base.predicted[point])
        first = self._predicted(variants[-1 if slow else 0], point)
        if first is None:
            return 0.0
        beyond = self._error(point, 0, first * (1 + SLACK)) if slow else self._error(point, first * (1 - SLACK), np.inf)
        if beyond:
            return beyond
        last = self._predicted(variants[0 if slow else -1], point)
        if last is None:
            return 0.0
        return self._error(point, min(first, last) * (1 - SLACK), max(first, last) * (1 + SLACK))

    def _error(self, point: int, low: float, high: float) -> float:
        """The error of the time nearest to what was measured in a range."""
        measured = self._table.measured[[point]]
        return float(log_errors(measured, measured.clip(low, high))[0])

    def _predicted(self, variant: Hypothesis, point: int) -> float | None:
        """The time of a point, in us; None if it cannot be simulated."""
        key = id(variant), point
        if key not in self._known:
            predicted, plain = self._times.under(variant, [point]), self._times.under(HEALTHY, [point])
            known = predicted is not None and plain is not None
            self._known[key] = float((predicted + self._base.predicted[point] - plain)[0]) if known else None
        return self._known[key]
