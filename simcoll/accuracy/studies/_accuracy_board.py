"""Build the accuracy board: errors by collective, ranks and region, beside those of simple baselines on the same rows.

Errors are mean absolute ones in percent, of rows that no fit has seen and that are not bad; `–` where a baseline has no
prediction for some of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simcoll.accuracy import scores
from simcoll.accuracy.disturbed_rows import TOO_LONG
from simcoll.accuracy.studies.baselines import RIVALS
from simcoll.accuracy.studies.validate import Scored
from simcoll.config.groups import grouped

MOST_BAD: Final = 20  # bad rows that the report lists for each fit, about half a page
WAYS: Final = ("**simcoll**", *RIVALS)
SERIES: Final = ("fit", "collective", "ranks", "nodes")


BoardTable = tuple[str, Sequence[str], Sequence[Sequence[object]]]  # a title, columns and rows


def tables(scored: Sequence[Scored]) -> Iterator[BoardTable]:
    """Yield the errors of each fit: over all rows, by collective and ranks, and by region; then the bad rows."""
    held = [row for row in scored if not row.fitted and not row.suspicious]
    fits, groups = grouped(held, lambda row: (row.fit,)).items(), grouped(held, _series).items()
    regions = [((*series, name), rows) for series, group in groups for name, rows in _regions(group)]
    first = "Mean absolute error in percent on rows that were not fitted, beside simple ways on the same rows:\n"
    for title, columns, of_rows in (
        (first, ("fit",), fits),
        ("The same by collective and ranks:\n", SERIES, groups),
        ("The same by region (see `simcoll compare`) of these:\n", (*SERIES, "region"), regions),
    ):
        yield title, (*columns, "rows", *WAYS), [(*key, len(rows), *_errors(rows)) for key, rows in of_rows]
    if bad := [row for row in scored if row.suspicious]:
        yield _bad_rows(bad)


def _bad_rows(bad: Sequence[Scored]) -> BoardTable:
    shown: list[tuple[object, ...]] = []
    for fit, of_fit in grouped(bad, lambda row: row.fit).items():
        rows = sorted(of_fit, key=lambda row: (*_series(row), row.point.size_bytes))
        shown += [
            (*_series(row), row.point.size_bytes, f"{row.point.measured_us:.1f}", f"{row.point.predicted_us:.1f}")
            for row in rows[:MOST_BAD]
        ]
        if len(rows) > MOST_BAD:
            shown.append((fit, f"{len(rows) - MOST_BAD} more", *"–––––"))
    why = (
        f"Bad rows took more than {TOO_LONG:g} times what twice their size or more took, and count for nothing above:\n"
    )
    return why, (*SERIES, "bytes", "measured (us)", "predicted (us)"), shown


def _series(row: Scored) -> tuple[str, str, int, int]:
    return row.fit, row.point.collective, row.point.ranks, row.point.nodes or 1


def _regions(rows: Sequence[Scored]) -> list[tuple[str, list[Scored]]]:
    region_of = scores.region_of([row.point for row in rows])
    groups = grouped(rows, lambda row: region_of(row.point))
    return [(name, groups[name]) for name in scores.REGIONS if name in groups]


def _errors(rows: Sequence[Scored]) -> list[str]:
    """Return the mean error of simcoll on these rows, then that of each baseline."""
    simcoll = _mean([row.point.predicted_us for row in rows], rows)
    return [simcoll, *(_mean([row.rivals.get(name) for row in rows], rows) for name in RIVALS)]


def _mean(predicted_us: Sequence[float | None], rows: Sequence[Scored]) -> str:
    known = [us / row.point.measured_us - 1 for us, row in zip(predicted_us, rows, strict=True) if us is not None]
    return f"{scores.errors(known)['mape']:.1f}" if len(known) == len(rows) else "–"
