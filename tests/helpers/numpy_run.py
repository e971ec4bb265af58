"""What a real run computes: a schedule worked on NumPy arrays, and of its last state what the contract promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.schedule import values
from simcoll.schedule.collectives import promised
from simcoll.schedule.schedule import Schedule


def run(
    schedule: Schedule, inputs: Sequence[NDArray[Any]], op: str = "sum", weights: object = None
) -> list[NDArray[Any] | None]:
    """Work a schedule on one 1-D array a rank (all of the same length) and return what each rank ends with; None for a
    rank that is promised nothing."""
    *_, last = values.played(schedule, inputs, op, weights)
    last = values.finished(schedule, last, op)
    slots = [promised(schedule, rank) for rank in range(schedule.n)]
    return [
        np.concatenate([part for slot in wanted if (part := last.held[rank][slot]) is not None]) if wanted else None
        for rank, wanted in enumerate(slots)
    ]
