"""Convert a scenario's points into cases: tasks for real ranks, with the columns that do not depend on the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simcoll.errors import InputError, RefusedError
from simcoll.measurement.program_of_rank import part_of
from simcoll.measurement.rank_tasks import RankTask, WorkTask
from simcoll.measurement.torch_backend.support import FLOATS, MEANS, Backend, done_in_place, refusal, widths
from simcoll.prediction.placed_topology import placed, topology_of
from simcoll.prediction.predict import Prediction, predict, row
from simcoll.prediction.training_step import plan_on_all_ranks
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import load_profile
from simcoll.scenario.profile_choice import UNFITTED
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import registry
from simcoll.schedule.collectives import collective
from simcoll.schedule.names import WORKLOAD
from simcoll.schedule.schedule import Schedule
from simcoll.units import format_size
from simcoll.workload.plan import WorkloadPlan
from simcoll.workload.templates import plan_of
from simcoll.workload.training_keys import TrainingStep
from simcoll.workload.workload_keys import Composition, Ddp

CaseRow = dict[str, object]
Tell = Callable[[str], None]
EVEN: Final = ("scatter", "gather")  # small programs in which every rank has an equal part of the data
BY_PLAN: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")  # calls that a plan makes for real
WORKLOAD_COPIES: Final = 8  # memory of a rank as a multiple of a workload's bytes: parameters, gradients and buckets


@dataclass(frozen=True, eq=False)
class Case:
    """A point to run: its task, the columns of its row that are known before the run, and its number of launches.

    Points with the same `key` have the same row.
    """

    task: RankTask | WorkTask
    columns: CaseRow
    launches: int
    key: str = ""

    @property
    def ranks(self) -> int:
        """The number of processes that the task needs."""
        return self.task.ranks


def cases(points: Sequence[Point], backend: Backend, tell: Tell = lambda line: None) -> list[Case]:
    """Return a case for each distinct point. Points that cannot run are skipped and reported by `tell`.

    Raises RefusedError if no point can run, InputError for wrong input.
    """
    distinct: dict[str, Case] = {}
    refused: list[RefusedError] = []
    left_out: dict[str, None] = {}  # reasons, each of which is reported once
    for point in points:
        try:
            case = _case(point, backend)
        except RefusedError as error:
            refused.append(error)
            if not point.optional:
                left_out[str(error)] = None
            continue
        like = _key(point.scenario)
        distinct.setdefault(like, replace(case, key="\0".join([like, str(point.swept), point.scenario.contents()])))
    if not distinct:
        raise refused[0] if refused else InputError("there is nothing to measure", "give a scenario with points")
    for why in left_out:
        tell(f"left out: {why}")
    return list(distinct.values())


def _case(point: Point, backend: Backend) -> Case:
    scenario, measure = point.scenario, point.scenario.measure
    if scenario.workload:
        return Case(*_workload(point, backend), measure.launches)
    library = measure.harness != "p2p"
    if load_profile(scenario.profile).as_nccl:  # the profile is for NCCL's kernels, but messages are sent one by one
        scenario = scenario.model_copy(update={"profile": UNFITTED})
    asked = scenario
    if library:  # the harness, not the scenario, decides how calls are launched
        scenario = scenario.model_copy(update={"launch": Launch()})
    prediction = predict(_whole(_any_algorithm(scenario))) if library else _sent(scenario)
    program = prediction.program
    schedule = _contract_only(program.schedule) if library else program.schedule
    if why_not := refusal(asked, backend, schedule.groups):
        raise RefusedError(f"{scenario.collective} on {backend}: {why_not}")
    if not library:
        # Raises RefusedError for schedules that send and receive cannot run.
        part_of(program, 0, scenario.nbytes, scenario.itemsize, scenario.weights)
    columns = {**_columns(prediction, measure.harness), "launches": measure.launches, "backend": backend, **point.swept}
    columns["in_place"] = done_in_place(measure.harness, scenario.collective, scenario.in_place)
    if library:
        columns |= {"asked": None, "algorithm": None, "steps": None, "messages": None, "bytes_per_rank": None}
        columns |= {"buckets": measure.buckets, "async_op": measure.async_op}
    means = measure.harness in MEANS
    if means:
        columns["calls"] = measure.calls
        columns |= {"launch.graph": True} if measure.harness == "graph" else {"launch.gpus_per_process": 1}
    task = RankTask(
        title=_title(scenario, columns, point.swept),
        schedule=schedule,
        program=None if library else program,
        nbytes=scenario.nbytes,
        dtype=scenario.dtype,
        itemsize=scenario.itemsize,
        op=scenario.op,
        weights=scenario.weights,
        in_place=scenario.in_place,
        buckets=measure.buckets,
        async_op=measure.async_op,
        warmup=measure.warmup,
        repeats=max(1, -(-measure.repeats // measure.launches)),
        verify=measure.verify,
        calls=measure.calls if means else 1,
        graph=measure.harness == "graph",
    )
    return Case(task, columns, measure.launches)


def _key(scenario: Scenario) -> str:
    """Return a text that is equal for points with the same real run.

    A library's collective ignores the algorithm, also in a workload. Most collectives ignore `in_place`.
    """
    if scenario.workload:
        spec = scenario.workload.model_copy(update={"algorithm": "auto"})
        return scenario.model_copy(update={"workload": spec}).model_dump_json()
    harness = scenario.measure.harness
    done = done_in_place(harness, scenario.collective, scenario.in_place)
    done_scenario = scenario.model_copy(update={"in_place": done})
    return (done_scenario if harness == "p2p" else _any_algorithm(done_scenario)).model_dump_json()


def _sent(scenario: Scenario) -> Prediction:
    """Return the prediction of a point by sends and receives; `auto` is the fastest algorithm without switches."""
    if scenario.algorithm not in ("auto", "best"):
        return predict(scenario)
    entries = [registry.find(scenario.collective, name)[0] for name in registry.library(scenario.collective)]
    names = [entry.name for entry in entries if not entry.needs_agent] or [scenario.algorithm]
    predicted = [predict(scenario.model_copy(update={"algorithm": name})) for name in names]
    return replace(min(predicted, key=lambda each: each.time_ps), asked=scenario.algorithm)


def _any_algorithm(scenario: Scenario) -> Scenario:
    """Return the scenario with its collective's first algorithm, which works for every number of ranks."""
    return scenario.model_copy(update={"algorithm": registry.names(scenario.collective)[0]})


def _whole(scenario: Scenario) -> Scenario:
    """Return the scenario with one bucket; ranks, groups and root do not change."""
    return scenario.model_copy(update={"measure": scenario.measure.model_copy(update={"buckets": 1})})


def _contract_only(schedule: Schedule) -> Schedule:
    """Return the schedule without its transfers: it only tells ranks, groups and root."""
    blocks = collective(schedule.collective).blocks(len(schedule.groups[0]))
    kept = {"collective": schedule.collective, "n": schedule.n, "root": schedule.root, "groups": schedule.groups}
    return Schedule.from_rows((), algorithm="library", n_chunks=blocks, **kept)


def _columns(prediction: Prediction, harness: str) -> CaseRow:
    """Return the columns of a row that do not depend on the run."""
    predicted = row(prediction)
    names = ("collective", "ranks", "nodes", "dtype", "algorithm", "protocol", "size_bytes", "op", "root", "asked")
    return {
        "system": predicted.topology,
        **{name: predicted[name] for name in names},
        **{name: predicted[name] for name in ("steps", "messages", "bytes_per_rank")},
        "harness": harness,
    }


def _title(scenario: Scenario, columns: CaseRow, swept: Mapping[str, object]) -> str:
    """Return a one-line name, different for each point: `all_reduce/ring, 4 ranks, 1024 B float32`."""
    harness = columns["harness"]
    name = f"{scenario.collective}/{columns['algorithm'] or harness}"
    others = [f"{key}={value}" for key, value in swept.items() if key != "measure.harness"]
    if scenario.collective == "barrier":
        return ", ".join([name, f"{columns['ranks']} ranks", *others])
    op = [f"{scenario.op}"] if collective(scenario.collective).reduces and scenario.op != "sum" else []
    root = [f"root {scenario.root}"] if columns["root"] else []
    size = f"{scenario.nbytes} B {scenario.dtype}"
    return ", ".join([name, f"{columns['ranks']} ranks", size, *op, *root, *others])


def _workload(point: Point, backend: Backend) -> tuple[WorkTask, dict[str, object]]:
    """Return the task of a point with a workload, and the columns of its row that do not depend on the run.

    Raises RefusedError for workloads that are only simulated, InputError for wrong input.
    """
    scenario, measure = point.scenario, point.scenario.measure
    topology = topology_of(scenario)
    places = placed(scenario, topology)
    spec: Any = scenario.workload
    if why_not := _why_not(scenario, backend, len(places)):
        raise RefusedError(f"{spec.template}: {why_not}")
    plan = _plan(scenario, len(places))
    if plan:
        nbytes = sum(call.nbytes for call in {work.call for work in plan.works if work.call})
    else:
        nbytes = sum(layer.nbytes for layer in spec.timed(scenario.itemsize)) if isinstance(spec, Ddp) else spec.size
    others = [f"{key}={value}" for key, value in point.swept.items()]
    title = ", ".join([spec.template, f"{len(places)} ranks", f"{nbytes} B {scenario.dtype}", *others])
    task = WorkTask(
        title=title,
        spec=spec,
        plan=plan,
        ranks=len(places),
        nbytes=WORKLOAD_COPIES * nbytes,
        dtype=scenario.dtype,
        itemsize=scenario.itemsize,
        compute=measure.compute,
        warmup=measure.warmup,
        repeats=max(1, -(-measure.repeats // measure.launches)),
        verify=measure.verify,
    )
    columns: dict[str, object] = {
        "system": topology.name,
        "collective": WORKLOAD,
        "ranks": len(places),
        "nodes": len({topology.node_of(place) for place in places}),
        "dtype": scenario.dtype,
        "harness": "library",
        "size_bytes": 0,
        "launches": measure.launches,
        "backend": backend,
        "workload": spec.template,
        "compute": measure.compute,
        **point.swept,
    }
    if isinstance(spec, Ddp):
        columns["bucket_cap"] = format_size(spec.bucket_cap) if spec.bucket_cap else "none"
    return task, columns


def _plan(scenario: Scenario, ranks: int) -> WorkloadPlan | None:
    """Return the plan of a workload that runs by its plan. Raises RefusedError for calls that it cannot make."""
    spec: Any = scenario.workload
    if isinstance(spec, Ddp | Composition):
        return None
    step = isinstance(spec, TrainingStep)
    plan = plan_on_all_ranks(scenario) if step else plan_of(spec, ranks, scenario.itemsize)[0]
    other = {work.call.collective for work in plan.works if work.call} - {*BY_PLAN}
    if other:
        raise RefusedError(f"{spec.template}: its {min(other)} is only simulated; take {', '.join(BY_PLAN)}")
    return plan


def _why_not(scenario: Scenario, backend: Backend, ranks: int) -> str | None:
    """Return why a workload cannot run for real, and the fix, as "problem; fix"; None if it can."""
    spec = scenario.workload
    if backend != "gloo":
        return "can only be measured over gloo; add --backend gloo"
    if not isinstance(spec, Ddp | Composition):
        return None if scenario.measure.compute == "sleep" else "its computations only sleep; leave out measure.compute"
    if scenario.dtype not in FLOATS:
        return f"has no gradients of {scenario.dtype}; take dtype: float32"
    if isinstance(spec, Composition):
        if spec.template in EVEN and spec.size // scenario.itemsize % ranks:
            return f"{spec.size} B are no {ranks} equal blocks; take a size of ranks × whole elements"
        return None
    if spec.layers is None:
        return "a named model cannot be measured; give `layers`"
    if not spec.overlap:
        return "torch sends buckets during the backward pass; leave out `overlap`"
    if any(layer.parameters < scenario.itemsize for layer in spec.layers):
        return "a layer without parameters has no gradient; leave it out"
    elements = [layer.nbytes // scenario.itemsize for layer in spec.timed(scenario.itemsize)]
    if scenario.measure.compute == "real" and not widths(elements):
        return "its layers make no chain of matrices; write powers of two, or measure.compute: sleep"
    return None


def dry_run(points: Sequence[Point], backend: Backend, tell: Tell = lambda line: None) -> Iterator[str]:
    """Yield lines that show every rank's sends, receives and calls. Raises the errors of `cases`."""
    for case in cases(points, backend, tell):
        task = case.task
        yield f"{task.title} ({case.columns['harness']}, {backend})"
        for rank in range(case.ranks):
            if isinstance(task, WorkTask):
                yield f"  rank {rank}: {task.spec.template}, with collectives of the library"
                continue
            if task.program is None:
                calls = " in place" if case.columns["in_place"] else " out of place"
                calls += "" if task.buckets == 1 else f" in {task.buckets} buckets{', async' if task.async_op else ''}"
                calls += "" if task.calls == 1 else f" {task.calls} times{' in a CUDA graph' if task.graph else ''}"
                group = next((group for group in task.schedule.groups if rank in group), ())
                yield (
                    f"  rank {rank}: calls {task.schedule.collective}{calls} among {list(group)}"
                    if group
                    else (f"  rank {rank}: nothing")
                )
                continue
            part = part_of(task.program, rank, task.nbytes, task.itemsize, task.weights)
            lines = list(part.lines(task.itemsize))
            yield f"  rank {rank}:" if lines else f"  rank {rank}: nothing"
            yield from (f"    {line}" for line in lines)
