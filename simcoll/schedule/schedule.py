"""The schedule: who sends which chunk to whom. Engines time schedules, executors run them, formats read and write them.

Words: a *participant* is a rank (0 … n−1) or an in-network agent (n, n+1, …: a switch that reduces and multicasts).
It holds *slots*, one chunk each: slots 0 … n_chunks−1 are the collective's buffer, higher ones scratch. A *transfer*
is one message: it moves the values of some slots into slots of another participant (or of the same one: a local copy),
overwriting them or reducing into them. It is stored as one *row* for each run of neighbouring slots. Transfers of one
*step* all read before any of them writes. The order of transfers in the schedule is program order everywhere.

A schedule holds no size, time, link or channel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.config.machine_limits import check_memory
from simcoll.config.numpy_helpers import Sets, all_differ
from simcoll.errors import ScheduleError
from simcoll.schedule.steps import Bools, Ints, Rotation, Step, StepPattern


class Transfer(NamedTuple):
    """One row of a schedule, as `Schedule.row` returns it: a transfer of `count` neighbouring slots. If it `joins`, it
    is a further part of the transfer of the row before it.

    >>> print(Transfer(step=0, src=1, src_slot=2, dst=3, dst_slot=2, reduce=True))
    step 0: chunk 2: 1→3 reduce
    """

    step: int
    src: int
    src_slot: int
    dst: int
    dst_slot: int
    reduce: bool
    count: int = 1  # type: ignore[assignment]  # a tuple has a method of this name
    joins: bool = False

    @property
    def chunks(self) -> str:
        """The slots in words, e.g. `chunk 2`, `chunks 2–5→8–11`."""
        return chunks_text([self])

    def __str__(self) -> str:
        more = " in the same message" if self.joins else ""
        return f"step {self.step}: {self.chunks}: {self.src}→{self.dst}{' reduce' if self.reduce else ''}{more}"


def run_text(first: int, count: int) -> str:
    """Return a run of numbers in words.

    >>> run_text(2, 1), run_text(2, 4)
    ('2', '2–5')
    """
    return f"{first}–{first + count - 1}" if count > 1 else f"{first}"


def chunks_text(rows: Sequence[Transfer]) -> str:
    """Return in words which slots the rows of one transfer move.

    >>> chunks_text([Transfer(0, 1, 2, 3, 2, False, 4), Transfer(0, 1, 8, 3, 9, False, joins=True)])
    'chunks 2–5, 8→9'
    """
    runs = [[run_text(slot, row.count) for slot in (row.src_slot, row.dst_slot)] for row in rows]
    texts = [read if read == written else f"{read}→{written}" for read, written in runs]
    return f"chunk{'s' * (len(rows) > 1 or rows[0].count > 1)} {', '.join(texts)}"


COLUMNS: Final = Transfer._fields
HELD: Final = 5_000_000  # rows; shorter streams are cached, in parts and as a whole schedule: some 90 MB each
ROW_BYTES: Final = 26  # bytes of a row in a table: six int32 and two bools


class _Named:
    """The fields that stored schedules (`Schedule`) and streamed schedules (`StreamedSchedule`) have in common."""

    collective: str
    algorithm: str
    n: int
    agents: int

    @property
    def name(self) -> str:
        """The name `collective/algorithm`."""
        return f"{self.collective}/{self.algorithm}"

    @property
    def participants(self) -> int:
        """Number of ranks and agents."""
        return self.n + self.agents


@dataclass(frozen=True, eq=False)
class Schedule(_Named):
    """A list of transfers that cannot be changed, stored as columns.

    Each column has an entry for each row: `step` (never decreasing), `src`, `src_slot`, `dst`, `dst_slot`, and whether
    the target is reduced into (`reduce`). A row moves `count` neighbouring slots (default: 1). It travels in one
    message with the row before it, and is the same transfer, if it `joins` (default: it does not). Participants 0 to
    `n` − 1 are ranks; the `agents` after them are switches that reduce. Slots 0 to `n_chunks` − 1 are the buffer of the
    collective; slots with higher numbers are scratch. `pipelined` says how loops over a large buffer follow each other.
    If it is true, a loop starts one step after the loop before it (trees, chains), else when that loop has ended
    (rings). `groups` are the ranks that take part; by default all are in one group. `root` is the position of the root
    in its group. A transfer may have a route of its own: `route` holds for each row the index of its route in `routes`,
    or −1 for the network's route (default). A route names all devices on it, those of sender and receiver included.
    Raises ScheduleError if the columns do not fit together.

    >>> from simcoll import build
    >>> schedule = build("all_reduce", "ring", 4)
    >>> schedule.n_steps, schedule.messages, schedule.src[:4].tolist()
    (6, 24, [0, 1, 2, 3])
    """

    collective: str
    algorithm: str
    n: int
    n_chunks: int
    step: Ints
    src: Ints
    src_slot: Ints
    dst: Ints
    dst_slot: Ints
    reduce: Bools
    count: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    joins: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    agents: int = 0
    pipelined: bool = False
    root: int = 0
    groups: tuple[tuple[int, ...], ...] = ()
    route: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    routes: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(tuple(g) for g in self.groups) or (tuple(range(self.n)),))
        plain = {"count": np.int32(1), "joins": np.False_, "route": np.int32(-1)}
        for name, value in plain.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.step), value))
        columns = *self.columns, self.route
        if len({len(c) for c in columns}) != 1:
            raise ScheduleError(f"{self.name}: columns of unequal length")
        if self.n < 1 or self.n_chunks < 1:
            raise ScheduleError(f"{self.name}: needs at least one rank and one chunk")
        for i in np.flatnonzero(
            (np.minimum(self.src, self.dst) < 0)
            | (np.maximum(self.src, self.dst) >= self.participants)
            | (np.minimum(self.src_slot, self.dst_slot) < 0)
            | (self.count < 1)
            | (np.maximum(self.src_slot, self.dst_slot) > np.int32(2**31 - 1) - self.count)
            | (self.route >= len(self.routes))
        ):
            raise ScheduleError(f"{self.name}: unknown participant, slot or route in transfer {i} ({self.row(int(i))})")
        follows = np.zeros(len(self.step), np.bool_)
        follows[1:] = np.all([c[1:] == c[:-1] for c in (self.step, self.src, self.dst, self.reduce)], axis=0)
        for i in np.flatnonzero(self.joins & ~follows):
            raise ScheduleError(f"{self.name}: row {i} ({self.row(int(i))}) cannot join the row before it")
        if len(self.step) and (self.step[0] < 0 or (np.diff(self.step) < 0).any()):
            raise ScheduleError(f"{self.name}: step numbers must not decrease")
        for column in columns:
            column.setflags(write=False)

    @classmethod
    def from_steps(
        cls, parts: Iterable[StepPattern], *, n_chunks: int, in_order: bool = False, **fields: Any
    ) -> Schedule:
        """Make a schedule of steps. The rows of each step are sorted as `Step.in_order` does, unless `in_order` says
        that they are sorted."""
        ordered = list(parts) if in_order else [part.in_order() for part in parts]
        total = sum(part.rows * part.steps for part in ordered)
        if len(ordered) == 1 and isinstance(ordered[0], Step):
            return cls(n_chunks=n_chunks, step=np.zeros(total, np.int32), **ordered[0]._asdict(), **fields)
        step, src, src_slot, dst, dst_slot, count = (np.empty(total, np.int32) for _ in range(6))
        columns = Step(src, src_slot, dst, dst_slot, np.empty(total, np.bool_), count, np.empty(total, np.bool_))
        at = number = 0
        for part in ordered:  # straight into place, so that a long schedule is in memory once
            rows = slice(at, at + part.rows * part.steps)
            for column, values in zip(columns, part.whole(), strict=True):
                column[rows] = values
            step[rows] = np.repeat(np.arange(number, number + part.steps, dtype=np.int32), part.rows)
            at, number = rows.stop, number + part.steps
        return cls(n_chunks=n_chunks, step=step, **columns._asdict(), **fields)

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int]], **fields: Any) -> Schedule:
        """Make a schedule of rows `(step, src, src_slot, dst, dst_slot, reduce)`, in this order. A row may go on with
        `count` and `joins`."""
        filled = [(*map(int, row), *(1, 0)[len(row) - 6 :]) for row in rows]
        table = np.asarray(filled, dtype=np.int64).reshape(-1, len(COLUMNS))
        if np.abs(table).max(initial=0) >= 2**31:
            raise ScheduleError("a schedule's numbers must fit 32 bits")
        columns = (np.ascontiguousarray(c, dtype=np.int32) for c in table.T)
        named: dict[str, Any] = dict(zip(COLUMNS, columns, strict=True))
        return cls(**{**named, **{name: named[name].astype(np.bool_) for name in ("reduce", "joins")}}, **fields)

    def replace(self, **changes: Any) -> Schedule:
        """Return a copy with some fields changed. It is checked like a new schedule."""
        return Schedule(**{**{name: getattr(self, name) for name in self.__dataclass_fields__}, **changes})

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The columns of the rows: `step`, `src`, `src_slot`, `dst`, `dst_slot`, `reduce`, `count`, `joins`."""
        return tuple(getattr(self, name) for name in COLUMNS)

    @property
    def n_slots(self) -> int:
        """Number of slots: buffer and scratch."""
        used = max((slot + self.count).max(initial=0) for slot in (self.src_slot, self.dst_slot))
        return max(self.n_chunks, int(used))

    @property
    def n_steps(self) -> int:
        """Number of steps. Steps without transfers count if another step follows."""
        return int(self.step[-1]) + 1 if len(self.step) else 0

    @property
    def messages(self) -> int:
        """Number of transfers between two participants. Local copies do not count."""
        return int(((self.src != self.dst) & ~self.joins).sum())

    @cached_property
    def heads(self) -> NDArray[np.int32]:
        """The first row of each transfer, int32 (transfers,)."""
        return np.flatnonzero(~self.joins).astype(np.int32)

    def taken(self, transfers: NDArray[Any]) -> Sets:
        """Return the numbers of the rows of each of some `transfers`."""
        return Sets(np.arange(len(self)), np.diff(self.heads, append=len(self))).taken(transfers)

    def by_slot(self) -> Schedule:
        """Return the schedule with a row for each slot that a transfer moves."""
        if len(self) == int(self.count.sum()):
            return self
        rows = Step._make(self.columns[1:])
        step, route = (np.repeat(column, self.count) for column in (self.step, self.route))
        return self.replace(step=step, route=route, **rows.by_slot()._asdict())

    def only(self, step: int) -> Schedule:
        """Return the transfers of one step; they keep its number."""
        rows = self.step == step
        names = (*COLUMNS, "route")
        return self.replace(**{name: getattr(self, name)[rows] for name in names})

    @cached_property
    def named_agents(self) -> dict[int, str]:
        """The devices of agents, by number from 0 on, as far as routes begin or end at them."""
        found: dict[int, str] = {}
        for row in np.unique(self.route, return_index=True)[1] if self.routes else ():
            if (number := self.route[row]) >= 0:
                ends = (self.src[row], self.routes[number][0]), (self.dst[row], self.routes[number][-1])
                found |= {int(end) - self.n: device for end, device in ends if end >= self.n}
        return found

    @cached_property
    def most_of_a_pair(self) -> int:
        """The largest number of transfers between any sender and receiver."""
        pairs = self.src[self.heads].astype(np.int64) * self.participants + self.dst[self.heads]
        return min(1, len(pairs)) if all_differ(pairs) else int(np.unique(pairs, return_counts=True)[1].max())

    def __len__(self) -> int:
        return len(self.step)

    @property
    def transfers(self) -> int:
        """Number of transfers, local copies included."""
        return len(self.heads)

    @property
    def rows(self) -> int:
        """Number of rows that are stored in memory."""
        return len(self.step)

    def parts(self) -> Iterator[Step]:
        """Return an iterator over the steps. Steps without transfers are skipped."""
        return (Step._make(column[rows] for column in self.columns[1:]) for rows in self.steps())

    def row(self, index: int) -> Transfer:
        """Return row number `index`."""
        return Transfer(*(column[index].item() for column in self.columns))

    def __iter__(self) -> Iterator[Transfer]:
        return (self.row(i) for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        plain = all(
            getattr(self, name) == getattr(other, name)
            for name in ("collective", "n", "n_chunks", "agents", "pipelined", "root", "groups", "routes")
        )
        return plain and all(map(np.array_equal, (*self.columns, self.route), (*other.columns, other.route)))

    __hash__ = None  # type: ignore[assignment]  # equal by contents, as lists are; typeshed has a method here

    def __str__(self) -> str:
        head = f"{self.name}: {self.n} ranks, {self.n_chunks} chunks, {self.n_steps} steps, {self.transfers} transfers"
        return "\n".join([head, *(f"  {row}" for row in self)])

    def _repr_html_(self) -> str:
        """Return what `str` returns as HTML, for notebooks."""
        return f"<pre>{self}</pre>"

    def steps(self) -> Iterator[slice]:
        """Return an iterator over the range of indices of each step. Steps without transfers are skipped."""
        bounds = np.flatnonzero(np.diff(self.step)) + 1
        edges = [0, *bounds.tolist(), len(self)] if len(self) else [0]
        return (slice(a, b) for a, b in itertools.pairwise(edges))

    def on(self, members: Sequence[int], world: int) -> Schedule:
        """Return the schedule for the ranks `members` of a larger `world` of ranks: rank i becomes `members[i]`. Agents
        get numbers after all ranks."""
        if len(members) != self.n or len(set(members)) != self.n or not all(0 <= m < world for m in members):
            raise ScheduleError(f"{self.name}: needs {self.n} different members below {world}, not {list(members)}")
        to = np.asarray([*members, *range(world, world + self.agents)], dtype=np.int32)
        return self.replace(n=world, src=to[self.src], dst=to[self.dst], groups=(tuple(members),))


class _Sums(NamedTuple):
    """Of all parts of a stream: the numbers of steps, transfers and rows, the highest slot, and whether each row is a
    transfer of one slot."""

    steps: int
    transfers: int
    highest: int
    rows: int
    single: bool


@dataclass(frozen=True, eq=False)
class StreamedSchedule(_Named):
    """A `Schedule` without stored transfers: `make` yields the steps anew each time, see `parts`.

    `rotation` is a claimed symmetry of the schedule; code that uses it first verifies it with `Rotation.holds`.
    """

    collective: str
    algorithm: str
    n: int
    n_chunks: int
    make: Callable[[], Iterable[StepPattern]]
    agents: int = 0
    pipelined: bool = False
    root: int = 0
    rotation: Rotation | None = None

    def parts(self) -> Iterator[StepPattern]:
        """Return an iterator over steps and repeats, with transfers in schedule order. Short streams are cached."""
        return iter(self._held) if self._held is not None else map(self._checked, self.make())

    @property
    def held(self) -> bool:
        """Whether the parts are cached, so that `parts` yields the same objects each time."""
        return self._held is not None

    @cached_property
    def _held(self) -> list[StepPattern] | None:
        held, rows = [], 0
        for part in self.make():
            rows += part.rows
            if rows > HELD:
                return None
            held.append(self._checked(part))
        return held

    def _checked(self, part: StepPattern) -> StepPattern:
        """Return the part in schedule order; raises ScheduleError for an unknown participant or slot."""
        rows = part.first
        for low, high in ((rows.src, self.participants), (rows.dst, self.participants)):
            if len(low) and not 0 <= low.min() <= low.max() < high:
                raise ScheduleError(f"{self.name}: a step names an unknown participant")
        if rows.rows and min(rows.src_slot.min(), rows.dst_slot.min()) < 0:
            raise ScheduleError(f"{self.name}: a step names an unknown slot")
        return part.in_order()

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """One group of all ranks."""
        return (tuple(range(self.n)),)

    @property
    def rows(self) -> int:
        """Number of rows that the stream keeps in memory."""
        return sum(part.rows for part in self._held or ())

    @cached_property
    def n_steps(self) -> int:
        """Number of steps."""
        return self._sums.steps

    @cached_property
    def transfers(self) -> int:
        """Number of transfers, local copies included."""
        return self._sums.transfers

    @cached_property
    def n_slots(self) -> int:
        """The number of slots, buffer and scratch."""
        return max(self.n_chunks, self._sums.highest + 1)

    @property
    def single(self) -> bool:
        """Whether each row is a transfer of one slot."""
        return self._sums.single

    @cached_property
    def _sums(self) -> _Sums:
        found = _Sums(0, 0, -1, 0, True)
        for part in self.parts():
            found = _Sums(
                found.steps + part.steps,
                found.transfers + part.transfers,
                max(found.highest, _highest(part)),
                found.rows + part.rows * part.steps,
                found.single and part.first.single,
            )
        return found

    def schedule(self) -> Schedule:
        """Return the schedule with all its rows in memory; up to HELD rows it is cached. Raises InputError if they need
        more memory than there is."""
        return self._whole if self._sums.rows <= HELD else self._written_out()

    @cached_property
    def _whole(self) -> Schedule:
        return self._written_out()

    def _written_out(self) -> Schedule:
        check_memory(ROW_BYTES * self._sums.rows, f"{self._sums.rows} rows of a table", "take fewer ranks", "ranks")
        names = ("collective", "algorithm", "n", "n_chunks", "agents", "pipelined", "root")
        return Schedule.from_steps(self.parts(), in_order=True, **{name: getattr(self, name) for name in names})


def _highest(part: StepPattern) -> int:
    """Return the highest slot that a part uses; for a `Repeat`, whose slots change cyclically, an upper bound."""
    columns, more = (part.first.src_slot, part.first.dst_slot), part.first.count - 1
    if isinstance(part, Step):
        return max(int((slot + more).max(initial=-1)) for slot in columns)
    stride = math.gcd(part.shift, part.span)
    highest = [part.base + (slot - part.base) % stride + part.span - stride + more for slot in columns]
    return max(int(column.max(initial=-1)) for column in highest)


AnySchedule = Schedule | StreamedSchedule


def split(nbytes: int, parts: int, itemsize: int = 1, weights: ArrayLike | None = None) -> NDArray[np.int64]:
    """Cut a buffer into `parts` of whole elements; return their sizes in bytes, int64, with the sum `nbytes`.

    Each part gets the floor of its share. The remaining elements go one each to the parts with the largest remainders,
    the lowest index first. With equal weights the parts equal those of `numpy.array_split`. Raises ValueError if
    `nbytes` is no multiple of `itemsize`, or if the weights are not `parts` non-negative integers.

    >>> split(40, 4, 8).tolist(), split(10, 3, weights=[1, 0, 3]).tolist()
    ([16, 8, 8, 8], [3, 0, 7])
    """
    elements, rest = divmod(nbytes, itemsize)
    if rest:
        raise ValueError(f"{nbytes} bytes are no multiple of {itemsize}")
    if weights is None:
        floor, extra = divmod(elements, parts)
        sizes = np.full(parts, floor, np.int64)
        sizes[:extra] += 1
        return sizes * itemsize
    shares = [int(w) for w in np.asarray(weights).tolist()]
    total = sum(shares)
    if len(shares) != parts or min(shares, default=0) < 0 or not total:
        raise ValueError(f"weights must be {parts} non-negative integers, not all 0")
    exact = [divmod(elements * share, total) for share in shares]
    sizes = np.asarray([q for q, _ in exact], dtype=np.int64)
    by_remainder = sorted(range(parts), key=lambda i: (-exact[i][1], i))
    for i in by_remainder[: elements - int(sizes.sum())]:
        sizes[i] += 1
    return sizes * itemsize
