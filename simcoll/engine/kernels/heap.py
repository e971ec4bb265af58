"""A heap of (time, index) in which each entry has four below it; see `records.Heap`. Of several heaps in the same
columns one begins at `top`; they are not tracked."""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for
from simcoll.engine.kernels.records import Heap

inner, inline = jit_for(__name__), jit_for(__name__, inline=True)


@inline
def sooner(heap: Heap, a: Any, b: Any) -> Any:
    """Whether the entry at `a` is before that at `b`: without branches, which a processor would often guess wrong."""
    times, items = heap.times, heap.items
    return (times[a] < times[b]) | ((times[a] == times[b]) & (items[a] < items[b]))


@inner
def sift_up(heap: Heap, at: Any, top: Any = 0) -> None:
    """Move the entry at `at` up to where it belongs."""
    times, items, place = heap.times, heap.items, heap.place
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


@inner
def sift_down(heap: Heap, size: Any, at: Any, top: Any = 0) -> None:
    """Move the entry at `at` down to where it belongs."""
    times, items, place = heap.times, heap.items, heap.place
    t, i, tracked, at, end = times[top + at], items[top + at], len(place) > 0, top + at, top + size
    while True:
        below = 4 * at + 1 - 3 * top
        if below >= end:
            break
        if below + 3 < end:
            first = below + sooner(heap, below + 1, below)
            second = below + 2 + sooner(heap, below + 3, below + 2)
            below = second if sooner(heap, second, first) else first
        else:
            for other in range(below + 1, end):
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


@inner
def push(heap: Heap, size: Any, t: Any, i: Any, top: Any = 0) -> Any:
    """Enter index `i` at time `t`; returns the new size."""
    heap.times[top + size], heap.items[top + size] = t, i
    sift_up(heap, size, top)
    return size + 1


@inner
def pop(heap: Heap, size: Any, top: Any = 0) -> Any:
    """Drop the first entry; returns the new size."""
    times, items, place = heap.times, heap.items, heap.place
    if len(place):
        place[items[top]] = -1
    size -= 1
    if size:
        times[top], items[top] = times[top + size], items[top + size]
        sift_down(heap, size, 0, top)
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
