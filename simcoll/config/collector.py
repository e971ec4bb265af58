"""Make Python's garbage collector run less often while many objects are made that stay.

The collector searches all objects for cycles of references. Where devices and links of a topology are made, it finds
nothing to free, and searches again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SELDOM: Final = (100_000, 50, 100)  # for `gc.set_threshold`


@contextmanager
def seldom() -> Iterator[None]:
    """Collect as seldom as SELDOM says until the block ends; not at all where the collector is switched off."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, before, SELDOM))
    try:
        yield
    finally:
        gc.set_threshold(*before)
