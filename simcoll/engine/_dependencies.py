"""Find the predecessors of transfers: columns that depend on the schedule only.

Indices of transfers are int32; −1 means no predecessor.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Array, Numbers, Sets, distinct
from simcoll.schedule.intervals import Intervals
from simcoll.schedule.schedule import Schedule
from simcoll.schedule.steps import Bools, Ints, Step

NONE: Final = -1
DENSE: Final = 1 << 22  # entries of a table that is always allowed


class Edges(NamedTuple):
    """Transfers that other transfers wait for. Transfer i waits for the earlier transfers
    `before[first[i]:first[i + 1]]`, in ascending order; `first` has shape (transfers + 1,)."""

    first: Ints
    before: Ints

    def of(self, i: int) -> list[int]:
        """Return the transfers that transfer `i` waits for."""
        found: list[int] = self.before[self.first[i] : self.first[i + 1]].tolist()
        return found

    def waiting(self) -> Ints:
        """Return for each entry of `before` the transfer that waits."""
        return np.repeat(np.arange(len(self.first) - 1, dtype=np.int32), np.diff(self.first))

    @classmethod
    def between(cls, waiting: Ints, before: Ints, count: int) -> Edges:
        """Return the edges of `count` transfers: `waiting[k]`, which never decreases, waits for `before[k]`."""
        first = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(waiting, minlength=count), out=first[1:])
        return cls(first, before.astype(np.int32, copy=False))


class Versions(NamedTuple):
    """What transfers wait for, as in `timing_model.Dependencies`. If each row moves one slot, `rows` has the row that
    wrote the value that each reads, or NONE; it is empty otherwise. Then `inputs` has the runs that are read before
    they are written: the places (see `Intervals`) of their first slots, and those behind their last, (2, runs)."""

    reads: Edges
    chain: Edges
    adds: Bools
    rows: Ints
    inputs: Numbers


def versions(schedule: Schedule) -> Versions:
    """Return the transfers that each transfer waits for, and what is read first. Slots that all transfers move together
    are looked at once."""
    transfers, count, step = schedule.transfers, len(schedule), schedule.step
    begun = np.searchsorted(step, step)  # the first row of each one's step: all its reads come before its writes
    begin, reading, writing = _intervals(schedule)
    row = np.arange(count)
    reader, writer = np.repeat(row, reading.counts), np.repeat(row, writing.counts)
    written = np.sort(writing.members * count + writer)
    last = written[np.searchsorted(written, reading.members * count + begun[reader]) - 1] if count else written
    place, by = np.divmod(last, max(1, count))
    reads = np.where((place == reading.members) & (by < begun[reader]), by, NONE).astype(np.int32)
    before = ahead(writing.members, 1)
    before[before != NONE] = writer[before[before != NONE]]
    chain = np.where(schedule.reduce[writer] | (before >= begun[writer]), before, NONE)
    owner = np.cumsum(~schedule.joins, dtype=np.int32) - np.int32(1)
    adds = np.zeros(transfers, np.bool_)
    adds[owner[writer[schedule.reduce[writer] & (chain == NONE)]]] = True
    waits = _between_transfers(reads, owner[reader], owner, transfers)
    chained = _between_transfers(chain, owner[writer], owner, transfers)
    if not len(begin):
        return Versions(waits, chained, adds, reads, np.zeros((2, 0), np.int64))
    first = reading.members[reads == NONE]
    return Versions(waits, chained, adds, reads[:0], np.stack([begin[first], begin[first + 1]]))


def _intervals(schedule: Schedule) -> tuple[Numbers, Sets, Sets]:
    """Return where intervals of slots begin, and those that each row reads and writes. If each row moves one slot, the
    slots are the intervals, and none begins."""
    if not (schedule.count > 1).any():
        who, what = np.concatenate([schedule.src, schedule.dst]), np.concatenate([schedule.src_slot, schedule.dst_slot])
        slots, ones = _keys(who, what, schedule.n_slots)[0].astype(np.int64), np.ones(len(schedule), np.int64)
        return np.zeros(0, np.int64), Sets(slots[: len(ones)], ones), Sets(slots[len(ones) :], ones)
    found = Intervals(Step._make(schedule.columns[1:]), schedule.n_slots)
    return found.begin, found.of(found.read), found.of(found.written)


def origins(schedule: Schedule) -> Ints:
    """Return for each row of `schedule.by_slot()` the row that wrote the value it reads, or NONE."""
    return versions(schedule.by_slot()).rows


def _between_transfers(before: Ints, waiting: Ints, owner: Ints, count: int) -> Edges:
    """Return as edges of `count` transfers that the transfers `waiting` wait for the rows `before`, or for no row
    (NONE). Row i belongs to transfer `owner[i]`."""
    there = before != NONE
    waiting, awaited = waiting[there], owner[before[there]]
    if count < len(before):
        waiting, awaited = waiting[waiting != awaited], awaited[waiting != awaited]
        waiting, awaited = np.divmod(distinct(waiting * np.int64(count) + awaited), max(1, count))
    return Edges.between(waiting, awaited, count)


def inherited(reads: Ints, kind: Ints) -> Ints:
    """Return the kind (the index of a size) of the value that each row moves. A row that reads a rank's input has its
    own `kind`. Any other row has the kind of the row that wrote the value (`reads`)."""
    source = np.where(reads == NONE, np.arange(len(reads), dtype=np.int32), reads)
    while not np.array_equal(further := source[source], source):
        source = further
    return kind[source]


def numbered(a: Ints, b: Ints) -> tuple[Ints, int]:
    """Number the distinct pairs (a[i], b[i]) in order of first use. Return the number of each pair, and their count."""
    keys, span = _keys(a, b, int(b.max(initial=0)) + 1)
    first = np.full(span, len(keys), np.int32)
    first[keys[::-1]] = np.arange(len(keys), dtype=np.int32)[::-1]  # among equal keys the last assignment stays
    used = np.flatnonzero(first < len(keys))
    first[used[np.argsort(first[used])]] = np.arange(len(used), dtype=np.int32)
    return first[keys], len(used)


def ahead(group: Numbers | Ints, places: int) -> Ints:
    """Return for each transfer the transfer `places` positions earlier in its group, or NONE; `group`: by transfer."""
    found, count = np.full(len(group), NONE, np.int32), len(group)
    ordered = np.sort(group.astype(np.int64) * count + np.arange(count))
    number, row = np.divmod(ordered, max(1, count))
    same = number[places:] == number[:-places]
    found[row[places:][same]] = row[:-places][same]
    return found


def looped_credits(group: Numbers, slots: int) -> tuple[Array, Array, Array, Array]:
    """Find for each transfer of a loop the transfer `slots` positions later in its group, if loops run one after the
    other. Return four columns: the size of the group, the transfer's position in it, the transfer that was found, and
    how many loops later that transfer runs."""
    _, number, many = np.unique(group, return_inverse=True, return_counts=True)
    order, first = np.argsort(number, kind="stable"), np.cumsum(many) - many
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - first[number[order]]
    later, then = np.divmod(place + slots, many[number])
    return many[number], place, order[first[number] + then].astype(np.int32), later.astype(np.int32)


def _keys(a: Ints, b: Ints, width: int) -> tuple[Array, int]:
    """Return an equal number for equal pairs (a[i], b[i]), with 0 ≤ b < `width`, and a bound above all numbers. If few
    of the possible pairs occur, the numbers are dense, so that a table by number is no larger than the columns."""
    span = (int(a.max(initial=-1)) + 1) * width
    keys: Array = np.multiply(a, width, dtype=np.int32 if span < 2**31 else np.int64)
    keys += b
    if span > 4 * len(keys) + DENSE:
        distinct, keys = np.unique(keys, return_inverse=True)
        keys, span = keys.astype(np.int32), len(distinct)
    return keys, span
