"""Bisection bandwidth: the most that passes between two halves of a topology."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from simcoll.topology.graph import Topology


def bisection_bandwidth(topology: Topology) -> int:
    """B/s, one direction, that the links between two halves of all ranks carry at most.

    The least maximum flow over several ways of halving: halves made of blocks of 1, 2, 4, … in turn, and first
    half against second half. On several nodes it is the nodes that are halved, and each counts as one point: the
    fabric is what is measured. On one node the ranks are halved, and only links on their routes count.
    """
    groups: Sequence[Collection[str]] = [
        topology.members[node] for node in dict.fromkeys(map(topology.node_of, topology.ranks)) if node is not None
    ]
    if len(groups) < 2:
        groups = [{rank} for rank in topology.ranks]
    if len(groups) < 2:
        return 0
    return min(_flow(topology, *half) for half in _halves(groups))


def _flow(topology: Topology, left: Sequence[Collection[str]], right: Sequence[Collection[str]]) -> int:
    """Maximum flow from all of `left` to all of `right`, each seen as one point."""
    import networkx as nx

    point: dict[str, str] = {d: "left" for group in left for d in group}
    point |= {d: "right" for group in right for d in group}
    flow: nx.DiGraph[str] = nx.DiGraph()
    flow.add_nodes_from(("left", "right"))
    for link in _used(topology, left, right):
        u, v = (point.get(device, f"device {device}") for device in topology.links[link])
        if u != v:
            before = flow.get_edge_data(u, v, {"capacity": 0})["capacity"]
            flow.add_edge(u, v, capacity=before + int(topology.bandwidths[link]))
    return int(nx.maximum_flow_value(flow, "left", "right"))


def _used(topology: Topology, left: Sequence[Collection[str]], right: Sequence[Collection[str]]) -> Collection[int]:
    if any(len(group) > 1 for group in left) or topology.nodes > 1:
        return range(len(topology.links))
    return {link for (u,) in left for (v,) in right for link in topology.route(u, v)}


def _halves(groups: Sequence[Collection[str]]) -> Iterator[tuple[list[Collection[str]], list[Collection[str]]]]:
    n = len(groups)
    sizes = [size for size in range(1, n // 2) if n % (2 * size) == 0]
    for size in (*sizes, (n + 1) // 2):
        left = [group for i, group in enumerate(groups) if i // size % 2 == 0]
        right = [group for i, group in enumerate(groups) if i // size % 2]
        yield left, right
