"""The accuracy board: errors on tables by collective, ranks and region, beside those of simple ways on the same rows.

Errors are mean absolute ones in percent, of rows that no fit has seen and that are not bad; `–` where a way cannot tell
all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from simcoll.accuracy import scores
from simcoll.accuracy.bad_rows import TOO_LONG
from simcoll.accuracy.studies.baselines import RIVALS
from simcoll.accuracy.studies.validate import Scored

MOST_BAD: Final = 20  # rows that are listed of each table
WAYS: Final = ("**simcoll**", *RIVALS)


class BoardTable(NamedTuple):
    """A table of a report: what it tells, and its columns and rows."""

    title: str
    cells: tuple[Sequence[str], Sequence[Sequence[object]]]


def tables(scored: Sequence[Scored]) -> Iterator[BoardTable]:
    """Of all rows of each fit, by collective and ranks and by region of these; and rows that cannot be right."""
    held = [one for one in scored if not one.fitted and not one.suspicious]
    groups = scores.grouped(held, _series).items()
    yield BoardTable(
        "Mean absolute error in percent on rows that were not fitted, beside simple ways on the same rows:\n",
        (
            ("fit", "rows", *WAYS),
            [(fit, len(its), *_errors(its)) for fit, its in scores.grouped(held, lambda one: one.fit).items()],
        ),
    )
    yield BoardTable(
        "The same by collective and ranks:\n",
        (
            ("fit", "collective", "ranks", "nodes", "rows", *WAYS),
            [(*series, len(its), *_errors(its)) for series, its in groups],
        ),
    )
    yield BoardTable(
        "The same by region (see `simcoll compare`) of these:\n",
        (
            ("fit", "collective", "ranks", "nodes", "region", "rows", *WAYS),
            [(*series, region, len(its), *_errors(its)) for series, some in groups for region, its in _regions(some)],
        ),
    )
    if odd := [one for one in scored if one.suspicious]:
        yield _bad(odd)


def _bad(odd: Sequence[Scored]) -> BoardTable:
    shown: list[tuple[object, ...]] = []
    for its in scores.grouped(odd, lambda one: one.fit).values():
        rows = sorted(its, key=lambda one: (*_series(one), one.point.size_bytes))
        shown += [
            (*_series(one), one.point.size_bytes, f"{one.point.measured_us:.1f}", f"{one.point.predicted_us:.1f}")
            for one in rows[:MOST_BAD]
        ]
        if len(rows) > MOST_BAD:
            shown.append((its[0].fit, f"{len(rows) - MOST_BAD} more", *"–––––"))
    why = (
        f"Bad rows took more than {TOO_LONG:g} times what twice their size or more took, and count for nothing above:\n"
    )
    return BoardTable(why, (("fit", "collective", "ranks", "nodes", "bytes", "measured (us)", "predicted (us)"), shown))


def _series(one: Scored) -> tuple[str, str, int, int]:
    return one.fit, one.point.collective, one.point.ranks, one.point.nodes or 1


def _regions(some: Sequence[Scored]) -> list[tuple[str, list[Scored]]]:
    where = scores.region_of([one.point for one in some])
    found = scores.grouped(some, lambda one: where(one.point))
    return [(name, found[name]) for name in scores.REGIONS if name in found]


def _errors(some: Sequence[Scored]) -> list[str]:
    """Of simcoll, then of each rival."""
    found = [_mean([one.point.predicted_us for one in some], some)]
    return found + [_mean([one.rivals.get(name) for one in some], some) for name in RIVALS]


def _mean(told: Sequence[float | None], some: Sequence[Scored]) -> str:
    known = [us / one.point.measured_us - 1 for us, one in zip(told, some, strict=True) if us is not None]
    return f"{scores.errors(known)['mape']:.1f}" if len(known) == len(some) else "–"
