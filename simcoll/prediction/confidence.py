"""Estimate how uncertain a predicted time is. The estimate uses the measured rows to which a profile was fitted, the
errors of that fit, and the model's errors on other machines."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simcoll.config import yaml_tree
from simcoll.config.grouping import grouped
from simcoll.config.numpy_helpers import Floats, numbers_of, sorted_out
from simcoll.config.yaml_tree import Model
from simcoll.engine.timing_model import Params
from simcoll.scenario.launch import LaunchWay
from simcoll.scenario.profile import Calibration, ModelSpec, Profile, Series
from simcoll.schedule.collectives import EXCHANGES
from simcoll.topology.graph import Topology

NORMAL_90: Final = 1.6449  # standard deviations from the middle of a normal distribution to its 95th percentile
FAR: Final = 4.0  # standard deviations beyond which a measurement is an outlier: one in 16000 with normal noise
MOST_OUTLIERS: Final = 0.09  # less than the tenth that may lie outside: the rest decides the width
LEAST_NOISE: Final = 0.01  # a smaller value is luck of few rows: repeated runs on one machine differ by a percent
FEWEST: Final = 4  # a spread needs this many differences
DOUBT: Final = 2.0  # knowledge of other machines counts as much as this many groups of a table


class Noise(NamedTuple):
    """Noise of single measurements: standard deviation of a time's logarithm, and the share of outliers (0 … 1)."""

    spread: float
    outliers: float


class Parts(NamedTuple):
    """The uncertainty of a time by cause, as standard deviations of its logarithm; `groups` of rows gave `model`."""

    noise: Noise
    parameters: float
    model: float
    groups: float

    @property
    def median(self) -> float:
        """Return half the width of the 90 % interval for a median of many measurements, as a logarithm."""
        return math.hypot(NORMAL_90 * self.parameters, student(self.groups) * self.model)

    @property
    def single(self) -> float:
        """Return half the width of the 90 % interval for one measurement, as a logarithm; outliers lie outside."""
        inside = 0.9 / (1 - min(self.noise.outliers, MOST_OUTLIERS))
        return math.hypot(self.median, NormalDist().inv_cdf(0.5 + inside / 2) * self.noise.spread)


def student(groups: float) -> float:
    """Return the 95th percentile of Student's t distribution, in standard deviations, for a spread that was estimated
    from this many groups. It is approximated by the first term of its series in 1 / groups."""
    return NORMAL_90 * (1 + (NORMAL_90**2 + 1) / 4 / max(1.0, groups))


def noise(residuals: Floats, series: Sequence[Hashable], sizes: Sequence[int]) -> tuple[Noise, NDArray[np.bool_]]:
    """Estimate the noise of measured rows, and flag the outliers among the rows: bool (rows,).

    `residuals` are log(measured / predicted), shape (rows,). Neighbouring sizes of one series share the model's error,
    so the difference of their residuals shows the noise. Outliers hardly change the estimate.
    """
    around = np.zeros(len(residuals))
    steps: list[float] = []
    for numbers in grouped(range(len(residuals)), series.__getitem__).values():
        ordered = sorted(numbers, key=sizes.__getitem__)
        steps += np.diff(residuals[ordered]).tolist()
        for at, number in enumerate(ordered):
            around[number] = residuals[number] - np.median(residuals[ordered[max(0, at - 2) : at + 3]])
    lone = len(steps) < FEWEST
    spread = _robust(residuals - np.median(residuals)) if lone else _robust(np.array(steps)) / math.sqrt(2)
    spread = max(LEAST_NOISE, spread)
    outliers = np.abs(around) > FAR * spread
    return Noise(spread, float(np.mean(outliers))), outliers


def _robust(deviations: Floats) -> float:
    """Estimate the standard deviation of normal `deviations` around 0 from their median absolute value."""
    return 1.4826 * float(np.median(np.abs(deviations)))  # 1/0.6745, the normal upper quartile


def shrunk(own: float, groups: int, known: float) -> float:
    """Return a mean of two spreads: `own`, of this machine's `groups`, and `known`, which counts as DOUBT groups."""
    return math.sqrt((groups * own**2 + DOUBT * known**2) / (groups + DOUBT))


# A cell's error is averaged with that of the wider cell around it, which counts as so many clusters. Values from 1.5 to
# 3 change the coverage of intervals in cross-validation by about one percentage point.
AROUND: Final = 2.0
FILE: Final = Path(__file__).with_name("prediction_errors.yaml")
Kind = Literal["sizes", "ranks", "collectives", "nodes"]
ZONES: Final = ((0.2, "to 20 % busy"), (0.6, "to 60 % busy"), (math.inf, "above"))
BLEND: Final = 0.2  # distance from the edge of a zone within which its error blends with the neighbour's
PAIRS: Final = (*EXCHANGES, "send_recv", "gather", "scatter")  # messages between pairs
CHAINS: Final = (
    "broadcast",
    "reduce",
)  # from a root or to it; others go by rings and trees

LogError = Annotated[float, Field(ge=0)]


class CellErrors(Model):
    """How far the model errs for one class of similar calls (a cell): `error` is the standard deviation of log(measured
    / predicted); `clusters` is the number of clusters that were measured."""

    error: Annotated[float, Field(gt=0)]
    clusters: Annotated[int, Field(ge=1)]


class ModelErrors(Model):
    """The model's errors on measured machines: by cell, i.e. class of similar calls (`cells_of`), and by the kind of
    rows that were left out of a fit (`left_out`). `nodes` is the node count of the largest measured cluster."""

    noise: LogError
    outliers: LogError
    left_out: dict[Kind, LogError]
    nodes: Annotated[int, Field(ge=1)]
    cells: dict[str, CellErrors]


class Setting(NamedTuple):
    """The properties of a call on which the model's error depends. `place` is the kind of links between GPUs, or on
    several nodes the profile of its NICs, which decides nothing. `busy` is the share of time in which its busiest link
    carries data. `launch` is `Launch.way`: a launch by graph, or by one process for all GPUs, takes a different time,
    which is most of the time of a small call. `lent`: the costs of GPUs were fitted to another model of GPU."""

    collective: str
    nodes: int
    place: str
    busy: float
    launch: LaunchWay = ""
    lent: bool = False


def cells_of(setting: Setting) -> Iterator[str]:
    """Yield the names of the cells (classes of similar calls) to which a call belongs, the narrowest first; each name
    ends with the zone of `busy` (see ZONES). A special `launch` adds a still narrower cell, unless links are busy.
    Between nodes sites with NICs of one kind differ as much as sites with others, so NICs have no cells.

    >>> list(cells_of(Setting("all_reduce", 1, "nvlink", 0.01, launch="graph")))
    ['graph on one node, to 20 % busy', 'one node, nvlink, own costs, rings, to 20 % busy', \
'one node, nvlink, own costs, to 20 % busy', 'one node, nvlink, to 20 % busy', 'one node, own costs, to 20 % busy', \
'one node, to 20 % busy']
    >>> list(cells_of(Setting("all_to_all", 4, "efa", 0.9)))
    ['more nodes, pairs, above', 'several nodes, pairs, above', 'several nodes, above']
    """
    reach = {1: "one node", 2: "two nodes"}.get(setting.nodes, "more nodes")
    collective, place, zone = setting.collective, setting.place, zone_of(setting.busy)
    family = "pairs" if collective in PAIRS else "chains" if collective in CHAINS else "rings"
    if has_own_cell(setting):
        yield f"{setting.launch} on {reach}, {zone}"
    # the kind of links and the model of GPU count more than the family of the collective
    if setting.nodes == 1:
        costs = "lent costs" if setting.lent else "own costs"
        around = (f"{place}, {costs}, {family}", f"{place}, {costs}", place, costs)
        yield from (f"{reach}, {each}, {zone}" for each in around)
        yield f"{reach}, {zone}"
        return
    yield f"{reach}, {family}, {zone}"
    yield f"several nodes, {family}, {zone}"
    yield f"several nodes, {zone}"


def has_own_cell(setting: Setting) -> bool:
    """Whether calls with this special `launch` have a cell of their own: the launch may be most of their time."""
    return bool(setting.launch) and zone_of(setting.busy) != ZONES[-1][1]


def zone_of(busy: float) -> str:
    """Return the name of the zone (range of ZONES) of a link's busy share of time; 0.1 is in "to 20 % busy"."""
    return next(name for most, name in ZONES if busy <= most)


def error_of(setting: Setting, known: ModelErrors | None = None) -> float:
    """Return the standard deviation of log(measured / predicted) for such a call on a machine to which the model was
    not fitted. `known` replaces the shipped errors.

    Near the edge between two zones (ranges of `busy`) the variance is interpolated, so that errors do not jump there.
    """
    known = known or shipped()
    doublings = math.log2(max(1.0, setting.nodes / known.nodes))
    return math.hypot(_of_zones(setting, known), doublings * known.left_out["nodes"])


def _of_zones(setting: Setting, known: ModelErrors) -> float:
    edge = next((most for most, _ in ZONES[:-1] if abs(setting.busy - most) < BLEND), None)
    if edge is None:
        return _of_zone(setting, known)
    below, above = (_of_zone(setting._replace(busy=edge + beyond), known) for beyond in (-BLEND, BLEND))
    share = (1 + (setting.busy - edge) / BLEND) / 2
    return math.sqrt((1 - share) * below**2 + share * above**2)


def _of_zone(setting: Setting, known: ModelErrors) -> float:
    """Return the error of the call's narrowest cell, averaged with the errors of the wider cells around it."""
    found: float | None = None
    for name in reversed(list(cells_of(setting))):
        if cell := known.cells.get(name):
            share = cell.clusters / (cell.clusters + AROUND) if found else 1.0
            found = cell.error**share * (found or 1.0) ** (1 - share)
    return found or max((cell.error for cell in known.cells.values()), default=1.0)


@functools.cache  # a file of 20 ms, which does not change
def shipped() -> ModelErrors:
    """Return the model's errors from the shipped file `prediction_errors.yaml`."""
    return yaml_tree.validate(ModelErrors, [yaml_tree.read(FILE)])[0]


Confidence = Literal["uncalibrated", "calibrated", "interpolated", "extrapolated", "modelled"]

FEW: Final = 8  # fewest rows from which a usual range of errors is derived
BEYOND: Final = 2  # factor by which extrapolation widens an interval, in logarithms: a convention


class PredictedCase(NamedTuple):
    """A predicted call. `where` selects the cells (classes of similar calls) whose errors apply; `setting` is the
    call's `fingerprint`. `by_itself`: the library would choose this `algorithm` and `protocol`. `forced`: the user
    chose the `protocol`."""

    where: Setting
    algorithm: str
    ranks: int
    size_bytes: int
    setting: str
    protocol: str = "none"
    by_itself: bool = True
    forced: bool = False


class Judgement(NamedTuple):
    """The confidence in a predicted time, and its 90 % intervals as factors of this time: from `low` to `high` for a
    single measurement, from `median_low` to `median_high` for the median of many."""

    confidence: Confidence
    low: float | None = None
    high: float | None = None
    median_low: float | None = None
    median_high: float | None = None


# Parameters newer than some fitted profiles: they enter a fingerprint only where they differ from the default.
NEWER: Final = frozenset(["channels_by"])


def fingerprint(topology: Topology, params: Params, places: Sequence[str]) -> str:
    """Return a digest of what decides a time besides collective, algorithm, ranks and size: the parameters, and for
    each kind of link its rates and the kinds of devices that it joins. The number of links does not enter. Links
    between machines do not enter if all `places` (devices of ranks) are on one machine."""
    alone = topology.nodes > 1 and topology.nodes_of(tuple(places)) == 1
    columns = topology.bandwidths, topology.latencies, numbers_of(topology.link_kinds)
    ends = topology.of_ends(numbers_of(topology.kinds.values()))
    counted = topology.links_within_nodes if alone else slice(None)
    first, _ = sorted_out(*(column[counted] for column in (*columns, *ends.T)))
    kinds, every = topology.kinds, np.arange(len(topology.links))[counted][first].tolist()
    links = [
        (*(kinds[end] for end in topology.links[link]), topology.link_kinds[link], *(int(c[link]) for c in columns[:2]))
        for link in every
    ]
    plain = vars(Params())
    own = {name: value for name, value in vars(params).items() if name not in NEWER or value != plain[name]}
    parameters = ", ".join(f"{name}={value!r}" for name, value in own.items())
    return hashlib.sha256(f"({sorted(links)!r}, Params({parameters}))".encode()).hexdigest()[:12]


def follows(profile: Profile, given: ModelSpec) -> bool:
    """Whether a profile was fitted to measurements, and `given` (the scenario's `model`) overrides no fitted key."""
    if profile.calibration is None:
        return False
    own = {name: getattr(given, name, None) for name in profile.fitted if given.model_fields_set}
    return all(value is None or value == getattr(profile.model, name) for name, value in own.items())


def judge(
    profile: Profile,
    asked: PredictedCase,
    given: ModelSpec,
    shipped: bool = False,
    elsewhere: ModelErrors | None = None,
) -> Judgement:
    """Judge how far to trust the prediction of the call `asked`; `given` is the `model` of its scenario.

    *Calibrated*: the profile was fitted to this very point. *Interpolated*: the profile was fitted to the same
    algorithm on the same links, and size and rank count lie within the fitted ranges. *Extrapolated*: the profile was
    fitted to other points. *Uncalibrated*: the profile was not fitted, or the scenario overrides fitted keys.

    A `shipped` profile was fitted to a machine that is not the user's. `elsewhere` holds the model's errors on other
    machines; by default these are the shipped errors.
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
    single, median = math.exp(parts.single), math.exp(parts.median)
    return Judgement(confidence, 1 / single, single, 1 / median, median)


def of_another_machine(asked: Setting, known: ModelErrors | None = None) -> Parts:
    """Return the uncertainty of a time on a machine to which no profile was fitted; `known` replaces shipped errors."""
    learnt = known or shipped()
    noise = Noise(learnt.noise, learnt.outliers)
    return Parts(noise, 0.0, error_of(asked, learnt), math.inf)  # the error includes how few clusters show it


def _of_this_machine(known: Calibration, asked: PredictedCase, as_nccl: bool, elsewhere: Parts) -> Parts:
    """Return the uncertainty of a call's time on the machine to which a profile was fitted. It depends on how the call
    differs from the fitted rows; `elsewhere` is the uncertainty on another machine.

    The fit's errors in cross-validation are shrunk towards the model's errors on other machines: the errors of similar
    calls if NCCL runs the call, else those of all fits. The errors of similar calls already include that parameters are
    uncertain and machines are few, so a fit widens intervals only if its own rows demand it. For a node count that no
    fitted row has, the larger errors apply: the fit's or those of other machines.
    """
    own = known.uncertainty
    if own is None:  # the fit is of an older release
        every = known.errors.get("held_out", known.errors["fitted"])
        widest = max(-math.log(every.low), math.log(every.high))
        return Parts(elsewhere.noise, 0.0, widest / NORMAL_90, len(known.covers))
    rows = [series for series in known.covers if series.fitted and not series.former]
    ranks = [series.ranks for series in rows]
    news: dict[Kind, bool] = {
        "sizes": True,
        "ranks": not min(ranks, default=1) <= asked.ranks <= max(ranks, default=0),
        "collectives": asked.where.collective not in {series.collective for series in rows},
        "nodes": as_nccl and asked.where.nodes not in {series.nodes or 1 for series in rows},
    }
    noise = Noise(own.noise, own.outliers)
    house = dict.fromkeys(own.model, elsewhere.model) if as_nccl else shipped().left_out
    errors = {kind: shrunk(own.model[kind], own.groups[kind], house[kind]) for kind, is_new in news.items() if is_new}
    worst = max(errors, key=errors.__getitem__)  # it includes the others: rows left out differ in size, too
    own_parts = Parts(noise, own.parameters, errors[worst], min(own.groups[kind] for kind in errors) + DOUBT)
    if not as_nccl:
        return own_parts
    if errors[worst] > elsewhere.model:  # this machine is unlike others, and few groups show by how much
        return own_parts._replace(groups=own.groups[worst] + DOUBT)
    model = elsewhere.model if news["nodes"] else errors[worst]
    return elsewhere._replace(noise=noise, model=model)


def band(profile: Profile, region: str, extrapolated: bool) -> tuple[float, float]:
    """Return the usual range of measured / predicted in a region as two factors, e.g. (0.9, 1.1), from the region's
    rows in the fit, or from all rows if the region has too few. An `extrapolated` point gets the squares of both
    factors."""
    known = profile.calibration
    assert known is not None
    own = next((errors for name, errors in known.regions.items() if name == region), None)
    errors = own or known.errors.get("held_out", known.errors["fitted"])
    widen = BEYOND if extrapolated else 1
    return errors.low**widen, errors.high**widen


def shows_usual(profile: Profile) -> bool:
    """Whether a profile was fitted to enough rows (FEW) to tell which errors are usual on its machine."""
    return profile.calibration is not None and profile.calibration.errors["fitted"].rows >= FEW


def _alike(series: Series, asked: PredictedCase) -> bool:
    """Whether a fitted series and a call differ in ranks and sizes at most. Rows of `auto` are the library's choice."""
    return (
        (series.collective, series.setting) == (asked.where.collective, asked.setting)
        and (series.algorithm == asked.algorithm or (series.algorithm == "auto" and asked.by_itself))
        and (series.protocol == asked.protocol or (series.protocol == "auto" and (asked.by_itself or not asked.forced)))
    )


def _within(ranks: int, size: int, tried: Iterable[tuple[int, Sequence[int]]]) -> bool:
    """Whether rank count and size lie within the ranges of the fitted rows, given as (rank count, sizes) pairs."""
    fitted = [(count, sizes) for count, sizes in tried if sizes]
    if not fitted:
        return False
    sizes = [nbytes for _, of_count in fitted for nbytes in of_count]
    counts = [count for count, _ in fitted]
    return min(counts) <= ranks <= max(counts) and min(sizes) <= size <= max(sizes)
