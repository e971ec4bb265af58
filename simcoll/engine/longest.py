"""Bound the time that a call may take, whenever its ranks come.

The order in which links serve depends on when ranks come. Without that order it is still known how long a transfer may
wait at a link: only for transfers that are ahead of it there and have not passed, and these are few. A channel has one
transfer at a time at the first link of its ways, as the next one starts when that has passed it; of a connection at
most `slots` are on their way. So let each transfer wait at each link for all that may be ahead of it: no run goes
beyond these times. This follows by induction over transfers, each of which waits for lower ones, with `max` and `+`
alone. Times count from when the last rank has come, and from when links have served earlier calls; whatever happened
before then can only have left fewer to wait for.

It is no estimate: at each link a transfer waits for one of every channel that begins there, also where these never
meet. For most calls it is one to three times what they take; where many channels share links, it may be fifty times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Numbers
from simcoll.config.numba_loader import Loops, choose
from simcoll.engine._dependencies import looped_credits
from simcoll.engine._kernel_run import NO_INDICES, NO_TIMES, KernelRun
from simcoll.engine.kernels import longest_kernel, waits
from simcoll.engine.kernels.link_tables import LinkTables
from simcoll.engine.kernels.longest_kernel import LongestRun
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER, NONE

MOST_ROWS: Final = 50_000  # of a program that `in_turn` examines: some 0.1 s


class Longest(NamedTuple):
    """A program laid out for the kernel that bounds its time, and the loops to run that with."""

    program: Program
    loops: Loops
    run: LongestRun

    def latest_ps(self, missing: int | None = None) -> int | None:
        """Return the most time in ps that it may take once all ranks have come, if no other uses its links. With a
        `missing` rank: the same for all that does not wait for it; None if a rank may be through without it."""
        run, program = self.run, self.program
        if missing is None:
            return int(self.loops.like(longest_kernel).longest(run))
        unsent = self.loops.give((program.src == missing).astype(np.int64))
        quiet = int(self.loops.like(longest_kernel).longest(run._replace(unsent=unsent)))
        waits_ = np.zeros(program.schedule.participants, bool)
        waits_[missing] = True
        for ends, times in ((program.src, run.sent), (program.dst, run.complete)):
            waits_[ends[np.asarray(times) >= NEVER]] = True
        return quiet if waits_[: program.schedule.n].all() else None


def longest_of(
    program: Program, loops: int, piece: int, slots: int, compiled: bool | None = None, among: bool = False
) -> Longest | None:
    """Lay out a program that is run in `loops`, each of which moves at most `piece` bytes of a transfer; of a
    connection `slots` may be on their way, 0: any number. None where links are dead or times may leave the clock.

    Links serve in turn, without barriers or blocking sends. `among` programs that run `in_turn` before and behind it,
    with the same columns but sizes, time counts from when those before are over, too.
    """
    sized = replace(program, sizes=np.full_like(program.sizes, piece) if among else np.minimum(program.sizes, piece))
    kernel = Loops(waits, choose(len(program) * loops, compiled, longest_kernel))
    run_ = KernelRun(sized, kernel, "nothing")
    waits_ = _waits(sized, run_, max(loops, slots) if among else loops, slots) if len(program) else None
    if waits_ is None:
        return None
    (held, takes), by_way, rows = waits_, program.by_way, len(program)
    lead = np.where(program.routes.src == program.routes.dst, 0, by_way("o_send"))[program.way]
    gap = by_way("g")[program.way]
    if (float(takes.max()) + float(held.max()) + float(lead.max() + gap.max())) * rows * loops >= NEVER:
        return None
    last = np.zeros(int(program.channel.max()) + 1, np.int32)
    last[program.channel] = np.arange(rows)
    before = np.where(program.channel_before == NONE, last[program.channel], program.channel_before)
    _, _, row, later = looped_credits(program.connection, -slots) if slots else [NO_INDICES] * 4
    deep = 1 - int(later.min(initial=0))
    run = LongestRun(
        loops=loops,
        reads=run_.give(program.reads),
        chain=run_.give(program.chain),
        before=run_.give(before.astype(np.int32)),
        credit_row=run_.give(row),
        credit_loops=run_.give(-later),
        held=run_.give(held),
        takes=run_.give(takes),
        lead=run_.give(lead if lead.any() else NO_TIMES),
        gap=run_.give(gap if gap.any() else NO_TIMES),
        unsent=run_.give(NO_TIMES),
        start=run_.zeros(rows),
        sent=run_.zeros(rows),
        complete=run_.zeros(rows),
        ends=run_.zeros(deep * rows),
        deep=deep,
    )
    return Longest(program, kernel, run)


def longest_ps(
    program: Program, loops: int, piece: int, slots: int, compiled: bool | None = None, among: bool = False
) -> int | None:
    """Return the longest time in ps that a program may take once all its ranks have come: see `longest_of`."""
    found = longest_of(program, loops, piece, slots, compiled, among)
    return found and found.latest_ps()


def in_turn(program: Program) -> bool:
    """Return whether ranks may begin a second program, with the same columns but sizes, each when it is through with
    this one. Every channel must then begin in the second after all that it sent in the first has ended, so that
    `longest_ps` counts as many ahead as of one. False also where this takes long to find.

    A transfer begins when the ranks it hears of have begun. These have then received all of the first program, and all
    that they hear of there has ended.
    """
    rows, ranks = len(program), program.schedule.n
    if rows > MOST_ROWS:
        return False
    src, dst = ([1 << rank if rank < ranks else 0 for rank in column.tolist()] for column in (program.src, program.dst))
    reads, chain, reduce = program.reads.tolist(), program.chain.tolist(), program.reduce.tolist()
    begun, brought = src, list(src)  # ranks of which a transfer hears before it begins, and what it brings
    heard = dst  # ranks that hear of a transfer in the end
    for row in range(rows):
        if reads[row] >= 0:
            begun[row] |= brought[reads[row]]
        brought[row] = begun[row]
        if chain[row] >= 0:
            brought[row] |= brought[chain[row]]
        elif reduce[row]:
            brought[row] |= dst[row]
    for row in reversed(range(rows)):
        for before in (reads[row], chain[row]):
            if before >= 0:
                heard[before] |= heard[row]
    known: dict[int, int] = {}  # by channel: the ranks of which all its transfers hear
    channels = program.channel.tolist()
    for channel, ranks_ in zip(channels, begun, strict=True):
        known[channel] = known.get(channel, ranks_) & ranks_
    return all(known[channel] & ranks_ for channel, ranks_ in zip(channels, heard, strict=True))


class _Visits(NamedTuple):
    """The links at which rows may wait for others; receive sides count as further links. By visit: the row, whether
    this is its first link, and the most time in ps that the row is kept there, or at the links that follow."""

    row: Numbers
    opens: Numbers
    link: Numbers
    takes: Numbers


def _waits(program: Program, run_: KernelRun, loops: int, slots: int) -> tuple[Numbers, Numbers] | None:
    """Return for each row the longest time in ps from its head's coming to the first link until it has passed that, and
    until it has ended; None where that may be beyond the clock."""
    (first, links), tables, rows = program.hops, run_.ways, len(program)
    row, there = np.repeat(np.arange(rows), np.diff(first)), np.diff(first) > 0
    service = tables.service.reshape(-1, len(tables.rates))[program.kind[row], tables.rate_of[links]]
    receive = _receive_ps(program, tables)
    visits = _visits(program, tables, row, service, receive)
    waits_ = _ahead(program, visits, loops, slots)
    if waits_ is None:
        return None
    cap = program.by_kind("channel_bandwidth")
    slowest = (tables.at_rates(cap) if cap.any() else np.zeros(len(cap), np.int64))[program.kind]
    held, takes = np.ones(rows, np.int64), receive + ~there  # a local copy without a memory link takes 1 ps
    held[there] = np.maximum(slowest[there], service[first[:-1][there]])
    held[visits.row[visits.opens]] += waits_[visits.opens]
    np.maximum.at(slowest, row, service)
    takes[there] += slowest[there]
    np.add.at(takes, row, program.latencies[program.hops.links])
    np.add.at(takes, visits.row, waits_)
    return held, takes


def _receive_ps(program: Program, tables: LinkTables) -> Numbers:
    """Return the time in ps for which each transfer keeps its receive side."""
    src, dst, *_ = program.routes
    o_recv, gamma = np.where(src == dst, 0, program.by_way("o_recv")), program.by_kind("gamma")
    found: Numbers = o_recv[program.way] + (tables.at_rates(gamma)[program.kind] * program.reduce if gamma.any() else 0)
    return found


def _visits(program: Program, tables: LinkTables, row: Numbers, service: Numbers, receive: Numbers) -> _Visits:
    first, links = program.hops
    head = _heads(program, tables)
    waits_ = np.flatnonzero(head[links] == links)
    opens = np.zeros(len(links), bool)
    opens[first[:-1][np.diff(first) > 0]] = True
    kept = np.flatnonzero(receive)
    return _Visits(
        row=np.append(row[waits_], kept),
        opens=np.append(opens[waits_], np.zeros(len(kept), bool)),
        link=np.append(links[waits_].astype(np.int64), program.side[kept] + len(head)),
        takes=np.append(np.maximum.reduceat(service, waits_) if len(waits_) else service, receive[kept]),
    )


def _heads(program: Program, tables: LinkTables) -> Numbers:
    """Return for each link the one at which heads wait that come to it: itself, or one before it on every way that
    takes it.

    Heads wait at links behind each other at once: the last of those ahead is behind them all after the sum of the
    longest that each takes on any of them. Where channels begin, only one transfer of each counts; there, only links of
    the same rate and more are joined, as nobody waits at these.
    """
    _, _, hop, links = program.routes
    rates, head = program.bandwidths, np.arange(len(program.bandwidths))
    before, begins = head.copy(), np.zeros(len(head), bool)
    before[links[1:]] = links[:-1]
    begins[links[hop[:-1][np.diff(hop) > 0]]] = True
    follows = tables.follows()
    for _ in range(int(np.diff(hop).max(initial=0))):
        further = head[before]
        head = np.where(follows & (~begins[further] | (rates >= rates[further])), further, np.arange(len(head)))
    return head


def _ahead(program: Program, visits: _Visits, loops: int, slots: int) -> Numbers | None:
    """Return by visit how long in ps all that may be ahead of a row keeps it waiting; None beyond the clock."""
    row, opens, link, takes = visits
    if not len(row):
        return takes
    group = np.where(opens, 2 * program.channel[row].astype(np.int64), 2 * program.connection[row] + 1)
    _, number, many = np.unique(link * (int(group.max()) + 1) + group, return_inverse=True, return_counts=True)
    most, where = np.zeros(len(many), np.int64), np.zeros(len(many), np.int64)
    np.maximum.at(most, number, takes)
    where[number] = link
    ahead = np.minimum(many * loops, slots) if slots else many * loops
    ahead[number[opens]] = 1  # of a channel that begins here
    if float(most.max()) * float(ahead.sum()) >= NEVER:
        return None
    whole = np.zeros(int(where.max()) + 1, np.int64)
    np.add.at(whole, where, ahead * most)
    found: Numbers = whole[link] - most[number]
    return found
