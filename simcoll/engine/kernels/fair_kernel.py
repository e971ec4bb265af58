"""The loop of the fast engine where flows share links max-min fairly (`fair`); see the rules in `timing_model`."""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import fair_rates as plain_rates
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.records import ChangesInTime, FairRun

NEVER = 2**62
SIDE = plain_waits.SIDE
jit, inner, inline = jit_for(__name__), jit_for(__name__), jit_for(__name__, inline=True)
heaps, waits, rates = (load_like(__name__, part) for part in (plain_heap, plain_waits, plain_rates))
value = waits.value


@jit
def fair(run: FairRun, changes: ChangesInTime | None) -> Any:
    """Run max-min fair flows. Returns how many transfers ended, and the latest time of all.

    `routes` are without the links that only one channel takes. A transfer that takes no other is never a flow: nobody
    changes its rate, and when its bytes will be gone is known when it is ready. With `changes` all links are there;
    without, numba leaves out all that depends on them.
    """
    progress, (_, _, side), _, _, (_, _, receive, _), _, _, _, free_side, _, fabric = run
    state, heap, queue = progress.state, progress.starts.heap, progress.tasks.queue
    flows, ends, touched, link_mark, head = (
        fabric.flows, fabric.ends, fabric.touched, fabric.component.link_mark, fabric.lists.head
    )  # fmt: skip
    ended, latest, now, row, n_rows, flowing, size = 0, 0, 0, 0, 0, 0, waits.begin(progress)
    if changes is not None:
        n_rows = len(changes.at)
    while size or flowing or row < n_rows:
        t = ends.times[0] if flowing else NEVER
        if size and heap.times[0] <= t:
            t = heap.times[0]
        now += 1
        n_touched = 0
        if changes is not None and row < n_rows and changes.at[row] < t:
            t = changes.at[row]
        elif t < NEVER:
            latest = max(latest, t)
        if t >= NEVER or t > progress.until:  # what is left comes beyond the range of the clock, or is not asked for
            break
        if changes is not None:
            row, flowing, n_touched = change(row, t, now, run, changes, flowing)
        while (flowing and ends.times[0] == t) or (size and heap.times[0] == t):
            left, began, tail = -1, 0, -1  # if they come to be known
            if flowing and ends.times[0] == t:
                c = ends.items[0]
                flowing = heaps.pop(ends, flowing)
                n_touched = rates.leave(c, now, fabric, n_touched)
                i, left, began = flows.on[c], t, flows.began[c]
            else:
                i = heap.items[0]
                size = heaps.pop(heap, size)
                if state[i] == SIDE:
                    tail = max(t, free_side[side[i]]) + receive[i]
                    free_side[side[i]] = tail
                else:
                    left, began, n_touched = set_out(i, t, now, run, changes, n_touched)
            if left >= 0:
                tail, size = gone(i, left, began, run, changes, size)
            if tail >= 0:
                latest = max(latest, tail)
                size = waits.finish(i, tail, progress, size)
                ended += 1
            if queue[0]:
                size = waits.follow_up(progress, size)
        for b in range(n_touched):
            link = touched[b]
            if link_mark[link] != now and head[link] >= 0:  # not solved yet, nor empty
                flowing = rates.solve(link, t, now, fabric, flowing)
    return ended, latest


@inline
def gone(i: Any, t: Any, began: Any, run: FairRun, changes: ChangesInTime | None, size: Any) -> Any:
    """The bytes of transfer `i`, which `began` then, are gone at `t`. Returns when it ends, −1 if it has to queue at
    the receive side, and the size of the heap."""
    progress, (way, _, _), _, _, (gap, _, receive, _), _, limits, _, _, _, _ = run
    arrive, w = progress.times.arrive, way[i]
    size = waits.send(i, t, began + value(gap, w), progress, size)
    if changes is not None:
        w = changes.turns.taken[i]
    arrived = t + limits.away[w]
    if len(arrive):
        arrive[i] = arrived
    if value(receive, i):
        progress.state[i] = SIDE
        return -1, heaps.push(progress.starts.heap, size, arrived, i)
    return arrived, size


@inline
def set_out(i: Any, t: Any, now: Any, run: FairRun, changes: ChangesInTime | None, n_touched: Any) -> Any:
    """Transfer `i` is ready at `t`. Returns when its bytes are gone (−1 if that is not known), when it began, and how
    many links are touched."""
    progress, (way, kinds, _), channel, sizes, (_, cap, _, _), (hop, links), limits, net, _, ready, fabric = run
    (path, length, width, _), flows, capacity = fabric.paths, fabric.flows, fabric.levels.capacity
    w, kind, c, began = way[i], kinds[i], channel[i], t - value(progress.starts.lead, way[i])
    if changes is not None:
        w = changes.turns.force[changes.turns.passed[0] * changes.turns.ways + w]
        changes.turns.taken[i] = w
    if len(ready):
        ready[i] = t
    limit = capped(c, limits.narrowest[w], limits.caps, capacity)
    full = max(net.service[kind * net.rates + limits.slowest[w]], value(cap, kind))
    if hop[w] == hop[w + 1]:
        if limit < 0:  # a local copy without a memory link
            return t + 1, began, n_touched
        return t + full if capacity[limit] > 0.0 else -1, began, n_touched
    flows.on[c], flows.began[c] = i, began
    if changes is not None:
        aim(c, w, t, kind, run, changes)
    else:
        for e in range(hop[w + 1] - hop[w]):
            path[c * width + e] = links[hop[w] + e]
        length[c], flows.narrowest[c], flows.most[c], flows.full[c] = hop[w + 1] - hop[w], limit, limits.most[w], full
        flows.rest[c], flows.since[c], flows.rate[c], flows.whole[c], flows.due[c] = sizes[kind], t, -1.0, 1, NEVER
    return -1, began, rates.join(c, now, fabric, n_touched)


@inline
def capped(c: Any, link: Any, caps: Any, capacity: Any) -> Any:
    """Return that link or the one that stands for the cap of channel `c`, behind the real ones, if that is narrower."""
    return caps + c if caps >= 0 and link >= 0 and rates.narrower(caps + c, link, capacity) else link


# --- changes ---


@inner
def aim(c: Any, w: Any, t: Any, kind: Any, run: FairRun, changes: ChangesInTime) -> None:
    """Flow `c` sets out at time `t` over way `w`, on links as they are then."""
    (path, length, width, _), (hop, links), flows = run.fabric.paths, run.routes, run.fabric.flows
    for e in range(hop[w + 1] - hop[w]):
        path[c * width + e] = links[hop[w] + e]
    length[c] = hop[w + 1] - hop[w]
    link, capacity, narrowest = tightest(c, run), run.fabric.levels.capacity, flows.narrowest
    narrowest[c] = capped(c, link, run.limits.caps, capacity)
    full = run.net.service[kind * run.net.rates + changes.rate_of[link]]
    flows.most[c], flows.full[c] = capacity[narrowest[c]], max(full, value(run.costs.cap, kind))
    flows.rest[c], flows.since[c], flows.rate[c], flows.whole[c], flows.due[c] = run.sizes[kind], t, -1.0, 1, NEVER


@inner
def tightest(c: Any, run: FairRun) -> Any:
    """The narrowest of the links that flow `c` takes, the lowest of equals."""
    path, length, width, _ = run.fabric.paths
    least = path[c * width]
    for e in range(c * width + 1, c * width + length[c]):
        if rates.narrower(path[e], least, run.fabric.levels.capacity):
            least = path[e]
    return least


@inline
def change(row: Any, t: Any, now: Any, run: FairRun, changes: ChangesInTime, flowing: Any) -> Any:
    """Links change at `t`. Returns the next row, the size of the heap of `ends`, and how many links are touched."""
    fabric, n_touched = run.fabric, 0
    while row < len(changes.at) and changes.at[row] == t:
        link = changes.link[row]
        e = fabric.lists.head[link]
        if changes.turn[row] < 0:
            changes.rate_of[link] = changes.rate[row]
            fabric.levels.capacity[link] = changes.speeds[changes.rate[row]]
            if e >= 0:
                n_touched = rates.touch(link, now, fabric, n_touched)
            while e >= 0:
                c = fabric.paths.owner[e]
                fabric.flows.narrowest[c] = capped(c, tightest(c, run), run.limits.caps, fabric.levels.capacity)
                e = fabric.lists.after[e]
        else:
            changes.turns.passed[0] = changes.turn[row]
            while e >= 0:
                c, e = fabric.paths.owner[e], fabric.lists.after[e]
                flowing, n_touched = send_again(c, t, now, run, changes, flowing, n_touched)
        row += 1
    return row, flowing, n_touched


@inline
def send_again(c: Any, t: Any, now: Any, run: FairRun, changes: ChangesInTime, flowing: Any, n_touched: Any) -> Any:
    """Flow `c` is on a link that is found dead: it sets out again, from the start, if another way is in force."""
    turns, fabric, i = changes.turns, run.fabric, run.fabric.flows.on[c]
    w = turns.force[turns.passed[0] * turns.ways + run.plan.way[i]]
    if w != turns.taken[i]:
        n_touched = rates.leave(c, now, fabric, n_touched)
        if fabric.ends.place[c] >= 0:
            flowing = heaps.drop(fabric.ends, flowing, c)
        turns.taken[i] = w
        if len(run.ready):
            run.ready[i] = t
        aim(c, w, t, run.plan.kind[i], run, changes)
        n_touched = rates.join(c, now, fabric, n_touched)
    return flowing, n_touched
