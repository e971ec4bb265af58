"""Do the work of one rank of a real run: run every task in turn, check it once, and time it often.

A rank is a process. `main` serves one that `launcher.launch` has started; one that torchrun or Slurm has started makes
a `RankProcess` directly.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from simcoll.engine.program import Program
from simcoll.errors import MeasureError, SimcollError
from simcoll.formats import nccl_log
from simcoll.measurement._rank_instructions import part_of
from simcoll.measurement._rank_messages import CHECKING, IDLE, WARMING, Job, RankTask, Report, TaskResult, WorkTask
from simcoll.measurement._result_check import complaint, sample
from simcoll.measurement.torch_backend._ddp_step import DdpStep, Passes
from simcoll.measurement.torch_backend._library_calls import CallSetting, GraphCall, LibraryCall
from simcoll.measurement.torch_backend._runner import Runner
from simcoll.measurement.torch_backend._send_recv import Exchange, Post, TransferError
from simcoll.measurement.torch_backend._small_programs import RankSetting as SmallSetting
from simcoll.measurement.torch_backend._small_programs import SmallProgram as SmallProgram
from simcoll.measurement.torch_backend.session import Session, Timing, meeting
from simcoll.schedule.collectives import collective, cut_slots, promised
from simcoll.workload.workload_keys import Ddp

PASSES: Final = 4  # over all tasks, so that changes on the machine affect all of them alike
KEEP_BYTES: Final = 1 << 30  # up to 1 GiB in all, buffers are made once; beyond, in every pass
TARDY_NS: Final = 20_000_000  # 20 ms: delay of the last rank at a barrier in the check, far above any barrier's time
INEXACT: Final = 10  # times that delay where ranks do not begin at the same instant
PS_PER_NS: Final = 1000
LOOKING: Final = -2  # in place of a transfer: the rank checks the result; smaller by one for each rank's buffer


class Worker(Protocol):
    """A workload, ready on one rank."""

    def run(self) -> None:
        """Run it once."""

    def alone(self) -> list[int]:
        """Compute once without sending anything; return ns of each computation."""

    def complaint(self) -> str | None:
        """Run on all ranks and compare the result with the expected one; return a complaint, or None."""

    def buckets(self) -> int | None:
        """Return the number of buckets in which gradients are sent."""


class RankProcess:
    """One rank at work. `marks` (3,) always show the task, the run and the transfer at which it is."""

    def __init__(self, session: Session, marks: NDArray[np.int64]):
        self._session, self._marks = session, marks

    def work(self, tasks: Sequence[RankTask | WorkTask]) -> Report:
        """Run every task. Raises MeasureError with rank, task and transfer."""
        outcomes = [TaskResult() for _ in tasks]
        keep = 3 * sum(task.nbytes for task in tasks) <= KEEP_BYTES
        passes = max(1, min(PASSES, max(task.repeats for task in tasks))) if keep else 1
        ready: dict[int, Runner | Worker] = {}
        with _no_collector():
            overhead, resolution = self._session.overhead()
            for turn in range(passes):
                for number, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
                    self._marks[:] = number, WARMING, IDLE
                    share = range(task.repeats * turn // passes, task.repeats * (turn + 1) // passes)
                    with self._blaming(task), _chosen(outcome):
                        runner = ready.get(number) or self._runner(task)
                        self._begin(task, runner, first=not turn)
                        self._measure(runner, share, outcome, task.calls if isinstance(task, RankTask) else 1)
                    if passes > 1:
                        ready[number] = runner
                    elif isinstance(runner, Runner):
                        runner.close()
            for runner in ready.values():
                if isinstance(runner, Runner):
                    runner.close()
        apart = max(doubt for (doubt,) in self._session.gather([self._session.doubt]))
        return Report(outcomes, overhead, resolution, self._session.one_host, self._session.software(), apart)

    def _begin(self, task: RankTask | WorkTask, runner: Any, first: bool) -> None:
        self._session.compare_clocks()
        if task.verify and first:
            self._marks[1] = CHECKING
            if isinstance(task, WorkTask):
                self._verify_work(task, runner)
            else:
                self._verify(task, runner)
        self._marks[1] = WARMING
        calls = task.calls if isinstance(task, RankTask) else 1
        for _ in range(task.warmup if first else min(1, task.warmup)):
            self._timed(runner, calls)

    def _measure(self, runner: Any, share: range, outcome: TaskResult, calls: int) -> None:
        gc.collect()
        mine = []
        for run in share:
            self._marks[1:] = run, IDLE
            mine.append(self._timed(runner, calls))
            if isinstance(runner, DdpStep | SmallProgram):  # in turn, so that both meet the same state of the machine
                outcome.alone.append(self._alone(runner))
                outcome.buckets = runner.buckets()
        outcome.durations += self._slowest([round(timing.duration / calls) for timing in mine])
        outcome.late += self._slowest([timing.late for timing in mine])

    def _alone(self, worker: Worker) -> list[int]:
        """Return the end of each computation of a workload on the last rank, in ns, with nothing sent between them."""
        took: list[int] = []
        self._session.timed(lambda: took.extend(worker.alone()))
        return self._slowest(list(itertools.accumulate(took)))

    def _timed(self, runner: Runner | Worker, calls: int | None = None) -> Timing:
        """Time a run: so many calls back to back, or once as it stands."""

        def stuck() -> None:
            undone = runner.undone() if isinstance(runner, Runner) else IDLE
            raise TransferError(undone, f"not over after {self._session.timeout_s:g} s")

        run = runner.often(calls) if calls and isinstance(runner, Runner) else runner.run
        return self._session.timed(run, stuck)

    def _slowest(self, mine: list[int]) -> list[int]:
        return [max(every) for every in zip(*self._session.gather(mine), strict=True)] if mine else []

    @contextlib.contextmanager
    def _blaming(self, task: RankTask | WorkTask) -> Iterator[None]:
        """Turn failures into errors that name rank, task and transfer."""
        who = f"{task.title}: rank {self._session.rank}"
        try:
            yield
        except TransferError as error:
            raise MeasureError(f"{who}: {task.transfer(error.index) or 'a call'}: {reason(error.said)}") from None
        except RuntimeError as error:  # torch.distributed raises this for everything
            raise MeasureError(f"{who}: {reason(str(error))}") from None

    # --- the check ---

    def _verify(self, task: RankTask, runner: Runner) -> None:
        """Run once and compare the result with the contract, element by element, on every rank."""
        rank = self._session.rank
        if task.schedule.collective == "barrier":
            self._verify_barrier(task, runner)
            return
        runner.fill(sample(task, rank))
        self._timed(runner)

        def alive(source: int) -> None:
            self._marks[2] = LOOKING - source

        if wrong := complaint(task, rank, runner.result(), alive):
            raise MeasureError(f"{task.title}: rank {rank}: {wrong}")

    def _verify_work(self, task: WorkTask, worker: Worker) -> None:
        if wrong := worker.complaint():
            raise MeasureError(f"{task.title}: rank {self._session.rank}: {wrong}")

    def _verify_barrier(self, task: RankTask, runner: Runner) -> None:
        """Let the last rank of every group come late: no rank of the group may leave the barrier before."""
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
        if early:
            raise MeasureError(f"{task.title}: rank {early[0]} left the barrier before the last rank had come")

    # --- runners ---

    def _runner(self, task: RankTask | WorkTask) -> Runner | Worker:
        if isinstance(task, WorkTask):
            return self._worker(task)
        groups = {group: self._session.group(group) for group in task.schedule.groups}  # all ranks make all of them
        mine = next((group for group in groups if self._session.rank in group), ())
        if task.program is not None:
            return self._exchange(task, task.program, len(mine))
        return self._call(task, groups[mine], mine) if mine else Runner()

    def _worker(self, task: WorkTask) -> Worker:
        spec, rank = task.spec, self._session.rank
        if not isinstance(spec, Ddp):
            setting = SmallSetting(
                rank, task.ranks, spec.root, spec.size // task.itemsize, task.dtype, spec.local // PS_PER_NS
            )
            return SmallProgram(spec.template, setting)
        layers = spec.timed(task.itemsize)
        forward = sum(layer.forward for layer in layers) if spec.forward is None else spec.forward
        passes = [  # the whole forward pass is in the first layer
            Passes(layer.nbytes // task.itemsize, 0 if number else forward // PS_PER_NS, layer.backward // PS_PER_NS)
            for number, layer in enumerate(layers)
        ]
        first = spec.bucket_cap if spec.first_bucket is None else spec.first_bucket
        return DdpStep(
            passes,
            task.dtype,
            task.compute,
            rank=rank,
            caps=(first, spec.bucket_cap),
            batch=spec.batch,
            optimizer_ns=spec.optimizer // PS_PER_NS,
        )

    def _exchange(self, task: RankTask, program: Program, members: int) -> Runner:
        def waits(index: int) -> None:
            self._marks[2] = index

        rank, cuts = self._session.rank, cut_slots(task.schedule, task.elements, task.weights)
        free: Post = "grouped" if self._session.backend == "nccl" else "overlapped"
        blocking = program.params.blocking
        return Exchange(
            part_of(program, rank, task.nbytes, task.itemsize, task.weights),
            task.dtype,
            self._session.device,
            task.op,
            free if blocking == "no" else blocking,
            promised(task.schedule, rank),
            cuts.get(rank, [slice(0)] * task.schedule.n_chunks),
            divisor=members if task.op == "avg" and collective(task.schedule.collective).reduces else 0,
            waits=waits,
        )

    def _call(self, task: RankTask, group: Any, members: tuple[int, ...]) -> Runner:
        cuts = cut_slots(task.schedule, task.elements, task.weights)
        lengths = {rank: [part.stop - part.start for part in cuts[rank]] for rank in members}
        row, place = lengths[self._session.rank], members.index(self._session.rank)
        turned = task.schedule.collective == "all_to_all"
        column = [lengths[rank][place] for rank in members] if turned else row
        root = members[task.schedule.root]
        setting = CallSetting(
            group, members, self._session.rank, root, task.op, row, column, task.buckets, task.in_place
        )
        where = self._session.device
        call = LibraryCall(task.schedule.collective, setting, task.dtype, where, task.async_op, task.registered)
        return GraphCall(call) if task.graph else call


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Collect garbage only between tasks, and never the objects that torch brings along."""
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
    """Read what NCCL meanwhile writes to its log about its choice, if it writes one."""
    log = nccl_log.file(os.environ.get("NCCL_DEBUG_FILE", os.devnull))
    seen = log.stat().st_size if log.is_file() else 0
    yield
    if log.is_file():
        outcome.choice |= nccl_log.choice(log.read_bytes()[seen:].decode(errors="replace"))


def reason(text: str) -> str:
    """Return the reason in a backend's error, without its source file, its C++ stack and its advice."""
    lines = text.strip().splitlines() or ["failed"]
    if "Last error:" in lines[:-1]:  # NCCL's own words come last
        return lines[lines.index("Last error:") + 1]
    first = lines[0]
    return (first.partition("] ")[2] if first.startswith("[/") else first).partition(". ")[0]


def main() -> None:
    """Run the job in the folder named by the argument, as the rank that the environment names, in a process of
    `launch`.
    """
    folder, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    marks = np.memmap(folder / "marks", np.int64, "r+", shape=(world, 3))[rank]
    try:
        job: Job = pickle.loads((folder / "job").read_bytes())
        store = meeting(job.meet, rank, world)
        with Session(job.backend, rank, world, int(os.environ["LOCAL_RANK"]), store, job.timeout_s) as session:
            report = RankProcess(session, marks).work(job.tasks)
        if not rank:
            (folder / "report").write_bytes(pickle.dumps(report))
    except (SimcollError, RuntimeError) as error:
        text = str(error) if isinstance(error, SimcollError) else f"rank {rank}: {reason(str(error))}"
        (folder / f"error-{rank}").write_text(text, encoding="utf-8")
        sys.stderr.flush()
        os._exit(1)  # leaving in order would wait for ranks that are gone
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is done: torch's threads, which end with the process, now and then abort it when left in order
