"""A plan of several operations, predicted: one program of all its calls and computations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from simcoll.config.arrays import Array, Numbers
from simcoll.engine.binding import bind, written_out
from simcoll.engine.call_program import CallProgram
from simcoll.engine.composed import Joined, composed_ps
from simcoll.engine.joined_program import Operation, join
from simcoll.engine.looped import looped
from simcoll.engine.program import Program
from simcoll.engine.run import Outcome, StreamedProgram, run
from simcoll.engine.timeline import Totals
from simcoll.errors import InputError, TopologyError, wrong
from simcoll.prediction._call_run import predict_call
from simcoll.prediction._schedule_source import agents_of, source_of
from simcoll.prediction.lowering import alone, executor
from simcoll.prediction.placing import placed, rated_topology, served_by
from simcoll.prediction.predicted import CALLING, COMPUTING, LAUNCHING, CountedLinks, PlannedCall, PlanTasks, Prediction
from simcoll.prediction.program_run import ProgramRun, policy
from simcoll.scenario.faults import struck
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.ir import StreamedSchedule
from simcoll.topology.graph import Topology
from simcoll.workload.plan import CollectiveCall, WorkloadPlan
from simcoll.workload.templates import plan_of

T = TypeVar("T")


def predict_plan(scenario: Scenario, topology: Topology | None, costs: CostSetting) -> Prediction:
    """The prediction of a workload's plan. Raises like `predict`."""
    binder = _Binder(scenario, topology or rated_topology(scenario), costs)
    plan, columns = plan_of(scenario.workload, len(binder.places), scenario.itemsize)
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
    shared: tuple[set[CallProgram], Joined] = set(), {}  # with replications: calls that were run, and some together
    took = composed_ps(operations, calls, plan.n, binder.topology, *shared) if alone else None
    if took is None and len(binder.ways) > 1:  # calls that meet share links in one way
        fair = scenario.model_copy(update={"model": scenario.model.model_copy(update={"sharing": "fair"})})
        return replace(predict_plan(fair, topology, costs), scenario=scenario)

    def otherwise(durations: Numbers) -> int | None:
        if took is None:  # calls met already
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
    prediction = Prediction(
        scenario=scenario,
        costs=costs,
        topology=binder.topology,
        devices=binder.places,
        plan=plan,
        calls=binder.calls,
        run=ran,
        totals=_of_all(ran.totals, carried, rates, operations, calls, links, binder),
        bound_ps=lambda: max(plan.computed_ps()),
        anew=functools.partial(predict_plan, scenario, topology),
        tasks=tasks,
        seen=links,
        columns=columns,
        only=_only(scenario, plan, binder, topology),
    )
    return replace(prediction, columns={**columns, "protocol": prediction.protocol}) if binder.calls else prediction


def _only(scenario: Scenario, plan: WorkloadPlan, binder: _Binder, topology: Topology | None) -> Prediction | None:
    """The call by itself that the plan is no more than; None of another plan, or of a disturbed one."""
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
    """The plan's operations, the calls that some of them are, and their kinds; a call whose launch takes time, or is to
    be disturbed `apart`, is two: the launch, then what is launched."""
    operations: list[Operation] = []
    calls: list[CallProgram | None] = []
    kinds: list[int] = []
    members: dict[int, Array] = {}  # of tuples of ranks, of which there are few
    equal: dict[tuple[int, ...], Array] = {}
    last: list[int] = []  # the operation that ends each of the plan's
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
            launch_ps = call.lowered.launch_ps(binder.costs)
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
    """The bytes of calls over links, and the B/s of these as calls see them: (views, links), a view for those that see
    links alike."""
    views: dict[tuple[bytes, bytes], tuple[Numbers, Numbers]] = {}
    for call in calls:
        if call is not None:
            rates, late = call.network.bandwidths, call.network.latencies
            view = views.setdefault((rates.tobytes(), late.tobytes()), (np.zeros(len(rates), np.int64), rates))
            view[0][:] += call.sums.carried
    if not views:  # operations only compute
        return np.zeros((1, len(network.bandwidths)), np.int64), network.bandwidths[None]
    return np.stack([carried for carried, _ in views.values()]), np.stack([rates for _, rates in views.values()])


def _links(names: tuple[str, ...], binder: _Binder) -> CountedLinks:
    """The links of all calls by `names`, as the topology has them, or else as a call sees them."""
    known: dict[str, tuple[str, int]] = {}
    for each in (binder.topology, *(call.lowered.topology(binder.costs) for call in binder.calls.values())):
        if each.link_names is not binder.topology.link_names or not known:
            for name, kind, rate in zip(each.link_names, each.link_kinds, each.bandwidths.tolist(), strict=True):
                known.setdefault(name, (kind, rate))
    kinds, rates = zip(*(known[name] for name in names), strict=True) if names else ((), ())
    return CountedLinks(names, kinds, np.array(rates, np.int64))


def _of_all(
    totals: Totals,
    carried: Numbers,
    rates: Numbers,
    operations: Sequence[Operation],
    calls: Sequence[CallProgram | None],
    links: CountedLinks,
    binder: _Binder,
) -> Totals:
    """Totals of all channels, of which a call's program may be one. A byte on a link that a channel has a share of
    counts as much of the link as it does in the call by itself."""
    number = dict(zip(links.names, range(len(links.names)), strict=True))
    served: dict[bytes, Array] = {}
    for planned in binder.calls.values():
        if planned.bound:
            names = planned.lowered.rated.link_names
            own = range(len(names)) if names is links.names else [number[name] for name in names]
            view, serves = links.capacities.copy(), links.capacities.astype(float)
            view[len(binder.topology.bandwidths) :] = 1  # as `join` has those that a call does not see
            view[own], serves[own] = planned.bound.network.bandwidths, planned.lowered.capacities(binder.costs)
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
    """Binds the calls of a plan, once those that are alike, each on links as it has them. `topology` has links as they
    serve."""

    def __init__(self, scenario: Scenario, rated: Topology, costs: CostSetting):
        self.scenario, self.rated, self.costs = scenario, rated, costs
        self.topology = served_by(rated, costs.links)
        self.places = placed(scenario, rated)
        self.calls: dict[tuple[CollectiveCall, tuple[int, ...]], PlannedCall] = {}

    @property
    def ways(self) -> set[str]:
        """The ways in which its calls share links."""
        return {call.lowered.point(self.costs).params().sharing for call in self.calls.values()}

    def bound(self, call: CollectiveCall, ranks: tuple[int, ...]) -> PlannedCall:
        """A call of some ranks; raises RefusedError if its algorithm cannot serve, InputError for wrong input."""
        key = call, ranks
        if key not in self.calls:
            try:
                self.calls[key] = self._bound(alone(self.scenario, self.places, call, ranks))
            except TopologyError:
                raise
            except InputError as error:  # keys that only the call has stand in the workload
                own = ("", "root")
                raise InputError(
                    replace(d, path="workload") if d.path in own else d for d in error.diagnostics
                ) from None
        return self.calls[key]

    def _bound(self, asked: Scenario) -> PlannedCall:
        """A call bound as it runs by itself; `join` lets it share links with others."""
        if asked.nbytes % asked.itemsize:
            why = f"{asked.collective} of {asked.nbytes} B: no whole elements of {asked.dtype}"
            raise wrong("workload", why, f"write a multiple of {asked.itemsize} B")
        runs = executor(asked)
        if runs.alternatives(asked, self.rated)[0] is not asked:
            chosen = predict_call(asked, self.rated, self.costs)
            ran = chosen.scenario
            own = {"algorithm": chosen.algorithm, "protocol": ran.protocol, "model": ran.model}
            asked = asked.model_copy(update=own)
        call = runs.lower(asked, self.rated)
        point, network, devices = call.point(self.costs), call.network(self.costs), call.places
        source, proved = source_of(point, network, devices)
        devices = (*devices, *agents_of(point, network, devices)[: source.agents])
        options: dict[str, Any] = {"itemsize": point.itemsize, "weights": point.weights}

        def of(binder: Callable[..., T]) -> T:
            schedule = written_out(source)
            return binder(schedule, network, devices, point.params(), point.nbytes, **options)

        make, in_loops, stream = functools.partial(of, bind), functools.partial(of, looped), None
        if isinstance(source, StreamedSchedule) and point.weights is None:
            stream = StreamedProgram(source, network, devices, point.params(), point.nbytes, point.itemsize)
        return PlannedCall(call, proved, CallProgram(stream.bind if stream else make, stream, in_loops=in_loops))
