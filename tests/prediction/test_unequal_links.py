"""Machines whose links differ: every channel and copy that differs is simulated, and no answer is below its bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll import predict
from simcoll.errors import InputError, RefusedError
from simcoll.prediction.predict import row
from simcoll.prediction.predictions import Prediction

MACHINES = ("hgx-h100", "dgx-a100", "gh200-4", "mi300x", "rtx-4090", "dgx1-v100", "gb200-nvl72")
CALLS = [
    ("all_reduce", "ring"), ("all_reduce", "tree"), ("all_reduce", "nvls_tree"), ("all_reduce", "two_shot"),
    ("all_gather", "ring"), ("reduce_scatter", "ring"), ("broadcast", "ring"), ("reduce", "ring"),
    ("all_to_all", "auto"), ("gather", "auto"), ("scatter", "auto"), ("send_recv", "auto"),
]  # fmt: skip
PATTERNS = ("*nic1->*", "*->node0.nic0", "*gpu1->*", "*->*gpu0", "*->node1.*", "*nic*->rail*", "*")
FABRICS: list[dict[str, Any]] = [
    {"fabric": "single-switch", "hosts": 3},
    {"fabric": "fat-tree", "hosts": 8},
    {"fabric": "ring", "hosts": 5},
    {"fabric": "torus", "dims": [2, 3]},
]


def asked(on: dict[str, Any], collective: str, algorithm: str, size: str = "16 MiB", **more: Any) -> Prediction | None:
    """The prediction, whose time is not below its bound; None for a call or links that the machine does not have."""
    try:
        found = predict(collective, on=on, size=size, algorithm=algorithm, **more)
    except (InputError, RefusedError):
        return None
    assert found.time_ps >= found.lower_bound_ps
    return found


def took(*args: Any, **more: Any) -> int:
    """The predicted time in ps; 0 for a call that the machine does not have."""
    found = asked(*args, **more)
    return found.time_ps if found else 0


@pytest.mark.thorough
@settings(max_examples=40)
@given(
    st.sampled_from(MACHINES),
    st.integers(1, 3),
    st.sampled_from(CALLS),
    st.sampled_from(PATTERNS),
    st.sampled_from(["1 KiB", "1 MiB", "64 MiB"]),
    st.sampled_from(["bandwidth", "latency"]),
)
def test_worse_links_are_never_quicker(
    system: str, nodes: int, call: tuple[str, str], pattern: str, size: str, key: str
) -> None:
    """Law: with less bandwidth or more latency on any links no call is quicker, and none is below its bound."""
    values = ("10 GB/s", "1 GB/s") if key == "bandwidth" else ("20 us", "300 us")
    usual, bad, worse = (
        took({"system": system, "nodes": nodes, "links": links}, *call, size)
        for links in ({}, *({pattern: {key: value}} for value in values))
    )
    assert bad <= worse and (key == "bandwidth" or usual <= bad or not bad)


@pytest.mark.thorough
@settings(max_examples=25)
@given(
    st.sampled_from(FABRICS),
    st.sampled_from(["ideal", "one-port"]),
    st.sampled_from(
        [("all_reduce", "tree"), ("all_reduce", "ring"), ("broadcast", "binomial"), ("all_to_all", "direct")]
    ),
    st.dictionaries(
        st.sampled_from(["host0->*", "*->host1", "host2->*"]),
        st.sampled_from([{"bandwidth": "12.5 GB/s"}, {"bandwidth": "1 GB/s"}, {"latency": "100 us"}]),
    ),
)
def test_no_time_is_below_its_bound(
    fabric: dict[str, Any], profile: str, call: tuple[str, str], slow: dict[str, dict[str, str]]
) -> None:
    """Law: nor on hosts of which some have slow or late links."""
    link = {"bandwidth": "50 GB/s", "latency": "1 us"}
    assert took({**fabric, "link": link, "links": slow}, *call, profile=profile)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls_tree", "two_shot", "p2p"])
def test_the_latency_between_two_halves_counts(algorithm: str) -> None:
    """300 us from one half of a cluster to the other are felt by every algorithm that NCCL's kernels run."""
    how = {"executor": "p2p"} if algorithm == "p2p" else {}
    named = "two_shot" if algorithm == "p2p" else algorithm
    far = {"*->node1.nic*": {"latency": "300 us"}}
    near, late = (
        took({"system": "hgx-h100", "nodes": 2, "links": links}, "all_reduce", named, "64 KiB", **how)
        for links in ({}, far)
    )
    assert late > near + 299_000_000


@pytest.mark.parametrize("system", ["hgx-h100", "dgx-a100", "gh200-4", "gb200-nvl72", "dgx1-v100", "mi300x"])
@pytest.mark.parametrize("call", [each for each in CALLS if each[1] in ("ring", "tree")])
def test_one_channel_stands_for_its_equals(system: str, call: tuple[str, str]) -> None:
    """Law: if a link differs that no channel uses, all channels are simulated, and take as long."""
    unused = "node0.cpu0->node0.cpu1" if system != "mi300x" else "node0.pcie_switch0->node0.cpu0"
    one, every = (
        took({"system": system, "nodes": 2, "links": links}, *call, "1 MiB")
        for links in ({}, {unused: {"bandwidth": "7 GB/s"}})
    )
    assert one == every > 0


@pytest.mark.parametrize("call", [("all_gather", "ring"), ("all_reduce", "tree"), ("all_reduce", "nvls_tree")])
def test_the_slow_nic_is_named(call: tuple[str, str]) -> None:
    """Of eight NICs of a node the one that is slow is the busiest, and the others are as idle as they are."""
    links = {"node1.nic3->rail3": {"bandwidth": "5 GB/s"}}
    found = asked({"system": "hgx-h100", "nodes": 2, "links": links}, *call, "256 MiB")
    assert found and row(found).binding_link == "node1.nic3->rail3"
    busy = dict(zip(found.links.names, found.busy, strict=True))
    assert 0 < busy["node1.nic2->rail2"] < 0.2 < 0.8 < busy["node1.nic3->rail3"]


@pytest.mark.parametrize("gpu", [0, 3, 7])
def test_a_slow_nvlink_is_felt_wherever_it_is(gpu: int) -> None:
    """The channel of another NIC enters a node elsewhere: together they use the links of every GPU."""
    links = {f"node0.gpu{gpu}->node0.nvswitch0": {"bandwidth": "20 GB/s"}}
    on = {"system": "hgx-h100", "nodes": 2}
    assert took({**on, "links": links}, "all_gather", "ring", "256 MiB") > 3 * took(on, "all_gather", "ring", "256 MiB")


def test_a_copy_does_not_stand_for_copies_on_other_links() -> None:
    """At best, each GPU of a tree still sends its whole buffer: over the one slow link that takes 64 MiB / 50 GB/s."""
    on = {"system": "gb200-nvl72", "links": {"node0.gpu3->*": {"bandwidth": "50 GB/s"}}}
    assert took(on, "all_reduce", "tree", "64 MiB", ranks=4, profile="ideal") >= 64 * 2**20 * 20
