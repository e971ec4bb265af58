"""Write the plan of a workload as Chakra's execution traces, which ASTRA-sim and its like replay: a graph a rank."""

from __future__ import annotations

import json

from simcoll.errors import InputError
from simcoll.formats.recordings import chakra
from simcoll.prediction.predict import predict
from simcoll.prediction.predictions import StepPrediction
from simcoll.prediction.training_step import TrainingPrediction
from simcoll.scenario import scenario_files
from simcoll.workload.plan import COMPUTE, Work, WorkloadPlan
from simcoll.workload.training_on_all_ranks import on_all_ranks

_PARTS_IN = ("all_gather", "gather")  # a rank hands in an n-th of the size


def dump(source: str) -> dict[str, bytes]:
    """Return the files of a scenario with a workload, by their endings: `RANK.et`, and `groups.json`, the ranks of each
    group by its name. Raises InputError for a scenario of several points, or of a collective."""
    points = scenario_files.load(source)
    if len(points) > 1 or not points[0].scenario.workload:
        problem = f"{source}: no workload" if not points[0].scenario.workload else f"{source}: {len(points)} points"
        raise InputError(problem, "give a scenario with one workload, and no list in it")
    ran = predict(points[0])
    plan = on_all_ranks(ran.planner, ran.timed.plan) if isinstance(ran, TrainingPrediction) else None
    plan = ran.plan if isinstance(ran, StepPrediction) else plan
    assert plan
    groups = {tuple(range(plan.n)): ""}
    for work in plan.works:
        if work.communicates:
            groups.setdefault(work.ranks, str(len(groups)))
    files = {f"{rank}.et": chakra.dump(_of_rank(plan, rank, groups, ran.scenario.dtype)) for rank in range(plan.n)}
    named = {name: list(ranks) for ranks, name in groups.items() if name}
    return files | {"groups.json": json.dumps(named, indent=1).encode()}


def _of_rank(plan: WorkloadPlan, rank: int, groups: dict[tuple[int, ...], str], dtype: str) -> list[chakra.Node]:
    """Return the nodes of one rank, with the numbers that their operations have in the plan. Attributes beyond Chakra's
    own keep what its fields round or lack: the time in ps, the stream, the ranks of a group, a root among them."""
    return [
        _node(plan, number, work, rank, groups, dtype) for number, work in enumerate(plan.works) if rank in work.ranks
    ]


def _node(
    plan: WorkloadPlan, number: int, work: Work, rank: int, groups: dict[tuple[int, ...], str], dtype: str
) -> chakra.Node:
    before = [each for each in work.before if rank in plan.works[each].ranks]
    node = chakra.Node(number, work.name, chakra.COMP, before, None, {"is_cpu_op": work.kind == "host"})
    node.attributes["stream"] = work.stream
    call = work.call
    if call is None:
        took = work.time_ps if isinstance(work.time_ps, int) else work.time_ps[work.ranks.index(rank)]
        node.took = round(took / 1e3)
        node.attributes |= {"duration_ps": took} | ({} if work.kind == COMPUTE else {"kind": work.kind})
    if call is None and not work.communicates:
        return node
    collective, n = call.collective if call else work.kind, len(work.ranks)
    size = (call.nbytes if call else 0) // (n if collective in _PARTS_IN else 1)
    node.attributes |= {"comm_dtype": call.dtype or dtype} if call else {}
    node.attributes |= {"comm_size": size, "collective": collective}
    if collective == "send_recv":
        source = call.root if call else 0
        ends = work.ranks[source], work.ranks[(source + 1) % n]
        node.kind = chakra.SEND if rank == ends[0] else chakra.RECV
        node.attributes |= {"comm_src": ends[0], "comm_dst": ends[1], "comm_tag": number}
        return node
    node.kind = chakra.COLL
    node.attributes |= {"root": call.root} if call and collective in chakra.ROOTED else {}
    known = collective if collective in chakra.COLLECTIVES else "all_to_all"  # of tokens of experts
    node.attributes["comm_type"] = chakra.COLLECTIVES.index(known)
    if name := groups[work.ranks]:
        node.attributes |= {"pg_name": name, "pg_ranks": str([*work.ranks])}
    return node
