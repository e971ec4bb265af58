"""Start processes of ranks on this machine, watch them, and always end them.

The ranks share a folder. It holds the job, a file through which the ranks find each other, each rank's terminal output,
and a table of marks. A rank's marks show its current task, run and transfer, even if the rank hangs or has died.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.errors import InputError, MeasureError
from simcoll.measurement.rank_tasks import CHECKING, IDLE, NOT_BEGUN, Job, Report

BEGIN_S: Final = 180.0  # time for ranks to import torch, which is slow on a busy machine, and to find each other
GRACE_S: Final = 3.0  # time after the first failure in which the other ranks report what they waited for
POLL_S: Final = 0.02  # interval of checks on the ranks: shorter than any run, and no load
ONE_GPU_S: Final = 300.0  # limit of a launch on one GPU, where ranks may wait for each other for ever
PREFIX: Final = "simcoll-"  # begins the names of a run's temporary folders and networks
CODE: Final = "from simcoll.measurement.launcher import begin; begin()"
LOOPBACK: Final = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)


@dataclass(frozen=True)
class Launcher:
    """How rank r starts: `prefix(r)` is put before its command, `environment(r)` is added to its environment variables.

    If each rank has its own NCCL_HOSTID, NCCL takes the ranks for different hosts, and they may share a GPU.
    """

    prefix: Callable[[int], Sequence[str]] = lambda rank: ()
    environment: Callable[[int], Mapping[str, str]] = lambda rank: {}

    def variables(self, rank: int) -> dict[str, str]:
        """Return all variables set for a rank: one thread, gloo on loopback (ranks of NCCL connect over it, too), and
        those of `environment`.
        """
        own = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        if LOOPBACK:
            own["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK)
        return own | dict(self.environment(rank))


LOCAL: Final = Launcher()


def on_one_gpu() -> Launcher:
    """Return a launcher for NCCL ranks that share the first GPU, as if on different hosts, with sockets on loopback."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]

    def environment(rank: int) -> dict[str, str]:
        own = {"NCCL_HOSTID": f"simcoll-{rank}", "NCCL_NET": "Socket", "CUDA_VISIBLE_DEVICES": gpu}
        return {**own, "NCCL_SOCKET_IFNAME": LOOPBACK} if LOOPBACK else own

    return Launcher(environment=environment)


def launch(job: Job, world: int, launcher: Launcher, tell: Callable[[str], None] = lambda line: None) -> Report:
    """Run a job on `world` ranks and return its report. `tell` gets the title of each task as it begins.

    All ranks have ended when this function returns or raises. If this process is killed, they end with it. Raises
    MeasureError with the state of every rank if one dies, fails or hangs, InputError if a prefix cannot be run.
    """
    with orderly_end(), TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        marks = np.memmap(folder / "marks", np.int64, "w+", shape=(world, 3))
        marks[:] = 0, NOT_BEGUN, IDLE
        (folder / "job").write_bytes(pickle.dumps(job))
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            ranks.extend(_started(rank, world, launcher, folder) for rank in range(world))  # `ranks` grows one by one
            _watch(ranks, job, marks, folder, tell)
            report: Report = pickle.loads((folder / "report").read_bytes())
            return report
        finally:
            _end(ranks)


def orderly_end() -> contextlib.AbstractContextManager[None]:
    """Make SIGTERM and SIGHUP (`kill`, a closed terminal) end this process through every `finally`."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    return handling((signal.SIGTERM, signal.SIGHUP), leave)


@contextlib.contextmanager
def handling(
    signals: Sequence[signal.Signals], handler: Callable[[int, Any], None] | signal.Handlers
) -> Iterator[None]:
    """Handle signals with `handler` in the context. Outside the main thread, where Python forbids it, do nothing."""
    try:
        before = {number: signal.signal(number, handler) for number in signals}
    except ValueError:  # not the main thread
        before = {}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _started(rank: int, world: int, launcher: Launcher, folder: Path) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).parents[2])  # the ranks import this simcoll, wherever they start
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    environment = {**os.environ, "PYTHONPATH": path, **launcher.variables(rank), **numbers}
    command = [*launcher.prefix(rank), sys.executable, "-c", CODE, str(folder)]
    with (folder / f"out-{rank}").open("wb") as out:
        try:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
            )
        except OSError as error:
            problem = f"rank {rank} cannot be started: {command[0]}: {error.strerror}"
            raise InputError(problem, "mend the prefix of its command") from None


def begin() -> None:
    """Run a rank's work in a process that `launch` started, and end when the launching process ends.

    Nothing is ever written to this process's standard input: a read returns only when the launching process is gone.
    """

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    gc.disable()  # importing torch leaves no garbage, and a search for it takes a seventh of the import
    from simcoll.measurement.rank_process import main  # imports torch, which is slow

    main()


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill every rank and all processes that it started, and wait until the ranks have ended."""
    for process in ranks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in ranks:
        process.wait()
        if process.stdin:
            process.stdin.close()


def _watch(
    ranks: Sequence[subprocess.Popen[bytes]],
    job: Job,
    marks: NDArray[np.int64],
    folder: Path,
    tell: Callable[[str], None],
) -> None:
    """Wait until all ranks have ended without error. Raise MeasureError if one fails, all hang, or time is up."""
    before, moved, reported = marks.copy(), time.monotonic(), -1
    latest = moved + job.limit_s
    while any(process.poll() is None for process in ranks):
        if any(process.poll() for process in ranks):
            deadline = time.monotonic() + GRACE_S
            while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            break
        now = marks.copy()
        if (now != before).any():
            before, moved = now, time.monotonic()
        begun = bool((now[:, 1] != NOT_BEGUN).all())
        if begun and now[0, 0] != reported:
            reported = int(now[0, 0])
            tell(job.tasks[reported].title)
        if time.monotonic() > latest:
            raise MeasureError(f"not over after {job.limit_s:g} s\n{_complaint(ranks, job, marks, folder, 'was')}")
        if time.monotonic() - moved > (job.timeout_s + GRACE_S if begun else BEGIN_S):
            raise MeasureError(_complaint(ranks, job, marks, folder))
        time.sleep(POLL_S)
    if any(process.poll() for process in ranks):
        raise MeasureError(_complaint(ranks, job, marks, folder))


def _complaint(
    ranks: Sequence[subprocess.Popen[bytes]], job: Job, marks: NDArray[np.int64], folder: Path, did: str = ""
) -> str:
    """Return a description of a failure, a line for each rank. `did`: what running ranks did; default "gave no answer".

    Ranks that died come first, then running ranks, then ranks with an error. Errors are in order of time, because later
    ones may follow from the first.
    """
    died, silent, said = [], [], []
    for rank, process in enumerate(ranks):
        error, status = folder / f"error-{rank}", process.poll()
        where = _where(job, marks[rank])
        if error.exists():
            said.append((error.stat().st_mtime_ns, error.read_text("utf-8")))
        elif status:
            cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            died.append(f"rank {rank} died ({cause}) {where}{_last_words(folder / f'out-{rank}')}")
        elif status is None:
            silent.append((rank, where))
    # If a rank died, the others were only waiting for it.
    did = did or ("was" if died else f"gave no answer for {job.timeout_s:g} s")
    waited = [f"rank {rank} {did} {where}" for rank, where in silent]
    return "\n".join([*died, *waited, *(text for _, text in sorted(said))])


def _where(job: Job, mark: NDArray[np.int64]) -> str:
    number, run, transfer = mark.tolist()
    if run == NOT_BEGUN:
        return "before its first run"
    task = job.tasks[number]
    which = f"run {run}" if run >= 0 else "the check" if run == CHECKING else "a warm-up"
    waits = f", waiting for {task.transfer(transfer)}" if task.transfer(transfer) else ""
    return f"in {task.title}, {which}{waits}"


def _last_words(out: Path) -> str:
    lines = out.read_text("utf-8", "replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
