"""Turn measured rows into points to predict on the user's topology, and find rows whose times cannot be right."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np

from simcoll.config import yaml_tree
from simcoll.config.grouping import grouped
from simcoll.errors import Diagnostic, InputError, Place
from simcoll.formats.measured import MeasuredRow
from simcoll.formats.measured.gpu_names import contradiction, named, ruled_out
from simcoll.nccl.algorithm_names import COLLECTIVES, SCHEDULES, name_of
from simcoll.nccl.tuner_constants import Library, nearest
from simcoll.prediction.lowered_call import library
from simcoll.prediction.placed_topology import network_of
from simcoll.scenario import scenario_files
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import load_profile
from simcoll.scenario.profile_choice import UNFITTED, check_gpus, profile_of
from simcoll.scenario.scenario import MOST_BYTES, machine_named
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import registry
from simcoll.schedule.collectives import OPERATORS, collective
from simcoll.schedule.names import ALGORITHMS, WORKLOAD
from simcoll.topology import topology_builder
from simcoll.topology.machine_files import hosts_of, shipped_systems
from simcoll.units import float_of
from simcoll.workload.workload_keys import Composition, Ddp

PS_PER_US = 10**6
SWEPT = ("topology.", "model.")  # columns of measured tables that name a key of the scenario
LAUNCHED = "launch."  # columns that say how calls were launched
TOO_LONG: Final = 1.1  # sound runs do not take 10 % longer than runs of twice their size
ALIKE: Final = 1.2  # neighbours in size belong together if their times differ by at most this factor
ENOUGH: Final = 4  # such sizes in a row: a disturbance would hardly be equal in so many runs


def as_measured(point: Point, row: MeasuredRow) -> Point:
    """Return a workload's point with the row's measured times of computations, so that only messages are predicted.

    Reads the column `computed_us`, which `measurement.real_run` writes; a row without it leaves the point unchanged.
    Raises InputError if the row has another number of computations than the workload.
    """
    computed, spec = row.others.get("computed_us"), point.scenario.workload
    if not computed or not isinstance(spec, Ddp | Composition):
        return point
    try:
        times = [round(float_of(text) * PS_PER_US) for text in computed.split()]
        changes = _computing(spec, times)
    except ValueError:
        problem = f"`computed_us` does not fit the computations of the template {spec.template}"
        raise InputError([Diagnostic(problem, "compare with the scenario that was measured", "", row.place)]) from None
    changed = {"workload": spec.model_copy(update=changes)}
    return dataclasses.replace(point, scenario=point.scenario.model_copy(update=changed))


def _computing(spec: Ddp | Composition, times: Sequence[int]) -> dict[str, Any]:
    """Return the changed keys of a workload whose computations take `times` (ps), in the order of the plan."""
    if isinstance(spec, Composition):
        return {"local": round(statistics.mean(times))}
    forward, *backward, optimizer = times
    alike = [layer for layer in spec.layers or () for _ in range(layer.times)]
    layers = [
        layer.model_copy(update={"times": 1, "forward": 0, "backward": time})
        for layer, time in zip(alike, backward, strict=True)
    ]
    return {"forward": forward, "layers": tuple(layers), "optimizer": optimizer}


def question(row: MeasuredRow) -> Hashable:
    """Return what of a row decides its points (`RowQuestions.points`): rows with equal questions have equal points."""
    read = [item for item in row.others.items() if item[0] in ("op", "root") or "." in item[0]]
    said = row.collective, row.algorithm, row.protocol, row.ranks, row.nodes, row.size_bytes, row.dtype
    return (*said, row.harness, row.library_version, *read)


class RowQuestions:
    """Turns measured rows into points on the system or topology file called `name`.

    A row's way of launching is kept if the profile knows its cost, or if a fit is to find this cost (`fitting`). A
    profile of another GPU generation is refused, except as the start of a fit.
    """

    def __init__(self, name: str, sets: Sequence[str] = (), fitting: bool = False):
        self.name, self.sets = name, sets
        self.fitting = fitting or any(option.startswith(LAUNCHED) for option in sets)
        topology_sets = [option for option in sets if option.startswith("topology.")]
        spec = scenario_files.topology_spec(name, options=topology_sets)
        self.topology = machine_named(name)
        built = topology_builder.build(spec)
        system = topology_builder.described(spec)
        self.system, self.profile = system, profile_of(system) if system else None
        self.related = fitting  # a fit may begin with the profile of a related GPU
        self.generation = system.gpu.generation if system and system.gpu else None
        self.network = network_of(system) if spec.system else None
        self.nodes = spec.nodes  # of rows that do not say
        self.trays = hosts_of(system) if system and system.counts.get("gpu") else 1
        self.bare = 1 < built.nodes == len(built.ranks)  # hosts with one rank each: rows do not set their number
        self._asked: dict[Hashable, list[Point]] = {}  # points of rows that differ only in size, by question

    def points(self, row: MeasuredRow) -> list[Point]:
        """Return the point for a row, or several points if `sets` (PATH=VALUE) give a key several values. Rows that
        differ only in size have points that do.

        Empty for an unknown algorithm, and for a workload, as a row does not describe its plan. Raises InputError for
        rows and `sets` that make no point, and for a profile that is not for these GPUs.
        """
        key, size = question(dataclasses.replace(row, size_bytes=0)), row.size_bytes
        known = self._asked.get(key, ())
        if not all(0 < size <= MOST_BYTES and size % point.scenario.itemsize == 0 for point in known):
            return self._points(row)  # says what is wrong with this size
        if not known or any(option.startswith("size=") for option in self.sets):
            return self._asked.setdefault(key, self._points(row))
        of_size = [point.scenario.model_copy(update={"size": size}) for point in known]
        return [dataclasses.replace(point, scenario=one) for point, one in zip(known, of_size, strict=True)]

    def _points(self, row: MeasuredRow) -> list[Point]:
        known = ("auto", *registry.names(row.collective))
        nodes, algorithm = self._nodes(row), row.algorithm or "auto"
        if algorithm not in known:
            algorithm = with_schedule_name(row).algorithm or "auto"
            if algorithm in ALGORITHMS and row.collective in COLLECTIVES and row.harness != "library":
                # NCCL runs a ring if NCCL_ALGO names an algorithm that the collective has not
                algorithm = SCHEDULES["ring", row.collective]
        if row.collective == WORKLOAD or algorithm.partition("(")[0] not in known:
            return []
        keys: dict[str, Any] = {
            "name": f"system={self.name}",
            "topology": self.topology if self.bare else {**self.topology, "nodes": nodes},
            "collective": row.collective,
            "algorithm": algorithm,
            "ranks": row.ranks,
            "dtype": row.dtype or "float32",
            "size": f"{row.size_bytes} B",
            **_operator_and_root(row),
            **self._library(row),
        }
        if not self.bare:
            keys["placement"] = {"per_node": max(1, -(-row.ranks // nodes))}
        swept = [f"{column}={text}" for column, text in row.others.items() if column.startswith((*SWEPT, LAUNCHED))]
        asked = Place(f"system={self.name}", 1, 1)
        try:
            points = scenario_files.points(yaml_tree.located(keys, asked), [*swept, *self.sets])
        except InputError as error:  # mistakes in the keys are the row's, so name its place in the table
            placed = [dataclasses.replace(d, place=row.place) if d.place == asked else d for d in error.diagnostics]
            raise InputError(placed) from None
        for profile in dict.fromkeys(point.scenario.profile for point in points if not self.related):
            check_gpus(load_profile(profile), self.system)
        points = list(map(_with_nccl_name, points))
        return points if self.fitting else list(map(_as_known, points))

    def _nodes(self, row: MeasuredRow) -> int:
        """Return the number of nodes of a row. Logs count hosts: those of one NVLink domain are one node of a rack."""
        if row.nodes and self._of_trays(row):
            return self.nodes or -(-row.nodes // self.trays)
        return row.nodes or self.nodes or 1

    def _of_trays(self, row: MeasuredRow) -> bool:
        """Return whether the row's nodes are trays of a rack: more ranks a node would not fit a tray."""
        gpus = self.system.counts.get("gpu", 0) if self.system else 0
        return (
            self.trays > 1 and row.nodes is not None and row.nodes > 1 and row.ranks <= row.nodes * gpus // self.trays
        )

    def other_gpus(self, rows: Sequence[MeasuredRow]) -> str | None:
        """Return a line that names the rows' GPUs if the system has other GPUs; else None."""
        gpu = self.system.gpu if self.system else None
        odd = contradiction(rows, self.name, gpu.model) if gpu else None
        if odd is None:
            return None
        shipped, names = map(topology_builder.load_system, shipped_systems()), named(rows)
        such = [file.name for file in shipped if file.gpu and not ruled_out(names, file.gpu.model)]
        return f"{odd}; for such GPUs: {', '.join(such)}" if such else f"{odd}; no shipped machine has such GPUs"

    def warnings(self, rows: Sequence[MeasuredRow]) -> list[str]:
        """Return a warning if rows name other GPUs, and one if rows put several ranks on a host that has one."""
        odd = self.other_gpus(rows)
        other = [row for row in rows if self.bare and row.nodes not in (None, row.ranks)]
        many = f"{len(other)} of {len(rows)} rows say that several ranks share a node, and {self.name} has one on each"
        trays = [row for row in rows if self._of_trays(row)]
        domain = (
            f"nodes of {len(trays)} of {len(rows)} rows are taken to be hosts of {self.name}, {self.trays} of which"
        )
        joined = f"{domain} share one NVLink domain: as few domains as hold them are predicted"
        return [f"{odd}: check --on"] * bool(odd) + [f"{many}: check --on"] * bool(other) + [joined] * bool(trays)

    def _library(self, row: MeasuredRow) -> dict[str, Any]:
        """Return keys for the row's library: no fitted profile for `p2p` rows, else profile, release, protocol."""
        if row.harness == "p2p":
            return {"profile": UNFITTED}
        if self.profile is None:
            return {}
        library: Library = "rccl" if row.library == "rccl" else "nccl"
        release = nearest(row.library_version, row.collective, library) if row.library_version else None
        forced = {name.upper(): row.others.get(f"env.{name}") for name in ("nccl_algo", "nccl_proto")}
        env = {name: text for name, text in forced.items() if text and row.collective in COLLECTIVES}
        keys = {"profile": self.profile, "library_version": release, "protocol": self._protocol(row), "env": env}
        return {key: value for key, value in keys.items() if value}

    def _protocol(self, row: MeasuredRow) -> str | None:
        """Return the row's protocol if the profile models it, else None."""
        if row.protocol == "pull" and self.profile and load_profile(self.profile).as_nccl:
            return row.protocol
        return row.protocol if self.profile and row.protocol in library(self.profile).protocols else None


def _as_known(point: Point) -> Point:
    """Return the point without its way of launching if the profile does not know its cost; else the point."""
    asked = point.scenario
    if load_profile(asked.profile).knows(asked.launch):
        return point
    return dataclasses.replace(point, scenario=asked.model_copy(update={"launch": Launch()}))


def _with_nccl_name(point: Point) -> Point:
    """Return the point with NCCL's name of its algorithm, if NCCL runs the call; else the point."""
    asked = point.scenario
    if asked.executed_by != "nccl":
        return point
    name = name_of(asked.algorithm, asked.collective)
    return dataclasses.replace(point, scenario=asked.model_copy(update={"algorithm": name}))


def with_schedule_name(row: MeasuredRow) -> MeasuredRow:
    """Return the row with its NCCL algorithm replaced by the name of the schedule that this algorithm runs."""
    if row.harness == "p2p" or row.algorithm is None:
        return row
    schedule = SCHEDULES.get((row.algorithm, row.collective), row.algorithm)  # type: ignore[arg-type]  # any
    return dataclasses.replace(row, algorithm=schedule)


def _operator_and_root(row: MeasuredRow) -> dict[str, Any]:
    """Return the keys `op` and `root` if the row has them, as in tables of `simcoll measure`."""
    contract, op, root = collective(row.collective), row.others.get("op", ""), row.others.get("root", "")
    keys: dict[str, Any] = {"op": op} if contract.reduces and op in OPERATORS else {}
    return {**keys, "root": int(root)} if contract.rooted and root.isdecimal() else keys


# --- rows that cannot be right ---


def suspicious(rows: Sequence[MeasuredRow]) -> list[bool]:
    """Return a flag for each row that something disturbed. Such a row took more than TOO_LONG times as long as a row of
    at least twice its size, with all other columns equal.

    Flags of ENOUGH or more neighbouring sizes with similar times are removed: some networks serve small messages in
    another way. The rule uses only measured times, so that a bad prediction cannot flag a row.
    """
    flags = [False] * len(rows)
    for numbers in grouped(range(len(rows)), list(map(_size_series, rows)).__getitem__).values():
        numbers.sort(key=lambda i: rows[i].size_bytes)
        sizes, times = np.array([(rows[i].size_bytes, rows[i].time_us) for i in numbers], np.float64).T
        least = np.append(np.minimum.accumulate(times[::-1])[::-1], np.inf)  # the shortest time from a row on
        for i, late in zip(numbers, times > TOO_LONG * least[np.searchsorted(sizes, 2 * sizes)], strict=True):
            flags[i] = bool(late)
        for run in _runs(rows, numbers, flags):
            if len({rows[i].size_bytes for i in run}) >= ENOUGH:
                for i in run:
                    flags[i] = False
    return flags


def _runs(rows: Sequence[MeasuredRow], numbers: Sequence[int], flags: Sequence[bool]) -> list[list[int]]:
    """Return the numbers of a series' flagged rows, in lists of neighbours in size with similar times."""
    runs: list[list[int]] = [[]]
    for i in numbers:
        last = rows[runs[-1][-1]].time_us if runs[-1] else rows[i].time_us
        if not flags[i] or max(rows[i].time_us / last, last / rows[i].time_us) > ALIKE:
            runs.append([])
        if flags[i]:
            runs[-1].append(i)
    return runs


def _size_series(row: MeasuredRow) -> tuple[object, ...]:
    """Return a key of the row's series; rows of a series differ only in size and time."""
    keys = ("system", "collective", "algorithm", "protocol", "ranks", "nodes", "dtype", "harness")
    labels = {name: text for name, text in row.others.items() if "." in name or name == "root" or not _is_numeric(text)}
    return (*(getattr(row, key) for key in keys), *sorted(labels.items()))


def _is_numeric(text: str) -> bool:
    """Return whether a cell holds numbers, such as counts or launch times; these differ by size and name no series.

    Swept keys (`measure.buckets`) hold numbers too, but do name a series; the caller knows them by their dot.
    """
    try:
        return bool([float_of(word) for word in text.split()])
    except ValueError:
        return False
