"""Routes: which links a message takes from one device to another. Computed when asked for, and kept.

Every policy walks fields of hop counts towards a destination. A field is expanded outwards only as far as its sources
lie, and only over the part of the graph that matters: the inside of one node, the fabric between nodes, or everything.

GPUs and hosts hand on traffic only between direct links to their own kind (a cube mesh of NVLinks, a torus of hosts):
there is no way over PCIe through another GPU. A route that leaves a node does not come back to it, passes no third
node, and no NIC is a short cut inside its own node.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

Policy = Literal["shortest", "ecmp", "rails"]
Route = tuple[int, ...]
State = int

POLICIES: Final[tuple[str, ...]] = get_args(Policy)
ENDPOINTS: Final = ("gpu", "host")  # devices that compute: messages begin and end here


class Net:
    """A graph made ready for searching backwards.

    A state is what a message can be at: an endpoint is three states (a source, a sink, a relay between direct links to
    its own kind), any other device is one. `into[x]` are the (state, link) from which a message comes to x; `exit[x]` is
    the only (link, state) on the way out of x, where there is only one.
    """

    def __init__(self, links: Sequence[tuple[str, str]], kinds: Mapping[str, str], nodes: Mapping[str, int | None]):
        self.source: dict[str, State] = {}
        self.sink: dict[str, State] = {}
        self.relay: dict[str, State] = {}
        self.node: list[int | None] = []
        self.kind: list[str] = []
        for device, kind in kinds.items():
            self.source[device] = self.sink[device] = self._state(kind, nodes[device])
            if kind in ENDPOINTS:
                self.sink[device] = self._state(kind, nodes[device])
                self.relay[device] = self._state("relay", nodes[device])
        self.into: list[list[tuple[State, int]]] = [[] for _ in self.node]
        for link, (u, v) in enumerate(links):
            if u != v:
                self._connect(u, v, link, peers=kinds[u] == kinds[v] and u in self.relay)
        out: dict[State, list[tuple[int, State]]] = {}
        for x, entries in enumerate(self.into):
            for y, link in entries:
                out.setdefault(y, []).append((link, x))
        self.exit = {y: ways[0] for y, ways in out.items() if len(ways) == 1}

    def _state(self, kind: str, node: int | None) -> State:
        self.kind.append(kind)
        self.node.append(node)
        return len(self.node) - 1

    def _connect(self, u: str, v: str, link: int, peers: bool) -> None:
        tails = (self.source[u], self.relay[u]) if peers else (self.source[u],)
        heads = (self.sink[v], self.relay[v]) if peers else (self.sink[v],)
        for head in heads:
            self.into[head].extend((tail, link) for tail in tails)


class Field:
    """Hops to `target`, from as far away as was asked so far.

    `next` holds the (link, state) of each step of a fewest-hop route, `paths` the number of such routes. With `widths`
    (B/s of each link) only the widest of the fewest-hop routes count: NVLink before PCIe.
    """

    def __init__(
        self,
        net: Net,
        target: State,
        step: Callable[[Net, State, State], Iterator[tuple[State, int]]],
        widths: Sequence[int] = (),
    ):
        self.net, self.target, self.step, self.widths = net, target, step, widths
        self.width: dict[State, float] = {target: math.inf}
        self.hops: dict[State, int] = {target: 0}
        self.next: dict[State, list[tuple[int, State]]] = {}
        self._frontier: list[State] = [target]
        self.paths: dict[State, int] = {target: 1}

    def reaches(self, source: State) -> bool:
        """Whether there is a way from `source`; expands the field until that is known."""
        while source not in self.hops and self._frontier:
            self._expand()
        return source in self.hops

    def _expand(self) -> None:
        found: list[State] = []
        for x in self._frontier:
            hops = self.hops[x] + 1
            for y, link in self.step(self.net, self.target, x):
                width = min(self.width[x], self.widths[link]) if self.widths else math.inf
                if y not in self.hops:
                    found.append(y)
                if y not in self.hops or (self.hops[y] == hops and width > self.width[y]):
                    self.hops[y], self.paths[y], self.next[y] = hops, self.paths[x], [(link, x)]
                    self.width[y] = width
                elif self.hops[y] == hops and width == self.width[y]:
                    self.paths[y] += self.paths[x]
                    self.next[y].append((link, x))
        self._frontier = found

    def first(self, source: State) -> Route:
        """Of the routes with fewest hops the one whose sequence of links is lowest."""
        route: list[int] = []
        while source != self.target:
            link, source = min(self.next[source])
            route.append(link)
        return tuple(route)

    def chosen(self, source: State, number: int) -> Route:
        """Of the P routes with fewest hops, in the order of their links, the one numbered `number` mod P."""
        route: list[int] = []
        number %= self.paths[source]
        while source != self.target:
            link, source, number = self._branch(source, number)
            route.append(link)
        return tuple(route)

    def _branch(self, source: State, number: int) -> tuple[int, State, int]:
        for link, after in sorted(self.next[source]):
            if number < self.paths[after]:
                return link, after, number
            number -= self.paths[after]
        raise AssertionError("paths counts the routes through next")


def _everywhere(net: Net, target: State, x: State) -> Iterator[tuple[State, int]]:
    """Backwards out of the target's node, through the fabric, and into other nodes never to leave them again."""
    home, here = net.node[target], net.node[x]
    if here == home or net.kind[x] == "relay":
        yield from net.into[x]
    elif here is None:
        yield from (entry for entry in net.into[x] if net.node[entry[0]] != home)
    else:
        yield from (entry for entry in net.into[x] if net.node[entry[0]] == here)


def _within(net: Net, target: State, x: State) -> Iterator[tuple[State, int]]:
    """Backwards inside the target's node."""
    if x == target or net.kind[x] != "nic":
        yield from (entry for entry in net.into[x] if net.node[entry[0]] == net.node[target])


def _between(net: Net, target: State, x: State) -> Iterator[tuple[State, int]]:
    """Backwards over devices that belong to no node."""
    if x == target or net.node[x] is None:
        yield from (entry for entry in net.into[x] if net.node[entry[0]] != net.node[target])


class Router:
    """Routes by one policy. `devices` of a node are found by kind; a route that does not exist is None."""

    def __init__(
        self,
        net: Net,
        policy: Policy,
        devices: Mapping[str, str],
        nodes: Mapping[str, int | None],
        widths: Sequence[int],
    ):
        self.net, self.policy, self.kinds, self.nodes, self.widths = net, policy, devices, nodes, widths
        self._fields: dict[tuple[str, str], Field] = {}
        self._only: dict[tuple[str, str, str], Route] = {}  # legs that are the same for every route
        self._gpus: dict[int, list[str]] = {}
        self._nics: dict[int, list[str]] = {}
        self._nic_of: dict[int, dict[str, str]] = {}
        self._ways_out: dict[tuple[str, int], tuple[str, str]] = {}
        for device, kind in devices.items():
            node = nodes[device]
            if node is not None and kind in ("gpu", "nic"):
                (self._gpus if kind == "gpu" else self._nics).setdefault(node, []).append(device)

    def route(self, src: str, dst: str) -> Route | None:
        """Links from `src` to `dst`, another device."""
        node, to = self.nodes[src], self.nodes[dst]
        if node is not None and node == to:
            return self._hop(src, dst, src, dst, "within") or self._hop(src, dst, src, dst, "everywhere")
        rails = self.policy == "rails" and node is not None and to is not None and self._rails(src, dst, node, to)
        return rails or self._hop(src, dst, src, dst, "everywhere")

    def _hop(self, src: str, dst: str, first: str, last: str, where: str) -> Route | None:
        """A leg first → last of the route src → dst."""
        if first == last:
            return ()
        if (first, last, where) in self._only:
            return self._only[first, last, where]
        if (last, where) not in self._fields:
            widths = self.widths if where == "within" else ()
            self._fields[last, where] = Field(self.net, self.net.sink[last], _WHERE[where], widths)
        way_out: Route = ()
        field, source = self._fields[last, where], self.net.source[first]
        if source in self.net.exit:  # no need to search as far as a device that has but one way to go
            link, source = self.net.exit[source]
            way_out = (link,)
        if not field.reaches(source):
            return None
        if self.policy == "shortest" or field.paths[source] == 1:
            return self._only.setdefault((first, last, where), way_out + field.first(source))
        return way_out + field.chosen(source, zlib.crc32(f"{src}->{dst}".encode()))

    def _rails(self, src: str, dst: str, node: int, to: int) -> Route | None:
        """By the destination's NIC and the source's NIC of that index; None where they or a way do not exist."""
        here, there = self._nics_of(node), self._nics_of(to)
        if src not in here or dst not in there:
            return None
        last = there[dst]
        owner, first = self._way_out(src, node, self._nics[to].index(last))
        legs = (
            self._hop(src, dst, src, owner, "within"),
            self._hop(src, dst, owner, first, "within"),
            self._hop(src, dst, first, last, "between"),
            self._hop(src, dst, last, dst, "within"),
        )
        return None if None in legs else tuple(itertools.chain.from_iterable(filter(None, legs)))

    def _way_out(self, src: str, node: int, index: int) -> tuple[str, str]:
        """The GPU whose NIC has that index, and the NIC, if an NVSwitch leads there; else `src` and its own NIC."""
        if (src, index) not in self._ways_out:
            own, nics = self._nics_of(node), self._nics[node]
            wanted = nics[index] if index < len(nics) else own[src]
            owners = [gpu for gpu, nic in own.items() if nic == wanted]
            near = own[src] == wanted or not owners or not self._share_nvswitch(src, owners[0])
            self._ways_out[src, index] = (src, own[src]) if near else (owners[0], wanted)
        return self._ways_out[src, index]

    def _share_nvswitch(self, src: str, proxy: str) -> bool:
        into = self.net.into
        return any(
            self.net.kind[switch] == "nvswitch" and any(y == self.net.source[src] for y, _ in into[switch])
            for switch, _ in into[self.net.sink[proxy]]
        )

    def _nics_of(self, node: int) -> dict[str, str]:
        """The NIC of each GPU of a node: the nearest; GPUs that are equally near to several take one each in turn."""
        if node not in self._nic_of:
            turn: dict[tuple[str, ...], int] = {}
            self._nic_of[node] = {}
            for gpu in self._gpus.get(node, ()):
                near = self._nearest(gpu, self._nics.get(node, ()))
                if near:
                    turn[near] = turn.get(near, -1) + 1
                    self._nic_of[node][gpu] = near[turn[near] % len(near)]
        return self._nic_of[node]

    def _nearest(self, gpu: str, nics: Sequence[str]) -> tuple[str, ...]:
        legs = {nic: self._hop(gpu, nic, gpu, nic, "within") for nic in nics}
        hops = {nic: len(leg) for nic, leg in legs.items() if leg}
        return tuple(nic for nic, count in hops.items() if count == min(hops.values()))


_WHERE: Final = {"everywhere": _everywhere, "within": _within, "between": _between}
