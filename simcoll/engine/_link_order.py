"""Programs laid out for the kernel that takes link by link, and whether it serves."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array
from simcoll.config.numba_loader import Loops
from simcoll.engine._kernel_run import NO_TIMES, KernelResult, KernelRun
from simcoll.engine.kernels import link_kernel
from simcoll.engine.kernels.records import Heap, LinkRun, Queues, Routes, Servers
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NONE

MOST_LEVELS: Final = 64  # links one behind the other: where more are, ways lead round


class LinkOrder(NamedTuple):
    """The part that programs share whose columns are the same: the links that are waited at, each behind all from which
    heads come to it; where the queue of each link begins, and how many wait there; the transfers of each sender and
    the next of each one's channel."""

    links: Array
    room: Array
    first: Array
    items: Array
    after: Array


def serves(program: Program) -> bool:
    """Whether the kernel serves: links in turn, and nothing waits for what was received."""
    params = program.params
    plain = params.sharing == "fifo" and not params.barrier and program.views == 1 and len(program) > 0
    return plain and not (program.reads >= 0).any() and not (program.credit >= 0).any()


def by_link(run_: KernelRun) -> KernelResult:
    """Run a program link by link; none of its transfers ends where its links do not allow that."""
    program, loops = run_.program, run_.loops
    columns = (program.way, program.routes.hop, program.routes.links, program.channel_before)
    follows = run_.ways.follows()
    order = program.once("link order", columns, lambda: _order(program, follows, loops))
    if order is None:
        return KernelResult(0, 0, ())
    costs = run_.costs()
    sides = np.bincount(program.side, minlength=run_.sides) if len(costs.receive) else np.zeros(run_.sides, np.int64)
    first = np.concatenate([[0], np.cumsum(np.append(order.room, sides))])
    longest = int(np.diff(first).max(initial=0))
    chained, count = len(order.after) > 0, run_.count
    start = np.where(program.channel_before == NONE, 0, NONE) if chained else NO_TIMES
    nowhere = run_.fill(0, NONE)
    run = LinkRun(
        plan=run_.plan(),
        costs=costs,
        routes=Routes(*run_.gives(*program.routes[2:])),
        lead=run_.lead(),
        here=run_.give(program.arrivals[program.routes.src] if program.arrivals.any() else NO_TIMES),
        follows=run_.give(follows),
        net=run_.net(),
        first=run_.give(order.first),
        items=run_.give(order.items),
        after=run_.give(order.after),
        start=run_.give(start.astype(np.int64)),
        heap=run_.heap(int(np.diff(order.first).max(initial=0))),
        at=loops.fill(count, 0, np.int8),  # a way has not more links than levels
        tail=loops.room(count, np.int64),
        queues=Queues(
            queue=Heap(loops.room(int(first[-1]), np.int64), loops.room(int(first[-1])), nowhere),
            spare=Heap(loops.room(longest, np.int64), loops.room(longest), nowhere),
            first=run_.give(first[:-1]),
            fill=run_.give(first[:-1].copy()),
        ),
        free=Servers(run_.freed(), run_.zeros(run_.sides)),
        links=run_.give(order.links),
        sides=run_.give(np.flatnonzero(sides).astype(np.int32)),
    )
    ended, latest = loops.like(link_kernel).by_link(run)
    return KernelResult(ended, int(latest), ())


def _order(program: Program, follows: Array, loops: Loops) -> LinkOrder | None:
    """None where ways lead round, or where channels make a link wait that others come to from elsewhere."""
    kernel, (src, _, hop, links) = loops.like(link_kernel), program.routes
    count, ways = len(program.bandwidths), (loops.give(hop), loops.give(links))
    level = loops.fill(count, 0)
    if not kernel.levels(*ways, level, MOST_LEVELS):
        return None
    chained = bool((program.channel_before >= 0).any())
    if chained and not _own_first(src, hop, links):
        return None
    taken = np.bincount(program.way, minlength=len(src))
    room = loops.fill(count, 0, np.int64)
    kernel.count(*ways, loops.give(follows), loops.give(taken), not chained, room)
    waited = np.flatnonzero(np.asarray(room))
    by_level = waited[np.argsort(np.asarray(level)[waited], kind="stable")].astype(np.int32)
    first = np.append(0, np.cumsum(np.bincount(program.src, minlength=program.schedule.participants)))
    items, after = loops.room(len(program)), loops.fill(len(program) if chained else 0, NONE)
    kernel.in_groups(loops.give(program.src), loops.give(first[:-1].copy()), items)
    if chained:
        kernel.turned_round(loops.give(program.channel_before), after)
    columns = (np.asarray(column, np.int32) for column in (items, after))
    return LinkOrder(by_level, np.asarray(room, np.int64), first, *columns)


def _own_first(src: Array, hop: Array, links: Array) -> bool:
    """Whether every link that is the first of a way is that of one sender only, and never a later one."""
    begins = hop[:-1][np.diff(hop) > 0]
    first, sender = links[begins], src[np.diff(hop) > 0]
    later = np.ones(len(links), np.bool_)
    later[begins] = False
    owners = len(np.unique(first.astype(np.int64) * (int(src.max(initial=0)) + 1) + sender))
    return owners == len(np.unique(first)) and not np.isin(np.unique(first), np.unique(links[later])).any()
