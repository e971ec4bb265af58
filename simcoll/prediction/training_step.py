"""Predict a training step (`template: training`): its calls one by one, then its plan on one rank of each stage."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simcoll.config.numpy_helpers import Numbers
from simcoll.engine.lower_bounds import LowerBound
from simcoll.engine.run import Outcome
from simcoll.engine.timeline import Totals
from simcoll.errors import wrong
from simcoll.prediction.placed_topology import placed, rated_topology, served_by
from simcoll.prediction.predictions import CountedLinks, Prediction, ProgramRun, StepPrediction
from simcoll.prediction.runs import predict_plan
from simcoll.scenario.profile import CostSetting, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Topology
from simcoll.topology.topology_builder import check_nodes, nodes_of
from simcoll.workload.compute import compute_of
from simcoll.workload.plan import CollectiveCall, WorkloadPlan
from simcoll.workload.rank_layout import Call, Layout, layout_of
from simcoll.workload.training_keys import TrainingStep
from simcoll.workload.training_memory import Memory, memory_of
from simcoll.workload.training_on_all_ranks import on_all_ranks
from simcoll.workload.training_plan import COMPUTING, EXCHANGES, Planner, TimedStep
from simcoll.workload.workload_keys import Operations, OperationSpec

PROBED: Final = 4  # ranks of each group with which larger groups are tried: do they delay each other?
PROBE: Final = 2**22  # bytes of this call
MOST_JOINT: Final = 100_000  # operations of the ranks of a stage, times ranks, up to which all ranks are simulated
WHOLE: Final = 64  # nodes of the largest machine of which all links are built
RAILS: Final = 32  # nodes of a leaf switch on rails
TREE: Final = 4  # nodes of a leaf switch of a fat tree


def step_of(scenario: Scenario) -> TrainingStep:
    """Return the training step of a scenario that has one."""
    spec = scenario.workload
    assert isinstance(spec, TrainingStep)
    return spec


class CallTimes:
    """The times of the calls of steps on one machine, each from a simulation of the call in all groups of its dimension
    that share nodes. Calls on equal places take equally long, and are simulated once."""

    def __init__(self, scenario: Scenario, topology: Topology | None = None, costs: CostSetting | None = None):
        """Take a topology and costs in place of the scenario's and those of its profile."""
        spec, self.costs = scenario.topology, costs or CostSetting.of(load_profile(scenario.profile))
        self._leaf = spec.nodes_per_leaf or (RAILS if spec.fabric in (None, "rail-optimised") else TREE)
        self._even = not (spec.links or spec.file or spec.routes or scenario.striking)
        free = topology is None and scenario.placement is None and scenario.ranks is None
        self._parts = bool(spec.system) and self._even and free  # calls run on parts of the machine
        many = nodes_of(spec) if self._parts and nodes_of(spec) > WHOLE else 0
        if many:
            check_nodes(spec)
        self.scenario = scenario
        self.topology = topology or rated_topology(self._part(WHOLE) if many else scenario)
        self.places = placed(self._part(WHOLE) if many else scenario, self.topology)
        if many:
            inside = [place.partition(".")[2] for place in self.places[: len(self.places) // WHOLE]]
            self.places = tuple(f"node{node}.{name}" for node in range(many) for name in inside)
            self.nodes = np.repeat(np.arange(many), len(inside))
        else:
            self.nodes = np.array([self.topology.node_of(place) for place in self.places])
        in_order = np.array_equal(self.nodes, np.arange(len(self.nodes)) // self.per_node)
        self._parts = self._parts and in_order
        self.known: dict[tuple[object, ...], Prediction] = {}
        self.quiet: dict[tuple[object, ...], bool] = {}  # whether groups do not delay each other

    def _part(self, nodes: int) -> Scenario:
        """Return the scenario on the first nodes of its machine."""
        spec = self.scenario.topology.model_copy(update={"nodes": nodes})
        return self.scenario.model_copy(update={"topology": spec})

    @property
    def per_node(self) -> int:
        """Return the number of ranks of the first node."""
        return int((self.nodes == self.nodes[0]).sum())

    def together(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the first group, and the others that are on its nodes."""
        of_first = np.zeros(int(self.nodes.max()) + 1, bool)
        of_first[self.nodes[list(groups[0])]] = True
        return [list(group) for group in groups if of_first[self.nodes[list(group)]].any()]

    def time_ps(self, groups: Sequence[Sequence[int]], call: CollectiveCall) -> int:
        """Return the time of a call in some groups at once, of which the first is meant. Of large groups that do not
        delay each other on a few nodes, only the first is simulated."""
        near = self.together(groups)
        if len(near) > 1 and len(near[0]) > PROBED:
            few = [group[:PROBED] for group in near]
            key = (self.where(few), call.collective)
            if key not in self.quiet:
                probe = call._replace(nbytes=PROBE)
                both = (self.called(which, probe).time_ps for which in (few, few[:1]))
                self.quiet[key] = len(set(both)) == 1
            near = near[:1] if self.quiet[key] else near
        return self.called(near, call).time_ps

    def called(self, groups: Sequence[Sequence[int]], call: CollectiveCall) -> Prediction:
        """Return the prediction of one call of the groups."""
        key = (self.where(groups), call)
        if key not in self.known:
            scenario, topology = self.scenario, None if self._parts else self.topology
            if self._parts:  # the first nodes of the machine are as good as those of the groups
                ranks = np.concatenate([np.array(group) for group in groups])
                base = self._base(self.nodes[ranks])
                last, whole = int(self.nodes[ranks].max()) - base, int(self.nodes[-1]) + 1
                scenario = self._part(min(whole, max(2, 2 ** last.bit_length())))
                groups = [[rank - base * self.per_node for rank in group] for group in groups]
            own = dict(call.tokens) if call.tokens else {}
            one = OperationSpec.model_construct(
                name="call", collective=call.collective, size=call.nbytes, algorithm=call.algorithm,
                groups=tuple(map(tuple, groups)), **own,
            )  # fmt: skip
            once = {"variability": None, "replications": None, "dtype": call.dtype}
            work = Operations.model_construct(operations=(one,))
            asked = scenario.model_copy(update={"workload": work, **once})
            self.known[key] = predict_plan(asked, topology, self.costs)
        return self.known[key]

    def _base(self, nodes: Numbers) -> int:
        """Return the node from which the places of a call are counted: the first one of its leaf switch, or, if one
        leaf switch joins all, its own first node."""
        if not self._even:
            return 0
        first = int(nodes.min())
        base = first - first % self._leaf
        return first if int(nodes.max()) < base + self._leaf else base

    def where(self, groups: Sequence[Sequence[int]]) -> tuple[object, ...]:
        """Return a key that is equal for groups on equal places: relative to the first node, on even fabrics."""
        ranks = np.concatenate([np.array(group) for group in groups])
        sizes = tuple(map(len, groups))
        nodes = self.nodes[ranks]
        base = self._base(nodes)
        inside = [self.places[rank].partition(".")[2] for rank in ranks]
        return (sizes, (nodes - base).tobytes(), tuple(inside))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TrainingPrediction(Prediction):
    """The prediction of a training step: its plan with times, the planner that made it, and its memory."""

    planner: Planner
    timed: TimedStep
    memory: Memory
    times: CallTimes

    @property
    def step(self) -> TrainingStep:
        """Return the keys of the step."""
        return step_of(self.scenario)

    @property
    def nodes(self) -> int:  # of a large machine only a part is built
        """Return the number of nodes that the ranks are on."""
        return len(np.unique(self.times.nodes))

    @functools.cached_property
    def breakdown(self) -> Mapping[str, int]:
        """Return where the time of the stage that computes most goes, in ps by kind."""
        return self.timed.breakdown(self.timed.busiest)

    @property
    def compute_ps(self) -> int:
        """Return the computing time of the stage that computes most."""
        return sum(self.breakdown[name] for name in COMPUTING)

    @property
    def waiting_ps(self) -> int:
        """Return the bubble and waiting of this rank."""
        return self.breakdown["bubble"] + self.breakdown["wait"]

    @property
    def exposed_ps(self) -> int:
        """Return what exchanges add to the step."""
        return sum(self.breakdown[name] for name in EXCHANGES)

    @property
    def limit(self) -> float:
        """Return the memory of the GPU, in bytes."""
        return self.planner.compute.memory_bytes


def facts(planner: Planner, timed: TimedStep, memory: Memory) -> dict[str, object]:
    """Return the columns of results that a training step has."""
    spec, seconds = planner.spec, timed.time_ps / 1e12
    parts, gpus = timed.breakdown(timed.busiest), planner.layout.dense.size
    batch = spec.batch.global_
    flop = spec.model.flop(spec.batch.sequence) * batch
    of_block = sum(a * b for a, b, _ in spec.model.every_second)
    some = sum(spec.model.macs(n) if spec.model.has_experts(n) else of_block for n in range(spec.model.layers))
    again = {"none": 0.0, "selective": spec.model.attention_flop(spec.batch.sequence) / 3 * batch,
             "operations": 2.0 * spec.batch.sequence * batch * some,
             "full": (flop - spec.model.head_flop(spec.batch.sequence) * batch) / 3}[spec.recompute]  # fmt: skip
    if spec.recompute == "full" and planner.compute.framework.recompute_stops:
        dense = sum(not spec.model.has_experts(n) for n in range(spec.model.layers))
        again -= 2.0 * spec.batch.sequence * batch * dense * spec.model.hidden * spec.model.ffn
    again *= math.ceil(spec.model.layers / spec.recompute_every) / spec.model.layers
    peak = planner.compute.peak(spec.dtypes.compute) * gpus * seconds
    low, high = planner.compute.framework.holds
    known = planner.compute.alike  # of other GPUs no published steps were held out
    return {
        "dtype": spec.dtypes.compute,
        "low_us": timed.time_ps / 1e6 * low if known else None,
        "high_us": timed.time_ps / 1e6 * high if known else None,
        "mfu": flop / peak,
        "hfu": (flop + again) / peak,
        "tokens_per_s_per_gpu": batch * spec.batch.sequence / seconds / gpus,
        "memory_GB": memory.total / 1e9,
        "memory_limit_GB": planner.compute.memory_bytes / 1e9,
        **{f"memory_{name}_GB": value / 1e9 for name, value in memory._asdict().items()},
        **{f"compute_{name}_us": parts[name] / 1e6 for name in COMPUTING},
        **{f"{name}_us": parts[name] / 1e6 for name in ("bubble", "wait", "optimizer", "interference")},
        **{f"exposed_{name}_us": parts[name] / 1e6 for name in EXCHANGES},
        "waiting_us": None,
        **dict.fromkeys(("messages", "wire_bytes", "bytes_per_rank", "binding_link", "binding_busy")),
        "shortcut": "replicas",
    }


def planner_of(scenario: Scenario, times: CallTimes) -> Planner:
    """Return the planner of a scenario's step. Raises InputError for degrees that do not fit."""
    spec = step_of(scenario)
    if spec.gpu is None:
        raise wrong("workload.gpu", "the machine does not say which GPU computes", "add e.g. gpu: h100")
    frame = spec.framework
    compute = compute_of(spec.gpu, frame.name, frame.kernels, frame.attention, frame.cuda_graphs)
    compute.peak(spec.dtypes.compute)
    layout = layout_of(spec, len(times.places), times.per_node)
    return Planner(spec, layout, compute, functools.cache(functools.partial(_called, times, layout, spec.algorithm)))


def _called(times: CallTimes, layout: Layout, algorithm: str, call: Call) -> int:
    return times.time_ps(layout.groups_of(call), call.made(algorithm))


def check_memory(planner: Planner, memory: Memory) -> None:
    """Raise InputError if a step needs more memory than its GPU has."""
    spec, limit = planner.spec, planner.compute.memory_bytes
    if spec.memory == "ignore" or memory.total <= limit:
        return
    most = max(memory._asdict().items(), key=lambda item: item[1])
    needs = f"the step needs {memory.total / 1e9:.0f} GB of a GPU's {limit / 1e9:.0f} GB"
    problem = f"{needs}, {most[1] / 1e9:.0f} GB for {most[0]}"
    raise wrong("workload", problem, f"{_fitting(planner)}, or write `memory: ignore`")


def _fitting(planner: Planner) -> str:
    """Return, in words, the change of one key with which the step fits."""
    spec = planner.spec
    changes: list[tuple[str, dict[str, Any]]] = [
        ("recompute: selective", {"recompute": "selective"}),
        ("sharding: zero1", {"parallel": spec.parallel.model_copy(update={"sharding": "zero1"})}),
        ("dtypes: {gradients: bf16}", {"dtypes": spec.dtypes.model_copy(update={"gradients": "bf16"})}),
        ("recompute: full", {"recompute": "full"}),
        ("sharding: fsdp", {"parallel": spec.parallel.model_copy(update={"sharding": "fsdp"})}),
        ("sharding: fsdp and recompute: full",
         {"parallel": spec.parallel.model_copy(update={"sharding": "fsdp"}), "recompute": "full"}),
    ]  # fmt: skip
    for text, change in changes:
        other = spec.model_copy(update=change)
        tried = Planner(other, planner.layout, planner.compute, lambda call: 0)
        if memory_of(tried).total <= planner.compute.memory_bytes:
            return f"write {text}, which fits"
    return "take more tensor or pipeline parallelism"


def plan_on_all_ranks(scenario: Scenario) -> WorkloadPlan:
    """Return the plan of a training step on all its ranks. Raises like `predict_all_ranks`."""
    planner = planner_of(scenario, CallTimes(scenario))
    return on_all_ranks(planner, planner.planned())


def predict_all_ranks(scenario: Scenario, topology: Topology | None, costs: CostSetting) -> StepPrediction:
    """Return the prediction of a training step with all its ranks simulated jointly. Raises like `predict_training`."""
    times = CallTimes(scenario, topology, costs)
    planner = planner_of(scenario, times)
    memory = memory_of(planner)
    check_memory(planner, memory)
    steps = planner.planned()
    if len(steps.operations) * len(times.places) > MOST_JOINT:
        problem = f"the joint simulation of all {len(times.places)} ranks has too many operations"
        raise wrong("workload", problem, "ask for fewer ranks, or leave out `shortcuts: off` and --trace")
    found = predict_plan(scenario, topology, costs, on_all_ranks(planner, steps))
    told = facts(planner, steps.timed(), memory)
    return replace(found, facts={name: value for name, value in told.items() if name.startswith("memory")})


def predict_training(
    scenario: Scenario, topology: Topology | None, costs: CostSetting, times: CallTimes | None = None
) -> TrainingPrediction:
    """Return the prediction of a training step. Raises the errors of `predict`, and InputError if the step does not
    fit into memory. `times`: times of calls on this machine that are known."""
    times = times or CallTimes(scenario, topology, costs)
    planner = planner_of(scenario, times)
    memory = memory_of(planner)
    check_memory(planner, memory)
    timed = planner.planned().timed()
    network = served_by(times.topology, costs.links)
    links = CountedLinks(network.link_names, network.link_kinds, network.bandwidths)
    totals = Totals(timed.time_ps, np.zeros(len(links.names), np.int64), 0, 0, 0, "replicas")
    made = functools.partial(predict_all_ranks, scenario, topology, costs)
    return TrainingPrediction(
        scenario=scenario,
        costs=costs,
        topology=network,
        devices=times.places,
        run=ProgramRun(scenario, lambda: made().run.program, Outcome("fast", totals)),
        totals=totals,
        bound=lambda: LowerBound(sum(timed.breakdown(timed.busiest)[name] for name in COMPUTING), "compute"),
        anew=functools.partial(predict_training, scenario, topology),
        n=len(times.places),
        planned=[call for found in times.known.values() for call in found.planned],
        counted=links,
        facts=facts(planner, timed, memory),
        planner=planner,
        timed=timed,
        memory=memory,
        times=times,
    )
