"""Prepare measured rows for a fit: read tables, bind each row's point, and split rows into fitted and held-out ones."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy import table_join
from simcoll.accuracy.fit.least_squares import Draw
from simcoll.accuracy.fit.parameters import OF_GRAPH, OF_HOST
from simcoll.accuracy.measured_points import RowQuestions
from simcoll.config.grouping import grouped
from simcoll.config.input_files import decoded
from simcoll.config.numpy_helpers import Floats, Numbers
from simcoll.errors import InputError, RefusedError
from simcoll.formats.measured import MeasuredRow, find_measured, read_file, remarks
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.predict import Prediction, predict
from simcoll.scenario import caveats
from simcoll.scenario.launch import Process
from simcoll.scenario.profile import CostSetting, TableSource, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Topology
from simcoll.units import float_of

EVERY_SECOND_SIZE: Final = "every second size"
EVERY_SECOND: Final = f"{EVERY_SECOND_SIZE} of each series"
MANY_LAUNCHES: Final = 3  # the bootstrap draws launches only of rows with at least so many


class RetimedPoint:
    """A point whose program is made once, and then timed under many costs during a fit.

    If the library's choice depends on the costs, there is a program for each possible choice, and the fastest counts.
    """

    def __init__(self, scenario: Scenario):
        self.scenario, self.setting = scenario, CostSetting.of(load_profile(scenario.profile))
        self.choices: list[Prediction] = []
        refused: list[RefusedError] = []
        for option in executor(scenario).alternatives(scenario):
            try:
                self.choices.append(predict(option, costs=self.setting, keep="totals"))
            except RefusedError as error:
                refused.append(error)
        if not self.choices:
            raise refused[0]
        self._calls = [choice.planned[0].lowered for choice in self.choices]

    @cached_property
    def _links(self) -> list[Numbers]:
        """For each possible choice of the library, the links that carry bytes."""
        return [np.flatnonzero(choice.totals.carried) for choice in self.choices]

    @property
    def topology(self) -> Topology:
        """The topology with its links' rated bandwidths."""
        return self._calls[0].rated

    @property
    def kinds(self) -> list[str]:
        """The kinds of links that the point uses, in order of first use."""
        kinds = self.topology.link_kinds
        return list(dict.fromkeys(kinds[link] for links in self._links for link in links.tolist()))

    @property
    def speeds(self) -> tuple[int, int]:
        """The B/s of the slowest and the fastest link that may limit the point's time."""
        limits = [list(call.path) or links for call, links in zip(self._calls, self._links, strict=True)]
        speeds = [call.rated.bandwidths[links] for call, links in zip(self._calls, limits, strict=True)]
        return min(int(of.min(initial=2**62)) for of in speeds), max(int(of.max(initial=1)) for of in speeds)

    @property
    def processes(self) -> frozenset[Process]:
        """The work that the host's CPU processes do for the call; empty if the scenario does not model host work."""
        return self._calls[0].processes

    @property
    def uploads(self) -> float:
        """The number of GPUs to which one process uploads its graph for each launch; 0 without a graph."""
        return self._calls[0].uploads

    def time_ps(self, setting: CostSetting) -> int:
        """Return the time under a setting of costs, in ps."""
        return min(choice.retimed(setting) for choice in self.choices)


@dataclass(frozen=True, eq=False)
class Samples:
    """Measured rows (n,) with times `measured` (n,) in ps; `which` (n,) numbers the point that predicts each row."""

    rows: tuple[MeasuredRow, ...]
    measured: Floats
    which: NDArray[np.int64]
    points: tuple[RetimedPoint, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, chosen: NDArray[np.bool_]) -> Samples:
        """Return the samples of the rows flagged by `chosen`, with their points."""
        asked, which = np.unique(self.which[chosen], return_inverse=True)
        rows = tuple(row for row, keep in zip(self.rows, chosen.tolist(), strict=True) if keep)
        return Samples(rows, self.measured[chosen], which, tuple(self.points[i] for i in asked))

    def times(self, setting: CostSetting) -> Floats:
        """Return the predicted time of each row (n,) under a setting of costs, in ps."""
        asked = np.array([point.time_ps(setting) for point in self.points], np.float64)
        times: Floats = asked[self.which]
        return times

    @property
    def launches(self) -> list[str]:
        """The launch parameters, of the host and of CUDA graphs, that these rows can determine (their names)."""
        processes = {process for point in self.points for process in point.processes}
        posting = any(process.messages for process in processes)
        host = OF_HOST[:2] if posting else OF_HOST[:1] if processes else ()
        graph = OF_GRAPH[: 2 if len(self.uploads) > 1 else len(self.uploads)]
        return [*host, *graph]

    @property
    def uploads(self) -> set[float]:
        """The different numbers of uploads per graph launch; with two or more a fit can find an upload's cost."""
        return {point.uploads for point in self.points if point.scenario.launch.graph}

    @property
    def least_a_launch(self) -> float:
        """The least time per launch in ps: a row's time divided by its process's number of launches; 0 if unknown."""
        most = [max((process.launches for process in point.processes), default=0) for point in self.points]
        pairs = zip(self.measured.tolist(), self.which.tolist(), strict=True)
        return min((time / most[i] for time, i in pairs if most[i]), default=0.0)

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of links that the points use."""
        return list(dict.fromkeys(kind for point in self.points for kind in point.kinds))

    @cached_property
    def draw(self) -> Draw:
        """A function that draws random rows with replacement, for the bootstrap.

        If rows have medians of several launches, launches are drawn too. Rows that were measured together get the same
        launches, because a disturbed launch disturbs all its rows.
        """
        launches = [_launches(row) for row in self.rows]
        several = (i for i, medians in enumerate(launches) if len(medians) >= MANY_LAUNCHES)
        starts = grouped(several, lambda i: (self.rows[i].ranks, len(launches[i])))
        tables = [(np.array(numbers), np.array([launches[i] for i in numbers])) for numbers in starts.values()]

        def drawn(generator: np.random.Generator) -> tuple[NDArray[np.int64], Floats]:
            measured = self.measured.copy()
            for numbers, table in tables:
                again = table[:, generator.integers(0, table.shape[1], table.shape[1])]
                measured[numbers] *= np.median(again, axis=1) / np.median(table, axis=1)
            rows = generator.integers(0, len(measured), len(measured))
            return rows, measured[rows]

        return drawn


def _launches(row: MeasuredRow) -> list[float]:
    """Return each launch's median time in us, from the column `launch_us`; empty without valid values."""
    try:
        medians = [float_of(text) for text in row.others.get("launch_us", "").split()]
    except ValueError:
        return []
    return medians if all(time > 0 for time in medians) else []


def read(
    files: Sequence[Path | str], where: Mapping[str, str]
) -> tuple[list[MeasuredRow], list[TableSource], list[str]]:
    """Read measured tables; return their rows, a record of each file, and remarks.

    Rows of one harness are kept (`p2p`: own sends, or a library's calls); if there are several, those of `p2p`. Raises
    InputError for files that cannot be read, for a `where` that keeps no row, and for several harnesses without `p2p`.
    """
    tables, all_rows = list[tuple[str, bytes, list[MeasuredRow]]](), list[MeasuredRow]()
    for name in files:
        data, measured = read_file(find_measured(name), table_join.defaults(where), chosen=True)
        selected = table_join.select(measured, where)
        all_rows += measured
        tables.append((str(name), data, selected))
    rows = [row for *_, of_table in tables for row in of_table]
    table_join.check_columns(where, rows)
    if not rows:
        table_join.kept(all_rows, where, ", ".join(map(str, files)))
        cure = "give tables with rows, or another --where"
        raise InputError("no measured row is left to fit", cure)
    kept, notes = _one_harness(rows)
    notes += table_join.apart(rows)
    notes += [remark for name, data, of in tables for remark in remarks(decoded(data), name, of)]
    notes += table_join.filled(rows, where)
    sources = [
        source(Path(name).name, data, sum(row.harness == kept for row in of_table)) for name, data, of_table in tables
    ]
    return [row for row in rows if row.harness == kept], sources, notes


def source(name: str, data: bytes, rows: int) -> TableSource:
    """Return a profile's record of a table file: its name, its hash, and how many rows were used."""
    return TableSource(file=name, sha256=hashlib.sha256(data).hexdigest(), rows=rows)


def _one_harness(rows: Sequence[MeasuredRow]) -> tuple[str, list[str]]:
    """Return the harness to keep, and remarks on rows of other harnesses."""
    counts = Counter(row.harness for row in rows)
    if len(counts) == 1:
        return next(iter(counts)), []
    if "p2p" not in counts:
        names = ", ".join(sorted(counts))
        raise InputError(f"the rows are of several harnesses ({names}), and a profile is fitted to one",
                         f"choose, e.g. with --where harness={min(counts)}")  # fmt: skip
    others = ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()) if name != "p2p")
    return "p2p", [f"rows of other harnesses are left out ({others}); --where harness=… selects them"]


def samples(rows: Sequence[MeasuredRow], asking: RowQuestions) -> tuple[Samples, list[str]]:
    """Pair each row with its point; return the rows that can be predicted, and for all others remarks with reasons.

    Raises InputError if no row can be predicted.
    """
    pairs = list[tuple[MeasuredRow, Scenario]]()
    refused: Counter[str] = Counter()
    for row in rows:
        if row.others.get("buckets", "1") not in ("", "1"):
            refused["they are calls in buckets, and the fit models whole calls only"] += 1
            continue
        points = asking.points(row)
        if len(points) == 1:
            pairs.append((row, points[0].scenario))
        else:
            unknown = f"{row.collective}/{row.algorithm} is not known: name it as `simcoll list algorithms` does"
            refused["--set gives several points" if points else unknown] += 1
    return of_pairs(pairs, refused)


def of_pairs(
    pairs: Sequence[tuple[MeasuredRow, Scenario]], refused: Counter[str] | None = None
) -> tuple[Samples, list[str]]:
    """Return samples and remarks, like `samples`, from rows with scenarios; `refused` counts rows already left out."""
    refused = Counter() if refused is None else refused
    known: dict[str, int] = {}
    points, kept, which = list[RetimedPoint](), list[MeasuredRow](), list[int]()
    for row, scenario in pairs:
        key = scenario.model_dump_json()
        try:
            if key not in known:
                points.append(RetimedPoint(scenario))
                known[key] = len(known)
        except RefusedError as error:
            refused[str(error)] += 1
            continue
        kept.append(row)
        which.append(known[key])
    notes = [f"left out: {count} rows: {why}" for why, count in refused.items()]
    if not kept:
        raise InputError(f"none of {refused.total()} rows can be predicted: {next(iter(refused))}", "give other rows")
    notes += caveats.notes(point.scenario for point in points)
    measured = np.array([row.time_us for row in kept]) * 1e6
    return Samples(tuple(kept), measured, np.array(which, np.int64), tuple(points)), notes


def split(samples: Samples, fit: Mapping[str, Sequence[str]]) -> tuple[NDArray[np.bool_], str]:
    """Choose the rows to fit: those with the values that `fit` (column → values) names, or every second size.

    Returns flags, bool (n,), and a description of the choice. Raises InputError if no row is chosen.
    """
    if fit:
        chosen = np.array(table_join.among(samples.rows, fit, "--fit"))
        if not chosen.any():
            raise InputError("--fit selects no row", "choose columns and values that the tables contain")
        return chosen, "--fit " + " --fit ".join(f"{column}={','.join(texts)}" for column, texts in fit.items())
    return np.array(every_second(samples.rows)), EVERY_SECOND


def every_second(rows: Sequence[MeasuredRow]) -> list[bool]:
    """Return flags of the rows with the first, third, fifth … size of their series."""
    series = grouped(rows, _series)
    odd = {key: set(sorted({row.size_bytes for row in of_series})[::2]) for key, of_series in series.items()}
    return [row.size_bytes in odd[_series(row)] for row in rows]


def _series(row: MeasuredRow) -> tuple[object, ...]:
    swept = tuple(sorted(pair for pair in row.others.items() if pair[0].startswith(("topology.", "model.", "launch."))))
    return (row.collective, row.algorithm, row.protocol, row.ranks, row.nodes, row.dtype, row.system, *swept)
