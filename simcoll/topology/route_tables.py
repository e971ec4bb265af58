"""Routes of many pairs at once, each as `Router.route` finds it. All-to-all on 1,024 GPUs has a million of them.

A route consists of legs that many pairs share: out of a node, from switch to switch, and into a node. Each leg is
searched for once. Tables cover pairs in one node, hosts on switches, and GPUs that send through NICs of rails. Routes
on a torus of hosts have a closed form. `Router` searches the routes of all other pairs one by one.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.numpy_helpers import Array, Numbers, distinct
from simcoll.topology.routing import BY_NICS, ENDPOINTS, NO_HOME, REGIONS, DistanceField, Route, Router, SearchState

MANY: Final = 2_000  # least number of pairs for which tables are faster than a search for each pair
AT_ONCE: Final = 1 << 17  # pairs in one block, so that intermediate arrays stay in the CPU's cache
MOST_TORUS_ROUTES: Final = 1 << 40  # counts of routes are capped: hashes of 32 bits choose none beyond
NONE: Final = -1


class _Part(NamedTuple):
    """A leg (part of a route) for each of several routes: route i has the links `links[begin[i]:begin[i] +
    length[i]]`."""

    begin: Numbers
    length: Numbers
    links: Numbers


Found = tuple[Numbers, list[_Part]]  # indices of the pairs with a route, and the legs of these routes in order


class _Answers:
    """A cache of `find`, which is called once for each key. Keys are rows of numbers ≥ −1, results are tuples."""

    def __init__(self, find: Callable[..., tuple[int, ...]]):
        self.find = find
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def __call__(self, *columns: Numbers) -> tuple[Numbers, ...]:
        """Return the results of `find` as columns, one entry per key. The keys are given as columns, too."""
        spans = tuple(int(column.max()) + 2 for column in columns)
        packed = np.ravel_multi_index(tuple(column + 1 for column in columns), spans)
        each = distinct(packed)
        keys = list(zip(*((column - 1).tolist() for column in np.unravel_index(each, spans)), strict=True))
        for key in keys:
            if key not in self._known:
                self._known[key] = self.find(*key)
        answers = np.array([self._known[key] for key in keys], np.int64)
        return tuple(answers.T[:, np.searchsorted(each, packed)])


class _Legs:
    """A cache of legs (parts of routes) by key, in one array. `paths` counts the legs of a key, `route` finds one."""

    def __init__(self, paths: Callable[..., int], route: Callable[..., Route]):
        self.paths, self.route = paths, route
        self._count, self._at = _Answers(lambda *key: (paths(*key),)), _Answers(self._found)
        self._links, self._laid = list[int](), np.zeros(0, np.int64)

    def counts(self, *columns: Numbers) -> Numbers:
        """Return the number of legs of each key, 0 if there is none. The keys are given as columns."""
        return self._count(*columns)[0] if len(columns[0]) else np.zeros(0, np.int64)

    def part(self, number: Numbers, *columns: Numbers) -> _Part:
        """Return for each key its leg number `number` modulo the number of the key's legs."""
        at, length = self._at(*columns, number % self.counts(*columns)) if len(number) else (number, number)
        if len(self._laid) < len(self._links):
            self._laid = np.array(self._links, np.int64)
        return _Part(at, length, self._laid)

    def _found(self, *key: int) -> tuple[int, int]:
        route = self.route(*key)
        self._links += route
        return len(self._links) - len(route), len(route)


class RouteTables:
    """Tables of a router's routes, built from legs. `names`: devices by number; `dims`: sides of a torus, if any."""

    def __init__(self, router: Router, names: Sequence[str], dims: Sequence[int] = ()):
        self.router, self.net = router, router.net
        texts = [name.encode() for name in names]
        self._length = np.array(list(map(len, texts)), np.int64)
        self._hash = np.array(list(map(zlib.crc32, texts)), np.int64)
        self._before = [zlib.crc32(text + b"->") for text in texts]
        self._shifted: dict[int, Numbers] = {}  # by the length of the destination's name
        self._node = np.array([NONE if node is None else node for node in router.nodes], np.int64)
        self._place = np.array(router.place, np.int64)
        self._inside = _Legs(self._ways_inside, self._leg_inside)
        self._leaving = _Legs(self._ways_out, self._leg_out)
        self._entry, self._leaves = _Answers(self._nic), _Answers(self._leave)
        self._torus = TorusRoutes.of(router, dims) if dims else None
        self._across = {where: _Across(router, where) for where in ("everywhere", "between")}

    def routes(self, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Return the routes between pairs of device numbers `first[i]` and `last[i]`: the number of links of each,
        (pairs,), and the links of all routes, concatenated. The number is −1 if the tables lack a pair."""
        blocks = [slice(at, at + AT_ONCE) for at in range(0, len(first), AT_ONCE)]
        count, links = zip(*(self._block(first[block], last[block]) for block in blocks), strict=True)
        return np.concatenate(count), np.concatenate(links)

    def _block(self, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        number, node, to = self._numbers(first, last), self._node[first], self._node[last]
        inside, housed = (node != NONE) & (node == to), (node != NONE) & (to != NONE)
        railed = housed & ~inside & (self.router.policy in BY_NICS)
        count, found = np.full(len(first), NONE), list[tuple[Numbers, list[_Part]]]()
        for those, way in ((inside, self._in_node), (railed, self._on_rails), (~inside & ~railed, self._on_switches)):
            pairs = np.flatnonzero(those & (first != last))
            if not len(pairs):
                continue
            some, parts = way(first[pairs], last[pairs], number[pairs])
            found.append((pairs[some], parts))
            count[pairs[some]] = sum(part.length for part in parts)
        some = count != NONE
        begin = np.zeros(len(count), np.int64)
        begin[some] = np.cumsum(count[some]) - count[some]
        links = np.empty(count[some].sum(), np.int32)
        for pairs, parts in found:
            at = begin[pairs]
            for part in parts:
                for k in range(int(part.length.max(initial=0))):
                    long = np.flatnonzero(part.length > k)
                    links[at[long] + k] = part.links[part.begin[long] + k]
                at = at + part.length
        return count, links

    def _numbers(self, first: Numbers, last: Numbers) -> Numbers:
        """Return each pair's CRC-32 of `source->destination`, which chooses among equal routes. CRC-32 is linear but
        for a constant: it is the CRC of `source->`, shifted by the destination's length, XOR the destination's CRC."""
        if self.router.policy == "shortest":
            return np.zeros(len(first), np.int64)
        number, lengths = self._hash[last], self._length[last]
        for length in distinct(lengths).tolist():
            if length not in self._shifted:
                zeros = bytes(length)
                self._shifted[length] = np.array([zlib.crc32(zeros, before) for before in self._before], np.int64)
                self._shifted[length] ^= zlib.crc32(zeros)
            to = np.flatnonzero(lengths == length)
            number[to] ^= self._shifted[length][first[to]]
        return number

    # --- inside a node ---

    def _in_node(self, first: Numbers, last: Numbers, number: Numbers) -> Found:
        to = self._place[last]
        some = np.flatnonzero(self._inside.counts(first, to))
        return some, [self._inside.part(number[some], first[some], to[some])]

    def _ways_inside(self, first: int, to: int) -> int:
        ways = self.router.insides[self.router.nodes[first]].machine.ways(self.router.place[first], to)
        return ways.paths if ways else 0

    def _leg_inside(self, first: int, to: int, number: int) -> Route:
        return self._leg(first, self.router.place[first], to, number)

    def _leg(self, device: int, first: int, last: int, number: int) -> Route:
        """Return the links from position `first` to position `last` in the node of `device`."""
        return self.router.insides[self.router.nodes[device]].leg(first, last, number) or ()

    # --- over switches, or on a torus ---

    def _on_switches(self, first: Numbers, last: Numbers, number: Numbers) -> Found:
        if self._torus:
            length, links = self._torus.find(first, last, number)
            return np.arange(len(first)), [_Part(np.cumsum(length) - length, length, links)]
        return self._across["everywhere"].find(first, last, number)

    # --- on rails ---

    def _on_rails(self, first: Numbers, last: Numbers, number: Numbers) -> Found:
        """Return the routes that leave and enter their nodes by NICs with equal indices (one rail): the index of the
        destination's NIC."""
        enter, index = self._entry(last)
        some = np.flatnonzero((enter != NONE) & (self._entry(first)[0] != NONE))
        first, last, number, enter, index = (column[some] for column in (first, last, number, enter, index))
        there = (self._leaving.counts(first, index) > 0) & (self._inside.counts(enter, self._place[last]) > 0)
        some, first, last, number, enter, index = (
            column[there] for column in (some, first, last, number, enter, index)
        )
        (leave,) = self._leaves(first, index) if len(first) else (first,)
        over, parts = self._across["between"].find(leave, enter, number)
        first, last, number, enter, index = (column[over] for column in (first, last, number, enter, index))
        out, into = self._leaving.part(number, first, index), self._inside.part(number, enter, self._place[last])
        return some[over], [out, *parts, into]

    def _nic(self, device: int) -> tuple[int, int]:
        """Return the NIC of a GPU, by device number, and its index in the node; −1 if it has none."""
        inside = self.router.insides[self.router.nodes[device]]
        nic = inside.machine.nic_of.get(self.router.place[device])
        return (NONE, NONE) if nic is None else (inside.devices[nic], inside.machine.nics.index(nic))

    def _way_out(self, device: int, index: int) -> tuple[int, int, int]:
        place = self.router.place[device]
        return place, *self.router.insides[self.router.nodes[device]].machine.way_out(place, index)

    def _leave(self, device: int, index: int) -> tuple[int]:
        """Return the NIC by which a GPU sends to the rail `index`, as a tuple of one number."""
        return (self.router.insides[self.router.nodes[device]].devices[self._way_out(device, index)[2]],)

    def _ways_out(self, device: int, index: int) -> int:
        machine = self.router.insides[self.router.nodes[device]].machine
        place, owner, leave = self._way_out(device, index)
        ways = [
            1 if a == b else (found.paths if (found := machine.ways(a, b)) else 0)
            for a, b in ((place, owner), (owner, leave))
        ]
        return math.lcm(*ways)

    def _leg_out(self, device: int, index: int, number: int) -> Route:
        place, owner, leave = self._way_out(device, index)
        return self._leg(device, place, owner, number) + self._leg(device, owner, leave, number)


class _Across:
    """Routes between devices that have a link to only one switch of the fabric. `where`: the part of the network that
    they may use, a key of `REGIONS`."""

    def __init__(self, router: Router, where: str):
        self.net, self.where = router.net, where
        self.legs = _Legs(self._paths, self._route)
        self._fields: dict[int, DistanceField] = {}

    def find(self, first: Numbers, last: Numbers, number: Numbers) -> Found:
        """Return routes from each device `first` up to its switch, across the fabric, and down to the device `last`."""
        (leaf, up), (root, down) = (side[:, ends] for side, ends in zip(self._stubs, (first, last), strict=True))
        some = np.flatnonzero((leaf != NONE) & (root != NONE))
        some = some[self.legs.counts(leaf[some], root[some]) > 0]
        at, one = np.arange(len(some)), np.ones(len(some), np.int64)
        across = self.legs.part(number[some], leaf[some], root[some])
        return some, [_Part(at, one, up[some]), across, _Part(at, one, down[some])]

    @cached_property
    def _stubs(self) -> tuple[Numbers, Numbers]:
        """Two arrays (2, devices). The first has for each device the only switch that it sends to, as an index into
        `_hubs`, and the link to it. The second has the only switch that sends to the device, and the link from it.
        Entries are −1 if there are several such switches."""
        net, (link, leave, enter) = self.net, self.net.ways
        home = np.array([NONE if node is None else node for node in net.node], np.int64)
        relay, bridge = np.array(net.kind) == "relay", home[enter] == NONE
        if self.where == "everywhere":  # as `REGIONS` has it
            up, down = bridge | relay[enter] | (home[leave] == home[enter]), np.ones(len(link), bool)
        else:
            up, down = bridge, home[leave] != home[enter]
        up = up & self._passable[enter]
        found = []
        for ends, ways, near, far in ((net.source, up, leave, enter), (net.sink, down, enter, leave)):
            ways = np.flatnonzero(ways)
            only = np.full((2, len(net.node)), NONE)
            only[:, near[ways]] = far[ways], link[ways]
            alone = np.bincount(near[ways], minlength=len(net.node)) == 1
            only[:, self._fabric | ~alone | ~self._fabric[only[0]]] = NONE  # other devices may link to a switch
            found.append(only[:, ends])
        hubs = distinct(np.concatenate([NONE, found[0][0], found[1][0]], axis=None))
        for side in found:
            side[0] = np.searchsorted(hubs, side[0]) - 1
        self._hubs: list[SearchState] = hubs[1:].tolist()
        return found[0], found[1]

    @cached_property
    def _passable(self) -> NDArray[np.bool_]:
        """For each state of the search (see `SearchNet`), whether a message can enter and leave it."""
        _, leave, enter = self.net.ways
        states = len(self.net.node)
        return (np.bincount(enter, minlength=states) > 0) & (np.bincount(leave, minlength=states) > 0)

    @cached_property
    def _fabric(self) -> NDArray[np.bool_]:
        """For each state of the search (see `SearchNet`), whether it is a fabric switch that forwards messages."""
        hands_on = [kind not in (*ENDPOINTS, "relay") for kind in self.net.kind]
        return self._passable & hands_on & [node is None for node in self.net.node]

    def _paths(self, leaf: int, root: int) -> int:
        ways = self._field(root).ways(self._hubs[leaf])
        return ways.paths if ways else 0

    def _route(self, leaf: int, root: int, number: int) -> Route:
        field = self._field(root)
        ways = field.ways(self._hubs[leaf])
        return field.route(ways, number) if ways else ()

    def _field(self, root: int) -> DistanceField:
        """Return the distances from all devices to the switch `root`, which routes from all nodes share."""
        if root not in self._fields:
            self._fields[root] = DistanceField(self.net, self._hubs[root], NO_HOME, REGIONS[self.where])
        return self._fields[root]


# --- on a torus ---


class TorusRoutes:
    """Routes between the devices of a torus, numbered with the last of `dims` varying fastest."""

    def __init__(self, dims: Sequence[int], links: Array):
        """`links` (axes, 2, devices): each device's links to the next and to the previous device along each axis."""
        self.dims, self.links = np.array(dims), links
        self.pace = np.append(np.cumprod(self.dims[:0:-1])[::-1], 1)  # from a number to the next along an axis
        orders = [self._orders(steps) for steps in itertools.product(*(range(size // 2 + 1) for size in dims))]
        self._count = np.array(orders, np.int64).reshape([size // 2 + 1 for size in dims])

    @staticmethod
    def _orders(steps: Sequence[int]) -> int:
        """Return the number of orders of `steps[i]` steps along each axis i, capped at MOST_TORUS_ROUTES."""
        totals = list(itertools.accumulate(steps))
        return min(MOST_TORUS_ROUTES, math.prod(math.comb(a, b) for a, b in zip(totals, steps, strict=True)))

    @classmethod
    def of(cls, router: Router, dims: Sequence[int]) -> TorusRoutes | None:
        """Return the routes of a torus; None unless machines have one device, and form a torus of sides `dims`."""
        count, (tail, head) = len(router.kinds), np.array(router.links, np.int64).reshape(-1, 2).T
        machines = {*router.nodes} - {None}
        if math.prod(dims) != count or len(machines) < count or {*router.kinds} not in [{kind} for kind in ENDPOINTS]:
            return None
        at = np.arange(count).reshape(dims)
        near = np.array([[np.roll(at, sign, axis).ravel() for sign in (-1, 1)] for axis in range(len(dims))])
        to, far = near + np.arange(count) * count, np.flatnonzero(tail != head)
        order = far[np.argsort(tail[far] * count + head[far])]
        keys = tail[order] * count + head[order]
        if not np.array_equal(keys, distinct(to[near != np.arange(count)])):
            return None
        return cls(dims, np.append(order, 0)[np.searchsorted(keys, to)])

    def find(self, first: Numbers, last: Numbers, number: Numbers) -> tuple[Numbers, Numbers]:
        """Return the number of links of each pair's route, and all links, concatenated. If a pair has P shortest
        routes, it takes route `number` mod P."""
        sizes, away = (
            self.dims[:, None],
            (last // self.pace[:, None] - first // self.pace[:, None]) % self.dims[:, None],
        )
        left = np.minimum(away, sizes - away)
        ways = np.stack([2 * away <= sizes, (2 * away >= sizes) & (sizes > 2)], axis=1) & (away > 0)[:, None]
        number, at, length = number % self._routes(left, ways.all(axis=1)), first.copy(), left.sum(axis=0)
        begin = np.cumsum(length) - length
        links, rows = np.empty(length.sum(), np.int32), np.flatnonzero(length)
        while len(rows):
            axis, sign, number[rows] = self._step(at[rows], left[:, rows], ways[:, :, rows], number[rows])
            links[begin[rows]] = self.links[axis, sign, at[rows]]
            pace, size, place = self.pace[axis], self.dims[axis], at[rows]
            here = place // pace % size
            at[rows] = place + ((here + 1 - 2 * sign) % size - here) * pace
            left[axis, rows] -= 1
            ways[axis, :, rows] = np.stack([sign == 0, sign == 1], axis=1) & (left[axis, rows] > 0)[:, None]
            begin[rows] += 1
            rows = rows[left[:, rows].any(axis=0)]
        return length, links

    def _routes(self, left: Array, either: Array) -> Numbers:
        """Return the number of shortest routes with `left` steps to go along each axis, (axes, pairs). `either` marks
        axes on which both directions are equally short."""
        found: Numbers = np.minimum(self._count[tuple(left)] << either.sum(axis=0), MOST_TORUS_ROUTES)
        return found

    def _step(self, at: Numbers, left: Array, ways: Array, number: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the next step of each pair's route, as axis and direction (0 or 1). Return also the route's number
        among the routes that begin with this step."""
        axes, pairs = left.shape
        either, after = np.logical_and.reduce(ways, axis=1), np.zeros((2 * axes, pairs), np.int64)
        for axis in range(axes):
            less, own = left.copy(), either.copy()
            less[axis] = np.maximum(less[axis] - 1, 0)
            own[axis] = False
            after[2 * axis : 2 * axis + 2] = self._routes(less, own)
        allowed = ways.reshape(2 * axes, pairs)
        link = np.where(allowed, self.links[:, :, at].reshape(2 * axes, pairs), np.iinfo(np.int64).max)
        order = np.argsort(link, axis=0)
        after = np.take_along_axis(np.where(allowed, after, 0), order, axis=0)
        ends = np.cumsum(after, axis=0)
        rank = (ends <= number).sum(axis=0)
        taken = order[rank, np.arange(pairs)]
        return taken // 2, taken % 2, number - (ends - after)[rank, np.arange(pairs)]
