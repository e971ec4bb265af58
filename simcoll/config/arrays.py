"""Names for types of NumPy arrays in annotations, the distinct numbers of an array, and long columns by pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]  # integers of any width, or floats: the text beside says which
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
AT_ONCE: Final = 1 << 18  # rows of a piece


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


def pieces(rows: int) -> Iterator[slice]:
    """The slices of a long column that are computed one after the other, as all at once would take much memory.

    >>> list(pieces(300_000))
    [slice(0, 262144, None), slice(262144, 300000, None)]
    """
    return (slice(first, min(first + AT_ONCE, rows)) for first in range(0, rows, AT_ONCE))
