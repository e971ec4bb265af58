"""Predictions: what was run of a point, and the times and numbers that this gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.engine import link_usage
from simcoll.engine.program import Program
from simcoll.engine.run import MOST_HELD, Keep, Outcome, Policy, makespan_ps, run
from simcoll.engine.staging_buffers import Staged, staged
from simcoll.engine.timeline import Timeline, Totals
from simcoll.prediction.lowered_call import PlainCall
from simcoll.prediction.placed_topology import arrivals_of
from simcoll.scenario import caveats
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.collectives import collective
from simcoll.schedule.ir import AnySchedule
from simcoll.topology.graph import Topology
from simcoll.units import format_duration, format_size
from simcoll.workload.plan import CollectiveCall, WorkloadPlan

if TYPE_CHECKING:
    from simcoll.engine.call_program import CallProgram
    from simcoll.scenario.faults import Fault, FaultWindow


COMPUTING, LAUNCHING, CALLING = range(3)  # kinds of tasks


class ProgramRun:
    """A program that an engine ran for a point. The timeline of a large one, and what was not kept of it, is made when
    asked for."""

    def __init__(self, point: Scenario, make: Callable[[], Program], outcome: Outcome, program: Program | None = None):
        self.point, self.make, self.totals, self.engine = point, make, outcome.totals, outcome.engine
        if program:
            self.program = program
        if outcome.kept:
            self.timeline = outcome.kept

    @cached_property
    def program(self) -> Program:
        """The program, as it was bound."""
        return self.make()

    @cached_property
    def timeline(self) -> Timeline:
        """Times of everything that happened."""
        return run(self.program, policy(self.point, "hops")).timeline

    @property
    def went(self) -> Program:
        """The program with the ways that its transfers took in the end, which are those of the timeline."""
        return self.program.as_it_went(self.timeline.way)

    @property
    def timed(self) -> bool:
        """Whether the timeline is at hand."""
        return "timeline" in vars(self)


def policy(point: Scenario, keep: Keep = "auto") -> Policy:
    """The engine and the shortcuts that a point allows."""
    return Policy("event" if point.engine == "event" else "auto", point.shortcuts == "on", keep)


class PlannedCall(NamedTuple):
    """A call of a plan as it is run."""

    lowered: PlainCall
    proved: str
    bound: CallProgram | None = None  # None of a call that is run by itself


class CountedLinks(NamedTuple):
    """Links, by name, kind and B/s, on which totals count bytes: those of the topology, and others that calls see."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    capacities: NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class PlanTasks:
    """Rank, kind and duration in ps of each task of a joined program, (tasks,), laid out when they are asked for:
    those of each operation together, which has its ranks, its kind, and the duration of each or of all. `alone` gives
    the time of the plan, in ps, with other durations, from its calls alone; None where these meet, or are not to be run
    so."""

    ranks: Sequence[NDArray[Any]]
    kinds: Sequence[int]
    durations: Sequence[int | NDArray[Any]]
    alone: Callable[[NDArray[np.int64]], int | None]

    @cached_property
    def rank(self) -> NDArray[Any]:
        """The rank of each."""
        return np.concatenate(self.ranks)

    @cached_property
    def kind(self) -> NDArray[Any]:
        """The kind of each."""
        return np.repeat(self.kinds, list(map(len, self.ranks)))

    @cached_property
    def duration(self) -> NDArray[np.int64]:
        """The duration of each."""
        both = zip(self.durations, self.ranks, strict=True)
        return np.concatenate([np.broadcast_to(each, len(ranks)) for each, ranks in both]).astype(np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """One point: its plan, what engines ran of it, and what that adds up to.

    A plan of one call is run as one program; then `lowered` is that call, `source` its schedule, or the stream
    of its steps where it is long, and `totals` are of all channels, of which the program may be one. Other plans are
    joined; then `tasks` says what the tasks of the program are. `columns` are those that the workload's template adds
    to results. `host_ps` is the host's time for a call: the next begins no sooner. `asked` is the algorithm as the
    point asked for it, of which `scenario` may have the choice. `seen` are the links of a joined plan.
    `bound_ps` finds `lower_bound_ps`, `anew` predicts the same under other costs. `only` is the call by itself, where
    an undisturbed workload is no more than one call of all ranks. `struck` are the faults that happened.

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
    plan: WorkloadPlan
    calls: Mapping[tuple[CollectiveCall, tuple[int, ...]], PlannedCall]
    run: ProgramRun
    totals: Totals
    bound_ps: Callable[[], int]
    anew: Callable[[CostSetting], Prediction]
    asked: str = ""
    source: AnySchedule | None = None
    lowered: PlainCall | None = None
    launch_ps: int = 0
    host_ps: int = 0
    tasks: PlanTasks | None = None
    seen: CountedLinks | None = None
    columns: Mapping[str, object] = field(default_factory=dict)
    only: Prediction | None = None
    struck: tuple[Fault, ...] = ()

    def __repr__(self) -> str:
        size = [] if self.scenario.workload or not self.scenario.nbytes else [format_size(self.scenario.nbytes)]
        call = ", ".join([self.scenario.collective, *filter(None, [self.algorithm]), *size])
        return f"Prediction({call}, {self.plan.n} ranks, {format_duration(self.time_ps)})"

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        from simcoll.prediction.predict import row
        from simcoll.prediction.row_verdicts import of_rows

        return of_rows([row(self)])

    def __str__(self) -> str:
        return "\n".join([self.verdict, *caveats.notes([self.scenario])])

    @cached_property
    def time_ps(self) -> int:
        """Time of the point: as long as on the GPUs, or as the host where that is slower."""
        return max(self.called_ps, self.host_ps)

    @cached_property
    def fault_windows(self) -> Sequence[FaultWindow]:
        """The times, from the call on, in which faults acted on links of the topology."""
        if not self.struck:
            return ()
        from simcoll.scenario.faults import windows

        return windows(self.struck, self.topology.link_names)

    @cached_property
    def lower_bound_ps(self) -> int:
        """Time that nothing can beat, in ps."""
        return self.bound_ps()

    @property
    def time_us(self) -> float:
        """Time of the point in us, for reading; `time_ps` is exact."""
        return self.time_ps / 1e6

    @cached_property
    def called_ps(self) -> int:
        """Time on the GPUs, in ps: the launch, and until the last transfer has ended and the last rank has come."""
        return self._until(self.totals.makespan_ps) + self.launch_ps

    def _until(self, makespan_ps: int) -> int:
        return max(makespan_ps, *arrivals_of(self.scenario, len(self.devices)).values(), 0)

    @property
    def waited_ps(self) -> int:
        """Time in ps that GPUs wait for the host."""
        return self.time_ps - self.called_ps

    @property
    def compute_ps(self) -> int | None:
        """Computation of the rank that computes longest, in ps; None for a call by itself."""
        return max(self.plan.computed_ps()) if self.tasks else None

    @property
    def exposed_ps(self) -> int | None:
        """Time beyond that of computation; None for a call by itself."""
        return None if self.compute_ps is None else self.time_ps - self.compute_ps

    @property
    def algorithm(self) -> str:
        """The algorithm of its call, or those of its calls; empty where there is none."""
        return ", ".join(dict.fromkeys(call.lowered.algorithm for call in self.calls.values()))

    @property
    def executor(self) -> str | None:
        """The executor of its call, or those of its calls."""
        names = dict.fromkeys(call.lowered.executor for call in self.calls.values() if call.lowered.executor)
        return ", ".join(names) or None

    @property
    def protocol(self) -> str:
        """NCCL's protocol of its call, or those of its calls."""
        protocols = dict.fromkeys(call.lowered.protocol for call in self.calls.values())
        return ", ".join(protocols) or self.scenario.protocol

    @property
    def sharing(self) -> str:
        """The ways in which its calls share links."""
        ways = dict.fromkeys(call.lowered.point(self.costs).params().sharing for call in self.calls.values())
        return ", ".join(ways) or self.scenario.params().sharing

    @property
    def proved(self) -> str:
        """Levels at which the schedules of its calls were proved."""
        return ", ".join(dict.fromkeys(call.proved for call in self.calls.values()))

    @property
    def ranks(self) -> int:
        """Ranks that take part, or those of one sub-group."""
        return len(self.scenario.subgroups[0]) if self.scenario.subgroups else self.plan.n

    @property
    def algbw(self) -> float | None:
        """Size over time, in GB/s; None of a barrier or a workload."""
        nbytes = self.scenario.nbytes
        return nbytes / (self.time_ps / 1e12) / 1e9 if self.time_ps and nbytes else None

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth as nccl-tests defines it, in GB/s; None of a barrier or a workload."""
        algbw = self.algbw
        return None if algbw is None else algbw * float(collective(self.scenario.collective).busbw(self.ranks))

    @property
    def steps(self) -> int | None:
        """Steps of its schedule; None of a workload."""
        return self.source.n_steps if self.source else None

    @property
    def staged(self) -> Staged | None:
        """Writes that waited at receivers; None where the timeline is not that of one whole call, or was not kept."""
        whole = self.lowered is not None and self.lowered.whole and not self.scenario.in_buckets
        return staged(self.run.went, self.run.timeline) if whole and self.run.timed else None

    @property
    def engine(self) -> str:
        """The engine that ran it."""
        return self.run.engine

    @property
    def program(self) -> Program:
        """The program, with the ways that its transfers took in the end; a long one is made only when asked for."""
        return self.run.went if self.run.program.changes else self.run.program

    @property
    def timeline(self) -> Timeline:
        """Times of everything that happened."""
        return self.run.timeline

    @cached_property
    def links(self) -> CountedLinks:
        """Links, with the B/s that serve what is counted on each: of a call of NCCL, to the network, those of all NICs
        it uses; of links that change, those of the mean of the run."""
        links = self.seen
        if not links:
            served = self.lowered.capacities(self.costs) if self.lowered else self.topology.bandwidths
            links = CountedLinks(self.topology.link_names, self.topology.link_kinds, served)
        if not self.scenario.striking:  # else a long program would be made
            return links
        kept = link_usage.kept(self.run.program, self.totals.makespan_ps).reshape(-1, len(links.names))
        return links._replace(capacities=links.capacities * kept.min(axis=0))

    @cached_property
    def rails(self) -> dict[int, tuple[int, ...]]:
        """For each link that the program used, by number: those that carry the same at the same time in the call."""
        used: list[int] = np.flatnonzero(self.totals.carried).tolist()
        return self.lowered.rails(used) if self.lowered else {link: (link,) for link in used}

    @cached_property
    def busy(self) -> NDArray[np.float64]:
        """Share of the time in which each link of the whole call carried bytes at full rate, float64 (links,)."""
        ran = link_usage.busy(self.totals.carried, self.links.capacities, self.time_ps)
        whole = np.zeros(len(ran))
        for link, alike in self.rails.items():
            whole[list(alike)] += ran[link]
        return whole

    @property
    def lead(self) -> dict[str, int]:
        """Time before the program begins, in ps, by cause."""
        waited = {"host": self.waited_ps} if self.waited_ps else {}
        return {**waited, **self.lowered.lead(self.costs)} if self.lowered else {}

    def retimed(self, costs: CostSetting) -> int:
        """The time under other costs, in ps.

        Schedule, proof, routes and dependencies do not depend on costs, and are kept where the program is.
        """
        if costs is self.costs:
            return self.time_ps
        call = self.lowered
        apart = self.scenario.striking or self.scenario.in_buckets  # links change, or calls are several
        if call is None or apart or self.run.totals.messages > MOST_HELD:
            return self.anew(costs).time_ps
        program = dataclasses.replace(
            self.program,
            params=dataclasses.replace(self.program.params, **call.params(costs)),
            bandwidths=call.bandwidths(costs),
            latencies=call.latencies(costs),
        )
        took = makespan_ps(program, self.totals.shortcut != "none")  # no shortcut then helps now, as a rule
        return max(self._until(took) + call.launch_ps(costs), call.host_ps(costs))
