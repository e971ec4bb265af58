"""Traces of a run, for trace viewers and the HTML report: lanes (tracks) of slices, arrows, and counters over time."""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.grouping import grouped
from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline
from simcoll.schedule.schedule import run_text

FAULTS: Final = "faults"  # the process whose tracks are faults


class Slice(NamedTuple):
    """A coloured interval on a track, from `begin` to `end` (ps). Viewers filter slices by `kind`."""

    begin: int
    end: int
    name: str
    kind: str
    args: Mapping[str, Any]


class Spot(NamedTuple):
    """A place in a trace where a slice begins: the number of its track, and the time in ps."""

    track: int
    begin: int


class Arrow(NamedTuple):
    """An arrow between two places: the slice that begins at `target` waits for the slice that begins at `source`."""

    source: Spot
    target: Spot
    name: str


@dataclass(frozen=True, eq=False)
class Track:
    """A lane of a `process` (a rank, or all links); its slices are in order of time and do not overlap."""

    process: str
    name: str
    slices: list[Slice] = field(default_factory=list)


class Counter(NamedTuple):
    """A number over time, as pairs of time (ps) and value; a value holds from its time on."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, eq=False)
class Trace:
    """All tracks, arrows and counters of a run, and facts `about` the run; `ranks` names the ranks' processes."""

    tracks: Sequence[Track]
    arrows: Sequence[Arrow]
    counters: Sequence[Counter]
    about: Mapping[str, Any]
    ranks: Sequence[str]

    @cached_property
    def end_ps(self) -> int:
        """Return the end of the last slice, in ps."""
        return max((slice_.end for track in self.tracks for slice_ in track.slices), default=0)


def lanes(intervals: Iterable[tuple[int, int]]) -> list[int]:
    """Assign half-open intervals, sorted by begin, to as few lanes as possible: each gets the lowest free lane.

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


LINKS: Final = "links"  # the process whose tracks are directions of links


class _TracedTransfer(NamedTuple):
    """A transfer with its times in ps, shifted as in the trace; `first` is the number of its first hop,
    `chunks` the slots that it reads, in words."""

    number: int
    src: int
    dst: int
    nbytes: int
    chunks: str
    step: int
    loop: int
    reduce: bool
    channel: int
    first: int
    hops: int
    start: int
    sent: int
    arrive: int
    end: int

    @property
    def local(self) -> bool:
        return self.src == self.dst

    @property
    def label(self) -> str:
        """The slots in few words: the first run, and a mark if there are more."""
        first, more, _ = self.chunks.partition(", ")
        return f"{first}, …" if more else first

    def args(self) -> dict[str, Any]:
        """Return the facts about the transfer that viewers show for its slice."""
        first = next(re.finditer(r"\d+", self.chunks))[0]
        moved = {"chunk": int(first), **({} if self.chunks == first else {"chunks": self.chunks})}
        facts = {"bytes": self.nbytes, **moved, "step": self.step, "loop": self.loop}
        return {**facts, "from": self.src, "to": self.dst, "reduces": self.reduce, "transfer": self.number}


class Tracks:
    """The tracks and arrows for the transfers of a program that ran, added behind `tracks`.

    Rank or switch number p is called `names[p]`; channel c belongs to the stream `streams[c]` ('' if there is only
    one). All times are shown `shift` ps later. Sizes are multiplied by `times`: one number, or one for each transfer.
    """

    def __init__(
        self,
        program: Program,
        timeline: Timeline,
        names: Sequence[str],
        streams: Sequence[str],
        shift: int,
        times: int | NDArray[Any],
        tracks: Iterable[Track],
    ):
        self.program, self.names, self.streams = program, names, streams
        self.tracks, self.arrows = list(tracks), list[Arrow]()
        self.hop_begin, self.hop_end = ((each + shift).tolist() for each in (timeline.hop_begin, timeline.hop_end))
        self.transfers = list(_transfers(program, timeline, shift, times))
        sends = self._sends()
        receptions = self._receptions()
        self.counters = self._links()
        for transfer in self.transfers:
            if transfer.number in receptions:
                self.arrows.append(Arrow(sends[transfer.number], receptions[transfer.number], "send"))
        for number, before in zip(program.reads.waiting().tolist(), program.reads.before.tolist(), strict=True):
            self.arrows.append(Arrow(receptions.get(before, sends[before]), sends[number], "data"))

    def _lay(self, process: str, name: str, slices: Mapping[int, Slice]) -> dict[int, Spot]:
        """Put slices that may overlap on as few new tracks as possible; return where each begins, by its number."""
        order = sorted(slices.items(), key=lambda item: item[1][:2])
        numbers = lanes(slice_[:2] for _, slice_ in order)
        at = len(self.tracks)
        for lane in range(max(numbers, default=-1) + 1):
            self.tracks.append(Track(process, name + (f" ({lane + 1})" if lane else "")))
        for (_, slice_), lane in zip(order, numbers, strict=True):
            self.tracks[at + lane].slices.append(slice_)
        return {number: Spot(at + lane, slice_.begin) for (number, slice_), lane in zip(order, numbers, strict=True)}

    def _sends(self) -> dict[int, Spot]:
        """Add a track for each channel of each rank, with a slice from the start of each transfer until it is sent."""
        program, spots = self.program, dict[int, Spot]()
        tasks = program.tasks
        lane = tasks.lane.tolist() if tasks else range(len(self.streams))
        of = grouped(self.transfers, lambda transfer: int(lane[transfer.channel]))
        seen: Count[tuple[int, str]] = Count()
        for _, sent in sorted(of.items(), key=lambda item: (item[1][0].src, item[0])):
            owner, stream = sent[0].src, self.streams[sent[0].channel]
            name = f"{stream} channel {seen[owner, stream]}".strip()
            seen[owner, stream] += 1
            slices = {each.number: Slice(each.start, each.sent, *self._sent(each), each.args()) for each in sent}
            spots |= self._lay(self.names[owner], name, slices)
        return spots

    def _sent(self, transfer: _TracedTransfer) -> tuple[str, str]:
        """Return the name and the kind of the slice that shows the sending of a transfer."""
        if transfer.local:
            return f"copy {transfer.label}", "copy"
        return f"{transfer.label} to {self._short(transfer.dst)}", "send"

    def _short(self, participant: int) -> str:
        return self.names[participant].partition(" (")[0]

    def _receptions(self) -> dict[int, Spot]:
        """Add a track of receptions for each rank: from when the last link begins to carry a transfer until its end.

        A copy within a rank is shown as a reception only if its receiving takes time.
        """
        seen = [transfer for transfer in self.transfers if not transfer.local or transfer.end > transfer.arrive]
        of = grouped(seen, lambda transfer: transfer.dst)
        spots: dict[int, Spot] = {}
        for rank, received in sorted(of.items()):
            slices = {each.number: self._reception(each) for each in received}
            spots |= self._lay(self.names[rank], "receives", slices)
        return spots

    def _reception(self, transfer: _TracedTransfer) -> Slice:
        direct = transfer.local or not transfer.hops
        begin = transfer.arrive if direct else int(self.hop_begin[transfer.first + transfer.hops - 1])
        name = f"{transfer.label} from {self._short(transfer.src)}"
        return Slice(begin, transfer.end, name, "receive", transfer.args())

    def _links(self) -> list[Counter]:
        """Add a track for each direction of a link, or several if transfers overlap; return counters of its use."""
        program = self.program
        of: dict[int, dict[int, Slice]] = {}
        links = (program.hops.links % program.servers).tolist()
        for transfer in self.transfers:
            name, args = f"{transfer.label}: {transfer.src} to {transfer.dst}", transfer.args()
            for hop in range(transfer.first, transfer.first + transfer.hops):
                kind = "memory" if transfer.local else "link"
                held = Slice(self.hop_begin[hop], self.hop_end[hop], name, kind, args)
                of.setdefault(links[hop], {})[hop] = held
        counters = []
        for link, slices in sorted(of.items()):
            name = str(program.link_names[link])
            self._lay(LINKS, name, slices)
            counters.append(Counter(name, in_use(slices.values())))
        return counters


def in_use(slices: Iterable[Slice]) -> list[tuple[int, float]]:
    """Return the bandwidth in use on a link as pairs: time (ps), and the GB/s from this time on.

    A transfer counts with its mean rate over its slice, in whole kB/s, so that sums return to exactly 0.
    """
    changes: Count[int] = Count()
    for slice_ in slices:
        if slice_.end > slice_.begin:
            rate = slice_.args["bytes"] * 10**9 // (slice_.end - slice_.begin)
            changes[slice_.begin] += rate
            changes[slice_.end] -= rate
    rates, rate = list[tuple[int, float]](), 0
    for time, change in sorted(changes.items()):
        if change:
            rate += change
            rates.append((time, rate / 1e6))
    return rates


def _transfers(
    program: Program, timeline: Timeline, shift: int, times: int | NDArray[Any]
) -> Iterable[_TracedTransfer]:
    schedule = program.schedule
    runs = list(map(run_text, schedule.src_slot.tolist(), schedule.count.tolist()))
    heads = [*schedule.heads.tolist(), len(runs)]
    chunks = np.array([", ".join(runs[first:end]) for first, end in itertools.pairwise(heads)], object)
    columns: list[NDArray[Any]] = [np.arange(len(program)), program.src, program.dst, program.nbytes * times]
    columns += [chunks[program.number], schedule.step[program.origin], program.loop, program.reduce, program.channel]
    columns += [program.hops.first[:-1], np.diff(program.hops.first)]
    columns += [each + shift for each in (timeline.start, timeline.sent, timeline.arrive, timeline.end)]
    return map(_TracedTransfer, *(column.tolist() for column in columns))
