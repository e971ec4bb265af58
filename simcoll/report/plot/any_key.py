"""Draw a quantity over any column or swept key: lines, or bars if the key has one value or values that are no numbers.

Rows are mappings with the columns of results.csv; only rows with status ok are drawn. A measured point has `collective,
ranks, nodes, size_bytes, time_us, busbw_GBps, algorithm` (or None) and `system`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simcoll.config.grouping import grouped
from simcoll.errors import InputError
from simcoll.prediction.result_rows import COLUMNS
from simcoll.report.columns import (
    COMPETING,
    SETTINGS,
    WORDS,
    Panel,
    PlotRow,
    are_sizes,
    as_asked,
    axis_name,
    by_columns,
    column_of,
    constant,
    drawable,
    inputs,
    is_time,
    label_of,
    number_of,
    numeric,
    remarks,
    telling,
    varying,
    word,
)
from simcoll.report.plot.style import (
    CHARACTER,
    DASHES,
    GREY,
    INK,
    MAX_PANELS,
    Look,
    dress,
    finish,
    frame,
    grid_of,
    log2_axis,
    look,
    looks_of,
    name_axis,
    outer_labels,
    size_axis,
    stroke,
    time_axis,
    time_text,
    time_ticks,
    variant,
)
from simcoll.units import short_size

Quantity = Literal["busbw", "latency"]

WIDE: Final = 8  # numbers that differ by this factor get a logarithmic axis
BELOW: Final = 4.0  # factor below all values of a panel beyond which a lower bound is not in view
ABOVE: Final = 1.4  # factor above all of them
BAR: Final = 0.2  # inches, the height of a bar and the gap above it
ROOM: Final = 1.2  # length of the bars' axis, in longest bars: room for the number beside the bar
APART: Final = 30  # factor between the values of panels from which on each has its own axis
HALO: Final = 1.6  # points by which a line is wider than a line drawn on it
MOST_HALOS: Final = 3  # halos of the widest of equal lines: a broader one would look like a bar
MAX_BANDS: Final = 3  # lines with bands around them; with more lines each point has a bar
PLAIN: Final = Look("#4477AA", "o")  # of bars without a legend
_QUANTILES: Final = {f"time_us_p{p}": (f"time_us_p{p}_low", f"time_us_p{p}_high") for p in (50, 95, 99)}
_RATES: Final = ("busbw_GBps", "algbw_GBps")
_TIMES: Final = ("time_us", *_RATES)
# Each machine has its own profile, and executors differ by profile.
_APART: Final = ("topology", "profile", *COMPETING, *SETTINGS)
_BOUND: Final[dict[str, Any]] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1.5}
_MEASURED: Final[dict[str, Any]] = {
    "color": INK,
    "linestyle": "none",
    "markerfacecolor": "none",
    "markersize": 6,
    "zorder": 4,
}


class Mark(NamedTuple):
    """A point of a line, or a bar: its x, its value, the ends of its interval (None without interval), and whether it
    is modelled while other marks are based on measurements."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    modelled: bool = False


Styles = dict[str, dict[str, Any]]  # name of a line → its properties
NamedMarks = Mapping[str, Sequence[Mark]]  # name of a line, or of a series of bars → its marks


def size_figure(rows: Iterable[PlotRow], quantity: Quantity, measured: Iterable[PlotRow] = ()) -> Figure:
    """Return a figure of bus bandwidth or time over the size, with lower bounds and measured points; bars for one size.

    Raises ValueError if no row has a size and a time.
    """
    sized, points = [row for row in drawable(rows) if row["size_bytes"] > 0], list(measured)
    if not sized:
        raise ValueError("no row has a size (a barrier has none); plot 'scaling' instead")
    across = "size"
    if not points and not varying(sized, ["size_bytes"]):  # many numbers of ranks are a line, not a panel each
        across = next((key for key in ("nodes", "ranks") if len({row[key] for row in sized}) > 2), "algorithm")
    facet = ["collective"] if across in ("nodes", "ranks") else ["collective", "ranks", "nodes"]
    return _curves(sized, across, "busbw" if quantity == "busbw" else "time", facet, points)


def scaling_figure(rows: Iterable[PlotRow], measured: Iterable[PlotRow] = ()) -> Figure:
    """Return a figure of the time over the ranks, with panels for the smallest, a middle and the largest size.

    Raises ValueError if no row has a time, or all rows have the same number of ranks.
    """
    timed = drawable(rows)
    if len(counts := {row["ranks"] for row in timed}) == 1:
        raise ValueError(f"all rows have {counts.pop()} ranks, a single point on the axis; sweep ranks, nodes or hosts")
    kept = []
    for of in grouped(timed, lambda row: row["collective"]).values():
        sizes = sorted({row["size_bytes"] for row in of})
        kept += [row for row in of if row["size_bytes"] in (sizes[0], sizes[len(sizes) // 2], sizes[-1])]
    return _curves(kept, "ranks", "time", ["collective", "size_bytes"], list(measured))


def _curves(rows: Sequence[PlotRow], across: str, up: str, facet: Sequence[str], measured: Sequence[PlotRow]) -> Figure:
    """Return a figure with a line for each algorithm and each setting in which rows differ."""
    told = ("algorithm", *telling(as_asked(rows), _APART))
    group = [column for column in told if column not in (across, *facet)]
    return key_figure(rows, across, up, group, facet, measured, bounds=True)


def key_figure(
    rows: Sequence[PlotRow],
    x: str,
    y: str = "time",
    group: Sequence[str] | None = None,
    facet: Sequence[str] = (),
    measured: Sequence[PlotRow] = (),
    bounds: bool = False,
) -> Figure:
    """Return a figure of `y` over `x`, a line for each value of `group` (default: algorithms), a panel for each of
    `facet`.

    Intervals are drawn if rows have them. Figures of lines also show `measured` points and, with `bounds`, lower bounds
    of the time. Raises InputError for an unknown key, if nothing can be drawn, and if rows at one point differ in a
    column that neither `group` nor `facet` names.
    """
    across, up, apart = column_of(rows, x), column_of(rows, y), [column_of(rows, key) for key in facet]
    lines = [column_of(rows, key) for key in group] if group is not None else ["algorithm"] * (across != "algorithm")
    timed = _drawable(rows, x, y)
    _check_distinct(timed, [across, *lines, *apart], up)
    lines, apart = varying(timed, lines) or lines[:1], varying(timed, apart)
    panels = by_columns(timed, apart, measured)
    shown = panels[:MAX_PANELS]
    single = not measured and not varying(timed, [across])  # then the title names this value
    bars = single or not numeric(timed, across)
    places, ticks = _places([*timed, *measured], across, bars)
    named = lines if bars else [*lines, *varying(timed, ["trust"])]  # each bar itself says that it is modelled
    series = [
        {name: _marks(of, across, up, places) for name, of in grouped(panel.rows, lambda r: label_of(r, named)).items()}
        for panel in shown
    ]
    if bars:
        looks = _looks(timed, lines) | (looks_of(list(ticks.values())) if across == "algorithm" else {})
        figure, entries = _bars(panels, series, ticks, up, looks)
    else:
        figure, entries = _lines(panels, series, _styles(timed, lines, named), across, up, bounds)
        _finish_axes(figure.axes, [*timed, *measured], across, up, ticks)
    what = WORDS.get(up, up.replace("_", " ")) + ("" if single else f" {'by' if bars else 'over'} {word(across)}")
    of = constant(timed, "" if single else across)
    if any(mark.low and mark.high for one in series for marks in one.values() for mark in marks):
        varied = up in _TIMES and any(row.get("replications") for row in timed)
        entries["up to 95 % of runs" if varied else f"{95 if up in _QUANTILES else 90} % interval"] = (
            Line2D([], [], color=INK, linewidth=1.0)
            if bars
            else Line2D([], [], color=GREY, linestyle="none", marker="|", markersize=9)
            if _are_many(series)
            else Patch(facecolor=GREY, alpha=0.3)
        )
    finish(figure, f"{what}: {of}" if of else what, remarks(panels, len(shown)), entries)
    return figure


def _drawable(rows: Sequence[PlotRow], x: str, y: str) -> list[PlotRow]:
    """Return the rows that have a number in `y` and a value in `x`; raises InputError if there is none."""
    across, up = column_of(rows, x), column_of(rows, y)
    timed = [row for row in as_asked(rows) if row.get("status", "ok") == "ok" and isinstance(row.get(up), int | float)]
    if not timed and any(isinstance(row.get(up), str) for row in rows):
        raise InputError(f"{y} is text, and the y axis needs numbers", "take a column of numbers, e.g. time or busbw")
    timed = [row for row in timed if row.get(across) is not None]
    if not timed:
        raise InputError(f"no row has both {x} and {y}", "look at the columns and the column `status` of results.csv")
    return timed


def _are_many(series: Sequence[NamedMarks]) -> bool:
    """Return whether a panel has too many lines for intervals drawn as bands."""
    return max(map(len, series)) > MAX_BANDS


def _looks(rows: Sequence[PlotRow], lines: Sequence[str]) -> dict[str, Look]:
    """Return the look of each line by its name; lines of one numeric key go from dark to light."""
    names = list(dict.fromkeys(label_of(row, lines) for row in rows))
    if len(lines) != 1 or not numeric(rows, lines[0]):
        return looks_of(names)
    value = {label_of(row, lines): number_of(lines[0], row.get(lines[0])) or 0.0 for row in rows}
    return looks_of(sorted(names, key=value.__getitem__), ordered=True)


def _styles(rows: Sequence[PlotRow], lines: Sequence[str], named: Sequence[str]) -> Styles:
    """Return the style of each line: colour and marker by algorithm, dash by setting; from the fifth setting on also
    another shade and marker. If there is one algorithm, settings differ in colour.

    If some lines are modelled, these are dashed, and settings differ in shade instead.
    """
    more = [column for column in lines if column != "algorithm"]
    kinds = sorted({label_of(row, more): 0 for row in rows}, key=bool)  # without a setting: solid
    modelled, own = "trust" in named, _looks(rows, lines) if lines == more and lines else {}
    styles: Styles = {}
    for row in rows:
        base, number = look(str(row.get("algorithm") or "")), kinds.index(label_of(row, more))
        if number and (modelled or len(kinds) > len(DASHES)):
            base = variant(base, number, number)
        dash = DASHES[bool(row["trust"])] if modelled else DASHES[0 if own else number % len(DASHES)]
        styles.setdefault(label_of(row, named), stroke(*own.get(label_of(row, lines), base), dash))
    return styles


def _check_distinct(rows: Sequence[PlotRow], chosen: Sequence[str], up: str) -> None:
    """Raise InputError if two rows at one place of the figure have different values. The cure names a column in which
    the rows differ, the topology before ranks, nodes and profile."""
    clash = _clash(rows, chosen, up)
    if clash is None:
        return
    asked = inputs(rows)
    differ = [each for each in dict.fromkeys((*asked, *COLUMNS)) if clash[0].get(each) != clash[1].get(each)]
    more = [each for each in differ if each in asked] or differ
    more.sort(key=lambda column: (_clash(rows, [*chosen, column], up) is not None, column != "topology"))
    problem = f"rows differ in {' and '.join(more[:3])} too"
    cure = f"use {more[0]} as group or facet, or keep one value with --filter {more[0]}=…"
    raise InputError(problem, cure)


def _clash(rows: Sequence[PlotRow], chosen: Sequence[str], up: str) -> tuple[PlotRow, PlotRow] | None:
    """Return two rows at one place of the figure that have different values; None if there are none."""
    seen: dict[tuple[str, ...], PlotRow] = {}
    for row in rows:
        first = seen.setdefault(tuple(str(row.get(column)) for column in chosen), row)
        if first.get(up) != row.get(up):
            return first, row
    return None


# --- values ---


def _places(rows: Sequence[PlotRow], column: str, bars: bool) -> tuple[Mapping[str, float], dict[float, str]]:
    """Return the x of each value of a column, and the text to write at each x."""
    values = {str(row.get(column)): row.get(column) for row in rows}
    numbers = {text: number_of(column, value) for text, value in values.items()}
    if are_sizes(rows, column):
        texts = {text: short_size(int(number or 0)) for text, number in numbers.items()}
    else:
        texts = {text: f"{value:,}" if column == "ranks" else text for text, value in values.items()}
    places = {text: float(i) if bars else numbers[text] or 0.0 for i, text in enumerate(texts)}
    return places, {places[text]: shown for text, shown in texts.items()}


def _marks(rows: Sequence[PlotRow], across: str, up: str, places: Mapping[str, float]) -> list[Mark]:
    marks = []
    for row in rows:
        low, high = (row.get(end) for end in _ends_of(row, up))
        if up in _RATES and low and high:
            low, high = _if_it_took(row, high, up), _if_it_took(row, low, up)
        marks.append(Mark(places[str(row.get(across))], float(row[up]), low, high, bool(row["trust"])))
    return sorted(marks)


def _ends_of(row: PlotRow, up: str) -> tuple[str, str]:
    """Return the columns with the ends of a value's interval. With replications, times are those of the undisturbed
    run, and the interval leads to the time that one run in twenty exceeds."""
    if up in _TIMES:
        return ("time_us", "time_us_p95") if row.get("replications") else ("low_us", "high_us")
    return _QUANTILES.get(up, ("", ""))


def _if_it_took(row: PlotRow, time_us: float, up: str) -> float:
    """Return a time (us) as the drawn quantity `up`: the time itself, or the bandwidth that it means for the row."""
    return float(row[up]) * float(row["time_us"]) / time_us if up in _RATES else time_us


# --- lines ---


def _lines(
    panels: Sequence[Panel], series: Sequence[NamedMarks], styles: Styles, across: str, up: str, bounds: bool
) -> tuple[Figure, dict[str, Artist]]:
    """Draw panels of lines, with measured points and lower bounds; return the figure and its legend's entries."""
    values = [_values(one, panel, up) for one, panel in zip(series, panels, strict=False)]
    alike = max(map(max, values)) <= APART * min(map(max, values))
    figure, grid = grid_of([panel.title for panel in panels], one_scale=alike)
    entries: dict[str, Artist] = {
        name: Line2D([], [], linewidth=1.6, markersize=4.5, **style) for name, style in styles.items()
    }
    for axes, panel, one, seen in zip(grid, panels, series, values, strict=False):
        _draw_lines(axes, {name: one[name] for name in styles if name in one}, styles, _are_many(series))
        for name, points in grouped(panel.measured, lambda point: point.get("algorithm")).items():
            marker = "o" if name in (None, "none", "auto") else look(name).marker
            at = [(point[across], point[up]) for point in points if point[up] is not None]
            axes.plot(*zip(*at, strict=True), marker=marker, label="measured", **_MEASURED) if at else None
            entries["measured"] = Line2D([], [], marker="o", **_MEASURED)
        limits = _bounds(panel.rows, across, up) if bounds else {}
        low, high = min(seen) / BELOW, ABOVE * max(seen)
        if near := [limit for limit in limits.values() if low <= limit <= high]:  # bounds beyond are not in view
            (entries["bound"],) = axes.plot(*zip(*sorted(limits.items()), strict=True), label="bound", **_BOUND)
            seen += near
    for axes, seen in zip(grid, [list(itertools.chain(*values))] * len(grid) if alike else values, strict=True):
        if is_time(up) and min(seen) > 0 and max(seen) / min(seen) > WIDE:
            time_axis(axes, seen)
        else:
            axes.set_ylim(0, 1.06 * max(seen) or 1)
            if is_time(up):
                time_ticks(axes.yaxis)
    return figure, entries if len(entries) > 1 else {}


def _finish_axes(
    grid: Sequence[Axes], rows: Sequence[PlotRow], across: str, up: str, ticks: Mapping[float, str]
) -> None:
    for axes in grid:
        if are_sizes(rows, across):
            size_axis(axes, set(map(int, ticks)))
        elif min(ticks) > 0 and max(ticks) / min(ticks) >= WIDE:
            log2_axis(axes, ticks)
        else:
            axes.set_xticks(list(ticks), list(ticks.values()))
        name_axis(axes.yaxis, axis_name(up))
        name_axis(axes.xaxis, word(across))
    outer_labels(grid)


def _values(series: NamedMarks, panel: Panel, up: str) -> list[float]:
    """Return all values that a panel shows, including ends of intervals and measured points."""
    marks = [mark for marks in series.values() for mark in marks]
    ends = [value for mark in marks for value in (mark.low, mark.y, mark.high) if value is not None]
    return ends + [point[up] for point in panel.measured if point[up] is not None]


def _bounds(rows: Iterable[PlotRow], across: str, up: str) -> dict[float, float]:
    """Return the least lower bound of the rows at each x, as a time or as the bandwidth that this time means."""
    best: dict[float, float] = {}
    for row in rows:
        if (bound := row.get("lower_bound_us")) and row[up]:
            limit = _if_it_took(row, bound, up)
            best[row[across]] = (max if up in _RATES else min)(best.get(row[across], limit), limit)
    return best


def _draw_lines(axes: Axes, series: NamedMarks, styles: Styles, thin: bool) -> None:
    """Draw lines with their intervals, as bands or, with `thin`, as bars at each point."""
    for (name, marks), more in zip(series.items(), _halos(list(series.values())), strict=True):
        color = styles[name]["color"]
        axes.plot(
            [mark.x for mark in marks],
            [mark.y for mark in marks],
            linewidth=1.6 + more,
            markersize=4.5 + more,
            label=name,
            **styles[name],
        )
        sure = [(mark.x, mark.low, mark.high) for mark in marks if mark.low is not None and mark.high is not None]
        at, low, high = zip(*sure, strict=True) if sure else ((), (), ())
        if thin:
            axes.vlines(at, low, high, color=color, alpha=0.5, linewidth=1.0, zorder=1.2)
        elif sure:
            axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0, zorder=1.2)


def _halos(lines: Sequence[Sequence[Mark]]) -> list[float]:
    """Return how much wider each line must be drawn, in points, so that lines drawn above it do not hide it.

    Lines coincide if two neighbouring points, or their only point, differ by at most a percent. `lines` are in order of
    drawing.
    """
    curves = [{mark.x: mark.y for mark in marks} for marks in lines]
    above = [sum(_coincide(curve, other) for other in curves[number:]) for number, curve in enumerate(curves, 1)]
    return [HALO * min(MOST_HALOS, count) for count in above]


def _coincide(first: Mapping[float, float], second: Mapping[float, float]) -> bool:
    same = [math.isclose(first[at], second[at], rel_tol=0.01) for at in sorted(first.keys() & second.keys())]
    return any(map(operator.and_, same, same[1:])) or same == [True]


# --- bars ---


def _bars(
    panels: Sequence[Panel],
    series: Sequence[NamedMarks],
    ticks: Mapping[float, str],
    up: str,
    looks: Mapping[str, Look],
) -> tuple[Figure, dict[str, Artist]]:
    """Draw panels of horizontal bars with numbers; return the figure and its legend. `ticks` name rows of bars.

    A single row with several bars becomes a row for each bar, whose names then replace the legend.
    """
    several = [name for name in looks if any(name in one for one in series)]
    if len(ticks) == 1 and len(several) > 1:
        ticks = {float(number): name for number, name in enumerate(several)}
        series = [{"": [one[name][0]._replace(x=x) for x, name in ticks.items() if name in one]} for one in series]
    rows = [sorted({mark.x for marks in one.values() for mark in marks}) for one in series]
    across = 1 if len(series) == 1 else 2 if len(series) <= 4 else 3
    down, deep = -(-len(series) // across), max(map(len, series))
    tall = [max(map(len, rows[line * across : (line + 1) * across])) for line in range(down)]
    names = CHARACTER * max(map(len, ticks.values()))
    figure = frame(6.4 if across == 1 else across * (2.1 + names), BAR * deep * sum(tall) + 0.45 * down + 0.2)
    longest = [max(max(mark.high or 0, mark.y) for marks in one.values() for mark in marks) for one in series]
    alike = max(longest) <= APART * min(longest)
    room = ROOM + 0.3 * (
        across > 1 and any(mark.modelled for one in series for marks in one.values() for mark in marks)
    )
    grid = figure.subplots(down, across, sharex=alike, squeeze=False, height_ratios=tall).ravel().tolist()
    for at, (axes, panel, one, kept) in enumerate(zip(grid, panels, series, rows, strict=False)):
        axes.set_title(panel.title if len(panels) > 1 else "", size=9, color=INK, loc="left")
        order = [name for name in dict.fromkeys([*looks, *one]) if name in one]
        for number, name in enumerate(order):
            shift = (number - (len(one) - 1) / 2) * 0.8 / len(one)
            marks, alone = one[name], len(one) == 1
            of = [looks.get(ticks[mark.x] if alone else name, looks.get(name, PLAIN)) for mark in marks]
            _row_of_bars(axes, [kept.index(mark.x) + shift for mark in marks], marks, of, 0.68 / len(one), up)
        dress(axes)
        axes.grid(False, axis="y")
        axes.set_yticks(range(len(kept)), [ticks[x] for x in kept])
        axes.set_ylim(tall[at // across] - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, room * (max(longest) if alike else longest[at]) or 1)
        axes.locator_params(axis="x", nbins=5 if across == 1 else 3)
        if is_time(up):
            time_ticks(axes.xaxis)
        lowest = at + across >= len(series)
        axes.tick_params(labelbottom=lowest or not alike)
        name_axis(axes.xaxis, axis_name(up) if lowest else "")
    for axes in grid[len(series) :]:
        axes.remove()
    return figure, {name: Patch(facecolor=looks[name].color) for name in several} if deep > 1 else {}


def _row_of_bars(
    axes: Axes, at: Sequence[float], marks: Sequence[Mark], looks: Sequence[Look], height: float, up: str
) -> None:
    """Draw the bars of one row with their intervals, and each bar's number behind its end."""
    ends = [(mark.low or mark.y, mark.high or mark.y) for mark in marks]
    whiskers = [[mark.y - low for mark, (low, _) in zip(marks, ends, strict=True)],
                [high - mark.y for mark, (_, high) in zip(marks, ends, strict=True)]]  # fmt: skip
    bars = axes.barh(at, [mark.y for mark in marks], height, color=[each.color for each in looks],
                     xerr=whiskers if any(mark.high for mark in marks) else None,
                     error_kw={"ecolor": INK, "elinewidth": 1.0})  # fmt: skip
    numbers = [time_text(mark.y) if is_time(up) else f"{mark.y:.4g}" for mark in marks]
    texts = [text + ", modelled" * mark.modelled for text, mark in zip(numbers, marks, strict=True)]
    axes.bar_label(bars, texts, padding=4, size=7, color=INK)
