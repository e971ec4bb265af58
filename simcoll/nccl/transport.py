"""How GPUs of a node reach each other: into each other's memory (P2P), or through the host's (SHM).

Which it is NCCL decides by the path between two GPUs: up to `p2p_level` they talk directly. Beyond, the sender writes
into a buffer in the memory of the receiver's host, and the receiver reads it from there over PCIe; where not even GPUs
behind one PCIe switch may talk directly, what they send each other passes the link between the switch and its host.

Source: NVIDIA/nccl, release 2.30, src/graph/paths.cc, and its documentation of NCCL_P2P_LEVEL, NCCL_P2P_DISABLE.
"""

from __future__ import annotations

import networkx as nx

from simcoll.errors import RefusedError
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.graphs import PATHS
from simcoll.topology import Topology

SWITCH, HOST = "pcie_switch", "cpu"


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
    two, one for what goes up to the host and one for what comes down."""
    if PATHS.index(comm.p2p_level) >= PATHS.index("PIX"):
        return topology
    kinds = topology.kinds
    graph: nx.DiGraph[str] = nx.DiGraph()
    for device, data in topology.graph.nodes(data=True):
        for name in _halves(device) if kinds[device] == SWITCH else (device,):
            graph.add_node(name, **data)
    for u, v in topology.links:
        up = kinds[v] == HOST or (kinds[u] != HOST and kinds[v] == SWITCH)
        ends = (_halves(end)[not up] if kinds[end] == SWITCH else end for end in (u, v))
        graph.add_edge(*ends, link=topology.link(u, v))
    return Topology(graph, topology.name, topology.routing)


def _halves(switch: str) -> tuple[str, str]:
    return f"{switch}.up", f"{switch}.down"


def host_links(topology: Topology, comm: Communicator) -> frozenset[int]:
    """The links that carry what goes through the host's memory, by number."""
    between = PATHS.index(comm.p2p_level) >= PATHS.index("PHB")  # hosts of two sockets
    ends = [(topology.kinds[u] == HOST, topology.kinds[v] == HOST) for u, v in topology.links]
    return frozenset(i for i, (u, v) in enumerate(ends) if (u and v if between else u != v))
