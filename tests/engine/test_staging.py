"""What waits in staging buffers because the slot it goes to is still being read."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from networks import GB_PER_S, program, star

from simcoll.engine import event
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.staging_buffers import Staged, staged
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import Params
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Link, Topology

FAST, SLOW = Link(10 * GB_PER_S, latency_ps=1), Link(GB_PER_S, latency_ps=1)  # 1000 bytes take 100 ns, or 1 µs
Rows = list[tuple[int, int, int, int, int, bool]]


def run(rows: Rows, topology: Topology, nbytes: int, **params: int) -> tuple[Program, Timeline]:
    """Transfers by rows of step, src, slot, dst, slot, reduce; two slots of buffer."""
    plan = Schedule.from_rows(rows, collective="all_reduce", algorithm="own", n=len(topology.ranks), n_chunks=2)
    bound = bind(plan, topology, topology.ranks, Params(**params), nbytes)
    return bound, event.run(bound)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["all_reduce/ring", "all_gather/ring", "reduce_scatter/ring", "broadcast/chain"])
def test_rings_never_stage(name: str, seed: int) -> None:
    """Round a ring the new version of a slot is made from what was read of the old one: it cannot come before."""
    draw = random.Random(seed)
    own = {
        ends: Link(draw.randint(1, 100) * GB_PER_S, latency_ps=draw.randint(1, 10**6)) for ends in star(7, FAST).links
    }
    bound = program(name, star(7, FAST, own), 70_000, chunk=5_000, channels=draw.randint(1, 3))
    assert staged(bound, event.run(bound)) == Staged(0, 0)


def by_definition(program: Program, timeline: Timeline) -> Staged:
    """Every write against every read that comes before it in its slot and loop; bytes at every time one begins."""
    plan, origin, waiting = program.schedule, program.origin, []
    for w in range(len(program)):
        slot = (program.loop[w], program.dst[w], plan.dst_slot[origin[w]])
        until = max(
            (
                timeline.sent[r]
                for r in range(len(program))
                if (program.loop[r], program.src[r], plan.src_slot[origin[r]]) == slot
                and program.step[r] <= program.step[w]
            ),
            default=0,
        )
        if timeline.end[w] < until:
            waiting.append((timeline.end[w], until, program.nbytes[w]))
    peak = max((sum(b for s, e, b in waiting if s <= now < e) for now, *_ in waiting), default=0)
    return Staged(len(waiting), peak)


def test_as_defined() -> None:
    """On random schedules over unequal links, in loops and on channels, count and peak are those of the definition;
    so they are with times drawn from a few, where much happens at one instant."""
    draw, found = random.Random(1), 0
    for _ in range(30):
        own = {
            ends: Link(draw.randint(1, 50) * GB_PER_S, latency_ps=draw.randint(1, 10**5))
            for ends in star(4, FAST).links
        }
        steps = sorted(draw.randrange(5) for _ in range(20))
        rows = [(s, *_way(draw), draw.random() < 0.5) for s in steps]
        bound, timeline = run(rows, star(4, FAST, own), 2001, chunk=draw.choice([0, 400]), channels=draw.randint(1, 2))
        ties = replace(timeline, **{name: np.array(draw.choices(range(9), k=len(bound))) for name in ("sent", "end")})
        assert staged(bound, timeline) == by_definition(bound, timeline)
        assert staged(bound, ties) == by_definition(bound, ties)
        found += staged(bound, timeline).count
    assert found > 100


def _way(draw: random.Random) -> tuple[int, int, int, int]:
    src, dst = draw.sample(range(4), 2)
    return src, draw.randrange(2), dst, draw.randrange(2)


def test_nothing_stages_nothing() -> None:
    """One rank alone has no transfers."""
    bound = program("all_reduce/ring", star(1, FAST), 1000)
    assert staged(bound, event.run(bound)) == Staged(0, 0)
