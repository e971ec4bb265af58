"""The largest throughput of a collective on a network, as an exact fraction, with the cut that proves it.

A set S of devices that holds data for each rank outside must send all of it over the links that leave S. The largest
throughput is the least ratio, over all sets, of the bandwidth out of S to the data that must leave it. It can be
reached by trees (Edmonds, "Edge-disjoint branchings", 1973) if each switch has equal bandwidth in and out (Bang-Jensen,
Frank, Jackson, "Preserving and increasing local edge-connectivity in mixed graphs", 1995); see ForestColl (Zhao et al.,
arXiv 2402.06787). The search is Newton's: from a ratio, a minimum cut either proves it or gives a smaller one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from simcoll.errors import RefusedError
from simcoll.synthesis.flow_graph import FlowGraph, Flows, Integers, check_widths

# collectives that are another one on the graph turned round, backwards in time
TURNED: Final = {"reduce_scatter": "all_gather", "reduce": "broadcast", "gather": "scatter"}
BY_CUT: Final = ("all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter")
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Bound:
    """A bound of a collective's throughput. `rate` is algbw in B/s: size per time, the size as nccl-tests counts it.
    `kind` is `cut` or `lp`. `devices` is one side of the witness: all data that must cross pass its `links`. `exact`
    says whether `rate` is the optimum as a fraction, not its value in floating point. `note` is what else to say."""

    rate: Fraction
    kind: Literal["cut", "lp"]
    devices: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    exact: bool = True
    note: str = ""

    @property
    def gbps(self) -> float:
        """The rate in 10^9 B/s."""
        return float(self.rate / 10**9)

    def time_ps(self, nbytes: int) -> int:
        """Return the least time for `nbytes` in ps, rounded down."""
        return int(nbytes * 10**12 / self.rate)


def by_cut(collective: str, graph: FlowGraph, root: int = 0) -> Bound:
    """Return the exact bound of one of `BY_CUT`. Raises RefusedError if a rank cannot be reached."""
    spreading, turned = TURNED.get(collective, collective), graph.reversed if collective in TURNED else graph
    rate, side = _optimum(spreading, turned, root)
    parts = 1 if spreading == "broadcast" else graph.n
    return Bound(rate * parts * graph.unit, "cut", *witness(graph, side, turned.out_of(side)))


def witness(graph: FlowGraph, side: Bools, links: Integers) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the devices on one side of a cut, and of the links that cross it."""
    inside = tuple(graph.names[vertex] for vertex in np.flatnonzero(side).tolist())
    ends = zip(graph.tails[links].tolist(), graph.heads[links].tolist(), strict=True)
    return inside, tuple(f"{graph.names[u]}->{graph.names[v]}" for u, v in ends)


def _optimum(collective: str, graph: FlowGraph, root: int) -> tuple[Fraction, Bools]:
    """Return the largest rate of all_gather, broadcast or scatter, of one rank's part, in units of the graph; and a cut
    that proves it: a bool for each vertex, true on the side that sends."""
    ranks = graph.ranks
    to = ranks if collective == "all_gather" else np.delete(ranks, root)
    check_widths(graph, graph.n)
    flows = Flows(len(graph.names), graph.tails, graph.heads, 2 * len(ranks))

    def ratio(side: Bools) -> Fraction:
        """Return the bandwidth out of a set of vertices over the parts that must leave it."""
        within = side[ranks]
        parts = {"all_gather": within.sum(), "broadcast": 1, "scatter": (~within).sum()}[collective]
        return Fraction(int(graph.capacity[graph.out_of(side)].sum()), int(parts))

    def below(rate: Fraction) -> Iterator[Bools]:
        """Yield minimum cuts that do not allow the rate."""
        part, ends, need = rate.numerator, to.tolist(), rate.numerator
        flows.capacity[:] = 0
        flows.capacity[: flows.edges] = graph.capacity * rate.denominator
        flows.capacity[flows.from_source(ranks[root])] = part * (graph.n - 1)
        if collective == "all_gather":
            flows.capacity[flows.from_source(ranks)], need = part, part * graph.n
        if collective == "scatter":
            flows.capacity[flows.to_sink(to)], ends, need = part, [flows.sink], part * (graph.n - 1)
        for end in ends:
            if flows.flow(flows.source, end, need) < need:
                yield flows.side()

    every = np.ones(len(graph.names), np.bool_)
    cuts = [every & (np.arange(len(every)) != rank) for rank in to.tolist()]
    while cuts:
        side = min(cuts, key=ratio)
        if not ratio(side):
            names = [graph.names[rank] for rank in ranks[~side[ranks]].tolist()]
            raise RefusedError(f"no link leads to {', '.join(names[:4])} from all other ranks; add links")
        cuts = list(below(ratio(side)))
    return ratio(side), side
