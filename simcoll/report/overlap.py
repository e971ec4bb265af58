"""Computation and communication of each rank over a training step, and how much communication computation hides.

The shares are those of Holistic Trace Analysis (https://hta.readthedocs.io): a rank computes, communicates without
computing (exposed), or is idle. Communication at the same time as computation is hidden. A call communicates from the
moment at which the ranks whose data it needs have reached it: before that a rank is idle, as in a pipeline's bubble.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simcoll.prediction.predictions import CALLING, COMPUTING, MEASURED, Prediction, StepPrediction
from simcoll.report.point_trace import rank_names

Interval = tuple[int, int]  # begin and end, in ps


class RankOverlap(NamedTuple):
    """When a rank computes and when it communicates: sorted, disjoint intervals in ps between 0 and `end_ps`."""

    rank: str
    end_ps: int
    computing: tuple[Interval, ...]
    calling: tuple[Interval, ...]

    @property
    def compute_ps(self) -> int:
        """Time in ps in which the rank computes."""
        return _length(self.computing)

    @property
    def hidden_ps(self) -> int:
        """Time in ps in which the rank computes and communicates at once."""
        return _length(self.computing) + _length(self.calling) - _length(union([*self.computing, *self.calling]))

    @property
    def exposed_ps(self) -> int:
        """Time in ps in which the rank communicates and does not compute."""
        return _length(self.calling) - self.hidden_ps

    @property
    def idle_ps(self) -> int:
        """Time in ps in which the rank neither computes nor communicates."""
        return self.end_ps - self.compute_ps - self.exposed_ps

    def __str__(self) -> str:
        parts = (("compute", self.compute_ps), ("exposed communication", self.exposed_ps), ("idle", self.idle_ps))
        shares = ", ".join(f"{name} {ps / (self.end_ps or 1):.1%}" for name, ps in parts)
        called = self.exposed_ps + self.hidden_ps
        return f"{shares}; {self.hidden_ps / called:.1%} of communication is hidden" if called else shares


def summary(ran: Prediction, ranks: Sequence[RankOverlap] | None = None) -> list[str]:
    """Return a line on the rank of a workload that waits longest for communication; empty for a collective."""
    if not isinstance(ran, StepPrediction):
        return []
    worst = max(ranks or overlaps(ran), key=lambda rank: rank.exposed_ps)
    own, step = (f"{ps / (ran.time_ps or 1):.1%}" for ps in (worst.exposed_ps, ran.exposed_ps or 0))
    whole = f"; of the step {step} is exposed, which is all that computations and waiting for them do not fill"
    return [f"# {worst.rank} waits longest for communication: {worst}{whole if step != own else ''}"]


def overlaps(ran: StepPrediction) -> list[RankOverlap]:
    """Return, for each rank of a workload, when it computes and communicates, from the begin and end of its tasks."""
    begins, ends, kinds = ran.timeline.opened.copy(), ran.timeline.done, ran.tasks.kind
    calls = (work.call for work in ran.plan.works if work.call)
    first = 0
    for kind, ranks in zip(ran.tasks.kinds, ran.tasks.ranks, strict=True):
        part = slice(first, first := first + len(ranks))
        if kind == CALLING:
            begins[part] = np.minimum(next(calls).met(begins[part]), ends[part])
    end_ps = int(ends.max(initial=0))
    order = np.argsort(ran.tasks.rank, kind="stable")
    found = []
    counts = np.bincount(ran.tasks.rank, minlength=ran.plan.n)
    for name, tasks in zip(rank_names(ran), np.split(order, np.cumsum(counts)[:-1]), strict=False):
        of_kind = (tasks[np.isin(kinds[tasks], which)] for which in ((COMPUTING,), (CALLING, MEASURED)))
        computing, calling = (union(zip(begins[part].tolist(), ends[part].tolist(), strict=True)) for part in of_kind)
        found.append(RankOverlap(name, end_ps, computing, calling))
    return found


def union(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return sorted, disjoint intervals that cover the same time as the given ones.

    >>> union([(4, 6), (0, 2), (1, 3)])
    ((0, 3), (4, 6))
    """
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        elif end > begin:
            merged.append((begin, end))
    return tuple(merged)


def _length(intervals: Sequence[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)
