"""The one place that knows whether a call is run as a plain schedule, at best or as its parameters say, or as NCCL's
kernels: its profile decides."""

from __future__ import annotations

from simcoll.prediction._ideal_call import IdealExecutor
from simcoll.prediction._nccl_channel import NcclExecutor, network_of
from simcoll.prediction._plain_call import PlainCall, PlainExecutor
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Topology

__all__ = ["PlainCall", "PlainExecutor", "executor", "lower", "network_of"]


def executor(profile: str) -> PlainExecutor:
    """The executor of a profile's calls; raises InputError for a profile that cannot be read."""
    known = load_profile(profile)
    if known.as_nccl:
        return NcclExecutor(known)
    return IdealExecutor(known) if known.bound else PlainExecutor(known)


def lower(scenario: Scenario, topology: Topology | None = None) -> PlainCall:
    """The call of a scenario as engines run it, on rated links of a `topology` of one's own or of the scenario's.

    Raises RefusedError for what cannot be run so, InputError for a wrong placement.
    """
    return executor(scenario.profile).lower(scenario, topology)
