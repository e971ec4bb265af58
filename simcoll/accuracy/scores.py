"""How good predictions are: errors, also by region; whether intervals hold; whether algorithms come in the right order.

Everything is of points that have `measured_us`, `predicted_us` and what `join.Point` has besides. Errors are relative,
predicted/measured − 1, and percentages where a name is that of a summary.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from simcoll.accuracy.table_join import JoinedPoint

Document = dict[str, Any]
T = TypeVar("T")

REGIONS: Final = ("latency-bound", "middle", "bandwidth-bound")
APART: Final = 0.05  # measured times that differ by less are not in any order


def errors(found: Iterable[float]) -> Document:
    """Of some relative errors, in percent: `mape`, `median` and `p95` of the absolute ones, `bias` the mean."""
    signed = np.array(list(found))
    absolute = np.abs(signed)
    return {
        "points": len(signed),
        "mape": 100 * float(np.mean(absolute)),
        "median": 100 * float(np.median(absolute)),
        "p95": 100 * float(np.percentile(absolute, 95)),
        "bias": 100 * float(np.mean(signed)),
    }


def summary(points: Sequence[JoinedPoint]) -> list[Document]:
    """Errors for each collective and number of ranks, and for all points in the last row. Empty without points."""
    groups = grouped(points, lambda point: (point.collective, point.ranks))
    rows: list[Document] = [
        {"collective": collective, "ranks": ranks, **errors(point.error for point in its)}
        for (collective, ranks), its in groups.items()
    ]
    return [*rows, {"collective": "all", "ranks": None, **errors(p.error for p in points)}] if points else []


def grouped(points: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Those of each key, in order of first appearance."""
    groups: dict[Any, list[T]] = defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return dict(groups)


# --- regions ---


def regions(*tables: Sequence[JoinedPoint]) -> list[Document]:
    """Errors by region, each table's by itself; regions that have no point are left out."""
    groups: dict[str, list[JoinedPoint]] = defaultdict(list)
    for points in tables:
        for name, its in grouped(points, region_of(points)).items():
            groups[name] += its
    return [{"region": name, **errors(p.error for p in groups[name])} for name in REGIONS if name in groups]


def region_of(points: Sequence[JoinedPoint]) -> Callable[[JoinedPoint], str]:
    """Where each point lies, by what was measured of its series, the points that differ in size only: see `located`."""
    some = [(_series(point), point.size_bytes, point.measured_us) for point in points]
    return dict(zip(points, located(some), strict=True)).__getitem__


def located(some: Sequence[tuple[Hashable, int, float]]) -> list[str]:
    """The region of each of some (series, size, time).

    Latency-bound: it took less than twice the shortest time of the series. Bandwidth-bound: it reached at least half
    of the best bandwidth of the series. The middle: neither, or both.
    """
    series = grouped(some, lambda one: one[0])
    shortest = {key: min(time for _, _, time in its) for key, its in series.items()}
    best = {key: max(size / time for _, size, time in its) for key, its in series.items()}
    found = []
    for key, size, time in some:
        early, late = time < 2 * shortest[key], 2 * size / time >= best[key]
        found.append("middle" if early == late else REGIONS[0] if early else REGIONS[2])
    return found


def _series(point: JoinedPoint) -> Hashable:
    return point.collective, point.algorithm, point.protocol, point.ranks, point.nodes, point.dtype


# --- intervals ---


def intervals(points: Sequence[JoinedPoint]) -> Document | None:
    """Of the points with an interval, the share in percent whose measured time lies in it, and its mean width as a
    percentage of the prediction. None if there is none."""
    ranges = [(p.low_us, p.high_us, p) for p in points if p.low_us is not None and p.high_us is not None]
    if not ranges:
        return None
    return {
        "points": len(ranges),
        "coverage": 100 * float(np.mean([low <= point.measured_us <= high for low, high, point in ranges])),
        "width": 100 * float(np.mean([(high - low) / point.predicted_us for low, high, point in ranges])),
    }


# --- ranking ---


def ranking(*tables: Sequence[JoinedPoint]) -> Document | None:
    """Whether algorithms come in the order that was measured; None where no two were measured at a point of a table.

    `tau`: Kendall's, the mean over points of (pairs in order − pairs in reverse) / pairs. `pairs`, `in_order`: pairs
    whose measured times differ by more than APART, and the percentage of them in order. `regret_mean`,
    `regret_worst`: how much longer, in percent, the algorithm that the model advises takes than the quickest.
    """
    rivals = [
        its
        for points in tables
        for its in grouped((p for p in points if p.algorithm is not None), _without_algorithm).values()
        if len({p.algorithm for p in its}) > 1
    ]
    if not rivals:
        return None
    taus, apart, regrets = [], list[bool](), []
    for its in rivals:
        orders = [(_order(a, b), _measured_apart(a, b)) for a, b in itertools.combinations(its, 2)]
        taus.append(sum(order for order, _ in orders) / len(orders))
        apart += [order > 0 for order, differ in orders if differ]
        advised = min(its, key=lambda point: point.predicted_us)
        regrets.append(advised.measured_us / min(point.measured_us for point in its) - 1)
    return {
        "groups": len(rivals),
        "tau": float(np.mean(taus)),
        "pairs": len(apart),
        "in_order": 100 * float(np.mean(apart)) if apart else None,
        "regret_mean": 100 * float(np.mean(regrets)),
        "regret_worst": 100 * float(np.max(regrets)),
    }


def _without_algorithm(point: JoinedPoint) -> Hashable:
    return point.collective, point.ranks, point.nodes, point.dtype, point.size_bytes


def _order(a: JoinedPoint, b: JoinedPoint) -> int:
    """1 if both times order two points alike, −1 if they reverse them, 0 if one of them ties."""
    return int(np.sign(a.measured_us - b.measured_us) * np.sign(a.predicted_us - b.predicted_us))


def _measured_apart(a: JoinedPoint, b: JoinedPoint) -> bool:
    low, high = sorted((a.measured_us, b.measured_us))
    return high > (1 + APART) * low
