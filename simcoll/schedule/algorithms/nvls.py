"""Reduction inside the switch (NVLink SHARP): the switch adds the ranks' data and multicasts the sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from simcoll.schedule import building_blocks
from simcoll.schedule.registry import AnyNumber, Request, chunk_per_rank, register
from simcoll.schedule.steps import StepPattern, send, together

MOST_HEADS: Final = 32  # at most so many GPUs of a node collect sums (NCCL_MAX_NVLS_ARITY)


@register("all_reduce", "nvls", pipelined=True, needs_agent=True, library=True, chunks_apart=True)
def nvls_all_reduce(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its buffer to the switch, which reduces it and sends the result to everyone: 2 steps."""
    ranks, switch = np.arange(request.n), request.n
    if request.n > 1:
        yield send(ranks, switch, 0, reduce=True)
        yield send(switch, ranks, 0)


@register("all_gather", "nvls", chunks=chunk_per_rank, pipelined=True, needs_agent=True, chunks_apart=True)
def nvls_all_gather(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its block to the switch, which sends it to all others: 2 steps, n blocks up and n(n−1) down."""
    rank, others = building_blocks.peers(request.n)
    if request.n > 1:
        yield send(rank, request.n, rank)
        yield send(request.n, others, rank)


@register("reduce_scatter", "nvls", chunks=chunk_per_rank, pipelined=True, needs_agent=True, chunks_apart=True)
def nvls_reduce_scatter(request: Request) -> Iterator[StepPattern]:
    """Everyone sends its buffer to the switch, which sends each its reduced block: 2 steps, n² blocks up, n down."""
    rank, switch = np.arange(request.n), request.n
    if request.n > 1:
        yield send(rank[:, None], switch, rank, reduce=True)
        yield send(switch, rank, rank)


def _parts(request: Request) -> int:
    """Return the number of parts of the buffer: two (one per tree) for each head, a rank that sends across groups."""
    size = int(request.equal_groups()[0].size)
    return 2 * min(size, int(request.options.get("heads", size)))


@register(
    "all_reduce",
    "nvls_tree",
    chunks=_parts,
    pipelined=True,
    needs_agent=True,
    agent_a_group=True,
    uses_groups=True,
    library=True,
    chunks_apart=True,
    options={"heads": AnyNumber([str(MOST_HEADS)])},
)
def nvls_tree(request: Request) -> Iterator[StepPattern]:
    """The switch of each group reduces; ranks add parts of the sum across groups along two trees; equal groups.

    A leaf of one tree is an inner group of the other. The switches multicast the sum that comes back. It is like NCCL's
    NVLSTree: 4 + 2⌈log2 g⌉ steps. With `heads=32`, e.g., only the first 32 ranks of a group send parts across groups.
    """
    ranks = request.equal_groups()
    ranks = ranks.reshape(len(ranks), -1)
    size = ranks.shape[1]
    part, switch = np.arange(_parts(request)), request.n + np.arange(len(ranks))
    count = len(part) // 2
    heads = ranks[:, part % count]
    if request.n == 1:
        return
    yield send(ranks[:, :, None], switch[:, None, None], part, reduce=True)
    if len(ranks) == 1:
        yield send(switch[:, None, None], ranks[:, :, None], part)
        return
    yield send(switch[:, None], heads, part)
    trees = building_blocks.two_trees(len(ranks))
    parents = [_across(heads[:, i], trees[i // count], request.n) for i in part.tolist()]
    yield from together(*(building_blocks.tree_reduce(parent, i) for i, parent in enumerate(parents)))
    yield from together(*(building_blocks.tree_broadcast(parent, i) for i, parent in enumerate(parents)))
    yield send(heads, switch[:, None], part)
    to, missing = np.nonzero(np.arange(size)[:, None] != part % count)  # the head of a part has it already
    if len(to):
        yield send(switch[:, None], ranks[:, to], missing)


def _across(ranks: building_blocks.Ranks, tree: building_blocks.Ranks, n: int) -> building_blocks.Ranks:
    """Return the parents of all n ranks in a tree over groups. `ranks`: one rank of each group, which takes part; all
    others, and the root, get −1."""
    parent = np.full(n, -1, np.int64)
    parent[ranks] = np.where(tree < 0, -1, ranks[tree])
    return parent
