"""Other people's files, in and out: what is read is what was written, and what cannot be said is refused by name."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import re
from pathlib import Path

import foreign
import pytest
from command import Outcome, simcoll
from hypothesis import given
from hypothesis import strategies as st

import simcoll as api
from simcoll.config.import_log import ImportLog
from simcoll.config.yaml_tree import shipped
from simcoll.errors import InputError, RefusedError
from simcoll.formats import importers
from simcoll.formats.measured import parse_measured
from simcoll.formats.schedules import goal, msccl, msccl_writer, mscclpp, schedule_json
from simcoll.formats.topologies import infragraph, nccl_xml, nvidia_smi
from simcoll.prediction.result_rows import read as read_results
from simcoll.report import exporters
from simcoll.scenario import loading
from simcoll.schedule import algorithms, registry
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.schedule.ir import Schedule
from simcoll.topology import systems
from simcoll.topology.graph import Topology


def brought(folder: Path, text: str, *options: str) -> tuple[Path, Outcome]:
    """A file after import, and what the command said."""
    (folder / "given").write_text(text)
    assumed = dict(itertools.pairwise(options)).get("--assume")
    asked = importers.ImportOptions(assumed, collective="all_reduce", columns={"ranks": "4"})
    suffix = importers.convert(text, "given", asked).suffixes[0]
    done = simcoll("import", folder / "given", "-o", folder / f"made{suffix}", *options)
    assert done.status == 0, done.err
    return folder / f"made{suffix}", done


def topology_of(path: Path) -> Topology:
    """The topology of a file."""
    return systems.build(loading.topology_spec(str(path)))


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
    assert done.err.startswith(f"{tmp_path / wrong}: no name for a ") and done.err.endswith(f"; end it in {right}\n")


# --- topologies ---


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


def test_nvlinks_of_a_virtual_machine_lead_to_its_switch(tmp_path: Path):
    """A cloud's dump says that NVLinks end at the GPU that they begin at; they lead to the NVSwitch all the same."""
    here = ""

    def own(match: re.Match[str]) -> str:
        nonlocal here
        here = match[2] if match[1] == "busid" else here
        return match[0] if match[1] == "busid" else f'target="{here}"'

    text = re.sub(r'(busid|target)="(.*?)"', own, foreign.TOPOLOGY)
    assert text != foreign.TOPOLOGY
    assert nccl_xml.read(text, "x").links == nccl_xml.read(foreign.TOPOLOGY, "x").links


def test_gpus_that_are_processors_too_have_no_pcie_width():
    """Linux writes a width of 255 lanes where there is no PCIe, as on MI300A: NCCL's 16 lanes."""
    text = foreign.TOPOLOGY.replace('link_width="16"', 'link_width="255"')
    assert text != foreign.TOPOLOGY
    assert nccl_xml.read(text, "x").links == nccl_xml.read(foreign.TOPOLOGY, "x").links


def test_infragraph_may_have_a_name_on_top():
    """All keys below `infrastructure:` are the same machine."""
    below = "infrastructure:\n" + re.sub(r"(?m)^(?=.)", "  ", foreign.INFRAGRAPH)
    assert infragraph.read(below, "x").document("x") == infragraph.read(foreign.INFRAGRAPH, "x").document("x")


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
        (foreign.MATRIX, "dgx1-v100", "pairs have NV12, and there NV2 at most"),
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
    assert f"not like {assumed}: " in done.err and why in done.err


def test_amd_machines_answer_as_the_shipped_one(tmp_path: Path):
    """A dump of 8 MI300X predicts as the shipped system, on one node and two, and so does its skeleton; links are as
    fast as `gcn` says, and other kinds have no profile."""
    bare = re.sub(r"<gpu[^>]*>|</gpu>|<xgmi[^>]*>", "", foreign.mi300x())
    for number, (text, *options) in enumerate([(foreign.mi300x(),), (bare, "--assume", "mi300x")]):
        (folder := tmp_path / str(number)).mkdir()
        path, _ = brought(folder, text, *options)
        for nodes in (1, 2):
            asked = ["predict", "all_reduce", "--nodes", nodes, "--size", "[1 KiB, 64 MiB]", "--json", "--on"]
            times = [[row["time_us"] for row in simcoll(*asked, on).json["points"]] for on in (path, "mi300x")]
            assert times[0] == times[1]
    for kind, speed in (("gfx906", 24), ("gfx90a", 36), ("gfx942", 48)):
        path, done = brought(tmp_path, foreign.mi300x(kind))
        assert bandwidth(topology_of(path), "gpu0", "gpu1") == speed
        assert ("no profile for such GPUs" in done.out) == (speed != 48)


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
    assert (link.bandwidth, link.latency) == (200 * 10**9, 300_000)  # two chips are one device
    assert found.graph.edges["server1.card1.nic0", "switch0.port3"]["link"].bandwidth == 25 * 10**9
    assert "link 'pcie' (pcie) has no bandwidth" in done.out
    assert simcoll("predict", "all_reduce", "--on", path, "--size", "1 MiB").status == 0


MISTAKES = [
    (foreign.MATRIX, "PXB\tSYS\tNODE\t0-31\t0\t\tN/A\nGPU1", "PXX\tSYS\tNODE\t0-31\t0\t\tN/A\nGPU1",
     "x:2:25: 'PXX' is no way between devices; cells are X, NV#"),
    (foreign.MATRIX, "NIC1\tSYS\t", "NICX\tSYS\t", "x:1:1: there is no row for NIC1"),
    (foreign.MATRIX, "GPU3\tNV12\t", "GPU3\tNV11\t", "x:1:1: GPU0 to GPU3 is NV12, and back NV11"),
    (foreign.TOPOLOGY, 'link_width="16"', 'link_width="wide"', "x:5:5: pci: link_width='wide' is no whole number"),
    (foreign.TOPOLOGY, "<system", "<sistem", "x: not known what this is"),
    (foreign.TOPOLOGY, "<cpu", "<cqu", "not XML: mismatched tag"),
    (foreign.TOPOLOGY, '<system version="1">', '<!DOCTYPE s [<!ENTITY e "x">]><system version="1">',
     "a document type is not read"),
    (foreign.RING, 'type="rrs"', 'type="rrq"', "x:5:1: step: type='rrq' is not known; did you mean"),
    (foreign.RING, 'type="rrcs"', 'type="rcs"', "the program does not do what its collective promises"),
    (foreign.RING, 'recv="3"', 'recv="2"', "waits here for ever; for a message that is never sent"),
    (foreign.RING, 'srcoff="3"', 'srcoff="9"', "chunk 9 of buffer 'i', which has 4; let offset and cnt fit"),
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
    (foreign.TESTS_JSON, '"args"', '"rags"', "x:1:1: collective: nothing says collective; give collective=NAME"),
    (foreign.OSU, "", "", "x:3:1: nothing says how many ranks took part; give ranks=N"),
    ('{"traceEvents": []}', "", "", "x: a trace, as PyTorch, Chakra and simcoll write them, which is not read"),
    ("\n\x07\n\x050.0.4H\x08\x01R\x0e\n\tis_cpu_op", "", "", "x: a trace, as PyTorch, Chakra and simcoll write them"),
    ("hello", "", "", "x: not known what this is; give nvidia-smi topo -m"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "old", "new", "complaint"), MISTAKES)
def test_mistakes_are_named_where_they_are(text: str, old: str, new: str, complaint: str):
    """A file with a mistake is refused with its place, what is wrong and what instead."""
    with pytest.raises(InputError) as caught:
        importers.convert(text.replace(old, new, 1), "x", importers.ImportOptions(collective=_asked(text)))
    assert complaint in str(caught.value)


def _asked(text: str) -> str | None:
    return "all_reduce" if text == foreign.GOAL else None


# --- schedules ---


def read(text: str, reader: object = msccl) -> Schedule:
    """The schedule of a text."""
    found: Schedule = reader.read(text, "x", None, ImportLog())  # type: ignore[attr-defined]
    return found


def test_a_ring_of_four_is_the_ring(tmp_path: Path):
    """2(n-1)+1 steps a GPU: the imported ring is proved, and takes as long as ours to the picosecond."""
    path, done = brought(tmp_path, foreign.RING)
    assert done.out.count("rrs") == 1 and "proved: 6 steps, 24 messages" in done.out
    steps = re.findall(r"<step", msccl_writer.dump(algorithms.build("all_reduce", "ring", 4)))
    assert len(steps) == 4 * (2 * 3 + 1)
    (tmp_path / "s.yaml").write_text(
        "topology: {system: hgx-h100}\nprofile: one-port\nranks: 4\ncollective: all_reduce\n"
        f"algorithm: [ring, {path}]\nsize: [1 KiB, 1000000 B, 64 MiB]\nmodel: {{sharing: [fair, fifo], channels: 2}}\n"
    )
    rows = simcoll("run", tmp_path / "s.yaml", "--json").json["points"]
    own, others = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert [row["time_us"] for row in own] == [row["time_us"] for row in others]
    assert {row["proved"] for row in rows} == {"full"} and {row["status"] for row in rows} == {"ok"}


EVERY = [(which, name) for which in registry.ALGORITHMS for name in registry.names(which)]


@pytest.mark.parametrize(("which", "name"), EVERY)
@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.long), 4, pytest.param(5, marks=pytest.mark.long)])
def test_what_is_exported_comes_back(which: str, name: str, n: int):
    """Every registered algorithm that the format can hold is the same schedule after export and import; what it cannot
    hold is refused in words."""
    entry = registry.ALGORITHMS[which][name]
    for root in {0, n - 1 if COLLECTIVES[which].rooted else 0}:
        try:
            schedule = algorithms.build(which, name, n, root=root, agents=int(entry.needs_agent))
        except RefusedError:
            continue
        for writer, reader in ((msccl_writer.dump, msccl), (lambda s: goal.dump(s, 1 << 20), goal)):
            try:
                text = writer(schedule)
            except RefusedError as error:
                held = which not in ("barrier", "send_recv") and name not in ("nvls", "nvls_tree", "ring_unchunked")
                assert not held and "; " in str(error)
                continue
            assert read(text, reader) == schedule
        assert schedule_json.parse(schedule_json.dump(schedule), "x") == schedule


def test_exported_programs_keep_the_executors_rules():
    """A step waits for one other at most, which stands in another thread block of its GPU and is marked; a thread block
    has one peer each way, and no two of a GPU have the same."""
    text = msccl_writer.dump(algorithms.build("all_to_all", "bruck", 8))
    for gpu in text.split("<gpu")[1:]:
        blocks = [block.split("<step")[1:] for block in gpu.split("<tb")[1:]]
        sends = [peer for peer in re.findall(r'send="(-?\d+)"', gpu) if peer != "-1"]
        assert len(set(sends)) == len(sends)
        for number, steps in enumerate(blocks):
            for step in steps:
                depid, deps = map(int, re.search(r'depid="(-?\d+)" deps="(-?\d+)"', step).groups())
                assert depid != number
                assert depid < 0 or 'hasdep="1"' in blocks[depid][deps]


def test_exported_programs_have_room_in_the_executors():
    """With many peers there are several channels, of at most 32 thread blocks of a GPU, and the same at both ends."""
    schedule = algorithms.build("all_to_all", "direct", 34)
    text = msccl_writer.dump(schedule)
    for gpu in text.split("<gpu")[1:]:
        channels = re.findall(r'chan="(\d+)"', gpu)
        assert set(channels) == {"0", "1", "2"} and max(map(channels.count, channels)) <= 32
    schedule = algorithms.build("all_to_all", "direct", 18)
    assert read(msccl_writer.dump(schedule)) == schedule


def test_what_executors_cannot_load_is_said():
    """More than 64 steps in a thread block, or than 64 thread blocks of a GPU, are warned of; less is not."""
    warned = {}
    for name, n in (("ring", 32), ("ring", 34), ("all_pairs", 34), ("all_pairs", 80)):
        notes = ImportLog()
        text = msccl_writer.dump(algorithms.build("all_reduce", name, n), "Simple", notes)
        steps = max(block.count("<step") for block in text.split("<tb")[1:])
        blocks = max(gpu.count("<tb") for gpu in text.split("<gpu")[1:])
        warned[name, n] = len(notes.warnings)
        assert len(notes.warnings) == (steps > 64) + (blocks > 64)
    assert len(set(warned.values())) > 1


def test_one_of_several_programs_in_a_file(tmp_path: Path):
    """Two programs in a file are named, and one of them is read where it is asked for; mistakes keep their lines."""
    (tmp_path / "both.xml").write_text(foreign.RING + foreign.ALL_PAIRS)
    ring, pairs = (re.search(r'name="(.*?)"', text)[1] for text in (foreign.RING, foreign.ALL_PAIRS))  # type: ignore[index]
    done = simcoll("import", tmp_path / "both.xml")
    assert done.status == 2
    assert f"2 programs, {ring}, {pairs}; say which with --set name=NAME" in done.err
    done = simcoll("import", tmp_path / "both.xml", "--set", f"name={pairs}")
    assert schedule_json.parse(done.out, "x") == read(foreign.ALL_PAIRS)
    (tmp_path / "both.xml").write_text(foreign.RING + foreign.ALL_PAIRS.replace('type="', 'type="q', 1))
    line = foreign.RING.count("\n") + foreign.ALL_PAIRS[: foreign.ALL_PAIRS.index('type="')].count("\n") + 1
    assert f":{line}:" in simcoll("import", tmp_path / "both.xml", "--set", f"name={pairs}").err
    (tmp_path / "both.xml").write_text(foreign.RING + foreign.RING)
    assert f"2 programs, {ring}, {ring}; give a file with one" in simcoll("import", tmp_path / "both.xml").err


def test_groups_of_thread_blocks_move_each_chunk_once():
    """What thread blocks do together, each with its share, is what one of them would do alone."""
    alone = foreign.plan()
    together = json.loads(json.dumps(alone))
    for gpu in together["gpus"]:
        (block,) = gpu["threadblocks"]
        gpu["threadblocks"] = [
            {**block, "id": i, "ops": [{**op, "tbg_info": {"tb_id": i, "tbg_size": 3}} for op in block["ops"]]}
            for i in range(3)
        ]
    assert read(json.dumps(together), mscclpp) == read(json.dumps(alone), mscclpp)
    together = json.loads(json.dumps(together))
    for gpu in together["gpus"]:  # each block has its own list of channels, and of buffers
        last = gpu["threadblocks"][2]
        last["channels"][0]["channel_ids"], last["remote_buffer_refs"][0]["remote_buffer_ids"] = [1, 0], [1, 0]
        for op in last["ops"]:
            op["dst_buff"] = [
                {**to, "buffer_id": 1 - to["buffer_id"]} if "buffer_id" in to else to for to in op["dst_buff"]
            ]
    assert read(json.dumps(together), mscclpp) == read(json.dumps(alone), mscclpp)
    together["gpus"][1]["threadblocks"].pop()
    with pytest.raises(
        InputError, match=r"gpus\.1\.threadblocks\.0\.ops\.0: 3 thread blocks do this together, and 2 come"
    ):
        read(json.dumps(together), mscclpp)


def test_semaphores_begin_as_the_plan_says():
    """What a semaphore lets through at first is in the file; where nothing does, its thread block waits for ever."""
    plan = json.loads(json.dumps(foreign.gather_plan()))
    for gpu in plan["gpus"]:
        gpu["semaphores"] = [{"init_value": 1}]
        gpu["threadblocks"][0]["ops"].insert(0, {"name": "sem_acquire", "semaphore_ids": [0]})
    assert read(json.dumps(plan), mscclpp) == read(json.dumps(foreign.gather_plan()), mscclpp)
    plan["gpus"][0]["semaphores"] = [{"init_value": 0}]
    with pytest.raises(InputError, match=r"gpus\.0\.threadblocks\.0\.ops\.0: sem_acquire waits here for ever"):
        read(json.dumps(plan), mscclpp)


def test_plans_of_another_form_are_refused_with_their_place():
    """A plan as older versions wrote them, a channel that nobody lists, a key that is missing."""
    plan = json.loads(json.dumps(foreign.switched_plan()))
    plan["gpus"][1]["channels"] = plan["gpus"][1]["channels"][:1]
    with pytest.raises(
        InputError, match=r"gpus\.1\.threadblocks\.0: it names a channel or a buffer that is not listed"
    ):
        read(json.dumps(plan), mscclpp)
    plan = json.loads(json.dumps(foreign.switched_plan()))
    del plan["gpus"][0]["threadblocks"][0]["ops"][2]["src_buff"][0]["switch_channel_id"]
    with pytest.raises(InputError, match=r"gpus\.0\.threadblocks\.0\.ops\.2: 'switch_channel_id' is missing"):
        read(json.dumps(plan), mscclpp)
    with pytest.raises(InputError, match="older form; make it anew"):
        read(json.dumps(plan).replace("input_chunks", "inputChunks"), mscclpp)


@pytest.mark.parametrize("together", [True, False])
def test_loads_and_stores_by_a_switch_take_what_they_must(together: bool, tmp_path: Path):
    """NVLink SHARP: a rank sends all its S bytes to be summed and its own sum, S/n, to be stored, and receives as much;
    without overheads a large buffer takes (n + 1)/n of what a switch that keeps the sums would take."""
    n = 4
    found = read(json.dumps(foreign.switched_plan(n, together)), mscclpp)
    assert (found.agents, found.messages) == (1, n * (2 * n + 2))
    for column in (found.src, found.dst):
        assert [int((column == rank).sum()) for rank in range(n)] == [n + 1] * n
    path, _ = brought(tmp_path, json.dumps(foreign.switched_plan(n, together)))
    asked = {"size": "4 GiB", "ranks": n, "profile": "ideal"}
    plan, kept = api.run("all_reduce", on="hgx-h100", algorithm=[str(path), "nvls"], **asked)["time_us"]
    assert plan / kept == pytest.approx((n + 1) / n, rel=0.01)
    with pytest.raises(RefusedError, match="reduce and reach every rank, and the machine has none; take"):
        api.predict("all_reduce", on="mi300x", algorithm=str(path), **asked)


def test_a_pipelined_loop_is_its_body():
    """Chunks that are moved in pieces are moved."""
    plan = json.loads(json.dumps(foreign.gather_plan()))
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            context = {"unit_size": 2**20, "num_chunks": 3}
            block["ops"] = [{"name": "pipeline", "iter_context": context, "ops": block["ops"]}]
    assert read(json.dumps(plan), mscclpp) == read(json.dumps(foreign.gather_plan()), mscclpp)


def test_out_of_place_and_scratch_are_mapped(tmp_path: Path):
    """Buffers of their own, scratch, local copies and reductions, several channels, counts: proved, and in place where
    that does the same."""
    found = read(foreign.ALL_PAIRS)
    assert found.n_chunks == 2 and found.messages == 12 and found.n_steps == 2
    leader = read(foreign.LEADER)
    assert [str(row) for row in leader][:1] == ["step 0: chunk 0→1: 1→0"]


def test_buffers_of_one_block_are_the_ranks_own():
    """The input of an all_gather and the output of a reduce_scatter, out of place, are block r of rank r."""
    found = read(json.dumps(foreign.gather_plan()), mscclpp)
    assert (found.collective, found.n_steps, found.messages) == ("all_gather", 1, 6)
    found = read(foreign.SCATTERED)
    assert [str(row) for row in found] == ["step 0: chunk 1: 0→1 reduce", "step 0: chunk 0: 1→0 reduce"]


def test_what_is_only_sent_on_is_not_taken_for_stored():
    """A ring whose last sums are sent on and not stored is refused: `rrs` is taken at its word."""
    wrong = foreign.RING.replace('type="rrcs"', 'type="rrs"')
    with pytest.raises(InputError, match="does not do what its collective promises"):
        read(wrong)


def test_a_missing_wait_is_found():
    """A program that is right only while some thread block is quick enough is refused: a wait of a valid one is left
    out, each in turn."""
    text = msccl_writer.dump(algorithms.build("all_to_all", "bruck", 4))
    assert read(text).messages == 16
    waits = list(re.finditer(r'depid="\d+" deps="\d+"', text))
    said = []
    for wait in waits:
        with contextlib.suppress(InputError):
            read(text[: wait.start()] + 'depid="-1" deps="-1"' + text[wait.end() :])
            continue
        said.append(wait)
    assert len(said) * 2 > len(waits)
    wrong = text[: said[0].start()] + 'depid="-1" deps="-1"' + text[said[0].end() :]
    with pytest.raises(InputError, match="which thread block is quicker, so a wait is missing"):
        read(wrong)


def test_goal_of_others_is_read_with_its_collective(tmp_path: Path):
    """Who talks to whom, with whole buffers: proved as the collective that is named; without one it is refused."""
    (tmp_path / "g").write_text(foreign.GOAL)
    assert "say with --collective" in simcoll("import", tmp_path / "g", "-o", tmp_path / "o.json").err
    done = simcoll("import", tmp_path / "g", "--collective", "allreduce", "-o", tmp_path / "o.json")
    assert done.status == 0 and "proved all_reduce: 4 steps, 6 messages" in done.out
    assert "1 computations are left out" in done.out
    assert simcoll("verify", "--schedule", tmp_path / "o.json").status == 0


def test_a_scenario_says_what_does_not_fit(tmp_path: Path):
    """A schedule of another number of ranks, another collective, or none at all."""
    path, _ = brought(tmp_path, foreign.RING)
    base = ["run", "quickstart", "--set", f"algorithm={path}", "--set", "size=1 MiB"]
    told = simcoll(*base, "--set", "ranks=5", "--json").json["points"]
    assert {row["status"] for row in told} == {f"refused: {path} is a schedule of 4 ranks, not 5; ask for ranks: 4"}
    assert "is a schedule of all_reduce, not broadcast" in simcoll(*base, "--set", "collective=broadcast").err
    lost = simcoll("run", "quickstart", "--set", "algorithm=lost.json")
    assert lost.status == 2 and "lost.json: cannot be read" in lost.err


def test_a_changed_schedule_is_run_again(tmp_path: Path):
    """Results of a schedule's file are not reused after the file has changed."""
    path, _ = brought(tmp_path, foreign.RING)
    command = ["run", "quickstart", "--set", f"algorithm={path}", "--set", "ranks=4", "--set", "size=1 MiB"]
    first = simcoll(*command, "--json").json["points"][0]
    path.write_text(schedule_json.dump(algorithms.build("all_reduce", "naive", 4)))
    assert simcoll(*command, "--json").json["points"][0]["messages"] == 6 != first["messages"]


@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_levels_do_not_depend_on_hints(n: int, random: object):
    """Without the places that we write into it, an exported ring is still proved, and takes as many steps."""
    schedule = algorithms.build("all_reduce", "ring", n)
    text = re.sub(r' at="[\d.]+"', "", msccl_writer.dump(schedule))
    found = read(text)
    assert found.n_steps == schedule.n_steps and found.messages == schedule.messages


@pytest.mark.parametrize("pair", ["all_to_all/direct", "all_gather/ring", "all_reduce/all_pairs", "broadcast/binomial"])
def test_programs_of_others_take_as_long_as_ours(pair: str, tmp_path: Path):
    """Without the places that we write into it, an exported schedule is another program's: on equal links it takes as
    long as what it was made from, to the picosecond."""
    schedule = algorithms.build(*pair.split("/"), 8)
    (tmp_path / "p.xml").write_text(re.sub(r' at="[\d.]+"', "", msccl_writer.dump(schedule)))
    assert simcoll("import", tmp_path / "p.xml", "-o", tmp_path / "p.json").status == 0
    which, _, name = pair.partition("/")
    sets = ["profile=one-port", "size=[1 KiB, 64 MiB]", "model.sharing=[fair, fifo]", f"collective={which}"]
    words = [word for item in (*sets, f"algorithm=[{name}, {tmp_path / 'p.json'}]") for word in ("--set", item)]
    rows = simcoll("run", "quickstart", *words, "--json").json["points"]
    times = {key: [row["time_us"] for row in rows if (row["algorithm"] == name) == key] for key in (True, False)}
    assert len(times[True]) == 4 and times[True] == times[False]
    assert simcoll("show", tmp_path / "p.json", "--diagram").status == 0


# --- measurements ---


def test_single_runs_and_nothing_of_the_environment():
    """With `-J` the median of single runs counts; of the environment only NCCL's variables stay, and no secrets."""
    rows = parse_measured(foreign.TESTS_JSON, "x")
    assert [(row.size_bytes, row.time_us, row.runs) for row in rows] == [(1024, 10.5, 20), (2048, 10.0, 3)]
    assert (rows[1].time_us_min, rows[1].time_us_max) == (9.0, 14.0)
    assert (rows[0].ranks, rows[0].nodes, rows[0].in_place_time_us) == (4, 2, 11.0)
    assert rows[0].others["env.nccl_algo"] == "RING"
    assert "hunter2" not in repr(rows) and "PATH" not in repr(rows)


def test_rccl_and_mpi_tables():
    """rccl-tests' JSON lines, OSU and IMB: whole buffers, ranks times the part where a rank has a part."""
    (row,) = parse_measured(foreign.RCCL_LINES, "x")
    assert (row.collective, row.ranks, row.time_us, row.in_place_time_us) == ("all_gather", 8, 12.3, 12.1)
    rows = parse_measured(foreign.OSU, "x", {"ranks": 4})
    assert [(row.collective, row.size_bytes, row.time_us) for row in rows] == [
        ("all_gather", 16, 2.41),
        ("all_gather", 4096, 5.41),
    ]
    rows = parse_measured(foreign.IMB, "x")
    assert [(row.collective, row.ranks, row.time_us, row.runs) for row in rows] == [
        ("all_reduce", 4, 6.5, 1000),
        ("barrier", 8, 1.79, 1000),
    ]


@pytest.mark.parametrize("name", ["nccl-tests", "nccl-tests json", "rccl-tests", "imb", "csv"])
def test_measured_tables_stay_what_they_are(name: str, tmp_path: Path):
    """What import writes of a measurement reads back as the same rows; `compare` and `calibrate` take it."""
    path, _ = brought(tmp_path, foreign.FILES[name])
    assert parse_measured(path.read_text(), "x") == parse_measured(foreign.FILES[name], "x")


# --- out ---


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a small sweep."""
    folder = tmp_path_factory.mktemp("results")
    sets = ["algorithm=[ring, tree, all_pairs]", "size=[1 KiB, 1 MiB, 64 MiB]", "ranks=4", "plots=[]"]
    options = [word for item in sets for word in ("--set", item)]
    assert simcoll("run", "quickstart", *options, "-o", folder).status == 0
    return folder


def test_the_table_of_nccl_tests_reads_back(results: Path):
    """Size, time, ranks and algorithm of every row are there again, to the digits that nccl-tests prints."""
    rows = parse_measured(simcoll("export", results, "--to", "nccl-tests").out, "x")
    ours = read_results(results / "results.csv")
    assert sorted((row.size_bytes, row.time_us, row.algorithm) for row in rows) == sorted(
        (row["size_bytes"], round(row["time_us"], 2), row["algorithm"]) for row in ours
    )
    assert {(row.collective, row.ranks, row.dtype) for row in rows} == {("all_reduce", 4, "float32")}


def test_the_tuner_file_covers_all_sizes(results: Path):
    """From 0 to the largest number without a gap, by algorithms that NCCL has; what it lacks is told."""
    done = simcoll("export", results, "--to", "nccl-tuner")
    lines = [line.split(",") for line in done.out.splitlines() if not line.startswith("#")]
    assert lines[0][1] == "0" and lines[-1][2] == str(2**63 - 1)
    assert all(int(b[1]) == int(a[2]) + 1 for a, b in itertools.pairwise(lines))
    assert {line[0] for line in lines} == {"allreduce"} and {line[3] for line in lines} <= {"ring", "tree"}
    assert all(len(line) == 10 for line in lines) and "all_reduce/all_pairs" in done.err


def test_the_tuner_file_of_tune(tmp_path: Path):
    """What `simcoll tune --json` chooses, with its protocols."""
    (tmp_path / "t.json").write_text(simcoll("tune", "hgx-h100", "--nodes", 2, "--json").out)
    done = simcoll("export", tmp_path / "t.json", "--to", "nccl-tuner")
    assert done.status == 0 and "allreduce,0," in done.out and ",ll128," in done.out and not done.err


def test_drawings_hold_every_device_and_link():
    """Graphviz names all devices; GraphML has every link with its numbers."""
    import networkx as nx

    graph = nx.parse_graphml(simcoll("export", "hgx-h100", "--to", "graphml", "--nodes", 2).out)
    found = systems.build(loading.topology_spec("hgx-h100", 2))
    assert set(graph.nodes) == set(found.kinds) and graph.number_of_edges() == len(found.links)
    link = found.graph.edges[found.links[0]]["link"]
    assert graph.edges[found.links[0]] == {"bandwidth": link.bandwidth, "latency": link.latency, "kind": link.kind}
    drawn = simcoll("export", "hgx-h100", "--to", "graphviz").out
    assert drawn.count("{") == drawn.count("}") and all(f'"node0.gpu{i}"' in drawn for i in range(8))


def test_arrow_and_parquet(results: Path, tmp_path: Path):
    """Rows as an Arrow table keep their numbers, by the PyCapsule interface, in a Parquet file and in an Arrow file."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = api.run(api.load("quickstart", ["algorithm=[ring, tree]", "size=1 MiB"]))
    table = pyarrow.RecordBatchReader.from_stream(rows).read_all()
    assert table.column("time_us").to_pylist() == [row["time_us"] for row in rows]
    assert simcoll("export", results, "--to", "parquet", "-o", tmp_path / "r.parquet").status == 0
    assert parquet.read_table(tmp_path / "r.parquet").num_rows == 9
    assert simcoll("export", results, "--to", "arrow", "-o", tmp_path / "r.arrow").status == 0
    assert pyarrow.ipc.open_file(tmp_path / "r.arrow").read_all().num_rows == 9
    pandas = pytest.importorskip("pandas")
    read, alike = pandas.read_feather(tmp_path / "r.arrow"), pandas.read_csv(results / "results.csv")
    assert list(read.columns) == list(alike.columns) and list(read.time_us) == list(alike.time_us)
    rows.to_parquet(tmp_path / "s.parquet")
    assert parquet.read_table(tmp_path / "s.parquet").equals(table)


def test_torch_measurements(results: Path):
    """torch.utils.benchmark compares predicted times: sizes as rows, algorithms as columns."""
    pytest.importorskip("torch")
    found = api.run(api.load("quickstart", ["algorithm=[ring, tree]", "size=1 MiB"])).to_torch()
    assert [one.task_spec.description for one in found] == ["ring", "tree"] and found[0].median > 0
    told = simcoll("export", results, "--to", "torch").out
    assert "ring" in told and "64 MiB" in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["all_reduce/ring", "--to", "msccl"], "nothing says of how many ranks; add --ranks N"),
        (["all_reduce/ring", "--to", "mscl", "--ranks", 4], "'mscl' is no format; did you mean 'msccl'?"),
        (["hgx-h100", "--to", "goal", "--ranks", 4], "'hgx-h100' is not COLLECTIVE/ALGORITHM"),
        (["all_reduce/ring", "--to", "goal", "--ranks", 4, "--size", "8"], "--size: '8' has no unit"),
        (["nowhere.csv", "--to", "nccl-tests"], "nowhere.csv: cannot be read"),
    ],
)
def test_export_says_what_is_missing(arguments: list[object], complaint: str):
    """Wrong use ends with 2 and one line."""
    done = simcoll("export", *arguments)
    assert done.status == 2 and complaint in done.err


def test_the_help_names_every_format():
    """What `--to` offers is what there is."""
    from simcoll.cli.convert import FORMATS

    assert tuple(exporters.FORMATS) == FORMATS


def test_large_files_are_refused(tmp_path: Path):
    """Nothing above the limit is read."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(importers.MOST_BYTES + 1)
    done = simcoll("import", tmp_path / "big")
    assert done.status == 2 and "larger than 16 MiB" in done.err


def test_nothing_is_written_beside_what_is_asked_for(tmp_path: Path):
    """A name in a file never becomes a path: files that name others write and read no more than the one."""
    text = foreign.RING.replace('name="ring"', 'name="../../etc/passwd"')
    path, _ = brought(tmp_path, text)
    assert json.loads(path.read_text())["algorithm"] == ".._.._etc_passwd".strip("_")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["given", "made.json"]


# --- contracts ---


@pytest.mark.parametrize("name", foreign.FILES)
def test_every_import_can_be_used(name: str, tmp_path: Path):
    """What import writes is read by our own loader and keeps to physics: a machine carries an all_reduce no faster than
    its links can, so does a schedule on it, and a table imported again is the same table."""
    (tmp_path / "given").write_text(foreign.FILES[name])
    made = simcoll("import", tmp_path / "given", *foreign.MORE.get(name, [])).out
    path = tmp_path / ("made.json" if made.startswith("{") else "made.csv" if "," in made.split()[0] else "made.yaml")
    path.write_text(made)
    if path.suffix == ".csv":
        assert simcoll("import", path).out == path.read_text()
        return
    if path.suffix == ".yaml":
        words = [
            "predict",
            "all_reduce",
            "--on",
            path,
            "--size",
            "1 MiB",
            "--profile",
            "one-port",
            "--algorithm",
            "ring",
        ]
    else:
        schedule = json.loads(path.read_text())
        machine = ["hgx-h100", "--ranks", schedule["ranks"]] if "agents" in schedule else [tmp_path / "star.yaml"]
        words = ["predict", schedule["collective"], "--on", *machine, "--size", f"{1 << 20} B"]
        words += ["--algorithm", path, "--set", f"root={schedule.get('root', 0)}"]
        link = "link: {bandwidth: 50 GB/s, latency: 1 us}"
        (tmp_path / "star.yaml").write_text(f"{{fabric: single-switch, hosts: {schedule['ranks']}, {link}}}")
    done = simcoll(*words, "--json")
    assert done.status == 0, done.err
    (row,) = done.json["points"]
    assert (row["status"], row["proved"]) == ("ok", "full")
    assert 0 < row["lower_bound_us"] <= row["time_us"] < 1e6


def test_every_csv_opens_without_arguments(results: Path, tmp_path: Path):
    """Results, comparisons, measured tables and those that ship begin with their header, each row has as many cells,
    and no cell is a formula: `pandas.read_csv(file)` reads them."""
    measured = tmp_path / "measured.csv"
    assert simcoll("import", results / "results.csv", "--as", "measured", "-o", measured).status == 0
    assert simcoll("compare", results / "results.csv", measured, "-o", tmp_path / "c").status == 0
    ours = [results / "results.csv", measured, tmp_path / "c" / "compare.csv", *shipped("measured").glob("*.csv")]
    assert len(ours) > 25
    for path in ours:
        header, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
        assert all(re.fullmatch(r"[\w.]+", name) for name in header) and len(set(header)) == len(header), path
        assert rows and {len(row) for row in rows} == {len(header)}, path
        assert not any(cell.startswith(("=", "@")) for row in rows for cell in row), path


def test_a_name_like_a_formula_stays_a_name(tmp_path: Path):
    """A spreadsheet takes it for a text, and simcoll reads it back."""
    (tmp_path / "s.yaml").write_text(
        "name: =1+1\ntopology: {system: hgx-h100}\ncollective: all_reduce\nsize: 1 MiB\nplots: []\n"
    )
    assert simcoll("run", tmp_path / "s.yaml", "-o", tmp_path / "o").status == 0
    assert "\n'=1+1," in (tmp_path / "o" / "results.csv").read_text()
    assert read_results(tmp_path / "o" / "results.csv")[0]["scenario"] == "=1+1"
