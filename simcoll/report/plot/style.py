"""Style of all plots: looks and widths of lines, frames with a headline, axes of sizes, durations and ranks."""

from __future__ import annotations

import math
import operator
import textwrap
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from simcoll.config.groups import grouped
from simcoll.prediction.result_rows import swept
from simcoll.scenario.profile import titled
from simcoll.units import format_duration, short_size

INK: Final = "#222222"
GREY: Final = "#777777"
FAINT: Final = "#dddddd"

Marker = str | tuple[int, Literal[1], int]  # matplotlib's name, or (points, 1, angle) of a star


class Look(NamedTuple):
    """Colour and marker of an algorithm, in every plot."""

    color: str
    marker: Marker


# Related algorithms have similar colours and different markers; those of one collective differ in both.
_KNOWN: Final = {
    "auto": Look("#DD1C1C", "o"),
    "ring": Look("#332288", "o"),
    "bidirectional_ring": Look("#4477AA", "H"),
    "ring_unchunked": Look("#88CCEE", "h"),
    "chain": Look("#225555", "s"),
    "tree": Look("#117733", "^"),
    "double_binary_tree": Look("#44AA99", "v"),
    "chain_tree": Look("#66AA55", "P"),
    "binomial": Look("#228833", "<"),
    "ring_by_dimension": Look("#6699CC", (8, 1, 0)),
    "hierarchical": Look("#882255", "D"),
    "hierarchical_leader": Look("#DD88AA", "d"),
    "hierarchical_tree": Look("#EE7733", ">"),
    "recursive_doubling": Look("#AA4499", "s"),
    "recursive_multiplying": Look("#771155", (4, 1, 0)),
    "swing": Look("#BB4400", (3, 1, 0)),
    "halving_doubling": Look("#9988DD", "p"),
    "recursive_halving": Look("#EE3377", "H"),
    "dissemination": Look("#9955AA", "8"),
    "pat": Look("#0099AA", "^"),
    "bruck": Look("#33BBEE", "d"),
    "reduce_scatter_gather": Look("#AA3377", "D"),
    "scatter_allgather": Look("#CC7722", "p"),
    "direct": Look("#999933", "P"),
    "all_pairs": Look("#663333", "<"),
    "two_shot": Look("#AA7744", (6, 1, 0)),
    "naive": Look("#777777", "X"),
    "nvls": Look("#DDAA33", "*"),
    "nvls_tree": Look("#997700", "8"),
}
LIGHTEST: Final = 0.88  # of viridis: lighter colours cannot be seen on white
_OTHERS: Final = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE7733", "#0077BB", "#BBBB77")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "<", ">", "d", "*")


def look(algorithm: str) -> Look:
    """Return an algorithm's colour and marker; a variant, `name(option=…)` or `name, LL`, has another shade and marker.

    >>> look("ring"), look("ring, LL").color != look("ring").color
    (Look(color='#332288', marker='o'), True)
    """
    spec = algorithm.replace(" ", "")
    name = spec.split("(")[0].split(",")[0]
    base = _KNOWN.get(name) or _hashed(name)
    if spec == name:
        return base
    number = zlib.crc32(spec.encode())
    return variant(base, number // 1000, number)


def looks_of(names: Sequence[str], ordered: bool = False) -> dict[str, Look]:
    """Return each name's look: an algorithm's own, or the next free one; `ordered` names go from dark to light."""
    if ordered and len(names) > 2:
        shades = colormaps["viridis"]
        steps = (LIGHTEST * number / (len(names) - 1) for number in range(len(names)))
        return {
            name: Look(to_hex(shades(step)), _MARKERS[number % len(_MARKERS)])
            for number, (name, step) in enumerate(zip(names, steps, strict=True))
        }
    unknown = [name for name in names if name.split("(")[0].split(",")[0] not in _KNOWN]
    if len(unknown) > len(_OTHERS):
        return {name: look(name) for name in names}
    taken = {look(name).marker for name in names if name not in unknown}
    markers = sorted(_MARKERS, key=taken.__contains__)  # first the markers that no known name uses
    free = dict(zip(unknown, map(Look, _OTHERS, markers), strict=False))
    return {name: free.get(name) or look(name) for name in names}


def variant(base: Look, shade: int, marker: int) -> Look:
    """Return a look in one of five shades, with one of the other markers."""
    others = [each for each in _MARKERS if each != base.marker]
    return Look(_shade(base.color, shade), others[marker % len(others)])


def _hashed(name: str) -> Look:
    number = zlib.crc32(name.encode())
    return Look(_OTHERS[number % len(_OTHERS)], _MARKERS[number // 1000 % len(_MARKERS)])


def _shade(color: str, number: int) -> str:
    """Return the colour in one of five tints, or shades if it is light: away from black and from white."""
    dark = contrast(color) == "white"
    toward, amount = 1.0 if dark else 0.0, 0.14 + 0.09 * (number % 5)
    red, green, blue = (part + (toward - part) * amount for part in to_rgb(color))
    return to_hex((red, green, blue))


def contrast(color: str) -> str:
    """Return black or white, whichever reads better on `color`."""
    red, green, blue = to_rgb(color)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


CHARACTER: Final = 0.061  # inches: mean width of a character at 8 points
MAX_PANELS: Final = 16
HALO: Final = 1.6  # points by which a line is wider than a line drawn on it
MOST_HALOS: Final = 3  # halos of the widest of equal lines: a broader one would look like a bar
MAX_BANDS: Final = 3  # lines with bands around them; with more lines each point has a bar
DECADES: Final = 2000  # ratio of a time axis' ends beyond which ticks are at decades

# Settings that change the prediction of one algorithm; labels name those in which rows differ.
COMPETING: Final = ("executor", "protocol")
SETTINGS: Final = ("topology", "nodes", "profile", "dtype", "op", "root", "in_place", "seed", "scenario")

# Confidence of rows based on a fit to measured runs.
FITTED: Final = frozenset({"calibrated", "interpolated", "extrapolated"})

Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: Final[tuple[Dash, ...]] = ("-", (0, (4.5, 1.3)), (0, (1.2, 1.1)), (0, (4.5, 1.2, 1.2, 1.2)))

PlotRow = Mapping[str, Any]  # a ResultRow, or another record with the picture's columns


# --- rows ---


def drawable(rows: Iterable[PlotRow]) -> list[PlotRow]:
    """Return the rows that have a time; raises ValueError if there is none."""
    timed = [row for row in rows if row.get("status", "ok") == "ok" and (row["time_us"] or 0) > 0]
    if not timed:
        raise ValueError("no row has a time to draw; the column `status` has the reasons")
    return timed


def as_asked(rows: Iterable[PlotRow]) -> list[PlotRow]:
    """Return rows labelled with the requested algorithm, so that `auto` is one line; column `ran` is the one that ran.

    If some rows of a picture have a measured basis, rows without one get `trust` = `modelled`.
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
    """Return the columns that distinguish lines, with `trust` if some rows are modelled; for rows of `as_asked`."""
    return [*columns, *(["trust"] * any(row["trust"] for row in rows))]


def dash_of(row: PlotRow) -> Dash:
    """Return the dash of a row of `as_asked`: solid, or the first dash if the row is modelled and others are not."""
    return DASHES[bool(row["trust"])]


def separating(rows: Sequence[PlotRow], columns: Iterable[str], point: Sequence[str]) -> list[str]:
    """Return the columns that distinguish rows with equal values in the columns `point`, without columns that add
    nothing to earlier ones."""
    chosen: list[str] = []
    for name in columns:
        values: dict[tuple[Any, ...], Any] = {}
        key = (*point, *chosen)
        if any(row.get(name) != values.setdefault(tuple(map(row.get, key)), row.get(name)) for row in rows):
            chosen.append(name)
    return chosen


def telling(rows: Sequence[PlotRow], columns: Iterable[str], competing: Sequence[str] = ()) -> list[str]:
    """Return the columns and swept keys that differ between rows of one algorithm and one `competing` value at a point.

    Swept keys are compared across algorithms, too: `auto` may choose another algorithm for each value.
    """
    point = ("collective", "ranks", "size_bytes")
    chosen = separating(rows, columns, (*point, "algorithm", *competing))
    return chosen + separating(rows, swept(rows), (*point, *chosen))


def label(row: PlotRow, columns: Iterable[str]) -> str:
    """Return a line's label: the algorithm, and the settings in which the line differs from others."""
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
    """Return the last part of a dotted name, or all of it if another name has the same last part."""
    last = name.rsplit(".", 1)[-1]
    return name if any(column != name and column.rsplit(".", 1)[-1] == last for column in columns) else last


def stroke(color: str, marker: Marker, dash: Dash) -> dict[str, Any]:
    """Return the properties of a line except its width. A dashed line has white gaps and markers, so that it is visible
    on a wider line of its colour."""
    style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": dash}
    return style if dash == "-" else {**style, "gapcolor": "white", "markerfacecolor": "white"}


def halos(curves: Sequence[Mapping[Any, float]]) -> list[float]:
    """Return by how many points each line is drawn wider, so that lines drawn above it do not hide it.

    Lines coincide if two neighbours, or their only point, are within a percent. `curves` are in order of drawing.
    """
    above = [sum(_coincide(curve, other) for other in curves[number:]) for number, curve in enumerate(curves, 1)]
    return [HALO * min(MOST_HALOS, count) for count in above]


def _coincide(first: Mapping[Any, float], second: Mapping[Any, float]) -> bool:
    same = [math.isclose(first[at], second[at], rel_tol=0.01) for at in sorted(first.keys() & second.keys())]
    return any(map(operator.and_, same, same[1:])) or same == [True]


def settings(rows: Sequence[PlotRow]) -> str:
    """Return topology, profile and sharing of rows, for the line below the title."""
    parts = []
    for name, text in (("topology", "{}"), ("profile", "profile {}"), ("sharing", "{} sharing")):
        values = list(dict.fromkeys(str(row[name]) for row in rows if row.get(name)))
        values = [titled(value) for value in values] if name == "profile" else values
        if values:
            parts.append(text.format(", ".join(values[:3]) + (", …" if len(values) > 3 else "")))
    return "  ·  ".join(parts)


def interval_entry(share: int, form: Literal["band", "bars", "whisker"]) -> dict[str, Artist]:
    """Return the legend's entry for intervals of `share` percent, drawn as in the plot."""
    swatch = {
        "band": Patch(facecolor=GREY, alpha=0.3),
        "bars": Line2D([], [], color=GREY, linestyle="none", marker="|", markersize=9),
        "whisker": Line2D([], [], color=INK, linewidth=1.0),
    }
    return {f"{share} % interval": swatch[form]}


# --- lines ---


class Mark(NamedTuple):
    """A point of a line, or a bar: its x, its value, the ends of its interval (None without one), and whether it is
    modelled while others are not."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    modelled: bool = False


def draw_lines(
    axes: Axes, series: Mapping[str, Sequence[Mark]], styles: Mapping[str, Mapping[str, Any]], thin: bool
) -> None:
    """Draw lines with their intervals: a band, or with `thin` a bar at each point."""
    wider = halos([{mark.x: mark.y for mark in marks} for marks in series.values()])
    for (name, marks), more in zip(series.items(), wider, strict=True):
        style, color = {**styles[name], "label": name}, styles[name]["color"]
        x, y = [mark.x for mark in marks], [mark.y for mark in marks]
        axes.plot(x, y, linewidth=1.6 + more, markersize=4.5 + more, **style)
        sure = [(mark.x, mark.low, mark.high) for mark in marks if mark.low is not None and mark.high is not None]
        at, low, high = zip(*sure, strict=True) if sure else ((), (), ())
        if thin:
            axes.vlines(at, low, high, color=color, alpha=0.5, linewidth=1.0, zorder=1.2)
        elif sure:
            axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0, zorder=1.2)


def legend_lines(styles: Mapping[str, Mapping[str, Any]]) -> dict[str, Artist]:
    """Return the legend's entries of lines."""
    return {name: Line2D([], [], linewidth=1.6, markersize=4.5, **style) for name, style in styles.items()}


# --- frames ---


def frame(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches; `finish` adds headline and legend."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def finish(figure: Figure, title: str, subtitle: str, entries: Mapping[str, Artist]) -> None:
    """Add a headline above the axes and a legend below them; the figure grows by their height."""
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
    """Draw the legend in a row, or in columns as wide as its longest text; return the number of its rows."""
    room, widths = figure.get_figwidth() - 0.2, [CHARACTER * len(text) + 0.61 for text in entries]
    columns = len(entries) if sum(widths) <= room else max(1, int(room / max(widths)))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=columns,
        fontsize=8,
        frameon=False,
        labelcolor=INK,
        handlelength=3.0,
        columnspacing=1.4,
    )
    return -(-len(entries) // columns)


def grid_shape(count: int) -> tuple[int, int]:
    """Return rows and columns of a grid of panels, three wide or, beyond nine, four."""
    columns = count if count <= 3 else 2 if count == 4 else 3 if count <= 9 else 4
    return -(-count // columns), columns


def dress(axes: Axes) -> None:
    """Draw the light frame and grid of every panel."""
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(which="both", color=GREY, labelcolor=INK, labelsize=8)


# --- axes ---


def from_zero(axes: Axes) -> None:
    """Start the axis of values at 0, with room above the highest value for its marker."""
    low, high = axes.get_ylim()  # a twentieth of their range beyond the values
    axes.set_ylim(0, high + 0.05 * low)


def name_axis(axis: Axis, name: str) -> None:
    """Name an axis."""
    axis.set_label_text(name, size=9, color=INK)


def size_axis(axes: Axes, sizes: Collection[int], words: Sequence[str] = ()) -> dict[str, float]:
    """Set up a log2 axis of sizes with as many ticks as fit: 1 KiB … 1 GiB.

    `words` in place of sizes (`none`) get places on the left; return their places.
    """
    apart = 2 ** max(1.0, 0.15 * math.log2(max(sizes) / min(sizes)))
    places = {word: min(sizes) / apart**number for number, word in enumerate(words, 1)}
    log2_axis(axes, {place: word for word, place in places.items()} | {size: short_size(size) for size in sizes}, 0.5)
    name_axis(axes.xaxis, "size")
    return places


def rank_axis(axes: Axes, ranks: Collection[int]) -> None:
    """Set up a log2 axis of numbers of ranks with as many ticks as fit."""
    log2_axis(axes, {count: f"{count:,}" for count in ranks})
    name_axis(axes.xaxis, "ranks")


def log2_axis(axes: Axes, ticks: Mapping[float, str], margin: float = 0.25) -> None:
    """Make the x axis log2, `margin` octaves longer than its ticks on either side, with as many ticks as fit."""
    low, high = min(ticks) / 2**margin, max(ticks) * 2**margin
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    place = axes.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    width = axes.figure.get_figwidth() / columns - 0.5  # type: ignore[union-attr]  # ours are no figures in figures
    room = CHARACTER * (max(map(len, ticks.values())) + 2) * math.log2(high / low) / width  # octaves
    kept: list[float] = []
    for value in sorted(ticks):
        if not kept or math.log2(value / kept[-1]) > room - 1e-9:
            kept.append(value)
    axes.set_xticks(kept, [ticks[value] for value in kept])
    axes.xaxis.set_minor_locator(NullLocator())


def time_ticks(axis: Axis) -> None:
    """Write the ticks of a linear axis of microseconds as times."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value) if value else "0"))


def time_axis(axes: Axes, values: Iterable[float]) -> None:
    """Make the y axis of times log10, with ticks at 1, 2, 5 or at decades, each with its unit."""
    low, high = _roomy(list(values))
    axes.set(yscale="log", ylim=(low, high))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > DECADES else (1.0, 2.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    name_axis(axes.yaxis, "time")


def time_text(time_us: float) -> str:
    """Return microseconds as people read them: 20 µs, 1.5 ms, 2 s."""
    return format_duration(time_us * 1e6).replace("us", "µs")


def _roomy(values: list[float]) -> tuple[float, float]:
    """Return limits around the values, at least a factor of four apart, so that noise does not fill the axis."""
    room = 1.1 * (max(values) / min(values)) ** 0.04
    low, high = min(values) / room, max(values) * room
    widen = max(1.0, (4 * low / high) ** 0.5)
    return low / widen, high * widen


@dataclass(frozen=True)
class Panel:
    """One set of axes: its title and its rows, predicted and measured."""

    title: str
    rows: Sequence[PlotRow]
    measured: Sequence[PlotRow]


def by_columns(
    rows: Sequence[PlotRow], measured: Sequence[PlotRow], key: Sequence[str], title: Callable[[PlotRow], str]
) -> list[Panel]:
    """Return rows by the columns of `key`, in order of appearance; measured points go to every panel they fit."""

    def values(row: PlotRow) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in key)

    return [
        Panel(title(group[0]), group, [point for point in measured if _fits(values(point), of_group)])
        for of_group, group in grouped(rows, values).items()
    ]


def _fits(said: tuple[Any, ...], key: tuple[Any, ...]) -> bool:
    return all(one in (None, other) for one, other in zip(said, key, strict=True))


def grid_of(panels: Sequence[Panel], *, strip: bool = False, one_scale: bool = True) -> tuple[Figure, list[Axes]]:
    """Return the figure and its axes in the order of the panels; with `strip`, each is followed by axes below it.

    All axes share x, and with `one_scale` also y.
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
    """Dress the panels; axes are named only where no panel is below, or to the left."""
    places = [axes.get_subplotspec() for axes in grid]
    lowest = {place.colspan.start: place.rowspan.start for place in places if place}
    for axes, place in zip(grid, places, strict=True):
        dress(axes)
        if place and lowest[place.colspan.start] == place.rowspan.start:  # nothing below: the last row may be short
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
    """Label the outer axes, add a headline, and a legend with algorithms first, then measured points and bounds."""
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
