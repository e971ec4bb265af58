"""A workload simulated: its plan on a topology, as one program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.analysis import links
from simcoll.engines import event, fast
from simcoll.joint import Operation, join
from simcoll.prediction import placed, predict, topology_of
from simcoll.profile import load_profile
from simcoll.program import Program, bind
from simcoll.scenario import Point, Scenario
from simcoll.sources import source_of
from simcoll.stream import Stream
from simcoll.timeline import Timeline, Totals
from simcoll.topology import Topology
from simcoll.workload.plan import Call, Plan
from simcoll.workload.plans import plan_of

COMPUTING, LAUNCHING, CALLING = range(3)  # what a task is


@dataclass(frozen=True, eq=False)
class Step:
    """A workload on a topology: its plan, the program that it is, and what a run of it adds up to.

    `told`: what the template says of itself, e.g. how many buckets; `algorithms`: those that its calls run, `proved`:
    how. `rank` and `kind` of each task, (tasks,).
    """

    scenario: Scenario
    topology: Topology
    devices: tuple[str, ...]
    plan: Plan
    told: dict[str, object]
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
        found = fast.run(self.program).timeline
        return found or event.run(self.program)


def simulate(point: Scenario | Point) -> Step:
    """Simulate the workload of a point.

    Raises InputError for what the user can mend, RefusedError when an algorithm cannot serve, StuckError when the run
    cannot finish.
    """
    scenario = point.scenario if isinstance(point, Point) else point
    topology = topology_of(scenario)
    places = placed(scenario, topology)
    plan, told = plan_of(scenario.workload, len(places), scenario.itemsize)
    binder = _Binder(scenario, topology, places)
    apart = scenario.variability is not None and scenario.variability.launch_skew is not None
    operations, kinds = _operations(plan, binder, load_profile(scenario.profile).launch, apart)
    program = join(operations, plan.n, topology)
    totals, engine = None, "fast"
    if scenario.engine != "event":
        totals = fast.totals(program)
    if totals is None:
        timeline, engine = event.run(program), "event"  # which also says why a run cannot finish
        totals = Totals(
            makespan_ps=timeline.makespan_ps,
            carried=program.carried,
            bytes_per_rank=program.bytes_per_rank,
            messages=program.schedule.messages,
            wire_bytes=program.wire_bytes,
            shortcut="none",
        )
    algorithms = tuple(dict.fromkeys(binder.algorithms.values()))
    rank = np.concatenate([operation.ranks for operation in operations])
    kind = np.repeat(kinds, [len(operation.ranks) for operation in operations])
    proved = tuple(binder.proved)
    return Step(scenario, topology, places, plan, told, program, totals, algorithms, proved, engine, rank, kind)


def _operations(plan: Plan, binder: _Binder, launch: int, apart: bool) -> tuple[list[Operation], list[int]]:
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
            if launch or apart:
                found.append(Operation(ranks, None, launch, after))
                kinds.append(LAUNCHING)
                after = (len(found) - 1,)
            found.append(Operation(ranks, binder.program(work.call, work.ranks), 0, after))
            kinds.append(CALLING)
        number.append(len(found) - 1)
    return found, kinds


class _Binder:
    """Calls as programs: each proved schedule bound to the devices of its ranks, once for all calls that are alike."""

    def __init__(self, scenario: Scenario, topology: Topology, places: Sequence[str]):
        self.scenario, self.topology, self.places = scenario, topology, places
        self.programs: dict[tuple[Call, tuple[int, ...]], Program] = {}
        self.algorithms: dict[tuple[Call, tuple[int, ...]], str] = {}
        self.proved: dict[str, None] = {}  # how

    def program(self, call: Call, ranks: tuple[int, ...]) -> Program:
        """The program of a call."""
        key = call, ranks
        if key not in self.programs:
            self.programs[key] = self._bound(call, ranks)
        return self.programs[key]

    def _bound(self, call: Call, ranks: tuple[int, ...]) -> Program:
        devices = tuple(self.places[rank] for rank in ranks)
        asked = self._alone(call, devices)
        self.algorithms[call, ranks] = asked.algorithm
        source, how_proved = source_of(asked, self.topology, devices)
        self.proved[how_proved] = None
        schedule = source.schedule() if isinstance(source, Stream) else source
        where = (*devices, *self.topology.agents_for(devices)[: schedule.agents])
        how: dict[str, Any] = {"itemsize": asked.itemsize, "weights": asked.weights}
        return bind(schedule, self.topology, where, asked.params(), asked.nbytes, **how)

    def _alone(self, call: Call, devices: tuple[str, ...]) -> Scenario:
        """The scenario of a call by itself, with the algorithm that it runs."""
        whole = devices == tuple(self.places)
        own: dict[str, Any] = {
            "workload": None,
            "collective": call.collective,
            "algorithm": call.algorithm,
            "size": call.nbytes,
            "root": call.root,
            "weights": call.weights,
            "placement": devices,
            "ranks": None,
            "groups": self.scenario.groups if whole else None,
        }
        asked = self.scenario.model_copy(update=own)
        return asked if asked.algorithm != "auto" else asked.model_copy(update={"algorithm": predict(asked).algorithm})


def row(step: Step) -> dict[str, object]:
    """What results.csv says of a workload; see results.COLUMNS."""
    scenario, totals, topology = step.scenario, step.totals, step.topology
    binding = links.binding(totals, topology.bandwidths, step.step_ps)
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
    }
