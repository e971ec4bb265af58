"""Find the predecessors of transfers: columns that depend on the schedule only.

Indices of transfers are int32; −1 means no predecessor.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Array, Numbers, distinct
from simcoll.schedule.schedule import Schedule
from simcoll.schedule.steps import Bools, Ints

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
    """What transfers wait for, as in `timing_model.Dependencies`. `slots`: for each row of `Schedule.by_slot` the row
    that wrote the value it reads, or NONE. `owner`: the transfer that each of these rows belongs to."""

    reads: Edges
    chain: Edges
    adds: Bools
    slots: Ints
    owner: Ints


def versions(schedule: Schedule) -> Versions:
    """Return the transfers that each transfer waits for, and the rows that wrote the values of single slots."""
    rows, transfers = schedule.by_slot(), schedule.transfers
    reads, chain = _versions_of_slots(rows)
    adds = rows.reduce & (chain == NONE)
    if len(rows) == transfers:
        owner = np.arange(transfers, dtype=np.int32)
    else:
        owner = np.cumsum(~rows.joins, dtype=np.int32) - np.int32(1)
        adds = np.logical_or.reduceat(adds, rows.heads)
    waits = [_between_transfers(column, owner, transfers) for column in (reads, chain)]
    return Versions(waits[0], waits[1], adds, reads, owner)


def _between_transfers(before: Ints, owner: Ints, count: int) -> Edges:
    """Return as edges of transfers that row i waits for row `before[i]`, or for no row (NONE)."""
    there = before != NONE
    waiting, awaited = owner[there], owner[before[there]]
    if count < len(owner):
        waiting, awaited = waiting[waiting != awaited], awaited[waiting != awaited]
        waiting, awaited = np.divmod(distinct(waiting * np.int64(count) + awaited), max(1, count))
    return Edges.between(waiting, awaited, count)


def _versions_of_slots(schedule: Schedule) -> tuple[Ints, Ints]:
    """Return for each row of one slot two earlier rows, or NONE: the one that wrote the value it reads, and the one
    that must be complete before it can be complete."""
    count, step = len(schedule), schedule.step
    who, what = np.concatenate([schedule.src, schedule.dst]), np.concatenate([schedule.src_slot, schedule.dst_slot])
    slots, _ = _keys(who, what, schedule.n_slots)
    read, write = slots[:count], slots[count:].astype(np.int64)
    begun = np.searchsorted(step, step)  # the first transfer of each one's step: all its reads come before its writes
    written = np.sort(write * count + np.arange(count))
    last = written[np.searchsorted(written, read * np.int64(count) + begun) - 1] if count else written
    reads = np.where((last // max(1, count) == read) & (last % max(1, count) < begun), last % max(1, count), NONE)
    before = ahead(write, 1)
    chain = np.where(schedule.reduce | (before >= begun), before, NONE)
    return reads.astype(np.int32), chain.astype(np.int32)


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
    """Find for each transfer of a loop the transfer `slots` positions later in its group, or earlier if `slots` is
    negative; loops run one after the other. Return four columns: the size of the group, the transfer's position in it,
    the transfer that was found, and how many loops later that transfer runs."""
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
