"""Predictions brought together with a measured table: what `simcoll compare` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from simcoll.accuracy import scores, table_join
from simcoll.accuracy.measured_points import Asking, as_measured
from simcoll.accuracy.scores import Document
from simcoll.errors import Diagnostic, InputError
from simcoll.formats.measured import MeasuredRow, parse_measured
from simcoll.prediction import result_rows, sweep
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Point, load

SCHEMA: Final = "simcoll.accuracy.compare/1"


def compared(predicted: str, text: str, source: str, where: Sequence[str], sets: Sequence[str]) -> Document:
    """Join the predictions that `predicted` names with the measured `text`.

    `predicted` is a scenario, a results.csv, or `system=NAME`, which predicts every row of the table on that system, or
    on the topology of a file. Raises InputError when a file is wrong, when a row has several partners, when a profile
    is of another harness, and when nothing can be compared.
    """
    kept = dict(map(table_join.condition, where))
    measured = parse_measured(text, source, table_join.defaults(kept))
    if predicted.startswith("system="):
        selected = table_join.kept(measured, kept, source)
        points, rows = _on_system(predicted, selected, sets)
    else:
        selected = table_join.select(measured, kept) or table_join.kept(measured, kept, source)
        rows = list(_predictions(predicted, selected, sets))
        rows = _computing_as_measured(rows, table_join.pairs(measured, rows, kept))
        points = table_join.join(measured, rows, kept)
    if not points:
        reasons = dict.fromkeys(str(row["status"]) for row in rows if row.get("status", "ok") != "ok")
        what = f"{source}: none of {len(selected)} measured rows has a prediction"
        cure = next(iter(reasons), "compare collective, ranks, nodes, size_bytes and dtype of both tables")
        raise InputError([Diagnostic(what, cure)])
    return document(points, unmatched=len(selected) - len(points))


def document(points: Sequence[table_join.JoinedPoint], unmatched: int = 0) -> Document:
    """What `compare --json` prints; `unmatched` measured rows had no prediction."""
    region = scores.region_of(points)
    return {
        "schema": SCHEMA,
        "points": [{**dataclasses.asdict(point), "region": region(point)} for point in points],
        "summary": scores.summary(points),
        "regions": scores.regions(points),
        "intervals": scores.intervals(points),
        "ranking": scores.ranking(points),
        "unmatched": unmatched,
    }


def _predictions(predicted: str, measured: Sequence[MeasuredRow], sets: Sequence[str]) -> Iterable[dict[str, Any]]:
    if predicted.endswith(".csv"):
        if sets:
            raise InputError("--set changes a scenario, not a results.csv", "compare the scenario instead")
        return result_rows.read(Path(predicted))
    points = load(predicted, sets)
    _check_harness(points, measured)
    return [{**sweep.run_point(point), "point": point} for point in points]


def _computing_as_measured(
    rows: Sequence[dict[str, Any]], pairs: Sequence[tuple[table_join.Record, table_join.Record]]
) -> list[dict[str, Any]]:
    """Predictions of workloads made anew with the computations that their measured rows tell of."""
    told = {
        id(partner["point"]): as_measured(partner["point"], record["row"])
        for record, partner in pairs
        if "point" in partner
    }
    found = []
    for row in rows:
        point = row.get("point")
        asked = told.get(id(point), point)
        found.append({**sweep.run_point(asked), "point": asked} if asked and asked is not point else row)
    return found


def _on_system(
    predicted: str, measured: Sequence[MeasuredRow], sets: Sequence[str]
) -> tuple[list[table_join.JoinedPoint], list[dict[str, Any]]]:
    """Each row with what is predicted for it, and all predictions; each distinct question is asked once."""
    asking = Asking(predicted.removeprefix("system="), sets)
    asked = [asking.points(row) for row in measured]
    points = {sweep.key(point): point for some in asked for point in some}
    _check_harness(points.values(), measured)
    rows = {key: sweep.run_point(point) for key, point in points.items()}
    return table_join.answered(measured, [[rows[sweep.key(p)] for p in some] for some in asked]), list(rows.values())


def _check_harness(points: Iterable[Point], measured: Iterable[MeasuredRow]) -> None:
    """A profile that was fitted to one way of running collectives says nothing of another."""
    found = {row.harness for row in measured}
    for name in dict.fromkeys(point.scenario.profile for point in points):
        profile = load_profile(name)
        others = sorted(way for way in found if not profile.serves(way))
        if others:
            what = f"{name} serves the harness {profile.harness}, and the table has rows of {', '.join(others)}"
            left = sorted(found - set(others))
            raise InputError(what, f"choose with --where harness={left[0]}" if left else "take another profile")
