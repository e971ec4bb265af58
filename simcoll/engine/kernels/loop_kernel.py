"""The loop of the fast engine for a schedule that is repeated, where links serve whole chunks in turn.

Times are those with which `fifo_kernel` runs the program of all loops, but the columns are those of one loop. See the
rules in `timing_model`.
"""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.loop_records import LoopRun

NEVER = 2**62
SIDE, ENDED, COMPLETE = plain_waits.SIDE, plain_waits.ENDED, plain_waits.COMPLETE
jit, inner, inline = jit_for(__name__), jit_for(__name__, inner=True), jit_for(__name__, inline=True)
heaps, waits = load_like(__name__, plain_heap), load_like(__name__, plain_waits)
value = waits.value


@jit
def loops(run: LoopRun) -> Any:
    """Serve whole chunks by (time the head came, key). Returns how many transfers ended, and the latest time of all."""
    (_, row_bits, loop_bits), rows, heap, hole = run.keys, run.rows, run.heap, run.hole
    state, free_side, count = run.state.state, run.free.side, len(run.rows.way)
    times, items, ended, latest, size = heap.times, heap.items, 0, 0, 0
    for row in range(count):
        if run.state.pending[row] == 0:
            size = start(row, 0, 0, run, size)
    while size:
        t, key = times[0], items[0]
        row, loop = key & ((1 << row_bits) - 1), (key >> row_bits) & ((1 << loop_bits) - 1)
        i, hole[0] = loop * count + row, 1
        if state[i] == SIDE:
            t = max(t, free_side[rows.side[row]]) + receive(row, loop, run)
            free_side[rows.side[row]] = t
            there = True
        else:
            there, t, latest, size = travel(row, loop, t, max(latest, t), run, size)
            if there and receive(row, loop, run):
                state[i], there = SIDE, False
                size = push(t, key, run, size)
        if there:
            latest = max(latest, t)
            size = finish(row, loop, t, run, size)
            ended += 1
        if hole[0]:
            hole[0] = 0
            size = heaps.pop(heap, size)
    return ended, latest


@inline
def kind_of(row: Any, loop: Any, run: LoopRun) -> Any:
    """The number of a transfer's size."""
    kind, whole, piece, nothing = run.pieces
    k = kind[row]
    return piece if loop < whole[k] else k if loop == whole[k] else nothing


@inline
def receive(row: Any, loop: Any, run: LoopRun) -> Any:
    """The time for which a transfer keeps its receive side."""
    costs = run.costs
    took = value(costs.o_recv, run.rows.way[row])
    if len(costs.gamma) and run.rows.reduce[row]:
        took += costs.gamma[kind_of(row, loop, run)]
    return took


@inner
def push(t: Any, key: Any, run: LoopRun, size: Any) -> Any:
    """Enter a transfer at time `t`, in place of the first entry if that is used up."""
    heap, hole = run.heap, run.hole
    if hole[0]:
        hole[0], heap.times[0], heap.items[0] = 0, t, key
        heaps.sift_down(heap, size, 0)
        return size
    return heaps.push(heap, size, t, key)


@inline
def key_of(row: Any, loop: Any, run: LoopRun) -> Any:
    """The key of a transfer."""
    step, row_bits, loop_bits = run.keys
    return ((((step[row] + loop) << loop_bits) | loop) << row_bits) | row


@inner
def start(row: Any, loop: Any, t: Any, run: LoopRun, size: Any) -> Any:
    """All that a transfer waits for has happened by `t`."""
    costs, way = run.costs, run.rows.way[row]
    t = max(t, value(costs.here, run.ways.src[way]))
    return push(t + value(costs.lead, way), key_of(row, loop, run), run, size)


@inner
def relax(row: Any, loop: Any, t: Any, run: LoopRun, size: Any) -> Any:
    """One of the things that a transfer waits for happens at `t`; the last of them starts it."""
    when, pending, _ = run.state
    i = loop * len(run.rows.way) + row
    t = max(t, when[i])
    when[i] = t
    pending[i] -= 1
    if pending[i] == 0:
        size = start(row, loop, t, run, size)
    return size


@inline
def travel(row: Any, loop: Any, t: Any, latest: Any, run: LoopRun, size: Any) -> Any:
    """The head of a transfer comes to its next link at `t`, and passes that and those that follow it: see
    `fifo_kernel.travel`. Returns whether its tail is behind the last link, when, the latest time, and the heap's
    size."""
    rows, (hop, links), follows, costs, heads = run.rows, run.routes, run.follows, run.costs, run.heads
    (rate_of, latency, service, rates), free_link, (when, _, state) = run.net, run.free.link, run.state
    w, kind, i = rows.way[row], kind_of(row, loop, run), loop * len(rows.way) + row
    at, tail, onward = state[i], when[i], True
    e, behind = hop[w] + at, hop[w + 1]
    began = t - value(costs.lead, w)
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
            size = send(row, loop, tail, began + value(costs.gap, w), run, size)
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
            size = send(row, loop, tail, t + value(costs.gap, w), run, size)
        return True, tail, latest, size
    if not onward:  # else the link is down
        when[i], state[i] = tail, at
        size = push(t, key_of(row, loop, run), run, size)
    return False, t, latest, size


@inner
def send(row: Any, loop: Any, t: Any, ready: Any, run: LoopRun, size: Any) -> Any:
    """A transfer is sent at `t`; its channel is not `ready` for the next before that time."""
    rows, done = run.rows, run.done
    src = run.ways.src[rows.way[row]]
    done[src] = max(done[src], t)
    after = rows.channel_after[row]
    if after >= 0:
        return relax(after, loop, max(t, ready), run, size)
    if loop + 1 < run.loops:
        return relax(rows.first[row], loop + 1, max(t, ready), run, size)
    return size


@inner
def finish(row: Any, loop: Any, t: Any, run: LoopRun, size: Any) -> Any:
    """A transfer ends at `t`."""
    if len(run.credit_row) and loop + run.credit_loops[row] < run.loops:
        size = relax(run.credit_row[row], loop + run.credit_loops[row], t, run, size)
    rows, (when, _, state), base = run.rows, run.state, loop * len(run.rows.way)
    before = rows.chain[row]
    if before >= 0 and state[base + before] != COMPLETE:
        state[base + row], when[base + row] = ENDED, t
        return size
    t = max(t, when[base + before] if before >= 0 else value(run.costs.came, row))
    return settle(row, loop, t, run, size)


@inner
def settle(row: Any, loop: Any, t: Any, run: LoopRun, size: Any) -> Any:
    """A version is complete at `t`: its readers may go, and so may the versions that were waiting for it."""
    rows, (when, _, state), base, done = run.rows, run.state, loop * len(run.rows.way), run.done
    while True:
        state[base + row], when[base + row] = COMPLETE, t
        dst = run.ways.dst[rows.way[row]]
        done[dst] = max(done[dst], t)
        reader = rows.first_reader[row]
        while reader >= 0:
            size = relax(reader, loop, t, run, size)
            reader = rows.next_reader[reader]
        row = rows.chain_after[row]
        if row < 0 or state[base + row] != ENDED:
            return size
        t = max(t, when[base + row])
