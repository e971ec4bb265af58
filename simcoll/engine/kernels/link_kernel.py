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
from simcoll.engine.kernels.link_records import BLOCK, LinkRun, Queued, Queues, Waiting

NEVER = 2**62
LAST_ONE, GONE = -1, -2  # of those that set out: nobody stands behind; it has
LAST, FOLLOWED, BEYOND = 1, 2, 3  # marks of a link on a way: the last one; the next one follows it; too late
jit, inner, inline = jit_for(__name__), jit_for(__name__, inner=True), jit_for(__name__, inline=True)
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
def mark(hop: Any, links: Any, follows: Any, taken: Any, room: Any, marks: Any) -> None:
    """Set the `marks` of each link of each way; add to `room` of each link the transfers that wait there, of which
    `taken` go each way: those to which it comes behind several others."""
    for w in range(len(hop) - 1):
        for e in range(hop[w], hop[w + 1]):
            if e + 1 == hop[w + 1]:
                marks[e] = LAST
            elif follows[links[e + 1]]:
                marks[e] = FOLLOWED
            if e > hop[w] and not follows[links[e]]:
                room[links[e]] += taken[w]


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
    first, items, ways, after, links, sides = run.first, run.items, run.ways, run.after, run.links, run.sides
    waiting, queues, queued = run.waiting, run.queues, run.queued
    latest = 0
    for p in range(len(links)):
        size, many, turn, served = 0, 0, 0, 0
        if links[p] >= 0:
            many, turn = queues.many[links[p]], queues.first[links[p]]
            size = streams(queues, links[p], queued, waiting)
        for j in range(first[p], first[p + 1]):
            if run.opens[j]:  # else the one before it on its channel starts it
                size = join(j, p, value(here, ways[j]) + value(lead, ways[j]), size, run)
        while size:
            e = waiting.at[0]
            if e >= 0:
                i, at = item_at(queued, e)
                queues.turns[turn + queued.number[e]] = served
                _, t = onward(i, at, queued.entries[3 * e], queued.entries[3 * e + 1], False, run)
                latest, size = max(latest, t), advance(queued, many, waiting, size)
                served += 1
                continue
            j = -1 - e  # sets out here
            began = waiting.times[0] - value(lead, ways[j])
            sent, t = set_out(items[j], ways[j], waiting.times[0], run)
            latest, size = max(latest, t), leave(j, p, size, run)
            if after[j] >= 0:
                k = after[j]
                size = join(k, p, max(sent, began + value(costs.gap, ways[j])) + value(lead, ways[k]), size, run)
    for p in range(len(sides)):
        side, k = sides[p], sides[p] + len(net.rate_of)
        size, served = streams(queues, k, queued, waiting), 0
        while size:
            queues.turns[queues.first[k] + queued.number[waiting.at[0]]] = served
            t = max(waiting.times[0], free.side[side]) + costs.receive[waiting.items[0]]
            free.side[side] = t
            latest, size = max(latest, t), advance(queued, queues.many[k], waiting, size)
            served += 1
    return len(ways), latest


@inline
def join(j: Any, p: Any, t: Any, size: Any, run: LinkRun) -> Any:
    """Transfers that set out at sender or link p by one link mostly do so in the order in which they are ready: number
    `j`, which is at `t`, stands behind the last of them, or else is entered alone. Returns how many are entered."""
    times, behind, ends = run.setting_out
    items, (hop, taken, _), way, own = run.items, run.routes, run.ways[j], run.first[p]
    link = taken[hop[way]] if hop[way] < hop[way + 1] else -1
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
    """The head of transfer `i` comes at `t` to link `e` of all ways when that serves it, and passes all that follow it;
    then it waits at the next, or at its receive side. It is the first link if the way `opens`. Returns when it was
    sent, and the latest time so far; NEVER is all that is beyond the range of the clock."""
    plan, (_, cap, receive, _), net, queues = run.plan, run.costs, run.net, run.queues
    (_, links, passes), free = run.routes, run.free
    kind, sent, marks = value(plan.kind, i), t, FOLLOWED
    while marks == FOLLOWED:
        link, marks = links[e], passes[e]
        s = net.service[kind * net.rates + net.rate_of[link]]
        r = max(t, free.link[link])
        free.link[link] = r + s
        if opens:
            tail = r + max(s, value(cap, kind))
            sent, opens = tail, False
        else:
            tail = max(r + s, tail)
        if tail >= NEVER:  # later sums must not come out negative
            sent, tail, marks = NEVER, NEVER, BEYOND
            break
        t, tail = r + net.latency[link], tail + net.latency[link]  # of head and tail at the next link
        e += 1
    if marks == 0:
        put(queues, links[e], t, tail, i, e)
    elif marks == LAST and value(receive, i):
        put(queues, plan.side[i] + len(net.rate_of), tail, tail, i, e)
    return sent, tail


@inline
def put(queues: Queues, server: Any, t: Any, tail: Any, i: Any, e: Any) -> None:
    """Transfer `i` comes to a server at `t`, which is link `e` of all ways."""
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
    """The transfer of an entry, and the place of its link among those of all ways."""
    word = queued.entries[3 * e + 2]
    return word >> 32, word & 0xFFFFFFFF


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
