"""What would make a training step faster, and which parallelism is best: each choice is planned and simulated."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from simcoll.errors import InputError, RefusedError, wrong
from simcoll.prediction.placed_topology import rated_topology
from simcoll.prediction.predict import row
from simcoll.prediction.training_step import CallTimes, TrainingPrediction, planner_of, predict_training, step_of
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.topology.graph import Topology
from simcoll.workload.rank_layout import Call
from simcoll.workload.training_keys import TrainingStep, changed
from simcoll.workload.training_memory import memory_of
from simcoll.workload.training_plan import Planner

BEST: Final = 10  # choices in an answer
SIMULATED: Final = 24  # choices that are simulated, of all that fit: those with the shortest estimates
LIMITS: Final = {"tp": 16, "cp": 16, "pp": 32, "micro": 4, "stages_per_rank": 4}  # largest degrees that are tried
SIZES: Final = (2**20, 2**28)  # bytes of the calls from which the estimate of a call's time is drawn
Found = Mapping[str, Any]


class Choice(NamedTuple):
    """A step with one choice of parallelism, and its estimated time in ps."""

    spec: TrainingStep
    estimate_ps: int


def _with(scenario: Scenario, spec: TrainingStep) -> Scenario:
    return scenario.model_copy(update={"workload": spec})


# --- explain ---


def explained_step(point: Point, what_if: bool = True) -> dict[str, Any]:
    """Return the document of `explain` for a training step: its row of results, its parts, and what would change its
    time, each change simulated. Raises the errors of `predict`."""
    scenario = point.scenario
    times = CallTimes(scenario)
    with point.placing():
        found = predict_training(scenario, None, times.costs, times)
    named = {name: value for name, value in row(found).columns().items() if value is not None}
    parts = [
        {"part": name, "time_us": ps / 1e6, "share": ps / found.time_ps}
        for name, ps in sorted(found.breakdown.items(), key=lambda item: -item[1])
        if ps
    ]
    return {**named, "time_ps": found.time_ps, "stage": found.timed.busiest, "parts": parts,
            "what_if": answers(found) if what_if else []}  # fmt: skip


def answers(found: TrainingPrediction) -> list[dict[str, Any]]:
    """Return the effect of each change on a step, the largest gain first. A change with which the step does not fit
    has no time."""
    said: list[dict[str, Any]] = []
    for change, simulate in _changes(found):
        try:
            other = simulate()
        except (InputError, RefusedError):  # the change is not possible here
            continue
        fits = other.memory.total <= other.limit
        answer = {"change": change, "fits": fits, "memory_GB": other.memory.total / 1e9}
        said.append({**answer, "time_us": other.time_ps / 1e6, "factor": found.time_ps / other.time_ps})
    return sorted(said, key=lambda answer: (not answer["fits"], -answer["factor"]))


def _changes(found: TrainingPrediction) -> Iterator[tuple[str, Callable[[], TrainingPrediction]]]:
    scenario, spec, times = found.scenario, found.step, found.times
    rated = rated_topology(scenario)
    inside = _inside(found)
    outside = {*found.topology.link_kinds} - inside

    def faster(kinds: set[str]) -> Callable[[], TrainingPrediction]:
        return lambda: predict_training(scenario, _doubled(rated, kinds), found.costs)

    def other(**keys: Any) -> Callable[[], TrainingPrediction]:
        free = changed(spec, memory="ignore", **keys)
        return lambda: predict_training(_with(scenario, free), None, found.costs, times)

    if found.nodes > 1 and outside:
        yield "NICs and the network twice as fast", faster(outside)
    if inside:
        yield f"{', '.join(sorted(inside))} within nodes twice as fast", faster(inside)
    p, passes = spec.parallel, found.planner.passes
    for name in ("tp", "pp", "cp", "ep"):
        for degree in (getattr(p, name) // 2, getattr(p, name) * 2):
            tried = name in ("tp", "pp") or getattr(p, name) > 1
            if degree and tried and (name != "ep" or spec.model.experts % degree == 0):
                yield f"{name} {degree} in place of {getattr(p, name)}", other(parallel={name: degree, "dp": None})
    for micro in (spec.batch.micro // 2, spec.batch.micro * 2):
        if micro:
            yield f"micro batches of {micro} in place of {spec.batch.micro}", other(batch={"micro": micro})
    if p.pp > 1 and spec.schedule.kind != "interleaved":
        for parts in (2, 4):
            yield f"interleave {parts}", other(schedule={"kind": "interleaved", "stages_per_rank": parts})
    if p.pp > 1 and spec.schedule.kind != "zero-bubble":
        yield "zero-bubble schedule", other(schedule={"kind": "zero-bubble", "stages_per_rank": 1})
    for level in ("none", "selective", "full"):
        if level != spec.recompute:
            yield f"recompute {level}", other(recompute=level)
    for sharding in ("zero1", "fsdp"):
        if sharding != p.sharding and found.planner.dp > 1:
            yield f"sharding {sharding}", other(parallel={"sharding": sharding})
    for kernels in ("pairwise", "deepep") if p.ep > 1 else ():
        if kernels != spec.executor:
            yield f"executor {kernels}", other(executor=kernels, sms=None)
    if p.tp > 1 and not found.planner.tensor_overlap:
        yield "tensor-parallel exchanges overlapped", other(overlap={"tensor": True})
    if not spec.framework.cuda_graphs and found.breakdown["launch"]:
        yield "CUDA graphs", other(framework={"cuda_graphs": True})
    if passes > 1:
        yield "a batch twice as large (per sequence)", _per_sequence(other, spec)


def _per_sequence(other: Callable[..., Callable[[], TrainingPrediction]], spec: TrainingStep) -> Any:
    simulate = other(batch={"global_": 2 * spec.batch.global_})

    def halved() -> TrainingPrediction:
        whole = simulate()
        totals = dataclasses.replace(whole.totals, makespan_ps=whole.time_ps // 2)
        return dataclasses.replace(whole, totals=totals)

    return halved


def _inside(found: TrainingPrediction) -> set[str]:
    """Return the kinds of links between the ranks of the first node."""
    node = [device for device in found.devices if found.topology.node_of(device) == 0]
    ends = [(node[0], other) for other in node[1:]]
    return {found.topology.link_kinds[link] for src, dst in ends for link in found.topology.route(src, dst)}


def _doubled(rated: Topology, kinds: set[str]) -> Topology:
    """Return a topology whose links of some kinds are twice as fast."""
    return rated.with_links(
        dataclasses.replace(each, bandwidth=2 * each.bandwidth) if each.kind in kinds else each
        for each in rated.every_link
    )


# --- recommend ---


class StepSearch:
    """A search over tensor, context, expert, pipeline and data parallelism, micro batches, recomputation and
    schedules. Choices that do not divide are left out, and those that do not fit into memory are counted as refused.
    The others are estimated by a closed form, and the shortest are simulated. Raises InputError for names `among`
    which to choose an algorithm."""

    def __init__(self, point: Point, among: Sequence[str] | None = None):
        if among is not None:
            raise wrong("--among", "a training step has no algorithms to choose among", "leave it out")
        self.point, self.scenario, self.spec = point, point.scenario, step_of(point.scenario)
        self.times = CallTimes(self.scenario)
        self.tried = self.refused = 0
        self._calls: dict[tuple[object, ...], tuple[float, float]] = {}  # ps, and ps per byte
        self._lines: dict[tuple[object, ...], tuple[float, float]] = {}

    def choices(self) -> list[Choice]:
        """Return all choices that fit, the shortest estimate first."""
        found: list[Choice] = []
        for spec in self._specs():
            try:
                planner = self._planner(spec)
            except InputError:  # a degree does not divide what it shares
                continue
            self.tried += 1
            if memory_of(planner).total > planner.compute.memory_bytes:
                self.refused += 1
                continue
            found.append(Choice(spec, closed_form_ps(planner)))
        return sorted(found, key=lambda choice: choice.estimate_ps)

    def _planner(self, spec: TrainingStep) -> Planner:
        planner = planner_of(_with(self.scenario, spec), self.times)
        planner.call_time = lambda call: self._estimated(planner, call)
        return planner

    def _estimated(self, planner: Planner, call: Call) -> int:
        """Return the time of a call by a line through the simulated times of two sizes."""
        if call.tokens:  # a line through two sizes is not theirs
            return self.times.time_ps(planner.layout.groups_of(call), call.made(self.spec.algorithm))
        p = planner.spec.parallel
        key = (p.tp, p.cp, p.pp, p.ep, call._replace(nbytes=0))
        if key not in self._calls:
            groups = planner.layout.groups_of(call)
            near = self.times.together(groups)
            where = (self.times.where(near[:1]), len(near), call.collective, call.dtype)
            if where not in self._lines:
                self._lines[where] = self._line(groups, call)
            self._calls[key] = self._lines[where]
        start, rate = self._calls[key]
        return round(start + rate * call.nbytes)

    def _line(self, groups: Sequence[Sequence[int]], call: Call) -> tuple[float, float]:
        small, large = (size - size % (4 * len(groups[0])) for size in SIZES)
        made = call.made(self.spec.algorithm)
        low, high = (self.times.time_ps(groups, made._replace(nbytes=size)) for size in (small, large))
        rate = (high - low) / (large - small)
        return max(0.0, low - rate * small), rate

    def _specs(self) -> Iterator[TrainingStep]:
        ranks, spec, model = len(self.times.places), self.spec, self.spec.model
        for tp, cp, pp in itertools.product(_powers(LIMITS["tp"]), _powers(LIMITS["cp"]), _divisors(LIMITS["pp"])):
            if ranks % (tp * cp * pp) or pp > model.layers or model.heads % tp:
                continue
            if cp > 1 and spec.batch.sequence // cp < 4096:  # shorter parts only lose
                continue
            dp = ranks // (tp * cp * pp)
            for ep in _powers(model.experts or 1):
                for micro in _powers(LIMITS["micro"]):
                    if spec.batch.global_ % (dp * micro):
                        continue
                    yield from self._scheduled(tp, cp, pp, ep, dp, micro)

    def _scheduled(self, tp: int, cp: int, pp: int, ep: int, dp: int, micro: int) -> Iterator[TrainingStep]:
        spec, passes = self.spec, self.spec.batch.global_ // (dp * micro)
        parts = [each for each in _powers(LIMITS["stages_per_rank"]) if each * pp <= spec.model.layers]
        kinds = [("interleaved" if each > 1 else "1f1b", each) for each in parts if each == 1 or pp > 1]
        kinds = [(kind, each) for kind, each in kinds if each == 1 or not passes % pp]
        given = spec.parallel.sharding
        sharded = dict.fromkeys([given, "zero1" if pp > 1 or tp > 1 else "fsdp"]) if dp > 1 else ["none"]
        for (kind, each), sharding, recompute in itertools.product(kinds, sharded, ("none", "selective", "full")):
            parallel = {"tp": tp, "cp": cp, "pp": pp, "ep": ep, "dp": None, "etp": None, "sharding": sharding}
            schedule = {"kind": kind, "stages_per_rank": each}
            yield changed(spec, parallel=parallel, batch={"micro": micro}, schedule=schedule, recompute=recompute)

    def document(self) -> dict[str, Any]:
        """Return the answer: the best choices, the first with the margin to the next. Raises InputError if no choice
        fits."""
        with self.point.placing():
            listed = self.choices()
            if not listed:
                problem = f"none of {self.tried} choices fits into the memory of a GPU"
                raise wrong("workload", problem, "ask for more ranks, or write `memory: ignore`")
            simulated = [predict_training(_with(self.scenario, choice.spec), None, self.times.costs, self.times)
                         for choice in _distinct(listed)[:SIMULATED]]  # fmt: skip
        best = sorted(simulated, key=lambda found: found.time_ps)[:BEST]
        return {
            "workload": "training",
            "topology": self.scenario.topology.title,
            "profile": self.scenario.profile,
            "ranks": best[0].n,
            "nodes": best[0].nodes,
            "tried": self.tried,
            "refused": self.refused,
            "simulated": len(simulated),
            "choices": [_told(found, best[0].time_ps) for found in best],
        }


def _distinct(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices without those that differ from a shorter one in recomputation alone, as less is faster."""
    seen: dict[str, Choice] = {}
    for choice in choices:
        seen.setdefault(repr(choice.spec.model_copy(update={"recompute": "none"})), choice)
    return list(seen.values())


def _told(found: TrainingPrediction, best_ps: int) -> Found:
    spec, columns = found.step, row(found)
    parallel = {name: getattr(spec.parallel, name) for name in ("tp", "cp", "ep", "pp")}
    return {
        "parallel": {**parallel, "dp": found.planner.dp, "sharding": spec.parallel.sharding},
        "micro": spec.batch.micro,
        "recompute": spec.recompute,
        "schedule": {"kind": spec.schedule.kind, "stages_per_rank": spec.schedule.stages_per_rank},
        "step_us": found.time_ps / 1e6,
        "mfu": columns.mfu,
        "tokens_per_s_per_gpu": columns.tokens_per_s_per_gpu,
        "memory_GB": found.memory.total / 1e9,
        "memory_limit_GB": found.limit / 1e9,
        "margin": found.time_ps / best_ps - 1,
        **{name: columns[name] for name in columns if name.startswith(("bubble", "wait_us", "exposed_", "interf"))},
    }


def _powers(most: int) -> list[int]:
    """Return the powers of two up to `most`."""
    return [2**power for power in range(int(math.log2(most)) + 1)]


def _divisors(most: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, 16, … up to `most`: usual numbers of stages."""
    return sorted(
        {each for power in _powers(most) for each in (power, 3 * power // 2) if each <= most and power != 1} | {1}
    )


def closed_form_ps(planner: Planner) -> int:
    """Return the time of a step by a closed form: (passes + (stages − 1) / chunks) times the slowest stage's pass, what
    data parallelism exposes, and the optimizer. The plan gives the exact time."""
    spec, stages, chunks = planner.spec, planner.stages, planner.chunks
    most = 0
    for stage in range(stages) if stages <= 2 else (0, 1, stages - 1):
        units = [unit for chunk in range(chunks) for unit in planner.units(stage, chunk)]
        forward, backward, weights = (
            sum(sum(unit.costs[phase]) for unit in units) for phase in ("forward", "backward", "weights")
        )
        gather = sum(map(planner.call_time, planner.parameter_calls(stage, units)))
        reduce = sum(map(planner.call_time, planner.gradient_calls(stage, units)))
        calls = [*planner.parameter_calls(stage, units), *planner.gradient_calls(stage, units)]
        hidden = planner.interference(calls)
        whole = forward + backward + weights
        if spec.parallel.sharding in ("fsdp", "hsdp"):
            exposed = max(0, gather - forward) + max(0, gather + reduce - backward)
            whole += exposed + hidden + planner.interference(planner.parameter_calls(stage, units))
            tail = 0
        else:
            share = 1 / len(units)
            tail = max(round(reduce * share), reduce - (backward + weights) // chunks) + hidden
            tail += max(round(gather * share), gather - forward // chunks) if spec.parallel.sharding != "none" else 0
        bubble = forward + backward - weights if planner.splits else whole
        optimizer = planner.optimizer_ps(stage)
        passes = planner.passes * whole + (stages - 1) * bubble // chunks
        most = max(most, passes + planner.sent_ps() + tail + optimizer)
    return most


__all__ = ["StepSearch", "closed_form_ps", "explained_step"]
