"""Switches that add and copy: the bound counts them, synthesised schedules reach it, and no shipped algorithm beats
it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Collection, Mapping
from fractions import Fraction
from pathlib import Path

import networkx as nx
import pytest

import simcoll
from simcoll.errors import SimcollError
from simcoll.formats.schedules import schedule_json
from simcoll.schedule.registry import ALGORITHMS
from simcoll.synthesis.synthesize import SERVED, bound_of, plan_of, rate_of

GB = 10**9


def network(links: Mapping[tuple[str, str], int], adding: Collection[str]) -> simcoll.Topology:
    """Return a topology of directed links in GB/s; numbers are GPUs, all others switches, of which some add."""
    graph = nx.DiGraph()
    for end in dict.fromkeys(itertools.chain.from_iterable(links)):
        graph.add_node(end, kind="gpu" if end.isdigit() else "switch", in_network=end in adding)
    for (u, v), rate in links.items():
        graph.add_edge(u, v, bandwidth=f"{rate} GB/s", latency="1 us")
    return simcoll.Topology.from_graph(graph, name="net")


def both(links: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Return links that are as wide in both directions."""
    return {**links, **{(v, u): rate for (u, v), rate in links.items()}}


def star(n: int, rate: int, adding: bool = True) -> simcoll.Topology:
    """Return a star of n GPUs around a switch."""
    return network(both({(str(rank), "s"): rate for rank in range(n)}), ["s"] if adding else [])


def clos(leaves: int, hosts: int, spines: int, rate: int, up: int, adding: str) -> simcoll.Topology:
    """Return leaf switches with hosts, each joined to all spines; names that begin with a letter of `adding` add."""
    links = {(str(leaf * hosts + host), f"l{leaf}"): rate for leaf in range(leaves) for host in range(hosts)}
    links |= {(f"l{leaf}", f"s{spine}"): up for leaf in range(leaves) for spine in range(spines)}
    switches = {end for pair in links for end in pair if end[0] in adding}
    return network(both(links), switches)


@pytest.mark.parametrize(("n", "rate"), [(2, 10), (8, 50), (13, 25)])
def test_a_star_reduces_at_the_rate_of_a_link(n: int, rate: int) -> None:
    """Sums in the switch take S/B, without them 2S(n−1)/(nB); the other collectives of a balanced star gain nothing."""
    topology, plain = star(n, rate), star(n, rate, adding=False)
    plan = plan_of("all_reduce", topology, topology.ranks)
    assert plan.rate == plan.bound.rate == rate * GB
    assert (plan.height, plan.trees) == (2, 2)
    assert bound_of("all_reduce", plain, plain.ranks).rate == Fraction(n * rate * GB, 2 * (n - 1))
    for collective in set(SERVED) - {"all_reduce"}:
        bounds = [bound_of(collective, each, each.ranks).rate for each in (topology, plain)]
        assert bounds[0] == bounds[1] == plan_of(collective, topology, topology.ranks).rate
    assert plan_of("broadcast", topology, topology.ranks).height == min(2, n - 1)


def test_a_star_with_a_slow_link_reduces_at_its_rate() -> None:
    """All data must leave and enter each rank once, and need cross no link twice."""
    links = both({(str(rank), "s"): 50 for rank in range(8)}) | {("3", "s"): 20, ("s", "5"): 30}
    topology = network(links, ["s"])
    plan = plan_of("all_reduce", topology, topology.ranks)
    assert plan.rate == plan.bound.rate == 20 * GB


def test_a_switch_that_copies_need_not_be_balanced() -> None:
    """Of 10 GB/s up and 50 GB/s down, copies fill both; sums do where links are as wide the other way round."""
    up, down = {(str(rank), "s"): 10 for rank in range(8)}, {("s", str(rank)): 50 for rank in range(8)}
    turned = {(v, u): rate for (u, v), rate in (up | down).items()}
    for collective, links in (("all_gather", up | down), ("reduce_scatter", turned)):
        topology = network(links, ["s"])
        plan = plan_of(collective, topology, topology.ranks)
        simcoll.prove(plan.schedule(3), "full")
        assert (plan.bound.kind, plan.rate, plan.bound.rate) == ("cut", *[Fraction(400, 7) * GB] * 2)
        assert bound_of(collective, network(links, []), topology.ranks).rate == Fraction(80, 7) * GB


@pytest.mark.parametrize(
    ("topology", "rate"),
    [
        (clos(4, 4, 4, 50, 12, "ls"), 48),  # each spine adds a quarter
        (clos(4, 4, 2, 50, 100, "s"), 50),  # spines alone add; leaves pass on what they get
        (clos(4, 4, 2, 50, 100, "l"), 50),
        (network(both({(str(rank), s): 25 for rank in range(6) for s in "ab"}), "ab"), 50),
        (network(both({("0", "a"): 10, ("1", "a"): 10, ("a", "b"): 5, ("b", "2"): 10, ("b", "3"): 10}), "ab"), 5),
    ],
    ids=["clos", "spines", "leaves", "two planes", "two switches"],
)
def test_several_switches_share_the_sums(topology: simcoll.Topology, rate: int) -> None:
    """Each rank's data cross its links once each way; trees of whole numbers reach that, and are proved."""
    plan = plan_of("all_reduce", topology, topology.ranks)
    simcoll.prove(plan.schedule(3), "full")
    assert plan.rate == plan.bound.rate == rate * GB


def random_network(draw: random.Random) -> simcoll.Topology:
    """Return a connected network of links that are as wide both ways; some of its switches add."""
    ends = [str(rank) for rank in range(draw.randint(2, 6))] + [f"s{switch}" for switch in range(draw.randint(1, 3))]
    draw.shuffle(ends)
    pairs = [(ends[i], ends[draw.randrange(i)]) for i in range(1, len(ends))]
    pairs += [(u, v) for u, v in itertools.combinations(ends, 2) if draw.random() < 0.4]
    links = {pair: draw.choice([1, 2, 3, 5, 10]) for pair in pairs}
    return network(both(links), [end for end in ends if end[0] == "s" and draw.random() < 0.7])


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 150), marks=pytest.mark.thorough)], ids=len)
def test_random_networks(seeds: range) -> None:
    """Plans are right, within 1 % of the bound, and not below what trees without sums reach; no algorithm beats it."""
    for seed in seeds:
        topology = random_network(random.Random(seed))
        places = sorted(topology.ranks)
        for collective in SERVED:
            plan, plain = (plan_of(collective, topology, places, served=served) for served in (True, False))
            simcoll.prove(plan.schedule(2), "full")
            assert 0.99 * plan.bound.rate <= plan.rate <= plan.bound.rate, (seed, collective)
            assert plan.rate >= 0.995 * plain.rate, (seed, collective)
            for name, entry in ALGORITHMS[collective].items():
                near = [] if entry.agent_a_group else topology.agents_for(places)
                if entry.needs_agent <= bool(near):
                    try:
                        schedule = simcoll.build(collective, name, len(places), agents=len(near))
                        found = rate_of(schedule, topology, [*places, *near])
                    except SimcollError:  # not for so many ranks, or without a route
                        continue
                    assert found <= plan.bound.rate, (seed, collective, name)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_nodes_whose_switches_add(nodes: int) -> None:
    """Where NVSwitches add within nodes and NICs join them, trees reach 99.8 % of the bound, which for four nodes is
    that of the NICs: each node's tree of nodes crosses them 2 (nodes − 1) / nodes times. NVLS trees do not beat it."""
    topology = simcoll.Topology.load("hgx-h100", nodes=nodes)
    plan = plan_of("all_reduce", topology, topology.ranks)
    simcoll.prove(plan.schedule(1), "full")
    assert 0.998 * plan.bound.rate <= plan.rate <= plan.bound.rate
    if nodes == 4:
        assert plan.bound.rate == plan.rate == Fraction(8 * 48 * GB * nodes, 2 * (nodes - 1))
    keys = {"topology": {"system": "hgx-h100", "nodes": nodes}, "collective": "all_reduce", "profile": "ideal"}
    name = "nvls_tree" if nodes > 1 else "nvls"
    named, made = (simcoll.run(keys, size="16 MiB", algorithm=each)[0] for each in (name, "synthesized"))
    assert made["lower_bound_us"] <= made["time_us"] <= 1.03 * named["time_us"]
    assert named["lower_bound_us"] <= named["time_us"]


def test_every_door_has_the_same_bound() -> None:
    """A ring on a star with a slow host has the bound that `synthesize` proves, be it by sums in the switch or not."""
    for adding, rate in ((True, 20), (False, 20), (True, 50)):
        links = both({(str(rank), "s"): 50 for rank in range(7)} | {("7", "s"): rate})
        topology = network(links, ["s"] if adding else [])
        made = simcoll.synthesize("all_reduce", topology=topology, size="64 MiB")
        asked = {"topology": topology, "collective": "all_reduce", "size": "64 MiB", "profile": "ideal"}
        for algorithm in ("ring", "synthesized"):
            (row,) = simcoll.run(asked, algorithm=algorithm)
            assert (row["lower_bound_us"], row["bound_kind"]) == (made["optimum_us"], "lp")
        assert made["optimum_us"] <= made["time_us"] <= 1.05 * made["optimum_us"]
        assert made.plot().axes  # trees of a switch, too


def test_a_file_names_switches_by_its_routes(tmp_path: Path) -> None:
    """Where no switch reaches all ranks, routes say which one adds; another network's switches are refused."""
    topology, file = clos(2, 2, 1, 50, 100, "ls"), tmp_path / "made.json"
    made = simcoll.synthesize("all_reduce", topology=topology, size="1 MiB")
    assert made.schedule.agents and set(made.schedule.named_agents.values()) <= set(topology.agents)
    file.write_text(schedule_json.dump(made.schedule))
    keys = {"collective": "all_reduce", "size": "1 MiB", "profile": "ideal", "algorithm": str(file)}
    model = {"sharing": "fifo", "channels_by": "port", "channels": 1, "copies": 1, "chunk": "whole"}
    (row,) = simcoll.run(keys, topology=topology, model=model)
    assert row["time_us"] == made["time_us"]
    assert json.loads(file.read_text())["agents"] == made.schedule.agents
    (row,) = simcoll.run(keys, topology=clos(2, 2, 1, 50, 100, ""))
    assert row["status"].startswith("refused: ") and "that can reduce" in row["status"]


@pytest.mark.thorough
def test_kernels_that_cannot_add_in_switches_get_another_schedule() -> None:
    """NVSwitches add what a kernel of one node loads. Between nodes schedules do without."""
    keys = {"collective": "all_reduce", "size": "1 MiB", "algorithm": "synthesized"}
    rows = [simcoll.run(keys, topology={"system": "hgx-h100", "nodes": nodes})[0] for nodes in (1, 2)]
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert [row["protocol"] == "pull" for row in rows] == [True, False]
