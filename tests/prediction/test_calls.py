"""Calls as NCCL makes them: what they take in integers, what they move, and what is said of them."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import simcoll
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_law import (
    BLOCK,
    GRID,
    ITEM,
    KEPT,
    LAUNCH,
    LAW,
    PROTOCOLS,
    SPREAD,
    SWITCHED,
    US,
    Law,
    call,
    changed,
    channel,
    made_of,
    rated,
    spread,
    text,
    under,
)

import simcoll as simcoll_api
from simcoll.config.import_log import ImportLog
from simcoll.engine.timing_model import service_ps
from simcoll.errors import InputError, RefusedError, StuckError
from simcoll.nccl.protocols import tree_chunk_bytes
from simcoll.nccl.tuner_constants import read
from simcoll.prediction import placing
from simcoll.prediction.predict import Prediction, row
from simcoll.prediction.result_rows import ResultRow
from simcoll.report.exports import nccl_tables
from simcoll.scenario.profile import load_network
from simcoll.schedule.algorithms import build
from simcoll.schedule.names import Protocol
from simcoll.schedule.proof import prove
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.systems import load_system

# --- closed forms ---

SIZES = st.one_of(st.sampled_from([2**k for k in range(3, 26)]), st.integers(1, 2**22).map(lambda n: n * ITEM))


@settings(max_examples=150)
@given(
    st.sampled_from(SWITCHED),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from(PROTOCOLS),
    SIZES,
)
def test_a_ring(system: str, collective: str, n: int, protocol: Protocol, nbytes: int) -> None:
    """A ring takes launch, grid term, start and own share once, and for each step what the links and the receiver take
    for its piece; of every later loop the first transfer comes while the last one before is handled."""
    found = call(system, collective, nbytes, ranks=n, algorithm="ring", protocol=protocol)
    law = Law(system, collective, n, nbytes, protocol, rated(found))
    assert (channel(found).call.channels, channel(found).call.chunk) == (law.channels, law.chunk)
    longest = law.once + law.ring_ps()
    if law.whole and law.step % (2 * ITEM) == 0:
        assert found.time_ps == longest
    else:  # the last loop carries less, the second slice an element less
        law.loops -= 1
        assert (
            law.once + law.ring_ps()
            <= found.time_ps
            <= longest + 2 * law.steps * law.loops + law.steps * service_ps(ITEM, law.speed)
        )


@settings(max_examples=80)
@given(
    st.sampled_from(SWITCHED),
    st.sampled_from(["broadcast", "reduce"]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from(PROTOCOLS),
    SIZES,
    st.integers(0, 1),
)
def test_a_chain(system: str, collective: str, n: int, protocol: Protocol, nbytes: int, root: int) -> None:
    """Broadcast and reduce hand everything on n − 1 times, chunk behind chunk, from or to whatever root."""
    found = call(system, collective, nbytes, ranks=n, algorithm="chain", protocol=protocol, root=root)
    law = Law(system, collective, n, nbytes, protocol, rated(found))
    passed, handed = n * law.own, law.step
    if protocol != "Simple":  # what the threads move at once, in 1024 pieces at most
        handed = min(law.chunk, max(law.at_once * (60 if protocol == "LL128" else 8) // 8, passed // 1024))
    else:  # 16 KiB, in 1024 pieces at most
        handed = min(law.chunk, max(16 << 10, passed // 1024))
    pieces = -(-law.step // handed)
    moved, handled = service_ps(min(handed, passed), law.speed), law.handled(law.step) // pieces
    alone = law.once + law.steps * (moved + law.hop + handled)
    behind, loops = max(moved, handled), -(-passed // handed)
    if passed <= handed or passed % handed == 0:
        assert found.time_ps == alone + (loops - 1) * behind
    else:
        assert alone + (loops - 2) * behind <= found.time_ps <= alone + (loops - 1) * behind


@pytest.mark.parametrize("system", ["hgx-h100", "hgx-b200"])
@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("exponent", range(16, 31, 2))
def test_nvls(system: str, n: int, exponent: int) -> None:
    """A chunk of an NVLS all-reduce passes four stages, each with one chunk at a time: links bring it, blocks have it
    reduced, links hand it out, blocks take it. Links have a head's result beside it; a head is an eighth of a hop."""
    found = call(system, "all_reduce", 2**exponent, ranks=n, algorithm="nvls")
    its, block = channel(found).call, BLOCK["NVLS"]
    assert its.channels == made_of(system, 1, n).nvls_channels(read("nccl"))
    speed = round(rated(found) * (KEPT * (block["reach"] * n / (n + 1) / its.channels)))
    share, done = -(-(2**exponent) // (its.channels * n * ITEM)) * n * ITEM, [0, 0, 0, 0]
    for start in range(0, share, its.chunk):
        nbytes, came = min(its.chunk, share - start), 0
        moved, hop = service_ps(nbytes, speed), block["hop"] * n // 8
        for stage, takes in enumerate((moved, hop + service_ps(nbytes, block["rate"]), moved, hop)):
            came = done[stage] = max(came, done[stage]) + takes
    once = LAUNCH + GRID - GRID // its.channels + block["start"]
    assert found.time_ps == pytest.approx(once + done[-1] + 2, abs=2 + share // its.chunk)


@pytest.mark.parametrize("algorithm", ["tree"])
def test_pairs_of_channels_end_apart_as_channels_do(algorithm: str) -> None:
    """Where two channels are run as one, each of which goes by a tree of its own, the last of all channels ends as much
    later as if they were run by themselves."""
    how = {"nodes": 2, "ranks": 16, "algorithm": algorithm, "protocol": "Simple"}
    with_, without = (call("hgx-h100", "all_reduce", 2**26, law=text(spread=one), **how) for one in (SPREAD, 0.0))
    its, bandwidths = channel(with_).call, channel(with_).bandwidths(with_.costs)
    speed = min(int(bandwidths[link]) for link in channel(with_).path)
    assert its.channels == 2 * its.alike
    later = spread(its.channels, 2**26 // its.channels, speed // 2)
    assert with_.time_ps - without.time_ps == pytest.approx(later, rel=1e-3)


@pytest.mark.parametrize(("nodes", "busy"), [(2, 0.65), (4, 0.65)])
def test_nvls_tree_brings_and_hands_out_at_once(nodes: int, busy: float) -> None:
    """While sums of earlier loops are handed out, data of later ones come, and not before: of a large buffer the links
    that bind are idle for little. Were all brought first, they would be for a third or more."""
    how = {"nodes": nodes, "ranks": 8 * nodes, "algorithm": "nvls_tree", "profile": "nccl"}
    assert busy < (row(call("hgx-h100", "all_reduce", 2**30, **how)).binding_busy or 0) <= 1


@pytest.mark.parametrize("nodes", [4, 8])
def test_a_deeper_tree_has_more_loops_under_way(nodes: int) -> None:
    """Long hops between nodes keep no large call of NVLSTree from its links: loops are on all hops of a tree."""
    how = {"nodes": nodes, "ranks": 8 * nodes, "algorithm": "nvls_tree", "profile": "nccl-hopper"}
    assert (row(call("hgx-h100", "all_reduce", 2**30, **how)).binding_busy or 0) > 0.75


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_a_tree_sends_up_while_sums_come_down(protocol: Protocol) -> None:
    """Steps wait for one hop between nodes, not for the way up and down again: one that takes ten times as long as its
    bytes costs a large call its ends only."""
    how = {"nodes": 2, "algorithm": "tree", "protocol": protocol}
    slow, none = (
        call("gh200-4", "all_reduce", 2**31, text(transport=each), **how).time_ps
        for each in ({"connection": "4 GB/s"}, {})
    )
    assert none < slow < 1.04 * none


@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree"])
@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 9, 16])
def test_each_step_of_a_tree_has_a_channel(algorithm: str, nodes: int) -> None:
    """Steps of a tree over several nodes have threads of their own, as many as its schedule has steps."""
    how = {"nodes": nodes, "algorithm": algorithm, "protocol": "Simple", "profile": "nccl-hopper"}
    found = call("hgx-h100", "all_reduce", 2**25, **how)
    assert channel(found).params(found.costs)["channels"] == row(found).steps


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_further_round_for_few_bytes_has_small_messages(rounds: int) -> None:
    """A ring that goes round once more waits between nodes for the bytes that it sends then, not for whole chunks."""
    how = {"nodes": 2, "algorithm": "ring", "protocol": "Simple"}
    shape = channel(call("gh200-4", "all_gather", 2**30, **how)).call
    whole = rounds * shape.communicator.ranks * shape.channels * shape.chunk

    def waits(nbytes: int) -> int:
        slow, none = (
            call("gh200-4", "all_gather", nbytes, text(transport=each), **how)
            for each in ({"connection": "0.1 GB/s"}, {})
        )
        assert channel(slow).call.rounds == rounds + (nbytes > whole)
        return slow.time_ps - none.time_ps

    assert waits(whole + 4096) < 1.02 * waits(whole)


@settings(max_examples=20)
@given(st.integers(18, 33), st.sampled_from(["LL128", "Simple"]), st.sampled_from([2, 5, 16]))
def test_a_connection_of_a_tree_has_eight_chunks(power: int, protocol: Protocol, nodes: int) -> None:
    """Chunks fill a step each of a connection's buffer, however small the pieces are in which they are handed on."""
    found = call("hgx-h100", "all_reduce", 2**power, nodes=nodes, algorithm="tree", protocol=protocol)
    shape = channel(found).call
    held = channel(found).params(found.costs)["slots"] * shape.handed
    assert 8 * shape.message <= held < 8 * (shape.message + shape.handed)


def test_chunks_of_a_tree_in_ll128() -> None:
    """They are whole grains, and never smaller for more data, nor larger for more nodes, of which doublings count."""
    for nodes, gpus in itertools.product(range(1, 18), (1, 4, 8)):
        doublings, before = nodes.bit_length() - 1, 0
        for share in (round(2 ** (k / 4)) for k in range(48, 104)):
            chunk = tree_chunk_bytes("LL128", share, nodes, gpus)
            assert chunk % 1920 == 0 and chunk >= before
            assert chunk == tree_chunk_bytes("LL128", share, 1 << doublings, gpus)
            assert chunk >= tree_chunk_bytes("LL128", share, 2 << doublings, gpus)
            before = chunk


def test_nvls_has_at_most_32_heads() -> None:
    """From 32 GPUs on sums of NVLS are put together at as many: small calls take no longer on 72."""
    times = [call("gb200-nvl72", "all_reduce", 1024, ranks=n, algorithm="nvls").time_ps for n in (16, 32, 64, 72)]
    assert times[0] < times[1]
    assert times[2:] == pytest.approx(times[1:3], rel=0.01)


def test_older_trees_have_smaller_chunks() -> None:
    """Until 2.24 trees with Simple pipeline what is not large in more and smaller chunks: as many or more messages,
    equally many bytes, and those that wait for whole chunks have them sooner."""
    how = {"nodes": 4, "ranks": 16, "algorithm": "tree", "protocol": "Simple"}
    for exponent in (20, 23, 30):
        old, new = (call("gh200-4", "all_reduce", 2**exponent, library_version=v, **how) for v in ("2.23", "2.24"))
        assert old.totals.wire_bytes == new.totals.wire_bytes
        if exponent == 30:  # there are chunks enough
            assert old.totals.messages == new.totals.messages
        else:
            assert old.totals.messages > new.totals.messages and old.time_ps < new.time_ps


@pytest.mark.parametrize(("collective", "more"), [("all_gather", 0), ("reduce_scatter", 1)])
@pytest.mark.parametrize(("system", "n"), [("hgx-h100", 4), ("hgx-b200", 8), ("gb200-nvl72", 16), ("gb200-nvl72", 32)])
def test_nvls_block_by_block(system: str, n: int, collective: str, more: int) -> None:
    """NVLS all-gather and reduce-scatter of small blocks take an eighth of a hop for each block that a rank brings and
    gets: its own and those of the others, or n and the sum of one. They grow with the ranks, not with their square."""
    found = call(system, collective, n * 64, ranks=n, algorithm="nvls", library_version="2.27")
    once = LAUNCH + GRID - GRID // channel(found).call.channels + BLOCK["NVLS"]["start"]
    turns = (found.time_ps - once) / (BLOCK["NVLS"]["hop"] / 8)
    assert turns == pytest.approx(n + more, abs=0.25)


@settings(max_examples=60)
@given(st.sampled_from(SWITCHED), st.sampled_from([2, 4, 8]), SIZES)
def test_all_to_all(system: str, n: int, nbytes: int) -> None:
    """All-to-all brings n − 1 blocks over a rank's links at once. By LL, up to 16 KiB a peer, a hop and the block's
    time for a peer come once. In Simple it takes as long as links or blocks do, each of which has a part of what is
    for one peer: 64 KiB at least, of its chunks of 512 KiB the first at a rate of its own; and the last chunk comes
    twice. Chunks after the first take now more, now less, so that the last block ends later than they do on average.
    Every peer but one costs beside. Links that are busy all the time may have a sixty-fourth of all messages
    left when blocks are done."""
    found, block = call(system, "all_to_all", nbytes, ranks=n), BLOCK["P2P"]
    message, chunk = nbytes // n, 2**19
    piece = -(-nbytes // (n * ITEM)) * ITEM
    speed = round(rated(found) * (KEPT * block["reach"]))
    assert found.protocol == ("LL" if message <= 2**14 else "Simple")
    # 32 channels in all, as many for each peer; more for what would be parts of more than 16 MiB
    channels = min(32 // n, -(-message // 2**16) or 1)
    while message > channels * 2**24 and channels * 2 * n <= 8 * 32:
        channels *= 2
    grid = GRID - GRID // min(32, n * channels)
    if found.protocol == "LL":
        once = block["hop"] + service_ps(piece, block["rate"]) + service_ps((n - 1) * piece, speed)
    else:
        part = min(message, max(2**16, -(-message // channels)))
        by_blocks = service_ps(min(part, chunk), block["first"]) + service_ps(max(0, part - chunk), block["both"])
        own = block["both"] / block["first"]  # copied once, where others go out and come in
        by_blocks = round(by_blocks * max(1, channels * (n - 1 + own) / 32))
        last = service_ps((part - 1) % chunk + 1, block["first"])
        once = block["start"] + block["each"] * (min(32, n * channels) - 1) + last
        once += max(by_blocks, service_ps((n - 1) * piece, speed))
        blocks, slowest = min(32, channels * (n - 1)), min(speed, (n - 1) * piece * 10**12 // by_blocks)
        later = (part - min(part, chunk)) * channels * (n - 1) / blocks
        once += spread(blocks, later, slowest // blocks, block["spread"])
    once += (n - 2) * block["peer"]
    least, left = LAUNCH + grid + once + 2, service_ps((n - 1) * max(2**12, -(-piece // 64)), speed)
    assert (1 - 1e-4) * least - 2 * n <= found.time_ps <= (1 + 1e-4) * least + left + 2 * n


def test_messages_of_earlier_releases() -> None:
    """Before 2.12 a message goes in parts of 2 MiB at least: what two GPUs send each other takes as long with 1 MiB
    more on one more channel, however many ranks there are; since then 64 KiB suffice, so that 16 channels are nearly as
    fast as one with a sixteenth of it."""
    old = [call("dgx-a100", "send_recv", k << 20, ranks=2, library_version="2.11").time_ps for k in (1, 2, 3, 4)]
    assert old[0] < old[1] < 2 * old[0] and old[1] == pytest.approx(old[3], rel=0.02) and old[2] <= old[3]
    assert call("dgx-a100", "send_recv", 8 << 20, ranks=8, library_version="2.11").time_ps == pytest.approx(
        old[3], rel=0.2
    )
    new = [call("dgx-a100", "send_recv", k << 16, ranks=2).time_ps for k in (1, 16)]
    assert new[1] < 1.5 * new[0]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_peers_one_after_the_other(n: int) -> None:
    """Before 2.12 blocks have one peer at a time: messages of a large all-to-all have all that links reach, one after
    the other, and while a block copies the rank's own it sends none."""
    few, many = (call("dgx-a100", "all_to_all", n << k, ranks=n, library_version="2.11") for k in (28, 29))
    copied = service_ps(2**28 // 32, BLOCK["P2P"]["first"])
    sent = service_ps((n - 1) * 2**28, round(rated(many) * KEPT))
    assert many.time_ps - few.time_ps == pytest.approx(sent + copied, rel=0.01)


# --- several nodes ---


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
    """Of the steps of a ring one a node and round leaves the node; `net` is added to those, half at each end."""
    how = {"nodes": nodes, "algorithm": "ring", "protocol": protocol}
    with_it, without = (
        call(system, around[0], nbytes, changed(protocol, net=cost), **how).time_ps for cost in (net, 0)
    )
    assert with_it - without == nodes * around[1] * 2 * (max(1, net // 2) - 1)


@pytest.mark.parametrize("nodes", [2, 5, 8, 13])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_hops_of_aggregated_trees(collective: str, nodes: int) -> None:
    """With one GPU a node, and since 2.23, few bytes go by PAT: as many hops as a rank's
    number has bits, where a ring takes n − 1."""
    how = {"nodes": nodes, "placement": {"per_node": 1}, "algorithm": "pat"}
    with_it, without = (call("hgx-h100", collective, 1024, changed("Simple", net=n), **how).time_ps for n in (10**7, 0))
    hops = max(rank.bit_count() for rank in range(nodes))
    assert with_it - without == hops * 2 * (10**7 // 2 - 1)
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


@pytest.mark.parametrize("ranks", [3, 4])
def test_chunks_of_a_tree_on_one_node_share_links(ranks: int) -> None:
    """On one node all channels of a tree are the same chain: up to a chunk a channel, what a call takes longer for more
    bytes is 2(n − 1) hops of all of them at what channels have of the links together."""
    how = {"ranks": ranks, "algorithm": "tree", "protocol": "Simple"}
    small, large = (call("l40s-pcie", "all_reduce", size, **how) for size in (2**18, 2**19))
    its = channel(large).call
    assert its.channels * its.chunk >= 2**19
    bandwidths = channel(large).bandwidths(large.costs)
    speeds = [its.alike * int(bandwidths[link]) for link in channel(large).path]
    more = (large.time_ps - small.time_ps) / (2 * (ranks - 1) * 2**18)
    assert 1e12 / max(speeds) <= more <= 1.1e12 / min(speeds)  # and a rank's own blocks


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
    """A broadcast of one step leaves a node when all of it has come, so a byte more counts twice; of many steps one is
    sent while the next one fills, and it counts once."""
    how = {"nodes": 2, "placement": {"per_node": 1}, "protocol": protocol, "env": {"NCCL_MAX_NCHANNELS": 1}}
    half, one, many, more = (
        call("hgx-h100", "broadcast", nbytes, **how).time_ps for nbytes in (step // 2, step, 256 * step, 512 * step)
    )
    assert (one - half) / (step // 2) == pytest.approx(2 * (more - many) / (256 * step), rel=0.05)


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
    """A machine's file with other NICs: a large ring carries what these can, and no channels that they cannot."""
    text_of = shipped_systems()["hgx-h100"].read_text("utf-8").replace("rate: 400 Gb/s", f"rate: {rate} Gb/s")
    path = tmp_path / "other.yaml"
    path.write_text(text_of, "utf-8")
    (found,) = simcoll_api.run(
        collective="all_gather", topology={"file": str(path), "nodes": 2}, ranks=16, size="2 GiB", profile="nccl-hopper"
    )
    assert 0.85 < found["busbw_GBps"] / (8 * rate / 8) <= 1.0


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
    sizes, found = (2 << 30, 4 << 30), []
    for nbytes in sizes:
        how: dict[str, Any] = {"nodes": nodes, "ranks": nodes * gpus, "placement": {"per_node": gpus}}
        played = call(system, "all_reduce", nbytes, algorithm="nvls_tree", **how)
        links = channel(played).network(played.costs).bandwidths
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


def test_messages_in_a_queue_meet_where_they_go_to_different_nics() -> None:
    """Two nodes with a switch a rail have one receiver each; of 4 GPUs, 3 by one NIC and 1 by the other, two messages
    in turn have the same with a chance of (9 + 1) / 16; the more nodes, the less, and all_to_alls take longer by it."""

    def receivers(system: str, nodes: int) -> float:
        return channel(call(system, "all_to_all", 1 << 20, nodes=nodes)).wires.receivers

    assert [receivers("hgx-h100", nodes) for nodes in (1, 2, 5)] == [1, 1, 4]
    assert [receivers("hgx-a100-4-slingshot", nodes) for nodes in (2, 3)] == [1.6, 3.2]
    assert receivers("gh200-4", 2) == 4
    crowded, empty = text(transport={"congestion": "100 %"}), text(transport={})
    slow, free = (call("hgx-a100-4-slingshot", "all_to_all", 1 << 30, law, nodes=2) for law in (crowded, empty))
    assert slow.time_ps / free.time_ps == pytest.approx(1 + (1 - 10 / 16), rel=0.01)
    slow, free = (call("hgx-a100-4-slingshot", "send_recv", 1 << 30, law, nodes=2) for law in (crowded, empty))
    assert slow.time_ps == free.time_ps


def test_nics_say_what_the_profile_leaves_open() -> None:
    """A profile's transport holds; where it has none, that of the system's NICs does, or another that is asked for."""
    laws = {"open": text(transport=None), "told": text(transport={"latency": "9 us"})}
    found = {name: call("hgx-h100", "all_reduce", 2048, law, nodes=2, protocol="LL") for name, law in laws.items()}
    of_nics = load_network(load_system("hgx-h100").nic.profile).transport  # type: ignore[union-attr]  # it has NICs
    assert channel(found["open"]).transport(found["open"].costs) == of_nics
    assert channel(found["told"]).transport(found["told"].costs).latency == 9_000_000
    other = call("hgx-h100", "all_reduce", 2048, nodes=2, profile="nccl-hopper+tcp")
    assert channel(other).transport(other.costs) == load_network("tcp").transport
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
    with pytest.raises(InputError, match=r"nothing of GPUs.*nccl-hopper\+tcp"):
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


# --- what is said of a call ---


def said(prediction: Prediction) -> ResultRow:
    """The row of a call."""
    with under(LAW):
        return row(prediction)


@pytest.mark.parametrize(
    ("system", "nodes", "ranks", "version"),
    [
        *(("dgx-a100", 1, 4, version) for version in ("2.19", "2.30")),
        *(("hgx-h100", 1, 8, version) for version in ("2.19", "2.27")),
        *(("hgx-h100", 2, 16, version) for version in ("2.27", "2.30")),
    ],
)
def test_what_nccl_would_choose(system: str, nodes: int, ranks: int, version: str) -> None:
    """A row says the algorithm and protocol that `simcoll tune` says for that release, of those that are modelled."""
    told = simcoll(
        *("tune", system, "--nodes", nodes, "--ranks", ranks, "--version", version),
        *("--algo", "ring;allreduce:tree,ring,nvls,nvlstree;allgather:ring,nvls;reducescatter:ring,nvls", "--json"),
    ).json
    seen = set()
    for choice in told["choice"][::2]:  # a row is a size twice the last one's
        collective, size = choice["collective"], choice["size_bytes"]
        if size > 2**26:
            continue
        found = said(call(system, collective, size, nodes=nodes, ranks=ranks, library_version=version))
        assert (found["algorithm"], found["protocol"]) == (choice["algorithm"], choice["protocol"]), choice
        seen.add(choice["protocol"])
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("collective", "schedule", "name"),
    [("all_reduce", "chain_tree", "tree"), ("broadcast", "chain", "ring"), ("reduce", "chain", "ring")],
)
def test_algorithms_have_the_names_of_nccl(collective: str, schedule: str, name: str) -> None:
    """A call by NCCL's name and one by that of its schedule are the same, and results and the tuner's file have NCCL's
    name for it; without kernels the schedule has its own name."""
    by_name, by_schedule = (
        said(call("hgx-h100", collective, 2**20, nodes=2, algorithm=one)) for one in (name, schedule)
    )
    assert (by_name.asked, by_schedule.asked) == (name, schedule)
    assert by_name == replace(by_schedule, asked=name) and by_name["algorithm"] == name
    lines = nccl_tables.tuner([by_name], ImportLog()).splitlines()
    assert len(lines) == 2 and lines[1].split(",")[3] == name
    plain = call("hgx-h100", collective, 2**20, nodes=2, algorithm=schedule, profile="one-port", protocol="none")
    assert plain.algorithm == schedule


def test_what_is_forced_is_done() -> None:
    """A row says the algorithm and the protocol that were asked for, and its time is that of no other."""
    times = set()
    for algorithm, protocol in [*itertools.product(("ring", "tree"), PROTOCOLS), ("nvls", "Simple")]:
        found = said(call("hgx-h100", "all_reduce", 2**20, ranks=8, algorithm=algorithm, protocol=protocol))
        assert (found["algorithm"], found["protocol"], found["status"]) == (algorithm, protocol, "ok")
        times.add(found.time_ps)
    assert len(times) == 7


def test_releases_choose_otherwise() -> None:
    """`library_version` takes the place of the profile's `version`, and a release that is not known is told."""
    sizes = [2**k for k in range(10, 29)]

    def choices(law: str, **more: Any) -> list[tuple[str, str]]:
        its = (call("hgx-h100", "all_reduce", size, law, ranks=8, **more) for size in sizes)
        return [(one.algorithm, one.protocol) for one in its]

    old, new = LAW.replace("library: nccl", "library: nccl\n  version: '2.19'"), LAW
    assert choices(old) == choices(new, library_version="2.19") != choices(new)
    assert choices(old, library_version="2.30") == choices(new)
    with pytest.raises(InputError, match=r"2\.1: the constants of this release are not known"):
        call("hgx-h100", "all_reduce", 1024, library_version="2.1")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"subgroups": [[0, 1], [2, 3]]}, "one group with equal blocks"),
        ({"collective": "all_gather", "weights": [1, 2, 1, 1, 1, 1, 1, 1]}, "one group with equal blocks"),
        ({"nodes": 2, "ranks": 12}, "12 ranks are not as many on each node"),
        ({"collective": "barrier", "executor": "nccl"}, "kernels for barrier are not modelled"),
        ({"collective": "barrier", "algorithm": "tree", "executor": "nccl"}, "kernels for barrier are not"),
        ({"algorithm": "naive", "executor": "nccl"}, "NCCL has no naive for all_reduce; it has ring, tree, nvls,"),
        ({"algorithm": "nvls", "protocol": "LL"}, "NCCL runs no all_reduce by nvls with LL here; it has tree (LL,"),
        ({"system": "dgx-a100", "algorithm": "nvls"}, "NCCL runs no all_reduce by nvls here; it has tree (LL,"),
        ({"nodes": 2, "ranks": 16, "algorithm": "nvls"}, "NCCL runs no all_reduce by nvls here; it has tree (LL,"),
        ({"profile": "one-port", "protocol": "LL"}, "protocol LL needs a profile with kernels"),
        ({"topology": {"fabric": "single-switch", "hosts": 8, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}}},
         "has no GPUs: kernels run on systems"),
    ],
)  # fmt: skip
def test_what_kernels_do_not_serve(more: dict[str, Any], why: str) -> None:
    """What NCCL has no kernel for, or none that is modelled, is refused with one reason."""
    how = {"system": "hgx-h100", "collective": "all_reduce", "ranks": 8, **more}
    with pytest.raises(RefusedError) as told:
        call(how.pop("system"), how.pop("collective"), 2**20, **how)
    assert why in str(told.value) and "\n" not in str(told.value)


def test_messages_have_no_LL128() -> None:  # noqa: N802
    """NCCL sends messages by LL or Simple; another protocol is refused."""
    with pytest.raises(RefusedError, match="no LL128 for all_to_all"):
        call("hgx-h100", "all_to_all", 1 << 16, ranks=8, protocol="LL128")


# --- what is moved ---


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
@pytest.mark.parametrize("system", ["dgx-a100", "hgx-a100-4", "hgx-h100"])
def test_no_link_is_busier_than_always(system: str, collective: str) -> None:
    """What channels carry to the network is spread over the NICs in use: no link is busy for more than the run."""
    told = row(call(system, collective, 2**28, nodes=2, profile="nccl"))
    assert 0.3 < (told.binding_busy or 0) <= 1.001


CALLS = [
    ("hgx-h100", 1, 8, "all_reduce", "ring"),
    ("hgx-h100", 1, 8, "all_reduce", "nvls"),
    ("hgx-h100", 1, 4, "broadcast", "chain"),
    ("hgx-h100", 2, 16, "all_gather", "ring"),
    ("hgx-h100", 3, 24, "all_reduce", "chain_tree"),
    ("dgx-a100", 1, 8, "reduce_scatter", "ring"),
    ("dgx-a100", 1, 8, "all_to_all", "direct"),
    ("hgx-h100", 3, 24, "all_reduce", "nvls_tree"),
    ("hgx-h100", 2, 16, "gather", "direct"),
    ("hgx-h100", 1, 8, "scatter", "direct"),
    ("hgx-h100", 1, 8, "send_recv", "ring"),
]


@pytest.mark.parametrize(("system", "nodes", "ranks", "collective", "algorithm"), CALLS)
@pytest.mark.parametrize("nbytes", [4096, 1_000_000, 2**26])
def test_nothing_is_lost(system: str, nodes: int, ranks: int, collective: str, algorithm: str, nbytes: int) -> None:
    """What all channels move is what the same schedule moves without kernels, but for rounding to elements; what links
    carry adds up to the bytes on the wire; and there are as many messages as the schedule has, loops and channels."""
    how = {"nodes": nodes, "ranks": ranks, "algorithm": algorithm}
    found = call(system, collective, nbytes, **how)
    plain = call(system, collective, nbytes, profile="one-port", protocol="none", **how)
    its = channel(found).call
    rounded = (nbytes + its.channels * ranks * ITEM) / nbytes
    for name in ("bytes_per_rank", "wire_bytes"):
        said, wanted = getattr(found.totals, name), getattr(plain.totals, name)
        assert wanted <= said <= wanted * rounded * 1.001, name
    assert found.totals.carried.sum() == found.totals.wire_bytes
    once = plain.totals.messages * its.alike * its.slices
    assert found.totals.messages % once == 0
    loops = found.totals.messages // once
    chunks = its.share / (its.handed or its.share) / (plain.source.n_chunks * its.slices)
    assert loops == max(1, int(np.ceil(chunks)))
    assert found.time_ps >= found.lower_bound_ps


@pytest.mark.parametrize("system", [name for name in shipped_systems() if load_system(name).gpu])
@pytest.mark.parametrize("nodes", [1, 2])
def test_ways_are_those_of_the_rated_links(system: str, nodes: int) -> None:
    """What a channel has of its links says how fast they are, not which ones messages take."""
    found = call(system, "all_reduce", 2**20, nodes=nodes, algorithm="ring", protocol="Simple")
    network = channel(found).network(found.costs)
    ends = zip(found.devices, (*found.devices[1:], found.devices[0]), strict=True)
    assert all(network.route(*pair) == channel(found).rated.route(*pair) for pair in ends)


def test_nics_carry_alike_in_nvls_tree() -> None:
    """Of NVLSTree's two trees a leaf of one is an inner node of the other: over 8 nodes no NIC sends more than twice
    its GPU's part of the buffer, where one tree would make it three times; and all channels together have a NIC."""
    found = call("hgx-h100", "all_reduce", 2**26, nodes=8, ranks=64, algorithm="nvls_tree")
    rated, alike = channel(found).rated, channel(found).call.alike
    out = [link for link, (u, v) in enumerate(rated.links) if (rated.kinds[u], rated.kinds[v]) == ("nic", "switch")]
    assert len(out) == 64
    assert found.totals.carried[out].max() == pytest.approx(2 * 2**26 / 8, rel=0.01)
    together = channel(found).bandwidths(found.costs)[out] * alike / rated.bandwidths[out]
    assert ((together > 0.7) & (together <= 1.001)).all()


def test_racks_have_as_many_heads_as_nccl_has() -> None:
    """NVLSTree between racks of 72 GPUs puts sums together at 32 of them: so many NICs of each rack carry the buffer,
    as much each, in chunks of a head's share."""
    found = call("gb200-nvl72", "all_reduce", 2**26, nodes=2, algorithm="nvls_tree")
    rated = channel(found).rated
    out = [link for link, (u, v) in enumerate(rated.links) if (rated.kinds[u], rated.kinds[v]) == ("nic", "switch")]
    carried = found.totals.carried[out]
    assert (len(out), int((carried > 0).sum())) == (144, 64)
    assert carried[carried > 0] == pytest.approx(2**26 / 32, rel=0.01)
    assert channel(found).call.message <= 2**26 / (channel(found).call.channels * 32)


def test_two_racks_take_no_leap() -> None:
    """NCCL has NVLSTree between racks, too, so that no doubling of a size takes three times as long."""
    times = [call("gb200-nvl72", "all_reduce", 2**power, nodes=2) for power in range(20, 34)]
    assert {channel(found).call.algorithm for found in times} == {"nvls_tree"}
    assert all(after.time_ps < 2.02 * before.time_ps for before, after in itertools.pairwise(times))


@pytest.mark.parametrize("system", ["dgx1-v100", "mi300x", "hgx-a100-4", "gh200-4"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_mesh_has_the_links_of_its_gpus_together(system: str, nodes: int) -> None:
    """Where GPUs are joined one to one, a ring has of each what its links to the others of its node add up to, and
    all-to-all, which sends to each by itself, has the links as they are."""
    one = load_system(system).devices["gpu"]  # type: ignore[call-overload,index]
    found = call(system, "all_reduce", 2**20, nodes=nodes, algorithm="ring", protocol="Simple")
    plain = call(system, "all_to_all", 2**20, nodes=nodes)
    links, mesh = channel(plain).rated, channel(found).rated
    for gpu in found.devices:
        others = [peer for peer in found.devices if links.node_of(peer) == links.node_of(gpu) and peer != gpu]
        assert len(others) == one - 1
        wired = sum(links.link(gpu, peer).bandwidth for peer in others if (gpu, peer) in links.links)
        out = [v for u, v in mesh.links if u == gpu and v.endswith("mesh")]
        assert [mesh.link(gpu, hub).bandwidth for hub in out] == [wired]
        assert not any((gpu, peer) in mesh.links for peer in others)


def test_calls_that_nobody_measured_are_not_calibrated() -> None:
    """Rows that left the choice to RCCL say nothing of a tree where RCCL takes a ring; naming the ring asks the same.
    No interval reaches below the bound."""
    names, asked = ("auto", "ring", "tree"), ("mi300x", "all_reduce", 8 << 30)
    rows = [row(call(*asked, profile="rccl-cdna3", algorithm=name)) for name in names]
    assert [each["confidence"] for each in rows] == ["calibrated", "calibrated", "extrapolated"]
    near = row(call("hgx-h100", "broadcast", 8 << 30, profile="nccl-hopper", nodes=2))
    for each in (*rows, near):
        assert each["lower_bound_us"] <= each["low_us"] <= each["median_low_us"] <= each["time_us"]
    assert near["lower_bound_us"] == near["low_us"]


CARRYING = (
    *((collective, "ring") for collective in ("all_reduce", "all_gather")),
    *(("all_reduce", "tree"), ("all_to_all", "auto"), ("gather", "auto"), ("scatter", "auto")),
)


@pytest.mark.parametrize("system", [name for name in shipped_systems() if name not in ("loopback", "gb200-nvl72")])
@pytest.mark.parametrize("nodes", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_no_link_is_busy_for_longer_than_a_call_runs(system: str, nodes: int) -> None:
    """Of a ring's channels those that leave a node at a GPU are not counted on its links to other GPUs; links that
    stand for those of other channels carry nothing else; messages point to point stay below what a link is rated."""
    for collective, algorithm in CARRYING if load_system(system).nic or nodes == 1 else ():
        found = simcoll_api.predict(collective, on=system, nodes=nodes, algorithm=algorithm, size="1 GiB")
        assert 0.01 < found.busy.max() <= 1, (collective, algorithm)
        if algorithm == "auto":
            rated = placing.rated_topology(found.scenario).bandwidths
            assert (found.totals.carried / rated <= found.time_ps / 1e12).all(), collective
