"""Links whose bandwidth changes during a run, and the ways that transfers take when a link is found dead."""

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
    """A time (ps) in which a link has one bandwidth (B/s). `turn`: its row of `LinkChanges.force`, or NONE."""

    start: int
    until: int
    bandwidth: int
    turn: int


class Served(NamedTuple):
    """The service of a chunk by a link, in ps: when it begins and ends (NEVER: it does not), when the link is free for
    the next, and when the chunk is sent again because it was lost, or NONE."""

    begin: int
    end: int
    free: int
    again: int = NONE


@dataclass(frozen=True, eq=False)
class LinkChanges:
    """Changes during a run: from `at` (changes,), in ps, a `link` has another `bandwidth` in B/s.

    At a `turn` that is not NONE the link, which is down, is found dead. From then on row `turn` of `force`, (turns + 1,
    ways) int32, says which way is taken in place of each; what the link has not served goes that way. Row 0 is the ways
    as they are. Changes are in order of time, and at one time of turn; each turn has its time. `timeouts` says for how
    long (ps) transfers wait for a link that stays down before the run has failed.
    """

    at: Index
    link: Index
    bandwidth: Index
    turn: Index
    force: NDArray[np.int32]
    timeouts: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def turns(self) -> Index:
        """The time in ps at which each row of `force` but the first comes into force, int64 (turns,)."""
        found = np.zeros(len(self.force) - 1, np.int64)
        found[self.turn[self.turn > 0] - 1] = self.at[self.turn > 0]
        return found

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """Iterate over time, link, bandwidth and turn of each change."""
        columns = (self.at, self.link, self.bandwidth, self.turn)
        return zip(*(column.tolist() for column in columns), strict=True)

    def spans(self, bandwidths: Index) -> dict[int, list[BandwidthSpan]]:
        """Return the spans of each link that changes, from 0 to NEVER."""
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
        """Return by changing link its mean bandwidth from 0 to `until` ps, as a share of its first bandwidth."""
        return {
            link: sum(bandwidth * (min(end, until) - start) for start, end, bandwidth, _ in spans if start < until)
            / (until * int(bandwidths[link]))
            for link, spans in self.spans(bandwidths).items()
            if until and bandwidths[link]
        }


def serve(spans: Sequence[BandwidthSpan], nbytes: int, came: int, free: int, lost: Callable[[int], bool]) -> Served:
    """Return how a link with these spans serves a chunk that came at `came` and is next when the link is `free`.

    Service begins when the link is up. What is left when the bandwidth changes goes on at the new one. If the link is
    found dead first, and another way is in force since then (`lost`), the chunk is sent again.
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
