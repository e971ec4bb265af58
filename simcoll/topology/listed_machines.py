"""The machine that devices make which are listed one by one, as a file that counts the devices of one node says it.

NCCL looks at a node and takes the others to be like it. So does all that asks for `devices` by kind: a file of listed
devices is made into the file of its node once, here, and nothing else knows how a machine was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from simcoll.config import yaml_tree
from simcoll.config.groups import grouped
from simcoll.errors import Place, TopologyError
from simcoll.topology.machine_files import MachineFile, SystemFile, template
from simcoll.topology.wiring import Link

# Of devices in a node, in the order of shipped files: of equal paths NCCL's search takes the first.
NODE_KINDS: Final = ("gpu", "nvswitch", "pcie_switch", "cpu", "nic")
_CURE: Final = "let nodes be alike, or take a profile without kernels, as one-port"


class ListedMachine(NamedTuple):
    """The `node` that all are like, and how many there are."""

    node: SystemFile
    nodes: int


def machine_of(file: SystemFile) -> ListedMachine:
    """The node of a machine of listed devices, and how many there are. Devices of a node count in the order in which
    they are listed, kind by kind; a link has the least rate that any node has there, as NCCL takes of channels.

    Raises TopologyError where nodes are not alike, where nothing says what GPUs they have, and for devices in a node
    of which NCCL knows nothing.
    """
    if file.gpu is None:
        cure = "add gpu: {model: …, generation: …, compute_capability: …}, to a graph as graph.graph['gpu']"
        raise TopologyError(f"{file.name} lists its devices, and does not say which GPUs these are", cure)
    plan = template(MachineFile(file, yaml_tree.located({}, Place(file.name, 1, 1))), None)
    home = {device: data["node"] for device, data in plan.devices}
    kinds = {device: data["kind"] for device, data in plan.devices}
    members = grouped(kinds, home.__getitem__)
    between = members.pop(None, [])
    if misplaced := [device for device in between if kinds[device] in NODE_KINDS]:
        problem = f"{file.name}: {kinds[misplaced[0]]} {misplaced[0]!r} is in no node"
        raise TopologyError(problem, "give it `node`, the number of its machine", about=(misplaced[0],))
    names = _names(file.name, members, kinds)
    inside: dict[int, dict[tuple[str, str], Link]] = {node: {} for node in members}
    out: list[Link] = []
    cables = {node: Counter[str | None]() for node in members}
    for u, v, link in plan.links:
        if home[u] is not None and home[u] == home[v]:
            inside[home[u]][names[u], names[v]] = link
        elif "nic" in (kinds[u], kinds[v]):
            out.append(link)
            nic = u if kinds[u] == "nic" else v
            cables[home[nic]][f"{link.kind} {'from' if nic == u else 'to'} {names[nic]}"] += 1
    first, *others = members
    _check_alike(file.name, first, others, {node: Counter(map(kinds.get, some)) for node, some in members.items()})
    marks = {node: Counter[str | None]() for node in members}
    for device, data in plan.devices:
        if data["in_network"] and home[device] is not None:
            marks[home[device]][f"{names[device]} with in_network"] += 1
    _check_alike(file.name, first, others, marks)
    _check_alike(file.name, first, others, {node: _wires(links) for node, links in inside.items()})
    _check_alike(file.name, first, others, cables)
    counts = Counter(kinds[device] for device in members[first])
    marked = [names[device] for device, data in plan.devices if home[device] == first and data["in_network"]]
    document: dict[str, Any] = {
        **file.facts,
        "name": file.name,
        "devices": {kind: counts[kind] for kind in NODE_KINDS if counts[kind]},
        "in_network": marked,
        "links": rules({pair: _least(inside[node][pair] for node in inside) for pair in inside[first]}),
    }
    if file.nic is None and counts["nic"] and out:
        rate, latency = min(link.bandwidth for link in out), max(link.latency_ps for link in out)
        document["nic"] = {"rate": f"{rate} B/s", "latency": f"{latency} ps", "trunk_latency": f"{latency} ps"}
    return ListedMachine(SystemFile.model_validate(document), len(members))


def node_of(file: SystemFile) -> SystemFile:
    """The file itself, or that of a node where it lists its devices; raises like `machine_of`."""
    return file if isinstance(file.devices, dict) else machine_of(file).node


def _names(machine: str, members: Mapping[int, Sequence[str]], kinds: Mapping[str, str]) -> dict[str, str]:
    """The name of each device in its node. Raises TopologyError for those of a kind that NCCL does not know."""
    names: dict[str, str] = {}
    for node, devices in members.items():
        counts: Counter[str] = Counter()
        for device in devices:
            kind = kinds[device]
            if kind not in NODE_KINDS:
                problem = f"{machine}: device {device!r} of node {node} is a {kind}, of which NCCL knows nothing"
                raise TopologyError(problem, f"let it be one of {', '.join(NODE_KINDS)}", about=(device,))
            names[device] = f"{kind}{counts[kind]}"
            counts[kind] += 1
    return names


def _wires(links: Mapping[tuple[str, str], Link]) -> Counter[str | None]:
    return Counter(f"{link.kind} {u}->{v}" for (u, v), link in links.items())


def _check_alike(machine: str, first: int, others: Iterable[int], has: Mapping[int, Counter[str | None]]) -> None:
    """Raise TopologyError with the first difference of a node from the first one."""
    for node in others:
        for one, other in ((first, node), (node, first)):
            if more := has[one] - has[other]:
                what, count = next(iter(more.items()))
                each = f"{count} more {what}" if count > 1 or has[other][what] else str(what)
                problem = f"{machine}: node {one} has {each}, and node {other} has not (devices count as listed)"
                raise TopologyError(problem, _CURE)


def _least(links: Iterable[Link]) -> Link:
    every = list(links)
    latency = max(link.latency_ps for link in every)
    return Link(min(link.bandwidth for link in every), latency_ps=latency, kind=every[0].kind)


def rules(links: Mapping[tuple[str, str], Link]) -> list[dict[str, Any]]:
    """Links by their ends as `links` of a file: those that are alike in one rule."""
    return [
        {
            "pairs": [list(pair) for pair in pairs],
            "bandwidth": f"{link.bandwidth} B/s",
            "latency": f"{link.latency_ps} ps",
            "kind": link.kind,
            "oneway": True,
        }
        for link, pairs in grouped(links, links.__getitem__).items()
    ]
