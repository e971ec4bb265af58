"""Measure one device: launch latency, copies and reductions by size, collectives of one rank, and NCCL between several
ranks on one GPU.

    rows = [*device("cuda"), *one_rank("nccl")]
    write(path, rows, "cuda")
    gamma_ps_per_byte(rows)                          # cost of a reduction, for `model.gamma`
    several_on_one_gpu(points)                       # rows of a measured table, like those of `real_run.run`
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcoll.config import yaml_tree
from simcoll.errors import InputError, Place
from simcoll.measurement import real_run
from simcoll.measurement.launcher import ONE_GPU_S, on_one_gpu
from simcoll.measurement.run_cases import CaseRow, Tell
from simcoll.measurement.torch_backend.support import Backend
from simcoll.scenario import scenario_files
from simcoll.scenario.scenario_files import Point

COLUMNS: Final = ("what", "dtype", "size_bytes", "time_us", "time_us_min", "time_us_max", "runs", "GBps")
SIZES: Final = tuple(4**power for power in range(5, 15))  # 1 KiB … 256 MiB
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def device(
    name: str = "cuda",
    *,
    dtypes: Sequence[str] = ("float32",),
    sizes: Sequence[int] = SIZES,
    runs: int = 20,
    tell: Tell = lambda line: None,
) -> list[CaseRow]:
    """Measure launches, copies and reductions on a device (`cuda`, `cuda:1` or `cpu`); one row each, with `COLUMNS`.

    `time_us` is the median of `runs`, and `GBps` the size divided by it. A copy reads and writes the size once; a
    reduction (b += a) reads it twice and writes it once. Raises InputError if the device does not exist.
    """
    _check(name)
    from simcoll.measurement.torch_backend.device import samples

    rows = []
    for sample in samples(name, dtypes, sizes, runs):
        tell(f"{sample.operation}, {sample.nbytes} B {sample.dtype}")
        times = sorted(ns / 1e3 for ns in sample.times)
        rows.append(_row(sample.operation, sample.dtype, sample.nbytes, statistics.median(times), times, len(times)))
    return rows


def one_rank(
    backend: Backend,
    *,
    collectives: Sequence[str] = COLLECTIVES,
    sizes: Sequence[int] = SIZES,
    runs: int = 20,
    timeout_s: float = 60.0,
    tell: Tell = lambda line: None,
) -> list[CaseRow]:
    """Measure the library's collectives with one rank, in a separate process; return rows with `COLUMNS`.

    One rank sends nothing, so its time is the cost of a call itself. Raises like `real_run.run`.
    """
    asked = {
        "topology": {"system": "loopback"},
        "ranks": 1,
        "collective": list(collectives),
        "dtype": "float32",
        "size": [f"{size} B" for size in sizes],
        "measure": {"harness": "library", "repeats": runs},
    }
    points = scenario_files.points(yaml_tree.located(asked, Place("probes", 1, 1)))
    rows = real_run.run(points, backend=backend, timeout_s=timeout_s, tell=tell)
    return [{column: _with_rate(row).get(column) for column in COLUMNS} for row in rows]


def several_on_one_gpu(
    points: Sequence[Point], *, timeout_s: float = 30.0, limit_s: float = ONE_GPU_S, tell: Tell = lambda line: None
) -> list[CaseRow]:
    """Measure points with all NCCL ranks on the first GPU, over NCCL's sockets, each rank as if on a host of its own.

    The times say nothing of a cluster's network, but NCCL's rings and trees run, and simcoll's schedules with NCCL's
    send and receive. Kernels that wait for each other take turns on the GPU and may spin for ever: a run longer than
    `timeout_s`, or a launch longer than `limit_s`, is killed. Raises like `real_run.run`, and InputError without a GPU.
    """
    _check("cuda")
    return real_run.run(points, on_one_gpu(), backend="nccl", timeout_s=timeout_s, limit_s=limit_s, tell=tell)


def gamma_ps_per_byte(rows: Sequence[CaseRow], dtype: str = "float32") -> float:
    """Return the cost of a reduction in ps/B: time divided by size, at the largest measured size.

    Raises InputError if no row measures a reduction of `dtype`.
    """
    reductions = [row for row in rows if row["what"] == "reduce" and row["dtype"] == dtype]
    if not reductions:
        raise InputError(f"the measured rows contain no reduction of {dtype}", "measure the device with it")
    largest = max(reductions, key=lambda row: float(str(row["size_bytes"])))
    return float(str(largest["time_us"])) * 1e6 / float(str(largest["size_bytes"]))


def write(path: Path, rows: Sequence[CaseRow], name: str) -> None:
    """Write rows and their provenance to a CSV file, atomically; for GPUs also `write_gpus`. Raises InputError."""
    from simcoll.measurement.torch_backend.device import about

    facts = {**about(name), **real_run.surroundings()}
    real_run.write_table(path, [*COLUMNS, *facts], [{**row, **facts} for row in rows])
    if name != "cpu":
        real_run.write_gpus(path)


def read(path: Path) -> list[CaseRow]:
    """Return the rows of a table that `write` wrote. Raises InputError if it is no such table."""
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    try:
        return [{**row, "size_bytes": int(row["size_bytes"]), "time_us": float(row["time_us"])} for row in rows]
    except (KeyError, TypeError, ValueError):
        cure = "remove the file; the next run measures it again"
        raise InputError(f"{path}: is no table of device measurements", cure) from None


def _row(operation: str, dtype: str, nbytes: int, median: float, times: Sequence[float], runs: int) -> CaseRow:
    about = {"what": operation, "dtype": dtype, "size_bytes": nbytes, "runs": runs}
    return _with_rate({**about, "time_us": median, "time_us_min": min(times), "time_us_max": max(times)})


def _with_rate(row: CaseRow) -> CaseRow:
    size, took = float(str(row["size_bytes"])), float(str(row["time_us"]))
    return {**row, "what": row.get("what", row.get("collective")), "GBps": size / took / 1e3 if took else None}


def _check(name: str) -> None:
    """Raise InputError if the device does not exist."""
    real_run.check_torch()
    from simcoll.measurement.torch_backend.session import gpus

    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise InputError(f"{name!r} is no device", "take cuda, cuda:1 or cpu")
    if kind == "cuda" and (there := gpus()) <= int(number or 0):
        problem = f"there is no GPU {number or 0}: torch sees {there or 'none'}"
        raise InputError(problem, "run this where there is one, or on the device cpu")
