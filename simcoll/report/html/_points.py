"""A point in the report: what it takes and why, its timeline, and how busy the links are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from simcoll.errors import SimcollError
from simcoll.explanation.explain import SHOWN, explanation
from simcoll.explanation.explained_run import ALL_CAUSES, ExplainedRun, explained_run
from simcoll.report import point_trace, run_plots
from simcoll.report.html._images import image
from simcoll.report.html._lanes import CAUSE_COLORS, LEFT_OUT, path_slices, timeline
from simcoll.report.html._tables import badge, interval, table
from simcoll.scenario.scenario import Scenario
from simcoll.units import format_duration, short_size

MOST: Final = 6  # points that are shown so closely
SLICES: Final = 7_000  # of all timelines together: more make the file large, and its script slow
_KEYS: Final = (
    "Drag or ← → to move, + and − (or Ctrl and the wheel) to zoom, 0 for all; "
    "↑ ↓ choose a lane, comma and full stop a slice."
)
_TOOLS: Final = (("out", "−", "zoom out"), ("in", "+", "zoom in"), ("left", "←", "earlier"), ("right", "→", "later"),
                 ("all", "all", "show all"))  # fmt: skip


def closely(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """Some points: each algorithm at the largest size, and each algorithm of a workload, as the file has them."""
    shown = list(run_plots.examples(scenarios).values())
    for scenario in scenarios:
        if scenario.workload and not any(_like(scenario, each) for each in shown):
            shown.append(scenario)
    most = SLICES // max(2, len(shown[:MOST]))
    for number, scenario in enumerate(shown[:MOST]):
        try:
            yield _point(explained_run(scenario), number == 0, most, undisturbed=scenario.replications is not None)
        except SimcollError as error:
            yield f'<p class="note">{escape(_named(scenario))}: {escape(str(error))}</p>'
    if len(shown) > MOST:
        yield f'<p class="note">{len(shown) - MOST} more are not shown here.</p>'


def _like(first: Scenario, second: Scenario) -> bool:
    """Whether two scenarios have the same workload, by the same algorithm."""
    left, right = ((w.template, w.algorithm) if w else None for w in (first.workload, second.workload))
    return left == right


def _named(scenario: Scenario) -> str:
    if scenario.workload:
        return f"{scenario.workload.template}, {scenario.workload.algorithm}"
    return f"{scenario.collective}, {scenario.algorithm}, {short_size(scenario.nbytes)}"


def _point(run: ExplainedRun, unfolded: bool, most: int, undisturbed: bool) -> str:
    why = explanation(run, what_if=False)
    row, took = run.row, format_duration(run.time_ps).replace("us", "µs")
    held = f", {interval(row)} us with 90 %" if interval(row) else ""
    head = f"{escape(_named(run.scenario))}: {escape(took)} {badge(row.confidence)}{escape(held)}"
    parts = [
        f'<details class="point"{" open" if unfolded else ""}><summary>{head}</summary>',
        *(['<p class="note">As it runs undisturbed.</p>'] if undisturbed else []),
        "<h3>Critical path by cause</h3>",
        _bar(why["causes"]),
        table(["time_us", "share", "cause", "where"], why["places"][:SHOWN]),
        _meaning(why["causes"]),
        "<h3>Timeline</h3>",
        _timeline(run, most),
        "<h3>Links</h3>",
        _links(run, why["links"]),
        "</details>",
    ]
    return "\n".join(parts)


def _bar(causes: Sequence[dict[str, Any]]) -> str:
    """The shares of the path beside each other; the table below has the numbers."""
    spans = (
        f'<span style="width:{100 * cause["share"]:.3f}%;background:{CAUSE_COLORS[cause["cause"]]}" '
        f'title="{escape(cause["cause"])} {cause["share"]:.1%}"></span>'
        for cause in causes
    )
    return f'<div class="bar" aria-hidden="true">{"".join(spans)}</div>'


def _meaning(causes: Sequence[dict[str, Any]]) -> str:
    items = (
        f'<li><span class="swatch" style="background:{CAUSE_COLORS[cause["cause"]]}"></span>{escape(cause["cause"])} '
        f"{cause['share']:.1%}: {escape(ALL_CAUSES[cause['cause']])}</li>"
        for cause in causes
    )
    return f'<ul class="note">{"".join(items)}</ul>'


def _timeline(run: ExplainedRun, most: int) -> str:
    """Numbers that the page's script draws."""
    ran, transfers = run.ran, point_trace.crossings(run.ran.program) <= point_trace.MOST
    trace = point_trace.of_prediction(ran, transfers)
    data, note = timeline(trace, path_slices(run.parts()), most)
    note = note if transfers else note or LEFT_OUT
    buttons = "".join(
        f'<button type="button" data-do="{do}" aria-label="{label}">{sign}</button>' for do, sign, label in _TOOLS
    )
    lowered = trace.about.get("channels_alike", 1)
    alike = f"One channel of {lowered} is shown: all do the same." if lowered > 1 else ""
    notes = "".join(f'<p class="note">{escape(text)}</p>' for text in (note, alike) if text)
    label = f"Timeline of {len(trace.tracks)} lanes, {format_duration(run.time_ps)}. {_KEYS}"
    return (
        f'{notes}<div class="lanes-of-a-point"><div class="tools">{buttons} <span>{escape(_KEYS)}</span></div>'
        f'<div class="timeline"><canvas class="axis"></canvas>'
        f'<canvas class="lanes" tabindex="0" role="img" aria-label="{escape(label)}"></canvas></div>'
        f'<p class="readout" aria-live="polite"></p>'
        f'<script type="application/json">{script_text(data)}</script></div>'
        "<noscript><p>The timeline needs JavaScript.</p></noscript>"
    )


def script_text(data: str) -> str:
    """JSON that can stand in a page: nothing in it ends the script, or begins a comment."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _links(run: ExplainedRun, links: Sequence[dict[str, Any]]) -> str:
    from simcoll.report.plot.topology import topology_figure

    topology = run.ran.topology
    used = run.ran.busy
    figure = topology_figure(topology, dict(zip(topology.links, used.tolist(), strict=True)))
    drawn = image(figure, f"{topology.name}, its links coloured by how busy they are")
    return f'<div class="plots">{drawn}<div>{table(["link", "kind", "busy", "path_share"], links)}</div></div>'
