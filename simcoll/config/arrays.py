"""Names for types of NumPy arrays in annotations, which numbers of an array are distinct, long columns by pieces, and
sets of numbers laid end to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]  # integers of any width, or floats: the text beside says which
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
AT_ONCE: Final = 1 << 18  # rows of a piece
DENSE: Final = 16  # times as many numbers as there are values: to look at all of more takes longer than to sort


def distinct(values: ArrayLike) -> Array:
    """Return the distinct numbers in order. `np.unique` takes longer, forty times for a million that all differ, and
    the first time loads `numpy.ma`, in a hundredth of a second.

    >>> distinct([3, 1, 3])
    array([1, 3])
    """
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    found: Array = ordered[first]
    return found


def all_differ(values: Array) -> bool:
    """Return whether no number occurs twice, of whole ones from 0 on. Where they are dense nothing is sorted.

    >>> all_differ(np.array([3, 1, 0])), all_differ(np.array([3, 1, 3]))
    (True, False)
    """
    most = int(values.max(initial=-1))
    if most > DENSE * len(values):
        return len(distinct(values)) == len(values)
    seen = np.zeros(most + 1, bool)
    seen[values] = True
    return int(np.count_nonzero(seen)) == len(values)


def sorted_out(*columns: Array) -> tuple[Numbers, Numbers]:
    """Return the first of each sort of rows that are equal in all columns, and the number of each row's sort.

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
    """The slices of a long column that are computed one after the other, as all at once would take much memory.

    >>> list(pieces(300_000))
    [slice(0, 262144, None), slice(262144, 300000, None)]
    """
    return (slice(first, min(first + AT_ONCE, rows)) for first in range(0, rows, AT_ONCE))


class Sets(NamedTuple):
    """Sets of numbers laid end to end: each has the next `counts` of `members`."""

    members: Numbers
    counts: Numbers

    @classmethod
    def by(cls, keys: Numbers, count: int) -> Self:
        """For each key from 0 to `count` - 1 the positions that have it, in order."""
        return cls(np.argsort(keys, kind="stable"), np.bincount(keys, minlength=count))

    @property
    def first(self) -> Numbers:
        """The place in `members` at which each set begins."""
        return np.cumsum(self.counts) - self.counts

    def taken(self, which: Numbers) -> Self:
        """These sets, in this order.

        >>> Sets(np.array([5, 6, 7]), np.array([2, 1])).taken(np.array([1, 0, 1])).members
        array([7, 5, 6, 7])
        """
        counts = self.counts[which]
        shift = self.first[which] - np.cumsum(counts) + counts
        return type(self)(self.members[np.arange(counts.sum()) + np.repeat(shift, counts)], counts)

    def sums(self, values: Numbers) -> Numbers:
        """The sum over each set of `values`, one for each number from 0 on."""
        sums, some = np.zeros(len(self.counts), np.int64), self.counts > 0
        if some.any():
            sums[some] = np.add.reduceat(values[self.members], self.first[some])
        return sums
