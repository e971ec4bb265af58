"""Files of devices and links: the shipped systems, and users' machines in the same format.

A file that counts its devices by kind describes one node; a fabric joins copies of it. A file that is `like` another
machine says only what differs. A file that lists its devices by name describes a whole topology. `counted` converts
such a file into the equivalent file of one node, which the model of NCCL needs. Bandwidths count one direction.
Patterns are shell patterns (`gpu[01]`, `nic*`). Quantities stay texts until a topology is built.
"""

import fnmatch
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, StrictBool, StrictInt, Tag, model_validator

from simcoll import units
from simcoll.config import input_files, yaml_tree
from simcoll.config.field_types import Count, OneOf, text
from simcoll.config.grouping import grouped
from simcoll.config.machine_limits import check_memory
from simcoll.config.yaml_tree import Model, Node
from simcoll.errors import Diagnostic, InputError, Place, TopologyError, did_you_mean
from simcoll.topology.fabrics import FabricPlan
from simcoll.topology.nccl_graphs import GraphSearch
from simcoll.topology.routing import POLICIES, RoutingPolicy
from simcoll.topology.wiring import Link, Wiring

# Bytes of memory for each link: 2,300 in a prediction on thousands of nodes, 10,000 in an explanation.
LINK_BYTES: Final = 5000
# Kinds of devices in a node, in the order of shipped files, as NCCL's search takes the first of equal paths.
NODE_KINDS: Final = ("gpu", "nvswitch", "pcie_switch", "cpu", "nic")
_ALIKE: Final = "make the nodes alike, or take a profile without kernels, e.g. one-port"
LEAST_CAPABILITY: Final = 30  # least compute capability that NCCL supports, 3.0, times ten


def quantity(kind: units.Unit, least: int = 0) -> BeforeValidator:
    """Return a validator for texts of quantities of one kind, of at least `least` base units."""

    def check(value: object) -> object:
        if units.parse_exact(value, kind) < least:
            raise ValueError(f"{value!r} is no bandwidth; write the link's bandwidth, or leave the link out")
        return "0" if units.is_zero(value) else value

    return BeforeValidator(check)


Bandwidth = Annotated[str, quantity("bandwidth", least=1)]
DurationText = Annotated[str, quantity("duration"), text("1.5 us")]
Routing = Annotated[RoutingPolicy, OneOf("routing policy", lambda: POLICIES)]
ADAPTIVE: Final = (*POLICIES, "adaptive")
FabricRouting = Annotated[RoutingPolicy | Literal["adaptive"], OneOf("routing policy", lambda: ADAPTIVE)]
RouteTable = Mapping[str, tuple[str, ...]]


class Cpu(Model):
    """The hosts' processors: the facts that NCCL's tuner depends on."""

    vendor: Literal["intel", "amd", "arm", "ibm"]
    model: str = ""


def _tenfold(value: object) -> object:
    """Refuse a compute capability such as 9.0, as some tools print it; topology files need 90."""
    text = str(value).strip()
    if text.replace(".", "", 1).isdigit() and float(text) < LEAST_CAPABILITY:
        raise ValueError(f"{text} is no compute capability; write it tenfold, {10 * float(text):.0f}")
    return value


class Gpu(Model):
    """The GPUs: the facts that NCCL depends on, and the number of multiprocessors (`sms`), on which DeepEP's kernels
    run; default: as many as the measured GPUs of the generation have."""

    vendor: Literal["nvidia", "amd"] = "nvidia"
    model: str
    generation: Annotated[str, BeforeValidator(lambda value: str(value).lower())]
    compute_capability: Annotated[int, BeforeValidator(_tenfold)] | None = None
    sms: Count | None = None


def _of_infiniband(nic: Mapping[str, Any]) -> str:
    """Return the InfiniBand profile, `ib-hdr` (200 Gb/s) or `ib-ndr` (400), whose rate is nearer to the NIC's rate."""
    rate = units.parse(nic.get("rate", "400 Gb/s"), "bandwidth") * 8 / 1e9
    return "ib-hdr" if rate**2 < 200 * 400 else "ib-ndr"


class Nic(Model):
    """The NICs: line rate, latency of a link to a switch (`latency`) or between two switches (`trunk_latency`).
    `profile` names the costs of hops between nodes, for GPU profiles that have none; default: the InfiniBand profile of
    the nearest rate. `env`: NCCL variables that the NIC's plugin needs on several nodes, if the scenario has none."""

    model: str = ""
    rate: Bandwidth
    latency: DurationText
    trunk_latency: DurationText
    profile: str = Field(default_factory=_of_infiniband)
    env: dict[str, StrictInt | str] = Field(default_factory=dict)


def _named(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"{value!r} is no name; write one")
    return value


NonEmpty = Annotated[str, BeforeValidator(_named)]


class Device(Model):
    """A device that a topology file lists by name."""

    name: NonEmpty
    kind: NonEmpty
    node: Annotated[StrictInt, Field(ge=0)] | None = None
    in_network: StrictBool = False


class LinkRule(Model):
    """Links from all devices that match `from` to all that match `to` (`self`: each device's memory), or of `pairs`."""

    model_config = ConfigDict(populate_by_name=True)

    from_: Annotated[str | None, Field(alias="from")] = None
    to: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    bandwidth: Bandwidth
    latency: DurationText
    kind: str = "link"
    oneway: StrictBool = False

    @model_validator(mode="after")
    def _says_between_what(self) -> Self:
        if bool(self.pairs) == bool(self.from_) or bool(self.from_) != bool(self.to):
            raise ValueError("a link is either 'from' and 'to' or 'pairs'; write e.g. from: gpu*, to: nvswitch0")
        return self


class MachineFacts(Model):
    """The facts of a machine beside its devices and links; `profile` names the costs of NCCL's calls on it."""

    description: str = ""
    cpu: Cpu | None = None
    gpu: Gpu | None = None
    nic: Nic | None = None
    nccl: GraphSearch | None = None
    profile: str | None = None


class Variant(Model):
    """What differs from a machine: the number of its GPUs and NICs, and the rate of a NIC."""

    gpus: Count | None = None
    nics: Count | None = None
    nic_bandwidth: Bandwidth | None = None


class SystemFile(MachineFacts):
    """A topology file: devices and links. Devices counted by kind describe one machine; `nodes` of a scenario makes a
    cluster of it. `like` names the machine from which the file took the keys that it does not have. If devices are
    listed, `dims` are the sides of the torus or ring that their machines form, if any."""

    name: str
    like: str | None = None
    devices: Annotated[
        Annotated[dict[str, Count], Tag("<counts>")] | Annotated[tuple[Device, ...], Tag("<list>")],
        Discriminator(lambda value: "<counts>" if isinstance(value, dict) else "<list>"),
    ]
    links: tuple[LinkRule, ...]
    in_network: tuple[str, ...] = ()
    routing: Routing | None = None
    routes: RouteTable = Field(default_factory=dict)
    dims: tuple[Count, ...] = ()

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of devices of each kind in a node; empty if the file lists devices one by one."""
        return self.devices if isinstance(self.devices, dict) else {}

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the machine apart from devices and links, as plain values that `MachineFacts` can validate."""
        said = {*MachineFacts.model_fields} & self.model_fields_set
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, include=said)


class CountedMachine(NamedTuple):
    """The file of one `node`, and how many such `nodes` the machine has."""

    node: SystemFile
    nodes: int


@dataclass(frozen=True, eq=False)  # compared by identity, as caches are keyed by it
class MachineFile:
    """A file of devices and links; its `tree` has the line and column of each value, for messages."""

    file: SystemFile
    tree: Node

    @cached_property
    def counted(self) -> CountedMachine:
        """The file of one node, and the number of nodes. If nodes differ, the whole file takes the place of the one
        node. Only NCCL's calls need a single node; for them the function `counted` then raises the reason."""
        if isinstance(self.file.devices, dict):
            return CountedMachine(self.file, 1)
        try:
            return counted(self.file)
        except InputError:
            return CountedMachine(self.file, len({device.node for device in self.file.devices} - {None}) or 1)


_SHIPPED: Final = dict(sorted((path.stem, path) for path in yaml_tree.shipped("topologies").glob("*.yaml")))


def shipped_systems() -> dict[str, Path]:
    """Return the file of every shipped system, by name."""
    return _SHIPPED


def read_machine(tree: Node, below: tuple[str, ...] = ()) -> MachineFile:
    """Validate the tree of a topology file. Raises InputError with all mistakes; `template` checks link patterns.
    `below`: the names of the machines that are like this one, to find circles."""
    like = tree.get("like")
    if like is None:
        return yaml_tree.once(_machine, tree)
    name = str(like.value)
    if name in below:
        circle = " is like ".join((*below[below.index(name) :], name))
        raise InputError([Diagnostic(circle, "give one of them devices and links", "like", like.place)])
    return yaml_tree.once(_machine_like, tree, read_machine(yaml_tree.read(_path_of(like)), (*below, name)))


def _machine(tree: Node) -> MachineFile:
    return MachineFile(yaml_tree.validate(SystemFile, [tree])[0], tree)


def _path_of(like: Node) -> Path:
    """Return the file that a key `like` names: a shipped system's, or a user's. Raises InputError for other names."""
    name = str(like.value)
    if name in _SHIPPED or input_files.names_yaml(name):
        return _SHIPPED.get(name) or Path(name)
    raise InputError([Diagnostic(f"{name!r} is no shipped system", in_place_of(name), "like", like.place)])


def files_of_machine(path: Path) -> list[Path]:
    """Return the files that describe a machine: its own, and those of the machines that it is like."""
    like = yaml_tree.read(path).get("like")
    return [path] if like is None else [path, *files_of_machine(_path_of(like))]


def _machine_like(tree: Node, base: MachineFile) -> MachineFile:
    """Return the machine of a file with the key `like`: the machine `base`, changed as the file says. `links` may hold
    changes of links by kind. The profile stays if the GPUs are of the same kind, and joined by the same kinds of links;
    results of NCCL's graph search stay if nothing changed on which they depend."""
    place = tree.get("like").place  # type: ignore[union-attr]
    own = {key: child for key, child in tree.value.items() if key not in Variant.model_fields}
    change = {key: child for key, child in tree.value.items() if key in Variant.model_fields}
    below = varied(base, yaml_tree.validate(Variant, [Node(change, place, tree.keys)])[0], tree.keys)
    links, rules_below = own.get("links"), below.tree.get("links")
    if links and rules_below and isinstance(links.value, dict):
        own["links"] = Node(_changed(rules_below.value, links), links.place)
    own.setdefault("name", Node(Path(tree.place.source).stem, place))
    whole = yaml_tree.over(below.tree, Node(own, tree.place, tree.keys))
    file = _machine(whole).file
    if "profile" not in own and _fitted_on(file) != _fitted_on(below.file):
        whole = replace(whole, value={key: child for key, child in whole.value.items() if key != "profile"})
    if file.nccl and "nccl" not in own and _searched_on(file) != _searched_on(below.file):
        whole = yaml_tree.put(whole, "nccl.graphs", Node([], place))
    return _machine(whole)


def _changed(below: Sequence[Node], changes: Node) -> list[Node]:
    """Return the trees of link rules with `changes` by kind of link. Raises InputError for a kind without links."""
    kinds = [str(kind.value) if (kind := rule.get("kind")) else "link" for rule in below]
    if unknown := next((kind for kind in changes.value if kind not in kinds), None):
        place, problem = changes.keys[unknown], f"the machine has no links of kind {unknown!r}"
        raise InputError([Diagnostic(problem, did_you_mean(unknown, dict.fromkeys(kinds)), f"links.{unknown}", place)])
    return [yaml_tree.over(rule, changes.value.get(kind) or rule) for rule, kind in zip(below, kinds, strict=True)]


def _fitted_on(file: SystemFile) -> tuple[object, ...]:
    """Return all by which a profile is chosen for GPUs, but for their model."""
    return file.gpu and (file.gpu.generation, file.gpu.compute_capability), {rule.kind for rule in file.links}


def _searched_on(file: SystemFile) -> tuple[object, ...]:
    """Return all that NCCL's graph search depends on."""
    links = [rule for rule in file.links if rule.kind != "memory"]
    gpu = file.gpu.model_copy(update={"model": ""}) if file.gpu else None
    return file.devices, links, file.in_network, gpu, file.cpu and file.cpu.vendor, file.nic and file.nic.rate


_NOWHERE: Final[Mapping[str, Place]] = MappingProxyType({})


def varied(machine: MachineFile, change: Variant, places: Mapping[str, Place] = _NOWHERE) -> MachineFile:
    """Return a machine with other numbers of GPUs and NICs a node, and another rate of NICs. `places`: of these keys in
    a file.

    The first GPUs stay, and their share of the NICs. NIC i of n has the links of NIC i * m // n of these m. Results of
    NCCL's graph search for several nodes go if the NICs changed. Raises InputError for more GPUs than there are, for a
    machine without NICs, and for one whose file lists its devices.
    """
    file = machine.file
    if change == Variant():
        return machine
    gpus, nics = (file.counts.get(kind, 0) for kind in ("gpu", "nic"))
    kept = gpus if change.gpus is None else change.gpus
    left = -(-nics * kept // max(1, gpus))
    wanted = left if change.nics is None else change.nics
    of_nics = change.nics is not None or change.nic_bandwidth is not None
    if isinstance(file.devices, tuple) or kept > gpus or (of_nics and not nics):
        key = next(key for key in Variant.model_fields if getattr(change, key) is not None)
        has = f"has {gpus} GPUs and {nics} NICs a node" if file.counts else "lists its devices by name"
        path = key if places else f"topology.{key}"
        raise InputError([Diagnostic(f"{file.name} {has}", "leave the key out", path, places.get(key))])
    plan = template(file)
    origin = {name: name for name, data in plan.devices if data["kind"] not in ("gpu", "nic")}
    origin |= {f"gpu{i}": f"gpu{i}" for i in range(kept)}
    origin |= {f"nic{i}": f"nic{i * left // wanted}" for i in range(wanted)}
    copies = grouped(origin, origin.__getitem__)
    ends = {(a, b): link for u, v, link in plan.links for a in copies.get(u, ()) for b in copies.get(v, ())}
    document = file.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document |= {"devices": {**file.counts, "gpu": kept} | ({"nic": wanted} if nics else {}), "links": rules(ends)}
    if change.nic_bandwidth:
        document["nic"]["rate"] = change.nic_bandwidth
    if file.nccl and (change.nic_bandwidth or wanted != nics):
        document["nccl"]["graphs"] = [row for row in document["nccl"]["graphs"] if row["nodes"] == "one"]
    return _machine(yaml_tree.located(document, machine.tree.place))


def read_shipped(name: str) -> MachineFile:
    """Return the file of a shipped system."""
    return yaml_tree.once(_shipped_machine, name)


def _shipped_machine(name: str) -> MachineFile:
    return read_machine(yaml_tree.read(_SHIPPED[name]))


def in_place_of(name: str) -> str:
    """Return the fix to suggest for an unknown system name: import the file with that name, or correct the spelling."""
    if input_files.is_file(Path(name)):
        made = f"make a topology file of it (`simcoll import {name} -o machine.yaml`), and name that file"
        return f"{made}; a trace is no machine: the command makes a workload of it"
    return did_you_mean(name, _SHIPPED)


def template(file: SystemFile, tree: Node | None = None, hosts: int | None = None) -> FabricPlan:
    """Return the devices and links that a file describes, with its device names. `tree` locates mistakes for messages.

    Raises InputError for a device or link given twice, and for a pattern without a match."""
    plan = FabricPlan(list(_devices(file, hosts)))
    names = dict.fromkeys(name for name, _ in plan.devices)
    twice = [name for name, count in Counter(name for name, _ in plan.devices).items() if count > 1]
    if twice:
        source = tree.place.source if tree else file.name
        raise InputError(f"{source}: device {twice[0]!r} stands twice", "name it once")
    kinds: dict[tuple[str, str], int] = {}
    for i, rule in enumerate(file.links):
        link = Link(
            units.parse(rule.bandwidth, "bandwidth"), latency_ps=units.parse(rule.latency, "duration"), kind=rule.kind
        )
        try:
            for u, v in dict.fromkeys(_pairs(rule, names)):
                if kinds.setdefault((u, v), i) != i:
                    raise ValueError(f"{u}->{v} has a link already; join the two into one with their summed bandwidth")
                plan.links.append((u, v, link))
        except ValueError as error:
            links = tree.get("links") if tree else None
            place = links.value[i].place if links else tree.place if tree else Place(file.name, 1, 1)
            raise InputError([Diagnostic.of(error, f"links.{i}", place)]) from None
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
        raise InputError("topology: `hosts` needs a fabric of bare hosts", "write `nodes`")
    counts = {**file.devices, **({"host": hosts} if hosts else {})}
    number = sum(counts.values())
    check_memory(number * LINK_BYTES, f"{number} devices", "take fewer", "topology")  # at least one link each
    for kind, count in counts.items():
        for name in (f"{kind}{i}" for i in range(count)):
            yield name, {"kind": kind, **({"in_network": True} if name in file.in_network else {})}


def _pairs(rule: LinkRule, names: Mapping[str, None]) -> Iterator[tuple[str, str]]:
    for u, v in rule.pairs or _matched(str(rule.from_), str(rule.to), names):
        for name in (u, v):
            if name not in names:
                raise ValueError(f"there is no device {name!r}; {did_you_mean(name, names)}")
        yield u, v
        if not rule.oneway:
            yield v, u


def _matched(left: str, right: str, names: Mapping[str, None]) -> Iterator[tuple[str, str]]:
    tails = _matching(left, names)
    if right == "self":
        return ((name, name) for name in tails)
    heads = _matching(right, names)
    links = len(tails) * len(heads)
    check_memory(links * LINK_BYTES, f"{links} links from {left} to {right}", "take fewer devices", "topology")
    return ((u, v) for u in tails for v in heads if u != v)


def _matching(pattern: str, names: Mapping[str, None]) -> list[str]:
    matching: list[str] = fnmatch.filter(names, pattern)
    if not matching:
        raise ValueError(f"{pattern!r} matches no device; {did_you_mean(pattern, names)}")
    return matching


# --- the node of a machine whose devices are listed ---


def counted(file: SystemFile) -> CountedMachine:
    """Convert a file that lists every device into the equivalent file of one node. Return it with the number of nodes.

    Devices of a node are numbered by kind, in the order of the list. A link gets the least bandwidth among the
    corresponding links of all nodes, as NCCL's channels do. Raises TopologyError if nodes differ, if the file does not
    describe the GPUs (key `gpu`), and for kinds of devices that NCCL does not know.
    """
    if file.gpu is None:
        cure = "add gpu: {model: …, generation: …, compute_capability: …}, to a graph as graph.graph['gpu']"
        raise TopologyError(f"{file.name} lists its devices, but does not say which GPUs they are", cure)
    plan = template(file)
    home = {device: data["node"] for device, data in plan.devices}
    kinds = {device: data["kind"] for device, data in plan.devices}
    members = grouped(kinds, home.__getitem__)
    between = members.pop(None, [])
    if misplaced := [device for device in between if kinds[device] in NODE_KINDS]:
        problem = f"{file.name}: {kinds[misplaced[0]]} {misplaced[0]!r} has no `node`"
        raise TopologyError(problem, "give it `node`, the number of its machine", about=(misplaced[0],))
    names = _names(file.name, members, kinds)
    inside: dict[int, dict[tuple[str, str], Link]] = {node: {} for node in members}
    has = {node: Counter(kinds[device] for device in devices) for node, devices in members.items()}
    for device, data in plan.devices:
        if data["in_network"] and home[device] is not None:
            has[home[device]][f"{names[device]} with in_network"] += 1
    out: list[Link] = []
    for u, v, link in plan.links:
        if home[u] is not None and home[u] == home[v]:
            inside[home[u]][names[u], names[v]] = link
            has[home[u]][f"{link.kind} {names[u]}->{names[v]}"] += 1
        elif "nic" in (kinds[u], kinds[v]):
            out.append(link)
            nic = u if kinds[u] == "nic" else v
            has[home[nic]][f"{link.kind} {'from' if nic == u else 'to'} {names[nic]}"] += 1
    first = next(iter(members))
    _check_alike(file.name, first, has)
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
    return CountedMachine(SystemFile.model_validate(document), len(members))


def hosts_of(node: SystemFile) -> int:
    """Return the number of hosts in a node: groups of devices that other links than NVLink join, each with GPUs and a
    processor. A rack of NVL72 has one for each tray; other systems, and files without processors, have one."""
    plan = template(node)
    wiring, kinds = Wiring(), {name: data["kind"] for name, data in plan.devices}
    links = [(u, v) for u, v, link in plan.links if u != v and link.kind not in ("nvlink", "xgmi")]
    wiring.fill(((name, {}) for name in kinds), ((u, v, Link(1, 0)) for u, v in links))
    groups = {frozenset(wiring.reached(gpu)) for gpu, kind in kinds.items() if kind == "gpu"}
    return max(1, len(groups)) if all(any(kinds[each] == "cpu" for each in group) for group in groups) else 1


def node_file(file: SystemFile) -> SystemFile:
    """Return the file itself if it counts its devices, else the file of one node; raises TopologyError as `counted`."""
    return file if isinstance(file.devices, dict) else counted(file).node


def _names(machine: str, members: Mapping[int, Sequence[str]], kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each device in its machine, e.g. `gpu0`. Raises TopologyError for kinds unknown to NCCL."""
    names: dict[str, str] = {}
    for node, devices in members.items():
        counts: Counter[str] = Counter()
        for device in devices:
            kind = kinds[device]
            if kind not in NODE_KINDS:
                problem = f"{machine}: device {device!r} of node {node} is a {kind}, which NCCL does not know"
                raise TopologyError(problem, f"give it one of the kinds {', '.join(NODE_KINDS)}", about=(device,))
            names[device] = f"{kind}{counts[kind]}"
            counts[kind] += 1
    return names


def _check_alike(machine: str, first: int, has: Mapping[int, Counter[str]]) -> None:
    """Raise TopologyError with the first difference between a node and the first node."""
    for node in has:
        for one, other in ((first, node), (node, first)):
            if more := has[one] - has[other]:
                what, count = next(iter(more.items()))
                each = f"{count} more {what}" if count > 1 or has[other][what] else str(what)
                problem = f"{machine}: node {one} has {each}, and node {other} has not (compared in the listed order)"
                raise TopologyError(problem, _ALIKE)


def _least(links: Iterable[Link]) -> Link:
    every = list(links)
    latency = max(link.latency_ps for link in every)
    return Link(min(link.bandwidth for link in every), latency_ps=latency, kind=every[0].kind)


def rules(links: Mapping[tuple[str, str], Link]) -> list[dict[str, Any]]:
    """Return the rules for the key `links` of a topology file, one per group of equal links. `links`: by their ends."""
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
