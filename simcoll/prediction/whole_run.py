"""Runs that have all transfers of a schedule in memory at once, and their refusal before a topology is built."""

from __future__ import annotations

import math

from simcoll.engine.binding import check_written
from simcoll.errors import SimcollError
from simcoll.formats.schedules import schedule_json
from simcoll.scenario.placement import Placement
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import algorithms, registry
from simcoll.schedule.streamed import StreamedSchedule
from simcoll.topology.systems import described


def is_whole(scenario: Scenario) -> bool:
    """Whether no shortcut may run the schedule of a scenario part by part."""
    plainly = scenario.engine == "event" or scenario.shortcuts == "off"
    return plainly or bool(scenario.striking) or scenario.weights is not None


def check_whole(scenario: Scenario) -> None:
    """Raise InputError where a run has more transfers than memory holds, if the scenario's numbers alone say so: a
    topology of a million hosts takes long to build."""
    if is_whole(scenario) and (source := _schedule_of(scenario)):
        check_written(source)


def _schedule_of(scenario: Scenario) -> StreamedSchedule | None:
    """The schedule, where it is one of the registry that hangs on the number of ranks alone."""
    chosen, ranks = scenario.algorithm, scenario.ranks or _places(scenario)
    if scenario.workload or scenario.executed_by or schedule_json.is_file(chosen) or not ranks:
        return None
    try:
        if registry.find(scenario.collective, chosen)[0].uses_groups:
            return None
        return algorithms.stream(scenario.collective, chosen, ranks)
    except SimcollError:  # `auto`; what is wrong with others is said where they are made
        return None


def _places(scenario: Scenario) -> int:
    """The devices that ranks take, in as far as the scenario's own numbers say; 0 where they do not."""
    spec, placement = scenario.topology, scenario.placement
    if isinstance(placement, tuple):
        return len(placement)
    if spec.hosts or spec.dims:
        return spec.hosts or math.prod(spec.dims or ())
    machine = described(spec)
    if machine is None or not isinstance(machine.devices, dict):
        return 0
    gpus = machine.devices.get("gpu", 0)
    return (spec.nodes or 1) * (min(gpus, placement.per_node) if isinstance(placement, Placement) else gpus)
