"""A quantity over any column or swept key: lines, or bars if the key has one value or values that are not numbers.

Rows are mappings with the columns of results.csv; only rows whose status is ok are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simcoll.config.groups import grouped
from simcoll.errors import InputError
from simcoll.prediction.result_rows import COLUMNS
from simcoll.report.plot.key_columns import (
    WORDS,
    are_sizes,
    axis_name,
    column_of,
    constant,
    inputs,
    is_time,
    label_of,
    number_of,
    numeric,
    said,
    word,
)
from simcoll.report.plot.style import (
    CHARACTER,
    DASHES,
    INK,
    MAX_BANDS,
    MAX_PANELS,
    Look,
    Mark,
    Panel,
    PlotRow,
    as_asked,
    by_columns,
    dash_of,
    draw_lines,
    dress,
    finish,
    frame,
    from_zero,
    grid_of,
    interval_entry,
    legend_lines,
    log2_axis,
    look,
    looks_of,
    name_axis,
    outer_labels,
    settings,
    size_axis,
    stroke,
    time_axis,
    time_text,
    time_ticks,
    with_trust,
)
from simcoll.units import short_size

WIDE: Final = 8  # numbers that differ by this factor get a logarithmic axis
BAR: Final = 0.2  # inches, the height of a bar and the gap above it
ROOM: Final = 1.2  # length of the bars' axis, in longest bars: room for the number beside the bar
APART: Final = 30  # factor between the values of panels from which on each has its own axis
PLAIN: Final = Look("#4477AA", "o")  # of bars without a legend
_QUANTILES: Final = {f"time_us_p{p}": (f"time_us_p{p}_low", f"time_us_p{p}_high") for p in (50, 95, 99)}
_ENDS: Final = {"time_us": ("low_us", "high_us"), **_QUANTILES}

NamedMarks = Mapping[str, Sequence[Mark]]  # name of a line, or of a series of bars → its marks


def key_figure(
    rows: Sequence[PlotRow], x: str, y: str = "time", group: Sequence[str] | None = None, facet: Sequence[str] = ()
) -> Figure:
    """Return `y` over `x`, a line for each value of `group` (default: the algorithm), a panel for each of `facet`.

    Intervals are drawn if rows have them. Raises InputError for an unknown key, if nothing can be drawn, and if rows at
    one point differ in a column that is not chosen.
    """
    across, up, apart = column_of(rows, x), column_of(rows, y), [column_of(rows, key) for key in facet]
    lines = [column_of(rows, key) for key in group] if group is not None else ["algorithm"] * (across != "algorithm")
    timed = _drawable(rows, x, y)
    _check_distinct(timed, [across, *lines, *apart], up)
    panels = by_columns(timed, (), apart, lambda row: ", ".join(said(column, row) for column in apart))
    places, ticks = _places(timed, across)
    single = ticks is not None and len(ticks) == 1  # then the title names this value
    bars = ticks is not None and (single or not numeric(timed, across))
    shown = lines if bars else with_trust(timed, lines)  # each bar itself says that it is modelled
    series = [
        {
            name: _marks(of, across, up, places)
            for name, of in grouped(panel.rows, lambda row: label_of(row, shown)).items()
        }
        for panel in panels[:MAX_PANELS]
    ]
    if bars and ticks is not None:
        looks = _looks(timed, lines) | (looks_of(list(ticks.values())) if across == "algorithm" else {})
        figure, entries = _bars(panels, series, ticks, up, looks)
    else:
        figure, entries = _lines(panels, series, _styles(timed, lines, shown))
        _finish_axes(figure.axes, timed, across, up, ticks, series)
    what = WORDS.get(up, up.replace("_", " ")) + ("" if single else f" {'by' if bars else 'over'} {word(across)}")
    held = constant(timed, [*([] if single else [across]), *lines, *apart])
    of = ", ".join(filter(None, [held, panels[0].title if len(panels) == 1 else ""]))
    notes = [settings(timed), *([f"first {MAX_PANELS} of {len(panels)} panels"] if len(panels) > MAX_PANELS else [])]
    sure = any(mark.low and mark.high for one in series for marks in one.values() for mark in marks)
    legend = entries if len(entries) > 1 else {}
    if sure:
        form: Literal["band", "bars", "whisker"] = "whisker" if bars else "bars" if _are_many(series) else "band"
        legend = {**legend, **interval_entry(95 if up in _QUANTILES else 90, form)}
    finish(figure, f"{what}: {of}" if of else what, "  ·  ".join(notes), legend)
    return figure


def _drawable(rows: Sequence[PlotRow], x: str, y: str) -> list[PlotRow]:
    """Return the rows with a number for `y` and a value for `x`; raises InputError if there is none."""
    across, up = column_of(rows, x), column_of(rows, y)
    timed = [row for row in as_asked(rows) if row.get("status", "ok") == "ok" and isinstance(row.get(up), int | float)]
    if not timed and any(isinstance(row.get(up), str) for row in rows):
        raise InputError(f"{y} is text, and the y axis needs numbers", "take a column of numbers, e.g. time or busbw")
    timed = [row for row in timed if row.get(across) is not None]
    if not timed:
        raise InputError(f"no row has both {x} and {y}", "look at the columns and the column `status` of results.csv")
    return timed


def _are_many(series: Sequence[NamedMarks]) -> bool:
    """Return whether a panel has too many lines to draw bands around them."""
    return max(map(len, series)) > MAX_BANDS


def _looks(rows: Sequence[PlotRow], lines: Sequence[str]) -> dict[str, Look]:
    """Return the look of each line by name; numbers of one key go from dark to light."""
    names = list(dict.fromkeys(label_of(row, lines) for row in rows))
    if len(lines) != 1 or not numeric(rows, lines[0]):
        return looks_of(names)
    value = {label_of(row, lines): number_of(lines[0], row.get(lines[0])) or 0.0 for row in rows}
    return looks_of(sorted(names, key=value.__getitem__), ordered=True)


def _styles(rows: Sequence[PlotRow], lines: Sequence[str], shown: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the properties of each line by name. A dash marks a modelled line among others; if none is modelled, it
    marks one of up to four settings of an algorithm."""
    first = {label_of(row, shown): row for row in reversed(rows)}
    first = {name: first[name] for name in dict.fromkeys(label_of(row, shown) for row in rows)}
    more = [column for column in lines if column != "algorithm"]
    kinds = list(dict.fromkeys(label_of(row, more) for row in first.values()))
    if len(more) < len(lines) and 1 < len(kinds) <= len(DASHES) and not any(row["trust"] for row in first.values()):
        dashes = dict(zip(kinds, DASHES, strict=False))
        of = {name: look(str(row.get("algorithm") or "")) for name, row in first.items()}
        return {name: stroke(*of[name], dashes[label_of(row, more)]) for name, row in first.items()}
    looks = _looks(rows, lines)
    return {name: stroke(*looks[label_of(row, lines)], dash_of(row)) for name, row in first.items()}


def _check_distinct(rows: Sequence[PlotRow], chosen: Sequence[str], up: str) -> None:
    """Raise InputError if two rows with different values share a place. The suggested fix names a column in which they
    differ, a topology before its ranks, nodes and profile."""
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
    """Return two rows with different values at one place; None if there are none."""
    seen: dict[tuple[str, ...], PlotRow] = {}
    for row in rows:
        first = seen.setdefault(tuple(str(row.get(column)) for column in chosen), row)
        if first.get(up) != row.get(up):
            return first, row
    return None


# --- values ---


def _places(rows: Sequence[PlotRow], column: str) -> tuple[Mapping[str, float], dict[float, str] | None]:
    """Return the place of each value of a column, and the named ticks; no ticks for an axis of sizes."""
    texts = list(dict.fromkeys(str(row.get(column)) for row in rows))
    numbers = {str(row.get(column)): number_of(column, row.get(column)) for row in rows}
    if not numeric(rows, column) or len(texts) == 1:
        named = {text: short_size(int(numbers[text] or 0)) if are_sizes(rows, column) else text for text in texts}
        return {text: float(i) for i, text in enumerate(texts)}, {float(i): named[text] for i, text in enumerate(texts)}
    places = {text: number for text, number in numbers.items() if number is not None}
    return places, None if are_sizes(rows, column) else {place: text for text, place in places.items()}


def _marks(rows: Sequence[PlotRow], across: str, up: str, places: Mapping[str, float]) -> list[Mark]:
    marks = []
    for row in rows:
        low, high = (row.get(end) for end in _ENDS.get(up, ("low_us", "high_us")))
        value = float(row[up])
        if up in ("busbw_GBps", "algbw_GBps") and low and high:
            low, high = value * row["time_us"] / high, value * row["time_us"] / low
        elif up not in _ENDS:
            low = high = None
        marks.append(Mark(places[str(row.get(across))], value, low, high, bool(row["trust"])))
    return sorted(marks)


# --- lines ---


def _lines(
    panels: Sequence[Panel], series: Sequence[NamedMarks], styles: Mapping[str, dict[str, Any]]
) -> tuple[Figure, dict[str, Artist]]:
    figure, grid = grid_of(panels)
    for axes, one in zip(grid, series, strict=True):
        draw_lines(axes, {name: one[name] for name in styles if name in one}, styles, _are_many(series))
    return figure, legend_lines(styles)


def _finish_axes(
    grid: Sequence[Axes],
    rows: Sequence[PlotRow],
    across: str,
    up: str,
    ticks: Mapping[float, str] | None,
    series: Sequence[NamedMarks],
) -> None:
    marks = [mark for one in series for of_line in one.values() for mark in of_line]
    values = [value for mark in marks for value in (mark.low, mark.y, mark.high) if value is not None]
    for axes in grid:
        if ticks is None:
            size_axis(axes, {int(number_of(across, row[across]) or 0) for row in rows})
        elif min(ticks) > 0 and max(ticks) / min(ticks) >= WIDE:
            log2_axis(axes, ticks)
        else:
            axes.set_xticks(list(ticks), list(ticks.values()))
        if is_time(up) and min(values) > 0 and max(values) / min(values) > WIDE:
            time_axis(axes, values)
        else:
            from_zero(axes)
            if is_time(up):
                time_ticks(axes.yaxis)
        name_axis(axes.yaxis, axis_name(up))
        name_axis(axes.xaxis, word(across))
    outer_labels(grid)


# --- bars ---


def _bars(
    panels: Sequence[Panel],
    series: Sequence[NamedMarks],
    ticks: Mapping[float, str],
    up: str,
    looks: Mapping[str, Look],
) -> tuple[Figure, dict[str, Artist]]:
    """Draw a panel of horizontal bars for each series, with numbers; `ticks` name the rows of bars.

    A single row with several series becomes a row for each series, whose names then need no legend.
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
    """Draw the bars of a series with their intervals, and each bar's number behind its end."""
    ends = [(mark.low or mark.y, mark.high or mark.y) for mark in marks]
    whiskers = [[mark.y - low for mark, (low, _) in zip(marks, ends, strict=True)],
                [high - mark.y for mark, (_, high) in zip(marks, ends, strict=True)]]  # fmt: skip
    bars = axes.barh(at, [mark.y for mark in marks], height, color=[each.color for each in looks],
                     xerr=whiskers if any(mark.high for mark in marks) else None,
                     error_kw={"ecolor": INK, "elinewidth": 1.0})  # fmt: skip
    numbers = [time_text(mark.y) if is_time(up) else f"{mark.y:.4g}" for mark in marks]
    texts = [text + ", modelled" * mark.modelled for text, mark in zip(numbers, marks, strict=True)]
    axes.bar_label(bars, texts, padding=4, size=7, color=INK)
