"""Copies of a schedule that a kernel runs on several nodes, in the orders of `copy_orders`: a schedule may leave most
NICs unused, as a ring does that leaves each node at one rank."""

from __future__ import annotations

from typing import Final

import numpy as np

from simcoll.config.arrays import distinct
from simcoll.engine.binding import written_out
from simcoll.errors import RefusedError
from simcoll.formats.schedules import schedule_json
from simcoll.prediction._schedule_source import copy_orders, source_of
from simcoll.prediction.placing import placed, rated_topology
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Topology

MOST_RUN: Final = 100_000  # transfers of all copies: some tenths of a second


def in_rail_copies(scenario: Scenario, topology: Topology | None) -> list[Scenario]:
    """The scenario, or where its schedule leaves ranks without traffic between nodes, with one copy and with as many as
    use all rails. A program of a file, or with its number of copies, stays as it is."""
    rated = topology or rated_topology(scenario)
    places = placed(scenario, rated)
    node = [rated.node_of(place) for place in places]
    if scenario.model.copies or len(set(node)) < 2 or schedule_json.is_file(scenario.algorithm):
        return [scenario]
    try:
        source, _ = source_of(scenario, rated, places)
    except RefusedError:  # which running it says
        return [scenario]
    orders = copy_orders(scenario, rated, places)
    if len(orders) < 2 or source.transfers * len(orders) > MOST_RUN:
        return [scenario]
    schedule = written_out(source)
    known = np.array([-1 if each is None else each for each in node])
    between = (schedule.src < source.n) & (schedule.dst < source.n)  # agents serve the ranks of their node
    src, dst = schedule.src[between], schedule.dst[between]
    if len(distinct(src[known[src] != known[dst]])) == len(places):
        return [scenario]
    counts = (1, len(orders))
    models = [scenario.model.model_copy(update={"copies": copies}) for copies in counts]
    return [scenario.model_copy(update={"model": model}) for model in models]
