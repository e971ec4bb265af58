"""Find out from logs and tables which shipped machine they are from: by the GPUs' names, their number and the NICs."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

from simcoll.accuracy.triage.findings import Evidence
from simcoll.errors import InputError
from simcoll.formats.debug_logs.log_facts import LogFacts
from simcoll.formats.measured import gpu_names
from simcoll.scenario import scenario_files
from simcoll.topology.machine_files import SystemFile, shipped_systems
from simcoll.topology.topology_builder import described, load_system

_CLOUDS: Final = {"efa": ("Libfabric", "OFI"), "tcpx": ("FasTrak", "GPUDirectTCPX", "gIB", "TCPXO")}
_COMMON: Final = ("hgx-h100", "hgx-h200", "dgx-a100", "hgx-b200", "hgx-b300")  # of machines that fit alike, the first


def machine_of(facts: LogFacts) -> tuple[str | None, int | None, Evidence | None]:
    """Return the shipped machine that fits a log best, the number of nodes, and the line that names its GPUs.

    If fewer ranks run on a node than it has GPUs, the machine has so many GPUs, and the NICs that the log lists. It is
    None if no line names GPUs that a shipped machine has.
    """
    nodes = facts.nodes or len({*facts.hosts.values()}) or None
    local = facts.local_ranks or _ranks_a_node(facts)
    for name, source in facts.gpus.items():
        if (found := best_machine([name], local, networks_of(facts))) is not None:
            machine = _varied(found, local, max(map(len, facts.nics.values()), default=None))
            return machine, nodes, Evidence.of(source.file, source.line.number, source.line.full)
    return None, nodes, None


def _varied(name: str, local: int | None, nics: int | None) -> str:
    """Return a machine as `--on` takes it, with `local` GPUs and `nics` NICs if it has more GPUs."""
    counts = load_system(name).counts
    if not local or local >= counts.get("gpu", 0):
        return name
    fewer = f", nics: {nics}" if nics and nics < counts.get("nic", 0) else ""
    return f"{{system: {name}, gpus: {local}{fewer}}}"


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


def best_machine(gpus: Iterable[str], local: int | None, networks: Iterable[str]) -> str | None:
    """Return the shipped machine with such GPUs that has room for `local` ranks and NICs for these networks. None if
    there is none, as for another cloud's NICs."""
    names, clouds = list(gpus), of_cloud(networks)

    def rank(file: SystemFile) -> tuple[object, ...]:
        nic = (file.nic.profile or "") if file.nic else ""
        other_cloud = sum((word in nic) != (word in clouds) for word in _CLOUDS)
        spare = file.counts.get("gpu", 0) - (local or 8)
        common = _COMMON.index(file.name) if file.name in _COMMON else len(_COMMON)
        return (
            spare < 0,
            other_cloud,
            file.counts.get("gpu", 0) > 8 and (local or 0) <= 8,
            spare,
            common,
            len(file.name),
        )

    fitting = [
        file for file in _machines() if file.gpu and all(gpu_names.is_of(name, file.gpu.model) for name in names)
    ]
    best = min(fitting, key=rank, default=None)
    return best.name if best and not rank(best)[0] and not (clouds and rank(best)[1]) else None


@functools.cache
def _machines() -> tuple[SystemFile, ...]:
    return tuple(file for file in map(load_system, shipped_systems()) if file.profile and file.gpu)
