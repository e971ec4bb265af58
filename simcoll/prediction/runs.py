"""Predict a point: its call, the fastest of several calls, a call in buckets, or the plan of its workload."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from simcoll.config.arrays import Array, Numbers
from simcoll.engine import bounds
from simcoll.engine.binding import bind, written_out
from simcoll.engine.call_program import CallProgram
from simcoll.engine.composed import Joined, composed_ps
from simcoll.engine.joined_program import Operation, join
from simcoll.engine.looped import looped
from simcoll.engine.program import Program
from simcoll.engine.run import MOST_HELD, Keep, Outcome, StreamedProgram, run
from simcoll.engine.timeline import Totals
from simcoll.errors import BoundError, InputError, RefusedError, ScheduleError, StuckError, TopologyError, wrong
from simcoll.prediction.lowered_call import PlainCall, alone, executor
from simcoll.prediction.placed_topology import arrivals_of, at_best, placed, rated_topology, served_by
from simcoll.prediction.predictions import (
    CALLING,
    COMPUTING,
    LAUNCHING,
    CallPrediction,
    CountedLinks,
    PlannedCall,
    PlanTasks,
    ProgramRun,
    StepPrediction,
    policy,
)
from simcoll.prediction.schedules import agents_of, source_of
from simcoll.scenario.faults import struck
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.collectives import collective, cut
from simcoll.schedule.schedule import AnySchedule, StreamedSchedule, split
from simcoll.topology.graph import Topology
from simcoll.workload.plan import CollectiveCall, WorkloadPlan
from simcoll.workload.templates import plan_of

# --- one schedule ---


@dataclass(frozen=True, eq=False)
class ScheduleRun:
    """A schedule that ran as one call: source, level of the proof, devices of ranks and agents, and the run."""

    source: AnySchedule
    proved: str
    devices: tuple[str, ...]
    run: ProgramRun


def _may_be_long(source: AnySchedule, point: Scenario) -> bool:
    """Whether a schedule, in all its loops, may have too many transfers for one program."""
    if isinstance(source, StreamedSchedule):
        return True
    chunk = point.params().chunk
    loops = 1 + point.nbytes // chunk if chunk else 1
    return len(source) * loops > MOST_HELD and not point.subgroups


def _check_weights(point: Scenario, ranks: int) -> None:
    """Raise InputError unless the point has one weight per rank."""
    blocks = collective(point.collective).blocks(ranks)
    try:
        cut(0, ranks, blocks, 1, point.weights, blocks)
    except ValueError as error:
        raise wrong("weights", str(error), f"there are {ranks} ranks") from None


def run_schedule(
    point: Scenario, network: Topology, places: Sequence[str], launch_ps: int, keep: Keep = "auto"
) -> ScheduleRun:
    """Run the schedule of a point on ranks at `places`; faults count from `launch_ps` before its begin.

    Raises RefusedError when the algorithm cannot serve, StuckError when the run cannot finish, ScheduleError when the
    proof fails, BoundError when the run is faster than possible.
    """
    proved = source_of(point, network, places)
    source = proved.source
    devices = (*places, *agents_of(point, network, places)[: source.agents])
    if point.weights is not None:
        _check_weights(point, source.n)
    arrivals = arrivals_of(point, source.n)

    def make() -> Program:
        schedule = written_out(source)
        options: dict[str, Any] = {"itemsize": point.itemsize, "weights": point.weights, "arrivals": arrivals}
        program = bind(schedule, network, devices, point.params(), point.nbytes, **options)
        if not point.striking:
            return program
        return struck(program, network, point.striking, launch_ps)

    if point.weights is None and not point.striking and _may_be_long(source, point):
        stream = StreamedProgram(source, network, devices, point.params(), point.nbytes, point.itemsize, arrivals)
        outcome = run(stream, policy(point, keep))
        program = outcome.program
    else:
        program = make()
        outcome = run(program, policy(point, keep))
    took_ps, asked = outcome.totals.makespan_ps, (point.nbytes, point.itemsize, point.weights)
    bound = bounds.beaten(took_ps, source, network, devices, *asked)
    if bound is not None:
        took = f"{source.name}: {took_ps} ps is below the lower bound of {bound} ps"
        if proved.proof == "off":
            raise ScheduleError(f"{took}: it does not do {source.collective}; set `proof: full` to see where")
        raise BoundError(f"{took}: a bug of simcoll")
    held = program if program is not None and len(program) <= MOST_HELD else None
    ran = ProgramRun(point, make, outcome, held)
    return ScheduleRun(source, proved.proof, devices, ran)


def predict_call(
    scenario: Scenario, topology: Topology | None, costs: CostSetting, keep: Keep = "auto"
) -> CallPrediction:
    """Return the prediction of a call; `keep`: see `Policy`. Raises like `predict`."""
    options = executor(scenario).alternatives(scenario, topology)
    if options[0] is not scenario:
        if not scenario.striking:
            return _quickest(options, topology, costs, keep)
        healthy = [
            option.model_copy(update={"faults": ()}) for option in options
        ]  # the choice is made without knowledge of faults
        algorithm = _quickest(healthy, topology, costs, keep).algorithm
        return predict_call(scenario.model_copy(update={"algorithm": algorithm}), topology, costs, keep)
    return _predict_one(scenario, topology, costs, keep)


def _predict_one(scenario: Scenario, topology: Topology | None, costs: CostSetting, keep: Keep) -> CallPrediction:
    """Return the prediction of a call with a named algorithm."""
    if scenario.in_buckets:
        return _in_buckets(scenario, topology, costs)
    call = executor(scenario).lower(scenario, topology, costs)
    launch_ps = call.launch_ps
    try:
        run = run_schedule(call.point, call.network, call.places, launch_ps, keep)
    except StuckError as error:
        raise call.stuck(error) from None
    return CallPrediction(
        scenario=scenario,
        costs=costs,
        topology=call.topology,
        devices=run.devices,
        run=run.run,
        totals=_side_by_side(run.run.totals, call.count),
        bound_ps=functools.partial(_bound_ps, call, run, topology),
        anew=functools.partial(predict_call, scenario, topology),
        asked=scenario.algorithm,
        lowered=call,
        source=run.source,
        proof=run.proved,
        launch_ps=launch_ps,
        host_ps=call.host_ps,
    )


def _bound_ps(call: PlainCall, run: ScheduleRun, topology: Topology | None) -> int:
    """Return a lower bound in ps of the point's time, for all algorithms and executors. Links have rated bandwidth, or
    that of a profile if it is higher; switches that can reduce are taken into account."""
    scenario, rated = call.scenario, topology or rated_topology(call.scenario)
    network = at_best(scenario, rated, call.costs)
    asked = (scenario.nbytes, scenario.itemsize, scenario.weights)
    reducing = bool(network.agents_for(call.places[:1]))
    return bounds.lower_bound_ps(run.source, network, run.devices, *asked, reducing)


def _side_by_side(totals: Totals, count: int) -> Totals:
    """Return the totals of `count` equal programs that run at the same time."""
    if count == 1:
        return totals
    return replace(
        totals,
        carried=totals.carried * count,
        messages=totals.messages * count,
        wire_bytes=totals.wire_bytes * count,
        bytes_per_rank=totals.bytes_per_rank * count,
    )


def _quickest(options: Sequence[Scenario], topology: Topology | None, costs: CostSetting, keep: Keep) -> CallPrediction:
    """Return the prediction of the fastest option; refused options are left out."""
    predicted: list[CallPrediction] = []
    refused: list[RefusedError] = []
    for option in options:
        try:
            predicted.append(_predict_one(option, topology, costs, keep))
        except RefusedError as error:
            refused.append(error)
    if not predicted:
        raise refused[0]
    return min(predicted, key=lambda prediction: prediction.called_ps)  # the host takes as long for each


def _in_buckets(scenario: Scenario, topology: Topology | None, costs: CostSetting) -> CallPrediction:
    """Return the prediction of a buffer in buckets. The calls run one after the other, each with its launch, or at once
    (`async_op`): then buckets are loops of the schedule with channels of their own. Timelines show the whole buffer."""
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


T = TypeVar("T")


def predict_plan(scenario: Scenario, topology: Topology | None, costs: CostSetting) -> StepPrediction:
    """Return the prediction of a workload's plan. Raises like `predict`."""
    binder = _Binder(scenario, topology or rated_topology(scenario), costs)
    plan, facts = plan_of(scenario.workload, len(binder.places), scenario.itemsize)
    apart = scenario.variability is not None and scenario.variability.launch_skew is not None
    operations, calls, kinds = _operations(plan, binder, apart)
    lengths = [len(operation.ranks) for operation in operations]
    parts = [slice(end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True)]

    def joined() -> Program:
        whole = [
            op._replace(program=call.program if call else None) for op, call in zip(operations, calls, strict=True)
        ]
        return struck(join(whole, plan.n, binder.topology), binder.topology, scenario.striking)

    way = policy(scenario, "totals")
    alone = way.engine == "auto" and way.shortcuts and not scenario.striking
    shared: tuple[set[CallProgram], Joined] = set(), {}  # for replications: calls that were run, and joined ones
    took = composed_ps(operations, calls, plan.n, binder.topology, *shared) if alone else None
    if took is None and len(binder.ways) > 1:  # calls that meet on links must have one sharing rule
        fair = scenario.model_copy(update={"model": scenario.model.model_copy(update={"sharing": "fair"})})
        return replace(predict_plan(fair, topology, costs), scenario=scenario)

    def otherwise(durations: Numbers) -> int | None:
        if took is None:  # calls meet on a link
            return None
        return composed_ps(operations, calls, plan.n, binder.topology, *shared, [durations[part] for part in parts])

    if took is None:
        program = joined()
        ran = ProgramRun(scenario, joined, run(program, way), program)
        carried, rates = (column.reshape(program.views, -1) for column in (ran.totals.carried, program.bandwidths))
        links = _links(tuple(program.link_names[: program.servers]), binder)
    else:
        carried, rates = _carried(calls, binder.topology)
        links = _links(binder.topology.link_names, binder)
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
        topology=binder.topology,
        devices=binder.places,
        run=ran,
        totals=_step_totals(ran.totals, carried, rates, operations, calls, links, binder),
        bound_ps=lambda: max(plan.computed_ps()),
        anew=functools.partial(predict_plan, scenario, topology),
        plan=plan,
        calls=binder.calls,
        tasks=tasks,
        counted=links,
        facts=facts,
        alone=functools.partial(_only, scenario, plan, binder, topology),
    )


def _only(scenario: Scenario, plan: WorkloadPlan, binder: _Binder, topology: Topology | None) -> CallPrediction | None:
    """Return the prediction of the one call that the plan consists of; None for other and for disturbed plans."""
    if len(plan.works) != 1 or scenario.faults or scenario.variability or scenario.replications:
        return None
    (work,) = plan.works
    if work.call is None or len(work.ranks) < plan.n:
        return None
    ran = predict_call(alone(scenario, binder.places, work.call, work.ranks), topology, binder.costs)
    return replace(ran, asked=work.call.algorithm)


def _operations(
    plan: WorkloadPlan, binder: _Binder, apart: bool
) -> tuple[list[Operation], list[CallProgram | None], list[int]]:
    """Return the plan's operations, the call of each or None, and its kind. A call whose launch takes time, or is to be
    disturbed (`apart`), becomes two operations: the launch and the call."""
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
            kinds.append(COMPUTING)
        else:
            call = binder.bound(work.call, work.ranks)
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
    """Return the bytes of calls over links, and the B/s of links, each (views, links). Calls with equal bandwidths and
    latencies of links share a view."""
    views: dict[tuple[bytes, bytes], tuple[Numbers, Numbers]] = {}
    for call in calls:
        if call is not None:
            rates, late = call.network.bandwidths, call.network.latencies
            view = views.setdefault((rates.tobytes(), late.tobytes()), (np.zeros(len(rates), np.int64), rates))
            view[0][:] += call.sums.carried
    if not views:  # all operations are computations
        return np.zeros((1, len(network.bandwidths)), np.int64), network.bandwidths[None]
    return np.stack([carried for carried, _ in views.values()]), np.stack([rates for _, rates in views.values()])


def _links(names: tuple[str, ...], binder: _Binder) -> CountedLinks:
    """Return the links in `names`, with the topology's rates, or a call's if the topology lacks them."""
    known: dict[str, tuple[str, int]] = {}
    for each in (binder.topology, *(call.lowered.topology for call in binder.calls.values())):
        if each.link_names is not binder.topology.link_names or not known:
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
    binder: _Binder,
) -> Totals:
    """Return the totals over all channels; the program of a call may have only one. A byte on a link that channels
    share uses as much of the link as in a separate call."""
    number = dict(zip(links.names, range(len(links.names)), strict=True))
    served: dict[bytes, Array] = {}
    for planned in binder.calls.values():
        if planned.bound:
            names = planned.lowered.rated.link_names
            own = range(len(names)) if names is links.names else [number[name] for name in names]
            view, serves = links.capacities.copy(), links.capacities.astype(float)
            view[len(binder.topology.bandwidths) :] = 1  # `join` gives 1 B/s to links that a call does not see
            view[own], serves[own] = planned.bound.network.bandwidths, planned.lowered.capacities
            served[view.tobytes()] = serves / planned.lowered.count
    shares = [links.capacities / np.maximum(1, served.get(view.tobytes(), view)) for view in rates]
    whole = np.rint(carried * np.stack(shares)).astype(np.int64).sum(axis=0)
    counts = {id(call.bound): call.lowered.count for call in binder.calls.values()}
    sent, messages, wire_bytes = np.zeros(len(binder.places), np.int64), 0, 0
    for operation, call in zip(operations, calls, strict=True):
        if call is not None:
            count, sums = counts[id(call)], call.sums
            sent[operation.ranks] += count * sums.sent
            messages += count * sums.messages
            wire_bytes += count * sums.wire_bytes
    most = int(sent.max(initial=0))
    return replace(totals, carried=whole, messages=messages, wire_bytes=wire_bytes, bytes_per_rank=most)


class _Binder:
    """Binds the calls of a plan, equal ones once, each to links with the rates that it gets. `topology` has the links
    of the profile."""

    def __init__(self, scenario: Scenario, rated: Topology, costs: CostSetting):
        self.scenario, self.rated, self.costs = scenario, rated, costs
        self.topology = served_by(rated, costs.links)
        self.places = placed(scenario, rated)
        self.calls: dict[tuple[CollectiveCall, tuple[int, ...]], PlannedCall] = {}

    @property
    def ways(self) -> set[str]:
        """Return the sharing rules of the calls (`fair`, `fifo`)."""
        return {call.lowered.point.params().sharing for call in self.calls.values()}

    def bound(self, call: CollectiveCall, ranks: tuple[int, ...]) -> PlannedCall:
        """Return a call of some ranks. Raises RefusedError if its algorithm cannot serve, and InputError."""
        key = call, ranks
        if key not in self.calls:
            try:
                self.calls[key] = self._bound(alone(self.scenario, self.places, call, ranks))
            except TopologyError:
                raise
            except InputError as error:  # other keys of the call are keys of the workload
                own = ("", "root")
                raise InputError(
                    replace(d, path="workload") if d.path in own else d for d in error.diagnostics
                ) from None
        return self.calls[key]

    def _bound(self, asked: Scenario) -> PlannedCall:
        """Return a call bound as if it ran alone; `join` lets it share links with others."""
        if asked.nbytes % asked.itemsize:
            why = f"{asked.collective} of {asked.nbytes} B is no whole number of {asked.dtype} elements"
            raise wrong("workload", why, f"write a multiple of {asked.itemsize} B")
        runs = executor(asked)
        if runs.alternatives(asked, self.rated)[0] is not asked:
            call = predict_call(asked, self.rated, self.costs).lowered
        else:
            call = runs.lower(asked, self.rated, self.costs)
        point, network, devices = call.point, call.network, call.places
        proved = source_of(point, network, devices)
        source = proved.source
        devices = (*devices, *agents_of(point, network, devices)[: source.agents])
        options: dict[str, Any] = {"itemsize": point.itemsize, "weights": point.weights}

        def of(binder: Callable[..., T]) -> T:
            schedule = written_out(source)
            return binder(schedule, network, devices, point.params(), point.nbytes, **options)

        make, in_loops, stream = functools.partial(of, bind), functools.partial(of, looped), None
        if isinstance(source, StreamedSchedule) and point.weights is None:
            stream = StreamedProgram(source, network, devices, point.params(), point.nbytes, point.itemsize)
        return PlannedCall(call, proved.proof, CallProgram(stream.bind if stream else make, stream, in_loops=in_loops))
