"""Find the link on which a message of a `fair` run met most traffic of others."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from simcoll.config.arrays import Array, distinct
from simcoll.engine.program import Program
from simcoll.engine.tasks import grouped
from simcoll.engine.timeline import Timeline


class Crowd:
    """The traffic on each link of a `fair` run, computed for a link when it is asked for."""

    def __init__(self, program: Program, timeline: Timeline):
        self.program, self.timeline = program, timeline
        self.known: dict[int, tuple[Array, Array, Array, int]] = {}

    def blamed(self, i: int, route: list[int], slowest: int, ready: int) -> int:
        """Return the link of the route of `i` that others kept busiest from `ready` until it was sent; the slowest if
        none.
        """
        until = self.timeline.sent.item(i)
        own = self.program.nbytes.item(i)
        busy = [(self.carried(link, ready, until) - own) / max(1, self.program.bandwidths.item(link)) for link in route]
        most = max(busy)
        return route[busy.index(most)] if most > 0 else slowest

    def carried(self, link: int, begin: int, end: int) -> float:
        """Return the bytes over a link in an interval, if each message went evenly from ready to sent."""
        came, left, rate, longest = self.known.get(link) or self.known.setdefault(link, self.on(link))
        overlapping = slice(int(np.searchsorted(came, begin - longest)), int(np.searchsorted(came, end)))
        within = np.minimum(left[overlapping], end) - np.maximum(came[overlapping], begin)
        return float((np.maximum(within, 0) * rate[overlapping]).sum())

    def on(self, link: int) -> tuple[Array, Array, Array, int]:
        """Return all messages over a link, sorted by the time at which they came, and the longest time that one took.

        The columns: when they came and were sent, in ps, and their bytes per ps.
        """
        program, (first, transfers) = self.program, self.by_way
        hop, links = program.routes[2:]
        ways = distinct(np.searchsorted(hop, np.flatnonzero(links == link), side="right") - 1)
        on_link = np.concatenate([transfers[first[way] : first[way + 1]] for way in ways])
        way = program.way[on_link]
        lead = np.where(program.routes.src[way] == program.routes.dst[way], 0, program.by_way("o_send")[way])
        came, left = self.timeline.start[on_link] + lead, self.timeline.sent[on_link]
        order = np.argsort(came, kind="stable")
        took = np.maximum(left - came, 1)
        return came[order], left[order], (program.nbytes[on_link] / took)[order], int(took.max(initial=0))

    @cached_property
    def by_way(self) -> tuple[Array, Array]:
        """The transfers of each way."""
        everyone = np.arange(len(self.program), dtype=np.int32)
        return grouped(self.program.way, everyone, len(self.program.routes.src))
