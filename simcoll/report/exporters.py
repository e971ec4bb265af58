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
from simcoll.prediction import result_rows
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


def _rows(what: str) -> list[dict[str, Any]]:
    """The rows of a results.csv, or of the folder that it lies in."""
    path = Path(what)
    return result_rows.read(path / "results.csv" if path.is_dir() else path)


def _tests(what: str, options: Options, notes: ImportLog) -> Written:
    return nccl_tables.tests(_rows(what))


def _tuner(what: str, options: Options, notes: ImportLog) -> Written:
    if not what.endswith(".json"):
        return nccl_tables.tuner(_rows(what), notes)
    try:
        found = json.loads(read_bounded(Path(what)))
        if "recommendations" in found:
            return nccl_tables.tuner([row for one in found["recommendations"] for row in _recommended(one)], notes)
        shared = {"ranks": int(found["ranks"]), "nodes": int(found["nodes"])}
        rows = [{**row, **shared, "time_us": float(row["time_us"])} for row in found["choice"]]
        return nccl_tables.tuner(rows, notes)
    except (ValueError, KeyError, TypeError, RecursionError):
        cure = "give that, what `simcoll recommend --json` prints, or a results.csv"
        raise InputError(f"{what}: not what `simcoll tune --json` prints", cure) from None


def _recommended(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ranges of a recommendation as rows."""
    shared = {"collective": one["collective"], "ranks": int(one["ranks"]), "nodes": int(one["nodes"])}
    return [
        {
            **row,
            **shared,
            "algorithm": row["nccl"],
            "size_bytes": int(row["from_bytes"]),
            "time_us": float(row["time_us"]),
        }
        for row in one["ranges"]
    ]


def _parquet(what: str, options: Options, notes: ImportLog) -> Written:
    rows = _rows(what)
    return arrow.parquet(rows, result_rows.kinds(rows))


def _arrow(what: str, options: Options, notes: ImportLog) -> Written:
    rows = _rows(what)
    return arrow.stream(rows, result_rows.kinds(rows))


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
