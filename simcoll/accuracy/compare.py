"""Compare predictions with a measured table: the work behind `simcoll compare`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simcoll.accuracy import scores, table_join
from simcoll.accuracy.measured_points import RowQuestions, as_measured
from simcoll.accuracy.scores import Document
from simcoll.config import yaml_tree
from simcoll.errors import Diagnostic, InputError
from simcoll.formats.measured import MeasuredRow, parse_measured, remarks
from simcoll.prediction import result_rows, sweep
from simcoll.scenario import caveats
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario_files import Point, load

SCHEMA: Final = "simcoll.accuracy.compare/1"


def compared(
    predicted: str | Sequence[Point], text: str, source: str, where: Sequence[str], sets: Sequence[str]
) -> Document:
    """Join predictions with the measured table `text`, and return the document that `compare --json` prints.

    `predicted` is a scenario, its points, or a results.csv; `system=NAME` predicts every row on that system or topology
    file. Raises InputError if a file is wrong, if a row matches several predictions, or if nothing can be compared. It
    is also raised if a profile was fitted to another harness.
    """
    kept = dict(map(yaml_tree.condition, where))
    measured = parse_measured(text, source, table_join.defaults(kept), chosen=True)
    if isinstance(predicted, str) and predicted.startswith("system="):
        selected = table_join.kept(measured, kept, source)
        questions = RowQuestions(predicted.removeprefix("system="), sets)
        points, rows, newer = _on_system(questions, selected)
        odd = [*questions.warnings(selected), *newer]
    else:
        selected = table_join.select(measured, kept) or table_join.kept(measured, kept, source)
        rows = list(_predictions(predicted, selected, sets))
        pairs = map(_computing_as_measured, table_join.pairs(measured, rows, kept))
        points, odd = [point for row, partner in pairs for point in table_join.answered([row], [[partner]])], []
    warnings = [*remarks(text, source, selected), *odd, *table_join.filled(selected, kept)]
    if not points:
        reasons = dict.fromkeys(str(row["status"]) for row in rows if row.get("status", "ok") != "ok")
        problem = f"{source}: none of {len(selected)} measured rows has a prediction"
        cure = next(iter(reasons), "compare collective, ranks, nodes, size_bytes and dtype of both tables")
        raise InputError([Diagnostic(problem, cure)])
    return document(points, len(selected) - len(points), warnings)


def document(points: Sequence[table_join.JoinedPoint], unmatched: int = 0, warnings: Sequence[str] = ()) -> Document:
    """Build the document that `compare --json` prints; `unmatched` counts measured rows without a prediction."""
    region = scores.region_of(points)
    return {
        "schema": SCHEMA,
        "points": [{**dataclasses.asdict(point), "region": region(point)} for point in points],
        "summary": scores.summary(points),
        "regions": scores.regions(points),
        "intervals": scores.intervals(points),
        "ranking": scores.ranking(points),
        "unmatched": unmatched,
        "warnings": list(warnings),
    }


def _predictions(
    predicted: str | Sequence[Point], measured: Sequence[MeasuredRow], sets: Sequence[str]
) -> Iterable[Mapping[str, Any]]:
    """Return result rows: predict every point of a scenario, or read a results.csv."""
    if isinstance(predicted, str) and predicted.endswith(".csv"):
        if sets:
            raise InputError("--set changes a scenario, not a results.csv", "compare the scenario instead")
        return result_rows.read(Path(predicted))
    points = load(predicted, sets) if isinstance(predicted, str) else predicted
    _check_harness(points, measured)
    rows = sweep.run_points(points)
    sweep.check_answerable(rows)
    return [{**row, "point": point} for row, point in zip(rows, points, strict=True)]


def _computing_as_measured(pair: tuple[MeasuredRow, Mapping[str, Any]]) -> tuple[MeasuredRow, Mapping[str, Any]]:
    """Return the pair; a workload is predicted again with the times of computations that its row measured."""
    row, partner = pair
    point = partner.get("point")
    if point is None:
        return pair
    asked = as_measured(point, row)
    return pair if asked is point else (row, sweep.run_point(asked))


def _on_system(
    questions: RowQuestions, measured: Sequence[MeasuredRow]
) -> tuple[list[table_join.JoinedPoint], list[Mapping[str, Any]], list[str]]:
    """Predict each distinct point of the rows once. Return the joined points, all predictions, and notes, e.g. that a
    release is newer than all known ones."""
    asked = [questions.points(row) for row in measured]
    points = {sweep.key(point): point for of_row in asked for point in of_row}
    _check_harness(points.values(), measured)
    rows = dict(zip(points, sweep.run_points(list(points.values())), strict=True))
    sweep.check_answerable(rows.values())
    joined = table_join.answered(measured, [[rows[sweep.key(p)] for p in of_row] for of_row in asked])
    return joined, list(rows.values()), caveats.notes(point.scenario for point in points.values())


def _check_harness(points: Iterable[Point], measured: Iterable[MeasuredRow]) -> None:
    """Raise InputError if a profile was fitted to one harness (`p2p`, `library`) and the table has rows of another."""
    harnesses = {row.harness for row in measured}
    for name in dict.fromkeys(point.scenario.profile for point in points):
        profile = load_profile(name)
        others = sorted(harness for harness in harnesses if not profile.serves(harness))
        if others:
            problem = f"{name} is fitted to the harness {profile.harness}, but the table has {', '.join(others)}"
            left = sorted(harnesses - set(others))
            raise InputError(problem, f"choose with --where harness={left[0]}" if left else "name another profile")
