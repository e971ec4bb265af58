"""Learn from the rows of clusters how wrong the model is, cell by cell, and give each cluster what the others teach."""

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
    """Learn how wrong the model is on clusters, cell by cell; see `prediction.confidence`.

    On several nodes errors are those where the cluster is left out. Only the narrowest cell of a transport that one
    cluster alone has shows how wrong it is where it was fitted.

    A cell has the error that HELD of the rows keep, where each cluster with enough rows counts once: what a row of the
    next cluster keeps with that chance, if it is one like these. No error is less than the noise of one machine.
    `left_out` replaces what is shipped of rows that a fit did not see. Calls with a cell for their way of launching
    show only that one, as their launches are not those of others.
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
    """Return the spread of the errors of each cluster in each cell; see `learnt`."""
    return {
        name: {cluster: _spread([errors]) for cluster, errors in of_cell.items()}
        for name, of_cell in _errors(rows).items()
    }


def _errors(rows: Sequence[ClusterRow]) -> dict[str, dict[str, list[float]]]:
    """Return the errors of each cluster in each cell, without their signs, where there are enough."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        names = list(confidence.cells_of(row.setting))[: 1 if confidence.has_own_cell(row.setting) else None]
        if missed := row.left_out:
            names = names[:1] if row.kin != row.place else []
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
    """Return the cluster whose errors are the largest, of the others that are in the narrowest cell of a call; `known`
    as `spreads` has it. None where there is none."""
    for name in confidence.cells_of(setting):
        if others := {other: error for other, error in known.get(name, {}).items() if other != cluster}:
            return max(others, key=lambda other: others[other])
    return None


def _spread(clusters: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of normal errors of which HELD are as small as the same share of these, where each
    cluster counts once."""
    errors = np.concatenate(clusters)
    shares = np.repeat([1 / len(each) / len(clusters) for each in clusters], [len(each) for each in clusters])
    order = np.argsort(errors)
    held = int(np.searchsorted(np.cumsum(shares[order]), HELD - 1e-9))  # the sum of shares may miss HELD by rounding
    return max(confidence.LEAST_NOISE, float(errors[order][held]) / confidence.NORMAL_90)


def of_others(rows: Sequence[ClusterRow]) -> dict[str, ModelErrors]:
    """Return what the other clusters teach each, by its name; nothing of one by itself."""
    others = {name: [row for row in rows if row.cluster != name] for name in dict.fromkeys(row.cluster for row in rows)}
    return {name: learnt(taught) for name, taught in others.items() if taught}


def with_intervals(rows: Sequence[ClusterRow], taught: Mapping[str, ModelErrors]) -> list[ClusterRow]:
    """Give each row the 90 % interval of a single measurement that the other clusters teach, as `of_others` has it, or
    what is shipped where there is none."""
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
