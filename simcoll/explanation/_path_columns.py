"""Hold the critical path of a run in columns: its segments, their causes, and the sums by cause."""

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

    `link` (for causes on a link), `rank` (straggler), `transfer` (index in the program; not for computation and
    stragglers) and `task` (computation) are NONE where they do not apply. `then` is the relation to the next segment:
    it belongs to the transfer or task `itself`, or to one that waited for this one's `data`, `channel`, `credit`, at
    the `receiver`, or behind a `task`, a `barrier` or a `blocking` rank; `end` for the last.
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
    """The segments in order of time, as columns of shape (segments,).

    int64 `begin` and `end` in ps; `cause` is a place in CAUSES, `where` a link, rank or task, `transfer` an index or
    NONE, and `via`, a place in VIAS, the relation to the next segment.
    """

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
        """The sum of all segments, in ps: the time of the run."""
        return int((self.end - self.begin).sum())

    def __getitem__(self, selected: slice) -> CriticalPath:
        columns = (self.begin, self.end, self.cause, self.where, self.transfer, self.via)
        return CriticalPath(*(column[selected] for column in columns))

    def __iter__(self) -> Iterator[Segment]:
        names = list(CAUSES)
        columns = (self.begin, self.end, self.cause, self.where, self.transfer, self.via)
        for begin, end, code, where, transfer, via in zip(*(column.tolist() for column in columns), strict=True):
            cause = names[code]
            kinds = (LINKED, ("straggler",), ("computation",))
            link, rank, task = (where if cause in causes else NONE for causes in kinds)
            yield Segment(begin, end, cause, link, rank, transfer, task, VIAS[via])

    def shares(self) -> dict[tuple[str, int], int]:
        """Return the time in ps for each cause and place (link, rank, task or NONE); the longest first."""
        sums: dict[tuple[str, int], int] = {}
        if len(self):
            keys, place = np.unique(np.stack([self.cause, self.where]), axis=1, return_inverse=True)
            took = np.zeros(keys.shape[1], np.int64)
            np.add.at(took, place.ravel(), self.end - self.begin)
            names = list(CAUSES)
            for (code, where), ps in zip(keys.T.tolist(), took.tolist(), strict=True):
                sums[names[code], where] = ps
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def leads(self) -> dict[str, int]:
        """Count each relation by which the path goes on to another transfer or task; the most frequent first."""
        counts = np.bincount(self.via, minlength=len(VIAS)).tolist()
        relations = {
            via: count for via, count in zip(VIAS, counts, strict=True) if count and via not in ("itself", "end")
        }
        return dict(sorted(relations.items(), key=lambda item: -item[1]))

    def by_cause(self) -> dict[str, int]:
        """Return the time in ps for each cause; the longest first."""
        sums: dict[str, int] = {}
        for (cause, _), ps in self.shares().items():
            sums[cause] = sums.get(cause, 0) + ps
        return dict(sorted(sums.items(), key=lambda item: -item[1]))
