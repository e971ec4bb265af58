"""Algorithms whose distance doubles, halves or grows faster from step to step: log n steps, fastest for small buffers.

If n is no power of two, surplus ranks first send their data to a neighbour and last get the result: two more steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.schedule import building_blocks
from simcoll.schedule.building_blocks import DOUBLING, Ranks, highest_bit, lowest_bit, power_of_two
from simcoll.schedule.registry import Request, chunk_per_rank, register
from simcoll.schedule.steps import StepPattern, join, send


@register("all_reduce", "recursive_doubling", cost="log2(n) * (alpha + beta * m)", cost_for=power_of_two)
def recursive_doubling_all_reduce(request: Request) -> Iterator[StepPattern]:
    """Pairs at distance 1, 2, 4, … swap whole buffers: log2 n steps; ⌊log2 n⌋ + 2 if n is no power of 2."""
    yield from building_blocks.recursive_all_reduce(np.arange(request.n), 0)


@register(
    "all_reduce",
    "recursive_multiplying",
    cost="log2(n) // 2 * (alpha + 3 * beta * m) + log2(n) % 2 * (alpha + beta * m)",
    cost_for=power_of_two,
    options={"ports": ("3", "1", "2", "7")},
)
def recursive_multiplying(request: Request) -> Iterator[StepPattern]:
    """Sets of k+1 ranks at distance 1, k+1, (k+1)², … swap whole buffers; k is `ports`: log n to the base k+1 steps.

    Recursive doubling is the case of one port. After j full rounds, a last round of fewer ranks, f = ⌊n/(k+1)^j⌋, lets
    more of the n ranks take part. Ranks beyond f·(k+1)^j first send their data to another rank and last get the result:
    two more steps. (Ruefenacht, Bull, Booth, "Generalisation of recursive doubling for AllReduce", EuroMPI 2016.)
    """
    radix = 1 + int(request.options.get("ports", "3"))
    yield from building_blocks.recursive_all_reduce(np.arange(request.n), 0, radix)


@register(
    "all_reduce",
    "halving_doubling",
    chunks=lambda request: 1 << (request.n.bit_length() - 1),
    cost="2 * log2(n) * alpha + 2 * (n - 1) * beta * m / n",
    cost_for=power_of_two,
)
def halving_doubling(request: Request) -> Iterator[StepPattern]:
    """Recursive-halving reduce-scatter, then recursive-doubling all-gather (Rabenseifner): 2 log2 n steps.

    The larger halves go to the nearer ranks. If n is no power of two, surplus ranks first send their data to a
    neighbour and last get the result: 2⌊log2 n⌋ + 2 steps. (Thakur, Rabenseifner, Gropp, "Optimization of collective
    communication operations in MPICH", 2005.)
    """
    extra, core = _folded(request.n)
    chunk = np.arange(len(core))
    if len(extra):
        yield send(extra, core[: len(extra)], 0, count=len(core), reduce=True)
    nearest_first = core[_bit_reversed(len(core))]
    yield from building_blocks.halving_reduce_scatter(nearest_first, chunk)
    yield from building_blocks.doubling_all_gather(nearest_first, chunk)
    if len(extra):
        yield send(core[: len(extra)], extra, 0, count=len(core))


def _folded(n: int) -> tuple[Ranks, Ranks]:
    extra, core = building_blocks.fold(np.arange(n)[None], 1 << (n.bit_length() - 1))
    return extra[0], core[0]


def _bit_reversed(power: int) -> Ranks:
    """Return the numbers 0 … power−1 in bit-reversed order, e.g. 0, 4, 2, 6, 1, 5, 3, 7 for 8."""
    order = np.zeros(1, np.int64)
    while len(order) < power:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def _owners(extra: Ranks, core: Ranks) -> Ranks:
    """Return for each rank a position in the core: its own, or for an extra rank that of the core rank that takes its
    data."""
    owner = np.empty(len(extra) + len(core), np.int64)
    owner[core], owner[extra] = np.arange(len(core)), np.arange(len(extra))
    return owner


@register("reduce_scatter", "recursive_halving", chunks=chunk_per_rank, **DOUBLING)
def recursive_halving_reduce_scatter(request: Request) -> Iterator[StepPattern]:
    """Pairs at distance n/2, n/4, … swap the half that the other rank needs: log2 n steps, or ⌊log2 n⌋ + 2."""
    extra, core = _folded(request.n)
    if len(extra):
        yield send(extra, core[: len(extra)], 0, count=request.n, reduce=True)
    yield from building_blocks.halving_reduce_scatter(core, _owners(extra, core))
    if len(extra):
        yield send(core[: len(extra)], extra, extra)


@register("all_gather", "recursive_doubling", chunks=chunk_per_rank, **DOUBLING)
def recursive_doubling_all_gather(request: Request) -> Iterator[StepPattern]:
    """Pairs at distance 1, 2, 4, … swap all blocks that they have: log2 n steps, or ⌊log2 n⌋ + 2."""
    extra, core = _folded(request.n)
    if len(extra):
        yield send(extra, core[: len(extra)], extra)
    yield from building_blocks.doubling_all_gather(core, _owners(extra, core))
    if len(extra):
        pair, block = np.nonzero(extra[:, None] != np.arange(request.n))
        yield send(core[pair], extra[pair], block)


@register("all_gather", "bruck", chunks=chunk_per_rank, options={"ports": ("1", "2", "3", "7")}, **DOUBLING)
def bruck_all_gather(request: Request) -> Iterator[StepPattern]:
    """Everyone sends all its blocks to the rank 1, 2, 4, … places before it: ⌈log2 n⌉ steps for any n.

    With k ports a rank sends its blocks to k ranks at once, and the distance grows by the factor k+1: ⌈log n⌉ steps to
    the base k+1. Bruck, Ho, Kipnis, Upfal, Weathersby (1997). Blocks land in their own slots, so no final rotation is
    needed.
    """
    rank, distance, ports = np.arange(request.n)[:, None], 1, int(request.options.get("ports", "1"))
    while distance < request.n:
        far = np.arange(distance, request.n, distance)[:ports]  # from receivers to senders
        blocks, target = np.minimum(distance, request.n - far), (rank - far) % request.n
        own = np.minimum(blocks, request.n - rank)  # before the last slot; then slot 0 follows
        sender, port = np.nonzero(blocks > own)
        rest = send(sender, target[sender, port], 0, count=(blocks - own)[sender, port])
        yield join(send(rank, target, rank, count=own), rest)
        distance *= ports + 1


@register("all_to_all", "bruck", chunks=chunk_per_rank, cost="log2(n) * (alpha + beta * m / 2)", cost_for=power_of_two)
def bruck_all_to_all(request: Request) -> Iterator[StepPattern]:
    """Each block reaches its rank in hops of 1, 2, 4, … ranks: ⌈log2 n⌉ steps with half of the buffer each, for any n.

    Bruck, Ho, Kipnis, Upfal, Weathersby (1997). On its way a block that goes `far` ranks lies in scratch slot n + far.
    Its last hop ends in the buffer, unless the block stored there has yet to leave. Then it stays in scratch, until
    local copies in one last step; powers of two need no such step.
    """
    n, rank, far = request.n, np.arange(request.n)[:, None], np.arange(1, request.n)
    blocked = lowest_bit(n - far) > highest_bit(far)
    distance = 1
    while distance < n:
        hops = far[far & distance > 0]
        ahead = (rank + distance) % n
        at = np.where(lowest_bit(hops) == distance, (rank + hops) % n, n + hops)
        lands = (highest_bit(hops) == distance) & ~blocked[hops - 1]
        yield send(rank, ahead, at, np.where(lands, (ahead - hops) % n, n + hops))
        distance *= 2
    waiting = far[blocked]
    if len(waiting):
        yield send(rank, rank, n + waiting, (rank - waiting) % n)


@register("barrier", "dissemination", cost="log2(2 * n - 1) * (alpha + beta * m)", library=True)
def dissemination_barrier(request: Request) -> Iterator[StepPattern]:
    """Everyone tells the rank 1, 2, 4, … places ahead who has come: ⌈log2 n⌉ steps of n messages.

    Hensgen, Finkel, Manber (1988). Reports may reach a rank by several ways, which harms no barrier.
    """
    rank, distance = np.arange(request.n), 1
    while distance < request.n:
        yield send(rank, (rank + distance) % request.n, 0, reduce=True)
        distance *= 2
