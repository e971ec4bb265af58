"""Judge measured times: how far points are from expected times, which regions of a series are off (slow or fast), and
how well a hypothesis explains them.

Distances are in *bands*: a point at distance 1 lies at the end of the range of a sound machine's times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.diagnosis.hypotheses import Hypothesis
from simcoll.config.numpy_helpers import Floats, Numbers
from simcoll.scenario.scenario import Scenario

Flags = NDArray[np.bool_]
Sureness = Literal["clear", "likely", "open"]

SMALL: Final = 16 << 10  # bytes: up to this size most of the measured time is the launch
ALLOWED: Final = 4.0  # us by which launches of two sound ways of measuring may differ: a convention
FAR: Final = 1.5  # |log| of measured / predicted at which an error is cut off, so that one wild point decides nothing
FAR_OFF: Final = 3.0  # a region is not explained if its median is off by this factor; less may be a second fault
# Standard errors by which another fit must be worse, point by point: about 95 % of a normal spread, or 68 %.
CLEAR: Final = 2.0
LIKELY: Final = 1.0  # for a weaker verdict

# |log| by which runs differ in nine of ten cases: at least on a sound machine, and at most: more is a finding. In
# between, the rows show it: conventions
NOISE: Final = (0.05, 0.16)
UNTRIED: Final = (0.75, 1.33)  # the interval for a profile without one: a convention
# A band's width over an interval's, in logarithms, down to short times and up to long ones. A table has many regions,
# so 90 % become 96 %. To be faster is no fault: it is a finding only if it is far beyond the interval.
WIDER: Final = (2.0, 1.25)
WIDEST: Final = 1.8  # largest factor to the end of a band: twice the expected time is always off
FEW: Final = 3  # a region of at least so many points ignores its worst point, which may be an accident
WILD: Final = 2.0  # bands beyond which a single point is reported: twice as far as sound runs go


# --- regions of series ---


class Bands:
    """The ranges of a sound machine's times around expected times.

    A band combines the prediction's error and the noise of runs; it is WIDER than both, and ends at the factor
    WIDEST. `low` and `high` are the factors (n,) from the expected times to the ends of the bands.
    """

    def __init__(self, intervals: Sequence[tuple[float, float] | None], noise: float):
        """Take each point's factors from the prediction to the ends of its 90 % interval; None without interval. Take
        the `noise`: |log| by which runs differ in nine of ten cases."""
        ends = np.array([UNTRIED if interval is None else interval for interval in intervals], np.float64)
        self._ends: Floats = np.maximum(np.log(ends) * (-1, 1), 0)
        self._noise = float(np.clip(noise, *NOISE))
        self.low, self.high = self._wide(self._ends, 1)

    def _wide(self, ends: Floats, runs: int) -> tuple[Floats, Floats]:
        """Return the factors to the ends of bands for the median of so many runs."""
        low, high = (np.array(WIDER) * np.hypot(ends, self._noise / runs**0.5)).clip(max=np.log(WIDEST)).T
        return np.exp(-low), np.exp(high)

    def of_region(self, points: Sequence[int]) -> tuple[float, float]:
        """Return the factors from expected time to the ends of the band, for the median of these points: errors of
        predictions of neighbouring sizes are alike, and noise is not."""
        low, high = self._wide(np.median(self._ends[list(points)], axis=0), len(points))
        return float(low), float(high)

    def own(self, points: Sequence[int]) -> float:
        """Return the usual error of these points' predictions with the noise of runs: |log|, the median over them."""
        return float(np.hypot(np.median(self._ends[list(points)].max(axis=1)), self._noise))

    def distances(self, ratios: Floats) -> Floats:
        """Return the distance of each point from its expected time in bands, (n,), negative if the point is faster.
        `ratios` (n,) are measured / expected."""
        logs = np.log(ratios)
        distances: Floats = logs / np.where(logs < 0, -np.log(self.low), np.log(self.high))
        return distances


@dataclass(frozen=True)
class Region:
    """The verdict on a region (some neighbouring sizes) of a series.

    `points` are the numbers of its points. `ratio` is the median of measured / expected; `low` and `high` are the ends
    of its band. `inside` counts points within their bands. `outside` lists the points beyond their bands on the side
    with more of them; if the median is beyond its band, it lists the points beyond that band. `factor` is the median
    ratio of `outside`. `contrary` lists the points beyond their bands on the other side, with the median ratio
    `contrary_factor`. `distance`, in bands, is the root mean square over the points; from FEW points on the worst one
    is left out.
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

    @property
    def off(self) -> bool:
        """Whether the region is off: its distance is above 1, or its median is beyond its band, or more than half of
        its points (and at least FEW) are outside their bands."""
        apart = len(self.points) - self.inside
        return self.distance > 1 or (apart >= FEW and 2 * apart > len(self.points)) or self.beyond

    @property
    def beyond(self) -> bool:
        """Whether the region's median of measured / expected is outside its band."""
        return not self.low <= self.ratio <= self.high


def judged(points: Sequence[int], ratios: Floats, bands: Bands) -> Region:
    """Return the verdict on the region of the `points`. `ratios` (n,), of all points, are measured / expected."""
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
    """A measured table as arrays over its n points: times in us, `measured` (n,) and `predicted` (n,) on the healthy
    machine; `small` (n,) flags points whose times show the launch.

    `series` lists the point numbers of each series in order of size; `groups` lists those of each region of each
    series. `bands` belong to the points. `case` (n,) numbers the scenario of each point among the `scenarios`. The
    table names the `gpus`, and the variables of the `environment` (None: it does not show the environment).
    """

    measured: Floats
    predicted: Floats
    small: Flags
    series: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    bands: Bands
    case: Numbers
    scenarios: tuple[Scenario, ...]
    gpus: tuple[str, ...] = ()
    environment: frozenset[str] | None = None

    def tells_apart(self, first: Fit, second: Fit) -> bool:
        """Return whether the rows can show which of two explanations is true. In some region their predictions must
        differ by more than predictions of such points err: their root mean square, as of a region's distance."""
        apart = np.log(first.predicted / second.predicted)
        return any(float(np.sqrt((apart[list(group)] ** 2).mean())) > self.bands.own(group) for group in self.groups)

    def regions(self, predicted: Floats) -> tuple[Region, ...]:
        """Return the verdict on each region, if the predicted times (n,), in us, are expected."""
        return tuple(judged(group, self.measured / predicted, self.bands) for group in self.groups)


@dataclass(frozen=True)
class Fit:
    """How a hypothesis fits a table.

    `launch` is the time in us that was added to each launch, or the pace of launches; `predicted` (n,), in us, includes
    it. `errors` (n,) are |log(measured / predicted)|; `regions` are the verdicts if `predicted` is expected, but
    for the points in `accidents`.
    """

    hypothesis: Hypothesis
    predicted: Floats
    launch: float
    errors: Floats
    regions: tuple[Region, ...]
    accidents: tuple[int, ...] = ()

    @property
    def error(self) -> float:
        """The mean of the errors."""
        return float(self.errors.mean())

    @property
    def score(self) -> float:
        """The error plus the hypothesis's penalty; hypotheses with a low score rank first."""
        return self.error + self.hypothesis.penalty

    @property
    def off(self) -> list[int]:
        """The numbers of the regions that are off under this hypothesis."""
        return [number for number, region in enumerate(self.regions) if region.off]

    def explains(self, healthy: Fit) -> bool:
        """Return whether the hypothesis explains the regions that are off on the healthy machine (`healthy`).

        It must halve the error in these regions, because it may be nearer by chance. It must bring at least one of them
        back to normal, put no other region off, and leave none off by a factor of FAR_OFF or more.
        """
        points = [point for number in healthy.off for point in healthy.regions[number].points]
        better = bool(points) and bool(2 * self.errors[points].mean() <= healthy.errors[points].mean())
        near = all(1 / FAR_OFF < self.regions[number].ratio < FAR_OFF for number in self.off)
        return better and near and set(self.off) < set(healthy.off)

    def behind(self, first: Fit, penalty: float = 0.0) -> Sureness:
        """Return how surely the fit `first` is better than this one. The difference in error, summed over points, plus
        a penalty for each further assumption, is compared with its standard error."""
        behind = self.errors - first.errors
        spread = float(behind.std(ddof=1)) * len(behind) ** 0.5 if len(behind) > 1 else np.inf
        total = float(behind.sum()) + penalty * len(behind) * (self.hypothesis.assumes - first.hypothesis.assumes)
        return "clear" if total > CLEAR * spread else "likely" if total > LIKELY * spread else "open"


def launch_points(sizes: Sequence[int], bad: Sequence[bool], series: Sequence[Sequence[int]]) -> Flags:
    """Return flags (n,) of points whose times show the launch: the small sizes of each series.

    If more than half of a series' small sizes, but not all, are `bad`, only the good ones are flagged. Fewer bad sizes
    hardly move the median.
    """
    small = np.array(sizes) <= SMALL
    good = small & ~np.array(bad)
    for members in map(list, series):
        if good[members].any() and 2 * good[members].sum() < small[members].sum():
            small[members] = good[members]
    return small


def shifts(measured: Floats, small: Flags, series: Sequence[Sequence[int]], predicted: Floats) -> Floats:
    """Return the time in us (n,) that the way of measuring adds to the points of each series, as its small sizes show.

    It is 0 for a series if the difference is above ALLOWED or above half of the shortest time, which would be a fault.
    It is also 0 if the difference does not bring the whole series nearer: then it is noise of a few small sizes.
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
    """Return by how many us the flagged `small` points took longer than predicted (median); 0 if there are none."""
    return float(np.median((measured - predicted)[small])) if small.any() else 0.0


def applied(hypothesis: Hypothesis, predicted: Floats, launch: float, table: MeasuredTable) -> Fit:
    """Return the fit of a hypothesis whose predicted times (n,), in us, include the added launch time `launch`."""
    return Fit(hypothesis, predicted, launch, log_errors(table.measured, predicted), table.regions(predicted))


def log_errors(measured: Floats, predicted: Floats) -> Floats:
    """Return |log(measured / predicted)| of the points (n,); larger values than FAR count as FAR."""
    return np.minimum(np.abs(np.log(measured / predicted)), FAR)
