"""The streamed engine: replay schedules that are too long for memory. It keeps sums and ends of the run, no timeline.

It reads one step after the other, binds it to links, replays it in schedule order and drops it. If a pattern repeats
between participants that share no link (as in rings), its steps run as whole columns of rows. The replay checks that
schedule order is the order of time. If it is not, there is no result, and an engine with a heap runs the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.config import numba_loader
from simcoll.config.machine_limits import check_time
from simcoll.config.numba_loader import WORTH_COMPILING, compile_kernel
from simcoll.config.numpy_helpers import Array, distinct
from simcoll.engine.compiled import streamed_loop
from simcoll.engine.timeline import CallEnds, CallSums, Totals
from simcoll.engine.timing_model import NEVER, Params, piece_bytes, service_ps, too_late
from simcoll.errors import wrong
from simcoll.schedule.collectives import collective, cut
from simcoll.schedule.schedule import AnySchedule, StreamedSchedule
from simcoll.schedule.steps import Repeat, StepPattern
from simcoll.topology.graph import Topology
from simcoll.units import format_count

CHEAP: Final = 1000  # about how many times faster a row runs in a column than alone, without numba


class RoutedPart(NamedTuple):
    """A part of a stream with its routes: row i takes the links `links[hop[i]:hop[i + 1]]`. `connection[i]` is the
    number of its (sender, receiver) pair; empty if `slots` is 0. In the next step row i sends what row `before[i]`
    writes in this step. `before` is None unless the part is a `Repeat` whose rows share no sender, receiver or link."""

    part: StepPattern
    hop: Array
    links: Array
    connection: Array
    before: Array | None


class RoutedParts:
    """The parts (steps and repeats) of a stream with their routes. Routes are found once if the stream caches its
    parts, else again on each pass."""

    def __init__(self, stream: StreamedSchedule, network: Topology, devices: Sequence[str], params: Params):
        self.stream, self.network, self.devices, self.params = stream, network, devices, params
        self._connections: dict[int, int] = {}

    def bound(self) -> Iterator[RoutedPart]:
        """Return an iterator over the parts with their routes."""
        return iter(self._kept) if self.stream.held else map(self._bind, self.stream.parts())

    @property
    def connections(self) -> int:
        """The number of (sender, receiver) pairs in all parts whose routes were found so far."""
        return len(self._connections)

    @property
    def links(self) -> Array:
        """The numbers of all links on the routes."""
        return distinct(np.concatenate([bound.links for bound in self.bound()]))

    def work(self, whole: bool, single: int) -> float:
        """Estimate how many rows are replayed one by one. `whole`: after `single` steps a repeat runs as columns."""
        if not self.stream.held or not whole:
            return self.stream.transfers
        return sum(
            bound.part.transfers if bound.before is None else bound.part.rows * (single + bound.part.steps / CHEAP)
            for bound in self._kept
        )

    @cached_property
    def _kept(self) -> list[RoutedPart]:
        return [self._bind(part) for part in self.stream.parts()]

    def _bind(self, part: StepPattern) -> RoutedPart:
        step = part.first
        hop, links = self.network.routes(self.devices, step.src, step.dst)
        connection = np.zeros(0, np.int64)
        if self.params.slots:
            keys = (step.src.astype(np.int64) * self.stream.participants + step.dst).tolist()
            known = self._connections
            connection = np.asarray([known.setdefault(key, len(known)) for key in keys], np.int64)
        return RoutedPart(part, hop, links, connection, _before(part, links, self.params))


def _before(part: StepPattern, links: Array, params: Params) -> Array | None:
    """Return for each row of a repeat the row that, in each step, writes what this row sends in the next step. None if
    two rows share a sender, receiver or link, or if the part is no repeat."""
    if not isinstance(part, Repeat):
        return None
    step, n = part.first, part.rows
    if params.channels > 1 or params.barrier:
        return None
    shared = any(np.bincount(column, minlength=1).max() > 1 for column in (step.src, step.dst, links))
    if shared or (step.src == step.dst).any():
        return None
    by_dst = np.argsort(step.dst)
    at = np.searchsorted(step.dst[by_dst], step.src)
    before = by_dst[np.minimum(at, n - 1)]
    written = part.base + (step.dst_slot - part.base) % part.span
    read = part.base + (step.src_slot - part.base + part.shift) % part.span
    matched = (step.dst[before] == step.src) & (written[before] == read) & (part.base[before] == part.base)
    return before.astype(np.int64) if matched.all() else None


WIDTH: Final = 8  # versions remembered for each participant; if these are too few, all its slots are
MOST_SLOTS: Final = 1 << 27  # slots, over all participants, that may be remembered
BLOCK: Final = 1024  # rows run together at a time, so that their data fits a core's cache
PEELED: Final = 3  # most steps of a repeat that are replayed one by one before the others run as columns

REPLAYED_S: Final = 4e-9  # CPU seconds for each message that is replayed, at most; in columns about half of it
MADE_S: Final = 2e-7  # CPU seconds to generate one row of a step

NOTHING: Final[Array] = np.zeros(0, np.int64)
IDLE: Final = -(2**61)  # time of a missing link, where routes have different lengths: never busy


def check_steps(messages: int, rows: int = 0, key: str = "ranks") -> None:
    """Raise InputError if it takes longer than allowed to replay `messages` and to generate `rows`."""
    took_s = messages * REPLAYED_S + rows * MADE_S
    check_time(took_s, f"{format_count(max(messages, rows))} messages", "ask for fewer ranks", key)


def run(
    parts: RoutedParts,
    sizes: Sequence[Array],
    arrivals: Mapping[int, int] | None = None,
    compiled: bool | None = None,
    whole: bool = True,
) -> Totals | None:
    """Replay a stream and return its totals. Return None if it cannot be replayed, or if steps do not follow each other
    in time. `sizes`: for each loop the bytes of every slot of the buffer, int64 (n_chunks,), equal on all ranks.
    `compiled` forces or forbids numba. `whole` allows repeated steps to run as columns."""
    came = np.zeros(parts.stream.n, np.int64)
    for rank, when in (arrivals or {}).items():
        came[rank] = when
    replay = _replayed(parts, sizes, came, None, compiled, whole)
    return replay.totals if replay else None


def ends(
    parts: RoutedParts, sizes: Sequence[Array], came: Array, busy: Array, compiled: bool | None = None
) -> tuple[CallEnds, CallSums] | None:
    """Replay a stream under `fifo` sharing and return when it ends, and its traffic; None as for `run`. Rank r arrives
    at `came[r]` ps, (ranks,). Each link is occupied by others until `busy` (ps), (links,)."""
    replay = _replayed(parts, sizes, came, busy, compiled, True)
    return (replay.ends, replay.sums) if replay else None


def has_single_peers(stream: StreamedSchedule) -> bool:
    """Return whether every participant sends to one participant only, and receives from one only. A channel for each
    peer then is one channel."""
    to, of = (np.full(stream.participants, -1, np.int64) for _ in range(2))
    for part in stream.parts():
        src, dst = part.first.src, part.first.dst
        for known, here, there in ((to, src, dst), (of, dst, src)):
            new = known[here] < 0
            known[here[new]] = there[new]
            if (known[here] != there).any():
                return False
    return True


def _replayed(
    parts: RoutedParts,
    sizes: Sequence[Array],
    came: Array,
    busy: Array | None,
    compiled: bool | None,
    whole: bool,
) -> _Replay | None:
    """Return a finished replay, or None. With `busy` it also has the ends of ranks and links."""
    stream = parts.stream
    if not _fits(stream, parts.network, parts.params, sizes):
        return None
    if compiled is None:
        even = all(loop.min() == loop.max() for loop in sizes)  # uneven sizes never run as columns
        work = parts.work(whole and even, PEELED + 1) * len(sizes)
        compiled = numba_loader.have_numba() and work >= WORTH_COMPILING
    for width in (WIDTH, 0):
        if width or stream.participants * stream.n_slots <= MOST_SLOTS:
            replay = _Replay(parts, sizes, came, busy, compiled, width)
            code = replay.run(whole)
            if code != streamed_loop.OVERFLOW:
                return replay if code == streamed_loop.DONE else None
    return None


def loop_sizes(stream: AnySchedule, nbytes: int, itemsize: int, chunk: int) -> list[Array]:
    """Return for each loop the bytes of every slot of the buffer, int64 (n_chunks,); one loop if `chunk` is 0. Raises
    InputError if `nbytes` cannot be divided among the slots."""
    blocks = collective(stream.collective).blocks(stream.n)
    try:
        (held,) = cut(nbytes, stream.n, stream.n_chunks, itemsize, None, blocks)
    except ValueError as error:
        raise wrong("size", str(error), "change the size") from None
    if not chunk:
        return [held]
    piece = piece_bytes(chunk, itemsize)
    loops, whole = max(1, -(-int(held.max()) // piece)), int(held.min()) // piece
    return [np.full_like(held, piece)] * whole + [np.clip(held - k * piece, 0, piece) for k in range(whole, loops)]


def _fits(stream: StreamedSchedule, network: Topology, params: Params, sizes: Sequence[Array]) -> bool:
    """Return whether the stream can be replayed. Loops must run one after the other and send every row. Each row must
    be a transfer of one slot. There must be no in-network agents, blocking sends or dead links. Sizes must be equal or
    belong to slots."""
    looped = len(sizes) > 1 and (stream.pipelined or not sizes[-1].all())
    if looped or stream.agents or not stream.single or params.blocking != "no" or not network.bandwidths.all():
        return False
    return len({int(size) for loop in sizes for size in (loop.min(), loop.max())}) == 1 or _keeps_slots(stream)


def _keeps_slots(stream: StreamedSchedule) -> bool:
    rows = (part.first for part in stream.parts())
    return stream.n_slots == stream.n_chunks and all(np.array_equal(step.src_slot, step.dst_slot) for step in rows)


class _Alone(NamedTuple):
    """Durations in ps for rows whose links no other row uses, (rows,). From the start of a row: until it is `sent`,
    until its channel may start again (`hold`), until its head and its tail have passed the first link. Then the row's
    links (−1: none), their service times (`busy`) and latencies (`away`), (depth, rows); and the time to receive."""

    sent: Array
    hold: Array
    to_head: Array
    to_tail: Array
    link: Array
    busy: Array
    away: Array
    receive: Array


class _Replay:
    """One replay of a stream, with the columns that the kernel changes: arrays if numba compiled it, else lists."""

    def __init__(
        self,
        parts: RoutedParts,
        sizes: Sequence[Array],
        came: Array,
        busy: Array | None,
        compiled: bool,
        width: int,
    ):
        stream, network, params = parts.stream, parts.network, parts.params
        self.parts, self.stream, self.network, self.params = parts, stream, network, params
        self.sizes, self.compiled, self.width = sizes, compiled, width
        self.kernel: Any = compile_kernel(streamed_loop) if compiled else streamed_loop
        self.rates, rate_of = np.unique(network.bandwidths, return_inverse=True)
        self.rate_of = rate_of.astype(np.int64)
        came = np.append(came, np.zeros(stream.participants - len(came), np.int64))
        lanes, links = stream.participants * params.channels, len(network.bandwidths)
        self.state = streamed_loop.StreamState(
            free=self.give(np.repeat(came, params.channels)),
            began=self.fill(lanes, -params.g),
            free_link=self.fill(links, 0) if busy is None else self.give(busy),
            first_link=self.fill(0 if busy is None else links, NEVER),
            last_link=self.fill(links, 0),
            free_side=self.fill(lanes, 0),
            last_side=self.fill(lanes, 0),
            ends=self.fill(0, 0),
            used=self.fill(0, 0),
            done=self.give(NOTHING if busy is None else came),
            clock=self.fill(3, 0),
        )
        self.carried = np.zeros(links, np.int64)
        self.sent = np.zeros(stream.participants, np.int64)
        self.wire = self.messages = 0
        self.together = False

    def give(self, column: Array) -> Any:
        return column.copy() if self.compiled else column.tolist()

    def fill(self, length: int, value: int) -> Any:
        return np.full(length, value, np.int64) if self.compiled else [value] * length

    def run(self, whole: bool) -> int:
        """Replay all loops. Return DONE, or the code of `streamed_loop` for the reason why that is not possible."""
        for loop, sizes in enumerate(self.sizes):
            self._open_loop(loop, sizes)
            for bound in self.parts.bound():
                self._make_room(self.parts.connections)
                if bound.part.transfers and (code := self._play(bound, whole)) != streamed_loop.DONE:
                    return int(code)
        return streamed_loop.DONE

    @property
    def totals(self) -> Totals:
        """The totals of the replay."""
        carried, sent, messages, wire_bytes = self.sums
        shortcut = "affine" if self.together else "replay"
        return Totals(int(self.state.clock[0]), carried, int(sent.max()), messages, wire_bytes, shortcut)

    @property
    def sums(self) -> CallSums:
        """The traffic of the replay."""
        return CallSums(self.carried, self.sent[: self.stream.n], self.messages, self.wire)

    @property
    def ends(self) -> CallEnds:
        """When ranks and links are done."""
        state = streamed_loop.StreamState(*(np.asarray(column) for column in self.state))
        last, free = (
            np.where(state.first_link < NEVER, column, -NEVER) for column in (state.last_link, state.free_link)
        )
        return CallEnds(state.done[: self.stream.n], state.first_link, last, free, int(state.clock[0]))

    def _open_loop(self, loop: int, sizes: Array) -> None:
        """Begin a loop: set its sizes and costs, and forget the versions of the last loop."""
        params, (distinct, kind) = self.params, np.unique(sizes, return_inverse=True)
        self.bytes_of, self.kind = distinct, kind.astype(np.int64) if len(distinct) > 1 else NOTHING
        table = [[service_ps(size, rate) for rate in self.rates.tolist()] for size in distinct.tolist()]
        self.service: Array = np.asarray(table, np.int64)
        self.caps, self.gammas = (
            np.asarray([service_ps(size, rate) for size in distinct.tolist()], np.int64) if rate else NOTHING
            for rate in (params.channel_bandwidth, params.gamma)
        )
        nbytes = distinct if len(distinct) > 1 else NOTHING
        self.loop = streamed_loop.StreamLoop(
            latency=self.give(self.network.latencies),
            table=self.give(self.service.ravel()),
            sizes=self.give(self.kind),
            rates=self.give(np.append(len(self.rates), self.rate_of)),
            o_send=params.o_send,
            o_recv=params.o_recv,
            caps=self.give(self.caps),
            gammas=self.give(self.gammas),
            nbytes=self.give(nbytes),
            channels=params.channels,
            offset=loop * self.stream.n_chunks,
            g=params.g,
            slots=params.slots,
            barrier=params.barrier,
            fair=params.sharing == "fair",
        )
        places = self.stream.participants * (self.width or self.stream.n_slots)
        keys, times, made = (self.fill(places, value) for value in (-1, 0, -1))
        self.memory = streamed_loop.StreamMemory(keys, times, made, self.width, self.stream.n_slots)

    # --- a part ---

    def _make_room(self, connections: int) -> None:
        """Extend the columns `ends` and `used` for new connections."""
        more = connections * self.params.channels - len(self.state.used)
        if more > 0:
            ends, used = (
                np.concatenate([known, self.fill(length, 0)]) if self.compiled else known + [0] * length
                for known, length in ((self.state.ends, more * self.params.slots), (self.state.used, more))
            )
            self.state = self.state._replace(ends=ends, used=used)

    def _play(self, bound: RoutedPart, whole: bool) -> int:
        part = bound.part
        step = part.first
        base = part.base if isinstance(part, Repeat) else step.src_slot
        columns = (step.src, step.src_slot, step.dst, step.dst_slot, base, step.reduce, bound.hop, bound.links)
        rows = streamed_loop.StreamRows(*map(self.give, (*columns, bound.connection)))
        sent, wait = self.fill(len(step.src) if len(self.kind) else 0, 0), self.fill(len(step.src), 0)
        code = streamed_loop.DONE
        turning = (part.span, part.shift % part.span) if isinstance(part, Repeat) else (1, 0)
        for times in self._turns(part, rows, bound, whole):
            turns = (times, *turning)
            code = self.kernel.play(rows, turns, self.loop, self.state, self.memory, wait, sent)
            if code == streamed_loop.TOO_LATE:
                raise too_late("the run takes")
            if code != streamed_loop.DONE:
                return int(code)
        self._count(step.src, step.dst, bound, np.asarray(sent, np.int64), part.steps)
        return int(code)

    def _turns(self, part: StepPattern, rows: Any, bound: RoutedPart, whole: bool) -> Iterator[int]:
        """Run the steps of a part. Yield how many of the next steps the kernel must replay one by one; other steps run
        here, as columns, between two yields."""
        left = part.steps
        if whole and isinstance(part, Repeat) and bound.before is not None and not len(self.kind):
            alone, before = self._alone(part, bound), self.give(bound.before)
            for _ in range(min(PEELED, left - 2)):
                yield 1
                left -= 1
                done = self.fill(len(bound.before), 0)
                if self.kernel.settled(rows, self.memory, self.state.free, before, done):
                    if self._in_time(alone, left):
                        self._go_round(part, rows, alone, bound.before, left - 1, done)
                        left, self.together = 1, True
                    break
        yield left

    def _count(self, src: Array, dst: Array, bound: RoutedPart, sent: Array, steps: int) -> None:
        """Add the bytes and messages of some steps to the sums; copies inside a participant are no messages."""
        nbytes = sent if len(self.kind) else np.full(len(src), steps * int(self.bytes_of[0]))
        lengths, away = np.diff(bound.hop), src != dst
        np.add.at(self.carried, bound.links, np.repeat(nbytes, lengths))
        np.add.at(self.sent, src[away], nbytes[away])
        self.wire += int((nbytes * lengths)[away].sum())
        self.messages += int(away.sum()) * steps

    # --- many steps together ---

    def _alone(self, part: Repeat, bound: RoutedPart) -> _Alone:
        step, params, fair = part.first, self.params, self.params.sharing == "fair"
        n, lengths = len(step.src), np.diff(bound.hop)
        depth = int(lengths.max())
        link = np.full((depth, n), -1, np.int64)
        link.T[np.arange(depth) < lengths[:, None]] = bound.links
        there = link >= 0
        busy = np.where(there, self.service[0, self.rate_of[link]], IDLE)
        away = np.where(there, self.network.latencies[link], 0)
        cap = int(self.caps[0]) if len(self.caps) else 1
        sent = params.o_send + np.maximum(busy.max(axis=0) if fair else busy[0], cap)
        receive = np.full(n, params.o_recv) + (step.reduce * self.gammas[0] if len(self.gammas) else 0)
        return _Alone(
            sent=sent,
            hold=np.maximum(sent, params.g),
            to_head=params.o_send + away[0],
            to_tail=sent + (away.sum(axis=0) if fair else away[0]),
            link=link[:1] if fair else link,
            busy=busy[:1] if fair else busy,
            away=away[:1] if fair else away,
            receive=receive if receive.any() else NOTHING,
        )

    def _in_time(self, alone: _Alone, steps: int) -> bool:
        """Return whether `steps` steps end within the clock's range, even if all their work were done in sequence."""
        columns = (alone.hold, alone.to_head, alone.to_tail, alone.busy, alone.away, alone.receive)
        most = sum(int(column.max(initial=0)) for column in columns) * len(alone.busy)
        return int(self.state.clock[0]) + (steps + 1) * most < NEVER

    def _go_round(self, part: Repeat, rows: Any, alone: _Alone, before: Array, times: int, done: Any) -> None:
        """Run `times` steps as columns, and leave the state as if the steps had been replayed one by one."""
        state = streamed_loop.StreamState(*(np.asarray(column) for column in self.state))
        free, began, free_link, free_side, ends, used = (
            state.free, state.began, state.free_link, state.free_side, state.ends, state.used,
        )  # fmt: skip
        src, dst, n = part.first.src, part.first.dst, len(part.first.src)
        channel = np.maximum(free[src], began[src] + self.params.g)
        links = np.where(alone.link >= 0, free_link[alone.link], IDLE).ravel()
        side = free_side[dst] if len(alone.receive) else NOTHING
        slots, pair = self.params.slots, np.asarray(rows.connection)
        credit = NOTHING.reshape(0, n)
        if slots:
            credit = pair * slots + (used[pair] + np.arange(slots)[:, None]) % slots
        last = ends[credit].ravel() if slots else NOTHING
        done = (np.asarray(done), np.zeros(n, np.int64))
        work = tuple(np.zeros(n, np.int64) for _ in range(3))
        row, hops = (alone.hold, alone.to_head, alone.to_tail), (links, alone.busy.ravel(), alone.away.ravel())
        block = BLOCK if self.compiled else n
        self.kernel.go_round(
            times, block, len(alone.busy), before, done, channel, row, hops, (side, alone.receive), last, work
        )
        began[src] = channel - alone.hold
        free[src] = began[src] + alone.sent
        behind = alone.link[1:].ravel()
        free_link[behind[behind >= 0]] = links[n:][behind >= 0]
        if len(side):
            free_side[dst] = side
        if slots:
            ends[credit] = last.reshape(slots, n)
            used[pair] += times
        state.clock[2] += times
        self._advance(part, rows, times, np.asarray(done[times % 2]), int(state.clock[2]))
        if not self.compiled:
            for column, changed in zip(self.state, state, strict=True):
                column[:] = changed.tolist()

    def _advance(self, part: Repeat, rows: Any, times: int, done: Array, stamp: int) -> None:
        """Move the slots of rows on by `times` steps, and remember only the last write to each slot: no row waits for
        an earlier write any more."""
        dst, base, written = part.first.dst, part.base, np.asarray(rows.dst_slot)
        last = base + (written - base + (times - 1) * part.shift) % part.span
        for column in (rows.src_slot, rows.dst_slot):
            moved = base + (np.asarray(column) - base + times * part.shift) % part.span
            column[:] = moved if self.compiled else moved.tolist()
        keys, when, made, width, _ = self.memory
        for place, slot, t in zip(dst.tolist(), last.tolist(), done.tolist(), strict=True):
            for at in range(place * width + 1, (place + 1) * width):
                keys[at] = -1
            keys[place * width], when[place * width], made[place * width] = slot, t, stamp
