"""Machines as GraphML, as networkx and `simcoll export --to graphml` write them: devices with a `kind`, links with
`bandwidth` (B/s) and `latency` (s).

The graph may have a `name`, a `routing`, and `routes` as JSON; nodes may have `node`, the number of their machine, and
`in_network`. Other attributes, such as where a program has drawn a node, are left out.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from simcoll.config import xml_tree
from simcoll.config.import_log import ImportLog
from simcoll.errors import InputError
from simcoll.topology.graph import Topology
from simcoll.topology.routing import POLICIES, RoutingPolicy

ROOT: Final = "graphml"
_CURE: Final = "give GraphML as networkx writes it: nodes with `kind`, edges with `bandwidth` and `latency`"
_NODE: Final = ("kind", "node", "in_network")  # what counts of a device
_EDGE: Final = ("bandwidth", "latency", "kind")


def read(text: str, source: str, notes: ImportLog) -> Topology:
    """The topology that a graph describes; an undirected edge is two links. Raises InputError."""
    import networkx as nx

    xml_tree.parse(text, source, root=ROOT, kind="GraphML file", deepest=16, cure=_CURE)  # no entities, not too much
    try:
        graph: Any = nx.parse_graphml(text)
    except (nx.NetworkXException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{source}: no graph: {error}", _CURE) from None
    if graph.is_multigraph():
        raise InputError(f"{source}: several edges between two nodes", "give one, with the bandwidth of all")
    about, left = dict(graph.graph), set[str]()
    for known, parts in ((_NODE, graph.nodes.values()), (_EDGE, graph.edges.values())):
        for data in parts:
            left |= data.keys() - {*known}
            for key in data.keys() - {*known}:
                del data[key]
    routing, name = str(about.get("routing", "shortest")), str(about.get("name") or "graph")
    if routing not in POLICIES:
        raise InputError(f"{source}: routing {routing!r} is not known", f"write one of {', '.join(POLICIES)}")
    try:
        routes = json.loads(about.get("routes", "{}"))
        topology = Topology.from_graph(graph, name=name, routing=cast(RoutingPolicy, routing), routes=routes)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{source}: routes are not as simcoll writes them: {error}", "leave them out") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    notes.read.append(f"{len(topology.kinds)} devices and {len(topology.links)} links, each in one direction")
    if "routing" not in about:
        notes.assume("data take the shortest ways: the graph does not say `routing`")
    if left:
        notes.read.append(f"left out: {', '.join(sorted(left))}")
    return topology
