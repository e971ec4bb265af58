"""Read and write measured tables as CSV; read them with semicolons or tabs, too. The header names the columns; comment
lines begin with `#`. The writer puts simcoll's own columns first."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from simcoll.config import text_table
from simcoll.errors import Diagnostic, InputError, Place
from simcoll.formats.measured.measured_row import COLUMNS, MAX_MISTAKES, REQUIRED, LocatedCells, MeasuredRow
from simcoll.units import float_of

_TIME: Final = re.compile(
    r"(?i)(?:(?:avg|mean|median|p50|min)[ _]?)?(?:time|latency|duration)[ _]*\(?(ns|us|µs|ms|s)\)?"
)
_TIMES: Final = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_BANDWIDTH: Final = re.compile(r"(?i:(bus|alg)[ _]?(?:bw|bandwidth))(?:[ _]*\(?([A-Za-z_/]+)\)?)?")
_RATES: Final = {None: 1.0, "GB/s": 1.0, "GBps": 1.0, "GB_s": 1.0, "MB/s": 1e-3, "Gb/s": 1 / 8, "Gbps": 1 / 8,
                 "Gbit/s": 1 / 8}  # fmt: skip


def is_table(text: str) -> bool:
    """Return whether the first line that is neither empty nor a comment names a column of measured tables."""
    lines = (line.strip("\ufeff \t\r") for line in io.StringIO(text))
    header = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return any(name in COLUMNS for name in _names(header.split(_delimiter(header))))


def _delimiter(header: str) -> str:
    """Return what separates the names of columns: a comma, or a semicolon or tab if the line has more of these."""
    return max(",;\t", key=header.count)


def _names(cells: Iterable[str]) -> list[str]:
    return [cell.strip('\ufeff" \t\r\n').lower() for cell in cells]


def cells(text: str, source: str, given: LocatedCells, mistakes: list[Diagnostic]) -> Iterator[LocatedCells]:
    """Yield the cells of each row of a CSV text, with their places; `mistakes` gets rows with too few or many cells.

    Raises InputError if the header lacks a required column or repeats one, or if no row follows.
    """
    records = _records(text, source)
    places, first = next(records, ([Place(source, 1, 1)], []))
    header, factors = _header(first, places, given)
    empty = True
    for where, texts in records:
        empty = False
        if len(texts) != len(header):
            problem = f"the row has {len(texts)} cells, the header {len(header)}"
            cure = "give every row all columns, and texts with commas in quotes"
            mistakes.append(Diagnostic(problem, cure, "", where[0]))
            continue
        row = dict(zip(header, zip(map(text_table.csv_meaning, texts), where, strict=True), strict=True))
        yield {**row, **{column: _times(row[column], factor) for column, factor in factors.items()}}
    if empty:
        raise InputError("no row follows the header", "give at least one row", places[0])


def _header(cells: Sequence[str], places: list[Place], given: LocatedCells) -> tuple[list[str], dict[str, float]]:
    """Return the names of columns, and the factors by which cells of some become microseconds or GB/s.

    A column of bandwidths stands for a missing column of times; a time may have another unit. Raises InputError for
    missing columns, for columns given twice, and for bandwidths whose unit is not known.
    """
    names, factors = _names(cells), {}
    if "time_us" not in names:
        for i, cell in enumerate(cells):
            if found := _TIME.fullmatch(cell.strip()):
                names[i], factors["time_us"] = "time_us", _TIMES[found[1].lower()]
                break
            if found := _BANDWIDTH.fullmatch(cell.strip()):
                names[i] = f"{found[1].lower()}bw"
                if found[2] not in _RATES:
                    cure = f"name the column {names[i]}_GBps (10^9 bytes a second) or {names[i]}_Gbps (bits)"
                    raise InputError(f"column {cell.strip()!r} may have bits or bytes", cure, places[i])
                factors[names[i]] = _RATES[found[2]]
    stands_for = {"time_us"} if {"algbw", "busbw"} & set(names) else set()
    missing = [column for column in REQUIRED if column not in {*names, *given, *stands_for}]
    others = sorted(set(names) - set(COLUMNS) - {"", "algbw", "busbw"})
    cure = f"add it, or rename one of: {', '.join(others)}" if others else "add it"
    mistakes = [Diagnostic(f"column {column!r} is missing", cure, "", places[0]) for column in missing]
    for i, name in enumerate(names):
        if name in COLUMNS and name in names[:i]:
            mistakes.append(Diagnostic(f"column {name!r} stands twice", "keep one of them", "", places[i]))
    if mistakes:
        raise InputError(mistakes[:MAX_MISTAKES])
    return names, factors


def _times(cell: tuple[str, Place | None], factor: float) -> tuple[str, Place | None]:
    """Return a cell with its number times a factor; other cells stay."""
    try:
        return f"{float_of(cell[0]) * factor:.10g}", cell[1]
    except ValueError:
        return cell


def _records(text: str, source: str) -> Iterator[tuple[list[Place], list[str]]]:
    """Yield (places, cells) of every record that is neither empty nor a comment."""
    lines = list(io.StringIO(text.lstrip("\ufeff"), newline=None))
    header = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    between = _delimiter(header)
    reader = csv.reader(iter(lines), delimiter=between)
    start = 0
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                yield _places(source, start, lines[start], len(cells), between), cells
            start = reader.line_num
    except csv.Error as error:
        problem = f"not CSV: {error}"
        raise InputError(problem, "check commas and quotes", Place(source, start + 1, 1)) from None


def _places(source: str, start: int, line: str, count: int, between: str) -> list[Place]:
    """Return the place of each cell of a record; cells after a quoted line break get the end of its first line."""
    columns = [match.start() + 1 for match in re.finditer(rf'("(?:[^"]|"")*"|[^{between}])*(?:{between}|$)', line)]
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
