"""The oracle against other ways to the same numbers, and by hand where those do not reach: how `fair` rounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from oracle import Link, Message, Rules, Times, max_min, random_case, service_ps, simulate

FAST, FIFTH = 10**12, 2 * 10**11  # 1 and 5 ps a byte
FIFO, FAIR = Rules("fifo"), Rules("fair")
BOTH = pytest.mark.parametrize("rules", [FIFO, FAIR], ids=["fifo", "fair"])


def message(
    src: int, dst: int, nbytes: int, *route: int, step: int = 0, slot: int = 0, to_slot: int | None = None,
    reduce: bool = False, channel: int = 0, side: int = 0
) -> Message:  # fmt: skip
    """A transfer over the given links."""
    return Message(step, src, slot, dst, slot if to_slot is None else to_slot, reduce, nbytes, route, channel, side)


def column(times: Sequence[Times], name: str) -> list[int | None]:
    """One of the times of every transfer."""
    return [getattr(row, name) for row in times]


# One transfer


@BOTH
def test_full_rate_is_exact(rules: Rules) -> None:
    """Alone on its route a transfer takes service_ps exactly, where floats would round up a ps; also when it joins in
    the instant in which another leaves."""
    nbytes, bandwidth = 49_000_147, 7 * 10**9  # 49,000,147 = 7 · 7,000,021
    assert float(nbytes) * 1e12 / bandwidth > 7_000_021_000
    rows = [message(1, 1, 7, 0, to_slot=1), message(0, 2, nbytes, 0)]
    times = simulate(rows, [(bandwidth, 1)], replace(rules, o_send=1000))
    assert column(times, "sent") == [1000, 7_000_022_000]  # 7 B take 1000 ps, a local copy without o_send


@BOTH
def test_dead_link(rules: Rules) -> None:
    """What needs a link without bandwidth never finishes, nor does what waits for it; the rest goes on."""
    rows = [message(0, 1, 5, 0), message(3, 2, 5, 1), message(1, 2, 5, 1, step=1)]
    times = simulate(rows, [(0, 1), (FAST, 1)], rules)
    assert times[0] == (0, None, None, None, None)
    assert times[1] == (0, 5, 6, 6, 6)
    assert times[2] == (None, None, None, None, None)


# fair


def test_shares_never_fall() -> None:
    """A link gives what is left of it no lower a rate than it already gave, though subtraction rounds."""
    assert (1e12 - 1e12 / 11 - 1e12 / 11) / 9 < 1e12 / 11
    routes: dict[int, tuple[int, ...]] = {
        i: (0, 1) if i < 2 else (0,) if i < 11 else (1,) for i in range(20)
    }  # 11 flows on each link
    assert set(max_min(routes, lambda _: FAST).values()) == {1e12 / 11}


def test_unchanged_rate_keeps_the_due_time() -> None:
    """A flow whose rate an event leaves alone is not touched: bringing it forward would round it up a ps."""
    slow = 3 * 10**11
    assert 3.0 - (slow * 8) / 1e12 > 3 * (10 - 8) / 10  # in floats 8 ps leave more than 0.6 B: 3 ps, not 2
    rows = [message(0, 2, 3, 0, 1), message(1, 2, 1, 1)]
    times = simulate(rows, [(slow, 1), (FAST, 1)], FAIR, {1: 8})
    assert column(times, "sent") == [10, 10]  # 3 / 0.3; 8 + ⌈1 / 0.7⌉


def test_order_within_an_instant() -> None:
    """All ends and starts of an instant come before the one solution: one leaves, one joins, the third sees nothing."""
    rows = [message(0, 3, 100, 0), message(1, 3, 150, 0), message(0, 3, 50, 0, step=1, slot=1)]
    times = simulate(rows, [(FAST, 1)], FAIR)
    # Half each: the first is gone at 200, when its channel starts the third; 50 B at ½ for both that remain: 300.
    assert [(t.start, t.sent) for t in times] == [(0, 200), (0, 300), (200, 300)]


# The oracle against other ways to the same numbers


def fixed_point(messages: list[Message], links: list[Link], rules: Rules, arrivals: dict[int, int]) -> list[Times]:
    """Rules 4 to 11 and 18 to 21 as equations, evaluated again and again until nothing changes; fifo only."""
    n = len(messages)
    start, sent, arrive, end, complete = ([0] * n for _ in range(5))
    head = [[0] * len(m.route) for m in messages]
    while True:
        old = [*start, *sent, *arrive, *end, *complete, *itertools.chain(*head)]
        served: dict[tuple[int, int], int] = {}
        for link in range(len(links)):
            free = 0
            for h, i in sorted((head[i][m.route.index(link)], i) for i, m in enumerate(messages) if link in m.route):
                served[link, i] = max(h, free)
                free = served[link, i] + service_ps(messages[i].nbytes, links[link][0])
        for i, m in enumerate(messages):
            start[i] = _start(messages, i, rules, arrivals, start, sent, end, complete)
            if not m.route:
                sent[i] = arrive[i] = start[i] + 1
                continue
            head[i][0] = start[i] + (rules.o_send if m.src != m.dst else 0)
            cap = service_ps(m.nbytes, rules.channel_bandwidth) if rules.channel_bandwidth else 0
            tail = [served[link, i] + service_ps(m.nbytes, links[link][0]) for link in m.route]
            sent[i] = tail[0] = max(tail[0], served[m.route[0], i] + cap)
            for hop in range(1, len(m.route)):
                latency = links[m.route[hop - 1]][1]
                head[i][hop] = served[m.route[hop - 1], i] + latency
                tail[hop] = max(tail[hop], tail[hop - 1] + latency)
            arrive[i] = tail[-1] + links[m.route[-1]][1]
        side_free: dict[object, int] = {}
        for at, i in sorted(zip(arrive, range(n), strict=True)):
            m = messages[i]
            cost = (rules.o_recv if m.src != m.dst else 0) + (
                service_ps(m.nbytes, rules.gamma) if m.reduce and rules.gamma else 0
            )
            end[i] = max(at, side_free.get((m.dst, m.side), 0)) + cost if cost else at
            if cost:
                side_free[m.dst, m.side] = end[i]
        for i, m in enumerate(messages):
            complete[i] = end[i]
            for where in m.writes:
                beneath = [j for j in range(i) if where in messages[j].writes]
                waits = m.reduce or (beneath and messages[beneath[-1]].step == m.step)
                under = complete[beneath[-1]] if beneath else arrivals.get(m.dst, 0)
                complete[i] = max(complete[i], under if waits else 0)
        if old == [*start, *sent, *arrive, *end, *complete, *itertools.chain(*head)]:
            return [Times(*row) for row in zip(start, sent, arrive, end, complete, strict=True)]


def _start(
    messages: list[Message], i: int, rules: Rules, arrivals: dict[int, int],
    start: list[int], sent: list[int], end: list[int], complete: list[int]
) -> int:  # fmt: skip
    m, here = messages[i], arrivals.get(messages[i].src, 0)
    times = [here]
    for slot, _ in m.slots:
        times += [complete[j] for j, w in enumerate(messages) if (m.src, slot) in w.writes and w.step < m.step][-1:]
    channel = [j for j in range(i) if (messages[j].src, messages[j].channel) == (m.src, m.channel)]
    times += [max(sent[j], start[j] + rules.g) for j in channel]
    connection = [j for j in channel if messages[j].dst == m.dst]
    if 0 < rules.slots <= len(connection):
        times.append(end[connection[-rules.slots]])
    if rules.barrier:
        times += [end[j] for j in range(i) if messages[j].step < m.step]
    return max(times)


@pytest.mark.thorough
def test_fifo_solves_its_equations() -> None:
    """Simulated or iterated to a fixed point, the equations of fifo have the one solution."""
    for seed in range(30):
        messages, links, rules, arrivals = random_case(random.Random(seed), contention=True)
        rules = replace(rules, sharing="fifo")
        assert simulate(messages, links, rules, arrivals) == fixed_point(messages, links, rules, arrivals), seed


def test_sharings_agree_where_nothing_is_shared() -> None:
    """Where no link is shared and the first is the slowest, fifo and fair agree to the ps."""
    for seed in range(50):
        messages, links, rules, arrivals = random_case(random.Random(seed), contention=False)
        fifo, fair = (simulate(messages, links, replace(rules, sharing=s), arrivals) for s in ("fifo", "fair"))
        assert fifo == fair, seed


def fluid(routes: list[list[int]], sizes: list[int], ready: list[int], links: list[Link]) -> list[Fraction]:
    """When the bytes of each flow are gone, in exact arithmetic; all rates rise together until their link is full."""
    rem, done, now = [Fraction(s) for s in sizes], [Fraction(-1)] * len(sizes), Fraction(0)
    while min(done) < 0:
        active = [i for i in range(len(sizes)) if done[i] < 0 and ready[i] <= now]
        rate, room, rising = dict.fromkeys(active, Fraction(0)), [Fraction(b, 10**12) for b, _ in links], set(active)
        while rising:
            load = [sum(link in routes[i] for i in rising) for link in range(len(links))]
            rise = min(r / k for r, k in zip(room, load, strict=True) if k)
            room = [r - rise * k for r, k in zip(room, load, strict=True)]
            for i in rising:
                rate[i] += rise
            rising = {i for i in rising if all(room[link] > 0 for link in routes[i])}
        changes = [now + rem[i] / rate[i] for i in active] + [Fraction(t) for t in ready if t > now]
        now, before = min(changes), now
        for i in active:
            rem[i] -= rate[i] * (now - before)
            if rem[i] == 0:
                done[i] = now
    return done


def test_fair_is_the_fluid_limit() -> None:
    """Max-min flows in exact fractions end when the oracle's do, but for its rounding up to whole ps."""
    for seed in range(80):
        rng = random.Random(seed)
        n = rng.randint(2, 12)
        links = [(rng.choice([10, 25, 50, 64]) * 10**9, 1) for _ in range(rng.randint(1, 6))]
        routes = [rng.sample(range(len(links)), rng.randint(1, len(links))) for _ in range(n)]
        sizes, ready = [rng.randint(1, 10**6) for _ in range(n)], [rng.randint(0, 10**7) for _ in range(n)]
        rows = [message(i, n, size, *way) for i, (size, way) in enumerate(zip(sizes, routes, strict=True))]
        sent = column(simulate(rows, links, FAIR, dict(enumerate(ready))), "sent")
        for mine, exact in zip(sent, fluid(routes, sizes, ready, links), strict=True):
            assert mine is not None
            assert -1 < mine - exact < 10 * n, seed


Case = tuple[list[Message], list[Link], Rules, dict[int, int]]


def follows(case: Case) -> bool:
    """Whether some link is only ever taken directly behind one other."""
    behind: dict[int, set[int | None]] = {}
    for m in case[0]:
        for before, link in itertools.pairwise((None, *m.route)):
            behind.setdefault(link or 0, set()).add(before)
    return any(len(before) == 1 and None not in before for before in behind.values())


def queues(case: Case) -> bool:
    """Whether some transfer takes longer to arrive than if it were alone."""
    messages, links, rules, _ = case
    for m, times in zip(messages, simulate(*case), strict=True):
        rates = [links[link][0] for link in m.route] + [rules.channel_bandwidth] * bool(rules.channel_bandwidth)
        overhead = sum(links[link][1] for link in m.route) + (0 if m.local else rules.o_send)
        alone = overhead + max(service_ps(m.nbytes, rate) for rate in rates) if m.route else 1
        if times.arrive is not None and times.start is not None and times.arrive - times.start > alone:
            return True
    return False


def test_random_cases_cover() -> None:
    """The random cases hold every kind of transfer and rule that the rules tell apart, and all of them finish."""
    cases = [random_case(random.Random(seed), contention=True) for seed in range(100)]
    rows = [m for messages, *_ in cases for m in messages]
    for kind in (
        [m.nbytes == 0 for m in rows],
        [m.nbytes > 16 << 20 for m in rows],
        [m.src == m.dst and m.route != () for m in rows],
        [m.route == () for m in rows],
        [len(m.route) == 6 for m in rows],
        [m.channel == 1 for m in rows],
        [rules.sharing == "fair" for _, _, rules, _ in cases],
        [rules.slots == 1 for _, _, rules, _ in cases],
        [rules.barrier for _, _, rules, _ in cases],
        [arrivals != {} for *_, arrivals in cases],
        [m.nbytes == 1 << 40 for m in rows],
    ):
        assert sum(kind) >= len(kind) / 100
    assert sum(map(follows, cases)) > len(cases) / 3
    assert sum(map(queues, cases)) > len(cases) / 2
    assert max(len(messages) for messages, *_ in cases) < 90
    assert all(None not in times for case in cases for times in simulate(*case))
