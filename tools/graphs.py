"""Compare the results of NCCL's graph search that systems' files store with those of simcoll's own search.

    python tools/graphs.py [SYSTEM …]

Prints a line for each graph: the system, GPUs per node, one node or several; then `=`, or what is stored -> what is
found. At the end it prints how many graphs agree in channels and speeds, how many agree in all, and the processor time
of the slowest search.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from simcoll.nccl import graph_search
from simcoll.topology import nccl_graphs
from simcoll.topology.machine_files import SystemFile, shipped_systems
from simcoll.topology.nccl_graphs import ChannelGraph
from simcoll.topology.topology_builder import load_system

NUMBERS = ("channels", "intra", "inter")
FIELDS = (*NUMBERS, "pattern", "type_intra", "type_inter", "cross_nic", "same_channels")


def cases(system: SystemFile) -> Iterator[tuple[int, int]]:
    """Yield the numbers of nodes, and of GPUs per node, for which a system's file stores graphs."""
    for nodes, size in ((1, "one"), (2, "several")):
        rows = [row for row in system.nccl.graphs if row.nodes == size] if system.nccl else []
        counts = {count for row in rows for count in range(row.gpus[0], row.gpus[1] + 1)}
        yield from ((nodes, count) for count in sorted(counts))


def differences(stored: ChannelGraph, found: ChannelGraph | None) -> list[str]:
    """Return the differences between a stored and a found graph, as texts; empty if they are equal."""
    if found is None:
        return ["not found"]
    pairs = ((name, getattr(stored, name), getattr(found, name)) for name in FIELDS)
    return [f"{name} {was} -> {now}" for name, was, now in pairs if was != now]


def main(names: list[str]) -> None:
    """Compare the graphs of the systems called `names` (default: all), and print the result."""
    agree, alike, slowest, all_graphs = 0, 0, 0.0, 0
    for name in names or list(shipped_systems()):
        system = load_system(name)
        for nodes, gpus in cases(system):
            before = time.process_time()
            found = graph_search.search(system, gpus, nodes > 1)
            slowest = max(slowest, time.process_time() - before)
            for kind, graph in (nccl_graphs.stored(system.nccl, gpus, nodes) or {}).items():
                differ = differences(graph, found.get(kind))
                agree, all_graphs = agree + (not differ), all_graphs + 1
                alike += not any(text.startswith((*NUMBERS, "not")) for text in differ)
                where = f"{name:<21} {gpus:>2} GPUs on {'one node' if nodes == 1 else 'several '}  {kind:<5}"
                print(f"{where} {', '.join(differ) or '='}")
    print(f"of {all_graphs} graphs {alike} agree in channels and speeds, {agree} in all")
    print(f"the slowest search takes {slowest:.2f} s of processor time")


if __name__ == "__main__":
    main(sys.argv[1:])
