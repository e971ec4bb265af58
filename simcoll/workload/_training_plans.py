"""Plans of training steps: what each template means."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from simcoll.errors import wrong
from simcoll.workload.buckets import buckets
from simcoll.workload.plan import CollectiveCall, WorkloadPlan
from simcoll.workload.spec import Bucketed, Ddp, Fsdp, Layer, Moe, Pipeline, TensorParallel, Training

GRADIENTS: Final = "gradients"  # the stream of a data-parallel communicator
SHARDS: Final = "shards"
TENSOR: Final = "tensor"
EXPERTS: Final = "experts"
UNITS: Final = 10_000  # in which shares of tokens are counted

Told = dict[str, object]  # what a template says of itself in the results
Ready = list[tuple[int, int]]  # bytes of each gradient, and the operation behind which it is there
GroupsOfRanks = Sequence[Sequence[int]]


def ddp(spec: Ddp, n: int, itemsize: int) -> tuple[WorkloadPlan, Told]:
    """Forward, then backward from the last layer to the first, gradients in buckets behind it, then the optimizer."""
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
    """All-reduces of gradients in buckets, by each group of ranks that hold the same: for each bucket one a group."""
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
    """At least one, and whole."""
    return max(1, -(-nbytes // unit)) * unit


def _neighbours(n: int, degree: int, key: str) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of `degree` neighbouring ranks, and the groups of those at the same place in each."""
    if n % degree:
        raise wrong("workload", f"{n} ranks are no whole groups of {degree}", f"let {key} divide the number of ranks")
    inside = [list(range(first, first + degree)) for first in range(0, n, degree)]
    return inside, [list(range(place, n, degree)) for place in range(degree)]


# --- fully sharded ---


def fsdp(spec: Fsdp, n: int, itemsize: int) -> tuple[WorkloadPlan, Told]:
    """Gather and compute, in the backward pass again, and then reduce and scatter; all on one communicator, in the
    order in which they are launched: the block `prefetch` ahead is asked for before a block is computed."""
    plan, blocks, ahead = WorkloadPlan(n), spec.blocks(itemsize), spec.prefetch
    passed: dict[int, int] = {}  # of each block, the end of the pass over it
    gathered: dict[int, int] = {}

    def moved(collective: str, block: Layer, after: Sequence[int]) -> int:
        call = CollectiveCall(collective, spec.algorithm, _whole(block.nbytes, n * itemsize))
        return plan.call(f"{collective} {block.name}", call, stream=SHARDS, after=after)

    def gather(number: int, freed: int) -> None:
        """Block `number`, once the pass over block `freed` is over."""
        if 0 <= number < len(blocks) and blocks[number].nbytes and number not in gathered:
            gathered[number] = moved("all_gather", blocks[number], [passed[freed]] if freed in passed else [])

    for number, block in enumerate(blocks):
        for other in range(number, number + ahead + 1):
            gather(other, other - ahead - 1)
        passed[number] = plan.compute(
            f"forward {block.name}", _forward(block, spec, blocks), after=_some(gathered, number)
        )
    if spec.reshard:
        gathered.clear()
    turn, scattered = passed[len(blocks) - 1], []
    passed = dict.fromkeys(range(len(blocks), len(blocks) + ahead + 1), turn)
    for number in reversed(range(len(blocks))):
        for other in range(number, number - ahead - 1, -1):
            gather(other, other + ahead + 1)
        block = blocks[number]
        passed[number] = plan.compute(f"backward {block.name}", block.backward, after=_some(gathered, number))
        if block.nbytes:
            scattered.append(moved("reduce_scatter", block, [passed[number]]))
    plan.compute("optimizer", spec.optimizer, after=scattered)
    return plan, {}


def _some(found: dict[int, int], key: int) -> list[int]:
    return [found[key]] if key in found else []


def _forward(block: Layer, spec: Training, blocks: Sequence[Layer]) -> int:
    """What a block's forward pass takes: its share of `forward`, where that is given, by its own, or evenly."""
    if spec.forward is None:
        return block.forward
    whole = sum(other.forward for other in blocks)
    return spec.forward * block.forward // whole if whole else spec.forward // len(blocks)


# --- split over ranks ---


def tensor_parallel(spec: TensorParallel, n: int, itemsize: int) -> tuple[WorkloadPlan, Told]:
    """Each pass over a block is two halves, each followed by an all-reduce among those that share the block; gradients
    are reduced among those that hold the same share of it."""
    plan, degree, blocks = WorkloadPlan(n), spec.degree, spec.blocks(itemsize)
    inside, across = _neighbours(n, degree, "degree")
    call = CollectiveCall("all_reduce", spec.algorithm, _whole(spec.handed_on(itemsize), itemsize))
    last: list[int] = []  # what the next computation waits for

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


def pipeline(spec: Pipeline, n: int, itemsize: int) -> tuple[WorkloadPlan, Told]:
    """Every stage takes up its microbatches in the order 1F1B; what it has computed goes to the next while it goes on.
    The ranks of a stage are neighbours, and each sends to the one at its place in the next."""
    plan, stages, blocks = WorkloadPlan(n), spec.stages, spec.blocks(itemsize)
    if len(blocks) < stages:
        raise wrong("workload", f"{len(blocks)} blocks do not fill {stages} stages", "take fewer stages")
    inside, _ = _neighbours(n, stages, "stages")  # so many ranks in all stages
    _, across = _neighbours(n, len(inside), "stages")
    ranks = [[place[stage] for place in across] for stage in range(stages)]
    call = CollectiveCall("send_recv", "direct", _whole(spec.handed_on(itemsize), itemsize))
    edges = [round(stage * len(blocks) / stages) for stage in range(stages + 1)]
    held = [blocks[a:b] for a, b in itertools.pairwise(edges)]
    took = [
        {"forward": sum(_forward(b, spec, blocks) for b in its), "backward": sum(b.backward for b in its)}
        for its in held
    ]
    ahead = {"forward": 1, "backward": -1}
    came: dict[tuple[str, int, int], list[int]] = {("forward", 0, k): [] for k in range(spec.microbatches)}
    came |= {("backward", stages - 1, k): [] for k in range(spec.microbatches)}
    todo = [_one_by_one(stage, stages, spec.microbatches) for stage in range(stages)]
    while any(todo):
        for stage, steps in enumerate(todo):
            while steps and (steps[0][0], stage, steps[0][1]) in came:
                what, k = steps.pop(0)
                computed = plan.compute(
                    f"{what} {k}", took[stage][what], ranks=ranks[stage], after=came[what, stage, k]
                )
                other = stage + ahead[what]
                if 0 <= other < stages:
                    came[what, other, k] = [
                        plan.call(f"{what} {k}", call, stream=f"{what} {stage}", ranks=pair, after=[computed])
                        for pair in zip(ranks[stage], ranks[other], strict=True)
                    ]
    sent = []
    for stage, its in enumerate(held):
        over = plan.last(ranks[stage][0])
        ready = [(nbytes, over) for block in reversed(its) for nbytes in reversed(block.tensors)]
        sent.append(_all_reduces(plan, spec, ready, [ranks[stage]], itemsize))
    plan.compute("optimizer", spec.optimizer, after=itertools.chain(*itertools.chain(*sent)))
    return plan, {"buckets": max(map(len, sent))}


def _one_by_one(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """1F1B: as many microbatches forward as there are stages behind, then one forward and one backward in turn."""
    early = min(stages - 1 - stage, microbatches)
    steps = [("forward", k) for k in range(early)]
    for k in range(microbatches):
        steps += [("forward", early + k)] if early + k < microbatches else []
        steps.append(("backward", k))
    return steps


def moe(spec: Moe, n: int, itemsize: int) -> tuple[WorkloadPlan, Told]:
    """In each pass over a block, around the experts, tokens go to the ranks of theirs and come back; the gradients of
    what is not an expert's are reduced among all ranks."""
    plan, degree, blocks = WorkloadPlan(n), spec.degree or n, spec.blocks(itemsize)
    inside, _ = _neighbours(n, degree, "degree")
    shares = [max(1, round(UNITS * (place + 1) ** -spec.skew)) for place in range(degree)]
    out, back = _all_to_alls(spec, shares, _whole(spec.handed_on(itemsize), itemsize), itemsize)
    busy = [spec.experts * degree * shares[rank % degree] // sum(shares) for rank in range(n)]

    def exchanged(name: str, computed: int, factor: int) -> list[int]:
        """To the experts, through them, and back."""
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


def _all_to_alls(spec: Moe, shares: list[int], nbytes: int, itemsize: int) -> tuple[CollectiveCall, CollectiveCall]:
    """Every rank sends its tokens by `shares`, and gets them back. A rank with many tokens sends more in all: the
    others' blocks to themselves, which go nowhere, are larger by that."""
    if len(set(shares)) == 1:
        even = CollectiveCall("all_to_all", spec.algorithm, _whole(nbytes, itemsize * len(shares)))
        return even, even
    most, n = max(shares) * len(shares), len(shares)
    rows = tuple(
        tuple(most - (n - 1) * share if other == rank else share for other in range(n))
        for rank, share in enumerate(shares)
    )
    away = CollectiveCall("all_to_all", spec.algorithm, nbytes, weights=tuple(tuple(shares) for _ in shares))
    return away, CollectiveCall(
        "all_to_all", spec.algorithm, _whole(nbytes * most // sum(shares), itemsize), weights=rows
    )
