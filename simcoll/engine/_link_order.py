"""Lay out programs for `link_kernel`, which takes links one after another, and decide whether it can run them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array, pieces
from simcoll.config.numba_loader import Loops
from simcoll.engine._kernel_run import NO_INDICES, KernelResult, KernelRun
from simcoll.engine.kernels import link_kernel
from simcoll.engine.kernels.link_records import BLOCK, LinkRun, Queued, Queues, SettingOut, Stretches, Waiting
from simcoll.engine.kernels.records import Servers
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER, NONE

MOST_LEVELS: Final = 64  # links one behind the other: where more are, ways lead round


class LinkOrder(NamedTuple):
    """The part that programs share whose columns are the same: `room` is how many wait at each of all links, the rest
    as in `LinkRun`."""

    links: Array
    room: Array
    routes: Stretches
    first: Array
    items: Array
    after: Array
    behind: Array


def serves(program: Program) -> bool:
    """Whether the kernel serves: links in turn, and nothing waits for what was received."""
    params = program.params
    plain = params.sharing == "fifo" and not params.barrier and program.views == 1 and len(program) > 0
    return plain and not (program.reads >= 0).any() and not (program.credit >= 0).any()


def by_link(run_: KernelRun) -> KernelResult:
    """Run a program link by link; none of its transfers ends where its links do not allow that."""
    program, loops = run_.program, run_.loops
    columns = (program.way, program.routes.hop, program.routes.links, program.channel_before)
    order = program.once("link order", columns, lambda: _order(program, run_.ways.follows(), loops))
    if order is None:
        return KernelResult(0, 0, ())
    plan, costs, net = run_.plan(), run_.costs(), run_.net()
    if (one := int(program.kind[0])) == program.kind.min() == program.kind.max():
        plan, net = plan._replace(kind=run_.give(NO_INDICES)), net._replace(service=net.service[one * net.rates :])
        costs = costs._replace(cap=costs.cap[one:])
    sides = np.bincount(program.side, minlength=run_.sides) if len(costs.receive) else np.zeros(run_.sides, np.int64)
    begin = np.concatenate([[0], np.cumsum(np.append(order.room, sides))])
    longest = int(np.diff(begin).max(initial=0))
    together = int(np.diff(order.first).max(initial=0))
    most = longest + together
    kernel = loops.like(link_kernel)
    which = int(begin[-1]), loops.compiled
    last = program.once("turns of the last run", columns, dict[tuple[int, bool], Any])  # which propose those of this
    if (turns := last.pop(which, None)) is None:
        turns = loops.room(int(begin[-1]))
        kernel.as_they_come(loops.give(begin), turns)
    blocks = run_.count // BLOCK + int((begin[1:] > begin[:-1]).sum()) + 1
    run = LinkRun(
        plan=plan,
        costs=costs,
        routes=Stretches(*run_.gives(*order.routes)),
        lead=run_.lead(),
        here=run_.give(program.arrivals[program.routes.src] if program.arrivals.any() else np.zeros(0, np.int64)),
        net=net,
        first=run_.give(order.first),
        items=run_.give(order.items),
        after=run_.give(order.after),
        behind=run_.give(order.behind),
        setting_out=SettingOut(loops.room(together, np.int64), loops.room(together), loops.fill(run_.links + 1, NONE)),
        waiting=Waiting(loops.room(most, np.int64), loops.room(most), loops.room(most)),
        queues=Queues(
            entries=loops.room(3 * BLOCK * blocks, np.int64),
            behind=run_.give(np.arange(1, blocks + 1, dtype=np.int32)),
            spare=loops.fill(1, 0),
            last=loops.fill(len(begin) - 1, 0),
            many=loops.fill(len(begin) - 1, 0),
            first=run_.give(begin),
            turns=turns,
        ),
        queued=Queued(loops.room(3 * longest, np.int64), loops.room(longest)),
        free=Servers(run_.freed(), run_.zeros(run_.sides)),
        links=run_.give(order.links),
        sides=run_.give(np.flatnonzero(sides).astype(np.int32)),
    )
    ended, latest = kernel.by_link(run)
    if latest < NEVER:  # else some did not come to all their links
        last[which] = turns
    return KernelResult(ended, int(latest), ())


def _order(program: Program, follows: Array, loops: Loops) -> LinkOrder | None:
    """None where ways lead round, or where a channel sets out at several links of which one serves others too: then
    none of their queues would be known before the others."""
    kernel, (src, _, hop, links) = loops.like(link_kernel), program.routes
    ways, level = (loops.give(hop), loops.give(links)), loops.fill(len(program.bandwidths), 0)
    begin = _set_out(src, hop, links)
    met = np.zeros(len(level), np.bool_)
    met[begin[begin != NONE]] = True
    behind = np.flatnonzero(program.channel_before != NONE)
    before = program.channel_before[behind]
    if met.any() and (begin[program.way[behind]] != begin[program.way[before]]).any():
        return None
    if not kernel.levels(*ways, level, MOST_LEVELS):
        return None
    routes, room = _in_stretches(program, ways, loops.give(follows), loops)
    waited = np.flatnonzero((room > 0) | met)
    waited = waited[np.argsort(np.asarray(level)[waited], kind="stable")]
    senders = program.schedule.participants
    stations = np.append(np.full(senders, NONE), waited).astype(np.int32)
    of_link = np.zeros(len(level) + 1, np.int32)
    of_link[waited] = np.arange(senders, len(stations))
    station = np.where(begin == NONE, src, of_link[begin]).astype(np.int32)[program.way]
    first = np.append(0, np.cumsum(np.bincount(station, minlength=len(stations))))
    found = loops.room(len(program))
    kernel.in_groups(loops.give(station), loops.give(first[:-1].copy()), found)
    items = np.asarray(found, np.int32)
    after, is_behind = (np.zeros(len(program) if len(behind) else 0, kind) for kind in (np.int32, np.bool_))
    if len(behind):
        place = np.empty(len(program), np.int32)
        place[items] = np.arange(len(items), dtype=np.int32)
        after[place[before]] = place[behind] + 1
        is_behind[place[behind]] = True
    return LinkOrder(stations, room, routes, first, items, after, is_behind)


def _in_stretches(program: Program, ways: tuple[Any, Any], follows: Any, loops: Loops) -> tuple[Stretches, Array]:
    """The ways in stretches, and how many transfers wait at each of all links."""
    kernel, count = loops.like(link_kernel), len(program.bandwidths)
    taken = loops.give(np.bincount(program.way, minlength=len(program.routes.src)))
    hop, before, room = loops.fill(len(ways[0]), 0), loops.fill(count, NONE), loops.fill(count, 0, np.int64)
    kernel.count_stretches(*ways, follows, taken, hop, room, before)
    last = loops.room(int(hop[-1]))
    kernel.stretches(*ways, follows, last)
    ahead, link = np.asarray(before, np.int32), np.arange(count, dtype=np.int32)
    chain = list[Array]()  # each link, that which it follows, …
    while (link != NONE).any():
        chain.insert(0, link)
        link = np.where(link == NONE, np.int32(NONE), ahead[link])
    links = np.stack(chain, axis=1)
    begin = np.append(0, np.cumsum((links != NONE).sum(axis=1))).astype(np.int32)
    columns = np.asarray(hop, np.int32), np.asarray(last, np.int32), begin, links[links != NONE]
    return Stretches(*columns), np.asarray(room, np.int64)


def _set_out(src: Array, hop: Array, links: Array) -> Array:
    """The first link of each way, where that is the first for several senders, or a later one for others; else NONE, as
    nobody but the sender has to be known for its queue."""
    some = np.flatnonzero(np.diff(hop) > 0)
    count = int(links.max(initial=-1)) + 1
    first = links[hop[some]]
    passed = (np.bincount(links[piece], minlength=count) for piece in pieces(len(links)))
    behind = sum(passed, np.zeros(count, np.int64)) > np.bincount(first, minlength=count)
    owner = np.full(count, NONE, np.int64)
    owner[first] = src[some]
    behind[first[owner[first] != src[some]]] = True
    begin = np.full(len(src), NONE, np.int32)
    begin[some] = np.where(behind[first], first, NONE)
    return begin
