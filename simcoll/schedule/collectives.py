"""The contract of each collective: which data each rank holds before, and which result it must hold after.

A *value* is named by the rank whose data it is and the block of that rank's buffer. `before` says which value each
slot of each rank holds. `after` says which value a slot must hold: that of one rank, or the reduction over all ranks.

Sizes are counted as nccl-tests counts them: `size` is the largest buffer a rank holds, so for all_gather,
reduce_scatter, gather and scatter it is ranks × the per-rank part, for all_to_all the whole send buffer of a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.config.numpy_helpers import Numbers
from simcoll.errors import did_you_mean
from simcoll.schedule.schedule import AnySchedule, Schedule, split

NOTHING: Final = -1  # before: the slot is undefined; after: it may hold anything
ALL: Final = -2  # after: the reduction over all ranks

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
EXCHANGES: Final = ("all_to_all", "moe_dispatch", "moe_combine")  # everyone has a block for everyone
ALSO: Final = {"prod": "product"}  # other spellings of operators
BITWISE: Final = ("band", "bor", "bxor")  # for integers only

Held = Callable[[Numbers, Numbers, int, int, int], tuple[ArrayLike, ArrayLike]]
"""From ranks, slots, n, n_chunks and root to the rank whose value each holds (NOTHING, ALL), and that value's block."""


@dataclass(frozen=True)
class Collective:
    """A collective and its contract.

    `before` and `after` give the contents of each rank and slot (arrays that broadcast); see `table`. `blocks(n)` is
    the number of blocks of a buffer; a schedule's number of chunks is a multiple of it. `busbw(n)` is nccl-tests'
    factor from algbw to busbw. `turns` says which permutations keep the contract: if `ranks`, any permutation of ranks
    and any of chunks; if `blocks`, any permutation of ranks together with their blocks; if empty, perhaps none.
    """

    name: str
    summary: str
    before: Held
    after: Held
    blocks: Callable[[int], int]
    busbw: Callable[[int], Fraction]
    rooted: bool = False
    reduces: bool = False
    at_least_once: bool = False  # a contribution may count several times (barrier)
    turns: Literal["ranks", "blocks", ""] = ""

    def table(self, held: Held, n: int, n_chunks: int, root: int = 0, slots: Numbers | None = None) -> Numbers:
        """Return what each rank holds in some slots (default: all) according to `held`, which is `before` or `after`.
        int64 (n, slots, 2): the rank whose value a slot holds (or NOTHING, ALL), and the block of that value."""
        chosen = np.arange(n_chunks) if slots is None else slots
        values = np.empty((n, len(chosen), 2), np.int64)
        values[..., 0], values[..., 1] = held(np.arange(n)[:, None], chosen[None, :], n, n_chunks, root)
        return values

    def sizes(
        self, nbytes: int, n: int, n_chunks: int, root: int = 0, itemsize: int = 1, weights: object = None
    ) -> NDArray[np.int64]:
        """Return the bytes of each slot of each rank before the first step, (n, n_chunks); 0 for undefined slots.
        `weights` are per block (gather_v, scatter_v, …), or for all_to_all a row per sending rank. Raises ValueError if
        the weights have the wrong shape."""
        held = self.table(self.before, n, n_chunks, root)
        nothing, block = held[..., 0] == NOTHING, held[..., 1]
        cuts = cut(nbytes, n, n_chunks, itemsize, weights, self.blocks(n))
        if len(cuts) == 1 and (cuts == cuts[0, 0]).all():
            return np.where(nothing, 0, cuts[0, 0])
        of_block = cuts[0][block] if len(cuts) == 1 else np.take_along_axis(cuts, block, axis=1)
        return np.where(nothing, 0, of_block)


def cut(nbytes: int, n: int, n_chunks: int, itemsize: int, weights: object, blocks: int) -> NDArray[np.int64]:
    """Return the bytes of a buffer's chunks, (chunks,); if weights differ by rank, a row for each rank, (n, chunks). A
    buffer is first cut into the contract's blocks (one a rank, for most), and each block into equal chunks."""
    each = n_chunks // blocks
    if weights is None and blocks == 1:
        return split(nbytes, each, itemsize)[None, :]
    if weights is None:
        outer = split(nbytes, blocks, itemsize)[None, :]
    else:
        table = np.asarray(weights)
        rows = table if table.ndim == 2 else table[None, :]
        if table.ndim == 2 and len(rows) != n:
            raise ValueError(f"weights must have {n} rows, one a rank, not {len(rows)}")
        outer = np.stack([split(nbytes, blocks, itemsize, row) for row in rows])
    if each == 1:
        return outer
    return np.stack([np.concatenate([split(int(b), each, itemsize) for b in row]) for row in outer])


def weights_of(weights: object, group: Sequence[int], n: int) -> object:
    """Return the weights of a group of the `n` ranks of a schedule: its rows, if there is a row for each of them."""
    if weights is None or len(group) == n or np.ndim(weights) < 2 or len(np.asarray(weights)) != n:  # type: ignore[arg-type]
        return weights
    return np.asarray(weights)[list(group)]


def _held(whose: Literal["own", "root", "all", "block"], where: Literal["", "root", "next", "block"] = "") -> Held:
    """Return a function that says which values ranks hold in their slots, for `Collective.before` or `after`. `whose`:
    a rank's own value, the root's, the reduction of all, or in each block the value of the block's rank. `where`:
    everywhere, only at the root, at the rank behind the root, or in each rank's own block."""

    def held(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
        block = slot // max(1, k // n)
        values: dict[str, ArrayLike] = {"own": rank, "root": root, "all": ALL, "block": block}
        if not where:
            return values[whose], slot
        there = block == rank if where == "block" else rank == (root if where == "root" else (root + 1) % n)
        return np.where(there, values[whose], NOTHING), slot

    return held


def _transposed(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    """Return the contents after an all-to-all: block s of rank r is what was block r of rank s."""
    each = max(1, k // n)
    return slot // each, rank * each + slot % each


def _one(n: int) -> int:
    return 1


def _per_rank(n: int) -> int:
    return n


def _plain(n: int) -> Fraction:
    return Fraction(1)


def _but_one(n: int) -> Fraction:
    return Fraction(n - 1, n)


_CONTRACTS: Final = (
    Collective("all_reduce", "everyone gets the reduction of all buffers",
               _held("own"), _held("all"), _one, lambda n: Fraction(2 * (n - 1), n), reduces=True, turns="ranks"),
    Collective("reduce", "the root gets the reduction of all buffers",
               _held("own"), _held("all", "root"), _one, _plain, rooted=True, reduces=True),
    Collective("broadcast", "everyone gets the root's buffer",
               _held("own", "root"), _held("root"), _one, _plain, rooted=True),
    Collective("all_gather", "everyone gets the block of every rank",
               _held("own", "block"), _held("block"), _per_rank, _but_one, turns="blocks"),
    Collective("reduce_scatter", "rank r gets block r of the reduction",
               _held("own"), _held("all", "block"), _per_rank, _but_one, reduces=True, turns="blocks"),
    Collective("gather", "the root gets the block of every rank",
               _held("own", "block"), _held("block", "root"), _per_rank, _but_one, rooted=True),
    Collective("scatter", "rank r gets block r of the root's buffer",
               _held("own", "root"), _held("root", "block"), _per_rank, _but_one, rooted=True),
    Collective("all_to_all", "rank r's block s goes to rank s, as its block r",
               _held("own"), _transposed, _per_rank, _but_one, turns="blocks"),
    Collective("barrier", "nobody leaves before everyone has come",
               _held("own"), _held("all"), _one, lambda n: Fraction(0), reduces=True, at_least_once=True),
    Collective("moe_dispatch", "each token goes to the ranks of its experts",
               _held("own"), _transposed, _per_rank, _but_one, turns="blocks"),
    Collective("moe_combine", "the experts' results go back to the ranks of their tokens",
               _held("own"), _transposed, _per_rank, _but_one, turns="blocks"),
    Collective("send_recv", "the next rank gets the root's buffer",
               _held("own"), _held("root", "next"), _one, _plain, rooted=True),
)  # fmt: skip

COLLECTIVES: Final[dict[str, Collective]] = {c.name: c for c in _CONTRACTS}


def collective(name: str) -> Collective:
    """Return the contract called `name`; raises ValueError with the nearest name."""
    if name not in COLLECTIVES:
        raise ValueError(f"{name!r} is no collective; {did_you_mean(name, COLLECTIVES)}")
    return COLLECTIVES[name]


# --- the contract of a schedule, group by group ---


def contracts(
    schedule: AnySchedule, which: Literal["before", "after"], slots: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the table of contents (`Collective.table`) of all groups together, with ranks numbered over all groups:
    (n, slots, 2). Default of `slots`: all."""
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
    """Return for every rank of a group the range of elements of each slot in its buffer of `elements`, also of
    undefined slots. Raises ValueError if the weights have the wrong shape."""
    contract = collective(schedule.collective)
    cuts: dict[int, list[slice]] = {}
    for group in schedule.groups:
        n = len(group)
        own = weights_of(weights, group, schedule.n)
        rows = cut(elements, n, schedule.n_chunks, 1, own, contract.blocks(n))
        for member, row in zip(group, np.broadcast_to(rows, (n, schedule.n_chunks)), strict=True):
            ends = np.cumsum(row).tolist()
            cuts[member] = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return cuts


def promised(schedule: Schedule, rank: int) -> list[int]:
    """Return the slots of a rank that must hold a part of the collective's result at the end."""
    return np.flatnonzero(contracts(schedule, "after")[rank, :, 0] != NOTHING).tolist()


def expected(
    schedule: Schedule, rank: int, buffer_of: Callable[[int], NDArray[Any]], op: str, weights: object = None
) -> NDArray[Any]:
    """Return the elements that a rank's result slots (`promised`) must hold, concatenated. `buffer_of(r)` is the whole
    buffer of rank r before the collective. The result depends on the contract alone, not on the schedule. One buffer at
    a time is in memory."""
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
    """Return sums divided by the group's number of ranks if `op` is `avg` (integers rounded down), else unchanged."""
    if op != "avg" or not collective(schedule.collective).reduces:
        return values
    members = next(len(group) for group in schedule.groups if rank in group)
    return (values / members).astype(dtype) if dtype.kind == "f" else values // members
