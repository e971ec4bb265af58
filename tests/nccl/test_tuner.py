"""NCCL's tuner, mirrored: equal to an independent restatement, and to what real logs print."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import ROOT, simcoll
from hypothesis import given
from hypothesis import strategies as st
from systems import WITH_GPUS

import simcoll as sc
from simcoll import units
from simcoll.errors import InputError, RefusedError
from simcoll.nccl import environment, graph_xml, protocols, tuner, tuner_constants
from simcoll.nccl.algorithm_names import COLLECTIVES
from simcoll.nccl.call_choice import launch_shape
from simcoll.nccl.communicator import Communicator, communicator
from simcoll.schedule.collectives import OPERATORS
from simcoll.schedule.names import PROTOCOLS
from simcoll.topology.machine_files import SystemFile
from simcoll.topology.nccl_graphs import PATHS, ChannelGraph
from simcoll.topology.topology_builder import load_system

SIZES = [2**exponent for exponent in range(3, 34)]
GOLDEN = (ROOT / "tests/golden" / "nccl-tuner.txt").read_text(encoding="utf-8")
LINES = [line.split() for line in GOLDEN.splitlines() if not line.startswith("#")]
CASES = sorted({(line[0], int(line[1]), int(line[2]), line[3]) for line in LINES})
CHOICES = [line for line in LINES if line[5] == "choice"]


def make(system: str, nodes: int = 1, ranks: int | None = None, version: str | None = None) -> tuner.TunerTable:
    """The table for ranks of a shipped system."""
    return tuner.table(communicator(load_system(system), nodes, ranks), version)


# --- equal to an independent restatement ---


@pytest.mark.parametrize(("system", "nodes", "ranks", "version"), CASES)
def test_every_pair_is_as_restated(system: str, nodes: int, ranks: int, version: str) -> None:
    """Latency, bandwidth and the time of every size are equal to 0.1 %, and there are no other pairs."""
    table = make(system, nodes, ranks, version)
    case = [system, str(nodes), str(ranks), version]
    wanted = [line[4:] for line in LINES if line[:4] == case and line[5] != "choice"]
    pairs = {(c, a, p) for c, a, p in table.entries if c not in ("broadcast", "reduce")}
    assert pairs == {tuple(line[:3]) for line in wanted}
    for collective, algorithm, protocol, latency, bandwidth, *times in wanted:
        entry = table.entries[collective, algorithm, protocol]
        assert entry.latency_us == pytest.approx(float(latency), rel=1e-5)
        assert entry.bandwidth_GBps == pytest.approx(float(bandwidth), rel=1e-5)
        mine = [table.time_us(collective, algorithm, protocol, size) for size in SIZES[: len(times)]]
        assert mine == pytest.approx([float(time) for time in times], rel=1e-3)


@pytest.mark.parametrize(("system", "nodes"), sorted({(line[0], int(line[1])) for line in CHOICES}))
def test_every_choice_is_as_restated(system: str, nodes: int) -> None:
    """`simcoll tune --json` chooses the same pair at every size, and tells its time."""
    told = simcoll("tune", system, "--nodes", nodes, "--json").json
    assert told["schema"] == "simcoll.tune/1" and told["nodes"] == nodes
    for line in CHOICES:
        if line[:2] == [system, str(nodes)]:
            mine = [row for row in told["choice"] if row["collective"] == line[4]]
            assert [row["size_bytes"] for row in mine] == SIZES
            for row in mine:
                pair = next(p for p, last in (w.split(":") for w in line[6:]) if row["size_bytes"] <= int(last))
                assert f"{row['algorithm']}/{row['protocol']}" == pair
                assert row["time_us"] == make(system, nodes).time_us(
                    line[4], row["algorithm"], row["protocol"], row["size_bytes"]
                )


# --- equal to what logs print ---

LOGGED = {  # NCCL 2.29.2, so many H100 of a machine: tree and ring with LL, LL128, Simple, and NVLS: latency, bandwidth
    2: "8.0/61.1 16.5/180.6 16.4/232.2  7.8/141.0 17.8/331.2 15.2/360.0  25.0/102.0",
    4: "10.4/43.6 21.5/128.8 32.4/165.6  10.2/94.0 25.4/220.8 28.8/240.0  25.0/160.0",
    6: "12.8/43.6 26.5/128.8 48.4/165.6  12.6/84.6 33.0/198.7 42.4/216.0  25.0/216.0",
}


@pytest.mark.parametrize("ranks", LOGGED)
def test_one_node_of_h100_is_as_logged(ranks: int) -> None:
    """The table of an all-reduce on 2, 4 and 6 H100 is what NCCL_DEBUG=INFO prints, to the printed digits."""
    table = make("hgx-h100", 1, ranks, "2.29.2")
    entries = [entry for (collective, *_), entry in table.entries.items() if collective == "all_reduce"]
    told = [tuple(map(float, pair.split("/"))) for pair in LOGGED[ranks].split()]
    assert [(entry.latency_us, entry.bandwidth_GBps) for entry in entries] == [
        (pytest.approx(latency, abs=0.051), pytest.approx(bandwidth, abs=0.051)) for latency, bandwidth in told
    ]
    assert table.communicator.channels == 24


def test_three_nodes_of_h100_are_as_logged() -> None:
    """8 GiB by ring and Simple on 3 × 8 H100 with 200 Gb/s each, rules before 2.23: 86069.97 us and 16 channels."""
    found = {"ring": ChannelGraph(channels=8, intra=24, inter=24, pattern="ring")}
    table = tuner.table(communicator(load_system("hgx-h100"), 3, graphs=found), "2.22.3")
    assert table.time_us("all_reduce", "ring", "Simple", 8 << 30) == pytest.approx(86069.97, abs=0.01)
    assert table.communicator.channels == 16


def test_two_nodes_of_h100_are_as_logged() -> None:
    """Latencies of 2 × 8 H100 with one channel of 20 GB/s, release 2.20."""
    ring, tree = (ChannelGraph(channels=1, intra=20, inter=20, pattern=pattern) for pattern in ("ring", "tree"))
    table = tuner.table(communicator(load_system("hgx-h100"), 2, graphs={"ring": ring, "tree": tree}), "2.20.5")
    logged = {
        ("all_gather", "ring", "LL"): 23.3,
        ("all_gather", "ring", "LL128"): 44.6,
        ("all_gather", "ring", "Simple"): 70.0,
        ("all_reduce", "ring", "LL"): 43.4,
        ("broadcast", "ring", "Simple"): 22.4,
        ("all_reduce", "tree", "LL"): 25.2,
        ("all_reduce", "tree", "LL128"): 48.5,
        ("all_reduce", "tree", "Simple"): 448.0,
    }
    assert {pair: round(table.entries[pair].latency_us, 1) for pair in logged} == logged
    assert table.entries["all_gather", "ring", "Simple"].bandwidth_GBps == pytest.approx(21.3, abs=0.05)


@pytest.mark.parametrize(("system", "channels"), [("dgx-a100", 24), ("hgx-h100", 24), ("hgx-b200", 32)])
def test_channels_are_as_logged(system: str, channels: int) -> None:
    """Kernels use as many channels on a full machine as logs print, and NVLS 16 on H100. On 2 nodes with one A100 each
    the ring is 1 × 24 GB/s, the tree 1 × 48/24."""
    assert make(system).communicator.channels == channels
    h100 = make("hgx-h100")
    assert h100.communicator.nvls_channels(h100.constants) == 16
    found = communicator(load_system("dgx-a100"), 2, 2).graphs
    assert (found["ring"].channels, found["ring"].intra) == (1, 24)
    assert (found["tree"].channels, found["tree"].intra, found["tree"].inter) == (1, 48, 24)


# --- the graphs of the shipped systems ---


def _egress(file: SystemFile, kinds: tuple[str, ...]) -> float:
    """GB/s out of gpu0 over links of these kinds."""
    total = 0.0
    gpus = file.devices["gpu"] if isinstance(file.devices, dict) else 0
    for rule in file.links:
        width = units.parse(rule.bandwidth, "bandwidth") / 1e9
        if rule.kind in kinds:
            ends = [end for pair in rule.pairs for end in pair] or ["gpu0"] * (gpus - 1 if rule.to == "gpu*" else 1)
            total += ends.count("gpu0") * width
    return total


@pytest.mark.parametrize("name", WITH_GPUS)
def test_graphs_fit_the_links(name: str) -> None:
    """No graph carries more than a GPU's links out of it can, nor more than the NICs of a node can."""
    file = load_system(name)
    assert file.nccl is not None and file.nic is not None and isinstance(file.devices, dict)
    own = _egress(file, ("nvlink", "xgmi")) or _egress(file, ("pcie",))
    nic = units.parse(file.nic.rate, "bandwidth") / 1e9
    for row in file.nccl.graphs:
        for gpus in {row.gpus[0], row.gpus[1]}:
            graph = row.of(gpus)
            if gpus > 1:  # the chain of a tree has an end that sends nothing; NVLS loads a head twice
                load = graph.channels + 1 if row.graph == "nvls" else graph.channels
                load *= (gpus - 1) / gpus if row.graph == "tree" or row.nodes == "several" else 1
                assert load * graph.intra <= own * 1.001, row
            if row.nodes == "several":
                assert graph.channels * graph.inter <= nic * file.devices["nic"] * 1.001, row
    assert {file.devices["gpu"]} & {row.gpus[1] for row in file.nccl.graphs if row.nodes == "one"}


@pytest.mark.parametrize("gpus", [4, 8])
def test_rings_of_the_hybrid_mesh_exist(gpus: int) -> None:
    """The rings of DGX-1 visit each GPU once, and use no NVLink more often than there are."""
    file = load_system("dgx1-v100")
    ring = communicator(file, 1, gpus).graphs["ring"]
    assert len(ring.orders) == ring.channels
    assert all(sorted(order) == list(range(gpus)) for order in ring.orders)
    links = Counter[tuple[int, int]]()
    for rule in file.links:
        if rule.kind == "nvlink":
            count = units.parse(rule.bandwidth, "bandwidth") // 20_000_000_000
            for a, b in ((int(u[3:]), int(v[3:])) for u, v in rule.pairs):
                links[a, b] = links[b, a] = count
    used = Counter((order[i - 1], order[i]) for order in ring.orders for i in range(gpus))
    assert not used - links


@pytest.mark.parametrize("name", WITH_GPUS)
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_every_system_has_a_choice(name: str, nodes: int) -> None:
    """On every shipped system with GPUs each collective has a pair, and larger sizes take longer."""
    table = make(name, nodes)
    for collective in COLLECTIVES:
        times = [choice.time_us for size in SIZES if (choice := table.choose(collective, size))]
        assert len(times) == len(SIZES) and all(time > 0 for time in times)
        assert times[-1] > times[0]


# --- rules ---


@pytest.mark.parametrize("system", ["l40s-pcie", "rtx-pro-6000"])
def test_pcie_has_no_ll128_and_slower_hops(system: str) -> None:
    """Without NVLink there is no LL128 unless the user insists, no NVLS, and a hop takes what PCIe takes."""
    comm = communicator(load_system(system))
    table = tuner.table(comm)
    assert {p for _, _, p in table.entries} == {"LL", "Simple"}
    assert {a for _, a, _ in table.entries} == {"ring", "tree"}
    assert table.entries["all_reduce", "ring", "LL"].latency_us == pytest.approx(6.6 + 14 * 1.0)
    insisting = tuner.table(comm, None, environment.selection(proto="LL128"))
    assert {p for _, _, p in insisting.entries} == {"LL128"}


def test_pairs_that_need_a_release_or_few_gpus() -> None:
    """PAT needs one GPU a node and release 2.23, and lost bandwidth in the model of 2.24. In a rack NVLS reduces over
    all GPUs, but gathers over 32 at most. The time of a pair that NCCL cannot use is an error that names it."""
    pat, nvls = ("all_gather", "pat", "Simple"), ("all_gather", "nvls", "Simple")
    assert pat in make("hgx-h100", 16, 16).entries
    assert pat not in make("hgx-h100", 16).entries and pat not in make("hgx-h100", 16, 16, "2.22").entries
    now, before = (make("hgx-h100", 16, 16, v).entries[pat].bandwidth_GBps for v in ("2.24", "2.23"))
    assert now / before == pytest.approx(0.75 / 0.85)
    assert nvls in make("gb200-nvl72", 1, 32).entries and nvls not in make("gb200-nvl72", 1, 33).entries
    assert ("all_reduce", "nvls", "Simple") in make("gb200-nvl72", 1, 72).entries
    with pytest.raises(RefusedError, match="no all_reduce by nvls with Simple"):
        make("hgx-h100", 2).time_us("all_reduce", "nvls", "Simple", 8)


@pytest.mark.parametrize(("capability", "farthest"), [(90, "PXN"), (80, "PXB"), (70, "PXB")])
def test_ll128_goes_by_paths(capability: int, farthest: str) -> None:
    """LL128 is used up to PXN (PXB before Hopper) between nodes and up to NVB within, and never before Volta."""
    for path in PATHS:
        for field, limit in (("type_inter", farthest), ("type_intra", "NVB")):
            table = tuner.table(ring_only(capability, **{field: path}))
            near = PATHS.index(path) <= PATHS.index(limit)
            assert (("all_reduce", "ring", "LL128") in table.entries) == near
    assert ("all_reduce", "ring", "LL128") not in tuner.table(ring_only(60)).entries


def ring_only(capability: int, nodes: int = 2, cpu: str = "intel", **graph: Any) -> Communicator:
    """8 ranks a node on a ring of 4 × 20 GB/s, or another graph."""
    ring = ChannelGraph.model_validate({"channels": 4, "intra": 20, "inter": 20, "pattern": "ring", **graph})
    return Communicator(8 * nodes, nodes, "nccl", capability, cpu, 50, {"ring": ring, "tree": ring})


def test_hosts_decide_too() -> None:
    """The tree's hop over PCIe on POWER is the ring's; NVLSTree of Blackwell is corrected with x86, from 2.28 on."""
    power, intel = (
        tuner.table(ring_only(70, 1, cpu, type_intra="PHB")).entries["all_reduce", "tree", "Simple"]
        for cpu in ("ibm", "intel")
    )
    assert power.latency_us - intel.latency_us == pytest.approx(2 * 7 * (5.7 - 4.0))
    b200 = communicator(load_system("hgx-b200"), 2)
    for version, share in (("2.27", 1.0), ("2.28", 0.5), ("2.30", 0.5)):
        corrected, plain = (tuner.table(replace(b200, cpu=cpu), version) for cpu in ("intel", "arm"))
        entry = plain.entries["all_reduce", "nvls_tree", "Simple"]
        for table, factor in ((corrected, share), (plain, 1.0)):
            moved = (1 << 20) / entry.bandwidth_GBps / 1000 / factor
            took = table.time_us("all_reduce", "nvls_tree", "Simple", 1 << 20)
            assert took == pytest.approx(entry.latency_us + moved)


def test_a_long_ring_waits_longer() -> None:
    """Over several nodes the ring's latency with Simple is 1.4 times as long once channels fill, 1.9 times on Volta."""
    for system, factor in (("hgx-h100", 1.4), ("dgx1-v100", 1.9)):
        table = make(system, 2)
        entry = table.entries["all_reduce", "ring", "Simple"]
        full = 64 * 16 * table.communicator.channels
        for size, times in ((full - 1, 1), (full, factor)):
            waited = table.time_us("all_reduce", "ring", "Simple", size) - size / entry.bandwidth_GBps / 1000
            assert waited == pytest.approx(times * entry.latency_us)


def test_rccl_is_corrected_by_size() -> None:
    """RCCL corrects the ring over several nodes only, whatever it carries, and takes the last entry for all larger
    sizes."""
    one, two = make("mi300x"), make("mi300x", 2)
    for (table, share), collective in itertools.product(((one, 1.0), (two, 0.1)), COLLECTIVES):
        entry = table.entries[collective, "ring", "LL"]
        moved = (1 << 40) / entry.bandwidth_GBps / 1000 / share
        assert table.time_us(collective, "ring", "LL", 1 << 40) == pytest.approx(entry.latency_us + moved)
    assert ("all_reduce", "tree", "Simple") in two.entries and ("all_reduce", "tree", "Simple") not in one.entries
    assert not {p for _, _, p in two.entries} & {"LL128"}


def test_channels_of_kernels() -> None:
    """Twice the search's; four times for fast channels across nodes from Hopper on, unless there are 16 by then."""
    assert ring_only(90).channels == 8 and ring_only(80, intra=48).channels == 8
    assert ring_only(90, intra=48).channels == 16 and ring_only(90, intra=45).channels == 8
    assert ring_only(90, intra=48, channels=8).channels == 16 and ring_only(90, 1, intra=48).channels == 8
    assert ring_only(90, channels=40).channels == 64


@pytest.mark.parametrize(
    ("nodes", "gpus", "nic", "channels"),
    [(1, 8, 50, 24), (2, 8, 50, 32), (2, 8, 25, 32), (3, 8, 100, 24), (3, 9, 100, 16), (3, 8, 50, 24), (3, 8, 25, 32)],
)
def test_channels_of_nvls_on_blackwell(nodes: int, gpus: int, nic: float, channels: int) -> None:
    """NVLS on Blackwell has 24 or 32 channels, by nodes, NICs and GPUs a node, and 16 between racks."""
    graph = ChannelGraph(channels=8, intra=48, inter=48, pattern="nvls")
    comm = Communicator(nodes * gpus, nodes, "nccl", 100, "intel", nic, {"ring": graph, "nvls": graph})
    assert comm.nvls_channels(tuner_constants.read("nccl")) == channels


# --- releases ---


def test_constants_move_with_releases() -> None:
    """What is known to have moved has moved at that release, and nothing moves between patches."""
    nccl = functools.partial(tuner_constants.read, "nccl")
    assert nccl().model_copy(update={"release": "2.30.7"}) == nccl("2.30.7")
    assert nccl("2.29").ceilings_GBps["nvls_tree"]["blackwell"][2] == 43.8
    assert nccl("2.28").hop_us["net"]["nvls_tree"][2] == 14 and nccl("2.29").hop_us["net"]["nvls_tree"][2] == 20.9
    assert nccl("2.27").nvls_share == pytest.approx(5 / 6) and nccl("2.28").nvls_share is None
    assert [nccl(v).base_us["tree"][2] for v in ("2.18", "2.19", "2.22", "2.23")] == [8.4, 0, 0, 8.4]
    assert [nccl(v).hop_us["nvlink"]["tree"][2] for v in ("2.18", "2.19", "2.22", "2.23")] == [4, 28, 28, 4]
    assert [nccl(v).ceilings_GBps["ll"]["hopper"][0] for v in ("2.20", "2.21")] == [87.7, 141]
    assert [nccl(v).shares["ring_ll"] for v in ("2.20", "2.21")] == [0.25, 0.5]
    old = make("dgx-a100", version="2.20").entries  # 12 x 20 GB/s: a quarter of it to reductions, else a third
    assert old["all_reduce", "ring", "LL"].bandwidth_GBps == pytest.approx(60 * 8 / 14)
    assert old["all_gather", "ring", "LL"].bandwidth_GBps == pytest.approx(80 * 8 / 7)
    twice = nccl("2.27").ceilings_GBps["tree"]
    assert twice["blackwell"] == pytest.approx([2 * ceiling for ceiling in twice["hopper"]])


@pytest.mark.parametrize(
    ("library", "version", "error"),
    [
        ("nccl", "2.17", "NCCL 2.17: the constants of this release are not known; the oldest is 2.18"),
        ("nccl", "new", "'new' is no release; write e.g. 2.27"),
        ("rccl", "2.20.5", "RCCL 2.20.5: the constants of this release are not known; the oldest is 2.21"),
    ],
)
def test_other_releases_are_refused(library: tuner_constants.Library, version: str, error: str) -> None:
    """A release older than what is known is an error that names the oldest."""
    with pytest.raises(InputError, match=error):
        tuner_constants.read(library, version)


@pytest.mark.parametrize(("library", "newest"), [("nccl", "2.31"), ("rccl", "2.21")])
def test_newer_releases_follow_the_newest_rules(library: tuner_constants.Library, newest: str) -> None:
    """A release newer than what is known has the newest constants, and whoever prints it says so."""
    assert tuner_constants.newer_than_known(newest, library) is None
    for version in ("2.32.6", "2.99", "3.0"):
        ours, known = (tuner_constants.read(library, v).model_dump() for v in (version, newest))
        assert {**ours, "release": newest} == known
        assert f"{library.upper()} {version} is not known, so the rules of {newest}" in str(
            tuner_constants.newer_than_known(version, library)
        )
    assert simcoll("tune", "mi300x", "--version", "2.22.3").out.startswith(
        "RCCL 2.22.3 is not known, so the rules of 2.21"
    )
    words = ["predict", "all_reduce", "--on", "hgx-h100", "--size", "1 MiB", "--set", "library_version=2.99"]
    assert simcoll(*words).out.startswith("NCCL 2.99 is not known, so the rules of 2.31")


STEP = "{template: ddp, forward: 1 ms, layers: [{parameters: 1 MiB, backward: 1 ms}], optimizer: 0 us, algorithm: ring}"


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "all_reduce", "--size", "1 MiB"],
        ["explain", "all_reduce", "--size", "1 MiB", "--no-what-if"],
        ["recommend", "all_reduce", "--size", "1 MiB", "--among", "ring"],
        ["run", "llama3-step", "--set", f"workload={STEP}"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_every_door_says_that_a_release_is_newer_than_all_known(words: list[str]) -> None:
    """Law: whatever is asked of a release that is newer than all whose rules are known, the answer says so,
    once, before all else."""
    said = "RCCL 2.22 is not known, so the rules of 2.21"
    told = simcoll(*words, "--on", "mi300x", "--set", "library_version=2.22").out
    assert told.startswith(said) and told.count(said) == 1
    assert said not in simcoll(*words, "--on", "mi300x").out


def test_python_says_that_a_release_is_newer_than_all_known() -> None:
    """Law: a prediction, results and parts of them say so where they are printed, and only then."""
    for version, said in (("2.30", False), ("2.99", True)):
        keys = {"topology": "hgx-h100", "collective": "all_reduce", "size": ["1 KiB", "1 MiB"]}
        results = sc.run(keys, library_version=version)
        single = sc.predict(keys, size="1 MiB", library_version=version)
        for shown in (str(results), str(results[:1]), str(results.where(size_bytes=1024)), str(single)):
            assert shown.startswith("NCCL 2.99 is not known, so the rules of 2.31") == said
        assert ("NCCL 2.99" in results._repr_html_()) == said


@pytest.mark.parametrize("command", ["compare", "diagnose", "calibrate"])
def test_a_table_of_a_newer_release_is_said(command: str, tmp_path: Path) -> None:
    """A table measured with a release newer than all known is judged by the rules of the newest, and that is said."""
    table = tmp_path / "measured.csv"
    words = ["--free", "launch", "-o", tmp_path / "fitted.yaml"] if command == "calibrate" else []
    for version, warned in (("2.21.5", False), ("2.27.3", True)):
        rows = "".join(f"{version},all_reduce,8,{size},{time}\n" for size, time in ((1024, 19), (4096, 20), (8192, 21)))
        table.write_text(f"library_version,collective,ranks,size_bytes,time_us\n{rows}")
        printed = simcoll(command, table, "--on", "mi300x", *words).out
        assert ("RCCL 2.27 is not known, so the rules of 2.21" in printed) == warned


# --- NCCL_ALGO, NCCL_PROTO ---


def left(algo: str | None = None, proto: str | None = None) -> dict[str, set[str]]:
    """The pairs that are left on two nodes of H100, by collective."""
    found: dict[str, set[str]] = {}
    comm = communicator(load_system("hgx-h100"), 2)
    for collective, algorithm, protocol in tuner.table(comm, None, environment.selection(algo, proto)).entries:
        found.setdefault(collective, set()).add(f"{algorithm}/{protocol}")
    return found


def test_grammar_of_selections() -> None:
    """Lists, exceptions and lists of single collectives do what they do in NCCL; case does not matter."""
    assert left("Tree", "simple") == {"all_reduce": {"tree/Simple"}}
    assert left("^ring,tree") == {"all_reduce": {"nvls_tree/Simple"}}
    assert left("allreduce:NVLSTree") == {**left(), "all_reduce": {"nvls_tree/Simple"}}
    assert left("ring;allreduce:tree", "LL") == {**left("ring", "LL"), "all_reduce": {"tree/LL"}}
    assert left(proto="^LL128;allgather:LL128")["all_gather"] == {"ring/LL128"}
    assert left(proto="^LL128;allgather:LL128")["all_reduce"] == left(proto="LL,Simple")["all_reduce"]
    assert left("") == left() and len(left()["all_reduce"]) == 7


@pytest.mark.parametrize(
    ("algo", "proto", "error"),
    [
        ("rng", None, "NCCL_ALGO: 'rng' is no algorithm; did you mean 'ring'?"),
        (None, "LL,", "NCCL_PROTO: '' is no protocol; choose from"),
        ("allreduc:ring", None, "NCCL_ALGO: 'allreduc' is no collective; did you mean 'allreduce'?"),
        ("allreduce:ring;tree", None, "NCCL_ALGO: 'tree' names no collective; write e.g. allreduce:ring"),
    ],
)
def test_wrong_selections(algo: str | None, proto: str | None, error: str) -> None:
    """A word that NCCL does not know is named, with the nearest one."""
    with pytest.raises(InputError) as raised:
        environment.selection(algo, proto)
    assert error in str(raised.value)


# --- graph files ---

XML = """\
<?xml version="1.0"?>
<graphs version="1">
  <!-- as NCCL_GRAPH_DUMP_FILE writes it -->
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="12" speedinter="12.5" latencyinter="1.5"
         typeintra="PHB" typeinter="PIX" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="3"/><gpu dev="2"/><gpu dev="1"/><net dev="0"/></channel>
    <channel><gpu dev="0x1"/><gpu dev="0x2"/><gpu dev="0x3"/><gpu dev="0x0"/></channel>
  </graph>
  <graph id="1" pattern="1" nchannels="1" speedintra="24" speedinter="12" typeintra="NVL" typeinter="SYS">
    <channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/></channel>
  </graph>
  <graph id="3" pattern="5" nchannels="0" speedintra="0" speedinter="0" typeintra="NVL" typeinter="PIX"/>
</graphs>
"""


def test_graph_files_are_read(tmp_path: Path) -> None:
    """A graph file says channels, speeds, paths and orders; graphs without channels are left out."""
    (tmp_path / "graph.xml").write_text(XML)
    found, gpus, across = graph_xml.read(tmp_path / "graph.xml")
    assert gpus == 4 and across == ("<net" in XML) and set(found) == {"ring", "tree"}
    ring, tree = found["ring"], found["tree"]
    assert (ring.channels, ring.intra, ring.inter, ring.latency_us) == (2, 12, 12.5, 1.5)
    assert ring.orders == ((0, 3, 2, 1), (1, 2, 3, 0)) and not ring.same_channels
    assert (tree.pattern, tree.type_intra, tree.type_inter, tree.same_channels) == ("balanced_tree", "NVL", "SYS", True)


def test_graph_files_take_the_place_of_stored_graphs(tmp_path: Path) -> None:
    """`--graph` decides channels, speeds and the number of GPUs a node; LL128 goes by its paths."""
    (tmp_path / "graph.xml").write_text(XML)
    told = simcoll("tune", "hgx-h100", "--nodes", 2, "--graph", tmp_path / "graph.xml", "--json").json
    assert told["ranks"] == 8 and told["channels"] == 2 and told["graphs"]["ring"]["type_intra"] == "PHB"
    rows = {(r["collective"], r["algorithm"], r["protocol"]): r for r in told["table"]}
    assert {p for _, _, p in rows} == {"LL", "Simple"}
    assert rows["all_gather", "ring", "Simple"]["bandwidth_GBps"] == pytest.approx(24 * 8 / 7)
    assert rows["all_gather", "ring", "LL"]["latency_us"] == pytest.approx(6.6 + 6 * 1.0 + 2.7 + 1.5)
    assert rows["all_gather", "ring", "Simple"]["latency_us"] == pytest.approx(8.4 + 6 * 5.7 + 14 + 2 * 1.5)
    wrong = simcoll("tune", "hgx-h100", "--ranks", 8, "--graph", tmp_path / "graph.xml")
    assert wrong.status == 2 and "the graphs go through 4 GPUs a node, not 8; take 4 ranks" in wrong.err


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("<graphs", "<graps"), "x.xml:2:1: graps: is not the root of a graph file"),
        (('nchannels="2"', 'nchannels="3"'), "nchannels='3', but the number of channels is 2; write nchannels=\"2\""),
        (('pattern="4"', 'pattern="9"'), "x.xml:4:3: graph: pattern='9' is not known; choose from"),
        (('pattern="4" ', ""), "x.xml:4:3: graph: no attribute 'pattern'; add it"),
        (('speedintra="12"', 'speedintra="nan"'), "speedintra='nan' is no number from 0 to a million"),
        (('speedintra="12"', 'speedintra="0"'), "speedintra is 0; write GB/s of a channel"),
        (('typeintra="PHB"', 'typeintra="PHX"'), "typeintra='PHX' is not known; did you mean"),
        (('id="1"', 'id="0"'), "x.xml:9:3: graph: id='0' is not known, or stands twice"),
        (('id="0"', 'id="2"'), "x.xml:2:1: graphs: has no ring (id 0) with channels"),
        (('<gpu dev="3"/>', '<gpu dev="0"/>'), "x.xml:6:5: channel: has no GPU, or one GPU twice"),
        (('<gpu dev="3"/>', '<gpu dev="x"/>'), "x.xml:6:42: gpu: dev='x' is no number"),
        (("?>", ' encoding="none"?>'), "x.xml:1:1: not XML: unknown encoding: none; write it in UTF-8"),
        (("?>", ' encoding="big5"?>'), "x.xml:1:1: not XML: multi-byte encodings are not supported"),
        (('<gpu dev="3"/>', ""), "x.xml:4:3: graph: channels have different numbers of GPUs"),
        (('<gpu dev="3"/>', "<nic/>"), "nic: is not allowed in <channel>"),
        (('<gpu dev="3"/>', "<gpu dev='3'><a/></gpu>"), "a: too many or too deeply nested elements"),
    ],
)
def test_mistakes_in_graph_files_are_found_there(change: tuple[str, str], error: str) -> None:
    """A mistake in a graph file is told by its line; entities are not expanded."""
    with pytest.raises(InputError) as raised:
        graph_xml.parse(XML.replace(*change, 1).encode(), "x.xml")
    assert error in str(raised.value)


@given(st.integers(0, len(XML) - 1), st.binary(max_size=4), st.integers(0, 30))
def test_no_graph_file_breaks_the_reader(place: int, what: bytes, gone: int) -> None:
    """Whatever is put into a graph file, it is read or refused with a cure."""
    data = XML.encode()
    try:
        found = graph_xml.parse(data[:place] + what + data[place + gone :], "x.xml")
    except InputError as error:
        assert all(diagnostic.cure for diagnostic in error.diagnostics)
    else:
        assert found.gpus >= 1


# --- protocols, channels and threads ---


def test_protocols() -> None:
    """Efficiency, steps and chunks are as published; slices divide chunks, chunks the buffer."""
    wires = protocols.figures().protocols
    assert [wires[p].efficiency for p in PROTOCOLS] == [0.5, 0.9375, 1]
    assert [protocols.step_bytes(p) for p in PROTOCOLS] == [32 << 10, 576000, 512 << 10]
    assert protocols.chunk_bytes("all_reduce", "ring", "Simple") == 2 * protocols.slice_bytes(
        "all_reduce", "ring", "Simple"
    )
    for collective in COLLECTIVES:
        for protocol in PROTOCOLS:
            buffer = protocols.figures().steps * protocols.step_bytes(protocol)
            assert buffer % protocols.chunk_bytes(collective, "ring", protocol) == 0


def test_small_calls_get_few_channels() -> None:
    """Channels go first and threads next; a large call gets all; NVLS has its own. None has less than 32 KiB to send,
    before 2.28 less than 16, twice for each byte of an all_reduce."""
    comm, figures = communicator(load_system("hgx-h100")), tuner_constants.read("nccl")
    for algorithm, protocol, size, shape in (
        ("ring", "LL", 256 << 10, (8, 512)),  # 8 ranks: 8 * 8 * 512 B a channel
        ("ring", "LL", 8, (1, 96)),
        ("ring", "LL", 200 * 8 * 8, (1, 128)),
        ("ring", "LL128", 8, (1, 320)),
        ("ring", "Simple", 1 << 30, (24, 544)),
        ("tree", "LL128", 8, (1, 640)),
        ("nvls", "Simple", 8, (1, 640)),
        ("nvls", "Simple", 1 << 20, (16, 640)),
    ):
        assert launch_shape(comm, figures, "all_reduce", algorithm, protocol, size) == shape  # type: ignore[arg-type]
    for release, collective, channels in (("2.30", "all_reduce", 8), ("2.27", "all_reduce", 16), ("2.27", "reduce", 8)):
        known = tuner_constants.read("nccl", release)
        for algorithm in ("ring", "tree") if collective == "all_reduce" else ("ring",):
            assert launch_shape(comm, known, collective, algorithm, "LL128", 128 << 10).channels == channels
    sizes = [launch_shape(comm, figures, "all_reduce", "ring", "Simple", size).channels for size in SIZES]
    assert sizes == sorted(sizes) and sizes[0] == 1


# --- the command ---


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("hgx-h10", "'hgx-h10' is no shipped system; did you mean"),
        ("loopback", "loopback does not describe its GPUs"),
        ("hgx-h100 --version 2.1", "NCCL 2.1: the constants of this release are not known"),
        ("hgx-h100 --nodes 2 --ranks 5", "5 ranks on 2 nodes are not equally many on each; take a multiple of 2"),
        ("hgx-h100 --ranks 16", "hgx-h100 has 8 GPUs a node, not 16"),
        ("hgx-h100 --nodes 4 --ranks 2", "2 ranks on 4 nodes are not equally many on each"),
        ("hgx-h100 --algo pat", "--algo and --proto exclude all pairs"),
        ("hgx-h100 --graph no-such.xml", "no-such.xml: cannot be read"),
        ("hgx-h100 --on dgx-a100", "`simcoll tune` takes exactly one system; name it: simcoll tune SYSTEM"),
        ("--nodes 2", "`simcoll tune` takes exactly one system; name it"),
        ("hgx-h100 --nodes 0", "--nodes: '0' is no number of nodes; give 1, 2"),
    ],
)
def test_what_tune_refuses(words: str, error: str) -> None:
    """Wrong input ends with status 2, one line, and nothing on stdout."""
    done = simcoll("tune", *words.split())
    assert done.status == 2 and done.out == "" and error in done.err and len(done.err.splitlines()) == 1


def test_several_nodes_are_tuned_one_after_the_other() -> None:
    """A system by --on, and a list of nodes, are what each of them is alone."""
    each = [simcoll("tune", "hgx-h100", "--nodes", nodes, "--json").json for nodes in (1, 2)]
    for nodes in ("1,2", "[1, 2]"):
        assert simcoll("tune", "--on", "hgx-h100", "--nodes", nodes, "--json").json["nodes"] == each
    assert simcoll("tune", "--on", "hgx-h100", "--json").json == each[0]


@given(st.integers(1, 2**40), st.sampled_from(WITH_GPUS), st.sampled_from([1, 2, 3, 16]))
def test_the_choice_is_the_least(size: int, name: str, nodes: int) -> None:
    """Whatever the size, nothing in the table is predicted to be faster than the choice."""
    table = make(name, nodes)
    for collective in COLLECTIVES:
        choice = table.choose(collective, size)
        times = [table.time_us(*pair, size) for pair in table.entries if pair[0] == collective]
        assert choice is not None and choice.time_us == min(times) and math.isfinite(choice.time_us)


def test_ll128_over_c2c_came_with_2_27() -> None:
    """Before 2.27 the way of a GPU to a NIC over C2C counted as one over the host bridge, too long for LL128; within a
    node LL128 was there."""
    for nodes, version, there in ((1, "2.23", True), (2, "2.23", False), (2, "2.26", False), (2, "2.27", True)):
        entries = tuner.table(communicator(load_system("gh200-4"), nodes, 4 * nodes), version).entries
        assert (("all_reduce", "ring", "LL128") in entries) == there


# --- what switches reduce ---


@pytest.mark.parametrize(("dtype", "operators"), [
    ("int8", ""), ("uint8", ""), ("int32", "sum min max"), ("int64", "sum min max"), ("float16", "sum min max"),
    ("bfloat16", "sum min max"), ("float32", "sum"), ("float64", "sum"),
])  # fmt: skip
@pytest.mark.parametrize("nodes", [1, 2])
def test_nvls_takes_what_switches_reduce(dtype: str, operators: str, nodes: int) -> None:
    """Without a switch that reduces, the table is that of NCCL_ALGO without NVLS and NVLSTree, but for all_gather."""
    comm = communicator(load_system("hgx-h100"), nodes, None)
    whole = tuner.table(comm).entries
    without = {key: entry for key, entry in whole.items() if key[0] == "all_gather" or "nvls" not in key[1]}
    assert len(without) < len(whole)
    for op in OPERATORS:
        serves = tuner.switch_reduces(dtype, op)
        assert serves == (op in operators.split())
        assert tuner.table(comm, switch_reduces=serves).entries == (whole if serves else without)


@pytest.mark.parametrize(
    ("option", "key"),
    [
        (("--algo", "ring"), "env.NCCL_ALGO=ring"),
        (("--version", "2.20"), "library_version=2.20"),
        (("--nodes", "2"), "topology.nodes=2"),
    ],
)
def test_set_says_what_the_options_of_tune_say(option: tuple[str, str], key: str) -> None:
    """Law: an option is a key of a scenario, under another name."""
    by_key = simcoll("tune", "hgx-h100", "--set", key, "--json").json
    assert by_key == simcoll("tune", "hgx-h100", *option, "--json").json != simcoll("tune", "hgx-h100", "--json").json


def test_set_reaches_the_variables_of_nccl_and_refuses_what_the_tuner_does_not_know() -> None:
    """Channels are those that the variable leaves; a key of another part of a scenario is named with what to write."""
    assert simcoll("tune", "hgx-h100", "--set", "env.NCCL_MAX_NCHANNELS=4", "--json").json["channels"] == 4
    wrong = simcoll("tune", "hgx-h100", "--set", "model.sharing=fifo")
    assert "--set[1]: the tuner does not know 'model'; set env, library_version or topology" in wrong.err
