"""Many runs of one program at a time are the runs one by one."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.engine import event, fast, rows
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.run import Policy, makespan_ps, run
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
    for _ in range(draw(st.integers(rows.LEAST, 12))):
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


def _held_against_the_definition(programs: list[Program]) -> None:
    kept = rows.run_all([rows.AskedRun(program) for program in programs])
    for program, end, outcome in zip(programs, rows.makespans_ps(programs), kept, strict=True):
        if isinstance(end, SimcollError) or isinstance(outcome, SimcollError):
            with pytest.raises(type(end)):
                event.run(program)
            assert type(end) is type(outcome)
        else:
            assert outcome.timeline == event.run(program)
            assert end == outcome.timeline.makespan_ps == outcome.totals.makespan_ps


@given(sweeps())
@settings(max_examples=5)
def test_a_known_end_is_that_of_a_run(programs: list[Program]) -> None:
    """Programs that differ in any one of their numbers are asked again and again, with shortcuts and without: each has
    the end of a run of its own, and says that it took the shortcut which that takes. One that may not take so long is
    only known to take longer."""
    first, *others = programs[:3]
    changed = [
        replace(first, **{name: getattr(other, name)})
        for other in others
        for name in ("params", "sizes", "bandwidths", "latencies", "arrivals")
        if len(other.sizes) == len(first.sizes)
    ]
    for shortcuts in (False, True, False):
        for program in [first, *changed]:
            alone = fast.totals(program, shortcuts)
            if alone is None:
                with pytest.raises(SimcollError):
                    makespan_ps(program, shortcuts)
            else:
                end = alone.makespan_ps
                for until in (end // 2, end - 1, end):
                    found = makespan_ps(program, shortcuts, until)
                    assert found == end if until >= end else found > until
                whole = run(program, Policy(shortcuts=shortcuts, keep="totals")).totals
                assert (whole.makespan_ps, whole.shortcut) == (alone.makespan_ps, alone.shortcut)
                assert makespan_ps(program, shortcuts) == alone.makespan_ps


@given(sweeps())
@settings(max_examples=12)
def test_rows_are_runs_one_by_one(programs: list[Program]) -> None:
    """Whatever the rows are, each ends when the engine that is the definition says."""
    _held_against_the_definition(programs)


@pytest.mark.long
@given(sweeps())
@settings(max_examples=500)
def test_rows_of_many_sweeps_are_runs_one_by_one(programs: list[Program]) -> None:
    """The same for five hundred sweeps."""
    _held_against_the_definition(programs)


@pytest.mark.parametrize("costs", [{}, {"o_send": 700_000}, {"o_recv": 800_000}, {"g": 900_000}])  # ps; 20 a byte
def test_rows_run_together(costs: dict[str, int]) -> None:
    """Sizes of a ring are one pass: the law would hold as well if each row were run alone."""
    network = star(8, Link(GB_PER_S, latency_ps=1000))
    schedule = build("all_reduce", "ring", 8)
    params = Params(**costs)
    programs = [bind(schedule, network, network.ranks, params, 32 * size, itemsize=4) for size in range(1, 9)]
    assert len({rows._structure(program) for program in programs}) == 1
    together = rows._Rows(programs, kept=True).outcomes(rows.OWN_ORDER)
    assert [each and each.timeline for each in together] == [event.run(program) for program in programs]


def test_rows_in_another_order_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows whose events come in another order than transfers do, one is run alone, and the others as it went."""
    network = star(8, Link(GB_PER_S, latency_ps=50_000))
    schedule, params = build("all_reduce", "double_binary_tree", 8), Params(sharing="fifo", chunk=64, o_recv=40_000)
    programs = [bind(schedule, network, network.ranks, params, 8 * size, itemsize=4) for size in range(20, 28)]
    assert not any(rows._Rows(programs, kept=True).outcomes(rows.OWN_ORDER))
    alone: list[Program] = []
    run = rows.run
    monkeypatch.setattr(rows, "run", lambda program, policy: (alone.append(program), run(program, policy))[1])
    together = rows.run_all([rows.AskedRun(program) for program in programs])
    assert [each.timeline for each in together] == [event.run(program) for program in programs]
    assert [each.totals.shortcut for each in together] == [run(program).totals.shortcut for program in programs]
    assert len(alone) == 1


def test_garbage_is_looked_for_seldom_meanwhile() -> None:
    """Python looks seldom while steps are answered, then as before, also after errors; never if it never did."""
    two = star(2, Link(GB_PER_S, latency_ps=0))

    def asked() -> rows.RunSteps[tuple[int, ...]]:
        yield rows.AskedRun(bind(build("barrier", "dissemination", 2), two, two.ranks, Params(), 0))
        return gc.get_threshold()

    def refused() -> rows.RunSteps[None]:
        yield from asked()
        raise SimcollError("refused")

    usual = gc.get_threshold()
    try:
        for before, meanwhile in (((700, 10, 10), (100_000, 50, 100)), ((0, 10, 10), (0, 10, 10))):
            gc.set_threshold(*before)
            assert [rows.answered(asked()), *rows.all_answered([asked()])] == [meanwhile] * 2
            with pytest.raises(SimcollError):
                rows.answered(refused())
            assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*usual)
