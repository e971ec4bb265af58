"""The loop of the fast engine that takes link by link, where no transfer waits for what another one brought.

Heads then come to a link from links before it only, never from those behind. So all that come to it are known, with
their times, as soon as the links before it are done, and it serves them in the order of (time, index): no event is
needed. What comes from one link comes in order, so only a few streams have to be merged. Where a program of the same
columns was run before, those that wait at a link are first put in the order in which it served them then: mostly that
is the order again, and there is one stream.
"""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.link_records import BLOCK, LinkRun, Queued, Queues, Stretches, Waiting

NEVER = 2**62
LAST_ONE, GONE = -1, -2  # of those that set out: nobody stands behind; it has
AHEAD = 64  # entries of a queue whose ways are asked for at once
jit, inner, inline = jit_for(__name__), jit_for(__name__), jit_for(__name__, inline=True)
value = load_like(__name__, plain_waits).value


@jit
def levels(hop: Any, links: Any, level: Any, most: Any) -> Any:
    """Raise `level` of each link, filled with 0, until it grows along every way. Returns whether that ends with levels
    of `most` at the most; it never does where ways lead round."""
    moved = True
    while moved:
        moved = False
        for w in range(len(hop) - 1):
            for e in range(hop[w] + 1, hop[w + 1]):
                if level[links[e]] <= level[links[e - 1]]:
                    level[links[e]], moved = level[links[e - 1]] + 1, True
                    if level[links[e]] > most:
                        return False
    return True


@jit
def count_stretches(hop: Any, links: Any, follows: Any, taken: Any, first: Any, room: Any, before: Any) -> None:
    """Set `first` of each way to the number of stretches of the ways ahead of it, and `before` of each link that
    `follows` one to that; add to `room` of each link the transfers that wait there, of which `taken` go each way: those
    to which it comes behind several others."""
    for w in range(len(hop) - 1):
        count = first[w]
        for e in range(hop[w], hop[w + 1]):
            if not follows[links[e]]:
                count += 1
                if e > hop[w]:
                    room[links[e]] += taken[w]
            else:
                before[links[e]] = links[e - 1]
        first[w + 1] = count


@jit
def stretches(hop: Any, links: Any, follows: Any, last: Any) -> None:
    """Set `last` of each stretch of each way: see `Stretches`."""
    count = 0
    for w in range(len(hop) - 1):
        for e in range(hop[w], hop[w + 1]):
            if e + 1 == hop[w + 1]:
                last[count] = 2 * links[e] + 1
                count += 1
            elif not follows[links[e + 1]]:
                last[count] = 2 * links[e]
                count += 1


@jit
def in_groups(group: Any, fill: Any, items: Any) -> None:
    """Put each number into the next place of its group; `fill` says where that of each group is."""
    for i in range(len(group)):
        items[fill[group[i]]] = i
        fill[group[i]] += 1


@jit
def as_they_come(first: Any, turns: Any) -> None:
    """Let those that wait at each server be served in the order in which they come."""
    for s in range(len(first) - 1):
        for k in range(first[s], first[s + 1]):
            turns[k] = k - first[s]


@jit
def by_link(run: LinkRun) -> Any:
    """Serve all transfers, link by link. Returns how many ended, and the latest time of all."""
    costs, lead, here, net, free = run.costs, run.lead, run.here, run.net, run.free
    first, items, after, links, sides, way_of = run.first, run.items, run.after, run.links, run.sides, run.plan.way
    waiting, queues, queued = run.waiting, run.queues, run.queued
    latest = 0
    for p in range(len(links)):
        size, many, turn, served, near = 0, 0, 0, 0, 0
        if links[p] >= 0:
            many, turn = queues.many[links[p]], queues.first[links[p]]
            size = streams(queues, links[p], queued, waiting)
            if size == 1 and first[p] == first[p + 1]:  # served as in the last run
                latest, size = max(latest, in_turn(queued, many, run)), 0
        for j in range(first[p], first[p + 1]):
            if not value(run.behind, j):  # else the one before it on its channel starts it
                way = way_of[items[j]]
                size = join(j, p, value(here, way) + value(lead, way), size, run)
        while size:
            e = waiting.at[0]
            if e >= 0:
                if e >= near:
                    near = ask(queued, e, many, run)
                i, at = item_at(queued, e)
                queues.turns[turn + queued.number[e]] = served
                _, t = onward(i, at, queued.entries[3 * e], queued.entries[3 * e + 1], False, run)
                latest, size = max(latest, t), advance(queued, many, waiting, size)
                served += 1
                continue
            j = -1 - e  # sets out here
            way = way_of[items[j]]
            began = waiting.times[0] - value(lead, way)
            sent, t = set_out(items[j], way, waiting.times[0], run)
            latest, size = max(latest, t), leave(j, p, size, run)
            k = value(after, j) - 1
            if k >= 0:
                ready = max(sent, began + value(costs.gap, way)) + value(lead, way_of[items[k]])
                size = join(k, p, ready, size, run)
    for p in range(len(sides)):
        side, k = sides[p], sides[p] + len(net.rate_of)
        size, served = streams(queues, k, queued, waiting), 0
        while size:
            queues.turns[queues.first[k] + queued.number[waiting.at[0]]] = served
            t = max(waiting.times[0], free.side[side]) + costs.receive[waiting.items[0]]
            free.side[side] = t
            latest, size = max(latest, t), advance(queued, queues.many[k], waiting, size)
            served += 1
    return len(items), latest


@inner
def in_turn(queued: Queued, many: Any, run: LinkRun) -> Any:
    """Serve a queue of `many` that stands in order; returns the latest time of these."""
    latest, near = 0, 0
    for e in range(many):
        if e >= near:
            near = ask(queued, e, many, run)
        i, at = item_at(queued, e)
        _, t = onward(i, at, queued.entries[3 * e], queued.entries[3 * e + 1], False, run)
        latest = max(latest, t)
    return latest


@inline
def join(j: Any, p: Any, t: Any, size: Any, run: LinkRun) -> Any:
    """Transfers that set out at sender or link p by one link mostly do so in the order in which they are ready: number
    `j`, which is at `t`, stands behind the last of them, or else is entered alone. Returns how many are entered."""
    times, behind, ends = run.setting_out
    items, hop, way, own = run.items, run.routes.hop, run.plan.way[run.items[j]], run.first[p]
    link = begins_at(run.routes, hop[way]) if hop[way] < hop[way + 1] else len(ends) - 1
    last = ends[link]
    times[j - own], behind[j - own], ends[link] = t, LAST_ONE, j
    if last >= own and behind[last - own] == LAST_ONE:
        before = times[last - own]
        if before < t or (before == t and items[last] < items[j]):
            behind[last - own] = j
            return size
    return push(run.waiting, size, t, items[j], -1 - j)


@inline
def leave(j: Any, p: Any, size: Any, run: LinkRun) -> Any:
    """Number `j`, the first entry, has set out: the one that stands behind it takes its place."""
    (times, behind, _), waiting, own = run.setting_out, run.waiting, run.first[p]
    k = behind[j - own]
    behind[j - own] = GONE
    if k >= 0:
        waiting.times[0], waiting.items[0], waiting.at[0] = times[k - own], run.items[k], -1 - k
    else:
        size -= 1
        waiting.times[0], waiting.items[0], waiting.at[0] = waiting.times[size], waiting.items[size], waiting.at[size]
    sink(waiting, size, 0)
    return size


@inline
def set_out(i: Any, way: Any, t: Any, run: LinkRun) -> Any:
    """Transfer `i` is ready at `t`; returns as `onward` does."""
    hop, receive = run.routes.hop, run.costs.receive
    sent, last = t + 1, t + 1
    if hop[way] < hop[way + 1]:
        sent, last = onward(i, hop[way], t, 0, True, run)
    elif value(receive, i):  # a local copy without a memory link
        put(run.queues, run.plan.side[i] + len(run.net.rate_of), t + 1, 0, i, 0)
    return sent, last


@inline
def onward(i: Any, e: Any, t: Any, tail: Any, opens: Any, run: LinkRun) -> Any:
    """The head of transfer `i` comes at `t` to stretch `e` of all ways when its first link serves it, and passes all
    that follow it; then it waits at the next, or at its receive side. It is the first stretch if the way `opens`.
    Returns when it was sent, and the latest time so far; NEVER is all that is beyond the range of the clock."""
    plan, (_, cap, receive, _), net, queues = run.plan, run.costs, run.net, run.queues
    routes, free = run.routes, run.free
    kind, sent, stretch = value(plan.kind, i), t, routes.last[e]
    for k in range(routes.begin[stretch >> 1], routes.begin[(stretch >> 1) + 1]):
        link = routes.links[k]
        s = net.service[kind * net.rates + net.rate_of[link]]
        r = max(t, free.link[link])
        free.link[link] = r + s
        if opens:
            tail = r + max(s, value(cap, kind))
            sent, opens = tail, False
        else:
            tail = max(r + s, tail)
        if tail >= NEVER:  # later sums must not come out negative
            sent, tail = NEVER, NEVER
            break
        t, tail = r + net.latency[link], tail + net.latency[link]  # of head and tail at the next link
    if tail < NEVER:
        if stretch & 1 == 0:
            put(queues, begins_at(routes, e + 1), t, tail, i, e + 1)
        elif value(receive, i):
            put(queues, plan.side[i] + len(net.rate_of), tail, tail, i, e)
    return sent, tail


@inline
def begins_at(routes: Stretches, e: Any) -> Any:
    """The first link of stretch `e` of all ways."""
    return routes.links[routes.begin[routes.last[e] >> 1]]


@inline
def put(queues: Queues, server: Any, t: Any, tail: Any, i: Any, e: Any) -> None:
    """Transfer `i` comes to a server at `t`, with stretch `e` of all ways."""
    entries, many = queues.entries, queues.many[server]
    within = many % BLOCK
    if within == 0:
        block, before = queues.spare[0], queues.last[server]
        queues.spare[0] = queues.behind[block]
        queues.last[server] = block
        if many:
            queues.behind[block] = queues.behind[before]  # the last one leads to the first
            queues.behind[before] = block
        else:
            queues.behind[block] = block
    k = queues.last[server] * BLOCK + within
    entries[3 * k], entries[3 * k + 1], entries[3 * k + 2] = t, tail, i << 32 | e
    queues.many[server] = many + 1


@inner
def collect(queues: Queues, server: Any, queued: Queued) -> None:
    """Put those that wait at a server in the order of their turns, and spare the blocks that they were in."""
    entries, found, last, many = queues.entries, queued.entries, queues.last[server], queues.many[server]
    if many == 0:
        return
    block, turn = queues.behind[last], queues.first[server]
    known = turn + many == queues.first[server + 1]  # else the clock ended for some
    for n in range(many):
        if n and n % BLOCK == 0:
            block = queues.behind[block]
        k, e = block * BLOCK + n % BLOCK, queues.turns[turn + n] if known else n
        found[3 * e], found[3 * e + 1], found[3 * e + 2] = entries[3 * k], entries[3 * k + 1], entries[3 * k + 2]
        queued.number[e] = n
    begin = queues.behind[last]
    queues.behind[last] = queues.spare[0]
    queues.spare[0] = begin


@inline
def item_at(queued: Queued, e: Any) -> Any:
    """The transfer of an entry, and the place of its stretch among those of all ways."""
    word = queued.entries[3 * e + 2]
    return word >> 32, word & 0xFFFFFFFF


@inner
def ask(queued: Queued, e: Any, many: Any, run: LinkRun) -> Any:
    """Look at the ways of the next entries of a queue of `many`, from `e` on; returns which are the next. They lie far
    apart: memory brings what is asked for at once in hardly more time than one of them, which would be waited for."""
    end, seen = min(many, e + AHEAD), 0
    for k in range(e, end):
        seen |= run.routes.last[queued.entries[3 * k + 2] & 0xFFFFFFFF]
    return end if seen >= 0 else many  # always the first, which a compiler must not know


# --- streams: a heap of the first entries of stretches that stand in order ---


@inner
def streams(queues: Queues, server: Any, queued: Queued, waiting: Waiting) -> Any:
    """Enter the first entry of each stretch of those that wait at a server; returns how many stretches there are."""
    collect(queues, server, queued)
    size = 0
    for e in range(queues.many[server]):
        if e == 0 or stands_before(queued, e, e - 1):
            size = push(waiting, size, queued.entries[3 * e], item_at(queued, e)[0], e)
    return size


@inline
def advance(queued: Queued, many: Any, waiting: Waiting, size: Any) -> Any:
    """Put the next of its stretch in the place of the first entry of `many`; returns how many stretches are left."""
    e = waiting.at[0]
    if e + 1 < many and not stands_before(queued, e + 1, e):
        waiting.times[0], waiting.items[0] = queued.entries[3 * e + 3], item_at(queued, e + 1)[0]
        waiting.at[0] = e + 1
    else:
        size -= 1
        waiting.times[0], waiting.items[0], waiting.at[0] = waiting.times[size], waiting.items[size], waiting.at[size]
    sink(waiting, size, 0)
    return size


@inline
def stands_before(queued: Queued, a: Any, b: Any) -> Any:
    """Whether entry `a` of a queue is to be served before entry `b`: no transfer comes to it twice."""
    entries = queued.entries
    return entries[3 * a] < entries[3 * b] or (
        entries[3 * a] == entries[3 * b] and entries[3 * a + 2] < entries[3 * b + 2]
    )


@inline
def comes_before(waiting: Waiting, a: Any, b: Any) -> Any:
    """Whether entry `a` of the heap is to be served before entry `b`."""
    times, items, _ = waiting
    return times[a] < times[b] or (times[a] == times[b] and items[a] < items[b])


@inner
def push(waiting: Waiting, size: Any, t: Any, i: Any, e: Any) -> Any:
    """Enter transfer `i`, which comes at `t`; returns the new size."""
    times, items, at = waiting
    k = size
    while k > 0:
        above = (k - 1) >> 2
        if times[above] < t or (times[above] == t and items[above] < i):
            break
        times[k], items[k], at[k] = times[above], items[above], at[above]
        k = above
    times[k], items[k], at[k] = t, i, e
    return size + 1


@inner
def sink(waiting: Waiting, size: Any, k: Any) -> None:
    """Move entry `k` down to where it belongs."""
    times, items, at = waiting
    t, i, e = times[k], items[k], at[k]
    while True:
        below = 4 * k + 1
        if below >= size:
            break
        for other in range(below + 1, min(below + 4, size)):
            if comes_before(waiting, other, below):
                below = other
        if t < times[below] or (t == times[below] and i < items[below]):
            break
        times[k], items[k], at[k] = times[below], items[below], at[below]
        k = below
    times[k], items[k], at[k] = t, i, e
