"""Why it takes as long as it does: the critical path and its causes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from oracle import random_case, random_tasks
from test_engine import joint_program_of, program_of

from simcoll.analysis.critical import critical_path
from simcoll.engines import fast
from simcoll.program import Program


def check(played: Program, seed: int) -> None:
    """The segments of one run."""
    times = fast.run(played).timeline
    assert times is not None
    path = critical_path(played, times)
    assert path.total_ps == times.makespan_ps, seed
    segments = list(path)
    assert segments[0].begin_ps == 0, seed
    assert segments[-1].end_ps == times.makespan_ps, seed
    assert all(a.end_ps == b.begin_ps for a, b in pairwise(segments)), seed
    assert all(s.begin_ps < s.end_ps for s in segments), seed
    assert sum(path.by_cause().values()) == times.makespan_ps, seed


@pytest.mark.parametrize("batch", range(10))
def test_segments_add_up(batch: int) -> None:
    """Of random programs, of one operation and of several, the segments of the path meet without gap or overlap, from
    0 to the end of the run."""
    for seed in range(batch * 50, batch * 50 + 50):
        check(program_of(*random_case(random.Random(seed), contention=seed % 4 != 0)), seed)
        check(joint_program_of(*random_tasks(random.Random(seed), contention=seed % 4 != 0)), seed)
