"""Servers of the event engine: links, receive sides and the fabric, as SimPy's events see them.

Each decides once an instant, after everything else at that instant (`LAST`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Final

import simpy
from simpy.events import NORMAL, Event

from simcoll.config.arrays import Numbers
from simcoll.dataclass import dataclass
from simcoll.engine.timing_model import NONE, PS_PER_S, clocked, service_ps

# The second phase of an instant: what decides about transfer i has the priority LAST + i, so that it comes after all of
# the first phase, for which SimPy has URGENT = 0 and NORMAL = 1, and the lowest index first.
LAST: Final = 2


class Recurring(Event):  # type: ignore[misc]  # SimPy has no types here
    """An event that happens as often as it is asked to, and may do another thing each time."""

    _ok, _value = True, None  # it is always one that is to come, like SimPy's Timeout

    def __init__(self, env: simpy.Environment):
        self.env = env

    def later(self, wait: int, call: Callable[[Event], None], priority: int = NORMAL) -> None:
        """Call something so many ps from now."""
        self.callbacks = [call]
        self.env.schedule(self, priority, wait)


class Milestone:
    """Something that happens once to each transfer: when it does, and who waits to hear of it."""

    def __init__(self, env: simpy.Environment, count: int):
        self.env = env
        self.at: list[int] = [NONE] * count
        self._waiting: dict[int, Event] = {}

    def reach(self, i: int, when: int) -> None:
        """Note when it happens to transfer `i`, now or later, and let go on at once who waits to hear of it."""
        self.at[i] = when
        event = self._waiting.pop(i, None)
        if event:
            event._ok, event._value = True, None
            waiting, event.callbacks = event.callbacks, None
            for call in waiting:
                call(event)

    def wait(self, i: int) -> tuple[Event, ...]:
        """The event that it is known of `i`; none if it is, or if `i` is NONE."""
        if i == NONE or self.at[i] != NONE:
            return ()
        if i not in self._waiting:
            self._waiting[i] = Event(self.env)
        return (self._waiting[i],)

    def then(self, i: int, call: Callable[[int], None], own: int) -> None:
        """Call with the number `own` when it is known of `i`, if that is any."""
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
    gone: Callable[[], None]
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
    capacity: dict[int, float]
    flows: dict[int, dict[int, Flow]] = field(default_factory=dict)  # link → index → flow
    touched: set[int] = field(default_factory=set)

    def send(self, i: int, nbytes: int, route: list[int], gone: Callable[[], None]) -> None:
        """Take transfer `i` in, and call `gone` when its bytes are gone."""
        self._enter(i, Flow(nbytes, route, gone, float(nbytes), self.env.now))

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
            Recurring(self.env).later(0, self._decide, LAST)
        self.touched.update(route)

    def _decide(self, _: Event) -> None:
        while self.touched:
            link = self.touched.pop()
            if self.flows.get(link):
                flows, links = self._component(link)
                self.touched -= links
                for i, rate in self._rates(flows, links).items():
                    if rate != flows[i].rate:
                        self._change(i, flows[i], rate)

    def _component(self, link: int) -> tuple[dict[int, Flow], set[int]]:
        """The flows that share links with one another and with this one, directly or through others; and the links."""
        found, todo, links = dict[int, Flow](), [link], {link}
        while todo:
            for i, flow in self.flows[todo.pop()].items():
                if i not in found:
                    found[i] = flow
                    todo += [link for link in flow.route if link not in links]
                    links.update(flow.route)
        return found, links

    def _rates(self, flows: dict[int, Flow], links: set[int]) -> dict[int, float]:
        """Progressive filling. Only −, /, comparison: any faithful float64 gives the same bits."""
        rates: dict[int, float] = {}
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
        Recurring(self.env).later(wait, partial(self._end, i, flow, flow.plan))

    def _end(self, i: int, flow: Flow, plan: int, _: Event) -> None:
        if plan == flow.plan:
            self._leave(i, flow)
            flow.gone()
