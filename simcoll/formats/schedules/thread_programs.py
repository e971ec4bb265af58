"""Convert programs of thread blocks into schedules; all readers of other programs' schedules use this module.

A reader executes its program in any order that the program allows, and records which rank reads and writes which slot.
Data dependences then divide the transfers into steps: a value is read after it is written, and not after it is
overwritten. Within a step all reads come before all writes. So a read and a later write may share one step.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.errors import ScheduleError
from simcoll.schedule import proof
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import Schedule

MOST_TRANSFERS: Final = 200_000  # most chunks that the transfers of an imported schedule move
MOST_PLACES: Final = 2_000_000  # ranks times slots of an imported schedule
MOST_ROOTS: Final = 64  # most roots to try if a file names none
MOST_RANKS: Final = 4096  # more need too much memory and time for the proof and the steps
MOST_BYTES: Final = 3 * 10**8  # memory for a proof with mixed chunks; proofs of other schedules need little memory

THREADS: Final = (
    "thread blocks and channels are not kept: a transfer waits for its data and its channel; "
    "with model.channels=per-peer what goes to different ranks goes at once, as thread blocks do"
)
_ONE_BLOCK: Final = {"i": ("all_gather", "gather"), "o": ("reduce_scatter", "scatter")}  # buffers of one block only


def check_size(ranks: int, slots: int) -> None:
    """Raise ScheduleError for a schedule too large to be proved in little memory."""
    if ranks * slots > MOST_PLACES:
        raise ScheduleError(f"{ranks} ranks of {slots} slots are too many; give a smaller schedule")


class Hint(NamedTuple):
    """The step and row of a transfer in the schedule from which simcoll wrote the file. `joins`: it is a further run of
    the transfer of the row before it."""

    step: int
    row: int
    joins: bool = False


@dataclass
class _Slot:
    """The last transfers that read and wrote a slot."""

    writer: int = -1
    reduced: bool = False
    readers: list[int] = field(default_factory=list)


@dataclass
class RecordedTransfers:
    """The transfers recorded so far, in an order in which they may happen. A transfer moves the values of the slots
    `read_slots` of `src` into as many slots `written` of `dst`."""

    src: list[int] = field(default_factory=list)
    read_slots: list[Sequence[int]] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    written: list[Sequence[int]] = field(default_factory=list)
    reduce: list[bool] = field(default_factory=list)
    hints: list[Hint | None] = field(default_factory=list)
    _slots: dict[tuple[int, int], _Slot] = field(default_factory=dict)
    _moved: int = 0  # slots that all transfers read
    _after: list[tuple[int, int, int]] = field(default_factory=list)  # (a, b, d): step of b ≥ step of a + d

    def read(self, rank: int, slots: Sequence[int], hint: Hint | None = None) -> int:
        """Begin a transfer: `rank` reads its `slots`. Return the number of the transfer."""
        self._moved += len(slots)
        if self._moved > MOST_TRANSFERS:
            raise ScheduleError(f"more than {MOST_TRANSFERS} chunks are moved; give a smaller schedule")
        number = len(self.src)
        self.src.append(rank)
        self.read_slots.append(slots)
        self.hints.append(hint)
        self.dst.append(-1)
        self.written.append(())
        self.reduce.append(False)
        for slot in slots:
            known = self._slots.setdefault((rank, slot), _Slot())
            if known.writer >= 0:
                self._after.append((known.writer, number, 1))
            known.readers.append(number)
        return number

    def write(self, number: int, rank: int, slots: Sequence[int], reduce: bool) -> None:
        """End transfer `number`: `rank` writes the values to its `slots`, or adds them if `reduce`."""
        self.dst[number], self.written[number], self.reduce[number] = rank, slots, reduce
        for slot in slots:
            known = self._slots.setdefault((rank, slot), _Slot())
            if known.writer >= 0:
                self._after.append((known.writer, number, 0 if reduce and known.reduced else 1))
            self._after += ((reader, number, 0) for reader in known.readers if reader != number)
            self._slots[rank, slot] = _Slot(number, reduce)

    def local(
        self, rank: int, read: Sequence[int], written: Sequence[int], reduce: bool, hint: Hint | None = None
    ) -> None:
        """Record a copy or reduction within a rank; nothing if the slots are the same."""
        if read != written:
            self.write(self.read(rank, read, hint), rank, written, reduce)

    def follows(self, first: int, second: int) -> None:
        """Require that transfer `second` is in no earlier step than transfer `first`, because one thread does both."""
        self._after.append((first, second, 0))

    def schedule(self, **fields: Any) -> Schedule:
        """Return the schedule. Steps and rows are those of the hints, if every transfer has one and dependences allow
        them; else each transfer gets the earliest possible step. Raises ScheduleError."""
        slots = 1 + max(itertools.chain(*self.read_slots, *self.written), default=0)
        check_size(fields["n"], max(slots, fields["n_chunks"]))
        hinted = self._hinted()
        if hinted is not None:
            order = sorted(range(len(hinted)), key=lambda i: hinted[i].row)
            rows = [(hinted[i].step, *row) for i in order for row in self._rows(i, hinted[i].joins)]
            return Schedule.from_rows(rows, **fields)
        level = self._levels()
        rows = [(level[i], *row) for i in self._order(level, fields["n"]) for row in self._rows(i)]
        return Schedule.from_steps(Schedule.from_rows(rows, **fields).parts(), **fields)

    def _rows(self, i: int, joins: bool = False) -> Iterator[tuple[int, int, int, int, bool, int, bool]]:
        """Yield a row for each run of neighbouring slots of transfer `i`; the first of them joins if `joins`."""
        read, written = self.read_slots[i], self.written[i]
        begins = [
            k for k in range(len(read)) if not k or (read[k], written[k]) != (read[k - 1] + 1, written[k - 1] + 1)
        ]
        for begin, end in itertools.pairwise([*begins, len(read)]):
            row = self.src[i], read[begin], self.dst[i], written[begin], self.reduce[i], end - begin
            yield *row, joins or begin > 0

    def _hinted(self) -> list[Hint] | None:
        hints = [hint for hint in self.hints if hint is not None]
        if not hints or len(hints) < len(self.hints) or len({hint.row for hint in hints}) < len(hints):
            return None
        by_row = sorted(range(len(hints)), key=lambda i: hints[i].row)
        pairs = list(itertools.pairwise(by_row))
        if any(hints[a].step > hints[b].step or (hints[b].joins and not self._alike(a, b, hints)) for a, b in pairs):
            return None
        if hints[by_row[0]].joins:
            return None
        fits = all(hints[b].step >= hints[a].step + apart for a, b, apart in self._after)
        return hints if fits else None

    def _alike(self, a: int, b: int, hints: Sequence[Hint]) -> bool:
        """Return whether two recorded transfers can be runs of one transfer."""
        columns = (self.src, self.dst, self.reduce)
        return hints[a].step == hints[b].step and all(column[a] == column[b] for column in columns)

    def _levels(self, backward: bool = False) -> list[int]:
        """Return each transfer's earliest step (longest path over `_after`), or if `backward` the steps after it."""
        out: list[list[tuple[int, int]]] = [[] for _ in self.src]
        for a, b, apart in self._after:
            out[b if backward else a].append((a if backward else b, apart))
        level = [0] * len(self.src)
        waiting, queued = deque(range(len(level))), [True] * len(level)
        budget = 200 * (len(self._after) + len(level)) + 10_000
        while waiting:
            a = waiting.popleft()
            queued[a] = False
            budget -= 1 + len(out[a])
            if level[a] > len(level) or budget < 0:
                raise ScheduleError("cannot be cut into steps: a value would be overwritten before it is read")
            for b, apart in out[a]:
                if level[b] < level[a] + apart:
                    level[b] = level[a] + apart
                    if not queued[b]:
                        queued[b] = True
                        waiting.append(b)
        return level

    def _order(self, level: list[int], n: int) -> list[int]:
        """Return the transfers sorted by step (`level`). Within a step, transfers with the most dependent steps after
        them come first. Ties are ordered by the distance to the next rank ahead, so that not all ranks send to one rank
        at once."""
        apart = (np.asarray(self.dst) - np.asarray(self.src)) % n
        to_come = np.asarray(self._levels(backward=True), dtype=np.int64)
        order: list[int] = np.lexsort((apart, -to_come, np.asarray(level, dtype=np.int64))).tolist()
        return order


# --- buffers ---


@dataclass
class ImportedProgram:
    """The contents of another program's file. `sizes`: numbers of chunks of each buffer, at the rank with most."""

    name: str
    collective: str
    n: int
    n_chunks: int
    in_place: bool
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class BufferSlots:
    """The slots of a program's buffers `i` (input), `o` (output) and `s` (scratch).

    `alias`: input and output are one buffer. Otherwise the output is in scratch slots until it is copied at the end.
    """

    program: ImportedProgram
    alias: bool

    def slot(self, rank: int, buffer: str, offset: int) -> int:
        """Return the slot of a buffer's chunk; raises ValueError if the buffer is smaller."""
        sizes, n_chunks = self.program.sizes, self.program.n_chunks
        size = sizes[buffer] or (n_chunks if buffer != "s" else 0)
        if not 0 <= offset < size:
            raise ValueError(f"chunk {offset} of buffer {buffer!r}, which has {size}")
        if buffer == "s":
            return n_chunks + offset
        if buffer == "o" and not self.alias:
            return n_chunks + sizes["s"] + offset
        return self._block(rank, buffer) + offset

    def _block(self, rank: int, buffer: str) -> int:
        """Return the slot at which a buffer begins: that of the rank's own block if it holds no other, else 0."""
        each = self.program.n_chunks // self.program.n
        own = self.program.collective in _ONE_BLOCK[buffer] and 0 < self.program.sizes[buffer] <= each
        return rank * each if own else 0

    @property
    def spare(self) -> int:
        """The first slot beyond all buffers."""
        sizes = self.program.sizes
        return self.program.n_chunks + sizes["s"] + (0 if self.alias else sizes["o"])

    def schedule(self, moves: RecordedTransfers, **fields: Any) -> Schedule:
        """Return the schedule of an executed program, with final copies of the output to the slots of the result."""
        program = self.program
        written = {(rank, slot) for rank, slots in zip(moves.dst, moves.written, strict=True) for slot in slots}
        for rank in range(0 if self.alias else program.n):
            base = self._block(rank, "o")
            for i in range(program.sizes["o"]):
                slot = self.slot(rank, "o", i)
                if (rank, slot) in written:
                    moves.local(rank, [slot], [base + i], False)
        shape = {"n": program.n, "n_chunks": program.n_chunks}
        return moves.schedule(collective=program.collective, algorithm=program.name, **shape, **fields)


# --- execution ---


def execute(threads: Sequence[Any], step: Callable[[Any], bool], order: int) -> Any:
    """Execute threads until all are done; return None, or a thread that would wait for ever.

    A thread has the operations `ops`, of which the first `done` are done. `step` does the next one, or returns False if
    it has to wait. If `order` is k > 0, the k-th thread is slow: it does an operation only if no other thread can.
    """
    slow = threads[order - 1] if order else None
    for thread in threads:
        thread.done = 0
    while left := [thread for thread in threads if thread.done < len(thread.ops)]:
        before = sum(thread.done for thread in threads)
        for thread in left:
            while thread is not slow and thread.done < len(thread.ops) and step(thread):
                thread.done += 1
        if before == sum(thread.done for thread in threads):
            if slow is None or slow not in left or not step(slow):
                return left[0]
            slow.done += 1
    return None


# --- the proof ---


Variant = Mapping[str, int]
MOST_ORDERS: Final = 200  # most orders in which a program is executed; fewer if it is long
WORK: Final = 100_000  # limit on the chunks that are moved in all orders together
Builder = Callable[[Variant], Schedule]


def prove(schedule: Schedule) -> None:
    """Prove a schedule in full. Raises ScheduleError, also for a schedule too large to be proved in little memory."""
    check_size(schedule.participants, schedule.n_slots)
    places = schedule.participants * schedule.n_slots
    apart = schedule.n_slots == schedule.n_chunks and np.array_equal(schedule.src_slot, schedule.dst_slot)
    if not apart and places * (schedule.n + 140) > MOST_BYTES:
        problem = f"{schedule.n} ranks of {schedule.n_slots} slots whose data move between slots"
        raise ScheduleError(f"{problem} are too many to prove; give a smaller schedule")
    proof.prove(schedule)


def proved(build: Builder, truth: Variant, simpler: Iterable[Variant], threads: int) -> Schedule:
    """Return the schedule of a program in the simplest variant that can be proved.

    The variant `truth` follows the program exactly. Its result must be right whichever of its `threads` is slow; else
    the program lacks a wait. All threads are tried, or some if the program is long. Variants in `simpler` omit copies
    between buffers (in place instead of out of place); they are used only if they can be proved, too. Raises
    ScheduleError if `truth` is wrong.
    """
    schedule = build(truth)
    prove(schedule)
    tries = min(threads, MOST_ORDERS, max(2, WORK // max(1, int(schedule.count.sum()))))
    for k in range(tries):
        try:
            prove(build({**truth, "order": 1 + k * threads // tries}))
        except ScheduleError as error:
            problem = f"depends on which thread block is quicker, so a wait is missing: {str(error).partition('; ')[0]}"
            raise ScheduleError(f"{problem}; let steps that use the same chunks wait for each other") from None
    for variant in simpler:
        try:
            simplified = build(variant)
            prove(simplified)
        except ScheduleError:
            continue
        return simplified
    return schedule


def roots(name: str, n: int) -> Sequence[int]:
    """Return the ranks that may be the root of a collective of n ranks if its file does not name the root, 0 first."""
    return range(min(n, MOST_ROOTS) if collective(name).rooted else 1)


def first_proved(made: Callable[[int], Schedule], roots: Sequence[int]) -> Schedule:
    """Return the schedule for the first of `roots` for which it can be proved; else raises ScheduleError."""
    for root in roots[:-1]:
        with suppress(ScheduleError):
            return made(root)
    return made(roots[-1])


def plain(text: str, otherwise: str) -> str:
    """Return a name for results, with letters, digits, `_`, `-`, `.` only; `otherwise` if the text has none of them."""
    return re.sub(r"[^\w.-]+", "_", text).strip("_")[:60] or otherwise
