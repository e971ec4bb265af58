"""Input, output and scratch buffers of other programs' schedules as the slots of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcoll.formats.schedules._thread_order import RecordedTransfers
from simcoll.schedule.ir import Schedule

_OF_RANK: Final = {"i": ("all_gather", "gather"), "o": ("reduce_scatter", "scatter")}  # buffers of one block only


@dataclass
class ImportedProgram:
    """The contents of another program's file, before it is played; `sizes` are the chunks of each buffer, the most of
    any rank."""

    name: str
    collective: str
    n: int
    n_chunks: int
    in_place: bool
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class BufferSlots:
    """The slots of a program's buffers `i`, `o` and `s`.

    `alias`: input and output are one buffer. Else the output lies in scratch until it is copied at the end.
    """

    program: ImportedProgram
    alias: bool

    def slot(self, rank: int, buffer: str, offset: int) -> int:
        """The slot of a buffer's chunk; raises ValueError if the buffer is smaller."""
        sizes, n_chunks = self.program.sizes, self.program.n_chunks
        size = sizes[buffer] or (n_chunks if buffer != "s" else 0)
        if not 0 <= offset < size:
            raise ValueError(f"chunk {offset} of buffer {buffer!r}, which has {size}")
        if buffer == "s":
            return n_chunks + offset
        if buffer == "o" and not self.alias:
            return n_chunks + sizes["s"] + offset
        return self._block(rank, buffer) + offset

    def _block(self, rank: int, buffer: str) -> int:
        """The slot at which a rank's own block begins, if that is all that the buffer holds; else 0."""
        each = self.program.n_chunks // self.program.n
        own = self.program.collective in _OF_RANK[buffer] and 0 < self.program.sizes[buffer] <= each
        return rank * each if own else 0

    @property
    def spare(self) -> int:
        """The first slot that no buffer is."""
        sizes = self.program.sizes
        return self.program.n_chunks + sizes["s"] + (0 if self.alias else sizes["o"])

    def schedule(self, moves: RecordedTransfers, **fields: Any) -> Schedule:
        """The schedule of a program that was played; the output is copied to where the contract wants it."""
        program, written = self.program, set(zip(moves.dst, moves.dst_slot, strict=True))
        for rank in range(0 if self.alias else program.n):
            base = self._block(rank, "o")
            for i in range(program.sizes["o"]):
                slot = self.slot(rank, "o", i)
                if (rank, slot) in written:
                    moves.local(rank, slot, base + i, False)
        shape = {"n": program.n, "n_chunks": program.n_chunks}
        return moves.schedule(collective=program.collective, algorithm=program.name, **shape, **fields)
