"""The columns that loops of the fast engine work on, by name.

Columns are arrays where numba compiles the loops, else lists; a run leaves those empty that it does not need. "By way",
"by size", … says what an entry belongs to; without that it belongs to a transfer. Indices are −1 where there is none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Column = Any


class Heaps(NamedTuple):
    """Heaps of (time, key), four entries below each. By heap: where it begins (`top`), and its `size`. `place`, where
    it is tracked, is the place of each key; `used` (1,) is the heap whose first entry is used up, or −1."""

    times: Column
    items: Column
    place: Column
    top: Column
    size: Column
    used: Column


class Parts(NamedTuple):
    """Parts of the network that affect each other late: see `_network_parts`. `classes` is where the parts of each
    class begin, `ahead` from class to class in ps, `clock` the time before which each class has run; `of_link` is the
    part of each link, empty where there is one part."""

    classes: Column
    ahead: Column
    clock: Column
    of_link: Column


class Repeats(NamedTuple):
    """A schedule of so many `rows` is run in so many `loops`: row r of loop l is number r + l · `rows`. Its key has,
    from the right, `row_bits` for the row and `loop_bits` for the loop, then `step` + loop; `step` is empty where one
    loop follows the other. A loop after the last row of a channel comes the `first` row of that channel."""

    loops: int
    rows: int
    row_bits: int
    loop_bits: int
    step: Column
    first: Column


class Plan(NamedTuple):
    """By row: the way, the number of the size, the receive side, and whether it reduces. By size: in how many loops it
    is a whole `piece`, which is the number of a size; empty where rows are sent whole."""

    way: Column
    kind: Column
    side: Column
    reduce: Column
    whole: Column
    piece: int


class Costs(NamedTuple):
    """Durations in ps: the channel's `gap` and `o_recv` by way; service at the channel's `cap`, and of a reduction
    (`gamma`), by size; each empty where all are 0."""

    gap: Column
    cap: Column
    o_recv: Column
    gamma: Column


class Routes(NamedTuple):
    """Way w takes `links[hop[w]:hop[w + 1]]`."""

    hop: Column
    links: Column


class Net(NamedTuple):
    """The number of each link's rate, and its latency; `service[size * rates + rate]` is a service time."""

    rate_of: Column
    latency: Column
    service: Column
    rates: int


class KernelTimes(NamedTuple):
    """The columns of a timeline."""

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
    """The times at which the first and the last head came to each link; empty where nobody asks for them."""

    first: Column
    last: Column


class Servers(NamedTuple):
    """A time for each link and each receive side, at which it is free."""

    link: Column
    side: Column


class Starts(NamedTuple):
    """Transfers before their start. By number: `when` each may start at the earliest, and how many things it is
    `pending` for. By row: the `way`, and the `part` in which it starts, empty where there is one. `lead` by way lies
    between a start and its event on the heap; `start` takes the times."""

    repeats: Repeats
    when: Column
    pending: Column
    way: Column
    part: Column
    lead: Column
    start: Column
    heap: Heaps


class Successors(NamedTuple):
    """The rows that wait for each: see `waits.turn_round`. `chain` is the version before. The end of a row lets
    `credit_after` go, `credit_later` loops later (empty: 0). `turn` (2 × rows,) are the rows that blocking sends let
    go."""

    chain: Column
    chain_after: Column
    first_reader: Column
    next_reader: Column
    credit_after: Column
    credit_later: Column
    channel_after: Column
    turn: Column


class TaskColumns(NamedTuple):
    """The columns of tasks. By transfer: the task that sends it, the one that receives it, and the one that brings the
    data it adds to. By task: how many others it waits for, when it is `opened`, how many things are `left` until it is
    done, when it is `done`, and its duration; then the tasks behind it, the transfers that begin its channels, and
    those that add to its rank's data, each with where they begin. `queue` is a count, and so many tasks that are done
    but not followed up."""

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
    """The step of each transfer; the first transfer of each step and how many are `left`; in `passed` how many steps
    are over, and when the last was."""

    step: Column
    first: Column
    left: Column
    passed: Column


class Progress(NamedTuple):
    """The state of a run, however links are shared; events after `until` (ps) are left out. `state` by number: see
    `waits`. No version of a row is complete before the time `came`. `done` by participant is when all that it sends is
    sent, and all that it receives complete; empty where nobody asks. `src` and `dst` by way."""

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
    """Turns, counted from 1, are the times `at` which a dead link is found dead. `force[turn * ways + way]` is the way
    that is taken from then on, `taken` the one that each transfer took, `passed` (1,) the turn in force."""

    at: Column
    force: Column
    ways: int
    taken: Column
    passed: Column


class LinkHistory(NamedTuple):
    """Links that change, for `fifo`: the rows of link l are `first[l]` … `first[l + 1]`, and begin at time 0. By row:
    time, rate number since then, and turn. Then B/s of rates, bytes of sizes, and the transfers that were sent once."""

    first: Column
    at: Column
    rate: Column
    turn: Column
    speeds: Column
    sizes: Column
    once: Column
    turns: Turns


class ChangesInTime(NamedTuple):
    """Links that change, for `fair`. By row, in order of time: link, time, number of the rate since then, and turn.
    Then B/s of rates, and the number of each link's rate now."""

    link: Column
    at: Column
    rate: Column
    turn: Column
    speeds: Column
    rate_of: Column
    turns: Turns


class FifoRun(NamedTuple):
    """All that `fifo` works on; `follows` is by link, and link i is served by server i % `servers`."""

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
    """Flow c takes the links `path[c * width:c * width + length[c]]`; `owner` is the flow of each such place."""

    path: Column
    length: Column
    width: int
    owner: Column


class FlowLists(NamedTuple):
    """The places of `Paths` on each link as a list: its `head` and `count` by link, its neighbours by place."""

    head: Column
    after: Column
    before: Column
    count: Column


class Component(NamedTuple):
    """Links and flows that are connected, and marks of the instant at which each was found."""

    links: Column
    flows: Column
    link_mark: Column
    flow_mark: Column


class Levels(NamedTuple):
    """By link: capacity, available rate and share of each flow, in B/s, and how many flows have no rate yet."""

    capacity: Column
    available: Column
    share: Column
    unfixed: Column


class Flows(NamedTuple):
    """By flow: the transfer `on` it, and when that `began`; the bytes of `rest` at time `since`, its rate in B/s,
    whether it is `whole`; the `most` B/s that its links give it alone, and how long it takes in `full` at that; when it
    is `due`; the rate that is `solved`; the `narrowest` link."""

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
    """The flows under way, on links of capacity `bound` and more. `ends` has the flows that end first; `touched` are
    the links to be solved again, each `marked` with the instant."""

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
    """By way: the number of the least rate, the least capacity, the sum of latencies, the narrowest link. `caps` is
    where the links begin that stand for the caps of channels, or −1."""

    slowest: Column
    most: Column
    away: Column
    narrowest: Column
    caps: int


class FairRun(NamedTuple):
    """All that `fair` works on; `sizes` are bytes by size, `ready` takes the time at which each flow sets out."""

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
    """The rows of one step: row r writes from its sender's slot to its receiver's over `links[hop[r]:hop[r + 1]]`. Its
    slots go round a cycle that begins at `base`. `connection` is the number of its pair."""

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
    """The latency of each link; service times by size and rate; the size of each slot; the number of rates, then the
    rate of each link."""

    latency: Column
    service: Column
    sizes: Column
    rates: Column


class StreamCosts(NamedTuple):
    """Overheads in ps; by size the service at the channel's cap, the duration of a reduction, and the bytes."""

    o_send: int
    o_recv: int
    caps: Column
    gammas: Column
    nbytes: Column


class StreamRules(NamedTuple):
    """The rules that hold for all rows; `offset` chunks were sent in earlier loops."""

    channels: int
    offset: int
    g: int
    slots: int
    barrier: bool
    fair: bool


class StreamState(NamedTuple):
    """The past that still matters: when channels are free and `began` their last transfer; when links and receive sides
    are free and were last asked; the last `ends` of each connection, and how many were `used`; in `clock` the latest
    end, that of the steps before, and the number of the step."""

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
    """The versions that each participant remembers, `width` of them (0: one for each of its `n_slots` slots): slot,
    time of completion, and step."""

    keys: Column
    when: Column
    made: Column
    width: int
    n_slots: int
