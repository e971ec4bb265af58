"""Hold the critical path of a run in columns: its segments, their causes, and the sums by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np

from simcoll.config.arrays import Array
from simcoll.engine.timing_model import NONE

Owner = TypeVar("Owner")  # a link, rank or task, or the name of one

CAUSES: Final = {
    "serialisation": "bytes over the link that limits them, in its queue those of their own channel to the same rank",
    "contention": "bytes of other flows before them in a link's queue (fifo), or longer for sharing a link (fair)",
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
VIAS: Final = ("itself", "data", "channel", "credit", "receiver", "link", "task", "barrier", "blocking", "end")


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
        return CriticalPath(*(column[selected] for column in vars(self).values()))

    def __iter__(self) -> Iterator[Segment]:
        names = list(CAUSES)
        columns = (column.tolist() for column in vars(self).values())
        for begin, end, code, where, transfer, via in zip(*columns, strict=True):
            cause = names[code]
            kinds = (LINKED, ("straggler",), ("computation",))
            link, rank, task = (where if cause in causes else NONE for causes in kinds)
            yield Segment(begin, end, cause, link, rank, transfer, task, VIAS[via])

    def shares(self) -> dict[tuple[str, int], int]:
        """Return the time in ps for each cause and place (link, rank, task or NONE); the longest first."""
        keys, place = np.unique(np.stack([self.cause, self.where]), axis=1, return_inverse=True)
        took = np.zeros(keys.shape[1], np.int64)
        np.add.at(took, place.ravel(), self.end - self.begin)
        names = list(CAUSES)
        pairs = [(names[code], where) for code, where in keys.T.tolist()]
        return dict(Counter(dict(zip(pairs, took.tolist(), strict=True))).most_common())

    def leads(self) -> dict[str, int]:
        """Count each relation by which the path goes on to another transfer or task; the most frequent first."""
        counts = np.bincount(self.via, minlength=len(VIAS)).tolist()
        ways = Counter(dict(zip(VIAS, counts, strict=True))).most_common()
        return {via: count for via, count in ways if count and via not in ("itself", "end")}


def by_cause(shares: Mapping[tuple[str, Owner], int]) -> dict[str, int]:
    """Return the time in ps for each cause, of the times for each cause and place; the longest first."""
    sums: Counter[str] = Counter()
    for (cause, _), ps in shares.items():
        sums[cause] += ps
    return dict(sums.most_common())
