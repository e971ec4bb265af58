"""Runs of loops that repeat themselves: a run stands as it stood some loops before, all a constant later. Times follow
from times before by sums and by what comes first, so it then goes on as it did, and need not be run to stand there."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array, Numbers
from simcoll.engine.timing_model import NEVER


class Period(NamedTuple):
    """The number of `loops` behind which a run stands as it stood, `took` ps later, and how many transfers `ended`
    meanwhile."""

    loops: int
    took: int
    ended: int


class RunColumns(NamedTuple):
    """The columns that a run writes and that are as long whatever its loops; see `loop_records`."""

    size: Any
    clock: Any
    begun: Any
    at: Any
    loop: Any
    ready: Any
    head: Any
    ends: Any
    turn: Any
    soonest: Any
    free_link: Any
    free_side: Any
    first: Any
    last: Any
    done: Any


LOOPS: Final = ("begun", "loop")
SAME: Final = ("size", "at", "turn", "first")  # neither times nor loops that move, but for the first head of all
EVENTS: Final = ("head", "soonest")  # times at which something happens: 0 is one


class Standing(NamedTuple):
    """The state of a run: how many transfers had `ended`, the `latest` time, the loop `before` which all was over, and
    the last one that had been `reached`. `columns` are those that are as long in each run; `entries` of the heaps, part
    by part, are times, numbers of rows, and loops; of loops from `before` to that reached `when` and `state`. With a
    `period` it stood so before, and so will again."""

    ended: int
    latest: int
    before: int
    reached: int
    columns: RunColumns
    entries: tuple[Numbers, Numbers, Numbers]
    when: Array
    state: Array
    period: Period | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(each.nbytes for each in (*self.columns, *self.entries, self.when, self.state))

    @property
    def begun(self) -> int:
        """The latest loop that had begun."""
        return int(self.columns.begun[0])

    def towards(self, pause: int) -> Standing:
        """The state in which it stands again as late as can be before the begin of the loop `pause`; itself if it has
        no period."""
        if not self.period:
            return self
        loops, took, ended = self.period
        times = min((pause - self.begun) // loops, (NEVER - 1 - self.latest) // took)
        if times <= 0:
            return self
        at, number, loop = self.entries
        return self._replace(
            ended=self.ended + times * ended,
            latest=self.latest + times * took,
            before=self.before + times * loops,
            reached=self.reached + times * loops,
            columns=RunColumns(
                *(
                    column
                    if name in SAME
                    else column + times * loops
                    if name in LOOPS
                    else _later(column, times * took, name in EVENTS)
                    for name, column in zip(RunColumns._fields, self.columns, strict=True)
                )
            ),
            entries=(at + times * took, number, loop + times * loops),
            when=_later(self.when, times * took),
        )


def period(there: Standing, here: Standing, slots: int) -> Period | None:
    """The period after which a run stands `here` as it stood `there`; None if that is not so. Connections have
    `slots`, which all loops up to there may have been the first to use."""
    loops, took = here.begun - there.begun, here.latest - there.latest
    moved = there.before + loops, there.reached + loops
    if loops <= 0 or took <= 0 or there.reached <= slots or moved != (here.before, here.reached):
        return None
    for name, old, new in zip(RunColumns._fields, there.columns, here.columns, strict=True):
        if name in SAME or name in LOOPS:
            same = np.array_equal(old + loops if name in LOOPS else old, new)
        else:
            same = _is_later(old, new, took, name in EVENTS)
        if not same:
            return None
    if not np.array_equal(there.state, here.state) or not _is_later(there.when, here.when, took):
        return None
    (at, number, loop), (then, *others) = _sorted(there), _sorted(here)
    alike = np.array_equal(at + took, then) and np.array_equal([number, loop + loops], others)
    return Period(loops, took, here.ended - there.ended) if alike else None


def _no_time(column: Array, event: bool) -> Array:
    """The entries of a column that are no time at which anything happened; 0 is none, but for an `event`."""
    nothing: Array = np.abs(column) >= NEVER
    return nothing if event else nothing | (column == 0)


def _later(column: Array, by: int, event: bool = False) -> Array:
    return np.where(_no_time(column, event), column, column + by)


def _is_later(old: Array, new: Array, by: int, event: bool = False) -> bool:
    return bool(np.array_equal(_later(old, by, event), new))


def _sorted(standing: Standing) -> list[Numbers]:
    """Entries of the heaps, those of each part by time and number: a heap may hold the same in other places."""
    part = np.repeat(np.arange(len(standing.columns.size)), standing.columns.size)
    at, number, loop = standing.entries
    order = np.lexsort((loop, number, at, part))
    return [at[order], number[order], loop[order]]
