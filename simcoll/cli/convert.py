"""`simcoll import` and `simcoll export`: read and write files of other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simcoll.cli._options import JSON, WholeFrom, completed
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.schedule.names import Protocol

FORMATS = (
    *("msccl", "goal"),
    *("graphviz", "graphml", "node-link", "yaml"),
    *("nccl-tests", "nccl-tuner", "parquet", "chakra"),
)


@click.command(name="import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…|DIR|-", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.  [default: print it]")
@click.option("--as", "kind", metavar="KIND", help="Kind of the file, if it is not recognised.")
@click.option(
    "--assume",
    metavar="SYSTEM",
    help="Shipped system whose values replace those that a topology file lacks, or on which a recorded step runs.",
    shell_complete=completed("system"),
)
@click.option("--collective", metavar="NAME", help="Collective of a schedule or table, if the file does not name it.")
@click.option(
    "--set",
    "columns",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Value for all rows of a measured table without one in this column. Of a trace: step=N or step=all, "
    "ranks=N for a larger job, bucket_cap=SIZE to join all-reduces.",
)
@JSON
def import_(
    files: tuple[Path, ...],
    output: Path | None,
    kind: str | None,
    assume: str | None,
    collective: str | None,
    columns: tuple[str, ...],
    as_json: bool,
) -> None:
    """Turn a file of another program into one of simcoll, and list what was read and assumed.

    Topologies become topology files (nvidia-smi topo -m, NCCL's topology and graph XML, infragraph, GraphML, node-link
    JSON), schedules become JSON that scenarios take as an algorithm (MSCCL XML, MSCCL++ plans, GOAL), measurements
    become measured tables (nccl-tests, rccl-tests, OSU, IMB, CSV). Traces of torch.profiler and dumps of PyTorch's
    flight recorder (FILE… or DIR) become the workload of the recorded step, on --assume SYSTEM; so do Chakra's and
    PyTorch's execution traces.
    """
    from simcoll.config import input_files, yaml_tree
    from simcoll.formats import importers
    from simcoll.prediction import result_rows
    from simcoll.report.verdicts import of_import

    values = dict(yaml_tree.condition(column, "--set") for column in columns)
    asked = importers.ImportOptions(assume, collective, values)
    piped = str(files[0]) == "-"
    imported = importers.recorded(files, asked) if kind is None and not piped else None
    if imported is None:
        text = input_files.text_of_stdin(importers.MOST_BYTES) if piped else importers.read_bounded(files[0])
        imported = importers.convert(text, str(files[0]), asked, kind)
    if output and output.suffix not in imported.suffixes:
        raise InputError(f"{output}: wrong ending for a {imported.kind}", f"end its name in {imported.suffixes[0]}")
    notes = imported.notes
    document: dict[str, object] = {"kind": imported.kind, "file": str(output) if output else None}
    document |= {"read": notes.read, "assumed": notes.assumed, "warnings": notes.warnings}
    if output:
        result_rows.write_atomically(output, imported.text if imported.text.endswith("\n") else f"{imported.text}\n")
    else:
        print(imported.text.removesuffix("\n"))
    said = json.dumps(document, indent=1) if as_json else "\n".join(filter(None, [of_import(document), str(notes)]))
    print(said, file=None if output else sys.stderr)


@click.command(name="export")
@click.argument(
    "what",
    metavar="COLLECTIVE/ALGORITHM|SCHEDULE.json|SYSTEM|TOPOLOGY.yaml|SCENARIO|RESULTS",
    shell_complete=completed("file", "schedule", "system"),
)
@click.option(
    "--to",
    required=True,
    metavar="FORMAT",
    help=f"One of: {', '.join(FORMATS)}.",
    shell_complete=completed("format"),
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.  [default: print it]")
@click.option("--ranks", type=WholeFrom(1), help="Number of ranks of the schedule.")
@click.option("--root", default=0, show_default=True, type=WholeFrom(0), help="Root rank of the schedule.")
@click.option("--groups", type=WholeFrom(1), help="Number of equal groups of a hierarchical schedule, e.g. nodes.")
@click.option(
    "--protocol",
    type=click.Choice(["LL", "LL128", "Simple"]),
    default="Simple",
    show_default=True,
    help="Protocol of an MSCCL program.",
)
@click.option("--nodes", type=WholeFrom(1), help="Number of nodes of a topology.")
@click.option("--size", default="1 MiB", show_default=True, help="Size of the buffer, for GOAL's messages.")
def export(
    what: str,
    to: str,
    output: Path | None,
    ranks: int | None,
    root: int,
    groups: int | None,
    protocol: Protocol,
    nodes: int | None,
    size: str,
) -> None:
    """Write a schedule, a topology, a workload or results for another program.

    Schedules: msccl (XML for MSCCL's and RCCL's executors), goal (LogGOPSim, ATLAHS). Topologies: graphviz, graphml,
    node-link (JSON of networkx), yaml (a file of devices and links). Results: nccl-tests (its table), nccl-tuner
    (CSV of NCCL's example tuner plugin; also from `simcoll tune --json`), parquet. Workloads: chakra (execution traces
    for ASTRA-sim: NAME.RANK.et for each rank, and NAME.groups.json).
    """
    from simcoll import units
    from simcoll.config.input_files import ImportLog
    from simcoll.report import exports

    try:
        nbytes = units.parse(size, "size")
    except ValueError as error:
        raise InputError(f"--size: {error}") from None
    if ranks is not None and root >= ranks:
        raise InputError(f"--root: there is no rank {root} among {ranks} ranks", f"give 0 … {ranks - 1}")
    notes = ImportLog()
    written = exports.convert(what, to, exports.Options(ranks, root, nodes, nbytes, groups, protocol), notes)
    if output:
        paths = exports.save(written, output)
        print(f"{to}: {paths[0]}" + (f" to {paths[-1]}, {len(paths)} files" if len(paths) > 1 else ""))
    elif not isinstance(written, str):
        raise InputError(f"{to} is a binary format and cannot be printed", "name a file with -o")
    else:
        print(written, end="")
    if str(notes):
        print(notes, file=sys.stderr)
