"""Critical paths: their parts add up, and blame what binds."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from extras import batches
from networks import GB_PER_S, full_mesh, program, star
from oracle import random_case, random_faults, random_tasks
from oracle_programs import changed, joint_program_of, program_of

from simcoll.engine import event, fast
from simcoll.engine.program import Program
from simcoll.engine.timing_model import service_ps
from simcoll.explanation.critical_path import CriticalPath, by_cause, critical_path
from simcoll.topology.graph import Link, Topology


def check(played: Program, seed: int) -> None:
    """The segments of one run."""
    times = fast.run(played)
    assert times is not None
    path = critical_path(played, times)
    assert path.total_ps == times.makespan_ps, seed
    segments = list(path)
    assert segments[0].begin_ps == 0, seed
    assert segments[-1].end_ps == times.makespan_ps, seed
    assert all(a.end_ps == b.begin_ps for a, b in pairwise(segments)), seed
    assert all(s.begin_ps < s.end_ps for s in segments), seed
    assert sum(by_cause(path.shares()).values()) == times.makespan_ps, seed


@batches(2, 10)
def test_segments_add_up(batch: int) -> None:
    """Of random programs, of one operation and of several, the segments of the path meet without gap or overlap, from
    0 to the end of the run."""
    for seed in range(batch * 50, batch * 50 + 50):
        check(program_of(*random_case(random.Random(seed), contention=seed % 4 != 0)), seed)
        check(joint_program_of(*random_tasks(random.Random(seed), contention=seed % 4 != 0)), seed)


def check_changed(seed: int) -> None:
    """The segments of one run whose links change."""
    rng = random.Random(seed)
    if seed % 3:
        messages, links, rules, _ = random_case(rng, contention=seed % 4 != 0)
        plain = program_of(messages, links, rules, {})
    else:
        messages, links, rules, tasks = random_tasks(rng, contention=seed % 4 != 0)
        plain = joint_program_of(messages, links, rules, tasks)
    played = changed(plain, messages, random_faults(rng, messages, links, event.run(plain).makespan_ps))
    times = fast.run(played)
    assert played.changes
    if times is not None:
        path = critical_path(played.as_it_went(times.way), times, played.changes.spans(played.bandwidths))
        assert path.total_ps == times.makespan_ps, seed
        assert all(a.end_ps == b.begin_ps for a, b in pairwise(path)), seed


@batches(1, 5)
def test_segments_add_up_with_links_that_change(batch: int) -> None:
    """The same where links become slower, die, come back and are gone around."""
    for seed in range(batch * 60, batch * 60 + 60):
        check_changed(seed)


def path_of(name: str, topology: Topology, nbytes: int, **params: Any) -> tuple[Program, CriticalPath]:
    """The path of a collective on all hosts of a topology."""
    played = program(name, topology, nbytes, **params)
    times = event.run(played)
    path = critical_path(played, times)
    assert path.total_ps == times.makespan_ps
    return played, path


def blamed(played: Program, path: CriticalPath, cause: str) -> dict[str, int]:
    """What each link takes of a cause, in ps."""
    return {played.link_names[where]: ps for (its, where), ps in path.shares().items() if its == cause}


FAST_LINK = Link(100 * GB_PER_S, latency_ps=1_000_000)
SHARINGS = pytest.mark.parametrize("sharing", ["fair", "fifo"])


@SHARINGS
def test_a_slow_link_is_blamed(sharing: str) -> None:
    """Where one link of a ring is a hundred times as slow as the others, nearly all of the time goes by on it."""
    slow = ("h2", "h3")
    topology = full_mesh(4, FAST_LINK, {slow: Link(GB_PER_S, latency_ps=1_000_000)})
    played, path = path_of("all_reduce/ring", topology, 1 << 24, sharing=sharing)
    assert blamed(played, path, "serialisation")["h2->h3"] > 0.97 * path.total_ps


@SHARINGS
def test_without_bandwidth_limits_all_is_latency_and_overhead(sharing: str) -> None:
    """On links that are as good as infinitely fast a ring takes its steps' latencies and overheads, exactly, but for
    the picosecond that a service takes at least."""
    topology = full_mesh(4, Link(10**18, latency_ps=1_000_000))
    params = {"sharing": sharing, "o_send": 200_000, "o_recv": 300_000}
    _, path = path_of("all_reduce/ring", topology, 1 << 10, **params)
    steps = 6
    its = {"latency": steps * 1_000_000, "o_send": steps * 200_000, "o_recv": steps * 300_000, "serialisation": steps}
    assert by_cause(path.shares()) == its


@SHARINGS
def test_an_incast_is_contention_on_its_link(sharing: str) -> None:
    """Of n − 1 messages that meet on the way to the root each takes a share of its link: but for latency, one of n − 1
    parts of the time is service, and the others are contention on that link."""
    played, path = path_of("reduce/naive", star(5, FAST_LINK), 1 << 24, sharing=sharing)
    causes = by_cause(path.shares())
    assert blamed(played, path, "contention") == {"switch->h0": causes["contention"]}
    assert causes["contention"] == pytest.approx(3 * causes["serialisation"], rel=1e-3)


@SHARINGS
@pytest.mark.parametrize("name", ["broadcast/chain", "all_reduce/ring", "send_recv/direct"])
@pytest.mark.parametrize("slow", [("h0", "switch"), ("switch", "h1"), ("h1", "switch")])
def test_one_pair_alone_waits_for_nobody(sharing: str, name: str, slow: tuple[str, str]) -> None:
    """Where a network carries one channel of one pair of ranks, pieces that queue before its slow link are its own: no
    contention."""
    topology = star(2, FAST_LINK, {slow: Link(GB_PER_S, latency_ps=1_000_000)})
    _, path = path_of(name, topology, 1 << 20, sharing=sharing, chunk=1 << 14)
    assert "contention" not in by_cause(path.shares())


def test_a_queue_behind_others_is_contention_behind_ones_own_service() -> None:
    """Two send pieces over links as quick as that to the root, which is never idle: half of what it serves is the
    other's, and half of the time is contention, exactly. Without the other it would take half as long."""
    played, path = path_of("reduce/naive", star(3, FAST_LINK), 1 << 20, sharing="fifo", chunk=1 << 12)
    assert set(blamed(played, path, "contention")) == {"switch->h0"}
    causes = by_cause(path.shares())
    assert causes["serialisation"] == causes["contention"]
    alone = event.run(program("reduce/naive", star(2, FAST_LINK), 1 << 20, sharing="fifo", chunk=1 << 12)).makespan_ps
    assert path.total_ps - alone == causes["contention"]


@SHARINGS
def test_who_comes_late_is_waited_for(sharing: str) -> None:
    """The time until a rank comes that comes much later than the others is spent waiting for that rank."""
    late = 10**9
    topology = full_mesh(4, FAST_LINK)
    _, path = path_of("all_reduce/ring", topology, 1 << 20, sharing=sharing, arrivals={2: late})
    first = next(iter(path))
    assert (first.cause, first.where, first.begin_ps, first.end_ps) == ("straggler", 2, 0, late)
    assert by_cause(path.shares())["straggler"] == late


def test_reductions_and_caps_are_told_apart() -> None:
    """What a reduction at gamma takes is a reduction, what the cap of a channel takes is the channel's, and the links,
    which are faster, take nothing but latency."""
    params = {"gamma": 5 * GB_PER_S, "channel_bandwidth": 10 * GB_PER_S}
    _, path = path_of("reduce/naive", full_mesh(2, FAST_LINK), 1 << 20, **params)
    its = {"reduction": service_ps(1 << 20, 5 * GB_PER_S), "channel": service_ps(1 << 20, 10 * GB_PER_S)}
    assert by_cause(path.shares()) == {**its, "latency": 1_000_000}


@pytest.mark.parametrize("blocking", ["sends-first", "even-odd"])
def test_blocking_sends_have_a_path(blocking: str) -> None:
    """With blocking sends, too, the segments add up."""
    path_of("all_reduce/tree", star(7, FAST_LINK), 1 << 16, blocking=blocking)
