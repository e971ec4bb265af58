"""A call by itself, predicted: as it is asked for, as the quickest of several, or in buckets."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from simcoll.engine import bounds
from simcoll.engine.run import Keep
from simcoll.engine.timeline import Totals
from simcoll.errors import RefusedError, StuckError
from simcoll.prediction.lowering import PlainCall, executor
from simcoll.prediction.placing import at_best, rated_topology
from simcoll.prediction.predicted import PlannedCall, Prediction
from simcoll.prediction.program_run import ScheduleRun, run_schedule
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.ir import split
from simcoll.topology.graph import Topology
from simcoll.workload.plan import CollectiveCall, WorkloadPlan


def predict_call(scenario: Scenario, topology: Topology | None, costs: CostSetting, keep: Keep = "auto") -> Prediction:
    """The prediction of a call; `keep`: see `Policy`. Raises like `predict`."""
    options = executor(scenario).alternatives(scenario, topology)
    if options[0] is not scenario:
        if not scenario.striking:
            return _quickest(options, topology, costs, keep)
        healthy = [
            option.model_copy(update={"faults": ()}) for option in options
        ]  # who chooses does not know of faults
        algorithm = _quickest(healthy, topology, costs, keep).algorithm
        return predict_call(scenario.model_copy(update={"algorithm": algorithm}), topology, costs, keep)
    if scenario.in_buckets:
        return _in_buckets(scenario, topology, costs)
    call = executor(scenario).lower(scenario, topology)
    launch_ps = call.launch_ps(costs)
    try:
        run = run_schedule(call.point(costs), call.network(costs), call.places, launch_ps, keep)
    except StuckError as error:
        raise call.stuck(error) from None
    plan, ranks = WorkloadPlan(run.source.n), tuple(range(run.source.n))
    weights = None if scenario.weights is None else _hashable(scenario.weights)
    asked = CollectiveCall(scenario.collective, call.algorithm, scenario.nbytes, scenario.root, weights)
    plan.call(scenario.collective, asked, stream=scenario.collective)
    return Prediction(
        scenario=scenario,
        costs=costs,
        topology=call.topology(costs),
        devices=run.devices,
        plan=plan,
        calls={(asked, ranks): PlannedCall(call, run.proved)},
        run=run.run,
        totals=_of_all(run.run.totals, call.count),
        bound_ps=functools.partial(_bound_ps, call, run, topology, costs),
        anew=functools.partial(predict_call, scenario, topology),
        asked=scenario.algorithm,
        source=run.source,
        lowered=call,
        launch_ps=launch_ps,
        host_ps=call.host_ps(costs),
    )


def _bound_ps(call: PlainCall, run: ScheduleRun, topology: Topology | None, costs: CostSetting) -> int:
    """The time that no schedule can beat, the same for all that answer the question, whatever they run: on links as
    rated, or as a profile has them where these are faster; where switches could reduce, by these too."""
    scenario, rated = call.scenario, topology or rated_topology(call.scenario)
    network = at_best(scenario, rated, costs)
    asked = (scenario.nbytes, scenario.itemsize, scenario.weights)
    reducing = bool(network.agents_for(call.places[:1]))
    return bounds.lower_bound_ps(run.source, network, run.devices, *asked, reducing)


def _hashable(weights: Sequence[Any]) -> tuple[Any, ...]:
    """Nested weights as tuples."""
    return tuple(_hashable(row) if isinstance(row, list | tuple) else row for row in weights)


def _of_all(totals: Totals, count: int) -> Totals:
    """Totals of so many programs that do the same side by side."""
    if count == 1:
        return totals
    return dataclasses.replace(
        totals,
        carried=totals.carried * count,
        messages=totals.messages * count,
        wire_bytes=totals.wire_bytes * count,
        bytes_per_rank=totals.bytes_per_rank * count,
    )


def _quickest(options: Sequence[Scenario], topology: Topology | None, costs: CostSetting, keep: Keep) -> Prediction:
    """The one predicted to be done first, of those that are not refused."""
    predicted: list[Prediction] = []
    refused: list[RefusedError] = []
    for option in options:
        try:
            predicted.append(predict_call(option, topology, costs, keep))
        except RefusedError as error:
            refused.append(error)
    if not predicted:
        raise refused[0]
    return min(predicted, key=lambda prediction: prediction.called_ps)  # the host takes as long for each


def _in_buckets(scenario: Scenario, topology: Topology | None, costs: CostSetting) -> Prediction:
    """The buffer in buckets: one call after another, each with its launch, or all on their way at once: then every
    bucket is a loop of the schedule with separate channels. Timelines are those of the whole."""
    buckets, chunk = scenario.measure.buckets, scenario.params().chunk
    alone = {"measure": scenario.measure.model_copy(update={"buckets": 1})}
    again = functools.partial(predict_call, scenario, topology)
    whole = predict_call(scenario.model_copy(update=alone), topology, costs)
    if scenario.measure.async_op:
        assert whole.source
        chunks, width = whole.source.n_chunks, scenario.itemsize
        piece = -(-scenario.nbytes // (chunks * buckets * width)) * width
        own = {"chunk": min(chunk or piece, piece), "channels": chunks * buckets}
        apart = {**alone, "model": scenario.model.model_copy(update=own)}
        together = predict_call(scenario.model_copy(update=apart), topology, costs)
        return dataclasses.replace(together, scenario=scenario, host_ps=buckets * together.host_ps, anew=again)
    sizes = Counter(split(scenario.nbytes, buckets, scenario.itemsize).tolist())
    parts: list[tuple[int, Prediction]] = []
    for size, times in sizes.items():
        if size:
            part = scenario.model_copy(update={**alone, "size": size})
            parts.append((times, predict_call(part, topology, costs)))
    totals = Totals(
        makespan_ps=sum(times * (part.totals.makespan_ps + part.launch_ps) for times, part in parts) - whole.launch_ps,
        carried=np.sum([times * part.totals.carried for times, part in parts], axis=0),
        bytes_per_rank=sum(times * part.totals.bytes_per_rank for times, part in parts),
        messages=sum(times * part.totals.messages for times, part in parts),
        wire_bytes=sum(times * part.totals.wire_bytes for times, part in parts),
        shortcut=parts[0][1].totals.shortcut,
    )
    host_ps = sum(times * part.host_ps for times, part in parts)
    return dataclasses.replace(whole, scenario=scenario, totals=totals, host_ps=host_ps, anew=again)
