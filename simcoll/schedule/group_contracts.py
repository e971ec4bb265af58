"""The contract of a schedule's collective, group by group: the slots of each rank, their places and contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from simcoll.schedule.collectives import ALL, NOTHING, collective, cut
from simcoll.schedule.ir import Schedule
from simcoll.schedule.streamed import AnySchedule

OPERATORS: Final[dict[str, np.ufunc]] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "avg": np.add,  # and one final scaling
}
BITWISE: Final = ("band", "bor", "bxor")  # for integers only


def contracts(
    schedule: AnySchedule, which: Literal["before", "after"], slots: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """The contract of every group over all ranks, ranks named globally: (n, slots, 2); `slots`: default all."""
    contract = collective(schedule.collective)
    table = np.full((schedule.n, schedule.n_chunks if slots is None else len(slots), 2), NOTHING, np.int64)
    for group in schedule.groups:
        members = np.asarray(group)
        held = contract.before if which == "before" else contract.after
        local = contract.table(held, len(group), schedule.n_chunks, schedule.root, slots)
        named = local[..., 0] >= 0
        local[..., 0] = np.where(named, members[np.where(named, local[..., 0], 0)], local[..., 0])
        table[members] = local
    return table


def cut_slots(schedule: Schedule, elements: int, weights: object = None) -> dict[int, list[slice]]:
    """For every rank of a group the range of each slot in its buffer of `elements`, whether it holds the slot or not.

    Raises ValueError when the weights do not fit.
    """
    contract = collective(schedule.collective)
    cuts: dict[int, list[slice]] = {}
    for group in schedule.groups:
        n = len(group)
        rows = cut(elements, n, schedule.n_chunks, 1, weights, contract.blocks(n))
        for member, row in zip(group, np.broadcast_to(rows, (n, schedule.n_chunks)), strict=True):
            ends = np.cumsum(row).tolist()
            cuts[member] = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return cuts


def promised(schedule: Schedule, rank: int) -> list[int]:
    """The slots about which the contract promises a rank something."""
    return np.flatnonzero(contracts(schedule, "after")[rank, :, 0] != NOTHING).tolist()


def expected(
    schedule: Schedule, rank: int, buffer_of: Callable[[int], NDArray[Any]], op: str, weights: object = None
) -> NDArray[Any]:
    """The contents that the promised slots of a rank must have, end to end.

    `buffer_of(r)` is the whole buffer of rank r before the collective.

    Depends on the contract alone, not on the schedule. One buffer at a time is in memory.
    """
    slots = promised(schedule, rank)
    after, cuts = contracts(schedule, "after")[rank], cut_slots(schedule, len(buffer_of(rank)), weights)
    parts: dict[int, NDArray[Any]] = {}
    owners = {int(owner) for owner in after[slots, 0]}
    if ALL in owners:
        members = next(group for group in schedule.groups if rank in group)
        whole = buffer_of(members[0])
        for member in members[1:]:
            whole = OPERATORS[op](whole, buffer_of(member))
        parts |= {slot: whole[cuts[rank][after[slot, 1]]] for slot in slots if after[slot, 0] == ALL}
    for owner in sorted(owners - {ALL}):
        owned = buffer_of(owner)
        parts |= {slot: owned[cuts[owner][after[slot, 1]]] for slot in slots if after[slot, 0] == owner}
    if not slots:
        return buffer_of(rank)[:0]
    values = np.concatenate([parts[slot] for slot in slots])
    return scaled(schedule, rank, values, values.dtype, op)


def scaled(schedule: Schedule, rank: int, values: NDArray[Any], dtype: np.dtype[Any], op: str) -> NDArray[Any]:
    """With `avg` a sum divided by the number of ranks that made it, integers rounded down; other values as they are."""
    if op != "avg" or not collective(schedule.collective).reduces:
        return values
    members = next(len(group) for group in schedule.groups if rank in group)
    return (values / members).astype(dtype) if dtype.kind == "f" else values // members
