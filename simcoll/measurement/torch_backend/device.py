"""Read the clock of a device.

CPUs use the monotonic clock, GPUs CUDA events. Both clocks have the same methods, so the same code times both.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final

import torch

READINGS: Final = 200  # readings in a row: enough to see the smallest step of a clock


class HostClock:
    """The monotonic clock of the host; its marks are readings in ns."""

    def settle(self) -> None:
        """Wait until all queued work of the device is done; on CPUs nothing is queued."""

    def read(self) -> Any:
        """Return a mark for the instant at which all work queued so far is done."""
        return time.monotonic_ns()

    def over(self, mark: Any) -> bool:
        """Return whether the device has reached a mark; on CPUs always true."""
        return True

    def between(self, first: Any, second: Any) -> int:
        """Return the ns between two marks that have been reached."""
        return int(second - first)


class EventClock(HostClock):
    """CUDA events on the current stream of a GPU, which need not be the current GPU."""

    def __init__(self, device: torch.device):
        self._device = device

    def settle(self) -> None:
        """Wait until all streams of the GPU are done."""
        torch.cuda.synchronize(self._device)

    def read(self) -> torch.cuda.Event:
        """Return a CUDA event, recorded after all work that is in the stream."""
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
