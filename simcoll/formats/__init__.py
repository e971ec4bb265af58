"""Other people's files, in and out. Here: measured tables, in whichever of their forms.

Members of the family do not import each other: readers of measured tables give located cells (column → text and
place), and `measured.rows` makes checked rows of them, whoever read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simcoll.errors import Diagnostic, InputError
from simcoll.formats import measured, nccl_tests
from simcoll.formats.measured import Row

__all__ = ["Row", "parse_measured", "read_measured"]


def read_measured(path: Path | str, defaults: Mapping[str, object] | None = None) -> list[Row]:
    """The rows of a file that holds a measured table (CSV) or what nccl-tests or rccl-tests printed.

    `defaults` (column → value) fill what the file does not say. Raises InputError with every mistake, located.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        what = f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(what, "give the path of a measured table") from None
    return parse_measured(data.decode("utf-8-sig", errors="replace"), str(path), defaults)


def parse_measured(text: str, source: str, defaults: Mapping[str, object] | None = None) -> list[Row]:
    """Like `read_measured`, of a text; `source` names it in errors."""
    given = measured.given(defaults or {})
    mistakes: list[Diagnostic] = []
    if measured.is_csv(text):
        return measured.rows(measured.csv_cells(text, source, given, mistakes), given, mistakes)
    return measured.rows(nccl_tests.cells(text, source, given), given, mistakes)
