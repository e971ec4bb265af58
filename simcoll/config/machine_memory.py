"""The memory of the machine that simulates, and the refusal of work that needs more."""

from __future__ import annotations

import functools
import os
from typing import Final

from simcoll.errors import Diagnostic, InputError

UNSAID: Final = 2**31 * 350  # bytes, where the system does not say it: what 2³¹ transfers take, up to which they count


def check_memory(needed: int, what: str, cure: str, key: str) -> None:
    """Raise InputError where so many bytes are more than the memory of this machine."""
    there = memory()
    if needed > there:
        said = f"{what} take {needed / 1e9:.0f} GB of memory, and this machine has {there / 1e9:.0f} GB"
        raise InputError([Diagnostic(said, cure, key)])


@functools.cache
def memory() -> int:
    """Bytes of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return UNSAID
