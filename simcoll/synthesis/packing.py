"""Pack trees into a graph of ranks: each spans all ranks, and all together fit the capacities.

Such trees exist if each rank can receive the data of all roots (Edmonds, 1973). They are grown edge by edge, as in
Bérczi and Frank, "Packing arborescences" (2010): copies of a tree take an edge together as far as maximum flows leave
room for all trees that are not finished. All trees grow in turn, by edges near their roots: then no tree gets only what
others left over, and all stay low.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from simcoll.errors import SimcollError
from simcoll.synthesis.flow_graph import Flows, Integers

Pair = tuple[int, int]


@dataclass
class Tree:
    """`count` equal trees. `depth` maps each rank to its distance from the root; `edges` are (parent, child), parents
    first."""

    root: int
    count: int
    depth: dict[int, int] = field(default_factory=dict)
    edges: list[Pair] = field(default_factory=list)
    full: set[Pair] = field(default_factory=set)  # without room for the tree: there will be none later

    @property
    def height(self) -> int:
        """The number of edges on the longest way from the root."""
        return max(self.depth.values())


def pack(n: int, capacity: dict[Pair, int], roots: Integers) -> list[Tree]:
    """Return trees such that rank r is the root of `roots[r]` of them, counted with `count`. `capacity` is that of each
    edge between ranks 0 … n − 1."""
    return _Packing(n, dict(capacity), roots).grown()


class _Packing:
    def __init__(self, n: int, capacity: dict[Pair, int], roots: Integers):
        self.n, self.capacity = n, capacity
        self.edge = {pair: number for number, pair in enumerate(capacity)}
        self.ahead: list[list[int]] = [[t for u, t in capacity if u == rank] for rank in range(n)]
        self.endless = int(sum(capacity.values()) + roots.sum())
        self.need = int(roots.sum())  # copies of trees that are not finished
        self.trees = [Tree(root, int(roots[root]), {root: 0}) for root in np.flatnonzero(roots).tolist()]
        self.work = len(self.trees) * n * 4
        self._make(len(self.trees))

    def _make(self, helpers: int) -> None:
        """Make flows with a helper vertex for each of so many trees. It stands for what a set of ranks must get from
        outside as long as none of the tree's ranks is in it."""
        self.helpers = helpers
        ends = np.array(list(self.capacity), np.int64).reshape(-1, 2)
        tails = np.concatenate([ends[:, 0], np.repeat(self.n + np.arange(helpers), self.n)])
        heads = np.concatenate([ends[:, 1], np.tile(np.arange(self.n), helpers)])
        self.flows = Flows(self.n + helpers, tails, heads, self.work)
        self.flows.capacity[: len(self.edge)] = list(self.capacity.values())
        for number in range(len(self.trees)):
            self._count(number)

    def _count(self, number: int) -> None:
        """Let flows count a tree."""
        tree, capacity = self.trees[number], self.flows.capacity
        capacity[self.flows.from_source(self.n + number)] = tree.count if len(tree.depth) < self.n else 0
        capacity[len(self.edge) + number * self.n + np.array(list(tree.depth))] = self.endless

    def grown(self) -> list[Tree]:
        """Let all trees span all ranks. Copies that cannot take an edge with the others become a tree of their own."""
        heap = [(0, number) for number in range(len(self.trees))]
        while heap:
            _, number = heapq.heappop(heap)
            tree, (room, (u, t)) = self.trees[number], self._best(number)
            self.capacity[u, t] -= room
            self.flows.capacity[self.edge[u, t]] -= room
            grown = [number]
            if room < tree.count:
                grown.append(len(self.trees))
                self.trees.append(
                    Tree(tree.root, tree.count - room, dict(tree.depth), list(tree.edges), set(tree.full))
                )
                tree.count = room
                if len(self.trees) > self.helpers:
                    self._make(2 * self.helpers)
                self._count(grown[-1])
            tree.depth[t] = tree.depth[u] + 1
            tree.edges.append((u, t))
            self._count(number)
            for each in grown:
                if len(self.trees[each].depth) < self.n:
                    heapq.heappush(heap, (len(self.trees[each].edges), each))
                else:
                    self.need -= tree.count
        return self.trees

    def _best(self, number: int) -> tuple[int, Pair]:
        """Return the edge by which a tree grows, and how many copies it takes: nearest to the root, and if it can be,
        all copies."""
        tree, best = self.trees[number], (0, (0, 0))
        while not best[0]:
            for pair in self._ahead_of(tree):
                room = self._room(number, *pair)
                if not room:
                    tree.full.add(pair)
                best = max(best, (room, pair), key=lambda each: each[0])
                if room == tree.count:
                    break
        return best

    def _ahead_of(self, tree: Tree) -> list[Pair]:
        """Return the edges by which a tree can grow nearest to the root: those with most capacity first."""
        found = list[Pair]()
        for u, depth in tree.depth.items():  # in order of depth
            if found and depth > tree.depth[found[0][0]]:
                break
            found += [
                (u, t) for t in self.ahead[u] if t not in tree.depth and self.capacity[u, t] and (u, t) not in tree.full
            ]
        if not found:
            raise SimcollError("trees do not fit the graph: a bug of simcoll")
        return sorted(found, key=lambda pair: -self.capacity[pair])

    def _room(self, number: int, u: int, t: int) -> int:
        """Return how many copies of a tree may take the edge u→t, such that all other trees can still span."""
        flows, count = self.flows, self.trees[number].count
        most, need = min(count, self.capacity[u, t]), self.need - count
        own, start = flows.from_source(self.n + number), flows.from_source(u)
        flows.capacity[own], flows.capacity[start] = 0, self.endless
        found = flows.flow(flows.source, t, need + most) - need
        flows.capacity[own], flows.capacity[start] = count, 0
        return max(0, min(most, found))
