"""The ranks of a run together: their process group, their clock, and what is timed by it.

On CPUs a run is timed by the monotonic clock. Ranks of one host share it, so they agree on an instant a little ahead,
all begin then, and a run lasts until the last of them is done: no rank's way out of a barrier counts. Ranks of several
hosts begin when they leave a barrier, and the longest of them counts. On GPUs CUDA events stand around the run, and the
longest rank counts.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # one a running kernel: who shares it shares the clock
SPIN_NS: Final = 150_000  # a sleeping process wakes later than it wished by less than this
MARGIN_NS: Final = (100_000, 10_000_000)  # the least and most that an appointment lies ahead
TRIALS: Final = 30
COMING: Final = timedelta(seconds=180)


class Timing(NamedTuple):
    """One run on one rank, ns: how long, counted from the agreed start, and how late the rank began."""

    duration: int
    late: int


class Session:
    """A rank's membership in a run; a context manager, as the process group must be left in the end.

    `backend` is gloo or nccl, `meet` the URL of `torch.distributed.init_process_group` at which the ranks meet.
    """

    def __init__(self, backend: str, rank: int, world: int, local: int, meet: str, timeout_s: float):
        self.backend, self.rank, self.world, self.timeout_s = backend, rank, world, timeout_s
        torch.set_num_threads(1)
        on_gpu = backend == "nccl"
        self.device = torch.device("cuda", local % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else backend,
            store=_together(meet, rank, world),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_s),
        )
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(world)): None}
        boot = BOOT.read_bytes() if BOOT.exists() else os.urandom(16)
        self.one_host = len(set(self.gather([int.from_bytes(hashlib.sha256(boot).digest()[:7], "big")]))) == 1
        self._margin = MARGIN_NS[0]
        self._margin = self._needed_margin()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # else peers may be gone, and leaving in order would wait for them
            dist.destroy_process_group()

    def group(self, members: Sequence[int]) -> Any:
        """The process group of some ranks, made once; all ranks must ask for the same groups in the same order."""
        key = tuple(members)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(key))
        return self._groups[key]

    def gather(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        """The numbers of every rank, on every rank."""
        mine = torch.tensor(values, dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine)
        return [tuple(row.tolist()) for row in everyone]

    def timed(self, run: Callable[[], None], stuck: Callable[[], None] = lambda: None) -> Timing:
        """Run once, all ranks beginning together. `stuck` is called when a GPU does not finish in time, and raises."""
        appointed = self._meet()
        if self.device.type == "cuda":
            return self._timed_on_gpu(run, stuck)
        began = time.monotonic_ns()
        run()
        ended = time.monotonic_ns()
        if not self.one_host:
            return Timing(ended - began, 0)
        return Timing(ended - appointed, began - appointed)

    def overhead(self) -> tuple[int, int]:
        """What is measured when nothing is run (median over some runs, slowest rank), and the clock's resolution; ns."""
        empty = [max(t for (t,) in self.gather([self.timed(lambda: None).duration])) for _ in range(TRIALS)]
        ticks = [time.monotonic_ns() for _ in range(1000)]
        return statistics.median_high(empty), min((b - a for a, b in zip(ticks, ticks[1:], strict=False) if b > a), default=0)

    def _meet(self) -> int:
        """Wait for everyone; return the instant at which all begin (where there is no common clock: none)."""
        ahead = torch.tensor(time.monotonic_ns() + self._margin)
        dist.all_reduce(ahead, op=dist.ReduceOp.MAX)
        appointed = int(ahead)
        if not self.one_host:
            return 0
        if (rest := appointed - time.monotonic_ns() - SPIN_NS) > 0:
            time.sleep(rest / 1e9)
        while time.monotonic_ns() < appointed:
            pass
        return appointed

    def _needed_margin(self) -> int:
        """Three times what the slowest rank mostly takes to hear of an appointment once everyone has come."""
        if not self.one_host:
            return 0
        heard = []
        for _ in range(TRIALS):
            last = torch.tensor(time.monotonic_ns())
            dist.all_reduce(last, op=dist.ReduceOp.MAX)
            heard.append(time.monotonic_ns() - int(last))
        agreed = max(t for (t,) in self.gather([3 * statistics.median_high(heard)]))
        return min(max(agreed, MARGIN_NS[0]), MARGIN_NS[1])

    def _timed_on_gpu(self, run: Callable[[], None], stuck: Callable[[], None]) -> Timing:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        start.record()
        run()
        end.record()
        deadline = time.monotonic() + self.timeout_s
        while not end.query():
            if time.monotonic() > deadline:
                stuck()
        return Timing(round(start.elapsed_time(end) * 1e6), 0)

    def software(self) -> dict[str, str]:
        """Library and versions: columns of a measured table."""
        said = {"library": self.backend, "library_version": f"torch {torch.__version__}", "torch": torch.__version__}
        if self.device.type == "cuda":
            said["library_version"] = ".".join(map(str, torch.cuda.nccl.version()))
            said["device"] = torch.cuda.get_device_name(self.device)
        return said


def _together(meet: str, rank: int, world: int) -> Any:
    """torch's store, once all ranks have come: some are slow to import torch, which no transfer is to be blamed for."""
    store, _, _ = next(dist.rendezvous(meet, rank, world, timeout=COMING))
    if store.add("come", 1) == world:
        store.set("all", "here")
    store.wait(["all"], COMING)
    return store


def gpus() -> int:
    """How many GPUs torch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
