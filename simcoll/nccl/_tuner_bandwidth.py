"""The bandwidth that NCCL's tuner reckons with for a pair of algorithm and protocol; sources as in `tuner`.

First comes the bandwidth of all channels of the graph together (`bus`): the share that the protocol leaves of it, up to
the limit of a channel. From that follows the bandwidth of the buffer, which an algorithm moves more than once.
"""

from __future__ import annotations

from simcoll.nccl.call_names import TunedCollective
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.tuner_constants import NcclConstants, RcclConstants
from simcoll.schedule.names import PROTOCOLS, NcclAlgorithm, Protocol
from simcoll.topology.nccl_graphs import ChannelGraph


def of(
    comm: Communicator,
    constants: NcclConstants | RcclConstants,
    graph: ChannelGraph,
    collective: TunedCollective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> float:
    """GB/s of the largest buffer of a rank; 0 where the pair is not used."""
    bus = graph.channels * (graph.intra if comm.nodes <= 2 else graph.inter)
    if isinstance(constants, RcclConstants):
        bus *= _rccl_share(comm, constants, algorithm, protocol)
    elif algorithm == "ring":
        bus = _ring_bus(comm, constants, graph, collective, protocol, bus)
    elif algorithm == "tree":
        bus = _tree_bus(comm, constants, graph, protocol, bus)
    elif algorithm == "pat":
        bus *= constants.shares.pat
    elif constants.nvls_share is None:
        bus = _nvls_bus(comm, constants, graph, collective, algorithm)
    else:
        return _nvls_before_2_28(comm, graph, collective, algorithm, constants.nvls_share)
    if algorithm == "tree":
        return bus / 2
    if algorithm == "ring" or collective == "all_reduce":
        return bus * comm.ranks / comm.ring_steps(collective)
    return bus


def _ring_bus(
    comm: Communicator,
    constants: NcclConstants,
    graph: ChannelGraph,
    collective: TunedCollective,
    protocol: Protocol,
    bus: float,
) -> float:
    shares, ceilings = constants.shares, constants.ceilings_GBps
    if protocol == "LL":
        alone = comm.nodes == 1 and collective not in ("all_reduce", "reduce")
        return min(_ll_ceiling(comm, constants), bus * (shares.ring_ll_without_reduction if alone else shares.ring_ll))
    if protocol == "LL128":
        ceiling = ceilings.ring_ll128[comm.generation][_column(comm)]
        return min(bus * shares.ring_ll128, graph.channels * ceiling)
    return bus


def _tree_bus(
    comm: Communicator, constants: NcclConstants, graph: ChannelGraph, protocol: Protocol, bus: float
) -> float:
    shares, ceilings, column = constants.shares, constants.ceilings_GBps, _column(comm)
    bus = min(bus * shares.tree, graph.channels * ceilings.tree[comm.generation][column])
    if protocol == "LL":
        bus = min(bus * shares.tree_ll, _ll_ceiling(comm, constants))
    elif protocol == "LL128":
        share = shares.tree_ll128_one_node if comm.nodes == 1 else shares.tree_ll128
        bus = min(bus * share, graph.channels * ceilings.tree_ll128[comm.generation][column])
    return bus * shares.plain_tree if graph.pattern == "tree" else bus


def _nvls_bus(
    comm: Communicator,
    constants: NcclConstants,
    graph: ChannelGraph,
    collective: TunedCollective,
    algorithm: NcclAlgorithm,
) -> float:
    """The switch reduces and multicasts: within a node twice the speed for all_reduce, less what a head keeps."""
    channels = graph.channels
    if channels < 2:
        return 0.0
    intra = graph.intra * constants.nvls_efficiency[comm.generation] * (channels - 1) / channels
    intra *= 2 if collective == "all_reduce" else (comm.gpus - 1) / comm.gpus
    if algorithm == "nvls":
        return channels * min(intra, graph.inter)
    inter = graph.inter * (2 if comm.nodes <= 2 else 1)
    return channels * min(intra, inter, constants.ceilings_GBps.nvls_tree[comm.generation][_column(comm)])


def _nvls_before_2_28(
    comm: Communicator, graph: ChannelGraph, collective: TunedCollective, algorithm: NcclAlgorithm, share: float
) -> float:
    inter = graph.inter / 2 if algorithm == "nvls_tree" and comm.nodes > 2 else graph.inter
    return graph.channels * min(graph.intra, inter) * (share if collective == "all_reduce" else 1)


def _rccl_share(comm: Communicator, constants: RcclConstants, algorithm: NcclAlgorithm, protocol: Protocol) -> float:
    if algorithm == "tree" and protocol == "Simple" and comm.nodes == 1:
        return 0.0
    shares = constants.shares_to_two_nodes if comm.nodes <= 2 else constants.shares_beyond
    return shares[algorithm][PROTOCOLS.index(protocol)]


def _column(comm: Communicator) -> int:
    return min(comm.nodes, 3) - 1


def _ll_ceiling(comm: Communicator, constants: NcclConstants) -> float:
    """The limit of all channels together in LL; over several nodes it depends on the host's processor, not the GPU."""
    row = comm.generation if comm.nodes == 1 else "ampere" if comm.cpu == "amd" else "volta"
    return constants.ceilings_GBps.ll[row][_column(comm)]
