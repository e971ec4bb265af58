"""Tables as text: for the terminal, right-aligned, as nccl-tests prints them; and as CSV."""

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

_UNITS: Final = {"_us": "us", "_GBps": "GB/s"}  # by the ending of the name; sizes have their unit in each cell
_PERCENT: Final = {"mape": 1, "median": 1, "p95": 1, "bias": 1, "error": 100}  # factor to percent
LONG: Final = 100_000.0  # us; a column with a longer time has a unit in each cell
GAP: Final = 3  # characters between columns, where there is room
FOLLOW: Final = ("op", "confidence", "region", "distance")  # without a unit, and yet said by other columns
WIDTH: Final = 120  # characters of a line where no terminal says how many it has


def width() -> int:
    """Characters of a line: the terminal's, or 120 where the output is no terminal; `COLUMNS` says otherwise."""
    return shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH


def wrapped(line: str, indent: str = "#   ") -> str:
    """A remark broken at its words where it is wider than a line; further lines begin with `indent`."""
    return textwrap.fill(line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def command(line: str, remark: str) -> str:
    """A command for a shell with a remark, which stands above it where both are wider than a line."""
    if len(f"{line}  # {remark}") <= width():
        return f"{line}  # {remark}"
    parts = textwrap.wrap(line, width() - 2, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join([wrapped(f"# {remark}"), " \\\n".join(parts)])


def remarks_wrapped(text: str) -> str:
    """A text whose remarks, the lines that begin with `#`, are no wider than a line."""
    return "\n".join(wrapped(line) if line.startswith("#") else line for line in text.splitlines())


def fitted(
    columns: Sequence[str], rows: Sequence[Mapping[str, object]], spare: Sequence[str], together: Collection[str] = ()
) -> tuple[str, str]:
    """The table, as of `render`, and a remark.

    Where lines would be too wide, columns of `spare` go, those first that all rows share, then results and what follows
    from other columns. What was asked for stays where rows differ in it, and so does all by which alone they can be
    told apart. The remark names what all rows share, and what is left out; empty if nothing had to go.
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
    """The number of rows that differ in what was asked for, and not only in times and the like."""
    asked = [name for name in columns if not _is_result(name)]
    return len({tuple(str(row.get(name)) for name in asked) for row in rows})


def _is_result(name: str) -> bool:
    return name != head(name)[0] and not name.endswith("_bytes")


def _with_unit(name: str, value: object) -> str:
    unit = head(name)[1].strip("()")
    return " ".join(filter(None, [cell(name, value), unit]))


def render(columns: Sequence[str], rows: Sequence[Mapping[str, object]], together: Collection[str] = ()) -> str:
    """The table, one line a row; a column's unit follows from its name, and what is absent is shown as `-`.

    Long times have a unit each; where one of the columns `together` has such, all of them do. Columns move together
    where lines would be too wide, and then cells are broken at their spaces.

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
    """Widths that add up to `room`, or to as little as the longest words allow: the widest columns give first."""
    narrow = list(widths)
    least = [max(len(word) for line in lines for word in _words(line[i])) for i in range(len(widths))]
    while sum(narrow) > room and (wide := [i for i in range(len(narrow)) if narrow[i] > least[i]]):
        narrow[max(wide, key=narrow.__getitem__)] -= 1
    return narrow


def _broken(line: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """A line as several, whose cells are broken at spaces to the widths."""
    cells = []
    for text, wide in zip(line, widths, strict=True):
        parts = [""]
        for word in _words(text):
            longer = f"{parts[-1]}{'' if parts[-1].endswith('/') else ' '}{word}".strip()
            parts = [*parts[:-1], longer] if len(longer) <= wide else [*parts, word]
        cells.append([part for part in parts if part] or [""])
    return [list(part) for part in itertools.zip_longest(*cells, fillvalue="")]


def _words(text: str) -> list[str]:
    """The words of a cell: a number stays with its name and its unit, as in `latency 2` and `28.4 KiB`, and a
    protocol may stand below its algorithm: `ring/` and `LL128`."""
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
    """The name of a column without its unit, and that."""
    if column in _PERCENT:
        return column, "(%)"
    if column.endswith("_bytes"):
        return column.removesuffix("_bytes"), ""
    ending = next((ending for ending in _UNITS if column.endswith(ending)), "")
    return column.removesuffix(ending), f"({_UNITS[ending]})" if ending else ""


def cell(column: str, value: object) -> str:
    """A value as one reads it; `-`: there is none."""
    if value is None or value == "":
        return "-"
    if column.endswith("_bytes") and isinstance(value, int):
        return short_size(value)
    if column in _PERCENT and isinstance(value, int | float):
        return f"{value * _PERCENT[column]:.1f}"
    if column.endswith(("_us", "_GBps")) and isinstance(value, str):  # exact, with more digits than one reads
        value = float(value)
    if isinstance(value, float):
        text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f"{Decimal(f'{value:.2g}'):f}" if "e" in text else text  # 0.000022, which nobody reads as 2.169e-05
    return str(value)


# --- CSV ---

# A spreadsheet would run a text that begins like a formula; an apostrophe before it makes it a text there.
_FORMULA: Final = re.compile(r"'*(?![-+](?:[\d.]|inf|nan))[=+\-@\t\r].", re.IGNORECASE)


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """CSV text of rows with a cell for each column, empty for None."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(_safe, rows))
    return text.getvalue()


def csv_meaning(cell: str) -> str:
    """The text that a cell was written for.

    >>> csv_meaning("'=x"), csv_meaning("'tis")
    ('=x', "'tis")
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _safe(row: Iterable[object]) -> list[str]:
    texts = ("" if cell is None else str(cell) for cell in row)
    return [f"'{text}" if _FORMULA.match(text) else text for text in texts]
