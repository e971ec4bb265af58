"""The result of a run: the times of all transfers, or only their sums.

All times are int64 picoseconds from the start of the run, one entry a transfer of the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Numbers


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times in ps of each transfer and of each of its hops.

    Columns int64 (transfers,): `start`, when the channel begins the transfer; `sent`, when its tail has left the
    source; `arrive`, when its tail has arrived; `end`, after the receive side; `complete`, when later transfers may
    read what it wrote. `hop_begin`, `hop_end`, int64 (hops,): the interval in which a link serves a transfer, in the
    order of `Program.hops`. `opened`, `done`, int64 (tasks,): when each task may begin, and when it ends. `way`, int64
    (transfers,), only with changes: the route that each transfer took in the end, to which its hops belong.
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

    `makespan_ps`: when the last transfer has ended. `carried`: the bytes over each link, int64 (links,).
    `bytes_per_rank`: the most bytes that any rank sends. `messages`: the transfers between two participants, over all
    loops. `wire_bytes`: the payload, each byte counted once for every link it crosses. Local copies count only in
    `carried`. `shortcut`: `none`, `replay`, `affine` (a replay that ran repeated steps as columns), or `compose` (from
    separate runs of a plan's calls).
    """

    makespan_ps: int
    carried: Numbers
    bytes_per_rank: int
    messages: int
    wire_bytes: int
    shortcut: str


class CallEnds(NamedTuple):
    """When a call ends, in ps. `done`, (ranks,): when each rank has sent and received everything. By link, (links,):
    when its `first` and `last` message arrive, and when it is `free` again; NEVER, −NEVER and −NEVER for a link without
    messages. `over`: when the whole call has ended."""

    done: Numbers
    first: Numbers
    last: Numbers
    free: Numbers
    over: int


class CallSums(NamedTuple):
    """The traffic of a call: the bytes over each link, (links,); the bytes that each rank sends, (ranks,); the number
    of messages; and the payload bytes summed over the links that they cross."""

    carried: Numbers
    sent: Numbers
    messages: int
    wire_bytes: int
