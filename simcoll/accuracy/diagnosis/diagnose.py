"""Diagnose a machine from a measured table: is it as fast as its hardware should be, and if not, why not?

Points are compared with the intervals of their predictions, and regions of a series with all their points
(`judgement`). The machine is healthy if no region is off. Else each hypothesis about a fault is simulated and ranked
(`ranking`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simcoll.accuracy import scores, table_join
from simcoll.accuracy.diagnosis import judgement, ranking
from simcoll.accuracy.diagnosis.judgement import WILD, Bands, Fit, MeasuredTable, Region
from simcoll.accuracy.measured_rows import RowQuestions, suspicious, with_schedule_name
from simcoll.accuracy.scores import Document
from simcoll.config import yaml_tree
from simcoll.config.arrays import Floats
from simcoll.config.groups import alike
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow, gpu_names, parse_measured, remarks, wrong_data
from simcoll.measurement.run_cases import Tell
from simcoll.prediction import sweep
from simcoll.prediction.confidence import band, shows_usual
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.placed_topology import network_under
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario import caveats
from simcoll.scenario.loading import Point
from simcoll.scenario.profile import Profile, load_profile
from simcoll.scenario.scenario import ITEMSIZE, Scenario
from simcoll.schedule.collectives import COLLECTIVES

WITHOUT_COSTS: Final = ("ideal", "one-port")  # profiles that say nothing of what calls take
SCHEMA: Final = "simcoll.diagnose/2"
WRONG_DATA: Final = "wrong data"  # the verdict of times as they should be, of results that are not
_POINT: Final = ("collective", "ranks", "nodes", "size_bytes", "dtype", "algorithm", "protocol")


@dataclass(frozen=True)
class _DiagnosedRows:
    """Measured rows, the scenario of each, and the result row that the healthy machine's prediction gives for it."""

    rows: tuple[MeasuredRow, ...]
    scenarios: tuple[Scenario, ...]
    results: tuple[ResultRow, ...]

    @property
    def predicted(self) -> Floats:
        """Predicted times (n,), in us."""
        return np.array([result["time_us"] for result in self.results])

    def bands(self, names: Sequence[str]) -> Bands:
        """Return the bands of the rows, from the errors of the region that `names` gives for each."""
        return Bands(list(map(_interval, self.scenarios, self.results, names)))

    @property
    def series(self) -> list[tuple[object, ...]]:
        """Keys of the series of each row: rows that differ in size only share one."""
        return [
            (row.collective, row.algorithm, row.protocol, row.ranks, row.nodes, row.dtype, str(scenario.launch))
            for row, scenario in zip(self.rows, self.scenarios, strict=True)
        ]


def diagnosed(
    text: str,
    source: str,
    system: str,
    where: Sequence[str],
    sets: Sequence[str] = (),
    tell: Tell = lambda line: None,
) -> Document:
    """Judge what `text` measured on a `system`, or on the topology of a file, by the rows that `where` leaves. `tell`
    gets a line for each step.

    Returns the document that `diagnose --json` prints. Raises InputError for tables and topologies that cannot be read,
    and where nothing can be predicted.
    """
    kept = dict(map(yaml_tree.condition, where))
    measured = parse_measured(text, source, table_join.defaults(kept), chosen=True)
    asking = RowQuestions(system, sets)
    rows = table_join.kept(measured, kept, source)
    asked, refused = _predicted_rows(rows, asking, tell)
    if not asked.rows:
        problem = f"{source}: none of {refused.total()} measured rows can be predicted"
        raise InputError(problem, next(iter(refused), "give rows of collectives that are known here"))
    if all(scenario.profile in WITHOUT_COSTS for scenario in asked.scenarios):
        given = " and ".join(dict.fromkeys(scenario.profile for scenario in asked.scenarios))
        problem = f"{given} does not say what calls take, so times on {system} cannot be judged by it"
        cure = f"take {asking.profile}" if asking.profile else "take a profile fitted to such machines"
        raise InputError(problem, f"{cure}, or fit one: simcoll calibrate")
    table, names = _table(asked)
    base = ranking.healthy(table)
    ranked = ranking.ranked(table, base, tell)
    if base.off and ranking.accidental(sound := table.but_for_accidents(base), ranked[0], base):
        base, ranked = sound, [sound]
    document = _document(system, asked, table, names, base, ranked, refused)
    warnings = [
        *remarks(text, source, rows),
        *table_join.filled(rows, kept),
        *asking.warnings(rows),
        *caveats.notes(asked.scenarios),
    ]
    if wrong := wrong_data(text, rows):  # whatever its times are, no such machine is healthy
        document |= {"wrong": wrong, "verdict": WRONG_DATA if document["verdict"] == "healthy" else document["verdict"]}
    return {**document, "other_gpus": asking.other_gpus(rows), "warnings": warnings}


# --- predictions of rows ---


def _predicted_rows(
    selected: Sequence[MeasuredRow], asking: RowQuestions, tell: Tell
) -> tuple[_DiagnosedRows, Counter[str]]:
    """Predict the rows; return those that can be predicted, and a count for each reason why others cannot."""
    asked: dict[int, Point] = {}
    for number, row in enumerate(selected):
        points = asking.points(with_schedule_name(row))
        if len(points) > 1:
            raise InputError("--set sweeps", "give one value")
        if points:
            asked[number] = replace(points[0], scenario=_forced(points[0], row))
    begun = itertools.count()

    def begins(_: int) -> None:
        tell(f"{next(begun)} of {len(asked)} rows predicted")

    # no answer shows how a run went
    results_of = dict(zip(asked, sweep.run_points(list(asked.values()), begins, keep="totals"), strict=True))
    predicted: list[tuple[MeasuredRow, Scenario, ResultRow]] = []
    refused: Counter[str] = Counter()
    for number, row in enumerate(selected):
        result = results_of.get(number)
        if result and result.status == "ok":
            predicted.append((row, asked[number].scenario, result))
        else:
            refused[result.status if result else f"{row.algorithm} is not known"] += 1
    rows, scenarios, results = zip(*predicted, strict=True) if predicted else ((), (), ())
    return _DiagnosedRows(rows, scenarios, results), refused


def _forced(point: Point, row: MeasuredRow) -> Scenario:
    """Return the scenario of the point with the protocol that the row was forced to."""
    scenario = point.scenario
    if row.protocol not in executor(scenario).protocols:
        return scenario
    return scenario.model_copy(update={"protocol": row.protocol})


def _table(asked: _DiagnosedRows) -> tuple[MeasuredTable, list[str]]:
    """Build the table to explain, and name the region of each row.

    Regions follow the expected times, not the measured ones, so that a fault does not move a point to another region.
    """
    measured, predicted = np.array([row.time_us for row in asked.rows]), asked.predicted
    sizes = [row.size_bytes for row in asked.rows]
    series = tuple(tuple(sorted(members, key=sizes.__getitem__)) for members in alike(asked.series))
    small = judgement.launch_points(sizes, suspicious(asked.rows), series)
    expected = predicted + judgement.shifts(measured, small, series, predicted)
    names = scores.located(list(zip(asked.series, sizes, expected.tolist(), strict=True)))
    groups = alike(list(zip(asked.series, names, strict=True)))
    gpus = gpu_names.named(asked.rows)
    return MeasuredTable(measured, predicted, small, series, groups, asked.bands(names), asked.scenarios, gpus), names


def _interval(scenario: Scenario, result: Mapping[str, Any], region: str) -> tuple[float, float] | None:
    """Return factors between which healthy rows lie around a prediction; None where the profile gives none.

    They are what is usual on the machine that the profile was fitted to, and not the interval of the prediction, which
    also holds how another machine differs. Of calls between nodes that a profile of GPUs alone never saw it is what is
    usual where the profile of NICs was fitted, if it has enough rows.
    """
    if result["low_us"] is None:
        return None
    profile, launch = load_profile(scenario.profile), scenario.launch
    judged = profile.judged_by(profile.graph if launch.graph else profile.host if launch.paced else None)
    adds_bytes, new = _adds_bytes(scenario, judged), result["confidence"] == "extrapolated"
    network = network_under(scenario)
    if new and (result["nodes"] or 1) > 1 and shows_usual(network):
        ends = band(judged, region, adds_bytes), band(network, region, adds_bytes)
        return min(low for low, _ in ends), max(high for _, high in ends)
    return band(judged, region, new or adds_bytes)


def _adds_bytes(scenario: Scenario, profile: Profile) -> bool:
    """Whether a call adds elements of one byte, and the profile was fitted to other types only. More instructions add
    as many bytes: measured reduce_scatters of int8 take 3 to 10 % longer than those of float16, all_gathers as long."""
    known = profile.calibration
    fitted = [text.partition("=")[2].split(",") for text in (known.where if known else ()) if text.startswith("dtype=")]
    adds = COLLECTIVES[scenario.collective].reduces and ITEMSIZE[scenario.dtype] == 1
    return adds and bool(fitted) and all(scenario.dtype not in dtypes for dtypes in fitted)


# --- the document ---


def _document(
    system: str, asked: _DiagnosedRows, table: MeasuredTable, names: Sequence[str], base: Fit, ranked: Sequence[Fit],
    refused: Counter[str],
) -> Document:  # fmt: skip
    best = ranked[0]
    explained = not base.off or best.explains(base)
    regions, left = (
        [_region(asked, names, region) for region in fit.regions] for fit in (base, best if explained else base)
    )
    return {
        "schema": SCHEMA,
        "system": system,
        "profile": ", ".join(dict.fromkeys(scenario.profile for scenario in asked.scenarios)),
        "confidence": ", ".join(dict.fromkeys(str(result["confidence"]) for result in asked.results)),
        "launch_us": base.launch,
        "points": _points(asked, table, names, base, best, explained),
        "regions": regions,
        "hypotheses": [_hypothesis(fit, best, base) for fit in ranked],
        "verdict": best.hypothesis.family if explained else None,
        "also": [fit.hypothesis.family for fit in ranking.as_good(ranked, base)] if explained else [],
        "sure": ranking.sure(ranked, base),
        "remains": [region for region in left if region["off"]],
        "by_themselves": {
            collective: [fit.hypothesis.family for fit in fits]
            for collective, fits in ({} if explained else ranking.by_themselves(table, ranked, base)).items()
        },
        "refused": dict(refused),
        "wrong": None,
    }


def _points(
    asked: _DiagnosedRows, table: MeasuredTable, names: Sequence[str], base: Fit, best: Fit, explained: bool
) -> list[Document]:
    expected, bad = base.predicted, suspicious(asked.rows)
    low, high = expected * table.bands.low, expected * table.bands.high
    distances = table.bands.distances(table.measured / expected).tolist()
    unexplained = np.abs(table.bands.distances(table.measured / (best if explained else base).predicted)) > WILD
    calm = {number for region in base.regions if not region.off for number in region.points}
    accidents = {region.accident for region in base.regions}
    return [
        {
            **{name: result[name] for name in _POINT},
            "measured_us": row.time_us,
            "expected_us": float(expected[i]),
            "low_us": float(low[i]),
            "high_us": float(high[i]),
            "explained_us": float(best.predicted[i]),
            "region": names[i],
            "distance": distances[i],
            "verdict": "slow" if distances[i] > 1 else "fast" if distances[i] < -1 else "inside",
            "bad_row": bad[i],
            "single": i in accidents or (i in calm and abs(distances[i]) > WILD and bool(unexplained[i])),
        }
        for i, (row, result) in enumerate(zip(asked.rows, asked.results, strict=True))
    ]


def _region(asked: _DiagnosedRows, names: Sequence[str], region: Region) -> Document:
    """Describe one region of a series in the document."""
    first = asked.rows[region.points[0]]
    outside, contrary = (
        [asked.rows[number].size_bytes for number in numbers] for numbers in (region.outside, region.contrary)
    )
    return {
        "collective": first.collective,
        "ranks": first.ranks,
        "nodes": asked.results[region.points[0]]["nodes"],
        "dtype": first.dtype,
        "region": names[region.points[0]],
        "points": len(region.points),
        **{name: getattr(region, name) for name in ("inside", "ratio", "distance", "low", "high", "off", "factor")},
        "from_bytes": min(outside, default=None),
        "to_bytes": max(outside, default=None),
        "contrary_factor": region.contrary_factor,
        "contrary_from_bytes": min(contrary, default=None),
        "contrary_to_bytes": max(contrary, default=None),
    }


def _hypothesis(fit: Fit, best: Fit, base: Fit) -> Document:
    """Describe one hypothesis, as fitted, in the document."""
    hypothesis = fit.hypothesis
    return {
        "hypothesis": hypothesis.family,
        "value": hypothesis.value or (f"{fit.launch:.1f} us" if hypothesis.host != "as measured" else ""),
        "text": hypothesis.text,
        "error": fit.error,
        "assumes": hypothesis.assumes,
        "score": fit.score,
        "off": len(fit.off),
        "explains": ranking.explains_beside(best, fit, base),
        "launch_us": fit.launch,
    }
