"""The replay of `rows`: one pass over the events of a program, with a vector of all rows in place of each number.

Events are taken in the order of transfers, or in one in which another run of such a program went. Each row is checked
by itself: where every link and side served by (ready, index), its times are those of the engines, as that solution is
unique.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array, Numbers
from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NONE

COMES, COMPLETES = -1, -2  # events: the tail of a transfer comes to its receive side; the version that it made is there


LOOKED_AT: Final = 16  # events, after which it is seen whether those of any row are still in order


class EventOrder(NamedTuple):
    """Events in an order in which a run went, None: transfer by transfer; and the shortcut that the run took.

    An event is a transfer, and the hop of its way to which its head comes, COMES or COMPLETES.
    """

    events: Sequence[tuple[int, int]] | None
    shortcut: str


OWN_ORDER: Final = EventOrder(None, "replay")


def events_of(program: Program, timeline: Timeline, shortcut: str) -> EventOrder:
    """The order of a run whose timeline has hops: by time, at one time what comes before what is served."""
    count, (first, links) = len(program), program.hops
    every = np.arange(count)
    sent = timeline.start + np.where(program.src == program.dst, 0, program.params.o_send)
    index, at, when = [every, every, every], [every * 0, every * 0 + COMES, every * 0 + COMPLETES], [sent]
    when += timeline.arrive, timeline.complete
    if program.params.sharing != "fair":  # whose flows take all links at once
        hop = np.arange(len(links)) - np.repeat(first[:-1], np.diff(first))
        later = np.flatnonzero(hop > 0)
        index.append(np.repeat(every, np.diff(first))[later])
        at.append(hop[later])
        when.append(timeline.hop_begin[later - 1] + program.latencies[links[later - 1]])
    which, stage, time = np.concatenate(index), np.concatenate(at), np.concatenate(when)
    phase = np.where(stage == COMES, 0, np.where(stage == COMPLETES, 1, 2))
    order = np.lexsort((which, phase, time))
    return EventOrder(list(zip(which[order].tolist(), stage[order].tolist(), strict=True)), shortcut)


class ReplayNumbers(NamedTuple):
    """The numbers of rows: times of each size on each used link (sizes, links, rows), by a channel's cap and to be
    reduced (sizes, rows); latencies of used links (links, rows), arrivals (participants, rows), overheads (rows,)."""

    service: Numbers
    caps: Numbers
    gammas: Numbers
    latencies: Numbers
    arrivals: Numbers
    o_send: Numbers
    o_recv: Numbers
    gap: Numbers


class RowReplay:
    """A replay of rows that share the columns of `program`; `used` are its links, `kept` says whether hops are."""

    def __init__(self, program: Program, used: Array, kept: bool, numbers: ReplayNumbers):
        self.program, self.kept, self.numbers = program, kept, numbers
        count, rows = len(program), len(numbers.o_send)
        links = np.searchsorted(used, program.routes.links).tolist()
        hop = program.routes.hop.tolist()
        ways = [links[begin:end] for begin, end in itertools.pairwise(hop)]
        columns = (program.way, program.kind, program.reads, program.channel_before)
        self.plan = list(zip(*(column.tolist() for column in columns), strict=True))
        self.way = [ways[w] for w, *_ in self.plan]
        self.local = (program.src == program.dst).tolist()
        self.side, self.chain, self.reduce = program.side.tolist(), program.chain.tolist(), program.reduce.tolist()
        self.src, self.dst = program.src.tolist(), program.dst.tolist()
        self.credit = program.credit.tolist() if program.params.slots else [NONE] * count
        self.step = program.step.tolist() if program.params.barrier else [0] * count
        self.fair, self.late, self.gaps = (
            program.params.sharing == "fair",
            bool(numbers.arrivals.any()),
            numbers.gap.any(),
        )
        self.receives = bool(numbers.o_recv.any() or numbers.gammas.any())
        sides = int(program.side.max(initial=-1)) + 1
        self.free_link, self.last_link = (np.zeros((len(used), rows), np.int64) for _ in range(2))
        self.free_side, self.last_side = (np.zeros((sides, rows), np.int64) for _ in range(2))
        self.by_link, self.by_side = [NONE] * len(used), np.full((sides, rows), NONE)  # who was served last
        self.start, self.sent, self.arrive, self.end, self.complete = (
            np.zeros((count, rows), np.int64) for _ in range(5)
        )
        self.first_hop = program.hops.first.tolist() if kept else [0] * count
        self.hop_begin, self.hop_end = (np.zeros((self.first_hop[-1], rows), np.int64) for _ in range(2))
        self.nothing, self.latest, self.passed = (np.zeros(rows, np.int64) for _ in range(3))
        self.in_order, self.open_step = np.ones(rows, np.bool_), NONE
        self.head, self.tail = [self.nothing] * count, [self.nothing] * count  # when they come to the next link
        self.widths: dict[tuple[int, int], tuple[Numbers, Numbers]] = {}  # of flows: how long a way is taken, and then

    def run(self, order: EventOrder) -> tuple[Numbers, Array]:
        """The end of each row, and whether its events were in order; it stops when those of no row are."""
        if order.events is None:
            for i in range(len(self.plan)):
                if not i % LOOKED_AT and not self.in_order.any():
                    break
                self._begin(i)
                if not self.fair:
                    for at in range(len(self.way[i])):
                        self._hop(i, at)
                self._comes(i)
                self._completes(i)
            return self.latest, self.in_order
        for number, (i, at) in enumerate(order.events):
            if not number % LOOKED_AT and not self.in_order.any():
                break
            if at == COMES:
                self._comes(i)
            elif at == COMPLETES:
                self._completes(i)
            else:
                if at == 0:
                    self._begin(i)
                if self.way[i] and not self.fair:
                    self._hop(i, at)
        return self.latest, self.in_order

    @property
    def times(self) -> tuple[Numbers, ...]:
        """The columns of a timeline, each with one entry for each row in place of a number."""
        return self.start, self.sent, self.arrive, self.end, self.complete, self.hop_begin, self.hop_end

    def _begin(self, i: int) -> None:
        w, kind, reads, before = self.plan[i]
        t = self.numbers.arrivals[self.src[i]] if self.late else self.nothing
        if reads >= 0:
            t = np.maximum(t, self.complete[reads]) if self.late else self.complete[reads]
        if before >= 0:
            t = np.maximum(t, self.sent[before])
            if self.gaps:
                t = np.maximum(t, self.start[before] + self.numbers.gap)
        if self.credit[i] >= 0:
            t = np.maximum(t, self.end[self.credit[i]])
        if self.program.params.barrier:
            if self.step[i] != self.open_step:
                self.open_step, self.passed = self.step[i], self.latest.copy()
            t = np.maximum(t, self.passed)
        self.start[i] = t
        if not self.local[i]:
            t = t + self.numbers.o_send
        self.head[i] = t
        if not self.way[i]:
            self.sent[i] = self.tail[i] = t + 1
        elif self.fair:
            self._flow(i, w, kind, t)

    def _flow(self, i: int, w: int, kind: int, t: Numbers) -> None:
        way = self.way[i]
        if (kind, w) not in self.widths:
            takes = np.maximum(self.numbers.service[kind, way].max(axis=0), self.numbers.caps[kind])
            self.widths[kind, w] = takes, self.numbers.latencies[way].sum(axis=0)
        takes, away = self.widths[kind, w]
        gone = self.sent[i] = t + takes
        for at, link in enumerate(way):
            self.in_order &= t >= self.free_link[link]
            self.free_link[link] = gone
            if self.kept:
                self.hop_begin[self.first_hop[i] + at], self.hop_end[self.first_hop[i] + at] = t, gone
        self.tail[i] = gone + away

    def _hop(self, i: int, at: int) -> None:
        link, kind, t = self.way[i][at], self.plan[i][1], self.head[i]
        last = self.last_link[link]
        self.in_order &= t >= last if i > self.by_link[link] else t > last
        self.last_link[link], self.by_link[link] = t, i
        takes, latency = self.numbers.service[kind, link], self.numbers.latencies[link]
        begin = np.maximum(t, self.free_link[link])
        gone = self.free_link[link] = begin + takes
        if self.kept:
            self.hop_begin[self.first_hop[i] + at], self.hop_end[self.first_hop[i] + at] = begin, gone
        if at == 0:
            tail = self.sent[i] = begin + np.maximum(takes, self.numbers.caps[kind])
        else:
            tail = np.maximum(gone, self.tail[i])
        self.head[i], self.tail[i] = begin + latency, tail + latency

    def _comes(self, i: int) -> None:
        tail, side = self.tail[i], self.side[i]
        self.arrive[i] = tail
        if self.receives:
            taken = self.nothing if self.local[i] else self.numbers.o_recv
            if self.reduce[i]:
                taken = taken + self.numbers.gammas[self.plan[i][1]]
            serves, last = taken > 0, self.last_side[side]
            self.in_order &= ~serves | (tail > last) | ((tail == last) & (self.by_side[side] < i))
            self.by_side[side] = np.where(serves, i, self.by_side[side])
            self.last_side[side] = np.where(serves, tail, last)
            tail = np.where(serves, np.maximum(tail, self.free_side[side]) + taken, tail)
            self.free_side[side] = np.where(serves, tail, self.free_side[side])
        self.end[i] = tail
        np.maximum(self.latest, tail, out=self.latest)

    def _completes(self, i: int) -> None:
        done = self.end[i]
        if self.chain[i] >= 0:
            done = np.maximum(done, self.complete[self.chain[i]])
        elif self.late and self.reduce[i]:
            done = np.maximum(done, self.numbers.arrivals[self.dst[i]])
        self.complete[i] = done
