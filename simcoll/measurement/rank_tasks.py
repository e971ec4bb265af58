"""What is handed to the ranks of a real run, and what comes back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from simcoll.engine.program import Program
from simcoll.schedule.ir import Schedule
from simcoll.workload.spec import Composition, Ddp

NOT_BEGUN, WARMING, CHECKING = -3, -2, -1  # in a rank's marks, in place of a run's number
IDLE: Final = -1  # in place of a transfer


@dataclass(frozen=True, eq=False)
class RankTask:
    """What all ranks run together. `program` is the schedule bound to sizes, or None: the library's own collective, of
    which `schedule` says ranks, groups and root. `repeats` are the timed runs of one launch."""

    title: str
    schedule: Schedule
    program: Program | None
    nbytes: int
    dtype: str
    itemsize: int
    op: str
    weights: tuple[Any, ...] | None
    in_place: bool
    buckets: int
    async_op: bool
    warmup: int
    repeats: int
    verify: bool

    @property
    def ranks(self) -> int:
        """How many ranks it takes."""
        return self.schedule.n

    @property
    def elements(self) -> int:
        """How many elements a rank's whole buffer has."""
        return self.nbytes // self.itemsize

    def transfer(self, index: int) -> str:
        """A transfer in words; empty for none."""
        if self.program is None or not 0 <= index < len(self.program):
            return ""
        return f"transfer {index} ({self.schedule.row(int(self.program.origin[index]))})"


@dataclass(frozen=True, eq=False)
class WorkTask:
    """A workload that all ranks run together. `nbytes` is what a rank keeps, about."""

    title: str
    spec: Ddp | Composition
    ranks: int
    nbytes: int
    dtype: str
    itemsize: int
    compute: Literal["sleep", "real"]
    warmup: int
    repeats: int
    verify: bool

    def transfer(self, index: int) -> str:
        """Its transfers are the library's."""
        return ""


@dataclass(frozen=True, eq=False)
class Job:
    """A launch: its tasks, the URL at which the ranks meet, how long any one transfer may take, and the whole of it."""

    tasks: tuple[RankTask | WorkTask, ...]
    backend: str
    meet: str
    timeout_s: float
    limit_s: float = math.inf


@dataclass
class TaskResult:
    """What came of a task: ns of every timed run, slowest rank, and by how much the last rank began late. `choice`:
    algorithm and protocol that the library wrote to its log. Of a workload `alone` is, for every run, when each of its
    computations was over on the last rank, where nothing is sent between them, and `buckets` how many there are."""

    durations: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    choice: dict[str, str] = field(default_factory=dict)
    alone: list[list[int]] = field(default_factory=list)
    buckets: int | None = None


@dataclass
class Report:
    """What a launch found: an outcome a task, what the harness itself takes, the clock's resolution (ns), software."""

    outcomes: list[TaskResult]
    overhead: int
    resolution: int
    one_host: bool
    software: dict[str, str]
