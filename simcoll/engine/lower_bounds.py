"""Lower bounds: times that no schedule of a collective can beat on a topology.

For a call of NCCL the topology is that of one channel. Its links depend on NCCL's algorithm and protocol, so the bound
holds for this pair only.

*Latency*: some rank must wait for the farthest rank whose data it needs, over the path of least latency.
*Bandwidth*: all bytes that must leave or enter a set of devices have to cross its cut. Without reduction in the network
an all-reduce also needs 2(n−1) transmissions of every byte, summed over ranks (Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simcoll.config.lru import LruCache
from simcoll.config.numpy_helpers import Array, Sets
from simcoll.engine.timing_model import PS_PER_S
from simcoll.schedule.collectives import collective, cut, weights_of
from simcoll.schedule.schedule import AnySchedule
from simcoll.synthesis import synthesize
from simcoll.synthesis.bounds import Bound, by_cut
from simcoll.synthesis.flow_graph import FlowGraph
from simcoll.topology.graph import Topology

SOURCES: Final = 8  # ranks from which least latencies are searched; fewer make the bound weaker, never wrong
MOST_MEASURED: Final = 500_000  # devices to which latencies are searched, summed over all sources

Sizes = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Cuts:
    """Sets of devices that hold some of the ranks, but not all: each rank's device, each node, each switch with all
    devices below it. Cut c holds the ranks `members[starts[c]:starts[c + 1]]`. `out` and `into`, (cuts,), are the B/s
    of all links that leave and enter it. `alone` is the sum over ranks of the B/s out of the rank's device."""

    n: int
    members: NDArray[np.int64]
    starts: NDArray[np.int64]
    out: NDArray[np.int64]
    into: NDArray[np.int64]
    alone: int

    @property
    def weight(self) -> int:
        """The number of entries of `members`, by which the cache limits its memory."""
        return len(self.members)

    @cached_property
    def slowest(self) -> int:
        """The least positive bandwidth out of or into a cut, in B/s; 0 if there is none."""
        least = min(int(self.out.min()), int(self.into.min()))
        if least > 0:
            return least
        every = np.concatenate([self.out, self.into])
        return int(every[every > 0].min()) if every.any() else 0

    def total(self, values: Sizes) -> Sizes:
        """Return for each cut the sum of `values`, (n,), over the ranks in the cut."""
        return np.add.reduceat(values[self.members], self.starts)

    def around(self, place: int) -> NDArray[np.bool_]:
        """Return for each cut (a set of devices) whether rank number `place` is in it."""
        return self.total((np.arange(self.n) == place).astype(np.int64)) > 0

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Return the ranks of each cut."""
        return iter(np.split(self.members, self.starts[1:]))


Crossing = Callable[[Sizes, Cuts, int], tuple[Sizes, Sizes]]
"""From the bytes (n, blocks) of each block of each rank's buffer: what must leave each cut, and what must enter it."""


class LowerBound(NamedTuple):
    """A time in ps that no schedule beats, and what gives it: `latency`, `cuts` (of devices, nodes and switches; others
    may give more), or an exact optimum: `cut` or `lp`."""

    ps: int
    kind: str


MOST_EXACT: Final = 2_000  # links times ranks, up to which an exact bound takes some hundredths of a second


def lower_bound(
    schedule: AnySchedule,
    topology: Topology,
    devices: Sequence[str],
    nbytes: int,
    itemsize: int,
    weights: object = None,
    reducing: bool = False,
) -> LowerBound:
    """Return the largest lower bound that is found in a few hundredths of a second; a solver takes 0.3 s to load. For
    `reducing` see `lower_bound_ps`."""
    asked = nbytes, itemsize, weights, reducing
    found = lower_bound_ps(schedule, topology, devices, *asked)
    latency = lower_bound_ps(schedule, topology, devices, 0, itemsize, None, reducing)
    name, places = schedule.collective, tuple(devices[: schedule.n])
    small = len(topology.links) * schedule.n <= MOST_EXACT and len(set(places)) == len(places) > 1
    plain = len(schedule.groups) == 1 and weights is None
    kind = "latency" if found == latency else "cuts"
    if not (small and plain):
        return LowerBound(found, kind)
    if name == "all_reduce" and not (reducing or schedule.agents):
        halves = [_once(_exact, topology, half, places, 0) for half in ("reduce_scatter", "all_gather")]
        if sum(half.time_ps(nbytes) for half in halves) <= found + 1 and kind == "cuts":
            return LowerBound(found, "lp")  # reached by trees, if switches pass on as much as they get
    if name in synthesize.COLLECTIVES:
        exact, grain = _once(_optimum, topology, name, places, schedule.root), schedule.n * itemsize
        least = exact.time_ps(nbytes // grain * grain)  # ranks' parts differ by an element else
        return LowerBound(max(found, least), exact.kind if exact.time_ps(nbytes) >= found else kind)
    return LowerBound(found, kind)


def bound_of_tokens(
    topology: Topology, devices: Sequence[str], least: Callable[[Array], tuple[Sizes, Sizes]]
) -> LowerBound:
    """Return a lower bound for ranks that send tokens to experts. `least` gives the bytes that leave and enter sets of
    ranks at least, (sets,), from which ranks are in each set, bool (sets, ranks)."""
    places = tuple(devices)
    cuts, latency = _once(_cuts, topology, places), _once(_latency_ps, topology, places, "all_to_all", 0)
    inside = np.zeros((len(cuts.starts), cuts.n), np.bool_)
    for each, ranks in zip(inside, cuts.blocks(), strict=True):
        each[ranks] = True
    ps = _slowest_ps(*least(inside), cuts)
    return LowerBound(max(ps, latency), "cuts" if ps > latency else "latency")


def _exact(topology: Topology, collective: str, places: tuple[str, ...], root: int) -> Bound:
    return by_cut(collective, FlowGraph.of(topology, places), root)


def _optimum(topology: Topology, collective: str, places: tuple[str, ...], root: int) -> Bound:
    return synthesize.bound_of(collective, topology, places, root)


def lower_bound_ps(
    schedule: AnySchedule,
    topology: Topology,
    devices: Sequence[str],
    nbytes: int,
    itemsize: int,
    weights: object = None,
    reducing: bool = False,
) -> int:
    """Return the larger of the latency and the bandwidth bound in ps, over all groups of the schedule. `reducing`:
    whether the network's switches can reduce, even if this schedule does not use that."""
    found: list[int] = []
    ends = schedule.collective, schedule.root
    for group, places in _apart(schedule, devices):
        cuts, own = _once(_cuts, topology, places), weights_of(weights, group, schedule.n)
        latency_ps = _once(_latency_ps, topology, places, *ends)
        found += latency_ps, _bandwidth_ps(schedule, cuts, nbytes, itemsize, own, reducing)
    return max(found, default=0)


def _apart(schedule: AnySchedule, devices: Sequence[str]) -> Iterator[tuple[Sequence[int], tuple[str, ...]]]:
    """Yield each group of ranks and its devices, except for groups whose ranks are all on one device."""
    for group in schedule.groups:
        places = tuple(map(devices.__getitem__, group))
        if len(set(places)) > 1:
            yield group, places


class _CutLinks(NamedTuple):
    """For each cut (a set of devices) its ranks, as positions in the list of ranks (`places`), and the links out of it
    and into it. The first cuts hold one device each; `ranks` is the number of ranks on each of these devices."""

    places: Sets
    out: Sets
    into: Sets
    ranks: NDArray[np.int64]

    @property
    def weight(self) -> int:
        """The number of entries of `out` and `into`, by which the cache limits its memory."""
        return len(self.out.members) + len(self.into.members)


# A sweep needs the bounds of a few topologies many times; searching latencies on a large one takes a second.
_KNOWN: Final[LruCache[Any]] = LruCache(
    2_000_000, lambda found: found.weight if isinstance(found, Cuts | _CutLinks) else 1
)


def _once(find: Callable[..., T], topology: Topology, *of: Any) -> T:
    """Return `find(topology, *of)` from a cache. Cuts depend on the layout only, so topologies that differ in
    bandwidths or latencies share them."""
    known = topology.layout if find is _cut_links else topology
    found: T = _KNOWN.get((find, known, *of), lambda: find(topology, *of))
    return found


def _latency_ps(topology: Topology, places: tuple[str, ...], collective: str, root: int) -> int:
    """Return the greatest of the least latencies in ps between two ranks of which one must wait for the other's data.
    E.g. in a broadcast every rank waits for the root."""
    n = len(places)
    count = max(1, min(SOURCES, MOST_MEASURED // len(topology.kinds)))
    sources, targets = places[:: max(1, n // count)], places
    if collective in ("reduce", "gather"):
        targets = (places[root],)
    elif collective == "send_recv":
        sources, targets = (places[root],), (places[(root + 1) % n],)
    elif collective in ("broadcast", "scatter"):
        sources = (places[root],)
    return int(topology.least_latencies(sources, targets).max())


def _bandwidth_ps(
    schedule: AnySchedule, cuts: Cuts, nbytes: int, itemsize: int, weights: object, reducing: bool
) -> int:
    if schedule.collective == "barrier":
        return 0
    contract, n = collective(schedule.collective), cuts.n
    if schedule.collective == "all_reduce":  # all bytes cross each cut; a shortcut for the most frequent collective
        alone = 0 if schedule.agents or reducing or not cuts.alone else 2 * (n - 1) * nbytes * PS_PER_S // cuts.alone
        return max(nbytes * PS_PER_S // cuts.slowest if cuts.slowest else 0, alone)
    blocks = contract.blocks(n)
    sizes = np.broadcast_to(cut(nbytes, n, blocks, itemsize, weights, blocks), (n, blocks))
    leave, enter = _CROSSING[schedule.collective](sizes, cuts, schedule.root)
    return _slowest_ps(leave, enter, cuts)


def _slowest_ps(leave: Sizes, enter: Sizes, cuts: Cuts) -> int:
    passing = set(zip(leave.tolist(), cuts.out.tolist(), strict=True))
    passing |= set(zip(enter.tolist(), cuts.into.tolist(), strict=True))
    return max(count * PS_PER_S // bandwidth if bandwidth else 0 for count, bandwidth in passing)


def _cuts(topology: Topology, places: tuple[str, ...]) -> Cuts:
    links = _once(_cut_links, topology, places)
    out, into = links.out.sums(topology.bandwidths), links.into.sums(topology.bandwidths)
    alone = int(out[: len(links.ranks)] @ links.ranks)
    return Cuts(len(places), links.places.members, links.places.first, out, into, alone)


def _cut_links(topology: Topology, places: tuple[str, ...]) -> _CutLinks:
    alone = {device: place for place, device in enumerate(dict.fromkeys(places))}
    sets = topology.enclosures(tuple(alone))
    at = sets.members[[alone[device] for device in places]]
    here = Sets.by(at, len(topology.kinds))
    apart = sets.sums(here.counts) < len(places)
    apart[: len(alone)] = True
    sets = sets.taken(np.flatnonzero(apart))
    within, counts = here.taken(sets.members)
    owner = np.repeat(np.arange(len(sets.counts)), sets.counts)
    inside = Sets(within, np.bincount(np.repeat(owner, counts), minlength=len(sets.counts)))
    return _CutLinks(inside, *topology.crossing(sets), here.counts[sets.members[: len(alone)]])


def _to_root(sizes: Sizes, cuts: Cuts, root: int) -> tuple[Sizes, Sizes]:
    whole, inside = sizes[0].sum(), cuts.around(root)
    return np.where(inside, 0, whole), np.where(inside, whole, 0)


def _from_root(sizes: Sizes, cuts: Cuts, root: int) -> tuple[Sizes, Sizes]:
    whole, inside = sizes[root].sum(), cuts.around(root)
    return np.where(inside, whole, 0), np.where(inside, 0, whole)


def _gathering(sizes: Sizes, cuts: Cuts, root: int) -> tuple[Sizes, Sizes]:
    blocks = sizes.diagonal()
    leave = cuts.total(blocks)
    return leave, blocks.sum() - leave


def _scattering(sizes: Sizes, cuts: Cuts, root: int) -> tuple[Sizes, Sizes]:
    enter = cuts.total(sizes[root])
    return sizes[root].sum() - enter, enter


def _gathering_to_root(sizes: Sizes, cuts: Cuts, root: int) -> tuple[Sizes, Sizes]:
    (leave, enter), inside = _gathering(sizes, cuts, root), cuts.around(root)
    return np.where(inside, 0, leave), np.where(inside, enter, 0)


def _scattering_from_root(sizes: Sizes, cuts: Cuts, root: int) -> tuple[Sizes, Sizes]:
    (leave, enter), inside = _scattering(sizes, cuts, root), cuts.around(root)
    return np.where(inside, leave, 0), np.where(inside, 0, enter)


def _exchanging(sizes: Sizes, cuts: Cuts, root: int) -> tuple[Sizes, Sizes]:
    stay = np.asarray([sizes[block[:, None], block].sum() for block in cuts.blocks()])
    return cuts.total(sizes.sum(axis=1)) - stay, cuts.total(sizes.sum(axis=0)) - stay


def _to_next(sizes: Sizes, cuts: Cuts, root: int) -> tuple[Sizes, Sizes]:
    whole, inside, receiver = sizes[root].sum(), cuts.around(root), cuts.around((root + 1) % cuts.n)
    return np.where(inside & ~receiver, whole, 0), np.where(receiver & ~inside, whole, 0)


_CROSSING: Final[dict[str, Crossing]] = {
    "reduce": _to_root,
    "broadcast": _from_root,
    "all_gather": _gathering,
    "reduce_scatter": _scattering,
    "gather": _gathering_to_root,
    "scatter": _scattering_from_root,
    "all_to_all": _exchanging,
    "moe_dispatch": _exchanging,
    "moe_combine": _exchanging,
    "send_recv": _to_next,
}
