"""Look for times on several nodes that no measured row can judge and no machine would have.

    python tools/cliffs.py OUT.csv [--only SYSTEM]... [--nodes 2,8] [--against BEFORE.csv]

Predicts calls of all shipped systems on several nodes by the costs as shipped, writes them to OUT.csv, and prints where

* a larger call of the same algorithm and protocol takes less time, by more than 5 %,
* a call of twice the size takes more than 2.5 times as long, or less by more than 25 %, by another way,
* more nodes take less time, by more than 10 %, by the same algorithm and protocol,
* the network carries more than NICs are rated for.

Each needs a reason in what the library does. With `--against` it also prints which calls changed by more than 5 %.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from simcoll import api, units
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.systems import load_system

NODES: Final = (2, 4, 8, 16, 64)
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
SIZES: Final = {"from": "8 B", "to": "8 GiB", "factor": 2}
FALL, RISE, DROP, FEWER = 0.95, 2.5, 0.75, 0.90


class Call(NamedTuple):
    """A predicted call."""

    system: str
    nodes: int
    collective: str
    size: int
    algorithm: str
    protocol: str
    time_us: float

    @property
    def point(self) -> tuple[str, int, str, int]:
        """What was asked."""
        return self[:4]

    @property
    def way(self) -> str:
        """Algorithm and protocol."""
        return f"{self.algorithm}/{self.protocol}"


def predicted(systems: list[str], counts: list[int]) -> Iterator[Call]:
    """Predict all calls."""
    for system in systems:
        for nodes in counts:
            began = time.process_time()
            for collective in COLLECTIVES:
                topology = {"system": system, "nodes": nodes}
                for row in api.run(topology=topology, collective=collective, size=SIZES, algorithm="auto"):
                    if row["status"] == "ok":
                        way = row["algorithm"], row["protocol"]
                        yield Call(system, nodes, collective, row["size_bytes"], *way, row["time_ps"] / 1e6)
            print(f"{system} x {nodes}: {time.process_time() - began:.1f} s of CPU", file=sys.stderr, flush=True)


def findings(calls: list[Call]) -> Iterator[str]:
    """Yield a line for each oddity."""
    known = {call.point: call for call in calls}
    rates = {system: of_nics(system) for system in {call.system for call in calls}}
    for call in calls:
        after = known.get((*call.point[:3], 2 * call.size))
        where = f"{call.system} x {call.nodes} {call.collective}"
        if after:
            grows, same = after.time_us / call.time_us, after.way == call.way
            kind = "falls" if same and grows < FALL else "jumps" if grows > RISE else "drops" if grows < DROP else ""
            if kind:
                yield f"{kind:5} {grows:5.2f} {where} {said(call)} -> {said(after)}"
        fewer = [other for n in NODES if n < call.nodes and (other := known.get((call.system, n, *call.point[2:])))]
        if fewer and fewer[-1].way == call.way and call.time_us < FEWER * fewer[-1].time_us:
            other = fewer[-1]
            yield f"nodes {call.time_us / other.time_us:5.2f} {where} {said(call)} ({other.nodes} nodes: {said(other)})"
        gpus, rate = rates[call.system]
        if (over := carried(call, gpus) / call.time_us * 1e-3 / rate) > 1:
            yield f"rate  {over:5.2f} {where} {said(call)}"


def of_nics(system: str) -> tuple[int, float]:
    """GPUs of a node, and GB/s of all its NICs."""
    file: Any = load_system(system)
    return file.devices["gpu"], file.devices["nic"] * units.parse(file.nic.rate, "bandwidth") / 1e9


def carried(call: Call, gpus: int) -> float:
    """The least bytes that leave some node."""
    nodes, ranks = call.nodes, call.nodes * gpus
    if call.collective == "all_reduce":
        return 2 * call.size * (nodes - 1) / nodes
    if call.collective in ("all_gather", "reduce_scatter"):
        return call.size * (nodes - 1) / nodes
    return call.size * gpus * (ranks - gpus) / ranks if call.collective == "all_to_all" else call.size


def said(call: Call) -> str:
    """Return size, way and time in words."""
    return f"{units.format_size(call.size)} {call.way} {call.time_us:.5g} us"


def read(path: Path) -> list[Call]:
    """Read calls that were written."""
    with path.open(encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    whole = [{**row, "nodes": int(row["nodes"]), "size": int(row["size"])} for row in rows]
    return [Call(**{**row, "time_us": float(row["time_us"])}) for row in whole]


def main() -> int:
    """Write the calls; print what is odd."""
    parser = argparse.ArgumentParser(description="Look for odd times on several nodes.")
    parser.add_argument("out", type=Path, help="table of the calls")
    parser.add_argument("--only", action="append", help="a system")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="counts of nodes")
    parser.add_argument("--against", type=Path, help="a table of before")
    parser.add_argument("--again", action="store_true", help="read OUT in place of predicting")
    asked = parser.parse_args()
    systems = asked.only or [name for name in shipped_systems() if load_system(name).nic]
    calls = read(asked.out) if asked.again else list(predicted(systems, list(map(int, asked.nodes.split(",")))))
    if not asked.again:
        with asked.out.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([Call._fields, *calls])
    for line in findings(calls):
        print(line)
    if asked.against:
        before = {call.point: call for call in read(asked.against)}
        for call in calls:
            old = before.get(call.point)
            if old and abs(call.time_us / old.time_us - 1) > 0.05:
                where = f"{call.system} x {call.nodes} {call.collective}"
                print(f"now   {call.time_us / old.time_us:5.2f} {where} {said(old)} -> {said(call)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
