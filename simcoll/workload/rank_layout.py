"""Which ranks communicate in each dimension of parallelism of a training step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Numbers
from simcoll.errors import wrong
from simcoll.workload.expert_routing import ExpertKernel
from simcoll.workload.plan import CollectiveCall, of_tokens
from simcoll.workload.training_keys import TrainingStep


class Call(NamedTuple):
    """A collective of the groups of one dimension in a stage. For `pp` and `tied` its ranks are those with equal
    positions in the stages `stage` and `target`."""

    dimension: str
    collective: str
    nbytes: int
    dtype: str
    stage: int
    target: int | None = None
    tokens: ExpertKernel | None = None

    def made(self, algorithm: str) -> CollectiveCall:
        """Return the call as a plan has it. A message to another stage goes one way."""
        if self.tokens:
            return of_tokens(self.tokens, self.collective)._replace(dtype=self.dtype)
        method = "direct" if self.dimension == "pp" else algorithm
        return CollectiveCall(self.collective, method, self.nbytes, dtype=self.dtype)


class Layout(NamedTuple):
    """The groups of ranks of each dimension. `dense` is an array with an axis for each dimension in `axes`, whose
    entries are ranks; `expert` is one with the axes etp, ep, edp, pp, in which experts are shared."""

    axes: tuple[str, ...]
    dense: Numbers
    expert_axes: tuple[str, ...]
    expert: Numbers
    shards: int  # ranks of a group that shares parameters: of dp and cp together
    per_node: int

    def degree(self, dimension: str) -> int:
        """Return the number of ranks of a group."""
        if dimension in ("shard", "replica"):
            return self.shards if dimension == "shard" else self.degree("dp") // self.shards
        of_experts = dimension in ("ep", "etp", "edp")
        axes, grid = (self.expert_axes, self.expert) if of_experts else (self.axes, self.dense)
        both = ("dp", "cp") if dimension == "dp" else (dimension,)
        return math.prod(grid.shape[axes.index(axis)] for axis in both)

    def remote(self, ranks: Sequence[int]) -> int:
        """Return how many ranks are on other nodes than the first."""
        return sum(rank // self.per_node != ranks[0] // self.per_node for rank in ranks)

    def stage(self, stage: int) -> list[int]:
        """Return the ranks of a stage of the pipeline, in order."""
        found: list[int] = sorted(np.take(self.dense, stage, self.axes.index("pp")).ravel().tolist())
        return found

    def groups(self, dimension: str, stage: int) -> list[list[int]]:
        """Return the groups of a dimension among the ranks of a stage: `tp`, `cp`, `ep`, `etp`; `dp` with cp, as both
        hold the same parameters; `edp`, the ranks that hold the same experts; `shard` and `replica` of hybrid sharding
        divide dp."""
        if dimension in ("shard", "replica"):
            whole = [np.array(group).reshape(-1, self.shards) for group in self.groups("dp", stage)]
            return [row for grid in whole for row in (grid if dimension == "shard" else grid.T).tolist()]
        of_experts = dimension in ("ep", "etp", "edp")
        axes, grid = (self.expert_axes, self.expert) if of_experts else (self.axes, self.dense)
        together = [axes.index(axis) for axis in axes if axis in (("dp", "cp") if dimension == "dp" else (dimension,))]
        at = axes.index("pp")
        apart = [place for place in range(len(axes)) if place != at and place not in together]
        size = math.prod(grid.shape[place] for place in together)
        found: list[list[int]] = np.transpose(grid, [at, *apart, *together])[stage].reshape(-1, size).tolist()
        return [sorted(group) for group in found]

    def groups_of(self, call: Call) -> list[list[int]]:
        """Return the groups in which a call runs at once."""
        if call.target is not None:
            return self.pairs(call.stage, call.target)
        return self.groups(call.dimension, call.stage)

    def pairs(self, stage: int, target: int) -> list[list[int]]:
        """Return the pairs of ranks with equal positions in two stages."""
        at = self.axes.index("pp")
        ends = [np.take(self.dense, each, at).ravel().tolist() for each in (stage, target)]
        return [list(pair) for pair in zip(*ends, strict=True)]


def layout_of(spec: TrainingStep, ranks: int, per_node: int) -> Layout:
    """Return the layout of a step on so many ranks, `per_node` of them in a node. Raises InputError if a degree does
    not divide what it shares."""
    dp, p = spec.check(ranks), spec.parallel
    order = [axis for axis in p.order.split("-") if axis != "ep"]
    degrees = {"tp": p.tp, "cp": p.cp, "dp": dp, "pp": p.pp}
    dense = np.arange(ranks).reshape([degrees[axis] for axis in reversed(order)])  # the first axis changes fastest
    experts = {"etp": spec.etp, "ep": p.ep, "edp": p.tp * p.cp * dp // (spec.etp * p.ep), "pp": p.pp}
    inner = ["etp", "ep", "edp"]
    inner.insert(3 if order.index("pp") > order.index("dp") else 2, "pp")  # last, unless dp comes after it
    expert = np.arange(ranks).reshape([experts[axis] for axis in reversed(inner)])
    return Layout(
        tuple(reversed(order)), dense, tuple(reversed(inner)), expert, _shards(spec, dp * p.cp, per_node), per_node
    )


def _shards(spec: TrainingStep, group: int, per_node: int) -> int:
    """Return the ranks that share parameters with `hsdp`: as asked, or the largest divisor of dp within a node."""
    p = spec.parallel
    if p.shard_group:
        if group % p.shard_group:
            problem = f"a shard group of {p.shard_group} does not divide dp · cp = {group}"
            raise wrong("workload.parallel.shard_group", problem, "take a divisor")
        return p.shard_group
    inside = max(1, per_node // (p.tp if p.order.startswith("tp") else 1))
    return next(size for size in range(min(inside, group), 0, -1) if group % size == 0)
