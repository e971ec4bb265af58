"""Rank hypotheses by how well they explain measured times: simulate each, and compare it with all points and with the
regions that are off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simcoll.accuracy.diagnosis import hypotheses
from simcoll.accuracy.diagnosis.hypotheses import HEALTHY, PENALTY, Hypothesis
from simcoll.accuracy.diagnosis.judgement import (
    ALLOWED,
    Fit,
    MeasuredTable,
    applied,
    launch_delay,
    log_errors,
    shifts,
)
from simcoll.accuracy.fit.fit_rows import RetimedPoint
from simcoll.config.arrays import Floats, Numbers, distinct
from simcoll.errors import InputError, RefusedError
from simcoll.measurement.run_cases import Tell
from simcoll.nccl.algorithm_names import SCHEDULES
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario

# A hypothesis is tried on all points only if its error on the PROBES is below this share of the healthy machine's. An
# explanation halves the error; the share is above a half, as other points may be nearer.
NEARER: Final = 0.75
BEHIND: Final = 2.0  # a hypothesis with more than so many times the best error is not tried on all points
PROBES: Final = 8  # number of points on which a hypothesis is tried first: some of each region, in a part of the time
SLACK: Final = 0.02  # share by which a call on a slower machine may be quicker: transfers meet in another order
ROUNDING: Final = 1e-9  # share by which two sums of the same errors may differ
SAME: Final = 1e-3  # times that differ by a smaller share count as equal: far below the noise of runs
ChangedCall = Callable[[Scenario], Scenario]
ChangedCosts = Callable[[CostSetting], CostSetting]


class HypothesisTimes:
    """Computes the times of a table's points under hypotheses, in us; each point is bound once for each change."""

    def __init__(self, table: MeasuredTable):
        self._table = table
        self._asked: dict[tuple[ChangedCall, int], RetimedPoint] = {}  # by change, and point
        self._points: dict[str, RetimedPoint] = {}  # by scenario, which several changes may give
        self._times: dict[tuple[RetimedPoint, ChangedCosts], float] = {}

    def kinds(self, points: Iterable[int]) -> list[str]:
        """Return the kinds of links that the points numbered `points` use."""
        return list(dict.fromkeys(kind for point in points for kind in self._bound(HEALTHY, point).kinds))

    def under(self, hypothesis: Hypothesis, points: Iterable[int] | None = None) -> Floats | None:
        """Return the times of all points, or of those numbered `points`; None if one of them cannot be simulated."""
        numbers = range(len(self._table.scenarios)) if points is None else points
        if hypothesis.scenario is HEALTHY.scenario and hypothesis.setting is HEALTHY.setting:
            return self._table.predicted[list(numbers)]
        try:
            return np.array([self._time(hypothesis, point) for point in numbers])
        except (RefusedError, InputError):
            return None

    def _time(self, hypothesis: Hypothesis, number: int) -> float:
        point, change = self._bound(hypothesis, number), hypothesis.setting
        if (point, change) not in self._times:
            self._times[point, change] = point.time_ps(change(point.setting)) / 1e6
        return self._times[point, change]

    def _bound(self, hypothesis: Hypothesis, number: int) -> RetimedPoint:
        asked = hypothesis.scenario, number
        if asked not in self._asked:
            scenario = hypothesis.scenario(self._table.scenarios[number])
            key = scenario.model_dump_json(exclude={"name", "plots", "measured"})
            if key not in self._points:
                self._points[key] = RetimedPoint(scenario)
            self._asked[asked] = self._points[key]
        return self._asked[asked]


def healthy(table: MeasuredTable) -> Fit:
    """Return the fit of the healthy machine."""
    added = shifts(table.measured, table.small, table.series, table.predicted)
    return applied(HEALTHY, table.predicted + added, float(np.median(added)), table)


def ranked(table: MeasuredTable, base: Fit, tell: Tell = lambda line: None) -> list[Fit]:
    """Return the fits of the best variant of each family, ranked, with the healthy machine's `base` among them. `tell`
    gets a line for each family.

    If no region is off, `base` is alone, unless a setting or a missing part by itself explains the times. Other
    hypotheses do not count then: a free number would absorb errors of the model, and launches say nothing about the
    machine.
    """
    times = HypothesisTimes(table)
    largest = [members[-1] for members in table.series]  # calls of a series use the same links
    families = hypotheses.candidates(table.scenarios, times.kinds(largest), table.gpus)
    if not base.off:
        plain = [variants for variants in families if variants[0].assumes == 1 and not variants[0].launch]
        if not any(fit.explains(base) for fit in _best([[HEALTHY], *plain], times, table, base, tell)):
            return [base]
    found = _best(families, times, table, base, tell)
    ordered = in_order([fit for fit in found if fit is base or not same(fit, base)], base)
    return ordered if base.off or ordered[0].explains(base) else [base]


def in_order(fits: Iterable[Fit], base: Fit) -> list[Fit]:
    """Rank fits by score, those first that explain the regions that are off on the healthy machine `base`.

    Among explanations the score alone decides: the nearer one is better, even if its nearest variant leaves a region
    just outside its band. Of equals the earlier one wins.
    """

    def order(fit: Fit) -> tuple[bool, float]:
        return not fit.explains(base), fit.score

    return sorted(fits, key=order)


def _best(
    families: Sequence[Sequence[Hypothesis]],
    times: HypothesisTimes,
    table: MeasuredTable,
    base: Fit,
    tell: Tell,
) -> list[Fit]:
    """Return the fit of the best variant of each family, in order of families; families that are no nearer drop out."""
    best: dict[str, Fit] = {}
    for number, variants in enumerate(families):
        tell(f"{number} of {len(families)} explanations tried; now: {variants[0].family}")
        every = best.get(variants[0].family)
        if every and variants[0].share < 1:  # one slow link costs no more time than all links with that share
            near = every.error < base.error
            variants = [variant for variant in variants if near and variant.share <= every.hypothesis.share]
        if variants and variants[0] is not HEALTHY and variants[0].host == "as measured":
            variants = _promising(variants, times, table, base, best.values())
        for variant in variants:
            rival = best.get(variant.family)
            fit = base if variant is HEALTHY else _under(variant, times, table)
            if fit is None:
                continue
            if rival is None or fit.score < rival.score:
                best[variant.family] = fit
            elif same(fit, rival):
                best[variant.family] = replace(rival, hypothesis=rival.hypothesis.or_one)
    return list(best.values())


def _promising(
    variants: Sequence[Hypothesis], times: HypothesisTimes, table: MeasuredTable, base: Fit, rivals: Iterable[Fit]
) -> list[Hypothesis]:
    """Return the variants to try on all points: the one nearest to PROBES points, and its neighbours if points need not
    be bound anew.

    Empty unless it is NEARER there than the healthy machine, and not far behind its `rivals`. The probes are points of
    regions that are off. If no region is off, they come from all points, and need only be as near as without it.
    """
    off = np.array(
        sorted(point for number in base.off or range(len(base.regions)) for point in base.regions[number].points)
    )
    probes = off[distinct(np.linspace(0, len(off) - 1, PROBES).round().astype(int))]
    # A rival's error on all points counts if it is larger, as the rival may be near at the probes by chance.
    behind = max(BEHIND * min(max(float(rival.errors[probes].mean()), rival.error) for rival in rivals), PENALTY)
    most = min(behind, (NEARER if base.off else 1) * float(base.errors[probes].mean()))
    nearest = _Search(times, table, base).nearest(variants, probes, most)
    if nearest is None:
        return []
    around = 1 if variants[nearest].scenario is HEALTHY.scenario else 0
    return [variants[nearest], *variants[max(0, nearest - around) : nearest], *variants[nearest + 1 :][:around]]


class _Search:
    """A search for the variant of a family that is nearest to a few points, with the healthy machine's launch. Most
    variants are never simulated: on two nodes that makes a diagnosis up to nine times faster.
    """

    def __init__(self, times: HypothesisTimes, table: MeasuredTable, base: Fit):
        self._times, self._table = times, table
        self._added = base.predicted - table.predicted

    def nearest(self, variants: Sequence[Hypothesis], probes: Numbers, most: float) -> int | None:
        """Return the number of the variant with the least mean error at the probes; None if all are above `most`.

        `variants` are in order of slowness. A range that may hold a nearer variant is halved, and the more promising
        half is searched first.
        """
        ends = probes[[0, len(probes) // 2, -1]].tolist()  # these often suffice to drop a range
        points = list(dict.fromkeys([*ends, *probes.tolist()]))
        if len(variants) == 1:  # small calls first: they run quicker, and may already exceed `most`
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
            ranges += sorted(halves, reverse=True)  # of equals the faster one comes first
        return found

    def _bound(self, variants: Sequence[Hypothesis], points: Sequence[int], most: float) -> float:
        """Return a variant's error summed over points, or for several variants a lower bound; inf above `most`."""
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
        """Return a variant's error, inf if it cannot be simulated; for several variants a lower bound.

        A slower variant takes longer, so the times of the first and last variant enclose all others. Messages from each
        rank to each are the exception: if they come more slowly, fewer of them meet, and all may arrive sooner.
        """
        if len(variants) == 1:
            predicted = self._predicted(variants[0], point)
            return np.inf if predicted is None else self._error(point, predicted, predicted)
        if ("p2p", self._table.scenarios[point].collective) in SCHEDULES:
            return 0.0
        # First the end on the side of the measured time: a time beyond that end is beyond all variants.
        slow = bool(self._table.measured[point] > self._table.predicted[point] + self._added[point])
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
        """Return the error of the time between `low` and `high` that is nearest to the measured time."""
        measured = self._table.measured[[point]]
        return float(log_errors(measured, measured.clip(low, high))[0])

    def _predicted(self, variant: Hypothesis, point: int) -> float | None:
        """Return the time of a point, in us; None if it cannot be simulated."""
        predicted = self._times.under(variant, [point])
        return None if predicted is None else float(predicted[0] + self._added[point])


def same(first: Fit, second: Fit) -> bool:
    """Return whether two hypotheses predict equal times for every point, so that no measurement can tell them apart."""
    return bool(np.allclose(first.predicted, second.predicted, rtol=SAME))


def explains_beside(first: Fit, fit: Fit, base: Fit) -> bool:
    """Return whether a fit explains the table, and is not far behind the `first` of the ranking."""
    return fit.explains(base) and fit.error <= max(BEHIND * first.error, PENALTY)


def as_good(fits: Sequence[Fit], base: Fit) -> list[Fit]:
    """Return the fits that explain the table as well as the first. Noise alone may have put them behind it, or they are
    as near to the times and only assume more: the simpler one is likelier, but the rows do not show which holds."""
    first = fits[0]

    def is_as_good(fit: Fit) -> bool:
        as_near = fit.error <= first.error
        return explains_beside(first, fit, base) and (as_near or fit.behind(first, PENALTY) == "open")

    return [fit for fit in fits[1:] if same(fit, first) or is_as_good(fit)]


def accidental(sound: Fit, best: Fit, base: Fit) -> bool:
    """Return whether accidents explain a table better than the `best` hypothesis. `sound` is the healthy fit but for
    accidents; each accident makes two assumptions, the point and its time."""
    accidents = [region.accident for region in sound.regions if region.accident is not None]
    score = sound.error - float(sound.errors[accidents].sum()) / len(sound.errors) + 2 * PENALTY * len(accidents)
    return not sound.off and (score < best.score or not best.explains(base))


def sure(fits: Sequence[Fit], base: Fit) -> str:
    """Return how certainly the first fit is better than the next one that is not as good: clear, likely or open."""
    good = as_good(fits, base)
    return next((fit.behind(fits[0]) for fit in fits[1:] if not any(fit is each for each in good)), "clear")


def _under(hypothesis: Hypothesis, times: HypothesisTimes, table: MeasuredTable) -> Fit | None:
    """Return the fit of a hypothesis, with the launch time estimated from the small sizes.

    None if it cannot be simulated, or if it is about launches and these are as short as they should be.
    """
    predicted = times.under(hypothesis)
    if predicted is None:
        return None
    if hypothesis.host == "as measured":
        added = shifts(table.measured, table.small, table.series, predicted)
        return applied(hypothesis, predicted + added, float(np.median(added)), table)
    longer = launch_delay(table.measured, table.small, predicted)
    if longer <= ALLOWED:
        return None
    if hypothesis.host == "adds":
        return applied(hypothesis, predicted + longer, longer, table)
    pace = float(np.median(table.measured[table.small]))
    return applied(hypothesis, np.maximum(predicted, pace), pace, table)
