"""The least time of a schedule on a network: what its transfers ask for if none ever waits for a link.

It is found in a small part of the time of a run: no dependencies are derived, no queue is kept, and what repeats is
looked at once. Of the rules of time (docs/time.md) only such are kept as no order of events changes: data (2), the
order of a channel (3), the time of a transfer by itself (4 to 6), and the load of each link. To leave out the others
can only make it shorter, so that a run is never quicker.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array, distinct
from simcoll.config.lru import LruCache
from simcoll.engine.streamed import loop_sizes
from simcoll.engine.timing_model import PS_PER_S, Params, RoutedNetwork
from simcoll.schedule.steps import Repeat, Step, StepPattern
from simcoll.schedule.streamed import AnySchedule, StreamedSchedule

ROUNDED: Final = 10_000  # one part of so many is left to what floats are rounded by, here and in shared links
MOST_SLOTS: Final = (
    20_000_000  # of all participants, some 160 MB, and transfers of a part: of more no chain is followed
)
LONG: Final = 2**48  # ps, five minutes: a message by itself counts for no more, so that sums of many fit the clock
MOST_HELD: Final = 5_000_000  # rows, and links of ways, of schedules whose ways are kept


class _PairedPart(NamedTuple):
    """A part of a schedule: the pair of each row; whether each sender has one row, and each slot that is written."""

    pattern: StepPattern
    pair: Array
    by_one: bool
    to_one: bool


class _PairWays(NamedTuple):
    """The ways between the pairs of a schedule, `hop` and `links` as a network gives them; how many messages go from
    one to the other; whether these are two; its parts; the schedule, so that no other has its id."""

    hop: Array
    links: Array
    messages: Array
    away: Array
    parts: Sequence[_PairedPart]
    schedule: AnySchedule


_WAYS: Final[LruCache[_PairWays]] = LruCache(
    MOST_HELD, lambda ways: len(ways.links) + sum(len(part.pair) for part in ways.parts)
)


def least_ps(
    schedule: AnySchedule,
    network: RoutedNetwork,
    devices: Sequence[str],
    params: Params,
    nbytes: int,
    itemsize: int = 1,
) -> int:
    """A time in ps below which no run of a schedule with equal blocks is, whatever comes late or waits; 0 where that
    takes long to find. See `bind` for what it takes. Raises InputError when the size cannot be cut, TopologyError when
    there is no route."""
    if isinstance(schedule, StreamedSchedule) and not schedule.held:  # too long to be looked at
        return 0
    find = functools.partial(_ways, schedule, network, devices)
    known = network.layout is not None
    ways = _WAYS.get((id(schedule), network.layout, tuple(devices)), find) if known else find()
    return _LeastTime(schedule, network, ways, params, nbytes, itemsize).found()


def _ways(schedule: AnySchedule, network: RoutedNetwork, devices: Sequence[str]) -> _PairWays:
    size, slots = schedule.participants, schedule.n_slots
    patterns = [part for part in schedule.parts() if part.rows]
    keys = [part.first.src.astype(np.int64) * size + part.first.dst for part in patterns]
    pairs = distinct(np.concatenate([distinct(key) for key in keys])) if keys else np.zeros(0, np.int64)
    messages = np.zeros(len(pairs), np.int64)
    parts = list[_PairedPart]()
    for pattern, key in zip(patterns, keys, strict=True):
        pair = np.searchsorted(pairs, key).astype(np.int32)
        messages += np.bincount(pair, minlength=len(pairs)) * pattern.steps
        step = pattern.first
        places = step.dst.astype(np.int64) * slots + step.dst_slot
        by_one, to_one = (len(distinct(column)) == len(column) for column in (step.src, places))
        parts.append(_PairedPart(pattern, pair, by_one, to_one))
    src, dst = np.divmod(pairs, size)
    return _PairWays(*network.routes(devices, src, dst), messages, src != dst, parts, schedule)


class _LeastTime:
    """The state of a look at the steps of a schedule: for each slot when its newest version can be complete, for each
    sender when its channel can be free."""

    def __init__(
        self,
        schedule: AnySchedule,
        network: RoutedNetwork,
        ways: _PairWays,
        params: Params,
        nbytes: int,
        itemsize: int,
    ):
        self.schedule, self.network, self.ways = schedule, network, ways
        loops = loop_sizes(schedule, nbytes, itemsize, params.chunk)
        self.bytes = sum(int(loop.min()) for loop in loops)
        self.slots = schedule.n_slots
        most = max((part.pattern.transfers for part in ways.parts), default=0)
        self.followed = max(schedule.participants * self.slots, most) <= MOST_SLOTS
        self.ready = np.zeros(schedule.participants * self.slots if self.followed else 0, np.int64)
        self.free = np.zeros(schedule.participants, np.int64)
        self.in_turn = params.channels == 1  # of several channels, and those of agents, none is followed
        self.end = 0
        self._take_alone(params, int(loops[0].min()))  # what is in scratch may be of any block, so the least counts

    def _take_alone(self, params: Params, nbytes: int) -> None:
        """For each pair the time of a message by itself, in ps, until its data are there and until its channel is
        free, and what a reduction adds."""
        hop, links, away = self.ways.hop, self.ways.links, self.ways.away
        rates = np.maximum(self.network.bandwidths, 1)
        service = np.minimum(nbytes * (PS_PER_S / rates), LONG).astype(np.int64)
        there = np.diff(hop) > 0
        slowest, first, latency = (np.zeros(len(away), np.int64) for _ in range(3))
        if there.any():
            at = hop[:-1][there]
            slowest[there] = np.maximum.reduceat(service[links], at)
            first[there] = service[links[at]]
            latency[there] = np.add.reduceat(self.network.latencies[links], at)
        limits = (params.channel_bandwidth, params.gamma)
        cap, added = (min(LONG, nbytes * PS_PER_S // rate) if rate else 0 for rate in limits)
        sent = np.maximum(slowest if params.sharing == "fair" else first, cap * away) + params.o_send * away
        self.hold = np.maximum(sent, params.g)
        self.moved = np.maximum(slowest, cap * away) + (params.o_send + params.o_recv + latency) * away
        self.added = added * away

    def found(self) -> int:
        """The larger of the time of the longest chain and that of the busiest link."""
        for part in self.ways.parts:
            pattern = part.pattern
            whole = self.moved[part.pair] + self.added[part.pair] * pattern.first.reduce
            if not self.followed:
                self._at_least(pattern, whole)
            elif not isinstance(pattern, Repeat):
                self._step(pattern, part, whole)
            elif (before := _before(pattern)) is not None and part.by_one:
                self._go_round(pattern, part, whole, before)
            else:
                for step in pattern:
                    self._step(step, part, whole)
        found = max(self.end, self._busiest())
        return found - found // ROUNDED

    def _at_least(self, pattern: StepPattern, whole: Array) -> None:
        """A part by itself: where each step reads what the last one wrote, as often the quickest of its messages."""
        chained = isinstance(pattern, Repeat) and _before(pattern) is not None
        self.end = max(self.end, int(whole.min()) * (pattern.steps if chained else 1))

    def _busiest(self) -> int:
        bandwidths = self.network.bandwidths
        each = np.repeat(self.ways.messages, np.diff(self.ways.hop))
        carried = np.bincount(self.ways.links, each, len(bandwidths))
        up = (carried > 0) & (bandwidths > 0)
        return int((carried[up] * (self.bytes * PS_PER_S / bandwidths[up])).max(initial=0))

    def _step(self, step: Step, part: _PairedPart, whole: Array) -> None:
        start = self._start(step)
        hold = self.hold[part.pair]
        if part.by_one:
            self._hold(step.src, start + hold)
        else:
            most = self.free + np.bincount(step.src, hold, len(self.free)).astype(np.int64)
            np.maximum.at(most, step.src, start + hold)
            self.free = most
        places, done = self._places(step.dst, step.dst_slot), start + whole
        if part.to_one:
            self.ready[places] = np.where(step.reduce, np.maximum(self.ready[places], done), done)
        else:
            self._written(places, step.reduce, done)
        self.end = max(self.end, int(done.max()))

    def _go_round(self, pattern: Repeat, part: _PairedPart, whole: Array, before: Array) -> None:
        """Steps of which each row reads what another one wrote in the step before."""
        start, hold, arrive = self._start(pattern.first), self.hold[part.pair], whole[before]
        starts = np.empty((pattern.times, pattern.rows), np.int64)
        for k in range(pattern.times):
            starts[k] = start
            done = start[before] + arrive
            start = np.maximum(done, start + hold) if self.in_turn else done
        self._hold(pattern.first.src, starts[-1] + hold)
        starts += whole
        rows = pattern.whole()
        self._written(self._places(rows.dst, rows.dst_slot), rows.reduce, starts.ravel())
        self.end = max(self.end, int(starts[-1].max()))

    def _start(self, step: Step) -> Array:
        ready: Array = self.ready[self._places(step.src, step.src_slot)]
        return np.maximum(ready, self.free[step.src]) if self.in_turn else ready

    def _places(self, who: Array, slot: Array) -> Array:
        places: Array = who.astype(np.int64) * self.slots + slot
        return places

    def _hold(self, src: Array, until: Array) -> None:
        self.free[src] = np.where(src < self.schedule.n, until, 0)

    def _written(self, places: Array, reduce: Array, done: Array) -> None:
        self.ready[places[~reduce]] = 0  # nothing waits for what was there
        np.maximum.at(self.ready, places, done)


def _before(part: Repeat) -> Array | None:
    """For each row a row that writes what it reads in the step after; None if one has none."""
    step = part.first
    by_dst = np.argsort(step.dst, kind="stable")
    at = np.searchsorted(step.dst[by_dst], step.src)
    before: Array = by_dst[np.minimum(at, part.rows - 1)]
    written = part.base + (step.dst_slot - part.base) % part.span
    read = part.base + (step.src_slot - part.base + part.shift) % part.span
    matched = (step.dst[before] == step.src) & (written[before] == read) & (part.base[before] == part.base)
    return before if matched.all() else None
