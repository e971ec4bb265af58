"""A schedule bound to sizes, loops, channels and routes: what an engine runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simcoll.config.numpy_helpers import Numbers, Sets, pieces
from simcoll.engine._dependencies import Edges
from simcoll.engine.link_changes import LinkChanges
from simcoll.engine.timeline import Totals
from simcoll.engine.timing_model import NONE, Index, Params, service_ps
from simcoll.schedule.schedule import Schedule

Memo = dict[str, tuple[tuple[object, ...], Any]]  # of `Program.once`
T = TypeVar("T")


class ProgramRoutes(NamedTuple):
    """The routes of transfers, called *ways* in code. Way r leads from participant `src[r]` to `dst[r]`, (ways,), over
    the links `links[hop[r]:hop[r + 1]]`. There are no links if a rank copies locally and has no memory link."""

    src: Index
    dst: Index
    hop: Index
    links: Index


class Sums(NamedTuple):
    """Bytes (or numbers of transfers) of a run: over each link, (links,); sent to others by each participant,
    (participants,); and all bytes sent to others, counted once for every link that they cross."""

    carried: NDArray[np.int64]
    sent: NDArray[np.int64]
    crossed: int


class Hops(NamedTuple):
    """All hops of all transfers; a hop is one link of a transfer's route. Transfer i has the hops `first[i]` to
    `first[i + 1]` − 1; `first` has shape (transfers + 1,). `links`, (hops,), holds the link of each hop."""

    first: Index
    links: Index


@dataclass(frozen=True, eq=False)
class Tasks:
    """The tasks of a program: a task is the part of one rank in one operation (a collective or a computation).

    A task *opens* when all tasks that it waits for are done. Until then its channels start nothing, and the data of its
    rank is not there to be reduced into. It is *done* when `duration` (tasks,), in ps, has passed since it opened, the
    transfers of its channels are sent, and those to its receive sides are complete. Task k waits for the tasks
    `before[first[k]:first[k + 1]]`, all lower than k and of earlier operations; `first` has shape (tasks + 1,).
    `channel` (channels,) and `side` (sides,) hold the task of each channel and receive side; NONE for an in-network
    agent, which waits for no task. Channels of one `lane` (channels,) belong to successive tasks: one sends at a time.
    """

    channel: Index
    side: Index
    duration: Index
    first: Index
    before: Index
    lane: Index

    def __len__(self) -> int:
        return len(self.duration)

    def behind(self) -> tuple[Index, Index]:
        """Return `first` and `after`, the inverse of `before`: the tasks `after[first[k]:first[k + 1]]` wait for task
        k."""
        waiting = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))
        return grouped(self.before, waiting, len(self))


def grouped(key: Index, values: Index, count: int) -> tuple[Index, Index]:
    """Group `values` by `key` (0 … count − 1). Return where the values of each key begin, (count + 1,), and the values
    key by key, in their order. Values with the key NONE are left out."""
    order = np.argsort(key, kind="stable")[int((key < 0).sum()) :]
    first = np.append(0, np.cumsum(np.bincount(key[key >= 0], minlength=count)))
    return first.astype(np.int32), values[order].astype(np.int32)


@dataclass(frozen=True, eq=False)
class Program:
    """A schedule bound to sizes, loops, channels and routes: what an engine runs.

    Columns (one entry for each transfer, in index order): `way` is the index of its route in `routes`, `kind` of its
    size in `sizes`. `channel` and `side` number the sending channels and the receive sides in order of first use.
    `credit` and `channel_before` are indices of predecessors, or NONE. `reads`, `chain` and `adds`: see Dependencies.
    Other columns are computed on demand, as large programs run without them. `arrivals` (participants,): when each
    arrives, in ps. `sent`: the places of the transfers among those of all loops; None if every loop sends all.

    A program of several operations has `tasks`. Way r belongs to an operation with the parameters `parts[part[r]]`,
    `part` being (ways,); `params` holds for the whole run. With `changes` some routes are only taken after a link is
    found dead. Operations may have different bandwidths or latencies for one link. The columns of links then hold all
    links of one such view, then those of the next. Server i % `servers` serves link i: all views of one link, one
    transfer after the other.
    """

    schedule: Schedule
    params: Params
    bandwidths: Index
    latencies: Index
    link_names: Sequence[str]
    routes: ProgramRoutes
    sizes: Index
    way: Index
    kind: Index
    channel: Index
    side: Index
    reads: Edges
    chain: Edges
    adds: NDArray[np.bool_]
    credit: Index
    channel_before: Index
    arrivals: Index
    loops: int
    tasks: Tasks | None = None
    parts: tuple[Params, ...] = ()
    part: Index | None = None
    changes: LinkChanges | None = None
    views: int = 1
    sent: Index | None = None
    memo: Memo = field(default_factory=dict, repr=False, kw_only=True)

    def once(self, name: str, columns: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return `make()`, cached under `name` for all programs that share the `columns` it is computed from."""
        known = self.memo.get(name)
        if known is None or any(a is not b for a, b in zip(known[0], columns, strict=True)):
            known = self.memo[name] = columns, make()
        found: T = known[1]
        return found

    def __len__(self) -> int:
        return len(self.way)

    @property
    def servers(self) -> int:
        """The number of distinct links. A link with several views (sets of bandwidth and latency) counts once."""
        return len(self.bandwidths) // self.views

    @property
    def _order(self) -> tuple[Index, Index]:
        return self.once("order", (self.way,), self._ordered)

    def _ordered(self) -> tuple[Index, Index]:
        loop, number = program_order(self.schedule, self.loops)
        return (loop, number) if self.sent is None else (loop[self.sent], number[self.sent])

    @property
    def loop(self) -> Index:
        """The number of the loop of each transfer."""
        return self._order[0]

    @property
    def number(self) -> Index:
        """The number of the schedule's transfer that each transfer comes from."""
        return self._order[1]

    @property
    def origin(self) -> Index:
        """The first row of the schedule's transfer that each transfer comes from."""
        return self.once("origin", (self.way,), lambda: self.schedule.heads[self.number])

    @property
    def rows(self) -> Sets:
        """The numbers of the schedule's rows that belong to each transfer."""
        return self.once("rows", (self.way,), lambda: self.schedule.taken(self.number))

    @property
    def step(self) -> Index:
        """The step of each transfer. Each loop begins one step after the loop before it if pipelined, else after its
        last step."""
        return self.once("step", (self.way,), self._steps)

    def _steps(self) -> Index:
        step: Index = self.schedule.step[self.origin] + self.loop * np.int32(_stagger(self.schedule))
        return step

    @property
    def src(self) -> Index:
        """The sender of each transfer."""
        return self.once("src", (self.way, self.routes.src), lambda: self.routes.src[self.way])

    @property
    def dst(self) -> Index:
        """The receiver of each transfer."""
        return self.once("dst", (self.way, self.routes.dst), lambda: self.routes.dst[self.way])

    @property
    def connection(self) -> Numbers:
        """A number for each transfer, int64 (transfers,), equal for transfers of one channel to one receiver."""
        return self.channel * np.int64(self.schedule.participants) + self.routes.dst[self.way]

    @cached_property
    def nbytes(self) -> Index:
        """The bytes of each transfer."""
        return self.sizes[self.kind]

    @cached_property
    def reduce(self) -> NDArray[np.bool_]:
        """Whether each transfer reduces into its destination slot (else it overwrites the slot)."""
        return self.schedule.reduce[self.origin]

    @property
    def taken(self) -> Index:
        """The numbers of all links that lie on some route."""
        return self.once("taken", (self.routes.links,), self._links_taken)

    def _links_taken(self) -> Index:
        found = np.zeros(len(self.bandwidths), np.bool_)
        found[self.routes.links] = True
        return np.flatnonzero(found)

    @property
    def hops(self) -> Hops:
        """The routes of all transfers, one after the other."""
        return self.once("hops", (self.way, self.routes.hop, self.routes.links), self._every_hop)

    def _every_hop(self) -> Hops:
        _, _, hop, links = self.routes
        first = np.zeros(len(self) + 1, np.int64)
        np.cumsum(np.diff(hop)[self.way], out=first[1:])
        within = np.arange(first[-1]) - np.repeat(first[:-1], np.diff(first))
        return Hops(first, links[np.repeat(hop[self.way], np.diff(first)) + within])

    def route(self, i: int) -> list[int]:
        """Return the links of transfer `i`; none for a local copy without a memory link."""
        way = self.way[i]
        found: list[int] = self.routes.links[self.routes.hop[way] : self.routes.hop[way + 1]].tolist()
        return found

    def as_it_went(self, way: Index) -> Program:
        """Return the program with the routes that transfers took in the end (`way`, one for each transfer), to match
        its timeline."""
        return replace(self, way=way, changes=None) if len(way) else self

    @property
    def messages(self) -> int:
        """The number of transfers between two participants."""
        return self.schedule.messages * self.loops if self.sent is None else int((self.src != self.dst).sum())

    @property
    def _sums(self) -> Sums:
        """The bytes sent, summed by link, by sender and in all."""
        return self.once("sums", (self.way, self.kind, self.routes.links, self.sizes), self._summed)

    def _summed(self) -> Sums:
        src, dst, hop, links = self.routes
        on_way = np.zeros(len(src), np.int64)
        np.add.at(on_way, self.way, self.sizes[self.kind])
        carried, sent = (np.zeros(count, np.int64) for count in (len(self.bandwidths), self.schedule.participants))
        crossed = 0
        for ways in pieces(len(src)):
            hops = np.diff(hop[ways.start : ways.stop + 1])
            taken = links[hop[ways.start] : hop[ways.stop]]
            np.add.at(carried, taken, np.repeat(on_way[ways], hops))
            away = np.where(src[ways] == dst[ways], 0, on_way[ways])
            np.add.at(sent, src[ways], away)
            crossed += int(hops @ away)
        return Sums(carried, sent, crossed)

    @property
    def wire_bytes(self) -> int:
        """The payload bytes, each counted once for every link it crosses; local copies do not count."""
        return int(self._sums.crossed)

    @property
    def carried(self) -> NDArray[np.int64]:
        """The bytes over each link, int64 (links,)."""
        return self._sums.carried

    @property
    def sent_bytes(self) -> NDArray[np.int64]:
        """The bytes that each rank sends to others, int64 (ranks,)."""
        return self._sums.sent[: self.schedule.n]

    @property
    def bytes_per_rank(self) -> int:
        """The most bytes that any rank sends."""
        return int(self.sent_bytes.max())

    def totals(self, makespan_ps: int, shortcut: str) -> Totals:
        """Return the totals of a run that took `makespan_ps`."""
        return Totals(
            makespan_ps=makespan_ps,
            carried=self.carried,
            bytes_per_rank=self.bytes_per_rank,
            messages=self.messages,
            wire_bytes=self.wire_bytes,
            shortcut=shortcut,
        )

    def params_of(self, i: int) -> Params:
        """Return the parameters of the operation of transfer `i`."""
        return self.params if self.part is None else self.parts[self.part[self.way[i]]]

    def by_way(self, field: str) -> NDArray[np.int64]:
        """Return for each route (`way`) the value that its operation has for a field of `Params`, int64 (ways,)."""
        if self.part is None:
            return np.broadcast_to(np.int64(getattr(self.params, field)), len(self.routes.src))  # takes no memory
        return np.array([getattr(params, field) for params in self.parts], np.int64)[self.part]

    def by_kind(self, field: str) -> NDArray[np.int64]:
        """Return for each size the value that its operation has for a field of `Params`, int64 (sizes,)."""
        found = np.full(len(self.sizes), getattr(self.params, field), np.int64)
        if self.part is not None:
            kind, way = self.once("ways of kinds", (self.kind, self.way), self._ways_of_kinds)
            found[kind] = self.by_way(field)[way]
        return found

    def _ways_of_kinds(self) -> tuple[Index, Index]:
        """Return the distinct kinds (indices of sizes) of transfers, and for each kind the way of one such transfer."""
        way = np.full(len(self.sizes), NONE, np.int32)
        way[self.kind] = self.way
        kinds = np.flatnonzero(way != NONE)
        return kinds, way[kinds]

    def receive_ps(self, i: int) -> int:
        """Return how long transfer `i` occupies its receive side, in ps: `o_recv` unless local, plus the reduction."""
        params = self.params_of(i)
        reduction = service_ps(int(self.nbytes[i]), params.gamma) if params.gamma and self.reduce[i] else 0
        return reduction + (params.o_recv if self.src[i] != self.dst[i] else 0)


def program_order(schedule: Schedule, loops: int) -> tuple[Index, Index]:
    """Return for each transfer of a program its loop and the number of the schedule's transfer, sorted by step of the
    program, loop and this number."""
    count = schedule.transfers
    if loops == 1 or not schedule.pipelined:  # one loop after the other
        return np.repeat(np.arange(loops, dtype=np.int32), count), np.tile(np.arange(count, dtype=np.int32), loops)
    step = schedule.step[schedule.heads] + np.arange(loops, dtype=np.int32)[:, None] * np.int32(_stagger(schedule))
    loop, origin = np.divmod(np.argsort(step.ravel(), kind="stable").astype(np.int32), np.int32(max(1, count)))
    return loop, origin


def _stagger(schedule: Schedule) -> int:
    return 1 if schedule.pipelined else schedule.n_steps


def blocking_predecessors(program: Program) -> list[tuple[int, int]]:
    """Return for each transfer the transfer that must end before its sender begins it, and the one that must end before
    its receiver begins it, or NONE; for blocking sends. A rank does one transfer at a time, in step order. Within a
    step it sends first, then receives (`sends-first`); with `even-odd`, odd ranks receive first."""
    even_odd = program.params.blocking == "even-odd"
    todo: dict[int, list[tuple[int, bool, int]]] = {}
    for i, (step, src, dst) in enumerate(
        zip(program.step.tolist(), program.src.tolist(), program.dst.tolist(), strict=True)
    ):
        todo.setdefault(src, []).append((step, even_odd and src % 2 == 1, i))
        if src != dst:
            todo.setdefault(dst, []).append((step, not (even_odd and dst % 2 == 1), i))
    found: list[list[int]] = [[] for _ in range(len(program))]
    for work in todo.values():
        before = NONE
        for _, _, i in sorted(work):
            found[i].append(before)
            before = i
    return [(pair[0], pair[1] if len(pair) > 1 else NONE) for pair in found]
