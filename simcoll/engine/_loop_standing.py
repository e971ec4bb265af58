"""States of runs of loops before they felt how many there are. A run of more of the same loops, or of fewer that are
still more than that, goes on from there: sizes of one call differ in their ends only."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np

from simcoll.config.arrays import Array, Numbers, distinct
from simcoll.config.lru import LruCache
from simcoll.engine.kernels.loop_records import NOBODY, LoopRun
from simcoll.engine.kernels.waits import COMPLETE
from simcoll.named_tuple import NamedTuple

MOST: Final = 128 << 20  # bytes of all that are kept
AHEAD: Final = 2  # loops that may begin in one window


class Standing(NamedTuple):
    """The state of a run: how many transfers had `ended`, the `latest` time, the loop `before` which all was over, and
    the last one that had been `reached`. `columns` are those that are as long in each run; `entries` of the heaps, part
    by part, are times, numbers of rows, and loops; of loops from `before` to that reached `when` and `state`."""

    ended: int
    latest: int
    before: int
    reached: int
    columns: tuple[Array, ...]
    entries: tuple[Numbers, Numbers, Numbers]
    when: Array
    state: Array

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(each.nbytes for each in (*self.columns, *self.entries, self.when, self.state))


_KEPT: Final[LruCache[tuple[Standing, object]]] = LruCache(MOST, lambda kept: kept[0].nbytes)


def run_on(run: LoopRun, go_on: Callable[..., tuple[int, int]], like: Hashable, shared: object) -> tuple[int, int]:
    """Run from where another that is `like` it stood, and leave what the next may go on from; `shared` is what has to
    stay for them to be alike. Returns how many transfers ended, and the latest time of all."""
    pause, before, ended, latest = _last_alike(run), 0, 0, 0
    if pause > 0:
        there, _ = _KEPT.known(like) or (None, None)
        if there and _stand(run, there):
            _KEPT.drop(like)
            before, ended, latest = there.before, there.ended, there.latest
        del there  # it takes about as much memory as the run does
        ended, latest = go_on(run, ended, latest, pause)
        if found := _standing(run, before, ended, latest):
            _KEPT.keep(like, (found, shared))
    return go_on(run, ended, latest, run.loops)


def _last_alike(run: LoopRun) -> int:
    """The loop with whose begin a run is to pause: nothing in it, nor behind it as far as anything may be by then, was
    felt to be the last, or of a rest. Below 0: there is none."""
    return min(run.loops, run.parts.whole) - _further(run) - run.streams.slots - AHEAD


def _further(run: LoopRun) -> int:
    """The number of loops after which the end of a transfer is still felt."""
    later = np.asarray(run.credit_loops[:: run.rows.apart])
    return int(later[later != NOBODY].max(initial=1))


def _standing(run: LoopRun, before: int, ended: int, latest: int) -> Standing | None:
    """The state of a run, in which all was over long ago `before` a loop; None where it has felt its end, or is too
    much to keep."""
    begun, loops = int(run.parts.begun[0]), np.asarray(run.streams.loop, np.int64)
    reached = max(begun, int(loops.max(initial=0))) + _further(run)
    if begun < 0 or reached >= min(run.loops, run.parts.whole):
        return None
    entries = _entries(run)
    when, state = (_by_loop(column, run) for column in (run.state.when, run.state.state))
    awaited, until = _awaited(run), min(*(int(each.min(initial=reached)) for each in (entries[2], loops)))
    while before < until and (state[before, awaited] == COMPLETE).all():
        before += 1
    when, state = when[before : reached + 1], state[before : reached + 1]
    if when.nbytes > MOST:
        return None
    columns = tuple(np.array(column) for column in _plain(run))
    return Standing(ended, latest, before, reached, columns, entries, when.copy(), state.copy())


def _stand(run: LoopRun, there: Standing) -> bool:
    """Let a run that has not begun stand there. Says whether it may."""
    if there.reached >= min(run.loops, run.parts.whole):
        return False
    for column, values in zip(_plain(run), there.columns, strict=True):
        column[:] = values.tolist() if isinstance(column, list) else values
    for column, values in ((run.state.when, there.when), (run.state.state, there.state)):
        known = _by_loop(column, run)  # of an array a view
        known[there.before : there.reached + 1] = values
        if isinstance(column, list):
            column[1:] = known.ravel().tolist()
    step, row_bits, loop_bits = run.keys
    times, number, loop = there.entries
    steps = np.asarray(step, np.int64)[number * run.rows.apart] + loop
    where = _filled(run)
    _put(run.heap.times, where, times)
    _put(run.heap.items, where, (((steps << loop_bits) | loop) << row_bits) | number)
    streams = run.streams
    at, then, reads = (np.asarray(column, np.int64) for column in (streams.at, streams.loop, streams.reads))
    _put(streams.awaits, np.arange(len(at)), np.where(reads[at] < 0, 0, reads[at] + then * run.state.wide))
    return True


def _plain(run: LoopRun) -> tuple[Any, ...]:
    """The columns that a run writes and that are as long whatever its loops."""
    parts, streams = run.parts, run.streams
    moved = streams.at, streams.loop, streams.ready, streams.head, streams.ends, streams.turn, streams.soonest
    return (parts.size, parts.clock, parts.begun, *moved, *run.free, *run.heads, run.done)


def _by_loop(column: Any, run: LoopRun) -> Array:
    """A column of the state by loop, without the first entry, which stands for none."""
    found: Array = np.asarray(column)[1:].reshape(run.loops, run.state.wide)
    return found


def _awaited(run: LoopRun) -> Numbers:
    """The entries of the state of a loop that somebody awaits: these are complete in the end."""
    first, awaited = (np.asarray(column[:: run.rows.apart]) for column in (run.state.first, run.rows.awaited))
    found: Numbers = distinct(first[(awaited > 0) & (first > 0)]) - 1
    return found


def _filled(run: LoopRun) -> Numbers:
    """The places of all entries of the heaps, part by part."""
    size, room = np.asarray(run.parts.size, np.int64), np.asarray(run.parts.room, np.int64)
    begin = np.cumsum(size) - size
    places: Numbers = np.repeat(room[:-1] - begin, size) + np.arange(size.sum())
    return places


def _entries(run: LoopRun) -> tuple[Numbers, Numbers, Numbers]:
    """Times, rows by number, and loops of all entries of the heaps."""
    where, (_, row_bits, loop_bits) = _filled(run), run.keys
    items = np.asarray(run.heap.items, np.int64)[where]
    loop = (items >> row_bits) & ((1 << loop_bits) - 1)
    return np.asarray(run.heap.times, np.int64)[where], items & ((1 << row_bits) - 1), loop


def _put(column: Any, where: Numbers, values: Array) -> None:
    """Set entries of a column, an array or a list."""
    if isinstance(column, list):
        for place, value in zip(where.tolist(), values.tolist(), strict=True):
            column[place] = value
    else:
        column[where] = values
