"""A point in the report: what it takes and why, its timeline, and how busy the links are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from simcoll.errors import SimcollError
from simcoll.explanation.explain import SHOWN, explanation
from simcoll.explanation.explained_run import ALL_CAUSES, ExplainedRun, explained_run
from simcoll.prediction.result_rows import ResultRow, swept
from simcoll.report import point_trace, run_plots
from simcoll.report.html._images import image
from simcoll.report.html._lanes import CAUSE_COLORS, LEFT_OUT, path_slices, timeline
from simcoll.report.html._tables import badge, interval, table
from simcoll.report.plot.key_columns import label_of
from simcoll.scenario.scenario import Scenario
from simcoll.units import format_duration, short_size

MOST: Final = 8  # points that are shown so closely
SLICES: Final = 7_000  # of all timelines together: more make the file large, and its script slow
_KEYS: Final = (
    "Drag or ← → to move, + and − (or Ctrl and the wheel) to zoom, 0 for all; "
    "↑ ↓ choose a lane, comma and full stop a slice."
)
_TOOLS: Final = (("out", "−", "zoom out"), ("in", "+", "zoom in"), ("left", "←", "earlier"), ("right", "→", "later"),
                 ("all", "all", "show all"))  # fmt: skip


def closely(scenarios: Sequence[Scenario], rows: Sequence[ResultRow]) -> Iterator[str]:
    """Some points: each algorithm at the largest size, and the shortest step of each algorithm of a workload, on each
    topology and number of ranks; a note names those of which none is shown, and says how many points are not. `rows`
    are those of the scenarios, and say in what they differ."""
    whole = len(rows) == len(scenarios)  # `algorithm: all` leaves out rows of those that cannot serve
    row_of = {id(scenario): row for scenario, row in zip(scenarios, rows, strict=False) if whole}
    steps: dict[tuple[str, str, str], Scenario] = {}
    for scenario in sorted(scenarios, key=lambda each: row_of[id(each)].time_ps if whole else 0):
        if (work := scenario.workload) and (not whole or row_of[id(scenario)].status == "ok"):
            steps.setdefault((work.template, work.algorithm, run_plots.place_of(scenario)), scenario)
    of = run_plots.by_turns([*run_plots.examples(scenarios), *(each for each in scenarios if each in steps.values())])
    shown = of[:MOST]
    varied = [name for name in ("topology", "ranks", "nodes", *swept(rows)) if len({row.get(name) for row in rows}) > 1]
    most = SLICES // max(2, len(shown))
    for number, scenario in enumerate(shown):
        try:
            run = explained_run(scenario)
            name = ", ".join(filter(None, [_named(scenario), label_of(row_of.get(id(scenario), run.row), varied)]))
            yield _point(run, name, number == 0, most, scenario.replications is not None)
        except SimcollError as error:
            yield f'<p class="note">{escape(_named(scenario))}: {escape(str(error))}</p>'
    if left := len(scenarios) - len(shown):
        which = "of each algorithm here is the shortest step" if steps else "each algorithm here has its largest size"
        yield f'<p class="note">{left} more point{"s" * (left > 1)} of the run: {which}.</p>'
    if missing := _places(of) - _places(shown):
        where = "; ".join(sorted(missing))
        yield f'<p class="note">No room for {escape(where)}: <code>--set</code> narrows the run to some of them.</p>'


def _places(scenarios: Sequence[Scenario]) -> set[str]:
    """Topologies and numbers of ranks, in words."""
    counts = [
        (each, {"hosts": each.topology.hosts, "nodes": each.topology.nodes, "ranks": each.ranks}) for each in scenarios
    ]
    return {", ".join([each.topology.title, *(f"{n} {of}" for of, n in count.items() if n)]) for each, count in counts}


def _named(scenario: Scenario) -> str:
    if scenario.workload:
        return f"{scenario.workload.template}, {scenario.workload.algorithm}"
    return f"{scenario.collective}, {scenario.algorithm}, {short_size(scenario.nbytes)}"


def _point(run: ExplainedRun, name: str, unfolded: bool, most: int, undisturbed: bool) -> str:
    why = explanation(run, what_if=False)
    row, took = run.row, format_duration(run.time_ps).replace("us", "µs")
    held = f", {interval(row)} with 90 %" if interval(row) else ""
    head = f"{escape(name)}: {escape(took)} {badge(row.confidence)}{escape(held)}"
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
    figure = topology_figure(topology, dict(zip(topology.links, used.tolist(), strict=False)))
    drawn = image(figure, f"{topology.name}, its links coloured by how busy they are")
    return f'<div class="plots">{drawn}<div>{table(["link", "kind", "busy", "path_share"], links)}</div></div>'
