"""Calls as NCCL makes them: what they take in integers, what they move, and what fits and rivals make of them."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from command import simcoll
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll import config
from simcoll.accuracy import rivals
from simcoll.accuracy.calibrate import calibrate
from simcoll.accuracy.parameters import BLOCKS, OF_CALLS, Setting, cost
from simcoll.accuracy.quality import suspicious
from simcoll.accuracy.retiming import Question
from simcoll.algorithms import build
from simcoll.errors import InputError, RefusedError
from simcoll.executors.proof import prove
from simcoll.formats.measured import Row
from simcoll.model import Params, service_ps
from simcoll.nccl.communicator import Communicator, communicator
from simcoll.nccl.constants import Protocol, read
from simcoll.nccl.kernels import launch
from simcoll.nccl.protocols import chunk_bytes
from simcoll.prediction import Prediction, predict, row
from simcoll.profile import load_profile, parse_profile
from simcoll.scenario import Point, load
from simcoll.systems import load_system, shipped_systems

LAUNCH, GRID, SPREAD, KEPT = 5_000_000, 700_000, 0.125, 0.9
BLOCK: Mapping[str, Mapping[str, Any]] = {  # durations in ps, rates in B/s
    "LL": {
        "start": 300_000,
        "hop": 600_000,
        "net": 2_000_000,
        "first": 12 * 10**9,
        "rate": 6 * 10**9,
        "own": 0.5,
        "net_rate": 10**9,
        "host": 1_250_000,
        "host_reach": 0.5,
    },
    "LL128": {
        "start": 200_000,
        "hop": 1_900_000,
        "net": 2_200_000,
        "own": 0.25,
        "net_rate": 20 * 10**9,
        "host": 1_300_000,
        "host_reach": 0.4,
    },
    "Simple": {
        "start": 1_800_000,
        "hop": 3_400_000,
        "slice": 900_000,
        "net": 10_600_000,
        "turn": 0.7,
        "load": 0.25,
        "net_rate": 30 * 10**9,
    },
    "NVLS": {"start": 2_000_000, "hop": 6_000_000, "reach": 0.8},
    "P2P": {
        "start": 8_400_000,
        "hop": 1_000_000,
        "each": 50_000,
        "rate": 6 * 10**9,
        "first": 30 * 10**9,
        "both": 20 * 10**9,
        "reach": 0.75,
    },
}
SWITCHED = ("dgx-a100", "hgx-h100", "hgx-b200")  # every pair of GPUs has two links between, of one kind
PLAIN = ("own", "turn", "load", "reach", "saved", "host_reach")  # shares
ITEM = 4  # bytes of a float32
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
DATA = {"LL128": 120 / 128, "Simple": 1.0}  # of each line, where links are what limits
THREADS_GET = {"LL": 8, "LL128": 8, "Simple": 64}  # bytes at a time


def spelt(key: str, value: float) -> Any:
    """A cost as a profile has it."""
    if key in ("first", "rate", "both", "net_rate"):
        return f"{value} B/s" if value else "none"
    return value if key in PLAIN else f"{value} ps"


def text(
    blocks: Mapping[str, Mapping[str, Any]] = BLOCK, launch: int = LAUNCH, grid: int = GRID, spread: float = SPREAD
) -> str:
    """A profile with these costs."""
    told = {kind: {key: spelt(key, value) for key, value in its.items()} for kind, its in blocks.items()}
    links = {kind: {"efficiency": KEPT} for kind in ("nvlink", "pcie")}
    kernels = {"library": "nccl", "grid": f"{grid} ps", "spread": spread, "net": "0 ps", **told}
    return config.dump({"name": "law", "launch": f"{launch} ps", "links": links, "kernels": kernels})


def changed(kind: str, **costs: Any) -> str:
    """The law with other costs of a block."""
    return text({**BLOCK, kind: {**BLOCK[kind], **costs}})


def asked(system: str, collective: str, nbytes: int, **more: Any) -> Point:
    """A point of the law; `nodes` of a system."""
    keys = {
        "topology": {"system": system, "nodes": more.pop("nodes", 1)},
        "collective": collective,
        "algorithm": "auto",
        "protocol": "auto",
        "size": f"{nbytes} B",
        "profile": "law.yaml",
        **more,
    }
    with config.carrying({"law.yaml": text().encode()}):
        (point,) = load("quickstart", [f"{key}={json.dumps(value)}" for key, value in keys.items()])
    return point


def call(system: str, collective: str, nbytes: int, law: str | None = None, **more: Any) -> Prediction:
    """What a call takes by the law, or by another."""
    point = asked(system, collective, nbytes, **more)
    with config.carrying({"law.yaml": (law or text()).encode()}):
        return predict(point)


def made_of(system: str, nodes: int, ranks: int) -> Communicator:
    """Ranks of a system."""
    return communicator(load_system(system), nodes, ranks)


def said(prediction: Prediction) -> dict[str, object]:
    """The row of a call."""
    with config.carrying({"law.yaml": text().encode()}):
        return row(prediction)


def rated(prediction: Prediction) -> int:
    """B/s of the links between two ranks of a node, as their maker says."""
    assert prediction.lowered is not None
    topology = prediction.lowered.rated
    return int(topology.bandwidths[list(topology.route(*topology.ranks[:2]))].min())


class Law:
    """A ring or a chain on one node, told once more from the profile's numbers."""

    def __init__(self, system: str, collective: str, n: int, nbytes: int, protocol: Protocol, speed: int):
        comm = made_of(system, 1, n)
        self.channels, threads = launch(comm, read("nccl"), "ring", protocol, nbytes)
        self.block, self.collective, self.n = BLOCK[protocol], collective, n
        self.own = -(-nbytes // (self.channels * n * ITEM)) * ITEM  # of a channel the block of one rank
        self.blocks = collective in ("all_reduce", "all_gather", "reduce_scatter")  # of ranks, which copy their own
        passed = self.own if self.blocks else n * self.own
        self.chunk = chunk_bytes(collective, "ring", protocol)  # type: ignore[arg-type]
        self.step, self.loops = min(passed, self.chunk), -(-passed // self.chunk)
        self.whole = passed <= self.chunk or passed % self.chunk == 0
        self.steps = {"all_reduce": 2 * (n - 1)}.get(collective, n - 1)
        self.at_once = threads * THREADS_GET[protocol]
        self.by_links = protocol != "LL"
        self.speed = round(speed * (KEPT * (DATA[protocol] / self.channels)) if self.by_links else speed * KEPT)

    def handled(self, nbytes: int) -> int:
        """How long a block is at so many bytes."""
        if self.by_links:
            return 0
        first = min(nbytes, self.at_once) if "first" in self.block else 0
        return sum(service_ps(b, self.block[key]) for b, key in ((first, "first"), (nbytes - first, "rate")) if b)

    @property
    def once(self) -> int:
        """What comes once: launch, grid, start, and the own share."""
        own = service_ps(self.own, self.speed) if self.by_links else self.handled(self.own)
        return LAUNCH + GRID - GRID // self.channels + self.block["start"] + round(self.copied * own) + self.spread

    @property
    def copied(self) -> float:
        """What a rank does with its own block, in steps; in Simple what two ranks do beyond sending"""
        if not self.blocks or "own" in self.block:
            return float(self.block["own"]) if self.blocks else 0.0
        loads, stores, sent = {"all_gather": (2, 3, 1), "reduce_scatter": (3, 2, 1)}.get(self.collective, (4, 4, 2))
        return max(0.0, self.block["turn"] * (loads * self.block["load"] + stores * (1 - self.block["load"])) - sent)

    @property
    def spread(self) -> int:
        """How much later the last of the channels ends: by the root of the MiB that it moves."""
        moved = self.own * (self.steps if self.blocks else self.n)
        return spread(self.channels, moved, self.speed) if self.block is BLOCK["Simple"] else 0

    @property
    def link(self) -> int:
        """What the links take for a step; each of the two has a latency of 1 ps."""
        return service_ps(self.step, self.speed)

    @property
    def hop(self) -> int:
        """Latency of a way: a hop on its first link, 1 ps on the second."""
        return int(self.block["hop"]) + 1

    def ring_ps(self) -> int:
        """All loops of a ring whose ranks do the same at the same time, slice by slice: each is sent when it has come
        and the slice before is gone, and the receiver handles one at a time."""
        slices = 2 if self.block is BLOCK["Simple"] and self.step > 32768 else 1
        moved, handled = service_ps(self.step // slices, self.speed), self.handled(self.step) // slices
        free = handling = 0
        for _ in range(self.loops):
            there = [0] * slices
            for _ in range(self.steps):
                for one in range(slices):
                    free = max(there[one], free) + int(self.block.get("slice", 0)) + moved
                    handling = max(free + self.hop, handling) + handled
                    there[one] = handling
        return handling


def spread(channels: int, moved: int, speed: int) -> int:
    """How much later the last of so many channels ends, each of which moves so many bytes with so many B/s."""
    last = NormalDist().inv_cdf((channels - 0.375) / (channels + 0.25)) if channels > 1 else 0.0
    return round(SPREAD * last * math.sqrt(moved * 2**20) * 10**12 / speed)


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
    assert (found.lowered.call.channels, found.lowered.call.chunk) == (law.channels, law.chunk)  # type: ignore[union-attr]
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
    if protocol != "Simple":  # what the threads move at once, in 64 pieces at most
        handed = min(law.chunk, max(law.at_once * (60 if protocol == "LL128" else 8) // 8, passed // 64))
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
    """NVLS all-reduce of L chunks takes L + 1 stages, each an eighth of a hop for each head and the links' time for a
    chunk and what it becomes at one head: while the switch hands out one, the ranks bring the next."""
    found = call(system, "all_reduce", 2**exponent, ranks=n, algorithm="nvls")
    assert found.lowered is not None
    its, block = found.lowered.call, BLOCK["NVLS"]
    assert its.channels == made_of(system, 1, n).nvls_channels(read("nccl"))
    speed = round(rated(found) * (KEPT * (block["reach"] * n / (n + 1) / its.channels)))
    share = -(-(2**exponent) // (its.channels * n * ITEM)) * n * ITEM
    loops, rest = divmod(share, its.chunk)
    loops += rest > 0
    hop = block["hop"] * n // 8
    stage = hop + service_ps(min(share, its.chunk), speed)
    last = hop + service_ps(rest, speed) if rest else stage
    later = (loops - 1) * stage + max(last, stage if loops > 1 else 0) + last
    once = LAUNCH + GRID - GRID // its.channels + block["start"] + spread(its.channels, share, speed)
    assert found.time_ps == pytest.approx(once + later + 2, abs=loops)


@settings(max_examples=60)
@given(st.sampled_from(SWITCHED), st.sampled_from([2, 4, 8]), SIZES)
def test_all_to_all(system: str, n: int, nbytes: int) -> None:
    """All-to-all brings n − 1 blocks over a rank's links at once. By LL, up to 16 KiB a peer, a hop and the block's
    time for a peer come once. In Simple it takes as long as links or blocks do, each of which has a part of what is
    for one peer: 64 KiB at least, of its chunks of 512 KiB the first at a rate of its own; and the last chunk comes
    twice."""
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
    assert found.time_ps == pytest.approx(LAUNCH + grid + once + 2, rel=1e-4, abs=2 * n)


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
        call(system, around[0], nbytes, changed(protocol, net=cost, net_rate=0), **how).time_ps for cost in (net, 0)
    )
    assert with_it - without == nodes * around[1] * 2 * (max(1, net // 2) - 1)


@pytest.mark.parametrize("nodes", [2, 5, 8, 13])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_hops_of_aggregated_trees(collective: str, nodes: int) -> None:
    """With one GPU a node, and since 2.23, few bytes go by PAT: as many hops as a rank's
    number has bits, where a ring takes n − 1."""
    how = {"nodes": nodes, "placement": {"per_node": 1}, "algorithm": "pat"}
    with_it, without = (
        call("hgx-h100", collective, 1024, changed("Simple", net=n, net_rate=0), **how).time_ps for n in (10**7, 0)
    )
    hops = max(rank.bit_count() for rank in range(nodes))
    assert with_it - without == hops * 2 * (10**7 // 2 - 1)
    if nodes > 8:  # where the tuner reckons with less for it
        ways = [
            {"placement": {"per_node": r}, "library_version": v} for r, v in ((1, "2.30"), (1, "2.22"), (2, "2.30"))
        ]
        chosen = [call("hgx-h100", collective, 1024, nodes=nodes, **way).algorithm for way in ways]
        assert [name.partition("(")[0] for name in chosen] == ["pat", "ring", "ring"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_hops_of_a_tree(protocol: Protocol) -> None:
    """On two nodes a tree goes across once up and once down; with a node more it does so no less often."""
    extra = []
    for nodes in (2, 3, 4, 8):
        how = {"nodes": nodes, "algorithm": "chain_tree", "protocol": protocol}
        laws = (changed(protocol, net=net, net_rate=0) for net in (10**8, 0))
        slow, fast = (call("hgx-h100", "all_reduce", 4096, law, **how) for law in laws)
        extra.append((slow.time_ps - fast.time_ps) / (2 * (10**8 // 2 - 1)))
    assert extra[0] == 2
    assert all(round(a) <= round(b) for a, b in itertools.pairwise(extra))


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_nodes_are_never_faster(collective: str, protocol: Protocol) -> None:
    """Of a small call by one algorithm and protocol more nodes take longer: the ring has more steps, all have hops."""
    names = {"all_reduce": ("ring", "chain_tree"), "broadcast": ("chain",), "reduce": ("chain",)}
    for algorithm in names.get(collective, ("ring",)):
        how = {"algorithm": algorithm, "protocol": protocol}
        law = changed(protocol, net_rate=0)  # of more ranks messages are smaller
        times = [call("hgx-h100", collective, 8192, law, nodes=nodes, **how).time_ps for nodes in (1, 2, 3, 4, 6, 8)]
        assert times == sorted(times), algorithm


@settings(max_examples=60)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_chain_trees_are_right(sizes: list[int], chance: Any) -> None:
    """Chains in groups of any sizes and order, trees across: every rank ends with the sum of all, by 2(n − 1) messages
    a half; only the first ranks of groups talk to other groups."""
    ranks = list(range(sum(sizes)))
    chance.shuffle(ranks)
    left = iter(ranks)
    groups = tuple(tuple(itertools.islice(left, size)) for size in sizes)
    schedule = build("all_reduce", "chain_tree", len(ranks), groups=groups)
    prove(schedule)
    assert schedule.messages == 4 * (len(ranks) - 1)
    of = {rank: group for group, its in enumerate(groups) for rank in its}
    across = [(t.src, t.dst) for t in schedule if of[t.src] != of[t.dst]]
    assert len(across) == 4 * (len(groups) - 1)
    assert {rank for ends in across for rank in ends} <= {its[0] for its in groups}


# --- what is said of a call ---


@pytest.mark.parametrize("version", ["2.19", "2.27", "2.30"])
@pytest.mark.parametrize(("system", "nodes", "ranks"), [("dgx-a100", 1, 4), ("hgx-h100", 1, 8), ("hgx-h100", 2, 16)])
def test_what_nccl_would_choose(system: str, nodes: int, ranks: int, version: str) -> None:
    """A row says the algorithm and protocol that `simcoll tune` says for that release, of those that are modelled."""
    told = simcoll(
        *("tune", system, "--nodes", nodes, "--ranks", ranks, "--version", version),
        *("--algo", "ring;allreduce:tree,ring,nvls,nvlstree;allgather:ring,nvls;reducescatter:ring,nvls", "--json"),
    ).json
    ours = {"ring": "ring", "tree": "chain_tree", "nvls": "nvls", "nvls_tree": "nvls_tree"}
    seen = set()
    for choice in told["choice"]:
        collective, size = choice["collective"], choice["size_bytes"]
        if size > 2**26:
            continue
        found = said(call(system, collective, size, nodes=nodes, ranks=ranks, library_version=version))
        rooted = collective in ("broadcast", "reduce")
        assert found["algorithm"] == ("chain" if rooted else ours[choice["algorithm"]]), choice
        assert found["protocol"] == choice["protocol"], choice
        seen.add(choice["protocol"])
    assert len(seen) > 1


def test_what_is_forced_is_done() -> None:
    """A row says the algorithm and the protocol that were asked for, and its time is that of no other."""
    times = set()
    for algorithm, protocol in [*itertools.product(("ring", "chain_tree"), PROTOCOLS), ("nvls", "Simple")]:
        found = said(call("hgx-h100", "all_reduce", 2**20, ranks=8, algorithm=algorithm, protocol=protocol))
        assert (found["algorithm"], found["protocol"], found["status"]) == (algorithm, protocol, "ok")
        times.add(found["time_ps"])
    assert len(times) == 7


def test_releases_choose_otherwise() -> None:
    """`library_version` takes the place of the profile's `version`, and a release that is not known is told."""
    sizes = [2**k for k in range(10, 29)]

    def choices(law: str, **more: Any) -> list[tuple[str, str]]:
        its = (call("hgx-h100", "all_reduce", size, law, ranks=8, **more) for size in sizes)
        return [(one.algorithm, one.protocol) for one in its]

    old, new = text().replace("library: nccl", "library: nccl\n  version: '2.19'"), text()
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
        ({"collective": "barrier"}, "kernels for barrier are not modelled"),
        ({"algorithm": "naive"}, "NCCL has no naive for all_reduce; it has ring, chain_tree, nvls, nvls_tree, tree"),
        ({"algorithm": "nvls", "protocol": "LL"}, "NCCL has no nvls/LL for all_reduce"),
        ({"system": "dgx-a100", "algorithm": "nvls"}, "NCCL has no nvls/auto for all_reduce"),
        ({"nodes": 2, "ranks": 16, "algorithm": "nvls"}, "NCCL has no nvls/auto for all_reduce"),
        ({"profile": "ideal", "protocol": "LL"}, "protocol LL needs a profile with kernels"),
        ({"topology": {"fabric": "single-switch", "hosts": 8, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}}},
         "has no GPUs: kernels run on systems"),
    ],
)  # fmt: skip
def test_what_kernels_do_not_serve(more: dict[str, Any], why: str) -> None:
    """What NCCL has no kernel for, or none that is modelled, is refused with one reason."""
    how = {"system": "hgx-h100", "collective": "all_reduce", "ranks": 8, **more}
    with pytest.raises(RefusedError, match=why) as told:
        call(how.pop("system"), how.pop("collective"), 2**20, **how)
    assert "\n" not in str(told.value)


# --- what is moved ---


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
@pytest.mark.parametrize("system", ["dgx-a100", "hgx-a100-4", "hgx-h100"])
def test_no_link_is_busier_than_always(system: str, collective: str) -> None:
    """What channels carry to the network is spread over the NICs in use: no link is busy for more than the run."""
    told = row(call(system, collective, 2**28, nodes=2, profile="nccl"))
    assert 0.3 < told["binding_busy"] <= 1.001  # type: ignore[operator]


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
    plain = call(system, collective, nbytes, profile="ideal", protocol="none", **how)
    assert found.lowered is not None
    its = found.lowered.call
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
    assert found.channel is not None and found.lowered is not None
    ends = zip(found.devices, (*found.devices[1:], found.devices[0]), strict=True)
    assert all(found.channel.topology.route(*pair) == found.lowered.rated.route(*pair) for pair in ends)


def test_nics_carry_alike_in_nvls_tree() -> None:
    """Of NVLSTree's two trees a leaf of one is an inner node of the other: over 8 nodes no NIC sends more than twice
    its GPU's part of the buffer, where one tree would make it three times; and all channels together have a NIC."""
    found = call("hgx-h100", "all_reduce", 2**26, nodes=8, ranks=64, algorithm="nvls_tree")
    assert found.lowered is not None and found.channel is not None
    rated, channels = found.lowered.rated, found.lowered.call.channels
    out = [link for link, (u, v) in enumerate(rated.links) if (rated.kinds[u], rated.kinds[v]) == ("nic", "switch")]
    assert len(out) == 64
    assert found.totals.carried[out].max() == pytest.approx(2 * 2**26 / 8, rel=0.01)
    together = found.channel.topology.bandwidths[out] * channels / rated.bandwidths[out]
    assert ((together > 0.7) & (together <= 1.001)).all()


@pytest.mark.parametrize("system", ["dgx1-v100", "mi300x", "hgx-a100-4", "gh200-4"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_mesh_has_the_links_of_its_gpus_together(system: str, nodes: int) -> None:
    """Where GPUs are joined one to one, a ring has of each what its links to the others of its node add up to, and
    all-to-all, which sends to each by itself, has the links as they are."""
    one = load_system(system).devices["gpu"]  # type: ignore[call-overload,index]
    found = call(system, "all_reduce", 2**20, nodes=nodes, algorithm="ring", protocol="Simple")
    plain = call(system, "all_to_all", 2**20, nodes=nodes)
    assert found.lowered is not None and plain.lowered is not None
    links = plain.lowered.rated
    for gpu in found.devices:
        others = [peer for peer in found.devices if links.node_of(peer) == links.node_of(gpu) and peer != gpu]
        assert len(others) == one - 1
        wired = sum(links.link(gpu, peer).bandwidth for peer in others if (gpu, peer) in links.links)
        out = [v for u, v in found.lowered.rated.links if u == gpu and v.endswith("mesh")]
        assert [found.lowered.rated.link(gpu, hub).bandwidth for hub in out] == [wired]
        assert not any((gpu, peer) in found.lowered.rated.links for peer in others)


# --- what costs do ---

OFTEN = ("hop", "net", "start", "own", "turn")
DURATIONS = ["launch", *OF_CALLS, *(name for name in BLOCKS if name.partition(".")[2] in OFTEN)]
EVERYWHERE = [
    ("hgx-h100", 1, 8, "all_reduce", "ring", "LL"),
    ("hgx-h100", 2, 16, "all_gather", "ring", "LL128"),
    ("hgx-h100", 2, 16, "all_reduce", "chain_tree", "Simple"),
    ("hgx-h100", 1, 8, "all_reduce", "nvls", "Simple"),
    ("hgx-h100", 1, 8, "all_to_all", "direct", "LL"),
    ("dgx-a100", 1, 8, "all_to_all", "direct", "Simple"),
    ("l40s-pcie", 1, 2, "broadcast", "chain", "LL"),
    ("l40s-pcie", 1, 8, "all_reduce", "ring", "LL"),
    ("a100-pcie", 1, 8, "all_gather", "ring", "Simple"),
]


def question(which: int) -> tuple[Point, Question]:
    """One of these calls, of 1 MB."""
    system, nodes, ranks, collective, algorithm, protocol = EVERYWHERE[which]
    how = {"ranks": ranks, "nodes": nodes, "algorithm": algorithm, "protocol": protocol}
    point = asked(system, collective, 1_000_000, **how)
    with config.carrying({"law.yaml": text().encode()}):
        return point, Question(point.scenario)


@pytest.mark.parametrize("which", range(len(EVERYWHERE)))
@pytest.mark.parametrize("name", ["launch", *OF_CALLS, "efficiency.nvlink", "efficiency.pcie", *BLOCKS])
def test_a_fit_asks_what_a_run_answers(which: int, name: str) -> None:
    """With another cost of any parameter of kernels a fit compares the time of a run with such a profile, to the
    picosecond."""
    point, asking = question(which)
    law = parse_profile(text(), "law.yaml")
    before = Setting({}, law.launch, law.links, law.kernels)
    assert before.kernels is not None
    setting = before.at({name: 1.75 * cost(name, law, Params()) + (0.25 if name.startswith("eff") else 0)})
    assert setting.kernels is not None
    plain = setting.kernels.model_dump()
    blocks = {
        kind: {key: value for key, value in plain[kind].items() if value is not None}
        for kind in BLOCK
    }  # fmt: skip
    other = text(blocks, setting.launch, setting.kernels.grid, setting.kernels.spread)
    for kind, scale in setting.links.items():
        other = other.replace(f"{kind}:\n    efficiency: {KEPT}", f"{kind}:\n    efficiency: {scale.efficiency!r}")
    written = parse_profile(other, "other.yaml")
    assert (written.kernels, written.links) == (setting.kernels.model_copy(update={"version": None}), setting.links)
    with config.carrying({"law.yaml": other.encode()}):
        assert asking.time_ps(setting) == predict(point).time_ps


@settings(max_examples=60)
@given(st.integers(0, len(EVERYWHERE) - 1), st.sampled_from(DURATIONS), st.floats(1, 8))
def test_what_takes_longer_is_never_faster(which: int, name: str, times: float) -> None:
    """A longer launch, hop, start, or own share never makes a call faster, and those of other blocks change nothing."""
    _, asking = question(which)
    law = parse_profile(text(), "law.yaml")
    before = Setting({}, law.launch, law.links, law.kernels)
    now, then = asking.time_ps(before), asking.time_ps(before.at({name: times * cost(name, law, Params())}))
    assert then >= now
    *_, algorithm, protocol = EVERYWHERE[which]
    kind = {"nvls": "NVLS", "direct": "P2P"}.get(algorithm, protocol)
    if "." in name and name.partition(".")[0] != kind:
        assert then == now


# --- tables ---

FITTED = {"launch": 5, "LL.hop": 0.6, "LL.rate": 6, "Simple.start": 1.8, "Simple.hop": 3.4, "efficiency.nvlink": 90}
COLUMNS = ("system", "library", "library_version", "collective", "ranks", "nodes", "dtype", "size_bytes", "time_us")


def made(
    ranks: Sequence[int], collectives: Sequence[str], noise: float = 0.0, every: int = 1
) -> Iterator[dict[str, Any]]:
    """Rows of library calls on H100s by the law, release 2.27, with log-normal noise."""
    chance = np.random.default_rng(3)
    for collective, n, exponent in itertools.product(collectives, ranks, range(9, 29, every)):
        time_us = call("hgx-h100", collective, 2**exponent, ranks=n, library_version="2.27").time_ps / 1e6
        yield {
            "system": "h100", "library": "nccl", "library_version": "2.27.3", "collective": collective, "ranks": n,
            "nodes": 1, "dtype": "float32", "size_bytes": 2**exponent,
            "time_us": time_us * float(np.exp(chance.normal(0, noise))) if noise else time_us,
        }  # fmt: skip


def write(path: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A measured table."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_kernels_are_found_again(folder: Path) -> None:
    """From times with 3 % noise on 2 and 4 ranks the costs of the kernels behind them come back, from other values, and
    8 ranks, which no fit has seen, are told within 5 % of the law."""
    pytest.importorskip("scipy")
    from simcoll.accuracy.calibrate import calibrate

    rows = list(made((2, 4, 8), ("all_gather", "all_reduce", "broadcast"), noise=0.03))
    other = {"LL": {"hop": 900_000, "rate": 9 * 10**9}, "Simple": {"start": 900_000, "hop": 5_000_000}}
    begin = text({kind: {**its, **other.get(kind, {})} for kind, its in BLOCK.items()}, launch=3_000_000)
    Path("begin.yaml").write_text(begin.replace(f"efficiency: {KEPT}", "efficiency: 1.0"), encoding="utf-8")
    found = calibrate(
        [write("t.csv", rows)], "hgx-h100", fit=["ranks=2,4"], free=list(FITTED), sets=["profile=begin.yaml"]
    )
    for p in found.document["parameters"]:
        law = FITTED[p["name"]]
        assert abs(p["value"] - law) < max(0.05 * law, p["high"] - p["low"]), p
    unseen = [point for point in found.document["points"] if point["ranks"] == 8]
    assert not any(point["fitted"] for point in unseen)
    exact = [one["time_us"] for one in made((8,), ("all_gather", "all_reduce", "broadcast"))]
    assert [point["predicted_us"] for point in unseen] == pytest.approx(exact, rel=0.05)


def a_row(size: int, time_us: float, **more: Any) -> Row:
    """A measured row."""
    return Row(**{"collective": "all_reduce", "ranks": 8, "nodes": 1, **more, "size_bytes": size, "time_us": time_us})


def test_rows_that_cannot_be_right() -> None:
    """Suspicious is what took more than 1.1 times as long as some size of twice its own or more, and nothing else: not
    what just reaches that, not what has no row of that size, nor one of another series only."""
    assert suspicious([a_row(1, 12.0), a_row(2, 10.0), a_row(4, 30.0)]) == [True, False, False]
    assert suspicious([a_row(1, 10.0), a_row(2, 10.0)]) == [False, False]
    assert suspicious([a_row(1, 1.1), a_row(2, 1.0)]) == [False, False]
    assert suspicious([a_row(1, 100.0), a_row(4, 10.0), a_row(7, 1.0)]) == [True, False, False]
    assert suspicious([a_row(2, 10.0), a_row(1, 12.0)]) == [False, True]  # in any order
    for other in ({"ranks": 4}, {"dtype": "float16"}, {"algorithm": "ring"}, {"others": {"op": "max"}}):
        assert suspicious([a_row(1, 100.0), a_row(2, 10.0, **other)]) == [False, False], other
    assert suspicious([a_row(1, 12.0), a_row(2, 100.0), a_row(2, 10.0)]) == [True, False, False]  # of repeats the best
    assert suspicious([]) == []


@settings(max_examples=50)
@given(st.lists(st.floats(1, 1000), min_size=1, max_size=12), st.floats(0.1, 10))
def test_suspicion_has_no_unit(times: list[float], factor: float) -> None:
    """It does not depend on the unit of time, and what rises with the size is never suspicious."""
    rows = [a_row(2**k, time) for k, time in enumerate(times)]
    scaled = [a_row(2**k, time * factor) for k, time in enumerate(times)]
    near = any(abs(a / b - 1.1) < 1e-9 for a, b in itertools.pairwise(times))
    assert near or suspicious(rows) == suspicious(scaled)
    assert not any(suspicious([a_row(2**k, time) for k, time in enumerate(sorted(times))]))


def test_rivals_know_their_own_laws() -> None:
    """A latency and a bandwidth, a power of the size, and rated links are told without error by the rival that has this
    law, at sizes between and beyond; and what has too few rows is told by none."""
    point = asked("hgx-h100", "all_reduce", 2**20, ranks=8)
    sizes, unseen = [2**k for k in range(10, 24, 2)], [3 * 2**12, 2**9, 2**25]

    def errors(law: Any, fitted: Sequence[int] = sizes) -> dict[str, float | None]:
        known, new = ([a_row(size, law(size)) for size in its] for its in (fitted, unseen))
        return rivals.errors(known, [(one, point) for one in new])

    assert errors(lambda size: 7.5 + size / 3e4)["latency-bandwidth fit"] == pytest.approx(0, abs=1e-6)
    assert errors(lambda size: 0.5 * size**0.7)["log-log interpolation"] == pytest.approx(0, abs=1e-6)
    speed = rated(call("hgx-h100", "all_reduce", 2**20, ranks=8))
    assert errors(lambda size: 7 / 4 * size / speed * 1e6)["spec sheet"] == pytest.approx(0, abs=1e-6)
    few = errors(lambda size: 1.0, fitted=sizes[:1])
    assert few["latency-bandwidth fit"] is few["log-log interpolation"] is None
    assert few["spec sheet"] is not None
    told = simcoll("tune", "hgx-h100", "--version", "2.27", "--json").json["choice"]
    times = {c["size_bytes"]: c["time_us"] for c in told if c["collective"] == "all_reduce"}
    asking = [(a_row(size, times[size], library_version="2.27.3"), point) for size in (2**10, 2**20, 2**30)]
    assert rivals.errors([], asking)["NCCL's tuner"] == pytest.approx(0, abs=1e-6)


def test_tables_of_others_are_validated(folder: Path) -> None:
    """`validate --tables` makes three studies of a table, and the report names each with its rivals; a folder without
    tables, and a system that nobody knows, are one clear error each, and nothing is written."""
    pytest.importorskip("scipy")
    for name in ("tables", "nothing", "strange", "v/studies"):
        Path(name).mkdir(parents=True)
    Path("v/studies/own.yaml").write_text(
        "title: Own\nplace: tables\ncases: [{table: tables/mine.csv, system: hgx-h100}]\n", encoding="utf-8"
    )
    rows = list(made((2, 4), ("all_gather", "all_reduce"), every=3))
    write("tables/mine.csv", rows)
    write("strange/mine.csv", [{**one, "system": "abacus"} for one in rows])
    for wrong, why in (
        ("nothing", "nothing: has no *.csv; give a folder of measured tables with --tables"),
        ("nowhere", "nowhere: has no *.csv; give a folder of measured tables with --tables"),
        ("strange", "which system 'abacus' is, is not known; name one of"),
    ):
        found = simcoll("validate", "own", "--folder", "v", "--tables", wrong, "-o", "out")
        assert (found.status, found.out) == (2, "")
        assert why in found.err
        assert len(found.err.splitlines()) == 1
        assert not Path("out").exists()
    found = simcoll("validate", "own", "--folder", "v", "--tables", "tables", "-o", "out", "--quiet")
    assert found.status == 0, found.err
    report = Path("out/REPORT.md").read_text(encoding="utf-8")
    for title in ("mine: nothing fitted", "mine: every second size", "mine: from all-reduce to the others"):
        assert title in report
    assert all(name in report for name in rivals.RIVALS)


# --- several nodes ---


@pytest.mark.parametrize("algorithm", ["ring", "chain_tree"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_nics_take_whatever_the_protocol(algorithm: str, protocol: Protocol) -> None:
    """`net` of the kernels is as much longer a hop as `net` of the blocks."""
    how = {"nodes": 2, "algorithm": algorithm, "protocol": protocol}
    own = changed(protocol, net=5_000_000)
    apart = changed(protocol, net=2_000_000).replace("net: 0 ps", "net: 3000000 ps", 1)
    times = [call("hgx-h100", "all_reduce", 1 << 16, law, **how).time_ps for law in (own, apart)]
    assert times[0] == times[1]


def test_a_message_is_brought_to_the_nic() -> None:
    """On two nodes a tree's messages go across one after the other up and down: each takes its bytes over `net_rate`
    longer, all of a channel's share where that is one chunk."""
    how = {"nodes": 2, "algorithm": "chain_tree", "protocol": "LL"}
    slow, fast = (call("hgx-h100", "all_reduce", 2048, changed("LL", net_rate=rate), **how) for rate in (10**9, 0))
    assert fast.lowered is not None and fast.lowered.call.message == 2048
    assert slow.time_ps - fast.time_ps == 2 * 2048 * 1000


def test_nics_say_what_the_profile_leaves_open() -> None:
    """What a profile says of hops between nodes holds; what it leaves open is as the profile of the system's NICs has
    it, and nothing else of that counts."""
    its = {kind: {key: cost for key, cost in costs.items() if "net" not in key} for kind, costs in BLOCK.items()}
    laws = {
        "open": text(its).replace("  net: 0 ps\n", "", 1),
        "told": text({**its, "LL": {**its["LL"], "net": 9_000_000}}),
    }
    found = {name: call("hgx-h100", "all_reduce", 2048, law, nodes=2, protocol="LL") for name, law in laws.items()}
    network = load_profile("infiniband").kernels
    assert network is not None
    for name, law in laws.items():
        lowered, own = found[name].lowered, parse_profile(law, f"{name}.yaml").kernels
        assert lowered is not None and own is not None
        costs = lowered.costs(own)
        assert (costs.LL.hop, costs.LL.rate) == (own.LL.hop, own.LL.rate)
        assert costs.Simple.net == network.Simple.net
        if name == "open":
            assert (costs.net, costs.LL.net, costs.LL.net_tree) == (network.net, network.LL.net, network.LL.net_tree)
        else:
            assert (costs.net, costs.LL.net, costs.LL.net_tree) == (0, 9_000_000, None)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_fit_to_one_node_leaves_nics_open(nodes: int, tmp_path: Path) -> None:
    """A profile that was fitted to rows of one node says nothing of hops between nodes, one of several nodes all."""
    rows = ["library,collective,ranks,nodes,dtype,size_bytes,time_us"]
    for k in range(8, 24, 2):
        time = call("hgx-h100", "all_gather", 1 << k, nodes=nodes, ranks=8 * nodes).time_ps / 1e6
        rows.append(f"nccl,all_gather,{8 * nodes},{nodes},float32,{1 << k},{time}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows) + "\n")
    found = calibrate([table], "hgx-h100", free=["LL.hop"], sets=["profile=nccl"])
    kernels = parse_profile(found.text, "found.yaml").kernels
    assert kernels is not None
    said = [kernels.net, *(getattr(kernels, kind).net for kind in BLOCK)]
    assert all((cost is None) == (nodes == 1) for cost in said)


def test_a_fit_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    """What the profile says of a block and no fit asks for is written as it was: LL128's own block, what is saved."""
    took = {1 << k: call("hgx-h100", "all_gather", 1 << k, ranks=8).time_ps / 1e6 for k in range(8, 24, 2)}
    rows = ["library,collective,ranks,dtype,size_bytes,time_us"]
    rows += [f"nccl,all_gather,8,float32,{size},{time}" for size, time in took.items()]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows) + "\n")
    begin = load_profile("nccl").kernels
    kernels = parse_profile(calibrate([table], "hgx-h100", free=["LL.hop"], sets=["profile=nccl"]).text, "p").kernels
    assert begin is not None
    assert kernels is not None
    assert (kernels.LL128.own, kernels.Simple.saved) == (begin.LL128.own, begin.Simple.saved)
    assert kernels.Simple.saved > 0


@pytest.mark.parametrize(("collective", "algorithm"), [("all_gather", "ring"), ("all_reduce", "chain_tree")])
def test_a_slow_nic_is_felt_wherever_it_is(collective: str, algorithm: str) -> None:
    """Channels go by all NICs of a node, and a call ends with the last: whichever of them is slow, it takes as long."""

    def took(nic: int) -> int:
        slow = {way: {"bandwidth": "10 GB/s"} for way in (f"node0.nic{nic}->*", f"*->node0.nic{nic}")}
        topology = {"system": "hgx-h100", "nodes": 2, "links": slow}
        return call("hgx-h100", collective, 64 << 20, ranks=16, algorithm=algorithm, topology=topology).time_ps

    plain = call("hgx-h100", collective, 64 << 20, nodes=2, ranks=16, algorithm=algorithm).time_ps
    assert took(0) == took(3) == took(7) > plain


def test_messages_have_no_LL128() -> None:  # noqa: N802
    """NCCL sends messages by LL or Simple; another protocol is refused."""
    with pytest.raises(RefusedError, match="no LL128 for all_to_all"):
        call("hgx-h100", "all_to_all", 1 << 16, ranks=8, protocol="LL128")
