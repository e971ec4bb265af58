"""The timing model that every engine implements: parameters, service times and dependencies, in integers.

Time is an int64 count of picoseconds. docs/time.md has the rules; in short:

* A transfer starts when three conditions hold: the data it reads is complete; its channel is free (the channel's last
  transfer is `sent`, and started at least `g` ago); and a slot of its connection is free (`slots`). Its head reaches
  the first link `o_send` later.
* It ends after the route's latencies, its bytes over the bandwidths (`fair` or `fifo` sharing), and its receive side
  (`o_recv`, and `gamma` if it reduces).
* Each instant has two phases: first all events of the instant are applied, then each link, receive side or fabric
  decides once and takes the lowest (ready, index).

Times are rounded in `service_ps` only, and where the rate of a flow changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.engine import _dependencies
from simcoll.engine._dependencies import Edges
from simcoll.errors import InputError
from simcoll.schedule.schedule import Schedule

Sharing = Literal["fair", "fifo"]
Blocking = Literal["no", "sends-first", "even-odd"]
ChannelsBy = Literal["chunk", "step", "port"]
Index = NDArray[np.signedinteger[Any]]  # int32 for numbers of transfers, links and steps; int64 for times and bytes

PS_PER_S: Final = 10**12
NONE: Final = -1  # no predecessor
NEVER: Final = 2**62  # service time of a dead link; also the limit of any sum of times


@dataclass(frozen=True)
class Params:
    """The parameters of a run, in base units (ps, bytes, B/s); the defaults are the profile `one-port`.

    LogGP's o is `o_send` and `o_recv`, its g is `g`, its L and G come from the links. `gamma` is the bandwidth of the
    reduction in B/s (0: free), `channels` the number of channels per rank (0: one per peer). `channels_by`: chunks,
    over all loops, or steps use the channels round-robin; with `port` there is a channel for each first link.
    `channel_bandwidth` is the cap of a channel (0: none), `slots` the most messages in flight on a connection (0: no
    limit), `chunk` the largest piece moved (0: all)."""

    sharing: Sharing = "fair"
    o_send: int = 0
    o_recv: int = 0
    g: int = 0
    gamma: int = 0
    channels: int = 1
    channels_by: ChannelsBy = "chunk"
    slots: int = 0
    chunk: int = 0
    channel_bandwidth: int = 0
    barrier: bool = False
    blocking: Blocking = "no"


def service_ps(nbytes: int, bandwidth: int) -> int:
    """Return how long `nbytes` occupy a server of `bandwidth` B/s: max(1, ⌈nbytes · 10¹² / bandwidth⌉) ps, exactly.

    A dead server (bandwidth 0) takes for ever. Raises InputError beyond the range of the clock (53 days).

    >>> service_ps(1, 50_000_000_000), service_ps(0, 1), service_ps(7, 3)
    (20, 1, 2333333333334)
    """
    if not bandwidth:
        return NEVER
    ps = max(1, -(-nbytes * PS_PER_S // bandwidth))
    if ps >= NEVER:
        raise too_late(f"{nbytes} bytes at {bandwidth} B/s take")
    return ps


def piece_bytes(chunk: int, itemsize: int) -> int:
    """Return the most bytes of a slot that are moved at once: as many whole elements as fit a `chunk`, at least one;
    for a chunk of 0 return 0, which means all bytes."""
    return max(itemsize, chunk // itemsize * itemsize) if chunk else 0


def clocked(times: Sequence[int] | Index) -> NDArray[np.int64]:
    """Return times in ps as an int64 array; raises InputError if a time exceeds the clock's range."""
    try:
        found = np.asarray(times, np.int64)
    except OverflowError:
        raise too_late("the run takes") from None
    if found.min(initial=0) < NONE or found.max(initial=0) >= NEVER:
        raise too_late("the run takes")
    return found


def too_late(what: str) -> InputError:
    """Return the error for a time beyond the range of the clock."""
    return InputError(f"{what} longer than the clock runs (53 days)", "use a faster link or a smaller size")


class Dependencies(NamedTuple):
    """What each transfer waits for. `reads`: the transfers that made the values that it reads. `chain`: the transfers
    that wrote its slots before, and must be complete before it is complete. `adds` is true if it reduces into a value
    that was at its receiver at the start: the receiver must have arrived before the transfer is complete."""

    reads: Edges
    chain: Edges
    adds: NDArray[np.bool_]


def dependencies(schedule: Schedule) -> Dependencies:
    """Return the true dependencies of a schedule: read-after-write, and the order of writes into one slot. A transfer
    reads the newest version of a slot that an earlier step made. The version that it writes waits for the slot's
    previous version if the transfer reduces, or if the same step made that version. No write waits for a read."""
    return Dependencies(*_dependencies.versions(schedule)[:3])
