"""Group the items of a list that share a key; keys and items keep their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return a dictionary from each key to the list of its items."""
    groups: dict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def alike(keys: Sequence[Hashable]) -> tuple[tuple[int, ...], ...]:
    """Return the positions at which each distinct key occurs, as one tuple per key.

    >>> alike("abca")
    ((0, 3), (1,), (2,))
    """
    return tuple(map(tuple, grouped(range(len(keys)), keys.__getitem__).values()))


def equal_groups(n: int, size: int, apart: int) -> tuple[tuple[int, ...], ...]:
    """Return the numbers below `n` in groups of `size`, in which they are `apart`; `n` is a multiple of both.

    >>> equal_groups(8, 2, 2)
    ((0, 2), (1, 3), (4, 6), (5, 7))
    """
    block = size * apart
    return tuple(tuple(range(i + j, i + j + block, apart)) for i in range(0, n, block) for j in range(apart))
