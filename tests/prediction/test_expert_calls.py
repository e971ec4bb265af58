"""Dispatch and combine of tokens: as an all_to_all, and by DeepEP's kernels."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import simcoll
from simcoll.errors import InputError, RefusedError
from simcoll.nccl.expert_kernels import expert_kernels
from simcoll.scenario.profile import load_profile
from simcoll.workload.expert_routing import ExpertTokens

MOE: dict[str, Any] = {"tokens": 256, "hidden": 7168, "topk": 8, "experts": 256, "dtype": "fp8"}
HOSTS = {"fabric": "single-switch", "hosts": 8, "link": {"bandwidth": "50 GB/s", "latency": "1 us"}}
BYTES = 7168 + 7168 // 128 * 4


@pytest.mark.parametrize(
    ("collective", "where"),
    [
        ("moe_combine", {"on": HOSTS}),
        ("moe_combine", {"on": "hgx-h100"}),
        ("moe_dispatch", {"on": "hgx-h100", "nodes": 2}),
    ],
)
def test_pairwise_is_an_all_to_all(collective: str, where: dict[str, Any]) -> None:
    """With uniform routing, `pairwise` gives the answer of an all_to_all of as many bytes, to the last digit."""
    token = BYTES if collective == "moe_dispatch" else 2 * 7168
    mine = simcoll.predict(collective, moe=MOE, **where)
    plain = simcoll.predict("all_to_all", size=256 * 8 * token, dtype="uint8", **where)
    one, other = asdict(mine.totals), asdict(plain.totals)
    assert (one.pop("carried") == other.pop("carried")).all()
    assert one == other
    assert (mine.time_ps, mine.busbw) == (plain.time_ps, plain.busbw)
    assert mine.lower_bound_ps <= plain.lower_bound_ps


def _tokens(collective: str, moe: dict[str, Any]) -> ExpertTokens:
    found = simcoll.load({"topology": "hgx-h100", "collective": collective, "moe": moe})[0].scenario.moe
    assert found
    return found


def test_skewed_pairwise_waits_for_the_busiest_rank() -> None:
    """On a switch no exchange ends before the rank of the most popular experts has all its copies."""
    moe = MOE | {"routing": {"zipf": 1.0}}
    least = 7 * _tokens("moe_dispatch", moe).to_experts(8).max() * BYTES / 50e9 * 1e6
    even = simcoll.predict("moe_dispatch", moe=MOE, on=HOSTS).time_us
    assert even < least < simcoll.predict("moe_dispatch", moe=moe, on=HOSTS).time_us
    assert simcoll.predict("moe_combine", moe=moe | {"dtype": "bfloat16"}, on=HOSTS).time_us > least * 14336 / BYTES


def test_low_latency_in_closed_form() -> None:
    """A floor, the counts, the tokens of an SM, and k copies a token over the slower of NVLink and NIC."""
    costs, network = expert_kernels().chips["hopper"].low_latency.dispatch, expert_kernels().network
    before = costs.floor + 256 * costs.expert + 2 * costs.token
    far = 256 * 8 * BYTES
    inside = far * 7 / 8 / (370.8e9 * costs.inside) * 1e12
    found = simcoll.predict("moe_dispatch", moe=MOE, on="hgx-h100", executor="low-latency")
    assert found.time_ps == pytest.approx(before + inside, rel=1e-4)
    for nodes in (2, 4):
        nic = far * (nodes - 1) / nodes / (50e9 * 0.99322 * network.share) * 1e12
        found = simcoll.predict("moe_dispatch", moe=MOE, on="hgx-h100", nodes=nodes, executor="low-latency")
        assert found.time_ps == pytest.approx(before + costs.network + nic, rel=1e-3)


@pytest.mark.parametrize("collective", ["moe_dispatch", "moe_combine"])
def test_deepep_sends_a_token_once_to_a_node(collective: str) -> None:
    """NICs carry a copy for each other node that a token needs, NVLink a copy for each rank; nothing is sent twice."""
    moe = _tokens(collective, MOE)
    token = moe.token_bytes(collective)
    found = simcoll.predict(collective, moe=MOE, on="hgx-h100", nodes=4, executor="deepep")
    carried = dict(zip(found.links.names, found.totals.carried.tolist(), strict=True))
    of_node, of_rank = (moe.to_groups(32, groups)[0, 0] * token for groups in (4, 32))
    for way in ("node0.nic0->rail0", "rail0->node0.nic0"):
        assert carried[way] == pytest.approx(3 * of_node, rel=1e-6)
    for way in ("node2.gpu3->node2.nvswitch0", "node2.nvswitch0->node2.gpu3"):
        assert carried[way] == pytest.approx(7 * 4 * of_rank, rel=1e-6)
    assert found.algorithm == "two_hop"
    assert found.time_ps >= found.lower_bound_ps


@pytest.mark.parametrize("collective", ["moe_dispatch", "moe_combine"])
def test_the_bound_is_that_of_the_bytes_that_nodes_need(collective: str) -> None:
    """One bound for all executors, below the time of each: the NICs of a node bring each token once that it needs."""
    where, moe = {"on": "hgx-h100", "nodes": 4}, MOE | {"tokens": 4096}
    for routing in ("uniform", {"zipf": 1.2}):
        made = [
            simcoll.predict(collective, moe=moe | {"routing": routing}, executor=executor, **where)
            for executor in ("pairwise", "deepep", "low-latency")
        ]
        (bound,) = {each.lower_bound_ps for each in made}
        assert all(bound < each.time_ps for each in made)
    tokens = _tokens(collective, moe)
    most = 3 * 8 * tokens.to_groups(32, 4)[0, 0] * tokens.token_bytes(collective) / 8 / 50e9 * 1e12
    assert made[0].lower_bound_ps > (even := simcoll.predict(collective, moe=moe, **where).lower_bound_ps)
    assert even == pytest.approx(most, rel=1e-6)


def test_faster_links_never_raise_the_bound() -> None:
    """It falls, or stays what other links make it."""
    where, moe = {"system": "hgx-h100", "nodes": 4}, MOE | {"routing": {"zipf": 0.8}}
    bounds = [
        simcoll.predict("moe_dispatch", moe=moe, on=where | more, executor="deepep").lower_bound_ps
        for more in ({}, {"nic_bandwidth": "100 GB/s"}, {"links": {"*nvswitch*": {"bandwidth": "900 GB/s"}}})
    ]
    assert bounds[1] < bounds[0] == bounds[2]


@pytest.mark.parametrize(("sms", "tokens"), [(4, 256), (20, 256), (24, 4096)])
def test_the_last_channel_ends_a_normal_kernel(sms: int, tokens: int) -> None:
    """SMs copy at the pace of the channel with the most copies: its mean share over many draws of experts."""
    costs, chance, channels = expert_kernels().chips["hopper"].normal.combine, 0.4, sms // 2
    drawn = np.random.default_rng(1).binomial(tokens // channels, chance, (4000, channels))
    even, uneven = (costs.rate(sms, BYTES, False, spread) for spread in (0, math.sqrt((1 - chance) / chance / tokens)))
    assert even / uneven == pytest.approx(drawn.max(axis=1).mean() / (chance * (tokens // channels)), rel=0.01)


def test_more_sms_help_until_links_bind() -> None:
    """SMs set the time of a normal kernel until NVLink does; the notice of counts is a column of its own."""
    keys = {"moe": MOE | {"tokens": 4096}, "executor": "deepep"}
    times = [simcoll.predict("moe_dispatch", sms=sms, on="hgx-h100", **keys).time_us for sms in (4, 8, 16, 24, 64)]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[1] == pytest.approx(2, rel=0.05)
    (row,) = simcoll.run(topology={"system": "hgx-h100", "nodes": 2}, collective="moe_dispatch", **keys)
    assert row["notify_us"] > 10


@pytest.mark.parametrize("executor", ["pairwise", "deepep", "low-latency"])
def test_an_operation_is_the_call(executor: str) -> None:
    """A workload of one call answers as the call by itself."""
    where = {"system": "hgx-h100", "nodes": 2}
    operation = {"name": "out", "collective": "moe_dispatch", "moe": MOE, "executor": executor}
    (step,) = simcoll.run({"topology": where, "workload": {"operations": [operation]}})
    (call,) = simcoll.run({"topology": where, "collective": "moe_dispatch", "moe": MOE, "executor": executor})
    assert (step["time_us"], step["wire_bytes"]) == (call["time_us"], call["wire_bytes"])


@pytest.mark.parametrize("executor", ["pairwise", "deepep", "low-latency"])
def test_a_step_and_an_imported_machine_ask_the_same_call(executor: str) -> None:
    """In each block a training step has a dispatch and a combine forward and one of each backward. A graph of devices
    and links answers as the shipped machine from which it was taken."""
    tokens = {"tokens": 512, "hidden": 1024, "topk": 4, "experts": 64}
    shapes = {"layers": 2, "hidden": 1024, "ffn": 4096, "heads": 16, "vocab": 32000, "experts": 64, "active_experts": 4}
    workload = {
        "template": "training",
        "model": shapes,
        "batch": {"global": 16, "micro": 1, "sequence": 512},
        "parallel": {"dp": 16, "ep": 16},
        "executor": executor,
    }
    (step,) = simcoll.run({"topology": {"system": "hgx-h100", "nodes": 2}, "workload": workload})
    graph = simcoll.Topology.load("hgx-h100", nodes=2).graph
    ways = [
        [simcoll.predict(way, moe=tokens, executor=executor, **on).time_us for way in ("moe_dispatch", "moe_combine")]
        for on in ({"on": "hgx-h100", "nodes": 2}, {"on": graph})
    ]
    assert ways[0] == ways[1]
    assert step["exposed_ep_us"] == pytest.approx(2 * 2 * sum(ways[0]), abs=1e-5)


def test_what_more_sms_would_do() -> None:
    """`explain` answers with more SMs, uniform routing and other executors as scenarios with these keys do."""
    keys = {"moe": MOE | {"routing": {"zipf": 0.6}}, "on": "hgx-h100"}
    explained = simcoll.explain("moe_dispatch", executor="deepep", **keys)
    told = {each["change"]: each["time_us"] for each in explained["points"][0]["what_if"]}
    assert told["40 SMs"] == simcoll.predict("moe_dispatch", executor="deepep", sms=40, **keys).time_us
    other = simcoll.predict("moe_dispatch", executor="low-latency", **keys).time_us
    assert told["executor low-latency"] == other
    even = simcoll.predict("moe_dispatch", executor="deepep", on="hgx-h100", moe=MOE).time_us
    assert told["uniform routing"] == even


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"size": "1 MiB"}, "'size' does not go with moe_dispatch; it follows from `moe`"),
        ({"dtype": "float32"}, "'dtype' does not go with moe_dispatch; write `moe.dtype`"),
        ({"moe": None}, "moe_dispatch needs `moe`; add e.g. moe: {tokens: 4096"),
        ({"moe": MOE | {"topk": 16, "experts": 8}}, "8 experts are fewer than topk"),
        ({"moe": MOE | {"hidden": 100}}, "fp8 has a scale for 128 elements"),
        ({"moe": MOE | {"routing": "skewed"}}, "'skewed' is no routing; write uniform"),
        ({"moe": MOE | {"routing": {"counts": "none.csv"}}}, "'none.csv' is no file"),
        ({"executor": "nccl"}, "moe_dispatch has no executor 'nccl'; write pairwise, deepep, low-latency"),
        ({"moe": MOE | {"experts": 1_600_000_000}}, "1600000000 is out of range; write a number at most 4096"),
        ({"moe": MOE | {"topk": 100}}, "100 is out of range; write a number at most 32"),
        ({"executor": "deepep", "sms": 5}, "5 is no multiple of 2"),
        ({"executor": "deepep", "protocol": "LL"}, "'protocol' has no effect on DeepEP's kernels"),
        ({"executor": "low-latency", "env": {"NCCL_ALGO": "ring"}}, "'env' has no effect on DeepEP's kernels"),
        ({"executor": "low-latency", "sms": 20}, "only DeepEP's normal kernels have a number of SMs"),
        ({"collective": "all_to_all", "size": "1 MiB"}, "all_to_all moves no tokens"),
        ({"collective": "all_to_all", "moe": None, "size": "1 MiB", "executor": "deepep"}, "no executor 'deepep'"),
    ],
)
def test_wrong_keys(keys: dict[str, Any], said: str) -> None:
    """Each mistake has one message, which says what to write instead."""
    with pytest.raises(InputError) as caught:
        simcoll.load({"topology": "hgx-h100", "collective": "moe_dispatch", "moe": MOE, **keys})
    assert said in str(caught.value)
    assert len(caught.value.diagnostics) == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"on": "hgx-h100", "sms": 134}, "these GPUs have 132 SMs; write no more"),
        ({"on": "hgx-h100", "nodes": 3}, "256 experts do not divide among 24 ranks"),
        *(({"on": where}, "kernels need NVIDIA's GPUs from Ampere on") for where in (HOSTS, "dgx1-v100", "h100-nvl")),
    ],
)
def test_refusals(keys: dict[str, Any], said: str) -> None:
    """Kernels are not guessed where none would run."""
    with pytest.raises(RefusedError, match=said):
        simcoll.predict("moe_dispatch", moe=MOE, executor="deepep", **keys)


def test_gpus_that_were_not_measured() -> None:
    """Such GPUs take the costs of the nearest generation at the rates of their own links; a row says so."""
    found = {}
    for system in ("hgx-h100", "hgx-h200", "hgx-h800", "hgx-b300", "dgx-a100"):
        (row,) = simcoll.run(topology=system, collective="moe_combine", moe=MOE | {"tokens": 1024}, executor="deepep")
        found[system] = row["never_fitted"], row["confidence"], round(row["high_us"] / row["time_us"], 2)
    known, lent = (None, "interpolated", 1.22), "A100 SXM4 80 GB"
    assert found == {
        "hgx-h100": known,
        "hgx-h200": known,
        "hgx-h800": ("H800 SXM5", "extrapolated", 1.22),
        "hgx-b300": ("B300 SXM", "extrapolated", 1.22),
        "dgx-a100": (lent, "extrapolated", 1.49),
    }


def test_lent_costs_wait_for_the_links_of_the_machine() -> None:
    """A low-latency kernel of one token waits as much longer as a message of NCCL's takes over NVLink; a normal one
    waits for as many messages."""
    low, normal = (getattr(expert_kernels().chips["hopper"], each).dispatch for each in ("low_latency", "normal"))
    hops = [load_profile(f"nccl-{chip}").kernels.LL.hop for chip in ("ampere", "hopper")]
    late = hops[0] / hops[1]
    keys = {"on": "dgx-a100", "moe": MOE | {"tokens": 1}}
    found = simcoll.predict("moe_dispatch", executor="low-latency", **keys).time_ps
    assert found == pytest.approx(late * (low.floor + 256 * low.expert + low.token), rel=0.05)
    found = simcoll.predict("moe_dispatch", executor="deepep", **keys).time_ps
    assert found == pytest.approx(normal.floor + (late - 1) * low.floor, rel=0.1)
    with pytest.raises(RefusedError, match="these GPUs have 108 SMs"):
        simcoll.predict("moe_dispatch", executor="deepep", sms=110, **keys)


def test_executors_of_operations_are_not_choices() -> None:
    """Of a workload with such calls `recommend` names its own algorithm: each operation has its executor."""
    operation = {"name": "out", "collective": "moe_dispatch", "moe": MOE, "executor": "deepep"}
    advice = simcoll.recommend({"topology": "hgx-h100", "workload": {"operations": [operation]}})
    assert [each["choice"] for each in advice["recommendations"][0]["choices"]] == ["auto"]


def test_the_best_executor_by_tokens() -> None:
    """`recommend` names for each range of tokens the executor that is fastest there."""
    moe = MOE | {"tokens": [1, 4096]}
    (advice,) = simcoll.recommend("moe_dispatch", on="hgx-h100", moe=moe)["recommendations"]
    chosen = {each["from_tokens"]: each["executor"] for each in advice["ranges"]}
    assert list(chosen.values()) == ["pairwise", "low-latency", "deepep"]
    for tokens, best in chosen.items():
        times = {
            executor: simcoll.predict(
                "moe_dispatch", on="hgx-h100", moe=MOE | {"tokens": tokens}, executor=executor
            ).time_ps
            for executor in ("pairwise", "low-latency", "deepep")
        }
        assert min(times, key=times.__getitem__) == best


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_little_skew_changes_little(nodes: int) -> None:
    """`pairwise` with nearly even experts takes as long as with even ones, and is as sure of it."""
    rows = [
        simcoll.run(topology={"system": "hgx-h100", "nodes": nodes}, collective="moe_dispatch", moe=MOE | routing)[0]
        for routing in ({}, {"routing": {"zipf": 0.0005}})
    ]
    assert rows[1]["time_us"] == pytest.approx(rows[0]["time_us"], rel=0.005)
    assert rows[1]["executor"] == rows[0]["executor"] == "pairwise"
    assert rows[1]["low_us"]


@pytest.mark.parametrize("executor", ["pairwise", "deepep", "low-latency"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_more_tokens_take_longer(executor: str, nodes: int) -> None:
    """Where NCCL changes its protocol, or cuts messages into other pieces, more tokens are no quicker, either."""
    tokens = [1, 16, 32, 64, 96, 128, 140, 150, 192, 257, 512, 1024]
    rows = simcoll.run(
        topology={"system": "hgx-h100", "nodes": nodes},
        collective="moe_combine",
        moe=MOE | {"tokens": tokens},
        executor=executor,
    )
    times = [row["time_us"] for row in rows]
    assert times == sorted(times)


def _exchanged(nbytes: dict[tuple[int, int], int], little: int) -> float:
    """Return the time in us in which 16 ranks on two nodes send each other `little`, and some pairs `nbytes`."""
    weights = np.full((16, 16), little)
    for pair, each in nbytes.items():
        weights[pair] = each
    np.fill_diagonal(weights, 0)
    sums = weights.sum(axis=1)
    np.fill_diagonal(weights, sums.max() - sums)
    where = {"on": "hgx-h100", "nodes": 2, "dtype": "uint8"}
    return simcoll.predict("all_to_all", size=int(sums.max()), weights=weights.tolist(), **where).time_us


def test_very_uneven_pairs() -> None:
    """A large message takes what the NIC needs for it and for the small ones beside it. If each rank has a single large
    message, this is a send_recv. Within a node it is no slower."""
    large, small = 24_000_000, 1_500_000
    alone = simcoll.predict("send_recv", size=large, on="hgx-h100", nodes=2).time_us
    pairs = {(rank, (rank + 8) % 16): large for rank in range(16)}
    assert _exchanged(pairs, 0) == pytest.approx(alone, rel=0.02)
    beside = 7 * small / (50e9 * 0.99322) * 1e6
    assert _exchanged({(0, 8): large}, small) == pytest.approx(alone + beside, rel=0.02)
    assert _exchanged({(0, 1): large}, small) < alone + beside


def test_skewed_pairwise_is_bound_by_a_nic() -> None:
    """Large messages to the rank of the most popular experts keep its NIC busy, and hardly longer."""
    moe = MOE | {"tokens": 4096, "routing": {"zipf": 0.6}}
    far = 24 * _tokens("moe_dispatch", moe).to_experts(32).max() * BYTES / (50e9 * 0.99322) * 1e6
    found = simcoll.predict("moe_dispatch", moe=moe, on="hgx-h100", nodes=4).time_us
    assert far < found < 1.25 * far


@pytest.mark.parametrize("tokens", [1, 16])
def test_small_messages_cost_by_their_number(tokens: int) -> None:
    """Skewed messages are never slower than even ones that are as large as those to the busiest rank."""
    moe = MOE | {"tokens": tokens, "routing": {"zipf": 1.0}}
    most = _tokens("moe_dispatch", moe).to_experts(64).max() * 64 / MOE["topk"]
    keys: dict[str, Any] = {"on": "hgx-h100", "nodes": 8, "protocol": "LL"}
    even = simcoll.predict("moe_dispatch", moe=MOE | {"tokens": math.ceil(most)}, **keys).time_us
    assert simcoll.predict("moe_dispatch", moe=moe, **keys).time_us <= even * 1.01


@pytest.mark.parametrize("executor", ["deepep", "low-latency"])
def test_kernels_have_intervals(executor: str) -> None:
    """The interval is that of rows held out of the fit; what was not measured is extrapolated."""
    told = {}
    for nodes, moe in (
        (1, MOE),
        (2, MOE),
        (4, MOE),
        (1, MOE | {"routing": {"zipf": 1.0}}),
        (1, MOE | {"tokens": 9000}),
    ):
        where = {"system": "hgx-h100", "nodes": nodes}
        (row,) = simcoll.run(topology=where, collective="moe_combine", moe=moe, executor=executor)
        assert row["low_us"] < row["time_us"] < row["high_us"]
        told[nodes, len(moe), moe["tokens"]] = row["confidence"]
    assert list(told.values()) == [*["interpolated"] * 2, *["extrapolated"] * 3]
