"""The longest that a program may take: it never takes longer, and at times exactly that."""

from __future__ import annotations

import numpy as np
import pytest
from networks import devices, program, schedule, star

from simcoll.engine import fast
from simcoll.engine.binding import bind
from simcoll.engine.call_program import CallProgram
from simcoll.engine.joined_program import Operation, join
from simcoll.engine.program import Program
from simcoll.engine.timing_model import Params
from simcoll.engine.upper_bound import in_turn, upper_bound_ps
from simcoll.topology.graph import Link

QUICK, SLOW = Link(50 * 10**9, latency_ps=500_000), Link(10**9, latency_ps=500_000)


def took(made: Program, compiled: bool | None = None) -> tuple[int, int]:
    """The time that a program takes, and the longest that it may."""
    timeline = fast.run(made, compiled=compiled)
    most = upper_bound_ps(made, 1, int(made.sizes.max()), made.params.slots, compiled=compiled)
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


@pytest.mark.usefixtures("from_the_start")
def test_compiled_loops_find_the_same() -> None:
    """numba's, and the source as it is."""
    pytest.importorskip("numba")
    made = program("all_reduce/ring", star(6, QUICK), 60_000, sharing="fifo", channels=2, chunk=5_000, slots=3)
    assert took(made, compiled=True) == took(made, compiled=False)


def test_what_may_never_end_has_no_longest_time() -> None:
    """A dead link on the way."""
    made = program("all_gather/ring", star(3, QUICK, {("h0", "switch"): Link(0, latency_ps=1)}), 3_000, sharing="fifo")
    assert upper_bound_ps(made, 1, 3_000, 0) is None


IN_TURN = {"all_reduce/tree": True, "all_reduce/nvls": True, "all_reduce/nvls_tree": True}
IN_TURN |= {"all_reduce/ring": False, "broadcast/chain": False}  # of which some ranks run ahead


@pytest.mark.parametrize(("name", "turns"), IN_TURN.items())
def test_of_calls_in_turn_no_channel_serves_two(name: str, turns: bool) -> None:
    """Three calls that ranks begin, some of them late, as soon as they are through with the one before: no channel
    begins before all that it sent has ended, and each call is over in time."""
    n, slots, ahead = 5, 2, False
    plan = schedule(*name.split("/"), n)
    topology = star(n, QUICK, {("h1", "switch"): SLOW})
    where = (*topology.ranks, *devices(topology, plan)[n:])
    params = Params(sharing="fifo", channels=1, chunk=500, slots=slots)
    made = [bind(plan, topology, where, params, n * size) for size in (2_000, 4_000, 1_000)]
    assert {in_turn(each) for each in made} == {turns}
    for late in (0, 10**5, 10**7):
        came = [np.array([late * ((rank * each + each) % n) for rank in range(n)]) for each in (0, 1, 3)]
        operations: list[Operation] = []
        for before, (each, launch) in enumerate(zip(made, came, strict=True)):
            operations.append(Operation(np.arange(n), None, launch, (2 * before - 1,) if before else ()))
            operations.append(Operation(np.arange(n), each, 0, (2 * before,)))
        timeline = fast.run(join(operations, n, topology))
        assert timeline is not None
        ends = np.cumsum([0, *map(len, made)])
        over, free = 0, np.zeros(int(made[0].channel.max()) + 1, np.int64)
        for each, launch, first, last in zip(made, came, ends[:-1], ends[1:], strict=True):
            begin = np.full(len(free), 2**62)
            np.minimum.at(begin, each.channel, timeline.start[first:last])
            ahead |= bool((begin < free).any())
            np.maximum.at(free, each.channel, timeline.end[first:last])
            most = upper_bound_ps(each, 1, 500, slots, among=True)
            assert most is not None
            over = over + int(launch.max()) + most
            assert not turns or timeline.end[first:last].max() <= over
    assert ahead is not turns


@pytest.mark.parametrize("slots", [0, 2])
@pytest.mark.parametrize("name", ["all_reduce/tree", "all_reduce/ring", "all_reduce/nvls", "broadcast/chain"])
def test_without_one_rank_all_stands_still_in_time(name: str, slots: int) -> None:
    """One rank comes when the others have long been there: what they have done by then was over in time, and the pauses
    of their channels behind it. No such time is known just where one of them is through with all that is its own."""
    n, never = 5, 10**12
    plan, topology = schedule(*name.split("/"), n), star(n, QUICK, {("h1", "switch"): SLOW})
    where = (*topology.ranks, *devices(topology, plan)[n:])
    params = Params(sharing="fifo", channels=1, chunk=500, slots=slots, o_send=1_000, o_recv=1_000, g=10**8)
    for missing in range(n):
        came = {rank: never if rank == missing else rank * 10**4 for rank in range(n)}
        made = bind(plan, topology, where, params, n * 2_000, arrivals=came)
        timeline = fast.run(made)
        assert timeline is not None
        most = CallProgram(lambda made=made: made).quiet_ps(missing)
        sent, complete = (np.where(times < never, 0, 1) for times in (timeline.sent, timeline.complete))
        waits = {missing, *made.src[sent == 1].tolist(), *made.dst[complete == 1].tolist()}
        assert (most is not None) == waits.issuperset(range(n))
        columns = timeline.sent, timeline.end, timeline.complete, timeline.start + params.g
        over = [times[times < never].max(initial=0) for times in columns]
        assert most is None or max(over) <= max(when for when in came.values() if when < never) + most
