"""Schedules that are made for a point: `algorithm: synthesized`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np

from simcoll.errors import RefusedError
from simcoll.formats.schedules.schedule_json import MadeSchedule
from simcoll.prediction.fastest_variant import BY_PORT
from simcoll.prediction.placed_topology import beyond_rated, placed, rated_topology, served_by, with_rates
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.schedule import Schedule
from simcoll.synthesis.synthesize import MOST_PIECES, Plan, at_once, plan_of, plans_of
from simcoll.topology.graph import Topology

FEW: Final = 5_000  # transfers of a schedule, up to which more pieces are tried than a plan's estimate asks for
ALL_PAIRS: Final = 20_000  # messages, up to which all ranks may send to all others
LONGER: Final = 2.0  # times the least estimate, up to which a schedule is simulated


def network_of(scenario: Scenario, topology: Topology | None = None) -> tuple[Topology, tuple[str, ...]]:
    """Return the network for which a schedule is made, and the device of each rank. Links have their rated bandwidths,
    or those of the profile if they are higher."""
    rated = topology or rated_topology(scenario)
    return served_by(rated, beyond_rated(scenario, rated)), placed(scenario, rated)


def plans(scenario: Scenario, topology: Topology | None = None, max_trees: int = 0, served: bool = True) -> list[Plan]:
    """Return the plan of trees that is estimated to be quickest, and one of fewest steps, for an all_reduce also one of
    a single step. Where switches add, also one with one tree of a root, and except under the profile `ideal` one in
    which they do not: not all kernels can use that. Unless `served`, no switch adds, and all links lie on the
    network's own routes between ranks. Raises RefusedError for a point that no schedule can be made for."""
    for key in ("weights", "subgroups"):
        if getattr(scenario, key):
            raise RefusedError(f"schedules are not synthesised with {key}; leave them out, or name an algorithm")
    network, places = network_of(scenario, topology)
    network = network if served else _on_routes(network, places)
    asked, root, nbytes = (scenario.collective, network, places), scenario.root, scenario.nbytes

    def quickest(by_switches: bool) -> Plan:
        if max_trees:
            return plan_of(*asked, root=root, max_trees=max_trees, served=by_switches)
        found = plans_of(*asked, root=root, served=by_switches)
        return min(found, key=lambda plan: plan.time_ps(nbytes, plan.pieces(nbytes)))

    found = [quickest(served), plan_of(*asked, root=root, few_steps=True)]
    if scenario.collective == "all_reduce" and len(places) ** 2 <= ALL_PAIRS:
        found.append(at_once(found[1]))
    if len(found[0].graph.agents):
        found.append(plan_of(*asked, root=root, max_trees=1))
        found += [] if load_profile(scenario.profile).bound else [quickest(False)]
    return found


def _on_routes(network: Topology, places: Sequence[str]) -> Topology:
    """Return the network without the bandwidth of links that lie on no route between two of the devices `places`."""
    used = np.zeros(len(network.bandwidths), bool)
    for src, dst in itertools.permutations(places, 2):
        used[list(network.route(src, dst))] = True
    return with_rates(network, np.where(used, network.bandwidths, 0), network.latencies)


def options(
    scenario: Scenario, topology: Topology | None = None, max_trees: int = 0, served: bool = True
) -> list[tuple[Plan, int, Schedule, Scenario]]:
    """Return the schedules of which the fastest answers `algorithm: synthesized` at the scenario's size: for each its
    plan, its number of pieces, the schedule, and the scenario that names it. Those estimated at more than LONGER times
    the least are left out. `served`: see `plans`."""
    found = plans(scenario, topology, max_trees, served)
    bound = load_profile(scenario.profile).bound
    if bound:  # the schedule itself has what this profile would search for
        given = scenario.model.model_dump(exclude_none=True)
        scenario = scenario.model_copy(
            update={"model": scenario.model.model_copy(update={"copies": 1} | BY_PORT | given)}
        )
    adding = [plan for plan in found if len(plan.graph.agents) and not bound]  # not all kernels can use them
    kept = [one for group in (adding, [each for each in found if each not in adding]) for one in _kept(group, scenario)]
    made = [(plan, count, plan.schedule(count)) for plan, count in kept]
    return [(*each, scenario.model_copy(update={"algorithm": MadeSchedule.of(each[2])})) for each in made]


def _kept(plans: Sequence[Plan], scenario: Scenario) -> list[tuple[Plan, int]]:
    """Return plans and numbers of pieces that are estimated at up to LONGER times the least."""
    tried = [(plan, count) for plan in plans for count in _counts(plan, scenario.nbytes)]
    times = [plan.time_ps(scenario.nbytes, count) for plan, count in tried]
    return [one for one, time_ps in zip(tried, times, strict=True) if time_ps <= LONGER * min(times)]


def _counts(plan: Plan, nbytes: int) -> Sequence[int]:
    """Return numbers of pieces to try. Costs of messages, which plans do not know, ask for fewer pieces. Where switches
    add, trees are low: they wait little for each other, and more pieces than the plan asks for may be better."""
    best = plan.pieces(nbytes)
    tried = [best, best // 4, best // 16]
    if len(plan.graph.agents):
        more = min(16 * best, MOST_PIECES, FEW // len(plan.moves), nbytes // plan.chunks)
        tried += [best // 2, more, more // 4]
    return sorted({max(1, each) for each in tried} | {1})
