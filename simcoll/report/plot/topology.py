"""Draw a topology: devices in layers, machines as frames, links coloured by kind and bandwidth, or by utilisation."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from simcoll.config.grouping import grouped
from simcoll.report.plot.style import FAINT, GREY, INK, finish, frame
from simcoll.topology.graph import Topology
from simcoll.units import format_bandwidth

MOST: Final = 6  # machines drawn: of more, the first and the last
MOST_HOSTS: Final = 64  # bare hosts drawn
STEP: Final = 0.36  # inches between GPUs of a machine
ROW: Final = 0.62  # inches between rows of a machine
LEVEL: Final = 0.95  # inches between levels of switches; more between wide levels
ROWS: Final = ("nvswitch", "gpu", "host", "pcie_switch", "cpu", "nic")  # from the bottom
NAMES: Final = {"gpu": "GPU", "pcie_switch": "PCIe switch", "cpu": "CPU", "nic": "NIC", "host": "host"}


class DeviceBox(NamedTuple):
    """Where a device is drawn: centre and size in inches, and its text."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass
class Drawing:
    """What is drawn where, in inches: device boxes, frames of machines (title, left, bottom, right, top), row names
    (text, y)."""

    boxes: dict[str, DeviceBox] = field(default_factory=dict)
    frames: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    rows: dict[str, float] = field(default_factory=dict)
    notes: list[tuple[float, float, str]] = field(default_factory=list)
    cell: float = 0.0  # inches between neighbours, if machines are joined without switches


def layout_of(topology: Topology) -> Drawing:
    """Return where the devices, machines and rows of a topology are drawn."""
    layout = Drawing()
    groups = grouped(topology.kinds, topology.node_of)
    switches, members = groups.get(None, []), {node: of for node, of in groups.items() if node is not None}
    if not members or (not switches and 1 < len(topology.ranks) in (len(members), len(topology.kinds))):
        _joined(layout, list(topology.kinds), topology.wiring.dims)
        return layout
    if all(len(devices) == 1 for devices in members.values()) and len(members) > 1:
        top = _hosts(layout, [devices[0] for devices in members.values()])
    else:
        top = _machines(layout, topology, list(members.items()))
    _switches(layout, topology, switches, top)
    return layout


def _joined(layout: Drawing, devices: Sequence[str], dims: Sequence[int]) -> None:
    """Lay out machines that are joined without switches: on a grid for two dimensions, else on a circle."""
    count = len(devices)
    if len(dims) == 2:
        layout.cell = 0.85
        places = [(i % dims[1] * layout.cell, -(i // dims[1]) * layout.cell) for i in range(count)]
    else:
        radius = max(1.0, 0.62 * count / (2 * math.pi))
        layout.cell = 2 * radius  # every link is straight
        angles = [math.pi / 2 - 2 * math.pi * i / count for i in range(count)]
        places = [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]
    for device, (x, y) in zip(devices, places, strict=True):
        layout.boxes[device] = DeviceBox(x, y, width_of(device), 0.26, device)


def _hosts(layout: Drawing, devices: Sequence[str]) -> float:
    """Lay out a row of hosts without GPUs, with names if there is room; of too many hosts the first and last ones."""
    few = len(devices) <= 24
    step = 0.62 if few else 0.3
    shown = devices
    if len(devices) > MOST_HOSTS:
        shown = (*devices[: MOST_HOSTS - 1], devices[-1])
        layout.notes.append(((MOST_HOSTS - 1.5) * step, 0.3, "…"))
    for i, device in enumerate(shown):
        text = device if few else _number(device)
        layout.boxes[device] = DeviceBox(i * step, 0, 0.5 if few else 0.24, 0.26, text)
    if not few:
        layout.rows["host"] = 0
    return 0.0


def _machines(layout: Drawing, topology: Topology, members: Sequence[tuple[int, Sequence[str]]]) -> float:
    """Lay out machines side by side; return the y of their top row, in inches."""
    shown, left, top = members, 0.0, 0.0
    if len(members) > MOST:
        shown = (*members[: MOST // 2], members[-1])
    for i, (node, devices) in enumerate(shown):
        if i and node > shown[i - 1][0] + 1:
            layout.notes.append((left + 0.05, 1.5 * ROW, "…"))
            left += 0.5
        width, top = _machine(layout, topology, devices, left)
        if topology.nodes > 1:
            layout.frames.append((f"node {node}", left - 0.1, -0.45, left + width + 0.1, top + 0.24))
        left += width + 0.36
    return top


def _machine(layout: Drawing, topology: Topology, devices: Sequence[str], left: float) -> tuple[float, float]:
    """Lay out a machine's rows, each spread over its width; return this width and the y of the top row, in inches."""
    rows = grouped(devices, topology.kinds.__getitem__)
    step = STEP if len(devices) <= 64 else 0.21
    width = max(step * max(map(len, rows.values())), 1.4)
    order = sorted(rows, key=lambda kind: ROWS.index(kind) if kind in ROWS else ROWS.index("pcie_switch"))
    height = 0.0
    for i, kind in enumerate(order):
        height = i * ROW
        if kind == "nvswitch":
            for device in rows[kind]:
                layout.boxes[device] = DeviceBox(left + width / 2, height, width, 0.24, "NVSwitch")
            continue
        layout.rows[NAMES.get(kind, kind)] = height
        _spread(layout, rows[kind], left, width, height, min(0.26, 0.8 * width / len(rows[kind])))
    return width, height


def _spread(layout: Drawing, devices: Sequence[str], left: float, width: float, y: float, size: float) -> None:
    for i, device in enumerate(devices):
        x = left + width * (i + 0.5) / len(devices)
        layout.boxes[device] = DeviceBox(x, y, size, 0.24, _number(device))


def _switches(layout: Drawing, topology: Topology, switches: Sequence[str], top: float) -> None:
    """Lay out the switches outside machines, a row for each level, spread over the whole width."""
    levels = grouped(switches, lambda switch: int(topology.wiring.devices[switch].get("level", 1)))
    edges = [edge for box in layout.boxes.values() for edge in (box.x - box.width / 2, box.x + box.width / 2)]
    left, width = min(edges), max(edges) - min(edges)
    height = max(LEVEL, min(1.8, 0.1 * width))
    routers = all(switch.endswith("router0") for switch in switches)
    drawn = {device.split(".")[0] for device in layout.boxes}
    for i, level in enumerate(sorted(levels)):
        row = [switch for switch in levels[level] if not routers or switch.split(".")[0] in drawn]
        wide = min(max(map(width_of, map(_short, row))), 0.94 * width / len(row))
        if len(row) == 1:
            wide = width  # its links are vertical
        for j, switch in enumerate(row):
            x = left + width * (j + 0.5) / len(row)
            layout.boxes[switch] = DeviceBox(x, top + height * (i + 1), wide, 0.26, _short(switch))


def width_of(text: str) -> float:
    """Return the width of a text in the figure, in inches."""
    return 0.14 + 0.062 * len(text)


def _short(switch: str) -> str:
    return switch.rsplit(".", 1)[-1] if switch.startswith("node") else switch


def _number(device: str) -> str:
    digits = re.search(r"\d+$", device)
    return digits[0] if digits else device


Ends = tuple[str, str]
XY = tuple[float, float]
Color = str | tuple[float, float, float, float]

FILLS: Final = {"gpu": "#DDEBD3", "host": "#DDEBD3", "nvswitch": "#CFE6E0", "nic": "#F6E3CF", "cpu": "#E6E6E6"}
KINDS: Final = {
    "nvlink": "#228833",
    "xgmi": "#AA3377",
    "c2c": "#44AA99",
    "pcie": "#4477AA",
    "socket": "#777777",
    "cable": "#EE7733",
    "trunk": "#882255",
}
OTHERS: Final = ("#332288", "#CC6677", "#999933", "#66CCEE")
LANES: Final = ("#4477AA", "#228833", "#EE7733", "#AA3377")
MARKED: Final = "#F39A9A"  # behind devices and lines
WORDS: Final = {"nvlink": "NVLink", "pcie": "PCIe", "xgmi": "Infinity Fabric", "c2c": "NVLink-C2C"}


class Overlay(NamedTuple):
    """What is marked in red, links and devices, and its `name` in the legend; trees from or to the device `root`, one
    for each of `LANES`: a text, and links in alphabetical order of their ends. `text` stands below the headline."""

    text: str
    links: Collection[Ends]
    devices: Collection[str]
    name: str
    root: str
    trees: Sequence[tuple[str, Collection[Ends]]]


def topology_figure(
    topology: Topology,
    utilisation: Mapping[Ends, float] | None = None,
    title: str = "",
    overlay: Overlay | None = None,
) -> Figure:
    """Return a topology's picture; links are coloured by `utilisation` (0 … 1 by link) if given, or grey below an
    `overlay`; `title` is the headline.

    One line stands for both directions of a link, or two lines if their utilisation differs. The link of a device to
    its own memory is not drawn.
    """
    layout = layout_of(topology)
    lines = list(_lines(topology, layout, dict.fromkeys(topology.links, 0.0) if overlay else utilisation))
    left, right, bottom, top = _extent(layout, lines)
    figure = frame(max(right - left, 4.2) + 0.2, top - bottom + 0.1)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    for line in lines:
        axes.add_artist(line)
    _draw_devices(axes, topology, layout)
    if overlay:
        entries = _overlaid(axes, layout, overlay)
    elif utilisation is None:
        entries = _entries(topology, layout)
    else:
        entries = {}
        bar = figure.colorbar(ScalarMappable(Normalize(0, 100), "plasma_r"), ax=axes, shrink=0.7, aspect=16, pad=0.02)
        bar.set_label("utilisation (%)", size=8, color=INK)
        bar.ax.tick_params(labelsize=7, color=GREY, labelcolor=INK)
        bar.outline.set_visible(False)
    said = "grey links carry nothing" if utilisation is not None else "bandwidth per direction"
    named, notes = _heading(topology, layout, [overlay.text] if overlay else [said, "width by bandwidth"])
    finish(figure, title or named, f"{named}  ·  {notes}" if title and notes else notes, entries)
    return figure


def _heading(topology: Topology, layout: Drawing, parts: list[str]) -> tuple[str, str]:
    kind = "GPU" if topology.kinds[topology.ranks[0]] == "gpu" else "host"
    count = f"{len(topology.ranks)} {kind}s" if len(topology.ranks) > 1 else f"1 {kind}"
    title = f"{topology.name}: {count}"
    if 1 < topology.nodes < len(topology.ranks):
        title += f" in {topology.nodes} nodes"
    if layout.notes:
        parts.append(f"{len(layout.frames) or MOST_HOSTS} of {topology.nodes} nodes are drawn")
    return title, "  ·  ".join(parts)


# --- how links are drawn ---


def _patch(points: Sequence[XY], width: float, color: Color, order: float, down: bool) -> PathPatch:
    """Return a shape to draw: a straight line through two points, or a curve by three."""
    path = Path(points, [Path.MOVETO, *([Path.LINETO] if len(points) == 2 else [Path.CURVE3] * 2)])
    style: dict[str, Any] = {"linestyle": ":" if down else "-", "capstyle": "butt", "zorder": 1 + order}
    return PathPatch(path, fill=False, edgecolor=color, linewidth=width, **style)


def _lines(topology: Topology, layout: Drawing, busy: Mapping[Ends, float] | None) -> Iterable[PathPatch]:
    most = max(int(topology.bandwidths.max()), 1)
    shades, colors = colormaps["plasma_r"], _colors(topology)
    for u, v in topology.links:
        if u == v or u not in layout.boxes or v not in layout.boxes:
            continue
        link, back = topology.link(u, v), topology.link(v, u) if topology.has_link(v, u) else None
        if busy is None:
            two = back is not None and back.bandwidth != link.bandwidth
        else:
            two = back is not None and not math.isclose(busy[u, v], busy[v, u], abs_tol=1e-3)
        if back and not two and u > v:
            continue
        width = _width(link.bandwidth, most)
        look: tuple[Color, float] = FAINT, -0.5  # carries nothing
        if busy is None:
            look = colors[link.kind, link.bandwidth], -width / 100
        elif busy[u, v] > 0:
            look = shades(busy[u, v]), busy[u, v] / 10
        yield _patch(_points(layout, u, v, 0.035 if two else 0.0), width, *look, not link.bandwidth)


def _width(bandwidth: int, most: int) -> float:
    """Return the width of a link's line in points, by a root of the bandwidth: a cable beside NVLink stays visible."""
    return 0.6 + 2.0 * math.pow(bandwidth / most, 0.6)


def _points(layout: Drawing, u: str, v: str, shift: float) -> tuple[XY, ...]:
    """Return the points of a line from box to box, shifted to the right: straight to a neighbour in a row, or an
    arc."""
    a, b = layout.boxes[u], layout.boxes[v]
    dx, dy = b.x - a.x, b.y - a.y
    length = math.hypot(dx, dy) or 1.0
    sx, sy = shift * dy / length, -shift * dx / length
    if layout.cell:
        ends = (a.x + sx, a.y + sy), (b.x + sx, b.y + sy)
        if length < 1.5 * layout.cell:
            return ends
        return ends[0], ((a.x + b.x) / 2 + 0.26 * abs(dy), (a.y + b.y) / 2 + 0.26 * abs(dx)), ends[1]
    if abs(dy) > 1e-9:
        up = math.copysign(0.3, dy)  # ends inside the boxes, which cover them
        return (_towards(a, b) + sx, a.y + up * a.height + sy), (_towards(b, a) + sx, b.y - up * b.height + sy)
    row = [box.x for box in layout.boxes.values() if abs(box.y - a.y) < 1e-9]
    alone = not any(min(a.x, b.x) < x < max(a.x, b.x) for x in row)
    bottom = min(box.y for box in layout.boxes.values())
    if alone and (a.y > bottom or len(row) == 2):
        return (a.x, a.y + sy), (b.x, b.y + sy)
    down = -1 if a.y == bottom else 1
    side = math.copysign(0.07, dx)
    bend = 0.12 + 0.3 * abs(dx) ** 0.85 + shift
    edge = a.y + down * a.height / 2
    return (a.x + side, edge), ((a.x + b.x) / 2, edge + 2 * down * bend), (b.x - side, edge)


def _towards(box: DeviceBox, target: DeviceBox) -> float:
    """Return the x at which a line from `target` meets a box: a wide box's nearest point, a narrow box's centre."""
    reach = box.width / 2 - 0.1 if box.width > 1 else 0.0
    return min(max(target.x, box.x - reach), box.x + reach)


def _extent(layout: Drawing, lines: Iterable[PathPatch]) -> tuple[float, float, float, float]:
    xs = [x for box in layout.boxes.values() for x in (box.x - box.width / 2, box.x + box.width / 2)]
    ys = [y for box in layout.boxes.values() for y in (box.y - 0.2, box.y + 0.2)]
    curves = [np.asarray(line.get_path().vertices) for line in lines if len(line.get_path()) == 3]
    ys += [float(points[0, 1] + points[1, 1]) / 2 for points in curves]
    ys += [y for _, _, low, _, high in layout.frames for y in (low - 0.05, high + 0.05)]
    margin = 0.15 + (0.15 + max(map(width_of, layout.rows)) if layout.rows else 0)
    return min(xs) - margin, max(xs) + 0.2, min(ys) - 0.12, max(ys) + 0.12


def _draw_devices(axes: Axes, topology: Topology, layout: Drawing) -> None:
    for title, left, bottom, right, top in layout.frames:
        _box(axes, (left, bottom), right - left, top - bottom, facecolor="#F7F7F7", edgecolor=FAINT, zorder=0.1)
        axes.text(left + 0.07, bottom + 0.05, title, size=7.5, color=GREY, va="bottom", zorder=4)
    first = min(box.x - box.width / 2 for box in layout.boxes.values()) - 0.16
    for text, y in layout.rows.items():
        axes.text(first - 0.02, y, text, size=7.5, color=GREY, ha="right", va="center")
    for x, y, text in layout.notes:
        axes.text(x, y, text, size=14, color=GREY, ha="center", va="center")
    for device, box in layout.boxes.items():
        fill = FILLS.get(topology.kinds[device], "#FFFFFF")
        _around(axes, box, 0.0, facecolor=fill, edgecolor=INK, linewidth=0.6, zorder=3)
        size = min(7.5, 72 * 0.9 * box.width / (0.6 * max(2, len(box.text))))
        axes.text(box.x, box.y - 0.005, box.text, size=size, color=INK, ha="center", va="center", zorder=4)


def _box(axes: Axes, corner: XY, width: float, height: float, **style: Any) -> None:
    shape = "round,pad=0,rounding_size=0.04"
    axes.add_artist(FancyBboxPatch(corner, width, height, boxstyle=shape, **style))  # add_patch would fit the limits


def _overlaid(axes: Axes, layout: Drawing, overlay: Overlay) -> dict[str, Artist]:
    """Draw what an overlay marks, and its trees beside each other; return the legend."""
    entries: dict[str, Artist] = {overlay.name: Line2D([], [], color=MARKED, linewidth=7)}
    drawn = layout.boxes.keys()
    for u, v in sorted({(min(ends), max(ends)) for ends in overlay.links if drawn >= set(ends)}):
        axes.add_artist(_patch(_points(layout, u, v, 0.0), 10.0, MARKED, -0.7, False))
    for device in sorted(drawn & set(overlay.devices)):
        _around(axes, layout.boxes[device], 0.08, facecolor=MARKED, edgecolor="none", zorder=0.4)
    for lane, (text, links) in enumerate(overlay.trees):
        shift = 0.03 * (lane - (len(overlay.trees) - 1) / 2)
        for u, v in sorted(links):
            if drawn >= {u, v}:
                axes.add_artist(_patch(_points(layout, u, v, shift), 1.5, LANES[lane], 1.0, False))
        entries[text] = Line2D([], [], color=LANES[lane], linewidth=1.5)
    if overlay.root in drawn:
        _around(axes, layout.boxes[overlay.root], 0.0, facecolor="none", edgecolor=INK, linewidth=2.0, zorder=3.5)
    return entries


def _around(axes: Axes, box: DeviceBox, room: float, **style: Any) -> None:
    corner = box.x - box.width / 2 - room, box.y - box.height / 2 - room
    _box(axes, corner, box.width + 2 * room, box.height + 2 * room, **style)


# --- colours and legend ---


def _colors(topology: Topology) -> dict[tuple[str, int], Color]:
    """Return a colour for each kind and bandwidth (B/s) of links; lower bandwidths are paler."""
    links = [link for (u, v), link in zip(topology.links, topology.every_link, strict=True) if u != v]
    others = itertools.cycle(OTHERS)
    colors: dict[tuple[str, int], Color] = {}
    for kind, of_kind in grouped(links, lambda link: link.kind).items():
        color, most = KINDS.get(kind) or next(others), max(1, *(link.bandwidth for link in of_kind))
        rates = {link.bandwidth for link in of_kind}
        colors |= {(kind, rate): to_rgba(color, 0.4 + 0.6 * rate / most) for rate in rates}
    return colors


def _entries(topology: Topology, layout: Drawing) -> dict[str, Artist]:
    """Return the legend: a line for each kind and bandwidth, or one line for a kind with many bandwidths."""
    most, colors = max(int(topology.bandwidths.max()), 1), _colors(topology)
    drawn = [topology.link(u, v) for u, v in topology.links if u != v and {u, v} <= layout.boxes.keys()]
    entries: dict[str, Artist] = {}
    for kind, links in grouped(drawn, lambda link: link.kind).items():
        name, rates = WORDS.get(kind, kind), sorted({link.bandwidth for link in links}, reverse=True)
        texts = {rate: f"{name} {format_bandwidth(rate) if rate else 'down'}" for rate in rates}
        if len(rates) > 4:
            texts = {rates[0]: f"{name} {format_bandwidth(rates[-1])} … {format_bandwidth(rates[0])}"}
        for rate, text in texts.items():
            width = _width(rate, most)
            entries[text] = Line2D([], [], color=colors[kind, rate], linewidth=width, linestyle="-" if rate else ":")
    return entries
