"""The event loop of the fast engine for links that serve one chunk after the other (`fifo`); see docs/time.md."""

from __future__ import annotations

import math
from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.records import FifoRun, Heaps, LinkHistory

NEVER = 2**62
BEYOND = 2**63 - 1
SIDE = plain_waits.SIDE
jit = jit_for(__name__)
heaps, waits = load_like(__name__, plain_heap), load_like(__name__, plain_waits)
value = waits.value


@jit
def fifo(run: FifoRun, changes: LinkHistory | None) -> Any:
    """Serve chunks in the order of (arrival of the head, key). Return how many transfers ended, and the latest time.

    The parts of the network run one after the other, each alone as long as no event in another part can affect it. So
    its heap is short, and its columns stay in the processor's cache. Without `changes`, numba omits their code.
    """
    heap, (classes, ahead, clock, _) = run.progress.starts.heap, run.parts
    waits.begin(run.progress)
    ended, latest, soonest = 0, 0, earliest(heap)
    while soonest <= run.progress.until:
        for own in range(len(clock)):
            behind = run.progress.until + 1
            for other in range(len(clock)):
                late = ahead[other * len(clock) + own]
                if late < NEVER:
                    behind = min(behind, max(clock[other], soonest) + late)
            for part in range(classes[own], classes[own + 1]):
                while heap.size[part] and heap.times[heap.top[part]] < behind:
                    ended, latest = go_on(part, ended, latest, run, changes)
            clock[own] = behind
        soonest = earliest(heap)
    return ended, max(latest, soonest) if soonest < BEYOND else latest


@jit
def earliest(heap: Heaps) -> Any:
    """Return the time of the first event in any part, BEYOND if there is none."""
    soonest = BEYOND
    for part in range(len(heap.size)):
        if heap.size[part]:
            soonest = min(soonest, heap.times[heap.top[part]])
    return soonest


@jit
def go_on(part: Any, ended: Any, latest: Any, run: FifoRun, changes: LinkHistory | None) -> Any:
    """Process the first event of a part. Return the updated number of ended transfers, and the updated latest time."""
    progress, side, free_side = run.progress, run.plan.side, run.free.side
    repeats, heap, arrive, state = progress.starts.repeats, progress.starts.heap, progress.times.arrive, progress.state
    t, key = heap.times[heap.top[part]], heap.items[heap.top[part]]
    heaps.use(heap, part)
    row = key & ((1 << repeats.row_bits) - 1)
    loop = (key >> repeats.row_bits) & ((1 << repeats.loop_bits) - 1)
    i = row + loop * repeats.rows
    if state[i] == SIDE:
        t = max(t, free_side[side[row]]) + waits.receive(row, loop, run.plan, run.costs)
        free_side[side[row]] = t
        there = True
    else:
        there, t, latest = travel(row, loop, i, t, max(latest, t), run, changes)
        if there and len(arrive):
            arrive[row] = t
        if there and waits.receive(row, loop, run.plan, run.costs):
            state[i], there = SIDE, False
            heaps.push(heap, part, t, key)
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
    """Move the head of transfer `i`, which reaches its next link at `t`, over that link and the links that follow it
    without an event. Return whether its tail has passed the last link, the time, and the latest time of the run.

    A link that `follows` another needs no event. All its heads come directly from that other link. This one serves them
    one after the other, each for at least 1 ps, and has one latency for all. So heads reach the second link in the same
    order, never two at once, and its service can be computed as soon as service at the first has begun.
    """
    progress, links, follows, free_link, hops, heads = (
        run.progress, run.routes.links, run.follows, run.free.link, run.hops, run.heads
    )  # fmt: skip
    rate_of, latency, service, rates = run.net
    state, when, gap = progress.state, progress.starts.when, run.costs.gap
    w, kind, at, again = run.plan.way[row], waits.kind_of(row, loop, run.plan), state[i], -1
    if changes is not None:
        w = set_out(i, t, w, changes) if at == 0 else changes.turns.taken[i]
    e, behind, tail, onward = run.routes.hop[w] + at, run.routes.hop[w + 1], when[i], True
    while onward and e < behind:
        link = links[e]
        server = link % run.servers
        if len(heads.first):
            heads.first[link], heads.last[link] = min(heads.first[link], t), max(heads.last[link], t)
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
        if len(hops.begin):
            hops.begin[hops.first[i] + at], hops.end[hops.first[i] + at] = r, r + s
        if at == 0:
            tail = r + max(s, value(run.costs.cap, kind))
            if changes is None or changes.once[i] == 0:
                waits.send(row, loop, tail, when[i] + value(gap, run.plan.way[row]), progress)
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
            waits.send(row, loop, tail, t + value(gap, run.plan.way[row]), progress)
        return True, tail, latest
    if changes is not None and again >= 0:  # lost
        if at > 0:
            changes.once[i] = 1
        state[i] = 0
        heaps.push(progress.starts.heap, 0, again, i)
    elif not onward:  # else the link is down
        when[i], state[i] = tail, at
        part = value(run.parts.of_link, links[e])
        heaps.push(progress.starts.heap, part, t, waits.key_of(row, loop, progress.starts.repeats))
    return False, t, latest


# --- changes ---


@jit
def set_out(i: Any, t: Any, way: Any, changes: LinkHistory) -> Any:
    """Return the route of transfer `i`, which leaves at `t`, and note it as taken."""
    turns = changes.turns
    while turns.passed[0] < len(turns.at) and turns.at[turns.passed[0]] <= t:
        turns.passed[0] += 1
    taken = turns.force[turns.passed[0] * turns.ways + way]
    turns.taken[i] = taken
    return taken


@jit
def serve(link: Any, came: Any, free: Any, i: Any, taken: Any, run: FifoRun, changes: LinkHistory) -> Any:
    """Serve transfer `i`, which arrived at `came`, on `link` from when it is `free`. Return when service begins and
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


@jit
def lost_at(e: Any, came: Any, way: Any, taken: Any, changes: LinkHistory) -> Any:
    """Return when a chunk that came at `came` to a link, dead since row `e` of the changes, is sent again; −1 if its
    route has not changed, or if the failure is never detected."""
    turns, k = changes.turns, changes.turn[e]
    if k < 0:
        return -1
    again = max(changes.at[e], came + 1)
    while k < len(turns.at) and turns.at[k] <= again:
        k += 1
    return again if turns.force[k * turns.ways + way] != taken else -1
