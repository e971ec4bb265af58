"""Topologies of other programs: what their files say, and what they leave open."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import foreign
import pytest
from command import simcoll
from foreign import brought

from simcoll.config import yaml_tree
from simcoll.errors import InputError, SimcollError
from simcoll.formats import importers
from simcoll.formats.topologies import infragraph, nccl_xml, nvidia_smi
from simcoll.scenario import scenario_files
from simcoll.topology import topology_builder
from simcoll.topology.graph import Topology
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import load_system


def topology_of(path: Path) -> Topology:
    """The topology of a file."""
    return topology_builder.build(scenario_files.topology_spec(str(path)))


def bandwidth(topology: Topology, u: str, v: str) -> float:
    """GB/s from one device of the only node to another."""
    return float(topology.graph.edges[f"node0.{u}", f"node0.{v}"]["link"].bandwidth / 1e9)


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [(foreign.RING, "r.yaml", ".json"), (foreign.RING, "r", ".json"), (foreign.MATRIX, "m.json", ".yaml")],
)
def test_what_could_not_be_used_is_not_written(tmp_path: Path, text: str, wrong: str, right: str):
    """Schedules and topologies are known by how their names end: another name is refused, with what to use."""
    (tmp_path / "given").write_text(text)
    done = simcoll("import", tmp_path / "given", "-o", tmp_path / wrong)
    assert (done.status, done.out, list(tmp_path.iterdir())) == (2, "", [tmp_path / "given"])
    assert done.err.startswith(f"{tmp_path / wrong}: wrong ending for a ") and done.err.endswith(
        f"; end its name in {right}\n"
    )


def test_a_matrix_of_nvidia_smi_is_a_machine(tmp_path: Path):
    """NV12 between all is an NVSwitch of 12 NVLinks a GPU, PXB a shared PCIe switch, SYS another socket; NICs that are
    near no GPU are left out, and all that was assumed is told."""
    path, done = brought(tmp_path, foreign.MATRIX)
    found = topology_of(path)
    kinds = {kind: len(found.of_kind(kind)) for kind in set(found.kinds.values())}
    assert kinds == {"gpu": 4, "nic": 2, "nvswitch": 1, "pcie_switch": 2, "cpu": 2}
    assert bandwidth(found, "gpu3", "nvswitch0") == 240
    assert bandwidth(found, "nic1", "pcie_switch1") == bandwidth(found, "gpu2", "pcie_switch1") == 24
    for line in ("speeds and latencies", "dgx-a100", "NIC2: none shares a PCIe switch", "nic1 is mlx5_1"):
        assert line in done.out
    assert "# assumed: speeds" in path.read_text()  # the file tells it too


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [name for name in shipped_systems() if (gpu := load_system(name).gpu) and gpu.vendor == "nvidia"]
)
def test_the_matrix_of_a_shipped_system_gives_its_times(name: str, tmp_path: Path):
    """Law: import of what `nvidia-smi topo -m` prints on a shipped system gives a machine with this system's times."""
    path, _ = brought(tmp_path, foreign.matrix_of(name), "--assume", name)
    for nodes in range(1, 3 if load_system(name).nic and "72" not in name else 2):
        asked = ["predict", "all_reduce", "--size", "64 MiB", "--nodes", nodes, "--json", "--on"]
        assert len({simcoll(*asked, on).json["points"][0]["time_us"] for on in (path, name)}) == 1


@pytest.mark.parametrize(
    ("cells", "gpus", "assumed", "switched"),
    [
        ("NV4", 4, "hgx-a100-4", False), ("NV4", 4, "dgx-a100", False), ("NV6", 4, "gh200-4", False),
        ("NV6", 4, "hgx-h100", False), ("NV2", 4, "dgx1-v100", False), ("NV4", 3, "dgx-a100", False),
        ("NV12", 2, "dgx-a100", True), ("NV8", 8, "dgx-a100", True), ("NV8", 8, "hgx-h100", True),
        ("NV6", 16, "dgx1-v100", True),
        ("NV18", 2, "hgx-h100", True), ("NV8", 4, "hgx-h100", True),
    ],
)  # fmt: skip
def test_a_mesh_is_a_mesh(cells: str, gpus: int, assumed: str, switched: bool):
    """Behind switches all NVLinks of a GPU lead to each other GPU; pairs that share its links are joined directly."""
    sketch = nvidia_smi.read(matrix(gpus, lambda *_: cells), "x", assumed)
    assert bool(sketch.counts["nvswitch"]) == switched


def matrix(gpus: int, cell: Callable[[int, int], str]) -> str:
    """What `nvidia-smi topo -m` prints of GPUs with these ways between two of them."""
    names = [f"GPU{i}" for i in range(gpus)]
    rows = [[a, *("X" if i == j else cell(i, j) for j in range(gpus))] for i, a in enumerate(names)]
    return "\n".join(map("\t".join, [["", *names], *rows]))


def test_a_gpu_that_lost_nvlinks_stays_behind_the_switch():
    """A pair has as many NVLinks as the GPU with fewer; a matrix that no switch explains fits no machine with one."""
    sketch = nvidia_smi.read(matrix(8, lambda a, b: "NV17" if 3 in (a, b) else "NV18"), "x", "hgx-h100")
    speeds = {pair: link.bandwidth for pair, link in sketch.links.items()}
    assert speeds["gpu3", "nvswitch0"] / speeds["gpu0", "nvswitch0"] == pytest.approx(17 / 18)
    assert "all pairs have NV18, GPU3 of NV17" in str(sketch.notes)
    with pytest.raises(SimcollError, match="pairs differ in NVLinks, and there a switch joins all"):
        nvidia_smi.read(matrix(3, lambda a, b: "SYS" if 2 in (a, b) else "NV18"), "x", "hgx-h100")


def test_bridges_between_pairs_are_no_mesh(tmp_path: Path):
    """A ring over GPUs of which NVLink joins only pairs goes over PCIe between them, and is no faster."""
    cells = {"01": "NV4", "10": "NV4", "23": "NV4", "32": "NV4"}
    rows = [
        [f"GPU{a}", *("X" if a == b else cells.get(f"{a}{b}", "SYS") for b in range(4)), f"0-{a}", f"{a // 2}"]
        for a in range(4)
    ]
    text = "\n".join(map("\t".join, [["", *(f"GPU{b}" for b in range(4)), "CPU Affinity", "NUMA Affinity"], *rows]))
    path, _ = brought(tmp_path, text, "--assume", "a40-pcie")
    asked = ["predict", "all_reduce", "--algorithm", "ring", "--size", "1 GiB", "--json", "--on"]
    for on, most in ((path, 24), ("h100-nvl", 48)):
        assert simcoll(*asked, on).json["points"][0]["busbw_GBps"] <= most


def test_nvlinks_of_a_virtual_machine_lead_to_its_switch(tmp_path: Path):
    """A cloud's dump says that NVLinks end at the GPU that they begin at; they lead to the NVSwitch all the same."""
    here = ""

    def own(match: re.Match[str]) -> str:
        nonlocal here
        here = match[2] if match[1] == "busid" else here
        return match[0] if match[1] == "busid" else f'target="{here}"'

    text = re.sub(r'(busid|target)="(.*?)"', own, foreign.TOPOLOGY)
    assert text != foreign.TOPOLOGY
    assert nccl_xml.read_topology(text, "x").links == nccl_xml.read_topology(foreign.TOPOLOGY, "x").links


def test_gpus_that_are_processors_too_have_no_pcie_width():
    """Linux writes a width of 255 lanes where there is no PCIe, as on MI300A: NCCL's 16 lanes."""
    text = foreign.TOPOLOGY.replace('link_width="16"', 'link_width="255"')
    assert text != foreign.TOPOLOGY
    assert nccl_xml.read_topology(text, "x").links == nccl_xml.read_topology(foreign.TOPOLOGY, "x").links


def test_infragraph_may_have_a_name_on_top():
    """All keys below `infrastructure:` are the same machine."""
    below = "infrastructure:\n" + re.sub(r"(?m)^(?=.)", "  ", foreign.INFRAGRAPH)
    assert infragraph.read(below, "x").document("x") == infragraph.read(foreign.INFRAGRAPH, "x").document("x")


@pytest.mark.parametrize("on_top", [True, False])
def test_infragraph_on_one_line_is_known(on_top: bool, tmp_path: Path):
    """JSON as programs write it, with nothing at the start of a line, is read as the indented file is."""
    keys = yaml_tree.parse(foreign.INFRAGRAPH, "x").plain()
    (tmp_path / "one.json").write_text(json.dumps({"infrastructure": keys} if on_top else keys))
    (tmp_path / "many.yaml").write_text(foreign.INFRAGRAPH)
    names = ("one.json", "many.yaml")
    one, many = (simcoll("import", tmp_path / name, "-o", tmp_path / f"{name}.yaml") for name in names)
    assert (one.status, one.out.splitlines()[1:]) == (many.status, many.out.splitlines()[1:])


@pytest.mark.parametrize("change", ["spaces", "plain", "crlf"])
def test_a_matrix_may_have_been_pasted(change: str):
    """Spaces for tabs, no colours, other line ends: the machine is the same."""
    text = {
        "spaces": re.sub(r"\t+", "   ", foreign.MATRIX),
        "plain": re.sub(r"\x1b\[\d*m", "", foreign.MATRIX),
        "crlf": foreign.MATRIX.replace("\n", "\r\n"),
    }[change]
    assert nvidia_smi.read(text, "x").links == nvidia_smi.read(foreign.MATRIX, "x").links


def test_an_old_matrix_has_direct_nvlinks(tmp_path: Path):
    """Pairs that differ in NVLinks are joined directly; SOC is SYS; columns after the devices may be missing."""
    found = topology_of(brought(tmp_path, foreign.OLD_MATRIX)[0])
    assert bandwidth(found, "gpu0", "gpu1") == 20 and bandwidth(found, "gpu0", "gpu2") == 40
    assert len(found.of_kind("cpu")) == 2 and not found.of_kind("nvswitch")


def test_nccl_dumps_say_their_speeds(tmp_path: Path):
    """PCIe, NICs, NVLinks and sockets as NCCL counts them; GPUs by their number; a bridge of generation 1 above faster
    devices is warned about, with its line, and not believed."""
    path, done = brought(tmp_path, foreign.TOPOLOGY)
    found = topology_of(path)
    assert bandwidth(found, "gpu0", "nvswitch0") == bandwidth(found, "gpu2", "nvswitch0") == pytest.approx(370.8)
    assert bandwidth(found, "pcie_switch0", "cpu0") == 48 and bandwidth(found, "gpu2", "cpu1") == 48
    assert bandwidth(found, "cpu0", "cpu1") == 22
    assert "rate: 400 Gb/s" in path.read_text()  # two ports of one NIC
    assert "warning: line 5: bridge 0000:08:00.0 says '2.5 GT/s PCIe' x16" in done.out
    assert "left out: eth0" in done.out
    assert simcoll("predict", "all_reduce", "--on", path, "--nodes", 2, "--size", "1 MiB").status == 0


def test_skeletons_are_filled_up(tmp_path: Path):
    """GPUs and NICs are told by their PCI class; NVLinks and NICs are those of the system that `--assume` names."""
    path, done = brought(tmp_path, foreign.SKELETON, "--assume", "dgx-a100")
    assert bandwidth(topology_of(path), "gpu1", "nvswitch0") == 240 and "a skeleton" in done.out
    path, done = brought(tmp_path, foreign.SKELETON, "--assume", "hgx-h100")
    assert bandwidth(topology_of(path), "gpu1", "nvswitch0") == pytest.approx(370.8) and "as was asked for" in done.out


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        (foreign.SKELETON, ["dgx1-v100", "dgx-a100", "hgx-h100"]),
        (foreign.GRAPH, ["a100-pcie", "l40s-pcie"]),
        (foreign.MATRIX.replace("NV12", "NV18"), ["hgx-h100", "hgx-h200", "hgx-b200"]),
    ],
    ids=["skeleton", "graph", "matrix"],
)
def test_a_machine_is_not_guessed(tmp_path: Path, text: str, choices: list[str]):
    """Where a file may be of several machines, import ends with status 1, names them, and writes nothing; a name that
    no system has is wrong input."""
    (tmp_path / "given").write_text(text)
    done = simcoll("import", tmp_path / "given", "-o", tmp_path / "made.yaml")
    assert (done.status, done.out, list(tmp_path.iterdir())) == (1, "", [tmp_path / "given"])
    assert all(name in done.err.partition("--assume")[2] for name in choices)
    wrong = simcoll("import", tmp_path / "given", "--assume", "hgx-h10")
    assert wrong.status == 2 and "did you mean 'hgx-h100'" in wrong.err
    assert simcoll("import", tmp_path / "given", "--assume", choices[0]).status == 0


def test_gpus_without_their_nvlinks_are_predicted_as_such(tmp_path: Path):
    """A dump without NVLinks names no profile of GPUs that have them; the one fitted over PCIe answers, and is the cure
    where another is asked for."""
    path, done = brought(tmp_path, re.sub(r"<nvlink[^>]*/>", "", foreign.TOPOLOGY))
    assert "GPUs are not joined by nvlink, unlike those of hgx-h100" in done.out
    asked = ["predict", "all_reduce", "--on", path, "--size", "1 MiB"]
    assert "profile nccl-pcie" in simcoll(*asked).out
    assert simcoll(*asked, "--profile", "nccl-hopper").err.strip().endswith("; take nccl-pcie")


def test_each_choice_may_be_assumed(tmp_path: Path):
    """Law: of a matrix that fits no shipped system (fewer NVLinks than H100), those are named that it may be like."""
    (tmp_path / "given").write_text(foreign.MATRIX.replace("NV12", "NV8"))
    said = simcoll("import", tmp_path / "given", "-o", tmp_path / "made.yaml").err
    choices = said.partition("one of ")[2].strip().split(", ")
    assert "hgx-h100" in choices
    assert {simcoll("import", tmp_path / "given", "--assume", name).status for name in choices} == {0}


@pytest.mark.parametrize(
    ("text", "assumed", "why"),
    [
        (foreign.MATRIX, "dgx1-v100", "pairs have NV12, and a GPU there has 6 NVLinks"),
        (foreign.MATRIX, "l40s-pcie", "it has NVLinks"),
        (foreign.MATRIX, "mi300x", "GPUs of NVIDIA"),
        (foreign.OLD_MATRIX, "dgx-a100", "pairs differ in NVLinks"),
        (foreign.TOPOLOGY, "dgx1-v100", "compute capability"),
        (foreign.mi300x(), "hgx-h100", "its GPUs are of AMD"),
    ],
)
def test_what_a_file_contradicts_is_not_assumed(tmp_path: Path, text: str, assumed: str, why: str):
    """A system that the file cannot be of ends the import with status 1, and nothing is written."""
    (tmp_path / "given").write_text(text)
    done = simcoll("import", tmp_path / "given", "-o", tmp_path / "made.yaml", "--assume", assumed)
    assert (done.status, done.out, list(tmp_path.iterdir())) == (1, "", [tmp_path / "given"])
    assert f"does not fit --assume {assumed}: " in done.err and why in done.err


def test_amd_machines_answer_as_the_shipped_one(tmp_path: Path):
    """A dump of 8 MI300X predicts as the shipped system, on one node and two, and so does its skeleton; links are as
    fast as `gcn` says, and other kinds have no profile. No system is taken that has not such GPUs: they are named."""
    bare = re.sub(r"<gpu[^>]*>|</gpu>|<xgmi[^>]*>", "", foreign.mi300x())
    for number, (text, *options) in enumerate([(foreign.mi300x(),), (bare, "--assume", "mi300x")]):
        (folder := tmp_path / str(number)).mkdir()
        path, _ = brought(folder, text, *options)
        for nodes in (1, 2):
            asked = ["predict", "all_reduce", "--nodes", nodes, "--size", "[1 KiB, 64 MiB]", "--json", "--on"]
            times = [[row["time_us"] for row in simcoll(*asked, on).json["points"]] for on in (path, "mi300x")]
            assert times[0] == times[1]
    for kind, speed in (("gfx906", 24), ("gfx90a", 36), ("gfx942", 48)):
        path, done = brought(tmp_path, foreign.mi300x(kind), "--assume", "mi300x")
        assert bandwidth(topology_of(path), "gpu0", "gpu1") == speed
        assert ("no profile fits such GPUs" in done.out) == (speed != 48)


@pytest.mark.parametrize(("kind", "name"), [("908", "gfx908 (MI100)"), ("gfx1100", "gfx1100 (unknown)"), ("", "unkn")])
def test_gpus_of_amd_are_called_what_they_are(kind: str, name: str, tmp_path: Path):
    """A dump of GPUs that no shipped system has names them, asks for a system, and writes nothing."""
    (tmp_path / "given").write_text(foreign.mi300x(kind))
    done = simcoll("import", tmp_path / "given", "-o", tmp_path / "made.yaml")
    assert (done.status, list(tmp_path.iterdir())) == (1, [tmp_path / "given"])
    assert name in done.err and "which no shipped system has; name the nearest with --assume" in done.err


def test_gpus_that_are_not_shipped_keep_their_capability(tmp_path: Path):
    """A dump of GPUs of another compute capability is not said to be of the shipped ones, nor written so."""
    path, done = brought(tmp_path, foreign.TOPOLOGY.replace('sm="90"', 'sm="87"'))
    out = " ".join(done.out.split())
    assert "compute_capability: 87" in path.read_text() and "no shipped system is known to have its GPUs" in out
    assert "warning: GPUs of compute capability 8.7 are predicted with the profile of" in out


def test_matrices_of_rocm_smi(tmp_path: Path):
    """GPUs one hop apart over XGMI are joined, the others over PCIe; a system must be named; 8 such GPUs predict as the
    shipped system does on one node."""
    (tmp_path / "given").write_text(foreign.rocm_smi(8))
    done = simcoll("import", tmp_path / "given")
    assert done.status == 1 and "do not say which 8 GPUs of AMD these are" in done.err
    path, _ = brought(tmp_path, foreign.rocm_smi(8), "--assume", "mi300x")
    asked = ["predict", "all_reduce", "--size", "64 MiB", "--json", "--on"]
    assert len({simcoll(*asked, on).json["points"][0]["time_us"] for on in (path, "mi300x")}) == 1
    found = topology_of(brought(tmp_path, foreign.rocm_smi(4, apart=(0, 3)), "--assume", "mi300x")[0])
    assert bandwidth(found, "gpu0", "gpu1") == 48 and ("node0.gpu0", "node0.gpu3") not in found.graph.edges
    assert len(found.of_kind("cpu")) == 2


def test_graph_files_become_machines_and_graphs(tmp_path: Path):
    """The GPUs have as much as all channels of the ring, and `simcoll tune` finds the graphs in the file."""
    path, _ = brought(tmp_path, foreign.GRAPH, "--assume", "l40s-pcie")
    assert bandwidth(topology_of(path), "gpu0", "pcie_switch0") == 24
    told = simcoll("tune", path, "--nodes", 1, "--json").json
    assert told["ranks"] == 4 and told["graphs"]["ring"]["type_intra"] == "PHB"


def test_graphs_of_one_node_bring_no_nics(tmp_path: Path):
    """Where channels reach no network, the file says nothing of NICs nor of several nodes."""
    inside = re.sub(r'<net dev="\d"/>', "", foreign.GRAPH)
    path, done = brought(tmp_path, inside, "--assume", "l40s-pcie")
    assert not topology_of(path).of_kind("nic") and "no NICs" in done.out
    assert simcoll("tune", path, "--nodes", 1).status == 0
    found = simcoll("predict", "all_reduce", "--on", path, "--nodes", 2, "--size", "1 MiB")
    assert found.status == 2 and "has no NICs" in found.err


def test_infragraph_is_expanded(tmp_path: Path):
    """Instances, components, devices in devices and slices; speeds where links have them, others told."""
    path, done = brought(tmp_path, foreign.INFRAGRAPH)
    found = topology_of(path)
    assert found.nodes == 2 and len(found.ranks) == 4
    link = found.graph.edges["server0.xpu1", "server0.nvsw0"]["link"]
    assert (link.bandwidth, link.latency_ps) == (200 * 10**9, 300_000)  # two chips are one device
    assert found.graph.edges["server1.card1.nic0", "switch0.port3"]["link"].bandwidth == 25 * 10**9
    assert "link 'pcie' (pcie) has no bandwidth" in done.out
    assert simcoll("predict", "all_reduce", "--on", path, "--size", "1 MiB").status == 0


MISTAKES = [
    (foreign.MATRIX, "PXB\tSYS\tNODE\t0-31\t0\t\tN/A\nGPU1", "PXX\tSYS\tNODE\t0-31\t0\t\tN/A\nGPU1",
     "x:2:25: 'PXX' is no connection of devices; cells are X, NV#"),
    (foreign.MATRIX, "NIC1\tSYS\t", "NICX\tSYS\t", "x:1:1: there is no row for NIC1"),
    (foreign.MATRIX, "GPU3\tNV12\t", "GPU3\tNV11\t", "x:1:1: GPU0 to GPU3 is NV12, and back NV11"),
    (foreign.TOPOLOGY, 'link_width="16"', 'link_width="wide"', "x:5:5: pci: link_width='wide' is no whole number"),
    (foreign.TOPOLOGY, "<system", "<sistem", "x: the kind of this file is not recognised"),
    (foreign.TOPOLOGY, "<cpu", "<cqu", "not XML: mismatched tag"),
    (foreign.TOPOLOGY, '<system version="1">', '<!DOCTYPE s [<!ENTITY e "x">]><system version="1">',
     "a document type is not read"),
    (foreign.RING, 'type="rrs"', 'type="rrq"', "x:5:1: step: type='rrq' is not known; did you mean"),
    (foreign.RING, 'type="rrcs"', 'type="rcs"', "it does not do what its collective promises"),
    (foreign.RING, 'recv="3"', 'recv="2"', "waits here for ever; send the message"),
    (foreign.RING, 'srcoff="3"', 'srcoff="9"', "chunk 9 of buffer 'i', which has 4; mend offset or cnt"),
    (foreign.RING, 'coll="allreduce"', 'coll="custom"', "coll='custom' is no collective"),
    (foreign.RING, 'cnt="1"', 'cnt="2"', "receives 1 chunks, and 2 are sent"),
    (foreign.GOAL, "s requires g", "s requires h", "x:22:1: there is no 'h' above"),
    (foreign.GOAL, "recv 1024b from 3", "recv 1024b from 4", "x:20:1: '4' is no number from 0 to 3"),
    (foreign.GOAL, "send 1024b to 3 tag 9", "send 1024b to 3 tag 8", "rank 3 waits here for ever"),
    (foreign.INFRAGRAPH, "scheme: many2many", "scheme: all2all", "x:14:5: scheme 'all2all' is not known"),
    (json.dumps(foreign.plan()), '"repkt"', '"glrex"', "operation 'glrex' cannot be mapped to transfers of chunks"),
    (json.dumps(foreign.switched_plan()), '"glres"', '"put"', "ops.2: operation 'put' cannot be mapped"),
    (json.dumps(foreign.switched_plan()), '[0, 1, 2, 3]', '[0]', "a switch joins two or more ranks, not [0]"),
    (json.dumps(foreign.switched_plan()), '[0, 1, 2, 3]', '[0, 1, 2]', "does not do what its collective promises"),
    (json.dumps(foreign.gather_plan()), '"signal"', '"nop"', "wait waits here for ever"),
    (foreign.TESTS_JSON, '"args"', '"rags"', "x:1:1: the file does not say which collective this is; give collective"),
    (foreign.OSU, "", "", "x:3:1: the file does not say how many ranks took part; give ranks=N, with --where ranks=N"),
    ("hello", "", "", "x: the kind of this file is not recognised; give nvidia-smi topo -m"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "old", "new", "complaint"), MISTAKES)
def test_mistakes_are_named_where_they_are(text: str, old: str, new: str, complaint: str):
    """A file with a mistake is refused with its place, what is wrong and what instead."""
    with pytest.raises(InputError) as caught:
        importers.convert(text.replace(old, new, 1), "x", importers.ImportOptions(collective=_asked(text)))
    assert complaint in str(caught.value)


def _asked(text: str) -> str | None:
    return "all_reduce" if text == foreign.GOAL else None
