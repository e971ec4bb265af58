"""Schedules that are repeated over a large buffer, run with the columns of one loop: a transfer takes a few bytes where
it takes hundreds in a program that holds all loops."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from simcoll.config.arrays import Array
from simcoll.config.lru import LruCache
from simcoll.config.machine_limits import check_memory
from simcoll.config.numba_loader import Loops, choose
from simcoll.engine._kernel_run import NO_TIMES, KernelRun
from simcoll.engine._loop_layout import FirstWaits, LoopLayout, first_of, layout_of, sized, steps
from simcoll.engine.binding import bind
from simcoll.engine.fast import CallEnds
from simcoll.engine.kernels import loop_kernel, waits
from simcoll.engine.kernels.loop_records import NOBODY, LoopRun, Todo
from simcoll.engine.kernels.records import Heap, Servers
from simcoll.engine.kernels.waits import COMPLETE
from simcoll.engine.program import Program
from simcoll.engine.timeline import Totals
from simcoll.engine.timing_model import NEVER, Params, RoutedNetwork, piece_bytes, too_late
from simcoll.schedule.ir import Schedule

BYTES: Final = 12  # of memory that a transfer takes: its time, what it waits for, where it is, its share of the heap
MOST_BITS: Final = 62  # of a key
MOST_LAID_OUT: Final = 2_000_000  # rows of layouts that are kept, some 300 MB

_LAID_OUT: Final[LruCache[tuple[LoopLayout, object]]] = LruCache(MOST_LAID_OUT, lambda kept: len(kept[0].program))


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
        like, shared = (self._like, loops.compiled), self._shared
        layout, _ = _LAID_OUT.get(like, lambda: (layout_of(self.one, self.piece, self.slots, loops), shared))
        if loops.compiled not in self._known:
            base = KernelRun(sized(layout.program, self.one.sizes, self.piece), loops, "ends")
            columns = self._numbered(layout, base)
            self._known[loops.compiled] = base, columns, _states(layout.waiting, self.loops)
        base, columns, state = self._known[loops.compiled]
        run_ = copy(base)
        run_.program, run_.busy = replace(base.program, arrivals=arrivals), busy[layout.links]
        done, kernel = run_.give(arrivals.copy()), loops.like(loop_kernel)
        run = _begun(columns, state.copy(), run_, done)
        ended, latest = kernel.loops(run)
        if ended < len(self):
            return None
        if latest >= NEVER:
            raise too_late("the run takes")
        place = np.argsort(layout.links)
        first, last, free = (np.asarray(column, np.int64)[place] for column in (*run.heads, run.free.link))
        free = np.where(last > -NEVER, free, -NEVER)
        return CallEnds(np.array(run.done[: self.one.schedule.n], np.int64), first, last, free, int(latest))

    @property
    def _shared(self) -> tuple[object, ...]:
        """The columns that programs share of which the loops of whole pieces are alike."""
        one = self.one
        return one.schedule, one.way, one.channel, one.side, one.reads, one.chain, one.routes.links

    @cached_property
    def _like(self) -> Hashable:
        """The same for such programs, as long as there are the columns."""
        one = self.one
        numbers = hashlib.sha256(one.bandwidths.tobytes() + one.latencies.tobytes()).digest()
        return *map(id, self._shared), one.params, self.piece, self.slots, numbers

    def totals(self, compiled: bool | None = None) -> Totals | None:
        """The sums of a run of all loops; None if they could not finish. Raises like `ends`."""
        one = self.one
        found = self.ends(one.arrivals, np.zeros(len(one.bandwidths), np.int64), compiled)
        if found is None:
            return None
        sums = one.totals(found.over, "none")
        return replace(sums, messages=sums.messages * self.loops)

    @cached_property
    def _known(self) -> dict[bool, tuple[KernelRun, LoopRun, Array]]:
        """The columns for the kernel, compiled or not, that are the same in all runs, and the state at their begin."""
        return {}

    def _numbered(self, layout: LoopLayout, run_: KernelRun) -> LoopRun:
        """The columns for the kernel; those that it writes are empty."""
        shared, one, give = layout.run, self.one, run_.give
        whole = one.sizes // self.piece
        cap, gamma = run_.program.by_kind("channel_bandwidth"), run_.program.by_kind("gamma")
        deep = min(self.loops, self.slots or self.loops)
        begin = np.asarray(shared.streams.begin)[:-1]
        of_streams = np.minimum.reduceat(whole[one.kind[layout.rows]], begin) if len(begin) else NO_TIMES
        return shared._replace(
            loops=self.loops,
            keys=shared.keys._replace(loop_bits=max(1, (self.loops - 1).bit_length())),
            parts=shared.parts._replace(
                whole=int(whole[one.kind].min(initial=self.loops)),
                room=give(np.append(0, np.cumsum(layout.most * deep + 1))),
            ),
            streams=shared.streams._replace(whole=give(of_streams)),
            pieces=shared.pieces._replace(
                kind=give(one.kind), whole=give(whole), piece=len(one.sizes), nothing=len(one.sizes) - 1
            ),
            costs=shared.costs._replace(
                cap=give(run_.ways.at_rates(cap) if cap.any() else NO_TIMES),
                gamma=give(run_.ways.at_rates(gamma) if gamma.any() else NO_TIMES),
            ),
            net=run_.net(),
        )


def _begun(columns: LoopRun, state: Array, run_: KernelRun, done: Array) -> LoopRun:
    """The columns with new ones for a run to write, and those that follow from when ranks come."""
    room, arrivals = run_.loops.room, run_.program.arrivals
    streams, entries, many = columns.streams, int(columns.parts.room[-1]), len(columns.parts.room) - 1
    count, waiting_streams = len(streams.link), np.diff(np.asarray(streams.of_part)) > 0
    here = arrivals if arrivals.any() else NO_TIMES
    streams = streams._replace(
        at=run_.give(np.asarray(streams.begin, np.int32)[:-1].copy()),
        loop=run_.fill(count, 0),
        ready=run_.zeros(count),
        awaits=run_.zeros(count),
        head=run_.zeros(count),
        ends=run_.zeros(count * streams.slots),
        turn=run_.fill(count, 0),
        soonest=run_.give(np.where(waiting_streams, 0, NEVER)),
    )
    return columns._replace(
        costs=columns.costs._replace(here=run_.give(here)),
        parts=columns.parts._replace(
            size=run_.zeros(many), clock=run_.zeros(len(columns.parts.classes) - 1), begun=run_.fill(1, -1)
        ),
        streams=streams,
        free=Servers(run_.freed(), run_.zeros(run_.sides)),
        state=columns.state._replace(when=run_.zeros(len(state)), state=run_.give(state)),
        heads=run_.noted(),
        done=done,
        heap=Heap(room(entries, np.int64), room(entries, np.int64), run_.zeros(0)),
        todo=Todo(*(room(len(columns.pieces.kind) + 2, np.int64) for _ in Todo._fields)),
    )


def _states(waiting: FirstWaits, loops: int) -> Array:
    """The state of none, which is never complete, then that of all loops."""
    pending, begins, late = waiting
    column = np.full(1 + loops * len(pending), COMPLETE - 1, np.int8)
    state = column[1:].reshape(loops, len(pending))
    settled = max(1, int(late[late != NOBODY].max(initial=1)))  # loops from this on are alike
    for loop in range(min(loops, settled + 1)):
        waits_for = pending + (begins & (loop > 0)) + (late <= loop)
        state[loop] = np.where(waits_for > 0, COMPLETE - waits_for, 0)
    state[settled + 1 :] = state[min(loops - 1, settled)]
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
    loops = -(-int(one.nbytes.max(initial=0)) // piece)
    if (-(-one.nbytes // piece) < loops).any():  # some are not sent in every loop
        return None
    step = steps(schedule)
    bits = (len(one) - 1).bit_length() + 2 * (int(step.max(initial=0)) + loops).bit_length()
    by_loop = bool((step == step[first_of(one.channel)]).all()) if len(one) else False
    return LoopedProgram(one, loops, piece, params.slots) if loops > 1 and by_loop and bits <= MOST_BITS else None
