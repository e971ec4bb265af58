"""The steps that algorithms yield. A step is a set of transfers; a `Repeat` stands for many steps of one pattern.

All transfers of a step read before any of them writes. A step is a table of *rows*, stored as columns of numbers. A row
moves one run of neighbouring slots. A transfer, i.e. a message, is a row and all rows behind it that `joins` marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.config.numpy_helpers import Sets, all_differ, distinct

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


class Step(NamedTuple):
    """The rows of one step, as columns of equal length. `send` makes a step.

    A row moves the slots `src_slot` to `src_slot + count − 1` of `src` into as many slots of `dst`, from `dst_slot` on.
    `joins` is true if the row travels in one message with the row before it.

    >>> send([1, 2], 0, 0, reduce=True).dst.tolist()
    [0, 0]
    """

    src: Ints
    src_slot: Ints
    dst: Ints
    dst_slot: Ints
    reduce: Bools
    count: Ints  # type: ignore[assignment]  # a tuple has a method of this name
    joins: Bools

    @property
    def first(self) -> Step:
        """The step itself, so that a step can be used like a `Repeat`, whose `first` is the first of its steps."""
        return self

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.src)

    @property
    def transfers(self) -> int:
        """Number of transfers."""
        return len(self.src) - int(np.count_nonzero(self.joins))

    @property
    def steps(self) -> int:
        """Number of steps: 1."""
        return 1

    def whole(self) -> Step:
        """Return the step itself: all rows of all steps, as of a `Repeat`."""
        return self

    @property
    def single(self) -> bool:
        """Whether each row is a transfer of one slot."""
        return not self.joins.any() and not (self.count > 1).any()

    def taken(self, rows: NDArray[Any]) -> Step:
        """Return the step with only some of its `rows` (numbers or bools), in their order."""
        return Step._make(column[rows] for column in self)

    def by_slot(self) -> Step:
        """Return the step with a row for each slot that a transfer moves."""
        return self if self.single else _by_slot(self, np.zeros(self.rows, np.int32))[0]

    def as_messages(self) -> Step:
        """Return the step with all that a participant sends to another, and reduces alike, as one transfer."""
        return _as_messages(self, None)[0]

    def in_order(self) -> Step:
        """Return the step with its transfers sorted: the first transfer of every sender, then the second transfer of
        every sender, and so on. Engines take transfers in this order, which is roughly the order in which they happen.
        The transfers of one sender keep their order."""
        return self.taken(_sender_order(self))


@dataclass(frozen=True, eq=False)
class Repeat:
    """`times` steps between the same participants, whose slots change cyclically. In step k (from 0) a row's run begins
    at slot `base + (slot − base + k·shift) mod span`, on both sides. `base` (rows,) is the lowest slot of each row's
    cycle."""

    first: Step
    times: int
    base: Ints
    span: int
    shift: int

    @property
    def rows(self) -> int:
        """Number of rows of each step."""
        return len(self.first.src)

    @property
    def transfers(self) -> int:
        """Number of transfers of all steps."""
        return self.first.transfers * self.times

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.times

    def __iter__(self) -> Iterator[Step]:
        """Iterate over the steps one by one."""
        return (self.at(k) for k in range(self.times))

    def at(self, k: int) -> Step:
        """Return the k-th step."""
        src_slot, dst_slot = self._slots(k)
        return self.first._replace(src_slot=src_slot, dst_slot=dst_slot)

    def whole(self) -> Step:
        """Return one step's columns with all rows of all steps, one step after the other."""
        src_slot, dst_slot = self._slots(np.arange(self.times)[:, None])
        rows = Step._make(np.tile(column, self.times) for column in self.first)
        return rows._replace(src_slot=src_slot.ravel(), dst_slot=dst_slot.ravel())

    def _slots(self, k: int | NDArray[np.int64]) -> tuple[Ints, Ints]:
        columns = (self.first.src_slot.astype(np.int64), self.first.dst_slot.astype(np.int64))
        src, dst = ((self.base + (slot - self.base + k * self.shift) % self.span).astype(np.int32) for slot in columns)
        return src, dst

    def carrying(self, wanted: Bools) -> tuple[NDArray[np.int64], Step]:
        """Return the rows of all steps that send a `wanted` slot, cut to rows of one slot, and the step number of each
        row. `wanted`: a bool per slot. The step numbers never decrease."""
        step, chosen = self.first, np.flatnonzero(wanted)
        stride = math.gcd(self.shift, self.span)
        if (step.count > stride).any():  # a run meets a slot in several steps
            return self.by_slot().carrying(wanted)
        period = self.span // stride
        ahead = chosen[None, :] - step.src_slot[:, None]  # from each run's first slot to the wanted one
        place = ahead % stride  # in the run, when the run carries the wanted slot
        within = chosen[None, :] - place - self.base[:, None]
        row, column = np.nonzero((within >= 0) & (within < self.span) & (place < step.count[:, None]))
        place, apart = place[row, column], (ahead - place)[row, column] % self.span
        inverse = pow(self.shift // stride, -1, period) if period > 1 else 0
        when = apart // stride * inverse % period
        times = np.maximum(0, -(-(self.times - when) // period))
        row, place, when = (np.repeat(each, times) for each in (row, place, when))
        when = when + period * (np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times))
        order = np.lexsort((row, when))
        row, place, when = row[order], place[order].astype(np.int32), when[order]
        rows, single = step.taken(row), np.ones(len(row), np.int32)
        rows = rows._replace(src_slot=rows.src_slot + place, dst_slot=rows.dst_slot + place, count=single)
        src_slot, dst_slot = replace(self, first=rows, base=self.base[row] + place)._slots(when)
        return when, rows._replace(src_slot=src_slot, dst_slot=dst_slot)

    def taken(self, rows: NDArray[Any]) -> Repeat:
        """Return the repeat with only some `rows` (numbers or bools) of each step, in their order."""
        return replace(self, first=self.first.taken(rows), base=self.base[rows])

    def by_slot(self) -> Repeat:
        """Return the repeat with a row for each slot that a transfer moves."""
        if self.first.single:
            return self
        first, base = _by_slot(self.first, self.base)
        return replace(self, first=first, base=base)

    def as_messages(self) -> Repeat:
        """Return the repeat with the rows of each step joined as `Step.as_messages` does."""
        first, base = _as_messages(self.first, self.base)
        return replace(self, first=first, base=base)

    def in_order(self) -> Repeat:
        """Return the repeat with the transfers of each step sorted as `Step.in_order` does."""
        return self.taken(_sender_order(self.first))


StepPattern = Step | Repeat


def _by_slot(step: Step, base: Ints) -> tuple[Step, Ints]:
    """Return the step, and the column `base` of a `Repeat`, with a row for each slot."""
    row = np.repeat(np.arange(step.rows), step.count)
    within = (np.arange(len(row)) - np.repeat(np.cumsum(step.count) - step.count, step.count)).astype(np.int32)
    rows = step.taken(row)
    src_slot, dst_slot, joins = rows.src_slot + within, rows.dst_slot + within, rows.joins | (within > 0)
    single = rows._replace(src_slot=src_slot, dst_slot=dst_slot, count=np.ones_like(within), joins=joins)
    return single, base[row] + within


def _as_messages(step: Step, base: Ints | None) -> tuple[Step, Ints]:
    """Join rows of one sender and receiver, with equal `reduce`, as one transfer, in place of the first of them. Make
    neighbouring slots one row. Return the step, and the column `base` of a `Repeat`: its runs stay runs in all steps if
    their cycles are as far apart as their slots."""
    cycles = np.zeros_like(step.src) if base is None else base
    pair = (step.src.astype(np.int64) * (int(step.dst.max(initial=-1)) + 1) + step.dst) * 2 + step.reduce
    if all_differ(pair):
        return step, cycles
    _, first, message = np.unique(pair, return_index=True, return_inverse=True)
    order = np.argsort(first[message], kind="stable")
    rows, cycles, message = step.taken(order), cycles[order], message[order]
    joins = np.zeros(len(order), np.bool_)
    joins[1:] = message[1:] == message[:-1]
    follows = joins.copy()
    for column in (rows.src_slot, rows.dst_slot) if base is None else (rows.src_slot, rows.dst_slot, cycles):
        follows[1:] &= column[1:] == column[:-1] + rows.count[:-1]
    begins = np.flatnonzero(~follows)
    runs = rows._replace(joins=joins).taken(begins)
    return runs._replace(count=np.add.reduceat(rows.count, begins).astype(np.int32)), cycles[begins]


def send(
    src: ArrayLike,
    dst: ArrayLike,
    slot: ArrayLike,
    to_slot: ArrayLike | None = None,
    *,
    count: ArrayLike = 1,
    reduce: bool = False,
) -> Step:
    """Return a step in which each `src` sends the chunks in its `count` slots from `slot` on to `dst`, into the slots
    from `to_slot` on (default: `slot`). Each argument is a number or a list. With `reduce` the target adds the chunks
    to its own. All chunks that a registered algorithm sends from one rank to another in a step are one message.

    >>> send([1, 2], 0, 0, reduce=True).src.tolist()
    [1, 2]
    """
    columns = np.broadcast_arrays(src, slot, dst, slot if to_slot is None else to_slot, count)
    s, ss, d, ds, many = (np.ascontiguousarray(c, dtype=np.int32).ravel() for c in columns)
    return Step(s, ss, d, ds, np.full(s.shape, reduce), many, np.zeros(s.shape, np.bool_))


def join(*steps: Step) -> Step:
    """Return several sets of transfers as one step."""
    return Step._make(np.concatenate(column) for column in zip(*steps, strict=True))


def singles(parts: Iterable[StepPattern]) -> Iterator[Step]:
    """Yield single steps: a `Repeat` yields each of its steps."""
    for part in parts:
        if isinstance(part, Repeat):
            yield from part
        else:
            yield part


def together(*parts: Iterable[StepPattern]) -> Iterator[StepPattern]:
    """Run independent sequences of steps in parallel: step i of the result contains step i of every sequence that is
    long enough. Repeats of equal times, span and shift are joined into one Repeat."""
    known = [list(part) for part in parts]
    if not known or not _alike(known):
        yield from _step_by_step([singles(part) for part in known])
        return
    for beside in zip(*known, strict=True):
        repeats = [part for part in beside if isinstance(part, Repeat)]
        first, base = join(*(part.first for part in repeats)), np.concatenate([part.base for part in repeats])
        yield replace(repeats[0], first=first, base=base)


def _alike(known: Sequence[Sequence[StepPattern]]) -> bool:
    """Return whether the parts of all sequences are repeats, with equal `times`, `span` and `shift` at each
    position."""
    turns = [
        [(part.times, part.span, part.shift) if isinstance(part, Repeat) else None for part in parts] for parts in known
    ]
    return None not in turns[0] and all(turn == turns[0] for turn in turns)


def _step_by_step(iterators: Sequence[Iterator[Step]]) -> Iterator[Step]:
    while True:
        steps = [step for step in (next(it, None) for it in iterators) if step is not None]
        if not steps:
            return
        yield join(*steps)


def _sender_order(step: Step) -> NDArray[np.intp]:
    """Return the order of rows in which transfers are sorted by their position in the sender's list, and then by
    sender."""
    src = step.src
    if step.joins.any():
        heads = np.flatnonzero(~step.joins)
        order = _sender_order(step.taken(heads))
        return Sets(np.arange(step.rows), np.diff(heads, append=step.rows)).taken(order).members
    counts = np.bincount(src)
    each = len(src) // max(1, len(np.flatnonzero(counts)))
    if (src[1:] >= src[:-1]).all() and counts.max(initial=0) == each:  # a table, which needs no sorting
        table: NDArray[np.intp] = np.arange(len(src)).reshape(-1, max(1, each))
        return table.T.ravel()
    by_sender = stable_order(src)
    places = np.arange(len(src)) - np.repeat(np.cumsum(counts) - counts, counts)  # in the sender's list
    found: NDArray[np.intp] = by_sender[stable_order(places)]
    return found


def stable_order(numbers: NDArray[Any]) -> NDArray[np.intp]:
    """Return the indices that sort non-negative numbers; equal numbers keep their order."""
    short = numbers.astype(np.uint16) if numbers.max(initial=0) < 1 << 16 else numbers  # sorted in linear time
    return np.argsort(short, kind="stable")


# --- rotations ---


class Rotation(NamedTuple):
    """A symmetry of a schedule: a shift of ranks and chunks that leaves the schedule unchanged. A proof for one chunk
    then covers all chunks that it is shifted to. Rank r becomes r + `ranks` (mod n). Chunk c of each run of `span`
    chunks becomes c + `chunks` (mod span)."""

    ranks: int
    chunks: int
    span: int

    def chunk(self, chunk: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers that chunks get under the shift."""
        within = chunk % self.span
        turned: NDArray[Any] = chunk - within + (within + self.chunks) % self.span
        return turned

    def representatives(self, n_chunks: int) -> NDArray[np.int64]:
        """Return one chunk of each orbit. An orbit is a set of chunks that the shift maps onto each other."""
        chunks = np.arange(n_chunks)
        return chunks[chunks % self.span < math.gcd(self.chunks, self.span)]

    def holds(self, parts: Iterable[StepPattern], turns: str, n: int, n_chunks: int) -> bool:
        """Return whether the shift leaves every part, and the contract, unchanged. `turns`: the contract's
        `Collective.turns`."""
        if n_chunks % self.span:
            return False
        kept = {
            "ranks": True,
            "blocks": self.span == n_chunks and self.chunks * n == self.ranks * n_chunks,
            "": False,
        }[turns]
        return kept and all(self._keeps(part.by_slot(), n, n_chunks) for part in parts)

    def _keeps(self, part: StepPattern, n: int, n_chunks: int) -> bool:
        step = part.first
        slots = np.concatenate([step.src_slot, step.dst_slot])
        if (len(slots) and slots.max() >= n_chunks) or (
            isinstance(part, Repeat) and not self._keeps_cycles(part, n_chunks)
        ):
            return False
        turned = Step(
            ((step.src + self.ranks) % n).astype(np.int32),
            self.chunk(step.src_slot).astype(np.int32),
            ((step.dst + self.ranks) % n).astype(np.int32),
            self.chunk(step.dst_slot).astype(np.int32),
            step.reduce,
            step.count,
            step.joins,
        )
        once = len(distinct(step.dst.astype(np.int64) * n_chunks + step.dst_slot)) == len(step.dst)
        return once and all(map(np.array_equal, _sorted(step, n, n_chunks), _sorted(turned, n, n_chunks)))

    def _keeps_cycles(self, part: Repeat, n_chunks: int) -> bool:
        """Return whether it makes no difference if a slot is first shifted and then moves on in its `Repeat` cycle, or
        vice versa."""
        stride = math.gcd(part.shift, part.span)
        base, slots = part.base.astype(np.int64), (part.first.src_slot, part.first.dst_slot)
        starts = distinct([base * stride + (slot - base) % part.span % stride for slot in slots])
        after = np.full(n_chunks, -1, np.int64)
        along = np.arange(0, part.span, stride)
        for base, first in zip(*(column.tolist() for column in np.divmod(starts, stride)), strict=True):
            cycle = base + first + along
            if cycle.max() >= n_chunks or (after[cycle] >= 0).any():
                return False
            after[cycle] = base + (first + along + part.shift) % part.span
        known = np.flatnonzero(after >= 0)
        return np.array_equal(after[self.chunk(known)], self.chunk(after[known]))


def _sorted(step: Step, n: int, n_chunks: int) -> list[NDArray[Any]]:
    """Return the rows of a step sorted, each encoded as one number, or as two if one number could overflow."""
    who = step.src.astype(np.int64) * n + step.dst
    data = (step.src_slot.astype(np.int64) * n_chunks + step.dst_slot) * 2 + step.reduce
    if n * n_chunks < 2**30:  # both make one number, which is quicker to sort
        return [np.sort(who * (2 * n_chunks * n_chunks) + data)]
    order = np.lexsort((data, who))
    return [who[order], data[order]]
