"""A cache that keeps the values used last, up to a total weight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class LruCache(Generic[T]):
    """Keeps the values used last, as many as weigh `most` together; the last one is always kept."""

    def __init__(self, most: int, weight: Callable[[T], int]):
        self.most, self.weight = most, weight
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`; `make` makes it if the cache does not hold it."""
        if key not in self._known:
            self._known[key] = make()
        self._known.move_to_end(key)
        weights = [self.weight(value) for value in self._known.values()]
        for old, _ in zip(list(self._known)[:-1], weights, strict=False):
            if sum(weights[-len(self._known) :]) <= self.most:
                break
            del self._known[old]
        return self._known[key]
