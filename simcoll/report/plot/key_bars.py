"""A quantity of named values as lying bars, each with its number; points on a logarithmic axis where bars would vanish.

Every panel has a row for each of its own names; several series stand below each other in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simcoll.prediction.result_rows import UNITS
from simcoll.report.plot.key_columns import WORDS, is_time, word
from simcoll.report.plot.looks import INK, Look
from simcoll.report.plot.panels import Panel
from simcoll.report.plot.style import CHARACTER, dress, frame, time_axis, time_text

TICKS: Final = 5  # of the axis of values, where it is as wide as the picture
BAR: Final = 0.2  # inches, the height of a bar with the air above it
POINTS: Final = 30  # of values that differ by more than this factor points are drawn: the bar of the least is not seen
PLAIN: Final = "#4477AA"  # of bars that no name sets apart


class Mark(NamedTuple):
    """A point of a line: where it stands, its value, the ends of its interval (None without one), and whether it is
    modelled where others are not."""

    x: float
    y: float
    low: float | None
    high: float | None
    modelled: bool = False


BarSeries = Mapping[str, Sequence[Mark]]  # the name of a series → a mark for each row that it has, x its number


def bar_figure(
    panels: Sequence[Panel],
    series: Sequence[BarSeries],
    ticks: Mapping[float, str],
    quantity: str,
    looks: Mapping[str, Look],
) -> tuple[Figure, dict[str, Artist]]:
    """A panel of lying bars for each series, and the legend; `ticks` name the rows that marks stand in.

    A single row with several series becomes a row for each of them: their names need no legend then.
    """
    several = {name for one in series for name in one}
    if len(ticks) == 1 and len(several) > 1:
        ticks = {float(number): name for number, name in enumerate(name for name in looks if name in several)}
        number_of = {name: number for number, name in ticks.items()}
        series = [{"": [marks[0]._replace(x=number_of[name]) for name, marks in one.items()]} for one in series]
    rows = [sorted({mark.x for marks in one.values() for mark in marks}) for one in series]
    deep = max(map(len, series))
    across = 1 if len(series) == 1 else 2 if len(series) <= 4 else 3
    down = -(-len(series) // across)
    tall = [max(map(len, rows[line * across : (line + 1) * across])) for line in range(down)]
    names = CHARACTER * max(map(len, ticks.values()))
    figure = frame(6.4 if across == 1 else across * (2.1 + names), BAR * deep * sum(tall) + 0.45 * down + 0.2)
    table = figure.subplots(down, across, sharex=True, squeeze=False, height_ratios=tall)
    grid = table.ravel().tolist()
    for axes in grid[len(series) :]:
        axes.remove()
    values = [mark.y for one in series for marks in one.values() for mark in marks]
    points = min(values) > 0 and max(values) / min(values) > POINTS
    entries: dict[str, Artist] = {}
    for at, (axes, panel, one, kept) in enumerate(zip(grid, panels, series, rows, strict=False)):
        axes.set_title(panel.title if len(panels) > 1 else "", size=9, color=INK, loc="left")
        place = {x: float(number) for number, x in enumerate(kept)}
        wide = 0.8 / len(one)
        for number, name in enumerate(name for name in dict.fromkeys([*looks, *one]) if name in one):
            shift = (number - (len(one) - 1) / 2) * wide
            plain = len(one) == 1
            for mark in one[name]:
                chosen = looks.get(ticks[mark.x] if plain else name) or looks.get(name) or Look(PLAIN, "o")
                _draw(axes, place[mark.x] + shift, mark, wide, chosen, quantity, points)
            if not plain:
                swatch = Line2D([], [], linestyle="none", **looks[name]._asdict())
                entries.setdefault(name, swatch if points else Patch(facecolor=looks[name].color))
        dress(axes)
        axes.grid(False, axis="y")
        axes.set_yticks(list(place.values()), [ticks[x] for x in kept])
        axes.set_ylim(tall[at // across] - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
    highest = max(mark.high or mark.y for one in series for marks in one.values() for mark in marks)
    for number, axes in enumerate(grid[: len(series)]):
        _value_axis(axes, values, highest, quantity, points, TICKS if across == 1 else TICKS // 2)
        below = number + across < len(series)
        axes.tick_params(labelbottom=not below)
        axes.set_xlabel("" if below else axes.get_xlabel())
    return figure, entries


def _draw(axes: Axes, y: float, mark: Mark, wide: float, chosen: Look, quantity: str, points: bool) -> None:
    if points:
        axes.plot([mark.y], [y], linestyle="none", markersize=5.5, **chosen._asdict())
    else:
        axes.barh([y], [mark.y], height=0.85 * wide, color=chosen.color)
    if mark.low and mark.high:
        axes.hlines([y], mark.low, mark.high, color=INK, linewidth=1.0)
    text = (time_text(mark.y) if is_time(quantity) else f"{mark.y:.4g}") + ", modelled" * mark.modelled
    end = max(mark.high or 0.0, mark.y)
    axes.annotate(
        text, (end, y), (4 + 2 * points, 0), textcoords="offset points", va="center_baseline", size=7, color=INK
    )


def _value_axis(axes: Axes, values: Sequence[float], highest: float, quantity: str, points: bool, ticks: int) -> None:
    name, unit = WORDS.get(quantity, word(quantity)).lower(), UNITS.get(quantity, "")
    axes.set_xlabel(name if unit in ("", "us") else f"{name} ({unit})", size=9, color=INK)
    if points and is_time(quantity):
        time_axis(axes, [*values, 3 * highest], along="x")
    elif points:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 1.5, 3 * highest)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_xlim(0, 1.18 * highest or 1)
        axes.xaxis.set_major_locator(MaxNLocator(ticks))
        if is_time(quantity):
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value) if value else "0"))
