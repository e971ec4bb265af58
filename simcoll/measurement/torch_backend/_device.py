"""Time one device by itself: launches, copies and reductions, by the same code on GPUs and CPUs."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from simcoll.measurement.torch_backend._clock import Clock, HostClock, clock_of, resolution
from simcoll.measurement.torch_backend._tensors import TYPES

SAMPLE_NS: Final = 1_000_000  # a sample lasts 1 ms at least, so that the clock's resolution does not count
MOST: Final = 1000  # repetitions in a sample, so that samples of tiny operations end
WARM: Final = 3  # runs before timing, which load code and caches


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


def _until_known(clock: Clock, run: Callable[[], object], runs: int) -> list[float]:
    """Return the host's time from the start of an operation until it knows the end, in ns."""
    host = HostClock()

    def once() -> float:
        began = host.read()
        run()
        clock.settle()
        return host.read() - began

    for _ in range(WARM):
        once()
    return [statistics.median(once() for _ in range(50)) for _ in range(runs)]


def _queued(clock: Clock, run: Callable[[], object], runs: int) -> list[float]:
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
