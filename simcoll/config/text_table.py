"""Format tables as text: right-aligned for the terminal, as nccl-tests prints them, and as CSV."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from simcoll.units import format_duration, short_size

_UNITS: Final = {"_us": "us", "_GBps": "GB/s"}  # by suffix of the column's name; sizes have a unit in each cell
_PERCENT: Final = {"mape": 1, "median": 1, "p95": 1, "bias": 1, "error": 100}  # factor to percent
LONG: Final = 100_000.0  # us; a column with a longer time has a unit in each cell
GAP: Final = 3  # characters between columns, if the line is wide enough
FOLLOW: Final = ("op", "confidence", "region", "distance")  # columns without a unit that depend on other columns
WIDTH: Final = 120  # characters of a line without a terminal


def width() -> int:
    """Return the width of a line in characters: the value of `COLUMNS`, else the terminal's width, else 120."""
    return shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH


def wrapped(line: str, indent: str = "#   ") -> str:
    """Wrap a remark at words to the width of a line; further lines begin with `indent`."""
    return textwrap.fill(line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def command(line: str, remark: str) -> str:
    """Return a shell command and its remark: in one line if both fit, else the remark above the command."""
    if len(f"{line}  # {remark}") <= width():
        return f"{line}  # {remark}"
    parts = textwrap.wrap(line, width() - 2, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join([wrapped(f"# {remark}"), " \\\n".join(parts)])


def remarks_wrapped(text: str) -> str:
    """Wrap the lines of a text that begin with `#` (remarks) to the width of a line."""
    return "\n".join(wrapped(line) if line.startswith("#") else line for line in text.splitlines())


def fitted(
    columns: Sequence[str], rows: Sequence[Mapping[str, object]], spare: Sequence[str], together: Collection[str] = ()
) -> tuple[str, str]:
    """Return the table as `render` does, and a remark on omitted columns.

    If lines are too wide, some `spare` columns are omitted: first columns with one value in all rows, then results and
    columns that depend on others. Columns that distinguish rows stay. The remark lists the omitted columns, with their
    value if it is equal in all rows; it is empty if no column was omitted.
    """
    kept, shared, left = list(columns), list[str](), list[str]()
    follow = [name for name in spare if not _alike(name, rows) and (name in FOLLOW or _is_result(name))]
    for name in [*(name for name in spare if _alike(name, rows)), *follow]:
        if name not in kept or _widest(_lines(kept, rows, together)) <= width():
            continue
        if not _alike(name, rows) and _told_apart(kept, rows) > _told_apart([n for n in kept if n != name], rows):
            continue
        kept.remove(name)
        (shared if _alike(name, rows) else left).append(name)
    of_all = [f"{head(name)[0]} {_with_unit(name, rows[0].get(name))}" for name in shared]
    remark = [*(["   ".join(of_all)] if of_all else []), *([f"left out: {', '.join(left)}"] if left else [])]
    return render(kept, rows, together), "; ".join(remark)


def _alike(name: str, rows: Sequence[Mapping[str, object]]) -> bool:
    return len({str(row.get(name)) for row in rows}) == 1


def _told_apart(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> int:
    """Return the number of rows that differ in their inputs, i.e. in `columns` other than times and results."""
    asked = [name for name in columns if not _is_result(name)]
    return len({tuple(str(row.get(name)) for name in asked) for row in rows})


def _is_result(name: str) -> bool:
    return name != head(name)[0] and not name.endswith("_bytes")


def _with_unit(name: str, value: object) -> str:
    unit = head(name)[1].strip("()")
    return " ".join(filter(None, [cell(name, value), unit]))


def render(columns: Sequence[str], rows: Sequence[Mapping[str, object]], together: Collection[str] = ()) -> str:
    """Return the table as text, one line per row. A column's unit follows from its name; `-` stands for absent values.

    If a column of times has a long time, each of its cells has its own unit. If that column is one of `together`, it
    holds for all columns of `together`. If lines are too wide, first the gaps between columns shrink, then cells are
    broken at spaces.

    >>> print(render(["size_bytes", "ranks", "time_us"], [{"size_bytes": 1024, "ranks": 8, "time_us": 53.2189}]))
       size   ranks    time
                       (us)
      1 KiB       8   53.22
    """
    gaps = (_lines(columns, rows, together, gap) for gap in range(GAP, 0, -1))
    lines = next((lines for lines in gaps if _widest(lines) <= width()), None)
    return "\n".join(_lines(columns, rows, together, 1, width()) if lines is None else lines)


def _widest(lines: Sequence[str]) -> int:
    return max(map(len, lines), default=0)


def _lines(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, object]],
    together: Collection[str],
    gap: int = GAP,
    most: int | None = None,
) -> list[str]:
    heads, body = [], []

    def long(column: str) -> bool:
        values = (row.get(column) for row in rows)
        return column.endswith("_us") and any(isinstance(value, int | float) and value >= LONG for value in values)

    for column in columns:
        values = [row.get(column) for row in rows]
        own_units = any(long(name) for name in together if name in columns) if column in together else long(column)
        name, unit = head(column)
        heads.append((name, "" if own_units else unit))
        body.append([_duration(value) if own_units else cell(column, value) for value in values])
    lines = [list(line) for line in zip(*body, strict=True)]
    units = [[unit for _, unit in heads]] if any(unit for _, unit in heads) else []
    every = [[name for name, _ in heads], *units, *lines]
    indent, between = " " * min(2, gap), " " * gap
    widths = [max(len(line[i]) for line in every) for i in range(len(columns))]
    if most is not None:
        widths = _narrowed(every, widths, most - len(indent) - gap * (len(columns) - 1))
        every = [part for line in every for part in _broken(line, widths)]
    return [(indent + between.join(map(str.rjust, line, widths))).rstrip() for line in every]


def _narrowed(lines: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> list[int]:
    """Reduce the widths of columns until their sum is `room`, the widest first. No column becomes narrower than its
    longest word."""
    narrow = list(widths)
    least = [max(len(word) for line in lines for word in _words(line[i])) for i in range(len(widths))]
    while sum(narrow) > room and (wide := [i for i in range(len(narrow)) if narrow[i] > least[i]]):
        narrow[max(wide, key=narrow.__getitem__)] -= 1
    return narrow


def _broken(line: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """Break the cells of a line at spaces to the widths; return the resulting lines."""
    cells = []
    for text, wide in zip(line, widths, strict=True):
        parts = [""]
        for word in _words(text):
            longer = f"{parts[-1]}{'' if parts[-1].endswith('/') else ' '}{word}".strip()
            parts = [*parts[:-1], longer] if len(longer) <= wide else [*parts, word]
        cells.append([part for part in parts if part] or [""])
    return [list(part) for part in itertools.zip_longest(*cells, fillvalue="")]


def _words(text: str) -> list[str]:
    """Return the parts between which a cell may be broken. A number stays with its name or unit, as in `latency 2` and
    `28.4 KiB`. `ring/LL128` may be broken after the `/`."""
    words = re.sub(r"(?<=[a-z_)]{3}/)(?=[A-Z])", " ", text).split()
    kept = words[:1] or [""]
    for before, word in itertools.pairwise(words):
        named = word[0].isdigit() and kept[-1].replace("_", "").isalpha()
        if named or before.replace(".", "").isdigit():
            kept[-1] += f" {word}"
        else:
            kept.append(word)
    return kept


def _duration(value: object) -> str:
    return format_duration(1e6 * value) if isinstance(value, int | float) else cell("", value)


def head(column: str) -> tuple[str, str]:
    """Split the name of a column into the name without unit, and the unit in brackets (or an empty text)."""
    if column in _PERCENT:
        return column, "(%)"
    if column.endswith("_bytes"):
        return column.removesuffix("_bytes"), ""
    ending = next((ending for ending in _UNITS if column.endswith(ending)), "")
    return column.removesuffix(ending), f"({_UNITS[ending]})" if ending else ""


def cell(column: str, value: object) -> str:
    """Return a value as text for the terminal; `-` for an absent value."""
    if value is None or value == "":
        return "-"
    if column.endswith("_bytes") and isinstance(value, int):
        return short_size(value)
    if column in _PERCENT and isinstance(value, int | float):
        return f"{value * _PERCENT[column]:.1f}"
    if column.endswith(("_us", "_GBps")) and isinstance(value, str):  # an exact number, with too many digits
        value = float(value)
    if isinstance(value, float):
        text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f"{Decimal(f'{value:.2g}'):f}" if "e" in text else text  # 0.000022 instead of 2.169e-05
    return str(value)


# --- CSV ---

# A spreadsheet would evaluate a text that begins like a formula; an apostrophe before it prevents this.
_FORMULA: Final = re.compile(r"'*(?![-+](?:[\d.]|inf|nan))[=+\-@\t\r].", re.IGNORECASE)


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV text with a cell for each column; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(_safe, rows))
    return text.getvalue()


def csv_meaning(cell: str) -> str:
    """Return the text of a CSV cell without the apostrophe that `csv_text` puts before a formula.

    >>> csv_meaning("'=x"), csv_meaning("'tis")
    ('=x', "'tis")
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _safe(row: Iterable[object]) -> list[str]:
    texts = ("" if cell is None else str(cell) for cell in row)
    return [f"'{text}" if _FORMULA.match(text) else text for text in texts]
