"""The event loop of the fast engine for max-min fair sharing of links (`fair`); see docs/time.md.

A channel sends one transfer at a time, so flows are numbered by channel. The cap of a channel is one more link, behind
those of the network, which only this channel takes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.compiled import heap as plain_heap
from simcoll.engine.compiled import waits as plain_waits
from simcoll.engine.compiled.heap import Heap
from simcoll.engine.compiled.waits import Layout, Progress, Turns

NEVER = 2**62
SIDE = plain_waits.SIDE
jit = jit_for(__name__)
heaps, waits = load_like(__name__, plain_heap), load_like(__name__, plain_waits)
value = waits.value


class ChangesInTime(NamedTuple):
    """Changes of links, for `fair`. By row, in order of time: link, time, index of its rate from then on, and turn.
    Then `speeds` (B/s by rate), and the index of each link's current rate."""

    link: Any
    at: Any
    rate: Any
    turn: Any
    speeds: Any
    rate_of: Any
    turns: Turns


class FairFabric(NamedTuple):
    """The current flows and their links. Flow c takes the links `path[c * width:c * width + length[c]]`; `owner` is the
    flow of each position in `path`. By link: its flows as a linked list of positions in `path` (`head`, `count`; then
    `after` and `before` by position); its `capacity`, the rate still `available`, and the `share` of each flow without
    a rate, in B/s; and the number of such flows (`unfixed`).

    By flow: its transfer (`on`), and when that `began`; the bytes left (`rest`) at time `since`; its rate in B/s;
    whether no byte has moved yet (`whole`); the `most` B/s that its links allow, and the time it takes in `full` at
    that rate; when it ends (`due`); its newly `solved` rate. `ends` is a heap of the flows that end first in their
    component.

    A component is a set of flows connected by shared links: its `links` and `members` (flows), with marks of the
    instant at which each was last found. `touched` are the links to be solved again, each `marked` with the instant.
    """

    path: Any
    length: Any
    width: int
    owner: Any
    head: Any
    count: Any
    after: Any
    before: Any
    capacity: Any
    available: Any
    share: Any
    unfixed: Any
    on: Any
    began: Any
    rest: Any
    since: Any
    rate: Any
    whole: Any
    most: Any
    full: Any
    due: Any
    solved: Any
    ends: Heap
    links: Any
    members: Any
    link_mark: Any
    flow_mark: Any
    marked: Any
    touched: Any


class FairRun(NamedTuple):
    """All columns of a `fair` run. `sizes` are bytes by size, `away` sums of latencies by way. `caps` is the first of
    the extra links that stand for the caps of channels, or −1. `ready` receives the time at which each flow leaves."""

    progress: Progress
    layout: Layout
    channel: Any
    sizes: Any
    away: Any
    caps: int
    free_side: Any
    ready: Any
    fabric: FairFabric


@jit
def fair(run: FairRun, changes: ChangesInTime | None) -> Any:
    """Run a program with max-min fair flows. Return how many transfers ended, and the latest time in ps. Without
    `changes`, numba omits their code."""
    progress, side, free_side, fabric = run.progress, run.layout.side, run.free_side, run.fabric
    state, heap, queue = progress.state, progress.starts.heap, progress.tasks.queue
    ends, touched, link_mark, head = fabric.ends, fabric.touched, fabric.link_mark, fabric.head
    ended, latest, now, row, n_rows = 0, 0, 0, 0, 0
    waits.begin(progress)
    if changes is not None:
        n_rows = len(changes.at)
    while heap.size[0] or ends.size[0] or row < n_rows:
        t = ends.times[0] if ends.size[0] else NEVER
        if heap.size[0] and heap.times[0] <= t:
            t = heap.times[0]
        now += 1
        n_touched = 0
        if changes is not None and row < n_rows and changes.at[row] < t:
            t = changes.at[row]
        elif t < NEVER:
            latest = max(latest, t)
        if t >= NEVER or t > progress.until:  # further events are beyond the clock's range, or after `until`
            break
        if changes is not None:
            row, n_touched = change(row, t, now, run, changes)
        while (ends.size[0] and ends.times[0] == t) or (heap.size[0] and heap.times[0] == t):
            left, began, tail = -1, 0, -1  # −1: not computed yet
            if ends.size[0] and ends.times[0] == t:
                c = ends.items[0]
                heaps.pop(ends)
                n_touched = leave(c, now, fabric, n_touched)
                i, left, began = fabric.on[c], t, fabric.began[c]
            else:
                i = heap.items[0]
                heaps.pop(heap)
                if state[i] == SIDE:
                    tail = max(t, free_side[side[i]]) + waits.receive(i, 0, run.layout)
                    free_side[side[i]] = tail
                else:
                    left, began, n_touched = set_out(i, t, now, run, changes, n_touched)
            if left >= 0:
                tail = gone(i, left, began, run, changes)
            if tail >= 0:
                latest = max(latest, tail)
                waits.finish(i, 0, tail, progress)
                ended += 1
            if queue[0]:
                waits.follow_up(progress)
        for b in range(n_touched):
            link = touched[b]
            if link_mark[link] != now and head[link] >= 0:  # has flows, and is not solved yet
                solve(link, t, now, fabric)
    return ended, latest


@jit
def gone(i: Any, t: Any, began: Any, run: FairRun, changes: ChangesInTime | None) -> Any:
    """Note that all bytes of transfer `i`, which `began` at that time, are sent at `t`. Return when the transfer ends,
    or −1 if it has to queue at the receive side."""
    progress, w = run.progress, run.layout.way[i]
    arrive = progress.times.arrive
    waits.send(i, 0, t, began + value(run.layout.gap, w), progress)
    if changes is not None:
        w = changes.turns.taken[i]
    arrived = t + run.away[w]
    if len(arrive):
        arrive[i] = arrived
    if waits.receive(i, 0, run.layout):
        progress.state[i] = SIDE
        heaps.push(progress.starts.heap, arrived, i)
        return -1
    return arrived


@jit
def set_out(i: Any, t: Any, now: Any, run: FairRun, changes: ChangesInTime | None, n_touched: Any) -> Any:
    """Send transfer `i`, which is ready at `t`. Return when all its bytes are sent (−1 if that depends on other flows),
    when it began, and the number of links whose flows changed (touched links)."""
    layout, hop, ready, fabric = run.layout, run.layout.hop, run.ready, run.fabric
    w, c = layout.way[i], run.channel[i]
    began = t - value(run.progress.starts.lead, w)
    if changes is not None:
        w = changes.turns.way_after[changes.turns.passed[0] * changes.turns.ways + w]
        changes.turns.taken[i] = w
    if len(ready):
        ready[i] = t
    if hop[w] == hop[w + 1]:  # a local copy without a memory link
        return t + 1, began, n_touched
    fabric.on[c], fabric.began[c] = i, began
    aim(c, w, t, run, changes)
    return -1, began, join(c, now, fabric, n_touched)


@jit
def aim(c: Any, w: Any, t: Any, run: FairRun, changes: ChangesInTime | None) -> None:
    """Send all bytes of flow `c` over route `w` from time `t` on; its rate is computed later."""
    fabric, layout, capacity, path = run.fabric, run.layout, run.fabric.capacity, run.fabric.path
    rate_of = layout.rate_of
    if changes is not None:
        rate_of = changes.rate_of
    first, count, kind = c * fabric.width, layout.hop[w + 1] - layout.hop[w], layout.kind[fabric.on[c]]
    slowest = layout.links[layout.hop[w]]
    for e in range(count):
        link = layout.links[layout.hop[w] + e]
        path[first + e] = link
        if capacity[link] < capacity[slowest]:
            slowest = link
    fabric.most[c], fabric.full[c] = capacity[slowest], layout.service[kind * layout.rates + rate_of[slowest]]
    if run.caps >= 0 and capacity[run.caps + c] < math.inf:
        path[first + count] = run.caps + c
        count += 1
        fabric.most[c] = min(fabric.most[c], capacity[run.caps + c])
        fabric.full[c] = max(fabric.full[c], layout.cap[kind])
    fabric.length[c], fabric.rest[c], fabric.since[c] = count, run.sizes[kind], t
    fabric.rate[c], fabric.whole[c], fabric.due[c] = -1.0, 1, NEVER


# --- changes ---


@jit
def change(row: Any, t: Any, now: Any, run: FairRun, changes: ChangesInTime) -> Any:
    """Apply the changes of links at time `t`. Return the row of the next change, and the number of touched links."""
    fabric, n_touched = run.fabric, 0
    while row < len(changes.at) and changes.at[row] == t:
        link = changes.link[row]
        e = fabric.head[link]
        if changes.turn[row] < 0:
            changes.rate_of[link] = changes.rate[row]
            fabric.capacity[link] = changes.speeds[changes.rate[row]]
            if e >= 0:
                n_touched = touch(link, now, fabric, n_touched)
        else:
            changes.turns.passed[0] = changes.turn[row]
            while e >= 0:
                c, e = fabric.owner[e], fabric.after[e]
                n_touched = send_again(c, t, now, run, changes, n_touched)
        row += 1
    return row, n_touched


@jit
def send_again(c: Any, t: Any, now: Any, run: FairRun, changes: ChangesInTime, n_touched: Any) -> Any:
    """Restart flow `c`, which uses a link found dead, if it has a new route; return the number of touched links."""
    turns, fabric, i = changes.turns, run.fabric, run.fabric.on[c]
    w = turns.way_after[turns.passed[0] * turns.ways + run.layout.way[i]]
    if w != turns.taken[i]:
        n_touched = leave(c, now, fabric, n_touched)
        if fabric.ends.place[c] >= 0:
            heaps.drop(fabric.ends, c)
        turns.taken[i] = w
        if len(run.ready):
            run.ready[i] = t
        aim(c, w, t, run, changes)
        n_touched = join(c, now, fabric, n_touched)
    return n_touched


# --- max-min fair rates, solved again for all flows connected with a link on which flows come or go ---


@jit
def join(c: Any, now: Any, fabric: FairFabric, n_touched: Any) -> Any:
    """Add flow `c` to the lists of its links; return the number of touched links."""
    path, length, width = fabric.path, fabric.length, fabric.width
    head, after, before, count = fabric.head, fabric.after, fabric.before, fabric.count
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        first = head[link]
        after[e], before[e] = first, -1
        if first >= 0:
            before[first] = e
        head[link] = e
        count[link] += 1
        n_touched = touch(link, now, fabric, n_touched)
    return n_touched


@jit
def leave(c: Any, now: Any, fabric: FairFabric, n_touched: Any) -> Any:
    """Remove flow `c` from the lists of its links; return the number of touched links."""
    path, length, width = fabric.path, fabric.length, fabric.width
    head, after, before, count = fabric.head, fabric.after, fabric.before, fabric.count
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        if before[e] >= 0:
            after[before[e]] = after[e]
        else:
            head[link] = after[e]
        if after[e] >= 0:
            before[after[e]] = before[e]
        count[link] -= 1
        n_touched = touch(link, now, fabric, n_touched)
    return n_touched


@jit
def touch(link: Any, now: Any, fabric: FairFabric, n_touched: Any) -> Any:
    """Note that the rates on a link have to be solved again at this instant; return the number of touched links."""
    if fabric.marked[link] != now:
        fabric.marked[link] = now
        fabric.touched[n_touched] = link
        n_touched += 1
    return n_touched


@jit
def connected(seed: Any, now: Any, fabric: FairFabric) -> Any:
    """Find the flows connected with link `seed` by shared links, and these links; return both counts."""
    path, length, width, owner = fabric.path, fabric.length, fabric.width, fabric.owner
    links, members, link_mark, flow_mark = fabric.links, fabric.members, fabric.link_mark, fabric.flow_mark
    capacity, available, share, unfixed = fabric.capacity, fabric.available, fabric.share, fabric.unfixed
    head, after, count, solved = fabric.head, fabric.after, fabric.count, fabric.solved
    n_links, n_flows, at, e = 0, 0, 0, head[seed]
    while True:
        while e >= 0:
            c = owner[e]
            if flow_mark[c] != now:
                flow_mark[c] = now
                members[n_flows] = c
                n_flows += 1
                solved[c] = -1.0
                for other in range(c * width, c * width + length[c]):
                    link = path[other]
                    if link_mark[link] != now:
                        link_mark[link] = now
                        available[link], unfixed[link] = capacity[link], 0.0
                        share[link] = capacity[link] / count[link]
                        links[n_links] = link
                        n_links += 1
                    unfixed[link] += 1.0
            e = after[e]
        while at < n_links and unfixed[links[at]] == count[links[at]]:  # all its flows are found
            at += 1
        if at == n_links:
            return n_links, n_flows
        e = head[links[at]]
        at += 1


@jit
def fix(c: Any, rate: Any, fabric: FairFabric) -> None:
    """Fix the rate of flow `c` and subtract it from its links. Other flows keep shares of at least `rate`."""
    path, length, width = fabric.path, fabric.length, fabric.width
    available, share, unfixed = fabric.available, fabric.share, fabric.unfixed
    fabric.solved[c] = rate
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        available[link] -= rate
        unfixed[link] -= 1.0
        share[link] = max(available[link] / unfixed[link], rate) if unfixed[link] > 0.0 else math.inf


@jit
def fill(n_links: Any, n_flows: Any, fabric: FairFabric) -> None:
    """Compute the rates of the first `n_flows` flows in `members` by progressive filling: the flows on the link with
    the least share get that share, and so on."""
    owner, head, after, links = fabric.owner, fabric.head, fabric.after, fabric.links
    share, solved, left = fabric.share, fabric.solved, n_flows
    while left:
        rate, tightest, a = math.inf, -1, 0
        while a < n_links:
            link = links[a]
            if share[link] < rate or (share[link] == rate and link < tightest):
                rate, tightest = share[link], link
            elif share[link] == math.inf:  # all its flows have rates
                n_links -= 1
                links[a] = links[n_links]
                continue
            a += 1
        e = head[tightest]
        while e >= 0:
            if solved[owner[e]] < 0.0:
                fix(owner[e], rate, fabric)
                left -= 1
            e = after[e]


@jit
def replan(c: Any, t: Any, fabric: FairFabric) -> None:
    """Let flow `c` move at its new rate from time `t`. `due` becomes the time when all its bytes will be sent: NEVER if
    it does not move, or if that time is beyond the clock's range."""
    rest, since, rate, whole, due = fabric.rest, fabric.since, fabric.rate, fabric.whole, fabric.due
    if rate[c] >= 0.0:
        rest[c] = max(0.0, rest[c] - (rate[c] * (t - since[c])) / 1e12)
        whole[c] = 0
    since[c], rate[c], due[c] = t, fabric.solved[c], NEVER
    if rate[c] > 0.0:
        wait = rest[c] * 1e12 / rate[c]
        if whole[c] and rate[c] == fabric.most[c]:
            due[c] = t + fabric.full[c]
        elif wait < NEVER:
            due[c] = t + max(1, math.ceil(wait))


@jit
def solve(seed: Any, t: Any, now: Any, fabric: FairFabric) -> None:
    """Compute new rates for all flows connected with link `seed`.

    The heap `ends` has only the flows that end first among them, because their end changes the rates of the others.
    """
    members, ends, solved, rate, due = fabric.members, fabric.ends, fabric.solved, fabric.rate, fabric.due
    n_links, n_flows = connected(seed, now, fabric)
    fill(n_links, n_flows, fabric)
    least = NEVER
    for a in range(n_flows):
        c = members[a]
        if solved[c] != rate[c]:
            replan(c, t, fabric)
        least = min(least, due[c])
    for a in range(n_flows):
        c = members[a]
        if due[c] == least and least < NEVER:
            heaps.move(ends, least, c)
        elif ends.place[c] >= 0:
            heaps.drop(ends, c)
