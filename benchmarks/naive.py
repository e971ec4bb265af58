"""A ring all-reduce as one would first write it in SimPy: a process a message, a Resource a link."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from simcoll.engine.timing_model import service_ps


def ring(nbytes: int, up: Sequence[int], down: Sequence[int], latency: int) -> int:
    """Makespan in ps of a ring all-reduce over a star, whole chunks cut through at the switch.

    `nbytes` of a chunk; `up` and `down`: B/s of the link from each host, and to it; `latency` of a link in ps.
    """
    env, n = simpy.Environment(), len(up)
    out, into = ([(simpy.Resource(env), service_ps(nbytes, rate)) for rate in rates] for rates in (up, down))

    def message(src: int, before: simpy.Process | None) -> Generator[simpy.Event, Any, None]:
        if before is not None:
            yield before
        tail = 0
        for link, service in (out[src], into[(src + 1) % n]):
            turn = link.request()
            yield turn
            done = env.timeout(service)
            done.callbacks.append(lambda _, link=link, turn=turn: link.release(turn))
            tail = max(env.now + service, tail) + latency
            yield env.timeout(latency)
        yield env.timeout(tail - env.now)

    last: list[simpy.Process | None] = [None] * n
    for _ in range(2 * (n - 1)):
        last = [env.process(message(rank, last[rank - 1])) for rank in range(n)]
    env.run()
    return int(env.now)
