"""A point as a trace: its collectives, computations, transfers and links as lanes of slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

import simcoll
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NONE
from simcoll.errors import InputError
from simcoll.explanation.trace_lanes import Arrow, Slice, Spot, Trace, Track
from simcoll.explanation.trace_tracks import Played, Tracks
from simcoll.prediction import workload_run
from simcoll.prediction.predict import Prediction, predict
from simcoll.report.exports.kineto_names import Ran, arguments, kernel_name
from simcoll.scenario.scenario import Point, Scenario
from simcoll.units import exact_us

MOST: Final = 300_000  # transfers and links that they cross: more take long to write, and viewers long to open


def trace_of(point: Point, transfers: bool = True) -> Trace:
    """Everything that happens in a point, or without `transfers` what streams do; one with replications is run
    undisturbed.

    Raises InputError for a point that is too large or that is several calls, and what a simulation raises.
    """
    if point.scenario.workload:
        return of_step(workload_run.simulate(point), transfers)
    return of_collective(predict(point), transfers)


def crossings(program: Program) -> int:
    """Transfers, and links that they cross."""
    return len(program) + int(np.diff(program.routes.hop)[program.way].sum())


def _check(program: Program) -> None:
    if (slices := crossings(program)) > MOST:
        what = f"a trace of {slices:,} transfers and links crossed is too large to look at ({MOST:,} at most)"
        raise InputError(what, "take fewer ranks, a smaller size or larger chunks")


def of_collective(prediction: Prediction, transfers: bool = True) -> Trace:
    """A collective: on each rank its launch and its kernel, and below them what its channels send and receive.

    Of a call as NCCL makes it one channel is there, whose transfers stand for those of all.
    """
    scenario, lowered = prediction.scenario, prediction.lowered
    if scenario.measure.buckets > 1 and not scenario.measure.async_op:
        raise InputError("buckets one after another are several calls", "trace one: --set measure.buckets=1")
    program, times = prediction.program, lowered.call.alike if lowered else 1
    if transfers:
        _check(program)
    n, streams = prediction.source.n, [""] * (int(program.channel.max(initial=-1)) + 1)
    names = [f"{'rank' if p < n else 'switch'} {p} ({device})" for p, device in enumerate(prediction.devices)]
    played = Played(program, prediction.timeline, names, streams, prediction.waited_ps + prediction.launch_ps, times)
    chosen = {"algorithm": prediction.algorithm, "protocol": prediction.protocol, "channels_alike": times}
    told = {"engine": prediction.engine, "wire_bytes": prediction.totals.wire_bytes}
    kernels, about = _kernels(prediction, played), _about(scenario, prediction.time_ps, told | chosen)
    if not transfers:
        return Trace(kernels, [], [], about, names[:n])
    drawn = Tracks(played, kernels)
    return Trace(drawn.tracks, drawn.arrows, drawn.counters, about, names[:n])


def _about(scenario: Scenario, time_ps: int, more: dict[str, Any]) -> dict[str, Any]:
    return {
        "simcoll": simcoll.__version__,
        "scenario": scenario.name,
        "topology": scenario.topology.title,
        "collective": scenario.collective,
        "size_bytes": scenario.nbytes,
        "profile": scenario.profile,
        "sharing": scenario.params().sharing,
        "seed": scenario.seed,
        "time_us": exact_us(time_ps),
        **more,
    }


def _kernels(prediction: Prediction, played: Played) -> list[Track]:
    """A track for each rank: it launches when it comes and the host has time, and its kernel runs until its last
    transfer is through."""
    scenario, program, timeline = prediction.scenario, played.program, played.timeline
    n, launch, waited = prediction.source.n, played.shift, prediction.waited_ps
    done = program.arrivals.copy()
    np.maximum.at(done, program.src, timeline.sent)
    np.maximum.at(done, program.dst, np.maximum(timeline.end, timeline.complete))
    found = [Track(played.names[rank], "stream") for rank in range(n)]
    for group in scenario.subgroups or (tuple(range(n)),):
        ran = _ran(scenario, scenario.collective, scenario.nbytes, group, prediction.algorithm, prediction.protocol)
        for rank in group:
            came = int(program.arrivals[rank])
            if waited:
                found[rank].add(Slice(came, came + waited, "host", "host", {}))
            if prediction.launch_ps:
                found[rank].add(Slice(came + waited, came + launch, "launch", "launch", {}))
            kernel = kernel_name(ran), "kernel", arguments(ran, rank)
            found[rank].add(Slice(came + launch, int(done[rank]) + launch, *kernel))
    return found


def _ran(scenario: Scenario, collective: str, nbytes: int, ranks: Sequence[int], algorithm: str, protocol: str) -> Ran:
    """A collective with the algorithm and the protocol that ran it."""
    return Ran(collective, scenario.op, scenario.dtype, scenario.itemsize, nbytes, ranks, algorithm, protocol)


def of_step(step: workload_run.WorkloadPrediction, transfers: bool = True) -> Trace:
    """A workload: on each rank a track for each stream, and below them what is sent and received."""
    program, n = step.program, step.plan.n
    if transfers:
        _check(program)
    names = [f"rank {rank} ({device})" for rank, device in enumerate(step.devices)]
    names += [f"switch {n + number}" for number in range(program.schedule.agents)]
    timeline, works, tasks = step.timeline(), _works(step), program.tasks
    program = program.as_it_went(timeline.way)
    assert tasks
    streams = {
        (rank, stream): Track(names[rank], stream)
        for rank in range(n)
        for stream in dict.fromkeys(work.stream for work in step.plan.works if rank in work.ranks)
    }
    number = {key: place for place, key in enumerate(streams)}
    spots = []
    when = zip(step.rank.tolist(), works, step.kind.tolist(), timeline.opened.tolist(), timeline.done.tolist(),
               strict=True)  # fmt: skip
    for rank, work, kind, opened, done in when:
        key = rank, step.plan.works[work].stream
        spots.append(Spot(number[key], streams[key].add(Slice(opened, done, *_doing(step, work, rank, kind)))))
    told = {"engine": step.engine, "wire_bytes": step.totals.wire_bytes, **step.told}
    behind, about = _behind(program, spots), _about(step.scenario, step.step_ps, told)
    if not transfers:
        return Trace(list(streams.values()), behind, [], about, names[:n])
    owners = ["" if task == NONE else step.plan.works[works[task]].stream for task in tasks.channel.tolist()]
    drawn = Tracks(Played(program, timeline, names, owners), streams.values())
    return Trace(drawn.tracks, [*drawn.arrows, *behind], drawn.counters, about, names[:n])


def _works(step: workload_run.WorkloadPrediction) -> list[int]:
    """The number of the plan's operation that each task is of: a call may be two, its launch and itself."""
    found: list[int] = []
    for number, work in enumerate(step.plan.works):
        launched = step.kind[len(found)] == workload_run.LAUNCHING
        found += [number] * (len(work.ranks) * (2 if launched else 1))
    return found


def _doing(step: workload_run.WorkloadPrediction, number: int, rank: int, kind: int) -> tuple[str, str, dict[str, Any]]:
    """Name, kind and arguments of a task."""
    work, call = step.plan.works[number], step.plan.works[number].call
    if kind == workload_run.LAUNCHING:
        return f"launch {work.name}", "launch", {}
    if call is None:
        return work.name, "compute", {}
    bound = step.calls[call, work.ranks]
    ran = _ran(step.scenario, call.collective, call.nbytes, work.ranks, bound.algorithm, bound.protocol)
    return kernel_name(ran), "kernel", {**arguments(ran, rank), "operation": work.name}


def _behind(program: Program, spots: list[Spot]) -> list[Arrow]:
    """From task to task, where one waits for another on a different track."""
    assert program.tasks
    first, before = program.tasks.first.tolist(), program.tasks.before.tolist()
    return [
        Arrow(spots[other], spot, "behind")
        for task, spot in enumerate(spots)
        for other in before[first[task] : first[task + 1]]
        if spots[other].track != spot.track
    ]
