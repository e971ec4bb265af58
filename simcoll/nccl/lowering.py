"""A point whose profile has `kernels`, as engines run it: one channel of the call that NCCL would make."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcoll.errors import RefusedError
from simcoll.model import Params
from simcoll.nccl import call as calls
from simcoll.nccl import tuner
from simcoll.nccl.call import Call
from simcoll.nccl.communicator import Communicator, communicator
from simcoll.nccl.costs import Kernels
from simcoll.nccl.mesh import gathered
from simcoll.profile import LinkScale, ModelSpec, Profile, load_profile
from simcoll.recent import Recent
from simcoll.scenario import Scenario
from simcoll.systems import load_system
from simcoll.topology import Link, Topology

_MESHES: Final[Recent[Topology]] = Recent(2_000_000, lambda found: len(found.kinds) + len(found.links))
_COMMUNICATORS: Final[Recent[Communicator]] = Recent(64, lambda found: 1)
CABLE: Final = "cable"  # the kind of links to NICs
PLAIN: Final = "ideal"  # the profile under which what is lowered runs


@dataclass(frozen=True, eq=False)
class Lowered:
    """A call on the ranks of a point, on links as rated. `inner` are the kinds of links between ranks of a node, `path`
    the links of a message, `nodes` the ranks of each."""

    call: Call
    scenario: Scenario
    rated: Topology
    inner: frozenset[str]
    path: tuple[Link, ...]
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
        return self.call.launch_ps(costs, launch, min(self.bandwidth(link, links, costs) for link in self.path))

    def point(self, costs: Kernels) -> Scenario:
        """What engines run: the scenario of one channel."""
        spec = ModelSpec.model_construct(**vars(Params(chunk=self.call.handed, **self.params(costs))))
        slices = f"(slices={self.call.slices})" if self.call.slices > 1 else ""
        changed = {"algorithm": self.call.schedule + slices, "protocol": "none", "size": self.call.share}
        return self.scenario.model_copy(update={**changed, "groups": self.nodes, "model": spec, "profile": PLAIN})

    def bandwidth(self, link: Link, links: Mapping[str, LinkScale], costs: Kernels) -> int:
        """What a channel has of a link, in B/s."""
        served = links.get(link.kind, self.network.links.get(link.kind, LinkScale())).efficiency
        share = self.call.share_of_links(costs, link.kind not in self.inner)
        return max(1, round(link.bandwidth * (served * share)))

    def latencies(self, costs: Kernels) -> list[int]:
        """What each link takes, in ps: the first of a way a hop, between a NIC and the network half of what a hop takes
        longer there. Other links take nothing: a hop is time of the block that takes part in it."""
        kinds, net = self.rated.kinds, self.call.net_ps(self.costs(costs))
        hop = 0 if self.call.schedule == "nvls" or self.call.kind == "P2P" else self.call.block(costs).hop
        first = {"gpu", "nvswitch"} if self.call.kind == "NVLS" else {"gpu"}
        return [
            max(1, net // 2 if {kinds[u], kinds[v]} >= {"nic", "switch"} else hop if kinds[u] in first else 0)
            for u, v in self.rated.links
        ]

    @property
    def spread(self) -> list[float]:
        """Over how many such links of a node goes what is counted on each: to the network, over rails."""
        kinds = (link.kind for *_, link in self.rated.graph.edges.data("link"))
        return [1.0 if kind in self.inner else self.call.rails for kind in kinds]

    def topology(self, links: Mapping[str, LinkScale], costs: Kernels) -> Topology:
        """Links as a channel has them."""
        rated = (link for *_, link in self.rated.graph.edges.data("link"))
        given = zip(rated, self.latencies(costs), strict=True)
        return self.rated.with_links(
            Link(self.bandwidth(link, links, costs), latency, link.kind) for link, latency in given
        )


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
    )
    if found.algorithm != "p2p":  # which sends to each by itself
        rated = _MESHES.get((rated, *places), lambda: gathered(rated, places))
    path = _path(rated, places[0], places[1])
    inner = {link.kind for link in path} if rated.node_of(places[0]) == rated.node_of(places[1]) else set()
    ring, nic = found.communicator.graphs["ring"], found.communicator.nic_GBps
    nics = math.ceil(ring.channels * ring.inter / nic) if nic else 1
    of_node: dict[int | None, list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        of_node[rated.node_of(place)].append(rank)
    nodes = tuple(map(tuple, of_node.values()))
    made = dataclasses.replace(found, nics=nics, in_place=bool(scenario.in_place))
    return Lowered(made, scenario, rated, frozenset(inner), path, nodes, network_of(_system(scenario)))


def network_of(system: str | None) -> Profile:
    """What the profile of a system's NICs says of hops between nodes and of cables; nothing for one without NICs."""
    nic = load_system(system).nic if system else None
    if nic is None:
        return Profile(name="none")
    found = load_profile(nic.profile)
    links = {kind: scale for kind, scale in found.links.items() if kind == CABLE}
    return found.model_copy(update={"links": links})


def _path(rated: Topology, src: str, dst: str) -> tuple[Link, ...]:
    return tuple(rated.graph.edges[rated.links[link]]["link"] for link in rated.route(src, dst))


def pairs(scenario: Scenario, costs: Kernels, rated: Topology, places: Sequence[str]) -> list[tuple[str, str]]:
    """Algorithms (ours) and protocols between which NCCL could choose for a point, if its protocol is left open."""
    if ("p2p", scenario.collective) in calls.OURS:
        found = [(calls.OURS["p2p", scenario.collective], protocol) for protocol in ("LL", "Simple")]
    else:
        comm = _communicator(scenario, rated, places)
        entries = tuner.table(comm, scenario.library_version or costs.version).entries
        found = [(calls.OURS[a, c], p) for c, a, p in entries if c == scenario.collective and (a, c) in calls.OURS]
    open_ = scenario.protocol in ("none", "auto")
    left = [(algorithm, protocol) for algorithm, protocol in found if open_ or protocol == scenario.protocol]
    if not left:
        raise RefusedError(f"NCCL has no {scenario.protocol} for {scenario.collective} here, or it is not modelled")
    return left


def _theirs(scenario: Scenario) -> Any:
    """NCCL's name of the algorithm that a scenario asks for."""
    if scenario.algorithm == "auto":
        return "auto"
    known = [(theirs, ours) for (theirs, collective), ours in calls.OURS.items() if collective == scenario.collective]
    names = dict([(ours, theirs) for theirs, ours in known] + [(theirs, theirs) for theirs, _ in known])
    if scenario.algorithm not in names:
        raise RefusedError(f"NCCL has no {scenario.algorithm} for {scenario.collective}; it has {', '.join(names)}")
    return names[scenario.algorithm]


def _system(scenario: Scenario) -> str | None:
    return scenario.topology.system or scenario.topology.file


def _communicator(scenario: Scenario, rated: Topology, places: Sequence[str]) -> Communicator:
    nodes = Counter(rated.node_of(place) for place in places)
    if len(set(nodes.values())) > 1:
        raise RefusedError(
            f"{len(places)} ranks are not as many on each node: how NCCL would connect them is not known"
        )
    name = _system(scenario)
    if name is None:
        raise RefusedError(f"{rated.name} has no GPUs: kernels run on systems; take another profile")
    return _COMMUNICATORS.get(
        (name, len(nodes), len(places)), lambda: communicator(load_system(name), len(nodes), len(places))
    )
