"""Predicted times as measurements of torch.utils.benchmark, to be compared and printed as measured ones are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcoll.errors import SimcollError
from simcoll.prediction.result_rows import ResultRow
from simcoll.units import format_size

MISSING = 'measurements of torch.utils.benchmark need torch: pip install "simcoll[validate]"'


def measurements(rows: Sequence[ResultRow]) -> list[Any]:
    """A `torch.utils.benchmark.Measurement` for each row that has a time: label the collective, its ranks and topology,
    sub-label the size, description the algorithm as it was asked for. Raises SimcollError without torch."""
    try:
        from torch.utils.benchmark import Measurement, TaskSpec
    except ImportError:
        raise SimcollError(MISSING) from None
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


def compared(rows: Sequence[ResultRow]) -> str:
    """The table that torch.utils.benchmark.Compare prints of them."""
    measured = measurements(rows)
    from torch.utils.benchmark import Compare

    return str(Compare(measured))
