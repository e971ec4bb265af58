"""How transfers wait for each other: the part of a run that is equal under `fifo` and `fair` sharing.

A transfer is a row of the schedule in a loop; `records.Repeats` says how its number and its key are made from both.

A server takes a request when it is popped from the heap. That is the second phase of an instant, as every cause
precedes its effect by at least 1 ps. When a link begins to serve a transfer, the time at which the transfer is sent
can be computed, so its successors get their time at once.
"""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels.records import Barriers, Costs, Plan, Progress, Repeats, Starts, TaskColumns

SIDE, ENDED, COMPLETE = -1, -2, -3  # state of a transfer; before SIDE, the number of links that its head has passed
jit = jit_for(__name__)
heaps = load_like(__name__, plain_heap)


@jit
def value(column: Any, i: Any) -> Any:
    """Return entry `i` of a column, 0 if the column is empty."""
    return column[i] if len(column) else 0


@jit
def key_of(row: Any, loop: Any, repeats: Repeats) -> Any:
    """Return the heap key of a transfer; keys have the order of the transfers' indices in the program of all loops."""
    step, row_bits, loop_bits = repeats.step, repeats.row_bits, repeats.loop_bits
    return (((value(step, row) + loop) << loop_bits | loop) << row_bits) | row if repeats.loops > 1 else row


@jit
def kind_of(row: Any, loop: Any, plan: Plan) -> Any:
    """Return the index of a transfer's size: of a whole piece, or of the remainder in the last loop."""
    kind, whole = plan.kind[row], plan.whole
    return plan.piece if len(whole) and loop < whole[kind] else kind


@jit
def receive(row: Any, loop: Any, plan: Plan, costs: Costs) -> Any:
    """Return how long a transfer occupies its receive side, in ps."""
    took = value(costs.o_recv, plan.way[row])
    if len(costs.gamma) and plan.reduce[row]:
        took += costs.gamma[kind_of(row, loop, plan)]
    return took


@jit
def turn_round(waits: Any, after: Any, pending: Any) -> None:
    """Invert "row i waits for row j" into "j is followed by i". `waits` are reads, chain, credit and channel_before.
    Results: `after` (first_reader, next_reader, chain_after, credit_after and channel_after, filled with −1 before),
    and `pending` (filled with 0), the number of rows that each waits for. Credits may be empty."""
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
    """Note that one of the conditions of a transfer is met at `t`; the last one starts it."""
    i = row + loop * starts.repeats.rows
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
    part = value(starts.part, row)
    heaps.push(starts.heap, part, t + value(starts.lead, starts.way[row]), key_of(row, loop, starts.repeats))


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
    if after < 0 and loop + 1 < starts.repeats.loops:
        after, then = starts.repeats.first[row], loop + 1
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
    """Complete a transfer at `t`: the readers of what it wrote may start, and transfers chained to it may complete."""
    starts, state, successors = progress.starts, progress.state, progress.successors
    complete, receiver, done = progress.times.complete, progress.tasks.receiver, progress.done
    while True:
        i = row + loop * starts.repeats.rows
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
        if row < 0 or state[row + loop * starts.repeats.rows] != ENDED:
            return
        t = max(t, starts.when[row + loop * starts.repeats.rows])


@jit
def finish(row: Any, loop: Any, t: Any, progress: Progress) -> None:
    """End a transfer at `t`."""
    starts, state, successors, tasks = progress.starts, progress.state, progress.successors, progress.tasks
    end, credit_after, turn = progress.times.end, successors.credit_after, successors.turn
    base = loop * starts.repeats.rows
    if len(end):
        end[row] = t
    if len(credit_after) and credit_after[row] >= 0:
        then = loop + value(successors.credit_later, row)
        if then < starts.repeats.loops:
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
    """Note that transfer `i` ends at `t`: after the last of its step the next step starts."""
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
    """Note that at `t` task `k` has one condition less to be done; after the last one, queue the task."""
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
