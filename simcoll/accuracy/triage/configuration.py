"""How NCCL was configured in a log, as settings that may explain slow times: what they are, and how to simulate them.

No single line tells these causes: sockets in place of RDMA, GPUDirect RDMA off at one end, GPUs that talk through the
host, NICs or channels that are missing, variables that someone set.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from simcoll.accuracy.triage.findings import Confidence, Evidence, Finding, Where
from simcoll.accuracy.triage.machine_of_log import slow_nics, system_of
from simcoll.formats.debug_logs.log_facts import LogFacts, Source
from simcoll.formats.debug_logs.log_lines import VARIABLE
from simcoll.nccl.environment import NcclEnv
from simcoll.topology.machine_files import SystemFile

# Of GPUs without GPUDirect RDMA or P2P by design, and of machines whose network is sockets.
_PLAIN_GPUS: Final = ("GeForce", "RTX 30", "RTX 40", "RTX 20", "T4", "GB10")
_BOARDS: Final = ("SXM", "HBM3", "H200", "B200", "B300", "GB200", "GB300", "H800", "H20", "MI300", "MI325", "MI355")
_HOPPER: Final = ("H100", "H200", "H800", "H20", "B200", "B300", "GB200", "GB300")
_BOARD: Final = 8  # GPUs of a whole board with NVSwitch
# Variables of which all ranks must have one value, or they disagree about channels and protocols.
_COMMON: Final = frozenset((
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_BUFFSIZE",
    "NCCL_NVLS_ENABLE", "NCCL_CROSS_NIC", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_P2P_DISABLE", "NCCL_COLLNET_ENABLE",
))  # fmt: skip
# Variables that change times, as simcoll models them; the rest of the environment is no explanation.
_MODELLED: Final = frozenset(NcclEnv.model_fields) - {
    "NCCL_IB_HCA",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_NVLS_ENABLE",
}
_OFF: Final = ("0", "LOC")
_SHOWN: Final = 4  # lines of evidence


@dataclass(frozen=True)
class Setting:
    """A setting that may make calls slow. `sets` simulates it (`--set`); `blamed`: nobody wants it, so it is a finding
    even without a measured time."""

    finding: Finding
    sets: tuple[str, ...] = ()
    blamed: bool = True

    def as_remark(self, more: str = "") -> Finding:
        """Return the setting as a remark, with `more` after its text, for a job that is not known to be slow."""
        return replace(self.finding, role="harmless", text=self.finding.text + more)


def settings(facts: LogFacts, machine: str | None, named: bool) -> list[Setting]:
    """Return the settings that a log shows, in the order in which they are asked about: environment, network, GPUDirect
    RDMA, links within a node, NICs, NVLS, channels and choices. `named`: the user named the machine; else how many NICs
    it has is an assumption."""
    system = system_of(machine)
    rules = (_unlike(facts), _sockets(facts, system), _gpudirect(facts), _within_nodes(facts),
             _slow_nics(facts), _nics(facts, system, named), _nvls(facts), _variables(facts))  # fmt: skip
    every = itertools.chain.from_iterable(rules)
    return [replace(each, finding=replace(each.finding, when=float(number))) for number, each in enumerate(every)]


def excluded(facts: LogFacts) -> dict[str, str]:
    """Return the hypotheses about times that a log denies, with the reason."""
    ways = {link.way for link in facts.links}
    nets = [link for link in facts.links if link.way.startswith("NET/")]
    out: dict[str, str] = {}
    if nets and not any("Socket" in link.way for link in nets):
        out["tcp"] = f"the log shows links via {nets[0].way}"
    if nets and all(link.gdr for link in nets):
        out["gpudirect off"] = "all links to the network are by GPUDirect RDMA (GDRDMA)"
    if (used := len({(link.host, link.nic) for link in nets})) > (hosts := len({link.host for link in nets})):
        out["one nic"] = f"links to the network use {used} NICs of {hosts} hosts in the log"
    if len({len(nics) for nics in facts.nics.values()}) == 1:
        n = len(next(iter(facts.nics.values())))
        out |= dict.fromkeys(("nic missing", f"{n // 2} nics", f"{n // 4} nics"), f"all hosts use {n} NICs in the log")
    if "P2P" in ways and "SHM" not in ways:
        out |= dict.fromkeys(("p2p off", "pcie"), "all links within a node are by P2P")
    if facts.channels.get("nvls", (0,))[0] > 0:
        out["nvls off"] = f"the log has {facts.channels['nvls'][0]} nvls channels"
    if facts.nccl_lines and (facts.env or facts.versions):  # the environment is shown
        said = {"NCCL_PROTO": ("no LL", "no LL128", "no Simple", "only LL", "only LL128", "only Simple"),
                "NCCL_ALGO": ("only ring", "only tree", "nvls on"), "NCCL_BUFFSIZE": ("buffer size",),
                "NCCL_P2P_NET_CHUNKSIZE": ("chunk size",), "NCCL_PXN_DISABLE": ("pxn off",)}  # fmt: skip
        for name, families in said.items():
            if name not in facts.env:
                out |= dict.fromkeys(families, f"{name} is not set in the log")
    return out


# --- the network ---


def _sockets(facts: LogFacts, system: SystemFile | None) -> Iterator[Setting]:
    sources = [said["Socket"] for said in facts.networks.values() if "Socket" in said]
    sources += [facts.first_link[link] for link in facts.links if link.way == "NET/Socket"]
    if not sources or not (facts.several_nodes or facts.nodes_unknown):
        return
    cause, why, shown = _why_sockets(facts)
    sure: Confidence = "likely" if cause in ("no RDMA device", "unknown") else "clear"
    hosts = [host for host, said in facts.networks.items() if "Socket" in said]
    some = any(name != "Socket" for said in facts.networks.values() for name in said)
    text = f"NCCL uses TCP sockets{' on some nodes' if some else ''} in place of RDMA{why}."
    sets = [f"profile={system.profile}+tcp"] if system and system.profile else []
    host = hosts[0] if hosts and (len(hosts) == 1 or some) else None
    plain = _plain(facts) and sure == "likely"
    found = _setting("sockets", text, [*shown, *sources], sets, host, sure=sure, blamed=not plain, cure=cause)
    if not facts.several_nodes:
        text = f"{text} That is slow if the job has several nodes, which the log does not show."
        found = replace(found, finding=replace(found.finding, role="undecided", confidence="open", text=text))
    yield found


def _why_sockets(facts: LogFacts) -> tuple[str, str, list[Source]]:
    """Return why a job of several nodes uses sockets: the name of the cure, the reason in words, and its lines."""
    for name, value in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"), ("NCCL_NET_PLUGIN", "none")):
        if found := _set_to(facts, name, (value,)):
            return "variable", f", because {name}={value} is set", [found[1]]
    cases = (seen.case.cause for counter in facts.cases.values() for seen in counter.seen.values())
    if "EFA provider missing" in cases:
        return "no EFA", ", because the plugin found no EFA device", []
    cloud = any(host.startswith("ip-") for host in (*facts.networks, *facts.hosts.values()))
    said = {name: list(by_host.values()) for name, by_host in facts.said.items()}
    if "no libibverbs" in said and not cloud:
        return "no libibverbs", ", because the image has no libibverbs", said["no libibverbs"]
    if "no plugin" in said and cloud:
        return "no plugin", ", because the network plugin was not found", said["no plugin"]
    if "no device" in said and (listed := facts.env.get("NCCL_IB_HCA")):
        value, by_host = next(iter(listed.items()))
        shown = [*list(by_host.values())[:1], *said["no device"]]
        return "no such nic", f", because no RDMA device fits NCCL_IB_HCA={value}", shown
    if "no device" in said:
        return "no RDMA device", ", because it found no RDMA device", said["no device"]
    return "unknown", "", []


def _gpudirect(facts: LogFacts) -> Iterator[Setting]:
    """Yield GPUDirect RDMA that is off: by a variable, on some hosts, for some NICs of a host, or on all.

    Receiving counts: GPUs before Ampere send through the host's memory by design.
    """
    nets = [link for link in facts.links if link.way.startswith("NET/") and "Socket" not in link.way]
    received = [link for link in nets if link.sends is False] or nets
    without = [link for link in received if not link.gdr]
    by_env = _set_to(facts, "NCCL_NET_GDR_LEVEL", _OFF) or _set_to(facts, "NCCL_NET_GDR_DISABLE", ("1",))
    unsaid = not nets and not by_env and (facts.said["gdr on"] or not facts.said["gdr off"])
    if not facts.several_nodes or _plain(facts) or (nets and not without) or unsaid:
        return
    if nets and not any(link.way.startswith(("NET/IB", "NET/gIB")) for link in without) and not _modern(facts):
        return
    all_hosts = {link.host for link in received}
    hosts = sorted({link.host for link in without}) or sorted(facts.said["gdr off"])
    whole = [host for host in hosts if not any(link.gdr for link in received if link.host == host)]
    shown = [facts.first_link[link] for link in without[:3]] or list(facts.said["gdr off"].values())[:2]
    shown += [facts.first_link[link] for link in received if link.gdr][:1]
    host, device, cure = None, None, "gpudirect"
    if by_env:
        text, shown, cure = (
            f"is off, because {_variable_of(by_env[1])}={by_env[0]} is set",
            [by_env[1], *shown],
            "variable",
        )
    elif whole and len(whole) < len(all_hosts):
        host, text = whole[0], f"is off on {', '.join(whole[:4])}, and on at the other end"
    elif not whole and without:
        host, device, cure = without[0].host, f"NIC {without[0].nic}", "far nic"
        text = f"is off for NIC {without[0].nic} on {host}, and on for others"
    else:
        host, text = hosts[0] if len(hosts) == 1 else None, "is off on all nodes"
    text = f"GPUDirect RDMA {text}; data go through the host's memory."
    yield _setting("gpudirect off", text, shown, ["env.NCCL_NET_GDR_LEVEL=LOC"], host, device, cure=cure)


def _slow_nics(facts: LogFacts) -> Iterator[Setting]:
    for host, rate, usual, source in slow_nics(facts):
        text = f"NICs of {host} run at {8 * rate:.4g} Gb/s, and those of others at {8 * usual:.4g}."
        yield _setting("slow nic", text, [source], [f"topology.nic_bandwidth={rate:g} GB/s"], host)


def _nics(facts: LogFacts, system: SystemFile | None, named: bool) -> Iterator[Setting]:
    """Yield NICs that a host lacks, and fewer NICs than the machine has because of NCCL_IB_HCA."""
    counts = {host: len(nics) for host, nics in facts.nics.items()}
    if not facts.several_nodes or not counts:
        return
    most, listed = max(counts.values()), facts.env.get("NCCL_IB_HCA", {})
    few = [host for host, count in counts.items() if count < most]
    if few and len(listed) < 2:
        host = few[0]
        gone = ", ".join(sorted({nic for nics in facts.nics.values() for nic in nics} - {*facts.nics[host]}))
        text = f"{host} uses {counts[host]} NICs and others {most}: {gone} is missing there."
        shown = [next(iter(facts.nics[each].values())) for each in (host, max(counts, key=lambda each: counts[each]))]
        yield _setting("nic missing", text, shown, _hca(counts[host], system), host, gone)
    elif system and most < system.counts.get("nic", 0):
        value, by_host = next(iter(listed.items()), ("", {}))
        who = f"NCCL_IB_HCA={value} leaves" if value else "NCCL finds"
        text = f"{who} {most} of {system.counts['nic']} NICs of a node."
        shown = [*by_host.values(), *(next(iter(nics.values())) for nics in facts.nics.values())]
        cure = "variable" if value else "nic missing"
        found = _setting("fewer nics", text, shown, _hca(most, system), sure="likely", blamed=False, cure=cure)
        decides = ("name the machine (--on): if its nodes have no more NICs, this is as it should be",)
        yield found if named else replace(found, finding=replace(found.finding, role="undecided", decides=decides))


def _hca(used: int, system: SystemFile | None) -> list[str]:
    if system is None or not 0 < used < system.counts.get("nic", 0):
        return []
    step = system.counts["nic"] // used
    return ["env.NCCL_IB_HCA==" + ",".join(f"mlx5_{number * step}" for number in range(used))]


# --- within a node ---


def _within_nodes(facts: LogFacts) -> Iterator[Setting]:
    """Yield GPUs that talk through the host's memory or over the network, though NVLink joins them."""
    shm = [facts.first_link[link] for link in facts.links if link.way == "SHM"]
    p2p = any(link.way == "P2P" for link in facts.links)
    by_env = _set_to(facts, "NCCL_P2P_DISABLE", ("1",)) or _set_to(facts, "NCCL_P2P_LEVEL", ("LOC", "0"))
    looped, off = list(facts.looped.values()), ["env.NCCL_P2P_DISABLE=1"]
    no_shm = _set_to(facts, "NCCL_SHM_DISABLE", ("1",))
    if looped and (no_shm or by_env or _board(facts)):
        shown = [said[1] for said in (no_shm, by_env) if said]
        text = "GPUs of one node talk over the network, because P2P and shared memory are off."
        yield _setting("p2p off", text, [*shown, *looped], off, cure="variable" if shown else "p2p off")
    elif by_env:
        said = f"{_variable_of(by_env[1])}={by_env[0]}"
        text = f"GPUs do not talk directly, because {said} is set; data go through the host's memory."
        yield _setting("p2p off", text, [by_env[1], *shm], off, blamed=not _plain(facts), cure="variable")
    elif shm and (_board(facts) or not p2p):
        text = f"GPUs of a node talk through the host's memory (SHM){', not over NVLink' if _board(facts) else ''}."
        sure: Confidence = "clear" if _board(facts) else "open"
        yield _setting("p2p off", text, shm, off, shm[0].line.host, sure=sure, blamed=_board(facts))


def _nvls(facts: LogFacts) -> Iterator[Setting]:
    count, source = facts.channels.get("nvls", (None, None))
    none = [source] if source and count == 0 else []
    none = [] if facts.said["nvls"] else none  # what excludes it is another setting
    remarks, sets = [*list(facts.said["no nvls"].values())[:1], *none], ["env.NCCL_NVLS_ENABLE=0"]
    hopper = any(word in gpu for gpu in facts.gpus for word in _HOPPER)
    if by_env := _set_to(facts, "NCCL_NVLS_ENABLE", ("0",)):
        text = "NVLS (reductions in the NVLink switch) is off, because NCCL_NVLS_ENABLE=0 is set."
        yield _setting("nvls off", text, [by_env[1], *none], sets, blamed=False, cure="variable")
    elif remarks and (facts.local_ranks or 0) >= _BOARD and _board(facts) and hopper:
        text = "NVLS is not available, though the board has NVSwitches."
        yield _setting("nvls off", text, remarks, sets, remarks[0].line.host, sure="likely")


# --- settings that ranks share ---


def _unlike(facts: LogFacts) -> Iterator[Setting]:
    """Yield releases and variables that differ between nodes. They do not slow a job down, but stop it. A variable is
    unset on hosts that show others, and links if any host does."""
    by_value: dict[str, dict[str, dict[str, Source]]] = {"release": defaultdict(dict)}
    for host, said in facts.versions.items():
        for version, source in said.items() if host else ():
            by_value["release"][version][host] = source
    others = {host: line for said in facts.env.values() for hosts in said.values() for host, line in hosts.items()}
    linked = {link.host for link in facts.links} or others.keys()
    for name in _COMMON & facts.env.keys():
        by_value[name] = dict(facts.env[name])
        unset = others.keys() & linked - {host for hosts in by_value[name].values() for host in hosts}
        if unset:
            by_value[name]["unset"] = {host: others[host] for host in sorted(unset)}
    for name, values in by_value.items():
        if len(values) < 2 or len({host for hosts in values.values() for host in hosts}) < 2:
            continue
        fewest = sorted(values, key=lambda value: len(values[value]))
        shown = [next(iter(values[value].values())) for value in fewest]
        listed = ", ".join(f"{value} on {', '.join(list(values[value])[:3])}" for value in fewest)
        if name == "release":
            cause, text = "mixed versions", f"Ranks load different releases of NCCL: {listed}."
        else:
            cause, text = "ranks disagree", f"{name} differs between nodes ({listed}), so ranks disagree."
        sure: Confidence = "clear" if name == "release" else "likely"
        yield _setting(cause, text, shown, (), shown[0].line.host, sure=sure, slows=False)


def _variables(facts: LogFacts) -> Iterator[Setting]:
    """Yield other variables that change times, as far as simcoll models them; alone they are no finding."""
    for name in sorted(_MODELLED & facts.env.keys()):
        value, hosts = next(iter(facts.env[name].items()))
        if value:
            named = {"NCCL_ALGO": "forced algorithm", "NCCL_PROTO": "forced protocol"}.get(name, name)
            cause = "channels" if "NCHANNELS" in name or "CTAS" in name else named
            sets = [f"env.{name}={value}"]
            text = f"{name}={value} is set."
            yield _setting(cause, text, hosts.values(), sets, sure="likely", blamed=False, cure="variable")


def _setting(
    cause: str,
    text: str,
    sources: Iterable[Source],
    sets: Iterable[str],
    host: str | None = None,
    device: str | None = None,
    *,
    sure: Confidence = "clear",
    blamed: bool = True,
    slows: bool = True,
    cure: str = "",
) -> Setting:
    shown = tuple(Evidence.of(each.file, each.line.number, each.line.full) for each in list(sources)[:_SHOWN])
    where = Where(host or None, device=device)
    more: dict[str, Any] = {"cause": cause, "confidence": sure, "where": where, "evidence": shown, "slows": slows}
    return Setting(replace(Finding.of(cure or cause, {"text": text}), **more), tuple(sets), blamed)


# --- what facts say ---


def _set_to(facts: LogFacts, name: str, values: Iterable[str]) -> tuple[str, Source] | None:
    """Return the value of a variable and the line that shows it, if it is one of `values`."""
    for value in values:
        if hosts := facts.env.get(name, {}).get(value):
            return value, next(iter(hosts.values()))
    return None


def _variable_of(source: Source) -> str:
    """Return the name of the variable that a line of the log shows."""
    found = VARIABLE.search(source.line.text)
    return found[1] if found else "a variable"


def _plain(facts: LogFacts) -> bool:
    return bool(facts.gpus) and all(any(word in gpu for word in _PLAIN_GPUS) for gpu in facts.gpus)


def _board(facts: LogFacts) -> bool:
    return any(word in gpu for gpu in facts.gpus for word in _BOARDS)


def _modern(facts: LogFacts) -> bool:
    return any(word in gpu for gpu in facts.gpus for word in (*_HOPPER, "A100"))
