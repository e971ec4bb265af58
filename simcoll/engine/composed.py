"""Plans put together from the times of their calls alone, where these do not get in each other's way.

Calls are run one after the other. What a call does depends on when its ranks come and on how long its links are still
busy with earlier calls; calls of which all that is alike are run once. It is checked of every link that the first
message of a call came to it behind the last one of the calls before. Then the times of all calls together keep
every rule of the joined program, and only one solution does. Where the check fails, the joined program has to be run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from simcoll.config.arrays import Numbers, distinct
from simcoll.dataclass import dataclass
from simcoll.engine import fast
from simcoll.engine.binding import bind
from simcoll.engine.folding import Folded, fold
from simcoll.engine.joined_program import Operation
from simcoll.engine.looped import LoopedProgram
from simcoll.engine.program import Program
from simcoll.engine.run import StreamedProgram
from simcoll.engine.streamed import loop_sizes
from simcoll.engine.timing_model import NEVER, Params, RoutedNetwork
from simcoll.named_tuple import NamedTuple
from simcoll.schedule.streamed import StreamedSchedule

LONG: Final = 2_000_000  # transfers: fewer are bound in about the time that folding takes


class CallSums(NamedTuple):
    """Sums of a call: the bytes over each link, (links,), those that each of its ranks sends, (ranks,), the
    messages, and the payload summed over links."""

    carried: Numbers
    sent: Numbers
    messages: int
    wire_bytes: int


@dataclass(frozen=True, eq=False)
class CallProgram:
    """A call of a plan: its program, bound when it is needed, and where its schedule is a stream, that, which is folded
    if it has more than `long` transfers and can be. `in_loops` makes the same of the columns of one loop, if it can."""

    make: Callable[[], Program]
    stream: StreamedProgram | None = None
    long: int = LONG
    in_loops: Callable[[], LoopedProgram | None] = lambda: None

    @cached_property
    def program(self) -> Program:
        """The program of all its transfers."""
        return self.make()

    @cached_property
    def _looped(self) -> LoopedProgram | None:
        return self.in_loops()

    @property
    def _bound(self) -> Program:
        """The program of one loop, where that is enough, or of all."""
        return self._looped.one if self._looped else self.program

    @property
    def network(self) -> RoutedNetwork | Program:
        """Links as the call has them."""
        return self.stream.network if self.stream else self._bound

    @property
    def params(self) -> Params:
        """The parameters of the call, but for the size of its pieces."""
        return self.stream.params if self.stream else self._bound.params

    @cached_property
    def _few(self) -> tuple[Folded, Program] | None:
        """The program of a few ranks that stand for all of a long stream."""
        whole = self.stream
        if whole is None or not isinstance(whole.stream, StreamedSchedule) or whole.transfers <= self.long:
            return None
        if whole.params.channels != 1 or whole.params.slots:
            return None
        (sizes,) = loop_sizes(whole.stream, whole.nbytes, whole.itemsize, 0)
        folded = fold(whole.stream, whole.network, whole.devices, further=True) if sizes.min() == sizes.max() else None
        if folded is None or folded.apart:
            return None
        nbytes = int(sizes[0]) * whole.stream.n_chunks
        return folded, bind(folded.schedule, folded, folded.devices, whole.params, nbytes, itemsize=whole.itemsize)

    @cached_property
    def sums(self) -> CallSums:
        """The sums of the call."""
        if self._few is None:
            program = self._bound
            messages = program.schedule.messages * (self._looped or program).loops
            return CallSums(program.carried, program.sent_bytes, messages, program.wire_bytes)
        folded, program = self._few
        carried = np.zeros(len(self.network.bandwidths), np.int64)
        carried[folded.stands_for] = program.carried[:, None]
        messages = program.schedule.messages * program.loops * folded.times
        return CallSums(carried, np.tile(program.sent_bytes, folded.times), messages, program.wire_bytes * folded.times)

    @cached_property
    def links(self) -> Numbers:
        """The links that messages of the call go over."""
        if self._few is None:
            return distinct(self._bound.routes.links)
        return distinct(self._few[0].stands_for)

    def alone(self, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """The call by itself, its ranks coming at `came`, the first at 0, and its links `busy` until a time, all in ps
        from then on. None if it cannot finish."""
        if self._few is None:
            return self._whole(came, busy)
        folded, program = self._few
        few, members = program.schedule.n, folded.stands_for
        if (came != np.tile(came[:few], folded.times)).any() or (busy[members] != busy[members[:, :1]]).any():
            return self._whole(came, busy)
        found = _alone(program, came[:few], busy[members[:, 0]])
        if found is None:
            return None

        def spread(column: Numbers, none: int) -> Numbers:
            whole = np.full(len(busy), none)
            whole[members] = column[:, None]
            return whole

        first, last, free = spread(found.first, NEVER), spread(found.last, -NEVER), spread(found.free, -NEVER)
        return fast.CallEnds(np.tile(found.done, folded.times), first, last, free, found.over)

    def _whole(self, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """The call of all its ranks by itself."""
        if self._looped is None:
            return _alone(self.program, came, busy)
        return self._looped.ends(_of_all(came, self._looped.one), busy)


def _alone(program: Program, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
    return fast.ends(replace(program, arrivals=_of_all(came, program)), busy)


def _of_all(came: Numbers, program: Program) -> Numbers:
    """The arrivals of ranks and agents, which are there from the start."""
    return np.append(came, np.zeros(program.schedule.agents, np.int64))


def composed_ps(
    operations: Sequence[Operation], calls: Sequence[CallProgram | None], n: int, network: RoutedNetwork
) -> int | None:
    """The time in ps of a plan of `operations` on `n` ranks, of which each but computations is a call of `calls`; None
    where calls meet on a link, or cannot be run by themselves."""
    if not _apart(calls, network):
        return None
    links = len(network.bandwidths)
    free, came, owner = np.zeros(links, np.int64), np.full(links, -NEVER), np.zeros(links, np.int64)
    known = _Known()
    last = 0
    for number, opened, done in _in_time(operations, n):
        done[:] = opened + operations[number].duration
        call = calls[number]
        if call is not None:
            first = int(opened.min())
            busy = np.maximum(free - first, 0)
            if (alone := known.alone(call, opened - first, busy)) is None:
                return None
            head, uses = alone.first + first, alone.last > -NEVER
            if ((head < came) | ((head == came) & (owner > number)))[uses].any():
                return None
            came[uses], owner[uses], free[uses] = (alone.last + first)[uses], number, (alone.free + first)[uses]
            np.maximum(done, alone.done + first, out=done)
            last = max(last, alone.over + first)
        last = max(last, int(done.max(initial=0)))
    return last if last < NEVER else None


class _Known:
    """Calls that were run: of those that are alike one is."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, bytes], list[tuple[Numbers, fast.CallEnds | None]]] = {}

    def alone(self, call: CallProgram, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """The call by itself: see `CallProgram.alone`. A link that is free before its first message comes may as well
        have been free from the start."""
        runs, now = self._runs.setdefault((id(call), came.tobytes()), []), busy[call.links]
        for before, ends in runs:
            if ends and ((now == before) | (np.maximum(now, before) <= ends.first[call.links])).all():
                return ends
        runs.append((now, call.alone(came, busy)))
        return runs[-1][1]


def _in_time(operations: Sequence[Operation], n: int) -> Iterator[tuple[int, Numbers, Numbers]]:
    """Operations about in the order in which their first ranks begin: the number of each, when each of its ranks may
    begin, and the column of when these are done, to be filled before the next is asked for."""
    left, behind = [len(op.after) for op in operations], [list[int]() for _ in operations]
    for number, op in enumerate(operations):
        for before in op.after:
            behind[before].append(number)
    place, done = np.full(n, -1, np.int64), dict[int, Numbers]()
    queue: list[tuple[int, int]] = []
    opened: dict[int, Numbers] = {}

    def open_(number: int) -> None:
        op = operations[number]
        when = opened[number] = np.zeros(len(op.ranks), np.int64)
        for before in op.after:
            others = operations[before].ranks
            if others is op.ranks:
                np.maximum(when, done[before], out=when)
                continue
            place[others] = np.arange(len(others))
            there = place[op.ranks]
            np.maximum(when, np.where(there >= 0, done[before][there], 0), out=when)
            place[others] = -1
        heapq.heappush(queue, (int(when.min(initial=0)), number))

    for number in range(len(operations)):
        if not left[number]:
            open_(number)
    while queue:
        _, number = heapq.heappop(queue)
        done[number] = np.zeros(len(operations[number].ranks), np.int64)
        yield number, opened.pop(number), done[number]
        for after in behind[number]:
            left[after] -= 1
            if not left[after]:
                open_(after)


def _apart(calls: Sequence[CallProgram | None], network: RoutedNetwork) -> bool:
    """Whether calls may be run by themselves: links serve one message after the other, and are those of the network."""
    bound = list({id(call): call for call in calls if call is not None}.values())
    params = [call.params for call in bound]
    alone = all(p.sharing == "fifo" and not p.barrier and p.blocking == "no" for p in params)
    return alone and all(call.network.link_names == network.link_names for call in bound)
