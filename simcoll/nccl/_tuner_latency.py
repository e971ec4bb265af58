"""The latency that NCCL's tuner reckons with for a pair of algorithm and protocol; sources as in `tuner`."""

from __future__ import annotations

from typing import Final

from simcoll.nccl.call_names import TunedCollective
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.tuner_constants import Constants
from simcoll.schedule.names import PROTOCOLS, NcclAlgorithm, Protocol
from simcoll.topology.nccl_graphs import ChannelGraph

_SIMPLE: Final = PROTOCOLS.index("Simple")


def of(
    comm: Communicator,
    constants: Constants,
    graph: ChannelGraph,
    collective: TunedCollective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> float:
    """The time of a call of nearly no bytes, in us: a base, and the hops of the longest way one after another."""
    i = PROTOCOLS.index(protocol)
    hop, nodes = constants.hop_us, comm.nodes
    base = constants.base_us[algorithm][i]
    intra = _intra(comm, constants, graph, algorithm, i)
    lone = comm.gpus == 1 and constants.lone_gpu_takes_tree_hop
    inter = hop["net"]["tree" if lone else algorithm][i] + graph.latency_us * (2 if i == _SIMPLE else 1)
    doublings = nodes.bit_length() - 1  # of one node to all of them
    if algorithm == "ring":
        return base + _ring_hops(comm, constants, graph, collective, i, intra, inter)
    if algorithm == "tree":
        return base + 2 * ((comm.gpus - 1) * intra + doublings * inter)
    if algorithm == "pat":
        return base + doublings * inter / 3.5 + 2.8 * comm.ranks  # both numbers as in NCCL's tuning.cc
    return intra + (2 * doublings * inter if algorithm == "nvls_tree" else 0)


def _intra(comm: Communicator, constants: Constants, graph: ChannelGraph, algorithm: NcclAlgorithm, i: int) -> float:
    """A hop within a node."""
    row = constants.hop_us["nvlink" if graph.type_intra == "NVL" else "pci"]
    if comm.cpu == "ibm" and graph.type_intra != "NVL" and algorithm == "tree" and i == _SIMPLE:
        return row["ring"][i]
    return row[algorithm][i]


def _ring_hops(
    comm: Communicator,
    constants: Constants,
    graph: ChannelGraph,
    collective: TunedCollective,
    i: int,
    intra: float,
    inter: float,
) -> float:
    """The hops of a ring, one after another; a chain of equal channels counts one."""
    nodes = comm.nodes
    if collective in ("broadcast", "reduce"):
        far = constants.hop_us["net" if nodes > 1 else "nvlink"]
        if graph.same_channels:
            return far["ring"][i] if nodes > 1 else intra
        return comm.ranks * (far["tree"][i] if i == _SIMPLE else far["ring"][i] if nodes > 1 else intra)
    proxy = 0.0
    if nodes > 1:
        proxy = constants.proxy_us.amd if comm.cpu == "amd" else constants.proxy_us.other
    phases = 2 if collective == "all_reduce" else 1
    across = phases * (nodes - 1)
    if nodes > 1 and collective == "all_reduce":
        across += constants.ring_extra_net_hops
    return (comm.ring_steps(collective) - across) * max(intra, proxy * (3 if i == _SIMPLE else 1)) + across * inter
