"""The columns that the kernels of the fast and the streamed engine work on.

Columns are arrays if numba compiles the kernels, else lists; columns that a run does not need are empty. "By way" (a
*way* is a route), "by size", … says what an entry belongs to; else it belongs to a transfer. Times are in ps. An index
is −1 if there is none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Column = Any


class Heaps(NamedTuple):
    """4-ary heaps of (time, key) in common columns `times` and `items`. By heap: where it begins (`top`), and its
    `size`. `place` is the place of each key in its heap, empty if places are not recorded. `used`, (1,), is the heap
    whose first entry has been processed and may be replaced, or −1."""

    times: Column
    items: Column
    place: Column
    top: Column
    size: Column
    used: Column


class Parts(NamedTuple):
    """Parts of the network that affect each other only after some latency: see `_network_parts`. `classes` is where the
    parts of each class begin; `ahead` the shortest time in which one class affects another, (classes × classes,);
    `clock` the time up to which each class has run; `of_link` the part of each link, empty if there is one part."""

    classes: Column
    ahead: Column
    clock: Column
    of_link: Column


class Repeats(NamedTuple):
    """A schedule of `rows` rows runs in `loops` loops; row r of loop l is transfer r + l · `rows`. Its heap key holds,
    from the lowest bits, the row (`row_bits`), the loop (`loop_bits`), and `step` + loop. `step` is empty if loops run
    one after the other. The last row of a channel is followed by the channel's `first` row, in the next loop."""

    loops: int
    rows: int
    row_bits: int
    loop_bits: int
    step: Column
    first: Column


class Plan(NamedTuple):
    """By row: the way, the index of the size (`kind`), the receive side, and whether it reduces. By size: the number of
    loops in which a whole piece is sent (`whole`), empty if rows are sent whole. `piece` is the index of its size."""

    way: Column
    kind: Column
    side: Column
    reduce: Column
    whole: Column
    piece: int


class Costs(NamedTuple):
    """Durations in ps. By way: the channel's `gap`, and `o_recv`. By size: the service time at the channel's `cap`, and
    of a reduction (`gamma`). Each column is empty if all entries are 0."""

    gap: Column
    cap: Column
    o_recv: Column
    gamma: Column


class Routes(NamedTuple):
    """Way w takes `links[hop[w]:hop[w + 1]]`."""

    hop: Column
    links: Column


class Net(NamedTuple):
    """By link: the index of its rate, and its latency. `service[size * rates + rate]` is a service time."""

    rate_of: Column
    latency: Column
    service: Column
    rates: int


class KernelTimes(NamedTuple):
    """The columns of a `Timeline` that a kernel fills."""

    start: Column
    sent: Column
    arrive: Column
    end: Column
    complete: Column


class HopTimes(NamedTuple):
    """The intervals in which links serve transfers; those of transfer i begin at `first[i]`."""

    begin: Column
    end: Column
    first: Column


class Heads(NamedTuple):
    """By link: the times at which the first and the last head arrived; empty if not needed."""

    first: Column
    last: Column


class Servers(NamedTuple):
    """The time at which each link, and each receive side, is free."""

    link: Column
    side: Column


class Starts(NamedTuple):
    """Transfers before their start. By transfer: the earliest time `when` it may start, and the number of conditions
    `pending`. By row: its `way`, and the `part` in which it starts (empty if there is one part). `lead`, by way, is the
    time from a start to the head's arrival at the first link. `start` receives the times of starts."""

    repeats: Repeats
    when: Column
    pending: Column
    way: Column
    part: Column
    lead: Column
    start: Column
    heap: Heaps


class Successors(NamedTuple):
    """The rows that wait for each row: see `waits.turn_round`. `chain` is the row's own predecessor in its chain. The
    end of a row gives its credit to row `credit_after`, `credit_later` loops later (empty: 0). `turn`, (2 × rows,):
    the rows that its end releases under blocking sends."""

    chain: Column
    chain_after: Column
    first_reader: Column
    next_reader: Column
    credit_after: Column
    credit_later: Column
    channel_after: Column
    turn: Column


class TaskColumns(NamedTuple):
    """The columns of tasks. By transfer: the task that sends it, the task that receives it, and the task whose input it
    reduces into (`adds_to`). By task: how many tasks it waits for, when it is `opened`, how many conditions are `left`
    until it is done, when it is `done`, and its duration. Then, each with a column of where they begin: the tasks that
    wait for it, the first transfers of its channels (`begun`), and the transfers that reduce into its input (`added`).
    `queue` holds a count, then so many tasks that are done and whose successors must still be updated."""

    sender: Column
    receiver: Column
    adds_to: Column
    waits: Column
    opened: Column
    left: Column
    done: Column
    queue: Column
    duration: Column
    first_behind: Column
    behind: Column
    first_begun: Column
    begun: Column
    first_added: Column
    added: Column


class Barriers(NamedTuple):
    """The step of each transfer. By step: its first transfer, and how many transfers are `left`. `passed`: how many
    steps are over, and the latest end so far."""

    step: Column
    first: Column
    left: Column
    passed: Column


class Progress(NamedTuple):
    """The state of a run under `fifo` or `fair` sharing; the run leaves out events after `until`. `state`, by transfer:
    see `waits`. No transfer is complete before `came`, by row. `done`, by participant: when all that it sends is sent
    and all that it receives is complete; empty if not needed. `src` and `dst` are by way."""

    starts: Starts
    state: Column
    came: Column
    times: KernelTimes
    done: Column
    src: Column
    dst: Column
    successors: Successors
    tasks: TaskColumns
    barriers: Barriers
    until: int


class Turns(NamedTuple):
    """Reroutes: at each turn, counted from 1, a link is found dead `at` some time. `force[turn * ways + way]` is the
    way taken from then on in place of `way`; `taken` the way that each transfer took; `passed` the last turn, (1,)."""

    at: Column
    force: Column
    ways: int
    taken: Column
    passed: Column


class LinkHistory(NamedTuple):
    """Changes of links, for `fifo`: link l has the rows `first[l]` to `first[l + 1]` − 1, the first at time 0. By row:
    its time, the index of the link's rate from then on, and its turn. Then `speeds` (B/s by rate), `sizes` (bytes by
    size), and whether each transfer was sent `once` already."""

    first: Column
    at: Column
    rate: Column
    turn: Column
    speeds: Column
    sizes: Column
    once: Column
    turns: Turns


class ChangesInTime(NamedTuple):
    """Changes of links, for `fair`. By row, in order of time: link, time, index of its rate from then on, and turn.
    Then `speeds` (B/s by rate), and the index of each link's current rate."""

    link: Column
    at: Column
    rate: Column
    turn: Column
    speeds: Column
    rate_of: Column
    turns: Turns


class FifoRun(NamedTuple):
    """All columns of a `fifo` run. `follows` is by link; link i is served by server i % `servers`."""

    progress: Progress
    plan: Plan
    costs: Costs
    routes: Routes
    follows: Column
    net: Net
    servers: int
    free: Servers
    hops: HopTimes
    heads: Heads
    parts: Parts


class Paths(NamedTuple):
    """Flow c takes the links `path[c * width:c * width + length[c]]`; `owner` is the flow of each place in `path`."""

    path: Column
    length: Column
    width: int
    owner: Column


class FlowLists(NamedTuple):
    """The flows on each link: a linked list of places in `Paths.path`, with `head` and `count` by link."""

    head: Column
    after: Column
    before: Column
    count: Column


class Component(NamedTuple):
    """Links and flows that are connected by sharing, and marks of the instant at which each was last found."""

    links: Column
    flows: Column
    link_mark: Column
    flow_mark: Column


class Levels(NamedTuple):
    """By link: its capacity, the rate still available, and the share of each flow without a rate, in B/s; and the
    number of such flows (`unfixed`)."""

    capacity: Column
    available: Column
    share: Column
    unfixed: Column


class Flows(NamedTuple):
    """By flow: its transfer (`on`), and when that `began`; the bytes left (`rest`) at time `since`; its rate in B/s;
    whether no byte has moved yet (`whole`); the `most` B/s that its links allow, and the time it takes in `full` at
    that rate; when it ends (`due`); its newly `solved` rate; its `narrowest` link."""

    on: Column
    began: Column
    rest: Column
    since: Column
    rate: Column
    whole: Column
    most: Column
    full: Column
    due: Column
    solved: Column
    narrowest: Column


class FairFabric(NamedTuple):
    """The current flows, on links of at least `bound` B/s. `ends` is a heap of the flows that end first in their
    component. `touched` are the links to be solved again, each `marked` with the instant."""

    paths: Paths
    lists: FlowLists
    component: Component
    levels: Levels
    bound: float
    flows: Flows
    ends: Heaps
    marked: Column
    touched: Column


class Limits(NamedTuple):
    """By way: the index of the least rate, the least capacity in B/s, the sum of latencies, the narrowest link. `caps`
    is the first of the extra links that stand for the caps of channels, or −1."""

    slowest: Column
    most: Column
    away: Column
    narrowest: Column
    caps: int


class FairRun(NamedTuple):
    """All columns of a `fair` run. `sizes` are bytes by size; `ready` receives the time at which each flow leaves."""

    progress: Progress
    plan: Plan
    channel: Column
    sizes: Column
    costs: Costs
    routes: Routes
    limits: Limits
    net: Net
    free_side: Column
    ready: Column
    fabric: FairFabric


# --- the streamed engine ---


class StreamRows(NamedTuple):
    """The rows of one step: row r writes from its sender's slot to its receiver's over `links[hop[r]:hop[r + 1]]`. From
    step to step its slots move round a cycle that begins at slot `base`. `connection` numbers its pair of ranks."""

    src: Column
    src_slot: Column
    dst: Column
    dst_slot: Column
    base: Column
    reduce: Column
    hop: Column
    links: Column
    connection: Column


class StreamNet(NamedTuple):
    """The latency of each link; service times by size and rate; the index of each slot's size; and in `rates` the
    number of rates, then the index of each link's rate."""

    latency: Column
    service: Column
    sizes: Column
    rates: Column


class StreamCosts(NamedTuple):
    """Overheads in ps. By size: the service time at the channel's cap, the duration of a reduction, and the bytes."""

    o_send: int
    o_recv: int
    caps: Column
    gammas: Column
    nbytes: Column


class StreamRules(NamedTuple):
    """The parameters that hold for all rows. `offset`: the number of chunks in earlier loops."""

    channels: int
    offset: int
    g: int
    slots: int
    barrier: bool
    fair: bool


class StreamState(NamedTuple):
    """The state that later steps depend on. By channel: when it is `free`, and when its last transfer `began`. By link,
    by receive side: when it is free, and when its last request came. By connection: its last `ends`, and how many
    messages it `used`. `clock`: the latest end, the latest end of earlier steps, and the number of the step."""

    free: Column
    began: Column
    free_link: Column
    last_link: Column
    free_side: Column
    last_side: Column
    ends: Column
    used: Column
    clock: Column


class StreamMemory(NamedTuple):
    """The slot contents whose completion may still matter, `width` for each participant (0: one for each of its
    `n_slots` slots): the slot, the time of completion, and the step that wrote it."""

    keys: Column
    when: Column
    made: Column
    width: int
    n_slots: int
