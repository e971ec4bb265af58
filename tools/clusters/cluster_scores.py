"""Errors of a cluster's rows, how many series are near, and what intervals hold: what the board of clusters shows.

Errors are predicted / measured − 1 in percent; intervals are those of a single measurement, at 90 %. A series is near
where the mean absolute error of its rows is at most NEAR, in percent; of its rows from LARGE on at most NEAR_LARGE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from clusters.rows import ClusterRow
from simcoll.config.groups import grouped

NEAR, NEAR_LARGE, LARGE = 20.0, 10.0, 64 << 20
ONE_NODE: Final = 3.5  # the goal for rings, trees and NVLS on one node: mean absolute error in percent
REDUCED_OR_GATHERED: Final = ("all_reduce", "all_gather", "reduce_scatter")


def zero(row: ClusterRow) -> float:
    """Return the error of the shipped profiles in percent."""
    return 100 * (row.predicted_us / row.row.time_us - 1)


def left_out(row: ClusterRow) -> float | None:
    """Return the error where the cluster is left out; None where costs of its GPUs were fitted to the row."""
    return None if row.left_out_us is None or row.gpus_seen else 100 * (row.left_out_us / row.row.time_us - 1)


def fitted(row: ClusterRow) -> float | None:
    """Return the error after a fit; None where its GPUs had costs that were fitted to the row on several nodes."""
    return (
        None
        if row.fitted_us is None or row.used or (row.gpus_seen and row.nodes > 1)
        else 100 * (row.fitted_us / row.row.time_us - 1)
    )


def plain(row: ClusterRow) -> float | None:
    """Return the error of the plain model in percent; None where it has no such call."""
    return None if row.plain_us is None or math.isnan(row.plain_us) else 100 * (row.plain_us / row.row.time_us - 1)


def of_other_nodes(row: ClusterRow) -> float | None:
    """Return the error by a fit to the cluster's other node counts; None where its GPUs had costs that were fitted to
    the row on several nodes."""
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
    """Return the mean of errors, or of what they are without their signs; None where one is not known."""
    known = [error for error in errors if error is not None]
    return float(np.mean(np.abs(known) if absolute else known)) if known and len(known) == len(errors) else None


def text(value: float | None, sign: str = "") -> str:
    """Format an error."""
    return "–" if value is None else f"{value:{sign}.1f}"


def reach(row: ClusterRow) -> str:
    """Say on how many nodes a row is."""
    return "one node" if row.nodes == 1 else "two nodes" if row.nodes == 2 else "more nodes"


def on_one_node(rows: Sequence[ClusterRow]) -> dict[tuple[str, bool], list[ClusterRow]]:
    """The rows of each cluster that have the goal of one node; calls in CUDA graphs have launches of their own."""
    chosen = [row for row in rows if row.nodes == 1 and row.row.collective in REDUCED_OR_GATHERED]
    return grouped(chosen, lambda row: (row.cluster, row.setting.launch == "graph"))


def missed(rows: Sequence[ClusterRow]) -> bool:
    """Whether rows of a cluster on one node miss the goal."""
    return float(np.mean([abs(zero(row)) for row in rows])) > ONE_NODE


def named(cluster: str, graph: bool) -> str:
    """Return the name of a cluster with how it launches."""
    return f"{cluster}, in CUDA graphs" if graph else cluster


LIMITS: Final = ((0, NEAR), (LARGE, NEAR_LARGE))


def near(
    rows: Sequence[ClusterRow], error: Callable[[ClusterRow], float | None], least: int, limit: float
) -> tuple[int, int]:
    """Count the series from a size on whose mean error is within the limit in percent, and all of them."""
    groups = grouped([row for row in rows if row.row.size_bytes >= least], lambda row: row.series).values()
    means = [found for group in groups if (found := mean([error(row) for row in group])) is not None]
    return sum(found <= limit for found in means), len(means)


def ranges(rows: Sequence[ClusterRow], way: str) -> list[tuple[ClusterRow, float, tuple[float, float]]]:
    """Return the rows that have an interval of a way (of WAYS, or OTHER_NODES), with predicted time and ends in us."""
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
    """Whether the measured time lies within these ends."""
    return ends[0] <= row.row.time_us <= ends[1]


def cover(rows: Sequence[ClusterRow], way: str) -> tuple[int, float, float]:
    """Return how many rows have an interval, the share that it holds and its mean width, in percent; NaN for none."""
    found = ranges(rows, way)
    if not found:
        return 0, math.nan, math.nan
    hold = 100 * float(np.mean([inside(row, ends) for row, _, ends in found]))
    return len(found), hold, 100 * float(np.mean([(ends[1] - ends[0]) / at for _, at, ends in found]))


def cells(rows: Sequence[ClusterRow]) -> list[tuple[str, str, list[ClusterRow]]]:
    """Group the rows as intervals are judged: by node count, region, network, and in or out of the fit."""
    keys: list[tuple[str, Callable[[ClusterRow], str]]] = [
        ("nodes", reach),
        ("region", lambda row: f"{'one node' if row.nodes == 1 else 'several nodes'}, {row.region}"),
        ("network", lambda row: row.place),
        ("in the fit", lambda row: "in the fit" if row.seen else "not in the fit"),
    ]
    return [(name, value, own) for name, key in keys for value, own in sorted(grouped(rows, key).items())]
