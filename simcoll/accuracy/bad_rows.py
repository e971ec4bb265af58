"""Find measured rows that cannot be right: a smaller message that took longer than one of twice its size.

The rule looks at the measured table only, never at predictions, so a bad prediction cannot mark a row as bad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from simcoll.config.groups import grouped
from simcoll.formats.measured import MeasuredRow

TOO_LONG: Final = 1.1  # a row that takes 10 % longer than twice its size is beyond what sound runs differ by


def suspicious(rows: Sequence[MeasuredRow]) -> list[bool]:
    """Flag every row that took more than TOO_LONG times what a row of at least twice its size took, all else being
    equal.

    Such times are those of a disturbed machine. Returns one flag per row, in the order of the rows.
    """
    least: dict[tuple[Any, int], float] = {}  # (series, size) -> shortest time of sizes from twice that on
    for key, members in grouped(rows, _series).items():
        for size in {row.size_bytes for row in members}:
            times = (row.time_us for row in members if row.size_bytes >= 2 * size)
            least[key, size] = min(times, default=math.inf)
    return [row.time_us > TOO_LONG * least[_series(row), row.size_bytes] for row in rows]


def _series(row: MeasuredRow) -> tuple[object, ...]:
    """Return what rows of one series have in common: everything except size and time."""
    keys = ("system", "collective", "algorithm", "protocol", "ranks", "nodes", "dtype", "harness")
    labels = {name: text for name, text in row.others.items() if "." in name or name == "root" or not _is_numeric(text)}
    return (*(getattr(row, key) for key in keys), *sorted(labels.items()))


def _is_numeric(text: str) -> bool:
    """Whether a column holds numbers, such as counts or launch times: they differ between sizes and name no series.

    Swept keys (`measure.buckets`) hold numbers too, but do name a series; the caller knows them by their dot.
    """
    try:
        return bool([float(word) for word in text.split()])
    except ValueError:
        return False
