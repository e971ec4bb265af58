"""The loop of the fast engine for a schedule that is repeated, where links serve whole chunks in turn.

Times are those with which `fifo_kernel` runs the program of all loops, but the columns are those of one loop. See the
rules in `timing_model`.
"""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels import loop_stream_kernel as plain_streams
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.loop_records import LoopRun

NEVER = 2**62
SIDE, ENDED, COMPLETE = plain_waits.SIDE, plain_waits.ENDED, plain_waits.COMPLETE
WAITING = COMPLETE - 1  # for one thing; one less for each further one
jit, inner, inline = jit_for(__name__), jit_for(__name__), jit_for(__name__, inline=True)
heaps, waits = load_like(__name__, plain_heap), load_like(__name__, plain_waits)
of_streams = load_like(__name__, plain_streams)
value, key_of, kind_of = waits.value, of_streams.key_of, of_streams.kind_of


@jit
def loops(run: LoopRun) -> Any:
    """Serve whole chunks by (time the head came, key). Returns how many transfers ended, and the latest time of all.

    Parts of the network take turns: each goes on alone for as long as nothing that happens meanwhile in a later one
    can be felt there. Its heap is short, and the columns that it works on stay in the processor's cache.
    """
    parts, streams, ended, latest = run.parts, run.streams, 0, 0
    for row in range(0, len(run.rows.way), run.rows.apart):
        if run.state.state[run.state.first[row]] == 0:
            enter(row, 0, 0, -1, run)
    for stream in range(len(streams.link)):
        of_streams.look_ahead(stream, 0, run)
    classes, clock = parts.classes, parts.clock
    soonest = earliest(run)
    while soonest < NEVER:
        # as long as none of the last whole loop has begun: a rest ends behind the whole piece before it on its way
        ahead = parts.ahead_whole if parts.begun[0] < parts.whole - 1 else parts.ahead
        for own in range(len(clock)):
            until = NEVER
            for other in range(len(clock)):
                late = ahead[other * len(clock) + own]
                if late < NEVER:
                    until = min(until, max(clock[other], soonest) + late)
            for part in range(classes[own], classes[own + 1]):
                t = first_of(part, run)
                while t < until:
                    ended, latest = go_on(part, min(until, t + streams.ahead), ended, latest, run)
                    t = first_of(part, run)
            clock[own] = until
        soonest = earliest(run)
    return ended, latest


@inline
def first_of(part: Any, run: LoopRun) -> Any:
    """A time before which nothing happens in a part."""
    soonest, top = run.streams.soonest[part], run.parts.room[part]
    return min(soonest, run.heap.times[top]) if run.parts.size[part] else soonest


@inner
def earliest(run: LoopRun) -> Any:
    """A time before which nothing happens, NEVER if nothing does any more."""
    soonest = NEVER
    for part in range(len(run.parts.size)):
        soonest = min(soonest, first_of(part, run))
    return soonest


@inner
def go_on(part: Any, until: Any, ended: Any, latest: Any, run: LoopRun) -> Any:
    """Run the events of a part before `until`. Returns how many transfers have ended by then, and the latest time.

    Transfers that an event lets go are `todo` first, so that the code for it stands here once, without calls: a call
    would hand on all columns.
    """
    (_, row_bits, loop_bits), rows, heap, size, todo = run.keys, run.rows, run.heap, run.parts.size, run.todo
    (when, state, first, wide), free_side, top = run.state, run.free.side, run.parts.room[part]
    times, items, streams, (hop, links) = heap.times, heap.items, run.streams, run.routes
    lane, row, loop, t, key, i, n = streams.of_part[part], 0, 0, until, -1, 0, 0
    streams.soonest[part], soonest, behind = NEVER, NEVER, 0
    while True:
        event = size[part] > 0 and times[top] < until
        if event:
            t, key = times[top], items[top]
            row, loop = (key & ((1 << row_bits) - 1)) * rows.apart, (key >> row_bits) & ((1 << loop_bits) - 1)
            i = first[row] + loop * wide
            way = rows.way[row]
            ahead = hop[way] + state[i] < hop[way + 1] and state[i] != SIDE and len(streams.link)
            link = links[hop[way] + state[i]] if ahead else -1
            begin = streams.of_link[link] if ahead else -1
            behind = streams.behind_link[link] if ahead else -1
        elif lane < streams.of_part[part + 1]:
            t, key, begin, behind = NEVER, -1, lane, streams.behind_link[streams.link[lane]]
        else:
            break
        n, there, onward, hole, stream = 0, False, part, -1, begin
        while stream >= 0 and not there:
            stream = of_streams.next_of(begin, behind, t, key, run)
            if stream >= 0 and not event and streams.head[stream] >= until:
                soonest, stream = min(soonest, streams.head[stream]), -1
            if stream >= 0:
                at, then = streams.at[stream], streams.loop[stream]
                tail = of_streams.pass_link(stream, run)
                latest, ended = max(latest, tail), ended + 1
                if streams.own[at] >= 0:
                    j = streams.own[at] + then * wide
                    when[j] = max(when[j], tail)
                    state[j] += 1
                    if state[j] == COMPLETE:
                        there = streams.onward[at] >= 0
                        if there:
                            row, loop, i, t = streams.onward[at], then, j, when[j]
                        else:
                            of_streams.complete(streams.dst[stream], when[j], run)
        if not there:
            if not event:
                lane = behind
                continue
            hole = part  # the first entry of this part's heap is used up
            if state[i] == SIDE:
                t = max(t, free_side[rows.side[row]]) + receive(row, loop, run)
                free_side[rows.side[row]] = t
                there = True
            else:
                there, t, latest, onward, n = travel(row, loop, i, t, max(latest, t), part, run)
                if there and receive(row, loop, run):
                    state[i], there = SIDE, False
        if there:
            if stream < 0:
                latest, ended = max(latest, t), ended + 1
                n = let_credit_go(row, loop, t, n, run)
            if rows.awaited[row]:
                n = finish(row, loop, i, t, n, run)
            else:
                of_streams.receive_last(run.ways.dst[rows.way[row]], t, run)
        elif onward >= 0:
            hole = push(t, key, onward, hole, run)
        for k in range(n):
            row, loop = todo.row[k], todo.loop[k]
            i = first[row] + loop * wide
            t = max(todo.time[k], when[i])
            when[i] = t
            if state[i] < WAITING:
                state[i] += 1
            else:
                state[i] = 0
                hole = enter(row, loop, t, hole, run)
        if hole >= 0:
            size[part] = heaps.pop(heap, size[part], top)
    streams.soonest[part] = min(streams.soonest[part], soonest)
    return ended, latest


@inline
def enter(row: Any, loop: Any, t: Any, hole: Any, run: LoopRun) -> Any:
    """A transfer starts at `t`, after all that it waits for. Returns the hole that is left: see `push`."""
    costs, way = run.costs, run.rows.way[row]
    run.parts.begun[0] = max(run.parts.begun[0], loop)
    t = max(t, value(costs.here, run.ways.src[way])) + value(costs.lead, way)
    return push(t, key_of(row, loop, run), run.parts.start[row], hole, run)


@inline
def push(t: Any, key: Any, part: Any, hole: Any, run: LoopRun) -> Any:
    """Enter a transfer at time `t` in the heap of a part, in place of its first entry if that is the `hole`. Returns
    the part with the hole, −1 if there is none any more."""
    heap, size, top = run.heap, run.parts.size, run.parts.room[part]
    if part == hole:
        heap.times[top], heap.items[top] = t, key
        heaps.sift_down(heap, size[part], 0, top)
        return -1
    size[part] = heaps.push(heap, size[part], t, key, top)
    return hole


@inline
def let_go(row: Any, loop: Any, t: Any, n: Any, run: LoopRun) -> Any:
    """One of the things that a transfer waits for happens at `t`; returns how many are to be let go."""
    run.todo.row[n], run.todo.loop[n], run.todo.time[n] = row, loop, t
    return n + 1


@inline
def receive(row: Any, loop: Any, run: LoopRun) -> Any:
    """The time for which a transfer keeps its receive side."""
    costs = run.costs
    took = value(costs.o_recv, run.rows.way[row])
    if len(costs.gamma) and run.rows.reduce[row]:
        took += costs.gamma[kind_of(row, loop, run)]
    return took


@inline
def travel(row: Any, loop: Any, i: Any, t: Any, latest: Any, part: Any, run: LoopRun) -> Any:
    """The head of a transfer, number `i` of the state, comes to its next link at `t`, and passes that and those that
    follow it: see `fifo_kernel.travel`. Returns whether its tail is behind the last link, when, the latest time, the
    part in which it goes on, −1 if it does not, and how many are to be let go."""
    rows, (hop, links), follows, costs, heads = run.rows, run.routes, run.follows, run.costs, run.heads
    (rate_of, latency, service, rates), free_link, (when, state, _, _) = run.net, run.free.link, run.state
    w, kind, n = rows.way[row], kind_of(row, loop, run), 0
    at, tail, onward, further = state[i], when[i], True, part
    e, behind = hop[w] + at, hop[w + 1]
    sent, ready = NEVER, t - value(costs.lead, w) + value(costs.gap, w)
    while onward and e < behind:
        link = links[e]
        waits.note(heads, link, t)
        s = service[kind * rates + rate_of[link]]
        if s >= NEVER:
            break
        r = max(t, free_link[link])
        free_link[link] = r + s
        if at == 0:
            tail = r + max(s, value(costs.cap, kind))
            sent = tail
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
            sent, ready = tail, t + value(costs.gap, w)
        t = tail
    elif onward:  # the link is down
        further = -1
    else:
        when[i], state[i], further = tail, at, run.parts.of_link[links[e]]
    if sent < NEVER:
        n = send(row, loop, sent, ready, run)
    return e == behind, t, latest, further, n


@inline
def send(row: Any, loop: Any, t: Any, ready: Any, run: LoopRun) -> Any:
    """A transfer is sent at `t`; its channel is not `ready` for the next before that time. Returns how many are to be
    let go."""
    rows, done, n = run.rows, run.done, 0
    src = run.ways.src[rows.way[row]]
    done[src] = max(done[src], t)
    after, then = rows.channel_after[row], loop
    if after < 0:
        after, then = rows.first[row], loop + 1
    if then < run.loops:
        n = let_go(after, then, max(t, ready), n, run)
    return n


@inline
def finish(row: Any, loop: Any, i: Any, t: Any, n: Any, run: LoopRun) -> Any:
    """A transfer, number `i` of the state, ends at `t`. Its version is complete after the one before it: then its
    readers may go, and so may the versions that were waiting for it. Returns how many are to be let go.

    What it adds to came with its participant, which reads nothing and is done with nothing before it is there.
    """
    rows, (when, state, first, wide), done, soonest = run.rows, run.state, run.done, run.streams.soonest
    before = rows.chain[row]
    if before >= 0:
        j = first[before] + loop * wide
        if state[j] == COMPLETE:
            t = max(t, when[j])
        else:
            state[i], when[i], row = ENDED, t, -1
    while row >= 0:
        state[i], when[i] = COMPLETE, t
        dst = run.ways.dst[rows.way[row]]
        done[dst] = max(done[dst], t)
        home = run.parts.home[dst]
        soonest[home] = min(soonest[home], t)  # for channels of streams, which look there
        reader = rows.first_reader[row]
        while reader >= 0:
            n = let_go(reader, loop, t, n, run)
            reader = rows.next_reader[reader]
        row = rows.chain_after[row]
        if row >= 0:
            i = first[row] + loop * wide
            if state[i] == ENDED:
                t = max(t, when[i])
            else:
                row = -1
    return n


@inline
def let_credit_go(row: Any, loop: Any, t: Any, n: Any, run: LoopRun) -> Any:
    """The slot of a transfer is free at `t`."""
    if len(run.credit_row) and loop + run.credit_loops[row] < run.loops:
        n = let_go(run.credit_row[row], loop + run.credit_loops[row], t, n, run)
    return n
