"""Cuts and distances of a topology, computed with NumPy for many devices and links at once.

`Machines` knows the machine of each device. It finds links inside machines, and links that leave a set of devices.
`least` finds the least latency from some devices to all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import numpy as np

from simcoll.config.arrays import Numbers, Sets, distinct

UNREACHED: Final = 2**62  # ps, for no path; its sum with a latency still fits 64 bits
MOST_ROUNDS: Final = 64  # more hops than any path in a tree fabric has; each round looks at all links


class Machines:
    """The machines that devices belong to. `of` is the machine of each device, numbered from 0 on, −1 for none; `ends`
    are the devices at both ends of each link, (links, 2)."""

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
        """For each machine, the device at the end of its first link out of all machines, e.g. its leaf switch. Keys are
        machine numbers, −1 for devices of no machine."""
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
        """Return sets of devices whose cuts may bound a collective between `some` devices. The sets are: each of `some`
        alone, each of their machines with several devices, and each switch with all machines that link only to it."""
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
    """Return the least latency in ps from each source to each device, (sources, devices); UNREACHED for no path. `ends`
    are the devices at both ends of each link, (links, 2)."""
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

    ways = csr_array((latencies, tuple(ends.T)), shape=(devices, devices))
    found[:] = np.minimum(dijkstra(ways, indices=sources), UNREACHED)
    return found
