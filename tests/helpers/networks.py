"""Small networks for the tests, and the shortest way to a timeline on them. Hosts are `h0`, `h1`, …"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import permutations
from typing import Any

import networkx as nx
import numpy as np

from simcoll.engine import event
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import Params
from simcoll.schedule.algorithms import build
from simcoll.schedule.registry import ALGORITHMS
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Link, Topology

GB_PER_S = 10**9
ENTRIES = [(entry.collective, entry.name) for entries in ALGORITHMS.values() for entry in entries.values()]
RANKS_ONLY = [pair for pair in ENTRIES if not ALGORITHMS[pair[0]][pair[1]].needs_agent]

Own = Mapping[tuple[str, str], Link]  # links that are not like the others


def _hosts(n: int) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    for rank in range(n):
        graph.add_node(f"h{rank}", kind="host", node=rank)
    return graph


def _join(graph: nx.DiGraph[str], pairs: Sequence[tuple[str, str]], link: Link, own: Own) -> None:
    for pair in pairs:
        graph.add_edge(*pair, link=own.get(pair, link))


def full_mesh(n: int, link: Link, own: Own | None = None) -> Topology:
    """A link of its own between any two hosts: no two messages of one channel each ever meet."""
    graph = _hosts(n)
    _join(graph, list(permutations(graph, 2)), link, own or {})
    return Topology.from_graph(graph)


def star(n: int, link: Link, own: Own | None = None, memory: Link | None = None) -> Topology:
    """Hosts around one `switch`, which can reduce: every route has two links. `memory` is a host's link to itself."""
    graph = _hosts(n)
    if memory:
        _join(graph, [(host, host) for host in graph], memory, {})
    graph.add_node("switch", kind="switch", in_network=True)
    _join(graph, [pair for rank in range(n) for pair in _both(f"h{rank}", "switch")], link, own or {})
    return Topology.from_graph(graph)


def two_level(n: int, link: Link, oversubscription: int, own: Own | None = None) -> Topology:
    """Half the hosts under each of two leaves, those under a spine; trunks are `oversubscription` times too narrow."""
    graph, below = _hosts(n), -(-n // 2)
    for switch in ("leaf0", "leaf1", "spine"):
        graph.add_node(switch, kind="switch")
    _join(graph, [pair for rank in range(n) for pair in _both(f"h{rank}", f"leaf{rank // below}")], link, own or {})
    trunk = Link(link.bandwidth * below // oversubscription, latency_ps=link.latency_ps)
    _join(graph, [pair for leaf in ("leaf0", "leaf1") for pair in _both(leaf, "spine")], trunk, own or {})
    return Topology.from_graph(graph)


def nodes(n: int, count: int, link: Link, nic: Link) -> Topology:
    """Hosts in `count` nodes, each with a switch that reduces; all have a link to the `fabric`, too."""
    graph = _hosts(n)
    for node in range(count):
        graph.add_node(f"node{node}", kind="switch", in_network=True)
    graph.add_node("fabric", kind="switch")
    _join(graph, [pair for rank in range(n) for pair in _both(f"h{rank}", f"node{rank * count // n}")], link, {})
    _join(graph, [pair for rank in range(n) for pair in _both(f"h{rank}", "fabric")], nic, {})
    return Topology.from_graph(graph)


def grid(dims: Sequence[int], link: Link, wraps: bool = True) -> Topology:
    """A torus of hosts, or without `wraps` a mesh; the last dimension varies fastest."""
    ranks, graph = np.arange(math.prod(dims)).reshape(dims), _hosts(math.prod(dims))
    graph.graph["dims"] = tuple(dims)
    for axis, side in enumerate(dims):
        line = np.moveaxis(ranks, axis, 0)
        ahead, low = np.roll(line, -1, 0), line[: side if wraps else side - 1]
        for u, v in zip(low.flat, ahead[: len(low)].flat, strict=True):
            _join(graph, _both(f"h{u}", f"h{v}"), link, {})
    return Topology.from_graph(graph)


def _both(u: str, v: str) -> list[tuple[str, str]]:
    return [(u, v), (v, u)]


@cache
def schedule(collective: str, algorithm: str, n: int) -> Schedule:
    """A schedule, built once; a switch that reduces is at hand."""
    return build(collective, algorithm, n, agents=1)


def devices(topology: Topology, plan: Schedule) -> tuple[str, ...]:
    """Rank r on host r; agents on what reduces in the network, where need be several on one switch."""
    return (*topology.ranks[: plan.n], *(topology.agents * plan.agents)[: plan.agents])


def program(
    name: str,
    topology: Topology,
    nbytes: int,
    *,
    itemsize: int = 1,
    arrivals: Mapping[int, int] | None = None,
    **params: Any,
) -> Program:
    """`collective/algorithm` on all hosts of a topology; `params` as in `Params`."""
    collective, _, algorithm = name.partition("/")
    plan = schedule(collective, algorithm, len(topology.ranks))
    places = devices(topology, plan)
    return bind(plan, topology, places, Params(**params), nbytes, itemsize=itemsize, arrivals=arrivals)


def timeline(name: str, topology: Topology, nbytes: int, **params: Any) -> Timeline:
    """When everything happens."""
    return event.run(program(name, topology, nbytes, **params))


def makespan(name: str, topology: Topology, nbytes: int, **params: Any) -> int:
    """How long it takes, in ps."""
    return timeline(name, topology, nbytes, **params).makespan_ps
