"""One point of a scenario, from names to numbers: topology, schedule, proof, engine, analysis."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.config.lru import LruCache
from simcoll.engine import bounds, link_usage
from simcoll.engine.program import Program, bind
from simcoll.engine.run import Keep, Policy, StreamedProgram, run
from simcoll.engine.staging import staged
from simcoll.engine.timeline import Timeline, Totals
from simcoll.errors import BoundError, RefusedError, StuckError, wrong
from simcoll.nccl.kernel_costs import Kernels
from simcoll.prediction.confidence import PredictedCase, fingerprint, judge
from simcoll.prediction.lowering import PLAIN, Lowered, lower, pairs
from simcoll.prediction.schedule_source import agents_of, source_of
from simcoll.scenario.faults import struck
from simcoll.scenario.launch import processes
from simcoll.scenario.placement import Placement
from simcoll.scenario.profile import Profile, load_profile
from simcoll.scenario.scenario import Point, Scenario
from simcoll.schedule import registry
from simcoll.schedule.collectives import collective
from simcoll.schedule.ir import split
from simcoll.schedule.streamed import AnySchedule, StreamedSchedule
from simcoll.topology import systems
from simcoll.topology.graph import Topology

_TOPOLOGIES: Final[LruCache[Topology]] = LruCache(2_000_000, lambda topology: len(topology.kinds) + len(topology.links))


@dataclass(frozen=True, eq=False)
class Prediction:
    """Everything about one point: what was run where, what it adds up to and, if asked for, when everything happened.

    `source` is the schedule, or the stream of its steps where it is long. Of a call as NCCL makes it, `lowered`, one
    `channel` is run and stands for all. `host_ps` is what the host takes for a call: the next begins no sooner.
    """

    scenario: Scenario
    topology: Topology
    devices: tuple[str, ...]
    source: AnySchedule
    totals: Totals
    algorithm: str
    proved: str
    lower_bound_ps: int
    engine: str
    launch_ps: int
    host_ps: int = 0
    protocol: str = "none"
    channel: Prediction | None = None
    lowered: Lowered | None = None

    @property
    def time_ps(self) -> int:
        """What a call takes: as long as on the GPUs, or as the host where that is slower."""
        return max(self.called_ps, self.host_ps)

    @property
    def called_ps(self) -> int:
        """From the first rank's coming to the last transfer's end and the last rank's coming, and the launch."""
        came = _arrivals(self.scenario, len(self.devices)).values()
        return max(self.totals.makespan_ps, *came, 0) + self.launch_ps

    @property
    def waited_ps(self) -> int:
        """How long GPUs wait for the host."""
        return self.time_ps - self.called_ps

    @property
    def capacities(self) -> NDArray[Any]:
        """B/s that serve what is counted on each link: of a call, to the network, those of all NICs that it uses."""
        bandwidths = self.topology.bandwidths
        return bandwidths * np.array(self.lowered.stands_for) if self.lowered else bandwidths

    @cached_property
    def program(self) -> Program:
        """The schedule bound to sizes and links; a long one is made only when asked for."""
        if self.channel:
            return self.channel.program
        bound = _bound(self.scenario, self.source, self.topology, self.devices)
        return bound.as_it_went(self.timeline.way) if bound.changes else bound

    @cached_property
    def timeline(self) -> Timeline:
        """When everything happened."""
        if self.channel:
            return self.channel.timeline
        faulty = bool(self.scenario.striking)
        bound = _bound(self.scenario, self.source, self.topology, self.devices) if faulty else self.program
        return run(bound, _policy(self.scenario, "hops")).timeline


def predict(point: Scenario | Point, topology: Topology | None = None) -> Prediction:
    """Simulate one point; a `topology` of your own takes the place of the scenario's.

    Raises InputError for what the user can mend, RefusedError when the algorithm cannot serve, StuckError when the run
    cannot finish, ScheduleError when the proof fails.
    """
    scenario = point.scenario if isinstance(point, Point) else point
    if scenario.workload:
        raise wrong("workload", "a workload is no collective by itself", "run it: simcoll run, in Python simcoll.run")
    profile = load_profile(scenario.profile)
    if profile.kernels:
        return _called(scenario, profile, profile.kernels, topology)
    if scenario.protocol not in ("none", "auto"):
        raise RefusedError(f"protocol {scenario.protocol} needs a profile with kernels; take one, or protocol: none")
    if scenario.p2p_level:
        raise RefusedError("p2p_level needs a profile with kernels; take one, or leave it out")
    if scenario.algorithm in ("auto", "best"):
        if scenario.striking:  # chosen by who does not know of them
            chosen = _fastest(scenario.model_copy(update={"faults": ()}), topology).algorithm
            return predict(scenario.model_copy(update={"algorithm": chosen}), topology)
        return _fastest(scenario, topology)
    if scenario.measure.harness == "library" and scenario.measure.buckets > 1:
        return _in_buckets(scenario, topology)
    topology = profile.serve(topology) if topology else topology_of(scenario)
    places = placed(scenario, topology)
    source, proved = source_of(scenario, topology, places)
    devices = (*places, *agents_of(scenario, topology, places)[: source.agents])
    prediction = functools.partial(Prediction, scenario, topology, devices, source)
    bound = bounds.lower_bound_ps(source, topology, devices, scenario.nbytes, scenario.itemsize, scenario.weights)
    if isinstance(source, StreamedSchedule) and scenario.weights is None and not scenario.striking:
        arrivals = _arrivals(scenario, source.n)
        outcome = run(
            StreamedProgram(source, topology, devices, scenario.params(), scenario.nbytes, scenario.itemsize, arrivals),
            _policy(scenario),
        )
    else:
        outcome = run(_bound(scenario, source, topology, devices), _policy(scenario))
    launch, host = profile.launch_ps(scenario.launch), paced(scenario, profile, topology, places)
    found = prediction(outcome.totals, scenario.algorithm, proved, bound, outcome.engine, launch, host)
    if outcome.kept:  # what the cached properties would find
        vars(found).update(program=outcome.program, timeline=outcome.timeline)
    if found.totals.makespan_ps < bound:
        took = f"{found.totals.makespan_ps} ps is below the lower bound of {bound} ps"
        raise BoundError(f"{source.name}: {took}: a bug of simcoll")
    return found


def _called(scenario: Scenario, profile: Profile, costs: Kernels, topology: Topology | None) -> Prediction:
    """A call as NCCL makes it: one of its channels is run, and stands for all."""
    rated = topology or topology_of(scenario.model_copy(update={"profile": PLAIN}))
    if scenario.algorithm == "best":
        named = [{"algorithm": a, "protocol": p} for a, p in pairs(scenario, costs, rated, placed(scenario, rated))]
        return _first([scenario.model_copy(update=pair) for pair in named], topology)
    places = placed(scenario, rated)
    lowered = lower(scenario, costs, rated, places)
    try:
        one, many = predict(lowered.point(costs), lowered.topology(profile.links, costs)), lowered.call.alike
    except StuckError as error:
        down = [f"{u}->{v}" for (u, v), rate in zip(rated.links, rated.bandwidths, strict=True) if not rate]
        if not down or any(name in str(error) for name in down):
            raise
        # the one channel that is run stands for those by other NICs, and tells of its own
        told = f"a call goes by all NICs of a node, and these links are down: {', '.join(down[:3])}"
        raise StuckError(f"the run cannot finish: {told}") from None
    totals = dataclasses.replace(
        one.totals,
        carried=one.totals.carried * many,
        messages=one.totals.messages * many,
        wire_bytes=one.totals.wire_bytes * many,
        bytes_per_rank=one.totals.bytes_per_rank * many,
    )
    return dataclasses.replace(
        one,
        scenario=scenario,
        topology=profile.serve(lowered.rated),
        totals=totals,
        algorithm=lowered.call.name,
        protocol=lowered.call.protocol,
        launch_ps=lowered.launch_ps(costs, profile.launch_ps(scenario.launch), profile.links),
        host_ps=paced(scenario, profile, rated, places),
        channel=one,
        lowered=lowered,
    )


def _in_buckets(scenario: Scenario, topology: Topology | None) -> Prediction:
    """The buffer in buckets: one call after another, each with its launch, or all on their way at once: then every
    bucket is a loop of the schedule with channels of its own. Timelines are those of the whole."""
    buckets, chunk = scenario.measure.buckets, scenario.params().chunk
    alone = {"measure": scenario.measure.model_copy(update={"buckets": 1})}
    whole = predict(scenario.model_copy(update=alone), topology)
    if scenario.measure.async_op:
        chunks, width = whole.source.n_chunks, scenario.itemsize
        piece = -(-scenario.nbytes // (chunks * buckets * width)) * width
        own = {"chunk": min(chunk or piece, piece), "channels": chunks * buckets}
        apart = {**alone, "model": scenario.model.model_copy(update=own)}
        found = predict(scenario.model_copy(update=apart), topology)
        return dataclasses.replace(found, scenario=scenario, host_ps=buckets * found.host_ps)
    sizes = Counter(split(scenario.nbytes, buckets, scenario.itemsize).tolist())
    parts = [
        (times, predict(scenario.model_copy(update={**alone, "size": size}), topology).totals)
        for size, times in sizes.items()
        if size
    ]
    calls = sum(times for times, _ in parts)
    launches = (calls - 1) * whole.launch_ps
    totals = Totals(
        makespan_ps=sum(times * part.makespan_ps for times, part in parts) + launches,
        carried=np.sum([times * part.carried for times, part in parts], axis=0),
        bytes_per_rank=sum(times * part.bytes_per_rank for times, part in parts),
        messages=sum(times * part.messages for times, part in parts),
        wire_bytes=sum(times * part.wire_bytes for times, part in parts),
        shortcut=parts[0][1].shortcut,
    )
    return dataclasses.replace(whole, scenario=scenario, totals=totals, host_ps=calls * whole.host_ps)


def paced(scenario: Scenario, profile: Profile, topology: Topology, places: Sequence[str]) -> int:
    """What the host takes for a call of these ranks, in ps; 0 where it is not said how they are launched."""
    nodes = [topology.node_of(place) for place in places] if scenario.launch.paced else []
    return profile.pace_ps(processes(scenario.launch, scenario.collective, nodes, scenario.root))


def _bound(scenario: Scenario, source: AnySchedule, topology: Topology, devices: Sequence[str]) -> Program:
    program = bind(
        source.schedule() if isinstance(source, StreamedSchedule) else source,
        topology,
        devices,
        scenario.params(),
        scenario.nbytes,
        itemsize=scenario.itemsize,
        weights=scenario.weights,
        arrivals=_arrivals(scenario, source.n),
    )
    return struck(program, topology, scenario.striking, load_profile(scenario.profile).launch_ps(scenario.launch))


def _policy(scenario: Scenario, keep: Keep = "auto") -> Policy:
    """The engine and the shortcuts that a scenario allows."""
    return Policy("event" if scenario.engine == "event" else "auto", scenario.shortcuts == "on", keep)


def _fastest(scenario: Scenario, topology: Topology | None) -> Prediction:
    """`auto`: of the algorithms that NCCL has for the collective, the one predicted to be done first."""
    names = registry.library(scenario.collective)
    return _first([scenario.model_copy(update={"algorithm": name}) for name in names], topology)


def _first(scenarios: Sequence[Scenario], topology: Topology | None) -> Prediction:
    """The one predicted to be done first, of those that are not refused."""
    found: list[Prediction] = []
    refused: list[RefusedError] = []
    for one in scenarios:
        try:
            found.append(predict(one, topology))
        except RefusedError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return min(found, key=lambda prediction: prediction.called_ps)  # the host takes as long for each


def topology_of(scenario: Scenario) -> Topology:
    """The topology of a scenario, its links as the profile has them; built once for all points that have the same."""
    spec, seed, profile = scenario.topology, scenario.seed, load_profile(scenario.profile)
    key = (spec.model_dump_json(), seed, scenario.contents())
    return _TOPOLOGIES.get(key, lambda: profile.serve(systems.build(spec, seed=seed)))


def placed(scenario: Scenario, topology: Topology) -> tuple[str, ...]:
    """The device of each rank."""
    wanted, placement = scenario.ranks, scenario.placement
    if isinstance(placement, tuple):
        known = set(topology.ranks)
        unfit = next((device for device in placement if device not in known), None)
        if unfit is not None:
            what = f"is a {topology.kinds[unfit]}" if unfit in topology.kinds else f"is not in {topology.name}"
            raise wrong("placement", f"{unfit!r} {what}", f"place ranks on {', '.join(topology.ranks[:2])}, …")
        if len(set(placement)) < len(placement):
            raise wrong("placement", "a device is named twice", "place one rank on each device")
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


def _count(seen: dict[int, int], node: int | None) -> int:
    key = -1 if node is None else node
    seen[key] = seen.get(key, 0) + 1
    return seen[key]


def _arrivals(scenario: Scenario, n: int) -> dict[int, int]:
    arrivals = scenario.arrivals or {}
    for rank in arrivals:
        if not 0 <= rank < n:
            raise wrong("arrivals", f"there is no rank {rank}", f"write 0 … {n - 1}")
    return arrivals


def row(prediction: Prediction) -> dict[str, object]:
    """What results.csv says of a point; see results.COLUMNS."""
    scenario, totals, topology = prediction.scenario, prediction.totals, prediction.topology
    source, time_ps = prediction.source, prediction.time_ps
    n = len(scenario.subgroups[0]) if scenario.subgroups else source.n
    contract = collective(scenario.collective)
    algbw = scenario.nbytes / (time_ps / 1e12) / 1e9 if time_ps and scenario.nbytes else None
    binding = link_usage.binding(totals, prediction.capacities, time_ps)
    busiest = (topology.link_names[binding.link], binding.busy) if binding else (None, None)
    if prediction.host_ps and prediction.host_ps / time_ps > (busiest[1] or 0):
        busiest = "host", prediction.host_ps / time_ps
    held = "timeline" in vars(prediction) and not prediction.channel
    waited = staged(prediction.program, prediction.timeline) if held else None
    return {
        **describe(scenario),
        "topology": topology.name,
        "algorithm": prediction.algorithm,
        "protocol": prediction.protocol,
        "ranks": n,
        "nodes": len({topology.node_of(device) for device in prediction.devices[: source.n]}),
        "time_us": time_ps / 1e6,
        "time_ps": time_ps,
        "algbw_GBps": algbw,
        "busbw_GBps": None if algbw is None else algbw * float(contract.busbw(n)),
        "steps": source.n_steps,
        "messages": totals.messages,
        "wire_bytes": totals.wire_bytes,
        "lower_bound_us": prediction.lower_bound_ps / 1e6,
        "engine": prediction.engine,
        "status": "ok",
        "shortcut": totals.shortcut,
        "proved": prediction.proved,
        "bytes_per_rank": totals.bytes_per_rank,
        **_trusted(prediction, n),
        "binding_link": busiest[0],
        "binding_busy": busiest[1],
        "staged": waited.count if waited else None,
        "staged_bytes": waited.peak_bytes if waited else None,
    }


def _trusted(prediction: Prediction, n: int) -> dict[str, object]:
    """The columns that say how far the time may be trusted."""
    scenario, profile = prediction.scenario, load_profile(prediction.scenario.profile)
    setting = fingerprint(prediction.topology, scenario.params()) if profile.calibration else ""
    asked = PredictedCase(scenario.collective, prediction.algorithm, n, scenario.nbytes, setting)
    way = profile.graph if scenario.launch.graph else profile.host if prediction.waited_ps else None
    found = judge(profile.judged_by(way), asked, scenario.model)
    time_us = prediction.time_ps / 1e6
    low, high = (None if factor is None else time_us * factor for factor in (found.low, found.high))
    return {"confidence": found.confidence, "low_us": low, "high_us": high}


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
        **scenario.launch.columns,
    }
