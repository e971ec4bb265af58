"""Read NCCL's graph files, which NCCL writes to NCCL_GRAPH_DUMP_FILE and reads from NCCL_GRAPH_FILE.

    <graphs version="1">
      <graph id="0" pattern="4" nchannels="1" speedintra="20" speedinter="20" typeintra="NVL" typeinter="PIX" …>
        <channel> <gpu dev="0"/> <gpu dev="1"/> </channel>

Speeds are in GB/s per channel. On several nodes a channel begins and ends with `<net dev=…/>`, whose number is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from simcoll.config import input_files, xml_tree
from simcoll.config.xml_tree import Element
from simcoll.topology import nccl_graphs
from simcoll.topology.nccl_graphs import PATHS, ChannelGraph, GraphKind, GraphPattern, Graphs
from simcoll.units import int_of

MOST_BYTES: Final = 4 * 2**20  # to bound memory; a graph file is far smaller
MOST_ELEMENTS: Final = 100_000  # more than 5 graphs of 64 channels through 72 GPUs have
_DEEPEST: Final = 4  # levels of elements: graphs, graph, channel, gpu

KINDS: Final[Mapping[str, GraphKind]] = {
    "0": "ring",
    "1": "tree",
    "2": "collnet_chain",
    "3": "nvls",
    "4": "collnet_direct",
}
PATTERNS: Final[Mapping[str, GraphPattern]] = {
    "1": "balanced_tree",
    "2": "split_tree",
    "3": "tree",
    "4": "ring",
    "5": "nvls",
    "6": "collnet_direct",
}


class GraphFile(NamedTuple):
    """A graph file: its graphs, the GPUs per node in its ring, and whether channels lead to other nodes."""

    graphs: Graphs
    gpus: int
    across: bool


def read(path: Path) -> GraphFile:
    """Return the graphs of a file; raises InputError with the line of the first mistake."""
    cure = "give a file that NCCL_GRAPH_DUMP_FILE wrote"
    return parse(input_files.bytes_of(path, cure, MOST_BYTES, cure), str(path))


def parse(data: bytes | str, source: str) -> GraphFile:
    """Return the graphs in an XML text; `source` names the text in errors."""
    cure = "give a file that NCCL_GRAPH_DUMP_FILE wrote"
    root = xml_tree.parse(
        data, source, root="graphs", kind="graph file", deepest=_DEEPEST, cure=cure, most_elements=MOST_ELEMENTS
    )
    graphs: dict[GraphKind, ChannelGraph] = {}
    for element in root.children:
        if element.name != "graph":
            element.wrong("is not allowed in <graphs>", "write <graph …>")
        kind = KINDS.get(element.text("id"))
        if kind is None or kind in graphs:
            element.wrong(f"id={element.text('id')!r} is not known, or stands twice", "write 0 to 4, each once")
        if element.number("nchannels"):
            graphs[kind] = _graph(element)
    if "ring" not in graphs:
        root.wrong("has no ring (id 0) with channels", "give the whole file that NCCL wrote")
    channels = (channel for element in root.children for channel in element.children)
    across = any(end.name == "net" for channel in channels for end in channel.children)
    return GraphFile(graphs, len(graphs["ring"].orders[0]), across)


def _graph(element: Element) -> ChannelGraph:
    orders = tuple(_order(channel) for channel in element.children)
    if len(orders) != element.number("nchannels"):
        problem = f"nchannels={element.text('nchannels')!r}, but the number of channels is {len(orders)}"
        element.wrong(problem, f'write nchannels="{len(orders)}"')
    if len({len(order) for order in orders}) > 1:
        element.wrong("channels have different numbers of GPUs", "let them have the same GPUs")
    for name in ("speedintra", "speedinter"):
        if not element.number(name):
            element.wrong(f"{name} is 0", "write GB/s of a channel")
    paths: Mapping[str, nccl_graphs.Path] = {path: path for path in PATHS}
    return ChannelGraph.model_validate(
        {
            "channels": len(orders),
            "intra": element.number("speedintra"),
            "inter": element.number("speedinter"),
            "pattern": element.one_of("pattern", PATTERNS),
            "type_intra": element.one_of("typeintra", paths),
            "type_inter": element.one_of("typeinter", paths, "PIX"),
            "same_channels": element.number("samechannels", "1") != 0,
            "cross_nic": int(element.number("crossnic", "0")),
            "latency_us": element.number("latencyinter", "0"),
            "orders": orders,
        }
    )


def _order(channel: Element) -> tuple[int, ...]:
    if channel.name != "channel":
        channel.wrong("is not allowed in <graph>", "write <channel>")
    gpus: list[int] = []
    for element in channel.children:
        if element.name not in ("gpu", "net"):
            element.wrong("is not allowed in <channel>", 'write <gpu dev="…"/> or <net dev="…"/>')
        if element.name == "gpu":
            gpus.append(_device(element))
    if not gpus or len(set(gpus)) < len(gpus):
        channel.wrong("has no GPU, or one GPU twice", "list each GPU once")
    return tuple(gpus)


def _device(element: Element) -> int:
    text = element.text("dev")
    try:
        device = int_of(text) if text.isdecimal() else int(text, 16)  # newer releases write 0x7
    except ValueError:
        device = -1
    if device < 0:
        element.wrong(f"dev={text!r} is no number", 'write e.g. dev="0"')
    return device
