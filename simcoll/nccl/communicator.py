"""The communicator: ranks on nodes of a system, with the facts that NCCL's tuner depends on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from simcoll import units
from simcoll.errors import InputError
from simcoll.nccl import graph_search
from simcoll.nccl.algorithm_names import TunedCollective
from simcoll.nccl.environment import DEFAULTS, SearchSettings
from simcoll.nccl.tuner_constants import Constants, Generation, Library
from simcoll.schedule.names import NcclAlgorithm
from simcoll.topology import nccl_graphs
from simcoll.topology.machine_files import SystemFile, node_file
from simcoll.topology.nccl_graphs import PATHS, ChannelGraph, GraphKind, Graphs, Path

GRAPH_OF: Final[Mapping[NcclAlgorithm, GraphKind]] = {
    "ring": "ring",
    "tree": "tree",
    "pat": "tree",
    "nvls": "nvls",
    "nvls_tree": "nvls",
    "collnet_chain": "collnet_chain",
    "collnet_direct": "collnet_direct",
}
_MOST_CHANNELS: Final[Mapping[Library, int]] = {"nccl": 64, "rccl": 128}  # MAXCHANNELS of the libraries' sources


@dataclass(frozen=True)
class Communicator:
    """A communicator: `ranks` on `nodes`, equally many on each. `capability`: least compute capability of all GPUs, 90
    for 9.0. `nic_GBps`: rate of a NIC, 0 without NICs. `nics`: number of NICs of a node beside the GPUs of ranks.
    `p2p_level`: the longest path over which GPUs of a node talk directly.
    `min_channels`, `max_channels`, `buffer_bytes` (of Simple) and `net_chunk_bytes` (of messages between nodes) are the
    user's settings, None for NCCL's defaults; so are `ctas` (least and greatest number of blocks of any call),
    `net_channels` (of messages to a peer on another node), `symmetric_ctas` (blocks of symmetric kernels) and
    `symmetric_kernels` (their names). `pxn`: whether GPUs may send through NICs of other GPUs."""

    ranks: int
    nodes: int
    library: Library
    capability: int
    cpu: str
    nic_GBps: float  # noqa: N815
    graphs: Graphs
    nics: int = 1
    p2p_level: Path = "PXB"
    min_channels: int | None = None
    max_channels: int | None = None
    buffer_bytes: int | None = None
    net_chunk_bytes: int | None = None
    pxn: bool = True
    ctas: tuple[int | None, int | None] = (None, None)
    net_channels: int | None = None
    symmetric_ctas: int | None = None
    symmetric_kernels: frozenset[str] | None = None

    @property
    def gpus(self) -> int:
        """Number of ranks on each node."""
        return self.ranks // self.nodes

    @property
    def generation(self) -> Generation:
        """The GPU generation, the row of the tuner's tables. Ada counts as ampere, RTX Blackwell as blackwell."""
        steps: tuple[tuple[int, Generation], ...] = ((100, "blackwell"), (90, "hopper"), (80, "ampere"))
        return next((name for least, name in steps if self.capability >= least), "volta")

    def graph(self, algorithm: NcclAlgorithm) -> ChannelGraph | None:
        """Return the channel graph of an algorithm; None if the search found none."""
        return self.graphs.get(GRAPH_OF[algorithm])

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """The heads of NVLS: the GPUs of a node that collect sums, by number. NCCL's search finds one channel per head;
        between nodes, one per NIC. If a file gives only the number of channels, the first GPUs are heads."""
        graph = self.graphs["nvls"]
        return tuple(sorted({order[0] for order in graph.orders})) or tuple(range(min(self.gpus, graph.channels)))

    def used_nics(self, graph: ChannelGraph) -> int:
        """Return the number of NICs of a node that the channels of `graph` use; 1 on one node. In NCCL's search each
        channel tries another NIC first. If they use too few NICs for the speeds found, they also use farther ones."""
        if self.nodes == 1 or not self.nic_GBps:
            return 1
        least = math.ceil(graph.channels * graph.inter / self.nic_GBps)
        return graph.nics or max(least, min(graph.channels, self.nics))

    @cached_property
    def channels(self) -> int:
        """Number of channels that ring and tree kernels use: first the user's maximum applies, then the minimum."""
        found = self._channels_found if self.max_channels is None else min(self._channels_found, self.max_channels)
        return max(found, self.min_channels or 1)

    @property
    def _channels_found(self) -> int:
        """Twice the number of channels that the search found; four times for few, fast ones on several nodes."""
        ring = self.graphs["ring"]
        tree = self.graphs.get("tree", ring)
        channels = min(_MOST_CHANNELS[self.library], 2 * min(ring.channels, tree.channels))
        # from Hopper on, NCCL doubles few, fast channels once more between nodes
        again = (
            self.library == "nccl" and self.capability >= 90 and self.nodes > 1 and ring.intra > 45 and channels < 16
        )
        return 2 * channels if again else channels

    def ring_steps(self, collective: TunedCollective) -> int:
        """Return the number of steps of a ring. Over each link of the ring goes steps / ranks times the buffer."""
        if collective == "all_reduce":
            return 2 * (self.ranks - 1)
        return self.ranks if collective in ("broadcast", "reduce") else self.ranks - 1

    def nvls_channels(self, constants: Constants) -> int:
        """Return the number of channels that NVLS kernels use; 0 without NVLS."""
        if self.graph("nvls") is None:
            return 0
        for row in constants.nvls_channels.get(self.generation, ()):
            fits = row.nodes in (None, self.nodes) and (row.gpus is None or self.gpus <= row.gpus)
            if fits and self.nic_GBps >= row.nic_GBps:
                least, most = self.ctas
                return max(min(row.channels, most or row.channels), least or 1)
        return 0


def communicator(
    system: SystemFile,
    nodes: int = 1,
    ranks: int | None = None,
    graphs: Graphs | None = None,
    settings: SearchSettings = DEFAULTS,
    gpus: Sequence[int] | None = None,
) -> Communicator:
    """Return the communicator of `ranks` ranks (default: all GPUs) on `nodes` nodes of a system. `gpus`: the numbers of
    the GPUs used on each node; default: the first ones.

    If `graphs` is None, the system's file gives the graphs for this number of GPUs, or else NCCL's search with
    `settings`. Raises InputError for systems without GPUs, and for unknown channels of RCCL.
    """
    system = node_file(system)
    devices = system.counts
    if system.gpu is None or "gpu" not in devices:
        what = "gpu: {model: …, generation: …, compute_capability: …}"
        raise InputError(f"{system.name} does not describe its GPUs", f"add {what}")
    amd = system.gpu.vendor == "amd"
    if system.gpu.compute_capability is None and not amd:
        raise InputError(
            f"{system.name}: the file does not say which GPUs these are", "add `gpu.compute_capability`, e.g. 90"
        )
    ranks = devices["gpu"] * nodes if ranks is None else ranks
    _check(system.name, ranks, nodes, devices["gpu"], graphs)
    return Communicator(
        ranks=ranks,
        nodes=nodes,
        library="rccl" if amd else "nccl",
        capability=system.gpu.compute_capability or 94,  # RCCL's number for MI300X
        cpu=system.cpu.vendor if system.cpu else "",
        nic_GBps=_nic_GBps(system),
        nics=-(-devices.get("nic", 0) * ranks // (nodes * devices["gpu"])),
        graphs=_graphs(system, gpus or range(ranks // nodes), nodes, settings) if graphs is None else graphs,
        p2p_level=graph_search.p2p_level(system, ranks // nodes, settings),
    )


def _graphs(system: SystemFile, gpus: Sequence[int], nodes: int, settings: SearchSettings) -> Graphs:
    found = nccl_graphs.stored(system.nccl, len(gpus), nodes)
    if found is not None and _stay(found["ring"], settings) and (nodes == 1 or _carried(found["ring"], system)):
        return found
    return graph_search.search(system, gpus, nodes > 1, settings)


def _stay(ring: ChannelGraph, settings: SearchSettings) -> bool:
    """Return whether graphs stored in a file remain valid under the user's settings. They do if the settings change
    nothing but the P2P level, and still allow NVLink."""
    level, near = settings.p2p_level, ring.type_intra in ("NVL", "NVB", "C2C")
    forbidden = level is not None and near and PATHS.index(ring.type_intra) > PATHS.index(level)
    return replace(settings, p2p_level=None) == DEFAULTS and not forbidden


def _carried(ring: ChannelGraph, system: SystemFile) -> bool:
    """Return whether the NICs have the bandwidth of a stored ring between nodes; a file may have changed the NICs."""
    return ring.channels * ring.inter <= system.counts.get("nic", 0) * _nic_GBps(system)


def _nic_GBps(system: SystemFile) -> float:  # noqa: N802
    return units.parse(system.nic.rate, "bandwidth") / 1e9 if system.nic else 0.0


def _check(name: str, ranks: int, nodes: int, gpus: int, graphs: Graphs | None) -> None:
    if nodes < 1 or ranks < 2:
        raise InputError(f"{ranks} ranks on {nodes} nodes exchange no messages", "take 2 ranks or more")
    if ranks % nodes:
        raise InputError(f"{ranks} ranks on {nodes} nodes are not equally many on each", f"take a multiple of {nodes}")
    if ranks // nodes > gpus:
        raise InputError(f"{name} has {gpus} GPUs a node, not {ranks // nodes}", "take more nodes or fewer ranks")
    orders = graphs["ring"].orders if graphs else ()
    if orders and len(orders[0]) != ranks // nodes:
        problem = f"the graphs go through {len(orders[0])} GPUs a node, not {ranks // nodes}"
        raise InputError(problem, f"take {len(orders[0]) * nodes} ranks")
