"""A least-recently-used cache, limited by the total weight of its values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class LruCache(Generic[T]):
    """A cache of the most recently used values, up to a total weight of `most`; the latest value always stays."""

    def __init__(self, most: int, weight: Callable[[T], int]):
        self.most, self.weight = most, weight
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._weights: dict[Hashable, int] = {}
        self._total = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of `key`, made by `make` if the cache lacks it."""
        found = self.known(key)
        if found is None:
            found = make()
            self.keep(key, found)
        return found

    def known(self, key: Hashable) -> T | None:
        """Return the cached value of `key`; None if there is none."""
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def drop(self, key: Hashable) -> None:
        """Remove the value of `key`, if any."""
        if self._known.pop(key, None) is not None:
            self._total -= self._weights.pop(key)

    def keep(self, key: Hashable, value: T) -> None:
        """Store a value. Remove the least recently used values if the total weight exceeds the limit."""
        self._total += self.weight(value) - self._weights.get(key, 0)
        self._known[key], self._weights[key] = value, self.weight(value)
        self._known.move_to_end(key)
        while self._total > self.most and len(self._known) > 1:
            old, _ = self._known.popitem(last=False)
            self._total -= self._weights.pop(old)
