"""What explains measured times best: hypotheses, simulated, held against all points and against the regions that are
off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.diagnosis import hypotheses, regions
from simcoll.accuracy.diagnosis.hypotheses import HEALTHY, Hypothesis
from simcoll.accuracy.diagnosis.regions import Bands, Region
from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.accuracy.fit.retiming import Question
from simcoll.accuracy.fit.samples import SMALL
from simcoll.config.arrays import Floats, Numbers
from simcoll.errors import InputError, RefusedError
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario

Flags = NDArray[np.bool_]

ALLOWED: Final = 4.0  # us by which launches differ from one sound way of measuring to another
PENALTY: Final = 0.015  # of mean error, for each thing that a hypothesis assumes
FAR: Final = 1.5  # |log| of measured / predicted beyond which a point counts no more
CLEARLY: Final = 0.5  # the share of the error in regions that are off which an explanation may leave
PROBES: Final = 8  # points on which hypotheses are tried first that take binding points anew
CLEAR: Final = 2.0  # standard errors by which the next best is worse, point by point
LIKELY: Final = 1.0


@dataclass(frozen=True)
class MeasuredTable:
    """Points (n,) that were measured, in us, which of them tell the launch, bands and what is asked of each; the
    numbers of the points of each series, and as `groups` those of each region of each series."""

    measured: Floats
    small: Flags
    series: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    bands: Bands
    scenarios: tuple[Scenario, ...]

    def regions(self, predicted: Floats) -> tuple[Region, ...]:
        """The regions, held against what is predicted, (n,) in us."""
        return tuple(regions.region(group, self.measured / predicted, self.bands) for group in self.groups)


@dataclass(frozen=True)
class Fit:
    """A hypothesis on a table: predicted us (n,), the launch that was added or the pace that was set, |log| of each
    error, and what regions are then."""

    hypothesis: Hypothesis
    predicted: Floats
    launch: float
    errors: Floats
    regions: tuple[Region, ...]

    @property
    def error(self) -> float:
        """The mean."""
        return float(self.errors.mean())

    @property
    def score(self) -> float:
        """What hypotheses are ranked by, the least first."""
        return self.error + PENALTY * self.hypothesis.assumes

    @property
    def off(self) -> list[int]:
        """The numbers of the regions that are off."""
        return [number for number, region in enumerate(self.regions) if region.off]

    def explains(self, healthy: Fit) -> bool:
        """Whether it leaves at most CLEARLY of the error of the healthy machine in the regions that are off there, puts
        at least one of these right and no other one off."""
        its = [point for number in healthy.off for point in healthy.regions[number].points]
        better = bool(its) and bool(self.errors[its].mean() <= CLEARLY * healthy.errors[its].mean())
        return better and set(self.off) < set(healthy.off)


def healthy(table: MeasuredTable, predicted: Floats) -> Fit:
    """What the machine should give, predicted in us (n,), on the table."""
    added = shifts(table.measured, table.small, table.series, predicted)
    return _fit(HEALTHY, predicted + added, float(np.median(added)), table)


def ranked(table: MeasuredTable, base: Fit) -> list[Fit]:
    """The best variant of each family of hypotheses, `base` among them: those first that explain what is off there and
    leave nothing off, then those that leave something off, then the others; the best first."""
    times = _HypothesisTimes(table.scenarios)
    best: dict[str, Fit] = {}
    for variants in hypotheses.candidates(table.scenarios, times.kinds):
        worst = np.inf
        if every := best.get(variants[0].family):  # a share of one link slows no more than the same of every one
            near = every.error < base.error
            variants = [one for one in variants if near and one.share <= every.hypothesis.share]
        if variants and variants[0].scenario is not HEALTHY.scenario:  # each point is bound anew
            variants = _promising(variants, times, table, base)
        for one in variants:
            fit = base if one is HEALTHY else _under(one, times, table)
            if fit is None or fit.score > worst:  # in order: behind one that is worse come worse ones
                break
            worst = fit.score
            rival = best.get(one.family)
            if rival is None or fit.score < rival.score:
                best[one.family] = fit
            elif same(fit, rival):
                best[one.family] = replace(rival, hypothesis=rival.hypothesis.or_one)

    told = [fit for fit in best.values() if fit is base or not same(fit, base)]

    def order(fit: Fit) -> tuple[bool, bool, float]:
        return not fit.explains(base), bool(fit.off), fit.score

    return sorted(told, key=order)  # stable: what comes earlier wins


def _promising(
    variants: Sequence[Hypothesis], times: _HypothesisTimes, table: MeasuredTable, base: Fit
) -> list[Hypothesis]:
    """The variant that is nearest on a few points of what is off, if it is nearer there than the healthy machine."""
    off = np.array(sorted(point for number in base.off for point in base.regions[number].points))
    its = off[np.unique(np.linspace(0, len(off) - 1, PROBES).round().astype(int))]
    some = its[[0, len(its) // 2, -1]]  # on which most fail

    def error(one: Hypothesis, points: Numbers) -> float:
        predicted, plain = times.under(one, points), times.under(HEALTHY, points)
        if predicted is None or plain is None:
            return np.inf
        return float(_errors(table.measured[points], predicted + base.predicted[points] - plain).mean())

    found, least = list[Hypothesis](), error(HEALTHY, its)
    for one in variants:
        reached = error(one, its) if error(one, some) <= error(HEALTHY, some) else np.inf
        if reached > least:
            break
        if reached < least:
            found, least = [one], reached
    return found


def same(one: Fit, other: Fit) -> bool:
    """Whether two hypotheses say the same of every point: the table cannot tell them apart."""
    return bool(np.allclose(one.predicted, other.predicted, rtol=1e-3))


def sure(fits: Sequence[Fit]) -> str:
    """How surely the first is better than the next that says anything else, by the points on which they differ."""
    others = [fit for fit in fits[1:] if not same(fit, fits[0])]
    if not others:
        return "clear"
    behind = others[0].errors - fits[0].errors
    spread = float(behind.std(ddof=1)) * len(behind) ** 0.5 if len(behind) > 1 else np.inf
    total = float(behind.sum())
    return "clear" if total > CLEAR * spread else "likely" if total > LIKELY * spread else "open"


class _HypothesisTimes:
    """Times of points under hypotheses, in us; each point is bound once."""

    def __init__(self, scenarios: Sequence[Scenario]):
        self._scenarios = scenarios
        self._questions: dict[str, Question] = {}
        self._plain: dict[str, float] = {}  # times of questions with what their profiles say

    @property
    def kinds(self) -> list[str]:
        """The kinds of links that are used."""
        return list(dict.fromkeys(kind for one in self._scenarios for kind in self._question(one, _key(one)).kinds))

    def under(self, hypothesis: Hypothesis, points: Iterable[int] | None = None) -> Floats | None:
        """Of all points, or of those with these numbers. None for what cannot be simulated."""
        some = self._scenarios if points is None else [self._scenarios[point] for point in points]
        try:
            return np.array([self._time(hypothesis.scenario(one), hypothesis) for one in some])
        except (RefusedError, InputError):
            return None

    def _time(self, scenario: Scenario, hypothesis: Hypothesis) -> float:
        key = _key(scenario)
        plain = hypothesis.setting is HEALTHY.setting
        if plain and key in self._plain:
            return self._plain[key]
        setting = hypothesis.setting(ParameterSetting.of(load_profile(scenario.profile)))
        time = self._question(scenario, key).time_ps(setting) / 1e6
        if plain:
            self._plain[key] = time
        return time

    def _question(self, scenario: Scenario, key: str) -> Question:
        if key not in self._questions:
            self._questions[key] = Question(scenario)
        return self._questions[key]


def _key(scenario: Scenario) -> str:
    return scenario.model_dump_json(exclude={"name", "plots", "measured"})


def _under(one: Hypothesis, times: _HypothesisTimes, table: MeasuredTable) -> Fit | None:
    """With the launch that the smallest sizes tell; None for one of the launch where these are as they should be."""
    predicted = times.under(one)
    if predicted is None:
        return None
    if one.host == "as measured":
        added = shifts(table.measured, table.small, table.series, predicted)
        return _fit(one, predicted + added, float(np.median(added)), table)
    longer = _longer(table.measured, table.small, predicted)
    if longer <= ALLOWED:
        return None
    if one.host == "adds":
        return _fit(one, predicted + longer, longer, table)
    pace = float(np.median(table.measured[table.small]))
    return _fit(one, np.maximum(predicted, pace), pace, table)


def telling(sizes: Sequence[int], bad: Sequence[bool], series: Sequence[Sequence[int]]) -> Flags:
    """Which points tell the launch (n,): the small ones of each series, without bad rows where these are most of them,
    but not all: the median bears fewer."""
    small = np.array(sizes) <= SMALL
    good = small & ~np.array(bad)
    for its in map(list, series):
        if good[its].any() and 2 * good[its].sum() < small[its].sum():
            small[its] = good[its]
    return small


def shifts(measured: Floats, small: Flags, series: Sequence[Sequence[int]], predicted: Floats) -> Floats:
    """What belongs to the way of measuring (n,), in us, as the small ones of each series tell: more than ALLOWED,
    or than half of the shortest time, does not."""
    added = np.zeros_like(predicted)
    for its in map(list, series):
        longer = _longer(measured[its], small[its], predicted[its])
        if abs(longer) <= min(ALLOWED, float(predicted[its].min()) / 2):
            added[its] = longer
    return added


def _longer(measured: Floats, small: Flags, predicted: Floats) -> float:
    """How much longer the small ones took, in us; 0 where there are none."""
    return float(np.median((measured - predicted)[small])) if small.any() else 0.0


def _fit(one: Hypothesis, predicted: Floats, launch: float, table: MeasuredTable) -> Fit:
    return Fit(one, predicted, launch, _errors(table.measured, predicted), table.regions(predicted))


def _errors(measured: Floats, predicted: Floats) -> Floats:
    return np.minimum(np.abs(np.log(measured / predicted)), FAR)
