"""The critical path: the chain of waits that determines when a run ends.

From the last end the path goes back to what that waited for, and so on to the start: each transfer and task on it could
begin no earlier because of the one before it. So its segments meet without gap or overlap, and add up to the run. What
a segment is spent on follows from the rules of ARCHITECTURE.md: see `chain.CAUSES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from simcoll.config.arrays import Array
from simcoll.engine.link_changes import BandwidthSpan
from simcoll.engine.program import Program, blocking_predecessors
from simcoll.engine.tasks import grouped
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NONE, service_ps
from simcoll.errors import SimcollError
from simcoll.explanation._path_columns import CODES, VIAS, CriticalPath

Spans = Mapping[int, Sequence[BandwidthSpan]]  # of each link that changes during the run
PathNode = tuple[str, int]  # what happened to which transfer or task: ("sent", 3), ("done", 0)


def critical_path(program: Program, timeline: Timeline, spans: Spans | None = None) -> CriticalPath:
    """The path that leads to the end of a run; without one, and of what ends at 0, it is empty.

    Of several that lead there it is the one over data, where there is a choice. In `fair` a flow's time beyond what its
    bytes take alone is contention, on the link of its way that others kept busiest meanwhile, reckoning that each sent
    evenly; in `fifo` it is the time in a link's queue. Where links change during the run, `spans` tells how, and the
    program is as it went; what a message takes longer then, while a link that it waits for is not as it was bound, and
    what it took until it set out again, is the fault's. O(path), but for sorting transfers by receive side, task or way
    where the path asks for them. A `fair` timeline without spans needs no hops.
    """
    return _Walk(program, timeline, spans or {}).path()


class _Walk:
    """Backwards from the last end. `at` is the time down to which the path is known."""

    def __init__(self, program: Program, timeline: Timeline, spans: Spans):
        self.program, self.timeline, self.tasks, self.spans = program, timeline, program.tasks, spans
        self.fifo = program.params.sharing == "fifo"
        self.at = timeline.makespan_ps
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.via = VIAS.index("end")
        self.crowd = _Crowd(program, timeline)

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

    # --- what has been found ---

    def cover(self, begin: int, cause: str, where: int = NONE, transfer: int = NONE) -> None:
        """A segment from `begin` to where the path is known."""
        if begin < self.at:
            self.rows.append((begin, self.at, CODES[cause], where, transfer, self.via))
            self.at, self.via = begin, 0

    def to(self, event: str, index: int, via: str) -> PathNode:
        """Go on with what this waited for."""
        if via != "itself" and VIAS[self.via] != "end":
            self.via = VIAS.index(via)
        return event, index

    def when(self, event: str, index: int) -> int:
        return int(getattr(self.timeline, event).item(index))

    def first(self, candidates: Iterator[tuple[str, int, str]], what: str, index: int) -> PathNode | None:
        """The first of the candidates that happened just now; None at the start of the run."""
        for event, other, via in candidates:
            if other != NONE and self.when(event, other) == self.at:
                return self.to(event, other, via)
        if self.at:
            raise SimcollError(
                f"the {what} of {index} at {self.at} ps waited for nothing that is known: a bug of simcoll"
            )
        return None

    # --- tasks ---

    @cached_property
    def work(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The transfers that each task sends, and those that it receives."""
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
            its = transfers[first[task] : first[task + 1]]
            found = its[getattr(self.timeline, event)[its] == self.at]
            if len(found):
                return self.to(event, int(found[0]), "task")
        return self.first(iter(()), "end of task", task)

    def opened(self, task: int) -> PathNode | None:
        assert self.tasks
        before = self.tasks.before[slice(*self.tasks.first[task : task + 2])].tolist()
        return self.first((("done", other, "task") for other in before), "opening of task", task)

    def ends(self, i: int) -> tuple[int, int]:
        """The tasks that send and receive transfer `i`."""
        program, tasks = self.program, self.tasks
        return (int(tasks.channel[program.channel[i]]), int(tasks.side[program.side[i]])) if tasks else (NONE, NONE)

    def came(self, rank: int) -> bool:
        """Whether this is when a rank came, which is then the begin of the path."""
        late = self.at > 0 and self.program.arrivals.item(rank) == self.at
        if late:
            self.to("came", rank, "data")
            self.cover(0, "straggler", rank)
        return late

    # --- transfers, from complete back to start ---

    def complete(self, i: int) -> PathNode | None:
        if self.when("end", i) == self.at:
            return "end", i
        program, chain = self.program, int(self.program.chain[i])
        if program.reduce[i] and chain == NONE and self.came(int(program.dst[i])):
            return None
        candidates = iter([("complete", chain, "data"), ("opened", self.ends(i)[1], "task")])
        return self.first(candidates, "completion of transfer", i)

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
        """Transfers by receive side and end, and where those of each side begin."""
        side = self.program.side
        order = np.lexsort((self.timeline.end, side))
        return order, np.searchsorted(side[order], np.arange(int(side.max(initial=-1)) + 2))

    def served_before(self, side: int) -> int:
        """Who left the receive side just now."""
        order, first = self.by_side
        its = order[first[side] : first[side + 1]]
        place = int(np.searchsorted(self.timeline.end[its], self.at))
        return int(its[place]) if place < len(its) else NONE

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
        """What transfer `i` waited for, first what counts first."""
        program = self.program
        yield "complete", int(program.reads[i]), "data"
        yield "opened", self.ends(i)[0], "task"
        before = int(program.channel_before[i])
        yield "sent", before, "channel"
        yield "end", int(program.credit[i]), "credit"
        if self.blocking:
            yield from (("end", other, "blocking") for other in self.blocking[i])
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
        """Steps in order, and of each the transfer that ends last."""
        order = np.lexsort((self.timeline.end, self.program.step))
        step = self.program.step[order]
        last = np.flatnonzero(np.append(np.diff(step) != 0, True))
        return step[last], order[last]

    def last_before(self, i: int) -> int:
        """What ended last of all earlier steps."""
        steps, last = self.by_step
        its = last[: int(np.searchsorted(steps, self.program.step[i]))]
        return int(its[self.timeline.end[its].argmax()]) if len(its) else NONE

    # --- on the way ---

    def ready(self, i: int) -> int:
        """When the head of transfer `i` is at its first link."""
        local = self.program.src[i] == self.program.dst[i]
        return self.when("start", i) + (0 if local else self.program.params_of(i).o_send)

    def lead(self, i: int) -> None:
        self.cover(self.when("start", i), "o_send", NONE, i)

    def flow(self, i: int, route: list[int]) -> None:
        """A message in `fair`: what it takes alone, before that what it takes longer, before that the sender."""
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
                self.cover(off, "contention", self.crowd.blamed(i, route, slowest, off), i)
        self.cover(ready, "fault", NONE, i)  # before it set out again
        self.lead(i)

    def changed(self, link: int, begin: int, end: int) -> bool:
        """Whether a link is not as it was bound at some time in an interval."""
        bound = self.program.bandwidths.item(link)
        return any(s.start < end and s.until > begin and s.bandwidth != bound for s in self.spans.get(link, ()))

    def along(self, i: int, route: list[int]) -> PathNode | None:
        """A message in `fifo`, from its arrival back to its start: with its tail as far as that came late, then with
        its head."""
        program, hop = self.program, self.program.hops.first.item(i)
        begins, latencies = self.timeline.hop_begin, program.latencies
        self.cover(self.at - latencies.item(route[-1]), "latency", NONE, i)
        tails = [self.first_tail(i, hop)]
        for place in range(1, len(route)):
            own = self.timeline.hop_end.item(hop + place)
            tails.append(max(own, tails[-1] + latencies.item(route[place - 1])))
        place = len(route) - 1
        while place and tails[place] == tails[place - 1] + latencies.item(route[place - 1]):
            place -= 1
            self.cover(tails[place], "latency", NONE, i)
        if not place:
            return self.leave(i, route, hop)
        self.served(i, route[place], begins.item(hop + place))
        while place:
            came = begins.item(hop + place - 1) + latencies.item(route[place - 1])
            self.queued(i, route[place], came)
            place -= 1
            self.cover(begins.item(hop + place), "latency", NONE, i)
        return self.queue(i, route[0], hop)

    def first_tail(self, i: int, hop: int) -> int:
        """When the tail has left the first link, when it came through."""
        cap = self.program.params_of(i).channel_bandwidth
        capped = self.timeline.hop_begin.item(hop) + service_ps(self.program.nbytes.item(i), cap) if cap else 0
        return max(self.timeline.hop_end.item(hop), capped)

    def leave(self, i: int, route: list[int], hop: int) -> PathNode:
        """From the time at which the tail has left the first link back to the start."""
        begin, end = self.timeline.hop_begin.item(hop), self.timeline.hop_end.item(hop)
        if begin >= self.at:  # it was sent, was lost, and set out again
            self.cover(self.when("start", i), "fault", NONE, i)
            return "start", i
        if end < self.at:
            self.cover(begin, "channel", NONE, i)
        else:
            self.served(i, route[0], begin)
        return self.queue(i, route[0], hop)

    def served(self, i: int, link: int, begin: int) -> None:
        """On a link, and before that what it took longer than that link as it was bound."""
        service = service_ps(self.program.nbytes.item(i), self.program.bandwidths.item(link))
        self.cover(max(begin, self.at - service), "serialisation", link, i)
        self.cover(begin, "fault", link, i)

    def queued(self, i: int, link: int, came: int) -> None:
        self.cover(came, "fault" if self.changed(link, came, self.at) else "contention", link, i)

    def queue(self, i: int, link: int, hop: int) -> PathNode:
        if self.spans and self.first_tail(i, hop) > self.when("sent", i):  # another time
            self.cover(self.ready(i), "fault", NONE, i)
        self.queued(i, link, self.ready(i))
        self.lead(i)
        return "start", i


class _Crowd:
    """Who else was on a link of a `fair` run: made link by link, when it is asked for."""

    def __init__(self, program: Program, timeline: Timeline):
        self.program, self.timeline = program, timeline
        self.known: dict[int, tuple[Array, Array, Array, int]] = {}

    def blamed(self, i: int, route: list[int], slowest: int, ready: int) -> int:
        """The link of the way of `i` that others kept busiest from `ready` until it was sent; the slowest if none."""
        until = self.timeline.sent.item(i)
        own = self.program.nbytes.item(i)
        busy = [(self.carried(link, ready, until) - own) / max(1, self.program.bandwidths.item(link)) for link in route]
        most = max(busy)
        return route[busy.index(most)] if most > 0 else slowest

    def carried(self, link: int, begin: int, end: int) -> float:
        """Bytes over a link in an interval, if each message went evenly from ready to sent."""
        came, left, rate, longest = self.known.get(link) or self.known.setdefault(link, self.on(link))
        some = slice(int(np.searchsorted(came, begin - longest)), int(np.searchsorted(came, end)))
        within = np.minimum(left[some], end) - np.maximum(came[some], begin)
        return float((np.maximum(within, 0) * rate[some]).sum())

    def on(self, link: int) -> tuple[Array, Array, Array, int]:
        """Of all messages over a link, by the time they came: that, when they were sent, their bytes a ps; and the
        longest time that one took."""
        program, (first, transfers) = self.program, self.by_way
        hop, links = program.routes[2:]
        ways = np.unique(np.searchsorted(hop, np.flatnonzero(links == link), side="right") - 1)
        its = np.concatenate([transfers[first[way] : first[way + 1]] for way in ways])
        way = program.way[its]
        lead = np.where(program.routes.src[way] == program.routes.dst[way], 0, program.by_way("o_send")[way])
        came, left = self.timeline.start[its] + lead, self.timeline.sent[its]
        order = np.argsort(came, kind="stable")
        took = np.maximum(left - came, 1)
        return came[order], left[order], (program.nbytes[its] / took)[order], int(took.max(initial=0))

    @cached_property
    def by_way(self) -> tuple[Array, Array]:
        """The transfers of each way."""
        everyone = np.arange(len(self.program), dtype=np.int32)
        return grouped(self.program.way, everyone, len(self.program.routes.src))
