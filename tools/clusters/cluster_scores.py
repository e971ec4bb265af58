"""Score rows of clusters for the board: errors, series with small errors, and coverage of intervals.

An error is predicted / measured − 1, in percent; intervals are 90 % intervals of a single measurement. A series is
called near if its rows' mean absolute error is at most NEAR (for rows from LARGE bytes on: NEAR_LARGE) percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from clusters.rows import ClusterRow
from simcoll.config.grouping import grouped

NEAR, NEAR_LARGE, LARGE = 20.0, 10.0, 64 << 20
ONE_NODE: Final = 3.5  # the goal for rings, trees and NVLS on one node: mean absolute error in percent
REDUCED_OR_GATHERED: Final = ("all_reduce", "all_gather", "reduce_scatter")


def zero(row: ClusterRow) -> float:
    """Return the error (percent) of the shipped profiles: no fit to this cluster's rows is made for it."""
    return 100 * (row.predicted_us / row.row.time_us - 1)


def left_out(row: ClusterRow) -> float | None:
    """Return the error (percent) with the cluster left out; None if its GPUs' costs were fitted to the row."""
    return None if row.left_out_us is None or row.gpus_seen else 100 * (row.left_out_us / row.row.time_us - 1)


def fitted(row: ClusterRow) -> float | None:
    """Return the error (percent) after a fit to few nodes; None for fitted rows, and on several nodes if the GPUs'
    shipped costs were fitted to the row."""
    return (
        None
        if row.fitted_us is None or row.used or (row.gpus_seen and row.nodes > 1)
        else 100 * (row.fitted_us / row.row.time_us - 1)
    )


def plain(row: ClusterRow) -> float | None:
    """Return the error (percent) of the plain model, without fitted values; None if it cannot predict the call."""
    return None if row.plain_us is None or math.isnan(row.plain_us) else 100 * (row.plain_us / row.row.time_us - 1)


def of_other_nodes(row: ClusterRow) -> float | None:
    """Return the error (percent) of a fit to the cluster's other node counts. None for rows on several nodes to which
    the GPUs' shipped costs were fitted."""
    if row.other_nodes_us is None or (row.gpus_seen and row.nodes > 1):
        return None
    return 100 * (row.other_nodes_us / row.row.time_us - 1)


WAYS: Final[Mapping[str, Callable[[ClusterRow], float | None]]] = {
    "zero-shot": zero,
    "left out": left_out,
    "fitted": fitted,
}
OTHER_NODES: Final = "fitted to other node counts"


def mean(errors: Sequence[float | None], absolute: bool = True) -> float | None:
    """Return the mean of errors, or of absolute errors; None if there is none or if one of them is unknown."""
    known = [error for error in errors if error is not None]
    return float(np.mean(np.abs(known) if absolute else known)) if known and len(known) == len(errors) else None


def text(value: float | None, sign: str = "") -> str:
    """Return an error as text with one decimal; `–` if it is unknown."""
    return "–" if value is None else f"{value:{sign}.1f}"


def reach(row: ClusterRow) -> str:
    """Return in words on how many nodes a row was measured: one, two or more."""
    return "one node" if row.nodes == 1 else "two nodes" if row.nodes == 2 else "more nodes"


def on_one_node(rows: Sequence[ClusterRow]) -> dict[tuple[str, bool], list[ClusterRow]]:
    """Return the rows to which the goal of one node applies, by cluster and whether CUDA graphs launch the calls."""
    chosen = [row for row in rows if row.nodes == 1 and row.row.collective in REDUCED_OR_GATHERED]
    return grouped(chosen, lambda row: (row.cluster, row.setting.launch == "graph"))


def missed(rows: Sequence[ClusterRow]) -> bool:
    """Whether the mean absolute error of a cluster's rows on one node is above the goal."""
    return float(np.mean([abs(zero(row)) for row in rows])) > ONE_NODE


def named(cluster: str, graph: bool) -> str:
    """Return the name of a cluster, with the note that it launches calls in CUDA graphs if `graph`."""
    return f"{cluster}, in CUDA graphs" if graph else cluster


LIMITS: Final = ((0, NEAR), (LARGE, NEAR_LARGE))


def near(
    rows: Sequence[ClusterRow], error: Callable[[ClusterRow], float | None], least: int, limit: float
) -> tuple[int, int]:
    """Return how many series with rows from `least` bytes on have a mean error within `limit` percent, and all such."""
    groups = grouped([row for row in rows if row.row.size_bytes >= least], lambda row: row.series).values()
    means = [found for group in groups if (found := mean([error(row) for row in group])) is not None]
    return sum(found <= limit for found in means), len(means)


def ranges(rows: Sequence[ClusterRow], way: str) -> list[tuple[ClusterRow, float, tuple[float, float]]]:
    """Return rows with an interval of this `way` (of WAYS, or OTHER_NODES): row, predicted time (us), ends (us)."""
    error = of_other_nodes if way == OTHER_NODES else WAYS[way]
    known = [row for row in rows if error(row) is not None]
    every = [
        (
            row,
            *{
                "zero-shot": (row.predicted_us, row.ends),
                "left out": (row.left_out_us, row.left_out_ends),
                "fitted": (row.fitted_us, row.fitted_ends),
                OTHER_NODES: (row.other_nodes_us, row.other_nodes_ends),
            }[way],
        )
        for row in known
    ]
    return [(row, at, ends) for row, at, ends in every if at is not None and ends is not None]


def inside(row: ClusterRow, ends: tuple[float, float]) -> bool:
    """Whether the row's measured time lies between `ends` (us)."""
    return ends[0] <= row.row.time_us <= ends[1]


def cover(rows: Sequence[ClusterRow], way: str) -> tuple[int, float, float]:
    """Return the number of rows with an interval; in percent, the share inside it and its mean width; NaN for none."""
    found = ranges(rows, way)
    if not found:
        return 0, math.nan, math.nan
    hold = 100 * float(np.mean([inside(row, ends) for row, _, ends in found]))
    return len(found), hold, 100 * float(np.mean([(ends[1] - ends[0]) / at for _, at, ends in found]))


def cells(rows: Sequence[ClusterRow]) -> list[tuple[str, str, list[ClusterRow]]]:
    """Return groups of rows, as (kind of group, name, rows): by node count, region, network, and use in fits."""
    keys: list[tuple[str, Callable[[ClusterRow], str]]] = [
        ("nodes", reach),
        ("region", lambda row: f"{'one node' if row.nodes == 1 else 'several nodes'}, {row.region}"),
        ("network", lambda row: row.place),
        ("in the fit", lambda row: "in the fit" if row.seen else "not in the fit"),
    ]
    return [(name, value, own) for name, key in keys for value, own in sorted(grouped(rows, key).items())]
