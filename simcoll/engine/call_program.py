"""One call (collective) of a workload's plan, which can run by itself: its program, its traffic, and when it ends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Numbers, distinct
from simcoll.engine import fast
from simcoll.engine.binding import bind
from simcoll.engine.folding import Folded, fold
from simcoll.engine.looped import LoopedProgram
from simcoll.engine.program import Program
from simcoll.engine.run import StreamedProgram
from simcoll.engine.streamed import loop_sizes
from simcoll.engine.timing_model import NEVER, Params, RoutedNetwork
from simcoll.schedule.schedule import StreamedSchedule

LONG: Final = 2_000_000  # transfers; binding a shorter call takes no longer than folding it


class CallSums(NamedTuple):
    """The traffic of a call: the bytes over each link, (links,); the bytes that each rank sends, (ranks,); the number
    of messages; and the payload bytes summed over the links that they cross."""

    carried: Numbers
    sent: Numbers
    messages: int
    wire_bytes: int


@dataclass(frozen=True, eq=False)
class CallProgram:
    """A call of a plan, `whole`, whose program is made when it is first needed. A stream of more than `LONG` transfers
    is folded, i.e. simulated by a few ranks, if possible."""

    whole: StreamedProgram

    @cached_property
    def program(self) -> Program:
        """The program of the call, with all its transfers."""
        return self.whole.bind()

    @cached_property
    def _looped(self) -> LoopedProgram | None:
        found = self.whole.looped()  # with a cache of its own, as the call may run many times
        return found and replace(found, one=replace(found.one, memo={}))

    @property
    def _bound(self) -> Program:
        """The program of a single loop if the call can run as loops, else the program of all transfers."""
        return self._looped.one if self._looped else self.program

    @property
    def network(self) -> RoutedNetwork:
        """The network of the call: its links, with the bandwidths and latencies that the call finds there."""
        return self.whole.network

    @property
    def params(self) -> Params:
        """The parameters of the call."""
        return self.whole.params

    @cached_property
    def _few(self) -> tuple[Folded, Program] | None:
        """The folded schedule and program of a long stream, in which a few ranks stand for all; None if not folded."""
        whole = self.whole
        if not isinstance(whole.stream, StreamedSchedule) or whole.weights is not None or whole.transfers <= LONG:
            return None
        if whole.params.channels != 1 or whole.params.slots:
            return None
        (sizes,) = loop_sizes(whole.stream, whole.nbytes, whole.itemsize, 0)
        folded = fold(whole.stream, whole.network, whole.devices) if sizes.min() == sizes.max() else None
        if folded is None:
            return None
        nbytes = int(sizes[0]) * whole.stream.n_chunks
        return folded, bind(folded.schedule, folded, folded.devices, whole.params, nbytes, itemsize=whole.itemsize)

    @cached_property
    def sums(self) -> CallSums:
        """The traffic of the call, summed over all ranks and loops."""
        if self._few is None:
            program = self._bound
            messages = program.messages * (self._looped.loops if self._looped else 1)
            return CallSums(program.carried, program.sent_bytes, messages, program.wire_bytes)
        folded, program = self._few
        messages, carried = program.messages * folded.times, folded.spread(program.carried)
        return CallSums(carried, np.tile(program.sent_bytes, folded.times), messages, program.wire_bytes * folded.times)

    @cached_property
    def links(self) -> Numbers:
        """The numbers of the links that messages of the call use, in the order of `shape`."""
        return self._used[1]

    @property
    def shape(self) -> Hashable:
        """What the ends of the call depend on, if its links are numbered by their first use: equal for calls that do
        the same on links of equal rates, such as the calls of alike groups."""
        return self._used[0]

    @cached_property
    def _used(self) -> tuple[Hashable, Numbers]:
        if self._few is not None:
            return id(self), distinct(self._few[0].stands_for)
        program, whole = self._bound, self.whole
        used, first, number = np.unique(program.routes.links, return_index=True, return_inverse=True)
        order = np.argsort(first)
        links, place = used[order], np.argsort(order)
        seen = (place[number], program.routes.hop, program.way, program.bandwidths[links], program.latencies[links])
        # a stream with weights may send less by the same routes
        asked = whole.params, whole.nbytes, whole.itemsize, None if whole.weights is None else id(self)
        return (id(whole.stream), asked, *(column.tobytes() for column in seen)), links

    def alone(self, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """Simulate the call without other calls and return its ends; None if it cannot finish. Ranks arrive at the
        times `came`, (ranks,). Links are occupied until `busy`, (links,). Both count in ps from the first rank's
        arrival."""
        if self._few is None:
            return self._whole(came, busy)
        folded, program = self._few
        few, members = program.schedule.n, folded.stands_for
        if (came != np.tile(came[:few], folded.times)).any() or (busy[members] != busy[members[:, :1]]).any():
            return self._whole(came, busy)
        found = _alone(program, came[:few], busy[members[:, 0]])
        if found is None:
            return None
        first, last = folded.spread(found.first, NEVER), folded.spread(found.last, -NEVER)
        free = folded.spread(found.free, -NEVER)
        return fast.CallEnds(np.tile(found.done, folded.times), first, last, free, found.over)

    def _whole(self, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """Simulate all ranks of the call, without folding; arguments and result as for `alone`."""
        if self._looped is None:
            return _alone(self.program, came, busy)
        one = replace(self._looped.one, arrivals=_of_all(came, self._looped.one))
        return fast.ends(replace(self._looped, one=one), busy)


def _alone(program: Program, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
    return fast.ends(replace(program, arrivals=_of_all(came, program)), busy)


def _of_all(came: Numbers, program: Program) -> Numbers:
    """Return the arrivals in ps of all participants: `came` for the ranks, then 0 for the in-network agents."""
    return np.append(came, np.zeros(program.schedule.agents, np.int64))
