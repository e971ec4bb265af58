"""The times of the operations of a plan, as far as they are known while it is put together (see `composed`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcoll.config.arrays import Numbers
from simcoll.engine import fast
from simcoll.engine.call_program import CallProgram


class Hidden(NamedTuple):
    """An operation of which it is not known yet when it ends: a call that is not run as long as nobody needs to know,
    or None, what launches such a call. Its ranks begin at `opened`, or in a `chain` behind its first, whose number that
    is, perhaps later; it is over at `latest`, in ps, and on ranks that begin before others are `ahead` not after that
    time. What it does before the last of its ranks come may end at `quiet`, where `opened` does not tell."""

    number: int
    call: CallProgram | None
    opened: Numbers
    latest: int
    chain: int
    ahead: int
    quiet: int = 0


class Opened(NamedTuple):
    """The times at which ranks may begin an operation, and the first of them. In a `chain` of another one that is
    hidden they are the soonest there may be, and those up to `ahead` may be as late as that, in ps; else it is 0. That
    was `known` when hidden ones had been shown so often, and the chain ended with that one."""

    when: Numbers
    first: int
    ahead: int
    chain: int
    known: tuple[int, Hidden] | None = None

    @property
    def latest(self) -> int:
        """The time at which all ranks may begin, at the latest, in ps."""
        return max(int(np.maximum.reduce(self.when, initial=0)), self.ahead)


class Taken(NamedTuple):
    """Times by link: the last message came, and it is free again."""

    came: Numbers
    free: Numbers

    def copied(self) -> Taken:
        """Columns of its own."""
        return Taken(*(column.copy() for column in self))


class Before(NamedTuple):
    """The state when a part of a chain, which begins at a `place` of it, was run: by link, and the latest time."""

    place: int
    met: bool
    taken: Taken
    owner: Numbers
    last: int


class KnownCalls:
    """Calls that were run: of those that are alike one is."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, bytes], list[tuple[Numbers, fast.CallEnds]]] = {}

    def alike(self, call: CallProgram, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """The call by itself, if one like it was run: see `CallProgram.alone`. A link that is free before its first
        message comes may as well have been free from the start."""
        now = busy[call.links]
        for before, ends in self._runs.get((id(call), came.tobytes()), ()):
            if ((now == before) | (np.maximum(now, before) <= ends.first[call.links])).all():
                return ends
        return None

    def alone(self, call: CallProgram, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """The call by itself, run if none like it was; None if it cannot finish."""
        if (ends := self.alike(call, came, busy)) is None and (ends := call.alone(came, busy)) is not None:
            self._runs.setdefault((id(call), came.tobytes()), []).append((busy[call.links], ends))
        return ends
