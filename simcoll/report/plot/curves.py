"""Durations and bandwidths as lines: over the size, over the ranks, and beside measured values.

Rows are mappings with the columns of results.csv; only rows whose status is ok are drawn. A measured point has
`collective, ranks, nodes, size_bytes, time_us, busbw_GBps, algorithm` (or None) and `system`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simcoll.config.groups import grouped
from simcoll.report.plot.style import (
    COMPETING,
    DASHES,
    GREY,
    INK,
    MAX_BANDS,
    SETTINGS,
    Dash,
    Look,
    Mark,
    Marker,
    Panel,
    PlotRow,
    as_asked,
    by_columns,
    draw_lines,
    drawable,
    finish_panels,
    grid_of,
    interval_entry,
    label,
    legend_lines,
    look,
    looks_of,
    rank_axis,
    size_axis,
    stroke,
    telling,
    time_axis,
    variant,
    with_trust,
)
from simcoll.units import short_size

Quantity = Literal["busbw", "latency"]
Value = Literal["time_us", "busbw_GBps"]  # the column drawn
LegendLines = dict[str, Artist]  # the legend: text → its line

ABOVE: Final = 1.4  # factor above all bandwidths from which on bounds are cut off
BELOW: Final = 4.0  # factor below all times from which on bounds are cut off
MAX_ENTRIES: Final = 8  # lines in the legend; for more it lists colours and dashes separately
# each machine has its own profile, and executors differ by profile
_APART: Final = ("topology", "profile", *COMPETING, *SETTINGS)

_BOUND: Final[dict[str, Any]] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1.5}
_MEASURED: Final[dict[str, Any]] = {
    "color": INK,
    "linestyle": "none",
    "markerfacecolor": "none",
    "markersize": 6,
    "zorder": 4,
}


class LineStyle(NamedTuple):
    """Look and dash of a line: the look shows its algorithm, the dash its setting."""

    look: Look
    dash: Dash
    algorithm: str
    setting: str


def size_figure(rows: Iterable[PlotRow], quantity: Quantity, measured: Iterable[PlotRow] = ()) -> Figure:
    """Return bus bandwidth or time over size, a panel for each collective and number of ranks, a line an algorithm.

    Bounds that no schedule can beat are dashed; the bound with reduction in the network is dotted.
    Raises ValueError if no row has a size and a time.
    """
    sized, points = [row for row in as_asked(drawable(rows)) if row["size_bytes"] > 0], list(measured)
    if not sized:
        raise ValueError("no row has a size (a barrier has none); plot 'scaling' instead")
    panels = by_columns(sized, points, ("collective", "ranks", "nodes"), _ranked)
    figure, grid = grid_of(panels)
    entries = _draw(grid, panels, "size_bytes", "busbw_GBps" if quantity == "busbw" else "time_us")
    _size_axes(grid, panels)
    _busbw_axes(grid) if quantity == "busbw" else _time_axes(grid)
    headline = "Bus bandwidth over size" if quantity == "busbw" else "Time over size"
    finish_panels(figure, grid, panels, headline, _without_hidden(entries, grid))
    return figure


def scaling_figure(rows: Iterable[PlotRow], measured: Iterable[PlotRow] = ()) -> Figure:
    """Return time over ranks, both logarithmic; panels for the smallest, a middle and the largest size.

    Raises ValueError if no row has a time, or all rows have the same number of ranks.
    """
    timed = as_asked(drawable(rows))
    if len(counts := {row["ranks"] for row in timed}) == 1:
        raise ValueError(f"all rows have {counts.pop()} ranks, a single point on the axis; sweep ranks, nodes or hosts")
    kept = [row for row in timed if row["size_bytes"] in _three_sizes(timed, row["collective"])]
    panels = by_columns(kept, list(measured), ("collective", "size_bytes"), _sized)
    figure, grid = grid_of(panels, one_scale=False)
    entries = _draw(grid, panels, "ranks", "time_us")
    for axes in grid:
        rank_axis(axes, {row["ranks"] for panel in panels for row in (*panel.rows, *panel.measured)})
        _time_axes([axes])
    finish_panels(figure, grid, panels, "Time over ranks", _without_hidden(entries, grid))
    return figure


def compare_figure(points: Iterable[PlotRow]) -> Figure:
    """Return predicted lines and measured markers over the size, above the error in percent.

    `points` have `collective, algorithm, protocol, ranks, nodes, size_bytes, measured_us, predicted_us, error`;
    error = predicted/measured − 1. Raises ValueError if there are none.
    """
    joined = [row for row in points if row["size_bytes"] > 0]
    if not joined:
        raise ValueError("no point to compare; see that prediction and table have collective, ranks and size in common")
    panels = by_columns(joined, (), ("collective", "ranks"), _ranked)
    figure, tall = grid_of(panels, strip=True)
    grid, strips = tall[::2], tall[1::2]
    columns = telling(joined, _APART)
    entries: LegendLines = {}
    for axes, strip, panel in zip(grid, strips, panels, strict=False):
        _compared(axes, strip, panel, columns, entries)
    _size_axes(tall, panels)
    _time_axes(grid)
    _error_axes(strips)
    entries["predicted"] = Line2D([], [], color=GREY, linewidth=1.6)
    entries["measured"] = Line2D([], [], marker="o", **{**_MEASURED, "color": GREY})
    error = math.fsum(abs(row["error"]) for row in joined) / len(joined)
    finish_panels(figure, tall, panels, "Predicted and measured time", entries, f"mean absolute error {error:.1%}")
    return figure


# --- what belongs together ---


def _ranked(row: PlotRow) -> str:
    nodes = row.get("nodes") or 1
    return f"{row['collective']}, {row['ranks']} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")


def _sized(row: PlotRow) -> str:
    return f"{row['collective']}, {short_size(row['size_bytes'])}" if row["size_bytes"] else row["collective"]


def _three_sizes(rows: Sequence[PlotRow], collective: str) -> set[int]:
    sizes = sorted({row["size_bytes"] for row in rows if row["collective"] == collective})
    return {sizes[0], sizes[len(sizes) // 2], sizes[-1]}


def _curve(rows: Iterable[PlotRow], x: str, column: str, factor: int = 1) -> tuple[list[int], list[float]]:
    """Return x and y of points in order of x, one point for each x: equal engines give equal rows."""
    points = {row[x]: factor * row[column] for row in rows if row[column] is not None}
    return sorted(points), [points[key] for key in sorted(points)]


def _if_it_took(row: PlotRow, time_us: float, value: Value) -> float:
    """Return a duration as the quantity of the panel: the duration, or the bus bandwidth at that duration."""
    return time_us if value == "time_us" else (row[value] or 0.0) * float(row["time_us"]) / time_us


# --- what is drawn ---


def _strokes(rows: Sequence[PlotRow], columns: Sequence[str]) -> dict[str, LineStyle]:
    """Return the style of each label: colour and marker by algorithm, dash by setting; from the fifth setting on also
    another shade and marker. Settings of a single algorithm have their own colours."""
    kinds = {label({**row, "algorithm": ""}, columns): 0 for row in rows}
    kinds = {kind: i for i, kind in enumerate(sorted(kinds, key=bool))}  # without a setting: solid
    alone = len({row.get("algorithm") for row in rows}) == 1 and not any(row["trust"] for row in rows)
    own = looks_of(list(kinds)) if alone and len(kinds) > 1 else {}  # one algorithm needs no colour: settings get them
    styles: dict[str, LineStyle] = {}
    for row in rows:
        algorithm, kind = str(row.get("algorithm") or ""), label({**row, "algorithm": ""}, columns)
        base, number = look(algorithm), kinds[kind]
        few = len(kinds) <= len(DASHES)
        dash = "-" if own else DASHES[number % len(DASHES)]
        style = LineStyle(own.get(kind) or (base if few else variant(base, number, number)), dash, algorithm, kind)
        styles.setdefault(label(row, columns), style)
    return styles


def _draw(grid: Iterable[Axes], panels: Sequence[Panel], x: str, value: Value) -> LegendLines:
    """Draw lines, measured points and bounds of all panels; return the legend."""
    rows = [row for panel in panels for row in panel.rows]
    columns = with_trust(rows, telling(rows, _APART))
    drawn = _strokes(rows, columns)
    styles = {name: stroke(*style.look, style.dash) for name, style in drawn.items()}
    series = [
        {name: _marks(of, x, value) for name, of in grouped(panel.rows, lambda row: label(row, columns)).items()}
        for panel in panels
    ]
    thin = max(map(len, series)) > MAX_BANDS
    entries: LegendLines = legend_lines({name: styles[name] for name in dict.fromkeys(itertools.chain(*series))})
    for axes, panel, one in zip(grid, panels, series, strict=False):
        draw_lines(axes, one, styles, thin)
        _measured(axes, panel, x, value, entries)
        _bounds(axes, panel, x, value, entries)
    sure = any(mark.low for one in series for marks in one.values() for mark in marks)
    return {**_condensed(entries, drawn), **(interval_entry(90, "bars" if thin else "band") if sure else {})}


def _without_hidden(entries: LegendLines, grid: Iterable[Axes]) -> LegendLines:
    """Return the legend without bounds outside the visible range."""
    for axes in grid:
        low, high = axes.get_ylim()
        bounds = [np.asarray(line.get_ydata()) for line in axes.lines if line.get_label() == "bound"]
        if any(ys.min() <= high and ys.max() >= low for ys in bounds):
            return entries
    return {name: line for name, line in entries.items() if name != "bound"}


def _marks(rows: Iterable[PlotRow], x: str, value: Value) -> list[Mark]:
    """Return the points of a line in order of x, one for each x: equal engines give equal rows."""
    marks = {}
    for row in rows:
        if row[value] is not None:
            sure = row.get("low_us") and row.get("high_us")
            low, high = (_if_it_took(row, row[end], value) if sure else None for end in ("low_us", "high_us"))
            marks[row[x]] = Mark(row[x], row[value], low, high)
    return [marks[at] for at in sorted(marks)]


def _condensed(entries: LegendLines, drawn: Mapping[str, LineStyle]) -> LegendLines:
    """Return a shorter legend for many lines: colours and markers, then dashes, not every combination."""
    dashes = {style.setting: style.dash for style in drawn.values()}
    if len(drawn) <= MAX_ENTRIES or not 1 < len(dashes) <= len(DASHES):
        return entries
    looks = {style.algorithm: style.look for style in drawn.values()}
    legend: LegendLines = {
        name: Line2D([], [], color=c, marker=m, linewidth=1.6, markersize=4.5) for name, (c, m) in looks.items()
    }
    legend |= {name: Line2D([], [], linewidth=1.6, **stroke(INK, "", dash)) for name, dash in dashes.items() if name}
    return legend | {text: line for text, line in entries.items() if text not in drawn}


def _measured(axes: Axes, panel: Panel, x: str, value: Value, entries: LegendLines) -> None:
    for name, points in grouped(panel.measured, lambda row: label(row, ())).items():
        drawn = [(point[x], point[value]) for point in points if point[value] is not None]
        marker = "o" if name in ("", "none", "auto") else look(name).marker
        axes.plot(*zip(*drawn, strict=True), marker=marker, label="measured", **_MEASURED) if drawn else None
    if panel.measured:
        entries["measured"] = Line2D([], [], marker="o", **_MEASURED)


def _bounds(axes: Axes, panel: Panel, x: str, value: Value, entries: LegendLines) -> None:
    """Draw the least lower bound of all rows at each point, as a time or as the bus bandwidth it would mean."""
    least: dict[int, float] = {}
    for row in panel.rows:
        bound = row.get("lower_bound_us")
        if bound and row[value]:
            limit = _if_it_took(row, bound, value)
            least[row[x]] = (min if value == "time_us" else max)(least.get(row[x], limit), limit)
    if least:
        (entries["bound"],) = axes.plot(sorted(least), [least[key] for key in sorted(least)], label="bound", **_BOUND)


def _compared(axes: Axes, strip: Axes, panel: Panel, columns: Sequence[str], entries: LegendLines) -> None:
    for text, rows in grouped(panel.rows, lambda row: label(row, columns)).items():
        color, marker = look(text)
        drawn: dict[str, Any] = {"color": color, "linestyle": "none", "marker": marker, "markersize": 5.5}
        axes.plot(*_curve(rows, "size_bytes", "predicted_us"), color=color, linewidth=1.6, label=text)
        sizes = [row["size_bytes"] for row in rows]
        axes.plot(sizes, [row["measured_us"] for row in rows], label="measured", markerfacecolor="none", **drawn)
        strip.plot(*_curve(rows, "size_bytes", "error", 100), color=color, linewidth=0.9, alpha=0.5)
        strip.plot(sizes, [100 * row["error"] for row in rows], label=text, **{**drawn, "markersize": 3.5})
        entries.setdefault(text or "prediction", Line2D([], [], color=color, marker=marker, markerfacecolor="none"))
    strip.axhline(0, color=INK, linewidth=0.8, zorder=1.5)


# --- frames and axes ---


def _size_axes(grid: Iterable[Axes], panels: Iterable[Panel]) -> None:
    sizes = {row["size_bytes"] for panel in panels for row in (*panel.rows, *panel.measured)}
    for axes in grid:
        size_axis(axes, sizes)


def _time_axes(grid: Sequence[Axes]) -> None:
    drawn = [y for axes in grid for y in _heights(axes) if y > 0]
    times = [y for axes in grid for y in _heights(axes, bounds=False) if y > 0]
    for axes in grid:
        time_axis(axes, [y for y in drawn if y >= min(times) / BELOW])


def _busbw_axes(grid: Sequence[Axes]) -> None:
    lines = max(y for axes in grid for y in _heights(axes, bounds=False))
    highest = max(y for axes in grid for y in _heights(axes) if y <= ABOVE * lines)  # bounds beyond are not drawn
    for axes in grid:
        axes.set_ylim(0, 1.06 * highest or 1)
        axes.set_ylabel("bus bandwidth (GB/s)", size=9, color=INK)


def _error_axes(strips: Sequence[Axes]) -> None:
    worst = max(abs(y) for strip in strips for y in _heights(strip))
    for strip in strips:
        strip.set_ylim(-1.15 * max(worst, 1), 1.15 * max(worst, 1))
        strip.set_ylabel("error (%)", size=9, color=INK)


def _heights(axes: Axes, bounds: bool = True) -> list[float]:
    """Return the y of all lines, with or without lower bounds, and of all intervals."""
    lines = [line for line in axes.lines if bounds or not str(line.get_label()).startswith("bound")]
    bands = [
        float(y)
        for band in axes.collections
        for path in band.get_paths()
        for y in np.asarray(path.vertices).reshape(-1, 2)[:, 1]
    ]
    return [float(y) for line in lines for y in np.asarray(line.get_ydata())] + bands


ROOM: Final = 2.5  # times the 90th percentile of errors: larger errors are counted, not drawn
LEAST: Final = 5.0  # percent: least extent of the axis on either side
AUTO: Final = "auto"  # rows that do not name their algorithm


def residual_figure(points: Iterable[PlotRow], by: Sequence[str] = ("collective", "ranks")) -> Figure:
    """Return errors in percent over the size, a panel for each value of the columns `by`, a colour an algorithm.

    `points` have `algorithm, size_bytes, error, fitted` and the columns `by`; error = predicted/measured − 1. Rows that
    were not fitted have filled markers. Raises ValueError if no row has a size.
    """
    sized = [row for row in points if row["size_bytes"] > 0]
    if not sized:
        raise ValueError("no row has a size (a barrier has none): there is nothing to draw errors over")
    panels = by_columns(
        sized, (), by, lambda row: ", ".join(f"{row[name]} ranks" if name == "ranks" else str(row[name]) for name in by)
    )
    figure, grid = grid_of(panels)
    limit = max(LEAST, ROOM * float(np.percentile([abs(100 * row["error"]) for row in sized], 90)))
    entries: LegendLines = {}
    for axes, panel in zip(grid, panels, strict=False):
        axes.axhline(0, color=INK, linewidth=0.8, zorder=1.5)
        of_kind = grouped(panel.rows, lambda row: (row["algorithm"] or AUTO, bool(row["fitted"])))
        for (name, fitted), rows in of_kind.items():
            style, kind = _residual(*look(name), fitted), "fitted" if fitted else "held out"
            errors = [100 * row["error"] for row in rows]
            axes.plot([row["size_bytes"] for row in rows], errors, label=f"{name}, {kind}", **style)
            entries.setdefault(name, Line2D([], [], **_residual(*look(name), fitted=False)))
        size_axis(axes, {row["size_bytes"] for row in sized})
        axes.set_ylim(-limit, limit)
        axes.set_ylabel("error (%)", size=9, color=INK)
    entries |= {text: Line2D([], [], **_residual(GREY, "o", text == "fitted")) for text in ("fitted", "held out")}
    beyond = sum(abs(100 * row["error"]) > limit for row in sized)
    note = f"{beyond} of {len(sized)} points lie beyond the axis" if beyond else ""
    finish_panels(figure, grid, panels, "Predicted against measured time", entries, note)
    return figure


def _residual(color: str, marker: Marker, fitted: bool) -> dict[str, Any]:
    face = "none" if fitted else color
    return {"color": color, "marker": marker, "linestyle": "none", "markersize": 4.5, "markerfacecolor": face}
