"""Plans put together from their calls alone: the times are those of the joined program, or there are none."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from extras import batches
from networks import devices, schedule, star

from simcoll.engine import call_program, fast, streamed
from simcoll.engine.call_program import CallProgram
from simcoll.engine.composed import composed_ps
from simcoll.engine.joined_program import Operation, join
from simcoll.engine.run import StreamedProgram
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import Params
from simcoll.schedule import algorithms
from simcoll.topology.graph import Link, Topology

NAMES = ("all_reduce/ring", "all_reduce/nvls", "all_to_all/direct", "broadcast/chain", "all_gather/ring")
RANKS = 6


def both(
    operations: list[Operation], calls: Sequence[CallProgram | None], n: int, topology: Topology
) -> tuple[int | None, Timeline]:
    """The time of a plan put together from its calls, or None, and the timeline of the joined program."""
    whole = [op._replace(program=call and call.program) for op, call in zip(operations, calls, strict=True)]
    timeline = fast.run(join(whole, n, topology))
    assert timeline is not None
    return composed_ps(operations, calls, n, topology), timeline


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
    alike: list[list[int]] = []  # operations of several groups that do the same, as all groups of a dimension do
    apart = rng.choice([10**5, 10**7, 10**9])  # ps of computation between calls
    for _ in range(rng.randint(2, 9)):
        ranks, call = rng.choice(made)
        stream = rng.choice([*"aabcd"])
        before = [each for each in alike if operations[each[0]].stream == stream or rng.random() < 0.1]
        after = tuple(sorted(number for each in before for number in each))
        calling = rng.random() < 0.6
        slow, much = rng.random() < 0.3, rng.choice([0, 1, 1, 5])
        took = 0 if calling else np.array([apart * (2 * much if slow and not rank else much) for rank in ranks])
        others = [each for each in made if each[1].whole.stream is call.whole.stream and not {*each[0]} & {*ranks}]
        first = len(operations)
        for members, own in [(ranks, call), *others[:1]]:
            calls.append(own if calling else None)
            operations.append(Operation(members, None, took, after, stream))
        alike.append([*range(first, len(operations))])
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
        left = [rank for rank in range(RANKS) if rank not in ranks]
        for some in (ranks, *([left[: len(ranks)]] if len(left) >= len(ranks) else [])):
            where = (*(topology.ranks[rank] for rank in some), *devices(topology, plan)[plan.n :])
            whole = StreamedProgram(plan, topology, where, params, 16_000 * len(ranks))
            made.append((np.array(some), CallProgram(whole)))
    operations, calls = rng.choice([groups, training])(rng, made)
    found, expected = both(operations, calls, RANKS, topology)
    assert found in (None, expected.makespan_ps), seed
    return found is not None and sum(call is not None for call in calls) > 1


@batches(1, 40)
def test_a_plan_is_its_calls(batch: int) -> None:
    """Of 50 random plans every one that can be put together takes as long as joined, and many can."""
    assert sum(check(seed) for seed in range(batch * 50, batch * 50 + 50)) >= 10


@pytest.mark.parametrize("eighths", range(1, 12))
def test_calls_that_overlap_are_seen(eighths: int) -> None:
    """A call that begins while another one is under way, or soon after, though neither waits for the other; and a third
    one at that time, after something waited for the first."""
    n, topology = 5, star(5, Link(50 * 10**9, latency_ps=500_000))
    whole = StreamedProgram(
        schedule("all_gather", "ring", n), topology, topology.ranks, Params(sharing="fifo", channels=1), 10**6
    )
    call, ranks, some = CallProgram(whole), np.arange(n), np.arange(1)
    program = call.program
    alone = call.alone(np.zeros(n, np.int64), np.zeros(len(topology.links), np.int64))
    assert alone
    begin, then = 10**6, 10**6 + 2 * alone.over
    two = [Operation(ranks, None, begin), Operation(ranks, program, 0, (0,))]
    two += [Operation(ranks, None, begin + eighths * alone.over // 8), Operation(ranks, program, 0, (2,))]
    three = [*two[:2], Operation(ranks, None, then), Operation(ranks, program, 0, (2,)), Operation(some, None, 1, (3,))]
    later = then - begin - alone.over + eighths * alone.over // 8
    three += [Operation(ranks, None, later, (1, 4)), Operation(ranks, program, 0, (5,))]
    for plan in (two, three):
        calls = [call if op.program else None for op in plan]
        found, expected = both([op._replace(program=None) for op in plan], calls, n, topology)
        assert found in (None, expected.makespan_ps)


@pytest.mark.parametrize("late", [0, 10**5, 10**7])
@pytest.mark.parametrize("uneven", [0, 10**4])
def test_alike_groups_may_begin_at_other_times(late: int, uneven: int) -> None:
    """Two pairs make the same calls, of which one pair, or one rank of it, begins later."""
    topology, params = star(4, Link(50 * 10**9, latency_ps=500_000)), Params(sharing="fifo", channels=1)
    plan = schedule("all_reduce", "ring", 2)
    pairs = [np.array([0, 1]), np.array([2, 3])]
    made = [
        CallProgram(StreamedProgram(plan, topology, [topology.ranks[r] for r in pair], params, 10**6)) for pair in pairs
    ]
    assert made[0].shape == made[1].shape
    operations = [Operation(np.arange(4), None, np.array([0, 0, late, late + uneven]))]
    for first in (0, 1, 3):
        after = (0,) if not first else (first, first + 1)
        operations += [Operation(pair, None, 0, after) for pair in pairs]
    found, expected = both(operations, [None, *made * 3], 4, topology)
    assert found == expected.makespan_ps


@pytest.mark.parametrize("late", [False, True])
def test_a_long_call_is_the_whole_one(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are replayed step by step, back to back, end as calls do whose transfers are all in memory, with a
    late rank, too."""
    n, topology = 12, star(12, Link(50 * 10**9, latency_ps=500_000))
    stream = algorithms.stream("all_gather", "ring", n)
    spec = StreamedProgram(stream, topology, topology.ranks, Params(sharing="fifo", o_send=10**5, channels=1), 12_000)
    took = np.full(n, 10**6)
    took[3] += 10**8 * late
    times = []
    for long in (0, call_program.LONG):
        monkeypatch.setattr(call_program, "LONG", long)
        call, ranks = CallProgram(spec), np.arange(n)
        operations = [Operation(ranks, None, took), *(Operation(ranks, None, 0, (i,)) for i in range(3))]
        times.append(composed_ps(operations, [None, call, call, call], n, topology))
        operations[1:] = [op._replace(program=call.program) for op in operations[1:]]
        times.append(fast.totals(join(operations, n, topology)).makespan_ps)
        assert [a.tolist() for a in call.sums[:2]] == [call.program.carried.tolist(), call.program.sent_bytes.tolist()]
        assert call.sums[2:] == (call.program.schedule.messages, call.program.wire_bytes)
    assert None not in times and len(set(times)) == 1


@batches(1, 10)
def test_a_replay_ends_as_the_whole_call(batch: int) -> None:
    """On each rank and link, with late ranks and links that others occupy, on equal and on unequal links."""
    replayed = 0
    for seed in range(batch * 20, batch * 20 + 20):
        rng = random.Random(seed)
        topology = rng.choice([star(RANKS, Link(50 * 10**9, latency_ps=500_000)), unequal(rng)])
        params = Params(
            sharing="fifo", channels=rng.choice([0, 1]), slots=rng.choice([0, 1, 2]), o_send=rng.choice([0, 10**6]),
            o_recv=rng.choice([0, 10**5]), g=rng.choice([0, 10**6]), gamma=rng.choice([0, 10**11]),
        )  # fmt: skip
        made = algorithms.stream(rng.choice(["all_gather", "reduce_scatter", "all_reduce"]), "ring", RANKS)
        spec = StreamedProgram(made, topology, topology.ranks, params, 16_000 * RANKS)
        late, taken = rng.choice([0, 10**7]), rng.choice([0, 10**7])
        came, busy = (
            np.array([rng.randint(0, most) for _ in range(count)], np.int64)
            for most, count in ((late, RANKS), (taken, len(topology.links)))
        )
        parts = spec.parts()
        assert parts
        if found := streamed.ends(parts, spec.sizes, came, busy, compiled=False):
            replayed += 1
            expected = CallProgram(spec).alone(came, busy)
            assert expected is not None
            assert all(map(np.array_equal, found[0], expected)), seed
            sums = CallProgram(spec).sums
            assert all(map(np.array_equal, found[1], sums)), seed
    assert replayed >= 10
