"""The result of a run: the times of all transfers, or only their sums.

All times are int64 picoseconds from the start of the run, one entry a transfer of the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simcoll.config.arrays import Numbers


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of each transfer and of each of its hops.

    `start` (the channel takes it up), `sent` (its tail has left the source), `arrive` (its tail is there), `end` (after
    the receive side), `complete` (its version can be read): int64 (transfers,). `hop_begin`, `hop_end`: int64 (hops,),
    the interval in which each link of each route serves the transfer, in the program's order of hops. `opened`, `done`:
    int64 (tasks,), when each task of several operations may begin, and when it ends. `way`: int64 (transfers,), with
    changes: the way that each took in the end, to which the hops belong.
    """

    start: Numbers
    sent: Numbers
    arrive: Numbers
    end: Numbers
    complete: Numbers
    hop_begin: Numbers
    hop_end: Numbers
    opened: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    done: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    way: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def makespan_ps(self) -> int:
        """The end of the last transfer, or of the last task if that is later."""
        return int(max(self.end.max(initial=0), self.done.max(initial=0)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timeline):
            return NotImplemented
        return all(np.array_equal(getattr(self, f), getattr(other, f)) for f in self.__dataclass_fields__)

    __hash__ = None  # type: ignore[assignment]  # equal by contents, as lists are; typeshed has a method here


@dataclass(frozen=True, eq=False)
class Totals:
    """The sums of a run.

    `makespan_ps`: when the last transfer has ended; `carried`: the bytes over each link, int64 (links,);
    `bytes_per_rank`: the most that any rank sends; `messages` between two participants, over all loops; `wire_bytes`:
    payload summed over the links it crosses. Local copies count in none but `carried`. `shortcut`: none, replay,
    affine (a replay in which steps that repeat were run as columns), fold, or compose (of the calls of a plan).
    """

    makespan_ps: int
    carried: Numbers
    bytes_per_rank: int
    messages: int
    wire_bytes: int
    shortcut: str
