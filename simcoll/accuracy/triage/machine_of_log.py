"""Find out from logs and tables which shipped machine they are from: by the GPUs' names, their number and the NICs, or
by the tree of devices that NCCL prints (NCCL_DEBUG_SUBSYS=GRAPH)."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from simcoll import units
from simcoll.accuracy.triage.findings import Evidence
from simcoll.errors import InputError
from simcoll.formats.debug_logs.log_facts import LogFacts, Source
from simcoll.formats.measured import gpu_names
from simcoll.scenario import scenario_files
from simcoll.topology.machine_files import SystemFile, shipped_systems
from simcoll.topology.topology_builder import described, load_system

_CLOUDS: Final = {"efa": ("Libfabric", "OFI"), "tcpx": ("FasTrak", "GPUDirectTCPX", "gIB", "TCPXO")}
_COMMON: Final = ("hgx-h100", "hgx-h200", "dgx-a100", "hgx-b200", "hgx-b300")  # of machines that fit alike, the first
_EQUAL: Final = (
    0.03  # share by which rates may differ: NCCL rounds them, and InfiniBand's are a little below Ethernet's
)
_LINK: Final = re.compile(r"(NVL|NET)\[([0-9]{1,6}(?:\.[0-9]{1,6})?)\] - \w+/|NET/IB ?: \[.* speed=([0-9]{1,9})\b")
_GPU: Final = re.compile(r"GPU/(\S{1,40}) \(")


class DeviceTree(NamedTuple):
    """What the tree of devices in a log says: the number of GPUs, and the GB/s of the widest NVLink path and of a NIC;
    0: it does not say."""

    gpus: int
    nvlink: float
    nic: float
    source: Source | None


def device_tree(facts: LogFacts) -> DeviceTree:
    """Return what the tree of the first host says."""
    lines = [source.line.text for source in facts.system if source.line.host == facts.system[0].line.host]
    rates = {"NVL": 0.0, "NET": 0.0}
    for kind, rate in (link for line in lines for link in _links(line)):
        rates[kind] = max(rates[kind], rate)
    gpus = {match for line in lines for match in _GPU.findall(line)}
    return DeviceTree(len(gpus), rates["NVL"], rates["NET"], facts.system[0] if lines else None)


def _links(line: str) -> Iterator[tuple[str, float]]:
    """Yield the links (NVL, NET) of a line about devices with their GB/s; NCCL prints a NIC's speed in Mb/s."""
    for kind, rate, speed in _LINK.findall(line):
        yield kind or "NET", float(rate or float(speed) / 8000)


def slow_nics(facts: LogFacts) -> Iterator[tuple[str, float, float, Source]]:
    """Yield hosts of which fewer NICs have the full rate than of others, and some a lower one: with the lowest and the
    full rate in GB/s, and a line."""
    rates: dict[str, dict[str, tuple[float, Source]]] = defaultdict(dict)
    for source in facts.system:
        for kind, rate in _links(source.line.text):
            if kind == "NET":
                rates[source.line.host or ""][source.line.text] = rate, source
    usual = max((rate for nics in rates.values() for rate, _ in nics.values()), default=0.0)
    full = {host: sum(_is_near(rate, usual) for rate, _ in nics.values()) for host, nics in rates.items()}
    for host, nics in rates.items():
        rate, source = min(nics.values(), key=lambda nic: nic[0])
        if full[host] < max(full.values()) and not _is_near(rate, usual):
            yield host, rate, usual, source


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= _EQUAL * max(one, other)


def machine_of(facts: LogFacts) -> tuple[str | None, int | None, Evidence | None]:
    """Return the shipped machine that fits a log best, the number of nodes, and the line that names its GPUs.

    If fewer ranks run on a node than it has GPUs, the machine has so many GPUs, and the NICs that the log lists. It is
    None if no line names GPUs that a shipped machine has, and no tree of devices shows NVLinks as such a machine has.
    """
    nodes, tree = facts.nodes or len({*facts.hosts.values()}) or None, device_tree(facts)
    local = facts.local_ranks or _ranks_a_node(facts) or tree.gpus or None
    named = [([name], source) for name, source in facts.gpus.items()]
    for names, source in [*named, *([([], tree.source)] if tree.source and tree.nvlink else [])]:
        if (found := best_machine(names, local, networks_of(facts), tree)) is not None:
            nics = max(map(len, facts.nics.values()), default=None)
            machine = _varied(found, local, nics, tree.nic, None if names else nodes)
            return machine, nodes, Evidence.of(source.file, source.line.number, source.line.full)
    return None, nodes, None


def _varied(name: str, local: int | None, nics: int | None, rate: float, nodes: int | None) -> str:
    """Return a machine as `--on` takes it: with `local` GPUs and `nics` NICs if it has more GPUs, with NICs of `rate`
    GB/s if they have another one, and with `nodes`."""
    file = load_system(name)
    counts, change = file.counts, f", nodes: {nodes}" if (nodes or 1) > 1 else ""
    if local and local < counts.get("gpu", 0):
        change += f", gpus: {local}"
        change += f", nics: {nics}" if nics and nics < counts.get("nic", 0) else ""
    change += f", nic_bandwidth: {rate:g} GB/s" if rate and not _is_near(rate, _nic_rate(file)) else ""
    return f"{{system: {name}{change}}}" if change else name


def _nic_rate(file: SystemFile) -> float:
    """Return the GB/s of a NIC; 0 without NICs."""
    return units.parse(file.nic.rate, "bandwidth") / 1e9 if file.nic else 0.0


def _nvlink_rate(file: SystemFile) -> float:
    rules = (rule for rule in file.links if rule.kind == "nvlink")
    return max((units.parse(rule.bandwidth, "bandwidth") / 1e9 for rule in rules), default=0.0)


def system_of(machine: str | None) -> SystemFile | None:
    """Return the description of a machine as `--on` takes it; None if it has none."""
    if machine is None:
        return None
    try:
        return described(scenario_files.topology_spec(machine))
    except InputError:
        return None


def networks_of(facts: LogFacts) -> list[str]:
    """Return the names of the networks that a log shows."""
    named = [name for said in facts.networks.values() for name in said]
    return [*named, *(link.way.removeprefix("NET/") for link in facts.links if link.way.startswith("NET/"))]


def _ranks_a_node(facts: LogFacts) -> int | None:
    hosts = list(facts.hosts.values())
    return max((hosts.count(host) for host in set(hosts)), default=None)


def of_cloud(networks: Iterable[str]) -> list[str]:
    """Return which clouds' networks are among the names: those of the profiles of their NICs."""
    said = " ".join(networks)
    return [cloud for cloud, words in _CLOUDS.items() if any(word in said for word in words)]


def best_machine(
    gpus: Iterable[str], local: int | None, networks: Iterable[str], tree: DeviceTree | None = None
) -> str | None:
    """Return the shipped machine with such GPUs, or if none is named with such NVLinks, that has room for `local` ranks
    and NICs for these networks. None if there is none, as for another cloud's NICs."""
    names, clouds = list(gpus), of_cloud(networks)

    def rank(file: SystemFile) -> tuple[object, ...]:
        nic = (file.nic.profile or "") if file.nic else ""
        other_cloud = sum((word in nic) != (word in clouds) for word in _CLOUDS)
        spare = file.counts.get("gpu", 0) - (local or 8)
        common = _COMMON.index(file.name) if file.name in _COMMON else len(_COMMON)
        return (
            spare < 0,
            other_cloud,
            tree is not None and tree.nic > 0 and not _is_near(tree.nic, _nic_rate(file)),
            file.counts.get("gpu", 0) > 8 and (local or 0) <= 8,
            spare,
            common,
            len(file.name),
        )

    fitting = [
        file
        for file in _machines()
        if file.gpu and all(gpu_names.is_of(name, file.gpu.model) for name in names)
        if names or (tree and _is_near(tree.nvlink, _nvlink_rate(file)))
    ]
    best = min(fitting, key=rank, default=None)
    return best.name if best and not rank(best)[0] and not (clouds and rank(best)[1]) else None


@functools.cache
def _machines() -> tuple[SystemFile, ...]:
    return tuple(file for file in map(load_system, shipped_systems()) if file.profile and file.gpu)
