"""Many points: in order, in parallel, resumable.

Each finished row goes to `results.jsonl` at once, under a key made of everything that decides it; when all are there
`results.csv` is written and the log goes. A killed run started again computes only what is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import simcoll
from simcoll import registry
from simcoll.errors import Diagnostic, InputError, RefusedError, StuckError
from simcoll.prediction import describe, predict, row
from simcoll.registry import Algorithm
from simcoll.results import Row, to_csv, write_atomically
from simcoll.scenario import Point

LOG = "results.jsonl"


def key(point: Point) -> str:
    """What decides a row: the resolved point, the contents of the files it names, and simcoll's version."""
    scenario = point.scenario
    parts = [simcoll.__version__, scenario.model_dump_json(), str(point.optional)]
    parts += [file.read_text(encoding="utf-8", errors="replace") for file in scenario.files() if file.is_file()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def run_point(point: Point) -> dict[str, Any]:
    """The row of one point; an impossible point is a row whose `status` says why."""
    return {**_row(point), **point.swept}


def _row(point: Point) -> dict[str, Any]:
    try:
        return row(predict(point.scenario)) | ({"chosen": True} if point.scenario.algorithm == "auto" else {})
    except RefusedError as error:
        return {**describe(point.scenario), "status": f"refused: {error}", "left_out": point.optional}
    except StuckError as error:
        return {**describe(point.scenario), "status": f"failed: {error}"}
    except InputError as error:
        located = InputError(_placed(d, point) for d in error.diagnostics)
        return {**describe(point.scenario), "status": f"failed: {located}", "wrong_input": True}


def _placed(diagnostic: Diagnostic, point: Point) -> Diagnostic:
    """With the place of the key that it names; what names none comes from the topology."""
    if diagnostic.place:
        return diagnostic
    key = diagnostic.path.partition(".")[0] or "topology"
    return replace(diagnostic, path=diagnostic.path or key, place=point.places.get(key))


def sweep(
    points: Sequence[Point], jobs: int = 1, log: Path | None = None
) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Yield (index, row, reused) of every point as they come; `log` is where finished rows survive a kill."""
    keys = [key(point) for point in points]
    known = _read_log(log) if log else {}
    todo = []
    for index, name in enumerate(keys):
        if name in known:
            yield index, known[name], True
        else:
            todo.append(index)
    for index, found in _computed(points, todo, jobs):
        if log and not found.get("wrong_input"):
            _append(log, {"key": keys[index], "row": found})
        yield index, found, False


def _computed(points: Sequence[Point], todo: Sequence[int], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    if jobs == 1 or len(todo) < 2:
        yield from ((index, run_point(points[index])) for index in todo)
        return
    from joblib import Parallel, delayed  # loky's workers: only a parallel run pays for the import

    tasks = (delayed(_in_worker)(index, points[index], _entries(points[index])) for index in todo)
    yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(tasks)


def _entries(point: Point) -> Mapping[str, Algorithm]:
    return registry.ALGORITHMS.get(point.scenario.collective, {})


def _in_worker(index: int, point: Point, entries: Mapping[str, Algorithm]) -> tuple[int, dict[str, Any]]:
    """A worker imports simcoll anew: what the user has registered comes with the task."""
    registry.ALGORITHMS[point.scenario.collective] = dict(entries)
    return index, run_point(point)


def _read_log(log: Path) -> dict[str, dict[str, Any]]:
    if not log.exists():
        return {}
    text = log.read_text(encoding="utf-8", errors="replace")
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]  # the line a kill cut short
        write_atomically(log, text)
    known = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            if "status" in entry["row"]:
                known[entry["key"]] = entry["row"]
        except (ValueError, KeyError, TypeError):
            continue  # not ours
    return known


def _append(log: Path, entry: Row) -> None:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise InputError(f"{log}: cannot be written: {error.strerror}", "give another folder with -o") from None


def ordered(found: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of the scenario, without those that `algorithm: all` leaves out (unless it leaves out all).

    A row of `auto` goes if there is the same row of the algorithm that it chose.
    """
    rows = [row for _, row in sorted(found.items())]
    asked = {json.dumps(row) for row in rows if "chosen" not in row}
    rows = [row for row in rows if "chosen" not in row or json.dumps(_unmarked(row)) not in asked]
    return [row for row in rows if not row.get("left_out")] or rows


def _unmarked(row: Row) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column != "chosen"}


def write(folder: Path, rows: Sequence[Row], points: Sequence[Point], command: str) -> None:
    """Write `results.csv` and `manifest.json`, then drop the log."""
    write_atomically(folder / "results.csv", to_csv(rows))
    manifest = {
        "schema": "simcoll.manifest/1",
        "simcoll": simcoll.__version__,
        "command": command,
        "points": len(points),
        "rows": len(rows),
        "scenarios": sorted({point.scenario.name for point in points}),
        "profiles": sorted({point.scenario.profile for point in points}),
        "keys": _values(points),
    }
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    (folder / LOG).unlink(missing_ok=True)


def _values(points: Sequence[Point]) -> dict[str, list[Any]]:
    """Every key of the scenario that is set, with the values that it takes."""
    found: dict[str, list[Any]] = {}
    for point in points:
        for key, value in point.scenario.model_dump(mode="json", exclude_none=True).items():
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return found
