"""A copy of NCCL's tuner: latency and bandwidth of each pair of algorithm and protocol, and the choice of a pair.

    time = latency + size / bandwidth

The size is the largest buffer of a rank, as in nccl-tests. The tuner ignores the launch of a kernel and the host's
work, so real calls of small sizes take longer. CollNet (needs a plugin for in-network reduction) and the rule for fp8
are not modelled.

Source: NVIDIA/nccl, release 2.30, src/graph/tuning.cc; meta-pytorch/torchcomms, comms/ncclx/v2_31, src/tuning (NCCL
2.31.2); ROCm/rccl, release 2.21.5: formulas and figures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcoll.errors import RefusedError
from simcoll.nccl.algorithm_names import COLLECTIVES, TunedCollective, refusal
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.environment import EVERYTHING, Selection
from simcoll.nccl.tuner_constants import NcclConstants, RcclConstants, read
from simcoll.schedule.names import ALGORITHMS, PROTOCOLS, NcclAlgorithm, Protocol
from simcoll.topology.nccl_graphs import PATHS, ChannelGraph

TunedCall = tuple[TunedCollective, NcclAlgorithm, Protocol]

_SERVES: Final[Mapping[TunedCollective, tuple[NcclAlgorithm, ...]]] = {
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "all_reduce": ("tree", "ring", "nvls", "nvls_tree"),
}
_SIMPLE: Final = PROTOCOLS.index("Simple")
_FILLED: Final = 64  # bytes that each channel of each rank has at least to send, from which a ring's latency changes
_TREE_ENTRIES: Final = 23  # number of entries of the correction table that apply to trees
_ARM_RANKS: Final = 4  # of a node in an Arm host for which NVLSTree is corrected
_MOST_GPUS_NVLS_BLOCKS: Final = 32  # a node, for NVLS all_gather and reduce_scatter
_ADDED_BY_SWITCHES: Final = ("int32", "int64", "float16", "bfloat16", "float32", "float64")
_COMPARED_BY_SWITCHES: Final = ("int32", "int64", "float16", "bfloat16")


@dataclass(frozen=True)
class TunerEntry:
    """The tuner's numbers for one algorithm and protocol: the latency of a call, and the bandwidth, in GB/s of the
    buffer."""

    latency_us: float
    bandwidth_GBps: float  # noqa: N815


@dataclass(frozen=True)
class TunerChoice:
    """The algorithm and protocol that NCCL chooses, and the time in us that NCCL expects."""

    algorithm: NcclAlgorithm
    protocol: Protocol
    time_us: float


def switch_reduces(dtype: str, op: str) -> bool:
    """Return whether NVSwitches support an operator on a type; if not, NCCL uses NVLS and NVLSTree for all_gather only.
    NVSwitches never reduce `avg`: NCCL multiplies floats before, and divides integers afterwards. Source: NVIDIA/nccl
    2.27, src/include/device.h (ncclNvlsSupported)."""
    return dtype in {"sum": _ADDED_BY_SWITCHES, "min": _COMPARED_BY_SWITCHES, "max": _COMPARED_BY_SWITCHES}.get(op, ())


class TunerTable:
    """The table that NCCL computes once for a communicator, and the choices that follow from it."""

    def __init__(
        self,
        communicator: Communicator,
        constants: NcclConstants | RcclConstants,
        selection: Selection = EVERYTHING,
        switch_reduces: bool = True,
        collectives: Sequence[TunedCollective] = COLLECTIVES,
    ):
        self.communicator, self.constants, self.collectives = communicator, constants, collectives
        self.entries: dict[TunedCall, TunerEntry] = {}  # without pairs that cannot be used
        for call in self._usable(selection, switch_reduces):
            graph = communicator.graph(call[1])
            if graph is not None and call[1] in constants.base_us and (width := self._bandwidth(graph, *call)) > 0:
                self.entries[call] = TunerEntry(self._latency(graph, *call), width)

    def time_us(self, collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol, nbytes: int) -> float:
        """Return the tuner's time for a call of `nbytes`, in us. Raises RefusedError for a pair that is not in the
        table."""
        comm, plateau = self.communicator, self.constants.plateau
        entry = self.entries.get((collective, algorithm, protocol))
        if entry is None:
            raise RefusedError(refusal(comm.library, collective, algorithm, protocol))
        wait, width = entry.latency_us, entry.bandwidth_GBps * self._correction(algorithm, protocol, nbytes)
        filled = nbytes // (comm.channels * comm.ranks) >= _FILLED
        if (algorithm, protocol) == ("ring", "Simple") and filled and self._has_plateau(collective):
            wait *= plateau["from_cc_80"] if comm.capability >= 80 else plateau["before"]
        return wait + nbytes / (1000 * width)

    def choose(self, collective: TunedCollective, nbytes: int) -> TunerChoice | None:
        """Return the fastest pair of algorithm and protocol, at ties NCCL's first; None if none is usable."""
        calls = [call for call in self.entries if call[0] == collective]
        if self.constants.pat_on_request:
            calls = [call for call in calls if call[1] != "pat"] or calls
        choices = [TunerChoice(*call[1:], self.time_us(*call, nbytes)) for call in calls]
        return min(choices, key=lambda choice: choice.time_us, default=None)

    def _has_plateau(self, collective: TunedCollective) -> bool:
        """Return whether a ring's latency grows with Simple as soon as each rank's share is large."""
        comm, constants = self.communicator, self.constants
        if collective == "all_reduce":
            return comm.nodes > 1
        near = comm.nodes == 1 and comm.capability >= 100 and comm.graphs["ring"].type_intra == "NVL"
        return constants.plateau_within_blackwell and near and collective in ("all_gather", "reduce_scatter")

    # --- usable pairs ---

    def _usable(self, selection: Selection, switch_reduces: bool) -> Iterator[TunedCall]:
        """Yield every pair of algorithm and protocol that the communicator may use, in NCCL's order. The search may
        have found no graph for it."""
        for call in itertools.product(self.collectives, ALGORITHMS, PROTOCOLS):
            collective, algorithm, protocol = call
            served = algorithm in _SERVES[collective] and (protocol == "Simple" or algorithm in ("ring", "tree"))
            if not (served and selection.allows(*call) and self._possible(collective, algorithm, switch_reduces)):
                continue
            if protocol != "LL128" or selection.insists(collective, protocol) or self._near_enough(algorithm):
                yield call

    def _possible(self, collective: TunedCollective, algorithm: NcclAlgorithm, switch_reduces: bool) -> bool:
        comm = self.communicator
        if algorithm in ("nvls", "nvls_tree") and collective != "all_gather" and not switch_reduces:
            return False
        if algorithm == "nvls":
            return comm.nodes == 1 and (collective == "all_reduce" or comm.gpus <= _MOST_GPUS_NVLS_BLOCKS)
        if algorithm == "nvls_tree":
            return comm.nodes > 1
        return algorithm != "pat" or comm.gpus == 1

    def _near_enough(self, algorithm: NcclAlgorithm) -> bool:
        """Return whether GPUs are near enough for LL128, which needs atomic stores of 128 bytes."""
        comm, constants = self.communicator, self.constants
        graph = comm.graph(algorithm)
        if graph is None or comm.capability < 70 or PATHS.index(graph.type_intra) > PATHS.index("NVB"):
            return False
        by_c2c = any(each.type_inter == "P2C" for each in comm.graphs.values())  # then all graphs use P2C or PXN
        inter = "PHB" if by_c2c and not constants.knows_p2c else graph.type_inter
        return PATHS.index(inter) <= PATHS.index("PXN" if comm.capability >= 90 else "PXB")

    # --- bandwidth ---

    def _bandwidth(
        self, graph: ChannelGraph, collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol
    ) -> float:
        """Return the GB/s by which the tuner divides the size; 0 if NCCL does not use this pair."""
        comm, constants = self.communicator, self.constants
        bus = graph.channels * self._channel_GBps(graph, algorithm)
        if isinstance(constants, RcclConstants):
            bus *= self._rccl_share(constants, algorithm, protocol)
        elif algorithm == "ring":
            bus = self._ring_bus(constants, graph, collective, protocol, bus)
        elif algorithm == "tree":
            bus = self._tree_bus(constants, graph, protocol, bus)
        elif algorithm == "pat":
            bus *= constants.shares["pat"]
        elif constants.nvls_share is None:
            bus = self._nvls_bus(constants, graph, collective, algorithm)
        else:  # before NCCL 2.28
            inter = graph.inter / 2 if algorithm == "nvls_tree" and comm.nodes > 2 else graph.inter
            share = constants.nvls_share if collective == "all_reduce" else 1
            return graph.channels * min(graph.intra, inter) * share
        if algorithm == "tree":
            return bus / 2
        if algorithm == "ring" or collective == "all_reduce":
            return bus * comm.ranks / comm.ring_steps(collective)
        return bus

    def _channel_GBps(self, graph: ChannelGraph, algorithm: NcclAlgorithm) -> float:  # noqa: N802
        """Return the GB/s of a channel: its speed within a node for up to two nodes, else between nodes."""
        comm, constants = self.communicator, self.constants
        if constants.blackwell_by_nics and comm.capability >= 100:
            if algorithm == "tree":
                return min(graph.intra, graph.inter)
            if algorithm == "ring":
                return graph.intra if comm.nodes == 1 else graph.inter
        return graph.intra if comm.nodes <= 2 else graph.inter

    def _ring_bus(
        self, constants: NcclConstants, graph: ChannelGraph, collective: TunedCollective, protocol: Protocol, bus: float
    ) -> float:
        comm, shares = self.communicator, constants.shares
        if protocol == "LL":
            alone = comm.nodes == 1 and collective not in ("all_reduce", "reduce")
            share = shares["ring_ll_without_reduction"] if alone else shares["ring_ll"]
            return min(self._ll_ceiling(constants), bus * share)
        if protocol == "LL128":
            ceiling = constants.ceilings_GBps["ring_ll128"][comm.generation][self._nodes_column]
            return min(bus * shares["ring_ll128"], graph.channels * ceiling)
        return bus

    def _tree_bus(self, constants: NcclConstants, graph: ChannelGraph, protocol: Protocol, bus: float) -> float:
        comm, shares, ceilings = self.communicator, constants.shares, constants.ceilings_GBps
        bus = min(bus * shares["tree"], graph.channels * ceilings["tree"][comm.generation][self._nodes_column])
        if protocol == "LL":
            bus = min(bus * shares["tree_ll"], self._ll_ceiling(constants))
        elif protocol == "LL128":
            share = shares["tree_ll128_one_node"] if comm.nodes == 1 else shares["tree_ll128"]
            bus = min(bus * share, graph.channels * ceilings["tree_ll128"][comm.generation][self._nodes_column])
        return bus * shares["plain_tree"] if graph.pattern == "tree" else bus

    def _nvls_bus(
        self, constants: NcclConstants, graph: ChannelGraph, collective: TunedCollective, algorithm: NcclAlgorithm
    ) -> float:
        """Return the bus bandwidth of NVLS in GB/s. The switch doubles the speed of an all_reduce within a node, except
        for a head's own share of the data."""
        comm, channels = self.communicator, graph.channels
        if channels < 2:
            return 0.0
        intra = graph.intra * constants.nvls_efficiency[comm.generation] * (channels - 1) / channels
        intra *= 2 if collective == "all_reduce" else (comm.gpus - 1) / comm.gpus
        if algorithm == "nvls":
            return channels * min(intra, graph.inter)
        inter = graph.inter * (2 if comm.nodes <= 2 else 1)
        return channels * min(intra, inter, constants.ceilings_GBps["nvls_tree"][comm.generation][self._nodes_column])

    def _rccl_share(self, constants: RcclConstants, algorithm: NcclAlgorithm, protocol: Protocol) -> float:
        if algorithm == "tree" and protocol == "Simple" and self.communicator.nodes == 1:
            return 0.0
        shares = constants.shares_to_two_nodes if self.communicator.nodes <= 2 else constants.shares_beyond
        return shares[algorithm][PROTOCOLS.index(protocol)]

    @property
    def _nodes_column(self) -> int:
        return min(self.communicator.nodes, 3) - 1

    def _ll_ceiling(self, constants: NcclConstants) -> float:
        """Return the GB/s limit of all channels together in LL; with several nodes the CPU, not the GPU, sets it."""
        comm = self.communicator
        row = comm.generation if comm.nodes == 1 else "ampere" if comm.cpu == "amd" else "volta"
        return constants.ceilings_GBps["ll"][row][self._nodes_column]

    # --- latency ---

    def _latency(
        self, graph: ChannelGraph, collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol
    ) -> float:
        """Return the latency of a pair in us: a base, plus the hops on the longest chain of dependent messages."""
        comm, constants, i = self.communicator, self.constants, PROTOCOLS.index(protocol)
        base, intra = constants.base_us[algorithm][i], self._intra(graph, algorithm, i)
        lone = comm.gpus == 1 and constants.lone_gpu_takes_tree_hop
        inter = constants.hop_us["net"]["tree" if lone else algorithm][i]
        inter += graph.latency_us * (2 if i == _SIMPLE else 1)
        doublings = comm.nodes.bit_length() - 1  # from one node to all nodes
        if algorithm == "ring":
            return base + self._ring_hops(graph, collective, i, intra, inter)
        if algorithm == "tree":
            return base + 2 * ((comm.gpus - 1) * intra + doublings * inter)
        if algorithm == "pat":
            return base + doublings * inter / 3.5 + 2.8 * comm.ranks  # both numbers as in NCCL's tuning.cc
        return intra + (2 * doublings * inter if algorithm == "nvls_tree" else 0)

    def _intra(self, graph: ChannelGraph, algorithm: NcclAlgorithm, i: int) -> float:
        """Return the latency of one hop within a node in us, from NCCL's table."""
        row = self.constants.hop_us["nvlink" if graph.type_intra == "NVL" else "pci"]
        ibm = self.communicator.cpu == "ibm" and graph.type_intra != "NVL" and algorithm == "tree" and i == _SIMPLE
        return row["ring" if ibm else algorithm][i]

    def _ring_hops(self, graph: ChannelGraph, collective: TunedCollective, i: int, intra: float, inter: float) -> float:
        """Return the latency in us of all successive hops of a ring; a chain of equal channels counts as one hop."""
        comm, constants, several = self.communicator, self.constants, self.communicator.nodes > 1
        if collective in ("broadcast", "reduce"):
            far = constants.hop_us["net" if several else "nvlink"]
            if graph.same_channels:
                return far["ring"][i] if several else intra
            return comm.ranks * (far["tree"][i] if i == _SIMPLE else far["ring"][i] if several else intra)
        proxy = 0.0
        if several:
            proxy = constants.proxy_us["amd" if comm.cpu == "amd" else "other"]
        across = (2 if collective == "all_reduce" else 1) * (comm.nodes - 1)
        if several and collective == "all_reduce":
            across += constants.ring_extra_net_hops
        return (comm.ring_steps(collective) - across) * max(intra, proxy * (3 if i == _SIMPLE else 1)) + across * inter

    # --- dependence on the size ---

    def _correction(self, algorithm: NcclAlgorithm, protocol: Protocol, nbytes: int) -> float:
        """Return the tuner's factor on the bandwidth for a call of `nbytes`. NCCL corrects trees, hence all-reduces
        only; RCCL also corrects rings over several nodes, for every collective."""
        comm, constants, entry = self.communicator, self.constants, (nbytes // 64).bit_length() - 1
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
        host = comm.cpu in ("intel", "amd")
        if comm.cpu == "arm" and constants.arm_nic_GBps is not None and comm.nic_GBps >= constants.arm_nic_GBps:
            host = comm.gpus == _ARM_RANKS and (entry < _TREE_ENTRIES or comm.nodes > 2)
        corrected = algorithm == "nvls_tree" and comm.generation == "blackwell" and host
        return row[entry] if corrected and constants.corrects_nvls_tree and entry < len(row) else 1.0


def table(
    communicator: Communicator,
    version: str | None = None,
    selection: Selection = EVERYTHING,
    switch_reduces: bool = True,
    collectives: Sequence[TunedCollective] = COLLECTIVES,
) -> TunerTable:
    """Return the tuner's table: latency and bandwidth of every pair of algorithm and protocol that the release
    (default: that of `read`) could use for `collectives`. `selection`: the pairs that `NCCL_ALGO` and `NCCL_PROTO`
    allow; `switch_reduces`: see the function of that name. Raises InputError for an unknown release."""
    return TunerTable(communicator, read(communicator.library, version), selection, switch_reduces, collectives)
