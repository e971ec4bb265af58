"""Runs of slots are looked at as wholes, and give what their slots give one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import GB_PER_S, devices, schedule, star

from simcoll.engine.binding import bind
from simcoll.engine.timing_model import Params, dependencies
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Link

OF_RUNS = [
    ("all_reduce", "halving_doubling"),
    ("all_reduce", "hierarchical"),
    ("all_gather", "bruck"),
    ("all_to_all", "bruck"),
    ("reduce_scatter", "recursive_halving"),
    ("broadcast", "scatter_allgather"),
    ("scatter", "binomial"),
]


@given(st.integers(0, 2**32 - 1))
def test_dependencies_of_runs_are_those_of_their_slots(seed: int) -> None:
    """Random schedules: runs overlap, meet their own kind in a step, and move to other slots."""
    random = np.random.default_rng(seed)
    rows = []
    for step in np.sort(random.integers(5, size=15)).tolist():
        src, dst, slot, elsewhere, count = random.integers([4, 4, 8, 8, 4]).tolist()
        rows.append((step, src, slot, dst, random.choice([slot, elsewhere]), random.random() < 0.4, count + 1, 0))
    plan = Schedule.from_rows(rows, collective="all_reduce", algorithm="random", n=4, n_chunks=12)
    of_runs, of_slots = ((*each.reads, *each.chain, each.adds) for each in map(dependencies, (plan, plan.by_slot())))
    assert all(map(np.array_equal, of_runs, of_slots))


@pytest.mark.parametrize("pair", OF_RUNS)
@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12), st.integers(1, 5000), st.sampled_from([0, 8, 64]))
def test_runs_have_the_bytes_of_their_slots(pair: tuple[str, str], n: int, elements: int, chunk: int) -> None:
    """Sizes that chunks do not divide, in one loop and in several."""
    plan, network = schedule(*pair, n), star(n, Link(GB_PER_S, latency_ps=1000))
    of_runs, of_slots = (
        bind(each, network, devices(network, plan), Params(chunk=chunk), 4 * elements, itemsize=4)
        for each in (plan, plan.by_slot())
    )
    assert np.array_equal(of_runs.nbytes, of_slots.nbytes) and np.array_equal(of_runs.step, of_slots.step)
