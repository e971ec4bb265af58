"""Run a point many times with random disturbances: quantiles of its time with intervals, and each cause's share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from simcoll.engine.program import Program
from simcoll.engine.run import MOST_HELD, makespan_ps
from simcoll.errors import StuckError, did_you_mean, wrong
from simcoll.prediction.placed_topology import rated_topology
from simcoll.prediction.predict import predict, row
from simcoll.prediction.predictions import COMPUTING, LAUNCHING, Prediction, StepPrediction
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario.faults import struck, with_less
from simcoll.scenario.hashed_routes import Rails, drawable, hashed
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.scenario.variability import Drawn, Variability, matching
from simcoll.topology.topology_builder import machine_of

JUDGED: Final = 50  # first replications of large points: run again without some causes, for the share of each cause
SMALL: Final = 50_000  # messages up to which all replications are run again
_OF_LINKS: Final = frozenset(("slow_links", "faults", "ecmp"))  # causes that change links or routes
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SURE: Final = 0.95  # confidence of the intervals of quantiles


def drawing(scenario: Scenario, replication: int) -> Drawn:
    """Return the random draws of one replication (a numbered repetition), for all causes of disturbance."""
    spec = scenario.variability or Variability()
    causes = (*spec.causes, *(("faults",) if scenario.faults else ()))
    return Drawn(spec, scenario.seed, replication, causes, scenario.faults)


def part(point: Point) -> ResultRow:
    """Return the row of the undisturbed point, with the time in ps of each replication under each set of causes."""
    scenario, spec = point.scenario, point.scenario.variability or Variability()
    assert point.replicas
    prediction = predict(scenario)
    _check(prediction)
    undisturbed = row(prediction)
    every = drawing(scenario, 0).causes
    for slow in spec.slow:
        if slow.rank >= prediction.n:
            raise wrong("variability", f"there is no rank {slow.rank}", f"write 0 … {prediction.n - 1}")
    judged = JUDGED if prediction.totals.messages > SMALL else point.replicas[1]
    asked: dict[tuple[int, tuple[str, ...]], Drawn] = {}  # by replication and the causes that make a difference
    draws: list[tuple[tuple[str, ...], int, tuple[str, ...]]] = []
    for replication in range(*point.replicas):
        for causes in _sets(every, whole=replication >= judged):
            drawn = Drawn(spec, scenario.seed, replication, causes, scenario.faults)
            felt = drawn.felt()
            draws.append((causes, replication, felt))
            if felt:
                asked.setdefault((replication, felt), drawn)
    known = {key: _disturbed(prediction, drawn) for key, drawn in asked.items()}
    times: dict[str, list[int]] = {}
    failed = 0
    for causes, replication, felt in draws:
        found = known[replication, felt] if felt else prediction.time_ps
        if isinstance(found, StuckError):  # it counts with the time until the run gives up
            if found.when is None:
                raise found
            failed += causes == every
            found = found.when
        times.setdefault(" ".join(causes), []).append(found)
    even: float | None = None  # if all spines together act like one
    if spec.ecmp and machine_of(scenario.topology)[0].spines:  # a file that lists its devices has no such key
        even = predict(scenario.model_copy(update={"topology": scenario.topology.evenly, "variability": None})).time_us
    return replace(undisturbed, times_ps=times, failed_runs=failed if scenario.faults else None, even_paths_us=even)


def _sets(causes: tuple[str, ...], whole: bool) -> list[tuple[str, ...]]:
    """Return the sets of causes to simulate, the set of all causes first; with `whole` only this one."""
    sizes = range(len(causes), len(causes) - 1 if whole else 0, -1)
    return [chosen for size in sizes for chosen in itertools.combinations(causes, size)]


def _disturbed(prediction: Prediction, drawn: Drawn) -> int | StuckError:
    """Return the time in ps of a point with one replication's random draws, or the error if it cannot finish."""
    try:
        if isinstance(prediction, StepPrediction):
            return _step_end(prediction, drawn)
        return _call_end(prediction, drawn) if _held(prediction) else _anew(prediction, drawn)
    except StuckError as error:
        return error


def _step_end(prediction: StepPrediction, drawn: Drawn) -> int:
    """Return when a plan ends with one replication's random draws, in ps; from separate calls if links allow it."""
    if {"slow_links", "faults"}.intersection(drawn.felt()) and load_profile(prediction.scenario.profile).as_nccl:
        other = _on_other_links(prediction.scenario, drawn)  # other channels may be the slowest
        assert isinstance(other, StepPrediction)
        return _step_end(other, replace(drawn, causes=tuple({*drawn.causes} - {"slow_links", "faults"})))
    same = not _OF_LINKS.intersection(drawn.felt())
    end = prediction.tasks.alone(_took(prediction, drawn)) if same else None
    return makespan_ps(disturbed(prediction, drawn)) if end is None else end


def _call_end(prediction: Prediction, drawn: Drawn) -> int:
    """Return when a call ends with one replication's random draws, in ps, by running its program with them."""
    late = arriving(prediction.scenario, drawn, prediction.n)
    end = max(makespan_ps(_struck(prediction, drawn, late)), int(late.max()))
    return max(end + prediction.launch_ps, prediction.host_ps)


def _held(prediction: Prediction) -> bool:
    """Whether a replication can run the point's own program with other numbers. It cannot for several calls, for an
    algorithm choice that depends on arrivals, and for a schedule too long to keep."""
    profile, spec = load_profile(prediction.scenario.profile), prediction.scenario.variability
    several = prediction.scenario.in_buckets or profile.bound
    of_links = bool(prediction.scenario.faults or (spec and spec.slow_links))
    several |= profile.as_nccl and of_links  # the program lacks some slowed channels
    return not several and prediction.run.totals.messages <= MOST_HELD


def _struck(prediction: Prediction, drawn: Drawn, late: Any) -> Program:
    """Return the call's program with one replication's random draws; rank r arrives at `late[r]` ps, int64 (n,)."""
    program = _rewired(prediction, drawn)
    if "faults" in drawn.felt():
        program = prediction.with_faults(program, drawn.happened())
    return replace(program, arrivals=np.append(late, np.zeros(len(program.arrivals) - len(late), np.int64)))


def _anew(prediction: Prediction, drawn: Drawn) -> int:
    """Predict the point again with one replication's random draws, and return its time in ps."""
    scenario, n = prediction.scenario, prediction.n
    late = arriving(scenario, drawn, n)
    came = dict(enumerate(late.tolist()))
    if load_profile(scenario.profile).as_nccl and "ecmp" not in drawn.felt():
        protocol = scenario.protocol if prediction.executor == "p2p" else prediction.protocol
        chosen = {"algorithm": prediction.algorithm, "protocol": protocol, "executor": prediction.executor}
        return _on_other_links(scenario.model_copy(update={**chosen, "arrivals": came}), drawn).time_ps
    if _OF_LINKS.intersection(drawn.felt()):
        return _call_end(prediction, drawn)
    return predict(scenario.model_copy(update={"algorithm": prediction.algorithm, "arrivals": came})).time_ps


def _on_other_links(scenario: Scenario, drawn: Drawn) -> Prediction:
    """Predict a point again on the slow links and with the faults that were drawn for one replication."""
    rated, happened = rated_topology(scenario), {"replications": None, "faults": tuple(drawn.happened())}
    less = with_less(rated, 1 / drawn.slow_links(rated.link_names)) if "slow_links" in drawn.felt() else None
    return predict(scenario.model_copy(update=happened), less)


def arriving(scenario: Scenario, drawn: Drawn, n: int) -> Any:
    """Return when each rank reaches a collective with one replication's random draws, int64 (n,), in ps."""
    came = np.array([(scenario.arrivals or {}).get(rank, 0) for rank in range(n)])
    return np.rint((came + drawn.skew(n)) * drawn.slow(n)).astype(np.int64)


def disturbed(prediction: StepPrediction, drawn: Drawn) -> Program:
    """Return the joined program of a workload's plan with one replication's random draws."""
    tasks = prediction.program.tasks
    assert tasks
    durations = replace(tasks, duration=_took(prediction, drawn))
    program = replace(_rewired(prediction, drawn), tasks=durations)
    return struck(program, prediction.topology, drawn.happened())


def _took(prediction: StepPrediction, drawn: Drawn) -> Any:
    """Return how long each task of the plan takes with one replication's random draws, int64 (tasks,), in ps."""
    of = prediction.tasks
    took = of.duration.astype(float)
    computing, launching = of.kind == COMPUTING, of.kind == LAUNCHING
    took[computing] *= drawn.jitter(int(computing.sum()))
    took[launching] += drawn.skew(int(launching.sum()))
    took *= drawn.slow(prediction.n)[of.rank]
    return np.rint(took).astype(np.int64)


def _rewired(prediction: Prediction, drawn: Drawn) -> Program:
    """Return the program with the ECMP routes and slow links that were drawn for one replication."""
    program, scenario, felt = prediction.program, prediction.scenario, drawn.felt()
    if drawn.spec.ecmp and "ecmp" in felt:
        flows = drawn.spec.ecmp.flows * (scenario.env.NCCL_IB_QPS_PER_CONNECTION or 1)
        if scenario.topology.ecmp:  # each channel of a NIC has connections of its own
            flows *= max(max(1, call.lowered.count // call.lowered.nics) for call in prediction.planned)
        program = hashed(program, prediction.topology, flows, drawn.hashes(), _rails(prediction))
    return _slowed(program, drawn) if "slow_links" in felt else program


def _rails(prediction: Prediction) -> list[Rails]:
    """Return, for each view of the program's links (see `Program`), the NICs (rails) for which the channel stands."""
    program = prediction.program
    names = tuple(program.link_names[: program.servers])
    columns = [column.reshape(program.views, -1) for column in (program.bandwidths, program.latencies)]
    found = [Rails()] * program.views
    for call in (planned.lowered for planned in prediction.planned):
        own = np.arange(len(names))
        if call.rated.link_names != names:
            own = np.array([*map({name: i for i, name in enumerate(names)}.__getitem__, call.rated.link_names)])
        shares = np.ones(len(names))
        shares[own] = call.rail_shares
        seen = zip(columns, (call.bandwidths, call.latencies), strict=True)
        same = np.all([(column[:, own] == rates).all(axis=1) for column, rates in seen], axis=0)
        for view in np.flatnonzero(same).tolist():
            found[view] = max(found[view], Rails(call.nics, shares), key=lambda rails: rails.nics)
    return found


def _slowed(program: Program, drawn: Drawn) -> Program:
    """Return the program with the drawn links slowed down; routes stay as they are."""
    bandwidths = program.bandwidths / drawn.slow_links(program.link_names)
    return replace(program, bandwidths=np.maximum(program.bandwidths > 0, np.rint(bandwidths)).astype(np.int64))


def _check(prediction: Prediction) -> None:
    """Raise InputError for disturbed links that do not exist or cannot be slow or fail, and for needless ECMP."""
    scenario, names = prediction.scenario, prediction.topology.link_names
    spec = scenario.variability or Variability()
    if scenario.faults:
        prediction.with_faults(prediction.program, scenario.faults)
    for each in spec.slow_links:
        if not matching(each.link, names):
            raise wrong("variability", f"no link is called {each.link!r}", did_you_mean(each.link, names))
    for key in ("slow_links", "ecmp"):
        if key in spec.causes and scenario.measure.buckets > 1:
            why = "a collective in buckets has the same links in all replications"
            raise wrong("variability", why, f"leave out `{key}` or `buckets`")
    if not spec.ecmp:
        return
    if prediction.topology.routing == "shortest":
        raise wrong("variability", "routing: shortest draws no routes", "leave out `ecmp`, or write `routing: ecmp`")
    if not drawable(prediction.program, prediction.topology):
        why = "`ecmp` changes nothing: no message has several equal routes"
        raise wrong(
            "variability", why, "leave out `ecmp`, or place ranks on several leaves of a fabric with several `spines`"
        )
    others = {"slow_links": spec.slow_links, "faults": scenario.faults}
    if (named := next(filter(others.get, others), None)) and load_profile(scenario.profile).as_nccl:
        why = f"NCCL's calls cannot have both random routes and {named.replace('_', ' ')}"
        raise wrong("variability", why, f"leave out `ecmp` or `{named}`")


# --- what they add up to ---


def merged(shares: Sequence[ResultRow]) -> ResultRow:
    """Return a point's row from the rows of its parts: replications split among workers, in order, none failed."""
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
    """Return quantiles of `times` (ps) as columns (us) with confidence intervals, from order statistics."""
    ordered, quantiles = sorted(times), {}
    for name, share in QUANTILES.items():
        low, high = _interval(len(ordered), share)
        at = min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)
        for ending, place in (("", at), ("_low", low), ("_high", high)):
            quantiles[f"time_us_{name}{ending}"] = ordered[place] / 1e6
    return quantiles


def _interval(count: int, share: float) -> tuple[int, int]:
    """Return the places (indices) in `count` sorted values between which a quantile lies with confidence SURE; the
    number of values below the quantile is binomial. Few values give a lower confidence."""
    from scipy.special import bdtr  # only replications pay for the import

    below = bdtr(np.arange(count + 1), count, share)
    tail = (1 - SURE) / 2
    low = int(np.searchsorted(below, tail))  # fewer than `low` values below it are improbable
    high = int(np.searchsorted(below, 1 - tail))
    return max(0, min(low, count) - 1), min(count - 1, high)


def _shares(times: Mapping[str, Sequence[int]], causes: Sequence[str], undisturbed: int) -> dict[str, float]:
    """Return each cause's share (0 … 1) in the slowdown of the mean time; empty if nothing is slower.

    A cause's share is the time that it adds to a set of other causes, averaged over all orders of adding causes
    (Shapley value). The shares add up to 1, and none is below 0.
    """
    judged = min(map(len, times.values()))
    means = {frozenset(names.split()): sum(ps[:judged]) / judged for names, ps in times.items()}
    means[frozenset()] = float(undisturbed)
    orders = list(itertools.permutations(causes))
    shares = dict.fromkeys(causes, 0.0)
    for order in orders:
        for place, cause in enumerate(order):
            before = frozenset(order[:place])
            shares[cause] += (means[before | {cause}] - means[before]) / len(orders)
    shares = {cause: max(0.0, added) for cause, added in shares.items()}
    total = math.fsum(shares.values())
    return {cause: added / total for cause, added in shares.items()} if total else {}
