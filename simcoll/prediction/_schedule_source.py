"""Make and prove the schedule of a point, for its groups and sub-groups, once for all points that run the same."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Sequence
from typing import Final, Literal

from simcoll.config.lru import LruCache
from simcoll.engine.binding import check_written, written_out
from simcoll.engine.run import MOST_HELD
from simcoll.errors import RefusedError, wrong
from simcoll.formats.schedules import schedule_json
from simcoll.prediction._copy_orders import orders_of
from simcoll.prediction.placing import machine_of
from simcoll.prediction.work import check_work, is_whole
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import algorithms, copies, proof, registry
from simcoll.schedule.collectives import collective
from simcoll.schedule.copies import Order, in_copies
from simcoll.schedule.ir import AnySchedule, Schedule, StreamedSchedule, side_by_side
from simcoll.schedule.proof import Proof
from simcoll.schedule.registry import Groups
from simcoll.topology.graph import Topology

FULL_PROOF: Final = 1024  # ranks up to which a schedule is proved in full unless the scenario says otherwise

Proved = tuple[AnySchedule, str]
_RECENT: Final[LruCache[Proved]] = LruCache(20_000_000, lambda proved: proved[0].rows)
_PLACED: Final[LruCache[Proved]] = LruCache(20_000_000, lambda proved: proved[0].rows)
_ORDERS: Final[LruCache[tuple[Order, ...]]] = LruCache(2_000_000, lambda orders: sum(map(len, orders)))


def source_of(scenario: Scenario, topology: Topology, places: Sequence[str]) -> Proved:
    """The proved schedule or stream, and how it was proved."""
    if schedule_json.is_file(scenario.algorithm) or scenario.copies != 1:  # which depends on more
        return _source(scenario, topology, places)
    asked = (scenario.collective, scenario.algorithm)
    more = (scenario.root, scenario.groups, scenario.subgroups, scenario.proof)
    where = (*asked, *more, _maker(*asked), topology.layout, tuple(places))
    return _PLACED.get(where, lambda: _source(scenario, topology, places))


def _source(scenario: Scenario, topology: Topology, places: Sequence[str]) -> Proved:
    n = len(places)
    members = scenario.subgroups or (tuple(range(n)),)
    size = len(members[0])
    if any(len(group) != size for group in members):
        raise wrong("subgroups", "groups of unequal size", "let all groups have the same number of ranks")
    everyone = [rank for group in members for rank in group]
    if len(set(everyone)) != len(everyone) or not all(0 <= rank < n for rank in everyone):
        raise wrong("subgroups", f"each of the ranks 0 … {n - 1} may stand in one group only", "mend the groups")
    if scenario.root >= size:
        raise wrong("root", f"there is no rank {scenario.root} among {size} ranks", f"write 0 … {size - 1}")
    groups = _groups(scenario, topology, places) if len(members) == 1 and size == n else ()
    agents = len(agents_of(scenario, topology, places)) if len(members) == 1 else 0
    asked = (scenario.collective, scenario.algorithm, size, scenario.root, groups, agents)
    orders = _orders(scenario, topology, [places[rank] for rank in members[0]])
    known = (*asked, _maker(*asked[:2]), orders, scenario.subgroups, n)
    made, _ = _RECENT.get((*known, "off"), lambda: (_made_as_asked(scenario, asked, orders, n), "off"))
    level: Proof | Literal["off"] = scenario.proof or ("full" if n <= FULL_PROOF else "fingerprint")
    return (made, level) if level == "off" else _RECENT.get((*known, level), lambda: _proved(scenario, made, level))


def copy_orders(scenario: Scenario, topology: Topology, places: Sequence[str], turn: int = 0) -> tuple[Order, ...]:
    """The orders in which ranks at `places` play copies of the schedule; see `orders_of`. More copies begin anew, at
    the next `turn`."""
    if scenario.collective == "send_recv":  # in another order it would be another rank that receives
        return (tuple(range(len(places))),)
    machine = machine_of(scenario)
    search = machine.nccl.graphs if machine and machine.nccl else ()
    known = tuple(row.orders for row in search if row.graph == "ring" and row.nodes == "one" and row.orders)
    root = scenario.root if collective(scenario.collective).rooted else None
    entry = None if schedule_json.is_file(scenario.algorithm) else _entry(scenario)
    grouped = entry is not None and entry.uses_groups
    if entry and entry.agent_a_group:  # all ranks of a group do the same; groups do not
        return tuple(copies.of_groups([registry.flat(group) for group in _groups(scenario, topology, places)]))
    where = (topology.layout, tuple(places), known, root, grouped, turn)
    return _ORDERS.get(where, lambda: orders_of(topology, places, known, root=root, grouped=grouped, turn=turn))


def _orders(scenario: Scenario, topology: Topology, places: Sequence[str]) -> tuple[Order, ...]:
    return () if scenario.copies == 1 else first_orders(scenario, topology, places, scenario.copies)


def first_orders(scenario: Scenario, topology: Topology, places: Sequence[str], count: int) -> tuple[Order, ...]:
    """The orders of so many copies, some of which may be the same."""
    turns = (copy_orders(scenario, topology, places, turn) for turn in itertools.count())
    return tuple(itertools.islice(itertools.chain.from_iterable(turns), count))


def _entry(scenario: Scenario) -> registry.Algorithm:
    return registry.find(scenario.collective, scenario.algorithm)[0]


def agents_of(scenario: Scenario, topology: Topology, places: Sequence[str]) -> tuple[str, ...]:
    """The switches that reduce for the algorithm of a scenario: those that reach every rank, or one in each group."""
    if (
        schedule_json.is_file(scenario.algorithm)
        or not registry.find(scenario.collective, scenario.algorithm)[0].agent_a_group
    ):
        return topology.agents_for(places)
    groups = [registry.flat(group) for group in _groups(scenario, topology, places)]
    near = [topology.agents_for([places[rank] for rank in group])[:1] for group in groups]
    return tuple(agent for agents in near for agent in agents) if all(near) else ()


ScheduleKey = tuple[str, str, int, int, Groups, int]


def _maker(collective: str, algorithm: str) -> Hashable:
    """The origin of a schedule, a function or the text of a file: with another one it is another schedule."""
    if schedule_json.is_file(algorithm):
        return schedule_json.text(algorithm)
    return registry.find(collective, algorithm)[0].steps


def _made_as_asked(scenario: Scenario, asked: ScheduleKey, orders: Sequence[Order], world: int) -> AnySchedule:
    """A schedule with its copies, for the sub-groups, not proved yet."""
    check_work(scenario)  # here, too: a topology may be one that was built for another question
    of_file = schedule_json.is_file(scenario.algorithm)
    with contextlib.nullcontext() if of_file else _entry(scenario).named():
        source: AnySchedule = _of_file(asked) if of_file else _made(asked)
        if orders:
            source = in_copies(written_out(source), orders)
        if scenario.subgroups:
            alone = written_out(source)
            return side_by_side([alone.on(group, world) for group in scenario.subgroups])
        if isinstance(source, StreamedSchedule) and source.transfers <= MOST_HELD:
            return source.schedule()
        if isinstance(source, StreamedSchedule) and is_whole(scenario):
            check_written(source)  # before its proof
        return source


def _proved(scenario: Scenario, made: AnySchedule, level: Proof) -> Proved:
    """Prove a schedule, once for all sizes of a sweep; it is the same object, so that it is held once."""
    of_file = schedule_json.is_file(scenario.algorithm)
    with contextlib.nullcontext() if of_file else _entry(scenario).named():
        proof.prove(made, level)
    return made, level


def _made(asked: ScheduleKey) -> StreamedSchedule:
    name, algorithm, size, root, groups, agents = asked
    return algorithms.stream(name, algorithm, size, root=root, groups=groups, agents=agents)


def _of_file(asked: ScheduleKey) -> Schedule:
    """The schedule of a file, if it fits; raises RefusedError."""
    name, path, size, root, _, agents = asked
    schedule = schedule_json.read(path)
    if schedule.n != size:
        raise RefusedError(f"{path} is a schedule of {schedule.n} ranks, not {size}; ask for ranks: {schedule.n}")
    if schedule.root != root and collective(name).rooted:
        raise RefusedError(f"the root of {path} is rank {schedule.root}, not {root}; ask for root: {schedule.root}")
    if schedule.agents > agents:
        needed = "a switch" if schedule.agents == 1 else f"{schedule.agents} switches"
        problem = f"{path} needs {needed} that can reduce and reach every rank, and the machine has {agents or 'none'}"
        raise RefusedError(f"{problem}; take a schedule of transfers between ranks, such as two_shot")
    return schedule


def _groups(scenario: Scenario, topology: Topology, places: Sequence[str]) -> Groups:
    """The scenario's groups, by default the topology's; empty leaves the choice to the registry's rule."""
    n, asked = len(places), scenario.groups
    if asked is None:
        return topology.default_groups(places) or registry.default_groups(n)
    if isinstance(asked, int):
        if asked > n:
            raise RefusedError(f"{asked} groups cannot be made of {n} ranks; ask for at most {n}")
        edges = [round(i * n / asked) for i in range(asked + 1)]
        return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))
    groups = _nested(asked)
    flat = sorted(registry.flat(groups))
    if flat != list(range(n)):
        raise wrong("groups", f"must hold each of the ranks 0 … {n - 1} once", "mend the groups")
    return groups


def _nested(value: object) -> Groups:
    if not isinstance(value, list | tuple) or not value:
        raise wrong("groups", "must be lists of ranks", "write e.g. groups: [[0, 1], [2, 3]]")
    return tuple(item if isinstance(item, int) and not isinstance(item, bool) else _nested(item) for item in value)
