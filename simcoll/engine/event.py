"""The event engine on SimPy. This is the definition of simcoll's timing: slow, readable, complete.

A process per channel takes up its transfers in order; from there on each transfer goes from method to method: `come`
to a link, `served` there, `receive`, `end`, `add`. A process per task waits for what comes before it and for what it
does. Links and receive sides are servers that decide once an instant, after everything else at that instant
(`simcoll.engine._event_servers`).
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import simpy
from simpy.events import Event

from simcoll.config.groups import grouped
from simcoll.engine._deadlock import Reached, stuck
from simcoll.engine._event_servers import Fabric, InstantEnd, Milestone, Serve, Server, happen, whole_service
from simcoll.engine.link_changes import BandwidthSpan, Served, serve
from simcoll.engine.program import Program, blocking_predecessors
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NONE, clocked, service_ps, too_late

Wait = Generator[Event, Any, None]


def run(program: Program) -> Timeline:
    """Replay a program; raises StuckError if it cannot finish."""
    with no_garbage_collection():
        return _EventRun(program).finish()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Leave the garbage of cycles where it is: events make none, and to look for it takes a quarter of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _EventRun:
    """One replay: the processes and what they have written down."""

    def __init__(self, program: Program):
        self.program, self.params, self.env = program, program.params, simpy.Environment()
        count = len(program)
        self.started, self.arrived = [NONE] * count, [NONE] * count  # when; nobody waits for these
        self.sent, self.ended, self.completed = (Milestone(self.env, count) for _ in range(3))
        self.hops: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # when each link serves it
        self.planned, self.way = program.way.tolist(), program.way.tolist()  # the way that each is to take, and takes
        self.reads, self.chain, self.credit = (
            column.tolist() for column in (program.reads, program.chain, program.credit)
        )
        self.nbytes, self.adds = program.nbytes.tolist(), (program.reduce & (program.chain == NONE)).tolist()
        self.src, self.dst, self.there = (column.tolist() for column in (program.src, program.dst, program.arrivals))
        self.latencies, self.bandwidths = program.latencies.tolist(), program.bandwidths.tolist()
        links, first = program.routes.links.tolist(), program.routes.hop.tolist()
        self.paths: list[list[int]] = [links[a:b] for a, b in pairwise(first)]
        self.params_of = program.params_of if program.parts else lambda _: program.params
        self.receiving = any(params.gamma or params.o_recv for params in program.parts or (program.params,))
        self.instant = InstantEnd(self.env)
        self.ready: dict[int, int] = {}  # when each flow set out
        self.links, self.sides = (defaultdict[int, Server](partial(Server, self.instant)) for _ in range(2))
        self.servers = program.servers
        self.known_legs: dict[tuple[int, int], list[_Leg]] = {}  # of way and bytes, while no link changes
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
        sent, ended, completed = (times.at for times in (self.sent, self.ended, self.completed))
        return Reached(self.started, sent, ended, completed, self.way, self.blocking)

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
            start=clocked(self.started),
            sent=self.sent.column(),
            arrive=clocked(self.arrived),
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
        changes, way = self.program.changes, self.planned[i]
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
        env, free = self.env, 0
        yield env.timeout(self.there[self.src[transfers[0]]])
        yield from self.opened.wait(self.ends(transfers[0])[0])
        for i in transfers:
            yield from self.missing(i)
            if free > env.now:
                yield env.timeout(free - env.now)
            self.started[i] = env.now
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
        env, o_send = self.env, self.params_of(i).o_send
        if not self.route(i):
            yield env.timeout(1)
            self.receive(i)
            return
        if o_send and self.src[i] != self.dst[i]:
            yield env.timeout(o_send)
        if self.params.sharing == "fair":
            yield from self.leave_fair(i)
        else:
            gone = env.event()
            _Head(self, i, gone).set_out()
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

    # --- on the way ---

    def after(self, wait: int, call: Callable[..., None], *given: Any) -> None:
        """Call a method with what is `given`, so many ps from now."""
        self.env.timeout(wait).callbacks.append(lambda _: call(*given))

    def legs(self, i: int) -> list[_Leg]:
        """The links of the way that is in force, as transfer `i` meets them if it sets out now."""
        self.take(i)
        if self.spans:
            return [self.leg(link, i) for link in self.route(i)]
        which = self.way[i], self.nbytes[i]
        if which not in self.known_legs:
            self.known_legs[which] = [self.leg(link, i) for link in self.route(i)]
        return self.known_legs[which]

    def leg(self, link: int, i: int) -> _Leg:
        """A link, as transfer `i` meets it."""
        nbytes, spans = self.nbytes[i], self.spans.get(link)
        if spans:
            how: Serve = partial(serve, spans, nbytes, lost=lambda when: self.forced(i, when) != self.way[i])
        else:
            how = whole_service(service_ps(nbytes, self.bandwidths[link]))
        return _Leg(self.links[link % self.servers], how, self.latencies[link])

    def route(self, i: int) -> list[int]:
        """The links of the way that transfer `i` took."""
        return self.paths[self.way[i]]

    # --- receiving ---

    def receive(self, i: int) -> None:
        """A transfer arrives, and keeps its receive side for a time."""
        self.arrived[i] = self.env.now
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
        elif (late := self.there[self.dst[i]] - self.env.now) > 0:
            self.after(late, self.add, i)
        else:
            self.opened.then(self.ends(i)[1], self.completed.reach, i)


class _Leg(NamedTuple):
    """One link of a way: the server, how it serves the transfer, and the time over the wire behind it, in ps."""

    server: Server
    serve: Serve
    latency: int


class _Head:
    """The head of a transfer on the way, first in, first out: before link number `hop`, the tail due there at `tail`.

    `gone` is to happen when the tail is sent.
    """

    def __init__(self, run: _EventRun, i: int, gone: Event | None):
        self.run, self.i, self.gone = run, i, gone

    def set_out(self, _: Event | None = None) -> None:
        """The head is at the first link of the way in force."""
        self.legs, self.hop, self.tail = self.run.legs(self.i), 0, 0
        self.come()

    def come(self, _: Event | None = None) -> None:
        """The head comes to a link, which says how it serves it when it decides."""
        leg = self.legs[self.hop]
        leg.server.reserve(self.i, leg.serve, self.served)

    def served(self, served: Served) -> None:
        """The head moves on as soon as its link begins to serve it; the tail follows at the slowest pace so far. A
        chunk that is lost sets out again."""
        begin, end, _, again = served
        run, env, latency = self.run, self.run.env, self.legs[self.hop].latency
        now = env.now
        if again != NONE:
            run.hops[self.i] = []
            env.timeout(again - now).callbacks.append(self.set_out)
            return
        run.hops[self.i].append((begin, end))
        if self.hop:
            tail = max(end, self.tail)
        else:
            tail = self.first_tail(begin, end)
            if self.gone:
                happen(self.gone, tail - now)
                self.gone = None
        self.hop += 1
        self.tail = tail + latency
        if self.hop < len(self.legs):
            env.timeout(begin + latency - now).callbacks.append(self.come)
        else:
            env.timeout(self.tail - now).callbacks.append(self.arrive)

    def first_tail(self, begin: int, end: int) -> int:
        """The time at which the tail leaves the first link: not before the channel has brought it there."""
        cap = self.run.params_of(self.i).channel_bandwidth
        return max(end, begin + service_ps(self.run.nbytes[self.i], cap)) if cap else end

    def arrive(self, _: Event) -> None:
        """The tail has come to the end of the way."""
        self.run.receive(self.i)


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
