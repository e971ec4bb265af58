"""Compute an upper bound of the time that a call takes, whenever its ranks arrive.

The arrivals of ranks decide the order in which links serve transfers. The bound needs no order: at a link, a transfer
can only wait for transfers that are ahead of it there, and few can be. A channel has one transfer at a time at the
first link of its routes, since it starts the next when the last has passed that link. A connection has at most `slots`
transfers in flight. So let each transfer wait at each link for every transfer that may be ahead of it: no run takes
longer. The proof is by induction over transfers, each of which waits for lower ones, with `max` and `+` alone. Times
count from the arrival of the last rank, once links have served all earlier calls; work done before then can only leave
fewer transfers to wait for.

The bound is no estimate: at each link a transfer waits for one transfer of every channel that begins there, even if
they never meet. It is one to three times the time of most calls, and up to fifty times if many channels share links.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numba_loader import Loops, choose
from simcoll.config.numpy_helpers import Numbers
from simcoll.engine._compiled_run import NO_INDICES, NO_TIMES
from simcoll.engine._dependencies import looped_credits
from simcoll.engine.compiled import upper_bound_loop, waits
from simcoll.engine.compiled.link_tables import LinkTables
from simcoll.engine.compiled.upper_bound_loop import UpperBoundRun
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER, NONE

MOST_ROWS: Final = 50_000  # rows of the largest program that `in_turn` examines, which takes some 0.1 s


class UpperBound(NamedTuple):
    """A program laid out for `upper_bound_loop`: the kernel's columns (`run`), and its functions (`loops`)."""

    program: Program
    loops: Loops
    run: UpperBoundRun

    def latest_ps(self, missing: int | None = None) -> int | None:
        """Return an upper bound in ps of the program's time after all ranks have come, if it has the links to itself.
        With a `missing` rank, bound the work that does not wait for that rank; None if a rank may finish without it."""
        run, program = self.run, self.program
        if missing is None:
            return int(self.loops.like(upper_bound_loop).upper_bound(run))
        unsent = self.loops.give((program.src == missing).astype(np.int64))
        quiet = int(self.loops.like(upper_bound_loop).upper_bound(run._replace(unsent=unsent)))
        waits_ = np.zeros(program.schedule.participants, bool)
        waits_[missing] = True
        for ends, times in ((program.src, run.sent), (program.dst, run.complete)):
            waits_[ends[np.asarray(times) >= NEVER]] = True
        return quiet if waits_[: program.schedule.n].all() else None


def upper_bound_of(
    program: Program, loops: int, piece: int, slots: int, compiled: bool | None = None, among: bool = False
) -> UpperBound | None:
    """Lay out a program for `upper_bound_loop`; None if links are dead or times may exceed the clock's range.

    The program runs in `loops`, each of which moves at most `piece` bytes of a transfer. At most `slots` transfers of a
    connection are in flight (0: any number). Links must serve one transfer after the other (`fifo`), without barriers
    or blocking sends. `among`: whether programs that differ only in sizes run directly before and after this one, as
    `in_turn` permits; the bound then counts from the end of the programs before.
    """
    sized = replace(program, sizes=np.full_like(program.sizes, piece) if among else np.minimum(program.sizes, piece))
    kernel = Loops(waits, choose(len(program) * loops, compiled, upper_bound_loop))
    give, tables = kernel.give, LinkTables(sized)
    waits_ = _waits(sized, tables, max(loops, slots) if among else loops, slots) if len(program) else None
    if waits_ is None:
        return None
    (held, takes), by_way, rows = waits_, program.by_way, len(program)
    lead = np.where(program.routes.src == program.routes.dst, 0, by_way("o_send"))[program.way]
    gap = by_way("g")[program.way]
    if (float(takes.max()) + float(held.max()) + float(lead.max() + gap.max())) * rows * loops >= NEVER:
        return None
    held, takes = np.maximum(lead + held, gap), lead + takes
    last = np.zeros(int(program.channel.max()) + 1, np.int32)
    last[program.channel] = np.arange(rows)
    before = np.where(program.channel_before == NONE, last[program.channel], program.channel_before)
    _, _, row, later = looped_credits(program.connection, -slots) if slots else [NO_INDICES] * 4
    deep = 1 - int(later.min(initial=0))
    run = UpperBoundRun(
        loops=loops,
        first_read=give(program.reads.first),
        reads=give(program.reads.before),
        first_chain=give(program.chain.first),
        chain=give(program.chain.before),
        before=give(before.astype(np.int32)),
        credit_row=give(row),
        credit_loops=give(-later),
        held=give(held),
        takes=give(takes),
        unsent=give(NO_TIMES),
        sent=kernel.fill(rows, 0, np.int64),
        complete=kernel.fill(rows, 0, np.int64),
        ends=kernel.fill(deep * rows, 0, np.int64),
        deep=deep,
    )
    return UpperBound(program, kernel, run)


def upper_bound_ps(
    program: Program, loops: int, piece: int, slots: int, compiled: bool | None = None, among: bool = False
) -> int | None:
    """Return an upper bound in ps of a program's time after all its ranks have come, or None: see `upper_bound_of`."""
    found = upper_bound_of(program, loops, piece, slots, compiled, among)
    return found and found.latest_ps()


def in_turn(program: Program) -> bool:
    """Return whether each rank may begin a second program, equal but for sizes, as soon as it has finished this one.

    Every channel must begin in the second only after all that it sent in the first has ended: then `upper_bound_ps`
    counts no more transfers ahead than with one program. Programs of more than `MOST_ROWS` rows give False, as the
    check takes long. A transfer *hears of* a rank if, by its dependencies, it cannot begin before that rank has begun.
    In the second program that rank has then received all of the first, so all transfers that it hears of there have
    ended.
    """
    rows, ranks = len(program), program.schedule.n
    if rows > MOST_ROWS:
        return False
    src, dst = ([1 << rank if rank < ranks else 0 for rank in column.tolist()] for column in (program.src, program.dst))
    reads, chain = ([edges.of(row) for row in range(rows)] for edges in (program.reads, program.chain))
    adds = program.adds.tolist()
    begun, brought = src, list(src)  # sets of ranks, as bits: those a transfer hears of when it begins, and those it
    heard = dst  # tells its receiver of; then the ranks that hear of a transfer in the end
    for row in range(rows):
        for before in reads[row]:
            begun[row] |= brought[before]
        brought[row] = begun[row]
        for before in chain[row]:
            brought[row] |= brought[before]
        if adds[row]:
            brought[row] |= dst[row]
    for row in reversed(range(rows)):
        for before in (*reads[row], *chain[row]):
            heard[before] |= heard[row]
    known: dict[int, int] = {}  # by channel: the ranks of which all its transfers hear
    channels = program.channel.tolist()
    for channel, ranks_ in zip(channels, begun, strict=True):
        known[channel] = known.get(channel, ranks_) & ranks_
    return all(known[channel] & ranks_ for channel, ranks_ in zip(channels, heard, strict=True))


class _Visits(NamedTuple):
    """The links at which rows may wait for other rows, with receive sides as further links. A visit is one row at one
    link. Columns by visit: the row; whether this is the row's first link (`opens`); the link; and the most time in ps
    for which the row occupies this link or one of the next links that are counted with it (see `_heads`)."""

    row: Numbers
    opens: Numbers
    link: Numbers
    takes: Numbers


def _waits(program: Program, tables: LinkTables, loops: int, slots: int) -> tuple[Numbers, Numbers] | None:
    """Return two upper bounds in ps for each row: the time until its tail has passed the first link, and the time until
    the row has ended. Both count from its head's arrival at the first link. None if a time may exceed the clock's
    range."""
    (first, links), rows = program.hops, len(program)
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
    """Return how long each transfer occupies its receive side, in ps, int64 (rows,)."""
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
    """Return for each link the link at which waiting is counted: itself, or an earlier link that is on all its routes.

    Waiting at successive links is counted once: for each transfer ahead, the longest time that it takes on one of the
    links. At the link where a channel begins, only one transfer of the channel counts. So a link is joined to such a
    beginning only if it is at least as fast, because then nobody waits at it.
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
    """Return for each visit (a row at a link) an upper bound in ps of the time for which the row waits there for other
    rows; None if the clock's range may be exceeded."""
    row, opens, link, takes = visits
    if not len(row):
        return takes
    group = np.where(opens, 2 * program.channel[row].astype(np.int64), 2 * program.connection[row] + 1)
    _, number, many = np.unique(link * (int(group.max()) + 1) + group, return_inverse=True, return_counts=True)
    most, where = np.zeros(len(many), np.int64), np.zeros(len(many), np.int64)
    np.maximum.at(most, number, takes)
    where[number] = link
    ahead = np.minimum(many * loops, slots) if slots else many * loops
    ahead[number[opens]] = 1  # a channel that begins here has one transfer at a time here
    if float(most.max()) * float(ahead.sum()) >= NEVER:
        return None
    whole = np.zeros(int(where.max()) + 1, np.int64)
    np.add.at(whole, where, ahead * most)
    found: Numbers = whole[link] - most[number]
    return found
