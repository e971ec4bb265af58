"""Helpers for NumPy arrays: names of their types, distinct numbers, groups of rows, slices of long columns, sets of
numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]  # integers of any width, or floats
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
AT_ONCE: Final = 1 << 18  # rows of a slice
DENSE: Final = 16  # largest number per value of a dense array: a table of more entries takes longer than sorting


def distinct(values: ArrayLike) -> Array:
    """Return the distinct numbers in order. Up to forty times as fast as `np.unique` for a million distinct values, and
    does not load `numpy.ma`, which takes 10 ms.

    >>> distinct([3, 1, 3])
    array([1, 3])
    """
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    found: Array = ordered[first]
    return found


def all_differ(values: Array) -> bool:
    """Return whether no number occurs twice; `values` are at least 0. Dense values are checked without a sort.

    >>> all_differ(np.array([3, 1, 0])), all_differ(np.array([3, 1, 3]))
    (True, False)
    """
    most = int(values.max(initial=-1))
    if most > DENSE * len(values):
        return len(distinct(values)) == len(values)
    seen = np.zeros(most + 1, bool)
    seen[values] = True
    return int(np.count_nonzero(seen)) == len(values)


def turns_of(values: Array) -> Numbers:
    """Return for each value how many equal values come before it.

    >>> turns_of(np.array([7, 5, 7, 7]))
    array([0, 0, 1, 2])
    """
    order = np.argsort(values, kind="stable")
    turns = np.empty(len(values), np.int64)
    turns[order] = np.arange(len(values)) - np.searchsorted(values[order], values[order])
    return turns


def numbers_of(names: Iterable[Hashable]) -> Numbers:
    """Return a number for each name, the same for equal names, int64 (names,).

    >>> numbers_of("abca")
    array([0, 1, 2, 0])
    """
    names = tuple(names)
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array(list(map(number.__getitem__, names)), np.int64)


def sorted_out(*columns: Array) -> tuple[Numbers, Numbers]:
    """Group rows that are equal in all columns. Return the index of the first row of each group, and each row's group.

    >>> sorted_out(np.array([7, 5, 7]), np.array([1, 1, 1]))
    (array([1, 0]), array([1, 0, 1]))
    """
    number: Numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = distinct(column)
        both = number * len(values) + np.searchsorted(values, column)
        number = np.searchsorted(distinct(both), both)
    first = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return first, number


def pieces(rows: int) -> Iterator[slice]:
    """Return slices of at most 2¹⁸ rows that together cover `rows` rows, for computations that need much memory per
    row.

    >>> list(pieces(300_000))
    [slice(0, 262144, None), slice(262144, 300000, None)]
    """
    return (slice(first, min(first + AT_ONCE, rows)) for first in range(0, rows, AT_ONCE))


class Sets(NamedTuple):
    """Several sets of numbers. `members` has all sets one after the other; `counts` has the size of each set."""

    members: Numbers
    counts: Numbers

    @classmethod
    def by(cls, keys: Numbers, count: int) -> Self:
        """Return for each key from 0 to `count` - 1 the set of the indices at which `keys` has this key, in order."""
        return cls(np.argsort(keys, kind="stable"), np.bincount(keys, minlength=count))

    @property
    def first(self) -> Numbers:
        """Return the index in `members` at which each set begins."""
        return np.cumsum(self.counts) - self.counts

    def taken(self, which: Numbers) -> Self:
        """Return the sets with the numbers `which`, in that order.

        >>> Sets(np.array([5, 6, 7]), np.array([2, 1])).taken(np.array([1, 0, 1])).members
        array([7, 5, 6, 7])
        """
        counts = self.counts[which]
        shift = self.first[which] - np.cumsum(counts) + counts
        return type(self)(self.members[np.arange(counts.sum()) + np.repeat(shift, counts)], counts)

    def sums(self, values: Numbers) -> Numbers:
        """Return for each set the sum of `values` at its members, which are indices into `values`."""
        sums, some = np.zeros(len(self.counts), np.int64), self.counts > 0
        if some.any():
            sums[some] = np.add.reduceat(values[self.members], self.first[some])
        return sums

    def sums_in_order(self, values: Numbers) -> Numbers:
        """Return for each set the sum of its `values`, of which there is one for each entry of `members`. No set may be
        empty.

        >>> Sets(np.array([5, 6, 7]), np.array([2, 1])).sums_in_order(np.array([1, 2, 4]))
        array([3, 4])
        """
        return np.add.reduceat(values, self.first) if len(values) else values
