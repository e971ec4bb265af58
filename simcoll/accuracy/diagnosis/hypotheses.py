"""List the hypotheses about a slow machine, each as a changed scenario or changed parameters to simulate.

A *family* is one explanation; its variants differ in one number, such as the share of bandwidth that a link has left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from simcoll import units
from simcoll.accuracy.diagnosis import _nccl_settings
from simcoll.accuracy.diagnosis._hypothesis import HEALTHY, Hypothesis
from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.config.lru import LruCache
from simcoll.formats.measured import gpu_names
from simcoll.nccl.between_nodes import Transport
from simcoll.nccl.communicator import communicator
from simcoll.nccl.within_node import staged
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.placed_topology import machine_of, network_of
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import CABLE, LinkScale, Profile, load_network, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Link
from simcoll.topology.machine_files import SystemFile, shipped_systems
from simcoll.topology.systems import build, load_system, nodes_of
from simcoll.topology.topology_keys import Override, TopologySpec

# Shares of its rate that a slow link or GPU has left: 20 to a decade (Renard), so that one is within 6 % of any. Fewer
# lanes leave a half, a quarter, an eighth.
SHARES: Final = (
    0.9, 0.8, 0.71, 0.63, 0.56, 0.5, 0.45, 0.4, 0.36, 0.32, 0.28, 0.25, 0.22, 0.2, 0.18, 0.16, 0.14, 0.125, 0.11, 0.1,
)  # fmt: skip
ONE_PROCESS: Final = Launch(gpus_per_process="all")
Edge = tuple[str, str, Link]
_CHANGED: Final[LruCache[TopologySpec]] = LruCache(256, lambda _: 1)  # by topology and change


def candidates(
    scenarios: Sequence[Scenario], kinds: Sequence[str], gpus: Sequence[str] = ()
) -> list[Sequence[Hypothesis]]:
    """List the families of hypotheses for these points, whose routes use links of these kinds, and whose table names
    these GPUs.

    The healthy machine comes first. The variants of a family stand in order of their distance from healthy. Of two
    families that explain a table equally well, the earlier one is reported.
    """
    names = {scenario.topology.system or scenario.topology.file or "" for scenario in scenarios}
    name = next(iter(names)) if len(names) == 1 and names != {""} else None
    system = load_system(name) if name else None
    of_nics = network_of(name).links
    nodes = max(nodes_of(scenario.topology) for scenario in scenarios)
    reduces = system is not None and bool(system.in_network) and nodes == 1
    single = [HEALTHY, *_by_the_host(scenarios), *_launched_otherwise(scenarios, reduces)]
    nics = system.devices.get("nic", 0) if system and isinstance(system.devices, dict) else 0
    direct = system is not None and (_has(system, "nvlink") or _has(system, "xgmi"))  # so that PCIe leads to NICs alone
    several: list[Sequence[Hypothesis]] = [
        variants
        for kind in sorted(kinds, key=(CABLE, "trunk").__contains__, reverse=True)  # between nodes first
        if not (kind == "pcie" and direct and CABLE in kinds and nics)
        for variants in _slow(kind, of_nics.get(kind), kind == CABLE and nics > 0)
    ]
    tunable = any(executor(scenario).tunable for scenario in scenarios)
    if not tunable:
        single += _nccl_settings.switched_off(scenarios)
        several += [list(_slow_gpus()), *([each] for each in _nccl_settings.other_sizes(scenarios, nodes))]
    by_which = [*_nccl_settings.fewer_nics(nics)] if CABLE in kinds and not tunable else []
    how = [*_network(network_of(name))] if system and CABLE in kinds else []
    # sockets take other interfaces than RDMA does, often one, so how data leave a node and by which NICs go together
    single += [*by_which, *how, *(way.beside(nics_left) for way in how for nics_left in by_which)]
    if system and nodes == 1 and "nvlink" in kinds:
        single += _pcie(system)
    if system and system.nccl and _some_talk(system, scenarios):
        text = (
            "GPUs do not talk directly, but through the host's memory: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, a virtual "
            "machine, ACS"
        )
        single.append(Hypothesis("p2p off", text, scenario=_without_p2p))
    elsewhere = list(_elsewhere(system, gpus)) if system else []
    return [*([hypothesis] for hypothesis in single), *several, *([hypothesis] for hypothesis in elsewhere)]


def _by_the_host(scenarios: Sequence[Scenario]) -> Iterator[Hypothesis]:
    """Yield hosts that launch otherwise than that of the profile. Where a table names processes of several GPUs, the
    host may be quicker, too: its pace takes the place of the profile's."""
    text = "each call takes longer by a constant: launched one by one, or by many processes"
    yield Hypothesis("launch", text, assumes=2, launch=True, host="adds")
    if not any(_by_processes(scenario) is not scenario for scenario in scenarios):
        text = "the host launches no faster: many GPUs a process, slow or busy cores"
        yield Hypothesis("host", text, assumes=2, launch=True, host="paces")
        return
    text = "the host launches at another pace than that of the profile: other cores, or busy ones"
    yield Hypothesis("host", text, assumes=2, launch=True, host="paces", scenario=_by_processes)
    text = "a process, or a thread, launches for each GPU, and not one for several, as the table says"
    yield Hypothesis("own processes", text, launch=True, scenario=_by_processes)


def _by_processes(scenario: Scenario) -> Scenario:
    """Return the scenario with a process for each GPU, where one launches for several; else the same."""
    if not (scenario.launch.paced and scenario.launch.way):
        return scenario
    return scenario.model_copy(update={"launch": scenario.launch.model_copy(update={"gpus_per_process": None})})


def _launched_otherwise(scenarios: Sequence[Scenario], reduces: bool) -> Iterator[Hypothesis]:
    """Yield the other ways of launching whose costs the profiles know, if the table does not name one; `reduces`: the
    GPUs share a switch that does, so that registered buffers matter."""
    windows = "buffers are registered as windows, so that nothing is copied"
    registered = (
        ("registered", windows, Launch(registered=True)),
        ("registered graph", f"{windows}; in a CUDA graph", Launch(graph=True, registered=True)),
        ("registered, one process", f"{windows}; one process", Launch(gpus_per_process="all", registered=True)),
    )
    ways = (
        ("one process", "one process launches for all GPUs of a node, one after the other", ONE_PROCESS),
        ("graph", "calls are launched in a CUDA graph", Launch(graph=True)),
        *(registered if reduces else ()),
    )
    for family, text, launch in ways:
        known = all(load_profile(scenario.profile).knows(launch) for scenario in scenarios)
        if known and any(scenario.launch == Launch() for scenario in scenarios):
            yield Hypothesis(family, text, launch=True, scenario=functools.partial(_launched, launch=launch))


def _launched(scenario: Scenario, launch: Launch) -> Scenario:
    return scenario.model_copy(update={"launch": launch}) if scenario.launch == Launch() else scenario


# --- hardware ---


def _scaled(kind: str, share: float, served: LinkScale | None) -> Callable[[ParameterSetting], ParameterSetting]:
    """Return a change that leaves links of a kind a share of their bandwidth.

    `served` is the scale that the profile of the NICs gives, for kinds that the point's own profile does not mention.
    """

    def changed(setting: ParameterSetting) -> ParameterSetting:
        link = setting.links.get(kind, served or LinkScale())
        slower = LinkScale(efficiency=link.efficiency * share, latency=link.latency)
        return replace(setting, links={**setting.links, kind: slower})

    return changed


def _slow(kind: str, served: LinkScale | None, of_nics: bool) -> list[list[Hypothesis]]:
    """List slow links of a kind: all of them, one, and one in one direction, as lanes fail.

    Between nodes a NIC, its cable and the PCIe links before it carry the same bytes one after the other, so that all of
    these are one hypothesis (`of_nics`).
    """
    family, text = f"slow {kind}", f"links of the kind {kind} slower than they should be"
    if of_nics:
        family = "slow nic"
        text = "the way to the network is slow, of a GPU or of all: NIC, port, cable, or PCIe; times cannot tell which"

    def variant(which: str, share: float, **changed: Any) -> Hypothesis:
        return Hypothesis(family, text, f"{which} at {share:.0%}", 2, share, **changed)

    ways = ((True, "one"),) if kind == CABLE else ((True, "one"), (False, "one way of one"))
    return [
        [variant("all", share, setting=_scaled(kind, share, served)) for share in SHARES],
        *(
            [
                variant(which, share, scenario=functools.partial(_with_slow_link, kind=kind, share=share, back=back))
                for share in SHARES[1::2]  # points are bound anew for each
            ]
            for back, which in ways
        ),
    ]


def _with_slow_link(scenario: Scenario, kind: str, share: float, back: bool) -> Scenario:
    """Return the scenario with one slow link of a kind, there and `back` or there only; unchanged where there is none,
    as between nodes, of one. Points on the same topology get the same object, of which all is made once."""
    spec, written = scenario.topology, scenario.topology.model_dump_json()

    def changed() -> TopologySpec:
        u, v, link = next((edge for edge in _edges(written) if edge[2].kind == kind), (None, None, None))
        if link is None:
            return spec
        slower = Override(bandwidth=f"{max(1, round(link.bandwidth * share))} B/s")
        names = (f"{u}->{v}", f"{v}->{u}") if back else (f"{u}->{v}",)
        return spec.model_copy(update={"links": {**spec.links, **dict.fromkeys(names, slower)}})

    slowed = _CHANGED.get((written, kind, share, back), changed)
    return scenario if slowed == spec else scenario.model_copy(update={"topology": slowed})


@functools.lru_cache(maxsize=64)
def _edges(spec: str) -> tuple[Edge, ...]:
    """Return the links of a topology with the devices at their ends."""
    return tuple(build(TopologySpec.model_validate_json(spec)).wiring)


def _slow_gpus() -> Iterator[Hypothesis]:
    """Yield slower kernels on links that are as fast as they should be."""
    text = "kernels slower than they should be: a GPU with low clocks, or one that others use"
    for share in SHARES:
        slower = functools.partial(ParameterSetting.with_slower_blocks, share=share)
        yield Hypothesis("slow gpu", text, f"{share:.0%} of their speed", 2, share, setting=slower)


def _network(network: Profile) -> Iterator[Hypothesis]:
    """Yield NICs that are not used as they should be."""
    if network.transport and network.transport.gpudirect:
        text = "TCP sockets in place of RDMA: NCCL_NET=Socket, NCCL_IB_DISABLE, or no plugin (profile: …+tcp)"
        yield Hypothesis("tcp", text, setting=_by_tcp)
        text = (
            "GPUDirect RDMA is off: data go through the host's memory; NCCL_NET_GDR_LEVEL, ACS, or no nvidia-peermem "
            "(env.NCCL_NET_GDR_LEVEL: LOC)"
        )
        yield Hypothesis("gpudirect off", text, setting=functools.partial(_without_gpudirect, network=network))


def _by_tcp(setting: ParameterSetting) -> ParameterSetting:
    tcp = load_network("tcp")
    return replace(setting, transport=tcp.transport, links={**setting.links, CABLE: tcp.links[CABLE]})


def _without_gpudirect(setting: ParameterSetting, network: Profile) -> ParameterSetting:
    """Return the setting as NCCL_NET_GDR_LEVEL=LOC has it; the NICs' profile says what that costs."""
    return replace(setting, transport=(setting.transport or network.transport or Transport()).without_gpudirect())


def _pcie(system: SystemFile) -> Iterator[Hypothesis]:
    """Yield the shipped system without NVLink whose PCIe has the rate nearest to this system's."""

    def rate(file: SystemFile) -> int:
        return max((units.parse(link.bandwidth, "bandwidth") for link in file.links if link.kind == "pcie"), default=0)

    without = [file for file in _others(system) if not _has(file, "nvlink") and not _has(file, "xgmi")]
    if rate(system) and without:
        like = min(without, key=lambda file: abs(rate(file) - rate(system)))
        text = f"PCIe in place of NVLink, as on {like.name}"
        yield Hypothesis("pcie", text, scenario=functools.partial(_swapped, like=like))


def _elsewhere(system: SystemFile, gpus: Sequence[str]) -> Iterator[Hypothesis]:
    """Yield every other shipped system as the one that was measured; the most similar come first. A table that names
    its `gpus` was measured on these, however much its times are like another's."""
    possible = (file for file in _others(system) if not (file.gpu and gpu_names.ruled_out(gpus, file.gpu.model)))
    for file in sorted(possible, key=functools.partial(_differences, system)):
        text = f"it was measured on another machine, one like the shipped {file.name}"
        yield Hypothesis(f"like {file.name}", text, assumes=3, scenario=functools.partial(_swapped, like=file))


def _others(system: SystemFile) -> list[SystemFile]:
    """Return the other shipped systems that have a profile."""
    return [file for file in map(load_system, shipped_systems()) if file.profile and file.name != system.name]


def _differences(system: SystemFile, candidate: SystemFile) -> int:
    """Count how many numbers of devices, rates of NICs and makers of GPUs differ between two systems."""
    pair = (system, candidate)
    counts = [set(file.devices.items()) if isinstance(file.devices, dict) else set() for file in pair]
    rates = [file.nic.rate if file.nic else "" for file in pair]
    makers = [file.gpu.vendor if file.gpu else "" for file in pair]
    return len(counts[0] ^ counts[1]) + (rates[0] != rates[1]) + (makers[0] != makers[1])


def _swapped(scenario: Scenario, like: SystemFile) -> Scenario:
    """Return the scenario on as many nodes of another system, under what its NICs ask for in place of the own ones."""
    spec = type(scenario.topology)(system=like.name, nodes=nodes_of(scenario.topology))
    env = scenario.env
    if (spec.nodes or 1) > 1:
        env = env.apart(machine_of(scenario)).beside(like)
    return scenario.model_copy(update={"topology": spec, "profile": like.profile, "env": env})


def _some_talk(system: SystemFile, scenarios: Sequence[Scenario]) -> bool:
    """Whether some GPUs reach each other without the host: those behind one PCIe switch, or all of a small call."""
    asked = {(nodes_of(scenario.topology), scenario.ranks) for scenario in scenarios}
    communicators = [communicator(system, *nodes_and_ranks) for nodes_and_ranks in asked]
    by_switch = "pcie_switch" in system.devices
    return any(not staged(comm) or (by_switch and comm.p2p_level not in ("LOC", "NVL")) for comm in communicators)


def _without_p2p(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"env": scenario.env.without_p2p()})


def _has(system: SystemFile, kind: str) -> bool:
    return any(link.kind == kind for link in system.links)
