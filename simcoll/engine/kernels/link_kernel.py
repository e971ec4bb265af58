"""The loop of the fast engine that takes link by link, where no transfer waits for what another one brought.

Heads then come to a link from links before it only, never from those behind. So all that come to it are known, with
their times, as soon as the links before it are done, and it serves them in the order of (time, index): no event is
needed. What comes from one link comes in order, so that few streams have to be merged.
"""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.records import LinkRun, Queues

NEVER = 2**62
jit, inner, inline = jit_for(__name__), jit_for(__name__, inner=True), jit_for(__name__, inline=True)
heaps, waits = load_like(__name__, plain_heap), load_like(__name__, plain_waits)
value = waits.value


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
def count(hop: Any, links: Any, follows: Any, taken: Any, from_first: Any, room: Any) -> None:
    """Add to `room` of each link the transfers that wait there, of which `taken` go each way: those whose link before
    it is another for other transfers, and at the first link if `from_first`."""
    for w in range(len(hop) - 1):
        for e in range(hop[w], hop[w + 1]):
            if (e > hop[w] and not follows[links[e]]) or (e == hop[w] and from_first):
                room[links[e]] += taken[w]


@jit
def in_groups(group: Any, fill: Any, items: Any) -> None:
    """Put each number into the next place of its group; `fill` says where that of each group is."""
    for i in range(len(group)):
        items[fill[group[i]]] = i
        fill[group[i]] += 1


@jit
def turned_round(before: Any, after: Any) -> None:
    """Set `after` of each transfer to the one that has it `before`."""
    for i in range(len(before)):
        if before[i] >= 0:
            after[before[i]] = i


@jit
def by_link(run: LinkRun) -> Any:
    """Serve all transfers, link by link. Returns how many ended, and the latest time of all."""
    plan, costs, routes, lead, here, _, net, first, items, after, start, heap, _, _, queues, free, links, sides = run
    queue, latest = queues.queue, 0
    for sender in range(len(first) - 1):
        size = 0
        for e in range(first[sender], first[sender + 1]):
            i = items[e]
            if len(after) == 0 or start[i] >= 0:  # else the one before it on its channel starts it
                t = value(here, plan.way[i])
                if len(after):
                    start[i] = t
                size = heaps.push(heap, size, t + value(lead, plan.way[i]), i)
        while size:
            t, i = heap.times[0], heap.items[0]
            size = heaps.pop(heap, size)
            if len(after) == 0 and routes.hop[plan.way[i]] < routes.hop[plan.way[i] + 1]:
                put(queues, routes.links[routes.hop[plan.way[i]]], t, i)
                continue
            sent, t = onward(i, 0, t, 0, run)
            latest = max(latest, t)
            if len(after) and after[i] >= 0:
                start[after[i]] = max(sent, start[i] + value(costs.gap, plan.way[i]))
                size = heaps.push(heap, size, start[after[i]] + value(lead, plan.way[after[i]]), after[i])
    for p in range(len(links)):
        link = links[p]
        merge(queues, queues.first[link], queues.fill[link])
        for e in range(queues.first[link], queues.fill[link]):
            i = queue.items[e]
            _, t = onward(i, run.at[i], queue.times[e], run.tail[i], run)
            latest = max(latest, t)
    for p in range(len(sides)):
        side = sides[p] + len(net.rate_of)
        merge(queues, queues.first[side], queues.fill[side])
        for e in range(queues.first[side], queues.fill[side]):
            i = queue.items[e]
            t = max(queue.times[e], free.side[sides[p]]) + costs.receive[i]
            free.side[sides[p]] = t
            latest = max(latest, t)
    return len(plan.way), latest


@inner
def onward(i: Any, at: Any, t: Any, tail: Any, run: LinkRun) -> Any:
    """The head of transfer `i` comes at `t` to link `at` of its way when that serves it, and passes all that follow it;
    then it waits at the next, or at its receive side. Returns when it was sent, and the latest time so far; NEVER is
    all that is beyond the range of the clock."""
    plan, (_, cap, receive, _), (hop, links), _, _, follows, net, _, _, _, _, _, _, _, queues, free, _, _ = run
    w, kind, sent = plan.way[i], plan.kind[i], t + 1
    e, behind, onto = hop[w] + at, hop[w + 1], True
    if e == behind:  # a local copy without a memory link
        tail = sent
    while e < behind and onto:
        link = links[e]
        s = net.service[kind * net.rates + net.rate_of[link]]
        r = max(t, free.link[link])
        free.link[link] = r + s
        if at == 0:
            tail = r + max(s, value(cap, kind))
            sent = tail
        else:
            tail = max(r + s, tail)
        if tail >= NEVER:  # later sums must not come out negative
            return NEVER, NEVER
        t, tail = r + net.latency[link], tail + net.latency[link]  # of head and tail at the next link
        at += 1
        e += 1
        onto = e < behind and follows[links[e]]
    if e < behind:
        run.at[i], run.tail[i] = at, tail
        put(queues, links[e], t, i)
    elif value(receive, i):
        put(queues, plan.side[i] + len(net.rate_of), tail, i)
    return sent, tail


@inline
def put(queues: Queues, server: Any, t: Any, i: Any) -> None:
    """Transfer `i` comes to a server at `t`."""
    e = queues.fill[server]
    queues.queue.times[e], queues.queue.items[e] = t, i
    queues.fill[server] = e + 1


@inline
def earlier(queue: Any, a: Any, b: Any) -> Any:
    """Whether entry `a` of a queue is to be served before entry `b`."""
    times, items = queue.times, queue.items
    return times[a] < times[b] or (times[a] == times[b] and items[a] < items[b])


@inner
def merge(queues: Queues, first: Any, end: Any) -> None:
    """Sort the entries from `first` up to `end`, by merging those that stand in order already."""
    (times, items, _), (spare_times, spare_items, _), queue = queues.queue, queues.spare, queues.queue
    runs = 2
    while runs > 1:
        a, runs, out = first, 0, 0
        while a < end:
            b = a + 1
            while b < end and not earlier(queue, b, b - 1):
                b += 1
            if a == first and b == end:
                return
            c = b
            while c < end and (c == b or not earlier(queue, c, c - 1)):
                c += 1
            x, y = a, b
            while x < b or y < c:
                if y == c or (x < b and not earlier(queue, y, x)):
                    spare_times[out], spare_items[out] = times[x], items[x]
                    x += 1
                else:
                    spare_times[out], spare_items[out] = times[y], items[y]
                    y += 1
                out += 1
            a = c
            runs += 1
        for k in range(out):
            times[first + k], items[first + k] = spare_times[k], spare_items[k]
