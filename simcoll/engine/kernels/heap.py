"""A heap of (time, index) in which each entry has four below it; see `records.Heap`."""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for
from simcoll.engine.kernels.records import Heap

inner = jit_for(__name__, inner=True)


@inner
def sift_up(heap: Heap, at: Any) -> None:
    """Move the entry at `at` up to where it belongs."""
    times, items, place = heap.times, heap.items, heap.place
    t, i, tracked = times[at], items[at], len(place) > 0
    while at > 0:
        above = (at - 1) >> 2
        if times[above] < t or (times[above] == t and items[above] < i):
            break
        times[at], items[at] = times[above], items[above]
        if tracked:
            place[items[at]] = at
        at = above
    times[at], items[at] = t, i
    if tracked:
        place[i] = at


@inner
def sift_down(heap: Heap, size: Any, at: Any) -> None:
    """Move the entry at `at` down to where it belongs."""
    times, items, place = heap.times, heap.items, heap.place
    t, i, tracked = times[at], items[at], len(place) > 0
    while True:
        below = 4 * at + 1
        if below >= size:
            break
        for other in range(below + 1, min(below + 4, size)):
            if times[other] < times[below] or (times[other] == times[below] and items[other] < items[below]):
                below = other
        if t < times[below] or (t == times[below] and i < items[below]):
            break
        times[at], items[at] = times[below], items[below]
        if tracked:
            place[items[at]] = at
        at = below
    times[at], items[at] = t, i
    if tracked:
        place[i] = at


@inner
def push(heap: Heap, size: Any, t: Any, i: Any) -> Any:
    """Enter index `i` at time `t`; returns the new size."""
    heap.times[size], heap.items[size] = t, i
    sift_up(heap, size)
    return size + 1


@inner
def pop(heap: Heap, size: Any) -> Any:
    """Drop the first entry; returns the new size."""
    times, items, place = heap.times, heap.items, heap.place
    if len(place):
        place[items[0]] = -1
    size -= 1
    if size:
        times[0], items[0] = times[size], items[size]
        sift_down(heap, size, 0)
    return size


@inner
def move(heap: Heap, size: Any, t: Any, i: Any) -> Any:
    """Enter index `i` at time `t`, or move it there; returns the new size."""
    times, place = heap.times, heap.place
    at = place[i]
    if at < 0:
        return push(heap, size, t, i)
    earlier = t < times[at]
    times[at] = t
    if earlier:
        sift_up(heap, at)
    else:
        sift_down(heap, size, at)
    return size


@inner
def drop(heap: Heap, size: Any, i: Any) -> Any:
    """Take index `i` out; returns the new size."""
    heap.times[heap.place[i]] = -1
    sift_up(heap, heap.place[i])
    return pop(heap, size)
