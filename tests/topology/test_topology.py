"""Laws of topologies: what is refused, and what routes are like under every policy."""

from __future__ import annotations

import itertools
import math
import random
import sys
import zlib
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simcoll.config import yaml_tree
from simcoll.config.numpy_helpers import Sets
from simcoll.errors import TopologyError
from simcoll.topology import fabrics
from simcoll.topology.graph import UNREACHED, Link, Topology
from simcoll.topology.topology_builder import bisection_bandwidth, build, dump
from simcoll.topology.topology_keys import TopologySpec

CABLE = {"bandwidth": "50 GB/s", "latency": "0.5 us"}
LINK = Link(50_000_000_000, latency_ps=500_000, kind="cable")


def make(**keys: object) -> Topology:
    """The topology that a scenario's `topology` describes."""
    return build(TopologySpec.model_validate(keys))


def names(topology: Topology, src: str, dst: str) -> list[str]:
    """The devices of a route, which must hang together."""
    hops = [topology.links[link] for link in topology.route(src, dst)]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(hops))
    return [src, *(v for _, v in hops)]


def parted(sets: Sets) -> list[list[int]]:
    """The members of each set."""
    return [part.tolist() for part in np.split(sets.members, sets.first[1:])]


def star(n: int, kind: str = "gpu") -> nx.DiGraph:
    """`n` devices around a switch."""
    graph = nx.DiGraph()
    graph.add_nodes_from((f"d{i}", {"kind": kind}) for i in range(n))
    graph.add_node("s", kind="switch")
    graph.add_edges_from((u, v, {"link": LINK}) for i in range(n) for u, v in ((f"d{i}", "s"), ("s", f"d{i}")))
    return graph


SEVERAL = {
    "switch": {"fabric": "single-switch", "hosts": 5, "link": CABLE},
    "tree": {"fabric": "fat-tree", "hosts": 11, "hosts_per_leaf": 4, "spines": 3, "link": CABLE},
    "three levels": {"fabric": "fat-tree", "levels": 3, "hosts": 24, "spines": 2, "link": CABLE},
    "torus": {"fabric": "torus", "dims": [3, 4], "link": CABLE},
    "cube": {"fabric": "torus", "dims": [2, 3, 3], "link": CABLE},
    "ring": {"fabric": "ring", "hosts": 7, "link": CABLE},
    "mesh": {"fabric": "full-mesh", "hosts": 5, "link": CABLE},
    "cube mesh": {"system": "dgx1-v100"},
    "rails": {"system": "hgx-h100", "nodes": 3},
    "rails, two leaves": {"system": "dgx-a100", "nodes": 3, "nodes_per_leaf": 2, "spines": 2},
    "PCIe tree": {"system": "l40s-pcie", "nodes": 3, "fabric": "fat-tree", "nodes_per_leaf": 1, "spines": 2},
    "routers": {"system": "hgx-b300", "nodes": 4, "fabric": "torus", "dims": [2, 2], "link": CABLE},
}


@pytest.mark.parametrize("policy", [None, "shortest", "ecmp", "rails", "own-nics"])
@pytest.mark.parametrize("name", SEVERAL)
def test_routes_lead_from_source_to_destination(name: str, policy: str | None) -> None:
    """A route is contiguous, ends where it should, and passes no device twice, no third machine and no third GPU
    except between direct links."""
    topology = make(**SEVERAL[name], routing=policy)
    for src, dst in itertools.permutations(topology.ranks, 2):
        way = names(topology, src, dst)
        assert way[-1] == dst and len(set(way)) == len(way)
        kinds = [topology.kinds[device] for device in way]
        for before, here, after, device in zip(kinds, kinds[1:], kinds[2:], way[1:], strict=False):
            proxy = before == "nvswitch" and topology.node_of(device) == topology.node_of(src)
            assert here not in ("gpu", "host") or before == here == after or proxy
        if topology.kinds[src] == "gpu":
            ends = {topology.node_of(src), topology.node_of(dst), None}
            assert {topology.node_of(device) for device in way} <= ends
            assert len(ends) == 3 or "nic" not in kinds


@pytest.mark.parametrize("name", SEVERAL)
def test_routes_do_not_depend_on_what_was_asked_before(name: str) -> None:
    """Routes are the same in whatever order they are asked for, and in every new topology."""
    one, other = make(**SEVERAL[name], routing="ecmp"), make(**SEVERAL[name], routing="ecmp")
    pairs = list(itertools.permutations(one.ranks, 2))
    backwards = {pair: other.route(*pair) for pair in reversed(pairs)}
    assert all(one.route(*pair) == backwards[pair] for pair in pairs)


BARE = ["switch", "tree", "three levels", "torus", "cube", "ring", "mesh"]


SIDE_WAYS = "side ways"


def routed(name: str, policy: str) -> Topology:
    """One of `SEVERAL`; or hosts on three switches: on one with many neighbours, and on two that are linked, each two
    links away from it."""
    if name != SIDE_WAYS:
        return make(**SEVERAL[name], routing=policy)
    switches = [("middle", "root"), ("middle", "left"), ("middle", "right"), ("left", "right")]
    hosts = [(switch, f"{switch}.host") for switch in ("left", "right", "root")]
    graph = nx.DiGraph()
    for u, v in (*switches, *(("root", f"spare{i}") for i in range(6)), *hosts):
        graph.add_edges_from([(u, v), (v, u)], link=LINK)
    nx.set_node_attributes(graph, {device: "host" if "host" in device else "switch" for device in graph}, "kind")
    return Topology.from_graph(graph, routing=policy)


@pytest.mark.parametrize("policy", ["shortest", "ecmp", "rails", "own-nics"])
@pytest.mark.parametrize("name", [*SEVERAL, SIDE_WAYS])
def test_routes_of_many_pairs_are_those_of_each(name: str, policy: str) -> None:
    """Routes put together from shared legs are, link by link, those that are searched for one by one."""
    topology, alone = routed(name, policy), routed(name, policy)
    ranks = topology.ranks
    pairs = list(itertools.product(range(len(ranks)), repeat=2))
    src, dst = np.tile(np.array(pairs).T, -(-3_000 // len(pairs)))
    hop, links = topology.routes(ranks, src, dst)
    for i, (a, b) in enumerate(pairs):
        assert tuple(links[hop[i] : hop[i + 1]].tolist()) == alone.route(ranks[a], ranks[b])
    first = links[: hop[len(pairs)]]
    assert np.array_equal(links, np.resize(first, len(links)))


def any_graph(rng: random.Random) -> nx.DiGraph:
    """GPUs or hosts, some of them in machines with a NIC, around a few switches; some links lead one way only."""
    graph, kind, hub = nx.DiGraph(), rng.choice(["gpu", "host"]), rng.choice(["switch"] * 4 + ["gpu", "host"])
    switches = [f"s{i}" for i in range(rng.randint(1, 3))]
    graph.add_nodes_from(switches, kind="switch")
    graph.add_node("s0", kind=hub)
    graph.add_nodes_from(
        (f"r{i}", {"kind": kind, "node": rng.choice([None, 0, 1, 2])}) for i in range(rng.randint(2, 4))
    )
    graph.add_nodes_from((f"n{i}", {"kind": "nic", "node": i}) for i in range(rng.randint(0, 2)))
    ends = [device for device in graph if device not in switches]
    both = [*itertools.pairwise(switches)]
    for u, v in itertools.combinations(ends, 2):
        (one, home), (other, away) = ((graph.nodes[end]["kind"], graph.nodes[end]["node"]) for end in (u, v))
        both += [(u, v)] * (home == away is not None and "nic" in (one, other))
    ways = [*both, *((v, u) for u, v in both)]
    for device in ends:
        up, down = rng.choices(switches, k=2)
        ways += [(device, up), (rng.choice([up, up, down]), device)]
    more = rng.sample([*itertools.permutations(graph, 2)], rng.randint(0, 3))
    graph.add_edges_from([*rng.sample(ways, len(ways) - rng.randint(0, 1)), *more], link=LINK)
    return graph


@pytest.mark.thorough
@given(st.randoms(use_true_random=False), st.sampled_from(["shortest", "ecmp", "rails", "own-nics"]))
def test_routes_at_once_are_those_of_each_on_any_graph(rng: random.Random, policy: str) -> None:
    """Of few pairs and of many, also where a device is asked for under several numbers, or others before, and where
    links lead one way or routes are given; where there is none, it is refused."""
    graph, routes = any_graph(rng), {}
    try:
        if rng.random() < 0.2:
            u, v = rng.sample(list(graph), 2)
            routes = {f"{u}->{v}": rng.choice([*nx.all_simple_paths(graph, u, v)] or [[u, v]])}
        topology, alone = (Topology.from_graph(graph, routing=policy, routes=routes) for _ in range(2))
    except TopologyError:
        return
    for ends in (rng.sample([*graph], len(graph)), rng.choices([*graph], k=5)):
        routed = {}
        for a, b in itertools.product(range(len(ends)), repeat=2):
            try:
                routed[a, b] = alone.route(ends[a], ends[b])
            except TopologyError:
                for times in (1, 2_000):
                    with pytest.raises(TopologyError):
                        topology.routes(ends, np.full(times, a), np.full(times, b))
        src, dst = np.array([*routed]).T
        for times in (1, 2_000 // len(src) + 1):
            hop, links = topology.routes(ends, np.tile(src, times), np.tile(dst, times))
            assert np.array_equal(np.diff(hop), [*map(len, routed.values())] * times)
            assert np.array_equal(links, [*itertools.chain(*routed.values())] * times)


def test_a_route_takes_as_much_work_in_a_larger_tree() -> None:
    """Law: of a fat tree of three levels, a route between pods looks at the switches of its two pods and at those above
    them, not at all pods: Python calls as many functions in a tree of 32 pods as in one of 8."""

    def calls(pods: int) -> int:
        topology = make(fabric="fat-tree", levels=3, hosts=16 * pods, hosts_per_leaf=4, spines=4, link=CABLE)
        ends, many, counted = topology.ranks[:64:16], np.zeros(3_000, np.int64), Counter[str]()
        topology.routes(ends, many, many + 1)  # finds what hangs on what
        sys.setprofile(lambda frame, event, argument: counted.update([event]))
        try:
            topology.routes(ends, many + 2, many + 3)
        finally:
            sys.setprofile(None)
        return counted["call"]

    assert calls(8) == calls(32) > 0


@pytest.mark.parametrize("dims", [(2, 2), (1, 5), (4, 4), (5, 2), (6, 3), (2, 2, 4), (3, 4, 2), (4, 1, 6), (36, 36)])
def test_routes_on_a_torus_have_a_closed_form(dims: tuple[int, ...]) -> None:
    """They are, link by link, those of the search, also where there are more routes than 32 bits can number; and
    so they are where a cable is missing, where the form does not hold."""
    whole = make(fabric="torus", dims=dims, link=CABLE, routing="ecmp")
    ranks, draw = whole.ranks, np.random.default_rng(0)
    src, dst = draw.integers(len(ranks), size=(2, 2_000))
    few = [*range(25), int(np.argmax(np.diff(whole.routes(ranks, src, dst)[0])))]
    cut = whole.rewired()
    for u, v in (whole.links[0], whole.links[0][::-1]):
        cut.part(u, v)
    for wiring in (whole.rewired(), cut) if len(ranks) < 100 else (whole.rewired(),):
        topology, alone = (Topology(wiring, routing="ecmp") for _ in range(2))
        hop, links = topology.routes(ranks, src, dst)
        for i in few if len(ranks) > 100 else range(2_000):
            assert tuple(links[hop[i] : hop[i + 1]].tolist()) == alone.route(ranks[src[i]], ranks[dst[i]])


@pytest.mark.parametrize("policy", ["shortest", "ecmp"])
@pytest.mark.parametrize("name", [*BARE, SIDE_WAYS])
def test_routes_are_those_of_breadth_first_search(name: str, policy: str) -> None:
    """`shortest` takes, of the routes with fewest hops, the least sequence of links; `ecmp` the one whose place among
    them is CRC-32 of `src->dst` modulo their number."""
    topology = routed(name, policy)
    number = {ends: link for link, ends in enumerate(topology.links)}
    for src, dst in itertools.permutations(topology.ranks, 2):
        paths = nx.all_shortest_paths(topology.graph, src, dst)
        ways = sorted(tuple(number[hop] for hop in itertools.pairwise(path)) for path in paths)
        chosen = zlib.crc32(f"{src}->{dst}".encode()) % len(ways) if policy == "ecmp" else 0
        assert topology.route(src, dst) == ways[chosen]


def test_machines_that_are_not_alike_are_routed_apart() -> None:
    """A slow NVLink sends the traffic of its own machine over PCIe, and of no other."""
    topology = make(system="dgx-a100", nodes=3, links={"node1.gpu0->node1.nvswitch0": {"bandwidth": "1 GB/s"}})
    for node, way in enumerate(("nvswitch0", "pcie_switch0", "nvswitch0")):
        assert names(topology, f"node{node}.gpu0", f"node{node}.gpu1")[1] == f"node{node}.{way}"


def test_the_only_way_may_lead_out_of_the_machine() -> None:
    """GPUs of one machine that hang on nothing but a switch outside it talk over that."""
    graph = star(3)
    nx.set_node_attributes(graph, {"d0": 0, "d1": 0, "d2": 1}, "node")
    for policy in ("shortest", "ecmp", "rails", "own-nics"):
        topology = Topology.from_graph(graph, routing=policy)
        assert all(names(topology, *pair)[1] == "s" for pair in itertools.permutations(topology.ranks, 2))


def test_a_switch_is_an_end_as_well() -> None:
    """Routes from and to a switch, which may reduce, are the direct links, before and after others were asked for."""
    topology = make(**SEVERAL["tree"])
    for _ in range(2):
        assert names(topology, "leaf0", "host1") == ["leaf0", "host1"]
        assert names(topology, "host1", "leaf0") == ["host1", "leaf0"]
        assert names(topology, "host1", "host2") == ["host1", "leaf0", "host2"]


def test_equal_cost_routes_are_spread() -> None:
    """Under ECMP each of 4 spines carries between half and twice its share of the flows between leaves."""
    topology = make(fabric="fat-tree", hosts=32, hosts_per_leaf=8, spines=4, link=CABLE)
    spines = Counter(names(topology, *pair)[2] for pair in itertools.permutations(topology.ranks, 2))
    flows = {spine: spines[spine] for spine in topology.kinds if spine.startswith("spine")}
    assert len(flows) == 4
    share = sum(flows.values()) / 4
    assert all(share / 2 < count < share * 2 for count in flows.values())


def test_rails_use_the_nic_of_the_destination() -> None:
    """Traffic to GPU k leaves through NIC k, over NVLink to the GPU that has it, and stays on rail k."""
    topology = make(system="hgx-h100", nodes=2)
    for i, k in itertools.product(range(8), range(8)):
        way = names(topology, f"node0.gpu{i}", f"node1.gpu{k}")
        proxy = [] if i == k else ["node0.nvswitch0", f"node0.gpu{k}"]
        switch = f"pcie_switch{k}"
        out = [f"node0.gpu{i}", *proxy, f"node0.{switch}", f"node0.nic{k}", f"rail{k}"]
        assert way == [*out, f"node1.nic{k}", f"node1.{switch}", f"node1.gpu{k}"]


def test_rails_without_nvswitch_leave_by_the_own_nic() -> None:
    """Where no NVSwitch joins the GPUs, traffic leaves by the source's nearest NIC and arrives by the destination's."""
    topology = make(system="l40s-pcie", nodes=2)
    for i, k in itertools.product(range(8), range(8)):
        way = names(topology, f"node0.gpu{i}", f"node1.gpu{k}")
        assert f"node0.nic{i // 2}" in way and f"node1.nic{k // 2}" in way


@pytest.mark.parametrize("name", ["hgx-h100", "a100-pcie", "dgx1-v100", "mi300x", "dgx-a100"])
def test_a_gpu_has_a_nic_that_is_nearest(name: str) -> None:
    """What comes to a GPU arrives by a NIC to which no other of its node is nearer; GPUs share those equally near."""
    topology = make(system=name, nodes=2)
    own = {device for device in topology.kinds if topology.node_of(device) == 1}
    nics, shared = [nic for nic in topology.of_kind("nic") if nic in own], dict[tuple[str, ...], list[str]]()
    for gpu in (gpu for gpu in topology.ranks if gpu in own):
        hops = {nic: len(topology.route(nic, gpu)) for nic in nics}
        near = tuple(nic for nic in nics if hops[nic] == min(hops.values()))
        (taken,) = set(near) & set(names(topology, "node0.gpu0", gpu))
        shared.setdefault(near, []).append(taken)
    for near, taken in shared.items():
        assert len(set(taken)) == min(len(near), len(taken))


def test_nvlink_goes_before_pcie() -> None:
    """Two GPUs on one PCIe switch talk over NVLink under every policy, though both ways have two hops."""
    for policy in ("shortest", "ecmp", "rails", "own-nics"):
        topology = make(system="hgx-h100", routing=policy)
        for i, k in itertools.permutations(range(8), 2):
            assert names(topology, f"node0.gpu{i}", f"node0.gpu{k}")[1] == "node0.nvswitch0"


def test_explicit_routes_go_before_all_policies() -> None:
    """A route given by its devices is taken as it stands, with or without its ends."""
    for way in (["gpu1"], ["gpu0", "gpu1", "gpu5"]):
        full = [f"node0.{device}" for device in way]
        topology = make(system="dgx1-v100", routes={"node0.gpu0->node0.gpu5": full})
        assert names(topology, "node0.gpu0", "node0.gpu5") == ["node0.gpu0", "node0.gpu1", "node0.gpu5"]


def test_a_device_reaches_itself_over_its_memory() -> None:
    """The route from a device to itself is its memory link, or empty."""
    gpu = make(system="hgx-h100")
    assert [gpu.link_names[link] for link in gpu.route("node0.gpu3", "node0.gpu3")] == ["node0.gpu3->node0.gpu3"]
    assert make(**SEVERAL["ring"]).route("host1", "host1") == ()


def test_own_graph() -> None:
    """A graph of one's own serves; an undirected edge is two links, and later changes to the graph do not matter."""
    graph = nx.Graph()
    graph.add_nodes_from([("a", {"kind": "host", "node": 0}), ("b", {"kind": "host", "node": 1})])
    graph.add_edge("a", "b", link=LINK)
    topology = Topology.from_graph(graph, name="pair")
    graph.remove_edge("a", "b")
    assert topology.links == (("a", "b"), ("b", "a"))
    assert topology.ranks == ("a", "b") and topology.nodes == 2 and topology.route("b", "a") == (1,)
    assert topology.bandwidths.tolist() == [LINK.bandwidth] * 2 and topology.latencies.tolist() == [LINK.latency_ps] * 2


def test_ranks_are_the_gpus_if_there_are_any() -> None:
    """Hosts are ranks only where there is no GPU."""
    graph = star(3)
    graph.add_node("h", kind="host")
    graph.add_edges_from([("h", "s", {"link": LINK}), ("s", "h", {"link": LINK})])
    assert Topology.from_graph(graph).ranks == ("d0", "d1", "d2")
    assert Topology.from_graph(star(2, "host")).ranks == ("d0", "d1")


def broken(change: str) -> nx.DiGraph:
    """A star with one thing wrong."""
    graph = star(3)
    if change == "no link":
        graph.add_edge("d0", "d1", bandwidth=1)
    elif change == "text":
        graph.add_edge("d0", "d1", link="25 GB/s")
    elif change == "no bandwidth":
        graph.add_edge("d0", "d1", bandwidth="fast", latency=0)
    elif change == "below":
        graph.nodes["d0"]["node"] = -4
    elif change == "empty kind":
        graph.nodes["d0"]["kind"] = ""
    elif change == "no kind":
        graph.add_edge("d0", "x", link=LINK)
    elif change == "number":
        graph.add_edge("d0", 7, link=LINK)
    elif change == "cut off":
        graph.remove_edge("s", "d2")
    elif change == "one way":
        graph.remove_edge("d1", "s")
    elif change == "node":
        graph.nodes["d0"]["node"] = "first"
    elif change == "no ranks":
        graph.remove_nodes_from(["d0", "d1", "d2"])
    return graph


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("no link", "d0->d1 has no link, only a bandwidth; give it link=Link(bandwidth, latency, kind), or bandwidth="),
        ("text", "d0->d1 has no link: link='25 GB/s' is no Link; give it link=Link(bandwidth, latency, kind), or"),
        ("no bandwidth", "d0->d1: a link's bandwidth: 'fast' is not a bandwidth; write e.g. '50 GB/s'"),
        ("below", "device 'd0': node -4 is no node number; give 0, 1, …"),
        ("empty kind", "device 'd0' has no kind"),
        ("no kind", "device 'x' has no kind; give it e.g. kind='gpu'"),
        ("number", "device '7' has no kind"),
        ("cut off", "d2 cannot be reached: no route d0->d2; add the link"),
        ("one way", "d1 cannot be reached: no route d1->d0; add the link"),
        ("node", "device 'd0': node 'first' is no node number"),
        ("no ranks", "has neither gpus nor hosts"),
    ],
)
def test_what_cannot_be_built(change: str, text: str) -> None:
    """A broken graph is refused by the name of what is broken, with a cure."""
    with pytest.raises(TopologyError) as error:
        Topology.from_graph(broken(change))
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "text"),
    [
        (-1, 0, "bandwidth is -1"),
        (1, -1, "latency is -1; give seconds"),
        (1, 1_500_000, "latency is 1500000; give seconds, from 0 to below 1"),
        (1, float("nan"), "latency is nan"),
        (1, None, "has no latency"),
        (1.5, 0, "bandwidth is 1.5"),
        (True, 0, "bandwidth is True"),
        (None, 0, "bandwidth is None"),
    ],
)
def test_what_is_no_link(bandwidth: object, latency: object, text: str) -> None:
    """Bandwidths are whole numbers of B/s, latencies seconds of less than one, from 0 on."""
    with pytest.raises(TopologyError, match=text):
        Link(bandwidth, latency)


@pytest.mark.parametrize("made", [nx.MultiGraph, nx.MultiDiGraph])
def test_several_links_between_two_devices_are_refused(made: type[nx.MultiGraph]) -> None:
    """None of parallel links is left out silently; a graph that could have some and has none is as any other."""
    plain = star(3)
    graph = made()
    graph.add_nodes_from(plain.nodes(data=True))
    graph.add_edges_from((u, v, data) for u, v, data in plain.edges(data=True) if graph.is_directed() or v == "s")
    alone = Topology.from_graph(graph)
    assert alone.links == Topology.from_graph(plain).links and alone.every_link == Topology.from_graph(plain).every_link
    graph.add_edge("d1", "s", link=LINK)
    with pytest.raises(TopologyError, match="2 links from d1 to s; give one link with their"):
        Topology.from_graph(graph)


def test_no_latency_is_the_least_latency() -> None:
    """A latency of 0 is taken as 1 ps."""
    assert Link(1, latency_ps=0).latency_ps == Link(1, 0).latency_ps == 1


def test_numbers_of_devices_become_names():
    """networkx calls nodes by numbers and tuples; two that are alike as names are refused."""
    graph = nx.cycle_graph(3)
    nx.set_node_attributes(graph, "host", "kind")
    nx.set_edge_attributes(graph, Link("1 GB/s", 0), "link")
    assert Topology.from_graph(graph).ranks == ("0", "1", "2")
    graph.add_node("1", kind="host")
    with pytest.raises(TopologyError, match="two devices have the same name"):
        Topology.from_graph(graph)


def test_what_is_asked_of_unknown_devices() -> None:
    """Unknown devices, links and policies are named with the nearest known one; so is a route that is not there."""
    topology = make(**SEVERAL["switch"])
    for ask, text in (
        (lambda: topology.route("host0", "hots1"), "no device 'hots1'; did you mean 'host1'?"),
        (lambda: topology.node_of("x"), "no device 'x'"),
        (lambda: topology.link("host0", "host1"), "no link host0->host1"),
        (lambda: Topology("hgx-h100"), "write Topology.load('hgx-h100')"),
        (lambda: Topology.from_graph(star(2), routing="ecpm"), "did you mean 'ecmp'?"),
        (lambda: Topology.from_graph(star(2), routes={"d0-d1": []}), "names no pair"),
        (lambda: Topology.from_graph(star(2), routes={"d0->d1": ["x"]}), "no device 'x'"),
    ):
        with pytest.raises(TopologyError) as error:
            ask()
        assert text in str(error.value)


def test_no_way_through_the_pcie_of_another_gpu() -> None:
    """Where the only way would lead through a GPU that is not directly linked to both sides, or through one between
    hosts, there is no route."""
    graph = nx.DiGraph()
    graph.add_nodes_from([("g0", {"kind": "gpu"}), ("g1", {"kind": "gpu"}), ("g2", {"kind": "gpu"})])
    graph.add_nodes_from([("s0", {"kind": "pcie_switch"}), ("s1", {"kind": "pcie_switch"})])
    for u, v in (("g1", "s0"), ("g0", "s0"), ("g0", "s1"), ("g2", "s1")):
        graph.add_edge(u, v, link=LINK)
        graph.add_edge(v, u, link=LINK)
    topology = Topology.from_graph(graph)
    assert len(topology.route("g0", "g2")) == 2
    with pytest.raises(TopologyError, match="no route g1->g2"):
        topology.route("g1", "g2")
    hosts = star(2, "host")
    hosts.add_node("s", kind="gpu")
    with pytest.raises(TopologyError, match="no route d0->d1"):
        Topology.from_graph(hosts).routes(("d0", "d1"), np.array([0]), np.array([1]))


def test_no_nic_is_a_short_cut() -> None:
    """GPUs of a node do not talk through a NIC that hangs on two PCIe switches, even if that is the shortest way."""
    graph = nx.DiGraph()
    kinds = {"g0": "gpu", "g1": "gpu", "s0": "pcie_switch", "s1": "pcie_switch", "c0": "cpu", "c1": "cpu", "n": "nic"}
    graph.add_nodes_from((device, {"kind": kind, "node": 0}) for device, kind in kinds.items())
    for u, v in (("g0", "s0"), ("g1", "s1"), ("s0", "n"), ("s1", "n"), ("s0", "c0"), ("c0", "c1"), ("c1", "s1")):
        graph.add_edge(u, v, link=LINK)
        graph.add_edge(v, u, link=LINK)
    assert names(Topology.from_graph(graph), "g0", "g1") == ["g0", "s0", "c0", "c1", "s1", "g1"]


@pytest.mark.parametrize("sides", [(4, 8), (8, 4), (3, 5), (2, 3, 4)])
def test_a_torus_from_elsewhere_is_known_as_one(sides: tuple[int, ...]) -> None:
    """A graph of hosts whose links form a torus has its dimensions as groups, and algorithms for tori take them."""
    graph = nx.grid_graph(sides[::-1], periodic=True)
    nx.set_node_attributes(graph, "host", "kind")
    names = {at: "h" + "-".join(map(str, at)) for at in graph}
    for edge in graph.edges:
        graph.edges[edge].update(bandwidth=50e9, latency=1e-6)
    found = Topology.from_graph(nx.relabel_nodes(graph, names))
    assert np.array(found.default_groups(found.ranks)).shape == sides
    graph.remove_edge(*next(iter(graph.edges)))
    less = Topology.from_graph(nx.relabel_nodes(graph, names))
    assert less.default_groups(less.ranks) == ()


def test_default_groups() -> None:
    """Groups are the nodes; with one rank a node the leaves, or a torus by dimension; else none."""
    cluster = make(system="hgx-h100", nodes=2)
    assert cluster.default_groups(cluster.ranks) == (tuple(range(8)), tuple(range(8, 16)))
    assert cluster.default_groups(cluster.ranks[6:10]) == ((0, 1), (2, 3))
    tree = make(**SEVERAL["tree"])
    assert tree.default_groups(tree.ranks) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10))
    assert tree.default_groups(tree.ranks[:4]) == ()
    assert make(**SEVERAL["switch"]).default_groups(("host0", "host1")) == ()
    around, torus, cube = (make(**SEVERAL[name]) for name in ("ring", "torus", "cube"))
    assert around.default_groups(("host0", "host1")) == ()
    assert around.default_groups(around.ranks) == (tuple(range(7)),)
    assert torus.default_groups(torus.ranks) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    assert cube.default_groups(cube.ranks)[1] == ((9, 10, 11), (12, 13, 14), (15, 16, 17))
    assert torus.default_groups(torus.ranks[:4]) == torus.default_groups(torus.ranks[::-1]) == ()


@pytest.mark.parametrize(
    ("keys", "bandwidth"),
    [
        ({"fabric": "single-switch", "hosts": 8, "link": CABLE}, 4 * 50),
        ({"fabric": "ring", "hosts": 8, "link": CABLE}, 2 * 50),
        ({"fabric": "torus", "dims": [4, 8], "link": CABLE}, 2 * 4 * 50),
        ({"fabric": "torus", "dims": [8, 4], "link": CABLE}, 2 * 4 * 50),
        ({"fabric": "full-mesh", "hosts": 6, "link": CABLE}, 9 * 50),
        ({"fabric": "fat-tree", "hosts": 16, "oversubscription": 4, "link": CABLE}, 2 * 50),
        ({"fabric": "fat-tree", "hosts": 16, "oversubscription": 4, "spines": 4, "link": CABLE}, 2 * 50),
        ({"system": "hgx-h100"}, 4 * 370.8),
        ({"system": "hgx-h100", "nodes": 2}, 8 * 50),
        ({"system": "hgx-h100", "nodes": 4, "oversubscription": 2}, 2 * 8 * 50),
        ({"system": "dgx1-v100"}, 2 * 40 + 2 * 20),
        ({"system": "mi300x"}, 16 * 48),
    ],
)
def test_bisection_bandwidth(keys: dict[str, object], bandwidth: float) -> None:
    """What textbooks say: of the cables between halves, one direction, in GB/s; rails keep leaf traffic off spines."""
    assert bisection_bandwidth(make(**keys)) == pytest.approx(bandwidth * 1e9)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(SEVERAL)), data=st.data())
def test_what_crosses_a_set_leaves_or_enters_it(name: str, data: st.DataObject) -> None:
    """Any sets of devices, at once: a link crosses out of a set if its tail is inside and its head is not."""
    topology = make(**SEVERAL[name])
    names = list(topology.kinds)
    drawn = data.draw(st.lists(st.sets(st.integers(0, len(names) - 1)), min_size=1, max_size=4))
    sets = Sets(np.array([at for each in drawn for at in each], np.int64), np.array(list(map(len, drawn))))
    sides = zip(*map(parted, topology.crossing(sets)), strict=True)
    for inside, (out, into) in zip(drawn, sides, strict=True):
        ends = [tuple(names.index(end) in inside for end in link) for link in topology.links]
        assert sorted(out) == [link for link, end in enumerate(ends) if end == (True, False)]
        assert sorted(into) == [link for link, end in enumerate(ends) if end == (False, True)]


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(SEVERAL)), data=st.data())
def test_enclosures_are_ranks_nodes_and_what_hangs_on_a_switch(name: str, data: st.DataObject) -> None:
    """As sets of names, from the links of each node alone."""
    topology = make(**SEVERAL[name])
    ranks, names = data.draw(st.lists(st.sampled_from(topology.ranks), min_size=1, unique=True)), list(topology.kinds)
    want, hanging = [{rank} for rank in ranks], dict[str, set[str]]()
    for node in {topology.node_of(rank) for rank in ranks} - {None}:
        inside = {device for device in names if topology.node_of(device) == node}
        near = {b if a in inside else a for a, b in topology.links if (a in inside) != (b in inside)}
        want += [inside] * (len(inside) > 1)
        if len(near) == 1:
            hanging.setdefault(*near, set(near)).update(inside)
    found = [{names[device] for device in part} for part in parted(topology.enclosures(ranks))]
    assert sorted(map(sorted, found)) == sorted(map(sorted, want + list(hanging.values())))


@pytest.mark.parametrize("name", [*SEVERAL, "long ring"])
def test_least_latencies_are_those_of_dijkstra(name: str) -> None:
    """The least latency to every device is the one that networkx finds, also by more hops than rounds are made."""
    topology = make(**(SEVERAL | {"long ring": {"fabric": "ring", "hosts": 140, "link": CABLE}})[name])
    sources = (*topology.ranks[:30], *list(topology.kinds)[::5])
    for source, least in zip(sources, topology.least_latencies(sources, list(topology.kinds)).tolist(), strict=True):
        ways = nx.single_source_dijkstra_path_length(
            topology.graph, source, weight=lambda u, v, data: data["link"].latency_ps
        )
        assert {device: ps for device, ps in zip(topology.kinds, least, strict=True) if ps < UNREACHED} == ways


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_agents_are_linked_both_ways_with_each_device(rng: random.Random) -> None:
    """Agents of devices are, in their order, those with a link to each device and one back, where links may lack."""
    hosts, switches = [f"h{i}" for i in range(5)], [f"s{i}" for i in rng.sample(range(4), 4)]
    graph = nx.DiGraph()
    graph.add_nodes_from(hosts, kind="host")
    for switch in switches:
        graph.add_node(switch, kind="switch", in_network=rng.random() < 0.7)
    ring = list(itertools.pairwise([*hosts, hosts[0]]))
    some = [ends for s, h in itertools.product(switches, hosts) for ends in ((s, h), (h, s)) if rng.random() < 0.8]
    graph.add_edges_from([*ring, *some], link=Link(10**9, latency_ps=10**6))
    topology = Topology.from_graph(graph)
    for count in range(4):
        devices = rng.sample([*hosts, *switches], count)
        linked = [
            agent
            for agent in topology.agents
            if all(topology.has_link(agent, device) and topology.has_link(device, agent) for device in devices)
        ]
        assert list(topology.agents_for(devices)) == linked


# --- the order of links in a file ---


@pytest.mark.parametrize("shape", ["torus", "cube mesh", "rails of two nodes"])
@settings(max_examples=2, phases=[Phase.generate])
@given(chance=st.randoms(use_true_random=False))
def test_the_order_of_links_in_a_file_does_not_matter(shape: str, tmp_path_factory, chance: random.Random) -> None:
    """Law: a file that lists the links of a topology in any order is that topology: the same links by number, so the
    same routes and times."""
    of_own = {"system": "hgx-h100", "nodes": 2}
    topology = make(**SEVERAL.get(shape, of_own))
    written = yaml_tree.parse(dump(topology), "own.yaml").plain()
    chance.shuffle(written["links"])
    path = tmp_path_factory.mktemp("links") / "own.yaml"
    path.write_text(yaml_tree.dump(written))
    again = make(file=str(path))
    assert again.links == topology.links and again.every_link == topology.every_link
    ends = (*topology.ranks[:6], *topology.ranks[-6:])
    assert all(again.route(u, v) == topology.route(u, v) for u, v in itertools.permutations(dict.fromkeys(ends), 2))


def test_routes_of_a_torus_go_dimension_by_dimension() -> None:
    """Law: on a torus, the last dimension varying fastest, a route goes along it first; so with all to all no link
    carries more than those of one dimension must, half of the even ways going each way round at worst."""
    topology = make(fabric="torus", dims=[4, 4], link=CABLE)
    number = {host: divmod(i, 4) for i, host in enumerate(topology.ranks)}
    carried: Counter[int] = Counter()
    for u, v in itertools.permutations(topology.ranks, 2):
        way = [number[name] for name in names(topology, u, v)]
        moved = [int(a[0] != b[0]) for a, b in itertools.pairwise(way)]
        assert moved == sorted(moved)
        carried.update(topology.route(u, v))
    assert max(carried.values()) == 12  # 4 rows or columns × (1 + 2 hops that way)


@given(st.sampled_from(sorted(fabrics.FABRICS)), st.integers(1, 5), st.data())
def test_links_of_a_fabric_are_counted_without_making_them(fabric: str, ports: int, data: st.DataObject) -> None:
    """As many as its builder makes, whatever the widths of its levels."""
    small = st.integers(1, 5)
    dims = tuple(data.draw(st.lists(small, min_size=2, max_size=3))) if fabric == "torus" else ()
    machines = math.prod(dims) if dims else data.draw(st.integers(1, 40))
    keys = {name: data.draw(small) for name in ("per_leaf", "leaves_per_pod", "spines")}
    shape = fabrics.FabricShape(LINK, 1, levels=data.draw(st.sampled_from([2, 3])), dims=dims, **keys)
    switched, plan = fabric in fabrics.SWITCHED, fabrics.FabricPlan()
    names = [[f"{i}.{j}" for j in range(ports if switched else 1)] for i in range(machines)]
    fabrics.FABRICS[fabric](plan, names, shape)
    assert fabrics.count_links(fabric, machines, ports if switched else 0, shape) == len(plan.links)
