"""Naive algorithms: all data goes through one rank, in at most two steps, so that its links limit the speed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.schedule import building_blocks
from simcoll.schedule.building_blocks import several
from simcoll.schedule.registry import Request, chunk_per_rank, register
from simcoll.schedule.steps import StepPattern, send


def _up_and_down(n: int, root: int) -> Iterator[StepPattern]:
    others = building_blocks.rooted(n, root)[1:]
    if len(others):
        yield send(others, root, 0, reduce=True)
        yield send(root, others, 0)


@register("all_reduce", "naive", cost="2 * alpha + n * beta * m", cost_for=several)
def naive_all_reduce(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its buffer to the root, which sends the result to everyone: 2 steps, 2(n−1) messages."""
    yield from _up_and_down(request.n, request.root)


@register("reduce", "naive", cost="alpha + beta * m", cost_for=several)
def naive_reduce(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its buffer to the root: 1 step, n−1 messages."""
    yield from list(_up_and_down(request.n, request.root))[:1]


@register("broadcast", "naive", cost="alpha + (n - 1) * beta * m", cost_for=several)
def naive_broadcast(request: Request) -> Iterator[StepPattern]:
    """The root sends its buffer to everyone in turn: 1 step, n−1 messages."""
    yield from list(_up_and_down(request.n, request.root))[1:]


@register("barrier", "naive", cost="2 * alpha + n * beta * m", cost_for=several)
def naive_barrier(request: Request) -> Iterator[StepPattern]:
    """Everyone reports to rank 0, which releases everyone: 2 steps, 2(n−1) messages."""
    yield from _up_and_down(request.n, 0)


@register(
    "all_gather",
    "naive",
    chunks=chunk_per_rank,
    cost="2 * alpha + ((n - 1) ** 2 + 1) * beta * m / n",
    cost_for=lambda n: n > 2,
)
def naive_all_gather(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its block to rank 0, which sends everyone the blocks it lacks: 2 steps, 2(n−1) messages."""
    rank, others = building_blocks.peers(request.n)
    if request.n > 1:
        yield send(others[0], 0, others[0])
        yield send(0, rank[1:], np.sort(others[1:]))


@register(
    "reduce_scatter", "naive", chunks=chunk_per_rank, cost="2 * alpha + (2 * n - 1) * beta * m / n", cost_for=several
)
def naive_reduce_scatter(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its buffer to rank 0, which sends everyone its reduced block: 2 steps, 2(n−1) messages."""
    others = np.arange(1, request.n)
    if len(others):
        yield send(others[:, None], 0, np.arange(request.n), reduce=True)
        yield send(0, others, others)
