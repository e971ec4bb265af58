"""The event engine on SimPy. This is the definition of simcoll's timing: slow, readable, complete.

A process per channel takes up its transfers in order; from there on each transfer goes from method to method: `come`
to a link, `served` there, `receive`, `end`, `add`. A process per task waits for what comes before it and for what it
does. Links and receive sides are servers that decide once an instant, after everything else at that instant
(`simcoll.engine._event_servers`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import simpy
from simpy.events import Event

from simcoll.config.groups import grouped
from simcoll.engine._deadlock import Reached, stuck
from simcoll.engine._event_servers import Fabric, InstantEnd, Milestone, Server, happen, whole_service
from simcoll.engine.link_changes import BandwidthSpan, Served, serve
from simcoll.engine.program import Program, blocking_predecessors
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NONE, clocked, service_ps, too_late

Wait = Generator[Event, Any, None]


def run(program: Program) -> Timeline:
    """Replay a program; raises StuckError if it cannot finish."""
    return _EventRun(program).finish()


class _EventRun:
    """One replay: the processes and what they have written down."""

    def __init__(self, program: Program):
        self.program, self.params, self.env = program, program.params, simpy.Environment()
        count = len(program)
        self.started, self.sent, self.arrived, self.ended, self.completed = (
            Milestone(self.env, count) for _ in range(5)
        )
        self.hops: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # when each link serves it
        self.way = program.way.tolist()  # that each transfer takes
        self.reads, self.chain, self.credit = (
            column.tolist() for column in (program.reads, program.chain, program.credit)
        )
        self.nbytes, self.adds = program.nbytes.tolist(), (program.reduce & (program.chain == NONE)).tolist()
        self.latencies, self.bandwidths = program.latencies.tolist(), program.bandwidths.tolist()
        links, first = program.routes.links.tolist(), program.routes.hop.tolist()
        self.paths: list[list[int]] = [links[a:b] for a, b in pairwise(first)]
        self.params_of = program.params_of if program.parts else lambda _: program.params
        self.receiving = any(params.gamma or params.o_recv for params in program.parts or (program.params,))
        self.instant = InstantEnd(self.env)
        self.ready: dict[int, int] = {}  # when each flow set out
        self.links, self.sides = (defaultdict[int, Server](partial(Server, self.instant)) for _ in range(2))
        self.servers = program.servers
        self.fabric = self._fabric()
        self.blocking = blocking_predecessors(program) if self.params.blocking != "no" else []
        self.steps = _Barrier(self.env, program) if self.params.barrier else None
        tasks = len(program.tasks) if program.tasks else 0
        self.opened, self.done = Milestone(self.env, tasks), Milestone(self.env, tasks)
        self.spans: dict[int, list[BandwidthSpan]] = {}
        if program.changes:
            self.spans = program.changes.spans(program.bandwidths)
            self._announce()
        channels = grouped(range(count), program.channel.tolist().__getitem__)
        for transfers in channels.values():
            self.env.process(self.channel(transfers))
        for task, work in enumerate(self._work()):
            self.env.process(self.task(task, *work))

    def _work(self) -> list[tuple[list[int], list[int]]]:
        """The transfers that each task sends, and those that it receives."""
        found: list[tuple[list[int], list[int]]] = [([], []) for _ in self.done.at]
        for i in range(len(self.program)):
            sender, receiver = self.ends(i)
            if sender != NONE:
                found[sender][0].append(i)
            if receiver != NONE:
                found[receiver][1].append(i)
        return found

    def ends(self, i: int) -> tuple[int, int]:
        """The tasks that send and receive transfer `i`."""
        program, tasks = self.program, self.program.tasks
        return (int(tasks.channel[program.channel[i]]), int(tasks.side[program.side[i]])) if tasks else (NONE, NONE)

    def _fabric(self) -> Fabric:
        program, count = self.program, len(self.program.bandwidths)
        capacity = dict(enumerate(program.bandwidths.astype(float).tolist()))
        for i, channel in enumerate(program.channel.tolist()):
            if program.params_of(i).channel_bandwidth:  # a channel's cap is one more link, behind the real ones
                capacity[count + channel] = float(program.params_of(i).channel_bandwidth)
        return Fabric(self.env, self.instant, capacity)

    def reached(self) -> Reached:
        """The milestones that each transfer has reached."""
        started, sent, ended, completed = (times.at for times in (self.started, self.sent, self.ended, self.completed))
        return Reached(started, sent, ended, completed, self.way, self.blocking)

    def finish(self) -> Timeline:
        """Run until nothing is left to happen."""
        try:
            self.env.run()
        except OverflowError:  # a time that no column can hold
            raise too_late("the run takes") from None
        if NONE in self.ended.at:
            raise stuck(self.program, self.reached())
        hops = clocked([time for hops in self.hops for hop in hops for time in hop])
        return Timeline(
            start=self.started.column(),
            sent=self.sent.column(),
            arrive=self.arrived.column(),
            end=self.ended.column(),
            complete=self.completed.column(),
            hop_begin=hops[::2],
            hop_end=hops[1::2],
            opened=self.opened.column(),
            done=self.done.column(),
            way=np.array(self.way if self.program.changes else [], np.int64),
        )

    # --- changes ---

    def _announce(self) -> None:
        """Have everything that changes do so, before all else of its instant."""
        changes = self.program.changes
        assert changes
        for at, link, bandwidth, turn in changes:
            how = partial(self.change, link, bandwidth, turn)
            if at:
                self.env.timeout(at).callbacks.append(how)
            else:
                how(None)

    def change(self, link: int, bandwidth: int, turn: int, _: Event | None) -> None:
        """A link has another bandwidth; or is found dead, and what it has not served goes another way."""
        if turn == NONE:
            self.fabric.change(link, bandwidth)
            return
        for i, flow in list(self.fabric.flows.get(link, {}).items()):
            if self.forced(i, self.env.now) != self.way[i]:
                self.ready[i] = self.env.now
                self.fabric.again(i, flow, self.take(i) + self.cap(i))

    def forced(self, i: int, when: int) -> int:
        """The way that transfer `i` takes if it sets out then."""
        way, changes = int(self.program.way[i]), self.program.changes
        return int(changes.force[np.searchsorted(changes.turns, when, side="right"), way]) if changes else way

    def take(self, i: int) -> list[int]:
        """Set out: the links of the way that is in force."""
        self.way[i] = self.forced(i, self.env.now)
        return self.route(i)

    # --- tasks ---

    def task(self, task: int, sends: list[int], receives: list[int]) -> Wait:
        """The part of one rank in one operation: open when all before it is done, done when all of it is."""
        tasks = self.program.tasks
        assert tasks
        for before in tasks.before[slice(*tasks.first[task : task + 2])].tolist():
            yield from self.done.wait(before)
        self.opened.reach(task)
        yield self.env.timeout(int(tasks.duration[task]))
        for i in sends:
            yield from self.sent.wait(i)
        for i in receives:
            yield from self.completed.wait(i)
        self.done.reach(task)

    # --- sending ---

    def channel(self, transfers: list[int]) -> Wait:
        """A channel: its transfers strictly in index order, a blocked one blocking those behind it."""
        env, program, free = self.env, self.program, 0
        yield env.timeout(int(program.arrivals[program.src[transfers[0]]]))
        yield from self.opened.wait(self.ends(transfers[0])[0])
        for i in transfers:
            yield from self.missing(i)
            if free > env.now:
                yield env.timeout(free - env.now)
            self.started.reach(i)
            free = env.now + self.params_of(i).g
            yield from self.leave(i)
            self.sent.reach(i)

    def missing(self, i: int) -> Sequence[Event]:
        """The events that transfer `i` still waits for, besides its place in the channel."""
        found = [*self.completed.wait(self.reads[i]), *self.ended.wait(self.credit[i])]
        if self.blocking:
            found += [event for before in self.blocking[i] for event in self.ended.wait(before)]
        if self.steps:
            found += self.steps.wait(i)
        return found

    def leave(self, i: int) -> Wait:
        """Take a transfer from start to sent; it goes the rest of the way by itself."""
        env, route = self.env, self.route(i)
        if not route:
            yield env.timeout(1)
            self.receive(i)
            return
        if (o_send := self.params_of(i).o_send) and self.program.src[i] != self.program.dst[i]:
            yield env.timeout(o_send)
        if self.params.sharing == "fair":
            yield from self.leave_fair(i)
        else:
            gone = env.event()
            self.set_out(i, gone)
            yield gone

    def leave_fair(self, i: int) -> Wait:
        route, self.ready[i] = self.take(i), self.env.now
        yield self.fabric.send(i, self.nbytes[i], route + self.cap(i))
        route = self.route(i)
        self.hops[i] = [(self.ready[i], self.env.now)] * len(route)
        self.after(sum(self.latencies[link] for link in route), self.receive, i)

    def cap(self, i: int) -> list[int]:
        """The link that stands for the cap of its channel, if that has one."""
        capped = self.params_of(i).channel_bandwidth
        return [len(self.bandwidths) + int(self.program.channel[i])] if capped else []

    # --- on the way, first in, first out ---

    def after(self, wait: int, call: Callable[..., None], *given: Any) -> None:
        """Call a method with what is `given`, so many ps from now."""
        self.env.timeout(wait).callbacks.append(lambda _: call(*given))

    def set_out(self, i: int, gone: Event | None) -> None:
        """The head is at the first link of the way in force; `gone` is to happen when the tail is sent."""
        self.come(i, self.take(i), 0, 0, gone)

    def come(self, i: int, route: list[int], hop: int, tail: int, gone: Event | None) -> None:
        """The head comes to a link of the route, the tail at `tail`; the link says how it serves it when it decides."""
        link, nbytes = route[hop], self.nbytes[i]
        how = whole_service(service_ps(nbytes, self.bandwidths[link]))
        if spans := self.spans.get(link):
            how = partial(serve, spans, nbytes, lost=lambda when: self.forced(i, when) != self.way[i])
        self.links[link % self.servers].reserve(i, how, lambda served: self.served(i, route, hop, tail, gone, served))

    def served(self, i: int, route: list[int], hop: int, tail: int, gone: Event | None, served: Served) -> None:
        """The head moves on as soon as its link begins to serve it; the tail follows at the slowest pace so far. A
        chunk that is lost sets out again."""
        now, latency = self.env.now, self.latencies[route[hop]]
        if served.again != NONE:
            self.hops[i] = []
            self.after(served.again - now, self.set_out, i, gone)
            return
        self.hops[i].append((served.begin, served.end))
        tail = max(served.end, tail) if hop else self.tail(i, served)
        if gone and not hop:
            happen(gone, tail - now)
            gone = None
        if hop + 1 < len(route):
            self.after(served.begin + latency - now, self.come, i, route, hop + 1, tail + latency, gone)
        else:
            self.after(tail + latency - now, self.receive, i)

    def tail(self, i: int, served: Served) -> int:
        """The time at which the tail leaves the first link: not before the channel has brought it there."""
        cap = self.params_of(i).channel_bandwidth
        return max(served.end, served.begin + service_ps(self.nbytes[i], cap)) if cap else served.end

    def route(self, i: int) -> list[int]:
        """The links of the way that transfer `i` took."""
        return self.paths[self.way[i]]

    # --- receiving ---

    def receive(self, i: int) -> None:
        """A transfer arrives, and keeps its receive side for a time."""
        self.arrived.reach(i)
        wait = self.program.receive_ps(i) if self.receiving else 0
        if wait:
            side = self.sides[int(self.program.side[i])]
            side.reserve(i, whole_service(wait), lambda served: self.after(served.end - self.env.now, self.end, i))
        else:
            self.end(i)

    def end(self, i: int) -> None:
        """A transfer ends; it is complete once no earlier version is missing."""
        self.ended.reach(i)
        if self.steps:
            self.steps.ended(i)
        self.completed.then(self.chain[i], self.add, i)

    def add(self, i: int) -> None:
        """A transfer is complete; what it adds to, if that was there from the start, came with its rank."""
        if not self.adds[i]:
            self.completed.reach(i)
        elif (late := int(self.program.arrivals[self.program.dst[i]]) - self.env.now) > 0:
            self.after(late, self.add, i)
        else:
            self.opened.then(self.ends(i)[1], self.completed.reach, i)


class _Barrier:
    """Barriers between steps: which step everyone may be in."""

    def __init__(self, env: simpy.Environment, program: Program):
        self.step = program.step.tolist()
        self.left = Counter(self.step)
        self.order = sorted(self.left)
        self.before = dict(zip(self.order, [NONE, *range(len(self.order))], strict=False))
        self.passed = Milestone(env, len(self.order))
        self.next = 0

    def wait(self, i: int) -> Iterable[Event]:
        return self.passed.wait(self.before[self.step[i]])

    def ended(self, i: int) -> None:
        self.left[self.step[i]] -= 1
        while self.next < len(self.order) and not self.left[self.order[self.next]]:
            self.passed.reach(self.next)
            self.next += 1
