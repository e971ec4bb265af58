"""Lay out a program as columns for the kernels of the fast engine, and run it under `fifo` or `fair` sharing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from simcoll.config.numba_loader import Loops
from simcoll.config.numpy_helpers import Array
from simcoll.engine._dependencies import looped_credits
from simcoll.engine.compiled import fair_loop, fifo_loop, waits
from simcoll.engine.compiled.heap import Heap
from simcoll.engine.compiled.link_tables import LinkTables
from simcoll.engine.link_changes import LinkChanges
from simcoll.engine.looped import LoopedProgram
from simcoll.engine.program import Program, Tasks, blocking_predecessors, grouped
from simcoll.engine.timing_model import NEVER, NONE

T = TypeVar("T")
KeptTimes = Literal["hops", "times", "ends", "nothing"]
# Empty columns, of the types that the kernel is compiled for: they stand for zeros, or for results that are not needed.
NO_TIMES: Final[Array] = np.zeros(0, np.int64)
NO_INDICES: Final[Array] = np.zeros(0, np.int32)
MOST_BITS: Final = 62  # bits of a heap key
MOST_KEPT: Final = 100_000  # transfers; columns of larger programs are laid out for each run, to save memory
NO_TASKS: Final = Tasks(NO_INDICES, NO_INDICES, NO_TIMES, np.zeros(1, np.int32), NO_INDICES, NO_INDICES)


class CompiledResult(NamedTuple):
    """The result of a kernel: how many transfers ended, the latest time in ps, and the columns of a `Timeline`, which
    may be empty."""

    ended: int
    latest: int
    columns: tuple[Any, ...]


class CompiledRun:
    """A program laid out for the kernels: as arrays if numba compiles them, else as lists, which Python indexes faster.
    A `LoopedProgram` is laid out as a single loop."""

    def __init__(
        self,
        asked: Program | LoopedProgram,
        loops: Loops,
        keep: KeptTimes,
        busy: Array | None = None,
        until: int = NEVER,
    ):
        self.repeated = asked if isinstance(asked, LoopedProgram) else None
        self.program = program = asked.one if isinstance(asked, LoopedProgram) else asked
        self.busy = np.zeros(program.servers, np.int64) if busy is None else busy
        self.params, self.loops, self.keep, self.until = program.params, loops, keep, until
        self.count, self.links = len(program), len(program.bandwidths)
        self.sides = int(program.side.max(initial=-1)) + 1
        self.give, self.fill = loops.give, loops.fill
        self.sized = self.once("sized", lambda: self.repeated.sized if self.repeated else program)
        self.ways = self.once("link tables", lambda: LinkTables(self.sized))
        self.opened, self.done = self.zeros(0), self.zeros(0)  # of tasks
        self.ends = self.give(program.arrivals.copy() if keep == "ends" else NO_TIMES)  # of participants
        self.taken: Any = self.give(program.way.copy()) if program.changes else program.way  # the way of each transfer

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return `make()`, which must not depend on arrivals. It is cached for further runs of the program, e.g. with
        other arrivals."""
        program, repeated = self.program, self.repeated
        if self.count > MOST_KEPT:
            return make()
        of = program.params, program.way, program.routes, program.kind, program.sizes, program.credit, program.changes
        loops = (repeated.loops, repeated.piece, repeated.slots) if repeated else ()
        return program.once(name, (*of, program.bandwidths, program.latencies, *loops, self.loops.compiled), make)

    # --- the two kinds of sharing ---

    def fifo(self) -> CompiledResult:
        """Run under `fifo` sharing, event by event; return the result."""
        progress, hops, changes = self.progress(), self.hops(), self.program.changes
        links = self.links if self.keep == "ends" else 0
        self.free = self.give(self.busy.copy())
        self.heads = self.fill(links, NEVER, np.int64), self.fill(links, -NEVER, np.int64)
        run = fifo_loop.FifoRun(
            progress=progress,
            layout=self.once("layout", self.layout),
            follows=self.once("follows", lambda: self.give(self.ways.follows())),
            servers=self.program.servers,
            free_link=self.free,
            free_side=self.zeros(self.sides),
            hop_begin=hops[0],
            hop_end=hops[1],
            first_hop=hops[2],
            first_head=self.heads[0],
            last_head=self.heads[1],
        )
        ended, latest = self.loops.like(fifo_loop).fifo(run, self.by_link(changes) if changes else None)
        return self.outcome(ended, latest, (*progress.times, *self.went(*hops)))

    def fair(self) -> CompiledResult:
        """Run under `fair` sharing, event by event; return the result."""
        program, ways, caps = self.program, self.ways, self.caps()
        progress = self.progress()
        ready = self.fill(self.count if self.keep == "hops" else 0, NONE, np.int64)
        run = fair_loop.FairRun(
            progress=progress,
            layout=self.once("layout", self.layout),
            channel=self.give(program.channel),
            sizes=self.give(program.sizes.astype(np.float64)),
            away=self.give(ways.away()),
            caps=self.links if len(caps) else NONE,
            free_side=self.zeros(self.sides),
            ready=ready,
            fabric=self.fabric(caps),
        )
        changes = self.in_time(program.changes) if program.changes else None
        ended, latest = self.loops.like(fair_loop).fair(run, changes)
        if self.keep != "hops":
            return self.outcome(ended, latest, (*progress.times, NO_TIMES, NO_TIMES))
        lengths = np.diff(program.routes.hop)[np.asarray(self.taken, np.int64)]
        begin, gone = (np.repeat(np.asarray(column, np.int64), lengths) for column in (ready, progress.times.sent))
        return self.outcome(ended, latest, (*progress.times, begin, gone))

    def outcome(self, ended: int, latest: int, columns: tuple[Any, ...]) -> CompiledResult:
        """Return the kernel's results as a `CompiledResult`, with the times at which tasks opened and ended."""
        last = max(latest, max(self.done, default=0))
        way = self.taken if self.program.changes else NO_TIMES
        return CompiledResult(ended, int(last), (*columns, self.opened, self.done, way))

    # --- records of both kinds ---

    def gives(self, *columns: Array) -> Iterator[Any]:
        """Convert each column into the form that the kernel takes: an array if numba compiled it, else a list."""
        return map(self.give, columns)

    def zeros(self, length: int) -> Any:
        """Return a column of `length` zeros for times in ps, int64."""
        return self.fill(length, 0, np.int64)

    def layout(self) -> waits.Layout:
        """Return the `Layout` that a kernel reads: sizes, parameters and routes."""
        program, sized, ways, whole, piece = self.program, self.sized, self.ways, NO_TIMES, 0
        if self.repeated:
            whole, piece = program.sizes // self.repeated.piece, len(program.sizes)
        rates = (sized.by_kind(name) for name in ("channel_bandwidth", "gamma"))
        cap, gamma = (ways.at_rates(rate) if rate.any() else NO_TIMES for rate in rates)
        gap, o_recv = program.by_way("g"), program.by_way("o_recv")
        o_recv = np.where(program.routes.src == program.routes.dst, 0, o_recv)
        return waits.Layout(
            way=self.give(program.way),
            kind=self.give(program.kind),
            side=self.give(program.side),
            reduce=self.give(program.reduce),
            whole=self.give(whole),
            piece=piece,
            gap=self.give(gap if gap.any() else NO_TIMES),
            cap=self.give(cap),
            o_recv=self.give(o_recv if o_recv.any() else NO_TIMES),
            gamma=self.give(gamma),
            hop=self.give(program.routes.hop),
            links=self.give(program.routes.links),
            rate_of=self.give(ways.rate_of),
            latency=self.give(program.latencies),
            service=self.give(ways.service),
            rates=len(ways.rates),
        )

    def receiver_arrivals(self) -> Array:
        """Return for each transfer the time in ps at which its receiver arrives, if the transfer reduces into the
        receiver's input, else 0. The column is empty if all ranks arrive at 0."""
        program = self.program
        if not program.arrivals.any():
            return NO_TIMES
        adding = np.flatnonzero(program.adds)
        came = np.zeros(len(program) if len(adding) else 0, np.int64)
        came[adding] = program.arrivals[program.routes.dst[program.way[adding]]]
        return came

    def here(self) -> Any:
        """Return for each transfer the time in ps at which its sender arrives; empty if all ranks arrive at 0."""
        arrivals, routes = self.program.arrivals, self.program.routes
        loops = self.repeated.loops if self.repeated else 1
        return self.give(np.tile(arrivals[routes.src][self.program.way], loops) if arrivals.any() else NO_TIMES)

    def lead(self) -> Any:
        """Return for each route the time in ps from a transfer's start until its head reaches the first link; empty if
        all are 0."""
        (src, dst, *_), o_send = self.program.routes, self.program.by_way("o_send")
        return self.give(np.where(src == dst, 0, o_send) if o_send.any() else NO_TIMES)

    def times(self) -> waits.KernelTimes:
        """Return new columns for the times of transfers, for the kernel to fill; empty if not needed."""
        room = self.count if self.keep in ("hops", "times") else 0
        return waits.KernelTimes(*(self.loops.room(room, np.int64) for _ in waits.KernelTimes._fields))

    def hops(self) -> tuple[Any, Any, Any]:
        """Return new columns `hop_begin`, `hop_end` and `first_hop` of a `FifoRun`; empty if not needed."""
        if self.keep != "hops":
            return self.give(NO_TIMES), self.give(NO_TIMES), self.give(NO_TIMES)
        first = self.program.hops.first
        if self.program.changes:  # room for the longest route
            first = np.arange(self.count + 1) * np.diff(self.program.routes.hop).max(initial=0)
        return self.zeros(int(first[-1])), self.zeros(int(first[-1])), self.give(first)

    def went(self, begin: Any, end: Any, first: Any) -> tuple[Any, Any]:
        """Return the times in ps at which each link of each transfer's final route began and ended to serve it."""
        if self.keep != "hops" or not self.program.changes:
            return begin, end
        way = np.asarray(self.taken, np.int64)
        count = np.diff(self.program.routes.hop)[way]
        place = np.repeat(np.asarray(first)[:-1], count) + np.arange(count.sum())
        place -= np.repeat(np.cumsum(count) - count, count)
        return np.asarray(begin)[place], np.asarray(end)[place]

    def heap(self, room: int, tracked: int = 0) -> Heap:
        """Return an empty heap for up to `room` entries. It records where it stores each key below `tracked`."""
        times, items = (self.loops.room(room + 1, np.int64) for _ in range(2))
        return Heap(times, items, self.fill(tracked, NONE), self.zeros(1), self.fill(1, 0))

    # --- records of runs with a heap ---

    def progress(self) -> waits.Progress:
        """Return the `Progress` of a run before its first event."""
        program, many = self.program, self.count * (self.repeated.loops if self.repeated else 1)
        successors, waiting = self.once("successors", self.successors)
        pending = waiting.copy()
        tasks, here, times = self.tasks(pending), self.here(), self.times()
        when = here if len(here) else self.zeros(many)
        repeated = self.repeated
        starts = waits.Starts(
            loops=repeated.loops if repeated else 1,
            rows=self.count,
            row_bits=repeated.row_bits if repeated else MOST_BITS,
            loop_bits=repeated.loop_bits if repeated else 0,
            step=self.once("steps", lambda: self.give(repeated.steps if repeated else NO_INDICES)),
            first=self.once("firsts", lambda: self.give(repeated.first if repeated else NO_INDICES)),
            when=when,
            pending=pending,
            way=self.give(program.way),
            lead=self.once("lead", self.lead),
            start=times.start,
            heap=self.heap(many),
        )
        return waits.Progress(
            starts=starts,
            state=self.fill(many, 0, np.int16),
            came=self.give(self.receiver_arrivals()),
            times=times,
            done=self.ends,
            src=self.give(program.routes.src),
            dst=self.give(program.routes.dst),
            successors=successors._replace(settled=self.fill(self.count, NONE)),
            tasks=tasks,
            barriers=self.barriers(),
            until=self.until,
        )

    def successors(self) -> tuple[waits.Successors, Any]:
        """Return for each row the rows that wait for it, and the number of conditions that it waits for."""
        program, count, slots = self.program, self.count, self.params.slots
        credit = program.credit if slots and not self.repeated else NO_INDICES
        first_read, reads, first_chain, chain = self.gives(*program.reads, *program.chain)
        first_reader, first_chained = self.fill(count + 1, 0), self.fill(count + 1, 0)
        readers, chained = self.fill(len(reads), 0), self.fill(len(chain), 0)
        self.loops.run.invert(first_read, reads, first_reader, readers)
        self.loops.run.invert(first_chain, chain, first_chained, chained)
        credit_after, channel_after = self.fill(len(credit), NONE), self.fill(count, NONE)
        pending, columns = self.fill(count, 0), self.gives(credit, program.channel_before)
        self.loops.run.invert_waits(first_read, *columns, (credit_after, channel_after), pending)
        turn, later = NO_INDICES, NO_INDICES
        if self.repeated:
            pending, credit, later = self.repeated_waits(np.asarray(pending, np.int32))
            pending, credit_after = self.give(pending), self.give(credit)
        if self.params.blocking != "no":
            before = np.asarray(blocking_predecessors(program), np.int32).reshape(count, 2)
            turn = _turns(before)
            for i, more in enumerate((before != NONE).sum(axis=1).tolist()):
                pending[i] += more
        if self.params.barrier:
            for i in np.flatnonzero(program.step > program.step[:1]).tolist():
                pending[i] += 1
        lists = (first_chain, chain, first_chained, chained, first_reader, readers, NO_INDICES)
        return waits.Successors(*lists, credit_after, self.give(later), channel_after, self.give(turn)), pending

    def repeated_waits(self, pending: Array) -> tuple[Array, Array, Array]:
        """Return three columns for a program in loops: the number of conditions that each transfer of each loop waits
        for; for each row the row that may start after its end (its credit); and how many loops later that row runs."""
        repeated, program = self.repeated, self.program
        assert repeated
        every = np.empty((repeated.loops, len(pending)), np.int32)
        every[:] = pending
        every[1:] += program.channel_before == NONE  # first rows wait for the last of their channel
        row, later = NO_INDICES, NO_INDICES
        if repeated.slots:
            many, place, row, later = looped_credits(program.connection, repeated.slots)
            first = -((place - repeated.slots) // many)  # first loop in which each waits
            for loop in range(repeated.loops):
                every[loop] += first <= loop
        return every.ravel(), row, later

    def tasks(self, pending: Any) -> waits.TaskColumns:
        """Return the columns of tasks. Add 1 to `pending` for each channel's first transfer, as it waits for a task."""
        program, tasks = self.program, self.program.tasks or NO_TASKS
        columns = program.schedule, program.channel, program.side, program.channel_before, program.adds
        known = *columns, tasks.channel, tasks.side, tasks.first
        first, to_do, ends, lists = program.once("tasks", known, lambda: _task_columns(program))
        for i in first.tolist():
            pending[i] += 1
        count = len(tasks)
        self.opened, self.done = self.zeros(count), self.zeros(count)
        state = (self.opened, self.give(to_do.copy()), self.done, self.fill(count + 1, 0), self.give(tasks.duration))
        return waits.TaskColumns._make(
            [*self.gives(*ends), self.give(np.diff(tasks.first)), *state, *self.gives(*tasks.behind(), *lists)]
        )

    def barriers(self) -> waits.Barriers:
        """Return the columns of the barriers between steps; empty if there are none."""
        columns: tuple[Array, ...] = (NO_INDICES, NO_INDICES, NO_INDICES)
        if self.params.barrier:
            _, step = np.unique(self.program.step, return_inverse=True)
            left = np.bincount(step)
            columns = (step, np.concatenate([[0], np.cumsum(left)]), left)
        return waits.Barriers._make([*self.gives(*(column.astype(np.int32) for column in columns)), self.zeros(2)])

    def fabric(self, caps: Array) -> fair_loop.FairFabric:
        """Return a fabric without flows. The bandwidth caps of channels (`caps`) become extra links."""
        fill, capacity = self.fill, np.append(self.program.bandwidths.astype(np.float64), caps)
        flows, links = int(self.program.channel.max(initial=-1)) + 1, len(capacity)
        width = int(np.diff(self.program.routes.hop).max(initial=0)) + bool(len(caps))
        return fair_loop.FairFabric(
            path=fill(flows * width, 0),
            length=fill(flows, 0),
            width=width,
            owner=self.give(np.repeat(np.arange(flows, dtype=np.int32), width)),
            head=fill(links, NONE),
            count=fill(links, 0),
            after=fill(flows * width, NONE),
            before=fill(flows * width, NONE),
            capacity=self.give(capacity),
            available=fill(links, 0.0, float),
            share=fill(links, 0.0, float),
            unfixed=fill(links, 0.0, float),
            on=fill(flows, NONE, int),
            began=fill(flows, 0, int),
            rest=fill(flows, 0.0, float),
            since=fill(flows, 0, int),
            rate=fill(flows, -1.0, float),
            whole=fill(flows, 1, int),
            most=fill(flows, 0.0, float),
            full=fill(flows, 0, int),
            due=fill(flows, NEVER, int),
            solved=fill(flows, 0.0, float),
            ends=self.heap(flows, tracked=flows),
            links=fill(links, 0),
            members=fill(flows, 0),
            link_mark=fill(links, 0, int),
            flow_mark=fill(flows, 0, int),
            marked=fill(links, 0, int),
            touched=fill(links, 0),
        )

    def caps(self) -> Array:
        """Return the bandwidth cap of each channel in B/s, infinite if it has none; empty if no channel has one."""
        program, cap = self.program, self.program.by_way("channel_bandwidth")
        if not cap.any():
            return np.zeros(0)
        caps = np.full(int(program.channel.max(initial=-1)) + 1, np.inf)
        by_transfer = cap[program.way]
        caps[program.channel[by_transfer > 0]] = by_transfer[by_transfer > 0]
        return caps

    # --- records of links that change ---

    def turns(self, changes: LinkChanges) -> waits.Turns:
        """Return the times at which routes change, and the route that replaces each route from then on."""
        at, way_after = self.gives(changes.turns, changes.way_after.ravel())
        return waits.Turns(at, way_after, changes.way_after.shape[1], self.taken, self.zeros(1))

    def in_time(self, changes: LinkChanges) -> fair_loop.ChangesInTime:
        """Return the changes of links in order of time."""
        ways = self.ways
        rows = (changes.link.astype(np.int32), changes.at, ways.later, changes.turn.astype(np.int32))
        columns = self.gives(*rows, ways.rates.astype(np.float64), ways.rate_of.copy())
        return fair_loop.ChangesInTime._make([*columns, self.turns(changes)])

    def by_link(self, changes: LinkChanges) -> fifo_loop.LinkHistory:
        """Return the changes of links, sorted by link."""
        rates, sizes = (column.astype(np.float64) for column in (self.ways.rates, self.program.sizes))
        columns = self.gives(*self.ways.rows_of(changes), rates, sizes)
        return fifo_loop.LinkHistory._make([*columns, self.fill(self.count, 0), self.turns(changes)])


def _task_columns(program: Program) -> tuple[Array, Array, tuple[Array, ...], tuple[Array, ...]]:
    """Return the columns of `TaskColumns` that depend on the program only: the transfers that begin a channel and so
    wait for a task; the number of conditions until each task is done; `sender`, `receiver` and `adds_to` of transfers;
    and the lists `begun` and `added` of tasks."""
    tasks, count = program.tasks or NO_TASKS, len(program.tasks or NO_TASKS)
    index = np.arange(len(program) if count else 0, dtype=np.int32)
    sender, receiver = (tasks.channel[program.channel], tasks.side[program.side]) if count else (index, index)
    first = np.where(program.channel_before == NONE, sender, NONE) if count else index
    added = np.where(program.adds, receiver, NONE) if count else index
    to_do = np.ones(count, np.int32)
    for of in (first, receiver):
        to_do += np.bincount(of[of >= 0], minlength=count).astype(np.int32)
    lists = *grouped(first, index, count), *grouped(added, index, count)
    return np.flatnonzero(first >= 0), to_do, (sender, receiver, added), lists


def _turns(before: Array) -> Array:
    """Return for each transfer the at most two transfers that wait for its end under blocking sends, or NONE, (2 ×
    transfers,). `before`, (transfers, 2): the transfers that each transfer waits for."""
    turns = np.full(2 * len(before), NONE, np.int32)
    for i, pair in enumerate(before.tolist()):
        for j in pair:
            if j != NONE:
                turns[2 * j if turns[2 * j] == NONE else 2 * j + 1] = i
    return turns
