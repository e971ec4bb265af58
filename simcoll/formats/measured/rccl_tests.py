"""Read the files that rccl-tests writes with `-Z json` and `-Z csv`, with one row per line, in place or out of place.

The module also reads tables of nccl-tests that a user has converted to CSV. The user must supply missing columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from simcoll.config import input_files
from simcoll.errors import InputError, Place
from simcoll.formats.measured.measured_row import LocatedCells, unsaid, wrong_cell

CURE: Final = "give what rccl-tests writes with -Z json or -Z csv"
_COLUMNS: Final = {
    "name": "collective", "collective": "collective", "nodes": "nodes", "ranks": "ranks", "gpus": "ranks",
    "size": "size_bytes", "type": "dtype", "redop": "redop", "time": "time_us",
}  # fmt: skip
_NEEDED: Final = frozenset(("size", "type", "time", "busbw"))


def looks(text: str) -> bool:
    """Return whether the first row or the header has the columns of rccl-tests; case does not count."""
    start = text.lstrip("\ufeff \t\r\n[")
    if start.startswith("{"):
        return all(f'"{key}"' in start[:2000] for key in ("busBw", "size")) and '"results"' not in text
    return set(_words(_header(text)[1].split(","))) >= _NEEDED


def cells(text: str, source: str, given: LocatedCells) -> list[LocatedCells]:
    """Return the cells of every row of more than 0 bytes, with places. In-place times are added to out-of-place rows.

    Raises InputError for invalid JSON, with its place, and if neither text nor `given` has collective or ranks.
    """
    found: dict[tuple[str, ...], LocatedCells] = {}
    for place, row in _rows(text.lstrip("\ufeff"), source):
        columns = {_COLUMNS[key]: value for key, value in row.items() if key in _COLUMNS and value is not None}
        missing = [column for column in ("collective", "ranks") if column not in columns and column not in given]
        if missing:
            raise InputError([unsaid(missing[0], place)])
        of_rccl = {"library": "rccl", "timing": "rccl-tests"} if "inplace" in row else {"timing": "nccl-tests"}
        columns |= {**of_rccl, "harness": "nccl-tests"}
        said: LocatedCells = {column: (str(value).strip(), place) for column, value in columns.items()}
        key = tuple(str(columns.get(column)) for column in ("collective", "ranks", "size_bytes", "dtype", "redop"))
        wrong = row.get("wrong")
        if str(row.get("inplace", 0)).strip().lower() in ("1", "true"):
            if key in found and "time_us" in said:
                found[key]["in_place_time_us"] = said["time_us"]
                found[key] |= wrong_cell([found[key].get("wrong", ("", None))[0], wrong], place)
        else:
            said |= wrong_cell([wrong], place)
            found[(*key, str(place.line), str(len(found))) if key in found else key] = said
    return [row for row in found.values() if row.get("size_bytes", ("0", None))[0].strip("0.")]


def _rows(text: str, source: str) -> Iterable[tuple[Place, Mapping[str, Any]]]:
    if text.lstrip().startswith(("{", "[")):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip().startswith("{"):  # a row a line, also within a list
                row = input_files.json_mapping(line.strip().rstrip(","), source, CURE, number)
                yield Place(source, number, 1), dict(zip(_words(row), row.values(), strict=True))
        return
    first, header = _header(text)
    names = _words(header.split(","))
    for number, line in enumerate(text.splitlines()[first:], first + 1):
        values = next(csv.reader([line], skipinitialspace=True), [])
        if len(values) == len(names):
            yield Place(source, number, 1), dict(zip(names, values, strict=True))


def _header(text: str) -> tuple[int, str]:
    """Return the number and the text of the first line that is neither empty nor a comment."""
    lines = ((number, line.strip("\ufeff \t\r")) for number, line in enumerate(text.splitlines(), 1))
    return next(((n, line) for n, line in lines if line and not (line.startswith("#") and "," not in line)), (0, ""))


def _words(names: Iterable[str]) -> list[str]:
    """Return column names in small letters, without units and signs: `algBw (GB/s)` becomes `algbw`."""
    return [re.sub(r"\(.*?\)|[^a-z]", "", name.lower()) for name in names]
