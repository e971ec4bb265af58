"""The least latency from some devices to all others, over devices of any kind."""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from simcoll.config.arrays import Numbers
from simcoll.config.groups import grouped

UNREACHED: Final = 2**62  # ps; with a latency more it is still one of 64 bits
MOST_ROUNDS: Final = 64  # more hops than ways have that go up and down a tree; a round looks at all links


class LinksByEnd:
    """The links of a layout by the device at their `ends`, (links, 2), for any latencies."""

    def __init__(self, devices: int, ends: Numbers):
        self.devices = devices
        self.order = np.argsort(ends[:, 1], kind="stable")
        self.tails = ends[self.order, 0]
        self.heads, self.starts = np.unique(ends[self.order, 1], return_index=True)

    def least(self, latencies: Numbers, sources: Numbers) -> Numbers:
        """ps from each source to each device, (sources, devices), UNREACHED where there is no way."""
        least = np.full((len(sources), self.devices), UNREACHED)
        least[np.arange(len(sources)), sources] = 0
        taken = latencies[self.order]
        for _ in range(MOST_ROUNDS):  # Bellman's and Ford's: round k adds ways of k hops
            by_last = np.minimum.reduceat(least[:, self.tails] + taken, self.starts, axis=1)
            now = np.minimum(least[:, self.heads], by_last)
            if (now == least[:, self.heads]).all():
                return least
            least[:, self.heads] = now
        return np.array([self._dijkstra(taken.tolist(), source) for source in sources.tolist()])

    def _dijkstra(self, latencies: list[int], source: int) -> list[int]:
        out = grouped(range(len(latencies)), self.tails.tolist().__getitem__)
        heads = np.repeat(self.heads, np.diff(np.append(self.starts, len(latencies)))).tolist()
        least, queue = [UNREACHED] * self.devices, [(0, source)]
        least[source] = 0
        while queue:
            came, u = heapq.heappop(queue)
            if came == least[u]:
                for link in out.get(u, ()):
                    if came + latencies[link] < least[heads[link]]:
                        least[heads[link]] = came + latencies[link]
                        heapq.heappush(queue, (came + latencies[link], heads[link]))
        return least
