"""A quantity over any column or swept key of the results: lines, or bars where the key has no numbers or one value.

Rows are mappings with the columns of results.csv; only those whose status is ok are drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simcoll import units
from simcoll.config.groups import grouped
from simcoll.errors import InputError, did_you_mean
from simcoll.named_tuple import NamedTuple
from simcoll.prediction.result_rows import COLUMNS, UNITS, swept
from simcoll.report.plot.panels import Panel, grid_of
from simcoll.report.plot.style import (
    GREY,
    INK,
    MAX_PANELS,
    PlotRow,
    as_asked,
    dress,
    finish,
    look,
    settings,
    size_axis,
    time_axis,
    time_text,
)
from simcoll.units import short_size

ALIASES: Final = {  # as one says it: the column
    "size": "size_bytes",
    "time": "time_us",
    "busbw": "busbw_GBps",
    "algbw": "algbw_GBps",
    "step": "step_us",
    "topology.nodes": "nodes",
    "topology.system": "topology",
    "topology.hosts": "ranks",
    "workload.algorithm": "algorithm",
}
MAX_BANDS: Final = 3  # lines with a band around them; of more each point has a bar
WIDE: Final = 8  # numbers that differ by this factor stand on a logarithmic axis
_ENDS: Final = {"time_us": ("low_us", "high_us")} | {
    f"time_us_p{p}": (f"time_us_p{p}_low", f"time_us_p{p}_high") for p in (50, 95, 99)
}
_WORDS: Final = {
    "time_us": "Time",
    "busbw_GBps": "Bus bandwidth",
    "algbw_GBps": "Bandwidth",
    "step_us": "Step",
    "size_bytes": "size",
}


Row = TypeVar("Row", bound=PlotRow)


class Mark(NamedTuple):
    """A point of a line: where it stands, its value, and the ends of its interval (None without one)."""

    x: float
    y: float
    low: float | None
    high: float | None


def column_of(rows: Sequence[PlotRow], key: str) -> str:
    """The column that a key means: a column, a swept key, its last part, or a word for it. Raises InputError."""
    known = [*COLUMNS, *swept(rows)]
    name = ALIASES.get(key, key)
    if name in known:
        return name
    ending = [column for column in known if column.rsplit(".", 1)[-1] == key]
    if len(ending) == 1:
        return ending[0]
    raise InputError(f"{key!r} is no column of the results, and was not swept", did_you_mean(key, [*known, *ALIASES]))


def filtered(rows: Sequence[Row], conditions: Mapping[str, Sequence[str]]) -> list[Row]:
    """The rows whose columns have one of the values; sizes may be written as `64 MiB`. Raises InputError."""
    kept = list(rows)
    for key, values in conditions.items():
        column = column_of(rows, key)
        wanted = {_plain(value) for value in values}
        left = [row for row in kept if {_plain(row.get(column)), _plain(_asked(row, column))} & wanted]
        if not left:
            there = ", ".join(dict.fromkeys(str(row.get(column)) for row in kept))
            raise InputError(f"no row has {key} {' or '.join(map(str, values))}", f"there is {there}")
        kept = left
    return kept


def _asked(row: PlotRow, column: str) -> Any:
    return row.get("asked") if column == "algorithm" else None


def _plain(value: object) -> str:
    size = units.size_in(value)
    return str(value if size is None else size).lower()


def key_figure(
    rows: Sequence[PlotRow], x: str, y: str = "time", group: Sequence[str] | None = None, facet: Sequence[str] = ()
) -> Figure:
    """`y` over `x`, a line for each value of the `group` columns (default: the algorithm), a panel for each of `facet`.

    Intervals are drawn wherever rows have them. Raises InputError for a key that is none, where nothing can be drawn,
    and where rows differ in more than what is chosen: none is drawn in place of another.
    """
    across, up = column_of(rows, x), column_of(rows, y)
    apart = [column_of(rows, key) for key in facet]
    lines = [column_of(rows, key) for key in group] if group is not None else ["algorithm"] * (across != "algorithm")
    timed = [row for row in as_asked(rows) if row.get("status", "ok") == "ok" and isinstance(row.get(up), int | float)]
    timed = [row for row in timed if row.get(across) is not None]
    if not timed:
        raise InputError(f"no row has both {x} and {y}", "see the columns and the status of results.csv")
    _check_distinct(timed, [across, *lines, *apart], up)
    panels = [
        Panel(", ".join(_said(column, group_rows[0]) for column in apart), group_rows, ())
        for group_rows in grouped(timed, lambda row: tuple(str(row.get(column)) for column in apart)).values()
    ]
    figure, grid = grid_of(panels)
    places, ticks = _places(timed, across)
    bars = ticks is not None and (len(ticks) == 1 or not _numeric(timed, across))
    entries: dict[str, Artist] = {}
    names = list(dict.fromkeys(_label(row, lines) for row in timed))
    for axes, panel in zip(grid, panels, strict=False):
        series = grouped(panel.rows, lambda row: _label(row, lines))
        spots = {name: _spots(series.get(name, ()), across, up, places) for name in names}
        (_bars if bars else _lines)(axes, spots, entries)
        dress(axes)
    _finish_axes(grid, timed, across, up, bars, ticks)
    alone = ticks is not None and len(ticks) == 1  # then it is of this value, and not over values
    what = _WORDS.get(up, up.replace("_", " ")) + ("" if alone else f" over {_word(across)}")
    held = _constant(timed, [*([] if alone else [across]), *lines, *apart])
    shown = ", ".join(filter(None, [held, panels[0].title if len(panels) == 1 else ""]))
    notes = [settings(timed), *([f"first {MAX_PANELS} of {len(panels)} panels"] if len(panels) > MAX_PANELS else [])]
    finish(figure, f"{what}: {shown}" if shown else what, "  ·  ".join(notes), entries if len(entries) > 1 else {})
    return figure


def _check_distinct(rows: Sequence[PlotRow], chosen: Sequence[str], up: str) -> None:
    """Raise InputError where two rows with other values would stand at one place."""
    seen: dict[tuple[str, ...], PlotRow] = {}
    for row in rows:
        first = seen.setdefault(tuple(str(row.get(column)) for column in chosen), row)
        if first.get(up) != row.get(up):
            inputs = [
                "collective",
                "size_bytes",
                "ranks",
                "nodes",
                "protocol",
                "executor",
                "profile",
                "topology",
                "dtype",
            ]
            inputs += ["workload", "sharing", "in_place", "op", "root", "seed", "scenario", *swept(rows)]
            more = [each for each in inputs if first.get(each) != row.get(each)] or ["what ran"]
            problem = f"rows differ in {' and '.join(more[:3])} too"
            raise InputError(problem, f"make it the group or the facet, or keep one value with --filter {more[0]}=…")


# --- values ---


def _number(column: str, value: object) -> float | None:
    """A value as a number of its base unit; None of what has no order."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    kind = units.kind_of(str(value))
    if kind is not None:
        return float(units.parse_exact(str(value), kind))
    try:
        return float(str(value))
    except ValueError:
        return None


def _numeric(rows: Sequence[PlotRow], column: str) -> bool:
    return all(_number(column, row.get(column)) is not None for row in rows)


def _sizes(rows: Sequence[PlotRow], column: str) -> bool:
    return column.endswith("_bytes") or all(units.size_in(row.get(column)) is not None for row in rows)


def _places(rows: Sequence[PlotRow], column: str) -> tuple[Mapping[str, float], dict[float, str] | None]:
    """The place of each value of the column, and the ticks that have names: None for an axis of sizes."""
    texts = list(dict.fromkeys(str(row.get(column)) for row in rows))
    numbers = {str(row.get(column)): _number(column, row.get(column)) for row in rows}
    if not _numeric(rows, column) or len(texts) == 1:
        named = {text: short_size(int(numbers[text] or 0)) if _sizes(rows, column) else text for text in texts}
        return {text: float(i) for i, text in enumerate(texts)}, {float(i): named[text] for i, text in enumerate(texts)}
    places = {text: number for text, number in numbers.items() if number is not None}
    return places, None if _sizes(rows, column) else {place: text for text, place in places.items()}


def _spots(rows: Sequence[PlotRow], across: str, up: str, places: Mapping[str, float]) -> list[Mark]:
    spots = []
    for row in rows:
        low, high = (row.get(end) for end in _ENDS.get(up, ("low_us", "high_us")))
        value = float(row[up])
        if up in ("busbw_GBps", "algbw_GBps") and low and high:
            low, high = value * row["time_us"] / high, value * row["time_us"] / low
        elif up not in _ENDS:
            low = high = None
        spots.append(Mark(places[str(row.get(across))], value, low, high))
    return sorted(spots)


# --- words ---


def _word(column: str) -> str:
    return _WORDS.get(column, column.rsplit(".", 1)[-1].replace("_", " ")).lower()


def _said(column: str, row: PlotRow) -> str:
    """A column's value in words: `2 nodes`, `64 MiB`, `ring`, `oversubscription 4`."""
    value = row.get(column)
    if column == "size_bytes":
        return short_size(int(value or 0))
    if column in ("ranks", "nodes"):
        return f"{value} {column}" if value != 1 else column.removesuffix("s").join(("1 ", ""))
    if column in ("algorithm", "collective", "topology", "profile", "protocol", "executor", "workload", "dtype"):
        return str(value)
    return f"{_word(column)} {value}"


def _label(row: PlotRow, columns: Sequence[str]) -> str:
    return ", ".join(_said(column, row) for column in columns if row.get(column) is not None)


def _constant(rows: Sequence[PlotRow], but: Sequence[str]) -> str:
    """The values that all rows share, in words: the picture is of these."""
    shared = []
    for column in ("algorithm", "collective", "workload", "size_bytes", "ranks", "nodes"):
        values = {row.get(column) for row in rows}
        value = next(iter(values))
        plain = column == "collective" and value == "workload"
        if column not in but and len(values) == 1 and value not in (None, "", 0) and not plain:
            shared.append(_said(column, rows[0]))
    return ", ".join(shared)


# --- what is drawn ---


def _style(name: str) -> dict[str, Any]:
    chosen = look(name)
    return {"color": chosen.color, "marker": chosen.marker}


def _lines(axes: Axes, series: Mapping[str, Sequence[Mark]], entries: dict[str, Artist]) -> None:
    names = [name for name, spots in series.items() if spots]
    for number, name in enumerate(names):
        spots = series[name]
        points = [(spot.x, spot.y) for spot in spots]
        alike = sum([(s.x, s.y) for s in series[other]] == points for other in names[number + 1 :])
        style = {**_style(name), "linewidth": 1.6 + 2 * alike, "markersize": 4.5 + 2 * alike}
        axes.plot(*zip(*points, strict=True), **style)
        sure = [spot for spot in spots if spot.low is not None and spot.high is not None]
        if sure:
            x, low, high = zip(*((s.x, s.low, s.high) for s in sure), strict=True)
            if len(names) <= MAX_BANDS:
                axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
            else:
                axes.vlines(x, low, high, color=style["color"], alpha=0.5, linewidth=1.0)
        entries.setdefault(name, Line2D([], [], **_style(name), linewidth=1.6, markersize=4.5))


def _bars(axes: Axes, series: Mapping[str, Sequence[Mark]], entries: dict[str, Artist]) -> None:
    wide = 0.8 / len(series)
    for number, (name, spots) in enumerate(series.items()):
        at = [spot.x + (number - (len(series) - 1) / 2) * wide for spot in spots]
        color = look(name).color
        axes.bar(at, [spot.y for spot in spots], width=0.9 * wide, color=color)
        sure = [(x, spot.low, spot.high) for x, spot in zip(at, spots, strict=True) if spot.low and spot.high]
        if sure:
            x, low, high = zip(*sure, strict=True)
            axes.vlines(x, low, high, color=INK, linewidth=1.0)
        entries.setdefault(name, Patch(facecolor=color))


def _finish_axes(
    grid: Sequence[Axes],
    rows: Sequence[PlotRow],
    across: str,
    up: str,
    bars: bool,
    ticks: Mapping[float, str] | None,
) -> None:
    values = [float(row[up]) for row in rows]
    wide = max(values) / max(min(values), 1e-12) > WIDE and not bars
    for axes in grid:
        place = axes.get_subplotspec()
        if ticks is None:
            size_axis(axes, {int(_number(across, row[across]) or 0) for row in rows})
        else:
            _named_ticks(axes, ticks, bars)
        unit = UNITS.get(up, "")
        if up.endswith("_us") or "_us_" in up:
            if wide:
                time_axis(axes, values)
            else:
                axes.set_ylim(bottom=0)
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value) if value else "0"))
        else:
            axes.set_ylim(bottom=0)
        name = _WORDS.get(up, _word(up)).lower()
        axes.set_ylabel(name if unit in ("", "us") else f"{name} ({unit})", size=9, color=INK)
        axes.set_xlabel(_word(across), size=9, color=INK)
        if place and place.colspan.start:
            axes.set_ylabel("")
    for above, below in itertools.pairwise(grid):
        first, second = above.get_subplotspec(), below.get_subplotspec()
        if first and second and first.rowspan.start < second.rowspan.start and len(grid) > 3:
            above.tick_params(labelbottom=True)


def _named_ticks(axes: Axes, ticks: Mapping[float, str], bars: bool) -> None:
    places = sorted(ticks)
    if not bars and places[0] > 0 and places[-1] / places[0] >= WIDE:
        axes.set_xscale("log", base=2)
        axes.set_xlim(places[0] / 2**0.25, places[-1] * 2**0.25)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: ticks.get(min(places, key=lambda p: abs(p - value)), ""))
    )
    if bars and sum(map(len, ticks.values())) > 60:
        axes.tick_params(axis="x", labelrotation=30, color=GREY)
