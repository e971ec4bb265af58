"""The style of all plots: looks of lines, frames with a headline, grids of panels, axes of sizes and durations."""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from simcoll.units import format_duration, short_size

INK: Final = "#222222"
GREY: Final = "#777777"
FAINT: Final = "#dddddd"

Marker = str | tuple[int, Literal[1], int]  # matplotlib's name, or (points, 1, angle) of a star


class Look(NamedTuple):
    """The colour and marker of an algorithm, the same in every plot."""

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
    "synthesized": Look("#00775A", (5, 1, 0)),
    "two_hop": Look("#557799", "X"),
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
    """Return each name's look: that of its algorithm, or the next free one; `ordered` names go from dark to light."""
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
    """Return the look `base` in one of five shades, and with another marker."""
    others = [each for each in _MARKERS if each != base.marker]
    return Look(_shade(base.color, shade), others[marker % len(others)])


def _hashed(name: str) -> Look:
    number = zlib.crc32(name.encode())
    return Look(_OTHERS[number % len(_OTHERS)], _MARKERS[number // 1000 % len(_MARKERS)])


def _shade(color: str, number: int) -> str:
    """Return a colour in shade 0 … 4: light colours are darkened, others lightened, never to black or white."""
    dark = contrast(color) == "white"
    toward, amount = 1.0 if dark else 0.0, 0.14 + 0.09 * (number % 5)
    red, green, blue = (part + (toward - part) * amount for part in to_rgb(color))
    return to_hex((red, green, blue))


def contrast(color: str) -> str:
    """Return black or white: whichever is easier to read on the background `color`."""
    red, green, blue = to_rgb(color)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


CHARACTER: Final = 0.061  # inches: mean width of a character at 8 points
MAX_PANELS: Final = 16
DECADES: Final = 2000  # ratio of a time axis' ends beyond which ticks are at decades

Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: Final[tuple[Dash, ...]] = ("-", (0, (4.5, 1.3)), (0, (1.2, 1.1)), (0, (4.5, 1.2, 1.2, 1.2)))


def stroke(color: str, marker: Marker, dash: Dash) -> dict[str, Any]:
    """Return matplotlib's properties of a line, except its width. A dashed line gets white gaps and markers, so that it
    is visible on a wider line of its colour."""
    style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": dash}
    return style if dash == "-" else {**style, "gapcolor": "white", "markerfacecolor": "white"}


# --- frames ---


def frame(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches; `finish` later adds headline and legend."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def finish(figure: Figure, title: str, subtitle: str, entries: Mapping[str, Artist]) -> None:
    """Add a headline above the axes and a legend below them; the figure grows by the height of both."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(subtitle, int((width - 0.2) / CHARACTER))
    head = 0.34 + 0.14 * len(lines) + 0.06
    rows = _legend(figure, entries) if entries else 0
    height = math.ceil((height + head + 0.17 * rows) * 150) / 150  # whole pixels
    figure.set_size_inches(width, height)
    figure.set_layout_engine(
        ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04, rect=(0, 0, 1, 1 - head / height))
    )
    for text in (text for axes in figure.axes for text in axes.texts):
        text.set_in_layout(False)  # they lie inside their axes, and measuring them takes long
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
    """Return the number of rows and columns of a grid for `count` panels: three columns, or four beyond nine panels."""
    columns = count if count <= 3 else 2 if count == 4 else 3 if count <= 9 else 4
    return -(-count // columns), columns


def dress(axes: Axes) -> None:
    """Draw the light frame and grid that every panel has."""
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(which="both", color=GREY, labelcolor=INK, labelsize=8)


# --- axes ---


def from_zero(axes: Axes) -> None:
    """Start the y axis at 0, and leave room above the highest value for its marker."""
    low, high = axes.get_ylim()  # a twentieth of their range beyond the values
    axes.set_ylim(0, high + 0.05 * low)


def name_axis(axis: Axis, name: str) -> None:
    """Name an axis."""
    axis.set_label_text(name, size=9, color=INK)


def size_axis(axes: Axes, sizes: Collection[int], words: Sequence[str] = ()) -> dict[str, float]:
    """Make the x axis a log2 axis of sizes (bytes), with as many ticks as fit: 1 KiB … 1 GiB.

    `words` that stand in place of sizes (`none`) get places on the left; return the x of each.
    """
    apart = 2 ** max(1.0, 0.15 * math.log2(max(sizes) / min(sizes)))
    places = {word: min(sizes) / apart**number for number, word in enumerate(words, 1)}
    log2_axis(axes, {place: word for word, place in places.items()} | {size: short_size(size) for size in sizes}, 0.5)
    name_axis(axes.xaxis, "size")
    return places


def log2_axis(axes: Axes, ticks: Mapping[float, str], margin: float = 0.25) -> None:
    """Make the x axis log2, `margin` octaves longer than its `ticks` (value → text) at both ends, with few enough
    ticks."""
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
    """Write the ticks of a linear axis of microseconds as times with units."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value) if value else "0"))


def time_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make the y axis log10 for times (us), with ticks at 1, 2, 5 or at decades, each with its unit.

    The axis spans at least a factor of four, so that noise does not fill it.
    """
    room = 1.1 * (max(values) / min(values)) ** 0.04
    low, high = min(values) / room, max(values) * room
    widen = max(1.0, (4 * low / high) ** 0.5)
    low, high = low / widen, high * widen
    axes.set(yscale="log", ylim=(low, high))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > DECADES else (1.0, 2.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    name_axis(axes.yaxis, "time")


def time_text(time_us: float) -> str:
    """Return microseconds as people read them: 20 µs, 1.5 ms, 2 s."""
    return format_duration(time_us * 1e6).replace("us", "µs")


# --- panels ---


def grid_of(titles: Sequence[str], *, strip: bool = False, one_scale: bool = True) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, a panel for each title; with `strip`, each panel is followed by axes below it.

    A single panel shows no title. All axes share x, and with `one_scale` also y. Titles after the first 16 are left
    out.
    """
    shown = titles[:MAX_PANELS]
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
    for i, title in enumerate(shown if len(titles) > 1 else ()):
        table[places[i * deep]].set_title(title, size=9, color=INK, loc="left")
    return figure, [table[place] for place in places]


def outer_labels(grid: Sequence[Axes]) -> None:
    """Dress the panels, and name only the axes at the left and at the bottom of the grid."""
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
