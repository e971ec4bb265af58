"""All shipped algorithms: importing this package fills the registry.

Each module holds one family of algorithms, each function one algorithm. Shared steps are in `building_blocks`.
"""

from __future__ import annotations

import operator

from simcoll.errors import InputError
from simcoll.schedule.algorithms import direct, doubling, hierarchical, naive, nvls, pat, ring, torus, tree
from simcoll.schedule.registry import Groups, Request, find
from simcoll.schedule.schedule import Schedule, StreamedSchedule

__all__ = ["build", "direct", "doubling", "hierarchical", "naive", "nvls", "pat", "ring", "stream", "torus", "tree"]


def build(collective: str, algorithm: str, n: int, *, root: int = 0, groups: Groups = (), agents: int = 0) -> Schedule:
    """Return the schedule of the algorithm for `n` ranks.

    `algorithm` may have options, e.g. `hierarchical(across=recursive_doubling)`. Raises InputError for unknown names,
    RefusedError if the algorithm does not support the request, ScheduleError if an algorithm of your own fails.

    >>> print(build("all_reduce", "naive", 2))
    all_reduce/naive: 2 ranks, 1 chunks, 2 steps, 2 transfers
      step 0: chunk 0: 1→0 reduce
      step 1: chunk 0: 0→1
    """
    streamed = stream(collective, algorithm, n, root=root, groups=groups, agents=agents)
    with find(collective, algorithm)[0].named():
        return streamed.schedule()


def stream(
    collective: str, algorithm: str, n: int, *, root: int = 0, groups: Groups = (), agents: int = 0
) -> StreamedSchedule:
    """Return the schedule that `build` returns, but yielded step by step, for schedules too large for memory."""
    try:
        ranks = operator.index(n)
    except TypeError:
        ranks = 0
    if ranks < 1:
        raise InputError(f"{n!r} is no number of ranks", "give 1, 2, …")
    entry, options = find(collective, algorithm)
    return entry.stream(Request(n, root, groups, agents, options), algorithm.replace(" ", ""))
