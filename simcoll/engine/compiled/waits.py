"""How transfers wait for each other: the part of a run that is equal under `fifo` and `fair` sharing.

A transfer is a row of the schedule in a loop; `Starts` says how its number and its key are made from both.

Columns are arrays if numba compiles the kernels, else lists; columns that a run does not need are empty. "By way" (a
*way* is a route), "by size", … says what an entry belongs to; else it belongs to a transfer. Times are in ps. An index
is −1 if there is none.

A server takes a request when it is popped from the heap. That is the second phase of an instant, as every cause
precedes its effect by at least 1 ps. When a link begins to serve a transfer, the time at which the transfer is sent
can be computed, so its successors get their time at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.compiled import heap as plain_heap
from simcoll.engine.compiled.heap import Heap

SIDE, ENDED, COMPLETE = -1, -2, -3  # state of a transfer; before SIDE, the number of links that its head has passed
jit = jit_for(__name__)
heaps = load_like(__name__, plain_heap)


class Layout(NamedTuple):
    """The columns of a program that a kernel reads. By row: the way (route), the index of the size (`kind`), the
    receive side, and whether it reduces. By size: the number of loops in which a whole piece is sent (`whole`), empty
    if rows are sent whole; `piece` is the index of a whole piece's size. Durations by way: the channel's `gap`, and
    `o_recv`. Durations by size: the service time at the channel's `cap`, and the reduction (`gamma`). A column of
    durations is empty if all its entries are 0. Way w takes `links[hop[w]:hop[w + 1]]`. By link: the index of its rate,
    and its latency. `service[size * rates + rate]` is a service time."""

    way: Any
    kind: Any
    side: Any
    reduce: Any
    whole: Any
    piece: int
    gap: Any
    cap: Any
    o_recv: Any
    gamma: Any
    hop: Any
    links: Any
    rate_of: Any
    latency: Any
    service: Any
    rates: int


class KernelTimes(NamedTuple):
    """The columns of a `Timeline` that a kernel fills."""

    start: Any
    sent: Any
    arrive: Any
    end: Any
    complete: Any


class Starts(NamedTuple):
    """Transfers before their start. A schedule of `rows` rows runs in `loops` loops; row r of loop l is transfer r + l
    · `rows`. Its heap key holds, from the lowest bits, the row (`row_bits`), the loop (`loop_bits`), and the sum of
    step and loop. `step` is empty if loops run one after the other. After the last row of a channel comes its `first`
    row, in the next loop. By transfer: the earliest time `when` it may start, and the number of conditions `pending`.
    `way` is by row. `lead`, by way, is the time from a start to the head's arrival at the first link. `start` receives
    the times of starts."""

    loops: int
    rows: int
    row_bits: int
    loop_bits: int
    step: Any
    first: Any
    when: Any
    pending: Any
    way: Any
    lead: Any
    start: Any
    heap: Heap


class Successors(NamedTuple):
    """The rows that wait for each row. A list of rows, e.g. `chain`, has for row r the entries `first_chain[r]` to
    `first_chain[r + 1]` − 1. Writes of the rows `chain` must be complete before the row's own, and its own before those
    of the rows `chained`. The rows `readers` read what it writes. When a row ends, row `credit_after` may start,
    `credit_later` loops later (empty: 0). `turn`, (2 × rows,): the rows that may start when it ends, under blocking
    sends. `settled`, by row, is the next row of a list of rows to be settled."""

    first_chain: Any
    chain: Any
    first_chained: Any
    chained: Any
    first_reader: Any
    readers: Any
    settled: Any
    credit_after: Any
    credit_later: Any
    channel_after: Any
    turn: Any


class TaskColumns(NamedTuple):
    """The columns of tasks. By transfer: the task that sends it, the task that receives it, and the task whose input it
    reduces into (`adds_to`). By task: how many tasks it waits for, when it is `opened`, how many conditions are `left`
    until it is done, when it is `done`, and its duration. Three lists by task, each after a column of where a task's
    entries begin: the tasks that wait for it, the first transfers of its channels (`begun`), and the transfers that
    reduce into its input (`added`). `queue` holds a count, then as many tasks that are done and whose successors must
    still be updated."""

    sender: Any
    receiver: Any
    adds_to: Any
    waits: Any
    opened: Any
    left: Any
    done: Any
    queue: Any
    duration: Any
    first_behind: Any
    behind: Any
    first_begun: Any
    begun: Any
    first_added: Any
    added: Any


class Barriers(NamedTuple):
    """Barriers between steps: the step of each transfer. By step: its first transfer, and how many transfers are
    `left`. `passed`: how many steps are over, and the latest end so far."""

    step: Any
    first: Any
    left: Any
    passed: Any


class Progress(NamedTuple):
    """The state of a run under `fifo` or `fair` sharing; the run leaves out events after `until`. `state`, by transfer:
    see `SIDE`. No transfer is complete before `came`, by row. `done`, by participant: when all that it sends is sent
    and all that it receives is complete; empty if not needed. `src` and `dst` are by way."""

    starts: Starts
    state: Any
    came: Any
    times: KernelTimes
    done: Any
    src: Any
    dst: Any
    successors: Successors
    tasks: TaskColumns
    barriers: Barriers
    until: int


class Turns(NamedTuple):
    """Reroutes. At each turn, counted from 1, a link is found dead at a time (`at`, by turn). From then on transfers
    take way `way_after[turn * ways + way]` in place of `way`. `taken`: the way that each transfer took. `passed`, (1,):
    the last turn."""

    at: Any
    way_after: Any
    ways: int
    taken: Any
    passed: Any


@jit
def value(column: Any, i: Any) -> Any:
    """Return entry `i` of a column, 0 if the column is empty."""
    return column[i] if len(column) else 0


@jit
def key_of(row: Any, loop: Any, starts: Starts) -> Any:
    """Return the heap key of a transfer. Keys sort as the transfers' indices in the program of all loops do."""
    step, row_bits, loop_bits = starts.step, starts.row_bits, starts.loop_bits
    return (((value(step, row) + loop) << loop_bits | loop) << row_bits) | row if starts.loops > 1 else row


@jit
def kind_of(row: Any, loop: Any, layout: Layout) -> Any:
    """Return the index of a transfer's size: the size of a whole piece, or in the last loop of the remainder."""
    kind, whole = layout.kind[row], layout.whole
    return layout.piece if len(whole) and loop < whole[kind] else kind


@jit
def receive(row: Any, loop: Any, layout: Layout) -> Any:
    """Return how long a transfer occupies its receive side, in ps."""
    took = value(layout.o_recv, layout.way[row])
    if len(layout.gamma) and layout.reduce[row]:
        took += layout.gamma[kind_of(row, loop, layout)]
    return took


@jit
def invert(first: Any, before: Any, first_after: Any, after: Any) -> None:
    """Invert a list of rows: from "row r waits for the rows `before`, from entry `first[r]` to `first[r + 1]` − 1" to
    "the rows `after`, from entry `first_after[r]` on, wait for row r". The caller fills `first_after` with 0."""
    for e in range(len(before)):
        first_after[before[e]] += 1
    for r in range(1, len(first_after)):
        first_after[r] += first_after[r - 1]
    for r in range(len(first) - 2, -1, -1):
        for e in range(first[r], first[r + 1]):
            first_after[before[e]] -= 1
            after[first_after[before[e]]] = r


@jit
def invert_waits(first_read: Any, credit: Any, before: Any, after: Any, pending: Any) -> None:
    """Invert "row i waits for row j" into "row j is followed by row i", for `credit` (may be empty) and channel_before
    (`before`). Results: `after` (credit_after and channel_after, filled with −1 by the caller), and `pending` (filled
    with 0), the number of rows that each row waits for, with those that it reads."""
    credit_after, channel_after = after
    for i in range(len(before)):
        pending[i] += first_read[i + 1] - first_read[i]
        if len(credit) and credit[i] >= 0:
            credit_after[credit[i]] = i
            pending[i] += 1
        if before[i] >= 0:
            channel_after[before[i]] = i
            pending[i] += 1


@jit
def relax(row: Any, loop: Any, t: Any, starts: Starts) -> None:
    """Note that a transfer need no longer wait for one of its conditions, met at `t`. The last condition starts it."""
    i = row + loop * starts.rows
    t = max(t, starts.when[i])
    starts.when[i] = t
    starts.pending[i] -= 1
    if starts.pending[i] == 0:
        start(row, loop, t, starts)


@jit
def start(row: Any, loop: Any, t: Any, starts: Starts) -> None:
    """Start a transfer at `t`."""
    if len(starts.start):
        starts.start[row] = t
    heaps.push(starts.heap, t + value(starts.lead, starts.way[row]), key_of(row, loop, starts))


@jit
def begin(progress: Progress) -> None:
    """Start the transfers, and open the tasks, that wait for nothing."""
    starts, waits = progress.starts, progress.tasks.waits
    for row in range(len(starts.way)):
        if starts.pending[row] == 0:
            start(row, 0, starts.when[row], starts)
    for k in range(len(waits)):
        if waits[k] == 0:
            open_task(k, progress)
    follow_up(progress)


@jit
def send(row: Any, loop: Any, t: Any, ready: Any, progress: Progress) -> None:
    """Note that a transfer is sent at `t`. Its channel may start the next transfer then, but not before `ready`."""
    starts, successors, tasks, sent = progress.starts, progress.successors, progress.tasks, progress.times.sent
    after, then = successors.channel_after[row], loop
    if after < 0 and loop + 1 < starts.loops:
        after, then = starts.first[row], loop + 1
    if len(sent):
        sent[row] = t
    if len(progress.done):
        src = progress.src[starts.way[row]]
        progress.done[src] = max(progress.done[src], t)
    if after >= 0:
        relax(after, then, max(t, ready), starts)
    elif len(tasks.sender):
        count_down(tasks.sender[row], t, tasks)


@jit
def completes(row: Any, loop: Any, t: Any, progress: Progress) -> Any:
    """Return when a transfer that ended at `t` is complete; −1 if an earlier write to its slots is not complete, or if
    it reduces into the input of a task that is not open."""
    successors, tasks, base = progress.successors, progress.tasks, loop * progress.starts.rows
    t = max(t, value(progress.came, row))
    for e in range(successors.first_chain[row], successors.first_chain[row + 1]):
        before = successors.chain[e] + base
        if progress.state[before] != COMPLETE:
            return -1
        t = max(t, progress.starts.when[before])
    if len(tasks.adds_to) and tasks.adds_to[row] >= 0:
        k = tasks.adds_to[row]
        return -1 if tasks.waits[k] > 0 else max(t, tasks.opened[k])
    return t


@jit
def settle(row: Any, loop: Any, t: Any, progress: Progress) -> None:
    """Complete a transfer at `t`: readers of what it wrote may start, and later writes to its slots may complete."""
    starts, state, successors = progress.starts, progress.state, progress.successors
    complete, receiver, done = progress.times.complete, progress.tasks.receiver, progress.done
    base, settled = loop * starts.rows, successors.settled
    state[row + base], starts.when[row + base], settled[row] = COMPLETE, t, -1
    while row >= 0:
        t, then = starts.when[row + base], settled[row]
        if len(complete):
            complete[row] = t
        if len(done):
            dst = progress.dst[starts.way[row]]
            done[dst] = max(done[dst], t)
        if len(receiver):
            count_down(receiver[row], t, progress.tasks)
        for e in range(successors.first_reader[row], successors.first_reader[row + 1]):
            relax(successors.readers[e], loop, t, starts)
        for e in range(successors.first_chained[row], successors.first_chained[row + 1]):
            later = successors.chained[e]
            if state[later + base] == ENDED:
                whole = completes(later, loop, starts.when[later + base], progress)
                if whole >= 0:
                    state[later + base], starts.when[later + base] = COMPLETE, whole
                    settled[later], then = then, later
        row = then


@jit
def finish(row: Any, loop: Any, t: Any, progress: Progress) -> None:
    """End a transfer at `t`; complete it, unless an earlier write to its slots has to be complete first."""
    starts, state, successors = progress.starts, progress.state, progress.successors
    end, credit_after, turn = progress.times.end, successors.credit_after, successors.turn
    base = loop * starts.rows
    if len(end):
        end[row] = t
    if len(credit_after) and credit_after[row] >= 0:
        then = loop + value(successors.credit_later, row)
        if then < starts.loops:
            relax(credit_after[row], then, t, starts)
    if len(turn):  # with blocking sends: both ranks may begin their next transfer
        for after in (turn[2 * row], turn[2 * row + 1]):
            if after >= 0:
                relax(after, loop, t, starts)
    whole = completes(row, loop, t, progress)
    if whole < 0:
        state[row + base], starts.when[row + base] = ENDED, t
    else:
        settle(row, loop, whole, progress)
    if len(progress.barriers.left):
        pass_barriers(row, t, starts, progress.barriers)


@jit
def pass_barriers(i: Any, t: Any, starts: Starts, barriers: Barriers) -> None:
    """Note that transfer `i` ends at `t`. If it is the last of its step, start the transfers of the next step."""
    step, first, left, passed = barriers
    left[step[i]] -= 1
    passed[1] = max(passed[1], t)
    while passed[0] < len(left) and left[passed[0]] == 0:
        passed[0] += 1
        if passed[0] < len(left):
            for j in range(first[passed[0]], first[passed[0] + 1]):
                relax(j, 0, passed[1], starts)


# --- tasks, which programs of one loop have ---


@jit
def count_down(k: Any, t: Any, tasks: TaskColumns) -> None:
    """Note that at `t` one more condition is met for task `k` to be done; after its last condition, queue the task."""
    left, done, queue = tasks.left, tasks.done, tasks.queue
    if k < 0:
        return
    done[k] = max(done[k], t)
    left[k] -= 1
    if left[k] == 0:
        queue[0] += 1
        queue[queue[0]] = k


@jit
def open_task(k: Any, progress: Progress) -> None:
    """Open task `k`, as all tasks before it are done: its channels may start, and its rank's input is available."""
    starts, state, tasks = progress.starts, progress.state, progress.tasks
    t = tasks.opened[k]
    for e in range(tasks.first_begun[k], tasks.first_begun[k + 1]):
        relax(tasks.begun[e], 0, t, starts)
    for e in range(tasks.first_added[k], tasks.first_added[k + 1]):
        i = tasks.added[e]
        if state[i] == ENDED:
            whole = completes(i, 0, max(t, starts.when[i]), progress)
            if whole >= 0:
                settle(i, 0, whole, progress)
    count_down(k, t + tasks.duration[k], tasks)


@jit
def follow_up(progress: Progress) -> None:
    """Open the tasks that waited only for the tasks in the queue of done ones."""
    tasks = progress.tasks
    waits, opened, done, queue = tasks.waits, tasks.opened, tasks.done, tasks.queue
    while queue[0]:
        k = queue[queue[0]]
        queue[0] -= 1
        for e in range(tasks.first_behind[k], tasks.first_behind[k + 1]):
            b = tasks.behind[e]
            opened[b] = max(opened[b], done[k])
            waits[b] -= 1
            if waits[b] == 0:
                open_task(b, progress)
