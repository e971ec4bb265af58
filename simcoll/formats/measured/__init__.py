"""Read measured tables: CSV, output or JSON of nccl-tests and rccl-tests, tables of other
benchmarks, e.g. OSU's and Intel's.

A reader converts text into rows of cells: for each row a dict from column to (text, place in the file).
`measured_row.rows` checks the cells of every reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from simcoll.config import input_files, yaml_tree
from simcoll.config.input_files import decoded
from simcoll.errors import Diagnostic, InputError, did_you_mean
from simcoll.formats.debug_logs.log_lines import VARIABLE
from simcoll.formats.measured import csv_table, described_tables, measured_row, nccl_tests, nccl_tests_json, rccl_tests
from simcoll.formats.measured.csv_table import dump
from simcoll.formats.measured.measured_row import COLUMNS, MAX_MISTAKES, NOISE, MeasuredRow, normal

__all__ = [
    "COLUMNS",
    "MAX_MISTAKES",
    "NOISE",
    "MeasuredRow",
    "dump",
    "environment",
    "find_measured",
    "looks",
    "normal",
    "parse_measured",
    "read_file",
    "read_measured",
    "remarks",
    "wrong_data",
]

_FAILED: Final = re.compile(r"Out of bounds values\s*:\s*[0-9]+\s+FAILED")
_STOPPED: Final = re.compile(r"Test (?:NCCL |CUDA )?failure")  # of nccl-tests, whose later rows are then missing
_READERS: Final = (
    nccl_tests_json,
    rccl_tests,
    described_tables,
    nccl_tests,
)  # the last accepts any text with its header


def looks(text: str) -> bool:
    """Return whether a text is a measured table, by its header."""
    return csv_table.is_table(text) or any(reader.looks(text) for reader in _READERS)


def find_measured(name: Path | str) -> Path:
    """Return the file at this path, else the shipped table of this name; raises InputError if there is neither."""
    path, folder = Path(name), yaml_tree.shipped("measured")
    if path.exists():
        return path
    tables = [file.name for file in folder.glob("*.csv")]
    if str(name) in tables:
        return folder / name
    raise InputError(f"{name}: neither a file nor a shipped table", did_you_mean(path.name, tables))


def read_measured(path: Path | str) -> list[MeasuredRow]:
    """Read a measured table (CSV), or the output of a benchmark, e.g. nccl-tests.

    Raises InputError with every mistake and its place.
    """
    return read_file(path)[1]


def read_file(
    path: Path | str, defaults: Mapping[str, object] | None = None, chosen: bool = False
) -> tuple[bytes, list[MeasuredRow]]:
    """Return the bytes of a file, and its rows as `read_measured`; for the options see `parse_measured`."""
    data = input_files.bytes_of(Path(path), "give the path of a measured table")
    return data, parse_measured(decoded(data, str(path)), str(path), defaults, chosen)


def remarks(text: str, source: str, rows: Sequence[MeasuredRow]) -> list[str]:
    """Return remarks on a text: wrong results, a failure, unreadable lines that look like rows, runs of a point that
    differ."""
    stopped = _STOPPED.search(text)
    line = f"the benchmark failed (line {text.count(chr(10), 0, stopped.start()) + 1})" if stopped else None
    found = (wrong_data(text, rows), line, *_unread(text), measured_row.scattered(rows))
    return [f"{source}: {remark}" for remark in found if remark]


def wrong_data(text: str, rows: Sequence[MeasuredRow]) -> str | None:
    """Return a remark if the benchmark found wrong elements in its results; else None.

    Versions of nccl-tests without the column `#wrong` report wrong elements of all rows below the table.
    """
    said = None if "#wrong" in text else _FAILED.search(text)
    whole = f"the check of what was computed failed ({said[0]!r})" if said else None
    return measured_row.wrong_data(rows) or whole


def environment(text: str, rows: Iterable[MeasuredRow]) -> frozenset[str] | None:
    """Return the variables of NCCL that were set in a benchmark's run; None if its output does not show them, as NCCL's
    debug output (NCCL_DEBUG=INFO) and nccl-tests' JSON do."""
    columns = {column[4:].upper() for row in rows for column in row.others if column.startswith("env.")}
    if columns or "NCCL INFO" in text:
        return frozenset(columns.union(match[1] for match in VARIABLE.finditer(text)))
    return None


def _unread(text: str) -> list[str]:
    """Return one remark if some lines of nccl-tests look like rows and could not be read; else an empty list."""
    if csv_table.is_table(text) or any(reader.looks(text) for reader in _READERS[:-1]):
        return []
    lines = nccl_tests.unread(text)
    shown = ", ".join(map(str, lines[:5])) + (", …" if len(lines) > 5 else "")
    many = f"{len(lines)} lines look like rows and were" if len(lines) != 1 else "a line looks like a row and was"
    return [f"{many} not read (line {shown}): damaged, cut off, or without a time out of place"] * bool(lines)


def parse_measured(
    text: str, source: str, defaults: Mapping[str, object] | None = None, chosen: bool = False
) -> list[MeasuredRow]:
    """Return the rows of a file's text, as `read_measured` does; `source` names the text in error messages.

    `defaults` are values for cells that rows lack. With `chosen`, they also select tables: a table that certainly has
    other values may be skipped.
    """
    given = measured_row.given(defaults or {})
    mistakes: list[Diagnostic] = []
    if csv_table.is_table(text) and not rccl_tests.looks(text):
        return measured_row.rows(csv_table.cells(text, source, given, mistakes), given, mistakes)
    reader = next((reader for reader in _READERS if reader.looks(text)), nccl_tests)
    cells = nccl_tests.cells(text, source, given, chosen) if reader is nccl_tests else reader.cells(text, source, given)
    if not cells:
        begun = ": it has a header, but no complete row below it" if reader.looks(text) else ""
        debug = ", only NCCL's debug output" if not begun and "NCCL INFO" in text else ""
        raise InputError(f"{source}: holds no measurement{begun}{debug}", reader.CURE)
    return measured_row.rows(cells, given, mistakes)
