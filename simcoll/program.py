"""A schedule bound to sizes, loops, channels and routes: what an engine runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.collectives import collective
from simcoll.errors import Diagnostic, InputError
from simcoll.model import NONE, Index, Network, Params, dependencies, service_ps
from simcoll.schedule import Schedule
from simcoll.steps import Ints

MOST_TRANSFERS: Final = 50_000_000  # of a program: more take more memory than a machine for this has
DENSE: Final = 1 << 22  # keys up to about here are numbered by a table, beyond by sorting


@dataclass(frozen=True, eq=False)
class Program:
    """A schedule bound to sizes, loops, channels and routes: what an engine runs.

    Columns (one entry a transfer, in index order): `origin` the row of the schedule, `loop`, `step` (counting the
    stagger of loops), `src`, `dst`, `nbytes`, `reduce`; `channel` and `side` number the sending channels and the
    receive sides densely in order of first use; `reads`, `chain` (see Dependencies), `credit`, `channel_before` are
    indices of predecessors or NONE. Hops: the route of transfer i is `links[hop[i]:hop[i + 1]]`. `arrivals`
    (participants,): when each comes.
    """

    schedule: Schedule
    params: Params
    bandwidths: Index
    latencies: Index
    link_names: Sequence[str]
    origin: Index
    loop: Index
    step: Index
    src: Ints
    dst: Ints
    nbytes: Index
    reduce: NDArray[np.bool_]
    channel: Index
    side: Index
    reads: Index
    chain: Index
    credit: Index
    channel_before: Index
    hop: Index
    links: Index
    arrivals: Index
    loops: int

    def __len__(self) -> int:
        return len(self.origin)

    def route(self, i: int) -> list[int]:
        """The links of transfer `i`; empty for a local copy without a memory link."""
        return self.links[self.hop[i] : self.hop[i + 1]].tolist()  # type: ignore[no-any-return]

    @cached_property
    def hop_bytes(self) -> Index:
        """The bytes that each hop carries."""
        return np.repeat(self.nbytes, np.diff(self.hop))

    @property
    def wire_bytes(self) -> int:
        """Payload summed over the links it crosses; local copies cross none."""
        return int((self.nbytes * np.diff(self.hop))[self.src != self.dst].sum())

    @property
    def bytes_per_rank(self) -> int:
        """The most bytes that any rank sends."""
        out = np.zeros(self.schedule.participants, np.int64)
        away = self.src != self.dst
        np.add.at(out, self.src[away], self.nbytes[away])
        return int(out[: self.schedule.n].max())

    def receive_ps(self, i: int) -> int:
        """How long transfer `i` keeps its receive side: `o_recv` unless local, and the reduction."""
        gamma = self.params.gamma
        reduction = service_ps(int(self.nbytes[i]), gamma) if gamma and self.reduce[i] else 0
        return reduction + (self.params.o_recv if self.src[i] != self.dst[i] else 0)


def bind(
    schedule: Schedule,
    network: Network,
    devices: Sequence[str],
    params: Params,
    nbytes: int,
    *,
    itemsize: int = 1,
    weights: object = None,
    arrivals: Mapping[int, int] | None = None,
) -> Program:
    """Bind a schedule to a network: `devices[p]` is where participant p sits, `nbytes` the size of the collective.

    `arrivals` maps ranks to the time (ps) they come; the others are there from the start.
    Raises InputError when a size cannot be cut, TopologyError when there is no route.
    """
    sizes = _loop_sizes(schedule, nbytes, itemsize, weights, params.chunk)
    loops, count = len(sizes), len(schedule)
    stagger = 1 if schedule.pipelined else schedule.n_steps
    step = (schedule.step[None, :] + np.arange(loops, dtype=np.int32)[:, None] * stagger).ravel()
    order = np.argsort(step, kind="stable").astype(np.int32)  # by step, then loop, then index
    loop, origin = np.divmod(order, np.int32(max(1, count)))
    place = np.empty((loops, count), np.int32)
    place[loop, origin] = np.arange(len(order), dtype=np.int32)
    reads, chain = (_moved(column, place, loop, origin) for column in dependencies(schedule))
    number = _channel_numbers(schedule, loop, origin, params.channels)
    hop, links = _hops(schedule.src[origin], schedule.dst[origin], network, devices)
    return assemble(
        schedule,
        params,
        network,
        Columns(origin, loop, step[order], _sizes(sizes, loop, origin), number, reads, chain, hop, links),
        arrivals,
    )


def _channel_numbers(schedule: Schedule, loop: Index, origin: Index, channels: int) -> Index:
    """The channel of each transfer at its sender: chunks go to channels in turn, over all loops, or each peer has one."""
    if not channels:
        return schedule.dst[origin].astype(np.int32)
    if channels == 1:
        return np.zeros(len(loop), np.int32)
    chunk = loop.astype(np.int64) * schedule.n_chunks + schedule.src_slot[origin]
    return (chunk % channels).astype(np.int32)


class Columns(NamedTuple):
    """What has to be known of each transfer before channels, sides and credits follow: see `Program`. `number` is the
    channel that the sender uses for it, counted per sender."""

    origin: Index
    loop: Index
    step: Index
    nbytes: Index
    number: Index
    reads: Index
    chain: Index
    hop: Index
    links: Index


def assemble(
    schedule: Schedule,
    params: Params,
    network: Network,
    columns: Columns,
    arrivals: Mapping[int, int] | None = None,
) -> Program:
    """Derive channels, receive sides and credits, and put the program together.

    In-network agents have one channel and one receive side per peer; `number` says nothing there.
    """
    src, dst, number = schedule.src[columns.origin], schedule.dst[columns.origin], columns.number
    channel = _dense(src, np.where(src >= schedule.n, dst, number))
    came = np.zeros(schedule.participants, np.int64)
    for rank, when in (arrivals or {}).items():
        came[rank] = when
    return Program(
        schedule=schedule,
        params=params,
        bandwidths=network.bandwidths,
        latencies=network.latencies,
        link_names=network.link_names,
        origin=columns.origin,
        loop=columns.loop,
        step=columns.step,
        src=src,
        dst=dst,
        nbytes=columns.nbytes,
        reduce=schedule.reduce[columns.origin],
        channel=channel,
        side=_dense(dst, np.where(dst >= schedule.n, src, number)),
        reads=columns.reads,
        chain=columns.chain,
        credit=_before(_dense(src, dst, number), params.slots) if params.slots else np.full(len(src), NONE, np.int32),
        channel_before=_before(channel, 1),
        hop=columns.hop,
        links=columns.links,
        arrivals=came,
        loops=int(columns.loop.max(initial=0)) + 1,
    )


def _loop_sizes(schedule: Schedule, nbytes: int, itemsize: int, weights: object, chunk: int) -> list[NDArray[np.int64]]:
    """For each loop the bytes of every transfer of the schedule. Equal loops share one array."""
    contract = collective(schedule.collective)
    held = np.zeros((schedule.n, schedule.n_chunks), np.int64)
    try:
        for group in schedule.groups:
            held[list(group)] = contract.sizes(nbytes, len(group), schedule.n_chunks, schedule.root, itemsize, weights)
    except ValueError as error:
        raise InputError([Diagnostic(str(error), "mend the weights or the size", "weights")]) from None
    if not chunk:
        return [_flow_of_sizes(schedule, held)]
    piece = max(itemsize, chunk // itemsize * itemsize)
    loops = max(1, -(-int(held.max(initial=0)) // piece))
    if loops * len(schedule) > MOST_TRANSFERS:
        what = f"{loops} loops of {len(schedule)} transfers are more than {MOST_TRANSFERS}"
        raise InputError([Diagnostic(what, "write a larger chunk", "model")])
    known: dict[bytes, NDArray[np.int64]] = {}
    found = []
    for loop in range(loops):
        part = np.clip(held - loop * piece, 0, piece)
        key = part.tobytes()
        if key not in known:
            known[key] = _flow_of_sizes(schedule, part)
        found.append(known[key])
    return found


def _flow_of_sizes(schedule: Schedule, held: NDArray[np.int64]) -> NDArray[np.int64]:
    """The size of each transfer: that of the value it reads, wherever it has come from."""
    if held.size and held.min() == held.max():
        return np.full(len(schedule), held.flat[0], np.int64)
    width = schedule.n_slots
    table = np.zeros((schedule.participants, width), np.int64)
    table[: schedule.n, : schedule.n_chunks] = held
    flat = table.ravel()
    read = schedule.src.astype(np.int64) * width + schedule.src_slot
    write = schedule.dst.astype(np.int64) * width + schedule.dst_slot
    sizes = np.empty(len(schedule), np.int64)
    for rows in schedule.steps():
        sizes[rows] = flat[read[rows]]
        flat[write[rows]] = sizes[rows]
    return sizes


def _sizes(sizes: list[NDArray[np.int64]], loop: Index, origin: Index) -> Index:
    if len(sizes) == 1:
        return sizes[0][origin]
    distinct = {id(column): column for column in sizes}
    row_of = {key: row for row, key in enumerate(distinct)}
    rows: Index = np.asarray([row_of[id(column)] for column in sizes])
    found: Index = np.stack(list(distinct.values()))[rows[loop], origin]
    return found


def _moved(column: Index, place: Index, loop: Index, origin: Index) -> Index:
    """Predecessors within the schedule as indices within the program: always of the same loop."""
    before = column[origin]
    return np.where(before == NONE, NONE, place[loop, np.maximum(before, 0)]) if len(before) else before


def _dense(*columns: NDArray[Any]) -> Index:
    """Number the distinct combinations of some columns in order of first use."""
    key = columns[0].astype(np.int64)
    for column in columns[1:]:
        key = key * (int(column.max(initial=0)) + 1) + column
    span = int(key.max(initial=-1)) + 1
    if span > 4 * len(key) + DENSE:
        _, key = np.unique(key, return_inverse=True)
        span = int(key.max(initial=-1)) + 1
    first = np.full(span, len(key), np.int32)
    first[key[::-1]] = np.arange(len(key) - 1, -1, -1, dtype=np.int32)  # the last to be written is the first used
    used = np.flatnonzero(first < len(key))
    number = np.empty(span, np.int32)
    number[used[np.argsort(first[used])]] = np.arange(len(used), dtype=np.int32)
    return number[key]


def _before(group: Index, distance: int) -> Index:
    """For each entry the index of the entry `distance` places before it in the same group, or NONE."""
    order = np.argsort(group, kind="stable").astype(np.int32)
    before = np.full(len(group), NONE, np.int32)
    if distance < len(group):
        same = group[order[distance:]] == group[order[:-distance]]
        before[order[distance:]] = np.where(same, order[:-distance], NONE)
    return before


def _hops(src: Ints, dst: Ints, network: Network, devices: Sequence[str]) -> tuple[Index, Index]:
    """Routes, looked up once per pair, laid end to end."""
    which = _dense(src, dst)
    count = int(which.max(initial=-1)) + 1
    some = np.empty(count, np.int64)
    some[which] = np.arange(len(which))  # a transfer of each pair
    pairs = zip(src[some].tolist(), dst[some].tolist(), strict=True)
    routes = [network.route(devices[a], devices[b]) for a, b in pairs]
    lengths = np.asarray([len(route) for route in routes], dtype=np.int32)
    hop = np.zeros(len(src) + 1, np.int32)
    np.cumsum(lengths[which], out=hop[1:])
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    flat = np.asarray([link for route in routes for link in route], dtype=np.int32)
    within = np.arange(hop[-1], dtype=np.int32) - np.repeat(hop[:-1], np.diff(hop))
    return hop, flat[np.repeat(starts[which], lengths[which]) + within]


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
