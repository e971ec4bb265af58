"""Steps over the size of gradient buckets, predicted and measured in one picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simcoll import units
from simcoll.report.plot.looks import INK, look
from simcoll.report.plot.panels import Panel, by_columns, finish_panels, grid_of
from simcoll.report.plot.style import PlotRow

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
