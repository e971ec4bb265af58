"""Style of all plots: labels and widths of lines, frames with a headline, axes of sizes, durations and ranks."""

from __future__ import annotations

import itertools
import math
import operator
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from simcoll.config.groups import grouped
from simcoll.prediction.result_rows import swept
from simcoll.report.plot.looks import FAINT, GREY, INK, Marker
from simcoll.scenario.profile import titled
from simcoll.units import format_duration, short_size

CHARACTER: Final = 0.061  # inches, of the text at 8 points, on average
MAX_PANELS: Final = 16
HALO: Final = 1.6  # points by which a line is wider than another that runs on it
MOST_HALOS: Final = 3  # of more equal lines all are as wide: a broader one would be a bar
TICK: Final = 0.55  # inches between the ticks of a size axis, "256 MiB" and some air

# What changes the prediction of one and the same algorithm; the label must name what differs in two such rows.
COMPETING: Final = ("executor", "protocol")
SETTINGS: Final = ("topology", "nodes", "profile", "dtype", "op", "root", "in_place", "seed", "scenario")

# Confidence of rows that a fit to measured runs stands behind.
FITTED: Final = frozenset({"calibrated", "interpolated", "extrapolated"})

Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: Final[tuple[Dash, ...]] = ("-", (0, (4.5, 1.3)), (0, (1.2, 1.1)), (0, (4.5, 1.2, 1.2, 1.2)))

PlotRow = Mapping[str, Any]  # a ResultRow, or another record with the columns that a picture needs


# --- rows ---


def drawable(rows: Iterable[PlotRow]) -> list[PlotRow]:
    """The rows that have a time; raises ValueError if there is none."""
    timed = [row for row in rows if row.get("status", "ok") == "ok" and (row["time_us"] or 0) > 0]
    if not timed:
        raise ValueError("no row has a time to draw; see the column status for the reasons")
    return timed


def as_asked(rows: Iterable[PlotRow]) -> list[PlotRow]:
    """Rows under the algorithm that was asked for, so that `auto` is one line; `ran` is what ran.

    `trust` is `modelled` where no measured run stands behind a row, but behind others of the picture.
    """
    rows = list(rows)
    known = {row.get("confidence") for row in rows} & FITTED
    return [
        {
            **row,
            "algorithm": row.get("asked") or row.get("algorithm"),
            "ran": row.get("algorithm"),
            "trust": row.get("confidence") if known and row.get("confidence") == "modelled" else None,
        }
        for row in rows
    ]


def with_trust(rows: Iterable[PlotRow], columns: Sequence[str]) -> list[str]:
    """The columns that set lines apart, and whether they are modelled where some are: rows of `as_asked`."""
    return [*columns, *(["trust"] * any(row["trust"] for row in rows))]


def dash_of(row: PlotRow) -> Dash:
    """The dash of a line of such rows: that of the first setting where it is modelled and others are not."""
    return DASHES[bool(row["trust"])]


def separating(rows: Sequence[PlotRow], columns: Iterable[str], point: Sequence[str]) -> list[str]:
    """Select the columns that distinguish rows which agree in all of `point`; one that adds nothing to those before it
    is left out."""
    chosen: list[str] = []
    for name in columns:
        values: dict[tuple[Any, ...], Any] = {}
        key = (*point, *chosen)
        if any(row.get(name) != values.setdefault(tuple(map(row.get, key)), row.get(name)) for row in rows):
            chosen.append(name)
    return chosen


def telling(rows: Sequence[PlotRow], columns: Iterable[str], competing: Sequence[str] = ()) -> list[str]:
    """Select the columns, and swept keys, that distinguish the rows of an algorithm (and `competing`) at a point.

    Swept keys do so across algorithms: for each of their values `auto` may take another.
    """
    point = ("collective", "ranks", "size_bytes")
    chosen = separating(rows, columns, (*point, "algorithm", *competing))
    return chosen + separating(rows, swept(rows), (*point, *chosen))


def label(row: PlotRow, columns: Iterable[str]) -> str:
    """The algorithm and what sets its series apart."""
    parts, columns = [str(row.get("algorithm") or "")], list(columns)
    for name in columns:
        value = row.get(name)
        if name in (*COMPETING, "trust"):
            parts += [str(value)] if value not in (None, "", "none") else []
        elif "." in name:
            parts += [f"{_short(name, columns)} {value}"] if value is not None else []
        else:
            parts.append(f"{name.replace('_', ' ')} {value}" if isinstance(value, int) else str(value))
    return ", ".join(part for part in parts if part)


def _short(name: str, columns: Iterable[str]) -> str:
    """The last part of a dotted name, or all of it where another ends alike."""
    last = name.rsplit(".", 1)[-1]
    return name if any(column != name and column.rsplit(".", 1)[-1] == last for column in columns) else last


def stroke(color: str, marker: Marker, dash: Dash) -> dict[str, Any]:
    """The properties of a line but for its width. A dashed one is white in its gaps and markers: upon a wider line of
    its own colour it would not be seen."""
    style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": dash}
    return style if dash == "-" else {**style, "gapcolor": "white", "markerfacecolor": "white"}


def halos(curves: Sequence[Mapping[Any, float]]) -> list[float]:
    """Points by which each line is wider than a single one, so that those that run above it hide none.

    Lines coincide where two neighbours, or their only point, are within a percent. `curves` are in order of drawing.
    """
    above = [sum(_coincide(curve, other) for other in curves[number:]) for number, curve in enumerate(curves, 1)]
    return [HALO * min(MOST_HALOS, count) for count in above]


def _coincide(first: Mapping[Any, float], second: Mapping[Any, float]) -> bool:
    same = [math.isclose(first[at], second[at], rel_tol=0.01) for at in sorted(first.keys() & second.keys())]
    return any(map(operator.and_, same, same[1:])) or same == [True]


def settings(rows: Sequence[PlotRow]) -> str:
    """Topology, profile and sharing of some rows, for the line below the title."""
    parts = []
    for name, text in (("topology", "{}"), ("profile", "profile {}"), ("sharing", "{} sharing")):
        values = list(dict.fromkeys(str(row[name]) for row in rows if row.get(name)))
        values = [titled(value) for value in values] if name == "profile" else values
        if values:
            parts.append(text.format(", ".join(values[:3]) + (", …" if len(values) > 3 else "")))
    return "  ·  ".join(parts)


def interval_entry(shares: Collection[int], form: Literal["band", "bars", "whisker"]) -> dict[str, Artist]:
    """The legend of intervals that hold so many percent, as they are drawn: nothing where there are none."""
    swatch = {
        "band": Patch(facecolor=GREY, alpha=0.3),
        "bars": Line2D([], [], color=GREY, linestyle="none", marker="|", markersize=9),
        "whisker": Line2D([], [], color=INK, linewidth=1.0),
    }
    return {f"{share} % interval": swatch[form] for share in sorted(shares)}


# --- frames ---


def frame(width: float, height: float) -> Figure:
    """An empty figure of so many inches, to which `finish` adds what stands above and below the axes."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def finish(figure: Figure, title: str, subtitle: str, entries: Mapping[str, Artist]) -> None:
    """A headline above the axes and one legend below them; the figure grows by what these need."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(subtitle, int((width - 0.2) / CHARACTER))
    head = 0.34 + 0.14 * len(lines) + 0.06
    rows = _legend(figure, entries) if entries else 0
    height = math.ceil((height + head + 0.17 * rows) * 150) / 150  # whole pixels
    figure.set_size_inches(width, height)
    figure.set_layout_engine(
        ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04, rect=(0, 0, 1, 1 - head / height))
    )
    x = 0.1 / width
    fitted = min(11.0, 11.0 * (width - 0.2) / (0.1 * max(1, len(title))))
    figure.text(x, 1 - 0.1 / height, title, size=fitted, weight="bold", color=INK, va="top")
    figure.text(x, 1 - 0.34 / height, "\n".join(lines), size=8, color=GREY, va="top")


def _legend(figure: Figure, entries: Mapping[str, Artist]) -> int:
    """In as few rows as fit the width; returns their number."""
    texts, room = list(entries), figure.get_figwidth() - 0.2
    rows = next(rows for rows in range(1, len(texts) + 1) if rows == len(texts) or _legend_width(texts, rows) <= room)
    figure.legend(
        list(entries.values()),
        texts,
        loc="outside lower center",
        ncols=-(-len(texts) // rows),
        fontsize=8,
        frameon=False,
        labelcolor=INK,
        handlelength=3.0,
        columnspacing=1.4,
    )
    return rows


def _legend_width(texts: Sequence[str], rows: int) -> float:
    """Inches, of columns filled evenly from the left, as matplotlib does."""
    full, more = divmod(len(texts), columns := -(-len(texts) // rows))
    lengths = [full + 1] * more + [full] * (columns - more)
    ends = list(itertools.accumulate(lengths))
    return sum(CHARACTER * max(map(len, texts[end - n : end])) + 0.61 for end, n in zip(ends, lengths, strict=True))


def grid_shape(count: int) -> tuple[int, int]:
    """Rows and columns of a grid of panels, three wide or, beyond nine, four."""
    columns = count if count <= 3 else 2 if count == 4 else 3 if count <= 9 else 4
    return -(-count // columns), columns


def dress(axes: Axes) -> None:
    """The light frame and grid of every panel."""
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(which="both", color=GREY, labelcolor=INK, labelsize=8)


# --- axes ---


def from_zero(axes: Axes) -> None:
    """The axis of values from 0 on, with room above the highest for all of its marker."""
    low, high = axes.get_ylim()  # a twentieth of their range beyond the values
    axes.set_ylim(0, high + 0.05 * low)


def size_axis(axes: Axes, sizes: Collection[int], words: Sequence[str] = ()) -> dict[str, float]:
    """log2, from the smallest to the largest size, with as many ticks as fit: 1 KiB … 1 GiB.

    What was asked for in `words` (`none`) stands apart on the left; returned are the places of the words.
    """
    axes.set_xscale("log", base=2)
    apart = 2 ** max(1.0, 0.15 * math.log2(max(sizes) / min(sizes)))
    places = {word: min(sizes) / apart**number for number, word in enumerate(words, 1)}
    axes.set_xlim(min([min(sizes), *places.values()]) / 2**0.5, max(sizes) * 2**0.5)
    said = {place: word for word, place in places.items()}
    ticks = [*said, *_size_ticks(sorted(set(sizes)), _room(axes, TICK))]
    _fixed(axes, ticks, lambda value: said.get(value) or short_size(round(value)))
    axes.set_xlabel("size", size=9, color=INK)
    return places


def _size_ticks(sizes: list[int], room: float) -> list[int]:
    """The sizes themselves where they fit or are no powers of two, and enough remain; else powers of two."""
    kept = _thinned(sizes, room)
    if len(kept) == len(sizes) or (len(kept) > 2 and any(size & (size - 1) for size in sizes)):
        return kept
    low, high = math.floor(math.log2(sizes[0])), math.ceil(math.log2(sizes[-1]))
    every = next((step for step in (1, 2, 3, 4, 5, 10) if step >= room), 20)
    return [2**power for power in range(low, high + 1) if power % every == 0]


def _thinned(values: Iterable[int], room: float) -> list[int]:
    """Keep the first value, and then each that is `room` octaves above the one kept before."""
    kept: list[int] = []
    for value in values:
        if not kept or math.log2(value / kept[-1]) > room - 1e-9:
            kept.append(value)
    return kept


def _room(axes: Axes, inches: float) -> float:
    """Convert inches to octaves of the x axis."""
    place, (low, high) = axes.get_subplotspec(), axes.get_xlim()
    across = place.get_gridspec().ncols if place else 1
    width = axes.figure.get_figwidth() / across - 0.5  # type: ignore[union-attr]  # ours are no figures in figures
    return inches * math.log2(high / low) / width


def rank_axis(axes: Axes, ranks: Collection[int]) -> None:
    """log2, with the counts that occur as ticks where they are few, as many as fit."""
    ticks = sorted(set(ranks))
    if len(ticks) > 8:
        ticks = [2**power for power in range(33) if ticks[0] <= 2**power <= ticks[-1]] or ticks[:1]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(ranks) / 2**0.25, max(ranks) * 2**0.25)
    _fixed(axes, _thinned(ticks, _room(axes, CHARACTER * (len(f"{ticks[-1]:,}") + 1))), lambda rank: f"{rank:,}")
    axes.set_xlabel("ranks", size=9, color=INK)


def _fixed(axes: Axes, ticks: Sequence[float], text: Callable[[float], str]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def time_axis(axes: Axes, values: Iterable[float], along: Literal["x", "y"] = "y") -> None:
    """log10, ticks at 1, 2, 5 or at decades, each with its unit."""
    low, high = _roomy(list(values))
    wide = high / low > (2000 if along == "y" else 50)  # labels that stand beside each other need more room
    axis = axes.yaxis if along == "y" else axes.xaxis
    axes.set(**{f"{along}scale": "log", f"{along}lim": (low, high)})
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_label_text("time", size=9, color=INK)


def time_text(time_us: float) -> str:
    """A time of so many microseconds as one reads it: 20 µs, 1.5 ms, 2 s."""
    return format_duration(time_us * 1e6).replace("us", "µs")


def _roomy(values: list[float]) -> tuple[float, float]:
    """Limits a little outside the values, and at least a factor of four apart, so that noise does not fill the axis."""
    room = 1.1 * (max(values) / min(values)) ** 0.04
    low, high = min(values) / room, max(values) * room
    widen = max(1.0, (4 * low / high) ** 0.5)
    return low / widen, high * widen


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
