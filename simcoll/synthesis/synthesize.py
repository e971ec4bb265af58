"""Synthesise the schedule of a collective for a network: trees or paths that use links as the bound allows, in pieces
that follow each other. `load` checks the result independently of how it was made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.config.lru import LruCache
from simcoll.errors import RefusedError, TopologyError
from simcoll.schedule.schedule import Schedule
from simcoll.schedule.steps import Ints
from simcoll.synthesis import in_network, linear_programs
from simcoll.synthesis.bounds import BY_CUT, TURNED, Bound, by_cut
from simcoll.synthesis.flow_graph import FlowGraph, Flows, Integers
from simcoll.synthesis.linear_programs import Floats
from simcoll.synthesis.packing import Tree, pack
from simcoll.synthesis.paths import MOST_EXACT, Path, QuickestWays, of_all_pairs, of_flow
from simcoll.synthesis.splitting import Way, Ways, without_switches
from simcoll.topology.graph import Topology

NAME: Final = "synthesized"
COLLECTIVES: Final = (*BY_CUT, "all_reduce", "all_to_all")
SERVED: Final = ("all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather")  # by switches that add and copy
MOST_TRANSFERS: Final = 400_000  # of a schedule, which limits its pieces
MOST_SLOTS: Final = 2**25  # of all ranks together, which limits pieces of many chunks: each slot takes 16 B
MOST_PIECES: Final = 256
MOST_RANKS: Final = 64  # behind switches, which are removed by tens of thousands of maximum flows
FINEST: Final = 20_000  # largest common denominator of a linear program's solution
MOST_TREES: Final = 64  # of one root, if a solution's fractions are too fine
GOOD: Final = 0.995  # share of the optimum with which more trees are not tried


class Move(NamedTuple):
    """Transfers of one piece after the other. The first piece is sent in step `delay`, from slot `src_slot` of `src`;
    each further piece a step later, and `stride` slots higher. `way` is the route, as vertices of the graph."""

    delay: int
    src: int
    src_slot: int
    dst: int
    dst_slot: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    stride: int
    reduce: bool
    way: Way


@dataclass(frozen=True, eq=False)
class Plan:
    """Trees or paths on a network, not yet cut into pieces. `trees` counts them, equal ones once; `height` is the
    number of steps of a piece; `chunks` those of a piece. `latency_ps` is the mean latency of a transfer. `bound` no
    schedule exceeds."""

    collective: str
    topology: Topology
    graph: FlowGraph
    bound: Bound
    moves: list[Move]
    height: int
    trees: int
    chunks: int
    root: int

    @property
    def weight(self) -> int:
        """The number of moves, by which the cache limits its memory."""
        return len(self.moves)

    @cached_property
    def latency_ps(self) -> float:
        """The mean latency of a transfer, in ps."""
        links = self.topology.latencies
        number = {ends: link for link, ends in enumerate(self.topology.links)}
        names = self.graph.names
        ways = [[number[names[u], names[v]] for u, v in itertools.pairwise(move.way)] for move in self.moves]
        return float(np.mean([links[way].sum() for way in ways]))

    @cached_property
    def rate(self) -> Fraction:
        """The throughput in B/s that the busiest link allows."""
        return rate_of(self.schedule(1), self.topology, self.graph.devices)

    @property
    def loss(self) -> float:
        """The share of the bound's throughput that the trees give away, e.g. because there are fewer."""
        return 1 - float(self.rate / self.bound.rate)

    def time_ps(self, nbytes: int, pieces: int) -> float:
        """Estimate the time of `nbytes` in ps: all steps last as long as a piece on the busiest link, and a latency."""
        return (pieces + self.height - 1) * (self.latency_ps + nbytes * 10**12 / float(self.rate) / pieces)

    def pieces(self, nbytes: int) -> int:
        """Return the number of pieces for which `time_ps` is least, as far as the schedule does not become too long."""
        best = math.sqrt(max(0, self.height - 1) * nbytes * 10**12 / float(self.rate) / max(1.0, self.latency_ps))
        most = MOST_SLOTS // (self.graph.n * self.chunks), MOST_TRANSFERS // len(self.moves), nbytes // self.chunks
        return max(1, min(round(best), MOST_PIECES, *most))

    def schedule(self, pieces: int) -> Schedule:
        """Return the schedule that moves the data in so many pieces, one after the other."""
        return _schedule(self, pieces)


_KNOWN: Final[LruCache[Plan]] = LruCache(1_000_000, lambda plan: plan.weight)


def plan_of(
    collective: str,
    topology: Topology,
    places: Sequence[str],
    *,
    root: int = 0,
    max_trees: int = 0,
    few_steps: bool = False,
    served: bool = True,
) -> Plan:
    """Return the plan of a collective for ranks on the devices `places`. `max_trees` limits the trees of one root (0:
    as many as the optimum needs). With `few_steps` trees are as low as latencies want them, at the price of bandwidth.
    Unless it is `served`, switches that could add and copy only pass data on. Raises RefusedError."""
    if len(places) < 2:
        raise RefusedError("a schedule is synthesised for two ranks or more")
    rates = topology.bandwidths.tobytes(), topology.latencies.tobytes()
    served &= bool(len(_graph(collective, topology, places).agents))
    key = (collective, root, max_trees, few_steps, served, tuple(places), topology.layout, rates)
    return _KNOWN.get(key, lambda: _planned(collective, topology, places, root, max_trees, few_steps, served))


def plans_of(
    collective: str, topology: Topology, places: Sequence[str], *, root: int = 0, served: bool = True
) -> Iterator[Plan]:
    """Yield plans of 1, 2, 4 … trees of a root, as long as more may pay: until less throughput is lost than the time
    that the first piece takes. What does not grow by trees has one plan. Raises RefusedError."""
    plain, refused = FlowGraph.of(topology, places), None
    packed = collective in SERVED and not _large(collective, plain)
    if not packed or (served and len(_graph(collective, topology, places).agents)):
        yield plan_of(collective, topology, places, root=root, served=served)
        return
    for most in [2**power for power in range(MOST_EXACT.bit_length())]:
        try:
            plan = plan_of(collective, topology, places, root=root, max_trees=most, served=served)
        except RefusedError as error:
            refused = error
            continue
        yield plan
        if plan.loss <= plan.height / 2 * len(plan.moves) / MOST_TRANSFERS:
            return  # a piece takes about half as long as its steps if no others hold it up
    if refused:
        raise refused


def _large(collective: str, graph: FlowGraph) -> bool:
    """Return whether trees are not packed: switches of many ranks would have to be removed."""
    return graph.n > MOST_RANKS and bool(graph.switches) and TURNED.get(collective, collective) != "scatter"


def _graph(collective: str, topology: Topology, places: Sequence[str]) -> FlowGraph:
    """Return the graph of a network, with the switches that add and copy if this can serve the collective. Where all
    switches pass on as much as they get, copies gain nothing for an all_gather, nor do sums for a reduce_scatter."""
    plain = FlowGraph.of(topology, places)
    near = topology.agents_for(places)
    agents = [*near, *(each for each in topology.agents if each not in {*near, *places})]
    if collective not in SERVED or not agents:
        return plain
    if collective in ("all_gather", "reduce_scatter") and not plain.unbalanced():
        return plain
    return FlowGraph.of(topology, places, agents)


def _planned(
    collective: str,
    topology: Topology,
    places: Sequence[str],
    root: int,
    max_trees: int,
    few_steps: bool,
    served: bool,
) -> Plan:
    if few_steps:
        bound = _bounded(collective, _graph(collective, topology, places), root, of_kinds=True)[0]
        return _few_steps(Plan(collective, topology, FlowGraph.of(topology, places), bound, [], 0, 0, 1, root))
    if served:
        through = _through_switches(collective, topology, places, root, max_trees)
        alone = _bounded(collective, FlowGraph.of(topology, places), root, of_kinds=True)[0]
        if through.rate >= min(alone.rate, through.bound.rate * Fraction(GOOD)):
            return through
        plain = plan_of(collective, topology, places, root=root, max_trees=max_trees, served=False)
        return max(through, replace(plain, bound=through.bound), key=lambda plan: plan.rate)
    graph = FlowGraph.of(topology, places)
    large = _large(collective, graph)
    bound, shares, widths = _bounded(collective, graph, root, of_kinds=large)
    if large or (graph.switches and collective in ("all_gather", "reduce_scatter", "all_reduce")):
        # low trees over the widest links reach the bound where nodes are alike and have a NIC for each rank
        wide = _few_steps(Plan(collective, topology, graph, bound, [], 0, 0, 1, root), wide=True)
        if large or wide.rate == bound.rate:
            return wide
    return Plan(
        collective, topology, graph, bound, *_moves(collective, graph, bound, shares, widths, root, max_trees), root
    )


def _through_switches(collective: str, topology: Topology, places: Sequence[str], root: int, max_trees: int) -> Plan:
    """Return the plan of trees in which switches add and copy."""
    graph, turned = _graph(collective, topology, places), collective in TURNED
    bound, shares, _ = _bounded(collective, graph, root)
    goal, weights = float(bound.rate / graph.unit), np.append(shares, 0 * graph.agents).astype(np.int64)
    if collective == "all_reduce":
        roots, (down, up) = in_network.trees([graph, graph.reversed], None, goal, max_trees)
        first, total = np.cumsum(roots) - roots, int(roots.sum())
        moves = _of_trees(up, first, total, 0, reduce=True) + _of_trees(down, first, total, _last(up), reduce=False)
        height, count = _highest(up) + _highest(down), len(up) + len(down)
    else:
        roots, (trees,) = in_network.trees([graph.reversed if turned else graph], weights, goal, max_trees)
        first, total, height, count = np.cumsum(roots) - roots, int(roots.sum()), _highest(trees), len(trees)
        per_rank = int(roots.max()) if collective in ("all_gather", "reduce_scatter") else 0
        moves = _of_trees(trees, first, total, 0, reduce=turned, per_rank=per_rank)
    used = sorted({end for move in moves for end in (move.src, move.dst) if end >= graph.n})
    number = dict(zip([*range(graph.n), *used], itertools.count(), strict=False))
    moves = [move._replace(src=number[move.src], dst=number[move.dst]) for move in moves]
    serving = replace(graph, agents=graph.roots[used])
    return Plan(collective, topology, serving, bound, moves, height, count, total, root)


def bound_of(collective: str, topology: Topology, places: Sequence[str], root: int = 0) -> Bound:
    """Return the bound of a collective's throughput. Raises RefusedError for a collective without one."""
    return _bounded(collective, _graph(collective, topology, places), root, of_kinds=True)[0]


_Best = tuple[Bound, Floats, list[Floats]]
_BOUNDS: Final[LruCache[_Best]] = LruCache(10_000_000, lambda best: sum(map(len, best[2])))


def _bounded(collective: str, graph: FlowGraph, root: int, of_kinds: bool = False) -> _Best:
    """Return the bound, each root's share, and the capacities of phases: of broadcasts, then of reductions;
    for all_to_all the flows of all ranks, or with `of_kinds` of one rank of each kind."""
    columns = graph.ranks, graph.agents, graph.tails, graph.heads, graph.capacity
    key = (collective, root, of_kinds, graph.names, graph.unit, *(column.tobytes() for column in columns))
    return _BOUNDS.get(key, lambda: _solved(collective, graph, root, of_kinds))


def _solved(collective: str, graph: FlowGraph, root: int, of_kinds: bool) -> _Best:
    if collective in BY_CUT:
        bound = by_cut(collective, graph, root)
        rooted = TURNED.get(collective, collective) == "broadcast"
        shares = np.where(np.arange(graph.n) == root, 1.0, 0.0 if rooted else 1.0)
        if not graph.unbalanced() or TURNED.get(collective, collective) == "scatter":
            return bound, shares, [graph.capacity.astype(float)]
        turned = graph.reversed if collective in TURNED else graph
        bound, widths = linear_programs.balanced(turned, shares.astype(np.int64))
        return bound, shares, [widths]
    if collective == "all_reduce":
        bound, phases = linear_programs.all_reduce(graph)
        return bound, phases.shares, [phases.broadcast, phases.reduce]
    if collective == "all_to_all":
        bound, flows = linear_programs.all_to_all(graph, of_kinds)
        return bound, np.ones(graph.n), list(flows)
    raise RefusedError(f"no schedule of {collective} is synthesised; take one of {', '.join(COLLECTIVES)}")


def _moves(
    collective: str,
    graph: FlowGraph,
    bound: Bound,
    shares: Floats,
    widths: list[Floats],
    root: int,
    most: int,
) -> tuple[list[Move], int, int, int]:
    """Return the moves, the height of the highest tree, the number of trees, and the chunks of a piece."""
    n, turned = graph.n, collective in TURNED
    spreading = TURNED.get(collective, collective)
    if spreading == "scatter":
        paths, each = of_flow(graph.reversed if turned else graph, root, bound.rate / n / graph.unit, most)
        moves = [move for path in paths for move in _along(path, each, turned)]
        return moves, max(len(path.ways) for path in paths), len(paths), n * each
    if collective == "all_to_all":
        paths, each = of_all_pairs(graph, widths, most)
        moves = [move for path in paths for move in _relayed(path, each, n)]
        return moves, max(len(path.ways) for path in paths), len(paths), n * each
    if collective == "all_reduce":
        roots, up, down = _first_that_splits(graph, _divided(graph, shares, widths, most, bound))
        first, total, begin = np.cumsum(roots) - roots, int(roots.sum()), _last(up)
        moves = _of_trees(up, first, total, 0, reduce=True) + _of_trees(down, first, total, begin, reduce=False)
        return moves, _highest(up) + _highest(down), len(up) + len(down), total
    rate = bound.rate / graph.unit / int(shares.sum()) if spreading == "all_gather" else bound.rate / graph.unit
    own = graph.reversed if turned else graph
    roots, trees, _ = _first_that_splits(own, _whole(own, shares * float(rate), widths, most or MOST_EXACT))
    k = int(roots.max())
    first, total = (np.arange(n) * k, n * k) if spreading == "all_gather" else (np.zeros(n, np.int64), k)
    moves = _of_trees(trees, first, total, 0, reduce=turned, per_rank=k if spreading == "all_gather" else 0)
    return moves, _highest(trees), len(trees), total


_Parts = list[tuple[Way, int, int]]  # of an edge of a tree: each way, the first of its copies, and their number
_Routed = tuple[Tree, list[_Parts]]
AT_SWITCH: Final = 2  # steps of a hop over switches, where a message may wait for a whole step's messages of others


def _trees(graph: FlowGraph, capacity: Integers, roots: Integers) -> list[_Routed]:
    """Return trees between ranks, and for each edge of a tree the ways that its copies take."""
    ways = without_switches(graph, capacity, roots)
    rank = {vertex: number for number, vertex in enumerate(graph.ranks.tolist())}
    widths = {(rank[u], rank[v]): ways.width((u, v)) for u, v in ways.parts}
    return [
        (tree, [_ways(ways, graph, edge, tree.count) for edge in tree.edges]) for tree in pack(graph.n, widths, roots)
    ]


def _highest(trees: list[_Routed]) -> int:
    return max(tree.height for tree, _ in trees)


def _last(trees: list[_Routed]) -> int:
    """Return the step after which all ranks have a piece of the trees."""
    return max(max(_steps(each).values()) for each in trees)


def _ways(ways: Ways, graph: FlowGraph, edge: tuple[int, int], count: int) -> _Parts:
    found, first = _Parts(), 0
    for way, some in ways.take((int(graph.ranks[edge[0]]), int(graph.ranks[edge[1]])), count):
        found.append((way, first, some))
        first += some
    return found


def _steps(routed: _Routed) -> dict[int, int]:
    """Return the step after which each rank of a tree has a piece."""
    tree, parts_of = routed
    found = {tree.root: 0}
    for (parent, child), parts in zip(tree.edges, parts_of, strict=True):
        found[child] = found[parent] + (AT_SWITCH if any(len(way) > 2 for way, _, _ in parts) else 1)
    return found


def _of_trees(
    trees: list[_Routed], first: Integers, total: int, delay: int, *, reduce: bool, per_rank: int = 0
) -> list[Move]:
    """Return the moves down the trees, or with `reduce` up. Rank r is the root of the chunks from `first[r]` on, of the
    `total` chunks of a piece; with `per_rank` a rank's chunks of all pieces are in its own block."""
    moves, begun = list[Move](), first.copy()
    for tree, parts_of in trees:
        when = _steps((tree, parts_of))
        last = max(when.values())
        slot = int(begun[tree.root])
        begun[tree.root] += tree.count
        for (parent, child), parts in zip(tree.edges, parts_of, strict=True):
            step = delay + (last - when[child] if reduce else when[parent])
            for way, place, count in parts:
                src, dst, route = (child, parent, way[::-1]) if reduce else (parent, child, way)
                at = slot + place
                moves.append(Move(step, src, at, dst, at, count, per_rank or total, reduce, route))
    return moves


def _along(path: Path, each: int, turned: bool) -> list[Move]:
    """Return the moves of a path from the root, or with `turned` to the root: the block of the path's last rank."""
    slot, hops = path.target * each + path.first, len(path.ways)
    found = list[Move]()
    for hop, (way, a, b) in enumerate(zip(path.ways, path.stops[:-1], path.stops[1:], strict=True)):
        src, dst, route, when = (b, a, way[::-1], hops - 1 - hop) if turned else (a, b, way, hop)
        found.append(Move(when, src, slot, dst, slot, path.count, each, False, route))
    return found


def _relayed(path: Path, each: int, n: int) -> list[Move]:
    """Return the moves of a path of all_to_all. Relays keep the data in scratch slots of their own, which lie behind
    the buffer; `_schedule` knows how long that is."""
    read, written = path.target * each + path.first, path.source * each + path.first
    found, last = list[Move](), len(path.ways) - 1
    for hop, (way, a, b) in enumerate(zip(path.ways, path.stops[:-1], path.stops[1:], strict=True)):
        scratch = (1 + path.source) * n * each + read
        src_slot, dst_slot = scratch if hop else read, scratch if hop < last else written
        found.append(Move(hop, a, src_slot, b, dst_slot, path.count, each, False, way))
    return found


_Divided = Iterator[tuple[Integers, list[Integers]]]  # numbers of trees of roots, and capacities of each phase


def _first_that_splits(graph: FlowGraph, divided: _Divided) -> tuple[Integers, list[_Routed], list[_Routed]]:
    """Return the roots and the trees of both phases for the first division that allows trees without switches."""
    refused: RefusedError | None = None
    for roots, capacities in divided:
        try:
            down = _trees(graph, capacities[0], roots)
            if graph.symmetric and capacities[0] is capacities[-1]:
                up = down if len(capacities) > 1 else []
            else:
                up = _trees(graph.reversed, capacities[1], roots) if len(capacities) > 1 else []
        except RefusedError as error:
            refused = refused or error
        else:
            return (roots, up, down) if up else (roots, down, up)
    raise refused or RefusedError("no whole numbers of trees fit the network; allow more trees")


def _divided(graph: FlowGraph, shares: Floats, widths: list[Floats], most: int, bound: Bound) -> _Divided:
    """Yield whole divisions of an all_reduce: that of its linear program, and a reduce_scatter that all_gather
    follows."""
    plain: list[tuple[Integers, list[Integers]]] = []
    after = Fraction()
    if not graph.unbalanced():
        rates = [by_cut(name, graph).rate / graph.n / graph.unit for name in ("all_gather", "reduce_scatter")]
        k = math.lcm(*(rate.numerator for rate in rates))
        parts = {rate: graph.capacity * int(k / rate) for rate in rates}
        plain = [(np.full(graph.n, k), [parts[rate] for rate in rates])] * (k <= (most or MOST_EXACT))
        after = graph.n * graph.unit / sum((1 / rate for rate in rates), Fraction())
    exact = _exact(graph, shares, widths, most)
    yield from exact
    yield from plain if after == bound.rate else ()
    yield from _whole(graph, shares, widths, most)
    yield from plain


def _exact(graph: FlowGraph, shares: Floats, widths: list[Floats], most: int) -> _Divided:
    """Yield a solution in floating point as whole numbers, if its fractions are simple."""
    values = np.concatenate([shares, *widths])
    near = [Fraction(float(value)).limit_denominator(1000) for value in values]
    scale = math.lcm(*(value.denominator for value in near))
    if scale <= FINEST and max(abs(float(f) - v) for f, v in zip(near, values, strict=True)) < 1e-7:
        exact = np.array([int(value * scale) for value in near], np.int64)
        exact //= max(1, int(np.gcd.reduce(exact)))
        roots, capacities = exact[: len(shares)], np.split(exact[len(shares) :], len(widths))
        if (not most or roots.max() <= most) and _fit(graph, capacities, roots):
            yield roots, capacities


def _whole(graph: FlowGraph, shares: Floats, widths: list[Floats], most: int) -> _Divided:
    """Yield whole numbers of trees and capacities in proportion to a solution in floating point, with at most `most`
    trees of a root (0: MOST_TREES): the number that gives away least, with little room and with more."""
    if len(widths) == 1:
        yield from _exact(graph, shares, widths, most)
    best: tuple[float, Integers] | None = None
    for k in range(1, (most or MOST_TREES) + 1):
        roots = np.rint(shares / shares.max() * k).astype(np.int64)
        low, high = 0.0, 4.0 + 2.0 * k / float(shares.max())
        while not _fit(graph, _floors(widths, high), roots):
            low, high = high, 2 * high
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if _fit(graph, _floors(widths, middle), roots) else (middle, high)
        if best is None or roots.sum() / high > best[0] * (1 + 1e-6):
            best = float(roots.sum() / high), roots
        if best[0] > GOOD * float(shares.sum()):
            break
    assert best is not None
    for room in (1.0, 1.01, 1.03, 1.1):
        yield best[1], _floors(widths, room * float(best[1].sum()) / best[0])


def _floors(widths: list[Floats], scale: float) -> list[Integers]:
    return [np.floor(width * scale + 1e-9).astype(np.int64) for width in widths]


def _fit(graph: FlowGraph, capacities: list[Integers], roots: Integers) -> bool:
    """Return whether the capacities of each phase allow all trees; the second phase is on the graph turned round."""
    for turned, capacity in zip((graph, graph.reversed), capacities, strict=False):
        flows = Flows(len(graph.names), turned.tails, turned.heads, 4 * graph.n)
        flows.capacity[: flows.edges] = capacity
        flows.capacity[flows.from_source(graph.ranks)] = roots
        if flows.least_excess(graph.ranks.tolist(), int(roots.sum()) - 1, 1) < 1:
            return False
    return True


def _schedule(plan: Plan, pieces: int) -> Schedule:
    moves, graph, topology = plan.moves, plan.graph, plan.topology
    delay, src, src_slot, dst, dst_slot, count, stride = np.array([move[:7] for move in moves], np.int64).T
    if plan.collective in ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"):
        # from places within one piece to places within blocks of all pieces
        src_slot, dst_slot = (slot // stride * stride * pieces + slot % stride for slot in (src_slot, dst_slot))
    piece = np.arange(pieces)[:, None]
    near = topology.agents_for(graph.devices[: graph.n])
    apart = {device for place, device in enumerate(graph.devices[graph.n :]) if near[place : place + 1] != (device,)}
    routes, number = list[tuple[str, ...]](), dict[Way, int]()
    for way in dict.fromkeys(move.way for move in moves):
        names = tuple(graph.names[vertex] for vertex in way)
        own = _usual(topology, names[0], names[-1]) != list(itertools.pairwise(names))
        own |= not apart.isdisjoint((names[0], names[-1]))  # routes say which switch it is
        number[way] = len(routes) if own else -1
        routes += [names] * own
    route = np.array([number[move.way] for move in moves])
    step = np.unique(delay + piece, return_inverse=True)[1].reshape(pieces, -1)  # a lone piece leaves steps empty
    src_slot, dst_slot = src_slot + piece * stride, dst_slot + piece * stride
    turn = np.broadcast_to((dst - src) % len(graph.roots), step.shape)  # so that not all ranks send to one at a time
    order = np.lexsort((turn.ravel(), step.ravel()))
    columns = [step, src, src_slot, dst, dst_slot, count, route]
    ordered = [np.broadcast_to(column, step.shape).ravel()[order].astype(np.int32) for column in columns]
    names_of = ("step", "src", "src_slot", "dst", "dst_slot", "count", "route")
    fields: dict[str, Any] = dict(zip(names_of, ordered, strict=True))
    return Schedule(
        collective=plan.collective,
        algorithm=NAME,
        n=graph.n,
        n_chunks=plan.chunks * pieces,
        reduce=np.tile([move.reduce for move in moves], pieces)[order],
        agents=len(graph.agents),
        root=plan.root,
        pipelined=True,
        routes=tuple(routes),
        **fields,
    )


def _usual(topology: Topology, src: str, dst: str) -> list[tuple[str, str]]:
    """Return the hops of the network's own route; empty if there is none."""
    try:
        return [topology.links[link] for link in topology.route(src, dst)]
    except TopologyError:
        return []


def _few_steps(best: Plan, wide: bool = False) -> Plan:
    """Return a plan of the ways of least latency; of equally quick ways those that are used least."""
    collective, graph, n = best.collective, best.graph, best.graph.n
    turned, spreading = collective in TURNED, TURNED.get(collective, collective)
    if spreading in ("scatter", "all_to_all"):
        roots = range(n) if spreading == "all_to_all" else [best.root]
        ways = QuickestWays(graph, best.topology, turned)
        moves, height, count = list[Move](), 1, 0
        for root in roots:
            for path in ways.paths(root):
                moves += _relayed(path, 1, n) if spreading == "all_to_all" else _along(path, 1, turned)
                height, count = max(height, len(path.ways)), count + 1
        return replace(best, moves=moves, height=height, trees=count, chunks=n)
    one = spreading == "broadcast"
    roots, first, total = [best.root] if one else range(n), np.arange(n) * (not one), 1 if one else n
    per_rank = 1 if spreading == "all_gather" else 0
    moves, height, count, begin = list[Move](), 0, 0, 0
    if turned or collective == "all_reduce":
        up = QuickestWays(graph, best.topology, True, wide).trees(roots)
        moves, height, count = _of_trees(up, first, total, 0, reduce=True, per_rank=per_rank), _highest(up), len(up)
        begin = _last(up)
    if not turned:
        down = QuickestWays(graph, best.topology, False, wide).trees(roots)
        moves += _of_trees(down, first, total, begin, reduce=False, per_rank=per_rank)
        height, count = height + _highest(down), count + len(down)
    return replace(best, moves=moves, height=height, trees=count, chunks=total)


def at_once(few: Plan) -> Plan:
    """Return a plan of an all_reduce in which all ranks send all their data to all others in one step, on the network's
    own routes; `few`, a plan of few steps, where a route is missing."""
    graph, moves = few.graph, list[Move]()
    number = {name: vertex for vertex, name in enumerate(graph.names)}
    for src, dst in itertools.permutations(range(graph.n), 2):
        hops = _usual(few.topology, graph.devices[src], graph.devices[dst])
        if not hops:
            return few
        way = number[hops[0][0]], *(number[end] for _, end in hops)
        moves.append(Move(0, src, 0, dst, 0, 1, 1, True, way))
    return replace(few, moves=moves, height=1, trees=graph.n, chunks=1)


def rate_of(schedule: Schedule, topology: Topology, devices: Sequence[str]) -> Fraction:
    """Return the largest throughput in B/s that links allow a schedule: its size over the time of its busiest link.
    `devices` are those of the ranks, then of the agents."""
    load = load_of(schedule, topology, devices)
    worst = max(Fraction(int(load[link]), int(topology.bandwidths[link])) for link in np.flatnonzero(load).tolist())
    return schedule.n_chunks / worst


def load_of(schedule: Schedule, topology: Topology, devices: Sequence[str]) -> Integers:
    """Return how many chunks of a schedule cross each link, (links,); for `devices` see `rate_of`."""
    link = {ends: number for number, ends in enumerate(topology.links)}
    crossed = np.zeros(len(topology.links), np.int64)
    n, size = schedule.participants, len(schedule.routes) + 1
    key = (schedule.src.astype(np.int64) * n + schedule.dst) * size + schedule.route + 1
    for way, some in zip(*_sums(key, schedule.count), strict=True):
        pair, own = divmod(int(way), size)
        if own:
            names = schedule.routes[own - 1]
            links = [link[ends] for ends in itertools.pairwise(names)]
        else:
            links = list(topology.route(devices[pair // n], devices[pair % n]))
        crossed[links] += int(some)
    return crossed


def _sums(key: Integers, values: Ints) -> tuple[Integers, Integers]:
    """Return the distinct keys, and the sum of the values of each."""
    keys, number = np.unique(key, return_inverse=True)
    return keys, np.bincount(number, values, len(keys)).astype(np.int64)
