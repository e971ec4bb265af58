"""Write topologies as Graphviz (DOT)."""

from __future__ import annotations

from simcoll.config.grouping import grouped
from simcoll.topology.graph import Topology
from simcoll.units import format_bandwidth, format_duration

_SHAPES = {"gpu": "box", "host": "box", "nic": "ellipse", "cpu": "octagon", "switch": "diamond"}


def dump(topology: Topology) -> str:
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


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
