"""Make the plan of each template of a workload: training steps, small programs, and operations that the user lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from simcoll.errors import wrong
from simcoll.workload.expert_routing import TOKENS, ExpertKernel
from simcoll.workload.plan import COMPUTE, CollectiveCall, WorkloadPlan
from simcoll.workload.workload_keys import (
    Bucketed,
    Composition,
    Ddp,
    Fsdp,
    Layer,
    Moe,
    Operations,
    OperationSpec,
    Pipeline,
    TensorParallel,
    Training,
)


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
    everyone = [rank for group in groups for rank in group]
    if any(rank >= n for rank in everyone):
        raise wrong("workload", f"{operation.name!r}: there is no rank {max(everyone)}", f"write 0 … {n - 1}")
    if len(set(everyone)) < len(everyone):
        raise wrong("workload", f"{operation.name!r}: a rank is in several groups", "put it into one")
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
    call = of_tokens(operation, operation.collective) if operation.moe else call
    return plan.call(operation.name, call, stream=operation.stream or STREAM, ranks=ranks, after=after)


GRADIENTS: Final = "gradients"  # names of streams, one for each communicator
SHARDS: Final = "shards"
TENSOR: Final = "tensor"
EXPERTS: Final = "experts"
UNITS: Final = 10_000  # shares of tokens are whole numbers of 1 / UNITS, like weights of blocks

Facts = dict[str, object]  # columns that a template adds to the results
Ready = list[tuple[int, int]]  # bytes of each gradient, and the operation that computes it
GroupsOfRanks = Sequence[Sequence[int]]


def ddp(spec: Ddp, n: int, itemsize: int) -> tuple[WorkloadPlan, Facts]:
    """Plan data parallelism: forward pass, backward pass with all-reduces of gradients in buckets, the optimizer."""
    plan, layers = WorkloadPlan(n), spec.timed(itemsize)
    plan.compute("forward", sum(layer.forward for layer in layers) if spec.forward is None else spec.forward)
    ready: Ready = []
    for layer in reversed(layers):
        there = plan.compute(f"backward {layer.name}", layer.backward)
        ready += [(nbytes, there) for nbytes in reversed(layer.tensors)]
    sent = _all_reduces(plan, spec, ready, [range(n)], itemsize)
    plan.compute("optimizer", spec.optimizer, after=itertools.chain(*sent))
    return plan, {"buckets": len(sent)}


def _all_reduces(
    plan: WorkloadPlan, spec: Bucketed, ready: Ready, groups: GroupsOfRanks, itemsize: int
) -> list[list[int]]:
    """Add all-reduces of gradients in buckets to the plan, within each group of ranks that hold the same parameters.
    Return for each bucket the numbers of its calls, one call per group."""
    if len(groups[0]) == 1:
        return []
    over = plan.last(groups[0][0])  # the backward pass
    first = spec.bucket_cap if spec.first_bucket is None else spec.first_bucket
    sent = []
    for number, positions in enumerate(buckets([nbytes for nbytes, _ in ready], spec.bucket_cap, first)):
        nbytes = sum(ready[position][0] for position in positions)
        behind = max(ready[position][1] for position in positions) if spec.overlap else over
        call = CollectiveCall("all_reduce", spec.algorithm, _whole(nbytes, itemsize))
        stream = GRADIENTS if spec.streams == 1 else f"{GRADIENTS} {number % spec.streams}"
        sent.append(
            [plan.call(f"bucket {number}", call, stream=stream, ranks=ranks, after=(behind,)) for ranks in groups]
        )
    return sent


def _whole(nbytes: int, unit: int) -> int:
    """Return `nbytes` rounded up to a multiple of `unit`, at least one unit."""
    return max(1, -(-nbytes // unit)) * unit


def _neighbours(n: int, degree: int, key: str) -> tuple[list[list[int]], list[list[int]]]:
    """Return the groups of `degree` consecutive ranks; and for each position in a group, the ranks at this position in
    all groups. Raises InputError, which names `key`, if `degree` does not divide n."""
    if n % degree:
        raise wrong("workload", f"{n} ranks are no multiple of {degree}", f"change `{key}` or the number of ranks")
    inside = [list(range(first, first + degree)) for first in range(0, n, degree)]
    return inside, [list(range(place, n, degree)) for place in range(degree)]


# --- fully sharded ---


def fsdp(spec: Fsdp, n: int, itemsize: int) -> tuple[WorkloadPlan, Facts]:
    """Plan fully sharded training: gather and compute, gather again in the backward pass, then reduce and scatter. All
    calls share one communicator and run in the order of their launch. Before a block is computed, the block `prefetch`
    blocks ahead is gathered."""
    plan, blocks, ahead = WorkloadPlan(n), spec.blocks(itemsize), spec.prefetch
    passed: dict[int, int] = {}  # block -> the operation that ends the pass over it
    gathered: dict[int, int] = {}

    def moved(collective: str, block: Layer, after: Sequence[int]) -> int:
        call = CollectiveCall(collective, spec.algorithm, _whole(block.nbytes, n * itemsize))
        return plan.call(f"{collective} {block.name}", call, stream=SHARDS, after=after)

    def gather(number: int, freed: int) -> None:
        """Add the all-gather of block `number`, after the pass over block `freed`."""
        if 0 <= number < len(blocks) and blocks[number].nbytes and number not in gathered:
            gathered[number] = moved("all_gather", blocks[number], [passed[freed]] if freed in passed else [])

    for number, block in enumerate(blocks):
        for wanted in range(number, number + ahead + 1):
            gather(wanted, wanted - ahead - 1)
        passed[number] = plan.compute(
            f"forward {block.name}", _forward(block, spec, blocks), after=_some(gathered, number)
        )
    if spec.reshard:
        gathered.clear()
    turn, scattered = passed[len(blocks) - 1], []
    passed = dict.fromkeys(range(len(blocks), len(blocks) + ahead + 1), turn)
    for number in reversed(range(len(blocks))):
        for wanted in range(number, number - ahead - 1, -1):
            gather(wanted, wanted + ahead + 1)
        block = blocks[number]
        passed[number] = plan.compute(f"backward {block.name}", block.backward, after=_some(gathered, number))
        if block.nbytes:
            scattered.append(moved("reduce_scatter", block, [passed[number]]))
    plan.compute("optimizer", spec.optimizer, after=scattered)
    return plan, {}


def _some(operations: dict[int, int], key: int) -> list[int]:
    return [operations[key]] if key in operations else []


def _forward(block: Layer, spec: Training, blocks: Sequence[Layer]) -> int:
    """Return the time in ps of a block's forward pass. The total `spec.forward`, if set, is divided among all blocks:
    in proportion to their own times, or evenly if these are 0."""
    if spec.forward is None:
        return block.forward
    whole = sum(each.forward for each in blocks)
    return spec.forward * block.forward // whole if whole else spec.forward // len(blocks)


# --- split over ranks ---


def tensor_parallel(spec: TensorParallel, n: int, itemsize: int) -> tuple[WorkloadPlan, Facts]:
    """Plan tensor parallelism: split each pass over a block into two halves, each followed by an all-reduce. The
    all-reduce runs among the ranks that share a block. Gradients are reduced among ranks with the same share."""
    plan, degree, blocks = WorkloadPlan(n), spec.degree, spec.blocks(itemsize)
    inside, across = _neighbours(n, degree, "degree")
    call = CollectiveCall("all_reduce", spec.algorithm, _whole(spec.handed_on(itemsize), itemsize))
    last: list[int] = []  # operations that the next computation waits for

    def passed(name: str, block: Layer, time_ps: int) -> int:
        halves = (time_ps // 2, time_ps - time_ps // 2) if block.block is not None and degree > 1 else (time_ps,)
        for half in halves:
            computed = plan.compute(name, half, after=last)
            sent = inside if len(halves) > 1 else []
            last[:] = [plan.call(name, call, stream=TENSOR, ranks=ranks, after=[computed]) for ranks in sent]
        return computed

    for block in blocks:
        passed(f"forward {block.name}", block, _forward(block, spec, blocks) // degree)
    ready: Ready = []
    for block in reversed(blocks):
        there = passed(f"backward {block.name}", block, block.backward // degree)
        ready += [(_whole(nbytes, degree) // degree, there) for nbytes in reversed(block.tensors)]
    sent = _all_reduces(plan, spec, ready, across, itemsize)
    plan.compute("optimizer", spec.optimizer, after=[*last, *itertools.chain(*sent)])
    return plan, {"buckets": len(sent)}


def pipeline(spec: Pipeline, n: int, itemsize: int) -> tuple[WorkloadPlan, Facts]:
    """Plan a pipeline: every stage runs its microbatches in the order 1F1B, and sends results while it computes. The
    ranks of a stage are consecutive. Each sends to the rank with its position in the next stage."""
    plan, stages, blocks = WorkloadPlan(n), spec.stages, spec.blocks(itemsize)
    if len(blocks) < stages:
        raise wrong("workload", f"{len(blocks)} blocks are fewer than {stages} stages", "take fewer stages")
    inside, _ = _neighbours(n, stages, "stages")  # groups of `stages` ranks: as many as a stage has ranks
    _, across = _neighbours(n, len(inside), "stages")
    ranks = [[place[stage] for place in across] for stage in range(stages)]
    call = CollectiveCall("send_recv", "direct", _whole(spec.handed_on(itemsize), itemsize))
    edges = [round(stage * len(blocks) / stages) for stage in range(stages + 1)]
    held = [blocks[a:b] for a, b in itertools.pairwise(edges)]
    took = [
        {"forward": sum(_forward(b, spec, blocks) for b in of_stage), "backward": sum(b.backward for b in of_stage)}
        for of_stage in held
    ]
    ahead = {"forward": 1, "backward": -1}
    came: dict[tuple[str, int, int], list[int]] = {("forward", 0, k): [] for k in range(spec.microbatches)}
    came |= {("backward", stages - 1, k): [] for k in range(spec.microbatches)}
    todo = [_one_by_one(stage, stages, spec.microbatches) for stage in range(stages)]
    while any(todo):
        for stage, steps in enumerate(todo):
            while steps and (steps[0][0], stage, steps[0][1]) in came:
                phase, k = steps.pop(0)
                computed = plan.compute(
                    f"{phase} {k}", took[stage][phase], ranks=ranks[stage], after=came[phase, stage, k]
                )
                target = stage + ahead[phase]
                if 0 <= target < stages:
                    came[phase, target, k] = [
                        plan.call(f"{phase} {k}", call, stream=f"{phase} {stage}", ranks=pair, after=[computed])
                        for pair in zip(ranks[stage], ranks[target], strict=True)
                    ]
    sent = []
    for stage, of_stage in enumerate(held):
        over = plan.last(ranks[stage][0])
        ready = [(nbytes, over) for block in reversed(of_stage) for nbytes in reversed(block.tensors)]
        sent.append(_all_reduces(plan, spec, ready, [ranks[stage]], itemsize))
    plan.compute("optimizer", spec.optimizer, after=itertools.chain(*itertools.chain(*sent)))
    return plan, {"buckets": max(map(len, sent))}


def _one_by_one(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """Return the steps of a stage in the order 1F1B, as (`forward` or `backward`, microbatch): first one forward step
    for each later stage, then forward and backward steps alternately."""
    early = min(stages - 1 - stage, microbatches)
    steps = [("forward", k) for k in range(early)]
    for k in range(microbatches):
        steps += [("forward", early + k)] if early + k < microbatches else []
        steps.append(("backward", k))
    return steps


def moe(spec: Moe, n: int, itemsize: int) -> tuple[WorkloadPlan, Facts]:
    """Plan a mixture of experts: in each block, tokens are sent to the ranks of their experts and back. All gradients
    except the experts' are reduced among all ranks."""
    plan, degree, blocks = WorkloadPlan(n), spec.degree or n, spec.blocks(itemsize)
    inside, _ = _neighbours(n, degree, "degree")
    shares = [max(1, round(UNITS * (place + 1) ** -spec.skew)) for place in range(degree)]
    if spec.moe:
        spec.moe.check(degree)
        shares = np.rint(UNITS * spec.moe.to_experts(degree).sum(axis=0)).astype(int).tolist()
        out, back = (of_tokens(spec, collective) for collective in TOKENS)
    else:
        out, back = _all_to_alls(spec, shares, _whole(spec.handed_on(itemsize), itemsize), itemsize)
    busy = [spec.experts * degree * shares[rank % degree] // sum(shares) for rank in range(n)]

    def exchanged(name: str, computed: int, factor: int) -> list[int]:
        """Add the steps of the experts after the operation `computed`: send tokens, compute for `factor` · `experts`,
        send back."""
        sent = [plan.call(name, out, stream=EXPERTS, ranks=ranks, after=[computed]) for ranks in inside]
        worked = plan.compute(name, [factor * time for time in busy], after=sent)
        return [plan.call(name, back, stream=EXPERTS, ranks=ranks, after=[worked]) for ranks in inside]

    last: list[int] = []
    for block in blocks:
        computed = plan.compute(f"forward {block.name}", _forward(block, spec, blocks), after=last)
        last = exchanged(f"forward {block.name}", computed, 1) if block.block is not None else []
    ready: Ready = []
    there = plan.compute("loss", 0, after=last)
    for block in reversed(blocks):
        last = exchanged(f"backward {block.name}", there, 2) if block.block is not None else []
        there = plan.compute(f"backward {block.name}", block.backward, after=last)
        ready += [(nbytes, there) for nbytes in reversed(block.tensors)]
    sent = _all_reduces(plan, spec, ready, [range(n)], itemsize)
    plan.compute("optimizer", spec.optimizer, after=itertools.chain(*sent))
    return plan, {"buckets": len(sent)}


def of_tokens(spec: ExpertKernel, collective: str) -> CollectiveCall:
    """Return the call that sends the tokens of `spec` to their experts (`moe_dispatch`), or back (`moe_combine`)."""
    assert spec.moe
    own = ExpertKernel.model_construct(moe=spec.moe, executor=spec.executor, sms=spec.sms)
    return CollectiveCall(collective, "auto", spec.moe.nbytes(collective), tokens=own)


def _all_to_alls(spec: Moe, shares: list[int], nbytes: int, itemsize: int) -> tuple[CollectiveCall, CollectiveCall]:
    """Return two collectives: the all-to-all that sends tokens to the experts, and the one that sends them back.
    `shares` are the ranks' shares of tokens. On the way back a rank with many tokens sends more. Rows of weights must
    have equal sums, so a rank with few tokens gets a larger block for itself, which costs nothing."""
    if len(set(shares)) == 1:
        even = CollectiveCall("all_to_all", spec.algorithm, _whole(nbytes, itemsize * len(shares)))
        return even, even
    most, n = max(shares) * len(shares), len(shares)
    rows = tuple(
        tuple(most - (n - 1) * share if to == rank else share for to in range(n)) for rank, share in enumerate(shares)
    )
    away = CollectiveCall("all_to_all", spec.algorithm, nbytes, weights=tuple(tuple(shares) for _ in shares))
    return away, CollectiveCall(
        "all_to_all", spec.algorithm, _whole(nbytes * most // sum(shares), itemsize), weights=rows
    )


Planned = tuple[WorkloadPlan, dict[str, object]]
PLANS: Final[dict[type, Callable[..., Planned]]] = {
    Ddp: ddp,
    Fsdp: fsdp,
    TensorParallel: tensor_parallel,
    Pipeline: pipeline,
    Moe: moe,
    Composition: composition,
    Operations: operations,
}


def plan_of(spec: Any, n: int, itemsize: int) -> Planned:
    """Plan a workload for `n` ranks, with `itemsize` bytes per element. Return the plan, and columns to add to the
    results. Raises InputError if the workload does not fit that many ranks."""
    return PLANS[type(spec)](spec, n, itemsize)
