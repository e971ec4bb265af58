"""NCCL's graph file as a machine: GPUs on a switch, with the bandwidth that the channels of its ring have together."""

from __future__ import annotations

from typing import Any, Final

from simcoll.formats.topologies._sketch import Sketch, gpus_of, lender, nvlinks
from simcoll.nccl import graph_xml
from simcoll.topology.nccl_graphs import ChannelGraph

ROOT: Final = "graphs"


def read(text: str, source: str, assumed: str | None = None) -> Sketch:
    """The machine behind a graph file: its GPUs on one switch, by as much as all channels of the ring carry; the
    graphs themselves stand in it for `simcoll tune`. Raises InputError with line and column, SimcollError unless it is
    `assumed` which machine it is like."""
    file = graph_xml.parse(text, source)
    ring = file.graphs["ring"]
    joined = ring.type_intra in ("NVL", "NVB")
    problem = f"a graph file does not say which {file.gpus} GPUs these are"
    pattern = lender(
        source,
        assumed,
        problem,
        lambda system: bool(nvlinks(system)) == joined and gpus_of(system) >= file.gpus,
        lambda system: "its GPUs have NVLinks" if joined and not nvlinks(system) else "",
    )
    sketch = Sketch(pattern)
    notes = sketch.notes
    graphs = ", ".join(f"{kind} {graph.channels} x {graph.intra:g} GB/s" for kind, graph in file.graphs.items())
    notes.read.append(f"{file.gpus} GPUs and the channels of NCCL's graph file: {graphs}")
    reason = "as was asked for" if assumed else "no other has such paths"
    notes.assume(f"latencies, memory, NICs and what the file does not carry are as in {pattern.name} ({reason})")
    gpus = [sketch.add("gpu") for _ in range(file.gpus)]
    kind = "nvlink" if pattern.has("nvlink") and joined else "pcie"
    switch = sketch.add("nvswitch" if kind == "nvlink" else "pcie_switch")
    bandwidth = ring.channels * ring.intra
    for gpu in gpus:
        sketch.join(gpu, switch, pattern.speed(kind, bandwidth))
    notes.assume(f"GPUs hang on one switch by {bandwidth:g} GB/s each: all channels of the ring")
    if file.across and pattern.file.nic:
        inter = ring.channels * ring.inter / len(gpus)
        for gpu in gpus:
            nic = sketch.add("nic")
            sketch.join(gpu, nic, pattern.speed("pcie", inter))
        sketch.keys["nic"] = {**pattern.file.nic.model_dump(), "model": "", "rate": f"{inter:.6g} GB/s"}
        notes.assume(f"a NIC of {inter:g} GB/s beside each GPU: what the ring's channels carry between nodes, shared")
    where = ("one", "several") if file.across else ("one",)
    rows = [_row(kind, graph, file.gpus, nodes) for kind, graph in file.graphs.items() for nodes in where]
    sketch.keys["nccl"] = {"source": f"NCCL's graph file {source}", "graphs": rows}
    same = "one node and several have the same graphs: a file holds those of one run"
    notes.assume(same if file.across else "no NICs: its channels stay on one node, so that it says nothing of several")
    sketch.borrow()
    return sketch


def _row(kind: str, graph: ChannelGraph, gpus: int, nodes: str) -> dict[str, Any]:
    keys = graph.model_dump(exclude={"orders", "latency_us"})
    return {"graph": kind, "nodes": nodes, "gpus": gpus, **keys, "orders": [list(order) for order in graph.orders]}
