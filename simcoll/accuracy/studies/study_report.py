"""Write the report of validation studies in Markdown, with pictures: the text of `validation/REPORT.md`."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import simcoll
from simcoll.accuracy import scores, table_join
from simcoll.accuracy.studies.baselines import RIVALS
from simcoll.accuracy.studies.study_file import PLACES
from simcoll.accuracy.studies.validate import Finding, Scored, machine
from simcoll.config.grouping import grouped
from simcoll.errors import InputError
from simcoll.prediction.result_rows import write_atomically
from simcoll.schedule.names import WORKLOAD

REPORT, PLOTS = "REPORT.md", "plots"
ERRORS: Final = ("points", "mape", "median", "p95", "bias")
WAYS: Final = ("**simcoll**", *RIVALS)
CAP: Final = "workload.bucket_cap"


class Goal(NamedTuple):
    """A goal of a study: its name, the limit asked for, the value reached, and whether the goal is met."""

    study: str
    name: str
    asked: str
    reached: str
    met: bool


def write(folder: Path, findings: Sequence[Finding]) -> Path:
    """Write the report and its pictures; return the report's path."""
    pictures = {finding.study.name: _pictures(finding, folder / PLOTS) for finding in findings if finding.scored}
    path = folder / REPORT
    write_atomically(path, text(findings, pictures) + "\n")
    return path


def text(findings: Sequence[Finding], pictures: Mapping[str, Sequence[Path]] | None = None) -> str:
    """Return the report in Markdown, with the pictures of each study by the study's name."""
    return "\n".join(_lines(findings, pictures or {})).rstrip()


def goals(finding: Finding) -> list[Goal]:
    """Return a study's goals with the values reached. Errors are of rows held out; order and regret of all rows."""
    held = _held(finding)
    errors = scores.errors(row.point.error for row in held) if held else {}
    ranking = scores.ranking(*_tables(finding.scored)) or {}
    intervals = scores.intervals([row.point for row in _unseen(finding, held)]) or {}
    asked = finding.study.goals
    median = asked.median
    if median is not None and asked.spreads is not None and (spread := _spread(held)) is not None:
        median = max(median, asked.spreads * spread)
    bucket_regret = max((series.regret for series in _bucket_series(finding.scored)), default=None)
    rows = [
        ("median error", "≤", median, errors.get("median")),
        ("95th percentile of errors", "≤", asked.p95, errors.get("p95")),
        ("mean absolute error", "≤", asked.mape, errors.get("mape")),
        ("pairs of algorithms in order", "≥", asked.in_order, ranking.get("in_order")),
        ("mean regret", "≤", asked.regret_mean, ranking.get("regret_mean")),
        ("worst regret", "≤", asked.regret_worst, ranking.get("regret_worst")),
        ("worst regret of bucket sizes", "≤", asked.bucket_regret, bucket_regret),
        ("times within 90 % intervals", "≥", asked.at_least, intervals.get("coverage")),
        ("times within 90 % intervals", "≤", asked.at_most, intervals.get("coverage")),
        ("mean width of intervals", "≤", asked.width, intervals.get("width")),
        ("most that a fit loses", "≤", asked.lost, _lost(finding)),
    ]
    name = finding.study.name
    return [_goal(name, what, sign, limit, got) for what, sign, limit, got in rows if limit is not None]


def _goal(study: str, what: str, sign: str, limit: float, got: float | None) -> Goal:
    met = got is not None and (got <= limit if sign == "≤" else got >= limit)
    return Goal(study, what, f"{sign} {limit:.4g} %", "nothing" if got is None else f"{got:.1f} %", met)


def _held(finding: Finding) -> list[Scored]:
    """Return the rows that no fit has used, without rows that cannot be right."""
    return [row for row in finding.scored if not row.fitted and not row.suspicious]


def _unseen(finding: Finding, held: Sequence[Scored]) -> Sequence[Scored]:
    """Return the rows of cases without any fitted row, or `held` if there is no such case. (Other held-out rows helped
    to set the width of intervals.)"""
    touched = {row.case for row in finding.scored if row.fitted}
    return [row for row in held if row.case not in touched] or held


def _spread(rows: Sequence[Scored]) -> float | None:
    """Return the scatter of the measurement itself, in percent: the rows' median spread; None if unknown."""
    known = [row.spread for row in rows if row.spread is not None]
    return 100 * statistics.median(known) if known else None


def _tables(rows: Sequence[Scored]) -> list[list[Any]]:
    """Return the joined points of the rows, one list for each case."""
    return [points for _, points in _by(rows, lambda row: row.case)]


def _by(rows: Sequence[Scored], key: Callable[[Scored], Any]) -> list[tuple[Any, list[Any]]]:
    """Return the joined points of the rows, grouped by `key` of the row."""
    return [(value, [row.point for row in group]) for value, group in grouped(rows, key).items()]


# --- text ---


def _lines(findings: Sequence[Finding], pictures: Mapping[str, Sequence[Path]]) -> Iterator[str]:
    yield "# Validation: predicted against measured\n"
    yield "Written by `simcoll validate`, which measures, fits and predicts; do not edit. Errors are of predicted over"
    yield "measured time. *Held out* are rows that no fit has seen.\n"
    yield f"simcoll {simcoll.__version__}, {time.strftime('%Y-%m-%d')}, on {machine()}.\n"
    every = [goal for finding in findings if finding.why_not is None for goal in goals(finding)]
    if every:
        yield "## Goals\n"
        yield "Errors and intervals are of held-out rows; order and regret compare all algorithms, fitted or not.\n"
        columns = ("study", "what", "goal", "reached", "")
        yield from _table(columns, [(*goal[:4], "met" if goal.met else "**missed**") for goal in every])
    for finding in findings:
        yield from _section(finding, pictures.get(finding.study.name, ()))


def _section(finding: Finding, pictures: Sequence[Path]) -> Iterator[str]:
    study = finding.study
    yield f"## {study.name}: {study.title}\n"
    yield f"{study.description}\n"
    if finding.why_not:
        yield f"Not carried out: {finding.why_not}.\n"
        return
    yield f"Measured: {PLACES[study.place]}.\n"
    yield from _measured(finding)
    yield from _parameters(finding)
    yield from _errors(finding)
    yield from _verdicts(finding)
    yield from _bucket_size_table(finding)
    yield from (f"![{study.title}]({PLOTS}/{picture.name})\n" for picture in pictures)


def _measured(finding: Finding) -> Iterator[str]:
    rows = []
    for material in finding.materials:
        first = material.rows[0]
        spreads = [float(row.others["spread"]) for row in material.rows if row.others.get("spread")]
        rows.append((
            material.used.name,
            len(material.rows),
            sum(material.chosen()),
            f"{100 * statistics.median(spreads):.1f} %" if spreads else "–",
            "; ".join(filter(None, (first.library_version or first.library, first.others.get("machine")))),
        ))  # fmt: skip
    yield from _table(("case", "rows", "fitted", "median spread", "measured with"), rows)


def _parameters(finding: Finding) -> Iterator[str]:
    if not finding.fits:
        used = dict.fromkeys(m.used.profile or finding.study.profile for m in finding.materials)
        yield f"Nothing was fitted here: profile {', '.join(f'`{name}`' for name in used)}.\n"
        return
    names = list(dict.fromkeys(p["name"] for _, fit in finding.fits for p in fit.document["parameters"]))
    rows = []
    for label, fit in finding.fits:
        parameters = {p["name"]: p for p in fit.document["parameters"]}
        rows.append((label, *(_parameter(parameters.get(name)) for name in names)))
    yield "Fitted parameters, with 90 % intervals:\n"
    yield from _table(("fit", *names), rows)
    if len(finding.fits) == 1:
        document = finding.fits[0][1].document
        left = [f"`{name}`: {why}" for name, why in document["left"].items()]
        if left:
            yield f"Left as they were: {'; '.join(left)}.\n"
        yield from (f"Note: {note}.\n" for note in document["notes"])


def _parameter(described: Mapping[str, Any] | None) -> str:
    if described is None:
        return "–"
    if described["value"] is None:
        return "none"
    ends = ["none" if end is None else f"{end:.4g}" for end in (described["low"], described["high"])]
    return f"{described['value']:.4g} {described['unit']} ({ends[0]} … {ends[1]})"


def _errors(finding: Finding) -> Iterator[str]:
    """Yield tables of errors: fitted and held-out rows by case; held-out rows by algorithm and by region."""
    rows: list[tuple[object, ...]] = [
        (case, "fitted" if fitted else "held out", *_score(points))
        for (case, fitted), points in _by([s for s in finding.scored if not s.suspicious], lambda s: (s.case, s.fitted))
    ]
    held = _held(finding)
    if held:
        rows.append(("**all**", "held out", *_score([row.point for row in held])))
    rows += [
        (case, "bad", *_score(points))
        for case, points in _by([s for s in finding.scored if s.suspicious], lambda s: s.case)
    ]
    yield "Errors in percent:\n"
    yield from _table(("case", "rows are", *ERRORS), rows)
    if finding.study.place == "tables":
        yield from _beside_no_fit(finding)
        rivals = [(fit, len(rows), *_of_ways(rows)) for fit, rows in grouped(held, lambda row: row.fit).items()]
        yield "Mean absolute error in percent on rows that were not fitted, beside simple ways on the same rows:\n"
        yield from _table(("fit", "rows", *WAYS), rivals)
    rows = [(name, *_score(points)) for name, points in _by(held, lambda row: row.point.algorithm)]
    if len(rows) > 1:
        yield from _table(("held out, by algorithm", *ERRORS), rows)
    regions = scores.regions(*_tables(held))
    if len(regions) > 1:
        rows = [(r["region"], *(_number(r[name]) for name in ERRORS)) for r in regions]
        yield from _table(("held out, by region", *ERRORS), rows)


def _beside_no_fit(finding: Finding) -> Iterator[str]:
    """Yield a table of the errors of each fit, beside the errors of predictions without the fit."""
    if not finding.fits:
        return
    yield "Mean absolute error in percent on rows held out, by what could be asked without a fit, and by the fit:\n"
    rows = [
        (label, ways[0]["points"], *(_number(way["mape"]) for way in ways), ways[1]["predicted_by"])
        for label, fit in finding.fits
        if len(ways := fit.document["beside"]) == 3  # the fit began at a profile that was fitted, too
    ]
    yield from _table(("fit", "rows", "plain model", "relative", "fitted", "the relative is"), rows)


def _lost(finding: Finding) -> float | None:
    """Return by how many percentage points a fit raised the error on held-out rows at most, from start to end."""
    ways = [[way["mape"] for way in fit.document["beside"][-2:]] for _, fit in finding.fits]
    return max((max(0.0, pair[1] - pair[0]) for pair in ways if len(pair) == 2), default=None)


def _score(points: Sequence[Any]) -> list[str]:
    errors = scores.errors(point.error for point in points)
    return [_number(errors[name]) for name in ERRORS]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def _verdicts(finding: Finding) -> Iterator[str]:
    held = _held(finding)
    unseen = _unseen(finding, held)
    intervals = scores.intervals([row.point for row in unseen])
    if intervals:
        which = "held-out times" if len(unseen) == len(held) else "times of cases that no fit has touched"
        yield (
            f"90 % intervals hold {intervals['coverage']:.1f} % of {intervals['points']} {which}; "
            f"their mean width is {intervals['width']:.1f} % of the prediction.\n"
        )
        if len(unseen) < len(held):
            yield "The other held-out rows tell how wide intervals are, so they cannot tell whether these hold.\n"
        elif any(row.fitted for row in finding.scored):
            yield "The width of intervals was learnt from these same rows, so this is no test of them.\n"
    ranking = scores.ranking(*_tables(finding.scored))
    if ranking:
        order = "" if ranking["in_order"] is None else f"; {ranking['in_order']:.1f} % of {ranking['pairs']} pairs "
        order += "that differ by more than 5 % are in order" if order else ""
        yield (
            f"Order of algorithms at {ranking['groups']} points: Kendall's tau {ranking['tau']:.2f}{order}. Following "
            f"the model's advice costs {ranking['regret_mean']:.1f} % on average, {ranking['regret_worst']:.1f} % at "
            "worst.\n"
        )


def _bucket_size_table(finding: Finding) -> Iterator[str]:
    """Yield a table of step times by the size of gradient buckets, with the size that the model advises."""
    series = list(_bucket_series(finding.scored))
    if not series:
        return
    yield "Steps over the size of gradient buckets: how many times the best the worst takes, the median error, the best"
    yield "size as measured, the size that the model advises, and what following it costs over the best.\n"
    columns = ("steps", "sizes", "worst / best", "median error", "best", "advised", "costs")
    yield from _table(
        columns,
        [
            (s.name, s.sizes, f"{s.ratio:.2f}", f"{s.error:.1f} %", s.best, s.advised, f"{s.regret:.1f} %")
            for s in series
        ],
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)
    yield ""


def _of_ways(rows: Sequence[Scored]) -> list[str]:
    """Return the mean error of simcoll on the rows, then the mean error of each baseline."""
    simcoll = _mean([row.point.predicted_us for row in rows], rows)
    return [simcoll, *(_mean([row.rivals.get(name) for row in rows], rows) for name in RIVALS)]


def _mean(predicted_us: Sequence[float | None], rows: Sequence[Scored]) -> str:
    known = [us / row.point.measured_us - 1 for us, row in zip(predicted_us, rows, strict=True) if us is not None]
    return f"{scores.errors(known)['mape']:.1f}" if len(known) == len(rows) else "–"


# --- the size of gradient buckets ---


class BucketSeries(NamedTuple):
    """Training steps that differ only in bucket size: their number, the worst over the best measured time, and the
    median absolute error in percent. Then the bucket sizes with the least measured and the least predicted time, and
    how much longer the second size takes as measured, in percent."""

    name: str
    sizes: int
    ratio: float
    error: float
    best: str
    advised: str
    regret: float


def _bucket_series(scored: Iterable[Scored]) -> Iterator[BucketSeries]:
    """Yield the series with two or more bucket sizes; none if bucket sizes were not swept. A swept plain number is the
    number of hosts, which follows from the ranks, so names of series leave it out."""
    steps = [row for row in scored if row.point.collective == WORKLOAD and CAP in row.swept]

    def series(row: Scored) -> tuple[str, ...]:
        return row.case, f"{row.point.ranks} ranks", *(value for key, value in row.swept.items() if key != CAP)

    for key, rows in grouped(steps, series).items():
        if len(rows) > 1:
            name = ", ".join([*key[:2], *(text for text in key[2:] if not text.isdecimal())])
            best = min(rows, key=lambda row: row.point.measured_us)
            advised = min(rows, key=lambda row: row.point.predicted_us)
            shortest, longest = best.point.measured_us, max(row.point.measured_us for row in rows)
            error = scores.errors(row.point.error for row in rows)["median"]
            regret = 100 * (advised.point.measured_us / shortest - 1)
            sizes = best.swept[CAP], advised.swept[CAP]
            yield BucketSeries(name, len(rows), longest / shortest, error, *sizes, regret)


# --- pictures ---


def _pictures(finding: Finding, folder: Path) -> list[Path]:
    """Draw errors by size, with a panel for each case; return the paths.

    Rows without a size are not drawn.
    """
    from simcoll.report.plot import save
    from simcoll.report.plot.comparison import residual_figure

    rows = [{**vars(scored.point), "fitted": scored.fitted, "case": scored.case} for scored in finding.scored]
    panels = [column for column in finding.study.by if column in table_join.KEYS]
    with contextlib.suppress(ValueError, InputError):  # nothing to draw
        path = folder / f"{finding.study.name}.png"
        save(residual_figure(rows, by=("case", *(panels or ("ranks",)))), path)
        return [path]
    return []


def check(findings: Sequence[Finding]) -> list[Goal]:
    """Return the goals that were missed. Raises InputError if no study could be carried out."""
    if all(finding.why_not for finding in findings):
        reasons = "; ".join(f"{finding.study.name}: {finding.why_not}" for finding in findings)
        raise InputError(f"no study can be carried out here: {reasons}", "name other studies, or add --reuse")
    return [goal for finding in findings if not finding.why_not for goal in goals(finding) if not goal.met]
