"""A collective call in the form that engines run, and the executors that turn a scenario into this form. A call runs as
a plain schedule, by NCCL's kernels, or by one kernel of the user. The profile decides which executor is used; if it has
costs of kernels, the scenario's key `executor` may name another. Executors are imported only when a call needs them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Self

from numpy.typing import NDArray

from simcoll.engine.program import Program
from simcoll.engine.timing_model import Index
from simcoll.errors import RefusedError, StuckError
from simcoll.nccl import algorithm_names
from simcoll.prediction.confidence import Judgement
from simcoll.prediction.placed_topology import placed, rated_topology, scaled, served_by
from simcoll.prediction.schedules import copy_orders
from simcoll.prediction.work_limits import check_work
from simcoll.scenario.faults import Fault, struck
from simcoll.scenario.launch import Process, processes, uploads
from simcoll.scenario.profile import CostSetting, Profile, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.topology.graph import Topology
from simcoll.workload.plan import CollectiveCall

BETWEEN_NODES: Final = ("nvls_tree",)  # NCCL has no trees of switches on one node


@dataclass(frozen=True, eq=False, kw_only=True)
class PlainCall:
    """A call of ranks on the devices `places`, over `rated` links. The fields are what an executor decided once; the
    properties follow from `costs`, which `under` replaces.

    `algorithm` is the schedule's name in results, `protocol` and `executor` are names, too. `chosen` holds keys of the
    scenario that the executor chose. The simulated program stands for `count` equal programs, e.g. channels; `whole`
    tells whether it moves all bytes of the call, and `together` whether the calls that `differing` returns move
    different bytes. The host launches the call `launches` times, and writes parameters for
    each of `further_channels`. `down` names links without bandwidth that programs not simulated may use. `usual`:
    profiles are fitted with such settings. `by_itself`: the library would choose this algorithm and protocol. `path`
    holds the links between neighbours whose bandwidth limits a call of NCCL; empty if any link may limit it. `hops` are
    the causes on a critical path that stand for a hop of a kernel.
    """

    whole: ClassVar[bool] = True
    together: ClassVar[bool] = False
    executor: ClassVar[str | None] = None
    hops: ClassVar[frozenset[str]] = frozenset()
    scenario: Scenario
    rated: Topology
    places: tuple[str, ...]
    costs: CostSetting
    algorithm: str
    protocol: str = "none"
    chosen: Mapping[str, object] = field(default_factory=dict)
    count: int = 1
    further_channels: int = 0
    launches: int = 1
    down: tuple[str, ...] = ()
    usual: bool = True
    by_itself: bool = True
    path: tuple[int, ...] = ()

    def under(self, costs: CostSetting) -> Self:
        """Return the call under other costs."""
        return replace(self, costs=costs)

    @property
    def judged(self) -> Judgement | None:
        """Return the confidence in the call's time if the call itself knows it; None if its profile does."""
        return None

    @cached_property
    def processes(self) -> frozenset[Process]:
        """Return the work that the host's CPU processes do for the call; empty if the scenario models no host work."""
        launch = self.scenario.launch
        nodes = [self.rated.node_of(place) for place in self.places] if launch.paced else []
        return processes(launch, self.scenario.collective, nodes, self.scenario.root)

    @cached_property
    def uploads(self) -> float:
        """Return to how many GPUs one process uploads a CUDA graph per launch (`launch.uploads`), else 0."""
        launch = self.scenario.launch
        return uploads(launch, [self.rated.node_of(place) for place in self.places]) if launch.replays else 0.0

    @property
    def params(self) -> dict[str, Any]:
        """Return the engine parameters that depend on costs, by name."""
        return dict(self.costs.params)

    @property
    def point(self) -> Scenario:
        """Return the scenario that engines run: the given scenario, with the costs' parameters as its `model`."""
        if not self.costs.params:
            return self.scenario
        return self.scenario.model_copy(update={"model": self.scenario.model.model_copy(update=self.params)})

    @property
    def topology(self) -> Topology:
        """Return the topology with the bandwidths and latencies that the call's data get."""
        return served_by(self.rated, self.costs.links)

    @property
    def network(self) -> Topology:
        """Return the topology that engines run on."""
        return self.topology

    @property
    def bandwidths(self) -> Index:
        """Return the bandwidths of `network`, int64 (links,), in B/s, without building it."""
        return scaled(self.rated, self.costs.links)[0]

    @property
    def latencies(self) -> Index:
        """Return the latencies of `network`, int64 (links,), in ps, without building it."""
        return scaled(self.rated, self.costs.links)[1]

    @property
    def capacities(self) -> NDArray[Any]:
        """Return the B/s by which the bytes counted on each link are divided for its utilisation, (links,)."""
        return self.topology.bandwidths

    @property
    def paces(self) -> dict[int, tuple[str, float]]:
        """Return, for links whose rate something else limits: the cause, e.g. "proxy", and its share of their time."""
        return {}

    @property
    def waits(self) -> dict[int, dict[str, float]]:
        """Return, for links whose latency is not only a hop's: the other causes, with their shares of the latency."""
        return {}

    @property
    def nics(self) -> int:
        """Return for how many NICs of a node the simulated program stands."""
        return 1

    @property
    def rail_shares(self) -> NDArray[Any] | float:
        """Return, for each link, the share that one NIC's channels get while all use it: (links,) or one number."""
        return 1.0

    def rails(self, used: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return, for each link number in `used`, the links that carry equal traffic at the same time."""
        return {link: (link,) for link in used}

    def struck(self, program: Program, faults: Sequence[Fault]) -> Program:
        """Return the call's program with the changes of links that faults cause. Raises InputError."""
        return struck(program, self.network, faults, self.launch_ps)

    def differing(self) -> list[Self]:
        """Return the calls to simulate, of which the slowest is the answer: the channels that find different links."""
        return [self]

    @property
    def launch_ps(self) -> int:
        """Return the time in ps that the call takes in addition to its transfers: the sum of `lead`."""
        return sum(self.lead.values())

    @property
    def lead(self) -> dict[str, int]:
        """Return the time in ps that the call takes in addition to its transfers, by cause, e.g. "launch"."""
        return {"launch": self._one_launch}

    @property
    def _one_launch(self) -> int:
        launch_ps = self.costs.launch_ps(self.scenario.launch)
        return launch_ps + round(self.uploads * self.costs.graph.upload) if self.costs.graph else launch_ps

    @property
    def host_ps(self) -> int:
        """Return the host's time for the call, in ps; 0 if the scenario models no host work."""
        return self.launches * self.costs.host.pace_ps(self.processes, self.further_channels)

    def stuck(self, error: StuckError) -> StuckError:
        """Return the error to raise when the call cannot finish. It names links that are down, even if the simulated
        channel uses none of them and only channels of other NICs do."""
        if not self.down or any(name in str(error) for name in self.down):
            return error
        why = f"an NCCL call uses all NICs of a node, and these links are down: {', '.join(self.down[:3])}"
        return StuckError(f"the run cannot finish: {why}")

    @property
    def facts(self) -> dict[str, object]:
        """Return further columns of results."""
        return {}

    def cheaper(self) -> Iterator[tuple[str, CostSetting]]:
        """Yield pairs for what-if questions: a description, and the costs if the described thing were cheaper."""
        yield from ()


class PlainExecutor:
    """Runs calls as plain schedules. `tunable`: the scenario's `model` applies. `protocols`: those that it may name."""

    tunable: ClassVar[bool] = True
    protocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, profile: Profile):
        self.profile = profile

    def lower(
        self, scenario: Scenario, topology: Topology | None = None, costs: CostSetting | None = None
    ) -> PlainCall:
        """Return the scenario's call under `costs` (default: those of the profile). Raises RefusedError if the scenario
        asks for what only NCCL's kernels do, InputError for a wrong placement."""
        if scenario.protocol not in ("none", "auto"):
            raise RefusedError(
                f"protocol {scenario.protocol} needs a profile with NCCL kernels; name one, or write `protocol: none`"
            )
        if scenario.env.given:
            raise RefusedError(f"env ({scenario.env}) needs a profile with NCCL kernels; name one, or leave out `env`")
        rated = topology or rated_topology(scenario)
        return PlainCall(
            scenario=scenario,
            rated=rated,
            places=placed(scenario, rated),
            costs=costs or CostSetting.of(self.profile),
            algorithm=scenario.algorithm,
        )

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """Return scenarios to simulate, of which the fastest is the answer. For `auto` there is one for each algorithm
        that NCCL has on such nodes. If only NCCL has the named algorithm, the scenario names NCCL's schedule
        instead."""
        called = algorithm_names.names(scenario.collective).get(scenario.algorithm)
        if called and scenario.algorithm not in registry.names(scenario.collective):
            return [scenario.model_copy(update={"algorithm": algorithm_names.SCHEDULES[called, scenario.collective]})]
        if scenario.algorithm not in ("auto", "best"):
            return [scenario]
        served = registry.library(scenario.collective)
        options = {name: scenario.model_copy(update={"algorithm": name}) for name in served}
        for name, option in options.items():
            if not registry.find(scenario.collective, name)[0].needs_agent:  # a network may have no such agent
                check_work(option)  # all of them will be run, on a topology that may be large to build
        rated = topology or rated_topology(scenario)
        alone = rated.nodes_of(placed(scenario, rated)) == 1
        return [option for name, option in options.items() if not (alone and name in BETWEEN_NODES)]

    def copies(self, scenario: Scenario, topology: Topology) -> int:
        """Return how many copies of a call's schedule use all NICs, direct links or directions. Return 0 if the number
        is not free: the profile is fitted or chooses it, or the scenario sets copies or channels."""
        given = scenario.model.copies or scenario.model.channels is not None
        if given or self.profile.calibration or self.profile.bound:
            return 0
        return len(copy_orders(scenario, topology, placed(scenario, topology)))

    def choices(self, scenario: Scenario, topology: Topology | None = None) -> list[tuple[str, str]]:
        """Return the pairs (algorithm, protocol) between which NCCL could choose; plain schedules have none."""
        return []

    def algorithms(self, collectives: Collection[str]) -> list[str]:
        """Return the algorithms that can run each of the collectives: NCCL's algorithms, and `hierarchical`."""
        served = [
            {*registry.library(collective), *({"hierarchical"} & {*registry.names(collective)})}
            for collective in collectives
        ]
        return sorted(set.intersection(*served)) if served else []

    def release(self, scenario: Scenario) -> str | None:
        """Return the release of NCCL to model: the scenario's, or else the profile's; None means the newest."""
        return scenario.library_version or (self.profile.kernels.version if self.profile.kernels else None)


def executor(scenario: Scenario) -> PlainExecutor:
    """Return the executor that runs a scenario's call; raises InputError for a profile that cannot be read."""
    if scenario.moe:
        from simcoll.prediction.expert_calls import ExpertExecutor

        return ExpertExecutor(load_profile(scenario.profile))
    by = scenario.executed_by
    if by not in ("msccl", "p2p"):
        return library(scenario.profile)
    from simcoll.prediction.msccl_and_p2p_calls import KernelExecutor, MessagesExecutor

    return (KernelExecutor if by == "msccl" else MessagesExecutor)(load_profile(scenario.profile))


def library(profile: str) -> PlainExecutor:
    """Return the executor for calls that the library itself makes, with this profile. Raises like `executor`."""
    known = load_profile(profile)
    if known.as_nccl:
        from simcoll.prediction.nccl_calls import NcclExecutor

        return NcclExecutor(known)
    if known.bound:
        from simcoll.prediction.fastest_variant import FastestVariantExecutor

        return FastestVariantExecutor(known)
    return PlainExecutor(known)


def alone(scenario: Scenario, places: Sequence[str], call: CollectiveCall, ranks: Sequence[int]) -> Scenario:
    """Return the scenario of one call of a workload by `ranks`; `places` are the devices of all ranks."""
    devices = tuple(places[rank] for rank in ranks)
    own: dict[str, Any] = {
        "workload": None,
        "faults": (),
        "variability": None,
        "replications": None,
        "collective": call.collective,
        "algorithm": call.algorithm,
        "protocol": call.protocol or scenario.protocol,
        "dtype": call.dtype or scenario.dtype,
        "size": call.nbytes,
        "root": call.root,
        "weights": None,
        "placement": devices,
        "ranks": None,
        "groups": scenario.groups if devices == tuple(places) else None,
    }
    if call.tokens:
        own |= {"moe": call.tokens.moe, "executor": call.tokens.executor, "sms": call.tokens.sms, "dtype": "uint8"}
    return scenario.model_copy(update=own)
