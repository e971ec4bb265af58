"""Knowledge of parameters before a fit: the values of a fitted profile, and how far they may be off (widths).

A profile without the record of a fit (`one-port`) says nothing about the machine, so a fit from it has no belief.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from simcoll.accuracy.fit import parameters
from simcoll.accuracy.fit.least_squares import Belief, Bounds, Line
from simcoll.accuracy.fit.parameters import cost_of, family
from simcoll.formats.measured import MeasuredRow
from simcoll.prediction.confidence import NORMAL_90
from simcoll.scenario.profile import CABLE, Profile

# Differences between machines of one kind, as a share of a cost, besides the interval of a fit to one of them. Rates of
# links and of loads from them follow from clocks, which are alike everywhere; times of fences and NICs depend on
# processors and firmware.
OF_RATES: Final = 0.05
OF_TIMES: Final = 0.25
OF_LAUNCHES: Final = 1.0  # launches depend on the host and the way of measuring: one process or several, loop or call
Part = Literal["launches", "network", "GPUs"]
ALIKE: Final = 16  # the errors of a model at sizes within this factor are one error, not as many as there are rows


def intervals(*profiles: Profile | None) -> dict[str, tuple[str, str]]:
    """Return the 90 % intervals of parameters in the profiles' records of fits; a later profile has precedence."""
    known: dict[str, tuple[str, str]] = {}
    for profile in profiles:
        if profile is None:
            continue
        ways = (profile.host, profile.graph, profile.pull)
        records = [profile.calibration, *(way.calibration for way in ways if way is not None)]
        for record in records:
            known |= dict(record.intervals) if record else {}
    return known


def belief(
    names: Sequence[str],
    costs: Mapping[str, float],
    known: Mapping[str, tuple[str, str]],
    rows: Sequence[MeasuredRow],
    bounds: Bounds,
) -> Belief:
    """Return the belief in parameters with these `costs`, whose recorded 90 % intervals are `known`.

    Costs of the network have tails, as the network may be of another kind than the profile's.
    """
    values = np.array([costs[name] for name in names])
    widths = [_width(name, costs[name], known.get(name)) for name in names]
    launches = np.array([name in parameters.LAUNCHES for name in names])
    least = np.where(launches & (values == 0), OF_LAUNCHES, 1e-9) * bounds.scale  # an unknown launch: its order only
    return Belief(
        values, np.maximum(widths, least), independent(rows) / len(rows), np.array(list(map(of_network, names)))
    )


def around(names: Sequence[str], line: Line, bounds: Bounds) -> Belief:
    """Return a belief around a line's costs, as wide as costs differ between machines; each row counts fully."""
    widths = [_width(name, cost, None) for name, cost in zip(names, line.values.tolist(), strict=True)]
    return Belief(line.values, np.maximum(widths, OF_RATES * bounds.scale), 1.0)


def _width(name: str, cost: float, interval: tuple[str, str] | None) -> float:
    """Return the standard deviation of a cost: from its earlier fit, and from how much machines of a kind differ."""
    launches = name == "launch" or name in parameters.LAUNCHES
    share = OF_LAUNCHES if launches else OF_RATES if family(name) == "efficiency" else OF_TIMES
    if interval is None or "none" in interval:
        return share * cost
    low, high = sorted(cost_of(name, text) for text in interval)
    return float(np.hypot(share * cost, (high - low) / 2 / NORMAL_90))


def independent(rows: Sequence[MeasuredRow]) -> int:
    """Return the number of independent rows; all rows of one zone (see `zone`) count as one row."""
    return len(set(map(zone, rows)))


def zone(row: MeasuredRow) -> tuple[object, ...]:
    """Return the key of a row's zone, in which errors are similar: one series, and sizes within a factor of ALIKE."""
    return *series(row), int(np.log(max(1, row.size_bytes)) // np.log(ALIKE))


def series(row: MeasuredRow) -> tuple[object, ...]:
    """Return the key of a row's series; rows of a series differ only in size."""
    return row.system, row.collective, row.algorithm, row.protocol, row.ranks, row.nodes, row.dtype


def of_network(name: str) -> bool:
    """Return whether a parameter belongs to messages between nodes or to cables; less is known of it than of GPUs."""
    return name.startswith(f"{parameters.TRANSPORT}.") or name.endswith((f".{CABLE}", ".trunk"))


def part_of(name: str) -> Part:
    """Return the part of the machine that a parameter belongs to: launches, network or GPUs."""
    if name in parameters.LAUNCHES:
        return "launches"
    return "network" if of_network(name) else "GPUs"


def zero(name: str, costs: Mapping[str, float]) -> bool:
    """Return whether the profile's cost is 0 and stays so; launches are exempt."""
    return costs[name] == 0 and name not in parameters.LAUNCHES
