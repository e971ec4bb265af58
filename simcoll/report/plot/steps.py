"""Training steps: how long they take over what was swept, and how much of that is computation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simcoll import units
from simcoll.prediction.result_rows import swept
from simcoll.report.overlap import RankOverlap, union
from simcoll.report.plot.key_columns import word
from simcoll.report.plot.style import (
    GREY,
    INK,
    SETTINGS,
    Panel,
    PlotRow,
    as_asked,
    by_columns,
    dash_of,
    dress,
    finish,
    finish_panels,
    frame,
    from_zero,
    grid_of,
    label,
    look,
    separating,
    settings,
    size_axis,
    time_text,
    with_trust,
)
from simcoll.units import format_duration, short_size

_COMPUTE: Final[dict[str, Any]] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1.5}
_SHORTEST: Final[dict[str, Any]] = {"marker": "o", "markersize": 11, "markerfacecolor": "none"}


def step_figure(rows: Iterable[PlotRow]) -> Figure:
    """Step time over the swept size (of buckets, say), a line an algorithm, the shortest step of each ringed; what was
    asked for in words, as `none`, stands apart; dashed is
    computation alone. Without a swept size the steps stand side by side.

    Rows are mappings with the columns of results.csv. Raises ValueError if none is of a workload.
    """
    steps = [row for row in as_asked(rows) if row.get("status", "ok") == "ok" and row.get("step_us")]
    if not steps:
        raise ValueError("no row is of a workload that ran; give the scenario a workload")
    across = next((column for column in swept(steps) if _sizes(steps, column)), None)
    figure = frame(6.4, 3.3 if across else 0.9 + 0.4 * len(steps))
    axes = figure.subplots()
    entries = _lines(axes, steps, across) if across else _bars(axes, steps)
    dress(axes)
    (axes.set_ylabel if across else axes.set_xlabel)("step", size=9, color=INK)
    (axes.yaxis if across else axes.xaxis).set_major_formatter(
        FuncFormatter(lambda value, _: time_text(value) if value else "0")
    )
    best = min(steps, key=_step)
    where = f"{best['algorithm']}" + (f" at {word(across)} {_short(str(best.get(across)))}" if across else "")
    finish(
        figure,
        f"Training step: {best['workload']}, {_counted(steps)}",
        f"{settings(steps)}  ·  shortest: {where}",
        entries,
    )
    return figure


def _counted(steps: Sequence[PlotRow]) -> str:
    ranks = sorted({row["ranks"] for row in steps})
    return f"{ranks[0]} ranks" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]} ranks"


def _step(row: PlotRow) -> float:
    return float(row["step_us"])


def _short(text: str) -> str:
    size = units.size_in(text)
    return text if size is None else short_size(size)


def _sizes(rows: Sequence[PlotRow], column: str) -> bool:
    """Whether the column holds sizes, and several."""
    values = {units.size_in(row.get(column)) for row in rows}
    return len(values - {None}) > 1


def _lines(axes: Axes, rows: Sequence[PlotRow], across: str) -> dict[str, Line2D]:
    others = [column for column in swept(rows) if column != across]
    columns = with_trust(rows, separating(rows, (*SETTINGS, "ranks", *others), ("algorithm", across)))
    sizes = {text: units.size_in(text) for text in dict.fromkeys(str(row.get(across)) for row in rows)}
    words = [text for text, size in sizes.items() if size is None]  # `none`: no line leads to it
    places = {**{text: float(size) for text, size in sizes.items() if size is not None}}
    places |= size_axis(axes, {size for size in sizes.values() if size is not None}, words)
    series: dict[str, dict[str, PlotRow]] = {}
    for row in rows:
        series.setdefault(label(row, columns), {})[str(row.get(across))] = row
    entries: dict[str, Line2D] = {}
    for name, points in series.items():
        first, best = next(iter(points.values())), min(points, key=lambda text: _step(points[text]))
        drawn = look(str(first.get("algorithm") or ""))
        for part in (sorted(set(points) - set(words), key=places.__getitem__), *([text] for text in words)):
            shown, at = [points[text] for text in part if text in points], [places[text] for text in part]
            if shown:
                (entries[name],) = axes.plot(
                    at, [_step(row) for row in shown], **drawn._asdict(), linestyle=dash_of(first), markersize=4
                )
                axes.plot(at, [row["compute_us"] for row in shown], **_COMPUTE, marker="" if part[1:] else "_")
        axes.plot([places[best]], [_step(points[best])], **_SHORTEST, color=drawn.color)
    axes.set_xlabel(word(across), size=9, color=INK)
    from_zero(axes)
    return {**entries, "computation alone": Line2D([], [], **_COMPUTE)}


def _bars(axes: Axes, rows: Sequence[PlotRow]) -> Mapping[str, Any]:
    columns = separating(rows, (*SETTINGS, "ranks", *swept(rows)), ("algorithm",))
    names = [label(row, columns) for row in rows]
    computed = axes.barh(names, [row["compute_us"] for row in rows], color=GREY, height=0.6)
    exposed = axes.barh(
        names, [row["exposed_us"] for row in rows], left=[row["compute_us"] for row in rows],
        color=look("ring").color, height=0.6,
    )  # fmt: skip
    axes.invert_yaxis()
    return {"computation": computed[0], "exposed communication": exposed[0]}


MOST: Final = 8  # ranks in a picture
_COMPUTING, _HIDDEN, _EXPOSED = "#999933", "#88CCEE", "#CC3311"  # Paul Tol's


def overlap_figure(ranks: Sequence[RankOverlap], title: str) -> Figure:
    """Two lanes a rank: computation, and communication below it, which is red where nothing hides it.

    Of more than 8 ranks those with the most and the least exposed communication are shown. Raises ValueError without
    ranks.
    """
    if not ranks:
        raise ValueError("no rank computes or communicates; give the scenario a workload")
    order = sorted(range(len(ranks)), key=lambda number: -ranks[number].exposed_ps)  # of those alike the first
    most, others = order[: MOST // 2], order[MOST // 2 :]
    least = sorted(others, key=lambda number: ranks[number].exposed_ps)[: MOST // 2]
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
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value) if value else "0"))
    axes.set_xlabel("time", size=9, color=INK)
    worst = ranks[order[0]]
    notes = [f"{worst.rank}: {worst}", *([f"{len(shown)} of {len(ranks)} ranks"] if len(shown) < len(ranks) else [])]
    entries = {
        "computation": Patch(facecolor=_COMPUTING),
        "hidden communication": Patch(facecolor=_HIDDEN),
        "exposed communication": Patch(facecolor=_EXPOSED),
    }
    finish(figure, f"{title}: {format_duration(shown[0].end_ps)}".replace("us", "µs"), "  ·  ".join(notes), entries)
    return figure


def _lane(axes: Axes, place: float, intervals: Sequence[tuple[int, int]], color: str) -> None:
    spans = [(begin / 1e6, (end - begin) / 1e6) for begin, end in intervals]
    axes.broken_barh(spans, (place - 0.19, 0.38), facecolor=color, linewidth=0)


def _exposed(rank: RankOverlap) -> list[tuple[int, int]]:
    """Communication outside computation."""
    free, at = [], 0
    for begin, end in (*rank.computing, (rank.end_ps, rank.end_ps)):
        free.append((at, begin))
        at = end
    both = [(max(a, c), min(b, d)) for a, b in rank.calling for c, d in free if max(a, c) < min(b, d)]
    return list(union(both))


ROOM: Final = 1.08  # of the axis above the longest
_PREDICTED: Final[dict[str, Any]] = {"color": look("ring").color, "linewidth": 1.2, "zorder": 2}
_MEASURED: Final[dict[str, Any]] = {"color": INK, "marker": "o", "linestyle": "none", "markersize": 4.5, "zorder": 3}
_BEST: Final[dict[str, Any]] = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": "none"}


def bucket_figure(rows: Iterable[PlotRow]) -> Figure:
    """A panel for each `name`: times of steps over `bucket_cap`, in the order of the rows, a line predicted, points
    measured; the shortest of each is ringed. Raises ValueError without rows.
    """
    steps = list(rows)
    if not steps:
        raise ValueError("there are no steps of several bucket sizes to draw")
    panels = by_columns(steps, (), ("name",), lambda row: str(row["name"]))
    figure, grid = grid_of(panels, one_scale=False)
    caps = sorted({str(row["bucket_cap"]) for row in steps}, key=_size)
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, caps)
    entries = {
        "predicted": Line2D([], [], **_PREDICTED),
        "measured": Line2D([], [], **_MEASURED),
        "shortest": Line2D([], [], color=INK, **_BEST),
    }
    finish_panels(figure, grid, panels, "Training step over the size of gradient buckets", entries)
    return figure


def _size(cap: str) -> int:
    return 0 if cap == "none" else units.parse(cap, "size")


def _draw(axes: Axes, panel: Panel, caps: Sequence[str]) -> None:
    places = [caps.index(str(row["bucket_cap"])) for row in panel.rows]
    for column, options in (("predicted_us", _PREDICTED), ("measured_us", _MEASURED)):
        times = [row[column] / 1e3 for row in panel.rows]
        axes.plot(places, times, **options)
        best = times.index(min(times))
        axes.plot([places[best]], [times[best]], color=options["color"], **_BEST)
    axes.set_xticks(range(len(caps)), caps, rotation=40, ha="right")
    axes.set_ylim(0, ROOM * max(row[column] / 1e3 for row in panel.rows for column in ("predicted_us", "measured_us")))
    axes.set_xlabel("bucket cap", size=9, color=INK)
    axes.set_ylabel("step (ms)", size=9, color=INK)


MOST_POINTS: Final = 40  # points drawn
_QUANTILES: Final = {
    "p50": ("#4477AA", "o", "median"),
    "p95": ("#EE7733", "s", "95 %"),
    "p99": ("#AA3377", "D", "99 %"),
}


def spread_figure(rows: Iterable[PlotRow]) -> Figure:
    """A line for each point: a tick for its undisturbed time, then quantiles, shaded where they lie by 95 %.

    Rows are mappings with the columns of results.csv. Raises ValueError if none has replications, or too many do.
    """
    varied = [row for row in as_asked(rows) if row.get("status", "ok") == "ok" and row.get("replications")]
    if not 0 < len(varied) <= MOST_POINTS:
        raise ValueError(f"{len(varied)} points have replications; give 1 to {MOST_POINTS}")
    apart = (*SETTINGS, "collective", "workload", "ranks", "size_bytes", *swept(varied))
    columns = separating(varied, apart, ("algorithm",))
    names = [label(row, columns) for row in varied]
    figure = frame(6.4, 1.1 + 0.34 * len(varied))
    axes = figure.subplots()
    entries: dict[str, Artist] = {}
    for y, row in enumerate(varied):
        low, high = float(row["time_us"]), float(row["time_us_p99"])
        axes.plot([low, high], [y, y], color=GREY, linewidth=0.8, zorder=1)
        entries["undisturbed"] = axes.plot([low], [y], "|", color=INK, markersize=12, zorder=3)[0]
        for name, (color, marker, text) in _QUANTILES.items():
            ends = float(row[f"time_us_{name}_low"]), float(row[f"time_us_{name}_high"])
            axes.barh([y], [ends[1] - ends[0]], left=[ends[0]], height=0.42, color=color, alpha=0.25, zorder=2)
            axes.plot([float(row[f"time_us_{name}"])], [y], marker, color=color, markersize=5, zorder=3)
            entries[text] = Line2D([], [], color=color, marker=marker, linestyle="none")
    entries["where it lies by 95 %"] = Patch(facecolor=GREY, alpha=0.25)
    dress(axes)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(varied) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("time (µs)", size=9, color=INK)
    counts = sorted({int(row["replications"]) for row in varied})
    finish(figure, "Runs that differ", f"{' or '.join(map(str, counts))} runs of each point", entries)
    return figure
