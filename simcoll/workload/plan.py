"""The plan of a workload: its operations, with their ranks, streams and dependencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Array, Numbers, distinct
from simcoll.schedule.collectives import ALL, NOTHING, collective
from simcoll.workload.expert_routing import ExpertKernel

COMPUTE: Final = "compute"  # the stream on which a rank computes; also the kind of computations
WAITING: Final = ("host", "copy")  # kinds of time that is neither computation nor communication
NONE: Final = -1  # no operation


class CollectiveCall(NamedTuple):
    """A collective of some ranks. `nbytes` is the size as nccl-tests counts it. `root` is an index among these ranks.
    If `protocol` or `dtype` is None, the scenario's is used."""

    collective: str
    algorithm: str
    nbytes: int
    root: int = 0
    protocol: str | None = None
    tokens: ExpertKernel | None = None
    dtype: str | None = None

    def met(self, came: Numbers) -> Numbers:
        """Return when each rank could leave the call if data took no time, int64 (ranks,) in ps. A rank that arrives at
        `came` (ranks,) waits for the ranks whose data it must get, and for no others."""
        contract, n = collective(self.collective), len(came)
        if not contract.rooted:
            return np.full(n, came.max())
        whose = contract.table(contract.after, n, contract.blocks(n), self.root)[..., 0]
        late = np.select([whose == ALL, whose == NOTHING], [came.max(), 0], came[whose])
        met: Numbers = np.maximum(came, late.max(axis=1))
        return met


def of_tokens(spec: ExpertKernel, collective: str) -> CollectiveCall:
    """Return the call that sends the tokens of `spec` to their experts (`moe_dispatch`), or back (`moe_combine`)."""
    assert spec.moe
    own = ExpertKernel.model_construct(moe=spec.moe, executor=spec.executor, sms=spec.sms)
    return CollectiveCall(collective, "auto", spec.moe.nbytes(collective), tokens=own)


class Work(NamedTuple):
    """One operation: a collective (`call`), or a time of `time_ps` (one for all ranks, or one for each). `kind` is what
    the time is: `compute`, one of WAITING, or the name of a collective that took this time in a recording.

    `before` lists the numbers of earlier operations. A rank waits only for those earlier operations in which it takes
    part.
    """

    name: str
    stream: str
    ranks: tuple[int, ...]
    time_ps: int | tuple[int, ...]
    call: CollectiveCall | None
    before: tuple[int, ...]
    kind: str = COMPUTE

    @property
    def communicates(self) -> bool:
        """Whether the operation is a collective, simulated or of a measured time."""
        return self.call is not None or self.kind not in (COMPUTE, *WAITING)


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
        kind: str = COMPUTE,
    ) -> int:
        """Add a computation, or another time (`kind`, see `Work`), of some ranks (default: all). Return its number, for
        the `after` of later operations."""
        time = time_ps if isinstance(time_ps, int) else tuple(time_ps)
        return self._add(name, stream, ranks, time, None, after, kind)

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
        kind: str = COMPUTE,
    ) -> int:
        members, number = self._all if ranks is None else tuple(ranks), len(self.works)
        where = slice(None) if members is self._all or members == self._all else np.array(members, np.int64)
        before = set(after)
        if stream in self._last:
            before |= {*distinct(self._last[stream][where]).tolist()}
        else:
            self._last[stream] = np.full(self.n, NONE)
        self.works.append(Work(name, stream, members, time_ps, call, tuple(sorted(before - {NONE})), kind))
        self._last[stream][where] = number
        return number

    def computed_ps(self) -> list[int]:
        """Return the total computation time of each rank, in ps, on the stream on which it computes most."""
        totals: dict[str, Array] = {}
        for work in self.works:
            if work.call is None and work.kind == COMPUTE:
                total = totals.setdefault(work.stream, np.zeros(self.n, np.int64))
                total[slice(None) if work.ranks is self._all else list(work.ranks)] += work.time_ps
        found: list[int] = np.max([np.zeros(self.n, np.int64), *totals.values()], axis=0).tolist()
        return found

    def without_communication_ps(self) -> int:
        """Return the time that the plan would take if its calls took no time, in ps: ranks compute, and wait for each
        other, as in the bubble of a pipeline."""
        took = [0 if work.communicates else np.asarray(work.time_ps, np.int64) for work in self.works]
        return self.time_ps(lambda number, met: met + took[number])

    def time_ps(self, end: Callable[[int, Numbers], Numbers]) -> int:
        """Return the time of the plan, in ps. `end` gives when each rank ends an operation, from the operation's number
        and from when each rank could begin, or leave a call whose data take no time."""
        ends: list[tuple[Numbers, Numbers]] = []  # ranks of each operation, and when each of them ends it
        ended, members = np.zeros(self.n, np.int64), dict[int, Numbers]()  # members: by id of tuples, of which few
        for number, work in enumerate(self.works):
            ranks = members.setdefault(id(work.ranks), np.array(work.ranks, np.int64))
            begins = np.zeros(len(ranks), np.int64)
            for before, at in (ends[each] for each in work.before):
                ended[before] = at
                begins = np.maximum(begins, ended[ranks])
                ended[before] = 0
            ends.append((ranks, end(number, work.call.met(begins) if work.call else begins)))
        return max((int(at.max()) for _, at in ends), default=0)
