"""Run a point so that its time can be explained: keep its program, its critical path, and the time before transfers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from simcoll.engine.link_changes import BandwidthSpan
from simcoll.engine.run import Policy, run
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NONE
from simcoll.errors import wrong
from simcoll.explanation.critical_path import CAUSES, LINKED, CriticalPath, Segment, critical_path
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.predict import Prediction, predict
from simcoll.prediction.predict import row as row_of
from simcoll.prediction.predictions import LAUNCHING, MEASURED, WAITING, StepPrediction
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.workload.plan import Work

MOST_MESSAGES: Final = 10_000_000  # of a point: the times of more need more memory than a usual machine has
OF_CALLS: Final = {
    "host": "GPUs wait for the host's launches, or for copies",
    "recorded": "calls of a recording, which take their measured times",
    "launch": "launch of a kernel, before all else",
    "start": "start of NCCL's protocol, once a call, and the rank's own block",
    "spread": "delay of the last of NCCL's channels behind their mean",
    "flags": "kernels that pull: extra time until the last rank's flag comes",
    "loads": "kernels that pull: waiting for loads from peers between stages, and one after the other",
    "proxy": "messages that a GPU's proxy serves one after the other, where it is slower than the links",
    "memory": "time of data in the host's memory, beyond that on the links",
    "copies": "kernels that pull, with adding switches: copies to the switch's buffer and back",
    "hop": "a hop of NCCL's protocol: until the next rank can go on",
    "kernel": "a kernel of DeepEP without tokens",
    "counts": "low-latency kernels: a count for each expert",
    "tokens": "low-latency kernels: tokens that an SM handles one after the other",
    "network": "low-latency kernels: a hop between nodes",
    "own copies": "normal kernels: SMs read a rank's own tokens, and copy to its own experts",
    "SMs": "normal kernels: SMs copy more slowly than the link carries",
}
ALL_CAUSES: Final = {**CAUSES, **OF_CALLS}


class TimeShare(NamedTuple):
    """A part of a point's time, from `begin_ps` to `end_ps`, with its cause.

    `where` is a link, a rank or a kind of operation. `rank` is the rank that computes, launches or is late; `operation`
    is one of a workload; `step`, `src` and `dst` (ranks) describe a transfer. For `then` see `Segment`.
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
    """A point that ran, with what explains its time. `scenario` names the algorithm and protocol that were chosen."""

    scenario: Scenario
    ran: Prediction
    row: ResultRow

    @property
    def time_ps(self) -> int:
        """Return the time of the point, in ps."""
        return self.ran.time_ps

    @cached_property
    def _hops(self) -> frozenset[str]:
        return frozenset().union(*(call.lowered.hops for call in self.ran.planned))

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Return the kind of each link by the link's name, also of links that only calls have."""
        return dict(zip(self.ran.links.names, self.ran.links.kinds, strict=True))

    @cached_property
    def path(self) -> CriticalPath:
        """Return the critical path of the program; it lacks the time before the program begins (`lead`)."""
        spans = self.spans
        timeline = _timeline(self.ran, hops=bool(spans) or self.ran.program.params.sharing == "fifo")
        return critical_path(self.ran.program.as_it_went(timeline.way), timeline, spans)

    @property
    def spans(self) -> dict[int, list[BandwidthSpan]]:
        """Return, by link number, how the link's bandwidth changes over time; links that never change are left out."""
        healthy = dataclasses.replace(self.ran.program, changes=None)
        changes = self.ran.with_faults(healthy, self.ran.scenario.faults).changes
        return changes.spans(self.ran.program.bandwidths) if changes else {}

    def shares(self) -> dict[tuple[str, str | None], int]:
        """Return the time in ps by cause and place, the longest first; the sum is `time_ps`."""
        sums: Counter[tuple[str, str | None]] = Counter(
            {(cause, None): ps for cause, ps in self.ran.lead.items() if ps}
        )
        for (cause, where), ps in self.path.shares().items():
            for named, part in self._split(cause, where, ps):
                sums[named] += part
        sums[self._late()] += self._waited
        return {key: ps for key, ps in sums.most_common() if ps}

    def parts(self, selected: slice = slice(None)) -> Iterator[TimeShare]:
        """Yield the parts of the time in order, from 0 to `time_ps`: the lead, the `selected` segments of the path, and
        the time that the last rank still needs to arrive when all transfers have ended."""
        at = 0
        for cause, ps in self.ran.lead.items():
            if ps and not selected.start:
                yield TimeShare(at, at + ps, cause, None)
            at += ps
        for segment in self.path[selected]:
            yield from self._parts(segment, at)
        if self._waited and selected.stop is None:
            yield TimeShare(self.time_ps - self._waited, self.time_ps, *self._late())

    @property
    def _waited(self) -> int:
        """Return how long after the end of all transfers the last rank arrives, in ps."""
        return self.time_ps - sum(self.ran.lead.values()) - self.path.total_ps

    def _late(self) -> tuple[str, str]:
        arrivals = self.scenario.arrivals or {0: 0}
        return "straggler", f"rank {max(arrivals, key=lambda rank: arrivals[rank])}"

    def _split(self, cause: str, where: int, ps: int) -> list[tuple[tuple[str, str | None], int]]:
        """Return a segment's time by cause and place. Some time on a link belongs to a slower cause, e.g. a proxy. Some
        of a hop between nodes belongs to NICs and proxies, which handle a message one after the other. The time before
        a call of a plan is split as for a call alone."""
        if cause == "computation" and self._tasks[where][0] == LAUNCHING:
            work = self._tasks[where][1]
            assert work.call and isinstance(self.ran, StepPrediction)
            lead = Counter(self.ran.calls[work.call, work.ranks].lowered.lead)
            return [((name, None), part) for name, part in lead.items() if part]
        named = self._named(cause, where)
        if cause == "latency" and where != NONE:
            link, latency = self.ran.program.link_names[where], self.ran.program.latencies.item(where)
            waits = self._waits.get((link, latency), {})
            parts = [((own, link if own in LINKED else None), round(ps * share)) for own, share in waits.items()]
            return [(named, ps - sum(part for _, part in parts)), *parts]
        if cause not in LINKED or named[1] is None or cause == "fault":
            return [(named, ps)]
        pace, share = self._paces.get((named[1], self.ran.program.bandwidths.item(where)), ("", 0.0))
        beside = round(ps * share)
        return [(key, part) for key, part in (((pace, None), beside), (named, ps - beside)) if part]

    def _named(self, cause: str, where: int) -> tuple[str, str | None]:
        if cause in self._hops:
            return "hop", None
        if cause in LINKED and where != NONE:
            return cause, self.ran.program.link_names[where]
        if cause == "straggler":
            return cause, f"rank {where}"
        if cause == "computation":
            kind, work = self._tasks[where]
            return {MEASURED: "recorded", WAITING: "host"}.get(kind, cause), work.name.partition(" ")[0]
        return cause, None

    def _parts(self, segment: Segment, lead: int) -> Iterator[TimeShare]:
        begin, ps = segment.begin_ps + lead, segment.end_ps - segment.begin_ps
        for (cause, where), part in self._split(segment.cause, segment.where, ps):
            yield self._part(segment, cause, where, begin, begin + part)
            begin += part

    def _part(self, segment: Segment, cause: str, where: str | None, begin: int, end: int) -> TimeShare:
        i = segment.transfer
        if i == NONE:
            if segment.cause != "computation":
                return TimeShare(begin, end, cause, where, segment.then, rank=segment.where)
            assert isinstance(self.ran, StepPrediction)
            rank, work = int(self.ran.tasks.rank[segment.where]), self._tasks[segment.where][1]
            return TimeShare(begin, end, cause, where, segment.then, work.name, rank)
        program = self.ran.program
        tasks, name = program.tasks, None
        if tasks:  # a switch has no task
            ends_of = int(tasks.channel[program.channel[i]]), int(tasks.side[program.side[i]])
            name = self._tasks[max(ends_of)][1].name
        ends = int(program.src[i]), int(program.dst[i])
        return TimeShare(begin, end, cause, where, segment.then, name, None, int(program.step[i]), *ends)

    @cached_property
    def _paces(self) -> dict[tuple[str, int], tuple[str, float]]:
        """Return, by a link's name and the B/s that a call gets there, what else than the link limits the rate: the
        cause, and its share of the time."""
        found: dict[tuple[str, int], tuple[str, float]] = {}
        for lowered in (call.lowered for call in self.ran.planned):
            rates = lowered.bandwidths
            for link, pace in lowered.paces.items():
                found[lowered.rated.link_names[link], rates.item(link)] = pace
        return found

    @cached_property
    def _waits(self) -> dict[tuple[str, int], dict[str, float]]:
        """Return, by a link's name and its latency in ps for a call, what else than a hop the latency holds."""
        return {
            (lowered.rated.link_names[link], lowered.latencies.item(link)): waits
            for lowered in (call.lowered for call in self.ran.planned)
            for link, waits in lowered.waits.items()
        }

    @cached_property
    def _tasks(self) -> Sequence[tuple[int, Work]]:
        """Return, for each task, its kind and the operation of the plan that it belongs to."""
        assert isinstance(self.ran, StepPrediction)
        works = (self.ran.plan.works[number] for number in works_of_tasks(self.ran))
        return list(zip(self.ran.tasks.kind.tolist(), works, strict=True))


def explained_run(point: Scenario | Point, most: int = MOST_MESSAGES) -> ExplainedRun:
    """Run a point, without random disturbances, and keep what explains its time.

    Raises InputError for points that cannot be explained, e.g. with more than `most` messages, and all errors of a run.
    """
    if isinstance(point, Point):
        with point.placing():
            return explained_run(point.scenario, most)
    plain = point.model_copy(update={"variability": None, "replications": None, "faults": point.striking})
    if point.in_buckets:
        raise wrong("measure", "calls in buckets cannot be explained", "leave out `buckets`: each is a single call")
    ran = predict(plain)
    if isinstance(ran, StepPrediction) and ran.only:  # one question, one answer
        return dataclasses.replace(explained_run(ran.only.scenario, most), row=row_of(ran))
    if (messages := unheld_messages(ran)) > most:
        problem = f"{messages} messages are more than can be explained ({most})"
        raise wrong("ranks", problem, "ask for fewer ranks, or larger chunks")
    if isinstance(ran, StepPrediction):
        return ExplainedRun(plain, ran, row_of(ran))
    chosen: dict[str, Any] = {"algorithm": ran.algorithm}
    if ran.protocol != "none" and executor(plain).protocols:  # messages cannot be asked for a protocol by name
        chosen["protocol"] = ran.protocol
    return ExplainedRun(plain.model_copy(update=chosen), ran, row_of(ran))


def unheld_messages(ran: Prediction) -> int:
    """Return how many messages must be simulated again to show their times; 0 if the run kept the times."""
    if ran.run.timed:
        return 0
    if not isinstance(ran, StepPrediction):
        return ran.run.totals.messages
    calls = (ran.calls[work.call, work.ranks].bound for work in ran.plan.works if work.call)
    return max(ran.run.totals.messages, sum(call.sums.messages for call in calls if call))


def works_of_tasks(ran: StepPrediction) -> list[int]:
    """Return, for each task, the number of its operation in the plan. A call may be two tasks: launch and call."""
    works: list[int] = []
    for number, work in enumerate(ran.plan.works):
        launched = ran.tasks.kind[len(works)] == LAUNCHING
        works += [number] * (len(work.ranks) * (2 if launched else 1))
    return works


def _timeline(ran: Prediction, hops: bool) -> Timeline:
    """Return a run's timeline; with `hops`, also when each message was on each link."""
    if ran.run.timed or ran.run.program.changes:
        return ran.timeline
    return run(ran.program, Policy(keep="hops" if hops else "times")).timeline
