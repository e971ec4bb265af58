"""Folding: if a rotation of the ranks maps schedule and network onto themselves, simulate a few ranks for all.

A rotation by k ranks maps rank r to r + k (mod n). If schedule and network stay the same, rank r + k acts as rank r
does. So k ranks stand for all (a multiple of k if one of them would send to a rank it stands for). This is exact if

* the rotation maps every step onto itself (`Rotation.holds`), and each sender's list of transfers, in order, onto
  another sender's;
* it maps the links of routes onto links of equal bandwidth and latency, and no link onto itself before all ranks have
  gone round: then a link never serves two transfers that stand for each other;
* ties on a link or at a receive side are decided alike everywhere: the transfers that one link or one receiver serves
  in a step stand at different places in their senders' lists;
* no two receivers of one sender become one, so `slots` limits each pair as before.

Otherwise the schedule runs unfolded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.config.numpy_helpers import Array, Numbers, distinct, pieces
from simcoll.engine.timing_model import RoutedNetwork
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import Schedule, StreamedSchedule
from simcoll.schedule.steps import Rotation, Step, join, stable_order

MOST_TURNS: Final = 8  # rotations combined at most, so that no rank sends to a rank that it stands for

# (kept sender, receiver's stand-in) -> the receiver in the unfolded schedule, and the folded links to it.
FoldedRoutes = dict[tuple[int, int], tuple[int, tuple[int, ...]]]


@dataclass(frozen=True, eq=False)
class Folded:
    """A schedule of a few ranks, each of which stands for `times` ranks, and a network of the links that they use. Its
    link i stands for the links `stands_for[i]`, (times,), of the whole network, which has `unfolded` links."""

    schedule: Schedule
    bandwidths: Numbers
    latencies: Numbers
    link_names: Sequence[str]
    routes_of: dict[tuple[int, int], tuple[int, ...]]
    times: int
    stands_for: Numbers
    unfolded: int
    layout: Hashable = field(default_factory=object)  # equal to no other: see `timing_model.RoutedNetwork`

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices of the ranks: `0`, `1`, …"""
        return tuple(map(str, range(self.schedule.participants)))

    def spread(self, column: Numbers, none: int = 0) -> Numbers:
        """Expand a `column` of values by folded link to all links of the whole network; unused links get `none`."""
        whole = np.full(self.unfolded, none)
        whole[self.stands_for] = column[:, None]
        return whole

    def route(self, src: str, dst: str) -> tuple[int, ...]:
        """Return the links from one rank to another, or to itself."""
        return self.routes_of[int(src), int(dst)]

    def routes(self, devices: Sequence[str], src: NDArray[Any], dst: NDArray[Any]) -> tuple[Numbers, Numbers]:
        """Return the routes from `devices[src[i]]` to `devices[dst[i]]`: see `timing_model.RoutedNetwork`."""
        found = [self.routes_of[int(devices[a]), int(devices[b])] for a, b in zip(src, dst, strict=True)]
        hop = np.cumsum([0, *map(len, found)])
        return hop, np.asarray([link for route in found for link in route], np.int64)


def fold(stream: StreamedSchedule, network: RoutedNetwork, devices: Sequence[str]) -> Folded | None:
    """Return a schedule of a few ranks that stand for all; None if its result would not be exact. Some networks are
    symmetric only under rotations by several ranks, such as a whole node. So multiples of the schedule's rotation are
    tried.

    The caller ensures that all chunks have one size, all ranks arrive at time 0, and each rank has one channel, or one
    for each peer.
    """
    n = stream.n
    if stream.rotation is None or stream.agents:
        return None
    apart = distinct(np.concatenate([(part.first.dst - part.first.src) % n for part in stream.parts()]))
    few_of = {turn: few for turn in stream.rotation.repeated(n) if (few := _enough(turn, apart[apart != 0], n))}
    turn = _repeated(few_of, stream, network, devices) if few_of else None
    if turn is None or not turn.holds(stream.parts(), collective(stream.collective).turns, n, stream.n_chunks):
        return None
    few = few_of[turn]
    links, number, columns = _Links(network, n // few), 0, []
    routes: FoldedRoutes = {}
    for part in stream.parts():
        step = part.first.taken(~part.first.joins)
        hop, path = network.routes(devices, step.src, step.dst)
        kept = _kept(step, few)
        if (
            not _in_order(part.first, turn, n)
            or not links.turned(step, few, hop, path)
            or not _told_apart(step, kept, few, hop, path, links.number)
        ):
            return None
        for row in kept.tolist():
            dst, route = int(step.dst[row]), tuple(links.number[path[hop[row] : hop[row + 1]]].tolist())
            if routes.setdefault((int(step.src[row]), dst % few), (dst, route)) != (dst, route):
                return None
        kept = _kept(part.first, few)
        rows = part.taken(kept).whole()
        numbers = np.repeat(number + np.repeat(np.arange(part.steps), len(kept)), rows.count)
        rows = rows.by_slot()
        slots = _turned_back(rows, turn, few)
        rows = rows._replace(dst=(rows.dst % few).astype(np.int32), dst_slot=slots.astype(np.int32))
        columns.append((numbers, rows))
        number += part.steps
    return _assembled(stream, few, columns, routes, links) if links.members else None


def may_fold(stream: StreamedSchedule) -> bool:
    """Return whether the schedule can be folded on some network. Then a multiple of its rotation maps each sender's
    list of transfers, in order, onto the list of another sender. It reads all steps, so it is meant for schedules of
    few ranks."""
    if stream.rotation is None or stream.agents:
        return False
    steps = [part.first for part in stream.parts()]
    return any(
        all(_in_order(step, turned, stream.n) for step in steps) for turned in stream.rotation.repeated(stream.n)
    )


def _sorts(network: RoutedNetwork) -> Numbers:
    """Number distinct pairs of bandwidth and latency in order of first use. Return the number of each link's pair."""
    columns = network.bandwidths, network.latencies
    (_, bandwidth), (latencies, latency) = (np.unique(column, return_inverse=True) for column in columns)
    both = bandwidth * len(latencies) + latency
    _, first, sort = np.unique(both, return_index=True, return_inverse=True)
    number: Numbers = np.argsort(np.argsort(first))[sort]
    return number


def _repeated(
    turns: Iterable[Rotation], stream: StreamedSchedule, network: RoutedNetwork, devices: Sequence[str]
) -> Rotation | None:
    """Return the first rotation in `turns` that maps the routes of the first step onto routes of equal bandwidths and
    latencies; None if no rotation does."""
    first, n = next(stream.parts()).first, stream.n
    step = first.taken(~first.joins)
    hop, path = network.routes(devices, step.src, step.dst)
    place = _place(step.src)
    look = np.full((n, int(place.max(initial=-1)) + 1), -1, np.int64)
    look[step.src, place] = _looks(_sorts(network), hop, path)
    for turned in turns:
        ranks = turned.ranks
        if (look[ranks:] == look[:-ranks]).all() and (look[:ranks] == look[-ranks:]).all():
            return turned
    return None


def _looks(sorts: Numbers, hop: Numbers, path: Array) -> Numbers:
    """Return a number for each route, equal for routes whose links have equal `sorts` in the same order."""
    count, base = len(hop) - 1, int(sorts.max(initial=-1)) + 2
    found = np.zeros(count, np.int64)
    for at in range(int(np.diff(hop).max(initial=0))):
        found *= base
        for rows in pieces(count):
            begin = hop[rows.start : rows.stop + 1]
            there = np.flatnonzero(np.diff(begin) > at)
            found[rows][there] += sorts[path[begin[there] + at]] + 1
        if found.max() >= 2**62 // base:
            found = np.searchsorted(distinct(found), found)
    return found


def _enough(turn: Rotation, apart: Array, n: int) -> int:
    """Return the fewest of `n` ranks to simulate, so that none of them sends to a rank that it stands for. Return 0 if
    over MOST_TURNS rotations are needed. `apart`: the distinct distances from sender to receiver."""
    for turns in range(1, MOST_TURNS + 1):
        few = turns * turn.ranks
        if n % few == 0 and few < n and (apart % few != 0).all():
            return few
    return 0


def _kept(step: Step, few: int) -> Numbers:
    return np.flatnonzero(step.src < few)


def _turned_back(rows: Step, turn: Rotation, few: int) -> Numbers:
    """Return for each row the slot that it writes. The receiver may be replaced by the simulated rank that stands for
    it; then the slot is rotated back by as much as the rank."""
    turns = rows.dst // few * (few // turn.ranks)
    within = rows.dst_slot % turn.span
    found: Numbers = rows.dst_slot - within + (within - turns.astype(np.int64) * turn.chunks) % turn.span
    return found


def _place(src: NDArray[Any]) -> Numbers:
    """Return for each row how many rows of the same sender come before it."""
    counts, place = np.bincount(src), np.empty(len(src), np.int64)
    before = (np.cumsum(counts) - counts).astype(np.int32)
    place[stable_order(src)] = np.arange(len(src), dtype=np.int32) - np.repeat(before, counts)
    return place


def _in_order(step: Step, turn: Rotation, n: int) -> bool:
    """Return whether the rotation maps each sender's list of transfers, in order, onto the list of the sender's image.
    Within a transfer the order of slots does not count."""
    place = _place(step.src[~step.joins])[np.cumsum(~step.joins) - 1]
    place, step = np.repeat(place, step.count), step.by_slot()
    turned = step._replace(
        src=(step.src + turn.ranks) % n,
        src_slot=turn.chunk(step.src_slot),
        dst=(step.dst + turn.ranks) % n,
        dst_slot=turn.chunk(step.dst_slot),
    )
    was, becomes = (
        each.taken(np.lexsort((each.dst_slot, each.src_slot, place, each.src)))[:5] for each in (step, turned)
    )
    return all(map(np.array_equal, was, becomes))


def _told_apart(step: Step, kept: Numbers, few: int, hop: Numbers, path: Numbers, number: Numbers) -> bool:
    """Return whether no two rows at the same position in their senders' lists share a link or receiver. Only rows at
    the same position could tie for it, and ties would be decided differently in the folded run."""
    dst, place = step.dst[kept] % few, _place(step.src[kept])
    lengths = np.diff(hop)[kept]
    own = np.concatenate([number[path[hop[row] : hop[row + 1]]] for row in kept]) if len(kept) else number[:0]
    on_link = np.repeat(place, lengths) * (len(number) + 1) + own
    at_receiver = place * few + dst
    return all(len(distinct(pairs)) == len(pairs) for pairs in (on_link, at_receiver))


class _Links:
    """The folded links. For each link of the whole network, (links,): `number` is the folded link that stands for it,
    −1 if there is none yet. `place` is the link's position among all links that this folded link stands for."""

    def __init__(self, network: RoutedNetwork, times: int):
        self.network, self.times = network, times
        self.number, self.place = (np.full(len(network.bandwidths), -1, np.int64) for _ in range(2))
        self.members: list[Numbers] = []

    def turned(self, step: Step, few: int, hop: Numbers, path: Numbers) -> bool:
        """Add the links on the routes of a step. Return whether the rotation maps the routes onto each other."""
        n = few * self.times
        _, rows = np.unique(step.src.astype(np.int64) * n + step.dst, return_index=True)  # one of each pair
        turns, src = np.divmod(step.src[rows].astype(np.int64), few)
        order = np.argsort((src * n + (step.dst[rows] - turns * few) % n) * self.times + turns)
        rows = rows[order].reshape(-1, self.times)
        lengths = np.diff(hop)[rows]
        if (lengths != lengths[:, :1]).any():
            return False
        for at in range(int(lengths.max(initial=0))):
            links = path[hop[rows[lengths[:, 0] > at]] + at]
            for pair, link in enumerate(links[:, 0].tolist()):
                if self.number[link] < 0 and not self._take(links[pair]):
                    return False
            places = (self.place[links[:, :1]] + np.arange(self.times)) % self.times
            if (self.number[links] != self.number[links[:, :1]]).any() or (self.place[links] != places).any():
                return False
        return True

    def _take(self, links: Numbers) -> bool:
        """Add links that the rotation maps onto each other, as one folded link. Return False if their bandwidths or
        latencies differ, or if a link occurs twice."""
        network = self.network
        alike = all((column[links] == column[links[0]]).all() for column in (network.bandwidths, network.latencies))
        if not alike or len(distinct(links)) < self.times or (self.number[links] >= 0).any():
            return False
        self.number[links], self.place[links] = len(self.members), np.arange(self.times)
        self.members.append(links)
        return True


def _assembled(
    stream: StreamedSchedule,
    few: int,
    columns: Sequence[tuple[Numbers, Step]],
    routes: FoldedRoutes,
    links: _Links,
) -> Folded:
    """Return the schedule of the `few` kept ranks on the folded links."""
    rows = join(*(rows for _, rows in columns))
    schedule = Schedule(
        collective="all_reduce",  # its sizes do not depend on who holds what
        algorithm=stream.algorithm,
        n=few,
        n_chunks=stream.n_chunks,
        step=np.concatenate([numbers for numbers, _ in columns]).astype(np.int32),
        src=rows.src,
        src_slot=rows.src_slot,
        dst=rows.dst,
        dst_slot=rows.dst_slot,
        reduce=rows.reduce,
        count=rows.count,
        joins=rows.joins,
        pipelined=stream.pipelined,
    )
    members = np.stack(links.members)
    return Folded(
        schedule=schedule,
        bandwidths=links.network.bandwidths[members[:, 0]],
        latencies=links.network.latencies[members[:, 0]],
        link_names=[links.network.link_names[link] for link in members[:, 0]],
        routes_of={pair: route for pair, (_, route) in routes.items()},
        times=links.times,
        stands_for=members,
        unfolded=len(links.number),
    )
