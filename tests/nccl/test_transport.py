"""Laws of transports: who talks directly without NVLink, what it takes to hand on through the host's memory, and what
queues between nodes reach."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from nccl_law import channel, point_of, under

from simcoll.config import yaml_tree
from simcoll.engine.timing_model import PS_PER_S, service_ps
from simcoll.errors import RefusedError
from simcoll.nccl.transports_between_nodes import Transport
from simcoll.nccl.transports_within_node import HALF
from simcoll.prediction.predict import Prediction, predict, row
from simcoll.scenario.profile import load_network

GB = 10**9
LAUNCH, HOP, HOST, RATE = 5_000_000, 600_000, 1_250_000, 24 * GB


def call(
    system: str, nbytes: int, ranks: int, host: int = HOST, rate: int = RATE, hop: int = HOP, **more: Any
) -> Prediction:
    """An all_gather by ring, by a profile in which little else takes time."""
    block = {"hop": f"{hop} ps", "host": f"{host} ps", "host_rate": f"{rate} B/s" if rate else "none"}
    kernels = {"LL": {**block, "rate": "6 GB/s"}, "Simple": block, "P2P": {"host_rate": block["host_rate"]}}
    law = yaml_tree.dump({"name": "law", "launch": f"{LAUNCH} ps", "kernels": kernels})
    asked = {"collective": "all_gather", "algorithm": "ring", "protocol": "LL", "size": f"{nbytes} B", "ranks": ranks}
    point = point_of(law, **{"topology": {"system": system, "nodes": 1}, **asked, **more})
    with under(law):
        return predict(point)


@pytest.mark.parametrize(
    ("system", "ranks", "level", "through"),
    [
        ("l40s-pcie", 2, None, False),  # on one switch
        ("l40s-pcie", 4, None, True),
        ("l40s-pcie", 4, "PHB", False),
        ("l40s-pcie", 8, "PHB", True),
        ("l40s-pcie", 8, "SYS", False),
        ("l40s-pcie", 2, "LOC", True),
        ("a100-pcie", 2, None, False),  # two GPUs alone with an AMD host
        ("a100-pcie", 2, "PXB", True),
        ("a100-pcie", 4, None, True),
        ("hgx-h100", 8, None, False),
        ("hgx-h100", 8, "PXB", False),
    ],
)
def test_who_goes_through_the_host(system: str, ranks: int, level: str | None, through: bool) -> None:
    """By default GPUs talk directly over NVLink and PCIe switches, two of an AMD host anyway; NCCL_P2P_LEVEL changes
    that. What the host's memory costs is paid by those who go through it, and by no others."""
    asked = {"env": {"NCCL_P2P_LEVEL": level}} if level else {}
    found, free = (call(system, 4096, ranks, host, **asked) for host in (HOST, 0))
    assert channel(found).call.staged is through
    assert (found.time_ps > free.time_ps) is through


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_small_call(ranks: int) -> None:
    """A step of nearly nothing takes a hop, and the host's memory beside it."""
    found = call("a100-pcie", 4 * ranks, ranks, env={"NCCL_P2P_LEVEL": "PXB"})
    rate = channel(found).call.threads * 8 * PS_PER_S / HOST
    assert found.time_ps == LAUNCH + (ranks - 1) * (HOP + HOST + 1 + service_ps(4, round(rate)))


def test_only_ways_by_a_host_take_longer() -> None:
    """Of eight GPUs, two a switch, every second step of a ring goes by a host; a chunk takes half as much longer."""
    found, free = (call("l40s-pcie", 64, 8, host).time_ps for host in (HOST, 1))
    assert 3 * HOST <= found - free <= 4 * HOST + 7 * service_ps(8, round(96 * 8 * PS_PER_S / HOST))


@pytest.mark.parametrize("rate", [0, 24 * GB])
def test_ll_through_the_host(rate: int) -> None:
    """LL moves what threads read at once each time that they have read, on two channels here, unless the link to the
    host and its memory, of which flags have a half, carry less."""
    small, large = (call("a100-pcie", size, 8, rate=rate).time_ps for size in (2**23, 2**24))
    carried = min(2 * 4096 * PS_PER_S / HOST, (12 * GB if rate else 24 * GB) / 2)
    assert large - small == pytest.approx(2**23 * 7 / 8 * PS_PER_S / carried, rel=0.02)


def test_ll_hands_lines_on() -> None:
    """A step of LL over PCIe lasts as long as its bytes or as the hop, whichever is longer: a hop that is shorter than
    its bytes costs a ring nothing more."""
    size, hop = 2**18, 2_000_000
    (found, quicker) = (call("l40s-pcie", size, 2, hop=one).time_ps for one in (hop, 1))
    assert found - quicker <= hop
    eight, quick = (
        call("l40s-pcie", 4 * size, 8, hop=one, host=1, env={"NCCL_P2P_LEVEL": "SYS"}).time_ps for one in (hop, 1)
    )
    assert eight - quick <= 2 * hop


@pytest.mark.parametrize(("collective", "algorithm"), [("all_gather", "ring"), ("all_to_all", "direct")])
def test_a_byte_takes_time_of_the_link_and_of_the_host(collective: str, algorithm: str) -> None:
    """Large calls take as long as bytes take on links of 24 GB/s, and in the host's memory beside."""
    asked = {"collective": collective, "algorithm": algorithm, "protocol": "Simple"}
    free = call("a100-pcie", 2**28, 4, rate=0, **asked).time_ps
    for rate in (24, 60):
        found = call("a100-pcie", 2**28, 4, rate=rate * GB, **asked).time_ps
        assert found / free == pytest.approx(1 + 24 / rate, rel=0.02)


def test_without_p2p_a_switch_is_no_short_cut() -> None:
    """Where not even GPUs of one switch talk directly, both send by their host, whose link carries twice."""
    found = call("l40s-pcie", 2**28, 2, rate=0, protocol="Simple", env={"NCCL_P2P_LEVEL": "LOC"})
    direct = call("l40s-pcie", 2**28, 2, rate=0, protocol="Simple")
    topology = channel(found).rated
    kinds = [topology.kinds[topology.links[link][1]] for link in topology.route(*topology.ranks[:2])]
    assert kinds == [HALF, "cpu", HALF, "gpu"]
    assert found.totals.wire_bytes == 2 * direct.totals.wire_bytes
    assert found.time_ps / direct.time_ps == pytest.approx(2, rel=0.02)


NESTED = """
name: nested
gpu: {model: some, generation: ada, compute_capability: 89}
cpu: {vendor: intel}
devices: {gpu: 4, pcie_switch: 3, cpu: 1}
links:
  - bandwidth: 24 GB/s
    latency: 0.25 us
    kind: pcie
    pairs: [[gpu0, pcie_switch0], [gpu1, pcie_switch0], [gpu2, pcie_switch1], [gpu3, pcie_switch1],
            [pcie_switch0, pcie_switch2], [pcie_switch1, pcie_switch2], [pcie_switch2, cpu0]]
nccl:
  source: none
  graphs: [{graph: ring, nodes: one, gpus: [2, 4], channels: 1, intra: 5, pattern: ring, type_intra: PXB},
           {graph: tree, nodes: one, gpus: [2, 4], channels: 1, intra: 5, pattern: balanced_tree, type_intra: PXB}]
"""


def test_switches_behind_switches(tmp_path: Path) -> None:
    """All ways lead to the host and back, through as many switches as there are between."""
    path = tmp_path / "nested.yaml"
    path.write_text(NESTED, encoding="utf-8")
    found = call("l40s-pcie", 4096, 4, topology={"file": str(path)}, env={"NCCL_P2P_LEVEL": "LOC"})
    found = channel(found)
    assert found.call.staged
    for src, dst in itertools.permutations(found.rated.ranks, 2):
        ends = [found.rated.links[link][1] for link in found.rated.route(src, dst)]
        assert [found.rated.kinds[end] for end in ends] == [HALF, HALF, "cpu", HALF, HALF, "gpu"]
        assert ["up" in end for end in ends[:2]] == ["down" in end for end in ends[3:5]] == [True, True]


def test_what_was_fitted_talked_directly() -> None:
    """What two L40S of a switch take was measured; without P2P it was not."""
    asked = {"topology": {"system": "l40s-pcie"}, "collective": "all_reduce", "ranks": 2, "size": "512 KiB",
             "dtype": "float16", "algorithm": "auto", "profile": "nccl-pcie"}  # fmt: skip
    points = (point_of("", **asked, env={"NCCL_P2P_LEVEL": level}) for level in (None, "LOC"))
    assert [row(predict(point)).confidence for point in points] == ["calibrated", "extrapolated"]


def test_env_needs_kernels() -> None:
    """A profile that knows no kernels has nothing to say of it."""
    with pytest.raises(RefusedError, match="needs a profile with NCCL kernels"):
        call("l40s-pcie", 4096, 4, profile="one-port", protocol="none", env={"NCCL_P2P_LEVEL": "LOC"})


def test_nvlink_without_p2p_goes_by_the_host() -> None:
    """GPUs on NVSwitch that may not use it take graphs over PCIe, and no link to the switch."""
    found = channel(call("hgx-h100", 1024, 8, env={"NCCL_P2P_LEVEL": "LOC"}))
    assert found.call.communicator.graphs["ring"].type_intra == "SYS" and found.call.staged
    assert not any(link.kind == "nvlink" for *_, link in found.rated.graph.edges.data("link"))


def _reached(sent: list[list[int]], window: int, slots: int = 1500) -> float:
    """Share of the time that the senders which send most do, where the first message of a queue's `window` whose
    receiver is free goes. `sent[s][r]` of a sender's messages are for each receiver, in random order. Queues of those
    that send most are full; those of others fill as these send, so that all end together."""
    draw = random.Random(0)
    most, numbers = max(map(sum, sent)), range(len(sent[0]))
    full = [sum(row) == most for row in sent]
    queues = [draw.choices(numbers, row, k=window) if most == sum(row) else [] for row in sent]
    gone = 0
    for _ in range(slots):
        waiting, busy = {sender for sender, queue in enumerate(queues) if queue}, set[int]()
        for place in range(window):
            for sender in draw.sample(sorted(waiting), len(waiting)):
                if place < len(queues[sender]) and queues[sender][place] not in busy:
                    busy.add(queues[sender].pop(place))
                    waiting.remove(sender)
                    if full[sender]:
                        gone += 1
                        queues[sender] += draw.choices(numbers, sent[sender])
                        for other, row in enumerate(sent):
                            if not full[other] and draw.random() < sum(row) / most / sum(full):
                                queues[other] += draw.choices(numbers, row)
    return gone / sum(full) / slots


@pytest.mark.parametrize(("profile", "window"), [("slingshot-ofi", 1), ("ib-ndr", 8)])
@pytest.mark.parametrize("ends", [1, 2, 4, 9])
def test_derived_congestion_is_that_of_queues(profile: str, window: int, ends: int) -> None:
    """Within 4 % queues reach the share of the fabric that follows from the congestion which profiles derive."""
    percent = float(load_network(profile).derived["transport.congestion"].split()[0])
    expected = Transport(congestion=percent / 100).crowded(
        1 - 1 / ends, peers=99
    )  # others have all but one's own of a receiver
    reached = _reached([[1] * ends] * ends, window)
    assert reached == pytest.approx(expected, abs=0.035)  # of two by eight, where 1 / n is too simple


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_queues_of_unequal_nics_wait_by_the_same_law(nodes: int) -> None:
    """Three GPUs by one NIC and one by the other: what waits follows from how long others hold the receivers of the
    busier NIC, by the congestion that follows from queues of equal ones."""
    nics = [(node, gpus) for node in range(nodes) for gpus in (3, 1)]
    sent = [[mine * theirs * (node != other) for other, theirs in nics] for node, mine in nics]
    contention = channel(
        call("hgx-a100-4-slingshot", 4096, 4 * nodes, topology={"system": "hgx-a100-4-slingshot", "nodes": nodes},
             collective="all_to_all", algorithm="auto", protocol="auto")
    ).wires.contention  # fmt: skip
    assert _reached(sent, 1) == pytest.approx(Transport(congestion=0.7).crowded(contention, peers=99), abs=0.025)


@pytest.mark.parametrize(("collective", "slower"), [("broadcast", False), ("reduce", False), ("all_gather", True)])
def test_one_way_alone_has_the_link_through_a_host(collective: str, slower: bool) -> None:
    """What the host's memory takes for a byte is paid by GPUs that send and receive at once: two of which one sends and
    the other receives go as fast as their links; of three in a chain one does both."""
    asked = {"collective": collective, "protocol": "Simple", "env": {"NCCL_P2P_LEVEL": "LOC"}}
    for ranks in (2, 3):
        found, free = (call("l40s-pcie", 1 << 26, ranks, rate=rate, **asked).time_ps for rate in (RATE, 0))
        assert (found > 1.2 * free) is (slower or ranks == 3)
