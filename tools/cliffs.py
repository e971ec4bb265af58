"""Look for predicted times on several nodes that no real machine would have, and that no measured row can refute.

    python tools/cliffs.py OUT.csv [--only SYSTEM]... [--nodes 2,8] [--collective NAME]... [--against BEFORE.csv]

Predicts calls of all shipped systems on several nodes with the shipped costs, and writes them to OUT.csv. It prints,
the worst of each kind first, where

* a larger call takes less time, by more than 15 % (falls),
* a call that is larger by at most 26 % takes more than 1.7 times as long (jumps),
* more nodes take less time, by more than 10 % (nodes),
* the network carries more than NICs are rated for (rate).

There are four sizes to a doubling, and sizes a KiB beside powers of two. Where two neighbouring sizes show a fall or
jump (an edge), sizes between them are added until the edge lies between sizes that differ by 1/1024. Behind the edge
stands what NCCL cuts otherwise on its two sides; if that is "nothing", the model is wrong. With `--against` the tool
also prints which calls changed by more than 5 %.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import simcoll
from simcoll import api, units
from simcoll.nccl.call import NcclCall
from simcoll.prediction import lowered_call
from simcoll.prediction.nccl_calls import NcclChannel
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import load_system

NODES: Final = (2, 3, 4, 5, 6, 8, 10, 12, 16)
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
LEAST, MOST, KIB = 3, 33, 1 << 10  # powers of two
FALL, RISE, NEAR, FEWER = 0.85, 1.7, 1.26, 0.90
SHARP: Final = 1024  # what an edge is halved down to, as a share of the size


class Call(NamedTuple):
    """A predicted call: its system, nodes, collective and size in bytes; what runs it, and its time in us."""

    system: str
    nodes: int
    collective: str
    size: int
    algorithm: str
    protocol: str
    time_us: float

    @property
    def series(self) -> tuple[str, int, str]:
        """A key that is equal for calls that differ only in size."""
        return self[:3]

    @property
    def way(self) -> str:
        """The algorithm and protocol as text, e.g. `ring/LL`."""
        return f"{self.algorithm}/{self.protocol}"


def sizes() -> list[int]:
    """Return the sizes to predict, in bytes: four to a doubling, and a KiB less and more than powers of two."""
    found = {power * quarter // 4 for power in (1 << k for k in range(LEAST, MOST)) for quarter in (4, 5, 6, 7)}
    beside = {(1 << k) + way * KIB for k in range(14, MOST) for way in (-1, 1)}
    return sorted({max(8, size // 8 * 8) for size in found | beside | {1 << MOST}})


def predicted(system: str, nodes: int, collective: str, asked: list[int]) -> list[Call]:
    """Predict the calls of these sizes (bytes); sizes that cannot be predicted are left out."""
    rows = api.run(topology={"system": system, "nodes": nodes}, collective=collective, size=asked, algorithm="auto")
    return [
        Call(system, nodes, collective, row["size_bytes"], row["algorithm"], row["protocol"], row["time_ps"] / 1e6)
        for row in rows
        if row["status"] == "ok"
    ]


def series_of(system: str, nodes: int, collective: str) -> list[Call]:
    """Predict a series of sizes, and further sizes around each edge (fall or jump) until two are close to it."""
    calls = predicted(system, nodes, collective, sizes())
    while between := [
        (a.size + b.size) // 16 * 8 for a, b in pairwise(calls) if edge(a, b) and b.size - a.size > near(a)
    ]:
        calls = sorted(calls + predicted(system, nodes, collective, between), key=attrgetter("size"))
    return calls


def near(call: Call) -> int:
    """Return the distance in bytes at which two sizes around an edge are close enough."""
    return max(8, call.size // SHARP)


def edge(a: Call, b: Call) -> str:
    """Return what is odd between call `a` and the larger call `b`: `falls`, `jumps`, or '' for nothing."""
    grows = b.time_us / a.time_us
    return "falls" if grows < FALL else "jumps" if grows > RISE and b.size <= NEAR * a.size else ""


def rules(a: Call, b: Call) -> str:
    """Return in words what NCCL does for call `b` unlike for call `a`; `nothing` if there is no difference."""
    first, second = cuts(a), cuts(b)
    return (
        ", ".join(f"{name} {first[name]} -> {second[name]}" for name in first if first[name] != second.get(name))
        or "nothing"
    )


def cuts(call: Call) -> dict[str, Any]:
    """Return how NCCL cuts a call, by name: channels, threads, chunk size, and so on."""
    asked = {"topology": {"system": call.system, "nodes": call.nodes}, "collective": call.collective}
    [point] = simcoll.load({**asked, "size": f"{call.size} B", "algorithm": "auto"})
    lowered = lowered_call.executor(point.scenario).lower(point.scenario)
    if not isinstance(lowered, NcclChannel):
        return {}
    made: NcclCall = lowered.call
    if made.parts:
        shape = {"channels": made.parts.channels, "message": made.parts.sent}
    else:
        shape = {"channels": made.channels, "threads": made.threads, "chunk": made.chunk, "slices": made.slices}
        shape |= {"rounds": made.rounds} if made.schedule == "ring" else {}
    return {"way": call.way, **shape}


def findings(calls: list[Call]) -> Iterator[tuple[str, float, str]]:
    """Yield each oddity as its kind, its size as a ratio of times or rates, and a description."""
    whole = {series: list(group) for series, group in groupby(calls, attrgetter("series"))}
    rates = {system: of_nics(system) for system in {call.system for call in calls}}
    for (system, nodes, collective), group in whole.items():
        where = f"{system} x {nodes} {collective}"
        for a, b in pairwise(group):
            if kind := edge(a, b):
                yield kind, b.time_us / a.time_us, f"{where} {said(a)} -> {said(b)} [{rules(a, b)}]"
        fewer = [whole[series] for n in range(1, nodes) if (series := (system, n, collective)) in whole]
        for a, b in alike(fewer[-1], group) if fewer else ():
            if b.time_us < FEWER * a.time_us:
                words = f"{where} {said(b)} ({a.nodes} nodes: {said(a)}) [{rules(a, b)}]"
                yield "nodes", b.time_us / a.time_us, words
        gpus, rate = rates[system]
        for call in group:
            if (over := carried(call, gpus) / call.time_us * 1e-3 / rate) > 1:
                yield "rate", over, f"{where} {said(call)}"


def alike(some: Iterable[Call], others: Iterable[Call]) -> Iterator[tuple[Call, Call]]:
    """Yield pairs of calls with equal sizes, one from each list."""
    known = {call.size: call for call in some}
    yield from ((known[call.size], call) for call in others if call.size in known)


def of_nics(system: str) -> tuple[int, float]:
    """Return the number of GPUs of a node, and the GB/s of all its NICs together."""
    file: Any = load_system(system)
    return file.devices["gpu"], file.devices["nic"] * units.parse(file.nic.rate, "bandwidth") / 1e9


def carried(call: Call, gpus: int) -> float:
    """Return the least number of bytes that must leave some node in this call."""
    nodes, ranks = call.nodes, call.nodes * gpus
    if call.collective == "all_reduce":
        return 2 * call.size * (nodes - 1) / nodes
    if call.collective in ("all_gather", "reduce_scatter"):
        return call.size * (nodes - 1) / nodes
    return call.size * gpus * (ranks - gpus) / ranks if call.collective == "all_to_all" else call.size


def said(call: Call) -> str:
    """Return the size, algorithm, protocol and time of a call in words."""
    return f"{units.format_size(call.size)} {call.way} {call.time_us:.5g} us"


def read(path: Path) -> list[Call]:
    """Return the calls of a CSV file that an earlier run wrote."""
    with path.open(encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    whole = [{**row, "nodes": int(row["nodes"]), "size": int(row["size"])} for row in rows]
    return [Call(**{**row, "time_us": float(row["time_us"])}) for row in whole]


def main() -> int:
    """Predict and write the calls, print the odd ones, and return the exit status."""
    parser = argparse.ArgumentParser(description="Look for odd times on several nodes.")
    parser.add_argument("out", type=Path, help="table of the calls")
    parser.add_argument("--only", action="append", help="a system")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="counts of nodes")
    parser.add_argument("--collective", action="append", choices=COLLECTIVES, help="a collective")
    parser.add_argument("--against", type=Path, help="a table of before")
    parser.add_argument("--again", action="store_true", help="read OUT in place of predicting")
    asked = parser.parse_args()
    calls: list[Call] = read(asked.out) if asked.again else []
    for system in [] if asked.again else asked.only or [name for name in shipped_systems() if load_system(name).nic]:
        began = time.process_time()
        for nodes in map(int, asked.nodes.split(",")):
            for collective in asked.collective or COLLECTIVES:
                calls += series_of(system, nodes, collective)
        print(f"{system}: {time.process_time() - began:.1f} s of CPU", file=sys.stderr, flush=True)
    if not asked.again:
        with asked.out.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([Call._fields, *calls])
    for kind, size, words in sorted(findings(calls), key=lambda found: (found[0], -abs(math.log(found[1])))):
        print(f"{kind:5} {size:5.2f} {words}")
    if asked.against:
        before = {call[:4]: call for call in read(asked.against)}
        for call in calls:
            old = before.get(call[:4])
            if old and abs(call.time_us / old.time_us - 1) > 0.05:
                where = f"{call.system} x {call.nodes} {call.collective}"
                print(f"now   {call.time_us / old.time_us:5.2f} {where} {said(old)} -> {said(call)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
