"""Notes below a result: one sentence for each requested thing that the prediction does not cover.

Examples are a release of NCCL newer than all known ones, registered buffers that no modelled kernel uses, nodes without
a rank, and algorithms that `all` excludes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from simcoll.errors import InputError
from simcoll.nccl import algorithm_names
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import registry
from simcoll.topology import topology_builder
from simcoll.topology.machine_files import SystemFile

_UNUSED = (
    "launch.registered changes nothing for {} on {}: symmetric kernels are modelled for all_reduce, all_gather and "
    "reduce_scatter of NCCL {} and later on one node whose switch reduces, and add floats only"
)
_CHOSEN = (
    "launch.registered changes nothing for {}: NCCL takes a symmetric kernel where it has the choice of all algorithms "
    "and protocols"
)


def notes(points: Iterable[Scenario | Point]) -> list[str]:
    """Return the notes for scenarios, without duplicates: on unknown releases, unused registered buffers, unread
    keys of `model`, schedules without a proof, nodes without a rank, schedules that `all` excludes, and queue pairs
    without messages."""
    points = list(points)
    scenarios = [scenario_of(point) for point in points]
    asked = [(each, system) for each in scenarios if (system := _of_gpus(each))]
    found = (note for scenario, system in asked for note in (_release(scenario, system), _windows(scenario, system)))
    others = (note for point in points for note in (_idle(scenario_of(point)), _model(scenario_of(point)), _all(point)))
    whole = map(_one_queue_pair, scenarios)
    return [note for note in dict.fromkeys([*map(_unproved, scenarios), *found, *others, *whole]) if note]


def scenario_of(point: Scenario | Point) -> Scenario:
    """Return the scenario of a point of a sweep; return a scenario unchanged."""
    return point.scenario if isinstance(point, Point) else point


def _idle(scenario: Scenario) -> str | None:
    """Return a note if ranks, which fill one node after the other, leave nodes empty; else None."""
    ranks, nodes = scenario.ranks, scenario.topology.nodes or 1  # None for a topology that lists its devices
    if nodes == 1 or ranks is None or scenario.placement is not None:
        return None
    system = topology_builder.described(scenario.topology)
    taken = -(-ranks // system.counts.get("gpu", 1)) if system else nodes
    if taken >= nodes:
        return None
    said = f"{ranks} {'rank stands' if ranks == 1 else 'ranks stand'} on {taken} of the {nodes} nodes"
    even = f"; `placement: {{per_node: {ranks // nodes}}}` spreads them" if ranks % nodes == 0 else ""
    return said + even


def _model(scenario: Scenario) -> str | None:
    """Return a note if the profile's calls on GPUs read none of the scenario's `model` keys; else None."""
    read = {"copies"} if scenario.executed_by in ("msccl", "p2p") else set[str]()
    unread = [f"model.{name}" for name, value in scenario.model if value is not None and name not in read]
    if scenario.executed_by is None or not unread:
        return None
    cure = "the profiles one-port and ideal read `model`"
    return f"{', '.join(unread)} changes nothing: {scenario.profile} has costs of its own for these calls; {cure}"


def _one_queue_pair(scenario: Scenario) -> str | None:
    """Return a note if messages are too few for the queue pairs of their connections, else None."""
    paths, by = scenario.topology.ecmp, scenario.executed_by
    if not paths or paths.qps_per_connection == 1 or by not in (None, "deepep", "low-latency"):
        return None
    if by is None and scenario.params().chunk:
        return None
    cure = "" if by else "; `model: {chunk: 64 KiB, channels: 16}` cuts it"
    return f"ecmp.qps_per_connection hardly helps: a message is one piece here, which takes one queue pair{cure}"


def _all(point: Scenario | Point) -> str | None:
    """Return a note if `algorithm: all` means NCCL's own algorithms only, as NCCL's calls are modelled; else None."""
    if not (isinstance(point, Point) and point.optional) or point.scenario.executed_by != "nccl":
        return None
    if not set(registry.names(point.scenario.collective)) - {*algorithm_names.names(point.scenario.collective)}:
        return None
    return "`all` means NCCL's own algorithms here; `executor: msccl` runs every schedule, each as one kernel"


def _unproved(scenario: Scenario) -> str | None:
    own = scenario.proof == "off" and scenario.algorithm.endswith(".json")
    return f"`proof: off`: {Path(scenario.algorithm).name} may not produce its collective's result" if own else None


def _of_gpus(scenario: Scenario) -> SystemFile | None:
    """Return the system of a scenario whose calls NCCL or RCCL runs; None for others."""
    system = topology_builder.described(scenario.topology)
    return system if system and system.gpu and scenario.executed_by is not None else None


def _release(scenario: Scenario, system: SystemFile) -> str | None:
    from simcoll.nccl.tuner_constants import newer_chip, newer_than_known

    assert system.gpu is not None
    library: Literal["nccl", "rccl"] = "rccl" if system.gpu.vendor == "amd" else "nccl"
    if scenario.library_version:
        return newer_than_known(scenario.library_version, library)
    return newer_chip(system.gpu.generation, library)


def _windows(scenario: Scenario, system: SystemFile) -> str | None:
    """Return a note if buffers are registered and no symmetric kernel uses them; else None."""
    if not scenario.launch.registered or scenario.workload:
        return None
    from simcoll.nccl import symmetric_kernels
    from simcoll.nccl.communicator import communicator
    from simcoll.nccl.environment import EVERYTHING

    nodes, gpus = topology_builder.nodes_of(scenario.topology), system.counts.get("gpu", 1)
    several = (scenario.ranks or nodes * gpus) > gpus
    copies = scenario.collective == "all_gather"
    served = not several and (copies or symmetric_kernels.adds(scenario.dtype, scenario.op))
    with contextlib.suppress(InputError):  # the prediction reports the mistake
        release = scenario.library_version
        served = served and symmetric_kernels.serve(
            communicator(system, ranks=scenario.ranks), scenario.collective, release
        )
    if not served:
        where = f"{nodes} nodes" if several else system.name
        return _UNUSED.format(scenario.collective, where, ".".join(map(str, symmetric_kernels.SINCE)))
    protocol, left = "auto" if scenario.protocol == "none" else scenario.protocol, scenario.env.selection
    if symmetric_kernels.may_be_taken(scenario.algorithm, protocol, left):
        return None
    named = [name for name in (scenario.algorithm, protocol) if name != "auto"]
    return _CHOSEN.format(" ".join([*named, *([f"env ({scenario.env})"] if left != EVERYTHING else [])]))
