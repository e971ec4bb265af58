"""Predictions brought together with a measured table: what `simcoll compare` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from simcoll import config, join, registry, results, scenario, sweep
from simcoll.errors import Diagnostic, InputError, Place
from simcoll.formats.measured import Row, parse_measured
from simcoll.scenario import Point, load

Document = dict[str, Any]


def compared(predicted: str, text: str, source: str, where: Sequence[str], sets: Sequence[str]) -> Document:
    """Join the predictions that `predicted` names with the measured `text`.

    `predicted` is a scenario, a results.csv, or `system=NAME`, which predicts every row of the table on that system.
    Raises InputError when a file is wrong, when a row has several partners, and when nothing can be compared.
    """
    kept = dict(_condition(item) for item in where)
    measured = parse_measured(text, source, defaults=kept)
    selected = join.select(measured, kept)
    rows = list(_predictions(predicted, selected, sets))
    points = join.join(measured, rows, kept)
    if not points:
        reasons = dict.fromkeys(str(row["status"]) for row in rows if row.get("status", "ok") != "ok")
        what = f"{source}: none of {len(selected)} measured rows has a prediction"
        cure = next(iter(reasons), "compare collective, ranks, nodes, size_bytes and dtype of both tables")
        raise InputError([Diagnostic(what, cure)])
    return join.document(points, unmatched=len(selected) - len(points))


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column:
        raise InputError(f"--where {text!r} is not COL=VALUE", "write e.g. --where ranks=8")
    return column.strip(), value.strip()


def _predictions(predicted: str, measured: Sequence[Row], sets: Sequence[str]) -> Iterable[dict[str, Any]]:
    if predicted.startswith("system="):
        return _on_system(predicted.removeprefix("system="), measured, sets)
    if predicted.endswith(".csv"):
        if sets:
            raise InputError("--set changes a scenario, not a results.csv", "compare the scenario instead")
        return results.read(Path(predicted))
    return [sweep.run_point(point) for point in load(predicted, sets)]


def _on_system(system: str, measured: Sequence[Row], sets: Sequence[str]) -> list[dict[str, Any]]:
    """Every row of the table, predicted: each distinct question once."""
    points = {sweep.key(point): point for row in measured for point in _questions(system, row, sets)}
    return [sweep.run_point(point) for point in points.values()]


def _questions(system: str, row: Row, sets: Sequence[str]) -> list[Point]:
    nodes, algorithm = row.nodes or 1, row.algorithm or "auto"
    if algorithm != "auto" and algorithm not in registry.names(row.collective):
        return []
    keys: dict[str, Any] = {
        "name": f"system={system}",
        "topology": {"system": system, "nodes": nodes},
        "collective": row.collective,
        "algorithm": algorithm,
        "ranks": row.ranks,
        "placement": {"per_node": max(1, -(-row.ranks // nodes))},
        "dtype": row.dtype or "float32",
        "size": f"{row.size_bytes} B",
    }
    return scenario.points(config.located(keys, Place(f"system={system}", 1, 1)), sets)
