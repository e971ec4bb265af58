"""Pack trees into a graph of ranks: each spans all ranks, and all together fit the capacities.

Such trees exist if each rank can receive the data of all roots (Edmonds, 1973). They are grown edge by edge, as in
Bérczi and Frank, "Packing arborescences" (2010): copies of a tree take an edge together as far as maximum flows leave
room for all trees that are not finished. Edges near the root come first, which keeps trees shallow.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    @property
    def height(self) -> int:
        """The number of edges on the longest way from the root."""
        return max(self.depth.values())


def pack(n: int, capacity: dict[Pair, int], roots: Integers) -> list[Tree]:
    """Return trees such that rank r is the root of `roots[r]` of them, counted with `count`. `capacity` is that of each
    edge between ranks 0 … n − 1."""
    packing = _Packing(n, dict(capacity), roots.astype(np.int64).copy())
    return [tree for root in np.flatnonzero(roots).tolist() for tree in packing.of_root(root)]


class _Packing:
    def __init__(self, n: int, capacity: dict[Pair, int], waiting: Integers):
        self.n, self.capacity, self.waiting = n, capacity, waiting
        self.edge = {pair: number for number, pair in enumerate(capacity)}
        self.ahead: list[list[int]] = [[t for u, t in capacity if u == rank] for rank in range(n)]
        self.parted: list[Tree] = []  # begun, and left because only some copies could go on
        self.endless = int(sum(capacity.values()) + waiting.sum())
        self.work = int((waiting > 0).sum()) * n * 4
        self._make(4)

    def _make(self, helpers: int) -> None:
        """Make flows with a helper vertex for each of so many begun trees."""
        self.helpers = helpers
        ends = np.array(list(self.capacity), np.int64).reshape(-1, 2)
        tails = np.concatenate([ends[:, 0], np.repeat(self.n + np.arange(helpers), self.n)])
        heads = np.concatenate([ends[:, 1], np.tile(np.arange(self.n), helpers)])
        self.flows = Flows(self.n + helpers, tails, heads, self.work)

    def of_root(self, root: int) -> Iterator[Tree]:
        """Yield the trees of a root."""
        self.parted.append(Tree(root, int(self.waiting[root]), {root: 0}))
        self.waiting[root] = 0
        while self.parted:
            yield self._grown(self.parted.pop())

    def _grown(self, tree: Tree) -> Tree:
        """Let a tree span all ranks. Copies that cannot take an edge with the others are left for later."""
        full = set[Pair]()  # edges without room: there will be none for this tree
        self._wait()
        while len(tree.depth) < self.n:
            best: tuple[int, Pair] | None = None
            for u, t in self._ahead_of(tree, full):
                if best and tree.depth[u] > tree.depth[best[1][0]]:
                    break
                room = self._room(u, t, tree.count)
                if not room:
                    full.add((u, t))
                elif best is None or room > best[0]:
                    best = room, (u, t)
                if room == tree.count:
                    break
            if best is None:
                raise SimcollError("trees do not fit the graph: a bug of simcoll")
            room, (u, t) = best
            self.capacity[u, t] -= room
            self.flows.capacity[self.edge[u, t]] -= room
            if room < tree.count:
                self.parted.append(Tree(tree.root, tree.count - room, dict(tree.depth), list(tree.edges)))
                tree.count = room
                self._wait()
            tree.depth[t] = tree.depth[u] + 1
            tree.edges.append((u, t))
        return tree

    def _ahead_of(self, tree: Tree, full: set[Pair]) -> list[Pair]:
        """Return the edges by which a tree can grow: the nearest to the root first, then those with most capacity."""
        found = [
            (u, t)
            for u in tree.depth
            for t in self.ahead[u]
            if t not in tree.depth and self.capacity[u, t] and (u, t) not in full
        ]
        return sorted(found, key=lambda pair: (tree.depth[pair[0]], -self.capacity[pair]))

    def _wait(self) -> None:
        """Set the capacities by which unfinished trees count: what a set of ranks without a rank of theirs must get."""
        if len(self.parted) > self.helpers:
            self._make(2 * len(self.parted))
        capacity, n = self.flows.capacity, self.n
        capacity[:] = 0
        capacity[: len(self.edge)] = list(self.capacity.values())
        capacity[self.flows.from_source(np.arange(n))] = self.waiting
        for number, other in enumerate(self.parted):
            capacity[self.flows.from_source(n + number)] = other.count
            capacity[len(self.edge) + number * n + np.array(list(other.depth))] = self.endless
        self.need = int(self.waiting.sum()) + sum(other.count for other in self.parted)

    def _room(self, u: int, t: int, most: int) -> int:
        """Return how many copies, at most `most`, may take the edge u→t, such that all other trees can still span."""
        flows, most = self.flows, min(most, self.capacity[u, t])
        start = flows.from_source(u)
        before, flows.capacity[start] = int(flows.capacity[start]), self.endless
        found = flows.flow(flows.source, t, self.need + most) - self.need
        flows.capacity[start] = before
        return max(0, min(most, found))
