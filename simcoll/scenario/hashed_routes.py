"""Equal routes chosen anew: each connection takes one, by a hash of ports that it draws when it is made.

A switch that has several equal ways (ECMP) chooses by a hash of addresses and ports, so a connection keeps its way, and
two may share a link while others are idle. The hash is taken to spread connections evenly. Several connections of a
pair (NCCL: of channels, and NCCL_IB_QPS_PER_CONNECTION queue pairs of each) take their messages in turn; on rails what
one NIC sends to another for all GPUs of its node is one connection. Sources: RFC 2992, "Analysis of an Equal-Cost
Multi-Path Algorithm", 2000; NVIDIA/nccl 2.30, src/transport/net.cc and net_ib.cc.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from simcoll.config.arrays import Array
from simcoll.engine.program import Program, ProgramRoutes
from simcoll.topology.graph import Topology
from simcoll.topology.routing import Route

MOST_FLOWS = 1 << 31  # of equal routes: more are not told apart


def hashed(program: Program, topology: Topology, flows: int, rng: np.random.Generator) -> Program:
    """The program with equal routes between nodes chosen at random, for `flows` connections of each pair."""
    src, dst, hop, links = program.routes
    numbers: dict[tuple[str, str], list[int]] = defaultdict(lambda: rng.integers(MOST_FLOWS, size=flows).tolist())
    known: dict[tuple[str, str, int], Route] = {}
    found: list[Route] = []
    for begin, end in zip(hop[:-1].tolist(), hop[1:].tolist(), strict=True):
        way = tuple(links[begin:end].tolist())
        view, plain = _viewed(program, way)
        # links that stand for several are of programs in which few ranks stand for all: there no route is chosen
        ends = _ends(topology, plain) if plain and max(plain) < len(topology.links) else None
        paths = topology.equal_routes(*ends) if ends else 1
        if not ends or paths == 1:
            found += [way] * flows
            continue
        for number in numbers[_connection(topology, plain)]:
            key = (*ends, number % paths)
            if key not in known:
                known[key] = topology.flow_route(*key)
            found.append(tuple(link + view for link in known[key]))
    every = np.array([link for way in found for link in way], links.dtype)
    hops = np.cumsum([0, *map(len, found)]).astype(hop.dtype)
    routes = ProgramRoutes(np.repeat(src, flows), np.repeat(dst, flows), hops, every)
    if flows == 1:
        return replace(program, routes=routes)
    part = None if program.part is None else np.repeat(program.part, flows)
    turns = program.way.astype(np.int64) * flows + _turn(program.way) % flows
    return replace(program, routes=routes, way=turns.astype(program.way.dtype), part=part)


def _viewed(program: Program, way: Route) -> tuple[int, Route]:
    """The offset of link numbers in the view of a way's operation, and the way without it."""
    view = way[0] - way[0] % program.servers if way else 0
    return view, tuple(link - view for link in way)


def _ends(topology: Topology, way: Route) -> tuple[str, str]:
    return topology.links[way[0]][0], topology.links[way[-1]][1]


def _connection(topology: Topology, way: Route) -> tuple[str, str]:
    """The devices between which the connection is: on rails the NICs, else the ends."""
    outer = way
    if topology.routing == "rails":
        outer = tuple(link for link in way if len(set(map(topology.node_of, topology.links[link]))) > 1)
    return _ends(topology, outer)


def _turn(way: Array) -> Array:
    """The number of each transfer among those of its way, in order."""
    order = np.argsort(way, kind="stable")
    first = np.searchsorted(way[order], way[order])
    turn = np.empty(len(way), np.int64)
    turn[order] = np.arange(len(way)) - first
    return turn
