"""The machines that devices sit in, as arrays that answer questions about all links of a topology at once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import Numbers, Sets, distinct


class Homes:
    """Devices by number, `of` is the machine of each, numbered from 0 on, −1 for none; `ends` are the devices at both
    ends of each link, (links, 2)."""

    def __init__(self, nodes: Iterable[int | None], ends: Numbers):
        self.number: dict[int | None, int] = {None: -1}
        self.of = np.array([self.number.setdefault(node, len(self.number) - 1) for node in nodes], np.int64)
        self.ends, self.count = ends, len(self.number) - 1

    @cached_property
    def inner(self) -> Numbers:
        """The links that join devices of one machine."""
        tail, head = self.of[self.ends.T]
        return np.flatnonzero((tail == head) & (tail >= 0))

    def leaves(self) -> dict[int, int]:
        """The first device without a machine on the way out of each machine, in the order of devices and their links;
        −1 stands for the devices of none."""
        tail, head = self.ends.T
        out = np.flatnonzero(self.of[head] < 0)
        homes, first = np.unique(self.of[tail[out]], return_index=True)
        return dict(zip(homes.tolist(), head[out[first]].tolist(), strict=True))

    @cached_property
    def gates(self) -> Numbers:
        """The only device outside of each machine with which it is linked; −1 where there are several, or none."""
        lowest, highest = np.full(self.count, len(self.of)), np.full(self.count, -1)
        for near, far in (self.ends.T, self.ends.T[::-1]):
            home = self.of[near]
            out = (home >= 0) & (home != self.of[far])
            np.minimum.at(lowest, home[out], far[out])
            np.maximum.at(highest, home[out], far[out])
        return np.where(lowest == highest, lowest, -1)

    def enclosures(self, some: Numbers) -> Sets:
        """Sets of devices worth cutting out: each of `some` alone, each of their machines that has several, and each
        device with all of these machines that hang on it alone."""
        asked = np.zeros(self.count + 1, bool)
        asked[self.of[some]] = True
        asked[-1] = False  # the place of devices without a machine
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
        """The links out of each set of devices, and those into it."""
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

    def stubs(self, hands_on: NDArray[np.bool_]) -> tuple[Numbers, Numbers, Numbers]:
        """Devices that hang on one that `hands_on`, (devices,), by one link each way: the link out, that device, and
        the link back; −1 for the others."""
        (tail, head), count = self.ends.T, len(self.of)
        up, down = np.full(count, -1), np.full(count, -1)
        up[tail], down[head] = np.arange(len(tail)), np.arange(len(tail))
        single = (np.bincount(tail, minlength=count) == 1) & (np.bincount(head, minlength=count) == 1)
        at = np.flatnonzero(single)
        at = at[(tail[down[at]] == head[up[at]]) & hands_on[head[up[at]]]]
        found = np.full((3, count), -1)
        found[:, at] = up[at], head[up[at]], down[at]
        return found[0], found[1], found[2]
