"""Predict rows of measured tables of clusters, by shipped profiles and by fits, to score the predictions.

Nothing is fitted for the zero-shot scores. A row is called *in the fit* if a shipped profile of its GPUs or NICs was
fitted to its table. Intervals of a cluster come from the errors on other clusters.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from simcoll.accuracy import measured_points, scores
from simcoll.accuracy.fit import calibrate, rows_to_fit
from simcoll.accuracy.fit.calibrate import Beginning, Calibrated
from simcoll.accuracy.measured_points import RowQuestions
from simcoll.config import yaml_tree
from simcoll.config.grouping import grouped
from simcoll.config.numpy_helpers import distinct
from simcoll.config.yaml_tree import Model
from simcoll.errors import InputError, RefusedError
from simcoll.formats.measured import MeasuredRow, read_file
from simcoll.measurement.cases_of_points import Tell
from simcoll.prediction.confidence import Kind, ModelErrors, Setting
from simcoll.prediction.placed_topology import network_of
from simcoll.prediction.predict import busiest_link, lent, place, predict
from simcoll.prediction.predict import row as result_of
from simcoll.prediction.result_rows import write_atomically
from simcoll.scenario.profile import Profile, load_network, load_profile
from simcoll.scenario.scenario_files import Point
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import described, load_system

FILE: Final = "clusters.yaml"
FEW_SIZES: Final = 16  # of a series: three octaves in four decades, which no law of the model passes over
FEW_NODES: Final = 2  # what a user has measured before a cluster is bought
FEW_RANKS: Final = 4  # what a user has measured before all GPUs of a node are free
LEAST_ROWS: Final = 6  # of a fit: fewer say nothing of a dozen parameters


class KnownCluster(Model):
    """A cluster: patterns of the columns `table` or `system` that select its rows, and the shipped system that stands
    for it. `lacks` (Markdown) says what the model lacks for it on one node, as its errors show; `outside` says the same
    for rows outside their intervals. `judges_only`: no transport is fitted to the rows."""

    name: str
    rows: tuple[str, ...]
    system: str
    set: tuple[str, ...] = ()
    lacks: str = ""
    outside: str = ""
    judges_only: bool = False


class ClusterFile(Model):
    """The file of known clusters. If several clusters match a row, the first one counts."""

    clusters: tuple[KnownCluster, ...]


@dataclass(frozen=True, eq=False)
class ClusterRow:
    """A measured row of a cluster with its point and its predictions, in us. For `place`, `busy` and `lent` see
    `confidence.Setting`; for `region` see `scores.located`.

    `seen`: a shipped profile was fitted to the row's table; `gpus_seen`: the GPUs' profile was. `ends` is the interval
    according to errors on other clusters. `left_out_us` and `left_out_ends` are predicted without the cluster, with the
    network `kin`; None on one node. `fitted_us` and `fitted_ends` are predicted by a fit to the cluster's rows that are
    `used`. `plain_us` is predicted by the plain model (NaN if it has no such call). `other_nodes_us` and
    `other_nodes_ends` are predicted by a fit to the cluster's other node counts. Each is None if it was not predicted.
    """

    cluster: str
    row: MeasuredRow
    point: Point
    place: str
    busy: float
    predicted_us: float
    seen: bool
    gpus_seen: bool = False
    lent: bool = False
    lacks: str = ""
    outside: str = ""
    judges_only: bool = False
    region: str = ""
    ends: tuple[float, float] | None = None
    left_out_us: float | None = None
    left_out_ends: tuple[float, float] | None = None
    kin: str = ""
    used: bool = False
    fitted_us: float | None = None
    plain_us: float | None = None
    fitted_ends: tuple[float, float] | None = None
    other_nodes_us: float | None = None
    other_nodes_ends: tuple[float, float] | None = None

    @property
    def nodes(self) -> int:
        """The number of nodes of the call."""
        return self.row.nodes or 1

    @property
    def series(self) -> tuple[object, ...]:
        """A key of the row's series; rows of a series differ only in size."""
        row = self.row
        others = tuple(sorted((key, text) for key, text in row.others.items() if key in ("table", "launch.graph")))
        return self.cluster, row.collective, row.ranks, self.nodes, row.algorithm, row.protocol, row.dtype, others

    @property
    def off(self) -> float:
        """The logarithm of measured / predicted, with shipped profiles."""
        return math.log(self.row.time_us / self.predicted_us)

    @property
    def setting(self) -> Setting:
        """The properties of the call on which the model's error depends."""
        return Setting(
            self.row.collective, self.nodes, self.place, self.busy, self.point.scenario.launch.way, self.lent
        )

    @property
    def left_out(self) -> tuple[Setting, float] | None:
        """The setting of the call and log(measured / predicted) without its cluster; None on one node."""
        if self.left_out_us is None:
            return None
        busy = self.busy * self.predicted_us / self.left_out_us  # other costs than those of links are others there
        return self.setting._replace(place=self.kin, busy=busy), math.log(self.row.time_us / self.left_out_us)


def rows_of(tables: Path, folder: Path, tell: Tell, least_nodes: int = 1) -> list[ClusterRow]:
    """Predict the rows of all measured tables (`*.csv`) in a folder that are on at least `least_nodes` nodes; at most
    FEW_SIZES sizes of each series.

    Rows that cannot be predicted, or that `measured_points` finds suspicious, are left out and reported through `tell`.
    Raises InputError if there is no table, or if no row can be predicted.
    """
    files = sorted(tables.glob("*.csv"))
    if not files:
        raise InputError(f"{tables}: has no *.csv", "give a folder of measured tables")
    known = folder / FILE
    clusters = yaml_tree.validate(ClusterFile, [yaml_tree.read(known)])[0].clusters if known.exists() else ()
    found: list[ClusterRow] = []
    mistakes: dict[str, InputError] = {}
    for path in files:
        data, rows = read_file(path)
        tell(f"{path.name}: predicting {len(rows)} rows")
        digest = hashlib.sha256(data).hexdigest()
        odd = measured_points.suspicious(rows)
        sound = [row for row, bad in zip(rows, odd, strict=True) if not bad and (row.nodes or 1) >= least_nodes]
        try:
            for cluster, own in grouped(sound, partial(_cluster, clusters=clusters, path=path)).items():
                found += _predicted(cluster, RowQuestions(cluster.system, cluster.set), own, digest, tell)
        except InputError as mistake:
            mistakes.setdefault(str(mistake), mistake)
    if not found:
        raise next(iter(mistakes.values()), InputError(f"{tables}: no row can be predicted", "see clusters.yaml"))
    for why in mistakes:
        tell(f"left out: {why}")
    return _in_regions(found)


def _cluster(row: MeasuredRow, clusters: Iterable[KnownCluster], path: Path) -> KnownCluster:
    """Return the cluster that a row belongs to. Raises InputError if no shipped system has the row's GPU."""
    labels = (row.others.get("table") or "", row.system or "")
    for known in clusters:
        if any(fnmatch(label, pattern) for label in labels for pattern in known.rows):
            return known
    return KnownCluster(name=row.system or path.stem, rows=(), system=_system_of(row.system or "", path))


def _predicted(
    cluster: KnownCluster, asking: RowQuestions, rows: Sequence[MeasuredRow], digest: str, tell: Tell
) -> list[ClusterRow]:
    """Predict a cluster's rows of one table; `digest` is the hash of the table's file."""
    found: list[ClusterRow] = []
    refused: Counter[str] = Counter()
    for row in _thinned(rows):
        points = asking.points(row)
        try:
            prediction = predict(points[0], related=True) if len(points) == 1 else None
        except RefusedError as error:
            refused[str(error)] += 1
            continue
        if prediction is None:
            refused[f"{row.collective} by {row.algorithm} is not known"] += 1
            continue
        profiles = [load_profile(points[0].scenario.profile)]
        if (row.nodes or 1) > 1:
            profiles.append(load_network(place(prediction)))
        gpus_seen = fitted_beside(profiles[0], digest, row)
        seen = gpus_seen or any(digest in recorded_tables(profile) for profile in profiles)
        binding = busiest_link(prediction)
        where, busy = place(prediction), binding.busy if binding else 0.0
        took = prediction.time_ps / 1e6
        more = lent(prediction), cluster.lacks, cluster.outside, cluster.judges_only
        found.append(ClusterRow(cluster.name, row, points[0], where, busy, took, seen, gpus_seen, *more))
    for why, count in refused.items():
        tell(f"left out: {count} rows of {cluster.name}: {why}")
    return found


def _thinned(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return at most FEW_SIZES rows of each series, evenly spread over its sizes."""
    keys = ("collective", "ranks", "nodes", "algorithm", "protocol", "dtype")
    series = grouped(rows, lambda row: (*(getattr(row, key) for key in keys), row.others.get("table")))
    kept: list[MeasuredRow] = []
    for of_series in series.values():
        ordered = sorted(of_series, key=lambda row: row.size_bytes)
        at = distinct(np.linspace(0, len(ordered) - 1, min(FEW_SIZES, len(ordered))).round().astype(int))
        kept += [ordered[i] for i in at.tolist()]
    return kept


def _in_regions(rows: Sequence[ClusterRow]) -> list[ClusterRow]:
    """Return the rows with the names of their regions, which follow from the measured times of a series."""
    names = scores.located([(row.series, row.row.size_bytes, row.row.time_us) for row in rows])
    return [dataclasses.replace(row, region=name) for row, name in zip(rows, names, strict=True)]


# --- what was fitted to a table ---


def recorded_tables(profile: Profile) -> set[str]:
    """Return the hashes of the tables to which a profile was fitted, according to its records."""
    ways = (profile.host, profile.graph, profile.pull)
    records = [profile.calibration, *(way.calibration for way in ways if way)]
    return {source.sha256 for record in records if record for source in record.files}


def fitted_beside(profile: Profile, digest: str, row: MeasuredRow) -> bool:
    """Whether an additional fit of a profile, or of the profile that it is `like`, used this row of the table with hash
    `digest`."""
    label = row.others.get("table") or ""
    tables = [each for each in profile.beside if each.sha256 == digest and each.collective in (None, row.collective)]
    if any(fnmatch(label, pattern) for each in tables for pattern in each.tables):
        return True
    return profile.like is not None and fitted_beside(load_network(profile.like), digest, row)


# --- fitted to few nodes ---


def fitted(
    rows: Sequence[ClusterRow],
    tell: Tell,
    networks: Mapping[str, Profile] | None = None,
    taught: Mapping[str, ModelErrors] | None = None,
) -> tuple[list[ClusterRow], dict[Kind, float]]:
    """Fit a profile to each cluster's rows on one and two nodes, if it has more nodes, and predict the other rows. A
    cluster of few nodes is fitted to all-reduces on FEW_RANKS ranks or fewer, and not at all without other rank counts.
    `networks` holds the NIC profile with which a cluster's fit begins (default: the shipped one). `taught` holds the
    errors on other clusters (default: the shipped errors).

    Also returns the spread of the model's error over all fits, by what is new in rows (e.g. the rank count).
    """
    done: list[ClusterRow] = []
    shown: dict[Kind, list[float]] = defaultdict(list)
    for cluster, own in grouped(rows, lambda row: row.cluster).items():
        used = _to_fit(own)
        if sum(used) < LEAST_ROWS or all(used):
            done += own
            continue
        tell(f"{cluster}: fitting {sum(used)} rows")
        try:
            found = fit_to(own, used, (networks or {}).get(cluster))
        except (InputError, RefusedError) as error:
            tell(f"{cluster}: not fitted: {error}")
            done += own
            continue
        for kind, errors in found.document["left_out"].items():
            if errors:
                shown[kind].append(math.sqrt(float(np.mean(np.square(errors)))))
        timed = by_profile(found.text, own, (taught or {}).get(cluster))
        done += [
            dataclasses.replace(
                row,
                used=is_used,
                fitted_us=time_us,
                fitted_ends=ends,
                plain_us=calibrate.by_plain_model(row.point.scenario) / 1e6,
            )
            for row, is_used, (time_us, ends) in zip(own, used, timed, strict=True)
        ]
    return done, {kind: math.sqrt(float(np.mean(np.square(each)))) for kind, each in shown.items()}


def _to_fit(rows: Sequence[ClusterRow]) -> list[bool]:
    nodes = {row.nodes for row in rows}
    if min(nodes) <= FEW_NODES < max(nodes):
        return [row.nodes <= FEW_NODES for row in rows]
    most = max(row.row.ranks for row in rows)
    return [row.row.collective == "all_reduce" and row.row.ranks < most and row.row.ranks <= FEW_RANKS for row in rows]


def fit_to(rows: Sequence[ClusterRow], used: Sequence[bool], network: Profile | None) -> Calibrated:
    """Fit a profile to the rows of one cluster flagged by `used`, beginning at the shipped profile. The other rows
    influence neither costs nor intervals, because they will be scored."""
    first = rows[0].point.scenario
    data, notes = rows_to_fit.of_pairs(
        [(row.row, row.point.scenario) for row, is_used in zip(rows, used, strict=True) if is_used]
    )
    begin = Beginning(
        name=rows[0].cluster.replace(" ", "-"),
        scenario=first,
        topology=first.topology.system or "",
        sources=(),
        split="some nodes or ranks",
        network=network or network_of(described(first.topology)),
    )
    return calibrate.fitted(data, np.ones(len(data), bool), begin, notes=notes)


def by_profile(
    text: str, rows: Sequence[ClusterRow], known: ModelErrors | None = None
) -> list[tuple[float, tuple[float, float] | None]]:
    """Predict rows of a cluster by the profile in `text`. Return time and ends of the interval, in us, for each row.
    `known` are errors on other machines (default: the shipped ones)."""
    found: list[tuple[float, tuple[float, float] | None]] = []
    with tempfile.TemporaryDirectory(prefix="simcoll-") as folder:
        path = Path(folder) / "fitted.yaml"
        write_atomically(path, text)
        for row in rows:
            asked = row.point.scenario.model_copy(update={"profile": str(path)})
            result = result_of(predict(dataclasses.replace(row.point, scenario=asked), related=True), known)
            ends = None if result.low_us is None or result.high_us is None else (result.low_us, result.high_us)
            assert result.time_us is not None  # its times are not random
            found.append((result.time_us, ends))
    return found


def _system_of(text: str, table: Path) -> str:
    """Return the shipped system whose GPU the text names (`h100_sxm`, `GB200`); of several the longest GPU name counts.

    Raises InputError if the text names no shipped GPU.
    """
    if text in shipped_systems():
        return text
    plain = _letters(text)
    gpus = {name: file.gpu for name in shipped_systems() if not (file := load_system(name)).like}
    words = {name: _letters(re.split(" SXM| Blackwell", gpu.model)[0]) for name, gpu in gpus.items() if gpu}
    fits = [name for name, word in words.items() if word in plain]
    if not fits:
        raise InputError(f"{table}: no shipped system matches the machine {text!r}", f"name one of {', '.join(words)}")
    return max(fits, key=lambda name: len(words[name]))


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
