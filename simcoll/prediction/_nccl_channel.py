"""Calls as NCCL's kernels run them: one channel of a call is run, and stands for all."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from simcoll.config.groups import grouped
from simcoll.config.lru import LruCache
from simcoll.engine.timing_model import PS_PER_S, Index, Params
from simcoll.errors import RefusedError, StuckError
from simcoll.nccl import algorithm_names, call_choice, tuner
from simcoll.nccl.between_nodes import NO_TRANSPORT, Transport
from simcoll.nccl.call import NcclCall
from simcoll.nccl.communicator import Communicator, communicator
from simcoll.nccl.graph_search import DEFAULTS
from simcoll.nccl.kernel_costs import Kernels
from simcoll.nccl.symmetric_kernels import adds, registered_by_itself
from simcoll.prediction._channel_wires import ChannelWires, alike, entered, wires_of
from simcoll.prediction._plain_call import PlainCall, PlainExecutor
from simcoll.prediction.placing import PLAIN, network_of, placed, rated_topology
from simcoll.scenario.profile import CostSetting, ModelSpec, Profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.names import Protocol
from simcoll.topology.graph import Topology
from simcoll.topology.listed_machines import node_of
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.systems import load_system

T = TypeVar("T")
_COMMUNICATORS: Final[LruCache[Communicator]] = LruCache(64, lambda _: 1)
_NETWORKS: Final[LruCache[Topology]] = LruCache(100_000, lambda network: len(network.links))


class _LinkShares(NamedTuple):
    """B/s of a channel on each link, and those that links alone would give it; by sort of links what else sets the pace
    there, with its share of the time."""

    bandwidths: Index
    links: Index
    paces: Sequence[tuple[str, float]]


@dataclass(frozen=True, eq=False)
class NcclChannel(PlainCall):
    """One channel of a call as NCCL makes it; all channels do the same at the same time.

    `wires` are the links that it goes by, `network_costs` what NICs cost where the profile does not say it. `one_way`:
    not a ring of send_recv, but one message from each rank, as in pipelines.
    """

    whole: ClassVar[bool] = False
    executor: ClassVar[str] = "nccl"
    hops = frozenset(("o_send", "o_recv", "latency"))  # links have the latency of hops
    call: NcclCall
    wires: ChannelWires
    network_costs: Profile
    one_way: bool = False

    @property
    def algorithm(self) -> str:
        """NCCL's name of the algorithm."""
        return "direct" if self.one_way else self.call.name

    @property
    def protocol(self) -> str:
        """NCCL's protocol."""
        return self.call.protocol

    @property
    def count(self) -> int:
        """Channels, or pairs of them, that do the same."""
        return self.call.alike

    @property
    def further_channels(self) -> int:
        """Channels of a collective beside the first; a message counts by itself, and symmetric kernels have none."""
        return 0 if self.call.registered else self.call.channels - 1

    @property
    def usual(self) -> bool:
        """Not with channels, buffers, chunks of messages or NICs that the user sets: no row was measured so."""
        call, comm = self.call, self.call.communicator
        buffers = call.kind in ("Simple", "P2P") and comm.buffer_bytes is not None
        between = call.kind == "P2P" and (comm.net_chunk_bytes is not None or not comm.pxn)
        between = comm.nodes > 1 and (between or bool(self.scenario.env.NCCL_NET_GDR_LEVEL))
        return not (call.limited or buffers or between)

    @property
    def by_itself(self) -> bool:
        """Whether NCCL takes this algorithm and protocol where it has the choice."""
        return self.call.by_itself

    @property
    def path(self) -> tuple[int, ...]:
        """Links between neighbours, whose bandwidth limits the call."""
        return self.wires.between

    def transport(self, costs: CostSetting) -> Transport:
        """Costs of messages between nodes: the profile's, or else those of the system's NICs, under its `env`."""
        return self.scenario.env.transport(costs.transport or self.network_costs.transport or NO_TRANSPORT)

    def params(self, costs: CostSetting) -> dict[str, Any]:
        """Parameters of the engines that kernels decide."""
        return self.call.params(costs.kernels or Kernels())

    def point(self, costs: CostSetting) -> Scenario:
        """The point of one channel, with its share of the bytes."""
        return self._kept("point", costs, self._point)

    def _kept(self, name: str, costs: CostSetting, make: Callable[[CostSetting], T]) -> T:
        """The result of `make`, kept for the costs that were asked for last: several ask for the same."""
        known: tuple[CostSetting, T] | None = self._last.get(name)
        if known is None or known[0] is not costs:
            known = self._last[name] = costs, make(costs)
        return known[1]

    @cached_property
    def _last(self) -> dict[str, tuple[CostSetting, Any]]:
        return {}

    def _point(self, costs: CostSetting) -> Scenario:
        spec = ModelSpec.model_construct(**vars(Params(chunk=self.call.handed, **self.params(costs))))
        algorithm = "direct" if self.one_way else self.call.schedule + self.call.options
        changed = {"algorithm": algorithm, "protocol": "none", "size": self.call.share}
        nodes = self.wires.nodes
        if self.call.schedule == "nvls_tree":
            nodes = self.wires.heads_first(self.call.communicator.heads)
        return self.scenario.model_copy(update={**changed, "groups": nodes, "model": spec, **PLAIN})

    def launch_ps(self, costs: CostSetting) -> int:
        """Time of the call beside the steps of a channel, in ps."""
        launch = super().launch_ps(costs)
        kernels, bandwidth = costs.kernels or Kernels(), self._slowest(costs)
        late = self.call.late_ps(kernels, costs.host.late_ps(self.processes), bandwidth)
        return self.call.launch_ps(kernels, launch, bandwidth) + late

    def lead(self, costs: CostSetting) -> dict[str, int]:
        """The same by cause: launch, start of the protocol, spread of channels."""
        kernels, whole = costs.kernels or Kernels(), self.launch_ps(costs)
        launch = super().launch_ps(costs) + self.call.wide_ps(kernels)
        spread = self.call.spread_ps(kernels, self._slowest(costs))
        return {"launch": launch, "start": whole - launch - spread, "spread": spread}

    def _slowest(self, costs: CostSetting) -> int:
        """B/s of links between neighbours. How fast a ring hands on leaves a rank's own block and the spread of
        channels as they are: they are hidden by what lies in buffers of connections where the ring is slower."""
        return self._kept("slowest", costs, self._least)

    def _least(self, costs: CostSetting) -> int:
        return int(self._kept("shares", costs, self._shares).links[list(self.wires.between)].min())

    def bandwidths(self, costs: CostSetting) -> Index:
        """Share of a channel in each link, in B/s."""
        return self._kept("shares", costs, self._shares).bandwidths

    def paces(self, costs: CostSetting) -> dict[int, tuple[str, float]]:
        """Links on which proxies, or blocks of channels, are slower than the link; and those to the memory of a host,
        which takes its time beside."""
        paces = self._kept("shares", costs, self._shares).paces
        return {link: paces[sort] for link, sort in enumerate(self.wires.sorts[1].tolist()) if paces[sort][1]}

    def _shares(self, costs: CostSetting) -> _LinkShares:
        kernels, transport = costs.kernels or Kernels(), self.transport(costs)
        rates, links, paces = list[int](), list[int](), list[tuple[str, float]]()
        proxy = self.call.proxy_ps(transport) if len(self.wires.nodes) > 1 else 0.0
        many = self.call.algorithm == "p2p" and self.call.collective != "send_recv"  # of which each has one receiver
        crowded = transport.crowded(self.wires.contention) if many else 1.0
        handed_on = self.call.handed_on(kernels)
        sorts, number = self.wires.sorts
        for sort in sorts:
            inside = sort.kind in self.wires.inner
            efficiency = costs.efficiency(sort.kind, self.network_costs)
            share = self.call.share_of_links(kernels, not inside, sort.host) * (crowded if sort.of_nic else 1.0)
            share *= min(1.0, sort.equal / self.call.rails)
            most = self.call.most(kernels, sort.host) if inside else math.inf
            bandwidth = sort.bandwidth * efficiency
            staged = self.call.by_host(kernels, bandwidth) if sort.host else bandwidth
            # messages reach more than rings of a kind of links, never more than all
            reached = min(staged * share, sort.bandwidth)
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

    def latencies(self, costs: CostSetting) -> Index:
        """The first link of a hop's way has the latency of a hop, one between a NIC and the network half of what a hop
        takes longer there, one to a host what a hop takes longer through its memory. Others have none: a hop is time of
        the block that takes part in it."""
        kernels, wires = costs.kernels or Kernels(), self.wires
        block, net = self.call.block(kernels), self.call.net_ps(kernels, self.transport(costs))
        net += self.call.filled_ps(kernels, self._slowest(costs))
        hop = 0 if self.call.schedule == "nvls" or self.call.kind == "P2P" else self.call.hop_ps(kernels)
        first = wires.from_heads if self.call.kind == "NVLS" else wires.from_gpus
        within = first * (hop + wires.inside * self.call.leg_ps(kernels))
        latencies = np.where(wires.to_network, net // 2, within) + wires.to_host * block.host
        found: Index = np.maximum(latencies.astype(np.int64), 1)
        return found

    def network(self, costs: CostSetting) -> Topology:
        """Links as the channel has them, the same object for the same rates."""
        bandwidths, latencies = self.bandwidths(costs), self.latencies(costs)
        rates = self.rated, bandwidths.tobytes(), latencies.tobytes()
        return _NETWORKS.get(rates, lambda: self.rated.with_rates(bandwidths, latencies))

    def capacities(self, costs: CostSetting) -> NDArray[Any]:
        """Bytes counted on one link to the network went by all rails. Of those that a GPU hands on within its node a
        part left it, in channels that are not run. Messages from rank to rank may reach more of a link than rings."""
        links = np.where(self.wires.inside, 1 / self.call.stay, self.call.rails * self.rail_shares)
        capacities: NDArray[Any] = super().capacities(costs) * links
        return np.maximum(capacities, self.bandwidths(costs)) if self.call.kind == "P2P" else capacities

    @property
    def nics(self) -> int:
        """NICs of a node that channels use, of which the one that is run uses one."""
        return math.ceil(self.call.rails)

    @property
    def rail_shares(self) -> NDArray[np.float64]:
        """Share that the channels by one NIC have of each link on which those of all NICs meet, float64 (links,)."""
        shares: NDArray[np.float64] = np.minimum(1.0, self.wires.equal / self.call.rails)
        return shares

    def rails(self, used: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Channels go out of a node by as many NICs as they use, of which the one that is run uses one: by links that
        carry nothing else, as far as there are such."""
        sorts, count = alike(self.rated).tolist(), self.nics
        links: dict[object, list[int]] = defaultdict(list)
        for number, sort in enumerate(sorts):
            links[sort].append(number)
        kinds = self.rated.link_kinds
        found: dict[int, tuple[int, ...]] = {link: (link,) for link in used}
        taken = Counter(used)
        for link in used:
            if kinds[link] not in self.wires.inner:
                others = sorted((each for each in links[sorts[link]] if each != link), key=lambda each: taken[each])
                found[link] += tuple(others[: count - 1])
                taken.update(others[: count - 1])
        return found

    def stuck(self, error: StuckError) -> StuckError:
        """Channels that are not run use other NICs, whose links an error of the one that is run does not name."""
        if not self.wires.down or any(name in str(error) for name in self.wires.down):
            return error
        why = f"a call goes by all NICs of a node, and these links are down: {', '.join(self.wires.down[:3])}"
        return StuckError(f"the run cannot finish: {why}")

    def cheaper(self, costs: CostSetting) -> Iterator[tuple[str, CostSetting]]:
        """Launches and hops that cost less."""
        kernels, kind = costs.kernels or Kernels(), self.call.kind
        no_grid = kernels.model_copy(update={"grid": 0})
        yield "launches take no time", replace(costs, launch=0, graph=None, kernels=no_grid)
        block, transport = self.call.block(kernels), self.transport(costs)
        halved = block.model_copy(update={"hop": block.hop // 2, "net": block.net // 2})
        sooner = transport.model_copy(update={"latency": transport.latency // 2})
        quicker = kernels.model_copy(update={kind: halved})
        yield f"hops of {kind} take half the time", replace(costs, kernels=quicker, transport=sooner)


class NcclExecutor(PlainExecutor):
    """Runs calls as NCCL's kernels."""

    tunable = False
    protocols = get_args(Protocol)

    @property
    def _kernels(self) -> Kernels:
        return self.profile.kernels or Kernels()

    def lower(self, scenario: Scenario, topology: Topology | None = None) -> NcclChannel:
        """The call that NCCL makes of a scenario; raises RefusedError for what its kernels do not do.

        A send_recv may be one message of each rank (`direct`), which costs what one of a ring of them costs.
        """
        if scenario.collective == "send_recv" and scenario.algorithm == "direct":
            both_ways = scenario.model_copy(update={"algorithm": "auto"})
            return replace(self.lower(both_ways, topology), one_way=True)
        rated = topology or rated_topology(scenario)
        places = entered(rated, placed(scenario, rated)) if scenario.env.NCCL_IB_HCA else placed(scenario, rated)
        if len(places) < 2:
            raise RefusedError("kernels are modelled for two ranks or more; take another profile")
        if scenario.protocol == "pull":
            raise RefusedError("NCCL's calls do not read peers' memory; write executor: msccl, or another protocol")
        if scenario.subgroups:
            cure = "ask for an operation of a workload, which has groups, or take another profile"
            raise RefusedError(f"kernels are modelled for one group with equal blocks; {cure}", "subgroups")
        if scenario.weights:
            raise RefusedError("kernels are modelled for one group with equal blocks; take another profile", "weights")
        comm = communicator_of(scenario, rated, places)
        call = call_choice.choose(
            comm,
            scenario.collective,
            scenario.nbytes,
            scenario.itemsize,
            self.release(scenario),
            algorithm=_nccl_name(scenario, self._kernels.library),
            protocol="auto" if scenario.protocol == "none" else scenario.protocol,
            between=least_between(rated, places),
            left=scenario.env.selection,
            registered=_registered(scenario, comm.gpus, self.release(scenario)),
            switch_reduces=tuner.switch_reduces(scenario.dtype, scenario.op),
        )
        wires = wires_of(rated, places, call.communicator, call.algorithm == "p2p")
        graphs, nic = call.communicator.graphs, call.communicator.nic_GBps
        graph = graphs["nvls" if call.kind == "NVLS" and "nvls" in graphs else "ring"]
        nics = math.ceil(graph.channels * graph.inter / nic) if nic else 1
        looped = scenario.launch.paced
        call = replace(
            call,
            nics=nics,
            in_place=bool(scenario.in_place),
            staged=wires.staged,
            looped=looped,
            calls=scenario.launch.calls,
        )
        return NcclChannel(scenario, wires.rated, places, call, wires, network_of(system_of(scenario)))

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """`auto` is what NCCL chooses by itself; `best` is the quickest of what it could choose."""
        if scenario.algorithm != "best":
            return [scenario]
        named = [{"algorithm": a, "protocol": p} for a, p in self.choices(scenario, topology)]
        return [scenario.model_copy(update=names) for names in named]

    def choices(self, scenario: Scenario, topology: Topology | None = None) -> list[tuple[str, str]]:
        """NCCL's algorithms and protocols, all unless the scenario names a protocol; raises RefusedError for none."""
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
        """Algorithms that NCCL has for all of these collectives."""
        served = [set(algorithm_names.names(collective)) for collective in collectives]
        return sorted(set.intersection(*served)) if served else []

    def release(self, scenario: Scenario) -> str | None:
        """NCCL's release: the scenario's, or else the profile's."""
        return scenario.library_version or self._kernels.version


def _registered(scenario: Scenario, gpus: int, release: str | None) -> bool:
    """Whether the buffers are windows of all ranks, and the call one that symmetric kernels serve: a sum of floats."""
    asked, summed = scenario.launch, adds(scenario.dtype, scenario.op)
    one_process = asked.graph and asked.gpus_per_process in ("all", gpus)
    by_itself = one_process and gpus > 1 and registered_by_itself(release)
    return summed and (by_itself if asked.registered is None else asked.registered)


def least_between(rated: Topology, places: Sequence[str]) -> int:
    """B/s from the first GPU to another of its node, where it has least."""
    return _BETWEEN.get((rated, tuple(places)), lambda: _least_between(rated, places))


_BETWEEN: Final[LruCache[int]] = LruCache(64, lambda _: 1)


def _least_between(rated: Topology, places: Sequence[str]) -> int:
    near = [place for place in places[1:] if rated.node_of(place) == rated.node_of(places[0])]
    bandwidths = rated.bandwidths
    return min((int(bandwidths[link]) for place in near for link in rated.route(places[0], place)), default=0)


def _nccl_name(scenario: Scenario, library: str) -> Any:
    """The algorithm of NCCL that a scenario asks for, by NCCL's name or by that of its schedule."""
    if scenario.algorithm == "auto":
        return "auto"
    names, name = (
        algorithm_names.names(scenario.collective),
        algorithm_names.name_of(scenario.algorithm, scenario.collective),
    )
    if names and name not in names:
        others = f"it has {', '.join(names)}, and executor: msccl runs schedules"
        raise RefusedError(f"{library.upper()} has no {name} for {scenario.collective}; {others}")
    return names.get(name, name)


def system_of(scenario: Scenario) -> str | None:
    """The system, or the topology's file, that a scenario names."""
    return scenario.topology.system or scenario.topology.file


class _Shape(NamedTuple):
    """Nodes of ranks, and the numbers of the GPUs on which they are, where these are the same on each node."""

    nodes: int
    gpus: tuple[int, ...] | None


_SHAPES: Final[LruCache[_Shape]] = LruCache(64, lambda _: 1)


def _shape(rated: Topology, places: Sequence[str]) -> _Shape:
    """Raises RefusedError for ranks that are not as many on each node."""
    ranks, gpus = grouped(places, rated.node_of), grouped(rated.of_kind("gpu"), rated.node_of)
    if len(set(map(len, ranks.values()))) > 1:
        raise RefusedError(
            f"{len(places)} ranks are not as many on each node: how NCCL would connect them is not known; "
            "write placement: {per_node: …}"
        )
    number = {gpu: i for some in gpus.values() for i, gpu in enumerate(some)}  # none of hosts
    numbers = {tuple(sorted(map(number.__getitem__, some))) for some in ranks.values()} if number else set()
    return _Shape(len(ranks), numbers.pop() if len(numbers) == 1 else None)


def communicator_of(scenario: Scenario, rated: Topology, places: Sequence[str]) -> Communicator:
    """The communicator of ranks at `places` under the scenario's `env`. Raises RefusedError for ranks that are not as
    many on each node, and for bare hosts."""
    name = system_of(scenario)
    if name is None:
        raise RefusedError(f"{rated.name} has no GPUs: kernels run on systems; take another profile")
    node_of(load_system(name))  # which says how nodes differ, before their ranks do
    shape = _SHAPES.get((rated.layout, tuple(places)), lambda: _shape(rated, places))
    env, asked, gpus = scenario.env, (shape.nodes, len(places)), shape.gpus
    variables = str(env)
    settings = env.search(load_system(name)) if variables else DEFAULTS
    written = "" if name in shipped_systems() else scenario.contents()  # a file may have been written anew
    found = (name, written, *asked, settings, gpus)
    return _COMMUNICATORS.get(
        (*found, variables),
        lambda: env.applied(
            _COMMUNICATORS.get(found, lambda: communicator(load_system(name), *asked, settings=settings, gpus=gpus))
        ),
    )
