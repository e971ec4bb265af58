"""Points bound once and timed again and again with other costs, as a fit asks for."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from simcoll.accuracy.fit.parameters import ParameterSetting, setting_of
from simcoll.engine.timing_model import Index
from simcoll.errors import RefusedError
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.predict import Prediction, predict
from simcoll.scenario.launch import Process
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Topology


class Question:
    """A point whose time is asked under many settings; a choice that the fit cannot know is made anew each time."""

    def __init__(self, scenario: Scenario):
        profile = load_profile(scenario.profile)
        self.setting = setting_of(profile)
        self.runs: list[_LinkUse] = []
        refused: list[RefusedError] = []
        for option in executor(scenario).alternatives(scenario):
            try:
                self.runs.append(_LinkUse(predict(option, costs=self.setting, keep="totals")))
            except RefusedError as error:
                refused.append(error)
        if not self.runs:
            raise refused[0]

    @property
    def topology(self) -> Topology:
        """The topology, its links as rated."""
        return self.runs[0].topology

    @property
    def kinds(self) -> list[str]:
        """The kinds of links that it uses, in order of first use."""
        return list(dict.fromkeys(kind for run in self.runs for kind in run.kinds))

    @property
    def fastest(self) -> int:
        """B/s of the fastest link that limits it."""
        return max(int(run.speeds.max(initial=1)) for run in self.runs)

    @property
    def slowest(self) -> int:
        """B/s of the slowest link that limits it."""
        return min(int(run.speeds.min(initial=2**62)) for run in self.runs)

    @property
    def processes(self) -> frozenset[Process]:
        """Work of the host's processes for its call; empty where the host is not asked for."""
        return self.runs[0].processes

    @property
    def uploads(self) -> float:
        """To how many GPUs one process brings its graph for each launch of it; 0 where that is nothing."""
        return self.runs[0].uploads

    def time_ps(self, setting: ParameterSetting) -> int:
        """The time in a setting."""
        return min(run.prediction.retimed(setting) for run in self.runs)


class _LinkUse:
    """A prediction, and the rated links that it uses."""

    def __init__(self, prediction: Prediction):
        call = prediction.planned[0].lowered
        self.prediction, self.topology, self._call = prediction, call.rated, call

    @property
    def processes(self) -> frozenset[Process]:
        return self._call.processes

    @property
    def uploads(self) -> float:
        return self._call.uploads

    @cached_property
    def _carried(self) -> list[int]:
        return np.flatnonzero(self.prediction.totals.carried).tolist()

    @cached_property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(self.topology.link_kinds[link] for link in self._carried))

    @cached_property
    def speeds(self) -> Index:
        """B/s of the links that limit it."""
        return self.topology.bandwidths[list(self._call.path) or self._carried]
