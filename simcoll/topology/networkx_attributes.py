"""Read and write the attributes of a networkx graph that describe the whole machine. They are name, routing, routes,
lengths of a torus, and machine facts as in topology files (`machine_files.MachineFacts`).

Values are Python objects, or texts of YAML (JSON included), because some graph formats hold only numbers and texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from simcoll.config import yaml_tree
from simcoll.errors import InputError, Place, TopologyError
from simcoll.topology.machine_files import MachineFacts, SystemFile
from simcoll.units import PS_PER_S

if TYPE_CHECKING:
    import networkx as nx

    from simcoll.topology.graph import Topology

_OF_FILE: Final = ("name", "routing", "routes", "dims")
KNOWN: Final = frozenset((*_OF_FILE, *MachineFacts.model_fields))
_AS_TEXT: Final = frozenset(("name", "description", "profile", "routing"))


def written(topology: Topology) -> dict[str, Any]:
    """Return the graph attributes of a topology: a dictionary of plain Python values."""
    routes = {pair: list(way) for pair, way in topology.explicit.items()}
    said = {"name": topology.name, "routing": topology.routing, "routes": routes, "dims": [*topology.wiring.dims]}
    return {**{key: value for key, value in said.items() if value}, **topology.facts}


def read(attributes: Mapping[Any, Any]) -> SystemFile:
    """Convert the attributes of a graph into a `SystemFile` without devices and links; unknown ones are ignored. Raises
    TopologyError with every mistake."""
    said = {key: _plain(key, value) for key, value in attributes.items() if key in KNOWN and value is not None}
    document = {**said, "name": str(said.get("name") or "own graph"), "devices": [], "links": []}
    try:
        return yaml_tree.validate(SystemFile, [yaml_tree.located(document, Place("graph", 1, 1))])[0]
    except InputError as error:
        raise TopologyError(
            [replace(wrong, path=f"graph: {wrong.path}", place=None) for wrong in error.diagnostics]
        ) from None


def _plain(key: str, value: Any) -> Any:
    """Convert an attribute's value to plain lists and mappings; a text is parsed as YAML. Raises TopologyError."""
    if isinstance(value, str) and key not in _AS_TEXT:
        try:
            return yaml_tree.parse(value, key).plain()
        except InputError as error:
            cure = 'write a mapping, as {"model": "H100"}'
            raise TopologyError(f"graph: {key} is no text of YAML: {error.diagnostics[0].what}", cure) from None
    return json.loads(json.dumps(value, default=str)) if isinstance(value, Mapping | list | tuple) else value


def plain_graph(topology: Topology, texts: bool) -> nx.DiGraph[str]:
    """Return the topology as a networkx graph of plain values: edges have `bandwidth` in B/s, `latency` in s, `kind`.
    With `texts`, attributes of the whole graph are texts, and mappings are JSON."""
    import networkx as nx

    about = written(topology)
    if texts:
        about = {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}
    graph: nx.DiGraph[str] = nx.DiGraph(**about)
    for device, data in topology.wiring.devices.items():
        known = {"node": data.get("node"), "in_network": bool(data.get("in_network")) or None}
        graph.add_node(device, kind=data["kind"], **{key: value for key, value in known.items() if value is not None})
    for (u, v), link in zip(topology.links, topology.every_link, strict=True):
        graph.add_edge(u, v, bandwidth=link.bandwidth, latency=link.latency_ps / PS_PER_S, kind=link.kind)
    return graph
