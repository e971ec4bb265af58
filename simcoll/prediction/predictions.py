"""Predictions: what an engine ran for a point, and the times and other numbers computed from this run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.engine import link_usage
from simcoll.engine.lower_bounds import LowerBound
from simcoll.engine.program import Program
from simcoll.engine.run import MOST_HELD, Keep, Outcome, Policy, makespan_ps, run
from simcoll.engine.staging_buffers import Staged, staged
from simcoll.engine.timeline import Timeline, Totals
from simcoll.nccl.tuner_constants import unknown_first
from simcoll.prediction.lowered_call import PlainCall
from simcoll.prediction.placed_topology import arrivals_of
from simcoll.scenario import caveats
from simcoll.scenario.faults import struck
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import AnySchedule
from simcoll.topology.graph import Topology
from simcoll.units import format_duration, format_size
from simcoll.workload.plan import CollectiveCall, WorkloadPlan

if TYPE_CHECKING:
    from simcoll.engine.call_program import CallProgram
    from simcoll.scenario.faults import Fault, FaultWindow


COMPUTING, LAUNCHING, CALLING, MEASURED, WAITING = range(5)  # kinds of tasks; MEASURED: calls of a recording


class ProgramRun:
    """A program that an engine ran for a point. The program and timeline are computed again on demand if not kept."""

    def __init__(self, point: Scenario, make: Callable[[], Program], outcome: Outcome, program: Program | None = None):
        self.point, self.make, self.totals, self.engine = point, make, outcome.totals, outcome.engine
        if program:
            self.program = program
        if outcome.kept:
            self.timeline = outcome.kept

    @cached_property
    def program(self) -> Program:
        """Return the program with its sizes and with the routes as planned."""
        return self.make()

    @cached_property
    def timeline(self) -> Timeline:
        """Return the start and end of every transfer, computed now if the run did not keep it."""
        return run(self.program, policy(self.point, "hops")).timeline

    @property
    def went(self) -> Program:
        """Return the program with the routes that its transfers finally took (faults may reroute them)."""
        return self.program.as_it_went(self.timeline.way)

    @property
    def timed(self) -> bool:
        """Whether the timeline is already in memory."""
        return "timeline" in vars(self)


def policy(point: Scenario, keep: Keep = "auto") -> Policy:
    """Return how to run a point: with which engine, with or without shortcuts, and what to `keep`."""
    return Policy("event" if point.engine == "event" else "auto", point.shortcuts == "on", keep)


class PlannedCall(NamedTuple):
    """A call of a workload's plan: as lowered by its executor, how its schedule was proved, and its program."""

    lowered: PlainCall
    proved: str
    bound: CallProgram | None = None  # None if the call is run by itself


PlannedCalls = dict[tuple[CollectiveCall, tuple[int, ...]], PlannedCall]  # by call of the plan and its ranks


class CountedLinks(NamedTuple):
    """The links on which a run counts bytes, by name, kind and B/s: the topology's, then those that only calls have."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    capacities: NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class PlanTasks:
    """The tasks of a workload's joined program; an operation has one task for each of its ranks. `ranks`, `kinds` and
    `durations` (ps; one for all, or one for each rank) are lists by operation; `rank`, `kind` and `duration` are arrays
    by task, (tasks,), made on demand. `alone` returns the plan's time in ps under other durations, without a joint run.
    It returns None if calls share a link, or if the point forbids shortcuts."""

    ranks: Sequence[NDArray[Any]]
    kinds: Sequence[int]
    durations: Sequence[int | NDArray[Any]]
    alone: Callable[[NDArray[np.int64]], int | None]

    @cached_property
    def rank(self) -> NDArray[Any]:
        """Return the rank of each task."""
        return np.concatenate(self.ranks)

    @cached_property
    def kind(self) -> NDArray[Any]:
        """Return the kind of each task."""
        return np.repeat(self.kinds, list(map(len, self.ranks)))

    @cached_property
    def duration(self) -> NDArray[np.int64]:
        """Return the duration of each task, int64 (tasks,), in ps."""
        both = zip(self.durations, self.ranks, strict=True)
        return np.concatenate([np.broadcast_to(each, len(ranks)) for each, ranks in both]).astype(np.int64)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Prediction:
    """The predicted time of one point, and the simulation that gave this time.

    A collective gives a `CallPrediction`, a workload a `StepPrediction`. Most users need `time_us`, `verdict`,
    `algorithm`, `busbw`, `timeline` and `links`. `scenario` holds the keys of the point, with the chosen algorithm;
    `asked` is the algorithm that the point names. `totals` counts the bytes on links, for all channels. `n` is the
    number of all ranks. `launch_ps` is the time before the first transfer. `host_ps` is the host's time for a call.
    Both are 0 for a workload, whose plan contains the launches. `struck` lists the faults that happened.

    >>> from simcoll import predict
    >>> hosts = {"fabric": "ring", "hosts": 4, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}}
    >>> found = predict("all_reduce", on=hosts, size="4 kB", algorithm="ring")
    >>> found.time_us, found.steps
    (12.0, 6)
    """

    scenario: Scenario
    costs: CostSetting
    topology: Topology
    devices: tuple[str, ...]
    run: ProgramRun
    totals: Totals
    bound: Callable[[], LowerBound]
    anew: Callable[[CostSetting], Prediction]
    n: int
    planned: Sequence[PlannedCall]
    counted: CountedLinks
    launch_ps: int = 0
    host_ps: int = 0
    asked: str = ""
    struck: tuple[Fault, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        size = [] if self.scenario.workload or not self.scenario.nbytes else [format_size(self.scenario.nbytes)]
        call = ", ".join([self.scenario.collective, *filter(None, [self.algorithm]), *size])
        return f"Prediction({call}, {self.n} ranks, {format_duration(self.time_ps)})"

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        from simcoll.prediction.predict import row
        from simcoll.prediction.summary_sentence import of_rows

        return of_rows([row(self)])

    def __str__(self) -> str:
        unknown, others = unknown_first(caveats.notes([self.scenario]))
        return "\n".join([*unknown, self.verdict, *others])

    @property
    def lead(self) -> dict[str, int]:
        """Time before the first transfer by cause, in ps. Empty for a workload, whose plan contains the launches."""
        return {}

    @cached_property
    def rails(self) -> dict[int, tuple[int, ...]]:
        """For each link number that the program used: the numbers of all links that carry equal bytes at equal times.
        An NCCL call is simulated on one channel, which stands for all its channels."""
        return {link: (link,) for link in self._used}

    @property
    def _used(self) -> list[int]:
        used: list[int] = np.flatnonzero(self.totals.carried).tolist()
        return used

    def with_faults(self, program: Program, faults: Sequence[Fault]) -> Program:
        """Return the point's program with the changes of links that faults cause."""
        return struck(program, self.topology, faults, self.launch_ps)

    def retimed(self, costs: CostSetting) -> int:
        """Return the time that the point takes with other costs, in ps."""
        return self.time_ps if costs is self.costs else self.anew(costs).time_ps

    # --- times ---

    @property
    def compute_ps(self) -> int | None:
        """Computing time of the rank that computes longest, in ps. None for a collective."""
        return None

    @property
    def steps(self) -> int | None:
        """Number of steps of the schedule. None for a workload."""
        return None

    @property
    def staged(self) -> Staged | None:
        """Data that reached a receiver while the memory for them was still in use. None if the timeline was not kept,
        or if the simulation did not run one whole collective."""
        return None

    @cached_property
    def time_ps(self) -> int:
        """The predicted time in ps: the time of the GPUs, or the time of the host if it is longer."""
        return max(self.called_ps, self.host_ps)

    @property
    def time_us(self) -> float:
        """The predicted time in us, for reading. `time_ps` is exact."""
        return self.time_ps / 1e6

    @cached_property
    def called_ps(self) -> int:
        """Time of the GPUs in ps, from the launch to the end of the last transfer; at least the last rank's arrival
        time."""
        return self._until(self.totals.makespan_ps) + self.launch_ps

    def _until(self, makespan_ps: int) -> int:
        return max(makespan_ps, *arrivals_of(self.scenario, len(self.devices)).values(), 0)

    @property
    def waited_ps(self) -> int:
        """Time in ps that GPUs wait for the host."""
        return self.time_ps - self.called_ps

    @property
    def waiting_ps(self) -> int | None:
        """Time of a step in ps in which the rank that computes longest must wait for other ranks' computations, e.g.
        the bubble of a pipeline, or for its host. It would be the same if communication took no time. None for a
        collective."""
        return None

    @property
    def exposed_ps(self) -> int | None:
        """Time that communication adds to a step, in ps: what remains beside `compute_ps` and `waiting_ps`. None for a
        collective."""
        parts = self.compute_ps, self.waiting_ps
        return None if None in parts else self.time_ps - sum(filter(None, parts))

    @cached_property
    def lower_bound(self) -> LowerBound:
        """A time that no schedule can beat on these links, and what gives it."""
        return self.bound()

    @property
    def lower_bound_ps(self) -> int:
        """A time in ps that no schedule can beat on these links."""
        return self.lower_bound.ps

    @cached_property
    def fault_windows(self) -> Sequence[FaultWindow]:
        """The times at which faults acted on links."""
        if not self.struck:
            return ()
        from simcoll.scenario.faults import windows

        return windows(self.struck, self.topology.link_names)

    # --- names of what ran ---

    @property
    def algorithm(self) -> str:
        """Name of the algorithm that ran. For a workload, the names of the algorithms of all its calls."""
        return ", ".join(dict.fromkeys(call.lowered.algorithm for call in self.planned))

    @property
    def executor(self) -> str | None:
        """How the calls ran on GPUs: `nccl`, `msccl` or `p2p`. None with a profile without `kernels`."""
        return ", ".join(dict.fromkeys(call.lowered.executor for call in self.planned if call.lowered.executor)) or None

    @property
    def protocol(self) -> str:
        """NCCL's protocol. For a workload, the protocols of all its calls."""
        return ", ".join(dict.fromkeys(call.lowered.protocol for call in self.planned)) or self.scenario.protocol

    @property
    def sharing(self) -> str:
        """How messages share a link: `fair` (at the same time) or `fifo` (one after the other)."""
        ways = dict.fromkeys(call.lowered.point.params().sharing for call in self.planned)
        return ", ".join(ways) or self.scenario.params().sharing

    @property
    def proved(self) -> str:
        """How the schedules were proved: `full`, `fingerprint` or `off`."""
        return ", ".join(dict.fromkeys(call.proved for call in self.planned))

    @cached_property
    def nodes(self) -> int:
        """Number of nodes that the ranks are on."""
        return self.topology.nodes_of(self.devices[: self.n])

    @property
    def ranks(self) -> int:
        """Number of ranks that take part. With `subgroups`, the ranks of one group."""
        return len(self.scenario.subgroups[0]) if self.scenario.subgroups else self.n

    @property
    def algbw(self) -> float | None:
        """Size divided by time, in GB/s. None for a barrier or a workload."""
        nbytes = self.scenario.nbytes
        return nbytes / (self.time_ps / 1e12) / 1e9 if self.time_ps and nbytes else None

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth as nccl-tests defines it, in GB/s. None for a barrier or a workload."""
        algbw = self.algbw
        return None if algbw is None else algbw * float(collective(self.scenario.collective).busbw(self.ranks))

    # --- what engines ran ---

    @property
    def engine(self) -> str:
        """Name of the engine that ran: `fast` or `event`."""
        return self.run.engine

    @property
    def program(self) -> Program:
        """The simulated program: the schedule with its sizes and channels, and the routes that transfers finally took.
        A long program is computed only when you ask for it."""
        return self.run.went if self.run.program.changes else self.run.program

    @property
    def timeline(self) -> Timeline:
        """The start and the end of every transfer."""
        return self.run.timeline

    @cached_property
    def links(self) -> CountedLinks:
        """The links, each with the bandwidth for the bytes counted on it. For a link to the network in an NCCL call
        this is the bandwidth of all NICs that the call uses. For a link with a fault it is the mean bandwidth during
        the run."""
        links = self.counted
        if not self.scenario.striking:  # else a long program would be made
            return links
        kept = link_usage.kept(self.run.program, self.totals.makespan_ps).reshape(-1, len(links.names))
        return links._replace(capacities=links.capacities * kept.min(axis=0))

    @cached_property
    def busy(self) -> NDArray[np.float64]:
        """Share of the time in which each link carried bytes at full rate: an array with a number for each link."""
        carried = np.zeros(len(self.totals.carried), np.int64)
        for link, alike in self.rails.items():
            carried[list(alike)] += self.totals.carried[link]
        return link_usage.busy(carried, self.links.capacities, self.time_ps)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CallPrediction(Prediction):
    """The prediction of one collective call; `source` is its schedule, or the stream of the schedule's steps."""

    source: AnySchedule

    @property
    def lowered(self) -> PlainCall:
        """Return the call as its executor turned it into a simulation."""
        return self.planned[0].lowered

    @property
    def steps(self) -> int:
        """Return the number of steps of the call's schedule."""
        return self.source.n_steps

    @property
    def staged(self) -> Staged | None:
        """Return the data that waited at receivers; None if there is no timeline of the whole call."""
        whole = self.lowered.whole and not self.scenario.in_buckets
        return staged(self.run.went, self.run.timeline) if whole and self.run.timed else None

    @property
    def lead(self) -> dict[str, int]:
        """Return the time in ps before the first transfer, by cause, e.g. {"launch": 5_000_000}."""
        waited = {"host": self.waited_ps} if self.waited_ps else {}
        return {**waited, **self.lowered.lead}

    @cached_property
    def rails(self) -> dict[int, tuple[int, ...]]:
        """Return, for each link number in use, the numbers of links that carry equal bytes at equal times."""
        return self.lowered.rails(self._used)

    def with_faults(self, program: Program, faults: Sequence[Fault]) -> Program:
        """Return the call's program with the changes of links that faults cause."""
        return self.lowered.struck(program, faults)

    def retimed(self, costs: CostSetting) -> int:
        """Return the time in ps that the call takes under other costs.

        Schedule, proof, routes and dependencies do not depend on costs; they are reused if the program was kept.
        """
        # links change, or there are several calls, or channels
        apart = self.scenario.striking or self.scenario.in_buckets or len(self.lowered.differing()) > 1
        if costs is self.costs or apart or self.run.totals.messages > MOST_HELD:
            return super().retimed(costs)
        call = self.lowered.under(costs)
        program = dataclasses.replace(
            self.program,
            params=dataclasses.replace(self.program.params, **call.params),
            bandwidths=call.bandwidths,
            latencies=call.latencies,
        )
        took = makespan_ps(program, self.totals.shortcut != "none")  # no shortcut then: as a rule none helps now
        return max(self._until(took) + call.launch_ps, call.host_ps)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepPrediction(Prediction):
    """The prediction of a workload's plan (training step). `calls` are the plan's calls with their programs, `tasks`
    the tasks of the joined program, `counted` the links of all calls. `alone` returns the prediction of the call if the
    plan is one call of all ranks, without disturbances, else None."""

    plan: WorkloadPlan
    calls: PlannedCalls
    tasks: PlanTasks
    alone: Callable[[], CallPrediction | None]

    @cached_property
    def only(self) -> CallPrediction | None:
        """Return the prediction of the plan's single call; None if the plan has other operations."""
        return self.alone()

    @property
    def compute_ps(self) -> int:
        """Return how long the rank computes that computes longest, in ps."""
        return max(self.plan.computed_ps())

    @cached_property
    def waiting_ps(self) -> int:
        """Return how much longer the plan takes than its longest computation if calls take no time, in ps."""
        return self.plan.without_communication_ps() - self.compute_ps
