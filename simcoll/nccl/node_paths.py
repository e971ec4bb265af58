"""A node as NCCL's graph search sees it: devices, links, and the path between any two devices.

NCCL finds paths by a breadth-first search from each device. A path's type is the farthest type of its links (in the
order of `PATHS`), its bandwidth that of its narrowest link. Then NCCL replaces paths: by one through the host's memory
if GPUs or NICs may not talk directly, and by one through another GPU next to a NIC (PXN).

Source: NVIDIA/nccl, release 2.30, src/graph/topo.cc and paths.cc: the rules, in our own words.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from simcoll.topology.nccl_graphs import PATHS
from simcoll.topology.routing import mirrored

LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, _, DIS = range(len(PATHS))
LOCAL_GBPS: Final = 5000.0  # NCCL's bandwidth within a device
_DIRECT: Final = PXB  # the farthest path over which a GPU and a NIC talk directly
_INTEL_P2P: Final = 6 / 5  # factor on the load of PCIe links when GPUs send through an Intel processor
_NO_REVERSE: Final = 80  # from this compute capability on, writes of NICs do not load links of the reverse direction
_LINKS: Final[Mapping[str, int]] = {"nvlink": NVL, "xgmi": NVL, "c2c": C2C, "pcie": PIX, "socket": SYS}
_KINDS: Final[Mapping[str, str]] = {
    "gpu": "gpu",
    "nvswitch": "nvs",
    "pcie_switch": "pci",
    "cpu": "cpu",
    "nic": "nic",
}


@dataclass(frozen=True)
class PathRules:
    """The rules that limit paths.

    `p2p`: the longest type of path over which GPUs of a node talk directly. `pxn`: whether a GPU may send through
    another GPU's NIC. `capability`: the least compute capability of the GPUs, 90 for 9.0.
    """

    p2p: int
    pxn: bool
    capability: int
    intel: bool
    amd: bool


@dataclass
class NodePath:
    """A path: its links by number, in order; its type; and its bandwidth in GB/s."""

    links: list[int] = field(default_factory=list)
    type: int = DIS
    bandwidth: float = 0.0


class NodePaths:
    """The devices of a node by number, and the paths that channels may use between them. `gpus`, `nets`, `switches`:
    the numbers of the GPUs, of the ports of NICs, and of the NVSwitches. `net_GBps`: GB/s of each port."""

    def __init__(self, kinds: Sequence[str], links: Sequence[tuple[int, int, str, float]], nic: float):
        """`kinds`: by device. `links`: (from, to, kind, GB/s), one direction each. `nic`: GB/s of a NIC's port."""
        self.kinds = [_KINDS[kind] for kind in kinds]
        self.ends: list[tuple[int, int]] = []
        self.types: list[int] = []
        self.bandwidth: list[float] = []
        self._out: list[list[int]] = [[] for _ in self.kinds]
        self._between: dict[tuple[int, int, int], int] = {}
        for u, v, kind, bandwidth in links:
            self._join(u, v, _LINKS.get(kind, PIX), bandwidth)
        for i in self._of("nic"):
            self.kinds.append("net")
            self._out.append([])
            for u, v in ((i, len(self.kinds) - 1), (len(self.kinds) - 1, i)):
                self._join(u, v, LOC, nic)
        self.net_GBps = nic
        for out in self._out:
            out.sort(key=lambda link: -self.bandwidth[link])  # fastest first, as in NCCL
        self.gpus, self.nets, self.switches = self._of("gpu"), self._of("net"), self._of("nvs")
        self.paths: dict[tuple[int, int], NodePath] = {}
        self.local_gpu: dict[int, int | None] = {}
        self._to_try: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def _of(self, kind: str) -> list[int]:
        return [i for i, each in enumerate(self.kinds) if each == kind]

    def _join(self, u: int, v: int, kind: int, bandwidth: float) -> None:
        self._between[u, v, kind] = len(self.ends)
        self._out[u].append(len(self.ends))
        self.ends.append((u, v))
        self.types.append(kind)
        self.bandwidth.append(bandwidth)

    def back(self, link: int) -> int:
        """Return the number of the link in the opposite direction."""
        u, v = self.ends[link]
        return self._between[v, u, self.types[link]]

    def out_of(self, device: int) -> Iterator[int]:
        """Yield the links that leave a device."""
        return iter(self._out[device])

    # --- paths ---

    def find_paths(self, rules: PathRules) -> None:
        """Compute `paths` (by source and destination) and `local_gpu` (see `gpu_of`) under the rules."""
        self._rules = rules
        for base in (*self._of("cpu"), *self.gpus, *self.nets, *self.switches):
            self._search_from(base)
        # of a rack NCCL sees the hosts with ranks only: no path leads to NICs of the others
        self.nets = [net for net in self.nets if any(self.paths[gpu, net].links for gpu in self.gpus)]
        for a, b in itertools.permutations(self.gpus, 2):
            if self.paths[a, b].type > rules.p2p:
                self._detour(a, self._cpu_of(b), b)
        self._mark_p2c()
        for net in self.nets:
            relay = self.gpu_of(net)
            for gpu in self.gpus:
                if rules.pxn and relay not in (None, gpu) and self._serves(relay, gpu, net):
                    self._detour(gpu, relay, net)
                    self.paths[gpu, net].type = PXN
                path = self.paths[gpu, net]
                near = self.paths[relay, net].type if path.type == PXN and relay is not None else path.type
                if near > _DIRECT and near != P2C:
                    self._detour(net, self._cpu_of(gpu), gpu)
                    self._detour(gpu, self._cpu_of(gpu), net)
        self.local_gpu = {net: self.gpu_of(net) for net in self.nets}

    def _search_from(self, base: int) -> None:
        """Find the paths from all devices to `base` by breadth-first search."""
        found = {base: NodePath([], LOC, LOCAL_GBPS)}
        ring = [base]
        while ring:
            beyond: list[int] = []
            for device in ring:
                path = found[device]
                for link in self._out[device]:
                    far = self.ends[link][1]
                    kind = self.types[link]
                    through = device != base and self.kinds[device] == "gpu"
                    if through and (kind != NVL or self.kinds[far] != "gpu" or len(path.links) > 1):
                        continue  # data pass through at most one GPU, over NVLink
                    known = found.get(far)
                    bandwidth = min(path.bandwidth, self.bandwidth[link])
                    if known and (len(known.links) <= len(path.links) or known.bandwidth >= bandwidth):
                        continue
                    way = [self.back(link), *path.links]
                    found[far] = NodePath(way, max(path.type, self._type(link, path)), bandwidth)
                    if far not in beyond:
                        beyond.append(far)
            ring = beyond
        for device in range(len(self.kinds)):
            if self.kinds[device] in ("gpu", "net", "nvs", "cpu"):
                self.paths[device, base] = found.get(device, NodePath())

    def _type(self, link: int, path: NodePath) -> int:
        """Return the type that `link` counts as in a path that goes on with `path`, e.g. PXB between two PCIe
        switches."""
        near, far = (self.kinds[device] for device in self.ends[link])
        kind = self.types[link]
        if near == far == "pci":
            return PXB
        if kind == PIX and "cpu" in (near, far):
            return PHB
        if near == "gpu" and path.type == kind == NVL and path.links:
            return NVB
        return kind

    def _cpu_of(self, gpu: int) -> int:
        """Return the processor (CPU) nearest to a GPU."""
        reached = [cpu for cpu in self._of("cpu") if self.paths[gpu, cpu].links]
        return min(reached, key=lambda cpu: len(self.paths[gpu, cpu].links))

    def _detour(self, src: int, by: int, dst: int) -> None:
        first, second = self.paths[src, by], self.paths[by, dst]
        self.paths[src, dst] = NodePath(
            [*first.links, *second.links], max(first.type, second.type), min(first.bandwidth, second.bandwidth)
        )

    def _mark_p2c(self) -> None:
        """Give the type P2C to each path between a GPU and a NIC that leads over C2C and PCIe."""
        for gpu, net in itertools.product(self.gpus, self.nets):
            if self.paths[gpu, net].type == PHB:
                cpu = self._cpu_of(gpu)
                if self.paths[gpu, cpu].type == C2C and self.paths[cpu, net].type == PHB:
                    self.paths[gpu, net].type = self.paths[net, gpu].type = P2C

    def _serves(self, relay: int, gpu: int, net: int) -> bool:
        """Return whether `gpu` sends to the NIC port `net` through `relay`, the GPU next to the NIC (PXN)."""
        near, own = self.paths[relay, net], self.paths[gpu, net]
        joined = near.type <= P2C and self.paths[relay, gpu].type <= NVL
        return joined and (near.bandwidth > own.bandwidth or own.type > PXN)

    # --- bandwidth ---

    def parts(self, src: int, dst: int) -> Iterator[tuple[int, float]]:
        """Yield (link, load) for each link of a path; the load is the bytes on the link per byte of data."""
        path = self.paths[src, dst]
        from_gpu = self.kinds[src] == "gpu"
        into = [self.kinds[self.ends[link][1]] for link in path.links]
        slower = self._rules.intel and from_gpu and path.type == PHB and "cpu" in into
        for link, kind in zip(path.links, into, strict=True):
            part = _INTEL_P2P if slower and self.types[link] == PIX else 1.0
            yield link, part
            if kind == "gpu" and not from_gpu and self._rules.capability < _NO_REVERSE:
                yield self.back(link), part / 8

    @functools.cached_property
    def widest(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Return for each path between two GPUs its type, and the most GB/s that it can carry."""
        return {
            pair: (self.paths[pair].type, min(self.bandwidth[link] / part for link, part in self.parts(*pair)))
            for pair in itertools.permutations(self.gpus, 2)
        }

    # --- nearest devices ---

    def near(self, device: int, others: Sequence[int]) -> list[int]:
        """Return the devices of `others` with the widest path from a device; among equally wide paths, the nearest type
        counts."""
        reached = [other for other in others if self.paths[device, other].bandwidth > 0]
        best = min((self._distance(device, other) for other in reached), default=(0.0, 0))
        return [other for other in reached if self._distance(device, other) == best]

    def _distance(self, device: int, other: int) -> tuple[float, int]:
        path = self.paths[device, other]
        return -path.bandwidth, path.type

    def net_of(self, gpu: int, channel: int) -> int | None:
        """Return the NIC port that a GPU prefers for a channel; None without NICs."""
        nets = self.near(gpu, self.nets)
        if not nets:
            return None
        sharing = len(self.near(nets[0], self.gpus))
        number = mirrored(self.gpus.index(gpu), len(nets))
        return nets[(number + channel % -(-len(nets) // max(1, sharing))) % len(nets)]

    def gpu_of(self, net: int) -> int | None:
        """Return the GPU next to a NIC port that prefers the port for the earliest channel; None if no GPU does."""
        gpus = self.near(net, self.gpus)
        for channel, gpu in itertools.product(range(len(self.nets)), gpus):
            if self.net_of(gpu, channel) == net:
                return gpu
        return None

    def nets_for(self, gpus: Sequence[int], farthest: int) -> list[int]:
        """Return the NIC ports to try for GPUs: preferred ports first, then others by type of path up to `farthest`.
        Needs the paths of `find_paths`."""
        asked = tuple(gpus), farthest
        if asked not in self._to_try:
            preferred = (self.net_of(gpu, channel) for gpu in gpus for channel in range(len(self.nets)))
            nets = dict.fromkeys(net for net in preferred if net is not None)
            for kind, gpu in itertools.product(range(farthest + 1), gpus):
                nets.update(dict.fromkeys(net for net in self.nets if self.paths[gpu, net].type == kind))
            self._to_try[asked] = list(nets)
        return self._to_try[asked]

    def spread(self, to: Sequence[int]) -> tuple[int, int]:
        """Return the nearest and the farthest type among the paths from the GPUs to the devices `to`."""
        types = [self.paths[gpu, other].type for gpu in self.gpus for other in to if gpu != other]
        return min(types), max(types)
