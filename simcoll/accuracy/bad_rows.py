"""Measured rows that cannot be right, told by a rule and not by how well they are predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from simcoll.formats.measured import MeasuredRow

TOO_LONG: Final = 1.1  # times as long as a larger size


def suspicious(rows: Sequence[MeasuredRow]) -> list[bool]:
    """Of each row whether it took more than TOO_LONG times what twice its size or more took, all else being equal: such
    times are those of a disturbed machine."""
    series = [_series(row) for row in rows]
    least: dict[tuple[Any, int], float] = {}  # of each series and size, of all sizes from twice that on
    best: dict[Any, list[tuple[int, float]]] = {}
    for its, row in zip(series, rows, strict=True):
        best.setdefault(its, []).append((row.size_bytes, row.time_us))
    for its, told in best.items():
        for size in {size for size, _ in told}:
            least[its, size] = min((time for larger, time in told if larger >= 2 * size), default=math.inf)
    return [row.time_us > TOO_LONG * least[its, row.size_bytes] for its, row in zip(series, rows, strict=True)]


def _series(row: MeasuredRow) -> tuple[object, ...]:
    keys = ("system", "collective", "algorithm", "protocol", "ranks", "nodes", "dtype", "harness")
    told = {name: text for name, text in row.others.items() if "." in name or name == "root" or not _numbers(text)}
    return (*(getattr(row, key) for key in keys), *sorted(told.items()))


def _numbers(text: str) -> bool:
    """Counts, times of launches: what is different for each size says nothing of a series; swept keys have a dot."""
    try:
        return bool([float(word) for word in text.split()])
    except ValueError:
        return False
