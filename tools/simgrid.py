"""Compare contention on networks other than stars with SimGrid, another simulator of flows that share links.

    python tools/simgrid.py        (needs g++ and libsimgrid-dev)

Prints a line for each network and schedule: the makespan in ps by SimGrid and by simcoll, and their difference. The
first numbers are those that tests/engine/test_simgrid.py keeps. SimGrid's model CM02 divides a link in inverse
proportion to the latencies of routes. So here all SimGrid routes get the same latency, by an extra link that limits
nothing; simcoll's links have 1 ns each. Messages to one peer are sent one after the other, as over a channel.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import simcoll
from simcoll.schedule import algorithms
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Topology
from simcoll.topology.topology_builder import build
from simcoll.topology.topology_keys import TopologySpec

SOURCE: Final = Path(__file__).parent / "simgrid_routes.cpp"
BYTES: Final = 4_000_000  # of a chunk
EVEN_PS: Final = 20_000  # latency of every route, in SimGrid
FREE: Final = "1e15"  # B/s of links that limit nothing
LINK: Final = {"bandwidth": "50 GB/s", "latency": "1 ns"}
NETWORKS: Final[dict[str, dict[str, Any]]] = {
    "tree": {"fabric": "fat-tree", "levels": 2, "hosts": 12, "hosts_per_leaf": 4, "oversubscription": 3, "link": LINK},
    "ring": {"fabric": "ring", "hosts": 8, "link": LINK},
    "torus": {"fabric": "torus", "dims": [3, 4], "link": LINK},
    "mesh": {"fabric": "full-mesh", "hosts": 5, "link": LINK},
}
SCHEDULES: Final = (
    ("all_to_all", "direct"),
    ("all_reduce", "ring"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "halving_doubling"),
)


def time_ps(network: str, collective: str, algorithm: str) -> int:
    """Return simcoll's makespan in ps, with max-min fair links and one channel per peer."""
    spec = NETWORKS[network]
    plan = schedule_of(network, collective, algorithm)
    return simcoll.predict(
        topology=spec,
        collective=collective,
        algorithm=algorithm,
        size=f"{plan.n_chunks * BYTES} B",
        dtype="uint8",
        profile="one-port",
        model={"sharing": "fair", "channels": "per-peer", "gamma": "0 ps/B"},
    ).time_ps


def schedule_of(network: str, collective: str, algorithm: str) -> Schedule:
    """Return the schedule of an algorithm for all hosts of a network."""
    hosts = len(build(TopologySpec.model_validate(NETWORKS[network])).ranks)
    return algorithms.stream(collective, algorithm, hosts).schedule()


def asked(topology: Topology, plan: Schedule) -> Iterator[str]:
    """Yield the lines of input for simgrid_routes.cpp: links, routes and messages."""
    hosts = topology.ranks
    rows, heads = list(plan.by_slot()), plan.by_slot().heads.tolist()
    every = [rows[first:end] for first, end in itertools.pairwise([*heads, len(rows)])]  # messages, and own copies
    moved = [message for message in every if message[0].src != message[0].dst]
    ways = {(row.src, row.dst): topology.route(hosts[row.src], hosts[row.dst]) for row, *_ in moved}
    yield f"{len(hosts)} {len(topology.links) + len(ways)} {len(ways)} {len(moved)}"
    for bandwidth, latency in zip(topology.bandwidths.tolist(), topology.latencies.tolist(), strict=True):
        yield f"{bandwidth} {latency / 1e12!r}"
    for way in ways.values():
        yield f"{FREE} {(EVEN_PS - sum(int(topology.latencies[link]) for link in way)) / 1e12!r}"
    for number, ((a, b), way) in enumerate(ways.items(), len(topology.links)):
        yield f"{a} {b} {len(way) + 1} {' '.join(map(str, (*way, number)))}"
    written = [{(row.dst, row.dst_slot) for row in message} for message in moved]
    for index, message in enumerate(moved):
        step, a, b = message[0].step, message[0].src, message[0].dst
        read = {(a, row.src_slot) for row in message}
        brought = {i for i, (row, *_) in enumerate(moved) if row.step < step and not read.isdisjoint(written[i])}
        ahead = [i for i, (row, *_) in enumerate(moved[:index]) if (row.src, row.dst) == (a, b)]
        before = sorted(brought | {*ahead[-1:]})
        yield f"{a} {b} {len(message) * BYTES} {len(before)} {' '.join(map(str, before))}"


def main() -> int:
    """Compile the program with SimGrid, run it, and print the comparison."""
    with TemporaryDirectory() as folder:
        program = Path(folder) / "routes"
        command = ["c++", "-O1", "-std=c++17", "-o", str(program), str(SOURCE), "-lsimgrid"]
        if subprocess.run(command).returncode:
            print("SimGrid is missing: on Debian, apt-get install g++ libsimgrid-dev", file=sys.stderr)
            return 1
        for network, spec in NETWORKS.items():
            topology = build(TopologySpec.model_validate(spec))
            for collective, algorithm in SCHEDULES:
                lines = "\n".join(asked(topology, schedule_of(network, collective, algorithm)))
                done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
                theirs, ours = int(done.stdout), time_ps(network, collective, algorithm)
                print(
                    f"{network:<6} {collective + '/' + algorithm:<30} {theirs:>12} {ours:>12} {ours / theirs - 1:+.4%}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
