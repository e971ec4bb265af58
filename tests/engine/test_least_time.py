"""The least time of a schedule: no run is quicker, and without contention hardly any is slower."""

from __future__ import annotations

import random

import pytest
from extras import batches
from networks import ENTRIES, GB_PER_S, devices, full_mesh, grid, star, two_level

from simcoll.engine.binding import bind
from simcoll.engine.least_time import least_ps
from simcoll.engine.run import Policy, run
from simcoll.engine.timing_model import Params
from simcoll.errors import RefusedError
from simcoll.schedule.algorithms import build, stream
from simcoll.topology.graph import Link

BATCHES = batches(1, 4)


def _params(rng: random.Random) -> Params:
    return Params(
        sharing=rng.choice(["fair", "fifo"]),
        o_send=rng.choice([0, 700_000]),
        o_recv=rng.choice([0, 300_000]),
        g=rng.choice([0, 2_000_000]),
        gamma=rng.choice([0, 100 * GB_PER_S]),
        channels=rng.choice([0, 1, 1, 2]),
        slots=rng.choice([0, 2]),
        chunk=rng.choice([0, 4096, 60_000]),
        channel_bandwidth=rng.choice([0, 3 * GB_PER_S]),
        barrier=rng.random() < 0.1,
    )


@BATCHES
def test_no_run_is_quicker_than_the_least_time(batch: int) -> None:
    """Law: of every schedule, as a stream and written out, with all that costs a message, on links of any rates."""
    rng = random.Random(batch)
    for collective, name in ENTRIES:
        n = rng.randint(2, 9)
        link = Link(rng.randint(1, 50) * GB_PER_S, latency_ps=rng.choice([1, 500_000]))
        topology = rng.choice([full_mesh(n, link), star(n, link), two_level(n, link, 2), grid([n], link)])
        try:
            source = stream(collective, name, n, agents=1)
            schedule = build(collective, name, n, agents=1)
        except RefusedError:
            continue
        params, nbytes = _params(rng), 4 * n * rng.choice([1, 999, 40_000])
        if schedule.agents and not topology.agents:
            continue
        places = devices(topology, schedule)
        program = bind(schedule, topology, places, params, nbytes, itemsize=4)
        took = run(program, Policy(keep="totals")).totals.makespan_ps
        for each in (source, schedule):
            assert least_ps(each, topology, places, params, nbytes, 4) <= took, (name, n, params)


@pytest.mark.parametrize("sharing", ["fair", "fifo"])
@pytest.mark.parametrize("name", ["ring", "ring_unchunked", "recursive_doubling"])
def test_where_nothing_waits_it_is_the_time(name: str, sharing: str) -> None:
    """Law: of what never meets on a link, the least time is the time, but for what is left to rounding."""
    topology = full_mesh(8, Link(10 * GB_PER_S, latency_ps=1_000_000))
    params = Params(sharing=sharing, o_send=500_000)  # type: ignore[arg-type]  # of a parametrized text
    schedule = build("all_reduce", name, 8)
    program = bind(schedule, topology, topology.ranks, params, 8 << 20, itemsize=4)
    took = run(program, Policy(keep="totals")).totals.makespan_ps
    least = least_ps(stream("all_reduce", name, 8), topology, topology.ranks, params, 8 << 20, 4)
    assert 0.999 * took <= least <= took
