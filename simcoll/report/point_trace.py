"""Make the trace of a point: its collectives, computations, transfers and links as lanes of slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import simcoll
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NONE
from simcoll.errors import InputError
from simcoll.explanation.explained_run import unheld_messages, works_of_tasks
from simcoll.explanation.viewer_trace import FAULTS, Arrow, Slice, Spot, Trace, Track, Tracks
from simcoll.prediction.predict import predict
from simcoll.prediction.predictions import LAUNCHING, Prediction, StepPrediction
from simcoll.prediction.training_step import TrainingPrediction
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import names
from simcoll.units import exact_us
from simcoll.workload.training_plan import PARTS

_KERNELS: Final = names.spellings(names.COLLECTIVES, lambda row: row.kernel)
_RECORDED: Final = names.spellings(names.COLLECTIVES, lambda row: row.torch)
_TYPES: Final = {row.name: row for row in names.DTYPES}
_OPERATORS: Final = {"sum": "Sum", "product": "Prod", "min": "MinMax", "max": "MinMax", "avg": "PreMulSum"}
_PARTS_IN: Final = frozenset({"all_gather", "gather"})  # a rank sends an n-th of the size
_PARTS_OUT: Final = frozenset({"reduce_scatter", "scatter"})  # a rank receives an n-th of the size


class Ran(NamedTuple):
    """A collective that `ranks` ran. `nbytes` is its size as nccl-tests counts sizes. `algorithm` and `protocol` have
    NCCL's names, or simcoll's where NCCL has none; a call without a protocol has `none`."""

    collective: str
    op: str
    dtype: str
    itemsize: int
    nbytes: int
    ranks: Sequence[int]
    algorithm: str
    protocol: str = "none"


def kernel_name(ran: Ran) -> str:
    """Return the name of NCCL's kernel for a call: collective, operator and type, algorithm and protocol.

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


def _measured_kernel(collective: str) -> str:
    """Return the name of a kernel whose measured time a recording has."""
    return f"ncclDevKernel_{_KERNELS.get(collective, 'SendRecv')}"


def _plain(algorithm: str) -> str:
    """Return the name of an algorithm without its options."""
    return algorithm.partition("(")[0].strip()


def arguments(ran: Ran, rank: int) -> dict[str, Any]:
    """Return what torch.profiler records for a collective on one rank; sizes are in elements, not in bytes."""
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


MOST: Final = 300_000  # transfers and links they cross: more take long to write and to open in a viewer


def trace_of(point: Point, transfers: bool = True) -> Trace:
    """Return the trace of a point; without `transfers` only the streams of ranks. Random disturbances are left out.

    Raises InputError for a point that is too large or has several calls, and the errors of the simulation.
    """
    return of_prediction(predict(point), transfers)


def crossings(program: Program) -> int:
    """Return the number of transfers plus the number of links that they cross, summed over transfers."""
    return len(program) + int(np.diff(program.routes.hop)[program.way].sum())


def _check(prediction: Prediction) -> None:
    """Raise InputError for a point with too many transfers to draw, if possible before its program is built."""
    messages = unheld_messages(prediction)
    if (slices := messages if messages > MOST else crossings(prediction.program)) > MOST:
        mistake = f"a trace of {slices:,} transfers and link crossings is too large ({MOST:,} at most)"
        raise InputError(mistake, "take fewer ranks, a smaller size or larger chunks")


def of_prediction(prediction: Prediction, transfers: bool = True) -> Trace:
    """Return the trace of a prediction: a track for each stream of each rank; below, its channels' sends and receives.

    A call of NCCL is drawn as one channel, whose transfers stand for all channels. Raises InputError for a point that
    is too large or has several calls.
    """
    scenario, n = prediction.scenario, prediction.n
    if isinstance(prediction, TrainingPrediction):
        return _of_stages(prediction)
    if not scenario.workload and scenario.measure.buckets > 1 and not scenario.measure.async_op:
        raise InputError("a trace shows one call, not several buckets", "trace one: --set measure.buckets=1")
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
        **prediction.facts,
    }
    if isinstance(prediction, StepPrediction):
        about |= {"protocol": prediction.protocol} if prediction.planned else {}
        owners = _owners(prediction, program)
        tracks, behind = _streams(prediction, names)
    else:
        owners, behind = [""] * (int(program.channel.max(initial=-1)) + 1), []
        about |= {"algorithm": prediction.algorithm, "protocol": prediction.protocol, "channels_alike": count}
        tracks = _kernels(prediction, names)
    about, struck = _about(scenario, prediction.time_ps, about), _faults(prediction)
    if not transfers:
        return Trace([*tracks, *struck], behind, [], about, names[:n])
    drawn = Tracks(program, timeline, names, owners, shift, count, tracks)
    return Trace([*drawn.tracks, *struck], [*drawn.arrows, *behind], drawn.counters, about, names[:n])


def _of_stages(prediction: TrainingPrediction) -> Trace:
    """Return the trace of a training step: the streams of one rank of each stage, which stands for all its ranks."""
    timed, layout = prediction.timed, prediction.planner.layout
    of_stage = [layout.stage(stage) for stage in range(timed.plan.stages)]
    names = [
        f"stage {stage} (rank {ranks[0]}, and {len(ranks) - 1} more alike)" for stage, ranks in enumerate(of_stage)
    ]
    tracks: dict[tuple[int, str], Track] = {}
    spots: list[Spot] = []
    for number, each in enumerate(timed.plan.operations):
        track = tracks.setdefault((each.stage, each.stream), Track(names[each.stage], each.stream))
        parts = {f"{part}_us": took / 1e6 for part, took in zip(PARTS, each.costs, strict=True) if took}
        called = {"collective": each.call.collective, "size_bytes": each.call.nbytes} if each.call else {}
        kind = "kernel" if each.call else "compute"
        args = {**parts, **called}
        track.slices.append(Slice(timed.starts[number], timed.ends[number], each.name, kind, args))
        spots.append(Spot([*tracks].index((each.stage, each.stream)), timed.starts[number]))
    arrows = [
        Arrow(spots[before], spots[number], "behind")
        for number, each in enumerate(timed.plan.operations)
        for before in each.before
        if spots[before].track != spots[number].track
    ]
    stage_of = {rank: name for name, ranks in zip(names, of_stage, strict=True) for rank in ranks}
    about = _about(prediction.scenario, prediction.time_ps, dict(prediction.facts))
    return Trace([*tracks.values()], arrows, [], about, [stage_of[rank] for rank in range(prediction.n)])


def rank_names(prediction: Prediction) -> list[str]:
    """Return a name for each rank, with its device, and for each switch that reduces."""
    n = prediction.n
    return [f"{'rank' if p < n else 'switch'} {p} ({device})" for p, device in enumerate(prediction.devices)]


def _faults(prediction: Prediction) -> list[Track]:
    """Return a track for each fault, with slices while the fault acts, up to the end of the run."""
    tracks: dict[tuple[str, str], Track] = {}
    for window in prediction.fault_windows:
        if window.begin < prediction.time_ps:
            track = tracks.setdefault((window.link, window.effect), Track(FAULTS, window.link))
            args = {"link": window.link, "kind": window.kind}
            track.slices.append(Slice(window.begin, min(window.end, prediction.time_ps), window.effect, "fault", args))
    return list(tracks.values())


def _counts(prediction: Prediction) -> int | NDArray[Any]:
    """Return for how many channels a transfer stands: one number for a call, an array by transfer for a joined plan."""
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
    """Return a track for each rank of a single call: host time and launch from the rank's arrival on, then the kernel
    until the rank's last transfer ends."""
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
                tracks[rank].slices.append(Slice(came, came + waited, "host", "host", {}))
            if prediction.launch_ps:
                tracks[rank].slices.append(Slice(came + waited, came + launch, "launch", "launch", {}))
            kernel = kernel_name(ran), "kernel", arguments(ran, rank)
            tracks[rank].slices.append(Slice(came + launch, int(done[rank]) + launch, *kernel))
    return tracks


def _ran(scenario: Scenario, collective: str, nbytes: int, ranks: Sequence[int], algorithm: str, protocol: str) -> Ran:
    """Return a collective of the scenario's type and operator, as this algorithm and protocol ran it."""
    return Ran(collective, scenario.op, scenario.dtype, scenario.itemsize, nbytes, ranks, algorithm, protocol)


def _streams(prediction: StepPrediction, names: Sequence[str]) -> tuple[list[Track], list[Arrow]]:
    """Return a track for each stream of each rank of a workload, and arrows from tasks to the tasks that wait for
    them."""
    plan, tasks, timeline = prediction.plan, prediction.tasks, prediction.timeline
    streams = {
        (rank, stream): Track(names[rank], stream)
        for rank in range(plan.n)
        for stream in dict.fromkeys(work.stream for work in plan.works if rank in work.ranks)
    }
    number = {key: place for place, key in enumerate(streams)}
    spots = []
    times = zip(timeline.opened.tolist(), timeline.done.tolist(), strict=True)
    tasks_at = zip(tasks.rank.tolist(), works_of_tasks(prediction), tasks.kind.tolist(), times, strict=True)
    for rank, work, kind, (opened, done) in tasks_at:
        key = rank, plan.works[work].stream
        streams[key].slices.append(Slice(opened, done, *_doing(prediction, work, rank, kind)))
        spots.append(Spot(number[key], opened))
    return list(streams.values()), _behind(prediction.program, spots)


def _owners(prediction: StepPrediction, program: Program) -> list[str]:
    """Return, for each channel of a joined plan, the stream that it belongs to; '' for a switch's channel."""
    assert program.tasks
    works = works_of_tasks(prediction)
    return [
        "" if task == NONE else prediction.plan.works[works[task]].stream for task in program.tasks.channel.tolist()
    ]


def _doing(prediction: StepPrediction, number: int, rank: int, kind: int) -> tuple[str, str, dict[str, Any]]:
    """Return the name, kind and arguments of a task's slice."""
    work, call = prediction.plan.works[number], prediction.plan.works[number].call
    if kind == LAUNCHING:
        return f"launch {work.name}", "launch", {}
    if call is None:
        if work.communicates:
            return _measured_kernel(work.kind), "kernel", {"collective": work.kind, "operation": work.name}
        return work.name, work.kind, {}
    lowered, scenario = prediction.calls[call, work.ranks].lowered, prediction.scenario
    ran = _ran(scenario, call.collective, call.nbytes, work.ranks, lowered.algorithm, lowered.protocol)
    return kernel_name(ran), "kernel", {**arguments(ran, rank), "operation": work.name}


def _behind(program: Program, spots: list[Spot]) -> list[Arrow]:
    """Return an arrow to each task from the task on another track for which it waits."""
    assert program.tasks
    first, before = program.tasks.first.tolist(), program.tasks.before.tolist()
    return [
        Arrow(spots[awaited], spot, "behind")
        for task, spot in enumerate(spots)
        for awaited in before[first[task] : first[task + 1]]
        if spots[awaited].track != spot.track
    ]
