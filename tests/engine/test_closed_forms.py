"""The engine gives what a formula on paper gives, to the picosecond.

Numbers are chosen to be checked by hand: 50 GB/s are 20 ps a byte, 60 GB/s 600 bytes in 10 ns. σ is the service time
of a message on one link, λ the latency of a link, α that of a route.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import (
    ENTRIES,
    GB_PER_S,
    RANKS_ONLY,
    Own,
    full_mesh,
    grid,
    makespan,
    program,
    schedule,
    star,
    timeline,
    two_level,
)

from simcoll.engine import event, fast
from simcoll.engine.binding import bind
from simcoll.engine.timing_model import Params, service_ps
from simcoll.schedule.algorithms import build
from simcoll.schedule.registry import ALGORITHMS
from simcoll.topology.graph import Link, Topology

SHARINGS = ("fair", "fifo")
BETA = 20  # ps/B
M, SIGMA, ALPHA = 1000, 20_000, 1000  # a message of 1000 B takes 20 ns, and the latency of a link is 1 ns
LINK = Link(50 * GB_PER_S, latency_ps=ALPHA)
PRICED = [pair for pair in ENTRIES if ALGORITHMS[pair[0]][pair[1]].cost]
COLUMNS = ("start", "sent", "arrive", "end", "complete", "hop_begin", "hop_end")
MIXES = [(1, 4000), (1_000_000, 4), (20_000, 1000)]  # α in ps, bytes a rank
PERFECT = (2, 3, 5, 6, 9, 11)  # ranks whose n − 1 divides 60 GB/s, so that fair shares of a root's link are exact

both_sharings = pytest.mark.parametrize("sharing", SHARINGS)


def price(collective: str, name: str, **of: int) -> int:
    """The registry's own formula."""
    return int(eval(ALGORITHMS[collective][name].cost, {"log2": lambda x: x.bit_length() - 1}, of))


@cache
def mesh(n: int, alpha: int) -> Topology:
    """A full mesh, whose ways are searched for once."""
    return full_mesh(n, Link(50 * GB_PER_S, latency_ps=alpha))


@both_sharings
@pytest.mark.parametrize(("collective", "name"), PRICED)
def test_registered_cost(collective: str, name: str, sharing: str) -> None:
    """On a full mesh every algorithm takes what its closed form says, wherever that is claimed to hold."""
    sizes = filter(ALGORITHMS[collective][name].cost_for, (*range(1, 10), 16))
    for n, (alpha, each) in product(sizes, MIXES):
        found = makespan(f"{collective}/{name}", mesh(n, alpha), n * each, sharing=sharing)
        assert found == (price(collective, name, n=n, alpha=alpha, beta=BETA, m=n * each) if n > 1 else 0), (n, alpha)


def test_most_algorithms_are_priced() -> None:
    """The closed forms cover at least one algorithm of every collective."""
    assert {collective for collective, _ in PRICED} == set(ALGORITHMS)


# --- points to be checked by hand ---

NETWORKS: dict[str, Callable[[int, Link], Topology]] = {
    "mesh": full_mesh,
    "star": star,
    "4:1 tree": lambda n, link: two_level(n, link, 4),
}
POINTS = [
    # algorithm, network, ranks, bytes, GB/s, ps a link -> ps
    ("all_reduce/naive", "star", 3, 600, 60, 1000, 44_000),  # 4·1000 + 2·2·10 000
    ("all_reduce/recursive_multiplying", "mesh", 16, 1000, 50, 1000, 122_000),  # 2 (1000 + 3·20 000)
    ("all_reduce/recursive_multiplying(ports=7)", "mesh", 6, 1000, 50, 1000, 101_000),  # all pairs: 1000 + 5·20 000
    ("all_reduce/swing(ports=one)", "mesh", 2, 2000, 50, 1000, 42_000),  # halves there and back: 2 (1000 + 20 000)
    ("all_reduce/recursive_doubling", "mesh", 8, 1000, 50, 1000, 63_000),  # 3 (1000 + 20 000)
    (
        "all_reduce/recursive_doubling",
        "mesh",
        5,
        1000,
        50,
        1000,
        82_000,
    ),  # fold; then rank 1 never pauses: 21 000 + 3·20 000 + 1000
    ("all_reduce/tree", "star", 3, 600, 60, 1000, 44_000),  # two children share the root's link up: 2·2000 + 2·20 000
    ("all_reduce/nvls", "star", 4, 1000, 50, 1000, 42_000),  # one link up, one link down
    ("broadcast/chain", "mesh", 3, 0, 50, 1000, 2002),  # nothing takes 1 ps
    ("broadcast/binomial", "mesh", 8, 1000, 50, 1000, 63_000),  # 3 (1000 + 20 000)
    ("broadcast/binomial", "mesh", 6, 1000, 50, 1000, 62_000),  # 0→4, then 0→2, 2→3: 20 000 + 2·21 000
    ("broadcast/naive", "star", 5, 1000, 50, 1000, 82_000),  # 2000 + 4·20 000
    ("reduce/naive", "star", 5, 1000, 50, 1000, 82_000),  # all through one link
    ("reduce/binomial", "mesh", 5, 1000, 50, 1000, 42_000),  # 4→0 does not wait for the others
    ("all_gather/ring", "mesh", 3, 1000, 50, 1000, 15_360),  # the block of 334 B goes around: 2 (1000 + 6680)
    ("all_gather/direct", "star", 4, 4000, 50, 1000, 62_000),  # 2000 + 3·20 000
    ("all_gather/bruck", "mesh", 4, 4000, 50, 1000, 62_000),  # one block, then two: 2·1000 + 3·20 000
    ("all_gather/bruck(ports=2)", "mesh", 9, 9000, 50, 1000, 162_000),  # two times 1 block, then 3: 2·1000 + 8·20 000
    ("all_gather/bruck(ports=2)", "mesh", 9, 9, 50, 1000, 2160),  # 2·1000 + 8·20
    ("all_gather/pat", "mesh", 8, 8000, 50, 1000, 143_000),  # 3·1000 + 7·20 000
    ("all_gather/pat", "mesh", 8, 8, 50, 1000, 3140),  # 3·1000 + 7·20
    ("all_gather/pat(aggregation=1)", "mesh", 4, 4000, 50, 1000, 62_000),  # 20 000 + 2 (20 000 + 1000)
    ("reduce_scatter/pat", "mesh", 4, 4000, 50, 1000, 62_000),  # all-gather's time, run backwards
    ("gather/direct", "star", 3, 1800, 60, 1000, 22_000),  # all through one link: 2000 + 2·10 000
    ("barrier/dissemination", "mesh", 8, 8, 50, 1000, 3480),  # 3 (1000 + 160)
    ("send_recv/direct", "star", 2, 1000, 50, 1000, 22_000),  # cut through: 2·1000 + 20 000
    ("send_recv/direct", "4:1 tree", 2, 1000, 50, 1000, 84_000),  # 4·1000 + 80 000 on the trunk of 12.5 GB/s
]


@pytest.mark.parametrize(("name", "network", "n", "nbytes", "gb_per_s", "latency", "ps"), POINTS)
def test_by_hand(name: str, network: str, n: int, nbytes: int, gb_per_s: int, latency: int, ps: int) -> None:
    """A point worked out on paper."""
    for sharing in SHARINGS:
        links = NETWORKS[network](n, Link(gb_per_s * GB_PER_S, latency_ps=latency))
        assert makespan(name, links, nbytes, sharing=sharing) == ps, sharing


@both_sharings
def test_rounding(sharing: str) -> None:
    """Service is rounded up to whole picoseconds, and no latency is taken as 1 ps: 7 B at 3 B/s."""
    assert (
        makespan("send_recv/direct", full_mesh(2, Link(3, latency_ps=0)), 7, sharing=sharing) == 2_333_333_333_334 + 1
    )


def test_rounding_of_a_share() -> None:
    """So is the due time of a flow that shares: two of 1 B at 1.5 B/s each."""
    assert makespan("reduce/naive", star(3, Link(3, latency_ps=0)), 1, sharing="fair") == 666_666_666_667 + 2


@pytest.mark.parametrize(("sharing", "ends"), [("fair", [17_000, 22_000]), ("fifo", [12_000, 22_000])])
def test_a_flow_that_comes_later(sharing: str, ends: list[int]) -> None:
    """Two messages of 10 ns to one root, the second 5 ns later: in fair the first has half its bytes left and then half
    the bandwidth, 15 ns, when the second is half done: 20 ns; in fifo the second waits. On top come two latencies."""
    played = program(
        "reduce/naive", star(3, Link(60 * GB_PER_S, latency_ps=ALPHA)), 600, sharing=sharing, arrivals={2: 5000}
    )
    assert event.run(played).end.tolist() == ends


# --- two links a route ---


FORMS: dict[str, tuple[Sequence[int], int, Callable[[int], int]]] = {
    # algorithm: ranks; buffer in M bytes (0: n of them); ps
    "all_reduce/ring": (range(2, 12), 0, lambda n: 2 * (n - 1) * (2 * ALPHA + SIGMA)),
    "all_reduce/recursive_doubling": ((2, 4, 8, 16), 1, lambda n: (n.bit_length() - 1) * (2 * ALPHA + SIGMA)),
    "broadcast/chain": (range(2, 8), 1, lambda n: (n - 1) * (2 * ALPHA + SIGMA)),
    "reduce/chain": (range(2, 8), 1, lambda n: (n - 1) * (2 * ALPHA + SIGMA)),
    "all_reduce/two_shot": (range(2, 12), 0, lambda n: 2 * (2 * ALPHA + (n - 1) * SIGMA)),  # everyone in another turn
    **{  # each round is all pairs among k + 1 ranks
        f"all_reduce/recursive_multiplying(ports={k})": (
            [(k + 1) ** rounds for rounds in range(1, most + 1)],
            1,
            lambda n, k=k: round(math.log(n, k + 1)) * (2 * ALPHA + k * SIGMA),
        )
        for k, most in ((1, 3), (2, 2), (3, 2), (7, 1))
    },
}


@both_sharings
@pytest.mark.parametrize("name", FORMS)
def test_forms_on_a_star(name: str, sharing: str) -> None:
    """Steps cross two links cut-through, λ + λ + σ, in which messages never meet."""
    ranks, times, form = FORMS[name]
    for n in ranks:
        assert makespan(name, star(n, LINK), (times or n) * M, sharing=sharing) == form(n), n


@pytest.mark.parametrize("n", range(2, 12))
def test_naive_on_a_star(n: int) -> None:
    """The root's link carries n−1 buffers in and n−1 out, one after another in fifo: 4λ + 2(n−1)σ."""
    assert makespan("all_reduce/naive", star(n, LINK), M, sharing="fifo") == 4 * ALPHA + 2 * (n - 1) * SIGMA


@pytest.mark.parametrize("n", range(2, 12))
def test_naive_on_a_fair_star(n: int) -> None:
    """In fair all n−1 end at once, and at the same time: exactly where the share is a whole number of B/s, and else at
    most the 1 ps later to which a due time is rounded up."""
    found = makespan("all_reduce/naive", star(n, Link(60 * GB_PER_S, latency_ps=ALPHA)), 600, sharing="fair")
    late = found - (4 * ALPHA + 2 * (n - 1) * 10_000)
    assert late == 0 if n in PERFECT else late in (0, 1)


# --- tori and meshes: a channel for each neighbour, a barrier between steps ---


def on_grid_ps(name: str, dims: Sequence[int], nbytes: int, wraps: bool, sharing: str) -> int:
    """How long it takes in the dimensions of the network. Large ones take the event engine ten seconds: they are
    run by the fast one, which equals it by `==` (test_engine.py)."""
    network, (collective, algorithm) = grid(dims, LINK, wraps), name.split("/")
    plan = build(collective, algorithm, len(network.ranks), groups=network.default_groups(network.ranks))
    params = Params(sharing=sharing, channels=0, barrier=True)  # type: ignore[arg-type]  # one of SHARINGS
    played = bind(plan, network, network.ranks, params, nbytes)
    if len(network.ranks) <= 16:
        return event.run(played).makespan_ps
    return fast.run(played, compiled=False).makespan_ps


@both_sharings
@pytest.mark.parametrize("wraps", [True, False])
@pytest.mark.parametrize(
    ("collective", "halves", "dims"),
    [("all_reduce", 2, dims) for dims in ((3,), (5,), (3, 3), (4, 4), (3, 3, 3))]
    + [(half, 1, dims) for half in ("reduce_scatter", "all_gather") for dims in ((5,), (3, 3))],
)
def test_rings_by_dimension(collective: str, halves: int, dims: tuple[int, ...], wraps: bool, sharing: str) -> None:
    """D sides of k, half an all_reduce: D(k−1)λ + β m (n−1)/(nD)/2 on a torus, where all 2D links of a rank are busy.

    On a mesh a ring closes over the k−1 links of its line, which each carry two messages.
    """
    n, sides, k = k_to_the(dims)
    hops, together = (1, 1) if wraps else (k - 1, 2)
    nbytes = n * 2 * sides * M
    moved = together * BETA * nbytes * (n - 1) // (n * sides * 2)
    found = on_grid_ps(f"{collective}/ring_by_dimension", dims, nbytes, wraps, sharing)
    assert found == halves * (sides * (k - 1) * hops * ALPHA + moved)


@pytest.mark.parametrize("dims", [(4,), (8,), (16,), (4, 4), (8, 8), (4, 4, 4)])
def test_swing_on_a_torus(dims: tuple[int, ...]) -> None:
    """Step s goes δ = |Σ (−2)^i, i ≤ ⌊s/D⌋| far, and δ messages of m/(2D·2^(s+1)) share each link: twice the sum of
    δ (λ + β m/(2D·2^(s+1))) over log2 n steps."""
    n, sides, _ = k_to_the(dims)
    nbytes = n * 2 * sides * M
    far = [abs(sum((-2) ** i for i in range(s // sides + 1))) for s in range(n.bit_length() - 1)]
    half = sum(d * (ALPHA + BETA * nbytes // (2 * sides) // 2 ** (s + 1)) for s, d in enumerate(far))
    assert on_grid_ps("all_reduce/swing", dims, nbytes, True, "fair") == 2 * half


def k_to_the(dims: Sequence[int]) -> tuple[int, int, int]:
    """Ranks, number of sides, and the length of a side."""
    return math.prod(dims), len(dims), dims[0]


# --- trees ---


def children(node: int, n: int) -> list[int]:
    """In the tree that a binary heap is."""
    return [child for child in (2 * node + 1, 2 * node + 2) if child < n]


def up_ps(node: int, n: int, behind: int, sigma: int, before: int) -> int:
    """When `node` has the sum of its subtree: its children share one server, `before` it and `behind` it a latency."""
    free = ready = 0
    for head in sorted(up_ps(child, n, behind, sigma, before) + before for child in children(node, n)):
        free = max(head, free) + sigma
        ready = free + behind
    return ready


def down_ps(node: int, n: int, now: int, sigma: int, alpha: int) -> int:
    """When the last rank below `node` has what `node` has `now`: it sends to its children in turn."""
    there = [now + (turn + 1) * sigma + alpha for turn in range(len(children(node, n)))]
    return max([now, *(down_ps(c, n, t, sigma, alpha) for c, t in zip(children(node, n), there, strict=True))])


@pytest.mark.parametrize("name", ["all_reduce/tree", "barrier/tree"])
@pytest.mark.parametrize("n", range(1, 24))
def test_tree_on_a_star(name: str, n: int) -> None:
    """Going up, siblings queue for their parent's link; going down, the parent's channel serves them in turn."""
    up = up_ps(0, n, ALPHA, SIGMA, ALPHA)
    assert makespan(name, star(n, LINK), M, sharing="fifo") == down_ps(0, n, up, SIGMA, 2 * ALPHA)


@both_sharings
@pytest.mark.parametrize("n", range(1, 24))
def test_tree_on_a_mesh(n: int, sharing: str) -> None:
    """Where siblings have links of their own, a subtree is up as soon as its slower child is."""

    def up(node: int) -> int:
        return max((up(child) + SIGMA + ALPHA for child in children(node, n)), default=0)

    assert makespan("all_reduce/tree", full_mesh(n, LINK), M, sharing=sharing) == down_ps(0, n, up(0), SIGMA, ALPHA)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_siblings_share_fairly(levels: int) -> None:
    """Two siblings that come together take as long in fair as one after the other: 4 (λ + σ) a level."""
    assert makespan("all_reduce/tree", star(2 ** (levels + 1) - 1, LINK), M) == levels * 4 * (ALPHA + SIGMA)


# --- unequal links ---


def around_the_ring_ps(links: list[Link], steps: int, nbytes: int) -> int:
    """Step s of rank r starts when the chunk of step s − 1 is there from rank r − 1 and its own last one is sent."""
    n = len(links)
    there = sent = [0] * n
    for _ in range(steps):
        sent = [max(there[r], sent[r]) + service_ps(nbytes, links[r].bandwidth) for r in range(n)]
        there = [sent[r - 1] + links[r - 1].latency_ps for r in range(n)]
    return max(there)


def ring_of(links: list[Link]) -> Topology:
    """A full mesh in which the link from rank r to the next is `links[r]`."""
    n = len(links)
    own: Own = {(f"h{r}", f"h{(r + 1) % n}"): link for r, link in enumerate(links)}
    return full_mesh(n, LINK, own)


@both_sharings
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_one_slow_link(n: int, sharing: str) -> None:
    """A link at a tenth of the speed holds up everyone: all but the latencies of 2(n−1) steps at its pace."""
    links = [Link(5 * GB_PER_S, latency_ps=ALPHA), *[LINK] * (n - 1)]
    found = makespan("all_reduce/ring", ring_of(links), n * M, sharing=sharing)
    assert found == around_the_ring_ps(links, 2 * (n - 1), M)
    assert found >= 2 * (n - 1) * 10 * SIGMA


# At 10 B/s sixteen steps of 1 MB take 19 days; the clock runs for 53.
unequal = st.lists(
    st.builds(Link, st.integers(10, 400 * GB_PER_S), latency_ps=st.integers(0, 10**7)), min_size=2, max_size=9
)


@pytest.mark.thorough
@given(
    unequal,
    st.sampled_from(SHARINGS),
    st.integers(0, 10**6),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
)
def test_a_ring_of_unequal_links(links: list[Link], sharing: str, nbytes: int, name: str) -> None:
    """A ring over any links takes what the recursion over (rank, step) takes."""
    n = len(links)
    found = makespan(f"{name}/ring", ring_of(links), n * nbytes, sharing=sharing)
    assert found == around_the_ring_ps(links, (1 + (name == "all_reduce")) * (n - 1), nbytes)


# --- loops ---


@both_sharings
@pytest.mark.parametrize(("n", "loops"), [(2, 1), (2, 7), (3, 2), (5, 3), (5, 7), (8, 2)])
def test_ring_loops_follow_each_other(n: int, loops: int, sharing: str) -> None:
    """A loop of a ring begins when the last message of the loop before is sent: only its latency is hidden."""
    for network, alpha in ((full_mesh(n, LINK), ALPHA), (star(n, LINK), 2 * ALPHA)):
        found = makespan("all_reduce/ring", network, n * loops * M, chunk=M, sharing=sharing)
        assert found == loops * 2 * (n - 1) * (SIGMA + alpha) - (loops - 1) * alpha


@both_sharings
@pytest.mark.parametrize("name", ["broadcast/chain", "reduce/chain"])
@pytest.mark.parametrize(("n", "loops"), list(product([2, 3, 5, 8], [1, 2, 3, 7])))
def test_chain_loops_overlap(name: str, n: int, loops: int, sharing: str) -> None:
    """A chain of depth d = n−1 pipelines k loops: (d + k − 1)σ + dα."""
    found = makespan(name, full_mesh(n, LINK), loops * M, chunk=M, sharing=sharing)
    assert found == (n - 1 + loops - 1) * SIGMA + (n - 1) * ALPHA


@pytest.mark.parametrize("last", [1, 10, 999])
def test_the_last_loop_may_be_short(last: int) -> None:
    """What is left over goes as a shorter chunk behind the full ones, which it saves the difference at the end."""
    found = makespan("broadcast/chain", full_mesh(5, LINK), 3 * M + last, chunk=M)
    assert found == (4 + 4 - 1) * SIGMA + 4 * ALPHA - (M - last) * BETA


@both_sharings
@pytest.mark.parametrize("loops", [1, 2, 5, 16])
def test_tree_loops_overlap(loops: int, sharing: str) -> None:
    """A tree of one level pipelines k loops, of σ with one child and 2σ with two, behind the first way up."""
    one, two = (makespan("all_reduce/tree", full_mesh(n, LINK), loops * M, chunk=M, sharing=sharing) for n in (2, 3))
    assert one == (2 + loops - 1) * SIGMA + 2 * ALPHA
    assert two == SIGMA + ALPHA + loops * 2 * SIGMA + ALPHA


# --- the terms of LogGP ---


def on_mesh(name: str, n: int, nbytes: int = M, **params: Any) -> int:
    """The same in both sharings, as nothing meets on a full mesh."""
    fair, fifo = (makespan(name, full_mesh(n, LINK), nbytes, sharing=sharing, **params) for sharing in SHARINGS)
    assert fair == fifo
    return fair


def test_o_send() -> None:
    """The overhead of sending keeps the channel: once for one message, twice for two, 2(n−1) times around a ring."""
    assert on_mesh("send_recv/direct", 2, o_send=300) == 300 + SIGMA + ALPHA
    assert on_mesh("broadcast/naive", 3, o_send=300) == 2 * (300 + SIGMA) + ALPHA
    assert on_mesh("all_reduce/ring", 4, 4 * M, o_send=300) == 6 * (300 + SIGMA + ALPHA)


def test_o_recv() -> None:
    """The overhead of receiving comes after the arrival; what arrives together is taken one after the other."""
    assert on_mesh("send_recv/direct", 2, o_recv=300) == SIGMA + ALPHA + 300
    assert on_mesh("reduce/naive", 4, o_recv=300) == SIGMA + ALPHA + 3 * 300
    assert on_mesh("all_reduce/ring", 4, 4 * M, o_recv=300) == 6 * (SIGMA + ALPHA + 300)


def test_receiving_does_not_hold_up_sending() -> None:
    """A rank sends and receives at once: in a swap with large overheads each pays o_send and o_recv once."""
    assert on_mesh("all_reduce/recursive_doubling", 2, o_send=10**6, o_recv=10**6) == 2 * 10**6 + SIGMA + ALPHA


def test_g() -> None:
    """Two starts of a channel are at least g apart: seen only where g is longer than a message takes to leave."""
    assert on_mesh("broadcast/naive", 3, g=50_000) == 50_000 + SIGMA + ALPHA
    assert on_mesh("broadcast/naive", 3, g=10_000) == 2 * SIGMA + ALPHA
    assert on_mesh("broadcast/naive", 3, g=50_000, o_send=40_000) == 2 * (40_000 + SIGMA) + ALPHA


def test_gamma() -> None:
    """Reducing at 100 GB/s costs 10 ps/B at the receive side, one message after the other; copying costs nothing."""
    gamma = 100 * GB_PER_S
    assert on_mesh("reduce/chain", 3, gamma=gamma) == 2 * (SIGMA + ALPHA + 10_000)
    assert on_mesh("reduce/naive", 4, gamma=gamma) == SIGMA + ALPHA + 3 * 10_000
    assert on_mesh("broadcast/chain", 3, gamma=gamma) == 2 * (SIGMA + ALPHA)
    assert on_mesh("all_reduce/ring", 4, 4 * M, gamma=gamma) == 6 * (SIGMA + ALPHA) + 3 * 10_000


def test_slots() -> None:
    """With k slots a message waits for the end of the k-th before it: here four chunks, and a λ longer than σ."""
    link = Link(50 * GB_PER_S, latency_ps=100_000)
    one, two, four = (makespan("broadcast/chain", full_mesh(2, link), 4 * M, chunk=M, slots=k) for k in (1, 2, 4))
    assert one == 4 * (SIGMA + 100_000)
    assert two == 2 * (SIGMA + 100_000) + SIGMA
    assert four == 4 * SIGMA + 100_000


def test_slots_are_per_connection() -> None:
    """One slot to each of two receivers lets both messages go at once."""
    assert on_mesh("broadcast/naive", 3, slots=1) == 2 * SIGMA + ALPHA


def test_a_slot_is_free_when_the_receiver_is_done() -> None:
    """A credit comes back after o_recv, not on arrival."""
    assert on_mesh("broadcast/chain", 2, 3 * M, chunk=M, slots=1, o_recv=300) == 3 * (SIGMA + ALPHA + 300)


def test_channel_bandwidth() -> None:
    """A channel of 10 GB/s takes 100 ns for what a link of 50 GB/s takes 20; a wider one changes nothing."""
    assert on_mesh("send_recv/direct", 2, channel_bandwidth=10 * GB_PER_S) == 100_000 + ALPHA
    assert on_mesh("broadcast/naive", 3, channel_bandwidth=10 * GB_PER_S) == 2 * 100_000 + ALPHA
    assert on_mesh("reduce/naive", 3, channel_bandwidth=10 * GB_PER_S) == 100_000 + ALPHA
    assert on_mesh("send_recv/direct", 2, channel_bandwidth=60 * GB_PER_S) == SIGMA + ALPHA


def test_channels_share_a_link() -> None:
    """Two chunks on two channels do not beat the link they share; below the channels' caps they go at once."""
    assert on_mesh("broadcast/chain", 2, 2 * M, chunk=M, channels=2) == 2 * SIGMA + ALPHA
    cap = 25 * GB_PER_S
    assert on_mesh("broadcast/chain", 2, 2 * M, chunk=M, channels=1, channel_bandwidth=cap) == 2 * 40_000 + ALPHA
    shared = [
        makespan("broadcast/chain", full_mesh(2, LINK), 2 * M, chunk=M, channels=2, channel_bandwidth=cap, sharing=s)
        for s in SHARINGS
    ]
    assert shared == [
        40_000 + ALPHA,
        SIGMA + 40_000 + ALPHA,
    ]  # fifo: whole chunks, the second tail 40 ns behind its head


def test_channels_use_links_at_once() -> None:
    """Chunks on different channels leave over different links at the same time, and have receive sides of their own."""
    assert on_mesh("scatter/direct", 3, 3 * M, channels=1) == 2 * SIGMA + ALPHA
    assert on_mesh("scatter/direct", 3, 3 * M, channels=2) == SIGMA + ALPHA
    assert on_mesh("gather/direct", 3, 3 * M, channels=1, o_recv=300) == SIGMA + ALPHA + 2 * 300
    assert on_mesh("gather/direct", 3, 3 * M, channels=2, o_recv=300) == SIGMA + ALPHA + 300


def test_a_channel_for_each_peer() -> None:
    """What goes to different ranks goes at once, what goes to one rank in turn; a rank has one receive side."""
    assert on_mesh("scatter/direct", 3, 3 * M, channels=0) == SIGMA + ALPHA
    assert on_mesh("broadcast/chain", 2, 2 * M, chunk=M, channels=0) == 2 * SIGMA + ALPHA
    assert on_mesh("gather/direct", 3, 3 * M, channels=0, o_recv=300) == SIGMA + ALPHA + 2 * 300


@pytest.mark.parametrize(("n", "loops"), list(product([2, 3, 5], [1, 2, 7])))
def test_barrier_between_steps(n: int, loops: int) -> None:
    """With a barrier between steps a pipeline moves in lockstep: (d + k − 1)(σ + α)."""
    found = on_mesh("broadcast/chain", n, loops * M, chunk=M, barrier=True)
    assert found == (n - 1 + loops - 1) * (SIGMA + ALPHA)


# --- laws ---


@both_sharings
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_all_reduce_is_both_halves(n: int, sharing: str) -> None:
    """A ring all-reduce takes exactly a ring reduce-scatter and a ring all-gather."""
    for network in (full_mesh(n, LINK), star(n, LINK)):
        whole, *halves = (
            makespan(f"{name}/ring", network, n * M, sharing=sharing, o_send=70, o_recv=90, gamma=80 * GB_PER_S)
            for name in ("all_reduce", "reduce_scatter", "all_gather")
        )
        assert whole == sum(halves)


@pytest.mark.parametrize(("collective", "name"), RANKS_ONLY)
def test_sharing_is_immaterial_without_contention(collective: str, name: str) -> None:
    """Where no two messages meet on a link, fair and fifo give the same times for everything."""
    for n in (2, 5):
        fair, fifo = (timeline(f"{collective}/{name}", full_mesh(n, LINK), 777, sharing=s, o_recv=5) for s in SHARINGS)
        assert fair == fifo


@st.composite
def comings(draw: st.DrawFn) -> dict[int, int]:
    """When each of two to nine ranks comes."""
    return dict(enumerate(draw(st.lists(st.integers(0, 10**7), min_size=2, max_size=9))))


@given(comings(), st.sampled_from(sorted(ALGORITHMS["barrier"])), st.sampled_from(SHARINGS))
def test_nobody_leaves_a_barrier_early(arrivals: dict[int, int], name: str, sharing: str) -> None:
    """Nobody leaves before the last one has come, and nobody but the last hears of that in less than one latency."""
    last, n = max(arrivals.values()), len(arrivals)
    played = program(f"barrier/{name}", star(n, LINK), 8, arrivals=arrivals, sharing=sharing)
    complete = event.run(played).complete
    for rank, own in arrivals.items():
        left = max(own, int(complete[played.dst == rank].max()))
        assert left >= (last if own == last else last + 2 * ALPHA)


@given(
    st.integers(2, 8).flatmap(lambda n: st.permutations(range(n))),
    st.sampled_from(RANKS_ONLY),
    st.sampled_from([star, full_mesh]),
    st.sampled_from(SHARINGS),
)
def test_places_on_a_symmetric_network_are_alike(
    order: list[int], entry: tuple[str, str], make: Callable[[int, Link], Topology], sharing: Any
) -> None:
    """Where all hosts are alike, no time of any transfer depends on which rank sits where."""
    plan, network = schedule(*entry, len(order)), make(len(order), LINK)
    places = (network.ranks, [f"h{host}" for host in order])
    first, second = (event.run(bind(plan, network, at, Params(sharing=sharing), 840)) for at in places)
    assert first == second


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_twice_the_bytes_at_twice_the_bandwidth(collective: str, name: str) -> None:
    """Only the ratio of bytes to bandwidths counts: every time stays as it is."""
    for n, times, sharing in ((2, 2, "fifo"), (5, 16, "fair"), (5, 16, "fifo"), (8, 2, "fair")):
        once, scaled = (
            timeline(
                f"{collective}/{name}",
                star(n, Link(k * 30 * GB_PER_S, latency_ps=ALPHA), memory=Link(k * 100 * GB_PER_S, latency_ps=1)),
                k * 840 * n,
                sharing=sharing,
            )
            for k in (1, times)
        )
        assert once == scaled


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_slower_everything_is_slow_motion(collective: str, name: str) -> None:
    """Bandwidths divided and latencies and overheads multiplied by k make every time k times as long."""
    for n, k in ((2, 5), (5, 2), (8, 5)):
        once, slowed = (
            timeline(
                f"{collective}/{name}",
                star(n, Link(50 * GB_PER_S // f, latency_ps=f * ALPHA), memory=Link(100 * GB_PER_S // f, latency_ps=f)),
                840 * n,
                sharing="fifo",
                **dict.fromkeys(("o_send", "o_recv", "g"), f * 70),
                gamma=200 * GB_PER_S // f,
            )
            for f in (1, k)
        )
        assert all((getattr(slowed, column) == k * getattr(once, column)).all() for column in COLUMNS)
