"""Draw training steps: times over swept sizes, computation and communication by rank, the spread of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simcoll import units
from simcoll.config.grouping import grouped
from simcoll.prediction.result_rows import swept
from simcoll.report.columns import (
    SETTINGS,
    PlotRow,
    as_asked,
    by_columns,
    label_of,
    remarks,
    said,
    separating,
    varying,
    word,
)
from simcoll.report.overlap import Interval, RankOverlap, union
from simcoll.report.plot.style import (
    DASHES,
    FAINT,
    GREY,
    INK,
    dress,
    finish,
    frame,
    from_zero,
    look,
    name_axis,
    size_axis,
    time_ticks,
)
from simcoll.units import format_duration

MOST_RANKS: Final = 8  # ranks in a picture of lanes
MOST_POINTS: Final = 40  # points in a picture of replications
_COMPUTING, _HIDDEN, _EXPOSED = "#999933", "#88CCEE", "#CC3311"  # Paul Tol's
_ALONE: Final[dict[str, Any]] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1.5}
_QUANTILES: Final = {
    "p50": ("#4477AA", "o", "median"),
    "p95": ("#EE7733", "s", "95 %"),
    "p99": ("#AA3377", "D", "99 %"),
}


def step_figure(rows: Iterable[PlotRow]) -> Figure:
    """Return a figure of step times over the swept size, e.g. of buckets, a line an algorithm; dashed is computation
    alone.

    The shortest step of each line is ringed. A word in place of a size, such as `none`, stands apart on the left.
    Without a swept size the steps are bars. Rows are mappings with the columns of results.csv. Raises ValueError if no
    row is of a workload.
    """
    steps = [row for row in as_asked(rows) if row.get("status", "ok") == "ok" and row.get("step_us")]
    if not steps:
        raise ValueError("no row has a time of a workload; give the scenario a `workload`")
    across = next((column for column in swept(steps) if _sizes(steps, column)), None)
    figure = frame(6.4, 3.3 if across else 0.9 + 0.4 * len(steps))
    axes = figure.subplots()
    entries = _lines(axes, steps, across) if across else _bars(axes, steps)
    dress(axes)
    name_axis(axes.yaxis if across else axes.xaxis, "step")
    time_ticks(axes.yaxis if across else axes.xaxis)
    best = min(steps, key=_step)
    shortest = f"  ·  shortest: {best['algorithm']} at {said(across, best)}" if across else ""  # bars show it
    ranks = sorted({row["ranks"] for row in steps})
    counted = f"{ranks[0]} ranks" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]} ranks"
    notes = f"{remarks(by_columns(steps, ()), 1)}{shortest}"
    finish(figure, f"Training step: {best['workload']}, {counted}", notes, entries)
    return figure


def _step(row: PlotRow) -> float:
    return float(row["step_us"])


def _sizes(rows: Sequence[PlotRow], column: str) -> bool:
    """Return whether this column holds at least two different sizes."""
    return len({units.size_in(row.get(column)) for row in rows} - {None}) > 1


def _lines(axes: Axes, rows: Sequence[PlotRow], across: str) -> dict[str, Artist]:
    others = [column for column in swept(rows) if column != across]
    columns = ["algorithm", *separating(rows, (*SETTINGS, "ranks", *others), ("algorithm", across))]
    columns += varying(rows, ["trust"])
    sizes = {text: units.size_in(text) for text in dict.fromkeys(str(row.get(across)) for row in rows)}
    words = [text for text, size in sizes.items() if size is None]  # `none`: no line leads to it
    known = {text: float(size) for text, size in sizes.items() if size is not None}
    places = known | size_axis(axes, set(map(int, known.values())), words)
    entries: dict[str, Artist] = {}
    for name, of in grouped(rows, lambda row: label_of(row, columns)).items():
        points = {str(row.get(across)): row for row in of}
        first, best = of[0], min(points, key=lambda text: _step(points[text]))
        style = {
            **look(str(first.get("algorithm") or ""))._asdict(),
            "linestyle": DASHES[bool(first["trust"])],
            "markersize": 4,
        }
        for part in (sorted(known.keys() & points, key=known.__getitem__), *([text] for text in words)):
            shown, at = [points[text] for text in part if text in points], [places[text] for text in part]
            if shown:
                (entries[name],) = axes.plot(at, list(map(_step, shown)), **style)
                axes.plot(at, [row["compute_us"] for row in shown], **_ALONE, marker="" if part[1:] else "_")
        axes.plot(places[best], _step(points[best]), "o", color=style["color"], markersize=11, markerfacecolor="none")
    name_axis(axes.xaxis, word(across))
    from_zero(axes)
    return {**entries, "computation alone": Line2D([], [], **_ALONE)}


_TRAINING: Final = {  # parts of a training step, which add up to it
    "compute_gemm_us": ("matrix products", "#332288"),
    "compute_attention_us": ("attention", "#4477AA"),
    "compute_elementwise_us": ("elementwise", "#88CCEE"),
    "compute_launch_us": ("launches", "#BBBBBB"),
    "interference_us": ("interference", "#777777"),
    "optimizer_us": ("optimizer", "#AA4499"),
    "bubble_us": ("bubble", FAINT),
    "wait_us": ("waiting", "#DDCC77"),
    "exposed_tp_us": ("exposed tp", "#CC3311"),
    "exposed_pp_us": ("exposed pp", "#EE7733"),
    "exposed_dp_us": ("exposed dp", "#CC6677"),
    "exposed_ep_us": ("exposed ep", "#882255"),
    "exposed_cp_us": ("exposed cp", "#661100"),
}


def _bars(axes: Axes, rows: Sequence[PlotRow]) -> Mapping[str, Any]:
    training = any(row.get("mfu") is not None for row in rows)
    told = any(row.get("algorithm") not in (None, "", "auto") for row in rows)  # a plan's calls have several
    named = "algorithm" if told and not training else "scenario"
    apart = separating(rows, (*SETTINGS, "ranks", *swept(rows)), (named,))
    columns = apart if named == "scenario" and apart else [named, *apart]
    names = [label_of(row, columns) for row in rows]
    parts = {"compute_us": ("computation", GREY), "waiting_us": ("waiting for other ranks or the host", FAINT),
             "exposed_us": ("exposed communication", look("ring").color)}  # fmt: skip
    parts = _TRAINING if training else parts
    ends, entries = np.zeros(len(rows)), dict[str, Any]()
    for column, (meaning, color) in parts.items():
        took = np.array([row.get(column) or 0.0 for row in rows])
        if took.any():
            entries[meaning] = axes.barh(names, took, left=ends, color=color, height=0.6)[0]
        ends += took
    axes.invert_yaxis()
    return entries


# --- lanes ---


def overlap_figure(ranks: Sequence[RankOverlap], title: str) -> Figure:
    """Return two lanes a rank: computation, and below it communication, which is red while it is not hidden.

    Of more than 8 ranks, those with the most and the least exposed communication are shown. Raises ValueError if there
    are no ranks.
    """
    if not ranks:
        raise ValueError("no rank computes or communicates; give the scenario a `workload`")
    order = sorted(range(len(ranks)), key=lambda number: -ranks[number].exposed_ps)  # ties in order of rank
    most, others = order[: MOST_RANKS // 2], order[MOST_RANKS // 2 :]
    least = sorted(others, key=lambda number: ranks[number].exposed_ps)[: MOST_RANKS // 2]
    shown = [ranks[number] for number in sorted([*most, *least])]
    figure = frame(9.0, 0.7 + 0.42 * len(shown))
    axes = figure.subplots()
    for place, rank in enumerate(shown):
        _lane(axes, place - 0.22, rank.computing, _COMPUTING)
        _lane(axes, place + 0.22, rank.calling, _HIDDEN)
        _lane(axes, place + 0.22, _exposed(rank), _EXPOSED)
    dress(axes)
    axes.grid(False, axis="y")
    axes.set_yticks(range(len(shown)), [rank.rank for rank in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0, shown[0].end_ps / 1e6)
    axes.locator_params(axis="x", nbins=6)
    time_ticks(axes.xaxis)
    name_axis(axes.xaxis, "time")
    worst = ranks[order[0]]
    notes = [f"{worst.rank}: {worst}", *([f"{len(shown)} of {len(ranks)} ranks"] if len(shown) < len(ranks) else [])]
    entries = {
        "computation": Patch(facecolor=_COMPUTING),
        "hidden communication": Patch(facecolor=_HIDDEN),
        "exposed communication": Patch(facecolor=_EXPOSED),
    }
    finish(figure, f"{title}: {format_duration(shown[0].end_ps)}".replace("us", "µs"), "  ·  ".join(notes), entries)
    return figure


def _lane(axes: Axes, place: float, intervals: Sequence[Interval], color: str) -> None:
    spans = [(begin / 1e6, (end - begin) / 1e6) for begin, end in intervals]
    axes.broken_barh(spans, (place - 0.19, 0.38), facecolor=color, linewidth=0)


def _exposed(rank: RankOverlap) -> list[Interval]:
    """Return when a rank communicates without computing, in ps."""
    free, at = [], 0
    for begin, end in (*rank.computing, (rank.end_ps, rank.end_ps)):
        free.append((at, begin))
        at = end
    both = [(max(a, c), min(b, d)) for a, b in rank.calling for c, d in free if max(a, c) < min(b, d)]
    return list(union(both))


# --- replications ---


def spread_figure(rows: Iterable[PlotRow]) -> Figure:
    """Return a figure, a line for each point: a tick at its undisturbed time, and quantiles with 95 % intervals.

    Rows are mappings with the columns of results.csv. Raises ValueError if no row has replications, or too many have.
    """
    varied = [row for row in as_asked(rows) if row.get("status", "ok") == "ok" and row.get("replications")]
    if not 0 < len(varied) <= MOST_POINTS:
        raise ValueError(f"{len(varied)} points have replications; give 1 to {MOST_POINTS}")
    apart = (*SETTINGS, "collective", "workload", "ranks", "size_bytes", *swept(varied))
    columns = ["algorithm", *separating(varied, apart, ("algorithm",))]
    names = [label_of(row, columns) for row in varied]
    places = list(range(len(varied)))
    figure = frame(6.4, 1.1 + 0.34 * len(varied))
    axes = figure.subplots()
    undisturbed, last = ([float(row[column]) for row in varied] for column in ("time_us", "time_us_p99"))
    axes.hlines(places, undisturbed, last, color=GREY, linewidth=0.8, zorder=1)
    entries: dict[str, Artist] = dict(
        zip(["undisturbed"], axes.plot(undisturbed, places, "|", color=INK, markersize=12, zorder=3), strict=True)
    )
    for name, (color, marker, text) in _QUANTILES.items():
        value, low, high = ([float(row[f"time_us_{name}{end}"]) for row in varied] for end in ("", "_low", "_high"))
        wide = [end - begin for begin, end in zip(low, high, strict=True)]
        axes.barh(places, wide, left=low, height=0.42, color=color, alpha=0.25, zorder=2)
        (entries[text],) = axes.plot(value, places, marker, color=color, markersize=5, zorder=3)
    entries["where it lies by 95 %"] = Patch(facecolor=GREY, alpha=0.25)
    dress(axes)
    axes.set_yticks(places, names)
    axes.set_ylim(len(varied) - 0.5, -0.5)
    axes.set_xlim(left=0)
    name_axis(axes.xaxis, "time")
    time_ticks(axes.xaxis)
    counts = sorted({int(row["replications"]) for row in varied})
    finish(figure, "Runs that differ", f"{' or '.join(map(str, counts))} runs of each point", entries)
    return figure
