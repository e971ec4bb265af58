"""The fast engine: the rules of `event` without a Python object per event. Same integers, tested by `==`.

Two ways: `replay` takes transfers in index order as long as that is the order of time, which it checks as it runs;
otherwise a heap of (time, index) does. Both are loops of `kernels.fast_kernel`, run as they are for small programs and
compiled by numba, where that is installed, for large ones.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np

from simcoll.config.arrays import Array
from simcoll.config.numba_loader import Loops, choose
from simcoll.engine.kernels import fast_kernel
from simcoll.engine.kernels.link_tables import LinkTables
from simcoll.engine.link_changes import LinkChanges
from simcoll.engine.program import Program, blocking_predecessors
from simcoll.engine.tasks import Tasks, grouped
from simcoll.engine.timeline import Timeline, Totals
from simcoll.engine.timing_model import NEVER, NONE, too_late

Keep = Literal["hops", "times", "nothing"]
# Columns of zeros, or that nobody asked for, of the types for which the kernel is compiled.
NO_TIMES: Final[Array] = np.zeros(0, np.int64)
NO_INDICES: Final[Array] = np.zeros(0, np.int32)
NO_TASKS: Final = Tasks(NO_INDICES, NO_INDICES, NO_TIMES, np.zeros(1, np.int32), NO_INDICES, NO_INDICES)


class FastResult(NamedTuple):
    """What a run of the fast engine says of itself."""

    timeline: Timeline | None  # None if it could not finish
    shortcut: str  # "replay" or "none"
    compiled: bool


class _KernelResult(NamedTuple):
    """How a run of the kernel went: the latest time of all, the columns of a timeline, which may be empty."""

    ended: int
    latest: int
    columns: tuple[Any, ...]


def run(program: Program, shortcuts: bool = True, compiled: bool | None = None, hops: bool = True) -> FastResult:
    """Replay a program if `shortcuts` are allowed and its order permits, else run it event by event.

    `compiled` forces or forbids numba; by default it is used where it is installed and pays. Without `hops` the
    timeline has no intervals of links, which take the most room.
    """
    loops = Loops(fast_kernel, choose(len(program), compiled))
    outcome, shortcut = _play(program, loops, shortcuts, "hops" if hops else "times")
    timeline = outcome and Timeline(*(np.asarray(column, np.int64) for column in outcome.columns))
    return FastResult(timeline, shortcut, loops.compiled)


def totals(program: Program, shortcuts: bool = True, compiled: bool | None = None) -> Totals | None:
    """The same for large programs: what a run adds up to, without when each thing happened, which would take most of
    the memory. None if it could not finish."""
    outcome, shortcut = _play(program, Loops(fast_kernel, choose(len(program), compiled)), shortcuts, "nothing")
    if outcome and program.changes:
        program = program.as_it_went(np.asarray(outcome.columns[-1]))
    return outcome and program.totals(outcome.latest, shortcut)


def _play(program: Program, loops: Loops, shortcuts: bool, keep: Keep) -> tuple[_KernelResult | None, str]:
    """The outcome, None if not all came to an end, and the shortcut taken. Raises InputError beyond the clock."""
    run_ = _KernelRun(program, loops, keep)
    ways = {"none": run_.fair if program.params.sharing == "fair" else run_.fifo}
    if (
        shortcuts
        and not program.tasks
        and not program.changes
        and program.params.blocking == "no"
        and program.bandwidths[program.routes.links].all()
    ):
        ways = {"replay": run_.replay, **ways}
    for shortcut, way in ways.items():
        outcome = way()
        if outcome.ended == len(program):
            if outcome.latest >= NEVER:
                raise too_late("the run takes")
            return outcome, shortcut
    return None, "none"


class _KernelRun:
    """A program laid out for the kernel: arrays if it is compiled, lists (quicker to index in Python) if not."""

    def __init__(self, program: Program, loops: Loops, keep: Keep):
        self.program, self.params, self.loops, self.keep = program, program.params, loops, keep
        self.count = len(program)
        self.give, self.fill = loops.give, loops.fill
        self.ways = LinkTables(program)
        self.opened, self.done = self.zeros(0, 0)  # of tasks
        self.taken: Any = self.give(program.way.copy()) if program.changes else program.way  # the way of each transfer

    # --- what the kernel is given ---

    def gives(self, *columns: Array) -> tuple[Any, ...]:
        return tuple(map(self.give, columns))

    def zeros(self, *lengths: int) -> tuple[Any, ...]:
        return tuple(self.fill(length, 0, np.int64) for length in lengths)

    def plan(self) -> tuple[Any, ...]:
        """Way, size and receive side of each transfer."""
        return self.gives(self.program.way, self.program.kind, self.program.side)

    def costs(self) -> tuple[Any, ...]:
        """The gap, by route; service times at the channel's cap, by size; those at the receive side, and before which
        time no version can be complete, by transfer. None where all are 0."""
        gap, cap = self.program.by_way("g"), self.program.by_kind("channel_bandwidth")
        caps = self.ways.at_rates(cap) if cap.any() else NO_TIMES
        gaps = np.ascontiguousarray(gap) if gap.any() else NO_TIMES
        return self.gives(gaps, caps, self.receive(), self.came())

    def receive(self) -> Array:
        program = self.program
        o_recv, gamma = program.by_way("o_recv"), program.by_kind("gamma")
        if not o_recv.any() and not gamma.any():
            return NO_TIMES
        costs: Array = np.where(program.routes.src == program.routes.dst, 0, o_recv)[program.way]
        return costs + self.ways.at_rates(gamma)[program.kind] * program.reduce if gamma.any() else costs

    def came(self) -> Array:
        """What was there from the start came with its rank; only a reduction into it waits for that."""
        program = self.program
        if not program.arrivals.any():
            return NO_TIMES
        return np.where(program.reduce & (program.chain == NONE), program.arrivals[program.dst], 0)

    def here(self) -> Any:
        """When the sender of each transfer comes."""
        arrivals, routes = self.program.arrivals, self.program.routes
        return self.give(arrivals[routes.src][self.program.way] if arrivals.any() else NO_TIMES)

    def routes(self) -> tuple[Any, ...]:
        return self.gives(*self.program.routes[2:])

    def lead(self) -> Any:
        """From start to ready, by route."""
        (src, dst, *_), o_send = self.program.routes, self.program.by_way("o_send")
        return self.give(np.where(src == dst, 0, o_send) if o_send.any() else NO_TIMES)

    def net(self) -> tuple[Any, ...]:
        """Rate and latency of each link; service times by size and rate, how many rates."""
        ways = self.ways
        return *self.gives(ways.rate_of, self.program.latencies, ways.service), len(ways.rates)

    def out(self, *needed: str) -> tuple[Any, ...]:
        """The columns of the timeline, to be filled: all of them where they are kept, else those that are `needed`."""
        names = ("start", "sent", "arrive", "end", "complete")
        kept = (self.keep != "nothing" or name in needed for name in names)
        return tuple(self.fill(self.count if keep else 0, NONE, np.int64) for keep in kept)

    def hops(self) -> tuple[Any, ...]:
        """The interval of each hop, to be filled, and where those of each transfer begin."""
        if self.keep != "hops":
            return self.gives(NO_TIMES, NO_TIMES, NO_TIMES)
        first = self.program.hops.first
        if self.program.changes:  # room for any way
            first = np.arange(self.count + 1) * np.diff(self.program.routes.hop).max(initial=0)
        return *self.zeros(int(first[-1]), int(first[-1])), self.give(first)

    def graph(self) -> tuple[Any, Any, Any]:
        """Who waits for whom, turned round: from each transfer to those that wait for it; the next one of each
        channel; how many things each transfer waits for."""
        program, count, slots = self.program, self.count, self.params.slots
        reads, chain, credit = self.gives(program.reads, program.chain, program.credit if slots else NO_INDICES)
        chain_after, first_reader, next_reader, after = (self.fill(count, NONE) for _ in range(4))
        credit_after, pending = self.fill(len(credit), NONE), self.fill(count, 0, np.int8)
        self.loops.run.turn_round(
            (reads, chain, credit, self.give(program.channel_before)),
            (first_reader, next_reader, chain_after, credit_after, after),
            pending,
        )
        turn = NO_INDICES
        if self.params.blocking != "no":
            before = np.asarray(blocking_predecessors(program), np.int32).reshape(count, 2)
            turn = _turns(before)
            for i, more in enumerate((before != NONE).sum(axis=1).tolist()):
                pending[i] += more
        if self.params.barrier:
            for i in np.flatnonzero(program.step > program.step[:1]).tolist():
                pending[i] += 1
        waits = (chain, chain_after, first_reader, next_reader, credit_after, self.give(turn), self.tasks(pending))
        return waits, after, pending

    def tasks(self, pending: Any) -> tuple[Any, ...]:
        """What the kernel knows of tasks (see there); the first transfer of each channel waits for its own."""
        program, tasks = self.program, self.program.tasks or NO_TASKS
        count, index = len(tasks), np.arange(self.count if len(tasks) else 0, dtype=np.int32)
        sender, receiver = (tasks.channel[program.channel], tasks.side[program.side]) if count else (index, index)
        first = np.where(program.channel_before == NONE, sender, NONE) if count else index
        added = np.where(program.reduce & (program.chain == NONE), receiver, NONE) if count else index
        begins = np.flatnonzero(first >= 0)
        if self.loops.compiled:
            pending[begins] += 1
        else:
            for i in begins.tolist():
                pending[i] += 1
        to_do = np.ones(count, np.int32)
        for of in (first, receiver):
            to_do += np.bincount(of[of >= 0], minlength=count).astype(np.int32)
        lists = (*tasks.behind(), *grouped(first, index, count), *grouped(added, index, count))
        self.opened, self.done = self.zeros(count, count)
        return (
            *self.gives(sender, receiver, added, np.diff(tasks.first)), self.opened,
            self.give(to_do), self.done, self.fill(count + 1, 0), self.give(tasks.duration),
            self.gives(*lists),
        )  # fmt: skip

    def start(self, pending: Any, out: tuple[Any, ...]) -> tuple[Any, Any]:
        """Where each transfer is; and what it takes to start one: a time (first when its rank has come) and how many
        things each waits for, its way and what the ways add, the times to be noted."""
        here = self.here()
        when = here if len(here) else self.fill(self.count, 0, np.int64)
        return self.fill(self.count, 0), (when, pending, self.give(self.program.way), self.lead(), out[0])

    def steps(self) -> tuple[Any, ...]:
        """For barriers: the step of each transfer, where each begins, how many are left; what has passed, and when."""
        columns: tuple[Array, ...] = (NO_INDICES, NO_INDICES, NO_INDICES)
        if self.params.barrier:
            _, step = np.unique(self.program.step, return_inverse=True)
            left = np.bincount(step)
            columns = (step, np.concatenate([[0], np.cumsum(left)]), left)
        return *self.gives(*(column.astype(np.int32) for column in columns)), *self.zeros(2)

    def heap(self, count: int, tracked: bool = False) -> tuple[Any, Any, Any]:
        room = self.loops.room
        return room(count + 1, np.int64), room(count + 1), self.fill(count if tracked else 0, NONE)

    def sides(self) -> int:
        return int(self.program.side.max(initial=-1)) + 1

    def turns(self, changes: LinkChanges) -> tuple[Any, ...]:
        """When each turn is, the way in force since then, how many ways there are, and the way that each transfer
        takes."""
        return *self.gives(changes.turns, changes.force.ravel()), changes.force.shape[1], self.taken

    def went(self, hops: tuple[Any, ...]) -> tuple[Any, ...]:
        """The intervals of hops as the ways lie end to end that transfers took."""
        if self.keep != "hops" or not self.program.changes:
            return hops
        way = np.asarray(self.taken, np.int64)
        count = np.diff(self.program.routes.hop)[way]
        place = np.repeat(np.asarray(hops[2])[:-1], count) + np.arange(count.sum())
        place -= np.repeat(np.cumsum(count) - count, count)
        return tuple(np.asarray(column)[place] for column in hops[:2])

    # --- the three ways ---

    def replay(self) -> _KernelResult:
        program, params, ways = self.program, self.params, self.ways
        fair = params.sharing == "fair"
        out = self.out("sent", "complete", "start" if params.g else "", "end" if params.slots else "")
        hops, links, sides = self.hops(), len(program.bandwidths), self.sides()
        credit, step = program.credit if params.slots else NO_INDICES, program.step if params.barrier else NO_INDICES
        ended, latest = self.loops.run.replay(
            self.plan(), self.costs(), self.routes(), self.lead(), self.here(), self.net(),
            self.gives(ways.slowest(), ways.away()) if fair else self.gives(NO_INDICES, NO_TIMES),
            self.gives(program.reads, program.chain, credit, program.channel_before, step),
            self.zeros(links, sides), self.zeros(links, sides), out, hops,
        )  # fmt: skip
        return _KernelResult(ended, latest, (*out, *hops[:2]))

    def fifo(self) -> _KernelResult:
        out, hops, (graph, after, pending) = self.out(), self.hops(), self.graph()
        state, go = self.start(pending, out)
        ended, latest = self.loops.run.fifo(
            (*self.plan(), after), self.costs(), self.routes(), self.give(self.ways.follows()), self.net(),
            graph, self.steps(), go, state, self.zeros(len(self.program.bandwidths), self.sides()), out, hops,
            self.heap(self.count), self.by_link(self.program.changes) if self.program.changes else None,
        )  # fmt: skip
        return self.outcome(ended, latest, (*out, *self.went(hops)[:2]))

    def in_time(self, changes: LinkChanges) -> tuple[Any, ...]:
        """Rows in order of time, turns, the bandwidth of each rate, and the rate of each link, which will change."""
        ways = self.ways
        rows = (changes.link.astype(np.int32), changes.at, ways.later, changes.turn.astype(np.int32))
        return self.gives(*rows), self.turns(changes), *self.gives(ways.rates.astype(np.float64), ways.rate_of.copy())

    def by_link(self, changes: LinkChanges) -> tuple[Any, ...]:
        """Rows by link, turns, the bandwidth of each rate, the bytes of each size, and which transfers were sent."""
        rates, sizes = (column.astype(np.float64) for column in (self.ways.rates, self.program.sizes))
        told = self.fill(self.count, 0)
        return self.gives(*self.ways.rows_of(changes)), self.turns(changes), *self.gives(rates, sizes), told

    def fair(self) -> _KernelResult:
        program, give, fill, ways = self.program, self.give, self.fill, self.ways
        out, (graph, after, pending), service = self.out(), self.graph(), self.net()[2:]
        state, go = self.start(pending, out)
        ready = fill(self.count if self.keep == "hops" else 0, NONE, np.int64)
        capacity, caps = program.bandwidths.astype(np.float64), self.caps()
        hop, shared = ways.shared()
        flows, links, width = int(program.channel.max(initial=-1)) + 1, len(capacity), int(np.diff(hop).max(initial=0))

        def each(count: int, *values: float) -> tuple[Any, ...]:
            return tuple(fill(count, value, type(value)) for value in values)

        owner = give(np.repeat(np.arange(flows, dtype=np.int32), width))
        paths = (fill(flows * width, 0), fill(flows, 0), width, owner)
        rows = (fill(links, NONE), fill(flows * width, NONE), fill(flows * width, NONE), fill(links, 0))
        found = (fill(links, 0), fill(flows, 0), *each(links, 0), *each(flows, 0))
        levels = (give(np.append(capacity, caps)), *each(links, 0.0, 0.0, 0.0))
        bound = float(min([*capacity.tolist(), *caps.tolist(), *ways.rates[ways.later].tolist()]))  # one type
        flow = (*each(flows, NONE, 0, 0.0, 0, -1.0, 1, 0.0, 0, NEVER, 0.0), fill(flows, NONE))
        ended, latest = self.loops.run.fair(
            (*self.plan(), after, give(program.channel), give(program.sizes.astype(np.float64))),
            self.costs(), self.gives(hop, shared),
            (*self.gives(ways.slowest(), ways.most(), ways.away(), ways.narrowest()), links if len(caps) else NONE),
            service,
            graph, self.steps(), go, state, self.zeros(self.sides())[0], out, ready,
            paths, rows, found, levels, bound, flow, (*each(links, 0), fill(links, 0)),
            self.heap(self.count), self.heap(flows, tracked=True),
            self.in_time(program.changes) if program.changes else None,
        )  # fmt: skip
        if self.keep != "hops":
            return self.outcome(ended, latest, (*out, NO_TIMES, NO_TIMES))
        lengths = np.diff(program.routes.hop)[np.asarray(self.taken, np.int64)]
        begin, gone = (np.repeat(np.asarray(column, np.int64), lengths) for column in (ready, out[1]))
        return self.outcome(ended, latest, (*out, begin, gone))

    def caps(self) -> Array:
        """The cap of each channel in B/s, infinite where it has none; empty if none has."""
        program, cap = self.program, self.program.by_way("channel_bandwidth")
        if not cap.any():
            return np.zeros(0)
        caps = np.full(int(program.channel.max(initial=-1)) + 1, np.inf)
        found = cap[program.way]
        caps[program.channel[found > 0]] = found[found > 0]
        return caps

    def outcome(self, ended: int, latest: int, columns: tuple[Any, ...]) -> _KernelResult:
        """With the times of tasks."""
        last = np.max(np.asarray(self.done, np.int64), initial=latest)
        way = self.taken if self.program.changes else NO_TIMES
        return _KernelResult(ended, int(last), (*columns, self.opened, self.done, way))


def _turns(before: Array) -> Array:
    """With blocking sends a transfer is awaited by at most two: the next of its sender and of its receiver, or NONE."""
    turns = np.full(2 * len(before), NONE, np.int32)
    for i, pair in enumerate(before.tolist()):
        for j in pair:
            if j != NONE:
                turns[2 * j if turns[2 * j] == NONE else 2 * j + 1] = i
    return turns
