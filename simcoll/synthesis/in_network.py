"""Trees through switches that add what comes in and copy what goes out.

Such a switch may be part of a tree, or its root, but no tree needs it: trees are Steiner trees, for which no theorem
promises that they reach the bound of all cuts. A linear program shares the links among trees that are known. The prices
of links in its dual say which further trees would help (Gilmore and Gomory, "A linear programming approach to the
cutting-stock problem", 1961). A tree of low price is grown by the nearest rank that is missing (Takahashi and
Matsuyama, "An approximate solution for the Steiner problem in graphs", 1980).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.synthesis.flow_graph import FlowGraph, Integers
from simcoll.synthesis.linear_programs import Floats
from simcoll.synthesis.packing import Tree
from simcoll.synthesis.splitting import Way
from simcoll.synthesis.symmetry import orbits_of

MOST_ROUNDS: Final = 40  # in which trees are grown from all roots
MOST_LOOKS: Final = 1_000_000  # at links by all trees that grow; then programs take some seconds
MOST_TREES: Final = 512  # of one root
GOOD: Final = 0.999  # share of the program's value with which more trees are not tried

Routed = tuple[Tree, list[list[tuple[Way, int, int]]]]  # a tree, and for each edge its way, first copy, and copies
Edge = tuple[int, int, Way]  # parent, child and the way between them; numbers are positions in `FlowGraph.roots`


class _Known(NamedTuple):
    """A tree of a phase; its edges have parents first."""

    phase: int
    root: int
    edges: tuple[Edge, ...]

    def tree(self, count: int) -> Tree:
        """Return so many copies of the tree."""
        tree = Tree(self.root, count, {self.root: 0}, [edge[:2] for edge in self.edges])
        for u, v in tree.edges:
            tree.depth[v] = tree.depth[u] + 1
        return tree


def trees(
    phases: Sequence[FlowGraph], weights: Integers | None, goal: float, most: int
) -> tuple[Integers, list[list[Routed]]]:
    """Return the number of trees of each root, (roots,), and the trees of each phase, which lead away from their roots
    on the phase's graph. Roots share the data in proportion to `weights`, (roots,), or as is best. `goal` is the bound
    in units of the graph; `most` limits the trees of one root (0: MOST_TREES)."""
    graph, known = phases[0], dict[_Known, None]()
    roots = range(len(graph.roots)) if weights is None else np.flatnonzero(weights).tolist()
    narrow = 1 / graph.capacity.astype(float)
    prices, looks = narrow / narrow.max(), len(narrow) * len(phases) * len(roots)
    kinds = np.unique(orbits_of(graph, weights).edges, return_inverse=True)[1]
    random, growers = np.random.default_rng(0), [_Grower(phase) for phase in phases]
    for turn in range(1, 1 + max(2, min(MOST_ROUNDS, MOST_LOOKS // looks))):
        for phase, grower in enumerate(growers):
            known |= dict.fromkeys(_Known(phase, root, grower.grown(prices, root)) for root in roots)
        program = _Program(graph, list(known), weights)
        value, prices = program.value, program.prices
        if value >= goal * (1 - 1e-9):
            break
        # what is alike costs alike, but for a little chance; of links that cost nothing, few and wide ones come first
        prices = (np.bincount(kinds, prices) / np.bincount(kinds))[kinds] * (1 + random.random(len(prices)) / 20)
        prices = prices + narrow * (prices.max() / narrow.max() / 10 / turn)
    return program.rounded(most or MOST_TREES)


class _Grower:
    """Grows trees in a graph."""

    def __init__(self, graph: FlowGraph):
        self.graph, self.number = graph, {vertex: number for number, vertex in enumerate(graph.roots.tolist())}
        self.ahead: list[list[tuple[int, int]]] = [[] for _ in graph.names]
        for edge, (u, v) in enumerate(zip(graph.tails.tolist(), graph.heads.tolist(), strict=True)):
            self.ahead[u].append((v, edge))
        self.used = np.zeros(len(graph.capacity))

    def grown(self, prices: Floats, root: int) -> tuple[Edge, ...]:
        """Return the edges of a tree of low price, with as few edges from the root as that allows."""
        price, start = prices.tolist(), int(self.graph.roots[root])
        missing, depth = set(self.graph.ranks.tolist()) - {start}, {start: 0}  # depth of what is in the tree
        before, far, edges = dict[int, int](), {start: (0.0, 0)}, list[tuple[int, Way]]()
        heap = [(0.0, 0, start)]
        while missing:
            cost, deep, vertex = heapq.heappop(heap)
            if (cost, deep) > far[vertex]:
                continue
            if vertex in missing:
                way = [vertex]
                while way[-1] not in depth:
                    way.append(before[way[-1]])
                way.reverse()
                stops = [place for place, each in enumerate(way) if each in self.number]
                for a, b in itertools.pairwise(stops):
                    edges.append((way[b], tuple(way[a : b + 1])))
                    depth[way[b]], far[way[b]] = depth[way[a]] + 1, (0.0, depth[way[a]] + 1)
                    heapq.heappush(heap, (*far[way[b]], way[b]))
                missing.discard(vertex)
                continue
            for other, edge in self.ahead[vertex]:
                reached = cost + price[edge], deep + 1
                if other not in depth and reached < far.get(other, (np.inf, 0)):
                    far[other], before[other] = reached, vertex
                    heapq.heappush(heap, (*reached, other))
        return tuple(self._short(root, edges))

    def _short(self, root: int, edges: list[tuple[int, Way]]) -> Iterator[Edge]:
        """Yield the edges, without switches that pass on what they get to one receiver."""
        n, children = self.graph.n, Counter(way[0] for _, way in edges)
        to = {self.number[end]: way for end, way in edges}
        through = {end for end, _ in edges if self.number[end] >= n and children[end] == 1}
        for end, way in edges:
            if end not in through:
                while way[0] in through:
                    way = to[self.number[way[0]]][:-1] + way
                yield self.number[way[0]], self.number[end], way


class _Program:
    """The best shares of known trees: the sum `value` of all roots' shares, and the `prices` of links."""

    def __init__(self, graph: FlowGraph, known: list[_Known], weights: Integers | None):
        from scipy.sparse import coo_array, csr_array, hstack

        self.graph, self.known, size = graph, known, len(graph.roots)
        edge = {ends: e for e, ends in enumerate(zip(graph.tails.tolist(), graph.heads.tolist(), strict=True))}
        crossed = [
            (edge[hop if tree.phase == 0 else hop[::-1]], column)
            for column, tree in enumerate(known)
            for *_, way in tree.edges
            for hop in itertools.pairwise(way)
        ]
        rows, columns = np.array(crossed).T
        each = np.arange(len(known))
        self.load = coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(edge), len(known))).tocsr()
        self.rooted = np.array([tree.phase * size + tree.root for tree in known], np.int64)
        phases = 1 + max(tree.phase for tree in known)
        own = coo_array((np.ones(len(known)), (self.rooted, each)), shape=(phases * size, len(known)))
        part = np.eye(size) if weights is None else weights[:, None].astype(float)
        self.same = hstack([own, csr_array(-np.vstack([part] * phases))]).tocsr()
        self.table = hstack([self.load, csr_array((len(edge), part.shape[1]))]).tocsr()
        self.goal = np.append(np.zeros(len(known)), -part.sum(axis=0))
        solved, scale = _solved(self.goal, self.table, graph.capacity, self.same)
        self.value, self.prices = -float(solved.fun) * scale, -solved.ineqlin.marginals

    def rounded(self, most: int) -> tuple[Integers, list[list[Routed]]]:
        """Return whole numbers of trees with shares near the best: low trees, and as many as lose least."""
        from scipy.sparse import csr_array, vstack

        trees, size = [known.tree(1) for known in self.known], len(self.graph.roots)
        enough = vstack([self.table, csr_array(self.goal[None, :])])
        low = np.append([tree.height + len(tree.edges) / 1000 for tree in trees], 0 * self.goal[len(trees) :])
        limits = np.append(self.graph.capacity, -self.value * (1 - 1e-9))
        solved, scale = _solved(low, enough, limits, self.same)
        shares = solved.x[: len(trees)] * scale
        of_group = np.bincount(self.rooted, shares)
        best: tuple[float, Any] | None = None
        for k in range(1, most + 1):
            counts = self._counts(shares, of_group, k)
            busiest = float((self.load @ counts / self.graph.capacity).max())
            rate = np.bincount(self.rooted, counts)[:size].sum() / busiest
            if best is None or rate > best[0] * (1 + 1e-6):
                best = rate, counts
            if best[0] > GOOD * self.value:
                break
        assert best is not None
        found: list[list[Routed]] = [[] for _ in range(1 + self.rooted.max() // size)]
        for known, count in zip(self.known, best[1].tolist(), strict=True):
            if count:
                ways = [[(way, 0, count)] for *_, way in known.edges]
                found[known.phase].append((known.tree(count), ways))
        return np.bincount(self.rooted, best[1], minlength=size)[:size].astype(np.int64), found

    def _counts(self, shares: Floats, of_group: Any, k: int) -> Any:
        """Return numbers of trees in proportion to `shares`, `k` of the largest root; equal sums in all phases."""
        whole = np.rint(of_group / of_group.max() * k)
        exact = shares / of_group.clip(1e-300)[self.rooted] * whole[self.rooted]
        counts = np.floor(exact + 1e-6)
        order = np.lexsort((counts - exact, self.rooted))  # of each root the largest remainders first
        rooted = self.rooted[order]
        place = np.arange(len(order)) - np.searchsorted(rooted, rooted)
        missing = whole - np.bincount(self.rooted, counts, len(whole))
        counts[order] += place < missing[rooted]
        found: Integers = counts.astype(np.int64)
        return found


def _solved(goal: Floats, table: Any, limits: Any, same: Any) -> tuple[Any, float]:
    """Return the solution of a linear program: the least `goal` with `table` · x ≤ `limits`, `same` · x = 0, x ≥ 0; and
    the number in which x is counted, as old solvers give up on large numbers."""
    from scipy.optimize import linprog  # takes 0.3 s to load

    scale = float(np.abs(limits).max())
    return linprog(goal, table, limits / scale, same, np.zeros(same.shape[0])), scale
