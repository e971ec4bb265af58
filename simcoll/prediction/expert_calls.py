"""Calls that send tokens to experts and back: as an all_to_all (`pairwise`), or by DeepEP's kernels.

A kernel is simulated as exchanges that run at the same time: each copy goes over the links to its receiver, and links
have the rates that the kernel reaches. What does not depend on links comes before. A normal kernel on several nodes has
two exchanges: over NICs between the ranks with the same place on their nodes, and among the ranks of each node. The
second hands on what the first brings, token by token, so that the slower one sets the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from simcoll.config.numpy_helpers import Numbers
from simcoll.engine.timing_model import Index, Params, Sharing
from simcoll.errors import RefusedError
from simcoll.nccl.expert_kernels import (
    ChipKernels,
    ExpertKernels,
    LowLatencyCosts,
    LowLatencyKernels,
    NormalCosts,
    NormalKernels,
    between,
    expert_kernels,
)
from simcoll.prediction.confidence import Judgement
from simcoll.prediction.lowered_call import PlainCall, PlainExecutor, executor
from simcoll.prediction.placed_topology import PLAIN, network_of, placed, rated_topology, scaled, with_rates
from simcoll.scenario.profile import CostSetting, ModelSpec, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.topology.graph import Topology
from simcoll.topology.topology_builder import described
from simcoll.units import PS_PER_S
from simcoll.workload.expert_routing import COMBINE, Copies, ExpertTokens

ONE_STEP: Final = "direct"
TWO_HOPS: Final = "two_hop"
NVLINK: Final = "nvlink"
NEIGHBOURS: Final = "DeepEP's normal kernels need equally many neighbouring ranks on each node"
LEAST_CAPABILITY: Final = 80  # on older GPUs the kernels do not run (DeepEP's README)


@dataclass(frozen=True, eq=False, kw_only=True)
class ExpertCall(PlainCall):
    """A kernel of DeepEP. `phases` are the scenarios of its exchanges, `phase` is the one that this call simulates.
    `own`: the bytes that a rank reads of its own tokens, and copies to its own experts. `spread`: the relative standard
    deviation of the number of copies between the two ranks that have most. `several`: ranks are on several
    nodes. `chip` and `kernels` have the costs. If these are of another generation than the machine's `model` of GPU,
    `lent` says how many times as long as there a message takes over NVLink."""

    whole: ClassVar[bool] = False
    together: ClassVar[bool] = True
    phases: tuple[Scenario, ...]
    phase: Scenario
    own: int
    spread: float
    several: bool
    model: str
    chip: ChipKernels
    lent: float | None
    kernels: ExpertKernels

    @property
    def _tokens(self) -> ExpertTokens:
        assert self.scenario.moe
        return self.scenario.moe

    @property
    def _family(self) -> LowLatencyKernels | NormalKernels:
        return self.chip.low_latency if self.scenario.executor == "low-latency" else self.chip.normal

    @property
    def judged(self) -> Judgement:
        """Return the confidence: rows were measured on some GPUs, with uniform routing, on few nodes, with up to so
        many tokens and SMs."""
        measured = self.model in self.chip.gpus and self.rated.nodes_of(self.places) <= self.chip.nodes
        known = measured and self._tokens.even and self._tokens.tokens <= self._family.tokens
        known = known and (self.scenario.sms or 0) <= self.chip.normal.sms
        ends = between(self.kernels.error_elsewhere if self.lent is not None else self._costs.error_of(self.several))
        return Judgement("interpolated" if known else "extrapolated", *ends, *ends)

    @property
    def _costs(self) -> LowLatencyCosts | NormalCosts:
        return self._way(self._family)

    def _way(self, family: LowLatencyKernels | NormalKernels) -> LowLatencyCosts | NormalCosts:
        return family.combine if self.scenario.collective == COMBINE else family.dispatch

    @property
    def _copied(self) -> float:
        """Return the bandwidth at which the SMs of a normal kernel copy, in B/s; infinite if all SMs copy."""
        if isinstance(self._costs, LowLatencyCosts):
            return float("inf")
        sms = self.scenario.sms or self.kernels.default_sms
        return self._costs.rate(sms, self._tokens.token_bytes(self.scenario.collective), self.several, self.spread)

    @property
    def point(self) -> Scenario:
        """Return the scenario of the exchange that engines run."""
        return self.phase

    def differing(self) -> list[ExpertCall]:
        """Return a call for each exchange."""
        return [replace(self, phase=phase) for phase in self.phases]

    @property
    def _inside(self) -> Numbers:
        """Return whether each link is NVLink, which copies within a node take, (links,)."""
        found: Numbers = np.array(self.rated.link_kinds) == NVLINK
        return found

    @property
    def bandwidths(self) -> Index:
        """Return the rate that the kernel reaches on each link, int64 (links,), in B/s."""
        of_nics = scaled(self.rated, network_of(described(self.scenario.topology)).links)[0]
        rates = np.where(self._inside, self.rated.bandwidths * self._costs.inside, of_nics * self.kernels.network.share)
        found: Index = np.rint(np.where(self._inside, np.minimum(rates, self._copied), rates)).astype(np.int64)
        return found

    @property
    def latencies(self) -> Index:
        """Return latencies of 1 ps: the costs of kernels contain those of links, int64 (links,)."""
        return np.ones(len(self.rated.links), np.int64)

    @property
    def topology(self) -> Topology:
        """Return the topology with the rates that the kernel reaches."""
        return with_rates(self.rated, self.bandwidths, self.latencies)

    @property
    def paces(self) -> dict[int, tuple[str, float]]:
        """Return, by link number, ("SMs", 1.0) where SMs copy more slowly than the link carries."""
        slower = self._inside & (self.rated.bandwidths * self._costs.inside > self._copied)
        return dict.fromkeys(np.flatnonzero(slower).tolist(), ("SMs", 1.0))

    @property
    def lead(self) -> dict[str, int]:
        """Return the time in ps that the kernel takes in addition to its exchanges, by cause."""
        costs, tokens, late = self._costs, self._tokens, self.lent or 1.0
        if isinstance(costs, LowLatencyCosts):
            rounds = -(-tokens.tokens // self.chip.sms_for(tokens.experts))
            each = costs.of_token(tokens.topk * tokens.token_bytes(self.scenario.collective))
            waits = {"kernel": costs.floor, "counts": costs.expert * tokens.experts, "tokens": rounds * each}
            network = {"network": costs.network} if self.several else {}
            return {cause: round(late * wait) for cause, wait in waits.items()} | network
        fill = tokens.token_bytes(self.scenario.collective) * PS_PER_S // costs.fill
        later = round((late - 1) * self._way(self.chip.low_latency).floor)
        return {"kernel": costs.floor + fill + later, "own copies": round(self.own * PS_PER_S / self._copied)}

    @property
    def host_ps(self) -> int:
        """Return 0: kernels are launched ahead of time."""
        return 0

    @property
    def facts(self) -> dict[str, object]:
        """Return the columns of GPUs that were not measured, and of the exchange of counts before a normal kernel."""
        found: dict[str, object] = {"never_fitted": None if self.model in self.chip.gpus else self.model}
        if isinstance(self._costs, LowLatencyCosts):
            return found
        return found | {"notify_us": self.kernels.network.notify / 1e6 if self.several else 0.0}


class ExpertExecutor(PlainExecutor):
    """Runs calls that send tokens to experts, or bring results back."""

    tunable = False

    def lower(
        self, scenario: Scenario, topology: Topology | None = None, costs: CostSetting | None = None
    ) -> PlainCall:
        """Return the scenario's call. Raises RefusedError for experts that do not divide among the ranks, and for GPUs
        on which no kernel was measured."""
        rated = topology or rated_topology(scenario)
        if scenario.executed_by == "pairwise":
            exchange = as_exchange(scenario, rated)
            return executor(exchange).lower(exchange, topology, costs)
        return _kernel(scenario, rated, costs or CostSetting.of(self.profile))

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """Return the scenario itself, or for `pairwise` a scenario for each way to run its all_to_all."""
        if scenario.executed_by != "pairwise":
            return [scenario]
        exchange = as_exchange(scenario, topology or rated_topology(scenario))
        options = executor(exchange).alternatives(exchange, topology)
        if options[0] is exchange:
            return [scenario]
        return [
            scenario.model_copy(update={"algorithm": each.algorithm, "protocol": each.protocol}) for each in options
        ]


def as_exchange(scenario: Scenario, rated: Topology) -> Scenario:
    """Return the scenario of the all_to_all that sends a copy of a token for each of its experts. Blocks differ if
    tokens choose experts unevenly."""
    tokens, ranks = scenario.moe, len(placed(scenario, rated))
    assert tokens
    tokens.check(ranks)
    straight = scenario.algorithm in ("auto", "best", ONE_STEP)
    own: dict[str, Any] = {"moe": None, "executor": None}
    own |= {"collective": "all_to_all"} if straight else {}
    if not tokens.even:
        size, weights = _blocks(_bytes(tokens.to_experts(ranks), tokens, scenario), [range(ranks)])
        own |= {"size": size, "weights": weights} | ({"algorithm": ONE_STEP} if straight else {})
    return scenario.model_copy(update=own)


def _bytes(copies: Copies, tokens: ExpertTokens, scenario: Scenario) -> Numbers:
    """Return the bytes from each rank to each rank, (ranks, ranks): results go the other way than tokens."""
    directed = copies.T if scenario.collective == COMBINE else copies
    found: Numbers = np.rint(directed * tokens.token_bytes(scenario.collective)).astype(np.int64)
    return found


def _blocks(nbytes: Numbers, groups: Sequence[Sequence[int]]) -> tuple[int, tuple[tuple[int, ...], ...] | None]:
    """Return the size of a buffer and its weights for exchanges of `nbytes` (ranks, ranks) within groups; weights are
    None if all blocks are equal. Rows of weights must have equal sums, so a rank that sends little gets a larger block
    for itself, which costs nothing."""
    rows = {rank: nbytes[rank, list(group)] for group in groups for rank in group}
    places = {rank: place for group in groups for place, rank in enumerate(group)}
    away = np.array([np.delete(rows[rank], places[rank]) for rank in sorted(rows)])
    if (away == away[0, 0]).all():
        return int(away[0, 0]) * len(groups[0]), None
    most = max(int(row.sum()) for row in rows.values())
    for rank, row in rows.items():
        row[places[rank]] += most - row.sum()
    return most, tuple(tuple(rows[rank].tolist()) for rank in sorted(rows))


def _kernel(scenario: Scenario, rated: Topology, costs: CostSetting) -> ExpertCall:
    places, tokens, kernels = placed(scenario, rated), scenario.moe, expert_kernels()
    assert tokens
    ranks = len(places)
    tokens.check(ranks)
    costs_on_gpus = _costs_for(scenario, rated, places, kernels)
    of_node: dict[int | None, list[int]] = {}
    for rank, place in enumerate(places):
        of_node.setdefault(rated.node_of(place), []).append(rank)
    nodes = np.array(list(of_node.values())) if len({*map(len, of_node.values())}) == 1 else np.zeros((0, 0), int)
    several, normal = len(of_node) > 1, scenario.executor == "deepep"
    if costs_on_gpus["chip"].sms < (scenario.sms or 0):
        raise RefusedError(f"these GPUs have {costs_on_gpus['chip'].sms} SMs; write no more", "sms")
    if ranks < 2:
        raise RefusedError("one rank sends no tokens; write at least `ranks: 2`", "ranks")
    if normal and several and nodes.ravel().tolist() != list(range(ranks)):
        raise RefusedError(f"{NEIGHBOURS}; write e.g. `placement: {{per_node: 4}}`", "placement")
    everyone = [list(range(ranks))]
    exchanges: list[tuple[list[list[int]], Copies]] = [(everyone, tokens.to_experts(ranks))]
    if normal:
        to_ranks = tokens.to_groups(ranks, ranks)
        exchanges = [(everyone, to_ranks)]
        if several:
            exchanges = _two_hops(nodes, to_ranks, tokens.to_groups(ranks, len(nodes)))
    label = TWO_HOPS if normal and several else ONE_STEP
    if scenario.algorithm not in ("auto", "best", label):
        raise RefusedError(f"{scenario.executor} runs {label}; leave out `algorithm`, or write `executor: pairwise`")
    kept, most = exchanges[-1][1].diagonal().max() + tokens.tokens, exchanges[-1][1].max()
    passed = tokens.tokens * (len(of_node) if several else 1)  # tokens of which these copies are a random part
    phases = tuple(
        _phase(scenario, groups, _bytes(copies, tokens, scenario), several and not normal)
        for groups, copies in exchanges
    )
    return ExpertCall(
        scenario=scenario,
        rated=rated,
        places=places,
        costs=costs,
        algorithm=label,
        phases=phases,
        phase=phases[0],
        own=round(kept * tokens.token_bytes(scenario.collective)),
        spread=math.sqrt(max(0.0, 1 - most / passed) / most),
        several=several,
        **costs_on_gpus,
    )


def _costs_for(scenario: Scenario, rated: Topology, places: Sequence[str], kernels: ExpertKernels) -> dict[str, Any]:
    """Return the fields of an `ExpertCall` on its GPUs. A generation that was not measured is lent the costs of that
    with the nearest compute capability. A kernel mostly waits for messages over NVLink, one after the other, which take
    as much longer as those of NCCL do: so B200's low-latency kernels are within 9 to 11 % by the costs of Hopper."""
    system = described(scenario.topology)
    gpu, home = system.gpu if system else None, rated.node_of(places[0])
    beside = [rated.route(places[0], each) for each in places[1:] if rated.node_of(each) == home]
    joined = all(rated.link_kinds[link] == NVLINK for way in beside for link in way)
    capability = (gpu and gpu.compute_capability) or 0
    lent = gpu is None or gpu.generation not in kernels.chips
    if not gpu or not joined or (lent and capability < LEAST_CAPABILITY):
        why = f"DeepEP's kernels need NVIDIA's GPUs from Ampere on, all joined by NVLink, which {rated.name} has not"
        raise RefusedError(f"{why}; write `executor: pairwise`", "executor")
    nearest = min(kernels.chips.values(), key=lambda chip: abs(chip.capability - capability))
    chip = nearest if lent else kernels.chips[gpu.generation]
    chip = chip.model_copy(update={"sms": gpu.sms or chip.sms})
    own, theirs = (load_profile(name).kernels if name else None for name in (system and system.profile, chip.profile))
    late = own.LL.hop / theirs.LL.hop if own and theirs else 1.0
    return {"model": gpu.model, "chip": chip, "lent": late if lent else None, "kernels": kernels}


def _two_hops(nodes: Numbers, to_ranks: Copies, to_nodes: Copies) -> list[tuple[list[list[int]], Copies]]:
    """Return the exchanges between and within `nodes` (nodes, ranks of a node): groups of ranks, and copies from each
    rank to each rank. A token goes once to each node that needs it, to the rank at the sender's place there. That rank
    sends it once to each rank of its node that needs it."""
    count, size = nodes.shape
    between, within = np.zeros_like(to_ranks), np.zeros_like(to_ranks)
    for place in range(size):
        rail = nodes[:, place]
        between[np.ix_(rail, rail)] = to_nodes[rail]
        for node in nodes:
            within[node[place], node] = to_ranks[np.ix_(rail, node)].sum(axis=0)
    found = [(nodes.T.tolist(), between)] if count > 1 else []
    return [*found, (nodes.tolist(), within)] if size > 1 else found


def _phase(scenario: Scenario, groups: list[list[int]], nbytes: Numbers, mixed: bool) -> Scenario:
    """Return the scenario of an exchange within `groups`, with `nbytes` from each rank to each rank. All of a rank's
    messages are ready at once, and each link serves them in turn. If they take NVLink and NICs (`mixed`), links are
    shared evenly, so that NICs need not wait behind NVLink; but not among unequal messages, as the rates of so many
    different flows take too long to compute."""
    size, weights = _blocks(nbytes, groups)
    sharing: Sharing = "fair" if mixed and weights is None else "fifo"
    at_once = ModelSpec.model_construct(**vars(Params(sharing=sharing, channels=0)))
    apart = tuple(map(tuple, groups)) if len(groups) > 1 else None
    own: Mapping[str, Any] = {"collective": "all_to_all", "algorithm": ONE_STEP, "protocol": "none", "groups": None}
    shape = {"size": size, "weights": weights, "subgroups": apart, "model": at_once}
    return scenario.model_copy(update={**own, **shape, "moe": None, "executor": None, "sms": None, **PLAIN})
