"""Predicted times as measurements of torch.utils.benchmark, to be compared and printed as measured ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simcoll.errors import SimcollError
from simcoll.units import format_size

MISSING = 'measurements of torch.utils.benchmark need torch: pip install "simcoll[validate]"'


def measurements(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """A `torch.utils.benchmark.Measurement` for each row that has a time: label the collective, its ranks and topology,
    sub-label the size, description the algorithm. Raises SimcollError without torch."""
    try:
        from torch.utils.benchmark import Measurement, TaskSpec
    except ImportError:
        raise SimcollError(MISSING) from None
    found = []
    for row in rows:
        if row.get("status", "ok") == "ok" and row.get("time_us"):
            name = f"{row['collective']}, {row['ranks']} ranks of {row.get('topology') or '?'}"
            spec = TaskSpec(
                stmt=str(row["collective"]),
                setup="",
                label=name,
                sub_label=format_size(int(row["size_bytes"])),
                description=str(row.get("algorithm")),
            )
            found.append(Measurement(1, [row["time_us"] / 1e6], spec))
    return found


def compared(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table that torch.utils.benchmark.Compare prints of them."""
    found = measurements(rows)
    from torch.utils.benchmark import Compare

    return str(Compare(found))
