"""A workload simulated: its plan on a topology, as one program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.engine import link_usage
from simcoll.engine.join import Operation, join
from simcoll.engine.program import Program
from simcoll.engine.run import Policy, run
from simcoll.engine.timeline import Timeline, Totals
from simcoll.prediction.workload_calls import Binder, BoundCall
from simcoll.scenario.faults import struck
from simcoll.scenario.scenario import Point, Scenario
from simcoll.topology.graph import Topology
from simcoll.workload.plan import CollectiveCall, WorkloadPlan
from simcoll.workload.templates import plan_of

COMPUTING, LAUNCHING, CALLING = range(3)  # what a task is


@dataclass(frozen=True, eq=False)
class WorkloadPrediction:
    """A workload on a topology: its plan, the program that it is, and what a run of it adds up to.

    `told`: what the template says of itself, e.g. how many buckets; `calls`: what each call of some ranks is bound to;
    `algorithms`: those that its calls run, `proved`: how. `rank` and `kind` of each task, (tasks,).
    """

    scenario: Scenario
    topology: Topology
    devices: tuple[str, ...]
    plan: WorkloadPlan
    told: dict[str, object]
    calls: Mapping[tuple[CollectiveCall, tuple[int, ...]], BoundCall]
    program: Program
    totals: Totals
    algorithms: tuple[str, ...]
    proved: tuple[str, ...]
    engine: str
    rank: NDArray[Any]
    kind: NDArray[Any]

    @property
    def step_ps(self) -> int:
        """From the start to the end of the last operation."""
        return self.totals.makespan_ps

    @property
    def compute_ps(self) -> int:
        """How long the rank computes that computes longest."""
        return max(self.plan.computed_ps())

    def timeline(self) -> Timeline:
        """When everything happens."""
        return run(self.program, Policy(keep="hops")).timeline


def simulate(point: Scenario | Point) -> WorkloadPrediction:
    """Simulate the workload of a point.

    Raises InputError for what the user can mend, RefusedError when an algorithm cannot serve, StuckError when the run
    cannot finish.
    """
    scenario = point.scenario if isinstance(point, Point) else point
    binder = Binder(scenario)
    topology, places = binder.topology, binder.places
    plan, told = plan_of(scenario.workload, len(places), scenario.itemsize)
    apart = scenario.variability is not None and scenario.variability.launch_skew is not None
    operations, kinds = _operations(plan, binder, apart)
    program = struck(join(operations, plan.n, binder.network), topology, scenario.striking)
    outcome = run(program, Policy("event" if scenario.engine == "event" else "auto", keep="totals"))
    calls = list(binder.calls.values())
    algorithms, protocols, proved = (
        tuple(dict.fromkeys(getattr(call, what) for call in calls)) for what in ("algorithm", "protocol", "proved")
    )
    rank = np.concatenate([operation.ranks for operation in operations])
    kind = np.repeat(kinds, [len(operation.ranks) for operation in operations])
    told = {**told, "protocol": ", ".join(protocols)} if protocols else told
    return WorkloadPrediction(
        scenario,
        topology,
        places,
        plan,
        told,
        binder.calls,
        program,
        outcome.totals,
        algorithms,
        proved,
        outcome.engine,
        rank,
        kind,
    )


def _operations(plan: WorkloadPlan, binder: Binder, apart: bool) -> tuple[list[Operation], list[int]]:
    """The plan's operations and their kinds; a call whose launch takes time, or is to be told `apart`, is two: the
    launch, then what is launched."""
    found: list[Operation] = []
    kinds: list[int] = []
    number: list[int] = []  # of the operation that ends each of the plan's
    for work in plan.works:
        ranks = np.asarray(work.ranks, np.int32)
        after = tuple(number[before] for before in work.before)
        if work.call is None:
            found.append(Operation(ranks, None, np.asarray(work.time_ps, np.int64), after))
            kinds.append(COMPUTING)
        else:
            bound = binder.bound(work.call, work.ranks)
            if bound.launch_ps or apart:
                found.append(Operation(ranks, None, bound.launch_ps, after))
                kinds.append(LAUNCHING)
                after = (len(found) - 1,)
            found.append(Operation(ranks, bound.program, 0, after, work.stream))
            kinds.append(CALLING)
        number.append(len(found) - 1)
    return found, kinds


def row(step: WorkloadPrediction) -> dict[str, object]:
    """What results.csv says of a workload; see results.COLUMNS."""
    scenario, totals, topology = step.scenario, step.totals, step.topology
    binding = link_usage.binding(totals, topology.bandwidths, step.step_ps)
    return {
        **describe(scenario),
        "topology": topology.name,
        "algorithm": ", ".join(step.algorithms) or None,
        "ranks": step.plan.n,
        "nodes": len({topology.node_of(device) for device in step.devices}),
        "time_us": step.step_ps / 1e6,
        "time_ps": step.step_ps,
        "messages": totals.messages,
        "wire_bytes": totals.wire_bytes,
        "lower_bound_us": step.compute_ps / 1e6,
        "engine": step.engine,
        "status": "ok",
        "shortcut": totals.shortcut,
        "proved": ", ".join(step.proved) or None,
        "bytes_per_rank": totals.bytes_per_rank,
        "binding_link": topology.link_names[binding.link] if binding else None,
        "binding_busy": binding.busy if binding else None,
        "step_us": step.step_ps / 1e6,
        "compute_us": step.compute_ps / 1e6,
        "exposed_us": (step.step_ps - step.compute_ps) / 1e6,
        **step.told,
    }


def describe(scenario: Scenario) -> dict[str, object]:
    """The columns that are known without running the point."""
    assert scenario.workload
    return {
        "scenario": scenario.name,
        "topology": scenario.topology.title,
        "collective": scenario.collective,
        "algorithm": scenario.workload.algorithm,
        "protocol": scenario.protocol,
        "ranks": scenario.ranks,
        "size_bytes": None,
        "seed": scenario.seed,
        "dtype": scenario.dtype,
        "profile": scenario.profile,
        "sharing": scenario.params().sharing,
        "workload": scenario.workload.template,
        **scenario.launch.columns,
    }
