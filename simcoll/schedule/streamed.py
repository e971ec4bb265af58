"""A schedule as a source of steps: pulled when they are needed, dropped when they are done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from simcoll.config.machine_limits import check_memory
from simcoll.errors import ScheduleError
from simcoll.schedule.ir import Schedule
from simcoll.schedule.steps import Step, StepPattern
from simcoll.schedule.symmetry import Rotation

HELD: Final = 5_000_000  # rows up to which the parts of a stream are kept, and the whole of it: some 90 MB each
ROW_BYTES: Final = 21  # of a transfer in a table: five int32 and a bool


@dataclass(frozen=True, eq=False)
class StreamedSchedule:
    """A `Schedule` without stored transfers: `make` yields them anew each time, see `parts`.

    `rotation` is one that should turn the schedule into itself; whoever relies on it has to verify it.
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

    @property
    def name(self) -> str:
        """`collective/algorithm`."""
        return f"{self.collective}/{self.algorithm}"

    @property
    def participants(self) -> int:
        """Ranks and agents."""
        return self.n + self.agents

    def parts(self) -> Iterator[StepPattern]:
        """Steps and repeats in turn, rows in the order in which a schedule has them; short ones are kept."""
        return iter(self._held) if self._held is not None else map(self._checked, self.make())

    @property
    def held(self) -> bool:
        """Whether the parts are kept: `parts` yields the same objects each time."""
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
        """In order; raises ScheduleError if it names what is not there."""
        rows = part.first
        for low, high in ((rows.src, self.participants), (rows.dst, self.participants)):
            if len(low) and not 0 <= low.min() <= low.max() < high:
                raise ScheduleError(f"{self.name}: no such participant in a step")
        if rows.transfers and min(rows.src_slot.min(), rows.dst_slot.min()) < 0:
            raise ScheduleError(f"{self.name}: no such slot in a step")
        return part.in_order()

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """One group of all ranks."""
        return (tuple(range(self.n)),)

    @property
    def rows(self) -> int:
        """Number of rows in memory."""
        return sum(part.rows for part in self._held or ())

    @cached_property
    def n_steps(self) -> int:
        """Number of steps."""
        return self._sums[0]

    @cached_property
    def transfers(self) -> int:
        """Number of transfers, local copies included."""
        return self._sums[1]

    @cached_property
    def n_slots(self) -> int:
        """Buffer and scratch."""
        return max(self.n_chunks, self._sums[2] + 1)

    @cached_property
    def _sums(self) -> tuple[int, int, int]:
        """Steps, transfers and the highest slot, from one look at the parts, which may have to be made."""
        each = [(part.steps, part.transfers, _highest(part)) for part in self.parts()]
        steps, transfers, slots = zip(*each, strict=True) if each else ((), (), ())
        return sum(steps), sum(transfers), max(slots, default=-1)

    def schedule(self) -> Schedule:
        """The schedule with all its transfers in memory; the same each time where these are few enough to be kept.

        Raises InputError where they need more memory than there is."""
        return self._whole if self.transfers <= HELD else self._written_out()

    @cached_property
    def _whole(self) -> Schedule:
        return self._written_out()

    def _written_out(self) -> Schedule:
        check_memory(ROW_BYTES * self.transfers, f"{self.transfers} transfers in a table", "take fewer ranks", "ranks")
        names = ("collective", "algorithm", "n", "n_chunks", "agents", "pipelined", "root")
        return Schedule.from_steps(self.parts(), in_order=True, **{name: getattr(self, name) for name in names})


def _highest(part: StepPattern) -> int:
    """The highest slot that is used, or a bound where slots go round."""
    if isinstance(part, Step):
        return max(int(part.src_slot.max(initial=-1)), int(part.dst_slot.max(initial=-1)))
    stride = math.gcd(part.shift, part.span)
    columns = (part.first.src_slot, part.first.dst_slot)
    highest = [part.base + (slot - part.base) % stride + part.span - stride for slot in columns]
    return max(int(column.max(initial=-1)) for column in highest)


AnySchedule = Schedule | StreamedSchedule
