"""Clocks of several hosts are compared by messages: how far they differ is known to half of a way there and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import PATIENCE_S, environment
from extras import needs
from hypothesis import given
from hypothesis import strategies as st

pytestmark = needs("torch")

SHIFT = 10**12  # ns by which the clock of each further host is ahead
LATE = 10**10  # ns by which a busy machine may delay a rank, a hundredth of that
BUSY = 0.05  # s that the last rank is busy

TIMES = st.integers(0, 10**9)
TRIPS = st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES), min_size=1, max_size=8)


@given(st.integers(-(10**15), 10**15), TRIPS)
def test_the_offset_is_known_to_half_a_trip(ahead: int, trips: list[tuple[int, int, int, int]]):
    """However long the ways there and back, and the answer between, took: the true offset lies within the doubt, which
    is that of the quickest trip."""
    from simcoll.measurement.torch_backend.session import Trip, offset

    read = [
        Trip(at + ahead, at + there, at + there + answer, at + there + answer + back + ahead)
        for at, there, answer, back in trips
    ]
    found = offset(read)
    assert abs(found.ahead - ahead) <= found.doubt
    assert found.doubt == min(-(-(there + back) // 2) for _, there, _, back in trips)


HOST = f"""
import sys, time
from pathlib import Path
rank, meet = int(sys.argv[1]), sys.argv[2]
true = time.monotonic_ns
time.monotonic_ns = lambda: true() + rank * {SHIFT}
from simcoll.measurement.torch_backend import session
session.BOOT = Path("no such file")
store = session.meeting(meet, rank, 3)
with session.Session("gloo", rank, 3, rank, store, 60.0) as mine:
    began = []
    def run():
        began.append(true())
        time.sleep({BUSY} if rank == 2 else 0)
    timing = mine.timed(run)
    spread = [when for (when,) in mine.gather([began[0]])]
    print(int(mine.one_host), mine.doubt, timing.duration, max(spread) - min(spread))
"""


@pytest.mark.long  # three processes that import torch
def test_ranks_of_several_hosts_begin_together(tmp_path: Path):
    """Three processes whose clocks are 1,000 s apart, and that share no kernel as far as they know, begin within their
    doubt and what a busy processor adds; each run lasts from there."""
    words = [sys.executable, "-c", HOST]
    meet = f"file://{tmp_path / 'meet'}"
    ranks = [
        subprocess.Popen([*words, str(rank), meet], stdout=subprocess.PIPE, text=True, env=environment())
        for rank in range(3)
    ]
    said = [list(map(int, rank.communicate(timeout=PATIENCE_S)[0].split())) for rank in ranks]
    assert not any(one_host for one_host, *_ in said)
    assert all(0 < doubt < LATE for _, doubt, *_ in said[1:])
    assert BUSY * 1e9 <= said[2][2] < LATE
    assert all(spread < LATE for *_, spread in said)
