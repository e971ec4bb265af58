"""Rows as an Arrow table, and as Parquet; pyarrow is an extra."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from simcoll.errors import SimcollError

MISSING = 'Arrow and Parquet need pyarrow: pip install "simcoll[parquet]"'


def table(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, type]) -> Any:
    """A pyarrow.Table with a column for each of `kinds`: int, float, bool or str. Raises SimcollError without it."""
    try:
        import pyarrow
    except ImportError:
        raise SimcollError(MISSING) from None
    types = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_(), str: pyarrow.string()}
    columns = {
        name: pyarrow.array([_as(row.get(name), kind) for row in rows], types[kind]) for name, kind in kinds.items()
    }
    return pyarrow.table(columns)


def _as(value: Any, kind: type) -> Any:
    return value if value is None or kind is not str else str(value)


def parquet(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, type]) -> bytes:
    """A Parquet file."""
    made = table(rows, kinds)
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(made, buffer)
    return buffer.getvalue()


def stream(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, type]) -> bytes:
    """An Arrow IPC stream."""
    made = table(rows, kinds)
    import pyarrow

    buffer = io.BytesIO()
    with pyarrow.ipc.new_stream(buffer, made.schema) as writer:
        writer.write_table(made)
    return buffer.getvalue()
