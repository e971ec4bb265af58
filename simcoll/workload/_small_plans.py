"""Make the plans of small distributed programs, and of operations that the user lists."""

from __future__ import annotations

from typing import Final

from simcoll.errors import wrong
from simcoll.workload.plan import COMPUTE, CollectiveCall, WorkloadPlan
from simcoll.workload.workload_keys import Composition, Operations, OperationSpec

LOCAL: Final = "local"  # the computation of each rank
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
    """Plan a small program: computations and collectives in turn."""
    plan, last = WorkloadPlan(n), list[int]()
    for step in STEPS[spec.template]:
        if step == LOCAL:
            last = [plan.compute(LOCAL, spec.local, after=last)]
        else:
            size = n * spec.size if step == "all_gather" else spec.size  # every rank gathers the result of each
            last = [plan.call(step, CollectiveCall(step, spec.algorithm, size, spec.root), stream=STREAM, after=last)]
    return plan, {}


def operations(spec: Operations, n: int, itemsize: int) -> tuple[WorkloadPlan, dict[str, object]]:
    """Plan the operations of the file, in the order of the file."""
    plan, known = WorkloadPlan(n), dict[str, list[int]]()
    for operation in spec.operations:
        after = [number for name in operation.after for number in known[name]]
        known[operation.name] = [_placed(plan, spec, operation, ranks, after) for ranks in _groups(operation, n)]
    return plan, {}


def _groups(operation: OperationSpec, n: int) -> tuple[tuple[int, ...], ...]:
    groups = operation.groups or (operation.ranks or tuple(range(n)),)
    everyone = [rank for group in groups for rank in group]
    if any(rank >= n for rank in everyone):
        raise wrong("workload", f"{operation.name!r}: there is no rank {max(everyone)}", f"write 0 … {n - 1}")
    if len(set(everyone)) < len(everyone):
        raise wrong("workload", f"{operation.name!r}: a rank stands twice", "let each rank be in one group")
    return groups


def _placed(
    plan: WorkloadPlan, spec: Operations, operation: OperationSpec, ranks: tuple[int, ...], after: list[int]
) -> int:
    if operation.collective is None:
        return plan.compute(
            operation.name, operation.time or 0, ranks=ranks, after=after, stream=operation.stream or COMPUTE
        )
    algorithm, protocol = operation.algorithm or spec.algorithm, operation.protocol
    call = CollectiveCall(operation.collective, algorithm, operation.size or 0, operation.root, protocol=protocol)
    return plan.call(operation.name, call, stream=operation.stream or STREAM, ranks=ranks, after=after)
