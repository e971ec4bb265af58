"""Is what was measured what this hardware should give, and if not, what explains it best?

A point is inside if it lies in the 90 % interval of its prediction, but for a constant that belongs to the way of
measuring and is found from the smallest sizes. What may be wrong is simulated, and explanations are ranked by their
mean error, to which each thing that they assume adds something.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll import sweep
from simcoll.accuracy import hypotheses, join, scores
from simcoll.accuracy.hypotheses import HEALTHY, Hypothesis
from simcoll.accuracy.parameters import Setting
from simcoll.accuracy.quality import suspicious
from simcoll.accuracy.questions import Asking, ours
from simcoll.accuracy.retiming import IDEAL, Question
from simcoll.accuracy.samples import SMALL
from simcoll.errors import InputError, RefusedError
from simcoll.formats.measured import COLUMNS, Row, parse_measured
from simcoll.profile import load_profile
from simcoll.scenario import Point, Scenario

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Document = dict[str, Any]

SCHEMA: Final = "simcoll.diagnose/1"
ALLOWED: Final = 5.0  # us by which launches differ from one sound way of measuring to another
PENALTY: Final = 0.015  # of mean error, for each thing that a hypothesis assumes
FAR: Final = 1.5  # |log| of measured / predicted beyond which a row counts no more
UNTRIED: Final = (0.75, 1.33)  # the interval where a profile has none: a convention
HOLDS: Final = 0.5  # the share of points that must be inside for an explanation to be one
RARE: Final = 0.01  # a region is off if fewer than HOLDS are inside, and chance makes that so rarely
FINE: Final = 0.9  # the share of points inside at which nothing needs an explanation: what a 90 % interval means
CLEAR: Final = 2.0  # standard errors by which the next best is worse, row by row
LIKELY: Final = 1.0


@dataclass(frozen=True)
class Fit:
    """A hypothesis on the rows: predicted us, the launch that was added or the pace that was set, |log| of each error
    of a good row, and the share of these rows that it brings inside."""

    hypothesis: Hypothesis
    predicted: Array
    launch: float
    errors: Array
    inside: float

    @property
    def error(self) -> float:
        """The mean."""
        return float(self.errors.mean())

    @property
    def score(self) -> float:
        """What hypotheses are ranked by, the least first."""
        return self.error + PENALTY * self.hypothesis.assumes


@dataclass(frozen=True)
class _Rows:
    """Measured rows with their points, and of each what the healthy machine's prediction says."""

    rows: tuple[Row, ...]
    scenarios: tuple[Scenario, ...]
    told: tuple[dict[str, Any], ...]

    @property
    def measured(self) -> Array:
        return np.array([row.time_us for row in self.rows])

    @property
    def interval(self) -> tuple[Array, Array]:
        """Factors from a prediction to the ends of its interval."""
        ends = [
            UNTRIED if told["low_us"] is None else (told["low_us"] / told["time_us"], told["high_us"] / told["time_us"])
            for told in self.told
        ]
        return np.array([low for low, _ in ends]), np.array([high for _, high in ends])


def diagnosed(text: str, source: str, system: str, where: Sequence[str], sets: Sequence[str] = ()) -> Document:
    """Judge what `text` measured on a `system`, or on the topology of a file, by the rows that `where` leaves.

    Raises InputError for tables and topologies that cannot be read, and where nothing can be predicted.
    """
    kept = dict(map(join.condition, where))
    measured = parse_measured(text, source, {column: kept[column] for column in kept if column in COLUMNS})
    selected = join.select(measured, kept)
    join.check_columns(kept, measured)
    asked, refused = _asked(selected, Asking(system, sets))
    if not asked.rows:
        what = f"{source}: none of {len(selected)} measured rows can be predicted"
        raise InputError(what, next(iter(refused), "give rows of collectives that are known here"))
    if all(scenario.profile == IDEAL for scenario in asked.scenarios):
        what = f"{system} has no profile: what calls take there is not known"
        raise InputError(what, "name one that fits, e.g. --set profile=nccl-hopper")
    marked = np.array(suspicious(asked.rows))
    if marked.all():
        raise InputError(f"{source}: every row is slower than that of twice the size", "measure again")
    ranked = _ranked(asked, ~marked)
    return _document(system, asked, marked, ranked, refused)


# --- rows as questions ---


def _asked(selected: Sequence[Row], asking: Asking) -> tuple[_Rows, Counter[str]]:
    """Rows that can be predicted, and why the others cannot."""
    found: list[tuple[Row, Scenario, dict[str, Any]]] = []
    refused: Counter[str] = Counter()
    for row in selected:
        points = asking.points(ours(row))
        if len(points) > 1:
            raise InputError("--set sweeps", "give one value")
        told = sweep.run_point(replace(points[0], scenario=_forced(points[0], row))) if points else {}
        if told.get("status") == "ok" and points:
            found.append((row, _forced(points[0], row), told))
        else:
            refused[str(told.get("status", f"{row.algorithm} is not known"))] += 1
    return _Rows(*(tuple(its) for its in zip(*found, strict=True))) if found else _Rows((), (), ()), refused


def _forced(point: Point, row: Row) -> Scenario:
    """With the protocol that the row was forced to."""
    scenario = point.scenario
    if row.protocol is None or not load_profile(scenario.profile).kernels:
        return scenario
    return scenario.model_copy(update={"protocol": row.protocol})


# --- hypotheses ---


def _ranked(asked: _Rows, good: Mask) -> list[Fit]:
    """The best variant of each family, the best family first."""
    times = _Times(asked.scenarios)
    best: dict[str, Fit] = {}
    for variants in hypotheses.candidates(asked.scenarios, times.kinds):
        worst = np.inf
        for one in variants:  # in order: behind one that is worse than the one before come worse ones
            found = times.under(one)
            fit = None if found is None else _fitted(one, found, asked, good)
            if fit is None or fit.score > worst:
                break
            worst = fit.score
            if one.family not in best or fit.score < best[one.family].score:
                best[one.family] = fit
    return sorted(best.values(), key=lambda fit: fit.score)  # stable: what comes earlier wins


class _Times:
    """Times of points under hypotheses, in us; each point is bound once."""

    def __init__(self, scenarios: Sequence[Scenario]):
        self._scenarios = scenarios
        self._questions: dict[str, Question] = {}

    @property
    def kinds(self) -> list[str]:
        """The kinds of links that are used."""
        return list(dict.fromkeys(kind for one in self._scenarios for kind in self._question(one).kinds))

    def under(self, hypothesis: Hypothesis) -> Array | None:
        """None for what cannot be simulated."""
        try:
            return np.array([self._time(hypothesis.scenario(one), hypothesis) for one in self._scenarios])
        except (RefusedError, InputError):
            return None

    def _time(self, scenario: Scenario, hypothesis: Hypothesis) -> float:
        profile = load_profile(scenario.profile)
        setting = hypothesis.setting(Setting.of(profile))
        return self._question(scenario).time_ps(setting) / 1e6

    def _question(self, scenario: Scenario) -> Question:
        key = scenario.model_dump_json(exclude={"name", "plots", "measured"})
        if key not in self._questions:
            self._questions[key] = Question(scenario)
        return self._questions[key]


def _beyond(longer: Array) -> bool:
    """Whether launches take longer than sound ways of measuring explain."""
    return bool(len(longer)) and bool(np.median(longer) > ALLOWED)


def _fitted(one: Hypothesis, times: Array, asked: _Rows, good: Mask) -> Fit | None:
    """With the launch that the smallest sizes tell; None for one of the launch where there are no small sizes."""
    measured = asked.measured
    small = good & np.array([row.size_bytes <= SMALL for row in asked.rows])
    if one.host != "as measured" and not _beyond(measured[small] - times[small]):
        return None
    if one.host == "paces":
        launch = float(np.median(measured[small]))
        predicted = np.maximum(times, launch)
    else:
        wanted = float(np.median(measured[small] - times[small])) if small.any() else 0.0
        most = ALLOWED if one.host == "as measured" else np.inf
        launch = max(min(wanted, most), -most, -float(times.min()) / 2)
        predicted = times + launch
    off = np.minimum(np.abs(np.log(measured / predicted)), FAR)
    low, high = asked.interval
    inside = (measured >= low * predicted) & (measured <= high * predicted)
    return Fit(one, predicted, launch, off[good], float(inside[good].mean()))


# --- what is told ---


def _document(system: str, asked: _Rows, marked: Mask, ranked: Sequence[Fit], refused: Counter[str]) -> Document:
    healthy, best = next(fit for fit in ranked if fit.hypothesis is HEALTHY), ranked[0]
    low, high = asked.interval
    points = [
        join.Point(
            row.collective, told["algorithm"], told["protocol"], row.ranks, told["nodes"], row.size_bytes,
            told["dtype"], row.time_us, expected, expected / row.time_us - 1, expected * least, expected * most,
            told["confidence"],
        )
        for row, told, expected, least, most in zip(
            asked.rows, asked.told, healthy.predicted.tolist(), low.tolist(), high.tolist(), strict=True
        )
    ]  # fmt: skip
    region = scores.region_of([replace(point, algorithm=None, protocol=None) for point in points])
    judged = [
        {
            "collective": p.collective,
            "ranks": p.ranks,
            "nodes": p.nodes,
            "size_bytes": p.size_bytes,
            "dtype": p.dtype,
            "algorithm": p.algorithm,
            "protocol": p.protocol,
            "measured_us": p.measured_us,
            "expected_us": p.predicted_us,
            "low_us": p.low_us,
            "high_us": p.high_us,
            "explained_us": float(best.predicted[i]),
            "region": region(replace(p, algorithm=None, protocol=None)),
            "verdict": "bad row" if marked[i] else _verdict(p),
        }
        for i, p in enumerate(points)
    ]
    return {
        "schema": SCHEMA,
        "system": system,
        "profile": ", ".join(dict.fromkeys(scenario.profile for scenario in asked.scenarios)),
        "confidence": ", ".join(dict.fromkeys(str(told["confidence"]) for told in asked.told)),
        "launch_us": healthy.launch,
        "points": judged,
        "regions": _regions(judged),
        "hypotheses": [_told(fit) for fit in ranked],
        "verdict": best.hypothesis.family if best.inside >= HOLDS else None,
        "also": [fit.hypothesis.family for fit in ranked[1:] if _same(fit, best)],
        "sure": _sure(ranked),
        "refused": dict(refused),
    }


def _verdict(point: join.Point) -> str:
    assert point.low_us is not None and point.high_us is not None
    if point.measured_us > point.high_us:
        return "slow"
    return "fast" if point.measured_us < point.low_us else "inside"


def _regions(points: Sequence[Document]) -> list[Document]:
    """Of each region how many points are inside, what they took as a share of what was expected, whether it is off."""
    found = []
    for region in scores.REGIONS:
        its = [point for point in points if point["region"] == region and point["verdict"] != "bad row"]
        if its:
            inside = sum(point["verdict"] == "inside" for point in its)
            ratios = [point["measured_us"] / point["expected_us"] for point in its]
            found.append({
                "region": region,
                "points": len(its),
                "inside": inside,
                "ratio": float(np.median(ratios)),
                "off": inside < HOLDS * len(its) and _chance(len(its), inside) < RARE,
            })  # fmt: skip
    return found


def _chance(points: int, inside: int) -> float:
    """How often no more than so many of the points are inside 90 % intervals that are right."""
    return sum(math.comb(points, k) * 0.9**k * 0.1 ** (points - k) for k in range(inside + 1))


def _told(fit: Fit) -> Document:
    return {
        "hypothesis": fit.hypothesis.family,
        "value": fit.hypothesis.value or (f"{fit.launch:.1f} us" if fit.hypothesis.host != "as measured" else ""),
        "text": fit.hypothesis.text,
        "error": fit.error,
        "assumes": fit.hypothesis.assumes,
        "score": fit.score,
        "inside": fit.inside,
        "launch_us": fit.launch,
    }


def _same(one: Fit, other: Fit) -> bool:
    """Whether two hypotheses say the same of every row: the table cannot tell them apart."""
    return bool(np.allclose(one.predicted, other.predicted, rtol=1e-3))


def _sure(ranked: Sequence[Fit]) -> str:
    """How surely the best explanation is better than the next, by the rows on which they differ."""
    others = [fit for fit in ranked[1:] if not _same(fit, ranked[0])]
    if not others:
        return "clear"
    best, other = ranked[0], others[0]
    if any(fit.hypothesis is HEALTHY and fit.inside >= FINE for fit in others):
        return "open"
    behind = other.errors - best.errors
    spread = float(behind.std(ddof=1)) * len(behind) ** 0.5 if len(behind) > 1 else np.inf
    total = float(behind.sum())
    return "clear" if total > CLEAR * spread else "likely" if total > LIKELY * spread else "open"
