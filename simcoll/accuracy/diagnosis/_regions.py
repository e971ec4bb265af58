"""Judge measured times: how far points lie from what is expected, and which regions of a series are off.

Distances are in *bands*: at 1 a point lies at the end of the range in which a sound machine's times lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simcoll.config.arrays import Floats

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
    """Judge a region that is off, of fewer than FEW points, without the only one that is outside, if its neighbours in
    size are not: by the others and these neighbours. Any other region stays as it is. `series`: its points by size.
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
