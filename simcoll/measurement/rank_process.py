"""Do the work of one rank of a real run: run every task in turn, check its result once, and time it several times.

A rank is a process. `main` runs in processes that `launcher.launch` starts; processes of torchrun or Slurm make a
`RankProcess` directly.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.errors import MeasureError, SimcollError
from simcoll.measurement.rank_tasks import CHECKING, IDLE, WARMING, Job, RankTask, Report, Task, TaskResult, WorkTask
from simcoll.measurement.torch_backend.library_calls import GraphCall, LibraryCall, Runner
from simcoll.measurement.torch_backend.send_recv import Exchange, Post, TransferError
from simcoll.measurement.torch_backend.session import Session, Timing, meeting
from simcoll.measurement.torch_backend.workloads import DdpStep, PlanStep, SmallProgram, Worker
from simcoll.schedule.collectives import BITWISE, expected, promised
from simcoll.schedule.names import ALGORITHMS, PROTOCOLS, squashed
from simcoll.workload.workload_keys import Ddp

PASSES: Final = 4  # passes over all tasks, so that changes on the machine affect all tasks alike
KEEP_BYTES: Final = 1 << 30  # up to 1 GiB, buffers of all tasks stay for all passes; beyond, there is one pass
TARDY_NS: Final = 20_000_000  # 20 ms: delay of the last rank in the check of a barrier, far above a barrier's time
INEXACT: Final = 10  # factor on TARDY_NS if ranks do not begin at the same instant
_LARGEST: Final = {"bfloat16": 256, "float16": 2048, "int8": 127, "uint8": 255}  # up to these, whole numbers are exact
LOOKING: Final = -2  # mark while the rank checks a result and computes the buffer of rank r: LOOKING - r


class RankProcess:
    """Runs the tasks of one rank. `marks` (3,), in shared memory, always show its current task, run and transfer."""

    def __init__(self, session: Session, marks: NDArray[np.int64]):
        self._session, self._marks = session, marks

    def work(self, tasks: Sequence[Task]) -> Report:
        """Run every task, and return the results. Raises MeasureError with rank, task and transfer."""
        outcomes = [TaskResult() for _ in tasks]
        keep = 3 * sum(task.nbytes for task in tasks) <= KEEP_BYTES
        passes = max(1, min(PASSES, max(task.repeats for task in tasks))) if keep else 1
        ready: dict[int, Runner] = {}
        with _no_collector():
            overhead, resolution = self._session.overhead()
            for turn in range(passes):
                for number, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
                    self._marks[:] = number, WARMING, IDLE
                    share = range(task.repeats * turn // passes, task.repeats * (turn + 1) // passes)
                    with self._blaming(task), _chosen(outcome):
                        runner = ready.get(number) or self._runner(task)
                        self._begin(task, runner, first=not turn)
                        self._measure(runner, share, outcome, task.calls)
                    if passes > 1:
                        ready[number] = runner
                    else:
                        runner.close()
            for runner in ready.values():
                runner.close()
        apart = max(doubt for (doubt,) in self._session.gather([self._session.doubt]))
        return Report(outcomes, overhead, resolution, self._session.one_host, self._session.software(), apart)

    def _begin(self, task: Task, runner: Runner, first: bool) -> None:
        self._session.compare_clocks()
        if task.verify and first:
            self._marks[1] = CHECKING
            if wrong := self._wrong(task, runner):
                raise MeasureError(f"{task.title}: rank {self._session.rank}: {wrong}")
        self._marks[1] = WARMING
        for _ in range(task.warmup if first else min(1, task.warmup)):
            self._timed(runner, task.calls)

    def _measure(self, runner: Runner, share: range, outcome: TaskResult, calls: int) -> None:
        gc.collect()
        mine = []
        for run in share:
            self._marks[1:] = run, IDLE
            mine.append(self._timed(runner, calls))
            if isinstance(runner, Worker):  # alternately, so that both kinds of runs see the machine in the same state
                outcome.alone.append(self._alone(runner))
                outcome.buckets = runner.buckets()
        outcome.durations += self._slowest([round(timing.duration / calls) for timing in mine])
        outcome.late += self._slowest([timing.late for timing in mine])

    def _alone(self, worker: Worker) -> list[int]:
        """Run a workload without communication; return the end of each computation on the slowest rank, in ns."""
        took: list[int] = []
        self._session.timed(lambda: took.extend(worker.alone()))
        return self._slowest(list(itertools.accumulate(took)))

    def _timed(self, runner: Runner, calls: int | None = None) -> Timing:
        """Run and time `calls` calls without a pause, or the runner's single `run` if `calls` is None."""

        def stuck() -> None:
            raise TransferError(runner.undone(), f"not over after {self._session.timeout_s:g} s")

        return self._session.timed(runner.often(calls) if calls else runner.run, stuck)

    def _slowest(self, mine: list[int]) -> list[int]:
        return [max(every) for every in zip(*self._session.gather(mine), strict=True)] if mine else []

    @contextlib.contextmanager
    def _blaming(self, task: Task) -> Iterator[None]:
        """Convert failures in the context into MeasureErrors that name rank, task and transfer."""
        who = f"{task.title}: rank {self._session.rank}"
        try:
            yield
        except TransferError as error:
            raise MeasureError(f"{who}: {task.transfer(error.index) or 'a call'}: {reason(error.said)}") from None
        except RuntimeError as error:  # torch.distributed raises this for everything
            raise MeasureError(f"{who}: {reason(str(error))}") from None

    # --- the check ---

    def _wrong(self, task: Task, runner: Runner) -> str | None:
        """Run once and compare the result with the contract by element; return the mistake in words, or None."""
        if isinstance(runner, Worker):
            return runner.complaint()
        assert isinstance(task, RankTask)
        if task.schedule.collective == "barrier":
            return self._wrong_barrier(task, runner)
        runner.fill(sample(task, self._session.rank))
        self._timed(runner)

        def alive(source: int) -> None:
            self._marks[2] = LOOKING - source

        return complaint(task, self._session.rank, runner.result(), alive)

    def _wrong_barrier(self, task: RankTask, runner: Runner) -> str | None:
        """Run a barrier that each group's last rank enters late; return the mistake in words if a rank left early."""
        groups, exact = task.schedule.groups, self._session.exact and self._session.one_host
        tardy = TARDY_NS if exact else INEXACT * TARDY_NS
        late = self._session.rank in {group[-1] for group in groups}

        def run() -> None:
            if late:
                time.sleep(tardy / 1e9)
            runner.run()

        left = [took for (took,) in self._session.gather([self._session.timed(run).duration])]
        least = tardy if exact else tardy // 2  # half of the delay, as ranks began at different instants
        early = [rank for group in groups for rank in group if left[rank] < least]
        return f"rank {early[0]} left the barrier before the last rank had come" if early else None

    # --- runners ---

    def _runner(self, task: Task) -> Runner:
        session, rank = self._session, self._session.rank
        if isinstance(task, WorkTask) and task.plan:
            calls = [work.ranks for work in task.plan.works if work.call]
            return PlanStep(task, rank, {ranks: session.group(ranks) for ranks in dict.fromkeys(calls)})
        if isinstance(task, WorkTask):
            return DdpStep(task, rank) if isinstance(task.spec, Ddp) else SmallProgram(task, rank)
        assert isinstance(task, RankTask)
        groups = {group: session.group(group) for group in task.schedule.groups}  # all ranks make all groups
        mine = next((group for group in groups if rank in group), ())
        if task.program is not None:
            free: Post = "grouped" if session.backend == "nccl" else "overlapped"
            blocking = task.program.params.blocking
            return Exchange(task, rank, session.device, free if blocking == "no" else blocking, self._wait_for)
        if not mine:
            return Runner()
        return (GraphCall if task.graph else LibraryCall)(task, rank, mine, groups[mine], session.device)

    def _wait_for(self, index: int) -> None:
        self._marks[2] = index


# --- inputs and results ---


def sample(task: RankTask, rank: int) -> NDArray[Any]:
    """Return a rank's input buffer (elements,), with values that depend on rank and position; bfloat16 as float32.

    Reduced in any order, the values give the same exact result in the task's dtype.
    """
    ranks, place = task.schedule.n, np.arange(task.elements, dtype=np.uint64)
    mixed = (place + np.uint64(7919 * rank + 1)) * np.uint64(0x9E3779B97F4A7C15)
    noise = ((mixed >> np.uint64(33)) ^ mixed) >> np.uint64(8)
    largest = _LARGEST.get(task.dtype, 1000 * ranks)
    if task.op == "product":  # ones and few twos, so that every product is a small power of two
        values = 1 + (noise % np.uint64(2 * ranks) == 0)
    elif task.op in BITWISE:
        values = noise % np.uint64(128)
    else:
        values = noise % np.uint64(max(1, largest // ranks if task.op in ("sum", "avg") else largest) + 1)
    buffer: NDArray[Any] = values.astype("float32" if task.dtype == "bfloat16" else task.dtype)
    return buffer


def complaint(
    task: RankTask, rank: int, result: NDArray[Any], alive: Callable[[int], None] = lambda rank: None
) -> str | None:
    """Compare a rank's `result` with the contract of the collective; describe the difference, or return None.

    Computing large buffers takes long, so `alive` is called before each rank's buffer, to show that this rank works.
    """

    def buffer_of(source: int) -> NDArray[Any]:
        alive(source)
        return sample(task, source)

    if not promised(task.schedule, rank):
        return None
    wanted = expected(task.schedule, rank, buffer_of, task.op, task.weights)
    if wanted.shape != result.shape:
        return f"the result has {len(result)} elements, the contract says {len(wanted)}"
    wrong = np.flatnonzero(~np.isclose(wanted, result, rtol=_tolerance(task, wanted), atol=0))
    if not len(wrong):
        return None
    at = int(wrong[0])
    return (
        f"{len(wrong)} of {len(wanted)} elements are wrong: element {at} is {result[at].item()}, "
        f"the contract says {wanted[at].item()}"
    )


def _tolerance(task: RankTask, wanted: NDArray[Any]) -> float:
    """Return the allowed relative error: 0, except for `avg` of floats, which libraries divide at different times."""
    if task.op != "avg" or wanted.dtype.kind != "f":
        return 0.0
    return max(4, task.schedule.n) * (2.0**-7 if task.dtype == "bfloat16" else float(np.finfo(task.dtype).eps))


# --- NCCL's choice in its log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING) ---

_CHOICE: Final = re.compile(r"\bBytes -> Algo (\w+) proto (\w+)", re.IGNORECASE)


def log_file(name: str) -> Path:
    """Return this process's log file for a value of NCCL_DEBUG_FILE; `%h` stands for the host, `%p` for the process."""
    host = socket.gethostname().partition(".")[0]
    return Path(name.replace("%h", host).replace("%p", str(os.getpid())))


def logged_choice(text: str) -> dict[str, str]:
    """Return algorithm and protocol of the last call in a log, as columns of a measured table; empty if there is none.

    Older versions print numbers, newer ones names.

    >>> logged_choice("NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}")
    {'algorithm': 'ring', 'protocol': 'Simple'}
    """
    choices = _CHOICE.findall(text)
    if not choices:
        return {}
    algorithm, protocol = choices[-1]
    return {"algorithm": _named(algorithm, ALGORITHMS), "protocol": _named(protocol, PROTOCOLS)}


def _named(text: str, names: tuple[str, ...]) -> str:
    """Return the name for a number (an index into `names`) or a spelling; unknown spellings in small letters."""
    if text.isdecimal():
        return names[int(text)] if len(text) < 4 and int(text) < len(names) else text
    return next((name for name in names if squashed(name) == squashed(text)), text.lower())


# --- the process ---


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """In the context, disable the garbage collector, and exclude existing objects (torch's) from later collections."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def _chosen(outcome: TaskResult) -> Iterator[None]:
    """Add the algorithm and protocol that NCCL logs while the context is open to `outcome`, if there is a log."""
    log = log_file(os.environ.get("NCCL_DEBUG_FILE", os.devnull))
    seen = log.stat().st_size if log.is_file() else 0
    yield
    if log.is_file():
        outcome.choice |= logged_choice(log.read_bytes()[seen:].decode(errors="replace"))


def reason(text: str) -> str:
    """Return the cause from a backend's error text, without source file, C++ stack and advice."""
    lines = text.strip().splitlines() or ["failed"]
    if "Last error:" in lines[:-1]:  # NCCL's own words follow this line
        return lines[lines.index("Last error:") + 1]
    first = lines[0]
    return (first.partition("] ")[2] if first.startswith("[/") else first).partition(". ")[0]


def main() -> None:
    """Run the job in the folder `argv[1]` as the rank that the variable RANK gives, in a process of `launch`."""
    folder, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    marks = np.memmap(folder / "marks", np.int64, "r+", shape=(world, 3))[rank]
    try:
        job: Job = pickle.loads((folder / "job").read_bytes())
        store = meeting(f"file://{folder / 'meet'}", rank, world)
        with Session(job.backend, rank, world, int(os.environ["LOCAL_RANK"]), store, job.timeout_s) as session:
            report = RankProcess(session, marks).work(job.tasks)
        if not rank:
            (folder / "report").write_bytes(pickle.dumps(report))
    except (SimcollError, RuntimeError) as error:
        text = str(error) if isinstance(error, SimcollError) else f"rank {rank}: {reason(str(error))}"
        (folder / f"error-{rank}").write_text(text, encoding="utf-8")
        sys.stderr.flush()
        os._exit(1)  # an orderly exit would wait for ranks that are gone
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # in an orderly exit torch's threads now and then abort the process
