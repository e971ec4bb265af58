"""Small multiples: rows sorted into panels, their axes, the headline and the legend they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simcoll.config.groups import grouped
from simcoll.report.plot.looks import INK
from simcoll.report.plot.style import MAX_PANELS, PlotRow, dress, finish, frame, grid_shape, settings


@dataclass(frozen=True)
class Panel:
    """One set of axes: its key, its title, and what belongs in it."""

    title: str
    rows: Sequence[PlotRow]
    measured: Sequence[PlotRow]


def by_columns(
    rows: Sequence[PlotRow], measured: Sequence[PlotRow], key: Sequence[str], title: Callable[[PlotRow], str]
) -> list[Panel]:
    """Rows by the columns of `key`, in order of appearance; measured points go where what they say fits."""

    def values(row: PlotRow) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in key)

    return [
        Panel(title(group[0]), group, [point for point in measured if _fits(values(point), of_group)])
        for of_group, group in grouped(rows, values).items()
    ]


def _fits(said: tuple[Any, ...], key: tuple[Any, ...]) -> bool:
    return all(one in (None, other) for one, other in zip(said, key, strict=True))


def grid_of(panels: Sequence[Panel], *, strip: bool = False, one_scale: bool = True) -> tuple[Figure, list[Axes]]:
    """The figure and its axes in the order of the panels; with `strip` each is followed by the axes below it.

    All share their x axis, and with `one_scale` their y axis.
    """
    shown = panels[:MAX_PANELS]
    down, across = grid_shape(len(shown))
    width, height = (6.4, 3.3) if len(shown) == 1 else (3.1 * across + 0.4, 2.4 * down + 0.3)
    figure = frame(width, height + (0.9 * down if strip else 0))
    deep, shares = (2, [3, 1] * down) if strip else (1, [1] * down)
    table = figure.subplots(
        down * deep, across, sharex=True, sharey="row" if strip else one_scale, squeeze=False, height_ratios=shares
    )
    places = [(deep * (i // across) + part, i % across) for i in range(len(shown)) for part in range(deep)]
    for place in {(y, x) for y in range(down * deep) for x in range(across)} - set(places):
        table[place].remove()
    for i, panel in enumerate(shown if len(panels) > 1 else ()):
        table[places[i * deep]].set_title(panel.title, size=9, color=INK, loc="left")
    return figure, [table[place] for place in places]


def outer_labels(grid: Sequence[Axes]) -> None:
    """Dress the panels; names of axes stand only where no panel is below, or to the left."""
    places = [axes.get_subplotspec() for axes in grid]
    lowest = {place.colspan.start: place.rowspan.start for place in places if place}
    for axes, place in zip(grid, places, strict=True):
        dress(axes)
        if place and lowest[place.colspan.start] == place.rowspan.start:  # nothing below it: the last row may be short
            axes.tick_params(labelbottom=True)
        else:
            axes.set_xlabel("")
        if place and place.colspan.start:
            axes.set_ylabel("")


def finish_panels(
    figure: Figure,
    grid: Sequence[Axes],
    panels: Sequence[Panel],
    headline: str,
    entries: Mapping[str, Artist],
    note: str = "",
) -> None:
    """Labels at the outer axes only; a headline; in the legend algorithms first, then measured points and bounds."""
    outer_labels(grid)
    title = f"{headline}: {panels[0].title}" if len(panels) == 1 else headline
    notes = [settings([row for panel in panels for row in panel.rows]), _systems(panels), note]
    notes += [f"first {MAX_PANELS} of {len(panels)} panels"] if len(panels) > MAX_PANELS else []
    last = {"predicted": 1, "measured": 2, "bound": 3}
    ordered = sorted(entries.items(), key=lambda entry: last.get(entry[0].split(" ")[0], 0))
    finish(figure, title, "  ·  ".join(filter(None, notes)), dict(ordered))


def _systems(panels: Sequence[Panel]) -> str:
    names = sorted({str(point["system"]) for panel in panels for point in panel.measured if point.get("system")})
    return f"measured on {', '.join(names)}" if names else ""
