"""Parallel aggregated trees: one binomial tree for each block, all at the same time; a message carries several blocks.

Sylvain Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv 2506.20252, 2025.
Block b goes from rank b to rank b + p by the bits of p, highest first. Late steps, with many blocks, thus stay near.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.schedule.building_blocks import DOUBLING, Ranks
from simcoll.schedule.registry import Request, around, chunk_per_rank, register
from simcoll.schedule.steps import StepPattern, send

AGGREGATION = {"aggregation": tuple(str(1 << power) for power in range(13))}  # blocks that a message carries at most


def _rounds(request: Request) -> Iterator[tuple[int, Ranks]]:
    """Return for each round the distance of its messages, and the distances that the sent blocks have travelled before.

    First, blocks reach every `apart`-th rank; each round doubles the number of ranks reached. Then all these ranks pass
    the blocks on to the `apart` − 1 ranks behind them, one rank a round.
    """
    power = 1 << (request.n - 1).bit_length()
    apart = power // min(int(request.options.get("aggregation", power)), max(1, power // 2))
    distance = power // 2
    while distance >= apart:
        yield distance, np.arange(0, request.n - distance, 2 * distance)
        distance //= 2
    for behind in range(1, min(apart, request.n)):
        distance = behind & -behind
        yield distance, np.arange(behind - distance, request.n - distance, apart)


@register("all_gather", "pat", chunks=chunk_per_rank, rotation=around, options=AGGREGATION, **DOUBLING)
def pat_all_gather(request: Request) -> Iterator[StepPattern]:
    """Each block goes down a binomial tree of its own, to distant ranks first: ⌈log2 n⌉ steps for any n.

    With `aggregation=a` a message carries a blocks at most, and there are log2 a + n/a − 1 steps for powers of two.
    """
    rank = np.arange(request.n)[:, None]
    for distance, come in _rounds(request):
        yield send(rank, (rank + distance) % request.n, (rank - come) % request.n)


@register("reduce_scatter", "pat", chunks=chunk_per_rank, rotation=around, options=AGGREGATION, **DOUBLING)
def pat_reduce_scatter(request: Request) -> Iterator[StepPattern]:
    """The trees of the all-gather `pat` in reverse; each rank adds its own block: ⌈log2 n⌉ steps for any n."""
    rank = np.arange(request.n)[:, None]
    for distance, come in reversed(list(_rounds(request))):
        yield send((rank + distance) % request.n, rank, (rank - come[::-1]) % request.n, reduce=True)
