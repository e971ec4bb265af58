"""What one rank of a real run does: every task in turn, checked once, timed often.

A rank is a process. `main` is what one runs that `launch` has started; a process that torchrun or Slurm has started
calls `work` itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from simcoll.collectives import collective
from simcoll.errors import MeasureError, SimcollError
from simcoll.formats import nccl_log
from simcoll.part import part_of
from simcoll.program import Program
from simcoll.promises import BITWISE, cut_slots, expected, promised
from simcoll.schedule import Schedule

if TYPE_CHECKING:
    from simcoll.executors.dist.session import Session, Timing

PASSES: Final = 4  # over all tasks, so that what changes on the machine meets all of them alike
KEEP_BYTES: Final = 1 << 30  # of all buffers together, up to which they are made once and not once a pass
TARDY_NS: Final = 20_000_000  # how late a rank comes to a barrier, to see the others wait
NOT_BEGUN, WARMING, CHECKING = -3, -2, -1  # in place of a run's number
IDLE = -1  # in place of a transfer


@dataclass(frozen=True, eq=False)
class Task:
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
    buckets: int
    async_op: bool
    warmup: int
    repeats: int
    verify: bool

    @property
    def elements(self) -> int:
        """How many elements a rank's whole buffer has."""
        return self.nbytes // self.itemsize

    def transfer(self, index: int) -> str:
        """A transfer in words; empty for none."""
        if self.program is None or not 0 <= index < len(self.program):
            return ""
        return f"transfer {index} ({self.schedule.row(int(self.program.origin[index]))})"


@dataclass
class Outcome:
    """What came of a task: ns of every timed run, slowest rank, and by how much the last rank began late. `choice`:
    algorithm and protocol that the library wrote to its log."""

    durations: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    choice: dict[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """What a launch found: an outcome a task, what the harness itself takes, the clock's resolution (ns), software."""

    outcomes: list[Outcome]
    overhead: int
    resolution: int
    one_host: bool
    software: dict[str, str]


class Runner(Protocol):
    """A task made ready on one rank."""

    def fill(self, values: NDArray[Any]) -> None:
        """Put the rank's buffer in."""

    def run(self) -> None:
        """Run it once."""

    def result(self) -> NDArray[Any]:
        """What the contract promises this rank."""


def work(tasks: Sequence[Task], session: Session, marks: NDArray[np.int64]) -> Report:
    """Run every task. `marks` (3,) always tells the task, the run and the transfer that this rank is at.

    Raises MeasureError naming rank, task and transfer.
    """
    overhead, resolution = session.overhead()
    outcomes = [Outcome() for _ in tasks]
    passes = PASSES if 3 * sum(task.nbytes for task in tasks) <= KEEP_BYTES else 1
    ready: dict[int, Runner] = {}
    for turn in range(passes):
        for number, task in enumerate(tasks):
            marks[:] = number, WARMING, IDLE
            with _blamed(task, session):
                runner = ready.get(number) or _runner(task, session, marks)
                _turn(task, runner, session, marks, turn, passes, outcomes[number])
            if passes > 1:
                ready[number] = runner
    return Report(outcomes, overhead, resolution, session.one_host, session.software())


def _turn(
    task: Task, runner: Runner, session: Session, marks: NDArray[np.int64], turn: int, passes: int, outcome: Outcome
) -> None:
    log = Path(os.environ["NCCL_DEBUG_FILE"]) if "NCCL_DEBUG_FILE" in os.environ else None
    seen = log.stat().st_size if log and log.exists() else 0
    if task.verify and not turn:
        marks[1] = CHECKING
        _verify(task, runner, session)
    marks[1] = WARMING
    for _ in range(task.warmup if not turn else min(1, task.warmup)):
        _timed(task, runner, session)
    mine: list[Timing] = []
    done = task.repeats * turn // passes
    gc.collect()
    gc.disable()
    for run in range(done, task.repeats * (turn + 1) // passes):
        marks[1:] = run, IDLE
        mine.append(_timed(task, runner, session))
    gc.enable()
    outcome.durations += _slowest(session, [timing.duration for timing in mine])
    outcome.late += _slowest(session, [timing.late for timing in mine])
    if log and log.exists():
        outcome.choice |= nccl_log.choice(log.read_text("utf-8", "replace")[seen:])


def _timed(task: Task, runner: Runner, session: Session) -> Timing:
    def stuck() -> None:
        from simcoll.executors.dist.p2p import Exchange, TransferError

        index = runner.undone() if isinstance(runner, Exchange) else IDLE
        raise TransferError(index, f"not over after {session.timeout_s:g} s")

    return session.timed(runner.run, stuck)


def _slowest(session: Session, mine: list[int]) -> list[int]:
    return [max(every) for every in zip(*session.gather(mine), strict=True)] if mine else []


@contextlib.contextmanager
def _blamed(task: Task, session: Session) -> Iterator[None]:
    """Failures in the words of the user: rank, task, transfer."""
    from simcoll.executors.dist.p2p import TransferError

    who = f"{task.title}: rank {session.rank}"
    try:
        yield
    except TransferError as error:
        raise MeasureError(f"{who}: {task.transfer(error.index) or 'a call'}: {_said(error.said)}") from None
    except RuntimeError as error:  # what torch.distributed raises for everything
        raise MeasureError(f"{who}: {_said(str(error))}") from None


def _said(text: str) -> str:
    """What a backend says of an error without its source file and C++ stack."""
    first = text.strip().splitlines()[0] if text.strip() else "failed"
    return first.partition("] ")[2] if first.startswith("[/") else first


# --- a task made ready ---


def _runner(task: Task, session: Session, marks: NDArray[np.int64]) -> Runner:
    groups = {tuple(group): session.group(group) for group in task.schedule.groups}  # all ranks make all of them
    mine = next((group for group in groups if session.rank in group), None)
    if task.program is not None:
        return _exchange(task, task.program, session, marks, len(mine or ()))
    if mine is None:
        return _Nothing()
    from simcoll.executors.dist.library import Call, Setting

    cuts = cut_slots(task.schedule, task.elements, task.weights)
    lengths = {rank: [part.stop - part.start for part in cuts[rank]] for rank in mine}
    row, place = lengths[session.rank], mine.index(session.rank)
    turned = task.schedule.collective == "all_to_all"
    column = [lengths[rank][place] for rank in mine] if turned else row
    root = mine[task.schedule.root]
    setting = Setting(groups[mine], mine, session.rank, root, task.op, row, column, task.buckets)
    return Call(task.schedule.collective, setting, task.dtype, session.device, task.async_op)


def _exchange(task: Task, program: Program, session: Session, marks: NDArray[np.int64], members: int) -> Runner:
    from simcoll.executors.dist.p2p import Exchange, Post

    def waits(index: int) -> None:
        marks[2] = index

    free: Post = "grouped" if session.backend == "nccl" else "overlapped"
    blocking = program.params.blocking
    return Exchange(
        part_of(program, session.rank, task.nbytes, task.itemsize, task.weights),
        task.dtype,
        session.device,
        task.op,
        free if blocking == "no" else blocking,
        promised(task.schedule, session.rank),
        cut_slots(task.schedule, task.elements, task.weights).get(session.rank, [slice(0)] * task.schedule.n_chunks),
        divisor=members if task.op == "avg" and collective(task.schedule.collective).reduces else 0,
        waits=waits,
    )


class _Nothing:
    """A rank that no group has."""

    def fill(self, values: NDArray[Any]) -> None:
        """There is nothing to put in."""

    def run(self) -> None:
        """There is nothing to do."""

    def result(self) -> NDArray[Any]:
        """Nothing is promised."""
        return np.zeros(0)


# --- the check ---


def _verify(task: Task, runner: Runner, session: Session) -> None:
    """One run whose result is compared with the contract, element by element, on every rank."""
    rank, schedule = session.rank, task.schedule

    def buffer_of(one: int) -> NDArray[Any]:
        return sample(one, task.elements, task.dtype, task.op, schedule.n)

    if schedule.collective == "barrier":
        _verify_barrier(task, runner, session)
        return
    runner.fill(buffer_of(rank))
    _timed(task, runner, session)
    if not promised(schedule, rank):
        return
    wanted, found = expected(schedule, rank, buffer_of, task.op, task.weights), runner.result()
    wrong = np.flatnonzero(~_equal(task, wanted, found)) if wanted.shape == found.shape else np.zeros(1, int)
    if len(wrong):
        at = int(wrong[0])
        what = f"{len(wrong)} of {len(wanted)} elements are wrong; element {at}" if len(wanted) else "the result"
        raise MeasureError(
            f"{task.title}: rank {rank}: {what} is {found[at : at + 1].tolist()}, "
            f"the contract says {wanted[at : at + 1].tolist()}"
        )


def _equal(task: Task, wanted: NDArray[Any], found: NDArray[Any]) -> NDArray[np.bool_]:
    """Exact but for the division of avg, which some multiply by a rounded inverse."""
    rounded = task.op == "avg" and wanted.dtype.kind == "f"
    epsilon = 2.0**-7 if task.dtype == "bfloat16" else float(np.finfo(task.dtype).eps) if rounded else 0.0
    same: NDArray[np.bool_] = np.isclose(wanted, found, rtol=4 * epsilon * rounded, atol=0)
    return same


def _verify_barrier(task: Task, runner: Runner, session: Session) -> None:
    """The last rank of every group comes late: nobody of it may leave before."""
    late = {group[-1] for group in task.schedule.groups}

    def run() -> None:
        if session.rank in late:
            time.sleep(TARDY_NS / 1e9)
        runner.run()

    left = [took for (took,) in session.gather([session.timed(run).duration])]
    early = [rank for group in task.schedule.groups for rank in group if session.one_host and left[rank] < TARDY_NS]
    if early:
        raise MeasureError(f"{task.title}: rank {early[0]} left the barrier before the last rank had come")


def sample(rank: int, elements: int, dtype: str, op: str, ranks: int) -> NDArray[Any]:
    """A rank's buffer for the check: values that differ from rank to rank and place to place, such that every order of
    reducing gives the same exact result in this type."""
    kind = np.dtype("float32" if dtype == "bfloat16" else dtype)
    place = np.arange(elements, dtype=np.uint64)
    mixed = (place + np.uint64(7919 * rank + 1)) * np.uint64(0x9E3779B97F4A7C15)
    noise = ((mixed >> np.uint64(33)) ^ mixed) >> np.uint64(8)
    largest = {"bfloat16": 256, "float16": 2048, "int8": 127, "uint8": 255}.get(dtype, 1000 * ranks)
    if op == "product":  # few twos: every product is a small power of two
        values = 1 + (noise % np.uint64(2 * ranks) == 0)
    elif op in BITWISE:
        values = noise % np.uint64(128)
    else:
        values = noise % np.uint64(max(1, largest // ranks if op in ("sum", "avg") else largest) + 1)
    found: NDArray[Any] = values.astype(kind)
    return found


# --- as a process of its own ---


@dataclass(frozen=True, eq=False)
class Job:
    """What is handed to every process of a launch."""

    tasks: tuple[Task, ...]
    backend: str
    meet: str
    timeout_s: float


def main() -> None:
    """What a process of `launch` runs: the job in the folder named by its argument, as the environment's rank."""
    _die_with_parent()
    folder, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    marks = np.memmap(folder / "marks", np.int64, "r+", shape=(world, 3))[rank]
    try:
        job: Job = pickle.loads((folder / "job").read_bytes())
        from simcoll.executors.dist.session import Session

        with Session(job.backend, rank, world, int(os.environ["LOCAL_RANK"]), job.meet, job.timeout_s) as session:
            report = work(job.tasks, session, marks)
        if not rank:
            (folder / "report").write_bytes(pickle.dumps(report))
    except (SimcollError, RuntimeError) as error:
        text = str(error) if isinstance(error, SimcollError) else f"rank {rank}: {_said(str(error))}"
        (folder / f"error-{rank}").write_text(text, encoding="utf-8")
        sys.stderr.flush()
        os._exit(1)  # leaving in order would wait for ranks that are gone


def _die_with_parent() -> None:
    """A rank must not outlive the process that started it, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            os._exit(1)
