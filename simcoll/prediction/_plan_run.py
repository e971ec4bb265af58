"""A plan of several operations, predicted: one program of all its calls and computations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simcoll.engine.binding import bind
from simcoll.engine.joined_program import Operation, join
from simcoll.engine.run import run
from simcoll.engine.timeline import Totals
from simcoll.errors import InputError, TopologyError, wrong
from simcoll.prediction._call_run import predict_call
from simcoll.prediction._schedule_source import agents_of, source_of
from simcoll.prediction.lowering import executor
from simcoll.prediction.placing import placed, rated_topology, served_by
from simcoll.prediction.predicted import CALLING, COMPUTING, LAUNCHING, PlannedCall, PlanTasks, Prediction
from simcoll.prediction.program_run import ProgramRun, policy
from simcoll.scenario.faults import struck
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.streamed import StreamedSchedule
from simcoll.topology.graph import Topology
from simcoll.workload.plan import CollectiveCall, WorkloadPlan
from simcoll.workload.templates import plan_of


def predict_plan(scenario: Scenario, topology: Topology | None, costs: CostSetting) -> Prediction:
    """The prediction of a workload's plan. Raises like `predict`."""
    binder = _Binder(scenario, topology or rated_topology(scenario), costs)
    plan, columns = plan_of(scenario.workload, len(binder.places), scenario.itemsize)
    apart = scenario.variability is not None and scenario.variability.launch_skew is not None
    operations, kinds = _operations(plan, binder, apart)

    program = struck(join(operations, plan.n, binder.topology), binder.topology, scenario.striking)
    ran = ProgramRun(scenario, lambda: program, run(program, policy(scenario, "totals")), program)
    lengths = [len(operation.ranks) for operation in operations]
    tasks = PlanTasks(np.concatenate([operation.ranks for operation in operations]), np.repeat(kinds, lengths))
    prediction = Prediction(
        scenario=scenario,
        costs=costs,
        topology=binder.topology,
        devices=binder.places,
        plan=plan,
        calls=binder.calls,
        run=ran,
        totals=_of_all(ran, operations, binder),
        lower_bound_ps=max(plan.computed_ps()),
        anew=functools.partial(predict_plan, scenario, topology),
        tasks=tasks,
        columns=columns,
    )
    return replace(prediction, columns={**columns, "protocol": prediction.protocol}) if binder.calls else prediction


def _operations(plan: WorkloadPlan, binder: _Binder, apart: bool) -> tuple[list[Operation], list[int]]:
    """The plan's operations and their kinds; a call whose launch takes time, or is to be disturbed `apart`, is two: the
    launch, then what is launched."""
    operations: list[Operation] = []
    kinds: list[int] = []
    last: list[int] = []  # the operation that ends each of the plan's
    for work in plan.works:
        ranks = np.asarray(work.ranks, np.int32)
        after = tuple(last[before] for before in work.before)
        if work.call is None:
            operations.append(Operation(ranks, None, np.asarray(work.time_ps, np.int64), after))
            kinds.append(COMPUTING)
        else:
            call = binder.bound(work.call, work.ranks)
            launch_ps = call.lowered.launch_ps(binder.costs)
            if launch_ps or apart:
                operations.append(Operation(ranks, None, launch_ps, after))
                kinds.append(LAUNCHING)
                after = (len(operations) - 1,)
            operations.append(Operation(ranks, call.program, 0, after, work.stream))
            kinds.append(CALLING)
        last.append(len(operations) - 1)
    return operations, kinds


def _of_all(ran: ProgramRun, operations: Sequence[Operation], binder: _Binder) -> Totals:
    """Totals of all channels, of which a call's program may be one. A byte on a link that a channel has a share of
    counts as what all channels bring meanwhile."""
    program, totals, capacity = ran.program, ran.totals, binder.topology.bandwidths
    carried, rates = (np.reshape(column, (program.views, -1)) for column in (totals.carried, program.bandwidths))
    links = np.s_[:, : len(capacity)]
    whole = np.rint(carried[links] * (capacity / np.maximum(1, rates[links]))).astype(np.int64).sum(axis=0)
    counts = {id(call.program): call.lowered.count for call in binder.calls.values()}
    sent, messages, wire_bytes = np.zeros(len(binder.places), np.int64), 0, 0
    for operation in operations:
        if (part := operation.program) is not None:
            count = counts[id(part)]
            sent[operation.ranks] += count * part.sent_bytes
            messages += count * part.schedule.messages * part.loops
            wire_bytes += count * part.wire_bytes
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

    def bound(self, call: CollectiveCall, ranks: tuple[int, ...]) -> PlannedCall:
        """A call of some ranks; raises RefusedError if its algorithm cannot serve, InputError for wrong input."""
        key = call, ranks
        if key not in self.calls:
            try:
                self.calls[key] = self._bound(self._alone(call, tuple(self.places[rank] for rank in ranks)))
            except TopologyError:
                raise
            except InputError as error:  # keys that only the call has stand in the workload
                own = ("", "root")
                raise InputError(
                    replace(d, path="workload") if d.path in own else d for d in error.diagnostics
                ) from None
        return self.calls[key]

    def _alone(self, call: CollectiveCall, devices: tuple[str, ...]) -> Scenario:
        """The scenario of a call by itself."""
        own: dict[str, Any] = {
            "workload": None,
            "faults": (),
            "variability": None,
            "replications": None,
            "collective": call.collective,
            "algorithm": call.algorithm,
            "size": call.nbytes,
            "root": call.root,
            "weights": call.weights,
            "placement": devices,
            "ranks": None,
            "groups": self.scenario.groups if devices == tuple(self.places) else None,
        }
        return self.scenario.model_copy(update=own)

    def _bound(self, asked: Scenario) -> PlannedCall:
        """A call bound as it runs by itself; `join` lets it share links with others."""
        if asked.nbytes % asked.itemsize:
            why = f"{asked.collective} of {asked.nbytes} B: no whole elements of {asked.dtype}"
            raise wrong("workload", why, f"write a multiple of {asked.itemsize} B")
        runs = executor(asked)
        if runs.alternatives(asked, self.rated)[0] is not asked:
            chosen = predict_call(asked, self.rated, self.costs)
            asked = asked.model_copy(update={"algorithm": chosen.algorithm, "protocol": chosen.scenario.protocol})
        call = runs.lower(asked, self.rated)
        point, network, devices = call.point(self.costs), call.network(self.costs), call.places
        source, proved = source_of(point, network, devices)
        schedule = source.schedule() if isinstance(source, StreamedSchedule) else source
        devices = (*devices, *agents_of(point, network, devices)[: schedule.agents])
        options: dict[str, Any] = {"itemsize": point.itemsize, "weights": point.weights}
        program = bind(schedule, network, devices, point.params(), point.nbytes, **options)
        return PlannedCall(call, program, proved)
