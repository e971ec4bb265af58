"""What all plots share: an algorithm's colour and marker, frames with a headline, axes of sizes, durations and ranks.

Colours are Paul Tol's "muted" and "bright" schemes, told apart by colour-blind readers ("Colour schemes", SRON
technical note SRON/EPS/TN/09-002).
"""

from __future__ import annotations

import itertools
import math
import textwrap
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from simcoll.units import format_size

Row = Mapping[str, Any]  # of results.csv, numbers as numbers

INK: Final = "#222222"
GREY: Final = "#777777"
FAINT: Final = "#dddddd"
CHARACTER: Final = 0.061  # inches, of the text at 8 points, on average
MAX_PANELS: Final = 9

# What changes the prediction of one and the same algorithm; of two such rows at one point, the label must tell.
COMPETING: Final = ("protocol",)
SETTINGS: Final = ("topology", "nodes", "profile", "sharing", "dtype", "op", "root", "in_place", "seed", "scenario")


class Look(NamedTuple):
    """How an algorithm is drawn, in every plot."""

    color: str
    marker: str


# Members of a family are neighbours in colour and differ in marker; those that share a collective differ in both.
_KNOWN: Final = {
    "ring": Look("#332288", "o"),
    "bidirectional_ring": Look("#4477AA", "H"),
    "ring_unchunked": Look("#88CCEE", "h"),
    "chain": Look("#4477AA", "h"),
    "tree": Look("#117733", "^"),
    "double_binary_tree": Look("#44AA99", "v"),
    "binomial": Look("#228833", "<"),
    "hierarchical": Look("#882255", "D"),
    "hierarchical_leader": Look("#CC6677", "d"),
    "hierarchical_tree": Look("#EE7733", ">"),
    "recursive_doubling": Look("#AA4499", "s"),
    "halving_doubling": Look("#9988DD", "p"),
    "recursive_halving": Look("#AA3377", "H"),
    "dissemination": Look("#9955AA", "8"),
    "bruck": Look("#66CCEE", "p"),
    "reduce_scatter_gather": Look("#AA3377", "D"),
    "scatter_allgather": Look("#AA3377", "D"),
    "direct": Look("#999933", "P"),
    "all_pairs": Look("#999933", "P"),
    "naive": Look("#777777", "X"),
    "nvls": Look("#DDAA33", "*"),
    "nvls_tree": Look("#997700", "8"),
}
_OTHERS: Final = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE7733", "#0077BB", "#BBBB77")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "<", ">", "d", "*")


def look(algorithm: str) -> Look:
    """Colour and marker of an algorithm; a variant, `name(option=…)` or `name, LL`, has its own shade and marker.

    >>> look("ring"), look("ring, LL").color != look("ring").color
    (Look(color='#332288', marker='o'), True)
    """
    spec = algorithm.replace(" ", "")
    name = spec.split("(")[0].split(",")[0]
    base = _KNOWN.get(name) or _hashed(name)
    if spec == name:
        return base
    number = zlib.crc32(spec.encode())
    others = [marker for marker in _MARKERS if marker != base.marker]
    return Look(_shade(base.color, number // 1000 % 5), others[number % len(others)])


def _hashed(name: str) -> Look:
    number = zlib.crc32(name.encode())
    return Look(_OTHERS[number % len(_OTHERS)], _MARKERS[number // 1000 % len(_MARKERS)])


def _shade(color: str, number: int) -> str:
    """The same colour in one of five tints, or shades where it is light: away from black and from white."""
    dark = contrast(color) == "white"
    toward, amount = 1.0 if dark else 0.0, 0.14 + 0.09 * (number % 5)
    red, green, blue = (part + (toward - part) * amount for part in to_rgb(color))
    return to_hex((red, green, blue))


def contrast(color: str) -> str:
    """Black or white, whichever reads better on `color`."""
    red, green, blue = to_rgb(color)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


# --- rows ---


def drawable(rows: Iterable[Row]) -> list[Row]:
    """The rows that have a time; raises ValueError if there is none."""
    found = [row for row in rows if row.get("status", "ok") == "ok" and (row["time_us"] or 0) > 0]
    if not found:
        raise ValueError("no row has a time to draw; see the column status for the reasons")
    return found


def separating(rows: Sequence[Row], columns: Iterable[str], point: Sequence[str]) -> list[str]:
    """Those columns in which two rows differ that agree in all of `point`."""
    seen: dict[tuple[Any, ...], Row] = {}
    found: set[str] = set()
    columns = list(columns)
    for row in rows:
        first = seen.setdefault(tuple(row.get(name) for name in point), row)
        found.update(name for name in columns if row.get(name) != first.get(name))
    return [name for name in columns if name in found]


def label(row: Row, columns: Iterable[str]) -> str:
    """The algorithm and what sets its series apart."""
    parts = [str(row.get("algorithm") or "")]
    for name in columns:
        value = row.get(name)
        if name == "protocol":
            parts += [str(value)] if value not in (None, "", "none") else []
        else:
            parts.append(f"{name.replace('_', ' ')} {value}" if isinstance(value, int) else str(value))
    return ", ".join(part for part in parts if part)


def settings(rows: Sequence[Row]) -> str:
    """Topology, profile and sharing of some rows, for the line below the title."""
    parts = []
    for name, text in (("topology", "{}"), ("profile", "profile {}"), ("sharing", "{} sharing")):
        values = list(dict.fromkeys(str(row[name]) for row in rows if row.get(name)))
        if values:
            parts.append(text.format(", ".join(values[:3]) + (", …" if len(values) > 3 else "")))
    return "  ·  ".join(parts)


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
    height += head + 0.17 * rows
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
        handlelength=2.4,
        columnspacing=1.4,
    )
    return rows


def _legend_width(texts: Sequence[str], rows: int) -> float:
    """Inches, of columns filled evenly from the left, as matplotlib does."""
    full, more = divmod(len(texts), columns := -(-len(texts) // rows))
    lengths = [full + 1] * more + [full] * (columns - more)
    ends = list(itertools.accumulate(lengths))
    return sum(CHARACTER * max(map(len, texts[end - n : end])) + 0.55 for end, n in zip(ends, lengths, strict=True))


def grid_shape(count: int) -> tuple[int, int]:
    """Rows and columns of a grid of panels, at most three wide."""
    columns = count if count <= 3 else 2 if count == 4 else 3
    return -(-count // columns), columns


def dress(axes: Axes) -> None:
    """The light frame and grid of every panel."""
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(which="both", color=GREY, labelcolor=INK, labelsize=8)


# --- axes ---


def size_axis(axes: Axes, sizes: Collection[int], most: int = 8) -> None:
    """log2, from the smallest to the largest size, ticks at powers of two: 1 KiB … 1 GiB."""
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    every = next((step for step in (1, 2, 5) if (high - low) // step < most), 10)
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) / 2**0.5, max(sizes) * 2**0.5)
    ticks = [2**power for power in range(low, high + 1) if power % every == 0]
    _fixed(axes, ticks, format_size)
    axes.set_xlabel("size", size=9, color=INK)


def rank_axis(axes: Axes, ranks: Collection[int]) -> None:
    """log2, with the counts that occur as ticks where they are few."""
    ticks = sorted(set(ranks))
    if len(ticks) > 8:
        ticks = [2**power for power in range(33) if ticks[0] <= 2**power <= ticks[-1]]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(ranks) / 2**0.25, max(ranks) * 2**0.25)
    _fixed(axes, ticks, lambda rank: f"{rank:,}")
    axes.set_xlabel("ranks", size=9, color=INK)


def _fixed(axes: Axes, ticks: Sequence[int], text: Any) -> None:
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(round(value))))
    axes.xaxis.set_minor_locator(NullLocator())


def time_axis(axes: Axes, values: Iterable[float]) -> None:
    """log10, ticks at 1, 2, 5 or at decades, as plain numbers of microseconds."""
    low, high = _roomy(list(values))
    wide = high / low > 2000
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("time (µs)", size=9, color=INK)


def _roomy(values: list[float]) -> tuple[float, float]:
    """Limits a little outside the values, and at least a factor of four apart, so that noise does not fill the axis."""
    room = 1.1 * (max(values) / min(values)) ** 0.04
    low, high = min(values) / room, max(values) * room
    widen = max(1.0, (4 * low / high) ** 0.5)
    return low / widen, high * widen
