"""Read infragraph (YAML or JSON): kinds of devices made of components, instances of devices, and edges between them.

An endpoint such as `server[0:2]` and `nic[0]` names components with Python's slices; `cx5[0].port[0]` names a component
of a nested device. `one2one` pairs two lists, `many2many` joins all with all, `ring` each with the next. A component
becomes a device named by its instance and number: `server0.xpu3`. Links may have a bandwidth and a latency.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Node
from simcoll.errors import Diagnostic, InputError
from simcoll.formats.topologies._sketch import LenderSystem, LinkText, Sketch

MOST_DEVICES: Final = 20_000  # limit after the expansion of counts: a short file can describe millions
MOST_EDGES: Final = 40_000  # two for each device
MOST_MISTAKES: Final = 10  # most mistakes in a message
_DEEPEST: Final = 6  # levels of nested devices; a device that contains itself would never end
_KINDS: Final = {"xpu": "gpu", "nic": "nic", "cpu": "cpu", "memory": "memory", "port": "port"}
_ELEMENT: Final = re.compile(r"([A-Za-z0-9_-]+)(?:\[([^\]]*)\])?")
_HINTS: Final = (("GB200", "gb200-nvl72"), ("B300", "hgx-b300"), ("B200", "hgx-b200"), ("H200", "hgx-h200"),
                 ("H100", "hgx-h100"), ("A100", "dgx-a100"), ("V100", "dgx1-v100"), ("MI300", "mi300x"))  # fmt: skip


@dataclass
class _ExpandedGraph:
    """The graph after expansion of all counts: each device's kind and node, and links with their file's type."""

    tree: Node
    devices: dict[str, Node]
    kinds: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, int | None] = field(default_factory=dict)
    links: list[tuple[str, str, str, Node | None, bool]] = field(default_factory=list)  # last: between instances


def looks(text: str) -> bool:
    """Return whether a text has the keys of an infragraph file."""
    return all(
        re.search(rf'(?:^|[{{,])\s*"?{key}"?\s*:', text, re.MULTILINE) for key in ("instances", "devices", "edges")
    )


def read(text: str, source: str, assumed: str | None = None) -> InfraSketch:
    """Return the topology of an infragraph file. The `assumed` shipped system supplies missing bandwidths and
    latencies. Raises InputError with line and column."""
    mistakes: list[Diagnostic] = []
    tree = yaml_tree.parse(text, source, mistakes)
    if mistakes:
        raise InputError(mistakes[:MOST_MISTAKES])
    graph = _expanded(tree.get("infrastructure") or tree)
    said = min(((text.find(word), system) for word, system in _HINTS if word in text), default=(0, "hgx-h100"))[1]
    sketch = InfraSketch(
        LenderSystem(assumed or said), str(_scalar(graph.tree, "name", "infragraph"))[:60], graph=graph
    )
    used = {name for u, v, *_ in graph.links for name in (u, v)}
    gpus = [name for name, kind in graph.kinds.items() if kind == "gpu"]
    counts = f"{len(gpus)} GPUs, {len(used)} devices, {len(graph.links)} edges of infragraph"
    sketch.notes.read.append(counts)
    if left := [name for name in graph.kinds if name not in used]:
        sketch.notes.assume(f"devices without an edge are left out: {', '.join(left[:5])}{' …' if left[5:] else ''}")
    if not gpus:
        raise _wrong(graph.tree, "no component of choice xpu", "give an infrastructure with xpus: they are the ranks")
    for u, v, name, physical, outside in graph.links:
        _join(sketch, (u, v), name, physical, outside)
    sketch.borrow()
    return sketch


@dataclass
class InfraSketch(Sketch):
    """A topology file whose devices keep the names that the infragraph file gives them."""

    graph: _ExpandedGraph | None = None

    def contents(self) -> dict[str, Any]:
        """Return the keys of the topology file, which lists devices one by one."""
        assert self.graph is not None
        used = {name for pair in self.links for name in pair}
        devices: list[dict[str, Any]] = []
        for name, kind in self.graph.kinds.items():
            if name in used:
                node = self.graph.nodes[name]
                devices.append({"name": name, "kind": kind} | ({} if node is None else {"node": node}))
        rules = self.rules([d["name"] for d in devices if d["kind"] == "gpu"])
        return {"name": self.name, "devices": devices, "links": rules}


# --- expansion ---


def _wrong(node: Node, problem: str, cure: str) -> InputError:
    return InputError(problem, cure, node.place)


def _list(node: Node, key: str) -> list[Node]:
    child = node.get(key)
    if child is None or child.value is None:
        return []
    if not isinstance(child.value, list):
        raise _wrong(child, f"{key} is no list", "write a list")
    return list(child.value)


def _scalar(node: Node, key: str, default: Any = None) -> Any:
    child = node.get(key)
    value = default if child is None or child.value is None else child.value
    if value is None or isinstance(value, dict | list):
        raise _wrong(child or node, f"no {key!r}", "add it, as infragraph writes it")
    return value


def _count(node: Node) -> int:
    value = _scalar(node, "count", 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_DEVICES:
        raise _wrong(node, f"count {str(value)[:40]!r} is out of range", f"write 0 … {MOST_DEVICES}")
    return value


def _expanded(tree: Node) -> _ExpandedGraph:
    graph = _ExpandedGraph(tree, {str(_scalar(device, "name")): device for device in _list(tree, "devices")})
    instances = {str(_scalar(instance, "name")): instance for instance in _list(tree, "instances")}
    nodes = itertools.count()
    links = {str(_scalar(link, "name")): link for link in _list(tree, "links")}
    for name, instance in instances.items():
        device = str(_scalar(instance, "device"))
        for i in range(_count(instance)):
            before = len(graph.kinds)
            _add(graph, f"{name}{i}.", device, instance, 0)
            new = list(graph.kinds)[before:]
            node = next(nodes) if any(graph.kinds[part] == "gpu" for part in new) else None
            graph.nodes |= dict.fromkeys(new, node)
            if node is None:  # a switch of the fabric
                graph.kinds |= {part: "switch" for part in new if graph.kinds[part] != "port"}
    for edge in _list(tree, "edges"):
        ends = [_outer_end(graph, instances, edge, key) for key in ("ep1", "ep2")]
        _edges(graph, edge, ends[0], ends[1], links, outside=True)
    return graph


def _add(graph: _ExpandedGraph, prefix: str, device: str, where: Node, depth: int) -> None:
    """Add the components of a device and of the devices nested in it, and its edges."""
    definition = graph.devices.get(device)
    if definition is None or depth > _DEEPEST:
        raise _wrong(where, f"device {device[:40]!r} does not exist, or contains itself", "name one of `devices`")
    for component in _list(definition, "components"):
        name, choice = str(_scalar(component, "name")), str(_scalar(component, "choice", "custom"))
        for i in range(_count(component)):
            if choice == "device":
                _add(graph, f"{prefix}{name}{i}.", name, component, depth + 1)
            else:
                graph.kinds[f"{prefix}{name}{i}"] = _kind(name, choice, component)
            if len(graph.kinds) > MOST_DEVICES:
                raise _wrong(component, f"more than {MOST_DEVICES} devices", "give a smaller infrastructure")
    links = {str(_scalar(link, "name")): link for link in _list(definition, "links")}
    for edge in _list(definition, "edges"):
        ends = [_inner_end(graph, device, edge, key) for key in ("ep1", "ep2")]
        _edges(graph, edge, [prefix + e for e in ends[0]], [prefix + e for e in ends[1]], links, outside=False)


def _kind(name: str, choice: str, component: Node) -> str:
    if choice == "switch":
        return "nvswitch" if re.match(r"nv|nvl", name, re.IGNORECASE) else "pcie_switch"
    if choice == "custom":
        custom = component.get("custom")
        return re.sub(r"\W", "_", str(_scalar(custom, "type", "other"))) if custom else "other"
    return _KINDS.get(choice, "other")


def _end(edge: Node, key: str) -> Node:
    end = edge.get(key)
    if end is None:
        raise _wrong(edge, f"an edge without {key!r}", "name both of its ends")
    return end


def _inner_end(graph: _ExpandedGraph, device: str, edge: Node, key: str) -> list[str]:
    end = _end(edge, key)
    text = str(_scalar(end, "component"))
    inner = end.get("device")
    return _names(graph, device, f"{inner.value}.{text}" if inner is not None and inner.value else text, end)


def _outer_end(graph: _ExpandedGraph, instances: dict[str, Node], edge: Node, key: str) -> list[str]:
    end = _end(edge, key)
    match = _ELEMENT.fullmatch(str(_scalar(end, "instance")))
    if match is None or match[1] not in instances:
        raise _wrong(end, f"instance {str(_scalar(end, 'instance'))[:40]!r} does not exist", "name one of `instances`")
    instance = instances[match[1]]
    inner = _names(graph, str(_scalar(instance, "device")), str(_scalar(end, "component")), end)
    chosen = _indices(match[2], _count(instance), end)
    if len(chosen) * len(inner) > MOST_EDGES:
        raise _wrong(end, "too many ends", f"name at most {MOST_EDGES}")
    return [f"{match[1]}{i}.{name}" for i in chosen for name in inner]


def _names(graph: _ExpandedGraph, device: str, text: str, where: Node) -> list[str]:
    """Return the names of the components that `nic[0:2]` or `cx5[0].port` selects in a device."""
    names = [""]
    for element in text.split("."):
        match = _ELEMENT.fullmatch(element)
        known = graph.devices.get(device)
        components = {str(_scalar(c, "name")): c for c in _list(known, "components")} if known else {}
        if match is None or match[1] not in components:
            raise _wrong(where, f"component {element[:40]!r} is not in {device[:40]}", "name one of its components")
        chosen = _indices(match[2], _count(components[match[1]]), where)
        names = [f"{before}{'.' if before else ''}{match[1]}{i}" for before in names for i in chosen]
        device = match[1]
        if len(names) > MOST_EDGES:
            raise _wrong(where, "too many ends", f"name at most {MOST_EDGES}")
    return names


def _indices(text: str | None, count: int, where: Node) -> Sequence[int]:
    parts = (text or "").split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
        if len(numbers) == 1 and numbers[0] is not None:
            return [range(count)[numbers[0]]]
        return range(*slice(*(numbers if len(numbers) > 1 else [None])).indices(count))
    except (ValueError, TypeError, IndexError):
        raise _wrong(where, f"[{text}] selects none of {count} components", "write e.g. [0] or [0:2]") from None


def _edges(
    graph: _ExpandedGraph, edge: Node, left: list[str], right: list[str], links: dict[str, Node], *, outside: bool
) -> None:
    scheme, name = str(_scalar(edge, "scheme", "one2one")), str(_scalar(edge, "link", ""))
    if len(left) * len(right) > MOST_EDGES and scheme == "many2many":
        raise _wrong(edge, "too many edges", f"give at most {MOST_EDGES}")
    pairs: Iterator[tuple[str, str]]
    if scheme == "many2many":
        pairs = itertools.product(left, right)
    elif scheme == "one2one":
        pairs = zip(left, right, strict=False)
    elif scheme == "ring":
        members = list(dict.fromkeys([*left, *right]))
        pairs = zip(members, [*members[1:], members[0]], strict=True)
    else:
        raise _wrong(edge, f"scheme {scheme[:40]!r} is not known", "write one2one, many2many or ring")
    physical = links[name].get("physical") if name in links else None
    seen = {frozenset((u, v)) for u, v, *_ in graph.links[-1000:]} if scheme == "many2many" and left == right else set()
    for u, v in pairs:
        if u != v and frozenset((u, v)) not in seen:
            if left == right:
                seen.add(frozenset((u, v)))
            graph.links.append((u, v, name, physical, outside))
    if len(graph.links) > MOST_EDGES:
        raise _wrong(edge, "too many edges", f"give at most {MOST_EDGES}")


# --- speeds ---


def _join(sketch: InfraSketch, ends: tuple[str, str], name: str, physical: Node | None, outside: bool) -> None:
    graph, pattern = sketch.graph, sketch.pattern
    assert graph is not None
    kinds = {graph.kinds[end] for end in ends if end in graph.kinds}
    if len([end for end in ends if end in graph.kinds]) < 2:
        raise _wrong(graph.tree, f"edge {ends[0][:40]} to {ends[1][:40]}: no such component", "mend the edge")
    fabric = outside or any(graph.nodes[end] is None for end in ends)
    if "nvswitch" in kinds and not kinds <= {"nvswitch", "gpu"}:
        sketch.notes.assume("what joins NVSwitches to anything but GPUs carries no data, and is left out")
        return
    if "nvswitch" in kinds or kinds == {"gpu"}:
        kind = "nvlink"
    elif "c2c" in name.lower() and pattern.has("c2c"):
        kind = "c2c"
    elif kinds == {"cpu"}:
        kind = "socket"
    else:
        kind = "cable" if fabric else "pcie"
    speed = pattern.speed(kind) if kind != "cable" else pattern.cable
    bandwidth, latency = _physical(physical)
    if "nvswitch" in kinds:  # chips of one kind are one device: traffic is striped over them
        ends = (_first(graph, ends[0]), _first(graph, ends[1]))
        if bandwidth is None and (ends in sketch.links or ends[::-1] in sketch.links):
            return
    missing = [quantity for quantity, value in (("bandwidth", bandwidth), ("latency", latency)) if value is None]
    if missing:
        own = f"{speed.bandwidth:g} GB/s, {speed.latency:g} us"
        sketch.notes.assume(f"link {name!r} ({kind}) has no {' and no '.join(missing)}: {pattern.name} lends {own}")
    given = LinkText(bandwidth or speed.bandwidth, speed.latency if latency is None else latency, kind)
    sketch.join(*ends, given)


def _first(graph: _ExpandedGraph, name: str) -> str:
    return re.sub(r"[0-9]+$", "0", name) if graph.kinds[name] == "nvswitch" else name


def _physical(node: Node | None) -> tuple[float | None, float | None]:
    """Return a link's bandwidth in GB/s and latency in us, None if missing. Transfers per second count as 16 lanes of
    PCIe, with NCCL's payload per transfer."""
    if node is None:
        return None, None
    per = {"gigabits_per_second": 0.125, "gigabytes_per_second": 1.0, "gigatransfers_per_second": 1.5}
    times = {"ms": 1000.0, "us": 1.0, "ns": 0.001}
    return _value(node.get("bandwidth"), per, positive=True), _value(node.get("latency"), times, positive=False)


def _value(node: Node | None, factors: dict[str, float], *, positive: bool) -> float | None:
    for unit, factor in factors.items():
        child = node.get(unit) if node is not None else None
        if child is not None and child.value is not None:
            number = child.value
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9:
                raise _wrong(child, f"{unit} {str(number)[:40]!r} is no number", "write e.g. 400")
            return number * factor if number or not positive else None
    return None
