"""The one place that knows how a call is run: as a plain schedule, at best or as its parameters say, or as kernels run
it, by NCCL or another executor.

The profile decides, and the scenario's `executor` where the profile has kernels.
"""

from __future__ import annotations

from typing import Final

from simcoll.prediction._ideal_call import IdealExecutor
from simcoll.prediction._kernel_call import KernelExecutor, MessagesExecutor
from simcoll.prediction._nccl_channel import NcclExecutor, network_of
from simcoll.prediction._plain_call import PlainCall, PlainExecutor
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Topology

__all__ = ["PlainCall", "PlainExecutor", "executor", "library", "lower", "network_of"]

_BESIDE_NCCL: Final[dict[str | None, type[PlainExecutor]]] = {"msccl": KernelExecutor, "p2p": MessagesExecutor}


def executor(scenario: Scenario) -> PlainExecutor:
    """The executor of a scenario's call; raises InputError for a profile that cannot be read."""
    beside = _BESIDE_NCCL.get(scenario.executed_by)
    return beside(load_profile(scenario.profile)) if beside else library(scenario.profile)


def library(profile: str) -> PlainExecutor:
    """The executor of the library's own calls with a profile. Raises like `executor`."""
    known = load_profile(profile)
    if known.as_nccl:
        return NcclExecutor(known)
    return IdealExecutor(known) if known.bound else PlainExecutor(known)


def lower(scenario: Scenario, topology: Topology | None = None) -> PlainCall:
    """The call of a scenario as engines run it, on rated links of a `topology` of one's own or of the scenario's.

    Raises RefusedError for what cannot be run so, InputError for a wrong placement.
    """
    return executor(scenario).lower(scenario, topology)
