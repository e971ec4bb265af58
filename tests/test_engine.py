"""The event engine against an oracle written from the rules alone, transfer by transfer, by `==`."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from networks import ENTRIES, program, star
from oracle import Link, Message, Rules, random_case, simulate

from simcoll.engines import event, fast
from simcoll.errors import StuckError
from simcoll.model import Params, dependencies
from simcoll.program import Columns, Program, Routes, assemble
from simcoll.schedule import Schedule
from simcoll.topology import Link as TopologyLink

FAST = {"fast": (False, False), "replay": (True, False), "compiled": (False, True), "compiled replay": (True, True)}

Case = tuple[list[Message], list[Link], Rules, dict[int, int]]


def program_of(messages: list[Message], links: list[Link], rules: Rules, arrivals: dict[int, int]) -> Program:
    """The oracle's case as a program, route by route."""
    rows = [(m.step, m.src, m.src_slot, m.dst, m.dst_slot, m.reduce) for m in messages]
    n = 1 + max(max(m.src, m.dst) for m in messages)
    schedule = Schedule.from_rows(rows, collective="all_reduce", algorithm="random", n=n, n_chunks=1)
    bandwidths, latencies = (np.array(column) for column in zip(*links, strict=True))
    names = [f"link{i}" for i in range(len(links))]
    network = SimpleNamespace(bandwidths=bandwidths, latencies=latencies, link_names=names)
    params = Params(**{field: getattr(rules, field) for field in Rules.__dataclass_fields__})
    hop = np.cumsum([0, *(len(m.route) for m in messages)], dtype=np.int32)
    routes = Routes(
        schedule.src, schedule.dst, hop, np.array([link for m in messages for link in m.route], dtype=np.int32)
    )
    sizes, kind = np.unique([m.nbytes for m in messages], return_inverse=True)
    number = np.array([m.channel for m in messages], dtype=np.int32)
    columns = Columns(
        np.arange(len(rows), dtype=np.int32), sizes, kind.astype(np.int32), number, *dependencies(schedule)
    )
    return assemble(schedule, params, network, routes, columns, {r: t for r, t in arrivals.items() if r < n})


def differences(case: Case, engine: str = "event") -> list[str]:
    """Where engine and oracle differ."""
    program = program_of(*case)
    found = event.run(program) if engine == "event" else fast.run(program, *FAST[engine]).timeline
    expected = simulate(*case)
    return [
        f"transfer {i} {name}: oracle {getattr(times, name)}, engine {getattr(found, name)[i]}"
        for i, times in enumerate(expected)
        for name in ("start", "sent", "arrive", "end", "complete")
        if getattr(times, name) != getattr(found, name)[i]
    ]


@pytest.mark.parametrize("engine", ["event", *FAST])
@pytest.mark.parametrize("batch", range(20))
def test_the_engines_are_the_rules(batch: int, engine: str) -> None:
    """Start, sent, arrive, end and complete of every transfer of 2,000 random cases equal the oracle's."""
    if engine.startswith("compiled"):
        pytest.importorskip("numba")
    for seed in range(batch * 100, batch * 100 + 100):
        case = random_case(random.Random(seed), contention=seed % 4 != 0)
        assert not differences(case, engine), f"seed {seed}"


@pytest.mark.long
@pytest.mark.parametrize("batch", range(100))
def test_the_engine_is_the_rules_at_length(batch: int) -> None:
    """The same for 20,000 more cases."""
    for seed in range(10_000 + batch * 200, 10_200 + batch * 200):
        case = random_case(random.Random(seed), contention=seed % 4 != 0)
        assert not differences(case), f"seed {seed}"


@pytest.mark.parametrize("entry", ENTRIES, ids="/".join)
def test_the_engines_agree_on_every_algorithm(entry: tuple[str, str]) -> None:
    """Every registered algorithm, in loops, on several channels, with late ranks and barriers: equal timelines."""
    for seed in range(4):
        rng = random.Random(f"{entry} {seed}")
        params = {
            "sharing": rng.choice(["fair", "fifo"]),
            "chunk": rng.choice([0, 1000]),
            "channels": rng.choice([0, 1, 2]),
            "slots": rng.choice([0, 1, 2]),
            "o_send": rng.choice([0, 10**6]),
            "o_recv": rng.choice([0, 10**5]),
            "gamma": rng.choice([0, 10**11]),
            "channel_bandwidth": rng.choice([0, 10**10]),
            "barrier": rng.random() < 0.3,
        }
        late = {rng.randrange(5): 10**6}
        played = program("/".join(entry), star(5, TopologyLink(50 * 10**9, 500_000)), 16_000, arrivals=late, **params)
        whole = event.run(played)
        assert all(fast.run(played, *how).timeline == whole for how in FAST.values() if not how[1])


@pytest.mark.parametrize("entry", ENTRIES, ids="/".join)
@pytest.mark.parametrize("blocking", ["sends-first", "even-odd"])
def test_the_engines_agree_on_blocking_sends(entry: tuple[str, str], blocking: str) -> None:
    """With blocking sends both finish at the same times, or neither does."""
    played = program("/".join(entry), star(4, TopologyLink(50 * 10**9, 500_000)), 16_000, blocking=blocking)
    try:
        whole = event.run(played)
    except StuckError:
        whole = None
    assert fast.run(played, compiled=False).timeline == whole
