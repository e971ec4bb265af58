"""Intervals of slots: a transfer moves runs of neighbouring slots, and slots that all runs move together need not be
looked at one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.config.numpy_helpers import Numbers, Sets, distinct
from simcoll.schedule.steps import Step


class Intervals:
    """The slots of each participant, cut where a run of the `rows` begins or ends, and at further `cuts`. Slot s of
    participant p is place p · `width` + s; `begin` has the first place of each interval, in order. Rows read the places
    from `read` on, and write those from `written` on, (rows,)."""

    def __init__(self, rows: Step, n_slots: int, cuts: Iterable[Numbers] = ()):
        self.width, self.count = n_slots + 1, rows.count  # a place between participants, so that no interval has two
        self.read, self.written = self.places(rows.src, rows.src_slot), self.places(rows.dst, rows.dst_slot)
        firsts = self.read, self.written
        self.begin: Numbers = distinct(np.concatenate([*firsts, *(first + rows.count for first in firsts), *cuts]))

    def places(self, participant: NDArray[Any], slot: NDArray[Any]) -> Numbers:
        """Return the numbers of (participant, slot) pairs."""
        found: Numbers = participant.astype(np.int64) * self.width + slot
        return found

    def of(self, first: Numbers) -> Sets:
        """Return the intervals that each row reads (`first`: `read`) or writes (`written`)."""
        return spans(np.searchsorted(self.begin, first), np.searchsorted(self.begin, first + self.count))


def spans(first: Numbers, end: Numbers) -> Sets:
    """Return as sets the numbers from each `first` up to each `end`, which is left out.

    >>> spans(np.array([5, 2]), np.array([7, 3])).members
    array([5, 6, 2])
    """
    counts = end - first
    return Sets(np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts), counts)
