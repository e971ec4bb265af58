"""Convert programs of thread blocks into schedules; all readers of other programs' schedules use this module.

A reader executes its program in any order that the program allows, and records which rank reads and writes which slot.
Data dependences then divide the transfers into steps: a value is read after it is written, and not after it is
overwritten. Within a step all reads come before all writes. So a read and a later write may share one step.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.errors import ScheduleError
from simcoll.schedule import proof
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import Schedule
from simcoll.schedule.steps import Step

MOST_TRANSFERS: Final = 200_000  # of an imported schedule
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
    """The step and row of a transfer in the schedule from which simcoll wrote the file."""

    step: int
    row: int


@dataclass
class _Slot:
    """The last transfers that read and wrote a slot."""

    writer: int = -1
    reduced: bool = False
    readers: list[int] = field(default_factory=list)


@dataclass
class RecordedTransfers:
    """The transfers recorded so far, in an order in which they may happen."""

    src: list[int] = field(default_factory=list)
    src_slot: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    dst_slot: list[int] = field(default_factory=list)
    reduce: list[bool] = field(default_factory=list)
    hints: list[Hint | None] = field(default_factory=list)
    _slots: dict[tuple[int, int], _Slot] = field(default_factory=dict)
    _after: list[tuple[int, int, int]] = field(default_factory=list)  # (a, b, d): step of b ≥ step of a + d

    def read(self, rank: int, slot: int, hint: Hint | None = None) -> int:
        """Begin a transfer: `rank` reads its `slot`. Return the number of the transfer."""
        if len(self.src) >= MOST_TRANSFERS:
            raise ScheduleError(f"more than {MOST_TRANSFERS} transfers; give a smaller schedule")
        number = len(self.src)
        self.src.append(rank)
        self.src_slot.append(slot)
        self.hints.append(hint)
        for column in (self.dst, self.dst_slot):
            column.append(-1)
        self.reduce.append(False)
        known = self._slots.setdefault((rank, slot), _Slot())
        if known.writer >= 0:
            self._after.append((known.writer, number, 1))
        known.readers.append(number)
        return number

    def write(self, number: int, rank: int, slot: int, reduce: bool) -> None:
        """End transfer `number`: `rank` writes the value to its `slot`, or adds it if `reduce`."""
        self.dst[number], self.dst_slot[number], self.reduce[number] = rank, slot, reduce
        known = self._slots.setdefault((rank, slot), _Slot())
        if known.writer >= 0:
            self._after.append((known.writer, number, 0 if reduce and known.reduced else 1))
        self._after += ((reader, number, 0) for reader in known.readers if reader != number)
        self._slots[rank, slot] = _Slot(number, reduce)

    def local(self, rank: int, src_slot: int, dst_slot: int, reduce: bool, hint: Hint | None = None) -> None:
        """Record a copy or reduction within a rank; nothing if both slots are the same."""
        if src_slot != dst_slot:
            self.write(self.read(rank, src_slot, hint), rank, dst_slot, reduce)

    def follows(self, first: int, second: int) -> None:
        """Require that transfer `second` is in no earlier step than transfer `first`, because one thread does both."""
        self._after.append((first, second, 0))

    def schedule(self, **fields: Any) -> Schedule:
        """Return the schedule. Steps and rows are those of the hints, if every transfer has one and dependences allow
        them; else each transfer gets the earliest possible step. Raises ScheduleError."""
        slots = max(self.src_slot + self.dst_slot, default=0) + 1
        check_size(fields["n"], max(slots, fields["n_chunks"]))
        hinted = self._hinted()
        if hinted is not None:
            rows = [(hinted[i].step, *self._row(i)) for i in sorted(range(len(hinted)), key=lambda i: hinted[i].row)]
            return Schedule.from_rows(rows, **fields)
        return Schedule.from_steps(self._parts(self._levels(), fields["n"]), **fields)

    def _row(self, i: int) -> tuple[int, int, int, int, bool]:
        return self.src[i], self.src_slot[i], self.dst[i], self.dst_slot[i], self.reduce[i]

    def _hinted(self) -> list[Hint] | None:
        hints = [hint for hint in self.hints if hint is not None]
        if not hints or len(hints) < len(self.hints) or len({hint.row for hint in hints}) < len(hints):
            return None
        by_row = sorted(hints, key=lambda hint: hint.row)
        if any(first.step > second.step for first, second in itertools.pairwise(by_row)):
            return None
        fits = all(hints[b].step >= hints[a].step + apart for a, b, apart in self._after)
        return hints if fits else None

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

    def _parts(self, level: list[int], n: int) -> Iterable[Step]:
        """Return the transfers as steps.

        Within a step, transfers with the most dependent steps after them come first. Ties are ordered by the distance
        to the next rank ahead, so that not all ranks send to one rank at once.
        """
        if not level:
            return []
        apart = (np.asarray(self.dst) - np.asarray(self.src)) % n
        to_come = np.asarray(self._levels(backward=True), dtype=np.int64)
        order = np.lexsort((apart, -to_come, np.asarray(level, dtype=np.int64)))
        columns = [np.asarray(c, dtype=np.int32)[order] for c in (self.src, self.src_slot, self.dst, self.dst_slot)]
        reduce = np.asarray(self.reduce, dtype=np.bool_)[order]
        edges = np.flatnonzero(np.diff(np.asarray(level)[order])) + 1
        parts = [np.split(column, edges) for column in (*columns, reduce)]
        return [Step._make(columns) for columns in zip(*parts, strict=True)]


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
        program, written = self.program, set(zip(moves.dst, moves.dst_slot, strict=True))
        for rank in range(0 if self.alias else program.n):
            base = self._block(rank, "o")
            for i in range(program.sizes["o"]):
                slot = self.slot(rank, "o", i)
                if (rank, slot) in written:
                    moves.local(rank, slot, base + i, False)
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
WORK: Final = 100_000  # limit on the transfers in all orders together
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
    tries = min(threads, MOST_ORDERS, max(2, WORK // max(1, len(schedule))))
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
