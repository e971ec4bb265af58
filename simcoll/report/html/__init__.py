"""Show a run as one self-contained HTML file: question, answer, reasons, and how far to trust the answer."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from importlib.resources import files

from markupsafe import Markup

import simcoll
from simcoll.prediction import sweep
from simcoll.prediction.result_rows import ResultRow, to_csv
from simcoll.prediction.summary_sentence import of_rows
from simcoll.report import run_plots
from simcoll.report.html.elements import picture, rendered, results_table
from simcoll.report.html.points import closely
from simcoll.report.plot.steps import spread_figure
from simcoll.report.result_tables import SIZE_CONVENTION, values_of
from simcoll.scenario import caveats
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario_files import Point


def report(
    rows: Sequence[ResultRow], points: Sequence[Point], figures: Iterable[run_plots.Named], text: str, command: str
) -> str:
    """Return the HTML page of a run. `figures` are the figures that the scenario requests, `text` is the scenario file,
    `command` the command line of the run. Equal runs give equal pages."""
    name, script = points[0].scenario.name, _asset("report.js")
    good = sum(row.status == "ok" for row in rows)
    many = f"{len(rows)} points" if len(rows) > 1 else "1 point"
    profiles = dict.fromkeys(point.scenario.profile for point in points)
    return rendered(
        "report.html.j2",
        name=name,
        version=simcoll.__version__,
        hash=f"sha256-{base64.b64encode(hashlib.sha256(f'{chr(10)}{script}'.encode()).digest()).decode()}",
        style=_asset("report.css"),
        script=script,
        shared=" · ".join(f"{key} {values_of(rows, key)}" for key in ("topology", "profile", "sharing")),
        words=list(dict.fromkeys(row.confidence or "uncalibrated" for row in rows if row.status == "ok")),
        answer=of_rows(rows),
        count=many if good == len(rows) else f"{many}, {good} of them with a time",
        results=results_table(rows),
        sizes="" if points[0].scenario.workload else SIZE_CONVENTION,
        notes=caveats.notes(points),
        pictures=[picture(figure, f"{key}: {name}") for key, figure in _figures(rows, figures).items()],
        points=list(closely(points, rows)),
        command=command,
        scenario=text,
        provenance={
            "simcoll": simcoll.__version__,
            "command": command,
            "profile": "; ".join(f"{profile}: {load_profile(profile).description}" for profile in profiles),
            "seed": values_of(rows, "seed"),
            "engine": values_of(rows, "engine"),
            "schedules proved": values_of(rows, "proved"),
            "topology": values_of(rows, "topology"),
        },
        manifest=json.dumps(sweep.manifest(rows, points, command), indent=1),
        csv=to_csv(rows),
    )


def fragment(rows: Sequence[ResultRow]) -> str:
    """Return rows as HTML for a notebook's cell: the answer in a sentence, and the table."""
    return rendered("results.html.j2", answer=of_rows(rows), results=results_table(rows))


def _asset(name: str) -> Markup:
    """Return the text of a file in this package (style, script), to be put into the page unchanged."""
    return Markup((files("simcoll.report.html") / name).read_text(encoding="utf-8"))


def _figures(rows: Sequence[ResultRow], figures: Iterable[run_plots.Named]) -> dict[str, object]:
    drawings = dict(figures)
    if any(row.replications for row in rows):
        try:
            drawings["runs that differ"] = spread_figure(rows)
        except ValueError as reason:
            print(f"runs that differ: not drawn: {reason}", file=sys.stderr)
    return drawings
