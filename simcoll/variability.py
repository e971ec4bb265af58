"""The scenario's key `variability`: what differs from run to run, and how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt, model_validator

from simcoll.config import Model
from simcoll.quantities import Duration, Share

CAUSES: Final = ("launch_skew", "compute_jitter", "slow")  # in the order in which each has draws of its own
_NEEDS: Final = {"lognormal": ("median", "sigma"), "exponential": ("mean",), "uniform": ("low", "high")}

Sigma = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]


class Delay(Model):
    """A random duration: lognormal (`median`, and `sigma` of its logarithm), exponential (`mean`) or uniform (`low` to
    `high`)."""

    distribution: Literal["lognormal", "exponential", "uniform"]
    median: Duration | None = None
    sigma: Sigma | None = None
    mean: Duration | None = None
    low: Duration | None = None
    high: Duration | None = None

    @model_validator(mode="after")
    def _its_own_keys(self) -> Delay:
        needed = _NEEDS[self.distribution]
        given = [key for key in ("median", "sigma", "mean", "low", "high") if getattr(self, key) is not None]
        if set(given) != set(needed):
            raise ValueError(f"{self.distribution} takes {' and '.join(needed)}, not {given}; write just these")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("low is above high; exchange them")
        return self

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """So many durations, in ps."""
        if self.distribution == "lognormal":
            return (self.median or 0) * np.exp((self.sigma or 0.0) * rng.standard_normal(count))
        if self.distribution == "exponential":
            return (self.mean or 0) * rng.standard_exponential(count)
        return (self.low or 0) + ((self.high or 0) - (self.low or 0)) * rng.random(count)


class Jitter(Model):
    """A random factor around 1: lognormal, with `sigma` of its logarithm."""

    distribution: Literal["lognormal"] = "lognormal"
    sigma: Sigma

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """So many factors."""
        return np.exp(self.sigma * rng.standard_normal(count))


class Slow(Model):
    """A rank that in some runs (`probability`) takes `factor` times as long for all that it computes and launches."""

    rank: Annotated[StrictInt, Field(ge=0)]
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    probability: Annotated[Share, Field(ge=0, le=1)] = 1.0


class Variability(Model):
    """What differs: how late each rank comes to each collective, how long it computes, and ranks that are slow."""

    launch_skew: Delay | None = None
    compute_jitter: Jitter | None = None
    slow: tuple[Slow, ...] = ()

    @property
    def causes(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(cause for cause in CAUSES if getattr(self, cause))


@dataclass(frozen=True)
class Drawn:
    """What one replication draws, of some `causes`: each has numbers of its own, whatever the others are."""

    spec: Variability
    seed: int
    replication: int
    causes: tuple[str, ...]

    def _rng(self, cause: str) -> np.random.Generator:
        return np.random.default_rng([abs(self.seed), int(self.seed < 0), self.replication, CAUSES.index(cause)])

    def skew(self, count: int) -> NDArray[Any]:
        """How much later each of so many launches comes, in ps."""
        if not self.spec.launch_skew or "launch_skew" not in self.causes:
            return np.zeros(count)
        return self.spec.launch_skew.draw(self._rng("launch_skew"), count)

    def jitter(self, count: int) -> NDArray[Any]:
        """How many times as long each of so many computations takes."""
        if not self.spec.compute_jitter or "compute_jitter" not in self.causes:
            return np.ones(count)
        return self.spec.compute_jitter.draw(self._rng("compute_jitter"), count)

    def slow(self, n: int) -> NDArray[Any]:
        """How many times as long each rank takes."""
        factors = np.ones(n)
        if "slow" in self.causes:
            chances = self._rng("slow").random(len(self.spec.slow))
            for one, chance in zip(self.spec.slow, chances, strict=True):
                factors[one.rank] *= one.factor if chance < one.probability else 1.0
        return factors
