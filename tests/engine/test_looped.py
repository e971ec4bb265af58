"""Loops run with the columns of one: ranks and links end as in the program of all loops."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from extras import batches
from networks import devices, full_mesh, nodes, schedule, star, two_level
from oracle import random_case
from oracle_programs import program_of

from simcoll.config.numpy_helpers import Array
from simcoll.engine import fast
from simcoll.engine.binding import bind
from simcoll.engine.looped import LoopedProgram
from simcoll.engine.program import Program, ProgramRoutes
from simcoll.engine.run import Policy, StreamedProgram, run
from simcoll.engine.timeline import CallEnds, Totals
from simcoll.engine.timing_model import Params
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Link, Topology

NAMES = (
    "all_reduce/nvls", *["all_reduce/nvls_tree"] * 4, *["all_reduce/double_binary_tree"] * 3, "all_reduce/tree",
    "all_to_all/direct", "all_reduce/ring", "broadcast/chain", "all_gather/ring", "reduce_scatter/ring",
    "reduce/binomial",
)  # fmt: skip


def network(rng: random.Random, n: int, agents: int) -> Topology:
    """Hosts whose links may differ; one that reduces, or one in each node, trunks that are too narrow, or none."""
    # on the second many things happen at once, on the third a piece takes longer than its way
    plain = rng.choice(
        [Link(50 * 10**9, latency_ps=500_000), Link(10**9, latency_ps=10**6), Link(10**8, latency_ps=500_000)]
    )
    if agents > 1 and rng.random() < 0.7:
        made = nodes(n, agents, plain, Link(plain.bandwidth // 2, latency_ps=rng.choice([1, 3, 8]) * plain.latency_ps))
    else:
        made = star(n, plain) if agents else rng.choice([star, full_mesh, narrow])(n, plain)
    slow, far, dead = (
        Link(30 * 10**9, latency_ps=500_000),
        Link(50 * 10**9, latency_ps=900_000),
        Link(0, latency_ps=500_000),
    )
    near = Link(50 * 10**9, latency_ps=1)  # felt at once
    shares = rng.choice([[1, 0, 0, 0, 0], [20, 5, 5, 0, 0], [20, 0, 5, 0.1, 0], [10, 0, 5, 0, 10]])
    return made.with_links(rng.choices([plain, slow, far, dead, near], shares, k=len(made.links)))


def narrow(n: int, link: Link) -> Topology:
    """Hosts on leaves whose trunks are too narrow."""
    return two_level(n, link, 2)


def columns(ends: CallEnds | None) -> list[object] | None:
    """The columns of what a run ends with, to be compared by ==; None where nothing ended."""
    return None if ends is None else [np.asarray(column).tolist() for column in ends]


def ends(own: LoopedProgram, came: Array, busy: Array, compiled: bool = False) -> CallEnds | None:
    """The ends of all loops, whose ranks come at `came`."""
    return fast.ends(replace(own, one=replace(own.one, arrivals=came)), busy, compiled)


def same(own: LoopedProgram, whole: Program, came: Array, busy: Array, seed: int) -> CallEnds | None:
    """Assert that loops end as the whole program, which is given."""
    found, expected = ends(own, came, busy), fast.ends(whole, busy, compiled=False)
    assert columns(found) == columns(expected), seed
    return expected


def check(seed: int) -> bool:
    """A random call on links that may be busy, some of its ranks late. Says whether its loops can be run so."""
    rng = random.Random(seed)
    n, name = rng.choice([4, 6, 8, 9]), rng.choice(NAMES)
    made: Schedule = schedule(*name.split("/"), n)
    topology = network(rng, n, made.agents)
    params = Params(
        sharing="fifo", chunk=rng.choice([400, 700, 1000]), channels=rng.choice([0, 1, made.n_steps, made.n_steps]),
        channels_by=rng.choice(["chunk", "step", "step", "step"]), slots=rng.choice([0, 0, 1, 2, 5]),
        o_send=rng.choice([0, 0, 10**5]), o_recv=rng.choice([0, 0, 10**5]), g=rng.choice([0, 10**6]),
        gamma=rng.choice([0, 0, 10**10]), channel_bandwidth=rng.choice([0, 0, 10**10]),
    )  # fmt: skip
    where = (*topology.ranks, *devices(topology, made)[n:])
    tiny = made.n_chunks * (rng.randint(2, 16) * (params.chunk // 4) + 1) * 4  # what the last loop carries
    size = rng.choice([1_000 // n * n * 4, 4_000 // n * n * 4, 4_996 // n * n * 4, tiny, tiny])
    own = StreamedProgram(made, topology, where, params, size, itemsize=4).looped()
    if own is None:
        return False
    late, long = rng.choice([0, 0, 10**4, 10**7]), rng.choice([0, 10**7])
    came = np.array([*(rng.randint(0, late) for _ in range(n)), *[0] * made.agents], np.int64)
    busy = np.array([rng.choice([0, 0, rng.randint(0, long)]) for _ in topology.links], np.int64)
    whole = replace(bind(made, topology, where, params, size, itemsize=4), arrivals=came)
    same(own, whole, came, busy, seed)
    summed = fast.totals(replace(own, one=replace(own.one, arrivals=came)), compiled=False)
    assert _numbers(summed) == _numbers(fast.totals(whole, compiled=False)), seed
    return True


def one_link_each(seed: int) -> tuple[Program, Program]:
    """A random program of which each way is one link of a few, or a chain of them, and what a loop of it holds."""
    rng = random.Random(seed)
    messages, links, rules, arrivals = random_case(rng, contention=True)
    routes = {(m.src, m.dst): (rng.randrange(len(links)),) if rng.random() < 0.9 else m.route for m in messages}
    messages = [replace(m, route=routes[m.src, m.dst], channel=10 * m.dst + m.channel) for m in messages]
    off = rng.choice([{}, {"o_recv": 0, "gamma": 0}, {"o_recv": 0, "gamma": 0}])
    rules = replace(rules, sharing="fifo", barrier=False, **off)
    whole, one = (_by_pair(program_of(messages, links, each, arrivals)) for each in (rules, replace(rules, slots=0)))
    return whole, one


def _by_pair(program: Program) -> Program:
    """The same with one way for each pair, which its channels share."""
    src, dst, hop, links = program.routes
    pairs, first, way = np.unique(np.stack([src, dst]), axis=1, return_index=True, return_inverse=True)
    long = np.diff(hop)[first]
    over = np.concatenate([links[hop[i] : hop[i + 1]] for i in first]).astype(np.int32)
    routes = ProgramRoutes(*pairs.astype(np.int32), np.append(0, np.cumsum(long)).astype(np.int32), over)
    return replace(program, way=way.ravel().astype(np.int32), routes=routes, memo={})


@pytest.mark.thorough
@pytest.mark.usefixtures("from_the_start")
@pytest.mark.parametrize("batch", range(4))
def test_one_loop_of_any_schedule_ends_as_the_program(batch: int) -> None:
    """200 random schedules, in which versions are read between others and channels go by one link, as the heap runs
    them."""
    for seed in range(200 * batch, 200 * batch + 200):
        whole, one = one_link_each(seed)
        rng = random.Random(seed)
        busy = np.array([rng.choice([0, rng.randint(0, 10**6)]) for _ in whole.link_names], np.int64)
        own = LoopedProgram(one, 1, max(1, int(one.sizes.max())), whole.params.slots)
        same(own, whole, whole.arrivals, busy, seed)


def _numbers(totals: Totals | None) -> list[object]:
    return [np.asarray(value).tolist() for value in vars(totals).values()] if totals else []


@pytest.mark.thorough
@pytest.mark.usefixtures("from_the_start")
@batches(1, 30)
def test_loops_end_as_the_whole_program(batch: int) -> None:
    """Of 90 random calls on unequal links, with late ranks, many can be run so, and all of these end alike."""
    assert sum(check(seed) for seed in range(200 + 90 * batch, 290 + 90 * batch)) > 20


def slow(seed: int) -> None:
    """A random call between nodes whose links serve a piece longer than its way takes; its last loop moves 4 bytes."""
    rng = random.Random(seed)
    n = rng.choice([4, 6, 8])
    made: Schedule = schedule("all_reduce", rng.choice(["nvls_tree", "double_binary_tree", "tree"]), n)
    link = Link(rng.choice([10**8, 10**9]), latency_ps=rng.choice([100_000, 500_000]))
    nic = Link(link.bandwidth // rng.choice([1, 2, 4]), latency_ps=link.latency_ps * rng.choice([1, 3]))
    topology = nodes(n, max(2, made.agents), link, nic)
    topology = topology.with_links(
        Link(int(rate) // (1 if rng.random() < 0.8 else 2), latency_ps=int(late))
        for rate, late in zip(topology.bandwidths, topology.latencies, strict=True)
    )
    chunk = rng.choice([400, 1000])
    params = Params(
        sharing="fifo", chunk=chunk, channels=made.n_steps, channels_by="step", slots=rng.choice([0, 1, 2, 5])
    )
    size = made.n_chunks * (rng.randint(8, 30) * chunk + 4)
    where = (*topology.ranks, *devices(topology, made)[n:])
    own = StreamedProgram(made, topology, where, params, size, itemsize=4).looped()
    assert own is not None
    late = rng.choice([0, 0, 10**7])
    came = np.array([*(rng.randint(0, late) for _ in range(n)), *[0] * made.agents], np.int64)
    whole = replace(bind(made, topology, where, params, size, itemsize=4), arrivals=came)
    same(own, whole, came, np.zeros(len(topology.links), np.int64), seed)


@pytest.mark.thorough
@pytest.mark.usefixtures("from_the_start")
def test_a_rest_is_felt_sooner_than_a_piece() -> None:
    """Nodes feel each other later as long as all pieces are whole, and no longer; in the last seeds this shows."""
    for seed in (*range(9), 10, 282, 313, 730, 773):
        slow(seed)


def sizes_in_any_order(seed: int, compiled: bool) -> None:
    """A random call of several sizes: each ends as the program of all its loops; so do those whose ranks come late, and
    the first again."""
    rng = random.Random(seed)
    n, name = rng.choice([4, 6, 8]), rng.choice([*NAMES, *["all_reduce/nvls"] * 10])
    made: Schedule = schedule(*name.split("/"), n)
    topology, chunk = network(rng, n, made.agents), rng.choice([400, 1000])
    params = Params(
        sharing="fifo", chunk=chunk, channels=rng.choice([1, made.n_steps]), channels_by="step",
        slots=rng.choice([0, 1, 2, 3, 5]), o_send=rng.choice([0, 10**5]), o_recv=rng.choice([0, 0, 0, 10**5]),
        g=rng.choice([0, 0, 10**6]), gamma=rng.choice([0, 0, 0, 10**10]),
    )  # fmt: skip
    where = (*topology.ranks, *devices(topology, made)[n:])
    nothing = np.zeros(made.participants, np.int64), np.zeros(len(topology.links), np.int64)
    sizes = [made.n_chunks * (rng.randint(10, 40) * chunk + 4 * rng.randint(0, 1)) for _ in range(4)]
    for size in (*sizes, sizes[0]):
        own = StreamedProgram(made, topology, where, params, size, itemsize=4).looped()
        if own is None:
            return
        whole = bind(made, topology, where, params, size, itemsize=4)
        for came in (nothing[0], rng.choice([nothing[0], nothing[0] + 10**6])):
            late = replace(whole, arrivals=came)
            found, expected = ends(own, came, nothing[1], compiled), fast.ends(late, nothing[1], compiled=False)
            assert columns(found) == columns(expected), seed


@pytest.mark.thorough
@pytest.mark.usefixtures("from_the_start")
@pytest.mark.parametrize("compiled", [False, True])
def test_sizes_leave_nothing_behind(compiled: bool) -> None:
    """Random calls, each of several sizes in any order, end as they are."""
    for seed in range(12):
        sizes_in_any_order(seed, compiled)


@pytest.mark.long
@pytest.mark.parametrize("name", ["all_reduce/nvls_tree", "all_reduce/double_binary_tree"])
def test_a_long_call_is_run_with_the_columns_of_one_loop(name: str) -> None:
    """A call of 128 ranks in 200 loops comes to the same sums as the program of all its transfers, without its
    memory."""
    made: Schedule = schedule(*name.split("/"), 128)
    topology = star(made.n, Link(50 * 10**9, latency_ps=500_000))
    where = (*topology.ranks, *devices(topology, made)[made.n :])
    params = Params(sharing="fifo", chunk=4096, channels=made.n_steps, channels_by="step", slots=2)
    call = StreamedProgram(made, topology, where, params, 4096 * 200 * made.n_chunks, 4)
    found = run(call)
    assert found.program is None
    assert _numbers(found.totals) == _numbers(run(call, Policy(shortcuts=False)).totals)
