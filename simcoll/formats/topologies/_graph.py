"""A machine of a graph that a file holds: what all formats of graphs have in common."""

from __future__ import annotations

from typing import Any, Final

from simcoll.config.import_log import ImportLog
from simcoll.errors import TopologyError
from simcoll.topology.graph import Topology
from simcoll.topology.systems import load_system

_NODE: Final = ("kind", "node", "in_network")  # what counts of a device
_EDGE: Final = ("bandwidth", "latency", "kind")
_LENT: Final = ("cpu", "gpu", "nic", "profile")


def topology_of(graph: Any, assumed: str | None, notes: ImportLog) -> Topology:
    """The topology of a networkx graph of numbers and texts; attributes of devices and links that mean nothing here
    are taken from it. `assumed`: the system that lends what the graph does not say of GPUs, NICs and processors.

    Raises TopologyError, and InputError for a system that nobody knows.
    """
    left = set[str]()
    edges = [data for *_, data in graph.edges(data=True)]
    for known, parts in ((_NODE, graph.nodes.values()), (_EDGE, edges)):
        for data in parts:
            left |= data.keys() - {*known}
            for key in data.keys() - {*known}:
                del data[key]
    graph.graph["name"] = str(graph.graph.get("name") or "graph")
    lent = {} if assumed is None else load_system(assumed).facts
    if lent := {key: lent[key] for key in _LENT if key in lent and key not in graph.graph}:
        graph.graph.update(lent)
        notes.assume(f"{', '.join(lent)}, which the graph does not say, are those of {assumed}")
    topology = Topology.from_graph(graph)
    _check_rates(topology)
    notes.read.append(f"{len(topology.kinds)} devices and {len(topology.links)} links, each in one direction")
    if topology.facts:
        notes.read.append(f"of the machine: {', '.join(topology.facts)}")
    if "gpu" in topology.kinds.values() and "gpu" not in topology.facts:
        notes.assume(
            "the graph does not say which GPUs these are: no profile of NCCL's calls serves the machine; give it `gpu`,"
            " or say with --assume SYSTEM whose they are"
        )
    if "routing" not in graph.graph:
        notes.assume("data take the shortest ways: the graph does not say `routing`")
    if left:
        notes.read.append(f"left out: {', '.join(sorted(left))}")
    return topology


def _check_rates(topology: Topology) -> None:
    """Raise TopologyError for a link that carries nothing: no file has one, as faults and scenarios take links down."""
    for (u, v), link in zip(topology.links, topology.every_link, strict=True):
        if not link.bandwidth:
            cure = "write what the link carries, or leave the link out"
            raise TopologyError(f"{u}->{v}: a bandwidth of 0 is nothing", cure, about=(u, v))
