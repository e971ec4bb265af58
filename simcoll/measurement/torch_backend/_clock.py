"""Read the clock of a device: the monotonic clock for CPUs, CUDA events for GPUs.

Both have the same interface, so the same code times both: `read` marks an instant of the device, `over` says whether
the device has come to it, and `between` returns the time from one mark to another.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final, Protocol

import torch

READINGS: Final = 200  # in a row: enough to see the smallest step of a clock


class Clock(Protocol):
    """Marks instants of a device."""

    def settle(self) -> None:
        """Wait until the device has nothing left to do."""

    def read(self) -> Any:
        """Mark the instant at which all that the device was given so far is done."""

    def over(self, mark: Any) -> bool:
        """Whether a mark has been reached."""

    def between(self, first: Any, second: Any) -> int:
        """ns from one mark that has been reached to another."""


class HostClock:
    """The monotonic clock: a mark is its reading in ns."""

    def settle(self) -> None:
        """Return at once: the processor has nothing queued."""

    def read(self) -> int:
        """Return the time now."""
        return time.monotonic_ns()

    def over(self, mark: int) -> bool:
        """Return True: a reading is always in the past."""
        return True

    def between(self, first: int, second: int) -> int:
        """Return the difference of two readings."""
        return second - first


class EventClock:
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


def clock_of(device: torch.device) -> Clock:
    """Return the clock that times work on a device."""
    return EventClock(device) if device.type == "cuda" else HostClock()


def resolution(clock: Clock) -> int:
    """Return the least distance between two readings that differ, in ns; 0 if none do."""
    marks = [clock.read() for _ in range(READINGS)]
    clock.settle()
    steps = (clock.between(a, b) for a, b in itertools.pairwise(marks))
    return min((step for step in steps if step > 0), default=0)
