"""Calls as NCCL makes them on one node, in integers: closed forms of rings, chains, trees, NVLS, all-to-all."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_law import (
    BLOCK,
    DATA,
    GB,
    GRID,
    ITEM,
    KEPT,
    LAUNCH,
    PROTOCOLS,
    SPREAD,
    SWITCHED,
    Law,
    call,
    changed,
    channel,
    made_of,
    rated,
    spread,
    text,
)

from simcoll.engine.timing_model import service_ps
from simcoll.nccl.protocols import tree_chunk_bytes
from simcoll.nccl.tuner_constants import read
from simcoll.prediction.predict import row
from simcoll.schedule.names import Protocol

SIZES = st.one_of(st.sampled_from([2**k for k in range(3, 26)]), st.integers(1, 2**22).map(lambda n: n * ITEM))


@pytest.mark.thorough
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
    assert its.channels == min(made_of(system, 1, n).nvls_channels(read("nccl")), 2 ** (exponent - 14))
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
    its, bandwidths = channel(with_).call, channel(with_).bandwidths
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
    assert channel(found).params["channels"] == row(found).steps


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
    held = channel(found).params["slots"] * shape.handed
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


@pytest.mark.parametrize("ranks", [3, 4])
def test_chunks_of_a_tree_on_one_node_share_links(ranks: int) -> None:
    """On one node all channels of a tree are the same chain: up to a chunk a channel, what a call takes longer for more
    bytes is 2(n − 1) hops of all of them at what channels have of the links together."""
    how = {"ranks": ranks, "algorithm": "tree", "protocol": "Simple"}
    small, large = (call("l40s-pcie", "all_reduce", size, **how) for size in (2**18, 2**19))
    its = channel(large).call
    assert its.channels * its.chunk >= 2**19
    bandwidths = channel(large).bandwidths
    speeds = [its.alike * int(bandwidths[link]) for link in channel(large).path]
    more = (large.time_ps - small.time_ps) / (2 * (ranks - 1) * 2**18)
    assert 1e12 / max(speeds) <= more <= 1.1e12 / min(speeds)  # and a rank's own blocks


@pytest.mark.parametrize(("protocol", "collective"), [("Simple", "all_gather"), ("LL128", "reduce_scatter")])
def test_blocks_of_a_ring_hand_on_no_more_than_those_of_messages(protocol: Protocol, collective: str) -> None:
    """Of a large call each of 16 channels carries what a block sends and receives at once, less its flags, or what
    links leave it if that is less; on one node, where channels are many, the latter. In Simple a ring's block loads and
    stores three times where that of messages does four times."""
    size, ranks, rate = 16 << 30, 80, 12 * GB
    how = {"algorithm": "ring", "protocol": protocol}
    laws = [changed("P2P", both=each) for each in (rate, 40 * GB, 0)]
    on_ten, on_one = (
        [call("hgx-h100", collective, size, law, nodes=nodes, **how).time_ps for law in laws] for nodes in (10, 1)
    )
    accesses = 3 / 4 if protocol == "Simple" else 1
    least = size * (ranks - 1) / ranks / 16 / (rate * DATA[protocol] / accesses) * 1e12
    assert least < on_ten[0] < 1.06 * least  # hops, and the last block
    assert on_ten[1] == pytest.approx(on_ten[2], rel=0.001)  # the first message is written
    assert on_ten[2] < on_ten[0]
    assert len(set(on_one)) == 1
