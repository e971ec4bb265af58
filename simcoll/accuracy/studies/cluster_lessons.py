"""Learn from the rows of clusters how wrong the model is, cell by cell, and give each cluster what the others teach."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, get_args

import numpy as np

from simcoll.accuracy.studies.clusters import ClusterRow
from simcoll.config.groups import grouped
from simcoll.prediction import confidence, intervals, model_errors
from simcoll.prediction.model_errors import CellErrors, Kind, ModelErrors, Setting

# The chance that the next cluster's errors are within those of a cell. Chosen where intervals are judged, on clusters
# that are left out: with 0.6 one node holds 86 %, from 0.69 on it is wider than 40 %; several nodes hold 90 to 92 %.
NEXT: Final = 2 / 3


def learnt(rows: Sequence[ClusterRow], left_out: Mapping[Kind, float] | None = None) -> ModelErrors:
    """Learn how wrong the model is on clusters, cell by cell; see `model_errors`.

    On several nodes errors are those where the cluster is left out. Only the narrowest cell of a transport that one
    cluster alone has shows how wrong it is where it was fitted.

    Of a cluster and cell with enough rows, the spread is that of normal errors of which 90 % are as small, and no less
    than the noise of one machine; a cell has that within which the next cluster's is with chance NEXT. `left_out`
    replaces what is shipped of rows that a fit did not see. Calls with a cell for their way of launching
    show only that one, as their launches are not those of others.
    """
    noise, _ = intervals.noise(
        np.array([row.off for row in rows]), [row.series for row in rows], [row.row.size_bytes for row in rows]
    )
    known = dict(left_out or model_errors.shipped().left_out)
    return ModelErrors(
        noise=round(noise.spread, 4),
        outliers=round(noise.outliers, 4),
        left_out={kind: round(known[kind], 4) for kind in get_args(Kind)},
        nodes=max(row.nodes for row in rows),
        cells={
            name: CellErrors(error=round(_of_next(list(of_cell.values())), 4), clusters=len(of_cell))
            for name, of_cell in sorted(spreads(rows).items())
        },
    )


def spreads(rows: Sequence[ClusterRow]) -> dict[str, dict[str, float]]:
    """Return the spread of the errors of each cluster in each cell; see `learnt`."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        names = list(model_errors.cells_of(row.setting))[: 1 if model_errors.has_own_cell(row.setting) else None]
        if missed := row.left_out:
            names = names[:1] if row.kin != row.place else []
            for name in model_errors.cells_of(missed[0]):
                cells[name][row.cluster].append(abs(missed[1]))
        for name in names:
            cells[name][row.cluster].append(abs(row.off))
    found = {
        name: {cluster: _spread(errors) for cluster, errors in of_cell.items() if len(errors) >= intervals.FEWEST}
        for name, of_cell in cells.items()
    }
    return {name: of_cell for name, of_cell in found.items() if of_cell}


def teacher(setting: Setting, cluster: str, known: Mapping[str, Mapping[str, float]]) -> str | None:
    """Return the cluster whose errors are the largest, of the others that are in the narrowest cell of a call; `known`
    as `spreads` has it. None where there is none."""
    for name in model_errors.cells_of(setting):
        if others := {other: error for other, error in known.get(name, {}).items() if other != cluster}:
            return max(others, key=lambda other: others[other])
    return None


def _of_next(spreads: Sequence[float]) -> float:
    """Return the spread within which that of the next cluster is with chance NEXT: of `n` that were drawn alike the one
    of rank NEXT × (n + 1), between ranks by parts, and never beyond the largest."""
    return float(np.quantile(spreads, NEXT, method="weibull"))


def _spread(errors: Sequence[float]) -> float:
    return max(intervals.LEAST_NOISE, float(np.percentile(errors, 90)) / intervals.NORMAL_90)


def with_intervals(rows: Sequence[ClusterRow]) -> list[ClusterRow]:
    """Give each row the 90 % interval of a single measurement that the other clusters teach."""
    done: list[ClusterRow] = []
    for cluster, own in grouped(rows, lambda row: row.cluster).items():
        known = learnt([row for row in rows if row.cluster != cluster])
        for row in own:
            ends = _around(row.predicted_us, row.setting, known)
            left_out = row.left_out and _around(row.left_out_us or 0.0, row.left_out[0], known)
            done.append(dataclasses.replace(row, ends=ends, left_out_ends=left_out))
    return done


def _around(time_us: float, setting: Setting, known: ModelErrors) -> tuple[float, float]:
    factor = math.exp(confidence.of_another_machine(setting, known).single)
    return time_us / factor, time_us * factor
