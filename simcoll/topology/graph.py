"""The network that a run happens on: devices, and directed links between them.

Each device has a `kind` (gpu, host, nvswitch, pcie_switch, cpu, nic, switch, …). It may have a `node`, the index of its
machine. It may be `in_network`: a switch that can reduce and multicast. Each link has a `Link` object with bandwidth
and latency. Ranks run on GPUs, or on hosts if there are no GPUs.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.config import input_files
from simcoll.config.grouping import alike, grouped
from simcoll.config.numpy_helpers import Numbers, Sets, distinct
from simcoll.errors import TopologyError, did_you_mean
from simcoll.topology import networkx_attributes
from simcoll.topology.route_tables import MANY, RouteTables
from simcoll.topology.routing import POLICIES, Route, Router, RoutingPolicy
from simcoll.topology.wiring import MEMORY, Link, Wiring

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["MEMORY", "Link", "RankGroups", "Topology"]

RankGroups = tuple["int | RankGroups", ...]  # ranks, grouped to any depth


UNREACHED: Final = 2**62  # ps, for no path; its sum with a latency still fits 64 bits
MOST_ROUNDS: Final = 64  # more hops than any path in a tree fabric has; each round looks at all links
MOST_KEPT: Final = 1 << 20  # drawn routes that are kept for further draws


class Topology:
    """Devices and links, and the routes over them. Devices have names; links are numbered.

    >>> Topology.load("hgx-h100", nodes=2).link("node0.gpu0", "node0.nvswitch0").kind
    'nvlink'
    """

    spec: Mapping[str, Any] = MappingProxyType({})  # the key `topology` of the scenario that it was built from, if any

    def __init__(
        self,
        wiring: Wiring,
        name: str = "topology",
        routing: RoutingPolicy = "shortest",
        routes: Mapping[str, Sequence[str]] | None = None,
        facts: Mapping[str, Any] | None = None,
    ):
        if not isinstance(wiring, Wiring):
            cure = f"write Topology.load({wiring!r})" if isinstance(wiring, str) else "write Topology.from_graph(graph)"
            raise TopologyError(f"a Topology is not made of a {type(wiring).__name__}", cure)
        if routing not in POLICIES:
            raise TopologyError(f"{routing!r} is no routing policy", did_you_mean(routing, POLICIES))
        self.name, self.routing, self.explicit = name, routing, dict(routes or {})
        self.facts: Mapping[str, Any] = facts or {}  # keys of `MachineFacts` that a topology file gives
        self.wiring = wiring
        self.links: tuple[tuple[str, str], ...] = tuple([(u, v) for u, ahead in wiring.ahead.items() for v in ahead])
        self.bandwidths, self.latencies, self.link_kinds = _columns([link for *_, link in wiring])  # B/s, ps, kinds
        self._id = dict(zip(self.links, range(len(self.links)), strict=True))
        self.kinds: dict[str, str] = {device: data["kind"] for device, data in wiring.devices.items()}
        self._node: dict[str, int | None] = {device: data.get("node") for device, data in wiring.devices.items()}
        self.ranks = self.of_kind("gpu") or self.of_kind("host")
        self.agents: tuple[str, ...] = tuple(d for d, data in wiring.devices.items() if data.get("in_network"))
        self.layout: Hashable = object()
        self._routes: dict[tuple[str, str], Route] = dict(map(self._explicit, (routes or {}).items()))
        self._routes_given = frozenset(self._routes)
        self._equal: dict[tuple[str, str], int] = {}
        self._flow_routes: dict[tuple[str, str, int], Route] = {}
        self._route_tables: list[RouteTables] = []  # empty or one item; shared by copies with other rates
        self._connected()

    @classmethod
    def load(cls, name: str, **keys: Any) -> Topology:
        """Return the topology of a shipped system or of a topology file. `keys` are keys of a scenario's `topology`,
        e.g. `nodes=2`."""
        from simcoll.topology import topology_builder

        spec = {"file" if input_files.names_yaml(str(name)) else "system": str(name), **keys}
        topology = topology_builder.build(topology_builder.of_keys(spec))
        topology.spec = MappingProxyType(spec)
        return topology

    @classmethod
    def from_graph(
        cls,
        graph: nx.Graph[str],
        *,
        name: str | None = None,
        routing: RoutingPolicy | None = None,
        routes: Mapping[str, Sequence[str]] | None = None,
    ) -> Topology:
        """Return a topology made from a copy of a networkx graph. An undirected edge becomes two links. Every device
        needs a `kind`. Every edge needs a `link=Link(…)`, or `bandwidth` and `latency`. The attributes of the graph may
        contain `name`, `routing`, `routes`, and `gpu`, `nic`, … as topology files do. Raises TopologyError."""
        said = networkx_attributes.read(graph.graph)
        about = name or said.name, routing or said.routing or "shortest", said.routes if routes is None else routes
        return cls(Wiring.of(graph, said.dims), *about, said.facts)

    def __repr__(self) -> str:
        ranks = f"{len(self.ranks)} {'GPU' if self.of_kind('gpu') else 'host'}{'s' * (len(self.ranks) > 1)}"
        return f"<Topology {self.name}: {ranks}, {len(self.kinds)} devices, {len(self.links)} links>"

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The devices and links as a networkx graph. The graph cannot be changed."""
        return self.rewired().graph(networkx_attributes.written(self))

    def rewired(self) -> Wiring:
        """Return a copy of the devices and links that the caller may change, to make another topology of it."""
        wiring = self.wiring.copy()
        for (u, v), link in zip(self.links, self.every_link, strict=True):
            wiring.join(u, v, link)
        return wiring

    # --- devices ---

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Return the names of all devices of a kind."""
        return tuple(device for device, own in self.kinds.items() if own == kind)

    def node_of(self, device: str) -> int | None:
        """Return the number of the node that a device belongs to; None for a switch between nodes."""
        return self._node[self._known(device)]

    def nodes_of(self, devices: Sequence[str]) -> int:
        """Return the number of nodes that the devices belong to. All devices between nodes count as one node."""
        return len(set(map(self.node_of, devices)))

    @cached_property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(set(self._node.values()) - {None})

    def agents_for(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Return the switches that can reduce and are joined to every one of the devices, with links both ways."""
        near: list[Sequence[str]] = [self._agents_near.get(device, ()) for device in devices] or [self.agents]
        return tuple(agent for agent in near[0] if all(agent in some for some in near))

    @cached_property
    def _agents_near(self) -> dict[str, list[str]]:
        return self.wiring.linked_with(self.agents)

    def default_groups(self, devices: Sequence[str]) -> RankGroups:
        """Return the default groups of ranks: one for each node. A rank is a position in `devices`. If each node has
        one rank, there is a group for each leaf switch. On a torus with one rank in each node, groups are nested by
        dimension; a ring is one group. Empty if there are not at least two groups."""
        nodes = [self._node[device] for device in devices]
        dims = self.wiring.dims or self._sides
        if dims and (nodes == list(range(math.prod(dims))) or (self._sides and tuple(devices) == self.ranks)):
            return _nested(np.arange(len(nodes)).reshape(dims if len(dims) > 1 else (1, -1)).tolist())
        keys = nodes if len(set(nodes)) < len(nodes) else self._leaves(devices)
        return alike(keys) if 1 < len(set(keys)) < len(keys) else ()

    @cached_property
    def _sides(self) -> tuple[int, ...]:
        """Return the two or three sides of the torus that the links between ranks form, e.g. in an imported graph; the
        last side varies fastest. Empty if they form none."""
        count = len(self.ranks)
        if not count == len(self.kinds) < len(self.links) <= 6 * count:
            return ()
        found = {tuple(sorted(link)) for link in self._ends.tolist()}
        first = [side for side in range(2, count) if count % side == 0]
        sides: list[tuple[int, ...]] = [(a, count // a) for a in first]
        sides += [(a, b, count // a // b) for a in first for b in first if count // a % b == 0 and a * b < count]
        near = {v for u, v in found if u == 0}  # of the first rank; compared first, as there are many pairs of all

        def ends(each: Sequence[int]) -> set[int]:
            strides = [math.prod(each[axis + 1 :]) for axis in range(len(each))]
            return {stride * far for stride, side in zip(strides, each, strict=True) for far in (1, side - 1)}

        return next((each for each in sides if ends(each) == near and found == _torus_links(each)), ())

    def _leaves(self, devices: Sequence[str]) -> list[int]:
        """Return for each device the number of its node's leaf switch (see `Machines.leaves`), or its own number."""
        numbers, leaves = [self._number[device] for device in devices], self._machines.leaves()
        homes = self._machines.of[numbers].tolist()
        return [leaves.get(home, number) for home, number in zip(homes, numbers, strict=True)]

    @cached_property
    def members(self) -> dict[int | None, list[str]]:
        """The names of the devices in each node, by the node's number. The key None has devices outside all nodes."""
        return grouped(self._node, self._node.__getitem__)

    # --- links ---

    def has_link(self, u: str, v: str) -> bool:
        """Return whether there is a link from device `u` to device `v`."""
        return (u, v) in self._id

    def link(self, u: str, v: str) -> Link:
        """Return the link from device `u` to device `v`. Raises TopologyError if there is none."""
        if (u, v) not in self._id:
            names = [f"{a}->{b}" for a, b in self.links if u in (a, b)]
            raise TopologyError(f"{self.name} has no link {u}->{v}", did_you_mean(f"{u}->{v}", names))
        return self.every_link[self._id[u, v]]

    @cached_property
    def every_link(self) -> tuple[Link, ...]:
        """All links, in the order of their numbers."""
        rates = zip(self.bandwidths.tolist(), self.latencies.tolist(), self.link_kinds, strict=True)
        return tuple(Link(bandwidth, kind=kind, latency_ps=latency) for bandwidth, latency, kind in rates)

    def with_links(self, links: Iterable[Link]) -> Topology:
        """Return a copy with `links` in place of the links, one for each. Routes do not change."""
        return self._changed(*_columns([link for _, link in zip(self.links, links, strict=True)]))

    def with_rates(self, bandwidths: Numbers, latencies: Numbers) -> Topology:
        """Return a copy with other bandwidths (B/s) and latencies (ps, at least 1), given as arrays with a number for
        each link. Routes do not change."""
        return self._changed(bandwidths, latencies, self.link_kinds)

    def _changed(self, bandwidths: Numbers, latencies: Numbers, kinds: tuple[str, ...]) -> Topology:
        changed, _ = copy.copy(self), self._router  # builds the router, so that both share it
        for name in ("graph", "every_link", "spec"):
            vars(changed).pop(name, None)
        changed.bandwidths, changed.latencies, changed.link_kinds = bandwidths, latencies, kinds
        return changed

    @cached_property
    def link_names(self) -> tuple[str, ...]:
        """The name of each link, such as `host3->switch`."""
        return tuple(f"{u}->{v}" for u, v in self.links)

    @cached_property
    def trunks(self) -> NDArray[np.bool_]:
        """For each link, whether it is a trunk: it joins two devices that are in no node, such as switches."""
        outside: NDArray[np.bool_] = self._machines.of < 0
        found: NDArray[np.bool_] = np.logical_and(*outside[self._ends.T])
        return found

    def of_ends(self, known: ArrayLike) -> NDArray[Any]:
        """Return for each link the values of the devices at its two ends, as an array (links, 2). `known` has a value
        for each device."""
        found: NDArray[Any] = np.asarray(known)[self._ends]
        return found

    def between_kinds(self, *kinds: str) -> NDArray[np.bool_]:
        """Return for each link whether the device at each of its ends is of the given kinds, as an array (links, 2)."""
        return self.of_ends([kind in kinds for kind in self.kinds.values()])

    # --- routes ---

    def route(self, src: str, dst: str) -> Route:
        """Return the numbers of the links on the route from one device to another. From a device to itself the route is
        its memory link, if it has one. Raises TopologyError for an unknown device, or if there is no route."""
        if (src, dst) in self._routes:
            return self._routes[src, dst]
        if self._known(src) == self._known(dst):
            route: Route | None = (self._id[src, src],) if (src, src) in self._id else ()
        else:
            route = self._router.route(src, dst)
        if route is None:
            raise TopologyError(f"{self.name}: no route {src}->{dst}", "add links, or give the route under `routes`")
        self._routes[src, dst] = route
        return route

    def equal_routes(self, src: str, dst: str) -> int:
        """Return the number of equal routes between nodes from `src` to `dst`, one of which a hash chooses; 1 if the
        route does not depend on a hash."""
        if (src, dst) not in self._equal:
            given = src == dst or (src, dst) in self._routes_given
            self._equal[src, dst] = 1 if given else self._router.equal_routes(src, dst)
        return self._equal[src, dst]

    def flow_route(self, src: str, dst: str, flow: int) -> Route:
        """Return the route from `src` to `dst` for the connection number `flow`, which chooses among equal routes."""
        key = src, dst, flow % self.equal_routes(src, dst)
        if key not in self._flow_routes:
            if len(self._flow_routes) >= MOST_KEPT:
                self._flow_routes.clear()
            self._flow_routes[key] = self._router.route(*key) or self.route(src, dst)
        return self._flow_routes[key]

    def routes(self, devices: Sequence[str], src: NDArray[Any], dst: NDArray[Any]) -> tuple[Numbers, Numbers]:
        """Return the routes from `devices[src[i]]` to `devices[dst[i]]`, for each i. The first array says where each
        route begins in the second array, which lists the numbers of the links. Raises TopologyError as `route` does."""
        count, tabled = np.full(len(src), -1, np.int64), np.zeros(0, np.int64)
        if len(src) >= MANY and not self._routes_given:
            number = np.array([self._number[self._known(device)] for device in devices], np.int32)
            count, tabled = self._tables.routes(number[src], number[dst])
        if not (left := count < 0).any():
            return np.append(0, np.cumsum(count)), tabled
        routes = [
            self.route(devices[a], devices[b]) for a, b in zip(src[left].tolist(), dst[left].tolist(), strict=True)
        ]
        count[left] = [len(route) for route in routes]
        links, found = np.empty(count.sum(), np.int64), np.repeat(~left, count)
        links[found] = tabled
        links[~found] = np.fromiter(itertools.chain.from_iterable(routes), np.int64)
        return np.append(0, np.cumsum(count)), links

    @cached_property
    def _number(self) -> dict[str, int]:
        """The number of each device by name, in the order of `kinds`. Routers number devices in the same way."""
        return dict(zip(self.kinds, range(len(self.kinds)), strict=True))

    @cached_property
    def _ends(self) -> Numbers:
        """The numbers of the devices at both ends of each link, (links, 2)."""
        sides = zip(*self.links, strict=True) if self.links else ((), ())
        return np.stack([np.fromiter(map(self._number.__getitem__, side), np.int64) for side in sides], axis=1)

    @cached_property
    def _machines(self) -> Machines:
        return Machines(self._node.values(), self._ends)

    def kinds_within_nodes(self) -> frozenset[str]:
        """The kinds of links that join two devices of one node."""
        return frozenset(self.link_kinds[link] for link in self.links_within_nodes.tolist())

    @property
    def links_within_nodes(self) -> Numbers:
        """The numbers of the links that join two devices of one node."""
        return self._machines.inner

    @cached_property
    def _router(self) -> Router:
        return Router(self.links, self.routing, self.kinds, self._node, self.bandwidths.tolist())

    @property
    def _tables(self) -> RouteTables:
        if not self._route_tables:
            self._route_tables.append(RouteTables(self._router, tuple(self.kinds), self.wiring.dims))
        return self._route_tables[0]

    def _explicit(self, item: tuple[str, Sequence[str]]) -> tuple[tuple[str, str], Route]:
        """Convert an entry of `routes`, `src->dst: [devices]` (its ends may be missing), into (ends, link numbers)."""
        name, devices = item
        src, arrow, dst = (part.strip() for part in name.partition("->"))
        if not arrow:
            raise TopologyError(f"routes: {name!r} names no pair of devices", "write e.g. 'gpu0->gpu5': [gpu1]")
        path = [self._known(device) for device in devices]
        path = [*([src] if path[:1] != [src] else []), *path, *([dst] if path[-1:] != [dst] else [])]
        for u, v in itertools.pairwise(path):
            self.link(u, v)
        return (src, dst), tuple(self._id[hop] for hop in itertools.pairwise(path))

    def _known(self, device: str) -> str:
        if device not in self.kinds:
            raise TopologyError(f"{self.name} has no device {device!r}", did_you_mean(str(device), self.kinds))
        return device

    def _connected(self) -> None:
        if not self.ranks:
            raise TopologyError(f"{self.name} has neither gpus nor hosts", "give the devices that compute kind='gpu'")
        first, both = self.ranks[0], self.wiring.both_ways
        for way in ("to",) if both else ("to", "from"):
            reached = self.wiring.reached(first, way == "to")
            if lost := [rank for rank in self.ranks[1:] if rank not in reached]:
                pair = f"{first}->{lost[0]}" if way == "to" else f"{lost[0]}->{first}"
                raise TopologyError(f"{self.name}: {lost[0]} cannot be reached: no route {pair}", "add the link")

    # --- for lower bounds ---

    def least_latencies(self, sources: Sequence[str], targets: Sequence[str]) -> Numbers:
        """Return an array (sources, targets): the latency in ps of the quickest path. It may pass any devices, because
        ranks may pass data on."""
        first, last = ([self._number[self._known(device)] for device in devices] for devices in (sources, targets))
        return least(self._ends, len(self.kinds), self.latencies, np.array(first))[:, last]

    def enclosures(self, devices: Sequence[str]) -> Sets:
        """Return sets of device numbers, e.g. each node. The links into and out of a set may bound the time of a
        collective between `devices`."""
        return self._machines.enclosures(np.array([self._number[self._known(device)] for device in devices], np.int64))

    def crossing(self, sets: Sets) -> tuple[Sets, Sets]:
        """Return, for each set of devices, the numbers of the links out of it and of the links into it."""
        return self._machines.crossing(sets)


def _torus_links(sides: Sequence[int]) -> set[tuple[int, ...]]:
    """Return the pairs of neighbours on a torus with these sides, the lower number first."""
    grid = np.arange(math.prod(sides)).reshape(sides)
    ahead = [np.stack([grid.ravel(), np.roll(grid, -1, axis).ravel()], axis=1) for axis in range(len(sides))]
    return set(map(tuple, np.sort(np.concatenate(ahead), axis=1).tolist()))


def _nested(ranks: Iterable[Any]) -> RankGroups:
    return tuple(_nested(inner) if isinstance(inner, list) else inner for inner in ranks)


def _columns(links: Sequence[Link]) -> tuple[Numbers, Numbers, tuple[str, ...]]:
    """Return the bandwidth (B/s), the latency (ps) and the kind of each link."""
    bandwidths = np.array([link.bandwidth for link in links], np.int64)
    return bandwidths, np.array([link.latency_ps for link in links], np.int64), tuple(link.kind for link in links)


# --- cuts and distances, of many devices and links at once ---


class Machines:
    """The machines (nodes) that devices belong to. `of` is the machine of each device, counted from 0, or −1 for none.
    `ends` are the numbers of the devices at both ends of each link, (links, 2)."""

    def __init__(self, nodes: Iterable[int | None], ends: Numbers):
        self.number: dict[int | None, int] = {None: -1}
        self.of = np.array([self.number.setdefault(node, len(self.number) - 1) for node in nodes], np.int64)
        self.ends, self.count = ends, len(self.number) - 1

    @cached_property
    def inner(self) -> Numbers:
        """The numbers of links that join devices of one machine."""
        tail, head = self.of[self.ends.T]
        return np.flatnonzero((tail == head) & (tail >= 0))

    def leaves(self) -> dict[int, int]:
        """Return for each machine number the device behind its first link to a device outside all machines, e.g. its
        leaf switch. The key −1 is for devices of no machine."""
        tail, head = self.ends.T
        out = np.flatnonzero(self.of[head] < 0)
        homes, first = np.unique(self.of[tail[out]], return_index=True)
        return dict(zip(homes.tolist(), head[out[first]].tolist(), strict=True))

    @cached_property
    def gates(self) -> Numbers:
        """For each machine, the only outside device with links to it; −1 if there are several such devices or none."""
        lowest, highest = np.full(self.count, len(self.of)), np.full(self.count, -1)
        for near, far in (self.ends.T, self.ends.T[::-1]):
            home = self.of[near]
            out = (home >= 0) & (home != self.of[far])
            np.minimum.at(lowest, home[out], far[out])
            np.maximum.at(highest, home[out], far[out])
        return np.where(lowest == highest, lowest, -1)

    def enclosures(self, some: Numbers) -> Sets:
        """Return sets of devices whose links to all others may bound a collective between the devices `some`. The sets
        are: each of `some` alone, each of their machines with several devices, and each switch with all machines that
        link only to it."""
        asked = np.zeros(self.count + 1, bool)
        asked[self.of[some]] = True
        asked[-1] = False  # stands for devices without a machine
        inside = np.flatnonzero(asked[self.of])
        home = self.of[inside]
        several, gate = np.bincount(home, minlength=self.count)[home] > 1, self.gates[home]
        hubs = distinct(gate[gate >= 0])
        devices = np.concatenate([inside[several], inside[gate >= 0], hubs])
        sets = np.concatenate([home[several], self.count + gate[gate >= 0], self.count + hubs])
        counts = np.bincount(sets)
        members = np.concatenate([some, devices[np.argsort(sets, kind="stable")]])
        return Sets(members, np.concatenate([np.ones(len(some), np.int64), counts[counts > 0]]))

    def crossing(self, sets: Sets) -> tuple[Sets, Sets]:
        """Return the links out of each set of devices, and the links into it."""
        devices, of = len(self.of), np.repeat(np.arange(len(sets.counts)), sets.counts)
        known = np.sort(of * devices + sets.members)
        found = []
        for near, far in (self.ends.T, self.ends.T[::-1]):
            links, counts = Sets.by(near, devices).taken(sets.members)
            owner = np.repeat(of, counts)
            key = owner * devices + far[links]
            out = known[np.minimum(np.searchsorted(known, key), len(known) - 1)] != key
            found.append(Sets(links[out], np.bincount(owner[out], minlength=len(sets.counts))))
        return found[0], found[1]


def least(ends: Numbers, devices: int, latencies: Numbers, sources: Numbers) -> Numbers:
    """Return the least latency in ps from each source to each device, (sources, devices); UNREACHED without a path.
    `ends`: the devices at both ends of each link, (links, 2). `devices`: their number."""
    order = np.argsort(ends[:, 1], kind="stable")
    tails, taken = ends[order, 0], latencies[order]
    heads, starts = np.unique(ends[order, 1], return_index=True)
    found = np.full((len(sources), devices), UNREACHED)
    found[np.arange(len(sources)), sources] = 0
    for _ in range(MOST_ROUNDS):  # Bellman-Ford: round k adds paths of k hops
        by_last = np.minimum.reduceat(found[:, tails] + taken, starts, axis=1)
        now = np.minimum(found[:, heads], by_last)
        if (now == found[:, heads]).all():
            return found
        found[:, heads] = now
    from scipy.sparse import csr_array  # takes 0.1 s to load, and few topologies have such long ways
    from scipy.sparse.csgraph import dijkstra

    ways = csr_array((latencies, tuple(ends.T.astype(np.int32))), shape=(devices, devices))
    found[:] = np.minimum(dijkstra(ways, indices=sources), UNREACHED)
    return found
