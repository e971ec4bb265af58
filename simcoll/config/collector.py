"""The rate at which Python looks for objects that only refer to each other. It looks at all that it knows of: in vain
where many objects are made to stay, as devices and links of a topology are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SELDOM: Final = (100_000, 50, 100)  # for `gc.set_threshold`


@contextmanager
def seldom() -> Iterator[None]:
    """Python looks as seldom as that meanwhile; not at all where it is switched off."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, before, SELDOM))
    try:
        yield
    finally:
        gc.set_threshold(*before)
