"""Ours in the formats of other programs: which writer takes what, and where it is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simcoll.config.import_log import ImportLog
from simcoll.errors import InputError, did_you_mean
from simcoll.formats.importers import read_bounded
from simcoll.formats.schedules import goal, msccl_writer, schedule_json
from simcoll.prediction.result_rows import ResultRow, read
from simcoll.report import schedule_view, torch_benchmark
from simcoll.report.exports import arrow, graph_drawings, nccl_tables
from simcoll.scenario import scenario
from simcoll.schedule.ir import Schedule
from simcoll.topology import systems

Written = str | bytes


@dataclass(frozen=True)
class Options:
    """What else a writer needs: `ranks` and `root` of a schedule, `nodes` of a topology, bytes of a buffer."""

    ranks: int | None = None
    root: int = 0
    nodes: int | None = None
    nbytes: int = 1 << 20


def convert(what: str, to: str, options: Options, notes: ImportLog) -> Written:
    """`what` (a schedule, a topology or results, by name or file) in the format `to` (of `FORMATS`).

    Raises InputError, or RefusedError for what the format cannot hold.
    """
    if to not in FORMATS:
        raise InputError(f"--to: {to!r} is no format", did_you_mean(to, FORMATS))
    return FORMATS[to](what, options, notes)


def _schedule(what: str, options: Options) -> Schedule:
    if schedule_json.is_file(what):
        return schedule_json.read(what)
    if options.ranks is None:
        raise InputError(f"{what}: nothing says of how many ranks", "add --ranks N, or give a schedule's JSON file")
    schedule_view.check_length(what, options.ranks, options.root)
    return schedule_view.build(what, options.ranks, options.root)


def _msccl(what: str, options: Options, notes: ImportLog) -> Written:
    return msccl_writer.dump(_schedule(what, options))


def _goal(what: str, options: Options, notes: ImportLog) -> Written:
    return goal.dump(_schedule(what, options), options.nbytes)


def _graphviz(what: str, options: Options, notes: ImportLog) -> Written:
    return graph_drawings.graphviz(systems.build(scenario.topology_spec(what, options.nodes)))


def _graphml(what: str, options: Options, notes: ImportLog) -> Written:
    return graph_drawings.graphml(systems.build(scenario.topology_spec(what, options.nodes)))


def _rows(what: str) -> list[ResultRow]:
    """The rows of a results.csv, or of the folder that it lies in."""
    path = Path(what)
    return read(path / "results.csv" if path.is_dir() else path)


def _tests(what: str, options: Options, notes: ImportLog) -> Written:
    return nccl_tables.tests(_rows(what))


def _tuner(what: str, options: Options, notes: ImportLog) -> Written:
    if not what.endswith(".json"):
        return nccl_tables.tuner(_rows(what), notes)
    try:
        document = json.loads(read_bounded(Path(what)))
        if "recommendations" in document:
            ranges = ((each, choice) for each in document["recommendations"] for choice in each["ranges"])
            rows = [_chosen(each, choice, each["collective"], "nccl", "from_bytes") for each, choice in ranges]
        else:
            choices = document["choice"]
            rows = [_chosen(document, each, each["collective"], "algorithm", "size_bytes") for each in choices]
        return nccl_tables.tuner(rows, notes)
    except (ValueError, KeyError, TypeError, RecursionError):
        cure = "give that, what `simcoll recommend --json` prints, or a results.csv"
        raise InputError(f"{what}: not what `simcoll tune --json` prints", cure) from None


def _chosen(
    document: Mapping[str, Any], choice: Mapping[str, Any], collective: str, algorithm: str, size: str
) -> ResultRow:
    """What is chosen from a size on, as a row; `algorithm` and `size` are the keys that hold them in the choice."""
    return ResultRow(
        collective=collective,
        algorithm=choice[algorithm],
        protocol=choice.get("protocol"),
        ranks=int(document["ranks"]),
        nodes=int(document["nodes"]),
        size_bytes=int(choice[size]),
        time_us=float(choice["time_us"]),
        status="ok",
    )


def _parquet(what: str, options: Options, notes: ImportLog) -> Written:
    return arrow.parquet(_rows(what))


def _arrow(what: str, options: Options, notes: ImportLog) -> Written:
    return arrow.stream(_rows(what))


def _torch(what: str, options: Options, notes: ImportLog) -> Written:
    return torch_benchmark.compared(nccl_tables.timed(_rows(what))) + "\n"


FORMATS: Final[Mapping[str, Callable[[str, Options, ImportLog], Written]]] = {
    "msccl": _msccl,
    "goal": _goal,
    "graphviz": _graphviz,
    "graphml": _graphml,
    "nccl-tests": _tests,
    "nccl-tuner": _tuner,
    "parquet": _parquet,
    "arrow": _arrow,
    "torch": _torch,
}
