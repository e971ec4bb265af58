"""A topology as a graph with integer capacities, and maximum flows in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcoll.config.numba_loader import Loops, choose
from simcoll.errors import InputError, RefusedError
from simcoll.synthesis.compiled import max_flow
from simcoll.topology.graph import Topology

Integers = NDArray[np.int64]

MOST_CAPACITY: Final = 2**62  # of a sum of capacities


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """Devices and links between them. Edge e leads from vertex `tails[e]` to `heads[e]` and has `capacity[e]` units of
    `unit` B/s. Rank r is vertex `ranks[r]`. The vertices `agents` are switches that add and copy; all others are
    switches that only pass data on."""

    names: tuple[str, ...]
    ranks: Integers
    tails: Integers
    heads: Integers
    capacity: Integers
    unit: int
    agents: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, topology: Topology, places: Sequence[str], agents: Sequence[str] = ()) -> FlowGraph:
        """Return the graph of a topology with ranks on the devices `places`, and switches `agents` that add and copy.
        Raises RefusedError if two ranks share a device, because then their messages cross no link."""
        if len(set(places)) < len(places):
            raise RefusedError("several ranks on one device have no link between them; give each rank a device")
        names = tuple(topology.kinds)
        number = dict(zip(names, range(len(names)), strict=True))
        ends = topology.of_ends(np.arange(len(names)))
        kept = np.flatnonzero((topology.bandwidths > 0) & (ends[:, 0] != ends[:, 1]))
        rates = topology.bandwidths[kept]
        unit = int(np.gcd.reduce(rates)) if len(rates) else 1
        ranks, adding = (np.array([number[each] for each in devices], np.int64) for devices in (places, agents))
        return cls(names, ranks, ends[kept, 0], ends[kept, 1], rates // unit, unit, adding)

    @property
    def n(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @cached_property
    def roots(self) -> Integers:
        """The vertices that trees may begin at: those of the ranks, then those of the agents."""
        return np.concatenate([self.ranks, self.agents])

    @property
    def devices(self) -> list[str]:
        """The devices of the ranks, then of the agents."""
        return [self.names[root] for root in self.roots.tolist()]

    @cached_property
    def switches(self) -> list[int]:
        """The vertices that only pass data on."""
        return sorted(set(range(len(self.names))) - set(self.roots.tolist()))

    @cached_property
    def reversed(self) -> FlowGraph:
        """The graph with all edges turned round."""
        return replace(self, tails=self.heads, heads=self.tails)

    @cached_property
    def symmetric(self) -> bool:
        """Whether each edge is as wide in the other direction."""
        ways = dict(
            zip(zip(self.tails.tolist(), self.heads.tolist(), strict=True), self.capacity.tolist(), strict=True)
        )
        return all(ways.get((v, u)) == width for (u, v), width in ways.items())

    def unbalanced(self) -> list[str]:
        """Return the names of the switches with unequal sums of capacities in and out."""
        size = len(self.names)
        more = np.bincount(self.heads, self.capacity, size) - np.bincount(self.tails, self.capacity, size)
        return [self.names[switch] for switch in self.switches if more[switch]]

    def out_of(self, side: NDArray[np.bool_]) -> Integers:
        """Return the numbers of the edges that leave a set of vertices, given as a bool for each vertex."""
        return np.flatnonzero(side[self.tails] & ~side[self.heads])


class Flows:
    """Maximum flows in a graph with two more vertices: `source`, with an arc to each vertex, and `sink`, with an arc
    from each vertex. `capacity` has the capacities of the edges first, then of the arcs from the source, then of those
    to the sink; callers change it between flows."""

    def __init__(self, vertices: int, tails: Integers, heads: Integers, work: int = 1):
        count, each = len(tails), np.arange(vertices)
        self.source, self.sink, self.vertices, self.edges = vertices, vertices + 1, vertices, count
        tails = np.concatenate([tails, np.full(vertices, self.source), each])
        heads = np.concatenate([heads, each, np.full(vertices, self.sink)])
        self.capacity = np.zeros(len(tails), np.int64)
        every = np.concatenate([tails, heads])
        order = np.argsort(every, kind="stable")
        self._place = np.empty(len(order), np.int64)
        self._place[order] = np.arange(len(order))
        paired = np.concatenate([self._place[len(tails) :], self._place[: len(tails)]])[order]
        first = np.concatenate([[0], np.cumsum(np.bincount(every, minlength=vertices + 2))])
        # a flow looks a few times at each arc; a kernel's start is worth some 40,000 looks at transfers
        self._loops = Loops(max_flow, choose(work * len(tails) // 8, None, max_flow))
        loops, size = self._loops, vertices + 2
        self._arcs = max_flow.Arcs(
            first=loops.give(first.astype(np.int64)),
            head=loops.give(np.concatenate([heads, tails])[order].astype(np.int64)),
            pair=loops.give(paired.astype(np.int64)),
            left=loops.room(len(order), np.int64),
            level=loops.room(size, np.int64),
            queue=loops.room(size, np.int64),
            at=loops.room(size, np.int64),
            path=loops.room(size, np.int64),
        )

    def from_source(self, vertex: int | Integers) -> int | Integers:
        """Return the position in `capacity` of the arc from the source to a vertex."""
        return self.edges + vertex

    def to_sink(self, vertex: int | Integers) -> int | Integers:
        """Return the position in `capacity` of the arc from a vertex to the sink."""
        return self.edges + self.vertices + vertex

    def _reset(self) -> Integers:
        full = np.zeros(len(self._place), np.int64)
        full[self._place[: len(self.capacity)]] = self.capacity
        return full

    def flow(self, source: int, sink: int, limit: int = MOST_CAPACITY) -> int:
        """Return the maximum flow between two vertices, at most `limit`."""
        arcs = self._arcs
        if self._loops.compiled:
            arcs.left[:] = self._reset()
        else:
            arcs.left[:] = self._reset().tolist()
        return int(self._loops.run.flow(arcs, source, sink, limit))

    def side(self) -> NDArray[np.bool_]:
        """Return for each vertex whether it is on the source's side of the minimum cut of the last flow, if the flow
        did not reach its limit."""
        return np.array(self._arcs.level[: self.vertices]) >= 0

    def carried(self) -> Integers:
        """Return the last flow over each edge."""
        left: Integers = np.array(self._arcs.left)[self._place[: self.edges]]
        return self.capacity[: self.edges] - left

    def least_excess(self, ends: Sequence[int], need: int, most: int) -> int:
        """See `max_flow.least_excess`; `ends` are vertices."""
        give = self._loops.give
        places = give(self._place[np.asarray(self.to_sink(np.asarray(ends, np.int64)))])
        return int(
            self._loops.run.least_excess(self._arcs, give(self._reset()), self.source, self.sink, places, need, most)
        )


def check_widths(graph: FlowGraph, factor: int) -> None:
    """Raise InputError if `factor` times all capacities do not fit 64 bits."""
    if int(graph.capacity.sum()) * factor >= MOST_CAPACITY:
        problem = f"bandwidths are multiples of {graph.unit} B/s only, too fine for exact flows"
        raise InputError(problem, "round the bandwidths, e.g. to GB/s")
