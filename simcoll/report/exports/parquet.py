"""Convert rows to an Arrow table and to a Parquet file, with pyarrow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from simcoll.errors import SimcollError
from simcoll.prediction.result_rows import KINDS, ResultRow, dotted

NO_ARROW = 'Arrow and Parquet need pyarrow: pip install "simcoll[parquet]"'


def arrow_table(rows: Sequence[ResultRow]) -> Any:
    """Return the columns of results.csv as a pyarrow.Table; dicts become text. Raises SimcollError without pyarrow."""
    try:
        import pyarrow
    except ImportError:
        raise SimcollError(NO_ARROW) from None
    numbers = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    columns = {}
    for name in (*KINDS, *dotted(rows)):
        values, number = [row.get(name) for row in rows], numbers.get(KINDS.get(name, str))
        texts = [value if value is None or number else str(value) for value in values]
        columns[name] = pyarrow.array(texts, number or pyarrow.string())
    return pyarrow.table(columns)


def dump(rows: Sequence[ResultRow]) -> bytes:
    """Return the rows as the bytes of a Parquet file."""
    made = arrow_table(rows)
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(made, buffer)
    return buffer.getvalue()
