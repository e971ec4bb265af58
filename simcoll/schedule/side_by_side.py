"""Join schedules that run at the same time into one: schedules of disjoint groups, or copies of one schedule. Each copy
moves a share of the data, with the ranks in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcoll.config.numpy_helpers import Numbers
from simcoll.errors import ScheduleError
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import COLUMNS, Schedule

Order = tuple[int, ...]  # item r: the rank that takes rank r's place in a schedule; agents too, if they change


def joined(schedules: Sequence[Schedule]) -> Schedule:
    """Return one schedule that runs the schedules of disjoint groups of ranks at the same time."""
    first = schedules[0]
    if len(schedules) == 1:
        return first
    if any(s.agents for s in schedules):
        raise ScheduleError(f"{first.name}: groups side by side cannot share in-network agents")
    if len({(s.n_chunks, s.n) for s in schedules}) != 1:
        raise ScheduleError(f"{first.name}: groups side by side must be of equal size")
    if any(s.routes for s in schedules):
        raise ScheduleError(f"{first.name}: groups side by side cannot have transfers with routes of their own")
    order = np.argsort(np.concatenate([s.step for s in schedules]), kind="stable")
    columns = [np.concatenate(column)[order] for column in zip(*(s.columns for s in schedules), strict=True)]
    groups = tuple(g for s in schedules for g in s.groups)
    none = np.zeros(0, np.int32)  # the default: no routes
    return first.replace(groups=groups, route=none, **dict(zip(COLUMNS, columns, strict=True)))


# --- copies ---


def in_copies(schedule: Schedule, orders: Sequence[Order]) -> Schedule:
    """Return one schedule that runs a copy of `schedule` for each order; in a copy rank `order[r]` takes the place of
    rank r. Agents are permuted likewise, but keep their places if an order has ranks only.

    Every block of the buffer is cut into one part per copy; a copy moves its own part of each block. If the contract
    has a block for each rank, blocks are permuted with their ranks. An order must leave the root in its place, and for
    send_recv the rank behind the root; the proof of the result fails for any other order.
    """
    if schedule.routes and any(order != tuple(range(len(order))) for order in orders):
        raise ScheduleError(f"{schedule.name}: transfers with routes of their own cannot change places in copies")
    schedule, times = schedule.by_slot(), len(orders)  # a copy may move the slots of a run apart
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
    # transfer i of all copies, then transfer i + 1: steps stay in order, and copies alternate within a step
    rows_of = schedule.taken(np.repeat(np.arange(schedule.transfers), times))
    copy = np.repeat(np.tile(np.arange(times), schedule.transfers), rows_of.counts)
    rows = {name: np.stack(found)[copy, rows_of.members] for name, found in columns.items()}
    more = {name: getattr(schedule, name)[rows_of.members] for name in ("step", "reduce", "count", "joins", "route")}
    return schedule.replace(n_chunks=schedule.n_chunks * times, **rows, **more)


def _parts(schedule: Schedule) -> int:
    """Return the number of chunks per block of the collective's contract."""
    return schedule.n_chunks // collective(schedule.collective).blocks(schedule.n)


# --- orders in which copies use links evenly ---


def turns(n: int) -> list[Order]:
    """Return the n cyclic shifts of 0 … n−1.

    >>> turns(3)
    [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    """
    return [tuple((first + i) % n for i in range(n)) for first in range(n)]


def of_groups(groups: Sequence[Sequence[int]]) -> list[Order]:
    """Return for each cyclic shift of the groups the order that moves all ranks of a group, and its agent, to another
    group.

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
    """Return paths through all n ranks. Together they contain every ordered pair of neighbours equally often, and begin
    and end at each rank equally often. For even n they are the n shifts of a zigzag, 0, 1, −1, 2, −2, … (mod n), for
    odd n also their reverses.

    Walecki's construction; see B. Alspach, "The wonderful Walecki construction" (2008).

    >>> paths(4)
    [(0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1)]
    """
    zigzag = [0, *(sign * i % n for i in range(1, n) for sign in (1, -1))][:n]
    found = [tuple((first + i) % n for i in zigzag) for first in range(n)]
    return found if n % 2 == 0 else found + [order[::-1] for order in found]


def cycles(n: int) -> list[Order]:
    """Return rings of all ranks that together contain every ordered pair of neighbours equally often: the `paths` of
    n − 1 ranks, closed over the last rank.

    >>> cycles(3)
    [(2, 0, 1), (2, 1, 0)]
    """
    return [(n - 1, *path) for path in paths(n - 1)] if n > 2 else [tuple(range(n))]
