"""A point as a trace: its collectives, computations, transfers and links as lanes of slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import simcoll
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NONE
from simcoll.errors import InputError
from simcoll.explanation.explained_run import unheld_messages
from simcoll.explanation.trace import FAULTS, Arrow, Played, Slice, Spot, Trace, Track, Tracks
from simcoll.prediction.predict import predict
from simcoll.prediction.predictions import LAUNCHING, Prediction, StepPrediction
from simcoll.scenario.loading import Point
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import names
from simcoll.units import exact_us

_KERNELS: Final = names.spellings(names.COLLECTIVES, lambda row: row.kernel)
_RECORDED: Final = names.spellings(names.COLLECTIVES, lambda row: row.torch)
_TYPES: Final = {row.name: row for row in names.DTYPES}
_OPERATORS: Final = {"sum": "Sum", "product": "Prod", "min": "MinMax", "max": "MinMax", "avg": "PreMulSum"}
_PARTS_IN: Final = frozenset({"all_gather", "gather"})  # a rank gives its part of what the size counts
_PARTS_OUT: Final = frozenset({"reduce_scatter", "scatter"})  # a rank gets its part of it


class Ran(NamedTuple):
    """A collective that the `ranks` ran: `nbytes` as nccl-tests counts it, `algorithm` and `protocol` as NCCL calls
    them, or simcoll where NCCL has none; no protocol is `none`."""

    collective: str
    op: str
    dtype: str
    itemsize: int
    nbytes: int
    ranks: Sequence[int]
    algorithm: str
    protocol: str = "none"


def kernel_name(ran: Ran) -> str:
    """The name of NCCL's kernel: the collective, reduction and type, algorithm and protocol.

    >>> kernel_name(Ran("all_reduce", "sum", "float32", 4, 64, [0, 1], "ring", "LL"))
    'ncclDevKernel_AllReduce_Sum_f32_RING_LL'
    """
    kernel = _KERNELS.get(ran.collective, "SendRecv")
    parts = ["ncclDevKernel", kernel]
    if kernel.endswith("Reduce") or kernel == "ReduceScatter":
        parts += [_OPERATORS.get(ran.op, ran.op.title()), _TYPES[ran.dtype].kernel]
    if kernel != "SendRecv":
        parts += [_plain(ran.algorithm).upper()] + ([ran.protocol.upper()] if ran.protocol != "none" else [])
    return "_".join(parts)


def _plain(algorithm: str) -> str:
    """Strip the options off an algorithm."""
    return algorithm.partition("(")[0].strip()


def arguments(ran: Ran, rank: int) -> dict[str, Any]:
    """Arguments that torch.profiler records of a collective on one rank (`record_param_comms`); elements, not bytes."""
    elements, n = ran.nbytes // ran.itemsize, len(ran.ranks)
    return {
        "Collective name": _RECORDED.get(ran.collective, ran.collective),
        "In msg nelems": elements // n if ran.collective in _PARTS_IN else elements,
        "Out msg nelems": elements // n if ran.collective in _PARTS_OUT else elements,
        "Group size": n,
        "dtype": _TYPES[ran.dtype].torch,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": ",".join(map(str, ran.ranks)),
        "Process Group Description": "simcoll",
        "Process Group Ranks": str([int(member) for member in ran.ranks]),
        "Rank": rank,
        "collective": ran.collective,
        "algorithm": ran.algorithm,
        "protocol": ran.protocol,
        "size_bytes": ran.nbytes,
    }


MOST: Final = 300_000  # transfers and links that they cross: more take long to write, and viewers long to open


def trace_of(point: Point, transfers: bool = True) -> Trace:
    """Everything that happens in a point, or without `transfers` what streams do; one with replications is run
    undisturbed.

    Raises InputError for a point that is too large or that is several calls, and what a simulation raises.
    """
    return of_prediction(predict(point), transfers)


def crossings(program: Program) -> int:
    """Transfers, and links that they cross."""
    return len(program) + int(np.diff(program.routes.hop)[program.way].sum())


def _check(prediction: Prediction) -> None:
    """Raise InputError for a point of too many transfers, before its program is made where the run did without one."""
    messages = unheld_messages(prediction)
    if (slices := messages if messages > MOST else crossings(prediction.program)) > MOST:
        mistake = f"a trace of {slices:,} transfers and links crossed is too large to look at ({MOST:,} at most)"
        raise InputError(mistake, "take fewer ranks, a smaller size or larger chunks")


def of_prediction(prediction: Prediction, transfers: bool = True) -> Trace:
    """On each rank a track for each stream of its plan, and below them what its channels send and receive.

    Of a call as NCCL makes it one channel is there, whose transfers stand for those of all. Raises InputError for a
    point that is too large or that is several calls.
    """
    scenario, n = prediction.scenario, prediction.n
    if not scenario.workload and scenario.measure.buckets > 1 and not scenario.measure.async_op:
        raise InputError("buckets one after another are several calls", "trace one: --set measure.buckets=1")
    if transfers:
        _check(prediction)
    program, timeline, count = prediction.program, prediction.timeline, _counts(prediction)
    names = rank_names(prediction)
    names += [f"switch {number}" for number in range(len(names), program.schedule.participants)]
    shift = prediction.waited_ps + prediction.launch_ps
    about = {
        "sharing": prediction.sharing,
        "engine": prediction.engine,
        "wire_bytes": prediction.totals.wire_bytes,
        **prediction.columns,
    }
    if isinstance(prediction, StepPrediction):
        owners = _owners(prediction, program)
        tracks, behind = _streams(prediction, names)
    else:
        owners, behind = [""] * (int(program.channel.max(initial=-1)) + 1), []
        about |= {"algorithm": prediction.algorithm, "protocol": prediction.protocol, "channels_alike": count}
        tracks = _kernels(prediction, names)
    played = Played(program, timeline, names, owners, shift, count)
    about, struck = _about(scenario, prediction.time_ps, about), _faults(prediction)
    if not transfers:
        return Trace([*tracks, *struck], behind, [], about, names[:n])
    drawn = Tracks(played, tracks)
    return Trace([*drawn.tracks, *struck], [*drawn.arrows, *behind], drawn.counters, about, names[:n])


def rank_names(prediction: Prediction) -> list[str]:
    """Return the name of each rank, and of each switch that reduces, with its device."""
    n = prediction.n
    return [f"{'rank' if p < n else 'switch'} {p} ({device})" for p, device in enumerate(prediction.devices)]


def _faults(prediction: Prediction) -> list[Track]:
    """A track for each fault, with the times in which it acts, up to the end of the run."""
    tracks: dict[tuple[str, str], Track] = {}
    for window in prediction.fault_windows:
        if window.begin < prediction.time_ps:
            track = tracks.setdefault((window.link, window.effect), Track(FAULTS, window.link))
            args = {"link": window.link, "kind": window.kind}
            track.add(Slice(window.begin, min(window.end, prediction.time_ps), window.effect, "fault", args))
    return list(tracks.values())


def _counts(prediction: Prediction) -> int | NDArray[Any]:
    """The number of channels that all transfers of a call stand for, or each transfer of a joined plan."""
    if not isinstance(prediction, StepPrediction):
        return prediction.planned[0].lowered.count
    called = [prediction.calls[work.call, work.ranks] for work in prediction.plan.works if work.call]
    counts, lengths = (
        [call.lowered.count for call in called],
        [len(call.bound.program) for call in called if call.bound],
    )
    return np.repeat(np.array(counts, np.int64), lengths)


def _about(scenario: Scenario, time_ps: int, more: dict[str, Any]) -> dict[str, Any]:
    return {
        "simcoll": simcoll.__version__,
        "scenario": scenario.name,
        "topology": scenario.topology.title,
        "collective": scenario.collective,
        "size_bytes": scenario.nbytes,
        "profile": scenario.profile,
        "seed": scenario.seed,
        "time_us": exact_us(time_ps),
        **more,
    }


def _kernels(prediction: Prediction, names: Sequence[str]) -> list[Track]:
    """A track for each rank of a call by itself: it launches when it comes and the host has time, and its kernel runs
    until its last transfer is through."""
    scenario, program, timeline = prediction.scenario, prediction.program, prediction.timeline
    n, waited, launch = prediction.n, prediction.waited_ps, prediction.waited_ps + prediction.launch_ps
    done = program.arrivals.copy()
    np.maximum.at(done, program.src, timeline.sent)
    np.maximum.at(done, program.dst, np.maximum(timeline.end, timeline.complete))
    tracks = [Track(names[rank], "stream") for rank in range(n)]
    for group in scenario.subgroups or (tuple(range(n)),):
        ran = _ran(scenario, scenario.collective, scenario.nbytes, group, prediction.algorithm, prediction.protocol)
        for rank in group:
            came = int(program.arrivals[rank])
            if waited:
                tracks[rank].add(Slice(came, came + waited, "host", "host", {}))
            if prediction.launch_ps:
                tracks[rank].add(Slice(came + waited, came + launch, "launch", "launch", {}))
            kernel = kernel_name(ran), "kernel", arguments(ran, rank)
            tracks[rank].add(Slice(came + launch, int(done[rank]) + launch, *kernel))
    return tracks


def _ran(scenario: Scenario, collective: str, nbytes: int, ranks: Sequence[int], algorithm: str, protocol: str) -> Ran:
    """A collective with the algorithm and the protocol that ran it."""
    return Ran(collective, scenario.op, scenario.dtype, scenario.itemsize, nbytes, ranks, algorithm, protocol)


def _streams(prediction: StepPrediction, names: Sequence[str]) -> tuple[list[Track], list[Arrow]]:
    """A track for each stream of each rank of a joined plan, and arrows between tasks that wait for one another."""
    plan, tasks, timeline = prediction.plan, prediction.tasks, prediction.timeline
    streams = {
        (rank, stream): Track(names[rank], stream)
        for rank in range(plan.n)
        for stream in dict.fromkeys(work.stream for work in plan.works if rank in work.ranks)
    }
    number = {key: place for place, key in enumerate(streams)}
    spots = []
    times = zip(timeline.opened.tolist(), timeline.done.tolist(), strict=True)
    tasks_at = zip(tasks.rank.tolist(), _works(prediction), tasks.kind.tolist(), times, strict=True)
    for rank, work, kind, (opened, done) in tasks_at:
        key = rank, plan.works[work].stream
        task = Slice(opened, done, *_doing(prediction, work, rank, kind))
        spots.append(Spot(number[key], streams[key].add(task)))
    return list(streams.values()), _behind(prediction.program, spots)


def _owners(prediction: StepPrediction, program: Program) -> list[str]:
    """The stream that each channel of a joined plan belongs to; none of a switch's."""
    assert program.tasks
    works = _works(prediction)
    return [
        "" if task == NONE else prediction.plan.works[works[task]].stream for task in program.tasks.channel.tolist()
    ]


def _works(prediction: StepPrediction) -> list[int]:
    """The number of the plan's operation that each task is of: a call may be two, its launch and itself."""
    works: list[int] = []
    for number, work in enumerate(prediction.plan.works):
        launched = prediction.tasks.kind[len(works)] == LAUNCHING
        works += [number] * (len(work.ranks) * (2 if launched else 1))
    return works


def _doing(prediction: StepPrediction, number: int, rank: int, kind: int) -> tuple[str, str, dict[str, Any]]:
    """Name, kind and arguments of a task."""
    work, call = prediction.plan.works[number], prediction.plan.works[number].call
    if kind == LAUNCHING:
        return f"launch {work.name}", "launch", {}
    if call is None:
        return work.name, "compute", {}
    lowered, scenario = prediction.calls[call, work.ranks].lowered, prediction.scenario
    ran = _ran(scenario, call.collective, call.nbytes, work.ranks, lowered.algorithm, lowered.protocol)
    return kernel_name(ran), "kernel", {**arguments(ran, rank), "operation": work.name}


def _behind(program: Program, spots: list[Spot]) -> list[Arrow]:
    """Return arrows from task to task, where one waits for another on a different track."""
    assert program.tasks
    first, before = program.tasks.first.tolist(), program.tasks.before.tolist()
    return [
        Arrow(spots[awaited], spot, "behind")
        for task, spot in enumerate(spots)
        for awaited in before[first[task] : first[task + 1]]
        if spots[awaited].track != spot.track
    ]
