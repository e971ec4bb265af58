"""Rank hypotheses by how well they explain measured times: simulate each, compare it with all points and with the
regions that are off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.diagnosis import _regions, hypotheses
from simcoll.accuracy.diagnosis._hypothesis import HEALTHY, Hypothesis
from simcoll.accuracy.diagnosis._regions import Bands, Region
from simcoll.accuracy.fit._fit_rows import SMALL
from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.accuracy.fit.retiming import Question
from simcoll.config.arrays import Floats, Numbers, distinct
from simcoll.dataclass import dataclass
from simcoll.errors import InputError, RefusedError
from simcoll.measurement.run_cases import Tell
from simcoll.nccl.call_names import SCHEDULES
from simcoll.scenario.scenario import Scenario

Flags = NDArray[np.bool_]
ChangedCosts = Callable[[ParameterSetting], ParameterSetting]

ALLOWED: Final = 4.0  # us by which launches differ between two sound ways of measuring
# Mean |log error| that each assumption costs a hypothesis: a free number has to gain 1.5 %, or the simpler one wins.
PENALTY: Final = 0.015
FAR: Final = 1.5  # |log| of measured / predicted at which an error is cut off, so that one wild point decides nothing
FAR_OFF: Final = 3.0  # a region whose median is that many times what it should be is not explained
CLEARLY: Final = 0.5  # an explanation may leave at most half of the error in regions that are off
BEHIND: Final = 2.0  # times the error of the best hypothesis from which on another is not tried on all points
PROBES: Final = 8  # points on which a hypothesis is tried first
# Standard errors by which the next best must be worse, point by point: about 95 % of a normal spread, or 68 %.
CLEAR: Final = 2.0
LIKELY: Final = 1.0  # for a weaker verdict
SLACK: Final = 0.02  # share by which a call on a slower machine may be quicker: transfers meet in another order
SAME: Final = 1e-3  # share by which times may differ that count as the same: far below the noise of runs
ROUNDING: Final = 1e-9  # share of a sum of errors by which sums of the same errors may differ


@dataclass(frozen=True)
class MeasuredTable:
    """A measured table in arrays: times `measured` (n,) in us, and which points show the launch (`small`, (n,)).

    `series` holds the numbers of the points of each series in order of size, `groups` those of each region of each
    series. `bands` and `scenarios` belong to the n points.
    """

    measured: Floats
    small: Flags
    series: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    bands: Bands
    scenarios: tuple[Scenario, ...]

    def regions(self, predicted: Floats) -> tuple[Region, ...]:
        """Compare each region with predicted times (n,), in us."""
        return tuple(_regions.judged(group, self.measured / predicted, self.bands) for group in self.groups)

    def but_for_accidents(self, fit: Fit) -> Fit:
        """Return the fit with regions that single points among sound neighbours do not put off."""
        of_point = {point: members for members in self.series for point in members}
        ratios = self.measured / fit.predicted
        regions = (
            _regions.but_for_accident(region, of_point[region.points[0]], ratios, self.bands) for region in fit.regions
        )
        return replace(fit, regions=tuple(regions))


@dataclass(frozen=True)
class Fit:
    """A hypothesis applied to a table.

    `predicted` (n,) in us includes the launch that was added, or the pace that was set, which is `launch` in us.
    `errors` (n,) are |log(measured / predicted)|; `regions` are judged against `predicted`.
    """

    hypothesis: Hypothesis
    predicted: Floats
    launch: float
    errors: Floats
    regions: tuple[Region, ...]

    @property
    def error(self) -> float:
        """The mean of the errors."""
        return float(self.errors.mean())

    @property
    def score(self) -> float:
        """The error with a penalty for each assumption; the hypothesis with the lowest score ranks first."""
        return self.error + PENALTY * self.hypothesis.assumes

    @property
    def off(self) -> list[int]:
        """The numbers of the regions that are off."""
        return [number for number, region in enumerate(self.regions) if region.off]

    def explains(self, healthy: Fit) -> bool:
        """Whether the hypothesis explains what is off on the healthy machine.

        It must leave at most CLEARLY of the error in the regions that are off there, bring at least one of them back to
        normal, push no other region off, and leave none off by a factor of FAR_OFF or more.
        """
        points = [point for number in healthy.off for point in healthy.regions[number].points]
        better = bool(points) and bool(self.errors[points].mean() <= CLEARLY * healthy.errors[points].mean())
        near = all(1 / FAR_OFF < self.regions[number].ratio < FAR_OFF for number in self.off)
        return better and near and set(self.off) < set(healthy.off)


def healthy(table: MeasuredTable, predicted: Floats) -> Fit:
    """Return the fit of the healthy machine, whose predicted times (n,) are in us."""
    added = shifts(table.measured, table.small, table.series, predicted)
    return _fit(HEALTHY, predicted + added, float(np.median(added)), table)


def ranked(table: MeasuredTable, base: Fit, tell: Tell = lambda line: None) -> list[Fit]:
    """Fit every family of hypotheses, take the best variant of each, and rank them; `base` is among them. `tell` gets a
    line for each.

    First come those that explain what is off there, then the others; each group by score. Whether a region is off is
    asked of the healthy machine alone: of two explanations the one nearer to the times is better, even if its nearest
    variant leaves a region at the wrong side of the end of a band.
    """
    times = _HypothesisTimes(table.scenarios)
    asked = _Probes(times, table, base)
    best: dict[str, Fit] = {}
    families = hypotheses.candidates(table.scenarios, times.kinds)
    for number, variants in enumerate(families):
        tell(f"{number} of {len(families)} explanations tried; now: {variants[0].family}")
        every = best.get(variants[0].family)
        if every and variants[0].share < 1:  # one slow link costs no more time than all links with that share
            near = every.error < base.error
            variants = [variant for variant in variants if near and variant.share <= every.hypothesis.share]
        if variants and variants[0] is not HEALTHY and variants[0].host == "as measured":
            variants = _promising(variants, asked, base, best.values())
        for variant in variants:
            rival = best.get(variant.family)
            fit = base if variant is HEALTHY else _under(variant, times, table, rival)
            if fit is None:
                continue
            if rival is None or fit.score < rival.score:
                best[variant.family] = fit
            elif same(fit, rival):
                best[variant.family] = replace(rival, hypothesis=rival.hypothesis.or_one)

    distinct = [fit for fit in best.values() if fit is base or not same(fit, base)]

    def order(fit: Fit) -> tuple[bool, float]:
        return not fit.explains(base), fit.score

    return sorted(distinct, key=order)  # stable: of equals the earlier one wins


def _promising(variants: Sequence[Hypothesis], asked: _Probes, base: Fit, rivals: Iterable[Fit]) -> list[Hypothesis]:
    """Return the variant nearest to a few points that are off, if it is nearer there than the healthy machine and not
    far behind its rivals, and then those before and after it where points need not be bound anew; else none.
    """
    off = np.array(sorted(point for number in base.off for point in base.regions[number].points))
    probes = off[distinct(np.linspace(0, len(off) - 1, PROBES).round().astype(int))]
    # a rival that is near at these points alone, by chance, is no measure
    behind = max(BEHIND * min(max(float(rival.errors[probes].mean()), rival.error) for rival in rivals), PENALTY)
    nearest = asked.nearest(variants, probes, min(behind, float(base.errors[probes].mean())))
    if nearest is None:
        return []
    around = 1 if variants[nearest].scenario is HEALTHY.scenario else 0
    return [variants[nearest], *variants[max(0, nearest - around) : nearest], *variants[nearest + 1 :][:around]]


class _Probes:
    """Times of single points under hypotheses, with the launch that the healthy machine shows; each asked for once."""

    def __init__(self, times: _HypothesisTimes, table: MeasuredTable, base: Fit):
        self._times, self._table, self._base = times, table, base
        self._known: dict[tuple[int, int], float | None] = {}  # by hypothesis, which the ranking keeps, and point

    def nearest(self, variants: Sequence[Hypothesis], probes: Numbers, most: float) -> int | None:
        """The number of the variant of a family, in order of slowness, with the least mean error at the probes; None if
        all are above `most`.

        Where a range of variants may have one that is nearer, its halves are asked, the more promising one first.
        """
        ends = probes[[0, len(probes) // 2, -1]].tolist()  # often enough to drop a range
        points = list(dict.fromkeys([*ends, *probes.tolist()]))
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
        return float(_errors(measured, measured.clip(low, high))[0])

    def _predicted(self, variant: Hypothesis, point: int) -> float | None:
        """The time of a point, in us; None if it cannot be simulated."""
        key = id(variant), point
        if key not in self._known:
            predicted, plain = self._times.under(variant, [point]), self._times.under(HEALTHY, [point])
            known = predicted is not None and plain is not None
            self._known[key] = float((predicted + self._base.predicted[point] - plain)[0]) if known else None
        return self._known[key]


def same(first: Fit, second: Fit) -> bool:
    """Whether two hypotheses predict the same time for every point, so that no measurement can decide between them."""
    return bool(np.allclose(first.predicted, second.predicted, rtol=SAME))


def explains_beside(first: Fit, fit: Fit, base: Fit) -> bool:
    """Whether a fit explains the table, and is not far behind the first of the ranking."""
    return fit.explains(base) and fit.error <= max(BEHIND * first.error, PENALTY)


def as_good(fits: Sequence[Fit], base: Fit) -> list[Fit]:
    """Return the fits that explain the table as well as the first: noise alone may have put them behind it, and they
    assume no more than they gain."""
    first = fits[0]
    return [
        fit
        for fit in fits[1:]
        if same(fit, first) or (explains_beside(first, fit, base) and _behind(first, fit, PENALTY) == "open")
    ]


def accidental(sound: Fit, best: Fit, base: Fit) -> bool:
    """Whether a table that is `sound` but for single points is likelier so than by the best hypothesis. Each accident
    assumes two things, the point and its time."""
    accidents = [region.accident for region in sound.regions if region.accident is not None]
    score = sound.error - float(sound.errors[accidents].sum()) / len(sound.errors) + 2 * PENALTY * len(accidents)
    return not sound.off and (score < best.score or not best.explains(base))


def sure(fits: Sequence[Fit], base: Fit) -> str:
    """Say how surely the first fit is better than the next that is not as good: clear, likely or open."""
    good = as_good(fits, base)
    return next((_behind(fits[0], fit) for fit in fits[1:] if not any(fit is each for each in good)), "clear")


def _behind(first: Fit, second: Fit, penalty: float = 0.0) -> str:
    """Compare the sum over points of their difference in error, and of a penalty for each more assumption, with the
    standard error of that sum."""
    behind = second.errors - first.errors
    spread = float(behind.std(ddof=1)) * len(behind) ** 0.5 if len(behind) > 1 else np.inf
    total = float(behind.sum()) + penalty * len(behind) * (second.hypothesis.assumes - first.hypothesis.assumes)
    return "clear" if total > CLEAR * spread else "likely" if total > LIKELY * spread else "open"


class _HypothesisTimes:
    """Times of points under hypotheses, in us; each point is bound only once."""

    def __init__(self, scenarios: Sequence[Scenario]):
        self._scenarios = scenarios
        self._asked: dict[tuple[Callable[[Scenario], Scenario], int], Question] = {}  # by change, and point
        self._questions: dict[str, Question] = {}
        self._settings: dict[
            tuple[int, ChangedCosts], ParameterSetting
        ] = {}  # by one of a profile, which is kept, and change
        self._times: dict[tuple[Question, ChangedCosts], float] = {}

    @property
    def kinds(self) -> list[str]:
        """The kinds of links that the points use."""
        questions = (self._question(HEALTHY, point) for point in range(len(self._scenarios)))
        return list(dict.fromkeys(kind for question in questions for kind in question.kinds))

    def under(self, hypothesis: Hypothesis, points: Iterable[int] | None = None) -> Floats | None:
        """Return the times of all points, or of those with these numbers; None if one of them cannot be simulated."""
        numbers = range(len(self._scenarios)) if points is None else points
        try:
            return np.array([self._time(hypothesis, point) for point in numbers])
        except (RefusedError, InputError):
            return None

    def knows(self, hypothesis: Hypothesis, point: int) -> bool:
        """Whether the time of a point was asked before."""
        question = self._asked.get((hypothesis.scenario, point))
        return question is not None and (question, hypothesis.setting) in self._times

    def _time(self, hypothesis: Hypothesis, point: int) -> float:
        question, change = self._question(hypothesis, point), hypothesis.setting
        if (question, change) not in self._times:
            own = question.setting
            if (id(own), change) not in self._settings:  # costs that are the same object are reckoned once
                self._settings[id(own), change] = change(own)
            self._times[question, change] = question.time_ps(self._settings[id(own), change]) / 1e6
        return self._times[question, change]

    def _question(self, hypothesis: Hypothesis, point: int) -> Question:
        asked = hypothesis.scenario, point
        if asked not in self._asked:
            scenario = hypothesis.scenario(self._scenarios[point])
            key = scenario.model_dump_json(exclude={"name", "plots", "measured"})
            if key not in self._questions:
                self._questions[key] = Question(scenario)
            self._asked[asked] = self._questions[key]
        return self._asked[asked]


def _under(hypothesis: Hypothesis, times: _HypothesisTimes, table: MeasuredTable, rival: Fit | None) -> Fit | None:
    """Fit a hypothesis with the launch that the smallest sizes show.

    None if it cannot be simulated, where it is behind its rival whatever the points say that were not asked yet, and
    for a hypothesis about launches where these are as short as they should be.
    """
    if rival and _behind_anyhow(hypothesis, times, table, rival):
        return None
    predicted = times.under(hypothesis)
    if predicted is None:
        return None
    if hypothesis.host == "as measured":
        added = shifts(table.measured, table.small, table.series, predicted)
        return _fit(hypothesis, predicted + added, float(np.median(added)), table)
    longer = _longer(table.measured, table.small, predicted)
    if longer <= ALLOWED:
        return None
    if hypothesis.host == "adds":
        return _fit(hypothesis, predicted + longer, longer, table)
    pace = float(np.median(table.measured[table.small]))
    return _fit(hypothesis, np.maximum(predicted, pace), pace, table)


def _behind_anyhow(hypothesis: Hypothesis, times: _HypothesisTimes, table: MeasuredTable, rival: Fit) -> bool:
    """Whether some points, those known already first, are enough to say that a hypothesis has a higher score than its
    rival, and other times, however launches are measured."""
    most = rival.error + max(0.0, PENALTY * (rival.hypothesis.assumes - hypothesis.assumes)) + 2 * SAME
    measured = table.measured
    low, high = _between(hypothesis, rival.hypothesis, times, table)
    errors = _errors(measured, measured.clip(low - ALLOWED, high + ALLOWED))
    for point in sorted(range(len(measured)), key=lambda point: not times.knows(hypothesis, point)):
        if errors.mean() > most:
            return True
        predicted = times.under(hypothesis, [point])
        if predicted is None:
            return True
        nearest = measured[[point]].clip(predicted - ALLOWED, predicted + ALLOWED)
        errors[point] = _errors(measured[[point]], nearest)[0]
    return bool(errors.mean() > most)


def _between(
    hypothesis: Hypothesis, rival: Hypothesis, times: _HypothesisTimes, table: MeasuredTable
) -> tuple[Floats, Floats]:
    """Times between which those of a hypothesis lie, (n,) in us each, by the times of a rival of its family: what is
    slower takes longer, and one slow link takes no longer than all of them."""
    to_all = np.array([("p2p", scenario.collective) in SCHEDULES for scenario in table.scenarios])
    low, high = np.zeros(len(to_all)), np.full(len(to_all), np.inf)
    known = times.under(rival)
    if known is None or hypothesis.share == 1:
        return low, high
    if hypothesis.share >= rival.share:
        high = np.where(to_all, high, known * (1 + SLACK))
    elif hypothesis.scenario is rival.scenario:  # both of all links
        low = np.where(to_all, low, known * (1 - SLACK))
    return low, high


def launch_points(sizes: Sequence[int], bad: Sequence[bool], series: Sequence[Sequence[int]]) -> Flags:
    """Flag the points (n,) that show the launch: the small sizes of each series.

    Where more than half of them, but not all, are bad rows, only the good ones count; fewer bad ones do not move the
    median far.
    """
    small = np.array(sizes) <= SMALL
    good = small & ~np.array(bad)
    for members in map(list, series):
        if good[members].any() and 2 * good[members].sum() < small[members].sum():
            small[members] = good[members]
    return small


def shifts(measured: Floats, small: Flags, series: Sequence[Sequence[int]], predicted: Floats) -> Floats:
    """Return the time (n,) in us that the way of measuring adds to the points of each series, from its small sizes.

    A difference of more than ALLOWED, or of more than half of the shortest time, is taken for a fault, and adds 0. So
    does one that brings the series no nearer as a whole: few small sizes show the noise of their own runs.
    """
    added = np.zeros_like(predicted)
    for members in map(list, series):
        took, expected = measured[members], predicted[members]
        longer = _longer(took, small[members], expected)
        sound = abs(longer) <= min(ALLOWED, float(expected.min()) / 2)
        if sound and _errors(took, expected + longer).mean() < _errors(took, expected).mean():
            added[members] = longer
    return added


def _longer(measured: Floats, small: Flags, predicted: Floats) -> float:
    """Return how much longer than predicted the small sizes took, in us; 0 if there are none."""
    return float(np.median((measured - predicted)[small])) if small.any() else 0.0


def _fit(hypothesis: Hypothesis, predicted: Floats, launch: float, table: MeasuredTable) -> Fit:
    return Fit(hypothesis, predicted, launch, _errors(table.measured, predicted), table.regions(predicted))


def _errors(measured: Floats, predicted: Floats) -> Floats:
    return np.minimum(np.abs(np.log(measured / predicted)), FAR)
