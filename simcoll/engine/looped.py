"""Schedules that are repeated over a large buffer, run with the columns of one loop: a transfer takes a few bytes where
it takes hundreds in a program that holds all loops."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from simcoll.config.arrays import Array
from simcoll.config.machine_memory import check_memory
from simcoll.config.numba_loader import Loops, choose
from simcoll.dataclass import dataclass
from simcoll.engine._dependencies import looped_credits
from simcoll.engine._kernel_run import NO_INDICES, NO_TIMES, KernelRun
from simcoll.engine._loop_standing import run_on
from simcoll.engine._loop_streams import LoopStreams, streams_of
from simcoll.engine._network_parts import NetworkParts, parts_of
from simcoll.engine.binding import bind
from simcoll.engine.fast import CallEnds
from simcoll.engine.kernels import loop_kernel, waits
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
from simcoll.engine.kernels.records import Heads, Heap, Routes, Servers
from simcoll.engine.kernels.waits import COMPLETE
from simcoll.engine.program import Program
from simcoll.engine.timeline import Totals
from simcoll.engine.timing_model import NEVER, NONE, Params, RoutedNetwork, piece_bytes, too_late
from simcoll.schedule.ir import Schedule

MOST_WIDER: Final = 1.25  # parts of many sizes would leave too much room empty
BYTES: Final = 12  # of memory that a transfer takes: its time, what it waits for, where it is, its share of the heap
SHORT: Final = 100_000  # transfers of all loops: fewer are run as soon as what is known of others is looked up
MOST_BITS: Final = 62  # of a key
LONGEST: Final = 2**40  # ps of a piece on a link that windows reckon with, also where it is down


@dataclass(frozen=True, eq=False)
class LoopedProgram:
    """`one`, the program of a single loop over whole slots, run in `loops` that each move at most `piece` bytes of a
    slot. `slots` of a connection may be on their way, 0: any number."""

    one: Program
    loops: int
    piece: int
    slots: int

    def __len__(self) -> int:
        return len(self.one) * self.loops

    def ends(self, arrivals: Array, busy: Array, compiled: bool | None = None) -> CallEnds | None:
        """The ends of all loops by ranks and links: see `fast.ends`. Raises InputError beyond the memory or the
        clock."""
        cure = "write a larger chunk", "model"
        check_memory(len(self) * BYTES, f"{self.loops} loops of {len(self.one)} transfers", *cure)
        loops = Loops(waits, choose(len(self), compiled, loop_kernel))
        if loops.compiled not in self._known:
            base = KernelRun(self._sized, loops, "ends")
            self._known[loops.compiled] = base, self._laid_out(base)
        base, columns = self._known[loops.compiled]
        run_ = copy(base)
        run_.program, run_.busy = replace(base.program, arrivals=arrivals), busy[self._links]
        done, kernel = run_.give(arrivals.copy()), loops.like(loop_kernel)
        run = _begun(columns, run_, done)
        if len(self) < SHORT or arrivals.any() or busy.any():
            ended, latest = kernel.loops(run, 0, 0, self.loops)
        else:
            ended, latest = run_on(run, kernel.loops, *self._like(loops.compiled))
        if ended < len(self):
            return None
        if latest >= NEVER:
            raise too_late("the run takes")
        place = np.argsort(self._links)
        first, last, free = (np.asarray(column, np.int64)[place] for column in (*run_.heads, run_.free))
        free = np.where(last > -NEVER, free, -NEVER)
        return CallEnds(np.asarray(done[: self.one.schedule.n], np.int64), first, last, free, int(latest))

    def _like(self, compiled: bool) -> tuple[Hashable, tuple[object, ...]]:
        """The same for programs of which the loops of whole pieces are alike, and the columns that they share."""
        one, schedule = self.one, self.one.schedule
        shared = schedule, one.way, one.channel, one.side, one.reads, one.chain, one.routes.links
        numbers = hashlib.sha256(one.bandwidths.tobytes() + one.latencies.tobytes()).digest()
        return (*map(id, shared), one.params, self.piece, self.slots, compiled, numbers), shared

    def totals(self, compiled: bool | None = None) -> Totals | None:
        """The sums of a run of all loops; None if they could not finish. Raises like `ends`."""
        one = self.one
        found = self.ends(one.arrivals, np.zeros(len(one.bandwidths), np.int64), compiled)
        if found is None:
            return None
        sums = one.totals(found.over, "none")
        return replace(sums, messages=sums.messages * self.loops)

    @cached_property
    def _links(self) -> Array:
        """The links in the order in which the kernel has them: those by which a participant sends together, then those
        by which it receives, so that what one event needs lies close together."""
        src, dst, hop, links = self.one.routes
        long = np.diff(hop)
        way = np.repeat(np.arange(len(long)), long)
        coming = 2 * (np.arange(len(links)) - hop[way]) >= long[way]
        used, first = np.unique(links, return_index=True)
        order = np.lexsort((first, np.where(coming, dst[way], src[way])[first], coming[first]))
        return np.append(used[order], np.setdiff1d(np.arange(len(self.one.bandwidths)), used))

    @cached_property
    def _near(self) -> Program:
        """`one` with its links in that order, which have no names there."""
        order, one = self._links, self.one
        routes = one.routes._replace(links=np.argsort(order)[one.routes.links].astype(np.int32))
        bandwidths, latencies = one.bandwidths[order], one.latencies[order]
        return replace(one, routes=routes, bandwidths=bandwidths, latencies=latencies, link_names=(), memo={})

    @cached_property
    def _sized(self) -> Program:
        """The same with the sizes of pieces: the rests of slots, nothing, and whole ones. Each is sent."""
        sizes = np.append(self.one.sizes % self.piece, self.piece)
        return replace(self._near, sizes=sizes, kind=np.arange(len(sizes), dtype=np.int32))

    @cached_property
    def _known(self) -> dict[bool, tuple[KernelRun, LoopRun]]:
        """The columns for the kernel, compiled or not, that are the same in all runs."""
        return {}

    def _laid_out(self, run_: KernelRun) -> LoopRun:
        """The columns for the kernel; those that it writes are empty, but for the state, with which a run begins."""
        program, schedule, give = self._near, self.one.schedule, run_.give
        src, dst, *routes = program.routes
        follows = run_.ways.follows()
        of_piece = run_.ways.service[-len(run_.ways.rates) :]
        least = int(of_piece.min(initial=NEVER))  # a link serves a piece meanwhile
        whole_ps = np.minimum(of_piece[run_.ways.rate_of], LONGEST)
        parts = parts_of(run_.program, follows, self.slots, least, whole_ps)
        starts = parts.of_participant[src[program.way]]
        streams = streams_of(run_.program, starts, least)
        order = np.argsort(starts, kind="stable").astype(np.int32)  # rows of a part together
        place = np.empty_like(order)
        place[order] = np.arange(len(order), dtype=np.int32)

        def rows(column: Array) -> Any:
            return give(column[order])

        def moved(column: Any) -> Any:
            return give(np.append(place, np.int32(NONE))[np.asarray(column, np.int32)[order]])

        (_, chain_after, first_reader, next_reader, _, channel_after, _), pending = run_.successors(~streams.taken)
        sums, after = streams.sums, np.append(np.asarray(chain_after), NONE)
        chain, chain_after = program.chain[sums.first], np.append(sums.last, NONE)[after[:-1]]
        credit_row, credit_loops, free = NO_INDICES, NO_INDICES, NO_INDICES
        if self.slots:
            many, number, row, later = looped_credits(program.connection, self.slots)
            free = -((number - self.slots) // many)  # the first loop in which a slot has to be let go
            later = np.where(streams.taken, np.int32(NOBODY), later)
            credit_row, credit_loops = moved(row), rows(later)
        state = self._state(run_, np.asarray(pending)[order], order, free, starts[order], streams)
        onward = (program.chain[sums.first] != NONE) | (chain_after != NONE) | (np.asarray(first_reader) != NONE)
        bits = max(1, (len(program) - 1).bit_length()), max(1, (self.loops - 1).bit_length())
        o_recv = np.where(src == dst, 0, program.params.o_recv)
        gap, cap, gamma = program.by_way("g"), run_.program.by_kind("channel_bandwidth"), run_.program.by_kind("gamma")
        turns = self._rooms(run_, parts, starts, streams)
        return LoopRun(
            loops=self.loops,
            keys=Keys(rows(_steps(schedule)), give(place), *bits),
            rows=Rows(
                number=give(order),
                way=rows(program.way),
                side=rows(program.side),
                reduce=rows(program.reduce),
                chain=moved(chain),
                chain_after=moved(chain_after),
                first_reader=moved(first_reader),
                next_reader=moved(next_reader),
                channel_after=moved(channel_after),
                first=moved(_first(program.channel)),
                reads=moved(program.reads),
                awaited=rows(streams.awaited.astype(np.int32)),
            ),
            parts=turns,
            streams=self._streams(run_, streams, starts, place, np.asarray(state.first), parts.many, onward),
            pieces=Pieces(
                kind=rows(program.kind),
                whole=give(program.sizes // self.piece),
                piece=len(program.sizes),
                nothing=len(program.sizes) - 1,
            ),
            costs=LoopCosts(
                gap=give(gap if gap.any() else NO_TIMES),
                lead=run_.lead(),
                o_recv=give(o_recv if o_recv.any() else NO_TIMES),
                cap=give(run_.ways.at_rates(cap) if cap.any() else NO_TIMES),
                gamma=give(run_.ways.at_rates(gamma) if gamma.any() else NO_TIMES),
                here=NO_TIMES,
            ),
            ways=Ways(*run_.gives(src, dst)),
            routes=Routes(*run_.gives(*routes)),
            follows=give(follows),
            net=run_.net(),
            free=Servers(NO_TIMES, NO_TIMES),
            state=state,
            heads=Heads(NO_TIMES, NO_TIMES),
            done=NO_TIMES,
            heap=Heap(NO_TIMES, NO_TIMES, NO_TIMES),
            todo=Todo(NO_TIMES, NO_TIMES, NO_TIMES),
            credit_row=credit_row,
            credit_loops=credit_loops,
        )

    def _state(
        self, run_: KernelRun, pending: Array, order: Array, free: Array, starts: Array, streams: LoopStreams
    ) -> LoopState:
        """The state of all transfers at the start, by part, in the first loops; later ones are as the last of these.
        Rows in `order` wait for `pending` things in the first loop, later for the loop before, too, where a channel
        begins, and from loop `free` on for a slot; nobody lets go those that `streams` have, and of these those that
        nobody awaits have no state but the last, which stands for none, and a sum has that of its last row. Those of
        each part in `starts` are together."""
        taken, last = streams.taken[order], streams.sums.last == np.arange(len(order))
        stated = (~streams.taken | streams.awaited & last)[order]
        order, starts, pending, taken = order[stated], starts[stated], pending[stated], taken[stated]
        often = np.bincount(starts)
        part, wide = np.cumsum(often > 0)[starts] - 1, int(often.max(initial=0))
        if wide * (int(part.max(initial=0)) + 1) > MOST_WIDER * len(order):
            part, wide = part * 0, len(order)
        place = np.arange(len(order)) - np.searchsorted(part, part)
        many = int(part.max(initial=0)) + 1
        begins, late = (self.one.channel_before == NONE)[order], free[order] if len(free) else self.loops
        settled = max(1, int(free.max(initial=0)))  # loops from this on are alike
        state = np.zeros((many, min(self.loops, settled + 1), wide), np.int8)
        for loop in range(state.shape[1]):
            waits_ = np.where(taken, streams.sums.many[order], pending + (begins & (loop > 0)) + (late <= loop))
            state[part, loop, place] = np.where(waits_ > 0, COMPLETE - waits_, 0)
        first = np.full(len(stated), many * self.loops * wide)
        first[stated] = part * (wide * self.loops) + place
        return LoopState(NO_TIMES, state, run_.give(first), wide)

    def _rooms(self, run_: KernelRun, parts: NetworkParts, starts: Array, streams: LoopStreams) -> PartHeaps:
        """The parts for the kernel, each with room on the heap for all transfers that may be there at once."""
        program, there = self._near, ~streams.taken
        often = np.bincount(program.way[there], minlength=len(program.routes.src))
        part, way = parts.visits
        most = np.bincount(part, often[way], parts.many) + np.bincount(starts[there], minlength=parts.many)
        deep = min(self.loops, self.slots or self.loops)
        room = np.append(0, np.cumsum(most.astype(np.int64) * deep + 1))
        columns = (np.sort(starts), parts.of_participant, parts.of_link)
        start, home, of_link = run_.gives(*(column.astype(np.int32) for column in columns))
        classes, ahead, ahead_whole = run_.gives(parts.classes, parts.ahead.ravel(), parts.ahead_whole.ravel())
        whole = int((program.sizes // self.piece)[program.kind].min(initial=self.loops))
        own = start, home, of_link, run_.give(room), NO_TIMES
        return PartHeaps(classes, ahead, ahead_whole, NO_TIMES, NO_INDICES, whole, *own)

    def _streams(
        self,
        run_: KernelRun,
        streams: LoopStreams,
        starts: Array,
        place: Array,
        first: Array,
        parts: int,
        onward: Array,
    ) -> LinkStreams:
        """The channels that need no heap, for the kernel; by `place` the state of each row is at `first`."""
        program, links, give, rows = self._near, len(self.one.bandwidths), run_.give, streams.rows
        last = streams.sums.last[rows]
        head, reads = rows[streams.begin[:-1]], program.reads[rows]
        way = program.way[head]
        link, count = program.routes.links[program.routes.hop[way]], len(head)
        of_link, behind = (np.zeros(links, np.int32) for _ in range(2))
        numbers = np.arange(count, dtype=np.int32)
        of_link[link[::-1]], behind[link] = numbers[::-1], numbers + 1
        of_part = np.searchsorted(starts[head], np.arange(parts + 1)).astype(np.int32)
        whole = (program.sizes // self.piece)[program.kind[rows]]
        return LinkStreams(
            row=give(place[rows]),
            reads=give(np.where(reads == NONE, NONE, first[place[reads]])),
            own=give(np.where(streams.awaited[rows], first[place[last]], NONE)),
            onward=give(np.where(onward[last], place[last], NONE).astype(np.int32)),
            begin=give(streams.begin.astype(np.int32)),
            way=give(way.astype(np.int32)),
            src=give(program.routes.src[way].astype(np.int32)),
            dst=give(program.routes.dst[way].astype(np.int32)),
            link=give(link.astype(np.int32)),
            whole=give(np.minimum.reduceat(whole, streams.begin[:-1]) if count else NO_TIMES),
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


def _begun(columns: LoopRun, run_: KernelRun, done: Array) -> LoopRun:
    """The columns with new ones for a run to write, and those that follow from when ranks come."""
    room, arrivals = run_.loops.room, run_.program.arrivals
    streams, entries, many = columns.streams, int(columns.parts.room[-1]), len(columns.parts.room) - 1
    count, waiting = len(streams.link), np.diff(np.asarray(streams.of_part)) > 0
    state = _of_all_loops(columns.state.state, columns.loops)
    here = arrivals if arrivals.any() else NO_TIMES
    return columns._replace(
        costs=columns.costs._replace(here=run_.give(here)),
        parts=columns.parts._replace(
            size=run_.zeros(many), clock=run_.zeros(len(columns.parts.classes) - 1), begun=run_.fill(1, -1)
        ),
        streams=streams._replace(
            at=run_.give(np.asarray(streams.begin, np.int32)[:-1].copy()),
            loop=run_.fill(count, 0),
            ready=run_.zeros(count),
            awaits=run_.zeros(count),
            head=run_.zeros(count),
            ends=run_.zeros(count * streams.slots),
            turn=run_.fill(count, 0),
            soonest=run_.give(np.where(waiting, 0, NEVER)),
        ),
        free=Servers(run_.freed(), run_.zeros(run_.sides)),
        state=columns.state._replace(when=run_.zeros(len(state)), state=run_.give(state)),
        heads=run_.noted(),
        done=done,
        heap=Heap(room(entries, np.int64), room(entries, np.int64), run_.zeros(0)),
        todo=Todo(*(room(len(columns.rows.way) + 2, np.int64) for _ in Todo._fields)),
    )


def _of_all_loops(first: Array, loops: int) -> Array:
    """The state of all loops, and behind it that of none, which is never complete."""
    parts, some, wide = first.shape
    column = np.full(parts * loops * wide + 1, COMPLETE - 1, np.int8)
    state = column[:-1].reshape(parts, loops, wide)
    state[:, :some], state[:, some:] = first, first[:, -1:]
    return column


def looped(
    schedule: Schedule,
    network: RoutedNetwork,
    devices: Sequence[str],
    params: Params,
    nbytes: int,
    *,
    itemsize: int = 1,
    weights: object = None,
    arrivals: Mapping[int, int] | None = None,
) -> LoopedProgram | None:
    """The loops that `bind` would write out; None where there is only one, where the transfers of a channel do not go
    loop by loop, or wait for others than those that make what they send. Raises like `bind`."""
    waiting = params.sharing != "fifo" or params.barrier or params.blocking != "no"
    in_turn = params.channels > 1 and params.channels_by == "chunk"
    if not params.chunk or waiting or in_turn:
        return None
    whole = replace(params, chunk=0, slots=0)
    one = bind(schedule, network, devices, whole, nbytes, itemsize=itemsize, weights=weights, arrivals=arrivals)
    piece = piece_bytes(params.chunk, itemsize)
    loops = -(-int(one.sizes.max(initial=0)) // piece)
    step = _steps(schedule)
    bits = (len(one) - 1).bit_length() + 2 * (int(step.max(initial=0)) + loops).bit_length()
    by_loop = bool((step == step[_first(one.channel)]).all()) if len(one) else False
    return LoopedProgram(one, loops, piece, params.slots) if loops > 1 and by_loop and bits <= MOST_BITS else None


def _steps(schedule: Schedule) -> Array:
    """The step of each row, where the next loop follows one step behind; none where it follows the whole loop."""
    return schedule.step if schedule.pipelined else np.zeros(len(schedule), np.int32)


def _first(channel: Array) -> Array:
    """The first row of the channel of each row."""
    _, first = np.unique(channel, return_index=True)
    return first[channel].astype(np.int32)
