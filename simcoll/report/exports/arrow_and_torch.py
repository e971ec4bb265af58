"""Rows for other libraries: Arrow tables and Parquet (by pyarrow), measurements of torch.utils.benchmark."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from simcoll.errors import SimcollError
from simcoll.prediction.result_rows import KINDS, ResultRow, dotted
from simcoll.units import format_size

NO_TORCH = 'measurements of torch.utils.benchmark need torch: pip install "simcoll[validate]"'
NO_ARROW = 'Arrow and Parquet need pyarrow: pip install "simcoll[parquet]"'


def arrow_table(rows: Sequence[ResultRow]) -> Any:
    """Return a pyarrow.Table of results.csv's columns; mappings are text. Raises SimcollError without pyarrow."""
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


def parquet(rows: Sequence[ResultRow]) -> bytes:
    """Return rows as a Parquet file."""
    made = arrow_table(rows)
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(made, buffer)
    return buffer.getvalue()


def arrow_file(rows: Sequence[ResultRow]) -> bytes:
    """Return rows as an Arrow IPC file, which `pandas.read_feather` and `polars.read_ipc` open."""
    made = arrow_table(rows)
    import pyarrow

    buffer = io.BytesIO()
    with pyarrow.ipc.new_file(buffer, made.schema) as writer:
        writer.write_table(made)
    return buffer.getvalue()


def measurements(rows: Sequence[ResultRow]) -> list[Any]:
    """Return a `torch.utils.benchmark.Measurement` for each row with a time. Its label is collective, ranks and
    topology, its sub-label the size, its description the algorithm as asked for. Raises SimcollError without torch."""
    try:
        from torch.utils.benchmark import Measurement, TaskSpec
    except ImportError:
        raise SimcollError(NO_TORCH) from None
    measured = []
    for row in rows:
        if row.status == "ok" and row.time_us:
            name = f"{row.collective}, {row.ranks} ranks of {row.topology or '?'}"
            spec = TaskSpec(
                stmt=row.collective,
                setup="",
                label=name,
                sub_label=format_size(row.size_bytes or 0),
                description=str(row.asked or row.algorithm),
            )
            measured.append(Measurement(1, [row.time_us / 1e6], spec))
    return measured


def torch_table(rows: Sequence[ResultRow]) -> str:
    """Return the table that torch.utils.benchmark.Compare prints of rows."""
    measured = measurements(rows)
    from torch.utils.benchmark import Compare

    return str(Compare(measured))
