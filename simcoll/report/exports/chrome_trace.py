"""Write traces as Chrome's JSON, which Perfetto (https://ui.perfetto.dev), chrome://tracing and HTA read.

Viewers count in nanoseconds, and Perfetto rounds start (`ts`) and duration (`dur`) separately. Slices that touch could
then overlap by 1 ns, and Perfetto drops all but the first of overlapping slices. So this module rounds both ends of a
slice to the nearest nanosecond. The arguments `begin_ps` and `end_ps` keep the picoseconds.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

from simcoll.explanation.viewer_trace import Slice, Trace, Track

_SLICE, _LEAVES, _COMES, _COUNTS = range(4)  # order of events at one instant: an arrow's end after its begin
ON_GPU: Final = ("kernel", "compute")
FIRST_STREAM: Final = 7  # number of the stream on which PyTorch computes
IN_USE: Final = "bandwidth in use"  # the process of the counters


def dump(trace: Trace, rank: int | None = None) -> str:
    """Return a trace as one JSON object, an event per line in order of time; equal traces give equal texts. With
    `rank`, only the work of this rank's GPU is included, in the form of torch's profiler (Kineto)."""
    trace = trace if rank is None else _of_rank(trace, rank)
    pids = {name: number for number, name in enumerate(dict.fromkeys(t.process for t in trace.tracks), start=1)}
    first = len(pids) + 2  # unused as thread numbers: 0 is the kernel's, a process's number its main thread's
    tids = [(pids[track.process], number) for number, track in enumerate(trace.tracks, start=first)]
    named = list(_names(trace, pids, tids))
    events = sorted(_events(trace, tids, pids), key=lambda event: event[:2])
    lines = ",\n".join([*named, *(text for *_, text in events)])
    head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns", "otherData": trace.about}
    if rank is not None:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": len(trace.ranks)}
    return f'{json.dumps(head)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'


def _of_rank(trace: Trace, rank: int) -> Trace:
    """Return a trace of one rank's streams only; each kernel gets a stream and a number, as in torch's traces."""
    tracks, number = list[Track](), itertools.count(1)
    for track in trace.tracks:
        if track.process == trace.ranks[rank] and any(span.kind in ON_GPU for span in track.slices):
            of = {"stream": FIRST_STREAM + len(tracks), "device": rank}
            kernels = [
                span._replace(kind="kernel", args={**span.args, **of, "correlation": next(number)})
                for span in track.slices
                if span.kind in ON_GPU
            ]
            tracks.append(Track(track.process, track.name, kernels))
    step = Slice(0, trace.end_ps, "ProfilerStep#1", "user_annotation", {})  # as torch's profiler marks a step
    return Trace([Track(trace.ranks[rank], "host", [step]), *tracks], [], [], trace.about, trace.ranks)


def packed(text: str) -> bytes:
    """Return a text compressed with gzip, without a time stamp: equal texts give equal bytes."""
    return gzip.compress(text.encode(), compresslevel=6, mtime=0)


def _names(trace: Trace, pids: dict[str, int], tids: list[tuple[int, int]]) -> Iterator[str]:
    processes = [*pids.items(), *([(IN_USE, len(pids) + 1)] if trace.counters else [])]
    named = [("process", pid, 0, name, pid) for name, pid in processes]
    named += [("thread", *ids, track.name, ids[1]) for track, ids in zip(trace.tracks, tids, strict=True)]
    for kind, pid, tid, name, place in named:
        for field, args in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": place})):
            yield json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": field, "args": args})


def _events(trace: Trace, tids: list[tuple[int, int]], pids: dict[str, int]) -> Iterator[tuple[int, int, str]]:
    """Yield each event as time, order among events of equal time, and JSON text."""
    for track, (pid, tid) in zip(trace.tracks, tids, strict=True):
        for span in track.slices:
            begin, end = _ns(span.begin), _ns(span.end)
            place = f'"pid":{pid},"tid":{tid},"ts":{_us(begin)},"dur":{_us(end - begin)}'
            args = json.dumps({**span.args, "begin_ps": span.begin, "end_ps": span.end})
            label = f'"name":{json.dumps(span.name)},"cat":"{span.kind}","args":{args}'
            yield span.begin, _SLICE, f'{{"ph":"X",{place},{label}}}'
    for number, arrow in enumerate(trace.arrows):
        for spot, order, kind in ((arrow.source, _LEAVES, '"s"'), (arrow.target, _COMES, '"f","bp":"e"')):
            pid, tid = tids[spot.track]  # both ends at the begin of a slice: viewers attach them to the slice there
            place = f'"pid":{pid},"tid":{tid},"ts":{_us(_ns(spot.begin))}'
            yield spot.begin, order, f'{{"ph":{kind},{place},"id":{number + 1},"name":"{arrow.name}","cat":"flow"}}'
    for counter in trace.counters:
        for time, value in counter.points:
            place = f'"pid":{len(pids) + 1},"ts":{_us(_ns(time))}'
            label = f'"name":{json.dumps(counter.name)},"args":{{"GB/s":{value}}}'
            yield time, _COUNTS, f'{{"ph":"C",{place},{label}}}'


def _ns(ps: int) -> int:
    return (ps + 500) // 1000


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
