"""A workload's step: when each rank computes and communicates, and what of the communication is exposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simcoll.report.overlap import RankOverlap, union
from simcoll.report.plot.looks import INK
from simcoll.report.plot.style import dress, finish, frame, time_text
from simcoll.units import format_duration

MOST: Final = 8  # ranks in a picture
_COMPUTE, _HIDDEN, _EXPOSED = "#999933", "#88CCEE", "#CC3311"  # Paul Tol's


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
        _lane(axes, place - 0.22, rank.computing, _COMPUTE)
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
        "computation": Patch(facecolor=_COMPUTE),
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
