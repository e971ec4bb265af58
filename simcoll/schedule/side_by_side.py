"""Schedules side by side, as one: those of disjoint groups, or copies of one schedule, each with its share of the data
and the ranks in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcoll.config.arrays import Numbers
from simcoll.errors import ScheduleError
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import COLUMNS, Schedule

Order = tuple[int, ...]  # the rank that plays each place of a schedule; agents too, if they are moved


def joined(schedules: Sequence[Schedule]) -> Schedule:
    """Return schedules of disjoint groups in one world as one schedule, run at the same time."""
    first = schedules[0]
    if len(schedules) == 1:
        return first
    if any(s.agents for s in schedules):
        raise ScheduleError(f"{first.name}: groups side by side cannot share in-network agents")
    if len({(s.n_chunks, s.n) for s in schedules}) != 1:
        raise ScheduleError(f"{first.name}: groups side by side must be of equal size")
    order = np.argsort(np.concatenate([s.step for s in schedules]), kind="stable")
    columns = [np.concatenate(column)[order] for column in zip(*(s.columns for s in schedules), strict=True)]
    groups = tuple(g for s in schedules for g in s.groups)
    return first.replace(groups=groups, **dict(zip(COLUMNS, columns, strict=True)))


# --- copies ---


def in_copies(schedule: Schedule, orders: Sequence[Order]) -> Schedule:
    """Return a schedule of one group, once for each order: rank `order[r]` does what rank r does in the schedule.
    Agents do so too; they stay in their places where an order has ranks only.

    Every block of the buffer is cut into as many parts as there are copies, and a copy moves its part of each. Where
    the contract has a block for each rank, blocks are renamed with their ranks. An order must leave the root in its
    place, and for send_recv the rank behind it; the proof finds an order that does not.
    """
    each, width = _parts(schedule), schedule.n_slots - schedule.n_chunks
    names = ("src", "src_slot", "dst", "dst_slot")
    columns: dict[str, list[Numbers]] = {name: [] for name in names}
    for number, order in enumerate(orders):
        rank = np.asarray([*order, *range(len(order), schedule.participants)], np.int32)
        block, part = np.divmod(np.arange(schedule.n_chunks), each)
        block = rank[block] if schedule.n_chunks > each else block
        slot = (block * len(orders) + number) * each + part
        scratch = schedule.n_chunks * len(orders) + number * width + np.arange(width)
        place = np.append(slot, scratch).astype(np.int32)
        for name in names:
            columns[name].append((place if name.endswith("slot") else rank)[getattr(schedule, name)])
    # row i of all copies, then row i + 1: steps stay in order, and within one the copies go evenly
    rows = {name: np.stack(found, axis=1).ravel() for name, found in columns.items()}
    times = len(orders)
    return schedule.replace(
        n_chunks=schedule.n_chunks * times,
        step=np.repeat(schedule.step, times),
        reduce=np.repeat(schedule.reduce, times),
        **rows,
    )


def _parts(schedule: Schedule) -> int:
    """Return the number of chunks of a block."""
    return schedule.n_chunks // collective(schedule.collective).blocks(schedule.n)


# --- orders in which copies use links evenly ---


def turns(n: int) -> list[Order]:
    """Return orders with every rank first once, the others behind it as they follow in a ring.

    >>> turns(3)
    [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    """
    return [tuple((first + i) % n for i in range(n)) for first in range(n)]


def of_groups(groups: Sequence[Sequence[int]]) -> list[Order]:
    """Return orders with each group once in the place of the first, the others behind as in a ring, with agents.

    >>> of_groups([[0, 1], [2, 3]])
    [(0, 1, 2, 3, 4, 5), (2, 3, 0, 1, 5, 4)]
    """
    n, found = sum(map(len, groups)), []
    for turn in turns(len(groups)):
        plays = {
            place: groups[group][i]
            for places, group in zip(groups, turn, strict=True)
            for i, place in enumerate(places)
        }
        found.append((*(plays[place] for place in range(n)), *(n + group for group in turn)))
    return found


def paths(n: int) -> list[Order]:
    """Return paths through all ranks that together take every pair, each way, equally often, and begin and end at each
    rank equally often. For even n they are the n turns of a zigzag, 0, 1, −1, 2, −2, … (mod n), for odd n also their
    reverses.

    Walecki's construction; see B. Alspach, "The wonderful Walecki construction" (2008).

    >>> paths(4)
    [(0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1)]
    """
    zigzag = [0, *(sign * i % n for i in range(1, n) for sign in (1, -1))][:n]
    found = [tuple((first + i) % n for i in zigzag) for first in range(n)]
    return found if n % 2 == 0 else found + [order[::-1] for order in found]


def cycles(n: int) -> list[Order]:
    """Return rings of all ranks that together take every pair, each way, equally often: the `paths` of n − 1 ranks,
    closed over the last rank.

    >>> cycles(3)
    [(2, 0, 1), (2, 1, 0)]
    """
    return [(n - 1, *path) for path in paths(n - 1)] if n > 2 else [tuple(range(n))]
