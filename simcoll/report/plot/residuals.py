"""Residuals of a fit: the error of every row over its size, fitted rows apart from rows held out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simcoll.report.plot.looks import GREY, INK, Marker, look
from simcoll.report.plot.panels import Panel, by_columns, finish_panels, grid_of
from simcoll.report.plot.style import PlotRow, size_axis

ROOM: Final = 2.5  # times the ninetieth percentile of all errors: what lies beyond is counted and not drawn
LEAST: Final = 5.0  # percent that the axis goes to either side at least
AUTO: Final = "auto"  # rows that do not say which algorithm it was


def residual_figure(points: Iterable[PlotRow], by: Sequence[str] = ("collective", "ranks")) -> Figure:
    """Errors in percent over the size, a panel for each value of the columns `by`, a colour an algorithm.

    `points` have `algorithm, size_bytes, error, fitted` and the columns `by`; error = predicted/measured − 1. Filled
    markers are rows that were not fitted. Raises ValueError if no row has a size.
    """
    sized = [row for row in points if row["size_bytes"] > 0]
    if not sized:
        raise ValueError("no row has a size (a barrier has none): there is nothing to draw errors over")
    panels = by_columns(sized, (), by, lambda row: ", ".join(_said(column, row[column]) for column in by))
    figure, grid = grid_of(panels)
    limit = max(LEAST, ROOM * float(np.percentile([abs(100 * row["error"]) for row in sized], 90)))
    entries: dict[str, Line2D] = {}
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, entries)
        size_axis(axes, {row["size_bytes"] for row in sized})
        axes.set_ylim(-limit, limit)
        axes.set_ylabel("error (%)", size=9, color=INK)
    entries |= {text: _marker(GREY, "o", fitted=text == "fitted") for text in ("fitted", "held out")}
    beyond = sum(abs(100 * row["error"]) > limit for row in sized)
    note = f"{beyond} of {len(sized)} points lie beyond the axis" if beyond else ""
    finish_panels(figure, grid, panels, "Predicted against measured time", entries, note)
    return figure


def _said(column: str, value: object) -> str:
    return f"{value} ranks" if column == "ranks" else str(value)


def _draw(axes: Axes, panel: Panel, entries: dict[str, Line2D]) -> None:
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1.5)
    for name in dict.fromkeys(row["algorithm"] or AUTO for row in panel.rows):
        color, marker = look(name)
        for fitted in (True, False):
            series = [r for r in panel.rows if (r["algorithm"] or AUTO) == name and r["fitted"] == fitted]
            axes.plot(
                *_places(series), label=f"{name}, {'fitted' if fitted else 'held out'}", **_how(color, marker, fitted)
            )
        entries.setdefault(name, _marker(color, marker, fitted=False))


def _places(rows: Sequence[PlotRow]) -> tuple[list[int], list[float]]:
    return [row["size_bytes"] for row in rows], [100 * row["error"] for row in rows]


def _how(color: str, marker: Marker, fitted: bool) -> dict[str, Any]:
    face = "none" if fitted else color
    return {"color": color, "marker": marker, "linestyle": "none", "markersize": 4.5, "markerfacecolor": face}


def _marker(color: str, marker: Marker, fitted: bool) -> Line2D:
    return Line2D([], [], **_how(color, marker, fitted))
