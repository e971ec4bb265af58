"""Answer what-if questions: simulate a point again with one thing changed, and compare the times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from simcoll.engine.run import makespan_ps
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError, RefusedError, ScheduleError, StuckError
from simcoll.explanation.explained_run import ExplainedRun
from simcoll.nccl.expert_kernels import expert_kernels
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.placed_topology import rated_topology
from simcoll.prediction.predict import Prediction, predict
from simcoll.prediction.predictions import COMPUTING, LAUNCHING, CallPrediction, StepPrediction
from simcoll.scenario.faults import struck
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import Profile, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.topology.graph import Link, Topology
from simcoll.units import format_size
from simcoll.workload.expert_routing import BY_EXPERTS, Routing
from simcoll.workload.workload_keys import Ddp, with_algorithm

OVERHEADS: Final = ("o_send", "o_recv", "g")
SMALL: Final = 1_000_000  # most messages with which all algorithms are tried; with more, to save time, only NCCL's
NO_OVERHEADS: Final = "no overheads (o_send, o_recv, g, launch)"
CHUNK: Final = 512 << 10  # bytes: the chunk to try if the scenario has none, as in NCCL's Simple protocol

Change = tuple[str, Callable[[], int]]  # the name of a change, and a function that returns the time with it, in ps


class Answer(NamedTuple):
    """The effect of one change: with it the point takes `time_ps`, and is `factor` times as fast."""

    change: str
    time_ps: int
    factor: float


def answers(explained: ExplainedRun, broken: list[ScheduleError] | None = None) -> list[Answer]:
    """Simulate every possible change of a point; return the answers, the largest gain first. Changes that cannot run
    are left out; errors of the user's own algorithms are added to `broken`."""
    simulated = []
    for change, time in changes(explained):
        try:
            took = time()
        except (RefusedError, InputError, StuckError):
            continue
        except ScheduleError as error:
            if broken is not None:
                broken.append(error)
            continue
        simulated.append(Answer(change, took, explained.time_ps / took if took else 1.0))
    return sorted(simulated, key=lambda answer: -answer.factor)


def changes(explained: ExplainedRun) -> Iterator[Change]:
    """Yield every change that is possible for the point: its name, and a function that simulates it."""
    ran = explained.ran
    yield from _of_step(explained, ran) if isinstance(ran, StepPrediction) else _of_call(explained, ran)


def _links(explained: ExplainedRun) -> dict[str, frozenset[str]]:
    """Return sets of link kinds to speed up, by name of the change: each used kind, those between nodes, and all."""
    kinds, carried = explained.ran.links.kinds, explained.ran.totals.carried.tolist()
    inside = _kinds_within_nodes(explained)
    carrying = (kind for kind, nbytes in zip(kinds, carried, strict=True) if nbytes)
    used = list(dict.fromkeys([*carrying, *sorted(inside)]))  # calls carry data under other names of links
    groups = {f"links of kind {kind} twice as fast": frozenset([kind]) for kind in used}
    outer = frozenset(used) - inside
    if 1 < len(outer) < len(used):
        groups[f"links beyond a node ({', '.join(sorted(outer))}) twice as fast"] = outer
    if len(used) > 1:
        groups["all links twice as fast"] = frozenset(used)
    return groups


def _kinds_within_nodes(explained: ExplainedRun) -> set[str]:
    """Return the kinds of those links on routes between ranks of one node."""
    topology, program, devices = explained.ran.topology, explained.ran.program, explained.ran.devices
    src, dst, hop, links = program.routes
    nodes = [topology.node_of(device) for device in devices]
    ends = list(zip(src.tolist(), dst.tolist(), strict=True))
    known = len(nodes)  # joined programs number the agents of each operation anew, behind the ranks
    inside = [way for way, (u, v) in enumerate(ends) if max(u, v) < known and nodes[u] == nodes[v]]
    kind_of = dict(zip(topology.link_names, topology.link_kinds, strict=True))
    names = {program.link_names[link % program.servers] for way in inside for link in links[hop[way] : hop[way + 1]]}
    kinds = {kind_of[name] for name in names if name in kind_of}
    if names - kind_of.keys():  # calls see links within a node in their own way, alike in each node
        pairs = [ends[way] for way in inside if nodes[ends[way][0]] == nodes[ends[inside[0]][0]]]
        kinds |= {topology.link_kinds[link] for u, v in pairs for link in topology.route(devices[u], devices[v])}
    return kinds


# --- collectives ---


def _of_call(explained: ExplainedRun, ran: Prediction) -> Iterator[Change]:
    scenario = explained.scenario
    profile = load_profile(scenario.profile)
    rated, tunable = rated_topology(scenario), executor(scenario).tunable

    def on(link: Callable[[Link], Link]) -> int:
        return predict(scenario, _with(rated, link)).time_ps

    def given(**changed: Any) -> int:
        return predict(scenario.model_copy(update=changed)).time_ps

    if (scenario.topology.spines or 1) > 1 and scenario.topology.routing not in ("adaptive", "own-nics"):
        yield "messages spread evenly over equal routes", lambda: given(topology=scenario.topology.evenly)
    for text, kinds in _links(explained).items():
        yield text, partial(on, partial(_faster, kinds))
    if isinstance(ran, CallPrediction):
        yield from ((text, partial(ran.retimed, costs)) for text, costs in ran.lowered.cheaper())
    if tunable:
        yield "latencies of links halved", lambda: on(_closer)
        yield from _of_model(scenario, ran.launch_ps, given)
    yield from ((text, partial(given, launch=launch)) for text, launch in _other_launches(scenario, profile))
    yield from ((text, partial(given, **changed)) for text, changed in _of_tokens(scenario))
    if scenario.arrivals and any(scenario.arrivals.values()):
        yield "no rank late", lambda: given(arrivals=None)
    if scenario.faults:
        yield "no faults", lambda: given(faults=())
    for text, changed in _other_algorithms(scenario, ran):
        yield text, partial(given, **changed)


def _of_tokens(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changes of a call that sends tokens to experts: a name, and new values of the scenario's keys."""
    if scenario.moe is None:
        return
    if scenario.executed_by == "deepep":
        sms = 2 * (scenario.sms or expert_kernels().default_sms)
        yield f"{sms} SMs", {"sms": sms}
    if not scenario.moe.even:
        yield "uniform routing", {"moe": scenario.moe.model_copy(update={"routing": Routing()})}
    for name in BY_EXPERTS:
        if name != scenario.executed_by:
            yield f"executor {name}", {"executor": name, "sms": None, "algorithm": "auto", "protocol": "none"}


def _of_model(scenario: Scenario, launch: int, given: Callable[..., int]) -> Iterator[Change]:
    params = scenario.params()

    def model(**changed: Any) -> int:
        return given(model=scenario.model.model_copy(update=changed))

    if launch or any(getattr(params, name) for name in OVERHEADS):
        yield NO_OVERHEADS, partial(_without_overheads, scenario)
    if params.gamma:
        yield "reductions take no time", lambda: model(gamma=0)
    for text, changed in _settings(params, scenario.nbytes):
        yield text, partial(model, **changed)


def _without_overheads(scenario: Scenario) -> int:
    plain = scenario.model.model_copy(update=dict.fromkeys(OVERHEADS, 0))
    prediction = predict(scenario.model_copy(update={"model": plain}))
    return max(prediction.called_ps - prediction.launch_ps, prediction.host_ps)


def _settings(params: Params, nbytes: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield changes of the scenario's `model`: a name, and new values of its keys."""
    if params.chunk:
        yield f"chunks of {format_size(2 * params.chunk)}", {"chunk": 2 * params.chunk}
        if params.chunk > 1:
            yield f"chunks of {format_size(params.chunk // 2)}", {"chunk": params.chunk // 2}
    elif nbytes > CHUNK:
        yield f"chunks of {format_size(CHUNK)}", {"chunk": CHUNK}
    if params.channels:
        yield f"{2 * params.channels} channels", {"channels": 2 * params.channels}
    if params.slots:
        yield f"{2 * params.slots} slots", {"slots": 2 * params.slots}
    if params.channel_bandwidth:
        yield "channels twice as fast", {"channel_bandwidth": 2 * params.channel_bandwidth}


def _other_launches(scenario: Scenario, profile: Profile) -> Iterator[tuple[str, Launch]]:
    """Yield other ways to launch calls whose costs the profile has: a name, and the key `launch`."""
    others = {"one GPU a process": Launch(gpus_per_process=1), "launched in a CUDA graph": Launch(graph=True)}
    said = scenario.launch
    for text, launch in others.items():
        if profile.knows(launch) and launch != said and (said.paced or launch.graph) and not said.graph:
            yield text, launch


def _other_algorithms(scenario: Scenario, ran: Prediction) -> Iterator[tuple[str, dict[str, str | None]]]:
    for algorithm, protocol in executor(scenario).choices(scenario.model_copy(update={"protocol": "auto"})):
        if algorithm != ran.algorithm or protocol not in (ran.protocol, "auto"):
            changed = {"algorithm": algorithm, "protocol": protocol, "executor": scenario.executed_by}
            yield f"algorithm {algorithm}, protocol {protocol}", changed
    if executor(scenario).tunable:
        small = ran.totals.messages <= SMALL
        for name in registry.comparable(scenario.collective) if small else registry.library(scenario.collective):
            if name != scenario.algorithm:
                yield f"algorithm {name}", {"algorithm": name}


# --- workloads ---


def _of_step(explained: ExplainedRun, ran: StepPrediction) -> Iterator[Change]:
    """Yield the changes for a workload: of links, times and overheads in its program, and of keys that need a new
    one."""
    scenario, spec, kinds_of_tasks = explained.scenario, explained.scenario.workload, ran.tasks.kind
    program = ran.run.program  # as it was bound, before faults rerouted transfers
    runs = executor(scenario)
    kind_of = dict(zip(ran.topology.link_names, ran.topology.link_kinds, strict=True))
    kinds = np.array([kind_of.get(name, "") for name in program.link_names])
    tasks = program.tasks
    assert tasks
    assert spec

    def played(**changed: Any) -> int:
        plain = dataclasses.replace(program, **{"changes": None, **changed})
        return makespan_ps(struck(plain, ran.topology, scenario.faults))

    def lasting(factor: float, chosen: Any) -> dict[str, Any]:
        took = np.where(chosen, np.rint(factor * tasks.duration), tasks.duration).astype(np.int64)
        return {"tasks": dataclasses.replace(tasks, duration=took)}

    def costing(**changed: Any) -> dict[str, Any]:
        parts = tuple(dataclasses.replace(part, **changed) for part in program.parts)
        return {"parts": parts, "params": dataclasses.replace(program.params, **changed)}

    def anew(**changed: Any) -> int:
        return predict(scenario.model_copy(update=changed)).time_ps

    def on(group: frozenset[str]) -> int:
        if runs.tunable:
            return played(bandwidths=np.where(np.isin(kinds, list(group)), 2, 1) * program.bandwidths)
        # on other links NCCL's calls choose anew, and reach other rates
        return predict(scenario, _with(rated_topology(scenario), partial(_faster, group))).time_ps

    for text, group in _links(explained).items():
        yield text, partial(on, group)
    if ran.compute_ps:
        yield "computation twice as fast", partial(played, **lasting(0.5, kinds_of_tasks == COMPUTING))
    if len(program) and program.latencies.max() > 1:
        yield "latencies of links halved", partial(played, latencies=np.maximum(1, program.latencies // 2))
    launching = kinds_of_tasks == LAUNCHING
    if runs.tunable and (launching.any() or any(getattr(part, name) for part in program.parts for name in OVERHEADS)):
        yield NO_OVERHEADS, partial(played, **lasting(0, launching), **costing(**dict.fromkeys(OVERHEADS, 0)))
    if scenario.faults:
        yield "no faults", partial(makespan_ps, dataclasses.replace(program, changes=None))
    if any(part.gamma for part in program.parts):
        yield "reductions take no time", partial(played, **costing(gamma=0))
    if not runs.tunable:
        yield "launches take no time", partial(ran.retimed, ran.costs.launched_free)
    if runs.tunable:
        largest = max((work.call.nbytes for work in ran.plan.works if work.call), default=0)
        for text, given in _settings(scenario.params(), largest):
            yield text, partial(anew, model=scenario.model.model_copy(update=given))
    for text, alternative in _other_plans(scenario, ran):
        yield text, partial(anew, workload=alternative)


def _other_plans(scenario: Scenario, ran: StepPrediction) -> Iterator[tuple[str, Any]]:
    spec = scenario.workload
    collectives = {work.call.collective for work in ran.plan.works if work.call}
    for name in executor(scenario).algorithms(collectives):
        if name != ran.algorithm:
            yield f"algorithm {name}", with_algorithm(spec, name)
    if isinstance(spec, Ddp) and spec.bucket_cap:
        for size in (2 * spec.bucket_cap, spec.bucket_cap // 2):
            yield f"buckets of {format_size(size)}", spec.model_copy(update={"bucket_cap": size})


# --- links ---


def _with(topology: Topology, changed: Callable[[Link], Link]) -> Topology:
    return topology.with_links(map(changed, topology.every_link))


def _faster(kinds: frozenset[str], link: Link) -> Link:
    return dataclasses.replace(link, bandwidth=2 * link.bandwidth) if link.kind in kinds else link


def _closer(link: Link) -> Link:
    return dataclasses.replace(link, latency_ps=max(1, link.latency_ps // 2))
