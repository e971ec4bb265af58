"""Synthesise the schedule of a collective for a network: trees or paths that use links as the bound allows, in pieces
that follow each other. `load` checks the result independently of how it was made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from simcoll.errors import RefusedError
from simcoll.schedule.schedule import Schedule
from simcoll.synthesis import linear_programs
from simcoll.synthesis.bounds import BY_CUT, TURNED, Bound, by_cut
from simcoll.synthesis.flow_graph import FlowGraph, Flows, Integers
from simcoll.synthesis.linear_programs import Floats
from simcoll.synthesis.packing import Tree, pack
from simcoll.synthesis.paths import Path, of_all_pairs, of_flow
from simcoll.synthesis.splitting import Way, Ways, without_switches
from simcoll.topology.graph import Topology

NAME: Final = "synthesized"
COLLECTIVES: Final = (*BY_CUT, "all_reduce", "all_to_all")
MOST_TRANSFERS: Final = 150_000  # of a schedule, which limits its pieces
MOST_PIECES: Final = 256
FINEST: Final = 20_000  # largest common denominator of a linear program's solution
MOST_TREES: Final = 64  # of one root, if a solution's fractions are too fine


class Move(NamedTuple):
    """Transfers of one piece after the other. The first piece is sent in step `delay`, from slot `src_slot` of `src`;
    each further piece a step later, and `stride` slots higher. `way` is the route, as vertices of the graph."""

    delay: int
    src: int
    src_slot: int
    dst: int
    dst_slot: int
    count: int
    stride: int
    reduce: bool
    way: Way


@dataclass(frozen=True)
class Synthesis:
    """A schedule for a network, with what is known about it. `trees` counts trees or paths, equal ones once. `rate` is
    the throughput that the busiest link allows, in B/s; `bound` no schedule exceeds."""

    schedule: Schedule
    bound: Bound
    rate: Fraction
    trees: int
    height: int
    pieces: int

    @property
    def loss(self) -> float:
        """The share of the bound's throughput that the schedule gives away, e.g. for fewer trees."""
        return 1 - float(self.rate / self.bound.rate)


def bound_of(collective: str, graph: FlowGraph, root: int = 0) -> Bound:
    """Return the bound of a collective's throughput. Raises RefusedError for a collective without one."""
    return _bounded(collective, graph, root)[0]


def synthesize(
    collective: str, topology: Topology, places: Sequence[str], nbytes: int, *, root: int = 0, max_trees: int = 0,
    pieces: int = 0,
) -> Synthesis:
    """Return a schedule for ranks on the devices `places`. `nbytes` decides only in how many pieces data are cut, unless
    `pieces` says so. `max_trees` limits the trees of one root (0: as many as the optimum needs). Raises RefusedError."""
    if len(places) < 2:
        raise RefusedError("a schedule is synthesised for two ranks or more")
    graph = FlowGraph.of(topology, places)
    bound, shares, widths = _bounded(collective, graph, root)
    moves, height, parts, chunks = _moves(collective, graph, bound, shares, widths, root, max_trees)
    if not pieces:
        latency = np.mean([_latency_ps(topology, graph, move.way) for move in moves])
        best = math.sqrt(max(0, height - 1) * bound.time_ps(nbytes) / max(1.0, float(latency)))
        pieces = max(1, min(round(best), MOST_PIECES, MOST_TRANSFERS // len(moves), nbytes // chunks))
    schedule = _schedule(collective, topology, graph, moves, chunks, pieces, root)
    return Synthesis(schedule, bound, rate_of(schedule, topology, places), parts, height, pieces)


def _bounded(collective: str, graph: FlowGraph, root: int) -> tuple[Bound, Integers | Floats, list[Floats]]:
    """Return the bound, each rank's share as a root, and the capacities of phases: of broadcasts, then of reductions."""
    if collective in BY_CUT:
        bound = by_cut(collective, graph, root)
        rooted = TURNED.get(collective, collective) == "broadcast"
        shares = (np.arange(graph.n) == root).astype(np.int64) if rooted else np.ones(graph.n, np.int64)
        if not graph.unbalanced() or TURNED.get(collective, collective) == "scatter":
            return bound, shares, [graph.capacity.astype(float)]
        turned = graph.reversed if collective in TURNED else graph
        bound, widths = linear_programs.balanced(turned, shares)
        return bound, shares, [widths]
    if collective == "all_reduce":
        bound, phases = linear_programs.all_reduce(graph)
        return bound, phases.shares, [phases.broadcast, phases.reduce]
    if collective == "all_to_all":
        bound, flows = linear_programs.all_to_all(graph)
        return bound, np.ones(graph.n, np.int64), list(flows)
    raise RefusedError(f"no schedule of {collective} is synthesised; take one of {', '.join(COLLECTIVES)}")


def _moves(
    collective: str, graph: FlowGraph, bound: Bound, shares: Integers | Floats, widths: list[Floats], root: int, most: int
) -> tuple[list[Move], int, int, int]:
    """Return the moves, the height of the highest tree, the number of trees, and the chunks of a piece."""
    n, turned = graph.n, collective in TURNED
    spreading = TURNED.get(collective, collective)
    if spreading == "scatter":
        paths, each = of_flow(graph.reversed if turned else graph, root, bound.rate / n / graph.unit)
        moves = [move for path in paths for move in _along(path, each, turned)]
        return moves, max(len(path.ways) for path in paths), len(paths), n * each
    if collective == "all_to_all":
        paths, each = of_all_pairs(graph, widths, most)
        moves = [move for path in paths for move in _relayed(path, each, n)]
        return moves, max(len(path.ways) for path in paths), len(paths), n * each
    if collective == "all_reduce":
        roots, capacities = _whole(graph, shares, widths, most)
        down = _trees(graph, capacities[0], roots)
        up = _trees(graph.reversed, capacities[1], roots)
        first, total = np.cumsum(roots) - roots, int(roots.sum())
        high = max(tree.height for tree, _ in up)
        moves = _of_trees(up, first, total, 0, reduce=True) + _of_trees(down, first, total, high, reduce=False)
        return moves, high + max(tree.height for tree, _ in down), len(up) + len(down), total
    rate = bound.rate / graph.unit / int(shares.sum()) if spreading == "all_gather" else bound.rate / graph.unit
    own = graph.reversed if turned else graph
    whole = np.rint(widths[0]).astype(np.int64)
    if np.abs(whole - widths[0]).max() < 1e-9 and (not most or rate.numerator <= most):
        roots, capacity = shares.astype(np.int64) * rate.numerator, whole * rate.denominator
    else:
        roots, (capacity,) = _whole(own, shares * float(rate), widths, most)
    trees = _trees(own, capacity, roots)
    k = int(roots.max())
    first, total = (np.arange(n) * k, n * k) if spreading == "all_gather" else (np.zeros(n, np.int64), k)
    moves = _of_trees(trees, first, total, 0, reduce=turned, per_rank=k if spreading == "all_gather" else 0)
    return moves, max(tree.height for tree, _ in trees), len(trees), total


_Parts = list[tuple[Way, int, int]]  # of an edge of a tree: each way, the first of its copies, and their number


def _trees(graph: FlowGraph, capacity: Integers, roots: Integers) -> list[tuple[Tree, list[_Parts]]]:
    """Return trees between ranks, and for each edge of a tree the ways that its copies take."""
    ways = without_switches(graph, capacity, roots)
    rank = {vertex: number for number, vertex in enumerate(graph.ranks.tolist())}
    widths = {(rank[u], rank[v]): ways.width((u, v)) for u, v in ways.parts}
    return [(tree, [_ways(ways, graph, edge, tree.count) for edge in tree.edges]) for tree in pack(graph.n, widths, roots)]


def _ways(ways: Ways, graph: FlowGraph, edge: tuple[int, int], count: int) -> _Parts:
    found, first = _Parts(), 0
    for way, some in ways.take((int(graph.ranks[edge[0]]), int(graph.ranks[edge[1]])), count):
        found.append((way, first, some))
        first += some
    return found


def _of_trees(
    trees: list[tuple[Tree, list[_Parts]]], first: Integers, total: int, delay: int, *, reduce: bool, per_rank: int = 0
) -> list[Move]:
    """Return the moves down the trees, or with `reduce` up. Rank r is the root of the chunks from `first[r]` on, of the
    `total` chunks of a piece; with `per_rank` a rank's chunks of all pieces are in its own block."""
    moves, begun = list[Move](), first.copy()
    for tree, parts_of in trees:
        slot = int(begun[tree.root])
        begun[tree.root] += tree.count
        for (parent, child), parts in zip(tree.edges, parts_of, strict=True):
            when = tree.height - tree.depth[child] if reduce else tree.depth[child] - 1
            for way, place, count in parts:
                src, dst, route = (child, parent, way[::-1]) if reduce else (parent, child, way)
                at = slot + place
                moves.append(Move(delay + when, src, at, dst, at, count, per_rank or total, reduce, route))
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


def _whole(graph: FlowGraph, shares: Floats, widths: list[Floats], most: int) -> tuple[Integers, list[Integers]]:
    """Return whole numbers of trees, and whole capacities of phases, in proportion to a solution in floating point: the
    solution itself if its fractions are simple, else the best with at most `most` trees of a root (0: MOST_TREES)."""
    values = np.concatenate([shares, *widths])
    near = [Fraction(float(value)).limit_denominator(1000) for value in values]
    scale = math.lcm(*(value.denominator for value in near))
    if scale <= FINEST and max(abs(float(f) - v) for f, v in zip(near, values, strict=True)) < 1e-7:
        exact = np.array([int(value * scale) for value in near], np.int64)
        exact //= max(1, int(np.gcd.reduce(exact)))
        roots, capacities = exact[: len(shares)], np.split(exact[len(shares) :], len(widths))
        if (not most or roots.max() <= most) and _fit(graph, capacities, roots):
            return roots, capacities
    best: tuple[float, Integers, list[Integers]] | None = None
    for k in range(1, (most or MOST_TREES) + 1):
        roots = np.rint(shares / shares.max() * k).astype(np.int64)
        low, high = 0.0, 2.0 * float(roots.sum() / shares.sum()) + 4.0
        while not _fit(graph, [np.floor(width * high + 1e-9).astype(np.int64) for width in widths], roots):
            low, high = high, 2 * high
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            fits = _fit(graph, [np.floor(width * middle + 1e-9).astype(np.int64) for width in widths], roots)
            low, high = (low, middle) if fits else (middle, high)
        if best is None or roots.sum() / high > best[0] * (1 + 1e-6):
            best = float(roots.sum() / high), roots, [np.floor(w * high + 1e-9).astype(np.int64) for w in widths]
    assert best is not None
    return best[1], best[2]


def _fit(graph: FlowGraph, capacities: list[Integers], roots: Integers) -> bool:
    """Return whether the capacities of each phase allow all trees; the second phase is on the graph turned round."""
    for turned, capacity in zip((graph, graph.reversed), capacities, strict=False):
        flows = Flows(len(graph.names), turned.tails, turned.heads, 4 * graph.n)
        flows.capacity[: flows.edges] = capacity
        flows.capacity[flows.from_source(graph.ranks)] = roots
        if flows.least_excess(graph.ranks.tolist(), int(roots.sum()) - 1, 1) < 1:
            return False
    return True


def _schedule(
    collective: str, topology: Topology, graph: FlowGraph, moves: list[Move], chunks: int, pieces: int, root: int
) -> Schedule:
    """Return the schedule of all moves in `pieces` pieces of `chunks` chunks."""
    blocks = collective in ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
    table = np.array([move[:7] for move in moves], np.int64)
    delay, src, src_slot, dst, dst_slot, count, stride = table.T
    if blocks:  # from places within one piece to places within blocks of all pieces
        src_slot, dst_slot = (slot // stride * stride * pieces + slot % stride for slot in (src_slot, dst_slot))
    piece = np.arange(pieces)[:, None]
    routes, number = list[tuple[str, ...]](), dict[Way, int]()
    for move in moves:
        names = tuple(graph.names[vertex] for vertex in move.way)
        if move.way not in number:
            usual = topology.route(names[0], names[-1])
            own = [topology.links[link] for link in usual] != list(zip(names[:-1], names[1:], strict=True))
            number[move.way] = len(routes) if own else -1
            routes += [names] * own
    columns = {
        "step": delay + piece,
        "src": np.broadcast_to(src, (pieces, len(moves))),
        "src_slot": src_slot + piece * stride,
        "dst": np.broadcast_to(dst, (pieces, len(moves))),
        "dst_slot": dst_slot + piece * stride,
        "count": np.broadcast_to(count, (pieces, len(moves))),
        "route": np.broadcast_to([number[move.way] for move in moves], (pieces, len(moves))),
    }
    order = np.argsort(columns["step"].ravel(), kind="stable")
    ordered = {name: column.ravel()[order].astype(np.int32) for name, column in columns.items()}
    reduce = np.tile([move.reduce for move in moves], pieces)[order]
    return Schedule(
        collective=collective,
        algorithm=NAME,
        n=graph.n,
        n_chunks=chunks * pieces,
        reduce=reduce,
        root=root,
        pipelined=True,
        routes=tuple(routes),
        **ordered,
    )


def _latency_ps(topology: Topology, graph: FlowGraph, way: Way) -> int:
    links = (topology.link(graph.names[u], graph.names[v]) for u, v in zip(way[:-1], way[1:], strict=True))
    return sum(link.latency_ps for link in links)


def rate_of(schedule: Schedule, topology: Topology, places: Sequence[str]) -> Fraction:
    """Return the largest throughput in B/s that links allow a schedule: its size over the time of its busiest link."""
    load = load_of(schedule, topology, places)
    worst = max(Fraction(int(load[link]), int(topology.bandwidths[link])) for link in np.flatnonzero(load).tolist())
    return schedule.n_chunks / worst


def load_of(schedule: Schedule, topology: Topology, places: Sequence[str]) -> Integers:
    """Return how many chunks of a schedule cross each link, (links,)."""
    link = {ends: number for number, ends in enumerate(topology.links)}
    crossed = np.zeros(len(topology.links), np.int64)
    n, size = schedule.n, len(schedule.routes) + 1
    key = (schedule.src.astype(np.int64) * n + schedule.dst) * size + schedule.route + 1
    for way, some in zip(*_sums(key, schedule.count), strict=True):
        pair, own = divmod(int(way), size)
        if own:
            names = schedule.routes[own - 1]
            links = [link[ends] for ends in zip(names[:-1], names[1:], strict=True)]
        else:
            links = list(topology.route(places[pair // n], places[pair % n]))
        crossed[links] += int(some)
    return crossed


def _sums(key: Integers, values: Integers) -> tuple[Integers, Integers]:
    """Return the distinct keys, and the sum of the values of each."""
    keys, number = np.unique(key, return_inverse=True)
    return keys, np.bincount(number, values, len(keys)).astype(np.int64)
