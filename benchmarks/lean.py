"""A ring all-reduce in as little SimPy as it takes: a process a rank, and for each message two timeouts."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from simcoll.engine.timing_model import service_ps


def ring(ranks: int, nbytes: int, bandwidth: int, latency: int) -> int:
    """Makespan in ps of a ring all-reduce over a star of equal links, on which no two messages of a ring meet.

    `nbytes` of a chunk; `bandwidth` of a link in B/s; `latency` of a link in ps.
    """
    env, service = simpy.Environment(), service_ps(nbytes, bandwidth)
    coming: list[simpy.Event] = [env.timeout(0) for _ in range(ranks)]  # to each rank, in the step before

    def rank(own: int) -> Generator[simpy.Event, Any, None]:
        for _ in range(2 * (ranks - 1)):
            yield coming[own]
            coming[(own + 1) % ranks] = env.timeout(service + 2 * latency)
            yield env.timeout(service)
        yield coming[own]

    for own in range(ranks):
        env.process(rank(own))
    env.run()
    return int(env.now)
