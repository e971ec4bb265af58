"""Waiting of transfers for each other: the part of a run that does not depend on how links are shared.

Functions that put a start on the heap of `Starts` take the size of the heap and return the new one.

A server is assigned when its request is popped, which is the second phase of an instant, because every cause precedes
its effect by at least 1 ps. When a link begins to serve a transfer, the time at which that is sent is known, so whoever
waits for it can be given its time at once.
"""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels.records import Barriers, Heads, Progress, Starts, TaskColumns

SIDE, ENDED, COMPLETE = -1, -2, -3  # where a transfer is; before that, how many links its head has passed
jit, inner, inline = jit_for(__name__), jit_for(__name__), jit_for(__name__, inline=True)
heaps = load_like(__name__, plain_heap)


@inline
def value(column: Any, i: Any) -> Any:
    """Entry `i` of a column that is left empty where all entries are 0."""
    return column[i] if len(column) else 0


@inline
def note(heads: Heads, link: Any, t: Any) -> None:
    """A head comes to a link at `t`."""
    if len(heads.first):
        heads.first[link], heads.last[link] = min(heads.first[link], t), max(heads.last[link], t)


@jit
def turn_round(waits: Any, after: Any, pending: Any) -> None:
    """Turn "waits for" round into "is awaited by": `waits` are reads, chain, credit and channel_before,
    `after` first_reader, next_reader, chain_after, credit_after and channel_after, filled with −1; `pending`, filled
    with 0, counts what each waits for. Credit and its counterpart are empty where there are none."""
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
def latest_of_ranks(way: Any, src: Any, dst: Any, sent: Any, complete: Any, done: Any) -> None:
    """Set `done` of each participant to when the last of its transfers is sent, or complete, if that is later."""
    for i in range(len(way)):
        w = way[i]
        done[src[w]] = max(done[src[w]], sent[i])
        done[dst[w]] = max(done[dst[w]], complete[i])


@inner
def relax(i: Any, t: Any, starts: Starts, size: Any) -> Any:
    """One of the things that transfer `i` waits for happens at `t`; the last of them starts it."""
    when, pending, _, _, _, _ = starts
    t = max(t, when[i])
    when[i] = t
    pending[i] -= 1
    if pending[i] == 0:
        size = start(i, t, starts, size)
    return size


@inline
def start(i: Any, t: Any, starts: Starts, size: Any) -> Any:
    """Transfer `i` starts at `t`."""
    _, _, way, lead, noted, heap = starts
    if len(noted):
        noted[i] = t
    return heaps.push(heap, size, t + value(lead, way[i]), i)


@inner
def begin(progress: Progress) -> Any:
    """Start what waits for nothing."""
    starts, waits, size = progress.starts, progress.tasks.waits, 0
    when, pending, _, _, _, _ = starts
    for i in range(len(pending)):
        if pending[i] == 0:
            size = start(i, when[i], starts, size)
    for k in range(len(waits)):
        if waits[k] == 0:
            size = open_task(k, progress, size)
    return follow_up(progress, size)


@inline
def send(i: Any, t: Any, ready: Any, progress: Progress, size: Any) -> Any:
    """Transfer `i` is sent at `t`; its channel is not `ready` for the next before that time."""
    starts, _, _, times, successors, tasks, _, _ = progress
    after, sent = successors.channel_after[i], times.sent
    if len(sent):
        sent[i] = t
    if after >= 0:
        size = relax(after, max(t, ready), starts, size)
    elif len(tasks.sender):
        count_down(tasks.sender[i], t, tasks)
    return size


@inner
def settle(i: Any, t: Any, progress: Progress, size: Any) -> Any:
    """Version `i` is complete at `t`: its readers may go, and so may the versions that were waiting for it."""
    starts, state, _, times, successors, tasks, _, _ = progress
    _, chain_after, first_reader, next_reader, _, _, _ = successors
    when, complete, receiver = starts.when, times.complete, tasks.receiver
    while True:
        state[i], when[i] = COMPLETE, t
        if len(complete):
            complete[i] = t
        if len(receiver):
            count_down(receiver[i], t, tasks)
        reader = first_reader[i]
        while reader >= 0:
            size = relax(reader, t, starts, size)
            reader = next_reader[reader]
        i = chain_after[i]
        if i < 0 or state[i] != ENDED:
            return size
        t = max(t, when[i])


@inner
def finish(i: Any, t: Any, progress: Progress, size: Any) -> Any:
    """Transfer `i` ends at `t`."""
    starts, state, came, times, successors, tasks, barriers, _ = progress
    chain, _, _, _, credit_after, _, turn = successors
    when, end, adds_to, waits, opened = starts.when, times.end, tasks.adds_to, tasks.waits, tasks.opened
    if len(end):
        end[i] = t
    if len(credit_after) and credit_after[i] >= 0:
        size = relax(credit_after[i], t, starts, size)
    if len(turn):  # with blocking sends: who turns to what next
        for after in (turn[2 * i], turn[2 * i + 1]):
            if after >= 0:
                size = relax(after, t, starts, size)
    before, k = chain[i], adds_to[i] if len(adds_to) else -1
    if (before >= 0 and state[before] != COMPLETE) or (k >= 0 and waits[k] > 0):
        state[i], when[i] = ENDED, t
    else:
        whole = max(t, when[before] if before >= 0 else value(came, i))
        if k >= 0:
            whole = max(whole, opened[k])
        size = settle(i, whole, progress, size)
    if len(barriers.left):
        size = pass_barriers(i, t, starts, barriers, size)
    return size


@inline
def pass_barriers(i: Any, t: Any, starts: Starts, barriers: Barriers, size: Any) -> Any:
    """Transfer `i` ends at `t`: after the last of its step the next step starts."""
    step, first, left, passed = barriers
    left[step[i]] -= 1
    passed[1] = max(passed[1], t)
    while passed[0] < len(left) and left[passed[0]] == 0:
        passed[0] += 1
        if passed[0] < len(left):
            for j in range(first[passed[0]], first[passed[0] + 1]):
                size = relax(j, passed[1], starts, size)
    return size


# --- tasks ---


@inner
def count_down(k: Any, t: Any, tasks: TaskColumns) -> None:
    """One of the things that task `k` is done with happens at `t`; after the last of them it is to be followed up."""
    left, done, queue = tasks.left, tasks.done, tasks.queue
    if k < 0:
        return
    done[k] = max(done[k], t)
    left[k] -= 1
    if left[k] == 0:
        queue[0] += 1
        queue[queue[0]] = k


@inner
def open_task(k: Any, progress: Progress, size: Any) -> Any:
    """All that task `k` waited for is done: its channels may go, and the data that its rank brings is there."""
    starts, state, _, _, _, tasks, _, _ = progress
    _, _, _, _, opened, _, _, _, duration, _, _, first_begun, begun, first_added, added = tasks
    t, when = opened[k], starts.when
    for e in range(first_begun[k], first_begun[k + 1]):
        size = relax(begun[e], t, starts, size)
    for e in range(first_added[k], first_added[k + 1]):
        i = added[e]
        if state[i] == ENDED:
            size = settle(i, max(t, when[i]), progress, size)
    count_down(k, t + duration[k], tasks)
    return size


@inner
def follow_up(progress: Progress, size: Any) -> Any:
    """Open what waited for the tasks that are done."""
    _, _, _, waits, opened, _, done, queue, _, first_behind, behind, _, _, _, _ = progress.tasks
    while queue[0]:
        k = queue[queue[0]]
        queue[0] -= 1
        for e in range(first_behind[k], first_behind[k + 1]):
            b = behind[e]
            opened[b] = max(opened[b], done[k])
            waits[b] -= 1
            if waits[b] == 0:
                size = open_task(b, progress, size)
    return size
