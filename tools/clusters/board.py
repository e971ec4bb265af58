"""Write the board of clusters: verdicts, accurate series, signed errors by region, coverage of intervals, and rivals.

The module `cluster_scores` defines the numbers that the board shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clusters import cluster_scores, left_out, lessons, rivals, verdicts
from clusters.rows import ClusterRow, fitted, rows_of
from clusters.verdicts import Cells
from simcoll.accuracy import scores
from simcoll.accuracy.studies import baselines
from simcoll.config.grouping import grouped
from simcoll.measurement.cases_of_points import Tell
from simcoll.prediction.result_rows import write_atomically

Key = Callable[[ClusterRow], Any]

ABOUT: Final = """# Clusters: predicted against published tables

Written by `python tools/board.py DIR`; do not edit. The tables were published by others and are not shipped:
`clusters.yaml` names the shipped system that stands for each cluster. *Zero-shot*: by shipped profiles as they are.
*In the fit*: costs of the GPUs or of the NICs were fitted to this very table, as their profiles record it.
*Left out*: the transport between nodes is fitted without the cluster, or is what its family has in common where no
other cluster has it: so well serves the model a network that it has not seen. *Fitted*: a fit to the rows on one and
two nodes, beginning at the transport that is left out, scored on the others; on clusters of fewer nodes, to all-reduce
on four GPUs and fewer. Rows that are scored teach a fit neither costs nor intervals. *Plain model*: without any
profile. Rows on several nodes that costs of the GPUs were fitted to count as neither left out nor fitted, as those
costs stay. Intervals of a cluster are those that the other clusters teach. Errors are in percent.

No known cluster has eight GPUs on PCIe 5, so its goal (10 %) is not judged.
"""


REPORT: Final = "CLUSTERS.md"


def write(tables: Path, folder: Path, output: Path, tell: Tell) -> Path:
    """Score the measured tables in the folder `tables`, write the board to the folder `output`, and return its path.

    `folder` holds `clusters.yaml`, which names the clusters. Raises the errors of `rows_of`.
    """
    rows, networks = left_out.with_left_out(rows_of(tables, folder, tell), tell)
    taught = lessons.of_others(rows)
    rows, _ = fitted(lessons.with_intervals(rows, taught), tell, networks, taught)
    rows = left_out.with_node_counts_left_out(rows, tell, networks, taught)
    path = output / REPORT
    write_atomically(path, "\n".join(_lines(rows)).rstrip() + "\n")
    return path


def _lines(rows: Sequence[ClusterRow]) -> Iterator[str]:
    """Yield the lines of the board in Markdown."""
    yield ABOUT
    for title, columns, cells in _tables(rows):
        yield f"## {title}\n"
        yield f"| {' | '.join(columns)} |"
        yield f"|{'---|' * len(columns)}"
        yield from (f"| {' | '.join(map(str, row))} |" for row in cells)
        yield ""
    yield from verdicts.asked_for(rows)


def _tables(rows: Sequence[ClusterRow]) -> Iterator[Cells]:
    yield verdicts.verdicts(rows)
    yield _near(rows)
    yield _one_node(rows)
    yield _beside(rows)
    yield _node_counts(rows)
    yield _held(rows)
    yield _rivals(rows)
    yield _regions(rows)
    yield _series(rows)


# --- errors ---


def _near(rows: Sequence[ClusterRow]) -> Cells:
    """Return a table that counts the series with a small error (see `cluster_scores.near`)."""
    table: list[list[object]] = []
    groups: list[tuple[str, Key]] = [
        ("one node", lambda row: row.nodes == 1),
        ("several nodes", lambda row: row.nodes > 1),
        ("several nodes, in the fit", lambda row: row.nodes > 1 and row.seen),
        ("several nodes, not in the fit", lambda row: row.nodes > 1 and not row.seen),
    ]
    for name, keep in groups:
        chosen = [row for row in rows if keep(row)]
        near = [
            cluster_scores.near(chosen, error, least, limit)
            for error in cluster_scores.WAYS.values()
            for least, limit in cluster_scores.LIMITS
        ]
        counts = [f"{found} of {every}" if every else "–" for found, every in near]
        if chosen:
            table.append([name, *counts])
    limits = [f"within {limit:.0f} %{', from 64 MiB' if least else ''}" for least, limit in cluster_scores.LIMITS]
    return (
        "Series that are near",
        ("series", *(f"{way}: {limit}" for way in cluster_scores.WAYS for limit in limits)),
        table,
    )


def _one_node(rows: Sequence[ClusterRow]) -> Cells:
    """Return a table for one node, a line a cluster: error, goal, mean signed error by region, worst row."""
    table: list[list[object]] = []
    for (cluster, graph), own in cluster_scores.on_one_node(rows).items():
        of_region = grouped(own, lambda row: row.region)
        biases = [
            cluster_scores.text(
                cluster_scores.mean([cluster_scores.zero(row) for row in of_region.get(name, ())], absolute=False), "+"
            )
            for name in scores.REGIONS
        ]
        far = max(own, key=lambda row: abs(cluster_scores.zero(row)))
        farthest = (
            f"{far.row.collective}, {far.row.ranks} ranks, {far.row.size_bytes} B: {cluster_scores.zero(far):+.1f}"
        )
        seen = f"{sum(row.seen for row in own)} of {len(own)}"
        error, goal = (
            cluster_scores.text(cluster_scores.mean([cluster_scores.zero(row) for row in own])),
            "missed" if cluster_scores.missed(own) else "met",
        )
        table.append([cluster_scores.named(cluster, graph), len(own), seen, error, goal, *biases, farthest])
    columns = (
        "cluster",
        "rows",
        "in the fit",
        "zero-shot",
        f"≤ {cluster_scores.ONE_NODE:g} %",
        *scores.REGIONS,
        "farthest",
    )
    return "One node: all_reduce, all_gather, reduce_scatter", columns, table


def _beside(rows: Sequence[ClusterRow]) -> Cells:
    """Return a table of the errors before and after a fit, on rows that were not fitted."""
    after = [row for row in rows if cluster_scores.fitted(row) is not None]
    ways = {"plain model": cluster_scores.plain, **cluster_scores.WAYS}
    groups: list[tuple[str, str, Sequence[ClusterRow]]] = []
    for cluster, own in grouped(after, lambda row: row.cluster).items():
        groups += [(cluster, name, each) for name, each in grouped(own, lambda row: row.row.collective).items()]
        groups.append((cluster, "all", own))
    table: list[list[object]] = [
        [
            cluster,
            collective,
            len(own),
            *(cluster_scores.text(cluster_scores.mean([error(row) for row in own])) for error in ways.values()),
        ]
        for cluster, collective, own in (*groups, ("all", "", after))
    ]
    return (
        "A fit beside none, on rows that were not fitted",
        ("cluster", "collective", "rows", *ways),
        table,
    )


def _node_counts(rows: Sequence[ClusterRow]) -> Cells:
    """Return a table of the errors on each node count. `before` is the error without any fit to the cluster between
    nodes; `fitted` is the error by a fit to all other node counts of the cluster."""
    scored = [row for row in rows if cluster_scores.of_other_nodes(row) is not None]
    groups = grouped(scored, lambda row: (row.cluster, row.nodes, row.row.collective))
    table: list[list[object]] = []
    for (cluster, nodes, collective), own in sorted(groups.items(), key=lambda group: group[0][:2]):
        begun = [cluster_scores.zero(row) if row.nodes == 1 else cluster_scores.left_out(row) for row in own]
        large = [row for row in own if row.row.size_bytes >= cluster_scores.LARGE]
        after = [cluster_scores.mean([cluster_scores.of_other_nodes(row) for row in of]) for of in (own, large)]
        _, hold, width = cluster_scores.cover(own, cluster_scores.OTHER_NODES)
        texts = (cluster_scores.text(each) for each in (cluster_scores.mean(begun), *after))
        table.append([cluster, nodes, collective, len(own), *texts, f"{hold:.1f}", f"{width:.0f}"])
    columns = ("cluster", "nodes left out", "collective", "rows", "before", "fitted", "from 64 MiB", "hold", "width")
    title = f"One node count left out, of clusters of {left_out.NODE_COUNTS} or more"
    return title, columns, table


def _regions(rows: Sequence[ClusterRow]) -> Cells:
    """Return a table of signed mean errors by cluster, collective, node count and region."""
    groups = grouped(rows, lambda row: (row.cluster, row.row.collective, row.nodes))
    table: list[list[object]] = []
    for (cluster, collective, nodes), own in groups.items():
        of_region = grouped(own, lambda row: row.region)
        biases = [
            cluster_scores.text(
                cluster_scores.mean([error(row) for row in of_region.get(name, ())], absolute=False), "+"
            )
            for error in cluster_scores.WAYS.values()
            for name in scores.REGIONS
        ]
        table.append([cluster, collective, nodes, *biases])
    columns = [f"{way}: {name}" for way in cluster_scores.WAYS for name in scores.REGIONS]
    return "Signed mean errors by region", ("cluster", "collective", "nodes", *columns), table


def _series(rows: Sequence[ClusterRow]) -> Cells:
    table: list[list[object]] = []
    for own in grouped(rows, lambda row: row.series).values():
        first, large = own[0], [row for row in own if row.row.size_bytes >= cluster_scores.LARGE]
        forced = " ".join(name for name in (first.row.algorithm, first.row.protocol) if name and name != "auto")
        errors = [
            cluster_scores.text(cluster_scores.mean([error(row) for row in of]))
            for error in cluster_scores.WAYS.values()
            for of in (own, large)
        ]
        seen = "yes" if all(row.seen for row in own) else ""
        table.append(
            [first.cluster, first.row.collective, first.nodes, first.row.ranks, forced, len(own), seen, *errors]
        )
    columns = ("cluster", "collective", "nodes", "ranks", "forced", "rows", "in the fit")
    means = [name for way in cluster_scores.WAYS for name in (way, "from 64 MiB")]
    return "Mean absolute errors of each series", (*columns, *means), table


# --- intervals ---


def _held(rows: Sequence[ClusterRow]) -> Cells:
    """Return a table of how many rows lie inside their 90 % intervals, in percent: of all rows, and as a mean over
    clusters. It also has the intervals' mean width. Its lines are regions, node counts and networks."""
    table: list[list[object]] = []
    for name, value, own in cluster_scores.cells(rows):
        of_clusters = list(grouped(own, lambda row: row.cluster).values())
        cells: list[object] = []
        for way in cluster_scores.WAYS:
            count, hold, width = cluster_scores.cover(own, way)
            each_once = [share for each in of_clusters for rows, share, _ in [cluster_scores.cover(each, way)] if rows]
            texts = (f"{hold:.1f}", f"{np.mean(each_once):.1f}", f"{width:.0f}") if count else ("–",) * 3
            cells += [count, *texts]
        table.append([name, value, *cells])
    each = ("hold", "each cluster once", "mean width")
    columns = ("rows", *each, "left out: rows", *each, "fitted: rows", *each)
    return "What 90 % intervals hold", ("by", "", *columns), table


# --- rivals ---


def _rivals(rows: Sequence[ClusterRow]) -> Cells:
    """Return a table of mean absolute errors of simple methods and simcoll, on rows that each method can predict."""
    measured = [row.row for row in rows]
    names = ("NCCL's tuner", "latency-bandwidth fit", "PyTorch's estimator", "nearest table")
    predicted: dict[str, list[float | None]] = {name: [] for name in names}
    for row in rows:
        others = [other.row for other in rows if other.used and other.cluster == row.cluster]
        predicted["NCCL's tuner"].append(baselines.nccl_tuner((), row.row, row.point))
        predicted["latency-bandwidth fit"].append(None if row.used else rivals.from_few_nodes(others, row.row))
        predicted["PyTorch's estimator"].append(rivals.pytorch(row.row, row.point))
        predicted["nearest table"].append(_nearest(rows, row))
    table: list[list[object]] = []
    reaches = [cluster_scores.reach(row) for row in rows]
    for reach in dict.fromkeys(reaches):
        for name in names:
            both = [
                (100 * (us / one.time_us - 1), cluster_scores.zero(row), cluster_scores.fitted(row))
                for us, one, row, where in zip(predicted[name], measured, rows, reaches, strict=True)
                if us is not None and where == reach
            ]
            if both:
                rival, zero, fit = zip(*both, strict=True)
                fits = [(abs(r), abs(f)) for r, f in zip(rival, fit, strict=True) if f is not None]
                after = cluster_scores.text(float(np.mean([f for _, f in fits])) if fits else None)
                table.append(
                    [
                        reach,
                        name,
                        len(both),
                        cluster_scores.text(cluster_scores.mean(rival)),
                        cluster_scores.text(cluster_scores.mean(zero)),
                        after,
                    ]
                )
    columns = ("nodes", "rival", "rows", "rival's error", "simcoll, zero-shot", "simcoll, fitted (where it is)")
    return "Simple ways on the same rows", columns, table


def _nearest(rows: Sequence[ClusterRow], asked: ClusterRow) -> float | None:
    """Return the time (us) of another cluster on as many nodes with the nearest rank count; None without one."""
    alike = [
        other
        for other in rows
        if other.cluster != asked.cluster
        and (other.row.collective, other.nodes) == (asked.row.collective, asked.nodes)
        and (other.setting.launch == "graph") == (asked.setting.launch == "graph")
    ]
    if not alike:
        return None
    series = grouped(alike, lambda row: row.series).values()
    nearest = min(series, key=lambda own: abs(np.log(own[0].row.ranks / asked.row.ranks)))
    return rivals.at_size([row.row for row in nearest], asked.row.size_bytes)
