"""Carry out studies: measure if this machine can, fit, and score the predictions. The work behind `simcoll validate`.

A study leaves its measured tables (`measured/`), the fitted profile (`profiles/`), and a `Finding` for the report.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from simcoll.accuracy import measured_points, table_join
from simcoll.accuracy.fit import calibrate, rows_to_fit
from simcoll.accuracy.fit.calibrate import Beginning, Calibrated
from simcoll.accuracy.measured_points import RowQuestions, as_measured
from simcoll.accuracy.studies import baselines as rivals_of
from simcoll.accuracy.studies import study_file
from simcoll.accuracy.studies.study_file import Study, StudyCase
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow, find_measured, read_file
from simcoll.measurement import network_lab, network_namespaces, real_run
from simcoll.measurement.cases_of_points import Tell
from simcoll.measurement.launcher import Launcher
from simcoll.measurement.torch_backend.support import Backend
from simcoll.prediction import sweep
from simcoll.prediction.placed_topology import network_of
from simcoll.prediction.result_rows import write_atomically
from simcoll.scenario import scenario_files
from simcoll.scenario.profile import TableSource
from simcoll.scenario.scenario_files import Point
from simcoll.topology.topology_builder import load_system

MEASURED, PROFILES = "measured", "profiles"  # folders
OWN_HARNESS: Final = "p2p"  # simcoll's harness; in a table with several harnesses only its rows count


@dataclass(frozen=True, eq=False)
class Material:
    """The rows (n,) of a case with the points (n,) that predict them; `table` has all rows that were measured."""

    used: StudyCase
    table: tuple[MeasuredRow, ...]
    rows: tuple[MeasuredRow, ...]
    points: tuple[Point, ...]
    source: TableSource

    def of(self, keep: Sequence[bool]) -> Material:
        """Return the material with only the rows flagged by `keep`."""
        rows, points = tuple(itertools.compress(self.rows, keep)), tuple(itertools.compress(self.points, keep))
        return dataclasses.replace(self, rows=rows, points=points)

    def chosen(self) -> list[bool]:
        """Return flags of the rows to fit."""
        fit = self.used.fit
        if isinstance(fit, dict):
            return table_join.among(self.rows, fit, f"{self.used.name}: fit")
        if fit == rows_to_fit.EVERY_SECOND_SIZE:
            return rows_to_fit.every_second(self.rows)
        return [fit == "all"] * len(self.rows)


@dataclass(frozen=True, eq=False)
class Scored:
    """A row with its prediction by the fitted profile.

    `swept` holds the keys that the scenario swept; `rivals` holds the times (us) that baselines predict.
    """

    case: str
    point: table_join.JoinedPoint
    fitted: bool
    spread: float | None
    fit: str
    suspicious: bool
    swept: Mapping[str, str]
    rivals: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Finding:
    """The outcome of a study. If it could not be carried out, `why_not` says why, and all other fields are empty."""

    study: Study
    why_not: str | None = None
    materials: tuple[Material, ...] = ()
    fits: tuple[tuple[str, Calibrated], ...] = ()
    scored: tuple[Scored, ...] = ()


@dataclass(frozen=True)
class StudyOptions:
    """Options for carrying out studies: their folder, the folder for results, and the time limit of a transfer.

    With `reuse`, tables of earlier measurements are taken from `output`, or else from `folder`.
    """

    folder: Path
    output: Path
    reuse: bool = False
    timeout_s: float = 60.0
    tell: Tell = lambda line: None


def carry_out(study: Study, options: StudyOptions) -> Finding:
    """Measure, fit and score a study. Raises like `real_run.run` and `calibrate`, and InputError for its files."""
    for used in study.cases:  # find mistakes before long runs
        _ = study_file.case_file(options.folder, used.case) if used.case else find_measured(str(used.table))
    if why_not := _why_not(study, options):
        return Finding(study, why_not)
    materials = tuple(_kept(_material(study, used, options)) for used in study.cases)
    fits: list[tuple[str, Calibrated]] = []
    scored: list[Scored] = []
    with tempfile.TemporaryDirectory(prefix="simcoll-") as folder:
        for label, group in _groups(study, materials):
            profile, fit = _first_profile(study, group), _fitted(study, group)
            if fit:
                fits.append((label, fit))
                profile = str(Path(folder) / f"{study.name}-{len(fits)}.yaml")
                write_atomically(Path(profile), fit.text)
            scored += _scored(group, profile, label, study.place == "tables")
    if len(fits) == 1:
        write_atomically(options.output / PROFILES / f"{study.name}.yaml", fits[0][1].text)
    return Finding(study, None, materials, tuple(fits), tuple(scored))


def _why_not(study: Study, options: StudyOptions) -> str | None:
    """Return why a study cannot be carried out on this machine; None if it can."""
    if all(_measured_before(options, str(used.case)) for used in study.cases if used.case):
        return None
    if study.place == "lab":
        return network_namespaces.why_not()
    if study.place == "nccl":
        from simcoll.measurement.torch_backend.session import gpus

        return None if gpus() else "torch sees no GPU"
    return None


# --- rows ---


def _measured_before(options: StudyOptions, name: str) -> Path | None:
    """Return the table of an earlier measurement to reuse; None if there is none."""
    folders = (options.output, options.folder) if options.reuse else ()
    there = (folder / MEASURED / f"{name}.csv" for folder in folders)
    return next((path for path in there if path.exists()), None)


def _material(study: Study, used: StudyCase, options: StudyOptions) -> Material:
    if used.table:
        return _of_table(used)
    points = scenario_files.load(str(study_file.case_file(options.folder, str(used.case))))
    path = _measured_before(options, str(used.case))
    if path is None:
        path = options.output / MEASURED / f"{used.case}.csv"
        _measure(study, points, path, options)
    data, table = read_file(path)
    own = [row for row in table if row.harness == OWN_HARNESS] or table
    predicted = [{**sweep.run_point(point), "point": point} for point in points if _counts(point, own)]
    pairs = table_join.pairs(_selected(own, used), predicted, {})
    asked = [(row, as_measured(partner["point"], row)) for row, partner in pairs]
    return _material_of(used, path.name, data, table, asked)


def _selected(rows: Sequence[MeasuredRow], used: StudyCase) -> list[MeasuredRow]:
    keep = table_join.among(rows, used.where, f"{used.name}: where")
    return list(itertools.compress(rows, keep))


def _kept(material: Material) -> Material:
    """Return the material without the rows that are neither fitted nor scored."""
    if material.used.score is None:
        return material
    scored = table_join.among(material.rows, material.used.score, f"{material.used.name}: score")
    return material.of([a or b for a, b in zip(material.chosen(), scored, strict=True)])


def _counts(point: Point, rows: Sequence[MeasuredRow]) -> bool:
    return bool(point.scenario.workload) or point.scenario.measure.harness == rows[0].harness


def _measure(study: Study, points: Sequence[Point], path: Path, options: StudyOptions) -> None:
    options.tell(f"{path.stem}: measuring")
    backend: Backend = "nccl" if study.place == "nccl" else "gloo"
    # Without priority the times would include the machine's other work.
    launcher = Launcher(prefix=lambda rank: network_lab.priority())
    if study.place == "lab":
        rows = network_lab.run(points, timeout_s=options.timeout_s, tell=options.tell)
    else:
        rows = real_run.run(points, launcher, backend=backend, timeout_s=options.timeout_s, tell=options.tell)
    real_run.write(path, rows, backend)


def _of_table(used: StudyCase) -> Material:
    path, asking = find_measured(str(used.table)), RowQuestions(str(used.system))
    data, table = read_file(path)
    asked = [(row, asking.points(row)) for row in _selected(table, used)]
    kept = [(row, points[0]) for row, points in asked if len(points) == 1]
    if not kept:
        raise InputError(f"{path.name}: no row can be predicted", f"see the `where` of {used.name}")
    return _material_of(used, path.name, data, table, kept)


def _material_of(
    used: StudyCase, name: str, data: bytes, table: Sequence[MeasuredRow], pairs: Sequence[tuple[MeasuredRow, Point]]
) -> Material:
    """Return the material of a case from pairs of a row of its `table` and the point that predicts this row."""
    rows, points = tuple(row for row, _ in pairs), tuple(point for _, point in pairs)
    return Material(used, tuple(table), rows, points, rows_to_fit.source(name, data, len(rows)))


# --- fits ---


def _groups(study: Study, materials: Sequence[Material]) -> Iterator[tuple[str, list[Material]]]:
    """Yield the materials of each fit with a label: all rows, or the rows with equal values in the columns `by`."""
    if not study.by:
        yield "all", list(materials)
        return
    for material in materials:
        keys = [tuple(str(getattr(row, column)) for column in study.by) for row in material.rows]
        for key in dict.fromkeys(keys):
            where = material.used.system or material.used.name
            yield f"{where}, {', '.join(key)}", [material.of([value == key for value in keys])]


def _fitted(study: Study, materials: Sequence[Material]) -> Calibrated | None:
    """Return a profile fitted to the rows of the materials that were chosen for the fit; None if none was.

    Other rows of the same cases are held out; they set the width of the profile's intervals.
    """
    fitted = [(m, flags) for m in materials if (flags := np.array(m.chosen())).any()]
    if not fitted:
        return None
    begins = {"profile": _first_profile(study, materials)}
    pairs = [
        (row, point.scenario.model_copy(update=begins))
        for m, _ in fitted
        for row, point in zip(m.rows, m.points, strict=True)
    ]
    rows, notes = rows_to_fit.of_pairs(pairs)
    if len(rows) != len(pairs):
        raise InputError(f"{study.name}: {notes[0]}", "remove such points from the case")
    gpus = [load_system(m.used.system).gpu for m, _ in fitted if m.used.system]
    begin = Beginning(
        name=study.name,
        scenario=pairs[0][1],
        topology=", ".join(dict.fromkeys(m.used.system or m.used.name for m, _ in fitted)),
        sources=[m.source for m, _ in fitted],
        split="; ".join(f"{m.used.name}: {_split(m.used)}" for m, _ in fitted),
        network=network_of(load_system(named) if (named := fitted[0][0].used.system) else None),
        generations=list(dict.fromkeys(gpu.generation for gpu in gpus if gpu)),
    )
    chosen = np.concatenate([flags for _, flags in fitted])
    return calibrate.fitted(rows, chosen, begin, free=study.free, notes=notes)


def _first_profile(study: Study, materials: Sequence[Material]) -> str:
    """Return the profile with which the fit begins. If nothing is fitted, this profile predicts the rows."""
    return materials[0].used.profile or study.profile


def _split(used: StudyCase) -> str:
    """Return a description of the choice of rows to fit."""
    if isinstance(used.fit, str):
        return used.fit
    return " and ".join(f"{column} {', '.join(values)}" for column, values in used.fit.items())


def _scored(materials: Sequence[Material], profile: str, label: str, beside: bool) -> Iterator[Scored]:
    """Yield the score of every row. With `beside`, baselines also predict the rows that were not fitted."""
    known = [row for m in materials for row, fitted in zip(m.rows, m.chosen(), strict=True) if fitted]
    for material in materials:
        bad = measured_points.suspicious(material.table)
        odd = {id(row) for row, is_bad in zip(material.table, bad, strict=True) if is_bad}
        for row, point, fitted in zip(material.rows, material.points, material.chosen(), strict=True):
            asked = point.scenario.model_copy(update={"profile": profile})
            predicted = sweep.run_point(dataclasses.replace(point, scenario=asked), related=True)
            joined = table_join.answered([row], [[predicted]])
            if not joined:
                raise InputError(f"{material.used.name}: {predicted.status}", "remove such points from the case")
            spread = row.others.get("spread")
            scatter = float(spread) if spread else None
            swept = {column: text for column, text in row.others.items() if "." in column}
            rivals = rivals_of.predicted(known, row, point) if beside and not fitted else {}
            yield Scored(material.used.name, joined[0], fitted, scatter, label, id(row) in odd, swept, rivals)


def machine() -> str:
    """Return a one-line description of this machine."""
    return f"{real_run.machine()}, {'root' if hasattr(os, 'geteuid') and not os.geteuid() else 'no root'}"
