"""Predict rows by simple methods (baselines), to compare simcoll with: from the fitted rows, or from data sheets alone.

Each baseline is a function of the fitted rows, the row to predict and its point. It returns a time in us, or None if it
cannot predict the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from simcoll.errors import InputError, RefusedError
from simcoll.formats.measured import MeasuredRow
from simcoll.nccl import tuner
from simcoll.nccl.algorithm_names import COLLECTIVES
from simcoll.nccl.communicator import communicator
from simcoll.nccl.tuner_constants import nearest
from simcoll.prediction.placed_topology import topology_of
from simcoll.scenario.scenario_files import Point
from simcoll.schedule.collectives import collective
from simcoll.topology.topology_builder import described

Rival = Callable[[Sequence[MeasuredRow], MeasuredRow, Point], float | None]


def nccl_tuner(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Return the time (us) by which NCCL's tuner compares algorithms; it does not include the launch."""
    name = next((known for known in COLLECTIVES if known == asked.collective), None)
    system = described(point.scenario.topology) if point.scenario.topology.system else None
    if name is None or system is None:
        return None
    try:
        comm = communicator(system, asked.nodes or 1, asked.ranks)
        in_switch = tuner.switch_reduces(point.scenario.dtype, point.scenario.op)
        release = nearest(asked.library_version or "")
        choice = tuner.table(comm, release, switch_reduces=in_switch).choose(name, asked.size_bytes)
    except (InputError, RefusedError):
        return None
    return choice.time_us if choice else None


def latency_bandwidth(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Return a time (us) by a latency and a bandwidth that best fit the rows of this collective and rank count."""
    rows = _series(fitted, asked)
    if len(rows) < 2:
        return None
    times = np.array([row.time_us for row in rows])
    sizes = np.array([row.size_bytes for row in rows], float)
    columns = np.stack([1 / times, sizes / times], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)
    return float(max(latency + slope * asked.size_bytes, 1e-3))  # a fitted latency may be below zero


def spec_sheet(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Return the time (us) of the bytes that must cross a GPU's link, at the link's rated bandwidth."""
    rated = topology_of(point.scenario.model_copy(update={"profile": "one-port"}))
    fastest = int(rated.bandwidths[list(rated.route(*rated.ranks[:2]))].min())
    return float(collective(asked.collective).busbw(asked.ranks)) * asked.size_bytes / fastest * 1e6


def interpolation(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> float | None:
    """Return a time (us) between fitted sizes of the series, interpolated linearly in the logarithms of size and time.

    For a series without fitted rows, interpolate between rank counts at this size. Beyond the ends, extend the last
    section.
    """
    rows, column = _series(fitted, asked), "size_bytes"
    if not rows:
        keys = ("system", "collective", "nodes", "dtype", "size_bytes")
        rows, column = [row for row in fitted if all(getattr(row, key) == getattr(asked, key) for key in keys)], "ranks"
    return on_logarithms([(float(getattr(row, column)), row.time_us) for row in rows], getattr(asked, column))


def _series(fitted: Sequence[MeasuredRow], asked: MeasuredRow) -> list[MeasuredRow]:
    keys = ("system", "collective", "ranks", "nodes", "dtype")
    return [row for row in fitted if all(getattr(row, key) == getattr(asked, key) for key in keys)]


def on_logarithms(known: Sequence[tuple[float, float]], at: float) -> float | None:
    """Return y at x = `at`, interpolated between known (x, y) pairs linearly in the logarithms of both; beyond the ends
    the last section is extended. None for fewer than two pairs."""
    if len(known) < 2:
        return None
    x, y = np.log(sorted(known)).T
    i = int(np.clip(np.searchsorted(x, np.log(at)), 1, len(x) - 1))
    return float(np.exp(y[i - 1] + (y[i] - y[i - 1]) * (np.log(at) - x[i - 1]) / (x[i] - x[i - 1])))


RIVALS: Final[Mapping[str, Rival]] = {
    "NCCL's tuner": nccl_tuner,
    "latency-bandwidth fit": latency_bandwidth,
    "spec sheet": spec_sheet,
    "log-log interpolation": interpolation,
}


def predicted(fitted: Sequence[MeasuredRow], asked: MeasuredRow, point: Point) -> dict[str, float | None]:
    """Return the prediction of each baseline for a row, in us."""
    return {name: rival(fitted, asked, point) for name, rival in RIVALS.items()}
