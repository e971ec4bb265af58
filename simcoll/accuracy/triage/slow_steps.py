"""Find out why steps are slow, from what ranks recorded: ranks that come late, and calls that take too long.

A rank that comes late to a call makes all others wait, and the network is not slow. So a call's own time is the least
over its ranks: that of the rank which came last. A rank's lateness is how long others waited for it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll import units
from simcoll.accuracy.triage.findings import Evidence, Finding, Where
from simcoll.config.numpy_helpers import Floats, Numbers
from simcoll.formats.measured import MeasuredRow
from simcoll.formats.recordings.events import Group, Recording, What
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.schedule.names import DTYPES

FEWEST: Final = 16  # calls: fewer do not show whether a rank is late as a rule
MOST_KINDS: Final = 32  # distinct calls that are predicted, those with the largest total time
LARGE: Final = 0.1  # share of the recorded time that waiting for one rank must take to be a finding: a convention
MOSTLY: Final = 0.9  # share of calls in which a late rank is the last; of two equal ranks it is below, 99 times of 100
ITS: Final = 2 / 3  # share of all waiting that is for a late rank


class Late(NamedTuple):
    """How late a rank was in the calls of its groups: the mean in us, the share of the recorded time that the others
    waited for it as the last, and in how many of the calls it was the last."""

    rank: int
    late_us: float
    share: float
    last: int
    calls: int


class _Calls(NamedTuple):
    """The finished calls of a group that one rank recorded: (calls,) each."""

    rank: int
    numbers: Numbers
    created: Numbers  # ns
    ended: Numbers  # ns; 0: not recorded
    took: Floats  # us; 0: not recorded


class Timing:
    """The times of the calls of all ranks. `add` the recordings one by one."""

    def __init__(self) -> None:
        self._calls: defaultdict[tuple[object, ...], list[_Calls]] = defaultdict(list)
        self._groups: dict[tuple[object, ...], Group] = {}
        self._whats: dict[tuple[tuple[object, ...], int], What] = {}  # of calls with a measured time
        self.sources: dict[int, str] = {}

    def add(self, recording: Recording) -> None:
        """Take in the finished collectives of a rank; a coalesced call counts once, by its last part."""
        parts = defaultdict[Group, dict[int, Any]](dict)
        for event in recording.events:
            if event.done and not event.p2p:
                parts[event.group][event.number] = event
        for group, by_number in parts.items():
            events = list(by_number.values())
            self._groups.setdefault(group.key, group)
            columns = zip(*((e.number, e.created, e.ended, e.took_us) for e in events), strict=True)
            numbers, created, ended, took = map(np.array, columns)
            self._calls[group.key].append(_Calls(recording.rank or 0, numbers, created, ended, took))
            if took.any():
                for event in events:
                    self._whats.setdefault((group.key, event.number), event.what)
        self.sources.setdefault(recording.rank or 0, recording.source)

    # --- lateness ---

    def lateness(self) -> list[Late]:
        """Return the ranks, the one first for which others waited longest."""
        total: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0, 0])
        for calls in self._calls.values():
            late, span = _lateness(calls)
            if late is None:
                continue
            last = late.argmax(axis=1)
            second = np.median(late, axis=1)
            for column, of_rank in enumerate(calls):
                mine = (last == column) & (late[:, column] > second)
                row = total[of_rank.rank]
                row[0] += float(late[:, column].sum())
                row[1] += float((late[:, column] - second)[mine].sum()) / span if span else 0.0
                row[2] += int(mine.sum())
                row[3] += len(late)
        found = [Late(rank, row[0] / row[3], row[1], int(row[2]), int(row[3])) for rank, row in total.items() if row[3]]
        return sorted(found, key=lambda late: (-late.share, -late.late_us, late.rank))

    def late_rank(self, ranks: Sequence[Late]) -> Finding | None:
        """Return the finding that one rank is late, as a rule or in long stops; None if none stands out."""
        if len(ranks) < 2 or ranks[0].share < LARGE or ranks[0].calls < FEWEST:
            return None
        first, waited = ranks[0], sum(late.share for late in ranks)
        if first.share < ITS * waited or first.last < MOSTLY * first.calls:
            return None
        mean = units.format_duration(1e6 * first.late_us, 3)
        found = Finding.of("late rank", {**first._asdict(), "mean": mean, "share": 100 * first.share})
        shown = (Evidence.of(self.sources[first.rank], None, found.text),)
        return replace(found, where=Where(rank=first.rank), evidence=shown)

    # --- times of calls ---

    def rows(self, per_node: int | None) -> list[MeasuredRow]:
        """Return the measured rows of calls whose times were recorded: of equal calls the median of the least times
        over ranks. `per_node`: ranks on a node, to count the nodes of a group."""
        times = defaultdict[tuple[str, int, int, str | None, int], list[float]](list)
        for key, calls in self._calls.items():
            group = self._groups[key]
            n = len(group.ranks) or group.n or len(calls)
            nodes = group.nodes
            if per_node and not nodes:
                nodes = len({rank // per_node for rank in group.ranks or range(n)})
            least: dict[int, float] = {}
            for of_rank in calls:
                for number, took in zip(of_rank.numbers.tolist(), of_rank.took.tolist(), strict=True):
                    if took > 0:
                        least[number] = min(took, least.get(number, took))
            for number, took in least.items():
                what = self._whats.get((key, number))
                if what and what.collective in COLLECTIVES and n > 1 and (size := what.nbytes(n)):
                    dtype = _TORCH.get(what.dtypes[0]) if what.dtypes else None
                    times[what.collective, n, nodes, dtype, size].append(took)
        longest = sorted(times, key=lambda kind: -sum(times[kind]))[:MOST_KINDS]
        return [_row(*kind, times[kind]) for kind in sorted(longest, key=lambda kind: (kind[0], kind[1], kind[4]))]


_TORCH: Final[Mapping[str, str]] = {row.torch: row.name for row in DTYPES}


def _row(collective: str, n: int, nodes: int, dtype: str | None, size: int, times: Sequence[float]) -> MeasuredRow:
    return MeasuredRow(
        collective=collective, ranks=n, nodes=nodes or None, dtype=dtype, size_bytes=size, runs=len(times),
        time_us=statistics.median(times), timing="least over the ranks of a call",
    )  # fmt: skip


def _lateness(calls: Iterable[_Calls]) -> tuple[Floats | None, float]:
    """Return how late each rank came to each call that all recorded, (calls, ranks) in us; and the recorded time in us.

    With measured durations clocks do not matter: all ranks end a call together, so who took less came later. Else
    lateness follows from when ranks made the call. The offsets of their clocks are the medians of the differences
    between the ends of calls, or without these of the calls themselves; then a rank that is always late by the same
    time is taken for a clock that is ahead.
    """
    ranks = list(calls)
    if len(ranks) < 2:
        return None, 0.0
    numbers, counts = np.unique(np.concatenate([each.numbers for each in ranks]), return_counts=True)
    common = numbers[counts == len(ranks)][1:]  # the first call waits for the start of the job
    if not len(common):
        return None, 0.0
    at = [np.searchsorted(each.numbers, common, sorter=np.argsort(each.numbers)) for each in ranks]
    order = [np.argsort(each.numbers)[where] for each, where in zip(ranks, at, strict=True)]
    created, ended, took = (
        np.stack([getattr(each, name)[where] for each, where in zip(ranks, order, strict=True)], axis=1)
        for name in ("created", "ended", "took")
    )
    stamps = np.where(created > 0, created, ended)
    span = float(np.median(stamps[-1] - stamps[0])) / 1e3
    if (took > 0).all():
        return took.max(axis=1, keepdims=True) - took, span
    reference = ended if (ended > 0).all() else created
    offsets = np.median(reference - np.median(reference, axis=1, keepdims=True), axis=0)
    arrived = (created - created.min()) - offsets
    return (arrived - arrived.min(axis=1, keepdims=True)) / 1e3, span
