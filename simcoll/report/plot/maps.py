"""Maps of the fastest algorithm: sizes across, ranks up, each point's cell coloured by the fastest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon, Rectangle

from simcoll.report.plot.style import (
    CHARACTER,
    COMPETING,
    GREY,
    INK,
    MAX_PANELS,
    SETTINGS,
    PlotRow,
    contrast,
    drawable,
    finish,
    frame,
    grid_shape,
    label,
    look,
    separating,
    settings,
    telling,
)
from simcoll.units import short_size

TIE: Final = 1.005  # times within half a percent are equal
TICK: Final = 0.55  # inches between ticks of sizes: "256 MiB" and a gap
ROOM: Final = 0.36  # inches: least width of a cell with a text, "12.3×"


class Winner(NamedTuple):
    """The fastest at a point, the runner-up's time as a multiple of its (None without one), and an equally fast one."""

    winner: str
    margin: float | None
    tied: str | None = None


MapCells = dict[tuple[int, int], Winner]  # (ranks, size) → its winner


def crossover_figure(rows: Iterable[PlotRow]) -> Figure:
    """Return a map for each collective (and setting): cells coloured by the fastest, with its margin over the next.

    Rows are mappings with the columns of results.csv. Raises ValueError if no row has a time, or all are of one
    algorithm.
    """
    timed = drawable(rows)
    if len({(row["algorithm"], *map(row.get, COMPETING)) for row in timed}) == 1:
        raise ValueError(f"{timed[0]['algorithm']} is the only algorithm; take two or more, or `all`")
    maps = _maps(timed)
    shown = dict(list(maps.items())[:MAX_PANELS])
    ranks, sizes = (sorted({key[i] for cells in shown.values() for key in cells}) for i in (0, 1))
    wide = max(0.44 * len(sizes) + 0.7, 1.15 * CHARACTER * max(map(len, shown)) + 0.4 if len(maps) > 1 else 0)
    across = max(1, min(grid_shape(len(shown))[1], int(10 / wide)))
    down, width = -(-len(shown) // across), min(12.0, max(6.4, across * wide))
    figure = frame(width, max(1.5, 0.85 + 0.34 * len(ranks)) * down)
    table = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
    cell = (width / across - 0.7) / len(sizes)
    for axes, (title, cells) in zip(table, shown.items(), strict=False):
        _draw(axes, cells, ranks, sizes, cell)
        axes.set_title(title if len(maps) > 1 else "", size=9, color=INK, loc="left")
    for axes in table[len(shown) :]:
        axes.remove()
    first = dict.fromkeys(cell.winner for cells in shown.values() for cell in cells.values())
    winners = first | dict.fromkeys(cell.tied for cells in shown.values() for cell in cells.values() if cell.tied)
    entries = {winner: Patch(facecolor=look(winner).color) for winner in winners}
    asked = {row.get("asked") or row["algorithm"] for row in timed}
    title = "Fastest algorithm" if len(asked) > 1 else f"Choice of {asked.pop()}"
    title += f": {next(iter(maps))}" if len(maps) == 1 else ""
    finish(figure, title, "  ·  ".join(filter(None, _notes(timed, maps, cell >= ROOM))), entries)
    return figure


def _maps(rows: Sequence[PlotRow]) -> dict[str, MapCells]:
    """Return a map for each title: algorithms (and protocols) compete in a map, other settings get their own map."""
    apart = telling(rows, SETTINGS, COMPETING)
    points: dict[str, dict[tuple[int, int], list[PlotRow]]] = {}
    for row in rows:
        title = label({**row, "algorithm": row["collective"]}, apart)
        points.setdefault(title, {}).setdefault((row["ranks"], row["size_bytes"]), []).append(row)
    columns = separating(rows, COMPETING, ("collective", "ranks", "size_bytes", "algorithm"))
    return {title: {key: _best(group, columns) for key, group in cells.items()} for title, cells in points.items()}


def _best(rows: Sequence[PlotRow], columns: Sequence[str]) -> Winner:
    times: dict[str, float] = {}
    for row in rows:
        name = label(row, columns)
        times[name] = min(row["time_us"], times.get(name, row["time_us"]))
    first, *others = sorted(times, key=lambda name: times[name])  # of equals the first of the scenario
    margin = times[others[0]] / times[first] if others else None
    return Winner(first, margin, others[0] if margin is not None and margin < TIE else None)


def _notes(rows: Sequence[PlotRow], maps: dict[str, MapCells], room: bool) -> list[str]:
    notes = [settings(rows)]
    if room and any(cell.margin for cells in maps.values() for cell in cells.values()):
        notes.append("numbers: lead over the runner-up")
    if len(maps) > MAX_PANELS:
        notes.append(f"first {MAX_PANELS} of {len(maps)} maps")
    return notes


def _draw(axes: Axes, cells: MapCells, ranks: Sequence[int], sizes: Sequence[int], wide: float) -> None:
    for (n, size), cell in cells.items():
        x, y, color = sizes.index(size), ranks.index(n), look(cell.winner).color
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, edgecolor="white", linewidth=1))
        if cell.tied:  # half the cell has the other's colour
            other = [(x - 0.5, y - 0.5), (x + 0.5, y - 0.5), (x + 0.5, y + 0.5)]
            axes.add_patch(Polygon(other, facecolor=look(cell.tied).color, edgecolor="white", linewidth=1))
        if wide >= ROOM and cell.margin is not None:
            text: dict[str, Any] = {"ha": "center", "va": "center", "size": 7, "color": contrast(color)}
            if cell.tied:  # on two colours
                text |= {"color": INK, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.0}}
            axes.text(x, y, "tie" if cell.tied else _times(cell.margin), **text)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(-0.5, len(ranks) - 0.5)
    least = math.ceil(TICK / wide)  # as many labels as fit, with the last if possible
    every = next((step for step in range(least, 2 * least) if (len(sizes) - 1) % step == 0), least)
    axes.set_xticks(range(0, len(sizes), every), [short_size(size) for size in sizes[::every]])
    axes.set_yticks(range(len(ranks)), [f"{n:,}" for n in ranks])
    axes.spines[:].set_visible(False)
    axes.tick_params(color=GREY, labelcolor=INK, labelsize=8, length=2)
    axes.set_xlabel("size", size=9, color=INK)
    axes.set_ylabel("ranks", size=9, color=INK)
    axes.label_outer()


def _times(margin: float) -> str:
    """Return a margin with two or three digits, so that a narrow win does not read as 1.0×."""
    return f"{margin:.2f}×" if margin < 1.1 else f"{margin:.1f}×" if margin < 10 else f"{margin:.0f}×"
