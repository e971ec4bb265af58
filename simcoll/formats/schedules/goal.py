"""Read and write GOAL text, which LogGOPSim and ATLAHS replay: sends and receives of each rank, and their dependences.

    num_ranks 2
    rank 0 {
    l1: send 1024b to 1 tag 0 cpu 0 nic 0
    l2: recv 1024b from 1 tag 1 cpu 0 nic 0
    l2 requires l1
    }

GOAL gives the sizes of messages, but not which data they carry. Files that simcoll writes name the data in labels:
`t7s2a0b3r` is transfer 7, in step 2, from slot 0 to slot 3, reducing; `a0b3n2` is a
run of 2 slots, and a message of several runs names each of them. A computation of length 0 at rank 0 names the
collective. For other files we assume that a message carries the sender's whole buffer, or its partial result.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Final

import numpy as np

from simcoll.config.input_files import ImportLog
from simcoll.engine.timing_model import dependencies
from simcoll.errors import InputError, Place, RefusedError, ScheduleError
from simcoll.formats.schedules import thread_programs
from simcoll.formats.schedules.thread_programs import MOST_RANKS, MOST_TRANSFERS, RecordedTransfers, plain
from simcoll.schedule.collectives import COLLECTIVES, collective
from simcoll.schedule.names import collective_named
from simcoll.schedule.schedule import Schedule, Transfer

MOST_OF_OTHERS: Final = 20_000  # most messages of a file that simcoll did not write
_LINE: Final = re.compile(r"(?:(\w+)\s*:)?\s*(send|recv|calc)\s+([0-9]+)\s*b?(?:\s+(?:to|from)\s+([0-9]+))?(.*)")
_WAITS: Final = re.compile(r"(\w+)\s+(i?requires)\s+(\w+)")
_TAG: Final = re.compile(r"\btag\s+([0-9]+)")
_RANK: Final = re.compile(r"rank\s+([0-9]+)\s*\{?")
_RUN: Final = re.compile(r"a([0-9]{1,9})b([0-9]{1,9})(?:n([0-9]{1,9}))?")
_LABEL: Final = re.compile(rf"[tu]([0-9]{{1,9}})s([0-9]{{1,9}})((?:{_RUN.pattern})+)(r?)")
_WHOLE: Final = re.compile(r"simcoll_([a-z_]+)_n([0-9]{1,9})_root([0-9]{1,6})_p([01])_(\w*)")
_REMARK: Final = re.compile(r"//.*|#.*|/\*.*?\*/")
_WHOLE_BUFFER: Final = ("broadcast", "reduce", "all_reduce", "barrier")  # sender and receiver determine the data


_Op = tuple[int, int]  # a rank, and the index of an operation in its list


@dataclass
class _GoalLine:
    """A rank's operation: its `kind`, bytes, peer and tag; `waits`: indices of operations that come before it."""

    kind: str
    nbytes: int
    peer: int
    tag: int
    label: str
    place: Place
    waits: list[int] = field(default_factory=list)


def looks(text: str) -> bool:
    """Return whether a text has a line `num_ranks N`, as GOAL does."""
    return re.search(r"^\s*num_ranks\s+[0-9]+", text, re.MULTILINE) is not None


def read(text: str, source: str, asked: str | None, notes: ImportLog) -> Schedule:
    """Return the proved schedule of a GOAL text; `asked` names its collective if simcoll did not write the file.

    Raises InputError with line and column, and ScheduleError if the schedule does not produce the collective's result.
    """
    ranks = _parsed(text, source)
    sends = sum(op.kind == "send" for ops in ranks for op in ops)
    notes.read.append(f"{len(ranks)} ranks, {sends} messages of GOAL text")
    whole = next((m for op in ranks[0] if op.kind == "calc" and (m := _WHOLE.fullmatch(op.label))), None)
    if not whole or asked not in (None, whole[1]):
        return _others(ranks, _asked(asked, source), notes)
    schedule = _ours(ranks, whole)
    thread_programs.prove(schedule)
    return schedule


def _asked(asked: str | None, source: str) -> str:
    name = collective_named(asked or "")
    if name not in _WHOLE_BUFFER:
        problem = f"{source}: GOAL does not say which data a message carries" + (f", as {asked} needs" if asked else "")
        raise InputError(problem, f"name its collective with --collective, one of: {', '.join(_WHOLE_BUFFER)}")
    return str(name)


# --- the text ---


def _parsed(text: str, source: str) -> list[list[_GoalLine]]:
    ranks: list[list[_GoalLine]] | None = None
    labels: dict[str, int] = {}
    current: list[_GoalLine] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        place = Place(source, number, len(raw) - len(raw.lstrip()) + 1)
        line = _REMARK.sub("", raw).strip()
        if line.startswith("num_ranks"):
            ranks = [[] for _ in range(_number(line.partition("num_ranks")[2].strip(), MOST_RANKS, place, least=1))]
        elif not line or line in ("}", "{"):
            current = None if line == "}" else current
        elif ranks is None:
            raise InputError("no num_ranks yet", "begin with num_ranks N", place)
        elif match := _RANK.fullmatch(line):
            current, labels = ranks[_number(match[1], len(ranks) - 1, place)], {}
        elif current is None:
            raise InputError(f"{line[:40]!r} stands outside of a rank", "write rank N {", place)
        elif match := _WAITS.fullmatch(line):
            _wait(match, labels, current, place)
        else:
            op = _op(line, len(ranks), place)
            if op.label and labels.setdefault(op.label, len(current)) != len(current):
                raise InputError(f"label {op.label!r} stands twice", "name it otherwise", place)
            current.append(op)
    if not ranks:
        raise InputError("no ranks in it", "begin with num_ranks N", Place(source, 1, 1))
    return ranks


def _number(text: str, most: int, place: Place, least: int = 0) -> int:
    number = int(text) if text.isdecimal() and len(text) < 19 else -1
    if not least <= number <= most:
        raise InputError(f"{text[:40]!r} is no number from {least} to {most}", "mend it", place)
    return number


def _wait(match: re.Match[str], labels: dict[str, int], ops: list[_GoalLine], place: Place) -> None:
    for label in (match[1], match[3]):
        if label not in labels:
            raise InputError(f"there is no {label!r} above", "write the operation first", place)
    ops[labels[match[1]]].waits.append(labels[match[3]])


def _op(line: str, n: int, place: Place) -> _GoalLine:
    match = _LINE.fullmatch(line)
    if match is None or (match[2] != "calc" and match[4] is None):
        cure = "write send Nb to R, recv Nb from R, calc N, or A requires B"
        raise InputError(f"{line[:60]!r} is not understood", cure, place)
    peer = -1 if match[2] == "calc" else _number(match[4], n - 1, place)
    tag = _TAG.search(match[5])
    return _GoalLine(
        match[2],
        _number(match[3], 2**62, place),
        peer,
        _number(tag[1], 2**62, place) if tag else 0,
        match[1] or "",
        place,
    )


# --- files that simcoll wrote ---


def _ours(ranks: list[list[_GoalLine]], whole: re.Match[str]) -> Schedule:
    rows, numbers = [], []
    for rank, ops in enumerate(ranks):
        for op in ops:
            label = _LABEL.fullmatch(op.label)
            if label and (op.kind == "send" or (op.kind == "calc" and op.label.startswith("t"))):
                number, step, peer = int(label[1]), int(label[2]), op.peer if op.kind == "send" else rank
                numbers.append(number)
                for place, run in enumerate(_RUN.finditer(label[3])):
                    a, b, count = int(run[1]), int(run[2]), int(run[3] or 1)
                    rows.append((number, place, (step, rank, a, peer, b, label.group(7) == "r", count, place > 0)))
    if len(set(numbers)) < len(numbers) or sum(row[6] for *_, row in rows) > MOST_TRANSFERS:
        raise ScheduleError("two operations have the label of one transfer, or there are too many transfers")
    name, n_chunks, root, pipelined, algorithm = whole.groups()
    if (
        name not in COLLECTIVES
        or not 0 < int(n_chunks) * len(ranks) <= thread_programs.MOST_PLACES
        or int(root) >= len(ranks)
    ):
        raise ScheduleError(f"{whole[0][:60]!r} names no collective, or its numbers are too large")
    if any((max(row[2], row[4]) + row[6]) * len(ranks) > thread_programs.MOST_PLACES for *_, row in rows):
        raise ScheduleError("a label names a slot that is too large")
    return Schedule.from_rows(
        [row for *_, row in sorted(rows)],
        collective=name,
        algorithm=algorithm or "imported",
        n=len(ranks),
        n_chunks=int(n_chunks),
        root=int(root),
        pipelined=pipelined == "1",
    )


# --- files of other programs ---


def _others(ranks: list[list[_GoalLine]], name: str, notes: ImportLog) -> Schedule:
    """Return the schedule of another program's file: each message carries a buffer, reduced unless it is complete."""
    sent = [op.nbytes for ops in ranks for op in ops if op.kind == "send"]
    if len(sent) > MOST_OF_OTHERS:
        raise ScheduleError(f"more than {MOST_OF_OTHERS} messages; give a smaller schedule")
    sizes = set(sent)
    if len(sizes) > 1 and name != "barrier":
        raise ScheduleError(f"messages of {len(sizes)} sizes; all messages have to be whole buffers")
    notes.assume("GOAL does not say which data a message carries: each carries one whole buffer")
    if calcs := sum(op.kind == "calc" and op.nbytes > 0 for ops in ranks for op in ops):
        notes.assume(f"{calcs} computations are left out: model.gamma says what reductions cost")

    def made(root: int) -> Schedule:
        schedule = _played(ranks, name, root)
        thread_programs.prove(schedule)
        return schedule

    return thread_programs.first_proved(made, thread_programs.roots(name, len(ranks)))


def _played(ranks: list[list[_GoalLine]], name: str, root: int) -> Schedule:
    """Return the schedule of another program's file, by executing it. Sends go first, so that initial data are sent
    before they change. The k-th receive from a peer with a tag takes the k-th message that this peer sends with the
    tag."""
    ops = {(rank, i): op for rank, lines in enumerate(ranks) for i, op in enumerate(lines)}
    order = TopologicalSorter({(rank, i): [(rank, before) for before in op.waits] for (rank, i), op in ops.items()})
    sends: dict[tuple[int, int, int], deque[_Op]] = {}
    for at, op in ops.items():
        if op.kind == "send":
            sends.setdefault((at[0], op.peer, op.tag), deque()).append(at)
    sender: dict[_Op, _Op] = {}
    for at, op in ops.items():
        if op.kind == "recv":
            if not (messages := sends.get((op.peer, at[0], op.tag))):
                raise InputError(f"rank {at[0]} waits here for ever", "send the message that it waits for", op.place)
            sender[at] = messages.popleft()
            order.add(at, sender[at])
    if any(sends.values()):
        raise ScheduleError("a message is sent and never received")
    try:
        order.prepare()
    except CycleError as error:
        first = min(error.args[1])
        cure = "mend the operation that it waits for"
        raise InputError(f"rank {first[0]} waits here for ever", cure, ops[first].place) from None
    copies, everyone = name == "broadcast", (1 << len(ranks)) - 1
    holds = [(everyone if r == root else 0) if copies else 1 << r for r in range(len(ranks))]  # whose data, as bits
    moves, sent = RecordedTransfers(), dict[_Op, tuple[int, int]]()
    ready: tuple[deque[_Op], deque[_Op]] = deque(), deque()  # sends and computations, receives
    while order.is_active():
        for at in order.get_ready():
            ready[ops[at].kind == "recv"].append(at)
        at = (ready[0] or ready[1]).popleft()
        rank = at[0]
        if ops[at].kind == "send":
            sent[at] = moves.read(rank, [0]), holds[rank]
        elif ops[at].kind == "recv":
            number, came = sent[sender[at]]
            moves.write(number, rank, [0], not copies and came != everyone)
            holds[rank] |= came
        order.done(at)
    return moves.schedule(collective=name, algorithm="goal", n=len(ranks), n_chunks=1, root=root)


# --- writing ---


def dump(schedule: Schedule, nbytes: int, itemsize: int = 4) -> str:
    """Return a schedule as GOAL text for buffers of `nbytes`; raises RefusedError if the format cannot express it."""
    if schedule.agents or schedule.groups != (tuple(range(schedule.n)),):
        raise RefusedError("GOAL has one group of ranks and no switches that reduce; take another algorithm")
    if (moved := int(schedule.count.sum())) > MOST_TRANSFERS:
        raise RefusedError(
            f"{moved} transfers of a chunk are too many for text; take fewer ranks (most {MOST_TRANSFERS})"
        )
    waits = dependencies(schedule)
    sizes = _sizes(schedule, nbytes, itemsize)
    lines: list[list[str]] = [[] for _ in range(schedule.n)]
    label = f"simcoll_{schedule.collective}_n{schedule.n_chunks}_root{schedule.root}_p{int(schedule.pipelined)}"
    name = plain(schedule.algorithm, "own").translate(str.maketrans("-.", "__"))
    lines[0].append(f"{label}_{name}: calc 0")
    codes, ends = [], []
    rows = list(schedule)
    for i, (first, end) in enumerate(itertools.pairwise([*schedule.heads.tolist(), len(rows)])):
        row, runs = rows[first], "".join(map(_run, rows[first:end]))
        codes.append(f"{i}s{row.step}{runs}{'r' if row.reduce else ''}")
        ends.append(f"{'t' if row.src == row.dst else 'u'}{codes[-1]}")
        if row.src == row.dst:
            lines[row.src].append(f"t{codes[i]}: calc 0")
        else:
            lines[row.src].append(f"t{codes[i]}: send {sizes[i]}b to {row.dst} tag {i} cpu 0 nic 0")
            lines[row.dst].append(f"u{codes[i]}: recv {sizes[i]}b from {row.src} tag {i} cpu 0 nic 0")
        awaited, found = waits.reads.of(i), set[int]()
        while awaited:  # wait for the versions that are read, and for earlier reductions into them
            if (before := awaited.pop()) not in found:
                found.add(before)
                lines[row.src].append(f"t{codes[i]} requires {ends[before]}")
                awaited += waits.chain.of(before)
    texts = [f"num_ranks {schedule.n}", ""]
    for rank, operations in enumerate(lines):
        texts += [f"rank {rank} {{", *operations, "}", ""]
    return "\n".join(texts)


def _run(row: Transfer) -> str:
    return f"a{row.src_slot}b{row.dst_slot}" + (f"n{row.count}" if row.count > 1 else "")


def _sizes(schedule: Schedule, nbytes: int, itemsize: int) -> list[int]:
    """Return the bytes of each transfer: the sizes of the slots whose initial data the transfer carries."""
    held = collective(schedule.collective).sizes(nbytes, schedule.n, schedule.n_chunks, schedule.root, itemsize)
    rows = schedule.by_slot()
    reads = dependencies(rows.replace(joins=np.zeros(len(rows), np.bool_))).reads
    sizes: list[int] = []
    for i, row in enumerate(rows):
        first = int(held[row.src, row.src_slot]) if row.src_slot < schedule.n_chunks else 0
        sizes.append(sizes[reads.of(i)[0]] if reads.of(i) else first)
    whole: list[int] = np.add.reduceat(sizes, rows.heads).tolist() if sizes else []
    return whole
