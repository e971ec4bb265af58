"""Direct algorithms: each rank sends data straight to its final receiver, in one step, or in two for an all_reduce."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.schedule import building_blocks
from simcoll.schedule.building_blocks import Ranks, several
from simcoll.schedule.registry import Request, around, around_by_groups, chunk_per_rank, register
from simcoll.schedule.steps import StepPattern, send

ORDER = {"order": ("groups",)}


@register("all_reduce", "all_pairs", cost="alpha + (n - 1) * beta * m", cost_for=several)
def all_pairs(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its whole buffer to everyone: 1 step, n(n−1) messages."""
    if request.n > 1:
        yield send(*building_blocks.peers(request.n), 0, reduce=True)


@register(
    "all_gather",
    "direct",
    chunks=chunk_per_rank,
    cost="alpha + (n - 1) * beta * m / n",
    cost_for=several,
    rotation=around,
)
def direct_all_gather(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its block to everyone: 1 step, n(n−1) messages."""
    rank, others = building_blocks.peers(request.n)
    if request.n > 1:
        yield send(rank, others, rank)


@register("reduce_scatter", "direct", chunks=chunk_per_rank, cost="alpha + (n - 1) * beta * m / n", cost_for=several)
def direct_reduce_scatter(request: Request) -> Iterator[StepPattern]:
    """Everyone sends everyone its block to be reduced there: 1 step, n(n−1) messages."""
    rank, others = building_blocks.peers(request.n)
    if request.n > 1:
        yield send(rank, others, others, reduce=True)


@register(
    "all_reduce",
    "two_shot",
    chunks=chunk_per_rank,
    cost="2 * (alpha + (n - 1) * beta * m / n)",
    cost_for=several,
)
def two_shot(request: Request) -> Iterator[StepPattern]:
    """A direct reduce-scatter, then a direct all-gather: 2 steps, 2n(n−1) messages of one block each."""
    yield from direct_reduce_scatter(request)
    yield from direct_all_gather(request)


def _by_groups(request: Request) -> tuple[Ranks, Ranks]:
    """Return every rank, (n, 1), and its receivers in order, (n, n−1): its own group, then the next group, and so on.
    In each group the order starts at the sender's own position, so that ranks of a group send to different ranks."""
    table = request.equal_groups()
    table = table.reshape(len(table), -1)
    groups, size = table.shape
    away, aside = (each.ravel()[1:] for each in np.indices((groups, size)))
    group, place = (each.reshape(-1, 1) for each in np.indices((groups, size)))
    return table.reshape(-1, 1), table[(group + away) % groups, (place + aside) % size]


@register(
    "all_to_all",
    "direct",
    chunks=chunk_per_rank,
    cost="alpha + (n - 1) * beta * m / n",
    cost_for=several,
    options=ORDER,
    library=True,
    rotation=lambda request: (around_by_groups if "order" in request.options else around)(request),
)
def direct_all_to_all(request: Request) -> Iterator[StepPattern]:
    """Everyone sends everyone its block, the next rank first: 1 step, n(n−1) messages.

    With `order=groups` each rank sends to its own group first, then to the next group, as NCCL does with nodes.
    """
    rank, others = _by_groups(request) if "order" in request.options else building_blocks.peers(request.n)
    if request.n > 1:
        yield send(rank, others, others, rank)


for _name in ("moe_dispatch", "moe_combine"):
    register(
        _name,
        "direct",
        chunks=chunk_per_rank,
        cost="alpha + (n - 1) * beta * m / n",
        cost_for=several,
        library=True,
        rotation=around,
    )(direct_all_to_all)


@register("gather", "direct", chunks=chunk_per_rank, cost="alpha + beta * m / n", cost_for=several, library=True)
def direct_gather(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its block to the root: 1 step, n−1 messages."""
    others = building_blocks.rooted(request.n, request.root)[1:]
    if len(others):
        yield send(others, request.root, others)


@register(
    "scatter", "direct", chunks=chunk_per_rank, cost="alpha + (n - 1) * beta * m / n", cost_for=several, library=True
)
def direct_scatter(request: Request) -> Iterator[StepPattern]:
    """The root sends everyone its block in turn: 1 step, n−1 messages."""
    others = building_blocks.rooted(request.n, request.root)[1:]
    if len(others):
        yield send(request.root, others, others)


@register("send_recv", "direct", cost="alpha + beta * m", cost_for=several)
def direct_send_recv(request: Request) -> Iterator[StepPattern]:
    """The root sends its buffer to the next rank: 1 message."""
    if request.n > 1:
        yield send(request.root, (request.root + 1) % request.n, 0)
