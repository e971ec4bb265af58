"""All engines against an oracle written from the rules alone, transfer by transfer, by `==`."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import ENTRIES, devices, program, schedule, star
from oracle import (
    Change,
    Fault,
    Link,
    Message,
    Rules,
    Task,
    random_case,
    random_faults,
    random_tasks,
    simulate,
    simulate_faults,
    simulate_tasks,
)

from simcoll.config.numba_loader import have_numba
from simcoll.engine import event, fast
from simcoll.engine.link_changes import LinkChanges
from simcoll.engine.program import Columns, Program, ProgramRoutes, assemble, bind
from simcoll.engine.tasks import Tasks
from simcoll.engine.timing_model import Dependencies, Params, dependencies
from simcoll.errors import StuckError
from simcoll.schedule.ir import Schedule
from simcoll.topology.graph import Link as TopologyLink

FAST = {"fast": (False, False), "replay": (True, False), "compiled": (False, True), "compiled replay": (True, True)}

Case = tuple[list[Message], list[Link], Rules, dict[int, int]]


def program_of(
    messages: list[Message],
    links: list[Link],
    rules: Rules,
    arrivals: dict[int, int],
    waits: Callable[[Schedule], Dependencies] = dependencies,
    build: Callable[..., Program] = assemble,
) -> Program:
    """The oracle's case as a program, route by route."""
    rows = [(m.step, m.src, m.src_slot, m.dst, m.dst_slot, m.reduce) for m in messages]
    n = 1 + max(max(m.src, m.dst) for m in messages)
    schedule = Schedule.from_rows(rows, collective="all_reduce", algorithm="random", n=n, n_chunks=1)
    bandwidths, latencies = (np.array(column) for column in zip(*links, strict=True))
    names = [f"link{i}" for i in range(len(links))]
    network = SimpleNamespace(bandwidths=bandwidths, latencies=latencies, link_names=names)
    params = Params(**{field: getattr(rules, field) for field in Rules.__dataclass_fields__})
    hop = np.cumsum([0, *(len(m.route) for m in messages)], dtype=np.int32)
    routes = ProgramRoutes(
        schedule.src, schedule.dst, hop, np.array([link for m in messages for link in m.route], dtype=np.int32)
    )
    sizes, kind = np.unique([m.nbytes for m in messages], return_inverse=True)
    number = np.array([m.channel for m in messages], dtype=np.int32)
    columns = Columns(np.arange(len(rows), dtype=np.int32), sizes, kind.astype(np.int32), number, *waits(schedule))
    return build(schedule, params, network, routes, columns, {r: t for r, t in arrivals.items() if r < n})


Joint = tuple[list[Message], list[Link], Rules, list[Task]]


def joint_program_of(messages: list[Message], links: list[Link], rules: Rules, tasks: list[Task]) -> Program:
    """A case of several operations as a program: their rules by way, of which each message has its own."""
    kinds = list(dict.fromkeys(m.rules or rules for m in messages))
    plain = program_of(messages, links, rules, {})
    credit = np.full(len(messages), -1, np.int32)
    for i, m in enumerate(messages):
        slots = (m.rules or rules).slots
        same = [
            j for j in range(i) if (messages[j].src, messages[j].dst, messages[j].channel) == (m.src, m.dst, m.channel)
        ]
        credit[i] = same[-slots] if slots and len(same) >= slots else -1
    channel, side = (np.full(max(column, default=-1) + 1, -1, np.int32) for column in (plain.channel, plain.side))
    for i, m in enumerate(messages):
        assert m.tasks
        channel[plain.channel[i]], side[plain.side[i]] = m.tasks
    before = np.array([j for task in tasks for j in task.before], np.int32)
    first = np.cumsum([0, *(len(task.before) for task in tasks)], dtype=np.int32)
    sizes = np.array([m.nbytes for m in messages])
    return dataclasses.replace(
        plain,
        sizes=sizes,
        kind=np.arange(len(messages), dtype=np.int32),
        credit=credit,
        params=dataclasses.replace(plain.params, slots=1),
        tasks=Tasks(channel, side, np.array([t.duration for t in tasks]), first, before, np.arange(len(channel))),
        parts=tuple(Params(**{field: getattr(one, field) for field in Rules.__dataclass_fields__}) for one in kinds),
        part=np.array([kinds.index(m.rules or rules) for m in messages]),
    )


def check_tasks(seed: int) -> None:
    """One random case of several operations in all engines."""
    case = random_tasks(random.Random(seed), contention=seed % 4 != 0)
    played, (expected, tasks) = joint_program_of(*case), simulate_tasks(*case)
    whole = event.run(played)
    for name in ("start", "sent", "arrive", "end", "complete"):
        assert getattr(whole, name).tolist() == [getattr(times, name) for times in expected], (seed, name)
    assert list(zip(whole.opened.tolist(), whole.done.tolist(), strict=True)) == tasks, seed
    for compiled in (False, True):
        if have_numba() or not compiled:
            assert fast.run(played, compiled=compiled).timeline == whole, (seed, compiled)
            found = fast.totals(played, compiled=compiled)
            assert found is not None
            assert found.makespan_ps == whole.makespan_ps, (seed, compiled)


@pytest.mark.parametrize("batch", range(20))
def test_several_operations_are_the_rules(batch: int) -> None:
    """Of 1,000 random programs of several operations, with computation in between and rules of their own, the times of
    every transfer and task are the oracle's in the event engine, and the event engine's in the others."""
    for seed in range(batch * 50, batch * 50 + 50):
        check_tasks(seed)


def changed(played: Program, messages: list[Message], faults: list[Fault]) -> Program:
    """A program of which each message has a way of its own, with links that change, and the ways then taken."""
    turns = sorted({fault.at for fault in faults if not isinstance(fault, Change)})
    rows = []
    force = np.tile(np.arange(len(messages), dtype=np.int32), (len(turns) + 1, 1))
    src, dst, hop, links = played.routes
    ends, ways = [], [links]
    for fault in faults:
        if isinstance(fault, Change):
            rows.append((fault.at, -1, fault.link, fault.bandwidth))
            continue
        turn = turns.index(fault.at) + 1
        rows += [(fault.at, turn, link, 0) for link in fault.links]
        for i, route in fault.routes.items():
            force[turn:, i] = len(messages) + len(ends)
            ends.append(i)
            ways.append(np.array(route, np.int32))
    at, turn, link, bandwidth = np.array(sorted(rows), np.int64).reshape(-1, 4).T
    whose = np.append(np.arange(len(messages)), ends).astype(np.int32)
    hop = np.append(hop, hop[-1] + np.cumsum([len(way) for way in ways[1:]])).astype(np.int32)
    routes = ProgramRoutes(src[whose], dst[whose], hop, np.concatenate(ways).astype(np.int32))
    part = None if played.part is None else played.part[whose]
    return dataclasses.replace(played, routes=routes, part=part, changes=LinkChanges(at, link, bandwidth, turn, force))


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
        for name in ("start", "sent", "arrive", "end", "complete"):
            assert getattr(whole, name).tolist() == [getattr(times, name) for times in expected], (seed, name)
        went = played.as_it_went(whole.way)
        assert [tuple(went.route(i)) for i in range(len(went))] == routes, seed
        assert len(went.hops.links) == len(whole.hop_begin)
    for compiled in (False, True):
        if have_numba() or not compiled:
            assert fast.run(played, compiled=compiled).timeline == whole, (seed, compiled)
            found = fast.totals(played, compiled=compiled)
            assert (found and found.makespan_ps) == (whole and whole.makespan_ps), (seed, compiled)


@pytest.mark.parametrize("batch", range(6))
def test_links_that_change_are_the_rules(batch: int) -> None:
    """Of 300 random programs whose links become slower, die, come back and are gone around, all engines say what the
    oracle says, the routes included, or all say that it does not finish."""
    for seed in range(batch * 50, batch * 50 + 50):
        check_faults(seed)


@pytest.mark.long
@pytest.mark.parametrize("batch", range(50))
def test_links_that_change_are_the_rules_at_length(batch: int) -> None:
    """The same for 5,000 more."""
    for seed in range(300 + batch * 100, 400 + batch * 100):
        check_faults(seed)


def check(seed: int) -> None:
    """One random case in all engines."""
    case = random_case(random.Random(seed), contention=seed % 4 != 0)
    played, expected = program_of(*case), simulate(*case)
    whole = event.run(played)
    for name in ("start", "sent", "arrive", "end", "complete"):
        assert getattr(whole, name).tolist() == [getattr(times, name) for times in expected], (seed, name)
    for engine, (shortcuts, compiled) in FAST.items():
        if have_numba() or not compiled:
            assert fast.run(played, shortcuts, compiled).timeline == whole, (seed, engine)
            found = fast.totals(played, shortcuts, compiled)
            assert found is not None
            assert found.makespan_ps == whole.makespan_ps, (seed, engine)


@pytest.mark.parametrize("batch", range(20))
def test_the_engines_are_the_rules(batch: int) -> None:
    """Start, sent, arrive, end and complete of every transfer of 1,000 random cases are the oracle's in the event
    engine, and all times, those of hops too, the event engine's in the others."""
    for seed in range(batch * 50, batch * 50 + 50):
        check(seed)


@pytest.mark.long
@pytest.mark.parametrize("batch", range(200))
def test_the_engines_are_the_rules_at_length(batch: int) -> None:
    """The same for 20,000 more cases."""
    for seed in range(1_000 + batch * 100, 1_100 + batch * 100):
        check(seed)


@pytest.mark.skipif(not have_numba(), reason="numba is not installed")
@pytest.mark.parametrize("entry", ENTRIES, ids="/".join)
def test_binding_compiled_is_the_same(entry: tuple[str, str]) -> None:
    """Compiled or not, binding derives the same columns, also where loops interleave and credits are few."""
    for chunk, channels, slots in ((0, 1, 0), (700, 3, 2), (700, 0, 1)):
        params = Params(chunk=chunk, channels=channels, slots=slots)
        plan = schedule(*entry, 6)
        topology = star(6, TopologyLink(50 * 10**9, 500_000))
        bound = [bind(plan, topology, devices(topology, plan), params, 12_006, compiled=how) for how in (False, True)]
        for name in ("way", "kind", "channel", "side", "reads", "chain", "credit", "channel_before"):
            plain, compiled = (getattr(one, name) for one in bound)
            assert plain.tolist() == compiled.tolist(), name


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 2, st.integers(0, 3), st.booleans()), max_size=30), st.data())
def test_slots_may_be_far_apart(ways: list[tuple[int, int, int, bool]], data: st.DataObject) -> None:
    """Dependencies do not depend on the numbers of the slots: spread over 30 bits they are the same."""
    steps = sorted(data.draw(st.lists(st.integers(0, 5), min_size=len(ways), max_size=len(ways))))
    found = []
    for spread in (1, 2**28 - 1):
        rows = [(s, a, slot * spread, b, slot * spread, r) for s, (a, b, slot, r) in zip(steps, ways, strict=True)]
        plan = Schedule.from_rows(rows, collective="all_reduce", algorithm="own", n=4, n_chunks=1)
        found.append([column.tolist() for column in dependencies(plan)])
    assert found[0] == found[1]


def test_what_a_run_adds_up_to() -> None:
    """Totals are sums over transfers and their hops; copies within a rank cross no wire."""
    played = program("all_to_all/direct", star(5, TopologyLink(50 * 10**9, 500_000)), 16_000, chunk=700)
    whole, found = fast.run(played, compiled=False).timeline, fast.totals(played, compiled=False)
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
    for seed in range(4):
        rng = random.Random(f"{entry} {seed}")
        params = {
            "sharing": rng.choice(["fair", "fifo"]),
            "chunk": rng.choice([0, 1000]),
            "channels": rng.choice([0, 1, 2]),
            "channels_by": rng.choice(["chunk", "loop"]),
            "slots": rng.choice([0, 1, 2]),
            "o_send": rng.choice([0, 10**6]),
            "o_recv": rng.choice([0, 10**5]),
            "gamma": rng.choice([0, 10**11]),
            "channel_bandwidth": rng.choice([0, 10**10]),
            "barrier": rng.random() < 0.3,
        }
        late = {rng.randrange(5): 10**6}
        played = program("/".join(entry), star(5, TopologyLink(50 * 10**9, 500_000)), 16_000, arrivals=late, **params)
        whole = event.run(played)
        assert all(fast.run(played, *how).timeline == whole for how in FAST.values() if not how[1])


@pytest.mark.parametrize("name", ["all_reduce/double_binary_tree", "all_reduce/chain_tree"])
@pytest.mark.parametrize("channels", [2, 3])
def test_loops_go_to_channels_in_turn(name: str, channels: int) -> None:
    """With `channels_by: loop` a sender sends what it has of loops `channels` apart one by one, in the order of
    the program; by chunk it does not."""
    in_order = {}
    for by in ("chunk", "loop"):
        how = {"chunk": 500, "channels": channels, "channels_by": by}
        played = program(name, star(5, TopologyLink(50 * 10**9, 500_000)), 40_000, **how)
        found, loop = event.run(played), np.asarray(played.loop)
        theirs = [np.flatnonzero((played.src == r) & (loop % channels == c)) for r in range(5) for c in range(channels)]
        in_order[by] = all((found.start[its[1:]] >= found.sent[its[:-1]]).all() for its in theirs)
    assert in_order == {"chunk": False, "loop": True}


@pytest.mark.parametrize("entry", ENTRIES, ids="/".join)
@pytest.mark.parametrize("blocking", ["sends-first", "even-odd"])
def test_the_engines_agree_on_blocking_sends(entry: tuple[str, str], blocking: str) -> None:
    """With blocking sends both finish at the same times, or neither does."""
    played = program("/".join(entry), star(4, TopologyLink(50 * 10**9, 500_000)), 16_000, blocking=blocking)
    try:
        whole = event.run(played)
    except StuckError:
        whole = None
    assert fast.run(played, compiled=False).timeline == whole
