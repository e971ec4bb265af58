"""Read tables of benchmarks that print a title and columns, by the descriptions in `described_tables.yaml`.

What a text lacks (ranks, collective) is asked for. Some programs count the bytes of one rank's part, and simcoll counts
the whole buffer. A bandwidth in the row shows which it is, as it counts the whole buffer; else the description says it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import Field

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.errors import InputError, Place
from simcoll.formats.measured.measured_row import LocatedCells, fitting_ranks, unsaid
from simcoll.schedule import names
from simcoll.schedule.collectives import COLLECTIVES

CURE: Final = "give what the benchmark prints, with its headings"
# To bytes (programs count 2^20 bytes as MB), microseconds and GB/s.
_UNITS: Final = {"B": 1.0, "Bytes": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "KiB": 2.0**10, "MiB": 2.0**20,
                 "GiB": 2.0**30, "us": 1.0, "usec": 1.0, "ms": 1e3, "s": 1e6, "GB/s": 1.0, "GB/sec": 1.0, "GBps": 1.0,
                 "Gbps": 1 / 8}  # fmt: skip
_DECIMAL: Final = {"MB": 1e6, "GB": 1e9}  # that a heading may mean, too
_WORD: Final = re.compile(rf"([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)(?:\s?({'|'.join(_UNITS)}))?(?!\S)|\S+")
_LABEL: Final = re.compile(
    r"^\s*(?:(?:[0-9]+:|\[[^\]]{1,80}\](?:<\w+>)?:?)\s?)+"
)  # of a launcher or a logger, before a line
_DRESS: Final = re.compile(r"\||^\s*#(?=\s)")
_IN_HEADING: Final = re.compile(rf"[\[(]({'|'.join(map(re.escape, _UNITS))})[\])]", re.IGNORECASE)
_NEAR: Final = 0.03  # share by which a printed size may differ from bandwidth times time


class Column(NamedTuple):
    """A column of a table: our `name` for it, empty if it is left out, and the unit that its heading names."""

    name: str
    unit: str = ""


class Described(Model):
    """How the tables of one benchmark look; `described_tables.yaml` says what the keys mean."""

    name: str
    title: str
    facts: tuple[str, ...] = ()
    columns: dict[str, str] = Field(default_factory=dict)
    header: str = ""
    row: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    says: dict[str, str] = Field(default_factory=dict)
    instead: str = ""

    def headed(self, line: str) -> list[Column]:
        """Return each column below a line of headings; an empty list for other lines.

        If several headings are of one column, the first in the description counts."""
        if self.header:
            return [Column(name) for name in self.row] if re.search(self.header, line) else []
        known = {_squeezed(heading): column.partition(" ")[0] for heading, column in self.columns.items()}
        units = {_squeezed(heading): column for heading, column in self.columns.items()}
        said = [match[0] for match in _headings(tuple(self.columns)).finditer(line)]
        found = list(map(_squeezed, said))
        first: dict[str, str] = {}
        for heading, column in known.items():
            if heading in found:
                first.setdefault(column, heading)
        sized = first.keys() & {"size_bytes", "elements"} or all(heading in known for heading in found)  # of a barrier
        if not sized or not first.keys() & {"time_us", "algbw"}:
            return []
        return [
            Column(
                name if first.get(name) == heading else "",
                next(iter(_IN_HEADING.findall(f"{text} {units.get(heading)}")), ""),
            )
            for text, heading in zip(said, found, strict=True)
            if (name := known.get(heading, "")) != "above"
        ]


class _File(Model):
    tables: tuple[Described, ...]
    collectives: dict[str, str]


@functools.cache
def _file() -> _File:
    return yaml_tree.validate(_File, [yaml_tree.read(Path(__file__).with_suffix(".yaml"))])[0]


def _squeezed(heading: str) -> str:
    return re.sub(r"\s", "", heading).lower()


@functools.cache
def _headings(headings: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for the next heading of a line: one of these, with any spaces, or a word."""
    known = (r"\s*".join(map(re.escape, text.split())) for text in sorted(headings, key=len, reverse=True))
    return re.compile(rf"(?<!\S)(?:{'|'.join(known)})(?!\S)|\S+", re.IGNORECASE)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line without a launcher's label, and also without bars and `#`; columns stay in place."""
    for line in re.split(r"\r\n|\r|\n", text):
        bare = _LABEL.sub(_blank, line)
        yield bare, _DRESS.sub(_blank, bare)


def _form(text: str) -> Described | None:
    """Return the description that a text fits: it has a title and a line of headings."""
    lines = list(dict.fromkeys(_lines(text)))
    titled = (form for form in _file().tables if any(re.search(form.title, bare) for bare, _ in lines))
    return next((form for form in titled if any(form.headed(plain) for _, plain in lines)), None)


def looks(text: str) -> bool:
    """Return whether a text has the title and headings of a described table."""
    return _form(text) is not None


def cells(text: str, source: str, given: LocatedCells) -> list[LocatedCells]:
    """Return the cells of every row, with their places. Raises InputError if neither text nor `given` has the
    collective or the ranks."""
    form = _form(text)
    if form and form.instead:
        raise InputError(f"{source}: this is the output of {form.name}", form.instead)
    rows: list[LocatedCells] = []
    facts: dict[str, str] = {}
    columns: list[Column] = []
    for number, (bare, plain) in enumerate(_lines(text), 1):
        assert form is not None
        if title := re.search(form.title, bare):
            columns = []
        for found in (title, *(re.search(pattern, bare) for pattern in form.facts)):
            facts |= {fact: said for fact, said in (found.groupdict() if found else {}).items() if said}
        words = list(_WORD.finditer(plain))
        if heads := form.headed(plain):
            columns = heads
        elif columns and len(words) == 1 and "above" in form.columns.values():
            facts["collective"] = words[0][0]
        elif columns and (len(words) >= len(columns) or form.row):
            pairs = reversed(list(zip(columns, words, strict=False)))  # of columns with one name the first counts
            values = {column: word for column, word in pairs if column.name}
            if all(word[1] or column.name == "dtype" for column, word in values.items()):
                rows += _row(form, values, facts, given, Place(source, number, 1))
    return rows


def _row(
    form: Described, values: dict[Column, re.Match[str]], facts: dict[str, str], given: LocatedCells, place: Place
) -> Iterator[LocatedCells]:
    """Yield the cells of a row, unless it lacks a size or a time, or its collective is not known."""
    number = {
        column.name: float(word[1]) * _units(word[2] or column.unit)[0] for column, word in values.items() if word[1]
    }
    called = facts.get("collective", given.get("collective", ("", None))[0])
    if not called:
        raise InputError([unsaid("collective", place)])
    name = _file().collectives.get(called.lower()) or _MPI.get(names.squashed(called)) or names.collective_named(called)
    size = number.get("size_bytes", 4 * number.get("elements", 0 if name == "barrier" else -1))
    time = number.get("time_us") or size / 1e3 / (number.get("algbw") or float("inf"))
    if name is None or not time or size < 0 or (size == 0 and name != "barrier"):
        return
    contract, algbw, busbw = COLLECTIVES[name], number.get("algbw", 0.0), number.get("busbw", 0.0)
    inferred = fitting_ranks(contract, algbw, busbw) if algbw else []
    ranks = facts.get("ranks") or given.get("ranks", ("", None))[0] or (str(*inferred) if len(inferred) == 1 else "")
    if not ranks:
        raise InputError([unsaid("ranks", place)])
    n = max(1, int(ranks[:9]))  # other numbers are refused later, with their place
    whole = algbw or (busbw / float(contract.busbw(n)) if contract.busbw(n) else 0.0)
    scales = next((_units(column.unit) for column in values if column.name == "size_bytes"), [1.0])
    usual = n if name in form.parts else 1
    options = [size * scale / scales[0] * parts for parts, scale in itertools.product((usual, n, 1), scales)]
    near = [each for each in options if abs(whole * time * 1e3 / each - 1) < _NEAR] if size else []
    row = {"collective": name, "ranks": ranks, "size_bytes": f"{(near or options)[0]:.0f}", "time_us": f"{time:.10g}"}
    row |= {column: f"{number[column]:.10g}" for column in ("time_us_min", "time_us_max", "runs") if number.get(column)}
    row |= {fact: facts[fact].lower() for fact in ("library", "nodes", "dtype") if fact in facts}
    row |= {column.name: word[0] for column, word in values.items() if column.name == "dtype"}
    places = {column.name: Place(place.source, place.line, word.start() + 1) for column, word in values.items()}
    if len(inferred) == 1 and "ranks" not in {**facts, **given}:
        row["timing"] = f"{form.says['timing']}; ranks inferred from busbw"
    yield {column: (text, places.get(column, place)) for column, text in {**form.says, **row}.items()}


def _units(unit: str) -> list[float]:
    """Return what a heading's unit may mean, the usual meaning first; 1 without a unit."""
    known = unit if unit in _UNITS else next((name for name in _UNITS if name.lower() == unit.lower()), "B")
    return [_UNITS[known], *([_DECIMAL[known]] if known in _DECIMAL else [])]


_MPI: Final = names.names_by(names.COLLECTIVES, lambda row: row.mpi)
