"""The verdicts on the board of clusters: each figure beside its goal, and explanations of missed goals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from clusters import cluster_scores, lessons
from clusters.rows import ClusterRow
from simcoll.config.grouping import grouped

# The goals, in percent.
SERIES: Final = {"zero-shot": 80.0, "left out": 80.0, "fitted": 90.0}
ALL_TO_ALL: Final = 5.0
HOLD: Final = (85.0, 95.0)
WIDTHS: Final = {"one node": 40.0, "several nodes": 80.0}
Cells = tuple[str, Sequence[str], Sequence[Sequence[object]]]


def verdicts(rows: Sequence[ClusterRow]) -> Cells:
    """Return a table with a line for each figure: the goal, the value reached, and whether the goal is met."""
    table = [*_of_series(rows), *_of_one_node(rows), *_of_intervals(rows)]
    return "Verdict", ("figure", "goal", "reached", "verdict"), table


def _said(met: bool) -> str:
    return "met" if met else "missed"


def _of_series(rows: Sequence[ClusterRow]) -> Iterator[list[object]]:
    several = [row for row in rows if row.nodes > 1]
    fits = "all in the fit" if all(row.seen for row in several) else "some in the fit"
    for way, error in cluster_scores.WAYS.items():
        goal = SERIES[way]
        for least, limit in cluster_scores.LIMITS:
            found, every = cluster_scores.near(several, error, least, limit)
            if every:
                size = ", from 64 MiB" if least else ""
                how = f"{way}, {fits}" if way == "zero-shot" else way
                met = 100 * found >= goal * every
                figure = f"several nodes, {how}: series within {limit:.0f} %{size}"
                yield [figure, f"≥ {goal:.0f} %", f"{found} of {every}", _said(met)]


def _of_one_node(rows: Sequence[ClusterRow]) -> Iterator[list[object]]:
    rings = cluster_scores.on_one_node(rows)
    sent = grouped([row for row in rows if row.nodes == 1 and row.row.collective == "all_to_all"], _cluster)
    for what, groups, goal in (
        ("all_reduce, all_gather, reduce_scatter", rings, cluster_scores.ONE_NODE),
        ("all_to_all", sent, ALL_TO_ALL),
    ):
        for (cluster, graph), own in groups.items():
            name = cluster_scores.named(cluster, graph)
            error = float(np.mean([abs(cluster_scores.zero(row)) for row in own]))
            seen = sum(row.seen for row in own)
            how = f"{seen} of {len(own)} rows in the fit" if seen else "none in the fit"
            yield [f"one node, {what}: {name} ({how})", f"≤ {goal:g} %", f"{error:.1f} %", _said(error <= goal)]


def _cluster(row: ClusterRow) -> tuple[str, bool]:
    return row.cluster, row.setting.launch == "graph"


def _of_intervals(rows: Sequence[ClusterRow]) -> Iterator[list[object]]:
    for by, value, own in cluster_scores.cells(rows):
        for way in _judged(own):
            if (verdict := _of_cell(own, way)) is not None:
                _, hold, width = cluster_scores.cover(own, way)
                goal = f"hold {HOLD[0]:.0f}–{HOLD[1]:.0f} %, width ≤ {_widest(own):.0f} %"
                named = value if by == "in the fit" else f"{by}: {value}"
                yield [f"90 % intervals, {named}, {way}", goal, f"{hold:.1f} % at {width:.0f} %", verdict]


def _judged(rows: Sequence[ClusterRow]) -> tuple[str, ...]:
    """Return the ways whose intervals are judged; between nodes not `zero-shot`, whose profiles may know the rows."""
    return ("zero-shot", "fitted") if all(row.nodes == 1 for row in rows) else ("left out", "fitted")


def _widest(rows: Sequence[ClusterRow]) -> float:
    return WIDTHS["one node" if all(row.nodes == 1 for row in rows) else "several nodes"]


def _of_cell(rows: Sequence[ClusterRow], way: str) -> str | None:
    """Return in words whether a group's intervals meet the goals, and which goal is missed; None without intervals."""
    count, hold, width = cluster_scores.cover(rows, way)
    if not count:
        return None
    faults = {"hold too few": hold < HOLD[0], "hold too many": hold > HOLD[1], "too wide": width > _widest(rows)}
    missed = [name for name, missing in faults.items() if missing]
    return f"missed: {', '.join(missed)}" if missed else "met"


def asked_for(rows: Sequence[ClusterRow]) -> Iterator[str]:
    """Yield Markdown that explains the missed goals: what the model lacks for which clusters."""
    yield "## What the missed figures ask for\n"
    yield "Of the clusters on one node that miss the goal, what their residuals say that the model lacks.\n"
    for (cluster, graph), own in cluster_scores.on_one_node(rows).items():
        if cluster_scores.missed(own):
            asked = " ".join(dict.fromkeys(row.lacks.strip() for row in own if row.lacks))
            yield f"* **{cluster_scores.named(cluster, graph)}**: {asked or 'not known.'}"
    yield ""
    yield "## Rows outside of their intervals\n"
    yield "Of each cell that holds too few: the calls with most rows outside, by measured ÷ predicted time.\n"
    shown: dict[str, str] = {}
    for by, value, own in cluster_scores.cells(rows):
        for way in _judged(own):
            verdict = _of_cell(own, way)
            if verdict is not None and "hold too few" in verdict:
                yield f"* **{by}: {value}, {way}**: {'; '.join(_outside(own, way, shown))}."
    yield ""
    yield from (f"* **{cluster}**: {text or 'not known.'}" for cluster, text in shown.items())
    yield from _too_wide(rows)
    worse = list(_made_worse(rows))
    if worse:
        yield "\n## Made worse by a fit\n"
        yield from worse
    yield ""


MOST: Final = 4  # groups of rows that are named of a cell


def _outside(rows: Sequence[ClusterRow], way: str, shown: dict[str, str]) -> list[str]:
    """Return texts on groups with most rows outside their intervals; add explanations by cluster to `shown`."""
    found = cluster_scores.ranges(rows, way)
    counted = []
    for (cluster, collective, nodes), own in grouped(
        found, lambda each: (each[0].cluster, each[0].row.collective, each[0].nodes)
    ).items():
        off = [(row, row.row.time_us / at) for row, at, ends in own if not cluster_scores.inside(row, ends)]
        if off:
            sizes, ratios = [row.row.size_bytes for row, _ in off], [ratio for _, ratio in off]
            name = f"{cluster}, {collective} on {nodes} node{'s' if nodes > 1 else ''}"
            extent = f"{min(sizes)} to {max(sizes)} B, {min(ratios):.2f}–{max(ratios):.2f} ×"
            text = f"{name}: {len(off)} of {len(own)}, {extent}"
            counted.append((len(off), cluster, text, off[0][0].outside.strip()))
    counted.sort(key=lambda each: -each[0])
    for _, cluster, _, asked in counted[:MOST]:
        shown[cluster] = shown.get(cluster) or asked  # of the cluster's groups some may have nothing to say
    return [text for _, _, text, _ in counted[:MOST]]


OF_FITS: Final = (
    "Intervals of a fit are what the model errs on other clusters in the call's cell, drawn to what rows that the "
    "fit left out err, by what is new in a call (sizes, ranks, collectives, nodes). Where a fit's own rows err "
    "more than the cell, large calls are as wide as its small ones; on node counts that are new they are never "
    "narrower than the cell."
)


def _too_wide(rows: Sequence[ClusterRow]) -> Iterator[str]:
    """Yield Markdown on too wide intervals: the width that is enough, and the cluster whose errors made them wide."""
    yield "\n## Intervals wider than calls need\n"
    yield "Of each cell that holds too many or is too wide: the calls with most width to spare, by the mean width, the"
    yield "one that holds nine rows in ten, and which other cluster errs most in the cell that teaches the interval."
    yield "All in all: the mean width if the calls of each cluster and collective had the one that holds nine in ten."
    yield "That takes their errors to be known beforehand; where it is wider than the goal, the model errs too much.\n"
    known, fits = lessons.spreads(rows), False
    for by, value, own in cluster_scores.cells(rows):
        for way in _judged(own):
            verdict = _of_cell(own, way)
            if verdict is not None and ("hold too many" in verdict or "too wide" in verdict):
                fits = fits or way == "fitted"
                yield f"* **{by}: {value}, {way}**: {'; '.join(_spared(own, way, known))}."
    if fits:
        yield f"\n{OF_FITS}"


def _spared(rows: Sequence[ClusterRow], way: str, known: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return texts on groups whose intervals could shrink most; `known` are errors from `lessons.spreads`."""
    found = cluster_scores.ranges(rows, way)
    counted, least = [], 0.0
    for (cluster, collective, nodes), own in grouped(
        found, lambda each: (each[0].cluster, each[0].row.collective, each[0].nodes)
    ).items():
        width = float(np.mean([(ends[1] - ends[0]) / at for _, at, ends in own]))
        off = float(np.percentile([abs(np.log(row.row.time_us / at)) for row, at, _ in own], 90))
        enough = 2 * float(np.sinh(off))
        where = [row.left_out[0] if way == "left out" and row.left_out else row.setting for row, _, _ in own]
        teachers = [] if way == "fitted" else [lessons.teacher(each, cluster, known) for each in where]
        most = max(filter(None, teachers), key=teachers.count, default=None)
        name = f"{cluster}, {collective} on {nodes} node{'s' if nodes > 1 else ''}"
        taught = f", by {most}" if most else ""
        counted.append((len(own) * (width - enough), f"{name}: {100 * width:.0f} %, {100 * enough:.0f} do{taught}"))
        least += len(own) * enough / len(found)
    counted.sort(key=lambda each: -each[0])
    return [*[text for spared, text in counted[:MOST] if spared > 0], f"all in all {100 * least:.0f} % would do"]


def _made_worse(rows: Sequence[ClusterRow]) -> Iterator[str]:
    """Yield lines on the clusters and collectives whose prediction got worse by a fit to rows on few nodes."""
    after = [row for row in rows if cluster_scores.fitted(row) is not None]
    for (cluster, collective), own in grouped(after, lambda row: (row.cluster, row.row.collective)).items():
        before = cluster_scores.mean([cluster_scores.left_out(row) for row in own])
        then = cluster_scores.mean([cluster_scores.fitted(row) for row in own])
        if before is not None and then is not None and round(then, 1) > round(before, 1):
            yield f"* **{cluster}, {collective}**: left out {before:.1f} %, fitted {then:.1f} %."
