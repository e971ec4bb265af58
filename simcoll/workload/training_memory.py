"""The memory that a training step takes on a GPU, by kind."""

from __future__ import annotations

from typing import Final, NamedTuple, get_args

from simcoll.workload import pipeline_orders
from simcoll.workload.training_keys import BYTES, Recompute
from simcoll.workload.training_plan import Planner, Unit

STATE: Final = 12  # bytes of an optimizer's state per parameter: a float32 copy and two moments
CONTEXT: Final = 2_000_000_000  # bytes of CUDA, of NCCL's communicators, and of what the allocator cannot use
EAGER: Final = 1.8  # activations of gated blocks that eager kernels keep, over fused ones: gate, rotation, float32
TENSOR_BUFFERS: Final = 2  # gathered activations, forward and backward, whose memory sequence parallelism keeps


class Memory(NamedTuple):
    """Bytes on the GPU of a stage, by kind."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int

    @property
    def total(self) -> int:
        """Return the sum of all kinds."""
        return sum(self)


def memory_of(planner: Planner) -> Memory:
    """Return the memory of the stage that needs most."""
    return max(_of_stages(planner), key=lambda memory: memory.total)


def between_steps(planner: Planner) -> int:
    """Return the bytes that stay allocated between steps, on the stage with most of them."""
    return max(memory.total - memory.activations - CONTEXT for memory in _of_stages(planner))


def _of_stages(planner: Planner) -> list[Memory]:
    stages = {0, 1, planner.stages - 1} & {*range(planner.stages)}  # the others hold no more than stage 1
    return [_of_stage(planner, stage) for stage in sorted(stages)]


def _of_stage(planner: Planner, stage: int) -> Memory:
    spec, layout = planner.spec, planner.layout
    sharding = spec.parallel.sharding
    dense, experts = planner.parameters(stage)
    whole = dense + experts
    ways = layout.shards if sharding == "hsdp" else layout.degree("dp")
    shared = -(-dense // ways) + -(-experts // layout.degree("edp"))
    stored, reduced = BYTES[spec.parameter_type], BYTES[spec.dtypes.gradients]
    units = [planner.units(stage, chunk) for chunk in range(planner.chunks)]
    sharded = sharding in ("fsdp", "hsdp")
    gathered = 2 * max(_bytes(unit, stored) for held in units for unit in held) if sharded else 0
    tensor = TENSOR_BUFFERS * _activation(planner) if spec.split.sequence_parallel else 0
    state = STATE - 4 if stored == 4 else STATE  # parameters in float32 need no copy
    optimizer = state * (whole if sharding == "none" else shared)
    buckets = 0
    if planner.compute.framework.adds_apart and ways > 1 and sharding in ("none", "zero1"):
        buckets = stored * whole if sharding == "none" else (reduced + stored) * shared
        optimizer += (state - 8) * (whole - shared) if sharding == "zero1" else 0
    eager = EAGER if planner.compute.kernels == "eager" and spec.model.gated else 1
    of_unit = {way: round((1 if way == "full" else eager) * _of_block(planner, way)) for way in get_args(Recompute)}
    blocks = [[unit for unit in held if unit.name not in ("embedding", "head")] for held in units]
    most = max(sum(of_unit[unit.recompute] for unit in held) for held in blocks)
    kept = most * pipeline_orders.held(*planner.ordered_by, stage)
    working = _working(planner, units)
    return Memory(
        parameters=stored * (shared if sharded else whole),
        gradients=reduced * (shared if sharded or sharding == "zero2" else whole) + buckets,
        optimizer=optimizer,
        activations=kept + working,
        buffers=gathered + tensor + CONTEXT,
    )


def _bytes(unit: Unit, itemsize: int) -> int:
    return itemsize * (unit.block.parameters + unit.block.expert_parameters)


def _activation(planner: Planner) -> int:
    """Return the bytes of the residual stream of one micro batch, on all ranks of tensor parallelism together."""
    spec = planner.spec
    tokens = spec.batch.micro * spec.batch.sequence // spec.split.cp
    return planner.types.itemsize * tokens * spec.model.hidden


def _working(planner: Planner, units: list[list[Unit]]) -> int:
    """Return the bytes of what a pass needs for a time: a whole block that is computed again, and the logits."""
    spec, split = planner.spec, planner.spec.split
    tokens = spec.batch.micro * spec.batch.sequence // split.cp
    again = _of_block(planner, "none") if spec.recompute == "full" else 0
    logits = round(planner.compute.framework.logits) * tokens * -(-spec.model.vocab // split.tp)
    return again + (logits if any(unit.name == "head" for held in units for unit in held) else 0)


def _of_block(planner: Planner, recompute: str) -> int:
    """Return the bytes that a block keeps of one micro batch for the backward pass, on one rank: inputs of norms and
    matrices, queries, keys and values, what attention returns, and the activation's input and output; scores only where
    attention is not fused. With full recomputation only the block's input is kept."""
    spec, split, model = planner.spec, planner.spec.split, planner.spec.model
    tokens = spec.batch.micro * spec.batch.sequence // split.cp
    along = split.tp if split.sequence_parallel else 1
    if recompute == "full":
        return _activation(planner) // along
    heads = model.heads * (model.width + model.values) + model.keys * (model.width + model.values)
    if model.experts:
        width = (model.active_experts * split.tp // split.etp + model.shared_experts) * model.expert_width
    else:
        width = model.ffn
    kept = planner.types.itemsize * tokens * (4 * model.hidden // along + (heads + model.mats * width) // split.tp)
    scores = 5 * spec.batch.micro * model.heads * spec.batch.sequence**2 // (split.cp * split.tp)
    if recompute == "operations":
        return kept // 2
    return kept + (scores if planner.compute.kernel.score_bytes and recompute == "none" else 0)
