"""Rows that nccl-tests printed, pasted without the header of their table: which columns they have."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Final

from simcoll.schedule import names

OPERATORS: Final = ("sum", "prod", "min", "max", "avg", "mulsum", "none")
_TYPES: Final = "|".join(names.spellings(names.DTYPES, lambda row: row.nccl_tests).values())
_ROW: Final = re.compile(
    rf"(?<!\S)(?P<size>\d{{1,18}})\s+\d+\s+(?:{_TYPES})(?:\s+(?P<redop>{'|'.join(OPERATORS)}))?(?P<numbers>(?:\s+\S+){{3,9}})\s*$"
)
_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|N/A|[-+]?(?:nan|inf)")
_ROUNDED: Final = 0.0051, 0.01  # GB/s of a bandwidth, and share of a time, by which printed numbers are rounded
# Columns after the type and the operation: a root or none, one or two runs, each with its wrong elements or without.
_LAYOUTS: Final = tuple(itertools.product(("root ", ""), ("time algbw busbw #wrong", "time algbw busbw"), (2, 1)))


def header_of(lines: Sequence[str]) -> str | None:
    """The header that rows without one had; None where no line is such a row, or where several would fit all.

    By it each row has as many numbers, and each bandwidth is the size over the time before it.
    """
    rows = [match for line in lines if (match := _ROW.search(line)) and _all_numbers(match)]
    operation = "redop " if any(row["redop"] for row in rows) else ""
    fitting = [
        f"size count type {operation}{root}{' '.join([run] * runs)}"
        for root, run, runs in _LAYOUTS
        if rows and all(_fits(row, bool(root), len(run.split()), runs) for row in rows)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _all_numbers(row: re.Match[str]) -> bool:
    return all(_NUMBER.fullmatch(word) for word in row["numbers"].split())


def _fits(row: re.Match[str], rooted: bool, length: int, runs: int) -> bool:
    words = row["numbers"].split()
    if len(words) != rooted + length * runs or (rooted and not re.fullmatch(r"-?\d+", words[0])):
        return False
    parts = [words[rooted + length * run :] for run in range(runs)]
    return all(is_run(int(row["size"]), part) for part in parts)


def is_run(size: int, words: Sequence[str]) -> bool:
    """Whether numbers begin with a time (us), and the bandwidth (GB/s) that it means for so many bytes."""
    if words[0] == "N/A":
        return words[1] == "N/A"
    time_us, algbw = float(words[0]), float("nan") if words[1] == "N/A" else float(words[1])
    most, share = _ROUNDED
    return time_us > 0 and math.isfinite(algbw) and abs(size / time_us / 1e3 - algbw) <= most + share * algbw
