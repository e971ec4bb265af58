"""NCCL's graph search: what logs print, what the files of systems store, and what any graph must keep."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from systems import WHOLE, WITH_GPUS

import simcoll
from simcoll import units
from simcoll.errors import InputError
from simcoll.nccl.communicator import communicator
from simcoll.nccl.environment import SearchSettings
from simcoll.nccl.graph_search import search
from simcoll.topology import nccl_graphs
from simcoll.topology.machine_files import SystemFile, shipped_systems, template
from simcoll.topology.nccl_graphs import ChannelGraph
from simcoll.topology.topology_builder import described, load_system
from simcoll.topology.topology_keys import TopologySpec

# The search does not know RCCL's rings of MI250X: GPUs that are not all joined.
WITH_GRAPHS = [name for name in WITH_GPUS if WHOLE[name].nccl and name != "mi250x"]


def changed(name: str, nvlink: float = 1.0, **keys: Any) -> SystemFile:
    """A system with NVLinks of another speed, or with other keys."""
    document = load_system(name).model_dump(by_alias=True, exclude_none=True)
    for link in document["links"]:
        if link.get("kind") == "nvlink":
            link["bandwidth"] = f"{float(link['bandwidth'].split()[0]) * nvlink:g} GB/s"
        link["pairs"] = list(link["pairs"])
    return SystemFile.model_validate({**document, **keys})


SEARCH = """
from simcoll.nccl.communicator import communicator
from simcoll.nccl.graph_search import search
from simcoll.topology.topology_builder import load_system
print(search(load_system("dgx1-v100"), 4, across=False))
"""


@pytest.mark.thorough
def test_kept_graphs_are_those_that_are_found(tmp_path: Path) -> None:
    """A later process finds what an earlier one kept; it searches anew where the file is damaged."""
    environment = os.environ | {"SIMCOLL_CACHE_DIR": str(tmp_path / "cache")}

    def anew() -> bytes:
        return subprocess.run([sys.executable, "-c", SEARCH], check=True, capture_output=True, env=environment).stdout

    found, (kept,) = anew(), (tmp_path / "cache").glob("graphs-*")
    whole = kept.read_bytes()
    assert anew() == found
    kept.write_bytes(whole.replace(b'"channels"', b'"channel5"', 1))
    assert anew() == found
    assert kept.read_bytes() == whole


# --- logs ---


def test_channels_of_p5_are_as_logged() -> None:
    """Two nodes of EC2 P5: NCCL 2.20.3 prints these ways through the first node (KeitaW/p5-nccl-test on GitHub). The
    tree of each channel is a chain from the GPU beside its NIC on, and each GPU is a head."""
    graphs = search(load_system("hgx-h100-efa"), 8, across=True)
    ring, tree = graphs["ring"], graphs["tree"]
    down = [tuple((i - k) % 8 for k in range(8)) for i in range(0, 8, 2)]
    up = [tuple((i + k) % 8 for k in range(8)) for i in range(1, 8, 2)]
    assert ring.orders == tuple(itertools.chain(*zip(down, up, strict=True)))
    assert (ring.channels, ring.intra, ring.cross_nic, ring.same_channels) == (8, 48, 2, False)
    assert tree.orders == tuple(tuple((i + k) % 8 for k in range(8)) for i in range(8))
    assert (tree.channels, tree.intra, tree.inter) == (8, 48, 48)
    assert graphs["nvls"].orders == tuple((i,) for i in range(8))


@pytest.mark.parametrize(("gpus", "tree"), [(2, 60), (4, 30), (6, 30)])
def test_trees_of_h100_are_as_logged(gpus: int, tree: float) -> None:
    """NCCL 2.29.2 prints bandwidths of its tuning on 2, 4 and 6 GPUs, from which these follow."""
    graphs = search(load_system("hgx-h100"), gpus, across=False)
    assert (graphs["ring"].channels, graphs["ring"].intra) == (12, 30)
    assert (graphs["tree"].channels, graphs["tree"].intra) == (12, tree)


def test_one_node_of_h200_is_as_logged() -> None:
    """All channels of one node go through the GPUs in order (MLPerf training 5.1, Dell, 8 H200)."""
    assert set(search(load_system("hgx-h200"), 8, across=False)["ring"].orders) == {tuple(range(8))}


# --- what files store ---


def stored_rows() -> Iterator[tuple[str, str, int]]:
    """System, one or several nodes, and GPUs a node; of the rack of 72 a few."""
    for name in WITH_GRAPHS:
        rows = load_system(name).nccl
        assert rows
        counts = {(row.nodes, n) for row in rows.graphs for n in range(row.gpus[0], row.gpus[1] + 1)}
        alike = name in ("a3-mega", "hgx-h100-efa", "hgx-h200")  # to hgx-h100
        few = {1, 8} if alike else {*range(1, 9), 16}
        slow = ("rtx-pro-6000", "several", 8)  # takes seconds
        yield from ((name, size, n) for size, n in sorted(counts) if n in few and (name, size, n) != slow)


@pytest.mark.parametrize(
    ("name", "size", "gpus"),
    [pytest.param(*row, marks=() if row[2] in (2, 3, 8, 16) else pytest.mark.long) for row in stored_rows()],
)
def test_the_search_finds_what_files_store(name: str, size: str, gpus: int) -> None:
    """Channels, speeds, patterns and paths, whether channels are alike, and whether they cross NICs. Files need not
    store how many NICs the channels use."""
    system = load_system(name)
    kept = nccl_graphs.stored(system.nccl, gpus, 1 if size == "one" else 2)
    found = search(system, gpus, across=size == "several")
    assert kept
    for kind, graph in kept.items():
        assert found[kind].model_copy(update={"orders": graph.orders, "nics": 0}) == graph, kind
        if size == "several" and kind != "tree":
            assert found[kind].nics in (0, communicator(system, 2, 2 * gpus, kept).used_nics(graph))  # RCCL's: unknown
        assert not graph.orders or hops(graph) == hops(found[kind]), "the same links, whatever the order of channels"


def hops(graph: ChannelGraph) -> Counter[tuple[int, int]]:
    """How many of a graph's rings go from one GPU to another."""
    return Counter(hop for order in graph.orders for hop in zip(order, (*order[1:], order[0]), strict=True))


@pytest.mark.parametrize("name", WITH_GRAPHS)
def test_channels_that_are_alike_go_one_way(name: str) -> None:
    """They share every link, and between nodes one port of a NIC: more than these carry is only for unlike ones."""
    system = load_system(name)
    out = Counter[str]()
    for (u, _), bandwidth in link_speeds(system).items():
        out[u] = max(out[u], bandwidth)
    port = units.parse(system.nic.rate, "bandwidth") / 1e9 if system.nic else 0.0
    assert system.nccl
    for row in system.nccl.graphs:
        for gpus in {*row.gpus}:
            graph = row.of(gpus)
            if graph.same_channels and graph.pattern == "ring":
                assert graph.channels * graph.intra <= max(out.values()), row
                assert row.nodes == "one" or graph.channels * graph.inter <= port, row


# --- what any graph keeps ---

VARIANTS = {
    "8 x 200G": changed("hgx-h100", nic={**load_system("hgx-h100").nic.model_dump(), "rate": "200 Gb/s"}),  # type: ignore[union-attr]  # it has
    "H800": changed("hgx-h100", nvlink=8 / 18),
    "hgx-h100": load_system("hgx-h100"),
    **{
        name: load_system(name) for name in ("dgx-a100", "dgx1-v100", "gh200-4", "hgx-a100-4", "l40s-pcie", "a100-pcie")
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_subset_has_rings_that_visit_each_gpu_once(name: str) -> None:
    """For any GPUs of a box, on one node and on several: rings are whole, trees have as many channels, and no more goes
    out of a GPU than its links carry."""
    system = VARIANTS[name]
    count = system.devices["gpu"]  # type: ignore[call-overload]  # these are machines
    out = Counter[str]()
    for (u, _), bandwidth in link_speeds(system).items():
        out[u] += bandwidth
    for gpus, across in ((2, False), (3, True), (count, False)):
        graphs = search(system, gpus, across)
        ring, tree = graphs["ring"], graphs["tree"]
        assert all(sorted(order) == list(range(gpus)) for order in (*ring.orders, *tree.orders))
        assert len(ring.orders) == ring.channels == tree.channels
        assert ring.channels * ring.intra <= min(out[f"gpu{i}"] for i in range(gpus)) + 1e-6


def link_speeds(system: SystemFile) -> dict[tuple[str, str], float]:
    """GB/s of each link between two devices."""
    plan = template(system)
    return {(u, v): link.bandwidth / 1e9 for u, v, link in plan.links if u != v}


@pytest.mark.parametrize(("name", "gpus"), [("dgx1-v100", 8), ("dgx1-v100", 4), ("gh200-4", 4), ("hgx-a100-4", 3)])
def test_rings_of_a_mesh_fit_its_links(name: str, gpus: int) -> None:
    """No NVLink of a mesh is given more than it carries."""
    system = load_system(name)
    for graph in (search(system, gpus, across=False)[kind] for kind in ("ring", "tree")):
        used = Counter[tuple[str, str]]()
        for order in graph.orders:
            ends = zip(order, (*order[1:], order[0]) if graph.pattern == "ring" else order[1:], strict=False)
            used.update((f"gpu{a}", f"gpu{b}") for a, b in ends)
        speeds = link_speeds(system)
        assert all(count * graph.intra <= speeds[pair] + 1e-6 for pair, count in used.items())


def box(
    gpus: int, nics: int, rate: int, capability: int = 90, nvlink: float = 370.8, alone: bool = False
) -> SystemFile:
    """A box with NICs of so many Gb/s, on NVSwitch if `nvlink`; two GPUs on a PCIe switch, or each `alone`."""
    switches = gpus if alone else gpus // 2
    pairs = [[f"gpu{i}", f"pcie_switch{i * switches // gpus}"] for i in range(gpus)]
    pairs += [[f"nic{i}", f"pcie_switch{i * switches // nics}"] for i in range(nics)]
    pairs += [[f"pcie_switch{i}", f"cpu{2 * i // switches}"] for i in range(switches)]
    links = [{"pairs": pairs, "bandwidth": "48 GB/s", "latency": "0.25 us", "kind": "pcie"},
             {"from": "cpu0", "to": "cpu1", "bandwidth": "22 GB/s", "latency": "0.3 us", "kind": "socket"}]  # fmt: skip
    if nvlink:
        links.append({"from": "gpu*", "to": "nvswitch0", "bandwidth": f"{nvlink} GB/s", "latency": "0.3 us",
                      "kind": "nvlink"})  # fmt: skip
    devices = {"gpu": gpus, "nic": nics, "pcie_switch": switches, "cpu": 2, **({"nvswitch": 1} if nvlink else {})}
    gpu = {"model": "some", "generation": "some", "compute_capability": capability}
    nic = {"rate": f"{rate} Gb/s", "latency": "1 us", "trunk_latency": "1 us"}
    document = {"name": "box", "cpu": {"vendor": "intel"}, "gpu": gpu, "nic": nic, "devices": devices, "links": links}
    return SystemFile.model_validate({**document, "in_network": ["nvswitch0"] if nvlink and capability >= 90 else []})


BOXES = {
    "4 x 200G": (box(8, 4, 200), 8, 4 * 24),
    "8 x 200G": (box(8, 8, 200, alone=True), 8, 8 * 24),
    "32 x 100G": (box(8, 32, 100, alone=True), 8, 32 * 12),
    "half of 32 x 100G": (box(8, 32, 100, alone=True), 4, 16 * 12),
    "one NIC": (box(8, 1, 400), 8, 48),
    "16 GPUs": (box(16, 8, 100, 70, nvlink=120), 16, 8 * 12),
    "8 GPUs on PCIe": (box(8, 4, 200, nvlink=0), 8, 2 * 20),
}


@pytest.mark.parametrize("name", BOXES)
def test_boxes_of_clouds(name: str) -> None:
    """Rings between nodes fill the NICs of GPUs, at a speed that NCCL tries, or what their PCIe carries; each goes
    through every GPU once, and no port of a NIC gets more than it has."""
    system, gpus, between = BOXES[name]
    graphs = search(system, gpus, across=True)
    ring, tree = graphs["ring"], graphs["tree"]
    assert ring.channels * ring.inter == between
    assert tree.channels == ring.channels and tree.intra <= 2 * tree.inter
    assert all(sorted(order) == list(range(gpus)) for order in (*ring.orders, *tree.orders))
    if "nvls" in graphs:
        heads = [order[0] for order in graphs["nvls"].orders]
        assert len(set(heads)) == len(heads) <= gpus


@pytest.mark.parametrize(("gpus", "bandwidth"), [((0, 3), 40), ((4, 7), 40), ((0, 1), 20), ((5, 7), 20)])
def test_pairs_of_a_mesh_differ(gpus: tuple[int, int], bandwidth: float) -> None:
    """Two GPUs of the cube mesh have the links between them: two, or one. Without any they go over PCIe."""
    ring = search(load_system("dgx1-v100"), gpus, across=False)["ring"]
    assert ring.channels * ring.intra == bandwidth and ring.type_intra == "NVL"
    assert search(load_system("dgx1-v100"), (0, 5), across=False)["ring"].type_intra == "SYS"


def test_calls_take_the_gpus_on_which_they_are(tmp_path: Path) -> None:
    """On a machine whose file stores no graphs, a call between GPUs with two links is faster than with one."""
    text = (shipped_systems()["dgx1-v100"]).read_text(encoding="utf-8")
    path = tmp_path / "own.yaml"
    path.write_text(text[: text.index("nccl:")], encoding="utf-8")
    keys = {"topology": {"file": str(path), "nodes": 1}, "collective": "all_reduce", "size": "256 MiB",
            "profile": "nccl-volta", "algorithm": "ring"}  # fmt: skip
    times = []
    for pair in ((0, 3), (0, 1)):
        placement = [f"node0.gpu{i}" for i in pair]
        times += [row["time_us"] for row in simcoll.run(simcoll.load({**keys, "placement": placement}))]
    assert times[1] / times[0] == pytest.approx(2, rel=0.1)


def test_rings_carry_what_links_and_nics_carry() -> None:
    """H800 has 8 of the 18 NVLinks of an H100. Rings between nodes carry what NICs carry, rounded down to a speed that
    NCCL tries."""
    whole, half = search(load_system("hgx-h100"), 8, False)["ring"], search(VARIANTS["H800"], 8, False)["ring"]
    assert half.channels * half.intra <= 370.8 * 8 / 18 < whole.channels * whole.intra
    ring = search(VARIANTS["8 x 200G"], 8, across=True)["ring"]
    assert ring.channels * ring.inter == 8 * 24


@pytest.mark.parametrize("gpus", range(1, 9))
def test_a_mesh_of_amd_is_filled(gpus: int) -> None:
    """Of n GPUs that are all joined nearly all links are in one ring: n - 1 rings, one less for 4 and 6; between nodes
    each ring begins and ends at a GPU of its own. No GPU sends more than its links carry."""
    system = load_system("mi300x")
    links = sum(u == "gpu0" and v.startswith("gpu") for u, v in link_speeds(system))
    for across, count in ((False, gpus - 1 - (gpus in (4, 6))), (True, gpus - (gpus in (3, 5)))):
        if across or gpus > 1:
            ring = search(system, gpus, across)["ring"]
            assert (ring.channels, ring.orders) == (count, ())
            assert count <= links + across


# --- settings ---


def test_without_p2p_paths_lead_through_the_host() -> None:
    """NCCL_P2P_DISABLE=1: GPUs on a PCIe switch or on NVSwitch go through a processor, more slowly."""
    off = SearchSettings(p2p_level="LOC")
    for name, gpus in (("l40s-pcie", 2), ("hgx-h100", 8)):
        free, shut = (
            search(load_system(name), gpus, False)["ring"],
            search(load_system(name), gpus, False, off)["ring"],
        )
        assert shut.type_intra in ("PHB", "SYS") and shut.channels * shut.intra < free.channels * free.intra


def test_nvls_can_be_off() -> None:
    """NCCL_NVLS_ENABLE=0, or switches that do not reduce."""
    assert "nvls" in search(load_system("hgx-h100"), 8, False)
    assert "nvls" not in search(changed("hgx-h100", in_network=()), 8, False)


def test_what_cannot_be_searched() -> None:
    """GPUs that are not there, and nodes that nothing joins."""
    with pytest.raises(InputError, match="has only 8 GPUs a node"):
        search(load_system("hgx-h100"), 9, False)
    with pytest.raises(InputError, match="has no NICs"):
        search(load_system("hgx-h100"), 8, True, SearchSettings(nics=()))


def test_hosts_of_a_rack_without_ranks_do_not_matter():
    """Between racks NCCL sees the NICs of the hosts with ranks only: the graphs are those of a machine of these."""
    whole = load_system("gb300-nvl72")
    few = described(TopologySpec(system="gb300-nvl72", gpus=4))
    assert few and few.counts["nic"] == 4
    assert search(whole, 4, True) == search(few, 4, True)
