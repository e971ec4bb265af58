"""Text tables for the terminal: right-aligned, a line of names and a line of units, as nccl-tests prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_UNITS: Final = {"_us": "us", "_GBps": "GB/s", "_bytes": "B"}  # by the ending of the name
_PERCENT: Final = {"mape": 1, "median": 1, "p95": 1, "bias": 1, "error": 100}  # factor to percent


def render(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """The table, one line a row; a column's unit follows from its name, and what is absent is shown as `-`.

    >>> print(render(["ranks", "time_us"], [{"ranks": 8, "time_us": 53.2189}]))
      ranks    time
               (us)
          8   53.22
    """
    heads = [head(column) for column in columns]
    body = [[cell(column, row.get(column)) for column in columns] for row in rows]
    units = [[unit for _, unit in heads]] if any(unit for _, unit in heads) else []
    lines = [[name for name, _ in heads], *units, *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(("  " + "   ".join(map(str.rjust, line, widths))).rstrip() for line in lines)


def head(column: str) -> tuple[str, str]:
    """The name of a column without its unit, and that."""
    if column in _PERCENT:
        return column, "(%)"
    ending = next((ending for ending in _UNITS if column.endswith(ending)), "")
    return column.removesuffix(ending), f"({_UNITS[ending]})" if ending else ""


def cell(column: str, value: object) -> str:
    """A value as one reads it; `-`: there is none."""
    if value is None or value == "":
        return "-"
    if column in _PERCENT and isinstance(value, int | float):
        return f"{value * _PERCENT[column]:.1f}"
    if column.endswith(("_us", "_GBps")) and isinstance(value, str):  # exact, with more digits than one reads
        value = float(value)
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
