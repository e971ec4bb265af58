"""A time below which the prediction of a point is not, found in a small part of the time that the prediction takes."""

from __future__ import annotations

from typing import Final

from simcoll.engine import least_time
from simcoll.errors import RefusedError
from simcoll.prediction._schedule_source import agents_of, source_of
from simcoll.prediction.lowering import executor
from simcoll.scenario.profile import CostSetting, costs_of, load_profile
from simcoll.scenario.scenario import Scenario

NOT_KNOWN: Final = 0


def least_ps(scenario: Scenario) -> int:
    """The least time of a call in ps. It is 0 where it would be no less work than the time: for NCCL's own calls, of
    which one channel stands for all, for calls at best, and for workloads; and where faults, weights or buckets change
    what is run. Raises what the prediction raises before it runs, but for what a proof finds."""
    profile = load_profile(scenario.profile)
    quick = scenario.workload or scenario.executed_by == "nccl" or profile.bound
    if quick or scenario.striking or scenario.weights is not None or scenario.subgroups or scenario.in_buckets:
        return NOT_KNOWN
    unproved, costs = scenario.model_copy(update={"proof": "off"}), costs_of(profile)
    found: list[int] = []
    refused: list[RefusedError] = []
    for option in executor(scenario).alternatives(unproved):
        try:
            found.append(_of_option(option, costs))
        except RefusedError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return min(found)


def _of_option(scenario: Scenario, costs: CostSetting) -> int:
    call = executor(scenario).lower(scenario)
    point, network = call.point(costs), call.network(costs)
    source, _ = source_of(point, network, call.places)
    devices = (*call.places, *agents_of(point, network, call.places)[: source.agents])
    sized = point.params(), point.nbytes, point.itemsize
    return least_time.least_ps(source, network, devices, *sized) + call.launch_ps(costs)


def grows(scenario: Scenario) -> bool:
    """Whether the least time of a call is that of a larger one, too: what is run does not depend on its size."""
    return executor(scenario).tunable and not scenario.params().chunk
