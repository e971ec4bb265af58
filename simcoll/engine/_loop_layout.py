"""The columns of `loop_kernel` that follow from how a program is built, and not from how much it moves. Calls of other
sizes share them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array, Numbers
from simcoll.config.numba_loader import Loops
from simcoll.engine._dependencies import looped_credits
from simcoll.engine._kernel_run import NO_INDICES, NO_TIMES, KernelRun
from simcoll.engine._loop_streams import LoopStreams, streams_of
from simcoll.engine._network_parts import NetworkParts, parts_of
from simcoll.engine.kernels.loop_records import (
    NOBODY,
    Keys,
    LinkStreams,
    LoopCosts,
    LoopRun,
    LoopState,
    PartHeaps,
    Pieces,
    Rows,
    Todo,
    Ways,
)
from simcoll.engine.kernels.records import Heads, Heap, Net, Routes, Servers
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER, NONE
from simcoll.schedule.ir import Schedule

LONGEST: Final = 2**40  # ps of a piece on a link that windows reckon with, also where it is down
LINE: Final = 64  # bytes of a line of a processor's cache
BESIDE: Final = LINE // 4  # columns that lie side by side


class FirstWaits(NamedTuple):
    """The waits with which each entry of the state begins: the number of things that a transfer waits for in the first
    loop; whether it waits for the loop before, too; and the first loop in which it waits for a slot, `NOBODY` if it
    never does."""

    pending: Array
    begins: Array
    late: Array


class LoopLayout(NamedTuple):
    """`program` is one of those that share this, with its `links` in the order in which the kernel has them. Of the
    columns of `run` those are empty that sizes or the number of loops decide, or that a run writes. By part `most`
    transfers of a loop are on its heap at a time. `rows` of streams are those of the schedule."""

    program: Program
    links: Array
    run: LoopRun
    waiting: FirstWaits
    most: Numbers
    rows: Array


class _SideBySide:
    """Columns of whole numbers that lie side by side, so that what an event asks of one row is in one line of the
    processor's cache: row r has its entries at `apart` × r. Uncompiled they are lists, each by itself."""

    def __init__(self, rows: int, loops: Loops):
        self.loops, self.apart, self.taken = loops, BESIDE if loops.compiled else 1, 0
        room = np.empty((rows + 1) * BESIDE if loops.compiled else 0, np.int32)
        self.room = room[-room.ctypes.data % LINE // room.itemsize :] if loops.compiled else room

    def column(self, values: Array) -> Any:
        """One of them."""
        if not self.loops.compiled:
            return values.tolist()
        if self.taken == BESIDE:
            raise ValueError("a line holds no more columns")
        column = self.room[self.taken : len(values) * BESIDE]
        column[::BESIDE] = values
        self.taken += 1
        return column


def layout_of(one: Program, piece: int, slots: int, loops: Loops) -> LoopLayout:
    """Lay out the program of a single loop; see `looped.LoopedProgram` for the others."""
    links = _links(one)
    near = _near(one, links)
    return _Layout(near, piece, slots, loops).found(links)


def sized(near: Program, sizes: Array, piece: int) -> Program:
    """The program with the sizes of pieces: the rests of slots, nothing, and whole ones. Each is sent."""
    sizes = np.append(sizes % piece, piece)
    return replace(near, sizes=sizes, kind=np.arange(len(sizes), dtype=np.int32), memo={})


def steps(schedule: Schedule) -> Array:
    """The step of each row, where the next loop follows one step behind; none where it follows the whole loop."""
    return schedule.step if schedule.pipelined else np.zeros(len(schedule), np.int32)


def first_of(channel: Array) -> Array:
    """The first row of the channel of each row."""
    _, first = np.unique(channel, return_index=True)
    return first[channel].astype(np.int32)


def _links(one: Program) -> Array:
    """The links in the order in which the kernel has them: those by which a participant sends together, then those by
    which it receives, so that what one event needs lies close together."""
    src, dst, hop, links = one.routes
    long = np.diff(hop)
    way = np.repeat(np.arange(len(long)), long)
    coming = 2 * (np.arange(len(links)) - hop[way]) >= long[way]
    used, first = np.unique(links, return_index=True)
    order = np.lexsort((first, np.where(coming, dst[way], src[way])[first], coming[first]))
    others = np.ones(len(one.bandwidths), bool)
    others[used] = False
    return np.append(used[order], np.flatnonzero(others))


def _near(one: Program, order: Array) -> Program:
    """`one` with its links in that order, which have no names there."""
    routes = one.routes._replace(links=np.argsort(order)[one.routes.links].astype(np.int32))
    bandwidths, latencies = one.bandwidths[order], one.latencies[order]
    return replace(one, routes=routes, bandwidths=bandwidths, latencies=latencies, link_names=(), memo={})


class _Layout:
    """A layout that is being made."""

    def __init__(self, near: Program, piece: int, slots: int, loops: Loops):
        self.near, self.slots = near, slots
        self.run_ = run_ = KernelRun(sized(near, near.sizes, piece), loops, "ends")
        self.follows = run_.ways.follows()
        of_piece = run_.ways.service[-len(run_.ways.rates) :]
        least = int(of_piece.min(initial=NEVER))  # a link serves a piece meanwhile
        self.of_piece = of_piece[run_.ways.rate_of]
        long = np.minimum(self.of_piece, LONGEST)
        self.parts: NetworkParts = parts_of(run_.program, self.follows, slots, least, long)
        self.starts = self.parts.of_participant[near.routes.src[near.way]]
        self.streams: LoopStreams = streams_of(run_.program, self.starts, least)
        self.beside = _SideBySide(len(near), loops)
        self.place = np.arange(len(near), dtype=np.int32) * np.int32(self.beside.apart)  # in the columns

    def found(self, links: Array) -> LoopLayout:
        """The layout, on these links."""
        near, run_, give, streams = self.near, self.run_, self.run_.give, self.streams
        src, dst, *routes = near.routes
        (_, chain_after, first_reader, next_reader, _, channel_after, _), pending = run_.successors(~streams.taken)
        sums, after = streams.sums, np.append(np.asarray(chain_after), NONE)
        chain, chain_after = near.chain[sums.first], np.append(sums.last, NONE)[after[:-1]]
        credit_row, credit_loops, late = NO_INDICES, NO_INDICES, None
        if self.slots:
            many, number, row, later = looped_credits(near.connection, self.slots)
            late = -((number - self.slots) // many)  # the first loop in which a slot has to be let go
            later = np.where(streams.taken, np.int32(NOBODY), later)
            credit_row, credit_loops = self._moved(row), self._rows(later)
        first, wide, waiting = self._state(np.asarray(pending), late)
        onward = (near.chain[sums.first] != NONE) | (chain_after != NONE) | (np.asarray(first_reader) != NONE)
        o_recv, gap = np.where(src == dst, 0, near.params.o_recv), near.by_way("g")
        rows, moved, starts = self._rows, self._moved, self.starts
        nothing = give(np.zeros(0, np.int8))
        run = LoopRun(
            loops=0,
            keys=Keys(rows(steps(near.schedule)), max(1, (len(near) - 1).bit_length()), 0),
            rows=Rows(
                apart=self.beside.apart,
                number=rows(np.arange(len(near))),
                way=rows(near.way),
                side=rows(near.side),
                reduce=rows(near.reduce),
                chain=moved(chain),
                chain_after=moved(chain_after),
                first_reader=moved(first_reader),
                next_reader=moved(next_reader),
                channel_after=moved(channel_after),
                first=moved(first_of(near.channel)),
                awaited=rows(streams.awaited),
            ),
            parts=self._parts(),
            streams=self._streams(first, onward),
            pieces=Pieces(NO_INDICES, NO_TIMES, len(near.sizes), len(near.sizes) - 1),
            costs=LoopCosts(
                gap=give(gap if gap.any() else NO_TIMES),
                lead=run_.lead(),
                o_recv=give(o_recv if o_recv.any() else NO_TIMES),
                cap=NO_TIMES,
                gamma=NO_TIMES,
                here=NO_TIMES,
            ),
            ways=Ways(*run_.gives(src, dst)),
            routes=Routes(*run_.gives(*routes)),
            follows=give(self.follows),
            net=Net(NO_INDICES, NO_TIMES, NO_TIMES, 0),
            free=Servers(NO_TIMES, NO_TIMES),
            state=LoopState(NO_TIMES, nothing, rows(first), wide),
            heads=Heads(NO_TIMES, NO_TIMES),
            done=NO_TIMES,
            heap=Heap(NO_TIMES, NO_TIMES, NO_TIMES),
            todo=Todo(NO_TIMES, NO_TIMES, NO_TIMES),
            credit_row=credit_row,
            credit_loops=credit_loops,
        )
        part, way = self.parts.visits
        there = ~streams.taken
        often = np.bincount(near.way[there], minlength=len(src))
        most = np.bincount(part, often[way], self.parts.many).astype(np.int64)
        most += np.bincount(starts[there], minlength=self.parts.many)
        return LoopLayout(near, links, run, waiting, most, streams.rows)

    def _rows(self, column: Any) -> Any:
        return self.beside.column(np.asarray(column, np.int32))

    def _moved(self, column: Any) -> Any:
        return self._rows(np.append(self.place, np.int32(NONE))[np.asarray(column, np.int32)])

    def _state(self, pending: Array, late: Array | None) -> tuple[Array, int, FirstWaits]:
        """The entry of each row in the state of the first loop, the number of entries of a loop, and what they wait
        for. Nobody lets go rows that `streams` have, and of these those that nobody awaits have none but the first
        entry, which stands for none; a sum has that of its last row. Rows of a part have theirs together."""
        streams = self.streams
        stated = ~streams.taken | streams.awaited & (streams.sums.last == np.arange(len(pending)))
        order = np.argsort(self.starts, kind="stable")
        order = order[stated[order]]
        first = np.zeros(len(pending), np.int32)
        first[order] = np.arange(1, len(order) + 1)
        begins = (self.near.channel_before == NONE)[order]
        late = np.full(len(order), NOBODY) if late is None else late[order]
        summed = streams.taken[order]
        many = np.where(summed, streams.sums.many[order], pending[order])
        return first, len(order), FirstWaits(many, begins & ~summed, np.where(summed, NOBODY, late))

    def _parts(self) -> PartHeaps:
        """The parts for the kernel, without room on the heap."""
        parts, starts, run_ = self.parts, self.starts, self.run_
        columns = (parts.of_participant, parts.of_link)
        home, of_link = run_.gives(*(column.astype(np.int32) for column in columns))
        classes, ahead, ahead_whole = run_.gives(parts.classes, parts.ahead.ravel(), parts.ahead_whole.ravel())
        own = self._rows(starts), home, of_link, NO_TIMES, NO_TIMES
        return PartHeaps(classes, ahead, ahead_whole, NO_TIMES, NO_INDICES, 0, *own)

    def _streams(self, first: Array, onward: Array) -> LinkStreams:
        """The channels that need no heap, for the kernel; the state of each row is at `first`."""
        near, links, give, streams = self.near, len(self.near.bandwidths), self.run_.give, self.streams
        rows, place = streams.rows, self.place
        last = streams.sums.last[rows]
        head, reads = rows[streams.begin[:-1]], near.reads[rows]
        way = near.way[head]
        link, count = near.routes.links[near.routes.hop[way]], len(head)
        of_link, behind = (np.zeros(links, np.int32) for _ in range(2))
        numbers = np.arange(count, dtype=np.int32)
        of_link[link[::-1]], behind[link] = numbers[::-1], numbers + 1
        of_part = np.searchsorted(self.starts[head], np.arange(self.parts.many + 1)).astype(np.int32)
        return LinkStreams(
            row=give(place[rows]),
            reads=give(np.where(reads == NONE, np.int32(NONE), first[reads])),
            own=give(np.where(streams.awaited[rows], first[last], np.int32(NONE))),
            onward=give(np.where(onward[last], place[last], NONE).astype(np.int32)),
            begin=give(streams.begin.astype(np.int32)),
            way=give(way.astype(np.int32)),
            src=give(near.routes.src[way].astype(np.int32)),
            dst=give(near.routes.dst[way].astype(np.int32)),
            link=give(link.astype(np.int32)),
            whole=NO_TIMES,
            takes=give(self.of_piece[link]),
            at=NO_INDICES,
            loop=NO_INDICES,
            ready=NO_TIMES,
            awaits=NO_TIMES,
            head=NO_TIMES,
            ends=NO_TIMES,
            turn=NO_INDICES,
            slots=self.slots,
            of_link=give(of_link),
            behind_link=give(behind),
            of_part=give(of_part),
            soonest=NO_TIMES,
            ahead=streams.ahead,
        )
