"""Tables as CSV: the only writer, and for readers the inverse of its escapes.

The first line names the columns, so that `pandas.read_csv(file)` reads what simcoll writes. A spreadsheet would run a
text that begins like a formula; it gets an apostrophe before it, as spreadsheets have it for texts.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

_FORMULA: Final = re.compile(r"'*(?![-+](?:[\d.]|inf|nan))[=+\-@\t\r].", re.IGNORECASE)


def dump(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """CSV text of rows with a cell for each column, empty for None."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(_safe, rows))
    return text.getvalue()


def meant(cell: str) -> str:
    """The text that a cell was written for.

    >>> meant("'=x"), meant("'tis")
    ('=x', "'tis")
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _safe(row: Iterable[object]) -> list[str]:
    texts = ("" if cell is None else str(cell) for cell in row)
    return [f"'{text}" if _FORMULA.match(text) else text for text in texts]
