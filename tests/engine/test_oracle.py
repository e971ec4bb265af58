"""The oracle by hand: every expected number is derived beside it. On a link of 10¹² B/s a byte takes 1 ps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from oracle import Link, Message, Rules, Times, max_min, random_case, service_ps, simulate

FAST, HALF, FIFTH, TENTH = 10**12, 5 * 10**11, 2 * 10**11, 10**11  # 1, 2, 5 and 10 ps a byte
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
def test_alone(rules: Rules) -> None:
    """Alone on its route a transfer takes o_send + Σ latency + the slowest link, whichever place that link has."""
    for order in itertools.permutations([(FAST, 3), (TENTH, 5), (HALF, 7)]):
        (times,) = simulate([message(0, 1, 100, 0, 1, 2)], list(order), replace(rules, o_send=11))
        # 11 + (3 + 5 + 7) + max(100, 1000, 200)
        assert (times.start, times.arrive, times.end, times.complete) == (0, 1026, 1026, 1026)


def test_sent_under_fifo_is_the_tail_at_the_first_link() -> None:
    """Under fifo the sender is free when the tail has left the first link: a slow one further on does not hold it."""
    assert simulate([message(0, 1, 100, 0, 1)], [(FAST, 3), (TENTH, 5)], FIFO)[0].sent == 100
    assert simulate([message(0, 1, 100, 0, 1)], [(TENTH, 3), (FAST, 5)], FIFO)[0].sent == 1000


def test_sent_under_fair_is_the_bytes_gone() -> None:
    """Under fair the slowest link paces the sender wherever it is."""
    assert simulate([message(0, 1, 100, 0, 1)], [(FAST, 3), (TENTH, 5)], FAIR)[0].sent == 1000


@BOTH
def test_channel_cap_of_one(rules: Rules) -> None:
    """A channel's cap slower than every link is what a lone transfer runs at."""
    (times,) = simulate([message(0, 1, 100, 0, 1)], [(FAST, 3), (HALF, 5)], replace(rules, channel_bandwidth=TENTH))
    assert (times.sent, times.arrive) == (1000, 1008)  # 100 B at 10 ps; + 3 + 5


@BOTH
def test_rounding(rules: Rules) -> None:
    """Service is rounded up, exactly also where nbytes · 10¹² exceeds 64 bits, and never below 1 ps."""
    nbytes, bandwidth = 10**9 + 1, 3 * 10**9
    times = simulate([message(0, 1, nbytes, 0), message(1, 0, 0, 1)], [(bandwidth, 1), (bandwidth, 1)], rules)
    assert column(times, "sent") == [333_333_333_667, 1]  # (10⁹ + 1) · 1000 / 3 = 333,333,333,666.67; 0 B: 1 ps


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


@BOTH
def test_local_copies(rules: Rules) -> None:
    """A local copy pays neither o_send nor o_recv: over a memory link it is served there, without one it takes 1 ps,
    the channel's cap notwithstanding; a local reduce pays gamma."""
    rules = replace(rules, o_send=50, o_recv=70, gamma=FIFTH, channel_bandwidth=HALF)
    rows = [
        message(0, 0, 10, 0, to_slot=1),  # 10 B at 2 ps (the cap), latency 4
        message(1, 1, 10, to_slot=1),
        message(2, 2, 10, to_slot=1, reduce=True),  # 1 + 10 B at 5 ps
    ]
    assert simulate(rows, [(FAST, 4)], rules) == [(0, 20, 24, 24, 24), (0, 1, 1, 1, 1), (0, 1, 1, 51, 51)]


# fifo


def test_two_into_one_link() -> None:
    """A link serves whole chunks one after the other; of equal ready times the lower index goes first."""
    rows = [message(0, 2, 100, 0), message(1, 2, 30, 0)]
    times = simulate(rows, [(FAST, 7)], FIFO)
    assert column(times, "sent") == [100, 130]  # second: from 100 to 130
    assert column(times, "arrive") == [107, 137]


def test_earlier_ready_goes_first() -> None:
    """Ready time comes before index."""
    times = simulate([message(0, 2, 100, 0), message(1, 2, 30, 0)], [(FAST, 7)], FIFO, {0: 1})
    assert column(times, "sent") == [130, 30]  # rank 0 is ready at 1, while rank 1 holds the link from 0 to 30


def test_ties_within_an_instant() -> None:
    """A link decides after everything else of the instant: a lower index that becomes ready just as the link falls
    free goes before a higher one of the same ready time."""
    rows = [message(0, 3, 10, 0), message(1, 3, 10, 0), message(2, 3, 10, 0)]
    times = simulate(rows, [(FAST, 1)], FIFO, {1: 10, 2: 10})
    assert column(times, "sent") == [10, 20, 30]
    times = simulate([rows[1], rows[2], rows[0]], [(FAST, 1)], FIFO, {1: 10, 2: 9})
    assert column(times, "sent") == [30, 20, 10]  # rank 2 was ready at 9, a ps before rank 1 with the lower index


def test_waiting_at_a_second_link() -> None:
    """Blocked heads hold nothing upstream: both pass their own first links at once and queue at the shared second."""
    rows = [message(0, 2, 100, 0, 2), message(1, 2, 100, 1, 2)]
    times = simulate(rows, [(FAST, 5), (FAST, 6), (FAST, 9)], FIFO)
    # Heads reach link 2 at 5 and 6; it serves from 5 to 105 and from 105 to 205; the tail leaves it then, + 9.
    assert [(t.sent, t.arrive) for t in times] == [(100, 114), (100, 214)]


def test_link_is_held_for_its_own_service_only() -> None:
    """Cut-through: a slow link upstream makes the tail late but does not hold the fast link behind it."""
    rows = [message(0, 2, 100, 0, 2), message(1, 2, 100, 1, 2)]
    times = simulate(rows, [(TENTH, 5), (TENTH, 5), (FAST, 9)], FIFO)
    # Heads reach link 2 at 5, which it serves from 5 to 105 and 105 to 205; tails come from upstream at 1000 + 5:
    # T_2 = max(105, 1005) and max(205, 1005).
    assert [(t.sent, t.arrive) for t in times] == [(1000, 1014), (1000, 1014)]


def test_channel_cap_delays_nobody_else() -> None:
    """The cap of a channel lengthens its own transfers, not the time the link is taken."""
    rows = [message(0, 2, 100, 0), message(1, 2, 100, 0)]
    times = simulate(rows, [(FAST, 1)], replace(FIFO, channel_bandwidth=TENTH))
    assert column(times, "sent") == [1000, 1100]  # R_1 = 0 and 100, each + max(1000, 100)


# Channels, credits, barriers, arrivals


@BOTH
def test_channel_order(rules: Rules) -> None:
    """A channel runs in index order and is busy from start, o_send included, to sent; another channel is not bound."""
    rows = [message(0, 1, 10, 0), message(0, 2, 10, 1), message(0, 2, 10, 2, channel=1)]
    times = simulate(rows, [(FAST, 5)] * 3, replace(rules, o_send=4))
    assert [(t.start, t.sent) for t in times] == [(0, 14), (14, 28), (0, 14)]


@BOTH
def test_gap(rules: Rules) -> None:
    """g runs from start to start and matters only when longer than the transfer."""
    rows = [message(0, 1, 10, 0), message(0, 1, 50, 0), message(0, 1, 10, 0)]
    times = simulate(rows, [(FAST, 1)], replace(rules, g=30))
    assert column(times, "start") == [0, 30, 80]  # 0 + max(10, 30); 30 + max(50, 30)


@BOTH
def test_a_blocked_transfer_blocks_its_channel(rules: Rules) -> None:
    """What waits for its data holds back all that is behind it on its channel."""
    rows = [message(0, 1, 100, 0), message(1, 2, 10, 1, step=1), message(1, 3, 10, 2, step=1, slot=1)]
    times = simulate(rows, [(FAST, 5)] * 3, rules)
    assert column(times, "start") == [0, 105, 115]  # arrives at 100 + 5; then slot 1, which was there all along


@BOTH
def test_credits(rules: Rules) -> None:
    """With slots = 1 a transfer waits for the end of the one before on its connection; another connection does not."""
    rows = [message(0, 1, 10, 0), message(0, 1, 10, 0), message(0, 2, 10, 1)]
    links = [(FAST, 100), (FAST, 100)]
    assert column(simulate(rows, links, rules), "start") == [0, 10, 20]
    times = simulate(rows, links, replace(rules, slots=1, o_recv=3))
    assert column(times, "start") == [0, 113, 123]  # end = 10 + 100 + 3; the third waits for its channel only
    rows = [message(0, 1, 10, 0)] * 4
    times = simulate(rows, links, replace(rules, slots=2))
    assert column(times, "start") == [0, 10, 110, 120]  # ends at 110 and 120


@BOTH
def test_credit_comes_with_the_end_not_the_completion(rules: Rules) -> None:
    """A chunk whose version waits for an older one has left its slot of the connection."""
    rows = [
        message(0, 1, 1000, 0, slot=0),  # ends at 1001
        message(2, 1, 10, 1, slot=0),  # ends at 11, complete with the first, which precedes it
        message(2, 1, 10, 1, slot=1),
    ]
    times = simulate(rows, [(FAST, 1), (FAST, 1)], replace(rules, slots=1))
    assert [(t.start, t.end, t.complete) for t in times] == [(0, 1001, 1001), (0, 11, 1001), (11, 22, 22)]


@BOTH
def test_barrier(rules: Rules) -> None:
    """With barriers a step starts when all earlier ones have ended, without when its own data is there."""
    rows = [message(0, 1, 10, 0), message(2, 3, 500, 1), message(1, 2, 10, 2, step=1)]
    links = [(FAST, 1)] * 3
    assert column(simulate(rows, links, rules), "start") == [0, 0, 11]
    assert column(simulate(rows, links, replace(rules, barrier=True)), "start") == [0, 0, 501]


@BOTH
def test_barrier_is_at_the_end_not_the_completion(rules: Rules) -> None:
    """A barrier waits for transfers, not for the values beneath what they wrote."""
    rows = [message(0, 1, 10, 0, reduce=True), message(2, 0, 10, 1, step=1)]
    times = simulate(rows, [(FAST, 1)] * 2, replace(rules, barrier=True), {1: 900})
    assert (times[0].end, times[0].complete, times[1].start) == (11, 900, 11)


@BOTH
def test_arrivals(rules: Rules) -> None:
    """Before a rank takes part it sends nothing and its own values count for nothing; it can be written to."""
    rows = [
        message(0, 1, 10, 0, slot=0),  # overwrites at the late rank: complete on arrival
        message(0, 1, 10, 0, slot=1, reduce=True),  # needs what the late rank brings
        message(1, 0, 10, 1, step=1, slot=0),
    ]
    times = simulate(rows, [(FAST, 1), (FAST, 1)], rules, {1: 700})
    assert [(t.start, t.end, t.complete) for t in times] == [(0, 11, 11), (10, 21, 700), (700, 711, 711)]


# Values


@BOTH
def test_swap(rules: Rules) -> None:
    """Both sides of a swap read what was there before the step: neither waits for the other, with any slots."""
    rows = [message(0, 1, 10, 0), message(1, 0, 10, 1)]
    assert column(simulate(rows, [(FAST, 5)] * 2, replace(rules, slots=1)), "start") == [0, 0]


@BOTH
def test_reduce_waits_for_the_value_beneath(rules: Rules) -> None:
    """A version made by a reduce is complete no sooner than the one beneath it, one made by a lone overwrite is."""
    for reduce, complete in ((True, 1001), (False, 12)):
        rows = [
            message(0, 3, 1000, 0),  # ends at 1001
            message(1, 3, 11, 1, step=1, reduce=reduce),  # ends at 12
            message(3, 4, 10, 2, step=2),  # reads that
        ]
        times = simulate(rows, [(FAST, 1)] * 3, rules)
        assert column(times, "end")[:2] == [1001, 12]
        assert (times[1].complete, times[2].start) == (complete, complete)


@BOTH
def test_writes_of_one_step(rules: Rules) -> None:
    """Of several writes to a slot in one step each stands on the one before, overwriting or not; the first, an
    overwrite, on nothing; a read in the same step takes the old value."""
    rows = [
        message(0, 4, 500, 0),  # step 0: ends at 501
        message(1, 4, 100, 1, step=1),  # ends at 101
        message(2, 4, 10, 2, step=1, reduce=True),  # at 11
        message(3, 4, 20, 3, step=1),  # at 21
        message(4, 0, 10, 4, step=1),  # reads what step 0 wrote
        message(4, 1, 10, 4, step=2, channel=1),  # reads the last of step 1
    ]
    times = simulate(rows, [(FAST, 1)] * 5, rules)
    assert column(times, "complete")[:4] == [501, 101, 101, 101]
    assert column(times, "start")[4:] == [501, 101]


# The receive side


@BOTH
def test_receive_side_queues(rules: Rules) -> None:
    """A receive side takes transfers in order of arrival, o_recv each, and gamma for a reduce."""
    rules = replace(rules, o_recv=40, gamma=FIFTH)
    rows = [message(0, 2, 30, 0), message(1, 2, 20, 1, slot=1, reduce=True), message(3, 2, 30, 2, slot=2, side=1)]
    times = simulate(rows, [(FAST, 1)] * 3, rules)
    # Arrivals 31, 21, 31. Side 0: from 21 for 40 + 20 · 5 to 161, then to 201; side 1: 31 + 40.
    assert column(times, "end") == [201, 161, 71]


@BOTH
def test_receive_side_ties(rules: Rules) -> None:
    """Arrivals of one instant are taken by index, whatever the order of their causes."""
    rows = [message(0, 2, 10, 0), message(1, 2, 20, 1)]
    times = simulate(rows, [(FAST, 11), (FAST, 1)], replace(rules, o_recv=5))  # both arrive at 21
    assert column(times, "end") == [26, 31]


@BOTH
def test_receiving_for_nothing_does_not_queue(rules: Rules) -> None:
    """A transfer whose receive side takes no time ends on arrival, past one being reduced."""
    rows = [message(0, 2, 10, 0, reduce=True), message(1, 2, 20, 1, slot=1)]
    assert column(simulate(rows, [(FAST, 1)] * 2, replace(rules, gamma=TENTH)), "end") == [111, 21]


# fair


def test_two_flows_share_and_one_leaves() -> None:
    """Two flows on a link get half each; when one has gone the other gets all of it."""
    rows = [message(0, 2, 1000, 0), message(1, 2, 1000, 0)]
    times = simulate(rows, [(FAST, 10)], FAIR, {1: 400})
    # To 400 the first sends 400 B; its other 600 at half rate take 1200: 1600. The second has sent 600 by then, and
    # sends 400 more alone: 2000.
    assert [(t.sent, t.arrive) for t in times] == [(1600, 1610), (2000, 2010)]


def test_max_min() -> None:
    """A flow held back elsewhere leaves the rest of a link to the others."""
    rows = [message(0, 3, 1000, 0, 1), message(1, 3, 1000, 0), message(2, 3, 5000, 1)]
    times = simulate(rows, [(FAST, 1), (3 * FAST, 1)], FAIR)
    # Link 0 gives ½ and ½ B/ps, link 1 the other 2½ to the third: 2000, 2000, 5000 / 2.5 = 2000.
    assert column(times, "sent") == [2000, 2000, 2000]


def test_shares_never_fall() -> None:
    """A link gives what is left of it no lower a rate than it already gave, though subtraction rounds."""
    assert (1e12 - 1e12 / 11 - 1e12 / 11) / 9 < 1e12 / 11
    routes: dict[int, tuple[int, ...]] = {
        i: (0, 1) if i < 2 else (0,) if i < 11 else (1,) for i in range(20)
    }  # 11 flows on each link
    assert set(max_min(routes, lambda _: FAST).values()) == {1e12 / 11}


def test_cap_is_a_link() -> None:
    """A channel's cap leaves what it does not use of a link to others."""
    rows = [message(0, 2, 100, 0), message(1, 2, 100, 0), message(3, 2, 100, 0)]
    times = simulate(rows, [(FAST, 1)], replace(FAIR, channel_bandwidth=FIFTH))
    assert column(times, "sent") == [500, 500, 500]  # 3 · 1/5 fits


def test_a_slow_far_end_holds_the_flow() -> None:
    """A flow has one rate on all its links: shared far away, it uses only that much near by."""
    rows = [message(0, 4, 100, 0, 2), message(1, 4, 100, 1, 2), message(2, 3, 300, 0)]
    times = simulate(rows, [(FAST, 1), (FAST, 1), (TENTH, 1)], FAIR)
    # Link 2 gives 1/20 each: 2000. The third has 19/20 of link 0: 300 · 20 / 19 = 315.8, up.
    assert column(times, "sent") == [2000, 2000, 316]


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
            beneath = [j for j in range(i) if (messages[j].dst, messages[j].dst_slot) == (m.dst, m.dst_slot)]
            waits = m.reduce or (beneath and messages[beneath[-1]].step == m.step)
            under = complete[beneath[-1]] if beneath else arrivals.get(m.dst, 0)
            complete[i] = max(end[i], under if waits else 0)
        if old == [*start, *sent, *arrive, *end, *complete, *itertools.chain(*head)]:
            return [Times(*row) for row in zip(start, sent, arrive, end, complete, strict=True)]


def _start(
    messages: list[Message], i: int, rules: Rules, arrivals: dict[int, int],
    start: list[int], sent: list[int], end: list[int], complete: list[int]
) -> int:  # fmt: skip
    m, here = messages[i], arrivals.get(messages[i].src, 0)
    written = [j for j, w in enumerate(messages) if (w.dst, w.dst_slot) == (m.src, m.src_slot) and w.step < m.step]
    times = [here, complete[written[-1]] if written else here]
    channel = [j for j in range(i) if (messages[j].src, messages[j].channel) == (m.src, m.channel)]
    times += [max(sent[j], start[j] + rules.g) for j in channel]
    connection = [j for j in channel if messages[j].dst == m.dst]
    if 0 < rules.slots <= len(connection):
        times.append(end[connection[-rules.slots]])
    if rules.barrier:
        times += [end[j] for j in range(i) if messages[j].step < m.step]
    return max(times)


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
