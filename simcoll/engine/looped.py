"""A schedule that is repeated over a large buffer, stored as one loop and the number of loops. A transfer then takes a
few bytes of memory, not hundreds as in a program that holds all loops. `run.StreamedProgram` makes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simcoll.engine.program import Program
from simcoll.engine.timing_model import Index


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
