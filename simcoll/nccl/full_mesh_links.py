"""GPUs with direct links to each other: rings of a call use all links of a GPU at once, whichever peer each leads to.

The order in which a channel visits the GPUs is not known here. But NCCL's search looks for channels that fill the links
together. So the links of a GPU to others of its node are one link here, to a hub that stands for the mesh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simcoll.topology.graph import Link, Topology

HUB = "nvswitch"  # its kind: what stands for the mesh carries what a switch would


def gathered(topology: Topology, places: Sequence[str]) -> Topology:
    """The topology with such a hub on each node; the same where not every one of `places` has links to others."""
    of_node: dict[int | None, set[str]] = defaultdict(set)
    for place in places:
        of_node[topology.node_of(place)].add(place)
    every = set(places)
    direct = [(u, v) for u, v in topology.links if u in every and u != v and v in of_node.get(topology.node_of(u), ())]
    if {u for u, _ in direct} != every:
        return topology
    wiring = topology.rewired()
    out: dict[str, list[Link]] = defaultdict(list)
    into: dict[str, list[Link]] = defaultdict(list)
    for u, v in direct:
        link = topology.link(u, v)
        out[u].append(link)
        into[v].append(link)
        wiring.part(u, v)
    for node in of_node:
        wiring.add(_hub(topology, node), {"kind": HUB, "node": node})
    for place in places:
        hub = _hub(topology, topology.node_of(place))
        wiring.join(place, hub, _together(out[place]))
        wiring.join(hub, place, _together(into[place]))
    return Topology(wiring, topology.name, topology.routing)


def _hub(topology: Topology, node: int | None) -> str:
    return f"node{node}.mesh" if topology.nodes > 1 else "mesh"


def _together(links: Sequence[Link]) -> Link:
    first = links[0]
    return Link(sum(link.bandwidth for link in links), latency_ps=first.latency_ps, kind=first.kind)
