"""The loop of the fast engine where links serve whole chunks in turn (`fifo`); see the rules in `timing_model`."""

from __future__ import annotations

import math
from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.records import FifoRun, Heap, LinkHistory, LinkLines

NEVER = 2**62
SIDE = plain_waits.SIDE
jit, inner, inline = jit_for(__name__), jit_for(__name__), jit_for(__name__, inline=True)
heaps, waits = load_like(__name__, plain_heap), load_like(__name__, plain_waits)
value = waits.value


@jit
def fifo(run: FifoRun, changes: LinkHistory | None) -> Any:
    """Serve whole chunks by (time the head came, index). Returns how many transfers ended, and the latest time of all.

    Without `changes`, numba leaves out all that depends on them.
    """
    progress, (_, _, side), (_, _, receive, _), _, _, _, _, (_, free_side), _, _, lines = run
    state, heap, arrive, queue = progress.state, progress.starts.heap, progress.times.arrive, progress.tasks.queue
    times, items, ended, latest, size = heap.times, heap.items, 0, 0, waits.begin(progress)
    in_lines = len(lines.behind) > 0
    if in_lines:
        size = line_up_all(size, lines, heap)
    while size:
        t, i = times[0], items[0]
        if t > progress.until:
            latest = max(latest, t)
            break
        behind = lines.behind[i] if in_lines else -1
        if behind >= 0:
            times[0], items[0], lines.behind[i] = lines.came[behind], behind, -1
            heaps.sift_down(heap, size, 0)
        else:
            size = heaps.pop(heap, size)
            if in_lines:
                leave(i, run)
        if state[i] == SIDE:
            t = max(t, free_side[side[i]]) + receive[i]
            free_side[side[i]] = t
            there = True
        else:
            there, t, latest, size = travel(i, t, max(latest, t), run, changes, size)
            if there and len(arrive):
                arrive[i] = t
            if there and value(receive, i):
                state[i], there = SIDE, False
                size = heaps.push(heap, size, t, i)
        if there:
            latest = max(latest, t)
            size = waits.finish(i, t, progress, size)
            ended += 1
        if queue[0]:
            size = waits.follow_up(progress, size)
    return ended, latest


@inline
def travel(i: Any, t: Any, latest: Any, run: FifoRun, changes: LinkHistory | None, size: Any) -> Any:
    """The head of transfer `i` comes to its next link at `t`, and passes that and those that follow it. Returns whether
    its tail is behind the last link, when, the latest time, and the heap's size.

    A link that `follows` another needs no event. All heads that come to it come from that other
    link, directly, so they come in the order in which that served them: it serves one after the other, each for at
    least 1 ps, and its latency is the same for all. Thus no head comes to the second link between two of them, nor two
    at once, and how it will serve a head is known as soon as the first link has begun to serve it.
    """
    progress, (way, kinds, _), (gap, cap, _, _), (hop, links), follows, net, servers, (free_link, _), hops, heads = run[
        :-1
    ]
    (rate_of, latency, service, rates), (hop_begin, hop_end, first_hop) = net, hops
    state, heap, when = progress.state, progress.starts.heap, progress.starts.when
    w, kind, at, again = way[i], kinds[i], state[i], -1
    if changes is not None:
        w = set_out(i, t, w, changes) if at == 0 else changes.turns.taken[i]
    e, behind, tail, onward = hop[w] + at, hop[w + 1], when[i], True
    while onward and e < behind:
        link = links[e]
        server = link % servers
        waits.note(heads, link, t)
        s = service[kind * rates + rate_of[link]]
        r = max(t, free_link[server])
        if changes is not None and changes.first[link] < changes.first[link + 1]:
            r, over, free_link[server], again = serve(link, t, free_link[server], i, w, run, changes)
            if over >= NEVER:
                break
            s = over - r
        else:
            if s >= NEVER:
                break
            free_link[server] = r + s
        if len(hop_begin):
            hop_begin[first_hop[i] + at], hop_end[first_hop[i] + at] = r, r + s
        if at == 0:
            tail = r + max(s, value(cap, kind))
            if changes is None or changes.once[i] == 0:
                size = waits.send(i, tail, when[i] + value(gap, way[i]), progress, size)
        else:
            tail = max(r + s, tail)
        latest = max(latest, tail)
        t, tail = r + latency[link], tail + latency[link]  # of head and tail at the next link
        at += 1
        e += 1
        onward = e < behind and follows[links[e]]
    if e == behind:
        if at == 0:  # a local copy without a memory link
            tail = t + 1
            size = waits.send(i, tail, t + value(gap, way[i]), progress, size)
        return True, tail, latest, size
    if changes is not None and again >= 0:  # lost
        if at > 0:
            changes.once[i] = 1
        state[i] = 0
        size = heaps.push(heap, size, again, i)
    elif not onward:  # else the link is down
        when[i], state[i] = tail, at
        if len(run.lines.behind):
            size = line_up(i, t, links[e - 1], run.lines, heap, size)
        else:
            size = heaps.push(heap, size, t, i)
    return False, t, latest, size


# --- lines: what one link serves goes on in order, so that the first of these is enough on the heap ---


@inline
def line_up(i: Any, t: Any, link: Any, lines: LinkLines, heap: Heap, size: Any) -> Any:
    """Transfer `i` comes from a link at `t`, behind the last one that did, or by itself where it would come before
    that. Returns the heap's size."""
    last, lines.came[i] = lines.last[link], t
    if last >= 0 and (lines.came[last] < t or (lines.came[last] == t and last < i)):
        lines.behind[last], lines.last[link] = i, i
        return size
    if last < 0:
        lines.last[link] = i
    return heaps.push(heap, size, t, i)


@inline
def leave(i: Any, run: FifoRun) -> None:
    """Transfer `i` goes on, which nobody stands behind."""
    at, (hop, links), last = run.progress.state[i], run.routes, run.lines.last
    if at > 0:
        link = links[hop[run.plan.way[i]] + at - 1]
        if last[link] == i:
            last[link] = -1


@inner
def line_up_all(size: Any, lines: LinkLines, heap: Heap) -> Any:
    """Let all on the heap stand in one line, if they are there in order. Returns the heap's size."""
    times, items, _ = heap
    for k in range(1, size):
        if times[k] < times[k - 1] or (times[k] == times[k - 1] and items[k] < items[k - 1]):
            return size
    for k in range(1, size):
        lines.came[items[k]], lines.behind[items[k - 1]] = times[k], items[k]
    return min(size, 1)


# --- changes ---


@inline
def set_out(i: Any, t: Any, way: Any, changes: LinkHistory) -> Any:
    """The way that transfer `i` takes at `t`: the one in force."""
    turns = changes.turns
    while turns.passed[0] < len(turns.at) and turns.at[turns.passed[0]] <= t:
        turns.passed[0] += 1
    taken = turns.force[turns.passed[0] * turns.ways + way]
    turns.taken[i] = taken
    return taken


@inner
def serve(link: Any, came: Any, free: Any, i: Any, taken: Any, run: FifoRun, changes: LinkHistory) -> Any:
    """Let `link` serve transfer `i`, which came at `came` and is next when the link is `free`: when it begins, when it
    ends (or NEVER), when the link is free for the next, and when the transfer is sent again, or −1."""
    first, at, kind = changes.first, changes.at, run.plan.kind[i]
    begun, rest, whole = -1, changes.sizes[kind], True
    for e in range(first[link], first[link + 1]):
        until = at[e + 1] if e + 1 < first[link + 1] else NEVER
        if until <= came or until == at[e]:
            continue
        speed = changes.speeds[changes.rate[e]]
        if speed == 0.0:
            again = lost_at(e, came, run.plan.way[i], taken, changes)
            if again >= 0:
                return begun, NEVER, (free if begun < 0 else at[e]), again
            continue
        now = max(at[e], came, free)
        if now >= until:
            continue
        if begun < 0:
            begun = now
        wait = run.net.service[kind * run.net.rates + changes.rate[e]]
        if not whole:
            left = rest * 1e12 / speed
            if left >= NEVER:
                return begun, NEVER, NEVER, -1
            wait = max(1, math.ceil(left))
        if now + wait <= until:
            return begun, now + wait, now + wait, -1
        rest, whole = max(0.0, rest - (speed * (until - now)) / 1e12), False
    return begun, NEVER, NEVER, -1


@inner
def lost_at(e: Any, came: Any, way: Any, taken: Any, changes: LinkHistory) -> Any:
    """The time at which the chunk is sent again that came to a link which row `e` has dead; −1 if the way in force is
    the one that was taken, or nobody finds out."""
    turns, k = changes.turns, changes.turn[e]
    if k < 0:
        return -1
    again = max(changes.at[e], came + 1)
    while k < len(turns.at) and turns.at[k] <= again:
        k += 1
    return again if turns.force[k * turns.ways + way] != taken else -1
