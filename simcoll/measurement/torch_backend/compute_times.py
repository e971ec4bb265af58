"""Measure how long single matrix products and attention calls take on a GPU, for tables of computing times."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from simcoll.errors import InputError

Row = dict[str, object]

TOKENS: Final = (128, 512, 2048, 4096, 8192, 16384)  # m of a product: between them, the time per FLOP is interpolated
WIDTHS: Final = (256, 1024, 2048, 4096, 6144, 8192, 12288, 16384)  # n and k
SEQUENCES: Final = (512, 1024, 2048, 4096, 8192)
HEADS: Final = (8, 32, 128)  # of all sequences of a batch together
MOST_BYTES: Final = 2**33  # of the operands of a product
WARM_UP: Final = 3
LEAST_MS: Final = 10.0  # of each of REPEATS runs, much more than waiting for the GPU takes
REPEATS: Final = 5


def first_gpu() -> tuple[torch.device, str]:
    """Return the first GPU and its name; raises InputError if torch sees none."""
    if not torch.cuda.is_available():
        raise InputError("measure compute: torch sees no GPU", "run it on a machine with a GPU and its driver")
    return torch.device("cuda", 0), torch.cuda.get_device_name(0)


def gemms(device: torch.device, tokens: Sequence[int] = TOKENS, widths: Sequence[int] = WIDTHS) -> Iterator[Row]:
    """Yield a row for each product of an m x k with a k x n matrix of bfloat16: `dtype`, `m`, `n`, `k`, `torch_us`."""
    for m, n, k in itertools.product(tokens, widths, widths):
        if 2 * (m * k + k * n + m * n) > MOST_BYTES:
            continue
        a = torch.randn(m, k, dtype=torch.bfloat16, device=device)
        b = torch.randn(n, k, dtype=torch.bfloat16, device=device).t()
        yield {"dtype": "bfloat16", "m": m, "n": n, "k": k, "torch_us": _time_us(partial(torch.matmul, a, b), device)}


def attentions(
    device: torch.device, sequences: Sequence[int] = SEQUENCES, heads: Sequence[int] = HEADS
) -> Iterator[Row]:
    """Yield a row for each forward pass of causal attention in bfloat16: `dtype`, `head_dim`, `heads`, `kv_heads`,
    `batch`, `seq`, `torch_us`."""
    for width, count, length in itertools.product((64, 128), heads, sequences):
        q, k, v = (torch.randn(1, count, length, width, dtype=torch.bfloat16, device=device) for _ in range(3))
        took = _time_us(partial(scaled_dot_product_attention, q, k, v, is_causal=True), device)
        shape = {"head_dim": width, "heads": count, "kv_heads": count, "batch": 1, "seq": length}
        yield {"dtype": "bfloat16", **shape, "torch_us": took}


def _time_us(call: Callable[[], object], device: torch.device) -> float:
    """Return the median time of a call, in us."""
    for _ in range(WARM_UP):
        call()
    count = max(1, round(LEAST_MS / max(1e-3, _elapsed_ms(call, 1, device))))
    return 1e3 * statistics.median(_elapsed_ms(call, count, device) / count for _ in range(REPEATS))


def _elapsed_ms(call: Callable[[], object], count: int, device: torch.device) -> float:
    """Return how long calls take, launches included: the GPU is idle before the first and after the last."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(count):
        call()
    _wait(device)
    return 1e3 * (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
