"""A schedule that is repeated over a large buffer, stored as one loop and the number of loops. A transfer then takes a
few bytes of memory, not hundreds as in a program that holds all loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simcoll.config.machine_limits import check_memory
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.timing_model import Index, Params, RoutedNetwork, piece_bytes
from simcoll.schedule.schedule import Schedule

BYTES: Final = 15  # of memory for each transfer: its time, a count of what it waits for, its state
MOST_BITS: Final = 62  # bits of a heap key


@dataclass(frozen=True, eq=False)
class LoopedProgram:
    """A program stored as one loop. `one` is the program of a single loop over whole slots. It is repeated `loops`
    times; each loop moves at most `piece` bytes of a slot. A connection has at most `slots` pieces in flight (0: any
    number)."""

    one: Program
    loops: int
    piece: int
    slots: int

    def __len__(self) -> int:
        return len(self.one) * self.loops

    @property
    def row_bits(self) -> int:
        """The number of bits for a row's number in a heap key."""
        return max(1, (len(self.one) - 1).bit_length())

    @property
    def loop_bits(self) -> int:
        """The number of bits for a loop's number in a heap key."""
        return max(1, (self.loops - 1).bit_length())

    @property
    def steps(self) -> Index:
        """The step of each row if each loop runs one step behind the last; empty if loops run one after the other."""
        schedule = self.one.schedule
        return schedule.step if schedule.pipelined else np.zeros(0, np.int32)

    @property
    def first(self) -> Index:
        """For each row the first row of its channel, int32 (rows,)."""
        _, first = np.unique(self.one.channel, return_index=True)
        found: Index = first[self.one.channel].astype(np.int32)
        return found

    @property
    def sized(self) -> Program:
        """The program `one` with other sizes: for each slot the remainder in its last loop, then a whole piece."""
        sizes = np.append(self.one.sizes % self.piece, self.piece)
        return replace(self.one, sizes=sizes, kind=np.arange(len(sizes), dtype=np.int32), memo={})


def looped(
    schedule: Schedule,
    network: RoutedNetwork,
    devices: Sequence[str],
    params: Params,
    nbytes: int,
    *,
    itemsize: int = 1,
    weights: object = None,
    arrivals: Mapping[int, int] | None = None,
) -> LoopedProgram | None:
    """Return the program that `bind` would make, as one loop and the number of loops. Return None if there is only one
    loop, if some loop does not send every row, if a transfer moves several slots, or if a channel does not finish one
    loop before the next. Also None with barriers, with blocking sends, or without `fifo` sharing. Raises like
    `bind`."""
    waiting = params.sharing != "fifo" or params.barrier or params.blocking != "no"
    in_turn = params.channels > 1 and params.channels_by == "chunk"
    if not params.chunk or waiting or in_turn or schedule.transfers < int(schedule.count.sum()):
        return None
    whole = replace(params, chunk=0, slots=0)
    one = bind(schedule, network, devices, whole, nbytes, itemsize=itemsize, weights=weights, arrivals=arrivals)
    piece = piece_bytes(params.chunk, itemsize)
    loops_of = -(-one.nbytes // piece)
    loops = int(loops_of.max(initial=0))
    found = LoopedProgram(one, loops, piece, params.slots)
    if loops < 2 or (loops_of < loops).any():
        return None
    steps = found.steps
    bits = found.row_bits + found.loop_bits + (int(steps.max(initial=0)) + loops).bit_length()
    if bits > MOST_BITS or (len(steps) and (steps != steps[found.first]).any()):
        return None
    check_memory(len(found) * BYTES, f"{loops} loops of {len(one)} transfers", "write a larger chunk", "model")
    return found
