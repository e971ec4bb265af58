"""Count what the ranks of a schedule send: peers, chunks and rounds, whatever their size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import distinct
from simcoll.config.lru import LruCache
from simcoll.schedule.ir import AnySchedule, Schedule
from simcoll.schedule.steps import Repeat, Step


class StepTraffic(NamedTuple):
    """A step, played `times` times. `peers` is the most that a rank sends to, or receives from; `chunks` the most that
    one peer gets; `copied` the most peers of a rank whose chunks overwrite, and do not reduce."""

    times: int
    peers: int
    chunks: int
    copied: int


class Traffic(NamedTuple):
    """`peers` is the most that a rank sends to, or receives from, in all `rounds`; `sent` the most chunks that a rank
    sends; `agents` the switches that take part."""

    peers: int
    sent: int
    agents: int
    rounds: tuple[StepTraffic, ...]


class _Counted(NamedTuple):
    """A schedule, which is kept so that no other has its id, and its traffic."""

    source: AnySchedule
    traffic: Traffic


_COUNTED: Final[LruCache[_Counted]] = LruCache(5_000_000, lambda counted: counted.source.rows)


def traffic(source: AnySchedule) -> Traffic:
    """The traffic between participants; copies within one are left out, and steps without any other. It is counted once
    for all sizes and protocols."""
    return _COUNTED.get(id(source), lambda: _Counted(source, _traffic(source))).traffic


def _traffic(source: AnySchedule) -> Traffic:
    size, rounds, pairs = source.participants, list[StepTraffic](), np.zeros(0, np.int64)
    sent = np.zeros(size, np.int64)
    for times, rows in _steps(source):
        apart = rows.src != rows.dst
        if not apart.any():
            continue
        src, dst = rows.src[apart].astype(np.int64), rows.dst[apart]
        sent += np.bincount(src, minlength=size) * times
        each, chunks = np.unique(src * size + dst, return_counts=True)
        copied = distinct((src * size + dst)[~rows.reduce[apart]]) % size
        rounds.append(StepTraffic(times, _most_peers(each, size), int(chunks.max()), _most(copied)))
        pairs = distinct(np.concatenate((pairs, each)))
    return Traffic(_most_peers(pairs, size), int(sent.max(initial=0)), source.agents, tuple(rounds))


def _steps(source: AnySchedule) -> Iterator[tuple[int, Step]]:
    """Steps, and how often each is played: what is repeated goes between the same participants."""
    if isinstance(source, Schedule):
        edges = np.flatnonzero(np.diff(source.step)) + 1
        columns = (source.src, source.src_slot, source.dst, source.dst_slot, source.reduce)
        yield from ((1, Step(*rows)) for rows in zip(*(np.split(column, edges) for column in columns), strict=True))
        return
    for part in source.parts():
        yield (part.times, part.first) if isinstance(part, Repeat) else (1, part)


def _most_peers(pairs: NDArray[np.int64], size: int) -> int:
    return max(_most(pairs // size), _most(pairs % size))


def _most(ranks: NDArray[Any]) -> int:
    """The count of the commonest rank."""
    return int(np.bincount(ranks).max(initial=0))
