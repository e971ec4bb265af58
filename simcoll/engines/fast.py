"""The fast engine: the rules of `event` without a Python object per event. Same integers, tested by `==`.

Two ways: `replay` takes transfers in index order as long as that is the order of time, which it checks as it runs;
otherwise a heap of (time, index) does. Both are loops of `simcoll.kernel`, run as they are for small programs and
compiled by numba, where that is installed, for large ones.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll import kernel
from simcoll.compiled import Loops
from simcoll.errors import InputError
from simcoll.model import NEVER, NONE, service_ps, too_late
from simcoll.program import Program, blocking_predecessors
from simcoll.timeline import Timeline, Totals

MOST_PLAIN: Final = 4_000_000  # transfers: as lists, more than these take gigabytes and many minutes

Array = NDArray[Any]
Keep = Literal["hops", "times", "nothing"]
NOTHING: Final[Array] = np.zeros(0, np.int64)  # a column of zeros, or one that nobody asked for, for the kernel


class Done(NamedTuple):
    """What a run of the fast engine says of itself."""

    timeline: Timeline | None  # None if it could not finish
    shortcut: str  # "replay" or "none"
    compiled: bool


class _Outcome(NamedTuple):
    """How a run of the kernel went: the latest time of all, the columns of a timeline, which may be empty."""

    ended: int
    latest: int
    columns: tuple[Any, ...]


def run(program: Program, shortcuts: bool = True, compiled: bool | None = None, hops: bool = True) -> Done:
    """Replay a program if `shortcuts` are allowed and its order permits, else run it event by event.

    `compiled` forces or forbids numba; by default it is used where it is installed and pays. Without `hops` the
    timeline has no intervals of links, which take the most room.
    """
    loops = _loops(program, compiled)
    outcome, shortcut = _play(program, loops, shortcuts, "hops" if hops else "times")
    timeline = outcome and Timeline(*(np.asarray(column, np.int64) for column in outcome.columns))
    return Done(timeline, shortcut, loops.compiled)


def totals(program: Program, shortcuts: bool = True, compiled: bool | None = None) -> Totals | None:
    """The same for large programs: what a run adds up to, without when each thing happened, which would take most of
    the memory. None if it could not finish."""
    outcome, shortcut = _play(program, _loops(program, compiled), shortcuts, "nothing")
    return outcome and Totals(
        makespan_ps=outcome.latest,
        carried=program.carried,
        bytes_per_rank=program.bytes_per_rank,
        messages=program.schedule.messages * program.loops,
        wire_bytes=program.wire_bytes,
        shortcut=shortcut,
    )


def _loops(program: Program, compiled: bool | None) -> Loops:
    loops = Loops(kernel, len(program), compiled)
    if not loops.compiled and len(program) > MOST_PLAIN:
        what = f"{len(program)} transfers are too many to run uncompiled"
        raise InputError(what, 'install the extra fast (pip install "simcoll[fast]"), or ask for fewer ranks')
    return loops


def _play(program: Program, loops: Loops, shortcuts: bool, keep: Keep) -> tuple[_Outcome | None, str]:
    """The outcome, None if not all came to an end, and the shortcut taken. Raises InputError beyond the clock."""
    run_ = _Run(program, loops, keep)
    ways = {"none": run_.fair if program.params.sharing == "fair" else run_.fifo}
    if shortcuts and program.params.blocking == "no" and program.bandwidths[program.routes.links].all():
        ways = {"replay": run_.replay, **ways}
    for shortcut, way in ways.items():
        outcome = way()
        if outcome.ended == len(program):
            if outcome.latest >= NEVER:
                raise too_late("the run takes")
            return outcome, shortcut
    return None, "none"


class _Run:
    """A program laid out for the kernel: arrays if it is compiled, lists (quicker to index in Python) if not."""

    def __init__(self, program: Program, loops: Loops, keep: Keep):
        self.program, self.params, self.loops, self.keep = program, program.params, loops, keep
        self.count = len(program)
        self.give, self.fill = loops.give, loops.fill
        self.tables = _Tables(program)

    # --- what the kernel is given ---

    def gives(self, *columns: Array) -> tuple[Any, ...]:
        return tuple(map(self.give, columns))

    def zeros(self, *lengths: int) -> tuple[Any, ...]:
        return tuple(self.fill(length, 0, np.int64) for length in lengths)

    def plan(self) -> tuple[Any, ...]:
        """Way, size and receive side of each transfer."""
        return self.gives(self.program.way, self.program.kind, self.program.side)

    def costs(self) -> tuple[Any, ...]:
        """The gap; service times at the channel's cap, by size; those at the receive side, and before which time no
        version can be complete, by transfer."""
        cap = self.params.channel_bandwidth
        return (self.params.g, *self.gives(self.tables.at_rate(cap) if cap else NOTHING, self.receive(), self.came()))

    def receive(self) -> Array:
        program, (o_recv, gamma) = self.program, (self.params.o_recv, self.params.gamma)
        if not o_recv and not gamma:
            return NOTHING
        costs: Array = np.where(program.routes.src == program.routes.dst, 0, o_recv).astype(np.int64)[program.way]
        return costs + self.tables.at_rate(gamma)[program.kind] * program.reduce if gamma else costs

    def came(self) -> Array:
        """What was there from the start came with its rank; only a reduction into it waits for that."""
        program = self.program
        if not program.arrivals.any():
            return NOTHING
        return np.where(program.reduce & (program.chain == NONE), program.arrivals[program.dst], 0)

    def here(self) -> Any:
        """When the sender of each transfer comes."""
        arrivals, routes = self.program.arrivals, self.program.routes
        return self.give(arrivals[routes.src][self.program.way] if arrivals.any() else NOTHING)

    def routes(self) -> tuple[Any, ...]:
        return self.gives(*self.program.routes[2:])

    def lead(self) -> Any:
        """From start to ready, by route."""
        src, dst, *_ = self.program.routes
        return self.give(
            np.where(src == dst, 0, self.params.o_send).astype(np.int64) if self.params.o_send else NOTHING
        )

    def net(self) -> tuple[Any, ...]:
        """Rate and latency of each link; service times by size and rate, how many rates."""
        tables = self.tables
        return *self.gives(tables.rate_of, self.program.latencies, tables.service), len(tables.rates)

    def out(self, *needed: str) -> tuple[Any, ...]:
        """The columns of the timeline, to be filled: all of them where they are kept, else those that are `needed`."""
        names = ("start", "sent", "arrive", "end", "complete")
        kept = (self.keep != "nothing" or name in needed for name in names)
        return tuple(self.fill(self.count if keep else 0, NONE, np.int64) for keep in kept)

    def hops(self) -> tuple[Any, ...]:
        """The interval of each hop, to be filled, and where those of each transfer begin."""
        if self.keep != "hops":
            return self.gives(NOTHING, NOTHING, NOTHING)
        first, links = self.program.hops
        return *self.zeros(len(links), len(links)), self.give(first)

    def graph(self) -> tuple[Any, Any, Any]:
        """Who waits for whom, turned round: from each transfer to those that wait for it; the next one of each
        channel; how many things each transfer waits for."""
        program, count, slots = self.program, self.count, self.params.slots
        reads, chain, credit = self.gives(program.reads, program.chain, program.credit if slots else NOTHING)
        chain_after, first_reader, next_reader, after = (self.fill(count, NONE) for _ in range(4))
        credit_after, pending = self.fill(len(credit), NONE), self.fill(count, 0, np.int8)
        self.loops.run.turn_round(
            (reads, chain, credit, self.give(program.channel_before)),
            (first_reader, next_reader, chain_after, credit_after, after),
            pending,
        )
        turn = NOTHING
        if self.params.blocking != "no":
            before = np.asarray(blocking_predecessors(program), np.int32).reshape(count, 2)
            turn = _turns(before)
            for i, more in enumerate((before != NONE).sum(axis=1).tolist()):
                pending[i] += more
        if self.params.barrier:
            for i in np.flatnonzero(program.step > program.step[:1]).tolist():
                pending[i] += 1
        return (chain, chain_after, first_reader, next_reader, credit_after, self.give(turn)), after, pending

    def start(self, pending: Any, out: tuple[Any, ...]) -> tuple[Any, Any]:
        """Where each transfer is; and what it takes to start one: a time (first when its rank has come) and how many
        things each waits for, its way and what the ways add, the times to be noted."""
        here = self.here()
        when = here if len(here) else self.fill(self.count, 0, np.int64)
        return self.fill(self.count, 0, np.int16), (when, pending, self.give(self.program.way), self.lead(), out[0])

    def steps(self) -> tuple[Any, ...]:
        """For barriers: the step of each transfer, where each begins, how many are left; what has passed, and when."""
        columns: tuple[Array, ...] = (NOTHING, NOTHING, NOTHING)
        if self.params.barrier:
            _, step = np.unique(self.program.step, return_inverse=True)
            left = np.bincount(step)
            columns = (step, np.concatenate([[0], np.cumsum(left)]), left)
        return *self.gives(*columns), *self.zeros(2)

    def heap(self, count: int, tracked: bool = False) -> tuple[Any, Any, Any]:
        room = self.loops.room
        return room(count + 1, np.int64), room(count + 1), self.fill(count if tracked else 0, NONE)

    def sides(self) -> int:
        return int(self.program.side.max(initial=-1)) + 1

    # --- the three ways ---

    def replay(self) -> _Outcome:
        program, params, tables = self.program, self.params, self.tables
        fair = params.sharing == "fair"
        out = self.out("sent", "complete", "start" if params.g else "", "end" if params.slots else "")
        hops, links, sides = self.hops(), len(program.bandwidths), self.sides()
        credit, step = program.credit if params.slots else NOTHING, program.step if params.barrier else NOTHING
        ended, latest = self.loops.run.replay(
            self.plan(), self.costs(), self.routes(), self.lead(), self.here(), self.net(),
            self.gives(tables.slowest(), tables.away()) if fair else self.gives(NOTHING, NOTHING),
            self.gives(program.reads, program.chain, credit, program.channel_before, step),
            self.zeros(links, sides), self.zeros(links, sides), out, hops,
        )  # fmt: skip
        return _Outcome(ended, latest, (*out, *hops[:2]))

    def fifo(self) -> _Outcome:
        out, hops, (graph, after, pending) = self.out(), self.hops(), self.graph()
        state, go = self.start(pending, out)
        ended, latest = self.loops.run.fifo(
            (*self.plan(), after), self.costs(), self.routes(), self.give(self.tables.follows()), self.net(),
            graph, self.steps(), go, state, self.zeros(len(self.program.bandwidths), self.sides()), out, hops,
            self.heap(self.count),
        )  # fmt: skip
        return _Outcome(ended, latest, (*out, *hops[:2]))

    def fair(self) -> _Outcome:
        program, give, fill, tables = self.program, self.give, self.fill, self.tables
        out, (graph, after, pending), service = self.out(), self.graph(), self.net()[2:]
        state, go = self.start(pending, out)
        ready = fill(self.count if self.keep == "hops" else 0, NONE, np.int64)
        capacity, cap = program.bandwidths.astype(np.float64), self.params.channel_bandwidth
        hop, shared, base = tables.shared()
        flows, links, width = int(program.channel.max(initial=-1)) + 1, len(capacity), int(np.diff(hop).max(initial=0))

        def each(count: int, *values: float) -> tuple[Any, ...]:
            return tuple(fill(count, value, type(value)) for value in values)

        owner = give(np.repeat(np.arange(flows, dtype=np.int32), width))
        paths = (fill(flows * width, 0), fill(flows, 0), width, owner)
        rows = (fill(links, NONE), fill(flows * width, NONE), fill(flows * width, NONE), fill(links, 0))
        found = (fill(links, 0), fill(flows, 0), *each(links, 0), *each(flows, 0))
        levels = (give(np.append(capacity, np.full(flows if cap else 0, float(cap)))), *each(links, 0.0, 0.0, 0.0))
        bound = min([*capacity.tolist(), cap or np.inf])
        flow = (*each(flows, NONE, 0, 0.0, 0, -1.0, 1, 0.0, 0, NEVER, 0.0), fill(flows, NONE), fill(flows, NONE))
        ended, latest = self.loops.run.fair(
            (*self.plan(), after, give(program.channel), give(program.sizes.astype(np.float64))),
            self.costs(), self.gives(hop, shared),
            (*self.gives(tables.slowest(), tables.most(), tables.away(), base), links if cap else NONE), service,
            graph, self.steps(), go, state, self.zeros(self.sides())[0], out, ready,
            paths, rows, found, levels, bound, flow, (*each(links, 0), fill(links, 0)),
            self.heap(self.count), self.heap(flows, tracked=True),
        )  # fmt: skip
        if self.keep != "hops":
            return _Outcome(ended, latest, (*out, NOTHING, NOTHING))
        lengths = np.diff(program.hops.first)
        begin, gone = (np.repeat(np.asarray(column, np.int64), lengths) for column in (ready, out[1]))
        return _Outcome(ended, latest, (*out, begin, gone))


class _Tables:
    """Service times by (distinct size, distinct bandwidth), each computed once, in exact integers; and what follows
    from the routes."""

    def __init__(self, program: Program):
        self.routes, self.latencies, self.cap = program.routes, program.latencies, program.params.channel_bandwidth
        self.way, self.channel, self.links = program.way, program.channel, len(program.bandwidths)
        self.sizes = program.sizes.tolist()
        self.used = np.bincount(program.kind, minlength=len(self.sizes)) > 0
        self.rates, rate_of = np.unique(program.bandwidths, return_inverse=True)
        self.rate_of = rate_of.astype(np.int32)
        crossed = set(np.unique(self.rate_of[program.routes.links]).tolist())
        columns = [self.at_rate(rate) if r in crossed else self.never() for r, rate in enumerate(self.rates.tolist())]
        self.service = np.stack(columns, axis=1).ravel() if columns else NOTHING

    def never(self) -> Array:
        return np.full(len(self.sizes), NEVER)

    def at_rate(self, rate: int) -> Array:
        """Service time of each size that is sent, at one rate."""
        times = [service_ps(size, rate) if used else NEVER for size, used in zip(self.sizes, self.used, strict=True)]
        return np.asarray(times, np.int64)

    def slowest(self) -> Array:
        """The number of the least rate on each route, 0 for none."""
        return self._along(np.minimum, self.rate_of)

    def most(self) -> Array:
        """The least capacity of each route and of the channel's cap, in B/s."""
        least = self.rates[self.slowest()].astype(np.float64)
        return np.minimum(least, float(self.cap)) if self.cap else least

    def away(self) -> Array:
        """The latencies of each route together."""
        return self._along(np.add, self.latencies)

    def _along(self, combine: np.ufunc, column: Array) -> Array:
        _, _, hop, links = self.routes
        found, some = np.zeros(len(hop) - 1, column.dtype), np.flatnonzero(np.diff(hop))
        if len(some):
            found[some] = combine.reduceat(column[links], hop[some])
        return found

    def follows(self) -> Array:
        """Whether a link comes directly behind one and the same other link on every route that takes it."""
        _, _, hop, links = self.routes
        before = np.append(np.int32(NONE), links)[: len(links)]
        before[hop[:-1][np.diff(hop) > 0]] = NONE
        lowest, highest = _least(self.links, links, before), -_least(self.links, links, -before)
        follows: Array = (lowest == highest) & (highest >= 0)
        return follows

    def shared(self) -> tuple[Array, Array, Array]:
        """The routes without the links that only one channel ever takes: where each begins, and the links; and the
        narrowest of the links left out, the lowest of equals, or NONE."""
        _, _, hop, links = self.routes
        ways, lengths = len(hop) - 1, np.diff(hop)
        first, last = (sign * _least(ways, self.way, sign * self.channel) for sign in (1, -1))
        first, last = (
            sign * _least(self.links, links, np.repeat(sign * channel, lengths))
            for sign, channel in ((1, first), (-1, last))
        )
        alone = (first == last)[links]
        order = np.lexsort((np.arange(self.links), self.rate_of))  # the narrowest first
        rank = np.empty(self.links, np.int32)
        rank[order] = np.arange(self.links)
        least = _least(ways, np.repeat(np.arange(ways), lengths)[alone], rank[links[alone]])
        base, some = np.full(ways, NONE, np.int32), least < self.links
        base[some] = order[least[some]]
        behind = np.append(0, np.cumsum(~alone))[hop]
        return behind.astype(np.int32), links[~alone], base


def _least(count: int, where: Array, what: Array) -> Array:
    """The least of `what` for each of `count` places, a large number for none."""
    found = np.full(count, np.iinfo(np.int32).max, np.int32)
    np.minimum.at(found, where, what)
    return found


def _turns(before: Array) -> Array:
    """With blocking sends a transfer is awaited by at most two: the next of its sender and of its receiver, or NONE."""
    turns = np.full(2 * len(before), NONE, np.int32)
    for i, pair in enumerate(before.tolist()):
        for j in pair:
            if j != NONE:
                turns[2 * j if turns[2 * j] == NONE else 2 * j + 1] = i
    return turns
