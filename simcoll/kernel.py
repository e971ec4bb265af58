"""The loops of the fast engine, in the subset of Python that numba compiles. The same source runs uncompiled.

One event a transfer is outstanding at any time, so a heap of (time, index) serves every link and receive side in the
order that the rules ask for: a server is assigned when its request is popped, which is the second phase of an instant,
because every cause precedes its effect by at least 1 ps. What has happened is known early: when a link begins to
serve a transfer, its `sent` is known, and whoever waits for it can be given its time at once.
"""

from __future__ import annotations

import math
from typing import Any

from simcoll.compiled import jit_for

NEVER = 2**62
jit = jit_for(__name__)


# --- a heap of (time, index), four entries below each; `place`, if it is not empty, says where each index is ---


@jit
def sift_up(times: Any, items: Any, place: Any, at: Any) -> None:
    """Move the entry at `at` up to where it belongs."""
    t, i, tracked = times[at], items[at], len(place) > 0
    while at > 0:
        above = (at - 1) >> 2
        if times[above] < t or (times[above] == t and items[above] < i):
            break
        times[at], items[at] = times[above], items[above]
        if tracked:
            place[items[at]] = at
        at = above
    times[at], items[at] = t, i
    if tracked:
        place[i] = at


@jit
def sift_down(times: Any, items: Any, place: Any, size: Any, at: Any) -> None:
    """Move the entry at `at` down to where it belongs."""
    t, i, tracked = times[at], items[at], len(place) > 0
    while True:
        below = 4 * at + 1
        if below >= size:
            break
        for other in range(below + 1, min(below + 4, size)):
            if times[other] < times[below] or (times[other] == times[below] and items[other] < items[below]):
                below = other
        if t < times[below] or (t == times[below] and i < items[below]):
            break
        times[at], items[at] = times[below], items[below]
        if tracked:
            place[items[at]] = at
        at = below
    times[at], items[at] = t, i
    if tracked:
        place[i] = at


@jit
def push(times: Any, items: Any, place: Any, size: Any, t: Any, i: Any) -> Any:
    """Enter index `i` at time `t`; returns the new size."""
    times[size], items[size] = t, i
    sift_up(times, items, place, size)
    return size + 1


@jit
def pop(times: Any, items: Any, place: Any, size: Any) -> Any:
    """Drop the first entry; returns the new size."""
    if len(place):
        place[items[0]] = -1
    size -= 1
    if size:
        times[0], items[0] = times[size], items[size]
        sift_down(times, items, place, size, 0)
    return size


@jit
def move(times: Any, items: Any, place: Any, size: Any, t: Any, i: Any) -> Any:
    """Enter index `i` at time `t`, or move it there; returns the new size."""
    at = place[i]
    if at < 0:
        return push(times, items, place, size, t, i)
    earlier = t < times[at]
    times[at] = t
    if earlier:
        sift_up(times, items, place, at)
    else:
        sift_down(times, items, place, size, at)
    return size


# --- who waits for whom ---


@jit
def value(column: Any, i: Any) -> Any:
    """Entry `i` of a column that is left empty where all entries are 0."""
    return column[i] if len(column) else 0


@jit
def relax(i: Any, t: Any, start: Any, pending: Any, lead: Any, heap: Any, size: Any) -> Any:
    """One of the things that transfer `i` waits for happens at `t`; the last of them starts it."""
    start[i] = max(start[i], t)
    pending[i] -= 1
    if pending[i] == 0:
        size = push(heap[0], heap[1], heap[2], size, start[i] + value(lead, i), i)
    return size


@jit
def settle(i: Any, t: Any, out: Any, graph: Any, pending: Any, lead: Any, heap: Any, size: Any) -> Any:
    """Version `i` is complete at `t`: its readers may go, and so may the versions that were waiting for it."""
    start, end, complete = out[0], out[3], out[4]
    first_reader, next_reader, chain_after = graph[0], graph[1], graph[2]
    while True:
        complete[i] = t
        reader = first_reader[i]
        while reader >= 0:
            size = relax(reader, t, start, pending, lead, heap, size)
            reader = next_reader[reader]
        i = chain_after[i]
        if i < 0 or end[i] < 0:
            return size
        t = max(t, end[i])


@jit
def finish(
    i: Any, t: Any, out: Any, graph: Any, steps: Any, came: Any, pending: Any, lead: Any, heap: Any, size: Any
) -> Any:
    """Transfer `i` ends at `t`."""
    start, end, complete = out[0], out[3], out[4]
    end[i] = t
    for after in (graph[3], graph[4], graph[5]):  # credits, and with blocking sends who turns to what next
        if after[i] >= 0:
            size = relax(after[i], t, start, pending, lead, heap, size)
    before = graph[6][i]
    if before < 0:
        size = settle(i, max(t, value(came, i)), out, graph, pending, lead, heap, size)
    elif complete[before] >= 0:
        size = settle(i, max(t, complete[before]), out, graph, pending, lead, heap, size)
    step_of, first, left, passed = steps
    if len(left):
        step = step_of[i]
        left[step] -= 1
        passed[1] = max(passed[1], t)
        while passed[0] < len(left) and left[passed[0]] == 0:
            passed[0] += 1
            if passed[0] < len(left):
                for j in range(first[passed[0]], first[passed[0] + 1]):
                    size = relax(j, passed[1], start, pending, lead, heap, size)
    return size


@jit
def begin(pending: Any, start: Any, lead: Any, heap: Any) -> Any:
    """Start what waits for nothing; returns the heap's size."""
    size = 0
    for i in range(len(pending)):
        if pending[i] == 0:
            size = push(heap[0], heap[1], heap[2], size, start[i] + value(lead, i), i)
    return size


# --- fifo ---


@jit
def fifo(plan: Any, net: Any, out: Any, hops: Any, graph: Any, steps: Any, pending: Any, heap: Any, free: Any) -> Any:
    """Whole chunks by (time the head came, index); see the rules. Returns how many transfers ended."""
    hop, links, size_of, lead, cap, receive, side, came, g = plan
    rate_of, latency, service, width = net
    start, sent, arrive = out[0], out[1], out[2]
    hop_begin, hop_end = hops
    free_link, free_side, done = free
    ended, size = 0, begin(pending, start, lead, heap)
    while size:
        t, i = heap[0][0], heap[1][0]
        size = pop(heap[0], heap[1], heap[2], size)
        at, last = done[i], hop[i + 1] - hop[i]
        done[i] += 1
        if at < last:
            e = hop[i] + at
            link = links[e]
            s = service[size_of[i] * width + rate_of[link]]
            if s >= NEVER:
                continue
            r = max(t, free_link[link])
            free_link[link] = r + s
            if len(hop_begin):
                hop_begin[e], hop_end[e] = r, r + s
            if at == 0:
                tail = r + max(s, value(cap, i))
                sent[i] = tail
                j = graph[7][i]
                if j >= 0:
                    size = relax(j, max(tail, start[i] + g), start, pending, lead, heap, size)
            else:
                tail = max(r + s, arrive[i] + latency[links[e - 1]])
            arrive[i] = tail
            if at + 1 < last:
                size = push(heap[0], heap[1], heap[2], size, r + latency[link], i)
                continue
            arrive[i] = tail + latency[link]
        elif at == 0:  # a local copy without a memory link
            sent[i] = arrive[i] = t + 1
            j = graph[7][i]
            if j >= 0:
                size = relax(j, max(t + 1, start[i] + g), start, pending, lead, heap, size)
            done[i] = 1
        else:
            r = max(t, free_side[side[i]])
            free_side[side[i]] = r + receive[i]
            size = finish(i, r + receive[i], out, graph, steps, came, pending, lead, heap, size)
            ended += 1
            continue
        if value(receive, i):
            size = push(heap[0], heap[1], heap[2], size, arrive[i], i)
        else:
            size = finish(i, arrive[i], out, graph, steps, came, pending, lead, heap, size)
            ended += 1
    return ended


# --- fair ---


@jit
def join(i: Any, hop: Any, links: Any, rows: Any) -> None:
    """Flow `i` enters the lists of its links."""
    head, after, before, count = rows
    for e in range(hop[i], hop[i + 1]):
        link = links[e]
        first = head[link]
        after[e], before[e] = first, -1
        if first >= 0:
            before[first] = e
        head[link] = e
        count[link] += 1


@jit
def leave(i: Any, hop: Any, links: Any, rows: Any) -> None:
    """Flow `i` leaves the lists of its links."""
    head, after, before, count = rows
    for e in range(hop[i], hop[i + 1]):
        link = links[e]
        if before[e] >= 0:
            after[before[e]] = after[e]
        else:
            head[link] = after[e]
        if after[e] >= 0:
            before[after[e]] = before[e]
        count[link] -= 1


@jit
def component(seed: Any, hop: Any, links: Any, owner: Any, rows: Any, marks: Any, now: Any) -> Any:
    """The links and flows connected with link `seed`, into marks[2] and marks[3]; returns how many of each."""
    head, after = rows[0], rows[1]
    link_mark, flow_mark, found_links, found_flows = marks[0], marks[1], marks[2], marks[3]
    n_flows, n_links, at = 0, 1, 0
    found_links[0], link_mark[seed] = seed, now
    while at < n_links:
        e = head[found_links[at]]
        while e >= 0:
            i = owner[e]
            if flow_mark[i] != now:
                flow_mark[i] = now
                found_flows[n_flows] = i
                n_flows += 1
                for other in range(hop[i], hop[i + 1]):
                    if link_mark[links[other]] != now:
                        link_mark[links[other]] = now
                        found_links[n_links] = links[other]
                        n_links += 1
            e = after[e]
        at += 1
    return n_links, n_flows


@jit
def fill(n_links: Any, n_flows: Any, hop: Any, links: Any, owner: Any, rows: Any, marks: Any, fluid: Any) -> None:
    """Progressive filling of one set of components: sets `solved` of every flow in it."""
    head, after, _, count = rows
    found_links, found_flows = marks[2], marks[3]
    capacity, avail, floor, open_, solved = fluid
    for a in range(n_flows):
        solved[found_flows[a]] = -1.0
    for a in range(n_links):
        link = found_links[a]
        avail[link], floor[link], open_[link] = capacity[link], 0.0, count[link]
    left = n_flows
    while left:
        rate, tightest, a = math.inf, -1, 0
        while a < n_links:
            link = found_links[a]
            if open_[link] == 0:  # nothing left to decide there
                n_links -= 1
                found_links[a] = found_links[n_links]
                continue
            share = max(avail[link] / open_[link], floor[link])
            if share < rate or (share == rate and link < tightest):
                rate, tightest = share, link
            a += 1
        e = head[tightest]
        while e >= 0:
            i = owner[e]
            if solved[i] < 0.0:
                solved[i] = rate
                left -= 1
                for other in range(hop[i], hop[i + 1]):
                    link = links[other]
                    avail[link] -= rate
                    open_[link] -= 1
                    floor[link] = max(floor[link], rate)
            e = after[e]


@jit
def due(i: Any, t: Any, flow: Any, solved: Any, full: Any, capacity_of: Any) -> Any:
    """Take up the new rate of flow `i` at time `t`; returns when its bytes are gone, NEVER if they do not move."""
    rest, since, rate, whole = flow
    if rate[i] >= 0.0:
        rest[i] = max(0.0, rest[i] - (rate[i] * (t - since[i])) / 1e12)
        whole[i] = 0
    since[i], rate[i] = t, solved[i]
    if rate[i] == 0.0:
        return NEVER
    if whole[i] and rate[i] == capacity_of[i]:
        return t + full[i]
    return t + max(1, math.ceil(rest[i] * 1e12 / rate[i]))


@jit
def fair(
    plan: Any,
    out: Any,
    graph: Any,
    steps: Any,
    pending: Any,
    heap: Any,
    free: Any,
    flow: Any,
    rows: Any,
    marks: Any,
    fluid: Any,
) -> Any:
    """Max-min fair flows; see the rules. Returns how many transfers ended."""
    hop, links, owner, lead, full, capacity_of, away, receive, side, came, ready, g = plan
    start, sent, arrive = out[0], out[1], out[2]
    free_side, state = free
    solved = fluid[4]
    ended, now, size = 0, 0, begin(pending, start, lead, heap)
    while size:
        t, touched = heap[0][0], 0
        now += 1
        while size and heap[0][0] == t:
            i = heap[1][0]
            size = pop(heap[0], heap[1], heap[2], size)
            if state[i] == 2:  # at its receive side
                r = max(t, free_side[side[i]])
                free_side[side[i]] = r + receive[i]
                size = finish(i, r + receive[i], out, graph, steps, came, pending, lead, heap, size)
                ended += 1
                continue
            if state[i] == 0 and hop[i + 1] > hop[i]:  # ready: becomes a flow
                ready[i], flow[1][i], state[i] = t, t, 1
                join(i, hop, links, rows)
            else:  # gone; or a local copy without a memory link
                gone = t if state[i] else t + 1
                if state[i]:
                    leave(i, hop, links, rows)
                state[i] = 2
                sent[i], arrive[i] = gone, gone + away[i]
                j = graph[7][i]
                if j >= 0:
                    size = relax(j, max(gone, start[i] + g), start, pending, lead, heap, size)
                if value(receive, i):
                    size = push(heap[0], heap[1], heap[2], size, arrive[i], i)
                else:
                    size = finish(i, arrive[i], out, graph, steps, came, pending, lead, heap, size)
                    ended += 1
            for e in range(hop[i], hop[i + 1]):
                if marks[4][links[e]] != now:
                    marks[4][links[e]] = now
                    marks[5][touched] = links[e]
                    touched += 1
        for b in range(touched):
            if marks[0][marks[5][b]] == now:  # solved with an earlier one
                continue
            n_links, n_flows = component(marks[5][b], hop, links, owner, rows, marks, now)
            fill(n_links, n_flows, hop, links, owner, rows, marks, fluid)
            for a in range(n_flows):
                i = marks[3][a]
                if solved[i] != flow[2][i]:
                    when = due(i, t, flow, solved, full, capacity_of)
                    if when < NEVER:
                        size = move(heap[0], heap[1], heap[2], size, when, i)
    return ended


# --- replay ---


@jit
def replay(plan: Any, net: Any, out: Any, hops: Any, waits: Any, free: Any, flows: Any) -> Any:
    """Transfers in index order, without a heap. Returns how many were done before one came out of order.

    Exact if all were: the order used is then the order of (ready, index), and that solution is unique. With `flows`
    the links are fair: exact as long as no two flows meet.
    """
    hop, links, size_of, lead, cap, receive, side, came, full, g = plan
    rate_of, latency, service, width = net
    start, sent, arrive, end, complete = out
    hop_begin, hop_end = hops
    reads, chain, credit, before, step, barrier = waits
    free_link, free_side, last_link, last_side = free
    open_step, passed, latest = -1, 0, 0
    for i in range(len(start)):
        t = start[i]
        if reads[i] >= 0:
            t = max(t, complete[reads[i]])
        if before[i] >= 0:
            t = max(t, sent[before[i]], start[before[i]] + g)
        if credit[i] >= 0:
            t = max(t, end[credit[i]])
        if barrier:
            if step[i] != open_step:
                open_step, passed = step[i], latest
            t = max(t, passed)
        start[i] = t
        head = t + value(lead, i)
        if hop[i + 1] == hop[i]:
            sent[i] = arrive[i] = t + 1
        elif flows:
            gone, away = head + full[i], 0
            for e in range(hop[i], hop[i + 1]):
                link = links[e]
                if head < free_link[link]:
                    return i
                free_link[link] = gone
                away += latency[link]
                if len(hop_begin):
                    hop_begin[e], hop_end[e] = head, gone
            sent[i], arrive[i] = gone, gone + away
        else:
            tail = 0
            for e in range(hop[i], hop[i + 1]):
                link = links[e]
                if head < last_link[link]:
                    return i
                last_link[link] = head
                s = service[size_of[i] * width + rate_of[link]]
                r = max(head, free_link[link])
                free_link[link] = r + s
                if len(hop_begin):
                    hop_begin[e], hop_end[e] = r, r + s
                if e == hop[i]:
                    tail = r + max(s, value(cap, i))
                    sent[i] = tail
                else:
                    tail = max(r + s, tail + latency[links[e - 1]])
                head = r + latency[link]
            arrive[i] = tail + latency[links[hop[i + 1] - 1]]
        t = arrive[i]
        if value(receive, i):
            if t < last_side[side[i]]:
                return i
            last_side[side[i]] = t
            t = max(t, free_side[side[i]]) + receive[i]
            free_side[side[i]] = t
        end[i] = t
        complete[i] = max(t, complete[chain[i]]) if chain[i] >= 0 else max(t, value(came, i))
        latest = max(latest, t)
    return len(start)
