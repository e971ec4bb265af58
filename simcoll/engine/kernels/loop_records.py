"""The columns that `loop_kernel` works on: those of one loop, by row of the schedule, and the state of all loops."""

from __future__ import annotations

from typing import Final, NamedTuple

from simcoll.engine.kernels.records import Column, Heads, Heap, Net, Routes, Servers

NOBODY: Final = 2**31 - 1  # loops later: nobody waits for the end of such a row


class Keys(NamedTuple):
    """Bits of a key, which orders transfers as their indices do: step and loop together, then the loop, then the row.
    Loops one behind the other have no steps in it."""

    step: Column
    row_bits: int
    loop_bits: int


class Rows(NamedTuple):
    """The columns of the schedule's rows in one loop: number in the schedule, way, receive
    side, whether it reduces, and who waits for it there: see `records.Successors`. Behind the last row of a channel
    comes the `first` of it, a loop on. Whether its end is `awaited`. Rows are known by where the columns have them:
    `apart` from each other, as many columns lie side by side."""

    apart: int
    number: Column
    way: Column
    side: Column
    reduce: Column
    chain: Column
    chain_after: Column
    first_reader: Column
    next_reader: Column
    channel_after: Column
    first: Column
    awaited: Column


class Pieces(NamedTuple):
    """The number of the size that each row of the schedule carries, and for each size in how many loops that is a whole
    piece: in the one after these it is the rest, then nothing. `piece` and `nothing` are the numbers of a whole piece
    and of 0 B."""

    kind: Column
    whole: Column
    piece: int
    nothing: int


class LoopCosts(NamedTuple):
    """Durations in ps: `gap`, `lead` and `o_recv` by way; service at the channel's `cap`, and of a reduction (`gamma`),
    by size; each empty where all are 0. Participants are there from `here`."""

    gap: Column
    lead: Column
    o_recv: Column
    cap: Column
    gamma: Column
    here: Column


class Ways(NamedTuple):
    """Ends of each way."""

    src: Column
    dst: Column


class LoopState(NamedTuple):
    """The state of each transfer: a time, and where it is, see `waits`, or for how many things it waits. That of a row
    is at `first`, and `wide` further in each loop; at 0 is that of none."""

    when: Column
    state: Column
    first: Column
    wide: int


class PartHeaps(NamedTuple):
    """Parts of the network, which feel each other late: see `_network_parts`. Where the parts of each class begin,
    `ahead` from class to class, the same while pieces are whole, and the `clock` before which each class has run. The
    latest loop that has `begun`, −1 at first; of those in `whole` all pieces are whole; of ways that the heap has. By
    row the part in which it starts, by participant that in which it is, by link that to which it belongs; by part where
    its heap has its room, and how many entries."""

    classes: Column
    ahead: Column
    ahead_whole: Column
    clock: Column
    begun: Column
    whole: int
    start: Column
    home: Column
    of_link: Column
    room: Column
    size: Column


class LinkStreams(NamedTuple):
    """Channels that need no heap, those of a link together: see `_loop_streams`. For the transfers of a loop, channel
    by channel: the `row`, and where the state has what it `reads` and its `own` in the first loop, −1 for nothing; the
    row that its sum goes `onward` with when it is complete, −1 where none but streams await that. By channel: where
    these `begin`; its way, with both ends, and its link; how many loops are of whole pieces, and for how long the link
    `takes` one. The next transfer is that `at` a place, in which `loop`; the channel is `ready` for it, and it `awaits`
    a state; its head comes to the link, NEVER as long as that is not known. The last ends, of which the channel may
    have `slots` before it, with the `turn` of the next. By link the first channel, and that behind the last; by part
    the same, and the first head to come. What the channels bring is felt `ahead` ps after a head, or later."""

    row: Column
    reads: Column
    own: Column
    onward: Column
    begin: Column
    way: Column
    src: Column
    dst: Column
    link: Column
    whole: Column
    takes: Column
    at: Column
    loop: Column
    ready: Column
    awaits: Column
    head: Column
    ends: Column
    turn: Column
    slots: int
    of_link: Column
    behind_link: Column
    of_part: Column
    soonest: Column
    ahead: int


class Todo(NamedTuple):
    """Transfers that one event lets go: row, loop, and when."""

    row: Column
    loop: Column
    time: Column


class LoopRun(NamedTuple):
    """All that `loops` works on; `done` is by participant. The end of a row lets `credit_row` go, `credit_loops` later;
    these are `NOBODY` where that is no row of the heap, and empty where nothing waits for that."""

    loops: int
    keys: Keys
    rows: Rows
    parts: PartHeaps
    streams: LinkStreams
    pieces: Pieces
    costs: LoopCosts
    ways: Ways
    routes: Routes
    follows: Column
    net: Net
    free: Servers
    state: LoopState
    heads: Heads
    done: Column
    heap: Heap
    todo: Todo
    credit_row: Column
    credit_loops: Column
