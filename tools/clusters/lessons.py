"""Learn from rows of clusters how far the model errs, by cell (class of similar calls), for other clusters."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, get_args

import numpy as np

from clusters.rows import ClusterRow
from simcoll.prediction import confidence
from simcoll.prediction.confidence import CellErrors, Kind, ModelErrors, Setting

HELD: Final = 0.9  # the share of rows within an error, as intervals hold it


def learnt(rows: Sequence[ClusterRow], left_out: Mapping[Kind, float] | None = None) -> ModelErrors:
    """Return how far the model errs on clusters, for each cell (class of similar calls, see `prediction.confidence`).

    For calls on several nodes the errors are those of predictions without the cluster (`left_out`).

    A cell's error is not exceeded by the share HELD of its rows; each cluster with enough rows has equal weight. So a
    row of another, similar cluster stays below it with this probability. No error is below the noise of one machine.
    `left_out` replaces the shipped errors of rows that a fit did not see. A call with a cell for its way of launching
    counts in this cell only, because its launch differs from those of other calls.
    """
    noise, _ = confidence.noise(
        np.array([row.off for row in rows]), [row.series for row in rows], [row.row.size_bytes for row in rows]
    )
    known = dict(left_out or confidence.shipped().left_out)
    return ModelErrors(
        noise=round(noise.spread, 4),
        outliers=round(noise.outliers, 4),
        left_out={kind: round(known[kind], 4) for kind in get_args(Kind)},
        nodes=max(row.nodes for row in rows),
        cells={
            name: CellErrors(error=round(_spread(list(of_cell.values())), 4), clusters=len(of_cell))
            for name, of_cell in sorted(_errors(rows).items())
        },
    )


def spreads(rows: Sequence[ClusterRow]) -> dict[str, dict[str, float]]:
    """Return the spread of each cluster's errors (logarithms) in each cell: cell → cluster → spread; see `learnt`."""
    return {
        name: {cluster: _spread([errors]) for cluster, errors in of_cell.items()}
        for name, of_cell in _errors(rows).items()
    }


def _errors(rows: Sequence[ClusterRow]) -> dict[str, dict[str, list[float]]]:
    """Return absolute log errors by cell, then by cluster; clusters with too few errors in a cell are left out."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        names = list(confidence.cells_of(row.setting))[: 1 if confidence.has_own_cell(row.setting) else None]
        if missed := row.left_out:
            names = []
            for name in confidence.cells_of(missed[0]):
                cells[name][row.cluster].append(abs(missed[1]))
        for name in names:
            cells[name][row.cluster].append(abs(row.off))
    found = {
        name: {cluster: errors for cluster, errors in of_cell.items() if len(errors) >= confidence.FEWEST}
        for name, of_cell in cells.items()
    }
    return {name: of_cell for name, of_cell in found.items() if of_cell}


def teacher(setting: Setting, cluster: str, known: Mapping[str, Mapping[str, float]]) -> str | None:
    """Return the cluster with the largest errors in the narrowest cell of a call that other clusters have. `known`
    comes from `spreads`. None if no cell has another cluster."""
    for name in confidence.cells_of(setting):
        if others := {other: error for other, error in known.get(name, {}).items() if other != cluster}:
            return max(others, key=lambda other: others[other])
    return None


def _spread(clusters: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of the normal distribution in which the share HELD of errors is as small as in the
    given absolute errors. Each cluster has equal weight."""
    errors = np.concatenate(clusters)
    shares = np.repeat([1 / len(each) / len(clusters) for each in clusters], [len(each) for each in clusters])
    order = np.argsort(errors)
    held = int(np.searchsorted(np.cumsum(shares[order]), HELD - 1e-9))  # the sum of shares may miss HELD by rounding
    return max(confidence.LEAST_NOISE, float(errors[order][held]) / confidence.NORMAL_90)


def of_others(rows: Sequence[ClusterRow]) -> dict[str, ModelErrors]:
    """Return, by each cluster's name, how far the model errs according to the others; empty for one cluster."""
    others = {name: [row for row in rows if row.cluster != name] for name in dict.fromkeys(row.cluster for row in rows)}
    return {name: learnt(taught) for name, taught in others.items() if taught}


def with_intervals(rows: Sequence[ClusterRow], taught: Mapping[str, ModelErrors]) -> list[ClusterRow]:
    """Add to each row the 90 % interval of a single measurement. Its width comes from `taught`, the errors on other
    clusters (from `of_others`), or else from the shipped errors."""
    done: list[ClusterRow] = []
    for row in rows:
        known = taught.get(row.cluster)
        ends = _around(row.predicted_us, row.setting, known)
        left_out = row.left_out and _around(row.left_out_us or 0.0, row.left_out[0], known)
        done.append(dataclasses.replace(row, ends=ends, left_out_ends=left_out))
    return done


def _around(time_us: float, setting: Setting, known: ModelErrors | None) -> tuple[float, float]:
    factor = math.exp(confidence.of_another_machine(setting, known).single)
    return time_us / factor, time_us * factor
