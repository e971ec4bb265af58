"""The event engine on SimPy. This is the definition of simcoll's timing: slow, readable, complete.

A process per channel takes up its transfers in order; a process per transfer carries it along its route; a process
per task waits for what comes before it and for what it does; links and receive sides are servers that decide once an
instant, after everything else at that instant (`simcoll.engine._event_servers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import numpy as np
import simpy
from simpy.events import Event

from simcoll.config.groups import grouped
from simcoll.engine._deadlock import Reached, stuck
from simcoll.engine._event_servers import Fabric, Milestone, Server, whole_service
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
        self.ready: dict[int, int] = {}  # when each flow set out
        self.links: dict[int, Server] = {}
        self.sides: dict[int, Server] = {}
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
        return Fabric(self.env, capacity)

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
            for predecessor in self.predecessors(i):
                yield from predecessor
            if free > env.now:
                yield env.timeout(free - env.now)
            self.started.reach(i)
            free = env.now + program.params_of(i).g
            yield from self.leave(i)
            self.sent.reach(i)

    def predecessors(self, i: int) -> Iterator[Iterator[Event]]:
        """The events that transfer `i` waits for, besides its place in the channel."""
        yield self.completed.wait(int(self.program.reads[i]))
        yield self.ended.wait(int(self.program.credit[i]))
        if self.blocking:
            yield self.ended.wait(self.blocking[i][0])
            yield self.ended.wait(self.blocking[i][1])
        if self.steps:
            yield self.steps.wait(i)

    def leave(self, i: int) -> Wait:
        """Take a transfer from start to sent; another process takes it the rest of the way."""
        env, local = self.env, self.program.src[i] == self.program.dst[i]
        if not self.program.route(i):
            yield env.timeout(1)
            env.process(self.receive(i))
        else:
            if (o_send := self.program.params_of(i).o_send) and not local:
                yield env.timeout(o_send)
            yield from (self.leave_fifo if self.params.sharing == "fifo" else self.leave_fair)(i)

    def leave_fair(self, i: int) -> Wait:
        route, self.ready[i] = self.take(i), self.env.now
        yield self.fabric.send(i, int(self.program.nbytes[i]), route + self.cap(i))
        route = self.route(i)
        self.hops[i] = [(self.ready[i], self.env.now)] * len(route)
        self.env.process(self.fly(i, int(self.program.latencies[route].sum())))

    def leave_fifo(self, i: int) -> Wait:
        served = yield from self.cross(i, self.take(i)[0])
        while served.again != NONE:
            yield self.env.timeout(served.again - self.env.now)
            served = yield from self.cross(i, self.take(i)[0])
        tail = self.tail(i, served)
        self.env.process(self.cut_through(i, served, tail))
        yield self.env.timeout(tail - self.env.now)

    def cap(self, i: int) -> list[int]:
        """The link that stands for the cap of its channel, if that has one."""
        capped = self.program.params_of(i).channel_bandwidth
        return [len(self.program.bandwidths) + int(self.program.channel[i])] if capped else []

    def tail(self, i: int, served: Served) -> int:
        """The time at which the tail leaves the first link: not before the channel has brought it there."""
        nbytes, cap = int(self.program.nbytes[i]), self.program.params_of(i).channel_bandwidth
        return max(served.end, served.begin + service_ps(nbytes, cap)) if cap else served.end

    # --- on the way ---

    def cut_through(self, i: int, served: Served, tail: int) -> Wait:
        """The head moves on as soon as its link begins to serve it; the tail follows at the slowest pace so far. A
        chunk that is lost sets out again."""
        env, latencies, route, hop = self.env, self.program.latencies, self.route(i), 1
        while hop < len(route):
            behind = int(latencies[route[hop - 1]]) if hop else 0
            if hop:
                yield env.timeout(served.begin + behind - env.now)
            served = yield from self.cross(i, route[hop])
            if served.again != NONE:
                yield env.timeout(served.again - env.now)
                route, hop = self.take(i), 0
                continue
            tail = max(served.end, tail + behind) if hop else self.tail(i, served)
            hop += 1
        yield from self.fly(i, tail + int(latencies[route[-1]]) - env.now)

    def cross(self, i: int, link: int) -> Generator[Event, Any, Served]:
        """Let a link serve a chunk; the service is known when it is decided."""
        nbytes, spans = int(self.program.nbytes[i]), self.spans.get(link)
        how = whole_service(service_ps(nbytes, int(self.program.bandwidths[link])))
        if spans:
            how = partial(serve, spans, nbytes, lost=lambda when: self.forced(i, when) != self.way[i])
        served: Served = yield self.link(link).reserve(i, how)
        if served.again != NONE:
            self.hops[i] = []
        else:
            self.hops[i].append((served.begin, served.end))
        return served

    def fly(self, i: int, wait: int) -> Wait:
        """The last stretch, then the receive side."""
        yield self.env.timeout(wait)
        yield from self.receive(i)

    def route(self, i: int) -> list[int]:
        """The links of the way that transfer `i` took."""
        _, _, hop, links = self.program.routes
        found: list[int] = links[hop[self.way[i]] : hop[self.way[i] + 1]].tolist()
        return found

    def link(self, link: int) -> Server:
        return self.links.setdefault(link % self.program.servers, Server(self.env))

    # --- receiving ---

    def receive(self, i: int) -> Wait:
        """Take a transfer from arrive to end, and to complete once no earlier version is missing."""
        self.arrived.reach(i)
        wait = self.program.receive_ps(i)
        if wait:
            side = self.sides.setdefault(int(self.program.side[i]), Server(self.env))
            served = yield side.reserve(i, whole_service(wait))
            yield self.env.timeout(served.end - self.env.now)
        self.ended.reach(i)
        if self.steps:
            self.steps.ended(i)
        yield from self.completed.wait(int(self.program.chain[i]))
        if self.program.reduce[i] and self.program.chain[i] == NONE:  # what was there from the start came with its rank
            yield self.env.timeout(max(0, int(self.program.arrivals[self.program.dst[i]]) - self.env.now))
            yield from self.opened.wait(self.ends(i)[1])
        self.completed.reach(i)


class _Barrier:
    """Barriers between steps: which step everyone may be in."""

    def __init__(self, env: simpy.Environment, program: Program):
        self.step = program.step.tolist()
        self.left = Counter(self.step)
        self.order = sorted(self.left)
        self.before = dict(zip(self.order, [NONE, *range(len(self.order))], strict=False))
        self.passed = Milestone(env, len(self.order))
        self.next = 0

    def wait(self, i: int) -> Iterator[Event]:
        return self.passed.wait(self.before[self.step[i]])

    def ended(self, i: int) -> None:
        self.left[self.step[i]] -= 1
        while self.next < len(self.order) and not self.left[self.order[self.next]]:
            self.passed.reach(self.next)
            self.next += 1
