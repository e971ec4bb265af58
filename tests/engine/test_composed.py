"""Plans put together from their calls alone: the times are those of the joined program, or there are none."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from extras import batches
from networks import devices, full_mesh, schedule, star, two_level

from simcoll.engine import fast
from simcoll.engine.binding import bind
from simcoll.engine.call_program import CallProgram
from simcoll.engine.composed import composed_ps
from simcoll.engine.joined_program import Operation, join
from simcoll.engine.looped import looped
from simcoll.engine.run import StreamedProgram
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import Params
from simcoll.schedule import algorithms
from simcoll.topology.graph import Link, Topology

NAMES = ("all_reduce/ring", "all_reduce/nvls", "all_to_all/direct", "broadcast/chain", "all_gather/ring")
RANKS = 6
FAST = Link(50 * 10**9, latency_ps=500_000)


def both(
    operations: list[Operation], calls: Sequence[CallProgram | None], n: int, topology: Topology, ran: set[CallProgram]
) -> tuple[int | None, Timeline]:
    """The time of a plan put together from its calls, or None, and the timeline of the joined program."""
    whole = [op._replace(program=call and call.program) for op, call in zip(operations, calls, strict=True)]
    timeline = fast.run(join(whole, n, topology))
    assert timeline is not None
    return composed_ps(operations, calls, n, topology, ran), timeline


def unequal(rng: random.Random) -> Topology:
    """A star of which some links are slower, or longer, than others."""
    plain = star(RANKS, Link(50 * 10**9, latency_ps=500_000))
    kinds = [
        Link(50 * 10**9, latency_ps=500_000),
        *rng.choices([Link(30 * 10**9, latency_ps=500_000), Link(50 * 10**9, latency_ps=900_000)], k=2),
    ]
    return plain.with_links(rng.choices(kinds, [9, 1, 1], k=len(plain.links)))


Made = list[tuple[np.ndarray, CallProgram]]
Plan = tuple[list[Operation], list[CallProgram | None]]


def groups(rng: random.Random, made: Made) -> Plan:
    """Calls of random groups that are repeated, computation that some ranks are slow at, streams."""
    operations: list[Operation] = []
    calls: list[CallProgram | None] = []
    apart = rng.choice([10**5, 10**7, 10**9])  # ps of computation between calls
    for _ in range(rng.randint(2, 9)):
        ranks, call = rng.choice(made)
        stream = rng.choice([*"aabcd"])
        before = {other for other, op in enumerate(operations) if op.stream == stream or rng.random() < 0.1}
        calls.append(call if rng.random() < 0.6 else None)
        slow, much = rng.random() < 0.3, rng.choice([0, 1, 1, 5])
        took = 0 if calls[-1] else np.array([apart * (2 * much if slow and not rank else much) for rank in ranks])
        operations.append(Operation(ranks, None, took, tuple(sorted(before)), stream))
    return operations, calls


def training(rng: random.Random, made: Made) -> Plan:
    """Computation that some ranks take longer for, after each a call beside what follows, which may wait for the call
    before; and something after all."""
    (ranks, _), n = made[0], len(made[0][0])
    calls: list[CallProgram | None] = []
    operations: list[Operation] = []
    long, uneven = rng.choice([10**6, 10**8, 10**9]), rng.choice([0, 10**4, 10**6, 10**8])  # ps
    for _ in range(rng.randint(2, 6)):
        took = rng.randint(long, 3 * long) + np.array([rng.randint(0, uneven) for _ in range(n)])
        computed = len(operations)
        operations.append(Operation(ranks, None, took, (computed - 2,) if computed else (), "work"))
        apart = rng.random() < 0.2 or not computed
        before, stream = ((computed,), f"call {computed}") if apart else ((computed, computed - 1), "calls")
        operations.append(Operation(ranks, None, 0, before, stream))
        calls += [None, rng.choice([call for others, call in made if others is ranks])]
    return [*operations, Operation(ranks, None, long, tuple(range(len(operations))), "work")], [*calls, None]


def check(seed: int) -> bool:
    """One random plan. Says whether it was put together."""
    rng = random.Random(seed)
    topology = rng.choice([star(RANKS, Link(50 * 10**9, latency_ps=500_000)), unequal(rng)])
    made: Made = []
    for _ in range(rng.randint(1, 3)):
        ranks = rng.sample(range(RANKS), rng.choice([2, 4, RANKS, RANKS]))
        plan = schedule(*rng.choice(NAMES).split("/"), len(ranks))
        params = Params(
            sharing="fifo", chunk=rng.choice([0, 700]), channels=rng.choice([0, 1, 2]), slots=rng.choice([0, 1, 2]),
            o_send=rng.choice([0, 10**6]), o_recv=rng.choice([0, 10**5]), g=rng.choice([0, 10**6]),
            gamma=rng.choice([0, 10**11]), channel_bandwidth=rng.choice([0, 10**10]),
        )  # fmt: skip
        where = (*(topology.ranks[rank] for rank in ranks), *devices(topology, plan)[plan.n :])
        bound = bind(plan, topology, where, params, 16_000 * len(ranks))
        made.append((np.array(ranks), CallProgram(lambda bound=bound: bound)))
    operations, calls = rng.choice([groups, training])(rng, made)
    ran = {call for call in calls if call and rng.random() < 0.5}
    found, expected = both(operations, calls, RANKS, topology, ran)
    assert found in (None, expected.makespan_ps), seed
    return found is not None and sum(call is not None for call in calls) > 1


@batches(1, 40)
def test_a_plan_is_its_calls(batch: int) -> None:
    """Of 50 random plans every one that can be put together takes as long as joined, and many can."""
    assert sum(check(seed) for seed in range(batch * 50, batch * 50 + 50)) >= 10


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("name", ["nvls", "naive", "tree"])
def test_calls_that_follow_each_other_need_not_be_run(name: str, launched: bool) -> None:
    """Calls that begin, rank by rank, when the one before is over; beside computation that ends before the last of
    them, or while one of them is under way; or something waits for one of them."""
    n, topology = RANKS, star(RANKS, Link(50 * 10**9, latency_ps=500_000))
    plan, ranks = schedule("all_reduce", name, n), np.arange(n)
    where = (*topology.ranks, *devices(topology, plan)[n:])
    params = Params(sharing="fifo", chunk=700, channels=plan.n_steps, channels_by="step", slots=2)
    made = []
    for size in (8_000, 4_000, 16_000):
        options = (plan, topology, where, params, size * n)
        made.append(CallProgram(functools.partial(bind, *options), in_loops=functools.partial(looped, *options)))
    longest = made[0].upper_bound_ps
    assert longest
    for eighths in range(2, 40, 3):
        asked = eighths % 5 * 2 + 1  # the number of an operation, which may be a call
        operations, calls, work = list[Operation](), list[CallProgram | None](), 0
        for number in range(6):
            apart = (2 + number) * longest // 8 if number else 1
            operations.append(Operation(ranks, None, apart + 1_000 * ranks[::-1], (work,) if number else ()))
            work, after = len(calls), (len(calls), len(calls) - 1) if number else (0,)
            calls.append(None)
            if launched:
                operations.append(Operation(ranks, None, 3_000 * ranks, after))
                calls.append(None)
                after = (work + 1,)
            operations.append(Operation(ranks, None, 0, after))
            calls.append(made[number % 3])
        operations.append(Operation(ranks, None, eighths * longest // 8, (work,)))
        calls.append(None)
        if eighths % 2:
            operations.append(Operation(ranks, None, 4 * longest, (asked,)))
            calls.append(None)
        found, expected = both(operations, calls, n, topology, set(made))
        assert found == expected.makespan_ps


@pytest.mark.parametrize("eighths", range(2, 24))
def test_of_two_calls_behind_the_same_one_each_waits_for_the_other(eighths: int) -> None:
    """Calls that begin together when another one is over take longer than one of them; beside something that ends when
    they are under way."""
    n, topology = RANKS, star(RANKS, Link(10**9, latency_ps=1_000))
    plan, ranks = schedule("all_reduce", "nvls", n), np.arange(n)
    params = Params(sharing="fifo", chunk=700, channels=plan.n_steps, channels_by="step", slots=8)
    where = (*topology.ranks, *devices(topology, plan)[n:])
    call = CallProgram(functools.partial(bind, plan, topology, where, params, 8_000 * n))
    assert call.upper_bound_ps and call.turns
    operations = [Operation(ranks, None, 1), Operation(ranks, None, 0, (0,))]
    operations += [Operation(ranks, None, call.upper_bound_ps // 2 + 1_000 * ranks, (0,))]
    operations += [Operation(ranks, None, 0, (1, 2)), Operation(ranks, None, 0, (1, 2))]
    operations += [Operation(ranks, None, eighths * call.upper_bound_ps // 8, (2,))]
    calls = [None, call, None, call, call, None]
    found, expected = both(operations, calls, n, topology, {call})
    assert found in (None, expected.makespan_ps)


def check_chain(seed: int) -> bool:
    """Calls alike but for their sizes, each of which begins when the one before is over, or a rank comes late, of ranks
    in any places of a network whose trunk is slow one way: they meet there. Something waits for one of them. Says
    whether they were put together."""
    rng, n = random.Random(seed), 5
    plan, near, far = schedule("all_reduce", "tree", n), Link(10**10, latency_ps=1), Link(10**10, latency_ps=10**6)
    topology = two_level(n, near, 1)
    links = (
        Link(10**8, latency_ps=1) if pair == ("leaf0", "spine") else rng.choice([near, far]) for pair in topology.links
    )
    topology = topology.with_links(links)
    where = tuple(rng.sample(topology.ranks, n))
    params = Params(sharing="fifo", chunk=700, channels=plan.n_steps, channels_by="step", slots=32)
    made = []
    for size in (1_400, 28_000):
        options = (plan, topology, where, params, size)
        made.append(CallProgram(functools.partial(bind, *options), in_loops=functools.partial(looped, *options)))
    assert made[0].turns and made[0].turns == made[1].turns
    calls, ranks, asked = rng.choices(made, k=3), np.arange(n), rng.choice([1, 3])
    late = [rng.choice([0, 0, 10**7, 10**9, 4 * 10**9]) * (ranks == rng.randrange(n)) for _ in range(2)]
    operations = [Operation(ranks, None, 1), Operation(ranks, None, 0, (0,))]
    for took in late:
        operations.append(Operation(ranks, None, took, (len(operations) - 2,) if len(operations) > 2 else (0,)))
        operations.append(Operation(ranks, None, 0, (len(operations) - 2, len(operations) - 1)))
    operations += [Operation(ranks, None, rng.randint(0, 10**9), (0,)), Operation(ranks, None, 10**10, (asked, 6))]
    all_calls = [None, calls[0], None, calls[1], None, calls[2], None, None]
    found, timeline = both(operations, all_calls, n, topology, set(made))
    assert found in (None, timeline.makespan_ps), seed
    over = came = 1
    ends = np.cumsum([len(call.program) for call in calls])
    for call, end, took in zip(calls, ends, [0, *late], strict=True):
        assert call.upper_bound_ps
        came += int(np.max(took))
        over = max(over, came) + call.upper_bound_ps
        assert timeline.end[end - len(call.program) : end].max() <= over, seed
    return found is not None


@pytest.mark.thorough
@batches(1, 20)
def test_calls_that_follow_each_other_may_meet(batch: int) -> None:
    """Of 50 chains every one that can be put together takes as long as joined, and many can; each call is over in
    time."""
    assert sum(map(check_chain, range(50 * batch, 50 * batch + 50))) >= 30


def check_late(seed: int) -> bool:
    """Calls alike but for their sizes, for each of which ranks compute, some much longer than others; a call is
    launched when that and the call before are over. Something may wait for one of them. Says whether they were put
    together."""
    rng = random.Random(seed)
    n, name = rng.choice([3, 5, 6]), rng.choice(["tree", "nvls", "nvls_tree"])
    plan, ranks = schedule("all_reduce", name, n), np.arange(n)
    topology, slow = (two_level(n, FAST, 1) if name == "tree" else star(n, FAST)), Link(10**9, latency_ps=1)
    links = (slow if pair == ("leaf0", "spine") else rng.choice([FAST, FAST, FAST, slow]) for pair in topology.links)
    topology = topology.with_links(links)
    places = tuple(rng.sample(topology.ranks, n))
    where = (*places, *devices(topology, plan)[n:])
    params = Params(sharing="fifo", chunk=700, channels=plan.n_steps, channels_by="step", slots=rng.choice([1, 2, 8]))
    made = []
    for size in rng.sample([700, 2_100, 5_600], 2):
        options = (plan, topology, where, params, size * n)
        made.append(CallProgram(functools.partial(bind, *options), in_loops=functools.partial(looped, *options)))
    longest = made[0].upper_bound_ps
    if not longest or not all(call.turns for call in made):
        return False
    spread, launched = rng.choice([0.05, 0.3, 1, 4]), rng.random() < 0.5
    asked, beside = rng.randrange(9), rng.randrange(30)
    operations, calls, last = [Operation(ranks)], list[CallProgram | None]([None]), list[int]()

    def add(took: object, *after: int, call: CallProgram | None = None) -> int:
        operations.append(Operation(ranks, None, np.asarray(took, np.int64), after))
        calls.append(call)
        return len(calls) - 1

    work = 0
    for number in range(6):
        least = rng.choice([0.1, 0.5, 1, 2])
        late = [longest * (least + spread * max(0, rng.gauss(rng.choice([0, 0, 2]), 1))) for _ in ranks]
        work = add(late, work)
        after = work, *last[-1:]
        if launched:
            after = (add(rng.choice([0, 3_000]) * ranks + 1_000, *after),)
        last.append(add(0, *after, call=rng.choice(made)))
        if asked == number:
            add(rng.randint(0, 4 * longest), last[-1])
        if beside == number:
            add(0, add(rng.randint(0, 4 * longest), work), call=rng.choice(made))
    found, expected = both(operations, calls, n, topology, set(made))
    assert found in (None, expected.makespan_ps), seed
    return found is not None


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [2, *(pytest.param(batch, marks=pytest.mark.long) for batch in range(3, 40))])
def test_what_was_ahead_of_a_late_rank_need_not_be_known(batch: int) -> None:
    """Of 50 plans every one that can be put together takes as long as joined, and many can."""
    assert sum(map(check_late, range(50 * batch, 50 * batch + 50))) >= 30


def test_a_call_behind_two_that_are_not_known_waits_for_both() -> None:
    """One of them is of other ranks, on other links, and ends later than the one that the call follows; the bound of
    that is later, as it does not know that the rank with a slow link came before the others."""
    slow, ranks, pair = 10**6, np.arange(3), np.array([2, 3])
    topology = full_mesh(4, Link(10**10, latency_ps=1), {("h2", "h0"): Link(10**9, latency_ps=1)})
    params = Params(sharing="fifo", channels=1, slots=2)
    tree, two = schedule("all_reduce", "tree", 3), schedule("all_reduce", "tree", 2)
    call, other = (
        CallProgram(functools.partial(bind, each, topology, tuple(f"h{rank}" for rank in of), params, nbytes))
        for each, of, nbytes in ((tree, ranks, slow // 1_000), (two, pair, 15 * slow // 2_000))
    )
    assert call.turns and call.upper_bound_ps and other.upper_bound_ps
    assert slow < other.upper_bound_ps < slow + call.upper_bound_ps
    operations = [Operation(ranks, None, np.array([1, slow, 1])), Operation(ranks, None, 0, (0,))]
    operations += [Operation(pair, None, 1), Operation(pair, None, 0, (2,))]
    operations += [Operation(ranks, None, 0, (1, 3)), Operation(ranks, None, slow, (4,))]
    calls = [None, call, None, other, call, None]
    found, expected = both(operations, calls, 4, topology, {call, other})
    assert found == expected.makespan_ps


@pytest.mark.parametrize("eighths", range(1, 12))
def test_calls_that_overlap_are_seen_whichever_were_run_before(eighths: int) -> None:
    """A call that begins while another one is under way, or soon after, though neither waits for the other; and a third
    one at that time, after others have asked for the first call's end and for an earlier call's."""
    n, topology = 5, star(5, Link(50 * 10**9, latency_ps=500_000))
    program = bind(
        schedule("all_gather", "ring", n), topology, topology.ranks, Params(sharing="fifo", channels=1), 10**6
    )
    call, ranks, some = CallProgram(lambda: program), np.arange(n), np.arange(1)
    assert call.upper_bound_ps
    alone = call.alone(np.zeros(n, np.int64), np.zeros(len(topology.links), np.int64))
    assert alone
    begin, then = 10**6, 10**6 + 2 * call.upper_bound_ps
    two = [Operation(ranks, None, begin), Operation(ranks, program, 0, (0,))]
    two += [Operation(ranks, None, begin + eighths * alone.over // 8), Operation(ranks, program, 0, (2,))]
    three = [*two[:2], Operation(ranks, None, then), Operation(ranks, program, 0, (2,)), Operation(some, None, 1, (3,))]
    later = then - begin - alone.over + eighths * alone.over // 8
    three += [Operation(ranks, None, later, (1, 4)), Operation(ranks, program, 0, (5,))]
    for plan in (two, three):
        calls = [call if op.program else None for op in plan]
        found, expected = both([op._replace(program=None) for op in plan], calls, n, topology, {call})
        assert found in (None, expected.makespan_ps)


@pytest.mark.parametrize("late", [False, True])
def test_a_folded_call_is_the_whole_one(late: bool) -> None:
    """Calls of which some ranks stand for all, back to back, end on each rank as those of all ranks do; where one rank
    is late, they are run whole."""
    n, topology = 12, star(12, Link(50 * 10**9, latency_ps=500_000))
    stream = algorithms.stream("all_gather", "ring", n)
    spec = StreamedProgram(stream, topology, topology.ranks, Params(sharing="fifo", o_send=10**5, channels=1), 12_000)
    took = np.full(n, 10**6)
    took[3] += 10**8 * late
    times = []
    for call in (CallProgram(spec.bind, spec, long=0), CallProgram(spec.bind)):
        ranks = np.arange(n)
        operations = [Operation(ranks, None, took), *(Operation(ranks, None, 0, (i,)) for i in range(3))]
        times.append(composed_ps(operations, [None, call, call, call], n, topology))
        operations[1:] = [op._replace(program=call.program) for op in operations[1:]]
        times.append(fast.totals(join(operations, n, topology)).makespan_ps)
        assert [a.tolist() for a in call.sums[:2]] == [call.program.carried.tolist(), call.program.sent_bytes.tolist()]
        assert call.sums[2:] == (call.program.schedule.messages, call.program.wire_bytes)
    assert None not in times and len(set(times)) == 1


def test_what_is_folded_serves_other_rates() -> None:
    """A call that was folded once ends as the whole one does on links of other rates, be one of them slower or none."""
    n, plain = 12, star(12, Link(50 * 10**9, latency_ps=500_000))
    stream, nothing = algorithms.stream("all_gather", "ring", n), np.zeros(n, np.int64)
    for rate, slow in ((50, 50), (30, 30), (50, 20), (20, 20)):
        rates = np.full(len(plain.links), rate * 10**9)
        rates[3] = slow * 10**9
        network = plain.with_rates(rates, plain.latencies)
        spec = StreamedProgram(stream, network, network.ranks, Params(sharing="fifo", channels=1), 12_000)
        folded, whole = CallProgram(spec.bind, spec, long=0), CallProgram(spec.bind)
        busy = np.zeros(len(rates), np.int64)
        found, expected = (call.alone(nothing, busy) for call in (folded, whole))
        assert found is not None and expected is not None
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
