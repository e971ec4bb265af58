"""Runs that differ: how long a point takes undisturbed, and the quantiles of its replications with their intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simcoll.prediction.result_rows import swept
from simcoll.report.plot.looks import GREY, INK
from simcoll.report.plot.style import SETTINGS, PlotRow, as_asked, dress, finish, frame, label, separating

MOST: Final = 40  # points drawn
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
    if not 0 < len(varied) <= MOST:
        raise ValueError(f"{len(varied)} points have replications; give 1 to {MOST}")
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
