"""What others would have predicted: simple ways to tell the time of a row from rows that were fitted, or from none.

Each is a function from the fitted rows and the row that is asked for to a time in us, None where it has nothing to say.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from simcoll.accuracy.studies.study_file import system_of
from simcoll.config import yaml_tree
from simcoll.errors import InputError, RefusedError
from simcoll.formats.measured import MeasuredRow, read_measured
from simcoll.nccl import tuner
from simcoll.nccl.communicator import communicator
from simcoll.nccl.tuner_constants import COLLECTIVES, nearest
from simcoll.prediction.predict import topology_of
from simcoll.scenario.scenario import Point
from simcoll.schedule.collectives import collective
from simcoll.topology.systems import load_system

Rival = Callable[[Sequence[MeasuredRow], MeasuredRow, Point], float | None]


def nccl_tuner(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """What NCCL's own tuner reckons with for its choice; it knows no launch."""
    name = next((known for known in COLLECTIVES if known == asked.collective), None)
    system = point.scenario.topology.system
    if name is None or system is None:
        return None
    try:
        told = communicator(load_system(system), asked.nodes or 1, asked.ranks)
        choice = tuner.choose(tuner.table(told, nearest(asked.library_version or "")), name, asked.size_bytes)
    except (InputError, RefusedError):
        return None
    return choice.time_us if choice else None


def latency_bandwidth(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """A latency and a bandwidth, fitted to the rows of the same collective and ranks by their relative errors."""
    rows = _series(fitted, asked)
    if len(rows) < 2:
        return None
    times = np.array([row.time_us for row in rows])
    sizes = np.array([row.size_bytes for row in rows], float)
    columns = np.stack([1 / times, sizes / times], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)
    return float(max(latency + slope * asked.size_bytes, 1e-3))


def spec_sheet(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """The bytes that have to cross a GPU's link, over its rated bandwidth."""
    rated = topology_of(point.scenario.model_copy(update={"profile": "ideal"}))
    fastest = int(rated.bandwidths[list(rated.route(*rated.ranks[:2]))].min())
    return float(collective(asked.collective).busbw(asked.ranks)) * asked.size_bytes / fastest * 1e6


def interpolation(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Between the fitted sizes of the series, linearly in the logarithms of size and time; of a series of which nothing
    was fitted, between rank counts of the same size. Beyond, as at the end."""
    rows, column = _series(fitted, asked), "size_bytes"
    if not rows:
        keys = ("system", "collective", "nodes", "dtype", "size_bytes")
        rows, column = [row for row in fitted if all(getattr(row, key) == getattr(asked, key) for key in keys)], "ranks"
    told = sorted((float(getattr(row, column)), row.time_us) for row in rows)
    if len(told) < 2:
        return None
    x, y = np.log(told).T
    at = float(np.log(getattr(asked, column)))
    i = int(np.clip(np.searchsorted(x, at), 1, len(x) - 1))
    return float(np.exp(y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])))


def nearest_table(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """What was measured of the nearest system whose table is shipped, by the compute capability of its GPUs, of two the
    newer one: copied, and interpolated where that table has other sizes."""
    own = point.scenario.topology.system
    capability = _capability(own) if own else None
    others = [(known, rows) for system, known, rows in _known_tables() if system != own]
    if capability is None or not others:
        return None
    rows = min(others, key=lambda one: (abs(one[0] - capability), -one[0]))[1]
    copied = [dataclasses.replace(row, system=asked.system, dtype=asked.dtype) for row in rows]
    return interpolation(copied, asked, point)


@functools.cache
def _known_tables() -> list[tuple[str, int, list[MeasuredRow]]]:
    """System, compute capability and float16 rows of the shipped tables of GPUs on NVLink."""
    found = []
    for path in sorted(yaml_tree.shipped("measured").glob("*_sxm_*.csv")):
        rows = [row for row in read_measured(path) if row.dtype == "float16"]
        system = system_of(rows[0].system or "", path)
        found.append((system, _capability(system) or 0, rows))
    return found


def _capability(system: str) -> int | None:
    gpu = load_system(system).gpu
    return gpu.compute_capability if gpu else None


def _series(fitted: Sequence[MeasuredRow], asked: MeasuredRow) -> list[MeasuredRow]:
    keys = ("system", "collective", "ranks", "nodes", "dtype")
    return [row for row in fitted if all(getattr(row, key) == getattr(asked, key) for key in keys)]


RIVALS: Final[Mapping[str, Rival]] = {
    "NCCL's tuner": nccl_tuner,
    "latency-bandwidth fit": latency_bandwidth,
    "spec sheet": spec_sheet,
    "log-log interpolation": interpolation,
    "nearest system's table": nearest_table,
}


def predicted(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> dict[str, float | None]:
    """What each makes of a row, in us."""
    return {name: rival(fitted, asked, point) for name, rival in RIVALS.items()}
