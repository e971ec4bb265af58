"""The longest that a program may take: it never takes longer, and at times exactly that."""

from __future__ import annotations

import pytest
from networks import program, star

from simcoll.engine import fast
from simcoll.engine.longest import longest_ps
from simcoll.engine.program import Program
from simcoll.topology.graph import Link

QUICK, SLOW = Link(50 * 10**9, 500_000), Link(10**9, 500_000)


def took(made: Program, compiled: bool | None = None) -> tuple[int, int]:
    """The time that a program takes, and the longest that it may."""
    timeline = fast.run(made, compiled=compiled).timeline
    most = longest_ps(made, 1, int(made.sizes.max()), made.params.slots, compiled=compiled)
    assert timeline is not None
    assert most is not None
    return timeline.makespan_ps, most


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        ("all_gather/ring", {"o_send": 10**5, "g": 10**6, "channel_bandwidth": 10**9}),
        ("gather/direct", {"o_send": 10**5, "g": 10**6}),
    ],
)
def test_where_nobody_waits_more_than_once_it_is_what_it_takes(name: str, costs: dict[str, int]) -> None:
    """A ring, whose messages have links for themselves, and many ranks that send one message each to one at once."""
    found, most = took(program(name, star(5, QUICK), 5_000, sharing="fifo", channels=1, **costs))
    assert found == most


@pytest.mark.parametrize("slots", [0, 2, 8])
def test_many_pieces_wait_where_ways_meet_and_where_links_get_slow(slots: int) -> None:
    """Loops of messages to one rank, and over a slow link that comes behind a quick one."""
    slow = star(2, QUICK, {("switch", "h1"): SLOW})
    for name, topology in (("gather/direct", star(5, QUICK)), ("broadcast/chain", slow)):
        made = program(name, topology, 50_000, sharing="fifo", channels=1, chunk=1_000, slots=slots)
        found, most = took(made)
        assert found <= most <= 20 * found


def test_compiled_loops_find_the_same() -> None:
    """numba's, and the source as it is."""
    pytest.importorskip("numba")
    made = program("all_reduce/ring", star(6, QUICK), 60_000, sharing="fifo", channels=2, chunk=5_000, slots=3)
    assert took(made, compiled=True) == took(made, compiled=False)


def test_what_may_never_end_has_no_longest_time() -> None:
    """A dead link on the way."""
    made = program("all_gather/ring", star(3, QUICK, {("h0", "switch"): Link(0, 1)}), 3_000, sharing="fifo")
    assert longest_ps(made, 1, 3_000, 0) is None
