"""The parts of a stream bound to links: the columns of steps that do not depend on sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array
from simcoll.engine.timing_model import Params, RoutedNetwork
from simcoll.schedule.ir import StreamedSchedule
from simcoll.schedule.steps import Repeat, StepPattern

CHEAP: Final = 1000  # how many times quicker it is, about, to run a row in a column than by itself uncompiled


class RoutedPart(NamedTuple):
    """A part on its links: row i takes `links[hop[i]:hop[i + 1]]` and is of the pair `connection[i]` (empty where
    nothing limits what is in flight). `before`: for each row the row that writes what it reads next; None unless the
    part is a repeat whose rows share nothing."""

    part: StepPattern
    hop: Array
    links: Array
    connection: Array
    before: Array | None


class RoutedParts:
    """The parts of a stream, bound once if the stream keeps them and each time anew if not."""

    def __init__(self, stream: StreamedSchedule, network: RoutedNetwork, devices: Sequence[str], params: Params):
        self.stream, self.network, self.devices, self.params = stream, network, devices, params
        self._connections: dict[int, int] = {}

    def bound(self) -> Iterator[RoutedPart]:
        """One after the other."""
        return iter(self._kept) if self.stream.held else map(self._bind, self.stream.parts())

    @property
    def connections(self) -> int:
        """The number of pairs so far."""
        return len(self._connections)

    def work(self, whole: bool, single: int) -> float:
        """About the number of rows that have to be replayed by themselves; of a repeat that is run as columns `single`
        steps."""
        if not self.stream.held or not whole:
            return self.stream.transfers
        return sum(
            bound.part.transfers if bound.before is None else bound.part.rows * (single + bound.part.steps / CHEAP)
            for bound in self._kept
        )

    @cached_property
    def _kept(self) -> list[RoutedPart]:
        return [self._bind(part) for part in self.stream.parts()]

    def _bind(self, part: StepPattern) -> RoutedPart:
        step = part.first
        hop, links = self.network.routes(self.devices, step.src, step.dst)
        connection = np.zeros(0, np.int64)
        if self.params.slots:
            keys = (step.src.astype(np.int64) * self.stream.participants + step.dst).tolist()
            known = self._connections
            connection = np.asarray([known.setdefault(key, len(known)) for key in keys], np.int64)
        return RoutedPart(part, hop, links, connection, _before(part, links, self.params))


def _before(part: StepPattern, links: Array, params: Params) -> Array | None:
    """For each row the row that writes what it reads in the step after; None unless the rows share nothing."""
    if not isinstance(part, Repeat):
        return None
    step, n = part.first, part.rows
    if params.channels > 1 or params.barrier:
        return None
    shared = any(np.bincount(column, minlength=1).max() > 1 for column in (step.src, step.dst, links))
    if shared or (step.src == step.dst).any():
        return None
    by_dst = np.argsort(step.dst)
    at = np.searchsorted(step.dst[by_dst], step.src)
    before = by_dst[np.minimum(at, n - 1)]
    written = part.base + (step.dst_slot - part.base) % part.span
    read = part.base + (step.src_slot - part.base + part.shift) % part.span
    matched = (step.dst[before] == step.src) & (written[before] == read) & (part.base[before] == part.base)
    return before.astype(np.int64) if matched.all() else None
