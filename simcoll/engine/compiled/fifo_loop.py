"""The event loop of the fast engine for links that serve one chunk after the other (`fifo`); see docs/time.md."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.compiled import heap as plain_heap
from simcoll.engine.compiled import waits as plain_waits
from simcoll.engine.compiled.waits import Layout, Progress, Turns

NEVER = 2**62
SIDE = plain_waits.SIDE
jit = jit_for(__name__)
heaps, waits = load_like(__name__, plain_heap), load_like(__name__, plain_waits)
value = waits.value


class LinkHistory(NamedTuple):
    """Changes of links, for `fifo`: link l has the rows `first[l]` to `first[l + 1]` − 1, the first at time 0. By row:
    its time, the index of the link's rate from then on, and its turn. Then `speeds` (B/s by rate), `sizes` (bytes by
    size), and whether each transfer was sent `once` already."""

    first: Any
    at: Any
    rate: Any
    turn: Any
    speeds: Any
    sizes: Any
    once: Any
    turns: Turns


class FifoRun(NamedTuple):
    """All columns of a `fifo` run. `follows` is by link; link i is served by server i % `servers`. `free_link` and
    `free_side`: when each link, and each receive side, is free. `hop_begin` and `hop_end`: the intervals in which links
    serve transfers; the intervals of transfer i begin at index `first_hop[i]`. `first_head` and `last_head`, by link:
    when the first and the last head arrived. The last five are empty if not needed."""

    progress: Progress
    layout: Layout
    follows: Any
    servers: int
    free_link: Any
    free_side: Any
    hop_begin: Any
    hop_end: Any
    first_hop: Any
    first_head: Any
    last_head: Any


@jit
def fifo(run: FifoRun, changes: LinkHistory | None) -> Any:
    """Serve chunks in the order of (arrival of the head, key). Return how many transfers ended, and the latest time.
    Without `changes`, numba omits their code."""
    heap, until, ended, latest = run.progress.starts.heap, run.progress.until, 0, 0
    waits.begin(run.progress)
    while heap.size[0] and heap.times[0] <= until:
        ended, latest = go_on(ended, latest, run, changes)
    return ended, max(latest, heap.times[0]) if heap.size[0] else latest


@jit
def go_on(ended: Any, latest: Any, run: FifoRun, changes: LinkHistory | None) -> Any:
    """Process the first event of the heap. Return the new number of ended transfers, and the new latest time in ps."""
    progress, side, free_side = run.progress, run.layout.side, run.free_side
    starts, heap, arrive, state = progress.starts, progress.starts.heap, progress.times.arrive, progress.state
    t, key = heap.times[0], heap.items[0]
    heaps.use(heap)
    row = key & ((1 << starts.row_bits) - 1)
    loop = (key >> starts.row_bits) & ((1 << starts.loop_bits) - 1)
    i = row + loop * starts.rows
    if state[i] == SIDE:
        t = max(t, free_side[side[row]]) + waits.receive(row, loop, run.layout)
        free_side[side[row]] = t
        there = True
    else:
        there, t, latest = travel(row, loop, i, t, max(latest, t), run, changes)
        if there and len(arrive):
            arrive[row] = t
        if there and waits.receive(row, loop, run.layout):
            state[i], there = SIDE, False
            heaps.push(heap, t, key)
    if there:
        latest = max(latest, t)
        waits.finish(row, loop, t, progress)
        ended += 1
    if progress.tasks.queue[0]:
        waits.follow_up(progress)
    heaps.settle(heap)
    return ended, latest


@jit
def travel(row: Any, loop: Any, i: Any, t: Any, latest: Any, run: FifoRun, changes: LinkHistory | None) -> Any:
    """Move the head of transfer `i`, which reaches its next link at `t`, over that link, and over the next links as
    long as they need no event. Return whether its tail has passed the last link, the time, and the latest time of the
    run.

    A link that `follows` another link needs no event. All its heads come directly from that other link, which serves
    them one after the other, each for at least 1 ps, and has one latency for all. So heads reach the following link in
    the same order, never two at once. Its service can be computed as soon as service at the first link has begun.
    """
    progress, layout, follows, free_link, hop_begin, first_head, last_head = (
        run.progress, run.layout, run.follows, run.free_link, run.hop_begin, run.first_head, run.last_head
    )  # fmt: skip
    links, latency, service, gap = layout.links, layout.latency, layout.service, layout.gap
    state, when = progress.state, progress.starts.when
    w, kind, at, again = layout.way[row], waits.kind_of(row, loop, layout), state[i], -1
    if changes is not None:
        w = set_out(i, t, w, changes) if at == 0 else changes.turns.taken[i]
    e, behind, tail, onward = layout.hop[w] + at, layout.hop[w + 1], when[i], True
    while onward and e < behind:
        link = links[e]
        server = link % run.servers
        if len(first_head):
            first_head[link], last_head[link] = min(first_head[link], t), max(last_head[link], t)
        s = service[kind * layout.rates + layout.rate_of[link]]
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
            hop_begin[run.first_hop[i] + at], run.hop_end[run.first_hop[i] + at] = r, r + s
        if at == 0:
            tail = r + max(s, value(layout.cap, kind))
            if changes is None or changes.once[i] == 0:
                waits.send(row, loop, tail, when[i] + value(gap, layout.way[row]), progress)
        else:
            tail = max(r + s, tail)
        latest = max(latest, tail)
        t, tail = r + latency[link], tail + latency[link]  # times of head and tail at the next link
        at += 1
        e += 1
        onward = e < behind and follows[links[e]]
    if e == behind:
        if at == 0:  # a local copy without a memory link
            tail = t + 1
            waits.send(row, loop, tail, t + value(gap, layout.way[row]), progress)
        return True, tail, latest
    if changes is not None and again >= 0:  # lost
        if at > 0:
            changes.once[i] = 1
        state[i] = 0
        heaps.push(progress.starts.heap, again, i)
    elif not onward:  # else the link is down
        when[i], state[i] = tail, at
        heaps.push(progress.starts.heap, t, waits.key_of(row, loop, progress.starts))
    return False, t, latest


# --- changes ---


@jit
def set_out(i: Any, t: Any, way: Any, changes: LinkHistory) -> Any:
    """Return the route of transfer `i`, which leaves at `t`, and record it in `taken`. `way`: its route without
    changes."""
    turns = changes.turns
    while turns.passed[0] < len(turns.at) and turns.at[turns.passed[0]] <= t:
        turns.passed[0] += 1
    taken = turns.way_after[turns.passed[0] * turns.ways + way]
    turns.taken[i] = taken
    return taken


@jit
def serve(link: Any, came: Any, free: Any, i: Any, taken: Any, run: FifoRun, changes: LinkHistory) -> Any:
    """Serve transfer `i`, which arrived at `came`, on `link`, which is busy until `free`. Return four times in ps: when
    service begins, when it ends (or NEVER), when the link is free again, and when the transfer is sent again, or −1."""
    first, at, kind = changes.first, changes.at, run.layout.kind[i]
    begun, rest, whole = -1, changes.sizes[kind], True
    for e in range(first[link], first[link + 1]):
        until = at[e + 1] if e + 1 < first[link + 1] else NEVER
        if until <= came or until == at[e]:
            continue
        speed = changes.speeds[changes.rate[e]]
        if speed == 0.0:
            again = lost_at(e, came, run.layout.way[i], taken, changes)
            if again >= 0:
                return begun, NEVER, (free if begun < 0 else at[e]), again
            continue
        now = max(at[e], came, free)
        if now >= until:
            continue
        if begun < 0:
            begun = now
        wait = run.layout.service[kind * run.layout.rates + changes.rate[e]]
        if not whole:
            left = rest * 1e12 / speed
            if left >= NEVER:
                return begun, NEVER, NEVER, -1
            wait = max(1, math.ceil(left))
        if now + wait <= until:
            return begun, now + wait, now + wait, -1
        rest, whole = max(0.0, rest - (speed * (until - now)) / 1e12), False
    return begun, NEVER, NEVER, -1


@jit
def lost_at(e: Any, came: Any, way: Any, taken: Any, changes: LinkHistory) -> Any:
    """Return when a chunk is sent again that came at `came` to a link, dead since row `e` of the changes. Return −1 if
    its route has not changed, or if the failure is never detected."""
    turns, k = changes.turns, changes.turn[e]
    if k < 0:
        return -1
    again = max(changes.at[e], came + 1)
    while k < len(turns.at) and turns.at[k] <= again:
        k += 1
    return again if turns.way_after[k * turns.ways + way] != taken else -1
