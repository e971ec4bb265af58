"""Times of points under hypotheses, each simulated only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from simcoll.accuracy.diagnosis._hypothesis import HEALTHY, Hypothesis
from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.accuracy.fit.retiming import Question
from simcoll.config.arrays import Floats
from simcoll.errors import InputError, RefusedError
from simcoll.scenario.scenario import Scenario

ChangedCosts = Callable[[ParameterSetting], ParameterSetting]


class HypothesisTimes:
    """Times of points under hypotheses, in us; each point is bound only once. Those of the healthy machine (n,) are
    `predicted` already."""

    def __init__(self, scenarios: Sequence[Scenario], predicted: Floats):
        self._scenarios, self._predicted = scenarios, predicted
        self._asked: dict[tuple[Callable[[Scenario], Scenario], int], Question] = {}  # by change, and point
        self._questions: dict[str, Question] = {}
        self._settings: dict[
            tuple[int, ChangedCosts], ParameterSetting
        ] = {}  # by one of a profile, which is kept, and change
        self._times: dict[tuple[Question, ChangedCosts], float] = {}

    def kinds(self, points: Iterable[int]) -> list[str]:
        """The kinds of links that the points with these numbers use."""
        questions = (self._question(HEALTHY, point) for point in points)
        return list(dict.fromkeys(kind for question in questions for kind in question.kinds))

    def under(self, hypothesis: Hypothesis, points: Iterable[int] | None = None) -> Floats | None:
        """Return the times of all points, or of those with these numbers; None if one of them cannot be simulated."""
        numbers = range(len(self._scenarios)) if points is None else points
        try:
            return np.array([self._time(hypothesis, point) for point in numbers])
        except (RefusedError, InputError):
            return None

    def knows(self, hypothesis: Hypothesis, point: int) -> bool:
        """Whether the time of a point was asked before."""
        if _changes_nothing(hypothesis):
            return True
        question = self._asked.get((hypothesis.scenario, point))
        return question is not None and (question, hypothesis.setting) in self._times

    def _time(self, hypothesis: Hypothesis, point: int) -> float:
        if _changes_nothing(hypothesis):
            return float(self._predicted[point])
        question, change = self._question(hypothesis, point), hypothesis.setting
        if (question, change) not in self._times:
            own = question.setting
            if (id(own), change) not in self._settings:  # costs that are the same object are reckoned once
                self._settings[id(own), change] = change(own)
            self._times[question, change] = question.time_ps(self._settings[id(own), change]) / 1e6
        return self._times[question, change]

    def _question(self, hypothesis: Hypothesis, point: int) -> Question:
        asked = hypothesis.scenario, point
        if asked not in self._asked:
            scenario = hypothesis.scenario(self._scenarios[point])
            key = scenario.model_dump_json(exclude={"name", "plots", "measured"})
            if key not in self._questions:
                self._questions[key] = Question(scenario)
            self._asked[asked] = self._questions[key]
        return self._asked[asked]


def _changes_nothing(hypothesis: Hypothesis) -> bool:
    """Whether calls take as long as on the healthy machine, but for their launch."""
    return hypothesis.scenario is HEALTHY.scenario and hypothesis.setting is HEALTHY.setting
