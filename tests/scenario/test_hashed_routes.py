"""Equal routes that connections draw anew: how loads are spread, against closed forms, and adaptive routing."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from workloads import CABLE, ddp

import simcoll
from simcoll.config import yaml_tree
from simcoll.engine.run import Policy, run
from simcoll.errors import InputError, Place
from simcoll.prediction.predict import predict
from simcoll.prediction.replications import part
from simcoll.prediction.sweep import run_point
from simcoll.scenario import caveats
from simcoll.scenario.hashed_routes import Rails, hashed
from simcoll.scenario.scenario_files import Point, points

SPINES = 4
LINK = "{bandwidth: 50 GB/s, latency: 1 us}"
TREE = f"topology={{fabric: fat-tree, hosts: 8, hosts_per_leaf: 4, spines: {SPINES}, link: {LINK}}}"
ACROSS = "placement=[host0, host4, host1, host5, host2, host6, host3, host7]"  # each sends to the other leaf
SHIFT = (
    "profile=one-port",
    TREE,
    ACROSS,
    "collective=send_recv",
    "algorithm=auto",
    "size=64 MiB",
    "model.sharing=fair",
)
SIZE = ("algorithm=auto", "size=1 GiB", "ranks=12")
PIECES = ("model.chunk=1 MiB", "model.channels=64", "model.sharing=fifo")
BOXES = "{system: hgx-h100, nodes: 6, nodes_per_leaf: 2, spines: 2}"
NCCL = (f"topology={BOXES}", "placement={per_node: 2}", "profile=nccl-hopper+ib-ndr", "collective=all_to_all")
RING = ("collective=all_gather", "algorithm=ring")
LEAVES = "{system: dgx-a100, fabric: fat-tree, levels: 2, nodes: 2, nodes_per_leaf: 1, spines: 8}"
ON_RING = {"collective": "all_reduce", "algorithm": "ring", "size": "256 MiB", "profile": "nccl-hopper"}
HERE = Place("test", 1, 1)


def asked(*sets: str) -> Point:
    """One point."""
    (point,) = simcoll.load("quickstart", list(sets))
    return point


def ran(*sets: str) -> Any:
    """The row of one point."""
    return run_point(asked(*sets))


def drawn(*sets: str, count: int, flows: int = 1) -> list[int]:
    """Times of so many runs, in ps."""
    point = asked(*sets, f"variability={{ecmp: {{flows: {flows}}}}}", f"replications={count}")
    times = part(Point(point.scenario, replicas=(0, count))).times_ps
    assert times
    return times["ecmp"]


def most(balls: int, bins: int) -> dict[int, float]:
    """The probability of each greatest number in a bin, of balls thrown at random, by counting all throws."""
    thrown = Counter(max(Counter(each).values()) for each in itertools.product(range(bins), repeat=balls))
    return {load: count / bins**balls for load, count in thrown.items()}


def test_the_greatest_load_has_its_closed_form() -> None:
    """Four connections each way over four spines: a run takes as many times as long as the fullest trunk has
    connections, and each number of these comes as often as when balls are thrown into bins."""
    count, alone = 250, predict(asked(*SHIFT, TREE.replace("spines: 4", "spines: 4, routing: adaptive"))).time_ps
    latency = 4 * 10**6
    times = drawn(*SHIFT, count=count)
    loads = Counter(round((time - latency) / (alone - latency)) for time in times)
    assert set(times) <= {latency + load * (alone - latency) for load in loads}
    up_to = list(itertools.accumulate(most(4, SPINES)[load] for load in (1, 2, 3, 4)))
    both = [(now**2 - before**2) * count for before, now in itertools.pairwise([0.0, *up_to])]  # of both directions
    assert sum((loads[load] - wanted) ** 2 / wanted for load, wanted in enumerate(both, 1)) < 16.3  # once in 1,000


@pytest.mark.parametrize("levels", ["levels: 2", "levels: 3, leaves_per_pod: 2"])
def test_adaptive_routing_is_one_spine_that_carries_what_all_do(levels: str) -> None:
    """It is as quick as one spine of that width, and no hash is quicker."""
    wide = f"fabric: fat-tree, {levels}, hosts: 8, hosts_per_leaf: 2, link: {LINK}"
    calls = [*SHIFT[:1], *SHIFT[3:], "ranks=8"]
    one, adaptive = (
        predict(asked(*calls, f"topology={{{wide}, {key}}}")).time_ps
        for key in ("spines: 1", "spines: 4, routing: adaptive")
    )
    assert one == adaptive
    times = drawn(*calls, f"topology={{{wide}, spines: 4}}", count=20)
    assert min(times) >= adaptive
    assert max(times) > adaptive


def test_more_connections_come_nearer_to_adaptive_routing() -> None:
    """Messages that take turns among more connections load the spines more evenly: the excess over adaptive routing
    falls about as the square root of their number."""
    least = predict(asked(*SHIFT, *PIECES, TREE.replace("spines: 4", "spines: 4, routing: adaptive"))).time_ps
    excess = [np.mean(drawn(*SHIFT, *PIECES, count=16, flows=flows)) - least for flows in (1, 8, 64)]
    for few, many in itertools.pairwise(excess):
        assert 1.5 < few / many < 6.0
    assert excess[0] / excess[-1] == pytest.approx(math.sqrt(64), rel=0.5)


def test_queue_pairs_spread_a_call_of_nccl() -> None:
    """On rails one connection of two NICs takes one spine; with four queue pairs it takes several."""
    one, four = (
        np.mean(drawn(*NCCL, *SIZE, f"env={env}", count=4)) for env in ("{}", "{NCCL_IB_QPS_PER_CONNECTION: 4}")
    )
    least = predict(asked(*NCCL, *SIZE, f"topology={BOXES[:-1]}, routing: adaptive}}")).time_ps
    assert one > 1.1 * least
    assert least < four < (one + least) / 2


@pytest.mark.parametrize("flows", [1, 3])
def test_a_program_with_drawn_routes_is_a_program(flows: int) -> None:
    """Ways lead where they led, carry the same bytes, and both engines agree to the picosecond."""
    prediction = predict(asked(*SHIFT, *PIECES, "size=8 MiB"))
    before = prediction.program
    program = hashed(before, prediction.topology, flows, np.random.default_rng(7))
    names = prediction.topology.links
    for i in range(len(program)):
        old, new = before.route(i), program.route(i)
        assert (names[old[0]][0], names[old[-1]][1]) == (names[new[0]][0], names[new[-1]][1])
        assert all(names[a][1] == names[b][0] for a, b in itertools.pairwise(new))
    assert program.wire_bytes == before.wire_bytes
    assert program.src.tolist() == before.src.tolist()
    fast, event = (run(program, Policy(engine=engine)) for engine in ("auto", "event"))
    assert fast.engine == "fast"
    assert fast.totals.makespan_ps == event.totals.makespan_ps
    assert fast.timeline.end.tolist() == event.timeline.end.tolist()


def test_routes_of_a_workload_are_drawn() -> None:
    """Calls of a step see links of their own, whose routes are drawn as well: no step is quicker than with adaptive
    routing."""
    tree = {"fabric": "fat-tree", "hosts": 4, "hosts_per_leaf": 2, "spines": 2, "link": CABLE}
    apart = ["host0", "host2", "host1", "host3"]  # neighbours of the ring are on different leaves
    keys: dict[str, Any] = {"workload": ddp(2), "profile": "one-port", "placement": apart}
    (adaptive,) = points(yaml_tree.located({**keys, "topology": {**tree, "routing": "adaptive"}}, HERE))
    varied = {**keys, "topology": tree, "variability": {"ecmp": {}}, "replications": 12}
    (point,) = points(yaml_tree.located(varied, HERE))
    times = (part(Point(point.scenario, replicas=(0, 12))).times_ps or {})["ecmp"]
    least = predict(adaptive.scenario).time_ps
    assert min(times) >= least
    assert max(times) > 1.2 * least


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((f"topology={{fabric: ring, hosts: 4, routing: adaptive, link: {LINK}}}",), "adaptive routing works with"),
        (("env={NCCL_IB_QPS_PER_CONNECTION: 4}",), "has an effect only with random ECMP routes"),
        (("env={NCCL_IB_QPS_PER_CONNECTION: 0}",), "write a number at least 1"),
        (("variability={ecmp: {flows: 0}}", "replications=5"), "write a number at least 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(sets: tuple[str, ...], words: str) -> None:
    """One error says why."""
    with pytest.raises(InputError, match=words):
        asked("profile=one-port", *sets)


def test_routes_that_are_not_hashed_are_not_drawn() -> None:
    """On a torus routes are fixed; calls in buckets are predicted one by one."""
    torus = f"topology={{fabric: torus, dims: [2, 4], hosts: 8, link: {LINK}}}"
    for sets, words in (
        ((torus,), "routing: shortest draws no routes"),
        ((TREE, "measure={buckets: 2}", "collective=all_reduce"), "leave out `ecmp` or `buckets`"),
    ):
        point = asked(
            "profile=one-port", "algorithm=auto", "size=1 MiB", "variability={ecmp: {}}", "replications=3", *sets
        )
        assert words in run_point(point)["status"]


def up_to(load: int, balls: int, bins: int) -> float:
    """The chance that no bin has more than `load` of balls thrown at random: by the exponential generating function."""
    ways = [1.0] + [0.0] * balls
    for _ in range(bins):
        ways = [sum(ways[n - k] / math.factorial(k) for k in range(min(load, n) + 1)) for n in range(balls + 1)]
    return ways[balls] * math.factorial(balls) / bins**balls


def test_rails_of_a_ring_meet_on_trunks_as_balls_in_bins() -> None:
    """Eight NICs of each of two nodes over eight spines: each further connection on the fullest trunk costs a NIC's
    bytes at the trunk's rate, and each number comes as often as balls fill bins."""
    count, nbytes = 200, 64 << 20
    sets = ("profile=nccl-ampere", f"topology={LEAVES}", *RING, "size=64 MiB", "protocol=Simple")
    times = drawn(*sets, count=count)
    more = nbytes * 15 / 16 / 8 / 25e9 * 1e12  # ps; trunks of 25 GB/s
    loads = Counter(2 + round((time - min(times)) / more) for time in times)
    steps = [(time - min(times)) / more for time in times]
    assert steps == pytest.approx([round(step) for step in steps], abs=1e-3)
    below = [up_to(load, 8, 8) ** 2 for load in range(1, 9)]  # of both directions
    wanted = {load: (below[load - 1] - below[load - 2]) * count for load in range(2, 9)}
    assert sum((loads[load] - wanted[load]) ** 2 / max(wanted[load], 1) for load in wanted) < 22.5  # once in 1,000
    assert min(times) > 1.3 * predict(asked(*sets)).time_ps


@pytest.mark.parametrize("nodes_per_leaf", [1, 2])
def test_rails_that_draw_are_a_program_that_engines_agree_on(nodes_per_leaf: int) -> None:
    """Trunks give each connection its share: no link is quicker, none but trunks changes. The event engine, the fast
    one, and that without shortcuts end at the same picosecond."""
    tree = LEAVES.replace("nodes: 2", "nodes: 4").replace("per_leaf: 1", f"per_leaf: {nodes_per_leaf}")
    prediction = predict(asked("profile=nccl-ampere", f"topology={tree}", *RING, "size=4 MiB"))
    before, topology = prediction.program, prediction.topology
    program = hashed(before, topology, 2, np.random.default_rng(3), [Rails(8)])
    slower = np.flatnonzero(program.bandwidths != before.bandwidths)
    assert len(slower)
    assert (program.bandwidths <= before.bandwidths).all()
    assert {topology.kinds[end] for link in slower for end in topology.links[link]} == {"switch"}
    policies = (Policy(), Policy(shortcuts=False), Policy(engine="event"))
    assert len({run(program, policy).totals.makespan_ps for policy in policies}) == 1


def test_draws_that_cannot_differ_are_refused() -> None:
    """Where no message has an equal route the key has no effect, which one error says."""
    for tree in ("{system: hgx-h100, nodes: 2}", LEAVES.replace("spines: 8", "routing: adaptive")):
        point = asked(f"topology={tree}", *RING, "size=1 MiB", "variability={ecmp: {}}", "replications=3")
        assert "no message has several equal routes" in run_point(point)["status"]


def test_draws_below_the_topology() -> None:
    """`topology.ecmp` is the same question as `variability.ecmp` with replications; its answer says what paths cost."""
    paths = TREE.replace("link:", "routing: ecmp, ecmp: {qps_per_connection: 2, draws: 30}, link:")
    row, other = ran(*SHIFT, paths), ran(*SHIFT, "variability={ecmp: {flows: 2}}", "replications=30")
    columns = ("time_us", "time_us_p50", "time_us_p95", "lower_bound_us")
    assert [row[each] for each in columns] == [other[each] for each in columns]
    even = predict(asked(*SHIFT, TREE.replace("link:", "routing: adaptive, link:"))).time_us
    assert row["even_paths_us"] == other["even_paths_us"] == even < row["time_us_p95"]


@pytest.mark.parametrize(("model", "noted"), [((), True), (PIECES, False)])
def test_queue_pairs_need_pieces(model: tuple[str, ...], noted: bool) -> None:
    """Where messages are whole, more queue pairs do not help, which a note says; pieces spread over them."""
    times = []
    for pairs in (1, 16):
        paths = f"routing: ecmp, ecmp: {{qps_per_connection: {pairs}, draws: 20}}, link:"
        point = asked(*SHIFT, *model, TREE.replace("link:", paths))
        times.append(run_point(point)["time_us_p50"])
    assert any("takes one queue pair" in note for note in caveats.notes([point])) == noted
    assert (times[1] < 0.9 * times[0]) != noted


@pytest.mark.parametrize("routing", ["ecmp", "rails"])
def test_no_draw_is_faster_than_evenly_spread_messages(routing: str) -> None:
    """Both have the same NICs, whichever routing chooses them; where no path costs anything, the answer says so."""
    tree = {"system": "hgx-h100", "nodes": 8, "fabric": "fat-tree", "spines": 8}
    found = simcoll.run({"topology": {**tree, "routing": routing, "ecmp": {"draws": 10}}, **ON_RING})
    assert found[0]["even_paths_us"] <= found[0]["time_us_p50"] <= found[0]["time_us_p95"]
    assert "over 0%" not in found.verdict


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_spraying_reaches_a_share(share: float) -> None:
    """With spraying of a share, trunks carry that share of what adaptive routing carries."""
    routed = [f"routing: adaptive, {key}link:" for key in ("", f"spraying: {share}, ")]
    whole, less = (predict(asked(*SHIFT, TREE.replace("link:", each))).time_ps - 4 * 10**6 for each in routed)
    assert less == pytest.approx(whole / share, rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("spraying: 0.9, link:", "'spraying' is what switches reach with routing: adaptive"),
        ("routing: adaptive, ecmp: {}, link:", "routing: adaptive draws no routes"),
        ("ecmp: {draws: 0}, link:", "topology.ecmp.draws"),
        ("ecmp: {draws: 1000000000}, link:", "topology.ecmp.draws"),
        ("ecmp: {qps_per_connection: 1000000000}, link:", "topology.ecmp.qps_per_connection"),
    ],
)
def test_paths_that_do_not_fit(keys: str, said: str) -> None:
    """Keys of paths that contradict each other are named, in one error."""
    with pytest.raises(InputError) as caught:
        asked(*SHIFT, TREE.replace("link:", keys))
    (mistake,) = caught.value.diagnostics
    assert said in str(mistake)


@pytest.mark.long
def test_a_permutation_of_many_hosts() -> None:
    """1,024 hosts send to each other across leaves: hashes take at least four times as long as spraying."""
    order = [f"host{i % 32 * 32 + i // 32}" for i in range(1024)]
    tree = "{fabric: fat-tree, hosts: 1024, hosts_per_leaf: 32, spines: 32, link: " + LINK
    keys = ("profile=one-port", "collective=send_recv", "algorithm=ring", "size=2 MiB", f"placement={order}")
    hashes = ran(*keys, f"topology={tree}, routing: ecmp, ecmp: {{draws: 20}}}}")
    sprayed = predict(asked(*keys, f"topology={tree}, routing: adaptive, spraying: 0.95}}"))
    assert hashes["time_us_p50"] > 4 * sprayed.time_us
