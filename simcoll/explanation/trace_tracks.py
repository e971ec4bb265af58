"""What the transfers of a run do, as tracks of a trace: what each rank sends and receives, what each link carries."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NONE
from simcoll.explanation import trace_lanes
from simcoll.explanation.trace_lanes import Arrow, Slice, Spot, Track

LINKS: Final = "links"  # the process whose tracks are directions of links


class Played(NamedTuple):
    """What was run. Participant p is called `names[p]`, and channel c belongs to a stream, `streams[c]` ('' where there
    is one only). All of it happens `shift` ps later; a transfer stands for `times` of its size."""

    program: Program
    timeline: Timeline
    names: Sequence[str]
    streams: Sequence[str]
    shift: int = 0
    times: int = 1


class _TracedTransfer(NamedTuple):
    """A transfer for reading; `first` is the number of its first hop, times are shifted."""

    number: int
    src: int
    dst: int
    nbytes: int
    chunk: int
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

    def args(self) -> dict[str, Any]:
        """What viewers tell of it."""
        told = {"bytes": self.nbytes, "chunk": self.chunk, "step": self.step, "loop": self.loop}
        return {**told, "from": self.src, "to": self.dst, "reduces": self.reduce, "transfer": self.number}


class Tracks:
    """Tracks and arrows of the transfers, behind the `tracks` that there are."""

    def __init__(self, played: Played, tracks: Iterable[Track]):
        self.played, self.tracks, self.arrows = played, list(tracks), list[Arrow]()
        self.hop_begin, self.hop_end = (
            (times + played.shift).tolist() for times in (played.timeline.hop_begin, played.timeline.hop_end)
        )
        self.transfers = list(_transfers(played))
        sends = self._sends()
        receptions = self._receptions()
        self.counters = self._links()
        for one in self.transfers:
            if one.number in receptions:
                self.arrows.append(Arrow(sends[one.number], receptions[one.number], "send"))
        for number, before in enumerate(played.program.reads.tolist()):
            if before != NONE:
                self.arrows.append(Arrow(receptions.get(before, sends[before]), sends[number], "data"))

    def _lay(self, process: str, name: str, slices: Mapping[int, Slice]) -> dict[int, Spot]:
        """Slices that may overlap, by number: put on as many new tracks as keep them apart; where each is."""
        order = sorted(slices.items(), key=lambda item: item[1][:2])
        numbers = trace_lanes.lanes(one[:2] for _, one in order)
        at = len(self.tracks)
        for lane in range(max(numbers, default=-1) + 1):
            self.tracks.append(Track(process, name + (f" ({lane + 1})" if lane else "")))
        placed = zip(order, numbers, strict=True)
        return {number: Spot(at + lane, self.tracks[at + lane].add(one)) for (number, one), lane in placed}

    def _sends(self) -> dict[int, Spot]:
        """On each rank a track for each channel: from the start of a transfer until it is sent."""
        program, found = self.played.program, dict[int, Spot]()
        tasks = program.tasks
        lane = tasks.lane.tolist() if tasks else range(len(self.played.streams))
        of: dict[int, list[_TracedTransfer]] = {}
        for one in self.transfers:
            of.setdefault(lane[one.channel], []).append(one)
        seen: Count[tuple[int, str]] = Count()
        for _, its in sorted(of.items(), key=lambda item: (item[1][0].src, item[0])):
            owner, stream = its[0].src, self.played.streams[its[0].channel]
            name = f"{stream} channel {seen[owner, stream]}".strip()
            seen[owner, stream] += 1
            slices = {one.number: Slice(one.start, one.sent, *self._sent(one), one.args()) for one in its}
            found |= self._lay(self.played.names[owner], name, slices)
        return found

    def _sent(self, one: _TracedTransfer) -> tuple[str, str]:
        """Name and kind."""
        return (f"copy {one.chunk}", "copy") if one.local else (f"{one.chunk} to {self._short(one.dst)}", "send")

    def _short(self, participant: int) -> str:
        return self.played.names[participant].partition(" (")[0]

    def _receptions(self) -> dict[int, Spot]:
        """On each rank what comes, from the time that the last link begins to carry it until the receive side is done
        with it. Local copies only have a receive side where it takes time."""
        of: dict[int, list[_TracedTransfer]] = {}
        for one in self.transfers:
            if not one.local or one.end > one.arrive:
                of.setdefault(one.dst, []).append(one)
        found: dict[int, Spot] = {}
        for rank, its in sorted(of.items()):
            slices = {
                one.number: Slice(self._comes(one), one.end, f"{one.chunk} from {src}", "receive", one.args())
                for one, src in ((one, self._short(one.src)) for one in its)
            }
            found |= self._lay(self.played.names[rank], "receives", slices)
        return found

    def _comes(self, one: _TracedTransfer) -> int:
        return one.arrive if one.local or not one.hops else int(self.hop_begin[one.first + one.hops - 1])

    def _links(self) -> list[trace_lanes.Counter]:
        """A track for each direction of a link, and how much of it is in use; several where transfers share it."""
        program = self.played.program
        of: dict[int, dict[int, Slice]] = {}
        links = program.hops.links.tolist()
        for one in self.transfers:
            name, args = f"{one.chunk}: {one.src} to {one.dst}", one.args()
            for hop in range(one.first, one.first + one.hops):
                kind = "memory" if one.local else "link"
                held = Slice(self.hop_begin[hop], self.hop_end[hop], name, kind, args)
                of.setdefault(links[hop], {})[hop] = held
        counters = []
        for link, slices in sorted(of.items()):
            name = str(program.link_names[link])
            self._lay(LINKS, name, slices)
            counters.append(trace_lanes.Counter(name, in_use(slices.values())))
        return counters


def in_use(slices: Iterable[Slice]) -> list[tuple[int, float]]:
    """The bandwidth of a link that is in use, in GB/s, from each time on: of each transfer its mean over the time that
    it is on the link, in whole kB/s, so that sums come back to 0."""
    changes: Count[int] = Count()
    for one in slices:
        if one.end > one.begin:
            rate = one.args["bytes"] * 10**9 // (one.end - one.begin)
            changes[one.begin] += rate
            changes[one.end] -= rate
    found, rate = list[tuple[int, float]](), 0
    for time, change in sorted(changes.items()):
        if change:
            rate += change
            found.append((time, rate / 1e6))
    return found


def _transfers(played: Played) -> Iterable[_TracedTransfer]:
    program, timeline, shift = played.program, played.timeline, played.shift
    chunk = program.schedule.src_slot[program.origin]
    columns: list[NDArray[Any]] = [np.arange(len(program)), program.src, program.dst, program.nbytes * played.times]
    columns += [chunk, program.schedule.step[program.origin], program.loop, program.reduce, program.channel]
    columns += [program.hops.first[:-1], np.diff(program.hops.first)]
    columns += [times + shift for times in (timeline.start, timeline.sent, timeline.arrive, timeline.end)]
    return map(_TracedTransfer, *(column.tolist() for column in columns))
