"""How to add …: what ARCHITECTURE.md says can be added from outside, done literally."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from command import simcoll as command
from matplotlib.figure import Figure
from networks import full_mesh

import simcoll
from simcoll.config import yaml_tree
from simcoll.engine import event
from simcoll.engine.binding import bind
from simcoll.engine.timing_model import Params
from simcoll.report.plot import save
from simcoll.scenario.profile import ModelSpec, find_profile
from simcoll.schedule.collectives import COLLECTIVES, NOTHING, Collective
from simcoll.schedule.registry import ALGORITHMS
from simcoll.topology.fabrics import FABRICS, FabricPlan, FabricShape, Ports

NAME = "there_and_back"


@pytest.fixture
def own_algorithm() -> Iterator[str]:
    """An all-reduce of one's own: a chain up to the last rank, and the result straight back to everyone."""

    @simcoll.register("all_reduce", NAME)
    def there_and_back(request: simcoll.Request) -> Iterator[simcoll.Step]:
        """Up a chain to the last rank, then to everyone at once: n steps."""
        last = request.n - 1
        for rank in range(last):
            yield simcoll.send(rank, rank + 1, 0, reduce=True)
        if last:
            yield simcoll.send(last, range(last), 0)

    yield NAME
    del ALGORITHMS["all_reduce"][NAME]


def test_an_algorithm(own_algorithm: str, tmp_path: Path):
    """A registered function is proved, counted, listed, shown and simulated like any other."""
    scenario = tmp_path / "own.yaml"
    scenario.write_text(
        "name: own\ntopology: {fabric: single-switch, hosts: 4, link: {bandwidth: 1 GB/s, latency: 1 us}}\n"
        f"collective: all_reduce\nalgorithm: [{own_algorithm}, ring]\nsize: 1 kB\n",
        encoding="utf-8",
    )
    own, ring = simcoll.run(simcoll.load(scenario))
    assert (own["algorithm"], own["status"], own["steps"], own["messages"]) == (own_algorithm, "ok", 4, 6)
    assert own["time_us"] == 3 * 3 + 2 + 3  # three hops, then three messages out of one link
    assert ring["status"] == "ok"
    pair = f"all_reduce/{own_algorithm}"
    assert f"{pair}, 5 ranks: proved" in command("verify", pair, "--ranks", 5).out
    assert "Up a chain to the last rank" in command("list", "algorithms").out
    assert command("show", pair, "--ranks", 3, "--data").status == 0
    assert command("show", pair, "--ranks", "2,4").status == 0
    assert own_algorithm in {point.scenario.algorithm for point in simcoll.load(scenario, ["algorithm=all"])}


DEVICES = """\
# Two pairs of GPUs, a thin link between the pairs. Every number is an estimate.
name: two-pairs
description: four GPUs, joined in pairs
gpu: {model: none, generation: none}
devices: {gpu: 4, bridge: 1}
links:
  - {from: gpu0, to: gpu1, bandwidth: 100 GB/s, latency: 1 us, kind: nvlink}
  - {from: gpu2, to: gpu3, bandwidth: 100 GB/s, latency: 1 us, kind: nvlink}
  - {from: "gpu*", to: bridge0, bandwidth: 10 GB/s, latency: 2 us, kind: pcie}
"""


def test_a_topology_file_of_devices_and_links(tmp_path: Path):
    """A file of devices and links is simulated, shown and drawn; the short way is taken inside a pair."""
    file = tmp_path / "two-pairs.yaml"
    file.write_text(DEVICES, encoding="utf-8")
    keys = {"collective": "send_recv", "algorithm": "direct", "size": "1 MB"}
    topology = {"file": str(file)}
    (near,) = simcoll.run(simcoll.load({**keys, "topology": topology, "ranks": 2}))
    assert (near["time_us"], near["topology"]) == (10 + 1, "two-pairs")
    places = ["node0.gpu1", "node0.gpu2"]
    (far,) = simcoll.run(simcoll.load({**keys, "topology": topology, "placement": places}))
    assert far["time_us"] == 100 + 4
    found = command("topology", "show", file, "--json", "--png", tmp_path / "t.png")
    assert found.json["devices"] == {"gpu": 4, "bridge": 1}
    assert (tmp_path / "t.png").stat().st_size > 5000


def test_a_topology_file_of_scenario_keys(tmp_path: Path):
    """A file may hold what `topology` takes in a scenario, and the scenario overrides it."""
    file = tmp_path / "star.yaml"
    file.write_text("fabric: single-switch\nhosts: 3\nlink: {bandwidth: 1 GB/s, latency: 1 us}\n", encoding="utf-8")
    keys = {"collective": "all_reduce", "algorithm": "naive", "size": "1 kB"}
    three, five = (
        simcoll.run(simcoll.load({**keys, "topology": {"file": str(file), **more}}))[0] for more in ({}, {"hosts": 5})
    )
    assert (three["ranks"], five["ranks"]) == (3, 5)


def test_a_networkx_graph():
    """A graph of one's own becomes a topology: an edge is two links, and routes are the shortest."""
    graph: nx.Graph[str] = nx.Graph()
    for rank in range(4):
        graph.add_node(f"h{rank}", kind="host", node=rank)
    for rank in range(4):
        graph.add_edge(f"h{rank}", f"h{(rank + 1) % 4}", link=simcoll.Link(10**9, latency_ps=10**6, kind="cable"))
    topology = simcoll.Topology.from_graph(graph)
    assert topology.ranks == ("h0", "h1", "h2", "h3")
    assert len(topology.links) == 8
    scenario = simcoll.load({"topology": {"fabric": "ring", "hosts": 4, "link": _LINK}, **_RING})[0].scenario
    assert simcoll.predict(scenario).time_ps == 6 * 2_000_000
    assert simcoll.predict(scenario, topology).time_ps == 6 * 2_000_000


_LINK = {"bandwidth": "1 GB/s", "latency": "1 us"}
_RING = {"collective": "all_reduce", "algorithm": "ring", "size": "4 kB"}


def test_a_transport_between_nodes(tmp_path: Path):
    """A transport of one's own goes with the profile of the GPUs; on one node it costs nothing."""
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nsource: an estimate\nof_nics: true\ntransport: {latency: 1 ms, proxy: 9 us}\n")
    took = {
        (profile, nodes): command(
            "predict", "all_reduce", "--on", "hgx-h100", "--nodes", nodes, "--size", "1 KiB",
            "--set", f"profile={profile}", "--json",
        ).json["points"][0]["time_us"]
        for profile in ("nccl-hopper", f"nccl-hopper+{file}")
        for nodes in (1, 2)
    }  # fmt: skip
    assert took["nccl-hopper", 1] == took[f"nccl-hopper+{file}", 1]
    assert took["nccl-hopper", 2] + 1900 < took[f"nccl-hopper+{file}", 2] < took["nccl-hopper", 2] + 2100


def test_a_profile_file(tmp_path: Path):
    """A profile of one's own: parameters with where they come from; what it does not say is neutral."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\ndescription: slow senders\nsource: an estimate\nmodel: {o_send: 5 us}\n", encoding="utf-8"
    )
    keys = {"topology": {"fabric": "single-switch", "hosts": 2, "link": _LINK}, **_RING, "size": "2 kB"}
    plain, slow = (simcoll.run(simcoll.load({**keys, **more}))[0] for more in ({}, {"profile": str(file)}))
    assert slow["time_us"] == plain["time_us"] + 2 * 5  # two steps
    assert slow["profile"] == str(file)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: wrong\nmodel: {o_sent: 5 us}\n", encoding="utf-8")
    found = command("predict", "broadcast", "--on", "hgx-h100", "--size", "1 kB", "--set", f"profile={wrong}")
    assert found.status == 2
    assert found.err.startswith(f"{wrong}:2:9: model.o_sent: ")


# --- a fabric, a format, a plot, a collective ---


def chain_of_switches(plan: FabricPlan, machines: Ports, shape: FabricShape) -> None:
    """A switch a machine, each joined to the next."""
    switches = [plan.switch(f"switch{i}", 1) for i in range(len(machines))]
    for switch, ports in zip(switches, machines, strict=True):
        for port in ports:
            plan.cable(port, switch, shape.cable)
    for below, above in pairwise(switches):
        plan.cable(below, above, shape.trunk(1))


def test_a_fabric(monkeypatch: pytest.MonkeyPatch):
    """A builder in FABRICS is a fabric of bare hosts: scenarios name it, `topology show` tells it, routes are found."""
    monkeypatch.setitem(FABRICS, "switch-chain", chain_of_switches)
    keys = {"topology": {"fabric": "switch-chain", "hosts": 3, "link": _LINK}, "placement": ["host0", "host2"]}
    (row,) = simcoll.run(simcoll.load({**keys, "collective": "send_recv", "algorithm": "direct", "size": "1 kB"}))
    assert (row["status"], row["topology"], row["time_us"]) == ("ok", "switch-chain", 1 + 4 * 1)
    point = simcoll.load({**keys, "collective": "barrier", "algorithm": "dissemination"})[0]
    assert simcoll.predict(point).topology.kinds["switch1"] == "switch"


def read_moves(text: str) -> simcoll.Schedule:
    """A format: a line `COLLECTIVE RANKS CHUNKS`, then a line `STEP: FROM>TO CHUNK` a transfer."""
    head, *lines = text.splitlines()
    name, n, n_chunks = head.split()
    rows = []
    for line in lines:
        step, _, move = line.partition(":")
        ends, slot = move.split()
        src, _, dst = ends.partition(">")
        rows.append((int(step), int(src), int(slot), int(dst), int(slot), 0))
    return simcoll.Schedule.from_rows(rows, collective=name, algorithm="read", n=int(n), n_chunks=int(n_chunks))


def test_a_format():
    """What a reader makes of a text is a schedule like any other: checked, proved and timed."""
    schedule = read_moves("broadcast 3 1\n0: 0>1 0\n1: 1>2 0")
    simcoll.prove(schedule)
    topology = full_mesh(3, simcoll.Link(10**9, latency_ps=10**6))
    assert event.run(bind(schedule, topology, topology.ranks, Params(), 1000)).makespan_ps == 2 * 2_000_000
    with pytest.raises(simcoll.SimcollError, match="rank 2"):
        simcoll.prove(read_moves("broadcast 3 1\n0: 0>1 0"))


def steps_figure(rows: Sequence[Mapping[str, object]]) -> Figure:
    """A plot: steps over ranks."""
    figure = Figure()
    figure.subplots().plot([row["ranks"] for row in rows], [row["steps"] for row in rows], "o-")
    return figure


def test_a_plot(tmp_path: Path):
    """A function from rows to a Figure needs nothing of simcoll but the rows; `save` writes it like the others."""
    topology = {"fabric": "ring", "hosts": [2, 4, 8], "link": _LINK}
    rows = simcoll.run(simcoll.load({"topology": topology, **_RING}))
    figure = steps_figure(rows)
    assert list(np.asarray(figure.axes[0].lines[0].get_ydata())) == [2, 6, 14]
    save(figure, tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def _mine(rank: np.ndarray, slot: np.ndarray, n: int, k: int, root: int) -> tuple[np.ndarray, np.ndarray]:
    """Everyone holds its own buffer."""
    return rank, slot


def _shifted(rank: np.ndarray, slot: np.ndarray, n: int, k: int, root: int) -> tuple[np.ndarray, np.ndarray]:
    """Everyone is promised the buffer of the rank before; the first nothing."""
    return np.where(rank == 0, NOTHING, rank - 1), slot


def test_a_collective(monkeypatch: pytest.MonkeyPatch):
    """A contract in COLLECTIVES can be built for and proved; timing it takes its row in analysis/bounds.py as well."""
    shift = Collective("shift", "everyone gets the last buffer", _mine, _shifted, lambda n: 1, lambda n: Fraction(1))
    monkeypatch.setitem(COLLECTIVES, "shift", shift)
    monkeypatch.setitem(ALGORITHMS, "shift", {})

    @simcoll.register("shift", "direct")
    def direct(request: simcoll.Request) -> Iterator[simcoll.Step]:
        """Everyone sends to the next rank: 1 step."""
        yield simcoll.send(range(request.n - 1), range(1, request.n), 0)

    simcoll.prove(simcoll.build("shift", "direct", 5))
    rows = [(0, rank, 0, (rank + 2) % 5, 0, 0) for rank in range(5)]
    wrong = simcoll.Schedule.from_rows(rows, collective="shift", algorithm="wrong", n=5, n_chunks=1)
    with pytest.raises(simcoll.SimcollError, match="rank 1"):
        simcoll.prove(wrong)


def test_a_parameter_of_the_model_stands_in_all_its_places():
    """A feature of the engines has the same name in Params, the scenario's `model` and the profile `one-port`."""
    names = {field.name for field in dataclasses.fields(Params)} | {"copies"}  # which is of the schedule
    assert set(ModelSpec.model_fields) == names
    profile = yaml_tree.read(find_profile("one-port")).get("model")
    assert profile is not None
    assert set(profile.keys) == names


@pytest.mark.parametrize(
    ("collective", "name", "complaint"),
    [("all_reduce", "ring", "ring is a shipped algorithm"), ("allreduce", "own", "did you mean 'all_reduce'")],
)
def test_shipped_algorithms_are_not_replaced(collective: str, name: str, complaint: str):
    """Their names, and collectives that nobody knows, are refused; an own algorithm may be entered anew."""
    with pytest.raises(simcoll.SimcollError, match=complaint):
        simcoll.register(collective, name)
    assert ALGORITHMS["all_reduce"]["ring"].steps.__module__.startswith("simcoll.")
    for _ in range(2):
        simcoll.register("all_reduce", "entered_anew")(lambda request: iter(()))
    assert ALGORITHMS["all_reduce"].pop("entered_anew").name == "entered_anew"


def test_what_auto_chooses_from_is_what_nccl_has():
    """An algorithm of one's own is none of these: an error of it would stop questions that do not name it."""
    with pytest.raises(simcoll.SimcollError, match=r"no algorithm of NCCL.*; leave out `library`, .*\[auto, claimed\]"):
        simcoll.register("all_reduce", "claimed", library=True)(lambda request: iter(()))
    assert "claimed" not in ALGORITHMS["all_reduce"]
