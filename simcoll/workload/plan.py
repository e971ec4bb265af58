"""The plan of a workload: its operations, with their ranks, streams and dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Array, distinct

COMPUTE: Final = "compute"  # the stream on which a rank computes
NONE: Final = -1  # no operation


class CollectiveCall(NamedTuple):
    """A collective of some ranks. `nbytes` is the size as nccl-tests counts it. `root` is an index among these ranks.
    If `protocol` is None, the scenario's protocol is used."""

    collective: str
    algorithm: str
    nbytes: int
    root: int = 0
    weights: tuple[object, ...] | None = None
    protocol: str | None = None


class Work(NamedTuple):
    """One operation: a collective (`call`), or a computation of `time_ps` (one time for all ranks, or one for each).

    `before` lists the numbers of earlier operations. A rank waits only for those earlier operations in which it takes
    part.
    """

    name: str
    stream: str
    ranks: tuple[int, ...]
    time_ps: int | tuple[int, ...]
    call: CollectiveCall | None
    before: tuple[int, ...]


class WorkloadPlan:
    """Operations on `n` ranks, in the order of their launch.

    On each rank, operations of one stream run one after another in that order. Operations of different streams run at
    the same time, unless one waits for the other (`after`). An operation is launched after those that it waits for.
    """

    def __init__(self, n: int):
        self.n = n
        self.works: list[Work] = []
        self._last: dict[str, Array] = {}  # stream -> number of the newest operation of each rank, or NONE
        self._all = tuple(range(n))

    def compute(
        self,
        name: str,
        time_ps: int | Sequence[int],
        *,
        ranks: Iterable[int] | None = None,
        after: Iterable[int] = (),
        stream: str = COMPUTE,
    ) -> int:
        """Add a computation of some ranks (default: all). Return its number, for the `after` of later operations."""
        time = time_ps if isinstance(time_ps, int) else tuple(time_ps)
        return self._add(name, stream, ranks, time, None, after)

    def call(
        self,
        name: str,
        call: CollectiveCall,
        *,
        stream: str,
        ranks: Iterable[int] | None = None,
        after: Iterable[int] = (),
    ) -> int:
        """Add a collective of some ranks (default: all). Return its number, for the `after` of later operations."""
        return self._add(name, stream, ranks, 0, call, after)

    def _add(
        self,
        name: str,
        stream: str,
        ranks: Iterable[int] | None,
        time_ps: int | tuple[int, ...],
        call: CollectiveCall | None,
        after: Iterable[int],
    ) -> int:
        members, number = self._all if ranks is None else tuple(ranks), len(self.works)
        where = slice(None) if members is self._all or members == self._all else np.array(members, np.int64)
        before = set(after)
        if stream in self._last:
            before |= {*distinct(self._last[stream][where]).tolist()}
        else:
            self._last[stream] = np.full(self.n, NONE)
        self.works.append(Work(name, stream, members, time_ps, call, tuple(sorted(before - {NONE}))))
        self._last[stream][where] = number
        return number

    def last(self, rank: int) -> int:
        """Return the number of a rank's last computation. Raises KeyError if it has none."""
        if COMPUTE not in self._last or self._last[COMPUTE][rank] == NONE:
            raise KeyError(rank)
        return int(self._last[COMPUTE][rank])

    def computed_ps(self) -> list[int]:
        """Return the total computation time of each rank, in ps."""
        totals = np.zeros(self.n, np.int64)
        for work in self.works:
            if work.call is None:
                totals[slice(None) if work.ranks is self._all else list(work.ranks)] += work.time_ps
        found: list[int] = totals.tolist()
        return found
