"""Compute points in this process, in other processes of this machine (loky), or on other machines (Dask).

A worker process imports simcoll anew. So each task carries the algorithms that the user registered, and the contents of
the files that its scenario names.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import simcoll
from simcoll.config import input_files
from simcoll.errors import InputError, SimcollError
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import registry
from simcoll.schedule.registry import Algorithm
from simcoll.units import unboxed

ANSWER_S: Final = 10.0  # seconds in which a scheduler must answer, even on a busy machine
MOST_TASKS: Final = 256  # of a cluster; more points are several per task, because a fast point costs less than its task
SENT_TOGETHER: Final = 32  # tasks: 100,000 points of half a kB are sent in parts of 6 MB; Dask warns of larger ones

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
    cluster: str | None = None,
    begun: Begun = lambda _: None,
) -> Iterator[tuple[int, ResultRow]]:
    """Yield the index and row of every point as rows become ready, from `jobs` processes (-1: one a core) or from Dask.

    Raises InputError for a cluster that cannot be used, SimcollError if workers are lost, and errors of `function`.
    """
    if cluster is not None and points:
        yield from _on_cluster(function, points, cluster, begun)
    elif jobs == 1 or len(points) < 2:
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


# --- a cluster ---


def _on_cluster(
    function: PointFunction, points: Mapping[int, Point], address: str, begun: Begun
) -> Iterator[tuple[int, ResultRow]]:
    try:
        from distributed import KilledWorker, as_completed
    except ImportError:
        raise InputError("--cluster needs Dask", 'pip install "simcoll[cluster]", here and on the workers') from None

    def answer(packed: bytes, shared: bytes, topic: str, version: str) -> list[tuple[int, Any]] | str:
        """Return the index and row of some points, or the reason why this worker cannot compute them. This nested
        function is sent by Dask as code, so that scheduler and worker need no simcoll to receive it."""
        import cloudpickle
        from distributed import get_worker

        try:
            from simcoll import __version__ as own
        except ImportError:
            own = ""
        if own != version:
            return f"the worker {get_worker().address} has {f'simcoll {own}' if own else 'no simcoll'}"
        inputs, function = cloudpickle.loads(shared)
        rows: list[tuple[int, Any]] = []
        for index, point in cloudpickle.loads(packed):
            get_worker().log_event(topic, index)
            rows.append((index, inputs.answer(function, point)))
        return rows

    from uuid import uuid4

    with _client(address) as client:
        topic = f"simcoll-{uuid4().hex}"
        client.subscribe_topic(topic, lambda event: begun(event[1]))
        shared = _packed(SharedInputs.of(points.values()), function)
        known = {"shared": shared, "topic": topic, "version": simcoll.__version__}
        # not joblib's Dask backend: it waits for ever for a task whose worker died
        numbered, each = list(points.items()), 1 + len(points) // MOST_TASKS
        tasks = [_packed(numbered[first : first + each]) for first in range(0, len(numbered), each)]
        futures = client.map(answer, tasks, **known, pure=False, batch_size=SENT_TOGETHER)
        lost: BaseException | None = None
        for future, answered in as_completed(futures, loop=client.loop, with_results=True, raise_errors=False):
            if future.status != "finished":
                lost = _lost(address, future.status, answered)
                if isinstance(answered, tuple) and isinstance(answered[1], KilledWorker):
                    continue  # keep rows of other points, even those that finish later
                raise lost
            if isinstance(answered, str):
                cure = f"install simcoll {simcoll.__version__} where it runs"
                raise InputError(f"--cluster {address}: {answered}", cure)
            yield from answered
        if lost:
            raise lost


@contextmanager
def _client(address: str) -> Iterator[Any]:
    from distributed import Client

    try:
        _knock(address)
        client = Client(address, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or "no answer"
        cure = "give the address that `dask scheduler` prints, e.g. tcp://head-node:8786"
        raise InputError(f"--cluster {address}: {reason}", cure) from None
    import logging

    chatty = "distributed", "distributed.client", "tornado.application", "asyncio"
    loggers = [logging.getLogger(name) for name in chatty]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # they report a lost scheduler by tracebacks
    try:
        with client:
            yield client
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _knock(address: str) -> None:
    """Raise OSError or ValueError if no scheduler listens at `address`; Dask's client might wait for ever."""
    import socket

    from distributed.comm.addressing import get_address_host_port, normalize_address

    address = normalize_address(address)
    where = get_address_host_port(address, strict=True)
    if address.startswith(("tcp://", "tls://")):
        with socket.create_connection(where, timeout=ANSWER_S) as connection:
            greeting = connection.recv(4096) if address.startswith("tcp://") else b"pickle"
            if b"pickle" not in greeting:  # the protocols that a scheduler speaks
                raise ValueError("this address is no Dask scheduler")


def _packed(*values: object) -> bytes:
    """Return values pickled together with the code of the user's algorithms, whose module other machines may lack."""
    import cloudpickle

    entries = (entry for named in registry.ALGORITHMS.values() for entry in named.values())
    homes = {entry.steps.__module__ for entry in entries}
    own = {name for name in homes if name in sys.modules and name.partition(".")[0] not in ("simcoll", "__main__")}
    by_value = [sys.modules[name] for name in own - set(cloudpickle.list_registry_pickle_by_value())]
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(values[0] if len(values) == 1 else values))
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _lost(address: str, status: str, answered: Any) -> BaseException:
    """Return the error to raise for a missing row: the error of its task, or the loss of its worker."""
    error: Any = answered[1] if isinstance(answered, tuple) else answered
    kind = type(error).__name__
    if status == "error" and type(error).__module__.partition(".")[0] != "distributed":
        return cast(BaseException, error)
    died = "the workers of a point died, perhaps because memory ran out"
    reason = died if kind == "KilledWorker" else f"a point was lost ({kind if status == 'error' else status})"
    return SimcollError(f"--cluster {address}: {reason}; finished rows are saved; run the same command again")
