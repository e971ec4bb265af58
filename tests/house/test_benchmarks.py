"""The benchmarks run, and what they compare simcoll with computes the same."""

import importlib

import networkx as nx
import pytest
from command import ROOT
from hypothesis import given
from hypothesis import strategies as st

import simcoll
from simcoll.engine import event
from simcoll.engine.binding import bind
from simcoll.engine.timing_model import Params

rates = st.integers(10**9, 10**11)
LATENCY = 500_000


@pytest.mark.thorough
@given(st.lists(st.tuples(rates, rates), min_size=2, max_size=6), st.integers(1, 10**6))
def test_the_naive_ring_in_simpy_ends_when_ours_does(hosts: list[tuple[int, int]], nbytes: int) -> None:
    """A ratio means something only if both replay the same ring, on whatever links."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from((f"host{i}" for i in range(len(hosts))), kind="host")
    graph.add_node("switch", kind="switch")
    for i, (up, down) in enumerate(hosts):
        graph.add_edge(f"host{i}", "switch", link=simcoll.Link(up, latency_ps=LATENCY))
        graph.add_edge("switch", f"host{i}", link=simcoll.Link(down, latency_ps=LATENCY))
    topology = simcoll.Topology.from_graph(graph)
    schedule = simcoll.build("all_reduce", "ring", len(hosts))
    program = bind(schedule, topology, topology.ranks, Params(sharing="fifo"), nbytes * len(hosts))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        naive = importlib.import_module("benchmarks.naive")
    assert naive.ring(nbytes, *zip(*hosts, strict=True), LATENCY) == event.run(program).makespan_ps


def test_every_kind_of_work_runs() -> None:
    """What the tables are made of, in this process and as small as can be: all ways of running a ring take as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        cases, work = (importlib.import_module(f"benchmarks.{name}") for name in ("cases", "work"))
    star, form = cases.star(8), cases.FORMS["smoke"]
    engines = [{"engine": "event"}, {"shortcuts": "off"}, {}]
    rows = [work.point(cases.point(star, **how), proved=True) for how in engines]
    assert {row["time_ps"] for row in [*rows, work.naive("equal", 8), work.lean(8)]} == {rows[0]["time_ps"]}
    assert [row["how"] for row in rows] == ["event", "heap", "heap"]
    assert work.point(cases.crowd(form.flows, loops=4))["messages"] > 0
    assert all({"what", "cpu s"} <= set(row) for way in ("heap", "stream") for row in work.phases(8, "equal", way))
    assert work.routes({"system": "hgx-h100", "nodes": 2}, pairs=4)["ranks"] == 16
    assert work.sweep(cases.sweep(form.sizes), jobs=1)["points"] > 1
    assert work.points(cases.sizes_of(star, form.points, algorithm="ring"), form.points)["ms/point"] > 0
    assert work.points(cases.replicated(form.points), form.points)["ms/point"] > 0
