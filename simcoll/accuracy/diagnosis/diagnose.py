"""Diagnose a machine from a measured table: is it as fast as its hardware should be, and if not, why not?

Each point is compared with the interval of its prediction, each region of a series with all its points (`deviations`).
The machine is healthy if no region is off (slow or fast). Else each hypothesis about a fault is simulated and ranked
(`ranking`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simcoll.accuracy import scores, table_join
from simcoll.accuracy.diagnosis import deviations, ranking
from simcoll.accuracy.diagnosis.deviations import WILD, Bands, Fit, MeasuredTable, Region
from simcoll.accuracy.diagnosis.hypotheses import ANOTHER, PENALTY
from simcoll.accuracy.measured_points import RowQuestions, question, suspicious, with_schedule_name
from simcoll.accuracy.scores import Document
from simcoll.config import yaml_tree
from simcoll.config.grouping import alike, grouped
from simcoll.config.numpy_helpers import Floats, Numbers
from simcoll.errors import Diagnostic, InputError
from simcoll.formats.measured import MeasuredRow, environment, gpu_names, parse_measured, remarks, wrong_data
from simcoll.measurement.cases_of_points import Tell
from simcoll.prediction import sweep
from simcoll.prediction.confidence import FEWEST, NORMAL_90, band, noise, shows_usual
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.placed_topology import network_under
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario import caveats
from simcoll.scenario.profile import Profile, load_profile
from simcoll.scenario.scenario import ITEMSIZE, Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.units import format_size

WITHOUT_COSTS: Final = ("ideal", "one-port")  # profiles without the costs of calls
SCHEMA: Final = "simcoll.diagnose/2"
WRONG_DATA: Final = "wrong data"  # the verdict when times are healthy and results are wrong
SOUND: Final = 0.9  # of the shortest possible time: links that are a tenth faster than in their file are no wonder
UNIT: Final = 0.2  # |log 1000| by which times in another unit may differ from expected ones: a factor of four
MOST_SIZES: Final = 128  # of a series that are judged: six an octave, from 1 KiB to 1 GiB
_POINT: Final = ("collective", "ranks", "nodes", "size_bytes", "dtype", "algorithm", "protocol")


@dataclass(frozen=True)
class _DiagnosedRows:
    """Measured rows (n). Equal rows are one case (m): its scenario, and its predicted row on the healthy machine.
    `case` (n,) is the number of each row's case."""

    rows: tuple[MeasuredRow, ...]
    case: Numbers
    scenarios: tuple[Scenario, ...]
    results: tuple[ResultRow, ...]

    @property
    def predicted(self) -> Floats:
        """Predicted times (n,), in us."""
        times: Floats = np.array([result["time_us"] for result in self.results])[self.case]
        return times

    def bands(self, names: Sequence[str], noisy: float) -> Bands:
        """Return the rows' bands (usual ranges of times): as wide as errors in the regions in `names`, and noise."""
        pairs = list(zip(self.case.tolist(), names, strict=True))
        known = {(case, name): _interval(self.scenarios[case], self.results[case], name) for case, name in set(pairs)}
        return Bands([known[pair] for pair in pairs], noisy)

    @property
    def series(self) -> list[tuple[object, ...]]:
        """A key for each row; rows that differ only in size have equal keys."""
        launches = [str(scenario.launch) for scenario in self.scenarios]
        return [
            (row.collective, row.algorithm, row.protocol, row.ranks, row.nodes, row.dtype, launches[case])
            for row, case in zip(self.rows, self.case.tolist(), strict=True)
        ]


def diagnosed(
    text: str,
    source: str,
    system: str,
    where: Sequence[str],
    sets: Sequence[str] = (),
    tell: Tell = lambda line: None,
    excluded: Collection[str] | None = (),
) -> Document:
    """Diagnose a `system` (or topology file) from the measured table `text`; `where` (COL=VALUE) selects rows.

    Returns the document that `diagnose --json` prints. `tell` gets a line for each step. Families of hypotheses in
    `excluded` are not tried; None: no hypothesis is. Raises InputError if a table or topology cannot be read, or if
    nothing can be predicted.
    """
    kept = dict(map(yaml_tree.condition, where))
    measured = parse_measured(text, source, table_join.defaults(kept), chosen=True)
    asking = RowQuestions(system, sets)
    rows = table_join.kept(measured, kept, source)
    judged = _thinned(rows)
    asked, refused = _predicted_rows(judged, asking, tell)
    if not asked.rows:
        problem = f"{source}: none of {refused.total()} measured rows can be predicted"
        raise InputError(problem, next(iter(refused), "give rows of collectives that `simcoll list algorithms` shows"))
    if all(scenario.profile in WITHOUT_COSTS for scenario in asked.scenarios):
        given = " and ".join(dict.fromkeys(scenario.profile for scenario in asked.scenarios))
        problem = f"profile {given} has no costs of calls, so it cannot judge times on {system}"
        cure = f"take {asking.profile}" if asking.profile else "take a profile fitted to such machines"
        raise InputError(problem, f"{cure}, or fit one with `simcoll calibrate`")
    table, names = _table(asked, environment(text, rows))
    base = ranking.healthy(table)
    ranked = [base] if excluded is None else ranking.ranked(table, base, tell, excluded)
    _check_possible(asked, table, base, ranked[0], system, source)
    if base.off and not (sound := ranking.but_for_accidents(table, base)).off:
        score = sound.error + 2 * PENALTY * len(sound.accidents)  # each is two assumptions: the point and its time
        if score < ranked[0].score or not ranked[0].explains(base):
            base, ranked = sound, [sound]
    document = _document(system, asked, table, names, base, ranked, refused)
    warnings = [
        *([f"{len(judged)} of {len(rows)} rows are judged: sizes spread evenly"] if len(judged) < len(rows) else []),
        *remarks(text, source, rows),
        *table_join.filled(rows, kept),
        *asking.warnings(rows),
        *caveats.notes(asked.scenarios),
    ]
    if wrong := wrong_data(text, rows):  # a machine with wrong results is not healthy, whatever its times are
        document["wrong"] = wrong
        document["explained_by"] = WRONG_DATA if document["explained_by"] == "healthy" else document["explained_by"]
    return {**document, "other_gpus": asking.other_gpus(rows), "warnings": warnings}


# --- predictions of rows ---


def _predicted_rows(
    selected: Sequence[MeasuredRow], asking: RowQuestions, tell: Tell
) -> tuple[_DiagnosedRows, Counter[str]]:
    """Predict the rows; return those that can be predicted, and how many others cannot, by reason."""
    asked: dict[Hashable, Point] = {}  # by question: a point for all rows that ask it
    questions = list(map(question, selected))
    of_key = dict(zip(questions, selected, strict=True))
    for key, row in of_key.items():
        points = asking.points(with_schedule_name(row))
        if len(points) > 1:
            raise InputError("--set gives several values", "give one value")
        if points:
            asked[key] = replace(points[0], scenario=_forced(points[0], row))

    def begins(number: int) -> None:
        tell(f"{number} of {len(asked)} points predicted")

    # Totals suffice, as no answer shows the course of a run.
    results = dict(zip(asked, sweep.run_points(list(asked.values()), begins, keep="totals"), strict=True))
    good = {key: number for number, key in enumerate(key for key in asked if results[key].status == "ok")}
    refused: Counter[str] = Counter()
    for key, row in zip(questions, selected, strict=True):
        if key not in good:
            refused[results[key].status if key in asked else f"simcoll has no algorithm {row.algorithm!r}"] += 1
    kept = [(key, row) for key, row in zip(questions, selected, strict=True) if key in good]
    return _DiagnosedRows(
        rows=tuple(row for _, row in kept),
        case=np.array([good[key] for key, _ in kept], np.int64),
        scenarios=tuple(asked[key].scenario for key in good),
        results=tuple(results[key] for key in good),
    ), refused


def _thinned(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows with MOST_SIZES sizes of each series at most, spread evenly from the smallest to the largest."""
    left = set[Hashable]()
    for members in grouped(rows, lambda row: question(replace(row, size_bytes=0))).values():
        by_size = grouped(sorted(members, key=lambda row: row.size_bytes), question)
        at = np.linspace(0, len(by_size) - 1, min(len(by_size), MOST_SIZES)).round().astype(int)
        left |= {list(by_size)[number] for number in at.tolist()}
    return [row for row in rows if question(row) in left]


def _forced(point: Point, row: MeasuredRow) -> Scenario:
    """Return the point's scenario; it names the row's protocol if a user can force the library to this protocol."""
    scenario = point.scenario
    if row.protocol not in executor(scenario).protocols:
        return scenario
    return scenario.model_copy(update={"protocol": row.protocol})


def _table(asked: _DiagnosedRows, variables: frozenset[str] | None) -> tuple[MeasuredTable, list[str]]:
    """Return the rows as the table to explain, and the name of each row's region.

    Regions follow from expected times, not from measured ones: a fault must not move a point to another region.
    """
    measured, predicted = np.array([row.time_us for row in asked.rows]), asked.predicted
    sizes = [row.size_bytes for row in asked.rows]
    series = tuple(tuple(sorted(members, key=sizes.__getitem__)) for members in alike(asked.series))
    small = deviations.launch_points(sizes, suspicious(asked.rows), series)
    expected = predicted + deviations.shifts(measured, small, series, predicted)
    names = scores.located(list(zip(asked.series, sizes, expected.tolist(), strict=True)))
    groups = alike(list(zip(asked.series, names, strict=True)))
    shown = gpu_names.named(asked.rows), variables
    spread = noise(np.log(measured / expected), asked.series, sizes)[0].spread
    bands = asked.bands(names, NORMAL_90 * spread if len(sizes) - len(series) >= FEWEST else 0.0)
    return MeasuredTable(measured, predicted, small, series, groups, bands, asked.case, asked.scenarios, *shown), names


def _interval(scenario: Scenario, result: Mapping[str, Any], region: str) -> tuple[float, float] | None:
    """Return the range of a healthy machine's time as two factors of the prediction; None if the profile has none.

    The range is the prediction's interval, which allows for differences between machines, and at least the errors on
    the machine to which the profile was fitted. For calls between nodes that a profile of GPUs never saw, errors of the
    NICs' profile count too, if it has enough rows.
    """
    if result["low_us"] is None:
        return None
    ends = [(result["low_us"] / result["time_us"], result["high_us"] / result["time_us"])]
    profile, launch = load_profile(scenario.profile), scenario.launch
    judged = profile.judged_by(profile.graph if launch.graph else profile.host if launch.paced else None)
    adds_bytes, new = _adds_bytes(scenario, judged), result["confidence"] == "extrapolated"
    network = network_under(scenario)
    if new and (result["nodes"] or 1) > 1 and shows_usual(network):
        ends += [band(judged, region, adds_bytes), band(network, region, adds_bytes)]
    else:
        ends.append(band(judged, region, new or adds_bytes))
    return min(low for low, _ in ends), max(high for _, high in ends)


def _adds_bytes(scenario: Scenario, profile: Profile) -> bool:
    """Return whether a call reduces elements of one byte, while the profile was fitted to larger types only. One-byte
    reductions take more instructions per byte: a measured reduce_scatter of int8 takes 3 to 10 % longer than one of
    float16; an all_gather takes no longer."""
    known = profile.calibration
    fitted = [text.partition("=")[2].split(",") for text in (known.where if known else ()) if text.startswith("dtype=")]
    adds = COLLECTIVES[scenario.collective].reduces and ITEMSIZE[scenario.dtype] == 1
    return adds and bool(fitted) and all(scenario.dtype not in dtypes for dtypes in fitted)


def _check_possible(
    asked: _DiagnosedRows, table: MeasuredTable, base: Fit, best: Fit, system: str, source: str
) -> None:
    """Raise InputError if rows take less time than any schedule on these links, unless another machine explains it."""
    if best.hypothesis.rarity == ANOTHER and best.explains(base):
        return
    least = np.array([result["lower_bound_us"] or 0.0 for result in asked.results])[asked.case]
    ratios = base.predicted / table.measured
    impossible = (table.measured < SOUND * least) & (table.bands.distances(1 / ratios) < -1)
    if not impossible.any():
        return
    first = int(np.flatnonzero(impossible)[0])
    row, count = asked.rows[first], int(impossible.sum())
    call = f"{row.collective} of {format_size(row.size_bytes)} on {row.ranks} ranks"
    some = f"{count} of {len(asked.rows)} rows" if len(asked.rows) > 1 else "the row"
    problem = f"{some} cannot be right: {call} takes {least[first]:.4g} us at least on the links of {system}"
    where = "" if row.place else f"{source}: "
    cure = _other_unit(float(np.median(ratios[impossible]))) or (
        "check sizes (bytes of the whole buffer), ranks and nodes, units (time_us: microseconds), and --on"
    )
    raise InputError([Diagnostic(f"{where}{row.time_us:.6g} us: {problem}", cure, "time_us", row.place)])


def _other_unit(ratio: float) -> str | None:
    """Return what to check if expected times are `ratio` times the measured ones, and a unit would be the reason."""
    power = np.log10(ratio) / 3
    unit = {1: "ms", 2: "s", -1: "ns"}.get(round(power))
    return f"check units: time_us seems to hold {unit}, not us" if unit and abs(power - round(power)) < UNIT else None


# --- the document ---


def _document(
    system: str, asked: _DiagnosedRows, table: MeasuredTable, names: Sequence[str], base: Fit, ranked: Sequence[Fit],
    refused: Counter[str],
) -> Document:  # fmt: skip
    best = ranked[0]
    explained = not base.off or best.explains(base)
    good = ranking.as_good(ranked, base, table)
    regions, left = (
        [_region(asked, names, region, fit.accidents) for region in fit.regions]
        for fit in (base, best if explained else base)
    )
    return {
        "schema": SCHEMA,
        "system": system,
        "profile": ", ".join(dict.fromkeys(scenario.profile for scenario in asked.scenarios)),
        "predicted_as": ", ".join(dict.fromkeys(str(result["confidence"]) for result in asked.results)),
        "launch_us": base.launch,
        "points": _points(asked, table, names, base, best, explained),
        "regions": regions,
        "hypotheses": [_hypothesis(fit, fit in good or ranking.beside(best, fit), base) for fit in ranked],
        "explained_by": best.hypothesis.family if explained else None,
        "also": [fit.hypothesis.family for fit in good if fit is not best],
        "sure": ranking.sure(ranked, base, table),
        "next": _next(asked, table, base, good),
        "remains": [region for region in left if region["off"]],
        "refused": dict(refused),
        "wrong": None,
    }


def _next(asked: _DiagnosedRows, table: MeasuredTable, base: Fit, good: Sequence[Fit]) -> list[str]:
    """Return which measurements would tell apart the hypotheses `good`, which explain the table equally well."""
    unit = _other_unit(float(np.median(base.predicted / table.measured)))
    causes = {fit.hypothesis.rarity for fit in good}
    alone = all((result["nodes"] or 1) > 1 for result in asked.results) and 0 in causes and len(causes) > 1
    variables = dict.fromkeys(name for fit in good for name in fit.hypothesis.variables)
    return [
        *([unit] if unit else []),
        *(["measure one node by itself, which shows its links without the network"] if alone else []),
        *([f"run with NCCL_DEBUG=INFO, which shows whether {', '.join(variables)} are set"] if variables else []),
    ]


def _points(
    asked: _DiagnosedRows, table: MeasuredTable, names: Sequence[str], base: Fit, best: Fit, explained: bool
) -> list[Document]:
    bad, bands = suspicious(asked.rows), table.bands
    columns = (base.predicted, base.predicted * bands.low, base.predicted * bands.high, best.predicted)
    expected, low, high, explained_us = (column.tolist() for column in columns)
    distances = bands.distances(table.measured / base.predicted).tolist()
    unexplained = np.abs(bands.distances(table.measured / (best if explained else base).predicted)) > WILD
    known = [{name: result[name] for name in _POINT} for result in asked.results]
    calm = {number for region in base.regions if not region.off for number in region.points}
    return [
        {
            **known[case],
            "size_bytes": row.size_bytes,
            "measured_us": row.time_us,
            "expected_us": expected[i],
            "low_us": low[i],
            "high_us": high[i],
            "explained_us": explained_us[i],
            "region": names[i],
            "distance": distances[i],
            "verdict": "slow" if distances[i] > 1 else "fast" if distances[i] < -1 else "inside",
            "bad_row": bad[i],
            "single": i in base.accidents or (i in calm and abs(distances[i]) > WILD and bool(unexplained[i])),
        }
        for i, (row, case) in enumerate(zip(asked.rows, asked.case.tolist(), strict=True))
    ]


def _region(asked: _DiagnosedRows, names: Sequence[str], region: Region, accidents: Sequence[int]) -> Document:
    """Return the JSON document's entry for one region of a series."""
    first = asked.rows[region.points[0]]
    outside, contrary = (
        [asked.rows[number].size_bytes for number in numbers] for numbers in (region.outside, region.contrary)
    )
    return {
        "collective": first.collective,
        "ranks": first.ranks,
        "nodes": asked.results[int(asked.case[region.points[0]])]["nodes"],
        "dtype": first.dtype,
        "region": names[region.points[0]],
        "points": len(region.points),
        "inside": region.inside - len({*region.points}.intersection(accidents)),
        **{name: getattr(region, name) for name in ("ratio", "distance", "low", "high", "off", "factor")},
        "from_bytes": min(outside, default=None),
        "to_bytes": max(outside, default=None),
        "contrary_factor": region.contrary_factor,
        "contrary_from_bytes": min(contrary, default=None),
        "contrary_to_bytes": max(contrary, default=None),
    }


def _hypothesis(fit: Fit, near: bool, base: Fit) -> Document:
    """Return the JSON document's entry for one hypothesis, which explains nothing unless it is `near` the measured
    times; `base` is the fit of the healthy machine."""
    hypothesis = fit.hypothesis
    return {
        "hypothesis": hypothesis.family,
        "value": hypothesis.value or (f"{fit.launch:.1f} us" if hypothesis.host != "as measured" else ""),
        "text": hypothesis.text,
        "error": fit.error,
        "assumes": hypothesis.assumes,
        "score": fit.score,
        "off": len(fit.off),
        "explains": near and fit.explains(base),
        "launch_us": fit.launch,
    }
