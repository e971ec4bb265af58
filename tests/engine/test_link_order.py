"""Links taken one behind the other end as the heap does, by `==`, and where ways lead round they are not taken."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from networks import full_mesh, grid, star, two_level

from simcoll.config import arrays
from simcoll.config.numba_loader import have_numba
from simcoll.engine import fast
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.timing_model import Params
from simcoll.schedule.algorithms import build
from simcoll.schedule.ir import Schedule
from simcoll.topology.graph import Link, Topology

LINK = Link(7_000_000, latency_ps=900)


def _links(rng: random.Random) -> dict[tuple[str, str], Link]:
    """A few links of other rates and latencies."""
    hosts = [f"h{i}" for i in range(6)]
    return {
        (host, "switch"): Link(rng.choice((3, 7, 11)) * 10**6, latency_ps=rng.choice((1, 900))) for host in hosts[::2]
    }


def _network(rng: random.Random, n: int) -> Topology:
    memory = Link(20_000_000, latency_ps=5)
    return rng.choice(
        [
            lambda: star(n, LINK, memory=rng.choice((None, memory))),
            lambda: two_level(n, LINK, rng.choice((1, 2, 4))),
            lambda: full_mesh(n, LINK),
            lambda: grid((n,), LINK, wraps=rng.random() < 0.5),
        ]
    )()


def _random_program(seed: int) -> Program:
    """Anyone sends to anyone what was there at the start, several times, itself too."""
    rng = random.Random(seed)
    n = 2 * rng.randint(1, 4)
    topology = _network(rng, n)
    count, chunks = rng.randint(1, 40), rng.randint(1, 5)
    rows = np.array([(rng.randrange(n), rng.randrange(n), rng.randrange(chunks)) for _ in range(count)], np.int32)
    if "memory" not in str(topology.links) and rng.random() < 0.5:
        rows = rows[rows[:, 0] != rows[:, 1]]
    slots = (chunks + rows[:, 2]).astype(np.int32)  # scratch, which nobody reads
    schedule = Schedule(
        collective="all_reduce",
        algorithm="random",
        n=n,
        n_chunks=chunks,
        step=np.zeros(len(rows), np.int32),
        src=rows[:, 0].copy(),
        src_slot=rows[:, 2].copy(),
        dst=rows[:, 1].copy(),
        dst_slot=slots,
        reduce=np.array([rng.random() < 0.5 for _ in rows], np.bool_),
    )
    tiny = rng.random() < 0.5
    params: dict[str, Any] = {
        "channels": rng.choice((0, 1, 2)),
        "o_send": rng.choice((0, 0, 1, 500)),
        "o_recv": rng.choice((0, 0, 1, 700)),
        "g": rng.choice((0, 0, 3000)),
        "gamma": rng.choice((0, 0, 9_000_000)),
        "channel_bandwidth": rng.choice((0, 0, 2_000_000)),
        "chunk": rng.choice((0, 3 if tiny else 3000)),
    }
    late = {rank: rng.choice((0, 1, 40_000_000)) for rank in range(n)} if rng.random() < 0.4 else {}
    nbytes = rng.choice((1, 7, 40)) if tiny else rng.randint(1, 40_000)
    return bind(schedule, topology, topology.ranks, Params(sharing="fifo", **params), nbytes, arrivals=late)


def _checked(seed: int) -> bool:
    """Whether links were taken one behind the other; all ways of running end at the same time."""
    program = _random_program(seed)
    if not len(program):
        return False
    expected = fast.totals(program, shortcuts=False, compiled=False)
    found = fast.totals(program, compiled=have_numba() and seed % 20 == 0)
    assert expected is not None
    assert found is not None
    assert found.makespan_ps == expected.makespan_ps, (seed, found.shortcut)
    for factor in (7, 1) if seed % 4 == 0 else ():  # links serve in another order, which is tried first the next time
        other = replace(program, latencies=program.latencies * factor + np.arange(len(program.latencies)) % factor)
        again, plain = (
            fast.totals(other, each, compiled=each and have_numba() and seed % 20 == 0) for each in (True, False)
        )
        assert again and plain and again.makespan_ps == plain.makespan_ps, (seed, factor)
    return found.shortcut == "by link"


@pytest.mark.usefixtures("from_the_start")
def test_link_by_link_is_event_by_event() -> None:
    """Of 160 random programs of one step, on stars, trees, meshes, lines and rings, with channels, loops, costs, late
    ranks and ties, each ends when it does event by event; enough of them are run link by link."""
    assert sum(map(_checked, range(160))) >= 32


def test_long_columns_may_be_taken_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows are looked at together, 40 random programs end alike, by the same shortcuts and over the same
    links; enough of them link by link."""

    def found() -> list[list[object]]:
        runs = [fast.totals(_random_program(seed), compiled=False) for seed in range(40)]
        return [[np.asarray(value).tolist() for value in vars(totals).values()] for totals in runs]

    expected = found()
    assert sum("by link" in values for values in expected) >= 5
    for rows in (1, 3):
        monkeypatch.setattr(arrays, "AT_ONCE", rows)
        assert found() == expected


@pytest.mark.parametrize("hosts", [3, 5, 8])
def test_links_where_some_set_out_and_others_pass_are_taken_in_turn(hosts: int) -> None:
    """On a line the first link of a host carries what comes from hosts behind it too. With a channel for each peer all
    is taken link by link, with one channel it is not: its next would set out at another link."""
    line = grid((hosts,), LINK, wraps=False)
    made = build("all_to_all", "direct", hosts)
    taken = set()
    for channels in (0, 1):
        for nbytes in (1, 700, 50_000):
            late = {rank: 40_000 * rank * rank % 7_000_000 for rank in range(0, hosts, 2)}
            params = Params(sharing="fifo", channels=channels, chunk=900)
            program = bind(made, line, line.ranks, params, nbytes * hosts, arrivals=late)
            found, expected = (fast.totals(program, shortcuts, compiled=False) for shortcuts in (True, False))
            assert found and expected and found.makespan_ps == expected.makespan_ps
            taken.add((channels, found.shortcut))
    assert (0, "by link") in taken
    assert (1, "by link") not in taken


@pytest.mark.long
@pytest.mark.parametrize("batch", range(10))
def test_link_by_link_is_event_by_event_at_length(batch: int) -> None:
    """The same for 5,000 more."""
    for seed in range(160 + batch * 500, 660 + batch * 500):
        _checked(seed)
