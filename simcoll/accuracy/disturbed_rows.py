"""Find measured rows that cannot be right: a smaller message that took longer than one of twice its size.

Several sizes in a row that take the same time are how the library is, and no disturbance: so are messages that some
networks serve in another way up to a size. The rule looks at the measured table only, never at predictions, so a bad
prediction cannot mark a row as bad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from simcoll.config.groups import grouped
from simcoll.formats.measured import MeasuredRow
from simcoll.units import float_of

TOO_LONG: Final = 1.1  # a row that takes 10 % longer than twice its size is beyond what sound runs differ by
ALIKE: Final = 1.2  # of neighbours in size whose times belong together
ENOUGH: Final = 4  # such sizes in a row: a disturbance of so many runs would hardly be the same in all


def suspicious(rows: Sequence[MeasuredRow]) -> list[bool]:
    """Flag every row that took more than TOO_LONG times what a row of at least twice its size took, all else being
    equal.

    Such times are those of a disturbed machine, unless ENOUGH sizes in a row share them. Returns one flag per row, in
    the order of the rows.
    """
    least: dict[tuple[Any, int], float] = {}  # (series, size) -> shortest time of sizes from twice that on
    for key, members in grouped(rows, _series).items():
        for size in {row.size_bytes for row in members}:
            times = (row.time_us for row in members if row.size_bytes >= 2 * size)
            least[key, size] = min(times, default=math.inf)
    flags = [row.time_us > TOO_LONG * least[_series(row), row.size_bytes] for row in rows]
    for numbers in grouped(range(len(rows)), lambda i: _series(rows[i])).values():
        for run in _runs(rows, sorted(numbers, key=lambda i: rows[i].size_bytes), flags):
            if len({rows[i].size_bytes for i in run}) >= ENOUGH:
                for i in run:
                    flags[i] = False
    return flags


def _runs(rows: Sequence[MeasuredRow], numbers: Sequence[int], flags: Sequence[bool]) -> list[list[int]]:
    """Return the flagged rows of a series by neighbours whose times are alike."""
    runs: list[list[int]] = [[]]
    for i in numbers:
        last = rows[runs[-1][-1]].time_us if runs[-1] else rows[i].time_us
        if not flags[i] or max(rows[i].time_us / last, last / rows[i].time_us) > ALIKE:
            runs.append([])
        if flags[i]:
            runs[-1].append(i)
    return runs


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
        return bool([float_of(word) for word in text.split()])
    except ValueError:
        return False
