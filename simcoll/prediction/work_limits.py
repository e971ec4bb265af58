"""Estimate the memory and time of a point from its numbers alone, and refuse it before its topology is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from simcoll.config.machine_limits import check_memory, check_time
from simcoll.engine.binding import BYTES
from simcoll.engine.streamed import check_steps, has_single_peers, loop_sizes
from simcoll.errors import SimcollError
from simcoll.formats.schedules import schedule_json
from simcoll.scenario.key_types import Placement
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import algorithms, registry
from simcoll.schedule.registry import Groups
from simcoll.schedule.schedule import StreamedSchedule
from simcoll.topology.topology_builder import described, leaf_width, nodes_of
from simcoll.units import format_count

FEW: Final = 256, 1024  # rank counts from which growth is extrapolated: squares, as group sizes are square roots
FEWER: Final = 32, 128  # rank counts for estimates of many schedules
SMALL: Final = 8192  # most ranks for which the topology is built before the work is estimated, as shortcuts may apply
COUNTED: Final = 10_000_000  # rows up to which a schedule is made and counted, in half a second
GROWN: Final = 2  # an estimate is at most so many times too large: for n log n 1.5 times, from 1024 to a million ranks
SIMULATED_S: Final = 1e-5  # CPU seconds per rank of a run: few choices of recommend take less
SOLVED_S: Final = 2e-8  # CPU seconds per transfer and per rank that sends at the same time
APART: Final = ("single-switch", "full-mesh")  # fabrics on which messages to different ranks never meet
ROW_BYTES: Final = 150  # bytes of memory per row of a step while routes are found

CURE: Final = "ask for fewer ranks"


class ScheduleWork(NamedTuple):
    """The size of a schedule in rows, each of which moves one slot (`by_slot`): the rows of all its transfers; those of
    all its parts, where a repeated step counts once; those of its largest part. Dependences are found slot by slot."""

    transfers: int
    rows: int
    largest: int


def check_work(scenario: Scenario) -> None:
    """Raise InputError if the scenario's numbers alone show that a run needs too much memory or time. This check comes
    first because a topology of a million hosts takes long to build."""
    ranks = ranks_of(scenario)
    if ranks <= FEW[1] or (make := _maker(scenario, ranks)) is None:
        return
    try:
        # `whole`: no shortcut may run the schedule part by part. Kernels have a channel for each peer, and only ranks
        # with a single peer can be replayed so.
        plainly = scenario.engine == "event" or scenario.shortcuts == "off" or scenario.weights is not None
        some = make(FEW[0])
        several = scenario.executed_by is not None and not has_single_peers(some)
        whole = plainly or bool(scenario.striking) or several
        found = grown(make, ranks)
        light = ranks <= SMALL and not whole
        few = found.rows <= COUNTED
        found = _counted(make(ranks)) if few and not light else found
    except SimcollError:  # making the schedule reports its errors
        return
    if light:
        _check_meeting(scenario, found.transfers, ranks)
        return
    said, key = "" if few else "more than ", _key(scenario)
    if whole:
        check_memory(found.transfers * BYTES, f"{said}{format_count(found.transfers)} transfers", CURE, key)
    check_memory(found.largest * ROW_BYTES, f"{said}{format_count(found.largest)} messages of one step", CURE, key)
    check_steps(0, found.rows, key)
    check_steps(_loops(scenario, make(ranks)) * found.transfers, key=key)


def _check_meeting(scenario: Scenario, transfers: int, ranks: int) -> None:
    """Raise InputError if it would take too long to compute the rates of transfers that share trunks."""
    spec = scenario.topology
    if spec.hosts and spec.fabric not in APART and scenario.params().sharing == "fair":
        what = f"more than {format_count(transfers)} messages that meet on links"
        check_time(transfers * ranks * SOLVED_S, what, f"{CURE}, or for sharing: fifo", _key(scenario))


def _key(scenario: Scenario) -> str:
    """Return the key that sets the number of ranks, e.g. `topology.hosts`, for error messages."""
    named = (name for name in ("hosts", "nodes") if getattr(scenario.topology, name))
    return "ranks" if scenario.ranks else ".".join(["topology", *named])


def check_runs(rank_runs: int, what: str, cure: str) -> None:
    """Raise InputError if simulations take too long that together have `rank_runs` ranks."""
    check_time(rank_runs * SIMULATED_S, what, cure, "algorithm")


def ranks_of(scenario: Scenario) -> int:
    """Return the number of ranks; 0 if the scenario's numbers do not give it without the topology."""
    return scenario.ranks or _places(scenario)


def grown(make: Callable[[int], StreamedSchedule], ranks: int, of: tuple[int, int] = FEW) -> ScheduleWork:
    """Return a lower estimate of the work for `ranks` ranks, by a power law through the rank counts `of`."""
    few, more = map(make, of)
    if few.n == more.n:  # one group of the asked size is larger than both
        return _counted(more)
    growth, times = math.log(more.n / few.n), ranks / more.n
    pairs = list(zip(_counted(few), _counted(more), strict=True))
    return ScheduleWork(*(int(b * times ** (math.log(max(1, b) / max(1, a)) / growth) / GROWN) for a, b in pairs))


def least_rows(scenario: Scenario) -> int:
    """Return a lower estimate of the rows of the scenario's schedule, from fewer ranks; 0 if there is no estimate."""
    ranks = ranks_of(scenario)
    if ranks <= FEWER[1] or (make := _maker(scenario, ranks)) is None:
        return 0
    try:
        return grown(make, ranks, FEWER).rows
    except SimcollError:  # making the schedule reports its errors
        return 0


def _counted(source: StreamedSchedule) -> ScheduleWork:
    transfers, rows, largest = 0, 0, 0
    for part in source.make():  # parts are made one by one and dropped at once
        moved = int(part.first.count.sum())
        transfers, rows, largest = transfers + moved * part.steps, rows + moved, max(largest, moved)
    return ScheduleWork(transfers, rows, largest)


def _loops(scenario: Scenario, source: StreamedSchedule) -> int:
    """Return the number of loops over the buffer; 1 if the size cannot be divided, which the run reports."""
    try:
        return len(loop_sizes(source, scenario.nbytes, scenario.itemsize, scenario.params().chunk))
    except SimcollError:
        return 1


def _maker(scenario: Scenario, ranks: int) -> Callable[[int], StreamedSchedule] | None:
    """Return a function that makes the schedule for about n ranks (as groups allow). Return None if the schedule is not
    in the registry, or depends on more than the number of ranks."""
    chosen, collective = scenario.algorithm, scenario.collective
    if scenario.workload or scenario.executed_by == "nccl":  # NCCL's calls run one channel for all
        return None
    if schedule_json.is_file(chosen) or scenario.subgroups:
        return None
    try:
        entry = registry.find(collective, chosen)[0]
    except SimcollError:  # `auto`; making other schedules reports their errors
        return None
    size = _group_size(scenario, ranks) if entry.uses_groups else 0
    if size is None:
        return None

    def make(n: int) -> StreamedSchedule:
        groups = _groups(n, size, ranks) if size else ()
        n = len(registry.flat(groups)) or n
        return algorithms.stream(collective, chosen, n, groups=groups, agents=max(1, len(groups)))

    return make


def _group_size(scenario: Scenario, ranks: int) -> int | None:
    """Return the ranks of a group; 0 if the registry's rule forms groups, None if only the topology tells the size."""
    spec, asked = scenario.topology, scenario.groups
    if isinstance(asked, int):
        return max(1, ranks // asked)
    if asked is not None or spec.dims or spec.file or spec.fabric == "ring" or spec.nodes_per_leaf:
        return None
    if spec.hosts:
        return leaf_width(spec) if spec.fabric == "fat-tree" else 0
    return max(1, ranks // spec.nodes) if spec.nodes else None


def _groups(n: int, size: int, ranks: int) -> Groups:
    """Return groups of about `n` ranks in all, for an estimate of groups of `size` among `ranks` ranks. Of group size
    and group count the smaller one is kept."""
    count = ranks // size
    if size < count:
        count = max(2, n // size)
    else:
        size = max(1, n // count)
    return tuple(tuple(range(i * size, (i + 1) * size)) for i in range(count))


def _places(scenario: Scenario) -> int:
    """Return the number of devices with ranks; 0 if the scenario's numbers do not give it without the topology."""
    spec, placement = scenario.topology, scenario.placement
    if isinstance(placement, tuple):
        return len(placement)
    if spec.hosts or spec.dims:
        return spec.hosts or math.prod(spec.dims or ())
    machine = described(spec)
    if machine is None or not isinstance(machine.devices, dict):
        return 0
    gpus = machine.devices.get("gpu", 0)
    return nodes_of(spec) * (min(gpus, placement.per_node) if isinstance(placement, Placement) else gpus)
