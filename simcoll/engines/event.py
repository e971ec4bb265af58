"""The event engine on SimPy. This is the definition of simcoll's timing: slow, readable, complete.

A process per channel takes up its transfers in order; a process per transfer carries it along its route; a process
per task waits for what comes before it and for what it does; links and receive sides are servers that decide once an
instant, after everything else at that instant (`LAST`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import simpy
from simpy.events import Event

from simcoll.errors import StuckError
from simcoll.model import NEVER, NONE, PS_PER_S, clocked, service_ps, too_late
from simcoll.program import Program, blocking_predecessors
from simcoll.timeline import Timeline, Times

LAST: Final = 2  # SimPy's own priorities are URGENT = 0 and NORMAL = 1
Wait = Generator[Event, Any, None]


def run(program: Program) -> Timeline:
    """Replay a program; raises StuckError if it cannot finish."""
    return _Run(program).finish()


def _at_end_of_instant(env: simpy.Environment, decide: Callable[[Event], None]) -> None:
    """Call `decide` in the second phase of this instant."""
    event = Event(env)
    event._ok, event._value = True, None  # what Timeout does: triggered, but processed at a priority of our own
    event.callbacks = [decide]
    env.schedule(event, priority=LAST)


class _Milestone:
    """Something that happens once to each transfer: when it did, and who waits for it."""

    def __init__(self, env: simpy.Environment, count: int):
        self.env = env
        self.at: list[int] = [NONE] * count
        self._waiting: dict[int, Event] = {}

    def reach(self, i: int) -> None:
        self.at[i] = self.env.now
        if i in self._waiting:
            self._waiting.pop(i).succeed()

    def wait(self, i: int) -> Iterator[Event]:
        if i != NONE and self.at[i] == NONE:
            yield self._waiting.setdefault(i, self.env.event())

    def column(self) -> Times:
        return clocked(self.at)


class _Server:
    """A `fifo` link or a receive side: serves whole messages one after the other, by (time they came, index)."""

    def __init__(self, env: simpy.Environment):
        self.env, self.free = env, 0
        self._came: list[tuple[int, int, Event]] = []

    def reserve(self, i: int, service: int) -> Event:
        """An event whose value is the time at which the service of `i` begins."""
        if not self._came:
            _at_end_of_instant(self.env, self._decide)
        self._came.append((i, service, self.env.event()))
        return self._came[-1][2]

    def _decide(self, _: Event) -> None:
        came, self._came = sorted(self._came, key=lambda entry: entry[0]), []
        for _, service, event in came:
            if service == NEVER:
                continue
            begin = max(self.env.now, self.free)
            self.free = begin + service
            event.succeed(begin)


@dataclass(eq=False)
class _Flow:
    """A message in the `fair` fabric: `rest` bytes were left at time `since`, going at `rate` B/s from then on."""

    nbytes: int
    route: list[int]
    capacity: float
    gone: Event
    rest: float
    since: int
    rate: float | None = None
    whole: bool = True  # nothing was sent yet at any earlier rate
    plan: int = 0  # numbers the due times; only the newest counts


@dataclass
class _Fabric:
    """All links in `fair`: max-min fair rates, solved once an instant for the links that were touched."""

    env: simpy.Environment
    capacity: dict[int, float]
    flows: dict[int, dict[int, _Flow]] = field(default_factory=dict)  # link → index → flow
    touched: set[int] = field(default_factory=set)

    def send(self, i: int, nbytes: int, route: list[int]) -> Event:
        """An event that fires when the bytes of `i` are gone."""
        capacity = min(self.capacity[link] for link in route)
        flow = _Flow(nbytes, route, capacity, self.env.event(), float(nbytes), self.env.now)
        for link in route:
            self.flows.setdefault(link, {})[i] = flow
        self._touch(route)
        return flow.gone

    def _touch(self, route: list[int]) -> None:
        if not self.touched:
            _at_end_of_instant(self.env, self._decide)
        self.touched.update(route)

    def _decide(self, _: Event) -> None:
        component = self._component()
        self.touched = set()
        for i, rate in self._rates(component).items():
            flow = component[i]
            if rate != flow.rate:
                self._change(i, flow, rate)

    def _component(self) -> dict[int, _Flow]:
        """The flows that share links with the touched ones, directly or through others."""
        found: dict[int, _Flow] = {}
        todo, seen = list(self.touched), set(self.touched)
        while todo:
            for i, flow in self.flows.get(todo.pop(), {}).items():
                if i not in found:
                    found[i] = flow
                    fresh = [link for link in flow.route if link not in seen]
                    seen.update(fresh)
                    todo.extend(fresh)
        return found

    def _rates(self, flows: dict[int, _Flow]) -> dict[int, float]:
        """Progressive filling. Only −, /, comparison: any faithful float64 gives the same bits."""
        rates: dict[int, float] = {}
        links = sorted({link for flow in flows.values() for link in flow.route})
        avail = {link: self.capacity[link] for link in links}
        count = {link: len(self.flows[link]) for link in links}
        floor = dict.fromkeys(links, 0.0)
        while len(rates) < len(flows):
            rate, tightest = min((max(avail[link] / count[link], floor[link]), link) for link in links if count[link])
            for i, flow in self.flows[tightest].items():
                if i in rates:
                    continue
                rates[i] = rate
                for link in flow.route:
                    avail[link] -= rate
                    count[link] -= 1
                    floor[link] = max(floor[link], rate)
        return rates

    def _change(self, i: int, flow: _Flow, rate: float) -> None:
        now = self.env.now
        if flow.rate is not None:
            flow.rest = max(0.0, flow.rest - (flow.rate * (now - flow.since)) / 1e12)
            flow.whole = False
        flow.since, flow.rate = now, rate
        flow.plan += 1
        if rate == 0.0:
            return
        if flow.whole and rate == flow.capacity:
            wait = service_ps(flow.nbytes, int(flow.capacity))
        else:
            wait = max(1, math.ceil(flow.rest * PS_PER_S / rate))
        due = self.env.timeout(wait, value=flow.plan)
        due.callbacks.append(lambda event: self._end(i, flow, event.value))

    def _end(self, i: int, flow: _Flow, plan: int) -> None:
        if plan != flow.plan:
            return
        for link in flow.route:
            del self.flows[link][i]
        self._touch(flow.route)
        flow.gone.succeed()


class _Run:
    """One replay: the processes and what they have written down."""

    def __init__(self, program: Program):
        self.program, self.params, self.env = program, program.params, simpy.Environment()
        count = len(program)
        self.started, self.sent, self.arrived, self.ended, self.completed = (
            _Milestone(self.env, count) for _ in range(5)
        )
        self.hop_begin, self.hop_end = np.zeros((2, len(program.hops.links)), np.int64)
        self.links: dict[int, _Server] = {}
        self.sides: dict[int, _Server] = {}
        self.fabric = self._fabric()
        self.blocking = blocking_predecessors(program) if self.params.blocking != "no" else []
        self.chained: dict[int, list[int]] = {}  # whose completion waits for this transfer's
        self.steps = _Steps(self.env, program) if self.params.barrier else None
        tasks = len(program.tasks) if program.tasks else 0
        self.opened, self.done = _Milestone(self.env, tasks), _Milestone(self.env, tasks)
        for transfers in self._channels():
            self.env.process(self.channel(transfers))
        for task, work in enumerate(self._work()):
            self.env.process(self.task(task, *work))

    def _channels(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(int(self.program.channel.max(initial=-1)) + 1)]
        for i, channel in enumerate(self.program.channel.tolist()):
            found[channel].append(i)
        return found

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

    def _fabric(self) -> _Fabric:
        program, count = self.program, len(self.program.bandwidths)
        capacity = dict(enumerate(program.bandwidths.astype(float).tolist()))
        for i, channel in enumerate(program.channel.tolist()):
            if program.params_of(i).channel_bandwidth:  # a channel's cap is a link of its own, behind the real ones
                capacity[count + channel] = float(program.params_of(i).channel_bandwidth)
        return _Fabric(self.env, capacity)

    def finish(self) -> Timeline:
        """Run until nothing is left to happen."""
        try:
            self.env.run()
        except OverflowError:  # a time that no column can hold
            raise too_late("the run takes") from None
        if NONE in self.ended.at:
            raise StuckError(_why_stuck(self))
        return Timeline(
            start=self.started.column(),
            sent=self.sent.column(),
            arrive=self.arrived.column(),
            end=self.ended.column(),
            complete=self.completed.column(),
            hop_begin=self.hop_begin,
            hop_end=self.hop_end,
            opened=self.opened.column(),
            done=self.done.column(),
        )

    # --- tasks ---

    def task(self, task: int, sends: list[int], receives: list[int]) -> Wait:
        """What one rank does in one operation: open when all before it is done, done when all of it is."""
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
        """What transfer `i` waits for, besides its place in the channel."""
        yield self.completed.wait(int(self.program.reads[i]))
        yield self.ended.wait(int(self.program.credit[i]))
        if self.blocking:
            yield self.ended.wait(self.blocking[i][0])
            yield self.ended.wait(self.blocking[i][1])
        if self.steps:
            yield self.steps.wait(i)

    def leave(self, i: int) -> Wait:
        """From start to sent; what remains of the way is a process of its own."""
        env, route, local = self.env, self.program.route(i), self.program.src[i] == self.program.dst[i]
        if not route:
            yield env.timeout(1)
            env.process(self.receive(i))
        else:
            if (o_send := self.program.params_of(i).o_send) and not local:
                yield env.timeout(o_send)
            yield from (self.leave_fifo if self.params.sharing == "fifo" else self.leave_fair)(i, route)

    def leave_fair(self, i: int, route: list[int]) -> Wait:
        hops, ready = slice(*self.program.hops.first[i : i + 2]), self.env.now
        capped, channel = self.program.params_of(i).channel_bandwidth, int(self.program.channel[i])
        cap = [len(self.program.bandwidths) + channel] if capped else []
        yield self.fabric.send(i, int(self.program.nbytes[i]), route + cap)
        self.hop_begin[hops], self.hop_end[hops] = ready, self.env.now
        self.env.process(self.fly(i, int(self.program.latencies[route].sum())))

    def leave_fifo(self, i: int, route: list[int]) -> Wait:
        nbytes, cap = int(self.program.nbytes[i]), self.program.params_of(i).channel_bandwidth
        service = self.service(i, route[0])
        begin = yield self.link(route[0]).reserve(i, service)
        self.note(i, 0, begin, service)
        tail = begin + max(service, service_ps(nbytes, cap) if cap else 0)
        self.env.process(self.cut_through(i, route, begin, tail))
        yield self.env.timeout(tail - self.env.now)

    # --- on the way ---

    def cut_through(self, i: int, route: list[int], begin: int, tail: int) -> Wait:
        """The head moves on as soon as its link begins to serve it; the tail follows at the slowest pace so far."""
        env, latencies = self.env, self.program.latencies
        for hop in range(1, len(route)):
            behind = int(latencies[route[hop - 1]])
            yield env.timeout(begin + behind - env.now)
            service = self.service(i, route[hop])
            begin = yield self.link(route[hop]).reserve(i, service)
            self.note(i, hop, begin, service)
            tail = max(begin + service, tail + behind)
        yield from self.fly(i, tail + int(latencies[route[-1]]) - env.now)

    def fly(self, i: int, wait: int) -> Wait:
        """The last stretch, then the receive side."""
        yield self.env.timeout(wait)
        yield from self.receive(i)

    def service(self, i: int, link: int) -> int:
        return service_ps(int(self.program.nbytes[i]), int(self.program.bandwidths[link]))

    def link(self, link: int) -> _Server:
        return self.links.setdefault(link, _Server(self.env))

    def note(self, i: int, hop: int, begin: int, service: int) -> None:
        at = self.program.hops.first[i] + hop
        self.hop_begin[at], self.hop_end[at] = begin, begin + service

    # --- receiving ---

    def receive(self, i: int) -> Wait:
        """From arrive to end, and to complete where no earlier version is still missing."""
        self.arrived.reach(i)
        wait = self.program.receive_ps(i)
        if wait:
            side = self.sides.setdefault(int(self.program.side[i]), _Server(self.env))
            begin = yield side.reserve(i, wait)
            yield self.env.timeout(begin + wait - self.env.now)
        self.ended.reach(i)
        if self.steps:
            self.steps.ended(i)
        yield from self.completed.wait(int(self.program.chain[i]))
        if self.program.reduce[i] and self.program.chain[i] == NONE:  # what was there from the start came with its rank
            yield self.env.timeout(max(0, int(self.program.arrivals[self.program.dst[i]]) - self.env.now))
            yield from self.opened.wait(self.ends(i)[1])
        self.completed.reach(i)


class _Steps:
    """Barriers between steps: which step everyone may be in."""

    def __init__(self, env: simpy.Environment, program: Program):
        self.step = program.step.tolist()
        self.left: dict[int, int] = {}
        for step in self.step:
            self.left[step] = self.left.get(step, 0) + 1
        self.order = sorted(self.left)
        self.before = dict(zip(self.order, [NONE, *range(len(self.order))], strict=False))
        self.passed = _Milestone(env, len(self.order))
        self.next = 0

    def wait(self, i: int) -> Iterator[Event]:
        return self.passed.wait(self.before[self.step[i]])

    def ended(self, i: int) -> None:
        self.left[self.step[i]] -= 1
        while self.next < len(self.order) and not self.left[self.order[self.next]]:
            self.passed.reach(self.next)
            self.next += 1


# --- when it cannot finish ---


def _why_stuck(run: _Run) -> str:
    i = run.ended.at.index(NONE)
    return f"the run cannot finish: {_told(run, i)} {_missing(run, i)}"


def _told(run: _Run, i: int) -> str:
    row = run.program.schedule.row(int(run.program.origin[i]))
    src, dst = (f"rank {p}" if p < run.program.schedule.n else f"switch {p}" for p in (row.src, row.dst))
    return f"step {row.step}: {src}, sending chunk {row.src_slot} to {dst},"


def _missing(run: _Run, i: int) -> str:
    """What transfer `i` waits for, in words."""
    program = run.program
    if run.started.at[i] != NONE:
        dead = next(link for link in program.route(i) if not program.bandwidths[link])
        return f"waits for link {program.link_names[dead]}, which is down"
    waits = {
        "the chunk to come from": (run.completed, int(program.reads[i])),
        "its channel, kept by": (run.sent, int(program.channel_before[i])),
        "a free slot, kept by": (run.ended, int(program.credit[i])),
    }
    for what, (milestone, j) in waits.items():
        if j != NONE and milestone.at[j] == NONE:
            return f"waits for {what} {_told(run, j)[:-1]}"
    for j in run.blocking[i] if run.blocking else ():
        if j != NONE and run.ended.at[j] == NONE:
            why = {"sends-first": "all send before anyone receives", "even-odd": "both of a pair send first"}
            return f"waits for a rank that is blocked in {_told(run, j)[:-1]}; {why[program.params.blocking]}"
    return "waits for the barrier behind an earlier step"
