"""A point in the report: what it takes and why, its timeline, and how busy the links are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from simcoll.config.groups import grouped
from simcoll.errors import SimcollError
from simcoll.explanation.explain import SHOWN, explanation
from simcoll.explanation.explained_run import ALL_CAUSES, ExplainedRun, explained_run, unheld_messages
from simcoll.prediction.result_rows import ResultRow
from simcoll.report import point_plots, point_trace
from simcoll.report.html._images import image
from simcoll.report.html._lanes import CAUSE_COLORS, LEFT_OUT, path_slices, timeline
from simcoll.report.html._tables import badge, interval, table
from simcoll.scenario.loading import Point
from simcoll.scenario.scenario import Scenario
from simcoll.units import format_duration, short_size

MOST: Final = 8  # points that are shown so closely
MESSAGES: Final = 1_000_000  # of all points together: to find the times of more takes longer than most runs
SLICES: Final = 7_000  # of all timelines together: more make the file large, and its script slow
_KEYS: Final = (
    "Drag or ← → to move, + and − (or Ctrl and the wheel) to zoom, 0 for all; "
    "↑ ↓ choose a lane, comma and full stop a slice."
)
_TOOLS: Final = (("out", "−", "zoom out"), ("in", "+", "zoom in"), ("left", "←", "earlier"), ("right", "→", "later"),
                 ("all", "all", "show all"))  # fmt: skip


def closely(points: Sequence[Point], rows: Sequence[ResultRow]) -> Iterator[str]:
    """Some points: each algorithm at the largest size, and the shortest step of each algorithm of a workload, on each
    topology and number of ranks; notes say how many points have none of their own, and name those for which there is
    no room. `rows` are those of the points."""
    whole = len(rows) == len(points)  # `algorithm: all` leaves out rows of those that cannot serve
    row_of = {id(point): row for point, row in zip(points, rows, strict=False) if whole}
    steps: dict[tuple[str, str, str], Point] = {}
    for point in sorted(points, key=lambda each: row_of[id(each)].time_ps if whole else 0):
        if (work := point.scenario.workload) and (not whole or row_of[id(point)].status == "ok"):
            steps.setdefault((work.template, work.algorithm, point_plots.place_of(point.scenario)), point)
    chosen = [point for point in points if any(point is each for each in steps.values())]
    of = point_plots.by_turns([*point_plots.examples(points), *chosen])
    shown = of[:MOST]
    most, left = SLICES // max(2, len(shown)), MESSAGES
    for number, point in enumerate(shown):
        scenario = point.scenario
        name = ", ".join([_named(scenario), *point_plots.swept_words(point)])
        try:
            run = explained_run(scenario, most=left)
            left -= unheld_messages(run.ran)
            yield _point(run, name, number == 0, most, scenario.replications is not None)
        except (SimcollError, ValueError, MemoryError) as error:
            yield f'<p class="note">{escape(name)}: {escape(str(error))}</p>'
    if others := len(points) - len(of):
        which, more = "the shortest step" if steps else "the largest size", f"{others} more point{'s' * (others > 1)}"
        yield f'<p class="note">{more} of the run: of each algorithm {which} is here.</p>'
    if missing := of[MOST:]:
        note = f"{len(shown)} of {len(of)} are shown. No room for {_missing(missing)}"
        yield f'<p class="note">{escape(note)}: <code>--set</code> narrows the run to some of them.</p>'


def _missing(points: Sequence[Point]) -> str:
    """Collectives or workloads, their algorithms and the values of swept keys of some points, in words."""
    named = grouped(points, lambda point: (_subject(point.scenario), ", ".join(point_plots.swept_words(point))))
    of = {key: dict.fromkeys(_asked(point.scenario) for point in some) for key, some in named.items()}
    return "; ".join(f"{what} by {', '.join(of[what, at])}{at and f' at {at}'}" for what, at in of)


def _subject(scenario: Scenario) -> str:
    return scenario.workload.template if scenario.workload else scenario.collective


def _asked(scenario: Scenario) -> str:
    return scenario.workload.algorithm if scenario.workload else scenario.algorithm


def _named(scenario: Scenario) -> str:
    words = _subject(scenario), _asked(scenario), None if scenario.workload else short_size(scenario.nbytes)
    return ", ".join(filter(None, words))


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
