"""A schedule bound to sizes, loops, channels and routes: what an engine runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simcoll.config.lru import LruCache
from simcoll.config.numba_loader import choose
from simcoll.engine._dependencies import credits, inherited, numbered, predecessors
from simcoll.engine.link_changes import LinkChanges
from simcoll.engine.tasks import Tasks
from simcoll.engine.timeline import Totals
from simcoll.engine.timing_model import NONE, Dependencies, Index, Params, RoutedNetwork, dependencies, service_ps
from simcoll.errors import Diagnostic, InputError
from simcoll.schedule.collectives import collective
from simcoll.schedule.ir import Schedule

MOST_TRANSFERS: Final = 50_000_000  # of a program: more take more memory than a machine for this has
MOST_KEPT: Final = 1_000_000  # transfers whose frames are kept: some 40 MB
MOST_KINDS: Final = 64  # columns of sizes kept with a frame
MOST_HOPS: Final = 2**31 - 1  # of all routes: they are counted in 32 bits


Memo = dict[str, tuple[tuple[object, ...], Any]]  # of `Program.once`
T = TypeVar("T")


class ProgramRoutes(NamedTuple):
    """The ways that transfers take: way r leads from participant `src[r]` to `dst[r]` (ways,) over
    `links[hop[r]:hop[r + 1]]`, which is empty for a local copy without a memory link."""

    src: Index
    dst: Index
    hop: Index
    links: Index


class Hops(NamedTuple):
    """Every hop of every transfer, in the order of the timeline's: those of transfer i begin at `first[i]`, (transfers
    + 1,), and take `links` (hops,)."""

    first: Index
    links: Index


@dataclass(frozen=True, eq=False)
class Program:
    """A schedule bound to sizes, loops, channels and routes: what an engine runs.

    Columns (one entry a transfer, in index order): `way` says which of the `routes` it takes, `kind` which of the
    `sizes` it has; `channel` and `side` number the sending channels and the receive sides densely in order of first
    use; `reads`, `chain` (see Dependencies), `credit`, `channel_before` are indices of predecessors or NONE. What
    follows from these is made when it is asked for: large programs are run without. `arrivals` (participants,): when
    each comes. A program of several operations has `tasks`, and what differs between them in `parts`: way r is of an
    operation with the parameters `parts[part[r]]`, (ways,); what holds for the whole run stands in `params`. With
    `changes` some of the routes are ways that transfers only take when a link is found dead.

    Operations may see links differently: then the columns of links have an entry for each view of each link, one view
    of all behind the other, and the number of a link is one of these. Link i is served by server i % `servers`, which
    serves all views of a link, one transfer after the other.
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
    reads: Index
    chain: Index
    credit: Index
    channel_before: Index
    arrivals: Index
    loops: int
    tasks: Tasks | None = None
    parts: tuple[Params, ...] = ()
    part: Index | None = None
    changes: LinkChanges | None = None
    views: int = 1
    memo: Memo = field(default_factory=dict, repr=False, kw_only=True)

    def once(self, name: str, columns: tuple[object, ...], make: Callable[[], T]) -> T:
        """What `make` makes of these columns; made once for all programs that share them, which differ in numbers."""
        known = self.memo.get(name)
        if known is None or any(a is not b for a, b in zip(known[0], columns, strict=True)):
            known = self.memo[name] = columns, make()
        found: T = known[1]
        return found

    def __len__(self) -> int:
        return len(self.way)

    @property
    def servers(self) -> int:
        """The number of links that serve, however many views there are of each."""
        return len(self.bandwidths) // self.views

    @cached_property
    def _order(self) -> tuple[Index, Index]:
        return program_order(self.schedule, self.loops)

    @property
    def loop(self) -> Index:
        """The loop of each transfer."""
        return self._order[0]

    @property
    def origin(self) -> Index:
        """The row of the schedule that each transfer is."""
        return self._order[1]

    @cached_property
    def step(self) -> Index:
        """The step of each transfer, counting the stagger of loops."""
        step: Index = self.schedule.step[self.origin] + self.loop * np.int32(_stagger(self.schedule))
        return step

    @cached_property
    def src(self) -> Index:
        """The sender of each transfer."""
        return self.routes.src[self.way]

    @cached_property
    def dst(self) -> Index:
        """The receiver of each transfer."""
        return self.routes.dst[self.way]

    @cached_property
    def nbytes(self) -> Index:
        """The size of each transfer."""
        return self.sizes[self.kind]

    @cached_property
    def reduce(self) -> NDArray[np.bool_]:
        """Whether each transfer reduces into what it finds."""
        return self.schedule.reduce if self.loops == 1 else self.schedule.reduce[self.origin]

    @cached_property
    def hops(self) -> Hops:
        """The routes of all transfers, one after the other."""
        _, _, hop, links = self.routes
        first = np.zeros(len(self) + 1, np.int64)
        np.cumsum(np.diff(hop)[self.way], out=first[1:])
        within = np.arange(first[-1]) - np.repeat(first[:-1], np.diff(first))
        return Hops(first, links[np.repeat(hop[self.way], np.diff(first)) + within])

    def route(self, i: int) -> list[int]:
        """The links of transfer `i`; empty for a local copy without a memory link."""
        way = self.way[i]
        found: list[int] = self.routes.links[self.routes.hop[way] : self.routes.hop[way + 1]].tolist()
        return found

    def as_it_went(self, way: Index) -> Program:
        """The same with the way that each transfer took in the end, for those who read a timeline."""
        return replace(self, way=way, changes=None) if len(way) else self

    @cached_property
    def traffic(self) -> NDArray[np.int64]:
        """The bytes that take each way, int64 (ways,)."""
        found = np.zeros(len(self.routes.src), np.int64)
        np.add.at(found, self.way, self.sizes[self.kind])
        return found

    @property
    def wire_bytes(self) -> int:
        """Payload summed over the links it crosses; local copies cross none."""
        src, dst, hop, _ = self.routes
        return int((self.traffic * np.diff(hop))[src != dst].sum())

    @property
    def carried(self) -> NDArray[np.int64]:
        """The bytes over each link, int64 (links,)."""
        found = np.zeros(len(self.bandwidths), np.int64)
        np.add.at(found, self.routes.links, np.repeat(self.traffic, np.diff(self.routes.hop)))
        return found

    @property
    def sent_bytes(self) -> NDArray[np.int64]:
        """The bytes that each rank sends to others, int64 (ranks,)."""
        src, dst, *_ = self.routes
        out = np.zeros(self.schedule.participants, np.int64)
        np.add.at(out, src[src != dst], self.traffic[src != dst])
        return out[: self.schedule.n]

    @property
    def bytes_per_rank(self) -> int:
        """The most bytes that any rank sends."""
        return int(self.sent_bytes.max())

    def totals(self, makespan_ps: int, shortcut: str) -> Totals:
        """The sums of a run, from the time that it took."""
        return Totals(
            makespan_ps=makespan_ps,
            carried=self.carried,
            bytes_per_rank=self.bytes_per_rank,
            messages=self.schedule.messages * self.loops,
            wire_bytes=self.wire_bytes,
            shortcut=shortcut,
        )

    def params_of(self, i: int) -> Params:
        """The parameters of the operation that transfer `i` is of."""
        return self.params if self.part is None else self.parts[self.part[self.way[i]]]

    def by_way(self, field: str) -> NDArray[np.int64]:
        """A number of `Params` as each way has it, int64 (ways,)."""
        if self.part is None:
            return np.broadcast_to(np.int64(getattr(self.params, field)), len(self.routes.src))  # takes no room
        return np.array([getattr(params, field) for params in self.parts], np.int64)[self.part]

    def by_kind(self, field: str) -> NDArray[np.int64]:
        """The same for each size, int64 (sizes,): one that several operations have stands there several times."""
        found = np.full(len(self.sizes), getattr(self.params, field), np.int64)
        if self.part is not None:
            found[self.kind] = self.by_way(field)[self.way]
        return found

    def receive_ps(self, i: int) -> int:
        """The time for which transfer `i` keeps its receive side: `o_recv` unless local, and the reduction."""
        params = self.params_of(i)
        reduction = service_ps(int(self.nbytes[i]), params.gamma) if params.gamma and self.reduce[i] else 0
        return reduction + (params.o_recv if self.src[i] != self.dst[i] else 0)


def bind(
    schedule: Schedule,
    network: RoutedNetwork,
    devices: Sequence[str],
    params: Params,
    nbytes: int,
    *,
    itemsize: int = 1,
    weights: object = None,
    arrivals: Mapping[int, int] | None = None,
    compiled: bool | None = None,
) -> Program:
    """Bind a schedule to a network: `devices[p]` is where participant p sits, `nbytes` the size of the collective.

    `arrivals` maps ranks to the time (ps) they come; the others are there from the start. `compiled` forces or forbids
    numba.
    Raises InputError when a size cannot be cut or there are too many transfers, TopologyError when there is no route.
    """
    held = _held(schedule, nbytes, itemsize, weights)
    piece = max(itemsize, params.chunk // itemsize * itemsize) if params.chunk else int(held.max(initial=0))
    loops = max(1, -(-int(held.max(initial=0)) // max(1, piece)))
    if loops * len(schedule) > MOST_TRANSFERS:
        what = f"{loops} loops of {len(schedule)} transfers are more than {MOST_TRANSFERS}"
        cure = ("write a larger chunk", "model") if loops > 1 else ("ask for fewer ranks", "ranks")
        raise InputError([Diagnostic(what, *cure)])
    # A frame keeps its schedule, so that no other has the id.
    where = (id(schedule), tuple(devices), network.layout, loops, params.channels, params.channels_by, params.slots)
    frame = _FRAMES.known(where) if network.layout is not None and compiled is None else None
    if frame is None:
        compiled = choose(loops * len(schedule), compiled)
        frame = _framed(schedule, network, devices, params, loops, compiled)
        if network.layout is not None and loops * len(schedule) <= MOST_KEPT // 4:
            _FRAMES.keep(where, frame)
    sizes, kind, memo = frame.sized(held, piece, bool(compiled))
    return replace(
        frame.program,
        params=params,
        bandwidths=network.bandwidths,
        latencies=network.latencies,
        link_names=network.link_names,
        sizes=sizes,
        kind=kind,
        arrivals=_came(schedule, arrivals),
        memo=memo,
    )


@dataclass(frozen=True, eq=False)
class _Frame:
    """What programs of one schedule, routes and channels share: one of them, `waits` of the schedule's rows, and by
    what they follow from the columns of sizes that were made."""

    program: Program
    waits: Dependencies
    kinds: dict[tuple[bytes, bytes], tuple[Index, Memo]] = field(default_factory=dict)

    def sized(self, held: NDArray[np.int64], piece: int, compiled: bool) -> tuple[Index, Index, Memo]:
        """The sizes of a program, the kind of each transfer, and what was made of that."""
        schedule, loops = self.program.schedule, self.program.loops
        sizes, kind = _kinds(schedule, held, self.waits.reads)
        key = kind.tobytes(), (sizes // piece).tobytes() if loops > 1 else b""
        if key not in self.kinds:
            if len(self.kinds) >= MOST_KINDS:
                self.kinds.clear()
            carried = inherited(self.waits.reads, kind, compiled)
            if loops > 1:
                carried = _pieces(sizes, carried[self.program.origin], self.program.loop, piece)
            self.kinds[key] = carried, {}
        if loops > 1:
            sizes = np.append(sizes % piece, piece)
        return sizes, *self.kinds[key]


_FRAMES: Final[LruCache[_Frame]] = LruCache(MOST_KEPT, lambda frame: len(frame.program))


def _framed(
    schedule: Schedule, network: RoutedNetwork, devices: Sequence[str], params: Params, loops: int, compiled: bool
) -> _Frame:
    waits = whole = dependencies(schedule, compiled)
    src, dst, number = schedule.src, schedule.dst, _channel_numbers(schedule, loops, params)
    if loops > 1:
        loop, origin = program_order(schedule, loops)
        whole = _repeated(waits, loop, origin)
        src, dst = src[origin], dst[origin]
    way, ways = numbered(src, dst, compiled)
    routes = _routes(src, dst, way, ways, network, devices)
    nothing = np.zeros(0, np.int64)
    columns = Columns(way, nothing, nothing, number, *whole)
    return _Frame(assemble(schedule, params, network, routes, columns, None, loops, compiled), waits)


class Columns(NamedTuple):
    """The columns that come before channels, sides and credits follow: see `Program`. `number` is the
    channel that the sender uses for it, counted per sender, or one for all."""

    way: Index
    sizes: Index
    kind: Index
    number: Index
    reads: Index
    chain: Index


def assemble(
    schedule: Schedule,
    params: Params,
    network: RoutedNetwork,
    routes: ProgramRoutes,
    columns: Columns,
    arrivals: Mapping[int, int] | None = None,
    loops: int = 1,
    compiled: bool = False,
) -> Program:
    """Derive channels, receive sides and credits, and put the program together.

    In-network agents have one channel and one receive side per peer; `number` says nothing there.
    """
    way, number = columns.way, columns.number
    src, dst = routes.src[way], routes.dst[way]
    channel, channels = numbered(src, np.where(src >= schedule.n, dst, number) if schedule.agents else number, compiled)
    side, _ = numbered(dst, np.where(dst >= schedule.n, src, number) if schedule.agents else number, compiled)
    credit = np.broadcast_to(np.int32(NONE), len(way))
    if params.slots:
        connection, connections = numbered(numbered(src, dst, compiled)[0], number, compiled)
        credit = credits(connection, connections, params.slots, compiled)
    return Program(
        schedule=schedule,
        params=params,
        bandwidths=network.bandwidths,
        latencies=network.latencies,
        link_names=network.link_names,
        routes=routes,
        sizes=columns.sizes,
        way=way,
        kind=columns.kind,
        channel=channel,
        side=side,
        reads=columns.reads,
        chain=columns.chain,
        credit=credit,
        channel_before=predecessors(channel, channels, compiled),
        arrivals=_came(schedule, arrivals),
        loops=loops,
    )


def _came(schedule: Schedule, arrivals: Mapping[int, int] | None) -> NDArray[np.int64]:
    came = np.zeros(schedule.participants, np.int64)
    for rank, when in (arrivals or {}).items():
        came[rank] = when
    return came


def program_order(schedule: Schedule, loops: int) -> tuple[Index, Index]:
    """Loop and row of the schedule of each transfer: by step, counting the stagger, then loop, then row."""
    count = len(schedule)
    if loops == 1 or not schedule.pipelined:  # one loop after the other
        return np.repeat(np.arange(loops, dtype=np.int32), count), np.tile(np.arange(count, dtype=np.int32), loops)
    step = schedule.step[None, :] + np.arange(loops, dtype=np.int32)[:, None] * np.int32(_stagger(schedule))
    loop, origin = np.divmod(np.argsort(step.ravel(), kind="stable").astype(np.int32), np.int32(max(1, count)))
    return loop, origin


def _stagger(schedule: Schedule) -> int:
    return 1 if schedule.pipelined else schedule.n_steps


def _repeated(waits: Dependencies, loop: Index, origin: Index) -> Dependencies:
    """Predecessors within the schedule as indices within the program: always of the same loop."""
    place = np.empty((int(loop.max(initial=-1)) + 1, len(waits.reads)), np.int32)
    place[loop, origin] = np.arange(len(origin), dtype=np.int32)
    moved = (np.where(c[origin] == NONE, NONE, place[loop, np.maximum(c[origin], 0)]) for c in waits)
    return Dependencies(*moved)


# --- sizes ---


def _held(schedule: Schedule, nbytes: int, itemsize: int, weights: object) -> NDArray[np.int64]:
    """The bytes of each slot of each rank's buffer, int64 (n, n_chunks)."""
    contract = collective(schedule.collective)
    held = np.zeros((schedule.n, schedule.n_chunks), np.int64)
    try:
        for group in schedule.groups:
            held[list(group)] = contract.sizes(nbytes, len(group), schedule.n_chunks, schedule.root, itemsize, weights)
    except ValueError as error:
        raise InputError([Diagnostic(str(error), "mend the weights or the size", "weights")]) from None
    return held


def _kinds(schedule: Schedule, held: NDArray[np.int64], reads: Index) -> tuple[Index, Index]:
    """The distinct sizes of slots, the last of them 0, for slots that hold nothing at the start; and which of them each
    transfer carries that reads what was there at the start."""
    distinct, first = np.unique(held), np.flatnonzero(reads == NONE)
    first = first[(schedule.src[first] < schedule.n) & (schedule.src_slot[first] < schedule.n_chunks)]
    kind = np.full(len(reads), len(distinct), np.int32)
    kind[first] = np.searchsorted(distinct, held[schedule.src[first], schedule.src_slot[first]])
    return np.append(distinct, 0), kind


def _pieces(sizes: Index, kind: Index, loop: Index, piece: int) -> Index:
    """Kinds where each loop moves a piece of every slot: as many whole ones as it holds, what is left, and then
    nothing."""
    whole = (sizes // piece)[kind]
    return np.where(loop < whole, len(sizes), np.where(loop == whole, kind, len(sizes) - 1)).astype(np.int32)


# --- channels and routes ---


def _channel_numbers(schedule: Schedule, loops: int, params: Params) -> Index:
    """The channel of each transfer at its sender: chunks go to channels in turn, over all loops, or loops do; or a peer
    has one."""
    channels = params.channels
    if channels == 1:
        return np.zeros(1, np.int32)
    loop, origin = program_order(schedule, loops)
    if not channels:
        return schedule.dst[origin]
    if params.channels_by == "loop":
        return loop % np.int32(channels)
    return ((loop * np.int64(schedule.n_chunks) + schedule.src_slot[origin]) % channels).astype(np.int32)


def _routes(
    src: Index, dst: Index, way: Index, ways: int, network: RoutedNetwork, devices: Sequence[str]
) -> ProgramRoutes:
    some = np.empty(ways, np.int32)
    some[way] = np.arange(len(way), dtype=np.int32)  # a transfer that goes each way
    src, dst = src[some], dst[some]
    hop, links = network.routes(devices, src, dst)
    if hop[-1] > MOST_HOPS:
        what = f"{ways} routes of {hop[-1]} links in all are more than {MOST_HOPS} links"
        raise InputError([Diagnostic(what, "ask for fewer ranks", "ranks")])
    return ProgramRoutes(src, dst, hop.astype(np.int32), links.astype(np.int32))


def blocking_predecessors(program: Program) -> list[tuple[int, int]]:
    """With blocking sends: for each transfer the ones that must have ended before its sender, and its receiver, turn to
    it. A rank does one thing at a time, in step order; within a step all its sends, then all its receives
    (`sends-first`), or the other way round on odd ranks (`even-odd`)."""
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
