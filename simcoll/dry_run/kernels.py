"""What an operation of torch costs on a GPU: matrix products, attention, other FLOPs, bytes that go through memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from simcoll.workload.compute import BASE, Compute

KERNELS_OF_PASS: Final = 40  # kernels that eager PyTorch launches in a pass over a layer: what a floor of passes is for
_TYPES: Final = {torch.float32: "fp32", torch.float64: "fp32"}  # of products; others have the rate of bf16
_FREE: Final = frozenset(
    ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "lift_fresh", "resize_",
     "set_", "alias", "is_same_size", "_reshape_alias", "_unsafe_view", "record_stream")
)  # fmt: skip
_PART_READ: Final = frozenset(("embedding", "gather", "index", "index_select"))  # these read no more than they write


class Kernel(NamedTuple):
    """A kernel: `gemm` of `shape` (m, n, k, products), `attention` of (batch, heads, heads of keys, queries, keys, head
    dimension, causal, backward), or `other`. `dtype`: the type of its products. `nbytes`: what it reads and writes."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    flop: float


def kernels_of(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[Kernel, ...]:
    """Return the kernel of an operation, or nothing if it launches none."""
    if func.is_view or name in _FREE or func.namespace == "prim" or not (tensors := _tensors(out) or _tensors(args)):
        return ()
    first = tensors[0]
    if first.device.type == "meta":
        return ()
    dtype = _TYPES.get(first.dtype, BASE)
    read = [] if name in _PART_READ else _tensors(args)
    nbytes = sum(each.numel() * each.element_size() for each in (*read, *_tensors(out)))
    if name in _PART_READ:
        nbytes *= 2
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        *_, left, right = (each for each in args if isinstance(each, torch.Tensor))
        m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
        products = left.shape[0] if left.dim() == 3 else 1
        return (Kernel("gemm", (m, n, k, products), dtype, nbytes, 2.0 * m * n * k * products),)
    if "scaled_dot_product" in name:
        backward = "backward" in name
        query, key = args[1:3] if backward else args[:2]
        rest = [each for each in args if isinstance(each, bool)]
        causal = bool(kwargs.get("is_causal", rest[0] if rest else False))
        shape = (query.shape[0], query.shape[1], key.shape[1], query.shape[2], key.shape[2], query.shape[3])
        flop = (10.0 if backward else 4.0) * math.prod(shape[:2]) * math.prod(shape[3:]) / (2 if causal else 1)
        return (Kernel("attention", (*shape, causal, backward), BASE, nbytes, flop),)
    count = flop_registry.get(func.overloadpacket)
    flop = float(count(*args, **kwargs, out_val=out)) if count else 0.0
    return (Kernel("other", (), dtype, nbytes, flop),)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [each for part in value for each in _tensors(part)]
    return []


def seconds(kernels: Iterable[tuple[Kernel, int]], compute: Compute) -> float:
    """Return how long kernels take one after the other on a GPU: products and attention by its tables, others by their
    bytes or FLOPs. They are never faster than the CPU launches them."""
    took, launched = 0.0, 0
    fused = compute.framework.elementwise[compute.kernels] / compute.framework.elementwise["eager"]
    for kernel, times in kernels:
        took += times * _one(kernel, compute, fused)
        launched += times
    return max(took, launched * compute.launch_s / KERNELS_OF_PASS)


def _one(kernel: Kernel, compute: Compute, fused: float) -> float:
    through_memory = compute.optimizer_s(kernel.nbytes)
    if kernel.kind == "gemm":
        m, n, k, products = kernel.shape
        return products * compute.gemm_s(m, n, k, kernel.dtype) if products * m * n * k else 0.0
    if kernel.kind == "attention":
        batch, heads, kv_heads, queries, keys, dim, causal, backward = kernel.shape
        return compute.attention_s(batch, heads, kv_heads, queries, keys, dim, bool(causal), bool(backward))
    return max(kernel.flop / compute.peak(kernel.dtype), fused * through_memory)


def total_flop(kernels: Iterable[tuple[Kernel, int]]) -> float:
    """Return the FLOPs of all kernels."""
    return sum(times * kernel.flop for kernel, times in kernels)
