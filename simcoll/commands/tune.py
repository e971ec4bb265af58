"""`simcoll tune`: what NCCL's tuner reckons with on a system, and what it chooses."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from simcoll.commands.options import JSON
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.nccl.tuner import Table

SCHEMA: Final = "simcoll.tune/1"
SIZES: Final = tuple(2**exponent for exponent in range(3, 34))


@click.command()
@click.argument("system")
@click.option("--nodes", default=1, show_default=True, type=click.IntRange(1), help="Number of nodes.")
@click.option("--ranks", type=click.IntRange(2), help="Number of ranks, as many on each node.  [default: all GPUs]")
@click.option("--version", help="Release of the library, e.g. 2.27.  [default: the newest known]")
@click.option("--algo", metavar="TEXT", help="What NCCL_ALGO says, e.g. 'ring,tree' or 'allreduce:^nvls'.")
@click.option("--proto", metavar="TEXT", help="What NCCL_PROTO says, e.g. '^LL128'.")
@click.option(
    "--graph", "graph_file", type=click.Path(path_type=Path), help="NCCL's graph file, in place of the stored graphs."
)
@JSON
def tune(
    system: str,
    nodes: int,
    ranks: int | None,
    version: str | None,
    algo: str | None,
    proto: str | None,
    graph_file: Path | None,
    as_json: bool,
) -> None:
    """Print what NCCL's tuner reckons with on a system, and what it chooses.

    SYSTEM is a shipped one, or a topology file. A table tells latency and bandwidth of each pair of algorithm and
    protocol; below, for 8 B to 8 GiB, stands the pair that NCCL takes, and the time that it reckons with, in us.
    """
    from simcoll import systems
    from simcoll.nccl import communicator, graph_xml, selection, tuner

    file = systems.load_system(system)
    chosen = selection.parse(algo, proto)
    found = graph_xml.read(graph_file) if graph_file else None
    if found and ranks is None:
        ranks = found.gpus * nodes
    comm = communicator.communicator(file, nodes, ranks, found.graphs if found else None)
    told = tuner.table(comm, version, chosen)
    if not told.entries:
        raise InputError("no pair of algorithm and protocol is left", "let --algo and --proto leave more")
    source = str(graph_file) if graph_file else file.nccl.source if file.nccl else ""
    print(json.dumps(_document(file.name, source, told), indent=1) if as_json else _text(file.name, source, told))


def _document(name: str, source: str, told: Table) -> dict[str, Any]:
    comm = told.communicator
    return {
        "schema": SCHEMA,
        "system": name,
        "library": comm.library,
        "version": told.constants.release,
        "ranks": comm.ranks,
        "nodes": comm.nodes,
        "channels": comm.channels,
        "nvls_channels": comm.nvls_channels(told.constants),
        "graphs_source": source,
        "graphs": {kind: graph.model_dump() for kind, graph in comm.graphs.items()},
        "table": _table(told),
        "choice": _choices(told),
    }


def _table(told: Table) -> list[dict[str, Any]]:
    return [
        {
            "collective": collective,
            "algorithm": algorithm,
            "protocol": protocol,
            "latency_us": entry.latency_us,
            "bandwidth_GBps": entry.bandwidth_GBps,
        }
        for (collective, algorithm, protocol), entry in told.entries.items()
    ]


def _choices(told: Table) -> list[dict[str, Any]]:
    from simcoll.nccl import tuner
    from simcoll.nccl.constants import COLLECTIVES

    found = ((collective, size, tuner.choose(told, collective, size)) for collective in COLLECTIVES for size in SIZES)
    return [
        {
            "collective": collective,
            "size_bytes": size,
            "algorithm": choice.algorithm,
            "protocol": choice.protocol,
            "time_us": choice.time_us,
        }
        for collective, size, choice in found
        if choice is not None
    ]


def _text(name: str, source: str, told: Table) -> str:
    from simcoll import __version__, tables
    from simcoll.nccl.constants import COLLECTIVES

    comm = told.communicator
    where = f"{comm.ranks} ranks on {comm.nodes} node{'s' if comm.nodes > 1 else ''}"
    lines = [
        f"# simcoll {__version__}: tune",
        f"# {name}   {comm.library.upper()} {told.constants.release}   {where}",
        f"# graphs: {source}",
        *(
            f"#   {kind}: {graph.channels} channels of {graph.intra:g} GB/s within a node, {graph.inter:g} between"
            f"   {graph.pattern}   {graph.type_intra}/{graph.type_inter}"
            for kind, graph in comm.graphs.items()
        ),
        f"# channels of kernels: {comm.channels}   of NVLS: {comm.nvls_channels(told.constants) or '-'}",
        "# what NCCL reckons with, without the launch of kernels; bandwidth: of the largest buffer of a rank",
    ]
    rows = [
        {"size_bytes": size, **{c["collective"]: _cell(c) for c in choices}}
        for size, choices in itertools.groupby(sorted(_choices(told), key=_size), _size)
    ]
    table = _table(told)
    served = [collective for collective in reversed(COLLECTIVES) if any(collective in row for row in rows)]
    return "\n".join([*lines, tables.render(list(table[0]), table), "", tables.render(["size_bytes", *served], rows)])


def _size(choice: dict[str, Any]) -> int:
    return int(choice["size_bytes"])


def _cell(choice: dict[str, Any]) -> str:
    time = choice["time_us"]
    return f"{choice['algorithm']}/{choice['protocol']} " + (f"{time:.0f}" if time >= 1000 else f"{time:.4g}")
