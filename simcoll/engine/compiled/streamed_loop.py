"""The loops of the streamed engine: they replay a schedule part by part, and keep no times of transfers.

Later parts depend on few times: when each channel, link and receive side is free, the last ends of each connection, and
the writes for which a transfer may still wait. A write is forgotten if it completes before the channel that would send
its data is free: a later read waits longer for the channel.

The code is in the subset of Python that numba compiles; see `simcoll.config.numba_loader`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simcoll.config.numba_loader import is_compiled, jit_for

DONE, OUT_OF_ORDER, OVERFLOW, TOO_LATE = 0, 1, 2, 3
NEVER = 2**62
jit = jit_for(__name__)
COMPILED = is_compiled(__name__)


class StreamRows(NamedTuple):
    """The rows of one step: row r sends from a slot of its sender to a slot of its receiver, over the links
    `links[hop[r]:hop[r + 1]]`. From step to step the slots move round a cycle that begins at slot `base`. `connection`
    numbers its pair of ranks."""

    src: Any
    src_slot: Any
    dst: Any
    dst_slot: Any
    base: Any
    reduce: Any
    hop: Any
    links: Any
    connection: Any


class StreamLoop(NamedTuple):
    """The columns that hold for all rows of a loop. By link: its latency. `rates`: the number of distinct rates, then
    the index of each link's rate. `table`: service times by size and rate. `sizes`: the index of each slot's size.
    Overheads in ps. By size: the service time at the channel's cap, the duration of a reduction, and the bytes. Then
    the parameters of the run; `offset` is the number of chunks in earlier loops."""

    latency: Any
    table: Any
    sizes: Any
    rates: Any
    o_send: int
    o_recv: int
    caps: Any
    gammas: Any
    nbytes: Any
    channels: int
    offset: int
    g: int
    slots: int
    barrier: bool
    fair: bool


class StreamState(NamedTuple):
    """The state that later steps depend on. By channel: when it is `free`, and when its last transfer `began`. By link,
    by receive side: when it is free, and when its last request came. By connection: its last `ends`, and how many
    messages it `used`. `clock`: the latest end, the latest end of earlier steps, and the step's number. Results, or
    empty columns: when the first head came to each link (`first_link`), and when each participant is `done`."""

    free: Any
    began: Any
    free_link: Any
    first_link: Any
    last_link: Any
    free_side: Any
    last_side: Any
    ends: Any
    used: Any
    done: Any
    clock: Any


class StreamMemory(NamedTuple):
    """The writes to slots whose completion may still delay a transfer. Each participant has `width` entries (if 0, one
    entry for each of its `n_slots` slots): the slot, the time of completion, and the step that wrote it."""

    keys: Any
    when: Any
    made: Any
    width: int
    n_slots: int


@jit
def recall(keys: Any, width: Any, slots: Any, p: Any, slot: Any) -> Any:
    """Return the index in the memory of the last write to `slot` of participant `p`. Return −1 if this write is
    forgotten, or if there was none."""
    if width == 0:
        at = p * slots + slot
        return at if keys[at] >= 0 else -1
    for at in range(p * width, (p + 1) * width):
        if keys[at] == slot:
            return at
        if keys[at] < 0:  # remembered writes come first
            return -1
    return -1


@jit
def room(keys: Any, when: Any, width: Any, free: Any, lanes: Any, offset: Any, p: Any) -> Any:
    """Return an index in the memory of participant `p` that is free, or whose write may be forgotten; −1 if there is
    none.

    Slots use the participant's `lanes` channels round-robin, counted on from the `offset` chunks of earlier loops.
    """
    for at in range(p * width, (p + 1) * width):
        key = keys[at]
        if key < 0 or when[at] <= free[p * lanes + (offset + key) % lanes]:
            return at
    return -1


@jit
def play(
    rows: StreamRows,
    turns: Any,
    loop: StreamLoop,
    state: StreamState,
    memory: StreamMemory,
    wait: Any,
    sent: Any,
) -> Any:
    """Replay some steps of one pattern in index order. Return DONE, or the code of the reason why the replay stopped.

    DONE means that the result is exact: every server took transfers in the order (ready, index); under `fair` no two
    flows met. A single loop for this engine and for programs in memory was measured: to look writes up in a
    participant's memory takes 15 % longer (`fifo`) or 80 % (`fair`) on the profile `ideal`.
    """
    src, src_slot, dst, dst_slot, base, reduce, hop, links, connection = rows
    times, span, shift = turns
    latency, table, sizes, rates, o_send, o_recv, caps, gammas, nbytes, channels, offset, g, slots, barrier, fair = loop
    free, began, free_link, first_link, last_link, free_side, last_side, ends, used, done, clock = state
    keys, when, made, width, n_slots = memory
    rate_of, width_of = rates[1:], rates[0]
    for _ in range(times):
        clock[2] += 1
        if barrier:
            clock[1] = clock[0]
        for r in range(len(src)):
            at = recall(keys, width, n_slots, src[r], src_slot[r])
            wait[r] = when[at] if at >= 0 else 0
        for r in range(len(src)):
            p, q, slot, local = src[r], dst[r], src_slot[r], src[r] == dst[r]
            number = (offset + slot) % channels if channels > 1 else 0
            size = sizes[slot] if len(sizes) else 0
            a, b = p * channels + number, q * channels + number
            t = max(wait[r], free[a])
            if g:
                t = max(t, began[a] + g)
            if slots:
                c = connection[r] * channels + number
                if used[c] >= slots:
                    t = max(t, ends[c * slots + used[c] % slots])
            if barrier:
                t = max(t, clock[1])
            head = t if local else t + o_send
            first, last = hop[r], hop[r + 1]
            if first == last:
                gone = arrive = t + 1
            elif fair:
                busy = caps[size] if len(caps) else 1
                away = 0
                for e in range(first, last):
                    if head < free_link[links[e]]:
                        return OUT_OF_ORDER
                    busy = max(busy, table[size * width_of + rate_of[links[e]]])
                    away += latency[links[e]]
                gone = head + busy
                for e in range(first, last):
                    free_link[links[e]] = gone
                arrive = gone + away
            else:
                gone, tail = 0, 0
                for e in range(first, last):
                    link = links[e]
                    if head < last_link[link]:
                        return OUT_OF_ORDER
                    last_link[link] = head
                    if len(first_link):
                        first_link[link] = min(first_link[link], head)
                    s = table[size * width_of + rate_of[link]]
                    begin = max(head, free_link[link])
                    free_link[link] = begin + s
                    if e == first:
                        gone = tail = begin + (max(s, caps[size]) if len(caps) else s)
                    else:
                        tail = max(begin + s, tail)
                    tail += latency[link]
                    head = begin + latency[link]
                arrive = tail
            began[a], free[a] = t, gone
            busy = 0 if local else o_recv
            if reduce[r] and len(gammas):
                busy += gammas[size]
            if busy:
                if arrive < last_side[b]:
                    return OUT_OF_ORDER
                last_side[b] = arrive
                arrive = max(arrive, free_side[b]) + busy
                free_side[b] = arrive
            if slots:
                ends[c * slots + used[c] % slots] = arrive
                used[c] += 1
            if arrive < 0 or arrive >= NEVER:
                return TOO_LATE
            clock[0] = max(clock[0], arrive)
            if len(nbytes):
                sent[r] += nbytes[size]
            at = recall(keys, width, n_slots, q, dst_slot[r])
            if at < 0:
                complete = arrive  # its reader sends, and so has come
                if width:
                    at = room(keys, when, width, free, channels, offset, q)
                    if at < 0:
                        return OVERFLOW
                else:
                    at = q * n_slots + dst_slot[r]
            else:
                complete = max(arrive, when[at]) if reduce[r] or made[at] == clock[2] else arrive
            keys[at], when[at], made[at] = dst_slot[r], complete, clock[2]
            if len(done):
                done[p], done[q] = max(done[p], gone), max(done[q], complete)
        turn(src_slot, base, span, shift)
        turn(dst_slot, base, span, shift)
    return DONE


@jit
def turn(slot: Any, base: Any, span: Any, shift: Any) -> None:
    """Advance each row's slot by `shift` (0 … span − 1) in its cycle of `span` slots, which begins at `base`."""
    if shift:
        for r in range(len(slot)):
            moved = slot[r] + shift
            slot[r] = moved - span if moved >= base[r] + span else moved


@jit
def settled(rows: StreamRows, memory: StreamMemory, free: Any, before: Any, done: Any) -> Any:
    """Return whether the rows need to wait only for writes that they read next. The times of these writes go to `done`.

    Row r reads what row `before[r]` writes. Each participant has one channel.
    """
    src, src_slot = rows.src, rows.src_slot
    keys, times, width = memory.keys, memory.when, memory.width
    if width == 0:
        return False
    for r in range(len(src)):
        p = src[r]
        done[before[r]] = 0
        for at in range(p * width, (p + 1) * width):
            if keys[at] == src_slot[r]:
                done[before[r]] = times[at]
            elif keys[at] >= 0 and times[at] > free[p]:
                return False
    return True


@jit
def go_round(
    times: Any,
    block: Any,
    depth: Any,
    before: Any,
    done: Any,
    free: Any,
    row: Any,
    hops: Any,
    side: Any,
    ends: Any,
    work: Any,
) -> None:
    """Run many steps of rows that share no channel, no link and no receive side with another row.

    A row waits for the row `before` it, its channel and its credit. On its first link it never waits, on later links
    only for its own transfer of the previous step. `free`, (rows,): when the channel may start again. `row`: the times
    from start to that, and until head and tail are behind the first link. `hops`, (depth × rows,): free times, service
    times and latencies of the links. `side`: free times and service times of the receive sides. `ends`: the last ends.
    `done`: when the writes of each row are complete, in two columns that alternate from step to step.
    """
    hold, to_head, to_tail = row
    free_link, busy, latency = hops
    free_side, receive = side
    wait, head, tail = work
    n, slots = len(free), len(ends) // len(free)
    for k in range(times):
        old, new = done[k % 2], done[(k + 1) % 2]
        place = (k % slots) * n if slots else 0
        for lo in range(0, n, block):
            hi = min(n, lo + block)
            meet(old, before[lo:hi], free[lo:hi], wait)
            if slots:
                later(ends[place + lo : place + hi], wait)
            add(wait, to_tail[lo:hi], tail)
            add(wait, to_head[lo:hi], head)
            add(wait, hold[lo:hi], free[lo:hi])
            for e in range(n, depth * n, n):
                pass_link(head, tail, free_link[e + lo : e + hi], busy[e + lo : e + hi], latency[e + lo : e + hi], wait)
            if len(receive):
                later(free_side[lo:hi], tail)
                add(tail, receive[lo:hi], free_side[lo:hi])
                add(tail, receive[lo:hi], tail)
            copy(tail, new[lo:hi])
            if slots:
                copy(tail, ends[place + lo : place + hi])


# Each loop writes few arrays, so that the compiler sees that they do not overlap, and vectorizes it. Without numba,
# NumPy functions replace these loops (below).


@jit
def meet(done: Any, before: Any, free: Any, out: Any) -> None:
    """Write to `out` for each row the later of two times: when row `before` is done, and when the channel is free."""
    for r in range(len(free)):
        out[r] = max(done[before[r]], free[r])


@jit
def later(times: Any, out: Any) -> None:
    """Write to `out` for each row the later of `out` and `times`."""
    for r in range(len(times)):
        out[r] = max(out[r], times[r])


@jit
def add(times: Any, durations: Any, out: Any) -> None:
    """Write to `out` for each row the sum of its time and duration."""
    for r in range(len(durations)):
        out[r] = times[r] + durations[r]


@jit
def copy(times: Any, out: Any) -> None:
    """Copy times to `out`."""
    for r in range(len(out)):
        out[r] = times[r]


@jit
def pass_link(head: Any, tail: Any, free: Any, busy: Any, latency: Any, begin: Any) -> None:
    """Advance for each row the times of its head and tail over a link, and the time when the link is `free`."""
    for r in range(len(free)):
        begin[r] = max(head[r], free[r])
    for r in range(len(free)):
        free[r] = begin[r] + busy[r]
    for r in range(len(free)):
        tail[r] = max(free[r], tail[r]) + latency[r]
    for r in range(len(free)):
        head[r] = begin[r] + latency[r]


if not COMPILED:

    def meet(done: Any, before: Any, free: Any, out: Any) -> None:
        """As the compiled `meet`: write the later of `done[before]` and `free` to `out`."""
        n = len(free)
        np.maximum(done[before], free, out=out[:n])

    def later(times: Any, out: Any) -> None:
        """As the compiled `later`: write the later of `out` and `times` to `out`."""
        n = len(times)
        np.maximum(out[:n], times, out=out[:n])

    def add(times: Any, durations: Any, out: Any) -> None:
        """As the compiled `add`: write the sums of times and durations to `out`."""
        n = len(durations)
        np.add(times[:n], durations, out=out[:n])

    def copy(times: Any, out: Any) -> None:
        """As the compiled `copy`: copy times to `out`."""
        out[:] = times[: len(out)]

    def pass_link(head: Any, tail: Any, free: Any, busy: Any, latency: Any, begin: Any) -> None:
        """As the compiled `pass_link`: advance head, tail and `free` over a link."""
        n = len(free)
        np.maximum(head[:n], free, out=begin[:n])
        np.add(begin[:n], busy, out=free)
        np.maximum(free, tail[:n], out=tail[:n])
        np.add(tail[:n], latency, out=tail[:n])
        np.add(begin[:n], latency, out=head[:n])
