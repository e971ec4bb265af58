"""The clock of a device: on CPUs the monotonic one, on GPUs CUDA events.

Both are read the same way, so what is timed by them is the same code: `read` marks an instant of the device, `over`
tells whether the device has come to it, `between` how far two marks are apart.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final, Protocol

import torch

READINGS: Final = 200  # in a row, to see the clock's resolution


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
        """The processor does what it is told at once."""

    def read(self) -> int:
        """Now."""
        return time.monotonic_ns()

    def over(self, mark: int) -> bool:
        """It is."""
        return True

    def between(self, first: int, second: int) -> int:
        """Their difference."""
        return second - first


class EventClock:
    """CUDA events on the current stream of a GPU, which need not be the current GPU."""

    def __init__(self, device: torch.device):
        self._device = device

    def settle(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self._device)

    def read(self) -> torch.cuda.Event:
        """An event behind all that the stream was given."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def over(self, mark: torch.cuda.Event) -> bool:
        """Whether the stream has come to it."""
        return bool(mark.query())

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> int:
        """As the GPU has counted; it counts in half microseconds or less."""
        return round(float(first.elapsed_time(second)) * 1e6)


def clock_of(device: torch.device) -> Clock:
    """The clock by which what runs on a device is timed."""
    return EventClock(device) if device.type == "cuda" else HostClock()


def resolution(clock: Clock) -> int:
    """The least distance of two readings that differ, ns; 0 if none do."""
    marks = [clock.read() for _ in range(READINGS)]
    clock.settle()
    steps = (clock.between(a, b) for a, b in itertools.pairwise(marks))
    return min((step for step in steps if step > 0), default=0)
