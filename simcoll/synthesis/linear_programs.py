"""Optima that no single cut gives, by linear programs: all_reduce with free roots, all_to_all, and unbalanced switches.

HiGHS solves in floating point. What is printed is exact: the prices of its dual solution, rounded to fractions, prove a
bound by themselves, whatever solver found them.

*all_reduce*: rank u reduces a share x_u of the data, and broadcasts the result. Each link's bandwidth is divided
between the two phases. Within a phase all cuts must be wide enough; cuts are added while one is too narrow.
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

FINEST: Final = 2**40  # units into which bandwidths in floating point are divided for maximum flows
NARROW: Final = 1e-9  # by which share of the throughput a cut is too narrow
SHARES: Final = (0.5, 0.6, 0.7, 0.8, 0.9)  # of a link's capacity, above which load costs more and more
MOST_FLOWS: Final = 60_000  # variables of all_to_all's program, which takes a minute then
DENOMINATORS: Final = (1, 60, 5040, 100_000)  # largest denominators with which prices are tried

Floats = NDArray[np.float64]


class Phases(NamedTuple):
    """The best division of an all_reduce: the share of each rank as a root, (n,), and the capacity of each edge for the
    broadcasts and for the reductions, (edges,) each; in units of the graph."""

    shares: Floats
    broadcast: Floats
    reduce: Floats


@dataclass(frozen=True)
class _Cut:
    """A cut of a phase: data of the ranks in `side` must leave it over the edges `out`."""

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
    bound, _, widths = _by_cuts(graph, 1, weights)
    return bound, widths[0]


def _by_cuts(graph: FlowGraph, phases: int, weights: Integers | None) -> tuple[Bound, Floats, list[Floats]]:
    """Maximise the sum of the shares; with `weights` they are in this proportion. Phase 1 runs on the graph turned
    round. Of the best solutions return one that spreads load and roots, so that few links are busy all the time."""
    n, edges, ranks, wide = graph.n, len(graph.capacity), graph.ranks, graph.capacity.astype(float)
    columns, turned = n + phases * edges, [graph, graph.reversed]
    alone = [np.arange(len(graph.names)) == rank for rank in ranks]
    cuts = [_Cut(p, side, turned[p].out_of(side)) for p in range(phases) for one in alone for side in (one, ~one)]
    flows = [Flows(len(graph.names), turned[p].tails, turned[p].heads, 100 * n) for p in range(phases)]
    same = _balances(graph, phases, columns)
    if weights is not None:
        fixed = np.zeros((n, columns))
        fixed[:, :n] = np.diag(np.full(n, float(weights.max())))
        fixed[:, int(np.argmax(weights))] -= weights
        same = np.vstack([same, fixed])
    load = np.hstack([np.zeros((edges, n)), *[np.eye(edges)] * phases])

    def row(cut: _Cut) -> Floats:
        made = np.zeros(columns)
        made[:n], made[n + cut.phase * edges + cut.out] = cut.side[ranks], -1
        return made

    def solved(spread: float) -> Any:
        """Return the solution that all cuts allow: of the greatest sum, or with this sum and `spread` load."""
        while True:
            table, limits = np.vstack([*map(row, cuts), load]), np.concatenate([np.zeros(len(cuts)), wide])
            goal, equal = np.append(-np.ones(n), np.zeros(columns - n)), same
            if spread:  # more columns: what each link carries above shares of its capacity, and the largest root
                over, most = len(SHARES) * edges, np.vstack([-np.ones(n), np.eye(n)])
                more = np.hstack([np.vstack([load] * len(SHARES)), -np.eye(over), np.zeros((over, 1))])
                roots = np.hstack([most, np.zeros((n + 1, columns - n + over)), -np.sign(np.arange(n + 1.0))[:, None]])
                table = np.vstack([np.hstack([table, np.zeros((len(table), over + 1))]), more, roots])
                limits = np.concatenate([limits, *(share * wide for share in SHARES), [-spread], np.zeros(n)])
                goal = np.concatenate([np.zeros(columns), np.tile(1 / wide, len(SHARES)), [1 / spread]])
                equal = np.hstack([same, np.zeros((len(same), over + 1))])
            found = _minimised(goal, table, limits, equal)
            shares, widths = found.x[:n], np.split(found.x[n:columns], phases)
            narrow = [cut for p in range(phases) for cut in _too_narrow(turned[p], p, flows[p], shares, widths[p])]
            if not narrow:
                return found
            cuts.extend(narrow)

    found = solved(0.0)
    value, prices = float(found.x[:n].sum()), -found.ineqlin.marginals[: len(cuts)]
    bound = _proved(graph, list(cuts), prices, found.eqlin.marginals, weights, value, phases)
    even = solved(value * (1 - 1e-10)).x
    return bound, even[:n], np.split(even[n:columns], phases)


def _minimised(goal: Floats, table: Any, limits: Floats, same: Any) -> Any:
    """Return HiGHS' solution: the least `goal` with `table` · x ≤ `limits`, `same` · x = 0, x ≥ 0. Raises
    RefusedError."""
    from scipy.optimize import linprog  # takes 0.3 s to load

    solved = linprog(goal, table, limits, same, np.zeros(same.shape[0]))
    if solved.status != 0 or not solved.x.any():
        raise RefusedError("no schedule exists: some ranks cannot be reached from all others; add links")
    return solved


def _balances(graph: FlowGraph, phases: int, columns: int) -> Floats:
    """Return rows, (switches · phases, columns), that say that as much enters a switch as leaves it."""
    edges, size = len(graph.capacity), len(graph.switches)
    rows = np.zeros((phases * size, columns))
    first = graph.n
    for p in range(phases):
        for number, switch in enumerate(graph.switches):
            row = rows[p * size + number, first + p * edges : first + (p + 1) * edges]
            row[graph.heads == switch] += 1
            row[graph.tails == switch] -= 1
    return rows


def _too_narrow(graph: FlowGraph, phase: int, flows: Flows, shares: Floats, widths: Floats) -> list[_Cut]:
    """Return the cuts of a phase that do not let all shares through."""
    scale = FINEST / max(1.0, float(graph.capacity.sum()))
    flows.capacity[:] = 0
    flows.capacity[: flows.edges] = np.maximum(np.rint(widths * scale), 0)
    flows.capacity[flows.from_source(graph.ranks)] = parts = np.maximum(np.rint(shares * scale), 0).astype(np.int64)
    need, found = int(parts.sum()), dict[bytes, Bools]()
    for rank in graph.ranks.tolist():
        if flows.flow(flows.source, rank, need) < need * (1 - NARROW) - len(parts) - flows.edges:
            side = flows.side()
            found[side.tobytes()] = side
    return [_Cut(phase, side, graph.out_of(side)) for side in found.values()]


def _proved(
    graph: FlowGraph,
    cuts: list[_Cut],
    prices: Floats,
    duals: Floats,
    weights: Integers | None,
    value: float,
    phases: int,
) -> Bound:
    """Return the bound that the prices of cuts prove. Each unit of a share pays the prices of all cuts that hold its
    root; a link costs what the dearer phase pays for it, and what the potentials of switches add."""
    paying = np.flatnonzero(prices > 1e-9)
    potentials = duals[: phases * len(graph.switches)].reshape(phases, -1)
    ends = list(zip(graph.tails.tolist(), graph.heads.tolist(), strict=True))

    def priced(rounded: _Rounding) -> _Priced:
        cost, paid = [Fraction()] * len(ends), [Fraction()] * graph.n
        for p in range(phases):
            height = dict(zip(graph.switches, map(rounded, potentials[p].tolist()), strict=True))
            own = [height.get(v, Fraction()) - height.get(u, Fraction()) for u, v in ends]
            for number in paying.tolist():
                if cuts[number].phase == p:
                    price = rounded(float(prices[number]))
                    for edge in cuts[number].out.tolist():
                        own[edge] += price
                    paid = [all_paid + price * int(has) for all_paid, has in
                            zip(paid, cuts[number].side[graph.ranks], strict=True)]  # fmt: skip
            cost = list(map(max, cost, own))
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


def all_to_all(graph: FlowGraph) -> tuple[Bound, Floats]:
    """Return the bound of all_to_all, and the flow of each rank's data over each edge at the best rate, (n, edges), in
    units of the graph. Raises RefusedError for too many ranks."""
    from scipy.sparse import coo_array

    n, edges, vertices = graph.n, len(graph.capacity), len(graph.names)
    if n * edges > MOST_FLOWS:
        raise RefusedError(f"all_to_all on {n} ranks and {edges} links is too large a linear program; take fewer ranks")
    source, edge = (each.ravel() for each in np.meshgrid(np.arange(n), np.arange(edges), indexing="ij"))
    column = source * edges + edge
    rows = np.concatenate([source * vertices + graph.heads[edge], source * vertices + graph.tails[edge]])
    values = np.concatenate([np.ones(n * edges), -np.ones(n * edges)])
    owner, end = (each.ravel() for each in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
    apart = owner != end
    rows = np.concatenate([rows, owner[apart] * vertices + graph.ranks[end[apart]]])
    columns = np.concatenate([column, column, np.full(apart.sum(), n * edges)])
    values = np.concatenate([values, -np.ones(apart.sum())])
    kept = np.delete(np.arange(n * vertices), np.arange(n) * vertices + graph.ranks)  # a source gives what is needed
    same = coo_array((values, (rows, columns)), shape=(n * vertices, n * edges + 1)).tocsr()[kept]
    shared = coo_array((np.ones(n * edges), (edge, column)), shape=(edges, n * edges + 1)).tocsr()
    goal = np.zeros(n * edges + 1)
    goal[-1] = -1
    solved = _minimised(goal, shared, graph.capacity.astype(float), same)
    rate = float(solved.x[-1])
    return _by_lengths(graph, -solved.ineqlin.marginals, rate), solved.x[:-1].reshape(n, edges)


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
