"""Read what `rocm-smi --showtopo` and `amd-smi topology` print: matrices of GPUs with the hops and the types of links.

The text names neither the GPUs nor how many links join two of them, so a system must be named that has such GPUs. GPUs
one hop apart over XGMI are joined directly. All reach the host over PCIe, at the processor of their NUMA node.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from simcoll.errors import InputError, Place
from simcoll.formats.topologies import nvidia_smi
from simcoll.formats.topologies._sketch import Sketch, lender
from simcoll.formats.topologies.nvidia_smi import MOST_DEVICES, Matrix
from simcoll.topology.machine_files import SystemFile

_TITLE: Final = re.compile(r"(weight|hops|link type)\s+(?:between two GPUs|table)\b", re.IGNORECASE)
_NUMA: Final = re.compile(r"GPU\[([0-9]+)\].*Numa Node:\s*([0-9]+)", re.IGNORECASE)
_CURE: Final = "give the whole text of `rocm-smi --showtopo`"


def looks(text: str) -> bool:
    """Return whether a text has the title of the matrix of link types."""
    return any(title[1].lower() == "link type" for title in _TITLE.finditer(text))


def read(text: str, source: str, assumed: str | None = None) -> Sketch:
    """Return the machine of the matrices. Speeds, latencies and NICs' facts are those of the `assumed` system. Raises
    InputError with the line, and SimcollError unless a system of AMD is named."""
    matrix = _parse(text, source)
    problem = f"the matrices of rocm-smi do not say which {len(matrix.gpus)} GPUs of AMD these are"
    lent = lender(source, assumed, problem, lambda _: False, _not_amd)
    sketch = Sketch(lent)
    sketch.notes.read.append(f"{len(matrix.gpus)} GPUs of rocm-smi, which shows no NICs")
    sketch.notes.assume(f"speeds and latencies, which the matrices do not carry, are those of {lent.name}")
    names = {gpu: sketch.add("gpu") for gpu in matrix.gpus}
    for a, b in itertools.combinations(matrix.gpus, 2):
        if matrix.cells[a, b] == "XGMI":
            sketch.join(names[a], names[b], lent.between(names[a], names[b], "xgmi"))
    nvidia_smi.join_by_pcie(matrix, matrix.gpus, names, sketch)
    sketch.borrow()
    return sketch


def _not_amd(file: SystemFile) -> str:
    return "" if file.gpu and file.gpu.vendor == "amd" else "its GPUs are not of AMD"


def _parse(text: str, source: str) -> Matrix:
    """Return the GPUs, with the cell XGMI for those one hop apart over such a link, else SYS."""
    lines = text.splitlines()
    tables = {
        title[1].lower(): _table(lines, i, source) for i, line in enumerate(lines) if (title := _TITLE.search(line))
    }
    if "link type" not in tables:
        raise InputError(f"{source}: no matrix of link types", _CURE)
    kinds, hops = tables["link type"], tables.get("hops", {})
    gpus = tuple(dict.fromkeys(a for a, _ in kinds))
    cells = {pair: "XGMI" if kind == "XGMI" and hops.get(pair, "1") == "1" else "SYS" for pair, kind in kinds.items()}
    nodes = dict.fromkeys(gpus, "0") | {gpus[int(m[1])]: m[2] for m in _NUMA.finditer(text) if int(m[1]) < len(gpus)}
    return Matrix(gpus, (), cells, nodes, {})


def _table(lines: list[str], title: int, source: str) -> dict[tuple[str, str], str]:
    """Return the cells of the matrix below a title, by row and column."""
    below = [(number, line.split()) for number, line in enumerate(lines[title + 1 :], title + 2) if line.strip()]
    columns = below[0][1] if below else []
    rows = below[1 : len(columns) + 1]
    if not 1 < len(columns) <= MOST_DEVICES or len(rows) < len(columns) or len(set(columns)) < len(columns):
        raise InputError("no whole matrix of GPUs below this title", _CURE, Place(source, title + 1, 1))
    for name, (number, words) in zip(columns, rows, strict=True):
        if words[0] != name or len(words) != len(columns) + 1:
            raise InputError(f"no row of {len(columns)} cells for {name}", _CURE, Place(source, number, 1))
    return {
        (a, b): cell.upper()
        for a, (_, words) in zip(columns, rows, strict=True)
        for b, cell in zip(columns, words[1:], strict=True)
    }
