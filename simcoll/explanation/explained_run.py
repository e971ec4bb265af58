"""Run a point so that it can be explained: its program, its critical path, and the time before its transfers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from simcoll.engine.link_changes import BandwidthSpan
from simcoll.engine.program import Program
from simcoll.engine.run import Policy, run
from simcoll.engine.timeline import Timeline, Totals
from simcoll.engine.timing_model import NONE
from simcoll.errors import InputError, wrong
from simcoll.explanation._path_columns import CAUSES, LINKED, CriticalPath, Segment
from simcoll.explanation.critical_path import critical_path
from simcoll.prediction import monte_carlo, workload_run
from simcoll.prediction.predict import Prediction, predict
from simcoll.prediction.predict import row as row_of
from simcoll.prediction.workload_run import LAUNCHING, WorkloadPrediction
from simcoll.scenario.faults import struck
from simcoll.scenario.profile import Profile, load_profile
from simcoll.scenario.scenario import Point, Scenario
from simcoll.scenario.variability import Drawn
from simcoll.topology.graph import Topology

MOST_MESSAGES: Final = 10_000_000  # of a point: the times of more need more memory than a usual machine has
OF_CALLS: Final = {
    "host": "GPUs wait for the host, which launches no faster",
    "launch": "of a kernel, before all else",
    "start": "of NCCL's protocol, once a call, and the rank's own block",
    "spread": "how much later the last of NCCL's channels ends than they do on average",
    "hop": "of NCCL's protocol: from what one rank has to when the next can go on",
}
ALL_CAUSES: Final = {**CAUSES, **OF_CALLS}


class TimeShare(NamedTuple):
    """A stretch of the time of a point, from `begin_ps` to `end_ps`.

    `where` names the link, rank or kind of operation. `rank` computes, launches or is late; `operation` is that of a
    workload; `step`, `src` and `dst` (ranks) belong to a transfer. `then`: see `Segment`.
    """

    begin_ps: int
    end_ps: int
    cause: str
    where: str | None
    then: str = "itself"
    operation: str | None = None
    rank: int | None = None
    step: int | None = None
    src: int | None = None
    dst: int | None = None


@dataclass(frozen=True, eq=False)
class ExplainedRun:
    """A point that ran.

    `scenario` names the algorithm and protocol that were chosen. `lead` is the time before its transfers, in ps, by
    cause. `drawn`: the run is one replication of a workload.
    """

    scenario: Scenario
    ran: Prediction | WorkloadPrediction
    row: dict[str, object]
    time_ps: int
    lead: dict[str, int]
    kernels: bool
    drawn: bool = False

    @property
    def program(self) -> Program:
        """The program that the engines ran."""
        return self.ran.program

    @property
    def topology(self) -> Topology:
        """The topology, with links as they serve."""
        return self.ran.topology

    @property
    def capacities(self) -> NDArray[Any]:
        """B/s for the bytes that are counted on each link; see `Prediction`."""
        return self.ran.capacities if isinstance(self.ran, Prediction) else self.topology.bandwidths

    @property
    def totals(self) -> Totals:
        """Sums over the run."""
        return self.ran.totals

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path of the program, without the lead."""
        spans = self.spans
        timeline = _timeline(self.ran, hops=bool(spans) or self.program.params.sharing == "fifo")
        return critical_path(self.program.as_it_went(timeline.way), timeline, spans)

    @property
    def spans(self) -> dict[int, list[BandwidthSpan]]:
        """The bandwidths over time of the links that change during the run."""
        ran = self.ran
        launch = 0 if isinstance(ran, WorkloadPrediction) else ran.launch_ps
        changes = struck(
            dataclasses.replace(self.program, changes=None), ran.topology, self.scenario.faults, launch
        ).changes
        return changes.spans(self.program.bandwidths) if changes else {}

    def shares(self) -> dict[tuple[str, str | None], int]:
        """Return the time in ps for each cause and place, the longest first; the sum is `time_ps`."""
        sums: dict[tuple[str, str | None], int] = {}
        whole: list[tuple[tuple[str, str | None], int]] = [((cause, None), ps) for cause, ps in self.lead.items()]
        whole += [(self._named(cause, where), ps) for (cause, where), ps in self.path.shares().items()]
        whole += [(self._late(), self._waited)]
        for key, ps in whole:
            if ps:
                sums[key] = sums.get(key, 0) + ps
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def parts(self, selected: slice = slice(None)) -> Iterator[TimeShare]:
        """Yield the stretches in order of time, from 0 to `time_ps`.

        They are the lead, the `selected` segments of the path, and the time that a rank comes later than all transfers
        end.
        """
        at = 0
        for cause, ps in self.lead.items():
            if ps and not selected.start:
                yield TimeShare(at, at + ps, cause, None)
            at += ps
        yield from (self._part(segment, at) for segment in self.path[selected])
        if self._waited and selected.stop is None:
            yield TimeShare(self.time_ps - self._waited, self.time_ps, *self._late())

    @property
    def _waited(self) -> int:
        """The time in ps by which the last rank comes later than all transfers end."""
        return self.time_ps - sum(self.lead.values()) - self.path.total_ps

    def _late(self) -> tuple[str, str]:
        arrivals = self.scenario.arrivals or {0: 0}
        return "straggler", f"rank {max(arrivals, key=lambda rank: arrivals[rank])}"

    def _named(self, cause: str, where: int) -> tuple[str, str | None]:
        if self.kernels and cause in ("o_send", "o_recv", "latency"):  # links have the latency of hops
            return "hop", None
        if cause in LINKED:
            return cause, self.program.link_names[where] if where != NONE else None
        if cause == "straggler":
            return cause, f"rank {where}"
        if cause == "computation":
            kind, name = self._tasks[where]
            return ("launch", None) if kind == LAUNCHING else (cause, name.partition(" ")[0])
        return cause, None

    def _part(self, segment: Segment, lead: int) -> TimeShare:
        cause, where = self._named(segment.cause, max(segment.link, segment.rank, segment.task))
        begin, end = segment.begin_ps + lead, segment.end_ps + lead
        i, task = segment.transfer, segment.task
        if i == NONE:
            if task == NONE:
                return TimeShare(begin, end, cause, where, segment.then, rank=segment.rank)
            assert isinstance(self.ran, WorkloadPrediction)
            return TimeShare(begin, end, cause, where, segment.then, self._tasks[task][1], int(self.ran.rank[task]))
        program = self.program
        tasks, name = program.tasks, None
        if tasks:  # a switch has no task
            ends_of = int(tasks.channel[program.channel[i]]), int(tasks.side[program.side[i]])
            name = self._tasks[max(ends_of)][1]
        ends = int(program.src[i]), int(program.dst[i])
        return TimeShare(begin, end, cause, where, segment.then, name, None, int(program.step[i]), *ends)

    @cached_property
    def _tasks(self) -> Sequence[tuple[int, str]]:
        """The kind of each task, and the name of its operation."""
        step = self.ran
        assert isinstance(step, WorkloadPrediction)
        kinds: list[tuple[int, str]] = []
        for work in step.plan.works:
            while True:  # a call whose launch takes time is two operations
                kind = int(step.kind[len(kinds)])
                kinds += [(kind, work.name)] * len(work.ranks)
                if kind != LAUNCHING:
                    break
        return kinds


def explained_run(point: Scenario | Point, replication: int | None = None) -> ExplainedRun:
    """Run a point: undisturbed where it has variability, or as one `replication` of it.

    Raises InputError for points that cannot be explained, and whatever running the point raises.
    """
    scenario = point.scenario if isinstance(point, Point) else point
    if replication is not None:
        _check_replication(scenario, replication)
    drawn = None if replication is None else monte_carlo.drawing(scenario, replication)
    plain = scenario.model_copy(update={"variability": None, "replications": None, "faults": scenario.striking})
    profile = load_profile(scenario.profile)
    if scenario.workload:
        step = workload_run.simulate(scenario if drawn else plain)
        _check(step.totals.messages)
        if drawn:
            step, plain = _disturbed(step, drawn), plain.model_copy(update={"faults": tuple(drawn.happened())})
        row = workload_run.row(step)
        return ExplainedRun(plain, step, row, step.step_ps, {}, profile.kernels is not None, drawn is not None)
    if scenario.measure.harness == "library" and scenario.measure.buckets > 1:
        raise wrong("measure", "calls in buckets cannot be explained", "leave out buckets: each is a call by itself")
    prediction = predict(plain)
    _check((prediction.channel or prediction).totals.messages)
    chosen: dict[str, Any] = {"algorithm": prediction.algorithm}
    if prediction.lowered:
        chosen["protocol"] = prediction.protocol
    if drawn:
        if "slow_links" in drawn.felt():
            problem = "a run of a collective with slow_links cannot be explained"
            raise wrong("variability", problem, "take another replication, or leave out slow_links")
        late = monte_carlo.arriving(plain, drawn, len(prediction.devices) - prediction.source.agents)
        chosen |= {"arrivals": dict(enumerate(late.tolist())), "faults": tuple(drawn.happened())}
    known = plain.model_copy(update=chosen)
    prediction = predict(known) if drawn else prediction
    lead = _lead(prediction, profile)
    return ExplainedRun(known, prediction, row_of(prediction), prediction.time_ps, lead, profile.kernels is not None)


def _check_replication(scenario: Scenario, replication: int) -> None:
    count = scenario.replications or 0
    if not 0 <= replication < count:
        cure = f"give 0 … {count - 1}" if count else "leave it out: the scenario has none"
        raise InputError(f"there is no replication {replication}", cure)


def _disturbed(step: WorkloadPrediction, drawn: Drawn) -> WorkloadPrediction:
    """Run the workload again with the disturbances that were drawn."""
    program = monte_carlo.disturbed(step, drawn)
    makespan_ps = run(program, Policy(keep="totals")).totals.makespan_ps
    return dataclasses.replace(step, program=program, totals=dataclasses.replace(step.totals, makespan_ps=makespan_ps))


def _check(messages: int) -> None:
    if messages > MOST_MESSAGES:
        problem = f"{messages} messages are more than can be explained ({MOST_MESSAGES})"
        raise wrong("ranks", problem, "ask for fewer ranks, or larger chunks")


def _lead(prediction: Prediction, profile: Profile) -> dict[str, int]:
    """Return the time before the transfers of a call, by cause: the launch, and the fixed costs of a protocol."""
    lead = {"host": prediction.waited_ps} if prediction.waited_ps else {}
    if not prediction.lowered or not profile.kernels:
        return {**lead, "launch": prediction.launch_ps}
    costs = profile.kernels
    launch = profile.launch_ps(prediction.scenario.launch) + costs.grid - costs.grid // prediction.lowered.call.channels
    spread = prediction.lowered.spread_ps(costs, profile.links)
    return {**lead, "launch": launch, "start": prediction.launch_ps - launch - spread, "spread": spread}


def _timeline(ran: Prediction | WorkloadPrediction, hops: bool) -> Timeline:
    """Return the times of the run, with those of hops where the path needs them."""
    held = vars(ran).get("timeline")
    if isinstance(held, Timeline):
        return held
    if isinstance(ran, Prediction) and ran.scenario.faults:
        return ran.timeline
    return run(ran.program, Policy(keep="hops" if hops else "times")).timeline
