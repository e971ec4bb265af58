"""Channels of a looped program whose transfers need no heap: all go over one and the same link, one behind the other.

When such a transfer may start is known as soon as what it reads is there: for all else it waits for its own channel. So
a link serves these channels up to a time in a short loop, before a head that comes from elsewhere, and at the end of
each window. GPUs that send to an NVSwitch, and the switch that sends to them, are such channels.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array, Numbers
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER, NONE

MOST_ADDED: Final = 100  # rows of a sum, which the state counts in a byte


class PartialSums(NamedTuple):
    """Versions of a slot that follow each other, of which only the last is read: nobody asks when the others are
    complete. By row: the `first` and the `last` of its sum, and how `many` they are. Each other row is one by
    itself."""

    first: Numbers
    last: Numbers
    many: Numbers


class LoopStreams(NamedTuple):
    """Whether each row belongs to such a channel, and whether its version is `awaited`; the `sums` that they make; the
    rows of these channels by part, link and channel; where each channel begins; and how far ahead of others its ends
    lie, in ps."""

    taken: Array
    awaited: Array
    sums: PartialSums
    rows: Numbers
    begin: Numbers
    ahead: int


def streams_of(program: Program, starts: Array, least: int) -> LoopStreams:
    """The channels of a program whose rows begin in the parts `starts`.

    Nothing is kept at their receive sides, and where somebody waits for what they bring, it comes `least` ps later than
    its head to the link, or more: so late that no other event of a window feels it.
    """
    (src, dst, hop, links), way, channel = program.routes, program.way, program.channel
    awaited = (program.chain != NONE) | np.isin(np.arange(len(program)), np.append(program.chain, program.reads))
    one = np.diff(hop) == 1
    link = np.append(links, 0)[np.minimum(hop[:-1], len(links) - 1)]
    late = program.latencies[link]
    free = one & (program.bandwidths[link] > 0) & ((src == dst) | (program.by_way("o_recv") == 0))
    kept = bool(program.by_kind("gamma").any())
    fit = free[way] & ~(awaited & (late < least)[way]) & ~(program.reduce & kept)
    _, first, number = np.unique(channel, return_index=True, return_inverse=True)
    fit &= way == way[first][number]
    channels = np.ones(len(first), bool)
    channels[number[~fit]] = False
    taken = channels[number]
    rows = np.flatnonzero(taken)
    rows = rows[np.lexsort((rows, channel[rows], link[way[rows]], starts[rows]))]
    begin = np.flatnonzero(np.append(True, np.diff(channel[rows]) != 0)[: len(rows)])
    ahead = int(late[way[taken & awaited]].min(initial=NEVER))
    return LoopStreams(taken, awaited, _sums(program, taken), rows, np.append(begin, len(rows)), ahead)


def _sums(program: Program, taken: Array) -> PartialSums:
    """The sums that rows of these channels make."""
    chain, rows, read = program.chain, np.arange(len(taken)), np.zeros(len(taken), bool)
    read[program.reads[program.reads != NONE]] = True
    joins = (chain != NONE) & taken & (taken & ~read)[chain]  # the one before
    first, place = np.where(joins, chain, rows), joins.astype(np.int64)
    while (first[first] != first).any():
        place, first = place + place[first], first[first]
    last, order = rows.copy(), np.argsort(place, kind="stable")
    last[first[order]] = order
    many = place[last[first]] + 1
    alone = many > MOST_ADDED
    return PartialSums(
        *(np.where(alone, single, column) for single, column in ((rows, first), (rows, last[first]), (1, many)))
    )
