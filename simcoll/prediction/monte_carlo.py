"""A point run many times with what differs from run to run: quantiles, how sure they are, and whose fault it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from simcoll.engine.program import Program
from simcoll.engine.run import Policy, run
from simcoll.errors import StuckError, did_you_mean, wrong
from simcoll.prediction import workload_run
from simcoll.prediction.predict import predict, row
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario.faults import struck
from simcoll.scenario.scenario import Point, Scenario
from simcoll.scenario.variability import Drawn, Variability, matching

PART: Final = 25  # replications that go to a worker at once: the same for any number of them
JUDGED: Final = 50  # the first replications of large points: run again with causes left out, for the shares of each
SMALL: Final = 50_000  # messages: of smaller points all are
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SURE: Final = 0.95  # of the intervals of quantiles

Once = Callable[[Drawn], int]


def parts(point: Point) -> Iterator[Point]:
    """The point as shares of its replications; itself if it has none."""
    count = point.scenario.replications
    if count is None:
        yield point
        return
    for first in range(0, count, PART):
        yield replace(point, replicas=(first, min(count, first + PART)))


def drawing(scenario: Scenario, replication: int) -> Drawn:
    """What a replication draws, of all causes that there are."""
    spec = scenario.variability or Variability()
    causes = (*spec.causes, *(("faults",) if scenario.faults else ()))
    return Drawn(spec, scenario.seed, replication, causes, scenario.faults)


def part(point: Point) -> ResultRow:
    """One share: the row of the undisturbed point, and the time (ps) of each replication with each set of causes."""
    scenario, spec = point.scenario, point.scenario.variability or Variability()
    assert point.replicas
    undisturbed, once, n = _runs(scenario)
    every = (*spec.causes, *(("faults",) if scenario.faults else ()))
    for one in spec.slow:
        if one.rank >= n:
            raise wrong("variability", f"there is no rank {one.rank}", f"write 0 … {n - 1}")
    judged = JUDGED if (undisturbed.messages or 0) > SMALL else point.replicas[1]
    times: dict[str, list[int]] = {}
    failed = 0
    for replication in range(*point.replicas):
        lost: set[tuple[str, ...]] = set()
        known: dict[tuple[str, ...], int] = {(): undisturbed.time_ps or 0}  # by the causes that make a difference
        for causes in _sets(every, whole=replication >= judged):
            drawn = Drawn(spec, scenario.seed, replication, causes, scenario.faults)
            felt = drawn.felt()
            if felt not in known:
                try:
                    known[felt] = once(drawn)
                except StuckError as error:  # which takes as long as it is waited for
                    if error.when is None:
                        raise
                    known[felt] = error.when
                    lost.add(felt)
            times.setdefault(" ".join(causes), []).append(known[felt])
            failed += causes == every and felt in lost
    return replace(undisturbed, times_ps=times, failed_runs=failed if scenario.faults else None)


def _sets(causes: tuple[str, ...], whole: bool) -> list[tuple[str, ...]]:
    """All causes, and unless that is the `whole` question every set of some."""
    sizes = range(len(causes), len(causes) - 1 if whole else 0, -1)
    return [some for size in sizes for some in itertools.combinations(causes, size)]


def _runs(scenario: Scenario) -> tuple[ResultRow, Once, int]:
    """The row without any disturbance, what runs the point with one, and how many ranks there are."""
    if scenario.workload:
        step = workload_run.simulate(scenario)
        _check(scenario, step.program.link_names)
        struck(step.program, step.topology, scenario.faults)  # raises for links that there are not
        return ResultRow.of(workload_run.row(step)), lambda drawn: _step_ps(step, drawn), step.plan.n
    prediction = predict(scenario)
    n = len(prediction.devices) - prediction.source.agents
    known = scenario.model_copy(update={"algorithm": prediction.algorithm})
    _check(scenario, prediction.topology.link_names)
    if scenario.faults:
        struck(prediction.program, prediction.topology, scenario.faults)

    def once(drawn: Drawn) -> int:
        late = arriving(scenario, drawn, n)
        if {"slow_links", "faults"}.intersection(drawn.felt()):
            program = _slowed(prediction.program, drawn)
            program = struck(program, prediction.topology, drawn.happened(), prediction.launch_ps)
            arrivals = np.append(late, np.zeros(len(program.arrivals) - n, np.int64))
            last = max(_makespan_ps(replace(program, arrivals=arrivals)), int(late.max()))
            return max(last + prediction.launch_ps, prediction.host_ps)
        return predict(known.model_copy(update={"arrivals": dict(enumerate(late.tolist()))})).time_ps

    return ResultRow.of(row(prediction)), once, n


def arriving(scenario: Scenario, drawn: Drawn, n: int) -> Any:
    """When each rank comes to a collective, int64 (n,), in ps."""
    came = np.array([(scenario.arrivals or {}).get(rank, 0) for rank in range(n)])
    return np.rint((came + drawn.skew(n)) * drawn.slow(n)).astype(np.int64)


def _step_ps(step: workload_run.WorkloadPrediction, drawn: Drawn) -> int:
    """How long a workload takes with what was drawn."""
    return _makespan_ps(disturbed(step, drawn))


def disturbed(step: workload_run.WorkloadPrediction, drawn: Drawn) -> Program:
    """A workload's program with what was drawn."""
    tasks = step.program.tasks
    assert tasks
    took = tasks.duration.astype(float)
    computing, launching = step.kind == workload_run.COMPUTING, step.kind == workload_run.LAUNCHING
    took[computing] *= drawn.jitter(int(computing.sum()))
    took[launching] += drawn.skew(int(launching.sum()))
    took *= drawn.slow(step.plan.n)[step.rank]
    program = replace(_slowed(step.program, drawn), tasks=replace(tasks, duration=np.rint(took).astype(np.int64)))
    return struck(program, step.topology, drawn.happened())


def _slowed(program: Program, drawn: Drawn) -> Program:
    """With the links that are slow; routes stay as they are."""
    bandwidths = program.bandwidths / drawn.slow_links(program.link_names)
    return replace(program, bandwidths=np.maximum(program.bandwidths > 0, np.rint(bandwidths)).astype(np.int64))


def _makespan_ps(program: Program) -> int:
    return run(program, Policy(keep="totals")).totals.makespan_ps


def _check(scenario: Scenario, names: Sequence[str]) -> None:
    """Raise InputError for links that there are not, or that cannot be slow."""
    slow = scenario.variability.slow_links if scenario.variability else ()
    for one in slow:
        if not matching(one.link, names):
            raise wrong("variability", f"no link is called {one.link!r}", did_you_mean(one.link, names))
    if slow and scenario.measure.buckets > 1:
        raise wrong("variability", "links of a collective in buckets cannot be slow", "leave out slow_links or buckets")


# --- what they add up to ---


def merged(shares: Sequence[ResultRow]) -> ResultRow:
    """The row of a point of the rows of its parts, in order; the first that failed stands for all."""
    failed = next((share for share in shares if share.status != "ok"), None)
    if failed or shares[0].times_ps is None:
        return failed or shares[0]
    times: dict[str, list[int]] = {}
    for share in shares:
        for causes, some_ps in (share.times_ps or {}).items():
            times.setdefault(causes, []).extend(some_ps)
    every = max(times, key=lambda causes: len(causes.split()))
    counted = [share.failed_runs for share in shares if share.failed_runs is not None]
    return replace(
        shares[0],
        times_ps=None,
        failed_runs=sum(counted) if counted else None,
        replications=len(times[every]),
        slowdown_shares=_shares(times, every.split(), shares[0].time_ps or 0),
        **_quantiles(times[every]),
    )


def _quantiles(times: Sequence[int]) -> dict[str, Any]:
    """Each quantile and an interval for it, from order statistics, whatever the distribution is."""
    ordered, found = sorted(times), {}
    for name, share in QUANTILES.items():
        low, high = _interval(len(ordered), share)
        at = min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)
        for ending, place in (("", at), ("_low", low), ("_high", high)):
            found[f"time_us_{name}{ending}"] = ordered[place] / 1e6
    return found


def _interval(count: int, share: float) -> tuple[int, int]:
    """The places in order between which the quantile lies, as surely as SURE where there are enough: how many of
    `count` lie below it is binomial."""
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(share) + (count - k) * math.log(1 - share)
        for k in range(count + 1)
    ]  # fmt: skip
    below = np.cumsum(np.exp(logs))
    tail = (1 - SURE) / 2
    low = int(np.searchsorted(below, tail))  # fewer than `low` below it: improbable
    high = int(np.searchsorted(below, 1 - tail))
    return max(0, min(low, count) - 1), min(count - 1, high)


def _shares(times: Mapping[str, Sequence[int]], causes: Sequence[str], undisturbed: int) -> dict[str, float]:
    """What each cause adds to the mean, as a share of all: what it adds to each set of others, averaged over the orders
    in which they can come (Shapley values), so that they add up; none below 0. Empty where nothing is slower."""
    judged = min(map(len, times.values()))
    means = {frozenset(some.split()): sum(its[:judged]) / judged for some, its in times.items()}
    means[frozenset()] = float(undisturbed)
    orders = list(itertools.permutations(causes))
    found = dict.fromkeys(causes, 0.0)
    for order in orders:
        for place, cause in enumerate(order):
            before = frozenset(order[:place])
            found[cause] += (means[before | {cause}] - means[before]) / len(orders)
    found = {cause: max(0.0, added) for cause, added in found.items()}
    total = sum(found.values())
    return {cause: added / total for cause, added in found.items()} if total else {}
