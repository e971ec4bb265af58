"""Score predictions: errors over all points and by region, coverage of intervals, order of algorithms.

An error is predicted/measured − 1; summaries give errors in percent.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from simcoll.accuracy.table_join import JoinedPoint
from simcoll.config.grouping import grouped

Document = dict[str, Any]

REGIONS: Final = ("latency-bound", "middle", "bandwidth-bound")
APART: Final = 0.05  # measured times that differ by less count as equal: repeated runs differ by as much


def errors(relative: Iterable[float]) -> Document:
    """Summarise relative errors in percent: `mape`, `median` and `p95` of their absolute values; `bias` is the mean."""
    signed = np.array(list(relative))
    absolute = np.abs(signed)
    return {
        "points": len(signed),
        "mape": 100 * float(np.mean(absolute)),
        "median": 100 * float(np.median(absolute)),
        "p95": 100 * float(np.percentile(absolute, 95)),
        "bias": 100 * float(np.mean(signed)),
    }


def summary(points: Sequence[JoinedPoint]) -> list[Document]:
    """Return a summary of errors for each collective and rank count, then one for all points; empty without points."""
    groups = grouped(points, lambda point: (point.collective, point.ranks))
    rows: list[Document] = [
        {"collective": collective, "ranks": ranks, **errors(point.error for point in members)}
        for (collective, ranks), members in groups.items()
    ]
    return [*rows, {"collective": "all", "ranks": None, **errors(p.error for p in points)}] if points else []


# --- regions ---


def regions(*tables: Sequence[JoinedPoint]) -> list[Document]:
    """Return a summary of errors for each region (see `located`) with points; a series is in one table only."""
    groups: dict[str, list[JoinedPoint]] = defaultdict(list)
    for points in tables:
        for name, members in grouped(points, region_of(points)).items():
            groups[name] += members
    return [{"region": name, **errors(p.error for p in groups[name])} for name in REGIONS if name in groups]


def region_of(points: Sequence[JoinedPoint]) -> Callable[[JoinedPoint], str]:
    """Return a function that names each point's region, from the measured times of its series; see `located`."""
    timings = [(_series(point), point.size_bytes, point.measured_us) for point in points]
    return dict(zip(points, located(timings), strict=True)).__getitem__


def located(timings: Sequence[tuple[Hashable, int, float]]) -> list[str]:
    """Return the region of each point, given its series, size in bytes, and time in any common unit.

    Latency-bound: the time is less than twice the shortest time of the series. Bandwidth-bound: the bandwidth is at
    least half of the series' best. All other points, and points for which both hold, are in the middle.
    """
    series = grouped(timings, lambda timing: timing[0])
    shortest = {key: min(time for _, _, time in members) for key, members in series.items()}
    best = {key: max(size / time for _, size, time in members) for key, members in series.items()}
    regions = []
    for key, size, time in timings:
        early, late = time < 2 * shortest[key], 2 * size / time >= best[key]
        regions.append("middle" if early == late else REGIONS[0] if early else REGIONS[2])
    return regions


def _series(point: JoinedPoint) -> Hashable:
    """Return the key of a point's series; points of a series differ only in size."""
    return point.collective, point.algorithm, point.protocol, point.ranks, point.nodes, point.dtype


# --- intervals ---


def intervals(points: Sequence[JoinedPoint]) -> Document | None:
    """Return the share of measured times inside their 90 % intervals (`coverage`), and the intervals' mean width over
    the prediction (`width`), both in percent. None if no point has an interval.
    """
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
    """Score the predicted order of algorithms; None if no call was measured with two algorithms.

    `tau` is Kendall's: the mean over calls of (pairs in order − pairs in reverse) / pairs. `pairs` counts pairs whose
    measured times differ by more than APART; `in_order` is the percentage of them in the right order. `regret_mean` and
    `regret_worst` are how much longer, in percent, the model's best algorithm takes than the fastest one.
    """
    rivals = [
        group
        for points in tables
        for group in grouped((p for p in points if p.algorithm is not None), _without_algorithm).values()
        if len({p.algorithm for p in group}) > 1
    ]
    if not rivals:
        return None
    taus, apart, regrets = [], list[bool](), []
    for group in rivals:
        orders = [(_order(a, b), _measured_apart(a, b)) for a, b in itertools.combinations(group, 2)]
        taus.append(sum(order for order, _ in orders) / len(orders))
        apart += [order > 0 for order, differ in orders if differ]
        advised = min(group, key=lambda point: point.predicted_us)
        regrets.append(advised.measured_us / min(point.measured_us for point in group) - 1)
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
    """Return 1 if measured and predicted times order two points alike, −1 if they differ, 0 if one of them ties."""
    return int(np.sign(a.measured_us - b.measured_us) * np.sign(a.predicted_us - b.predicted_us))


def _measured_apart(a: JoinedPoint, b: JoinedPoint) -> bool:
    low, high = sorted((a.measured_us, b.measured_us))
    return high > (1 + APART) * low
