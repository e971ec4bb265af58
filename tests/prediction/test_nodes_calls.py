"""Calls of NCCL's kernels over several nodes: hops, proxies, NICs, staging and congestion."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_law import (
    BLOCK,
    DATA,
    ITEM,
    PROTOCOLS,
    US,
    call,
    changed,
    channel,
    text,
)

import simcoll as simcoll_api
from simcoll.errors import InputError, StuckError
from simcoll.prediction.predict import row
from simcoll.scenario.profile import load_network, load_profile
from simcoll.schedule.algorithms import build
from simcoll.schedule.names import Protocol
from simcoll.schedule.proof import prove
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import load_system


@pytest.mark.thorough
@settings(max_examples=40)
@given(
    st.sampled_from(["hgx-h100", "dgx-a100"]),
    st.sampled_from([("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)]),
    st.integers(2, 6),
    st.sampled_from(PROTOCOLS),
    st.integers(3, 20).map(lambda k: 2**k),
    st.integers(0, 20_000_000),
)
def test_hops_between_nodes(
    system: str, around: tuple[str, int], nodes: int, protocol: Protocol, nbytes: int, net: int
) -> None:
    """Of the steps of a ring one a node and round leaves the node; `net` is added to those, half at each end, to a
    picosecond."""
    how = {"nodes": nodes, "algorithm": "ring", "protocol": protocol}
    with_it, without = (
        call(system, around[0], nbytes, changed(protocol, net=cost), **how).time_ps for cost in (net, 0)
    )
    hops = nodes * around[1]
    assert with_it - without == pytest.approx(hops * net, abs=4 * hops)


@pytest.mark.parametrize("nodes", [2, 5, 8, 13])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_hops_of_aggregated_trees(collective: str, nodes: int) -> None:
    """With one GPU a node, and since 2.23, few bytes go by PAT: a hop for each round whose message carries a block of
    the round before, where a ring takes n − 1."""
    how = {"nodes": nodes, "placement": {"per_node": 1}, "algorithm": "pat"}
    with_it, without = (call("hgx-h100", collective, 1024, changed("Simple", net=n), **how).time_ps for n in (10**7, 0))
    after: dict[int, int] = {}  # by the distance of a round: the hops until its message has come
    for distance in (8, 4, 2, 1):
        blocks = range(0, nodes - distance, 2 * distance)  # by how far they have come; last by their lowest bit
        after[distance] = max((1 + after.get(block & -block, 0) for block in blocks), default=0)
    hops = max(after.values())
    assert with_it - without == pytest.approx(hops * 10**7, abs=2 * hops)
    if nodes > 8:  # where the tuner reckons with less for it
        ways = [
            {"placement": {"per_node": r}, "library_version": v} for r, v in ((1, "2.30"), (1, "2.22"), (2, "2.30"))
        ]
        chosen = [call("hgx-h100", collective, 1024, nodes=nodes, **way).algorithm for way in ways]
        assert [name.partition("(")[0] for name in chosen] == ["pat", "ring", "ring"]


@pytest.mark.parametrize(("algorithm", "protocol"), [*(("tree", p) for p in PROTOCOLS), ("nvls_tree", "Simple")])
def test_hops_of_a_tree(algorithm: str, protocol: Protocol) -> None:
    """On two nodes a tree goes across once up and once down; with a node more it does so no less often. The blocks of
    NVLSTree do there what those of Simple do."""
    extra = []
    for nodes in (2, 3, 4, 8):
        how = {"nodes": nodes, "algorithm": algorithm, "protocol": protocol}
        laws = (changed(protocol, net=net) for net in (2 * 10**8, 10**8))
        slow, fast = (call("hgx-h100", "all_reduce", 4096, law, **how) for law in laws)
        extra.append((slow.time_ps - fast.time_ps) / 10**8)
    assert extra[0] == 2
    assert all(round(a) <= round(b) for a, b in itertools.pairwise(extra))


def test_a_small_tree_grows_with_its_depth() -> None:
    """Of few bytes twice as many nodes take two hops more, and no longer: nothing grows with the number of ranks."""
    how = {"algorithm": "tree", "protocol": "LL"}
    took = [call("gh200-4", "all_reduce", 8, nodes=nodes, **how).time_ps for nodes in (4, 8, 16, 32)]
    more = [b - a for a, b in itertools.pairwise(took)]
    assert max(more) < 1.05 * min(more)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_nodes_are_never_faster(collective: str, protocol: Protocol) -> None:
    """Of a small call by one algorithm and protocol more nodes take longer: the ring has more steps, all have hops."""
    names = {"all_reduce": ("ring", "tree"), "broadcast": ("ring",), "reduce": ("ring",)}
    for algorithm in names.get(collective, ("ring",)):
        how = {"algorithm": algorithm, "protocol": protocol}
        law = changed(protocol)  # of more ranks messages are smaller
        times = [call("hgx-h100", collective, 8192, law, nodes=nodes, **how).time_ps for nodes in (1, 2, 3, 4, 6, 8)]
        assert times == sorted(times), algorithm


@settings(max_examples=60)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_chain_trees_are_right(sizes: list[int], chance: Any) -> None:
    """Chains in groups of any sizes and order, trees across: every rank ends with the sum of all, by 2(n − 1) messages
    a half, or of everything in one group; only the first ranks of groups talk to other groups."""
    ranks = list(range(sum(sizes)))
    chance.shuffle(ranks)
    left = iter(ranks)
    groups = tuple(tuple(itertools.islice(left, size)) for size in sizes)
    schedule = build("all_reduce", "chain_tree", len(ranks), groups=groups)
    prove(schedule)
    halves = min(2, len(groups))
    assert schedule.messages == halves * 2 * (len(ranks) - 1)
    of = {rank: group for group, its in enumerate(groups) for rank in its}
    across = [(t.src, t.dst) for t in schedule if of[t.src] != of[t.dst]]
    assert len(across) == 4 * (len(groups) - 1)
    assert {rank for ends in across for rank in ends} <= {its[0] for its in groups}


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_latency_of_a_transport(algorithm: str, protocol: Protocol) -> None:
    """The latency of a transport makes a hop as much longer as `net` of the blocks."""
    how = {"nodes": 2, "algorithm": algorithm, "protocol": protocol}
    own = changed(protocol, net=5_000_000)
    apart = text({**BLOCK, protocol: {**BLOCK[protocol], "net": 2_000_000}}, transport={"latency": "3 us"})
    times = [call("hgx-h100", "all_reduce", 1 << 16, law, **how).time_ps for law in (own, apart)]
    assert times[0] == times[1]


def test_a_message_alone_on_its_connection() -> None:
    """On two nodes a tree's messages go across one after the other up and down: each takes its bytes over the bandwidth
    of a connection longer, with LL's flags twice those of its data, all of a channel's share where that is a chunk."""
    how = {"nodes": 2, "algorithm": "tree", "protocol": "LL"}
    slow, fast = (
        call("hgx-h100", "all_reduce", 2048, text(transport={"connection": rate}), **how) for rate in ("1 GB/s", "none")
    )
    assert channel(fast).call.sent == 2048
    assert slow.time_ps - fast.time_ps == 2 * 2 * 2048 * 1000


@settings(max_examples=20)
@given(st.integers(2, 6), st.integers(0, 9), st.integers(1, 40).map(lambda us: us * 10**6), st.booleans())
def test_proxies_serve_peers_one_after_the_other(nodes: int, power: int, cost: int, rounds: bool) -> None:
    """Of small messages the proxies are what takes time: in an all-to-all each takes up the sends and receives of one
    peer after the other, (n − GPUs of a node) of each, and serves the messages of eight in a round."""
    nbytes, how = 4 << power, {"nodes": nodes, "protocol": "LL"}
    ranks, key = 8 * nodes, "proxy" if rounds else "operation"
    with_it, without = (
        call("hgx-h100", "all_to_all", ranks * nbytes, text(transport={key: f"{ps} ps"}), **how).time_ps
        for ps in (cost, 0)
    )
    times = (ranks - 8) // 8 if rounds else ranks - 8
    assert abs(with_it - without - times * 2 * cost) <= 2 * cost + ranks * 1000


@pytest.mark.parametrize(("system", "nodes"), [("dgx-a100", 1), ("dgx-a100", 2), ("hgx-h100", 4)])
def test_fewer_bytes_than_ranks(system: str, nodes: int) -> None:
    """Messages of an all-to-all are equal, of an element at least: a smaller one never takes longer."""
    sizes = [ITEM * elements for elements in (1, 3, 8 * nodes - 1, 8 * nodes, 12 * nodes, 33 * nodes, 1000, 20_000)]
    took = [call(system, "all_to_all", nbytes, nodes=nodes).time_ps for nbytes in sizes]
    assert took == sorted(took)
    assert took[0] == took[3]


def test_a_message_of_few_elements() -> None:
    """A message of one element takes as long as one of some: it is not cut in as many parts as there are ranks."""
    law = text(transport={"proxy": "2 us"})
    took = [call("hgx-h100", "send_recv", ITEM * elements, law, nodes=2).time_ps for elements in (1, 2, 7, 15, 16)]
    assert took == sorted(took)
    assert took[0] == pytest.approx(took[-1], rel=0.01)


EARLY = {"proxy": "2 us", "unexpected": "6 us", "sent_at_once": "256 B", "held": "1 KiB"}


def test_messages_before_their_buffers() -> None:
    """Small messages that may come before their buffers cost more, larger ones do not: an all-to-all of larger ones may
    be faster. A ring's come one by one, and are awaited."""
    law, plain = text(transport=EARLY), text(transport={"proxy": "2 us"})

    def took(collective: str, message: int, law: str) -> int:
        return call("hgx-h100", collective, 16 * message, law, nodes=2).time_ps

    assert took("all_to_all", 64, law) > took("all_to_all", 256, law) == took("all_to_all", 256, plain)
    assert took("all_gather", 64, law) == took("all_gather", 64, plain)


def test_buffers_lie_ready_for_a_connections_slots() -> None:
    """The 7 messages of a ring of 2 x 4 find theirs, the last 3 of the 11 of 3 x 4 do not, nor half of the 8 slices of
    Simple's ring that 2 x 4 need, of which a connection holds four; messages of up to 1 KiB are held without one."""
    law, plain = text(transport=EARLY), text(transport={"proxy": "2 us"})

    def later(nodes: int, message: int, protocol: str) -> bool:
        how = {"collective": "all_gather", "nbytes": 4 * nodes * message, "nodes": nodes, "algorithm": "ring"}
        slow, free = (call("gh200-4", law=each, protocol=protocol, **how).time_ps for each in (law, plain))
        assert slow >= free
        return slow > free

    assert not later(2, 4096, "LL") and later(3, 4096, "LL") and not later(3, 512, "LL")
    assert later(2, 1 << 20, "Simple")


def test_lines_go_to_the_nic_together() -> None:
    """Over PCIe lines of LL are handed on one by one, but a NIC gets a step at once: a proxy that takes longer for a
    message delays a ring by that time a step at most."""
    laws = [text(transport={"proxy": f"{us} us"}) for us in (2, 12)]
    how = {"collective": "all_gather", "nbytes": 1 << 20, "nodes": 2, "algorithm": "ring", "protocol": "LL"}
    few, more = (call("l40s-pcie", law=each, env={"NCCL_MAX_NCHANNELS": 1}, **how).time_ps for each in laws)
    assert 0 < more - few <= 15 * 10 * US


@pytest.mark.parametrize(("protocol", "step"), [("Simple", 512 << 10), ("LL128", 512 << 10)])
def test_a_proxy_sends_full_steps(protocol: Protocol, step: int) -> None:
    """A broadcast of one step leaves a node when a block has written all of it. So a byte more takes the block's time
    and the NIC's; of many steps one is sent while the next one fills, and the NIC's counts."""
    how = {"nodes": 2, "placement": {"per_node": 1}, "protocol": protocol, "env": {"NCCL_MAX_NCHANNELS": 1}}
    half, one, many, more = (
        call("hgx-h100", "broadcast", nbytes, **how).time_ps for nbytes in (step // 2, step, 256 * step, 512 * step)
    )
    block = 1e12 / (BLOCK["P2P"]["both"] * (DATA[protocol] if protocol == "LL128" else 4 / 3))
    assert (one - half) / (step // 2) == pytest.approx((more - many) / (256 * step) + block, rel=0.05)


@pytest.mark.parametrize("system", ["hgx-h100", "dgx-a100"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
def test_halves_of_the_nics_are_alike(system: str, collective: str) -> None:
    """A node whose sockets are alike takes as long by the NICs of either, or by every second one, odd or even."""

    def took(*numbers: int) -> int:
        listed = "=" + ",".join(f"mlx5_{number}" for number in numbers)
        return call(system, collective, 64 << 20, nodes=2, env={"NCCL_IB_HCA": listed}).time_ps

    assert took(4, 5, 6, 7) == took(0, 1, 2, 3)
    assert took(1, 3, 5, 7) == took(0, 2, 4, 6)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_gather"])
def test_channels_between_nodes_carry_what_blocks_hand_on(collective: str) -> None:
    """Blocks that receive and send at once limit large rings and chains over nodes; twice as fast ones do not."""
    few, more = (
        call("hgx-h100", collective, 4 << 30, text({**BLOCK, "P2P": {"both": rate}}), nodes=2).time_ps
        for rate in (5 * 10**9, 10**10)
    )
    assert few / more == pytest.approx(2, rel=0.1)


def test_a_host_that_matches_messages_copies_them() -> None:
    """It does those of more than 4 KiB with their flags, for `flush` of proxies; GPUs from Hopper on need none else."""
    ways = ((6, {}), (6, {"copied_above": "4 KiB"}), (12, {"copied_above": "4 KiB"}))
    laws = [text(transport={"flush": f"{us} us", **way}) for us, way in ways]

    def took(nbytes: int) -> list[int]:
        return [call("gh200-4", "all_reduce", nbytes, law, nodes=2, algorithm="tree").time_ps for law in laws]

    assert len(set(took(2048))) == 1
    by_nic, by_host, slowly = took(4096)
    assert by_nic < by_host and slowly - by_nic == pytest.approx(2 * (by_host - by_nic), rel=0.1)


@pytest.mark.parametrize("rate", [10, 100, 200, 400])
def test_nics_of_another_rate_are_never_exceeded(rate: int, tmp_path: Path) -> None:
    """A machine's file with other NICs: a large ring carries what these can, and no channels that they cannot, nor more
    than the blocks of 16 channels hand on."""
    text_of = shipped_systems()["hgx-h100"].read_text("utf-8").replace("rate: 400 Gb/s", f"rate: {rate} Gb/s")
    path = tmp_path / "other.yaml"
    path.write_text(text_of, "utf-8")
    (found,) = simcoll_api.run(
        collective="all_gather", topology={"file": str(path), "nodes": 2}, ranks=16, size="2 GiB", profile="nccl-hopper"
    )
    kernels = load_profile("nccl-hopper").kernels
    assert kernels
    assert 0.85 < found["busbw_GBps"] / min(8 * rate / 8, 16 * kernels.P2P.both / 0.75e9) <= 1.0


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_no_two_gpus_of_a_node_send_to_one_at_once(nodes: int) -> None:
    """Where each GPU has a way of its own to the network no proxy has two messages waiting: an all-to-all of small ones
    takes the time to take up all peers, and no more."""
    law = text(transport={"operation": "5 us"})
    took = call("gh200-4", "all_to_all", 16 * 4 * nodes, law, nodes=nodes, protocol="LL").time_ps
    free = call("gh200-4", "all_to_all", 16 * 4 * nodes, text(transport={}), nodes=nodes, protocol="LL").time_ps
    assert took - free == pytest.approx(2 * 5e6 * 4 * (nodes - 1), rel=0.01)


def test_peers_are_taken_up_once() -> None:
    """A ring, whose next call is taken up meanwhile, takes no `operation`. Large messages pay once for each peer."""
    law, plain = text(transport={"operation": "3 us"}), text(transport={})

    def longer(collective: str, nodes: int, message: int) -> float:
        how = {"collective": collective, "nbytes": 8 * nodes * message, "nodes": nodes}
        return (call("hgx-h100", **how, law=law).time_ps - call("hgx-h100", **how, law=plain).time_ps) / 1e6

    assert longer("all_gather", 2, 64) == 0
    assert 0 <= longer("all_to_all", 2, 64 << 20) < 2 * 3 * 8


@pytest.mark.parametrize(
    ("system", "nodes", "gpus"), [("hgx-h100", 2, 8), ("hgx-h100", 4, 8), ("hgx-h100", 10, 4), ("gb200-nvl72", 2, 72)]
)
def test_nvls_tree_keeps_what_limits_it_busy(system: str, nodes: int, gpus: int) -> None:
    """Chunks of a large NVLSTree are on their way on all hops at once, and what goes up is not far ahead of what comes
    down: each further byte takes as long as on the busiest link, to 1 %, however far it goes."""
    sizes, found = (9 << 28, 9 << 29), []  # every head of 8 or 72 GPUs has as much
    for nbytes in sizes:
        how: dict[str, Any] = {"nodes": nodes, "ranks": nodes * gpus, "placement": {"per_node": gpus}}
        played = call(system, "all_reduce", nbytes, algorithm="nvls_tree", **how)
        links = channel(played).network.bandwidths
        found.append((played.time_ps, (np.asarray(played.run.totals.carried) / np.maximum(1, links)).max() * 1e12))
    longer, busier = (found[1][i] - found[0][i] for i in (0, 1))
    assert busier < longer * 1.001
    assert longer < 1.01 * busier


def test_staging_where_gpudirect_is_off() -> None:
    """With GPUDirect only LL is copied through the host's memory, without it everything is, and takes no less time."""

    def took(protocol: str, **transport: Any) -> int:
        law = text(transport={"staging": "1 GB/s", **transport})
        return call("hgx-h100", "all_gather", 4 << 20, law, nodes=2, protocol=protocol).time_ps

    assert took("LL") == took("LL", gpudirect=False) > took("LL", staging="none")
    for protocol in ("LL128", "Simple"):
        assert took(protocol) == took(protocol, staging="none") < took(protocol, gpudirect=False)


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        *(("all_reduce", algorithm) for algorithm in ("ring", "tree", "nvls_tree")),
        ("all_gather", "ring"),
        ("reduce_scatter", "ring"),
        ("broadcast", "ring"),
        ("all_to_all", "auto"),
    ],
)
def test_no_algorithm_escapes_staging(collective: str, algorithm: str, nodes: int) -> None:
    """Where proxies copy all data, no algorithm is faster than its least bytes out of a node at what its GPUs' proxies
    copy together; and none takes four times as long."""
    nbytes, gpus, rate = 64 << 20, 8, 10**9
    others = (nodes - 1) / nodes  # of the data are for other nodes, or of them
    least = {"all_reduce": 2 * others, "broadcast": 1.0, "all_to_all": gpus * others}.get(collective, others)
    law = text(transport={"staging": f"{rate} B/s", "gpudirect": False})
    took = call("hgx-h100", collective, nbytes, law, nodes=nodes, algorithm=algorithm).time_ps / 1e12
    assert 1 <= took / (nbytes * least / (gpus * rate)) < 4


def test_roots_serve_one_side() -> None:
    """A proxy of a gather's root receives only, one of a scatter's root sends only; of an all-to-all each does both.

    On nodes of one GPU, and of two of eight GPUs: the root's proxies have a message of each rank of other nodes."""

    def added(collective: str, ranks: int, nodes: int) -> int:
        laws = (text(transport={"proxy": proxy}) for proxy in ("1 ms", "0 us"))
        much, none = (call("hgx-h100", collective, 1024 * ranks, law, ranks=ranks, nodes=nodes).time_ps for law in laws)
        return much - none

    for ranks, nodes in ((4, 4), (16, 2)):
        both = added("all_to_all", ranks, nodes)
        assert added("gather", ranks, nodes) == pytest.approx(both / 2, rel=0.02)


def test_reading_back() -> None:
    """Proxies read back what NICs have written, message by message: with Simple, and not from Hopper on."""

    def took(system: str, protocol: str, flush: str) -> int:
        law = text(transport={"flush": flush})
        return call(system, "all_gather", 1 << 20, law, nodes=2, algorithm="ring", protocol=protocol).time_ps

    assert took("dgx-a100", "Simple", "50 us") > took("dgx-a100", "Simple", "0 us")
    for system, protocol in (("dgx-a100", "LL"), ("dgx-a100", "LL128"), ("hgx-h100", "Simple")):
        assert took(system, protocol, "50 us") == took(system, protocol, "0 us")


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 20, 1 << 28])
def test_more_nics_are_never_slower(collective: str, nbytes: int) -> None:
    """Cables of twice the rate, and proxies of half the time, take no longer."""
    laws = (text(transport={"proxy": f"{us} us", "latency": "5 us"}) for us in (4, 2))
    slow, fast = (call("dgx-a100", collective, nbytes, law, nodes=3).time_ps for law in laws)
    assert fast <= slow
    wide = {way: {"bandwidth": "50 GB/s"} for way in ("*.nic*->*", "*->*.nic*")}
    topology = {"system": "dgx-a100", "nodes": 3, "links": wide}
    assert (
        call("dgx-a100", collective, nbytes, topology=topology).time_ps
        <= call("dgx-a100", collective, nbytes, nodes=3).time_ps
    )


def test_congestion_is_of_messages_to_many_nodes() -> None:
    """All-to-alls of more than two nodes reach the less of the fabric the more they are; two nodes, which have one
    destination each, and rings reach all of it."""

    def took(collective: str, nodes: int, law: str) -> int:
        return call("hgx-h100", collective, 256 << 20, law, nodes=nodes).time_ps

    crowded, empty = text(transport={"congestion": "100 %"}), text(transport={})
    more = [took("all_to_all", nodes, crowded) / took("all_to_all", nodes, empty) for nodes in (2, 3, 5)]
    assert 1 == more[0] < more[1] < more[2] < 2
    assert took("all_gather", 4, crowded) == took("all_gather", 4, empty)


@pytest.mark.parametrize("system", ["hgx-h100", "hgx-h200"])
def test_nics_reach_what_cables_carry(system: str) -> None:
    """PCIe 5 to a NIC of 400 Gb/s carries more than the 48 GB/s that NCCL counts: the cable limits large messages."""
    size, found = 8 << 30, simcoll_api.predict("all_to_all", on=system, nodes=2, size="8 GiB")
    rate = size / 2 / found.time_ps * 1e3  # of each GPU's NIC: half of what it sends leaves the node
    assert 48 < rate <= 50


@pytest.mark.parametrize("nodes", [2, 3])
def test_messages_of_a_nic_are_served_in_turn(nodes: int) -> None:
    """None of an all-to-all's messages is left for last: the NICs are busy until the end, whatever the size."""
    for size in (16 << 20, 64 << 20, 256 << 20):
        found = simcoll_api.predict("all_to_all", on="hgx-h100", nodes=nodes, size=f"{size} B")
        least = size * (nodes - 1) / nodes / 50e9 * 1e12
        assert least < found.time_ps < 1.12 * least + 100 * US


def test_few_peers_are_served_at_once() -> None:
    """With eight GPUs on another node, as many as NCCL serves at once, receivers that others use too cost nothing."""
    laws = [
        text(transport={"congestion": share, "window": window})
        for share, window in (("50 %", 8), ("0 %", 8), ("50 %", 7))
    ]
    even, free, slow = (call("mi300x", "all_to_all", 1 << 30, law, nodes=2).time_ps for law in laws)
    assert even == free < 0.9 * slow


def test_messages_wait_while_others_have_their_receivers() -> None:
    """With a switch a rail n nodes send to n - 1 each, and a receiver is busy with others but for its sender's share.
    Of 4 GPUs, 3 by one NIC and 1 by the other, the busy NIC sends 3 of 4 messages to a busy one and 1 of 4 to one that
    is busy a third of the time. The more nodes, the longer all_to_alls take by it, up to others alone."""

    def contention(system: str, nodes: int) -> float:
        return channel(call(system, "all_to_all", 1 << 20, nodes=nodes)).wires.contention

    counts = (2, 3, 5, 16)
    assert [contention("hgx-h100", nodes) for nodes in (1, *counts)] == [0, *(1 - 1 / (n - 1) for n in counts)]
    found = [contention("hgx-a100-4-slingshot", nodes) for nodes in counts]
    assert found == pytest.approx([(3 / 4 + 1 / 4 / 3) * (1 - 3 / 4 / (n - 1)) for n in counts])
    assert contention("gh200-4", 2) == 3 / 4
    crowded, empty = text(transport={"congestion": "100 %", "window": 1}), text(transport={})
    slow, free = (call("hgx-a100-4-slingshot", "all_to_all", 1 << 30, law, nodes=2) for law in (crowded, empty))
    assert slow.time_ps / free.time_ps == pytest.approx(1 + 5 / 24, rel=0.01)
    slow, free = (call("hgx-a100-4-slingshot", "send_recv", 1 << 30, law, nodes=2) for law in (crowded, empty))
    assert slow.time_ps == free.time_ps


def test_nics_say_what_the_profile_leaves_open() -> None:
    """A profile's transport holds; where it has none, that of the system's NICs does, or another that is asked for."""
    laws = {"open": text(transport=None), "told": text(transport={"latency": "9 us"})}
    found = {name: call("hgx-h100", "all_reduce", 2048, law, nodes=2, protocol="LL") for name, law in laws.items()}
    of_nics = load_network(load_system("hgx-h100").nic.profile).transport  # type: ignore[union-attr]  # it has NICs
    assert channel(found["open"]).transport == of_nics
    assert channel(found["told"]).transport.latency == 9_000_000
    other = call("hgx-h100", "all_reduce", 2048, nodes=2, profile="nccl-hopper+tcp")
    assert channel(other).transport == load_network("tcp").transport
    assert other.time_ps > call("hgx-h100", "all_reduce", 2048, nodes=2, profile="nccl-hopper").time_ps
    assert other.time_ps == call("hgx-h200", "all_reduce", 2048, nodes=2, profile="nccl-hopper+tcp").time_ps
    one_node = {
        name: call("hgx-h100", "all_reduce", 2048, profile=name).time_ps for name in ("nccl-hopper", "nccl-hopper+tcp")
    }
    assert len(set(one_node.values())) == 1


def test_a_transport_by_name_is_judged_as_that_of_the_nics() -> None:
    """`GPUS+TRANSPORT` has the interval of a machine with such NICs; a transport alone says nothing of GPUs."""
    names = ("nccl-hopper", "nccl-hopper+ib-ndr", "nccl-hopper+tcp")
    own, named, other = (row(call("hgx-h100", "all_reduce", 1 << 20, nodes=2, profile=name)) for name in names)
    ends = ("time_us", "low_us", "high_us", "median_low_us", "confidence")
    assert [own[end] for end in ends] == [named[end] for end in ends]
    assert own["low_us"] < own["time_us"] < other["time_us"] < other["high_us"]
    with pytest.raises(InputError, match=r"none of GPUs.*nccl-hopper\+tcp"):
        call("hgx-h100", "all_reduce", 1 << 20, nodes=2, profile="tcp")


@pytest.mark.parametrize(("collective", "algorithm"), [("all_gather", "ring"), ("all_reduce", "tree")])
def test_a_slow_nic_is_felt_wherever_it_is(collective: str, algorithm: str) -> None:
    """Channels go by all NICs of a node, and a call ends with the last: whichever of them is slow, it takes as long."""

    def took(nic: int) -> int:
        slow = {way: {"bandwidth": "10 GB/s"} for way in (f"node0.nic{nic}->*", f"*->node0.nic{nic}")}
        topology = {"system": "hgx-h100", "nodes": 2, "links": slow}
        return call("hgx-h100", collective, 64 << 20, ranks=16, algorithm=algorithm, topology=topology).time_ps

    plain = call("hgx-h100", collective, 64 << 20, nodes=2, ranks=16, algorithm=algorithm).time_ps
    assert took(0) == took(3) == took(7) > plain


@pytest.mark.parametrize("link", ["node0.nic3->rail3", "node0.nic0->rail0", "rail5->node1.nic5"])
def test_a_dead_link_is_called_by_its_name(link: str) -> None:
    """Whichever it is, and whichever NIC the channel goes by that is run for all: the message names it and no other."""
    topology = {"system": "hgx-h100", "nodes": 2, "links": {link: {"bandwidth": "0 GB/s"}}}
    with pytest.raises(StuckError, match="the run cannot finish") as told:
        call("hgx-h100", "all_gather", 64 << 20, ranks=16, algorithm="ring", topology=topology)
    assert re.findall(r"[\w.]+->[\w.]+", str(told.value)) == [link]


@pytest.mark.parametrize("nics", [2, 4, 6, 8])
def test_gpus_without_a_nic_send_all_over_their_nvlink(nics: int, tmp_path: Path) -> None:
    """With fewer NICs than GPUs some GPU sends in all channels to its own node: no ring moves more than its NVLink."""
    system = {
        "name": "few-nics",
        "gpu": {"model": "H800", "generation": "hopper", "compute_capability": 90},
        "nic": {"rate": "400 Gb/s", "latency": "0.5 us", "trunk_latency": "0.3 us"},
        "profile": "nccl-hopper",
        "devices": {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 1, "nic": nics},
        "links": [
            {"from": "gpu*", "to": "nvswitch0", "bandwidth": "100 GB/s", "latency": "0.3 us", "kind": "nvlink"},
            {"pairs": [[f"gpu{i}", f"pcie_switch{i}"] for i in range(8)]}
            | (pcie := {"bandwidth": "48 GB/s", "latency": "0.25 us", "kind": "pcie"}),
            {"pairs": [[f"nic{i}", f"pcie_switch{i * 8 // nics}"] for i in range(nics)]} | pcie,
            {"from": "pcie_switch*", "to": "cpu0"} | pcie,
        ],
    }
    file = tmp_path / "few-nics.yaml"
    file.write_text(yaml.safe_dump(system))
    on = {"file": str(file), "nodes": 2}
    found = simcoll_api.predict("all_reduce", on=on, size="1 GiB", algorithm="ring", protocol="Simple")
    assert found.busbw and found.busbw <= (100 if nics < 8 else 100 * 8 / 7)
