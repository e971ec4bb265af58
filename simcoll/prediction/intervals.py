"""90 % intervals of predictions, from three parts: the noise of measurements, parameters, and the model's own error.

All widths are standard deviations of logarithms, so that 0.1 is about 10 %. The interval of the *median* holds the
middle of many runs; that of a *single* measurement also has the noise of one run.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import Floats
from simcoll.config.groups import grouped

NORMAL_90: Final = 1.6449  # standard deviations from the middle of a normal distribution to its 95th percentile
FAR: Final = 4.0  # standard deviations from which on a measurement is an outlier: normal noise is there once in 16000
MOST_OUTLIERS: Final = 0.09  # below the tenth that may lie outside, so that the rest decides the width
LEAST_NOISE: Final = 0.01  # below is luck of few rows: repeated runs of one machine differ by a percent
FEWEST: Final = 4  # differences from which a spread is taken
DOUBT: Final = 2.0  # groups for which what is known of other machines counts beside the groups of a table


class Noise(NamedTuple):
    """Noise of single measurements: the standard deviation of most, and the share of outliers."""

    spread: float
    outliers: float


class Parts(NamedTuple):
    """The uncertainty of a prediction by its causes; `groups` is how many independent errors show that of the model."""

    noise: Noise
    parameters: float
    model: float
    groups: float

    @property
    def median(self) -> float:
        """Logarithm of the factor from the prediction to either end of the interval of the median."""
        return math.hypot(NORMAL_90 * self.parameters, student(self.groups) * self.model)

    @property
    def single(self) -> float:
        """The same for a single measurement: 90 % of all, outliers among those outside."""
        inside = 0.9 / (1 - min(self.noise.outliers, MOST_OUTLIERS))
        return math.hypot(self.median, NormalDist().inv_cdf(0.5 + inside / 2) * self.noise.spread)


def student(groups: float) -> float:
    """Return the 95th percentile of Student's distribution, in standard deviations that so many groups show, by the
    first term of its expansion in 1 / groups: few groups show their spread badly."""
    return NORMAL_90 * (1 + (NORMAL_90**2 + 1) / 4 / max(1.0, groups))


def noise(residuals: Floats, series: Sequence[Hashable], sizes: Sequence[int]) -> tuple[Noise, NDArray[np.bool_]]:
    """Estimate noise from logarithms of measured / predicted, (rows,), and flag the rows that are outliers.

    Noise is how neighbours in size of a series differ: what the model does wrong is alike for them. Outliers do not
    count.
    """
    around = np.zeros(len(residuals))
    steps: list[float] = []
    for numbers in grouped(range(len(residuals)), series.__getitem__).values():
        ordered = sorted(numbers, key=sizes.__getitem__)
        steps += np.diff(residuals[ordered]).tolist()
        for at, number in enumerate(ordered):
            around[number] = residuals[number] - np.median(residuals[ordered[max(0, at - 2) : at + 3]])
    lone = len(steps) < FEWEST
    spread = _robust(residuals - np.median(residuals)) if lone else _robust(np.array(steps)) / math.sqrt(2)
    spread = max(LEAST_NOISE, spread)
    outliers = np.abs(around) > FAR * spread
    return Noise(spread, float(np.mean(outliers))), outliers


def _robust(deviations: Floats) -> float:
    """Return the standard deviation of normal deviations around 0 with this median absolute value."""
    return 1.4826 * float(np.median(np.abs(deviations)))  # 1/0.6745, the normal upper quartile


def shrunk(own: float, groups: int, known: float) -> float:
    """Return the spread that so many groups showed, drawn to what is `known` of other machines as if by DOUBT more."""
    return math.sqrt((groups * own**2 + DOUBT * known**2) / (groups + DOUBT))
