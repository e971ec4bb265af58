"""The scenario's key `variability`: random differences between runs, and their draws for each replication."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt, model_validator

from simcoll.config.field_types import Duration, Share
from simcoll.config.yaml_tree import Model

# The index of a cause is part of the seed of its draws. So new causes go to the end, lest draws of others change.
CAUSES: Final = ("launch_skew", "compute_jitter", "slow", "slow_links", "faults", "ecmp")
_NEEDS: Final = {"lognormal": ("median", "sigma"), "exponential": ("mean",), "uniform": ("low", "high")}

Sigma = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]


class Delay(Model):
    """A random duration. Its distribution is lognormal, exponential or uniform."""

    distribution: Literal["lognormal", "exponential", "uniform"]
    """`lognormal` takes `median` and `sigma`, `exponential` takes `mean`, `uniform` takes `low` and `high`."""
    median: Duration | None = None
    """Median, for `lognormal`."""
    sigma: Sigma | None = None
    """Standard deviation of the logarithm, for `lognormal`."""
    mean: Duration | None = None
    """Mean, for `exponential`."""
    low: Duration | None = None
    """Least value, for `uniform`."""
    high: Duration | None = None
    """Greatest value, for `uniform`."""

    @model_validator(mode="after")
    def _its_own_keys(self) -> Self:
        needed = _NEEDS[self.distribution]
        given = [key for key in ("median", "sigma", "mean", "low", "high") if getattr(self, key) is not None]
        if set(given) != set(needed):
            raise ValueError(f"{self.distribution} takes {' and '.join(needed)}, not {given}; write only the former")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("`low` is above `high`; swap them")
        return self

    def draw(self, rng: "np.random.Generator", count: int) -> NDArray[np.float64]:
        """Draw `count` durations, in ps."""
        if self.distribution == "lognormal":
            return (self.median or 0) * np.exp((self.sigma or 0.0) * rng.standard_normal(count))
        if self.distribution == "exponential":
            return (self.mean or 0) * rng.standard_exponential(count)
        return (self.low or 0) + ((self.high or 0) - (self.low or 0)) * rng.random(count)


class Jitter(Model):
    """A random factor around 1, from a lognormal distribution."""

    distribution: Literal["lognormal"] = "lognormal"
    """Only `lognormal` is possible."""
    sigma: Sigma
    """Standard deviation of the logarithm of the factor."""

    def draw(self, rng: "np.random.Generator", count: int) -> NDArray[np.float64]:
        """Draw `count` random factors."""
        return np.exp(self.sigma * rng.standard_normal(count))


class Slow(Model):
    """A rank that is slow in some runs: it takes `factor` times as long to compute and to launch."""

    rank: Annotated[StrictInt, Field(ge=0)]
    """Number of the rank."""
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    """How many times as long the rank takes to compute and to launch."""
    probability: Annotated[Share, Field(ge=0, le=1)] = 1.0
    """Probability that the rank is slow in a run."""


class SlowLink(Model):
    """Links that are slow in some runs. All links that `link` matches are slow in the same runs."""

    link: str
    """Name of a link. `*` and `?` match any text and any letter."""
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    """Number by which the bandwidth is divided."""
    probability: Annotated[Share, Field(ge=0, le=1)] = 1.0
    """Probability that the links are slow in a run."""


class Ecmp(Model):
    """Routes between nodes that are drawn at random. Each connection draws one of the equal routes, as a hash of its
    ports chooses one."""

    flows: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    """Number of connections from a rank to another. Messages use the connections in turn. NCCL has one for each channel
    that shares a NIC; `NCCL_IB_QPS_PER_CONNECTION` multiplies this number."""


class Variability(Model):
    """Random differences from run to run: ranks that come late, computations of varying length, slow ranks, slow links,
    and random routes."""

    launch_skew: Delay | None = None
    """How late each rank begins each collective."""
    compute_jitter: Jitter | None = None
    """Factor by which each computation of a workload takes longer, with a median of 1."""
    slow: tuple[Slow, ...] = ()
    """Ranks that are slow in some runs."""
    slow_links: tuple[SlowLink, ...] = ()
    """Links that are slow in some runs. Their routes do not change."""
    ecmp: Ecmp | None = None
    """Random choice of a route for each connection, at switches with several equal routes. `{}` means one connection
    from a rank to another."""

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes of variability that the scenario sets."""
        return tuple(cause for cause in CAUSES if getattr(self, cause, None) not in (None, ()))


@dataclass(frozen=True)
class Drawn:
    """The random draws of one replication. Only `causes` are drawn; each cause draws independently of the others."""

    spec: Variability
    seed: int
    replication: int
    causes: tuple[str, ...]
    faults: tuple[Any, ...] = ()

    def _rng(self, cause: str) -> "np.random.Generator":
        return np.random.default_rng([abs(self.seed), int(self.seed < 0), self.replication, CAUSES.index(cause)])

    def skew(self, count: int) -> NDArray[Any]:
        """Draw for each of `count` launches by how many ps it is late."""
        if not self.spec.launch_skew or "launch_skew" not in self.causes:
            return np.zeros(count)
        return self.spec.launch_skew.draw(self._rng("launch_skew"), count)

    def jitter(self, count: int) -> NDArray[Any]:
        """Draw the factor on the duration of each of `count` computations."""
        if not self.spec.compute_jitter or "compute_jitter" not in self.causes:
            return np.ones(count)
        return self.spec.compute_jitter.draw(self._rng("compute_jitter"), count)

    def slow(self, n: int) -> NDArray[Any]:
        """Draw the factor on the durations of each of `n` ranks."""
        factors = np.ones(n)
        for slow in self._happened("slow", self.spec.slow):
            factors[slow.rank] *= slow.factor
        return factors

    def slow_links(self, names: Sequence[str]) -> NDArray[Any]:
        """Draw the divisor of the bandwidth of each link."""
        factors = np.ones(len(names))
        for slow in self._happened("slow_links", self.spec.slow_links):
            factors[matching(slow.link, names)] *= slow.factor
        return factors

    def hashes(self) -> "np.random.Generator":
        """Return the random generator for choices among equal routes."""
        return self._rng("ecmp")

    def felt(self) -> tuple[str, ...]:
        """Return the causes of variability with an effect in this replication."""
        could = {"slow": self.spec.slow, "slow_links": self.spec.slow_links, "faults": self.faults}
        return tuple(cause for cause in self.causes if cause not in could or self._happened(cause, could[cause]))

    def happened(self) -> list[Any]:
        """Return the faults that happen in this replication, drawn by their `probability`."""
        return self._happened("faults", self.faults)

    def _happened(self, cause: str, could: Sequence[Any]) -> list[Any]:
        if cause not in self.causes:
            return []
        chances = self._rng(cause).random(len(could))
        return [event for event, chance in zip(could, chances, strict=True) if chance < event.probability]


def matching(pattern: str, names: Sequence[str]) -> list[int]:
    """Return the numbers of the links whose names match a shell pattern (case counts)."""
    return [number for number, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
