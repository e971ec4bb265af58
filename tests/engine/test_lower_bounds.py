"""Nothing beats the lower bounds, and what theory calls optimal comes near them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import ENTRIES, GB_PER_S, RANKS_ONLY, Own, devices, full_mesh, makespan, schedule, star, two_level

from simcoll.engine import event
from simcoll.engine.binding import bind
from simcoll.engine.lower_bounds import lower_bound_ps
from simcoll.engine.timing_model import Params
from simcoll.schedule.algorithms import build
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.schedule.schedule import Schedule
from simcoll.schedule.side_by_side import joined
from simcoll.topology.graph import Link, Topology

LINK = Link(50 * GB_PER_S, latency_ps=1000)
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
    for n, nbytes in ((2, ITEM), (3, 4_000_000), (8, ITEM), (8, 4_000_000)):
        topology = NETWORKS[network][n]
        bound = least(f"{collective}/{name}", topology, nbytes)
        assert bound > 0
        for sharing in ("fair", "fifo"):
            found = makespan(f"{collective}/{name}", topology, nbytes, itemsize=ITEM, sharing=sharing)
            assert found >= bound, (n, nbytes, sharing)


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
    ("reduce_scatter/ring", "tree", 4 * LARGE * 40 // 8),
    ("all_to_all/direct", "star", 7 * LARGE * 20 // 8),
    ("all_to_all/direct", "tree", 4 * LARGE * 40 // 2),  # 4 hosts send half their buffers over it
    ("broadcast/chain", "star", LARGE * 20),  # every byte leaves the root once
    ("broadcast/chain", "mesh", LARGE * 20 // 7),  # over 7 links
    ("reduce/chain", "star", LARGE * 20),
    ("reduce/chain", "tree", LARGE * 40),
    ("gather/direct", "star", 7 * LARGE * 20 // 8),
    ("gather/direct", "tree", 4 * LARGE * 40 // 8),  # 4 blocks pass the trunk in more time than 7 the cable
    ("scatter/direct", "star", 7 * LARGE * 20 // 8),
    ("scatter/direct", "tree", 4 * LARGE * 40 // 8),
    ("send_recv/ring", "star", LARGE * 20),
    ("send_recv/ring", "tree", LARGE * 20),  # the next rank is under the same leaf
]


@pytest.mark.parametrize(("name", "network", "ps"), BY_HAND)
def test_bandwidth_bound_by_hand(name: str, network: str, ps: int) -> None:
    """The bytes that must cross the tightest cut, over its bandwidth: exact but for rounding."""
    assert abs(least(name, NETWORKS[network][8], LARGE) - ps) <= 1


@pytest.mark.parametrize(("distance", "ps"), [(0, 0), (1, LARGE * 40), (4, 4 * LARGE * 40)])
def test_what_stays_below_a_switch_does_not_cross(distance: int, ps: int) -> None:
    """All_to_all by weights, each rank's buffer for the rank `distance` on: one of 8, or all, must pass the trunk."""
    topology, plan = NETWORKS["tree"][8], schedule("all_to_all", "direct", 8)
    weights = [[int((src + distance) % 8 == dst) for dst in range(8)] for src in range(8)]
    found = lower_bound_ps(plan, topology, devices(topology, plan), LARGE, ITEM, weights)
    assert abs(found - max(ps, least("all_to_all/direct", topology, 0))) <= 1


def test_a_rank_alone_on_a_slow_cable_decides() -> None:
    """Every rank is cut out alone, whatever the others have: an all-reduce waits for the slowest cable."""
    slow = {("h3", "switch"): Link(GB_PER_S, latency_ps=1000)}
    assert abs(least("all_reduce/ring", star(8, LINK, slow), LARGE) - LARGE * 1000) <= 1


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
def unequal(draw: st.DrawFn, n: int) -> Topology:
    """A network of n hosts in which every link is different."""
    make = draw(st.sampled_from([star, full_mesh, narrow]))
    own = {ends: Link(draw(bandwidths), latency_ps=draw(latencies)) for ends in make(n, LINK).links}
    return make(n, LINK, own)


@st.composite
def plans(draw: st.DrawFn) -> Schedule:
    """Any algorithm with any root; perhaps two groups of ranks that do the same side by side."""
    (collective, name), n = draw(st.sampled_from(ENTRIES)), draw(st.integers(2, 5))
    root = draw(st.integers(0, n - 1)) if COLLECTIVES[collective].rooted else 0
    plan = build(collective, name, n, root=root, agents=1)
    if plan.agents or draw(st.booleans()):
        return plan
    order = draw(st.permutations(range(2 * n)))
    return joined([plan.on(order[:n], 2 * n), plan.on(order[n:], 2 * n)])


@pytest.mark.thorough
@given(plans(), st.data())
@settings(max_examples=90)
def test_nothing_beats_the_bound_on_unequal_links(plan: Schedule, data: st.DataObject) -> None:
    """The bound holds on any links, for any root, groups, weights, loops and channels."""
    topology, nbytes = data.draw(unequal(plan.n)), ITEM * data.draw(st.integers(0, 10**6))
    assume(topology.agents or not plan.agents)
    places, blocks, weights = devices(topology, plan), COLLECTIVES[plan.collective].blocks(len(plan.groups[0])), None
    if blocks > 1 and data.draw(st.booleans()):
        weights = data.draw(st.lists(st.integers(0, 5), min_size=blocks, max_size=blocks).filter(any))
    params = Params(
        sharing=data.draw(st.sampled_from(["fair", "fifo"])),
        channels=data.draw(st.integers(1, 3)),
        chunk=data.draw(st.sampled_from([0, nbytes // 5 + ITEM])),
    )
    found = event.run(bind(plan, topology, places, params, nbytes, itemsize=ITEM, weights=weights)).makespan_ps
    assert found >= lower_bound_ps(plan, topology, places, nbytes, ITEM, weights)
