"""Programs that share their columns and differ in numbers: none leaves anything behind for another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.engine import event
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.run import makespan_ps, run
from simcoll.engine.timing_model import Params
from simcoll.errors import SimcollError
from simcoll.schedule.algorithms import build
from simcoll.topology.graph import Link
from tests.helpers.networks import GB_PER_S, full_mesh, star

ALGORITHMS = [
    ("all_reduce", "ring"),
    ("all_reduce", "double_binary_tree"),
    ("all_to_all", "direct"),
    ("broadcast", "chain"),
    ("all_gather", "recursive_doubling"),
]


@st.composite
def sweeps(draw: st.DrawFn) -> list[Program]:
    """Programs of one schedule: other sizes, unequal links, overheads, latencies, ranks that come late; one may have a
    dead link."""
    n = draw(st.sampled_from([2, 4, 5, 8]))
    collective, algorithm = draw(
        st.sampled_from([pair for pair in ALGORITHMS if n & (n - 1) == 0 or "rec" not in pair[1]])
    )
    build_network = draw(st.sampled_from([star, full_mesh]))
    network = build_network(n, Link(GB_PER_S, latency_ps=1000))
    schedule = build(collective, algorithm, n)
    sharing = draw(st.sampled_from(["fair", "fifo"]))
    own: dict[str, Any] = {"sharing": sharing, "channels": draw(st.sampled_from([0, 1, 2]))}
    own |= {
        "slots": draw(st.sampled_from([0, 1])),
        "barrier": draw(st.booleans()),
        "chunk": draw(st.sampled_from([0, 64])),
    }
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found, links, near = [], len(network.links), draw(st.booleans())
    unequal = rng.integers(10**7, 10**10, links), rng.integers(1, 10**6, links)
    equal = np.full(links, GB_PER_S), np.full(links, 1000)  # on which much happens at the same time
    shared = unequal if rng.integers(0, 2) else equal
    for _ in range(draw(st.integers(4, 12))):
        costs = {name: int(rng.integers(0, 2) * rng.integers(1, 5000)) for name in ("o_send", "o_recv", "g")}
        costs |= {name: int(rng.integers(0, 2) * rng.integers(1, 10**10)) for name in ("gamma", "channel_bandwidth")}
        even = bool(rng.integers(0, 2))
        bandwidths = np.full(links, GB_PER_S) if even else rng.integers(10**7, 10**10, links)
        rates = shared if near else (bandwidths, rng.integers(1, 10**6, links))  # near: events mostly in one order
        rated = network.with_rates(*rates)
        late = {int(rank): int(rng.integers(0, 10**7)) for rank in range(n)} if rng.integers(0, 2) else {}
        nbytes = int(rng.integers(1, 40)) * n * 4
        found.append(bind(schedule, rated, rated.ranks, Params(**own, **costs), nbytes, itemsize=4, arrivals=late))
    if draw(st.integers(0, 9)) == 0:
        dead = found[0].bandwidths.copy()
        dead[int(rng.integers(0, len(dead)))] = 0
        found[0] = replace(found[0], bandwidths=dead)
    return found


@given(sweeps())
@settings(max_examples=12)
def test_runs_of_a_sweep_are_the_definition(programs: list[Program]) -> None:
    """Each ends as the definition says, or fails as that does."""
    for program in programs:
        try:
            whole = event.run(program)
        except SimcollError as error:
            with pytest.raises(type(error)):
                run(program)
            continue
        found = run(program)
        assert found.timeline == whole
        assert found.totals.makespan_ps == makespan_ps(program) == whole.makespan_ps


@given(sweeps())
@settings(max_examples=5)
def test_a_known_end_is_that_of_a_run(programs: list[Program]) -> None:
    """Programs that differ in any one of their numbers are asked again and again: each has the end of a run of its own.
    One that may not take so long is only known to take longer."""
    first, *others = programs[:3]
    changed = [
        replace(first, **{name: getattr(other, name)})
        for other in others
        for name in ("params", "sizes", "bandwidths", "latencies", "arrivals")
        if len(other.sizes) == len(first.sizes)
    ]
    for _ in range(2):
        for program in [first, *changed]:
            try:
                end = event.run(program).makespan_ps
            except SimcollError:
                with pytest.raises(SimcollError):
                    makespan_ps(program)
                continue
            for until in (end // 2, end - 1, end):
                found = makespan_ps(program, until=until)
                assert found == end if until >= end else found > until
            assert makespan_ps(program) == end
