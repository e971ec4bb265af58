"""Columns laid side by side in large pages of memory.

A processor remembers where a few thousand pages are. Of 4 KiB each, these hold less than the columns of a run on
thousands of nodes, and most of what it reads then has to be looked up in the tables of pages first. NumPy asks for
pages of 2 MiB where an array is large.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import numpy as np

from simcoll.config.arrays import Array

PAGE: Final = 2 << 20  # bytes of a large page
LARGE: Final = 32 * PAGE  # bytes of an array that lies in large pages by itself
LINE: Final = 64  # bytes of a line of a processor's cache, in which each column begins one

T = TypeVar("T")


def side_by_side(columns: T) -> T:
    """The same tuple of columns, and of such tuples, in which small ones are copies that lie in large pages; as it is
    where they would not fill one, or the system has none."""
    small = {id(each): each for each in _arrays(columns) if each.base is None and each.nbytes < LARGE}
    places = np.cumsum([0, *(-(-each.nbytes // LINE) * LINE for each in small.values())])
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if places[-1] < PAGE or advice is None:
        return columns
    pages = mmap.mmap(-1, int(places[-1]) + PAGE)
    pages.madvise(advice)
    room = np.frombuffer(pages, np.uint8)
    room = room[-room.ctypes.data % PAGE :]
    copies: dict[int, Array] = {}
    for (name, each), at in zip(small.items(), places.tolist(), strict=False):
        copies[name] = room[at : at + each.nbytes].view(each.dtype)
        copies[name][:] = each
    found: T = _with(columns, copies)
    return found


def _arrays(columns: Any) -> Iterator[Array]:
    for each in columns:
        if isinstance(each, np.ndarray):
            yield each
        elif isinstance(each, tuple):
            yield from _arrays(each)


def _with(columns: Any, copies: dict[int, Array]) -> Any:
    """The columns with copies in their places."""
    found = [_with(each, copies) if isinstance(each, tuple) else copies.get(id(each), each) for each in columns]
    return tuple(found) if type(columns) is tuple else type(columns)(*found)
