"""NCCL's graph search: the channels that NCCL finds on a machine, with their speeds, path types and orders of GPUs.

For each pattern NCCL searches the fastest channels over the nearest paths, then relaxes one rule after another:
channels may differ, trees may be simpler, paths longer, a channel may enter and leave a node by different NICs,
channels may be slower. It splits fast channels in two. A second pass makes channels faster, but not fewer.

Source: NVIDIA/nccl, release 2.30, src/graph/search.cc: the rules and candidate speeds, in our own words.

For GPUs that are all joined to each other, we assume that RCCL has as many rings as the links allow, with no link in
two rings. RCCL takes its rings from tables in its source, whose orders of GPUs we do not know. Source: T. W. Tillson,
"A Hamiltonian decomposition of K*2m, 2m >= 8", J. Combinatorial Theory B 29 (1980): the links of n such GPUs form n - 1
rings; for n = 4 and 6, one ring less.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from simcoll import units
from simcoll.config import cache_folder, yaml_tree
from simcoll.errors import InputError
from simcoll.nccl.channel_search import Draft, Round
from simcoll.nccl.environment import DEFAULTS, SearchSettings
from simcoll.nccl.node_paths import C2C, LOC, LOCAL_GBPS, NVL, PIX, PXN, SYS, NodePaths, PathRules
from simcoll.nccl.tuner_constants import Library
from simcoll.schedule.algorithms.nvls import MOST_HEADS
from simcoll.topology import machine_files
from simcoll.topology.machine_files import SystemFile, template
from simcoll.topology.nccl_graphs import PATHS, ChannelGraph, GraphKind, GraphPattern, Graphs
from simcoll.topology.nccl_graphs import Path as PathType
from simcoll.topology.wiring import Link, Wiring

SOURCES: Final[Mapping[Library, str]] = {  # texts for the source of the search's results, by library
    "nccl": "searched for by the rules of NCCL 2.30; not compared with a log",
    "rccl": "what the links allow; RCCL's own rings are not known",
}
MOST_SEARCHED: Final = 32  # most channels that the search looks for: half of those that kernels may use
_STEPS: Final = 1 << 14  # step limits: of a round, of a round with equal channels, of all rounds together
_STEPS_ALIKE: Final = 1 << 8
_STEPS_ALL: Final = 1 << 19
_FAST: Final = (
    25.0  # GB/s from which a channel is split; `_FAST_MANY` for more than `_MANY` channels above capability 8.0
)
_FAST_MANY: Final = 50.0
_MANY: Final = 4
_SLOWER: Final = 0.49  # once a speed worked, speeds below this share of it are not tried
# Speeds (GB/s per channel) that are tried within a node and between nodes, by the least compute capability.
_WITHIN: Final[tuple[tuple[int, tuple[float, ...]], ...]] = (
    (100, (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18)),
    (90, (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3)),
    (0, (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)),
)
_BETWEEN: Final[tuple[tuple[int, tuple[float, ...]], ...]] = (
    (100, (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)),
    (90, (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)),
    (0, (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)),
)
# GB/s that NCCL assumes for PCIe 3, 4 and 5 with 16 lanes. Files have measured rates: a PCIe link of at least
# LEAST_SHARE of such a rate counts as that rate, as root ports of processors may carry only so much between peers.
_PCIE: Final = (12.0, 24.0, 48.0)
LEAST_SHARE: Final = 0.75


def p2p_level(system: SystemFile, gpus: int, settings: SearchSettings = DEFAULTS) -> PathType:
    """Return the longest type of path over which `gpus` GPUs of a node talk directly. The settings decide, else the
    system's file, else NCCL's default: PXB (not through the host), or SYS for two GPUs of an AMD host."""
    given = settings.p2p_level or (system.nccl.p2p_level if system.nccl else None)
    return given or ("SYS" if system.cpu and system.cpu.vendor == "amd" and gpus <= 2 else "PXB")


def search(system: SystemFile, gpus: int | Sequence[int], across: bool, settings: SearchSettings = DEFAULTS) -> Graphs:
    """Return the channel graphs for some GPUs of each node. `gpus`: how many of the first GPUs, or a list of numbers.
    `across`: whether there are several nodes. Without a P2P level in the settings, the system's level applies. Raises
    InputError for unknown devices, and for several nodes without NICs."""
    chosen = tuple(range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    settings = replace(settings, p2p_level=p2p_level(system, len(chosen), settings))
    return yaml_tree.once(_found, system.model_dump_json(exclude={"nccl", "description"}), chosen, across, settings)


def _found(system: str, gpus: tuple[int, ...], across: bool, settings: SearchSettings) -> Graphs:
    """Return the graphs, from the cache folder if possible. A search takes up to 6 s; `diagnose` needs 20."""
    asked = repr((system, gpus, across, settings)).encode()
    name = f"graphs-{hashlib.sha256(_code() + asked).hexdigest()[:32]}.json"
    with suppress(ValueError):
        if body := cache_folder.kept(name):
            return {kind: ChannelGraph.model_validate(graph) for kind, graph in json.loads(body).items()}
    found = _searched(SystemFile.model_validate_json(system, by_name=True), gpus, across, settings)
    cache_folder.keep(name, json.dumps({kind: graph.model_dump() for kind, graph in found.items()}).encode())
    return found


def _code() -> bytes:
    """Return a digest of the code that determines the results of a search, as part of the cache's key."""
    folders = (Path(module).parent for module in (__file__, machine_files.__file__))
    return hashlib.sha256(
        b"".join(file.read_bytes() for each in folders for file in sorted(each.glob("*.py")))
    ).digest()


def _searched(file: SystemFile, gpus: tuple[int, ...], across: bool, settings: SearchSettings) -> Graphs:
    rules = _rules(file, settings)
    node = _node(file, gpus, across, settings)
    node.find_paths(rules)
    if file.gpu and file.gpu.vendor == "amd":
        return _of_mesh(file.name, node, across)
    reduces = any(device.startswith("nvswitch") for device in file.in_network)
    return _GraphSearch(node, rules, across, settings.cross_nic).graphs(nvls=reduces)


def _rules(system: SystemFile, settings: SearchSettings) -> PathRules:
    vendor = system.cpu.vendor if system.cpu else ""
    return PathRules(
        p2p=PATHS.index(settings.p2p_level or "PXB"),
        pxn=settings.pxn,
        capability=(system.gpu.compute_capability if system.gpu else None) or 80,
        intel=vendor == "intel",
        amd=vendor == "amd",
    )


def _node(system: SystemFile, gpus: Sequence[int], across: bool, settings: SearchSettings) -> NodePaths:
    """Return the devices and links of a node, without the GPUs and NICs that are not used."""
    plan = template(system)
    devices = [(name, data["kind"]) for name, data in plan.devices]
    all_gpus = [name for name, kind in devices if kind == "gpu"]
    all_nics = [name for name, kind in devices if kind == "nic"]
    if not gpus or max(gpus) >= len(all_gpus):
        raise InputError(f"{system.name} has only {len(all_gpus)} GPUs a node", "choose among these")
    left_out = set(all_gpus) - {all_gpus[i] for i in gpus}
    used = range(len(all_nics)) if settings.nics is None else settings.nics
    wanted = {all_nics[i] for i in used if i < len(all_nics)} if across else set()
    if across and (not wanted or system.nic is None):
        raise InputError(f"{system.name} has no NICs, so its nodes cannot be joined", "take one node")
    left_out |= set(all_nics) - wanted
    names = [name for name, _ in devices if name not in left_out]
    number = {name: i for i, name in enumerate(names)}
    links = sorted(  # by ends: the search takes the first of equal paths, independent of the file's order
        (number[u], number[v], link.kind, _counted(link.kind, link.bandwidth / 1e9, settings))
        for u, v, link in plan.links
        if u != v and u in number and v in number
    )
    _check_joined(system.name, names, [name for name in all_gpus if name not in left_out], links)
    kinds = dict(devices)
    rate = units.parse(system.nic.rate, "bandwidth") / 1e9 if system.nic else 0.0
    return NodePaths([kinds[name] for name in names], links, rate)


def _check_joined(
    system: str, names: Sequence[str], gpus: Sequence[str], links: Sequence[tuple[int, int, str, float]]
) -> None:
    """Raise InputError for a link without a reverse link, and for GPUs of a node without a path between them."""
    there = {(u, v, kind) for u, v, kind, _ in links}
    if one_way := next(((u, v) for u, v, kind in sorted(there) if (v, u, kind) not in there), None):
        u, v = (names[end] for end in one_way)
        raise InputError(
            f"{system}: the link {u}->{v} of a node has no link back of its kind", "add it: NCCL needs both"
        )
    wiring = Wiring()
    wiring.fill(((name, {}) for name in names), ((names[u], names[v], Link(1, 0)) for u, v, _, _ in links))
    reached = wiring.reached(gpus[0])
    if apart := [gpu for gpu in gpus if gpu not in reached]:
        raise InputError(f"{system}: there is no route from {gpus[0]} to {apart[0]} in a node", "link them")


def _counted(kind: str, reached: float, settings: SearchSettings) -> float:
    """Return the GB/s that NCCL assumes for a link, for which the system's file says `reached` GB/s."""
    if kind == "socket" and settings.socket_GBps is not None:
        return settings.socket_GBps
    return next((full for full in _PCIE if kind == "pcie" and LEAST_SHARE * full <= reached < full), reached)


class _GraphSearch:
    """NCCL's search for the channel graphs of one node: ring, then tree, then NVLS."""

    def __init__(self, node: NodePaths, rules: PathRules, across: bool, cross_nic: int):
        self.node, self.rules, self.across, self.cross_nic = node, rules, across, cross_nic
        speeds = _BETWEEN if across else _WITHIN
        self.speeds = next(known for least, known in speeds if rules.capability >= least)
        self.fastest, self.total = self._most()

    def _most(self) -> tuple[float, float]:
        """Return the GB/s of the widest path of any GPU, and the greatest total GB/s of any GPU's links."""
        node = self.node
        if not self.across and len(node.gpus) == 1:
            return LOCAL_GBPS, LOCAL_GBPS
        to = node.nets if self.across else node.gpus
        fastest = max(node.paths[gpu, other].bandwidth for gpu in node.gpus for other in to if gpu != other)
        total = 0.0
        for gpu in node.gpus:
            links = [(node.types[link], node.bandwidth[link]) for link in node.out_of(gpu)]
            nvlink = sum(bandwidth for kind, bandwidth in links if kind == NVL)
            total = max(total, nvlink, *(bandwidth for kind, bandwidth in links if kind in (C2C, PIX)))
        return fastest, total

    def graphs(self, nvls: bool) -> Graphs:
        """Return the graphs: the ring, a tree of as many channels, and NVLS if the node has NVSwitches that reduce."""
        ring = self.compute("ring", 2 if self._two_islands() else 1, MOST_SEARCHED)
        found: dict[GraphKind, Draft] = {"ring": ring}
        found["tree"] = self.compute("balanced_tree", ring.channels, ring.channels)
        # an assumption: GPUs that may not use NVLink directly do not share memory of an NVSwitch either
        joined = len(self.node.gpus) > 1 and self.rules.p2p >= NVL
        if nvls and self.node.switches and self.rules.capability >= 90 and joined:
            heads = min(MOST_HEADS, len(self.node.gpus))
            by_switch = self.compute("nvls", 1 if self.across else heads, heads)
            if by_switch.channels:
                found["nvls"] = by_switch
        return {kind: self._graph(draft) for kind, draft in found.items()}

    def _graph(self, draft: Draft) -> ChannelGraph:
        number = {gpu: i for i, gpu in enumerate(self.node.gpus)}
        heads = draft.pattern == "nvls"
        return ChannelGraph(
            channels=draft.channels,
            intra=draft.intra,
            inter=draft.inter,
            pattern=draft.pattern,
            type_intra=PATHS[draft.type_intra],
            type_inter=PATHS[draft.type_inter],
            same_channels=draft.same,
            cross_nic=draft.cross_nic,
            nics=len({net for ends in draft.nets for net in ends}) if self.across else 0,
            orders=tuple(tuple(number[gpu] for gpu in (order[:1] if heads else order)) for order in draft.orders),
        )

    def _two_islands(self) -> bool:
        """Return whether NVLink joins the GPUs into two groups of several each: trees then need two channels."""
        groups: list[list[int]] = []
        for gpu in self.node.gpus:
            for group in groups:
                if self.node.paths[gpu, group[0]].type == NVL:
                    group.append(gpu)
                    break
            else:
                groups.append([gpu])
        return sum(len(group) > 1 for group in groups) == 2

    # --- one graph ---

    def compute(self, pattern: GraphPattern, least: int, most: int) -> Draft:
        """Return the search result for a pattern, with `least` to `most` channels."""
        node, speeds = self.node, self.speeds
        count = len(node.gpus)
        if count == 1 and pattern != "ring":
            pattern = "tree"
        near, far = node.spread(node.gpus) if count > 1 else (LOC, SYS)
        near_net, far_net = node.spread(node.nets) if self.across else (PIX, SYS)
        can_cross = len(node.nets) > 1 and pattern in ("ring", "balanced_tree")
        cross = self.cross_nic if can_cross else 0
        alike = pattern != "nvls"
        best = Draft(pattern, least, most, 0.0, 0.0, near, near_net, 1 if cross == 1 else 0, alike)
        total = self.total * count / (count - 1) if count > 1 and pattern != "ring" else self.total
        i = 0
        while i < len(speeds) - 1 and (speeds[i] > self.fastest or speeds[i] * least > total):
            i += 1
        draft = best.copy()
        draft.intra = draft.inter = speeds[i]
        budget, enough = _STEPS_ALL, False
        while not enough:
            left, steps = self._round(draft, best)
            budget -= steps
            if left == -1 or best.channels * best.inter >= self.total:
                break
            if draft.same and not (self.rules.amd and draft.type_intra == SYS):
                draft.same = False
                continue
            draft.same = alike
            budget += left
            if budget < 0 and best.channels:
                break
            if self.rules.capability >= 90 and draft.pattern == "balanced_tree":
                draft.pattern = "tree"
                continue
            draft.pattern = pattern
            farthest = draft.type_inter if self.across else far
            if draft.type_intra < farthest and (not best.channels or draft.type_intra < best.type_intra):
                draft.type_intra += 1
                continue
            draft.type_intra = near
            nearer = not best.channels or draft.type_inter < best.type_inter or draft.type_inter < PXN
            if self.across and draft.type_inter < far_net and nearer:
                draft.type_inter += 1
                continue
            draft.type_inter = near_net
            if cross == 2 and draft.cross_nic == 0:
                draft.cross_nic = 2
                continue
            draft.cross_nic = 1 if cross == 1 else 0
            if i < len(speeds) - 1 and (not best.channels or speeds[i + 1] / best.inter > _SLOWER):
                i += 1
                draft.intra = draft.inter = speeds[i]
                continue
            enough = True
        self._split(best)
        self._speed_up(best)
        if not best.channels and pattern != "nvls":
            return self._simple(best)
        return best

    def _round(self, draft: Draft, best: Draft) -> tuple[int, int]:
        """Search one round; return the number of unused steps, and the number of steps allowed."""
        steps = _STEPS_ALIKE if draft.same else _STEPS
        return Round(self.node, draft, best, self.across, steps).run(), steps

    def _split(self, best: Draft) -> None:
        """Split each fast channel into two of half the speed."""
        many = self.rules.capability > 80 and best.intra < _FAST_MANY and best.channels > _MANY
        if not best.channels or best.pattern == "nvls" or best.intra < _FAST or many:
            return
        count = min(2 * best.channels, best.most)
        parts = -(-count // best.channels)
        best.orders = (best.orders * 2)[:count]
        best.nets = (best.nets * 2)[:count]
        best.intra, best.inter = best.intra / parts, best.inter / parts

    def _speed_up(self, best: Draft) -> None:
        """Run the second pass: search for faster channels without reducing their number."""
        speeds = self.speeds
        i = next((k for k, speed in enumerate(speeds) if speed <= best.inter), len(speeds) - 1)
        draft = best.copy()
        draft.intra = draft.inter = speeds[i]
        draft.least = best.channels
        left = -1
        while left != 0 and i > 0:
            if best.pattern == "ring":
                draft.intra = draft.inter = speeds[i - 1]
            elif best.pattern == "nvls" and draft.inter == best.inter and draft.inter < 2 * draft.intra:
                draft.least = draft.most = best.channels
                draft.inter = speeds[i - 1]
            elif draft.intra == best.intra and draft.intra < 2 * draft.inter:
                draft.intra = speeds[i - 1]
            else:
                return
            i -= 1
            left, _ = self._round(draft, best)

    def _simple(self, best: Draft) -> Draft:
        """Return the channel that NCCL uses if it finds none: the GPUs in order, at 0.1 GB/s."""
        best.orders, best.nets = [list(self.node.gpus)], [(-1, -1)]
        best.intra = best.inter = 0.1
        best.type_intra = best.type_inter = SYS
        return best


# --- RCCL ---


def _of_mesh(name: str, node: NodePaths, across: bool) -> Graphs:
    """Return the channels that we assume for RCCL if each GPU has a link to each other GPU. There are as many rings as
    the links allow, and between nodes as many as the ports of the NICs allow. Raises InputError for other machines,
    because RCCL takes their rings from tables that we lack."""
    count, direct = len(node.gpus), [node.paths[pair] for pair in itertools.permutations(node.gpus, 2)]
    speeds = {path.bandwidth for path in direct}
    if len(speeds) > 1 or any(path.type != NVL or len(path.links) > 1 for path in direct):
        problem = f"{name}: simcoll does not know RCCL's channels for GPUs that are not all joined alike"
        raise InputError(problem, "write the channels into the system's file, under `nccl`")
    rings, far, speed = count - 1 - (count in (4, 6)), PIX, min(speeds, default=node.net_GBps)
    if across:  # a ring of one GPU more, which is then left out
        rings = count - (count in (3, 5))
        nearest = [min((node.paths[gpu, net] for net in node.nets), key=lambda path: path.type) for gpu in node.gpus]
        far = max(path.type for path in nearest)
        speed = min(speed, *(path.bandwidth for path in nearest))
        rings = min(rings, len(node.nets) * int(node.net_GBps // speed))
    ring = ChannelGraph(
        channels=rings,
        intra=speed,
        inter=speed,
        pattern="ring",
        type_intra="NVL" if count > 1 else "LOC",
        type_inter=PATHS[far],
        same_channels=rings == 1,
    )
    return {"ring": ring, "tree": ring.model_copy(update={"pattern": "balanced_tree"})}
