"""A point whose profile has `kernels`, as engines run it: one channel of the call that NCCL would make."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from simcoll.config.lru import LruCache
from simcoll.engine.timing_model import Params
from simcoll.errors import RefusedError
from simcoll.nccl import call as calls
from simcoll.nccl import tuner
from simcoll.nccl.call import NcclCall
from simcoll.nccl.communicator import Communicator, communicator
from simcoll.nccl.full_mesh import gathered
from simcoll.nccl.kernel_costs import Kernels
from simcoll.nccl.transport import HOST, by_host, host_links, staged
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import LinkScale, ModelSpec, Profile, load_network
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Link, Topology
from simcoll.topology.systems import load_system

_MESHES: Final[LruCache[Topology]] = LruCache(2_000_000, lambda found: len(found.kinds) + len(found.links))
_COMMUNICATORS: Final[LruCache[Communicator]] = LruCache(64, lambda found: 1)
CABLE: Final = "cable"  # the kind of links to NICs
PLAIN: Final = "ideal"  # the profile under which what is lowered runs


@dataclass(frozen=True, eq=False)
class Lowered:
    """A call on the ranks of a point, on links as rated. `inner` are the kinds of links between ranks of a node, `path`
    what messages between neighbours go over, on a node where they can, `host` those links to hosts whose memory it goes
    through, `nodes` the ranks of each."""

    call: NcclCall
    scenario: Scenario
    rated: Topology
    inner: frozenset[str]
    path: tuple[int, ...]
    host: frozenset[int]
    nodes: tuple[tuple[int, ...], ...]
    network: Profile

    def costs(self, costs: Kernels) -> Kernels:
        """With what NICs cost where the profile does not say it."""
        return costs.over(self.network.kernels) if self.network.kernels else costs

    def params(self, costs: Kernels) -> dict[str, Any]:
        """Parameters of the engines."""
        return self.call.params(costs)

    def launch_ps(self, costs: Kernels, launch: int, links: Mapping[str, LinkScale]) -> int:
        """What the call takes beside what engines run."""
        return self.call.launch_ps(costs, launch, self._slowest(costs, links))

    def spread_ps(self, costs: Kernels, links: Mapping[str, LinkScale]) -> int:
        """How much of that is because channels do not end together."""
        return self.call.spread_ps(costs, self._slowest(costs, links))

    def _slowest(self, costs: Kernels, links: Mapping[str, LinkScale]) -> int:
        return min(map(self.bandwidths(links, costs).__getitem__, self.path))

    def point(self, costs: Kernels) -> Scenario:
        """What engines run: the scenario of one channel."""
        spec = ModelSpec.model_construct(**vars(Params(chunk=self.call.handed, **self.params(costs))))
        changed = {"algorithm": self.call.schedule + self.call.options, "protocol": "none", "size": self.call.share}
        plain = {"groups": self.nodes, "model": spec, "profile": PLAIN, "p2p_level": None, "launch": Launch()}
        return self.scenario.model_copy(update={**changed, **plain})

    @cached_property
    def _sorts(self) -> list[tuple[int, str, bool]]:
        """What links have of theirs depends on: bandwidth, kind, and whether it is one to a host."""
        links = enumerate(self.rated.graph.edges.data("link"))
        return [(link.bandwidth, link.kind, number in self.host) for number, (*_, link) in links]

    def bandwidths(self, links: Mapping[str, LinkScale], costs: Kernels) -> list[int]:
        """What a channel has of each link, in B/s."""
        found = {}
        for sort in dict.fromkeys(self._sorts):  # of which there are few: a fit asks often
            bandwidth, kind, host = sort
            served = links.get(kind, self.network.links.get(kind, LinkScale())).efficiency
            share = self.call.share_of_links(costs, kind not in self.inner, host)
            most = self.call.most(costs, host) if kind in self.inner else math.inf
            found[sort] = max(1, round(min(bandwidth * (served * share), most))) if bandwidth else 0
        return [found[sort] for sort in self._sorts]

    def latencies(self, costs: Kernels) -> list[int]:
        """What each link takes, in ps: the first of a way a hop, between a NIC and the network half of what a hop takes
        longer there, one to a host what a hop takes longer through its memory. Other links take nothing: a hop is time
        of the block that takes part in it."""
        kinds, net = self.rated.kinds, self.call.net_ps(self.costs(costs))
        hop = 0 if self.call.schedule == "nvls" or self.call.kind == "P2P" else self.call.block(costs).hop
        first = {"gpu", "nvswitch"} if self.call.kind == "NVLS" else {"gpu"}
        found = [
            net // 2 if {kinds[u], kinds[v]} >= {"nic", "switch"} else hop if kinds[u] in first else 0
            for u, v in self.rated.links
        ]
        for number in self.host:
            if kinds[self.rated.links[number][1]] == HOST:
                found[number] += self.call.block(costs).host
        return [max(1, latency) for latency in found]

    @property
    def stands_for(self) -> list[float]:
        """How many such links of a node each stands for: what is counted on one to the network goes by all rails."""
        kinds = (link.kind for *_, link in self.rated.graph.edges.data("link"))
        return [1.0 if kind in self.inner else self.call.rails for kind in kinds]

    def topology(self, links: Mapping[str, LinkScale], costs: Kernels) -> Topology:
        """Links as a channel has them."""
        rated = (link for *_, link in self.rated.graph.edges.data("link"))
        given = zip(rated, self.bandwidths(links, costs), self.latencies(costs), strict=True)
        return self.rated.with_links(Link(bandwidth, latency, link.kind) for link, bandwidth, latency in given)


def lower(scenario: Scenario, costs: Kernels, rated: Topology, places: Sequence[str]) -> Lowered:
    """The call of a point whose ranks have these places; raises RefusedError for what NCCL's kernels do not do."""
    if len(places) < 2:
        raise RefusedError("kernels are modelled for two ranks or more; take another profile")
    if scenario.subgroups or scenario.weights:
        raise RefusedError("kernels are modelled for one group with equal blocks; take another profile")
    found = calls.call(
        _communicator(scenario, rated, places),
        scenario.collective,
        scenario.nbytes,
        scenario.itemsize,
        scenario.library_version or costs.version,
        algorithm=_theirs(scenario),
        protocol="auto" if scenario.protocol == "none" else scenario.protocol,
        between=_between(rated, places),
    )
    if found.algorithm != "p2p":  # which sends to each by itself
        rated = _MESHES.get((rated, *places), lambda: gathered(rated, places))
    of_node: dict[int | None, list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        of_node[rated.node_of(place)].append(rank)
    nodes = tuple(map(tuple, of_node.values()))
    through = staged(found.communicator)
    if through:
        rated = _MESHES.get((rated, found.communicator.p2p_level), lambda: by_host(rated, found.communicator))
    host = host_links(rated, found.communicator) if through else frozenset[int]()
    beside = [(places[u], places[v]) for ranks in nodes for u, v in itertools.pairwise(ranks)]
    path = sorted({number for pair in beside or [(places[0], places[1])] for number in rated.route(*pair)})
    edges = [link for *_, link in rated.graph.edges.data("link")]
    inner = {edges[number].kind for number in path} if beside else set[str]()
    if len(nodes) > 1 and found.algorithm != "p2p":
        rated = _MESHES.get((rated, "slowest", *sorted(inner)), lambda: _as_the_slowest(rated, inner))
    ring, nic = found.communicator.graphs["ring"], found.communicator.nic_GBps
    nics = math.ceil(ring.channels * ring.inter / nic) if nic else 1
    made = dataclasses.replace(found, nics=nics, in_place=bool(scenario.in_place), staged=through)
    return Lowered(made, scenario, rated, frozenset(inner), tuple(path), host, nodes, network_of(_system(scenario)))


def _as_the_slowest(rated: Topology, inner: Container[str]) -> Topology:
    """The topology in which all ways out of a node are as slow as its slowest: channels go by all of them, one of which
    is run, and a call ends with the last."""
    kinds = rated.kinds
    links = [link for *_, link in rated.graph.edges.data("link")]
    alike = [
        (link.kind, kinds[u], kinds[v], rated.node_of(u), rated.node_of(v))
        for (u, v), link in zip(rated.links, links, strict=True)
    ]
    least: dict[object, int] = {}
    for its, link in zip(alike, links, strict=True):
        least[its] = min(link.bandwidth, least.get(its, link.bandwidth))
    given = [link.bandwidth if link.kind in inner else least[its] for its, link in zip(alike, links, strict=True)]
    if given == [link.bandwidth for link in links]:
        return rated
    return rated.with_links(Link(b, link.latency, link.kind) for b, link in zip(given, links, strict=True))


def network_of(system: str | None) -> Profile:
    """What the profile of a system's NICs says of hops between nodes and of cables; nothing for one without NICs."""
    nic = load_system(system).nic if system else None
    if nic is None:
        return Profile(name="none")
    found = load_network(nic.profile)
    links = {kind: scale for kind, scale in found.links.items() if kind == CABLE}
    return found.model_copy(update={"links": links})


def _between(rated: Topology, places: Sequence[str]) -> int:
    """B/s from the first GPU to another of its node, where it has least."""
    near = [place for place in places[1:] if rated.node_of(place) == rated.node_of(places[0])]
    bandwidths = rated.bandwidths
    return min((int(bandwidths[link]) for place in near for link in rated.route(places[0], place)), default=0)


def pairs(scenario: Scenario, costs: Kernels, rated: Topology, places: Sequence[str]) -> list[tuple[str, str]]:
    """Algorithms and protocols between which NCCL could choose for a point, if its protocol is left open."""
    if ("p2p", scenario.collective) in calls.SCHEDULES:
        found = [(name, protocol) for name in calls.names(scenario.collective) for protocol in ("LL", "Simple")]
    else:
        comm = _communicator(scenario, rated, places)
        entries = tuner.table(comm, scenario.library_version or costs.version).entries
        found = [(a, p) for c, a, p in entries if c == scenario.collective and (a, c) in calls.SCHEDULES]
    open_ = scenario.protocol in ("none", "auto")
    left = [(algorithm, protocol) for algorithm, protocol in found if open_ or protocol == scenario.protocol]
    if not left:
        raise RefusedError(f"NCCL has no {scenario.protocol} for {scenario.collective} here, or it is not modelled")
    return left


def _theirs(scenario: Scenario) -> Any:
    """The algorithm of NCCL that a scenario asks for, by NCCL's name or by that of its schedule."""
    if scenario.algorithm == "auto":
        return "auto"
    names, name = calls.names(scenario.collective), calls.name_of(scenario.algorithm, scenario.collective)
    if names and name not in names:
        raise RefusedError(f"NCCL has no {name} for {scenario.collective}; it has {', '.join(names)}")
    return names.get(name, name)


def _system(scenario: Scenario) -> str | None:
    return scenario.topology.system or scenario.topology.file


def _communicator(scenario: Scenario, rated: Topology, places: Sequence[str]) -> Communicator:
    nodes = Counter(rated.node_of(place) for place in places)
    if len(set(nodes.values())) > 1:
        raise RefusedError(
            f"{len(places)} ranks are not as many on each node: how NCCL would connect them is not known; "
            "write placement: {per_node: …}"
        )
    name = _system(scenario)
    if name is None:
        raise RefusedError(f"{rated.name} has no GPUs: kernels run on systems; take another profile")
    comm = _COMMUNICATORS.get(
        (name, len(nodes), len(places)), lambda: communicator(load_system(name), len(nodes), len(places))
    )
    return dataclasses.replace(comm, p2p_level=scenario.p2p_level) if scenario.p2p_level else comm
