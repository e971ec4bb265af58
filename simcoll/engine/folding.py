"""Folding: where a rotation of the ranks turns schedule and network into themselves, some ranks stand for all.

Every rank then does what the rank one turn on does, at the same time. So it is enough to run the ranks of one turn (or
of a few, so that nobody sends to one who stands for itself) on links that stand for theirs. That is exact if

* the rotation turns every step into itself (`Rotation.holds`), and every sender's list, in order, into another's;
* it turns the links of routes into links of equal bandwidth and latency, and no link into itself before the turns come
  round: then a link never serves two transfers that stand for each other;
* whatever a tie decides (on a link, at a receive side) is decided the same way everywhere: what one link or one
  receiver serves in a step stands at different places in its senders' lists;
* transfers of one pair that are to be distinguished (`slots`) are: no two receivers of a sender become one.

Anything else is refused, and the schedule run as it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import Numbers
from simcoll.config.lru import LruCache
from simcoll.dataclass import dataclass
from simcoll.engine.timing_model import RoutedNetwork
from simcoll.schedule.ir import Schedule
from simcoll.schedule.steps import Repeat, Step, StepPattern, join
from simcoll.schedule.streamed import StreamedSchedule
from simcoll.schedule.symmetry import Rotation

MOST_TURNS: Final = 8  # taken together so that nobody sends to one who stands for itself
MOST_FOLDED: Final = 10_000_000  # transfers of schedules that are kept: some 200 MB

# Of each pair of the few: the whole receiver, and the links to it.
FoldedRoutes = dict[tuple[int, int], tuple[int, tuple[int, ...]]]


@dataclass(frozen=True, eq=False)
class Folded:
    """A schedule of a few ranks on a network of their links. Each stands for `times` ranks, each link i for the links
    `stands_for[i]` (times,) of the whole."""

    schedule: Schedule
    bandwidths: Numbers
    latencies: Numbers
    link_names: Sequence[str]
    routes_of: dict[tuple[int, int], tuple[int, ...]]
    times: int
    stands_for: Numbers
    layout: Hashable = field(default_factory=object)

    def on(self, network: RoutedNetwork) -> Folded | None:
        """The same on a network of the same routes; None if links that one stands for are not alike there."""
        of_links = (network.bandwidths[self.stands_for], network.latencies[self.stands_for])
        if any((column != column[:, :1]).any() for column in of_links):
            return None
        bandwidths, latencies = (column[:, 0] for column in of_links)
        return replace(self, bandwidths=bandwidths, latencies=latencies)

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the ranks."""
        return tuple(map(str, range(self.schedule.n)))

    def route(self, src: str, dst: str) -> tuple[int, ...]:
        """Links from one rank to another, or to itself."""
        return self.routes_of[int(src), int(dst)]

    def routes(self, devices: Sequence[str], src: NDArray[Any], dst: NDArray[Any]) -> tuple[Numbers, Numbers]:
        """The routes of many pairs laid end to end: see `timing_model.RoutedNetwork`."""
        found = [self.routes_of[int(devices[a]), int(devices[b])] for a, b in zip(src, dst, strict=True)]
        hop = np.cumsum([0, *map(len, found)])
        return hop, np.asarray([link for route in found for link in route], np.int64)


def fold(
    stream: StreamedSchedule, network: RoutedNetwork, devices: Sequence[str], further: bool = False
) -> Folded | None:
    """The stream of a few ranks that stand for all; None where that would not be exact. `further`: also where only
    several turns of the stream's rotation, such as a node's, map the network onto itself.

    All chunks must be of one size, nobody late, and every rank have one channel: that is for the caller to see to.
    """
    where = (stream, network.layout, tuple(devices), further)
    known = _FOLDED.known(where) if network.layout is not None else None
    found = known and known.on(network)
    if found is None:
        found = _folded(stream, network, devices, further)
        if found is not None and network.layout is not None:
            _FOLDED.keep(where, found)
    return found


_FOLDED: Final[LruCache[Folded]] = LruCache(MOST_FOLDED, lambda folded: len(folded.schedule))


def _folded(stream: StreamedSchedule, network: RoutedNetwork, devices: Sequence[str], further: bool) -> Folded | None:
    turn, n = stream.rotation, stream.n
    if turn is not None and further:
        turn = _repeated(turn, stream, network, devices)
    if turn is None or stream.agents or not turn.holds(stream.parts(), stream.collective, n, stream.n_chunks):
        return None
    few = _enough(turn, stream)
    if not few:
        return None
    links, number, columns = _Links(network, n // few), 0, []
    routes: FoldedRoutes = {}
    for part in stream.parts():
        step = part.first
        hop, path = network.routes(devices, step.src, step.dst)
        kept = _kept(step, few)
        if (
            not _in_order(step, turn, n)
            or not links.turned(step, few, hop, path)
            or not _told_apart(step, kept, few, hop, path, links.number)
        ):
            return None
        for row in kept.tolist():
            dst, route = int(step.dst[row]), tuple(links.number[path[hop[row] : hop[row + 1]]].tolist())
            if routes.setdefault((int(step.src[row]), dst % few), (dst, route)) != (dst, route):
                return None
        rows = _rows(part, kept)
        numbers = number + np.repeat(np.arange(part.steps), len(kept))
        columns.append((numbers, rows, _turned_back(rows, turn, few, stream.n_chunks)))
        number += part.steps
    return _assembled(stream, few, columns, routes, links) if links.members else None


def _repeated(
    turn: Rotation, stream: StreamedSchedule, network: RoutedNetwork, devices: Sequence[str]
) -> Rotation | None:
    """The fewest turns after which the routes of the first step look alike; None if that takes all of them."""
    step, n = next(stream.parts()).first, stream.n
    hop, path = network.routes(devices, step.src, step.dst)
    sorts = np.unique(np.stack([network.bandwidths, network.latencies]), axis=1, return_inverse=True)[1].ravel()
    looks: dict[tuple[int, ...], int] = {}
    look = np.full(n, -1, np.int64)
    for row, rank in enumerate(step.src.tolist()):
        kinds = (int(look[rank]), *sorts[path[hop[row] : hop[row + 1]]].tolist())
        look[rank] = looks.setdefault(kinds, len(looks))
    for ranks in range(turn.ranks, n, turn.ranks):
        if n % ranks == 0 and (look == np.roll(look, ranks)).all():
            return Rotation(ranks, turn.chunks * (ranks // turn.ranks) % turn.span, turn.span)
    return None


def _enough(turn: Rotation, stream: StreamedSchedule) -> int:
    """The number of ranks to keep: a few turns, so many that nobody sends to one who stands for itself; 0: too many."""
    apart = np.concatenate([(part.first.dst - part.first.src) % stream.n for part in stream.parts()])
    apart = np.unique(apart[apart != 0])
    for turns in range(1, MOST_TURNS + 1):
        few = turns * turn.ranks
        if stream.n % few == 0 and few < stream.n and (apart % few != 0).all():
            return few
    return 0


def _kept(step: Step, few: int) -> Numbers:
    return np.flatnonzero(step.src < few)


def _rows(part: StepPattern, kept: Numbers) -> Step:
    """The kept rows of all steps of a part."""
    if isinstance(part, Repeat):
        first = Step._make(column[kept] for column in part.first)
        return Repeat(first, part.times, part.base[kept], part.span, part.shift).whole()
    return Step._make(column[kept] for column in part)


def _turned_back(rows: Step, turn: Rotation, few: int, n_chunks: int) -> Numbers:
    """The slot at the receiver's stand-in: as many turns back as the receiver is away from it."""
    turns = rows.dst // few * (few // turn.ranks)
    within = rows.dst_slot % turn.span
    found: Numbers = rows.dst_slot - within + (within - turns.astype(np.int64) * turn.chunks) % turn.span
    return found


def _place(src: NDArray[Any]) -> Numbers:
    """The place of each row in its sender's list."""
    order = np.argsort(src, kind="stable")
    place = np.empty(len(src), np.int64)
    place[order] = np.arange(len(src)) - np.searchsorted(src[order], src[order])
    return place


def _in_order(step: Step, turn: Rotation, n: int) -> bool:
    """Whether what a rank sends first, second, … is turned into what the rank one turn on sends first, second, …."""
    place, src = _place(step.src), (step.src + turn.ranks) % n
    turned = ((step.dst + turn.ranks) % n, turn.chunk(step.src_slot), turn.chunk(step.dst_slot), step.reduce)
    was, becomes = np.lexsort((place, step.src)), np.lexsort((place, src))
    here = (step.dst, step.src_slot, step.dst_slot, step.reduce)
    return all(np.array_equal(a[was], b[becomes]) for a, b in zip(here, turned, strict=True))


def _told_apart(step: Step, kept: Numbers, few: int, hop: Numbers, path: Numbers, number: Numbers) -> bool:
    """Whether rows at the same place of their senders' lists share no link and no receiver: only those could tie."""
    dst, place = step.dst[kept] % few, _place(step.src[kept])
    lengths = np.diff(hop)[kept]
    own = np.concatenate([number[path[hop[row] : hop[row + 1]]] for row in kept]) if len(kept) else number[:0]
    on_link = np.stack([np.repeat(place, lengths), own])
    at_receiver = np.stack([place, dst])
    return all(np.unique(pairs, axis=1).shape[1] == pairs.shape[1] for pairs in (on_link, at_receiver))


class _Links:
    """The links that stand for others: `number` (links,) of the one that stands for each, −1 as long as it is not
    known."""

    def __init__(self, network: RoutedNetwork, times: int):
        self.network, self.times = network, times
        self.number = np.full(len(network.bandwidths), -1, np.int64)
        self.members: list[Numbers] = []

    def turned(self, step: Step, few: int, hop: Numbers, path: Numbers) -> bool:
        """Take in the routes of a step, all rows; False if they are not turned into each other."""
        n = few * self.times
        _, rows = np.unique(step.src.astype(np.int64) * n + step.dst, return_index=True)  # one of each pair
        turns, src = np.divmod(step.src[rows].astype(np.int64), few)
        rows = rows[np.lexsort((turns, (step.dst[rows] - turns * few) % n, src))].reshape(-1, self.times)
        lengths = np.diff(hop)[rows]
        if (lengths != lengths[:, :1]).any():
            return False
        takes = zip(rows, lengths[:, 0].tolist(), strict=True)
        return all(self._take(path[hop[some] + at]) for some, length in takes for at in range(length))

    def _take(self, links: Numbers) -> bool:
        """Links that are turned into each other: new ones of equal kind, or known to stand for each other."""
        known = self.number[links]
        if (known < 0).all():
            network = self.network
            alike = all((column[links] == column[links[0]]).all() for column in (network.bandwidths, network.latencies))
            if not alike or len(np.unique(links)) < self.times:
                return False
            self.number[links] = len(self.members)
            self.members.append(links)
            return True
        if (known != known[0]).any():
            return False
        members = self.members[known[0]]
        begin = int(np.flatnonzero(members == links[0])[0])
        return bool((np.roll(members, -begin) == links).all())


def _assembled(
    stream: StreamedSchedule,
    few: int,
    columns: Sequence[tuple[Numbers, Step, Numbers]],
    routes: FoldedRoutes,
    links: _Links,
) -> Folded:
    """The schedule of the few, on the links that stand for all."""
    rows = join(*(rows for _, rows, _ in columns))
    schedule = Schedule(
        collective="all_reduce",  # whose sizes do not depend on who holds what
        algorithm=stream.algorithm,
        n=few,
        n_chunks=stream.n_chunks,
        step=np.concatenate([numbers for numbers, _, _ in columns]).astype(np.int32),
        src=rows.src,
        src_slot=rows.src_slot,
        dst=(rows.dst % few).astype(np.int32),
        dst_slot=np.concatenate([slots for _, _, slots in columns]).astype(np.int32),
        reduce=rows.reduce,
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
    )
