"""Whether measured times are as they should be: how far points lie from what is expected, and which regions are off.

How far is told in *bands*: 1 is the end of where times of a sound machine lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simcoll.config.arrays import Floats

NOISE: Final = 0.05  # |log| by which a sound machine's runs differ from each other, in nine of ten cases: a convention
UNTRIED: Final = (0.75, 1.33)  # the interval where a profile has none: a convention
WIDER: Final = 1.5  # times, in logarithms, is a band as wide: errors of predictions go together from size to size
TOGETHER: Final = 1.25  # the same of what MANY points have in common: what each errs by itself is averaged out
MANY: Final = 5  # points of a region of which that holds
WIDEST: Final = 1.8  # factor to an end of a band at most: what takes twice as long is off, however little is known
FEW: Final = 3  # points of a region from which on the worst is left out: one may be anything
WILD: Final = 2.0  # bands beyond which a single point is told


class Bands:
    """Where times of a sound machine lie around what is expected: the errors of predictions, and what runs differ by,
    WIDER, but at most WIDEST. `low` and `high` are factors (n,) to the ends."""

    def __init__(self, intervals: Sequence[tuple[float, float] | None]):
        """`intervals`: factors from each prediction to the ends of its 90 % interval, None where it has none."""
        ends = np.array([UNTRIED if its is None else its for its in intervals], np.float64)
        self._ends: Floats = np.hypot(np.maximum(np.log(ends) * (-1, 1), 0), NOISE)
        self.low, self.high = self._wide(self._ends, WIDER)

    @staticmethod
    def _wide(ends: Floats, wider: float) -> tuple[Floats, Floats]:
        low, high = (wider * ends).clip(max=np.log(WIDEST)).T
        return np.exp(-low), np.exp(high)

    def of_region(self, points: Sequence[int]) -> tuple[float, float]:
        """Factors to the ends of where the median of some of the points lies on a sound machine."""
        wider = TOGETHER if len(points) >= MANY else WIDER
        low, high = self._wide(np.median(self._ends[list(points)], axis=0), wider)
        return float(low), float(high)

    def distances(self, ratios: Floats) -> Floats:
        """How far points lie whose times are these (n,) of what is expected, in bands; negative what is faster."""
        logs = np.log(ratios)
        found: Floats = logs / np.where(logs < 0, -np.log(self.low), np.log(self.high))
        return found


@dataclass(frozen=True)
class Region:
    """A region of a series: the numbers of its points, its distance, the median of its ratios and the ends of its band,
    how many of its points are inside, and which of the others lie on the side to which most of it goes, with the median
    ratio of these; where all of it is beyond its band, which of its points are.

    `distance`, in bands: the root of the mean square of those of its points, the worst left out where there are FEW.
    """

    points: tuple[int, ...]
    distance: float
    ratio: float
    low: float
    high: float
    inside: int
    outside: tuple[int, ...]
    factor: float | None

    @property
    def off(self) -> bool:
        """Whether its points are apart by more than 1, more than half of them, and FEW at least, are outside, or all
        of it is beyond its band."""
        apart = len(self.points) - self.inside
        return self.distance > 1 or (apart >= FEW and 2 * apart > len(self.points)) or self.beyond

    @property
    def beyond(self) -> bool:
        """Whether what its points have in common is beyond its band."""
        return not self.low <= self.ratio <= self.high


def region(points: Sequence[int], ratios: Floats, bands: Bands) -> Region:
    """What some of the points make of a region, of which the ratios to what is expected are these (n,)."""
    its = np.array(points)
    far, ratio, (low, high) = bands.distances(ratios)[its], float(np.median(ratios[its])), bands.of_region(points)
    apart = np.sort(np.abs(far))
    worst = 1 if len(its) >= FEW else 0
    side = np.sign(far[np.abs(far) > 1].sum())
    outside = its[far * side > 1] if side else its[:0]
    if not low <= ratio <= high:
        outside = its[ratios[its] < low] if ratio < low else its[ratios[its] > high]
    return Region(
        points=tuple(points),
        distance=float(np.sqrt((apart[: len(its) - worst] ** 2).mean())),
        ratio=ratio,
        low=low,
        high=high,
        inside=int((apart <= 1).sum()),
        outside=tuple(outside.tolist()),
        factor=float(np.median(ratios[outside])) if len(outside) else None,
    )
