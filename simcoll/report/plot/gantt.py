"""Draw the timeline of a small run: sends and receptions of each rank, and transfers of each link."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simcoll.config.numpy_helpers import distinct
from simcoll.engine.link_usage import utilisation
from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline
from simcoll.report.plot.style import FAINT, INK, contrast, dress, finish, frame, time_text
from simcoll.scenario.faults import FaultWindow
from simcoll.schedule.schedule import run_text
from simcoll.units import format_duration

MAX_TRANSFERS: Final = 4000
MAX_LANES: Final = 64
MAX_TEXTS: Final = 250  # in bars: matplotlib takes milliseconds for each
KEPT_LANES: Final = 32  # lanes drawn if there are more than MAX_LANES
_GLANCES: Final = 1000  # instants at which lanes are compared
WIDTH: Final = 9.0  # inches
LANE: Final = 0.21  # inches, the height of a lane with a single row
STACKED: Final = 0.6  # height of each row in a lane of several; a single row has 1
THIN: Final = 0.22  # height of a row of receptions
HAIR: Final = 1000  # the run's length in hairs; a hair is about a pixel
NARROW: Final = 4  # hairs: edges would hide a shorter bar
EDGE: Final = 0.4  # points
EDGE_NARROW: Final = 0.8  # points: the least visible width of a bar
PS_PER_US: Final = 10**6
DISTURBED: Final = "#AA2222"
PALE: Final = "#F8E0DC"
HATCHES: Final = {"down": "xxxxx", "flap": "\\\\\\\\\\", "slow": "/////", "background": "....."}  # of faults, by kind

_FEW: Final = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB", "#EE7733")  # Tol, "bright"


class ChunkInterval(NamedTuple):
    """When chunks travel, in ps: the first of them is `chunk`, and `label` names them all. `peer` is the rank at the
    other end (-1: the lane's name tells it)."""

    begin: int
    end: int
    chunk: int
    label: str
    peer: int = -1


@dataclass
class Lane:
    """A rank or a link, by its number: its intervals, and thin intervals below them. If there are too many lanes,
    `busy` decides which are kept."""

    number: int
    name: str
    busy: float = 0.0
    spans: list[ChunkInterval] = field(default_factory=list)
    thin: list[ChunkInterval] = field(default_factory=list)


class Bar(NamedTuple):
    """An interval with its position on the axes: lower edge and height, in lanes counted downwards."""

    span: ChunkInterval
    bottom: float
    height: float


class Disturbance(NamedTuple):
    """A time (ps) in which some `lanes`, by number, are disturbed; the legend calls it `name`."""

    name: str
    begin: int
    end: int
    lanes: frozenset[int]
    hatch: str


Colors = Mapping[int, str]  # chunk → its colour
LegendArtists = dict[str, Artist]
GanttRows = tuple[list[float], list[Bar], list[Bar]]  # edges of lanes, one more than lanes; thick and thin bars


def gantt_figure(
    program: Program,
    timeline: Timeline,
    devices: Sequence[str],
    title: str = "",
    launch_ps: int = 0,
    channels: int = 1,
    faults: Sequence[FaultWindow] = (),
) -> Figure:
    """Return a figure of lanes: ranks (thick: start to sent; thin: arrival to end of a reception) above links.

    `devices` names ranks and switches by number. Time counts from the call: the program begins `launch_ps` later, and
    stands for `channels` equal programs. Of more than 64 links or ranks, 32 are drawn: first links disturbed by
    `faults` and ranks that come late, then the busiest lanes of each phase. Raises ValueError for more than 4,000
    transfers.
    """
    if len(program) > MAX_TRANSFERS:
        raise ValueError(
            f"{len(program):,} transfers are too many to draw ({MAX_TRANSFERS:,} at most); "
            "take fewer ranks, a smaller size or larger chunks, or write a trace"
        )
    chunks = _chunks(program)
    end_ps = launch_ps + max(timeline.makespan_ps, int(program.arrivals.max()))
    panels = {"rank": _rank_lanes(program, timeline, devices, chunks, launch_ps)}
    if len(program.routes.links):
        panels["link"] = _link_lanes(program, timeline, program.link_names, chunks, launch_ps)
    disturbed = {"rank": _late(program), "link": _struck(faults, end_ps, program.link_names)}
    notes = [_cut(panels[panel], f"{panel}s", disturbed[panel]) for panel in panels]
    notes += _unseen(faults, end_ps, {lane.name for lane in panels.get("link", ())})
    placed = {panel: _place(lanes, end_ps // HAIR) for panel, lanes in panels.items()}
    deep = [edges[-1] for edges, _, _ in placed.values()]
    figure = frame(WIDTH, 0.6 + LANE * sum(deep) + 0.15 * len(deep))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=deep)[:, 0].tolist()
    first = "" if program.schedule.count.max(initial=1) == 1 and not program.schedule.joins.any() else "first "
    colors, entries = _colors(figure, grid, sorted({chunk for chunk, _ in chunks}), f"{first}chunk")
    for axes, panel in zip(grid, panels, strict=True):
        _draw(axes, panel, panels[panel], placed[panel], end_ps, colors)
        entries |= _disturb(axes, panels[panel], placed[panel][0], disturbed[panel])
        if launch_ps:
            entries["launch"] = axes.axvspan(0, launch_ps / PS_PER_US, color=FAINT, zorder=0.4, gid="launch")
    grid[-1].set_xlabel("time", size=9, color=INK)
    grid[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value) if value else "0"))
    figure.align_ylabels(grid)
    facts = [
        *_facts(program, launch_ps, end_ps, channels),
        f"in bars: chunk{'s' * bool(first)}→to rank" if grid[0].texts else "",
        "thin: receive side" if any(lane.thin for lane in panels["rank"]) else "",
    ]
    finish(figure, title or program.schedule.name, "  ·  ".join(filter(None, facts + notes)), entries)
    return figure


def _facts(program: Program, launch_ps: int, end_ps: int, channels: int) -> list[str]:
    taken, launch = (format_duration(time).replace("us", "µs") for time in (end_ps, launch_ps))
    return [
        f"{program.schedule.n} ranks",
        f"{len(program):,} transfers in {taken}" + (f", of which launch {launch}" if launch_ps else ""),
        f"one channel of {channels}" if channels > 1 else "",
        f"{program.params.sharing} sharing",
    ]


# --- lanes ---


def _chunks(program: Program) -> list[tuple[int, str]]:
    """Return the first chunk of each transfer, and a label for all its chunks; chunks of later loops get further
    numbers."""
    schedule = program.schedule
    first = program.loop * schedule.n_slots + schedule.src_slot[program.origin]
    runs = np.diff(schedule.heads, append=len(schedule))[program.number]
    columns = zip(first.tolist(), schedule.count[program.origin].tolist(), runs.tolist(), strict=True)
    return [(chunk, run_text(chunk, count) + ", …" * (more > 1)) for chunk, count, more in columns]


def _rank_lanes(
    program: Program, timeline: Timeline, devices: Sequence[str], chunks: Sequence[tuple[int, str]], launch_ps: int
) -> list[Lane]:
    lanes = [Lane(p, f"{p}  {devices[p]}") for p in range(program.schedule.participants)]
    times = (timeline.start, timeline.sent, timeline.arrive, timeline.end)
    columns = (program.src, program.dst, *(time + launch_ps for time in times))
    for (chunk, label), src, dst, start, sent, arrive, end in zip(chunks, *(c.tolist() for c in columns), strict=True):
        lanes[src].spans.append(ChunkInterval(start, sent, chunk, label, dst))
        lanes[src].busy += sent - start
        if end > arrive:
            lanes[dst].thin.append(ChunkInterval(arrive, end, chunk, label))
    for lane in lanes:  # shows who sends to whom even where bars are too narrow for a text
        peers = {span.peer for span in lane.spans}
        lane.name += f" → {peers.pop()}" if len(peers) == 1 else ""
    return lanes


def _link_lanes(
    program: Program, timeline: Timeline, names: Sequence[str], chunks: Sequence[tuple[int, str]], launch_ps: int
) -> list[Lane]:
    busy = utilisation(program, timeline.makespan_ps).reshape(program.views, -1).sum(axis=0)
    lanes = {
        link: Lane(link, names[link], busy[link]) for link in distinct(program.routes.links % program.servers).tolist()
    }
    carried = np.repeat(np.arange(len(chunks)), np.diff(program.hops.first))
    times = (timeline.hop_begin + launch_ps, timeline.hop_end + launch_ps)
    columns = (program.hops.links % program.servers, *times, carried)
    for link, begin, end, transfer in zip(*(column.tolist() for column in columns), strict=True):
        lanes[link].spans.append(ChunkInterval(begin, end, *chunks[transfer]))
    return list(lanes.values())


def _cut(lanes: list[Lane], kind: str, disturbed: Sequence[Disturbance]) -> str:
    """Keep few lanes: the disturbed ones, then the busiest of each phase. Return a note of what was left out."""
    total = len(lanes)
    if total <= MAX_LANES:
        return ""
    first = frozenset[int]().union(*(each.lanes for each in disturbed))
    before = _busier(lanes)
    kept = sorted(lanes, key=lambda lane: (lane.number not in first, before[lane.number], -lane.busy))[:KEPT_LANES]
    shown = {lane.number for lane in kept}
    lanes[:] = [lane for lane in lanes if lane.number in shown]
    also = ", and what is disturbed" if shown & first else ""
    return f"{KEPT_LANES} of {total} {kind}: of each time the busiest{also}"


def _busier(lanes: Iterable[Lane]) -> dict[int, float]:
    """Return, by lane number, how many lanes on average are busier while this one works: 0 for the busiest ones."""
    ordered = sorted(lanes, key=lambda lane: -lane.busy)
    times = np.linspace(0, max((span.end for lane in ordered for span in lane.spans), default=0), _GLANCES)
    others, found = np.zeros(_GLANCES), dict[int, float]()
    for lane in ordered:
        begins, ends = (np.sort([span[end] for span in lane.spans]) for end in (0, 1))
        at_work = np.searchsorted(begins, times, "right") > np.searchsorted(ends, times, "right")
        found[lane.number] = float(others[at_work].mean()) if at_work.any() else np.inf
        others += at_work
    return found


# --- what disturbs a run ---


def _late(program: Program) -> list[Disturbance]:
    """Return, for each rank that comes late, the time until it arrives."""
    came = program.arrivals[: program.schedule.n].tolist()
    return [Disturbance("rank not there yet", 0, at, frozenset([rank]), "") for rank, at in enumerate(came) if at]


def _struck(faults: Sequence[FaultWindow], end_ps: int, names: Sequence[str]) -> list[Disturbance]:
    """Return the times of faults on the links called `names` that begin before the run ends (`end_ps`)."""
    number = {name: link for link, name in enumerate(names)}
    found = []
    for each in faults:
        if each.begin < end_ps:
            lanes = frozenset(number[link] for link in each.links & number.keys())
            name = f"fault, {each.effect}".replace(" us", " µs")
            found.append(Disturbance(name, each.begin, min(each.end, end_ps), lanes, HATCHES[each.kind]))
    return found


def _unseen(faults: Sequence[FaultWindow], end_ps: int, lanes: Collection[str]) -> list[str]:
    """Return a note for each fault that the figure cannot show."""
    notes = dict[str, None]()
    for each in faults:
        if each.begin >= end_ps:
            notes[f"after its end: {each.link} {each.effect}"] = None
        elif each.links.isdisjoint(lanes):
            notes[f"nothing crosses {each.link} ({each.effect})"] = None
    return list(notes)


def _disturb(
    axes: Axes, lanes: Sequence[Lane], edges: Sequence[float], disturbances: Sequence[Disturbance]
) -> LegendArtists:
    """Mark disturbances of lanes: pale and hatched below the bars, with an edge beside them; return legend entries."""
    entries: LegendArtists = {}
    places = {lane.number: span for lane, span in zip(lanes, itertools.pairwise(edges), strict=True)}
    for each in disturbances:
        left, width = each.begin / PS_PER_US, (each.end - each.begin) / PS_PER_US
        for number in sorted(each.lanes & places.keys()):
            above, below = places[number]
            corner, style = (left, above), dict[str, Any]({"edgecolor": DISTURBED, "gid": f"disturbed {number}"})
            under: dict[str, Any] = {"facecolor": PALE, "linewidth": 0.0, "hatch": each.hatch, "zorder": 0.45}
            axes.add_patch(Rectangle(corner, width, below - above, **under, **style))
            axes.add_patch(Rectangle(corner, width, below - above, fill=False, linewidth=0.8, zorder=3, **style))
            entries[each.name] = Patch(facecolor=PALE, edgecolor=DISTURBED, hatch=each.hatch)
    return entries


def _rows(spans: Sequence[ChunkInterval], hair: int) -> list[list[ChunkInterval]]:
    """Return intervals in as few rows as possible, each in the first free row; overlaps below `hair` ps are ignored."""
    rows: list[list[ChunkInterval]] = []
    for span in sorted(spans):
        slack = min(hair, (span.end - span.begin) // 20)
        row = next((row for row in rows if row[-1].end <= span.begin + slack), None)
        rows.append([span]) if row is None else row.append(span)
    return rows


# --- what is drawn ---


def _place(lanes: Sequence[Lane], hair: int) -> GanttRows:
    edges, thick, thin = [0.0], list[Bar](), list[Bar]()
    for lane in lanes:
        at = edges[-1] + 0.1
        rows, narrow = _rows(lane.spans, hair), _rows(lane.thin, hair)
        height = 0.8 - THIN * bool(narrow) if len(rows) <= 1 else STACKED
        for row in rows or [[]]:
            thick += [Bar(span, at + height, height) for span in row]
            at += height
        for row in narrow:
            thin += [Bar(span, at + THIN, 0.8 * THIN) for span in row]
            at += THIN
        edges.append(at + 0.1)
    return edges, thick, thin


def _colors(figure: Figure, grid: Sequence[Axes], chunks: Sequence[int], what: str) -> tuple[Colors, LegendArtists]:
    """Return a colour for each chunk, and legend entries, which say `what` it is, if chunks are few; else draw a colour
    bar beside panels."""
    if len(chunks) <= len(_FEW):
        colors = dict(zip(chunks, _FEW, strict=False))
        return colors, {f"{what} {chunk}": Patch(facecolor=colors[chunk]) for chunk in chunks}
    shades = ScalarMappable(Normalize(chunks[0], chunks[-1]), "viridis")
    bar = figure.colorbar(shades, ax=list(grid), pad=0.01, fraction=0.03, aspect=30, ticks=MaxNLocator(8, integer=True))
    bar.set_label(what, size=9, color=INK)
    bar.ax.tick_params(labelsize=8, labelcolor=INK)
    bar.outline.set_visible(False)
    return dict(zip(chunks, map(to_hex, shades.to_rgba(np.asarray(chunks))), strict=True)), {}


def _draw(axes: Axes, panel: str, lanes: Sequence[Lane], layout: GanttRows, end_ps: int, colors: Colors) -> None:
    edges, thick, thin = layout
    dress(axes)
    _bars(axes, thick, colors, "sends" if panel == "rank" else "links", NARROW * end_ps // HAIR)
    _bars(axes, thin, colors, "receives", NARROW * end_ps // HAIR)
    _numbers(axes, thick, colors, (WIDTH - 2.0) / (end_ps or 1))
    axes.set_xlim(0, 1.005 * (end_ps or 1) / PS_PER_US)
    axes.set_ylim(edges[-1], 0)
    axes.set_yticks([(above + below) / 2 for above, below in itertools.pairwise(edges)], [lane.name for lane in lanes])
    axes.tick_params(axis="y", length=0, labelsize=7)
    axes.grid(False, axis="y")
    axes.set_ylabel(panel, size=9, color=INK)
    axes.hlines(edges[1:-1], 0, 1, transform=axes.get_yaxis_transform(), color=FAINT, linewidth=0.5, zorder=0.5)


def _bars(axes: Axes, bars: Sequence[Bar], colors: Colors, name: str, narrow_ps: int) -> None:
    """Draw bars with white edges, which would cover bars shorter than `narrow_ps`; these get edges of their colour."""
    corners = [
        [(x, y) for x, y in ((b, low), (e, low), (e, high), (b, high))]
        for (b, e, low, high) in (
            (bar.span.begin / PS_PER_US, bar.span.end / PS_PER_US, bar.bottom, bar.bottom - bar.height) for bar in bars
        )
    ]
    faces = [colors[bar.span.chunk] for bar in bars]
    narrow = [bar.span.end - bar.span.begin < narrow_ps for bar in bars]
    edges = [own if thin else "white" for own, thin in zip(faces, narrow, strict=True)]
    widths = [EDGE_NARROW if thin else EDGE for thin in narrow]
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors=edges, linewidths=widths, gid=name))


def _numbers(axes: Axes, bars: Iterable[Bar], colors: Colors, inches_per_ps: float) -> None:
    """Write the numbers of chunks and the destination rank into each bar with room for them, unless bars are many."""
    texts = []
    for bar in bars:
        (begin, end, chunk, label, peer), bottom, height = bar
        room = ((end - begin) * inches_per_ps - 0.05) / 0.06 if height * LANE > 0.09 else 0.0  # characters
        longest_first = [*([f"{label}→{peer}"] if peer >= 0 else []), label]
        text = next((text for text in longest_first if len(text) < room), None)
        if text is not None:
            texts.append(((begin + end) / 2 / PS_PER_US, bottom - height / 2, text, contrast(colors[chunk])))
    for x, y, text, ink in texts if len(texts) <= MAX_TEXTS else ():
        axes.text(x, y, text, ha="center", va="center_baseline", size=6, color=ink, clip_on=True)
