"""Measured times in arrays, and hypotheses applied to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.diagnosis import _regions
from simcoll.accuracy.diagnosis._hypothesis import PENALTY, Hypothesis
from simcoll.accuracy.diagnosis._regions import Bands, Region
from simcoll.config.arrays import Floats
from simcoll.scenario.scenario import Scenario

Flags = NDArray[np.bool_]
Sureness = Literal["clear", "likely", "open"]

SMALL: Final = 16 << 10  # bytes: up to this size most of the measured time is the launch
ALLOWED: Final = 4.0  # us by which launches differ between two sound ways of measuring
FAR: Final = 1.5  # |log| of measured / predicted at which an error is cut off, so that one wild point decides nothing
FAR_OFF: Final = 3.0  # a region whose median is that many times what it should be is not explained
# Standard errors by which another must be worse, point by point: about 95 % of a normal spread, or 68 %.
CLEAR: Final = 2.0
LIKELY: Final = 1.0  # for a weaker verdict
CLEARLY: Final = 0.5  # an explanation may leave at most half of the error in regions that are off


@dataclass(frozen=True)
class MeasuredTable:
    """A measured table in arrays: times `measured` (n,) in us, those `predicted` (n,) of the healthy machine, and which
    points show the launch (`small`, (n,)).

    `series` holds the numbers of the points of each series in order of size, `groups` those of each region of each
    series. `bands` and `scenarios` belong to the n points; `gpus` are those that the table names.
    """

    measured: Floats
    predicted: Floats
    small: Flags
    series: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    bands: Bands
    scenarios: tuple[Scenario, ...]
    gpus: tuple[str, ...] = ()

    def regions(self, predicted: Floats) -> tuple[Region, ...]:
        """Compare each region with predicted times (n,), in us."""
        return tuple(_regions.judged(group, self.measured / predicted, self.bands) for group in self.groups)

    def of(self, points: Sequence[int]) -> MeasuredTable:
        """Return the table of some whole series: the points with these numbers."""
        new = {point: number for number, point in enumerate(points)}
        series, groups = (
            tuple(tuple(new[point] for point in members) for members in each if members[0] in new)
            for each in (self.series, self.groups)
        )
        numbers = list(points)
        scenarios = tuple(self.scenarios[point] for point in numbers)
        times = self.measured[numbers], self.predicted[numbers]
        return MeasuredTable(*times, self.small[numbers], series, groups, self.bands.of(numbers), scenarios, self.gpus)

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
        """The error with the penalty of the hypothesis; that with the lowest score ranks first."""
        return self.error + self.hypothesis.penalty

    @property
    def off(self) -> list[int]:
        """The numbers of the regions that are off."""
        return [number for number, region in enumerate(self.regions) if region.off]

    def explains(self, healthy: Fit) -> bool:
        """Whether the hypothesis explains what is off on the healthy machine.

        It must leave at most CLEARLY of the error in the regions that are off there, bring at least one of them back to
        normal, push no other region off, and leave none off by a factor of FAR_OFF or more. Where none is off there, it
        must be likelier than the healthy machine by all points, and put none off.
        """
        if not healthy.off:
            return not self.off and healthy.behind(self, PENALTY) != "open"
        points = [point for number in healthy.off for point in healthy.regions[number].points]
        better = bool(points) and bool(self.errors[points].mean() <= CLEARLY * healthy.errors[points].mean())
        near = all(1 / FAR_OFF < self.regions[number].ratio < FAR_OFF for number in self.off)
        return better and near and set(self.off) < set(healthy.off)

    def behind(self, first: Fit, penalty: float = 0.0) -> Sureness:
        """Say how surely another fit is better: compare the sum over points of the difference in error, and of a
        penalty for each more assumption, with the standard error of that sum."""
        behind = self.errors - first.errors
        spread = float(behind.std(ddof=1)) * len(behind) ** 0.5 if len(behind) > 1 else np.inf
        total = float(behind.sum()) + penalty * len(behind) * (self.hypothesis.assumes - first.hypothesis.assumes)
        return "clear" if total > CLEAR * spread else "likely" if total > LIKELY * spread else "open"


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
        longer = launch_delay(took, small[members], expected)
        sound = abs(longer) <= min(ALLOWED, float(expected.min()) / 2)
        if sound and log_errors(took, expected + longer).mean() < log_errors(took, expected).mean():
            added[members] = longer
    return added


def launch_delay(measured: Floats, small: Flags, predicted: Floats) -> float:
    """Return how much longer than predicted the small sizes took, in us; 0 if there are none."""
    return float(np.median((measured - predicted)[small])) if small.any() else 0.0


def applied(hypothesis: Hypothesis, predicted: Floats, launch: float, table: MeasuredTable) -> Fit:
    """Return the fit of a hypothesis under which points take `predicted` (n,) us; `launch` us of these are added."""
    return Fit(hypothesis, predicted, launch, log_errors(table.measured, predicted), table.regions(predicted))


def in_part(fit: Fit, points: Sequence[int], table: MeasuredTable) -> Fit:
    """Return the fit of the points with these numbers, whose table this is."""
    return applied(fit.hypothesis, fit.predicted[list(points)], fit.launch, table)


def log_errors(measured: Floats, predicted: Floats) -> Floats:
    """Return |log(measured / predicted)| of points (n,), FAR at most."""
    return np.minimum(np.abs(np.log(measured / predicted)), FAR)
