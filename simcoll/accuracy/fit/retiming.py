"""Points bound once and timed again and again with other parameters: what a fit asks for.

Schedule, proof, routes and dependencies do not depend on what a calibration changes, and are kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.engine.run import MOST_HELD, Policy, run
from simcoll.engine.timing_model import Index
from simcoll.errors import RefusedError
from simcoll.nccl.kernel_costs import Kernels
from simcoll.prediction.predict import Prediction, placed, predict
from simcoll.scenario.launch import Launch, Process, processes
from simcoll.scenario.profile import ModelSpec, Profile, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.topology.graph import Topology

IDEAL: Final = "ideal"  # the profile under which links are as rated


class Question:
    """A point whose time is asked under many settings; `auto` is the quickest of those that NCCL has, each time."""

    def __init__(self, scenario: Scenario):
        profile, launch = load_profile(scenario.profile), scenario.launch
        asked = scenario.model_copy(update={"launch": Launch()})  # what a launch costs is a setting's
        if profile.kernels:
            self.runs: list[_RetimedAlgorithm | _RetimedCall] = [_RetimedCall(predict(asked), launch)]
            return
        explicit = {"profile": IDEAL, "model": ModelSpec.model_construct(**vars(scenario.params()))}
        self.runs = [
            _RetimedAlgorithm(prediction, launch) for prediction in _predicted(asked.model_copy(update=explicit))
        ]

    @property
    def topology(self) -> Topology:
        """The topology, its links as rated."""
        run = self.runs[0]
        return run.lowered.rated if isinstance(run, _RetimedCall) else run.prediction.topology

    @property
    def kinds(self) -> list[str]:
        """The kinds of links that it uses, in order of first use."""
        return list(dict.fromkeys(kind for run in self.runs for kind in run.used))

    @property
    def fastest(self) -> int:
        """B/s of the fastest link that it uses."""
        return max(run.fastest for run in self.runs)

    @property
    def slowest(self) -> int:
        """B/s of the slowest link that it uses."""
        return min(run.slowest for run in self.runs)

    def time_ps(self, setting: ParameterSetting) -> int:
        """How long it takes in a setting."""
        return max(min(run.time_ps(setting) for run in self.runs), setting.host.pace_ps(self.processes))

    @property
    def processes(self) -> frozenset[Process]:
        """What processes do for its call; none where the host is not asked."""
        return self.runs[0].processes


def _predicted(scenario: Scenario) -> list[Prediction]:
    if scenario.algorithm != "auto":
        return [predict(scenario)]
    found: list[Prediction] = []
    refused: list[RefusedError] = []
    for name in registry.library(scenario.collective):
        try:
            found.append(predict(scenario.model_copy(update={"algorithm": name})))
        except RefusedError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


class _RetimedAlgorithm:
    """One algorithm of a question."""

    def __init__(self, prediction: Prediction, launch: Launch):
        self.prediction, self.graph = prediction, launch.graph
        topology, scenario = prediction.topology, prediction.scenario
        nodes = [topology.node_of(place) for place in placed(scenario, topology)] if launch.paced else []
        self.processes = processes(launch, scenario.collective, nodes, scenario.root)
        kinds = [link.kind for *_, link in topology.graph.edges.data("link")]
        carried = np.flatnonzero(prediction.totals.carried).tolist()
        self.kinds = np.array(kinds)
        self.used = list(dict.fromkeys(kinds[link] for link in carried))
        speeds = topology.bandwidths[carried]
        self.fastest, self.slowest = int(speeds.max(initial=1)), int(speeds.min(initial=2**62))
        self.held = prediction.totals.messages <= MOST_HELD

    def time_ps(self, setting: ParameterSetting) -> int:
        return (self._held(setting) if self.held else self._anew(setting)) + setting.of_launch(self.graph)

    def _held(self, setting: ParameterSetting) -> int:
        program, changed = self.prediction.program, dict[str, Any](setting.params)
        program = dataclasses.replace(
            program,
            params=dataclasses.replace(program.params, **changed),
            bandwidths=self._scaled(program.bandwidths, setting, "efficiency"),
            latencies=np.maximum(self._scaled(program.latencies, setting, "latency"), 1),
        )
        return run(program, Policy(keep="totals")).totals.makespan_ps

    def _scaled(self, column: Index, setting: ParameterSetting, what: str) -> Index:
        factors = np.ones(len(column))
        for kind, scale in setting.links.items():
            factors[self.kinds == kind] = getattr(scale, what)
        return np.rint(column * factors).astype(np.int64)

    def _anew(self, setting: ParameterSetting) -> int:
        """A long schedule is not held, but predicted from the start."""
        spec = self.prediction.scenario.model.model_copy(update=dict(setting.params))
        scenario = self.prediction.scenario.model_copy(update={"model": spec})
        served = Profile(name=IDEAL, links=dict(setting.links)).serve(self.prediction.topology)
        return predict(scenario, served).totals.makespan_ps


class _RetimedCall(_RetimedAlgorithm):
    """A call as NCCL makes it, whatever it costs."""

    def __init__(self, prediction: Prediction, launch: Launch):
        super().__init__(prediction, launch)
        if prediction.lowered is None or prediction.channel is None:
            raise TypeError("a call has been lowered")
        self.lowered, self.channel = prediction.lowered, prediction.channel
        edges = self.lowered.rated.graph.edges.data("link")
        self.links = [link for *_, link in edges]
        rates = [self.links[number].bandwidth for number in self.lowered.path]
        self.fastest, self.slowest = max(rates), min(rates)

    def time_ps(self, setting: ParameterSetting) -> int:
        costs = setting.kernels or Kernels()
        program = self.channel.program
        program = dataclasses.replace(
            program,
            params=dataclasses.replace(program.params, **self.lowered.params(costs)),
            bandwidths=np.array(self.lowered.bandwidths(setting.links, costs), np.int64),
            latencies=np.array(self.lowered.latencies(costs), np.int64),
        )
        makespan_ps = run(program, Policy(keep="totals")).totals.makespan_ps
        return makespan_ps + self.lowered.launch_ps(costs, setting.of_launch(self.graph), setting.links)
