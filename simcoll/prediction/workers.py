"""Compute points in this process, or in other processes of this machine (loky).

A worker process imports simcoll anew. So each task carries the algorithms that the user registered, and the contents of
the files that its scenario names.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from simcoll.config import input_files
from simcoll.errors import InputError, SimcollError
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import registry
from simcoll.schedule.registry import Algorithm
from simcoll.units import unboxed

PointFunction = Callable[[Point], ResultRow]
Begun = Callable[[int], None]  # called with the index of each point that a worker begins


def check_jobs(jobs: object) -> None:
    """Raise InputError if `jobs` is not a number of processes: 1, 2, … or -1."""
    jobs = unboxed(jobs)
    if not isinstance(jobs, int) or (jobs < 1 and jobs != -1):
        raise InputError(f"--jobs {jobs!r} means nothing", "give 1, 2, … or -1 for all cores")


def compute(
    function: PointFunction,
    points: Mapping[int, Point],
    jobs: int = 1,
    begun: Begun = lambda _: None,
) -> Iterator[tuple[int, ResultRow]]:
    """Yield the index and row of every point as rows become ready, from `jobs` processes (-1: one a core). Raises
    SimcollError if a process is lost, and errors of `function`."""
    if jobs == 1 or len(points) < 2:
        for index, point in points.items():
            begun(index)
            yield index, function(point)
    else:
        yield from _in_processes(function, points, jobs, begun)


@dataclass(frozen=True)
class SharedInputs:
    """The data that all tasks need: the user's registered algorithms by collective and name, and contents of files."""

    algorithms: Mapping[str, Mapping[str, Algorithm]]
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, points: Iterable[Point]) -> SharedInputs:
        """Return the shared data of these points; they are sent once for many tasks."""
        alike = {(id(each.topology), each.profile, each.algorithm): each for each in (p.scenario for p in points)}
        files: dict[str, bytes] = {}
        for scenario in alike.values():
            files |= input_files.to_carry(scenario.files())
        return cls(registry.ALGORITHMS, files)

    def answer(self, function: PointFunction, point: Point) -> ResultRow:
        """Return the row of a point, computed by `function` with these data; called in the worker."""
        registry.ALGORITHMS.update({collective: dict(named) for collective, named in self.algorithms.items()})
        with input_files.carrying(self.files):
            return function(point)


# --- processes of this machine ---


def _in_processes(
    function: PointFunction, points: Mapping[int, Point], jobs: int, begun: Begun
) -> Iterator[tuple[int, ResultRow]]:
    from joblib import Parallel, delayed  # only a parallel run pays for the import
    from joblib.externals.loky import BrokenProcessPool

    def handed_out() -> Iterator[Any]:
        shared, parent = SharedInputs.of(points.values()), os.getpid()
        for index, point in points.items():
            begun(index)
            yield delayed(_in_process)(index, point, shared, function, parent)

    # joblib sends as many points at a time as take a fraction of a second: sending a fast point costs more than
    # computing it, and a slow point must not wait in one process while another is idle.
    few = min(jobs, len(points)) if jobs > 0 else jobs
    run = Parallel(n_jobs=few, return_as="generator_unordered", batch_size="auto", pre_dispatch="n_jobs")
    try:
        with _uninterrupted():
            rows = run(handed_out())
        yield from rows
    except BrokenProcessPool:
        raise SimcollError("a worker process died, perhaps because memory ran out; take fewer --jobs, or 1") from None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Make processes that start in this context ignore Ctrl-C, which a terminal sends to all processes. Their parent
    process ends them, so that they print no error."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _in_process(
    index: int, point: Point, shared: SharedInputs, function: PointFunction, parent: int
) -> tuple[int, ResultRow]:
    _end_with(parent)
    return index, shared.answer(function, point)


@functools.cache
def _end_with(parent: int) -> None:
    """End this process as soon as the process `parent` is gone: a worker of loky would wait for it for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
