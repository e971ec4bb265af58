"""Predict a point: one call, the fastest of several calls, a call in buckets, or the plan of a workload."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Array, Numbers
from simcoll.engine import lower_bounds
from simcoll.engine.call_program import CallProgram
from simcoll.engine.composed import composed_ps
from simcoll.engine.joined_program import Operation, join
from simcoll.engine.lower_bounds import LowerBound
from simcoll.engine.program import Program
from simcoll.engine.run import MOST_HELD, Keep, Outcome, StreamedProgram, run
from simcoll.engine.timeline import Totals
from simcoll.errors import BoundError, InputError, RefusedError, ScheduleError, StuckError, TopologyError, wrong
from simcoll.prediction import synthesized
from simcoll.prediction.lowered_call import PlainCall, alone, executor
from simcoll.prediction.placed_topology import beyond_rated, placed, rated_topology, served_by
from simcoll.prediction.predictions import (
    CALLING,
    COMPUTING,
    LAUNCHING,
    MEASURED,
    WAITING,
    CallPrediction,
    CountedLinks,
    PlannedCall,
    PlannedCalls,
    PlanTasks,
    ProgramRun,
    StepPrediction,
    policy,
)
from simcoll.prediction.schedules import program_of
from simcoll.scenario.faults import struck
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import SYNTHESIZED, Scenario
from simcoll.schedule.schedule import StreamedSchedule, split
from simcoll.topology.graph import Topology
from simcoll.workload.plan import COMPUTE, CollectiveCall, WorkloadPlan
from simcoll.workload.templates import plan_of


def predict_call(
    scenario: Scenario, topology: Topology | None, costs: CostSetting, keep: Keep = "auto"
) -> CallPrediction:
    """Return the prediction of a call; for `keep` see `Policy`. Raises the errors of `predict`."""
    if scenario.algorithm == SYNTHESIZED:
        made = [option for *_, option in synthesized.options(scenario, topology)]
        options = [each for option in made for each in executor(option).alternatives(option, topology)]
    else:
        options = executor(scenario).alternatives(scenario, topology)
    if options[0] is not scenario:
        if not scenario.striking:
            return _quickest(options, topology, costs, keep)
        healthy = [
            option.model_copy(update={"faults": ()}) for option in options
        ]  # the choice is made without knowledge of faults
        chosen = _quickest(healthy, topology, costs, keep).scenario
        return _predict_one(chosen.model_copy(update={"faults": scenario.faults}), topology, costs, keep)
    return _predict_one(scenario, topology, costs, keep)


def _predict_one(scenario: Scenario, topology: Topology | None, costs: CostSetting, keep: Keep) -> CallPrediction:
    """Return the prediction of a call whose algorithm is named. The times of faults count from the launch."""
    if scenario.in_buckets:
        return _in_buckets(scenario, topology, costs)
    channels = executor(scenario).lower(scenario, topology, costs).differing()
    ran, stuck = list[_RanCall](), list[StuckError]()
    for channel in channels:
        try:
            ran.append(_ran(channel, keep))
        except StuckError as error:
            stuck.append(error)
    if stuck:
        raise min(stuck, key=lambda error: error.when or 0)
    slowest = max(ran, key=lambda each: each.run.totals.makespan_ps)  # a call ends with its slowest channel
    call, whole, proof, of_run = slowest
    launch_ps = call.launch_ps
    return CallPrediction(
        scenario=scenario,
        costs=costs,
        topology=call.topology,
        devices=tuple(whole.devices),
        run=of_run,
        totals=_together(ran) if call.together else _side_by_side(of_run.totals, call.count),
        bound=functools.partial(_lower_bound, scenario, call, whole, topology),
        anew=functools.partial(predict_call, scenario, topology),
        asked=scenario.algorithm,
        n=whole.stream.n,
        planned=(PlannedCall(call, proof),),
        counted=CountedLinks(call.topology.link_names, call.topology.link_kinds, call.capacities),
        source=whole.stream,
        launch_ps=launch_ps,
        host_ps=call.host_ps,
        facts=call.facts,
    )


class _RanCall(NamedTuple):
    """A call, its schedule with sizes and network, how the schedule was proved, and the run."""

    call: PlainCall
    whole: StreamedProgram
    proof: str
    run: ProgramRun


def _ran(call: PlainCall, keep: Keep) -> _RanCall:
    """Simulate a call, or one channel of it."""
    point, network = call.point, call.network
    whole, proof = program_of(point, network, call.places)

    def make() -> Program:
        return call.struck(whole.bind(), point.striking) if point.striking else whole.bind()

    try:
        program = None if _may_be_long(whole, point) else make()
        outcome = run(program or whole, policy(point, keep))
    except StuckError as error:
        raise call.stuck(error) from None
    _check_bound(outcome.totals.makespan_ps, whole, network, proof)
    program = program or outcome.program
    held = program if program is not None and len(program) <= MOST_HELD else None
    return _RanCall(call, whole, proof, ProgramRun(point, make, outcome, held))


def _may_be_long(whole: StreamedProgram, point: Scenario) -> bool:
    """Whether a schedule may have too many transfers to hold in memory as one program, and can run in parts instead."""
    if point.weights is not None or point.striking:
        return False
    chunk = whole.params.chunk
    loops = 1 + point.nbytes // chunk if chunk else 1
    streamed = isinstance(whole.stream, StreamedSchedule)
    return streamed or (whole.transfers * loops > MOST_HELD and not point.subgroups)


def _check_bound(took_ps: int, whole: StreamedProgram, network: Topology, proof: str) -> None:
    """Raise ScheduleError (unproved schedule) or BoundError for a time that is shorter than any schedule can take."""
    source, asked = whole.stream, (whole.nbytes, whole.itemsize, whole.weights)
    bound = lower_bounds.lower_bound_ps(source, network, whole.devices, *asked)
    if took_ps < bound:
        took = f"{source.name}: {took_ps} ps is below the lower bound of {bound} ps"
        if proof == "off":
            raise ScheduleError(f"{took}: it does not do {source.collective}; set `proof: full` to see where")
        raise BoundError(f"{took}: a bug of simcoll")


def _lower_bound(of: Scenario, call: PlainCall, whole: StreamedProgram, topology: Topology | None) -> LowerBound:
    """Return a lower bound of the point's time, for all algorithms and executors. Links have their rated
    bandwidth, or the profile's bandwidth if that is higher. Switches that can reduce data are taken into account."""
    tokens, scenario, rated = of.moe, call.scenario, topology or rated_topology(call.scenario)
    network = served_by(rated, beyond_rated(scenario, rated, call.costs))
    if tokens:
        least = functools.partial(tokens.least_bytes, of.collective)
        return lower_bounds.bound_of_tokens(network, whole.devices, least)
    asked = (scenario.nbytes, scenario.itemsize, scenario.weights)
    return lower_bounds.lower_bound(whole.stream, network, whole.devices, *asked, bool(network.agents))


def _side_by_side(totals: Totals, count: int) -> Totals:
    """Return the totals (bytes, messages) of `count` equal programs that run at the same time."""
    if count == 1:
        return totals
    return replace(
        totals,
        carried=totals.carried * count,
        messages=totals.messages * count,
        wire_bytes=totals.wire_bytes * count,
        bytes_per_rank=totals.bytes_per_rank * count,
    )


def _together(ran: Sequence[_RanCall]) -> Totals:
    """Return the totals of programs that run at the same time and move different bytes."""
    every = [each.run.totals for each in ran]
    return replace(
        max(every, key=lambda totals: totals.makespan_ps),
        carried=np.sum([totals.carried for totals in every], axis=0),
        messages=sum(totals.messages for totals in every),
        wire_bytes=sum(totals.wire_bytes for totals in every),
        bytes_per_rank=sum(totals.bytes_per_rank for totals in every),
    )


def _quickest(options: Sequence[Scenario], topology: Topology | None, costs: CostSetting, keep: Keep) -> CallPrediction:
    """Return the prediction of the fastest of the `options`. Options that are refused are left out, and those that need
    a route that there is not."""
    predicted: list[CallPrediction] = []
    refused: list[RefusedError | TopologyError] = []
    for option in options:
        try:
            predicted.append(_predict_one(option, topology, costs, keep))
        except (RefusedError, TopologyError) as error:
            refused.append(error)
    if not predicted:
        raise refused[0]
    return min(predicted, key=lambda prediction: prediction.called_ps)  # the host takes as long for each


def _in_buckets(scenario: Scenario, topology: Topology | None, costs: CostSetting) -> CallPrediction:
    """Return the prediction of a buffer that is sent in buckets. By default these are calls one after the other, each
    with a launch. With `async_op` they run at once, as loops of one schedule with channels of their own. The timeline
    shows the whole buffer as one call."""
    buckets, chunk = scenario.measure.buckets, scenario.params().chunk
    alone = {"measure": scenario.measure.model_copy(update={"buckets": 1})}
    again = functools.partial(predict_call, scenario, topology)
    whole = predict_call(scenario.model_copy(update=alone), topology, costs)
    if scenario.measure.async_op:
        chunks, width = whole.source.n_chunks, scenario.itemsize
        piece = -(-scenario.nbytes // (chunks * buckets * width)) * width
        own = {"chunk": min(chunk or piece, piece), "channels": chunks * buckets}
        apart = {**alone, "model": scenario.model.model_copy(update=own)}
        together = predict_call(scenario.model_copy(update=apart), topology, costs)
        return replace(together, scenario=scenario, host_ps=buckets * together.host_ps, anew=again)
    sizes = Counter(split(scenario.nbytes, buckets, scenario.itemsize).tolist())
    parts: list[tuple[int, CallPrediction]] = []
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
    return replace(whole, scenario=scenario, totals=totals, host_ps=host_ps, anew=again)


def predict_plan(
    scenario: Scenario, topology: Topology | None, costs: CostSetting, planned_as: WorkloadPlan | None = None
) -> StepPrediction:
    """Return the prediction of a workload's plan (default: as its template makes it). Raises the errors of
    `predict`."""
    rated = topology or rated_topology(scenario)
    network, places = served_by(rated, costs.links), placed(scenario, rated)
    made = plan_of(scenario.workload, len(places), scenario.itemsize) if planned_as is None else (planned_as, {})
    plan, facts = made
    planned: PlannedCalls = {}
    for work in plan.works:
        if work.call and (work.call, work.ranks) not in planned:
            planned[work.call, work.ranks] = _planned(scenario, rated, costs, places, work.call, work.ranks)
    apart = scenario.variability is not None and scenario.variability.launch_skew is not None
    operations, calls, kinds = _operations(plan, planned, apart)
    lengths = [len(operation.ranks) for operation in operations]
    parts = [slice(end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True)]

    def joined() -> Program:
        whole = [
            op._replace(program=call.program if call else None) for op, call in zip(operations, calls, strict=True)
        ]
        return struck(join(whole, plan.n, network), network, scenario.striking)

    way = policy(scenario, "totals")
    alone = way.engine == "auto" and way.shortcuts and not scenario.striking
    took = composed_ps(operations, calls, plan.n, network) if alone else None
    ways = {call.lowered.point.params().sharing for call in planned.values()}
    if took is None and len(ways) > 1:  # calls that meet on links must have one sharing rule
        fair = scenario.model_copy(update={"model": scenario.model.model_copy(update={"sharing": "fair"})})
        return replace(predict_plan(fair, topology, costs, planned_as), scenario=scenario)

    def otherwise(durations: Numbers) -> int | None:
        if took is None:  # calls meet on a link
            return None
        return composed_ps(operations, calls, plan.n, network, [durations[part] for part in parts])

    if took is None:
        program = joined()
        ran = ProgramRun(scenario, joined, run(program, way), program)
        carried, rates = (column.reshape(program.views, -1) for column in (ran.totals.carried, program.bandwidths))
        links = _links(tuple(program.link_names[: program.servers]), network, planned)
    else:
        carried, rates = _carried(calls, network)
        links = _links(network.link_names, network, planned)
        totals = Totals(took, carried.sum(axis=0), bytes_per_rank=0, messages=0, wire_bytes=0, shortcut="compose")
        ran = ProgramRun(scenario, joined, Outcome("fast", totals))
    tasks = PlanTasks(
        ranks=[operation.ranks for operation in operations],
        kinds=kinds,
        durations=[operation.duration for operation in operations],
        alone=otherwise,
    )
    return StepPrediction(
        scenario=scenario,
        costs=costs,
        topology=network,
        devices=places,
        run=ran,
        totals=_step_totals(ran.totals, carried, rates, operations, calls, links, planned, plan, network),
        bound=lambda: LowerBound(max(plan.computed_ps()), "compute"),
        anew=functools.partial(predict_plan, scenario, topology),
        n=plan.n,
        planned=tuple(planned.values()),
        plan=plan,
        calls=planned,
        tasks=tasks,
        counted=links,
        facts=facts,
        alone=functools.partial(_only, scenario, plan, places, topology, costs),
    )


def _only(
    scenario: Scenario, plan: WorkloadPlan, places: Sequence[str], topology: Topology | None, costs: CostSetting
) -> CallPrediction | None:
    """Return the prediction of the plan's single call; None for plans with other operations or with disturbances."""
    if len(plan.works) != 1 or scenario.faults or scenario.variability or scenario.replications:
        return None
    (work,) = plan.works
    if work.call is None or len(work.ranks) < plan.n:
        return None
    ran = predict_call(alone(scenario, places, work.call, work.ranks), topology, costs)
    return replace(ran, asked=work.call.algorithm)


def _operations(
    plan: WorkloadPlan, planned: PlannedCalls, apart: bool
) -> tuple[list[Operation], list[CallProgram | None], list[int]]:
    """Return three lists, an entry for each operation of the plan: the operation, its call or None, and its kind. A
    call becomes two operations, launch and call, if its launch takes time or may be disturbed (`apart`)."""
    operations: list[Operation] = []
    calls: list[CallProgram | None] = []
    kinds: list[int] = []
    members: dict[int, Array] = {}  # by id of tuples of ranks, of which there are few
    equal: dict[tuple[int, ...], Array] = {}
    last: list[int] = []  # the last operation of each work of the plan
    for work in plan.works:
        if id(work.ranks) not in members:
            members[id(work.ranks)] = equal.setdefault(work.ranks, np.asarray(work.ranks, np.int32))
        ranks = members[id(work.ranks)]
        after = tuple(last[before] for before in work.before)
        if work.call is None:
            operations.append(Operation(ranks, None, np.asarray(work.time_ps, np.int64), after))
            calls.append(None)
            kinds.append(MEASURED if work.communicates else COMPUTING if work.kind == COMPUTE else WAITING)
        else:
            call = planned[work.call, work.ranks]
            launch_ps = call.lowered.launch_ps
            if launch_ps or apart:
                operations.append(Operation(ranks, None, launch_ps, after))
                calls.append(None)
                kinds.append(LAUNCHING)
                after = (len(operations) - 1,)
            operations.append(Operation(ranks, None, 0, after, work.stream))
            calls.append(call.bound)
            kinds.append(CALLING)
        last.append(len(operations) - 1)
    return operations, calls, kinds


def _carried(calls: Sequence[CallProgram | None], network: Topology) -> tuple[Numbers, Numbers]:
    """Return two arrays (views, links): the bytes of all calls over each link, and the link's B/s. A view stands for
    the calls that give links the same bandwidths and latencies."""
    views: dict[tuple[bytes, bytes], tuple[Numbers, Numbers]] = {}
    times = Counter(id(call) for call in calls)
    for call in {id(call): call for call in calls if call is not None}.values():
        rates, late = call.network.bandwidths, call.network.latencies
        view = views.setdefault((rates.tobytes(), late.tobytes()), (np.zeros(len(rates), np.int64), rates))
        view[0][:] += times[id(call)] * call.sums.carried
    if not views:  # all operations are computations
        return np.zeros((1, len(network.bandwidths)), np.int64), network.bandwidths[None]
    return np.stack([carried for carried, _ in views.values()]), np.stack([rates for _, rates in views.values()])


def _links(names: tuple[str, ...], network: Topology, planned: PlannedCalls) -> CountedLinks:
    """Return the links called `names`, with the network's rates, or else those of a call that has the link."""
    known: dict[str, tuple[str, int]] = {}
    for each in (network, *(call.lowered.topology for call in planned.values())):
        if each.link_names is not network.link_names or not known:
            for name, kind, rate in zip(each.link_names, each.link_kinds, each.bandwidths.tolist(), strict=True):
                known.setdefault(name, (kind, rate))
    kinds, rates = zip(*(known[name] for name in names), strict=True) if names else ((), ())
    return CountedLinks(names, kinds, np.array(rates, np.int64))


def _step_totals(
    totals: Totals,
    carried: Numbers,
    rates: Numbers,
    operations: Sequence[Operation],
    calls: Sequence[CallProgram | None],
    links: CountedLinks,
    planned: PlannedCalls,
    plan: WorkloadPlan,
    network: Topology,
) -> Totals:
    """Return the totals over all channels, although the program of a call may have only one. On a link that channels
    share, a byte uses as much of the link as it does when the call runs alone."""
    number = dict(zip(links.names, range(len(links.names)), strict=True))
    served: dict[bytes, Array] = {}
    for call in planned.values():
        if call.bound:
            names = call.lowered.rated.link_names
            own = range(len(names)) if names is links.names else [number[name] for name in names]
            view, serves = links.capacities.copy(), links.capacities.astype(float)
            view[len(network.bandwidths) :] = 1  # `join` gives 1 B/s to links that a call does not see
            view[own], serves[own] = call.bound.network.bandwidths, call.lowered.capacities
            served[view.tobytes()] = serves / call.lowered.count
    shares = [links.capacities / np.maximum(1, served.get(view.tobytes(), view)) for view in rates]
    whole = np.rint(carried * np.stack(shares)).astype(np.int64).sum(axis=0)
    counts = {id(call.bound): call.lowered.count for call in planned.values()}
    sent, messages, wire_bytes = np.zeros(plan.n, np.int64), 0, 0
    for operation, bound in zip(operations, calls, strict=True):
        if bound is not None:
            count, sums = counts[id(bound)], bound.sums
            sent[operation.ranks] += count * sums.sent
            messages += count * sums.messages
            wire_bytes += count * sums.wire_bytes
    most = int(sent.max(initial=0))
    return replace(totals, carried=whole, messages=messages, wire_bytes=wire_bytes, bytes_per_rank=most)


def _planned(
    scenario: Scenario,
    rated: Topology,
    costs: CostSetting,
    places: Sequence[str],
    call: CollectiveCall,
    ranks: tuple[int, ...],
) -> PlannedCall:
    """Return a call of some ranks with the program that it has if it runs alone; `join` later lets it share links with
    other calls. Raises RefusedError if the algorithm cannot serve the call, InputError for wrong input."""
    try:
        return _bound(alone(scenario, places, call, ranks), rated, costs)
    except TopologyError:
        raise
    except InputError as error:  # other keys of the call are keys of the workload
        own = ("", "root")
        raise InputError(replace(d, path="workload") if d.path in own else d for d in error.diagnostics) from None


def _bound(asked: Scenario, rated: Topology, costs: CostSetting) -> PlannedCall:
    if asked.nbytes % asked.itemsize:
        why = f"{asked.collective} of {asked.nbytes} B is no whole number of {asked.dtype} elements"
        raise wrong("workload", why, f"write a multiple of {asked.itemsize} B")
    runs = executor(asked)
    if runs.alternatives(asked, rated)[0] is not asked:
        call = predict_call(asked, rated, costs).lowered
    else:
        call = runs.lower(asked, rated, costs)
        call = predict_call(asked, rated, costs).lowered if len(call.differing()) > 1 else call
    whole, proof = program_of(call.point, call.network, call.places)
    return PlannedCall(call, proof, CallProgram(whole))
