"""Draw recorded calls beside what is expected of them, and ranks by lateness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from simcoll.config.grouping import grouped
from simcoll.report.plot.style import GREY, INK, dress, finish, frame, look, name_axis, size_axis, time_axis

MOST_BARS: Final = 32  # ranks that are drawn, the latest first


def recorded_figure(recorded: Mapping[str, Any]) -> Figure:
    """Return a figure of the document's `recorded`: calls by size with the range of their expected times (where
    they were predicted), and ranks by how long others waited for them. Raises ValueError if there is neither."""
    calls, ranks = recorded["calls"], recorded["ranks"][:MOST_BARS]
    if not calls and not ranks:
        raise ValueError("no call with a measured time, and fewer than two ranks")
    panels = bool(calls) + bool(ranks)
    figure = frame(4.2 * panels + 0.4, 3.3)
    left = list(figure.subplots(1, panels, squeeze=False)[0])
    entries: dict[str, Artist] = {}
    if calls:
        axes = left.pop(0)
        series = grouped(calls, lambda call: f"{call['collective']} on {call['ranks']}")
        for text, points in series.items():
            points = sorted(points, key=lambda call: call["size_bytes"])
            sizes, color = [call["size_bytes"] for call in points], look(text).color
            low, high = ([call[name] for call in points] for name in ("low_us", "high_us"))
            axes.fill_between(sizes, low, high, color=color, alpha=0.15, linewidth=0)
            axes.plot(sizes, [call["expected_us"] for call in points], color=color, linewidth=1.2)
            measured = [call["measured_us"] for call in points]
            (entries[text],) = axes.plot(sizes, measured, color=color, marker=look(text).marker, linestyle="none")
        dress(axes)
        size_axis(axes, sorted({call["size_bytes"] for call in calls}))
        time_axis(axes, [call[name] for call in calls for name in ("measured_us", "low_us", "high_us")])
    if ranks:
        axes = left.pop(0)
        shares = [100 * late["share"] for late in ranks]
        usual = sum(shares) / len(shares)
        axes.bar(range(len(ranks)), shares, color=[INK if share > 2 * usual else GREY for share in shares])
        dress(axes)
        axes.set_xticks(range(len(ranks)), [str(late["rank"]) for late in ranks], fontsize=7)
        name_axis(axes.xaxis, "rank")
        name_axis(axes.yaxis, "percent of the time for which others wait")
    finish(figure, "Recorded calls and ranks", "markers: least time over ranks; lines and bands: expected", entries)
    return figure
