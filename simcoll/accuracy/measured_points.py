"""Measured rows as questions: the point of a scenario that a row measured, on a topology that the user names."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from simcoll.config import yaml_tree
from simcoll.errors import Diagnostic, InputError, Place
from simcoll.formats.measured import WORKLOAD, MeasuredRow
from simcoll.nccl.call import OURS
from simcoll.nccl.tuner_constants import nearest
from simcoll.prediction.lowering import network_of
from simcoll.scenario import scenario
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Point
from simcoll.schedule import registry
from simcoll.schedule.collectives import collective
from simcoll.schedule.group_contracts import OPERATORS
from simcoll.schedule.names import Protocol
from simcoll.topology import systems
from simcoll.workload.spec import Composition, Ddp

PS_PER_US = 10**6
SWEPT = ("topology.", "model.")  # columns of measured tables that name a key of the scenario
LAUNCHED = "launch."  # those that say how calls were launched


def as_measured(point: Point, row: MeasuredRow) -> Point:
    """The point of a workload with computations that take what they took in a measured row (column `computed_us`: see
    `real.works`), so that only what is sent is left to predict; the same point where the row does not tell.

    Raises InputError for a row that tells of other computations than the workload has.
    """
    told, spec = row.others.get("computed_us"), point.scenario.workload
    if not told or not isinstance(spec, Ddp | Composition):
        return point
    try:
        times = [round(float(text) * PS_PER_US) for text in told.split()]
        changes = _computing(spec, times)
    except ValueError:
        what = f"computed_us tells of other computations than {spec.template} has"
        raise InputError([Diagnostic(what, "compare with the scenario that was measured", "", row.place)]) from None
    changed = {"workload": spec.model_copy(update=changes)}
    return dataclasses.replace(point, scenario=point.scenario.model_copy(update=changed))


def _computing(spec: Ddp | Composition, times: Sequence[int]) -> dict[str, Any]:
    """The keys of a workload that say what its computations take."""
    if isinstance(spec, Composition):
        return {"local": round(statistics.mean(times))}
    forward, *backward, optimizer = times
    alike = [layer for layer in spec.layers or () for _ in range(layer.times)]
    layers = [
        layer.model_copy(update={"times": 1, "forward": 0, "backward": time})
        for layer, time in zip(alike, backward, strict=True)
    ]
    return {"forward": forward, "layers": tuple(layers), "optimizer": optimizer}


class Asking:
    """Makes questions of rows: `name` is a system's, or the path of a topology file. What a row says of how it was
    launched counts where the profile knows what that costs, or to find out (`fitting`)."""

    def __init__(self, name: str, sets: Sequence[str] = (), fitting: bool = False):
        self.name, self.sets = name, sets
        self.fitting = fitting or any(option.startswith(LAUNCHED) for option in sets)
        topology_sets = [option for option in sets if option.startswith("topology.")]
        spec = scenario.topology_spec(name, assignments=topology_sets)
        self.topology = {"file": spec.file} if spec.file else {"system": spec.system}
        built = systems.build(spec)
        self.profile = _profile(spec)
        self.network = network_of(spec.system) if spec.system else None
        self.bare = 1 < built.nodes == len(built.ranks)  # hosts, and not machines of which a row says how many

    def points(self, row: MeasuredRow) -> list[Point]:
        """The point of a row, or several if `sets` sweep; none for an algorithm that is not known here, nor for a
        workload, of which a row does not tell enough.

        Raises InputError for rows and `sets` that make no point.
        """
        known = ("auto", *registry.names(row.collective))
        nodes, algorithm = row.nodes or 1, row.algorithm or "auto"
        if algorithm not in known:
            algorithm = ours(row).algorithm or "auto"
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
            **_said(row),
            **self._library(row),
        }
        if not self.bare:
            keys["placement"] = {"per_node": max(1, -(-row.ranks // nodes))}
        swept = [f"{column}={text}" for column, text in row.others.items() if column.startswith((*SWEPT, LAUNCHED))]
        found = scenario.points(yaml_tree.located(keys, Place(f"system={self.name}", 1, 1)), [*swept, *self.sets])
        return found if self.fitting else list(map(_as_known, found))

    def _library(self, row: MeasuredRow) -> dict[str, Any]:
        """What rows of the library's own collectives are predicted with: what its calls cost here, and its release."""
        if row.harness == "p2p" or self.profile is None:
            return {}
        release = nearest(row.library_version, row.collective) if row.library_version else None
        found = {"profile": self.profile, "library_version": release, "protocol": self._protocol(row)}
        return {key: value for key, value in found.items() if value}

    def _protocol(self, row: MeasuredRow) -> str | None:
        """What the row says was used, where calls are made as NCCL makes them."""
        modelled = self.profile is not None and load_profile(self.profile).kernels is not None
        return row.protocol if modelled and row.protocol in get_args(Protocol) else None


def _as_known(point: Point) -> Point:
    """The point, without a way of launching of which its profile says nothing."""
    asked = point.scenario
    if load_profile(asked.profile).knows(asked.launch):
        return point
    return dataclasses.replace(point, scenario=asked.model_copy(update={"launch": Launch()}))


def ours(row: MeasuredRow) -> MeasuredRow:
    """With NCCL's algorithm by the name that ours has."""
    if row.harness == "p2p" or row.algorithm is None:
        return row
    named: dict[str, str] = {
        theirs: ours for (theirs, collective), ours in OURS.items() if collective == row.collective
    }
    return dataclasses.replace(row, algorithm=named.get(row.algorithm, row.algorithm))


def _profile(spec: systems.TopologySpec) -> str | None:
    """What calls of the library cost there, if the system or the file says it."""
    if spec.file:
        tree = yaml_tree.read(Path(spec.file))
        if tree.get("devices") is None and tree.get("system") is None:
            return None
    name = spec.system or spec.file
    return systems.load_system(name).profile if name else None


def _said(row: MeasuredRow) -> dict[str, Any]:
    """Operator and root, where our own tables say them."""
    contract, op, root = collective(row.collective), row.others.get("op", ""), row.others.get("root", "")
    found: dict[str, Any] = {"op": op} if contract.reduces and op in OPERATORS else {}
    return {**found, "root": int(root)} if contract.rooted and root.isdecimal() else found
