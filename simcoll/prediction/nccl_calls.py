"""Turn calls into simulations of NCCL's kernels: a channel is simulated on its links, and stands for channels that find
equal links."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Final, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from simcoll.config.grouping import grouped
from simcoll.config.lru import LruCache
from simcoll.config.numpy_helpers import Numbers, distinct, numbers_of, sorted_out
from simcoll.engine.program import Program
from simcoll.engine.streamed import check_steps
from simcoll.engine.timing_model import PS_PER_S, Index, Params
from simcoll.errors import RefusedError
from simcoll.nccl import algorithm_names, call_choice, tuner
from simcoll.nccl.call import NcclCall
from simcoll.nccl.communicator import Communicator, communicator
from simcoll.nccl.environment import DEFAULTS, NcclEnv
from simcoll.nccl.kernel_costs import CostKind, Kernels
from simcoll.nccl.symmetric_kernels import adds, registered_by_itself
from simcoll.nccl.transports_between_nodes import NO_TRANSPORT, Transport
from simcoll.nccl.transports_within_node import HOST, by_host, host_links, staged, with_hubs
from simcoll.prediction.lowered_call import PlainCall, PlainExecutor
from simcoll.prediction.placed_topology import PLAIN, network_of, placed, rated_topology, with_rates
from simcoll.prediction.schedules import pairs_of, source_of
from simcoll.scenario.faults import ChangingLinks, Fault, struck, with_less
from simcoll.scenario.profile import PCIE, CostSetting, ModelSpec, Profile, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.variability import matching
from simcoll.schedule.names import Protocol
from simcoll.schedule.schedule import StreamedSchedule
from simcoll.topology.graph import Topology
from simcoll.topology.machine_files import node_file
from simcoll.topology.routing import Route
from simcoll.topology.topology_builder import described

NONE: Final = -1
# ps of each kind of link on the machines whose measured rows the costs of hops were fitted to. The costs contain these.
USUAL_LATENCIES: Final = {"nvlink": 300_000, "xgmi": 300_000, "c2c": 300_000, "socket": 300_000, "pcie": 250_000,
                          "trunk": 300_000}  # fmt: skip
OTHER_LATENCY: Final = 500_000  # ps of cables, and of links of any other kind
MOST_LINKS: Final = 2_000_000  # most devices and links of the topologies that a cache keeps


class LinkSort(NamedTuple):
    """A class of links that are treated alike: they have equal rated B/s, kind and number of `equal` trunks (links
    between switches). All or none lead to a host, are used by a proxy (CPU thread) or belong to a NIC."""

    bandwidth: int
    kind: str
    host: bool
    proxied: bool
    of_nic: bool
    equal: float


@dataclass(frozen=True, eq=False)
class ChannelWires:
    """The links of one channel between ranks on the devices `places`.

    `rated` is the topology with rated bandwidths. `inner` holds the kinds of links between ranks of a node. `between`
    numbers the links that messages between neighbouring ranks take, on a node if possible. `host` numbers the links to
    hosts whose memory stages data. `nodes` holds the ranks of each node, `down` the names of links without bandwidth.
    `on` returns the links of this channel on another topology, whose links differ in rates from those of `machine`.
    """

    rated: Topology
    inner: frozenset[str]
    between: tuple[int, ...]
    staged: bool
    host: frozenset[int]
    places: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    down: tuple[str, ...]
    machine: Topology
    on: Callable[[Topology], ChannelWires]

    @cached_property
    def sorts(self) -> tuple[list[LinkSort], Any]:
        """Return the classes of links that are treated alike, and each link's class number, (links,). There are few
        classes, so rates are computed once per class."""
        rated, host = self.rated, np.zeros(len(self.rated.links), bool)
        host[list(self.host)] = True
        proxied = by_proxies(rated, self.inner) & (len(self.nodes) > 1)
        by = rated.bandwidths, host, proxied, self.of_nic, self.equal
        first, number = sorted_out(numbers_of(rated.link_kinds), *by)
        columns = (each[first].tolist() for each in by)
        kinds = [rated.link_kinds[link] for link in first.tolist()]
        sorts = [LinkSort(bandwidth, kind, *others) for kind, bandwidth, *others in zip(kinds, *columns, strict=True)]
        return sorts, number

    @cached_property
    def equal(self) -> NDArray[np.float64]:
        """Return, for each link, the number of equal trunks (links between switches) over which the channels of all
        NICs of a node spread; infinity for other links, because one NIC uses these alone. float64 (links,)."""
        sorts = alike(self.rated)
        found: NDArray[np.float64] = np.where(self.rated.trunks, np.bincount(sorts)[sorts], math.inf)
        return found

    @cached_property
    def equal_rails(self) -> bool:
        """Whether channels of all NICs of a node find equal links: those of each class have equal bandwidths and
        latencies."""
        sorts = alike(self.rated)
        first = np.unique(sorts, return_index=True)[1][sorts]
        return all((column == column[first]).all() for column in (self.rated.bandwidths, self.rated.latencies))

    def heads_first(self, heads: Collection[int]) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of each node, first those on the GPUs numbered `heads` (of the GPUs with ranks)."""
        order = {device: number for number, device in enumerate(self.rated.kinds)}

        def first(ranks: tuple[int, ...]) -> tuple[int, ...]:
            by_gpu = sorted(ranks, key=lambda rank: order[self.places[rank]])
            chosen = {by_gpu[head] for head in heads}
            return tuple(sorted(ranks, key=lambda rank: rank not in chosen))

        return tuple(map(first, self.nodes))

    @cached_property
    def contention(self) -> float:
        """Return the average share of an all-to-all's time in which the receivers of the busiest NIC's messages are
        busy with messages of other NICs. All pairs of nodes are assumed to send as the first two nodes do. The share is
        0 for two nodes with one switch per rail or one GPU each, and nearly 1 for many such nodes: NICs with fewer GPUs
        are idle in between."""
        others = len(self.nodes) - 1
        if not others:
            return 0.0
        if not (ways := self._ways):
            return 1 - 1 / others
        busiest, sent = max(ways.values(), key=Counter.total), sum(ways.values(), Counter())
        most = others * max(busiest.total(), *sent.values())
        return sum(own * (others * sent[nic] - own) for nic, own in busiest.items()) / busiest.total() / most

    @cached_property
    def _ways(self) -> dict[str, Counter[str]]:
        """Return the number of an all-to-all's messages from the first node to the second, by the NICs of both."""
        places, kinds, links = self.places, self.rated.kinds, self.rated.links
        ways: dict[str, Counter[str]] = defaultdict(Counter)
        for src, dst in itertools.product(*self.nodes[:2]):
            ends = (end for link in self.rated.route(places[src], places[dst]) for end in links[link])
            nics = [end for end in ends if kinds[end] == "nic"]
            if nics:
                ways[nics[0]][nics[-1]] += 1
        return ways

    @cached_property
    def inside(self) -> Any:
        """Whether each link is of a kind within nodes, bool (links,)."""
        return np.array([kind in self.inner for kind in self.rated.link_kinds])

    @cached_property
    def of_nic(self) -> Any:
        """Whether each link has a NIC at an end, bool (links,)."""
        return np.any(self.rated.between_kinds("nic"), axis=1)

    @cached_property
    def to_network(self) -> Any:
        """Whether each link joins a NIC and a switch, bool (links,)."""
        nic, switch = (self.rated.between_kinds(kind) for kind in ("nic", "switch"))
        return (nic & switch[:, ::-1]).any(axis=1)

    @cached_property
    def to_host(self) -> Any:
        """Whether each link is in `host` and leads to the host, bool (links,)."""
        found = np.zeros(len(self.rated.links), bool)
        found[list(self.host)] = True
        return found & self.rated.between_kinds(HOST)[:, 1]

    @cached_property
    def excess(self) -> Numbers:
        """Return, for each link, by how many ps its latency exceeds the latency that the costs of hops contain, int64
        (links,). A link from GPU to GPU stands for two, to a switch and from it."""
        usual = np.array([USUAL_LATENCIES.get(kind, OTHER_LATENCY) for kind in self.rated.link_kinds], np.int64)
        usual *= np.where(self.rated.between_kinds("gpu").all(axis=1), 2, 1)
        found: Numbers = np.maximum(0, self.rated.latencies - usual)
        return found

    def leaving(self, *first: str) -> Any:
        """Whether each link begins at a device of one of the kinds in `first`, bool (links,)."""
        return self.rated.between_kinds(*first)[:, 0]


def by_proxies(rated: Topology, inner: Container[str]) -> NDArray[np.bool_]:
    """Whether a GPU's proxy (CPU thread) sends over each link to a NIC, bool (links,); `inner`: kinds in nodes."""
    gpu = rated.between_kinds("gpu")
    beyond = np.array([kind not in inner for kind in rated.link_kinds], bool)
    outer: NDArray[np.bool_] = (gpu[:, 0] != gpu[:, 1]) & beyond
    if not outer.any():  # GPUs reach each other and the network by the same links
        nic, switch = (np.any(rated.between_kinds(kind), axis=1) for kind in ("nic", "switch"))
        outer = np.asarray(nic & ~switch)
    return outer


def entered(rated: Topology, places: tuple[str, ...]) -> tuple[str, ...]:
    """Return the devices of ranks, rotated within each node so that the first device is beside a NIC, where NCCL's
    channels enter the node. Without this rotation, if NCCL_IB_HCA excludes the first NICs, the simulated channel would
    cross the node's processors, which no channel of NCCL does."""
    if rated.nodes < 2 or _beside_nic(rated, places[0]):
        return places
    nodes = list(grouped(places, rated.node_of).values())
    first = next((number for number, place in enumerate(nodes[0]) if _beside_nic(rated, place)), 0)
    return tuple(place for node in nodes for place in (*node[first:], *node[:first]))


def _beside_nic(rated: Topology, device: str) -> bool:
    """Whether a NIC is directly linked to a device, or linked to a PCIe switch next to the device."""
    ahead, kinds = rated.wiring.ahead, rated.kinds
    near = list(ahead[device])
    behind = (other for each in near if kinds[each] == "pcie_switch" for other in ahead[each])
    return any(kinds[each] == "nic" for each in (*near, *behind))


# Links of channels with what is computed of each link: all sizes of a sweep share them (nccl64 takes 1.3 times as long
# without).
_WIRES: Final[LruCache[ChannelWires]] = LruCache(
    MOST_LINKS, lambda wires: len(wires.rated.kinds) + len(wires.rated.links)
)


def wires_of(rated: Topology, places: tuple[str, ...], comm: Communicator, messages: bool) -> ChannelWires:
    """Return the links of a channel of `comm` between `places`; `messages`: point-to-point messages on direct links."""
    key = rated, places, messages, staged(comm), comm.p2p_level  # nothing else of `comm` decides
    return _WIRES.get(key, lambda: _found(rated, places, comm, messages))


def _found(rated: Topology, places: tuple[str, ...], comm: Communicator, messages: bool) -> ChannelWires:
    down = tuple(name for name, bandwidth in zip(rated.link_names, rated.bandwidths, strict=True) if not bandwidth)
    machine = rated
    if not messages:  # messages go to each peer separately
        rated = with_hubs(rated, places)
    ranks_of = grouped(range(len(places)), lambda rank: rated.node_of(places[rank]))
    nodes = tuple(map(tuple, ranks_of.values()))
    through = staged(comm)
    if through:
        rated = by_host(rated, comm)
    host = host_links(rated, comm) if through else frozenset[int]()
    beside = [(places[u], places[v]) for ranks in nodes for u, v in itertools.pairwise(ranks)]
    path = sorted({number for pair in beside or [(places[0], places[1])] for number in rated.route(*pair)})
    inner = {rated.link_kinds[number] for number in path} if beside else set[str]()
    found = rated, frozenset(inner), tuple(path), through, host, places, nodes, down, machine
    return ChannelWires(*found, lambda topology: wires_of(topology, places, comm, messages))


def alike(rated: Topology) -> Numbers:
    """Return each link's class number (links,). Two links are in one class if they join devices of the same kinds in or
    between the same nodes. Trunks are in one class if they join switches of the same classes."""
    switches = _switches(rated) if rated.trunks.any() else {}
    kinds = rated.of_ends(numbers_of(rated.kinds.values()))
    nodes = rated.of_ends(numbers_of(map(rated.node_of, rated.kinds)))
    beyond = rated.of_ends([switches.get(device, NONE) for device in rated.kinds])
    trunk = rated.trunks
    where = np.where(trunk[:, None], beyond, nodes)
    _, found = sorted_out(numbers_of(rated.link_kinds), *kinds.T, trunk, *where.T)
    return found


def _switches(rated: Topology) -> dict[str, int]:
    """Return the class number of each switch between nodes, by colour refinement: two switches are in one class if they
    are joined to the same nodes and to switches of the same classes."""
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


class _LinkShares(NamedTuple):
    """A channel's B/s on each link, and its B/s there if only links limited it. `paces` holds, for each class of links,
    the cause that limits the rate, and the share of the time that belongs to this cause."""

    bandwidths: Index
    links: Index
    paces: Sequence[tuple[str, float]]


@dataclass(frozen=True, eq=False, kw_only=True)
class GpuCall(PlainCall):
    """A call that GPU kernels run over `wires`. `network_costs` has costs of NICs that the GPUs' profile lacks."""

    wires: ChannelWires
    network_costs: Profile
    kind: CostKind | None = None

    @property
    def kernels(self) -> Kernels:
        """Return the costs of NCCL's kernels."""
        return self.costs.kernels or Kernels()

    @cached_property
    def transport(self) -> Transport:
        """Return the costs of messages between nodes, of the profile or else of its NICs, under `env`."""
        return self.scenario.env.transport(self.costs.transport or self.network_costs.transport or NO_TRANSPORT)

    def efficiency(self, kind: str, of_nic: bool = False) -> float:
        """Return the share of rated bandwidth that payload reaches on links of a kind. What NICs read and write on PCIe
        does not depend on how GPUs of a node talk to each other there. On one node no data go by NICs."""
        several, within = len(self.wires.nodes) > 1, kind in self.wires.inner
        own = None if several and within and of_nic and kind == PCIE else self.costs.links.get(kind)
        scale = own or (self.network_costs.links.get(kind) if several and (of_nic or not within) else None)
        return scale.efficiency if scale else 1.0

    @property
    def network(self) -> Topology:
        """Return the topology with the bandwidths and latencies that the call gets."""
        return with_rates(self.rated, self.bandwidths, self.latencies)

    def struck(self, program: Program, faults: Sequence[Fault]) -> Program:
        """Return the program with the changes of links that faults cause. The machine's links change; the rates of the
        call follow from theirs."""

        def rates(left: NDArray[np.float64]) -> Index:
            wires = self.wires.on(with_less(self.wires.machine, left))
            return replace(self, wires=wires, rated=wires.rated).bandwidths

        changing = ChangingLinks(self.wires.machine, rates, self.rails_routes)
        return struck(program, self.network, faults, self.launch_ps, changing)

    @property
    def rails_routes(self) -> Sequence[Sequence[Route]]:
        """Return the routes of the channels of each NIC that the call uses; empty if messages use all NICs at once."""
        return ()

    def cheaper(self) -> Iterator[tuple[str, CostSetting]]:
        """Yield a description and costs: free launches; for calls of one `kind` of block, hops of half the time."""
        yield "launches take no time", self.costs.launched_free
        if self.kind is None:
            return
        kind, block, transport = self.kind, getattr(self.kernels, self.kind), self.transport
        halved = block.model_copy(update={"hop": block.hop // 2, "net": block.net // 2})
        sooner = transport.model_copy(update={"latency": transport.latency // 2})
        quicker = self.kernels.model_copy(update={kind: halved})
        yield f"hops of {kind} take half the time", replace(self.costs, kernels=quicker, transport=sooner)


@dataclass(frozen=True, eq=False, kw_only=True)
class NcclChannel(GpuCall):
    """One simulated channel of an NCCL call; all channels do the same at the same time. `one_way`: each rank sends one
    message, as in pipelines, while send_recv is usually a ring. `call` is the one of equal messages as large as the
    mean message of the busiest rank, `of_largest` the one of equal messages as large as the largest message."""

    whole: ClassVar[bool] = False
    executor: ClassVar[str] = "nccl"
    hops = frozenset(("o_send", "o_recv", "latency"))  # links have the latency of hops
    call: NcclCall
    of_largest: NcclCall
    one_way: bool = False

    @property
    def params(self) -> dict[str, Any]:
        """Return the engine parameters that depend on the costs of kernels."""
        return self.of_largest.params(self.kernels, self.of_largest.nbytes / self.call.nbytes)

    @cached_property
    def point(self) -> Scenario:
        """Return the scenario of the one simulated channel, with this channel's share of the bytes."""
        spec = ModelSpec.model_construct(**vars(Params(chunk=self.of_largest.handed, **self.params)))
        algorithm = "direct" if self.one_way else self.call.schedule + self.call.options
        share = replace(self.call, nbytes=self.scenario.nbytes).share
        changed = {"algorithm": algorithm, "protocol": "none", "size": share}
        nodes = self.wires.nodes
        if self.call.schedule == "nvls_tree":
            nodes = self.wires.heads_first(self.call.communicator.heads)
        return self.scenario.model_copy(update={**changed, "groups": nodes, "model": spec, **PLAIN})

    @property
    def lead(self) -> dict[str, int]:
        """Return `launch_ps` by cause, in ps: launch, start of the protocol, and delay of the last channel."""
        kernels, bandwidth, one = self.kernels, self._slowest, self._one_launch
        late = self.call.late_ps(kernels, self.costs.host.late_ps(self.processes), bandwidth)
        whole = self.call.launch_ps(kernels, one, bandwidth) + late
        launch, spread = one + self.call.wide_ps(kernels), self.call.spread_ps(kernels, bandwidth)
        return {"launch": launch, "start": whole - launch - spread, "spread": spread}

    @cached_property
    def _slowest(self) -> int:
        """Return the least B/s of links between neighbours, regardless of how fast a ring passes data on: buffers of
        connections hide a slower ring from a rank's own thread block and from the delay between channels."""
        return int(self._shares.links[list(self.wires.between)].min())

    @property
    def _of_nic(self) -> int:
        """Return the least B/s of a channel on the links between NICs and switches; 0 without such links."""
        rates = self._shares.links[self.wires.to_network]
        return int(rates.min()) if len(rates) else 0

    @property
    def bandwidths(self) -> Index:
        """Return one channel's share of each link, int64 (links,), in B/s."""
        return self._shares.bandwidths

    @property
    def paces(self) -> dict[int, tuple[str, float]]:
        """Return, by link number, what else than the link limits its rate: proxies (CPU threads), a channel's thread
        blocks, or a host's memory. Each entry is the cause and its share of the link's time."""
        paces = self._shares.paces
        return {link: paces[sort] for link, sort in enumerate(self.wires.sorts[1].tolist()) if paces[sort][1]}

    @property
    def waits(self) -> dict[int, dict[str, float]]:
        """Return, for links between NICs and switches, the shares of their latency in which the NIC moves a message
        ("serialisation") or proxies handle it."""
        if len(self.wires.nodes) == 1:
            return {}
        moved, proxied = self.call.handled_ps(self.transport, self._of_nic)
        links, latencies = np.flatnonzero(self.wires.to_network).tolist(), self.latencies
        halves = {"serialisation": moved / 2, "proxy": proxied / 2}
        return {link: {cause: ps / latencies.item(link) for cause, ps in halves.items() if ps} for link in links}

    @cached_property
    def _shares(self) -> _LinkShares:
        kernels, transport = self.kernels, self.transport
        rates, links, paces = list[int](), list[int](), list[tuple[str, float]]()
        proxy = self.call.proxy_ps(transport) if len(self.wires.nodes) > 1 else 0.0
        many = self.call.algorithm == "p2p" and self.call.collective != "send_recv"  # there each rank has one receiver
        crowded = transport.crowded(self.wires.contention, self.call.far_peers) if many else 1.0
        handed_on = self.call.handed_on(kernels)
        sorts, number = self.wires.sorts
        for sort in sorts:
            inside = sort.kind in self.wires.inner
            bandwidth = sort.bandwidth * self.efficiency(sort.kind, sort.of_nic)
            share = self.call.share_of_links(kernels, bandwidth, not inside, sort.host)
            share *= crowded if sort.of_nic else 1.0
            share *= min(1.0, sort.equal / self.call.rails)
            most = self.call.most(kernels, sort.host) if inside else math.inf
            staged = self.call.by_host(kernels, bandwidth) if sort.host else bandwidth
            # messages reach more of a link within a node than rings do, but never more than all of it
            reached = min(staged * share, bandwidth if sort.of_nic or not inside else sort.bandwidth)
            links.append(max(1, round(min(reached, most))) if sort.bandwidth else 0)
            pace = "channel"
            if inside or sort.proxied:
                most = min(most, handed_on)
            if sort.proxied and proxy and PS_PER_S / proxy < most:
                most, pace = PS_PER_S / proxy, "proxy"
            beside = ("memory", 1 - staged / bandwidth if bandwidth else 0.0)
            paces.append((pace, 1.0) if most < reached else beside)
            rates.append(max(1, round(min(reached, most))) if sort.bandwidth else 0)
        return _LinkShares(np.array(rates, np.int64)[number], np.array(links, np.int64)[number], paces)

    @property
    def latencies(self) -> Index:
        """Return the latency of each link, int64 (links,), in ps, at least 1. The first link of a hop has its latency.
        A link between a NIC and a switch has half of the extra time of a hop between nodes. A link to a host has the
        extra time through its memory. Other links have none: the hop's thread block spends the time. To these comes
        what the link itself takes longer than usual."""
        kernels, wires = self.kernels, self.wires
        block, net = self.call.block(kernels), self.call.net_ps(kernels, self.transport)
        net += self.call.filled_ps(kernels)
        if len(wires.nodes) > 1:
            net += round(sum(self.call.handled_ps(self.transport, self._of_nic)))
        hop = 0 if self.call.schedule == "nvls" or self.call.kind == "P2P" else self.call.hop_ps(kernels)
        first = wires.leaving("gpu", "nvswitch") if self.call.kind == "NVLS" else wires.leaving("gpu")
        within = first * (hop + wires.inside * self.call.leg_ps(kernels))
        latencies = np.where(wires.to_network, net // 2, within) + wires.to_host * block.host
        found: Index = np.maximum(latencies.astype(np.int64), 1) + wires.excess
        return found

    @property
    def capacities(self) -> NDArray[Any]:
        """Return, for each link, the B/s that the counted bytes are divided by to give its utilisation, (links,). Bytes
        on one link to the network stand for all rails (NICs of a node). Some bytes that a GPU forwards within its node
        leave it in channels that are not simulated. Point-to-point messages may use more of a link than rings do."""
        sorts, number = self.wires.sorts
        beyond = np.array([max(1.0, self.efficiency(each.kind, each.of_nic)) for each in sorts])[number]
        links = np.where(self.wires.inside, 1 / self.call.stay, self.call.rails * self.rail_shares * beyond)
        capacities: NDArray[Any] = super().capacities * links
        return np.maximum(capacities, self.bandwidths) if self.call.kind == "P2P" else capacities

    @property
    def nics(self) -> int:
        """Return the number of NICs of a node that the call's channels use; the simulated channel uses one."""
        return math.ceil(self.call.rails)

    @property
    def rail_shares(self) -> NDArray[np.float64]:
        """Return, for each link, the share that one NIC's channels get while all NICs' use it, float64 (links,)."""
        shares: NDArray[np.float64] = np.minimum(1.0, self.wires.equal / self.call.rails)
        return shares

    def differing(self) -> list[Self]:
        """Return the channels to simulate: of each NIC of a node the first channel that uses it, but only one of those
        that find equal links and faults all along their routes. The channel of another NIC goes through the ranks of
        each node in an order that begins elsewhere."""
        faults = [matching(fault.link, self.rated.link_names) for fault in self.scenario.striking]
        if self.call.rails <= 1 or (self.wires.equal_rails and not any(faults)):
            return [self]
        columns, found = [self.bandwidths, self.latencies], dict[tuple[bytes, ...], Self]()
        for links in faults:
            columns.append(np.zeros(len(self.rated.links), np.int64))
            columns[-1][links] = 1
        for places, hop, path in self._of_nics:
            seen = tuple(column.tobytes() for column in (hop, *(column[path] for column in columns)))
            found.setdefault(seen, replace(self, places=places))
        return list(found.values())

    @cached_property
    def _of_nics(self) -> list[tuple[tuple[str, ...], Numbers, Numbers]]:
        """Return for each NIC of a node that the call uses: the devices of ranks in its channels, and their routes."""
        source = source_of(self.point, self.rated, self.places).source
        check_steps(self.nics * (source.transfers if isinstance(source, StreamedSchedule) else len(source)))
        src, dst = pairs_of(source)
        apart = src != dst
        entered, found = set[bytes](), list[tuple[tuple[str, ...], Numbers, Numbers]]()
        for turn in range(self.call.communicator.gpus):
            places = self._turned(turn)
            hop, path = self.rated.routes(places, src[apart], dst[apart])
            nics = distinct(path[self.wires.to_network[path]]).tobytes()
            if nics not in entered and len(entered) < self.nics:
                entered.add(nics)
                found.append((places, hop, path))
        return found

    @property
    def rails_routes(self) -> Sequence[Sequence[Route]]:
        """Return the routes of the channels of each NIC that the call uses."""
        if self.call.rails <= 1:
            return ()
        return [[tuple(path[a:b].tolist()) for a, b in itertools.pairwise(hop)] for _, hop, path in self._of_nics]

    def _turned(self, turn: int) -> tuple[str, ...]:
        """Return the devices of ranks if the ranks of each node are rotated by `turn`."""
        places = list(self.places)
        for ranks in self.wires.nodes:
            for rank, taken in zip(ranks, (*ranks[turn:], *ranks[:turn]), strict=True):
                places[rank] = self.places[taken]
        return tuple(places)

    def rails(self, used: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return, for each link number in `used`, this link and the links that carry equal traffic in channels of other
        NICs: links of its class, first those that carry nothing else."""
        sorts, count = alike(self.rated).tolist(), self.nics
        links = grouped(range(len(sorts)), sorts.__getitem__)
        kinds = self.rated.link_kinds
        found: dict[int, tuple[int, ...]] = {link: (link,) for link in used}
        taken = Counter(used)
        for link in used:
            if kinds[link] not in self.wires.inner:
                others = sorted((each for each in links[sorts[link]] if each != link), key=lambda each: taken[each])
                found[link] += tuple(others[: count - 1])
                taken.update(others[: count - 1])
        return found


class NcclExecutor(PlainExecutor):
    """The executor that runs calls as NCCL's kernels do."""

    tunable = False
    protocols = get_args(Protocol)

    @property
    def _kernels(self) -> Kernels:
        return self.profile.kernels or Kernels()

    def lower(
        self, scenario: Scenario, topology: Topology | None = None, costs: CostSetting | None = None
    ) -> NcclChannel:
        """Return the scenario's call as NCCL runs it; raises RefusedError if NCCL's kernels cannot run it.

        With the algorithm `direct`, each rank of a send_recv sends one message, at the costs of a ring's message.
        """
        if scenario.collective == "send_recv" and scenario.algorithm == "direct":
            both_ways = scenario.model_copy(update={"algorithm": "auto"})
            return replace(self.lower(both_ways, topology, costs), algorithm="direct", one_way=True)
        if scenario.protocol == "pull":
            raise RefusedError("NCCL's calls do not read peers' memory; write `executor: msccl`, or another `protocol`")
        if scenario.subgroups:
            cure = "write a workload whose operation has `groups`, or take a profile without kernels"
            raise RefusedError(f"NCCL kernel costs exist only for one group with equal blocks; {cure}", "subgroups")
        if scenario.weights and scenario.collective != "all_to_all":
            raise RefusedError(
                "NCCL kernel costs exist only for one group with equal blocks; take a profile without kernels",
                "weights",
            )
        rated, places, comm = gpus_of(scenario, topology)
        places = entered(rated, places) if scenario.env.NCCL_IB_HCA else places
        choose = partial(
            call_choice.choose,
            comm,
            scenario.collective,
            itemsize=scenario.itemsize,
            version=self.release(scenario),
            algorithm=_nccl_name(scenario, self._kernels.library),
            protocol="auto" if scenario.protocol == "none" else scenario.protocol,
            between=least_between(rated, places),
            left=scenario.env.selection,
            registered=_registered(scenario, comm.gpus, self.release(scenario)),
            graph=scenario.launch.graph,
            zero=scenario.env.NCCL_CTA_POLICY == "ZERO",
            switch_reduces=tuner.switch_reduces(scenario.dtype, scenario.op),
        )
        mean, largest = _messages(scenario, rated, places)
        call = choose(max(1, round(mean * scenario.nbytes)))
        wires = wires_of(rated, places, call.communicator, call.algorithm == "p2p")
        graphs = call.communicator.graphs
        graph = graphs["nvls" if call.kind == "NVLS" and "nvls" in graphs else "ring"]
        looped = scenario.launch.paced
        call = replace(
            call,
            nics=call.communicator.used_nics(graph),
            in_place=bool(scenario.in_place),
            staged=wires.staged,
            looped=looped,
            calls=scenario.launch.calls,
        )
        return NcclChannel(
            scenario=scenario,
            rated=wires.rated,
            places=places,
            costs=costs or CostSetting.of(self.profile),
            algorithm=call.name,
            protocol=call.protocol,
            count=call.alike,
            further_channels=0 if call.registered else call.channels - 1,
            usual=_is_usual(call, scenario.env),
            by_itself=call.by_itself,
            path=wires.between,
            down=wires.down,
            kind=call.kind,
            wires=wires,
            network_costs=network_of(described(scenario.topology)),
            call=call,
            of_largest=choose(round(largest * scenario.nbytes)) if largest > mean else call,
        )

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """Return the scenario itself, for which NCCL chooses; for `best` one scenario for each choice that NCCL has."""
        if scenario.algorithm != "best":
            return [scenario]
        named = [{"algorithm": a, "protocol": p} for a, p in self.choices(scenario, topology)]
        return [scenario.model_copy(update=names) for names in named]

    def choices(self, scenario: Scenario, topology: Topology | None = None) -> list[tuple[str, str]]:
        """Return the pairs (algorithm, protocol) that NCCL can run; only those with the protocol that the scenario
        names, if it names one. Raises RefusedError if there are none."""
        if ("p2p", scenario.collective) in algorithm_names.SCHEDULES:
            pairs = [
                (name, protocol) for name in algorithm_names.names(scenario.collective) for protocol in ("LL", "Simple")
            ]
        else:
            rated = topology or rated_topology(scenario)
            comm = communicator_of(scenario, rated, placed(scenario, rated))
            in_switch = tuner.switch_reduces(scenario.dtype, scenario.op)
            entries = tuner.table(comm, self.release(scenario), scenario.env.selection, in_switch).entries
            pairs = [(a, p) for c, a, p in entries if c == scenario.collective and (a, c) in algorithm_names.SCHEDULES]
        free = scenario.protocol in ("none", "auto")
        left = [(algorithm, protocol) for algorithm, protocol in pairs if free or protocol == scenario.protocol]
        if not left:
            asked = scenario.collective, "auto", scenario.protocol, scenario.env
            raise RefusedError(algorithm_names.refusal(self._kernels.library, *asked, pairs))
        return left

    def algorithms(self, collectives: Collection[str]) -> list[str]:
        """Return the algorithms that NCCL has for each of the collectives."""
        served = [set(algorithm_names.names(collective)) for collective in collectives]
        return sorted(set.intersection(*served)) if served else []


def _is_usual(call: NcclCall, env: NcclEnv) -> bool:
    """Whether the user sets no channels, buffers, message chunks or NICs; no row was measured with such settings."""
    comm = call.communicator
    buffers = call.kind in ("Simple", "P2P") and comm.buffer_bytes is not None
    between = call.kind == "P2P" and (comm.net_chunk_bytes is not None or not comm.pxn)
    between = comm.nodes > 1 and (between or bool(env.NCCL_NET_GDR_LEVEL))
    return not (call.limited or buffers or between)


def _registered(scenario: Scenario, gpus: int, release: str | None) -> bool:
    """Whether NCCL's symmetric kernels run the call: buffers are windows of all ranks, and what is added are floats.
    Buffers that NCCL registers by itself were seen to matter for all_reduce only."""
    asked, summed = scenario.launch, scenario.collective == "all_gather" or adds(scenario.dtype, scenario.op)
    one_process = asked.graph and asked.gpus_per_process in ("all", gpus)
    by_itself = scenario.collective == "all_reduce" and one_process and gpus > 1 and registered_by_itself(release)
    registered = by_itself if asked.registered is None else asked.registered
    if registered and (policy := scenario.env.NCCL_CTA_POLICY) == "EFFICIENCY":
        raise RefusedError(f"NCCL_CTA_POLICY={policy} with registered buffers is not modelled; leave out one of them")
    return summed and registered


def least_between(rated: Topology, places: Sequence[str]) -> int:
    """Return the least bandwidth of links from the first GPU to other GPUs of its node, in B/s; 0 if there are none."""
    near = [place for place in places[1:] if rated.node_of(place) == rated.node_of(places[0])]
    bandwidths = rated.bandwidths
    return min((int(bandwidths[link]) for place in near for link in rated.route(places[0], place)), default=0)


def _messages(scenario: Scenario, rated: Topology, places: Sequence[str]) -> tuple[float, float]:
    """Return the mean message of the rank that sends or receives most, and the largest message of all ranks, over the
    message of equal blocks; 1 for those. In the mean only messages between nodes count, if there are any."""
    n, weights = len(places), np.array(scenario.weights or (), float)
    if weights.shape not in ((n,), (n, n)):  # none, or wrong ones, which engines refuse
        return 1.0, 1.0
    nodes = np.array([rated.node_of(place) for place in places])
    sent, apart = weights * ~np.eye(n, dtype=bool), nodes[:, None] != nodes
    if not (sent * apart).any():
        apart = ~np.eye(n, dtype=bool)
    mean = max(((sent * apart).sum(axis) / apart.sum(axis)).max() for axis in (0, 1))
    return (float(mean / weights.mean()), float(sent.max() / weights.mean())) if mean else (1.0, 1.0)


def _nccl_name(scenario: Scenario, library: str) -> Any:
    """Return the name that NCCL has for the scenario's algorithm; the scenario may use this name or the schedule's."""
    if scenario.algorithm == "auto":
        return "auto"
    names, name = (
        algorithm_names.names(scenario.collective),
        algorithm_names.name_of(scenario.algorithm, scenario.collective),
    )
    if names and name not in names:
        others = f"it has {', '.join(names)}, and `executor: msccl` runs schedules"
        raise RefusedError(f"{library.upper()} has no {name} for {scenario.collective}; {others}")
    return names.get(name, name)


def gpus_of(scenario: Scenario, topology: Topology | None) -> tuple[Topology, tuple[str, ...], Communicator]:
    """Return the topology as rated, the GPUs of ranks, their communicator. RefusedError for fewer than two ranks."""
    rated = topology or rated_topology(scenario)
    places = placed(scenario, rated)
    if len(places) < 2:
        raise RefusedError("NCCL kernel costs exist only for two ranks or more; take a profile without kernels")
    return rated, places, communicator_of(scenario, rated, places)


def _nodes_and_gpus(rated: Topology, places: Sequence[str]) -> tuple[int, tuple[int, ...] | None]:
    """Return the number of nodes with ranks (on the devices `places`), and the GPU numbers that ranks use on a node,
    None if nodes differ in them. Raises RefusedError if nodes have different numbers of ranks."""
    ranks, gpus = grouped(places, rated.node_of), grouped(rated.of_kind("gpu"), rated.node_of)
    if len(set(map(len, ranks.values()))) > 1:
        raise RefusedError(
            f"nodes have different numbers of the {len(places)} ranks, and simcoll knows NCCL's channels only for "
            "equal numbers; write placement: {per_node: …}"
        )
    number = {gpu: i for some in gpus.values() for i, gpu in enumerate(some)}  # hosts have none
    numbers = {tuple(sorted(map(number.__getitem__, some))) for some in ranks.values()} if number else set()
    return len(ranks), numbers.pop() if len(numbers) == 1 else None


def communicator_of(scenario: Scenario, rated: Topology, places: Sequence[str]) -> Communicator:
    """Return the communicator of ranks on the devices `places`, under the scenario's `env`. Raises RefusedError if
    nodes have different numbers of ranks, and for hosts without GPUs."""
    system = described(scenario.topology)
    if system is None:
        raise RefusedError(f"{rated.name} has no GPUs to run NCCL kernels; take a profile without kernels")
    node_file(system)  # raises an error that says how nodes differ, before their numbers of ranks do
    nodes, gpus = _nodes_and_gpus(rated, places)
    env = scenario.env
    kernels = load_profile(scenario.profile).kernels
    version = scenario.library_version or (kernels.version if kernels else None)
    settings = env.search(system, version) if str(env) or version else DEFAULTS
    return env.applied(communicator(system, nodes, len(places), settings=settings, gpus=gpus))
