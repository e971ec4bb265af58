"""Join several operations (collectives and computations that share ranks and links) into one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Array
from simcoll.engine._dependencies import Edges
from simcoll.engine.binding import check_room
from simcoll.engine.program import Program, ProgramRoutes, Tasks, grouped
from simcoll.engine.timing_model import NONE, Index, Params
from simcoll.errors import Diagnostic, InputError
from simcoll.schedule.schedule import COLUMNS, Schedule
from simcoll.topology.graph import Topology

EMPTY: Final = np.zeros(0, np.int32)


class Operation(NamedTuple):
    """A collective or a computation of some ranks.

    Rank r of `program` is `ranks[r]`; operations with the same program have the same ranks. Without a program the ranks
    only compute. Each rank works for at least `duration` ps (one number, or one for each rank). `after` holds numbers
    of earlier operations: a rank waits for the earlier operations in which it takes part. Operations of one `stream`
    run one after the other on each rank.
    """

    ranks: Index
    program: Program | None = None
    duration: int | Index = 0
    after: tuple[int, ...] = ()
    stream: str | None = None


def join(operations: Sequence[Operation], n: int, network: Topology) -> Program:
    """Return one program of all `operations` on `n` ranks, with their transfers in the order of the operations.

    The programs of operations may be bound to networks with other bandwidths and latencies than `network`. Links with
    the same name are one link, which serves the transfers of all programs. Raises InputError for parameters that cannot
    be combined, or too many transfers.
    """
    bound = list({id(op.program): op.program for op in operations if op.program is not None}.values())
    links = _LinkViews(bound, network)
    _check(operations, bound, links.views)
    tasks = np.cumsum([0, *(len(op.ranks) for op in operations)], dtype=np.int64)
    laid = _Laid(operations, bound, tasks, n)
    parts = tuple(dict.fromkeys(program.params for program in bound)) or (Params(),)
    part = [np.full(len(program.routes.src), parts.index(program.params), np.int32) for program in bound]
    return Program(
        schedule=laid.schedule(n),
        params=dataclasses.replace(parts[0], slots=max(params.slots for params in parts)),
        bandwidths=links.bandwidths,
        latencies=links.latencies,
        link_names=links.names * links.views,
        routes=laid.routes(links),
        sizes=np.concatenate([np.zeros(0, np.int64), *(program.sizes for program in bound)]),
        **laid.columns,
        arrivals=np.zeros(laid.participants, np.int64),
        loops=1,
        tasks=_tasks(operations, tasks, laid, n),
        parts=parts,
        part=_joined(part),
        changes=None,
        views=links.views,
    )


def _check(operations: Sequence[Operation], bound: Sequence[Program], views: int) -> None:
    if any(program.params.barrier or program.params.blocking != "no" for program in bound):
        what = "operations that run together cannot have barriers or blocking sends"
        raise InputError([Diagnostic(what, "leave out `barrier` and `blocking`", "model")])
    ways = {program.params.sharing for program in bound}
    if len(ways) > 1 or (views > 1 and ways != {"fifo"}):
        what = "operations that share links need the same `sharing`, and `fair` needs equal links for all"
        raise InputError([Diagnostic(what, "write `fifo`", "model.sharing")])
    total = sum(len(op.program) for op in operations if op.program)
    check_room(total, f"{total} transfers", "ask for fewer ranks or larger chunks", "ranks")


class _LinkViews:
    """The links of all programs: the links of `network`, then further links of the programs. A view is one set of
    bandwidths and latencies for all links; programs with equal values share a view. `at` holds for each program,
    (links,), the index of each of its links in the joined columns."""

    def __init__(self, bound: Sequence[Program], network: Topology):
        number = {name: i for i, name in enumerate(network.link_names)}
        for program in bound:
            for name in program.link_names if program.link_names is not network.link_names else ():
                number.setdefault(name, len(number))
        self.names = tuple(number)
        seen: dict[tuple[bytes, bytes], int] = {}
        columns: list[tuple[Array, Array]] = []
        self.at: dict[int, Array] = {}
        for program in bound:
            own = np.fromiter(map(number.__getitem__, program.link_names), np.int64, len(program.link_names))
            wide = _spread(own, network.bandwidths, program.bandwidths, len(number))
            late = _spread(own, network.latencies, program.latencies, len(number))
            view = seen.setdefault((wide.tobytes(), late.tobytes()), len(seen))
            if view == len(columns):
                columns.append((wide, late))
            self.at[id(program)] = (own + view * len(number)).astype(np.int32)
        if not columns:  # operations only compute
            columns = [(network.bandwidths, network.latencies)]
        self.views = len(columns)
        self.bandwidths, self.latencies = (np.concatenate(column) for column in zip(*columns, strict=True))


def _spread(at: Array, whole: Index, own: Index, count: int) -> Array:
    """Return a column of `count` values: `whole` for the network's links, then 1; but `own` at the indices `at`."""
    column = np.ones(count, np.int64)
    column[: len(whole)] = whole
    column[at] = own
    return column


class _Owners(NamedTuple):
    """For each channel, and for each receive side, of a program: the number of the participant that it belongs to."""

    channel: Array
    side: Array


class _Laid:
    """The columns of all programs, concatenated. Each operation has its own transfers, channels, receive sides and
    slots. Operations with the same program share its routes and sizes."""

    def __init__(self, operations: Sequence[Operation], bound: Sequence[Program], tasks: Array, n: int):
        self.bound, self.participants = bound, n
        self.places: list[Array] = []  # by program: the numbers of its participants in the joined program
        first: dict[int, tuple[int, int]] = {}  # by program: the numbers of its first route and of its first size
        members = {id(op.program): op.ranks for op in operations if op.program is not None}
        owners: dict[int, _Owners] = {}
        way = kind = 0
        for program in bound:
            more = self.participants + program.schedule.agents
            self.places.append(np.append(members[id(program)], np.arange(self.participants, more)).astype(np.int32))
            self.participants = more
            first[id(program)] = way, kind
            way, kind = way + len(program.routes.src), kind + len(program.sizes)
            owners[id(program)] = _owners(program)
        names = ("way", "kind", "channel", "side", "credit", "channel_before")
        found: dict[str, list[Array]] = {name: [] for name in names}
        edges: dict[str, list[Edges]] = {"reads": [], "chain": []}  # with a count in place of each first
        self.order: list[tuple[Program, int, int]] = []  # program, first step and first slot of each operation
        whose: tuple[list[Array], list[Array]] = [], []
        lanes: list[Array] = []
        streams = {op.stream: number for number, op in enumerate(operations)}
        at = channel = side = step = slot = 0
        for op, task in zip(operations, tasks[:-1].tolist(), strict=True):
            if op.program is None:
                continue
            program, own = op.program, owners[id(op.program)]
            ways, kinds = first[id(program)]
            for name, base in zip(names, (ways, kinds, channel, side, at, at), strict=True):
                found[name].append(_moved(getattr(program, name), base))
            for name, kept in edges.items():
                each: Edges = getattr(program, name)
                kept.append(Edges(np.diff(each.first), each.before + np.int32(at)))
            for owned, of in zip(whose, own, strict=True):
                owned.append(np.where(of < program.schedule.n, of + task, NONE))
            lanes.append(_lanes(own.channel, op, program.schedule.n, streams[op.stream] * n, channel))
            self.order.append((program, step, slot))
            at, channel, side = at + len(program), channel + len(own.channel), side + len(own.side)
            step += int(program.step.max(initial=-1)) + 1
            slot += program.schedule.n_slots * program.loops
        self.columns: dict[str, Any] = {name: _joined(columns) for name, columns in found.items()}
        for name, kept in edges.items():
            counts, before = (_joined(column) for column in zip(*kept, strict=True)) if kept else (EMPTY, EMPTY)
            self.columns[name] = Edges(np.cumsum(np.append(0, counts)).astype(np.int32), before)
        self.columns["adds"] = np.concatenate([np.zeros(0, np.bool_), *(program.adds for program, *_ in self.order)])
        self.channel_task, self.side_task = map(_joined, whose)
        _, lane = np.unique(np.concatenate([EMPTY.reshape(0, 2), *lanes]), axis=0, return_inverse=True)
        self.lane = lane.ravel().astype(np.int32)

    def routes(self, links: _LinkViews) -> ProgramRoutes:
        """Return the routes of all programs, with the numbers of participants and links in the joined program."""
        pairs = list(zip(self.bound, self.places, strict=True))
        src, dst = (_joined([place[getattr(p.routes, end)] for p, place in pairs]) for end in ("src", "dst"))
        hop = np.cumsum([0, *np.concatenate([EMPTY, *(np.diff(p.routes.hop) for p in self.bound)]).tolist()])
        taken = _joined([links.at[id(p)][p.routes.links] for p in self.bound])
        return ProgramRoutes(src, dst, hop.astype(np.int32), taken)

    def schedule(self, n: int) -> Schedule:
        """Return the schedules one after the other, each with steps and slots of its own."""
        place = {id(program): places for program, places in zip(self.bound, self.places, strict=True)}
        columns: dict[str, list[Array]] = {name: [] for name in COLUMNS}
        for program, step, slot in self.order:
            schedule, (rows, counts) = program.schedule, program.rows
            base = slot + np.repeat(program.loop, counts) * schedule.n_slots
            columns["step"].append(np.repeat(program.step, counts) + step)
            for end in ("src", "dst"):
                columns[end].append(place[id(program)][getattr(schedule, end)[rows]])
                columns[f"{end}_slot"].append(getattr(schedule, f"{end}_slot")[rows] + base)
            for name in ("reduce", "count", "joins"):
                columns[name].append(getattr(schedule, name)[rows])
        joined: dict[str, Any] = {name: _joined(found) for name, found in columns.items()}
        joined |= {name: joined[name].astype(np.bool_) for name in ("reduce", "joins")}
        return Schedule("workload", "joint", n, n_chunks=1, agents=self.participants - n, **joined)


def _tasks(operations: Sequence[Operation], tasks: Array, laid: _Laid, n: int) -> Tasks:
    part = np.full((len(operations), n), NONE, np.int32)  # by operation and rank: its task
    waits: tuple[list[Array], list[Array]] = [EMPTY], [EMPTY]
    duration = np.zeros(tasks[-1], np.int64)
    for number, (op, task) in enumerate(zip(operations, tasks[:-1].tolist(), strict=True)):
        part[number, op.ranks] = np.arange(task, task + len(op.ranks))
        duration[task : task + len(op.ranks)] = op.duration
        before = part[np.asarray(op.after, np.int64)[:, None], op.ranks]
        there = before != NONE
        waits[0].append(np.broadcast_to(part[number, op.ranks], before.shape)[there])
        waits[1].append(before[there])
    first, before = grouped(np.concatenate(waits[0]), np.concatenate(waits[1]), len(duration))
    return Tasks(laid.channel_task, laid.side_task, duration, first, before, laid.lane)


def _owners(program: Program) -> _Owners:
    found = []
    for numbers, ends in ((program.channel, program.src), (program.side, program.dst)):
        owner = np.zeros(int(numbers.max(initial=-1)) + 1, np.int32)
        owner[numbers] = ends
        found.append(owner)
    return _Owners(*found)


def _lanes(owner: Array, op: Operation, n: int, stream: int, first: int) -> Array:
    """Return a pair of numbers for each channel of an operation, (channels, 2): the number of its stream and rank, and
    its position among the channels of that rank. Channels with equal pairs form a lane, of which one channel sends at a
    time. If the operation has no stream, each channel has its own lane."""
    order = np.argsort(owner, kind="stable")
    place = np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])
    lane = np.empty((len(owner), 2), np.int64)
    lane[order, 1] = place
    ranks = np.asarray(op.ranks)
    lane[:, 0] = stream + ranks[np.minimum(owner, n - 1)]
    alone = np.flatnonzero((owner >= n) | (op.stream is None))
    lane[alone] = np.stack([np.full(len(alone), NONE), first + alone], axis=1)
    return lane


def _moved(column: Index, base: int) -> Array:
    return np.where(column == NONE, np.int32(NONE), column + np.int32(base))


def _joined(columns: Sequence[Array]) -> Array:
    return np.concatenate([EMPTY, *columns]).astype(np.int32, copy=False)
