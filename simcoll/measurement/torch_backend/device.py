"""What one device takes by itself: to launch something, to copy, to reduce. The same code on a GPU and on a CPU."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from simcoll.measurement.torch_backend.clock import Clock, HostClock, clock_of, resolution
from simcoll.measurement.torch_backend.tensors import TYPES

SAMPLE_NS: Final = 1_000_000  # what a sample lasts at least, so that the clock's resolution does not count
MOST: Final = 1000  # times in a sample
WARM: Final = 3


class Sample(NamedTuple):
    """How long one thing took: `times` (ns), each the mean over a sample of many."""

    what: str
    dtype: str
    nbytes: int
    times: list[float]


def samples(device: str, dtypes: Sequence[str], sizes: Sequence[int], runs: int) -> Iterator[Sample]:
    """Everything that is measured on a device (`cuda`, `cuda:1`, `cpu`), each `runs` times.

    `launch`: something tiny is started, until the host knows that it is done. `launch_queued`: the same, one behind the
    other, for each. `copy`: b = a, and `reduce`: b += a, for each size in bytes, one behind the other.
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
    """The device in words, torch and the clock's resolution."""
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU, one thread"
    return {"device": name, "torch": torch.__version__, "clock_ns": str(resolution(clock_of(where)))}


def _until_known(clock: Clock, run: Callable[[], object], runs: int) -> list[float]:
    """The host's time from the start of one until it is known to be done."""
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
    """The device's time for each of many, one behind the other."""

    def many(times: int) -> float:
        clock.settle()
        began = clock.read()
        for _ in range(times):
            run()
        ended = clock.read()
        clock.settle()
        return clock.between(began, ended) / times

    one = min(many(1) for _ in range(WARM))
    times = max(1, min(MOST, round(SAMPLE_NS / max(one, 1))))
    return [many(times) for _ in range(runs)]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """On CPUs as ranks do it: with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
