"""Machines as GraphML, as networkx and `simcoll export --to graphml` write them: devices with a `kind`, links with
`bandwidth` (B/s) and `latency` (s).

The graph may have a `name`, a `routing`, and as JSON `routes` and what topology files say of a machine (`gpu`, `nic`,
`cpu`, `nccl`; `profile`); nodes may have `node`, the number of their machine, and `in_network`. Other attributes, such
as where a program has drawn a node, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simcoll.config import xml_tree
from simcoll.config.import_log import ImportLog
from simcoll.config.xml_tree import Element
from simcoll.errors import Diagnostic, InputError, Place, TopologyError
from simcoll.formats.topologies._graph import topology_of
from simcoll.topology.graph import Topology

ROOT: Final = "graphml"
_CURE: Final = "give GraphML as networkx writes it: nodes with `kind`, edges with `bandwidth` and `latency`"


def read(text: str, source: str, assumed: str | None, notes: ImportLog) -> Topology:
    """The topology that a graph describes; an undirected edge is two links. Raises InputError with line and column."""
    import networkx as nx

    root = xml_tree.parse(text, source, root=ROOT, kind="GraphML file", deepest=16, cure=_CURE)  # bounded, no entities
    _check_values(root)
    try:
        graph: Any = nx.parse_graphml(text)
    except (nx.NetworkXException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError([Diagnostic(f"no graph: {error}", _CURE, "", root.place)]) from None
    try:
        return topology_of(graph, assumed, notes)
    except TopologyError as error:
        place = _place_of(root, error.about)
        raise InputError([replace(wrong, place=place) for wrong in error.diagnostics]) from None


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
    """The name of an element without its namespace's prefix."""
    return element.name.rpartition(":")[2]


def _title(element: Element) -> str:
    """A node or an edge as messages name it."""
    said = element.attributes
    return said.get("id", "?") if _named(element) == "node" else f"{said.get('source')}->{said.get('target')}"


def _check_values(root: Element) -> None:
    """Raise InputError, with every mistake, for values that are not of the type that their key says."""
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
    """The place of a device, else of an edge that names it, or of the last edge between two; the beginning of the file
    where none is meant."""
    nodes, edges = list[Place](), list[Place]()
    for element in root.below():
        said = element.attributes
        ends = (said.get("source"), said.get("target"))
        if _named(element) == "node" and about == (said.get("id"),):
            nodes.append(element.place)
        elif _named(element) == "edge" and about and {*about} <= {*ends}:
            edges.append(element.place)
    return (nodes[:1] or edges[-1:] or [root.place])[0]
