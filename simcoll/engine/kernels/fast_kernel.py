"""The loops of the fast engine, in the subset of Python that numba compiles. The same source runs uncompiled.

A heap of (time, index) serves every link and receive side in the order that the rules ask for: a server is assigned
when its request is popped, which is the second phase of an instant, because every cause precedes its effect by at
least 1 ps. What has happened is known early: when a link begins to serve a transfer, its `sent` is known, and whoever
waits for it can be given its time at once.

Columns come in tuples, and those that nobody asked for are empty.
"""

from __future__ import annotations

import math
from typing import Any

from simcoll.config.numba_loader import jit_for

NEVER = 2**62
SIDE, ENDED, COMPLETE = -1, -2, -3  # where a transfer is; before that, how many links its head has passed
jit = jit_for(__name__)


# --- a heap of (time, index), four entries below each; `place`, if it is not empty, says where each index is ---


@jit
def sift_up(heap: Any, at: Any) -> None:
    """Move the entry at `at` up to where it belongs."""
    times, items, place = heap
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
def sift_down(heap: Any, size: Any, at: Any) -> None:
    """Move the entry at `at` down to where it belongs."""
    times, items, place = heap
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
def push(heap: Any, size: Any, t: Any, i: Any) -> Any:
    """Enter index `i` at time `t`; returns the new size."""
    heap[0][size], heap[1][size] = t, i
    sift_up(heap, size)
    return size + 1


@jit
def pop(heap: Any, size: Any) -> Any:
    """Drop the first entry; returns the new size."""
    times, items, place = heap
    if len(place):
        place[items[0]] = -1
    size -= 1
    if size:
        times[0], items[0] = times[size], items[size]
        sift_down(heap, size, 0)
    return size


@jit
def move(heap: Any, size: Any, t: Any, i: Any) -> Any:
    """Enter index `i` at time `t`, or move it there; returns the new size."""
    times, _, place = heap
    at = place[i]
    if at < 0:
        return push(heap, size, t, i)
    earlier = t < times[at]
    times[at] = t
    if earlier:
        sift_up(heap, at)
    else:
        sift_down(heap, size, at)
    return size


@jit
def drop(heap: Any, size: Any, i: Any) -> Any:
    """Take index `i` out; returns the new size."""
    heap[0][heap[2][i]] = -1
    sift_up(heap, heap[2][i])
    return pop(heap, size)


# --- who waits for whom ---


@jit
def value(column: Any, i: Any) -> Any:
    """Entry `i` of a column that is left empty where all entries are 0."""
    return column[i] if len(column) else 0


@jit
def turn_round(waits: Any, after: Any, pending: Any) -> None:
    """From whom each transfer waits for to who waits for it. The columns `after` are filled with −1, and `pending`, the
    number of things that each waits for, with 0; `credit` and its counterpart are empty where there are none."""
    reads, chain, credit, before = waits
    first_reader, next_reader, chain_after, credit_after, channel_after = after
    for i in range(len(reads) - 1, -1, -1):
        if reads[i] >= 0:
            next_reader[i], first_reader[reads[i]] = first_reader[reads[i]], i
            pending[i] += 1
        if chain[i] >= 0:
            chain_after[chain[i]] = i
        if len(credit) and credit[i] >= 0:
            credit_after[credit[i]] = i
            pending[i] += 1
        if before[i] >= 0:
            channel_after[before[i]] = i
            pending[i] += 1


@jit
def relax(i: Any, t: Any, go: Any, heap: Any, size: Any) -> Any:
    """One of the things that transfer `i` waits for happens at `t`; the last of them starts it."""
    when, pending, way, lead, start = go
    t = max(t, when[i])
    when[i] = t
    pending[i] -= 1
    if pending[i] == 0:
        if len(start):
            start[i] = t
        size = push(heap, size, t + value(lead, way[i]), i)
    return size


@jit
def tell(k: Any, t: Any, tasks: Any) -> None:
    """One of the things that task `k` is done with happens at `t`; after the last of them it is to be followed up."""
    left, done, queue = tasks[5], tasks[6], tasks[7]
    if k < 0:
        return
    done[k] = max(done[k], t)
    left[k] -= 1
    if left[k] == 0:
        queue[0] += 1
        queue[queue[0]] = k


@jit
def departed(i: Any, t: Any, graph: Any) -> None:
    """Transfer `i`, the last of its channel, is sent at `t`."""
    tasks = graph[6]
    if len(tasks[0]):
        tell(tasks[0][i], t, tasks)


@jit
def settle(i: Any, t: Any, go: Any, state: Any, complete: Any, graph: Any, heap: Any, size: Any) -> Any:
    """Version `i` is complete at `t`: its readers may go, and so may the versions that were waiting for it."""
    when, (_, chain_after, first_reader, next_reader, _, _, tasks) = go[0], graph
    receiver = tasks[1]
    while True:
        state[i], when[i] = COMPLETE, t
        if len(complete):
            complete[i] = t
        if len(receiver):
            tell(receiver[i], t, tasks)
        reader = first_reader[i]
        while reader >= 0:
            size = relax(reader, t, go, heap, size)
            reader = next_reader[reader]
        i = chain_after[i]
        if i < 0 or state[i] != ENDED:
            return size
        t = max(t, when[i])


@jit
def finish(
    i: Any, t: Any, go: Any, state: Any, came: Any, out: Any, graph: Any, steps: Any, heap: Any, size: Any
) -> Any:
    """Transfer `i` ends at `t`."""
    when, (_, _, _, end, complete), (chain, _, _, _, credit_after, turn, tasks) = go[0], out, graph
    adds_to, waits, opened = tasks[2], tasks[3], tasks[4]
    if len(end):
        end[i] = t
    if len(credit_after) and credit_after[i] >= 0:
        size = relax(credit_after[i], t, go, heap, size)
    if len(turn):  # with blocking sends: who turns to what next
        for after in (turn[2 * i], turn[2 * i + 1]):
            if after >= 0:
                size = relax(after, t, go, heap, size)
    before, k = chain[i], adds_to[i] if len(adds_to) else -1
    if (before >= 0 and state[before] != COMPLETE) or (k >= 0 and waits[k] > 0):
        state[i], when[i] = ENDED, t
    else:
        whole = max(t, when[before] if before >= 0 else value(came, i))
        if k >= 0:
            whole = max(whole, opened[k])
        size = settle(i, whole, go, state, complete, graph, heap, size)
    step, first, left, passed = steps
    if len(left):  # barriers
        left[step[i]] -= 1
        passed[1] = max(passed[1], t)
        while passed[0] < len(left) and left[passed[0]] == 0:
            passed[0] += 1
            if passed[0] < len(left):
                for j in range(first[passed[0]], first[passed[0] + 1]):
                    size = relax(j, passed[1], go, heap, size)
    return size


@jit
def begin(go: Any, state: Any, complete: Any, graph: Any, heap: Any) -> Any:
    """Start what waits for nothing; returns the heap's size."""
    when, pending, way, lead, start = go
    waits, size = graph[6][3], 0
    for i in range(len(pending)):
        if pending[i] == 0:
            if len(start):
                start[i] = when[i]
            size = push(heap, size, when[i] + value(lead, way[i]), i)
    for k in range(len(waits)):
        if waits[k] == 0:
            size = open_task(k, go, state, complete, graph, heap, size)
    return follow_up(go, state, complete, graph, heap, size)


# --- tasks ---
#
# Of each transfer the task that sends it, the one that receives it, and the one that brings what it adds to, or −1; of
# each task how many others it waits for, when it opens, how many things it has still to be done with, when it is done,
# and how long it takes; the tasks behind it, the transfers that begin its channels, and those that add to what it
# brings. `queue` holds the tasks that are done and not yet followed up, behind their number.


@jit
def open_task(k: Any, go: Any, state: Any, complete: Any, graph: Any, heap: Any, size: Any) -> Any:
    """All that task `k` waited for is done: its channels may go, and what its rank brings is there."""
    tasks, when = graph[6], go[0]
    opened, duration, (_, _, first_begun, begun, first_added, added) = tasks[4], tasks[8], tasks[9]
    t = opened[k]
    for e in range(first_begun[k], first_begun[k + 1]):
        size = relax(begun[e], t, go, heap, size)
    for e in range(first_added[k], first_added[k + 1]):
        if state[added[e]] == ENDED:
            size = settle(added[e], max(t, when[added[e]]), go, state, complete, graph, heap, size)
    tell(k, t + duration[k], tasks)
    return size


@jit
def follow_up(go: Any, state: Any, complete: Any, graph: Any, heap: Any, size: Any) -> Any:
    """Open what waited for the tasks that are done; returns the heap's size."""
    _, _, _, waits, opened, _, done, queue, _, (first_behind, behind, _, _, _, _) = graph[6]
    while queue[0]:
        k = queue[queue[0]]
        queue[0] -= 1
        for e in range(first_behind[k], first_behind[k + 1]):
            opened[behind[e]] = max(opened[behind[e]], done[k])
            waits[behind[e]] -= 1
            if waits[behind[e]] == 0:
                size = open_task(behind[e], go, state, complete, graph, heap, size)
    return size


# --- changes ---
#
# Of links that change during a run: rows of time, number of the rate since then, and turn, in two orders. By link the
# rows of link l are first[l] … first[l + 1], and begin at time 0; without changes there is None. A turn, counted
# from 1, says that the link, which is down, is found dead: `turns` is when, and `force[turn * ways + way]` the way that
# is taken since then; `taken` is the one that each transfer took. `told` is of transfers that were sent once.


@jit
def serve(
    link: Any, came: Any, free: Any, size: Any, times: Any, first: Any, at: Any, rate: Any, turn: Any, speeds: Any,
    turns: Any, force: Any, base: Any, taken: Any,
) -> Any:  # fmt: skip
    """How `link` serves a chunk of `size` bytes that came at `came` and is next when the link is `free`: when it
    begins, when it ends (or NEVER), when the link is free for the next, and when it is sent again, or −1.

    `times` are service times by rate, and where those of this size begin; `base` is how many ways each turn tells of,
    and which of them the chunk takes.
    """
    begun, rest, whole, (service, kind), (ways, way) = -1, size, True, times, base
    for e in range(first[link], first[link + 1]):
        until = at[e + 1] if e + 1 < first[link + 1] else NEVER
        if until <= came or until == at[e]:
            continue
        speed = speeds[rate[e]]
        if speed == 0.0:
            if turn[e] >= 0:
                again, k = max(at[e], came + 1), turn[e]
                while k < len(turns) and turns[k] <= again:
                    k += 1
                if force[k * ways + way] != taken:
                    return begun, NEVER, (free if begun < 0 else at[e]), again
            continue
        now = max(at[e], came, free)
        if now >= until:
            continue
        if begun < 0:
            begun = now
        wait = service[kind + rate[e]]
        if not whole:
            left = rest * 1e12 / speed
            if left >= NEVER:
                return begun, NEVER, NEVER, -1
            wait = max(1, math.ceil(left))
        if now + wait <= until:
            return begun, now + wait, now + wait, -1
        rest, whole = max(0.0, rest - (speed * (until - now)) / 1e12), False
    return begun, NEVER, NEVER, -1


# --- fifo ---


@jit
def fifo(
    plan: Any, costs: Any, routes: Any, follows: Any, net: Any, graph: Any, steps: Any, go: Any, state: Any, free: Any,
    out: Any, hops: Any, heap: Any, changes: Any,
) -> Any:  # fmt: skip
    """Whole chunks by (time the head came, index); see the rules. Returns how many transfers ended, and the latest
    time of all.

    A link that `follows` another is not asked in an event of its own. All heads that come to it come from that other
    link, directly, so they come in the order in which that served them: it serves one after the other, each for at
    least 1 ps, and its latency is the same for all. Thus no head comes to the second link between two of them, nor two
    at once, and what it will do with a head is known as soon as the first link has begun to serve it.
    """
    way, kind, side, after = plan
    gap, cap, receive, came = costs
    hop, links = routes
    rate_of, latency, service, rates = net
    (free_link, free_side), (times, items, _) = free, heap
    (_, sent, arrive, _, _), (hop_begin, hop_end, first_hop) = out, hops
    when, complete, queue = go[0], out[4], graph[6][7]
    ended, latest, turned, size = 0, 0, 0, begin(go, state, complete, graph, heap)
    if changes is not None:  # else numba leaves out all that depends on it
        (first_row, row_at, row_rate, row_turn), (turns, force, ways, taken), speeds, size_of, told = changes
        n_turns = len(turns)
    while size:
        t, i = times[0], items[0]
        size = pop(heap, size)
        latest = max(latest, t)
        at = state[i]
        if at == SIDE:
            t = max(t, free_side[side[i]]) + receive[i]
            free_side[side[i]] = t
        else:
            w, again, first_time = way[i], -1, True
            if changes is not None:
                if at == 0:  # it sets out
                    while turned < n_turns and turns[turned] <= t:
                        turned += 1
                    taken[i] = force[turned * ways + w]
                w, first_time = taken[i], told[i] == 0
            e, behind, tail, onward = hop[w] + at, hop[w + 1], when[i], True
            while onward and e < behind:
                link = links[e]
                s = service[kind[i] * rates + rate_of[link]]
                r = max(t, free_link[link])
                if changes is not None and first_row[link] < first_row[link + 1]:
                    r, over, free_link[link], again = serve(
                        link, t, free_link[link], size_of[kind[i]], (service, kind[i] * rates), first_row, row_at,
                        row_rate, row_turn, speeds, turns, force, (ways, way[i]), w,
                    )  # fmt: skip
                    if over >= NEVER:
                        break
                    s = over - r
                else:
                    if s >= NEVER:
                        break
                    free_link[link] = r + s
                if len(hop_begin):
                    hop_begin[first_hop[i] + at], hop_end[first_hop[i] + at] = r, r + s
                if at == 0:
                    tail = r + max(s, value(cap, kind[i]))
                    if first_time:
                        if len(sent):
                            sent[i] = tail
                        if after[i] >= 0:
                            pause = value(gap, way[i])
                            size = relax(after[i], max(tail, when[i] + pause), go, heap, size)
                        else:
                            departed(i, tail, graph)
                else:
                    tail = max(r + s, tail)
                latest = max(latest, tail)
                t, tail = r + latency[link], tail + latency[link]  # of head and tail at the next link
                at += 1
                e += 1
                onward = e < behind and follows[links[e]]
            if e < behind:
                if changes is not None and again >= 0:  # lost
                    if at > 0:
                        told[i] = 1
                    state[i] = 0
                    size = push(heap, size, again, i)
                elif not onward:
                    when[i], state[i] = tail, at
                    size = push(heap, size, t, i)
                if queue[0]:
                    size = follow_up(go, state, complete, graph, heap, size)
                continue  # or the link is down
            if at == 0:  # a local copy without a memory link
                tail = t + 1
                if len(sent):
                    sent[i] = tail
                if after[i] >= 0:
                    size = relax(after[i], max(tail, t + value(gap, way[i])), go, heap, size)
                else:
                    departed(i, tail, graph)
            if len(arrive):
                arrive[i] = tail
            if value(receive, i):
                state[i] = SIDE
                size = push(heap, size, tail, i)
                if queue[0]:
                    size = follow_up(go, state, complete, graph, heap, size)
                continue
            t = tail
        latest = max(latest, t)
        size = finish(i, t, go, state, came, out, graph, steps, heap, size)
        if queue[0]:
            size = follow_up(go, state, complete, graph, heap, size)
        ended += 1
    return ended, latest


# --- fair ---
#
# A channel sends one transfer at a time, so flows are numbered by channel. Flow c takes the links
# path[c * width:c * width + length[c]]; each of these places is an entry in the list of the flows on its link. A link
# that no other channel ever takes is not among them. It only limits the flow, as every link does that has one flow on
# it: what counts is the `narrowest` link of each flow, the lowest of equals. Of links that are shared that may be the
# one as well: they give each of their flows less, and the last one no more.


@jit
def narrower(link: Any, other: Any, capacity: Any) -> Any:
    """Whether `link` limits more than `other`."""
    return capacity[link] < capacity[other] or (capacity[link] == capacity[other] and link < other)


@jit
def join(c: Any, paths: Any, rows: Any) -> None:
    """Flow `c` enters the lists of its links."""
    path, length, width, _ = paths
    head, after, before, count = rows
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        first = head[link]
        after[e], before[e] = first, -1
        if first >= 0:
            before[first] = e
        head[link] = e
        count[link] += 1


@jit
def leave(c: Any, paths: Any, rows: Any) -> None:
    """Flow `c` leaves the lists of its links."""
    path, length, width, _ = paths
    head, after, before, count = rows
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        if before[e] >= 0:
            after[before[e]] = after[e]
        else:
            head[link] = after[e]
        if after[e] >= 0:
            before[after[e]] = before[e]
        count[link] -= 1


@jit
def touch(c: Any, now: Any, paths: Any, touched: Any, mark: Any, size: Any) -> Any:
    """Note the links of flow `c`, each once an instant; returns how many are noted."""
    path, length, width, _ = paths
    for e in range(c * width, c * width + length[c]):
        if mark[path[e]] != now:
            mark[path[e]] = now
            touched[size] = path[e]
            size += 1
    return size


@jit
def connected(seed: Any, now: Any, paths: Any, rows: Any, found: Any, levels: Any, solved: Any) -> Any:
    """Find the flows that are connected with link `seed`, and the links that they share; returns how many."""
    path, length, width, owner = paths
    head, after, _, count = rows
    links, flows, link_mark, flow_mark = found
    capacity, avail, share, unfixed = levels
    n_links, n_flows, at, e = 0, 0, 0, head[seed]
    while True:
        while e >= 0:
            c = owner[e]
            if flow_mark[c] != now:
                flow_mark[c] = now
                flows[n_flows] = c
                n_flows += 1
                solved[c] = -1.0
                for other in range(c * width, c * width + length[c]):
                    link = path[other]
                    if link_mark[link] != now:
                        link_mark[link] = now
                        avail[link], unfixed[link] = capacity[link], 0.0
                        if count[link] > 1:
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
def fix(c: Any, rate: Any, paths: Any, count: Any, levels: Any, solved: Any) -> None:
    """Give flow `c` its rate, and take that from its links; what these can give to others never falls below."""
    path, length, width, _ = paths
    _, avail, share, unfixed = levels
    solved[c] = rate
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        if count[link] > 1:
            avail[link] -= rate
            unfixed[link] -= 1.0
            share[link] = max(avail[link] / unfixed[link], rate) if unfixed[link] > 0.0 else math.inf


@jit
def most_limited(n_flows: Any, flows: Any, capacity: Any, narrowest: Any, solved: Any) -> Any:
    """Of the flows without a rate the one that one of its links limits most."""
    least = -1
    for a in range(n_flows):
        c = flows[a]
        if solved[c] < 0.0 and (least < 0 or narrower(narrowest[c], narrowest[least], capacity)):
            least = c
    return least


@jit
def fill(n_links: Any, n_flows: Any, paths: Any, rows: Any, found: Any, levels: Any, bound: Any, flow: Any) -> None:
    """Progressive filling of what was found: solves the rate of every flow in it. Rates never fall from one round to
    the next. No link is narrower than `bound`."""
    owner, (head, after, _, count), links, flows = paths[3], rows, found[0], found[1]
    capacity, _, share, _ = levels
    solved, narrowest = flow[9], flow[10]
    left, first = n_flows, -1
    while left:
        rate, tightest, a = math.inf, -1, 0
        while a < n_links:
            link = links[a]
            if share[link] < rate or (share[link] == rate and link < tightest):
                rate, tightest = share[link], link
            elif share[link] == math.inf:  # nothing left to decide there
                n_links -= 1
                links[a] = links[n_links]
                continue
            a += 1
        if rate >= bound:  # a link that one flow has to itself may be the tightest
            if first < 0 or solved[first] >= 0.0:
                first = most_limited(n_flows, flows, capacity, narrowest, solved)
            if (capacity[narrowest[first]], narrowest[first]) < (rate, tightest):
                fix(first, capacity[narrowest[first]], paths, count, levels, solved)
                left -= 1
                continue
        e = head[tightest]
        while e >= 0:
            if solved[owner[e]] < 0.0:
                fix(owner[e], rate, paths, count, levels, solved)
                left -= 1
            e = after[e]


@jit
def replan(c: Any, t: Any, flow: Any) -> None:
    """Take up the new rate of flow `c` at time `t`: `due` is when its bytes are gone, NEVER if they do not move, or not
    within the range of the clock."""
    _, _, rest, since, rate, whole, most, full, due, solved, _ = flow
    if rate[c] >= 0.0:
        rest[c] = max(0.0, rest[c] - (rate[c] * (t - since[c])) / 1e12)
        whole[c] = 0
    since[c], rate[c], due[c] = t, solved[c], NEVER
    if rate[c] > 0.0:
        wait = rest[c] * 1e12 / rate[c]
        if whole[c] and rate[c] == most[c]:
            due[c] = t + full[c]
        elif wait < NEVER:
            due[c] = t + max(1, math.ceil(wait))


@jit
def solve(
    seed: Any, t: Any, now: Any, paths: Any, rows: Any, found: Any, levels: Any, bound: Any, flow: Any, ends: Any,
    size: Any,
) -> Any:  # fmt: skip
    """New rates for all that is connected with link `seed`; returns the size of the heap of `ends`.

    Of what is connected only the flows that end first are in that heap: their end changes the rates of the others.
    """
    flows, rate, due, solved, place = found[1], flow[4], flow[8], flow[9], ends[2]
    n_links, n_flows = connected(seed, now, paths, rows, found, levels, solved)
    fill(n_links, n_flows, paths, rows, found, levels, bound, flow)
    least = NEVER
    for a in range(n_flows):
        c = flows[a]
        if solved[c] != rate[c]:
            replan(c, t, flow)
        least = min(least, due[c])
    for a in range(n_flows):
        c = flows[a]
        if due[c] == least and least < NEVER:
            size = move(ends, size, least, c)
        elif place[c] >= 0:
            size = drop(ends, size, c)
    return size


@jit
def tightest(c: Any, paths: Any, capacity: Any) -> Any:
    """Of the links that flow `c` takes the narrowest, the lowest of equals."""
    path, length, width, _ = paths
    found = path[c * width]
    for e in range(c * width + 1, c * width + length[c]):
        if narrower(path[e], found, capacity):
            found = path[e]
    return found


@jit
def capped(c: Any, link: Any, caps: Any, capacity: Any) -> Any:
    """That link or the one that stands for the cap of channel `c`, behind the real ones, if that is narrower."""
    return caps + c if caps >= 0 and narrower(caps + c, link, capacity) else link


@jit
def aim(
    c: Any, w: Any, t: Any, kind: Any, size_of: Any, cap: Any, routes: Any, service: Any, rate_of: Any, caps: Any,
    paths: Any, capacity: Any, flow: Any,
) -> Any:  # fmt: skip
    """Flow `c` sets out at time `t` over way `w`, on links as they are then."""
    (hop, links), (times, rates), (path, length, width, _) = routes, service, paths
    _, _, rest, since, rate, whole, most, full, due, _, narrowest = flow
    for e in range(hop[w + 1] - hop[w]):
        path[c * width + e] = links[hop[w] + e]
    length[c] = hop[w + 1] - hop[w]
    link = tightest(c, paths, capacity)
    narrowest[c] = capped(c, link, caps, capacity)
    rest[c], since[c], rate[c], whole[c] = size_of[kind], t, -1.0, 1
    most[c], due[c] = capacity[narrowest[c]], NEVER
    full[c] = max(times[kind * rates + rate_of[link]], value(cap, kind))


@jit
def fair(
    plan: Any, costs: Any, routes: Any, limits: Any, service: Any, graph: Any, steps: Any, go: Any, state: Any,
    free_side: Any, out: Any, ready: Any, paths: Any, rows: Any, found: Any, levels: Any, bound: Any, flow: Any,
    touches: Any, heap: Any, ends: Any, changes: Any,
) -> Any:  # fmt: skip
    """Max-min fair flows; see the rules. Returns how many transfers ended, and the latest time of all.

    `routes` are without the links that only one channel takes. What takes no other is never a flow: nobody changes its
    rate, and when its bytes will be gone is known when it is ready. Where links change during the run, all are there.
    """
    way, kind, side, after, channel, size_of = plan
    gap, cap, receive, came = costs
    hop, links = routes
    slowest, most_of, away, narrowest_of, caps = limits
    times, rates = service
    path, length, width, owner = paths
    on, began, rest, since, rate, whole, most, full, due, _, narrowest = flow
    (_, sent, arrive, _, _), lead, (mark, touched), capacity = out, go[3], touches, levels[0]
    complete, queue, (head, next_on, _, _) = out[4], graph[6][7], rows
    ended, latest, now, row, turned, n_rows = 0, 0, 0, 0, 0, 0
    if changes is not None:  # else numba leaves out all that depends on it
        (row_link, row_at, row_rate, row_turn), (_, force, ways, taken), speeds, rate_of = changes
        n_rows = len(row_at)
    flowing, size = 0, begin(go, state, complete, graph, heap)
    while size or flowing or row < n_rows:
        if changes is not None and not (size or flowing):
            t = NEVER
        else:
            t = heap[0][0] if size and not (flowing and ends[0][0] < heap[0][0]) else ends[0][0]
        if changes is not None and row < n_rows and row_at[row] < t:
            t = row_at[row]
        else:
            latest = max(latest, t)
        now += 1
        n_touched = 0
        if changes is not None:
            while row < n_rows and row_at[row] == t:
                link = row_link[row]
                if row_turn[row] < 0:
                    rate_of[link] = row_rate[row]
                    capacity[link] = speeds[row_rate[row]]
                    e = head[link]
                    if e >= 0 and mark[link] != now:
                        mark[link] = now
                        touched[n_touched] = link
                        n_touched += 1
                    while e >= 0:
                        narrowest[owner[e]] = capped(owner[e], tightest(owner[e], paths, capacity), caps, capacity)
                        e = next_on[e]
                else:
                    turned = row_turn[row]
                    e = head[link]
                    while e >= 0:
                        c, e = owner[e], next_on[e]
                        w = force[turned * ways + way[on[c]]]
                        if w != taken[on[c]]:  # sent again, from the start
                            leave(c, paths, rows)
                            n_touched = touch(c, now, paths, touched, mark, n_touched)
                            if ends[2][c] >= 0:
                                flowing = drop(ends, flowing, c)
                            taken[on[c]] = w
                            if len(ready):
                                ready[on[c]] = t
                            aim(
                                c, w, t, kind[on[c]], size_of, cap, routes, service, rate_of, caps, paths, capacity,
                                flow,
                            )  # fmt: skip
                            join(c, paths, rows)
                            n_touched = touch(c, now, paths, touched, mark, n_touched)
                row += 1
        while (flowing and ends[0][0] == t) or (size and heap[0][0] == t):
            gone, tail, begun = -1, -1, 0  # if they come to be known
            if flowing and ends[0][0] == t:
                c = ends[1][0]
                flowing = pop(ends, flowing)
                leave(c, paths, rows)
                n_touched = touch(c, now, paths, touched, mark, n_touched)
                i, gone, begun = on[c], t, began[c]
            else:
                i = heap[1][0]
                size = pop(heap, size)
                if state[i] == SIDE:
                    tail = max(t, free_side[side[i]]) + receive[i]
                    free_side[side[i]] = tail
                else:
                    w = way[i]
                    if changes is not None:
                        w = taken[i] = force[turned * ways + w]
                    c, limit, begun = channel[i], narrowest_of[w], t - value(lead, way[i])
                    first, far = hop[w], hop[w + 1] - hop[w]
                    if caps >= 0 and limit >= 0 and narrower(caps + c, limit, capacity):
                        limit = caps + c  # the channel's cap is a link of its own, behind the real ones
                    takes = max(times[kind[i] * rates + slowest[w]], value(cap, kind[i]))
                    if len(ready):
                        ready[i] = t
                    if far:
                        on[c], began[c] = i, begun
                        if changes is not None:
                            aim(
                                c, w, t, kind[i], size_of, cap, routes, service, rate_of, caps, paths, capacity, flow,
                            )  # fmt: skip
                        else:
                            for e in range(far):
                                path[c * width + e] = links[first + e]
                            length[c], narrowest[c] = far, limit
                            rest[c], since[c], rate[c], whole[c] = size_of[kind[i]], t, -1.0, 1
                            most[c], full[c], due[c] = most_of[way[i]], takes, NEVER
                        join(c, paths, rows)
                        n_touched = touch(c, now, paths, touched, mark, n_touched)
                    elif limit < 0:  # a local copy without a memory link
                        gone = t + 1
                    elif capacity[limit] > 0.0:
                        gone = t + takes
            if gone >= 0:
                w = way[i]
                if changes is not None:
                    w = taken[i]
                arrived = gone + away[w]
                if len(sent):
                    sent[i], arrive[i] = gone, arrived
                if after[i] >= 0:
                    size = relax(after[i], max(gone, begun + value(gap, way[i])), go, heap, size)
                else:
                    departed(i, gone, graph)
                if value(receive, i):
                    state[i] = SIDE
                    size = push(heap, size, arrived, i)
                else:
                    tail = arrived
            if tail >= 0:
                latest = max(latest, gone, tail)
                size = finish(i, tail, go, state, came, out, graph, steps, heap, size)
                ended += 1
            if queue[0]:
                size = follow_up(go, state, complete, graph, heap, size)
        for b in range(n_touched):
            if found[2][touched[b]] != now and rows[0][touched[b]] >= 0:  # not solved with an earlier one, nor empty
                flowing = solve(touched[b], t, now, paths, rows, found, levels, bound, flow, ends, flowing)
    return ended, latest


# --- replay ---


@jit
def replay(
    plan: Any, costs: Any, routes: Any, lead: Any, here: Any, net: Any, flows: Any, waits: Any, free: Any, last: Any,
    out: Any, hops: Any,
) -> Any:  # fmt: skip
    """Transfers in index order, without a heap. Returns how many were done before one came out of order, and the latest
    time of all.

    Exact if all were: the order used is then the order of (ready, index), and that solution is unique. With `flows`
    (the slowest rate and the latency of each route) the links are fair: exact as long as no two flows meet.
    """
    way, kind, side = plan
    gap, cap, receive, came = costs
    hop, links = routes
    rate_of, latency, service, rates = net
    reads, chain, credit, before, step = waits
    (free_link, free_side), (last_link, last_side), (slowest, away) = free, last, flows
    (start, sent, arrive, end, complete), (hop_begin, hop_end, first_hop) = out, hops
    open_step, passed, latest = -1, 0, 0
    for i in range(len(way)):
        t = value(here, i)
        if reads[i] >= 0:
            t = max(t, complete[reads[i]])
        if before[i] >= 0:
            t = max(t, sent[before[i]])
            if len(gap):
                t = max(t, start[before[i]] + gap[way[i]])
        if len(credit) and credit[i] >= 0:
            t = max(t, end[credit[i]])
        if len(step):  # barriers
            if step[i] != open_step:
                open_step, passed = step[i], latest
            t = max(t, passed)
        if len(start):
            start[i] = t
        t += value(lead, way[i])
        first, far = hop[way[i]], hop[way[i] + 1] - hop[way[i]]
        if far == 0:
            sent[i] = tail = t + 1
        elif len(slowest):
            gone = t + max(service[kind[i] * rates + slowest[way[i]]], value(cap, kind[i]))
            for at in range(far):
                link = links[first + at]
                if t < free_link[link]:
                    return i, latest
                free_link[link] = gone
                if len(hop_begin):
                    hop_begin[first_hop[i] + at], hop_end[first_hop[i] + at] = t, gone
            sent[i], tail = gone, gone + away[way[i]]
        else:
            tail = 0
            for at in range(far):
                link = links[first + at]
                if t < last_link[link]:
                    return i, latest
                last_link[link] = t
                s = service[kind[i] * rates + rate_of[link]]
                r = max(t, free_link[link])
                free_link[link] = r + s
                if len(hop_begin):
                    hop_begin[first_hop[i] + at], hop_end[first_hop[i] + at] = r, r + s
                if at == 0:
                    tail = r + max(s, value(cap, kind[i]))
                    sent[i] = tail
                else:
                    tail = max(r + s, tail)
                latest = max(latest, tail)
                t, tail = r + latency[link], tail + latency[link]  # of head and tail at the next link
        if len(arrive):
            arrive[i] = tail
        if value(receive, i):
            if tail < last_side[side[i]]:
                return i, latest
            last_side[side[i]] = tail
            tail = max(tail, free_side[side[i]]) + receive[i]
            free_side[side[i]] = tail
        if len(end):
            end[i] = tail
        complete[i] = max(tail, complete[chain[i]] if chain[i] >= 0 else value(came, i))
        latest = max(latest, t, tail)
    return len(way), latest
