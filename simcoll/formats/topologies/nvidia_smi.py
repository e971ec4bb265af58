"""Read the matrix of `nvidia-smi topo -m`, which shows the kind of path between GPUs and NICs, but no speeds.

Cells: `X` the device itself; `NV#` # NVLinks, to each other or to switches; `PIX` at most one PCIe bridge; `PXB` more
bridges, but no host bridge; `PHB` a host bridge; `NODE` host bridges of a NUMA node; `SYS` (once `SOC`) across sockets.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from simcoll.errors import InputError, Place
from simcoll.formats.topologies._sketch import NVLINKS, LenderSystem, Sketch, lender, nvlinks
from simcoll.topology.machine_files import SystemFile

MOST_DEVICES: Final = 160  # of one matrix; 72 GPUs with a NIC each are 144
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_GPU: Final = re.compile(r"GPU[0-9]+")
_CELL: Final = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_WORD: Final = re.compile(r"\S+")

_LEGEND: Final = re.compile(r"\s*(NIC[0-9]+)\s*:\s*(\S+)\s*$")
_SWITCHED = ("PIX", "PXB")
_NEAR = ("PIX", "PXB", "PHB", "NODE")


class Matrix(NamedTuple):
    """The contents of the matrix: names of GPUs and NICs. `cells[a, b]` is the path between two devices, `numa` each
    device's NUMA node or processors, `called` each NIC's name in the legend."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    numa: Mapping[str, str]
    called: Mapping[str, str]


def looks(text: str) -> bool:
    """Return whether a line names GPUs as columns, as the matrix's header does."""
    lines = [_COLOUR.sub("", line) for line in text.splitlines()]
    return any(_is_header(line) for line in lines)


def _is_header(line: str) -> bool:
    words = line.split()
    return bool(words) and _GPU.fullmatch(words[0]) is not None and not any(_CELL.fullmatch(word) for word in words[1:])


def read(text: str, source: str, assumed: str | None = None) -> Sketch:
    """Return the machine of a matrix. Speeds and latencies come from the `assumed` shipped system, or from the only one
    with such numbers of NVLinks. Raises InputError with line and column, and SimcollError if several systems fit."""
    matrix = parse(text, source)
    sketch = Sketch(_pattern(matrix, source, assumed))
    notes = sketch.notes
    notes.read.append(f"{len(matrix.gpus)} GPUs, {len(matrix.nics)} NICs of nvidia-smi topo -m")
    reason = "as was asked for" if assumed else "no other has so many NVLinks"
    notes.assume(
        f"speeds and latencies, which the matrix does not carry, are those of {sketch.pattern.name} ({reason})"
    )
    names = {gpu: sketch.add("gpu") for gpu in matrix.gpus}
    nics = _near_gpus(matrix, sketch)
    names |= {nic: sketch.add("nic") for nic in nics}
    if called := [f"{names[nic]} is {matrix.called[nic]}" for nic in nics if nic in matrix.called]:
        notes.read.append(f"names of NICs: {', '.join(called)}")
    _nvlinks(matrix, names, sketch)
    join_by_pcie(matrix, [*matrix.gpus, *nics], names, sketch)
    sketch.borrow()
    return sketch


# --- the text ---


def parse(text: str, source: str) -> Matrix:
    """Parse the matrix in a text; text around it is ignored."""
    lines = [_COLOUR.sub("", line) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        problem = f"{source}: no line names GPUs as columns"
        raise InputError(problem, "give what `nvidia-smi topo -m` prints, its first line included")
    columns = _header(lines[start], Place(source, start + 1, 1))
    rows: dict[str, list[str]] = {}
    numa: dict[str, str] = {}
    called: dict[str, str] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        name = (line.split() or [""])[0]
        if name in columns and name not in rows:
            rows[name], numa[name] = _row(line, columns, Place(source, number, 1))
        elif legend := _LEGEND.fullmatch(line):
            called[legend[1]] = legend[2]
    missing = [name for name in columns if name not in rows]
    if missing:
        raise InputError(f"there is no row for {missing[0]}", "give the whole matrix", Place(source, start + 1, 1))
    cells = {(a, b): cell for a, row in rows.items() for b, cell in zip(columns, row, strict=True)}
    for a, b in itertools.combinations(columns, 2):
        if cells[a, b] != cells[b, a]:
            problem = f"{a} to {b} is {cells[a, b]}, and back {cells[b, a]}"
            raise InputError(problem, "give the matrix as it was printed", Place(source, start + 1, 1))
    gpus = tuple(name for name in columns if _GPU.fullmatch(name))
    return Matrix(gpus, tuple(name for name in columns if name not in gpus), cells, numa, called)


def _header(line: str, place: Place) -> list[str]:
    """Return the device names: all words before the processor columns."""
    words = line.split()
    ends = [i for i, word in enumerate(words) if word in ("CPU", "NUMA") or (word == "GPU" and i)]
    columns = words[: min(ends, default=len(words))]
    if len(set(columns)) < len(columns) or len(columns) > MOST_DEVICES:
        raise InputError(
            "a device is named twice, or there are too many devices", f"give at most {MOST_DEVICES}, each once", place
        )
    return columns


def _row(line: str, columns: Sequence[str], place: Place) -> tuple[list[str], str]:
    """Return the cells of a row, and its device's NUMA node or processors, which follow the cells."""
    parts = [(match[0].strip(), match.start() + 1) for match in _WORD.finditer(line)][1:]
    cells = []
    for text, column in parts[: len(columns)]:
        if not _CELL.fullmatch(text):
            where = Place(place.source, place.line, column)
            raise InputError(
                f"{text!r} is no connection of devices",
                "cells are X, NV#, PIX, PXB, PHB, NODE or SYS",
                where,
            )
        cells.append("SYS" if text == "SOC" else text)
    if len(cells) < len(columns):
        raise InputError(f"the row has {len(cells)} cells for {len(columns)} columns", "give whole rows", place)
    rest = [text for text, _ in parts[len(columns) :]]
    return cells, rest[0] if rest and re.match(r"[0-9]", rest[0]) else ""


# --- the machine ---


def _pattern(matrix: Matrix, source: str, assumed: str | None) -> LenderSystem:
    """Return the assumed system, or the only shipped one whose pairs of GPUs have these numbers of NVLinks."""
    counts = {int(cell[2:]) for cell in matrix.cells.values() if cell.startswith("NV")}
    problem = f"the matrix does not say which GPUs {f'NV{max(counts)} joins' if counts else 'these are'}"

    def contradicted(file: SystemFile) -> str:
        return _contradiction(matrix, counts, file) if _nvidia(file) else "nvidia-smi lists GPUs of NVIDIA"

    return lender(
        source,
        assumed,
        problem,
        lambda file: (
            nvlinks(file) == counts and file.counts.get("gpu", 0) >= len(matrix.gpus) and not contradicted(file)
        ),
        contradicted,
    )


def _nvidia(file: SystemFile) -> bool:
    return file.gpu is not None and file.gpu.vendor == "nvidia"


def _links(matrix: Matrix, a: str, b: str) -> int:
    """Return the number of NVLinks between two GPUs."""
    return int(cell[2:]) if (cell := matrix.cells[a, b]).startswith("NV") else 0


def _to_switch(matrix: Matrix) -> dict[str, int] | None:
    """Return the number of NVLinks of each GPU to a switch, if one joins them all: then a pair has as many as the GPU
    with fewer. A GPU may have fewer than the others if some of its NVLinks failed. None if the matrix shows no such
    switch."""
    own = {a: max((_links(matrix, a, b) for b in matrix.gpus if b != a), default=0) for a in matrix.gpus}
    pairs = itertools.combinations(matrix.gpus, 2)
    return own if all(0 < _links(matrix, a, b) == min(own[a], own[b]) for a, b in pairs) else None


def _contradiction(matrix: Matrix, counts: Collection[int], file: SystemFile) -> str:
    """Return in words how the matrix's numbers of NVLinks (`counts`) contradict those of a machine; empty if they do
    not, e.g. for a variant with other links between the same GPUs."""
    known, most = nvlinks(file), NVLINKS.get((file.gpu.compute_capability if file.gpu else None) or 0, 0)
    if known and not counts:
        return "it has no NVLinks"
    if counts and max(counts) > most:
        return f"pairs have NV{max(counts)}, and a GPU there has {most} NVLinks" if most else "it has NVLinks"
    if counts and "nvswitch" in file.counts and _to_switch(matrix) is None:
        return "pairs differ in NVLinks, and there a switch joins all"
    return ""


def _near_gpus(matrix: Matrix, sketch: Sketch) -> list[str]:
    """Return the NICs that share a PCIe switch with a GPU, without NICs for storage or management; all if none does."""
    near = [nic for nic in matrix.nics if any(matrix.cells[nic, gpu] in _SWITCHED for gpu in matrix.gpus)]
    far = [nic for nic in matrix.nics if nic not in near]
    if near and far:
        shares = "shares a PCIe switch with a GPU, as others do: taken to be for storage or management, and left out"
        sketch.notes.assume(f"{', '.join(far)}: none {shares}")
    return near or far


def _nvlinks(matrix: Matrix, names: Mapping[str, str], sketch: Sketch) -> None:
    pairs, pattern = list(itertools.combinations(matrix.gpus, 2)), sketch.pattern
    counts = [_links(matrix, *pair) for pair in pairs]
    if not any(counts):
        return
    each = f"{pattern.nvlink:g} GB/s an NVLink and direction"
    alike, own = len(set(counts)) == 1, _to_switch(matrix)
    if own and pattern.switched(max(counts), len(matrix.gpus)):
        switch = sketch.add("nvswitch")
        for gpu, count in own.items():
            sketch.join(names[gpu], switch, pattern.speed("nvlink", count * pattern.nvlink))
        few = "".join(f", {gpu} of NV{count}" for gpu, count in own.items() if count < max(counts))
        sketch.notes.assume(f"all pairs have NV{max(counts)}{few}: an NVSwitch joins them; {each}")
        return
    # routing takes the first of equally short routes, so links of most NVLinks come first, as in files of systems
    for (a, b), count in sorted(zip(pairs, counts, strict=True), key=lambda pair: -pair[1]):
        if count:
            sketch.join(names[a], names[b], pattern.direct(count * pattern.nvlink))
    found = (
        f"all pairs have NV{counts[0]}, which together are at most a GPU's NVLinks"
        if alike
        else "pairs differ in NVLinks"
    )
    sketch.notes.assume(f"{found}: they join GPUs directly; {each}")


def join_by_pcie(matrix: Matrix, devices: Sequence[str], names: Mapping[str, str], sketch: Sketch) -> None:
    """Add a PCIe switch per group of devices that share bridges, and a CPU per group with one host bridge or NUMA
    node."""
    cells, pattern = matrix.cells, sketch.pattern
    bridged = _groups(devices, lambda a, b: cells[a, b] in _SWITCHED)
    for group in bridged:
        if any(cells[pair] == "PXB" for pair in itertools.combinations(group, 2)):
            sketch.notes.assume("devices with PXB between them share one PCIe switch")

    def same(a: str, b: str) -> bool:
        known = bool(matrix.numa.get(a)) and matrix.numa.get(a) == matrix.numa.get(b)
        return cells[a, b] in _NEAR or (known and not cells[a, b].startswith("SYS"))

    sockets = _groups(devices, same)
    tops = [sketch.add("cpu") for _ in sockets]
    numbered = sorted(sockets, key=lambda socket: _first_number(matrix.numa.get(socket[0], "")))
    for socket in sockets:
        cpu = tops[numbered.index(socket)]
        for group in (group for group in bridged if group[0] in socket):
            above = cpu
            if len(group) > 1:
                above = sketch.add("pcie_switch")
                sketch.join(above, cpu, pattern.speed("pcie"))
            for device in group:
                kind = "gpu" if device in matrix.gpus else "nic"
                sketch.join(names[device], above, pattern.ways_up.get(kind, pattern.speed("pcie")))
    for a, b in itertools.combinations(tops, 2):
        sketch.join(a, b, pattern.speed("socket"))


def _first_number(text: str) -> int:
    return int(found[0]) if (found := re.match(r"[0-9]{1,9}", text)) else 0


def _groups(devices: Sequence[str], joined: Callable[[str, str], bool]) -> list[list[str]]:
    """Return the connected components of devices under the relation `joined`, in order."""
    import networkx as nx

    graph: Any = nx.Graph()
    graph.add_nodes_from(devices)
    graph.add_edges_from(pair for pair in itertools.combinations(devices, 2) if joined(*pair))
    return [sorted(part, key=devices.index) for part in nx.connected_components(graph)]
