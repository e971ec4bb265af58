"""Changes of link bandwidths during a run, and the routes that transfers take after a link is found dead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.engine.timing_model import NEVER, NONE, PS_PER_S, Index, service_ps


class BandwidthSpan(NamedTuple):
    """A time span (ps) in which a link has one bandwidth (B/s). `turn`: the row of `LinkChanges.way_after` that takes
    effect at its start, or NONE."""

    start: int
    until: int
    bandwidth: int
    turn: int


class Served(NamedTuple):
    """How a link serves a chunk. Times in ps: when service begins and ends (NEVER if it does not end), and when the
    link is free for the next chunk. `again`: when the chunk is sent again because it was lost, or NONE."""

    begin: int
    end: int
    free: int
    again: int = NONE


@dataclass(frozen=True, eq=False)
class LinkChanges:
    """Changes during a run: from time `at` (changes,), in ps, a `link` has another `bandwidth` in B/s.

    If the `turn` of a change is not NONE, its link is down and is found dead at that time. From then on transfers take
    route `way_after[turn, r]` in place of route r, also chunks that the link has not served yet. `way_after` is int32
    (turns + 1, ways); its row 0 keeps every route. Changes are sorted by time, then by turn; each turn has one time.
    `timeouts` holds by link how long (ps) transfers wait for a link that stays down before the run fails. Errors tell
    times that count from `began` ps before the run.
    """

    at: Index
    link: Index
    bandwidth: Index
    turn: Index
    way_after: NDArray[np.int32]
    timeouts: Mapping[int, int] = field(default_factory=dict)
    began: int = 0

    @cached_property
    def turns(self) -> Index:
        """The times in ps at which links are found dead, in order, one for each turn, int64 (turns,)."""
        found = np.zeros(len(self.way_after) - 1, np.int64)
        found[self.turn[self.turn > 0] - 1] = self.at[self.turn > 0]
        return found

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """Iterate over time, link, bandwidth and turn of each change."""
        columns = (self.at, self.link, self.bandwidth, self.turn)
        return zip(*(column.tolist() for column in columns), strict=True)

    def spans(self, bandwidths: Index) -> dict[int, list[BandwidthSpan]]:
        """Return, for each link that changes, the time spans in which its bandwidth is constant, from time 0 to
        NEVER."""
        rows: dict[int, list[tuple[int, int, int]]] = {}
        for at, link, bandwidth, turn in self:
            rows.setdefault(link, [(0, int(bandwidths[link]), NONE)]).append((at, bandwidth, turn))
        return {
            link: [
                BandwidthSpan(start, until, bandwidth, turn)
                for (start, bandwidth, turn), until in zip(turns, [*(row[0] for row in turns[1:]), NEVER], strict=True)
                if start < until
            ]
            for link, turns in rows.items()
        }

    def kept(self, bandwidths: Index, until: int) -> dict[int, float]:
        """Return, for each link that changes, its mean bandwidth from 0 to `until` ps, as a share of its first
        bandwidth."""
        return {
            link: sum(bandwidth * (min(end, until) - start) for start, end, bandwidth, _ in spans if start < until)
            / (until * int(bandwidths[link]))
            for link, spans in self.spans(bandwidths).items()
            if until and bandwidths[link]
        }


def serve(spans: Sequence[BandwidthSpan], nbytes: int, came: int, free: int, lost: Callable[[int], bool]) -> Served:
    """Return how a link serves a chunk of `nbytes` that arrived at time `came` (ps). `spans` are the link's bandwidths;
    it is busy with earlier chunks until time `free` (ps).

    Service begins when the link is up and free. When the bandwidth changes, the remaining bytes move at the new one. A
    chunk is sent again if the link is found dead before service ends, and `lost(time)` says that the chunk has another
    route at that time.
    """
    begin, rest, whole = NONE, float(nbytes), True
    for start, until, bandwidth, turn in spans:
        if until <= came:
            continue
        if not bandwidth:
            again = max(start, came + 1)
            if turn != NONE and lost(again):
                return Served(begin, NEVER, free if begin == NONE else start, again)
            continue
        now = max(start, came, free)
        if now >= until:
            continue
        begin = now if begin == NONE else begin
        wait = service_ps(nbytes, bandwidth) if whole else max(1, math.ceil(rest * PS_PER_S / bandwidth))
        if now + wait <= until:
            return Served(begin, now + wait, now + wait)
        rest, whole = max(0.0, rest - (float(bandwidth) * (until - now)) / 1e12), False
    return Served(begin, NEVER, NEVER)
