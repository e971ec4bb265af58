"""Results as HTML: tables that can be sorted, and the label that rates a prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from simcoll import units
from simcoll.config import text_table
from simcoll.prediction.result_rows import ResultRow, dotted
from simcoll.units import short_size

_SHOWN: Final = (
    *("scenario", "topology", "workload", "collective", "asked", "algorithm", "protocol", "ranks", "nodes"),
    *("size_bytes", "dtype", "op", "root", "in_place", "profile", "sharing", "seed", "engine", "buckets"),
)
_PREDICTED: Final = (
    *("time_us", "interval", "confidence", "algbw_GBps", "busbw_GBps", "lower_bound_us", "compute_us", "exposed_us"),
    *("replications", "time_us_p50", "time_us_p95", "time_us_p99", "due to", "binding_link", "binding_busy"),
)
_ALWAYS: Final = frozenset({"algorithm", "ranks", "size_bytes", "time_us", "confidence", "algbw_GBps", "busbw_GBps"})
_NAMES: Final = {"interval": ("90 %", ""), "path_share": ("of the path", ""), "binding_link": ("busiest link", ""),
          "binding_busy": ("busy", ""), "time_us_p50": ("median", "(us)"), "time_us_p95": ("95 %", "(us)"),
          "time_us_p99": ("99 %", "(us)"),
          "lower_bound_us": ("bound", "(us)")}  # fmt: skip
TableRow = Mapping[str, Any]  # values by the names of columns
WORTH: Final = {
    "calibrated": "fitted to a measurement of this very point",
    "interpolated": "fitted to measurements on both sides of it, of the same algorithm and kinds of links",
    "extrapolated": "fitted to measurements, but not on both sides of it: the interval is widened by convention",
    "modelled": "composed of calls that were fitted to measurements; the whole was not measured",
    "uncalibrated": "from rated figures that no measurement has been fitted to: nobody knows how far off it is",
}


def badge(confidence: object) -> str:
    """The label that rates a prediction in a word."""
    word = str(confidence or "uncalibrated")
    return f'<span class="badge {escape(word)}" title="{escape(WORTH.get(word, ""))}">{escape(word)}</span>'


def interval(row: ResultRow) -> str:
    """The 90 % interval of a time, its unit at the end; empty if there is none."""
    if row.low_us is None or row.high_us is None:
        return ""
    if row.high_us >= text_table.LONG:
        return " – ".join(map(_duration, (row.low_us, row.high_us)))
    return f"{text_table.cell('low_us', row.low_us)} – {text_table.cell('high_us', row.high_us)} us"


def _duration(time_us: float) -> str:
    return units.format_duration(1e6 * time_us)


def results_table(rows: Sequence[ResultRow]) -> str:
    """A line a row, with the columns that say something."""
    shown = [
        {**row, "interval": interval(row), "confidence": row.confidence or "uncalibrated", "due to": _due(row)}
        if row.status == "ok"
        else row
        for row in rows
    ]
    return table([*_columns(shown), "status"], shown)


def _columns(rows: Sequence[TableRow]) -> list[str]:
    names = [name for name in _SHOWN if name in _ALWAYS or len({row[name] for row in rows}) > 1]
    names += [*dotted(rows), *_PREDICTED]
    if any(row["workload"] for row in rows):
        names.remove("lower_bound_us")  # of a workload it is the computation, which has a column
    return [name for name in names if any(row.get(name) not in (None, "") for row in rows)]


def _due(row: ResultRow) -> str:
    return ", ".join(f"{cause} {share:.0%}" for cause, share in (row.slowdown_shares or {}).items())


def table(columns: Sequence[str], rows: Iterable[TableRow]) -> str:
    """A table that can be sorted by each column; numbers as one reads them, their values beside for sorting. Where one
    of the times is long each has its unit."""
    rows = list(rows)
    times = [row.get(name) for name in columns if name.endswith("_us") for row in rows]
    long = any(isinstance(time, int | float) and time >= text_table.LONG for time in times)
    head = "".join(_head(name, not any(_number(row.get(name)) for row in rows), long) for name in columns)
    body = "\n".join(f"<tr>{''.join(_cell(name, row.get(name), long) for name in columns)}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table class="sortable"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _head(column: str, text: bool, long: bool) -> str:
    name, unit = _NAMES.get(column) or text_table.head(column)
    small = f"<small>{escape(unit)}</small>" if unit and not (long and column.endswith("_us")) else ""
    kind = ' class="text"' if text else ""
    return f'<th scope="col"{kind}><button type="button">{escape(name)}{small}</button></th>'


def _number(value: object) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or units.size_in(value) is not None


def _cell(column: str, value: Any, long: bool) -> str:
    if column == "confidence" and value:
        return f'<td class="text" data-value="{escape(str(value))}">{badge(value)}</td>'
    if column in ("binding_busy", "share", "busy", "path_share") and value is not None:
        return f'<td data-value="{value}">{value:.1%}</td>'
    size = value if column == "size_bytes" else units.size_in(value)
    if size is not None:
        return f'<td data-value="{size}">{escape(short_size(size))}</td>'
    if long and column.endswith("_us") and isinstance(value, int | float):
        return f'<td data-value="{value}">{_duration(value)}</td>'
    shown = "" if value is None else text_table.cell(column, value)
    kind = "" if _number(value) else ' class="text"'
    return f'<td{kind} data-value="{escape("" if value is None else str(value))}">{escape(shown)}</td>'


def facts(pairs: Mapping[str, object]) -> str:
    """A list of names and values; values that are None or empty are left out."""
    there = {name: str(value) for name, value in pairs.items() if value not in (None, "")}
    entries = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in there.items())
    return f"<dl>\n{entries}\n</dl>"
