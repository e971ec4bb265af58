"""Optima that no single cut gives, by linear programs: all_reduce with free roots, all_to_all, and unbalanced switches.

HiGHS solves in floating point. What is printed is exact: the prices of its dual solution, rounded to fractions, prove a
bound by themselves, whatever solver found them.

*all_reduce*: rank u, or a switch u that adds and copies, reduces a share x_u of the data, and broadcasts the result.
Each link's bandwidth is divided between the two phases. Within a phase all cuts must be wide enough; cuts are added
while one is too narrow. A switch that adds and copies need not pass on as much as it gets.
Ranks, switches and links that are alike (`symmetry`) have one variable.
*all_to_all*: a flow of each rank's data to all others (multi-commodity flow); ranks may relay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.errors import RefusedError
from simcoll.synthesis.bounds import Bools, Bound, witness
from simcoll.synthesis.flow_graph import FlowGraph, Flows, Integers
from simcoll.synthesis.symmetry import orbits_of

FINEST: Final = 2**40  # units into which bandwidths in floating point are divided for maximum flows
NARROW: Final = 1e-9  # by which share of the throughput a cut is too narrow
SHARES: Final = (0.5, 0.6, 0.7, 0.8, 0.9)  # of a link's capacity, above which load costs more and more
MOST_FLOWS: Final = 60_000  # variables of all_to_all's program, which takes a minute then
DENOMINATORS: Final = (1, 60, 5040, 100_000)  # largest denominators with which prices are tried

Floats = NDArray[np.float64]


class Phases(NamedTuple):
    """The best division of an all_reduce: the share of each root, (roots,), and the capacity of each edge for the
    broadcasts and for the reductions, (edges,) each; in units of the graph."""

    shares: Floats
    broadcast: Floats
    reduce: Floats


@dataclass(frozen=True)
class _Cut:
    """A cut of a phase: data of the roots in `side` must leave it over the edges `out`."""

    phase: int
    side: Bools
    out: Integers


def all_reduce(graph: FlowGraph) -> tuple[Bound, Phases]:
    """Return the bound of all_reduce with free roots, and how to divide links and roots to reach it."""
    bound, shares, widths = _by_cuts(graph, 2, None)
    return bound, Phases(shares, widths[0], widths[1])


def balanced(graph: FlowGraph, weights: Integers) -> tuple[Bound, Floats]:
    """Return the bound of trees in which rank u is the root of a part `weights[u]` of the data, if switches pass on as
    much as they get; and the capacity of each edge that is used. The rate is that of all data together."""
    bound, _, widths = _by_cuts(graph, 1, np.append(weights, np.zeros_like(graph.agents)))
    return bound, widths[0]


def _by_cuts(graph: FlowGraph, phases: int, weights: Integers | None) -> tuple[Bound, Floats, list[Floats]]:
    """Maximise the sum of the shares; with `weights` they are in this proportion. Phase 1 runs on the graph turned
    round. Of the best solutions return one that spreads load and roots, so that few links are busy all the time."""
    alike = _Alike.of(graph, weights)
    n, edges, roots, wide = len(alike.roots), len(alike.edges), graph.roots, graph.capacity[alike.edges].astype(float)
    columns, turned, ends = n + phases * edges, [graph, graph.reversed], roots[alike.roots[alike.roots < graph.n]]
    alone = [np.arange(len(graph.names)) == rank for rank in ends]
    cuts = [_Cut(p, side, turned[p].out_of(side)) for p in range(phases) for one in alone for side in (one, ~one)]
    flows = [Flows(len(graph.names), turned[p].tails, turned[p].heads, 100 * n) for p in range(phases)]
    same = _balances(graph, alike, phases, columns)
    if weights is not None:
        fixed = np.zeros((n, columns))
        fixed[:, :n] = np.diag(np.full(n, float(weights.max())))
        fixed[:, alike.of_root[np.argmax(weights)]] -= weights[alike.roots]
        same = np.vstack([same, fixed])
    load = np.hstack([np.zeros((edges, n)), *[np.eye(edges)] * phases])
    many, links = np.bincount(alike.of_root), np.bincount(alike.of_edge)

    def row(cut: _Cut) -> Floats:
        made = np.zeros(columns)
        made[:n] = np.bincount(alike.of_root[cut.side[roots]], minlength=n)
        made[n + cut.phase * edges :][:edges] = -np.bincount(alike.of_edge[cut.out], minlength=edges)
        return made

    def solved(spread: float) -> Any:
        """Return the solution that all cuts allow: of the greatest sum, or with this sum and `spread` load."""
        while True:
            table, limits = np.vstack([*map(row, cuts), load]), np.concatenate([np.zeros(len(cuts)), wide])
            goal, equal = np.append(-many.astype(float), np.zeros(columns - n)), same
            if spread:  # more columns: what each link carries above shares of its capacity, and the largest root
                over, most = len(SHARES) * edges, np.vstack([-many, np.eye(n)])
                more = np.hstack([np.vstack([load] * len(SHARES)), -np.eye(over), np.zeros((over, 1))])
                share = np.hstack([most, np.zeros((n + 1, columns - n + over)), -np.sign(np.arange(n + 1.0))[:, None]])
                table = np.vstack([np.hstack([table, np.zeros((len(table), over + 1))]), more, share])
                limits = np.concatenate([limits, *(part * wide for part in SHARES), [-spread], np.zeros(n)])
                goal = np.concatenate([np.zeros(columns), np.tile(links / wide, len(SHARES)), [1 / spread]])
                equal = np.hstack([same, np.zeros((len(same), over + 1))])
            found = _minimised(goal, table, limits, equal)
            shares, widths = found.x[:n][alike.of_root], np.split(found.x[n:columns], phases)
            narrow = [
                cut
                for p in range(phases)
                for cut in _too_narrow(turned[p], p, flows[p], shares, widths[p][alike.of_edge], ends)
            ]
            if not narrow:
                return found
            cuts.extend(narrow)

    found = solved(0.0)
    value, prices = float(found.x[:n] @ many), -found.ineqlin.marginals[: len(cuts)]
    bound = _proved(graph, alike, list(cuts), prices, found.eqlin.marginals, weights, value, phases)
    even = solved(value * (1 - 1e-10)).x
    return bound, even[:n][alike.of_root], [each[alike.of_edge] for each in np.split(even[n:columns], phases)]


class _Alike(NamedTuple):
    """Which roots, switches and edges are alike: the first of each kind, and the kind of each. Roots are numbered as
    in `FlowGraph.roots`, switches as in `FlowGraph.switches`."""

    roots: Integers
    of_root: Integers
    switches: Integers
    of_switch: Integers
    edges: Integers
    of_edge: Integers

    @classmethod
    def of(cls, graph: FlowGraph, weights: Integers | None) -> _Alike:
        """Return what is alike in a graph whose roots have `weights`."""
        found = orbits_of(graph, weights)
        columns = found.vertices[graph.roots], found.vertices[graph.switches], found.edges
        return cls(
            *(each for column in columns for each in np.unique(column, return_index=True, return_inverse=True)[1:])
        )

    def means(self, values: list[Fraction], kinds: Integers) -> list[Fraction]:
        """Return the mean of the `values` of each kind, for each value."""
        sums = [Fraction()] * (int(kinds.max(initial=-1)) + 1)
        for kind, value in zip(kinds.tolist(), values, strict=True):
            sums[kind] += value
        counts = np.bincount(kinds).tolist()
        return [sums[kind] / counts[kind] for kind in kinds.tolist()]


def _minimised(goal: Floats, table: Any, limits: Floats, same: Any) -> Any:
    """Return HiGHS' solution: the least `goal` with `table` · x ≤ `limits`, `same` · x = 0, x ≥ 0. Raises
    RefusedError."""
    from scipy.optimize import linprog  # takes 0.3 s to load

    solved = linprog(goal, table, limits, same, np.zeros(same.shape[0]))
    if solved.status != 0 or not solved.x.any():
        raise RefusedError("no schedule exists: some ranks cannot be reached from all others; add links")
    return solved


def _balances(graph: FlowGraph, alike: _Alike, phases: int, columns: int) -> Floats:
    """Return rows, (kinds of switches · phases, columns), that say that as much enters a switch as leaves it."""
    first, edges, size = len(alike.roots), len(alike.edges), len(alike.switches)
    rows = np.zeros((phases * size, columns))
    for number, switch in enumerate(np.array(graph.switches, np.int64)[alike.switches]):
        more = [np.bincount(alike.of_edge[ends == switch], minlength=edges) for ends in (graph.heads, graph.tails)]
        for p in range(phases):
            rows[p * size + number, first + p * edges :][:edges] = more[0] - more[1]
    return rows


def _too_narrow(
    graph: FlowGraph, phase: int, flows: Flows, shares: Floats, widths: Floats, ends: Integers
) -> list[_Cut]:
    """Return the cuts of a phase that do not let all shares through to the vertices `ends`."""
    scale = FINEST / max(1.0, float(graph.capacity.sum()))
    flows.capacity[:] = 0
    flows.capacity[: flows.edges] = np.maximum(np.rint(widths * scale), 0)
    flows.capacity[flows.from_source(graph.roots)] = parts = np.maximum(np.rint(shares * scale), 0).astype(np.int64)
    need, found = int(parts.sum()), dict[bytes, Bools]()
    for rank in ends.tolist():
        if flows.flow(flows.source, rank, need) < need * (1 - NARROW) - len(parts) - flows.edges:
            side = flows.side()
            found[side.tobytes()] = side
    return [_Cut(phase, side, graph.out_of(side)) for side in found.values()]


def _proved(
    graph: FlowGraph,
    alike: _Alike,
    cuts: list[_Cut],
    prices: Floats,
    duals: Floats,
    weights: Integers | None,
    value: float,
    phases: int,
) -> Bound:
    """Return the bound that the prices of cuts prove. Each unit of a share pays the prices of all cuts that hold its
    root; a link costs what the dearer phase pays for it, and what the potentials of switches add. Each cut stands for
    all that symmetries make of it, so that what is alike costs and pays the mean."""
    paying = np.flatnonzero(prices > 1e-9)
    potentials = duals[: phases * len(alike.switches)].reshape(phases, -1) / np.bincount(alike.of_switch)
    ends = list(zip(graph.tails.tolist(), graph.heads.tolist(), strict=True))

    def priced(rounded: _Rounding) -> _Priced:
        cost, paid = [Fraction()] * len(ends), [Fraction()] * len(graph.roots)
        for p in range(phases):
            height = dict(zip(graph.switches, map(rounded, potentials[p][alike.of_switch].tolist()), strict=True))
            own = [height.get(v, Fraction()) - height.get(u, Fraction()) for u, v in ends]
            for number in paying.tolist():
                if cuts[number].phase == p:
                    price = rounded(float(prices[number]))
                    for edge in cuts[number].out.tolist():
                        own[edge] += price
                    paid = [all_paid + price * int(has) for all_paid, has in
                            zip(paid, cuts[number].side[graph.roots], strict=True)]  # fmt: skip
            cost = list(map(max, cost, alike.means(own, alike.of_edge)))
        paid = alike.means(paid, alike.of_root)
        if weights is None:
            return cost, min(paid)
        parts = zip(paid, weights.tolist(), strict=True)
        return cost, sum((each * int(weight) for each, weight in parts), Fraction()) / int(weights.sum())

    return _bound(graph, priced, value, 1, cuts[int(np.argmax(prices))].side)


_Rounding = Callable[[float], Fraction]
_Priced = tuple[list[Fraction], Fraction]  # what a unit of each edge costs, and what a unit of data must pay at least


def _bound(graph: FlowGraph, priced: Callable[[_Rounding], _Priced], value: float, parts: int, devices: Bools) -> Bound:
    """Return the least bound that prices prove when they are rounded to fractions, in turn to finer ones: what all
    links offer over what a unit of data must pay, times `parts`. It should be `value`."""
    best: Fraction | None = None
    for most in DENOMINATORS:
        cost, paid = priced(lambda price, most=most: Fraction(price).limit_denominator(most))  # type: ignore[misc]
        offered = sum((int(width) * z for width, z in zip(graph.capacity, cost, strict=True)), Fraction())
        if paid > 0 and (best is None or offered / paid < best):
            best, links = offered / paid, np.flatnonzero([z > 0 for z in cost])
        if best is not None and abs(float(best) - value) <= 1e-9 * value:
            break
    if best is None:
        raise RefusedError("the linear program has no solution that proves a bound")
    exact = abs(float(best) - value) <= 1e-8 * value and best.denominator < 10**6
    return Bound(best * parts * graph.unit, "lp", *witness(graph, devices, links), exact)


def all_to_all(graph: FlowGraph, of_kinds: bool = False) -> tuple[Bound, Floats]:
    """Return the bound of all_to_all, and the flow of each rank's data over each edge at the best rate, (n, edges), in
    units of the graph. With `of_kinds` there are flows of one rank of each kind only, whose mean over all symmetries
    fits the links. Raises RefusedError for too many ranks."""
    from scipy.sparse import coo_array

    alike = _Alike.of(graph, None) if of_kinds else None
    sources = alike.roots if alike else np.arange(graph.n)
    kind_of = alike.of_edge if alike else np.arange(len(graph.capacity))
    n, edges, vertices = len(sources), len(graph.capacity), len(graph.names)
    if n * edges > MOST_FLOWS:
        problem = f"all_to_all on {graph.n} ranks and {edges} links is too large a linear program"
        raise RefusedError(f"{problem}; take fewer ranks")
    source, edge = (each.ravel() for each in np.meshgrid(np.arange(n), np.arange(edges), indexing="ij"))
    column = source * edges + edge
    rows = np.concatenate([source * vertices + graph.heads[edge], source * vertices + graph.tails[edge]])
    values = np.concatenate([np.ones(n * edges), -np.ones(n * edges)])
    owner, end = (each.ravel() for each in np.meshgrid(np.arange(n), np.arange(graph.n), indexing="ij"))
    apart = sources[owner] != end
    rows = np.concatenate([rows, owner[apart] * vertices + graph.ranks[end[apart]]])
    columns = np.concatenate([column, column, np.full(apart.sum(), n * edges)])
    values = np.concatenate([values, -np.ones(apart.sum())])
    giving = np.arange(n) * vertices + graph.ranks[sources]  # as much as is needed
    kept = np.delete(np.arange(n * vertices), giving)
    same = coo_array((values, (rows, columns)), shape=(n * vertices, n * edges + 1)).tocsr()[kept]
    many = np.bincount(alike.of_root)[source] if alike else np.ones(n * edges)
    shared = coo_array((many, (kind_of[edge], column)), shape=(int(kind_of.max()) + 1, n * edges + 1)).tocsr()
    goal = np.zeros(n * edges + 1)
    goal[-1] = -1
    solved = _minimised(goal, shared, np.bincount(kind_of, graph.capacity).astype(float), same)
    rate = float(solved.x[-1])
    return _by_lengths(graph, -solved.ineqlin.marginals[kind_of], rate), solved.x[:-1].reshape(n, edges)


def _by_lengths(graph: FlowGraph, prices: Floats, value: float) -> Bound:
    """Return the bound of all_to_all that lengths of links prove: all pairs together travel at least the sum of their
    distances, and the network offers the sum of capacity times length."""
    import networkx as nx  # loaded here, as it takes 0.1 s

    ranks, ends = graph.ranks.tolist(), list(zip(graph.tails.tolist(), graph.heads.tolist(), strict=True))

    def priced(rounded: _Rounding) -> _Priced:
        lengths = list(map(rounded, (prices / prices.max()).tolist()))
        net: Any = nx.DiGraph()
        net.add_weighted_edges_from((u, v, length) for (u, v), length in zip(ends, lengths, strict=True))
        far = [nx.single_source_dijkstra_path_length(net, rank) for rank in ranks]
        return lengths, sum((Fraction(each[rank]) for each in far for rank in ranks), Fraction())

    return _bound(graph, priced, value, graph.n, np.zeros(len(graph.names), np.bool_))
