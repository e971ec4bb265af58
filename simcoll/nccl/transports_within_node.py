"""Transports between GPUs of a node: directly into each other's memory (P2P), or through the host's memory (SHM).

The type of the path between two GPUs decides: up to `p2p_level` they talk directly. Beyond it, the sender writes into a
buffer in the memory of the receiver's host, from which the receiver reads over PCIe. If not even GPUs behind one PCIe
switch may talk directly, their data pass the link between the switch and its host.

Source: NVIDIA/nccl's documentation of NCCL_P2P_LEVEL and NCCL_P2P_DISABLE. NCCL's default level differs between
releases and hosts; simcoll's default is an assumption.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simcoll.errors import RefusedError
from simcoll.nccl.communicator import Communicator
from simcoll.topology.graph import Link, Topology
from simcoll.topology.nccl_graphs import PATHS
from simcoll.topology.wiring import Wiring

_DIRECT = ("nvlink", "xgmi")  # kinds of links that carry direct transfers only
SWITCH, HALF, HOST = "pcie_switch", "half of a PCIe switch", "cpu"
_HUB = "nvswitch"  # kind of the hub that replaces the links of a mesh


def staged(comm: Communicator) -> bool:
    """Return whether some GPUs of a ring send through the host's memory. Raises RefusedError if the settings exclude
    NVLink between GPUs that have it, because the stored graphs use NVLink."""
    path = comm.graphs["ring"].type_intra
    beyond = PATHS.index(path) > PATHS.index(comm.p2p_level)
    if beyond and path in ("NVL", "NVB", "C2C"):
        raise RefusedError(f"simcoll has no NCCL graphs without transfers over {path}; take a system without NVLink")
    return beyond


def by_host(topology: Topology, comm: Communicator) -> Topology:
    """Return a topology in which all routes between GPUs pass the host, if GPUs may not talk directly; else return
    `topology`. NVLinks are removed. Each PCIe switch becomes two, one towards the host and one from it."""
    if PATHS.index(comm.p2p_level) >= PATHS.index("PIX"):
        return topology
    wiring, far = topology.rewired(), _far(topology)
    for u, v in topology.links:
        if topology.link(u, v).kind in _DIRECT:
            wiring.part(u, v)
            continue
        half = "up" if far[v] < far[u] else "down"
        tail, head = (_halved(wiring, end, half) if topology.kinds[end] == SWITCH else end for end in (u, v))
        wiring.join(tail, head, topology.link(u, v))
    for switch in topology.of_kind(SWITCH):
        wiring.remove(switch)
    return Topology(wiring, topology.name, topology.routing)


def _halved(wiring: Wiring, switch: str, half: str) -> str:
    """Return the name of one half (`up` or `down`) of a PCIe switch, and add the half if it is missing."""
    name = f"{switch}.{half}"
    wiring.add(name, {**wiring.devices[switch], "kind": HALF})
    return name


def _far(topology: Topology) -> dict[str, int]:
    """Return the number of links from each device to the nearest host."""
    far, reached = dict.fromkeys(topology.kinds, len(topology.kinds)), topology.of_kind(HOST)
    steps = 0
    while reached:
        far |= dict.fromkeys(reached, steps)
        steps += 1
        reached = tuple(u for u, v in topology.links if v in reached and far[u] > steps)
    return far


def host_links(topology: Topology, comm: Communicator) -> frozenset[int]:
    """Return the numbers of the links that carry data through the host's memory."""
    between = PATHS.index(comm.p2p_level) >= PATHS.index("PHB")  # hosts of two sockets
    ends = [(topology.kinds[u] == HOST, topology.kinds[v] == HOST) for u, v in topology.links]
    return frozenset(i for i, (u, v) in enumerate(ends) if (u and v if between else u != v))


def with_hubs(topology: Topology, places: Sequence[str]) -> Topology:
    """Return the topology with a hub on each node in place of the direct links between the GPUs `places`. Return
    `topology` itself if such links do not join all these GPUs of a node, as bridges between pairs do not.

    NCCL's channels together fill all links of a GPU. So a call uses all links at once, whichever peer each leads to.
    simcoll does not know the order in which a channel visits the GPUs.
    """
    of_node: dict[int | None, set[str]] = defaultdict(set)
    for place in places:
        of_node[topology.node_of(place)].add(place)
    every = set(places)
    direct = [(u, v) for u, v in topology.links if u in every and u != v and v in of_node.get(topology.node_of(u), ())]
    if {u for u, _ in direct} != every:  # also if each GPU is alone on its node
        return topology
    joined = Wiring()
    joined.fill(((place, {}) for place in places), ((u, v, topology.link(u, v)) for u, v in direct))
    if not direct or any(joined.reached(next(iter(own))) != own for own in of_node.values()):
        return topology
    wiring = topology.rewired()
    out: dict[str, list[Link]] = defaultdict(list)
    into: dict[str, list[Link]] = defaultdict(list)
    for u, v in direct:
        link = topology.link(u, v)
        out[u].append(link)
        into[v].append(link)
        wiring.part(u, v)
    for node in of_node:
        wiring.add(_hub_of(topology, node), {"kind": _HUB, "node": node})
    for place in places:
        hub = _hub_of(topology, topology.node_of(place))
        wiring.join(place, hub, _together(out[place]))
        wiring.join(hub, place, _together(into[place]))
    return Topology(wiring, topology.name, topology.routing)


def _hub_of(topology: Topology, node: int | None) -> str:
    return f"node{node}.mesh" if topology.nodes > 1 else "mesh"


def _together(links: Sequence[Link]) -> Link:
    latency = max(link.latency_ps for link in links) // 2  # a call ends with its slowest channel; two links are one
    return Link(sum(link.bandwidth for link in links), latency_ps=latency, kind=links[0].kind)
