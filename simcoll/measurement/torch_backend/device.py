"""Read the clock of a device, and time one device by itself: launches, copies and reductions.

The clock of CPUs is the monotonic one, that of GPUs CUDA events. Both have the same methods, so the same code times
both.
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

SAMPLE_NS: Final = 1_000_000  # a sample lasts 1 ms at least, so that the clock's resolution does not count
MOST: Final = 1000  # repetitions in a sample, so that samples of tiny operations end
READINGS: Final = 200  # in a row: enough to see the smallest step of a clock
WARM: Final = 3  # runs before timing, which load code and caches


class HostClock:
    """The monotonic clock: a mark is its reading in ns."""

    def settle(self) -> None:
        """Wait until the device has nothing left to do; the processor has nothing queued."""

    def read(self) -> Any:
        """Mark the instant at which all that the device was given so far is done."""
        return time.monotonic_ns()

    def over(self, mark: Any) -> bool:
        """Whether a mark has been reached; a reading is always in the past."""
        return True

    def between(self, first: Any, second: Any) -> int:
        """Return the ns from one mark that has been reached to another."""
        return int(second - first)


class EventClock(HostClock):
    """CUDA events on the current stream of a GPU, which need not be the current GPU."""

    def __init__(self, device: torch.device):
        self._device = device

    def settle(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self._device)

    def read(self) -> torch.cuda.Event:
        """Record an event behind everything that the stream was given."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def over(self, mark: torch.cuda.Event) -> bool:
        """Whether the stream has come to the event."""
        return bool(mark.query())

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> int:
        """Return the time that the GPU has counted, in steps of half a microsecond or less."""
        return round(float(first.elapsed_time(second)) * 1e6)


def clock_of(device: torch.device) -> HostClock:
    """Return the clock that times work on a device."""
    return EventClock(device) if device.type == "cuda" else HostClock()


def resolution(clock: HostClock) -> int:
    """Return the least distance between two readings that differ, in ns; 0 if none do."""
    marks = [clock.read() for _ in range(READINGS)]
    clock.settle()
    steps = (clock.between(a, b) for a, b in itertools.pairwise(marks))
    return min((step for step in steps if step > 0), default=0)


# --- operations of one device ---


class Sample(NamedTuple):
    """The times of one operation, in ns, each the mean over a sample of many."""

    operation: str
    dtype: str
    nbytes: int
    times: list[float]


def samples(device: str, dtypes: Sequence[str], sizes: Sequence[int], runs: int) -> Iterator[Sample]:
    """Yield samples of everything that is measured on a device (`cuda`, `cuda:1`, `cpu`), each with `runs` times.

    `launch`: start something tiny, until the host knows that it is done. `launch_queued`: the same, one after the
    other, time of each. `copy`: b = a, and `reduce`: b += a, for each size in bytes, one after the other.
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
    """Describe the device, torch and the clock's resolution."""
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU, one thread"
    return {"device": name, "torch": torch.__version__, "clock_ns": str(resolution(clock_of(where)))}


def _until_known(clock: HostClock, run: Callable[[], object], runs: int) -> list[float]:
    """Return the host's time from the start of an operation until it knows the end, in ns."""
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
    """Return the device's time for each of many operations, one after the other, in ns."""

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
    """Use one thread on CPUs, as ranks do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
