"""4-ary heaps of (time, key); see `records.Heaps`."""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for
from simcoll.engine.kernels.records import Heaps

jit = jit_for(__name__)


@jit
def sooner(heaps: Heaps, a: Any, b: Any) -> Any:
    """Return whether entry `a` is before entry `b`; without branches, which a processor would often mispredict."""
    times, items = heaps.times, heaps.items
    return (times[a] < times[b]) | ((times[a] == times[b]) & (items[a] < items[b]))


@jit
def sift_up(heaps: Heaps, at: Any, top: Any) -> None:
    """Move the entry at `at` of the heap at `top` up to where it belongs."""
    times, items, place = heaps.times, heaps.items, heaps.place
    t, i, tracked = times[top + at], items[top + at], len(place) > 0
    while at > 0:
        above = (at - 1) >> 2
        other = items[top + above]
        if times[top + above] < t or (times[top + above] == t and other < i):
            break
        times[top + at], items[top + at] = times[top + above], other
        if tracked:
            place[other] = at
        at = above
    times[top + at], items[top + at] = t, i
    if tracked:
        place[i] = at


@jit
def sift_down(heaps: Heaps, size: Any, at: Any, top: Any) -> None:
    """Move the entry at `at` of the heap at `top`, which has `size` entries, down to where it belongs."""
    times, items, place = heaps.times, heaps.items, heaps.place
    t, i, tracked, at, end = times[top + at], items[top + at], len(place) > 0, top + at, top + size
    while True:
        below = 4 * at + 1 - 3 * top
        if below >= end:
            break
        if below + 3 < end:
            first = below + sooner(heaps, below + 1, below)
            second = below + 2 + sooner(heaps, below + 3, below + 2)
            below = second if sooner(heaps, second, first) else first
        else:
            for other in range(below + 1, end):
                below = other if sooner(heaps, other, below) else below
        if t < times[below] or (t == times[below] and i < items[below]):
            break
        times[at], items[at] = times[below], items[below]
        if tracked:
            place[items[at]] = at - top
        at = below
    times[at], items[at] = t, i
    if tracked:
        place[i] = at - top


@jit
def push(heaps: Heaps, part: Any, t: Any, key: Any) -> None:
    """Insert a key with time `t`; it replaces the first entry of this heap if that is marked as used."""
    size, top = heaps.size[part], heaps.top[part]
    if heaps.used[0] == part:
        heaps.used[0] = -1
        heaps.times[top], heaps.items[top] = t, key
        sift_down(heaps, size, 0, top)
        return
    heaps.times[top + size], heaps.items[top + size] = t, key
    sift_up(heaps, size, top)
    heaps.size[part] = size + 1


@jit
def pop(heaps: Heaps, part: Any) -> None:
    """Remove the first entry."""
    size, top = heaps.size[part] - 1, heaps.top[part]
    if len(heaps.place):
        heaps.place[heaps.items[top]] = -1
    heaps.size[part] = size
    if size:
        heaps.times[top], heaps.items[top] = heaps.times[top + size], heaps.items[top + size]
        sift_down(heaps, size, 0, top)


@jit
def use(heaps: Heaps, part: Any) -> None:
    """Mark the first entry as used: the next `push` replaces it, which is cheaper than `pop` and `push`."""
    heaps.used[0] = part


@jit
def settle(heaps: Heaps) -> None:
    """Remove the entry that is marked as used, if no `push` replaced it."""
    part = heaps.used[0]
    if part >= 0:
        heaps.used[0] = -1
        pop(heaps, part)


# --- for heaps that record the place of each key; a run has one ---


@jit
def move(heaps: Heaps, t: Any, key: Any) -> None:
    """Insert a key with time `t`, or change its time to `t`."""
    times, at = heaps.times, heaps.place[key]
    if at < 0:
        push(heaps, 0, t, key)
        return
    earlier = t < times[at]
    times[at] = t
    if earlier:
        sift_up(heaps, at, 0)
    else:
        sift_down(heaps, heaps.size[0], at, 0)


@jit
def drop(heaps: Heaps, key: Any) -> None:
    """Remove a key."""
    heaps.times[heaps.place[key]] = -1
    sift_up(heaps, heaps.place[key], 0)
    pop(heaps, 0)
