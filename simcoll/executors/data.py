"""Runs a schedule on data: the proof that it does what its collective promises, and the numbers themselves.

Three readings of the same rules (within a step all reads come before all writes, several writes to one slot apply in
index order):

* `prove`: symbolic. Which ranks' contributions does each slot hold, and does any count twice? Exact.
* `prove(…, how="fingerprint")`: 64-bit random values added modulo 2⁶⁴: a wrong schedule passes with probability 2⁻⁶⁴ a
  slot, for a fraction of the memory.
* `run`: NumPy arrays and a reduction operator: what a real run computes.

In-network agents start with nothing; reducing into nothing stores the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from simcoll.collectives import ALL, NOTHING, collective
from simcoll.errors import ScheduleError
from simcoll.promises import OPERATORS, contracts, cut_slots, scaled
from simcoll.schedule import Schedule

Proof = Literal["full", "fingerprint"]


class _Places:
    """The (participant, slot) pairs a schedule touches, numbered densely: scratch costs only what is used."""

    def __init__(self, schedule: Schedule):
        self.width = schedule.n_slots
        buffer = (np.arange(schedule.n)[:, None] * self.width + np.arange(schedule.n_chunks)).ravel()
        reads, writes = self._keys(schedule.src, schedule.src_slot), self._keys(schedule.dst, schedule.dst_slot)
        self.keys = np.unique(np.concatenate([buffer, reads, writes]))
        self.buffer = np.searchsorted(self.keys, buffer).reshape(schedule.n, schedule.n_chunks)
        self.read = np.searchsorted(self.keys, reads)
        self.write = np.searchsorted(self.keys, writes)

    def _keys(self, participant: NDArray[Any], slot: NDArray[Any]) -> NDArray[np.int64]:
        keys: NDArray[np.int64] = participant.astype(np.int64) * self.width + slot
        return keys

    def __len__(self) -> int:
        return len(self.keys)


def _rounds(write: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Rows of one step in rounds: no round writes a place twice, and index order is kept for each place."""
    unique, counts = np.unique(write, return_counts=True)
    if len(unique) == len(write):
        return [np.arange(len(write))]
    order = np.argsort(write, kind="stable")
    first = np.searchsorted(write[order], write[order])
    turn = np.empty(len(write), np.int64)
    turn[order] = np.arange(len(write)) - first
    return [np.flatnonzero(turn == k) for k in range(int(counts.max()))]


@dataclass
class _Symbols:
    """For each place: which block it holds (NOTHING if undefined) and, as bit sets over ranks, whose contributions it
    has at least once and more than once."""

    block: NDArray[np.int64]
    once: NDArray[np.uint8]
    more: NDArray[np.uint8]

    def take(self, at: NDArray[np.intp]) -> _Symbols:
        return _Symbols(self.block[at], self.once[at], self.more[at])

    def put(self, at: NDArray[np.intp], new: _Symbols, reduce: NDArray[np.bool_]) -> None:
        old = self.take(at)
        adds = reduce & (old.block != NOTHING)
        mixed = adds & (old.block != new.block)
        self.block[at] = np.where(mixed | (new.block == _MIXED), _MIXED, new.block)
        keep = np.where(adds, 255, 0).astype(np.uint8)[:, None]
        self.more[at] = new.more | (old.more & keep) | (old.once & new.once & keep)
        self.once[at] = new.once | (old.once & keep)


_MIXED: Final = -3  # different blocks reduced together: never right


def _group_of(schedule: Schedule) -> NDArray[np.int64]:
    group = np.full(schedule.n, -1, np.int64)
    for number, members in enumerate(schedule.groups):
        group[list(members)] = number
    return group


def check_shape(schedule: Schedule) -> None:
    """Raise ScheduleError if the number of chunks cannot carry the contract."""
    contract = collective(schedule.collective)
    for group in schedule.groups:
        if schedule.n_chunks % contract.blocks(len(group)):
            raise ScheduleError(
                f"{schedule.name}: {schedule.n_chunks} chunks cannot be cut into {contract.blocks(len(group))} blocks; "
                f"{contract.name} of {len(group)} ranks needs a multiple"
            )


def prove(schedule: Schedule, how: Proof = "full") -> None:
    """Check a schedule against its collective's contract.

    Raises ScheduleError naming the step, rank and chunk of the first thing wrong, what was expected and what is there.
    """
    check_shape(schedule)
    if how == "full":
        _prove_symbols(schedule)
    else:
        _prove_fingerprints(schedule)


def _prove_symbols(schedule: Schedule) -> None:
    places, before = _Places(schedule), contracts(schedule, "before")
    width = (schedule.n + 7) // 8
    empty = np.zeros((len(places), width), np.uint8)
    state = _Symbols(np.full(len(places), NOTHING, np.int64), empty, empty.copy())
    rank, slot = np.nonzero(before[..., 0] != NOTHING)
    at, owner = places.buffer[rank, slot], before[rank, slot, 0]
    state.block[at] = before[rank, slot, 1]
    state.once[at, owner // 8] = np.uint8(1) << (owner % 8).astype(np.uint8)
    for rows in schedule.steps():
        read, write, reduce = places.read[rows], places.write[rows], schedule.reduce[rows]
        undefined = np.flatnonzero(state.block[read] == NOTHING)
        if len(undefined):
            bad = schedule.row(rows.start + int(undefined[0]))
            raise ScheduleError(
                f"{schedule.name}: step {bad.step}: rank {bad.src} sends chunk {bad.src_slot} to rank {bad.dst}, "
                "but nothing was ever put there"
            )
        values = state.take(read)
        for part in _rounds(write):
            state.put(write[part], values.take(part), reduce[part])
    _compare_symbols(schedule, places, state)


def _compare_symbols(schedule: Schedule, places: _Places, state: _Symbols) -> None:
    contract, after = collective(schedule.collective), contracts(schedule, "after")
    group_of = _group_of(schedule)
    members = np.zeros((len(schedule.groups) + 1, state.once.shape[1]), np.uint8)
    for number, group in enumerate(schedule.groups):
        for member in group:
            members[number, member // 8] |= 1 << (member % 8)
    rank, slot = np.nonzero(after[..., 0] != NOTHING)
    at, owner = places.buffer[rank, slot], after[rank, slot, 0]
    wanted = members[group_of[rank]]
    single = np.flatnonzero(owner >= 0)
    wanted[single] = 0
    wanted[single, owner[single] // 8] = np.uint8(1) << (owner[single] % 8).astype(np.uint8)
    wrong = (state.once[at] != wanted).any(axis=1)
    if contract.name != "barrier":
        wrong |= state.block[at] != after[rank, slot, 1]
    if not contract.at_least_once:
        wrong |= state.more[at].any(axis=1)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        place = at[first]
        raise ScheduleError(
            _complaint(schedule, int(rank[first]), int(slot[first]))
            + f"expected {_told(after[rank[first], slot[first], 1], wanted[first], None)}, "
            f"found {_told(state.block[place], state.once[place], state.more[place])}"
        )


def _complaint(schedule: Schedule, rank: int, slot: int) -> str:
    into = np.flatnonzero((schedule.dst == rank) & (schedule.dst_slot == slot))
    when = (
        f"after step {schedule.step[into[-1]]}, the last to write there" if len(into) else "nothing is ever sent there"
    )
    return f"{schedule.name}: rank {rank}, chunk {slot} ({when}): "


def _told(block: int, once: NDArray[np.uint8], more: NDArray[np.uint8] | None) -> str:
    """Contents in words: `chunk 2 of ranks 0, 1, 3 (1 twice)`."""
    if block == NOTHING:
        return "nothing"
    if block == _MIXED:
        return "different chunks reduced together"

    def ranks(bits: NDArray[np.uint8]) -> list[int]:
        return np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()

    found, twice = ranks(once), ranks(more) if more is not None else []
    text = f"chunk {block} of rank{'s' if len(found) != 1 else ''} {_listed(found)}"
    return f"{text} ({_listed(twice)} more than once)" if twice else text


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) > 12:
        return f"{', '.join(map(str, ranks[:11]))}, … ({len(ranks)} in all)"
    return ", ".join(map(str, ranks)) or "none"


def _prove_fingerprints(schedule: Schedule) -> None:
    contract = collective(schedule.collective)
    if contract.at_least_once:  # contributions may count twice there, so sums say nothing
        _prove_symbols(schedule)
        return
    places, before, after = _Places(schedule), contracts(schedule, "before"), contracts(schedule, "after")
    draw = np.random.default_rng(0x51CC011).integers(1, 2**63, (schedule.n, schedule.n_chunks), dtype=np.uint64)
    state = np.zeros(len(places), np.uint64)
    rank, slot = np.nonzero(before[..., 0] != NOTHING)
    state[places.buffer[rank, slot]] = draw[before[rank, slot, 0], before[rank, slot, 1]]
    for rows in schedule.steps():
        read, write, reduce = places.read[rows], places.write[rows], schedule.reduce[rows]
        values = state[read]
        for part in _rounds(write):
            at = write[part]
            state[at] = values[part] + np.where(reduce[part], state[at], np.uint64(0))
    group_of = _group_of(schedule)
    sums = np.stack([draw[list(group)].sum(axis=0, dtype=np.uint64) for group in schedule.groups])
    rank, slot = np.nonzero(after[..., 0] != NOTHING)
    owner, block = after[rank, slot, 0], after[rank, slot, 1]
    wanted = np.where(owner == ALL, sums[group_of[rank], block], draw[np.maximum(owner, 0), block])
    wrong = np.flatnonzero(state[places.buffer[rank, slot]] != wanted)
    if len(wrong):
        _prove_symbols(schedule)  # names what is wrong in words
        raise ScheduleError(_complaint(schedule, int(rank[wrong[0]]), int(slot[wrong[0]])) + "wrong contents")


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
    if len(inputs) != schedule.n or len({len(array) for array in inputs}) != 1:
        raise ValueError(f"needs {schedule.n} arrays of one length")
    combine = OPERATORS[op]
    places, before, after = _Places(schedule), contracts(schedule, "before"), contracts(schedule, "after")
    cuts = cut_slots(schedule, len(inputs[0]), weights)
    state: list[NDArray[Any] | None] = [None] * len(places)
    for rank, slot in np.argwhere(before[..., 0] != NOTHING).tolist():
        state[places.buffer[rank, slot]] = inputs[rank][cuts[rank][slot]]
    for rows in schedule.steps():
        values = [state[at] for at in places.read[rows]]
        for at, value, reduce in zip(places.write[rows].tolist(), values, schedule.reduce[rows].tolist(), strict=True):
            if value is None:
                raise ScheduleError(f"{schedule.name}: step {schedule.step[rows.start]} sends what was never written")
            old = state[at]
            state[at] = combine(old, value) if reduce and old is not None else value
    return [_collected(schedule, state, places, after, rank, inputs[rank], op) for rank in range(schedule.n)]


def _collected(
    schedule: Schedule,
    state: Sequence[NDArray[Any] | None],
    places: _Places,
    after: NDArray[np.int64],
    rank: int,
    like: NDArray[Any],
    op: str,
) -> NDArray[Any] | None:
    promised = after[rank, :, 0] != NOTHING
    if not promised.any():
        return None
    parts = [state[places.buffer[rank, slot]] for slot in np.flatnonzero(promised)]
    return scaled(schedule, rank, np.concatenate([part for part in parts if part is not None]), like.dtype, op)
