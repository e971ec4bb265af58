"""The bound of a collective on a network is the optimum, and synthesised schedules reach it: against known optima
(validation/synthesis.yaml), brute force over all cuts, and the simulator."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import yaml
from matplotlib.colors import to_hex, to_rgba
from matplotlib.patches import FancyBboxPatch

import simcoll
from simcoll.errors import InputError, RefusedError
from simcoll.explanation.candidates import candidates
from simcoll.report.plot.topology import LANES, MARKED, layout_of
from simcoll.synthesis import linear_programs
from simcoll.synthesis.bounds import by_cut
from simcoll.synthesis.flow_graph import FlowGraph
from simcoll.synthesis.symmetry import orbits_of
from simcoll.synthesis.synthesize import COLLECTIVES, bound_of, load_of, plan_of, rate_of

ORACLES = yaml.safe_load((Path(__file__).parents[2] / "validation" / "synthesis.yaml").read_text(encoding="utf-8"))
BALANCED = [oracle for oracle in ORACLES if oracle["name"] != "star8-unb"]
QUICK = [oracle for oracle in BALANCED if oracle["name"] != "mi250x2"]
SIZE = 2**30


def network(links: Mapping[tuple[str, str], int], name: str = "net") -> simcoll.Topology:
    """Return a topology of directed links in GB/s; devices whose names are numbers are GPUs, all others switches."""
    graph = nx.DiGraph()
    for end in dict.fromkeys(itertools.chain.from_iterable(links)):
        graph.add_node(end, kind="gpu" if end.isdigit() else "switch")
    for (u, v), rate in links.items():
        graph.add_edge(u, v, bandwidth=f"{rate} GB/s", latency="1 us")
    return simcoll.Topology.from_graph(graph, name=name)


def links_of(oracle: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return the links of an entry of the file, with GB/s."""
    found = {}
    for rate, pairs in oracle.get("both", {}).items():
        for u, v in (pair.split("-") for pair in pairs.split()):
            found |= {(u, v): rate, (v, u): rate}
    for rate, pairs in oracle.get("one_way", {}).items():
        found |= {tuple(pair.split("-")): rate for pair in pairs.split()}
    return found


def of(oracle: Mapping[str, Any]) -> tuple[simcoll.Topology, list[str]]:
    """Return the topology of an entry, and the devices of its ranks."""
    return network(links_of(oracle), oracle["name"]), [str(rank) for rank in range(oracle["ranks"])]


def torus_of(side: int) -> tuple[simcoll.Topology, list[str]]:
    """Return a square torus of equal links, and its ranks."""
    ends = nx.grid_2d_graph(side, side, periodic=True).to_directed().edges
    return network({(str(a * side + b), str(c * side + d)): 25 for (a, b), (c, d) in ends}), list(
        map(str, range(side * side))
    )


def names(oracles: list[Any]) -> Any:
    """Return the parameters of a test: a case for each entry."""
    return pytest.mark.parametrize("oracle", oracles, ids=lambda oracle: oracle["name"])


@names(BALANCED)
def test_bounds_are_the_known_optima(oracle: dict[str, Any]) -> None:
    """Bounds are equal to the known fractions."""
    topology, places = of(oracle)
    gathered, scattered = (bound_of(name, topology, places).rate for name in ("all_gather", "reduce_scatter"))
    assert gathered == Fraction(oracle["all_gather"]) * 10**9
    assert 1 / (1 / gathered + 1 / scattered) == Fraction(oracle["plain"]) * 10**9
    reduced = bound_of("all_reduce", topology, places)
    assert reduced.exact and reduced.rate == Fraction(oracle.get("all_reduce", oracle["plain"])) * 10**9


def brute_force(graph: FlowGraph) -> Fraction:
    """Return the least ratio, over all sets with a rank outside, of the bandwidth out to the ranks inside."""
    ranks, size = set(graph.ranks.tolist()), len(graph.names)
    edges = list(zip(graph.tails.tolist(), graph.heads.tolist(), graph.capacity.tolist(), strict=True))
    best = None
    for bits in range(1, 2**size):
        inside = {vertex for vertex in range(size) if bits >> vertex & 1}
        if 0 < len(inside & ranks) < len(ranks):
            out = sum(rate for u, v, rate in edges if u in inside and v not in inside)
            ratio = Fraction(out, len(inside & ranks))
            best = ratio if best is None else min(best, ratio)
    assert best is not None
    return best


def random_network(draw: random.Random, most: int) -> tuple[simcoll.Topology, list[str]]:
    """Return a connected network of links that are as wide both ways, so that all switches are balanced."""
    n, switches = draw.randint(2, max(2, most - 3)), draw.randint(0, 3)
    ends = [str(rank) for rank in range(n)] + [f"s{switch}" for switch in range(switches)]
    draw.shuffle(ends)
    pairs = [(ends[i], ends[draw.randrange(i)]) for i in range(1, len(ends))]
    pairs += [tuple(draw.sample(ends, 2)) for _ in range(draw.randint(0, 2 * len(ends)))]
    rates = {frozenset(pair): draw.choice([1, 2, 3, 5, 10]) for pair in pairs}
    return network({(u, v): rate for pair, rate in rates.items() for u, v in itertools.permutations(pair)}), [
        str(rank) for rank in range(n)
    ]


@pytest.mark.parametrize(
    ("seeds", "most"), [(range(40), 8), pytest.param(range(40, 2000), 12, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_random_networks(seeds: range, most: int) -> None:
    """The bound is that of brute force over all cuts, its witness has this ratio, and trees reach it."""
    for seed in seeds:
        topology, places = random_network(random.Random(seed), most)
        graph = FlowGraph.of(topology, places)
        bound = by_cut("all_gather", graph)
        assert bound.rate == brute_force(graph) * len(places) * graph.unit, seed
        out = sum(topology.link(*link.split("->")).bandwidth for link in bound.links)
        assert Fraction(out, sum(place in bound.devices for place in places)) * len(places) == bound.rate, seed
        plan = plan_of("all_gather", topology, places)
        assert plan.rate == bound.rate, seed
        simcoll.prove(plan.schedule(2), "full")


@names([oracle for oracle in QUICK if oracle["ranks"] <= 9])
def test_every_collective_reaches_its_bound(oracle: dict[str, Any]) -> None:
    """Schedules are proved, use only links that exist, and load none beyond the bound; plans of few steps are right."""
    topology, places = of(oracle)
    for collective in COLLECTIVES:
        plan = plan_of(collective, topology, places, root=1)
        schedule = plan.schedule(3)
        simcoll.prove(schedule, "full")
        assert rate_of(schedule, topology, places) == plan.bound.rate
        assert load_of(schedule, topology, places).any()
        few = plan_of(collective, topology, places, root=1, few_steps=True)
        simcoll.prove(few.schedule(1), "full")
        assert few.rate <= plan.bound.rate


def simulated(topology: simcoll.Topology, collective: str, size: int = SIZE, **keys: Any) -> Any:
    """Return the row of a synthesised schedule under `ideal`."""
    asked = {
        "topology": topology,
        "collective": collective,
        "algorithm": "synthesized",
        "size": size,
        "profile": "ideal",
    }
    (row,) = simcoll.run(asked | keys)
    assert row["status"] == "ok"
    return row


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
@names([*(oracle for oracle in QUICK if oracle["name"] in ("2x4-nic", "star8-slow", "asym5")),
        *(pytest.param(oracle, marks=pytest.mark.long) for oracle in BALANCED)])  # fmt: skip
def test_simulated_time_is_near_the_optimum(oracle: dict[str, Any], collective: str) -> None:
    """The simulated time is at least the bound, and at most 1 + height / pieces times the bound."""
    made = simcoll.synthesize(collective, topology=of(oracle)[0], size=SIZE).made
    plan, least_us = made.plan, made.plan.bound.time_ps(SIZE) / 1e6
    assert least_us <= made.prediction.time_ps / 1e6 <= least_us * (1 + plan.height / plan.pieces(SIZE)) * 1.001


def test_more_bandwidth_never_lowers_the_bound_and_scale_scales_it() -> None:
    """More bandwidth never lowers the bound, and other names of ranks change nothing."""
    draw = random.Random(7)
    for _ in range(30):
        topology, places = random_network(draw, 9)
        links = {ends: int(rate) // 10**9 for ends, rate in zip(topology.links, topology.bandwidths, strict=True)}
        rate = bound_of("all_gather", topology, places).rate
        wider = links | {ends: 2 * links[ends] for ends in draw.sample(sorted(links), 1)}
        assert bound_of("all_gather", network(wider), places).rate >= rate
        assert (
            bound_of("all_gather", network({ends: 3 * width for ends, width in links.items()}), places).rate == 3 * rate
        )
        order = draw.sample(places, len(places))
        assert bound_of("all_gather", topology, order).rate == rate


@names([oracle for oracle in ORACLES if "one_tree" in oracle])
def test_one_tree_loses_what_it_must_and_says_so(oracle: dict[str, Any]) -> None:
    """With one tree a root an all_gather is as fast as is known, and the plan says what that loses."""
    plan = plan_of("all_gather", *of(oracle), max_trees=1)
    simcoll.prove(plan.schedule(1), "full")
    assert float(plan.rate / 10**9) == pytest.approx(oracle["one_tree"], abs=1e-4)
    assert plan.loss == pytest.approx(1 - oracle["one_tree"] / float(Fraction(oracle["all_gather"])), abs=1e-5)


def test_few_trees_may_use_a_link_of_a_switch_one_way() -> None:
    """Whole numbers of few trees may leave a switch with links out alone, or in: they carry nothing."""
    topology, places = random_network(random.Random(5099), 8)
    for most in (1, 2, 3):
        plan = plan_of("all_reduce", topology, places, max_trees=most)
        simcoll.prove(plan.schedule(1), "full")
        assert rate_of(plan.schedule(1), topology, places) == plan.rate <= plan.bound.rate


def test_an_unbalanced_switch_is_balanced() -> None:
    """Switches that only copy what they get cannot send more than that: a star with 10 GB/s up and 50 GB/s down."""
    links = {(str(rank), "s"): 10 for rank in range(8)} | {("s", str(rank)): 50 for rank in range(8)}
    topology, places = network(links), [str(rank) for rank in range(8)]
    bound = bound_of("all_gather", topology, places)
    assert (bound.kind, bound.rate) == ("lp", Fraction(80, 7) * 10**9)
    assert plan_of("all_gather", topology, places).rate == bound.rate


def test_what_cannot_be_is_refused() -> None:
    """Points without a schedule raise RefusedError."""
    topology = network({("0", "1"): 1, ("1", "0"): 1, ("1", "2"): 1, ("2", "1"): 1})
    with pytest.raises(RefusedError, match="two ranks"):
        plan_of("all_gather", topology, ["0"])
    with pytest.raises(RefusedError, match="barrier"):
        plan_of("barrier", topology, ["0", "1"])
    with pytest.raises(RefusedError, match="several ranks"):
        plan_of("all_gather", topology, ["0", "0"])


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_odd_rates_need_few_chunks(collective: str) -> None:
    """Where the optimum divides data into thousands of parts, a schedule has a few chunks of each rank, and loses
    little."""
    rates = [10007, 10009, 9973, 10037]
    links = {(str(i), str((i + 1) % 4)): rate for i, rate in enumerate(rates)}
    topology, places = network(links | {(v, u): rate for (u, v), rate in links.items()}), list("0123")
    plan = plan_of(collective, topology, places)
    simcoll.prove(plan.schedule(1), "full")
    assert plan.chunks <= 4 * 512 and plan.loss < 0.01


@pytest.mark.parametrize("name", ["star8", "ring8"])
def test_small_sizes_take_few_steps(name: str) -> None:
    """A tiny all_reduce takes one step, and hardly more time than the latency to the farthest rank; this is the bound
    of all doors."""
    topology, _ = of(next(oracle for oracle in ORACLES if oracle["name"] == name))
    row = simulated(topology, "all_reduce", 32)
    assert (row["steps"], row["algorithm"], row["bound_kind"]) == (1, "synthesized", "latency")
    assert row["lower_bound_us"] <= row["time_us"] < 1.01 * row["lower_bound_us"]
    made = simcoll.synthesize("all_reduce", topology=topology, size=32)
    assert (made["time_us"], made["optimum_us"]) == (row["time_us"], row["lower_bound_us"])
    assert "the latency to the farthest rank" in made.text


def test_results_have_the_exact_bound() -> None:
    """The lower bound of any algorithm on a small network is the exact optimum, and `bound_kind` says so."""
    topology, places = of(next(oracle for oracle in ORACLES if oracle["name"] == "2x4-2nic"))
    size = 8 * 2**20
    (row,) = simcoll.run(topology=topology, collective="all_gather", algorithm="ring", size=size, profile="one-port")
    bound = bound_of("all_gather", topology, places)
    assert (row["bound_kind"], row["lower_bound_us"]) == ("cut", bound.time_ps(size) / 1e6)


def test_explain_shows_the_narrowest_cut() -> None:
    """Two nodes with two NICs of 10 GB/s each: all that leaves a node crosses them."""
    topology, _ = of(next(oracle for oracle in ORACLES if oracle["name"] == "2x4-2nic"))
    asked = {"topology": topology, "algorithm": "ring", "size": 2**20, "profile": "one-port"}
    for collective, half in (("all_gather", ""), ("all_reduce", ", of all_gather")):
        found = simcoll.explain({"collective": collective, **asked}, what_if=False)
        cut = found["points"][0]["cut"]
        assert cut["bound_GBps"] == 40 and all("nic" in name for name in cut["links"])
        assert f"narrowest cut{half}: all that goes" in found.text and "2 links of 10 GB/s" in cut["text"]


@pytest.mark.parametrize(("name", "collective"), [("2x4-2nic", "all_gather"), ("asym5", "reduce_scatter")])
def test_pictures_mark_the_cut_and_trees_that_span(name: str, collective: str) -> None:
    """Red lines are the links of the cut that the text prints, red boxes its smaller side; each tree reaches all
    ranks."""
    topology, places = of(next(oracle for oracle in ORACLES if oracle["name"] == name))
    made = simcoll.synthesize(collective, topology=topology, size="1 MiB")
    boxes, lines, marked = layout_of(made.made.plan.topology).boxes, dict[str, set[frozenset[str]]](), set[str]()

    def device(x: float, y: float) -> str:
        return min(boxes, key=lambda each: (boxes[each].x - x) ** 2 + (boxes[each].y - y) ** 2)

    for shape in made.plot().axes[0].patches:
        points = shape.get_path().vertices
        if isinstance(shape, FancyBboxPatch):
            if shape.get_facecolor() == to_rgba(MARKED):
                marked.add(device(*points[:, :2].mean(axis=0)))
        else:
            lines.setdefault(to_hex(shape.get_edgecolor()).upper(), set()).add(
                frozenset({device(*points[0]), device(*points[-1])})
            )
    witness = made["witness"]["links"]
    assert lines[MARKED] == {frozenset(link.split("->")) for link in witness}
    assert all(link in made.text for link in witness)
    assert marked in (set(made["witness"]["devices"]), set(topology.kinds) - set(made["witness"]["devices"]))
    trees = [nx.Graph(map(tuple, lines[color])) for color in LANES if color in lines]
    assert trees and all(nx.is_connected(tree) and set(places) <= set(tree) for tree in trees)


def test_recommend_ends_with_what_can_be_had() -> None:
    """On a slow star two trees beat what is named, and the last line says by how much."""
    topology, _ = of(next(oracle for oracle in ORACLES if oracle["name"] == "asym5"))
    asked = {"topology": topology, "collective": "all_gather", "size": "4 MiB", "profile": "one-port"}
    advice = simcoll.recommend(asked, among=["ring", "direct"])
    found = advice["recommendations"][0]["attainable"]
    assert found["synthesized_us"] < found["time_us"] and found["bound_kind"] == "cut"
    assert "a synthesised schedule is" in advice.text
    assert " ".join(f"--set {each}" for each in found["synthesized_by"]) in advice.text
    (row,) = simcoll.run(simcoll.load(asked, found["synthesized_by"]))
    assert row["time_us"] == found["synthesized_us"]


def test_recommend_takes_a_schedule_that_is_made() -> None:
    """It is a choice if the scenario or `among` names it, with the time that `run` gives; a misspelt one is told."""
    topology, _ = of(next(oracle for oracle in ORACLES if oracle["name"] == "asym5"))
    asked = {"topology": topology, "collective": "all_gather", "size": "4 MiB", "profile": "one-port"}
    (row,) = simcoll.run(asked, algorithm="synthesized")
    one = simcoll.recommend(asked, among=["direct", "synthesized"])["recommendations"][0]["sizes"][0]
    assert {"synthesized": row["time_us"]}.items() <= {
        one["choice"]: one["time_us"], one["runner_up"]: one["runner_up_us"],
    }.items()  # fmt: skip
    named = [candidate.algorithm for candidate in candidates(simcoll.load(asked)[0].scenario, ["ring", "synthesized"])]
    assert named.count("synthesized") == 1
    with pytest.raises(InputError, match="did you mean 'synthesized'"):
        simcoll.run(asked, algorithm="synthesised")


def test_a_schedule_is_made_for_kernels_of_nccl() -> None:
    """It runs in the quickest protocol, and `recommend` tries each."""
    asked = {"topology": "hgx-h100", "collective": "all_gather", "size": "1 MiB"}
    advice = simcoll.recommend(asked, among=["synthesized"])["recommendations"][0]["sizes"][0]
    (row,) = simcoll.run(asked, algorithm="synthesized")
    assert (row["algorithm"], row["time_us"]) == ("synthesized", advice["time_us"])


@names([oracle for oracle in ORACLES if oracle["ranks"] <= 9])
def test_what_is_alike_has_one_variable(oracle: dict[str, Any]) -> None:
    """The program of an all_to_all on one rank of each kind gives the bound that all ranks give."""
    topology, places = of(oracle)
    graph = FlowGraph.of(topology, places)
    found, whole = (linear_programs.all_to_all(graph, of_kinds)[0] for of_kinds in (True, False))
    assert found.rate == whole.rate and found.exact == whole.exact


def test_alike_is_checked() -> None:
    """A ring of equal links turns; with one link wider it does not, and only the wide link's ends are alike."""
    pairs = [(str(a), str((a + 1) % 6)) for a in range(6)]
    ring = {ends: 25 for pair in pairs for ends in (pair, pair[::-1])}
    for wider, orbits in (({}, 1), ({("0", "1"): 50, ("1", "0"): 50}, 3), ({("0", "1"): 50}, 6)):
        found = orbits_of(FlowGraph.of(network(ring | wider), [str(rank) for rank in range(6)]))
        assert len(set(found.vertices.tolist())) == orbits
    torus, places = torus_of(8)
    assert len(set(orbits_of(FlowGraph.of(torus, places)).edges.tolist())) == 1


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_trees_on_a_torus_are_as_low_as_can_be(collective: str) -> None:
    """The farthest host of a 6 × 6 torus is 6 hops away, and no tree is higher."""
    plan = plan_of(collective, *torus_of(6), max_trees=1)
    assert plan.height == 6 * (2 if collective == "all_reduce" else 1)


@pytest.mark.thorough
def test_switches_that_share_a_port_stay_balanced() -> None:
    """GPUs that share a switch leave another switch balanced when theirs is removed, so that trees are found."""
    topology = simcoll.Topology.load("hgx-h100", nodes=4)
    plan = plan_of("all_gather", topology, topology.ranks)
    assert plan.loss < 0.005


@pytest.mark.thorough
def test_an_all_reduce_of_equal_nodes_reaches_its_bound() -> None:
    """16 nodes of 8 GPUs, each with a NIC behind PCIe: a unit crosses 4 · 15 times a direction of 128 PCIe links."""
    topology = simcoll.Topology.load("dgx-a100", nodes=16)
    plan = plan_of("all_reduce", topology, topology.ranks)
    pcie = int(topology.bandwidths[list(topology.link_names).index("node0.pcie_switch0->node0.gpu0")])
    assert plan.rate == plan.bound.rate == Fraction(2 * 128 * pcie, 60)


@pytest.mark.long
def test_a_cluster_of_equal_nodes_reaches_its_bound() -> None:
    """16 nodes of 8 GPUs with a NIC each: trees of height 2 use the NICs as the bound asks."""
    topology = simcoll.Topology.load("dgx-a100", nodes=16)
    plan = plan_of("all_gather", topology, topology.ranks)
    assert (plan.rate, plan.height) == (plan.bound.rate, 2)
    simcoll.prove(plan.schedule(1), "full")
