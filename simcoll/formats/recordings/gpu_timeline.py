"""Turn what ran on a GPU's streams, and when, into intervals with what they wait for.

Kernels between two changes (a call begins or ends, something is waited for) become one interval of computation, so that
a step of any length has few intervals, and a replay has the measured times: computation, calls, and both at once.

Work waits for the work before it on its stream, for its launch by the host, and for work of other streams:

* a call for what was launched before it on the streams that compute (PyTorch makes NCCL's stream wait for them);
* work after a recorded wait for an event, for the work that the event follows;
* work that begins late, although it was launched and its stream was free, for the work that ended just before it.

The host waits where it synchronises. All waits agree with the measured times.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.config.grouping import grouped
from simcoll.formats.recordings.events import Event, Interval

STALL: Final = 20_000  # ns: longer than a launch, and than the wait for an event, take as a rule
HOST: Final = "host"
COMPUTE: Final = "compute"


@dataclass(eq=False)
class GpuWork:
    """A kernel or copy on a stream from `begin` to `end`, in ns. `launched`: when the host launched it; None: not
    recorded. `waits`: known work of other streams that it waits for."""

    stream: str
    begin: int
    end: int
    launched: int | None
    kind: str = COMPUTE
    call: Event | None = None
    waits: list[GpuWork] = field(default_factory=list)


class EventWait(NamedTuple):
    """A wait of a stream for an event, in the order of the host: the host asked at `asked` ns that later work of
    `stream` waits for what it had launched on the stream `awaited` before `recorded` ns. None: not known which."""

    asked: int
    recorded: int
    stream: str | None = None
    awaited: str | None = None


@dataclass(eq=False)
class _Made:
    """An interval that begins at `begin`; of equal ones, the host's comes first."""

    begin: int
    name: str
    stream: str
    took: int
    kind: str
    after: list[_Made | GpuWork]
    call: Event | None = None


def intervals(
    works: Sequence[GpuWork], waits: Sequence[EventWait], syncs: Iterable[tuple[int, int]], end: int, rank: int
) -> list[Interval]:
    """Return the intervals of a step that lasts from 0 to `end` ns. `syncs`: when the host began and ended to wait."""
    works = sorted(works, key=lambda work: (work.begin, work.end))
    _find_waits(works, waits)
    host = _Host(works, syncs, rank)
    made, last = list[_Made](), dict[GpuWork, _Made]()
    awaited = {one for work in works for one in work.waits} | {one for _, one in host.syncs}
    calls = sorted({at for work in works if work.call for at in (work.begin, work.end)})
    for stream, mine in grouped(works, lambda work: work.stream).items():
        free = 0  # when the stream's work so far ended
        for lump in _lumps(mine, awaited, calls):
            runs = _runs(lump, free)
            for part in (runs[:-1], runs[-1:]):  # the last run alone decides when the lump ends
                if part:
                    _place(part, free, stream, host, made, last, rank)
                    free = part[-1][-1].end
    made += host.made(end)
    made.sort(key=lambda one: (one.begin, one.stream != HOST))
    number: dict[object, int] = {one: at for at, one in enumerate(made)}
    number |= {work: number[one] for work, one in last.items()}
    return [
        Interval(
            one.name, one.stream, one.took,
            tuple(sorted({number[other] for other in one.after if number.get(other, at) < at})), one.call, one.kind,
        )
        for at, one in enumerate(made)
    ]  # fmt: skip


def _find_waits(works: Sequence[GpuWork], waits: Sequence[EventWait]) -> None:
    """Add to all work what it waits for, see the head of this module."""
    streams = grouped(works, lambda work: work.stream)
    launched = {name: [(work.launched or 0, at) for at, work in enumerate(mine)] for name, mine in streams.items()}
    order = {name: sorted(each) for name, each in launched.items()}
    calling = {work.stream for work in works if work.call}

    def newest(stream: str, before: int) -> GpuWork | None:
        place = bisect.bisect(order[stream], (before, -1)) - 1
        return streams[stream][order[stream][place][1]] if place >= 0 else None

    def first(stream: str, since: int) -> GpuWork | None:
        place = bisect.bisect(order[stream], (since, -1))
        return streams[stream][order[stream][place][1]] if place < len(order[stream]) else None

    exact = any(wait.stream is not None for wait in waits)
    for wait in waits:
        of = [wait.stream] if wait.stream is not None else [name for name in streams if name not in calling]
        later = [work for name in of if name in streams and (work := first(name, wait.asked))]
        for name in [wait.awaited] if wait.awaited is not None else calling:
            if later and name in streams and (before := newest(name, wait.recorded)):
                _wait(min(later, key=lambda work: work.launched or 0), before)
    for work in works if not exact else ():
        if work.call and work.launched is not None:
            for name in streams:
                if name not in calling and (before := newest(name, work.launched)):
                    _wait(work, before)
    ends = sorted((work.end, at) for at, work in enumerate(works))
    free = defaultdict[str, int](int)
    for work in works:
        ready = max(free[work.stream], work.launched or 0, *(other.end for other in work.waits), 0)
        free[work.stream] = max(free[work.stream], work.end)
        place = bisect.bisect(ends, (work.begin, len(works))) - 1
        while work.begin - ready > STALL and place >= 0 and work.begin - ends[place][0] <= STALL:
            other = works[ends[place][1]]
            if other.stream != work.stream and other.end > ready:
                _wait(work, other)
                break
            place -= 1


def _wait(work: GpuWork, other: GpuWork) -> None:
    """Let `work` wait for `other`, if their times agree with that."""
    if other.end <= work.begin and other.stream != work.stream and other not in work.waits:
        work.waits.append(other)


class _Piece(NamedTuple):
    """A part of a work between changes; `first`: the begin of the work is in it."""

    begin: int
    end: int
    work: GpuWork
    first: bool


def _lumps(works: Sequence[GpuWork], awaited: set[GpuWork], calls: Sequence[int]) -> list[list[_Piece]]:
    """Return the work of a stream in pieces, cut where a call begins or ends: in one list what lies between changes."""
    found, at = list[list[_Piece]](), -1
    for former, work in zip([None, *works], works, strict=False):
        begin = max(work.begin, former.end) if former else work.begin
        cuts = [] if work.call else calls[bisect.bisect(calls, begin) : bisect.bisect_left(calls, work.end)]
        for start, stop in zip([begin, *cuts], [*cuts, work.end], strict=True):
            change = bisect.bisect(calls, start)
            apart = start == begin and (work.call or work.waits or former is None or former.call or former in awaited)
            if apart or change != at:
                found.append([])
            at = change
            found[-1].append(_Piece(start, stop, work, start == begin))
    return found


def _runs(lump: Sequence[_Piece], free: int) -> list[list[_Piece]]:
    """Return the pieces in lists, of which each but the first begins with work that the GPU had to wait to be
    launched."""
    runs = list[list[_Piece]]()
    for piece in lump:
        if not runs or (piece.first and (piece.work.launched or 0) > free):
            runs.append([])
        runs[-1].append(piece)
        free = piece.end
    return runs


def _place(
    runs: Sequence[Sequence[_Piece]], free: int, stream: str, host: _Host, made: list[_Made],
    last: dict[GpuWork, _Made], rank: int,
) -> None:  # fmt: skip
    """Add the intervals of pieces: the time in which the stream neither computes nor waits (launches, copies), then the
    computation or call."""
    part = [piece for run in runs for piece in run]
    first = part[0].work
    waits = first.waits if part[0].first else []
    launched = first.launched if part[0].first else None
    ready = max([free, *(other.end for other in waits)])
    after: list[_Made | GpuWork] = [*waits]
    if launched and (launched > ready or waits or first.call):
        after.append(host.mark(launched))
        ready = max(ready, launched)
    computing = sum(piece.end - piece.begin for piece in part if piece.work.kind == COMPUTE)
    idle = max(0, part[0].begin - ready) + sum(run[-1].end - run[0].begin for run in runs) - computing
    begin = part[0].begin - max(0, part[0].begin - ready)
    if idle:
        made.append(_Made(begin, f"gaps of rank {rank}", stream, idle, "copy", after))
        after = [made[-1]]
    if computing:
        name = first.call.what.collective if first.call else f"kernels of rank {rank}"
        made.append(_Made(max(begin, part[0].begin), name, stream, computing, COMPUTE, after, first.call))
    for piece in part if idle or computing else ():
        last[piece.work] = made[-1]


class _Host:
    """The time line of the host: its launches that matter, and its waits for the GPU."""

    def __init__(self, works: Sequence[GpuWork], syncs: Iterable[tuple[int, int]], rank: int):
        self.rank = rank
        self.marks: dict[int, _Made] = {}
        ends = sorted((work.end, at) for at, work in enumerate(works))
        self.busy = ends[-1][0]
        launches = sorted(work.launched or 0 for work in works)
        self.syncs = list[tuple[int, GpuWork]]()
        for begin, end in sorted(syncs):
            place = bisect.bisect(ends, (end, len(works))) - 1
            if place < 0 or ends[place][0] <= begin or (works[ends[place][1]].launched or 0) > begin:
                continue
            if bisect.bisect(launches, begin) == bisect.bisect(launches, ends[place][0]):  # no other thread launches
                self.syncs.append((begin, works[ends[place][1]]))

    def mark(self, at: int) -> _Made:
        """Return the interval of the host that ends at `at`, when it launches."""
        return self.marks.setdefault(at, _Made(0, f"host of rank {self.rank}", HOST, 0, HOST, []))

    def made(self, end: int) -> list[_Made]:
        """Return the host's intervals up to the `end` of the step."""
        if end > self.busy:  # else the step ends with the GPU's work
            self.mark(end)
        found, now, after = list[_Made](), 0, list[_Made | GpuWork]()
        changes = [(at, None) for at in self.marks] + [(at, work) for at, work in self.syncs if at < end]
        for at, work in sorted(changes, key=lambda change: change[0]):
            one = self.mark(at) if work is None else _Made(0, f"host of rank {self.rank}", HOST, 0, HOST, [])
            one.begin, one.took, one.after, after = now, max(0, at - now), after, []
            found.append(one)
            now = max(now, at)
            if work is not None:
                now, after = max(now, work.end), [work]
        return found
