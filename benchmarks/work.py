"""What is measured, each function in a process of its own: `python -m benchmarks.work NAME '{…}'` prints one JSON line.

Times are floats in seconds, memory floats in MB (the peak of the whole process until then). Start-up is off the clock:
modules are imported and compiled code is loaded before it starts.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks import cases
from benchmarks import lean as lean_simpy
from benchmarks import naive as naive_simpy
from benchmarks.cases import Keys
from simcoll import api
from simcoll.engine import fast, link_usage, lower_bounds, streamed
from simcoll.engine.binding import bind
from simcoll.engine.streamed import RoutedParts
from simcoll.engine.timing_model import dependencies
from simcoll.errors import SimcollError
from simcoll.prediction.predict import predict, row
from simcoll.prediction.predictions import CallPrediction
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import algorithms, proof
from simcoll.schedule.proof import FULL_PROOF
from simcoll.topology import topology_builder
from simcoll.topology.graph import Topology
from simcoll.topology.topology_keys import TopologySpec

Found = dict[str, Any]


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> Found:
        """With the peak of memory so far."""
        return {"s": time.perf_counter() - self.wall, "cpu s": time.process_time() - self.cpu, "MB": peak()}


def peak() -> float:
    """Of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def load(keys: Keys) -> Scenario:
    """The scenario of these keys."""
    (point,) = api.load(keys)
    return point.scenario


def build(keys: Keys) -> Topology:
    """The topology of these keys."""
    return topology_builder.build(TopologySpec.model_validate(keys))


def warm_up(sharing: str = "fifo") -> None:
    """Load compiled code: the fast engine and streams run four ranks."""
    keys = cases.star(4)
    topology, params = build(keys), load(cases.point(keys, sharing)).params()
    made = algorithms.stream("all_reduce", "ring", 4)
    program = bind(made.schedule(), topology, topology.ranks, params, 1024)
    sizes = streamed.loop_sizes(made, 1024, 4, 0)
    fast.totals(program, compiled=True)
    for way in (True, False):
        streamed.run(RoutedParts(made, topology, topology.ranks, params), sizes, compiled=True, whole=way)


def point(keys: Keys, proved: bool = False) -> Found:
    """One point from its keys to its row; then its proof as well, if asked for."""
    asked = load(keys)
    if asked.engine != "event":
        warm_up(asked.params().sharing)
    before, clock = peak(), Clock()
    prediction = predict(asked)
    found = row(prediction)
    done = {**clock.read(), "start MB": before}
    done |= {key: getattr(found, key) for key in ("messages", "time_ps", "ranks")}
    done["how"] = "event" if found.engine == "event" else str(found.shortcut).replace("none", "heap")
    if proved:
        clock = Clock()
        assert isinstance(prediction, CallPrediction)
        proof.prove(prediction.source, "full" if prediction.source.n <= FULL_PROOF else "fingerprint")
        done |= {f"proof {name}": value for name, value in clock.read().items()}
    return done


def step(name: str, sets: list[str]) -> Found:
    """A workload from the scenario's name to its row."""
    (asked,) = api.load(name, sets)
    warm_up(asked.scenario.params().sharing)
    predict(api.load(name, [*sets, "topology.nodes=1", "workload.model=mlp"])[0])
    before, clock = peak(), Clock()
    found = row(predict(asked))
    done = {**clock.read(), "start MB": before}
    return {**done, **{key: getattr(found, key) for key in ("messages", "ranks", "buckets", "step_us", "exposed_us")}}


def naive(links: str, ranks: int) -> Found:
    """The ring in naive SimPy."""
    topology = build(cases.star(ranks, links))
    rates = {ends: int(rate) for ends, rate in zip(topology.links, topology.bandwidths, strict=True)}
    hosts = topology.ranks
    clock = Clock()
    up, down = [rates[host, "switch"] for host in hosts], [rates["switch", host] for host in hosts]
    time_ps = naive_simpy.ring(cases.SIZE // ranks, up, down, cases.LATENCY)
    return {**clock.read(), "time_ps": time_ps, "messages": 2 * ranks * (ranks - 1), "how": "naive"}


def lean(ranks: int) -> Found:
    """The ring in lean SimPy, over equal links."""
    clock = Clock()
    time_ps = lean_simpy.ring(ranks, cases.SIZE // ranks, cases.BANDWIDTH, cases.LATENCY)
    return {**clock.read(), "time_ps": time_ps, "messages": 2 * ranks * (ranks - 1)}


def times(keys: Keys) -> list[tuple[int, float]]:
    """Size and predicted time in us of each point."""
    return [(each["size_bytes"], each["time_us"]) for each in api.run(api.load(keys))]


def points(keys: Keys, count: int) -> Found:
    """A sweep or replications in one process, from points to rows, after two points that warm up."""
    asked = api.load(keys)
    api.run(asked[:2] if len(asked) > 1 else api.load({**keys, "replications": 1}))
    clock = Clock()
    rows = api.run(asked)
    found = clock.read()
    if bad := [row["status"] for row in rows if row["status"] != "ok"]:
        raise SimcollError(f"{len(bad)} points have no result: {bad[0]}")
    return {**found, "points": count, "ms/point": 1e3 * found["cpu s"] / count}


def phases(ranks: int, links: str, way: str) -> list[Found]:
    """Where the time of a ring goes, by `heap` or by `stream`: the public functions in turn."""
    warm_up()
    return (_heap_phases if way == "heap" else _stream_phases)(cases.star(ranks, links))


class _Phases:
    """Runs one thing after the other, and notes what each took."""

    def __init__(self) -> None:
        self.rows: list[Found] = []

    def run(self, what: str, work: Callable[[], Any]) -> Any:
        clock = Clock()
        result = work()
        self.rows.append({"what": what, **clock.read()})
        return result


def _heap_phases(keys: Keys) -> list[Found]:
    asked, phase = load(cases.point(keys, shortcuts="off")), _Phases()
    topology = phase.run("topology built", lambda: build(keys))
    made = algorithms.stream("all_reduce", "ring", len(topology.ranks))
    phase.run("steps made", lambda: list(made.parts()))
    schedule = phase.run("schedule made", made.schedule)
    bound = (topology, topology.ranks, asked.nbytes, asked.itemsize)
    phase.run("lower bound", lambda: lower_bounds.lower_bound_ps(made, *bound))
    phase.run("dependencies derived", lambda: dependencies(schedule))
    network = (topology, topology.ranks, asked.params())
    program = phase.run("bound", lambda: bind(schedule, *network, asked.nbytes, itemsize=asked.itemsize))
    phase.rows[-1] = _without(phase.rows[-1], phase.rows[-2])  # binding derives them again
    totals = phase.run("kernel, bytes summed", lambda: fast.totals(program, compiled=True))
    phase.run("busiest link", lambda: link_usage.binding(totals, topology.bandwidths, totals.makespan_ps))
    return phase.rows


def _stream_phases(keys: Keys) -> list[Found]:
    asked, phase = load(cases.point(keys)), _Phases()
    topology = phase.run("topology built", lambda: build(keys))
    made = algorithms.stream("all_reduce", "ring", len(topology.ranks))
    phase.run("steps made", lambda: list(made.parts()))
    bound = (topology, topology.ranks, asked.nbytes, asked.itemsize)
    phase.run("lower bound", lambda: lower_bounds.lower_bound_ps(made, *bound))
    parts = RoutedParts(made, topology, topology.ranks, asked.params())
    phase.run("bound", lambda: list(parts.bound()))
    sizes = streamed.loop_sizes(made, asked.nbytes, asked.itemsize, 0)
    totals = phase.run("kernel", lambda: streamed.run(parts, sizes))
    phase.rows[-1] = _without(phase.rows[-1], phase.rows[-2])  # the engine binds for itself
    phase.run("busiest link", lambda: link_usage.binding(totals, topology.bandwidths, totals.makespan_ps))
    return phase.rows


def _without(row: Found, part: Found) -> Found:
    """What is left of a phase of which a part was measured before."""
    return {**row, **{key: max(0.0, row[key] - part[key]) for key in ("s", "cpu s")}}


def routes(keys: Keys, pairs: int) -> Found:
    """A topology built and validated, and routes found between random ranks."""
    draw = random.Random(0)
    clock = Clock()
    topology = build(keys)
    built = clock.read()
    for src, dst in [draw.sample(topology.ranks, 2) for _ in range(pairs)]:
        topology.route(src, dst)
    return {**clock.read(), "built s": built["s"], "ranks": len(topology.ranks)}


def sweep(keys: Keys, jobs: int) -> Found:
    """All points of a sweep, proof and rows included; the start-up of further processes is on the clock."""
    points = api.load(keys)
    for sharing in ("fifo", "fair"):
        warm_up(sharing)
    clock = Clock()
    rows = api.run(points, jobs)
    found = clock.read()
    if bad := [row["status"] for row in rows if row["status"] != "ok"]:
        raise SimcollError(f"{len(bad)} points have no result: {bad[0]}")
    return {**found, "points": len(rows), "ranks": rows[0]["ranks"]}


EVERY: Final = (point, step, naive, lean, phases, points, times, routes, sweep)
WORK: Mapping[str, Callable[..., Any]] = {f.__name__: f for f in EVERY}


if __name__ == "__main__":
    print(json.dumps(WORK[sys.argv[1]](**json.loads(sys.argv[2]))))
