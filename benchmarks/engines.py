"""How long a ring all-reduce takes to simulate, by engine and by what is done: `make bench`.

64 MiB over a star of 50 GB/s, 0.5 us links, two a route. Wall seconds, the best of three; ratios in one run are what
counts, as machines differ and are busy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import simcoll.algorithms
from simcoll import tables
from simcoll.compiled import have_numba
from simcoll.engines import event, fast
from simcoll.model import Params
from simcoll.program import bind
from simcoll.systems import TopologySpec, build

LINK = {"bandwidth": "50 GB/s", "latency": "0.5 us"}
MOST_EVENTS = 300_000  # transfers up to which the event engine is run as well


def timed(work: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """Best wall time in seconds, and what the last run returned."""
    best, result = float("inf"), None
    for _ in range(times):
        began = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - began)
    return best, result


def measure(n: int, sharing: str, compiled: bool) -> dict[str, Any]:
    """One line of the table."""
    topology = build(TopologySpec.model_validate({"fabric": "single-switch", "hosts": n, "link": LINK}))
    made, schedule = timed(lambda: simcoll.algorithms.build("all_reduce", "ring", n), 1)
    bound, program = timed(lambda: bind(schedule, topology, topology.ranks, Params(sharing=sharing), 64 << 20), 1)
    heap, done = timed(lambda: fast.run(program, shortcuts=False, compiled=compiled, hops=False))
    replay, again = timed(lambda: fast.run(program, compiled=compiled, hops=False))
    row = {"sharing": sharing, "ranks": n, "messages": len(program), "schedule": made, "bind": bound}
    row |= {"heap": heap, "replay": replay, "heap (M/s)": len(program) / heap / 1e6}
    if done.timeline.makespan_ps != again.timeline.makespan_ps:
        raise SystemExit("heap and replay differ")
    if len(program) <= MOST_EVENTS:
        seconds, whole = timed(lambda: event.run(program), 1)
        if whole.makespan_ps != done.timeline.makespan_ps:
            raise SystemExit("event and fast differ")
        row |= {"event": seconds, "event/heap": seconds / heap, "event/replay": seconds / replay}
    return row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="64,256,1024")
    ranks = [int(n) for n in parser.parse_args().ranks.split(",")]
    compiled = have_numba()
    print(f"# seconds; kernel {'compiled by numba' if compiled else 'not compiled: install the extra fast'}")
    for sharing in ("fifo", "fair"):
        measure(4, sharing, compiled)  # compiles, or loads what is compiled
    rows = [measure(n, sharing, compiled) for sharing in ("fifo", "fair") for n in ranks]
    columns = dict.fromkeys(column for row in rows for column in row)
    print(tables.render(list(columns), rows))


if __name__ == "__main__":
    main()
