"""Tree algorithms: the whole buffer goes up a tree and down again, in log n steps each way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simcoll.schedule import building_blocks
from simcoll.schedule.building_blocks import DOUBLING, Ranks, power_of_two
from simcoll.schedule.registry import Request, chunk_per_rank, register
from simcoll.schedule.steps import StepPattern, send, together


def _perfect(n: int) -> bool:
    return power_of_two(n + 1)


def _through_heap(n: int) -> Iterator[StepPattern]:
    parent = building_blocks.binary_heap(n)
    yield from building_blocks.tree_reduce(parent, 0)
    yield from building_blocks.tree_broadcast(parent, 0)


@register("all_reduce", "tree", pipelined=True, cost="log2(n) * (2 * alpha + 3 * beta * m)", cost_for=_perfect)
def tree_all_reduce(request: Request) -> Iterator[StepPattern]:
    """The sum goes up a binary tree to rank 0, the result comes down: 2⌊log2 n⌋ steps of the whole buffer.

    Rank i's parent is (i−1)//2; a rank sends up as soon as its children have sent.
    """
    yield from _through_heap(request.n)


@register("barrier", "tree", cost="log2(n) * (2 * alpha + 3 * beta * m)", cost_for=_perfect)
def tree_barrier(request: Request) -> Iterator[StepPattern]:
    """Reports go up a binary tree to rank 0, the release comes down: 2⌊log2 n⌋ steps."""
    yield from _through_heap(request.n)


@register("all_reduce", "double_binary_tree", chunks=lambda request: 2, pipelined=True, library=True, chunks_apart=True)
def double_binary_tree(request: Request) -> Iterator[StepPattern]:
    """Each half of the data has its own binary tree; leaves of one are inner ranks of the other: 2⌈log2 n⌉ steps.

    Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009), with the
    trees as NCCL builds them. For odd n rank 0 is inner in both.
    """
    yield from _through_both(building_blocks.two_trees(request.n))


def _through_both(parents: Sequence[Ranks]) -> Iterator[StepPattern]:
    yield from together(*(building_blocks.tree_reduce(parent, half) for half, parent in enumerate(parents)))
    yield from together(*(building_blocks.tree_broadcast(parent, half) for half, parent in enumerate(parents)))


@register(
    "all_reduce",
    "chain_tree",
    chunks=lambda request: min(2, len(request.two_levels())),
    pipelined=True,
    uses_groups=True,
    library=True,
    chunks_apart=True,
)
def chain_tree(request: Request) -> Iterator[StepPattern]:
    """A chain in each group to its first rank; across groups two binary trees, each for half the data; any groups.

    In one group there is one chain, of all data. NCCL's tree does so over nodes, but its chains begin at different
    ranks in different channels.
    """
    groups = request.two_levels()
    across = building_blocks.two_trees(len(groups))[: len(groups)]
    yield from _through_both([_chained(groups, tree) for tree in across])


def _chained(groups: Sequence[Sequence[int]], across: Ranks) -> Ranks:
    """Return the parents of all ranks: the rank before it in its group; for a group's first rank, the first of the
    parent group."""
    parent = np.empty(sum(map(len, groups)), np.int64)
    for ranks, above in zip(groups, across.tolist(), strict=True):
        parent[list(ranks)] = [groups[above][0] if above >= 0 else -1, *ranks[:-1]]
    return parent


@register("reduce", "binomial", pipelined=True, cost="log2(n) * (alpha + beta * m)")
def binomial_reduce(request: Request) -> Iterator[StepPattern]:
    """The sum goes up a binomial tree to the root: ⌈log2 n⌉ steps, n−1 messages."""
    yield from building_blocks.binomial_reduce(building_blocks.rooted(request.n, request.root), 0)


@register("broadcast", "binomial", pipelined=True, cost="log2(n) * (alpha + beta * m)", cost_for=power_of_two)
def binomial_broadcast(request: Request) -> Iterator[StepPattern]:
    """The buffer goes down a binomial tree from the root: ⌈log2 n⌉ steps, n−1 messages."""
    yield from building_blocks.binomial_broadcast(building_blocks.rooted(request.n, request.root), 0)


@register("gather", "binomial", chunks=chunk_per_rank, **DOUBLING)
def binomial_gather(request: Request) -> Iterator[StepPattern]:
    """Blocks go up a binomial tree; each rank sends the blocks of all ranks below it: ⌈log2 n⌉ steps."""
    for child, parent, block in _binomial_levels(request):
        yield send(child, parent, block)


@register("scatter", "binomial", chunks=chunk_per_rank, **DOUBLING)
def binomial_scatter(request: Request) -> Iterator[StepPattern]:
    """Blocks go down a binomial tree; each rank gets the blocks of all ranks below it: ⌈log2 n⌉ steps."""
    for child, parent, block in reversed(list(_binomial_levels(request))):
        yield send(parent, child, block)


@register("broadcast", "scatter_allgather", chunks=chunk_per_rank)
def scatter_allgather(request: Request) -> Iterator[StepPattern]:
    """A binomial scatter from the root, then a ring all-gather (van de Geijn): ⌈log2 n⌉ + n−1 steps, for large data."""
    yield from binomial_scatter(request)
    yield from building_blocks.ring_all_gather(np.arange(request.n), np.arange(request.n))


@register("reduce", "reduce_scatter_gather", chunks=chunk_per_rank)
def reduce_scatter_gather(request: Request) -> Iterator[StepPattern]:
    """A ring reduce-scatter, then a binomial gather to the root: n−1 + ⌈log2 n⌉ steps; for large buffers."""
    yield from building_blocks.ring_reduce_scatter(np.arange(request.n), np.arange(request.n))
    yield from binomial_gather(request)


def _binomial_levels(request: Request) -> Iterator[tuple[Ranks, Ranks, Ranks]]:
    """Return the levels of a binomial tree, leaves first: child, parent and block, with an entry for each block below
    the child."""
    order, distance = building_blocks.rooted(request.n, request.root), 1
    while distance < request.n:
        child = np.arange(distance, request.n, 2 * distance)
        which, offset = np.nonzero(child[:, None] + np.arange(distance) < request.n)
        yield order[child[which]], order[child[which] - distance], order[child[which] + offset]
        distance *= 2
