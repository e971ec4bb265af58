"""The links that a channel of NCCL's calls goes by: what depends on machine and ranks, and not on sizes and costs."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import Numbers, sorted_out
from simcoll.config.groups import grouped
from simcoll.config.lru import LruCache
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.within_node import HOST, by_host, host_links, staged, with_hubs
from simcoll.topology.graph import Topology

NONE: Final = -1
MOST_LINKS: Final = 2_000_000  # devices and links of topologies that are kept


class LinkSort(NamedTuple):
    """A sort of links: rated B/s, kind, whether they are to a host, to a proxy, or a NIC's, and how many trunks are
    `equal`."""

    bandwidth: int
    kind: str
    host: bool
    proxied: bool
    of_nic: bool
    equal: float


@dataclass(frozen=True, eq=False)
class ChannelWires:
    """The links of one channel between ranks at given places.

    `rated` are its links as rated, `inner` kinds of links between ranks of a node, `between` the links that messages
    between neighbours take (on a node where they can), `host` those links to hosts through whose memory data are
    staged, `places` those of the ranks, `nodes` the ranks of each node, `down` the links that carry nothing.
    `communicator` is kept so that no other takes the place by which this is found.
    """

    communicator: Communicator
    rated: Topology
    inner: frozenset[str]
    between: tuple[int, ...]
    staged: bool
    host: frozenset[int]
    places: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    down: tuple[str, ...]

    @cached_property
    def sorts(self) -> tuple[list[LinkSort], Any]:
        """The sorts of links that differ in what serves there; and the number of each link's sort. There are few sorts,
        and who asks for rates asks often."""
        rated, host = self.rated, np.zeros(len(self.rated.links), bool)
        host[list(self.host)] = True
        proxied = by_proxies(rated, self.inner) & (len(self.nodes) > 1)
        of_nic = np.any(rated.between_kinds("nic"), axis=1)
        first, number = sorted_out(rated.bandwidths, _numbers(rated.link_kinds), host, proxied, of_nic, self.equal)
        columns = (each[first].tolist() for each in (rated.bandwidths, host, proxied, of_nic, self.equal))
        kinds = [rated.link_kinds[link] for link in first.tolist()]
        sorts = [LinkSort(bandwidth, kind, *others) for kind, bandwidth, *others in zip(kinds, *columns, strict=True)]
        return sorts, number

    @cached_property
    def equal(self) -> NDArray[np.float64]:
        """The number of trunks of the sort of each, over which the channels by all NICs of a node spread that meet
        there; of other links, which one NIC has for itself, infinitely many, float (links,)."""
        sorts = alike(self.rated)
        found: NDArray[np.float64] = np.where(self.rated.trunks, np.bincount(sorts)[sorts], math.inf)
        return found

    def heads_first(self, heads: Collection[int]) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node, before others those on `heads`: GPUs by their order among those that take part."""
        order = {device: number for number, device in enumerate(self.rated.kinds)}

        def first(ranks: tuple[int, ...]) -> tuple[int, ...]:
            by_gpu = sorted(ranks, key=lambda rank: order[self.places[rank]])
            chosen = {by_gpu[head] for head in heads}
            return tuple(sorted(ranks, key=lambda rank: rank not in chosen))

        return tuple(map(first, self.nodes))

    @cached_property
    def contention(self) -> float:
        """Share of an all-to-all's time in which others send to the NICs that a message of the busiest is for."""
        return contention(self.rated, self.places, self.nodes)

    @cached_property
    def inside(self) -> Any:
        """Whether each link is of a kind within nodes, (links,)."""
        return np.array([kind in self.inner for kind in self.rated.link_kinds])

    @cached_property
    def to_network(self) -> Any:
        """Whether each link joins a NIC and a switch, (links,)."""
        nic, switch = (self.rated.between_kinds(kind) for kind in ("nic", "switch"))
        return (nic & switch[:, ::-1]).any(axis=1)

    @cached_property
    def to_host(self) -> Any:
        """Whether each link is one of `host` that leads to it, (links,)."""
        found = np.zeros(len(self.rated.links), bool)
        found[list(self.host)] = True
        return found & self.rated.between_kinds(HOST)[:, 1]

    def leaving(self, *first: str) -> Any:
        """Whether each link begins at a device of these kinds, (links,)."""
        return self.rated.between_kinds(*first)[:, 0]

    @cached_property
    def from_gpus(self) -> Any:
        """Whether each link begins at a GPU, (links,)."""
        return self.leaving("gpu")

    @cached_property
    def from_heads(self) -> Any:
        """Whether each link begins at a GPU or a switch that reduces, (links,)."""
        return self.leaving("gpu", "nvswitch")


def contention(rated: Topology, places: Sequence[str], nodes: Sequence[Sequence[int]]) -> float:
    """Share of an all-to-all's time in which NICs that a message of the busiest NIC is for are busy with others'
    messages, on average. All pairs of nodes send as the first two do. Two nodes with a switch for each rail, or one GPU
    a node, have none, and so many of them nearly all; NICs with fewer GPUs than others are idle for a part."""
    others = len(nodes) - 1
    if not others:
        return 0.0
    kinds, links = rated.kinds, rated.links
    ways: dict[str, Counter[str]] = defaultdict(Counter)  # messages from a NIC of a node to one of the next
    for src, dst in itertools.product(*nodes[:2]):
        ends = (end for link in rated.route(places[src], places[dst]) for end in links[link])
        nics = [end for end in ends if kinds[end] == "nic"]
        if nics:
            ways[nics[0]][nics[-1]] += 1
    if not ways:
        return 1 - 1 / others
    busiest, sent = max(ways.values(), key=Counter.total), sum(ways.values(), Counter())
    most = others * max(busiest.total(), *sent.values())
    return sum(own * (others * sent[nic] - own) for nic, own in busiest.items()) / busiest.total() / most


def by_proxies(rated: Topology, inner: Container[str]) -> NDArray[np.bool_]:
    """Whether each link is by which a GPU's proxy brings data to a NIC, bool (links,); `inner` are kinds of links
    within nodes."""
    gpu = rated.between_kinds("gpu")
    beyond = np.array([kind not in inner for kind in rated.link_kinds], bool)
    outer: NDArray[np.bool_] = (gpu[:, 0] != gpu[:, 1]) & beyond
    if not outer.any():  # GPUs talk to each other by the links by which they talk to the network
        nic, switch = (np.any(rated.between_kinds(kind), axis=1) for kind in ("nic", "switch"))
        outer = np.asarray(nic & ~switch)
    return outer


def entered(rated: Topology, places: tuple[str, ...]) -> tuple[str, ...]:
    """The places of ranks, each node's turned so that its first is beside a NIC, as NCCL's channels enter a node there:
    where NCCL_IB_HCA leaves the first NICs out, the channel that is run would else cross the node's processors, which
    none of NCCL's does."""
    if rated.nodes < 2 or _beside_nic(rated, places[0]):
        return places
    nodes = list(grouped(places, rated.node_of).values())
    first = next((number for number, place in enumerate(nodes[0]) if _beside_nic(rated, place)), 0)
    return tuple(place for node in nodes for place in (*node[first:], *node[:first]))


def _beside_nic(rated: Topology, device: str) -> bool:
    """Whether a NIC is next to a device, or behind the switch next to it."""
    ahead, kinds = rated.wiring.ahead, rated.kinds
    near = list(ahead[device])
    behind = (other for each in near if kinds[each] == "pcie_switch" for other in ahead[each])
    return any(kinds[each] == "nic" for each in (*near, *behind))


_WIRES: Final[LruCache[ChannelWires]] = LruCache(
    MOST_LINKS, lambda wires: len(wires.rated.kinds) + len(wires.rated.links)
)


def wires_of(rated: Topology, places: tuple[str, ...], comm: Communicator, messages: bool) -> ChannelWires:
    """The links of a channel of `comm` on ranks at `places`; `messages`: point to point, by links of their own."""
    return _WIRES.get((rated, places, id(comm), messages), lambda: _found(rated, places, comm, messages))


def _found(rated: Topology, places: tuple[str, ...], comm: Communicator, messages: bool) -> ChannelWires:
    down = tuple(name for name, bandwidth in zip(rated.link_names, rated.bandwidths, strict=True) if not bandwidth)
    if not messages:  # which go to each by themselves
        rated = with_hubs(rated, places)
    of_node: dict[int | None, list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        of_node[rated.node_of(place)].append(rank)
    nodes = tuple(map(tuple, of_node.values()))
    through = staged(comm)
    if through:
        rated = by_host(rated, comm)
    host = host_links(rated, comm) if through else frozenset[int]()
    beside = [(places[u], places[v]) for ranks in nodes for u, v in itertools.pairwise(ranks)]
    path = sorted({number for pair in beside or [(places[0], places[1])] for number in rated.route(*pair)})
    inner = {rated.link_kinds[number] for number in path} if beside else set[str]()
    if len(nodes) > 1 and not messages:
        rated = _as_the_slowest(rated, inner)
    return ChannelWires(comm, rated, frozenset(inner), tuple(path), through, host, places, nodes, down)


def _as_the_slowest(rated: Topology, inner: Container[str]) -> Topology:
    """The topology in which all ways out of a node are as slow as its slowest: channels go by all of them, one of which
    is run, and a call ends with the last."""
    bandwidths, sorts = rated.bandwidths, alike(rated)
    least = np.full(int(sorts.max(initial=0)) + 1, bandwidths.max(initial=0))
    np.minimum.at(least, sorts, bandwidths)
    given = np.where([kind in inner for kind in rated.link_kinds], bandwidths, least[sorts])
    return rated if (given == bandwidths).all() else rated.with_rates(given, rated.latencies)


def alike(rated: Topology) -> Numbers:
    """The number of each link's sort: the same for links that join devices of the same kinds in or between the same
    nodes, and for trunks that join switches which are joined to the same."""
    return _SORTS.get(rated.layout, lambda: _sorts(rated))


_SORTS: Final[LruCache[Numbers]] = LruCache(MOST_LINKS, len)


def _sorts(rated: Topology) -> Numbers:
    switches = _switches(rated) if rated.trunks.any() else {}
    kinds = rated.of_ends(_numbers(rated.kinds.values()))
    nodes = rated.of_ends(_numbers(map(rated.node_of, rated.kinds)))
    beyond = rated.of_ends([switches.get(device, NONE) for device in rated.kinds])
    trunk = rated.trunks
    where = np.where(trunk[:, None], beyond, nodes)
    _, found = sorted_out(_numbers(rated.link_kinds), *kinds.T, trunk, *where.T)
    return found


def _numbers(names: Iterable[Hashable]) -> Numbers:
    """A number for each, the same for those that are equal."""
    names = tuple(names)
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array(list(map(number.__getitem__, names)), np.int64)


def _switches(rated: Topology) -> dict[str, int]:
    """The sort of each switch between nodes, by colour refinement: of one sort are those that are joined to the same
    nodes, and to switches of the same sorts."""
    joined: dict[str, list[str]] = defaultdict(list)
    out = rated.of_ends([node is None for node in map(rated.node_of, rated.kinds)])[:, 0]
    for link in np.flatnonzero(out).tolist():
        u, v = rated.links[link]
        joined[u].append(v)
    found, count = dict.fromkeys(joined, 0), 0
    while True:
        number: dict[Hashable, int] = {}
        around = {u: frozenset((rated.node_of(v), found.get(v)) for v in others) for u, others in joined.items()}
        found = {u: number.setdefault((found[u], near), len(number)) for u, near in around.items()}
        if len(number) == count:
            return found
        count = len(number)
