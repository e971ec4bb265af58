"""Places of devices in the picture of a topology: GPUs of a machine in rows, switches above, or a circle or grid."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.config.groups import grouped
from simcoll.topology.graph import Topology

MOST: Final = 6  # machines drawn; of more, the first and the last
STEP: Final = 0.36  # inches between GPUs of a machine
ROW: Final = 0.62  # inches between rows of a machine
LEVEL: Final = 0.95  # inches between levels of switches, more where these are wide
ROWS: Final = ("nvswitch", "gpu", "host", "pcie_switch", "cpu", "nic")  # from the bottom
NAMES: Final = {"gpu": "GPU", "pcie_switch": "PCIe switch", "cpu": "CPU", "nic": "NIC", "host": "host"}


class DeviceBox(NamedTuple):
    """Place of a device in the drawing: centre, size in inches, text."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass
class Drawing:
    """Boxes of devices, frames of machines (title, left, bottom, right, top), names of rows (text, y)."""

    boxes: dict[str, DeviceBox] = field(default_factory=dict)
    frames: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    rows: dict[str, float] = field(default_factory=dict)
    notes: list[tuple[float, float, str]] = field(default_factory=list)
    cell: float = 0.0  # inches between neighbours, where machines are joined without switches


def layout_of(topology: Topology) -> Drawing:
    """The boxes, frames and rows of a topology."""
    layout = Drawing()
    groups = grouped(topology.kinds, topology.node_of)
    switches, members = groups.get(None, []), {node: of for node, of in groups.items() if node is not None}
    if not members or (not switches and len(members) == len(topology.ranks) > 1):
        dims = topology.wiring.dims
        (_grid if len(dims) == 2 else _circle)(layout, list(topology.kinds), dims)
        return layout
    if all(len(devices) == 1 for devices in members.values()) and len(members) > 1:
        top = _hosts(layout, [devices[0] for devices in members.values()])
    else:
        top = _machines(layout, topology, list(members.items()))
    _switches(layout, topology, switches, top)
    return layout


def _circle(layout: Drawing, devices: Sequence[str], _: Sequence[int]) -> None:
    radius = max(1.0, 0.62 * len(devices) / (2 * math.pi))
    layout.cell = 2 * radius  # every link is straight
    for i, device in enumerate(devices):
        angle = math.pi / 2 - 2 * math.pi * i / len(devices)
        layout.boxes[device] = DeviceBox(
            radius * math.cos(angle), radius * math.sin(angle), width_of(device), 0.26, device
        )


def _grid(layout: Drawing, devices: Sequence[str], dims: Sequence[int]) -> None:
    layout.cell = 0.85
    for i, device in enumerate(devices):
        row, column = divmod(i, dims[1])
        layout.boxes[device] = DeviceBox(column * layout.cell, -row * layout.cell, width_of(device), 0.26, device)


def _hosts(layout: Drawing, devices: Sequence[str]) -> float:
    """A row of bare hosts, with their names where there is room."""
    few = len(devices) <= 24
    step = 0.62 if few else 0.3
    for i, device in enumerate(devices):
        text = device if few else _number(device)
        layout.boxes[device] = DeviceBox(i * step, 0, 0.5 if few else 0.24, 0.26, text)
    if not few:
        layout.rows["host"] = 0
    return 0.0


def _machines(layout: Drawing, topology: Topology, members: Sequence[tuple[int, Sequence[str]]]) -> float:
    """Machines side by side; returns the height of their top row."""
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
    """The rows of one machine, each spread over its width; returns the width and the height of the top row."""
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
    """Switches outside machines, a row a level, each row spread over the whole width."""
    levels = grouped(switches, lambda switch: int(topology.wiring.devices[switch].get("level", 1)))
    edges = [edge for box in layout.boxes.values() for edge in (box.x - box.width / 2, box.x + box.width / 2)]
    left, width = min(edges), max(edges) - min(edges)
    height = max(LEVEL, min(1.8, 0.1 * width))
    routers = all(switch.endswith("router0") for switch in switches)
    for i, level in enumerate(sorted(levels)):
        row = _drawn_routers(layout, levels[level]) if routers else levels[level]
        wide = min(max(map(width_of, map(_short, row))), 0.94 * width / len(row))
        if len(row) == 1:
            wide = width  # so that its links stand upright
        for j, switch in enumerate(row):
            x = left + width * (j + 0.5) / len(row)
            layout.boxes[switch] = DeviceBox(x, top + height * (i + 1), wide, 0.26, _short(switch))


def _drawn_routers(layout: Drawing, row: Sequence[str]) -> list[str]:
    drawn = {device.split(".")[0] for device in layout.boxes}
    return [switch for switch in row if switch.split(".")[0] in drawn]


def width_of(text: str) -> float:
    """Inches that a text takes."""
    return 0.14 + 0.062 * len(text)


def _short(switch: str) -> str:
    return switch.rsplit(".", 1)[-1] if switch.startswith("node") else switch


def _number(device: str) -> str:
    digits = re.search(r"\d+$", device)
    return digits[0] if digits else device
