"""Define traces: lanes of slices, arrows and counters, which trace viewers and the HTML report draw."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

FAULTS: Final = "faults"  # the process whose tracks are faults


class Slice(NamedTuple):
    """An interval from `begin` to `end`, in ps; viewers filter by `kind`."""

    begin: int
    end: int
    name: str
    kind: str
    args: Mapping[str, Any]


class Spot(NamedTuple):
    """The position of a slice: the number of its track, and its place there."""

    track: int
    place: int


class Arrow(NamedTuple):
    """A dependency: the slice at `target` waits for the slice at `source`."""

    source: Spot
    target: Spot
    name: str


@dataclass(frozen=True, eq=False)
class Track:
    """One lane of a `process` (a rank, or all links); its slices follow each other in order of time."""

    process: str
    name: str
    slices: list[Slice] = field(default_factory=list)

    def add(self, slice_: Slice) -> int:
        """Append a slice and return its place in the track."""
        self.slices.append(slice_)
        return len(self.slices) - 1


class Counter(NamedTuple):
    """A number over time: from each time (ps) on it has the value beside it."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, eq=False)
class Trace:
    """All tracks, arrows and counters of a run, and facts `about` it; `ranks` names the processes of the ranks."""

    tracks: Sequence[Track]
    arrows: Sequence[Arrow]
    counters: Sequence[Counter]
    about: Mapping[str, Any]
    ranks: Sequence[str]

    @cached_property
    def end_ps(self) -> int:
        """The end of the last slice, in ps."""
        return max((slice_.end for track in self.tracks for slice_ in track.slices), default=0)


def lanes(intervals: Iterable[tuple[int, int]]) -> list[int]:
    """Assign intervals to as few lanes as keep them apart: each gets the lowest lane that is free.

    Intervals are half open and come in order of their begin.

    >>> lanes([(0, 4), (1, 3), (3, 5), (4, 6)])
    [0, 1, 1, 0]
    """
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (end, lane)
    numbers: list[int] = []
    for begin, end in intervals:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        numbers.append(lane)
    return numbers
