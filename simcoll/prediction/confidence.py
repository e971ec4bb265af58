"""Judge a prediction by the rows that its profile was fitted to, and by the errors of the fit there."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from simcoll.engine.timing_model import Params
from simcoll.scenario.profile import ModelSpec, Profile, Series
from simcoll.topology.graph import Topology

Confidence = Literal["uncalibrated", "calibrated", "interpolated", "extrapolated", "modelled"]

BEYOND: Final = 2  # times as wide, in logarithms, is the interval of what no row has tried: a convention


class PredictedCase(NamedTuple):
    """A predicted call; `setting` as `fingerprint` has it."""

    collective: str
    algorithm: str
    ranks: int
    size_bytes: int
    setting: str


class Judgement(NamedTuple):
    """The confidence in a prediction, and the factors from it to the ends of its 90 % interval."""

    confidence: Confidence
    low: float | None = None
    high: float | None = None


# Parameters younger than some fitted profiles: part of a fingerprint only where they differ from the default.
NEWER: Final = frozenset(["channels_by"])


def fingerprint(topology: Topology, params: Params) -> str:
    """Stands for everything but collective, algorithm, ranks and size that decides a time: what kinds of links, as they
    serve, join what kinds of devices, and the parameters. How many of them there are does not count."""
    kinds = topology.kinds
    links = {
        (kinds[u], kinds[v], link.kind, link.bandwidth, link.latency)
        for (u, v), link in zip(topology.links, topology.every_link, strict=True)
    }
    plain = vars(Params())
    own = {name: value for name, value in vars(params).items() if name not in NEWER or value != plain[name]}
    parameters = ", ".join(f"{name}={value!r}" for name, value in own.items())
    return hashlib.sha256(f"({sorted(links)!r}, Params({parameters}))".encode()).hexdigest()[:12]


def follows(profile: Profile, given: ModelSpec) -> bool:
    """Whether a profile was fitted, and the `model` `given` by a scenario overrides nothing of that."""
    return profile.calibration is not None and not any(_overrides(given, profile.model, n) for n in profile.fitted)


def judge(profile: Profile, asked: PredictedCase, given: ModelSpec) -> Judgement:
    """Judge a prediction of `asked`, whose scenario has the `model` `given`.

    *Calibrated*: the profile was fitted to this very point. *Interpolated*: to smaller and larger sizes, and to fewer
    and more ranks or as many, of the same algorithm on the same links. *Extrapolated*: anything else. *Uncalibrated*:
    there is nothing to judge by, or the scenario overrides what was fitted.
    """
    known = profile.calibration
    if known is None or not follows(profile, given):
        return Judgement("uncalibrated")
    alike = [series for series in known.covers if _alike(series, asked)]
    size = asked.size_bytes
    exact = any(series.ranks == asked.ranks and size in series.fitted for series in alike)
    within = _within(asked.ranks, size, [(series.ranks, series.fitted) for series in alike])
    tried = _within(asked.ranks, size, [(series.ranks, (*series.fitted, *series.held_out)) for series in alike])
    error = known.errors.get("held_out", known.errors["fitted"])
    widen = 1 if tried else BEYOND
    confidence: Confidence = "calibrated" if exact else "interpolated" if within else "extrapolated"
    return Judgement(confidence, error.low**widen, error.high**widen)


def in_region(profile: Profile, region: str, low: float, high: float) -> tuple[float, float]:
    """The factors to the ends of an interval that `judge` gave, from the errors of a region, where the profile has
    them: as much wider than these as the interval is than the errors of all rows."""
    known = profile.calibration
    own = None if known is None else next((errors for name, errors in known.regions.items() if name == region), None)
    if known is None or own is None:
        return low, high
    every = known.errors.get("held_out", known.errors["fitted"])
    widen = [_power(end, whole) for end, whole in ((low, every.low), (high, every.high))]
    return own.low ** widen[0], own.high ** widen[1]


def _power(end: float, whole: float) -> float:
    return math.log(end) / math.log(whole) if whole != 1 else 1.0


def _overrides(given: ModelSpec, fitted: ModelSpec, name: str) -> bool:
    own = getattr(given, name, None)
    return own is not None and own != getattr(fitted, name)


def _alike(series: Series, asked: PredictedCase) -> bool:
    """The same but for ranks and sizes; rows that do not say the algorithm are of any."""
    return (series.collective, series.setting) == (asked.collective, asked.setting) and series.algorithm in (
        "auto",
        asked.algorithm,
    )


def _within(ranks: int, size: int, tried: Iterable[tuple[int, Sequence[int]]]) -> bool:
    """Whether rank counts and sizes that were tried lie on both sides."""
    fitted = [(count, sizes) for count, sizes in tried if sizes]
    if not fitted:
        return False
    sizes = [nbytes for _, of_count in fitted for nbytes in of_count]
    counts = [count for count, _ in fitted]
    return min(counts) <= ranks <= max(counts) and min(sizes) <= size <= max(sizes)
