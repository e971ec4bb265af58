"""Channels of GPUs that are all joined to each other: as many rings as the links allow, each with links of its own.

So RCCL uses Infinity Fabric. Its own rings for a machine are tables of its source; these are as many, not the same.
Source: T. W. Tillson, "A Hamiltonian decomposition of K*2m, 2m >= 8", J. Combinatorial Theory B 29 (1980): the links of
n such GPUs fall into n - 1 rings, but for n = 4 and 6, where one less fits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from simcoll.errors import InputError

MOST: Final = 8  # GPUs, each with a link to 7 others, as Infinity Fabric has them; the search tries all rings
Orders = tuple[tuple[int, ...], ...]
_Pools = Mapping[int, Sequence[tuple[int, tuple[int, ...]]]]  # by second GPU: rings, and their links as bits


@functools.cache
def rings(gpus: int) -> Orders:
    """Rings through all GPUs of which no two share a link in the same direction. Raises InputError for too many."""
    if gpus > MOST:
        raise InputError(f"a mesh of {gpus} GPUs", f"take {MOST} or fewer")
    if gpus % 2:
        return tuple((gpus - 1, *order) for order in paths(gpus - 1))
    seconds = range(1, gpus)
    every: dict[int, list[tuple[int, tuple[int, ...]]]] = {second: [] for second in seconds}
    for rest in itertools.permutations(seconds):
        hops = zip((0, *rest), (*rest, 0), strict=True)
        every[rest[0]].append((sum(1 << (a * gpus + b) for a, b in hops), (0, *rest)))
    for count in (gpus - 1, gpus - 2):
        for chosen in itertools.combinations(seconds, count):
            if found := _apart({second: every[second] for second in chosen}):
                return found
    raise AssertionError("two rings or more of n - 2 there always are")


@functools.cache
def paths(gpus: int) -> Orders:
    """Ways through all GPUs of which no two share a link in the same direction, begin or end at the same GPU."""
    if gpus % 2 and gpus > 1:  # a ring of one GPU more, which is left out
        return tuple(tuple(gpu - 1 for gpu in order[1:]) for order in rings(gpus + 1))
    turns = [(k + 1) // 2 * (1 if k % 2 else -1) for k in range(gpus)]  # 0, 1, -1, 2, -2, …
    return tuple(tuple((first + turn) % gpus for turn in turns) for first in range(gpus))


def _apart(pools: _Pools) -> Orders | None:
    """A ring of each pool, no two with a link in common."""
    if not pools:
        return ()
    fewest = min(pools, key=lambda second: len(pools[second]))
    for links, order in pools[fewest]:
        left = {
            second: [ring for ring in pool if not ring[0] & links] for second, pool in pools.items() if second != fewest
        }
        if all(left.values()) and (others := _apart(left)) is not None:
            return (order, *others)
    return None
