"""Define the data exchanged with the ranks of a real run: tasks for them, and their reports."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from simcoll.engine.program import Program
from simcoll.schedule.ir import Schedule
from simcoll.workload.workload_keys import Composition, Ddp

NOT_BEGUN, WARMING, CHECKING = -3, -2, -1  # in a rank's marks, in place of the number of a run
IDLE: Final = -1  # in place of the number of a transfer


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """What every rank of a launch does. `nbytes` is the size of a rank's buffer, `itemsize` the bytes of an element.

    `repeats` counts the timed runs of one launch, each of so many `calls` back to back.
    """

    title: str
    nbytes: int
    dtype: str
    itemsize: int
    warmup: int
    repeats: int
    verify: bool
    calls: int = 1

    def transfer(self, index: int) -> str:
        """Describe a transfer in words; empty for none, and where transfers are the library's."""
        return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class RankTask(Task):
    """A collective for all ranks. `program` is the schedule bound to sizes; None stands for the library's own
    collective, whose ranks, groups and root `schedule` gives. NCCL replays its calls from a CUDA graph if `graph`, on
    buffers that it knows if `registered`.
    """

    schedule: Schedule
    program: Program | None
    op: str
    weights: tuple[Any, ...] | None
    in_place: bool
    buckets: int
    async_op: bool
    graph: bool = False
    registered: bool = False

    @property
    def ranks(self) -> int:
        """The number of ranks that it takes."""
        return self.schedule.n

    @property
    def elements(self) -> int:
        """The elements of a rank's whole buffer."""
        return self.nbytes // self.itemsize

    def transfer(self, index: int) -> str:
        """Describe a transfer in words; empty for none."""
        if self.program is None or not 0 <= index < len(self.program):
            return ""
        return f"transfer {index} ({self.schedule.row(int(self.program.origin[index]))})"


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkTask(Task):
    """A workload for all ranks. `nbytes` is about the memory of one rank."""

    spec: Ddp | Composition
    ranks: int
    compute: Literal["sleep", "real"]


@dataclass(frozen=True, eq=False)
class Job:
    """A launch: its tasks, the URL where the ranks meet, the time limit of one transfer, and that of the launch."""

    tasks: tuple[RankTask | WorkTask, ...]
    backend: str
    meet: str
    timeout_s: float
    limit_s: float = math.inf


@dataclass
class TaskResult:
    """The result of a task: ns of every timed run on the slowest rank, and the delay with which the last rank began.

    `choice`: algorithm and protocol that the library wrote to its log. For a workload, `alone` holds for every run the
    ends of its computations on the last rank, with nothing sent between them, and `buckets` their number.
    """

    durations: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    choice: dict[str, str] = field(default_factory=dict)
    alone: list[list[int]] = field(default_factory=list)
    buckets: int | None = None


@dataclass
class Report:
    """The report of a launch: a result for each task, the overhead of the harness and the resolution of the clock (ns),
    and versions of software. `skew` (ns) is how far apart ranks of several hosts may have begun.
    """

    outcomes: list[TaskResult]
    overhead: int
    resolution: int
    one_host: bool
    software: dict[str, str]
    skew: int = 0
