"""The event engine on SimPy, which defines simcoll's timing: slow, readable, complete.

One process per channel starts its transfers in order. From there each transfer goes from method to method: `cross` each
link, `receive`, `end`, `add`, `complete`. One process per task waits for earlier tasks, then for its own transfers.
Links, receive sides and the fabric decide once an instant, after all other events of that instant, lowest index first;
SimPy's priorities enforce this order (`LAST`).

When its first link decides, the time at which a transfer will be sent is computed. So a channel that also waits for
something else needs no event for that time.
"""

from __future__ import annotations

import gc
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import simpy
from simpy.events import NORMAL, Event

from simcoll.config.grouping import grouped
from simcoll.config.numpy_helpers import Numbers
from simcoll.engine.link_changes import BandwidthSpan, serve
from simcoll.engine.program import Program, blocking_predecessors
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NEVER, NONE, PS_PER_S, clocked, service_ps, too_late
from simcoll.errors import StuckError
from simcoll.units import exact_us, format_duration

Wait = Generator[Event, Any, None]

# SimPy priority of the second phase of an instant. A decision about transfer i has the priority LAST + i, so it comes
# after the first phase (SimPy's URGENT = 0 and NORMAL = 1), and the lowest index decides first.
LAST: Final = 2


def run(program: Program) -> Timeline:
    """Replay a program and return its timeline; raises StuckError if it cannot finish."""
    with no_garbage_collection():
        return _EventRun(program).finish()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Return a context in which Python does not search for reference cycles: events make none, and the search takes a
    quarter of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- servers ---


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
    """An event that happens once for each transfer, such as `sent`: its times, and the processes that wait for it."""

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
        """Return an event that happens when transfer `i` reaches the milestone; () if `i` reached it or is NONE."""
        if i == NONE or self.at[i] != NONE:
            return ()
        if i not in self._waiting:
            self._waiting[i] = Event(self.env)
        return (self._waiting[i],)

    def then(self, i: int, call: Callable[[int], None], own: int) -> None:
        """Call `call(own)` when transfer `i` reaches the milestone; at once if `i` has reached it, or is NONE."""
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


# --- a run ---


class _EventRun:
    """One run of a program: its processes, and the times that they note."""

    def __init__(self, program: Program):
        self.program, self.params, self.env = program, program.params, simpy.Environment()
        count = len(program)
        self.started, self.arrived = [NONE] * count, [NONE] * count  # times that no process waits for
        self.sent, self.ended, self.completed = (Milestone(self.env, count) for _ in range(3))
        self.hops: list[tuple[int, ...]] = [()] * count  # begin and end of service at each link
        self.planned, self.way = program.way.tolist(), program.way.tolist()  # route of each: planned, and taken
        self.nbytes = program.nbytes.tolist()
        self.chain = [program.chain.of(i) for i in range(count)]
        self.behind = defaultdict[int, list[int]](list)  # transfer -> those chained to it
        for i, j in zip(program.chain.waiting().tolist(), program.chain.before.tolist(), strict=True):
            self.behind[j].append(i)
        self.src, self.dst, self.there = (column.tolist() for column in (program.src, program.dst, program.arrivals))
        self.latencies, self.bandwidths = program.latencies.tolist(), program.bandwidths.tolist()
        links, first = program.routes.links.tolist(), program.routes.hop.tolist()
        self.paths: list[list[int]] = [links[a:b] for a, b in pairwise(first)]
        self.flight = [sum(self.latencies[link] for link in path) for path in self.paths]
        routed = (program.routes.src != program.routes.dst) & (np.diff(program.routes.hop) > 0)
        self.lead = np.where(routed, program.by_way("o_send"), 0).tolist()  # by way, as are the next two
        self.gap, self.caps = program.by_way("g").tolist(), program.by_way("channel_bandwidth").tolist()
        self.receiving = any(params.gamma or params.o_recv for params in program.parts or (program.params,))
        self.links, self.sides = defaultdict[int, int](int), defaultdict[int, int](int)  # when each is free
        self.known_legs: dict[tuple[int, int], list[_Leg]] = {}  # (way, bytes) -> links; unused if links change
        self.fabric = self._fabric()
        self.blocking = blocking_predecessors(program) if self.params.blocking != "no" else []
        self.steps = _Barrier(self.env, program) if self.params.barrier else None
        self.before = [*self._before()]
        tasks = len(program.tasks) if program.tasks else 0
        self.opened, self.done = Milestone(self.env, tasks), Milestone(self.env, tasks)
        self.sender, self.receiver = self._ends()
        late = tasks or any(self.there)  # data that transfers add to may come late
        self.adds = (program.adds & bool(late)).tolist()
        self.spans: dict[int, list[BandwidthSpan]] = {}
        if program.changes:
            self.spans = program.changes.spans(program.bandwidths)
            self._announce()
        channels = grouped(range(count), program.channel.tolist().__getitem__)
        for transfers in channels.values():
            self.env.process(self.channel(transfers))
        sends, receives = (grouped(range(count if tasks else 0), of.__getitem__) for of in (self.sender, self.receiver))
        for task in range(tasks):
            self.env.process(self.task(task, sends.get(task, []), receives.get(task, [])))

    def _before(self) -> Iterator[tuple[Milestone, list[list[int]]]]:
        """Yield each milestone that transfers wait for, apart from their channel, with those awaited by each."""
        reads = self.program.reads
        columns = [(self.ended, self.program.credit.tolist())]
        columns += [(self.ended, [*column]) for column in zip(*self.blocking, strict=True)]
        if self.steps:
            columns.append((self.steps.passed, self.steps.before))
        yield self.completed, [reads.of(i) for i in range(len(self.program))]
        for milestone, column in columns:
            if any(j != NONE for j in column):
                yield milestone, [[j] for j in column]

    def _ends(self) -> tuple[list[int], list[int]]:
        """Return for each transfer the task that sends it and the task that receives it, or NONE."""
        program, tasks = self.program, self.program.tasks
        if not tasks:
            return [NONE] * len(program), [NONE] * len(program)
        return tasks.channel[program.channel].tolist(), tasks.side[program.side].tolist()

    def _fabric(self) -> Fabric:
        program, count = self.program, len(self.bandwidths)
        capacity = np.zeros(count + program.channel.max(initial=NONE) + 1)
        capacity[:count] = program.bandwidths
        capacity[count + program.channel] = program.by_way("channel_bandwidth")[program.way]  # a channel's cap is
        return Fabric(self.env, capacity.tolist())  # one more link, behind the real ones

    def finish(self) -> Timeline:
        """Run until no event is left; return the timeline. Raises StuckError if a transfer did not end."""
        try:
            self.env.run()
            hops = clocked(np.fromiter(chain.from_iterable(self.hops), np.int64))
        except OverflowError:  # a time exceeds int64
            raise too_late("the run takes") from None
        if NONE in self.ended.at:
            raise _stuck(self)
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
        """Schedule every change of a link; it happens before all other events at the same time."""
        changes = self.program.changes
        assert changes
        for at, link, bandwidth, turn in changes:
            how = partial(self.change, link, bandwidth, turn)
            if at:
                Recurring(self.env).later(at, how)
            else:
                how(None)

    def change(self, link: int, bandwidth: int, turn: int, _: Event | None) -> None:
        """Change the bandwidth of a link. With a `turn`, it is found dead: send its flows again on new routes."""
        if turn == NONE:
            self.fabric.change(link, bandwidth)
            return
        for i, flow in list(self.fabric.flows[link].items()):
            if self.forced(i, self.env.now) != self.way[i]:
                self.fabric.again(flow, self.take(i) + self.cap(i))

    def forced(self, i: int, when: int) -> int:
        """Return the route (`way`) that transfer `i` takes if it leaves at time `when`."""
        changes, way = self.program.changes, self.planned[i]
        return int(changes.way_after[np.searchsorted(changes.turns, when, side="right"), way]) if changes else way

    def take(self, i: int) -> list[int]:
        """Choose the route of transfer `i`, which leaves now; return its links."""
        if self.program.changes:
            self.way[i] = self.forced(i, self.env.now)
        return self.paths[self.way[i]]

    # --- tasks ---

    def task(self, task: int, sends: list[int], receives: list[int]) -> Wait:
        """Run a task: it opens when earlier tasks are done, and is done after its own transfers and its duration."""
        tasks = self.program.tasks
        assert tasks
        for before in tasks.before[slice(*tasks.first[task : task + 2])].tolist():
            yield from self.done.wait(before)
        self.opened.reach(task, self.env.now)
        yield self.env.timeout(int(tasks.duration[task]))
        for i in sends:
            yield from self.sent.wait(i)
        if (wait := max((self.sent.at[i] for i in sends), default=0) - self.env.now) > 0:
            yield self.env.timeout(wait)
        for i in receives:
            yield from self.completed.wait(i)
        self.done.reach(task, self.env.now)

    # --- sending ---

    def channel(self, transfers: list[int]) -> Wait:
        """Run a channel: it starts its transfers in index order. A transfer that waits delays all later ones."""
        env, last = self.env, NONE
        yield env.timeout(self.there[self.src[transfers[0]]])
        yield from self.opened.wait(self.sender[transfers[0]])
        for i in transfers:
            for milestone, whose in self.before:
                for awaited in whose[i]:
                    yield from milestone.wait(awaited)
            yield from self.sent.wait(last)  # waited for last, as most often it has been sent by then
            if last != NONE:
                free = max(self.sent.at[last], self.started[last] + self.gap[self.planned[last]])
                if free > env.now:
                    yield env.timeout(free - env.now)
            self.started[i], last = env.now, i
            if lead := self.lead[self.planned[i]]:
                yield env.timeout(lead)
            self.set_out(i)

    def set_out(self, i: int) -> None:
        """Send a transfer off from its channel."""
        if not self.paths[self.planned[i]]:
            self.sent.reach(i, self.env.now + 1)
            self.after(1, self.receive, i)
        elif self.params.sharing == "fair":
            self.fabric.send(i, self.nbytes[i], self.take(i) + self.cap(i), self.flowed)
        else:
            _Head(self, i).set_out()

    def flowed(self, flow: Flow) -> None:
        """Note that all bytes of a flow are sent, and schedule its arrival."""
        i, now = flow.i, self.env.now
        self.hops[i] = (flow.came, now) * len(self.paths[self.way[i]])
        flow.all_gone.later(self.flight[self.way[i]], partial(self.receive, i))
        self.sent.reach(i, now)

    def cap(self, i: int) -> list[int]:
        """Return the extra link that limits the transfer's channel, as a list; empty if there is no limit."""
        return [len(self.bandwidths) + int(self.program.channel[i])] if self.caps[self.planned[i]] else []

    # --- on the way ---

    def after(self, wait: int, call: Callable[..., None], *given: Any) -> None:
        """Call `call(*given)`, `wait` ps from now."""
        Recurring(self.env).later(wait, lambda _: call(*given))

    def legs(self, i: int) -> list[_Leg]:
        """Return for each link of the route that transfer `i` takes if it leaves now the link with its service time."""
        if self.spans:
            return [self.leg(link, i) for link in self.take(i)]
        which = self.way[i], self.nbytes[i]
        if which not in self.known_legs:
            self.known_legs[which] = [self.leg(link, i) for link in self.paths[self.way[i]]]
        return self.known_legs[which]

    def leg(self, link: int, i: int) -> _Leg:
        """Return a link with its service time for transfer `i`."""
        service = 0 if link in self.spans else service_ps(self.nbytes[i], self.bandwidths[link])
        return _Leg(link % self.program.servers, service, self.latencies[link], self.spans.get(link, ()))

    # --- receiving ---

    def receive(self, i: int, _: Event | None = None) -> None:
        """Note that a transfer has arrived. Its receive side then takes `receive_ps` to receive it."""
        self.arrived[i] = self.env.now
        wait = self.program.receive_ps(i) if self.receiving else 0
        if wait:
            Recurring(self.env).later(0, partial(self.take_in, i, wait), LAST + i)
        else:
            self.end(i)

    def take_in(self, i: int, wait: int, _: Event) -> None:
        """Occupy the receive side for `wait` ps, after the transfers that arrived earlier; then end transfer `i`."""
        side, now = int(self.program.side[i]), self.env.now
        self.sides[side] = max(now, self.sides[side]) + wait
        self.after(self.sides[side] - now, self.end, i)

    def end(self, i: int) -> None:
        """End a transfer. It is also complete if no other write to its slots has to be complete first (`chain`)."""
        self.ended.reach(i, self.env.now)
        if self.steps:
            self.steps.ended(i)
        if self.adds[i]:
            self.add(i)
        else:
            self.complete(i)

    def add(self, i: int) -> None:
        """Complete a transfer that reduces into its receiver's own input, once the receiving rank has arrived."""
        if (late := self.there[self.dst[i]] - self.env.now) > 0:
            self.after(late, self.add, i)
        else:
            self.opened.then(self.receiver[i], self.added, i)

    def added(self, i: int) -> None:
        """Note that the receiver's own input is there, to be reduced into."""
        self.adds[i] = False
        self.complete(i)

    def complete(self, i: int) -> None:
        """Complete transfer `i` if it has ended and waits for nothing else, and then each later write to its slots that
        only waited for that."""
        todo = [i]
        while todo:
            i, at = todo.pop(), self.completed.at
            waits = self.ended.at[i] == NONE or self.adds[i] or any(at[j] == NONE for j in self.chain[i])
            if not waits and at[i] == NONE:
                self.completed.reach(i, self.env.now)
                todo += self.behind[i]


class _Leg(NamedTuple):
    """One link of a route: its `server`, its service time for the transfer and its latency in ps, and the `spans` of
    its bandwidth if that changes."""

    server: int
    service: int
    latency: int
    spans: Sequence[BandwidthSpan]


class _Head(Recurring):
    """The head (first byte) of a transfer under `fifo`, before link `hop` of its route. The tail (last byte) arrives
    there at time `tail`."""

    def __init__(self, run: _EventRun, i: int):
        self.env, self.run, self.i = run.env, run, i

    def set_out(self, _: Event | None = None) -> None:
        """Begin at the first link of the route that is valid now."""
        self.legs, self.hop, self.tail = self.run.legs(self.i), 0, 0
        self.later(0, self.cross, LAST + self.i)

    def cross(self, _: Event) -> None:
        """Serve the chunk on the next link, after all heads of this instant have arrived. The head moves on when
        service begins; the tail follows at the slowest rate so far. A lost chunk is sent again from the start."""
        run, i, (server, service, latency, spans) = self.run, self.i, self.legs[self.hop]
        now, free, again = self.env.now, run.links[server], NONE
        if spans:
            begin, end, run.links[server], again = serve(spans, run.nbytes[i], now, free, self.lost)
        elif service != NEVER:
            begin = max(now, free)
            end = run.links[server] = begin + service
        else:
            end = NEVER
        if again != NONE:
            run.hops[i] = ()
            self.later(again - now, self.set_out)
        if end == NEVER:
            return
        run.hops[i] += begin, end
        tail = max(end, self.tail) if self.hop else self.sent(begin, end)
        self.hop, self.tail = self.hop + 1, tail + latency
        if self.hop < len(self.legs):
            self.later(begin + latency - now, self.cross, LAST + i)
        else:
            self.later(self.tail - now, self.arrive)

    def lost(self, when: int) -> bool:
        """Return whether transfer `i` has another route at time `when`."""
        way: int = self.run.way[self.i]
        return self.run.forced(self.i, when) != way

    def sent(self, begin: int, end: int) -> int:
        """Return when the tail leaves the first link: after its service, or later if the channel's cap is slower."""
        cap = self.run.caps[self.run.planned[self.i]]
        tail = max(end, begin + service_ps(self.run.nbytes[self.i], cap)) if cap else end
        if self.run.sent.at[self.i] == NONE:  # a chunk that is sent again keeps its time
            self.run.sent.reach(self.i, tail)
        return tail

    def arrive(self, _: Event) -> None:
        """Receive the transfer: its tail has reached the end of the route."""
        self.run.receive(self.i)


class _Barrier:
    """Barriers between steps: a step starts when all transfers of the step before have ended."""

    def __init__(self, env: simpy.Environment, program: Program):
        self.env, self.step = env, program.step.tolist()
        self.left = Counter(self.step)
        self.order = sorted(self.left)
        number = {step: at for at, step in enumerate(self.order)}
        self.before = [number[step] - 1 for step in self.step]  # the barrier that each transfer waits for, or NONE
        self.passed = Milestone(env, len(self.order))
        self.next = 0

    def ended(self, i: int) -> None:
        self.left[self.step[i]] -= 1
        while self.next < len(self.order) and not self.left[self.order[self.next]]:
            self.passed.reach(self.next, self.env.now)
            self.next += 1


# --- why a run cannot finish ---


def _stuck(run: _EventRun) -> StuckError:
    """Return the error to raise. It names the first transfer that did not end, and the event for which this transfer
    waits."""
    i = run.ended.at.index(NONE)
    why, when = _missing(run, i)
    return StuckError(f"the run cannot finish: {_in_words(run.program, i)} {why}", when)


def _in_words(program: Program, i: int) -> str:
    row = program.schedule.row(int(program.origin[i]))
    src, dst = (f"rank {p}" if p < program.schedule.n else f"switch {p}" for p in (row.src, row.dst))
    return f"step {row.step}: {src}, sending {row.chunks} to {dst},"


def _missing(run: _EventRun, i: int) -> tuple[str, int | None]:
    """Return in words what transfer `i` waits for, and the time in ps at which it gives up, or None."""
    program = run.program
    if run.started[i] != NONE:
        return _dead(run, i)
    waits = [
        *(("the chunk to come from", run.completed, j) for j in program.reads.of(i)),
        ("its channel, kept by", run.sent, int(program.channel_before[i])),
        ("a free slot, kept by", run.ended, int(program.credit[i])),
    ]
    for what, milestone, j in waits:
        if j != NONE and milestone.at[j] == NONE:
            return f"waits for {what} {_in_words(program, j)[:-1]}", None
    for j in run.blocking[i] if run.blocking else ():
        if j != NONE and run.ended.at[j] == NONE:
            why = {"sends-first": "all send before anyone receives", "even-odd": "both of a pair send first"}
            return (
                f"waits for a rank that is blocked in {_in_words(program, j)[:-1]}; {why[program.params.blocking]}",
                None,
            )
    return "waits for the barrier behind an earlier step", None


def _dead(run: _EventRun, i: int) -> tuple[str, int | None]:
    """Return in words the dead link that transfer `i` waits for, and the time in ps at which it gives up, or None."""
    program, changes, bandwidths = run.program, run.program.changes, run.program.bandwidths.copy()
    since: dict[int, int] = {}
    if changes:
        for at, link, bandwidth, turn in changes:
            bandwidths[link] = bandwidth
            since[link] = at if turn == NONE else since[link]
    route = run.paths[run.way[i]]
    dead = next(link for link in route if not bandwidths[link])
    problem = f"waits for link {program.link_names[dead]}, which is down"
    if not changes or dead not in since or dead not in changes.timeouts:
        return problem, None
    patience = changes.timeouts[dead]
    when = max(since[dead], run.started[i]) + patience + changes.began
    since_us, when_us = (exact_us(ps).rstrip("0").rstrip(".") for ps in (since[dead] + changes.began, when))
    return f"{problem} since {since_us} us; timed out at {when_us} us, after {format_duration(patience)}", when
