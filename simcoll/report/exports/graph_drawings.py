"""Topologies as Graphviz and GraphML."""

from __future__ import annotations

import json

from simcoll.config.groups import grouped
from simcoll.topology.graph import Topology
from simcoll.units import PS_PER_S, format_bandwidth, format_duration

_SHAPES = {"gpu": "box", "host": "box", "nic": "ellipse", "cpu": "octagon", "switch": "diamond"}


def graphviz(topology: Topology) -> str:
    """DOT text. Links that are alike both ways are one edge; a node's devices stand together."""
    lines = [f"digraph {_quoted(topology.name)} {{", "  edge [dir=both];"]
    for node, devices in grouped(topology.kinds, topology.node_of).items():
        declared = [f"{_quoted(d)} [shape={_SHAPES.get(topology.kinds[d], 'hexagon')}];" for d in devices]
        if node is None:
            lines += (f"  {line}" for line in declared)
        else:
            opened = [f"  subgraph cluster_{node} {{", f'    label="node {node}";']
            lines += [*opened, *(f"    {line}" for line in declared), "  }"]
    drawn: set[tuple[str, str]] = set()
    for u, v in topology.links:
        link = topology.link(u, v)
        if (v, u) in drawn:
            continue
        back = u != v and topology.has_link(v, u) and topology.link(v, u) == link
        if back:
            drawn.add((u, v))
        label = _quoted(f"{link.kind} {format_bandwidth(link.bandwidth)} {format_duration(link.latency_ps)}")
        lines.append(f"  {_quoted(u)} -> {_quoted(v)} [label={label}{'' if back else ', dir=forward'}];")
    return "\n".join([*lines, "}", ""])


def graphml(topology: Topology) -> str:
    """GraphML text, which `import` reads: every link an edge with `bandwidth` in B/s, `latency` in s and `kind`; what
    routes follow stands beside the name."""
    import networkx as nx

    routes = {pair: list(way) for pair, way in topology.explicit.items()}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.graph.update(
        name=topology.name, routing=topology.routing, **({"routes": json.dumps(routes)} if routes else {})
    )
    for device, data in topology.wiring.devices.items():
        known = {"node": data.get("node"), "in_network": bool(data.get("in_network")) or None}
        graph.add_node(device, kind=data["kind"], **{key: value for key, value in known.items() if value is not None})
    for u, v in topology.links:
        link = topology.link(u, v)
        graph.add_edge(u, v, bandwidth=link.bandwidth, latency=link.latency_ps / PS_PER_S, kind=link.kind)
    return "\n".join([*nx.generate_graphml(graph), ""])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
