"""Parts of the HTML report: sortable tables, pictures, and explanations of confidence."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from simcoll import units
from simcoll.config import text_table
from simcoll.prediction.result_rows import ResultRow, dotted
from simcoll.report import plot
from simcoll.report.columns import varying
from simcoll.units import format_duration, short_size

TableRow = Mapping[str, Any]  # values by column name

SMALL: Final = 60_000  # bytes: a smaller vector image is always used
_PLAIN: Final = " '=:/;,.()!*+?[]{}|@-_~"  # characters that need no escape in the data URL of an image
_SHOWN: Final = (
    *("scenario", "topology", "workload", "collective", "asked", "algorithm", "protocol", "ranks", "nodes"),
    *("size_bytes", "dtype", "op", "root", "in_place", "profile", "sharing", "seed", "engine", "buckets"),
)
_PREDICTED: Final = (
    *("time_us", "interval", "confidence", "algbw_GBps", "busbw_GBps", "lower_bound_us"),
    *("compute_us", "waiting_us", "exposed_us"),
    *("replications", "time_us_p50", "time_us_p95", "time_us_p99", "due to", "binding_link", "binding_busy"),
)
_ALWAYS: Final = frozenset({"algorithm", "ranks", "size_bytes", "time_us", "confidence", "algbw_GBps", "busbw_GBps"})
_SHARES: Final = frozenset({"binding_busy", "share", "busy", "path_share"})
_NAMES: Final = {
    "interval": ("90 %", ""),
    "path_share": ("of the path", ""),
    "binding_link": ("busiest link", ""),
    "binding_busy": ("busy", ""),
    "time_us_p50": ("median", "(us)"),
    "time_us_p95": ("95 %", "(us)"),
    "time_us_p99": ("99 %", "(us)"),
    "lower_bound_us": ("bound", "(us)"),
}
WORTH: Final = {
    "calibrated": "fitted to a measurement of this very point",
    "interpolated": "fitted to measurements on both sides of it, of the same algorithm and kinds of links",
    "extrapolated": "fitted to measurements, but not on both sides of it: the interval is widened by convention",
    "modelled": "composed of calls that were fitted to measurements; the whole was not measured",
    "uncalibrated": "from rated figures that no measurement has been fitted to: nobody knows how far off it is",
}


@functools.cache  # parse templates once
def _templates() -> jinja2.Environment:
    loader = jinja2.PackageLoader("simcoll.report.html", "")
    made = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    made.globals["worth"] = WORTH
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return made


def rendered(template: str, **values: Any) -> Markup:
    """Return a template of this package filled with `values`; texts are escaped for HTML."""
    return Markup(_templates().get_template(template).render(values))


def picture(figure: Any, text: str) -> tuple[str, str]:
    """Return a figure as a data URL, in SVG or, if that is smaller, in PNG; and the figure's alternative text."""
    address = f"data:image/svg+xml,{quote(plot.drawn(figure, 'svg').decode(), safe=_PLAIN)}"
    if len(address) > SMALL:
        dots = f"data:image/png;base64,{base64.b64encode(plot.drawn(figure, 'png')).decode()}"
        address = min(address, dots, key=len)
    return address, text


def interval(row: ResultRow) -> str:
    """Return the 90 % interval of a row's time as text with its unit; empty if the row has no interval."""
    if row.low_us is None or row.high_us is None:
        return ""
    if row.high_us >= text_table.LONG:
        return " – ".join(format_duration(1e6 * end) for end in (row.low_us, row.high_us))
    return f"{text_table.cell('low_us', row.low_us)} – {text_table.cell('high_us', row.high_us)} us"


class Cell(NamedTuple):
    """A cell of a table: the value to sort by, the text to show, and whether the value is text."""

    value: object
    shown: str
    text: bool = False


class Table(NamedTuple):
    """A table: its columns (name, unit, whether they hold text) and its rows of cells."""

    head: Sequence[tuple[str, str, bool]]
    rows: Sequence[Sequence[Cell]]


def results_table(rows: Sequence[ResultRow]) -> Table:
    """Return the result rows as a table, without columns that are empty in all rows."""
    shown = [
        {**row, "interval": interval(row), "confidence": row.confidence or "uncalibrated", "due to": _due(row)}
        if row.status == "ok"
        else row
        for row in rows
    ]
    return table([*_columns(shown), "status"], shown)


def _columns(rows: Sequence[TableRow]) -> list[str]:
    names = [name for name in _SHOWN if name in _ALWAYS or varying(rows, [name])]
    names += [*dotted(rows), *_PREDICTED]
    if any(row["workload"] for row in rows):
        names.remove("lower_bound_us")  # a workload's bound is its computation, which has a column
    return [name for name in names if any(row.get(name) not in (None, "") for row in rows)]


def _due(row: ResultRow) -> str:
    return ", ".join(f"{cause} {share:.0%}" for cause, share in (row.slowdown_shares or {}).items())


def table(columns: Sequence[str], rows: Iterable[TableRow]) -> Table:
    """Return these columns of rows as a table. If one time is long, each time is shown with its own unit."""
    rows = list(rows)
    times = [row.get(name) for name in columns if name.endswith("_us") for row in rows]
    long = any(isinstance(time, int | float) and time >= text_table.LONG for time in times)
    head = []
    for column in columns:
        name, unit = _NAMES.get(column) or text_table.head(column)
        text = not any(_number(row.get(column)) for row in rows)
        head.append((name, "" if long and column.endswith("_us") else unit, text))
    return Table(head, [[_cell(column, row.get(column), long) for column in columns] for row in rows])


def _number(value: object) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or units.size_in(value) is not None


def _cell(column: str, value: Any, long: bool) -> Cell:
    if value is None:
        return Cell("", "", text=True)
    if column in _SHARES:
        return Cell(value, f"{value:.1%}")
    size = value if column == "size_bytes" else units.size_in(value)
    if size is not None:
        return Cell(size, short_size(size))
    if long and column.endswith("_us") and isinstance(value, int | float):
        return Cell(value, format_duration(1e6 * value))
    return Cell(value, text_table.cell(column, value), not _number(value))
