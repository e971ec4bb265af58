"""Rows as a measured table: CSV with our columns first, and then what else the rows say."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.config import csv_text
from simcoll.formats.measured._rows import COLUMNS, MeasuredRow


def dump(rows: Sequence[MeasuredRow]) -> str:
    """CSV text; columns that no row fills are left out."""
    others = list(dict.fromkeys(name for row in rows for name in row.others))
    filled = [column for column in COLUMNS if any(getattr(row, column) is not None for row in rows)]
    cells = ([*(_cell(getattr(row, c)) for c in filled), *(row.others.get(n) for n in others)] for row in rows)
    return csv_text.dump([*filled, *others], cells)


def _cell(value: object) -> object:
    return f"{value:.10g}" if isinstance(value, float) else value
