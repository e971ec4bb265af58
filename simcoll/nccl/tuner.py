"""A copy of NCCL's tuner: latency and bandwidth of each pair of algorithm and protocol, and the choice of a pair.

    time = latency + size / bandwidth

The size is the largest buffer of a rank, as in nccl-tests. The tuner ignores the launch of a kernel and the host's
work, so real calls of small sizes take longer. CollNet (needs a plugin for in-network reduction) and the rule for fp8
are not modelled.

Source: NVIDIA/nccl, release 2.30, src/graph/tuning.cc; ROCm/rccl, release 2.21.5: formulas and figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from simcoll.errors import RefusedError
from simcoll.nccl.algorithm_names import COLLECTIVES, TunedCollective, refusal
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.environment import EVERYTHING, Selection
from simcoll.nccl.tuner_constants import Constants, NcclConstants, RcclConstants, read
from simcoll.schedule.names import ALGORITHMS, PROTOCOLS, NcclAlgorithm, Protocol
from simcoll.topology.nccl_graphs import PATHS, ChannelGraph

_SERVES: Final[Mapping[TunedCollective, tuple[NcclAlgorithm, ...]]] = {
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "all_reduce": ("tree", "ring", "nvls", "nvls_tree"),
}
_SIMPLE: Final = PROTOCOLS.index("Simple")
_TREE_ENTRIES: Final = 23  # number of entries of the correction table that apply to trees
_MOST_GPUS_NVLS_BLOCKS: Final = 32  # a node, for NVLS all_gather and reduce_scatter
_ADDED_BY_SWITCHES: Final = ("int32", "int64", "float16", "bfloat16", "float32", "float64")
_COMPARED_BY_SWITCHES: Final = ("int32", "int64", "float16", "bfloat16")


@dataclass(frozen=True)
class TunerEntry:
    """The table's entry for one pair: the latency of a call, and the bandwidth (GB/s of the largest buffer)."""

    latency_us: float
    bandwidth_GBps: float  # noqa: N815


@dataclass(frozen=True)
class TunerTable:
    """The table that NCCL computes once for a communicator; it has no entries for unusable pairs."""

    communicator: Communicator
    constants: NcclConstants | RcclConstants
    entries: Mapping[tuple[TunedCollective, NcclAlgorithm, Protocol], TunerEntry]


@dataclass(frozen=True)
class TunerChoice:
    """The pair that NCCL chooses, and the time in us that NCCL expects."""

    algorithm: NcclAlgorithm
    protocol: Protocol
    time_us: float


def switch_reduces(dtype: str, op: str) -> bool:
    """Return whether NVSwitches support an operator on a type; if not, NCCL uses NVLS and NVLSTree for all_gather only.

    NVSwitches never reduce `avg`: NCCL multiplies floats before, and divides integers afterwards. Source: NVIDIA/nccl
    2.27, src/include/device.h (ncclNvlsSupported).
    """
    return dtype in {"sum": _ADDED_BY_SWITCHES, "min": _COMPARED_BY_SWITCHES, "max": _COMPARED_BY_SWITCHES}.get(op, ())


def table(
    communicator: Communicator,
    version: str | None = None,
    selection: Selection = EVERYTHING,
    switch_reduces: bool = True,
) -> TunerTable:
    """Return latency and bandwidth of every pair that the release (default: the newest known) could use.

    `selection`: the pairs that `NCCL_ALGO` and `NCCL_PROTO` allow; `switch_reduces`: see the function of that name.
    Raises InputError for an unknown release.
    """
    constants = read(communicator.library, version)
    entries: dict[tuple[TunedCollective, NcclAlgorithm, Protocol], TunerEntry] = {}
    for collective, algorithm, protocol in _pairs(communicator, constants, selection, switch_reduces):
        graph = communicator.graph(algorithm)
        if graph is None or algorithm not in constants.base_us:
            continue
        width = _bandwidth(communicator, constants, graph, collective, algorithm, protocol)
        if width > 0:
            wait = _latency(communicator, constants, graph, collective, algorithm, protocol)
            entries[collective, algorithm, protocol] = TunerEntry(wait, width)
    return TunerTable(communicator, constants, entries)


def time_us(
    table: TunerTable, collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol, nbytes: int
) -> float:
    """Return the tuner's time for a call of `nbytes`, in us.

    Raises RefusedError for a pair that is not in the table.
    """
    entry = table.entries.get((collective, algorithm, protocol))
    comm, constants = table.communicator, table.constants
    if entry is None:
        raise RefusedError(refusal(comm.library, collective, algorithm, protocol))
    wait, width = entry.latency_us, entry.bandwidth_GBps
    width *= _correction(comm, constants, algorithm, protocol, nbytes)
    plateau = collective == "all_reduce" and algorithm == "ring" and protocol == "Simple" and comm.nodes > 1
    if plateau and _fills(comm, nbytes):
        wait *= constants.plateau.from_cc_80 if comm.capability >= 80 else constants.plateau.before
    return wait + nbytes / (1000 * width)


def choose(table: TunerTable, collective: TunedCollective, nbytes: int) -> TunerChoice | None:
    """Return the pair with the least time, at ties the first in NCCL's order; None if no pair is usable."""
    best: TunerChoice | None = None
    for served, algorithm, protocol in table.entries:
        if served == collective:
            time = time_us(table, collective, algorithm, protocol, nbytes)
            if best is None or time < best.time_us:
                best = TunerChoice(algorithm, protocol, time)
    return best


# --- usable pairs ---


def _pairs(
    comm: Communicator, constants: NcclConstants | RcclConstants, selection: Selection, switch_reduces: bool
) -> Iterator[tuple[TunedCollective, NcclAlgorithm, Protocol]]:
    """Yield every pair that a communicator may use, in NCCL's order, even if the search found no graph for it."""
    for collective in COLLECTIVES:
        for algorithm in ALGORITHMS:
            if algorithm in _SERVES[collective] and _possible(comm, collective, algorithm, switch_reduces):
                for protocol in PROTOCOLS if algorithm in ("ring", "tree") else ("Simple",):
                    insisted = selection.insists(collective, protocol)
                    if selection.allows(collective, algorithm, protocol) and (
                        protocol != "LL128" or insisted or _near_enough(comm, constants, algorithm)
                    ):
                        yield collective, algorithm, protocol


def _possible(comm: Communicator, collective: TunedCollective, algorithm: NcclAlgorithm, switch_reduces: bool) -> bool:
    if algorithm in ("nvls", "nvls_tree") and collective != "all_gather" and not switch_reduces:
        return False
    if algorithm == "nvls":
        return comm.nodes == 1 and (collective == "all_reduce" or comm.gpus <= _MOST_GPUS_NVLS_BLOCKS)
    if algorithm == "nvls_tree":
        return comm.nodes > 1
    return algorithm != "pat" or comm.gpus == 1


def _near_enough(comm: Communicator, constants: NcclConstants | RcclConstants, algorithm: NcclAlgorithm) -> bool:
    """Return whether paths are short enough for LL128, which relies on atomic 128-byte stores."""
    graph = comm.graph(algorithm)
    farthest = PATHS.index("PXN" if comm.capability >= 90 else "PXB")
    if graph is None:
        return False
    knows_p2c = isinstance(constants, RcclConstants) or constants.knows_p2c
    by_c2c = any(each.type_inter == "P2C" for each in comm.graphs.values())  # then all graphs use P2C or PXN
    inter = "PHB" if by_c2c and not knows_p2c else graph.type_inter
    return (
        comm.capability >= 70 and PATHS.index(inter) <= farthest and PATHS.index(graph.type_intra) <= PATHS.index("NVB")
    )


# --- bandwidth ---


def _bandwidth(
    comm: Communicator,
    constants: NcclConstants | RcclConstants,
    graph: ChannelGraph,
    collective: TunedCollective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> float:
    """Return the bandwidth of a pair in GB/s of the largest buffer of a rank; 0 if the pair is not used."""
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
        ceiling = ceilings.ring_ll128[comm.generation][_nodes_column(comm)]
        return min(bus * shares.ring_ll128, graph.channels * ceiling)
    return bus


def _tree_bus(
    comm: Communicator, constants: NcclConstants, graph: ChannelGraph, protocol: Protocol, bus: float
) -> float:
    shares, ceilings, column = constants.shares, constants.ceilings_GBps, _nodes_column(comm)
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
    """Return NVLS's GB/s. The switch doubles all_reduce's speed within a node, except for a head's own share."""
    channels = graph.channels
    if channels < 2:
        return 0.0
    intra = graph.intra * constants.nvls_efficiency[comm.generation] * (channels - 1) / channels
    intra *= 2 if collective == "all_reduce" else (comm.gpus - 1) / comm.gpus
    if algorithm == "nvls":
        return channels * min(intra, graph.inter)
    inter = graph.inter * (2 if comm.nodes <= 2 else 1)
    return channels * min(intra, inter, constants.ceilings_GBps.nvls_tree[comm.generation][_nodes_column(comm)])


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


def _nodes_column(comm: Communicator) -> int:
    return min(comm.nodes, 3) - 1


def _ll_ceiling(comm: Communicator, constants: NcclConstants) -> float:
    """Return the GB/s limit of all channels together in LL; with several nodes it depends on the CPU, not the GPU."""
    row = comm.generation if comm.nodes == 1 else "ampere" if comm.cpu == "amd" else "volta"
    return constants.ceilings_GBps.ll[row][_nodes_column(comm)]


# --- latency ---


def _latency(
    comm: Communicator,
    constants: Constants,
    graph: ChannelGraph,
    collective: TunedCollective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> float:
    """Return the latency of a pair, in us: a base, plus the hops on the longest chain of dependent messages."""
    i = PROTOCOLS.index(protocol)
    hop, nodes = constants.hop_us, comm.nodes
    base = constants.base_us[algorithm][i]
    intra = _intra(comm, constants, graph, algorithm, i)
    lone = comm.gpus == 1 and constants.lone_gpu_takes_tree_hop
    inter = hop["net"]["tree" if lone else algorithm][i] + graph.latency_us * (2 if i == _SIMPLE else 1)
    doublings = nodes.bit_length() - 1  # from one node to all nodes
    if algorithm == "ring":
        return base + _ring_hops(comm, constants, graph, collective, i, intra, inter)
    if algorithm == "tree":
        return base + 2 * ((comm.gpus - 1) * intra + doublings * inter)
    if algorithm == "pat":
        return base + doublings * inter / 3.5 + 2.8 * comm.ranks  # both numbers as in NCCL's tuning.cc
    return intra + (2 * doublings * inter if algorithm == "nvls_tree" else 0)


def _intra(comm: Communicator, constants: Constants, graph: ChannelGraph, algorithm: NcclAlgorithm, i: int) -> float:
    """Return the latency of one hop within a node in us, from NCCL's table."""
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
    """Return the latency in us of all successive hops of a ring; a chain of equal channels counts as one hop."""
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


# --- dependence on the size ---


def _correction(
    comm: Communicator,
    constants: NcclConstants | RcclConstants,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
    nbytes: int,
) -> float:
    """Return the factor on a pair's bandwidth for a call of `nbytes`. NCCL corrects trees, hence all-reduces only; RCCL
    also corrects rings over several nodes, for every collective."""
    entry = (nbytes // 64).bit_length() - 1
    if entry < 0:
        return 1.0
    if isinstance(constants, RcclConstants):
        if algorithm == "ring" and comm.nodes == 1:
            return 1.0
        row = constants.correction[algorithm][protocol]
        return row[min(entry, len(row) - 1)]
    row = constants.correction[protocol]
    if algorithm == "tree":
        return row[entry] if entry < _TREE_ENTRIES else 1.0
    on_blackwell = comm.generation == "blackwell" and comm.cpu in ("intel", "amd")
    corrected = algorithm == "nvls_tree" and on_blackwell and constants.corrects_nvls_tree
    return row[entry] if corrected and entry < len(row) else 1.0


def _fills(comm: Communicator, nbytes: int) -> bool:
    """Return whether each channel of each rank has at least 64 bytes to send."""
    return nbytes // (comm.channels * comm.ranks) >= 64
