"""The timing semantics once more, for the tests: plain Python, written from the rules alone and without the engines.

Slow and meant to be read: what a transfer waits for is a graph of events, each with a set of causes; what takes time is
a heap of `(time, phase)`. Times are integer ps, bandwidths B/s, sizes bytes. "Rule n" is rule n of the semantics.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, Union

Link = tuple[int, int]  # bandwidth (0: dead), latency ≥ 1
Fault = Union["Change", "Notice"]
Event = tuple[str, int]  # ("sent", 3): transfer 3 has left its channel; ("here", 0): rank 0 takes part from now on

HAPPEN: Final = 0  # the two phases of an instant, rule 3
DECIDE: Final = 1


@dataclass(frozen=True)
class Task:
    """What one rank does in one operation: `before` are the tasks that must be done, `duration` its own work in ps."""

    before: tuple[int, ...] = ()
    duration: int = 0


@dataclass(frozen=True)
class Message:
    """One transfer; its index is its place in the list. An empty route is a local copy without a memory link."""

    step: int
    src: int
    src_slot: int
    dst: int
    dst_slot: int
    reduce: bool
    nbytes: int
    route: tuple[int, ...]
    channel: int = 0
    side: Hashable = None
    tasks: tuple[int, int] | None = None  # of its sender and of its receiver; channel and side are theirs alone
    rules: Rules | None = None  # what its operation fixes for itself
    more: tuple[tuple[int, int], ...] = ()  # further slots that it reads and writes

    @property
    def slots(self) -> tuple[tuple[int, int], ...]:
        """Each slot that it reads, and the slot that it writes."""
        return ((self.src_slot, self.dst_slot), *self.more)

    @property
    def writes(self) -> list[tuple[int, int]]:
        """Each participant and slot that it writes."""
        return [(self.dst, slot) for _, slot in self.slots]

    @property
    def local(self) -> bool:
        """Whether nothing leaves the participant."""
        return self.src == self.dst


class Links(list[Link]):
    """Links of several views: link i is served by server i % (links / views), as operations see it differently."""

    views = 1


@dataclass(frozen=True)
class Change:
    """From `at` (ps) the link has this bandwidth."""

    at: int
    link: int
    bandwidth: int


@dataclass(frozen=True)
class Notice:
    """At `at` the links, which are down, are found dead: from then on these messages go other routes than before."""

    at: int
    links: tuple[int, ...]
    routes: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Rules:
    """What a profile fixes. Durations in ps, bandwidths in B/s; 0 means none, no limit."""

    sharing: Literal["fifo", "fair"]
    o_send: int = 0
    o_recv: int = 0
    g: int = 0
    gamma: int = 0
    slots: int = 0
    channel_bandwidth: int = 0
    barrier: bool = False


class Times(NamedTuple):
    """When each thing happened to a transfer; None: never."""

    start: int | None
    sent: int | None
    arrive: int | None
    end: int | None
    complete: int | None


def service_ps(nbytes: int, bandwidth: int) -> int:
    """Rule 2."""
    return max(1, -(-nbytes * 10**12 // bandwidth))


def simulate(
    messages: Sequence[Message],
    links: Sequence[Link],
    rules: Rules,
    arrivals: dict[int, int] | None = None,
    tasks: Sequence[Task] = (),
    faults: Sequence[Fault] = (),
) -> list[Times]:
    """The times of every transfer, in index order. `arrivals[r]`: when rank r takes part (default 0)."""
    return _ran(messages, links, rules, arrivals or {}, tasks, faults)[0]


def simulate_faults(
    messages: Sequence[Message], links: Sequence[Link], rules: Rules, tasks: Sequence[Task], faults: Sequence[Fault]
) -> tuple[list[Times], list[tuple[int, ...]]]:
    """The same with links that change, and the route that each transfer took in the end."""
    times, run = _ran(messages, links, rules, {}, tasks, faults)
    return times, run.route


def simulate_tasks(
    messages: Sequence[Message], links: Sequence[Link], rules: Rules, tasks: Sequence[Task]
) -> tuple[list[Times], list[tuple[int | None, int | None]]]:
    """The same, and of every task when it opens and when it is done."""
    times, run = _ran(messages, links, rules, {}, tasks)
    return times, [(run.happened.get(("open", k)), run.happened.get(("done", k))) for k in range(len(tasks))]


def _ran(
    messages: Sequence[Message],
    links: Sequence[Link],
    rules: Rules,
    arrivals: dict[int, int],
    tasks: Sequence[Task],
    faults: Sequence[Fault] = (),
) -> tuple[list[Times], _Run]:
    run = _Run(messages, links, rules, arrivals, tasks, faults)
    run.go()
    return [Times(*(run.happened.get((kind, i)) for kind in Times._fields)) for i in range(len(messages))], run


def causes(messages: Sequence[Message], rules: Rules, tasks: Sequence[Task] = ()) -> dict[Event, set[Event]]:
    """For each start and each completion, all that must have happened (rules 4, 5, 8, 18, 20, and of tasks)."""
    found: dict[Event, set[Event]] = {}
    for k, task in enumerate(tasks):
        found["open", k] = {("done", j) for j in task.before} or {("begin", 0)}
        found["done", k] = {("worked", k)}
        for i, m in enumerate(messages):
            assert m.tasks
            found["done", k] |= {("sent", i)} if m.tasks[0] == k else set()
            found["done", k] |= {("complete", i)} if m.tasks[1] == k else set()
    for i, m in enumerate(messages):
        before = range(i)
        found["start", i] = {_version(messages, m.src, slot, m.step) for slot, _ in m.slots} | {("here", m.src)}
        channel = [j for j in before if (messages[j].src, messages[j].channel) == (m.src, m.channel)]
        if channel:
            found["start", i] |= {("sent", channel[-1]), ("gap", channel[-1])}
        connection = [j for j in channel if messages[j].dst == m.dst]
        slots = (m.rules or rules).slots
        if slots and len(connection) >= slots:
            found["start", i].add(("end", connection[-slots]))
        if m.tasks:
            found["start", i].add(("open", m.tasks[0]))
        if rules.barrier:
            found["start", i] |= {("end", j) for j in before if messages[j].step < m.step}

        found["complete", i] = {("end", i)}
        for where in m.writes:
            same_step = [j for j in before if messages[j].step == m.step and where in messages[j].writes]
            if same_step:
                found["complete", i].add(("complete", same_step[-1]))
            elif m.reduce:
                found["complete", i].add(_version(messages, *where, m.step))
        if m.tasks and ("here", m.dst) in found["complete", i]:
            found["complete", i].add(("open", m.tasks[1]))
    return found


def _version(messages: Sequence[Message], participant: int, slot: int, step: int) -> Event:
    """What completes the newest version of a slot made before `step`; the initial one comes with its participant."""
    makers = [j for j, m in enumerate(messages) if m.step < step and (participant, slot) in m.writes]
    return ("complete", makers[-1]) if makers else ("here", participant)


class Work(NamedTuple):
    """When a chunk is through, when its server is free, and when it is known to be lost; None: never."""

    done: int | None
    frees: int | None
    lost: int | None = None


@dataclass
class _Server:
    """A link or a receive side: one chunk at a time, by `(asked, index)`."""

    busy: bool = False
    queue: list[tuple[int, int, Callable[[], Work], Callable[[Work], None]]] = field(
        default_factory=list
    )  # asked, index, what becomes of it if it begins now, then


@dataclass
class _Flow:
    """A transfer on all its links at once (rule 12)."""

    nbytes: int
    links: tuple[int, ...]
    full: int  # least capacity of `links`
    rem: float
    untouched: bool = True  # `rem` was never brought forward
    rate: float | None = None  # None until first solved
    since: int = 0
    due: int | None = None


class _Run:
    def __init__(
        self,
        messages: Sequence[Message],
        links: Sequence[Link],
        rules: Rules,
        arrivals: dict[int, int],
        tasks: Sequence[Task] = (),
        faults: Sequence[Fault] = (),
    ):
        assert all(latency >= 1 for _, latency in links)
        assert all(a.step <= b.step for a, b in itertools.pairwise(messages))
        assert all(m.route or m.local for m in messages)
        self.messages, self.links, self.rules, self.tasks = messages, links, rules, tasks
        self.shared = len(links) // getattr(links, "views", 1)  # servers, each of all views of a link
        self.now, self.phase = 0, HAPPEN
        self.heap: list[tuple[int, int, int, Callable[[], None]]] = []
        self.serial = itertools.count()
        self.happened: dict[Event, int] = {}
        self.waiting = causes(messages, rules, tasks)
        self.servers: dict[Hashable, _Server] = defaultdict(_Server)
        self.tail: dict[int, int] = {}  # T_l of rule 11, at the last link passed
        self.told: set[Event] = set()  # what will happen at a time that is known
        self.flows: dict[int, _Flow] = {}
        # Rule 12: a channel's cap is a link of its own, numbered after the others.
        self.cap_link: dict[tuple[int, int], int] = {}
        self.cap_of: dict[int, int] = {}
        for i, m in enumerate(messages):
            link = self.cap_link.setdefault((m.src, m.channel), len(links) + len(self.cap_link))
            self.cap_of[link] = self.of(i).channel_bandwidth
        # Rule 11 of the prose: links that change. A route is chosen when a message sets out.
        self.bandwidth = [bandwidth for bandwidth, _ in links]
        self.route = [m.route for m in messages]
        self.ahead = sorted(faults, key=lambda fault: (fault.at, isinstance(fault, Notice)))
        for fault in self.ahead:
            self.at(fault.at, lambda fault=fault: self.strike(fault))  # type: ignore[misc]
        for rank in {r for m in messages for r in (m.src, m.dst)}:
            self.fire_at(arrivals.get(rank, 0), ("here", rank))
        self.fire_at(0, ("begin", 0))

    # The clock

    def at(self, time: int, action: Callable[[], None], phase: int = HAPPEN) -> None:
        assert (time, phase) >= (self.now, self.phase), "a decision at t causes nothing at t (rule 3)"
        heapq.heappush(self.heap, (time, phase, next(self.serial), action))

    def go(self) -> None:
        while self.heap:
            self.now, self.phase, _, action = heapq.heappop(self.heap)
            action()

    def fire_at(self, time: int, event: Event) -> None:
        self.at(time, lambda: self.fire(event))

    def fire(self, event: Event) -> None:
        """It happens now; whatever waited only for it happens now too."""
        assert event not in self.happened
        self.happened[event] = self.now
        for waiter, missing in self.waiting.items():
            if event in missing:
                missing.remove(event)
                if not missing:
                    self.fire_at(self.now, waiter)
        kind, i = event
        if kind == "start":
            self.start(i)
        elif kind == "arrive":
            self.receive(i)
        elif kind == "open":
            self.fire_at(self.now + self.tasks[i].duration, ("worked", i))

    # Sending

    def of(self, i: int) -> Rules:
        """The rules that transfer `i` keeps to."""
        return self.messages[i].rules or self.rules

    def start(self, i: int) -> None:
        m = self.messages[i]
        self.fire_at(self.now + self.of(i).g, ("gap", i))
        if not m.route:
            self.fire_at(self.now + 1, ("sent", i))
            self.fire_at(self.now + 1, ("arrive", i))
            return
        ready = self.now + (0 if m.local else self.of(i).o_send)
        if self.rules.sharing == "fifo":
            self.at(ready, lambda: self.set_out(i))
        else:
            self.at(ready, lambda: self.join(i))

    def ask(self, server: Hashable, i: int, work: Callable[[], Work], then: Callable[[Work], None]) -> None:
        self.servers[server].queue.append((self.now, i, work, then))
        self.at(self.now, lambda: self.decide(server), DECIDE)

    def decide(self, name: Hashable) -> None:
        server = self.servers[name]
        if server.busy or not server.queue or (isinstance(name, int) and not self.bandwidth[name]):
            return
        chosen = min(server.queue, key=lambda request: request[:2])
        server.queue.remove(chosen)
        work = chosen[2]()
        server.busy = True
        if work.frees is not None:
            self.at(work.frees, lambda: self.release(name))
        chosen[3](work)

    def release(self, name: Hashable) -> None:
        self.servers[name].busy = False
        self.at(self.now, lambda: self.decide(name), DECIDE)

    # Links that change

    def strike(self, fault: Fault) -> None:
        if isinstance(fault, Change):
            self.bandwidth[fault.link] = fault.bandwidth
            self.at(self.now, lambda: self.decide(fault.link), DECIDE)
            self.at(self.now, self.solve, DECIDE)
            return
        for link in fault.links:
            queue = self.servers[link].queue
            for request in [r for r in queue if r[0] < self.now and self.turned(r[1])]:
                queue.remove(request)
                self.set_out(request[1])
            for i in [i for i, flow in self.flows.items() if link in flow.links and self.turned(i)]:
                del self.flows[i]
                self.join(i)

    def forced(self, i: int, when: int) -> tuple[int, ...]:
        """The route that message `i` takes if it sets out at some time."""
        known = [fault.routes.get(i) for fault in self.ahead if isinstance(fault, Notice) and fault.at <= when]
        return next((route for route in reversed(known) if route), self.messages[i].route)

    def turned(self, i: int, when: int | None = None) -> bool:
        return self.forced(i, self.now if when is None else when) != self.route[i]

    def known_dead(self, link: int, after: int, until: int | None) -> Iterator[int]:
        """When a link is found dead in a span of time, both ends left out."""
        for fault in self.ahead:
            if isinstance(fault, Notice) and link in fault.links and after < fault.at < (until or math.inf):
                yield fault.at

    def work_of(self, i: int, link: int) -> Work:
        """What becomes of a message that a link begins to serve now."""
        done = self.served_at(self.messages[i].nbytes, link)
        lost = next((at for at in self.known_dead(link, self.now, done) if self.turned(i, at)), None)
        return Work(done if lost is None else None, done if lost is None else lost, lost)

    def served_at(self, nbytes: int, link: int) -> int | None:
        """When so many bytes are through, if the link begins now."""
        rest, whole, since, bandwidth = float(nbytes), True, self.now, self.bandwidth[link]
        later = [f for f in self.ahead if isinstance(f, Change) and f.link == link and f.at > self.now]
        for change in [*later, None]:
            if bandwidth:
                takes = service_ps(nbytes, bandwidth) if whole else max(1, math.ceil(rest * 1e12 / bandwidth))
                if change is None or since + takes <= change.at:
                    return since + takes
                rest, whole = max(0.0, rest - (float(bandwidth) * (change.at - since)) / 1e12), False
            if change:
                since, bandwidth = change.at, change.bandwidth
        return None

    # fifo: rule 11

    def set_out(self, i: int) -> None:
        self.route[i] = self.forced(i, self.now)
        self.head(i, 0)

    def head(self, i: int, place: int) -> None:
        link = self.route[i][place]
        notices = [f.at for f in self.ahead if isinstance(f, Notice) and link in f.links and f.at <= self.now]
        ups = [
            f.at for f in self.ahead if isinstance(f, Change) and f.link == link and f.bandwidth and f.at <= self.now
        ]
        dead = [at for at in notices if at >= max(ups, default=0)]
        if not self.bandwidth[link] and dead and self.turned(i, self.now + 1):
            self.at(self.now + 1, lambda: self.set_out(i))
        else:
            self.ask(link % self.shared, i, lambda: self.work_of(i, link), lambda work: self.served(i, place, work))

    def served(self, i: int, place: int, work: Work) -> None:
        m, route = self.messages[i], self.route[i]
        if work.lost is not None:
            self.at(work.lost, lambda: self.set_out(i))
        if work.done is None:
            return
        latency = self.links[route[place]][1]
        if place == 0:
            cap = self.of(i).channel_bandwidth
            self.tail[i] = max(work.done, self.now + service_ps(m.nbytes, cap) if cap else 0)
            if ("sent", i) not in self.told:
                self.told.add(("sent", i))
                self.fire_at(self.tail[i], ("sent", i))
        else:
            self.tail[i] = max(work.done, self.tail[i] + self.links[route[place - 1]][1])
        if place + 1 < len(route):
            self.at(self.now + latency, lambda: self.head(i, place + 1))
        else:
            self.fire_at(self.tail[i] + latency, ("arrive", i))

    # fair: rules 12 to 16

    def capacity(self, link: int) -> int:
        return self.bandwidth[link] if link < len(self.links) else self.cap_of[link]

    def join(self, i: int) -> None:
        m = self.messages[i]
        links = self.route[i] = self.forced(i, self.now)
        if self.of(i).channel_bandwidth:
            links = (*links, self.cap_link[m.src, m.channel])
        full = min(self.capacity(link) for link in links)
        self.flows[i] = _Flow(m.nbytes, links, full, float(m.nbytes), since=self.now)
        self.at(self.now, self.solve, DECIDE)

    def leave(self, i: int) -> None:
        if i not in self.flows or self.flows[i].due != self.now:
            return  # its due time was moved since
        del self.flows[i]
        self.fire(("sent", i))
        latencies = sum(self.links[link][1] for link in self.route[i])
        self.fire_at(self.now + latencies, ("arrive", i))
        self.at(self.now, self.solve, DECIDE)

    def solve(self) -> None:
        rates = max_min({i: flow.links for i, flow in self.flows.items()}, self.capacity)
        for i, flow in self.flows.items():
            if rates[i] != flow.rate:
                self.change(i, flow, rates[i])

    def change(self, i: int, flow: _Flow, rate: float) -> None:
        """Rule 14."""
        if flow.rate is not None:
            flow.rem = max(0.0, flow.rem - (flow.rate * (self.now - flow.since)) / 1e12)
            flow.untouched = False
        flow.rate, flow.since = rate, self.now
        if rate == 0:
            flow.due = None
            return
        if flow.untouched and rate == flow.full:
            flow.due = self.now + service_ps(flow.nbytes, flow.full)
        else:
            flow.due = self.now + max(1, math.ceil(flow.rem * 1e12 / rate))
        self.at(flow.due, lambda: self.leave(i))

    # Receiving: rule 21

    def receive(self, i: int) -> None:
        m = self.messages[i]
        service = 0 if m.local else self.of(i).o_recv
        if m.reduce and self.of(i).gamma:
            service += service_ps(m.nbytes, self.of(i).gamma)
        if service == 0:
            self.fire(("end", i))
        else:
            ends = lambda _: self.fire_at(self.now + service, ("end", i))  # noqa: E731
            self.ask(("side", m.dst, m.side), i, lambda: Work(None, self.now + service), ends)


def max_min(flows: dict[int, tuple[int, ...]], capacity: Callable[[int], int]) -> dict[int, float]:
    """Rule 13: the rate of each flow, given its links."""
    used = sorted({link for links in flows.values() for link in links})
    avail = {link: float(capacity(link)) for link in used}
    count = {link: sum(link in links for links in flows.values()) for link in used}
    floor = dict.fromkeys(used, 0.0)
    rates: dict[int, float] = {}
    while len(rates) < len(flows):
        share = {link: max(avail[link] / count[link], floor[link]) for link in used if count[link]}
        tight = min(share, key=lambda link: (share[link], link))
        for i, links in flows.items():
            if tight in links and i not in rates:
                rates[i] = share[tight]
                for link in links:
                    avail[link] -= rates[i]
                    count[link] -= 1
                    floor[link] = max(floor[link], rates[i])
    return rates


# Random cases


def random_faults(rng: random.Random, messages: Sequence[Message], links: Sequence[Link], span: int) -> list[Fault]:
    """Changes of some links within `span` ps: slower, down for a while or, sometimes, for good, and notices of those
    that are down, by which some or all messages change their routes."""
    used = sorted({link for m in messages for link in m.route})
    faults: list[Fault] = []
    struck: list[tuple[int, int, int]] = []  # of each outage: link, from, until
    for link in rng.sample(used, rng.randint(1, min(3, len(used)))) if used else []:
        times = sorted({rng.choice([0, rng.randint(0, span)]) for _ in range(rng.randint(1, 4))})
        before = links[link][0]
        for at, until in itertools.pairwise([*times, times[-1] + rng.randint(1, span)]):
            after = rng.choice([0, 0, 0, 1, 2, 3]) * links[link][0] // 3
            if after != before:
                faults.append(Change(at, link, after))
                struck += [(link, at, until)] if not after else []
            before = after
        if not before and rng.random() < 0.8:
            faults.append(Change(until, link, links[link][0]))
    routes = {i: m.route for i, m in enumerate(messages)}
    noticed = [(rng.randint(at, until - 1), link) for link, at, until in struck if rng.random() < 0.7]
    for at in sorted({at for at, _ in noticed}):
        dead = tuple(sorted(link for when, link in noticed if when == at))
        turned = [i for i, route in routes.items() if set(dead) & set(route) and rng.random() < 0.8]
        new = {i: _around(rng, messages[i].route, dead, used) for i in turned}
        routes |= {i: route for i, route in new.items() if route}
        faults.append(Notice(at, dead, {i: route for i, route in new.items() if route}))
    return faults


def _around(rng: random.Random, route: tuple[int, ...], dead: tuple[int, ...], used: list[int]) -> tuple[int, ...]:
    """Another route, over one link more or less."""
    others = [link for link in used if link not in dead]
    most = min(len(others), len(route) + 1)
    return tuple(rng.sample(others, rng.randint(min(1, most), most)))


def random_case(rng: random.Random, *, contention: bool) -> tuple[list[Message], list[Link], Rules, dict[int, int]]:
    """A random schedule of 2 to 6 ranks and up to about 60 transfers, with links, rules and arrivals.

    The size of a transfer is that of its `src_slot`, `side` is the channel. With `contention`, routes are 1 to 6 links:
    drawn from a few, or up a chain of links and down another as in a tree; without, every transfer has links of its
    own of which the first is the slowest, so `fifo` and `fair` agree. Half of the cases have times of a few ps, so that
    ties abound; the others have realistic ones.
    """
    tiny, equal, by_peer, wired = (rng.random() < 0.5 for _ in range(4))
    n, n_slots, channels = rng.randint(2, 6), rng.randint(1, 5), rng.randint(1, 2)
    sizes = [_size(rng, tiny) for _ in range(n_slots)]
    only = _link(rng, tiny)
    shared = rng.randint(1, 8)
    links = [only if equal else _link(rng, tiny) for _ in range(shared)]
    memory = {rank: shared + rank for rank in range(n) if rng.random() < 0.5}
    links += [_link(rng, tiny) for _ in range(n)]

    chains = _chains(rng, shared)
    ups, downs = ([rng.choice(chains) for _ in range(n)] for _ in range(2))

    def own(hops: int) -> tuple[int, ...]:
        new = [only if equal else _link(rng, tiny) for _ in range(hops)]
        slowest = min(range(hops), key=lambda place: new[place][0])
        new[0], new[slowest] = new[slowest], new[0]
        links.extend(new)
        return tuple(range(len(links) - hops, len(links)))

    def route(src: int, dst: int) -> tuple[int, ...]:
        if src == dst and src not in memory:
            return ()
        if not contention:
            return own(1 if src == dst else rng.randint(1, 6))
        if src == dst:
            return (memory[src],)
        if wired:
            return tuple(dict.fromkeys((*ups[src], *downs[dst])))
        return tuple(rng.sample(range(shared), rng.randint(1, min(6, shared))))

    messages: list[Message] = []
    target, step = rng.randint(1, 55), 0
    while len(messages) < target:
        rows = [row for _ in range(rng.randint(1, 4)) for row in _rows(rng, n, n_slots)]
        rng.shuffle(rows)
        for src, src_slot, dst, dst_slot, reduce in rows:
            channel = (dst if by_peer else src_slot) % channels
            messages.append(
                Message(
                    step, src, src_slot, dst, dst_slot, reduce, sizes[src_slot], route(src, dst), channel, side=channel
                )
            )
        step += 1
    messages = [_with_more_slots(random.Random(f"{target} {i}"), m, sizes) for i, m in enumerate(messages)]
    return messages, links, _rules(rng, tiny), _arrivals(rng, n, tiny)


def _with_more_slots(rng: random.Random, message: Message, sizes: Sequence[int]) -> Message:
    """In one case of four, the message with further slots, each of which it reads and writes once."""
    reads, writes = (rng.sample(range(len(sizes)), len(sizes)) for _ in range(2))
    more = [pair for pair in zip(reads, writes, strict=True) if not {pair[0]} & {message.src_slot}]
    more = [pair for pair in more if pair[1] != message.dst_slot and (not message.local or pair[0] != pair[1])]
    kept = more[: rng.randint(1, 3)] if rng.random() < 0.25 else []
    return replace(message, more=tuple(kept), nbytes=message.nbytes + sum(sizes[slot] for slot, _ in kept))


def random_tasks(
    rng: random.Random, *, contention: bool, views: bool = False
) -> tuple[list[Message], list[Link], Rules, list[Task]]:
    """A random case cut into operations, each with slots, channels and perhaps rules of its own, and what each rank
    does in them: after random earlier things of its own or of others, with computation in between. With `views`
    operations may see links that serve whole chunks differently."""
    messages, links, rules, _ = random_case(rng, contention=contention)
    rules, tiny = replace(rules, barrier=False), rng.random() < 0.5
    n, steps = 1 + max(max(m.src, m.dst) for m in messages), messages[-1].step + 1
    cuts = sorted(rng.sample(range(1, steps), rng.randint(0, min(4, steps - 1))))
    tasks: list[Task] = []
    done: list[Message] = []

    def task(rank: int, duration: int, among: int) -> int:
        some = [k for k in range(among) if whose[k] == rank or rng.random() < 0.1]
        tasks.append(Task(tuple(rng.sample(some, min(len(some), rng.randint(0, 2)))), duration))
        whose.append(rank)
        return len(tasks) - 1

    whose: list[int] = []
    for op, (a, b) in enumerate(itertools.pairwise([0, *cuts, steps])):
        own = replace(_rules(rng, tiny), sharing=rules.sharing, barrier=False) if rng.random() < 0.5 else None
        for rank in range(n):
            if rng.random() < 0.5:
                task(rank, rng.choice([0, rng.randint(1, 20 if tiny else 10**8)]), len(tasks))
        some, most = len(tasks), 20 if tiny else 10**8
        parts = [task(rank, 0 if rng.random() < 0.7 else rng.randint(1, most), some) for rank in range(n)]
        done += [
            replace(
                m, src_slot=m.src_slot + 8 * op, dst_slot=m.dst_slot + 8 * op, channel=m.channel + 2 * op,
                more=tuple((read + 8 * op, written + 8 * op) for read, written in m.more),
                side=m.channel + 2 * op, tasks=(parts[m.src], parts[m.dst]), rules=own,
            )
            for m in messages if a <= m.step < b
        ]  # fmt: skip
    if not views or rules.sharing != "fifo" or rng.random() < 0.3:
        return done, links, rules, tasks
    seen = Links((b * rng.randint(1, 3), lat + rng.choice([0, 0, 1, 7])) for _ in range(3) for b, lat in links)
    seen.views, of_op = 3, [rng.randrange(3) for _ in [*cuts, steps]]
    first = [len(links) * of_op[sum(cut <= m.step for cut in cuts)] for m in done]
    done = [replace(m, route=tuple(at + link for link in m.route)) for m, at in zip(done, first, strict=True)]
    return done, seen, rules, tasks


def _chains(rng: random.Random, shared: int) -> list[list[int]]:
    """Links in chains of up to three, each of which is always taken whole."""
    links = rng.sample(range(shared), shared)
    cuts = sorted(rng.sample(range(1, shared), rng.randint(0, shared - 1)))
    chains = [links[a:b] for a, b in itertools.pairwise([0, *cuts, shared])]
    return [chain[:3] for chain in chains]


def _rows(rng: random.Random, n: int, n_slots: int) -> list[tuple[int, int, int, int, bool]]:
    """Transfers of one step that belong together: src, src_slot, dst, dst_slot, reduce."""
    a, b = rng.sample(range(n), 2)
    slot, to_slot = rng.randrange(n_slots), rng.randrange(n_slots)
    reduce = rng.random() < 0.5
    kind = rng.choice(["one", "one", "swap", "gather", "spread", "ring", "local"])
    if kind == "swap":
        return [(a, slot, b, slot, reduce), (b, slot, a, slot, reduce)]
    if kind == "gather":  # several writes of one slot
        always = rng.random() < 0.7
        return [(r, slot, a, to_slot, always or rng.random() < 0.5) for r in range(n) if r != a]
    if kind == "spread":
        return [(a, slot, r, slot, reduce) for r in range(n) if r != a]
    if kind == "ring":
        return [(r, r % n_slots, (r + 1) % n, r % n_slots, reduce) for r in range(n)]
    if kind == "local":
        return [(a, slot, a, to_slot, reduce)] if slot != to_slot else []
    return [(a, slot, b, to_slot, reduce)]


def _size(rng: random.Random, tiny: bool) -> int:
    if tiny:
        return rng.randint(0, 6)
    large = rng.choice([100 << 20, (16 << 20) + rng.randint(1, 10**6), 1 << 40, 49_000_147])  # floats round the last up
    return rng.choice([0, 1, rng.randint(2, 5000), 4096, 10**6, 1 << 20, large])


def _link(rng: random.Random, tiny: bool) -> Link:
    if tiny:
        return rng.choice([10**12, 10**12, 5 * 10**11, 3 * 10**11, 7 * 10**11]), rng.randint(1, 3)
    return rng.choice([50, 50, 25, 400, 450, 64, 7]) * 10**9, rng.choice([1, 1000, 500_000, rng.randint(1, 10**6)])


def _rules(rng: random.Random, tiny: bool) -> Rules:
    unit, bandwidth = (1, 10**11) if tiny else (10**5, 5 * 10**9)

    def maybe(most: int, scale: int) -> int:
        return rng.choice([0, rng.randint(1, most) * scale])

    return Rules(
        sharing=rng.choice(["fifo", "fair"]),
        o_send=maybe(5, unit),
        o_recv=maybe(5, unit),
        g=maybe(9, unit),
        gamma=maybe(20, bandwidth),
        slots=rng.randint(0, 3),
        channel_bandwidth=maybe(12, bandwidth),
        barrier=rng.random() < 0.15,
    )


def _arrivals(rng: random.Random, n: int, tiny: bool) -> dict[int, int]:
    if rng.random() < 0.6:
        return {}
    return {rank: rng.randint(0, 20 if tiny else 10**8) for rank in range(n) if rng.random() < 0.5}
