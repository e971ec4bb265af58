"""Rings and chains: every rank talks to its neighbours only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from simcoll.schedule import building_blocks
from simcoll.schedule.registry import Request, register
from simcoll.schedule.steps import Rotation, StepPattern, join, send, together

SLICES = {"slices": ("1", "2", "4", "8")}  # parts of a chunk; a rank passes each part on as soon as it arrives


def _slices(request: Request) -> int:
    return int(request.options.get("slices", "1"))


def _chunks(request: Request) -> int:
    return request.n * _slices(request)


def _around(request: Request) -> Rotation:
    """Return the schedule's symmetry: a shift of all ranks by one, and of the chunks by one chunk."""
    return Rotation(1, _slices(request), _chunks(request))


def _slots(request: Request) -> building_blocks.Ranks:
    """Return the slots of each rank's chunk, one slot for each slice of it, (n, slices)."""
    return np.arange(_chunks(request)).reshape(request.n, -1)


_SLICED: Final[dict[str, Any]] = {
    "chunks": _chunks,
    "rotation": _around,
    "options": SLICES,
    "library": True,
    "chunks_apart": True,
}


@register("all_reduce", "ring", cost="2 * (n - 1) * (alpha + beta * m / n)", **_SLICED)
def ring_all_reduce(request: Request) -> Iterator[StepPattern]:
    """A ring reduce-scatter, then a ring all-gather: 2(n−1) steps, in which each rank sends one chunk."""
    yield from building_blocks.ring_all_reduce(np.arange(request.n), _slots(request))


@register("all_reduce", "bidirectional_ring", chunks=lambda request: 2 * request.n)
def bidirectional_ring(request: Request) -> Iterator[StepPattern]:
    """Each half of the data goes around one way: 2(n−1) steps; a rank sends half a chunk to each neighbour."""
    ranks = np.arange(request.n)
    back = building_blocks.ring_all_reduce(ranks[::-1], request.n + ranks)
    yield from together(building_blocks.ring_all_reduce(ranks, ranks), back)


@register("all_reduce", "ring_unchunked", cost="(n - 1) * (alpha + beta * m)")
def ring_unchunked(request: Request) -> Iterator[StepPattern]:
    """Each rank passes on whole buffers n−1 times, and adds each buffer that it receives.

    A received buffer stays in scratch (slot 1) until it is passed on unchanged and, in the same step, added to the
    rank's own buffer. The last received buffer is added at once.
    """
    rank = np.arange(request.n)
    for s in range(request.n - 1):
        last = s == request.n - 2
        passed = send(rank, (rank + 1) % request.n, min(s, 1), 0 if last else 1, reduce=last)
        yield join(passed, send(rank, rank, 1, 0, reduce=True)) if s else passed


@register("all_gather", "ring", cost="(n - 1) * (alpha + beta * m / n)", **_SLICED)
def ring_all_gather(request: Request) -> Iterator[StepPattern]:
    """Every block goes around the ring: n−1 steps, in which each rank sends one block."""
    yield from building_blocks.ring_all_gather(np.arange(request.n), _slots(request))


@register("reduce_scatter", "ring", cost="(n - 1) * (alpha + beta * m / n)", **_SLICED)
def ring_reduce_scatter(request: Request) -> Iterator[StepPattern]:
    """Every block goes around the ring to its rank, and each rank adds its own: n−1 steps of one block a rank."""
    yield from building_blocks.ring_reduce_scatter(np.arange(request.n), _slots(request))


@register("reduce", "chain", pipelined=True, cost="(n - 1) * (alpha + beta * m)", library=True)
def chain_reduce(request: Request) -> Iterator[StepPattern]:
    """The sum goes from rank to rank, from the one behind the root on to the root: n−1 steps, pipelined."""
    order = np.roll(building_blocks.rooted(request.n, request.root), -1)
    for sender, receiver in pairwise(order):
        yield send(sender, receiver, 0, reduce=True)


@register("broadcast", "chain", pipelined=True, cost="(n - 1) * (alpha + beta * m)", library=True)
def chain_broadcast(request: Request) -> Iterator[StepPattern]:
    """The buffer goes from the root to the next rank, and so on: n−1 steps, pipelined."""
    order = building_blocks.rooted(request.n, request.root)
    for sender, receiver in pairwise(order):
        yield send(sender, receiver, 0)


@register("send_recv", "ring", cost="alpha + beta * m", cost_for=building_blocks.several, library=True)
def ring_send_recv(request: Request) -> Iterator[StepPattern]:
    """Every rank sends its buffer to the next, as nccl-tests' sendrecv: 1 step, n messages."""
    rank = np.arange(request.n)
    if request.n > 1:
        yield send(rank, (rank + 1) % request.n, 0)
