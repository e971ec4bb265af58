"""Fabrics: the switches and cables that join machines.

A machine is given as the list of its ports: its NICs, or the host itself if it has none. A fabric adds devices and
links to a `FabricPlan`; every cable is two links. Switches have a `level` for drawing, which is 1 for leaf switches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from simcoll.topology.wiring import Link

Ports = Sequence[Sequence[str]]  # the ports of each machine
Leaves = dict[str, list[str]]  # the ports on each leaf switch


@dataclass
class FabricPlan:
    """The devices of a network with their attributes, and its directed links, in the order of their later numbers."""

    devices: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    links: list[tuple[str, str, Link]] = field(default_factory=list)

    def switch(self, name: str, level: int) -> str:
        """Add a switch of the fabric, which belongs to no machine."""
        self.devices.append((name, {"kind": "switch", "level": level}))
        return name

    def cable(self, u: str, v: str, link: Link) -> None:
        """Join devices `u` and `v` by a link in each direction."""
        self.links += ((u, v, link), (v, u, link))


@dataclass(frozen=True)
class FabricShape:
    """The sizes of a fabric: each port's `cable`, the latency between switches in ps, and the number of devices on each
    level."""

    cable: Link
    trunk_latency: int
    per_leaf: int = 4
    levels: int = 2
    leaves_per_pod: int = 4
    oversubscription: Fraction = Fraction(1)
    spines: int = 1
    dims: Sequence[int] = ()

    def trunk(self, ports: int, parts: int = 1) -> Link:
        """Return the link for one of `parts` equal trunks, which together have the bandwidth of `ports` cables /
        oversubscription."""
        bandwidth = Fraction(self.cable.bandwidth * ports) / self.oversubscription / parts
        return Link(max(1, round(bandwidth)), latency_ps=self.trunk_latency, kind="trunk")


def single_switch(plan: FabricPlan, machines: Ports, shape: FabricShape) -> None:
    """Connect every port to one non-blocking switch."""
    switch = plan.switch("switch", 1)
    for port in itertools.chain.from_iterable(machines):
        plan.cable(port, switch, shape.cable)


def rail_optimised(plan: FabricPlan, machines: Ports, shape: FabricShape) -> None:
    """Connect the NICs of one index in all machines (a rail) to a leaf switch, or to one for each `per_leaf` machines.
    Spines join all leaves."""
    rails = max(map(len, machines))
    blocks = list(_blocks(machines, shape.per_leaf))
    leaves: Leaves = {}
    for rail in range(rails):
        for i, block in enumerate(blocks):
            name = f"rail{rail}.leaf{i}" if len(blocks) > 1 else f"rail{rail}"
            leaves[name] = [ports[rail] for ports in block if rail < len(ports)]
    _two_levels(plan, leaves, shape)


def fat_tree(plan: FabricPlan, machines: Ports, shape: FabricShape) -> None:
    """Connect leaves of `per_leaf` machines to spines; with three levels, connect pods of leaves and spines to cores.

    A leaf's uplinks have the bandwidth of its cables divided by the oversubscription, split evenly over the spines. One
    spine stands for many spines over which traffic spreads perfectly. A pod's uplinks have the bandwidth of the uplinks
    of all its leaves.
    """
    leaves = {
        f"leaf{i}": list(itertools.chain.from_iterable(block))
        for i, block in enumerate(_blocks(machines, shape.per_leaf))
    }
    if shape.levels == 2:
        _two_levels(plan, leaves, shape)
    else:
        _three_levels(plan, leaves, shape)


def _blocks(machines: Ports, size: int) -> Iterator[Ports]:
    return (machines[i : i + size] for i in range(0, len(machines), size))


def _plug(plan: FabricPlan, leaves: Leaves, shape: FabricShape) -> int:
    """Add the leaf switches, and connect the machines' ports to them; return the number of ports on a full leaf."""
    for leaf, ports in leaves.items():
        plan.switch(leaf, 1)
        for port in ports:
            plan.cable(port, leaf, shape.cable)
    return max(map(len, leaves.values()))


def _two_levels(plan: FabricPlan, leaves: Leaves, shape: FabricShape) -> None:
    trunk = shape.trunk(_plug(plan, leaves, shape), shape.spines)
    spines = [plan.switch(f"spine{i}", 2) for i in range(shape.spines if len(leaves) > 1 else 0)]
    for leaf, spine in itertools.product(leaves, spines):
        plan.cable(leaf, spine, trunk)


def _three_levels(plan: FabricPlan, leaves: Leaves, shape: FabricShape) -> None:
    ports, count = _plug(plan, leaves, shape), shape.spines
    names = list(leaves)
    pods = [names[i : i + shape.leaves_per_pod] for i in range(0, len(names), shape.leaves_per_pod)]
    spines = [[plan.switch(f"spine{p * count + i}", 2) for i in range(count)] for p in range(len(pods))]
    cores = [plan.switch(f"core{i}", 3) for i in range(count if len(pods) > 1 else 0)]
    up, over = shape.trunk(ports, count), shape.trunk(ports * shape.leaves_per_pod, count * count)
    for pod, above in zip(pods, spines, strict=True):
        for leaf, spine in itertools.product(pod, above):
            plan.cable(leaf, spine, up)
        for spine, core in itertools.product(above, cores):
            plan.cable(spine, core, over)


def torus(plan: FabricPlan, machines: Ports, shape: FabricShape) -> None:
    """Connect the machines as a torus of `dims`, numbered with the last dimension varying fastest."""
    places = list(itertools.product(*map(range, shape.dims)))
    number = {place: i for i, place in enumerate(places)}
    pairs: dict[tuple[int, int], None] = {}
    for place in places:
        for axis, size in enumerate(shape.dims):
            neighbour = number[(*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :])]
            low, high = sorted((number[place], neighbour))
            if low != high:
                pairs[low, high] = None
    _direct(plan, machines, list(pairs), shape)


def ring(plan: FabricPlan, machines: Ports, shape: FabricShape) -> None:
    """Connect each machine to the next, and the last to the first."""
    torus(plan, machines, replace(shape, dims=(len(machines),)))


def full_mesh(plan: FabricPlan, machines: Ports, shape: FabricShape) -> None:
    """Connect every machine to every other."""
    _direct(plan, machines, list(itertools.combinations(range(len(machines)), 2)), shape)


def _direct(plan: FabricPlan, machines: Ports, pairs: Sequence[tuple[int, int]], shape: FabricShape) -> None:
    ends = [ports[0] for ports in machines]
    for i, j in pairs:
        plan.cable(ends[i], ends[j], shape.cable)


def count_links(fabric: str, machines: int, ports: int, shape: FabricShape) -> int:
    """Return the number of links of a fabric for `machines` of `ports` each, without building it."""
    plugs = 2 * machines * ports
    if fabric == "full-mesh":
        return plugs + machines * (machines - 1)
    if fabric in DIRECT:
        dims = shape.dims if fabric == "torus" else (machines,)
        return plugs + machines * sum(min(2, size - 1) for size in dims)
    if fabric == "single-switch":
        return plugs
    leaves = (ports if fabric == "rail-optimised" else 1) * -(-machines // shape.per_leaf)
    trunks = 2 * leaves * shape.spines
    if fabric == "rail-optimised" or shape.levels == 2:
        return plugs + (trunks if leaves > 1 else 0)
    pods = -(-leaves // shape.leaves_per_pod)
    return plugs + trunks + (2 * pods * shape.spines**2 if pods > 1 else 0)


SWITCHED: Final = {"single-switch": single_switch, "rail-optimised": rail_optimised, "fat-tree": fat_tree}
DIRECT: Final = {"torus": torus, "ring": ring, "full-mesh": full_mesh}
FABRICS: Final = {**SWITCHED, **DIRECT}
