"""Read networkx graphs in GraphML and node-link JSON: devices with a `kind`, links with a `bandwidth` (B/s) and a
`latency` (s). networkx and `simcoll export` write both formats.

The graph may have a `name`, a `routing`, `routes` and the machine facts of topology files (`gpu`, `nic`, `cpu`, `nccl`,
`profile`), in GraphML as JSON. Nodes may have `node`, the number of their machine, and `in_network`. All other
attributes, such as drawing positions, are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simcoll.config import input_files, xml_tree
from simcoll.config.input_files import ImportLog
from simcoll.config.xml_tree import Element
from simcoll.errors import Diagnostic, InputError, Place, TopologyError
from simcoll.topology.graph import Topology
from simcoll.topology.topology_builder import load_system

GRAPHML_ROOT: Final = "graphml"
_GRAPHML: Final = "give GraphML as networkx writes it: nodes with `kind`, edges with `bandwidth` and `latency`"
_NODE_LINK: Final = (
    "give what networkx.node_link_data makes: nodes with id and kind, edges with source, target, bandwidth"
)
_OF_NODES: Final = ("kind", "node", "in_network")
_OF_EDGES: Final = ("bandwidth", "latency", "kind")
_LENT: Final = ("cpu", "gpu", "nic", "profile")


def read_graphml(text: str, source: str, assumed: str | None, notes: ImportLog) -> Topology:
    """Return the topology that GraphML describes; an undirected edge becomes two links. The `assumed` system supplies
    missing facts about GPUs, NICs and processors. Raises InputError with line and column."""
    import networkx as nx

    root = xml_tree.parse(text, source, root=GRAPHML_ROOT, kind="GraphML file", deepest=16, cure=_GRAPHML)
    _check_values(root)
    try:
        graph: Any = nx.parse_graphml(text)  # bounded above, and without entities
    except (nx.NetworkXException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"no graph: {error}", _GRAPHML, root.place) from None
    return _topology_of(graph, assumed, notes, lambda about: _place_of(root, about))


def looks_like_node_link(text: str) -> bool:
    """Return whether a text has the keys of node-link JSON."""
    return all(f'"{key}"' in text for key in ("nodes", "source", "target", "id", "kind"))


def read_node_link(text: str, source: str, assumed: str | None, notes: ImportLog) -> Topology:
    """Return the topology that node-link JSON describes; for the arguments see `read_graphml`. Raises InputError."""
    import networkx as nx

    document, start = input_files.json_mapping(text, source, _NODE_LINK), Place(source, 1, 1)
    graph: Any = nx.DiGraph() if document.get("directed") else nx.Graph()
    about = document.get("graph", {})
    if not isinstance(about, dict):
        raise _wrong("graph is no mapping", start)
    graph.graph.update(about)
    for each in _entries(document.get("nodes"), "nodes", ("id",), start):
        graph.add_node(str(each.pop("id")), **each)
    for each in _entries(document.get("edges", document.get("links")), "edges", ("source", "target"), start):
        ends = str(each.pop("source")), str(each.pop("target"))
        if unknown := [end for end in ends if end not in graph]:
            raise _wrong(f"edges: {'->'.join(ends)} joins {unknown[0]!r}, which is not among nodes", start)
        if graph.has_edge(*ends):
            cure = "give one link with their summed bandwidth, or put a device of its own on each"
            raise InputError(f"edges: {'->'.join(ends)} stands twice", cure, start)
        each.pop("key", None)  # of multigraphs
        graph.add_edge(*ends, **each)
    return _topology_of(graph, assumed, notes, lambda _: start)


def _entries(listed: Any, what: str, needed: tuple[str, ...], start: Place) -> list[dict[str, Any]]:
    """Return copies of a list's entries, which must have the keys `needed`; raises InputError for a malformed entry."""
    if not isinstance(listed, list):
        raise _wrong(f"{what} is no list", start)
    for i, each in enumerate(listed):
        if not isinstance(each, dict):
            raise _wrong(f"{what}[{i}] is no mapping", start)
        if missing := [key for key in needed if not isinstance(each.get(key), str | int)]:
            raise _wrong(f"{what}[{i}] has no {missing[0]} that is a name or a number", start)
    return [dict(each) for each in listed]


def _wrong(problem: str, place: Place) -> InputError:
    return InputError(problem, _NODE_LINK, place)


# --- the topology ---


def _topology_of(
    graph: Any, assumed: str | None, notes: ImportLog, place_of: Callable[[tuple[str, ...]], Place]
) -> Topology:
    """Return the topology of a networkx graph of numbers and texts; attributes unknown to simcoll are dropped.
    `place_of` returns the place of a device or link in the file. Raises InputError."""
    left = set[str]()
    edges = [data for *_, data in graph.edges(data=True)]
    for known, parts in ((_OF_NODES, graph.nodes.values()), (_OF_EDGES, edges)):
        for data in parts:
            left |= data.keys() - {*known}
            for key in data.keys() - {*known}:
                del data[key]
    graph.graph["name"] = str(graph.graph.get("name") or "graph")
    lent = {} if assumed is None else load_system(assumed).facts
    if lent := {key: lent[key] for key in _LENT if key in lent and key not in graph.graph}:
        graph.graph.update(lent)
        notes.assume(f"{', '.join(lent)}, which the graph does not say, are those of {assumed}")
    try:
        topology = Topology.from_graph(graph)
        for (u, v), link in zip(topology.links, topology.every_link, strict=True):
            if not link.bandwidth:  # faults and scenarios take links down, files do not
                cure = "write what the link carries, or leave the link out"
                raise TopologyError(f"{u}->{v}: a link cannot have a bandwidth of 0", cure, about=(u, v))
    except TopologyError as error:
        raise InputError([replace(wrong, place=place_of(error.about)) for wrong in error.diagnostics]) from None
    notes.read.append(f"{len(topology.kinds)} devices and {len(topology.links)} links, each in one direction")
    if topology.facts:
        notes.read.append(f"of the machine: {', '.join(topology.facts)}")
    if "gpu" in topology.kinds.values() and "gpu" not in topology.facts:
        notes.assume(
            "the graph does not say which GPUs these are: no profile of NCCL's calls fits the machine; give it `gpu`,"
            " or say with --assume SYSTEM whose they are"
        )
    if "routing" not in graph.graph:
        notes.assume("data take the shortest ways: the graph does not say `routing`")
    if left:
        notes.read.append(f"left out: {', '.join(sorted(left))}")
    return topology


# --- values and places of GraphML ---


def _boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return True


_TYPES: Final[dict[str, Callable[[str], object]]] = {
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": _boolean,
}


def _named(element: Element) -> str:
    """Return the name of an element without its namespace prefix."""
    return element.name.rpartition(":")[2]


def _title(element: Element) -> str:
    """Return the name of a node or an edge for messages."""
    said = element.attributes
    return said.get("id", "?") if _named(element) == "node" else f"{said.get('source')}->{said.get('target')}"


def _check_values(root: Element) -> None:
    """Raise InputError, with every mistake, for values of another type than their key declares."""
    keys = {key.attributes.get("id"): key for key in root.below() if _named(key) == "key"}
    wrong = []
    for part in root.below():
        for data in (child for child in part.children if _named(child) == "data"):
            key = keys.get(data.attributes.get("key"))
            name = key.attributes.get("attr.name", "?") if key else "?"
            kind = key.attributes.get("attr.type", "string") if key else "string"
            try:
                if kind in _TYPES:
                    _TYPES[kind](data.content)
            except ValueError:
                where = f"{_title(part)}: " if _named(part) in ("node", "edge") else ""
                problem = f"{where}{name} is {data.content.strip()!r}, and its key says {kind}"
                cure = "write such a value, or another attr.type of the key"
                wrong.append(Diagnostic(problem, cure, "", data.place))
    if wrong:
        raise InputError(wrong)


def _place_of(root: Element, about: tuple[str, ...]) -> Place:
    """Return the line and column where the file lists a device; if it lists none, where an edge names the device. For
    two devices, return the place of the last edge between them. If nothing is found, return the beginning of the file.
    """
    nodes, edges = list[Place](), list[Place]()
    for element in root.below():
        said = element.attributes
        ends = (said.get("source"), said.get("target"))
        if _named(element) == "node" and about == (said.get("id"),):
            nodes.append(element.place)
        elif _named(element) == "edge" and about and {*about} <= {*ends}:
            edges.append(element.place)
    return (nodes[:1] or edges[-1:] or [root.place])[0]
