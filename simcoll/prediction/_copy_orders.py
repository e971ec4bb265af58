"""The orders in which ranks play copies of a schedule, so that the copies use different NICs and links."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from simcoll.schedule import copies
from simcoll.schedule.copies import Order
from simcoll.topology.graph import Topology


def orders_of(
    topology: Topology,
    places: Sequence[str],
    known: Sequence[Sequence[Order]] = (),
    *,
    root: int | None = None,
    grouped: bool,
    turn: int = 0,
) -> tuple[Order, ...]:
    """The orders of as many copies as use the links evenly; a `root` stays.

    `known` are sets of rings that a machine has, of all its GPUs or of some. Where none fits, rings go over all direct
    links, or where ranks are not all joined directly, in both directions. On several nodes each copy begins at another
    rank of a node, and so crosses nodes at other NICs, all of them as often as can be. A ring comes out of a node
    behind, or before, the rank by which it went in: so every second node is passed through backwards, to stay on a
    rail. What treats nodes as groups (`grouped`) has the same order in each node; without a root the node of number
    `turn` comes first: not all groups send as much, so further copies give them other parts.
    """
    n = len(places)
    of_node: dict[int | None, list[int]] = {}
    for rank, place in enumerate(places):
        of_node.setdefault(topology.node_of(place), []).append(rank)
    nodes = list(of_node.values())
    size = len(nodes[0])
    if len(nodes) > 1 and size > 1 and all(len(ranks) == size for ranks in nodes):
        first, second = ([places[rank] for rank in ranks] for ranks in nodes[:2])
        nics = [_nic(topology, u, v) for u, v in zip(first, second, strict=True)]
        within = _evenly(nics, _within(topology, first, _fitting(known, size), grouped), (0,) if grouped else (0, -1))
        turned = turn % len(nodes) if grouped and root is None else 0
        found = [_through(nodes[turned:] + nodes[:turned], path, grouped) for path in within]
    elif rings := _fitting(known, n):
        found = list(rings)
    elif _meshed(topology, places):
        found = copies.cycles(n)
    else:
        found = [tuple(range(n)), tuple(reversed(range(n)))]
    return tuple(dict.fromkeys(_rooted(order, root, grouped) for order in found))


def _fitting(known: Sequence[Sequence[Order]], n: int) -> Sequence[Order]:
    return next((orders for orders in known if len(orders[0]) == n), ())


def _within(topology: Topology, places: Sequence[str], rings: Sequence[Order], grouped: bool) -> Sequence[Order]:
    """Paths through the ranks of a node, which begin at each rank equally often; it matters to rings where they end."""
    if rings and grouped:
        both = [*rings[::2], *rings[1::2]]  # stored as one way and the other: those that come twice are no such pair
        return [_begun(both[rank % len(both)], rank) for rank in range(len(places))]
    if rings and (found := _cut_open(rings, ())):
        return found
    return copies.paths(len(places)) if _meshed(topology, places) else copies.turns(len(places))


def _cut_open(rings: Sequence[Order], paths: tuple[Order, ...]) -> tuple[Order, ...]:
    """Paths from each rank in turn, each along the ring that was used least so far, that end at each rank once; empty
    if that cannot be."""
    rank, ends = len(paths), {path[-1] for path in paths}
    if rank == len(rings[0]):
        return paths
    ways = sorted((_begun(ring, rank) for ring in rings), key=lambda way: sum(way == _begun(p, rank) for p in paths))
    further = (_cut_open(rings, (*paths, way)) for way in ways if way[-1] not in ends)
    return next(filter(None, further), ())


def _begun(ring: Order, rank: int, at: int = 0) -> Order:
    """The ring with a rank at a place."""
    by = ring.index(rank) - at
    return ring[by:] + ring[:by]


def _evenly(nics: Sequence[str | None], paths: Sequence[Order], ends: Sequence[int]) -> Sequence[Order]:
    """The paths without those at whose `ends`, by which they leave a node, the busiest of the ranks' `nics` is, as long
    as the others use it less."""
    kept = list(paths)
    while len(kept) > 1:
        nic, most = Counter(nics[path[end]] for path in kept for end in ends).most_common(1)[0]
        last = max(kept, key=lambda path: [nics[path[end]] for end in ends].count(nic))
        fewer = [path for path in kept if path is not last]
        then = Counter(nics[path[end]] for path in fewer for end in ends).most_common(1)[0][1]
        if then * len(kept) >= most * len(fewer):
            break
        kept = fewer
    return kept


def _nic(topology: Topology, src: str, dst: str) -> str | None:
    """The NIC by which a rank reaches one of another node."""
    passed = [end for link in topology.route(src, dst) for end in topology.links[link]]
    return next((device for device in passed if topology.kinds[device] == "nic"), None)


def _through(nodes: Sequence[Sequence[int]], path: Order, grouped: bool) -> Order:
    """The path through each node, every second one backwards unless they are groups."""
    order: dict[int, int] = {}
    played = sorted(nodes, key=min)  # as the schedule has them
    for number, ranks in enumerate(nodes):
        taken = path if grouped or number % 2 == 0 else path[::-1]
        order.update(zip(played[number], (ranks[local] for local in taken), strict=True))
    return tuple(order[place] for place in range(len(order)))


def _meshed(topology: Topology, places: Sequence[str]) -> bool:
    """Whether all are joined directly."""
    return all(topology.has_link(u, v) for u, v in itertools.permutations(places, 2))


def _rooted(order: Order, root: int | None, grouped: bool) -> Order:
    """The order with the root at its place: the same ring begun elsewhere, or, not to mix groups, two ranks swapped."""
    if root is None:
        return order
    if not grouped:
        return _begun(order, root, root)
    moved, at = list(order), order.index(root)
    moved[root], moved[at] = root, order[root]
    return tuple(moved)
