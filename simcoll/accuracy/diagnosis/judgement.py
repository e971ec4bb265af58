"""Judge measured times: how far points lie from what is expected, which regions of a series are off, and how well a
hypothesis explains them.

Distances are in *bands*: at 1 a point lies at the end of the range in which a sound machine's times lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.diagnosis.hypotheses import PENALTY, Hypothesis
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

NOISE: Final = 0.05  # |log| by which a sound machine's runs differ from each other, in nine of ten cases: a convention
UNTRIED: Final = (0.75, 1.33)  # the interval where a profile has none: a convention
# A band is WIDER times the interval, in logarithms: prediction errors of neighbouring sizes are alike, so that a whole
# series may lie at the end of its interval. A median of MANY points needs less, as errors of single points cancel out.
WIDER: Final = 1.5
TOGETHER: Final = 1.25  # the same factor for the median of a region with at least MANY points
MANY: Final = 5  # points of a region
WIDEST: Final = 1.8  # most a band reaches, as a factor: twice the expected time is off, however little is known
FEW: Final = 3  # points of a region from which on the worst is left out, as a single one may be an accident
WILD: Final = 2.0  # bands beyond which a single point is reported


# --- regions of series ---


class Bands:
    """The ranges around expected times in which a sound machine's times lie.

    A band combines the error of the prediction and the noise of runs, is WIDER than both, and ends at WIDEST. `low` and
    `high` are the factors (n,) from the expected times to its ends.
    """

    def __init__(self, intervals: Sequence[tuple[float, float] | None]):
        """Take factors from each prediction to the ends of its 90 % interval; None where it has none."""
        ends = np.array([UNTRIED if interval is None else interval for interval in intervals], np.float64)
        self._ends: Floats = np.hypot(np.maximum(np.log(ends) * (-1, 1), 0), NOISE)
        self._intervals = tuple(intervals)
        self.low, self.high = self._wide(self._ends, WIDER)

    def of(self, points: Sequence[int]) -> Bands:
        """Return the bands of the points with these numbers."""
        return Bands([self._intervals[point] for point in points])

    @staticmethod
    def _wide(ends: Floats, wider: float) -> tuple[Floats, Floats]:
        low, high = (wider * ends).clip(max=np.log(WIDEST)).T
        return np.exp(-low), np.exp(high)

    def of_region(self, points: Sequence[int]) -> tuple[float, float]:
        """Return factors to the ends of the band for the median of several points."""
        wider = TOGETHER if len(points) >= MANY else WIDER
        low, high = self._wide(np.median(self._ends[list(points)], axis=0), wider)
        return float(low), float(high)

    def distances(self, ratios: Floats) -> Floats:
        """Return how far points lie from what is expected, in bands; negative if faster. `ratios` (n,):
        measured/expected.
        """
        logs = np.log(ratios)
        distances: Floats = logs / np.where(logs < 0, -np.log(self.low), np.log(self.high))
        return distances


@dataclass(frozen=True)
class Region:
    """The verdict on a region of a series.

    `points` are their numbers; `ratio` is the median of measured/expected, `low` and `high` are the ends of its band,
    and `inside` counts points within their bands. `outside` numbers those beyond, on the side where most of them lie,
    or those beyond the band of the median if the median is; `factor` is the median ratio of these. `contrary` and
    `contrary_factor` are the same of points beyond their bands on the other side. `accident` is the point that was left
    out, see `but_for_accident`.

    `distance`, in bands: the root mean square over the points, without the worst where there are at least FEW.
    """

    points: tuple[int, ...]
    distance: float
    ratio: float
    low: float
    high: float
    inside: int
    outside: tuple[int, ...]
    factor: float | None
    contrary: tuple[int, ...]
    contrary_factor: float | None
    accident: int | None = None

    @property
    def off(self) -> bool:
        """Whether the region is off: its distance is above 1, or more than half of its points, and at least FEW, are
        outside, or its median is beyond its band.
        """
        apart = len(self.points) - self.inside
        return self.distance > 1 or (apart >= FEW and 2 * apart > len(self.points)) or self.beyond

    @property
    def beyond(self) -> bool:
        """Whether the median of the region is beyond its band."""
        return not self.low <= self.ratio <= self.high


def but_for_accident(region: Region, series: Sequence[int], ratios: Floats, bands: Bands) -> Region:
    """Judge a small region again without its only point outside, where the neighbours of that point in size are inside:
    a single point may be an accident. The neighbours are judged with it. Regions of FEW points or more stay as they
    are. `series`: the points of its series by size.
    """
    far = np.abs(bands.distances(ratios))
    outside = [point for point in region.points if far[point] > 1]
    if not region.off or len(region.points) >= FEW or len(outside) != 1:
        return region
    at = series.index(outside[0])
    around = [*series[max(0, at - 1) : at], *series[at + 1 : at + 2]]
    if len(around) < 2 or far[around].max() > 1:
        return region
    kept = [*(point for point in region.points if point not in (*outside, *around)), *around]
    return replace(judged(kept, ratios, bands), points=region.points, inside=region.inside, accident=outside[0])


def judged(points: Sequence[int], ratios: Floats, bands: Bands) -> Region:
    """Judge the region of these points; `ratios` (n,) of all points are measured/expected."""
    members = np.array(points)
    far, ratio = bands.distances(ratios)[members], float(np.median(ratios[members]))
    low, high = bands.of_region(points)
    apart = np.sort(np.abs(far))
    worst = 1 if len(members) >= FEW else 0
    side = np.sign(far[np.abs(far) > 1].sum())
    outside = members[far * side > 1] if side else members[:0]
    if not low <= ratio <= high:
        side = -1.0 if ratio < low else 1.0
        outside = members[ratios[members] < low] if ratio < low else members[ratios[members] > high]
    contrary = members[far * side < -1]
    return Region(
        points=tuple(points),
        distance=float(np.sqrt((apart[: len(members) - worst] ** 2).mean())),
        ratio=ratio,
        low=low,
        high=high,
        inside=int((apart <= 1).sum()),
        outside=tuple(outside.tolist()),
        factor=float(np.median(ratios[outside])) if len(outside) else None,
        contrary=tuple(contrary.tolist()),
        contrary_factor=float(np.median(ratios[contrary])) if len(contrary) else None,
    )


# --- tables and fits ---


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
        return tuple(judged(group, self.measured / predicted, self.bands) for group in self.groups)

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
        """Return the fit with regions judged again as if single points among sound neighbours were accidents."""
        of_point = {point: members for members in self.series for point in members}
        ratios = self.measured / fit.predicted
        regions = (but_for_accident(region, of_point[region.points[0]], ratios, self.bands) for region in fit.regions)
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
