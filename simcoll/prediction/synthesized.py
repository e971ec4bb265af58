"""Schedules that are made for a point: `algorithm: synthesized`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcoll.errors import RefusedError
from simcoll.formats.schedules.schedule_json import MadeSchedule
from simcoll.prediction.fastest_variant import BY_PORT
from simcoll.prediction.placed_topology import beyond_rated, placed, rated_topology, served_by
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.schedule import Schedule
from simcoll.synthesis.synthesize import Plan, plan_of
from simcoll.topology.graph import Topology

LONGER: Final = 2.0  # times the least estimate, up to which a schedule is simulated


def network_of(scenario: Scenario, topology: Topology | None = None) -> tuple[Topology, tuple[str, ...]]:
    """Return the network for which a schedule is made, and the device of each rank. Links have their rated bandwidths,
    or those of the profile if they are higher."""
    rated = topology or rated_topology(scenario)
    return served_by(rated, beyond_rated(scenario, rated)), placed(scenario, rated)


def plans(scenario: Scenario, topology: Topology | None = None, max_trees: int = 0) -> list[Plan]:
    """Return the plan with the best throughput and the one with the fewest steps. Raises RefusedError for a point that
    no schedule can be made for."""
    for key in ("weights", "subgroups"):
        if getattr(scenario, key):
            raise RefusedError(f"schedules are not synthesised with {key}; leave them out, or name an algorithm")
    network, places = network_of(scenario, topology)
    return [
        plan_of(scenario.collective, network, places, root=scenario.root, max_trees=max_trees, few_steps=few)
        for few in (False, True)
    ]


def options(
    scenario: Scenario, topology: Topology | None = None, max_trees: int = 0
) -> list[tuple[Plan, int, Schedule, Scenario]]:
    """Return the schedules of which the fastest answers `algorithm: synthesized` at the scenario's size: for each its
    plan, its number of pieces, the schedule, and the scenario that names it. Those estimated at more than LONGER times
    the least are left out."""
    found = plans(scenario, topology, max_trees)
    if load_profile(scenario.profile).bound:  # the schedule itself has what this profile would search for
        given = scenario.model.model_dump(exclude_none=True)
        scenario = scenario.model_copy(
            update={"model": scenario.model.model_copy(update={"copies": 1} | BY_PORT | given)}
        )
    tried = [(plan, count) for plan in found for count in _counts(plan, scenario.nbytes)]
    least = min(plan.time_ps(scenario.nbytes, count) for plan, count in tried)
    kept = [(plan, count) for plan, count in tried if plan.time_ps(scenario.nbytes, count) <= LONGER * least]
    made = [(plan, count, plan.schedule(count)) for plan, count in kept]
    return [(*each, scenario.model_copy(update={"algorithm": MadeSchedule.of(each[2])})) for each in made]


def _counts(plan: Plan, nbytes: int) -> Sequence[int]:
    """Return numbers of pieces to try. Costs of messages, which plans do not know, ask for fewer pieces."""
    best = plan.pieces(nbytes)
    return sorted({best, max(1, best // 4), max(1, best // 16), 1})
