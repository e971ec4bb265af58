"""A small graph class for devices and the links between them, so that a run need not load networkx."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from simcoll import units
from simcoll.config.numpy_helpers import distinct
from simcoll.errors import TopologyError

if TYPE_CHECKING:
    import networkx as nx

MEMORY: Final = "memory"  # the kind of a device's link to itself
GPU_LINKS: Final = ("nvlink", "xgmi")  # kinds of links between GPUs, or to their switch; other GPUs are joined by PCIe


@dataclass(frozen=True, init=False)
class Link:
    """One direction of a cable or bus: its bandwidth, its latency, and its `kind`, such as `nvlink`.

    `bandwidth` and `latency` are texts with units, or numbers in B/s and seconds. Both are needed. A bandwidth of 0
    means that a fault or a scenario took the link down. A latency of 0 becomes 1 ps. In place of `latency` you can give
    `latency_ps`, a whole number of picoseconds. Raises TopologyError for anything else.

    >>> Link("25 GB/s", "1.5 us") == Link(25e9, 1.5e-6) == Link(25e9, latency_ps=1_500_000)
    True
    """

    bandwidth: int
    latency_ps: int
    kind: str = "link"

    def __init__(
        self,
        bandwidth: float | str,
        latency: float | str | None = None,
        kind: str = "link",
        *,
        latency_ps: int | None = None,
    ):
        if latency is not None and latency_ps is not None:
            raise TopologyError("a link has both `latency` and `latency_ps`", "give one of them")
        if latency is None and latency_ps is None:
            raise TopologyError("a link has no latency", "give it, e.g. Link('25 GB/s', '1 us'); 0 for none")
        late = _latency(latency) if latency_ps is None else _whole("latency_ps", "ps", latency_ps)
        object.__setattr__(self, "bandwidth", _bandwidth(bandwidth))
        object.__setattr__(self, "latency_ps", max(1, late))
        object.__setattr__(self, "kind", kind)


def _bandwidth(value: object) -> int:
    """Return the B/s of a text or a number; raises TopologyError."""
    value = units.unboxed(value)
    return _of_text("bandwidth", value) if isinstance(value, str) else _whole("bandwidth", "B/s", value)


def _latency(value: object) -> int:
    """Return the picoseconds of a text or a number of seconds; raises TopologyError."""
    value = units.unboxed(value)
    if isinstance(value, str):
        return _of_text("duration", value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LONGEST_S:
        cure = f"give seconds, from 0 to below {_LONGEST_S} (1.5e-6), or a text: '1.5 us'"
        raise TopologyError(f"a link's latency is {value!r}", cure)
    return _of_text("duration", f"{value!r} s")


_LONGEST_S: Final = 1  # for bare numbers of seconds; a larger one was probably meant in ns or ps


def _of_text(kind: Literal["bandwidth", "duration"], text: str) -> int:
    try:
        return units.parse(text, kind)
    except ValueError as error:
        raise TopologyError(f"a link's {'latency' if kind == 'duration' else kind}: {error}") from None


def _whole(name: str, unit: str, value: object) -> int:
    """Return a number as an int of `unit` (B/s or ps); raises TopologyError if it is no whole number, or negative."""
    value = units.unboxed(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        or_text = ", or a text: '25 GB/s'" if name == "bandwidth" else ""
        raise TopologyError(f"a link's {name} is {value!r}", f"give a whole number of {unit}{or_text}")
    if not 0 <= value <= 2**62:  # as texts are: sums stay in 64 bits
        raise TopologyError(f"a link's {name} is {value}", f"give at least 0 {unit}, and at most {2**62}")
    return value


class Wiring:
    """Devices with attributes, and at most one link from one device to another; ordered as in a networkx.DiGraph.
    `dims` are the sides of a torus or ring of machines, empty for other fabrics."""

    def __init__(self, dims: Iterable[int] = ()):
        self.dims = tuple(dims)
        self.devices: dict[str, dict[str, Any]] = {}
        self.ahead: dict[str, dict[str, Link]] = {}
        self.behind: dict[str, dict[str, Link]] = {}

    @classmethod
    def of(cls, graph: nx.Graph[str], dims: Iterable[int] = ()) -> Wiring:
        """Convert a networkx graph. An undirected edge becomes two links; a device number becomes a name. Raises
        TopologyError for a device without `kind`, for an edge with neither `link` nor `bandwidth` and `latency`, and
        for several edges between two devices."""
        import networkx as nx

        if graph.is_multigraph():
            _check_single(graph)
        directed = nx.DiGraph(graph)
        if not all(isinstance(device, str) for device in directed):  # networkx's own graphs have numbers and tuples
            directed = nx.relabel_nodes(directed, {device: str(device) for device in directed})
            if len(directed) != len(graph):
                raise TopologyError("two devices have the same name", "name devices by strings")
        wiring = cls(dims)
        for device, data in directed.nodes(data=True):
            _check_device(device, data)
            wiring.add(device, data)
        for u, v, data in directed.edges(data=True):
            wiring.join(u, v, _link_of(u, v, data))
        wiring.order_links()
        return wiring

    def graph(self, about: Mapping[str, Any]) -> nx.DiGraph[str]:
        """Return a frozen networkx graph with the graph attributes `about`."""
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph(**about)
        graph.add_nodes_from(self.devices.items())
        graph.add_edges_from((u, v, {"link": link}) for u, v, link in self)
        nx.freeze(graph)
        return graph

    def __iter__(self) -> Iterator[tuple[str, str, Link]]:
        """Yield each link with its ends, in the order of their numbers."""
        return ((u, v, link) for u, links in self.ahead.items() for v, link in links.items())

    def add(self, device: str, data: Mapping[str, Any]) -> None:
        """Add a device, or add attributes to an existing device."""
        if device not in self.devices:
            self.ahead[device], self.behind[device] = {}, {}
        self.devices[device] = {**self.devices.get(device, {}), **data}

    def fill(self, devices: Iterable[tuple[str, Mapping[str, Any]]], links: Iterable[tuple[str, str, Link]]) -> None:
        """Add many devices to an empty wiring, then links between them. This is quicker than to add them one by one."""
        known = self.devices
        for device, data in devices:
            known[device] = {**known[device], **data} if device in known else dict(data)
        self.ahead, self.behind = {device: {} for device in known}, {device: {} for device in known}
        ahead, behind = self.ahead, self.behind
        for u, v, link in links:
            ahead[u][v] = behind[v][u] = link

    def join(self, u: str, v: str, link: Link) -> None:
        """Add a link between two devices, or replace their link."""
        self.ahead[u][v] = self.behind[v][u] = link

    def order_links(self) -> None:
        """Sort the links of each device by the distance between the numbers of the two ends; at ties the lower number
        comes first. The order of links decides between equally good routes. With this order the routes do not depend on
        the order in which links were given, and routes on a torus finish one dimension after the other."""
        number = dict(zip(self.devices, itertools.count()))
        for sides in (self.ahead, self.behind):
            others = list(itertools.chain.from_iterable(sides.values()))
            counts = np.fromiter(map(len, sides.values()), np.int64, len(sides))
            first, here = np.cumsum(counts) - counts, np.repeat(np.arange(len(sides)), counts)
            away = np.fromiter(map(number.__getitem__, others), np.int64, len(others)) - here
            order = np.lexsort((2 * np.abs(away) + (away > 0), here))
            devices = list(sides)
            for place in distinct(here[order != np.arange(len(order))]).tolist():
                links = sides[devices[place]]
                nearest = order[first[place] : first[place] + counts[place]].tolist()
                sides[devices[place]] = {v: links[v] for v in map(others.__getitem__, nearest)}

    def part(self, u: str, v: str) -> None:
        """Remove the link from device `u` to device `v`."""
        del self.ahead[u][v], self.behind[v][u]

    def remove(self, device: str) -> None:
        """Remove a device with its links."""
        for v in list(self.ahead[device]):
            self.part(device, v)
        for u in list(self.behind[device]):
            self.part(u, device)
        del self.devices[device], self.ahead[device], self.behind[device]

    def copy(self) -> Wiring:
        """Return a copy that may be changed."""
        found = Wiring(self.dims)
        found.fill(self.devices.items(), self)
        return found

    def linked_with(self, some: Iterable[str]) -> dict[str, list[str]]:
        """Return for each device the devices in `some`, in their order, that it has links to and from."""
        near: dict[str, list[str]] = {}
        for device in some:
            behind = self.behind[device]
            for other in self.ahead[device]:
                if other in behind:
                    near.setdefault(other, []).append(device)
        return near

    @property
    def both_ways(self) -> bool:
        """Whether each link has a link in the opposite direction."""
        return all(links.keys() == self.behind[device].keys() for device, links in self.ahead.items())

    def reached(self, device: str, forward: bool = True) -> set[str]:
        """Return the devices that a path leads to from `device` (`forward`), or from which a path leads to it."""
        steps, found, front = self.ahead if forward else self.behind, {device}, {device}
        while front:
            front = set().union(*map(steps.__getitem__, front)) - found
            found |= front
        return found


def _check_single(graph: nx.Graph[str]) -> None:
    """Raise TopologyError for several edges between two devices: a wiring keeps only one of them, and a route, which
    names devices, could not say which edge it uses."""
    for u, v in graph.edges():
        if (count := graph.number_of_edges(u, v)) > 1:
            cure = "give one link with their summed bandwidth, or put a device of its own on each"
            raise TopologyError(f"{count} links from {u} to {v}", cure, about=(str(u), str(v)))


def _link_of(u: str, v: str, data: Mapping[str, Any]) -> Link:
    """Return the link that the attributes of an edge describe; raises TopologyError."""
    link, cure = data.get("link"), "give it link=Link(bandwidth, latency, kind), or bandwidth= and latency="
    if link is None and "bandwidth" in data and "latency" in data:
        try:
            link = Link(data["bandwidth"], data["latency"], str(data.get("kind", "link")))
        except TopologyError as error:
            (wrong,) = error.diagnostics
            raise TopologyError(f"{u}->{v}: {wrong.what}", wrong.cure, about=(u, v)) from None
    if link is None:
        half = [name for name in ("bandwidth", "latency") if name in data]
        raise TopologyError(f"{u}->{v} has no link{f', only a {half[0]}' if half else ''}", cure, about=(u, v))
    if not isinstance(link, Link):
        raise TopologyError(f"{u}->{v} has no link: link={link!r} is no Link", cure, about=(u, v))
    return link


def _check_device(device: object, data: Mapping[str, Any]) -> None:
    """Raise TopologyError for a device without a valid name, `kind` or `node`."""
    about = (str(device),)
    if not isinstance(device, str):
        raise TopologyError(f"device {device!r} is not a text", "name devices by strings")
    if not device.strip():
        raise TopologyError(f"a device is named {device!r}", "give it a name", about=about)
    if not isinstance(kind := data.get("kind"), str) or not kind.strip():
        cure = "give it e.g. kind='gpu', 'host' or 'switch'"
        raise TopologyError(f"device {device!r} has no kind", cure, about=about)
    node = data.get("node")
    if node is not None and (isinstance(node, bool) or not isinstance(node, int) or node < 0):
        raise TopologyError(
            f"device {device!r}: node {node!r} is no node number", "give 0, 1, …, or leave it out", about=about
        )
