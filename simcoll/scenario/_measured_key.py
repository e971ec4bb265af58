"""The scenario's key `measured`: a table of measured times."""

from __future__ import annotations

import functools
from pathlib import Path

from simcoll.errors import InputError


def check_table(name: str) -> None:
    """Raise ValueError for a table that is not there, or cannot be read."""
    from simcoll.formats.measured import find_measured

    try:
        file = find_measured(name)
        _rows(file, file.stat().st_mtime_ns)
    except InputError as error:
        raise ValueError(str(error.diagnostics[0])) from None


@functools.lru_cache(maxsize=16)
def _rows(file: Path, changed: int) -> int:
    """Count the rows of a measured table; it is read again only after a change of the file."""
    from simcoll.formats.measured import read_measured

    return len(read_measured(file))
