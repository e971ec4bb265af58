"""Plans of training steps: what each template means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simcoll.workload.buckets import buckets
from simcoll.workload.plan import Call, Plan
from simcoll.workload.spec import Ddp

GRADIENTS: Final = "gradients"  # the stream of a data-parallel communicator


Told = dict[str, object]  # what a template says of itself in the results


def plan_of(spec: Any, n: int, itemsize: int) -> tuple[Plan, Told]:
    """What a workload is on `n` ranks, with `itemsize` bytes an element, and columns of the results."""
    return PLANS[type(spec)](spec, n, itemsize)


def ddp(spec: Ddp, n: int, itemsize: int) -> tuple[Plan, Told]:
    """Forward, then backward from the last layer to the first, gradients in buckets behind it, then the optimizer."""
    plan, layers = Plan(n), spec.timed(itemsize)
    plan.compute("forward", sum(layer.forward for layer in layers) if spec.forward is None else spec.forward)
    ready: list[tuple[int, int]] = []  # bytes of each gradient, and the operation behind which it is there
    last = 0
    for layer in reversed(layers):
        last = plan.compute(f"backward {layer.name}", layer.backward)
        ready += [(nbytes, last) for nbytes in reversed(layer.tensors)]
    first = spec.bucket_cap if spec.first_bucket is None else spec.first_bucket
    grouped = buckets([nbytes for nbytes, _ in ready], spec.bucket_cap, first)
    sent = []
    for number, positions in enumerate(grouped):
        call = Call("all_reduce", spec.algorithm, sum(ready[position][0] for position in positions))
        behind = max(ready[position][1] for position in positions) if spec.overlap else last
        sent.append(plan.call(f"bucket {number}", call, stream=GRADIENTS, after=(behind,)))
    plan.compute("optimizer", spec.optimizer, after=sent)
    return plan, {"buckets": len(grouped)}


PLANS: Final[dict[type, Callable[..., tuple[Plan, Told]]]] = {Ddp: ddp}
