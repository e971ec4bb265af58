"""Hierarchical algorithms: data move inside groups first, then across groups. Most bytes stay on the fast links of a
node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.config.numpy_helpers import Array
from simcoll.schedule import building_blocks
from simcoll.schedule.registry import Request, around_by_groups, chunk_per_rank, register
from simcoll.schedule.steps import Rotation, StepPattern, send, together


def _shards(request: Request) -> int:
    shape = request.equal_groups().shape
    across = request.options.get("across", "ring")
    return int(np.prod(shape[1:] if across == "recursive_doubling" else shape))


def _turned(request: Request) -> Rotation:
    """Return the schedule's symmetry: a shift of all ranks by one group, with the shards of the outermost level."""
    groups = request.two_levels()
    return Rotation(len(groups[0]), 1, len(groups))


@register(
    "all_reduce",
    "hierarchical",
    chunks=_shards,
    uses_groups=True,
    options={"across": ("ring", "recursive_doubling")},
    rotation=_turned,
)
def hierarchical_all_reduce(request: Request) -> Iterator[StepPattern]:
    """Ring reduce-scatter inside groups, all-reduce of the parts across groups, ring all-gather inside; equal groups.

    g groups of m take 2(m−1) + 2(g−1) steps with `across=ring`, 2(m−1) + log2 g with `across=recursive_doubling`
    (two more where g is no power of two). Groups of groups are worked through from the innermost.
    """
    table = request.equal_groups()
    doubling = request.options.get("across") == "recursive_doubling"
    shape = (1, *table.shape[1:]) if doubling else table.shape
    chunks = np.arange(np.prod(shape)).reshape(shape[::-1]).T  # the innermost shard is one run of chunks
    levels = [building_blocks.rings_along(table, chunks, axis) for axis in range(table.ndim)]
    for ranks, slots in reversed(levels[1:]):
        yield from building_blocks.ring_reduce_scatter(ranks, slots)
    if doubling:
        yield from building_blocks.recursive_all_reduce(table.reshape(len(table), -1).T, chunks.reshape(-1, 1))
    else:
        yield from building_blocks.ring_all_reduce(*levels[0])
    for ranks, slots in levels[1:]:
        yield from building_blocks.ring_all_gather(ranks, slots)


@register("reduce_scatter", "hierarchical", chunks=chunk_per_rank, uses_groups=True, rotation=around_by_groups)
def hierarchical_reduce_scatter(request: Request) -> Iterator[StepPattern]:
    """Ring reduce-scatter inside groups, then across groups: m−1 + g−1 steps for g equal groups of m ranks."""
    table = request.equal_groups()
    yield from building_blocks.grid_reduce_scatter(table, table)


@register("all_gather", "hierarchical", chunks=chunk_per_rank, uses_groups=True, rotation=around_by_groups)
def hierarchical_all_gather(request: Request) -> Iterator[StepPattern]:
    """Ring all-gather across groups, then inside groups: g−1 + m−1 steps for g equal groups of m ranks."""
    table = request.equal_groups()
    yield from building_blocks.grid_all_gather(table, table)


@register(
    "all_reduce",
    "hierarchical_leader",
    chunks=lambda request: len(request.two_levels()),
    uses_groups=True,
    options={"inside": ("reduce", "all_reduce")},
)
def hierarchical_leader(request: Request) -> Iterator[StepPattern]:
    """Reduce to a leader in each group, ring all-reduce among the leaders, broadcast inside groups; any groups.

    g groups of at most m take 2(g−1) + 2⌈log2 m⌉ steps. Inside groups data move along binomial trees, or by recursive
    doubling with `inside=all_reduce`.
    """
    groups = request.two_levels()
    slots = np.arange(len(groups))
    inside = (
        building_blocks.recursive_all_reduce
        if request.options.get("inside") == "all_reduce"
        else building_blocks.binomial_reduce
    )
    yield from together(*(inside(group, slots) for group in groups))
    yield from building_blocks.ring_all_reduce([group[0] for group in groups], slots)
    yield from together(*(building_blocks.binomial_broadcast(group, slots) for group in groups))


@register("all_reduce", "hierarchical_tree", pipelined=True, uses_groups=True)
def hierarchical_tree(request: Request) -> Iterator[StepPattern]:
    """Ranks send to the leader of their group, leaders to the first leader; the sum goes back: 4 steps; any groups."""
    groups = request.two_levels()
    top, *leaders = (group[0] for group in groups)
    members = [rank for group in groups for rank in group[1:]]
    leader_of = [group[0] for group in groups for _ in group[1:]]
    moves = [(np.asarray(low), np.asarray(high)) for low, high in ((members, leader_of), (leaders, top)) if low]
    for low, high in moves:
        yield send(low, high, 0, reduce=True)
    for low, high in reversed(moves):
        yield send(high, low, 0)


@register("all_to_all", "hierarchical", chunks=chunk_per_rank, uses_groups=True)
def hierarchical_all_to_all(request: Request) -> Iterator[StepPattern]:
    """Each block goes to the rank of its group with its target's index, then across groups to the target: 2 steps.

    Equal groups: g of m send n(m−1)g + n(g−1)m blocks. A block from member i for group h waits in scratch slot
    n + h·m + i.
    """
    table = request.equal_groups()
    yield from _two_hops(table.reshape(-1, table.shape[-1]), request.n)


@register("moe_dispatch", "two_hop", chunks=chunk_per_rank, uses_groups=True)
def two_hop_dispatch(request: Request) -> Iterator[StepPattern]:
    """Tokens go to the rank with the sender's index in the group of their experts, then to the experts: 2 steps.

    Equal groups: g of m send n(g−1)m + n(m−1)g blocks. A block from group h for member i waits in scratch slot
    n + i·g + h.
    """
    table = request.equal_groups()
    yield from _two_hops(table.reshape(-1, table.shape[-1]).T, request.n)


def _two_hops(table: Array, n: int) -> Iterator[StepPattern]:
    """Yield the steps of blocks that go along rows of the `table` of ranks, then along its columns."""
    g, m = table.shape
    group, member, ahead, across = np.ogrid[:g, :m, 1:m, :g]
    relay = (member + ahead) % m
    scratch = np.where(across == group, table[group, member], n + across * m + member)
    if m > 1:
        yield send(table[group, member], table[group, relay], table[across, relay], scratch)
    group, member, ahead, origin = np.ogrid[:g, :m, 1:g, :m]
    target = (group + ahead) % g
    held = np.where(origin == member, table[target, member], n + target * m + origin)
    if g > 1:
        yield send(table[group, member], table[target, member], held, table[group, origin])


register("moe_combine", "two_hop", chunks=chunk_per_rank, uses_groups=True)(hierarchical_all_to_all)
