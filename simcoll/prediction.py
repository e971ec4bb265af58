"""One point of a scenario, from names to numbers: topology, schedule, proof, engine, analysis."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simcoll import algorithms, registry, systems
from simcoll.analysis import bounds, links
from simcoll.analysis.staging import staged
from simcoll.collectives import collective
from simcoll.engines import event, fast
from simcoll.errors import BoundError, Diagnostic, InputError, RefusedError
from simcoll.executors import data
from simcoll.program import Program, bind
from simcoll.registry import Groups
from simcoll.scenario import Placement, Point, Scenario
from simcoll.schedule import Schedule, side_by_side
from simcoll.timeline import Timeline
from simcoll.topology import Topology

KEEP_HOPS: Final = 100_000  # transfers up to which the timeline says when each link carried what
FULL_PROOF: Final = 256  # ranks up to which a schedule is proved in full unless the scenario says otherwise


@dataclass(frozen=True, eq=False)
class Prediction:
    """Everything about one point: what was run where, when everything happened, and what to say of it."""

    scenario: Scenario
    topology: Topology
    devices: tuple[str, ...]
    program: Program
    timeline: Timeline
    algorithm: str
    proved: str
    lower_bound_ps: int
    engine: str
    shortcut: str

    @property
    def time_ps(self) -> int:
        """From the first rank's coming to the last transfer's end and the last rank's coming."""
        return max(self.timeline.makespan_ps, int(self.program.arrivals.max(initial=0)))


def predict(point: Scenario | Point, topology: Topology | None = None) -> Prediction:
    """Simulate one point; a `topology` of your own takes the place of the scenario's.

    Raises InputError for what the user can mend, RefusedError when the algorithm cannot serve, StuckError when the run
    cannot finish, ScheduleError when the proof fails.
    """
    scenario = point.scenario if isinstance(point, Point) else point
    if scenario.algorithm == "auto":
        return _fastest(scenario, topology)
    topology = topology or _topology(scenario.topology.model_dump_json(), scenario.seed, scenario.contents())
    places = _placed(scenario, topology)
    schedule, proved = _schedule(scenario, topology, places)
    devices = (*places, *topology.agents_for(places)[: schedule.agents])
    program = bind(
        schedule,
        topology,
        devices,
        scenario.params(),
        scenario.nbytes,
        itemsize=scenario.itemsize,
        weights=scenario.weights,
        arrivals=_arrivals(scenario, len(places)),
    )
    timeline, engine, shortcut = _run(program, scenario)
    bound = bounds.lower_bound_ps(schedule, topology, devices, scenario.nbytes, scenario.itemsize, scenario.weights)
    if timeline.makespan_ps < bound:
        raise BoundError(
            f"{schedule.name}: {timeline.makespan_ps} ps is below the lower bound of {bound} ps: a bug of simcoll"
        )
    return Prediction(
        scenario, topology, devices, program, timeline, scenario.algorithm, proved, bound, engine, shortcut
    )


def _run(program: Program, scenario: Scenario) -> tuple[Timeline, str, str]:
    """The timeline, the engine that made it, and the shortcut it took."""
    if scenario.engine != "event":
        done = fast.run(program, shortcuts=scenario.shortcuts == "on", hops=len(program) <= KEEP_HOPS)
        if done.timeline is not None:
            return done.timeline, "fast", done.shortcut
    return event.run(program), "event", "none"  # which also says why a run cannot finish


def _fastest(scenario: Scenario, topology: Topology | None) -> Prediction:
    """`auto`: of the algorithms that NCCL has for the collective, the one predicted to be done first."""
    found: list[Prediction] = []
    refused: list[RefusedError] = []
    for name in registry.library(scenario.collective):
        try:
            found.append(predict(scenario.model_copy(update={"algorithm": name}), topology))
        except RefusedError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return min(found, key=lambda prediction: prediction.time_ps)


@functools.lru_cache(maxsize=64)
def _topology(spec: str, seed: int, contents: str) -> Topology:
    return systems.build(systems.TopologySpec.model_validate_json(spec), seed=seed)


def _placed(scenario: Scenario, topology: Topology) -> tuple[str, ...]:
    """The device of each rank."""
    wanted, placement = scenario.ranks, scenario.placement
    if isinstance(placement, tuple):
        known = set(topology.ranks)
        unfit = next((device for device in placement if device not in known), None)
        if unfit is not None:
            what = f"is a {topology.kinds[unfit]}" if unfit in topology.kinds else f"is not in {topology.name}"
            raise _wrong("placement", f"{unfit!r} {what}", f"place ranks on {', '.join(topology.ranks[:2])}, …")
        if len(set(placement)) < len(placement):
            raise _wrong("placement", "a device is named twice", "place one rank on each device")
        places = placement
    elif isinstance(placement, Placement):
        seen: dict[int, int] = {}
        places = tuple(
            device for device in topology.ranks if _count(seen, topology.node_of(device)) <= placement.per_node
        )
    else:
        places = topology.ranks
    if wanted is not None and wanted > len(places):
        raise RefusedError(f"{wanted} ranks do not fit {len(places)} places of {topology.name}; use more nodes")
    return places[:wanted]


def _wrong(key: str, what: str, cure: str) -> InputError:
    """Wrong input at a key of the scenario; whoever knows the file adds the place."""
    return InputError([Diagnostic(what, cure, key)])


def _count(seen: dict[int, int], node: int | None) -> int:
    key = -1 if node is None else node
    seen[key] = seen.get(key, 0) + 1
    return seen[key]


def _schedule(scenario: Scenario, topology: Topology, places: Sequence[str]) -> tuple[Schedule, str]:
    n = len(places)
    members = scenario.subgroups or (tuple(range(n)),)
    size = len(members[0])
    if any(len(group) != size for group in members):
        raise _wrong("subgroups", "groups of unequal size", "let all groups have the same number of ranks")
    everyone = [rank for group in members for rank in group]
    if len(set(everyone)) != len(everyone) or not all(0 <= rank < n for rank in everyone):
        raise _wrong("subgroups", f"each of the ranks 0 … {n - 1} may stand in one group only", "mend the groups")
    if scenario.root >= size:
        raise _wrong("root", f"there is no rank {scenario.root} among {size} ranks", f"write 0 … {size - 1}")
    groups = _groups(scenario, topology, places) if len(members) == 1 and size == n else ()
    agents = len(topology.agents_for(places)) if len(members) == 1 else 0
    return _proved(
        scenario.collective,
        scenario.algorithm,
        size,
        scenario.root,
        groups,
        agents,
        scenario.subgroups,
        n,
        scenario.proof,
    )


@functools.lru_cache(maxsize=64)
def _proved(
    name: str,
    algorithm: str,
    size: int,
    root: int,
    groups: Groups,
    agents: int,
    subgroups: tuple[tuple[int, ...], ...] | None,
    world: int,
    proof: data.Proof | str | None,
) -> tuple[Schedule, str]:
    """Build a schedule and prove it, once for all sizes of a sweep."""
    schedule = algorithms.build(name, algorithm, size, root=root, groups=groups, agents=agents)
    if subgroups:
        schedule = side_by_side([schedule.on(group, world) for group in subgroups])
    how = proof or ("full" if world <= FULL_PROOF else "fingerprint")
    if how == "full":
        data.prove(schedule, "full")
    elif how == "fingerprint":
        data.prove(schedule, "fingerprint")
    return schedule, how


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
        raise _wrong("groups", f"must hold each of the ranks 0 … {n - 1} once", "mend the groups")
    return groups


def _nested(value: object) -> Groups:
    if not isinstance(value, list | tuple) or not value:
        raise _wrong("groups", "must be lists of ranks", "write e.g. groups: [[0, 1], [2, 3]]")
    return tuple(item if isinstance(item, int) and not isinstance(item, bool) else _nested(item) for item in value)


def _arrivals(scenario: Scenario, n: int) -> dict[int, int]:
    arrivals = scenario.arrivals or {}
    for rank in arrivals:
        if not 0 <= rank < n:
            raise _wrong("arrivals", f"there is no rank {rank}", f"write 0 … {n - 1}")
    return arrivals


def row(prediction: Prediction) -> dict[str, object]:
    """What results.csv says of a point; see results.COLUMNS."""
    scenario, program, topology = prediction.scenario, prediction.program, prediction.topology
    schedule, time_ps, n = program.schedule, prediction.time_ps, len(program.schedule.groups[0])
    contract = collective(scenario.collective)
    algbw = scenario.nbytes / (time_ps / 1e12) / 1e9 if time_ps and scenario.nbytes else None
    binding = links.binding(program, time_ps)
    waited = staged(program, prediction.timeline) if len(program) <= KEEP_HOPS else None
    return {
        **describe(scenario),
        "topology": topology.name,
        "algorithm": prediction.algorithm,
        "ranks": n,
        "nodes": len({topology.node_of(device) for device in prediction.devices[: schedule.n]}),
        "time_us": time_ps / 1e6,
        "time_ps": time_ps,
        "algbw_GBps": algbw,
        "busbw_GBps": None if algbw is None else algbw * float(contract.busbw(n)),
        "steps": schedule.n_steps,
        "messages": schedule.messages * program.loops,
        "wire_bytes": program.wire_bytes,
        "lower_bound_us": prediction.lower_bound_ps / 1e6,
        "engine": prediction.engine,
        "status": "ok",
        "shortcut": prediction.shortcut,
        "proved": prediction.proved,
        "bytes_per_rank": program.bytes_per_rank,
        "confidence": "uncalibrated",
        "binding_link": topology.link_names[binding.link] if binding else None,
        "binding_busy": binding.busy if binding else None,
        "staged": waited.count if waited else None,
        "staged_bytes": waited.peak_bytes if waited else None,
    }


def describe(scenario: Scenario) -> dict[str, object]:
    """The columns that are known without running the point."""
    params = scenario.params()
    return {
        "scenario": scenario.name,
        "topology": scenario.topology.title,
        "collective": scenario.collective,
        "algorithm": scenario.algorithm,
        "protocol": scenario.protocol,
        "ranks": scenario.ranks,
        "size_bytes": scenario.nbytes,
        "seed": scenario.seed,
        "dtype": scenario.dtype,
        "op": scenario.op if collective(scenario.collective).reduces else "none",
        "root": scenario.root if collective(scenario.collective).rooted else None,
        "in_place": scenario.in_place,
        "profile": scenario.profile,
        "sharing": params.sharing,
    }
