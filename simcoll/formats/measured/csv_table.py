"""Read and write measured tables as CSV. The header names the columns; comment lines begin with `#`. The writer puts
simcoll's own columns first."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from simcoll.config import text_table
from simcoll.errors import Diagnostic, InputError, Place
from simcoll.formats.measured.measured_row import COLUMNS, MAX_MISTAKES, REQUIRED, LocatedCells, MeasuredRow


def is_table(text: str) -> bool:
    """Return whether the first line that is neither empty nor a comment names a column of measured tables."""
    lines = (line.strip("\ufeff \t\r") for line in io.StringIO(text))
    header = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return any(name in COLUMNS for name in _names(header.split(",")))


def _names(cells: Iterable[str]) -> list[str]:
    return [cell.strip('\ufeff" \t\r\n').lower() for cell in cells]


def cells(text: str, source: str, given: LocatedCells, mistakes: list[Diagnostic]) -> Iterator[LocatedCells]:
    """Yield the cells of each row of a CSV text, with their places; `mistakes` gets rows with too few or many cells.

    Raises InputError if the header lacks a required column or repeats one, or if no row follows.
    """
    records = _records(text, source)
    places, first = next(records, ([Place(source, 1, 1)], []))
    header = _header(_names(first), places, given)
    empty = True
    for where, texts in records:
        empty = False
        if len(texts) != len(header):
            problem = f"the row has {len(texts)} cells, the header {len(header)}"
            cure = "give every row all columns, and texts with commas in quotes"
            mistakes.append(Diagnostic(problem, cure, "", where[0]))
            continue
        yield dict(zip(header, zip(map(text_table.csv_meaning, texts), where, strict=True), strict=True))
    if empty:
        raise InputError("no row follows the header", "give at least one row", places[0])


def _header(names: list[str], places: list[Place], given: LocatedCells) -> list[str]:
    missing = [column for column in REQUIRED if column not in names and column not in given]
    others = sorted(set(names) - set(COLUMNS) - {""})
    cure = f"add it, or rename one of: {', '.join(others)}" if others else "add it"
    mistakes = [Diagnostic(f"column {column!r} is missing", cure, "", places[0]) for column in missing]
    for i, name in enumerate(names):
        if name in COLUMNS and name in names[:i]:
            mistakes.append(Diagnostic(f"column {name!r} stands twice", "keep one of them", "", places[i]))
    if mistakes:
        raise InputError(mistakes[:MAX_MISTAKES])
    return names


def _records(text: str, source: str) -> Iterator[tuple[list[Place], list[str]]]:
    """Yield (places, cells) of every record that is neither empty nor a comment."""
    lines = list(io.StringIO(text.lstrip("\ufeff"), newline=None))
    reader = csv.reader(iter(lines))
    start = 0
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                yield _places(source, start, lines[start], len(cells)), cells
            start = reader.line_num
    except csv.Error as error:
        problem = f"not CSV: {error}"
        raise InputError(problem, "check commas and quotes", Place(source, start + 1, 1)) from None


def _places(source: str, start: int, line: str, count: int) -> list[Place]:
    """Return the place of each cell of a record; cells after a quoted line break get the end of its first line."""
    columns = [match.start() + 1 for match in re.finditer(r'("(?:[^"]|"")*"|[^,])*(?:,|$)', line)]
    columns += [columns[-1]] * (count - len(columns))
    return [Place(source, start + 1, column) for column in columns[:count]]


def dump(rows: Sequence[MeasuredRow]) -> str:
    """Return the rows as CSV text, without columns that are empty in all rows."""
    others = list(dict.fromkeys(name for row in rows for name in row.others))
    filled = [column for column in COLUMNS if any(getattr(row, column) is not None for row in rows)]
    cells = ([*(_cell(getattr(row, c)) for c in filled), *(row.others.get(n) for n in others)] for row in rows)
    return text_table.csv_text([*filled, *others], cells)


def _cell(value: object) -> object:
    return f"{value:.10g}" if isinstance(value, float) else value
