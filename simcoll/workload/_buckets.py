"""Form gradient buckets as PyTorch's DistributedDataParallel does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FIRST_BUCKET: Final = 2**20  # bytes: PyTorch's default
BUCKET_CAP: Final = 25 * 2**20  # bytes: PyTorch's default


def buckets(nbytes: Sequence[int], cap: int, first: int) -> list[list[int]]:
    """Assign gradients to buckets; returns positions in `nbytes`, whose order is that in which gradients become ready.

    A bucket is closed by the gradient with which it reaches its limit, so it may be larger: `first` bytes for the first
    bucket, `cap` for the others. Without a limit (0) each gradient is a bucket. The rule is that of
    `compute_bucket_assignment_by_size` in PyTorch's reducer, as applied when buckets are rebuilt after the first step.

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
