"""Routes of many pairs at once, each as `Router.route` finds it.

A route is put together from legs that many pairs share: inside the node that it leaves, from switch to switch of the
fabric, inside the node that it enters. Each leg is searched for once. This serves pairs of one node, and devices that
hang on the fabric by one link each way: bare hosts, and GPUs by the NICs of their rails. The others are left to the
search.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from simcoll.config.arrays import Numbers
from simcoll.named_tuple import NamedTuple
from simcoll.topology.routing import BY_NICS, ENDPOINTS, NO_HOME, REGIONS, NextSteps, Route, Router, SearchState

MANY: Final = 2_000  # pairs: fewer are searched for in the time in which the tables are made
AT_ONCE: Final = 1 << 22  # pairs that are worked on at a time: what is made meanwhile takes some 500 MB at most
NONE: Final = -1


class _Part(NamedTuple):
    """A part of some routes: that of route i is `links[begin[i]:begin[i] + length[i]]`."""

    begin: Numbers
    length: Numbers
    links: Numbers


Found = tuple[Numbers, list[_Part]]  # the rows of pairs that have routes, and the parts of these, one behind the other


class _Legs:
    """Legs by key, laid end to end, each searched for once: `paths` counts those of a key, `route` finds one."""

    def __init__(self, paths: Callable[..., int], route: Callable[..., Route]):
        self.paths, self.route = paths, route
        self._count: dict[tuple[int, ...], int] = {}
        self._at: dict[tuple[int, ...], tuple[int, int]] = {}
        self._links: list[int] = []

    def counts(self, *columns: Numbers) -> Numbers:
        """The legs of each key, 0 where there is none; `columns` are those of the keys."""
        return _each(self._counted, *columns)

    def part(self, number: Numbers, *columns: Numbers) -> _Part:
        """Leg `number` of those of each key."""
        at = _each(self._found, *columns, number % self.counts(*columns), width=2)
        return _Part(at[:, 0], at[:, 1], np.array(self._links, np.int64))

    def _counted(self, *key: int) -> int:
        if key not in self._count:
            self._count[key] = self.paths(*key)
        return self._count[key]

    def _found(self, *key: int) -> tuple[int, int]:
        if key not in self._at:
            route = self.route(*key)
            self._at[key] = len(self._links), len(route)
            self._links += route
        return self._at[key]


class RouteTables:
    """The legs of a router's routes; `names` are those of its devices, by number."""

    def __init__(self, router: Router, names: Sequence[str]):
        self.router, self.net = router, router.net
        texts = [name.encode() for name in names]
        self._length = np.array(list(map(len, texts)), np.int64)
        self._hash = np.array(list(map(zlib.crc32, texts)), np.int64)
        self._before = np.array([zlib.crc32(text + b"->") for text in texts], np.int64)
        self._node = np.array([NONE if node is None else node for node in router.nodes], np.int64)
        self._asked = self._answer = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._inside = _Legs(self._ways_inside, self._leg_inside)
        self._leaving = _Legs(self._ways_out, self._leg_out)
        self._across = {where: _Across(router, where) for where in ("everywhere", "between")}

    def routes(self, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Routes between devices by number: how many links each has, (pairs,), −1 for those that have to be searched
        for; and the links of the others laid end to end."""
        blocks = [slice(at, at + AT_ONCE) for at in range(0, len(first), AT_ONCE)]
        count, links = zip(*(self._block(first[block], last[block]) for block in blocks), strict=True)
        return np.concatenate(count), np.concatenate(links)

    def once(self, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """The same; found once where the same pairs are asked for twice in turn, as by a replay that fails and the run
        that takes over."""
        if not all(map(np.array_equal, self._asked, (first, last))):
            self._asked, self._answer = (first, last), self.routes(first, last)
            for column in self._answer:
                column.setflags(write=False)
        return self._answer[0].copy(), self._answer[1]

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
        links = np.empty(count[some].sum(), np.int64)
        for pairs, parts in found:
            at = begin[pairs]
            for part in parts:
                links[_spread(at, part.length)] = part.links[_spread(part.begin, part.length)]
                at = at + part.length
        return count, links

    def _numbers(self, first: Numbers, last: Numbers) -> Numbers:
        """The CRC-32 of each `source->destination`, of that of the source, shifted by as many zeros as the destination
        has bytes, and that of the destination: CRC-32 is linear but for a constant."""
        if self.router.policy == "shortest":
            return np.zeros(len(first), np.int64)
        number, sends = self._hash[last], np.zeros(len(self._before), np.bool_)
        sends[first] = True
        sources = np.flatnonzero(sends)
        shifted = np.zeros(len(sends), np.int64)
        for length in set(self._length.tolist()):
            zeros, to = bytes(length), self._length[last] == length
            if to.any():
                shifted[sources] = [zlib.crc32(zeros, before) for before in self._before[sources].tolist()]
                number[to] ^= shifted[first[to]] ^ zlib.crc32(zeros)
        return number

    # --- inside a node ---

    def _in_node(self, first: Numbers, last: Numbers, number: Numbers) -> Found:
        some = np.flatnonzero(self._inside.counts(first, last))
        return some, [self._inside.part(number[some], first[some], last[some])]

    def _ways_inside(self, first: int, last: int) -> int:
        machine, place = self.router.insides[self.router.nodes[first]].machine, self.router.place
        ways = machine.ways(place[first], place[last])
        return ways.paths if ways else 0

    def _leg_inside(self, first: int, last: int, number: int) -> Route:
        return self._leg(first, self.router.place[first], self.router.place[last], number)

    def _leg(self, device: int, first: int, last: int, number: int) -> Route:
        """A leg between places in the node of a device."""
        return self.router.insides[self.router.nodes[device]].leg(first, last, number) or ()

    # --- over switches ---

    def _on_switches(self, first: Numbers, last: Numbers, number: Numbers) -> Found:
        return self._across["everywhere"].find(first, last, number)

    # --- on rails ---

    def _on_rails(self, first: Numbers, last: Numbers, number: Numbers) -> Found:
        """Routes by the destination's NIC and the source's NIC of that index."""
        enter = _each(self._nic, last)
        index = _each(self._index, enter)
        some = np.flatnonzero((enter != NONE) & (_each(self._nic, first) != NONE))
        first, last, number, enter, index = (column[some] for column in (first, last, number, enter, index))
        there = (self._leaving.counts(first, index) > 0) & (self._inside.counts(enter, last) > 0)
        some, first, last, number, enter, index = (
            column[there] for column in (some, first, last, number, enter, index)
        )
        leave = _each(self._leaves, first, index)
        over, parts = self._across["between"].find(leave, enter, number)
        first, last, number, enter, index = (column[over] for column in (first, last, number, enter, index))
        out, into = self._leaving.part(number, first, index), self._inside.part(number, enter, last)
        return some[over], [out, *parts, into]

    def _nic(self, device: int) -> int:
        """The NIC of a GPU, −1 for none."""
        inside = self.router.insides[self.router.nodes[device]]
        nic = inside.machine.nic_of.get(self.router.place[device])
        return NONE if nic is None else inside.devices[nic]

    def _index(self, nic: int) -> int:
        """The index of a NIC in its node."""
        if nic == NONE:
            return NONE
        return self.router.insides[self.router.nodes[nic]].machine.nics.index(self.router.place[nic])

    def _way_out(self, device: int, index: int) -> tuple[int, int, int]:
        place = self.router.place[device]
        return place, *self.router.insides[self.router.nodes[device]].machine.way_out(place, index)

    def _leaves(self, device: int, index: int) -> int:
        """The NIC by which a GPU sends to a rail."""
        return self.router.insides[self.router.nodes[device]].devices[self._way_out(device, index)[2]]

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


class _ToRoot(NamedTuple):
    """The shortest ways from a switch to another: how long, how many, and their next steps, lowest link first."""

    hops: int
    paths: int
    steps: NextSteps


_NOWHERE: Final = _ToRoot(0, 0, [])


class _Across:
    """Routes between devices that hang on switches of the fabric, over a region of `REGIONS`."""

    def __init__(self, router: Router, where: str):
        self.router, self.net, self.where, self.region = router, router.net, where, REGIONS[where]
        self.legs = _Legs(self._paths, self._route)
        self._fields: dict[SearchState, dict[SearchState, _ToRoot]] = {}

    def find(self, first: Numbers, last: Numbers, number: Numbers) -> Found:
        """Up from the first device, across, and down to the last."""
        up, down = _each(self._up, first, width=2), _each(self._down, last, width=2)
        some = np.flatnonzero((up[:, 0] != NONE) & (down[:, 0] != NONE))
        up, down, number = up[some], down[some], number[some]
        there = self.legs.counts(up[:, 0], down[:, 0]) > 0
        some, up, down, number = some[there], up[there], down[there], number[there]
        at, one = np.arange(len(some)), np.ones(len(some), np.int64)
        across = self.legs.part(number, up[:, 0], down[:, 0])
        return some, [_Part(at, one, up[:, 1]), across, _Part(at, one, down[:, 1])]

    def _up(self, device: int) -> tuple[int, int]:
        """The only switch that a device sends to, and its link there; −1 where there is more to choose."""
        net, y = self.net, self.net.source[device]
        goes = self.region.goes
        ways = [
            (link, x)
            for link, x in net.out[y]
            if net.passable(x) and self.region.passes(net, x) and goes(net, NO_HOME, y, x)
        ]
        return self._only(ways)

    def _down(self, device: int) -> tuple[int, int]:
        """The only switch from which messages come to a device, and its link from there."""
        net, x, home = self.net, self.net.sink[device], self.router.nodes[device]
        return self._only([(link, y) for link, y in net.into[x] if self.region.goes(net, home, y, x)])

    def _only(self, ways: list[tuple[int, int]]) -> tuple[int, int]:
        link, switch = ways[0] if len(ways) == 1 else (NONE, NONE)
        inner = switch == NONE or self.net.node[switch] is not None or self.net.kind[switch] in (*ENDPOINTS, "relay")
        return (NONE, NONE) if inner or not self.net.passable(switch) else (switch, link)

    def _paths(self, leaf: int, root: int) -> int:
        return self._field(root).get(leaf, _NOWHERE).paths

    def _route(self, leaf: int, root: int, number: int) -> Route:
        field, route = self._field(root), list[int]()
        while leaf != root:
            for link, after in field[leaf].steps:
                if number < field[after].paths:
                    route.append(link)
                    leaf = after
                    break
                number -= field[after].paths
        return tuple(route)

    def _field(self, root: int) -> dict[SearchState, _ToRoot]:
        """The switches from which there is a way to `root`. Such ways pass switches only."""
        if root not in self._fields:
            field = self._fields[root] = {root: _ToRoot(0, 1, [])}
            ring = [root]
            while ring:
                steps: dict[SearchState, NextSteps] = {}
                for x in ring:
                    for link, y in self._trunks[x]:
                        if y not in field:
                            steps.setdefault(y, []).append((link, x))
                hops = field[ring[0]].hops + 1
                for y, onward in steps.items():
                    field[y] = _ToRoot(hops, sum(field[x].paths for _, x in onward), sorted(onward))
                ring = list(steps)
        return self._fields[root]

    @cached_property
    def _trunks(self) -> list[NextSteps]:
        """For each switch the links that come from other switches, and these."""
        net = self.net
        fabric = [
            net.node[x] is None and net.kind[x] not in (*ENDPOINTS, "relay") and net.passable(x)
            for x in range(len(net.into))
        ]
        return [[(link, y) for link, y in ways if fabric[y]] if fabric[x] else [] for x, ways in enumerate(net.into)]


def _each(find: Callable[..., int | tuple[int, int]], *columns: Numbers, width: int = 1) -> Numbers:
    """Find `width` numbers for each row, once for rows that are equal in all columns."""
    if not len(columns[0]):
        return np.zeros((0, 2) if width > 1 else 0, np.int64)
    key, space = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, high = int(column.min(initial=0)), int(column.max(initial=0))
        key, space = key * (high - low + 1) + (column - low), space * (high - low + 1)
    if space < max(1 << 20, 4 * len(key)):  # a table is quicker than sorting
        there = np.zeros(space, np.bool_)
        there[key] = True
        number = np.cumsum(there) - 1
        which, row = number[key], np.zeros(int(number[-1]) + 1, np.int64)
        row[which] = np.arange(len(key))
    else:
        _, row, which = np.unique(key, return_index=True, return_inverse=True)
    rows = zip(*(column[row].tolist() for column in columns), strict=True)
    found: Numbers = np.array([find(*key) for key in rows], np.int64)[which]
    return found


def _spread(begin: Numbers, length: Numbers) -> Numbers:
    """All places of some stretches, one stretch after the other."""
    ends = np.cumsum(length)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - ends + length, length)
