"""Paths of data: what flows of scatter and of all_to_all divide into, and the ways of least latency."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from simcoll.synthesis.flow_graph import FlowGraph, Flows
from simcoll.synthesis.linear_programs import Floats
from simcoll.synthesis.packing import Tree
from simcoll.synthesis.splitting import Way
from simcoll.topology.graph import Topology

if TYPE_CHECKING:
    import networkx as nx

CHUNKS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21, 24, 28, 30, 32, 36, 40, 42, 48, 60, 64)
MOST_EXACT: Final = 512  # chunks or trees for the whole optimum: ratios of odd rates need more than memory holds


@dataclass(frozen=True)
class Path:
    """`count` chunks of the data from rank `source` to rank `target`, from chunk `first` on. It passes the ranks
    `stops`, ends included; between them it takes the `ways`."""

    source: int
    target: int
    first: int
    count: int
    stops: tuple[int, ...]
    ways: tuple[Way, ...]


def _path(graph: FlowGraph, way: Way, first: int, count: int) -> Path:
    rank = {vertex: number for number, vertex in enumerate(graph.ranks.tolist())}
    at = [place for place, vertex in enumerate(way) if vertex in rank]
    ways = tuple(way[a : b + 1] for a, b in itertools.pairwise(at))
    stops = tuple(rank[way[place]] for place in at)
    return Path(stops[0], stops[-1], first, count, stops, ways)


def of_flow(graph: FlowGraph, root: int, rate: Fraction, most: int) -> tuple[list[Path], int]:
    """Return the paths of a scatter at `rate` to each rank, in units of the graph, and the chunks of each rank: as many
    as the rate needs, or if this is more than `most` (0: MOST_EXACT), the number that loses least."""
    each, n = rate.numerator, graph.n
    flows = Flows(len(graph.names), graph.tails, graph.heads)
    flows.capacity[: flows.edges] = graph.capacity * rate.denominator
    others = np.delete(graph.ranks, root)
    flows.capacity[flows.to_sink(others)] = each
    flows.flow(int(graph.ranks[root]), flows.sink, each * (n - 1))
    residual, shares = _residual(graph, flows.carried().astype(float)), list[list[tuple[Way, float]]]()
    # farthest ranks last: a path to a near rank never takes what only a far rank can use, as flows end where they must
    for rank in others.tolist():
        found, need = list[tuple[Way, float]](), float(each)
        while need:
            way, some = _taken(residual, int(graph.ranks[root]), rank, need)
            found.append((way, some / each))
            need -= some
        shares.append(found)
    return _in_chunks(graph, shares, CHUNKS if each > (most or MOST_EXACT) else (each,), most)


def of_all_pairs(graph: FlowGraph, flows: list[Floats], most: int) -> tuple[list[Path], int]:
    """Return paths of an all_to_all, as the flows of each rank's data divide them, and the number of chunks of a pair's
    data, at most `most` (0: as in CHUNKS)."""
    shares: list[list[tuple[Way, float]]] = []
    for rank, flow in enumerate(flows):
        left = np.maximum(flow, 0)
        into = float(left[graph.heads == graph.ranks[(rank + 1) % graph.n]].sum())
        out = float(left[graph.tails == graph.ranks[(rank + 1) % graph.n]].sum())
        need = into - out
        residual = _residual(graph, left, 1e-9 * need)
        for other in range(graph.n):
            if other == rank:
                continue
            found, missing = list[tuple[Way, float]](), need
            while missing > 1e-7 * need:
                way, some = _taken(residual, int(graph.ranks[rank]), int(graph.ranks[other]), missing)
                if not way:
                    break
                found.append((way, some / need))
                missing -= some
            shares.append(found)
    return _in_chunks(graph, shares, CHUNKS, most)


def _in_chunks(
    graph: FlowGraph, shares: list[list[tuple[Way, float]]], numbers: Iterable[int], most: int
) -> tuple[list[Path], int]:
    """Return the paths with shares rounded to whole chunks, and how many chunks a pair's data have: of the `numbers` up
    to `most` (0: all) the one that loses least."""
    options = [(_loss(graph, shares, each), each) for each in numbers if not most or each <= most]
    least = min(loss for loss, _ in options)
    each = next(each for loss, each in options if loss <= least * 1.005)
    paths = list[Path]()
    for found in shares:
        first = 0
        for (way, _), some in zip(found, _rounded(found, each), strict=True):
            if some:
                paths.append(_path(graph, way, first, some))
            first += some
    return paths, each


def _loss(graph: FlowGraph, shares: list[list[tuple[Way, float]]], each: int) -> float:
    """Return the time of the busiest link for a unit of each pair's data, in `each` chunks."""
    edge = {ends: number for number, ends in enumerate(zip(graph.tails.tolist(), graph.heads.tolist(), strict=True))}
    load = np.zeros(len(graph.capacity))
    for found in shares:
        for (way, _), some in zip(found, _rounded(found, each), strict=True):
            load[[edge[ends] for ends in itertools.pairwise(way)]] += some
    return float((load / graph.capacity).max()) / each


def _rounded(found: list[tuple[Way, float]], each: int) -> list[int]:
    """Round shares to whole chunks with the sum `each`: the largest remainders go up."""
    exact = np.array([share for _, share in found]) * each
    whole = np.floor(exact + 1e-6).astype(np.int64)
    up = np.argsort(whole - exact, kind="stable")[: each - int(whole.sum())]
    whole[up] += 1
    found_sums: list[int] = whole.tolist()
    return found_sums


def _residual(graph: FlowGraph, left: Floats, least: float = 0.0) -> nx.DiGraph[int]:
    """Return a graph of the edges with more than `least` left."""
    import networkx as nx  # loaded here, as it takes 0.1 s

    residual: nx.DiGraph[int] = nx.DiGraph(least=least)
    residual.add_nodes_from(range(len(graph.names)))
    for edge in np.flatnonzero(left > least).tolist():
        residual.add_edge(int(graph.tails[edge]), int(graph.heads[edge]), left=left[edge])
    return residual


def _taken(residual: nx.DiGraph[int], source: int, target: int, most: float) -> tuple[Way, float]:
    """Take as much as one way of fewest hops can carry, at most `most`; return the way and the amount: () if there is
    no way."""
    import networkx as nx

    if not nx.has_path(residual, source, target):
        return (), 0.0
    way = tuple(nx.shortest_path(residual, source, target))
    edges = [residual.edges[ends] for ends in itertools.pairwise(way)]
    some = min(most, *(edge["left"] for edge in edges))
    for edge, ends in zip(edges, itertools.pairwise(way), strict=True):
        edge["left"] -= some
        if edge["left"] <= residual.graph["least"]:
            residual.remove_edge(*ends)
    return way, some


class QuickestWays:
    """Ways of least latency from a rank to all others, or with `turned` to it from all others (written backwards). Of
    equally quick ways those come first that earlier ways used least. With `wide` they are ways over the widest links,
    which begin anew at each rank that they reach, so that narrow links are crossed once."""

    def __init__(self, graph: FlowGraph, topology: Topology, turned: bool, wide: bool = False):
        self.wide, self.relays = wide, set(graph.ranks.tolist())
        self.graph = graph.reversed if turned else graph
        number = {ends: link for link, ends in enumerate(topology.links)}
        ends = zip(graph.tails.tolist(), graph.heads.tolist(), strict=True)
        self.latency = [int(topology.latencies[number[graph.names[u], graph.names[v]]]) for u, v in ends]
        self.used = [0.0] * len(self.latency)
        self.ahead: list[list[tuple[int, int]]] = [[] for _ in graph.names]
        for edge, (u, v) in enumerate(zip(self.graph.tails.tolist(), self.graph.heads.tolist(), strict=True)):
            self.ahead[u].append((v, edge))

    def _before(self, root: int) -> dict[int, tuple[int, int]]:
        """Return for each vertex the vertex and the edge before it on its way from the root."""
        start = int(self.graph.ranks[root])
        before, heap = dict[int, tuple[int, int]](), [(0.0, 0, 0.0, start, start, -1)]
        while heap:
            far, depth, load, vertex, last, edge = heapq.heappop(heap)
            if vertex in before:
                continue
            before[vertex] = last, edge
            anew = self.wide and vertex in self.relays
            begun, deep = (0.0, depth + 1) if anew else (far, depth)
            for other, link in self.ahead[vertex]:
                if other not in before:
                    cost = 1 / float(self.graph.capacity[link]) if self.wide else float(self.latency[link])
                    entry = begun + cost, deep, max(load, self.used[link]), other, vertex, link
                    heapq.heappush(heap, entry)
        for vertex in self.graph.ranks.tolist():
            while before[vertex][1] >= 0:
                vertex, edge = before[vertex]
                self.used[edge] += 1 / float(self.graph.capacity[edge])
        return before

    def paths(self, root: int) -> Iterator[Path]:
        """Yield the path to each other rank."""
        before = self._before(root)
        for rank in np.delete(self.graph.ranks, root).tolist():
            way = [rank]
            while before[way[-1]][1] >= 0:
                way.append(before[way[-1]][0])
            yield _path(self.graph, tuple(reversed(way)), 0, 1)

    def trees(self, roots: Iterable[int]) -> list[tuple[Tree, list[list[tuple[Way, int, int]]]]]:
        """Return a tree of the ways from each root, and the way of each of its edges."""
        found = []
        for root in roots:
            edges = {
                path.stops[-2:]: path.ways[-1] for path in sorted(self.paths(root), key=lambda path: len(path.ways))
            }
            tree = Tree(root, 1, {root: 0})
            for u, t in edges:
                tree.depth[t] = tree.depth[u] + 1
                tree.edges.append((u, t))
            found.append((tree, [[(way, 0, 1)] for way in edges.values()]))
        return found
