"""Rotations under which a schedule stays itself: what holds for one chunk then holds for all that it is turned into."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import distinct
from simcoll.schedule.collectives import collective
from simcoll.schedule.steps import Repeat, Step, StepPattern


class Rotation(NamedTuple):
    """Rank r becomes r + `ranks` (mod n); chunk c of each run of `span` chunks becomes c + `chunks` (mod span)."""

    ranks: int
    chunks: int
    span: int

    def chunk(self, chunk: NDArray[Any]) -> NDArray[Any]:
        """The chunks that chunks become."""
        within = chunk % self.span
        turned: NDArray[Any] = chunk - within + (within + self.chunks) % self.span
        return turned

    def repeated(self, n: int) -> Iterator[Rotation]:
        """It, and several of its turns as one, as far as `n` ranks come round by whole ones; not all of them."""
        for ranks in range(self.ranks, n, self.ranks):
            if n % ranks == 0:
                yield Rotation(ranks, self.chunks * (ranks // self.ranks) % self.span, self.span)

    def representatives(self, n_chunks: int) -> NDArray[np.int64]:
        """One chunk of each orbit."""
        chunks = np.arange(n_chunks)
        return chunks[chunks % self.span < math.gcd(self.chunks, self.span)]

    def holds(self, parts: Iterable[StepPattern], name: str, n: int, n_chunks: int) -> bool:
        """Whether it turns every part, and the contract of the collective called `name`, into itself."""
        if n_chunks % self.span:
            return False
        kept = {
            "ranks": True,
            "blocks": self.span == n_chunks and self.chunks * n == self.ranks * n_chunks,
            "": False,
        }[collective(name).turns]
        return kept and all(self._keeps(part, n, n_chunks) for part in parts)

    def _keeps(self, part: StepPattern, n: int, n_chunks: int) -> bool:
        step = part.first
        slots = np.concatenate([step.src_slot, step.dst_slot])
        if (len(slots) and slots.max() >= n_chunks) or (
            isinstance(part, Repeat) and not self._keeps_cycles(part, n_chunks)
        ):
            return False
        turned = Step(
            ((step.src + self.ranks) % n).astype(np.int32),
            self.chunk(step.src_slot).astype(np.int32),
            ((step.dst + self.ranks) % n).astype(np.int32),
            self.chunk(step.dst_slot).astype(np.int32),
            step.reduce,
        )
        once = len(distinct(step.dst.astype(np.int64) * n_chunks + step.dst_slot)) == len(step.dst)
        return once and all(map(np.array_equal, _sorted(step, n, n_chunks), _sorted(turned, n, n_chunks)))

    def _keeps_cycles(self, part: Repeat, n_chunks: int) -> bool:
        """Whether a slot that goes on in its cycle and is then turned is the slot that is turned and then goes on."""
        stride = math.gcd(part.shift, part.span)
        base, slots = part.base.astype(np.int64), (part.first.src_slot, part.first.dst_slot)
        starts = distinct([base * stride + (slot - base) % part.span % stride for slot in slots])
        after = np.full(n_chunks, -1, np.int64)
        along = np.arange(0, part.span, stride)
        for base, first in zip(*(column.tolist() for column in np.divmod(starts, stride)), strict=True):
            cycle = base + first + along
            if cycle.max() >= n_chunks or (after[cycle] >= 0).any():
                return False
            after[cycle] = base + (first + along + part.shift) % part.span
        known = np.flatnonzero(after >= 0)
        return np.array_equal(after[self.chunk(known)], self.chunk(after[known]))


def _sorted(step: Step, n: int, n_chunks: int) -> list[NDArray[Any]]:
    """The rows in an order of their own, as two numbers each."""
    who = step.src.astype(np.int64) * n + step.dst
    data = (step.src_slot.astype(np.int64) * n_chunks + step.dst_slot) * 2 + step.reduce
    if n * n_chunks < 2**30:  # both make one number, which is quicker to sort
        return [np.sort(who * (2 * n_chunks * n_chunks) + data)]
    order = np.lexsort((data, who))
    return [who[order], data[order]]
