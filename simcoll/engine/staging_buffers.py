"""Count the writes that need a staging buffer at the receiver, and the bytes of these buffers.

A write may end before a read of its slot's older data has been sent. It then waits in a staging buffer, from its `end`
until the last such read is `sent`. That costs memory, but no time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcoll.config.numpy_helpers import Numbers
from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline


@dataclass(frozen=True)
class Staged:
    """The number of writes that were staged, and the most bytes staged at one time, summed over all participants."""

    count: int
    peak_bytes: int


def staged(program: Program, timeline: Timeline) -> Staged:
    """Count the writes that had to wait because older data of their slot was still read. O(t log t) for t transfers."""
    for apart in (False, True):  # slots are looked at only if a write ends before any earlier read at its participant
        until = _last_read(program, timeline.sent, apart)
        held = np.flatnonzero(timeline.end < until)
        if not len(held):
            return Staged(0, 0)
    return Staged(len(held), _peak(timeline.end[held], until[held], program.nbytes[held]))


def _last_read(program: Program, sent: Numbers, apart: bool) -> Numbers:
    """Return for each transfer (a write) when the last read of older data in its slots has been sent, in ps; 0 if there
    is no such read. Unless slots are kept `apart`, all slots of a participant count as one. It is a running maximum
    over the reads of each slot. Reads are ranked by time, so that slot and rank fit one integer."""
    many, order, base = program.once("last reads", (program.way, apart), lambda: _by_slot(program, apart))
    sent = np.repeat(sent, many)
    count, by_sent = len(sent), np.argsort(sent)
    rank = np.zeros(2 * count, np.int64)  # reads, then writes, whose rank is 0
    rank[by_sent] = np.arange(1, count + 1)
    latest = np.empty(2 * count, np.int64)
    latest[order] = np.maximum.accumulate(base + rank[order]) - base
    when: Numbers = np.concatenate([[0], sent[by_sent]])[latest[count:]]
    return np.maximum.reduceat(when, np.cumsum(many) - many) if count else when


def _by_slot(program: Program, apart: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Return how many slots each transfer moves, and the order that sorts all reads and writes by slot and step, reads
    first within a step. Return also an offset for each that grows from slot to slot by more than any rank in time."""
    schedule = program.schedule.by_slot() if apart else program.schedule
    rows, many = schedule.taken(program.number)
    loop, step = np.repeat(program.loop, many), np.repeat(program.step, many)
    places = np.concatenate([schedule.src[rows], schedule.dst[rows]])
    places = places + np.tile(loop, 2) * np.int64(schedule.participants)
    slot = places * schedule.n_slots
    if apart:
        slot += np.concatenate([schedule.src_slot[rows], schedule.dst_slot[rows]])
    order = np.lexsort((np.concatenate([2 * step, 2 * step + 1]), slot))
    return many, order, np.cumsum(np.diff(slot[order], prepend=-1) != 0) * (len(rows) + 1)


def _peak(begin: Numbers, end: Numbers, nbytes: NDArray[np.int64]) -> int:
    """Return the most bytes at one time. Buffer i holds `nbytes[i]` from `begin[i]` to `end[i]`; ends count first."""
    order = np.lexsort((np.repeat([1, 0], len(begin)), np.concatenate([begin, end])))
    return int(np.cumsum(np.concatenate([nbytes, -nbytes])[order]).max(initial=0))
