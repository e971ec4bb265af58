"""Connect the ranks of a real run, compare their clocks, and time runs.

Ranks agree on a start time in the near future, and all begin then. So times do not depend on how ranks leave a barrier.
Ranks on one host share the monotonic clock; ranks on several hosts first compare their clocks. On CPUs a run lasts
until the last rank is done. On GPUs, CUDA events measure each rank's run, and the slowest rank counts.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # one per running kernel: ranks that share it share the clock
SPIN_NS: Final = 150_000  # a sleeping process wakes up to this much late, so the last part of a wait spins
MARGIN_NS: Final = (100_000, 10_000_000)  # least and greatest time from the agreement to the agreed start
TRIPS: Final = 16  # round trips for a comparison of clocks; the quickest met no other traffic
TRIALS: Final = 30  # number of empty runs, whose median counts
READINGS: Final = 200  # readings in a row: enough to see the smallest step of a clock
COMING: Final = timedelta(seconds=180)  # time to import torch on a busy machine, as in `launcher.BEGIN_S`
WATCHDOG_S: Final = 30.0  # torch's time-out is this much longer than simcoll's, which can name the transfer


def _stuck() -> None:
    raise RuntimeError("the GPU did not finish a run within the time-out")


class Timing(NamedTuple):
    """One run on one rank, in ns: the time from the agreed start to its end, and how late the rank began."""

    duration: int
    late: int


def _between(first: torch.cuda.Event, second: torch.cuda.Event) -> int:
    """Return the ns that the GPU counted between two events, in steps of at most half a microsecond."""
    return round(float(first.elapsed_time(second)) * 1e6)


class Session:
    """A rank's membership in a run; a context manager that leaves the process group at its end.

    `backend` is `gloo` or `nccl`, `store` comes from `meeting`. `turn` is the number of the launch, because ranks that
    stay for several launches connect anew for each.
    """

    def __init__(self, backend: str, rank: int, world: int, local: int, store: Any, timeout_s: float, turn: int = 0):
        self.backend, self.rank, self.world, self.timeout_s = backend, rank, world, timeout_s
        torch.set_num_threads(1)
        on_gpu = backend == "nccl"
        self.device = torch.device("cuda", local % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else backend,
            store=dist.PrefixStore(f"launch-{turn}", store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_s + (WATCHDOG_S if on_gpu else 0)),
        )
        if on_gpu:  # NCCL connects at its first call, in which all ranks must take part
            dist.all_reduce(torch.zeros(1, device=self.device))
            torch.cuda.synchronize(self.device)
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(world)): None}
        boot = BOOT.read_bytes() if BOOT.exists() else os.urandom(16)
        self.one_host = len(set(self.gather([int.from_bytes(hashlib.sha256(boot).digest()[:7], "big")]))) == 1
        self._offset = Offset(0, 0)
        self.compare_clocks()
        self._margin = MARGIN_NS[0]
        self._margin = self._needed_margin()

    @property
    def exact(self) -> bool:
        """Whether runs are timed from the agreed start of all ranks (on CPUs), and not from each rank's own start."""
        return bool(self.device.type == "cpu")

    @property
    def doubt(self) -> int:
        """By how many ns this rank's start may differ from the agreed start, because hosts' clocks differ."""
        return self._offset.doubt

    def compare_clocks(self) -> None:
        """Measure this host's clock against rank 0's. Repeat this often: clocks drift by a few us in a second."""
        if not self.one_host:
            self._offset = compared_clocks(self.rank, self.world)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # after an error peers may be gone, and an orderly exit would wait for them
            dist.destroy_process_group()

    def group(self, members: Sequence[int]) -> Any:
        """Return the process group of `members`, made once. All ranks must call this for all groups in one order."""
        key = tuple(members)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(key))
        return self._groups[key]

    def gather(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the `values` of every rank, on every rank."""
        mine = torch.tensor(values, dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine)
        return [tuple(row.tolist()) for row in everyone]

    def timed(self, run: Callable[[], None], stuck: Callable[[], None] = _stuck) -> Timing:
        """Time one run that all ranks begin together. If a GPU does not finish in time, `stuck` must raise."""
        appointed = self._meet()
        if self.exact:
            began = time.monotonic_ns()
            run()
            return Timing(time.monotonic_ns() - appointed, began - appointed)
        torch.cuda.synchronize(self.device)
        first = self._event()
        run()
        last = self._event()
        deadline = time.monotonic() + self.timeout_s
        while not last.query():
            if time.monotonic() > deadline:
                stuck()
        return Timing(_between(first, last), 0)

    def _event(self) -> torch.cuda.Event:
        """Return a CUDA event, recorded after all work in the stream of the rank's GPU."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def overhead(self) -> tuple[int, int]:
        """Return the time of an empty run (slowest rank, median over TRIALS) and the clock's resolution, in ns."""
        empty = [max(t for (t,) in self.gather([self.timed(lambda: None).duration])) for _ in range(TRIALS)]
        return statistics.median_high(empty), self._resolution()

    def _resolution(self) -> int:
        """Return the least distance between two different readings of the clock, in ns; 0 if all readings are equal."""
        if self.exact:
            times = [time.monotonic_ns() for _ in range(READINGS)]
            steps = [b - a for a, b in itertools.pairwise(times)]
        else:
            events = [self._event() for _ in range(READINGS)]
            torch.cuda.synchronize(self.device)
            steps = [_between(a, b) for a, b in itertools.pairwise(events)]
        return min((step for step in steps if step > 0), default=0)

    def _meet(self) -> int:
        """Agree with all ranks on a start soon, and wait for it; return the start on this host's clock, in ns."""
        ahead = torch.tensor(self._now() + self._margin)
        dist.all_reduce(ahead, op=dist.ReduceOp.MAX)
        appointed = int(ahead) + self._offset.ahead
        if (rest := appointed - time.monotonic_ns() - SPIN_NS) > 0:
            time.sleep(rest / 1e9)
        while time.monotonic_ns() < appointed:
            pass
        return appointed

    def _now(self) -> int:
        """Return the time of rank 0's clock, in ns."""
        return time.monotonic_ns() - self._offset.ahead

    def _needed_margin(self) -> int:
        """Return three times the median delay until the slowest rank learns of an agreed start, in ns."""
        heard = []
        for _ in range(TRIALS):
            last = torch.tensor(self._now())
            dist.all_reduce(last, op=dist.ReduceOp.MAX)
            heard.append(self._now() - int(last))
        agreed = max(t for (t,) in self.gather([3 * statistics.median_high(heard)]))
        return min(max(agreed, MARGIN_NS[0]), MARGIN_NS[1])

    def software(self) -> dict[str, str]:
        """Return columns of a measured table: the library, its versions, and a GPU's name."""
        columns = {"library": self.backend, "library_version": f"torch {torch.__version__}", "torch": torch.__version__}
        if self.device.type == "cuda":
            columns["library_version"] = ".".join(map(str, torch.cuda.nccl.version()))
            columns["device"] = torch.cuda.get_device_name(self.device)
        return columns


def meeting(meet: str, rank: int, world: int) -> Any:
    """Connect to torch's store at a URL of `torch.distributed`; return it after all ranks have connected.

    Ranks may be slow to import torch; without this wait the delay would count as that of a transfer.
    """
    store, _, _ = next(dist.rendezvous(meet, rank, world, timeout=COMING))
    if store.add("come", 1) == world:
        store.set("all", "here")
    store.wait(["all"], COMING)
    return store


def gpus() -> int:
    """Return the number of GPUs that torch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


# --- clocks of several hosts ---


class Trip(NamedTuple):
    """Clock readings of a round trip to rank 0, in ns: `sent` and `back` by the own clock, the others by rank 0's."""

    sent: int
    came: int
    answered: int
    back: int

    @property
    def under_way(self) -> int:
        """The time in ns that both messages of the round trip took together."""
        return (self.back - self.sent) - (self.answered - self.came)


class Offset(NamedTuple):
    """How far this rank's clock is ahead of rank 0's (negative: behind), and the error of this at most, in ns."""

    ahead: int
    doubt: int


def offset(trips: Sequence[Trip]) -> Offset:
    """Return the difference of two clocks, computed from the quickest round trip.

    >>> offset([Trip(sent=1000, came=30, answered=40, back=1050)])
    Offset(ahead=990, doubt=20)
    """
    best = min(trips, key=lambda trip: trip.under_way)
    return Offset((best.sent + best.back - best.came - best.answered) // 2, -(-best.under_way // 2))


def compared_clocks(rank: int, world: int) -> Offset:
    """Return the offset of this rank's clock from rank 0's. All ranks must call this; they compare one after another.

    A message goes to rank 0's host and back. Both transfers take at least 0 ns, so the error of the clocks' difference
    is at most half of their total time (Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989).
    """
    mine, answer = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    if rank:
        trips = []
        for _ in range(TRIPS):
            sent = time.monotonic_ns()
            dist.send(mine, 0)
            dist.recv(answer, 0)
            back = time.monotonic_ns()
            trips.append(Trip(sent, int(answer[0]), int(answer[1]), back))
        return offset(trips)
    for peer in range(1, world):
        for _ in range(TRIPS):
            dist.recv(mine, peer)
            came = time.monotonic_ns()
            dist.send(torch.tensor([came, time.monotonic_ns()]), peer)
    return Offset(0, 0)
