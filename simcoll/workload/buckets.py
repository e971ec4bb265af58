"""Gradient buckets, formed as PyTorch's DistributedDataParallel forms them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FIRST_BUCKET: Final = 2**20  # bytes: PyTorch's defaults
BUCKET_CAP: Final = 25 * 2**20


def buckets(nbytes: Sequence[int], cap: int, first: int) -> list[list[int]]:
    """Which gradients share a bucket: positions in `nbytes`, which are in the order in which they become ready.

    A bucket is closed by the gradient with which it reaches its limit, so it may be larger: `first` bytes for the first
    bucket, `cap` for the others. Without a limit (0) each gradient has a bucket of its own. The rule is that of
    `compute_bucket_assignment_by_size` in PyTorch's reducer, as applied when buckets are rebuilt after the first step.

    >>> buckets([4, 4, 4, 4, 4], cap=8, first=1)
    [[0], [1, 2], [3, 4]]
    """
    found: list[list[int]] = []
    held: list[int] = []
    size, limit = 0, first
    for position, more in enumerate(nbytes):
        held.append(position)
        size += more
        if size >= limit:
            found.append(held)
            held, size, limit = [], 0, cap
    return [*found, held] if held else found
