"""Make and prove the schedule of a point, once for all points that share it; count what each rank sends."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.lru import LruCache
from simcoll.config.numpy_helpers import distinct
from simcoll.engine.binding import written_out
from simcoll.engine.run import MOST_HELD, StreamedProgram
from simcoll.errors import RefusedError, wrong
from simcoll.formats.schedules import schedule_json
from simcoll.prediction.placed_topology import arrivals_of, machine_of
from simcoll.prediction.work_limits import check_work
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import algorithms, proof, registry, side_by_side
from simcoll.schedule.collectives import collective
from simcoll.schedule.proof import Proof
from simcoll.schedule.registry import Groups
from simcoll.schedule.schedule import AnySchedule, Schedule, StreamedSchedule
from simcoll.schedule.side_by_side import Order, in_copies
from simcoll.schedule.steps import Repeat, Step
from simcoll.topology.graph import Topology


@dataclass(frozen=True, eq=False)
class ProvedSchedule:
    """A schedule, or the stream of its steps, and how it was proved: "full", "fingerprint" or "off" (not proved)."""

    source: AnySchedule
    proof: str

    @cached_property
    def traffic(self) -> Traffic:
        """Return the counts of messages between ranks and switches; copies within a rank do not count."""
        return _traffic(self.source)


# Schedules with their proofs, which all sizes of a sweep share: without it the sweep takes twice as long.
_PROVED: Final[LruCache[ProvedSchedule]] = LruCache(20_000_000, lambda proved: proved.source.rows)


def source_of(scenario: Scenario, topology: Topology, places: Sequence[str]) -> ProvedSchedule:
    """Return the schedule that a scenario asks for, proved; a long one as a stream of its steps."""
    n = len(places)
    members = scenario.subgroups or (tuple(range(n)),)
    size = len(members[0])
    if any(len(group) != size for group in members):
        raise wrong("subgroups", "the groups have different sizes", "give all groups the same number of ranks")
    everyone = [rank for group in members for rank in group]
    if len(set(everyone)) != len(everyone) or not all(0 <= rank < n for rank in everyone):
        raise wrong("subgroups", f"each of the ranks 0 … {n - 1} may be in one group only", "mend the groups")
    if scenario.root >= size:
        raise wrong("root", f"there is no rank {scenario.root} among {size} ranks", f"write 0 … {size - 1}")
    groups = _groups(scenario, topology, places) if len(members) == 1 and size == n else ()
    agents = len(agents_of(scenario, topology, places)) if len(members) == 1 else 0
    asked = (scenario.collective, scenario.algorithm, size, scenario.root, groups, agents)
    orders = _orders(scenario, topology, [places[rank] for rank in members[0]])
    known = (*asked, _maker(*asked[:2]), orders, scenario.subgroups, n)
    made = _PROVED.get((*known, "off"), lambda: ProvedSchedule(_made_as_asked(scenario, asked, orders, n), "off"))
    level: Proof | Literal["off"] = scenario.proof or proof.level_for(n)
    return made if level == "off" else _PROVED.get((*known, level), lambda: _proved(scenario, made.source, level))


def program_of(point: Scenario, network: Topology, places: tuple[str, ...]) -> tuple[StreamedProgram, str]:
    """Return the point's schedule with sizes and network (routes are found later), and how the schedule was proved."""
    proved = source_of(point, network, places)
    source, params = proved.source, point.params()
    agents = agents_of(point, network, places)[: source.agents] if source.agents else ()
    devices = (*places, *agents)
    arrivals, itemsize = arrivals_of(point, source.n), point.itemsize
    whole = StreamedProgram(source, network, devices, params, point.nbytes, itemsize, arrivals, point.weights)
    return whole, proved.proof


def copy_orders(scenario: Scenario, topology: Topology, places: Sequence[str], turn: int = 0) -> tuple[Order, ...]:
    """Return the rank order of each copy of the schedule, for ranks on the devices `places` (see `orders_of`). If a
    scenario has more copies than orders, the further copies use the orders of the next `turn`."""
    routed = schedule_json.is_file(scenario.algorithm) and schedule_json.read(scenario.algorithm).routes
    if scenario.collective == "send_recv" or routed:  # another order would have another receiver, or other routes
        return (tuple(range(len(places))),)
    machine = machine_of(scenario)
    search = machine.nccl.graphs if machine and machine.nccl else ()
    known = tuple(row.orders for row in search if row.graph == "ring" and row.nodes == "one" and row.orders)
    root = scenario.root if collective(scenario.collective).rooted else None
    entry = _entry(scenario)
    grouped = entry is not None and entry.uses_groups
    if entry and entry.agent_a_group:  # all ranks of a group do the same, groups do not
        return tuple(side_by_side.of_groups([registry.flat(group) for group in _groups(scenario, topology, places)]))
    return orders_of(topology, places, known, root=root, grouped=grouped, turn=turn)


def _orders(scenario: Scenario, topology: Topology, places: Sequence[str]) -> tuple[Order, ...]:
    return () if scenario.copies == 1 else first_orders(scenario, topology, places, scenario.copies)


def first_orders(scenario: Scenario, topology: Topology, places: Sequence[str], count: int) -> tuple[Order, ...]:
    """Return the rank orders of the first `count` copies of a schedule; some orders may be equal."""
    turns = (copy_orders(scenario, topology, places, turn) for turn in itertools.count())
    return tuple(itertools.islice(itertools.chain.from_iterable(turns), count))


def _entry(scenario: Scenario) -> registry.Algorithm | None:
    """Return the registry's entry of the scenario's algorithm; None if the schedule comes from a file."""
    chosen = scenario.algorithm
    return None if schedule_json.is_file(chosen) else registry.find(scenario.collective, chosen)[0]


def agents_of(scenario: Scenario, topology: Topology, places: Sequence[str]) -> tuple[str, ...]:
    """Return the switches that reduce for the scenario's algorithm: those that reach all ranks, or one a group, or
    those that a schedule's routes name."""
    entry = _entry(scenario)
    if entry is None and (named := schedule_json.read(scenario.algorithm).named_agents):
        known = dict(enumerate(topology.agents_for(places))) | named
        serving = (known.get(number, "") for number in itertools.count())
        return tuple(itertools.takewhile(topology.agents.__contains__, serving))
    if entry is None or not entry.agent_a_group:
        return topology.agents_for(places)
    groups = [registry.flat(group) for group in _groups(scenario, topology, places)]
    near = [topology.agents_for([places[rank] for rank in group])[:1] for group in groups]
    return tuple(agent for agents in near for agent in agents) if all(near) else ()


ScheduleKey = tuple[str, str, int, int, Groups, int]


def _maker(collective: str, algorithm: str) -> Hashable:
    """Return what the schedule is made from, as a part of its cache key: the algorithm's function, or a file's text."""
    if schedule_json.is_file(algorithm):
        return schedule_json.text(algorithm)
    return registry.find(collective, algorithm)[0].steps


def _made_as_asked(scenario: Scenario, asked: ScheduleKey, orders: Sequence[Order], world: int) -> AnySchedule:
    """Return the requested schedule in all its copies and for all sub-groups; it is not proved yet."""
    check_work(scenario)  # again, as the topology may have been built for another point
    entry = _entry(scenario)
    with entry.named() if entry else contextlib.nullcontext():
        name, algorithm, size, root, groups, agents = asked
        options: dict[str, Any] = {"root": root, "groups": groups, "agents": agents}
        source: AnySchedule = algorithms.stream(name, algorithm, size, **options) if entry else _of_file(asked)
        if orders:
            source = in_copies(written_out(source), orders)
        if scenario.subgroups:
            alone = written_out(source)
            return side_by_side.joined([alone.on(group, world) for group in scenario.subgroups])
        if isinstance(source, StreamedSchedule) and source.transfers <= MOST_HELD:
            return source.schedule()
        return source


def _proved(scenario: Scenario, made: AnySchedule, level: Proof) -> ProvedSchedule:
    """Prove a schedule, which then serves all sizes of a sweep; return it with the level of its proof."""
    entry = _entry(scenario)
    with entry.named() if entry else contextlib.nullcontext():
        proof.prove(made, level)
    return ProvedSchedule(made, level)


def _of_file(asked: ScheduleKey) -> Schedule:
    """Return the schedule of a file; raises RefusedError if its ranks, root or switches do not fit the point."""
    name, path, size, root, _, agents = asked
    schedule = schedule_json.read(path)
    if schedule.n != size:
        raise RefusedError(f"{path} is a schedule of {schedule.n} ranks, not {size}; write `ranks: {schedule.n}`")
    if schedule.root != root and collective(name).rooted:
        raise RefusedError(f"the root of {path} is rank {schedule.root}, not {root}; write `root: {schedule.root}`")
    if schedule.agents > agents:
        needed = "a switch" if schedule.agents == 1 else f"{schedule.agents} switches"
        problem = f"{path} needs {needed} that can reduce and reach every rank, and the machine has {agents or 'none'}"
        raise RefusedError(f"{problem}; take a schedule of transfers between ranks, such as two_shot")
    return schedule


def _groups(scenario: Scenario, topology: Topology, places: Sequence[str]) -> Groups:
    """Return the scenario's groups of ranks, else the topology's; empty means that the registry forms groups."""
    n, asked = len(places), scenario.groups
    if asked is None:
        return topology.default_groups(places) or registry.default_groups(n)
    if isinstance(asked, int):
        if asked > n:
            raise RefusedError(f"{asked} groups are too many for {n} ranks; write at most {n}")
        edges = [round(i * n / asked) for i in range(asked + 1)]
        return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))
    groups = _nested(asked)
    flat = sorted(registry.flat(groups))
    if flat != list(range(n)):
        raise wrong("groups", f"must contain each of the ranks 0 … {n - 1} once", "mend the groups")
    return groups


def _nested(value: object) -> Groups:
    if not isinstance(value, list | tuple) or not value:
        raise wrong("groups", "must be lists of ranks", "write e.g. groups: [[0, 1], [2, 3]]")
    return tuple(item if isinstance(item, int) and not isinstance(item, bool) else _nested(item) for item in value)


def orders_of(
    topology: Topology,
    places: Sequence[str],
    known: Sequence[Sequence[Order]] = (),
    *,
    root: int | None = None,
    grouped: bool,
    turn: int = 0,
) -> tuple[Order, ...]:
    """Return the orders in which ranks take part in copies of a schedule, one per copy: together the copies use all
    links evenly. A `root` keeps its place in each order.

    `known` holds sets of rings over the GPUs of a machine. Without a set that fits, rings use all direct links; if some
    ranks have no direct link, rings run in both directions. On several nodes each copy begins at another rank of a
    node, so that copies use the NICs equally. A ring leaves a node beside the rank at which it entered: it passes every
    second node backwards, and stays on its rail. Schedules with nodes as groups (`grouped`) have one order for all
    nodes. Without a root, node number `turn` comes first there: groups send unequal amounts, so further copies swap
    parts.
    """
    n = len(places)
    of_node: dict[int | None, list[int]] = {}
    for rank, place in enumerate(places):
        of_node.setdefault(topology.node_of(place), []).append(rank)
    nodes = list(of_node.values())
    size = len(nodes[0])
    if len(nodes) > 1 and size > 1 and all(len(ranks) == size for ranks in nodes):
        first, second = ([places[rank] for rank in ranks] for ranks in nodes[:2])
        nics = [_nic(topology, u, v) for u, v in zip(first, second, strict=True)]
        within = _evenly(nics, _within(topology, first, _fitting(known, size), grouped), (0,) if grouped else (0, -1))
        turned = turn % len(nodes) if grouped and root is None else 0
        found = [_through(nodes[turned:] + nodes[:turned], path, grouped) for path in within]
    elif rings := _fitting(known, n):
        found = list(rings)
    elif _meshed(topology, places):
        found = side_by_side.cycles(n)
    else:
        found = [tuple(range(n)), tuple(reversed(range(n)))]
    return tuple(dict.fromkeys(_rooted(order, root, grouped) for order in found))


def _fitting(known: Sequence[Sequence[Order]], n: int) -> Sequence[Order]:
    return next((orders for orders in known if len(orders[0]) == n), ())


def _within(topology: Topology, places: Sequence[str], rings: Sequence[Order], grouped: bool) -> Sequence[Order]:
    """Return paths through a node's ranks; equally many begin at each rank, and for rings as many end at each rank."""
    if rings and grouped:
        both = [*rings[::2], *rings[1::2]]  # one direction, then the other: rings that occur twice are no such pair
        return [_begun(both[rank % len(both)], rank) for rank in range(len(places))]
    if rings and (found := _cut_open(rings, ())):
        return found
    return side_by_side.paths(len(places)) if _meshed(topology, places) else side_by_side.turns(len(places))


def _cut_open(rings: Sequence[Order], paths: tuple[Order, ...]) -> tuple[Order, ...]:
    """Return a path from each rank in turn, along the ring used least so far, such that one path ends at each rank.
    Empty if no such set of paths exists; `paths` are those found so far."""
    rank, ends = len(paths), {path[-1] for path in paths}
    if rank == len(rings[0]):
        return paths
    ways = sorted((_begun(ring, rank) for ring in rings), key=lambda way: sum(way == _begun(p, rank) for p in paths))
    further = (_cut_open(rings, (*paths, way)) for way in ways if way[-1] not in ends)
    return next(filter(None, further), ())


def _begun(ring: Order, rank: int, at: int = 0) -> Order:
    """Return the ring, rotated so that `rank` stands at position `at`."""
    by = ring.index(rank) - at
    return ring[by:] + ring[:by]


def _evenly(nics: Sequence[str | None], paths: Sequence[Order], ends: Sequence[int]) -> Sequence[Order]:
    """Return the paths without those that overload a NIC. Positions `ends` of a path leave the node by the rank's entry
    in `nics`; paths through the busiest NIC are dropped while this lowers the NIC's share of paths."""
    kept = list(paths)
    while len(kept) > 1:
        nic, most = Counter(nics[path[end]] for path in kept for end in ends).most_common(1)[0]
        last = max(kept, key=lambda path: [nics[path[end]] for end in ends].count(nic))
        fewer = [path for path in kept if path is not last]
        then = Counter(nics[path[end]] for path in fewer for end in ends).most_common(1)[0][1]
        if then * len(kept) >= most * len(fewer):
            break
        kept = fewer
    return kept


def _nic(topology: Topology, src: str, dst: str) -> str | None:
    """Return the NIC on the route from a device to a device of another node; None without a NIC."""
    passed = [end for link in topology.route(src, dst) for end in topology.links[link]]
    return next((device for device in passed if topology.kinds[device] == "nic"), None)


def _through(nodes: Sequence[Sequence[int]], path: Order, grouped: bool) -> Order:
    """Return an order of all ranks: `path` in each node, in every second node backwards unless `grouped`."""
    order: dict[int, int] = {}
    played = sorted(nodes, key=min)  # in the schedule's order
    for number, ranks in enumerate(nodes):
        taken = path if grouped or number % 2 == 0 else path[::-1]
        order.update(zip(played[number], (ranks[local] for local in taken), strict=True))
    return tuple(order[place] for place in range(len(order)))


def _meshed(topology: Topology, places: Sequence[str]) -> bool:
    """Whether each pair of ranks has a direct link."""
    return all(topology.has_link(u, v) for u, v in itertools.permutations(places, 2))


def _rooted(order: Order, root: int | None, grouped: bool) -> Order:
    """Return the order with the root at its place: a ring is rotated; with groups the root swaps places with a rank."""
    if root is None:
        return order
    if not grouped:
        return _begun(order, root, root)
    moved, at = list(order), order.index(root)
    moved[root], moved[at] = root, order[root]
    return tuple(moved)


class StepTraffic(NamedTuple):
    """A step that is repeated `times` times; other numbers are maxima over ranks. `peers`: ranks with which a rank
    exchanges data; `chunks`: chunks for one peer; `copied`: peers whose chunks overwrite data without a reduction."""

    times: int
    peers: int
    chunks: int
    copied: int


class Traffic(NamedTuple):
    """The messages of a schedule; each number is that of the busiest rank. `peers`: ranks with which it exchanges data
    in all `rounds` (steps); `sent`: chunks that it sends. `agents` counts the switches that reduce."""

    peers: int
    sent: int
    agents: int
    rounds: tuple[StepTraffic, ...]


def _traffic(source: AnySchedule) -> Traffic:
    size, rounds, pairs = source.participants, list[StepTraffic](), np.zeros(0, np.int64)
    sent = np.zeros(size, np.int64)
    for times, step in _steps(source):
        rows = step.by_slot()
        apart = rows.src != rows.dst
        if not apart.any():
            continue
        src, dst = rows.src[apart].astype(np.int64), rows.dst[apart]
        sent += np.bincount(src, minlength=size) * times
        each, chunks = np.unique(src * size + dst, return_counts=True)
        copied = distinct((src * size + dst)[~rows.reduce[apart]]) % size
        rounds.append(StepTraffic(times, _most_peers(each, size), int(chunks.max()), _most(copied)))
        pairs = distinct(np.concatenate((pairs, each)))
    return Traffic(_most_peers(pairs, size), int(sent.max(initial=0)), source.agents, tuple(rounds))


def pairs_of(source: AnySchedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return senders and receivers, (pairs,) each: every pair of ranks or switches between which a schedule sends."""
    size = source.participants
    pairs = [distinct(rows.src.astype(np.int64) * size + rows.dst) for _, rows in _steps(source)]
    src, dst = np.divmod(distinct(np.concatenate([np.zeros(0, np.int64), *pairs])), size)
    return src, dst


def _steps(source: AnySchedule) -> Iterator[tuple[int, Step]]:
    """Yield each step with the number of its repetitions; all repetitions have the same senders and receivers."""
    if isinstance(source, Schedule):
        yield from ((1, step) for step in source.parts())
        return
    for part in source.parts():
        yield (part.times, part.first) if isinstance(part, Repeat) else (1, part)


def _most_peers(pairs: NDArray[np.int64], size: int) -> int:
    return max(_most(pairs // size), _most(pairs % size))


def _most(ranks: NDArray[Any]) -> int:
    """Return how often the most frequent rank occurs in `ranks`."""
    return int(np.bincount(ranks).max(initial=0))
