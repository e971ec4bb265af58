"""A run as one HTML file: what was asked, what came out, why, and what it is worth."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

import simcoll
from simcoll.prediction import sweep
from simcoll.prediction.result_rows import ResultRow, to_csv
from simcoll.prediction.row_verdicts import of_rows
from simcoll.report import run_plots
from simcoll.report.html._images import image
from simcoll.report.html._points import closely
from simcoll.report.html._tables import WORTH, badge, facts, results_table
from simcoll.report.plot.replications import spread_figure
from simcoll.report.result_tables import SIZE_CONVENTION, values_of
from simcoll.scenario import caveats
from simcoll.scenario.loading import Point
from simcoll.scenario.profile import load_profile


def report(
    rows: Sequence[ResultRow], points: Sequence[Point], figures: Iterable[run_plots.Named], text: str, command: str
) -> str:
    """The page of a run: `figures` are those that the scenario asks for, `text` is its file, `command` what made it.
    The same run gives the same page."""
    scenarios = [point.scenario for point in points]
    name = scenarios[0].name
    sections = [
        ("results", "Results", _results(rows, points)),
        ("plots", "Plots", _plots(rows, points, figures)),
        ("points", "Where the time goes", "\n".join(closely(points, rows))),
        ("scenario", "Scenario", f"<p><code>{escape(command)}</code></p>\n<pre>{escape(text)}</pre>"),
        ("provenance", "Provenance", _provenance(rows, points, command)),
    ]
    there = [section for section in sections if section[2]]
    script = _asset("report.js")
    return Template(_asset("report.html")).substitute(
        title=escape(name),
        what=_summary(rows),
        generator=escape(f"simcoll {simcoll.__version__}"),
        hash=f"sha256-{base64.b64encode(hashlib.sha256(f'{chr(10)}{script}'.encode()).digest()).decode()}",
        style=_asset("report.css"),
        script=script,
        nav="\n".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in there),
        main="\n".join(f'<section id="{key}">\n<h2>{title}</h2>\n{body}\n</section>' for key, title, body in there),
    )


def fragment(rows: Sequence[ResultRow]) -> str:
    """The answer and the table of some rows, for a notebook's cell."""
    return f"<p><strong>{escape(of_rows(rows))}</strong></p>\n{results_table(rows)}"


def _asset(name: str) -> str:
    return (files("simcoll.report.html") / name).read_text(encoding="utf-8")


def _summary(rows: Sequence[ResultRow]) -> str:
    shared = (f"{name} {values_of(rows, name)}" for name in ("topology", "profile", "sharing"))
    labels = " ".join(badge(word) for word in _worths(rows))
    return f"simcoll {escape(simcoll.__version__)} · {escape(' · '.join(shared))} · predictions are {labels}"


def _worths(rows: Sequence[ResultRow]) -> list[str]:
    return list(dict.fromkeys(row.confidence or "uncalibrated" for row in rows if row.status == "ok"))


def _results(rows: Sequence[ResultRow], points: Sequence[Point]) -> str:
    good = sum(row.status == "ok" for row in rows)
    many = f"{len(rows)} points" if len(rows) > 1 else "1 point"
    count = many if good == len(rows) else f"{many}, {good} of them with a time"
    worth = "".join(f"<li>{badge(word)} {escape(WORTH[word])}</li>" for word in _worths(rows))
    sizes = "" if points[0].scenario.workload else f'<p class="note">{escape(SIZE_CONVENTION)}</p>'
    hint = '<span class="screen">A click on a name sorts; a table that fades at its side goes on there.</span>'
    answer = f'<p class="verdict"><strong>{escape(of_rows(rows))}</strong></p>'
    worth += "".join(f"<li>{escape(note)}</li>" for note in caveats.notes(points))
    return f'{answer}\n<p>{count}. {hint}</p>\n{results_table(rows)}\n{sizes}<ul class="note">{worth}</ul>'


def _plots(rows: Sequence[ResultRow], points: Sequence[Point], figures: Iterable[run_plots.Named]) -> str:
    drawings = dict(figures)
    if any(row.replications for row in rows):
        try:
            drawings["runs that differ"] = spread_figure(rows)
        except ValueError as reason:
            print(f"runs that differ: not drawn: {reason}", file=sys.stderr)
    drawn = "\n".join(image(figure, f"{name}: {points[0].scenario.name}") for name, figure in drawings.items())
    return f'<div class="plots">\n{drawn}\n</div>' if drawings else ""


def _provenance(rows: Sequence[ResultRow], points: Sequence[Point], command: str) -> str:
    names = dict.fromkeys(point.scenario.profile for point in points)
    profiles = "; ".join(f"{name}: {load_profile(name).description}" for name in names)
    summary = facts({
        "simcoll": simcoll.__version__,
        "command": command,
        "profile": profiles,
        "seed": values_of(rows, "seed"),
        "engine": values_of(rows, "engine"),
        "schedules proved": values_of(rows, "proved"),
        "topology": values_of(rows, "topology"),
    })  # fmt: skip
    manifest = json.dumps(sweep.manifest(rows, points, command), indent=1)
    return (
        f"{summary}\n<details><summary>manifest.json</summary><pre>{escape(manifest)}</pre></details>\n"
        f"<details><summary>results.csv</summary><pre>{escape(to_csv(rows))}</pre></details>"
    )
