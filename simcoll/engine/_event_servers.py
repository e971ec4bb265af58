"""Servers of the event engine (links, receive sides, fabric) and the SimPy events they need.

Each server decides once an instant, after all other events of that instant (`LAST`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import simpy
from simpy.events import NORMAL, Event

from simcoll.config.arrays import Numbers
from simcoll.engine.timing_model import NONE, PS_PER_S, clocked, service_ps

# SimPy priority of the second phase of an instant. A decision about transfer i has the priority LAST + i, so it comes
# after the first phase (SimPy's URGENT = 0 and NORMAL = 1), and the lowest index decides first.
LAST: Final = 2


class Recurring(Event):  # type: ignore[misc]  # SimPy has no types here
    """An event that can be scheduled again and again, each time with another callback."""

    _ok, _value = True, None  # counts as triggered from the start, like SimPy's Timeout

    def __init__(self, env: simpy.Environment):
        self.env = env

    def later(self, wait: int, call: Callable[[Event], None], priority: int = NORMAL) -> None:
        """Call `call` in `wait` ps."""
        self.callbacks = [call]
        self.env.schedule(self, priority, wait)

    def forget(self) -> None:
        """Drop the callback: nothing is called when the event happens next."""
        self.callbacks = []


class Milestone:
    """An event that happens once to each transfer, such as `sent`: its time, and the processes that wait for it."""

    def __init__(self, env: simpy.Environment, count: int):
        self.env = env
        self.at: list[int] = [NONE] * count
        self._waiting: dict[int, Event] = {}

    def reach(self, i: int, when: int) -> None:
        """Note that transfer `i` reaches the milestone at `when` (now or later), and resume its waiters at once."""
        self.at[i] = when
        event = self._waiting.pop(i, None)
        if event:
            event._ok, event._value = True, None
            waiting, event.callbacks = event.callbacks, None
            for call in waiting:
                call(event)

    def wait(self, i: int) -> tuple[Event, ...]:
        """Return an event that happens when the time of `i` is noted; an empty tuple if it is, or if `i` is NONE."""
        if i == NONE or self.at[i] != NONE:
            return ()
        if i not in self._waiting:
            self._waiting[i] = Event(self.env)
        return (self._waiting[i],)

    def then(self, i: int, call: Callable[[int], None], own: int) -> None:
        """Call `call(own)` once the time of `i` is noted; at once if it is, or if `i` is NONE."""
        for event in self.wait(i):
            event.callbacks.append(lambda _: call(own))
            return
        call(own)

    def column(self) -> Numbers:
        """Return the times in ps at which transfers reached the milestone, int64 (transfers,)."""
        return clocked(self.at)


@dataclass(eq=False)
class Flow:
    """A message in the `fair` fabric, which it entered at time `came`. At time `since` it had `rest` bytes left. Since
    then it moves at `rate` B/s; `all_gone` happens when all bytes are sent."""

    i: int
    nbytes: int
    route: Sequence[int]
    gone: Callable[[Flow], None]
    came: int
    narrowest: float  # least capacity of its links at time `came`, in B/s
    all_gone: Recurring
    rest: float
    since: int
    rate: float = 0.0


class Fabric:
    """All links under `fair` sharing. Once an instant it solves max-min rates for links where flows came or went."""

    def __init__(self, env: simpy.Environment, capacity: list[float]):
        self.env, self.capacity = env, capacity
        self.flows: list[dict[int, Flow]] = [{} for _ in capacity]  # on each link, by index
        self.touched: set[int] = set()
        self.decision = Recurring(env)

    def send(self, i: int, nbytes: int, route: Sequence[int], gone: Callable[[Flow], None]) -> None:
        """Send transfer `i` over `route`, and call `gone` when all its bytes are sent."""
        env, alone = self.env, True
        now, narrowest = env.now, min(map(self.capacity.__getitem__, route))
        flow = Flow(i, nbytes, route, gone, now, narrowest, Recurring(env), float(nbytes), now)
        for link in route:
            others = self.flows[link]
            alone = alone and not others
            others[i] = flow
        if alone:  # the final rate, unless another flow comes at this instant
            self._change(flow, narrowest)
        else:
            self._touch(route)

    def again(self, flow: Flow, route: Sequence[int]) -> None:
        """Send a flow from the start, over another route."""
        self._leave(flow)
        flow.all_gone.forget()
        self.send(flow.i, flow.nbytes, route, flow.gone)

    def change(self, link: int, bandwidth: int) -> None:
        """Give the link another bandwidth, in B/s, from now on."""
        self.capacity[link] = float(bandwidth)
        self._touch([link])

    def _leave(self, flow: Flow) -> None:
        for link in flow.route:
            others = self.flows[link]
            del others[flow.i]
            if others:  # the others may go faster now
                self._touch([link])

    def _touch(self, links: Sequence[int]) -> None:
        if not self.touched:
            self.decision.later(0, self._decide, LAST)
        self.touched.update(links)

    def _decide(self, _: Event) -> None:
        while self.touched:
            flows, links = self._component(self.touched.pop())
            self.touched -= links
            for i, rate in self._rates(flows, links).items():
                if rate != flows[i].rate:
                    self._change(flows[i], rate)

    def _component(self, link: int) -> tuple[dict[int, Flow], set[int]]:
        """Return the flows that this link connects, directly or through shared links, and all links of these flows."""
        found, links = dict(self.flows[link]), {link}
        todo = list(found.values())
        for flow in todo:
            for link in flow.route:
                if link not in links:
                    links.add(link)
                    if len(self.flows[link]) > 1:  # others than this flow
                        todo += [other for i, other in self.flows[link].items() if i not in found]
                        found.update(self.flows[link])
        return found, links

    def _rates(self, flows: dict[int, Flow], links: set[int]) -> dict[int, float]:
        """Return the B/s of each flow, by progressive filling. Only −, / and <: equal bits on any IEEE machine."""
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

    def _change(self, flow: Flow, rate: float) -> None:
        now = self.env.now
        if flow.rate:
            flow.rest = max(0.0, flow.rest - (flow.rate * (now - flow.since)) / 1e12)
            flow.all_gone.forget()
            flow.all_gone = Recurring(self.env)
        flow.since, flow.rate = now, rate
        if rate:
            whole = now == flow.came and rate == flow.narrowest
            wait = service_ps(flow.nbytes, int(rate)) if whole else max(1, math.ceil(flow.rest * PS_PER_S / rate))
            flow.all_gone.later(wait, partial(self._end, flow))

    def _end(self, flow: Flow, _: Event) -> None:
        self._leave(flow)
        flow.gone(flow)
