"""Errors of a fitted model on rows that its fit left out: they show how wrong the model is where nothing was fitted.

Rank counts, collectives and node counts are left out in turn, and predicted from the others along the line of the fit.
Of each left-out group and zone of sizes the median error counts, so that noise and outliers do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.fit import least_squares, prior
from simcoll.accuracy.fit.least_squares import Belief, Bounds, Line
from simcoll.config.arrays import Floats
from simcoll.config.groups import grouped
from simcoll.formats.measured import MeasuredRow
from simcoll.prediction.confidence import Kind, Noise, noise

RowNumbers = NDArray[np.int64]
KEYS: Final[dict[Kind, str]] = {"ranks": "ranks", "collectives": "collective", "nodes": "nodes"}


class Shown(NamedTuple):
    """Median errors, as logarithms, of the zones of left-out groups, and how many groups there are."""

    errors: list[float]
    groups: int

    def and_of(self, other: Shown) -> Shown:
        """Return these and others."""
        return Shown(self.errors + other.errors, self.groups + other.groups)


def of_fit(
    line: Line, rows: Sequence[MeasuredRow], measured: Floats, bounds: Bounds, belief: Belief
) -> dict[Kind, Shown]:
    """Leave out each group of the rows of a fit in turn, for each kind of what a call may have new.

    A fit without some rows stays near the whole fit where the others say nothing: as near as `belief` has it.
    """
    odd = noise_of(np.log(measured / line.times), rows)[1]
    near, wide = belief._replace(values=line.values), least_squares.width(line, measured)
    every = np.arange(len(rows))
    shown: dict[Kind, Shown] = {"sizes": _shown(np.log(measured / line.times), rows, _groups(rows, "sizes"), odd)}
    for kind in KEYS:
        off, left_out = np.zeros(len(rows)), _groups(rows, kind)
        for group in left_out if len(left_out) > 1 else []:
            others = np.setdiff1d(every, group)
            values = least_squares.refit(line.of(others), measured[others], bounds, wide, near)
            off[group] = np.log(measured[group] / line.of(group).at(values))
        shown[kind] = _shown(off, rows, left_out if len(left_out) > 1 else [], odd)
    return shown


def of_held_out(off: Floats, rows: Sequence[MeasuredRow], fitted: NDArray[np.bool_]) -> dict[Kind, Shown]:
    """Return the errors `off` (rows,), logarithms of measured / predicted, of rows that were not fitted, by what they
    have that no fitted row has: one thing only, or else nothing but the size.
    """
    seen = {
        kind: {getattr(row, key) for row, used in zip(rows, fitted, strict=True) if used} for kind, key in KEYS.items()
    }
    new = [[kind for kind, key in KEYS.items() if getattr(row, key) not in seen[kind]] or ["sizes"] for row in rows]
    shown: dict[Kind, Shown] = {}
    odd = noise_of(off, rows)[1]
    for kind in get_args(Kind):
        chosen = np.array([not used and kinds == [kind] for used, kinds in zip(fitted.tolist(), new, strict=True)])
        of_kind = [rows[i] for i in np.flatnonzero(chosen).tolist()]
        shown[kind] = _shown(off[chosen], of_kind, _groups(of_kind, kind), odd[chosen])
    return shown


def uncertainty(shown: Mapping[Kind, Shown]) -> tuple[dict[Kind, float], dict[Kind, int]]:
    """Return the spread of the model's own error for each kind, and the number of groups that show it; 0 of none."""
    seen = {kind: each for kind, each in shown.items() if each.errors}
    spreads = {kind: float(np.sqrt(np.mean(np.square(each.errors)))) for kind, each in seen.items()}
    groups = {kind: each.groups for kind, each in seen.items()}
    return {kind: round(spreads.get(kind, 0.0), 5) for kind in shown}, {kind: groups.get(kind, 0) for kind in shown}


def noise_of(off: Floats, rows: Sequence[MeasuredRow]) -> tuple[Noise, NDArray[np.bool_]]:
    """Return the noise of rows, and flag the outliers; `off` (rows,) are logarithms of measured / predicted."""
    return noise(off, [prior.series(row) for row in rows], [row.size_bytes for row in rows])


def _shown(off: Floats, rows: Sequence[MeasuredRow], groups: Sequence[RowNumbers], odd: NDArray[np.bool_]) -> Shown:
    errors: list[float] = []
    for group in groups:
        zones = grouped(group[~odd[group]].tolist(), lambda i: prior.zone(rows[i]))
        errors += [float(np.median(off[numbers])) for numbers in zones.values()]
    return Shown(errors, len(groups))


def _groups(rows: Sequence[MeasuredRow], kind: Kind) -> list[RowNumbers]:
    """Return the numbers of rows that are alike in what is left out; of sizes, those of each series."""

    def label(number: int) -> object:
        return prior.series(rows[number]) if kind == "sizes" else getattr(rows[number], KEYS[kind]) or 1

    numbers = grouped(range(len(rows)), label)
    return [np.array(group, np.int64) for group in numbers.values()]
