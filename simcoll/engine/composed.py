"""Compose the time of a plan from separate runs of its calls, if the calls do not delay each other on links.

The calls run one after the other. A call depends on the times at which its ranks arrive, and on how long earlier calls
keep its links busy; calls that agree in both run once. So do calls of alike groups, such as all groups of tensor
parallelism: they are one batch. Each link is checked: the first message of a call must reach it
after the last message of all earlier calls. Then the composed times obey every rule of the joined program, and only one
solution does. If the check fails, the joined program has to run.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Array, Numbers
from simcoll.engine.call_program import CallProgram
from simcoll.engine.joined_program import Operation
from simcoll.engine.timeline import CallEnds
from simcoll.engine.timing_model import NEVER, NONE
from simcoll.topology.graph import Topology

_EMPTY: Final = np.zeros(0, np.int64)
_NOWHERE: Final = np.zeros(0, bool)


class Taken(NamedTuple):
    """Two times in ps for each link, (links,): when its last message `came`, and when it is `free` again."""

    came: Numbers
    free: Numbers


class KnownCalls:
    """A cache of the results of calls that ran. Calls of one shape with equal arrivals run once."""

    def __init__(self) -> None:
        self._runs: dict[tuple[Hashable, bytes], list[tuple[Numbers, CallEnds]]] = {}

    def alone(self, call: CallProgram, came: Numbers, busy: Numbers) -> CallEnds | None:
        """Return the ends of the call, from the cache or from a run; None if it cannot finish. See `CallProgram.alone`
        for the arguments; here links are `call.links`, also in what is returned. Calls also count as equal if a link is
        `busy` for different times but free before its first message comes."""
        runs = self._runs.setdefault((call.shape, came.tobytes()), [])
        for before, known in runs:
            if ((busy == before) | (np.maximum(busy, before) <= known.first)).all():
                return known
        everywhere = np.zeros(len(call.network.bandwidths), np.int64)
        everywhere[call.links] = busy
        ends = call.alone(came, everywhere)
        if ends is not None:
            first, last, free = (column[call.links] for column in (ends.first, ends.last, ends.free))
            ends = ends._replace(first=first, last=last, free=free)
            runs.append((busy, ends))
        return ends


least, most = np.minimum.reduce, np.maximum.reduce  # of a few numbers: methods take twice the time


def composed_ps(
    operations: Sequence[Operation],
    calls: Sequence[CallProgram | None],
    n: int,
    network: Topology,
    durations: Sequence[int | Numbers] | None = None,
) -> int | None:
    """Return the time in ps of a plan of `operations` on `n` ranks; None if calls delay each other on a link or cannot
    run separately. `calls` holds the call of each operation, None for computations. `durations` are times in ps in
    place of the durations of `operations`."""
    if not _apart(calls, network):
        return None
    if durations is None:
        durations = [op.duration for op in operations]
    links = len(network.bandwidths)
    for together in (True, False):  # apart, operations begin more nearly in the order of their beginnings
        batches = _batches(operations, durations, calls, n, links if together else 0)
        took = _Composition(batches, n, links).took()
        if took is not None or len(batches) == len(operations):
            break
    return took if took is not None and took < NEVER else None


class _Batch(NamedTuple):
    """Operations of disjoint ranks that wait for the same: computations, or calls of one shape on disjoint links, as
    those of alike groups. `numbers` are those of the operations, (groups,); `ranks` and `durations` (ps) those of all
    groups, one after the other; `after` the numbers of earlier batches; `links` those of each call, (groups, links)."""

    numbers: Numbers
    ranks: Numbers
    durations: int | Numbers
    after: tuple[int, ...]
    calls: Sequence[CallProgram]
    links: Numbers


def _batches(
    operations: Sequence[Operation],
    durations: Sequence[int | Numbers],
    calls: Sequence[CallProgram | None],
    n: int,
    links: int,
) -> list[_Batch]:
    """Return the operations in batches. `links`: their number on the network; with 0, or if an operation waits for a
    part of a batch only, each operation is a batch."""
    of, found = list[int](), list[list[int]]()  # the batch of each operation, and the operations of each batch
    behind = list[tuple[int, ...]]()
    alike: dict[tuple[object, ...], tuple[int, Array, Array]] = {}  # the newest batch of a kind, what it takes
    shapes: dict[Hashable, int] = {}
    shape = {id(call): shapes.setdefault(call.shape, len(shapes)) for call in calls if call is not None}
    for number, (op, call) in enumerate(zip(operations, calls, strict=True)):
        after = tuple(sorted({of[before] for before in op.after}))
        kind = call and shape[id(call)], len(op.ranks), after
        batch, ranks, taken = alike.get(kind, (NONE, _NOWHERE, _NOWHERE))
        used = _EMPTY if call is None else call.links
        if not links or batch == NONE or ranks[op.ranks].any() or taken[used].any():
            batch, ranks, taken = alike[kind] = len(found), np.zeros(n, bool), np.zeros(links, bool)
            found.append([])
            behind.append(after)
        found[batch].append(number)
        of.append(batch)
        if links:
            ranks[op.ranks] = taken[used] = True
    for op in operations if links else ():
        own = {of[before] for before in op.after if operations[before].ranks is op.ranks}  # others of it are disjoint
        for batch, count in Counter(map(of.__getitem__, op.after)).items():
            if count < len(found[batch]) and batch not in own:
                others = [operations[each].ranks for each in {*found[batch]}.difference(op.after)]
                if np.isin(op.ranks, np.concatenate(others)).any():
                    return _batches(operations, durations, calls, n, 0)
    return [
        _batch(numbers, [operations[i] for i in numbers], [durations[i] for i in numbers], after, calls)
        for numbers, after in zip(found, behind, strict=True)
    ]


def _batch(
    numbers: list[int], operations: list[Operation], durations: list[int | Numbers], after: tuple[int, ...],
    calls: Sequence[CallProgram | None],
) -> _Batch:  # fmt: skip
    own = [call for number in numbers if (call := calls[number]) is not None]
    links = np.stack([call.links for call in own]) if own else _EMPTY
    if len(numbers) == 1:
        return _Batch(np.array(numbers), operations[0].ranks, durations[0], after, own, links)
    both = zip(durations, operations, strict=True)
    took = np.concatenate([np.broadcast_to(each, len(op.ranks)) for each, op in both])
    return _Batch(np.array(numbers), np.concatenate([op.ranks for op in operations]), took, after, own, links)


class _Composition:
    """The times of a plan in ps, computed batch by batch. `taken` holds the times of each link, and `owner` the
    operation of its last message. `done` holds for each batch when its work ends on each rank."""

    def __init__(self, batches: Sequence[_Batch], n: int, links: int):
        self.batches = batches
        self.taken = Taken(np.full(links, -NEVER), np.zeros(links, np.int64))
        self.owner, self.done = np.zeros(links, np.int64), dict[int, Numbers]()
        self.place, self.known, self.last = np.full(n, -1, np.int64), KnownCalls(), 0

    def took(self) -> int | None:
        """Return the time in ps of the whole plan; None if calls delay each other on a link."""
        left = [len(batch.after) for batch in self.batches]
        behind = [list[int]() for _ in self.batches]
        for number, batch in enumerate(self.batches):
            for before in batch.after:
                behind[before].append(number)
        opened: dict[int, Numbers] = {}
        parts = [1] * len(left)  # of a batch, those that begin at different times
        queue: list[tuple[int, int]] = []
        ready = [number for number, before in enumerate(left) if not before]
        while ready or queue:
            for number in ready:
                opened[number] = when = self._since(self.batches[number])
                groups = len(self.batches[number].calls) or 1
                begins = {*least(when.reshape(groups, -1), axis=1, initial=NEVER).tolist()}
                parts[number] = len(begins)
                for first in begins:
                    heapq.heappush(queue, (first, number))
            first, number = heapq.heappop(queue)  # about in the order in which operations begin on their first rank
            batch, when, ready = self.batches[number], opened[number], []
            if number not in self.done:
                self.done[number] = when + batch.durations
            if batch.calls and not self._run(number, when.reshape(len(batch.calls), -1), first):
                return None
            parts[number] -= 1
            if not parts[number]:
                del opened[number]
                for after in behind[number]:
                    left[after] -= 1
                ready = [after for after in behind[number] if not left[after]]
        return max(self.last, int(most(np.concatenate([*self.done.values(), _EMPTY]), initial=0)))

    def _since(self, batch: _Batch) -> Numbers:
        """Return for each rank of a batch when its predecessors end there, in ps."""
        ends = list[Numbers]()
        for before in batch.after:
            done, shared = self.done[before], self._shared(self.batches[before].ranks, batch.ranks)
            ends.append(done if shared is None else np.where(shared >= 0, done[shared], 0))
        if len(ends) == 1:
            return ends[0]
        return functools.reduce(np.maximum, ends) if ends else np.zeros(len(batch.ranks), np.int64)

    def _shared(self, others: Numbers, ranks: Numbers) -> Numbers | None:
        """Return for each of some ranks its position among `others`, or −1 if it is not one of them. Return None if
        both are the same."""
        if others is ranks:
            return None
        place = self.place
        place[others] = np.arange(len(others))
        found: Numbers = place[ranks]
        place[others] = -1
        return found

    def _run(self, number: int, when: Numbers, first: int) -> bool:
        """Run the calls of a batch whose earliest rank begins at `first` ps; `when`, (groups, ranks): when each begins.
        Update `done` and the links. Return False if a call does not end, or if it meets messages of other calls on its
        links."""
        batch, taken = self.batches[number], self.taken
        groups = np.flatnonzero(least(when, axis=1, initial=NEVER) == first)
        came, busy = when[groups] - first, np.maximum(taken.free[batch.links[groups]] - first, 0)
        same = (came == came[0]).all() and (busy == busy[0]).all()
        done = self.done[number].reshape(when.shape)
        for some in (slice(0, None),) if same else (slice(i, i + 1) for i in range(len(groups))):
            which, links = groups[some], batch.links[groups[some]]
            ends = self.known.alone(batch.calls[which[0]], came[some][0], busy[some][0])
            if ends is None:
                return False
            own = np.broadcast_to(batch.numbers[which, None], links.shape)
            head, uses, before = ends.first + first, ends.last > -NEVER, taken.came[links]
            late = (head == before) & (self.owner[links] > own)
            if (((head < before) | late) & uses).any():
                return False
            last = np.broadcast_to(np.where(uses, ends.last + first, -NEVER), links.shape)
            newer = uses & (last >= before)  # a link with later messages keeps its times
            free = np.broadcast_to(ends.free + first, links.shape)
            at = links[newer]
            taken.came[at], taken.free[at], self.owner[at] = last[newer], free[newer], own[newer]
            self.last = max(self.last, ends.over + first)
            done[which] = np.maximum(done[which], ends.done + first)
        return True


def _apart(calls: Sequence[CallProgram | None], network: Topology) -> bool:
    """Return whether calls may run separately: with `fifo` sharing, without barriers or blocking sends, and on the same
    links as `network`."""
    bound = list({id(call): call for call in calls if call is not None}.values())
    params = [call.params for call in bound]
    alone = all(p.sharing == "fifo" and not p.barrier and p.blocking == "no" for p in params)
    names = [call.network.link_names for call in bound]
    return alone and all(each is network.link_names or each == network.link_names for each in names)
