"""Runs a schedule on NumPy arrays with a reduction operator: what a real run computes.

Within a step all reads come before all writes, and several writes to one slot apply in index order. In-network agents
start with nothing; reducing into nothing stores the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.errors import ScheduleError
from simcoll.schedule.collectives import NOTHING, OPERATORS, contracts, cut_slots, scaled
from simcoll.schedule.proof import Places, check_shape
from simcoll.schedule.schedule import Schedule


def run(
    schedule: Schedule, inputs: Sequence[NDArray[Any]], op: str = "sum", weights: object = None
) -> list[NDArray[Any] | None]:
    """Execute a schedule on one 1-D array a rank (all of the same length) and return what each rank ends with.

    The arrays are the collective's whole buffers as `size` counts them: for all_gather, rank r's own block must stand
    at its place. A slot about which the contract promises nothing ends as zeros; a rank that is promised nothing
    gets None. Raises ValueError for an unknown operator or arrays that do not fit.
    """
    if op not in OPERATORS:
        raise ValueError(f"{op!r} is no operator; choose from: {', '.join(OPERATORS)}")
    check_shape(schedule)
    schedule = schedule.by_slot()
    if len(inputs) != schedule.n or len({len(array) for array in inputs}) != 1:
        raise ValueError(f"needs {schedule.n} arrays of one length")
    combine = OPERATORS[op]
    places, before, after = Places(schedule, None), contracts(schedule, "before"), contracts(schedule, "after")
    cuts = cut_slots(schedule, len(inputs[0]), weights)
    state: list[NDArray[Any] | None] = [None] * len(places)
    held = np.nonzero(before[..., 0] != NOTHING)
    for rank, slot, at in zip(*(column.tolist() for column in (*held, places.of(*held))), strict=True):
        state[at] = inputs[rank][cuts[rank][slot]]
    for rows, step in zip(schedule.steps(), schedule.parts(), strict=True):
        values = [state[at] for at in places.of(step.src, step.src_slot)]
        into = places.of(step.dst, step.dst_slot).tolist()
        for at, value, reduce in zip(into, values, step.reduce.tolist(), strict=True):
            if value is None:
                raise ScheduleError(f"{schedule.name}: step {schedule.step[rows.start]} sends what was never written")
            old = state[at]
            state[at] = combine(old, value) if reduce and old is not None else value
    return [_collected(schedule, state, places, after, rank, inputs[rank], op) for rank in range(schedule.n)]


def _collected(
    schedule: Schedule,
    state: Sequence[NDArray[Any] | None],
    places: Places,
    after: NDArray[np.int64],
    rank: int,
    like: NDArray[Any],
    op: str,
) -> NDArray[Any] | None:
    promised = after[rank, :, 0] != NOTHING
    if not promised.any():
        return None
    slots = np.flatnonzero(promised)
    parts = [state[at] for at in places.of(np.full(len(slots), rank), slots)]
    return scaled(schedule, rank, np.concatenate([part for part in parts if part is not None]), like.dtype, op)
