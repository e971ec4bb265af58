"""Derive one rank's part of a program: its sends, receives and local moves in order, and its memory.

A rank has one flat memory. Each slot has a range in it, as large as the slot's largest value; with weights, ranges may
differ between ranks. A *place* is one loop's part of one slot. Transfers read and write places; one message carries
all values of a transfer, in the order of its slots.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.engine.binding import slot_bytes
from simcoll.engine.program import Program
from simcoll.engine.timing_model import piece_bytes
from simcoll.errors import RefusedError
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import Schedule, run_text

SlotPlace = tuple[int, int]  # slot and loop


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """A range of a rank's memory: where it begins and its length, in elements."""

    start: int
    count: int


Part = tuple[SlotPlace, MemoryRange]  # what a transfer moves of one slot


@dataclass(frozen=True, slots=True)
class Move:
    """One transfer, seen from one of its ends.

    `index` is its position in the program, `peer` the rank at the other end. A send reads its `parts`; other moves
    write their `parts`, and a local copy reads `sources`, one for each part. A `direct` move writes at once, because no
    other move of its step needs the old values. The values of any other move are stored separately until the step is
    over.
    """

    index: int
    peer: int
    parts: tuple[Part, ...]
    reduce: bool
    direct: bool
    sources: tuple[Part, ...] = ()

    @property
    def count(self) -> int:
        """The number of elements that it moves."""
        return sum(span.count for _, span in self.parts)

    @property
    def span(self) -> MemoryRange | None:
        """All its parts as one range; None if they do not follow each other in memory."""
        return _one_range(self.parts)


class Stage(NamedTuple):
    """A rank's moves in one step: sends, receives and local copies, each in index order."""

    step: int
    receives: tuple[Move, ...]
    sends: tuple[Move, ...]
    locals: tuple[Move, ...]


@dataclass(frozen=True)
class RankProgram:
    """One rank's part of a program. `elements` is the length of its memory.

    `held` and `left` are the memory ranges of the buffer's slots before the first step and after the last step; an
    empty slot has an empty range.
    """

    rank: int
    stages: tuple[Stage, ...]
    elements: int
    held: tuple[MemoryRange, ...]
    left: tuple[MemoryRange, ...]

    def lines(self, itemsize: int) -> Iterator[str]:
        """Yield a line for each step: `step 0: send chunk 1 (512 B) to 1; receive …`."""
        for stage in self.stages:
            words = [_move_text("send", "to", move, itemsize) for move in stage.sends]
            words += [
                _move_text("reduce" if each.reduce else "receive", "from", each, itemsize) for each in stage.receives
            ]
            words += [
                _move_text("reduce" if each.reduce else "copy", "itself,", each, itemsize) for each in stage.locals
            ]
            yield f"step {stage.step}: {'; '.join(words)}"


def _move_text(verb: str, towards: str, move: Move, itemsize: int) -> str:
    slots, (_, loop) = [slot for (slot, _), _ in move.parts], move.parts[0][0]
    runs = [list(run) for _, run in itertools.groupby(enumerate(slots), lambda pair: pair[1] - pair[0])]
    chunks = f"chunk{'s' * (len(slots) > 1)} {', '.join(run_text(run[0][1], len(run)) for run in runs)}"
    chunks += f" loop {loop}" if loop else ""
    return f"{verb} {chunks} ({move.count * itemsize} B) {towards} {move.peer}, tag {move.index}"


def _one_range(parts: tuple[Part, ...]) -> MemoryRange | None:
    spans = [span for _, span in parts if span.count]
    if any(one.start + one.count != other.start for one, other in itertools.pairwise(spans)):
        return None
    return MemoryRange(spans[0].start if spans else 0, sum(span.count for span in spans))


def part_of(program: Program, rank: int, nbytes: int, itemsize: int, weights: object = None) -> RankProgram:
    """Return the part of `rank`. `nbytes`, `itemsize` and `weights` must be those with which the program was bound.

    Raises RefusedError for a schedule in which switches reduce, as no switch reduces in a real run.
    """
    schedule = program.schedule
    if schedule.agents:
        raise RefusedError(
            f"{schedule.name} reduces in the network, which send and receive cannot do; measure ring, tree or another "
            "algorithm that `simcoll list algorithms` shows without a switch"
        )
    mine = np.flatnonzero((program.src == rank) | (program.dst == rank))
    before, piece = _held(program, rank, nbytes, itemsize, weights), piece_bytes(program.params.chunk, itemsize)
    moved = program.once(
        "slot bytes", (program.sizes, program.kind), lambda: slot_bytes(schedule, nbytes, itemsize, weights)
    )
    ends = _ends(program, mine, moved // itemsize, piece // itemsize)
    layout = _MemoryLayout(schedule, rank, ends, before, piece // itemsize)
    steps = itertools.groupby(ends, lambda each: int(program.step[each.transfer]))
    return RankProgram(
        rank=rank,
        stages=tuple(_stage(step, rank, list(rows), layout) for step, rows in steps),
        elements=layout.elements,
        held=tuple(MemoryRange(layout.base[slot], count) for slot, count in enumerate(before)),
        left=tuple(MemoryRange(layout.base[slot], layout.left[slot]) for slot in range(schedule.n_chunks)),
    )


def _held(program: Program, rank: int, nbytes: int, itemsize: int, weights: object) -> list[int]:
    """Return the elements that `rank` has in each slot of its buffer before the first step."""
    schedule = program.schedule
    contract = collective(schedule.collective)
    for group in schedule.groups:
        if rank in group:
            sizes = contract.sizes(nbytes, len(group), schedule.n_chunks, schedule.root, itemsize, weights)
            held: list[int] = (sizes[group.index(rank)] // itemsize).tolist()
            return held
    return [0] * schedule.n_chunks


class _Ends(NamedTuple):
    """A transfer of a rank: its position in the program, its ends, and of each slot that it moves the places that it
    reads and writes, and the number of elements."""

    transfer: int
    src: int
    dst: int
    reduce: bool
    read: list[SlotPlace]
    written: list[SlotPlace]
    counts: list[int]


def _ends(program: Program, mine: NDArray[np.intp], slot_elements: NDArray[np.int64], piece: int) -> list[_Ends]:
    """Return the transfers `mine`. `slot_elements`: of each row of the schedule by slot, all loops together. `piece`:
    the most elements of a slot that one loop moves; 0 for all. Slots of which a further loop has none are left out."""
    slots, found = program.schedule.by_slot(), []
    edges = np.append(slots.heads, len(slots))
    for i, k, number in zip(mine.tolist(), program.loop[mine].tolist(), program.number[mine].tolist(), strict=True):
        numbers = np.arange(edges[number], edges[number + 1])
        counts = slot_elements[numbers]
        if piece:
            counts = np.clip(counts - k * piece, 0, piece)
            numbers, counts = (column[(counts > 0) | (k == 0)] for column in (numbers, counts))
        read, written = (
            [(slot, k) for slot in column[numbers].tolist()] for column in (slots.src_slot, slots.dst_slot)
        )
        ends = int(program.src[i]), int(program.dst[i]), bool(program.reduce[i])
        found.append(_Ends(i, *ends, read, written, counts.tolist()))
    return found


class _MemoryLayout:
    """The memory ranges of one rank's slots and places, in elements."""

    def __init__(self, schedule: Schedule, rank: int, mine: list[_Ends], before: list[int], piece: int):
        written: dict[SlotPlace, int] = {}  # elements of the last value written to each place
        room: Counter[int] = Counter(dict(enumerate(before)))
        for each in mine:
            for participant, places in ((each.src, each.read), (each.dst, each.written)):
                for (slot, loop), count in zip(places, each.counts, strict=True):
                    if participant == rank:
                        room[slot] = max(room[slot], loop * piece + count)
            if each.dst == rank:
                written |= zip(each.written, each.counts, strict=True)
        self.piece = piece
        self.base: dict[int, int] = {}
        self.elements = 0
        for slot in sorted({*room, *range(schedule.n_chunks)}):
            self.base[slot] = self.elements
            self.elements += room[slot]
        came: Counter[int] = Counter()
        for (slot, _), count in written.items():
            came[slot] += count
        known = {slot for slot, _ in written}
        self.left = {slot: came[slot] if slot in known else count for slot, count in enumerate(before)}

    def parts(self, places: list[SlotPlace], counts: list[int]) -> tuple[Part, ...]:
        """Return places with the memory ranges of their first `counts` elements."""
        starts = [self.base[slot] + loop * self.piece for slot, loop in places]
        return tuple(zip(places, map(MemoryRange, starts, counts), strict=True))


def _stage(step: int, rank: int, rows: list[_Ends], layout: _MemoryLayout) -> Stage:
    read = {place for each in rows if each.src == rank for place in each.read}
    seen: set[SlotPlace] = set()
    receives: list[Move] = []
    sends: list[Move] = []
    locals_: list[Move] = []
    for index, src, dst, reduce, source, target, counts in rows:
        if dst != rank:
            sends.append(Move(index, dst, layout.parts(source, counts), reduce, False))
            continue
        once = len(set(target)) == len(target)
        free = once and read.isdisjoint(target) and seen.isdisjoint(target)
        seen.update(target)
        parts = layout.parts(target, counts)
        if src == rank:
            locals_.append(Move(index, src, parts, reduce, free, layout.parts(source, counts)))
        else:
            receives.append(Move(index, src, parts, reduce, free and not reduce and _one_range(parts) is not None))
    return Stage(step, tuple(receives), tuple(sends), tuple(locals_))
