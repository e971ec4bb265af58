"""Join measured rows with predicted rows: find the prediction of each row, and its error.

Two rows match if they agree in every column of `KEYS` that both have; `none`, `auto` and empty cells match anything.
The functions neither read nor print; other modules do.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcoll.config.grouping import grouped
from simcoll.errors import Diagnostic, InputError, Place, did_you_mean
from simcoll.formats.measured import COLUMNS, MAX_MISTAKES, NOISE, MeasuredRow, normal
from simcoll.schedule.names import WORKLOAD
from simcoll.units import float_of, format_size

EXACT: Final = ("collective", "ranks", "size_bytes")  # every table has these columns
LOOSE: Final = ("nodes", "dtype", "algorithm", "protocol")
KEYS: Final = (*EXACT, *LOOSE)

FEW: Final = 0.1  # a column separates calls if at most this share of them stays apart within each of its values
_ABOUT_TIMES: Final = ("time_us", "in_place_time_us", "runs")  # columns of outcomes; they do not describe the call
MOST_LISTED: Final = 12  # values of a column that an error message lists: about two lines of a terminal
# Columns of results, and endings of their names. Rows of one call differ in them, so complaints do not mention them.
# Complaints also skip columns of fractions, which are measured values, except for swept keys (`a.b`).
_OUTCOMES: Final = ("steps", "messages", "status", "confidence", "proved", "shortcut", "runs", "row", "time_ps",
                    "engine", "staged", "point", "spread", "verified", "wrong", "date", "low", "high",
                    "of_library")  # fmt: skip
_OUTCOME_ENDINGS: Final = ("binding_link", "binding_busy", "staged_bytes", "_us", "_us_min", "_us_max", "_GBps",
                           "wire_bytes", "_per_rank", "_ns")  # fmt: skip

Record = Mapping[str, Any]


@dataclass(frozen=True)
class JoinedPoint:
    """One measured row and its prediction; `error` = predicted/measured − 1."""

    collective: str
    algorithm: str | None
    protocol: str | None
    ranks: int
    nodes: int | None
    size_bytes: int
    dtype: str | None
    measured_us: float
    predicted_us: float
    error: float
    low_us: float | None
    high_us: float | None
    confidence: str | None


def pairs(
    measured: Sequence[MeasuredRow], predicted: Sequence[Mapping[str, object]], where: Mapping[str, str]
) -> list[tuple[MeasuredRow, Record]]:
    """Return pairs of a measured row and its prediction, in the order of the measured table.

    `where` selects rows of both tables, as `select` does. Predicted rows without a `time_us` (refused ones) do not
    count; measured rows without a prediction are left out. Raises InputError if two rows match one row of the other
    table, or if a predicted row or `where` cannot be read.
    """
    rows = [_record(row) for row in measured]
    predictions = _timed(predicted)
    _check_columns(where, (*rows, *predicted))
    chosen = _select(rows, where)
    candidates = defaultdict(list)
    for record in _select(predictions, where):
        candidates[tuple(record[key] for key in EXACT)].append(record)
    partners = [_asked_alike(row, candidates[tuple(row[key] for key in EXACT)]) for row in chosen]
    _check_single(chosen, partners)
    return [(row["row"], matches[0]) for row, matches in zip(chosen, partners, strict=True) if matches]


def answered(measured: Sequence[MeasuredRow], predicted: Sequence[Sequence[Mapping[str, object]]]) -> list[JoinedPoint]:
    """Return a joined point for each measured row that has a prediction; `predicted[i]` belongs to `measured[i]`.

    Raises InputError if a row has several predictions, or if several rows share one.
    """
    timed = {id(row): _timed([row]) if row.get("time_us") else [] for answers in predicted for row in answers}
    rows = [_record(row) for row in measured]
    partners = [[record for row in answers for record in timed[id(row)]] for answers in predicted]
    _check_single(rows, partners)
    return [_point(row, matches[0]) for row, matches in zip(rows, partners, strict=True) if matches]


def defaults(where: Mapping[str, str]) -> dict[str, str]:
    """Return values to assume for rows with empty columns of `where`: those of conditions that name one value."""
    return {column: text for column, text in where.items() if column in COLUMNS and "," not in text}


def filled(measured: Sequence[MeasuredRow], where: Mapping[str, str]) -> list[str]:
    """Return a warning for each column of `where` that some kept rows leave empty, with the number of such rows."""
    lines = []
    for column, text in where.items():
        if None in _wanted(column, text):  # rows without an algorithm mean `auto`
            continue
        silent = [row for row in measured if column in row.given or _record(row).get(column) is None]
        meant = f"taken to be {text}" if any(column in row.given for row in silent) else "kept all the same"
        lines += [f"{len(silent)} of {len(measured)} rows do not say {column}: {meant}"] * bool(silent)
    return lines


def apart(measured: Sequence[MeasuredRow]) -> list[str]:
    """Return a warning, in a list, if equal calls have times that differ by more than noise, so that one fit cannot
    serve all; else an empty list. The warning names the columns that tell these calls apart."""
    records = [_record(row) for row in measured]
    columns = list(dict.fromkeys([*COLUMNS, *(column for record in records for column in record)]))
    same = [*KEYS, "harness", *(column for column in columns if "." in column)]

    def far(*others: str) -> list[list[Record]]:
        calls = grouped(records, lambda record: tuple(record.get(column) for column in (*same, *others)))
        return [own for own in calls.values() if _times(own) > NOISE]

    found = far()
    if not found:
        return []
    worst = max(found, key=_times)
    times = [record["time_us"] for record in worst]
    call = f"{worst[0]['collective']} on {worst[0]['ranks']}, {format_size(worst[0]['size_bytes'])}"
    about = [column for column in columns if column not in (*same, "row") and not column.startswith(_ABOUT_TIMES)]
    of_groups = [column for column in about if len({record.get(column) for record in records}) <= len(records) / 4]
    telling = [column for column in of_groups if len(far(column)) <= FEW * len(found)]
    cure = "they differ in no other column"
    if telling:
        value = Counter(str(record.get(telling[0])) for record in worst).most_common(1)[0][0]
        cure = f"they differ in {', '.join(telling)}: keep one value, e.g. --where {telling[0]}={value}"
    most = f"{_times(worst):.3g}x apart ({call}: {min(times):.5g} and {max(times):.5g} us)"
    return [f"equal calls took times up to {most}; {cure}"]


def _times(records: Sequence[Record]) -> float:
    times = [record["time_us"] for record in records]
    return float(max(times) / min(times))


def select(measured: Sequence[MeasuredRow], where: Mapping[str, str]) -> list[MeasuredRow]:
    """Return the rows with column COL equal to VALUE, or one of `a,b,…`; if there are none, rows with COL empty."""
    return [record["row"] for record in _select([_record(row) for row in measured], where)]


def kept(measured: Sequence[MeasuredRow], where: Mapping[str, str], source: str) -> list[MeasuredRow]:
    """Return rows like `select`. Raises InputError for a column that no row has, and for the first condition that keeps
    none.
    """
    check_columns(where, measured)
    left = list(measured)
    for column, text in where.items():
        before, left = left, select(left, {column: text})
        if not left:
            said = {_comparable(column, record.get(column)): record.get(column) for record in map(_record, before)}
            there = [str(said[value]) for value in sorted(said, key=lambda value: (isinstance(value, str), value))]
            few = there if len(there) <= MOST_LISTED else [*there[: MOST_LISTED - 1], "…", there[-1]]
            raise InputError(f"--where {column}={text} keeps no row of {source}", f"{column} is {', '.join(few)} there")
    return left


def among(measured: Sequence[MeasuredRow], where: Mapping[str, Collection[str]], option: str) -> list[bool]:
    """Return flags of the rows with a wanted value in each column. Raises InputError for a column that no row has."""
    check_columns(where, measured, option)
    records = [_record(row) for row in measured]
    wanted = {column: {_comparable(column, text, option) for text in texts} for column, texts in where.items()}
    return [all(_comparable(c, record.get(c)) in values for c, values in wanted.items()) for record in records]


def check_columns(where: Iterable[str], measured: Iterable[MeasuredRow], option: str = "--where") -> None:
    """Raise InputError for a column that no row has."""
    _check_columns(where, map(_record, measured), option)


def _check_columns(where: Iterable[str], records: Iterable[Record], option: str = "--where") -> None:
    known = {*COLUMNS, *(column for record in records for column in record)} - {"row"}
    if unknown := [column for column in where if column not in known]:
        raise InputError(Diagnostic(f"{option}: no column {c!r}", did_you_mean(c, known)) for c in unknown)


def _record(row: MeasuredRow) -> Record:
    return {**row.others, **{column: getattr(row, column) for column in COLUMNS}, "row": row}


def _timed(predicted: Sequence[Mapping[str, object]]) -> list[Record]:
    """Return the predicted rows that have a time, with the vocabulary of measured tables in their columns."""
    if predicted and not any("time_us" in row for row in predicted):
        raise InputError("the predictions have no column 'time_us'", "give the results.csv of simcoll run")
    mistakes: dict[tuple[str, str], Diagnostic] = {}
    timed: list[Record] = []
    for row in predicted:
        record = dict(row)
        for column in (*KEYS, "time_us", "low_us", "high_us"):
            try:
                record[column] = _read(column, row.get(column), row.get("collective"))
            except ValueError as error:
                mistake = Diagnostic.of(f"predicted row: {error}", column)
                mistakes.setdefault((column, mistake.what), mistake)
        if record.get("status", "ok") == "ok" and record["time_us"] is not None:
            timed.append(record)
    if mistakes:
        raise InputError(list(mistakes.values())[:MAX_MISTAKES])
    return timed


def _read(column: str, value: Any, collective: object) -> Any:
    if column == "size_bytes" and collective == WORKLOAD:
        return 0
    if column in ("low_us", "high_us"):
        return None if value in (None, "") else float_of(str(value))
    meant = normal(column, value)
    if meant is None and column in EXACT:
        raise ValueError("is missing; write a value")
    return meant


def _select(records: Sequence[Record], where: Mapping[str, str]) -> Sequence[Record]:
    for column, text in where.items():
        wanted = _wanted(column, text)
        values = [_comparable(column, record.get(column)) for record in records]
        keep = wanted & set(values) or {None}
        records = [record for record, value in zip(records, values, strict=True) if value in keep]
    return records


def _wanted(column: str, text: str) -> set[float | str | None]:
    return {_comparable(column, choice.strip()) for choice in text.split(",")}


def _comparable(column: str, value: object, option: str = "--where") -> float | str | None:
    """Return a cell's value for comparison: a number if possible, else text in small letters; None if it is empty."""
    try:
        meant = normal(column, value)
    except ValueError as error:
        raise InputError(f"{option} {column}: {error}") from None
    try:
        return None if meant is None else float(meant)
    except ValueError:
        return str(meant).lower()


def _asked_alike(measured: Record, predicted: Sequence[Record]) -> list[Record]:
    """Return the predicted rows that match the measured one. Of several, only those are returned that were requested
    under the measured row's name: its column `asked`, else its algorithm, else `auto`."""
    matches = [record for record in predicted if _match(measured, record)]
    asked = measured.get("asked" if "asked" in measured else "algorithm") or "auto"  # tables read `auto` as None
    return [record for record in matches if record.get("asked") == asked] or matches


def _match(measured: Record, predicted: Record) -> bool:
    """Return whether two rows agree in all columns that both fill, including swept keys (`measure.buckets`)."""
    if not all(None in (measured[key], predicted[key]) or measured[key] == predicted[key] for key in LOOSE):
        return False
    swept = (column for column in measured if ("." in column or column == WORKLOAD) and column in predicted)
    pairs = ((_swept_value(measured[c]), _swept_value(predicted[c])) for c in swept)
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def _swept_value(value: object) -> float | str | None:
    """Return the value of a swept key; None if it is empty. Here `none` and `auto` are ordinary values."""
    text = "" if value is None else str(value).strip().lower()
    try:
        return float_of(text) if text else None
    except ValueError:
        return text


def _check_single(rows: Sequence[Record], partners: Sequence[Sequence[Record]]) -> None:
    """Raise InputError if a row has two partners or two rows share one, with a complaint for each set of columns."""
    complaints: dict[tuple[str, ...], Diagnostic] = {}
    rivals: dict[int, list[Record]] = defaultdict(list)
    for row, matches in zip(rows, partners, strict=True):
        if len(matches) > 1:
            _complain(complaints, "predicted rows match this measured row", matches, row["row"].place)
        for record in matches:
            rivals[id(record)].append(row)
    for several in rivals.values():
        if len(several) > 1:
            _complain(complaints, "measured rows match one predicted row", several, several[1]["row"].place)
    if complaints:
        raise InputError(list(complaints.values())[:MAX_MISTAKES])


def _complain(
    complaints: dict[tuple[str, ...], Diagnostic], conflict: str, rivals: Sequence[Record], place: Place | None
) -> None:
    """Add a complaint that several rows have one partner, with a condition that would select one of them."""
    named = [c for c in rivals[0] if c not in _OUTCOMES and not c.endswith(_OUTCOME_ENDINGS)]
    columns = [c for c in named if "." in c or not any(_is_fraction(record.get(c)) for record in rivals)]
    values = {c: sorted({_shown(record.get(c)) for record in rivals}) for c in columns}
    differing = [c for c in columns if len(values[c]) > 1]
    if {"asked", "algorithm"} <= {*differing}:
        differing.remove("asked")  # the algorithm says enough
    where = " and ".join(f"{c} ({', '.join(values[c])})" for c in differing) or "no column that --where could choose by"
    if differing:
        value = next(value for value in values[differing[0]] if value != "auto")
        cure = f"choose, e.g. with --where {differing[0]}={value}"
    else:
        cure = "remove the duplicates, which --where cannot distinguish"
    problem = f"{len(rivals)} {conflict} and differ in {where}"
    complaints.setdefault((conflict, *differing), Diagnostic(problem, cure, "", place))


def _is_fraction(value: object) -> bool:
    """Return whether a cell is a decimal fraction with at least three decimals; a release such as `2.27` is a text."""
    return isinstance(value, float | str) and re.fullmatch(r"-?\d+\.\d{3,}(e[-+]?\d+)?", str(value)) is not None


def _shown(value: object) -> str:
    return "auto" if value is None or value == "" else str(value)


def _point(measured: Record, predicted: Record) -> JoinedPoint:
    either = {key: predicted[key] if measured[key] is None else measured[key] for key in KEYS}
    return JoinedPoint(
        **either,
        measured_us=measured["time_us"],
        predicted_us=predicted["time_us"],
        error=predicted["time_us"] / measured["time_us"] - 1,
        low_us=predicted["low_us"],
        high_us=predicted["high_us"],
        confidence=predicted.get("confidence") or None,
    )
