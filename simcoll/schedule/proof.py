"""Prove that a schedule produces its collective's result. There are two methods:

* `full`: symbolic and exact. It tracks whose contributions each slot holds, and whether any counts twice.
* `fingerprint`: 64-bit random values added modulo 2⁶⁴. A wrong schedule passes with probability 2⁻⁶⁴ a slot, for a
  fraction of the memory. Where nothing is reduced it is exact, too, and `full` uses it: a bijection draws the values,
  so that no two blocks of ranks have the same value, and none has 0.

A schedule whose messages move long runs of slots is proved run by run, and then always in full. If chunks never mix,
some are proved at a time, which bounds memory. If a verified rotation of ranks (a symmetry of the schedule) maps chunks
onto each other, one of them is proved for all. In-network agents start empty. Reducing into an empty slot stores the
value.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from simcoll.config.numpy_helpers import Numbers, all_differ, turns_of
from simcoll.errors import ScheduleError
from simcoll.schedule.collectives import ALL, NOTHING, collective, contracts
from simcoll.schedule.intervals import Intervals, spans
from simcoll.schedule.schedule import AnySchedule, StreamedSchedule
from simcoll.schedule.steps import Repeat, Step, join

Proof = Literal["full", "fingerprint"]
FULL_PROOF: Final = 1024  # most ranks of a schedule that is proved in full, unless a user says otherwise
MOST_BYTES: Final = 1 << 26  # of the state of the chunks that are proved at a time
LONG: Final = 4  # slots of a row, on average, from which on a schedule is proved run by run


def level_for(ranks: int) -> Proof:
    """Return the level at which a schedule of so many ranks is proved, unless a user says otherwise."""
    return "full" if ranks <= FULL_PROOF else "fingerprint"


def prove(source: AnySchedule, reading: Proof = "full") -> None:
    """Check a schedule, or a stream of steps, against its collective's contract.

    Raises ScheduleError with the step, rank and chunk of the first mistake, the expected content and the content found.

    >>> from simcoll import build
    >>> prove(build("all_reduce", "ring", 4))
    """
    check_shape(source)
    if _holds_by_runs(source):
        return
    twice = collective(source.collective).at_least_once  # if contributions may count twice, sums prove nothing
    full = twice or (reading == "full" and any(part.first.reduce.any() for part in source.parts()))
    check = _check_symbols if full else _check_fingerprints
    for chosen in _portions(source, (source.n // 4 + 9) if full else 16):
        check(source, chosen)


# --- the steps of a proof ---


class Places:
    """Numbers for (participant, slot) pairs, called places: for all slots, or only for the `chosen` chunks."""

    def __init__(self, source: AnySchedule, chosen: Numbers | None):
        slots = np.arange(source.n_slots) if chosen is None else chosen
        self._column = np.full(source.n_slots, -1, np.int64)
        self._column[slots] = np.arange(len(slots))
        self._columns, self._count = len(slots), source.participants * len(slots)

    def __len__(self) -> int:
        return self._count

    def of(self, participant: NDArray[Any], slot: NDArray[Any]) -> Numbers:
        """Return the number of each (participant, slot) pair."""
        numbers: Numbers = participant.astype(np.int64) * self._columns + self._column[slot]
        return numbers


def check_shape(source: AnySchedule) -> None:
    """Raise ScheduleError if the number of chunks is no multiple of the contract's number of blocks."""
    contract = collective(source.collective)
    for size in {len(group) for group in source.groups}:
        if source.n_chunks % contract.blocks(size):
            raise ScheduleError(
                f"{source.name}: {source.n_chunks} chunks cannot be cut into {contract.blocks(size)} blocks; "
                f"{contract.name} of {size} ranks needs a multiple of this number"
            )


NumberedStep = tuple[int, Step, Numbers, Numbers]  # step number, rows, the places that rows read, the places they write


def _portions(source: AnySchedule, nbytes: int) -> Iterator[Numbers | None]:
    """Yield sets of chunks to prove together so that memory stays within MOST_BYTES; None means all chunks at once.
    Each place (participant and slot) takes `nbytes`."""
    if not _keeps_chunks(source):
        yield None
        return
    chunks = np.arange(source.n_chunks)
    turn = source.rotation if isinstance(source, StreamedSchedule) else None
    if turn and turn.holds(source.parts(), collective(source.collective).turns, source.n, source.n_chunks):
        chunks = turn.representatives(source.n_chunks)
    yield from np.array_split(chunks, -(-len(chunks) * nbytes * source.participants // MOST_BYTES))


def _keeps_chunks(source: AnySchedule) -> bool:
    """Return whether every transfer writes the slot number that it reads, so that no chunk affects another."""
    if source.n_slots > source.n_chunks or source.participants > source.n:
        return False
    return all(np.array_equal(part.first.src_slot, part.first.dst_slot) for part in source.parts())


def _rows(source: AnySchedule, chosen: Numbers | None) -> Iterator[tuple[Numbers, Step]]:
    """Yield the transfers (rows) that carry the `chosen` chunks, some steps at a time, with each row's step number."""
    number = 0
    wanted = np.zeros(source.n_slots, np.bool_)
    wanted[slice(None) if chosen is None else chosen] = True
    sums = np.append(0, np.cumsum(wanted))
    for part in source.parts():
        if isinstance(part, Repeat):
            when, rows = part.carrying(wanted)
        else:
            rows = part.taken(sums[part.src_slot + part.count] > sums[part.src_slot]).by_slot()
            rows = rows.taken(wanted[rows.src_slot])
            when = np.zeros(len(rows.src), np.int64)
        yield number + when, rows
        number += part.steps


def moves(source: AnySchedule, chosen: Numbers | None, places: Places) -> Iterator[NumberedStep]:
    """Yield each step by itself, with its number, its rows, and the places that the rows read and write."""
    for numbers, rows in _rows(source, chosen):
        yield from _by_step(numbers, rows, *_ends(rows, places))


def _by_step(numbers: Numbers, rows: Step, read: Numbers, write: Numbers) -> Iterator[NumberedStep]:
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for a, b in itertools.pairwise(edges if len(numbers) else [0]):
        yield int(numbers[a]), Step._make(column[a:b] for column in rows), read[a:b], write[a:b]


def _ends(rows: Step, places: Places) -> tuple[Numbers, Numbers]:
    """Return the places (numbers of participant and slot) that rows read, and the places that they write."""
    return places.of(rows.src, rows.src_slot), places.of(rows.dst, rows.dst_slot)


def _rounds(write: NDArray[np.intp]) -> Sequence[NDArray[np.intp] | slice]:
    """Split the rows of one step into rounds, each of which writes every place at most once. Writes of one place keep
    their order."""
    if len(write) == 1 or all_differ(write):
        return [slice(None)]
    turn = turns_of(write)
    return [np.flatnonzero(turn == k) for k in range(int(turn.max()) + 1)]


# --- symbols ---


@dataclass
class _Symbols:
    """Contents of each place: the block it holds (NOTHING if undefined), and two bit sets over ranks. `once`: ranks
    whose contribution it holds at least once; `more`: ranks whose contribution it holds more than once."""

    block: NDArray[np.int64]
    once: NDArray[np.uint64]
    more: NDArray[np.uint64]

    def take(self, at: NDArray[np.intp] | slice) -> _Symbols:
        return _Symbols(self.block[at], self.once[at], self.more[at])

    def put(self, at: NDArray[np.intp], new: _Symbols, reduce: NDArray[np.bool_]) -> None:
        block = self.block[at]
        adds = reduce & (block != NOTHING)
        self.block[at] = np.where(adds & (block != new.block), _MIXED, new.block)
        if adds.any():
            keep = np.where(adds, ~np.uint64(0), np.uint64(0))[:, None]
            once = self.once[at] & keep
            self.more[at] = new.more | self.more[at] & keep | once & new.once
            self.once[at] = new.once | once
        else:
            self.more[at], self.once[at] = new.more, new.once


_MIXED: Final = -3  # different blocks reduced together: never right


def _group_of(schedule: AnySchedule) -> NDArray[np.int64]:
    group = np.full(schedule.n, -1, np.int64)
    for number, members in enumerate(schedule.groups):
        group[list(members)] = number
    return group


def _check_symbols(source: AnySchedule, chosen: Numbers | None) -> None:
    places, before = Places(source, chosen), contracts(source, "before", chosen)
    empty = np.zeros((len(places), -(-source.n // 64)), np.uint64)
    state = _Symbols(np.full(len(places), NOTHING, np.int64), empty, empty.copy())
    rank, slot = np.nonzero(before[..., 0] != NOTHING)
    at, owner = places.of(rank, _slots(chosen, slot)), before[rank, slot, 0]
    state.block[at] = before[rank, slot, 1]
    state.once[at, owner // 64] = _bit(owner)
    for number, step, read, write in moves(source, chosen, places):
        undefined = np.flatnonzero(state.block[read] == NOTHING)
        if len(undefined):
            raise never_put(source, number, step, int(undefined[0]))
        values = state.take(read)
        for part in _rounds(write):
            state.put(write[part], values.take(part), step.reduce[part])
    _compare_symbols(source, chosen, places, state)


def never_put(source: AnySchedule, number: int, step: Step, row: int) -> ScheduleError:
    """Return the error for a row of a step that sends what was never put there."""
    src, slot, dst = (int(column[row]) for column in step[:3])
    where = f"{source.name}: step {number}: rank {src} sends chunk {slot} to rank {dst}"
    return ScheduleError(f"{where}, but nothing was ever put there")


def _slots(chosen: Numbers | None, column: NDArray[Any]) -> NDArray[Any]:
    return column if chosen is None else chosen[column]


def _compare_symbols(source: AnySchedule, chosen: Numbers | None, places: Places, state: _Symbols) -> None:
    contract, after = collective(source.collective), contracts(source, "after", chosen)
    rank, slot = np.nonzero(after[..., 0] != NOTHING)
    at, owner = places.of(rank, _slots(chosen, slot)), after[rank, slot, 0]
    wanted = _wanted(source, rank, owner)
    wrong = (state.once[at] != wanted).any(axis=1)
    if contract.name != "barrier":
        wrong |= state.block[at] != after[rank, slot, 1]
    if not contract.at_least_once:
        wrong |= state.more[at].any(axis=1)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        place = at[first]
        raise ScheduleError(
            _complaint(source, int(rank[first]), int(_slots(chosen, slot)[first]))
            + f"expected {_described(after[rank[first], slot[first], 1], wanted[first], None)}, "
            f"found {_described(state.block[place], state.once[place], state.more[place])}"
        )


def _wanted(source: AnySchedule, rank: Numbers, owner: Numbers) -> NDArray[np.uint64]:
    """Return bit sets of the ranks whose contributions slots of each `rank` must hold: of the `owner`, or, if it is
    ALL, of the rank's whole group."""
    member = np.zeros((len(source.groups) + 1, 64 * -(-source.n // 64)), np.bool_)
    for number, group in enumerate(source.groups):
        member[number, list(group)] = True
    wanted: NDArray[np.uint64] = np.packbits(member, axis=1, bitorder="little").view(np.uint64)[_group_of(source)[rank]]
    single = np.flatnonzero(owner >= 0)
    wanted[single] = 0
    wanted[single, owner[single] // 64] = _bit(owner[single])
    return wanted


def _bit(rank: Numbers) -> NDArray[np.uint64]:
    """Return for each rank the word of a bit set that holds its bit."""
    return np.uint64(1) << (rank % 64).astype(np.uint64)


def _complaint(source: AnySchedule, rank: int, slot: int) -> str:
    wanted = np.asarray([slot]) if _keeps_chunks(source) else None
    last = -1
    for numbers, rows in _rows(source, wanted):
        into = np.flatnonzero((rows.dst == rank) & (rows.dst_slot == slot))
        last = int(numbers[into[-1]]) if len(into) else last
    when = f"after step {last}, the last to write there" if last >= 0 else "nothing is ever sent there"
    return f"{source.name}: rank {rank}, chunk {slot} ({when}): "


def _described(block: int, once: NDArray[np.uint64], more: NDArray[np.uint64] | None) -> str:
    """Return the contents of a slot in words, e.g. `chunk 2 of ranks 0, 1, 3 (1 twice)`."""
    if block == NOTHING:
        return "nothing"
    if block == _MIXED:
        return "different chunks reduced together"

    def ranks(bits: NDArray[np.uint64]) -> list[int]:
        return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()

    contributors, twice = ranks(once), ranks(more) if more is not None else []
    text = f"chunk {block} of rank{'s' if len(contributors) != 1 else ''} {_listed(contributors)}"
    return f"{text} ({_listed(twice)} more than once)" if twice else text


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) > 12:
        return f"{', '.join(map(str, ranks[:11]))}, … ({len(ranks)} in all)"
    return ", ".join(map(str, ranks)) or "none"


# --- runs ---


def _holds_by_runs(source: AnySchedule) -> bool:
    """Return whether a schedule of long runs, which reduces, keeps its contract. False also if slots must be looked at
    one by one: all slots of an interval should hold the contributions of equal ranks, to blocks that are neighbours,
    too. Then the first slot's contents stand for all."""
    steps = [part for part in source.parts() if isinstance(part, Step)]
    if len(steps) < sum(1 for _ in source.parts()) or not any(step.reduce.any() for step in steps):
        return False
    rows, moved = sum(step.rows for step in steps), sum(int(step.count.sum()) for step in steps)
    if moved < LONG * rows or collective(source.collective).at_least_once:
        return False
    before, after = _runs_of_contract(source, "before"), _runs_of_contract(source, "after")
    intervals = Intervals(join(*steps), source.n_slots, [before[0], after[0]])
    begin, words = intervals.begin, -(-source.n // 64)
    if 4 * words * len(begin) > MOST_BYTES:
        return False
    owner, block = _at_places(before, begin)
    state = _Symbols(block, np.zeros((len(begin), words), np.uint64), np.zeros((len(begin), words), np.uint64))
    held = np.flatnonzero(owner != NOTHING)
    state.once[held, owner[held] // 64] = _bit(owner[held])
    written, end = intervals.of(intervals.written), 0
    for step in steps:
        begun, end = end, end + step.rows
        row = np.repeat(np.arange(begun, end), written.counts[begun:end])
        write = written.taken(np.arange(begun, end)).members
        read = intervals.read[row] + begin[write] - intervals.written[row]  # the place that each interval gets first
        near = np.searchsorted(begin, read, side="right") - 1
        values = state.take(near)
        if (values.block < 0).any():
            return False
        values.block += read - begin[near]
        further = spans(near + 1, np.searchsorted(begin, read + begin[write + 1] - begin[write]))
        same, of = state.take(further.members), np.repeat(np.arange(len(row)), further.counts)
        first = values.take(of)
        first.block += begin[further.members] - read[of]
        if not all(map(np.array_equal, vars(same).values(), vars(first).values())):
            return False
        for part in _rounds(write):
            state.put(write[part], values.take(part), step.reduce[row[part] - begun])
    owner, block = _at_places(after, begin)
    there = np.flatnonzero(owner != NOTHING)
    wanted = _wanted(source, begin[there] // intervals.width, owner[there])
    found = state.take(there)
    return np.array_equal(found.block, block[there]) and np.array_equal(found.once, wanted) and not found.more.any()


Runs = tuple[Numbers, Numbers, Numbers]


def _runs_of_contract(source: AnySchedule, which: Literal["before", "after"]) -> Runs:
    """Return the runs of neighbouring blocks of one owner in the contents that a contract demands: the place (see
    `Intervals`) of the first slot of each, its owner and its block; in order. NOTHING is an owner, too."""
    width, ranks = source.n_slots + 1, np.arange(source.n)
    beyond = np.full(source.n, NOTHING)
    found = [(ranks * width + source.n_chunks, beyond, beyond)]
    for chosen in np.array_split(np.arange(source.n_chunks), -(-source.n * source.n_chunks * 64 // MOST_BYTES)):
        table = contracts(source, which, chosen)
        table[..., 1] -= chosen
        begins = np.ones(table.shape[:2], np.bool_)
        begins[:, 1:] = (table[:, 1:] != table[:, :-1]).any(axis=2)
        rank, at = np.nonzero(begins)
        owner, apart = table[rank, at].T
        found.append((rank * width + chosen[at], owner, np.where(owner == NOTHING, NOTHING, apart + chosen[at])))
    runs = np.concatenate(found, axis=1)
    runs = runs[:, np.argsort(runs[0])]
    apart = np.where(runs[1] == NOTHING, 0, runs[2] - runs[0])  # runs go on in the next portion
    kept = np.flatnonzero(np.diff(runs[1], prepend=ALL - 1) | np.diff(apart, prepend=0))
    place, owner, block = runs[:, kept]
    return place, owner, block


def _at_places(runs: Runs, places: Numbers) -> tuple[Numbers, Numbers]:
    """Return the owners and blocks of the slots at some places, by the runs of a contract."""
    first, owner, block = runs
    at = np.searchsorted(first, places, side="right") - 1
    return owner[at], np.where(owner[at] == NOTHING, NOTHING, block[at] + places - first[at])


# --- fingerprints ---


def _check_fingerprints(source: AnySchedule, chosen: Numbers | None) -> None:
    places = Places(source, chosen)
    before, after = contracts(source, "before", chosen), contracts(source, "after", chosen)
    draw = functools.partial(_draw, source.n_chunks)
    state = np.zeros(len(places), np.uint64)
    rank, slot = np.nonzero(before[..., 0] != NOTHING)
    state[places.of(rank, _slots(chosen, slot))] = draw(before[rank, slot, 0], before[rank, slot, 1])
    for numbers, rows in _rows(source, chosen):
        if not _played(state, numbers, rows, *_ends(rows, places)):
            _check_symbols(source, chosen)  # raises an error that names the row
    rank, slot = np.nonzero(after[..., 0] != NOTHING)
    owner, block = after[rank, slot, 0], after[rank, slot, 1]
    wanted = draw(np.maximum(owner, 0), block)
    whole = owner == ALL
    wanted[whole] = _sums(source, draw, chosen)[_group_of(source)[rank[whole]], slot[whole]]
    if (state[places.of(rank, _slots(chosen, slot))] != wanted).any():
        _check_symbols(source, chosen)  # refuses the schedule in words: equal symbols have equal numbers


def _played(state: NDArray[np.uint64], numbers: Numbers, rows: Step, read: Numbers, write: Numbers) -> bool:
    """Apply some steps to the contents `state`. Return False if a row reads an empty place."""
    if (np.diff(numbers) > 0).all():  # one row a step, as of a chunk on a ring: plain numbers take a tenth of the time
        held = state.data
        for source, place, adds in zip(read.tolist(), write.tolist(), rows.reduce.tolist(), strict=True):
            if not (value := held[source]):
                return False
            held[place] = (value + held[place]) % 2**64 if adds else value
        return True
    for _, step, source, place in _by_step(numbers, rows, read, write):
        values = state[source]
        if not values.all():
            return False
        for part in _rounds(place):
            at = place[part]
            state[at] = values[part] + np.where(step.reduce[part], state[at], np.uint64(0))
    return True


def _draw(n_chunks: int, owner: Numbers, block: Numbers) -> NDArray[np.uint64]:
    """Return a fixed pseudorandom value for each rank's block: the finaliser of SplitMix64 (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", 2014) over the number of the block."""
    x = ((owner * n_chunks + block + 1).astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _sums(
    source: AnySchedule, draw: Callable[[Numbers, Numbers], NDArray[np.uint64]], chosen: Numbers | None
) -> NDArray[np.uint64]:
    """Return the reduction over each group of every chunk, (groups, chunks)."""
    slots = np.arange(source.n_chunks) if chosen is None else chosen
    rows = [draw(np.asarray(group)[:, None], slots[None, :]).sum(axis=0, dtype=np.uint64) for group in source.groups]
    return np.stack(rows)
