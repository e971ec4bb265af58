"""What is said of calls of NCCL's kernels, and what they move."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from command import simcoll
from nccl_law import (
    ITEM,
    LAW,
    PROTOCOLS,
    call,
    changed,
    channel,
    under,
)
from systems import WITH_GPUS

import simcoll as simcoll_api
from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError, RefusedError
from simcoll.prediction.predict import Prediction, row
from simcoll.prediction.result_rows import ResultRow
from simcoll.report.exports import nccl_tables
from simcoll.topology.topology_builder import load_system


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
        ({"nodes": 2, "ranks": 12}, "nodes have different numbers of the 12 ranks"),
        ({"collective": "barrier", "executor": "nccl"}, "NCCL kernel costs exist for no barrier"),
        ({"collective": "barrier", "algorithm": "tree", "executor": "nccl"}, "NCCL kernel costs exist for no barrier"),
        ({"algorithm": "naive", "executor": "nccl"}, "NCCL has no naive for all_reduce; it has ring, tree, nvls,"),
        ({"algorithm": "nvls", "protocol": "LL"}, "NCCL runs no all_reduce by nvls with LL here; it has tree (LL,"),
        ({"system": "dgx-a100", "algorithm": "nvls"}, "NCCL runs no all_reduce by nvls here; it has tree (LL,"),
        ({"nodes": 2, "ranks": 16, "algorithm": "nvls"}, "NCCL runs no all_reduce by nvls here; it has tree (LL,"),
        ({"profile": "one-port", "protocol": "LL"}, "protocol LL needs a profile with NCCL kernels"),
        ({"topology": {"fabric": "single-switch", "hosts": 8, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}}},
         "has no GPUs to run NCCL kernels"),
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


@pytest.mark.parametrize("system", WITH_GPUS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_ways_are_those_of_the_rated_links(system: str, nodes: int) -> None:
    """What a channel has of its links says how fast they are, not which ones messages take."""
    found = call(system, "all_reduce", 2**20, nodes=nodes, algorithm="ring", protocol="Simple")
    network = channel(found).network
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
    together = channel(found).bandwidths[out] * alike / rated.bandwidths[out]
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


@pytest.mark.thorough
def test_two_racks_take_no_leap() -> None:
    """NCCL has NVLSTree between racks, too, so that no doubling of a size takes three times as long."""
    times = [call("gb200-nvl72", "all_reduce", 2**power, nodes=2) for power in range(20, 34)]
    assert {channel(found).call.algorithm for found in times} == {"nvls_tree"}
    assert all(after.time_ps < 2.02 * before.time_ps for before, after in itertools.pairwise(times))


@pytest.mark.parametrize(("system", "gpus"), [("gb200-nvl72", 72), ("hgx-h100", 8), ("hgx-h100", 4)])
def test_two_domains_wait_for_flags_as_long_as_one(system: str, gpus: int) -> None:
    """A hop of NVLS waits for flags of all heads, whose number differs; NVLSTree does so on its way to the switches and
    back, and hops for one head come to that. So a slower hop costs two domains more than it costs one, however many
    GPUs these have."""
    slower = {}
    for nodes, algorithm in ((1, "nvls"), (2, "nvls_tree")):
        how = {"nodes": nodes, "placement": {"per_node": gpus}, "algorithm": algorithm}
        times = [call(system, "all_reduce", 1024, changed("NVLS", hop=hop * 10**6), **how).time_ps for hop in (10, 11)]
        slower[nodes] = (times[1] - times[0]) / 1e6
    assert slower[1] < slower[2]
    assert slower[1] == pytest.approx(2 * min(32, gpus) / 8, rel=0.01)


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
    assert row(call("dgx1-v100", "all_reduce", 4 << 20, profile="nccl-volta"))["confidence"] == "calibrated"
    near = row(call("mi300x", "all_gather", 8 << 30, profile="rccl-cdna3", nodes=2))
    for each in (*rows, near):
        assert each["lower_bound_us"] <= each["low_us"] <= each["median_low_us"] <= each["time_us"]
    assert near["lower_bound_us"] == near["low_us"]


CARRYING = (
    *((collective, "ring") for collective in ("all_reduce", "all_gather")),
    *(("all_reduce", "tree"), ("all_to_all", "auto"), ("gather", "auto"), ("scatter", "auto")),
)


@pytest.mark.parametrize("system", [name for name in WITH_GPUS if name != "gb200-nvl72"])
@pytest.mark.parametrize("nodes", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_no_link_is_busy_for_longer_than_a_call_runs(system: str, nodes: int) -> None:
    """Of a ring's channels those that leave a node at a GPU are not counted on its links to other GPUs; links that
    stand for those of other channels carry nothing else; messages point to point stay below what a link is rated."""
    for collective, algorithm in CARRYING if load_system(system).nic or nodes == 1 else ():
        found = simcoll_api.predict(collective, on=system, nodes=nodes, algorithm=algorithm, size="1 GiB")
        assert 0.01 < found.busy.max() <= 1, (collective, algorithm)
        if algorithm == "auto":
            carry = found.planned[0].lowered.capacities  # whose numbers are its own where data go through a host
            assert (found.totals.carried / carry <= found.time_ps / 1e12).all(), collective


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 8), (2, 2), (4, 16), (4, 6)])
def test_nodes_without_a_rank_change_nothing(nodes: int, ranks: int) -> None:
    """Ranks that fill node after node leave nodes idle: the same answer as without these, the same trust in it, and a
    note that says so, whose cure spreads the ranks."""
    asked = {"collective": "all_reduce", "size": "1 MiB", "ranks": ranks, "nodes": nodes}
    needed = -(-ranks // 8)
    (row,), (alone,) = (simcoll_api.run(on="hgx-h100", **{**asked, "nodes": each}) for each in (nodes, needed))
    columns = ("nodes", "time_us", "low_us", "high_us", "confidence", "algorithm", "protocol")
    assert [row[name] for name in columns] == [alone[name] for name in columns]
    stand = f"{ranks} ranks stand on {needed} of the {nodes} nodes"
    spread = f"; `placement: {{per_node: {ranks // nodes}}}` spreads them" if ranks % nodes == 0 else ""
    assert simcoll_api.run(on="hgx-h100", **asked).notes == [stand + spread]
    if spread:
        spread_out = simcoll_api.run(on="hgx-h100", placement={"per_node": ranks // nodes}, **asked)
        assert spread_out.notes == [] and spread_out["nodes"] == [nodes]
