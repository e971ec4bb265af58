"""The tasks of a program of several operations: one task is the part of one rank in one operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcoll.engine.timing_model import Index


@dataclass(frozen=True, eq=False)
class Tasks:
    """The tasks of a program: a task is the part of one rank in one operation (a collective or a computation).

    A task *opens* when all tasks that it waits for are done. Until then its channels start nothing, and the data of its
    rank is not there to be reduced into. It is *done* when `duration` (tasks,), in ps, has passed since it opened, the
    transfers of its channels are sent, and those to its receive sides are complete. Task k waits for the tasks
    `before[first[k]:first[k + 1]]`, all lower than k and of earlier operations; `first` has shape (tasks + 1,).
    `channel` (channels,) and `side` (sides,) hold the task of each channel and receive side; NONE for an in-network
    agent, which waits for no task. Channels of one `lane` (channels,) belong to successive tasks: one sends at a time.
    """

    channel: Index
    side: Index
    duration: Index
    first: Index
    before: Index
    lane: Index

    def __len__(self) -> int:
        return len(self.duration)

    def behind(self) -> tuple[Index, Index]:
        """Return `first` and `after`: the tasks that wait for task k are `after[first[k]:first[k + 1]]`."""
        waiting = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))
        return grouped(self.before, waiting, len(self))


def grouped(key: Index, values: Index, count: int) -> tuple[Index, Index]:
    """Group `values` by `key` (0 … count − 1). Return where the values of each key begin, (count + 1,), and the values
    key by key, in their order. Values with the key NONE are left out."""
    order = np.argsort(key, kind="stable")[int((key < 0).sum()) :]
    first = np.append(0, np.cumsum(np.bincount(key[key >= 0], minlength=count)))
    return first.astype(np.int32), values[order].astype(np.int32)
