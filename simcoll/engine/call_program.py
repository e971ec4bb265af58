"""One call (collective) of a workload's plan, which can run by itself: its program, its traffic, and when it ends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from simcoll.config.numpy_helpers import Numbers
from simcoll.engine import fast, streamed
from simcoll.engine.looped import LoopedProgram
from simcoll.engine.program import Program
from simcoll.engine.run import StreamedProgram
from simcoll.engine.timeline import CallEnds, CallSums
from simcoll.engine.timing_model import Params
from simcoll.topology.graph import Topology

LONG: Final = 2_000_000  # transfers; a shorter call is bound in some seconds


@dataclass(frozen=True, eq=False)
class CallProgram:
    """A call of a plan, `whole`, whose program is made when it is first needed. A stream of more than `LONG` transfers
    is replayed step by step, if possible."""

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
    def network(self) -> Topology:
        """The network of the call: its links, with the bandwidths and latencies that the call finds there."""
        return self.whole.network

    @property
    def params(self) -> Params:
        """The parameters of the call."""
        return self.whole.params

    @cached_property
    def _parts(self) -> streamed.RoutedParts | None:
        """The steps of a long call, if they may be replayed one after the other."""
        return self.whole.parts() if self.whole.transfers > LONG else None

    @cached_property
    def _replayed(self) -> tuple[CallEnds, CallSums] | None:
        """The result of a replay in which all ranks arrive at 0 and no link is occupied; None if the call is short, or
        cannot be replayed."""
        came, busy = (np.zeros(n, np.int64) for n in (self.whole.stream.n, len(self.network.bandwidths)))
        return streamed.ends(self._parts, self.whole.sizes, came, busy) if self._parts else None

    @cached_property
    def sums(self) -> CallSums:
        """The traffic of the call, summed over all ranks and loops."""
        if self._replayed:
            return self._replayed[1]
        program = self._bound
        messages = program.messages * (self._looped.loops if self._looped else 1)
        return CallSums(program.carried, program.sent_bytes, messages, program.wire_bytes)

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
        if self._parts and self._replayed:
            return id(self), self._parts.links
        program, whole = self._bound, self.whole
        used, first, number = np.unique(program.routes.links, return_index=True, return_inverse=True)
        order = np.argsort(first)
        links, place = used[order], np.argsort(order)
        seen = (place[number], program.routes.hop, program.way, program.bandwidths[links], program.latencies[links])
        # a stream with weights may send less by the same routes
        asked = whole.params, whole.nbytes, whole.itemsize, None if whole.weights is None else id(self)
        return (id(whole.stream), asked, *(column.tobytes() for column in seen)), links

    def alone(self, came: Numbers, busy: Numbers) -> CallEnds | None:
        """Simulate the call without other calls and return its ends; None if it cannot finish. Ranks arrive at the
        times `came`, (ranks,). Links are occupied until `busy`, (links,). Both count in ps from the first rank's
        arrival."""
        if self._parts and self._replayed:
            plain = not came.any() and not busy[self.links].any()
            found = self._replayed if plain else streamed.ends(self._parts, self.whole.sizes, came, busy)
            if found:
                return found[0]
        return self._whole(came, busy)

    def _whole(self, came: Numbers, busy: Numbers) -> CallEnds | None:
        """Simulate the call with all transfers, or all rows of a loop, in memory; see `alone`."""
        if self._looped is None:
            return _alone(self.program, came, busy)
        one = replace(self._looped.one, arrivals=_of_all(came, self._looped.one))
        return fast.ends(replace(self._looped, one=one), busy)


def _alone(program: Program, came: Numbers, busy: Numbers) -> CallEnds | None:
    return fast.ends(replace(program, arrivals=_of_all(came, program)), busy)


def _of_all(came: Numbers, program: Program) -> Numbers:
    """Return the arrivals in ps of all participants: `came` for the ranks, then 0 for the in-network agents."""
    return np.append(came, np.zeros(program.schedule.agents, np.int64))
