"""The fast engine: the rules of `event` without a Python object per event. Same integers, tested by `==`.

Two ways: `replay` takes transfers in index order as long as that is the order of time, which it checks as it runs;
otherwise a heap of (time, index) does. Both are loops of `simcoll.kernel`, run as they are for small programs and
compiled by numba, where that is installed, for large ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll import kernel
from simcoll.compiled import compile_kernel, pays
from simcoll.errors import InputError
from simcoll.model import NEVER, NONE, clocked, service_ps
from simcoll.program import Program, blocking_predecessors
from simcoll.timeline import Timeline

MOST_PLAIN: Final = 4_000_000  # transfers: as lists, more than these take gigabytes and many minutes

Array = NDArray[Any]
NOTHING: Final[Array] = np.zeros(0, np.int64)  # a column of zeros, for the kernel


class Done(NamedTuple):
    """What a run of the fast engine says of itself."""

    timeline: Timeline | None  # None if it could not finish
    shortcut: str  # "replay" or "none"
    compiled: bool


def run(program: Program, shortcuts: bool = True, compiled: bool | None = None, hops: bool = True) -> Done:
    """Replay a program if `shortcuts` are allowed and its order permits, else run it event by event.

    `compiled` forces or forbids numba; by default it is used where it is installed and pays. Without `hops` the
    timeline has no intervals of links, which take the most room.
    """
    if compiled is None:
        compiled = pays(len(program))
    if not compiled and len(program) > MOST_PLAIN:
        what = f"{len(program)} transfers are too many to run uncompiled"
        raise InputError(what, 'install the extra fast (pip install "simcoll[fast]"), or ask for fewer ranks')
    run_ = _Run(program, compiled, hops)
    if shortcuts and program.params.blocking == "no" and program.bandwidths[program.links].all():
        timeline = run_.replay()
        if timeline is not None:
            return Done(timeline, "replay", compiled)
    return Done(run_.fair() if program.params.sharing == "fair" else run_.fifo(), "none", compiled)


class _Run:
    """A program laid out for the kernel: arrays if it is compiled, lists (quicker to index in Python) if not."""

    def __init__(self, program: Program, compiled: bool, hops: bool):
        self.program, self.params, self.compiled, self.keep_hops = program, program.params, compiled, hops
        self.kernel: Any = compile_kernel(kernel) if compiled else kernel
        self.count = len(program)
        self.local = program.src == program.dst
        self.tables = _Tables(program)

    def give(self, *columns: Array) -> tuple[Any, ...]:
        """Columns as the kernel takes them."""
        return columns if self.compiled else tuple(column.tolist() for column in columns)

    def fill(self, length: int, value: float, kind: type = np.int64) -> Any:
        return np.full(length, value, kind) if self.compiled else [value] * length

    def lead(self) -> Array:
        """From start to ready, for each transfer."""
        return np.where(self.local, 0, self.params.o_send).astype(np.int64) if self.params.o_send else NOTHING

    def receive(self) -> Array:
        """Service time at the receive side of each transfer."""
        o_recv, gamma = self.params.o_recv, self.params.gamma
        if not o_recv and not gamma:
            return NOTHING
        reduction = self.tables.at_rate(gamma) * self.program.reduce if gamma else 0
        return np.where(self.local, 0, o_recv).astype(np.int64) + reduction

    def came(self) -> Array:
        """Before which no version can be complete: that of a reduction into what was there from the start."""
        program = self.program
        if not program.arrivals.any():
            return NOTHING
        return np.where(program.reduce & (program.chain == NONE), program.arrivals[program.dst], 0)

    def cap(self) -> Array:
        """Service time of each transfer at its channel's cap."""
        rate = self.params.channel_bandwidth
        return self.tables.at_rate(rate) if rate else NOTHING

    def out(self) -> tuple[Any, ...]:
        """start (as early as its rank has come), sent, arrive, end, complete."""
        start = self.program.arrivals[self.program.src]
        return (*self.give(start), *(self.fill(self.count, NONE) for _ in range(4)))

    def hops(self) -> tuple[Any, Any]:
        count = len(self.program.links) if self.keep_hops else 0
        return self.fill(count, 0), self.fill(count, 0)

    def net(self) -> tuple[Any, ...]:
        tables = self.tables
        return (*self.give(tables.rate_of, self.program.latencies, tables.service), len(tables.rates))

    def timeline(self, out: Iterable[Any], hops: tuple[Any, Any]) -> Timeline:
        return Timeline(*(clocked(times) for times in (*out, *hops)))

    def graph(self) -> tuple[Any, ...]:
        """Who waits for whom, turned round: from each transfer to those that wait for it."""
        program, count = self.program, self.count
        first, following = _readers(program.reads)
        turns = [NONE * np.ones(count, np.int32)] * 2
        if self.params.blocking != "no":
            before = np.asarray(blocking_predecessors(program), np.int64).reshape(count, 2)
            turns = _turns(before)
        return self.give(
            first,
            following,
            _after(program.chain),
            _after(program.credit),
            *turns,
            program.chain.astype(np.int32),
            _after(program.channel_before),
        )

    def pending(self) -> Array:
        """How many things each transfer waits for."""
        program = self.program
        waits = sum(
            (column != NONE).astype(np.int32) for column in (program.reads, program.credit, program.channel_before)
        )
        waits = np.asarray(waits, np.int32)
        if self.params.blocking != "no":
            waits += (np.asarray(blocking_predecessors(program)).reshape(-1, 2) != NONE).sum(axis=1).astype(np.int32)
        if self.params.barrier:
            waits += program.step > program.step[:1]
        return waits

    def steps(self) -> tuple[Any, ...]:
        """For barriers: the step of each transfer, where each begins, how many are left; what has passed, and when."""
        if not self.params.barrier:
            return self.give(*(np.zeros(0, np.int32),) * 3, np.zeros(2, np.int64))
        _, step = np.unique(self.program.step, return_inverse=True)
        left = np.bincount(step)
        first = np.concatenate([[0], np.cumsum(left)])
        columns = (column.astype(np.int32) for column in (step, first, left))
        return self.give(*columns, np.zeros(2, np.int64))

    def heap(self, tracked: bool) -> tuple[Any, Any, Any]:
        count = self.count + 1
        place = self.fill(count if tracked else 0, NONE, np.int32)
        return self.fill(count, 0), self.fill(count, 0, np.int32), place

    def sides(self) -> Any:
        return self.fill(int(self.program.side.max(initial=-1)) + 1, 0)

    # --- the three ways ---

    def replay(self) -> Timeline | None:
        program = self.program
        fair = self.params.sharing == "fair"
        full = self.tables.full() if fair else np.zeros(0, np.int64)
        plan = self.give(
            program.hop, program.links, self.tables.size_of, self.lead(), self.cap(), self.receive(), program.side,
            self.came(), full,
        )  # fmt: skip
        out, hops = self.out(), self.hops()
        waits = self.give(program.reads, program.chain, program.credit, program.channel_before, program.step)
        links = len(program.bandwidths)
        free = (self.fill(links, 0), self.sides(), self.fill(links, 0), self.sides())
        done = self.kernel.replay(
            (*plan, self.params.g), self.net(), out, hops, (*waits, self.params.barrier), free, fair
        )
        return self.timeline(out, hops) if done == self.count else None

    def fifo(self) -> Timeline | None:
        program = self.program
        plan = self.give(
            program.hop, program.links, self.tables.size_of, self.lead(), self.cap(), self.receive(), program.side,
            self.came(),
        )  # fmt: skip
        out, hops = self.out(), self.hops()
        free = (self.fill(len(program.bandwidths), 0), self.sides(), self.fill(self.count, 0, np.int32))
        (pending,) = self.give(self.pending())
        ended = self.kernel.fifo(
            (*plan, self.params.g),
            self.net(),
            out,
            hops,
            self.graph(),
            self.steps(),
            pending,
            self.heap(tracked=False),
            free,
        )
        return self.timeline(out, hops) if ended == self.count else None

    def fair(self) -> Timeline | None:
        program, fluid = self.program, _Fluid(self.program)
        plan = self.give(
            fluid.hop, fluid.links, fluid.owner, self.lead(), self.tables.full(), fluid.capacity_of, fluid.away,
            self.receive(), program.side, self.came(), np.zeros(self.count, np.int64),
        )  # fmt: skip
        out, entries, links = self.out(), len(fluid.links), len(fluid.capacity)
        (pending,) = self.give(self.pending())
        count = self.count
        flow = (*self.give(program.nbytes.astype(np.float64)), self.fill(count, 0),
                self.fill(count, -1.0, np.float64), self.fill(count, 1, np.int8))  # fmt: skip
        rows = (self.fill(links, NONE, np.int32), self.fill(entries, NONE, np.int32),
                self.fill(entries, NONE, np.int32), self.fill(links, 0, np.int32))  # fmt: skip
        marks = tuple(self.fill(length, 0) for length in (links, count, links, count, links, links))
        levels = (*self.give(fluid.capacity), *(self.fill(links, 0.0, np.float64) for _ in range(2)),
                  self.fill(links, 0), self.fill(count, 0.0, np.float64))  # fmt: skip
        free = (self.sides(), self.fill(count, 0, np.int8))
        ended = self.kernel.fair(
            (*plan, self.params.g),
            out,
            self.graph(),
            self.steps(),
            pending,
            self.heap(tracked=True),
            free,
            flow,
            rows,
            marks,
            levels,
        )
        if ended < count:
            return None
        if not self.keep_hops:
            return self.timeline(out, (NOTHING, NOTHING))
        ready, gone = np.asarray(plan[-1], np.int64), np.asarray(out[1], np.int64)
        lengths = np.diff(program.hop)
        return self.timeline(out, (np.repeat(ready, lengths), np.repeat(gone, lengths)))


class _Tables:
    """Service times by (distinct size, distinct bandwidth): each computed once, in exact integers."""

    def __init__(self, program: Program):
        self.program = program
        self.sizes, size_of = np.unique(program.nbytes, return_inverse=True)
        self.size_of = size_of.astype(np.int32)
        self.rates, rate_of = np.unique(program.bandwidths, return_inverse=True)
        self.rate_of = rate_of.astype(np.int32)
        used = set(np.unique(rate_of[program.links]).tolist()) if len(program.links) else set()
        rows = [
            [service_ps(size, rate) if r in used else NEVER for r, rate in enumerate(self.rates.tolist())]
            for size in self.sizes.tolist()
        ]
        self.service = np.asarray(rows, np.int64).reshape(-1)

    def at_rate(self, rate: int) -> Array:
        """Service time of each transfer at one rate."""
        table: Array = np.asarray([service_ps(size, rate) for size in self.sizes.tolist()], np.int64)
        return table[self.size_of]

    def full(self) -> Array:
        """Service time of each transfer at the least capacity of its route and of its channel."""
        program = self.program
        slowest = np.zeros(len(program), np.int64)
        on_links = np.flatnonzero(np.diff(program.hop))
        if len(on_links):
            slowest[on_links] = np.minimum.reduceat(self.rate_of[program.links].astype(np.int64), program.hop[on_links])
        full: Array = self.service[self.size_of * len(self.rates) + slowest]
        cap = program.params.channel_bandwidth
        return np.maximum(full, self.at_rate(cap)) if cap else full


class _Fluid:
    """What the fair kernel needs besides: routes with the channel's cap as one more link, and capacities."""

    def __init__(self, program: Program):
        count, links, cap = len(program), len(program.bandwidths), program.params.channel_bandwidth
        self.hop, self.links, capacity = program.hop, program.links, program.bandwidths.astype(np.float64)
        lengths = np.diff(program.hop)
        if cap:
            capped = lengths > 0  # a copy that takes no link knows no cap
            self.hop = np.concatenate([[0], np.cumsum(lengths + capped)])
            self.links = np.insert(program.links, program.hop[1:][capped], links + program.channel[capped])
            channels = int(program.channel.max(initial=-1)) + 1
            capacity = np.concatenate([capacity, np.full(channels, cap, np.float64)])
        self.capacity = capacity
        self.owner = np.repeat(np.arange(count, dtype=np.int32), np.diff(self.hop))
        self.capacity_of, self.away = np.zeros(count), np.zeros(count, np.int64)
        on_links = np.flatnonzero(lengths)
        if len(on_links):
            self.capacity_of[on_links] = np.minimum.reduceat(capacity[self.links], self.hop[on_links])
            self.away[on_links] = np.add.reduceat(program.latencies[program.links], program.hop[on_links])


def _after(before: Array) -> Array:
    """From "who comes before me" to "who comes after me": each has at most one."""
    after = np.full(len(before), NONE, np.int32)
    has = np.flatnonzero(before != NONE)
    after[before[has]] = has
    return after


def _readers(reads: Array) -> tuple[Array, Array]:
    """Linked lists of those that read each version: the first, and for each reader the next."""
    first, following = np.full(len(reads), NONE, np.int32), np.full(len(reads), NONE, np.int32)
    has = np.flatnonzero(reads != NONE)
    order = has[np.argsort(reads[has], kind="stable")]
    version = reads[order]
    begins = np.flatnonzero(np.concatenate([[True], version[1:] != version[:-1]])) if len(order) else order
    first[version[begins]] = order[begins]
    same = np.flatnonzero(version[1:] == version[:-1])
    following[order[same]] = order[same + 1]
    return first, following


def _turns(before: Array) -> list[Array]:
    """With blocking sends a transfer is awaited by at most two: the next of its sender and of its receiver."""
    turns = [np.full(len(before), NONE, np.int32) for _ in range(2)]
    for i, pair in enumerate(before.tolist()):
        for j in pair:
            if j != NONE:
                turns[0 if turns[0][j] == NONE else 1][j] = i
    return turns
