"""A quantity over any column or swept key of the results: lines, or bars where the key has no numbers or one value.

Rows are mappings with the columns of results.csv; only those whose status is ok are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simcoll.config.groups import grouped
from simcoll.errors import InputError
from simcoll.prediction.result_rows import COLUMNS, UNITS
from simcoll.report.plot.key_bars import Mark, bar_figure
from simcoll.report.plot.key_columns import (
    WORDS,
    are_sizes,
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
from simcoll.report.plot.looks import INK, Look, look, looks_of
from simcoll.report.plot.panels import Panel, grid_of, outer_labels
from simcoll.report.plot.style import (
    DASHES,
    MAX_PANELS,
    PlotRow,
    as_asked,
    dash_of,
    finish,
    from_zero,
    halos,
    interval_entry,
    settings,
    size_axis,
    stroke,
    time_axis,
    time_text,
    with_trust,
)
from simcoll.units import short_size

MAX_BANDS: Final = 3  # lines with a band around them; of more each point has a bar
WIDE: Final = 8  # numbers that differ by this factor stand on a logarithmic axis
_QUANTILES: Final = {f"time_us_p{p}": (f"time_us_p{p}_low", f"time_us_p{p}_high") for p in (50, 95, 99)}
_ENDS: Final = {"time_us": ("low_us", "high_us"), **_QUANTILES}


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
    if not timed and any(isinstance(row.get(up), str) for row in rows):
        raise InputError(f"{y} is text, and cannot be drawn upwards", "take a column of numbers, e.g. time or busbw")
    timed = [row for row in timed if row.get(across) is not None]
    if not timed:
        raise InputError(f"no row has both {x} and {y}", "see the columns and the status of results.csv")
    _check_distinct(timed, [across, *lines, *apart], up)
    panels = [
        Panel(", ".join(said(column, group_rows[0]) for column in apart), group_rows, ())
        for group_rows in grouped(timed, lambda row: tuple(str(row.get(column)) for column in apart)).values()
    ]
    places, ticks = _places(timed, across)
    bars = ticks is not None and (len(ticks) == 1 or not numeric(timed, across))
    trusted = lines if bars else with_trust(timed, lines)  # each bar says by itself that it is modelled
    first = {label_of(row, trusted): row for row in reversed(timed)}  # of each line
    names = {label_of(row, trusted): label_of(row, lines) for row in timed}  # the second without what is modelled
    series = [
        {name: _spots(rows, across, up, places) for name, rows in grouped(panel.rows, _labels(trusted)).items()}
        for panel in panels[:MAX_PANELS]
    ]
    marks = [mark for one in series for spots in one.values() for mark in spots]
    thin = max(map(len, series)) > MAX_BANDS
    looks = _looks(list(dict.fromkeys(names.values())), timed, lines)
    if bars and ticks is not None:
        looks |= looks_of(list(ticks.values())) if across == "algorithm" else {}
        figure, entries = bar_figure(panels, series, ticks, up, looks)
    else:
        styles = {name: stroke(*looks[plain], dash_of(first[name])) for name, plain in names.items()}
        styles |= _settings_dashed(first, lines)
        figure, entries = _line_figure(panels, series, styles, thin)
        values = [value for mark in marks for value in (mark.low, mark.y, mark.high) if value is not None]
        _finish_axes(figure.axes, timed, across, up, ticks, values)
        outer_labels(figure.axes)
    alone = ticks is not None and len(ticks) == 1  # then it is of this value, and not over values
    what = WORDS.get(up, up.replace("_", " ")) + ("" if alone else f" {'by' if bars else 'over'} {word(across)}")
    held = constant(timed, [*([] if alone else [across]), *lines, *apart])
    shown = ", ".join(filter(None, [held, panels[0].title if len(panels) == 1 else ""]))
    notes = [settings(timed), *([f"first {MAX_PANELS} of {len(panels)} panels"] if len(panels) > MAX_PANELS else [])]
    sure = {95 if up in _QUANTILES else 90} if any(mark.low and mark.high for mark in marks) else set()
    legend = (entries if len(entries) > 1 else {}) | interval_entry(
        sure, "whisker" if bars else "bars" if thin else "band"
    )
    finish(figure, f"{what}: {shown}" if shown else what, "  ·  ".join(notes), legend)
    return figure


def _labels(lines: Sequence[str]) -> Callable[[PlotRow], str]:
    return lambda row: label_of(row, lines)


def _looks(names: Sequence[str], rows: Sequence[PlotRow], lines: Sequence[str]) -> dict[str, Look]:
    """The looks of the lines; values of one key that are numbers go from dark to light in their order."""
    if len(lines) != 1 or not numeric(rows, lines[0]):
        return looks_of(names)
    value = {label_of(row, lines): number_of(lines[0], row.get(lines[0])) or 0.0 for row in rows}
    return looks_of(sorted(names, key=value.__getitem__), ordered=True)


def _settings_dashed(first: Mapping[str, PlotRow], lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The styles of lines of algorithms under up to four settings, as curves have them: the look is the algorithm's,
    the dash the setting's. None where a dash says that a line is modelled, or settings are more."""
    more = [column for column in lines if column != "algorithm"]
    kinds = list(dict.fromkeys(label_of(row, more) for row in list(first.values())[::-1]))
    plain = len(more) == len(lines) or not 1 < len(kinds) <= len(DASHES)
    if plain or any(row["trust"] for row in first.values()):
        return {}
    dashes = dict(zip(kinds, DASHES, strict=False))
    return {
        name: stroke(*look(str(row.get("algorithm") or "")), dashes[label_of(row, more)]) for name, row in first.items()
    }


def _check_distinct(rows: Sequence[PlotRow], chosen: Sequence[str], up: str) -> None:
    """Raise InputError where two rows with other values would stand at one place; the cure is a column that sets all
    apart, where one does, and a topology before its ranks, nodes and profile."""
    clash = _clash(rows, chosen, up)
    if clash is None:
        return
    asked = inputs(rows)
    differ = [each for each in dict.fromkeys((*asked, *COLUMNS)) if clash[0].get(each) != clash[1].get(each)]
    more = [each for each in differ if each in asked] or differ
    more.sort(key=lambda column: (_clash(rows, [*chosen, column], up) is not None, column != "topology"))
    problem = f"rows differ in {' and '.join(more[:3])} too"
    cure = f"make {more[0]} the group or the facet, or keep one value with --filter {more[0]}=…"
    raise InputError(problem, cure)


def _clash(rows: Sequence[PlotRow], chosen: Sequence[str], up: str) -> tuple[PlotRow, PlotRow] | None:
    """Two rows with other values that would stand at one place, if there are two."""
    seen: dict[tuple[str, ...], PlotRow] = {}
    for row in rows:
        first = seen.setdefault(tuple(str(row.get(column)) for column in chosen), row)
        if first.get(up) != row.get(up):
            return first, row
    return None


# --- values ---


def _places(rows: Sequence[PlotRow], column: str) -> tuple[Mapping[str, float], dict[float, str] | None]:
    """The place of each value of the column, and the ticks that have names: None for an axis of sizes."""
    texts = list(dict.fromkeys(str(row.get(column)) for row in rows))
    numbers = {str(row.get(column)): number_of(column, row.get(column)) for row in rows}
    if not numeric(rows, column) or len(texts) == 1:
        named = {text: short_size(int(numbers[text] or 0)) if are_sizes(rows, column) else text for text in texts}
        return {text: float(i) for i, text in enumerate(texts)}, {float(i): named[text] for i, text in enumerate(texts)}
    places = {text: number for text, number in numbers.items() if number is not None}
    return places, None if are_sizes(rows, column) else {place: text for text, place in places.items()}


def _spots(rows: Sequence[PlotRow], across: str, up: str, places: Mapping[str, float]) -> list[Mark]:
    spots = []
    for row in rows:
        low, high = (row.get(end) for end in _ENDS.get(up, ("low_us", "high_us")))
        value = float(row[up])
        if up in ("busbw_GBps", "algbw_GBps") and low and high:
            low, high = value * row["time_us"] / high, value * row["time_us"] / low
        elif up not in _ENDS:
            low = high = None
        spots.append(Mark(places[str(row.get(across))], value, low, high, bool(row["trust"])))
    return sorted(spots)


# --- what is drawn ---


def _line_figure(
    panels: Sequence[Panel],
    series: Sequence[Mapping[str, Sequence[Mark]]],
    styles: Mapping[str, dict[str, Any]],
    thin: bool,
) -> tuple[Figure, dict[str, Artist]]:
    figure, grid = grid_of(panels)
    entries: dict[str, Artist] = {}
    for axes, of_panel in zip(grid, series, strict=True):
        _lines(axes, {name: of_panel[name] for name in styles if name in of_panel}, styles, entries, thin)
    return figure, {name: entries[name] for name in styles if name in entries}


def _lines(
    axes: Axes,
    series: Mapping[str, Sequence[Mark]],
    styles: Mapping[str, dict[str, Any]],
    entries: dict[str, Artist],
    thin: bool,
) -> None:
    wider = halos([{spot.x: spot.y for spot in spots} for spots in series.values()])
    for (name, spots), more in zip(series.items(), wider, strict=True):
        style = styles[name]
        x, y = [spot.x for spot in spots], [spot.y for spot in spots]
        axes.plot(x, y, linewidth=1.6 + more, markersize=4.5 + more, **style)
        sure = [(spot.x, spot.low, spot.high) for spot in spots if spot.low is not None and spot.high is not None]
        if sure:
            at, low, high = zip(*sure, strict=True)
            if thin:
                axes.vlines(at, low, high, color=style["color"], alpha=0.5, linewidth=1.0)
            else:
                axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
        entries.setdefault(name, Line2D([], [], linewidth=1.6, markersize=4.5, **style))


def _finish_axes(
    grid: Sequence[Axes],
    rows: Sequence[PlotRow],
    across: str,
    up: str,
    ticks: Mapping[float, str] | None,
    values: Sequence[float],
) -> None:
    name, unit = WORDS.get(up, word(up)).lower(), UNITS.get(up, "")
    for axes in grid:
        if ticks is None:
            size_axis(axes, {int(number_of(across, row[across]) or 0) for row in rows})
        else:
            _named_ticks(axes, ticks)
        if is_time(up) and min(values) > 0 and max(values) / min(values) > WIDE:
            time_axis(axes, values)
        else:
            from_zero(axes)
            if is_time(up):
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value) if value else "0"))
        axes.set_ylabel(name if unit in ("", "us") else f"{name} ({unit})", size=9, color=INK)
        axes.set_xlabel(word(across), size=9, color=INK)


def _named_ticks(axes: Axes, ticks: Mapping[float, str]) -> None:
    places = sorted(ticks)
    if places[0] > 0 and places[-1] / places[0] >= WIDE:
        axes.set_xscale("log", base=2)
        axes.set_xlim(places[0] / 2**0.25, places[-1] * 2**0.25)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: ticks.get(min(places, key=lambda p: abs(p - value)), ""))
    )
