"""The profile `ideal`: a bound in practice. Copies of schedules keep their contract, and no fitted time is shorter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import pytest
from systems import WITH_GPUS

from simcoll.errors import RefusedError, ScheduleError
from simcoll.explanation.recommendation import recommendations
from simcoll.nccl.algorithm_names import SCHEDULES
from simcoll.prediction.fastest_variant import MOST_SOLVED
from simcoll.prediction.lowered_call import executor
from simcoll.prediction.predict import predict
from simcoll.prediction.predictions import CallPrediction
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import algorithms, proof, registry, side_by_side
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.topology.topology_builder import load_system

FITTED = WITH_GPUS
MULTIPLIED = ("recursive_doubling", "recursive_multiplying")  # send whole buffers far, and do not pipeline
RING = {"fabric": "ring", "hosts": 8, "link": {"bandwidth": "50 GB/s", "latency": "0.1 us"}}


def time_ps(topology: dict[str, Any], collective: str, algorithm: str, nbytes: int, profile: str, **more: Any) -> int:
    """Time of a call under a profile."""
    keys = {"topology": topology, "collective": collective, "algorithm": algorithm, "size": f"{nbytes} B", **more}
    return predict(Scenario.model_validate({**keys, "profile": profile})).time_ps


# --- copies ---


@pytest.mark.parametrize("n", range(2, 12))
def test_paths_and_cycles_take_every_pair_equally_often(n: int) -> None:
    """Law: over all orders each directed pair of ranks is neighbours equally often, closed for cycles; paths begin, and
    end, at each rank equally often."""
    for orders, closed in ((side_by_side.paths(n), False), (side_by_side.cycles(n), True)):
        taken: dict[tuple[int, int], int] = {}
        for order in orders:
            assert sorted(order) == list(range(n))
            for pair in [*pairwise(order), *([(order[-1], order[0])] if closed else [])]:
                taken[pair] = taken.get(pair, 0) + 1
        assert len(taken) == n * (n - 1) and len(set(taken.values())) == 1
    for end in (0, -1):
        ends = [order[end] for order in side_by_side.paths(n)]
        assert {ends.count(rank) for rank in range(n)} == {len(ends) // n}


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name not in ("send_recv", "barrier")])
def test_copies_in_any_order_keep_the_contract(collective: str) -> None:
    """Law: every algorithm in copies, each played in an order that leaves the root at its place, does what its
    collective promises; each copy moves its share, so that as many bytes are sent in all."""
    for name in registry.names(collective):
        for n, root in ((4, 0), (6, 2)):
            try:
                agents = 1 if "nvls" in name else 0
                alone = algorithms.stream(
                    collective, name, n, root=root * COLLECTIVES[collective].rooted, agents=agents
                )
            except RefusedError:
                continue
            orders = [
                tuple(range(n)),
                tuple(n - 1 - rank for rank in range(n)),
                tuple((rank + 1) % n for rank in range(n)),
            ]
            if COLLECTIVES[collective].rooted:
                orders = [order[order.index(root) - root :] + order[: order.index(root) - root] for order in orders]
            both = side_by_side.in_copies(alone.schedule(), orders)
            proof.prove(both)
            assert both.transfers == 3 * alone.transfers and both.n_steps == alone.n_steps


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [[0, 2], [1, 3], [4, 5]], [[0], [1], [2], [3]]])
def test_groups_take_turns_with_their_switches(groups: list[list[int]]) -> None:
    """Law: copies of the trees of switches begin at each group in turn, do what one does, and all groups carry the
    same, which those of one copy do not."""
    n, of = sum(map(len, groups)), {rank: number for number, ranks in enumerate(groups) for rank in ranks}
    alone = algorithms.stream("all_reduce", "nvls_tree", n, groups=groups, agents=len(groups)).schedule()
    turned = side_by_side.in_copies(alone, side_by_side.of_groups(groups))
    proof.prove(turned)
    sent = Counter(
        of[rank] for rank, dst in zip(turned.src.tolist(), turned.dst.tolist(), strict=True) if rank < n and dst < n
    )
    assert len(set(sent.values())) == 1
    for rank, dst in zip(turned.src.tolist(), turned.dst.tolist(), strict=True):
        if (rank < n) != (dst < n):
            assert of[min(rank, dst)] == max(rank, dst) - n  # a switch has its own ranks


def test_a_copy_with_the_root_elsewhere_is_found() -> None:
    """An order that moves the root breaks the contract, and the proof says so."""
    alone = algorithms.stream("broadcast", "chain", 4).schedule()
    with pytest.raises(ScheduleError):
        proof.prove(side_by_side.in_copies(alone, [(0, 1, 2, 3), (1, 2, 3, 0)]))


# --- the figures of the issue ---


@pytest.mark.parametrize(
    ("topology", "collective", "algorithm", "nbytes", "us"),
    [
        ({"system": "hgx-h100", "nodes": 2}, "all_to_all", "direct", 2**30, 2**30 / 2 / 50e3),
        ({"system": "mi300x"}, "all_to_all", "direct", 2**28, 2**28 / 8 / 48e3),
        ({"system": "mi300x"}, "all_reduce", "all_pairs", 2**28, 2**28 / 48e3),
        ({"system": "mi300x"}, "all_reduce", "ring", 2**28, 2 * 2**28 / 8 / 48e3),  # 7 links each, all of them busy
        ({"system": "hgx-h100", "nodes": 2}, "all_reduce", "ring", 2**30, 2 * 15 / 16 * 2**30 / (8 * 50e3)),
        (RING, "all_reduce", "ring", 64_000_000, 2 * 7 / 8 * 64e6 / (2 * 50e3)),
    ],
)  # fmt: skip
def test_cuts_are_filled(topology: dict[str, Any], collective: str, algorithm: str, nbytes: int, us: float) -> None:
    """Law: large calls take what the narrowest cut takes for their traffic, within 2 %: all NICs, all direct links,
    both directions."""
    found = time_ps(topology, collective, algorithm, nbytes, "ideal") / 1e6
    assert us <= found <= 1.02 * us


# --- the law ---


Called = tuple[str, str, str]  # collective, algorithm, and the schedule for which its name stands


def of_nccl(served: Collection[str]) -> list[Called]:
    """NCCL's algorithms of these names."""
    return [
        (collective, schedule if name == "p2p" else name, schedule)
        for (name, collective), schedule in SCHEDULES.items()
        if name in served
    ]


def of_registry(collectives: Collection[str]) -> list[Called]:
    """All schedules of these collectives: those that NCCL lacks run as kernels of the msccl executor."""
    return [(collective, name, name) for collective in collectives for name in registry.names(collective)]


def beaten(system: str, nodes: int, sizes: Sequence[int], called: Sequence[Called]) -> list[str]:
    """The calls for which a fitted time, or that of one port, is shorter than the ideal one."""
    found, where = [], {"system": system, "nodes": nodes}
    for collective, name, schedule in called:
        for nbytes in sizes:
            try:
                fitted = time_ps(where, collective, name, nbytes, str(load_system(system).profile))
            except RefusedError:
                continue
            ideal = time_ps(where, collective, name, nbytes, "ideal")
            plain = time_ps(where, collective, schedule, nbytes, "one-port")
            # where links carry more than rated, messages meet others elsewhere, which may cost a latency's rounding
            if ideal > min(fitted, plain):
                found.append(f"{collective}/{name} {nbytes} B: ideal {ideal}, fitted {fitted}, one port {plain} ps")
    return found


SOME_OF_NCCL = {"ring", "tree", "nvls_tree", "p2p"}
CALLS = [  # system, nodes, sizes, what is called
    ("hgx-h100", 2, [2**28], of_nccl(SOME_OF_NCCL)),
    ("mi300x", 1, [2**28], of_nccl(SOME_OF_NCCL)),
    ("gb200-nvl72", 2, [2**28], of_nccl({"ring"})),
    # large calls, whose pieces are many: where too many to be run in all copies, one stands for all
    ("hgx-h100", 8, [2**33], [("broadcast", "ring", "chain")]),
    ("hgx-a100-4", 16, [2**33], [("reduce", "ring", "chain")]),  # whose pipeline fills slowly
    # schedules as the msccl executor runs them, in chunks: also where routes go through other GPUs
    ("dgx1-v100", 1, [2**20, 2**26], [("all_reduce", name, name) for name in MULTIPLIED]),
    ("hgx-b200", 2, [37 * 2**20], [("all_reduce", name, name) for name in MULTIPLIED[1:]]),
    # links that carry more than rated let messages meet elsewhere; one copy has more messages than other ways may have
    ("rtx-4090", 2, [2**10], [("all_to_all", "direct", "direct")]),
    ("gb200-nvl72", 8, [2**29], [("all_gather", "ring", "ring")]),
]
LONG_CALLS = [
    ("dgx1-v100", 1, [2**20, 2**26, 2**29], of_registry(COLLECTIVES)),
    ("hgx-b200", 2, [37 * 2**20], of_registry(COLLECTIVES)),
    ("dgx1-v100", 2, [2**29], of_registry(["all_reduce"])),
    ("gb200-nvl72", 16, [2**20], [("all_reduce", "tree", "chain_tree")]),  # all flows of a tree share links
    *(
        (system, nodes, [2**10, 2**16, 2**20, 2**24, 2**28, 2**30], of_nccl({name for name, _ in SCHEDULES}))
        for system in FITTED
        for nodes in (1, 2, 4)
        if nodes == 1 or load_system(system).nic
    ),
    *(
        (system, nodes, [2**29, 2**33], of_nccl(SOME_OF_NCCL))
        for system in FITTED
        for nodes in (8, 16)
        if load_system(system).nic and (system, nodes) != ("gb200-nvl72", 16)  # over a thousand ranks
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("system", "nodes", "sizes", "called"),
    [*CALLS, *(pytest.param(*call, marks=pytest.mark.long) for call in LONG_CALLS)],
)
def test_no_fitted_time_is_shorter(system: str, nodes: int, sizes: list[int], called: list[Called]) -> None:
    """Law: `ideal` is at most what the system's fitted profile gives the algorithm of NCCL of this name, or the kernel
    of the msccl executor, and at most what one port gives its schedule."""
    assert beaten(system, nodes, sizes, called) == []


def test_calls_that_meet_share_links_in_one_way() -> None:
    """A broadcast alone goes in whole messages, and beside a ring that shares links fairly it does so, too; then both
    take as long as they would if the scenario asked for that."""
    call = {"collective": "broadcast", "algorithm": "ring", "size": "64 MiB"}
    both = [
        {"name": "a", "stream": "x", **call},
        {"name": "b", "stream": "y", "collective": "all_gather", "size": "1 MiB"},
    ]
    keys = {"topology": {"system": "hgx-h100", "nodes": 2}, "profile": "ideal"}
    alone, mixed, asked = (
        predict(Scenario.model_validate({**keys, **more}))
        for more in (
            call,
            {"workload": {"operations": both}},
            {"workload": {"operations": both}, "model": {"sharing": "fair"}},
        )
    )
    assert (alone.sharing, mixed.sharing) == ("fifo", "fair")
    assert alone.time_ps <= mixed.time_ps == asked.time_ps


def test_ways_that_are_dear_to_run_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: without pieces for which rates would be solved often, `ideal` is no shorter, and still at most
    what one port takes; whole messages are always tried."""
    call = {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "algorithm": "tree", "size": "256 KiB"}
    found = []
    for most in (MOST_SOLVED, 0):
        monkeypatch.setattr("simcoll.prediction.fastest_variant.MOST_SOLVED", most)
        found.append(predict(Scenario.model_validate({**call, "profile": "ideal"})))
    port = predict(Scenario.model_validate({**call, "profile": "one-port"}))
    pieces, whole = (each.planned[0].lowered.chosen["chosen.chunk"] for each in found)
    assert pieces != whole == "whole"
    assert found[0].time_ps < found[1].time_ps <= port.time_ps


def test_auto_takes_what_nccl_runs_there() -> None:
    """`auto` on one node is no tree of switches, which NCCL has between nodes only; there it is tried."""
    tried = {}
    for nodes in (1, 2):
        keys = {"topology": {"system": "hgx-h100", "nodes": nodes}, "size": "64 MiB", "profile": "ideal"}
        scenario = Scenario.model_validate({**keys, "collective": "all_reduce"})
        tried[nodes] = {option.algorithm for option in executor(scenario).alternatives(scenario)}
    assert tried[2] - tried[1] == {"nvls_tree"}
    assert tried[1] >= {"ring", "nvls"}


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["ring", "chain_tree"])
def test_one_copy_stands_for_all(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its share of all links one copy of a large call takes what all of them take, within 2 %, and the
    busiest link is as busy."""
    point = {"topology": {"system": "hgx-h100", "nodes": 2}, "collective": "all_reduce", "algorithm": algorithm}
    asked = {**point, "size": "1 GiB", "profile": "ideal"}
    whole = predict(Scenario.model_validate(asked))
    monkeypatch.setattr("simcoll.prediction.fastest_variant.MOST_WHOLE", 4)
    one = predict(Scenario.model_validate({**asked, "seed": 1}))
    assert isinstance(whole, CallPrediction) and isinstance(one, CallPrediction)
    assert (whole.lowered.count, one.lowered.count > 4) == (1, True)
    assert one.time_ps == pytest.approx(whole.time_ps, rel=0.02)
    assert max(one.busy) == pytest.approx(max(whole.busy), rel=0.02)


MOE = {"tokens": 128, "hidden": 1024, "topk": 2, "experts": 8}


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name not in ("send_recv", "barrier")])
def test_one_rank_has_nothing_to_send(collective: str) -> None:
    """Its call takes no time."""
    moved = {"moe": MOE} if collective.startswith("moe_") else {"size": "1 MiB"}
    keys = {"topology": "hgx-h100", "collective": collective, "algorithm": "auto", "ranks": 1, **moved}
    assert predict(Scenario.model_validate({**keys, "profile": "ideal"})).time_ps == 0


@pytest.mark.parametrize(
    ("system", "collective", "algorithm", "ranks"),
    [
        ("hgx-h100", "all_reduce", "tree", 2),
        ("hgx-h100", "all_reduce", "tree", 5),
        ("hgx-h100", "all_reduce", "nvls", 3),
        ("dgx-a100", "broadcast", "chain", 8),
    ],
)
def test_copies_that_use_some_links_more_wait_for_these(
    system: str, collective: str, algorithm: str, ranks: int
) -> None:
    """One of two copies takes what both take side by side, also where some GPUs have no rank, or links of a sort carry
    unequal parts; and no call takes less than its bound."""
    call = {"topology": system, "collective": collective, "ranks": ranks, "size": "1 GiB", "profile": "ideal"}
    one = predict(Scenario.model_validate({**call, "algorithm": algorithm}))
    assert isinstance(one, CallPrediction)
    assert one.time_ps >= one.lower_bound_ps
    if one.lowered.count > 1:
        run = one.lowered.scenario
        side_by_side = run.model.model_copy(update={"copies": one.lowered.count})
        whole = predict(run.model_copy(update={"model": side_by_side}))
        assert one.time_ps == pytest.approx(whole.time_ps, rel=0.002)


# --- where it shows ---


def test_recommend_knows_that_peers_go_at_once() -> None:
    """With a channel for each peer direct all_to_all is best on rails, which with one channel the hierarchical one is;
    and a ring for each rail is the best ring."""
    keys = {"topology": {"system": "hgx-h100", "nodes": 2}, "profile": "one-port", "size": "1 GiB"}
    for collective, among, choice in (
        ("all_to_all", ["direct", "hierarchical"], "direct channels per-peer"),
        ("all_gather", ["ring"], "ring copies 8 channels per-peer"),
    ):
        point = Point(Scenario.model_validate({**keys, "collective": collective}))
        (advice,) = recommendations([point], among)
        advice.simulate(1, lambda: None)
        assert str(advice.bests[0].winner) == choice
