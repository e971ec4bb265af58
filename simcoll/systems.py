"""Systems and fabrics by name: from what a scenario says under `topology` to a `Topology`.

`TopologySpec` holds that key, and what a topology file may hold as well. `SystemFile` is the other kind of topology
file, devices and links: the shipped systems are such files, and one's own have the same format. In these files
bandwidths are of one direction and patterns are those of a shell (`gpu[01]`, `nic*`).

Quantities stay texts in the models, as they were written, and are read when a topology is built.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import networkx as nx
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, StrictBool, StrictInt, Tag, model_validator

from simcoll import config, fabrics, units
from simcoll.config import Model, Node
from simcoll.errors import Diagnostic, InputError, did_you_mean
from simcoll.fabrics import FABRICS, Plan, Shape
from simcoll.routing import POLICIES, Policy
from simcoll.topology import Link, Topology


def _quantity(kind: units.Kind, least: int = 0) -> BeforeValidator:
    def check(value: object) -> object:
        if units.parse_exact(value, kind) < least:
            raise ValueError(f"{value!r} is nothing; write what the link carries, or leave the link out")
        return value

    return BeforeValidator(check)


def _one_of(what: str, names: Callable[[], Iterable[str]]) -> BeforeValidator:
    def check(value: object) -> object:
        if value not in (known := list(names())):
            raise ValueError(f"{value!r} is no {what}; {did_you_mean(str(value), known)}")
        return value

    return BeforeValidator(check)


def shipped_systems() -> dict[str, Path]:
    """Name and file of every shipped system, sorted."""
    return {path.stem: path for path in sorted(config.shipped("topologies").glob("*.yaml"))}


Bandwidth = Annotated[str, _quantity("bandwidth", least=1)]
Duration = Annotated[str, _quantity("duration")]
Count = Annotated[StrictInt, Field(ge=1)]
Routing = Annotated[Policy, _one_of("routing policy", lambda: POLICIES)]
Routes = Mapping[str, tuple[str, ...]]

# --- what a file of devices and links holds ---


class Cpu(Model):
    """The hosts' processors, as far as a library asks."""

    vendor: Literal["intel", "amd", "arm", "ibm"]
    model: str = ""


class Gpu(Model):
    """The GPUs, as far as a library asks."""

    vendor: Literal["nvidia", "amd"] = "nvidia"
    model: str
    generation: str
    compute_capability: int | None = None


class Nic(Model):
    """The NICs: line rate, latency of a link to a switch, latency of a link between two switches."""

    model: str = ""
    rate: Bandwidth
    latency: Duration
    trunk_latency: Duration


class Device(Model):
    """A device given by name."""

    name: str
    kind: str
    node: Annotated[StrictInt, Field(ge=0)] | None = None
    in_network: StrictBool = False


class LinkRule(Model):
    """Links between all devices that `from` and all that `to` matches, or between `pairs`; `to: self` is memory."""

    model_config = ConfigDict(populate_by_name=True)

    from_: Annotated[str | None, Field(alias="from")] = None
    to: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    bandwidth: Bandwidth
    latency: Duration
    kind: str = "link"
    oneway: StrictBool = False

    @model_validator(mode="after")
    def _says_between_what(self) -> LinkRule:
        if bool(self.pairs) == bool(self.from_) or bool(self.from_) != bool(self.to):
            raise ValueError("a link is either 'from' and 'to' or 'pairs'; write e.g. from: gpu*, to: nvswitch0")
        return self


class SystemFile(Model):
    """Devices and links. Devices that are counted by kind make a machine, of which `nodes` makes a cluster."""

    name: str
    description: str = ""
    cpu: Cpu | None = None
    gpu: Gpu | None = None
    nic: Nic | None = None
    devices: Annotated[
        Annotated[dict[str, Count], Tag("<counts>")] | Annotated[tuple[Device, ...], Tag("<list>")],
        Discriminator(lambda value: "<counts>" if isinstance(value, dict) else "<list>"),
    ]
    links: tuple[LinkRule, ...]
    in_network: tuple[str, ...] = ()
    routing: Routing | None = None
    routes: Routes = Field(default_factory=dict)


# --- what a scenario says ---


class Spread(Model):
    """A bandwidth drawn for each link: uniform within ± `spread` around `value`."""

    value: Bandwidth
    spread: Annotated[str, _quantity("share")]

    @model_validator(mode="after")
    def _leaves_something(self) -> Spread:
        if units.parse_exact(self.spread, "share") >= 1:
            raise ValueError(f"a spread of {self.spread!r} leaves links without bandwidth; stay below '100 %'")
        return self


class Cable(Model):
    """What the cables of a fabric are."""

    bandwidth: Annotated[
        Annotated[Bandwidth, Tag("<fixed>")] | Annotated[Spread, Tag("<drawn>")],
        Discriminator(lambda value: "<drawn>" if isinstance(value, dict | Spread) else "<fixed>"),
    ]
    latency: Duration

    @property
    def link(self) -> Link:
        """Nominally, without the spread."""
        value = self.bandwidth.value if isinstance(self.bandwidth, Spread) else self.bandwidth
        return Link(units.parse(value, "bandwidth"), units.parse(self.latency, "duration"), "cable")


class Override(Model):
    """What is different about some links; a bandwidth of 0 takes them down."""

    bandwidth: Annotated[str, _quantity("bandwidth")] | None = None
    latency: Duration | None = None

    def changed(self, link: Link) -> Link:
        """The link with what is given here."""
        bandwidth = link.bandwidth if self.bandwidth is None else units.parse(self.bandwidth, "bandwidth")
        latency = link.latency if self.latency is None else units.parse(self.latency, "duration")
        return Link(bandwidth, latency, link.kind)


class TopologySpec(Model):
    """The key `topology`: a shipped system, a topology file, or a fabric of bare hosts."""

    system: Annotated[str, _one_of("shipped system", shipped_systems)] | None = None
    nodes: Count | None = None
    fabric: Annotated[str, _one_of("fabric", lambda: FABRICS)] | None = None
    hosts: Count | None = None
    link: Cable | None = None
    links: dict[str, Override] = Field(default_factory=dict)
    levels: Literal[2, 3] | None = None
    hosts_per_leaf: Count | None = None
    nodes_per_leaf: Count | None = None
    leaves_per_pod: Count | None = None
    oversubscription: Annotated[float, Field(ge=1, strict=True, allow_inf_nan=False)] | None = None
    spines: Count | None = None
    dims: Annotated[tuple[Count, ...], Field(min_length=2, max_length=3)] | None = None
    routing: Routing | None = None
    routes: Routes = Field(default_factory=dict)
    file: str | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> TopologySpec:
        if self.file is None:
            _check(self, self.system is not None)
        elif self.system is not None:
            raise ValueError("both 'system' and 'file'; keep one of them")
        return self

    @property
    def title(self) -> str:
        """What results call it."""
        name = self.system or (Path(self.file).stem if self.file else None)
        if name is None or self.fabric in (None, "rail-optimised"):
            return name or str(self.fabric)
        return f"{name}/{self.fabric}"


_GOES_WITH: Final = {
    "levels": ("fat-tree",),
    "hosts_per_leaf": ("fat-tree",),
    "nodes_per_leaf": ("rail-optimised", "fat-tree"),
    "leaves_per_pod": ("fat-tree",),
    "oversubscription": ("fat-tree", "rail-optimised"),
    "spines": ("fat-tree", "rail-optimised"),
    "dims": ("torus",),
}


def _check(spec: TopologySpec, machine: bool) -> None:
    """Raise ValueError for keys that contradict each other; `machine`: a system or a file of devices is joined."""
    fabric = spec.fabric or ("rail-optimised" if machine else None)
    if fabric is None:
        raise ValueError(
            "neither 'system' nor 'fabric'; write e.g. system: hgx-h100, or fabric: single-switch with hosts"
        )
    for key, wanted in _GOES_WITH.items():
        if getattr(spec, key) is not None and fabric not in wanted:
            raise ValueError(f"{key!r} goes with the fabric {' or '.join(wanted)}, not with {fabric}; leave it out")
    if fabric == "torus" and spec.dims is None:
        raise ValueError("a torus without 'dims'; add e.g. dims: [4, 4]")
    (_check_cluster if machine else _check_hosts)(spec, fabric)


def _check_cluster(spec: TopologySpec, fabric: str) -> None:
    if spec.hosts_per_leaf is not None:
        raise ValueError("'hosts_per_leaf' goes with a fabric of bare hosts; write nodes_per_leaf")
    if fabric in fabrics.DIRECT and spec.link is None and (spec.nodes or 1) > 1:
        raise ValueError(f"a {fabric} of nodes without 'link'; add link: {{bandwidth: 50 GB/s, latency: 1 us}}")
    if spec.link is not None and isinstance(spec.link.bandwidth, Spread):
        raise ValueError("a spread goes with a fabric of bare hosts; change single links by links")
    if spec.dims is not None and _product(spec.dims) != (spec.nodes or 1):
        raise ValueError(
            f"dims {list(spec.dims)} make {_product(spec.dims)} nodes, not {spec.nodes or 1}; let them agree"
        )


def _check_hosts(spec: TopologySpec, fabric: str) -> None:
    for key in ("nodes", "nodes_per_leaf"):
        if getattr(spec, key) is not None:
            raise ValueError(f"{key!r} goes with a system; write {key.replace('nodes', 'hosts')}")
    if fabric == "rail-optimised":
        raise ValueError("bare hosts have no rails; choose another fabric, or name a system")
    if spec.hosts is None and spec.dims is None:
        raise ValueError(f"a {fabric} without 'hosts'; add e.g. hosts: 8")
    if spec.link is None:
        raise ValueError(f"a {fabric} of bare hosts without 'link'; add link: {{bandwidth: 50 GB/s, latency: 0.5 us}}")
    if spec.dims is not None and spec.hosts not in (None, _product(spec.dims)):
        raise ValueError(f"dims {list(spec.dims)} make {_product(spec.dims)} hosts, not {spec.hosts}; let them agree")


def _product(numbers: Iterable[int]) -> int:
    return functools.reduce(lambda a, b: a * b, numbers, 1)


# --- building ---


class Machine(NamedTuple):
    """A file of devices and links, with the places of its values."""

    file: SystemFile
    tree: Node


def load_system(name: str) -> SystemFile:
    """What the file of a shipped system says."""
    return _machine(config.read(shipped_systems()[name])).file


def _machine(tree: Node) -> Machine:
    return Machine(config.validate(SystemFile, [tree])[0], tree)


def build(spec: TopologySpec, *, seed: int = 0) -> Topology:
    """The topology that `spec` describes; unequal links are drawn from `seed`. Raises InputError."""
    title, machine = spec.title, None
    if spec.system is not None:
        machine = _machine(config.read(shipped_systems()[spec.system]))
    elif spec.file is not None:
        spec, machine = _read_file(spec)
    plan, routing, routes = _cluster(spec, machine) if machine else _hosts(spec)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.graph["dims"] = spec.dims or ()
    graph.add_nodes_from(plan.devices)
    graph.add_edges_from((u, v, {"link": link}) for u, v, link in plan.links)
    if spec.link is not None and isinstance(spec.link.bandwidth, Spread):
        _draw(graph, units.parse_exact(spec.link.bandwidth.spread, "share"), random.Random(seed))
    _override(graph, spec.links)
    return Topology(graph, title, spec.routing or routing, {**routes, **spec.routes})


def _read_file(spec: TopologySpec) -> tuple[TopologySpec, Machine | None]:
    """A topology file: devices and links, or the keys of a scenario's `topology`, which the scenario's override."""
    path = str(spec.file)
    tree = config.read(Path(path))
    given = spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={"file"})
    if tree.get("devices") is not None:
        try:
            _check(spec, machine=True)
        except ValueError as error:
            what, _, cure = str(error).partition("; ")
            raise InputError(f"topology: {what}", cure) from None
        return spec, _machine(tree)
    if tree.get("file") is not None:
        raise InputError(f"{path}: names another topology file", "name that one in the scenario")
    over = config.parse(config.dump(given), "topology")
    merged = Node({**(tree.value or {}), **over.value}, tree.place, {**tree.keys, **over.keys})
    found = config.validate(TopologySpec, [merged])[0]
    return found, _machine(config.read(shipped_systems()[found.system])) if found.system else None


Built = tuple[Plan, Policy, dict[str, Sequence[str]]]  # … how it is routed, and the explicit routes


def _hosts(spec: TopologySpec) -> Built:
    """A fabric of bare hosts, each of them a node."""
    assert spec.link is not None and spec.fabric is not None
    hosts = spec.hosts or _product(spec.dims or ())
    plan = Plan([(f"host{i}", {"kind": "host", "node": i}) for i in range(hosts)])
    cable = spec.link.link
    FABRICS[spec.fabric](plan, [[name] for name, _ in plan.devices], _shape(spec, cable, cable.latency))
    return plan, "shortest" if spec.fabric in fabrics.DIRECT else "ecmp", {}


def _shape(spec: TopologySpec, cable: Link, trunk_latency: int) -> Shape:
    per_leaf = spec.nodes_per_leaf or spec.hosts_per_leaf or (4 if spec.fabric == "fat-tree" else 32)
    return Shape(
        cable,
        trunk_latency,
        per_leaf=per_leaf,
        levels=spec.levels or 2,
        leaves_per_pod=spec.leaves_per_pod or 4,
        oversubscription=Fraction(str(spec.oversubscription or 1)),
        spines=spec.spines or 1,
        dims=spec.dims or (),
    )


def _cluster(spec: TopologySpec, machine: Machine) -> Built:
    """One machine, or `nodes` of them joined by a fabric."""
    file, nodes = machine.file, spec.nodes or 1
    template = _template(machine, spec.hosts)
    if isinstance(file.devices, tuple):
        if nodes > 1:
            raise InputError(f"{file.name} lists its devices by name and is no machine to multiply", "leave out nodes")
        return template, file.routing or "shortest", dict(file.routes)
    plan, routes = Plan(), dict[str, Sequence[str]]()
    for i in range(nodes):
        name = f"node{i}.".__add__
        plan.devices += ((name(device), {**data, "node": i}) for device, data in template.devices)
        plan.links += ((name(u), name(v), link) for u, v, link in template.links)
        routes |= {_renamed(pair, name): [name(d) for d in way] for pair, way in file.routes.items()}
    if nodes > 1:
        _join(plan, spec, file, nodes)
    return plan, file.routing or ("rails" if nodes > 1 else "shortest"), routes


def _renamed(pair: str, name: Callable[[str], str]) -> str:
    src, _, dst = pair.partition("->")
    return f"{name(src.strip())}->{name(dst.strip())}"


def _join(plan: Plan, spec: TopologySpec, file: SystemFile, nodes: int) -> None:
    """Plug the NICs of all nodes into a fabric: into switches, or into a router a node."""
    nics: list[list[str]] = [[] for _ in range(nodes)]
    for device, data in plan.devices:
        if data["kind"] == "nic":
            nics[data["node"]].append(device)
    if file.nic is None or not nics[0]:
        raise InputError(f"{file.name} has no NICs, so its nodes cannot be joined", "write nodes: 1")
    port = Link(units.parse(file.nic.rate, "bandwidth"), units.parse(file.nic.latency, "duration"), "cable")
    trunk_latency = units.parse(file.nic.trunk_latency, "duration")
    fabric = spec.fabric or "rail-optimised"
    if fabric in fabrics.SWITCHED:
        FABRICS[fabric](plan, nics, _shape(spec, spec.link.link if spec.link else port, trunk_latency))
        return
    assert spec.link is not None
    routers = [[plan.switch(f"node{i}.router0", 1)] for i in range(nodes)]
    for (router,), ports in zip(routers, nics, strict=True):
        for nic in ports:
            plan.cable(nic, router, port)
    FABRICS[fabric](plan, routers, _shape(spec, replace(spec.link.link, kind="trunk"), trunk_latency))


def _template(machine: Machine, hosts: int | None) -> Plan:
    """Devices and links of a file, by the names it gives them."""
    file, tree = machine
    plan = Plan(list(_devices(file, hosts)))
    names = [name for name, _ in plan.devices]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{tree.place.source}: device {twice[0]!r} stands twice", "name it once")
    kinds: dict[tuple[str, str], int] = {}
    for i, rule in enumerate(file.links):
        link = Link(units.parse(rule.bandwidth, "bandwidth"), units.parse(rule.latency, "duration"), rule.kind)
        try:
            for u, v in dict.fromkeys(_pairs(rule, names)):
                if kinds.setdefault((u, v), i) != i:
                    raise ValueError(f"{u}->{v} has a link already; join the two into one with their summed bandwidth")
                plan.links.append((u, v, link))
        except ValueError as error:
            what, _, cure = str(error).partition("; ")
            links = tree.get("links")
            place = links.value[i].place if links else tree.place
            raise InputError([Diagnostic(what, cure, f"links.{i}", place)]) from None
    return plan


def _devices(file: SystemFile, hosts: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(file.devices, tuple):
        alone = all(device.node is None for device in file.devices)
        gpus = any(device.kind == "gpu" for device in file.devices)
        own = itertools.count()
        for device in file.devices:
            node = device.node
            if alone and gpus:
                node = 0
            elif alone and device.kind == "host":
                node = next(own)
            marked = device.in_network or device.name in file.in_network
            yield device.name, {"kind": device.kind, "node": node, "in_network": marked}
        return
    if hosts is not None and "host" not in file.devices:
        raise InputError("topology: 'hosts' goes with a fabric of bare hosts", "write nodes")
    counts = {**file.devices, **({"host": hosts} if hosts else {})}
    for kind, count in counts.items():
        for name in (f"{kind}{i}" for i in range(count)):
            yield name, {"kind": kind, **({"in_network": True} if name in file.in_network else {})}


def _pairs(rule: LinkRule, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for u, v in rule.pairs or _matched(str(rule.from_), str(rule.to), names):
        for name in (u, v):
            if name not in names:
                raise ValueError(f"there is no device {name!r}; {did_you_mean(name, names)}")
        yield u, v
        if not rule.oneway:
            yield v, u


def _matched(left: str, right: str, names: Sequence[str]) -> list[tuple[str, str]]:
    tails = _matching(left, names)
    if right == "self":
        return [(name, name) for name in tails]
    return [(u, v) for u in tails for v in _matching(right, names) if u != v]


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    found: list[str] = fnmatch.filter(names, pattern)
    if not found:
        raise ValueError(f"{pattern!r} matches no device; {did_you_mean(pattern, names)}")
    return found


def _draw(graph: nx.DiGraph[str], spread: Fraction, rng: random.Random) -> None:
    """Unequal links: every link's bandwidth times 1 + U(−spread, spread), drawn in the order of link numbers."""
    for _, _, data in graph.edges(data=True):
        link: Link = data["link"]
        factor = 1 + rng.uniform(-float(spread), float(spread))
        data["link"] = replace(link, bandwidth=max(1, int(link.bandwidth * factor)))


def _override(graph: nx.DiGraph[str], overrides: Mapping[str, Override]) -> None:
    """Change single links; where several patterns match, the later one decides."""
    if not overrides:
        return
    names = {f"{u}->{v}": data for u, v, data in graph.edges(data=True)}
    for pattern, override in overrides.items():
        found = fnmatch.filter(names, pattern.replace(" ", ""))
        if not found:
            raise InputError([Diagnostic("matches no link", did_you_mean(pattern, names), f"topology.links.{pattern}")])
        for name in found:
            names[name]["link"] = override.changed(names[name]["link"])


# --- telling ---


def describe(topology: Topology) -> dict[str, Any]:
    """What `simcoll topology show` prints: devices by kind, links by kind, ranks, bisection bandwidth, routing."""
    links: dict[tuple[str, int, int], list[str]] = {}
    for u, v, link in topology.graph.edges.data("link"):
        links.setdefault((link.kind, link.bandwidth, link.latency), []).append(f"{u}->{v}")
    return {
        "name": topology.name,
        "nodes": topology.nodes,
        "ranks": list(topology.ranks),
        "agents": list(topology.agents),
        "routing": topology.routing,
        "devices": dict(Counter(topology.kinds.values())),
        "links": [
            {
                "kind": kind,
                "count": len(names),
                "bandwidth_GBps": bandwidth / 1e9,
                "latency_us": latency / 1e6,
                "names": names,
            }
            for (kind, bandwidth, latency), names in links.items()
        ],
        "bisection_GBps": topology.bisection_bandwidth() / 1e9,
    }
