"""Plans of small distributed programs, and of operations given one by one."""

from __future__ import annotations

from typing import Final

from simcoll.errors import wrong
from simcoll.workload.plan import COMPUTE, CollectiveCall, WorkloadPlan
from simcoll.workload.spec import Composition, Operations, OperationSpec

LOCAL: Final = "local"  # what each rank computes
STREAM: Final = "collectives"

STEPS: Final[dict[str, tuple[str, ...]]] = {
    "mean": (LOCAL, "all_reduce", LOCAL),  # sum, sum over ranks, divide
    "softmax": (LOCAL, "all_reduce", LOCAL, "all_reduce", LOCAL),  # max, then exp and sum, then divide
    "argmax": (LOCAL, "all_reduce", LOCAL, "all_gather", LOCAL),  # max, who has it, the first of them
    "scatter": ("scatter", LOCAL),  # a dataset
    "gather": (LOCAL, "gather"),  # predictions
    "broadcast": ("broadcast", LOCAL),  # parameters at the start
}


def composition(spec: Composition, n: int, itemsize: int) -> tuple[WorkloadPlan, dict[str, object]]:
    """Computing and sending in turn."""
    plan, last = WorkloadPlan(n), list[int]()
    for step in STEPS[spec.template]:
        if step == LOCAL:
            last = [plan.compute(LOCAL, spec.local, after=last)]
        else:
            size = n * spec.size if step == "all_gather" else spec.size  # what each rank has found, of every rank
            last = [plan.call(step, CollectiveCall(step, spec.algorithm, size, spec.root), stream=STREAM, after=last)]
    return plan, {}


def operations(spec: Operations, n: int, itemsize: int) -> tuple[WorkloadPlan, dict[str, object]]:
    """What is written, in the order in which it is written."""
    plan, known = WorkloadPlan(n), dict[str, list[int]]()
    for one in spec.operations:
        after = [number for name in one.after for number in known[name]]
        known[one.name] = [_placed(plan, spec, one, ranks, after) for ranks in _groups(one, n)]
    return plan, {}


def _groups(one: OperationSpec, n: int) -> tuple[tuple[int, ...], ...]:
    groups = one.groups or (one.ranks or tuple(range(n)),)
    everyone = [rank for group in groups for rank in group]
    if any(rank >= n for rank in everyone):
        raise wrong("workload", f"{one.name!r}: there is no rank {max(everyone)}", f"write 0 … {n - 1}")
    if len(set(everyone)) < len(everyone):
        raise wrong("workload", f"{one.name!r}: a rank stands twice", "let each rank be in one group")
    return groups


def _placed(plan: WorkloadPlan, spec: Operations, one: OperationSpec, ranks: tuple[int, ...], after: list[int]) -> int:
    if one.collective is None:
        return plan.compute(one.name, one.time or 0, ranks=ranks, after=after, stream=one.stream or COMPUTE)
    call = CollectiveCall(one.collective, one.algorithm or spec.algorithm, one.size or 0, one.root)
    return plan.call(one.name, call, stream=one.stream or STREAM, ranks=ranks, after=after)
