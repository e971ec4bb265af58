"""Step patterns that several algorithms share: rings, recursive doubling, binomial and binary trees.

Each generator yields steps over `ranks`, an array (rings, m) of equal groups that run in parallel; a flat list is one
group. `slots`, (rings, m, w) or broadcastable to it, gives the w slots of each of the m shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.config.numpy_helpers import distinct
from simcoll.schedule.steps import Repeat, Step, StepPattern, send

Ranks = NDArray[np.int64]


def _groups(ranks: ArrayLike) -> Ranks:
    return np.atleast_2d(np.asarray(ranks, dtype=np.int64))


def _shards(slots: ArrayLike, groups: Ranks) -> Ranks:
    table = np.asarray(slots, dtype=np.int64)
    while table.ndim < 3:
        table = table[None] if table.ndim == 2 else table[..., None]
    return np.broadcast_to(table, (*groups.shape, table.shape[-1]))


def ring_reduce_scatter(ranks: ArrayLike, slots: ArrayLike) -> Iterator[StepPattern]:
    """Yield m−1 steps around the ring; the rank at position i ends with shard i reduced."""
    yield from _around(ranks, slots, lag=1, reduce=True)


def ring_all_gather(ranks: ArrayLike, slots: ArrayLike) -> Iterator[StepPattern]:
    """Yield m−1 steps around the ring; position i starts with shard i, and all end with all shards."""
    yield from _around(ranks, slots, lag=0, reduce=False)


def _around(ranks: ArrayLike, slots: ArrayLike, lag: int, reduce: bool) -> Iterator[StepPattern]:
    """Yield m−1 steps, as one `Repeat` if possible. In step s, position i sends shard i − lag − s to i+1."""
    groups = _groups(ranks)
    shards, m = _shards(slots, groups), groups.shape[1]
    i = np.arange(m)

    def step(s: int) -> Step:
        return send(groups[..., None], np.roll(groups, -1, 1)[..., None], shards[:, (i - lag - s) % m], reduce=reduce)

    apart = distinct(np.diff(shards, axis=1))
    if len(apart) != 1 or m < 3:
        yield from map(step, range(m - 1))
        return
    lowest = shards.min(axis=1, keepdims=True)
    base = np.broadcast_to(lowest, shards.shape).astype(np.int32).ravel()
    yield Repeat(step(0), m - 1, base, m * abs(int(apart[0])), -int(apart[0]))


def ring_all_reduce(ranks: ArrayLike, slots: ArrayLike) -> Iterator[StepPattern]:
    """Yield a reduce-scatter, then an all-gather: 2(m−1) steps."""
    yield from ring_reduce_scatter(ranks, slots)
    yield from ring_all_gather(ranks, slots)


def grid_reduce_scatter(grid: Ranks, chunks: Ranks) -> Iterator[StepPattern]:
    """Yield ring reduce-scatters along the last axis of a grid of ranks, then along the axis before it, and so on.
    `chunks` has the shape of the grid: each rank ends with its own chunk reduced."""
    for axis in reversed(range(grid.ndim)):
        yield from ring_reduce_scatter(*rings_along(grid, chunks, axis))


def grid_all_gather(grid: Ranks, chunks: Ranks) -> Iterator[StepPattern]:
    """Yield ring all-gathers along each axis of a grid of ranks, in order; each rank starts with its own chunk."""
    for axis in range(grid.ndim):
        yield from ring_all_gather(*rings_along(grid, chunks, axis))


def rings_along(grid: Ranks, chunks: Ranks, axis: int) -> tuple[Ranks, Ranks]:
    """Return the rings along one axis of a grid of ranks, (rings, m), and the slots of their shards, (rings, m, w).
    Rings of inner axes run first. So at that time a rank only has chunks with its own coordinates on all inner axes. A
    shard contains the chunks of all outer coordinates."""
    outer, m = int(np.prod(grid.shape[:axis])), grid.shape[axis]
    ranks = grid.reshape(outer, m, -1).transpose(0, 2, 1).reshape(-1, m)
    inner = len(ranks) // outer
    slots = chunks.reshape(-1, chunks.shape[axis], inner).transpose(2, 1, 0)
    return ranks, slots if inner == 1 else np.tile(slots, (outer, 1, 1))


def recursive_all_reduce(ranks: ArrayLike, slots: ArrayLike, radix: int = 2) -> Iterator[StepPattern]:
    """Yield steps in which `radix` ranks at distance 1, radix, radix², … swap whole buffers of w slots (`slots` (rings,
    w)). The last round may have fewer ranks than `radix`. If the product of the rounds is less than m, surplus ranks
    send their buffers to a neighbour first and get the result last, as in MPI libraries."""
    groups = _groups(ranks)
    whole = np.atleast_2d(np.asarray(slots, dtype=np.int64))
    whole = np.broadcast_to(whole, (len(groups), whole.shape[-1]))
    rounds = _rounds(groups.shape[1], radix)
    extra, core = fold(groups, math.prod(rounds))
    if extra.shape[1]:
        yield send(extra[..., None], core[:, : extra.shape[1], None], whole[:, None], reduce=True)
    position, distance = np.arange(core.shape[1])[:, None], 1
    for members in rounds:
        digit = position // distance % members
        peer = position + ((digit + np.arange(1, members)) % members - digit) * distance
        yield send(core[..., None, None], core[:, peer, None], whole[:, None, None], reduce=True)
        distance *= members
    if extra.shape[1]:
        yield send(core[:, : extra.shape[1], None], extra[..., None], whole[:, None])


def _rounds(m: int, radix: int) -> list[int]:
    """Return for each round how many ranks swap buffers: `radix` as often as m allows, then the remaining quotient.

    >>> _rounds(8, 4), _rounds(7, 2)
    ([4, 2], [2, 2])
    """
    rounds = []
    while m >= radix:
        rounds.append(radix)
        m //= radix
    return [*rounds, m] if m > 1 else rounds


def fold(groups: Ranks, size: int) -> tuple[Ranks, Ranks]:
    """Split m ranks into `extra` and a `core` of `size` ≥ m/2 ranks: rank extra[i] hands its data to core[i]. The first
    2·(m − size) ranks form pairs of neighbours; the odd rank of each pair is in the core."""
    pairs = groups.shape[1] - size
    extra = groups[:, 0 : 2 * pairs : 2]
    core = np.concatenate([groups[:, 1 : 2 * pairs : 2], groups[:, 2 * pairs :]], axis=1)
    return extra, core


def binomial_reduce(ranks: ArrayLike, slots: ArrayLike) -> Iterator[StepPattern]:
    """Reduce all `slots` (w) up a binomial tree to the first rank, in ⌈log2 m⌉ steps."""
    order, whole = np.asarray(ranks, dtype=np.int64), np.atleast_1d(np.asarray(slots, dtype=np.int64))
    distance = 1
    while distance < len(order):
        sender = np.arange(distance, len(order), 2 * distance)
        yield send(order[sender, None], order[sender - distance, None], whole[None], reduce=True)
        distance *= 2


def binomial_broadcast(ranks: ArrayLike, slots: ArrayLike) -> Iterator[StepPattern]:
    """Send all `slots` down a binomial tree from the first rank, in ⌈log2 m⌉ steps, the longest distance first."""
    order, whole = np.asarray(ranks, dtype=np.int64), np.atleast_1d(np.asarray(slots, dtype=np.int64))
    distance = 1 << max(0, (len(order) - 1).bit_length() - 1)
    while distance and len(order) > 1:
        receiver = np.arange(distance, len(order), 2 * distance)
        yield send(order[receiver - distance, None], order[receiver, None], whole[None])
        distance //= 2


def rooted(n: int, root: int) -> Ranks:
    """Return all ranks in order, the root first.

    >>> rooted(4, 2).tolist()
    [2, 3, 0, 1]
    """
    return (root + np.arange(n)) % n


def tree_reduce(parent: Ranks, slot: int) -> Iterator[StepPattern]:
    """Reduce `slot` up any tree (`parent`, −1 at the root), one level a step, each node after its children."""
    height = _heights(parent)
    for step in range(int(height.max())):
        node = np.flatnonzero((height == step) & (parent >= 0))
        yield send(node, parent[node], slot, reduce=True)


def tree_broadcast(parent: Ranks, slot: int) -> Iterator[StepPattern]:
    """Send `slot` down any tree from its root, one level a step; of two children the lower number comes first."""
    depth = _depths(parent)
    for step in range(int(depth.max())):
        node = np.flatnonzero(depth == step + 1)
        yield send(parent[node], node, slot)


def two_trees(n: int) -> tuple[Ranks, Ranks]:
    """Return the parents (−1 at the root) in two binary trees over n nodes; leaves of one are inner in the other."""
    first, node = bit_tree(n), np.arange(n)
    # A node's name in the second tree: mirrored for even n, shifted for odd n. Both turn odd names into even ones.
    alias = n - 1 - node if n % 2 == 0 else (node - 1) % n
    return first, np.where(first[alias] < 0, -1, np.argsort(alias)[first[alias]])


def bit_tree(n: int) -> Ranks:
    """Return the parents (−1 at the root, node 0) in the binary tree whose leaves are the odd nodes.

    The lowest set bit b of a node's number gives its level. Its parent has bit 2b set in place of bit b, or neither bit
    if that number is not below n.

    >>> bit_tree(8).tolist()
    [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    node = np.arange(n)
    bit = lowest_bit(node)
    parent = (node ^ bit) | (bit << 1)
    return np.where(node == 0, -1, np.where(parent < n, parent, node ^ bit))


def _depths(parent: Ranks) -> Ranks:
    depth, above = np.zeros(len(parent), np.int64), parent
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return depth


def _heights(parent: Ranks) -> Ranks:
    height, depth = np.zeros(len(parent), np.int64), _depths(parent)
    for level in range(int(depth.max()), 0, -1):
        node = np.flatnonzero(depth == level)
        np.maximum.at(height, parent[node], height[node] + 1)
    return height


def binary_heap(n: int) -> Ranks:
    """Return the parents of n nodes in a binary heap: (i−1)//2 for node i, and −1 for node 0."""
    return (np.arange(n) - 1) // 2


def halving_reduce_scatter(core: Ranks, owner: Ranks) -> Iterator[StepPattern]:
    """Yield log2 p steps of a recursive-halving reduce-scatter over p = 2^k ranks, the longest distance first. Slot b
    ends reduced at rank `core[owner[b]]`; `owner` never decreases."""
    place, distance = np.arange(len(core)), len(core) // 2
    while distance:
        first, count = _run_of(owner, place ^ distance, distance)
        yield send(core, core[place ^ distance], first, count=count, reduce=True)
        distance //= 2


def doubling_all_gather(core: Ranks, owner: Ranks) -> Iterator[StepPattern]:
    """Yield log2 p steps of a recursive-doubling all-gather over p = 2^k ranks, the shortest distance first. Slot b
    starts at rank `core[owner[b]]`; `owner` never decreases."""
    place, distance = np.arange(len(core)), 1
    while distance < len(core):
        first, count = _run_of(owner, place, distance)
        yield send(core, core[place ^ distance], first, count=count)
        distance *= 2


def _run_of(owner: Ranks, place: Ranks, size: int) -> tuple[Ranks, Ranks]:
    """Return the first slot, and the number of slots, that the aligned group of `size` places around each place
    owns."""
    begin = place // size * size
    first = np.searchsorted(owner, begin)
    return first, np.searchsorted(owner, begin + size) - first


def peers(n: int) -> tuple[Ranks, Ranks]:
    """Return all ranks r, (n, 1), and for each r all other ranks in the order r+1, r+2, … (mod n), (n, n−1).

    >>> peers(3)[1].tolist()
    [[1, 2], [2, 0], [0, 1]]
    """
    rank = np.arange(n)[:, None]
    return rank, (rank + np.arange(1, n)) % n


def lowest_bit(number: Ranks) -> Ranks:
    """Return the largest power of two that divides each number; 0 for 0."""
    return number & -number


def highest_bit(number: Ranks) -> Ranks:
    """Return for each number, from 1 on, the largest power of two that is not above it."""
    return np.int64(1) << (np.frexp(number)[1] - 1).astype(np.int64)


def power_of_two(n: int) -> bool:
    """Return whether n is 1, 2, 4, ….

    >>> [n for n in range(1, 9) if power_of_two(n)]
    [1, 2, 4, 8]
    """
    return n & (n - 1) == 0


# The closed form, for `register`, of log2 n steps in which the data sent doubles or halves: n − 1 blocks in all.
DOUBLING: Final[Mapping[str, Any]] = {
    "cost": "log2(n) * alpha + (n - 1) * beta * m / n",
    "cost_for": power_of_two,
}


def several(n: int) -> bool:
    """Return whether n ranks are more than one."""
    return n > 1
