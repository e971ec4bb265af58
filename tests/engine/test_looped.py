"""Loops run with the columns of one: ranks and links end as in the program of all loops."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from networks import devices, nodes, schedule, star, two_level

from simcoll.engine import fast
from simcoll.engine.binding import bind
from simcoll.engine.longest import longest_ps
from simcoll.engine.looped import looped
from simcoll.engine.run import Policy, StreamedProgram, run
from simcoll.engine.timeline import Totals
from simcoll.engine.timing_model import Params
from simcoll.schedule.ir import Schedule
from simcoll.topology.graph import Link, Topology

NAMES = (
    "all_reduce/nvls", *["all_reduce/nvls_tree"] * 4, *["all_reduce/double_binary_tree"] * 3, "all_reduce/tree",
    "all_to_all/direct", "all_reduce/ring", "broadcast/chain", "all_gather/ring", "reduce_scatter/ring",
    "reduce/binomial",
)  # fmt: skip


def network(rng: random.Random, n: int, agents: int) -> Topology:
    """Hosts whose links may differ; one that reduces, or one in each node, or trunks that are too narrow."""
    plain = rng.choice([Link(50 * 10**9, 500_000), Link(10**9, 10**6)])  # on the second many things happen at once
    if agents > 1 and rng.random() < 0.7:
        made = nodes(n, agents, plain, Link(plain.bandwidth // 2, rng.choice([1, 3, 8]) * plain.latency))
    else:
        made = star(n, plain) if agents or rng.random() < 0.5 else two_level(n, plain, 2)
    slow, far, dead = Link(30 * 10**9, 500_000), Link(50 * 10**9, 900_000), Link(0, 500_000)
    near = Link(50 * 10**9, 1)  # felt at once
    shares = rng.choice([[1, 0, 0, 0, 0], [20, 5, 5, 0, 0], [20, 0, 5, 0.1, 0], [10, 0, 5, 0, 10]])
    return made.with_links(rng.choices([plain, slow, far, dead, near], shares, k=len(made.links)))


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
    size = rng.choice([1_000, 4_000, 5_000 - 4]) // n * n * 4
    own = looped(made, topology, where, params, size, itemsize=4)
    if own is None:
        return False
    late, long = rng.choice([0, 0, 10**4, 10**7]), rng.choice([0, 10**7])
    came = np.array([*(rng.randint(0, late) for _ in range(n)), *[0] * made.agents], np.int64)
    busy = np.array([rng.choice([0, 0, rng.randint(0, long)]) for _ in topology.links], np.int64)
    whole = replace(bind(made, topology, where, params, size, itemsize=4), arrivals=came)
    own.ends(came * 0, busy * 0, compiled=False)  # a run leaves nothing behind for the next
    found, expected = own.ends(came, busy, compiled=False), fast.ends(whole, busy, compiled=False)
    assert (found is None) == (expected is None), seed
    if found is not None and expected is not None:
        assert [np.asarray(column).tolist() for column in found] == [np.asarray(c).tolist() for c in expected], seed
    begun, largest = max(int(came.max()), int(busy.max())), int(whole.sizes.max())
    for each in ((own.one, own.loops, own.piece, own.slots), (whole, 1, largest, params.slots)):
        most = longest_ps(*each, compiled=False)
        if most is not None:
            assert expected is not None, seed
            assert expected.over - begun <= most <= 60 * expected.over, seed
    summed = replace(own, one=replace(own.one, arrivals=came)).totals(compiled=False)
    assert _numbers(summed) == _numbers(fast.totals(whole, shortcuts=False, compiled=False)), seed
    return True


def _numbers(totals: Totals | None) -> list[object]:
    return [np.asarray(value).tolist() for value in vars(totals).values()] if totals else []


def test_loops_end_as_the_whole_program() -> None:
    """Of 60 random calls on unequal links, with late ranks, many can be run so, and all of these end alike."""
    assert sum(check(seed) for seed in range(200, 260)) > 20


@pytest.mark.long
@pytest.mark.parametrize("batch", range(10))
def test_loops_end_as_the_whole_program_at_length(batch: int) -> None:
    """The same for 3,000 more."""
    for seed in range(100 + 300 * batch, 400 + 300 * batch):
        check(seed)


@pytest.mark.long
@pytest.mark.parametrize("name", ["all_reduce/nvls_tree", "all_reduce/double_binary_tree"])
def test_a_long_call_is_run_with_the_columns_of_one_loop(name: str) -> None:
    """A call of 128 ranks in 200 loops comes to the same sums as the program of all its transfers, without its
    memory."""
    made: Schedule = schedule(*name.split("/"), 128)
    topology = star(made.n, Link(50 * 10**9, 500_000))
    where = (*topology.ranks, *devices(topology, made)[made.n :])
    params = Params(sharing="fifo", chunk=4096, channels=made.n_steps, channels_by="step", slots=2)
    call = StreamedProgram(made, topology, where, params, 4096 * 200 * made.n_chunks, 4)
    found = run(call)
    assert found.program is None
    assert _numbers(found.totals) == _numbers(run(call, Policy(shortcuts=False)).totals)
