"""Find the predecessors of transfers: columns that follow from a schedule alone, each made in one pass.

Indices of transfers are int32; −1 stands for none. `compiled` says whether numba runs the pass.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import Array, Numbers
from simcoll.config.numba_loader import Loops
from simcoll.engine.kernels import dependency_kernel
from simcoll.schedule.schedule import Schedule
from simcoll.schedule.steps import Ints

NONE: Final = -1
DENSE: Final = 1 << 22  # entries; a table of so many is always allowed


def versions(schedule: Schedule, compiled: bool) -> tuple[Ints, Ints]:
    """Return for each transfer the maker of the version it reads, and the maker of the version its own waits for: see
    `timing_model.dependencies`."""
    count, loops = len(schedule), _loops(compiled)
    who, what = np.concatenate([schedule.src, schedule.dst]), np.concatenate([schedule.src_slot, schedule.dst_slot])
    slots, span = _keys(who, what, schedule.n_slots)
    reads, chain = loops.room(count), loops.room(count)
    columns = (schedule.step, slots[:count], slots[count:], schedule.reduce)
    loops.run.versions(*map(loops.give, columns), loops.fill(span, NONE), reads, chain)
    return np.asarray(reads, np.int32), np.asarray(chain, np.int32)


def inherited(reads: Ints, kind: Ints, compiled: bool) -> Ints:
    """Return the kind of value that each transfer carries: the kind of the value it reads, or its own `kind` where that
    was there at the start."""
    loops = _loops(compiled)
    kinds = loops.give(kind)
    loops.run.inherit(loops.give(reads), kinds)
    return np.asarray(kinds, np.int32)


def numbered(a: Ints, b: Ints, compiled: bool) -> tuple[Ints, int]:
    """Number the distinct pairs (a, b) in order of first use; return the number of each pair and how many there are."""
    keys, span = _keys(a, b, int(b.max(initial=0)) + 1)
    loops = _loops(compiled)
    numbers = loops.give(keys)
    used = loops.run.number(numbers, loops.fill(span, NONE))
    return np.asarray(numbers, np.int32), used


def predecessors(group: Ints, groups: int, compiled: bool) -> Ints:
    """Return for each transfer the one before it in its group."""
    loops = _loops(compiled)
    before = loops.room(len(group))
    loops.run.predecessors(loops.give(group), loops.fill(groups, NONE), before)
    return np.asarray(before, np.int32)


def credits(group: Ints, groups: int, slots: int, compiled: bool) -> Ints:
    """Return for each transfer the one `slots` places before it in its group."""
    loops = _loops(compiled)
    columns = [loops.fill(groups, value) for value in (NONE, NONE, 0)]
    credit = loops.room(len(group))
    loops.run.credits(loops.give(group), slots, *columns, loops.room(len(group)), credit)
    return np.asarray(credit, np.int32)


def looped_credits(group: Numbers, slots: int) -> tuple[Array, Array, Array, Array]:
    """Return by transfer of a single loop: the size of its group, its place in the group, the transfer `slots` places
    behind it (before it where negative) as loops follow one another, and how many loops later that is."""
    _, number, many = np.unique(group, return_inverse=True, return_counts=True)
    order, first = np.argsort(number, kind="stable"), np.cumsum(many) - many
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - first[number[order]]
    later, then = np.divmod(place + slots, many[number])
    return many[number], place, order[first[number] + then].astype(np.int32), later.astype(np.int32)


def _loops(compiled: bool) -> Loops:
    return Loops(dependency_kernel, compiled)


def _keys(a: Ints, b: Ints, width: int) -> tuple[NDArray[Any], int]:
    """Return a number for each pair (a, b), 0 ≤ b < `width`, and a bound above all numbers. Where few of the possible
    pairs occur, they are numbered anew: a table of all numbers then takes no more room than the columns."""
    span = (int(a.max(initial=-1)) + 1) * width
    keys: NDArray[Any] = np.multiply(a, width, dtype=np.int32 if span < 2**31 else np.int64)
    keys += b
    if span > 4 * len(keys) + DENSE:
        distinct, keys = np.unique(keys, return_inverse=True)
        keys, span = keys.astype(np.int32), len(distinct)
    return keys, span
