"""Find the links that a message takes from one device to another. Routes are searched on first use and cached.

Every policy uses distance fields: hop counts to one destination, within one node, within the fabric between nodes, or
everywhere. Three rules keep this fast on large graphs. A field is expanded from the destination only until it is two
steps from the source. Destinations with a single link to a fabric switch share the switch's field. Routes inside a node
are found once for all nodes of equal structure.

GPUs and hosts forward traffic only between direct links to their own kind (a cube mesh of NVLinks, a torus of hosts),
never over PCIe. A route that leaves a node does not return and passes no third node; inside a node it uses no NIC.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from simcoll.config.grouping import grouped
from simcoll.config.numpy_helpers import Numbers, Sets

RoutingPolicy = Literal["shortest", "ecmp", "rails", "own-nics"]
Route = tuple[int, ...]
SearchState = int
NextSteps = list[tuple[int, SearchState]]  # (link to take, state that it leads to)

POLICIES: Final[tuple[str, ...]] = get_args(RoutingPolicy)
BY_NICS: Final = ("rails", "own-nics")  # policies for nodes in which each GPU has a NIC
ENDPOINTS: Final = ("gpu", "host")  # devices that compute: messages begin and end here
NO_HOME: Final = object()  # for fields that several nodes share


class SearchNet:
    """A graph for finding routes, searched from destinations back to sources. Its vertices are states of a message.

    A message moves from state to state. An endpoint (GPU or host) has three states: a source, a sink, and a relay
    between direct links to its own kind. Any other device is one state. Devices are given by number.
    """

    def __init__(self, links: Sequence[tuple[int, int]], kinds: Sequence[str], nodes: Sequence[int | None]):
        computes = np.array([kind in ENDPOINTS for kind in kinds], bool)
        size = np.where(computes, 3, 1)
        source = np.cumsum(size) - size
        self.source: list[SearchState] = source.tolist()
        self.sink: list[SearchState] = (source + computes).tolist()
        self.relay: list[SearchState | None] = [
            y + 2 if three else None for y, three in zip(self.source, computes, strict=True)
        ]
        self.node = [node for node, states in zip(nodes, size.tolist(), strict=True) for _ in range(states)]
        self.kind = [of for kind in kinds for of in ((kind, kind, "relay") if kind in ENDPOINTS else (kind,))]
        self.ways = self._ways(np.array(links, np.int64).reshape(-1, 2), kinds, source, computes)
        self._passing: dict[SearchRegion, list[bool]] = {}

    @staticmethod
    def _ways(
        links: Numbers, kinds: Sequence[str], source: Numbers, computes: NDArray[np.bool_]
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return the edges between states as three arrays: the link of each edge, the state that the edge leaves, and
        the state that it enters. Edges are in the order of links."""
        u, v = links.T
        number: dict[str, int] = {}
        kind = np.array([number.setdefault(kind, len(number)) for kind in kinds], np.int64)
        direct = (u != v) & computes[u] & (kind[u] == kind[v])  # between endpoints of one kind, which can relay
        tail, head, before, onward = source[u], source[v] + computes[v], source[u] + 2, source[v] + 2
        there = np.stack([u != v, direct, direct, direct], axis=1)
        leave, enter = np.stack([tail, before, tail, before], axis=1), np.stack([head, head, onward, onward], axis=1)
        return np.repeat(np.arange(len(links)), there.sum(axis=1)), leave[there], enter[there]

    @cached_property
    def into(self) -> list[NextSteps]:
        """For each state, the links that enter it, each with the state that it comes from."""
        link, leave, enter = self.ways
        return self.steps(enter, link, leave)

    @cached_property
    def out(self) -> list[NextSteps]:
        """For each state, the links that leave it, each with the state that it leads to."""
        link, leave, enter = self.ways
        return self.steps(leave, link, enter)

    def steps(self, near: Numbers, link: Numbers, far: Numbers) -> list[NextSteps]:
        """Return for each state s the (link, `far` state) pairs of all edges with s as their `near` state."""
        order, counts = Sets.by(near, len(self.node))
        steps = list(zip(link[order].tolist(), far[order].tolist(), strict=True))
        ends = np.cumsum(counts).tolist()
        return [steps[at:end] for at, end in zip([0, *ends], ends, strict=False)]

    def passable(self, x: SearchState) -> bool:
        """Return whether a message can enter and leave state x."""
        return bool(self.into[x] and self.out[x])

    def passing(self, region: SearchRegion) -> list[bool]:
        """Return for each state whether a message can enter and leave it within a region."""
        if region not in self._passing:
            self._passing[region] = [self.passable(x) and region.passes(self, x) for x in range(len(self.node))]
        return self._passing[region]


class SearchRegion(NamedTuple):
    """The part of the network that a route may use. `passes`: whether the route may pass a state. `goes`: whether it
    may go from state y to state x, if its target is in the node `home`."""

    passes: Callable[[SearchNet, SearchState], bool]
    goes: Callable[[SearchNet, object, SearchState, SearchState], bool]


def _enters(net: SearchNet, home: object, y: SearchState, x: SearchState) -> bool:
    """Return whether a route to the node `home` may go from state y to x: within one node, between fabric and nodes,
    and by relays, but not through a third node. The search runs backwards from the target."""
    here, there = net.node[x], net.node[y]
    return here == home or net.kind[x] == "relay" or (there != home if here is None else there == here)


REGIONS: Final = {
    "everywhere": SearchRegion(lambda net, x: True, _enters),
    "within": SearchRegion(lambda net, x: net.kind[x] != "nic", lambda net, home, y, x: net.node[y] == home),
    "between": SearchRegion(lambda net, x: net.node[x] is None, lambda net, home, y, x: net.node[y] != home),
}


class FewestHops(NamedTuple):
    """The routes with the fewest hops from one state: their length in hops, their width (the least bandwidth of their
    links in B/s), their number (`paths`), and their first steps, lowest link first."""

    hops: int
    width: float
    paths: int
    steps: NextSteps


class DistanceField:
    """The routes with the fewest hops to the state `target` from all other states (see `SearchNet`). They are searched
    backwards from the target as far as needed. With `widths` (B/s of each link) only the widest of these routes count:
    NVLink before PCIe."""

    def __init__(
        self, net: SearchNet, target: SearchState, home: object, region: SearchRegion, widths: Sequence[int] = ()
    ):
        self.net, self.target, self.home, self.region, self.widths = net, target, home, region, widths
        self._passable = net.passing(region)
        self._ways: dict[SearchState, FewestHops] = {target: FewestHops(0, math.inf, 1, [])}
        self._frontier: list[SearchState] = [target]
        self._near: dict[SearchState, FewestHops] = {}  # routes from states one step beyond the field
        self._sources: dict[SearchState, FewestHops] = {}

    def ways(self, source: SearchState) -> FewestHops | None:
        """Return the routes from `source`; None if there are none. Searches further from the target if needed."""
        if source not in self._sources:
            while (ways := self._ahead(source, 2)) is None:
                if not self._frontier:
                    return None
                self._expand()
            self._sources[source] = ways
        return self._sources[source]

    def _expand(self) -> None:
        steps_of: dict[SearchState, NextSteps] = {}
        for x in self._frontier:
            for link, y in self.net.into[x]:
                if y not in self._ways and self._passable[y] and self.region.goes(self.net, self.home, y, x):
                    steps_of.setdefault(y, []).append((link, x))
        self._ways |= {y: self._best(steps, [self._ways[x] for _, x in steps]) for y, steps in steps_of.items()}
        self._frontier = list(steps_of)

    def _ahead(self, y: SearchState, look: int) -> FewestHops | None:
        """Return the routes from state y, which may be up to `look` steps beyond the states searched so far; None if
        there are none."""
        if y in self._ways or not look:
            return self._ways.get(y)
        if look == 1 and y in self._near:
            return self._near[y]
        steps, ways = [], []
        for link, x in self.net.out[y]:
            if (x in self._ways or self._passable[x]) and self._may_go(y, x, look == 2):
                after = self._ahead(x, look - 1)
                if after is not None:
                    steps.append((link, x))
                    ways.append(after)
        if not steps:
            return None
        found = self._best(steps, ways)
        if look == 1:
            self._near[y] = found
        return found

    def _may_go(self, y: SearchState, x: SearchState, source: bool) -> bool:
        """Return whether a route from `source` may go from state y to x. A source's only link is always allowed."""
        only = source and self.home is not NO_HOME and len(self.net.out[y]) == 1
        return only or self.region.goes(self.net, self.home, y, x)

    def _best(self, steps: NextSteps, ways: Sequence[FewestHops]) -> FewestHops:
        """Return the best routes that begin with one of `steps`: with fewest hops, then widest. `ways`: the routes
        after each step."""
        if len(steps) == 1:
            return FewestHops(ways[0].hops + 1, self._width(steps[0][0], ways[0]), ways[0].paths, steps)
        ranks = [(after.hops, -self._width(link, after)) for (link, _), after in zip(steps, ways, strict=True)]
        hops, width = best = min(ranks)
        keep = [i for i, rank in enumerate(ranks) if rank == best]
        return FewestHops(hops + 1, -width, sum(ways[i].paths for i in keep), sorted(steps[i] for i in keep))

    def _width(self, link: int, after: FewestHops) -> float:
        return min(after.width, self.widths[link]) if self.widths else math.inf

    def route(self, ways: FewestHops, number: int) -> Route:
        """Return route `number` mod P as link numbers; the P routes are ordered by their links."""
        route: list[int] = []
        number %= ways.paths
        while ways.hops:
            link, ways, number = self._branch(ways, number)
            route.append(link)
        return tuple(route)

    def _branch(self, ways: FewestHops, number: int) -> tuple[int, FewestHops, int]:
        for link, x in ways.steps:
            after = self._ways.get(x) or self._near.get(x) or self._ahead(x, 1)
            if after is not None and number < after.paths:
                return link, after, number
            number -= after.paths if after else 0
        raise AssertionError("paths counts the routes through steps")


def mirrored(number: int, count: int) -> int:
    """Return the number of a GPU by which NCCL chooses among `count` equally near NICs (src/graph/topo.cc). If `count`
    is a power of two, these are the lowest bits of `number` in reverse order, else `number` itself.

    >>> [mirrored(number, 4) for number in range(4)], mirrored(5, 3)
    ([0, 2, 1, 3], 5)
    """
    bits = (count - 1).bit_length()
    return sum((number >> bit & 1) << (bits - 1 - bit) for bit in range(bits)) if count == 1 << bits else number


class MachineRoutes:
    """Routes inside a machine, found once for all machines of equal structure. Devices are positions in the machine."""

    def __init__(
        self, kinds: Sequence[str], links: Sequence[tuple[int, int]], widths: Sequence[int], by_others: bool = True
    ):
        """`by_others`: whether a GPU may send by the NIC of a GPU that it reaches over an NVSwitch (policy `rails`)."""
        self.net, self.widths, self.by_others = SearchNet(links, kinds, [0] * len(kinds)), widths, by_others
        self.kinds, self.links = kinds, links
        self.gpus = [place for place, kind in enumerate(kinds) if kind == "gpu"]
        self.nics = [place for place, kind in enumerate(kinds) if kind == "nic"]
        self._fields: dict[int, DistanceField] = {}
        self._ways_out: dict[tuple[int, int], tuple[int, int]] = {}

    def leg(self, first: int, last: int, number: int) -> Route | None:
        """Return route `number` among the widest fewest-hop routes inside the machine; None if there is no route."""
        if first == last:
            return ()
        ways = self.ways(first, last)
        return None if ways is None else self._fields[last].route(ways, number)

    def ways(self, first: int, last: int) -> FewestHops | None:
        """Return the widest fewest-hop routes inside the machine; None if there are none."""
        if last not in self._fields:
            self._fields[last] = DistanceField(self.net, self.net.sink[last], 0, REGIONS["within"], self.widths)
        return self._fields[last].ways(self.net.source[first])

    @cached_property
    def nic_of(self) -> dict[int, int]:
        """The nearest NIC of each GPU. Among several equally near NICs the GPU's `mirrored` number chooses."""
        nics = {}
        for number, gpu in enumerate(self.gpus):
            if near := self._nearest(gpu):
                nics[gpu] = near[mirrored(number, len(near)) % len(near)]
        return nics

    def _nearest(self, gpu: int) -> list[int]:
        """Return the NICs that are the fewest hops away from a GPU."""
        net, passable = self.net, self.net.passing(REGIONS["within"])
        nics = {net.sink[nic]: nic for nic in self.nics}
        seen = front = {net.source[gpu]}
        while front:
            reached = {x for y in front for _, x in net.out[y]}
            if near := sorted(nics[x] for x in reached & nics.keys()):
                return near
            front = {x for x in reached - seen if passable[x]}
            seen = seen | front
        return []

    def way_out(self, src: int, index: int) -> tuple[int, int]:
        """Return the GPU through which `src` sends to the rail `index`, and the NIC by which it leaves the node. They
        are the NIC with that index and its nearest GPU, if `src` reaches this GPU over an NVSwitch; else `src` and its
        own NIC. A GPU sends to its own NIC through another GPU only if that GPU's route to the NIC avoids CPUs, as
        NCCL's PXN does (src/graph/paths.cc)."""
        if (src, index) not in self._ways_out:
            own = self.nic_of
            wanted = self.nics[index] if index < len(self.nics) else own[src]
            hops = {gpu: way.hops for gpu, nic in own.items() if nic == wanted and (way := self.ways(gpu, nic))}
            owner = min(hops, key=hops.__getitem__, default=src)
            near = hops.get(src) == hops.get(owner) or (src in hops and self._passes_cpu(owner, wanted))
            near = near or not (self.by_others and self._share_nvswitch(src, owner))
            self._ways_out[src, index] = (src, own[src]) if near else (owner, wanted)
        return self._ways_out[src, index]

    def _passes_cpu(self, gpu: int, nic: int) -> bool:
        return any(self.kinds[self.links[link][1]] == "cpu" for link in self.leg(gpu, nic, 0) or ())

    def _share_nvswitch(self, src: int, proxy: int) -> bool:
        above = {x for _, x in self.net.out[self.net.source[src]]}
        return any(self.net.kind[y] == "nvswitch" and y in above for _, y in self.net.into[self.net.sink[proxy]])


class NodeInside(NamedTuple):
    """One node. `machine` has the routes, by position in the node, that all nodes of equal structure share. `devices`
    and `links` convert positions into the node's device and link numbers."""

    machine: MachineRoutes
    devices: list[int]
    links: list[int]

    def leg(self, first: int, last: int, number: int) -> Route | None:
        """Return route `number` between two positions in the node, as link numbers."""
        route = self.machine.leg(first, last, number)
        return None if route is None else tuple(self.links[place] for place in route)


class Router:
    """Finds routes between devices by one policy. A route is a tuple of link numbers, or None if there is none."""

    def __init__(
        self,
        links: Sequence[tuple[str, str]],
        policy: RoutingPolicy,
        kinds: Mapping[str, str],
        nodes: Mapping[str, int | None],
        widths: Sequence[int],
    ):
        self.policy, self.widths = policy, widths
        self.number = {device: number for number, device in enumerate(kinds)}
        self.links = [(self.number[u], self.number[v]) for u, v in links]
        self.kinds, self.nodes = list(kinds.values()), [nodes[device] for device in kinds]
        self.net = SearchNet(self.links, self.kinds, self.nodes)
        self._fields: dict[tuple[SearchState, str, bool], DistanceField] = {}
        self._ends: dict[tuple[int, str, bool], tuple[DistanceField, Route]] = {}

    def route(self, src: str, dst: str, flow: int | None = None) -> Route | None:
        """Return the links from `src` to another device, `dst`. `flow` chooses among equal routes between nodes; by
        default a hash of the pair of names does."""
        first, last = self.number[src], self.number[dst]
        node, to = self.nodes[first], self.nodes[last]
        number = 0 if self.policy == "shortest" else zlib.crc32(f"{src}->{dst}".encode())
        across = number if flow is None else flow
        if node is not None and node == to:
            inside, place = self.insides[node], self.place
            within = inside.leg(place[first], place[last], number)
            return within or self._leg(first, last, "everywhere", False, number)
        ends = self._rails(first, last)
        railed = ends and self._by_rails(first, last, ends, number, across)
        return railed or self._leg(first, last, "everywhere", True, across)

    def equal_routes(self, src: str, dst: str) -> int:
        """Return the number of equal routes between nodes from `src` to `dst`; 1 inside a node."""
        first, last = self.number[src], self.number[dst]
        if self.policy == "shortest" or (self.nodes[first] is not None and self.nodes[first] == self.nodes[last]):
            return 1
        ends = self._rails(first, last)
        ways = self._ways(*ends[1:], "between") if ends else self._ways(first, last, "everywhere")
        return ways.paths if ways else 1

    def _ways(self, first: int, last: int, where: str) -> FewestHops | None:
        """Return the routes between devices of two nodes within `where` (a key of `REGIONS`); None if there are
        none."""
        return self._field(last, where, True)[0].ways(self.net.source[first])

    def _leg(self, first: int, last: int, where: str, apart: bool, number: int) -> Route | None:
        """Return route `number` between devices within `where` (a key of `REGIONS`); None if there is none. `apart`:
        whether the devices are in different nodes."""
        field, tail = self._field(last, where, apart)
        ways = field.ways(self.net.source[first])
        return None if ways is None else field.route(ways, number) + tail

    def _field(self, last: int, where: str, apart: bool) -> tuple[DistanceField, Route]:
        if (last, where, apart) not in self._ends:
            self._ends[last, where, apart] = self._end(last, where, apart)
        return self._ends[last, where, apart]

    def _end(self, last: int, where: str, apart: bool) -> tuple[DistanceField, Route]:
        """Return the distance field to device `last`, and no links. If only one fabric switch links to the device,
        return the field to the switch, which many devices share, and the link from the switch to the device."""
        net, region, target, home = self.net, REGIONS[where], self.net.sink[last], self.nodes[last]
        ways = [(link, y) for link, y in net.into[target] if region.goes(net, home, y, target)]
        shared = apart and len(ways) == 1 and net.node[ways[0][1]] is None and net.passable(ways[0][1])
        tail = (ways[0][0],) if shared else ()
        target = ways[0][1] if shared else target
        key = (target, where, shared)
        if key not in self._fields:
            self._fields[key] = DistanceField(net, target, NO_HOME if shared else home, region)
        return self._fields[key], tail

    def _rails(self, src: int, dst: int) -> tuple[int, int, int] | None:
        """Return the GPU through which `src` sends, the NIC by which data leave, and the NIC of `dst`. None if the
        policy does not choose NICs, or one of the two devices has no NIC."""
        node, to = self.nodes[src], self.nodes[dst]
        if self.policy not in BY_NICS or node is None or to is None:
            return None
        here, there = self.insides[node], self.insides[to]
        first, last = self.place[src], self.place[dst]
        if first not in here.machine.nic_of or last not in there.machine.nic_of:
            return None
        enter = there.machine.nic_of[last]
        owner, leave = here.machine.way_out(first, there.machine.nics.index(enter))
        return here.devices[owner], here.devices[leave], there.devices[enter]

    def _by_rails(self, src: int, dst: int, ends: tuple[int, int, int], number: int, across: int) -> Route | None:
        """Return the route through `ends`, a result of `_rails`; None if any leg is missing."""
        here, there, place = self.insides[self.nodes[src]], self.insides[self.nodes[dst]], self.place
        owner, leave, enter = ends
        legs = (
            here.leg(place[src], place[owner], number),
            here.leg(place[owner], place[leave], number),
            self._leg(leave, enter, "between", True, across),
            there.leg(place[enter], place[dst], number),
        )
        return None if None in legs else tuple(itertools.chain.from_iterable(filter(None, legs)))

    @cached_property
    def place(self) -> list[int]:
        """The position of each device in its node."""
        counts: dict[int | None, itertools.count[int]] = {}
        return [next(counts.setdefault(node, itertools.count())) for node in self.nodes]

    @cached_property
    def insides(self) -> dict[int | None, NodeInside]:
        """The devices, links and inner routes of each node."""
        devices = grouped(range(len(self.nodes)), self.nodes.__getitem__)
        inside = (link for link, (u, v) in enumerate(self.links) if self.nodes[u] == self.nodes[v])
        links = grouped(inside, lambda link: self.nodes[self.links[link][0]])
        made: dict[tuple[object, ...], MachineRoutes] = {}
        return {
            node: NodeInside(self._machine(members, links.get(node, []), made), members, links.get(node, []))
            for node, members in devices.items()
            if node is not None
        }

    def _machine(
        self, devices: list[int], links: list[int], made: dict[tuple[object, ...], MachineRoutes]
    ) -> MachineRoutes:
        kinds = tuple(self.kinds[device] for device in devices)
        ends = tuple((self.place[u], self.place[v]) for u, v in map(self.links.__getitem__, links))
        widths = tuple(self.widths[link] for link in links)
        if (kinds, ends, widths) not in made:
            made[kinds, ends, widths] = MachineRoutes(kinds, ends, widths, self.policy == "rails")
        return made[kinds, ends, widths]
