"""Draw maps of the fastest algorithm: sizes across, ranks up, each cell coloured by the fastest algorithm there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon, Rectangle

from simcoll.config.grouping import grouped
from simcoll.report.columns import (
    COMPETING,
    SETTINGS,
    PlotRow,
    by_columns,
    drawable,
    label_of,
    remarks,
    separating,
    telling,
    varying,
)
from simcoll.report.plot.style import CHARACTER, GREY, INK, MAX_PANELS, contrast, finish, frame, grid_shape, look
from simcoll.units import short_size

TIE: Final = 1.005  # times within half a percent are equal
TICK: Final = 0.55  # inches between ticks of sizes: "256 MiB" and a gap
ROOM: Final = 0.36  # inches: least width of a cell with a text, "12.3×"


class Winner(NamedTuple):
    """The fastest algorithm at a point, the second's time over the fastest's (None without a second), and another one
    that is equally fast."""

    winner: str
    margin: float | None
    tied: str | None = None


MapCells = dict[tuple[int, int], Winner]  # (ranks, size) → its winner


def crossover_figure(rows: Iterable[PlotRow]) -> Figure:
    """Return a map for each collective (and setting): cells coloured by the fastest, with its margin over the second.

    Rows are mappings with the columns of results.csv. Algorithms (and protocols) compete within a map. Raises
    ValueError if no row has a time, or if all rows have one algorithm.
    """
    timed = drawable(rows)
    if not varying(timed, ("algorithm", *COMPETING)):
        raise ValueError(f"{timed[0]['algorithm']} is the only algorithm; take two or more, or `all`")
    panels = by_columns(timed, ["collective", *telling(timed, SETTINGS, COMPETING)])
    competing = ["algorithm", *separating(timed, COMPETING, ("collective", "ranks", "size_bytes", "algorithm"))]
    maps = [
        {key: _best(group, competing) for key, group in grouped(panel.rows, _place).items()}
        for panel in panels[:MAX_PANELS]
    ]
    ranks, sizes = (sorted({key[i] for cells in maps for key in cells}) for i in (0, 1))
    titles = [panel.title if len(panels) > 1 else "" for panel in panels[: len(maps)]]
    wide = max(0.44 * len(sizes) + 0.7, 1.15 * CHARACTER * max(map(len, titles)) + 0.4)
    across = max(1, min(grid_shape(len(maps))[1], int(10 / wide)))
    down, width = -(-len(maps) // across), min(12.0, max(6.4, across * wide))
    figure = frame(width, max(1.5, 0.85 + 0.34 * len(ranks)) * down)
    table = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
    cell = (width / across - 0.7) / len(sizes)
    for axes, title, cells in zip(table, titles, maps, strict=False):
        _draw(axes, cells, ranks, sizes, cell)
        axes.set_title(title, size=9, color=INK, loc="left")
    for axes in table[len(maps) :]:
        axes.remove()
    best = [winner for cells in maps for winner in cells.values()]
    names = dict.fromkeys([each.winner for each in best] + [each.tied for each in best if each.tied])
    asked = {row.get("asked") or row["algorithm"] for row in timed}
    title = "Fastest algorithm" if len(asked) > 1 else f"Choice of {asked.pop()}"
    title += f": {panels[0].title}" if len(panels) == 1 else ""
    notes = [remarks(panels, len(maps))]
    if cell >= ROOM and any(each.margin for each in best):
        notes.append("numbers: lead over the runner-up")
    finish(figure, title, "  ·  ".join(notes), {name: Patch(facecolor=look(name).color) for name in names})
    return figure


def _place(row: PlotRow) -> tuple[int, int]:
    return row["ranks"], row["size_bytes"]


def _best(rows: Sequence[PlotRow], columns: Sequence[str]) -> Winner:
    times: dict[str, float] = {}
    for row in rows:
        name = label_of(row, columns)
        times[name] = min(row["time_us"], times.get(name, row["time_us"]))
    first, *others = sorted(times, key=lambda name: times[name])  # of equals the first of the scenario
    margin = times[others[0]] / times[first] if others else None
    return Winner(first, margin, others[0] if margin is not None and margin < TIE else None)


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
    """Return a margin, e.g. 1.25, as text with enough digits that a narrow win does not read as 1.0×."""
    return f"{margin:.2f}×" if margin < 1.1 else f"{margin:.1f}×" if margin < 10 else f"{margin:.0f}×"
