"""The topology of a point, with rated bandwidths or with a profile's rates, and the device of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, get_args

import numpy as np

from simcoll.config import input_files
from simcoll.config.grouping import grouped
from simcoll.config.lru import LruCache
from simcoll.config.numpy_helpers import Numbers
from simcoll.errors import InputError, RefusedError, wrong
from simcoll.nccl.environment import NcclEnv
from simcoll.nccl.kernel_costs import CostKind
from simcoll.prediction.work_limits import check_work
from simcoll.scenario.key_types import Placement
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import (
    CABLE,
    PCIE,
    CostSetting,
    LinkScale,
    Profile,
    load_network,
    load_profile,
)
from simcoll.scenario.profile_choice import UNFITTED
from simcoll.scenario.scenario import Scenario
from simcoll.topology import topology_builder
from simcoll.topology.graph import Link, Topology
from simcoll.topology.machine_files import SystemFile

ONE_PORT: Final = UNFITTED  # the profile without costs: links are as rated
# Keys of the scenario that engines run, beside engine parameters: costs of the call are added separately.
PLAIN: Final = {"profile": ONE_PORT, "env": NcclEnv.plain(), "launch": Launch.plain()}
LARGEST: Final = 2.0**63 - 1024  # the largest whole number of a float that fits 64 bits
# Topologies with their routes, as rated and as served: without it a sweep of 200 sizes takes twice as long.
_TOPOLOGIES: Final[LruCache[Topology]] = LruCache(4_000_000, lambda topology: len(topology.kinds) + len(topology.links))


def topology_of(scenario: Scenario) -> Topology:
    """Return the topology of a scenario, with the bandwidths and latencies that its profile gives to links."""
    return served_by(rated_topology(scenario), load_profile(scenario.profile).links)


def rated_topology(scenario: Scenario) -> Topology:
    """Return the topology of a scenario with rated bandwidths; points with the same topology share one object."""
    spec, seed, unused = scenario.topology, scenario.seed, tuple[str, ...]()
    if scenario.env.NCCL_IB_HCA and topology_builder.nodes_of(spec) > 1 and (machine := machine_of(scenario)):
        unused = tuple(f"nic{number}" for number in scenario.env.unused_nics(machine))
    own = scenario.env.NCCL_PXN_DISABLE and (spec.system or spec.file) and topology_builder.nodes_of(spec) > 1
    if own and spec.routing in (None, "adaptive"):
        spec = spec.model_copy(update={"routing": "own-nics", "spines": None if spec.routing else spec.spines})
    written = input_files.text_of(Path(spec.file)) if spec.file and input_files.is_file(Path(spec.file)) else None

    def built() -> Topology:
        check_work(scenario)
        return topology_builder.build(spec, seed=seed, without=unused)

    return _TOPOLOGIES.get((repr(vars(spec)), seed, written, unused), built)


def machine_of(scenario: Scenario) -> SystemFile | None:
    """Return the system file of the machine that a scenario runs on; None for bare hosts."""
    try:
        return topology_builder.described(scenario.topology)
    except InputError:  # a fabric's file: errors of a machine's file were raised when it was built
        return None


def network_of(system: SystemFile | None) -> Profile:
    """Return a system's NIC profile: costs of hops between nodes, factors of links to NICs. Empty without NICs."""
    nic = system.nic if system else None
    if nic is None:
        return Profile(name="none")
    network = load_network(nic.profile)
    links = {kind: scale for kind, scale in network.links.items() if kind in (CABLE, PCIE)}
    return network.model_copy(update={"links": links})


def network_under(scenario: Scenario) -> Profile:
    """Return the profile with the costs of messages between nodes. It is the scenario's own profile, or the one after
    `+` in its name, or else that of the system's NICs."""
    name = scenario.profile
    own = load_profile(name)
    if own.transport is None:
        return network_of(topology_builder.described(scenario.topology))
    return load_network(name.partition("+")[2] if own.name == name and "+" in name else name)


def beyond_rated(scenario: Scenario, rated: Topology, costs: CostSetting | None = None) -> dict[str, LinkScale]:
    """Return the kinds of links that carry more payload than rated, under the machine's own profile or `costs`. Each
    kind gets the factor (above 1) of its rated bandwidth that the best of NCCL's protocols reaches."""
    machine = machine_of(scenario)
    own = CostSetting.of(load_profile(machine.profile)) if machine and machine.profile else None
    inner = rated.kinds_within_nodes()
    shares: dict[str, float] = {}
    network = CostSetting.of(network_of(machine)) if machine and rated.nodes > 1 else None
    for each in filter(None, (own, costs, network)):
        reach = 1.0
        if each.kernels:
            reach = max(getattr(each.kernels, kind).reach for kind in get_args(CostKind))
        for kind, scale in each.links.items():
            share = scale.efficiency * (reach if kind in inner else 1.0)
            shares[kind] = max(share, shares.get(kind, 1.0))
        for kind in inner - each.links.keys():
            shares[kind] = max(reach, shares.get(kind, 1.0))
    return {kind: LinkScale.model_construct(efficiency=share) for kind, share in sorted(shares.items()) if share > 1}


def served_by(rated: Topology, scales: Mapping[str, LinkScale]) -> Topology:
    """Return the topology with link rates scaled by kind and unchanged routes; `rated` itself if nothing changes.
    Results are cached, so equal scales give one object. Raises TopologyError if a link's rate gets too large."""

    def served() -> Topology:
        if not scales.keys() & set(rated.link_kinds):
            return rated
        bandwidths, latencies = scaled(rated, scales)
        Link(int(bandwidths.max(initial=0)), latency_ps=int(latencies.max(initial=0)))  # checks the largest values
        return rated.with_rates(bandwidths, latencies)

    return _TOPOLOGIES.get((rated, *sorted(scales.items())), served) if scales else rated


def with_rates(rated: Topology, bandwidths: Numbers, latencies: Numbers) -> Topology:
    """Return the topology with other bandwidths (B/s) and latencies (ps), each int64 (links,). Results are cached, so
    equal rates give one object."""
    key = rated, bandwidths.tobytes(), latencies.tobytes()
    return _TOPOLOGIES.get(key, lambda: rated.with_rates(bandwidths, latencies))


def scaled(topology: Topology, scales: Mapping[str, LinkScale]) -> tuple[Numbers, Numbers]:
    """Return links' bandwidths (B/s) for payload and latencies (ps), scaled by kind of link, each int64 (links,)."""
    kinds, rates = np.array(topology.link_kinds), np.array([topology.bandwidths, topology.latencies])
    factors = np.ones(rates.shape)
    for kind, scale in scales.items():
        factors[:, kinds == kind] = [[scale.efficiency], [scale.latency]]
    bandwidths, latencies = np.rint(np.minimum(rates * factors, LARGEST)).astype(np.int64)
    return bandwidths, np.maximum(latencies, 1)


def placed(scenario: Scenario, topology: Topology) -> tuple[str, ...]:
    """Return the device of each rank. Raises InputError for a wrong placement, RefusedError for too many ranks."""
    wanted, placement = scenario.ranks, scenario.placement
    if isinstance(placement, tuple):
        known = set(topology.ranks)
        unfit = next((device for device in placement if device not in known), None)
        if unfit is not None:
            why = f"is a {topology.kinds[unfit]}" if unfit in topology.kinds else f"is not in {topology.name}"
            raise wrong("placement", f"{unfit!r} {why}", f"place ranks on {', '.join(topology.ranks[:2])}, …")
        if len(set(placement)) < len(placement):
            raise wrong("placement", "a device is named twice", "place one rank on each device")
        places = placement
    elif isinstance(placement, Placement):
        of_nodes = grouped(topology.ranks, topology.node_of).values()
        first = {device for devices in of_nodes for device in devices[: placement.per_node]}
        places = tuple(device for device in topology.ranks if device in first)
    else:
        places = topology.ranks
    if wanted is not None and wanted > len(places):
        enough = -(-wanted * topology.nodes // len(places))
        cure = f"write at most {len(places)} ranks, or more nodes: {enough} hold them"
        raise RefusedError(f"{wanted} ranks do not fit {len(places)} places of {topology.name}; {cure}", "ranks")
    return places[:wanted]


def arrivals_of(scenario: Scenario, n: int) -> dict[int, int]:
    """Return the arrival times in ps by rank, of `n` ranks; ranks not listed arrive at 0. Raises InputError."""
    arrivals = scenario.arrivals or {}
    for rank in arrivals:
        if not 0 <= rank < n:
            raise wrong("arrivals", f"there is no rank {rank}", f"write 0 … {n - 1}")
    return arrivals
