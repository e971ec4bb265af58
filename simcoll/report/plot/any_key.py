"""A quantity over any column or swept key of the results: lines, or bars where the key has no numbers or one value.

Rows are mappings with the columns of results.csv; only those whose status is ok are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from simcoll.config.groups import grouped
from simcoll.errors import InputError
from simcoll.prediction.result_rows import COLUMNS, UNITS
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
from simcoll.report.plot.style import (
    CHARACTER,
    DASHES,
    MAX_PANELS,
    Panel,
    PlotRow,
    as_asked,
    dash_of,
    dress,
    finish,
    frame,
    from_zero,
    grid_of,
    halos,
    interval_entry,
    outer_labels,
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


TICKS: Final = 5  # of the axis of values, where it is as wide as the picture
BAR: Final = 0.2  # inches, the height of a bar with the air above it
POINTS: Final = 30  # of values that differ by more than this factor points are drawn: the bar of the least is not seen
PLAIN: Final = "#4477AA"  # of bars that no name sets apart


class Mark(NamedTuple):
    """A point of a line: where it stands, its value, the ends of its interval (None without one), and whether it is
    modelled where others are not."""

    x: float
    y: float
    low: float | None
    high: float | None
    modelled: bool = False


BarSeries = Mapping[str, Sequence[Mark]]  # the name of a series → a mark for each row that it has, x its number


def bar_figure(
    panels: Sequence[Panel],
    series: Sequence[BarSeries],
    ticks: Mapping[float, str],
    quantity: str,
    looks: Mapping[str, Look],
) -> tuple[Figure, dict[str, Artist]]:
    """A panel of lying bars for each series, and the legend; `ticks` name the rows that marks stand in.

    A single row with several series becomes a row for each of them: their names need no legend then.
    """
    several = {name for one in series for name in one}
    if len(ticks) == 1 and len(several) > 1:
        ticks = {float(number): name for number, name in enumerate(name for name in looks if name in several)}
        number_of = {name: number for number, name in ticks.items()}
        series = [{"": [marks[0]._replace(x=number_of[name]) for name, marks in one.items()]} for one in series]
    rows = [sorted({mark.x for marks in one.values() for mark in marks}) for one in series]
    deep = max(map(len, series))
    across = 1 if len(series) == 1 else 2 if len(series) <= 4 else 3
    down = -(-len(series) // across)
    tall = [max(map(len, rows[line * across : (line + 1) * across])) for line in range(down)]
    names = CHARACTER * max(map(len, ticks.values()))
    figure = frame(6.4 if across == 1 else across * (2.1 + names), BAR * deep * sum(tall) + 0.45 * down + 0.2)
    table = figure.subplots(down, across, sharex=True, squeeze=False, height_ratios=tall)
    grid = table.ravel().tolist()
    for axes in grid[len(series) :]:
        axes.remove()
    values = [mark.y for one in series for marks in one.values() for mark in marks]
    points = min(values) > 0 and max(values) / min(values) > POINTS
    entries: dict[str, Artist] = {}
    for at, (axes, panel, one, kept) in enumerate(zip(grid, panels, series, rows, strict=False)):
        axes.set_title(panel.title if len(panels) > 1 else "", size=9, color=INK, loc="left")
        place = {x: float(number) for number, x in enumerate(kept)}
        wide = 0.8 / len(one)
        for number, name in enumerate(name for name in dict.fromkeys([*looks, *one]) if name in one):
            shift = (number - (len(one) - 1) / 2) * wide
            plain = len(one) == 1
            for mark in one[name]:
                chosen = looks.get(ticks[mark.x] if plain else name) or looks.get(name) or Look(PLAIN, "o")
                _draw(axes, place[mark.x] + shift, mark, wide, chosen, quantity, points)
            if not plain:
                swatch = Line2D([], [], linestyle="none", **looks[name]._asdict())
                entries.setdefault(name, swatch if points else Patch(facecolor=looks[name].color))
        dress(axes)
        axes.grid(False, axis="y")
        axes.set_yticks(list(place.values()), [ticks[x] for x in kept])
        axes.set_ylim(tall[at // across] - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
    highest = max(mark.high or mark.y for one in series for marks in one.values() for mark in marks)
    for number, axes in enumerate(grid[: len(series)]):
        _value_axis(axes, values, highest, quantity, points, TICKS if across == 1 else TICKS // 2)
        below = number + across < len(series)
        axes.tick_params(labelbottom=not below)
        axes.set_xlabel("" if below else axes.get_xlabel())
    return figure, entries


def _draw(axes: Axes, y: float, mark: Mark, wide: float, chosen: Look, quantity: str, points: bool) -> None:
    if points:
        axes.plot([mark.y], [y], linestyle="none", markersize=5.5, **chosen._asdict())
    else:
        axes.barh([y], [mark.y], height=0.85 * wide, color=chosen.color)
    if mark.low and mark.high:
        axes.hlines([y], mark.low, mark.high, color=INK, linewidth=1.0)
    text = (time_text(mark.y) if is_time(quantity) else f"{mark.y:.4g}") + ", modelled" * mark.modelled
    end = max(mark.high or 0.0, mark.y)
    axes.annotate(
        text, (end, y), (4 + 2 * points, 0), textcoords="offset points", va="center_baseline", size=7, color=INK
    )


def _value_axis(axes: Axes, values: Sequence[float], highest: float, quantity: str, points: bool, ticks: int) -> None:
    name, unit = WORDS.get(quantity, word(quantity)).lower(), UNITS.get(quantity, "")
    axes.set_xlabel(name if unit in ("", "us") else f"{name} ({unit})", size=9, color=INK)
    if points and is_time(quantity):
        time_axis(axes, [*values, 3 * highest], along="x")
    elif points:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 1.5, 3 * highest)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_xlim(0, 1.18 * highest or 1)
        axes.xaxis.set_major_locator(MaxNLocator(ticks))
        if is_time(quantity):
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value) if value else "0"))
