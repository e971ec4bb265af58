"""Fit the parameters of the model to measured tables and write them as a profile: the work behind `simcoll calibrate`.

Some rows are fitted, the others are only scored. A parameter that the rows do not determine keeps its value and is
reported, or refused if the user asked for it. The profile records its fit, and its errors on rows held out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy
from numpy.typing import NDArray

import simcoll
from simcoll.accuracy import measured_points, scores, table_join
from simcoll.accuracy.fit import (
    parameters,
    posterior_estimate,
    prior,
    rows_to_fit,
)
from simcoll.accuracy.fit.estimate import Estimate, errors_held_out, estimate, noise_of, own_errors
from simcoll.accuracy.fit.rows_to_fit import Samples
from simcoll.accuracy.measured_points import RowQuestions
from simcoll.accuracy.scores import Document
from simcoll.config import yaml_tree
from simcoll.config.grouping import grouped
from simcoll.config.numpy_helpers import Floats
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError, RefusedError
from simcoll.formats.measured import MeasuredRow
from simcoll.measurement.cases_of_points import Tell
from simcoll.nccl.algorithm_names import SCHEDULES
from simcoll.nccl.kernel_costs import BlockCosts
from simcoll.prediction.confidence import fingerprint
from simcoll.prediction.placed_topology import placed, served_by
from simcoll.prediction.predict import predict
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import (
    CostSetting,
    Profile,
    TableSource,
    find_profile,
    load_profile,
    params_as_written,
    parse_profile,
)
from simcoll.scenario.profile_choice import UNFITTED
from simcoll.scenario.scenario import Scenario

SCHEMA: Final = "simcoll.accuracy.calibrate/1"
WAYS: Final = ("host", "graph", "pull")  # keys of a profile with own records of fits: other launches and kernels
NINETY: Final = 1.6449 / 1.2816  # normal quantiles of 95 % and 90 %: scales a range of 80 % to one of 90 %
SERIES: Final = ("collective", "algorithm", "protocol", "ranks", "nodes", "topology", "setting")  # keys of a series
MANY: Final = 8  # least number of rows of a region for percentiles of its errors
# Rows whose median is off by this factor after a fit are of another machine or launch, or in another unit. Without any
# fit the worst published table is off by less than a factor of 2: see validation/accuracy.
UNLIKE: Final = 3.0


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The result of a fit: the profile as YAML text, and the document that `calibrate --json` prints."""

    text: str
    document: Document


def calibrate(
    files: Sequence[Path | str],
    topology: str,
    *,
    name: str = "calibrated",
    where: Sequence[str] = (),
    fit: Sequence[str] = (),
    free: Sequence[str] = (),
    sets: Sequence[str] = (),
    seed: int = 0,
    tell: Tell = lambda line: None,
) -> Calibrated:
    """Fit a profile to measured tables on a topology (a system's name, or a file).

    `where` (COL=VALUE) keeps rows. `fit` (COL=V,V) chooses the rows to fit (default: every second size). `free` names
    the parameters (default: all that the rows determine). `sets` (PATH=VALUE) changes the scenario of all rows; the fit
    begins at its profile. Equal input and `seed` give an equal profile, except for its date.

    Raises InputError for wrong input, and if the rows do not determine a parameter that was asked for.
    """
    asking = RowQuestions(topology, sets, fitting=True)
    ways = [text for text in sets if text.startswith("launch.")]
    kept = dict(map(yaml_tree.condition, where))
    rows, sources, notes = rows_to_fit.read(files, kept)
    data, more = rows_to_fit.samples(rows, asking)
    chosen, split = rows_to_fit.split(data, _listed(fit))
    (point,) = asking.points(dataclasses.replace(data.rows[0], others={}))
    about = [*where, *ways]
    generations = (asking.generation,) if asking.generation else ()
    began = Beginning(name, point.scenario, topology, sources, split, about, asking.network, generations)
    if ways and not free and began.known is None:  # the user wrote this profile's costs: fit only launches
        free = data.launches
    found = fitted(data, chosen, began, free=free, seed=seed, notes=[*notes, *more], tell=tell)
    check_believable(found.document["points"], topology)
    return found


@dataclass(frozen=True)
class Beginning:
    """The start of a fit: all of the profile except the fitted values, and the sources of its rows.

    `scenario` names the profile. `network` has those costs of NICs that the profile lacks. `generations` are the
    generations of the measured GPUs.
    """

    name: str
    scenario: Scenario
    topology: str
    sources: Sequence[TableSource]
    split: str
    where: Sequence[str] = ()
    network: Profile | None = None
    generations: Sequence[str] = ()

    @property
    def params(self) -> Params:
        """The parameters of the model."""
        return self.scenario.params()

    @property
    def profile(self) -> Profile:
        """The profile with which the fit begins."""
        return load_profile(self.scenario.profile)

    @property
    def file(self) -> Document:
        """The contents of the profile's file, as dicts, lists and texts."""
        plain: Document = yaml_tree.read(find_profile(self.scenario.profile)).plain()
        return plain

    @property
    def whole(self) -> Profile:
        """The profile; if it models kernels, with the costs of NICs from `network`."""
        if self.network is None or self.network.transport is None or self.profile.kernels is None:
            return self.profile
        transport = self.profile.transport or self.network.transport
        links = {**self.network.links, **self.profile.links}
        return self.profile.model_copy(update={"transport": transport, "links": links})

    @property
    def known(self) -> dict[str, tuple[str, str]] | None:
        """The 90 % intervals, as texts, of parameters in earlier fits; None if the profile was never fitted."""
        if self.profile.calibration is None:
            return None
        return prior.intervals(self.network, self.profile)

    def about(self, seed: int) -> Document:
        """Return the part of the fit's record that does not depend on its outcome: versions, files, seed."""
        return {
            "topology": self.topology,
            "date": time.strftime("%Y-%m-%d"),
            "simcoll": simcoll.__version__,
            "scipy": scipy.__version__,
            "seed": seed,
            "files": [source.model_dump() for source in self.sources],
            "where": list(self.where),
            "split": self.split,
        }


def fitted(
    data: Samples,
    chosen: NDArray[np.bool_],
    begin: Beginning,
    *,
    free: Sequence[str] = (),
    seed: int = 0,
    notes: Sequence[str] = (),
    tell: Tell = lambda line: None,
) -> Calibrated:
    """Fit the rows flagged by `chosen`, bool (rows,), and score the others. Raises the errors of `calibrate`."""
    odd = np.array(measured_points.suspicious(data.rows))
    used = chosen & ~odd if (chosen & ~odd).any() else chosen
    fitting = data.of(used)
    if free or begin.known is None:  # a user who names parameters wants them from the rows alone
        estimated = estimate(fitting, begin.whole, begin.params, free, seed)
    else:
        estimated = posterior_estimate.estimate(fitting, begin.whole, begin.params, begin.known, tell)
    left = int((chosen & ~used).sum())
    notes = [*notes, *([f"{left} rows took longer than larger sizes did, and were not fitted"] if left else [])]
    lone = ["no row is held out, so errors on other rows are unknown; choose the rows to fit with --fit"] * bool(
        chosen.all()
    )
    return _written(data, chosen, estimated, begin, begin.about(seed), [*notes, *lone, *estimated.notes])


def _listed(fit: Sequence[str]) -> dict[str, list[str]]:
    """Split each `COL=V,V` into column and values."""
    pairs = (yaml_tree.condition(text, "--fit") for text in fit)
    return {column: [value.strip() for value in values.split(",")] for column, values in pairs}


def _written(
    data: Samples,
    chosen: NDArray[np.bool_],
    estimated: Estimate,
    begin: Beginning,
    about: Document,
    notes: Sequence[str],
) -> Calibrated:
    """Return the profile's text and the document. Scores are those of the values as the text has them, i.e. rounded."""
    texts = {name: parameters.text(name, cost) for name, cost in estimated.costs.items()}
    alone = bool(texts) and set(texts) <= set(parameters.BESIDE)
    head = _beside(begin, texts) if alone else _head(data, chosen, begin, texts)
    served = parse_profile(yaml_tree.dump(head), begin.name)
    freed = {name: getattr(served.model, name) for name in texts if name in parameters.OF_MODEL}
    predicted = data.times(CostSetting.of(served, freed))
    errors = {"fitted": scores_of(predicted, data.measured, chosen)}
    if not chosen.all():
        errors["held_out"] = scores_of(predicted, data.measured, ~chosen)
    ends = {name: _ends(name, estimated) for name in texts}
    former = [] if alone else _former(begin.profile, texts)
    intervals = {name: [parameters.text(name, end) for end in pair] for name, pair in ends.items()}
    about = {
        **about,
        "left": dict(estimated.left),
        "intervals": {**({} if alone else _still_known(begin.known or {}, "transport" in head)), **intervals},
        "errors": errors,
        # on the rows held out, or on all rows if none is held out
        "regions": of_regions(data.rows, predicted, data.measured, chosen if chosen.all() else ~chosen),
        "uncertainty": _uncertainty(data, predicted, chosen, estimated),
        "covers": [*_covers(data, chosen, served), *former],
    }
    text = yaml_tree.dump(_beside(begin, texts, about) if alone else {**head, "calibration": about}, inline=True)
    parse_profile(text, begin.name)  # checks that the text can be read
    document = {
        "schema": SCHEMA,
        "profile": begin.name,
        "harness": served.harness,
        "parameters": [parameters.described(name, estimated.costs[name], ends[name]) for name in texts],
        "left": dict(estimated.left),
        "split": begin.split,
        "errors": errors,
        "beside": _beside_others(data, predicted, chosen, begin),
        "left_out": {kind: shown.errors for kind, shown in estimated.shown.items()},
        "notes": notes,
        "points": _points(data, predicted, chosen),
    }
    return Calibrated(text, document)


def _ends(name: str, estimated: Estimate) -> tuple[float, float]:
    """Return the ends of a parameter's interval as costs; first the end that is shown as the lower number."""
    low, high = estimated.low[name], estimated.high[name]
    return (high, low) if parameters.falls(name) else (low, high)


def _head(data: Samples, chosen: NDArray[np.bool_], begin: Beginning, texts: dict[str, str]) -> Document:
    """Return the keys of the profile's file, without the record of the fit."""
    harness, topology = data.rows[0].harness, begin.topology
    of_model = {name: text for name, text in texts.items() if name in parameters.OF_MODEL}
    model = {**params_as_written(begin.params), **of_model}
    several = any((row.nodes or 1) > 1 for row in data.rows)  # rows of one node do not show the costs of NICs
    start = begin.whole if several else begin.profile
    links = {kind: scale.model_dump() for kind, scale in start.links.items()}
    shares = {kind: {key: f"{100 * value:.6g} %" for key, value in scale.items()} for kind, scale in links.items()}
    for name, text in texts.items():
        key, _, kind = name.partition(".")
        if key in parameters.OF_LINKS:
            shares.setdefault(kind, {})[key] = text
    how = "fitted to" if texts else f"{start.name}, unchanged by"
    launch = texts.get("launch", parameters.text("launch", start.launch))
    return {
        "name": begin.name,
        "description": f"{how} {int(chosen.sum())} rows of the harness {harness} on {Path(topology).stem}",
        "source": f"simcoll calibrate, {time.strftime('%Y-%m-%d')}; see calibration",
        "harness": harness,
        **({"generations": list(begin.generations)} if start.kernels and begin.generations else {}),
        "model": model,
        "launch": launch,
        **_of_launches(begin, texts),
        "links": shares,
        **_of_calls(start, texts),
        "fitted": texts,
    }


def _of_launches(begin: Beginning, texts: Mapping[str, str], about: Document | None = None) -> Document:
    """Return the profile's keys `host`, `graph` and `pull`.

    If only costs of WAYS (ways to launch) were fitted, the record of the fit, `about`, goes to the keys with fitted
    values. If the profile has no `graph`, the graph's costs begin like those of other calls.
    """
    ways: Document = {way: dict(begin.file[way]) for way in WAYS if way in begin.file}
    if begin.profile.graph is None and set(texts) & set(parameters.OF_GRAPH):
        ways["graph"] = {"launch": parameters.text("graph.launch", begin.profile.launch)}
    for name in (name for name in texts if name in parameters.BESIDE):
        way, _, key = name.partition(".")
        own = {key_: value for key_, value in ways.get(way, {}).items() if key_ != "calibration"}
        ways[way] = {**own, key: texts[name], "calibration": about or {}}
    return {way: {key: value for key, value in costs.items() if value} for way, costs in ways.items()}


def _beside(begin: Beginning, texts: Mapping[str, str], about: Document | None = None) -> Document:
    """Return the contents of the profile's file; only the costs of WAYS (ways to launch) and their record change."""
    last = ("fitted", "calibration")
    first = {key: value for key, value in begin.file.items() if key not in (*last, *WAYS)}
    own = {"name": begin.name, **_of_launches(begin, texts, about)}
    return {**first, **own, **{key: begin.file[key] for key in last if key in begin.file}}


def _of_calls(profile: Profile, texts: Mapping[str, str]) -> Document:
    """Return the keys `kernels` and `transport` with fitted values; empty if the profile has no such costs."""
    costs = Document()

    def written(name: str) -> str:
        return texts.get(name) or parameters.text(name, parameters.cost(name, profile, Params()))

    if profile.kernels:
        kernels: Document = {"library": profile.kernels.library, "version": profile.kernels.version}
        kernels |= {name: written(name) for name in parameters.OF_CALLS}
        for kind in parameters.OF_BLOCKS:
            own = getattr(profile.kernels, kind).changed_keys
            keys = [key for key in BlockCosts.model_fields if f"{kind}.{key}" in texts or key in own]
            kernels[kind] = {key: written(f"{kind}.{key}") for key in keys}
        costs["kernels"] = kernels
    if profile.transport:
        names = {name.partition(".")[2]: name for name in parameters.OF_TRANSPORT}
        used = (key for key, name in names.items() if name in texts or getattr(profile.transport, key))
        costs["transport"] = {**{key: written(names[key]) for key in used}, **profile.transport.settings}
    return costs


def _covers(data: Samples, chosen: NDArray[np.bool_], served: Profile) -> list[Document]:
    """Return the record of the series of rows: which of their sizes were fitted, and which were only scored."""
    sizes: dict[tuple[object, ...], tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    settings = {}
    for row, which, fitted in zip(data.rows, data.which.tolist(), chosen.tolist(), strict=True):
        scenario, topology = data.points[which].scenario, data.points[which].topology
        if which not in settings:
            model = scenario.model.model_copy(update=served.model.model_dump(exclude_none=True))
            params = scenario.model_copy(update={"model": model}).params()
            settings[which] = fingerprint(served_by(topology, served.links), params, placed(scenario, topology))
        forced = "auto" if scenario.protocol == "none" else scenario.protocol
        key = (row.collective, scenario.algorithm, forced, row.ranks, row.nodes or 1, topology.name, settings[which])
        sizes[key][0 if fitted else 1].add(row.size_bytes)
    return [
        {
            **{name: value for name, value in zip(SERIES, key, strict=True) if (name, value) != ("protocol", "auto")},
            "fitted": sorted(fitted),
            "held_out": sorted(scored - fitted),
        }
        for key, (fitted, scored) in sizes.items()
    ]


def _former(profile: Profile, moved: Collection[str]) -> list[Document]:
    """Return the series of an earlier fit that still hold: all if no cost changed, those on one node if only costs of
    the network changed, else none."""
    if profile.calibration is None or not all(map(prior.of_network, moved)):
        return []
    series = [each for each in profile.calibration.covers if not moved or (each.nodes or 1) == 1]
    return [{**each.model_dump(mode="json", exclude_none=True), "former": True} for each in series]


def _still_known(known: Mapping[str, tuple[str, str]], network: bool) -> dict[str, list[str]]:
    """Return the intervals of earlier fits, except for parameters in BESIDE. Those of network parameters are included
    only if `network` is set, i.e. if the profile has a transport."""
    return {
        name: list(ends)
        for name, ends in known.items()
        if name not in parameters.BESIDE and (network or not prior.of_network(name))
    }


# --- how good it is ---


def _beside_others(data: Samples, fitted: Floats, chosen: NDArray[np.bool_], begin: Beginning) -> list[Document]:
    """Return the errors of predictions without a fit and with the fit, on the rows held out (on all if none is)."""
    which = chosen if chosen.all() else ~chosen
    ways = {"plain model": np.array([by_plain_model(point.scenario) for point in data.points])[data.which]}
    if begin.profile.calibration is not None:
        ways[f"profile {begin.profile.name}"] = data.times(CostSetting.of(begin.whole))
    ways["fitted"] = fitted
    return [
        {"predicted_by": name, **scores.errors((times[known] / data.measured[known] - 1).tolist())}
        for name, times in ways.items()
        if (known := which & ~np.isnan(times)).any()
    ]


def by_plain_model(scenario: Scenario) -> float:
    """Return a call's time in ps by the plain model without fitted values; NaN if it cannot predict the call."""
    schedule = SCHEDULES.get((scenario.algorithm, scenario.collective), scenario.algorithm)  # type: ignore[arg-type]  # any
    plain = {"profile": UNFITTED, "protocol": "none", "launch": Launch(), "algorithm": schedule}
    with contextlib.suppress(InputError, RefusedError):
        return predict(scenario.model_copy(update=plain)).time_ps
    return math.nan


def scores_of(predicted: NDArray[Any], measured: NDArray[Any], which: NDArray[np.bool_]) -> Document:
    """Return the errors on the rows flagged by `which`, and the ends `low` and `high` of the range that holds 90 % of
    measured / predicted.

    The range always contains 1. It is widened from the 10th and 90th percentiles, so that a tenth of the rows on either
    side may be outliers.
    """
    errors = scores.errors((predicted[which] / measured[which] - 1).tolist())
    residual = np.log(measured[which] / predicted[which])
    tenth, middle, ninetieth = np.percentile(residual, (10, 50, 90), method="weibull")
    low = min(0.0, middle - NINETY * (middle - tenth))
    high = max(0.0, middle + NINETY * (ninetieth - middle))
    rounded = {key: round(value, 3) for key, value in errors.items() if key != "points"}
    return {
        "rows": errors["points"],
        **rounded,
        "low": round(float(np.exp(low)), 4),
        "high": round(float(np.exp(high)), 4),
    }


def _uncertainty(data: Samples, predicted: Floats, chosen: NDArray[np.bool_], estimated: Estimate) -> Document:
    """Return the sources of uncertainty: the rows' noise, the parameters, the model's error by kind of call."""
    off = np.log(data.measured / predicted)
    noise, _ = noise_of(off, data.rows)
    fresh = errors_held_out(off, data.rows, chosen)
    model, groups = own_errors({kind: shown.and_of(fresh[kind]) for kind, shown in estimated.shown.items()})
    parts = {"noise": noise.spread, "outliers": noise.outliers, "parameters": estimated.scatter}
    return {**{name: round(value, 5) for name, value in parts.items()}, "model": model, "groups": groups}


def of_regions(
    rows: Sequence[MeasuredRow], predicted: NDArray[Any], measured: NDArray[Any], which: NDArray[np.bool_]
) -> Document:
    """Return the `scores_of` each region that has at least MANY of the rows flagged by `which`.

    A row belongs to a region by its predicted time.
    """
    keys = [(row.collective, row.algorithm, row.protocol, row.ranks, row.nodes, row.dtype) for row in rows]
    sizes = [row.size_bytes for row in rows]
    names = np.array(scores.located(list(zip(keys, sizes, predicted.tolist(), strict=True))))
    each = {name: which & (names == name) for name in scores.REGIONS}
    return {name: scores_of(predicted, measured, flags) for name, flags in each.items() if flags.sum() >= MANY}


def _points(data: Samples, predicted: NDArray[Any], chosen: NDArray[np.bool_]) -> list[Document]:
    return [
        {
            **{key: getattr(row, key) for key in table_join.KEYS},
            "measured_us": row.time_us,
            "predicted_us": time_ps / 1e6,
            "error": time_ps / 1e6 / row.time_us - 1,
            "fitted": fitted,
        }
        for row, time_ps, fitted in zip(data.rows, predicted.tolist(), chosen.tolist(), strict=True)
    ]


# --- whether the rows are of this machine ---


def check_believable(points: Sequence[Document], topology: str) -> None:
    """Raise InputError if the median of measured / predicted is off by a factor of UNLIKE or more, on one node or on
    several nodes. These are judged separately: between nodes the costs of a network could hide a wrong unit."""
    of_reach = grouped([point for point in points if point["fitted"]], lambda point: (point["nodes"] or 1) > 1)
    middle = max(map(_middle, of_reach.values()), key=abs)
    if abs(middle) < math.log(UNLIKE):
        return
    factor = math.exp(abs(middle))
    share = f"{factor:.3g} times as long as" if middle > 0 else f"1/{factor:.3g} of"
    raise InputError(
        f"the rows take {share} what the best fit on {topology} takes, in the median",
        "check that the unit of times, the system, the profile and the launch (`launch.gpus_per_process`) are those of "
        "the table",
    )


def _middle(points: Sequence[Document]) -> float:
    """Return the median of log(measured / predicted); of two middle values the one nearer to 0."""
    offs = sorted(math.log(point["measured_us"] / point["predicted_us"]) for point in points)
    return min(offs[(len(offs) - 1) // 2], offs[len(offs) // 2], key=abs)
