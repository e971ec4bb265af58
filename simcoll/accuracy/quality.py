"""Measured rows that cannot be right, told by a rule and not by how well they are predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from simcoll.formats.measured import Row

TOO_LONG: Final = 1.1  # times as long as twice the size


def suspicious(rows: Sequence[Row]) -> list[bool]:
    """Of each row whether it took more than TOO_LONG times what twice its size took, all else being equal: such times
    are those of a disturbed machine."""
    best: dict[tuple[Any, int], float] = {}
    for row in rows:
        key = (_series(row), row.size_bytes)
        best[key] = min(row.time_us, best.get(key, row.time_us))
    return [row.time_us > TOO_LONG * best.get((_series(row), 2 * row.size_bytes), row.time_us) for row in rows]


def _series(row: Row) -> tuple[object, ...]:
    keys = ("system", "collective", "algorithm", "protocol", "ranks", "nodes", "dtype", "harness")
    told = {name: text for name, text in row.others.items() if "." in name or name == "root" or not _numbers(text)}
    return (*(getattr(row, key) for key in keys), *sorted(told.items()))


def _numbers(text: str) -> bool:
    """Counts, times of launches: what is different for each size says nothing of a series; swept keys have a dot."""
    try:
        return bool([float(word) for word in text.split()])
    except ValueError:
        return False
