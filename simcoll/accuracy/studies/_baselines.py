"""Predict rows by simple baselines, to compare simcoll with: from the fitted rows, or from data sheets alone.

Each baseline is a function from the fitted rows, the row to predict and its point to a time in us; None where it has no
prediction.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from simcoll import units
from simcoll.accuracy.studies.study_file import system_of
from simcoll.config import yaml_tree
from simcoll.errors import InputError, RefusedError
from simcoll.formats.measured import MeasuredRow, read_measured
from simcoll.measurement.torch_backend.compiler_estimate import compiler_estimate
from simcoll.nccl import tuner
from simcoll.nccl.call_names import COLLECTIVES
from simcoll.nccl.communicator import communicator
from simcoll.nccl.tuner_constants import nearest
from simcoll.prediction.placing import topology_of
from simcoll.scenario.loading import Point
from simcoll.schedule.collectives import collective
from simcoll.topology.systems import load_system

Rival = Callable[[Sequence[MeasuredRow], MeasuredRow, Point], float | None]


def nccl_tuner(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Return the time with which NCCL's tuner compares algorithms; it includes no launch."""
    name = next((known for known in COLLECTIVES if known == asked.collective), None)
    system = point.scenario.topology.system
    if name is None or system is None:
        return None
    try:
        comm = communicator(load_system(system), asked.nodes or 1, asked.ranks)
        in_switch = tuner.switch_reduces(point.scenario.dtype, point.scenario.op)
        release = nearest(asked.library_version or "")
        choice = tuner.choose(tuner.table(comm, release, switch_reduces=in_switch), name, asked.size_bytes)
    except (InputError, RefusedError):
        return None
    return choice.time_us if choice else None


def latency_bandwidth(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Fit a latency and a bandwidth to the rows of the same collective and ranks, by relative errors."""
    rows = _series(fitted, asked)
    if len(rows) < 2:
        return None
    times = np.array([row.time_us for row in rows])
    sizes = np.array([row.size_bytes for row in rows], float)
    columns = np.stack([1 / times, sizes / times], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)
    return float(max(latency + slope * asked.size_bytes, 1e-3))  # a fitted latency may be below zero


def spec_sheet(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Divide the bytes that have to cross a GPU's link by its rated bandwidth."""
    rated = topology_of(point.scenario.model_copy(update={"profile": "one-port"}))
    fastest = int(rated.bandwidths[list(rated.route(*rated.ranks[:2]))].min())
    return float(collective(asked.collective).busbw(asked.ranks)) * asked.size_bytes / fastest * 1e6


def interpolation(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Interpolate between the fitted sizes of the series, linearly in the logarithms of size and time.

    For a series without fitted rows, interpolate between rank counts at the same size. Beyond the ends, extrapolate the
    last section.
    """
    rows, column = _series(fitted, asked), "size_bytes"
    if not rows:
        keys = ("system", "collective", "nodes", "dtype", "size_bytes")
        rows, column = [row for row in fitted if all(getattr(row, key) == getattr(asked, key) for key in keys)], "ranks"
    known = sorted((float(getattr(row, column)), row.time_us) for row in rows)
    if len(known) < 2:
        return None
    x, y = np.log(known).T
    at = float(np.log(getattr(asked, column)))
    i = int(np.clip(np.searchsorted(x, at), 1, len(x) - 1))
    return float(np.exp(y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])))


def nearest_table(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Copy the measured times of the most similar system with a shipped table, interpolated where sizes differ.

    The most similar has the nearest compute capability of its GPUs; of two equally near the newer one.
    """
    own = point.scenario.topology.system
    capability = _capability(own) if own else None
    others = [(known, rows) for system, known, rows in _known_tables() if system != own]
    if capability is None or not others:
        return None
    rows = min(others, key=lambda table: (abs(table[0] - capability), -table[0]))[1]
    copied = [dataclasses.replace(row, system=asked.system, dtype=asked.dtype) for row in rows]
    return interpolation(copied, asked, point)


@functools.cache
def _known_tables() -> list[tuple[str, int, list[MeasuredRow]]]:
    """Return system, compute capability and float16 rows of each shipped table of GPUs on NVLink."""
    tables = []
    for path in sorted(yaml_tree.shipped("measured").glob("*_sxm_nccl-[0-9]*.csv")):  # of a release
        rows = [row for row in read_measured(path) if row.dtype == "float16"]
        system = system_of(rows[0].system or "", path)
        tables.append((system, _capability(system) or 0, rows))
    return tables


def _capability(system: str) -> int | None:
    gpu = load_system(system).gpu
    return gpu.compute_capability if gpu else None


def _series(fitted: Sequence[MeasuredRow], asked: MeasuredRow) -> list[MeasuredRow]:
    keys = ("system", "collective", "ranks", "nodes", "dtype")
    return [row for row in fitted if all(getattr(row, key) == getattr(asked, key) for key in keys)]


def from_few_nodes(fitted: Sequence[MeasuredRow], asked: MeasuredRow) -> float | None:
    """Fit a latency for each round and a bandwidth to the fitted rows of the same collective, whatever their ranks.

    The latency grows with the ranks as in a ring, the bytes as `busbw` counts them: what is copied from a text book.
    """
    rows = [row for row in fitted if row.collective == asked.collective]
    if len(rows) < 2:
        return None
    factor = collective(asked.collective).busbw
    times = np.array([row.time_us for row in rows])
    rounds = np.array([row.ranks - 1 for row in rows], float)
    volumes = np.array([float(factor(row.ranks)) * row.size_bytes for row in rows])
    columns = np.stack([1 / times, rounds / times, volumes / times], axis=1)
    (launch, latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)
    volume = float(factor(asked.ranks)) * asked.size_bytes
    return float(max(launch + latency * (asked.ranks - 1) + slope * volume, 1e-3))


def at_size(rows: Sequence[MeasuredRow], size: int) -> float | None:
    """Interpolate between the sizes of a series, linearly in the logarithms of size and time; beyond, extrapolate."""
    known = sorted((float(row.size_bytes), row.time_us) for row in rows if row.size_bytes)
    if len(known) < 2 or not size:
        return None
    x, y = np.log(known).T
    i = int(np.clip(np.searchsorted(x, np.log(size)), 1, len(x) - 1))
    return float(np.exp(y[i - 1] + (y[i] - y[i - 1]) * (np.log(size) - x[i - 1]) / (x[i] - x[i - 1])))


def pytorch(asked: MeasuredRow, point: Point) -> float | None:
    """Return the estimate of PyTorch's compiler, `torch._inductor.comm_analysis`, with the rated bandwidths of the
    system for those of its configuration; None where torch is missing, and for calls that it does not know.
    """
    estimate = compiler_estimate()
    if estimate is None or asked.collective not in ("all_reduce", "all_gather", "reduce_scatter"):
        return None
    system = load_system(point.scenario.topology.system or "")
    rates = [units.parse(rule.bandwidth, "bandwidth") for rule in system.links if rule.kind in ("nvlink", "pcie")]
    outer = units.parse(system.nic.rate, "bandwidth") if system.nic else 0
    return estimate(asked.collective, asked.size_bytes, asked.ranks, max(rates, default=0) / 1e9, outer / 1e9)


RIVALS: Final[Mapping[str, Rival]] = {
    "NCCL's tuner": nccl_tuner,
    "latency-bandwidth fit": latency_bandwidth,
    "spec sheet": spec_sheet,
    "log-log interpolation": interpolation,
    "nearest system's table": nearest_table,
}


def predicted(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> dict[str, float | None]:
    """Return the prediction of each baseline for a row, in us."""
    return {name: rival(fitted, asked, point) for name, rival in RIVALS.items()}
