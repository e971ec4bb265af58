"""Transports between GPUs of a node: directly into each other's memory (P2P), or through the host's (SHM).

Which it is NCCL decides by the path between two GPUs: up to `p2p_level` they talk directly. Beyond, the sender writes
into a buffer in the memory of the receiver's host, and the receiver reads it from there over PCIe; where not even GPUs
behind one PCIe switch may talk directly, what they send each other passes the link between the switch and its host.

Source: NVIDIA/nccl's documentation of NCCL_P2P_LEVEL and NCCL_P2P_DISABLE. Which level it takes by default differs by
release and host; ours is an assumption.
"""

from __future__ import annotations

from simcoll.errors import RefusedError
from simcoll.nccl.communicator import Communicator
from simcoll.topology.graph import Topology
from simcoll.topology.nccl_graphs import PATHS
from simcoll.topology.wiring import Wiring

_DIRECT = ("nvlink", "xgmi")  # kinds of links that serve direct transfers only
SWITCH, HALF, HOST = "pcie_switch", "half of a PCIe switch", "cpu"


def staged(comm: Communicator) -> bool:
    """Whether some GPUs of a ring hand on through the host's memory. Raises RefusedError for GPUs on NVLink that may
    not use it: what NCCL's search would find then is not stored."""
    path = comm.graphs["ring"].type_intra
    beyond = PATHS.index(path) > PATHS.index(comm.p2p_level)
    if beyond and path in ("NVL", "NVB", "C2C"):
        raise RefusedError(f"without transfers over {path} other graphs would be found; take a system without NVLink")
    return beyond


def by_host(topology: Topology, comm: Communicator) -> Topology:
    """The topology in which every way between GPUs goes by the host, where they never talk directly: PCIe switches are
    two, one for what goes up to the host and one for what comes down, and NVLinks are left out."""
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
    """The half of a switch, which is added where it is not there yet."""
    name = f"{switch}.{half}"
    wiring.add(name, {**wiring.devices[switch], "kind": HALF})
    return name


def _far(topology: Topology) -> dict[str, int]:
    """Number of links from each device to the nearest host."""
    far, reached = dict.fromkeys(topology.kinds, len(topology.kinds)), topology.of_kind(HOST)
    steps = 0
    while reached:
        far |= dict.fromkeys(reached, steps)
        steps += 1
        reached = tuple(u for u, v in topology.links if v in reached and far[u] > steps)
    return far


def host_links(topology: Topology, comm: Communicator) -> frozenset[int]:
    """The links that carry what goes through the host's memory, by number."""
    between = PATHS.index(comm.p2p_level) >= PATHS.index("PHB")  # hosts of two sockets
    ends = [(topology.kinds[u] == HOST, topology.kinds[v] == HOST) for u, v in topology.links]
    return frozenset(i for i, (u, v) in enumerate(ends) if (u and v if between else u != v))
