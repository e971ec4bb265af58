"""Topologies as Graphviz and GraphML."""

from __future__ import annotations

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
    """GraphML text: every link an edge with `bandwidth` in B/s, `latency` in ps and `kind`."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph(name=topology.name)
    for device, kind in topology.kinds.items():
        node = topology.node_of(device)
        graph.add_node(device, kind=kind, **({} if node is None else {"node": node}))
    for u, v in topology.links:
        link = topology.link(u, v)
        graph.add_edge(u, v, bandwidth=link.bandwidth, latency=link.latency_ps / PS_PER_S, kind=link.kind)
    return "\n".join([*nx.generate_graphml(graph), ""])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
