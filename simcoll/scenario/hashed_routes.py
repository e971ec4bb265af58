"""Draw a random route for each connection among equal routes, as switches with ECMP do.

Such a switch chooses by a hash of addresses and ports. So a connection keeps its route, and two connections may share a
link while others are idle. We assume that the hash spreads connections evenly. Messages of a pair of ranks alternate
between its connections (NCCL: one for each channel, times NCCL_IB_QPS_PER_CONNECTION). With rails, all messages from
one NIC to another share a connection, whichever GPUs send them.

A simulated channel may stand for others, which use other NICs of the same nodes (rails). Their connections draw routes,
too. All connections on a trunk (a link between switches) get equal shares of it. A call ends with its slowest channel:
so each simulated hop gets the trunks of the rail whose fullest trunk has most connections.

Sources: RFC 2992, "Analysis of an Equal-Cost Multi-Path Algorithm", 2000; NVIDIA/nccl 2.30, src/transport/net.cc and
net_ib.cc.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Array, turns_of
from simcoll.engine.program import Program, ProgramRoutes
from simcoll.topology.graph import Topology
from simcoll.topology.routing import Route

EndNames = tuple[str, str]  # names of the two ends of a route or a connection
RailRoutes = list[Route]  # the routes of all connections between two NICs
MOST_FLOWS = 1 << 31  # random numbers are below this; equal routes beyond it are never chosen


class Rails(NamedTuple):
    """The rails that one simulated channel stands for, e.g. 4 of 8. `nics`: the number of NICs of each node that its
    channels use. `shares`: the share of each link that the channels of one NIC get if all share it evenly, float
    (links,) or one for all."""

    nics: int = 1
    shares: Array | float = 1.0


def hashed(
    program: Program, topology: Topology, flows: int, rng: np.random.Generator, rails: Sequence[Rails] = (Rails(),)
) -> Program:
    """Return the program with a random choice among equal routes between nodes; each pair has `flows` connections.
    `rails` has an entry for each call in the program: the rails that its simulated channel stands for."""
    src, dst, hop, links = program.routes
    several = (rng.integers(MOST_FLOWS, size=(len(src), flows)).tolist() for _ in itertools.count())
    numbers: dict[EndNames, list[int]] = defaultdict(itertools.chain.from_iterable(several).__next__)
    found: list[Route] = []
    hops: dict[tuple[int, EndNames], list[RailRoutes]] = {}  # by view and connection; the simulated rail comes first
    drawn: list[tuple[int, tuple[int, EndNames]]] = []  # (index in `found` of a way's first route, key in `hops`)

    def chosen(ends: EndNames, connection: EndNames, view: int) -> RailRoutes:
        return [tuple([link + view for link in topology.flow_route(*ends, flow)]) for flow in numbers[connection]]

    for begin, end in zip(hop[:-1].tolist(), hop[1:].tolist(), strict=True):
        way = tuple(links[begin:end].tolist())
        view, plain = _viewed(program, way)
        # links that stand for several occur only if few ranks stand for all; their routes are not drawn
        ends = _ends(topology, plain) if plain and max(plain) < len(topology.links) else None
        if not ends or topology.equal_routes(*ends) == 1:
            found += [way] * flows
            continue
        connection = _connection(topology, plain)
        found += chosen(ends, connection, view)
        nics = rails[view // program.servers].nics
        if nics == 1:
            continue
        drawn.append((len(found) - flows, (view, connection)))
        if (view, connection) not in hops:
            others = [chosen(each, each, view) for each in _beside(topology, plain, nics)]
            hops[view, connection] = [found[-flows:], *others]
    bandwidths = program.bandwidths
    if hops:
        of_calls = np.zeros(program.servers - len(topology.links), bool)  # links of single calls, which are no trunks
        trunk = np.tile(np.append(topology.trunks, of_calls), program.views)
        load = _load(hops.values())
        fullest = {each: max(some, key=lambda rail: _fullness(rail, trunk, load)) for each, some in hops.items()}
        for at, each in drawn:
            pairs = zip(found[at : at + flows], fullest[each], strict=True)
            found[at : at + flows] = [_by_trunks(own, other, trunk) for own, other in pairs]
        run, served = _load([rail] for rail in fullest.values()), bandwidths.copy()
        even = np.concatenate([np.broadcast_to(each.shares, program.servers) for each in rails])
        whole = np.rint(bandwidths / even).astype(np.int64)  # bandwidth of a whole trunk, for channels of one NIC
        for link in run:
            if trunk[link]:
                served[link] = max(min(1, whole[link]), whole[link] * run[link] // load[link])
        bandwidths = served
    every = np.fromiter(itertools.chain.from_iterable(found), links.dtype)
    ends_at = np.cumsum([0, *map(len, found)]).astype(hop.dtype)
    routes = ProgramRoutes(np.repeat(src, flows), np.repeat(dst, flows), ends_at, every)
    program = replace(program, routes=routes, bandwidths=bandwidths)
    if flows == 1:
        return program
    part = None if program.part is None else np.repeat(program.part, flows)
    turns = program.way.astype(np.int64) * flows + turns_of(program.way) % flows
    return replace(program, way=turns.astype(program.way.dtype), part=part)


def drawable(program: Program, topology: Topology) -> bool:
    """Return whether some route of the program has equal alternatives, among which a random draw could choose."""
    _, _, hop, links = program.routes
    firsts, lasts = links[hop[:-1][np.diff(hop) > 0]], links[hop[1:][np.diff(hop) > 0] - 1]
    ends = set(zip((firsts % program.servers).tolist(), (lasts % program.servers).tolist(), strict=True))
    known = len(topology.links)
    return any(topology.equal_routes(*_ends(topology, way)) > 1 for way in ends if max(way) < known)


def _beside(topology: Topology, way: Route, rails: int) -> list[EndNames]:
    """Return the NICs at both ends of each connection on other rails that corresponds to a route."""
    kinds, node_of = topology.kinds, topology.node_of
    devices = [device for link in way for device in topology.links[link] if kinds[device] == "nic"]
    if not devices:
        return []
    ends = devices[0], devices[-1]
    nics = [[nic for nic in kinds if kinds[nic] == "nic" and node_of(nic) == node_of(end)] for end in ends]
    first, last = (some.index(end) for some, end in zip(nics, ends, strict=True))
    count = min(rails, *map(len, nics))
    return [(nics[0][(first + i) % len(nics[0])], nics[1][(last + i) % len(nics[1])]) for i in range(1, count)]


def _load(hops: Iterable[Sequence[RailRoutes]]) -> Counter[int]:
    """Return the number of connections on each link."""
    return Counter(link for rails in hops for rail in rails for route in rail for link in route)


def _fullness(rail: RailRoutes, trunk: Array, load: Counter[int]) -> int:
    """Return the largest number of connections on one trunk of a rail."""
    return max((load[link] for route in rail for link in route if trunk[link]), default=0)


def _by_trunks(own: Route, other: Route, trunk: Array) -> Route:
    """Return the route `own` with the trunks (links between switches) of the route `other` in place of its own."""
    inner = [place for place, link in enumerate(own) if trunk[link]]
    return (*own[: inner[0]], *(link for link in other if trunk[link]), *own[inner[-1] + 1 :]) if inner else own


def _viewed(program: Program, way: Route) -> tuple[int, Route]:
    """Return a route's links as numbers of the topology's links, and the offset that was subtracted: the offset of its
    call's view of the links (see `Program`)."""
    view = way[0] - way[0] % program.servers if way else 0
    return view, tuple(link - view for link in way)


def _ends(topology: Topology, way: Route) -> tuple[str, str]:
    return topology.links[way[0]][0], topology.links[way[-1]][1]


def _connection(topology: Topology, way: Route) -> tuple[str, str]:
    """Return the two devices that a route's connection joins: NICs if routing is by rails, else the route's ends."""
    outer = way
    if topology.routing == "rails":
        outer = tuple(link for link in way if len(set(map(topology.node_of, topology.links[link]))) > 1)
    return _ends(topology, outer)
