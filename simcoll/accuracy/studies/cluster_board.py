"""Write the board of clusters: how many series are near, signed errors by region, what intervals hold, and rivals.

A series is near where the mean absolute error of its rows is at most NEAR, in percent; of its rows from LARGE on at
most NEAR_LARGE. Errors are predicted / measured − 1 in percent; intervals are those of a single measurement, at 90 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from simcoll.accuracy import scores
from simcoll.accuracy.studies import _baselines, clusters, left_out
from simcoll.accuracy.studies.clusters import ClusterRow
from simcoll.config.groups import grouped
from simcoll.measurement.run_cases import Tell
from simcoll.prediction.result_rows import write_atomically

NEAR, NEAR_LARGE, LARGE = 20.0, 10.0, 64 << 20
ONE_NODE: Final = 3.5  # the goal for rings, trees and NVLS on one node: mean absolute error in percent
REDUCED_OR_GATHERED: Final = ("all_reduce", "all_gather", "reduce_scatter")
Cells = tuple[str, Sequence[str], Sequence[Sequence[object]]]
Key = Callable[[ClusterRow], Any]

ABOUT: Final = """# Clusters: predicted against published tables

Written by `make accuracy TABLES=DIR`; do not edit. The tables were published by others and are not shipped:
`clusters.yaml` names the shipped system that stands for each cluster. *Zero-shot*: by shipped profiles as they are.
*In the fit*: the profile of the GPUs or of the NICs was fitted to this very table. *Left out*: the transport between
nodes is fitted without the cluster, or is what its family has in common where no other cluster has it: so well serves
the model a network that it has not seen. *Fitted*: a fit to the rows on one and two nodes, beginning at the transport
that is left out, scored on the others; on clusters of fewer nodes, to all-reduce on four GPUs and fewer. *Plain
model*: without any profile. Intervals of a cluster are those that the other clusters teach. Errors are in percent.
"""


REPORT: Final = "CLUSTERS.md"


def write(tables: Path, folder: Path, output: Path, tell: Tell) -> Path:
    """Score the measured tables of a folder, and write the board to `output`; return its path.

    `folder` has the names of clusters. Raises like `clusters.rows_of`.
    """
    rows, networks = left_out.with_left_out(clusters.rows_of(tables, folder, tell), tell)
    rows, _ = clusters.fitted(clusters.with_intervals(rows), tell, networks)
    path = output / REPORT
    write_atomically(path, "\n".join(_lines(rows)).rstrip() + "\n")
    return path


def _lines(rows: Sequence[ClusterRow]) -> Iterator[str]:
    """Yield the board as Markdown, line by line."""
    yield ABOUT
    for title, columns, cells in _tables(rows):
        yield f"## {title}\n"
        yield f"| {' | '.join(columns)} |"
        yield f"|{'---|' * len(columns)}"
        yield from (f"| {' | '.join(map(str, row))} |" for row in cells)
        yield ""
    yield "## What the missed figures ask for\n"
    yield "Of the clusters on one node that miss the goal, what their residuals say that the model lacks.\n"
    for (cluster, graph), own in _on_one_node(rows).items():
        if _missed(own):
            asked = " ".join(dict.fromkeys(row.lacks.strip() for row in own if row.lacks))
            yield f"* **{_named(cluster, graph)}**: {asked or 'not known.'}"
    yield ""


def _tables(rows: Sequence[ClusterRow]) -> Iterator[Cells]:
    yield _near(rows)
    yield _one_node(rows)
    yield _beside(rows)
    yield _held(rows)
    yield _rivals(rows)
    yield _regions(rows)
    yield _series(rows)


# --- errors ---


def _zero(row: ClusterRow) -> float:
    return 100 * (row.predicted_us / row.row.time_us - 1)


def _left_out(row: ClusterRow) -> float | None:
    return None if row.left_out_us is None else 100 * (row.left_out_us / row.row.time_us - 1)


def _fitted(row: ClusterRow) -> float | None:
    return None if row.fitted_us is None or row.used else 100 * (row.fitted_us / row.row.time_us - 1)


def _plain(row: ClusterRow) -> float | None:
    return None if row.plain_us is None or math.isnan(row.plain_us) else 100 * (row.plain_us / row.row.time_us - 1)


_WAYS: Final[Mapping[str, Callable[[ClusterRow], float | None]]] = {
    "zero-shot": _zero,
    "left out": _left_out,
    "fitted": _fitted,
}


def _mean(errors: Sequence[float | None], absolute: bool = True) -> float | None:
    known = [error for error in errors if error is not None]
    return float(np.mean(np.abs(known) if absolute else known)) if known and len(known) == len(errors) else None


def _text(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.1f}"


def _reach(row: ClusterRow) -> str:
    return "one node" if row.nodes == 1 else "two nodes" if row.nodes == 2 else "more nodes"


def _near(rows: Sequence[ClusterRow]) -> Cells:
    """Count the series that are near."""
    table: list[list[object]] = []
    groups: list[tuple[str, Key]] = [
        ("one node", lambda row: row.nodes == 1),
        ("several nodes", lambda row: row.nodes > 1),
        ("several nodes, in the fit", lambda row: row.nodes > 1 and row.seen),
        ("several nodes, not in the fit", lambda row: row.nodes > 1 and not row.seen),
    ]
    for name, keep in groups:
        chosen = [row for row in rows if keep(row)]
        counts = [_count(chosen, error, least, limit) for error in _WAYS.values() for least, limit in _LIMITS]
        if chosen:
            table.append([name, *counts])
    limits = [f"within {limit:.0f} %{', from 64 MiB' if least else ''}" for least, limit in _LIMITS]
    return (
        "Series that are near",
        ("series", *(f"{way}: {limit}" for way in _WAYS for limit in limits)),
        table,
    )


def _on_one_node(rows: Sequence[ClusterRow]) -> dict[tuple[str, bool], list[ClusterRow]]:
    """The rows of each cluster that have the goal of one node; calls in CUDA graphs have launches of their own."""
    chosen = [row for row in rows if row.nodes == 1 and row.row.collective in REDUCED_OR_GATHERED]
    return grouped(chosen, lambda row: (row.cluster, row.setting.graph))


def _missed(rows: Sequence[ClusterRow]) -> bool:
    return float(np.mean([abs(_zero(row)) for row in rows])) > ONE_NODE


def _named(cluster: str, graph: bool) -> str:
    return f"{cluster}, in CUDA graphs" if graph else cluster


def _one_node(rows: Sequence[ClusterRow]) -> Cells:
    """Give the error of each cluster beside the goal, signed means by region, and the row that is farthest off."""
    table: list[list[object]] = []
    for (cluster, graph), own in _on_one_node(rows).items():
        of_region = grouped(own, lambda row: row.region)
        biases = [
            _text(_mean([_zero(row) for row in of_region.get(name, ())], absolute=False), "+")
            for name in scores.REGIONS
        ]
        far = max(own, key=lambda row: abs(_zero(row)))
        farthest = f"{far.row.collective}, {far.row.ranks} ranks, {far.row.size_bytes} B: {_zero(far):+.1f}"
        seen = f"{sum(row.seen for row in own)} of {len(own)}"
        error, goal = _text(_mean([_zero(row) for row in own])), "missed" if _missed(own) else "met"
        table.append([_named(cluster, graph), len(own), seen, error, goal, *biases, farthest])
    columns = ("cluster", "rows", "in the fit", "zero-shot", f"≤ {ONE_NODE:g} %", *scores.REGIONS, "farthest")
    return "One node: all_reduce, all_gather, reduce_scatter", columns, table


_LIMITS: Final = ((0, NEAR), (LARGE, NEAR_LARGE))


def _count(rows: Sequence[ClusterRow], error: Callable[[ClusterRow], float | None], least: int, limit: float) -> str:
    groups = grouped([row for row in rows if row.row.size_bytes >= least], lambda row: row.series).values()
    means = [mean for group in groups if (mean := _mean([error(row) for row in group])) is not None]
    return f"{sum(mean <= limit for mean in means)} of {len(means)}" if means else "–"


def _beside(rows: Sequence[ClusterRow]) -> Cells:
    """Give the errors before and after a fit, on the rows that were not fitted."""
    after = [row for row in rows if _fitted(row) is not None]
    ways = {"plain model": _plain, **_WAYS}
    groups: list[tuple[str, str, Sequence[ClusterRow]]] = []
    for cluster, own in grouped(after, lambda row: row.cluster).items():
        groups += [(cluster, name, each) for name, each in grouped(own, lambda row: row.row.collective).items()]
        groups.append((cluster, "all", own))
    table: list[list[object]] = [
        [cluster, collective, len(own), *(_text(_mean([error(row) for row in own])) for error in ways.values())]
        for cluster, collective, own in (*groups, ("all", "", after))
    ]
    return (
        "A fit beside none, on rows that were not fitted",
        ("cluster", "collective", "rows", *ways),
        table,
    )


def _regions(rows: Sequence[ClusterRow]) -> Cells:
    """Give signed mean errors by cluster, collective, node count and region."""
    groups = grouped(rows, lambda row: (row.cluster, row.row.collective, row.nodes))
    table: list[list[object]] = []
    for (cluster, collective, nodes), own in groups.items():
        of_region = grouped(own, lambda row: row.region)
        biases = [
            _text(_mean([error(row) for row in of_region.get(name, ())], absolute=False), "+")
            for error in _WAYS.values()
            for name in scores.REGIONS
        ]
        table.append([cluster, collective, nodes, *biases])
    columns = [f"{way}: {name}" for way in _WAYS for name in scores.REGIONS]
    return "Signed mean errors by region", ("cluster", "collective", "nodes", *columns), table


def _series(rows: Sequence[ClusterRow]) -> Cells:
    table: list[list[object]] = []
    for own in grouped(rows, lambda row: row.series).values():
        first, large = own[0], [row for row in own if row.row.size_bytes >= LARGE]
        forced = " ".join(name for name in (first.row.algorithm, first.row.protocol) if name and name != "auto")
        errors = [_text(_mean([error(row) for row in of])) for error in _WAYS.values() for of in (own, large)]
        seen = "yes" if all(row.seen for row in own) else ""
        table.append(
            [first.cluster, first.row.collective, first.nodes, first.row.ranks, forced, len(own), seen, *errors]
        )
    columns = ("cluster", "collective", "nodes", "ranks", "forced", "rows", "in the fit")
    means = [name for way in _WAYS for name in (way, "from 64 MiB")]
    return "Mean absolute errors of each series", (*columns, *means), table


# --- intervals ---


def _held(rows: Sequence[ClusterRow]) -> Cells:
    """Give the share of rows inside their intervals, and the mean width, by region, node count and network."""
    keys: list[tuple[str, Key]] = [
        ("nodes", _reach),
        ("region", lambda row: f"{'one node' if row.nodes == 1 else 'several nodes'}, {row.region}"),
        ("network", lambda row: row.place),
        ("in the fit", lambda row: "in the fit" if row.seen else "not in the fit"),
    ]
    table: list[list[object]] = []
    for name, key in keys:
        for value, own in sorted(grouped(rows, key).items()):
            after = [row for row in own if row.fitted_ends is not None and not row.used]
            zero = _cover([(row.row.time_us, row.predicted_us, row.ends) for row in own])
            missed = _cover([(row.row.time_us, row.left_out_us, row.left_out_ends) for row in own])
            fits = _cover([(row.row.time_us, row.fitted_us, row.fitted_ends) for row in after])
            table.append([name, value, *zero, *missed, *fits])
    each = ("hold", "mean width")
    columns = ("rows", *each, "left out: rows", *each, "fitted: rows", *each)
    return "What 90 % intervals hold", ("by", "", *columns), table


def _cover(ranges: Sequence[tuple[float, float | None, tuple[float, float] | None]]) -> tuple[str, str, str]:
    known = [(time, at, ends) for time, at, ends in ranges if at is not None and ends is not None]
    if not known:
        return "0", "–", "–"
    inside = 100 * float(np.mean([ends[0] <= time <= ends[1] for time, _, ends in known]))
    width = 100 * float(np.mean([(ends[1] - ends[0]) / at for _, at, ends in known]))
    return str(len(known)), f"{inside:.1f}", f"{width:.0f}"


# --- rivals ---


def _rivals(rows: Sequence[ClusterRow]) -> Cells:
    """Give mean absolute errors beside those of simple ways, on the rows that each can predict."""
    measured = [row.row for row in rows]
    names = ("NCCL's tuner", "latency-bandwidth fit", "PyTorch's estimator", "nearest table")
    predicted: dict[str, list[float | None]] = {name: [] for name in names}
    for row in rows:
        others = [other.row for other in rows if other.used and other.cluster == row.cluster]
        predicted["NCCL's tuner"].append(_baselines.nccl_tuner((), row.row, row.point))
        predicted["latency-bandwidth fit"].append(None if row.used else _baselines.from_few_nodes(others, row.row))
        predicted["PyTorch's estimator"].append(_baselines.pytorch(row.row, row.point))
        predicted["nearest table"].append(_nearest(rows, row))
    table: list[list[object]] = []
    reaches = [_reach(row) for row in rows]
    for reach in dict.fromkeys(reaches):
        for name in names:
            both = [
                (100 * (us / one.time_us - 1), _zero(row), _fitted(row))
                for us, one, row, where in zip(predicted[name], measured, rows, reaches, strict=True)
                if us is not None and where == reach
            ]
            if both:
                rival, zero, fit = zip(*both, strict=True)
                fits = [(abs(r), abs(f)) for r, f in zip(rival, fit, strict=True) if f is not None]
                after = _text(float(np.mean([f for _, f in fits])) if fits else None)
                table.append([reach, name, len(both), _text(_mean(rival)), _text(_mean(zero)), after])
    columns = ("nodes", "rival", "rows", "rival's error", "simcoll, zero-shot", "simcoll, fitted (where it is)")
    return "Simple ways on the same rows", columns, table


def _nearest(rows: Sequence[ClusterRow], asked: ClusterRow) -> float | None:
    """Copy the time of another cluster: the same collective and nodes, the nearest ranks, and sizes interpolated."""
    alike = [
        other
        for other in rows
        if other.cluster != asked.cluster
        and (other.row.collective, other.nodes) == (asked.row.collective, asked.nodes)
        and other.setting.graph == asked.setting.graph
    ]
    if not alike:
        return None
    series = grouped(alike, lambda row: row.series).values()
    nearest = min(series, key=lambda own: abs(np.log(own[0].row.ranks / asked.row.ranks)))
    return _baselines.at_size([row.row for row in nearest], asked.row.size_bytes)
