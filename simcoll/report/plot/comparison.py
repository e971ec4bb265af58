"""Draw predicted beside measured times: both over the size, and errors in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simcoll.config.grouping import grouped
from simcoll.report.columns import COMPETING, SETTINGS, Panel, PlotRow, by_columns, label_of, remarks, telling
from simcoll.report.plot.style import (
    GREY,
    INK,
    MAX_PANELS,
    Marker,
    finish,
    grid_of,
    look,
    name_axis,
    outer_labels,
    size_axis,
    time_axis,
)

ROOM: Final = 2.5  # times the 90th percentile of errors: larger errors are counted, not drawn
LEAST: Final = 5.0  # percent: least extent of the axis on either side
AUTO: Final = "auto"  # rows that do not name their algorithm


def compare_figure(points: Iterable[PlotRow]) -> Figure:
    """Return a figure of predicted lines and measured markers over the size, above the error in percent.

    `points` have `collective, algorithm, protocol, ranks, nodes, size_bytes, measured_us, predicted_us, error`; error =
    predicted/measured − 1. Raises ValueError if there are none.
    """
    joined = [row for row in points if row["size_bytes"] > 0]
    if not joined:
        raise ValueError("no point to compare; see that prediction and table have collective, ranks and size in common")
    panels = by_columns(joined, ("collective", "ranks"))
    figure, tall = grid_of([panel.title for panel in panels], strip=True)
    columns = ("algorithm", *telling(joined, ("topology", *COMPETING, *SETTINGS)))
    entries: dict[str, Artist] = {}
    for above, below, panel in zip(tall[::2], tall[1::2], panels, strict=False):
        for text, rows in grouped(panel.rows, lambda row: label_of(row, columns)).items():
            color, marker = look(text)
            drawn: dict[str, Any] = {"color": color, "marker": marker}
            rows = sorted(rows, key=lambda row: (row["size_bytes"], row["error"]))
            sizes = [row["size_bytes"] for row in rows]
            above.plot(sizes, [row["predicted_us"] for row in rows], color=color, linewidth=1.6, label=text)
            hollow = {**drawn, "linestyle": "none", "markersize": 5.5, "markerfacecolor": "none"}
            above.plot(sizes, [row["measured_us"] for row in rows], label="measured", **hollow)
            below.plot(sizes, [100 * row["error"] for row in rows], label=text, linewidth=0.5, markersize=3.5, **drawn)
            entries.setdefault(text or "prediction", Line2D([], [], markerfacecolor="none", **drawn))
        below.axhline(0, color=INK, linewidth=0.8, zorder=1.5)
    times = [row[column] for row in joined for column in ("predicted_us", "measured_us")]
    worst = 1.15 * max(1.0, *(100 * abs(row["error"]) for row in joined))
    for axes in tall[::2]:
        time_axis(axes, times)
    for axes in tall[1::2]:
        axes.set_ylim(-worst, worst)
        name_axis(axes.yaxis, "error (%)")
    entries["predicted"] = Line2D([], [], color=GREY, linewidth=1.6)
    entries["measured"] = Line2D([], [], color=GREY, linestyle="none", marker="o", markerfacecolor="none")
    error = math.fsum(abs(row["error"]) for row in joined) / len(joined)
    _finish(figure, tall, panels, "Predicted and measured time", f"mean absolute error {error:.1%}", entries)
    return figure


def residual_figure(points: Iterable[PlotRow], by: Sequence[str] = ("collective", "ranks")) -> Figure:
    """Return a figure of errors in percent over the size: a panel for each value of columns `by`, a colour an
    algorithm.

    `points` have `algorithm, size_bytes, error, fitted` and the columns `by`; error = predicted/measured − 1. Rows that
    were not fitted have filled markers. Raises ValueError if no row has a size.
    """
    sized = [row for row in points if row["size_bytes"] > 0]
    if not sized:
        raise ValueError("no row has a size (a barrier has none): there is nothing to draw errors over")
    panels = by_columns(sized, by)
    figure, grid = grid_of([panel.title for panel in panels])
    limit = max(LEAST, ROOM * float(np.percentile([abs(100 * row["error"]) for row in sized], 90)))
    entries: dict[str, Artist] = {}
    for axes, panel in zip(grid, panels, strict=False):
        axes.axhline(0, color=INK, linewidth=0.8, zorder=1.5)
        of_kind = grouped(panel.rows, lambda row: (row["algorithm"] or AUTO, bool(row["fitted"])))
        for (name, fitted), rows in of_kind.items():
            style, kind = _residual(*look(name), fitted), "fitted" if fitted else "held out"
            errors = [100 * row["error"] for row in rows]
            axes.plot([row["size_bytes"] for row in rows], errors, label=f"{name}, {kind}", **style)
            entries.setdefault(name, Line2D([], [], **_residual(*look(name), fitted=False)))
        axes.set_ylim(-limit, limit)
        name_axis(axes.yaxis, "error (%)")
    entries |= {text: Line2D([], [], **_residual(GREY, "o", text == "fitted")) for text in ("fitted", "held out")}
    beyond = sum(abs(100 * row["error"]) > limit for row in sized)
    note = f"{beyond} of {len(sized)} points lie beyond the axis" if beyond else ""
    _finish(figure, grid, panels, "Predicted against measured time", note, entries)
    return figure


def _finish(
    figure: Figure, grid: Sequence[Axes], panels: Sequence[Panel], title: str, note: str, entries: Mapping[str, Artist]
) -> None:
    for axes in grid:
        size_axis(axes, {row["size_bytes"] for panel in panels for row in panel.rows})
    outer_labels(grid)
    title += f": {panels[0].title}" if len(panels) == 1 else ""
    finish(figure, title, "  ·  ".join(filter(None, [remarks(panels, MAX_PANELS), note])), entries)


def _residual(color: str, marker: Marker, fitted: bool) -> dict[str, Any]:
    face = "none" if fitted else color
    return {"color": color, "marker": marker, "linestyle": "none", "markersize": 4.5, "markerfacecolor": face}
