"""The critical path as columns: what a run spends its time on, stretch by stretch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array
from simcoll.engine.timing_model import NONE

CAUSES: Final = {
    "serialisation": "bytes over the slowest link of the way, as if alone there",
    "contention": "waiting for others on a link: in its queue (fifo), or longer for sharing it (fair)",
    "latency": "of the links",
    "o_send": "overhead of the sender",
    "o_recv": "overhead of the receiver",
    "reduction": "of what came, at gamma",
    "gap": "g between two messages of a channel",
    "channel": "bytes at the cap of the channel, where it is less than any link of the way has",
    "local": "a copy on a device without a memory link",
    "computation": "of a task",
    "straggler": "a rank that comes late",
    "fault": "a link that is down or slow for a time; until what was lost with it sets out again, without a link",
}
CODES: Final = {name: code for code, name in enumerate(CAUSES)}
LINKED: Final = ("serialisation", "contention", "fault")  # causes that lie on a link
VIAS: Final = ("itself", "data", "channel", "credit", "receiver", "task", "barrier", "blocking", "end")


class Segment(NamedTuple):
    """A stretch of the path: `begin_ps` to `end_ps`, spent on `cause`.

    `link` (of what lies on one), `rank` (straggler), `transfer` (index in the program; not of computation and
    stragglers), `task` (computation) or NONE. `then` tells how it leads on: the next segment is of the transfer or task
    `itself`, or of one that waited for this one's `data`, `channel`, `credit`, at the `receiver`, or behind a `task`,
    a `barrier` or a `blocking` rank; or there is none (`end`).
    """

    begin_ps: int
    end_ps: int
    cause: str
    link: int
    rank: int
    transfer: int
    task: int
    then: str


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The segments in order of time, as columns (segments,): int64 `begin`, `end` in ps; `cause` (place in CAUSES),
    `where` (link, rank or task), `transfer` or NONE, `via`: how it leads to the next (place in VIAS)."""

    begin: Array
    end: Array
    cause: Array
    where: Array
    transfer: Array
    via: Array

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def total_ps(self) -> int:
        """What the segments add up to: the time of the run."""
        return int((self.end - self.begin).sum())

    def __getitem__(self, some: slice) -> CriticalPath:
        columns = (self.begin, self.end, self.cause, self.where, self.transfer, self.via)
        return CriticalPath(*(column[some] for column in columns))

    def __iter__(self) -> Iterator[Segment]:
        names = list(CAUSES)
        columns = (self.begin, self.end, self.cause, self.where, self.transfer, self.via)
        for begin, end, code, where, transfer, via in zip(*(column.tolist() for column in columns), strict=True):
            cause = names[code]
            link, rank, task = (where if cause in its else NONE for its in (LINKED, ("straggler",), ("computation",)))
            yield Segment(begin, end, cause, link, rank, transfer, task, VIAS[via])

    def shares(self) -> dict[tuple[str, int], int]:
        """What each cause takes in all, in ps, by cause and where (link, rank, task or NONE); most first."""
        found: dict[tuple[str, int], int] = {}
        if len(self):
            keys, place = np.unique(np.stack([self.cause, self.where]), axis=1, return_inverse=True)
            took = np.zeros(keys.shape[1], np.int64)
            np.add.at(took, place.ravel(), self.end - self.begin)
            names = list(CAUSES)
            for (code, where), ps in zip(keys.T.tolist(), took.tolist(), strict=True):
                found[names[code], where] = ps
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def leads(self) -> dict[str, int]:
        """How often each way to lead on takes the path to another transfer or task; most often first."""
        counts = np.bincount(self.via, minlength=len(VIAS)).tolist()
        found = {via: count for via, count in zip(VIAS, counts, strict=True) if count and via not in ("itself", "end")}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def by_cause(self) -> dict[str, int]:
        """What each cause takes in all, in ps; most first."""
        found: dict[str, int] = {}
        for (cause, _), ps in self.shares().items():
            found[cause] = found.get(cause, 0) + ps
        return dict(sorted(found.items(), key=lambda item: -item[1]))
