"""Write a schedule as MSCCL's XML, in place: for MSCCL's and RCCL's executors, and for simcoll's own reader.

In every step each rank does its sends, then its own copies, then its receives, so that no thread block is blocked for
ever. A receive and the next send of the same data become one step (`rcs`, `rrcs`; `rrs` if nobody reads the stored
value). A step moves a run of neighbouring chunks, `cnt` of them; a message of several runs becomes several steps. The
attribute `at` of a step, which executors ignore, gives step and row in the schedule, and a third number if the row
belongs to the message of the row before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from xml.sax.saxutils import quoteattr

import numpy as np

from simcoll.config.input_files import ImportLog
from simcoll.errors import RefusedError
from simcoll.formats.schedules.thread_programs import MOST_TRANSFERS
from simcoll.schedule.names import COLLECTIVES, Protocol, spellings
from simcoll.schedule.schedule import Schedule, Transfer

MOST_CHANNELS: Final = 32  # that executors support
MOST_STEPS: Final = 64  # per thread block, MSCCL_MAX_NUM_STEPS of msccl.h
MOST_BLOCKS: Final = 64  # per GPU, MSCCL_MAX_NUM_THREAD_BLOCKS
_PEERS: Final = 15  # per channel and direction: executors support up to 32 thread blocks on a channel
_COLL: Final = spellings(COLLECTIVES, lambda row: row.msccl)
_IN_OUTPUT: Final = ("all_gather", "gather")  # in place, the buffer of n blocks is the output

Peers = tuple[int, int]  # of a thread block: the rank it sends to, the rank it receives from; -1: none


class _Event(NamedTuple):
    """What one rank does in one transfer: send, receive or copy."""

    does: Literal["send", "local", "receive"]
    number: int  # of the row
    row: Transfer

    @property
    def reads(self) -> range:
        """The slots that the action reads."""
        return _run(self.row.src_slot, 0 if self.does == "receive" else self.row.count)

    @property
    def writes(self) -> range:
        """The slots that the action writes."""
        return _run(self.row.dst_slot, 0 if self.does == "send" else self.row.count)


def _run(first: int, count: int) -> range:
    return range(first, first + count)


@dataclass
class _BlockStep:
    """A step of a thread block; `waits` is the thread block and step that it waits for, if any."""

    kind: str
    src: int = 0
    dst: int = 0
    chunks: int = 0
    at: str = ""
    waits: tuple[Peers, int] | None = None
    awaited: bool = False


GpuBlocks = dict[Peers, list[_BlockStep]]  # the thread blocks of a GPU by their peers


def dump(schedule: Schedule, protocol: Protocol = "Simple", notes: ImportLog | None = None) -> str:
    """Return a schedule as XML, with the attribute `proto`; `notes` get warnings if executors would not run it. Raises
    RefusedError if the format cannot express the schedule."""
    _check(schedule)
    schedule = _within_buffers(schedule)
    scratch = schedule.n_slots - schedule.n_chunks
    ranks = [_rank(schedule, rank, events) for rank, events in enumerate(_events(schedule))]
    channels = 1 + max((_channel(schedule.n, peers, r) for r, rank in enumerate(ranks) for peers in rank), default=0)
    if channels > MOST_CHANNELS:
        raise RefusedError(
            f"{channels} channels are more than MSCCL's executor has ({MOST_CHANNELS}); take fewer ranks"
        )
    if notes is not None:
        _warn(ranks, notes)
    own = "o" if schedule.collective in _IN_OUTPUT else "i"
    sizes = {"i": 0, "o": 0, own: schedule.n_chunks, "s": scratch}
    head = {
        "name": schedule.algorithm, "proto": protocol, "nchannels": channels, "nchunksperloop": schedule.n_chunks,
        "ngpus": schedule.n, "coll": _COLL[schedule.collective], "inplace": 1, "outofplace": 0,
        "minBytes": 0, "maxBytes": 0,
    }  # fmt: skip
    extra = ({"root": schedule.root} if schedule.root else {}) | ({"pipelined": 1} if schedule.pipelined else {})
    lines = [f"<algo {_attributes(head | extra)}>"]
    for number, rank in enumerate(ranks):
        chunks = {f"{buffer}_chunks": sizes[buffer] for buffer in "ios"}
        lines.append(f"  <gpu {_attributes({'id': number} | chunks)}>")
        for tb, ((send, receive), ops) in enumerate(rank.items()):
            channel = _channel(schedule.n, (send, receive), number)
            lines.append(f"    <tb {_attributes({'id': tb, 'send': send, 'recv': receive, 'chan': channel})}>")
            lines += (f"      <step {_attributes(_step(i, op, rank, own, schedule))}/>" for i, op in enumerate(ops))
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _warn(ranks: list[GpuBlocks], notes: ImportLog) -> None:
    """Warn of each limit of the executors that a program exceeds; simcoll can still read such a program."""
    steps = max((len(ops) for rank in ranks for ops in rank.values()), default=0)
    blocks = max(len(rank) for rank in ranks)
    for most, count, problem in (
        (MOST_STEPS, steps, f"a thread block of {steps} steps"),
        (MOST_BLOCKS, blocks, f"a GPU with {blocks} thread blocks"),
    ):
        if count > most:
            notes.warn(f"{problem}: MSCCL's executor loads at most {most}; take fewer ranks")


def _channel(n: int, peers: Peers, rank: int) -> int:
    """Return the channel of a thread block, from the distance to its peer, so that both ends agree."""
    send, receive = peers
    apart = (send - rank) % n if send >= 0 else (rank - receive) % n if receive >= 0 else 1
    return (apart - 1) // _PEERS


def _attributes(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={quoteattr(str(value))}" for name, value in values.items())


def _step(number: int, op: _BlockStep, rank: GpuBlocks, own: str, schedule: Schedule) -> dict[str, object]:
    def place(slot: int) -> tuple[str, int]:
        return (own, slot) if slot < schedule.n_chunks else ("s", slot - schedule.n_chunks)

    (src_buffer, src), (dst_buffer, dst) = place(op.src), place(op.dst)
    depid, deps = (list(rank).index(op.waits[0]), op.waits[1]) if op.waits else (-1, -1)
    if op.kind == "nop":
        src, dst = -1, -1
    return {
        "s": number, "type": op.kind, "srcbuf": src_buffer, "srcoff": src, "dstbuf": dst_buffer, "dstoff": dst,
        "cnt": op.chunks, "depid": depid, "deps": deps, "hasdep": int(op.awaited),
        **({"at": op.at} if op.at else {}),
    }  # fmt: skip


def _check(schedule: Schedule) -> None:
    if schedule.collective not in _COLL:
        raise RefusedError(f"MSCCL's XML has no {schedule.collective}; it holds {', '.join(_COLL)}")
    if schedule.agents:
        raise RefusedError(f"MSCCL's XML has no reducing switch, and {schedule.name} needs one; take another")
    if schedule.groups != (tuple(range(schedule.n)),):
        raise RefusedError("MSCCL's XML holds one group of all ranks; export without subgroups")
    for i in np.flatnonzero(schedule.route >= 0)[:1].tolist():
        way = "->".join(schedule.routes[schedule.route[i]])
        needed = f"transfer {i} ({schedule.row(i)}) takes {way}, not the network's route"
        raise RefusedError(f"MSCCL's XML has no routes, and {needed}; write JSON, or a schedule of fewer trees")
    if (moved := int(schedule.count.sum())) > MOST_TRANSFERS:
        raise RefusedError(
            f"{moved} transfers of a chunk are too many for XML; take fewer ranks (most {MOST_TRANSFERS})"
        )


def _within_buffers(schedule: Schedule) -> Schedule:
    """Return the schedule with a row for each slot if any run goes on from the buffer into scratch slots."""
    columns = schedule.src_slot, schedule.dst_slot
    across = [(slot < schedule.n_chunks) & (slot + schedule.count > schedule.n_chunks) for slot in columns]
    return schedule.by_slot() if np.any(across) else schedule


# --- the actions of each rank ---


def _events(schedule: Schedule) -> list[list[_Event]]:
    """Return the events of each rank in order: in each step sends, then own copies, then receives."""
    events: list[list[_Event]] = [[] for _ in range(schedule.n)]
    for rows in schedule.steps():
        step = [(i, schedule.row(i)) for i in range(rows.start, rows.stop)]
        for i, row in step:
            if row.src != row.dst:
                events[row.src].append(_Event("send", i, row))
        for i, row in _copies(step):
            events[row.src].append(_Event("local", i, row))
        for i, row in step:
            if row.src != row.dst:
                events[row.dst].append(_Event("receive", i, row))
    return events


def _copies(step: list[tuple[int, Transfer]]) -> Iterator[tuple[int, Transfer]]:
    """Yield a step's copies within ranks, each after all copies that read the slot that it overwrites."""
    left = [(i, row) for i, row in step if row.src == row.dst]
    first: dict[tuple[int, int], int] = {}  # the first receive into a slot
    for i, row in step:
        if row.src != row.dst:
            for slot in _run(row.dst_slot, row.count):
                first.setdefault((row.dst, slot), i)
    readers = Counter((row.src, slot) for _, row in left for slot in _run(row.src_slot, row.count))
    while left:
        for item in left:
            i, row = item
            places = [(row.dst, slot) for slot in _run(row.dst_slot, row.count)]
            own = int(row.src_slot == row.dst_slot)
            if all(readers[place] == own and first.get(place, i) >= i for place in places):
                break
        else:
            raise RefusedError(
                f"step {left[0][1].step}: rank {left[0][1].src} exchanges slots of its own within a step, "
                "which MSCCL's XML cannot say; copy through a scratch slot"
            )
        left.remove(item)
        readers.subtract((row.src, slot) for slot in _run(row.src_slot, row.count))
        yield item


# --- thread blocks ---


def _rank(schedule: Schedule, number: int, events: list[_Event]) -> GpuBlocks:
    """Return the thread blocks of a rank with their steps and the steps' dependences."""
    next_on = _next_accesses(events)
    partner = _partners(schedule.n, number, events, next_on)
    rank: GpuBlocks = {}
    writer: dict[int, tuple[Peers, int]] = {}
    readers: dict[int, list[tuple[Peers, int]]] = {}
    held: dict[int, int] = {}  # event that sends received data on -> the step that received them
    for at, event in enumerate(events):
        peers = _peers(event, partner)
        ops = rank.setdefault(peers, [])
        if event.does == "send" and held.get(at) == len(ops) - 1 and ops:
            op = ops[-1]  # the previous step of this thread block received the data, and no event used them since
            op.kind, op.at = _sent_on(op.kind, events, next_on, at), _at(event)
            for slot in event.reads:
                readers.setdefault(slot, []).append((peers, len(ops) - 1))
            continue
        waits = _waits(event, peers, writer, readers)
        for wait in waits[:-1]:
            ops.append(_BlockStep("nop", waits=wait))
        ops.append(_op(event, waits[-1] if waits else None))
        for peer, index in waits:
            rank[peer][index].awaited = True
        here = (peers, len(ops) - 1)
        for slot in event.reads:
            readers.setdefault(slot, []).append(here)
        for slot in event.writes:
            writer[slot], readers[slot] = here, []
        following = next_on.get(at)
        if following is not None and _goes_on(event, events[following]) and events[following].row.dst == peers[0]:
            held[following] = here[1]
    return rank


def _next_accesses(events: list[_Event]) -> dict[int, int]:
    """Return for each event the next event that uses the slots that it writes (or reads, if it writes none). An event
    of several slots, which are not next used by one event together, is left out."""
    following: dict[int, Counter[int]] = {}
    last: dict[int, int] = {}
    for at, event in enumerate(events):
        for slot in {*event.reads, *event.writes}:
            before = last.get(slot)
            if before is not None and slot in (events[before].writes or events[before].reads):
                following.setdefault(before, Counter())[at] += 1
            last[slot] = at
    return {at: next(iter(used)) for at, used in following.items() if [*used.values()] == [events[at].row.count]}


def _partners(n: int, rank: int, events: list[_Event], next_on: Mapping[int, int]) -> dict[int, int]:
    """Return, for the rank that a thread block receives from, the rank that it sends to. On each channel the pairs with
    most forwarded transfers are chosen first."""
    counts: Counter[Peers] = Counter()
    for at, following in next_on.items():
        if _goes_on(events[at], events[following]):
            counts[events[following].row.dst, events[at].row.src] += 1
    partners: dict[int, int] = {}
    for (send, receive), _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        alike = _channel(n, (send, -1), rank) == _channel(n, (-1, receive), rank)
        if alike and receive not in partners and send not in partners.values():
            partners[receive] = send
    return partners


def _peers(event: _Event, partner: Mapping[int, int]) -> Peers:
    if event.does == "local":
        return -1, -1
    if event.does == "receive":
        return partner.get(event.row.src, -1), event.row.src
    receive = next((receive for receive, send in partner.items() if send == event.row.dst), -1)
    return event.row.dst, receive


def _goes_on(event: _Event, following: _Event) -> bool:
    """Return whether an event receives the data that the following event sends."""
    return event.does == "receive" and following.does == "send" and following.reads == event.writes


def _sent_on(kind: str, events: list[_Event], next_on: Mapping[int, int], at: int) -> str:
    """Return the type of a step that receives and sends on: `rcs`, `rrcs`, or `rrs` if nothing reads the stored
    value."""
    if kind == "r":
        return "rcs"
    following = next_on.get(at)
    event = events[following] if following is not None else None
    over = event is not None and event.does == "receive" and not event.row.reduce
    return "rrs" if over else "rrcs"


def _op(event: _Event, wait: tuple[Peers, int] | None) -> _BlockStep:
    row = event.row
    if event.does == "send":
        return _BlockStep("s", row.src_slot, row.src_slot, row.count, _at(event), wait)
    if event.does == "local":
        return _BlockStep("re" if row.reduce else "cpy", row.src_slot, row.dst_slot, row.count, _at(event), wait)
    return _BlockStep("rrc" if row.reduce else "r", row.dst_slot, row.dst_slot, row.count, "", wait)


def _at(event: _Event) -> str:
    return f"{event.row.step}.{event.number}" + (".1" if event.row.joins else "")


def _waits(
    event: _Event,
    peers: Peers,
    writer: Mapping[int, tuple[Peers, int]],
    readers: Mapping[int, list[tuple[Peers, int]]],
) -> list[tuple[Peers, int]]:
    """Return the steps of other thread blocks to wait for: writers of slots that the event reads, and readers and
    writers of the slots that it overwrites."""
    needed: dict[Peers, int] = {}
    awaited = [writer[slot] for slot in (*event.reads, *event.writes) if slot in writer]
    awaited += [reader for slot in event.writes for reader in readers.get(slot, [])]
    for block, index in awaited:
        if block != peers:
            needed[block] = max(index, needed.get(block, -1))
    return list(needed.items())
