"""Write schedules, topologies and results in the formats of other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError, did_you_mean
from simcoll.formats.importers import read_bounded
from simcoll.formats.schedules import goal, msccl_writer, schedule_json
from simcoll.prediction.result_rows import ResultRow, read, write_atomically
from simcoll.report import schedule_view
from simcoll.report.exports import chakra_graphs, nccl_tables, parquet, topology_graphs
from simcoll.scenario import scenario_files
from simcoll.schedule.names import Protocol
from simcoll.schedule.schedule import Schedule
from simcoll.topology import topology_builder
from simcoll.topology.graph import Topology

Written = str | bytes | Mapping[str, bytes]  # the last: several files, by the endings of their names


@dataclass(frozen=True)
class Options:
    """Settings of an export. `ranks`, `root`, `groups` (a number) and `protocol` are for a schedule, `nodes` for a
    topology, `nbytes` is the size of a schedule's buffer."""

    ranks: int | None = None
    root: int = 0
    nodes: int | None = None
    nbytes: int = 1 << 20
    groups: int | None = None
    protocol: Protocol = "Simple"


def convert(source: str, to: str, options: Options, notes: ImportLog) -> Written:
    """Return `source`, a name or file of a schedule, a topology, a workload or results, in the format `to`.

    Raises InputError for wrong input, and RefusedError for a source that the format cannot hold.
    """
    if to not in FORMATS:
        raise InputError(f"--to: {to!r} is no format", did_you_mean(to, FORMATS))
    return FORMATS[to](source, options, notes)


def save(written: Written, path: Path) -> list[Path]:
    """Write what `convert` returned; return the paths. Several files are called PATH.ENDING."""
    files = (
        {path: written}
        if isinstance(written, str | bytes)
        else {path.with_name(f"{path.name}.{ending}"): data for ending, data in written.items()}
    )
    for name, data in files.items():
        write_atomically(name, data)
    return [*files]


def of_schedule(schedule: Schedule, to: str) -> str:
    """Return a schedule as text in the format `json` or `msccl`."""
    return schedule_json.dump(schedule) + "\n" if to == "json" else msccl_writer.dump(schedule, "Simple", ImportLog())


def _schedule(source: str, options: Options) -> Schedule:
    if schedule_json.is_file(source):
        return schedule_json.read(source)
    schedule_view.find(source)
    if options.ranks is None:
        raise InputError(f"{source}: the number of ranks is missing", "add --ranks N, or give a schedule's JSON file")
    schedule_view.check_length(source, options.ranks, options.root)
    return schedule_view.build(source, options.ranks, options.root, options.groups)


def _topology(source: str, options: Options) -> Topology:
    return topology_builder.build(scenario_files.topology_spec(source, options.nodes))


def _rows(source: str) -> list[ResultRow]:
    """Return the rows of a results.csv; `source` is its path, or the folder with the file."""
    path = Path(source)
    return read(path / "results.csv" if path.is_dir() else path)


def _tuner(source: str, notes: ImportLog) -> Written:
    if not source.endswith(".json"):
        return nccl_tables.tuner(_rows(source), notes)
    try:
        document = json.loads(read_bounded(Path(source)))
        if "recommendations" in document:
            advised = document["recommendations"]
            ranges = ((each, choice) for each in advised for choice in each.get("nccl_ranges", each["ranges"]))
            rows = [_chosen(each, {**each, **choice}, "nccl", "from_bytes") for each, choice in ranges]
        else:
            rows = [_chosen(document, choice, "algorithm", "size_bytes") for choice in document["choice"]]
        return nccl_tables.tuner(rows, notes)
    except (ValueError, KeyError, TypeError, RecursionError):
        cure = "give output of `simcoll tune --json` or `simcoll recommend --json`, or a results.csv"
        raise InputError(f"{source}: this is no output of `simcoll tune --json`", cure) from None


def _chosen(document: Mapping[str, Any], choice: Mapping[str, Any], algorithm: str, size: str) -> ResultRow:
    """Return a recommendation's `choice` as a row; `algorithm` and `size` are the choice's keys for these values."""
    return ResultRow(
        collective=choice["collective"],
        algorithm=choice[algorithm],  # None: NCCL has no such algorithm, and chooses itself
        protocol=choice.get("protocol"),
        ranks=int(document["ranks"]),
        nodes=int(document["nodes"]),
        size_bytes=int(choice[size]),
        time_us=float(choice["time_us"]),
        status="ok",
    )


FORMATS: Final[Mapping[str, Callable[[str, Options, ImportLog], Written]]] = {
    "msccl": lambda source, options, notes: msccl_writer.dump(_schedule(source, options), options.protocol, notes),
    "goal": lambda source, options, _: goal.dump(_schedule(source, options), options.nbytes),
    "graphviz": lambda source, options, _: topology_graphs.graphviz(_topology(source, options)),
    "graphml": lambda source, options, _: topology_graphs.graphml(_topology(source, options)),
    "node-link": lambda source, options, _: topology_graphs.node_link(_topology(source, options)),
    "yaml": lambda source, options, _: topology_builder.dump(_topology(source, options)),
    "nccl-tests": lambda source, options, _: nccl_tables.tests(_rows(source)),
    "nccl-tuner": lambda source, options, notes: _tuner(source, notes),
    "chakra": lambda source, *_: chakra_graphs.dump(source),
    "parquet": lambda source, options, _: parquet.dump(_rows(source)),
}
