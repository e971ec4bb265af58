"""Parameters of the model found from measured tables: what `simcoll calibrate` does.

Some rows are fitted, the others are scored. What the rows cannot tell is named and left as it is, or refused if it was
asked for. The outcome is a profile that says how it was found, and how wrong it is on rows that it has not seen.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import simcoll
from simcoll.accuracy import bad_rows, scores, table_join
from simcoll.accuracy.fit import least_squares, parameters, samples
from simcoll.accuracy.fit.estimate import Estimate, estimate
from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.accuracy.fit.samples import Samples
from simcoll.accuracy.measured_points import Asking
from simcoll.accuracy.scores import Document
from simcoll.config import yaml_tree
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow
from simcoll.nccl.kernel_costs import BlockCosts
from simcoll.prediction.confidence import fingerprint
from simcoll.scenario.profile import Profile, TableSource, find_profile, load_profile, parse_profile, spelt

SCHEMA: Final = "simcoll.accuracy.calibrate/1"
WAYS: Final = ("host", "graph")  # keys of a profile that say what other ways of launching cost
NINETY: Final = 1.6449 / 1.2816  # from the tenth and ninetieth percentile of a normal spread to the fifth and 95th
MANY: Final = 8  # rows of a region that tell how far predictions are from them


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A profile as text, and what `calibrate --json` prints: parameters, errors, every row with its prediction."""

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
) -> Calibrated:
    """Fit a profile to measured tables on a topology (a system's name, or a file).

    `where` (COL=VALUE) keeps rows, `fit` (COL=V,V) says which are fitted (default: every second size), `free` which
    parameters are (default: those that the rows tell), `sets` (PATH=VALUE) what the scenario of all rows is; the
    profile that it names is where the fit begins. Equal input and `seed` give an equal profile, but for its date.

    Raises InputError for wrong input, and where parameters that were asked for cannot be told from the rows.
    """
    asking = Asking(topology, sets, fitting=True)
    ways = [text for text in sets if text.startswith("launch.")]
    of_launches = bool(ways) and not free
    kept = dict(map(table_join.condition, where))
    rows, sources, notes = samples.read(files, kept, samples.SMALL if of_launches else None)
    some, more = samples.samples(rows, asking)
    chosen, how = samples.split(some, _listed(fit))
    params, start, file = _begin(asking, some.rows[0])
    about = [*where, *ways]
    began = Beginning(name, params, start, topology, sources, how, about, file, asking.network)
    if of_launches and not (free := some.launches):
        raise InputError("launch.gpus_per_process is not said", "add e.g. --set launch.gpus_per_process=all")
    return fitted(some, chosen, began, free=free, seed=seed, notes=[*notes, *more])


@dataclass(frozen=True)
class Beginning:
    """What a profile is made of besides what is found: what the fit begins with, and where rows came from. `file` is
    what the file of the profile says, `network` what NICs cost where `profile` does not say it."""

    name: str
    params: Params
    profile: Profile
    topology: str
    sources: Sequence[TableSource]
    split: str
    where: Sequence[str] = ()
    file: Document = dataclasses.field(default_factory=dict)
    network: Profile | None = None

    @property
    def whole(self) -> Profile:
        """The profile with what NICs cost."""
        if self.network is None or self.network.kernels is None or self.profile.kernels is None:
            return self.profile
        kernels = self.profile.kernels.over(self.network.kernels)
        links = {**self.network.links, **self.profile.links}
        return self.profile.model_copy(update={"kernels": kernels, "links": links})

    def about(self, seed: int) -> Document:
        """What the profile says of how it was found."""
        return {
            "topology": self.topology,
            "date": time.strftime("%Y-%m-%d"),
            "simcoll": simcoll.__version__,
            "scipy": least_squares.version(),
            "seed": seed,
            "files": [source.model_dump() for source in self.sources],
            "where": list(self.where),
            "split": self.split,
        }


def fitted(
    some: Samples,
    chosen: NDArray[np.bool_],
    begin: Beginning,
    *,
    free: Sequence[str] = (),
    seed: int = 0,
    notes: Sequence[str] = (),
) -> Calibrated:
    """Fit the chosen rows and score the others; raises like `calibrate`."""
    least_squares.need_scipy()
    odd = np.array(bad_rows.suspicious(some.rows))
    used = chosen & ~odd if (chosen & ~odd).any() else chosen
    found = estimate(some.of(used), begin.whole, begin.params, free, seed)
    left = int((chosen & ~used).sum())
    notes = [*notes, *([f"{left} rows took longer than larger sizes did, and were not fitted"] if left else [])]
    lone = ["no row is held out: nothing tells how wrong this is elsewhere; --fit says what to fit"] * bool(
        chosen.all()
    )
    return _written(some, chosen, found, begin, begin.about(seed), [*notes, *lone, *found.notes])


def _listed(fit: Sequence[str]) -> dict[str, list[str]]:
    """`COL=V,V` as column and values."""
    pairs = (table_join.condition(text, "--fit") for text in fit)
    return {column: [value.strip() for value in values.split(",")] for column, values in pairs}


def _begin(asking: Asking, row: MeasuredRow) -> tuple[Params, Profile, Document]:
    """The parameters and the profile that the fit begins with, and what its file says: those of all rows, whatever a
    row's own columns say."""
    (point,) = asking.points(dataclasses.replace(row, others={}))
    name = point.scenario.profile
    return point.scenario.params(), load_profile(name), yaml_tree.read(find_profile(name)).plain()


def _written(
    some: Samples,
    chosen: NDArray[np.bool_],
    found: Estimate,
    begin: Beginning,
    about: Document,
    notes: Sequence[str],
) -> Calibrated:
    """The profile, scored with the values as they are written."""
    texts = {name: parameters.text(name, cost) for name, cost in found.costs.items()}
    alone = set(texts) <= set(parameters.LAUNCHES)
    head = _beside(begin, texts) if alone else _head(some, begin, texts)
    served = parse_profile(yaml_tree.dump(head), begin.name)
    freed = {name: getattr(served.model, name) for name in texts if name in parameters.OF_MODEL}
    predicted = some.times(ParameterSetting.of(served, freed))
    errors = {"fitted": _errors(predicted, some.measured, chosen)}
    if not chosen.all():
        errors["held_out"] = _errors(predicted, some.measured, ~chosen)
    ends = {name: _ends(name, found) for name in texts}
    about = {
        **about,
        "left": dict(found.left),
        "intervals": {name: [parameters.text(name, end) for end in its] for name, its in ends.items()},
        "errors": errors,
        "regions": _regions(some, predicted, chosen),
        "covers": _covers(some, chosen, served),
    }
    text = yaml_tree.dump(_beside(begin, texts, about) if alone else {**head, "calibration": about}, inline=True)
    parse_profile(text, begin.name)  # what is written can be read
    document = {
        "schema": SCHEMA,
        "profile": begin.name,
        "harness": served.harness,
        "parameters": [parameters.told(name, found.costs[name], ends[name]) for name in texts],
        "left": dict(found.left),
        "split": begin.split,
        "errors": errors,
        "notes": list(notes),
        "points": _points(some, predicted, chosen),
    }
    return Calibrated(text, document)


def _ends(name: str, found: Estimate) -> tuple[float, float]:
    """The ends of an interval as costs, in the order of what is shown."""
    low, high = found.low[name], found.high[name]
    return (high, low) if parameters.falls(name) else (low, high)


def _head(some: Samples, begin: Beginning, texts: dict[str, str]) -> Document:
    """All of a profile but how it was found."""
    harness, topology = some.rows[0].harness, begin.topology
    model = {**spelt(begin.params), **{name: text for name, text in texts.items() if name in parameters.OF_MODEL}}
    several = any((row.nodes or 1) > 1 for row in some.rows)  # of one node none tells what NICs cost
    start = begin.whole if several else begin.profile
    links = {kind: scale.model_dump() for kind, scale in start.links.items()}
    shares = {kind: {what: f"{100 * value:.6g} %" for what, value in its.items()} for kind, its in links.items()}
    blocks = _blocks(start, texts)
    for name, text in texts.items():
        what, _, kind = name.partition(".")
        if kind and not (parameters.of_kernels(name) or name in parameters.LAUNCHES):
            shares.setdefault(kind, {})[what] = text
    launch = texts.get("launch", parameters.text("launch", start.launch))
    return {
        "name": begin.name,
        "description": f"fitted to {len(some)} rows of the harness {harness} on {Path(topology).stem}",
        "source": f"simcoll calibrate, {time.strftime('%Y-%m-%d')}; see calibration",
        "harness": harness,
        "model": model,
        "launch": launch,
        **_of_launches(begin, texts),
        "links": shares,
        **({"kernels": blocks} if blocks else {}),
        "fitted": texts,
    }


def _of_launches(begin: Beginning, texts: Mapping[str, str], about: Document | None = None) -> Document:
    """The profile's keys `host` and `graph`; of what was fitted, where it is from, if nothing else was."""
    found: Document = {way: dict(begin.file[way]) for way in WAYS if way in begin.file}
    for name in (name for name in texts if name in parameters.LAUNCHES):
        way, _, what = name.partition(".")
        found[way] = {**found.get(way, {}), what: texts[name], "calibration": about or {}}
    return {way: {key: value for key, value in its.items() if value} for way, its in found.items()}


def _beside(begin: Beginning, texts: Mapping[str, str], about: Document | None = None) -> Document:
    """The profile as its file has it, with what other ways of launching cost, and where that is from."""
    last = ("fitted", "calibration")
    first = {key: value for key, value in begin.file.items() if key not in (*last, *WAYS)}
    own = {"name": begin.name, **_of_launches(begin, texts, about)}
    return {**first, **own, **{key: begin.file[key] for key in last if key in begin.file}}


def _blocks(profile: Profile, texts: dict[str, str]) -> Document:
    """The key `kernels`, with what was fitted."""
    if profile.kernels is None:
        return {}
    found: Document = {"library": profile.kernels.library, "version": profile.kernels.version}

    def written(name: str) -> str:
        return texts.get(name) or parameters.text(name, parameters.cost(name, profile, Params()))

    for name in parameters.OF_CALLS:
        if name in texts or getattr(profile.kernels, name) is not None:
            found[name] = written(name)
    for kind in parameters.OF_BLOCKS:
        keys = [
            key
            for key in BlockCosts.model_fields
            if f"{kind}.{key}" in texts or key in getattr(profile.kernels, kind).told
        ]
        found[kind] = {key: written(f"{kind}.{key}") for key in keys}
    return found


# --- how good it is ---


def _errors(predicted: NDArray[Any], measured: NDArray[Any], which: NDArray[np.bool_]) -> Document:
    """Errors of some rows, and the range of measured/predicted, 1 among it, in which 90 % of such rows lie; a tenth of
    them on either side may be outliers."""
    found = scores.errors((predicted[which] / measured[which] - 1).tolist())
    residual = np.log(measured[which] / predicted[which])
    tenth, middle, ninetieth = np.percentile(residual, (10, 50, 90), method="weibull")
    low = min(0.0, middle - NINETY * (middle - tenth))
    high = max(0.0, middle + NINETY * (ninetieth - middle))
    rounded = {key: round(value, 3) for key, value in found.items() if key != "points"}
    return {
        "rows": found["points"],
        **rounded,
        "low": round(float(np.exp(low)), 4),
        "high": round(float(np.exp(high)), 4),
    }


def _regions(some: Samples, predicted: NDArray[Any], chosen: NDArray[np.bool_]) -> Document:
    """Errors by region, told by what is predicted, of the rows that were held out; of all if none was. Not of regions
    with few rows."""
    which = chosen if chosen.all() else ~chosen
    keys = [(row.collective, row.algorithm, row.protocol, row.ranks, row.nodes, row.dtype) for row in some.rows]
    sizes = [row.size_bytes for row in some.rows]
    names = np.array(scores.located(list(zip(keys, sizes, predicted.tolist(), strict=True))))
    each = {name: which & (names == name) for name in scores.REGIONS}
    return {name: _errors(predicted, some.measured, its) for name, its in each.items() if its.sum() >= MANY}


def _covers(some: Samples, chosen: NDArray[np.bool_], served: Profile) -> list[Document]:
    """The series of the rows: which sizes were fitted, and which were scored only."""
    found: dict[tuple[str, str, int, str, str], tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    settings = {}
    for row, which, fitted in zip(some.rows, some.which.tolist(), chosen.tolist(), strict=True):
        scenario, topology = some.scenarios[which], some.questions[which].topology
        if which not in settings:
            model = scenario.model.model_copy(update=served.model.model_dump(exclude_none=True))
            params = scenario.model_copy(update={"model": model}).params()
            settings[which] = fingerprint(served.serve(topology), params)
        key = (row.collective, scenario.algorithm, row.ranks, topology.name, settings[which])
        found[key][0 if fitted else 1].add(row.size_bytes)
    return [
        {
            **dict(zip(("collective", "algorithm", "ranks", "topology", "setting"), key, strict=True)),
            "fitted": sorted(fitted),
            "held_out": sorted(scored - fitted),
        }
        for key, (fitted, scored) in found.items()
    ]


def _points(some: Samples, predicted: NDArray[Any], chosen: NDArray[np.bool_]) -> list[Document]:
    return [
        {
            **{key: getattr(row, key) for key in table_join.KEYS},
            "measured_us": row.time_us,
            "predicted_us": time_ps / 1e6,
            "error": time_ps / 1e6 / row.time_us - 1,
            "fitted": fitted,
        }
        for row, time_ps, fitted in zip(some.rows, predicted.tolist(), chosen.tolist(), strict=True)
    ]
