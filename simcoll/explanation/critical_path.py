"""Find the critical path: the chain of waits that determines when a run ends.

The path is followed backwards: from the last end to the event that it waited for, and so on. Each transfer or task on
the path waited for the one before it. So the path's segments have no gaps or overlaps, and add up to the time of the
run. The rules of time (docs/time.md) give the cause of each segment: see `CAUSES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import numpy as np

from simcoll.config.numpy_helpers import Array, distinct
from simcoll.engine.link_changes import BandwidthSpan
from simcoll.engine.program import Program, blocking_predecessors, grouped
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NONE, service_ps
from simcoll.errors import SimcollError

Owner = TypeVar("Owner")  # a link, rank or task, or its name

CAUSES: Final = {
    "serialisation": "bytes over the limiting link, after earlier bytes of their own channel to that rank",
    "contention": "waiting for other flows in a link's queue (fifo), or sharing a link with them (fair)",
    "latency": "latency of the links",
    "o_send": "overhead of the sender",
    "o_recv": "overhead of the receiver",
    "reduction": "adding up received bytes, at gamma",
    "gap": "g between two messages of a channel",
    "channel": "bytes at the cap of the channel, where it is below all links of the route",
    "local": "a copy on a device without a memory link",
    "computation": "computation of a task",
    "straggler": "a rank that comes late",
    "fault": "a link that is down or slow for a time; without a link: until lost messages set out again",
}
CODES: Final = {name: code for code, name in enumerate(CAUSES)}
LINKED: Final = ("serialisation", "contention", "fault")  # causes that are on a link
VIAS: Final = ("itself", "data", "channel", "credit", "receiver", "link", "task", "barrier", "blocking", "end")


class Segment(NamedTuple):
    """A part of the critical path, from `begin_ps` to `end_ps`, spent on `cause`.

    `where` is a link (for causes on a link), a rank (straggler) or a task (computation), else NONE. `transfer` is an
    index in the program; NONE for computations and stragglers. `then` says why the next segment follows. It belongs to
    the same transfer or task (`itself`), or to another one that waited: for this one's `data`, `channel` or `credit`,
    at the `receiver`, or behind a `task`, a `barrier` or a `blocking` rank. For the last segment `then` is `end`.
    """

    begin_ps: int
    end_ps: int
    cause: str
    where: int
    transfer: int
    then: str


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The segments of a critical path in order of time, as columns of shape (segments,).

    `begin` and `end` are int64, in ps. `cause` is an index in CAUSES; `where` is a link, rank or task; `transfer` is an
    index in the program, or NONE; `via` is an index in VIAS: why the next segment follows.
    """

    begin: Array
    end: Array
    cause: Array
    where: Array
    transfer: Array
    via: Array

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def total_ps(self) -> int:
        """Return the time of the run in ps: the sum of all segments."""
        return int((self.end - self.begin).sum())

    def __getitem__(self, selected: slice) -> CriticalPath:
        return CriticalPath(*(column[selected] for column in vars(self).values()))

    def __iter__(self) -> Iterator[Segment]:
        names = list(CAUSES)
        columns = (column.tolist() for column in vars(self).values())
        for begin, end, code, where, transfer, via in zip(*columns, strict=True):
            yield Segment(begin, end, names[code], where, transfer, VIAS[via])

    def shares(self) -> dict[tuple[str, int], int]:
        """Return the time in ps by cause and place (link, rank, task or NONE), the longest time first."""
        keys, place = np.unique(np.stack([self.cause, self.where]), axis=1, return_inverse=True)
        took = np.zeros(keys.shape[1], np.int64)
        np.add.at(took, place.ravel(), self.end - self.begin)
        names = list(CAUSES)
        pairs = [(names[code], where) for code, where in keys.T.tolist()]
        return dict(Counter(dict(zip(pairs, took.tolist(), strict=True))).most_common())

    def leads(self) -> dict[str, int]:
        """Return, for each relation of VIAS, how often the path changes transfer or task by it; most frequent first."""
        counts = np.bincount(self.via, minlength=len(VIAS)).tolist()
        ways = Counter(dict(zip(VIAS, counts, strict=True))).most_common()
        return {via: count for via, count in ways if count and via not in ("itself", "end")}


def by_cause(shares: Mapping[tuple[str, Owner], int]) -> dict[str, int]:
    """Return the time in ps by cause, the longest first, from times by cause and place."""
    sums: Counter[str] = Counter()
    for (cause, _), ps in shares.items():
        sums[cause] += ps
    return dict(sums.most_common())


Spans = Mapping[int, Sequence[BandwidthSpan]]  # link -> its bandwidths over time, for links that change during the run
PathNode = tuple[str, int]  # an event and its transfer or task: ("sent", 3), ("done", 0)


def critical_path(program: Program, timeline: Timeline, spans: Spans | None = None) -> CriticalPath:
    """Return the critical path of a run; it is empty if the run has no event or ends at 0.

    Of several critical paths the one through data is returned. Under `fair` sharing, a message's time beyond what it
    needs alone is contention. It counts on the link of its route that other messages kept busiest, as if each sent
    evenly. Under `fifo` sharing, the path goes back through a link's queue to the message that found the link free.
    Earlier messages of the same channel and receiver count as serialisation, others as contention. If links slow down
    by a share s, the run takes longer by at least s times the path's time on them, while queues keep their order.

    `spans` describes links that change during the run; the program then has its rerouted transfers. The time of a fault
    is what a message loses while a link has another rate, or until a lost message starts again. The cost is O(path),
    plus sorting transfers by receive side, task or route if needed. Under `fair` without `spans`, no hops are needed.
    """
    return _Walk(program, timeline, spans or {}).path()


class _Walk:
    """A walk backwards from the end of the run; the segments after the time `at` (ps) are already found."""

    def __init__(self, program: Program, timeline: Timeline, spans: Spans):
        self.program, self.timeline, self.tasks, self.spans = program, timeline, program.tasks, spans
        self.fifo = program.params.sharing == "fifo"
        self.at = timeline.makespan_ps
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.via = VIAS.index("end")
        self.known: dict[int, tuple[Array, Array]] = {}  # by link: see `on`
        self.loads: dict[int, tuple[Array, Array, Array, int]] = {}  # by link: see `load`

    def path(self) -> CriticalPath:
        node: PathNode | None = self.last()
        steps = {
            "done": self.done, "opened": self.opened, "complete": self.complete, "end": self.end,
            "arrive": self.arrive, "sent": self.sent, "start": self.start,
        }  # fmt: skip
        while node:
            node = steps[node[0]](node[1])
        columns = np.array(self.rows[::-1], np.int64).reshape(-1, 6).T
        return CriticalPath(*columns)

    def last(self) -> PathNode | None:
        times = self.timeline
        if len(times.done) and int(times.done.max()) == self.at:
            return "done", int(times.done.argmax())
        return ("end", int(times.end.argmax())) if len(times.end) else None

    # --- the path so far ---

    def cover(self, begin: int, cause: str, where: int = NONE, transfer: int = NONE) -> None:
        """Add a segment from `begin` (ps) up to the earliest segment found so far."""
        if begin < self.at:
            self.rows.append((begin, self.at, CODES[cause], where, transfer, self.via))
            self.at, self.via = begin, 0

    def to(self, event: str, index: int, via: str) -> PathNode:
        """Go on, backwards, at the event for which the current event waited."""
        if via != "itself" and VIAS[self.via] != "end":
            self.via = VIAS.index(via)
        return event, index

    def when(self, event: str, index: int) -> int:
        return int(getattr(self.timeline, event).item(index))

    def first(self, candidates: Iterator[tuple[str, int, str]], waiting: str, index: int) -> PathNode | None:
        """Go on at the first candidate that happens at the time `at`; None at the start of the run."""
        for event, cause, via in candidates:
            if cause != NONE and self.when(event, cause) == self.at:
                return self.to(event, cause, via)
        if self.at:
            raise SimcollError(
                f"the {waiting} of {index} at {self.at} ps has no recorded cause: this is a bug of simcoll"
            )
        return None

    # --- tasks ---

    @cached_property
    def work(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return, by task, the transfers that it sends, and the transfers that it receives."""
        program, tasks = self.program, self.tasks
        assert tasks
        everyone, count = np.arange(len(program), dtype=np.int32), len(tasks)
        return (
            grouped(tasks.channel[program.channel], everyone, count),
            grouped(tasks.side[program.side], everyone, count),
        )

    def done(self, task: int) -> PathNode | None:
        assert self.tasks
        begin = self.when("opened", task)
        if begin + self.tasks.duration.item(task) == self.at:
            self.cover(begin, "computation", task)
            return "opened", task
        for event, (first, transfers) in zip(("complete", "sent"), self.work[::-1], strict=True):
            of_task = transfers[first[task] : first[task + 1]]
            last = of_task[getattr(self.timeline, event)[of_task] == self.at]
            if len(last):
                return self.to(event, int(last[0]), "task")
        return self.first(iter(()), "end of task", task)

    def opened(self, task: int) -> PathNode | None:
        assert self.tasks
        before = self.tasks.before[slice(*self.tasks.first[task : task + 2])].tolist()
        return self.first((("done", earlier, "task") for earlier in before), "opening of task", task)

    def ends(self, i: int) -> tuple[int, int]:
        """Return the numbers of the tasks that send and that receive transfer `i`."""
        program, tasks = self.program, self.tasks
        return (int(tasks.channel[program.channel[i]]), int(tasks.side[program.side[i]])) if tasks else (NONE, NONE)

    def came(self, rank: int) -> bool:
        """Whether a rank joined the run at the time `at`, where the path then begins."""
        late = self.at > 0 and self.program.arrivals.item(rank) == self.at
        if late:
            self.to("came", rank, "data")
            self.cover(0, "straggler", rank)
        return late

    # --- transfers, from complete back to start ---

    def complete(self, i: int) -> PathNode | None:
        if self.when("end", i) == self.at:
            return "end", i
        program = self.program
        if program.adds[i] and self.came(int(program.dst[i])):
            return None
        written = [("complete", before, "data") for before in program.chain.of(i)]
        return self.first(iter([*written, ("opened", self.ends(i)[1], "task")]), "completion of transfer", i)

    def end(self, i: int) -> PathNode | None:
        wait = self.program.receive_ps(i)
        if not wait:
            return "arrive", i
        begin, local = self.at - wait, self.program.src[i] == self.program.dst[i]
        self.cover(begin + (0 if local else self.program.params_of(i).o_recv), "reduction", NONE, i)
        self.cover(begin, "o_recv", NONE, i)
        if self.when("arrive", i) == begin:
            return "arrive", i
        before = self.served_before(int(self.program.side[i]))
        return self.first(iter([("end", before, "receiver")]), "receive side of transfer", i)

    @cached_property
    def by_side(self) -> tuple[Array, Array]:
        """Return the transfers sorted by receive side and end, and the index at which each receive side begins."""
        side = self.program.side
        order = np.lexsort((self.timeline.end, side))
        return order, np.searchsorted(side[order], np.arange(int(side.max(initial=-1)) + 2))

    def served_before(self, side: int) -> int:
        """Return the transfer that left this receive side at the time `at`, or NONE."""
        order, first = self.by_side
        of_side = order[first[side] : first[side + 1]]
        place = int(np.searchsorted(self.timeline.end[of_side], self.at))
        return int(of_side[place]) if place < len(of_side) else NONE

    def arrive(self, i: int) -> PathNode | None:
        route = self.program.route(i)
        if self.fifo and route:
            return self.along(i, route)
        latency = int(self.program.latencies[route].sum()) if route else 0
        self.cover(self.at - latency, "latency", NONE, i)
        return "sent", i

    def sent(self, i: int) -> PathNode | None:
        route = self.program.route(i)
        if not route:
            self.cover(self.when("start", i), "local", NONE, i)
        elif self.fifo:
            return self.leave(i, route, self.program.hops.first.item(i))
        else:
            self.flow(i, route)
        return "start", i

    def start(self, i: int) -> PathNode | None:
        program = self.program
        if self.came(int(program.src[i])):
            return None
        return self.first(self.awaited(i), "start of transfer", i)

    def awaited(self, i: int) -> Iterator[tuple[str, int, str]]:
        """Yield the events for which transfer `i` may have waited, those of precedence first."""
        program = self.program
        yield from (("complete", read, "data") for read in program.reads.of(i))
        yield "opened", self.ends(i)[0], "task"
        before = int(program.channel_before[i])
        yield "sent", before, "channel"
        yield "end", int(program.credit[i]), "credit"
        if self.blocking:
            yield from (("end", earlier, "blocking") for earlier in self.blocking[i])
        if program.params.barrier:
            yield "end", self.last_before(i), "barrier"
        if before != NONE and (gap := program.params_of(i).g) and self.when("start", before) + gap == self.at:
            self.via = VIAS.index("channel")
            self.cover(self.at - gap, "gap", NONE, before)
            yield "start", before, "itself"

    @cached_property
    def blocking(self) -> list[tuple[int, int]]:
        return blocking_predecessors(self.program) if self.program.params.blocking != "no" else []

    @cached_property
    def by_step(self) -> tuple[Array, Array]:
        """Return the steps in order, and for each step the transfer that ends last."""
        order = np.lexsort((self.timeline.end, self.program.step))
        step = self.program.step[order]
        last = np.flatnonzero(np.append(np.diff(step) != 0, True))
        return step[last], order[last]

    def last_before(self, i: int) -> int:
        """Return the transfer that ended last in all earlier steps, or NONE."""
        steps, last = self.by_step
        earlier = last[: int(np.searchsorted(steps, self.program.step[i]))]
        return int(earlier[self.timeline.end[earlier].argmax()]) if len(earlier) else NONE

    # --- on the links ---

    def ready(self, i: int) -> int:
        """Return the time in ps at which the head (first byte) of transfer `i` is at its first link."""
        local = self.program.src[i] == self.program.dst[i]
        return self.when("start", i) + (0 if local else self.program.params_of(i).o_send)

    def lead(self, i: int) -> None:
        self.cover(self.when("start", i), "o_send", NONE, i)

    def flow(self, i: int, route: list[int]) -> None:
        """Add the segments of a message under `fair`, backwards: its time alone, lost time, the sender's overhead."""
        program, ready = self.program, self.ready(i)
        off = self.timeline.hop_begin.item(program.hops.first.item(i)) if self.spans else ready
        rates = program.bandwidths[route]
        slowest, cap = route[int(rates.argmin())], program.params_of(i).channel_bandwidth
        capped = 0 < cap < rates.min()
        alone = service_ps(program.nbytes.item(i), cap if capped else int(rates.min()))
        begin, until = max(off, self.at - alone), self.at
        self.cover(begin, "channel" if capped else "serialisation", NONE if capped else slowest, i)
        if begin > off:
            weak = [link for link in route if self.changed(link, off, until)]
            if weak:
                self.cover(off, "fault", weak[0], i)
            else:
                self.cover(off, "contention", self.blamed(i, route, slowest, off), i)
        self.cover(ready, "fault", NONE, i)  # the time before it started again
        self.lead(i)

    def changed(self, link: int, begin: int, end: int) -> bool:
        """Whether a link has another rate than its own at some time between `begin` and `end` (ps)."""
        bound = self.program.bandwidths.item(link)
        return any(s.start < end and s.until > begin and s.bandwidth != bound for s in self.spans.get(link, ()))

    def along(self, i: int, route: list[int]) -> PathNode | None:
        """Add the segments of a message under `fifo`, backwards: of its last byte if that was late, then its first."""
        program, hop = self.program, self.program.hops.first.item(i)
        begins, latencies = self.timeline.hop_begin, program.latencies
        self.cover(self.at - latencies.item(route[-1]), "latency", route[-1], i)
        tails = [self.first_tail(i, hop)]
        for place in range(1, len(route)):
            own = self.timeline.hop_end.item(hop + place)
            tails.append(max(own, tails[-1] + latencies.item(route[place - 1])))
        place = len(route) - 1
        while place and tails[place] == tails[place - 1] + latencies.item(route[place - 1]):
            place -= 1
            self.cover(tails[place], "latency", route[place], i)
        if not place:
            return self.leave(i, route, hop)
        self.served(i, route[place], begins.item(hop + place))
        return self.head(i, place)

    def first_tail(self, i: int, hop: int) -> int:
        """Return the time in ps at which the tail (last byte) left the first link, on the passage that arrived."""
        cap = self.program.params_of(i).channel_bandwidth
        capped = self.timeline.hop_begin.item(hop) + service_ps(self.program.nbytes.item(i), cap) if cap else 0
        return max(self.timeline.hop_end.item(hop), capped)

    def leave(self, i: int, route: list[int], hop: int) -> PathNode:
        """Add the segments from when a message's tail left the first link, back to the start of the message."""
        begin, end = self.timeline.hop_begin.item(hop), self.timeline.hop_end.item(hop)
        if begin >= self.at:  # it was sent, was lost, and started again
            self.cover(self.when("start", i), "fault", NONE, i)
            return "start", i
        if end < self.at:
            self.cover(begin, "channel", NONE, i)
        else:
            self.served(i, route[0], begin)
        return self.head(i, 0)

    def served(self, i: int, link: int, begin: int, cause: str = "serialisation") -> None:
        """Add a message's time on a link: the time of its bytes at the link's rate, and before it the lost time."""
        service = service_ps(self.program.nbytes.item(i), self.program.bandwidths.item(link))
        self.cover(max(begin, self.at - service), cause, link, i)
        self.cover(begin, "fault", link, i)

    def head(self, i: int, place: int) -> PathNode:
        """Add the segments from when a message's head entered a link of its route, back to the start of a message.

        If the link was busy, the head entered when the message before it had left. That message's delay then causes
        this one's: an earlier arrival would not have helped.
        """
        first, begins, waiting = self.program.hops.first, self.timeline.hop_begin, i
        while True:
            route, hop = self.program.route(i), first.item(i) + place
            came = begins.item(hop - 1) + self.program.latencies.item(route[place - 1]) if place else self.ready(i)
            if not place and self.spans and self.first_tail(i, hop) > self.when("sent", i):  # sent more than once
                self.cover(came, "fault", NONE, i)
            elif self.at > came and (earlier := self.crossed_before(route[place])):
                i, place = earlier
                self.via = VIAS.index("link")
                cause = "serialisation" if self.flow_of(i) == self.flow_of(waiting) else "contention"
                self.served(i, self.program.route(i)[place], begins.item(first.item(i) + place), cause)
                continue
            elif self.at > came:  # the link was down, or carried a lost message
                cause = "fault" if self.changed(route[place], came, self.at) else "contention"
                self.cover(came, cause, route[place], i)
            if not place:
                self.lead(i)
                return "start", i
            place, waiting = place - 1, i
            self.cover(begins.item(hop - 1), "latency", route[place], i)

    def crossed_before(self, link: int) -> tuple[int, int] | None:
        """Return the message that left a link at the time `at`, and the link's position on its route, or None."""
        server = link % self.program.servers
        hops, ends = self.known.get(server) or self.known.setdefault(server, self.on(server))
        found = int(np.searchsorted(ends, self.at))
        if found == len(ends) or ends[found] != self.at:
            return None
        first, hop = self.program.hops.first, hops.item(found)
        i = int(np.searchsorted(first, hop, side="right")) - 1
        return i, hop - first.item(i)

    def on(self, server: int) -> tuple[Array, Array]:
        """Return the hops over a link in order of their ends, and these ends (ps)."""
        first, hops = self.by_server
        hops = hops[first[server] : first[server + 1]]
        ends = self.timeline.hop_end[hops]
        order = np.argsort(ends, kind="stable")
        return hops[order], ends[order]

    @cached_property
    def by_server(self) -> tuple[Array, Array]:
        """Return the hops over each server: a link, whatever rates the calls of a plan get on it (`Program`)."""
        program = self.program
        links = program.hops.links
        return grouped(links % program.servers, np.arange(len(links), dtype=np.int32), program.servers)

    def flow_of(self, i: int) -> tuple[int, int]:
        """Return a transfer's channel and receiver, which together identify its flow."""
        return self.program.channel.item(i), self.program.dst.item(i)

    # --- the traffic on a link under `fair` ---

    def blamed(self, i: int, route: list[int], slowest: int, ready: int) -> int:
        """Return the link of `i`'s route that other messages kept busiest until `i` was sent, or else `slowest`."""
        until = self.timeline.sent.item(i)
        own = self.program.nbytes.item(i)
        busy = [(self.carried(link, ready, until) - own) / max(1, self.program.bandwidths.item(link)) for link in route]
        most = max(busy)
        return route[busy.index(most)] if most > 0 else slowest

    def carried(self, link: int, begin: int, end: int) -> float:
        """Return the bytes over a link from `begin` to `end` (ps), if each message moved evenly while being sent."""
        came, left, rate, longest = self.loads.get(link) or self.loads.setdefault(link, self.load(link))
        overlapping = slice(int(np.searchsorted(came, begin - longest)), int(np.searchsorted(came, end)))
        within = np.minimum(left[overlapping], end) - np.maximum(came[overlapping], begin)
        return float((np.maximum(within, 0) * rate[overlapping]).sum())

    def load(self, link: int) -> tuple[Array, Array, Array, int]:
        """Return all messages over a link, sorted by arrival, and the longest time (ps) that one of them took.

        The columns are each message's arrival and end of sending, in ps, and its bytes per ps.
        """
        program, (first, transfers) = self.program, self.by_way
        hop, links = program.routes[2:]
        ways = distinct(np.searchsorted(hop, np.flatnonzero(links == link), side="right") - 1)
        on_link = np.concatenate([transfers[first[way] : first[way + 1]] for way in ways])
        way = program.way[on_link]
        lead = np.where(program.routes.src[way] == program.routes.dst[way], 0, program.by_way("o_send")[way])
        came, left = self.timeline.start[on_link] + lead, self.timeline.sent[on_link]
        order = np.argsort(came, kind="stable")
        took = np.maximum(left - came, 1)
        return came[order], left[order], (program.nbytes[on_link] / took)[order], int(took.max(initial=0))

    @cached_property
    def by_way(self) -> tuple[Array, Array]:
        """Return the transfers that take each route (`way`)."""
        everyone = np.arange(len(self.program), dtype=np.int32)
        return grouped(self.program.way, everyone, len(self.program.routes.src))
