"""The row of a measured table with simcoll's names, and checks of its cells. All readers of tables use this module.

`size_bytes` is the total buffer as nccl-tests counts it; `time_us` is the median or mean that the harness reports.
Columns listed in `COLUMNS` are checked strictly; all other cells stay texts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import reprlib
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcoll.config.grouping import grouped
from simcoll.errors import Diagnostic, InputError, Place, did_you_mean
from simcoll.schedule import names
from simcoll.schedule.collectives import COLLECTIVES, Collective
from simcoll.units import float_of, format_size, int_of

LocatedCells = dict[str, tuple[str, Place | None]]  # one row: column → (text, place in the file)


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """One measurement. None: the table does not give the value (algorithm, protocol: NCCL chose freely)."""

    system: str | None = None
    library: str | None = None
    library_version: str | None = None
    collective: str
    ranks: int
    nodes: int | None = None
    dtype: str | None = None
    algorithm: str | None = None
    protocol: str | None = None
    timing: str | None = None
    harness: str = "library"
    size_bytes: int
    time_us: float
    time_us_min: float | None = None
    time_us_max: float | None = None
    runs: int | None = None
    in_place_time_us: float | None = None
    wrong: int | None = None  # number of wrong elements that the harness found; None: none, or unchecked
    others: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)  # columns that only `--where` uses
    place: Place | None = dataclasses.field(default=None, compare=False, repr=False)
    given: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)  # columns filled by defaults
    repeats: tuple[float, ...] = dataclasses.field(
        default=(), compare=False, repr=False
    )  # times of the rows that were joined


_ABOUT: Final = ("others", "place", "given", "repeats")
COLUMNS: Final = tuple(field.name for field in dataclasses.fields(MeasuredRow) if field.name not in _ABOUT)
REQUIRED: Final = ("collective", "ranks", "size_bytes", "time_us")
NOISE: Final = 1.5  # ratio of times that runs of a point on one machine rarely exceed, except at the smallest sizes
USUAL: Final = 1.2  # ratio that the median over the points of one machine rarely exceeds
SAME: Final = 0.016  # GB/s by which a printed busbw may differ from algbw times a factor
CONTRARY: Final = 1.1  # ratio that two bandwidths of a row differ by at most, beside what is rounded
MOST_RANKS: Final = 2049  # up to which ranks are inferred from busbw: beyond, printed digits do not tell
FEW_POINTS: Final = 3  # fewer points have no meaningful median
MAX_MISTAKES: Final = 20  # most mistakes listed for one table: a wrong column causes one per row

_OF_RUNS: Final = ("time_us", "time_us_min", "time_us_max", "in_place_time_us", "runs", "wrong")
_ABSENT: Final = frozenset(("", "none", "auto", "nan", "null", "na", "n/a", "-"))
_DTYPES: Final = names.names_by(names.DTYPES, lambda row: row.measured)
_ALGORITHMS: Final = {spelling.lower(): name for name, spelling in names.ALGORITHM_SPELLINGS.items()}
_PROTOCOLS: Final = {name.lower(): name for name in names.PROTOCOLS}


def unsaid(column: str, place: Place | None, what: str = "", of: Iterable[str] = ()) -> Diagnostic:
    """Return the error for a missing column, `collective` or `ranks`; `of` lists the collectives that are possible."""
    said = {
        "collective": ("which collective this is", "collective=NAME, with --collective NAME"),
        "ranks": ("how many ranks took part", "ranks=N, with --where ranks=N (simcoll import: --set ranks=N)"),
    }
    choices = f", one of {', '.join(of)}" if of else ""
    return Diagnostic(f"the file does not say {said[column][0]}{what}", f"give {said[column][1]}{choices}", "", place)


def alone(place: Place | None) -> Diagnostic:
    """Return the error for a benchmark of one rank."""
    cure = "start several: give nccl-tests -g N, or build it with MPI=1 and start N processes"
    return Diagnostic("one rank: nothing is communicated, so busbw is 0", cure, "", place)


def fitting_ranks(collective: Collective, algbw: float, busbw: float) -> list[int]:
    """Return up to two numbers of ranks for which `busbw` is the bus bandwidth of a call with this `algbw` (both in
    GB/s, printed with two decimals).

    >>> fitting_ranks(COLLECTIVES["all_reduce"], 188.37, 353.2), fitting_ranks(COLLECTIVES["broadcast"], 10.0, 10.0)
    ([16], [2, 3])
    """
    found = (n for n in range(2, MOST_RANKS) if abs(float(collective.busbw(n)) * algbw - busbw) <= SAME)
    return list(itertools.islice(found, 2))


def _collective(text: str) -> str:
    if names.squashed(text) == names.WORKLOAD:
        return names.WORKLOAD
    name = names.collective_named(text, in_table=True)
    if name is None:
        raise ValueError(f"{reprlib.repr(text)} is no collective; {did_you_mean(text.lower(), COLLECTIVES)}")
    return name


def _algorithm(text: str) -> str:
    chosen = re.fullmatch(r"auto\(=(\w+)\)", text)  # the library chose the named algorithm
    name = chosen[1] if chosen else text
    return _ALGORITHMS.get(name, name)


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int_of(text) if text.isdecimal() else float_of(text)
        except ValueError:
            raise ValueError(f"{reprlib.repr(text)} is not a number; write e.g. 8") from None
        if not (least <= value < 2**63 and value == int(value)):
            raise ValueError(f"{reprlib.repr(text)} is out of range; write a whole number of at least {least}")
        return int(value)

    return read


def _wrong(text: str) -> int | None:
    return _whole(0)(text) or None


def _duration(text: str) -> float:
    try:
        value = float_of(text)
    except ValueError:
        raise ValueError(f"{reprlib.repr(text)} is not a number; write microseconds, e.g. 53.2") from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{reprlib.repr(text)} is not a duration; write microseconds above 0, e.g. 53.2")
    return value


_READ: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("system", "library", "library_version", "timing"), str),
    "collective": _collective,
    "ranks": _whole(1),
    "nodes": _whole(1),
    "dtype": lambda text: _DTYPES.get(text.lower(), text.lower()),
    "algorithm": lambda text: _algorithm(text.lower()),
    "protocol": lambda text: _PROTOCOLS.get(text.lower(), text),
    "harness": str.lower,
    "size_bytes": _whole(0),
    "runs": _whole(0),
    "wrong": _wrong,
    **dict.fromkeys(("time_us", "time_us_min", "time_us_max", "in_place_time_us"), _duration),
}


def normal(column: str, value: object) -> Any:
    """Return the value of a cell with simcoll's names and types, None if absent; in columns not in `COLUMNS`, a text.

    Raises ValueError with the text "problem; fix".

    >>> normal("collective", "AllReduce"), normal("dtype", "half"), normal("algorithm", "auto")
    ('all_reduce', 'float16', None)
    """
    text = "" if value is None else str(value).strip()
    return None if text.lower() in _ABSENT else _READ.get(column, str)(text)


def given(defaults: Mapping[str, object]) -> LocatedCells:
    """Return defaults as cells; raises InputError for an unknown column or an invalid value."""
    cells: LocatedCells = {}
    mistakes = []
    for column, value in defaults.items():
        try:
            if column not in COLUMNS:
                raise ValueError(f"unknown column; {did_you_mean(column, COLUMNS)}")
            meant = normal(column, value)
        except ValueError as error:
            mistakes.append(Diagnostic.of(error, column))
            continue
        if meant is not None:
            cells[column] = (str(meant), None)
    if mistakes:
        raise InputError(mistakes)
    return cells


def rows(table: Iterable[LocatedCells], given: LocatedCells, mistakes: list[Diagnostic]) -> list[MeasuredRow]:
    """Check cells and convert them into rows; `given` supplies missing cells. Rows that differ only in times are
    joined.

    Raises InputError with all mistakes, including the reader's `mistakes`, but with at most MAX_MISTAKES.
    """
    made = [_row(cells, given, mistakes) for cells in table]
    if mistakes:
        first = sorted(mistakes, key=lambda d: (d.place is None, d.place))[:MAX_MISTAKES]
        if len(mistakes) > len(first):
            first[-1] = Diagnostic(f"{len(mistakes) - len(first) + 1} more mistakes", "mend these first")
        raise InputError(first)
    return _joined(row for row in made if row is not None)


def _joined(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Join rows of one point (several runs) into one row: the median, least and greatest time, number of runs."""
    return [row if len(runs) == 1 else _of_runs(runs) for runs in grouped(rows, _point).values() for row in runs[:1]]


def _point(row: MeasuredRow) -> Hashable:
    """Return the values of a row that identify its point: all columns except those of times and runs."""
    said = (getattr(row, column) for column in COLUMNS if column not in _OF_RUNS)
    return (*said, *sorted(row.others.items()))


def _of_runs(runs: Sequence[MeasuredRow]) -> MeasuredRow:
    inside = [row.in_place_time_us for row in runs if row.in_place_time_us]
    return dataclasses.replace(
        runs[0],
        time_us=statistics.median(row.time_us for row in runs),
        time_us_min=min(row.time_us_min or row.time_us for row in runs),
        time_us_max=max(row.time_us_max or row.time_us for row in runs),
        runs=sum(row.runs or 1 for row in runs),
        in_place_time_us=statistics.median(inside) if inside else None,
        wrong=sum(row.wrong or 0 for row in runs) or None,
        repeats=tuple(row.time_us for row in runs),
    )


def wrong_cell(counts: Iterable[object], place: Place | None) -> LocatedCells:
    """Return the cell of column `wrong`: the sum of a harness's counts of wrong elements; empty for a sum of 0."""
    found = (re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:e\+?[0-9])?", str(count).strip()) for count in counts)
    wrong = sum(int(float(match[0])) for match in found if match)
    return {"wrong": (str(wrong), place)} if wrong else {}


def wrong_data(rows: Sequence[MeasuredRow]) -> str | None:
    """Return a remark if rows have wrong elements in their results; else None."""
    wrong = [row.wrong for row in rows if row.wrong]
    if not wrong:
        return None
    elements = "an element" if sum(wrong) == 1 else f"{sum(wrong)} elements"
    return f"the check of what was computed found {elements} wrong, in {len(wrong)} of {len(rows)} rows"


def scattered(rows: Iterable[MeasuredRow]) -> str | None:
    """Return a remark if runs of one point differ by more than noise, as runs on different machines do; else None."""
    repeated = [row for row in rows if row.repeats]
    apart = [(max(row.repeats) / min(row.repeats), row) for row in repeated]
    usual = statistics.median(times for times, _ in apart) if len(apart) >= FEW_POINTS else 1.0
    far = [(times, row) for times, row in apart if times > (USUAL if usual > USUAL else NOISE)]
    if not far:
        return None
    most, row = max(far, key=lambda pair: pair[0])
    shown = ", ".join(f"{time:.5g}" for time in (min(row.repeats), max(row.repeats)))
    points = f"runs of {len(far)} of {len(repeated)} points that were measured several times"
    where = f"up to {most:.3g}x apart ({format_size(row.size_bytes)}: {shown} us)"
    return f"{points} are {where}, and their median counts: give runs of different states one by one"


def _timed_by_bandwidth(values: dict[str, Any], said: LocatedCells) -> list[Diagnostic]:
    """Set the time of a row that has `algbw` or `busbw` (GB/s) in place of a time. Return a mistake for a bandwidth
    that gives no time, or that contradicts the time."""
    if values.get("collective") not in COLLECTIVES or not {"ranks", "size_bytes"} <= values.keys():
        return []
    factors = {"algbw": 1.0, "busbw": float(COLLECTIVES[values["collective"]].busbw(values["ranks"]))}
    timed = "time_us" in values
    for column in (column for column in factors if column in said):
        text, place = said[column]
        try:
            told = values["size_bytes"] * factors[column] / float_of(text) / 1e3
        except (ValueError, ZeroDivisionError):
            told = 0.0
        if "time_us" not in values:
            said["time_us"] = f"{told:.10g}", place
            if not 0 < told < math.inf:
                return [Diagnostic("gives no time", "write a bandwidth above 0, in GB/s", column, place)]
            values["time_us"] = told
        most = 2.0 if timed else CONTRARY + SAME / max(SAME, float_of(text))
        if told > 0 and not 1 / most < values["time_us"] / told < most:
            other = f"{values['time_us']:.6g} us contradict" if timed else "algbw contradicts"
            problem = f"{other} {column} {text} GB/s, by which it took {told:.6g} us"
            where = said.get("time_us", said[column])[1]
            return [Diagnostic(problem, "check units: us, GB/s, bytes", "time_us", where)]
    return []


def _row(cells: LocatedCells, given: LocatedCells, mistakes: list[Diagnostic]) -> MeasuredRow | None:
    before, values = len(mistakes), dict[str, Any]()
    nowhere = ("", None)
    said = {column: cell for column, cell in cells.items() if cell[0].strip().lower() not in _ABSENT}
    for column, (text, place) in {**given, **said}.items():
        if column in _READ:
            try:
                values[column] = normal(column, text)
            except ValueError as error:
                mistakes.append(Diagnostic.of(error, column, place))
    if (nodes := values.get("nodes")) and nodes > values.get("ranks", nodes):
        problem = f"{nodes} nodes are more than the {values['ranks']} ranks that ran on them"
        place = {**given, **said}["nodes"][1]
        mistakes.append(Diagnostic(problem, "write the number of machines that had a rank", "nodes", place))
    if len(mistakes) == before:
        mistakes += _timed_by_bandwidth(values, said)
    missing = [column for column in REQUIRED if column not in said and column not in given]
    beside = next(iter(cells.values()), nowhere)  # a missing cell is named by the place of its row
    mistakes += [Diagnostic("is missing", "write a value", c, cells.get(c, beside)[1]) for c in missing]
    if len(mistakes) > before:
        return None
    if values.get("harness") is None:
        by_tests = re.search(r"[nr]ccl[-_ ]tests", values.get("timing") or "", re.IGNORECASE)
        values["harness"] = "nccl-tests" if by_tests else "library"
    said_so = {column: cell for column, cell in cells.items() if column == "asked" or "." in column}  # none, auto count
    swept = {column: cell for column, cell in said_so.items() if cell[0].strip()}
    others = {column: text for column, (text, _) in {**said, **swept}.items() if column not in _READ}
    filled = tuple(column for column in given if column not in said)
    return MeasuredRow(**values, others=others, place=cells.get("time_us", nowhere)[1], given=filled)
