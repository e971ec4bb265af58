"""A plan of several operations, predicted: one program of all its calls and computations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simcoll.engine.joined_program import Operation, join
from simcoll.engine.program import bind
from simcoll.engine.run import run
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

    program = struck(join(operations, plan.n, binder.network), binder.topology, scenario.striking)
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
        totals=ran.totals,
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


class _Binder:
    """Binds the calls of a plan, once those that are alike. `topology` has links as they serve, `network` as programs
    are bound to them."""

    def __init__(self, scenario: Scenario, rated: Topology, costs: CostSetting):
        self.scenario, self.rated, self.costs = scenario, rated, costs
        self.executor = executor(scenario.profile)
        self.topology = served_by(rated, costs.links)
        self.network = self.executor.plan_network(self.topology)
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
        """A call bound beside others. It shares links with them as one flow a rank, whatever channels it has: so it may
        take another time than by itself."""
        if asked.nbytes % asked.itemsize:
            why = f"{asked.collective} of {asked.nbytes} B: no whole elements of {asked.dtype}"
            raise wrong("workload", why, f"write a multiple of {asked.itemsize} B")
        if self.executor.alternatives(asked, self.rated)[0] is not asked:
            asked = asked.model_copy(update={"algorithm": predict_call(asked, self.rated, self.costs).algorithm})
        call = self.executor.lower_in_plan(asked, self.rated)
        point, params, nbytes = call.point_in_plan(self.costs)
        devices: Sequence[str] = call.places
        source, proved = source_of(point, self.network, devices)
        schedule = source.schedule() if isinstance(source, StreamedSchedule) else source
        devices = (*devices, *agents_of(point, self.network, devices)[: schedule.agents])
        options: dict[str, Any] = {"itemsize": point.itemsize, "weights": point.weights}
        return PlannedCall(call, bind(schedule, self.network, devices, params, nbytes, **options), proved)
