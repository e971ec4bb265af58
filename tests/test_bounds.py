"""Nothing beats the lower bounds, and what theory calls optimal comes near them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import ENTRIES, GB_PER_S, RANKS_ONLY, Own, devices, full_mesh, makespan, schedule, star, two_level

from simcoll.analysis.bounds import lower_bound_ps
from simcoll.topology import Link, Topology

LINK = Link(50 * GB_PER_S, 1000)
ITEM = 4
NETWORKS = {
    "star": {n: star(n, LINK) for n in (2, 3, 5, 8, 9)},
    "mesh": {n: full_mesh(n, LINK) for n in (2, 3, 5, 8, 9)},
    "tree": {n: two_level(n, LINK, 8) for n in (2, 3, 5, 8, 9)},
}
LARGE = 2**30


def serves(pair: tuple[str, str], network: str) -> bool:
    """Whether an algorithm runs there: only on a star a switch reaches everyone."""
    return network == "star" or pair in RANKS_ONLY


def least(name: str, topology: Topology, nbytes: int) -> int:
    """The lower bound of `collective/algorithm` on all hosts of a topology."""
    collective, _, algorithm = name.partition("/")
    plan = schedule(collective, algorithm, len(topology.ranks))
    return lower_bound_ps(plan, topology, devices(topology, plan), nbytes, ITEM)


@pytest.mark.parametrize(
    ("collective", "name", "network"), [(*pair, net) for pair in ENTRIES for net in NETWORKS if serves(pair, net)]
)
def test_nothing_beats_the_bound(collective: str, name: str, network: str) -> None:
    """No algorithm on any network is faster than the bound, which is never zero for two ranks or more."""
    for topology, nbytes in product(NETWORKS[network].values(), (ITEM, 4_004, 4_000_000)):
        bound = least(f"{collective}/{name}", topology, nbytes)
        assert bound > 0
        for sharing in ("fair", "fifo"):
            found = makespan(f"{collective}/{name}", topology, nbytes, itemsize=ITEM, sharing=sharing)
            assert found >= bound, (len(topology.ranks), nbytes, sharing)


def test_one_rank_needs_no_time() -> None:
    """Alone there is nothing to wait for."""
    for collective, name in ENTRIES:
        assert least(f"{collective}/{name}", star(1, LINK), 4000) == 0


@pytest.mark.parametrize(("network", "latency"), [("star", 2000), ("mesh", 1000), ("tree", 4000)])
def test_latency_bound(network: str, latency: int) -> None:
    """Without bytes the farthest rank whose data is needed decides: two links of 1 ns on a star, four over a spine."""
    for collective, name in RANKS_ONLY:
        assert least(f"{collective}/{name}", NETWORKS[network][2], 0) == latency


BY_HAND = [
    # collective/algorithm, network of 8 ranks, ps for 1 GiB: bytes that must cross over B/s of the cut
    ("all_reduce/ring", "star", 2 * 7 * LARGE * 20 // 8),  # 2(n−1) transmissions over n links
    ("all_reduce/nvls", "star", LARGE * 20),  # with a switch that reduces every byte goes up once
    ("all_reduce/ring", "tree", LARGE * 40),  # every byte passes the trunk, half as fast as a link, once
    ("all_gather/ring", "star", 7 * LARGE * 20 // 8),  # 7 of 8 blocks must come in
    ("all_gather/ring", "tree", 4 * LARGE * 40 // 8),  # 4 of 8 blocks must pass the trunk
    ("reduce_scatter/ring", "star", 7 * LARGE * 20 // 8),
    ("all_to_all/direct", "star", 7 * LARGE * 20 // 8),
    ("all_to_all/direct", "tree", 4 * LARGE * 40 // 2),  # 4 hosts send half their buffers over it
    ("broadcast/chain", "star", LARGE * 20),  # every byte leaves the root once
    ("broadcast/chain", "mesh", LARGE * 20 // 7),  # over 7 links
    ("reduce/chain", "star", LARGE * 20),
    ("gather/direct", "star", 7 * LARGE * 20 // 8),
    ("scatter/direct", "star", 7 * LARGE * 20 // 8),
    ("send_recv/ring", "star", LARGE * 20),
]


@pytest.mark.parametrize(("name", "network", "ps"), BY_HAND)
def test_bandwidth_bound_by_hand(name: str, network: str, ps: int) -> None:
    """The bytes that must cross the tightest cut, over its bandwidth: exact but for rounding."""
    assert abs(least(name, NETWORKS[network][8], LARGE) - ps) <= 1


TIGHT = [
    # collective/algorithm, network, ranks, chunk (0: whole)
    ("all_reduce/ring", "star", 8, 0),
    ("all_reduce/ring", "star", 9, 0),
    ("all_reduce/halving_doubling", "star", 8, 0),
    ("all_reduce/nvls", "star", 8, LARGE // 256),
    ("all_gather/ring", "star", 8, 0),
    ("all_gather/direct", "mesh", 2, 0),
    ("reduce_scatter/ring", "star", 8, 0),
    ("all_to_all/direct", "star", 8, 0),
    ("gather/direct", "star", 9, 0),
    ("scatter/direct", "star", 9, 0),
    ("broadcast/chain", "star", 5, LARGE // 512),
    ("reduce/chain", "star", 5, LARGE // 512),
    ("broadcast/chain", "mesh", 2, LARGE // 512),
    ("send_recv/direct", "tree", 2, 0),
]


@pytest.mark.parametrize("sharing", ["fair", "fifo"])
@pytest.mark.parametrize(("name", "network", "n", "chunk"), TIGHT)
def test_the_optimal_comes_near(name: str, network: str, n: int, chunk: int, sharing: str) -> None:
    """For a large buffer what theory calls optimal is within 1 % of the bound."""
    topology = NETWORKS[network][n]
    found = makespan(name, topology, LARGE, itemsize=ITEM, chunk=chunk, sharing=sharing)
    assert 1 <= found / least(name, topology, LARGE) < 1.01


@pytest.mark.parametrize("network", NETWORKS)
def test_the_latency_bound_is_met(network: str) -> None:
    """A message of one byte takes the latency of its route and what its slowest link takes for a byte."""
    topology, slowest = NETWORKS[network][2], 160 if network == "tree" else 20
    assert makespan("send_recv/direct", topology, 1, itemsize=1) == least("send_recv/direct", topology, 0) + slowest


bandwidths = st.integers(10**6, 10**12)
latencies = st.integers(0, 10**7)


def narrow(n: int, link: Link, own: Own | None = None) -> Topology:
    """A tree with half the bandwidth above."""
    return two_level(n, link, 2, own)


@st.composite
def unequal(draw: st.DrawFn) -> Topology:
    """Up to six ranks on a network in which every link is different."""
    make, n = draw(st.sampled_from([star, full_mesh, narrow])), draw(st.integers(2, 6))
    own = {ends: Link(draw(bandwidths), draw(latencies)) for ends in make(n, LINK).links}
    return make(n, LINK, own)


@given(unequal(), st.sampled_from(ENTRIES), st.integers(0, 10**6), st.sampled_from(["fair", "fifo"]))
@settings(max_examples=400)
def test_nothing_beats_the_bound_on_unequal_links(
    topology: Topology, entry: tuple[str, str], elements: int, sharing: str
) -> None:
    """The bound holds on any links."""
    name = "/".join(entry)
    assume(topology.agents or entry in RANKS_ONLY)
    found = makespan(name, topology, elements * ITEM, itemsize=ITEM, sharing=sharing)
    assert found >= least(name, topology, elements * ITEM)
