"""A run as lanes of slices: what viewers of traces and the HTML report draw."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """Something that lasts from `begin` to `end`, in ps; its `kind` is what viewers filter by."""

    begin: int
    end: int
    name: str
    kind: str
    args: Mapping[str, Any]


class Spot(NamedTuple):
    """A slice, by the numbers of its track and of its place there."""

    track: int
    place: int


class Arrow(NamedTuple):
    """What begins at `target` waits for what is at `source`."""

    source: Spot
    target: Spot
    name: str


@dataclass(frozen=True, eq=False)
class Track:
    """A lane of a `process` (a rank, or all links): its slices come one after the other, in order of time."""

    process: str
    name: str
    slices: list[Slice] = field(default_factory=list)

    def add(self, one: Slice) -> int:
        """The place of the slice in its track."""
        self.slices.append(one)
        return len(self.slices) - 1


class Counter(NamedTuple):
    """A number that changes: from each time (ps) on it has the value beside it."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, eq=False)
class Trace:
    """Everything that happened in a run, and `about` it. `ranks` are the processes of the ranks."""

    tracks: Sequence[Track]
    arrows: Sequence[Arrow]
    counters: Sequence[Counter]
    about: Mapping[str, Any]
    ranks: Sequence[str]

    @property
    def end_ps(self) -> int:
        """When the last slice ends."""
        return max((one.end for track in self.tracks for one in track.slices), default=0)


def lanes(intervals: Iterable[tuple[int, int]]) -> list[int]:
    """The lane of each interval, as few lanes as keep them apart: each gets the lowest lane that is free.

    Intervals are half open and come in order of their begin.

    >>> lanes([(0, 4), (1, 3), (3, 5), (4, 6)])
    [0, 1, 1, 0]
    """
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # until when, and which lane
    found: list[int] = []
    for begin, end in intervals:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        found.append(lane)
    return found
