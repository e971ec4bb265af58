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
