"""Bind a schedule to a network, sizes and parameters; the result is a program.

Dependencies, routes and channels do not depend on sizes, rates and latencies. They form a *frame*, which is cached and
shared by programs of all sizes, rates and latencies.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.lru import LruCache
from simcoll.config.machine_limits import check_memory, memory
from simcoll.config.numpy_helpers import Sets, distinct
from simcoll.engine._dependencies import Edges, Versions, ahead, inherited, numbered, origins, versions
from simcoll.engine.program import Memo, Program, ProgramRoutes, program_order
from simcoll.engine.timing_model import NONE, Dependencies, Index, Params, dependencies, piece_bytes
from simcoll.errors import Diagnostic, InputError, TopologyError
from simcoll.schedule.collectives import collective, weights_of
from simcoll.schedule.schedule import AnySchedule, Schedule, StreamedSchedule
from simcoll.topology.graph import Topology

BYTES: Final = 350  # of memory for each transfer of a running program; 270 to 380 depending on the hops of its route
MOVED: Final = 230  # bytes of memory for each slot that transfers of several slots move
FRAMED: Final = 40  # bytes of memory for each transfer of a frame
SHARE: Final = 16  # cached frames take at most 1/16 of the memory
LONG: Final = 1_000_000  # transfers; a longer frame, with the columns that engines add, takes hundreds of MB
MOST_KINDS: Final = 64  # columns of sizes cached with a frame
MOST_CREDITS: Final = 4  # columns of credits cached with a frame
MOST_HOPS: Final = 2**31 - 1  # hops of all routes together: indices have 32 bits


def check_room(transfers: int, what: str, cure: str, key: str) -> None:
    """Raise InputError if a program of `transfers` transfers needs more memory than this machine has."""
    check_memory(transfers * BYTES, what, cure, key)


def check_written(source: StreamedSchedule) -> None:
    """Raise InputError if all transfers of the schedule `source` need more memory than this machine has."""
    check_room(source.transfers, f"{source.transfers} transfers", "ask for fewer ranks", "ranks")


def written_out(source: AnySchedule) -> Schedule:
    """Return the schedule with all transfers in memory, for `bind`; raises InputError if memory is too small."""
    if isinstance(source, Schedule):
        return source
    check_written(source)
    return source.schedule()


def bind(
    schedule: Schedule,
    network: Topology,
    devices: Sequence[str],
    params: Params,
    nbytes: int,
    *,
    itemsize: int = 1,
    weights: object = None,
    arrivals: Mapping[int, int] | None = None,
) -> Program:
    """Bind a schedule to a network. Participant p runs on `devices[p]`; `nbytes` is the size of the collective.
    `arrivals` maps late ranks to their arrival in ps; all others arrive at 0. Raises InputError if a size cannot be
    divided into chunks or memory is too small, TopologyError if there is no route."""
    held, transfers = _held(schedule, nbytes, itemsize, weights), schedule.transfers
    most = _most_sent(schedule, held)
    piece = piece_bytes(params.chunk, itemsize) or most
    loops = max(1, -(-most // max(1, piece)))
    cure = ("write a larger chunk", "model") if loops > 1 else ("ask for fewer ranks", "ranks")
    check_room(loops * transfers, f"{loops} loops of {transfers} transfers", *cure)
    slots = params.slots
    if slots and slots >= loops * schedule.most_of_a_pair:  # then no transfer ever waits for a credit
        slots = 0
    # A frame holds its schedule, so no other schedule can get the same id.
    apart = loops * transfers < LONG  # of a long schedule only the last frame is cached
    where = (id(schedule), tuple(devices), network.layout, apart and loops, params.channels, params.channels_by)
    frame = _FRAMES.known(where)
    if frame is not None and frame.program.loops != loops:
        _FRAMES.drop(where)
        frame = None
    if frame is None:
        frame = _framed(schedule, network, devices, replace(params, slots=0), loops)
        if loops * transfers <= _FRAMES.most // 3:
            _FRAMES.keep(where, frame)
    sizes, kind, memo = frame.sized(held, piece)
    own = {
        "params": params,
        "bandwidths": network.bandwidths,
        "latencies": network.latencies,
        "link_names": network.link_names,
        "sizes": sizes,
        "kind": kind,
        "credit": frame.credit(slots),
        "arrivals": _came(schedule, arrivals),
        "memo": memo,
    }
    program = Program(**(frame.columns | own))
    if loops > 1:
        left = np.flatnonzero((program.nbytes > 0) | (program.loop == 0))
        if len(left) < len(program):
            return _of_what_is_left(program, left, network, slots)
    return program


@dataclass(frozen=True, eq=False)
class _Frame:
    """Columns shared by all programs with one schedule, one set of routes and one number of channels. `program` is one
    of these programs, `found` what its schedule's transfers wait for. `kinds` caches sizes of transfers by the slot
    sizes they follow from, `credits` caches the results of `credit` by `slots`."""

    program: Program
    found: Versions
    kinds: dict[tuple[bytes, bytes], tuple[Index, Memo]] = field(default_factory=dict)
    credits: dict[int, Index] = field(default_factory=dict)

    def credit(self, slots: int) -> Index:
        """Return for each transfer an earlier one, whose end frees one of the connection's `slots` for it, or NONE. If
        `slots` is 0, the number of messages in flight is not limited, and all are NONE."""
        program = self.program
        if slots and slots not in self.credits:
            if len(self.credits) >= MOST_CREDITS:
                self.credits.clear()
            connection = program.way if not program.schedule.routes else numbered(program.src, program.dst)[0]
            if program.params.channels > 1:
                number = _channel_numbers(program.schedule, program.loops, program.params, program.routes, program.way)
                connection, _ = numbered(connection, number)
            self.credits[slots] = ahead(connection, slots)
        return self.credits[slots] if slots else program.credit

    def sized(self, held: NDArray[np.int64], piece: int) -> tuple[Index, Index, Memo]:
        """Return the distinct sizes of a program in bytes, each transfer's index into them, and a cache for results
        that depend on these indices only. `held`: bytes of each slot of each rank. `piece`: the most bytes of a slot
        that one loop moves."""
        loops = self.program.loops
        if (of_slots := self._of_slots(held)) is not None:
            sums, number = np.unique(self._bytes_of_runs(of_slots, piece), return_inverse=True)
            return sums, number.astype(np.int32), {}
        if held.size and held.min() == held.max():
            every, which = held.reshape(-1)[:1], np.zeros(held.size, np.uint8)
        else:
            every = distinct(held)
            which = np.searchsorted(every, held.reshape(-1)).astype(np.min_scalar_type(len(every)))
        sizes = np.append(every, 0)  # the last kind holds nothing
        key = which.tobytes(), (sizes // piece).tobytes() if loops > 1 else b""
        if key not in self.kinds:
            if len(self.kinds) >= MOST_KINDS or len(self.program) >= LONG:
                self.kinds.clear()
            slots, reads, _ = self._slots
            kind = np.full(len(reads), len(every), np.int32)
            first, places = _inputs(slots, reads)
            kind[first] = which[places]
            carried = inherited(reads, kind)
            if loops > 1:
                rows = self._rows
                carried = _pieces(sizes, carried[rows.members], np.repeat(self.program.loop, rows.counts), piece)
            self.kinds[key] = carried, {}
        if loops > 1:
            sizes = np.append(sizes % piece, piece)
        carried, memo = self.kinds[key]
        if len(carried) > len(self.program):  # some transfers move several slots
            sums, number = np.unique(self._rows.sums_in_order(sizes[carried]), return_inverse=True)
            return sums, number.astype(np.int32), {}
        return sizes, carried, memo

    def _of_slots(self, held: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the bytes of each slot, (slots,), if rows move runs, and a slot's bytes do not depend on the rank and
        on what moved there: all slots are alike, or all values stay in their slots. Else return None."""
        if self.found.rows.size or not self.found.inputs.size:
            return None
        schedule = self.program.schedule
        of_slots, more = held.max(axis=0), schedule.n_slots - schedule.n_chunks
        if of_slots.min() < of_slots.max() and (more or not np.array_equal(schedule.src_slot, schedule.dst_slot)):
            return None
        of_slots = np.append(of_slots, np.full(more, of_slots.max()))
        has = np.zeros((schedule.participants, schedule.n_slots + 1), np.int64)
        has[: schedule.n, 1 : schedule.n_chunks + 1] = held
        sums, first, end = has.cumsum(axis=1).ravel(), *self.found.inputs
        wanted = np.append(0, np.cumsum(of_slots))
        inputs_fit = np.array_equal(
            sums[end] - sums[first], np.diff(wanted[self.found.inputs % len(wanted)], axis=0)[0]
        )
        return of_slots if inputs_fit else None

    def _bytes_of_runs(self, of_slots: NDArray[np.int64], piece: int) -> NDArray[np.int64]:
        """Return the bytes of each transfer, if each slot has the bytes `of_slots` in all loops together."""
        program, schedule = self.program, self.program.schedule
        if program.loops > 1:
            of_slots = np.clip(of_slots - np.arange(program.loops)[:, None] * piece, 0, piece)
        before = np.cumsum(np.pad(np.atleast_2d(of_slots), ((0, 0), (1, 0))), axis=1)
        rows, slot = program.rows, schedule.src_slot[program.rows.members]
        loop, end = np.repeat(program.loop, rows.counts), slot + schedule.count[rows.members]
        return rows.sums_in_order(before[loop, end] - before[loop, slot])

    @cached_property
    def _slots(self) -> tuple[Schedule, Index, Index]:
        """The schedule by slot; for each of its rows the row that wrote the value it sends, and the schedule's transfer
        that it belongs to. Raises InputError if memory is too small."""
        schedule, loops = self.program.schedule, self.program.loops
        if (moved := int(schedule.count.sum())) > schedule.transfers:
            cure = "choose a size that all ranks' chunks divide", "size"
            check_memory(loops * moved * MOVED, f"{loops} loops of transfers of {moved} chunks", *cure)
        rows = schedule.by_slot()
        reads = self.found.rows if len(self.found.rows) == len(rows) else origins(schedule)
        return rows, reads, np.cumsum(~rows.joins, dtype=np.int32) - np.int32(1)

    @cached_property
    def _rows(self) -> Sets:
        """The rows of `slots` that belong to each transfer of the program."""
        _, transfer = program_order(self.program.schedule, self.program.loops)
        return Sets.by(self._slots[2], self.program.schedule.transfers).taken(transfer)

    @cached_property
    def columns(self) -> dict[str, Any]:
        """A dictionary of the fields of `program`, by name."""
        return {each.name: getattr(self.program, each.name) for each in fields(self.program)}


_FRAMES: Final[LruCache[_Frame]] = LruCache(memory() // SHARE // FRAMED, lambda frame: len(frame.program))


def _framed(schedule: Schedule, network: Topology, devices: Sequence[str], params: Params, loops: int) -> _Frame:
    found = versions(schedule)
    whole = waits = Dependencies(*found[:3])
    src, dst, own = (column[schedule.heads] for column in (schedule.src, schedule.dst, schedule.route))
    if loops > 1:
        loop, transfer = program_order(schedule, loops)
        whole = _repeated(waits, loop, transfer)
        src, dst, own = src[transfer], dst[transfer], own[transfer]
    way, ways = numbered(src, dst)
    if schedule.routes:
        way, ways = numbered(way, own + np.int32(1))
        some = np.unique(way, return_index=True)[1]
        routes = _own_routes(schedule, src[some], dst[some], own[some], network, devices)
    else:
        routes = _routes(src, dst, way, ways, network, devices)
    nothing, number = np.zeros(0, np.int64), _channel_numbers(schedule, loops, params, routes, way)
    columns = Columns(way, nothing, nothing, number, *whole)
    program = assemble(schedule, params, network, routes, columns, None, loops)
    return _Frame(program, found)


class Columns(NamedTuple):
    """The columns from which channels, receive sides and credits are computed: see `Program`. `number` is the number of
    each transfer's channel at its sender, or a single entry for all."""

    way: Index
    sizes: Index
    kind: Index
    number: Index
    reads: Edges
    chain: Edges
    adds: NDArray[np.bool_]


def assemble(
    schedule: Schedule,
    params: Params,
    network: Topology,
    routes: ProgramRoutes,
    columns: Columns,
    arrivals: Mapping[int, int] | None = None,
    loops: int = 1,
) -> Program:
    """Return the program, with its channels, receive sides and credits computed from the other `columns`. An in-network
    agent has one channel and receive side per peer; with `channels_by: step`, per peer and number."""
    way, number = columns.way, columns.number
    src, dst = routes.src[way], routes.dst[way]
    to, of = dst, src
    if params.channels_by == "step":
        to, of = (each * np.int64(max(1, params.channels)) + number for each in (dst, src))
    channel, _ = numbered(src, np.where(src >= schedule.n, to, number) if schedule.agents else number)
    side, _ = numbered(dst, np.where(dst >= schedule.n, of, number) if schedule.agents else number)
    credit = np.broadcast_to(np.int32(NONE), len(way))
    if params.slots:
        connection, _ = numbered(numbered(src, dst)[0], number)
        credit = ahead(connection, params.slots)
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
        adds=columns.adds,
        credit=credit,
        channel_before=ahead(channel, 1),
        arrivals=_came(schedule, arrivals),
        loops=loops,
    )


def _came(schedule: Schedule, arrivals: Mapping[int, int] | None) -> NDArray[np.int64]:
    came = np.zeros(schedule.participants, np.int64)
    for rank, when in (arrivals or {}).items():
        came[rank] = when
    return came


def _of_what_is_left(program: Program, left: Index, network: Topology, slots: int) -> Program:
    """Return the program with only the transfers numbered `left`. All others have no bytes left in their loop."""
    schedule, params = program.schedule, replace(program.params, slots=slots)
    kept = program.rows.taken(left)
    rows, first_slot = kept.members, np.repeat(program.loop[left], kept.counts) * np.int32(schedule.n_slots)
    some = schedule.replace(
        step=np.repeat(program.step[left], kept.counts),
        src=schedule.src[rows],
        src_slot=schedule.src_slot[rows] + first_slot,
        dst=schedule.dst[rows],
        dst_slot=schedule.dst_slot[rows] + first_slot,
        reduce=schedule.reduce[rows],
        count=schedule.count[rows],
        joins=schedule.joins[rows],
        route=schedule.route[rows],
    )
    of_all = _channel_numbers(schedule, program.loops, params, program.routes, program.way)
    number = np.broadcast_to(of_all, len(program))[left]
    columns = Columns(program.way[left], program.sizes, program.kind[left], number, *dependencies(some))
    made = assemble(schedule, params, network, program.routes, columns, None, program.loops)
    return replace(made, params=program.params, arrivals=program.arrivals, sent=left)


def _repeated(waits: Dependencies, loop: Index, transfer: Index) -> Dependencies:
    """Convert the dependencies of the schedule's transfers into those of all loops: a transfer of the program waits for
    transfers of its own loop."""
    place = np.empty((int(loop.max(initial=-1)) + 1, len(waits.adds)), np.int32)
    place[loop, transfer] = np.arange(len(transfer), dtype=np.int32)

    def moved(edges: Edges) -> Edges:
        taken = Sets(edges.before.astype(np.int64), np.diff(edges.first)).taken(transfer)
        before = place[np.repeat(loop, taken.counts), taken.members]
        return Edges.between(np.repeat(np.arange(len(transfer)), taken.counts), before, len(transfer))

    return Dependencies(moved(waits.reads), moved(waits.chain), waits.adds[transfer])


# --- sizes ---


def slot_bytes(schedule: Schedule, nbytes: int, itemsize: int = 1, weights: object = None) -> NDArray[np.int64]:
    """Return the bytes that each row of `schedule.by_slot()` moves, in all loops together, int64 (rows,). Arguments and
    errors are those of `bind`."""
    reads = origins(schedule)
    first, slots = _inputs(schedule.by_slot(), reads)
    size = np.zeros(len(reads), np.int64)
    size[first] = _held(schedule, nbytes, itemsize, weights).reshape(-1)[slots]
    return size[inherited(reads, np.arange(len(reads), dtype=np.int32))]


def _inputs(rows: Schedule, reads: Index) -> tuple[Index, Index]:
    """Return the rows of a schedule by slot that send a rank's own input; and for each such row the index of the slot
    it reads in the flattened array (ranks, n_chunks). `reads`: the row that wrote the value a row sends, or NONE."""
    first = np.flatnonzero(reads == NONE).astype(np.int32)
    first = first[(rows.src[first] < rows.n) & (rows.src_slot[first] < rows.n_chunks)]
    place = rows.src[first] * np.int64(rows.n_chunks) + rows.src_slot[first]
    return first, place.astype(np.uint32)  # sizes of more slots would fit no memory


def _held(schedule: Schedule, nbytes: int, itemsize: int, weights: object) -> NDArray[np.int64]:
    """Return the bytes of each slot of each rank's buffer, int64 (n, n_chunks)."""
    contract = collective(schedule.collective)
    more = schedule.n_chunks, schedule.root, itemsize
    try:
        if schedule.groups == (tuple(range(schedule.n)),):
            return contract.sizes(nbytes, schedule.n, *more, weights)
        held = np.zeros((schedule.n, schedule.n_chunks), np.int64)
        for group in schedule.groups:
            own = weights_of(weights, group, schedule.n)
            held[list(group)] = contract.sizes(nbytes, len(group), *more, own)
    except ValueError as error:
        raise InputError([Diagnostic(str(error), "change the weights or the size", "weights")]) from None
    return held


def _most_sent(schedule: Schedule, held: NDArray[np.int64]) -> int:
    """Return the bytes of the largest slot that any rank sends."""
    most = int(held.max(initial=0))
    if most == int(held.min(initial=most)):
        return most
    rows = np.flatnonzero((schedule.src < schedule.n) & (schedule.src_slot < schedule.n_chunks))
    first, width = schedule.src_slot[rows], schedule.n_chunks + 1
    ends = first, np.minimum(first + schedule.count[rows], schedule.n_chunks)
    begin, end = (np.bincount(schedule.src[rows] * width + slot, minlength=schedule.n * width) for slot in ends)
    sent = np.cumsum(begin - end).reshape(schedule.n, width)[:, :-1] > 0
    return int(held[sent].max(initial=0))


def _pieces(sizes: Index, kind: Index, loop: Index, piece: int) -> Index:
    """Return the index of each transfer's size if each loop moves at most `piece` bytes of a slot: a whole piece in the
    first loops, then once the remainder, then 0 bytes."""
    whole = (sizes // piece)[kind]
    return np.where(loop < whole, len(sizes), np.where(loop == whole, kind, len(sizes) - 1)).astype(np.int32)


# --- channels and routes ---


def _channel_numbers(schedule: Schedule, loops: int, params: Params, routes: ProgramRoutes, way: Index) -> Index:
    """Return the number of the sender's channel that each transfer uses. First chunks (over all loops) or steps use the
    channels round-robin; with `channels: 0` there is one channel for each peer. With `channels_by: port` there is one
    for each first link of a route, and one for messages that cross no link."""
    channels = params.channels
    if params.channels_by == "port":
        first = np.append(routes.links, 0)[routes.hop[:-1]] + np.int32(1)
        return np.where(np.diff(routes.hop) > 0, first, 0).astype(np.int32)[way]
    if channels == 1:
        return np.zeros(1, np.int32)
    loop, transfer = program_order(schedule, loops)
    origin = schedule.heads[transfer]
    if not channels:
        return schedule.dst[origin]
    if params.channels_by == "step":
        return (schedule.step[origin] % np.int32(channels)).astype(np.int32)
    return ((loop * np.int64(schedule.n_chunks) + schedule.src_slot[origin]) % channels).astype(np.int32)


def _routes(src: Index, dst: Index, way: Index, ways: int, network: Topology, devices: Sequence[str]) -> ProgramRoutes:
    if ways < len(way):  # else each transfer has its own route, in this order
        some = np.empty(ways, np.int32)
        some[way] = np.arange(len(way), dtype=np.int32)  # one transfer of each route
        src, dst = src[some], dst[some]
    hop, links = network.routes(devices, src, dst)
    if hop[-1] > MOST_HOPS:
        what = f"{ways} routes of {hop[-1]} links in all are more than {MOST_HOPS} links"
        raise InputError([Diagnostic(what, "ask for fewer ranks", "ranks")])
    return ProgramRoutes(src, dst, hop.astype(np.int32), links.astype(np.int32, copy=False))


def _own_routes(
    schedule: Schedule, src: Index, dst: Index, own: Index, network: Topology, devices: Sequence[str]
) -> ProgramRoutes:
    """Return the routes of which some are the schedule's own (`own`, (ways,): their indices, or −1). Raises
    TopologyError if a route does not lead from its sender's device to its receiver's over links that there are."""
    found = []
    for a, b, number in zip(src.tolist(), dst.tolist(), own.tolist(), strict=True):
        way = (devices[a], devices[b]) if number < 0 else schedule.routes[number]
        if (way[:1], way[-1:]) != ((devices[a],), (devices[b],)):
            what = f"{schedule.name}: the route {'->'.join(way)} does not lead from {devices[a]} to {devices[b]}"
            raise TopologyError(what, "begin and end a route with the devices of sender and receiver")
        hops = [(*ends, network.route(*ends)) for ends in itertools.pairwise(way)]
        for u, v, links in hops:
            if number >= 0 and len(links) != 1:
                raise TopologyError(f"{schedule.name}: there is no link {u}->{v}", "name every device of a route")
        found.append([link for _, _, links in hops for link in links])
    hop = np.cumsum([0, *map(len, found)], dtype=np.int32)
    return ProgramRoutes(src, dst, hop, np.fromiter(itertools.chain.from_iterable(found), np.int32, hop[-1]))
