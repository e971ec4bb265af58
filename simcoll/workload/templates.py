"""Look up the plan of a template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simcoll.workload._small_plans import composition, operations
from simcoll.workload._training_plans import ddp, fsdp, moe, pipeline, tensor_parallel
from simcoll.workload.plan import WorkloadPlan
from simcoll.workload.workload_keys import Composition, Ddp, Fsdp, Moe, Operations, Pipeline, TensorParallel

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
    """Plan a workload for `n` ranks, with `itemsize` bytes per element; return the plan and its columns for results.

    Raises InputError if the workload does not fit that many ranks.
    """
    return PLANS[type(spec)](spec, n, itemsize)
