"""Columns of result rows: those in which rows differ, the column that a key means, values as numbers and as words.

Rows are mappings with the columns of results.csv.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from simcoll import units
from simcoll.config.grouping import grouped
from simcoll.errors import InputError, nearest
from simcoll.prediction.result_rows import COLUMNS, UNITS, dotted, swept
from simcoll.prediction.summary_sentence import DEEPEP, FITTED_KERNELS
from simcoll.scenario.profile import titled
from simcoll.units import short_size

PlotRow = Mapping[str, Any]  # a ResultRow, or another record with the picture's columns

ALIASES: Final = {  # word for a column: the column
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
LONGEST: Final = 40  # characters of a value in a title; longer values, e.g. lists of faults, are cut
WORDS: Final = {
    "time_us": "Time",
    "busbw_GBps": "Bus bandwidth",
    "algbw_GBps": "Bandwidth",
    "step_us": "Step",
    "size_bytes": "size",
}
_INPUTS: Final = (
    *("algorithm", "collective", "size_bytes", "ranks", "nodes", "protocol", "executor", "profile", "topology"),
    *("dtype", "workload", "in_place", "op", "root", "seed", "scenario"),
)
# Settings that change the prediction of one algorithm; labels name those in which rows differ.
COMPETING: Final = ("executor", "protocol")
SETTINGS: Final = ("topology", "nodes", "profile", "dtype", "op", "root", "in_place", "seed", "scenario")
_FITTED: Final = frozenset({"calibrated", "interpolated", "extrapolated"})  # confidence of rows with a measured basis
_BY_VALUE: Final = frozenset(  # columns whose values need no word beside them
    {"trust", "algorithm", "collective", "topology", "profile", "workload", "dtype", *COMPETING}
)
Drawn = TypeVar("Drawn", bound=PlotRow)


# --- rows ---


def drawable(rows: Iterable[PlotRow]) -> list[PlotRow]:
    """Return the rows that have a time; raises ValueError if no row has one."""
    timed = [row for row in rows if row.get("status", "ok") == "ok" and (row["time_us"] or 0) > 0]
    if not timed:
        raise ValueError("no row has a time to draw; the column `status` has the reasons")
    return timed


def as_asked(rows: Iterable[PlotRow]) -> list[PlotRow]:
    """Return the rows with the requested algorithm as their `algorithm`, so that `auto` becomes one line of a plot.

    If some rows of a picture are based on measurements, the others get `trust` = `modelled`.
    """
    rows = list(rows)
    known = {row.get("confidence") for row in rows} & _FITTED
    return [
        {
            **row,
            "algorithm": row.get("asked") or row.get("algorithm"),
            "trust": row.get("confidence") if known and row.get("confidence") == "modelled" else None,
        }
        for row in rows
    ]


class Panel(NamedTuple):
    """A panel of a picture: its title, its predicted rows and its measured rows."""

    title: str
    rows: Sequence[PlotRow]
    measured: Sequence[PlotRow]


def by_columns(rows: Sequence[PlotRow], columns: Sequence[str], measured: Iterable[PlotRow] = ()) -> list[Panel]:
    """Return panels: rows grouped by their values of `columns`, in order of appearance. A measured point goes to every
    panel whose values it does not contradict."""
    panels = []
    for values, group in grouped(rows, lambda row: tuple(row.get(name) for name in columns)).items():
        known = dict(zip(columns, values, strict=True))
        fitting = [point for point in measured if all(point.get(name) in (None, known[name]) for name in columns)]
        panels.append(Panel(label_of(group[0], columns), group, fitting))
    return panels


def remarks(panels: Sequence[Panel], shown: int) -> str:
    """Return the line below a picture's title: topology, profile, sharing, measured machines, and panels left out."""
    rows = [row for panel in panels for row in panel.rows]
    parts = []
    for name, text in (("topology", "{}"), ("profile", "profile {}"), ("sharing", "{} sharing")):
        some = [row for row in rows if name != "profile" or row.get("executor") not in DEEPEP]
        values = list(dict.fromkeys(str(row[name]) for row in some if row.get(name)))
        values = [titled(value) for value in values] if name == "profile" else values
        parts += [FITTED_KERNELS] if len(some) < len(rows) else []
        if values:
            parts.append(text.format(", ".join(values[:3]) + (", …" if len(values) > 3 else "")))
    systems = sorted({str(point["system"]) for panel in panels for point in panel.measured if point.get("system")})
    parts += [f"measured on {', '.join(systems)}"] if systems else []
    parts += [f"first {shown} of {len(panels)} panels"] if len(panels) > shown else []
    return "  ·  ".join(parts)


# --- columns ---


def varying(rows: Sequence[PlotRow], columns: Iterable[str]) -> list[str]:
    """Return those of the columns in which rows differ."""
    return [name for name in dict.fromkeys(columns) if len({str(row.get(name)) for row in rows}) > 1]


def separating(rows: Sequence[PlotRow], columns: Iterable[str], point: Sequence[str]) -> list[str]:
    """Return the columns that distinguish rows with equal values in the columns `point`. A column is left out if
    earlier ones already distinguish the same rows."""
    chosen: list[str] = []
    for name in columns:
        values: dict[tuple[Any, ...], Any] = {}
        key = (*point, *chosen)
        if any(row.get(name) != values.setdefault(tuple(map(row.get, key)), row.get(name)) for row in rows):
            chosen.append(name)
    return chosen


def telling(rows: Sequence[PlotRow], columns: Iterable[str], competing: Sequence[str] = ()) -> list[str]:
    """Return the columns in which rows of one algorithm (and of equal `competing` values) differ at a point.

    Swept keys also count if they differ between algorithms: `auto` may choose another algorithm for each value.
    """
    point = ("collective", "ranks", "size_bytes")
    chosen = separating(rows, columns, (*point, "algorithm", *competing))
    return chosen + separating(rows, swept(rows), (*point, *chosen))


def column_of(rows: Sequence[PlotRow], key: str) -> str:
    """Return the column that `key` names: a column, a swept key or its last part, or an alias. Raises InputError."""
    known = [*COLUMNS, *dotted(rows), *dict.fromkeys(name for row in rows for name in row if name not in COLUMNS)]
    known = list(dict.fromkeys(known))
    name = ALIASES.get(key, key)
    if name in known:
        return name
    ending = [column for column in known if column.rsplit(".", 1)[-1] == key]
    if len(ending) == 1:
        return ending[0]
    problem = f"{key!r} is no column of the results, and was not swept"
    raise InputError(problem, _suggested(rows, key, known))


def _suggested(rows: Sequence[PlotRow], key: str, known: Sequence[str]) -> str:
    """Return a cure for a wrong key: the nearest column, those in which rows differ, and columns of results."""
    there = [name for name in known if any(row.get(name) not in (None, "") for row in rows)]
    words = {column: name for name, column in ALIASES.items() if "." not in name}
    near = nearest(key, [*there, *words.values()])
    varied = [words.get(name, name) for name in inputs(rows) if len({str(row.get(name)) for row in rows}) > 1]
    differ = f"these rows differ in {', '.join(varied)}" if varied else "these rows differ in nothing that was asked"
    values = [words[name] for name in words if name in there and UNITS.get(name) in ("us", "GB/s")]
    guess = f"did you mean {near!r}? (" if near else ""
    return f"{guess}{differ}, and hold e.g. {', '.join(values)}{')' * bool(near)}"


def inputs(rows: Sequence[PlotRow]) -> list[str]:
    """Return the columns that hold inputs of a run, not results."""
    return [*_INPUTS, *swept(rows)]


def filtered(rows: Sequence[Drawn], conditions: Mapping[str, Iterable[object]]) -> list[Drawn]:
    """Return the rows that have one of the given values in each column of `conditions`. Sizes may be written as `64
    MiB`, algorithms as requested (`auto`). Raises InputError for an unknown column, and if no row is left."""
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
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    kind = units.kind_of(str(value))  # `50GB/s` equals `50 GB/s` and `400 Gb/s`
    exact = units.parse_exact(str(value), kind) if kind else None
    return str(value).lower() if exact is None else str(exact) if kind == "size" else f"{kind} {exact}"


# --- values ---


def number_of(column: str, value: object) -> float | None:
    """Return a column's value as a number in its base unit (bytes, B/s, s); None if it is not a number."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    kind = units.kind_of(str(value))
    if kind is not None:
        return float(units.parse_exact(str(value), kind))
    try:
        return units.float_of(str(value))
    except ValueError:
        return None


def numeric(rows: Sequence[PlotRow], column: str) -> bool:
    """Return whether every row has a number, or a quantity with a unit, in this column."""
    return all(number_of(column, row.get(column)) is not None for row in rows)


def are_sizes(rows: Sequence[PlotRow], column: str) -> bool:
    """Return whether this column holds sizes in bytes."""
    return column.endswith("_bytes") or all(units.size_in(row.get(column)) is not None for row in rows)


# --- words ---


def is_time(column: str) -> bool:
    """Return whether this column holds times in microseconds, judging by its name.

    >>> is_time("time_us_p95"), is_time("busbw_GBps")
    (True, False)
    """
    return column.endswith("_us") or "_us_" in column


def word(column: str) -> str:
    """Return the word or words for a column in texts.

    >>> word("topology.hosts_per_leaf")
    'hosts per leaf'
    """
    if column in WORDS:
        return WORDS[column].lower()
    name = column.rsplit(".", 1)[-1]
    return name if name.isupper() else name.replace("_", " ").lower()  # variables keep their names


def axis_name(column: str) -> str:
    """Return the name of a column for an axis, with the unit if the ticks do not show it.

    >>> axis_name("busbw_GBps"), axis_name("time_us_p95")
    ('bus bandwidth (GB/s)', 'time us p95')
    """
    name, unit = WORDS.get(column, word(column)).lower(), UNITS.get(column, "")
    return name if unit in ("", "us") else f"{name} ({unit})"


def said(column: str, row: PlotRow, name: str = "") -> str:
    """Return a value in words: `2 nodes`, `64 MiB`, `ring`, `oversubscription 4`; `name` replaces the column's name."""
    value = row.get(column)
    if column == "size_bytes":
        return short_size(int(value or 0))
    if column in ("ranks", "nodes"):
        return f"{value} {column}" if value != 1 else column.removesuffix("s").join(("1 ", ""))
    if column in _BY_VALUE:
        return str(value)
    size = units.size_in(value)
    text = str(value) if size is None else short_size(size)
    return f"{name or word(column)} {text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}"


def label_of(row: PlotRow, columns: Sequence[str]) -> str:
    """Return the values of `columns` in words, as a line's name; keys with equal last parts keep their whole names."""
    ends = [word(column) for column in columns]
    there = [column for column in columns if row.get(column) is not None]
    told = [column for column in there if column not in COMPETING or row[column] not in ("", "none")]
    return ", ".join(said(column, row, column if ends.count(word(column)) > 1 else "") for column in told)


def constant(rows: Sequence[PlotRow], but: str) -> str:
    """Return in words the values that all rows share, for the title of a picture; the column `but` is left out."""
    shared = []
    for column in ("algorithm", "collective", "workload", "size_bytes", "ranks", "nodes"):
        value = rows[0].get(column)
        plain = column == "collective" and value == "workload"
        if column != but and value not in (None, "", 0) and not plain and not varying(rows, [column]):
            shared.append(said(column, rows[0]))
    return ", ".join(shared)
