"""The one place that knows how a call is run: as a plain schedule, at best or as its parameters say, or as kernels run
it, by NCCL or another executor.

The profile decides, and the scenario's `executor` where the profile has kernels. Executors are imported when a call
needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcoll.prediction._plain_call import PlainCall, PlainExecutor
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Topology
from simcoll.workload.plan import CollectiveCall

__all__ = ["PlainCall", "PlainExecutor", "alone", "executor", "library", "lower"]


def executor(scenario: Scenario) -> PlainExecutor:
    """The executor of a scenario's call; raises InputError for a profile that cannot be read."""
    by = scenario.executed_by
    if by not in ("msccl", "p2p"):
        return library(scenario.profile)
    from simcoll.prediction._kernel_executor import KernelExecutor, MessagesExecutor

    return (KernelExecutor if by == "msccl" else MessagesExecutor)(load_profile(scenario.profile))


def library(profile: str) -> PlainExecutor:
    """The executor of the library's own calls with a profile. Raises like `executor`."""
    known = load_profile(profile)
    if known.as_nccl:
        from simcoll.prediction._nccl_channel import NcclExecutor

        return NcclExecutor(known)
    if known.bound:
        from simcoll.prediction._ideal_call import IdealExecutor

        return IdealExecutor(known)
    return PlainExecutor(known)


def lower(scenario: Scenario, topology: Topology | None = None) -> PlainCall:
    """The call of a scenario as engines run it, on rated links of a `topology` of one's own or of the scenario's.

    Raises RefusedError for what cannot be run so, InputError for a wrong placement.
    """
    return executor(scenario).lower(scenario, topology)


def alone(scenario: Scenario, places: Sequence[str], call: CollectiveCall, ranks: Sequence[int]) -> Scenario:
    """The scenario of a call of a workload by itself, by some of the ranks at `places`."""
    devices = tuple(places[rank] for rank in ranks)
    own: dict[str, Any] = {
        "workload": None,
        "faults": (),
        "variability": None,
        "replications": None,
        "collective": call.collective,
        "algorithm": call.algorithm,
        "protocol": call.protocol or scenario.protocol,
        "size": call.nbytes,
        "root": call.root,
        "weights": call.weights,
        "placement": devices,
        "ranks": None,
        "groups": scenario.groups if devices == tuple(places) else None,
    }
    return scenario.model_copy(update=own)
