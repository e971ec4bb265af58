"""A machine is the same whether a name says it or its devices are listed: written, read back, or drawn as a graph."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from command import simcoll
from systems import WITH_GPUS

import simcoll as sc
from simcoll.api.sweeps import spelt
from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError
from simcoll.formats import importers
from simcoll.report import exports
from simcoll.topology import topology_builder

ASKED = [("all_reduce", "64 KiB"), ("all_reduce", "64 MiB"), ("all_to_all", "1 MiB"), ("broadcast", "1 MiB")]
COLUMNS = (  # all that a prediction says, beside the names of the topology and of its devices
    "status", "time_ps", "algorithm", "protocol", "low_us", "high_us", "median_low_us", "median_high_us", "confidence",
    "transport", "settings", "lower_bound_us", "profile", "messages", "wire_bytes", "executor", "nodes", "ranks",
    "binding_busy",
)  # fmt: skip
FEW = ("hgx-h100", "a3-mega", "dgx1-v100", "mi300x")
FORMATS = ("yaml", "graphml", "node-link")
NODES = (1, 2)


def machines() -> Iterator[tuple[str, int]]:
    """Every shipped system, on one node, and on two where it has NICs."""
    for name in (*WITH_GPUS, "loopback"):
        yield from ((name, nodes) for nodes in NODES if nodes == 1 or topology_builder.load_system(name).nic)


def answers(on: Any, nodes: int | None = None, asked: Sequence[tuple[str, str]] = ASKED, **keys: Any) -> list[Any]:
    """What is said of each question."""
    keys |= {} if nodes is None else {"nodes": nodes}
    rows = [row for what, size in asked for row in sc.run(what, on=on, size=size, **keys).rows()]
    return [{name: getattr(row, name) for name in COLUMNS} for row in rows]


def written(name: str, nodes: int | None, to: str, folder: Path) -> Path:
    """The machine written in a format, read back where that is not our own, as a file."""
    text = exports.convert(name, to, exports.Options(nodes=nodes), ImportLog())
    if to != "yaml":
        imported = importers.convert(text, f"machine.{to}", importers.ImportOptions())
        assert not imported.notes.assumed and not imported.notes.warnings
        text = imported.text
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "nodes"), list(machines()))
def test_every_system_is_the_same_when_it_is_written_and_read(name: str, nodes: int, tmp_path: Path) -> None:
    """A system that is exported, imported, or taken as a graph answers as its name does."""
    expected = answers(name, nodes)
    assert answers(str(written(name, nodes, "graphml", tmp_path))) == expected
    assert answers(sc.Topology.load(name, nodes=nodes).graph) == expected


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("name", FEW)
def test_every_format_keeps_the_machine(name: str, to: str, tmp_path: Path) -> None:
    """Each format that is read keeps all that a file says of a machine, however often it is written."""
    path = written(name, 2, to, tmp_path)
    again = written(str(path), None, to, tmp_path)
    assert answers(str(again), asked=ASKED[:2]) == answers(name, 2, asked=ASKED[:2])
    assert topology_builder.load_system(str(path)).facts == topology_builder.load_system(name).facts


@pytest.mark.parametrize("name", FEW)
def test_settings_and_workloads_see_the_same_machine(name: str, tmp_path: Path) -> None:
    """Variables of NCCL, parts of the ranks, and steps of training are the same on it."""
    path = str(written(name, 2, "node-link", tmp_path))
    for keys in ({"env": {"NCCL_PXN_DISABLE": 1}}, {"env": {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}}, {"ranks": 8}):
        assert answers(path, asked=ASKED[2:3], **keys) == answers(name, 2, asked=ASKED[2:3], **keys)
    step = {"workload": {"template": "ddp", "model": "llama3-8b", "gpu": "h100"}}
    times = [sc.predict({**step, "topology": on}).time_ps for on in (path, {"system": name, "nodes": 2})]
    assert times[0] == times[1]


def test_fewer_nodes_than_are_listed_are_the_first(tmp_path: Path) -> None:
    """A question about some of the nodes is that of a machine of so many; one about more is refused."""
    path = str(written("hgx-h100", 2, "graphml", tmp_path))
    assert answers(path, 1) == answers("hgx-h100", 1)
    for command in (["predict", "all_reduce", "--size", "1MiB"], ["tune"]):
        found = simcoll(*command, "--on", path, "--nodes", "3")
        assert found.status != 0
        assert "lists the devices of 2 nodes, so it cannot have more" in found.err
    assert "on 16 ranks" in simcoll("tune", path).out


def test_a_file_of_another_format_is_to_be_imported(tmp_path: Path) -> None:
    """Who names a graph's file where a machine is asked for is told how to make one of it."""
    path = tmp_path / "machine.graphml"
    path.write_text(exports.convert("hgx-h100", "graphml", exports.Options(nodes=1), ImportLog()))
    with pytest.raises(InputError, match=f"simcoll import {path} -o"):
        sc.predict("all_reduce", on=str(path), size="1 MiB")


def test_torus_is_a_torus_when_it_is_read_again(tmp_path: Path) -> None:
    """Groups and routes of a torus are those of its dimensions."""
    keys = {"fabric": "torus", "dims": [3, 4], "link": {"bandwidth": "50 GB/s", "latency": "1 us"}}
    torus = topology_builder.build(topology_builder.of_keys(keys))
    topology = sc.Topology.from_graph(torus.graph)
    assert topology.default_groups(topology.ranks) == torus.default_groups(torus.ranks) != ()
    path = tmp_path / "torus.yaml"
    path.write_text(topology_builder.dump(topology))
    asked = {"algorithm": "hierarchical", "size": "1 MiB"}
    assert sc.predict("all_reduce", on=str(path), **asked).time_ps == sc.predict("all_reduce", on=keys, **asked).time_ps


# --- machines that are drawn ---


ORDER = ("nic", "cpu", "gpu", "pcie_switch", "nvswitch", "switch")


def drawn(nodes: int = 2) -> Any:
    """A graph of nodes of an HGX H100, with devices in another order and under other names than ours."""
    like = sc.Topology.load("hgx-h100", nodes=nodes)
    called: dict[str, tuple[str, int | None, int]] = {}
    for device, kind in like.kinds.items():
        i = sum(kind == other[0] and other[1] == like.node_of(device) for other in called.values())
        called[device] = (kind, like.node_of(device), i)
    new = {d: f"{k.upper()}{'abcdefgh'[i]} of {n}" if n is not None else d
           for d, (k, n, i) in called.items()}  # fmt: skip
    graph: Any = nx.DiGraph(
        gpu={"model": "H100", "generation": "hopper", "compute_capability": 90}, routing=like.routing
    )
    for device in sorted(like.kinds, key=lambda d: ORDER.index(like.kinds[d])):
        data = {key: value for key, value in like.wiring.devices[device].items() if value is not None}
        graph.add_node(new[device], **data)
    for u, v in like.links:
        link = like.link(u, v)
        graph.add_edge(new[u], new[v], bandwidth=link.bandwidth, latency=link.latency_ps / 1e12, kind=link.kind)
    return graph


def test_drawn_nodes_are_the_node_that_they_look_like() -> None:
    """A graph with devices in another order and of other names has the node, and the times, of a shipped system."""
    of_graph = topology_builder.load_system(spelt(drawn())["file"])
    shipped = topology_builder.load_system("hgx-h100")
    assert list(of_graph.devices) == list(shipped.devices) and of_graph.devices == shipped.devices
    assert of_graph.in_network == shipped.in_network
    assert of_graph.nic and of_graph.nic.rate == "50000000000 B/s"
    for nodes in NODES:
        plain = {"profile": "nccl-hopper+ib-ndr"}
        rows = answers(drawn(nodes), asked=ASKED[:3], **plain)
        expected = answers("hgx-h100", nodes, asked=ASKED[:3], **plain)
        assert [(row["algorithm"], row["time_ps"]) for row in rows] == [
            (row["algorithm"], row["time_ps"]) for row in expected
        ]


def changed(change: Callable[[Any], object]) -> Any:
    """The drawing with a mistake."""
    graph = drawn()
    change(graph)
    return graph


WRONG: Mapping[str, tuple[Callable[[Any], object], str]] = {
    "no GPU's name": (lambda g: g.graph.pop("gpu"), "does not say which GPUs"),
    "a link less": (lambda g: g.remove_edge("GPUa of 1", "NVSWITCHa of 1"), "node 0 has nvlink gpu0->nvswitch0"),
    "a GPU less": (lambda g: g.remove_node("GPUh of 1"), "node 0 has 8 gpu|node 0 has 1 more gpu"),
    "an unknown device": (lambda g: g.add_node("x", kind="bridge", node=0), "is a bridge"),
    "a homeless GPU": (lambda g: g.nodes["GPUa of 0"].pop("node"), "has no `node`"),
    "an unknown kind": (lambda g: g.nodes["GPUa of 1"].update(kind="GPU"), "is a GPU, which NCCL does not know"),
    "a switch that does not reduce": (lambda g: g.nodes["NVSWITCHa of 1"].pop("in_network"), "with in_network"),
    "a cable less": (
        lambda g: g.remove_edges_from([e for e in [*g.edges] if "NICc of 1" in e and g.edges[e]["kind"] == "cable"]),
        "node 0 has cable",
    ),
    "a capability as tools print it": (lambda g: g.graph["gpu"].update(compute_capability=9.0), "tenfold, 90"),
    "half a NIC": (lambda g: g.graph.update(nic={"rate": "400 Gb/s", "latency": "1 us"}), "'trunk_latency'"),
    "no capability": (lambda g: g.graph["gpu"].pop("compute_capability"), "does not say which GPUs these are"),
    "a misspelt key": (lambda g: g.graph["gpu"].update(modle="H100"), "unknown key 'modle'"),
    "no mapping": (lambda g: g.graph.update(gpu=3), "not a mapping"),
    "no YAML": (lambda g: g.graph.update(gpu="{model: "), "gpu"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_drawing_lacks_is_one_error(case: str) -> None:
    """What is missing or not alike is said once, with what to do."""
    change, said = WRONG[case]
    with pytest.raises(InputError, match=said) as caught:
        keys = {"profile": "nccl-hopper", "ranks": 2, "placement": {"per_node": 1}}
        sc.predict("all_reduce", on=changed(change), size="1 MiB", **keys)
    assert len(caught.value.diagnostics) == 1 and caught.value.diagnostics[0].cure


def test_gpus_without_a_path_are_refused() -> None:
    """GPUs that nothing joins, and links without one back, are no node of NCCL's."""

    def cut(graph: Any) -> None:
        for node in (0, 1):
            for near in [*graph.successors(f"GPUa of {node}")]:
                graph.remove_edges_from([(f"GPUa of {node}", near), (near, f"GPUa of {node}")])

    with pytest.raises(InputError, match="no route GPUa of 0->GPUb of 0"):
        sc.predict("all_reduce", on=changed(cut), profile="nccl-hopper", size="1 MiB")
    with pytest.raises(InputError, match="back"):
        one_way = changed(lambda g: [g.remove_edge(f"PCIE_SWITCHa of {n}", f"GPUa of {n}") for n in (0, 1)])
        sc.predict("all_reduce", on=one_way, profile="nccl-hopper", size="1 MiB")
