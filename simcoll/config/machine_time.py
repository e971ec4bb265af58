"""The time that the machine that simulates may take, and the refusal of work that surely takes longer."""

from __future__ import annotations

import os
from typing import Final

from simcoll import units
from simcoll.errors import Diagnostic, InputError

LONGEST_S: Final = 600  # of the processor
VARIABLE: Final = "SIMCOLL_LONGEST"  # of the environment: another longest time


def check_time(took_s: float, what: str, cure: str, key: str) -> None:
    """Raise InputError where work takes so many seconds of the processor, and that is more than may be; or where the
    environment has no such time."""
    longest_s = _longest_s()
    if took_s > longest_s:
        took, longest = (_in_words(seconds) for seconds in (took_s, longest_s))
        said = f"{what} take about {took} of a processor, and at most {longest} are taken"
        raise InputError([Diagnostic(said, f"{cure}; or let {VARIABLE} say how long it may take, e.g. '24 h'", key)])


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
