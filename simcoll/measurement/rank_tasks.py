"""The data that the launching process and the ranks of a real run exchange: tasks and reports."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from simcoll.engine.program import Program
from simcoll.schedule.schedule import Schedule
from simcoll.workload.plan import WorkloadPlan
from simcoll.workload.training_keys import TrainingStep
from simcoll.workload.workload_keys import Composition, Ddp, Operations

NOT_BEGUN, WARMING, CHECKING = -3, -2, -1  # in a rank's marks, instead of a run's number
IDLE: Final = -1  # in a rank's marks, instead of a transfer's number


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """A task for all ranks of a launch. `nbytes` is the size of a rank's buffer, `itemsize` the bytes of an element.

    `repeats` is the number of timed runs in one launch; each run makes `calls` calls back to back.
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
        """Return a description of a transfer by its index; empty for IDLE, and for transfers inside a library."""
        return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class RankTask(Task):
    """A collective for all ranks. `program` is the schedule bound to sizes, or None for the library's own collective.

    For the library, `schedule` gives only ranks, groups and root. With `graph`, NCCL's calls are replayed from a CUDA
    graph.
    """

    schedule: Schedule
    program: Program | None
    op: str
    weights: tuple[Any, ...] | None
    in_place: bool
    buckets: int
    async_op: bool
    graph: bool = False

    @property
    def ranks(self) -> int:
        """The number of ranks that take part."""
        return self.schedule.n

    @property
    def elements(self) -> int:
        """The number of elements of a rank's whole buffer."""
        return self.nbytes // self.itemsize

    def transfer(self, index: int) -> str:
        """Return a description of transfer `index`; empty if there is no such transfer."""
        if self.program is None or not 0 <= index < len(self.program):
            return ""
        rows = self.program.rows.taken(np.array([index])).members
        more = int(self.schedule.count[rows[1:]].sum())
        others = f", and {more} more chunk{'s' * (more > 1)}" if more else ""
        return f"transfer {index} ({self.schedule.row(int(rows[0]))}{others})"


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkTask(Task):
    """A workload for all ranks. `nbytes` is roughly the memory of one rank. A step that is not torch's own is a `plan`:
    its computations sleep, and its calls are the library's."""

    spec: Ddp | Composition | TrainingStep | Operations
    ranks: int
    compute: Literal["sleep", "real"]
    plan: WorkloadPlan | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """A launch: its tasks, and the time limits in s of a transfer and of the whole launch."""

    tasks: tuple[RankTask | WorkTask, ...]
    backend: str
    timeout_s: float
    limit_s: float = math.inf


@dataclass
class TaskResult:
    """The result of a task, in ns: for each timed run the time of the slowest rank, and how late the last rank began.

    `choice` holds the algorithm and protocol in the library's log. For a workload, `alone` has, for each run without
    communication, the end of each computation on the slowest rank in ns; `buckets` is the number of gradient buckets.
    """

    durations: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    choice: dict[str, str] = field(default_factory=dict)
    alone: list[list[int]] = field(default_factory=list)
    buckets: int | None = None


@dataclass
class Report:
    """The report of a launch: a result for each task, the harness's own time per run (ns), the clock's resolution (ns),
    and versions of software. Ranks on several hosts may have begun up to `skew` ns apart."""

    outcomes: list[TaskResult]
    overhead: int
    resolution: int
    one_host: bool
    software: dict[str, str]
    skew: int = 0
