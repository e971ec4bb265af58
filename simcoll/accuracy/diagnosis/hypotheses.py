"""List the hypotheses about a slow machine, each as a changed scenario or changed parameters to simulate.

A *family* is one explanation; its variants differ in one number, such as the share of bandwidth that a link has left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

from simcoll import units
from simcoll.formats.measured import gpu_names
from simcoll.nccl import environment, tuner
from simcoll.nccl.algorithm_names import COLLECTIVES, SCHEDULES, names
from simcoll.nccl.communicator import communicator
from simcoll.nccl.kernel_costs import KINDS
from simcoll.nccl.transports_between_nodes import Transport
from simcoll.nccl.transports_within_node import staged
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.placed_topology import machine_of, network_of
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import CABLE, CostSetting, LinkScale, Profile, load_network, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.names import PROTOCOLS, Protocol
from simcoll.topology.graph import Link
from simcoll.topology.machine_files import SystemFile, shipped_systems
from simcoll.topology.topology_builder import build, described, load_system, nodes_of
from simcoll.topology.topology_keys import Override
from simcoll.units import format_size

# Mean |log error| that each assumption costs a hypothesis: a free number has to gain 1.5 %, or the simpler hypothesis
# wins. A tenth of that is the cost of each halving of a rate: if both explain a table, 1/2 is likelier than 1/8.
PENALTY: Final = 0.015
HALVING: Final = PENALTY / 10
ANOTHER: Final = 3  # the rarity of hypotheses that this is another machine
T = TypeVar("T")
HostPacing = Literal["as measured", "adds", "paces"]  # see `Hypothesis.host`


@dataclass(frozen=True)
class Hypothesis:
    """One variant of an explanation: it changes a point's scenario and the costs.

    `value` tells variants of one `family` apart. `assumes` counts assumptions: one for a fault or a setting, and one
    for each number that is free to choose. Slow links or GPUs keep the `share` of their rate. `launch` marks hypotheses
    about launches of calls, not about the machine, `pair` two faults at once, and `network` those about the way between
    nodes. `variables` are environment variables of which someone must have set one, or the hypothesis is false.

    `host` says how launches differ: by a constant as small as between sound ways of measuring (*as measured*), by any
    constant (*adds*), or because the host starts at most one launch in a fixed time, whatever the GPUs do (*paces*).
    """

    family: str
    text: str
    value: str = ""
    assumes: int = 1
    share: float = 1.0
    launch: bool = False
    network: bool = False
    pair: bool = False
    variables: tuple[str, ...] = ()
    host: HostPacing = "as measured"
    scenario: Callable[[Scenario], Scenario] = lambda scenario: scenario
    setting: Callable[[CostSetting], CostSetting] = lambda setting: setting

    @property
    def penalty(self) -> float:
        """The addend to the error, for each assumption and each halving of a rate: simple hypotheses shall win."""
        return PENALTY * self.assumes - HALVING * math.log2(self.share)

    @property
    def rarity(self) -> int:
        """How rare this is on the machines that people ask about, from 0 on: of explanations that a table does not tell
        apart, the rarest come last. Most faults of several nodes are of their network; few people set variables of
        NCCL; that it is another machine is believed if nothing else explains its times."""
        return 0 if self.network else ANOTHER if self.assumes > 2 else 2 if self.variables else 1

    @property
    def or_one(self) -> Hypothesis:
        """This hypothesis, reworded for a table that one slow link explains as well as if all links were slow."""
        return replace(self, value=f"one or {self.value}") if self.value.startswith("all") else self

    def beside(self, other: Hypothesis) -> Hypothesis:
        """Return the hypothesis that both this one and `other` are true, with the assumptions of both."""
        return replace(
            self,
            family=f"{self.family} with {other.family}",
            text=f"{self.text}; and {other.text}",
            assumes=self.assumes + other.assumes,
            pair=True,
            scenario=_both(self.scenario, other.scenario, HEALTHY.scenario),
            setting=_both(self.setting, other.setting, HEALTHY.setting),
        )


def _both(first: Callable[[T], T], second: Callable[[T], T], none: Callable[[T], T]) -> Callable[[T], T]:
    """Return a change that makes both changes. If one is `none`, return the other, under which times are cached."""
    if none in (first, second):
        return second if first is none else first
    return lambda value: second(first(value))


HEALTHY: Final = Hypothesis("healthy", "what this hardware should give", assumes=0)


# Shares of its rate that a slow link or GPU keeps: 20 to a decade (Renard), so that every share is within 6 % of one.
# Lost lanes leave a half, a quarter or an eighth.
SHARES: Final = (
    0.9, 0.8, 0.71, 0.63, 0.56, 0.5, 0.45, 0.4, 0.36, 0.32, 0.28, 0.25, 0.22, 0.2, 0.18, 0.16, 0.14, 0.125, 0.11, 0.1,
)  # fmt: skip
# A network may be another one than that of the named machine: 10 or 25 Gb/s, where each GPU should have 400.
SHARES_OF_NETWORK: Final = (*SHARES, 0.09, 0.08, 0.071, 0.063, 0.056, 0.05, 0.045, 0.04, 0.036, 0.032)
ONE_PROCESS: Final = Launch(gpus_per_process="all")
Edge = tuple[str, str, Link]
P2P: Final[tuple[Protocol, ...]] = ("LL", "Simple")  # NCCL's protocols for point-to-point transfers, without a tuner


def candidates(
    scenarios: Sequence[Scenario],
    kinds: Sequence[str],
    gpus: Sequence[str] = (),
    environment: frozenset[str] | None = None,
) -> list[Sequence[Hypothesis]]:
    """Return the families of hypotheses for points. `kinds` are the kinds of links on the points' routes. Their
    measured table names the `gpus`, and the variables of the `environment` (None: it does not show the environment).

    The healthy machine comes first. Variants of a family are in order of their distance from healthy. If two families
    explain a table equally well, the earlier one is reported.
    """
    families = _families(scenarios, kinds, gpus)
    if environment is None:
        return families
    return [each for each in families if not each[0].variables or environment.intersection(each[0].variables)]


def _families(scenarios: Sequence[Scenario], kinds: Sequence[str], gpus: Sequence[str]) -> list[Sequence[Hypothesis]]:
    machines = {(spec.title, spec.file): spec for spec in (scenario.topology for scenario in scenarios)}
    system = described(next(iter(machines.values()))) if len(machines) == 1 else None
    of_nics, links = network_of(system).links, _first_links(scenarios)
    nodes = max(nodes_of(scenario.topology) for scenario in scenarios)
    reduces = system is not None and bool(system.in_network) and nodes == 1
    single = [HEALTHY, *_by_the_host(scenarios), *_launched_otherwise(scenarios, reduces)]
    nics = system.counts.get("nic", 0) if system else 0
    direct = system is not None and (_has(system, "nvlink") or _has(system, "xgmi"))  # then PCIe leads only to NICs
    several: list[Sequence[Hypothesis]] = [
        variants
        for kind in sorted(kinds, key=(CABLE, "trunk").__contains__, reverse=True)  # between nodes first
        if not (kind == "pcie" and direct and CABLE in kinds and nics)
        for variants in _slow(kind, links.get(kind, {}), of_nics.get(kind), kind == CABLE and nics > 0)
    ]
    tunable = any(executor(scenario).tunable for scenario in scenarios)
    if not tunable:
        single += _switched_off(scenarios)
        several += [list(_slow_gpus()), *([each] for each in _other_sizes(scenarios, nodes))]
    by_which = [*_fewer_nics(nics)] if CABLE in kinds and not tunable else []
    how = [*_network(network_of(system))] if system and CABLE in kinds else []
    # Sockets use other interfaces than RDMA, often one only, so each way to the network is also tried with fewer NICs.
    single += [*by_which, *how, *(way.beside(nics_left) for way in how for nics_left in by_which)]
    if system and nodes == 1 and "nvlink" in kinds:
        single += _pcie(system)
    if system and system.nccl and _some_talk(system, scenarios):
        text = (
            "GPUs do not talk directly, but through the host's memory: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, a virtual "
            "machine, ACS"
        )
        single.append(Hypothesis("p2p off", text, scenario=_without_p2p))
    shipped = all(not scenario.topology.file for scenario in scenarios)  # who gives a file says which machine it is
    elsewhere = list(_elsewhere(system, gpus)) if system and shipped else []
    return [*([hypothesis] for hypothesis in single), *several, *([hypothesis] for hypothesis in elsewhere)]


def _by_the_host(scenarios: Sequence[Scenario]) -> Iterator[Hypothesis]:
    """Yield hypotheses that the host launches at another rate than in the profile. A faster host is only possible if
    the table has processes that launch for several GPUs."""
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
    """Return the scenario with one process for each GPU, if one process launches for several GPUs; else as it is."""
    if not (scenario.launch.paced and scenario.launch.way):
        return scenario
    return scenario.model_copy(update={"launch": scenario.launch.model_copy(update={"gpus_per_process": None})})


def _launched_otherwise(scenarios: Sequence[Scenario], reduces: bool) -> Iterator[Hypothesis]:
    """Yield hypotheses that calls were launched in another way, if the table does not tell and the profiles know the
    costs. `reduces`: the GPUs share a switch that reduces data, so registered buffers matter."""
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


def _scaled(kind: str, share: float, served: LinkScale | None) -> Callable[[CostSetting], CostSetting]:
    """Return a change that lowers links of a kind to a `share` of their bandwidth.

    `served` is the NIC profile's scale for this kind, used if the point's own profile has none.
    """

    def changed(setting: CostSetting) -> CostSetting:
        link = setting.links.get(kind, served or LinkScale())
        slower = LinkScale(efficiency=link.efficiency * share, latency=link.latency)
        return replace(setting, links={**setting.links, kind: slower})

    return changed


def _slow(kind: str, links: Mapping[str, Edge], served: LinkScale | None, of_nics: bool) -> list[list[Hypothesis]]:
    """Return hypotheses that links of a kind are slow: all, one, or one in one direction, as when lanes fail. `links`
    gives the one slow link for each topology.

    Between nodes a NIC, its cable and its PCIe links carry the same bytes one after another, so it is one hypothesis
    (`of_nics`) that any of them is slow.
    """
    family, text = f"slow {kind}", f"links of the kind {kind} slower than they should be"
    if of_nics:
        family = "slow nic"
        text = (
            "the way to the network is slow, of a GPU or of all: NIC, port, cable, or PCIe (its width; ACS or ATS in a "
            "virtual machine); times cannot tell which"
        )

    def variant(which: str, share: float, **changed: Any) -> Hypothesis:
        network = kind in (CABLE, "trunk")
        return Hypothesis(family, text, f"{which} at {share:.0%}", 2, share, network=network, **changed)

    ways = ((True, "one"),) if kind == CABLE else ((True, "one"), (False, "one way of one"))
    return [
        [
            variant("all", share, setting=_scaled(kind, share, served))
            for share in (SHARES_OF_NETWORK if of_nics else SHARES)
        ],
        *(
            [
                variant(which, share, scenario=functools.partial(_with_slow_link, links=links, share=share, back=back))
                for share in SHARES[1::2]  # each share is costly: points are bound anew
            ]
            for back, which in ways
        ),
    ]


def _with_slow_link(scenario: Scenario, links: Mapping[str, Edge], share: float, back: bool) -> Scenario:
    """Return the scenario with one slow link (of its topology in `links`): in one direction, and also `back` if set. If
    `links` lacks the topology, e.g. that of a single node, the scenario does not change."""
    spec = scenario.topology
    if (edge := links.get(spec.model_dump_json())) is None:
        return scenario
    u, v, link = edge
    slower = Override(bandwidth=f"{max(1, round(link.bandwidth * share))} B/s")
    names = (f"{u}->{v}", f"{v}->{u}") if back else (f"{u}->{v}",)
    slowed = spec.model_copy(update={"links": {**spec.links, **dict.fromkeys(names, slower)}})
    return scenario if slowed == spec else scenario.model_copy(update={"topology": slowed})


def _first_links(scenarios: Sequence[Scenario]) -> dict[str, dict[str, Edge]]:
    """Return the first link of each kind in each topology, as the devices at its ends: kind → topology → ends."""
    topologies = {scenario.topology.model_dump_json(): scenario.topology for scenario in scenarios}
    found: dict[str, dict[str, Edge]] = {}
    for text, spec in topologies.items():
        for edge in build(spec).wiring:
            found.setdefault(edge[2].kind, {}).setdefault(text, edge)
    return found


def _slow_gpus() -> Iterator[Hypothesis]:
    """Yield hypotheses of slower kernels on links of full bandwidth."""
    text = "kernels slower than they should be: a GPU with low clocks, or one that others use"
    for share in SHARES:
        slower = functools.partial(_with_slower_blocks, share=share)
        yield Hypothesis("slow gpu", text, f"{share:.0%} of their speed", 2, share, setting=slower)


def _with_slower_blocks(setting: CostSetting, share: float) -> CostSetting:
    """Return the setting with thread blocks at `share` of their speed."""
    if setting.kernels is None:
        return setting
    blocks: dict[str, Any] = {}
    for kind in KINDS:
        block = getattr(setting.kernels, kind)
        times = {name: round(getattr(block, name) / share) for name in ("start", "hop")}
        rates = {name: round(getattr(block, name) * share) for name in ("first", "rate")}
        blocks[kind] = block.model_copy(update={**times, **rates})
    return replace(setting, kernels=setting.kernels.model_copy(update=blocks))


def _network(network: Profile) -> Iterator[Hypothesis]:
    """Yield hypotheses that NICs are used wrongly: TCP instead of RDMA, or no GPUDirect."""
    if network.transport and network.transport.gpudirect:
        text = "TCP sockets in place of RDMA: NCCL_NET=Socket, NCCL_IB_DISABLE, or no plugin (profile: …+tcp)"
        yield Hypothesis("tcp", text, network=True, setting=_by_tcp)
        text = (
            "GPUDirect RDMA is off: data go through the host's memory; NCCL_NET_GDR_LEVEL, ACS, or no nvidia-peermem "
            "(env.NCCL_NET_GDR_LEVEL: LOC)"
        )
        off = functools.partial(_without_gpudirect, network=network)
        yield Hypothesis("gpudirect off", text, network=True, setting=off)


def _by_tcp(setting: CostSetting) -> CostSetting:
    tcp = load_network("tcp")
    return replace(setting, transport=tcp.transport, links={**setting.links, CABLE: tcp.links[CABLE]})


def _without_gpudirect(setting: CostSetting, network: Profile) -> CostSetting:
    """Return the costs under NCCL_NET_GDR_LEVEL=LOC (no GPUDirect), which the NICs' profile has."""
    return replace(setting, transport=(setting.transport or network.transport or Transport()).without_gpudirect())


def _pcie(system: SystemFile) -> Iterator[Hypothesis]:
    """Yield the hypothesis that GPUs use PCIe: a shipped system without NVLink whose PCIe rate is the nearest."""

    def rate(file: SystemFile) -> int:
        return max((units.parse(link.bandwidth, "bandwidth") for link in file.links if link.kind == "pcie"), default=0)

    without = [file for file in _others(system) if not _has(file, "nvlink") and not _has(file, "xgmi")]
    if rate(system) and without:
        like = min(without, key=lambda file: abs(rate(file) - rate(system)))
        text = f"PCIe in place of NVLink, as on {like.name}"
        yield Hypothesis("pcie", text, scenario=functools.partial(_swapped, like=like))


def _elsewhere(system: SystemFile, gpus: Sequence[str]) -> Iterator[Hypothesis]:
    """Yield the hypotheses that the machine is another shipped system, the most similar first. Systems with other GPUs
    than the table's `gpus` are left out."""
    possible = (file for file in _others(system) if not (file.gpu and gpu_names.ruled_out(gpus, file.gpu.model)))
    for file in sorted(possible, key=functools.partial(_differences, system)):
        text = f"it was measured on another machine, one like the shipped {file.name}"
        yield Hypothesis(f"like {file.name}", text, assumes=3, scenario=functools.partial(_swapped, like=file))


def _others(system: SystemFile) -> list[SystemFile]:
    """Return the shipped systems, except this one, that have a profile."""
    files = (file for file in map(load_system, shipped_systems()) if file.profile and not file.like)
    return [file for file in files if file.name != system.name]


def _differences(system: SystemFile, candidate: SystemFile) -> int:
    """Return in how many of these two systems differ: counts of devices, NIC rates, makers of GPUs."""
    pair = (system, candidate)
    counts = [{*file.counts.items()} for file in pair]
    rates = [file.nic.rate if file.nic else "" for file in pair]
    makers = [file.gpu.vendor if file.gpu else "" for file in pair]
    return len(counts[0] ^ counts[1]) + (rates[0] != rates[1]) + (makers[0] != makers[1])


def _swapped(scenario: Scenario, like: SystemFile) -> Scenario:
    """Return the scenario on equally many nodes of another system, with the variables that this system's NICs need."""
    spec = type(scenario.topology)(system=like.name, nodes=nodes_of(scenario.topology))
    env = scenario.env
    if (spec.nodes or 1) > 1:
        env = env.apart(machine_of(scenario)).beside(like)
    return scenario.model_copy(update={"topology": spec, "profile": like.profile, "env": env})


def _some_talk(system: SystemFile, scenarios: Sequence[Scenario]) -> bool:
    """Return whether some GPUs exchange data without the host: behind one PCIe switch, or all in a call of few GPUs."""
    asked = {(nodes_of(scenario.topology), scenario.ranks) for scenario in scenarios}
    communicators = [communicator(system, *nodes_and_ranks) for nodes_and_ranks in asked]
    by_switch = "pcie_switch" in system.devices
    return any(not staged(comm) or (by_switch and comm.p2p_level not in ("LOC", "NVL")) for comm in communicators)


def _without_p2p(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"env": scenario.env.without_p2p()})


def _has(system: SystemFile, kind: str) -> bool:
    return any(link.kind == kind for link in system.links)


# --- variables of NCCL that someone has set ---


def _switched_off(scenarios: Iterable[Scenario]) -> Iterator[Hypothesis]:
    """Yield hypotheses that settings such as NCCL_ALGO and NCCL_PROTO exclude algorithms or protocols of NCCL."""
    needs = {"NCCL_ALGO": ("NCCL_ALGO",), "NCCL_PROTO": ("NCCL_PROTO",)}  # by the end of the text
    settings = [
        ("nvls off", "^nvls,nvls_tree", "", "NVLS is not used: NCCL_NVLS_ENABLE=0, NCCL_ALGO, or no fabric manager")
    ]
    settings += [(f"no {name}", "", f"^{name}", f"the protocol {name} is not used: NCCL_PROTO") for name in PROTOCOLS]
    settings += [
        (f"only {name}", name, "", f"the algorithm {name} is used throughout: NCCL_ALGO") for name in ("ring", "tree")
    ]
    settings += [(f"only {name}", "", name, f"no other protocol than {name} is used: NCCL_PROTO") for name in PROTOCOLS]
    points, tables = list(scenarios), dict[tuple[object, ...], tuner.TunerTable]()
    for family, algo, proto, text in settings:
        changed = functools.partial(_left, algo=algo, proto=proto, tables=tables)
        if any(changed(point) is not point for point in points):
            needed = needs.get(text.rpartition(": ")[2], ())
            assumes = 2 if family.startswith("only") else 1
            yield Hypothesis(family, text, assumes=assumes, variables=needed, scenario=changed)
    text = "NVLS is used throughout, where NCCL or its provider's settings take rings and trees: NCCL_ALGO"
    yield Hypothesis("nvls on", text, assumes=2, variables=("NCCL_ALGO",), scenario=_by_nvls)


def _by_nvls(scenario: Scenario) -> Scenario:
    """Return the scenario with NVLS for all calls, whatever its own variables or those of its NICs say."""
    env = scenario.env.model_copy(update={"NCCL_NVLS_ENABLE": 1, "NCCL_ALGO": "NVLS,NVLSTree"})
    return scenario.model_copy(update={"env": env})


def _left(scenario: Scenario, algo: str, proto: str, tables: dict[tuple[object, ...], tuner.TunerTable]) -> Scenario:
    """Return the scenario with the algorithm and protocol that NCCL chooses under the variables `algo` and `proto`.

    Returns the scenario itself if the variables change nothing or leave no choice, or if it names an algorithm.
    `tables` caches the tuner's tables, which points share.
    """
    if scenario.algorithm != "auto" or scenario.protocol not in ("none", "auto"):
        return scenario
    collective = next((name for name in COLLECTIVES if name == scenario.collective), None)
    if collective is None:  # a collective of point-to-point transfers, which NCCL_ALGO does not affect
        left = [name for name in P2P if environment.selection(None, proto).allows("all_reduce", "ring", name)]
        return scenario.model_copy(update={"protocol": left[0]}) if len(left) == 1 else scenario
    version = executor(scenario).release(scenario)
    spec = scenario.topology
    in_switch = tuner.switch_reduces(scenario.dtype, scenario.op)
    asked = spec.title, spec.file, nodes_of(spec), scenario.ranks

    def choice(*filters: str) -> tuner.TunerChoice | None:
        key = *asked, version, in_switch, *filters
        if key not in tables:
            comm = communicator(described(spec) or load_system(spec.title), *asked[2:])
            tables[key] = tuner.table(comm, version, environment.selection(*filters), in_switch)
        return tables[key].choose(collective, scenario.nbytes)

    usual, filtered = choice("", ""), choice(algo, proto)
    if usual is None or filtered is None:
        return scenario
    if (filtered.algorithm, filtered.protocol) == (usual.algorithm, usual.protocol):
        return scenario
    if filtered.algorithm not in names(collective):  # this algorithm is not modelled
        return scenario
    return scenario.model_copy(update={"algorithm": filtered.algorithm, "protocol": filtered.protocol})


def _other_sizes(scenarios: Sequence[Scenario], nodes: int) -> Iterator[Hypothesis]:
    """Yield hypotheses of other sizes of buffers and chunks, other numbers of channels, and PXN off (senders use their
    own NICs), if points can show them. Each size is tried, as times do not grow evenly with a size."""
    messages = nodes > 1 and any(("p2p", scenario.collective) in SCHEDULES for scenario in scenarios)
    if messages:
        text = "no GPU sends by the NIC of another: NCCL_PXN_DISABLE"
        yield Hypothesis("pxn off", text, variables=("NCCL_PXN_DISABLE",), scenario=_set(NCCL_PXN_DISABLE=1))
        text = "chunks of messages between nodes have another size: NCCL_P2P_NET_CHUNKSIZE"
        for size in (64 << 10, 32 << 10, 16 << 10, 256 << 10, 512 << 10):  # usual settings; NCCL's default is 128 KiB
            yield _sized("chunk size", text, "NCCL_P2P_NET_CHUNKSIZE", size)
    for size in (2 << 20, 1 << 20, 512 << 10, 256 << 10, 8 << 20, 16 << 20):  # usual settings; NCCL's default is 4 MiB
        yield _sized("buffer size", "buffers of Simple have another size: NCCL_BUFFSIZE", "NCCL_BUFFSIZE", size)
    yield from _channels()


def _channels() -> Iterator[Hypothesis]:
    """Yield hypotheses that a user set the number of channels, which NCCL's choices depend on: each is tried."""
    for limit, counts in (("MAX", (1, 2, 4, 8, 16)), ("MIN", (16, 32))):
        variable = f"NCCL_{limit}_NCHANNELS"
        text = f"NCCL takes another number of channels: {variable}, NCCL_{limit}_CTAS"
        for count in counts:
            value = f"at {'most' if limit == 'MAX' else 'least'} {count}"
            named = variable, f"NCCL_{limit}_CTAS"
            yield Hypothesis("channels", text, value, 2, variables=named, scenario=_set(**{variable: count}))


def _fewer_nics(nics: int) -> Iterator[Hypothesis]:
    """Yield hypotheses that some of a node's `nics` NICs are unused. NCCL takes no more channels than the node with the
    fewest NICs has, so it does not matter how many nodes lack NICs."""
    if nics > 1:
        text = f"one of {nics} NICs of a node is not used: it is down, or NCCL_IB_HCA leaves it out"
        yield Hypothesis("nic missing", text, network=True, scenario=_set(NCCL_IB_HCA=f"^=mlx5_{nics - 1}"))
    some = f"of {nics} NICs of a node are used: NCCL_IB_HCA, NCCL_SOCKET_IFNAME, or what a container sees"
    for used in (nics // 2, nics // 4):
        if used > 1:  # the NICs of one socket, which then serve the other socket's GPUs too, or some of each socket
            for value, numbers in (("", range(used)), ("spread evenly", range(0, nics, nics // used))):
                listed = "=" + ",".join(f"mlx5_{number}" for number in numbers)
                left = _set(NCCL_IB_HCA=listed)
                yield Hypothesis(f"{used} nics", f"only {used} {some}", value, network=True, scenario=left)
    if nics > 2:
        text = f"only one {some.replace('are', 'is')}"
        yield Hypothesis("one nic", text, network=True, scenario=_set(NCCL_IB_HCA="=mlx5_0"))


def _sized(family: str, text: str, variable: str, size: int) -> Hypothesis:
    return Hypothesis(family, text, format_size(size), 2, variables=(variable,), scenario=_set(**{variable: size}))


def _set(**values: int | str) -> Callable[[Scenario], Scenario]:
    """Return a change that sets environment variables in a scenario that sets none of them."""

    def changed(scenario: Scenario) -> Scenario:
        if not scenario.env.given.keys().isdisjoint(values):
            return scenario
        return scenario.model_copy(update={"env": scenario.env.model_copy(update=values)})

    return changed
