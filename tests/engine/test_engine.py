"""All engines against an oracle written from the rules alone, transfer by transfer, by `==`.

By default 150 random cases of each kind: in as many every mutation of test_mutations.py shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, Literal

import numpy as np
import pytest
from extras import batches
from hypothesis import given
from hypothesis import strategies as st
from networks import ENTRIES, RANKS_ONLY, full_mesh, program, schedule, star
from oracle import (
    Change,
    Message,
    Notice,
    Rules,
    Task,
    random_case,
    random_faults,
    random_tasks,
    simulate,
    simulate_faults,
    simulate_tasks,
)
from oracle_programs import changed, joint_program_of, program_of

from simcoll.config.numba_loader import have_numba
from simcoll.engine import event, fast
from simcoll.engine import run as engine_run
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.run import Policy, StreamedProgram, run
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import Params, dependencies
from simcoll.errors import InputError, StuckError, TopologyError
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Link as TopologyLink

COMPILED = (False, True) if have_numba() else (False,)


def check_times(whole: Timeline, expected: Sequence[Any], seed: int) -> None:
    """The event engine's times of transfers are the oracle's."""
    for name in ("start", "sent", "arrive", "end", "complete"):
        assert getattr(whole, name).tolist() == [getattr(times, name) for times in expected], (seed, name)


def check_fast(played: Program, whole: Timeline | None, seed: int, ways: Iterable[bool] = COMPILED) -> None:
    """The fast engine has the event engine's timeline, and its end alone; or does not finish either."""
    for compiled in ways:
        assert fast.run(played, compiled) == whole, (seed, compiled)
        found = fast.totals(played, compiled)
        assert (found and found.makespan_ps) == (whole and whole.makespan_ps), (seed, compiled)


def check_tasks(seed: int) -> None:
    """One random case of several operations in all engines."""
    case = random_tasks(random.Random(seed), contention=seed % 4 != 0, views=True)
    played, (expected, tasks) = joint_program_of(*case), simulate_tasks(*case)
    whole = event.run(played)
    check_times(whole, expected, seed)
    assert list(zip(whole.opened.tolist(), whole.done.tolist(), strict=True)) == tasks, seed
    check_fast(played, whole, seed)


@pytest.mark.usefixtures("from_the_start")
@batches(2, 102)
def test_several_operations_are_the_rules(batch: int) -> None:
    """Of random programs of several operations, with computation in between and rules of their own, the times of every
    transfer and task are the oracle's in the event engine, and the event engine's in the others."""
    for seed in range(batch * 50, batch * 50 + 50):
        check_tasks(seed)


def check_faults(seed: int) -> None:
    """One random case with links that change, in all engines."""
    rng = random.Random(seed)
    contention = seed % 4 != 0
    tasks: list[Task] = []
    if seed % 3:
        messages, links, rules, _ = random_case(rng, contention=contention)
        plain = program_of(messages, links, rules, {})
    else:
        messages, links, rules, tasks = random_tasks(rng, contention=contention)
        plain = joint_program_of(messages, links, rules, tasks)
    faults = random_faults(rng, messages, links, event.run(plain).makespan_ps)
    played = changed(plain, messages, faults)
    expected, routes = simulate_faults(messages, links, rules, tasks, faults)
    try:
        whole = event.run(played)
    except StuckError:
        whole = None
    assert (whole is None) == any(times.end is None for times in expected), seed
    if whole is not None:
        check_times(whole, expected, seed)
        went = played.as_it_went(whole.way)
        assert [tuple(went.route(i)) for i in range(len(went))] == routes, seed
        assert len(went.hops.links) == len(whole.hop_begin)
    check_fast(played, whole, seed)


@pytest.mark.usefixtures("from_the_start")
@batches(2, 102)
def test_links_that_change_are_the_rules(batch: int) -> None:
    """Of random programs whose links become slower, die, come back and are gone around, all engines say what the oracle
    says, the routes included, or all say that it does not finish."""
    for seed in range(batch * 50, batch * 50 + 50):
        check_faults(seed)


@pytest.mark.usefixtures("from_the_start")
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_link_that_is_found_dead_as_it_goes(sharing: Literal["fifo", "fair"]) -> None:
    """What a link has not served that is found dead at the instant at which it goes takes another way at once, where
    it may meet others or be alone, and is no more on the first."""
    links, rules = [(10**9, 500), (2 * 10**9, 300), (10**9, 700)], Rules(sharing)
    messages = [Message(0, 0, 0, 1, 0, False, 100, (0,)), Message(0, 2, 0, 3, 0, False, 300, (1,))]
    for way, at in product([(1,), (2,), (2, 1)], [1, 30_000, 99_999, 100_000]):
        faults = [Change(at, 0, 0), Notice(at, (0,), {0: way})]
        played = changed(program_of(messages, links, rules, {}), messages, faults)
        expected, routes = simulate_faults(messages, links, rules, [], faults)
        whole = event.run(played)
        check_times(whole, expected, at)
        assert at == 100_000 or routes[0] == way  # else all is gone by then
        check_fast(played, whole, at)


def check(seed: int) -> None:
    """One random case in all engines."""
    case = random_case(random.Random(seed), contention=seed % 4 != 0)
    played, expected = program_of(*case), simulate(*case)
    whole = event.run(played)
    check_times(whole, expected, seed)
    check_fast(played, whole, seed)


@pytest.mark.thorough
@pytest.mark.usefixtures("from_the_start")
@batches(2, 402)
def test_the_engines_are_the_rules(batch: int) -> None:
    """Start, sent, arrive, end and complete of every transfer of random cases are the oracle's in the event
    engine, and all times, those of hops too, the event engine's in the others."""
    for seed in range(batch * 50, batch * 50 + 50):
        check(seed)


def pieces_of(plan: Schedule, whole: Program, params: Params, itemsize: int) -> list[Message]:
    """The messages of all loops by rules 7 and 8: `whole` says what each row of one slot sends, and by which way."""
    piece = max(itemsize, params.chunk // itemsize * itemsize)
    stagger = 1 if plan.pipelined else plan.n_steps
    found = []
    for rows in np.split(np.arange(len(plan)), plan.heads[1:]):
        step, src, src_slot, dst, dst_slot, reduce, *_ = plan.row(rows[0])
        sizes = whole.nbytes[rows].tolist()
        for loop in range(max(1, -(-max(sizes) // piece))):
            number = (loop * plan.n_chunks + src_slot) % max(1, params.channels)
            route = tuple(whole.route(rows[0]))
            if params.channels_by == "port":
                number = 1 + route[0] if route else 0
            channel, side = (number, number) if params.channels or params.channels_by == "port" else (dst, 0)
            more, at = loop * plan.n_slots, (step + loop * stagger, loop, rows[0])
            ends = src, src_slot + more, dst, dst_slot + more, reduce
            size = sum(max(0, min(piece, nbytes - loop * piece)) for nbytes in sizes)
            slots = [(plan.row(row).src_slot + more, plan.row(row).dst_slot + more) for row in rows[1:]]
            found.append((at, Message(at[0], *ends, size, route, channel, side, more=tuple(slots))))
    return [message for _, message in sorted(found, key=lambda each: each[0])]


def check_pieces(collective: str, algorithm: str, seed: int) -> bool:
    """A random call in pieces, of which some ranks have more than others. Says whether some loop lacks a message."""
    rng = random.Random(f"{collective} {algorithm} {seed}")
    n = rng.choice([4, 5])
    plan, topology = schedule(collective, algorithm, n), star(n, TopologyLink(50 * 10**9, latency_ps=500_000))
    weights = None
    if may_be_weighted(collective) and rng.random() < 0.7:
        shape = (n, n) if collective == "all_to_all" else (n,)
        weights = rng.choices([0, 1, 1, 2, 5], k=n ** len(shape))
        weights[rng.randrange(len(weights))] = 9
        weights = np.array(weights).reshape(shape).tolist()
    rules = Rules(
        rng.choice(["fifo", "fair"]), o_send=rng.choice([0, 10**5]), o_recv=rng.choice([0, 10**4]),
        g=rng.choice([0, 10**6]), gamma=rng.choice([0, 10**11]), slots=rng.randint(0, 3),
        channel_bandwidth=rng.choice([0, 10**10]), barrier=rng.random() < 0.2,
    )  # fmt: skip
    own = {name: getattr(rules, name) for name in Rules.__dataclass_fields__}
    channels, by = rng.choice([(0, "chunk"), (1, "chunk"), (2, "chunk"), (3, "chunk"), (1, "port")])
    params = Params(**own, chunk=rng.choice([20, 40, 90]), channels=channels, channels_by=by)
    late = {rng.randrange(n): 10**6} if rng.random() < 0.3 else {}
    size, ranks = 4 * rng.randint(20, 120), topology.ranks
    slots = plan.by_slot()
    apart = slots.replace(joins=np.zeros_like(slots.joins))
    whole = bind(apart, topology, ranks, replace(params, chunk=0), size, itemsize=4, weights=weights)
    messages = pieces_of(slots, whole, params, itemsize=4)
    links = list(zip(topology.bandwidths.tolist(), topology.latencies.tolist(), strict=True))
    played = bind(plan, topology, ranks, params, size, itemsize=4, weights=weights, arrivals=late)
    found = event.run(played)
    check_times(found, simulate(messages, links, rules, late), seed)
    check_fast(played, found, seed, ways=[False])
    call = StreamedProgram(plan, topology, ranks, params, size, 4, late, weights)
    totals = run(call, Policy(keep="totals")).totals
    assert (totals.makespan_ps, totals.messages) == (found.makespan_ps, sum(not m.local for m in messages)), seed
    return len(messages) < played.loops * plan.transfers


def may_be_weighted(collective: str) -> bool:
    """Whether ranks may have different shares."""
    return collective in ("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all")


@pytest.mark.parametrize("entry", RANKS_ONLY, ids="/".join)
def test_loops_count_what_is_sent(entry: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in pieces are the oracle's, message by message: of a slot that holds less than others nothing is sent in
    the loops behind its last piece. Streams and the columns of one loop end with the program of all."""
    monkeypatch.setattr(engine_run, "MOST_HELD", 0)
    lacking = [check_pieces(*entry, seed) for seed in range(6)]
    assert any(lacking) or not may_be_weighted(entry[0])


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_transfer_takes_its_own_route(sharing: Literal["fifo", "fair"]) -> None:
    """Transfers with random routes of their own, and some without, take the oracle's times over the named links."""
    topology, rules = full_mesh(5, TopologyLink(7 * 10**9, latency_ps=300)), Rules(sharing, o_send=50, slots=2)
    links = list(zip(topology.bandwidths.tolist(), topology.latencies.tolist(), strict=True))
    number = {name: link for link, name in enumerate(topology.link_names)}
    for seed in range(20):
        rng, rows, routes, messages = random.Random(seed), [], [], []
        for step in sorted(rng.choices(range(4), k=12)):
            through = rng.sample(range(5), rng.randint(2, 4))
            slot, (src, *_, dst) = rng.randrange(3), through
            rows.append((step, src, slot, dst, slot, rng.random() < 0.5))
            routes.append(tuple(topology.ranks[rank] for rank in through))
            hops = tuple(number["->".join(ends)] for ends in pairwise(routes[-1]))
            messages.append(Message(*rows[-1], 1000, hops))
        route = np.array([-1 if len(way) == 2 else i for i, way in enumerate(routes)], np.int32)
        plan = Schedule.from_rows(
            rows, collective="all_reduce", algorithm="own", n=5, n_chunks=3, route=route, routes=tuple(routes)
        )
        played = bind(plan, topology, topology.ranks, Params(sharing, o_send=50, slots=2), 3000)
        whole = event.run(played)
        check_times(whole, simulate(messages, links, rules), seed)
        check_fast(played, whole, seed)
    astray = plan.replace(routes=tuple(tuple(reversed(way)) for way in routes))
    with pytest.raises(TopologyError, match="does not lead from"):
        bind(astray, topology, topology.ranks, Params(), 3000)


def within_the_clock(run: Callable[..., Timeline | None], *how: Any) -> Timeline | None:
    """The timeline of a run; None where it takes longer than the clock runs."""
    try:
        return run(*how)
    except InputError as error:
        assert "longer than the clock runs" in str(error)
        return None


def test_runs_beyond_the_clock_end() -> None:
    """Random cases with overheads, gaps and latencies of up to half the clock's range: every engine comes to an end,
    with the same times, or all of them with none."""
    beyond = 0
    for seed in range(60):
        rng = random.Random(seed)
        messages, links, rules, arrivals = random_case(rng, contention=True)
        long = [2**50, 2**56, 2**61]
        links = [(rng.choice([*[b] * 20, 1]), rng.choice([*[a] * 20, *long])) for b, a in links]
        huge = {name: rng.choice([*[getattr(rules, name)] * 3, *long]) for name in ("o_send", "o_recv", "g")}
        played = program_of(messages, links, replace(rules, **huge), arrivals)
        whole = within_the_clock(event.run, played)
        beyond += whole is None
        for compiled in COMPILED:
            assert within_the_clock(fast.run, played, compiled) == whole, (seed, compiled)
    assert 15 <= beyond <= 45


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 2, st.integers(0, 3), st.booleans()), max_size=30), st.data())
def test_slots_may_be_far_apart(ways: list[tuple[int, int, int, bool]], data: st.DataObject) -> None:
    """Dependencies do not depend on the numbers of the slots: spread over 30 bits they are the same."""
    steps = sorted(data.draw(st.lists(st.integers(0, 5), min_size=len(ways), max_size=len(ways))))
    found = []
    for spread in (1, 2**28 - 1):
        rows = [(s, a, slot * spread, b, slot * spread, r) for s, (a, b, slot, r) in zip(steps, ways, strict=True)]
        plan = Schedule.from_rows(rows, collective="all_reduce", algorithm="own", n=4, n_chunks=1)
        reads, chain, adds = dependencies(plan)
        found.append([column.tolist() for column in (*reads, *chain, adds)])
    assert found[0] == found[1]


@pytest.mark.parametrize("channels", [0, 1, 3])
def test_what_sizes_and_slots_share_is_as_bound_anew(channels: int) -> None:
    """A schedule bound again and again on one network, with other sizes and slots, has the columns of one bound by
    itself, and counts credits per sender, receiver and channel."""
    topology, made = star(4, TopologyLink(7_000_000, latency_ps=900)), schedule("all_to_all", "direct", 4)
    for slots, nbytes in [(0, 4000), (2, 4000), (1, 9000), (5, 4000), (3, 4000), (4, 4000), (6, 9000), (2, 4000)]:
        params = Params(sharing="fifo", channels=channels, slots=slots, chunk=100)
        shared = bind(made, topology, topology.ranks, params, nbytes)
        alone = bind(copy(made), topology, topology.ranks, params, nbytes)
        for name in ("way", "kind", "channel", "side", "adds", "credit", "channel_before"):
            assert np.array_equal(getattr(shared, name), getattr(alone, name)), (name, slots, nbytes)
        assert all(map(np.array_equal, (*shared.reads, *shared.chain), (*alone.reads, *alone.chain)))
        used: dict[tuple[int, int, int], list[int]] = {}
        for i, key in enumerate(zip(alone.src.tolist(), alone.dst.tolist(), alone.channel.tolist(), strict=True)):
            before = used.setdefault(key, [])
            assert alone.credit[i] == (before[-slots] if 0 < slots <= len(before) else -1)
            before.append(i)


def test_what_a_run_adds_up_to() -> None:
    """Totals are sums over transfers and their hops; copies within a rank cross no wire."""
    played = program("all_to_all/direct", star(5, TopologyLink(50 * 10**9, latency_ps=500_000)), 16_000, chunk=700)
    whole, found = fast.run(played, compiled=False), fast.totals(played, compiled=False)
    assert whole is not None
    assert found is not None
    carried, away = np.zeros(len(played.bandwidths), np.int64), played.src != played.dst
    for i in range(len(played)):
        carried[played.route(i)] += played.nbytes[i]
    sent = [int(played.nbytes[away & (played.src == rank)].sum()) for rank in range(5)]
    assert found.carried.tolist() == carried.tolist()
    assert (found.makespan_ps, found.bytes_per_rank) == (whole.makespan_ps, max(sent))
    assert (found.messages, found.wire_bytes) == (int(away.sum()), 2 * sum(sent))


@pytest.mark.parametrize("entry", ENTRIES, ids="/".join)
def test_the_engines_agree_on_every_algorithm(entry: tuple[str, str]) -> None:
    """Every registered algorithm, in loops, on several channels, with late ranks and barriers: equal timelines."""
    for seed in range(2):
        rng = random.Random(f"{entry} {seed}")
        params = {
            "sharing": rng.choice(["fair", "fifo"]),
            "chunk": rng.choice([0, 1000]),
            "channels": rng.choice([0, 1, 2]),
            "channels_by": rng.choice(["chunk", "step", "port"]),
            "slots": rng.choice([0, 1, 2]),
            "o_send": rng.choice([0, 10**6]),
            "o_recv": rng.choice([0, 10**5]),
            "gamma": rng.choice([0, 10**11]),
            "channel_bandwidth": rng.choice([0, 10**10]),
            "barrier": rng.random() < 0.3,
        }
        late = {rng.randrange(5): 10**6}
        played = program(
            "/".join(entry), star(5, TopologyLink(50 * 10**9, latency_ps=500_000)), 16_000, arrivals=late, **params
        )
        whole = event.run(played)
        assert fast.run(played, compiled=False) == whole


def test_a_thousand_sums_wait_for_a_late_root() -> None:
    """What thousand ranks sent to a root that comes late is complete when it has come, one version after the other."""
    played = program("reduce/naive", star(1001, TopologyLink(50 * 10**9, latency_ps=500_000)), 8, arrivals={0: 10**9})
    whole = event.run(played)
    assert (whole.end < 10**9).all()
    assert (whole.complete == 10**9).all()
    assert fast.run(played, compiled=False) == whole


@pytest.mark.parametrize("name", ["all_reduce/double_binary_tree", "all_reduce/chain_tree"])
@pytest.mark.parametrize("channels", [2, 3])
def test_steps_go_to_channels_in_turn(name: str, channels: int) -> None:
    """With `channels_by: step` a sender sends what it has of steps `channels` apart one by one, in the order of
    the program; by chunk it does not."""
    in_order = {}
    for by in ("chunk", "step"):
        how = {"chunk": 500, "channels": channels, "channels_by": by}
        played = program(name, star(5, TopologyLink(50 * 10**9, latency_ps=500_000)), 40_000, **how)
        found, step = event.run(played), played.schedule.step[played.origin]
        theirs = [np.flatnonzero((played.src == r) & (step % channels == c)) for r in range(5) for c in range(channels)]
        in_order[by] = all((found.start[its[1:]] >= found.sent[its[:-1]]).all() for its in theirs)
    assert in_order == {"chunk": False, "step": True}


@pytest.mark.parametrize("entry", ENTRIES, ids="/".join)
def test_the_engines_agree_on_blocking_sends(entry: tuple[str, str]) -> None:
    """With blocking sends both finish at the same times, or neither does."""
    for blocking in ("sends-first", "even-odd"):
        played = program(
            "/".join(entry), star(4, TopologyLink(50 * 10**9, latency_ps=500_000)), 16_000, blocking=blocking
        )
        try:
            whole = event.run(played)
        except StuckError:
            whole = None
        assert fast.run(played, compiled=False) == whole, blocking
