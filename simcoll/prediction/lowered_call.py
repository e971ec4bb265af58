"""A call as engines run it, and the executors that make it of a scenario: plain, NCCL's, or one kernel's.

The profile decides which executor it is, and the scenario's `executor` where the profile has kernels. Executors are
imported when a call needs them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.engine.timing_model import Index
from simcoll.errors import RefusedError, StuckError
from simcoll.nccl import algorithm_names
from simcoll.prediction.placed_topology import placed, rated_topology, scaled, served_by
from simcoll.prediction.schedules import copy_orders
from simcoll.prediction.work_limits import check_work
from simcoll.scenario.launch import Process, processes, uploads
from simcoll.scenario.profile import CostSetting, Profile, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.topology.graph import Topology
from simcoll.workload.plan import CollectiveCall

BETWEEN_NODES: Final = ("nvls_tree",)  # NCCL has no trees of switches on one node


@dataclass(frozen=True, eq=False)
class PlainCall:
    """A call on ranks at `places`, on `rated` links; methods take the costs under which it runs. `whole`: engines run
    all of it. `executor`: the name of its executor in results. `hops`: causes on a critical path that stand for a hop
    of a kernel."""

    whole: ClassVar[bool] = True
    executor: ClassVar[str | None] = None
    hops: ClassVar[frozenset[str]] = frozenset()
    scenario: Scenario
    rated: Topology
    places: tuple[str, ...]

    @property
    def algorithm(self) -> str:
        """The schedule that is run."""
        return self.scenario.algorithm

    @property
    def protocol(self) -> str:
        """NCCL's protocol, or none."""
        return "none"

    @property
    def chosen(self) -> dict[str, object]:
        """Keys of the scenario that the executor chose, with their values."""
        return {}

    @property
    def count(self) -> int:
        """Number of such programs side by side; each does the same at the same time."""
        return 1

    @cached_property
    def processes(self) -> frozenset[Process]:
        """Work of the host's processes for the call; empty where the scenario does not ask for it."""
        launch = self.scenario.launch
        nodes = [self.rated.node_of(place) for place in self.places] if launch.paced else []
        return processes(launch, self.scenario.collective, nodes, self.scenario.root)

    @property
    def further_channels(self) -> int:
        """Channels beside the first that the host writes down for each GPU."""
        return 0

    @cached_property
    def uploads(self) -> float:
        """To how many GPUs one process brings its graph for each launch of it; see `launch.uploads`."""
        launch = self.scenario.launch
        return uploads(launch, [self.rated.node_of(place) for place in self.places]) if launch.replays else 0.0

    @property
    def usual(self) -> bool:
        """Whether it runs as the calls do that profiles are fitted to."""
        return True

    @property
    def by_itself(self) -> bool:
        """Whether it runs so too where the algorithm and the protocol are left to the library."""
        return True

    @property
    def path(self) -> tuple[int, ...]:
        """Links between neighbours, whose bandwidth limits one call of NCCL; empty where any link may."""
        return ()

    def params(self, costs: CostSetting) -> dict[str, Any]:
        """Parameters of the engines that depend on costs."""
        return dict(costs.params)

    def point(self, costs: CostSetting) -> Scenario:
        """The point that engines run."""
        if not costs.params:
            return self.scenario
        return self.scenario.model_copy(update={"model": self.scenario.model.model_copy(update=self.params(costs))})

    def topology(self, costs: CostSetting) -> Topology:
        """Links as they serve."""
        return served_by(self.rated, costs.links)

    def network(self, costs: CostSetting) -> Topology:
        """Links as engines have them."""
        return self.topology(costs)

    def bandwidths(self, costs: CostSetting) -> Index:
        """Bandwidths of the network, int64 (links,), in B/s, without making it."""
        return scaled(self.rated, costs.links)[0]

    def latencies(self, costs: CostSetting) -> Index:
        """Latencies of the network, int64 (links,), in ps, without making it."""
        return scaled(self.rated, costs.links)[1]

    @cached_property
    def _kinds(self) -> Any:
        return np.array(self.rated.link_kinds)

    def capacities(self, costs: CostSetting) -> NDArray[Any]:
        """B/s that serve the bytes counted on each link, (links,)."""
        return self.topology(costs).bandwidths

    def paces(self, costs: CostSetting) -> dict[int, tuple[str, float]]:
        """Links, by number, that serve no faster because of something else: the cause of a share of the time there."""
        return {}

    @property
    def nics(self) -> int:
        """NICs of each node by which the channels go that what is run stands for."""
        return 1

    @property
    def rail_shares(self) -> NDArray[np.float64] | float:
        """Share that the channels by one of them have of each link on which those of all meet, (links,) or of all."""
        return 1.0

    def rails(self, used: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """For each of the links that the run `used`, by number: those that carry the same at the same time."""
        return {link: (link,) for link in used}

    def launch_ps(self, costs: CostSetting) -> int:
        """Time of the call beside the run of the engines, in ps."""
        launch_ps = costs.launch_ps(self.scenario.launch)
        return launch_ps + round(self.uploads * costs.graph.upload) if costs.graph else launch_ps

    def lead(self, costs: CostSetting) -> dict[str, int]:
        """The same by cause."""
        return {"launch": self.launch_ps(costs)}

    def host_ps(self, costs: CostSetting) -> int:
        """Time of the host for the call, in ps; 0 where the scenario does not ask for it."""
        return costs.host.pace_ps(self.processes, self.further_channels)

    def stuck(self, error: StuckError) -> StuckError:
        """The error to raise where a run on these links cannot finish."""
        return error

    def cheaper(self, costs: CostSetting) -> Iterator[tuple[str, CostSetting]]:
        """Costs lower than these, each with a text, for what-if questions."""
        yield from ()


class PlainExecutor:
    """Runs calls as plain schedules. `tunable`: the scenario's `model` decides how; `protocols` can be forced."""

    tunable: ClassVar[bool] = True
    protocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, profile: Profile):
        self.profile = profile

    def lower(self, scenario: Scenario, topology: Topology | None = None) -> PlainCall:
        """The call of a scenario; raises RefusedError for what only kernels do, InputError for a wrong placement."""
        if scenario.protocol not in ("none", "auto"):
            raise RefusedError(
                f"protocol {scenario.protocol} needs a profile with kernels; take one, or protocol: none"
            )
        if scenario.env.given:
            raise RefusedError(f"env ({scenario.env}) needs a profile with kernels; take one, or leave it out")
        rated = topology or rated_topology(scenario)
        return PlainCall(scenario, rated, placed(scenario, rated))

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """Scenarios of which the quickest is the one asked for: with each algorithm that NCCL runs on such nodes for
        `auto`, and with the schedule that a name stands for which only NCCL has."""
        called = algorithm_names.names(scenario.collective).get(scenario.algorithm)
        if called and scenario.algorithm not in registry.names(scenario.collective):
            return [scenario.model_copy(update={"algorithm": algorithm_names.SCHEDULES[called, scenario.collective]})]
        if scenario.algorithm not in ("auto", "best"):
            return [scenario]
        served = registry.library(scenario.collective)
        options = {name: scenario.model_copy(update={"algorithm": name}) for name in served}
        for name, option in options.items():
            if not registry.find(scenario.collective, name)[0].needs_agent:  # which a network may not have
                check_work(option)  # all of them will be run, for which a topology is built that may be large
        rated = topology or rated_topology(scenario)
        alone = rated.nodes_of(placed(scenario, rated)) == 1
        return [option for name, option in options.items() if not (alone and name in BETWEEN_NODES)]

    def copies(self, scenario: Scenario, topology: Topology) -> int:
        """Copies of a call's schedule that use all NICs, direct links or directions; 0 where they are not to choose:
        with a fitted profile, with one that chooses by itself, and where the scenario names copies or channels."""
        given = scenario.model.copies or scenario.model.channels is not None
        if given or self.profile.calibration or self.profile.bound:
            return 0
        return len(copy_orders(scenario, topology, placed(scenario, topology)))

    def choices(self, scenario: Scenario, topology: Topology | None = None) -> list[tuple[str, str]]:
        """Algorithms and protocols that NCCL could choose between; none for plain schedules."""
        return []

    def algorithms(self, collectives: Collection[str]) -> list[str]:
        """Algorithms that serve all of these collectives: those of NCCL, and the hierarchical one."""
        served = [
            {*registry.library(collective), *({"hierarchical"} & {*registry.names(collective)})}
            for collective in collectives
        ]
        return sorted(set.intersection(*served)) if served else []

    def release(self, scenario: Scenario) -> str | None:
        """NCCL's release that is modelled; None: the newest."""
        return scenario.library_version


__all__ = ["PlainCall", "PlainExecutor", "alone", "executor", "library", "lower"]


def executor(scenario: Scenario) -> PlainExecutor:
    """The executor of a scenario's call; raises InputError for a profile that cannot be read."""
    by = scenario.executed_by
    if by not in ("msccl", "p2p"):
        return library(scenario.profile)
    from simcoll.prediction.kernel_calls import KernelExecutor, MessagesExecutor

    return (KernelExecutor if by == "msccl" else MessagesExecutor)(load_profile(scenario.profile))


def library(profile: str) -> PlainExecutor:
    """The executor of the library's own calls with a profile. Raises like `executor`."""
    known = load_profile(profile)
    if known.as_nccl:
        from simcoll.prediction.nccl_calls import NcclExecutor

        return NcclExecutor(known)
    if known.bound:
        from simcoll.prediction.calls_at_best import IdealExecutor

        return IdealExecutor(known)
    return PlainExecutor(known)


def lower(scenario: Scenario, topology: Topology | None = None) -> PlainCall:
    """The call of a scenario as engines run it, on rated links of a `topology` of one's own or of the scenario's.

    Raises RefusedError for what cannot be run so, InputError for a wrong placement.
    """
    return executor(scenario).lower(scenario, topology)


def alone(scenario: Scenario, places: Sequence[str], call: CollectiveCall, ranks: Sequence[int]) -> Scenario:
    """The scenario of a call of a workload by itself, by some of the ranks at `places`."""
    devices = tuple(places[rank] for rank in ranks)
    own: dict[str, Any] = {
        "workload": None,
        "faults": (),
        "variability": None,
        "replications": None,
        "collective": call.collective,
        "algorithm": call.algorithm,
        "protocol": call.protocol or scenario.protocol,
        "size": call.nbytes,
        "root": call.root,
        "weights": call.weights,
        "placement": devices,
        "ranks": None,
        "groups": scenario.groups if devices == tuple(places) else None,
    }
    return scenario.model_copy(update=own)
