"""Make the plan of each template of a workload: training steps, small programs, and operations that the user lists."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, Final

from simcoll.errors import wrong
from simcoll.workload.compute import gpus
from simcoll.workload.plan import COMPUTE, CollectiveCall, WorkloadPlan, of_tokens
from simcoll.workload.workload_keys import Composition, Ddp, EqualGroups, Operations, OperationSpec


def buckets(nbytes: Sequence[int], cap: int, first: int) -> list[list[int]]:
    """Assign gradients to buckets; return for each bucket the positions of its gradients in `nbytes`, which lists their
    sizes in the order in which they become ready.

    A bucket is closed by the gradient with which it reaches its limit: `first` bytes for the first bucket, `cap` for
    the others. So it may be larger. With a limit of 0 each gradient is a bucket. PyTorch's reducer has the same rule
    (`compute_bucket_assignment_by_size`, when buckets are rebuilt after the first step).

    >>> buckets([4, 4, 4, 4, 4], cap=8, first=1)
    [[0], [1, 2], [3, 4]]
    """
    closed: list[list[int]] = []
    held: list[int] = []
    size, limit = 0, first
    for position, more in enumerate(nbytes):
        held.append(position)
        size += more
        if size >= limit:
            closed.append(held)
            held, size, limit = [], 0, cap
    return [*closed, held] if held else closed


LOCAL: Final = "local"  # name of the computation of each rank
STREAM: Final = "collectives"

STEPS: Final[dict[str, tuple[str, ...]]] = {
    "mean": (LOCAL, "all_reduce", LOCAL),  # sum, sum over ranks, divide
    "softmax": (LOCAL, "all_reduce", LOCAL, "all_reduce", LOCAL),  # max, then exp and sum, then divide
    "argmax": (LOCAL, "all_reduce", LOCAL, "all_gather", LOCAL),  # max, the ranks that have it, the first of these
    "scatter": ("scatter", LOCAL),  # a dataset
    "gather": (LOCAL, "gather"),  # predictions
    "broadcast": ("broadcast", LOCAL),  # parameters at the start
}


def composition(spec: Composition, n: int, itemsize: int) -> tuple[WorkloadPlan, dict[str, object]]:
    """Plan a small program of computations and collectives, whose steps STEPS lists. Return the plan and an empty
    mapping, as it has no columns for results."""
    plan, last = WorkloadPlan(n), list[int]()
    for step in STEPS[spec.template]:
        if step == LOCAL:
            last = [plan.compute(LOCAL, spec.local, after=last)]
        else:
            size = n * spec.size if step == "all_gather" else spec.size  # every rank gathers the result of each
            last = [plan.call(step, CollectiveCall(step, spec.algorithm, size, spec.root), stream=STREAM, after=last)]
    return plan, {}


def operations(spec: Operations, n: int, itemsize: int) -> tuple[WorkloadPlan, dict[str, object]]:
    """Plan the operations that the file lists, in the file's order. Return the plan and an empty mapping, as it has no
    columns for results."""
    plan, known = WorkloadPlan(n), dict[str, list[int]]()
    for operation in spec.operations:
        after = [number for name in operation.after for number in known[name]]
        known[operation.name] = [_placed(plan, spec, operation, ranks, after) for ranks in _groups(operation, n)]
    return plan, {}


def _groups(operation: OperationSpec, n: int) -> tuple[tuple[int, ...], ...]:
    groups = operation.groups or (operation.ranks or tuple(range(n)),)
    if isinstance(groups, EqualGroups):
        return groups.of(n)
    everyone = [rank for group in groups for rank in group]
    if any(rank >= n for rank in everyone):
        raise wrong("workload", f"{operation.name!r}: there is no rank {max(everyone)}", f"write 0 … {n - 1}")
    if len(set(everyone)) < len(everyone):
        raise wrong("workload", f"{operation.name!r}: a rank is in several groups", "put it into one")
    return groups


def _placed(
    plan: WorkloadPlan, spec: Operations, operation: OperationSpec, ranks: tuple[int, ...], after: list[int]
) -> int:
    sized = operation.size or operation.moe or operation.collective == "barrier"
    if operation.collective is None or (operation.time is not None and (spec.measured_on or not sized)):
        kind, stream = (
            operation.collective or operation.kind,
            operation.stream or (STREAM if operation.collective else COMPUTE),
        )
        time: int | list[int] = 0
        if isinstance(operation.time, dict):
            listed = sorted(operation.time)
            time = [operation.time[listed[max(0, bisect.bisect(listed, rank) - 1)]] for rank in ranks]
        elif operation.time:
            time = operation.time
        return plan.compute(operation.name, time, ranks=ranks, after=after, stream=stream, kind=kind)
    algorithm, protocol = operation.algorithm or spec.algorithm, operation.protocol
    call = CollectiveCall(operation.collective, algorithm, operation.size or 0, operation.root, protocol=protocol)
    call = of_tokens(operation, operation.collective) if operation.moe else call
    return plan.call(operation.name, call, stream=operation.stream or STREAM, ranks=ranks, after=after)


GRADIENTS: Final = "gradients"  # stream of the all-reduces


def ddp(spec: Ddp, n: int, itemsize: int) -> tuple[WorkloadPlan, dict[str, object]]:
    """Plan data parallelism: forward pass, backward pass with all-reduces of gradients in buckets, the optimizer.
    Raises InputError if parameters and gradients, which each rank has, do not fit into a known GPU's memory."""
    plan, layers = WorkloadPlan(n), spec.timed(itemsize)
    kept = 2 * sum(size for layer in layers for size in layer.tensors)
    if spec.gpu and kept > (limit := gpus()[spec.gpu].memory):
        problem = f"parameters and gradients alone need {kept / 1e9:.0f} GB of a GPU's {limit / 1e9:.0f} GB"
        raise wrong("workload", problem, "write template: training, with parallel: {sharding: fsdp}")
    over = plan.compute("forward", sum(layer.forward for layer in layers) if spec.forward is None else spec.forward)
    ready: list[tuple[int, int]] = []  # bytes of each gradient, and the operation that computes it
    for layer in reversed(layers):
        over = plan.compute(f"backward {layer.name}", layer.backward)
        ready += [(nbytes, over) for nbytes in reversed(layer.tensors)]
    first = spec.bucket_cap if spec.first_bucket is None else spec.first_bucket
    held = buckets([nbytes for nbytes, _ in ready], spec.bucket_cap, first) if n > 1 else []
    sent = []
    for number, positions in enumerate(held):
        nbytes = sum(ready[position][0] for position in positions)
        behind = max(ready[position][1] for position in positions) if spec.overlap else over
        call = CollectiveCall("all_reduce", spec.algorithm, max(1, -(-nbytes // itemsize)) * itemsize)
        stream = GRADIENTS if spec.streams == 1 else f"{GRADIENTS} {number % spec.streams}"
        sent.append(plan.call(f"bucket {number}", call, stream=stream, after=(behind,)))
    plan.compute("optimizer", spec.optimizer, after=sent)
    return plan, {"buckets": len(sent)}


Planned = tuple[WorkloadPlan, dict[str, object]]
PLANS: Final[dict[type, Callable[..., Planned]]] = {
    Ddp: ddp,
    Composition: composition,
    Operations: operations,
}


def plan_of(spec: Any, n: int, itemsize: int) -> Planned:
    """Plan a workload for `n` ranks, with `itemsize` bytes per element. Return the plan, and columns to add to the
    results. Raises InputError if the workload does not fit that many ranks."""
    return PLANS[type(spec)](spec, n, itemsize)
