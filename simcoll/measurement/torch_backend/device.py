"""Read the clock of a device, and time one device by itself: launches, copies and reductions.

CPUs use the monotonic clock, GPUs CUDA events. Both clocks have the same methods, so the same code times both.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from simcoll.measurement.torch_backend.library_calls import TYPES

SAMPLE_NS: Final = 1_000_000  # a sample lasts at least 1 ms, so that the clock's resolution does not matter
MOST: Final = 1000  # most repetitions in a sample, so that samples of tiny operations end
READINGS: Final = 200  # readings in a row: enough to see the smallest step of a clock
WARM: Final = 3  # runs before timing, to load code and caches


class HostClock:
    """The monotonic clock: a mark is its reading in ns."""

    def settle(self) -> None:
        """Wait until the device has nothing left to do; a processor never has anything queued."""

    def read(self) -> Any:
        """Return a mark of the instant at which all work given to the device so far is done."""
        return time.monotonic_ns()

    def over(self, mark: Any) -> bool:
        """Return whether a mark has been reached; a reading always has."""
        return True

    def between(self, first: Any, second: Any) -> int:
        """Return the ns between two marks that have been reached."""
        return int(second - first)


class EventClock(HostClock):
    """CUDA events on the current stream of a GPU, which need not be the current GPU."""

    def __init__(self, device: torch.device):
        self._device = device

    def settle(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self._device)

    def read(self) -> torch.cuda.Event:
        """Return an event recorded behind everything in the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def over(self, mark: torch.cuda.Event) -> bool:
        """Return whether the stream has reached the event."""
        return bool(mark.query())

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> int:
        """Return the ns that the GPU counted, in steps of at most half a microsecond."""
        return round(float(first.elapsed_time(second)) * 1e6)


def clock_of(device: torch.device) -> HostClock:
    """Return the clock that times work on a device."""
    return EventClock(device) if device.type == "cuda" else HostClock()


def resolution(clock: HostClock) -> int:
    """Return the least distance between two different readings, in ns; 0 if all readings are equal."""
    marks = [clock.read() for _ in range(READINGS)]
    clock.settle()
    steps = (clock.between(a, b) for a, b in itertools.pairwise(marks))
    return min((step for step in steps if step > 0), default=0)


# --- operations of one device ---


class Sample(NamedTuple):
    """The times of one operation, in ns; each is the average over a sample of many repetitions."""

    operation: str
    dtype: str
    nbytes: int
    times: list[float]


def samples(device: str, dtypes: Sequence[str], sizes: Sequence[int], runs: int) -> Iterator[Sample]:
    """Yield samples of all operations on a device (`cuda`, `cuda:1`, `cpu`), each with `runs` times.

    `launch`: from the start of a tiny operation until the host knows that it is done. `launch_queued`: time for each of
    many tiny operations in a row. `copy` (b = a) and `reduce` (b += a) of each size in bytes, many in a row.
    """
    where = torch.device(device)
    clock = clock_of(where)
    with _one_thread():
        for dtype in dtypes:
            cell = torch.zeros(1, dtype=TYPES[dtype], device=where)
            width = cell.element_size()
            yield Sample("launch", dtype, width, _until_known(clock, partial(cell.add_, cell), runs))
            yield Sample("launch_queued", dtype, width, _queued(clock, partial(cell.add_, cell), runs))
            for size in sizes:
                a = torch.zeros(max(1, size // width), dtype=TYPES[dtype], device=where)
                b = torch.zeros_like(a)
                nbytes = a.numel() * width
                yield Sample("copy", dtype, nbytes, _queued(clock, partial(b.copy_, a), runs))
                yield Sample("reduce", dtype, nbytes, _queued(clock, partial(b.add_, a), runs))


def about(device: str) -> dict[str, str]:
    """Return columns: the device's name, torch's version and the clock's resolution in ns."""
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU, one thread"
    return {"device": name, "torch": torch.__version__, "clock_ns": str(resolution(clock_of(where)))}


def _until_known(clock: HostClock, run: Callable[[], object], runs: int) -> list[float]:
    """Return `runs` times from the start of an operation until the host knows its end, in ns."""
    host = HostClock()

    def once() -> float:
        began = host.read()
        run()
        clock.settle()
        return host.between(began, host.read())

    for _ in range(WARM):
        once()
    return [statistics.median(once() for _ in range(50)) for _ in range(runs)]


def _queued(clock: HostClock, run: Callable[[], object], runs: int) -> list[float]:
    """Return `runs` times of the device for one of many operations in a row, in ns."""

    def many(times: int) -> float:
        clock.settle()
        began = clock.read()
        for _ in range(times):
            run()
        ended = clock.read()
        clock.settle()
        return clock.between(began, ended) / times

    single = min(many(1) for _ in range(WARM))
    times = max(1, min(MOST, round(SAMPLE_NS / max(single, 1))))
    return [many(times) for _ in range(runs)]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Use one CPU thread in the context, as ranks do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
