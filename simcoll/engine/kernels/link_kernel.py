"""The loop of the fast engine that takes link by link, where no transfer waits for what another one brought.

Heads then come to a link from links before it only, never from those behind. So all that come to it are known, with
their times, as soon as the links before it are done, and it serves them in the order of (time, index): no event is
needed. What comes from one link comes in order, so only a few streams have to be merged, and memory is read in turn.
"""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.link_records import LinkRun, Queues, Waiting

NEVER = 2**62
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
def mark(hop: Any, links: Any, follows: Any, taken: Any, room: Any, marked: Any) -> None:
    """Set `marked` of each link of each way to 4 times its number and its marks; add to `room` of each link the
    transfers that wait there, of which `taken` go each way: those to which it comes behind several others."""
    for w in range(len(hop) - 1):
        for e in range(hop[w], hop[w + 1]):
            marked[e] = 4 * links[e]
            if e + 1 == hop[w + 1]:
                marked[e] += LAST
            elif follows[links[e + 1]]:
                marked[e] += FOLLOWED
            if e > hop[w] and not follows[links[e]]:
                room[links[e]] += taken[w]


@jit
def in_groups(group: Any, fill: Any, items: Any) -> None:
    """Put each number into the next place of its group; `fill` says where that of each group is."""
    for i in range(len(group)):
        items[fill[group[i]]] = i
        fill[group[i]] += 1


@jit
def by_link(run: LinkRun) -> Any:
    """Serve all transfers, link by link. Returns how many ended, and the latest time of all."""
    _, costs, _, lead, here, _, net, first, items, ways, after, start, waiting, queues, free, links, sides = run
    latest = 0
    for p in range(len(links)):
        size = streams(queues, links[p], waiting) if links[p] >= 0 else 0
        for j in range(first[p], first[p + 1]):
            if start[j] >= 0:  # else the one before it on its channel starts it
                start[j] = value(here, ways[j])
                size = push(waiting, size, start[j] + value(lead, ways[j]), items[j], -1 - j)
        while size:
            e = waiting.at[0]
            if e >= 0:
                i, at = item_at(queues, e)
                _, t = onward(i, at, queues.entries[3 * e], queues.entries[3 * e + 1], False, run)
                latest, size = max(latest, t), advance(queues, links[p], waiting, size)
                continue
            j = -1 - e  # sets out here
            sent, t = set_out(items[j], ways[j], waiting.times[0], run)
            latest, k = max(latest, t), after[j]
            if k >= 0:
                start[k] = max(sent, start[j] + value(costs.gap, ways[j]))
                waiting.times[0], waiting.items[0], waiting.at[0] = start[k] + value(lead, ways[k]), items[k], -1 - k
            else:
                size -= 1
                waiting.times[0], waiting.items[0] = waiting.times[size], waiting.items[size]
                waiting.at[0] = waiting.at[size]
            sink(waiting, size, 0)
    for p in range(len(sides)):
        side, k = sides[p], sides[p] + len(net.rate_of)
        size = streams(queues, k, waiting)
        while size:
            t = max(waiting.times[0], free.side[side]) + costs.receive[waiting.items[0]]
            free.side[side] = t
            latest, size = max(latest, t), advance(queues, k, waiting, size)
    return len(ways), latest


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
    plan, (_, cap, receive, _), _, _, _, marked, net, _, _, _, _, _, _, queues, free, _, _ = run
    kind, sent, marks = value(plan.kind, i), t, FOLLOWED
    while marks == FOLLOWED:
        link, marks = marked[e] >> 2, marked[e] & 3
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
        put(queues, marked[e] >> 2, t, tail, i, e)
    elif marks == LAST and value(receive, i):
        put(queues, plan.side[i] + len(net.rate_of), tail, tail, i, e)
    return sent, tail


@inline
def put(queues: Queues, server: Any, t: Any, tail: Any, i: Any, e: Any) -> None:
    """Transfer `i` comes to a server at `t`, which is link `e` of all ways."""
    k = queues.fill[server]
    entries = queues.entries
    entries[3 * k], entries[3 * k + 1], entries[3 * k + 2] = t, tail, i << 32 | e
    queues.fill[server] = k + 1


@inline
def item_at(queues: Queues, e: Any) -> Any:
    """The transfer of an entry of a queue, and the place of its link among those of all ways."""
    word = queues.entries[3 * e + 2]
    return word >> 32, word & 0xFFFFFFFF


# --- streams: a heap of the first entries of stretches that stand in order ---


@inner
def streams(queues: Queues, server: Any, waiting: Waiting) -> Any:
    """Enter the first entry of each stretch of a queue; returns how many there are."""
    size, before = 0, -1
    for e in range(queues.first[server], queues.fill[server]):
        if before < 0 or stands_before(queues, e, before):
            size = push(waiting, size, queues.entries[3 * e], item_at(queues, e)[0], e)
        before = e
    return size


@inline
def advance(queues: Queues, server: Any, waiting: Waiting, size: Any) -> Any:
    """Put the next of its stretch in the place of the first entry; returns how many stretches are left."""
    e = waiting.at[0]
    if e + 1 < queues.fill[server] and not stands_before(queues, e + 1, e):
        waiting.times[0], waiting.items[0] = queues.entries[3 * e + 3], item_at(queues, e + 1)[0]
        waiting.at[0] = e + 1
    else:
        size -= 1
        waiting.times[0], waiting.items[0], waiting.at[0] = waiting.times[size], waiting.items[size], waiting.at[size]
    sink(waiting, size, 0)
    return size


@inline
def stands_before(queues: Queues, a: Any, b: Any) -> Any:
    """Whether entry `a` of a queue is to be served before entry `b`: no transfer comes to it twice."""
    entries = queues.entries
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
