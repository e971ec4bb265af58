"""The cost of NCCL's own choice over the best that it could have made."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from simcoll.report.plot.looks import INK
from simcoll.report.plot.style import PlotRow, dress, finish, frame, from_zero, size_axis

_LINES = {"all_reduce": "#332288", "all_gather": "#117733", "reduce_scatter": "#CC6677", "broadcast": "#DDAA33"}
_OTHER = "#777777"


def regret_figure(rows: Sequence[PlotRow], subtitle: str) -> Figure:
    """Regret in percent over the size, a line a collective. `rows` have `collective, size_bytes, regret`, a share.

    Raises ValueError if there is none.
    """
    if not rows:
        raise ValueError("no point has a regret to draw")
    figure = frame(6.4, 3.3)
    axes = figure.subplots()
    entries: dict[str, Artist] = {}
    for name in dict.fromkeys(row["collective"] for row in rows):
        points = sorted((row["size_bytes"], 100 * row["regret"]) for row in rows if row["collective"] == name)
        color = _LINES.get(name, _OTHER)
        (entries[name],) = axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, linewidth=1.2)
    size_axis(axes, {row["size_bytes"] for row in rows})
    from_zero(axes)
    axes.set_ylabel("regret (%)", size=9, color=INK)
    dress(axes)
    finish(figure, "How much longer NCCL's choice takes than the best it could make", subtitle, entries)
    return figure
