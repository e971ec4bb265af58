"""Find the sizes at which two algorithms cross that measured tables have one below and one above a size.

A library that takes one algorithm below a size and another above was measured with each on its own side. So each is
continued by the straight line through its two sizes next to the change, in measured and in predicted times alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from simcoll.accuracy.studies.validate import Scored
from simcoll.accuracy.table_join import JoinedPoint
from simcoll.config.groups import grouped


class AlgorithmCrossing(NamedTuple):
    """A size in bytes at which `above` takes over from `below`: `changed` in the table, and where the lines of
    measured and of predicted times meet; None where they do not."""

    ranks: int
    below: str
    above: str
    changed: int
    measured: float | None
    predicted: float | None

    @property
    def ratio(self) -> float | None:
        """The factor by which the predicted size is too large or too small, from 1; None where neither lines meet."""
        if self.measured is None or self.predicted is None:
            return None if self.measured == self.predicted else math.inf
        return max(self.predicted / self.measured, self.measured / self.predicted)


TITLE: Final = """Where the lines through the two nearest sizes of two algorithms meet, in KiB (`–`: nowhere), and
the size from which the library takes the second:
"""
COLUMNS: Final = ("case", "ranks", "below", "above", "taken from", "measured", "predicted", "times off")


def of_cases(scored: Sequence[Scored]) -> list[tuple[str, AlgorithmCrossing]]:
    """Return the crossings of each case, without bad rows."""
    sound = grouped([row for row in scored if not row.suspicious], lambda row: row.case)
    return [(case, found) for case, rows in sound.items() for found in crossings([row.point for row in rows])]


def worst(scored: Sequence[Scored]) -> float | None:
    """Return the largest ratio of a predicted size to a measured one, or of measured to predicted; None without any."""
    return max((found.ratio for _, found in of_cases(scored) if found.ratio is not None), default=None)


def cells(scored: Sequence[Scored]) -> list[tuple[object, ...]]:
    """Return the rows of the table with these COLUMNS."""
    return [
        (case, one.ranks, one.below, one.above, *map(_kibibytes, (one.changed, one.measured, one.predicted)),
         "–" if one.ratio is None else f"{one.ratio:.2f}")
        for case, one in of_cases(scored)
    ]  # fmt: skip


def _kibibytes(size: float | None) -> str:
    return "–" if size is None else f"{size / 1024:.0f}"


def crossings(points: Sequence[JoinedPoint]) -> Iterator[AlgorithmCrossing]:
    """Yield the crossings in the series of a table, by ranks; both algorithms have two sizes or more."""
    for ranks, series in grouped(points, lambda point: point.ranks).items():
        ordered = sorted(series, key=lambda point: point.size_bytes)
        runs = [list(run) for _, run in itertools.groupby(ordered, lambda point: point.algorithm)]
        for below, above in itertools.pairwise(runs):
            if len(below) > 1 and len(above) > 1:
                names = str(below[0].algorithm), str(above[0].algorithm)
                ends = [below[-2], below[-1], above[0], above[1]]
                sizes = [point.size_bytes for point in ends]
                measured = _meet(sizes, [point.measured_us for point in ends])
                predicted = _meet(sizes, [point.predicted_us for point in ends])
                yield AlgorithmCrossing(ranks, *names, above[0].size_bytes, measured, predicted)


def _meet(sizes: Sequence[int], times: Sequence[float]) -> float | None:
    """Return the size at which the line of the first two points meets that of the last two."""
    slopes = [(times[i + 1] - times[i]) / (sizes[i + 1] - sizes[i]) for i in (0, 2)]
    starts = [times[i] - slope * sizes[i] for i, slope in zip((0, 2), slopes, strict=True)]
    if slopes[0] <= slopes[1]:
        return None
    size = (starts[1] - starts[0]) / (slopes[0] - slopes[1])
    return size if size > 0 else None
