"""Run a scenario's points with torch.distributed, return rows of a measured table, and write them to a file."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

import numpy as np

import simcoll
from simcoll.config import text_table
from simcoll.config.grouping import grouped
from simcoll.config.machine_limits import check_memory
from simcoll.errors import InputError, MeasureError
from simcoll.formats.measured import COLUMNS
from simcoll.measurement.cases_of_points import Case, CaseRow, Tell, cases
from simcoll.measurement.launcher import LOCAL, PREFIX, Launcher, launch
from simcoll.measurement.rank_tasks import NOT_BEGUN, Job, RankTask, Report, TaskResult, WorkTask
from simcoll.measurement.torch_backend.support import Backend
from simcoll.prediction.result_rows import write_atomically
from simcoll.prediction.sweep import RowLog
from simcoll.scenario.scenario_files import Point
from simcoll.schedule.names import WORKLOAD
from simcoll.units import short_size

OWN: Final = (  # further columns of real runs, after those of all measured tables
    *("asked", "op", "root", "in_place", "buckets", "async_op", "calls", "launches", "launch_us"),
    *("spread", "late_us", "skew_us", "overhead_us", "clock_ns"),
    *("verified", "steps", "messages", "bytes_per_rank", "backend", "torch", "device", "machine", "environment"),
    *("simcoll", "date"),
)
_RECORDED_VARIABLES: Final = re.compile(r"(GLOO|NCCL|TORCH_NCCL|UCX|OMP)_\w+|CUDA_VISIBLE_DEVICES")
_OF_BOTH: Final = ("subgroups", "weights", "placement", "arrivals")  # swept keys that change both harnesses' runs
# Memory of a rank, as measured with 1 KiB and 32 MiB on 2 ranks: torch takes PROCESS_BYTES; buffers and their check in
# float64 take COPIES times the size.
PROCESS_BYTES: Final = 250_000_000
COPIES: Final = 12
TOGETHER: Final = 32  # most cases in a launch: changes of the machine affect them alike, but a kill loses all of them
CaseLog = RowLog[CaseRow]
_ONE_TIMING: Final = "median over runs, from a common start to the last rank's end (monotonic clock)"
_MANY_TIMING: Final = (
    "median over runs, from a common start by compared clocks to the last rank's end (monotonic clock)"
)
_GPU_TIMING: Final = "median over runs of the slowest rank (CUDA events)"


def run(
    points: Sequence[Point],
    launcher: Launcher = LOCAL,
    *,
    backend: Backend = "gloo",
    timeout_s: float = 60.0,
    limit_s: float = math.inf,
    tell: Tell = lambda line: None,
    log: CaseLog | None = None,
) -> list[CaseRow]:
    """Measure points with processes that `launcher` starts on this machine; return a row for each distinct point.

    Points with the same number of ranks share a launch, or several with `measure.launches`. `timeout_s` limits a
    transfer, `limit_s` a launch. Ranks connect through a file in a shared folder. `tell` gets lines of progress. `log`
    stores each row at once; rows in it are not measured again (see `log_beside`).

    Raises InputError for mistakes that the user can correct, RefusedError if no point can run, and MeasureError if a
    rank dies, hangs or computes a wrong result.
    """
    check_torch()
    every = cases(points, backend, tell)
    for ranks in {case.ranks for case in every}:
        _check_devices(backend, ranks, launcher)
    if backend == "gloo" and not launcher.prefix(0):  # a prefix may start ranks on another machine
        for task in (case.task for case in every if isinstance(case.task, RankTask)):
            what = f"{task.ranks} processes with {short_size(task.nbytes)} each"
            cure = "give --ranks N with fewer of them, or a smaller size"
            check_memory(task.ranks * (PROCESS_BYTES + COPIES * task.nbytes), what, cure, "ranks")
    about = surroundings(launcher.variables(0), launcher.prefix(0))
    done = _Done(every, about, log, tell)
    for which in done.missing():
        alike, ranks = [every[index] for index in which], every[which[0]].ranks

        def start(tasks: tuple[RankTask | WorkTask, ...], ranks: int = ranks) -> Report:
            return launch(Job(tasks, backend, timeout_s, limit_s), ranks, launcher, done.tell)

        made = _launched(alike, backend, start)
        if backend == "nccl":
            chosen = _chosen(alike, ranks, launcher, (timeout_s, limit_s), tell)
            made = [row | choice for row, choice in zip(made, chosen, strict=True)]
        done.add(which, made)
    return done.rows()


class _Done:
    """The rows of cases measured so far, including those in the log of an earlier run that was killed."""

    def __init__(self, every: Sequence[Case], about: CaseRow, log: CaseLog | None, tell: Tell):
        self.every, self.about, self.log, self._tell = every, about, log, tell
        known = log.rows() if log else {}
        self.keys = [self._key(case) for case in every] if log else []
        self.of = {index: known[key] for index, key in enumerate(self.keys) if key in known}
        if log and self.of:
            tell(f"taken over from {log.own}: {len(self.of)} of {len(every)} points")

    def _key(self, case: Case) -> str:
        where = [f"{name}={value}" for name, value in self.about.items() if name != "date"]
        parts = [importlib.metadata.version("torch"), str(case.columns["backend"]), *where, case.key]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def missing(self) -> list[list[int]]:
        """Return the remaining launches, each as a list of case numbers."""
        left = grouped((i for i in range(len(self.every)) if i not in self.of), lambda i: self.every[i].ranks)
        return [alike[a : a + TOGETHER] for alike in left.values() for a in range(0, len(alike), TOGETHER)]

    def add(self, which: Sequence[int], made: Sequence[CaseRow]) -> None:
        """Store the rows of a launch, here and in the log."""

        def plain(value: object) -> object:
            return value.item() if isinstance(value, np.generic) else str(value)

        for index, row in zip(which, made, strict=True):
            self.of[index] = json.loads(json.dumps({**row, **self.about}, default=plain))
            if self.log:
                self.log.append(self.keys[index], self.of[index])

    def rows(self) -> list[CaseRow]:
        """Return all rows, in the order of the cases."""
        return [self.of[index] for index in range(len(self.every))]

    def tell(self, line: str) -> None:
        """Report the number of finished points, followed by `line`."""
        self._tell(f"{len(self.of)} of {len(self.every)} points; {line}")


def log_beside(table: Path) -> CaseLog:
    """Return the log of rows in the folder of an unfinished table; after a kill, the next run continues with it."""
    return RowLog(table.with_name(f"{table.name}.jsonl"), dict, dict)


def _launched(
    which: Sequence[Case], backend: Backend, start: Callable[[tuple[RankTask | WorkTask, ...]], Report]
) -> list[CaseRow]:
    """Return the rows of cases with equal numbers of ranks, from as many launches as these need (made by `start`)."""
    reports: list[tuple[list[int], Report]] = []
    for turn in range(max(case.launches for case in which)):
        todo = [i for i, case in enumerate(which) if turn < case.launches]
        tasks = tuple(replace(which[i].task, verify=which[i].task.verify and not turn) for i in todo)
        reports.append((todo, start(tasks)))
    made = []
    for i, case in enumerate(which):
        mine = [(report, report.outcomes[todo.index(i)]) for todo, report in reports if i in todo]
        made.append(_row(case, mine, backend))
    return made


def _chosen(
    which: Sequence[Case], ranks: int, launcher: Launcher, limits: tuple[float, float], tell: Tell
) -> list[dict[str, str]]:
    """Return NCCL's algorithm and protocol for each case from its log; empty except for the library's collectives.

    A separate launch writes the log, because this takes time. If the launch fails, the measured times still count.
    """
    library = [i for i, case in enumerate(which) if isinstance(case.task, RankTask) and case.task.program is None]
    choices: list[dict[str, str]] = [{} for _ in which]
    if not library:
        return choices
    tasks = tuple(replace(which[i].task, verify=False, warmup=1, repeats=0) for i in library)
    with TemporaryDirectory(prefix=PREFIX) as folder:

        def environment(rank: int) -> dict[str, str]:
            log = f"{folder}/log" if not rank else os.devnull
            logging = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING", "NCCL_DEBUG_FILE": log}
            return {**launcher.environment(rank), **logging}

        try:
            report = launch(Job(tasks, "nccl", *limits), ranks, replace(launcher, environment=environment))
        except MeasureError as error:
            tell(f"left out: what NCCL chose: {str(error).splitlines()[0]}")
            return choices
    for i, outcome in zip(library, report.outcomes, strict=True):
        choices[i] = outcome.choice
    return choices


def join(
    points: Sequence[Point],
    *,
    backend: Backend = "gloo",
    timeout_s: float = 60.0,
    tell: Tell = lambda line: None,
    log: CaseLog | None = None,
) -> list[CaseRow] | None:
    """Measure as one of the ranks that torchrun or Slurm has started; return the rows on rank 0, None on other ranks.

    The processes stay; each launch connects them anew. Raises the errors of `run`, and InputError if a point needs
    another number of ranks. After a MeasureError other ranks may be gone. The caller must then end with `os._exit`,
    because an orderly exit waits for them.
    """
    check_torch()
    from simcoll.measurement.rank_process import RankProcess, reason
    from simcoll.measurement.torch_backend.session import Session, meeting

    rank, world, local = membership()
    _check_devices(backend, 1, LOCAL)
    every = cases(points, backend, tell if not rank else lambda line: None)
    unfit = next((case for case in every if case.ranks != world), None)
    if unfit:
        raise InputError(
            f"{unfit.task.title}: needs {unfit.ranks} ranks, and {world} have started",
            f"start {unfit.ranks} ranks, or give --ranks {world}",
        )
    marks, turns = np.full(3, NOT_BEGUN, np.int64), itertools.count()

    def start(tasks: tuple[RankTask | WorkTask, ...]) -> Report:
        with Session(backend, rank, world, local, store, timeout_s, next(turns)) as session:
            return RankProcess(session, marks).work(tasks)

    done = _Done(every, surroundings(), None if rank else log, tell)
    try:
        store = meeting("env://", rank, world)
        if not rank:  # rank 0 alone has the log
            store.set("missing", json.dumps(done.missing()))
        for which in json.loads(store.get("missing")):
            rows = _launched([every[index] for index in which], backend, start)
            again = {"timing": f"{rows[0]['timing']}; each launch connects the same processes anew"}
            done.add(which, [row | (again if row["launches"] != 1 else {}) for row in rows])
    except RuntimeError as error:  # torch.distributed raises this for everything
        raise MeasureError(f"rank {rank}: {reason(str(error))}") from None
    return None if rank else done.rows()


def membership() -> tuple[int, int, int]:
    """Return this process's rank, the number of ranks, and its rank on this host, from variables of torchrun or srun.

    torchrun sets RANK, WORLD_SIZE and LOCAL_RANK. Raises InputError if no rank, or no address of rank 0, is set.
    """
    for names in (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")):
        if all(name in os.environ for name in names[:2]):
            rank, world, local = (int(os.environ.get(name, "0")) for name in names)
            break
    else:
        raise InputError("the environment sets no rank", "start this with torchrun or srun")
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise InputError(f"{missing[0]} is not set", "export it: the address or port of rank 0")
    return rank, world, local


def is_member() -> bool:
    """Return whether torchrun or srun has started this process as one of several ranks."""
    return ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


def check_torch() -> None:
    """Raise InputError if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "torch is not installed", "install it into this environment, e.g. pip install 'simcoll[validate]'"
        )


def _check_devices(backend: Backend, ranks: int, launcher: Launcher) -> None:
    """Raise InputError if there are fewer GPUs than NCCL's ranks, unless each rank has its own NCCL_HOSTID."""
    if backend != "nccl":
        return
    from simcoll.measurement.torch_backend.session import gpus

    if not (there := gpus()):
        raise InputError("--backend nccl needs a GPU, and torch sees none", "take --backend gloo, or --dry-run")
    if ranks > there and "NCCL_HOSTID" not in launcher.environment(0):
        raise InputError(f"{ranks} ranks need {ranks} GPUs, and there are {there}", f"give --ranks {there} or less")


# --- rows ---


def _row(case: Case, launches: Sequence[tuple[Report, TaskResult]], backend: Backend) -> CaseRow:
    times = [[ns / 1e3 for ns in outcome.durations] for _, outcome in launches]
    runs = sorted(ns for launch in times for ns in launch)
    median, first = statistics.median(runs), launches[0][0]
    low, high = np.percentile(runs, [25, 75])
    mean = f"mean of {case.task.calls} calls back to back; " if case.task.calls > 1 else ""
    timing = _GPU_TIMING if backend == "nccl" else _ONE_TIMING if first.one_host else _MANY_TIMING
    return {
        **case.columns,
        **first.software,
        **{key: value for _, outcome in launches for key, value in outcome.choice.items()},
        "timing": mean + timing,
        "time_us": median,
        "time_us_min": runs[0],
        "time_us_max": runs[-1],
        "runs": len(runs),
        "launch_us": " ".join(f"{statistics.median(launch):.3f}" for launch in times),
        "spread": round((high - low) / median, 4),
        "late_us": statistics.median(ns for _, outcome in launches for ns in outcome.late) / 1e3,
        "skew_us": max(report.skew for report, _ in launches) / 1e3,
        "overhead_us": statistics.median(report.overhead for report, _ in launches) / 1e3,
        "clock_ns": max(report.resolution for report, _ in launches),
        "verified": case.task.verify,
        **(_work_row([outcome for _, outcome in launches], median) if isinstance(case.task, WorkTask) else {}),
    }


def _work_row(outcomes: Sequence[TaskResult], time_us: float) -> dict[str, object]:
    """Return the columns of a workload's row that the measured times determine.

    For ddp, `computed_us` lists the forward pass, each layer's backward pass in the order of the layers, and the
    optimizer; for small programs each local part. It is the median over runs without messages; a computation lasts from
    the slowest rank's end of the previous one to the slowest rank's end of this one.
    """
    ends = np.median(np.array([run for outcome in outcomes for run in outcome.alone]), axis=0) / 1e3
    parts = [float(b - a) for a, b in itertools.pairwise([0.0, *ends])]
    counts = statistics.mode(outcome.buckets for outcome in outcomes)
    return {
        "compute_us": math.fsum(parts),
        "exposed_us": time_us - math.fsum(parts),
        "computed_us": " ".join(f"{part:.1f}" for part in parts),
        **({} if counts is None else {"buckets": counts}),
    }


def surroundings(variables: Mapping[str, str] = MappingProxyType({}), prefix: Sequence[str] = ()) -> CaseRow:
    """Return columns on where a run took place: machine, variables that backends read, simcoll's version, date."""
    recorded = [f"{name}={value}" for name, value in sorted({**os.environ, **variables}.items())
            if _RECORDED_VARIABLES.fullmatch(name)]  # fmt: skip
    before = [f"prefix={' '.join(prefix)}"] if prefix else []
    return {
        "machine": machine(),
        "environment": "; ".join([*before, *recorded]),
        "simcoll": simcoll.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def machine() -> str:
    """Return a description of the processor, the cores that this process may use, the kernel and Python."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.*)$", info.read_text("utf-8", "replace"), re.M) if info.exists() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{cores} cores of {names[0] if names else platform.processor() or platform.machine()}, {system}"


def write(path: Path, rows: Sequence[CaseRow], backend: Backend) -> None:
    """Write a measured table, completely or not at all; for NCCL also what `nvidia-smi` prints. Raises InputError."""
    swept = [column for made in rows for column in made if column not in (*COLUMNS, *OWN)]
    known = [column for column in COLUMNS if any(column in made for made in rows)]
    columns = [*known, *OWN, *dict.fromkeys(swept)]
    cells = ([_cell(made.get(column)) for column in columns] for made in rows)
    write_atomically(path, text_table.csv_text(columns, cells))
    if backend == "nccl":
        _write_gpus(path)


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1000 else f"{value:.3f}"
    return str(value).lower() if isinstance(value, bool) else value


def _write_gpus(table: Path) -> None:
    """Write the output of `nvidia-smi` on GPUs, driver and connections to NAME.txt in the folder of a table NAME.csv.

    `simcoll import` can read it. If nvidia-smi fails, nothing more is written.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for words in (["--query-gpu=index,name,driver_version,memory.total", "--format=csv"], ["topo", "-m"]):
            done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60, check=False)
            lines += (re.sub(r"\x1b\[[0-9;]*m", "", line) for line in done.stdout.splitlines())
    if lines:
        write_atomically(table.with_suffix(".txt"), "\n".join(lines) + "\n")


def beside_library(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """Return the rows with a column `of_library`: the time divided by the library's time for the same collective.

    The library's row must be a single call (one bucket, not async) with the same data; otherwise the column is None.
    """
    links = dict.fromkeys(key for made in rows for key in made if key.startswith("topology."))
    keys = ("collective", "ranks", "size_bytes", "dtype", "op", "root", "system", *_OF_BOTH, *links)
    calls = [made for made in rows if made["collective"] != WORKLOAD]
    yardstick = {
        tuple(made.get(key) for key in keys): made["time_us"]
        for made in calls
        if made["harness"] == "library" and made.get("buckets") == 1 and not made.get("async_op")
    }
    compared = []
    for made in rows:
        library: Any = yardstick.get(tuple(made.get(key) for key in keys))
        mine: Any = made["time_us"]
        compared.append({**made, "of_library": mine / library if library else None})
    return compared
