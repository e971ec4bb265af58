"""Rows as an Arrow table, and as Parquet; pyarrow is an extra."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from simcoll.errors import SimcollError
from simcoll.prediction.result_rows import KINDS, ResultRow, dotted

MISSING = 'Arrow and Parquet need pyarrow: pip install "simcoll[parquet]"'


def table(rows: Sequence[ResultRow]) -> Any:
    """A pyarrow.Table with the columns of results.csv; a mapping is text. Raises SimcollError without pyarrow."""
    try:
        import pyarrow
    except ImportError:
        raise SimcollError(MISSING) from None
    numbers = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    columns = {}
    for name in (*KINDS, *dotted(rows)):
        values, number = [row.get(name) for row in rows], numbers.get(KINDS.get(name, str))
        texts = [value if value is None or number else str(value) for value in values]
        columns[name] = pyarrow.array(texts, number or pyarrow.string())
    return pyarrow.table(columns)


def parquet(rows: Sequence[ResultRow]) -> bytes:
    """A Parquet file."""
    made = table(rows)
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(made, buffer)
    return buffer.getvalue()


def file(rows: Sequence[ResultRow]) -> bytes:
    """An Arrow IPC file, which `pandas.read_feather` and `polars.read_ipc` open."""
    made = table(rows)
    import pyarrow

    buffer = io.BytesIO()
    with pyarrow.ipc.new_file(buffer, made.schema) as writer:
        writer.write_table(made)
    return buffer.getvalue()
