"""Build a `Topology` from the key `topology` of a scenario: a shipped system, a file, or a fabric of bare hosts."""

import fnmatch
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from simcoll import units
from simcoll.config import input_files, yaml_tree
from simcoll.config.machine_limits import check_memory
from simcoll.config.yaml_tree import Node
from simcoll.errors import Diagnostic, InputError, Place, did_you_mean
from simcoll.topology import fabrics
from simcoll.topology.fabrics import FABRICS, FabricPlan, FabricShape, count_links
from simcoll.topology.graph import Topology
from simcoll.topology.machine_files import (
    LINK_BYTES,
    MachineFile,
    SystemFile,
    Variant,
    in_place_of,
    read_machine,
    read_shipped,
    rules,
    shipped_systems,
    template,
    varied,
)
from simcoll.topology.routing import RoutingPolicy
from simcoll.topology.topology_keys import Override, Spread, TopologySpec, check_keys
from simcoll.topology.wiring import Link, Wiring


def load_system(name: str) -> SystemFile:
    """Return the file of a shipped system, or of a user's topology file. A file that lists its devices is converted
    into the file of one node, if its nodes are equal. Raises InputError for an unknown name or a file with mistakes."""
    known = shipped_systems()
    if name in known:
        return read_shipped(name).file
    if not input_files.names_yaml(name):
        raise InputError(f"{name!r} is no shipped system", in_place_of(name))
    tree = yaml_tree.read(Path(name))
    keys = tree.get("system") and machine_of(of_keys({"file": name}))[1]
    return (keys or read_machine(tree)).counted.node


def nodes_of(spec: TopologySpec) -> int:
    """Return a topology's number of nodes, from its keys or from the devices in its file. Raises InputError."""
    if spec.file is None:
        return spec.nodes or 1
    tree = yaml_tree.read(Path(spec.file))
    devices, nodes = tree.get("devices"), tree.get("nodes")
    if devices is not None and isinstance(devices.value, list):
        machine = read_machine(tree)
        there = machine.counted.nodes
        _check_listed(machine.file, spec.nodes or 1, there)
        return min(spec.nodes or there, there)
    return spec.nodes or (nodes.value if nodes and isinstance(nodes.value, int) else 1)


def described(spec: TopologySpec) -> SystemFile | None:
    """Return the file of the machine of which the topology has one or more copies; None for a fabric of bare hosts.
    Raises InputError."""
    machine = machine_of(spec)[1]
    return machine.counted.node if machine else None


def machine_of(spec: TopologySpec) -> tuple[TopologySpec, MachineFile | None]:
    """Return the keys of a topology, with those of its file, and its machine, changed as `gpus`, `nics` and
    `nic_bandwidth` ask; None for a fabric of bare hosts. Raises InputError."""
    machine = None
    if spec.system is not None:
        machine = read_shipped(spec.system)
    elif spec.file is not None:
        spec, machine = _read_file(spec)
    if machine and not spec.model_fields_set.isdisjoint(Variant.model_fields):
        machine = yaml_tree.once(varied, machine, spec.variant)
    return spec, machine


def build(spec: TopologySpec, *, seed: int = 0, without: Collection[str] = ()) -> Topology:
    """Build the topology of `spec`. Raises InputError. `seed` is for bandwidths with a random `spread`. `without`:
    devices that are missing in every node, e.g. `nic3`."""
    title = spec.title
    spec, machine = machine_of(spec)
    if spec.routing == "adaptive" and machine and isinstance(machine.file.devices, tuple):
        raise InputError(f"{machine.file.name} lists its devices: adaptive routing has no effect", "leave it out")
    plan, routing, routes = _cluster(spec, machine) if machine else _hosts(spec)
    rings = (spec.hosts or spec.nodes or 1,) if spec.fabric == "ring" else ()
    wiring = Wiring(spec.dims or rings or (machine.file.dims if machine else ()))
    if without:
        absent = {device for device, name in _names_in_nodes(plan).items() if name in without}
        plan.devices = [each for each in plan.devices if each[0] not in absent]
        plan.links = [each for each in plan.links if not absent.intersection(each[:2])]
    wiring.fill(plan.devices, plan.links)
    wiring.order_links()
    if spec.link is not None and isinstance(spec.link.bandwidth, Spread):
        _draw(wiring, units.parse_exact(spec.link.bandwidth.spread, "share"), seed)
    _override(wiring, spec.links)
    policy = None if spec.routing == "adaptive" else spec.routing
    facts = machine.file.facts if machine else {}
    return Topology(wiring, title, policy or routing, {**routes, **spec.routes}, facts)


def _names_in_nodes(plan: FabricPlan) -> dict[str, str]:
    """Return the name of each device in its node, made of its kind and its number there, e.g. `gpu3`."""
    counts: Counter[tuple[int | None, str]] = Counter()
    names = {}
    for device, data in plan.devices:
        of = data.get("node"), data["kind"]
        names[device] = f"{data['kind']}{counts[of]}"
        counts[of] += 1
    return names


def _read_file(spec: TopologySpec) -> tuple[TopologySpec, MachineFile | None]:
    """Read a topology file. It holds devices and links, or keys of `topology`, which the scenario's keys override."""
    path = str(spec.file)
    tree = yaml_tree.read(Path(path))
    given = spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={"file"})
    if {"devices", "like"} & {*tree.keys}:
        try:
            check_keys(spec, machine=True)
        except ValueError as error:
            raise InputError(f"topology: {error}") from None
        return spec, read_machine(tree)
    if tree.get("file") is not None:
        raise InputError(f"{path}: names another topology file", "name that file in the scenario")
    if not isinstance(tree.value, dict | None):
        raise InputError("a topology is a mapping", "write key: value lines", tree.place)
    over = yaml_tree.parse(yaml_tree.dump(given), "topology")
    merged = Node({**(tree.value or {}), **over.value}, tree.place, {**tree.keys, **over.keys})
    whole = yaml_tree.validate(TopologySpec, [merged])[0]
    if whole.ecmp and not spec.ecmp:
        raise InputError("draws of routes belong to a scenario", "write `topology.ecmp` there", tree.keys["ecmp"])
    return whole, read_shipped(whole.system) if whole.system else None


Built = tuple[FabricPlan, RoutingPolicy, dict[str, Sequence[str]]]  # devices and links, routing policy, explicit routes


def _hosts(spec: TopologySpec) -> Built:
    """Return a fabric of bare hosts; each host is a node."""
    assert spec.link is not None and spec.fabric is not None
    hosts = spec.hosts or math.prod(spec.dims or ())
    shape = _shape(spec, spec.link.link, spec.link.link.latency_ps)
    ports = 0 if spec.fabric in fabrics.DIRECT else 1
    _check_size(count_links(spec.fabric, hosts, ports, shape), f"{hosts} hosts", "hosts")
    plan = FabricPlan([(f"host{i}", {"kind": "host", "node": i}) for i in range(hosts)])
    FABRICS[spec.fabric](plan, [[name] for name, _ in plan.devices], shape)
    return plan, "shortest" if spec.fabric in fabrics.DIRECT else "ecmp", {}


def _check_size(links: int, what: str, key: str) -> None:
    """Raise InputError if the memory does not suffice for `links` links."""
    check_memory(links * LINK_BYTES, f"{what} with {links} links", f"take fewer {key}", f"topology.{key}")


def check_nodes(spec: TopologySpec) -> None:
    """Raise InputError if the memory does not suffice for the nodes of a system, of which only some will be built."""
    spec, machine = machine_of(spec)
    if machine and not isinstance(machine.file.devices, tuple):
        _check_cluster(spec, machine.file.name, template(machine.file, machine.tree, spec.hosts))


def _check_cluster(spec: TopologySpec, name: str, node: FabricPlan) -> None:
    """Raise InputError if the memory does not suffice for a cluster of such nodes."""
    nodes, ports = spec.nodes or 1, sum(data["kind"] == "nic" for _, data in node.devices)
    shape = _shape(spec, Link(1, 0), 1)  # only its widths count
    joined = count_links(spec.fabric or "rail-optimised", nodes, ports, shape) if nodes > 1 else 0
    _check_size(nodes * len(node.links) + joined, f"{nodes} nodes of {name}", "nodes")


def leaf_width(spec: TopologySpec) -> int:
    """Return the number of machines on a leaf switch; only for fabrics with leaf switches."""
    return spec.nodes_per_leaf or spec.hosts_per_leaf or (4 if spec.fabric == "fat-tree" else 32)


def _shape(spec: TopologySpec, cable: Link, trunk_latency: int) -> FabricShape:
    return FabricShape(
        cable,
        trunk_latency,
        per_leaf=leaf_width(spec),
        levels=spec.levels or 2,
        leaves_per_pod=spec.leaves_per_pod or 4,
        oversubscription=Fraction(str(spec.oversubscription or 1)) / Fraction(str(spec.spraying or 1)),
        spines=1 if spec.routing == "adaptive" else spec.spines or 1,  # one spine carries the traffic of all
        dims=spec.dims or (),
    )


def _cluster(spec: TopologySpec, machine: MachineFile) -> Built:
    """Return one machine, or `nodes` of them joined by a fabric."""
    file, nodes = machine.file, spec.nodes or 1
    plain = template(file, machine.tree, spec.hosts)
    if isinstance(file.devices, tuple):
        numbers = list(dict.fromkeys(data["node"] for _, data in plain.devices if data["node"] is not None))
        _check_listed(file, nodes, max(1, len(numbers)))
        ways: dict[str, Sequence[str]] = dict(file.routes)
        if spec.nodes and nodes < len(numbers):
            plain, ways = _first_nodes(plain, ways, numbers[:nodes])
        return plain, file.routing or "shortest", ways
    _check_cluster(spec, file.name, plain)
    plan, routes = FabricPlan(), dict[str, Sequence[str]]()
    for i in range(nodes):
        name = f"node{i}.".__add__
        plan.devices += ((name(device), {**data, "node": i}) for device, data in plain.devices)
        plan.links += ((name(u), name(v), link) for u, v, link in plain.links)
        routes |= {_renamed(pair, name): [name(d) for d in way] for pair, way in file.routes.items()}
    if nodes > 1:
        _join(plan, spec, file, nodes)
    return plan, file.routing or ("rails" if nodes > 1 else "shortest"), routes


def _check_listed(file: SystemFile, nodes: int, there: int) -> None:
    """Raise InputError for more nodes than a file lists."""
    if nodes > there:
        some = f"{there} nodes" if there > 1 else "1 node"
        problem = f"{file.name} lists the devices of {some}, so it cannot have more nodes"
        raise InputError(problem, "leave out `nodes`, or write fewer")


def _first_nodes(
    plan: FabricPlan, routes: Mapping[str, Sequence[str]], numbers: Sequence[int]
) -> tuple[FabricPlan, dict[str, Sequence[str]]]:
    """Restrict the planned network and its explicit routes to the nodes `numbers`; for several nodes, keep the devices
    between them."""
    homes = {*numbers, None} if len(numbers) > 1 else {*numbers}
    kept = {device for device, data in plan.devices if data["node"] in homes}
    devices = [each for each in plan.devices if each[0] in kept]
    links = [each for each in plan.links if kept.issuperset(each[:2])]
    return FabricPlan(devices, links), {pair: way for pair, way in routes.items() if kept.issuperset(way)}


def _renamed(pair: str, name: Callable[[str], str]) -> str:
    src, _, dst = pair.partition("->")
    return f"{name(src.strip())}->{name(dst.strip())}"


def _join(plan: FabricPlan, spec: TopologySpec, file: SystemFile, nodes: int) -> None:
    """Connect the NICs of all nodes to a fabric: to its switches, or on direct fabrics to one router per node."""
    nics: list[list[str]] = [[] for _ in range(nodes)]
    for device, data in plan.devices:
        if data["kind"] == "nic":
            nics[data["node"]].append(device)
    if file.nic is None or not nics[0]:
        raise InputError(f"{file.name} has no NICs, so its nodes cannot be joined", "write `nodes: 1`")
    port = Link(
        units.parse(file.nic.rate, "bandwidth"), latency_ps=units.parse(file.nic.latency, "duration"), kind="cable"
    )
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
    """Draw unequal links: every link's bandwidth times 1 + U(−spread, spread), in the order of link numbers."""
    import random

    rng = random.Random(seed)
    for u, v, link in list(wiring):
        factor = 1 + rng.uniform(-float(spread), float(spread))
        wiring.join(u, v, replace(link, bandwidth=max(1, int(link.bandwidth * factor))))


def _override(wiring: Wiring, overrides: Mapping[str, Override]) -> None:
    """Apply the scenario's changes of single links (`topology.links`)."""
    if overrides:
        ends = {f"{u}->{v}": (u, v) for u, v, _ in wiring}
        links = {name: wiring.ahead[u][v] for name, (u, v) in ends.items()}
        for name, link in overridden(links, overrides).items():
            wiring.join(*ends[name], link)


def overridden(links: Mapping[str, Link], overrides: Mapping[str, Override]) -> dict[str, Link]:
    """Return `links` by name (`u->v`) with all changes of `overrides` applied in order. Raises InputError for a pattern
    that matches no link."""
    changed = dict(links)
    for pattern, override in overrides.items():
        name = pattern.replace(" ", "")
        matching = [name] if name in links and not set(name) & set("*?[") else fnmatch.filter(links, name)
        if not matching:
            raise InputError([Diagnostic("matches no link", did_you_mean(pattern, links), f"topology.links.{pattern}")])
        changed |= {name: override.changed(changed[name]) for name in matching}
    return changed


def of_keys(keys: Mapping[str, Any]) -> TopologySpec:
    """Validate plain values as the key `topology`; raises InputError with every mistake."""
    return yaml_tree.validate(TopologySpec, [yaml_tree.located(dict(keys), Place("topology", 1, 1))])[0]


def dump(topology: Topology) -> str:
    """Return the text of a topology file with all devices and links of a topology. A topology loaded from it has the
    same routes."""
    devices = [
        {"name": name, "kind": data["kind"], "node": data.get("node"), "in_network": bool(data.get("in_network"))}
        for name, data in topology.wiring.devices.items()
    ]
    links = rules(dict(zip(topology.links, topology.every_link, strict=True)))
    ways = {"routing": topology.routing, "routes": {pair: list(way) for pair, way in topology.explicit.items()}}
    dims = {"dims": list(topology.wiring.dims)} if topology.wiring.dims else {}
    document = {"name": topology.name, **topology.facts, "devices": devices, "links": links, **ways, **dims}
    return yaml_tree.dump(document, inline=True)


# --- text for people ---


def describe(topology: Topology) -> dict[str, Any]:
    """Return the facts of `simcoll topology show`: devices and links by kind, ranks, bisection bandwidth, routing."""
    links: dict[tuple[str, int, int], list[str]] = {}
    for (u, v), link in zip(topology.links, topology.every_link, strict=True):
        links.setdefault((link.kind, link.bandwidth, link.latency_ps), []).append(f"{u}->{v}")
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


def bisection_bandwidth(topology: Topology) -> int:
    """Return the least bandwidth between two halves of all ranks, in B/s of one direction.

    It is the least maximum flow over several ways to halve the ranks: alternating blocks of 1, 2, 4, … ranks, and the
    first half against the second. With several nodes, whole nodes are halved, so that only links between nodes limit
    the flow. Within one node ranks are halved, and only links on their routes count.
    """
    groups: Sequence[Collection[str]] = [
        topology.members[node] for node in dict.fromkeys(map(topology.node_of, topology.ranks)) if node is not None
    ]
    if len(groups) < 2:
        groups = [{rank} for rank in topology.ranks]
    if len(groups) < 2:
        return 0
    return min(_flow(topology, *half) for half in _halves(groups))


def _flow(topology: Topology, left: Sequence[Collection[str]], right: Sequence[Collection[str]]) -> int:
    """Return the maximum flow in B/s from the devices `left` to the devices `right`."""
    import networkx as nx

    point: dict[str, str] = {d: "left" for group in left for d in group}
    point |= {d: "right" for group in right for d in group}
    flow: nx.DiGraph[str] = nx.DiGraph()
    flow.add_nodes_from(("left", "right"))
    for link in _used(topology, left, right):
        u, v = (point.get(device, f"device {device}") for device in topology.links[link])
        if u != v:
            before = flow.get_edge_data(u, v, {"capacity": 0})["capacity"]
            flow.add_edge(u, v, capacity=before + int(topology.bandwidths[link]))
    return int(nx.maximum_flow_value(flow, "left", "right"))


def _used(topology: Topology, left: Sequence[Collection[str]], right: Sequence[Collection[str]]) -> Collection[int]:
    if any(len(group) > 1 for group in left) or topology.nodes > 1:
        return range(len(topology.links))
    return {link for (u,) in left for (v,) in right for link in topology.route(u, v)}


def _halves(groups: Sequence[Collection[str]]) -> Iterator[tuple[list[Collection[str]], list[Collection[str]]]]:
    n = len(groups)
    sizes = [size for size in range(1, n // 2) if n % (2 * size) == 0]
    for size in (*sizes, (n + 1) // 2):
        left = [group for i, group in enumerate(groups) if i // size % 2 == 0]
        right = [group for i, group in enumerate(groups) if i // size % 2]
        yield left, right
