"""Read traces of torch.profiler (Kineto): a JSON file a rank, with the work of its host and of its GPU.

The step is what the host launches within a `ProfilerStep`; it lasts from the end of all that was launched before to the
end of its own work, so that the steps of a trace follow one another without a gap. A file without steps is one step.

Source of the format: pytorch/kineto (output_json.cpp), PyTorch's ParamCommsUtils.hpp.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from simcoll.config import input_files
from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError, visible
from simcoll.formats.recordings.events import Event, Group, Recording, What
from simcoll.formats.recordings.flight_recorder import collective_of
from simcoll.formats.recordings.gpu_timeline import COMPUTE, EventWait, GpuWork, intervals
from simcoll.schedule.names import COLLECTIVES, DTYPES, names_by

_CURE: Final = "give a trace as torch.profiler exports it (JSON)"
_KINDS: Final = dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), "copy") | {"kernel": COMPUTE}
_CALLS: Final = ("cuda_runtime", "cuda_driver", "runtime")
_LONGEST: Final = 10**18  # ns, a third of a century
_NCCL: Final = re.compile(
    r"(?:nccl|rccl|msccl)\w*?(?:_(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv))?_", re.I
)
_ROOTS: Final = {"c10d::broadcast_": 2, "c10d::reduce_": 3, "c10d::gather_": 3, "c10d::scatter_": 3}  # input: the root
_STEP: Final = re.compile(r"ProfilerStep#(\d+)$")
_KERNELS: Final = names_by(COLLECTIVES, lambda row: [row.kernel]) | {"SendRecv": "send_recv"}
_TYPES: Final = {
    spelling: row.torch
    for row in DTYPES
    for spelling in (row.torch, row.nccl_tests, f"c10::{row.torch}", *row.measured)
} | {"long int": "Long", "signed char": "Char", "unsigned char": "Byte"}


def looks(data: bytes) -> bool:
    """Return whether bytes are JSON with the events of a trace viewer."""
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    return (head.startswith(b"{") and b'"traceEvents"' in data) or (head.startswith(b"[") and b'"ph"' in head)


def read(data: bytes, source: str, step: str | None, notes: ImportLog) -> Recording:
    """Return the recording of a trace, with the intervals of the asked `step`: its number, `all`, or None for a usual
    one. Raises InputError for a damaged trace, and one without GPU work."""
    text = data.decode("utf-8-sig", "replace")
    if text.lstrip().startswith("["):  # of old releases
        text = f'{{"traceEvents":{text}}}'
    trace = input_files.json_mapping(text, source, _CURE)
    try:
        return _Reader(source, trace, notes).recording(step)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        problem = f"{source}: a damaged trace: {visible(f'{type(error).__name__} {error}')[:200]}"
        raise InputError(problem, "copy the file once more") from None


class _Reader:
    def __init__(self, source: str, trace: Mapping[str, Any], notes: ImportLog):
        self.source, self.notes = source, notes
        about = trace.get("distributedInfo") or {}
        self.world = _whole(about.get("world_size") or 0)
        self.rank = _whole(about["rank"]) if "rank" in about else None
        self.configured = {str(each.get("pg_name")): each.get("ranks") for each in about.get("pg_config") or ()}
        self.base = _whole(trace.get("baseTimeNanoseconds") or 0)
        self.device = next((str(each.get("name")) for each in trace.get("deviceProperties") or ()), "")
        self.works, self.steps = list[GpuWork](), dict[int, tuple[int, int]]()
        self.groups, self.counted = dict[tuple[str, str], Group](), Counter[Group]()
        self.unsized = 0
        events = trace["traceEvents"]
        if not isinstance(events, list):
            raise TypeError("traceEvents are no list")
        rows = defaultdict[str, list[Mapping[str, Any]]](list)
        for number, event in enumerate(events):
            if not isinstance(event, dict):
                raise TypeError(f"event {number} is no mapping")
            if event.get("ph") == "X":
                try:
                    hash((_span(event), _args(event).get("correlation"), event.get("tid")))
                except (TypeError, ValueError, KeyError, OverflowError) as error:
                    raise ValueError(f"in event {number}: {error}") from None
                rows[str(event.get("cat", "")).lower()].append(event)
        self._host(rows)
        self._gpu([event for kind in _KINDS for event in rows[kind]])

    def _host(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Take in what the host did: launches, steps, calls of NCCL, waits."""
        self.launches = dict[int, tuple[int, int, object]]()
        self.calls = defaultdict[object, list[tuple[int, int, Mapping[str, Any]]]](list)
        self.waits, self.syncs, asked = list[EventWait](), list[tuple[int, int]](), list[tuple[int, object]]()
        for kind in ("user_annotation", "cpu_op", "operator"):
            for event in rows[kind]:
                name = str(event["name"])
                if found := _STEP.match(name):
                    self.steps[int(found[1])] = _span(event)
                elif name.startswith("nccl:") or name == "record_param_comms" or name in _ROOTS:
                    self.calls[event.get("tid")].append((*_span(event), event))
        for calls in self.calls.values():
            calls.sort(key=lambda call: call[:2])
        for event in (event for kind in _CALLS for event in rows[kind]):
            name, span, thread = str(event["name"]), _span(event), event.get("tid")
            if "correlation" in _args(event):
                self.launches[_whole(_args(event)["correlation"])] = (*span, thread)
            if "StreamWaitEvent" in name and not self._within(span[0], thread):
                asked.append((span[0], thread))
            elif "Synchronize" in name or "Memcpy" in name:
                self.syncs.append(span)
        for event in rows["cuda_sync"]:
            args = _args(event)
            recorded = self.launches.get(args.get("wait_on_cuda_event_record_corr_id", -1))
            if recorded and "stream" in args and "wait_on_stream" in args:
                self.waits.append(
                    EventWait(_span(event)[0], recorded[0], str(args["stream"]), str(args["wait_on_stream"]))
                )
        self.waits = self.waits or [EventWait(at, at) for at, _ in asked]

    def _within(self, at: int, thread: object) -> list[Mapping[str, Any]]:
        """Return the calls of NCCL that a thread of the host made at a time, the innermost last."""
        calls = self.calls.get(thread, [])
        near = calls[
            max(0, bisect(calls, at, key=lambda call: call[0]) - 4) : bisect(calls, at, key=lambda call: call[0])
        ]
        return [event for _, end, event in near if at <= end]

    def _gpu(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take in the kernels and copies."""
        for event in sorted(rows, key=lambda event: _ns(event["ts"])):
            args, name = _args(event), str(event["name"])
            begin, end = _span(event)
            launch = self.launches.get(args.get("correlation", -1))
            kind = _KINDS[str(event["cat"]).lower()]
            stream = str(args.get("stream", event.get("tid")))
            found = _NCCL.match(name) if kind == COMPUTE else None
            work = GpuWork(stream, begin, max(end, begin + 1), launch[0] if launch else None, kind)
            if found:
                around = self._within(launch[0], launch[2]) if launch else []
                work.call = self._call(args, around, found[1] or "", work)
            self.works.append(work)
        if not self.works:
            raise InputError(f"{self.source}: a trace without work of a GPU", "record it with ProfilerActivity.CUDA")

    def _call(self, args: Mapping[str, Any], around: Sequence[Mapping[str, Any]], kernel: str, work: GpuWork) -> Event:
        """Return the call of a kernel, from its arguments, else from what the host did around its launch."""
        named = next((_args(event) for event in reversed(around) if "Collective name" in _args(event)), {})
        args = {**named, **args}
        if "Collective name" in args:
            given, got = (_whole(args.get(f"{way} msg nelems") or 0) for way in ("In", "Out"))
            what = What(
                collective_of(str(args["Collective name"])), ((given,),), ((got,),), _types([args.get("dtype")])
            )
        else:
            titles = [event for event in around if str(event["name"]).startswith("nccl:")]
            name = collective_of(str(titles[-1]["name"])[5:]) if titles else _KERNELS.get(kernel, "send_recv")
            dims = _args(titles[-1]).get("Input Dims") if titles else None
            shapes = tuple(tuple(_whole(size) for size in shape) for shape in dims or () if shape)
            what = What(name, shapes, (), _types(_args(titles[-1]).get("Input type") or ()) if shapes else ())
        group = self._group(args, work.stream)
        n = len(group.ranks) or group.n
        if what.collective in ("send", "recv", "coalesced") or what.collective not in names_by(
            COLLECTIVES, lambda row: [row.name]
        ):
            what = What("send_recv")
        elif what.collective == "reduce_scatter" and not what.outputs:
            what = what._replace(outputs=tuple((-(-size // (n or 1)),) for shape in what.inputs for size in shape[:1]))
        what = what._replace(root=next((root for root in map(_root, around) if root is not None), None))
        self.unsized += not what.nbytes(n or 1) and what.collective != "barrier"
        self.counted[group] += 1
        created = self.base + (work.begin if work.launched is None else work.launched)
        took, sequence = (work.end - work.begin) / 1e3, _whole(args.get("Seq") or 0)
        times = created, self.base + work.begin, self.base + work.end, took
        return Event(group, sequence or self.counted[group], what, "", True, *times)

    def _group(self, args: Mapping[str, Any], stream: str) -> Group:
        """Return the group of a call; without names, a group of all ranks for each stream."""
        name, about = (
            str(args.get("Process Group Name", f"stream {stream}")),
            str(args.get("Process Group Description", "")),
        )
        if (name, about) not in self.groups:
            n = _whole(args.get("Group size") or 0)
            text = str(args.get("Process Group Ranks", ""))
            ranks = [] if "..." in text else [int(rank) for rank in re.findall(r"\d+", text)]
            start, stride = args.get("Global rank start"), args.get("Global rank stride")
            if not ranks and start is not None and stride and n <= 1 << 20:
                ranks = [_whole(start) + i * _whole(stride) for i in range(n)]
            ranks = ranks or [_whole(rank) for rank in self.configured.get(name) or ()]
            if not ranks and self.world > 1 and n in (0, self.world):
                ranks = [*range(min(self.world, 1 << 20))]
                self.notes.assume(f"calls on {name} are of all {self.world} ranks: the trace names no group")
            self.groups[name, about] = Group(name, about, tuple(sorted({*ranks})), n)
        return self.groups[name, about]

    def recording(self, asked: str | None) -> Recording:
        """Return the recording, with the intervals of a step."""
        works, begin, end = self.works, min(work.begin for work in self.works), max(work.end for work in self.works)
        if self.steps:
            begin, end = self._window(asked)
            works = [
                work for work in self.works if begin <= (work.begin if work.launched is None else work.launched) < end
            ]
            if not works:
                raise InputError(f"{self.source}: the step launches no work of a GPU", "choose another: --set step=N")
            earlier = [work.end for work in self.works if work.launched is not None and work.launched < begin]
            begin = max([begin, *(at for at in earlier if at < max(work.end for work in works))])
        last = max([end, *(work.end for work in works)]) - begin
        busy = Counter[str]()
        for work in works:
            busy[work.stream] += 0 if work.call or work.kind != COMPUTE else work.end - work.begin
        busiest = max(busy, key=lambda stream: busy[stream])
        named = {work.stream: COMPUTE if work.stream == busiest else f"stream {work.stream}" for work in works}
        moved = [
            GpuWork(
                named[work.stream], max(0, work.begin - begin), work.end - begin,
                None if work.launched is None else max(0, work.launched - begin), work.kind, work.call,
            )
            for work in works if work.end > begin
        ]  # fmt: skip
        waits = [
            EventWait(at - begin, recorded - begin, *(name and named.get(name, "") for name in streams))
            for at, recorded, *streams in self.waits if begin <= at < begin + last
        ]  # fmt: skip
        syncs = [(low - begin, high - begin) for low, high in self.syncs if begin <= low and high <= begin + last]
        found = intervals(moved, waits, syncs, last if end > begin + last - 1 else max(0, end - begin), self.rank or 0)
        if self.unsized:
            text = f"{self.unsized} calls have no size in the trace: they keep their measured times on every machine"
            self.notes.warn(text)
        events = [work.call for work in self.works if work.call]
        return Recording(self.source, self.rank, events, intervals=found, world=max(self.world, 1))

    def _window(self, asked: str | None) -> tuple[int, int]:
        """Return when the asked step begins and ends."""
        if asked == "all":
            begin, end = min(begin for begin, _ in self.steps.values()), max(end for _, end in self.steps.values())
            self.notes.read.append(f"{self.source}: {len(self.steps)} steps, {(end - begin) / 1e6:.3f} ms together")
            return begin, end
        usual = sorted(self.steps)[: max(1, len(self.steps) - 1)]  # the profiler stops within the last one
        lengths = {number: self.steps[number][1] - self.steps[number][0] for number in usual}
        number = min(usual, key=lambda number: (abs(lengths[number] - statistics.median_low(lengths.values())), number))
        if asked is not None:
            if not asked.isdigit() or int(asked) not in self.steps:
                listed = ", ".join(map(str, sorted(self.steps)[:20]))
                raise InputError(f"{self.source}: no step {visible(asked)}; it has {listed}", "choose one, or step=all")
            number = int(asked)
        begin, end = self.steps[number]
        self.notes.read.append(
            f"{self.source}: ProfilerStep#{number} of {(end - begin) / 1e6:.3f} ms, one of {len(self.steps)}"
        )
        return begin, end


def _root(host: Mapping[str, Any]) -> int | None:
    """Return the root among the inputs of an operation of the host, which the profiler records if it records shapes."""
    at, inputs = _ROOTS.get(str(host["name"])), _args(host).get("Concrete Inputs") or ()
    return int(inputs[at]) if at is not None and len(inputs) > at and inputs[at] else None


def _types(given: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_TYPES.get(str(name), str(name)) for name in given if name))[:1]


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event.get("args") or {}
    if not isinstance(args, dict):
        raise TypeError("args are no mapping")
    return args


def _span(event: Mapping[str, Any]) -> tuple[int, int]:
    begin = _ns(event["ts"])
    return begin, begin + max(0, _ns(event.get("dur") or 0))


def _ns(us: Any) -> int:
    ns = us * 1000 if type(us) is int else round(float(us) * 1000)
    if abs(ns) > 4 * _LONGEST:
        raise ValueError("a time beyond all clocks")
    return int(ns)


def _whole(value: Any) -> int:
    if type(value) is not int or not -1 <= value < 1 << 62:
        raise TypeError(f"{str(value)[:40]} where a whole number is expected")
    return value
