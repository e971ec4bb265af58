"""Fit shipped profiles again, each with the tables, rows, split and parameters that its record names.

    python tools/refit.py nccl-hopper nccl-ampere --tables DIR     these, or all that have a record
    python tools/refit.py --common --tables DIR                    what generations of GPUs have in common, together
    python tools/refit.py --transports DIR                         all between nodes, together (but --keep NAME)
    python tools/refit.py --list                                   what would be fitted from which tables

Transports are fitted to the clusters of `validation/accuracy/clusters.yaml` in DIR: see `tools/clusters/transports.py`.
A fit begins at the shipped profile, so a cost that no row decides keeps its value. Tables are looked up among the
shipped ones and in DIR; they must equal those of the record, byte for byte. Run it after a change of the model, before
tools/learn_prediction_errors.py.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import scipy
from clusters import left_out, transports
from clusters.rows import ClusterRow, rows_of
from clusters.transports import ClusterSamples, Known

import simcoll
from simcoll.accuracy import measured_points
from simcoll.accuracy.fit import least_squares, parameters, rows_to_fit
from simcoll.accuracy.fit.calibrate import calibrate, of_regions, scores_of
from simcoll.accuracy.fit.estimate import bounds_of, starting_costs
from simcoll.accuracy.measured_points import RowQuestions
from simcoll.accuracy.scores import Document
from simcoll.config import yaml_tree
from simcoll.config.numpy_helpers import Floats
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError
from simcoll.formats.measured import read_file
from simcoll.measurement.cases_of_points import Tell
from simcoll.nccl.kernel_costs import KINDS, Kernels
from simcoll.prediction.result_rows import write_atomically
from simcoll.scenario.profile import (
    CABLE,
    Calibration,
    CostSetting,
    LinkScale,
    Profile,
    TableSource,
    load_network,
    parse_profile,
    shipped_profiles,
)

AMPERE, HOPPER, BLACKWELL = GENERATIONS = ("nccl-ampere", "nccl-hopper", "nccl-blackwell")
COMMON: Final = "nccl-nvlink"  # the profile that they are `like`; what it says was fitted is fitted to their tables


class Refit(NamedTuple):
    """A fit to repeat; `way` is the key with its record (`host`, `graph`, `pull`), or '' for the profile's own."""

    way: str
    record: Calibration
    names: list[str]


def costs_by_file(profile: Profile) -> dict[str, list[str]]:
    """Return names of a call's costs by the profile whose file has them: the profile itself, then those it is `like`.

    Costs are the launch, the factors of links, and `kernels`, where they differ from the default. Costs of other
    launches (`host`, `graph`), of other kernels (`pull`) and of transports do not count.
    """
    chain = [profile]
    while like := chain[-1].like:
        chain.append(load_network(like))
    written = [_kernel_costs(each.kernels or Kernels.plain()) for each in (*chain, Profile.plain())]
    found: dict[str, list[str]] = {each.name: [] for each in chain}
    plain = LinkScale.plain()
    shares = [(f"{key}.{kind}", key, value) for kind, scale in profile.links.items() for key, value in scale]
    found[profile.name] += ["launch"] * bool(profile.launch)
    found[profile.name] += [name for name, key, value in shares if value != getattr(plain, key)]
    for name, value in written[0].items():
        same = len(list(itertools.takewhile(value.__eq__, (costs[name] for costs in written))))
        if same <= len(chain):
            found[chain[same - 1].name].append(name)
    return found


def _kernel_costs(kernels: Kernels) -> dict[str, float]:
    blocks = {f"{kind}.{key}": value for kind in KINDS for key, value in getattr(kernels, kind)}
    return {"grid": kernels.grid, "spread": kernels.spread, **blocks}


def refits(name: str) -> Iterator[Refit]:
    """Yield the fits that a profile records, its own first; a record without parameters belongs to another profile."""
    profile = load_network(name)
    records = [("", profile.calibration)]
    records += [(way, getattr(getattr(profile, way), "calibration", None)) for way in ("host", "graph", "pull")]
    for way, record in records:
        if record and record.files and record.intervals and profile.kernels:
            yield Refit(way, record, list(record.intervals))


def table(name: str, digest: str, folders: Sequence[Path]) -> Path:
    """Return the path of the table with this name and hash. Raises InputError if no folder has it."""
    for path in (folder / name for folder in folders):
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return path
    raise InputError(f"{name} with the hash {digest[:12]} is not there", "give its folder with --tables")


def repeat(path: Path, refit: Refit, folders: Sequence[Path]) -> str:
    """Repeat a fit, beginning at the profile in `path`, and write it; return a line of errors. Raises InputError."""
    record = refit.record
    names = own_names(path.stem, refit)
    files = [table(source.file, source.sha256, folders) for source in record.files]
    where = [text for text in record.where if not text.startswith("launch.")]
    sets = [f"profile={path}", *(text for text in record.where if text.startswith("launch."))]
    fit = re.findall(r"--fit (\S+)", record.split)
    head = _head(path)
    while True:
        try:
            found = calibrate(
                files, record.topology, name=path.stem, where=where, fit=fit, free=names, sets=sets, seed=record.seed
            )
            break
        except InputError as error:  # a parameter that these rows no longer decide keeps its value
            undecided = [
                name for name in names if f"{name}: these rows" in str(error) or f"{name}: changes" in str(error)
            ]
            if not undecided or len(undecided) == len(names):
                raise
            names = [name for name in names if name not in undecided]
    served = ", ".join(
        load_network(path.stem).generations
    )  # more than those that were measured, where no profile has them
    whole = inheriting(found.text, path.stem)
    text = re.sub(r"^generations: .*$", f"generations: [{served}]", whole, count=1, flags=re.MULTILINE)
    write_atomically(path, head + text)
    errors = found.document["errors"]
    return ", ".join(f"{rows.replace('_', ' ')} {each['mape']:.1f} %" for rows, each in errors.items())


def own_names(name: str, refit: Refit) -> list[str]:
    """Return the parameters of a fit, without those whose costs the profile shares with other generations."""
    return [cost for cost in refit.names if name not in sharers(cost)]


def sharers(cost: str) -> list[str]:
    """Return the generations of GPUs (profiles) that share a fitted cost: their own files do not write it."""
    if cost not in load_network(COMMON).fitted:
        return []
    return [name for name in GENERATIONS if cost in costs_by_file(load_network(name))[COMMON]]


def inheriting(text: str, name: str) -> str:
    """Return a fitted profile's text as in the shipped file: `like` its parent, and without the parent's values."""
    like = load_network(name).like
    if like is None:
        return text
    file = {**yaml_tree.parse(text, name).plain(), "like": like}
    whole, parent = parse_profile(text, name), load_network(like).kernels or Kernels.plain()
    for kind in KINDS:
        above = getattr(parent, kind)
        names = {key: f"{kind}.{key}" for key, value in getattr(whole.kernels, kind) if value != getattr(above, key)}
        own = {key: parameters.text(cost, parameters.cost(cost, whole, Params())) for key, cost in names.items()}
        file["kernels"] = {
            **{key: block for key, block in file["kernels"].items() if key != kind},
            **({kind: own} if own else {}),
        }
    return yaml_tree.dump(file, inline=True)


# --- what generations have in common ---


class Generation:
    """The measured rows of one generation's profile, and the parameters to fit to them: its own, and shared ones."""

    def __init__(self, name: str, folders: Sequence[Path]):
        self.name = name
        (refit,) = (each for each in refits(name) if not each.way)
        record = refit.record
        asking = RowQuestions(record.topology, [f"profile={shipped_profiles()[name]}"], fitting=True)
        files = [table(source.file, source.sha256, folders) for source in record.files]
        rows, _, _ = rows_to_fit.read(files, dict(map(yaml_tree.condition, record.where)))
        data, _ = rows_to_fit.samples(rows, asking)
        chosen, _ = rows_to_fit.split(data, {})
        self.samples = data.of(chosen & ~np.array(measured_points.suspicious(data.rows)))
        common = [cost for cost in load_network(COMMON).fitted if name in sharers(cost)]
        start, params = load_network(name), data.points[0].scenario.params()
        self.costs = starting_costs(self.samples, start, params, [*own_names(name, refit), *common])
        self.bounds = bounds_of(self.samples, list(self.costs))
        self._before = CostSetting.of(start)
        self._times: dict[bytes, Floats] = {}

    def times(self, costs: Floats) -> Floats:
        """Return the rows' times in ps at these costs; kept, as steps in other generations' costs ask again."""
        key = costs.tobytes()
        if key not in self._times:
            asked = dict(zip(self.costs, costs.tolist(), strict=True))
            self._times[key] = self.samples.times(parameters.with_costs(self._before, asked))
        return self._times[key]


def fit_common(folders: Sequence[Path]) -> None:
    """Fit the profiles of all generations together, and write the costs that they share to the common profile."""
    parts = [Generation(name, folders) for name in GENERATIONS]
    # a column for each parameter: the profiles that have it, and its name
    of_parts = [
        [(tuple(sharers(cost)) if part.name in sharers(cost) else (part.name,), cost) for cost in part.costs]
        for part in parts
    ]
    columns = list(dict.fromkeys(column for of_part in of_parts for column in of_part))
    places = [list(map(columns.index, of_part)) for of_part in of_parts]
    start, limits = np.empty(len(columns)), np.empty((3, len(columns)))
    for part, at in zip(parts, places, strict=True):
        start[at], limits[:, at] = list(part.costs.values()), np.array(part.bounds)
    line = least_squares.fit(
        lambda values: np.concatenate([part.times(values[at]) for part, at in zip(parts, places, strict=True)]),
        np.concatenate([part.samples.measured for part in parts]),
        start,
        least_squares.Bounds(*limits),
    )
    found = {cost: value for (names, cost), value in zip(columns, line.values.tolist(), strict=True) if len(names) > 1}
    path = shipped_profiles()[COMMON]
    file = yaml_tree.read(path).plain()
    for cost, value in found.items():
        block, _, key = cost.partition(".")
        file["kernels"][block][key] = file["fitted"][cost] = parameters.text(cost, value)
    write_atomically(path, _head(path) + yaml_tree.dump(file, inline=True))
    print(", ".join(f"{cost}: {parameters.text(cost, value)}" for cost, value in found.items()))


# --- transports between nodes ---


def fit_transports(tables: Path, folder: Path, keep: Sequence[str], tell: Tell) -> None:
    """Fit transports to the clusters in a folder of tables; write their profiles and those of their families.
    Transports named in `keep` keep their costs, also for the fits of others; only their recorded errors change."""
    rows = rows_of(tables, folder, tell, least_nodes=2)
    samples = left_out.samples_of(rows)
    together = transports.fit_together(samples, transports.networks(), tell, keep)
    missed = {each.name: each.times(together.without(each).values, together.start[each.transport]) for each in samples}
    sources = _sources(tables, rows)
    for name, known in together.known.items():
        own = [each for each in samples if each.transport == name]
        about = {} if name in keep else _about(own, rows, sources)
        _write(name, together.in_use(name), own, missed, about, together.start, known.intervals)
    for name in together.common.families:
        of = [each for each in samples if together.family[each.transport] == name]
        like = load_network(name)
        known = transports.recorded(like) if name in keep else together.common.of(like)
        about = {} if name in keep else _about(of, rows, sources)
        _write(name, known, of, missed, about, together.start, known.intervals)


def _sources(tables: Path, rows: Sequence[ClusterRow]) -> dict[str, TableSource]:
    """Return the record of each table file (name, hash, rows), by the names of the series in the file."""
    found: dict[str, TableSource] = {}
    for path in sorted(tables.glob("*.csv")):
        data, of_file = read_file(path)
        names = {row.others.get("table", "") for row in of_file}
        used = sum(row.row.others.get("table", "") in names for row in rows)
        found |= {name: rows_to_fit.source(path.name, data, used) for name in names}
    return found


def _about(own: Sequence[ClusterSamples], rows: Sequence[ClusterRow], sources: Mapping[str, TableSource]) -> Document:
    """Return the record of a fit to the clusters `own`, still without errors and intervals."""
    names = [each.name for each in own]
    tables = sorted({row.row.others.get("table", "") for row in rows if row.cluster in names})
    files = {sources[table].file: sources[table] for table in tables}
    systems = {row.point.scenario.topology.title for row in rows if row.cluster in names}
    return {
        "topology": ", ".join(sorted(systems)),
        "date": time.strftime("%Y-%m-%d"),
        "simcoll": simcoll.__version__,
        "scipy": scipy.__version__,
        "seed": 0,
        "files": [source.model_dump() for source in files.values()],
        "split": f"all rows on several nodes of {', '.join(names)}; held out: each of these in turn",
    }


def _write(
    name: str,
    known: Known,
    own: Sequence[ClusterSamples],
    missed: Mapping[str, Floats],
    about: Document,
    start: Mapping[str, Profile],
    alone: Mapping[str, tuple[str, str]],
) -> None:
    """Write the profile of a transport or family with the costs `known`, and the record of its fit. `alone` holds the
    90 % intervals by the transport's own rows, also of costs that it takes from its family and does not write. `missed`
    holds the times (ps) predicted without each cluster, `start` the profiles before the fit. If `about` is empty, only
    the recorded errors are written."""
    path, like = shipped_profiles()[name], load_network(name)
    file, head = yaml_tree.read(path).plain(), _head(path)
    clusters_ = len({each.name for each in own})
    measured = np.concatenate([each.samples.measured for each in own])
    every = np.ones(len(measured), bool)
    times = {
        "fitted": np.concatenate([each.times(known.values, start[each.transport]) for each in own]),
        "held_out": np.concatenate([missed[each.name] for each in own]),
    }
    errors = {label: scores_of(predicted, measured, every) for label, predicted in times.items()}
    # as the transport itself predicts a cluster from the others that have it; by no other the fit is all that there is
    judged = times["fitted" if clusters_ == 1 else "held_out"]
    regions = of_regions([row for each in own for row in each.samples.rows], judged, measured, every)
    scored = {"errors": errors, "regions": regions}
    if about:
        texts = {cost: parameters.text(cost, value) for cost, value in known.costs.items() if value}
        share = texts.pop(transports.SHARE)
        shared = dict(zip(transports.COSTS, transports.of_family(like).tolist(), strict=True))
        keys: Document = {cost.partition(".")[2]: text for cost, text in texts.items() if not shared[cost]}
        file["transport"] = {**keys, **(like.transport.settings if like.transport else {})}
        if transports.SHARE in alone:
            file["links"] = {**file.get("links", {}), CABLE: {"efficiency": share}}
        kind = file["description"].partition(";")[0]
        file["description"] = f"{kind}; fitted to {len(measured)} rows of {clusters_} cluster{'s' * (clusters_ > 1)}"
        intervals = {cost: [*ends] for cost, ends in alone.items()}
        file["calibration"] = {**about, "intervals": intervals, **scored, "covers": []}
    else:
        file["calibration"] = {**file["calibration"], **scored}
    write_atomically(path, head + yaml_tree.dump(file, inline=True))
    print(f"{name}: {errors['fitted']['mape']:.1f} %, left out {errors['held_out']['mape']:.1f} %", flush=True)


def _head(path: Path) -> str:
    """Return the comment lines at the top of a profile's file."""
    return "".join(line for line in path.read_text("utf-8").splitlines(keepends=True) if line.startswith("#"))


def main() -> int:
    """Repeat the fits that the command line names, and write the profiles in place."""
    parser = argparse.ArgumentParser(description="Fit shipped profiles again from their records.")
    parser.add_argument("profiles", nargs="*", help="names; default: all that record a fit")
    parser.add_argument(
        "--tables", type=Path, action="append", default=[], help="folder of tables that are not shipped"
    )
    parser.add_argument("--common", action="store_true", help="fit what generations of GPUs have in common")
    parser.add_argument("--transports", type=Path, metavar="DIR", help="fit the transports to the tables of clusters")
    parser.add_argument("--keep", action="append", default=[], metavar="NAME", help="a transport that keeps its costs")
    parser.add_argument("--folder", type=Path, default=Path("validation/accuracy"), help="where clusters.yaml is")
    parser.add_argument("--list", action="store_true", help="only say what would be fitted")
    asked = parser.parse_args()
    if asked.transports:
        fit_transports(asked.transports, asked.folder, asked.keep, lambda line: print(line, file=sys.stderr))
        return 0
    folders = [yaml_tree.shipped("measured"), *asked.tables]
    if asked.common:
        fit_common(folders)
        return 0
    failed = 0
    for name in asked.profiles or shipped_profiles():
        for refit in refits(name):
            label = f"{name}{f' ({refit.way})' if refit.way else ''}: {', '.join(s.file for s in refit.record.files)}"
            if asked.list:
                print(f"{label}: {', '.join(refit.names)}")
                continue
            began = time.process_time()
            try:
                outcome = repeat(shipped_profiles()[name], refit, folders)
            except InputError as error:
                outcome, failed = f"left as it is: {error}", failed + 1
            print(f"{label}: {outcome} ({time.process_time() - began:.0f} s of CPU)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
