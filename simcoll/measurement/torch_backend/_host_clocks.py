"""Compare the clocks of hosts by messages, so that ranks of several hosts can begin at one instant.

A message goes to the host of rank 0 and back. Wherever in between its clock was read, the way there and the way back
each took at least no time: so the difference of the clocks is known to half of the time that both ways took (Cristian,
Probabilistic clock synchronization, Distributed Computing 3, 1989). The quickest of several trips counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

TRIPS: Final = 16  # of which the quickest met no other traffic


class Trip(NamedTuple):
    """Readings in ns: of the own clock at `sent` and `back`, of rank 0's at `came` and `answered`."""

    sent: int
    came: int
    answered: int
    back: int

    @property
    def under_way(self) -> int:
        """Time that both ways took together."""
        return (self.back - self.sent) - (self.answered - self.came)


class Offset(NamedTuple):
    """The time by which the own clock is ahead of rank 0's, and how wrong that may be, in ns."""

    ahead: int
    doubt: int


def offset(trips: Sequence[Trip]) -> Offset:
    """Return the offset that the quickest trip shows.

    >>> offset([Trip(sent=1000, came=30, answered=40, back=1050)])
    Offset(ahead=990, doubt=20)
    """
    best = min(trips, key=lambda trip: trip.under_way)
    return Offset((best.sent + best.back - best.came - best.answered) // 2, -(-best.under_way // 2))


def compared(rank: int, world: int) -> Offset:
    """Compare this rank's clock with that of rank 0, one rank after the other; all ranks must do so."""
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
