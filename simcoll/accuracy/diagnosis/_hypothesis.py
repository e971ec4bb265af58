"""One explanation of measured times, as a changed scenario or changed parameters to simulate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.scenario.scenario import Scenario

# Mean |log error| that each assumption costs a hypothesis: a free number has to gain 1.5 %, or the simpler one wins. Of
# two that explain a table alike, a half of the rate is likelier than an eighth: each halving costs a tenth of that.
PENALTY: Final = 0.015
HALVING: Final = PENALTY / 10
T = TypeVar("T")
HostPacing = Literal["as measured", "adds", "paces"]  # see `Hypothesis.host`


@dataclass(frozen=True)
class Hypothesis:
    """One variant of an explanation: how it changes the scenario of a point and the parameters.

    `value` distinguishes variants of one `family`. `assumes` counts what the hypothesis takes for granted: a fault or a
    setting, and each number that it is free to choose. `share` of their rate is left to links or GPUs. With `launch` it
    is about how calls are launched, and not about the machine.

    `host` says how launches differ: by a constant as small as between sound ways of measuring (*as measured*), by any
    constant (*adds*), or the host starts at most one launch in a fixed time, whatever the GPUs do (*paces*).
    """

    family: str
    text: str
    value: str = ""
    assumes: int = 1
    share: float = 1.0
    launch: bool = False
    host: HostPacing = "as measured"
    scenario: Callable[[Scenario], Scenario] = lambda scenario: scenario
    setting: Callable[[ParameterSetting], ParameterSetting] = lambda setting: setting

    @property
    def penalty(self) -> float:
        """The addend to its error: for what it assumes, and for how little of a rate it leaves."""
        return PENALTY * self.assumes - HALVING * math.log2(self.share)

    @property
    def or_one(self) -> Hypothesis:
        """The same hypothesis, worded for where one slow link explains the table as well as all of them."""
        return replace(self, value=f"one or {self.value}") if self.value.startswith("all") else self

    def beside(self, other: Hypothesis) -> Hypothesis:
        """Return the hypothesis that this one and another hold together, which assumes what both assume."""
        return replace(
            self,
            family=f"{self.family} with {other.family}",
            text=f"{self.text}; and {other.text}",
            assumes=self.assumes + other.assumes,
            scenario=_both(self.scenario, other.scenario, HEALTHY.scenario),
            setting=_both(self.setting, other.setting, HEALTHY.setting),
        )


def _both(first: Callable[[T], T], second: Callable[[T], T], none: Callable[[T], T]) -> Callable[[T], T]:
    """Return one change after the other. Where one is `none` it is the other itself, by which times are kept."""
    if none in (first, second):
        return second if first is none else first
    return lambda value: second(first(value))


HEALTHY: Final = Hypothesis("healthy", "what this hardware should give", assumes=0)
