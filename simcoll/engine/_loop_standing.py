"""States of runs of loops before they felt how many there are. A run of more of the same loops, or of fewer that are
still more than that, goes on from there: sizes of one call differ in their ends only."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np

from simcoll.config.arrays import Array, Numbers, distinct
from simcoll.config.lru import LruCache
from simcoll.engine._loop_period import RunColumns, Standing, period
from simcoll.engine.kernels.loop_records import NOBODY, LoopRun
from simcoll.engine.kernels.waits import COMPLETE
from simcoll.engine.timing_model import NEVER

MOST: Final = 128 << 20  # bytes of all that are kept
AHEAD: Final = 2  # loops that may begin in one window
LOOKS: Final = 4  # times as many loops as connections have slots, after which it is first looked for a period
SEEN: Final = 3  # states, each a period behind the other: windows in which parts go on alone may first be others
MOST_SEEN: Final = 8 << 20  # bytes of a state that is looked at so
WORTH_LISTS: Final = 10_000  # transfers still to be run, uncompiled, from which on it is looked
WORTH_ARRAYS: Final = 2_000_000  # and compiled


_KEPT: Final[LruCache[tuple[Standing, object]]] = LruCache(MOST, lambda kept: kept[0].nbytes)


def run_on(run: LoopRun, go_on: Callable[..., tuple[int, int]], like: Hashable, shared: object) -> tuple[int, int]:
    """Run from where another that is `like` it stood, and leave what the next may go on from; `shared` is what has to
    stay for them to be alike. Returns how many transfers ended, and the latest time of all."""
    pause, before, ended, latest = _last_alike(run), 0, 0, 0
    if pause > 0:
        there, _ = _KEPT.known(like) or (None, None)
        repeats = there is not None and there.period is not None
        if there and _stand(run, there := there.towards(pause)):
            before, ended, latest = there.before, there.ended, there.latest
            if not repeats:
                _KEPT.drop(like)
        del there  # it takes about as much memory as the run does
        if not repeats:
            before, ended, latest, found = _repeating(run, go_on, pause, before, ended, latest)
            if found:
                repeats = True
                _KEPT.keep(like, (found, shared))
                if _stand(run, found := found.towards(pause)):
                    before, ended, latest = found.before, found.ended, found.latest
        ended, latest = go_on(run, ended, latest, pause, NEVER)
        if not repeats and (found := _standing(run, before, ended, latest)):
            _KEPT.keep(like, (found, shared))
    return go_on(run, ended, latest, run.loops, NEVER)


def _repeating(
    run: LoopRun, go_on: Callable[..., tuple[int, int]], pause: int, before: int, ended: int, latest: int
) -> tuple[int, int, int, Standing | None]:
    """Run on, and look whether the run begins to repeat itself before the loop `pause`. Returns the loop before which
    all is over, how many transfers ended, the latest time, and the state from which on it does; None if it does not.

    It is looked for after twice as many loops each time, so that looking costs little. What was complete in loops long
    over says what the period may be. Whether the run repeats itself is what states say that lie so far apart, in which
    all has happened before a time.
    """
    slots, clock = run.streams.slots, run.parts.clock
    least = WORTH_LISTS if isinstance(run.state.state, list) else WORTH_ARRAYS
    at = max(0, int(run.parts.begun[0])) + LOOKS * slots
    while slots and 2 * at < pause and (pause - at) * len(run.pieces.kind) > least:
        ended, latest = go_on(run, ended, latest, at, NEVER)
        here = _standing(run, before, ended, latest)
        if here is None or here.nbytes > MOST_SEEN:
            break
        before, end = here.before, max(map(int, clock))
        guess = _guessed(run, before) if end < NEVER else 0
        for _ in range(SEEN if guess else 0):
            there = here
            ended, latest = go_on(run, ended, latest, pause, end)
            here = _standing(run, before, ended, latest)
            if here is None:
                return before, ended, latest, None
            if found := period(there, here, slots):
                return here.before, ended, latest, here._replace(period=found)
            before, end = here.before, end + guess
        at = 2 * here.begun
    return before, ended, latest, None


def _guessed(run: LoopRun, over: int) -> int:
    """The time in ps after which a run may repeat itself, by when what is awaited was complete in loops that are over:
    of as many loops as connections have slots, or a multiple. 0 if there is no such time."""
    awaited = _awaited(run)
    when = _by_loop(run.state.when, run, 0, over - 1)[:, awaited] if over and len(awaited) else np.zeros((0, 0))
    for loops in range(run.streams.slots, len(when) // 2, run.streams.slots):
        later = when[-loops:] - when[-2 * loops : -loops]
        if later[0, 0] > 0 and (later == later[0, 0]).all():
            return int(later[0, 0])
    return 0


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
    when, state = (_by_loop(column, run, before, reached) for column in (run.state.when, run.state.state))
    awaited, until = _awaited(run), min(*(int(each.min(initial=reached)) for each in (entries[2], loops)))
    over = 0
    while before + over < until and (state[over, awaited] == COMPLETE).all():
        over += 1
    before, when, state = before + over, when[over:], state[over:]
    if when.nbytes > MOST:
        return None
    columns = RunColumns(*(np.array(column) for column in _plain(run)))
    return Standing(ended, latest, before, reached, columns, entries, when.copy(), state.copy())


def _stand(run: LoopRun, there: Standing) -> bool:
    """Let a run that has not begun stand there. Says whether it may."""
    if there.reached >= min(run.loops, run.parts.whole):
        return False
    for column, values in zip(_plain(run), there.columns, strict=True):
        column[:] = values.tolist() if isinstance(column, list) else values
    for column, values in ((run.state.when, there.when), (run.state.state, there.state)):
        begin, end = _places(run, there.before, there.reached)
        column[begin:end] = values.ravel().tolist() if isinstance(column, list) else values.ravel()
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


def _plain(run: LoopRun) -> RunColumns:
    """The columns that a run writes and that are as long whatever its loops."""
    parts, streams = run.parts, run.streams
    moved = streams.at, streams.loop, streams.ready, streams.head, streams.ends, streams.turn, streams.soonest
    return RunColumns(parts.size, parts.clock, parts.begun, *moved, *run.free, *run.heads, run.done)


def _by_loop(column: Any, run: LoopRun, first: int, last: int) -> Array:
    """A column of the state from a loop to another, (loops, entries)."""
    begin, end = _places(run, first, last)
    found: Array = np.asarray(column[begin:end]).reshape(-1, run.state.wide)
    return found


def _places(run: LoopRun, first: int, last: int) -> tuple[int, int]:
    """The places of loops, from one to another, in a column of the state, whose first entry stands for none."""
    return 1 + first * run.state.wide, 1 + (last + 1) * run.state.wide


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
