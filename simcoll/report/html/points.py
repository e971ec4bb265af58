"""Show single points in the HTML report: time and causes, timeline, and how busy links are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from simcoll.config.grouping import grouped
from simcoll.errors import SimcollError
from simcoll.explanation.explain import SHOWN, explanation
from simcoll.explanation.explained_run import ALL_CAUSES, ExplainedRun, explained_run, unheld_messages
from simcoll.explanation.viewer_trace import FAULTS, LINKS, Slice, Trace, Track
from simcoll.prediction.result_rows import ResultRow
from simcoll.report import point_trace, run_plots
from simcoll.report.html.elements import interval, picture, rendered, table
from simcoll.report.plot.topology import topology_figure
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.units import format_duration, short_size

MOST: Final = 8  # points shown in detail
MESSAGES: Final = 1_000_000  # of all points together: computing the times of more takes longer than most runs
SLICES: Final = 7_000  # of all timelines together: more make the file large and its script slow
_KEYS: Final = (
    "Drag or ← → to move, + and − (or Ctrl and the wheel) to zoom, 0 for all; "
    "↑ ↓ choose a lane, comma and full stop a slice."
)
_TOOLS: Final = (("out", "−", "zoom out"), ("in", "+", "zoom in"), ("left", "←", "earlier"), ("right", "→", "later"),
                 ("all", "all", "show all"))  # fmt: skip
PATH: Final = "critical path"
NOTE: Final = Markup('<p class="note">{}</p>')
LEFT_OUT: Final = "Transfers are left out here: there are too many."
_CHUNKS: Final = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB", "#EE7733")
_KINDS: Final = {
    "kernel": "#555555",
    "compute": "#999933",
    "launch": "#DDCC77",
    "host": "#AA4499",
    "memory": "#BBBBBB",
    "copy": "#BBBBBB",
    "fault": "#AA2222",
}
_CAUSES: Final = (
    "#332288", "#CC6677", "#DDCC77", "#88CCEE", "#44AA99", "#117733", "#999933", "#AA4499", "#BBBBBB", "#BBCC33",
    "#882255", "#EE7733", "#997700", "#33BBEE", "#663333", "#9988DD", "#004488", "#EE99AA", "#005500", "#AA5500",
    "#555555", "#CC0099", "#1B9E77", "#7570B3", "#66A61E", "#A6761D", "#E7298A", "#0077AA", "#B2182B",
)  # fmt: skip
CAUSE_COLORS: Final[Mapping[str, str]] = dict(zip(ALL_CAUSES, _CAUSES, strict=True))


def timeline(trace: Trace, path: Iterable[Slice], most: int) -> tuple[dict[str, Any], str]:
    """Return the critical path and the trace as numbers for the page's script, and a note of what was left out so that
    at most `most` slices remain.

    A track is its process, its name, and a flat list with six numbers per slice: ps since the end of the previous
    slice, length in ps, numbers of name and colour, bytes, and step (-1: none).
    """
    tracks, note = _few(trace, most)
    tracks.sort(key=lambda track: track.process != FAULTS)  # faults first, where they are seen
    longest = list(path)
    if len(longest) <= most:
        tracks = [Track(PATH, "", longest), *tracks]
    order = {process: place for place, process in enumerate(dict.fromkeys(track.process for track in tracks))}
    names: dict[str, int] = {}
    colors: dict[str, int] = {}
    lanes = [
        {"p": track.process, "n": track.name, "s": _numbers(track.slices, names, colors)}
        for track in sorted(tracks, key=lambda track: order[track.process])
    ]
    return {"end": trace.end_ps, "tracks": lanes, "names": list(names), "colors": list(colors)}, note


def _few(trace: Trace, most: int) -> tuple[list[Track], str]:
    """Return the tracks to show, at most `most` slices in all, and a note of what is left out."""
    for tracks, note in _selections(trace):
        if sum(len(track.slices) for track in tracks) <= most:
            return list(tracks), note
    return [], "There is too much to show here."


def _selections(trace: Trace) -> Iterator[tuple[Sequence[Track], str]]:
    """Yield smaller and smaller selections of tracks, each with a note: all; ranks; streams; first ranks' streams."""
    yield trace.tracks, ""
    ranks = [track for track in trace.tracks if track.process != LINKS]
    yield ranks, "Links are left out here: there are too many transfers."
    streams = [track for track in ranks if not {"send", "receive", "copy"} & {span.kind for span in track.slices}]
    yield streams, LEFT_OUT
    for count in range(len(trace.ranks), 0, -1):
        first = [track for track in streams if track.process in (FAULTS, *trace.ranks[:count])]
        yield first, f"Only the streams of the first {count} of {len(trace.ranks)} ranks are shown here."


def _numbers(slices: Sequence[Slice], names: dict[str, int], colors: dict[str, int]) -> list[int]:
    numbers: list[int] = []
    at = 0
    for span in slices:
        color = colors.setdefault(_color(span), len(colors))
        name = names.setdefault(_label(span), len(names))
        args = span.args
        numbers += [span.begin - at, span.end - span.begin, name, color, args.get("bytes", -1), args.get("step", -1)]
        at = span.end
    return numbers


def _label(span: Slice) -> str:
    if span.kind == "kernel":
        return str(span.args.get("operation") or span.name)
    if span.kind in ("send", "receive", "link", "memory"):
        return f"chunk{'s' * ('chunks' in span.args)} {span.name}"
    return span.name


def _color(span: Slice) -> str:
    """Return the colour of a slice. A transfer has the colour of its chunk, on ranks and on links."""
    if span.kind == PATH:
        return CAUSE_COLORS[span.args["cause"]]
    return _KINDS.get(span.kind) or _CHUNKS[span.args["chunk"] % len(_CHUNKS)]


def path_slices(parts: Iterable[Any]) -> Iterable[Slice]:
    """Yield the parts of a critical path as slices; neighbours with the same cause and place become one slice."""
    for (cause, where), group in itertools.groupby(parts, lambda part: (part.cause, part.where)):
        first, *others = group
        end = others[-1].end_ps if others else first.end_ps
        yield Slice(first.begin_ps, end, f"{cause}: {where}" if where else cause, PATH, {"cause": cause})


def closely(points: Sequence[Point], rows: Sequence[ResultRow]) -> Iterator[Markup]:
    """Yield HTML for the points that the report shows in detail, and notes on all other points. Shown are, for each
    topology and number of ranks, each algorithm at its largest size, or each algorithm's shortest step of a workload.
    `rows` are the result rows of `points`."""
    whole = len(rows) == len(points)  # `algorithm: all` leaves out rows of algorithms that cannot serve
    row_of = {id(point): row for point, row in zip(points, rows, strict=False) if whole}
    steps: dict[tuple[str, str, str], Point] = {}
    for point in sorted(points, key=lambda each: row_of[id(each)].time_ps if whole else 0):
        if (work := point.scenario.workload) and (not whole or row_of[id(point)].status == "ok"):
            steps.setdefault((work.template, work.algorithm, run_plots.place_of(point.scenario)), point)
    chosen = [point for point in points if any(point is each for each in steps.values())]
    of = run_plots.by_turns([*run_plots.examples(points), *chosen])
    shown = of[:MOST]
    most, left = SLICES // max(2, len(shown)), MESSAGES
    for number, point in enumerate(shown):
        scenario = point.scenario
        name = ", ".join([_named(scenario), *run_plots.swept_words(point)])
        try:
            run = explained_run(scenario, most=left)
            left -= unheld_messages(run.ran)
            yield _point(run, name, number == 0, most, scenario.replications is not None)
        except (SimcollError, ValueError, MemoryError) as error:
            yield NOTE.format(f"{name}: {error}")
    if others := len(points) - len(of):
        which, more = "the shortest step" if steps else "the largest size", f"{others} more point{'s' * (others > 1)}"
        yield NOTE.format(f"{more} of the run: of each algorithm {which} is here.")
    if missing := of[MOST:]:
        note = f"{len(shown)} of {len(of)} are shown. No room for {_missing(missing)}"
        yield NOTE.format(Markup("{}: <code>--set</code> narrows the run to some of them.").format(note))


def _missing(points: Sequence[Point]) -> str:
    """Return in words the collectives or workloads, algorithms and swept values of points."""
    named = grouped(points, lambda point: (_subject(point.scenario), ", ".join(run_plots.swept_words(point))))
    of = {key: dict.fromkeys(_asked(point.scenario) for point in some) for key, some in named.items()}
    return "; ".join(f"{what} by {', '.join(of[what, at])}{at and f' at {at}'}" for what, at in of)


def _subject(scenario: Scenario) -> str:
    return scenario.workload.template if scenario.workload else scenario.collective


def _asked(scenario: Scenario) -> str:
    return scenario.workload.algorithm if scenario.workload else scenario.algorithm


def _named(scenario: Scenario) -> str:
    words = _subject(scenario), _asked(scenario), None if scenario.workload else short_size(scenario.nbytes)
    return ", ".join(filter(None, words))


def _point(run: ExplainedRun, name: str, unfolded: bool, most: int, undisturbed: bool) -> Markup:
    why = explanation(run, what_if=False)
    topology, busy = run.ran.topology, run.ran.busy.tolist()
    figure = topology_figure(topology, dict(zip(topology.links, busy, strict=False)))
    return rendered(
        "point.html.j2",
        name=name,
        unfolded=unfolded,
        undisturbed=undisturbed,
        took=format_duration(run.time_ps).replace("us", "µs"),
        confidence=run.row.confidence or "uncalibrated",
        interval=interval(run.row),
        causes=[
            {
                "name": each["cause"],
                "share": each["share"],
                "percent": f"{each['share']:.1%}",
                "color": CAUSE_COLORS[each["cause"]],
                "meaning": ALL_CAUSES[each["cause"]],
            }
            for each in why["causes"]
        ],
        places=table(["time_us", "share", "cause", "where"], why["places"][:SHOWN]),
        timeline=_timeline(run, most),
        tools=_TOOLS,
        keys=_KEYS,
        picture=picture(figure, f"{topology.name}, its links coloured by how busy they are"),
        links=table(["link", "kind", "busy", "path_share"], why["links"]),
    )


def _timeline(run: ExplainedRun, most: int) -> dict[str, Any]:
    """Return a point's timeline for the page: numbers for its script, a label and notes."""
    transfers = point_trace.crossings(run.ran.program) <= point_trace.MOST
    trace = point_trace.of_prediction(run.ran, transfers)
    data, note = timeline(trace, path_slices(run.parts()), most)
    channels = trace.about.get("channels_alike", 1)
    alike = f"One channel of {channels} is shown: all do the same." if channels > 1 else ""
    return {
        "data": data,
        "label": f"Timeline of {len(trace.tracks)} lanes, {format_duration(run.time_ps)}. {_KEYS}",
        "notes": list(filter(None, [note or ("" if transfers else LEFT_OUT), alike])),
    }
