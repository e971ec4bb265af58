"""Rows of results: their columns, the files they lie in, and how they are read back."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simcoll.errors import Diagnostic, InputError, Place
from simcoll.units import exact_us

SCHEMA: Final = "simcoll.results/1"
COLUMNS: Final = (
    *("scenario", "topology", "collective", "algorithm", "protocol", "ranks", "nodes", "size_bytes", "time_us"),
    *("algbw_GBps", "busbw_GBps", "steps", "messages", "wire_bytes", "lower_bound_us", "engine", "seed", "status"),
    *("dtype", "op", "root", "in_place", "profile", "sharing", "shortcut", "proved", "bytes_per_rank"),
    *("confidence", "low_us", "high_us", "binding_link", "binding_busy", "staged", "staged_bytes"),
    *("workload", "step_us", "exposed_us", "compute_us", "buckets"),
    *("replications", "time_us_p50", "time_us_p95", "time_us_p99", "slowdown_shares"),
    *("time_us_p50_low", "time_us_p50_high", "time_us_p95_low", "time_us_p95_high"),
    *("time_us_p99_low", "time_us_p99_high", "failed_runs"),
)
_INTS: Final = frozenset(
    {"ranks", "nodes", "size_bytes", "steps", "messages", "wire_bytes", "seed", "root", "bytes_per_rank"}
    | {"staged", "staged_bytes", "buckets", "replications", "failed_runs"}
)
_FLOATS: Final = frozenset(
    {"time_us", "algbw_GBps", "busbw_GBps", "lower_bound_us", "low_us", "high_us", "binding_busy"}
    | {"step_us", "exposed_us", "compute_us"}
    | {column for column in COLUMNS if column.startswith("time_us_")}
)

Row = Mapping[str, Any]


def swept(rows: Sequence[Row]) -> list[str]:
    """The columns of swept keys that have no column of their own: those with a dot, e.g. `model.o_send`."""
    return list(dict.fromkeys(column for row in rows for column in row if "." in column))


def kinds(rows: Sequence[Row]) -> dict[str, type]:
    """The columns and what kind of value each holds."""
    own = {"in_place": bool, **dict.fromkeys(_INTS, int), **dict.fromkeys(_FLOATS, float)}
    return {column: own.get(column, str) for column in (*COLUMNS, *swept(rows))}


def to_csv(rows: Sequence[Row]) -> str:
    """CSV text; times with all six decimals, so that no picosecond is lost."""
    text, columns = io.StringIO(), [*COLUMNS, *swept(rows)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row, column) for column in columns])
    return text.getvalue()


def _cell(row: Row, column: str) -> str:
    value = row.get(column)
    if column == "time_us" and row.get("time_ps") is not None:
        return exact_us(row["time_ps"])
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return json.dumps(value)
    if column.endswith("_us") or column.startswith("time_us_"):
        return f"{value:.6f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def public(row: Row) -> dict[str, Any]:
    """A row with the public columns only, numbers as numbers."""
    return {column: row.get(column) for column in (*COLUMNS, *swept([row]))}


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a results.csv; raises InputError with line and column of what is not a number."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", "give the path of a results.csv") from None
    reader = csv.DictReader(io.StringIO(text))
    missing = [
        c for c in ("collective", "ranks", "size_bytes", "time_us", "status") if c not in (reader.fieldnames or ())
    ]
    if missing:
        what = f"no column {missing[0]!r}"
        raise InputError([Diagnostic(what, "give a results.csv of `simcoll run`", "", Place(str(path), 1, 1))])
    return [_parsed(row, Place(str(path), reader.line_num, 1)) for row in reader]


def _parsed(cells: Mapping[str, str | None], place: Place) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, text in cells.items():
        try:
            row[column] = _value(column, text)
        except ValueError:
            raise InputError([Diagnostic(f"{text!r} is no number", "mend the file", column, place)]) from None
    return row


def _value(column: str, text: str | None) -> Any:
    if text is None or text == "":
        return None
    if column in _INTS:
        return int(text)
    if column in _FLOATS:
        return float(text)
    if column == "slowdown_shares":
        return json.loads(text)  # a ValueError if it is none
    return {"true": True, "false": False}.get(text, text) if column == "in_place" else text


def write_atomically(path: Path, text: str | bytes) -> None:
    """Write a file so that it is there whole or not at all; raises InputError if it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text if isinstance(text, bytes) else text.encode())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}", "give another folder") from None


def document(rows: Sequence[Row], reused: int = 0) -> str:
    """One JSON document for scripts."""
    return json.dumps({"schema": SCHEMA, "points": [public(row) for row in rows], "reused": reused}, indent=1)
