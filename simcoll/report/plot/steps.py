"""Training steps: how long they take over what was swept, and how much of that is computation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from simcoll import units
from simcoll.prediction.result_rows import swept
from simcoll.report.plot.key_columns import word
from simcoll.report.plot.looks import GREY, INK, look
from simcoll.report.plot.style import (
    SETTINGS,
    PlotRow,
    as_asked,
    dash_of,
    dress,
    finish,
    frame,
    from_zero,
    label,
    separating,
    settings,
    size_axis,
    time_text,
    with_trust,
)
from simcoll.units import short_size

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
