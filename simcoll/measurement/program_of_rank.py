"""Derive one rank's part of a program: its sends, receives and local moves in order, and its memory.

A rank has one flat memory. Each slot has a range in it, as large as the slot's largest value; with weights, ranges may
differ between ranks. A *place* is one loop's part of one slot. Transfers read and write places.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.engine.program import Program
from simcoll.engine.timing_model import piece_bytes
from simcoll.errors import RefusedError
from simcoll.schedule.collectives import collective

SlotPlace = tuple[int, int]  # slot and loop


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """A range of a rank's memory: where it begins and its length, in elements."""

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Move:
    """One transfer, seen from one of its ends.

    `index` is its position in the program, `peer` the rank at the other end. A send reads `place`; other moves write
    `place`, and a local copy reads `source`. A `direct` move writes at once, because no other move of its step needs
    the old value. The value of any other move is stored separately until the step is over.
    """

    index: int
    peer: int
    place: SlotPlace
    span: MemoryRange
    reduce: bool
    direct: bool
    source: tuple[SlotPlace, MemoryRange] | None = None


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
    slot, loop = move.place
    chunk = f"chunk {slot}" + (f" loop {loop}" if loop else "")
    return f"{verb} {chunk} ({move.span.count * itemsize} B) {towards} {move.peer}, tag {move.index}"


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
    mine = np.flatnonzero((program.src == rank) | (program.dst == rank)).tolist()
    before = _held(program, rank, nbytes, itemsize, weights)
    layout = _MemoryLayout(program, rank, mine, before, itemsize)
    steps = itertools.groupby(mine, lambda i: program.step[i])
    return RankProgram(
        rank=rank,
        stages=tuple(_stage(program, rank, list(rows), layout) for _, rows in steps),
        elements=layout.elements,
        held=tuple(MemoryRange(layout.base[slot], size // itemsize) for slot, size in enumerate(before)),
        left=tuple(MemoryRange(layout.base[slot], layout.left[slot]) for slot in range(schedule.n_chunks)),
    )


def _held(program: Program, rank: int, nbytes: int, itemsize: int, weights: object) -> list[int]:
    """Return the bytes that `rank` has in each slot of its buffer before the first step."""
    schedule = program.schedule
    contract = collective(schedule.collective)
    for group in schedule.groups:
        if rank in group:
            sizes = contract.sizes(nbytes, len(group), schedule.n_chunks, schedule.root, itemsize, weights)
            held: list[int] = sizes[group.index(rank)].tolist()
            return held
    return [0] * schedule.n_chunks


class _MemoryLayout:
    """The memory ranges of one rank's slots and places, in elements."""

    def __init__(self, program: Program, rank: int, mine: list[int], before: list[int], itemsize: int):
        schedule, piece = program.schedule, piece_bytes(program.params.chunk, itemsize) // itemsize
        written: dict[SlotPlace, int] = {}  # elements of the last value written to each place
        room: Counter[int] = Counter({slot: size // itemsize for slot, size in enumerate(before)})
        for i in mine:
            loop, count = int(program.loop[i]), int(program.nbytes[i]) // itemsize
            for participant, slots in ((program.src, schedule.src_slot), (program.dst, schedule.dst_slot)):
                if participant[i] == rank:
                    slot = int(slots[program.origin[i]])
                    room[slot] = max(room[slot], loop * piece + count)
            if program.dst[i] == rank:
                written[int(schedule.dst_slot[program.origin[i]]), loop] = count
        self.piece, self.itemsize = piece, itemsize
        self.base: dict[int, int] = {}
        self.elements = 0
        for slot in sorted({*room, *range(schedule.n_chunks)}):
            self.base[slot] = self.elements
            self.elements += room[slot]
        came: Counter[int] = Counter()
        for (slot, _), count in written.items():
            came[slot] += count
        known = {slot for slot, _ in written}
        self.left = {slot: came[slot] if slot in known else before[slot] // itemsize for slot in range(len(before))}

    def span(self, place: SlotPlace, count: int) -> MemoryRange:
        """Return the memory range of the first `count` elements of a place."""
        slot, loop = place
        return MemoryRange(self.base[slot] + loop * self.piece, count)


def _stage(program: Program, rank: int, rows: list[int], layout: _MemoryLayout) -> Stage:
    read = {_place(program, i, program.schedule.src_slot) for i in rows if program.src[i] == rank}
    seen: set[SlotPlace] = set()
    receives: list[Move] = []
    sends: list[Move] = []
    locals_: list[Move] = []
    for i in rows:
        src, dst, reduce = int(program.src[i]), int(program.dst[i]), bool(program.reduce[i])
        source, target = (_place(program, i, slots) for slots in (program.schedule.src_slot, program.schedule.dst_slot))
        count = int(program.nbytes[i]) // layout.itemsize
        if dst != rank:
            sends.append(Move(i, dst, source, layout.span(source, count), reduce, False))
            continue
        free = target not in read and target not in seen
        seen.add(target)
        if src == rank:
            local = (source, layout.span(source, count))
            locals_.append(Move(i, src, target, layout.span(target, count), reduce, free, local))
        else:
            receives.append(Move(i, src, target, layout.span(target, count), reduce, free and not reduce))
    return Stage(int(program.step[rows[0]]), tuple(receives), tuple(sends), tuple(locals_))


def _place(program: Program, i: int, slots: NDArray[np.int32]) -> SlotPlace:
    return int(slots[program.origin[i]]), int(program.loop[i])
