"""The places where the values of a schedule lie, for the proof and for runs with real data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import Numbers, distinct
from simcoll.errors import ScheduleError
from simcoll.schedule.collectives import collective
from simcoll.schedule.steps import singles
from simcoll.schedule.streamed import AnySchedule

SPARSE: Final = 4  # if there are this many times more places than touched ones, only touched ones are numbered


class Places:
    """The (participant, slot) pairs that matter, numbered densely.

    `slots`: of these all participants have a place each; `others`: further (participant, slot) keys, participant ×
    `width` + slot, that are used.
    """

    def __init__(self, participants: int, width: int, slots: Numbers, others: Numbers | None = None):
        self.width, self._column = width, np.full(width, -1, np.int64)
        self._column[slots] = np.arange(len(slots))
        self._columns, self.dense = len(slots), participants * len(slots)
        self._others = np.zeros(0, np.int64) if others is None else distinct(others)
        self._others = self._others[self._column[self._others % width] < 0]

    @classmethod
    def touched(cls, source: AnySchedule, chosen: Numbers | None = None) -> Places:
        """All that a schedule touches; of the buffer only the slots `chosen`."""
        buffer = np.arange(source.n_chunks) if chosen is None else chosen
        width = source.n_slots
        if width == source.n_chunks:
            return cls(source.participants, width, buffer)
        if source.participants * width <= SPARSE * (source.participants * source.n_chunks + source.transfers):
            return cls(source.participants, width, np.arange(width))
        return cls(source.participants, width, buffer, distinct(np.concatenate(list(_keys(source, width)))))

    def __len__(self) -> int:
        return self.dense + len(self._others)

    def of(self, participant: NDArray[Any], slot: NDArray[Any]) -> Numbers:
        """The numbers of places."""
        column = self._column[slot]
        numbers: Numbers = participant.astype(np.int64) * self._columns + column
        outside = np.flatnonzero(column < 0)
        if len(outside):
            keys = participant[outside].astype(np.int64) * self.width + slot[outside]
            numbers[outside] = self.dense + np.searchsorted(self._others, keys)
        return numbers


def _keys(source: AnySchedule, width: int) -> Iterable[Numbers]:
    for step in singles(source.parts()):
        yield step.src.astype(np.int64) * width + step.src_slot
        yield step.dst.astype(np.int64) * width + step.dst_slot


def check_shape(source: AnySchedule) -> None:
    """Raise ScheduleError if the number of chunks cannot carry the contract."""
    contract = collective(source.collective)
    for size in {len(group) for group in source.groups}:
        if source.n_chunks % contract.blocks(size):
            raise ScheduleError(
                f"{source.name}: {source.n_chunks} chunks cannot be cut into {contract.blocks(size)} blocks; "
                f"{contract.name} of {size} ranks needs a multiple"
            )
