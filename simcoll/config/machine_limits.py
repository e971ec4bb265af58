"""Limits on the memory and time of a simulation on this computer; work beyond them is refused."""

from __future__ import annotations

import os
from typing import Final

from simcoll import units
from simcoll.errors import Diagnostic, InputError

UNSAID: Final = 2**31 * 350  # bytes assumed if the system reports none: enough for 2³¹ transfers, the most allowed


def check_memory(needed: int, what: str, cure: str, key: str) -> None:
    """Raise InputError if `needed` bytes for `what` exceed this machine's memory. `key`: the scenario key at fault."""
    there = memory()
    if needed > there:
        said = f"{what} take {needed / 1e9:.0f} GB of memory, and this machine has {there / 1e9:.0f} GB"
        raise InputError([Diagnostic(said, cure, key)])


def memory() -> int:
    """Return this machine's memory in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return UNSAID


LONGEST_S: Final = 600  # default limit, in processor seconds
VARIABLE: Final = "SIMCOLL_LONGEST"  # environment variable that sets another limit


def check_time(took_s: float, what: str, cure: str, key: str) -> None:
    """Raise InputError if an estimate of `took_s` processor seconds exceeds the limit, or if the environment variable
    with the limit (VARIABLE) is no duration."""
    longest_s = _longest_s()
    if took_s > longest_s:
        took, longest = (_in_words(seconds) for seconds in (took_s, longest_s))
        said = f"{what} need about {took} of processor time, and the limit is {longest}"
        raise InputError([Diagnostic(said, f"{cure}; or raise the limit with {VARIABLE}, e.g. '24 h'", key)])


def _longest_s() -> float:
    if not (asked := os.environ.get(VARIABLE)):
        return LONGEST_S
    try:
        longest_ps = units.parse(asked, "duration")
    except ValueError as error:
        raise InputError([Diagnostic.of(error, VARIABLE)]) from None
    if not longest_ps:
        raise InputError([Diagnostic(f"{asked} is no time to run", "write e.g. '3 h'", VARIABLE)])
    return longest_ps / units.PS_PER_S


def _in_words(seconds: float) -> str:
    longer = ((3600, "h"), (60, "min"))
    known = next((f"{seconds / length:.3g} {unit}" for length, unit in longer if seconds >= length), None)
    return known or units.format_duration(seconds * units.PS_PER_S, 3)
