"""Rank hypotheses by how well they explain measured times. Each one is simulated, and compared with all points and with
the regions that are off (slow or fast)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simcoll.accuracy.diagnosis import hypotheses
from simcoll.accuracy.diagnosis.deviations import (
    ALLOWED,
    FEW,
    Fit,
    MeasuredTable,
    applied,
    launch_delay,
    log_errors,
    shifts,
)
from simcoll.accuracy.diagnosis.hypotheses import ANOTHER, HEALTHY, PENALTY, Hypothesis
from simcoll.accuracy.fit.rows_to_fit import RetimedPoint
from simcoll.config.numpy_helpers import Floats, distinct
from simcoll.errors import InputError, RefusedError
from simcoll.measurement.cases_of_points import Tell
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario

# A hypothesis is tried on all points only if its error on the PROBES is below this share of the healthy machine's. An
# explanation halves the error; the share is above a half, as other points may be nearer.
NEARER: Final = 0.75
BEHIND: Final = 2.0  # a hypothesis with more than so many times the best error is not tried on all points
PROBES: Final = 8  # number of points on which a hypothesis is tried first: some of each region, in a part of the time
BESIDE: Final = 2  # variants on either side of the change from too fast to too slow that are compared
ROUNDING: Final = 1e-9  # share by which two sums of the same errors may differ
SAME: Final = 1e-3  # times that differ by a smaller share count as equal: far below the noise of runs
ChangedCall = Callable[[Scenario], Scenario]
ChangedCosts = Callable[[CostSetting], CostSetting]


class HypothesisTimes:
    """Computes times (us) of a table's points under hypotheses. Equal points are one case, and a case's program is made
    once per changed scenario."""

    def __init__(self, table: MeasuredTable):
        self._table = table
        self._asked: dict[tuple[ChangedCall, int], RetimedPoint] = {}  # by change, and case
        self._points: dict[str, RetimedPoint] = {}  # by scenario, which several changes may give
        self._times: dict[tuple[RetimedPoint, ChangedCosts], float] = {}

    def kinds(self, points: Iterable[int]) -> list[str]:
        """Return the kinds of links that the points with these numbers use."""
        cases = dict.fromkeys(self._table.case[list(points)].tolist())
        return list(dict.fromkeys(kind for case in cases for kind in self._bound(HEALTHY, case).kinds))

    def under(self, hypothesis: Hypothesis, points: Iterable[int] | None = None) -> Floats | None:
        """Return the times in us of all points, or of those numbered `points`; None if simulating one is impossible."""
        chosen = slice(None) if points is None else list(points)
        if hypothesis.scenario is HEALTHY.scenario and hypothesis.setting is HEALTHY.setting:
            return self._table.predicted[chosen]
        cases, which = np.unique(self._table.case[chosen], return_inverse=True)
        try:
            times: Floats = np.array([self._time(hypothesis, case) for case in cases.tolist()])
        except (RefusedError, InputError):
            return None
        return times[which]

    def _time(self, hypothesis: Hypothesis, case: int) -> float:
        point, change = self._bound(hypothesis, case), hypothesis.setting
        if (point, change) not in self._times:
            self._times[point, change] = point.time_ps(change(point.setting)) / 1e6
        return self._times[point, change]

    def _bound(self, hypothesis: Hypothesis, case: int) -> RetimedPoint:
        asked = hypothesis.scenario, case
        if asked not in self._asked:
            scenario = hypothesis.scenario(self._table.scenarios[case])
            key = scenario.model_dump_json(exclude={"name", "plots", "measured"})
            if key not in self._points:
                self._points[key] = RetimedPoint(scenario)
            self._asked[asked] = self._points[key]
        return self._asked[asked]


def healthy(table: MeasuredTable) -> Fit:
    """Return how well the healthy machine explains the table."""
    added = shifts(table.measured, table.small, table.series, table.predicted)
    return applied(HEALTHY, table.predicted + added, float(np.median(added)), table)


def but_for_accidents(table: MeasuredTable, base: Fit) -> Fit:
    """Return the healthy machine's fit with expected times for single odd points (accidents). These are points of
    regions of less than FEW points that lie outside their bands, while their neighbours in size lie inside."""
    far = np.abs(table.bands.distances(table.measured / base.predicted)) > 1
    small = {point for group in table.groups if len(group) < FEW for point in group}
    odd = [p for s in table.series for a, p, b in zip(s, s[1:], s[2:], strict=False) if far[p] and not far[a] | far[b]]
    odd = [point for point in odd if point in small]
    measured = table.measured.copy()
    measured[odd] = base.predicted[odd]
    return replace(healthy(replace(table, measured=measured)), accidents=tuple(odd))


def ranked(
    table: MeasuredTable, base: Fit, tell: Tell = lambda line: None, excluded: Collection[str] = ()
) -> list[Fit]:
    """Return the fit (how well it explains the table) of each family's best variant, the best first; `base` is that of
    the healthy machine. Families in `excluded`, and pairs with one of them, are left out. `tell` gets a line for each
    family.

    If no region is off, only `base` is returned: what lies within the errors of predictions is no finding.
    """
    if not base.off:
        return [base]
    times = HypothesisTimes(table)
    largest = [members[-1] for members in table.series]  # calls of a series use the same links
    families = hypotheses.candidates(table.scenarios, times.kinds(largest), table.gpus, table.environment)
    families = [each for each in families if not {*each[0].family.split(" with ")} & {*excluded}]
    found = _best(families, times, table, base, tell)
    return in_order([fit for fit in found if fit is base or not same(fit, base)], base, table)


def in_order(fits: Sequence[Fit], base: Fit, table: MeasuredTable) -> list[Fit]:
    """Sort fits: first those that explain best the regions that are off on the healthy machine `base`, as far as the
    rows can tell; of these the least rare first. Then other explanations, and at the end what explains nothing. What
    is equal so far is in order of the score, or of the families."""
    good = as_good(fits, base, table)

    def order(fit: Fit) -> tuple[bool, bool, int, float]:
        is_good = any(fit is each for each in good)
        return not fit.explains(base), not is_good, fit.hypothesis.rarity if is_good else 0, fit.score

    return sorted(fits, key=order)


def _best(
    families: Sequence[Sequence[Hypothesis]],
    times: HypothesisTimes,
    table: MeasuredTable,
    base: Fit,
    tell: Tell,
) -> list[Fit]:
    """Return the fit of each family's best variant, in order of families; without families that are far off."""
    best: dict[str, Fit] = {}
    for number, variants in enumerate(families):
        here = (fit for fit in best.values() if fit.hypothesis.rarity < ANOTHER)
        if variants[0].rarity == ANOTHER and any(fit.explains(base) and not fit.off for fit in here):
            break  # these families come last, and count only if no other explains the table
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
            nearer = fit if rival is None or fit.score < rival.score else rival
            if rival and rival.hypothesis.share == variant.share < 1 and not table.tells_apart(fit, rival):
                nearer = replace(nearer, hypothesis=rival.hypothesis.or_one)
            best[variant.family] = nearer
    return list(best.values())


def _promising(
    variants: Sequence[Hypothesis], times: HypothesisTimes, table: MeasuredTable, base: Fit, rivals: Iterable[Fit]
) -> list[Hypothesis]:
    """Return the variants to try on all points: the one nearest to the measured times of PROBES selected points, and,
    if that is cheap, its neighbours. Slower variants take longer, so the nearest is where variants turn from too fast
    to too slow.

    Empty unless this variant is NEARER to the probes than the healthy machine, and not far behind its `rivals`: further
    than predictions of these points err. The probes are points of regions that are off.
    """
    off = np.array(sorted(point for number in base.off for point in base.regions[number].points))
    probes = off[distinct(np.linspace(0, len(off) - 1, PROBES).round().astype(int))]
    # A rival's error on all points counts if it is larger, as the rival may be near at the probes by chance.
    least = min(max(float(rival.errors[probes].mean()), rival.error) for rival in rivals)
    behind = max(BEHIND * least, least + table.bands.own(probes.tolist()))
    most = min(behind, NEARER * float(base.errors[probes].mean()))
    added = base.predicted - table.predicted
    nbytes = [table.scenarios[case].nbytes for case in table.case.tolist()]
    order = sorted(probes.tolist(), key=nbytes.__getitem__)  # small calls run quicker

    def late(variant: Hypothesis) -> float:
        """Return how much slower than measured a variant is at three probes: median of log(predicted / measured)."""
        three = probes[[0, len(probes) // 2, -1]]
        predicted = times.under(variant, three.tolist())
        if predicted is None:
            return np.inf
        return float(np.median(np.log((predicted + added[three]) / table.measured[three])))

    def error(number: int) -> float:
        """Return a variant's mean error at the probes; inf if it is above `most`, or if a probe cannot be simulated."""
        total = 0.0
        for point in order:
            predicted = times.under(variants[number], [point])
            if predicted is None:
                return np.inf
            total += float(log_errors(table.measured[[point]], predicted + added[[point]])[0])
            if total > most * len(order) * (1 + ROUNDING):
                return np.inf
        return total / len(order)

    at = bisect_left(variants, 0.0, key=late) if len(variants) > 1 else 0
    errors: dict[int, float] = {}
    beside = [*range(max(0, at - BESIDE), min(len(variants), at + BESIDE))]
    while beside:  # until both neighbours of the nearest variant are known
        errors |= {number: error(number) for number in beside}
        nearest = min(errors, key=errors.__getitem__)
        if errors[nearest] == np.inf:
            return []
        beside = [n for n in (nearest - 1, nearest + 1) if 0 <= n < len(variants) and n not in errors]
    around = 1 if variants[nearest].scenario is HEALTHY.scenario else 0
    return [variants[nearest], *variants[max(0, nearest - around) : nearest], *variants[nearest + 1 :][:around]]


def same(first: Fit, second: Fit) -> bool:
    """Return whether two hypotheses predict equal times for all points, so that no measurement can tell them apart."""
    return bool(np.allclose(first.predicted, second.predicted, rtol=SAME))


def beside(nearest: Fit, fit: Fit) -> bool:
    """Return whether a fit's error is not much larger than that of the `nearest` one."""
    return fit.error <= max(BEHIND * nearest.error, PENALTY)


def as_good(fits: Iterable[Fit], base: Fit, table: MeasuredTable) -> list[Fit]:
    """Return the fits that explain the table as well as the nearest one, which is among them, as far as rows can tell:
    the errors of predictions, or noise, may have put them behind it. Or they are as near and assume more: the simpler
    one is likelier, but the rows do not show which is true. None is farther than one that is not as good. Two faults at
    once count only if no single one is among them, and another machine only if nothing else is. Empty if nothing
    explains the table."""
    explaining = [fit for fit in fits if fit.explains(base)]
    nearest = min(explaining, key=lambda fit: fit.score, default=base)

    def is_as_good(fit: Fit) -> bool:
        as_near = fit.error <= nearest.error or fit.behind(nearest, PENALTY) == "open"
        alike = set(fit.off) <= set(nearest.off) and not table.tells_apart(nearest, fit)
        return (as_near and beside(nearest, fit)) or alike

    worse = min((fit.score for fit in explaining if not is_as_good(fit)), default=np.inf)
    good = [fit for fit in explaining if is_as_good(fit) and (fit.score < worse or fit.score == nearest.score)]
    here = [fit for fit in good if fit.hypothesis.rarity < ANOTHER]
    single = [fit for fit in here if not fit.hypothesis.pair]
    return single or here or good


def sure(fits: Sequence[Fit], base: Fit, table: MeasuredTable) -> str:
    """Return how certainly the first fit is better than the next one that is not as good: clear, likely or open."""
    good = as_good(fits, base, table)
    return next((fit.behind(fits[0]) for fit in fits[1:] if not any(fit is each for each in good)), "clear")


def _under(hypothesis: Hypothesis, times: HypothesisTimes, table: MeasuredTable) -> Fit | None:
    """Return how well a hypothesis explains the table, with the launch time estimated from the small sizes.

    None if it cannot be simulated, or if it says that launches take longer but the small sizes do not.
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
