"""What is to be run of a scenario: its points as tasks for real ranks, and what their rows say whatever the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcoll.errors import InputError, RefusedError
from simcoll.measurement.rank_program import part_of
from simcoll.measurement.rank_tasks import RankTask, WorkTask
from simcoll.measurement.torch_backend.support import Backend, done_in_place, refusal
from simcoll.measurement.workload_tasks import work_task
from simcoll.prediction.predict import Prediction, predict, row
from simcoll.scenario.scenario import Point, Scenario
from simcoll.schedule import registry
from simcoll.schedule.collectives import collective
from simcoll.schedule.ir import Schedule

CaseRow = dict[str, object]
Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Case:
    """A point as it is run: the task, and what its row says whatever the time."""

    task: RankTask | WorkTask
    says: CaseRow
    launches: int

    @property
    def ranks(self) -> int:
        """How many processes it takes."""
        return self.task.ranks


def cases(points: Sequence[Point], backend: Backend, tell: Tell = lambda line: None) -> list[Case]:
    """The points as tasks, each once.

    What nobody can run is left out and told of. Raises RefusedError if nothing is left, InputError for wrong input.
    """
    found: dict[str, Case] = {}
    refused: list[RefusedError] = []
    left_out: dict[str, None] = {}  # what is true of many sizes is told once
    for point in points:
        try:
            case = _case(point, backend)
        except RefusedError as error:
            refused.append(error)
            if not point.optional:
                left_out[str(error)] = None
            continue
        found.setdefault(_asked(point.scenario), case)
    if not found:
        raise refused[0] if refused else InputError("there is nothing to measure", "give a scenario with points")
    for why in left_out:
        tell(f"left out: {why}")
    return list(found.values())


def _case(point: Point, backend: Backend) -> Case:
    scenario, how = point.scenario, point.scenario.measure
    if scenario.workload:
        return Case(*work_task(point, backend), how.launches)
    library = how.harness == "library"
    prediction = predict(_whole(_any_algorithm(scenario)) if library else scenario)
    program = prediction.program
    schedule = _contract_only(program.schedule) if library else program.schedule
    members = len(schedule.groups[0])
    why_not = refusal(
        how.harness,
        backend,
        scenario.collective,
        scenario.op if collective(scenario.collective).reduces else "sum",
        scenario.dtype,
        weighted=scenario.weights is not None,
        equal=scenario.nbytes // scenario.itemsize % members == 0,
        ordered=all(list(group) == sorted(group) for group in schedule.groups),
        buckets=how.buckets,
        in_place=scenario.in_place,
        barriers=scenario.params().barrier,
    )
    if why_not:
        raise RefusedError(f"{scenario.collective} on {backend}: {why_not}")
    if not library:
        part_of(program, 0, scenario.nbytes, scenario.itemsize, scenario.weights)  # refuses what cannot be sent
    says = {**_says(prediction, how.harness), "launches": how.launches, "backend": backend, **point.swept}
    says["in_place"] = done_in_place(how.harness, scenario.collective, scenario.in_place)
    if library:
        says |= {"algorithm": None, "steps": None, "messages": None, "bytes_per_rank": None}
        says |= {"buckets": how.buckets, "async_op": how.async_op}
    task = RankTask(
        title=_title(scenario, says, point.swept),
        schedule=schedule,
        program=None if library else program,
        nbytes=scenario.nbytes,
        dtype=scenario.dtype,
        itemsize=scenario.itemsize,
        op=scenario.op,
        weights=scenario.weights,
        in_place=scenario.in_place,
        buckets=how.buckets,
        async_op=how.async_op,
        warmup=how.warmup,
        repeats=max(1, -(-how.repeats // how.launches)),
        verify=how.verify,
    )
    return Case(task, says, how.launches)


def _asked(scenario: Scenario) -> str:
    """What tells points apart: the library's collective is the same whatever the algorithm, and most are in place or
    out of place whatever is asked for; what a workload sends is the library's."""
    if scenario.workload:
        spec = scenario.workload.model_copy(update={"algorithm": "auto"})
        return scenario.model_copy(update={"workload": spec}).model_dump_json()
    harness = scenario.measure.harness
    done = done_in_place(harness, scenario.collective, scenario.in_place)
    one = scenario.model_copy(update={"in_place": done})
    return (_any_algorithm(one) if harness == "library" else one).model_dump_json()


def _any_algorithm(scenario: Scenario) -> Scenario:
    """The point with the first algorithm of its collective, which serves every number of ranks."""
    return scenario.model_copy(update={"algorithm": registry.names(scenario.collective)[0]})


def _whole(scenario: Scenario) -> Scenario:
    """The point in one bucket: ranks, groups and root are the same."""
    return scenario.model_copy(update={"measure": scenario.measure.model_copy(update={"buckets": 1})})


def _contract_only(schedule: Schedule) -> Schedule:
    """Ranks, groups and root without a transfer."""
    none = np.zeros(0, np.int32)
    columns = dict.fromkeys(("step", "src", "src_slot", "dst", "dst_slot"), none)
    blocks = collective(schedule.collective).blocks(len(schedule.groups[0]))
    return schedule.replace(algorithm="library", n_chunks=blocks, agents=0, reduce=none.astype(bool), **columns)


def _says(prediction: Prediction, harness: str) -> CaseRow:
    """The columns of a row that do not depend on the run."""
    said = row(prediction)
    names = ("collective", "ranks", "nodes", "dtype", "algorithm", "protocol", "size_bytes", "op", "root")
    return {
        "system": said["topology"],
        **{name: said[name] for name in names},
        **{name: said[name] for name in ("steps", "messages", "bytes_per_rank")},
        "harness": harness,
    }


def _title(scenario: Scenario, says: CaseRow, swept: Mapping[str, object]) -> str:
    """A point in one line, different for each: `all_reduce/ring, 4 ranks, 1024 B float32`."""
    harness = says["harness"]
    name = f"{scenario.collective}/{says['algorithm'] or harness}"
    others = [f"{key}={value}" for key, value in swept.items() if key != "measure.harness"]
    if scenario.collective == "barrier":
        return ", ".join([name, f"{says['ranks']} ranks", *others])
    op = [f"{scenario.op}"] if collective(scenario.collective).reduces and scenario.op != "sum" else []
    root = [f"root {scenario.root}"] if says["root"] else []
    size = f"{scenario.nbytes} B {scenario.dtype}"
    return ", ".join([name, f"{says['ranks']} ranks", size, *op, *root, *others])


def dry_run(points: Sequence[Point], backend: Backend, tell: Tell = lambda line: None) -> Iterator[str]:
    """Line by line what every rank would send, receive and call. Raises like `cases`."""
    for case in cases(points, backend, tell):
        task = case.task
        yield f"{task.title} ({case.says['harness']}, {backend})"
        for rank in range(case.ranks):
            if isinstance(task, WorkTask):
                yield f"  rank {rank}: {task.spec.template}, with collectives of the library"
                continue
            if task.program is None:
                calls = "" if task.buckets == 1 else f" in {task.buckets} buckets{', async' if task.async_op else ''}"
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
