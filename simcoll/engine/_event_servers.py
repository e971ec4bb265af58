"""Servers of the event engine: links, receive sides and the fabric, as SimPy's events see them.

Each decides once an instant, after everything else at that instant (`LAST`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from operator import itemgetter
from typing import Final

import simpy
from simpy.events import NORMAL, Event, EventPriority

from simcoll.config.arrays import Numbers
from simcoll.dataclass import dataclass
from simcoll.engine.timing_model import NONE, PS_PER_S, clocked, service_ps

LAST: Final = EventPriority(2)  # SimPy's own priorities are URGENT = 0 and NORMAL = 1


def happen(event: Event, wait: int, priority: EventPriority = NORMAL) -> None:
    """Have an event happen so many ps from now."""
    event._ok, event._value = True, None  # what Timeout does: triggered, and processed then
    event.env.schedule(event, priority, wait)


def at_once(event: Event) -> None:
    """Have an event happen before the caller goes on, without a turn in the queue."""
    event._ok, event._value = True, None
    waiting, event.callbacks = event.callbacks, None
    for call in waiting:
        call(event)


class InstantEnd:
    """The second phase of an instant, in which links, receive sides and the fabric decide, lowest index first."""

    def __init__(self, env: simpy.Environment):
        self.env = env
        self._todo: list[tuple[int, Callable[[], None]]] = []

    def then(self, i: int, decide: Callable[[], None]) -> None:
        """Call `decide`, which is about transfer `i`, in the second phase of this instant."""
        if not self._todo:
            event = Event(self.env)
            event.callbacks = [self._decide]
            happen(event, 0, LAST)
        self._todo.append((i, decide))

    def _decide(self, _: Event) -> None:
        todo, self._todo = self._todo, []
        todo.sort(key=itemgetter(0))
        for _, decide in todo:
            decide()


class Milestone:
    """Something that happens once to each transfer: when it did, and who waits for it."""

    def __init__(self, env: simpy.Environment, count: int):
        self.env = env
        self.at: list[int] = [NONE] * count
        self._waiting: dict[int, Event] = {}

    def reach(self, i: int) -> None:
        """Note that the event happens to transfer `i` now, and wake whoever waits for it."""
        self.at[i] = self.env.now
        if i in self._waiting:
            at_once(self._waiting.pop(i))

    def wait(self, i: int) -> tuple[Event, ...]:
        """The event that it happens to `i`; none if it has, or if `i` is NONE."""
        if i == NONE or self.at[i] != NONE:
            return ()
        if i not in self._waiting:
            self._waiting[i] = self.env.event()
        return (self._waiting[i],)

    def then(self, i: int, call: Callable[[int], None], own: int) -> None:
        """Call with the number `own` when it has happened to `i`, if that is any."""
        for event in self.wait(i):
            event.callbacks.append(lambda _: call(own))
            return
        call(own)

    def column(self) -> Numbers:
        """The time at which it happened."""
        return clocked(self.at)


@dataclass(eq=False)
class Flow:
    """A message in the `fair` fabric: `rest` bytes were left at time `since`, going at `rate` B/s from then on."""

    nbytes: int
    route: list[int]
    gone: Event
    rest: float
    since: int
    capacity: float = 0.0  # of the narrowest link, when it came
    rate: float | None = None
    whole: bool = True  # nothing was sent yet at any earlier rate
    plan: int = 0  # numbers the due times; only the newest counts


@dataclass
class Fabric:
    """All links in `fair`: max-min fair rates, solved once an instant for the links that were touched."""

    env: simpy.Environment
    instant: InstantEnd
    capacity: dict[int, float]
    flows: dict[int, dict[int, Flow]] = field(default_factory=dict)  # link → index → flow
    touched: set[int] = field(default_factory=set)

    def send(self, i: int, nbytes: int, route: list[int]) -> Event:
        """An event that fires when the bytes of `i` are gone."""
        flow = Flow(nbytes, route, self.env.event(), float(nbytes), self.env.now)
        self._enter(i, flow)
        return flow.gone

    def _enter(self, i: int, flow: Flow) -> None:
        for link in flow.route:
            self.flows.setdefault(link, {})[i] = flow
        self._touch(flow.route)

    def _leave(self, i: int, flow: Flow) -> None:
        for link in flow.route:
            del self.flows[link][i]
        self._touch(flow.route)

    def change(self, link: int, bandwidth: int) -> None:
        """The link has another bandwidth from now on."""
        self.capacity[link] = float(bandwidth)
        self._touch([link])

    def again(self, i: int, flow: Flow, route: list[int]) -> None:
        """Send `i` from the start, over another route."""
        self._leave(i, flow)
        flow.route, flow.rest, flow.since, flow.rate, flow.whole = route, float(flow.nbytes), self.env.now, None, True
        flow.plan += 1
        self._enter(i, flow)

    def _touch(self, route: list[int]) -> None:
        if not self.touched:
            self.instant.then(0, self._decide)
        self.touched.update(route)

    def _decide(self) -> None:
        component = self._component()
        self.touched = set()
        for i, rate in self._rates(component).items():
            flow = component[i]
            if rate != flow.rate:
                self._change(i, flow, rate)

    def _component(self) -> dict[int, Flow]:
        """The flows that share links with the touched ones, directly or through others."""
        found: dict[int, Flow] = {}
        todo, seen = list(self.touched), set(self.touched)
        while todo:
            for i, flow in self.flows.get(todo.pop(), {}).items():
                if i not in found:
                    found[i] = flow
                    fresh = [link for link in flow.route if link not in seen]
                    seen.update(fresh)
                    todo.extend(fresh)
        return found

    def _rates(self, flows: dict[int, Flow]) -> dict[int, float]:
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

    def _change(self, i: int, flow: Flow, rate: float) -> None:
        now = self.env.now
        if flow.rate is None:
            flow.capacity = min(self.capacity[link] for link in flow.route)
        else:
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

    def _end(self, i: int, flow: Flow, plan: int) -> None:
        if plan != flow.plan:
            return
        self._leave(i, flow)
        flow.gone.succeed()
