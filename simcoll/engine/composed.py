"""Compose the time of a plan from separate runs of its calls, if the calls do not delay each other on links.

The calls run one after the other. A call depends on the times at which its ranks arrive, and on how long earlier calls
keep its links busy; calls that agree in both run once. Each link is checked: the first message of a call must reach it
after the last message of all earlier calls. Then the composed times obey every rule of the joined program, and only one
solution does. If the check fails, the joined program has to run.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Numbers
from simcoll.engine import fast
from simcoll.engine.call_program import CallProgram
from simcoll.engine.joined_program import Operation
from simcoll.engine.timing_model import NEVER, RoutedNetwork


class Taken(NamedTuple):
    """Two times in ps for each link, (links,): when its last message `came`, and when it is `free` again."""

    came: Numbers
    free: Numbers


class KnownCalls:
    """A cache of the results of calls that ran. Equal calls with equal arrivals run once."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, bytes], list[tuple[Numbers, fast.CallEnds]]] = {}

    def alone(self, call: CallProgram, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """Return the ends of the call, from the cache or from a run; None if it cannot finish. See `CallProgram.alone`
        for the arguments. Calls also count as equal if a link is `busy` for different times but free before its first
        message comes."""
        runs, now = self._runs.setdefault((id(call), came.tobytes()), []), busy[call.links]
        for before, known in runs:
            if ((now == before) | (np.maximum(now, before) <= known.first[call.links])).all():
                return known
        if (ends := call.alone(came, busy)) is not None:
            runs.append((now, ends))
        return ends


least, most = np.minimum.reduce, np.maximum.reduce  # of a few numbers: methods take twice the time


def composed_ps(
    operations: Sequence[Operation],
    calls: Sequence[CallProgram | None],
    n: int,
    network: RoutedNetwork,
    durations: Sequence[int | Numbers] | None = None,
) -> int | None:
    """Return the time in ps of a plan of `operations` on `n` ranks; None if calls delay each other on a link or cannot
    run separately. `calls` holds the call of each operation, None for computations. `durations` are times in ps in
    place of the durations of `operations`."""
    if not _apart(calls, network):
        return None
    if durations is None:
        durations = [op.duration for op in operations]
    took = _Composition(operations, durations, calls, n, len(network.bandwidths)).took()
    return took if took is not None and took < NEVER else None


class _Composition:
    """The times of a plan in ps, computed operation by operation. `taken` holds the times of each link, and `owner` the
    operation of its last message. `done` holds for each operation when its work ends on each rank."""

    def __init__(
        self,
        operations: Sequence[Operation],
        durations: Sequence[int | Numbers],
        calls: Sequence[CallProgram | None],
        n: int,
        links: int,
    ):
        self.operations, self.durations, self.calls = operations, durations, calls
        self.taken = Taken(np.full(links, -NEVER), np.zeros(links, np.int64))
        self.owner, self.idle = np.zeros(links, np.int64), np.zeros(links, np.int64)
        self.done = dict[int, Numbers]()
        self.place, self.known, self.last = np.full(n, -1, np.int64), KnownCalls(), 0

    def took(self) -> int | None:
        """Return the time in ps of the whole plan; None if calls delay each other on a link."""
        left = [len(set(op.after)) for op in self.operations]
        behind = [list[int]() for _ in self.operations]
        for number, op in enumerate(self.operations):
            for before in set(op.after):
                behind[before].append(number)
        opened: dict[int, Numbers] = {}
        queue: list[tuple[int, int]] = []
        ready = [number for number, before in enumerate(left) if not before]
        while ready or queue:
            for number in ready:
                opened[number] = self._since(number)
                heapq.heappush(queue, (int(least(opened[number], initial=NEVER)), number))
            first, number = heapq.heappop(queue)  # about in the order in which operations begin on their first rank
            when = opened.pop(number)
            self.done[number] = when + self.durations[number]
            if (call := self.calls[number]) and not self._run(number, call, when, first):
                return None
            for after in behind[number]:
                left[after] -= 1
            ready = [after for after in behind[number] if not left[after]]
        return max(self.last, int(most(np.concatenate([*self.done.values(), self.idle[:1]]), initial=0)))

    def _since(self, number: int) -> Numbers:
        """Return for each rank of operation `number` when its predecessors end there, in ps."""
        op = self.operations[number]
        ends = list[Numbers]()
        for before in op.after:
            done, shared = self.done[before], self._shared(before, op)
            ends.append(done if shared is None else np.where(shared >= 0, done[shared], 0))
        if len(ends) == 1:
            return ends[0]
        return functools.reduce(np.maximum, ends) if ends else np.zeros(len(op.ranks), np.int64)

    def _shared(self, before: int, op: Operation) -> Numbers | None:
        """Return for each rank of `op` its position among the ranks of operation `before`, or −1 if it is not one of
        them. Return None if both have equal ranks."""
        others, place = self.operations[before].ranks, self.place
        if others is op.ranks:
            return None
        place[others] = np.arange(len(others))
        found: Numbers = place[op.ranks]
        place[others] = -1
        return found

    def _run(self, number: int, call: CallProgram, when: Numbers, first: int) -> bool:
        """Run a call whose ranks begin at `when` ps, the earliest at `first`, and update `done` and the links. Return
        False if it does not end, or if it meets messages of other calls on its links."""
        taken = self.taken
        met = any(most(column[call.links], initial=0) >= first for column in taken)
        busy = np.maximum(taken.free - first, 0) if met else self.idle
        ends = self.known.alone(call, when - first, busy)
        if ends is None:
            return False
        head, uses = ends.first + first, ends.last > -NEVER
        if met:
            late = (head == taken.came) & (self.owner > number)
            if ((head < taken.came) | late)[uses].any():
                return False
        came = np.where(uses, ends.last + first, -NEVER)
        uses &= came >= taken.came  # a link with later messages keeps its times
        taken.came[uses], taken.free[uses], self.owner[uses] = came[uses], (ends.free + first)[uses], number
        self.last = max(self.last, ends.over + first)
        np.maximum(self.done[number], ends.done + first, out=self.done[number])
        return True


def _apart(calls: Sequence[CallProgram | None], network: RoutedNetwork) -> bool:
    """Return whether calls may run separately: with `fifo` sharing, without barriers or blocking sends, and on the same
    links as `network`."""
    bound = list({id(call): call for call in calls if call is not None}.values())
    params = [call.params for call in bound]
    alone = all(p.sharing == "fifo" and not p.barrier and p.blocking == "no" for p in params)
    names = [call.network.link_names for call in bound]
    return alone and all(each is network.link_names or each == network.link_names for each in names)
