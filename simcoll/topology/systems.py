"""Systems and fabrics by name: from what a scenario says under `topology` to a `Topology`.

`TopologySpec` holds that key, and what a topology file may hold as well, unless it is one of devices and links
(`machine_files`).
"""

import fnmatch
import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from simcoll import units
from simcoll.config import yaml_tree
from simcoll.config.machine_memory import check_memory
from simcoll.config.name_field import OneOf
from simcoll.config.quantity_field import Count
from simcoll.config.yaml_tree import Model, Node
from simcoll.errors import Diagnostic, InputError, Place, did_you_mean
from simcoll.topology import fabrics
from simcoll.topology.bisection import bisection_bandwidth
from simcoll.topology.fabrics import FABRICS, FabricPlan, FabricShape
from simcoll.topology.graph import Topology
from simcoll.topology.machine_files import (
    Bandwidth,
    DurationText,
    FabricRouting,
    MachineFile,
    RouteTable,
    SystemFile,
    quantity,
    read_machine,
    template,
)
from simcoll.topology.routing import RoutingPolicy
from simcoll.topology.wiring import Link, Wiring

# Of memory, for each link: 2,300 while a call on thousands of nodes is predicted, 10,000 while it is explained.
LINK_BYTES: Final = 5000


@functools.cache
def shipped_systems() -> dict[str, Path]:
    """Name and file of every shipped system, sorted."""
    return dict(sorted((path.stem, path) for path in yaml_tree.shipped("topologies").glob("*.yaml")))


# --- what a scenario says ---


class Spread(Model):
    """A bandwidth drawn for each link: uniform within ± `spread` around `value`."""

    value: Bandwidth
    """Mean bandwidth."""
    spread: Annotated[str, quantity("share")]
    """Greatest distance from the mean, as a share."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if units.parse_exact(self.spread, "share") >= 1:
            raise ValueError(f"a spread of {self.spread!r} leaves links without bandwidth; stay below '100 %'")
        return self


class Cable(Model):
    """The cables of a fabric."""

    bandwidth: Annotated[
        Annotated[Bandwidth, Tag("<fixed>")] | Annotated[Spread, Tag("<drawn>")],
        Discriminator(lambda value: "<drawn>" if isinstance(value, dict | Spread) else "<fixed>"),
    ]
    """Bandwidth of each direction."""
    latency: DurationText
    """Latency of each direction."""

    @property
    def link(self) -> Link:
        """Nominally, without the spread."""
        value = self.bandwidth.value if isinstance(self.bandwidth, Spread) else self.bandwidth
        return Link(units.parse(value, "bandwidth"), units.parse(self.latency, "duration"), "cable")


class Override(Model):
    """A change of some links; a bandwidth of 0 takes them down."""

    bandwidth: Annotated[str, quantity("bandwidth")] | None = None
    """Bandwidth instead; `0 B/s` takes the link down."""
    latency: DurationText | None = None
    """Latency instead."""

    def changed(self, link: Link) -> Link:
        """The link with what is given here."""
        bandwidth = link.bandwidth if self.bandwidth is None else units.parse(self.bandwidth, "bandwidth")
        latency = link.latency if self.latency is None else units.parse(self.latency, "duration")
        return Link(bandwidth, latency, link.kind)


class TopologySpec(Model):
    """The key `topology`: a shipped system, a topology file, or a fabric of bare hosts."""

    system: Annotated[str, OneOf("shipped system", shipped_systems)] | None = None
    """Name of a shipped system (`simcoll topology list`)."""
    nodes: Count | None = None
    """Nodes of the system. Default: 1."""
    fabric: Annotated[str, OneOf("fabric", lambda: FABRICS)] | None = None
    """Network that joins the nodes (default `rail-optimised`), or bare hosts."""
    hosts: Count | None = None
    """Number of bare hosts."""
    link: Cable | None = None
    """Cables of the fabric."""
    links: dict[str, Override] = Field(default_factory=dict)
    """Changes of single links by name; `*` and `?` match."""
    levels: Literal[2, 3] | None = None
    """Levels of a fat tree."""
    hosts_per_leaf: Count | None = None
    """Hosts of a leaf switch. Default: 4."""
    nodes_per_leaf: Count | None = None
    """Nodes of a leaf switch. Default: 4 in a fat tree, 32 on rails."""
    leaves_per_pod: Count | None = None
    """Leaf switches of a pod in a fat tree of 3 levels. Default: 4."""
    oversubscription: Annotated[float, Field(ge=1, strict=True, allow_inf_nan=False)] | None = None
    """How many times less a leaf switch can send up than its ports carry. Default: 1."""
    spines: Count | None = None
    """Spine switches. Default: 1."""
    dims: Annotated[tuple[Count, ...], Field(min_length=2, max_length=3)] | None = None
    """Sides of a torus, 2 or 3 of them."""
    routing: FabricRouting | None = None
    """`shortest` takes the shortest route (default inside a node and on direct fabrics). `ecmp` chooses among equal
    routes by a hash of the pair (default of switched hosts). `rails` goes over the NIC of the destination's rail
    (default of nodes). `own-nics` goes over the NIC of each end, from rail to rail where these differ.
    `adaptive`: switches spread each message over all equal routes, so that all spines are as one (fat trees and rails;
    else as by default)."""
    routes: RouteTable = Field(default_factory=dict)
    """Fixed routes: `{"node0.gpu0->node0.gpu5": [node0.gpu0, node0.gpu1, node0.gpu5]}`."""
    file: str | None = None
    """Path of a topology file."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.file is None:
            _check(self, self.system is not None)
        elif self.system is not None:
            raise ValueError("both 'system' and 'file'; keep one of them")
        return self

    @property
    def title(self) -> str:
        """The name of the topology in results."""
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
    if spec.routing == "adaptive" and fabric not in _GOES_WITH["spines"]:
        raise ValueError(f"adaptive routing goes with {' or '.join(_GOES_WITH['spines'])}, not with {fabric}")
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
    if spec.dims is not None and math.prod(spec.dims) != (spec.nodes or 1):
        raise ValueError(
            f"dims {list(spec.dims)} make {math.prod(spec.dims)} nodes, not {spec.nodes or 1}; let them agree"
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
    if spec.dims is not None and spec.hosts not in (None, math.prod(spec.dims)):
        raise ValueError(f"dims {list(spec.dims)} make {math.prod(spec.dims)} hosts, not {spec.hosts}; let them agree")


# --- building ---


def load_system(name: str) -> SystemFile:
    """The contents of the file of a shipped system, or of a topology file of devices and links; raises InputError."""
    known = shipped_systems()
    if name in known:
        return _shipped(name)
    if not name.endswith((".yaml", ".yml")):
        raise InputError(f"{name!r} is no shipped system", did_you_mean(name, known))
    tree = yaml_tree.read(Path(name))
    named = tree.get("system")
    if named is None:
        return read_machine(tree).file
    if str(named.value) not in known:
        problem = f"{named.plain()!r} is no shipped system"
        raise InputError([Diagnostic(problem, did_you_mean(str(named.value), known), "system", named.place)])
    return load_system(str(named.value))


def described(spec: TopologySpec) -> SystemFile | None:
    """The file of devices that a topology is made of; None for hosts of a fabric. Raises InputError."""
    if spec.system is not None:
        return load_system(spec.system)
    if spec.file is None:
        return None
    tree = yaml_tree.read(Path(spec.file))
    return None if tree.get("devices") is None and tree.get("system") is None else load_system(spec.file)


@functools.cache
def _shipped(name: str) -> SystemFile:  # a file that does not change
    return read_machine(yaml_tree.read(shipped_systems()[name])).file


def build(spec: TopologySpec, *, seed: int = 0, without: Collection[str] = ()) -> Topology:
    """The topology that `spec` describes, without the devices of each node that have the names `without`; unequal links
    are drawn from `seed`. Raises InputError."""
    title, machine = spec.title, None
    if spec.system is not None:
        machine = read_machine(yaml_tree.read(shipped_systems()[spec.system]))
    elif spec.file is not None:
        spec, machine = _read_file(spec)
    if spec.routing == "adaptive" and machine and isinstance(machine.file.devices, tuple):
        raise InputError(f"{machine.file.name} lists its devices: adaptive routing would not change it", "leave it out")
    plan, routing, routes = _cluster(spec, machine) if machine else _hosts(spec)
    rings = (spec.hosts or spec.nodes or 1,) if spec.fabric == "ring" else ()
    wiring = Wiring(spec.dims or rings)
    absent = {device for device, _ in plan.devices if device.rpartition(".")[2] in without}
    for device, data in plan.devices:
        if device not in absent:
            wiring.add(device, data)
    for u, v, link in plan.links:
        if not {u, v} & absent:
            wiring.join(u, v, link)
    wiring.order_links()
    if spec.link is not None and isinstance(spec.link.bandwidth, Spread):
        _draw(wiring, units.parse_exact(spec.link.bandwidth.spread, "share"), seed)
    _override(wiring, spec.links)
    policy = None if spec.routing == "adaptive" else spec.routing
    return Topology(wiring, title, policy or routing, {**routes, **spec.routes})


def _read_file(spec: TopologySpec) -> tuple[TopologySpec, MachineFile | None]:
    """A topology file: devices and links, or the keys of a scenario's `topology`, which the scenario's override."""
    path = str(spec.file)
    tree = yaml_tree.read(Path(path))
    given = spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={"file"})
    if tree.get("devices") is not None:
        try:
            _check(spec, machine=True)
        except ValueError as error:
            raise InputError(f"topology: {error}") from None
        return spec, read_machine(tree)
    if tree.get("file") is not None:
        raise InputError(f"{path}: names another topology file", "name that one in the scenario")
    if not isinstance(tree.value, dict | None):
        raise InputError([Diagnostic("a topology is a mapping", "write key: value lines", "", tree.place)])
    over = yaml_tree.parse(yaml_tree.dump(given), "topology")
    merged = Node({**(tree.value or {}), **over.value}, tree.place, {**tree.keys, **over.keys})
    whole = yaml_tree.validate(TopologySpec, [merged])[0]
    return whole, read_machine(yaml_tree.read(shipped_systems()[whole.system])) if whole.system else None


Built = tuple[FabricPlan, RoutingPolicy, dict[str, Sequence[str]]]  # … how it is routed, and the explicit routes


def _hosts(spec: TopologySpec) -> Built:
    """A fabric of bare hosts, each of them a node."""
    assert spec.link is not None and spec.fabric is not None
    hosts = spec.hosts or math.prod(spec.dims or ())
    _check_size(2 * hosts, f"{hosts} hosts", "hosts")
    plan = FabricPlan([(f"host{i}", {"kind": "host", "node": i}) for i in range(hosts)])
    cable = spec.link.link
    FABRICS[spec.fabric](plan, [[name] for name, _ in plan.devices], _shape(spec, cable, cable.latency))
    return plan, "shortest" if spec.fabric in fabrics.DIRECT else "ecmp", {}


def _check_size(links: int, what: str, key: str) -> None:
    """Raise InputError for more links than there is memory for."""
    check_memory(links * LINK_BYTES, what, f"take fewer {key}", f"topology.{key}")


def _shape(spec: TopologySpec, cable: Link, trunk_latency: int) -> FabricShape:
    per_leaf = spec.nodes_per_leaf or spec.hosts_per_leaf or (4 if spec.fabric == "fat-tree" else 32)
    return FabricShape(
        cable,
        trunk_latency,
        per_leaf=per_leaf,
        levels=spec.levels or 2,
        leaves_per_pod=spec.leaves_per_pod or 4,
        oversubscription=Fraction(str(spec.oversubscription or 1)),
        spines=1 if spec.routing == "adaptive" else spec.spines or 1,  # which carries what all do
        dims=spec.dims or (),
    )


def _cluster(spec: TopologySpec, machine: MachineFile) -> Built:
    """One machine, or `nodes` of them joined by a fabric."""
    file, nodes = machine.file, spec.nodes or 1
    plain = template(machine, spec.hosts)
    if isinstance(file.devices, tuple):
        if nodes > 1:
            raise InputError(f"{file.name} lists its devices by name and is no machine to multiply", "leave out nodes")
        return plain, file.routing or "shortest", dict(file.routes)
    _check_size(nodes * len(plain.links), f"{nodes} nodes of {file.name}", "nodes")
    plan, routes = FabricPlan(), dict[str, Sequence[str]]()
    for i in range(nodes):
        name = f"node{i}.".__add__
        plan.devices += ((name(device), {**data, "node": i}) for device, data in plain.devices)
        plan.links += ((name(u), name(v), link) for u, v, link in plain.links)
        routes |= {_renamed(pair, name): [name(d) for d in way] for pair, way in file.routes.items()}
    if nodes > 1:
        _join(plan, spec, file, nodes)
    return plan, file.routing or ("rails" if nodes > 1 else "shortest"), routes


def _renamed(pair: str, name: Callable[[str], str]) -> str:
    src, _, dst = pair.partition("->")
    return f"{name(src.strip())}->{name(dst.strip())}"


def _join(plan: FabricPlan, spec: TopologySpec, file: SystemFile, nodes: int) -> None:
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


def _draw(wiring: Wiring, spread: Fraction, seed: int) -> None:
    """Unequal links: every link's bandwidth times 1 + U(−spread, spread), drawn in the order of link numbers."""
    import random

    rng = random.Random(seed)
    for u, v, link in list(wiring):
        factor = 1 + rng.uniform(-float(spread), float(spread))
        wiring.join(u, v, replace(link, bandwidth=max(1, int(link.bandwidth * factor))))


def _override(wiring: Wiring, overrides: Mapping[str, Override]) -> None:
    """Change single links; where several patterns match, the later one decides."""
    if not overrides:
        return
    names = {f"{u}->{v}": (u, v) for u, v, _ in wiring}
    for pattern, override in overrides.items():
        matching = fnmatch.filter(names, pattern.replace(" ", ""))
        if not matching:
            raise InputError([Diagnostic("matches no link", did_you_mean(pattern, names), f"topology.links.{pattern}")])
        for u, v in map(names.__getitem__, matching):
            wiring.join(u, v, override.changed(wiring.ahead[u][v]))


def of_keys(keys: Mapping[str, Any]) -> TopologySpec:
    """The key `topology` from plain values; raises InputError with every mistake."""
    return yaml_tree.validate(TopologySpec, [yaml_tree.located(dict(keys), Place("topology", 1, 1))])[0]


def dump(topology: Topology) -> str:
    """The topology as a file of devices and links, which has the same routes."""
    devices = [
        {"name": name, "kind": data["kind"], "node": data.get("node"), "in_network": bool(data.get("in_network"))}
        for name, data in topology.wiring.devices.items()
    ]
    links = [
        {"pairs": [[u, v]], "bandwidth": f"{link.bandwidth} B/s", "latency": f"{link.latency} ps", "kind": link.kind}
        | {"oneway": True}
        for (u, v), link in zip(topology.links, topology.every_link, strict=True)
    ]
    document = {"name": topology.name, "devices": devices, "links": links, "routing": topology.routing}
    return yaml_tree.dump({**document, "routes": {pair: list(way) for pair, way in topology.explicit.items()}})


# --- text for people ---


def describe(topology: Topology) -> dict[str, Any]:
    """The facts that `simcoll topology show` prints: devices and links by kind, ranks, bisection bandwidth, routing."""
    links: dict[tuple[str, int, int], list[str]] = {}
    for (u, v), link in zip(topology.links, topology.every_link, strict=True):
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
        "bisection_GBps": bisection_bandwidth(topology) / 1e9,
    }
