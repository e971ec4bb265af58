"""Groups of items that share a key; keys and items keep their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return a dictionary from each key to the list of its items."""
    groups: dict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def alike(keys: Sequence[Hashable]) -> tuple[tuple[int, ...], ...]:
    """Return the positions of each distinct key, as one tuple per key.

    >>> alike("abca")
    ((0, 3), (1,), (2,))
    """
    return tuple(map(tuple, grouped(range(len(keys)), keys.__getitem__).values()))


def nested(lists: Iterable[Any]) -> tuple[Any, ...]:
    """Convert nested lists into nested tuples.

    >>> nested([[0, 1], [2]])
    ((0, 1), (2,))
    """
    return tuple(nested(inner) if isinstance(inner, list) else inner for inner in lists)
