"""Machines as node-link JSON, as `networkx.node_link_data` and `simcoll export --to node-link` write them: `nodes` of
devices with an `id` and a `kind`, `edges` or `links` with `source`, `target`, `bandwidth` (B/s) and `latency` (s).

What is said of the whole machine stands in `graph`, as in GraphML.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from simcoll.config.import_log import ImportLog
from simcoll.errors import Diagnostic, InputError, Place, TopologyError
from simcoll.formats.topologies._graph import topology_of
from simcoll.topology.graph import Topology

_CURE: Final = "give what networkx.node_link_data makes: nodes with id and kind, edges with source, target, bandwidth"


def looks(text: str) -> bool:
    """Whether a text has the keys of node-link JSON."""
    return all(f'"{key}"' in text for key in ("nodes", "source", "target", "id", "kind"))


def read(text: str, source: str, assumed: str | None, notes: ImportLog) -> Topology:
    """The topology that a graph describes; an undirected edge is two links. Raises InputError."""
    import networkx as nx

    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise _wrong(f"no JSON: {error.msg}", Place(source, error.lineno, error.colno)) from None
    start = Place(source, 1, 1)
    if not isinstance(document, dict) or not isinstance(about := document.get("graph", {}), dict):
        raise _wrong("no graph", start)
    nodes, edges = document.get("nodes"), document.get("edges", document.get("links"))
    graph: Any = nx.DiGraph() if document.get("directed") else nx.Graph()
    graph.graph.update(about)
    for each in _entries(nodes, "nodes", ("id",), start):
        graph.add_node(str(each.pop("id")), **each)
    for each in _entries(edges, "edges", ("source", "target"), start):
        ends = str(each.pop("source")), str(each.pop("target"))
        if unknown := [end for end in ends if end not in graph]:
            raise _wrong(f"edges: {'->'.join(ends)} joins {unknown[0]!r}, which is not among nodes", start)
        if graph.has_edge(*ends):
            cure = "give one link with their summed bandwidth, or put a device of its own on each"
            raise InputError([Diagnostic(f"edges: {'->'.join(ends)} stands twice", cure, "", start)])
        each.pop("key", None)  # of multigraphs
        graph.add_edge(*ends, **each)
    try:
        return topology_of(graph, assumed, notes)
    except TopologyError as error:
        raise InputError([replace(wrong, place=start) for wrong in error.diagnostics]) from None


def _entries(listed: Any, what: str, needed: tuple[str, ...], start: Place) -> list[dict[str, Any]]:
    """Copies of the entries of a list; raises InputError for what is none."""
    if not isinstance(listed, list):
        raise _wrong(f"{what} is no list", start)
    for i, each in enumerate(listed):
        if not isinstance(each, dict):
            raise _wrong(f"{what}[{i}] is no mapping", start)
        if missing := [key for key in needed if not isinstance(each.get(key), str | int)]:
            raise _wrong(f"{what}[{i}] has no {missing[0]} that is a name or a number", start)
    return [dict(each) for each in listed]


def _wrong(problem: str, place: Place) -> InputError:
    return InputError([Diagnostic(problem, _CURE, "", place)])
