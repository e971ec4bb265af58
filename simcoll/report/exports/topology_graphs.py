"""Write topologies as Graphviz (DOT), GraphML and node-link JSON."""

from __future__ import annotations

import json

from simcoll.config.grouping import grouped
from simcoll.topology import networkx_attributes
from simcoll.topology.graph import Topology
from simcoll.units import format_bandwidth, format_duration

_SHAPES = {"gpu": "box", "host": "box", "nic": "ellipse", "cpu": "octagon", "switch": "diamond"}


def graphviz(topology: Topology) -> str:
    """Return a topology as DOT text. Equal links in both directions are one edge; a node's devices stand together."""
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
    """Return a topology as GraphML, which `simcoll import` reads; the graph's attributes describe the machine."""
    import networkx as nx

    return "\n".join([*nx.generate_graphml(networkx_attributes.plain_graph(topology, texts=True)), ""])


def node_link(topology: Topology) -> str:
    """Return a topology as JSON like that of `networkx.node_link_data`, which `simcoll import` reads."""
    graph = networkx_attributes.plain_graph(topology, texts=False)
    nodes = [{"id": device, **data} for device, data in graph.nodes(data=True)]
    edges = [{"source": u, "target": v, **data} for u, v, data in graph.edges(data=True)]
    about = {"directed": True, "multigraph": False, "graph": graph.graph}
    return json.dumps({**about, "nodes": nodes, "edges": edges}, indent=1) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
