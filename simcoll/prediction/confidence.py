"""Judge a prediction by the rows that its profile was fitted to, and by the errors of the fit there."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from simcoll.config.lru import LruCache
from simcoll.engine.timing_model import Params
from simcoll.prediction.intervals import DOUBT, NORMAL_90, Noise, Parts, shrunk
from simcoll.prediction.model_errors import Kind, ModelErrors, Setting, error_of, noise_of, shipped
from simcoll.scenario.launch import LaunchWay
from simcoll.scenario.profile import Calibration, ModelSpec, Profile, Series
from simcoll.topology.graph import Topology

Confidence = Literal["uncalibrated", "calibrated", "interpolated", "extrapolated", "modelled"]

FEW: Final = 8  # rows from which on a record shows what is usual
BEYOND: Final = 2  # times as wide, in logarithms, is the interval of what no row has tried: a convention


class PredictedCase(NamedTuple):
    """A predicted call; `setting` as `fingerprint` has it, `nodes`, `place`, `busy`, `launch` and `lent`
    as `model_errors.Setting`.

    `by_itself`: the library takes `algorithm` and `protocol` where it has the choice. `forced`: it had no choice of
    `protocol`.
    """

    collective: str
    algorithm: str
    ranks: int
    size_bytes: int
    setting: str
    nodes: int = 1
    place: str = ""
    busy: float = 0.0
    launch: LaunchWay = ""
    lent: bool = False
    protocol: str = "none"
    by_itself: bool = True
    forced: bool = False

    @property
    def where(self) -> Setting:
        """The place of the call, for its cells."""
        return Setting(self.collective, self.nodes, self.place, self.busy, self.launch, self.lent)


class Judgement(NamedTuple):
    """The confidence in a prediction, and the factors from it to the ends of its 90 % intervals: of a single
    measurement (`low`, `high`), and of the median of many.
    """

    confidence: Confidence
    low: float | None = None
    high: float | None = None
    median_low: float | None = None
    median_high: float | None = None


# Parameters younger than some fitted profiles: part of a fingerprint only where they differ from the default.
NEWER: Final = frozenset(["channels_by"])


# By topology, which is kept as long, and parameters: links of it, and the fingerprint.
_FINGERPRINTS: Final[LruCache[tuple[int, str]]] = LruCache(1_000_000, lambda found: found[0])


def fingerprint(topology: Topology, params: Params, places: Sequence[str]) -> str:
    """Stands for everything but collective, algorithm, ranks and size that decides a time: what kinds of links, as they
    serve, join what kinds of devices, and the parameters. How many of them there are does not count; where the `places`
    of ranks are all on one machine, neither does what joins it to others."""
    alone = topology.nodes > 1 and topology.nodes_of(tuple(places)) == 1
    key = (topology, params, alone)
    return _FINGERPRINTS.get(key, lambda: (len(topology.links), _digest(topology, params, alone)))[1]


def _digest(topology: Topology, params: Params, alone: bool) -> str:
    kinds, names, every = topology.kinds, list(topology.links), list(topology.every_link)
    counted = topology.links_within_nodes.tolist() if alone else range(len(names))
    links = {
        (kinds[names[i][0]], kinds[names[i][1]], every[i].kind, every[i].bandwidth, every[i].latency_ps)
        for i in counted
    }
    plain = vars(Params())
    own = {name: value for name, value in vars(params).items() if name not in NEWER or value != plain[name]}
    parameters = ", ".join(f"{name}={value!r}" for name, value in own.items())
    return hashlib.sha256(f"({sorted(links)!r}, Params({parameters}))".encode()).hexdigest()[:12]


def follows(profile: Profile, given: ModelSpec) -> bool:
    """Whether a profile was fitted, and the `model` `given` by a scenario overrides nothing of that."""
    if profile.calibration is None:
        return False
    return not (given.model_fields_set and any(_overrides(given, profile.model, name) for name in profile.fitted))


def judge(
    profile: Profile,
    asked: PredictedCase,
    given: ModelSpec,
    shipped: bool = False,
    elsewhere: ModelErrors | None = None,
) -> Judgement:
    """Judge a prediction of `asked`, whose scenario has the `model` `given`.

    *Calibrated*: the profile was fitted to this very point. *Interpolated*: to smaller and larger sizes, and to fewer
    and more ranks or as many, of the same algorithm on the same links. *Extrapolated*: anything else. *Uncalibrated*:
    there is nothing to judge by, or the scenario overrides what was fitted.

    A `shipped` profile was fitted to a machine that is not the user's. `elsewhere` is what the model errs on other
    machines; default: what is shipped.
    """
    known = profile.calibration
    if known is None or not follows(profile, given):
        return Judgement("uncalibrated")
    alike = [series for series in known.covers if _alike(series, asked)]
    size = asked.size_bytes
    exact = any(series.ranks == asked.ranks and size in series.fitted for series in alike)
    within = _within(asked.ranks, size, [(series.ranks, series.fitted) for series in alike])
    confidence: Confidence = "calibrated" if exact else "interpolated" if within else "extrapolated"
    others = of_another_machine(asked.where, elsewhere)
    parts = others if shipped else _of_this_machine(known, asked, profile.as_nccl, others)
    single, median = _factors(parts)
    return Judgement(confidence, 1 / single, single, 1 / median, median)


@functools.lru_cache(maxsize=1024)
def _factors(parts: Parts) -> tuple[float, float]:
    """The factors from a prediction to either end of its intervals, of a single measurement and of the median."""
    return math.exp(parts.single), math.exp(parts.median)


def of_another_machine(asked: Setting, known: ModelErrors | None = None) -> Parts:
    """The uncertainty of a profile on a machine to which it was not fitted; `known` replaces what is shipped."""
    return Parts(noise_of(known), 0.0, error_of(asked, known), math.inf)  # how few clusters show it is in the error


def _of_this_machine(known: Calibration, asked: PredictedCase, as_nccl: bool, elsewhere: Parts) -> Parts:
    """The uncertainty of a profile on the machine that it was fitted to, by what is new in a call; `elsewhere` is that
    on another one.

    What a fit errs on rows that it left out is drawn to what the model errs on other machines: for NCCL's calls where
    they run like this one, else for fits of any. Of calls like this one that error has all parts in it, how few
    machines show it and what is not known of parameters too: a fit to a machine makes its intervals wider only where
    rows of this machine ask for it. Of a number of nodes that no row has, the errors of other machines hold if they are
    wider.
    """
    own = known.uncertainty
    if own is None:  # of a fit that an older release made
        every = known.errors.get("held_out", known.errors["fitted"])
        widest = max(-math.log(every.low), math.log(every.high))
        return Parts(elsewhere.noise, 0.0, widest / NORMAL_90, len(known.covers))
    rows = [series for series in known.covers if series.fitted and not series.former]
    ranks = [series.ranks for series in rows]
    news: dict[Kind, bool] = {
        "sizes": True,
        "ranks": not min(ranks, default=1) <= asked.ranks <= max(ranks, default=0),
        "collectives": asked.collective not in {series.collective for series in rows},
        "nodes": as_nccl and asked.nodes not in {series.nodes or 1 for series in rows},
    }
    noise = Noise(own.noise, own.outliers)
    house = dict.fromkeys(own.model, elsewhere.model) if as_nccl else shipped().left_out
    errors = {kind: shrunk(own.model[kind], own.groups[kind], house[kind]) for kind, is_new in news.items() if is_new}
    worst = max(errors, key=errors.__getitem__)  # it has the others in it: what was left out is of other sizes, too
    own_parts = Parts(noise, own.parameters, errors[worst], min(own.groups[kind] for kind in errors) + DOUBT)
    if not as_nccl:
        return own_parts
    if errors[worst] > elsewhere.model:  # this machine is unlike others, and few groups show how much
        return own_parts._replace(groups=own.groups[worst] + DOUBT)
    model = elsewhere.model if news["nodes"] else errors[worst]
    return elsewhere._replace(noise=noise, model=model)


def band(profile: Profile, region: str, extrapolated: bool) -> tuple[float, float]:
    """The factors between which the rows of a region lay that a profile was fitted to, or all its rows where the region
    has too few: what is usual on that machine. Twice as wide, in logarithms, for what no row has tried.
    """
    known = profile.calibration
    assert known is not None
    own = next((errors for name, errors in known.regions.items() if name == region), None)
    errors = own or known.errors.get("held_out", known.errors["fitted"])
    widen = BEYOND if extrapolated else 1
    return errors.low**widen, errors.high**widen


def shows_usual(profile: Profile) -> bool:
    """Whether a profile records a fit to enough rows to say what is usual on the machines that it was fitted to."""
    return profile.calibration is not None and profile.calibration.errors["fitted"].rows >= FEW


def _overrides(given: ModelSpec, fitted: ModelSpec, name: str) -> bool:
    own = getattr(given, name, None)
    return own is not None and own != getattr(fitted, name)


def _alike(series: Series, asked: PredictedCase) -> bool:
    """The same but for ranks and sizes; rows that left the choice to the library show what it takes by itself."""
    return (
        (series.collective, series.setting) == (asked.collective, asked.setting)
        and (series.algorithm == asked.algorithm or (series.algorithm == "auto" and asked.by_itself))
        and (series.protocol == asked.protocol or (series.protocol == "auto" and (asked.by_itself or not asked.forced)))
    )


def _within(ranks: int, size: int, tried: Iterable[tuple[int, Sequence[int]]]) -> bool:
    """Whether rank counts and sizes that were tried lie on both sides."""
    fitted = [(count, sizes) for count, sizes in tried if sizes]
    if not fitted:
        return False
    sizes = [nbytes for _, of_count in fitted for nbytes in of_count]
    counts = [count for count, _ in fitted]
    return min(counts) <= ranks <= max(counts) and min(sizes) <= size <= max(sizes)
