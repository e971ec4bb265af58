"""The calls of a workload as programs: each proved schedule bound to the devices of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from simcoll.engine.program import Program, bind
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError, TopologyError, wrong
from simcoll.nccl.kernel_costs import Kernels
from simcoll.prediction.lowering import PLAIN, lower
from simcoll.prediction.predict import placed, predict, topology_of
from simcoll.prediction.schedule_source import agents_of, source_of
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.streamed import StreamedSchedule
from simcoll.topology.graph import Link, Topology
from simcoll.workload.plan import CollectiveCall


class BoundCall(NamedTuple):
    """A call as engines run it, what it takes before that, and what was chosen for it."""

    program: Program
    launch_ps: int
    algorithm: str
    protocol: str
    proved: str


class Binder:
    """Binds the calls of a scenario, once those that are alike. `topology` has links as the profile serves them,
    `network` as programs are bound to them."""

    def __init__(self, scenario: Scenario):
        self.scenario, self.profile = scenario, load_profile(scenario.profile)
        kernels = self.profile.kernels
        self.rated = topology_of(scenario.model_copy(update={"profile": PLAIN}) if kernels else scenario)
        self.topology = self.profile.serve(self.rated) if kernels else self.rated
        self.network = _without_latency(self.topology) if kernels else self.topology
        self.places = placed(scenario, self.rated)
        self.calls: dict[tuple[CollectiveCall, tuple[int, ...]], BoundCall] = {}

    def bound(self, call: CollectiveCall, ranks: tuple[int, ...]) -> BoundCall:
        """A call of some ranks; raises RefusedError if its algorithm cannot serve, InputError for wrong input."""
        key = call, ranks
        if key not in self.calls:
            try:
                self.calls[key] = self._made(self._alone(call, tuple(self.places[rank] for rank in ranks)))
            except TopologyError:
                raise
            except InputError as error:  # keys that only the call has stand in the workload
                own = ("", "root")
                told = (replace(d, path="workload") if d.path in own else d for d in error.diagnostics)
                raise InputError(told) from None
        return self.calls[key]

    def _made(self, asked: Scenario) -> BoundCall:
        if asked.nbytes % asked.itemsize:
            what = f"{asked.collective} of {asked.nbytes} B: no whole elements of {asked.dtype}"
            raise wrong("workload", what, f"write a multiple of {asked.itemsize} B")
        kernels = self.profile.kernels
        return self._launched(asked, kernels) if kernels else self._plain(asked)

    def _alone(self, call: CollectiveCall, devices: tuple[str, ...]) -> Scenario:
        """The scenario of a call by itself."""
        own: dict[str, Any] = {
            "workload": None,
            "faults": (),
            "variability": None,
            "replications": None,
            "collective": call.collective,
            "algorithm": call.algorithm,
            "size": call.nbytes,
            "root": call.root,
            "weights": call.weights,
            "placement": devices,
            "ranks": None,
            "groups": self.scenario.groups if devices == tuple(self.places) else None,
        }
        return self.scenario.model_copy(update=own)

    def _plain(self, asked: Scenario) -> BoundCall:
        if asked.algorithm == "auto":
            asked = asked.model_copy(update={"algorithm": predict(asked).algorithm})
        program, proved = self._program(asked, asked.params(), asked.nbytes)
        return BoundCall(program, self.profile.launch_ps(asked.launch), asked.algorithm, asked.protocol, proved)

    def _launched(self, asked: Scenario, kernels: Kernels) -> BoundCall:
        """A call as NCCL makes it: one of its channels, on links of which it has a share. Here links are whole, since
        other calls share them, and what it sends is larger instead; a hop's latency is among the kernel's costs."""
        one_way = asked.collective == "send_recv" and asked.algorithm == "direct"  # costs are those of both ways
        asked = asked.model_copy(update={"algorithm": "auto"}) if one_way else asked
        lowered = lower(asked, kernels, self.rated, asked.placement)
        one = lowered.point(kernels)
        one = one.model_copy(update={"algorithm": "direct"}) if one_way else one
        larger = 1 / Fraction(lowered.call.share_of_links(kernels, outer=False, host=lowered.call.staged))
        grain = lowered.call.communicator.ranks * asked.itemsize
        params = replace(one.params(), chunk=lowered.call.chunk, **lowered.call.beside_others(kernels))
        program, proved = self._program(
            one,
            replace(params, chunk=-int(-params.chunk * larger // asked.itemsize) * asked.itemsize),
            max(1, int(one.nbytes * larger) // grain) * grain,
        )
        launch = lowered.launch_ps(kernels, self.profile.launch_ps(asked.launch), self.profile.links)
        name = "direct" if one_way else lowered.call.name
        return BoundCall(program, launch, name, lowered.call.protocol, proved)

    def _program(self, asked: Scenario, params: Params, nbytes: int) -> tuple[Program, str]:
        devices: Sequence[str] = asked.placement
        source, proved = source_of(asked, self.network, devices)
        schedule = source.schedule() if isinstance(source, StreamedSchedule) else source
        where = (*devices, *agents_of(asked, self.network, devices)[: schedule.agents])
        how: dict[str, Any] = {"itemsize": asked.itemsize, "weights": asked.weights}
        return bind(schedule, self.network, where, params, nbytes, **how), proved


def _without_latency(topology: Topology) -> Topology:
    graph = topology.graph.copy()
    for *_, data in graph.edges(data=True):
        data["link"] = Link(data["link"].bandwidth, 1, data["link"].kind)
    return Topology(graph, topology.name, topology.routing, topology.explicit)
