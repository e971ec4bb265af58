"""What cannot finish says so, and whom it waits for; everything else finishes."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import ENTRIES, GB_PER_S, full_mesh, makespan, program, schedule, star, timeline

from simcoll.config.numba_loader import have_numba
from simcoll.engine import event, fast
from simcoll.engine.binding import bind
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError, StuckError
from simcoll.topology.graph import Link

LINK = Link(50 * GB_PER_S, latency_ps=1000)
DEAD = Link(0, latency_ps=1000)
SHARINGS = ("fair", "fifo")

both_sharings = pytest.mark.parametrize("sharing", SHARINGS)
without_numba = pytest.mark.skipif(not have_numba(), reason="numba is not installed")


def waiting(name: str, n: int, down: tuple[str, str], **params: object) -> str:
    """What is said to wait for the dead link of a star."""
    with pytest.raises(StuckError) as caught:
        timeline(name, star(n, LINK, {down: DEAD}), 1000 * n, **params)
    told = re.fullmatch(
        f"the run cannot finish: (.*), waits for link {'->'.join(down)}, which is down", str(caught.value)
    )
    assert told, caught.value
    return told[1]


@both_sharings
def test_dead_link_is_named(sharing: str) -> None:
    """A message that waits for a link that is down: the error names its step, both ranks, its chunk and the link."""
    for down in (("h2", "switch"), ("switch", "h3")):
        text = waiting("broadcast/chain", 4, down, sharing=sharing)
        assert text.startswith("step 2: rank 2, sending chunk 0 to rank 3")


@both_sharings
@pytest.mark.parametrize("name", ["all_reduce/ring", "all_gather/ring", "barrier/dissemination", "all_to_all/direct"])
def test_the_first_to_be_stuck_is_told(name: str, sharing: str) -> None:
    """Of all that hang it is the first message in the order of the schedule: the one at the dead link."""
    assert waiting(name, 5, ("h3", "switch"), sharing=sharing).startswith("step 0: rank 3, sending chunk")


@given(st.sampled_from(ENTRIES), st.integers(2, 9), st.data(), st.sampled_from(SHARINGS))
def test_it_is_always_told(entry: tuple[str, str], n: int, data: st.DataObject, sharing: str) -> None:
    """Whatever uses a dead link raises, naming a rank, a step and the link; what does not use it finishes."""
    whole = star(n, LINK)
    link = data.draw(st.sampled_from(whole.links))
    played = program("/".join(entry), star(n, LINK, {link: DEAD}), 840, sharing=sharing)
    if whole.links.index(link) not in played.routes.links:
        event.run(played)
        return
    with pytest.raises(StuckError, match=r"step \d+: (rank|switch) \d+.*waits for link"):
        event.run(played)


@both_sharings
@pytest.mark.parametrize("name", ["all_reduce/ring", "all_reduce/naive", "all_to_all/direct"])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=without_numba)])
def test_the_clock_has_an_end(name: str, compiled: bool, sharing: str) -> None:
    """A run of more than 53 days is wrong input in every engine, though no message of it takes that long."""
    for bandwidth in (1, 2):
        played = program(name, star(8, Link(bandwidth, latency_ps=1000)), 4_600_000, sharing=sharing, g=2**60)
        with pytest.raises(InputError, match="longer than the clock runs"):
            event.run(played)
        with pytest.raises(InputError, match="longer than the clock runs"):
            fast.run(played, compiled=compiled) or event.run(played)  # the fast one leaves reasons to the other


def test_what_is_too_large_to_bind() -> None:
    """More transfers than a machine holds, or links of routes than 32 bits count, are told before they are made."""
    with pytest.raises(InputError, match="17179869184 loops of 24 transfers take 144311 GB of memory, and this"):
        program("all_reduce/ring", star(4, LINK), 64 << 30, chunk=1)
    plan = schedule("all_reduce", "ring", 4)
    far = SimpleNamespace(
        layout=None, routes=lambda devices, src, dst: (np.array([0, 0, 0, 0, 2**31]), np.zeros(0, np.int64))
    )
    with pytest.raises(InputError, match="4 routes of 2147483648 links in all are more than 2147483647"):
        bind(plan, far, ["h0", "h1", "h2", "h3"], Params(), 4)


# --- blocking sends ---


@both_sharings
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_a_ring_that_sends_first_deadlocks(n: int, sharing: str) -> None:
    """When every rank blocks in its send, the error tells who waits for whom, and why."""
    with pytest.raises(StuckError) as caught:
        timeline("all_reduce/ring", full_mesh(n, LINK), 1000 * n, blocking="sends-first", sharing=sharing)
    text = str(caught.value)
    assert "step 0: rank 0, sending chunk" in text
    assert re.search(r"waits for a rank that is blocked in step 0: rank 1, sending chunk \d to rank", text)
    assert "all send before anyone receives" in text


@both_sharings
@pytest.mark.parametrize("n", range(2, 10))
def test_a_ring_of_even_and_odd_ranks_finishes(n: int, sharing: str) -> None:
    """If odd ranks receive first, a ring of blocking sends finishes; an even one in two turns a step."""
    params = {"blocking": "even-odd", "sharing": sharing}
    found = makespan("all_reduce/ring", full_mesh(n, LINK), 1000 * n, **params)
    free = makespan("all_reduce/ring", full_mesh(n, LINK), 1000 * n, sharing=sharing)
    assert found == 2 * free if n % 2 == 0 else found > free


@both_sharings
def test_even_and_odd_do_not_save_even_pairs(sharing: str) -> None:
    """Ranks at an even distance that swap both send first: recursive doubling of four ranks is stuck in its step 1."""
    with pytest.raises(StuckError, match=r"step 1: rank 0, sending chunk 0 to rank 2, waits for .*step 1: rank 2"):
        timeline("all_reduce/recursive_doubling", full_mesh(4, LINK), 1000, blocking="even-odd", sharing=sharing)


@both_sharings
@pytest.mark.parametrize("blocking", ["sends-first", "even-odd"])
@pytest.mark.parametrize("name", ["all_reduce/naive", "broadcast/chain", "reduce/binomial", "barrier/tree"])
def test_one_way_traffic_finishes(name: str, blocking: str, sharing: str) -> None:
    """Where nobody sends and receives in one step, blocking sends come to an end."""
    for n in range(2, 10):
        assert makespan(name, full_mesh(n, LINK), 1000, blocking=blocking, sharing=sharing) > 0


def test_blocking_naive_by_hand() -> None:
    """The root receives one after the other, then sends one after the other: 2(n−1)(α + βm)."""
    assert makespan("all_reduce/naive", full_mesh(5, LINK), 1000, blocking="sends-first") == 2 * 4 * (1000 + 20_000)


# --- everything else finishes ---


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_every_algorithm_finishes(collective: str, name: str) -> None:
    """With one slot a connection, tiny chunks, several channels and barriers every message comes to its end."""
    for channels, barrier, sharing in ((1, True, "fair"), (1, True, "fifo"), (3, False, "fifo")):
        played = program(
            f"{collective}/{name}",
            star(5, LINK),
            5 * 12,
            sharing=sharing,
            slots=1,
            chunk=5,
            channels=channels,
            barrier=barrier,
            g=5000,
            o_send=100,
            o_recv=3000,
            gamma=10**9,
        )
        found, away = event.run(played), played.src != played.dst
        assert (found.start >= 0).all()
        assert (found.start < found.sent).all()
        assert (found.sent < found.arrive)[away].all()
        assert (found.sent <= found.arrive).all()
        assert (found.arrive <= found.end).all()
        assert (found.end <= found.complete).all()
