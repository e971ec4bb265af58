"""Input, output and scratch buffers of other programs' schedules as the slots of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcoll.formats.schedules._thread_order import RecordedTransfers

_OF_RANK: Final = {"i": ("all_gather", "gather"), "o": ("reduce_scatter", "scatter")}  # buffers of one block only


@dataclass(frozen=True)
class BufferSlots:
    """The slots of buffers `i`, `o` and `s`, whose `sizes` are in chunks, the most of any rank.

    `alias`: input and output are one buffer. Else the output lies in scratch until it is copied at the end.
    """

    collective: str
    n: int
    n_chunks: int
    sizes: Mapping[str, int]
    alias: bool

    def slot(self, rank: int, buffer: str, offset: int) -> int:
        """The slot of a buffer's chunk; raises ValueError if the buffer is smaller."""
        size = self.sizes[buffer] or (self.n_chunks if buffer != "s" else 0)
        if not 0 <= offset < size:
            raise ValueError(f"chunk {offset} of buffer {buffer!r}, which has {size}")
        if buffer == "s":
            return self.n_chunks + offset
        if buffer == "o" and not self.alias:
            return self.n_chunks + self.sizes["s"] + offset
        return self._block(rank, buffer) + offset

    def _block(self, rank: int, buffer: str) -> int:
        """The slot at which a rank's own block begins, if that is all that the buffer holds; else 0."""
        own = self.collective in _OF_RANK[buffer] and 0 < self.sizes[buffer] <= self.n_chunks // self.n
        return rank * (self.n_chunks // self.n) if own else 0

    @property
    def spare(self) -> int:
        """The first slot that no buffer is."""
        return self.n_chunks + self.sizes["s"] + (0 if self.alias else self.sizes["o"])

    def copy_out(self, moves: RecordedTransfers) -> None:
        """Copy the output to where the contract wants it, if it is not there."""
        if self.alias:
            return
        written = set(zip(moves.dst, moves.dst_slot, strict=True))
        for rank in range(self.n):
            base = self._block(rank, "o")
            for i in range(self.sizes["o"]):
                slot = self.slot(rank, "o", i)
                if (rank, slot) in written:
                    moves.local(rank, slot, base + i, False)
