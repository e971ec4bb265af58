"""Replace switches by direct edges between ranks, with equal optimum, by splitting off pairs of edges.

A pair of edges u→w and w→t gives some of its capacity to an edge u→t, which stands for the way over w. How much can be
given follows from maximum flows: from the roots, each rank must still receive all data. A switch that passes on as much
as it gets can be removed wholly (Bang-Jensen, Frank, Jackson, 1995).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from simcoll.errors import RefusedError
from simcoll.synthesis.flow_graph import FlowGraph, Flows, Integers

Pair = tuple[int, int]
Way = tuple[int, ...]  # the vertices of a way, ends included
NEVER: Final = 10**9  # hops, where there is no way


class Ways:
    """Edges between vertices, each made of ways with a capacity. `parts[u, v]` maps each way from u to v to what it can
    carry."""

    def __init__(self, graph: FlowGraph, capacity: Integers):
        self.size = len(graph.names)
        self.parts: dict[Pair, dict[Way, int]] = {}
        for u, v, width in zip(graph.tails.tolist(), graph.heads.tolist(), capacity.tolist(), strict=True):
            if width:
                self.parts[u, v] = {(u, v): width}

    def width(self, pair: Pair) -> int:
        """Return the capacity from one vertex to another."""
        return sum(self.parts.get(pair, {}).values())

    def take(self, pair: Pair, amount: int) -> list[tuple[Way, int]]:
        """Take `amount` away from the ways of a pair, the shortest first; return the ways and what each gave."""
        ways, taken = self.parts[pair], list[tuple[Way, int]]()
        for way in sorted(ways, key=len):
            some = min(amount, ways[way])
            if some:
                taken.append((way, some))
                amount -= some
                ways[way] -= some
        self.parts[pair] = {way: width for way, width in ways.items() if width}
        if not self.parts[pair]:
            del self.parts[pair]
        return taken

    def split(self, u: int, w: int, t: int, amount: int) -> None:
        """Move `amount` from u→w and w→t to u→t. What returns to where it came from is lost."""
        firsts, lasts = self.take((u, w), amount), self.take((w, t), amount)
        while firsts and u != t:
            (first, a), (last, b) = firsts.pop(), lasts.pop()
            some = min(a, b)
            ways = self.parts.setdefault((u, t), {})
            ways[first + last[1:]] = ways.get(first + last[1:], 0) + some
            firsts += [(first, a - some)] if a > some else []
            lasts += [(last, b - some)] if b > some else []


def without_switches(graph: FlowGraph, capacity: Integers, roots: Integers) -> Ways:
    """Return ways between ranks only. Rank r is the root of `roots[r]` trees; all flows in `capacity` allow them.
    Raises RefusedError if a switch cannot be removed, which may be if it is not balanced."""
    ways = Ways(graph, capacity)
    ports = {switch: int(((graph.heads == switch) & (capacity > 0)).sum()) for switch in graph.switches}
    for switch in sorted(graph.switches, key=lambda each: (ports[each], each)):
        _remove(ways, switch, graph, roots)
        for pair in [pair for pair in ways.parts if switch in pair]:  # what no rank needs, e.g. into a dead end
            del ways.parts[pair]
    return ways


def _remove(ways: Ways, switch: int, graph: FlowGraph, roots: Integers) -> None:
    into = {u: ways.width((u, w)) for u, w in list(ways.parts) if w == switch}
    out = {t: ways.width((w, t)) for w, t in list(ways.parts) if w == switch}
    if not into or not out:
        return
    far = _hops_without(ways, switch, into)
    pairs = [(u, t) for u, t in _in_turn(sorted(into), sorted(out)) if u != t]
    farthest = max((far[pair] for pair in pairs), default=0)
    guesses = [pairs, [pair for pair in pairs if far[pair] == farthest]]
    room = _Room(ways, switch, sorted(into), sorted(out), graph, roots)
    for some in guesses:
        rests = dict(into), dict(out)
        shares = _evenly(*rests, some)
        # what is left is given up, which must leave other switches balanced
        balanced = all(rests[0].get(other, 0) == rests[1].get(other, 0) for other in graph.switches)
        if balanced and room.holds(shares):
            break
    else:
        pairs.sort(key=lambda pair: -far[pair])
        shares = room.one_by_one(dict(into), dict(out), [*pairs, *((u, u) for u in into if u in out)])
    for (u, t), amount in shares.items():
        ways.split(u, switch, t, amount)


def _in_turn(sources: list[int], targets: list[int]) -> Iterator[Pair]:
    """Yield all pairs so that each source and each target comes once in a while."""
    count = max(len(sources), len(targets))
    for turn in range(1, count + 1):
        for place in range(count):
            if place < len(sources) and (place + turn) % count < len(targets):
                yield sources[place], targets[(place + turn) % count]


def _evenly(into: dict[int, int], out: dict[int, int], pairs: list[Pair]) -> dict[Pair, int]:
    """Divide what comes in among what goes out, as evenly as whole numbers allow."""
    shares = dict.fromkeys(pairs, 0)
    while True:
        open_pairs = [(u, t) for u, t in pairs if into[u] and out[t]]
        if not open_pairs:
            return {pair: amount for pair, amount in shares.items() if amount}
        turns = max(1, max(map(len, ({u for u, _ in open_pairs}, {t for _, t in open_pairs}))) - 1)
        grain = max(1, min(min(into[u], out[t]) for u, t in open_pairs) // turns)
        for u, t in open_pairs:
            some = min(grain, into[u], out[t])
            shares[u, t] += some
            into[u] -= some
            out[t] -= some


def _hops_without(ways: Ways, switch: int, sources: dict[int, int]) -> dict[Pair, int]:
    """Return the fewest hops between the neighbours of a switch on ways that do not pass it."""
    import networkx as nx  # loaded here, as it takes 0.1 s

    net = nx.DiGraph(pair for pair in ways.parts if switch not in pair)
    net.add_nodes_from(sources)
    found = {source: nx.single_source_shortest_path_length(net, source) for source in sources}
    return {(u, v): found[u].get(v, NEVER) for u in sources for v in range(ways.size)}


class _Room:
    """How much of a switch's capacity pairs of its edges can give up."""

    def __init__(
        self, ways: Ways, switch: int, sources: list[int], targets: list[int], graph: FlowGraph, roots: Integers
    ):
        self.switch, self.ranks, self.roots = switch, graph.ranks, roots
        self.need = int(roots.sum())
        made = {(u, t): 0 for u in sources for t in targets if u != t}
        self.widths = made | {pair: ways.width(pair) for pair in ways.parts}
        self.edge = {pair: number for number, pair in enumerate(self.widths)}
        ends = np.array(list(self.widths), np.int64).reshape(-1, 2)
        self.flows = Flows(ways.size, ends[:, 0], ends[:, 1], graph.n * len(made) // 4)
        self.endless = sum(self.widths.values()) + self.need

    def _set(self, changed: dict[Pair, int]) -> None:
        """Set the capacities after the pairs u→t in `changed` took theirs from the switch."""
        capacity, edge, switch = self.flows.capacity, self.edge, self.switch
        capacity[:] = 0
        capacity[: self.flows.edges] = list(self.widths.values())
        for (u, t), amount in changed.items():
            capacity[edge[u, switch]] -= amount
            capacity[edge[switch, t]] -= amount
            if u != t:
                capacity[edge[u, t]] += amount
        capacity[self.flows.from_source(self.ranks)] = self.roots

    def holds(self, changed: dict[Pair, int]) -> bool:
        """Return whether all ranks still get all data without the switch, after pairs took these shares."""
        self._set(changed)
        for pair, number in self.edge.items():
            if self.switch in pair:
                self.flows.capacity[number] = 0
        return self.flows.least_excess(self.ranks.tolist(), self.need - 1, 1) == 1

    def one_by_one(self, into: dict[int, int], out: dict[int, int], pairs: list[Pair]) -> dict[Pair, int]:
        """Return shares that remove the switch wholly: from each pair as much as flows allow, a little of each
        first."""
        shares: dict[Pair, int] = {}
        least = min(min(into.values()), min(out.values()))
        for grain in (max(1, least // max(1, len(out) - 1)), self.endless):
            for u, t in pairs:
                most = min(into[u], out[t], grain)
                if most and (amount := self._most(u, t, most, shares)):
                    shares[u, t] = shares.get((u, t), 0) + amount
                    into[u] -= amount
                    out[t] -= amount
        if not self.holds(shares):
            raise RefusedError(
                "a switch cannot be removed without loss, as its bandwidth in and out differ; give it equal bandwidths"
            )
        return shares

    def _most(self, u: int, t: int, most: int, shares: dict[Pair, int]) -> int:
        """Return how much, at most `most`, the pair can take such that all ranks still get all data."""
        ranks, flows, switch = self.ranks.tolist(), self.flows, self.switch
        for near, far in (((u, t), (switch,)), ((switch,), (u, t))):
            self._set(shares)
            for vertex in near:
                flows.capacity[flows.from_source(vertex)] = self.endless
            for vertex in far:
                flows.capacity[flows.to_sink(vertex)] = self.endless
            ends = [rank for rank in far if rank in ranks][:1] or [rank for rank in ranks if rank not in near]
            most = min(most, flows.least_excess(ends, self.need, most))
            if most <= 0:
                return 0
        return most
