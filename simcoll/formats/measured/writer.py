"""Rows as a measured table: CSV with our columns first, and then what else the rows say."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from simcoll.formats.measured._rows import COLUMNS, MeasuredRow


def dump(rows: Sequence[MeasuredRow]) -> str:
    """CSV text; columns that no row fills are left out."""
    others = list(dict.fromkeys(name for row in rows for name in row.others))
    filled = [column for column in COLUMNS if any(getattr(row, column) is not None for row in rows)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*filled, *others])
    for row in rows:
        own = (getattr(row, column) for column in filled)
        writer.writerow(
            [*("" if value is None else _cell(value) for value in own), *(row.others.get(n, "") for n in others)]
        )
    return text.getvalue()


def _cell(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
