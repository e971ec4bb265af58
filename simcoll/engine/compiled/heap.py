"""Heaps of (time, key), in which each entry has up to four children."""

from __future__ import annotations

from typing import Any, NamedTuple

from simcoll.config.numba_loader import jit_for

jit = jit_for(__name__)


class Heap(NamedTuple):
    """A heap in the columns `times` and `items` (keys). `size`, (1,), is the number of its entries. `place` is the
    position of each key; it is empty if positions are not recorded. `used`, (1,), is 1 if the first entry has been
    processed and may be replaced, else 0."""

    times: Any
    items: Any
    place: Any
    size: Any
    used: Any


@jit
def sooner(heap: Heap, a: Any, b: Any) -> Any:
    """Return whether entry `a` is before entry `b`; without branches, which a processor would often predict wrongly."""
    times, items = heap.times, heap.items
    return (times[a] < times[b]) | ((times[a] == times[b]) & (items[a] < items[b]))


@jit
def sift_up(heap: Heap, at: Any) -> None:
    """Move the entry at position `at` towards the root, until its parent is not later."""
    times, items, place = heap.times, heap.items, heap.place
    t, i, tracked = times[at], items[at], len(place) > 0
    while at > 0:
        above = (at - 1) >> 2
        other = items[above]
        if times[above] < t or (times[above] == t and other < i):
            break
        times[at], items[at] = times[above], other
        if tracked:
            place[other] = at
        at = above
    times[at], items[at] = t, i
    if tracked:
        place[i] = at


@jit
def sift_down(heap: Heap, size: Any, at: Any) -> None:
    """Move the entry at position `at` of `size` entries away from the root, until its children are not earlier."""
    times, items, place = heap.times, heap.items, heap.place
    t, i, tracked = times[at], items[at], len(place) > 0
    while True:
        below = 4 * at + 1
        if below >= size:
            break
        if below + 3 < size:
            first = below + sooner(heap, below + 1, below)
            second = below + 2 + sooner(heap, below + 3, below + 2)
            below = second if sooner(heap, second, first) else first
        else:
            for other in range(below + 1, size):
                below = other if sooner(heap, other, below) else below
        if t < times[below] or (t == times[below] and i < items[below]):
            break
        times[at], items[at] = times[below], items[below]
        if tracked:
            place[items[at]] = at
        at = below
    times[at], items[at] = t, i
    if tracked:
        place[i] = at


@jit
def push(heap: Heap, t: Any, key: Any) -> None:
    """Insert a key with time `t`; it replaces the first entry if that is marked as used."""
    size = heap.size[0]
    if heap.used[0]:
        heap.used[0] = 0
        heap.times[0], heap.items[0] = t, key
        sift_down(heap, size, 0)
        return
    heap.times[size], heap.items[size] = t, key
    sift_up(heap, size)
    heap.size[0] = size + 1


@jit
def pop(heap: Heap) -> None:
    """Remove the first entry."""
    size = heap.size[0] - 1
    if len(heap.place):
        heap.place[heap.items[0]] = -1
    heap.size[0] = size
    if size:
        heap.times[0], heap.items[0] = heap.times[size], heap.items[size]
        sift_down(heap, size, 0)


@jit
def use(heap: Heap) -> None:
    """Mark the first entry as used: the next `push` replaces it, which is cheaper than `pop` and `push`."""
    heap.used[0] = 1


@jit
def settle(heap: Heap) -> None:
    """Remove the first entry if it is marked as used and no `push` replaced it."""
    if heap.used[0]:
        heap.used[0] = 0
        pop(heap)


# --- for heaps that record the place of each key ---


@jit
def move(heap: Heap, t: Any, key: Any) -> None:
    """Insert a key with time `t`, or change its time to `t`."""
    times, at = heap.times, heap.place[key]
    if at < 0:
        push(heap, t, key)
        return
    earlier = t < times[at]
    times[at] = t
    if earlier:
        sift_up(heap, at)
    else:
        sift_down(heap, heap.size[0], at)


@jit
def drop(heap: Heap, key: Any) -> None:
    """Remove a key."""
    heap.times[heap.place[key]] = -1
    sift_up(heap, heap.place[key])
    pop(heap)
