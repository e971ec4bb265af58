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
    """The rows that wait for each row: see `invert_waits`. `chain` is the row whose write must be complete before the
    row's own. When a row ends, row `credit_after` may start, `credit_later` loops later (empty: 0). `turn`, (2 ×
    rows,): the rows that may start when it ends, under blocking sends."""

    chain: Any
    chain_after: Any
    first_reader: Any
    next_reader: Any
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
def invert_waits(waits: Any, after: Any, pending: Any) -> None:
    """Invert "row i waits for row j" into "row j is followed by row i". `waits` are reads, chain, credit (may be empty)
    and channel_before. Results: `after` (first_reader, next_reader, chain_after, credit_after and channel_after, filled
    with −1 by the caller), and `pending` (filled with 0), the number of rows that each row waits for."""
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
def settle(row: Any, loop: Any, t: Any, progress: Progress) -> None:
    """Complete a transfer at `t`: readers of what it wrote may start, and later writes to its slot may complete."""
    starts, state, successors = progress.starts, progress.state, progress.successors
    complete, receiver, done = progress.times.complete, progress.tasks.receiver, progress.done
    while True:
        i = row + loop * starts.rows
        state[i], starts.when[i] = COMPLETE, t
        if len(complete):
            complete[row] = t
        if len(done):
            dst = progress.dst[starts.way[row]]
            done[dst] = max(done[dst], t)
        if len(receiver):
            count_down(receiver[row], t, progress.tasks)
        reader = successors.first_reader[row]
        while reader >= 0:
            relax(reader, loop, t, starts)
            reader = successors.next_reader[reader]
        row = successors.chain_after[row]
        if row < 0 or state[row + loop * starts.rows] != ENDED:
            return
        t = max(t, starts.when[row + loop * starts.rows])


@jit
def finish(row: Any, loop: Any, t: Any, progress: Progress) -> None:
    """End a transfer at `t`; complete it, unless an earlier write to its slot has to be complete first."""
    starts, state, successors, tasks = progress.starts, progress.state, progress.successors, progress.tasks
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
    before, k = successors.chain[row], tasks.adds_to[row] if len(tasks.adds_to) else -1
    if (before >= 0 and state[before + base] != COMPLETE) or (k >= 0 and tasks.waits[k] > 0):
        state[row + base], starts.when[row + base] = ENDED, t
    else:
        whole = max(t, starts.when[before + base] if before >= 0 else value(progress.came, row))
        if k >= 0:
            whole = max(whole, tasks.opened[k])
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
            settle(i, 0, max(t, starts.when[i]), progress)
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
