"""The tasks of a program of several operations: the share that each rank has in each operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcoll.engine.timing_model import Index


@dataclass(frozen=True, eq=False)
class Tasks:
    """The tasks of a program: each is the share of one rank in one operation, or a computation.

    A task *opens* when all tasks before it are done. Its channels start nothing earlier, and the data that its rank
    brings is not there earlier. It is *done* when `duration` (tasks,), in ps, has passed since it opened, the transfers
    of its channels are sent, and those to its receive sides are complete. Task k waits for
    `before[first[k]:first[k + 1]]`, (tasks + 1,), all lower than k and of earlier operations. `channel` (channels,) and
    `side` (sides,) name the task of each; NONE: of an in-network agent, which waits for nobody. Channels with the same
    `lane` (channels,) are of tasks that follow each other, so that never two of them send at once.
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
        """Return the tasks that wait for each: for task k they are `after[first[k]:first[k + 1]]`."""
        waiting = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))
        return grouped(self.before, waiting, len(self))


def grouped(key: Index, values: Index, count: int) -> tuple[Index, Index]:
    """Return where the `values` of each key 0 … count − 1 begin, and the values, key by key in their order. Values of
    the key NONE are left out."""
    order = np.argsort(key, kind="stable")[int((key < 0).sum()) :]
    first = np.append(0, np.cumsum(np.bincount(key[key >= 0], minlength=count)))
    return first.astype(np.int32), values[order].astype(np.int32)
