"""Plans put together from the times of their calls alone, where these do not get in each other's way.

Calls are run one after the other. What a call does depends on when its ranks come and on how long its links are still
busy with earlier calls; calls of which all that is alike are run once. It is checked of every link that the first
message of a call came to it behind the last one of the calls before. Then the times of all calls together keep
every rule of the joined program, and only one solution does. Where the check fails, the joined program has to be run.

A call that has its links for itself is not run at first: it is known by when it is over at the latest (see `longest`).
If all that waits for it waits longer for something else, as where a call lies beside computation, it never is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
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
from simcoll.engine.longest import longest_ps
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
        folded = fold(whole.stream, whole.network, whole.devices) if sizes.min() == sizes.max() else None
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

    @cached_property
    def longest_ps(self) -> int | None:
        """The longest that the call takes from when its last rank comes, whenever the others did, if that is known."""
        if self._few is not None:
            return None
        if one := self._looped:
            return longest_ps(one.one, one.loops, one.piece, one.slots)
        program = self.program
        return longest_ps(program, 1, int(program.sizes.max(initial=0)), program.params.slots)

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
    operations: Sequence[Operation],
    calls: Sequence[CallProgram | None],
    n: int,
    network: RoutedNetwork,
    ran: set[CallProgram] | None = None,
) -> int | None:
    """The time in ps of a plan of `operations` on `n` ranks, of which each but computations is a call of `calls`; None
    where calls meet on a link, or cannot be run by themselves. Calls that `ran` by themselves are added to that set,
    and only those in it may be left out where nobody needs to know when they end."""
    if not _apart(calls, network):
        return None
    took = _Composition(operations, calls, n, len(network.bandwidths), set() if ran is None else ran).took()
    return took if took is not None and took < NEVER else None


class _Hidden(NamedTuple):
    """A call that is not run as long as nobody needs to know when it ends: its ranks come at `opened`, and it is over
    at `latest`, in ps."""

    number: int
    call: CallProgram
    opened: Numbers
    latest: int


class _Composition:
    """The times of a plan, operation by operation. By link: from when on it is free, when the last message came, and
    of which operation that was. By operation: when its work ends on each rank; of those `hidden`, at the least."""

    def __init__(
        self,
        operations: Sequence[Operation],
        calls: Sequence[CallProgram | None],
        n: int,
        links: int,
        ran: set[CallProgram],
    ):
        self.operations, self.calls, self.ran = operations, calls, ran
        self.free, self.came, self.owner = np.zeros(links, np.int64), np.full(links, -NEVER), np.zeros(links, np.int64)
        self.done, self.hidden = dict[int, Numbers](), dict[int, _Hidden]()
        self.place, self.known, self.last = np.full(n, -1, np.int64), _Known(), 0
        self.idle = np.zeros(links, np.int64)

    def took(self) -> int | None:
        """The time that all takes together; None where calls meet."""
        left, behind = [len(op.after) for op in self.operations], [list[int]() for _ in self.operations]
        for number, op in enumerate(self.operations):
            for before in op.after:
                behind[before].append(number)
        queue: list[tuple[int, int]] = []
        opened: dict[int, Numbers] = {}
        ready = [number for number, before in enumerate(left) if not before]
        while ready or queue:
            for number in ready:
                if (when := self._opened(number)) is None:
                    return None
                opened[number] = when
                heapq.heappush(queue, (int(when.min(initial=0)), number))
            _, number = heapq.heappop(queue)  # about in the order in which first ranks begin
            when, call = opened.pop(number), self.calls[number]
            self.done[number] = when + self.operations[number].duration
            self.last = max(self.last, int(self.done[number].max(initial=0)))
            if call is not None and not self._call(_Hidden(number, call, when, NEVER)):
                return None
            for after in behind[number]:
                left[after] -= 1
            ready = [after for after in dict.fromkeys(behind[number]) if not left[after]]
        for late in sorted(self.hidden.values(), key=lambda late: -late.latest):
            if late.latest > self.last and not self._uncover(late):
                return None
        return self.last

    def _opened(self, number: int) -> Numbers | None:
        """The times at which ranks may begin an operation. Of hidden calls those are run that may end later than all
        else; None where one cannot finish."""
        op = self.operations[number]
        when = np.zeros(len(op.ranks), np.int64)
        for before in op.after:
            if before not in self.hidden:
                self._after(before, self._shared(before, op), when)
        hidden = [self.hidden[before] for before in op.after if before in self.hidden]
        for late in sorted(hidden, key=lambda late: -late.latest):
            shared = self._shared(late.number, op)
            if late.latest > (when if shared is None else when[shared >= 0]).min(initial=NEVER):
                if not self._uncover(late):
                    return None
                self._after(late.number, shared, when)
        return when

    def _shared(self, before: int, op: Operation) -> Numbers | None:
        """The place of each rank of an operation among those of an earlier one, −1 where it has no part in that; None
        where they have the same ranks."""
        others, place = self.operations[before].ranks, self.place
        if others is op.ranks:
            return None
        place[others] = np.arange(len(others))
        found: Numbers = place[op.ranks]
        place[others] = -1
        return found

    def _after(self, before: int, shared: Numbers | None, when: Numbers) -> None:
        """Raise the times `when` at which ranks may begin to those at which their part in an earlier operation ends."""
        done = self.done[before]
        np.maximum(when, done if shared is None else np.where(shared >= 0, done[shared], 0), out=when)

    def _call(self, new: _Hidden) -> bool:
        """Hide a call that has its links for itself, if it is over some time later at the latest; else run it. Says
        whether it does not meet others, and ends."""
        (_, call, opened, _), first = new, int(new.opened.min())
        used = np.zeros(len(self.free), np.bool_)
        used[call.links] = True
        for late in list(self.hidden.values()):
            if late.latest >= first and used[late.call.links].any() and not self._uncover(late):
                return False
        met = max(self.free[used].max(initial=0), self.came[used].max(initial=0)) >= first
        if met or call not in self.ran or self.known.alike(call, opened - first, self.idle) or not call.longest_ps:
            return self._run(new, met)
        self.hidden[new.number] = new._replace(latest=int(opened.max()) + call.longest_ps)
        return True

    def _uncover(self, late: _Hidden) -> bool:
        """Run a hidden call; all others on its links were over before, or begin after it. Says whether it ends."""
        del self.hidden[late.number]
        return self._run(late, met=False)

    def _run(self, new: _Hidden, met: bool) -> bool:
        """Run a call by itself. Says whether it ends, and where it may have `met` earlier ones, whether it did not."""
        number, call, opened, _ = new
        first = int(opened.min())
        busy = np.maximum(self.free - first, 0) if met else self.idle
        self.ran.add(call)
        if (alone := self.known.alone(call, opened - first, busy)) is None:
            return False
        head, uses = alone.first + first, alone.last > -NEVER
        if met and ((head < self.came) | ((head == self.came) & (self.owner > number)))[uses].any():
            return False
        last = alone.last + first
        uses &= last >= self.came  # else there were later ones
        self.came[uses], self.owner[uses], self.free[uses] = last[uses], number, (alone.free + first)[uses]
        np.maximum(self.done[number], alone.done + first, out=self.done[number])
        self.last = max(self.last, alone.over + first)
        return True


class _Known:
    """Calls that were run: of those that are alike one is."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, bytes], list[tuple[Numbers, fast.CallEnds]]] = {}

    def alike(self, call: CallProgram, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """The call by itself, if one like it was run: see `CallProgram.alone`. A link that is free before its first
        message comes may as well have been free from the start."""
        now = busy[call.links]
        for before, ends in self._runs.get((id(call), came.tobytes()), ()):
            if ((now == before) | (np.maximum(now, before) <= ends.first[call.links])).all():
                return ends
        return None

    def alone(self, call: CallProgram, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """The call by itself, run if none like it was; None if it cannot finish."""
        if (ends := self.alike(call, came, busy)) is None and (ends := call.alone(came, busy)) is not None:
            self._runs.setdefault((id(call), came.tobytes()), []).append((busy[call.links], ends))
        return ends


def _apart(calls: Sequence[CallProgram | None], network: RoutedNetwork) -> bool:
    """Whether calls may be run by themselves: links serve one message after the other, and are those of the network."""
    bound = list({id(call): call for call in calls if call is not None}.values())
    params = [call.params for call in bound]
    alone = all(p.sharing == "fifo" and not p.barrier and p.blocking == "no" for p in params)
    return alone and all(call.network.link_names == network.link_names for call in bound)
