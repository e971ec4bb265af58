"""The network lab: run points for real between virtual hosts on this machine.

`network_namespaces` builds the scenario's topology; `real_run` runs one rank on each host, over gloo and TCP. Links
have the scenario's bandwidth, so links and not the processor determine the times. Contention, incast, oversubscription
and slow links are thus real. The latency of links is Linux's, not the scenario's.

Ranks have PRIORITY over all other processes. Otherwise a rank might wait for a core while its link is idle, and the
times would include the machine's other work.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from simcoll.config.grouping import grouped
from simcoll.measurement import real_run
from simcoll.measurement.cases_of_points import CaseRow, Tell
from simcoll.measurement.launcher import Launcher, orderly_end
from simcoll.measurement.network_namespaces import INTERFACE, BuiltNetwork
from simcoll.scenario.scenario_files import Point
from simcoll.topology import topology_builder

PRIORITY: Final = ("chrt", "--rr", "10")  # real-time, round robin; every level precedes ordinary processes


def run(
    points: Sequence[Point],
    *,
    timeout_s: float = 60.0,
    tell: Tell = lambda line: None,
    log: real_run.CaseLog | None = None,
) -> list[CaseRow]:
    """Measure points, each between the hosts of its topology; return rows of a measured table.

    Raises the errors of `real_run.run`, and InputError without root or for a topology that cannot be built.
    """

    def hosts(point: Point) -> str:
        return repr((point.scenario.topology, point.scenario.seed, point.scenario.placement))

    with orderly_end():
        return [row for group in grouped(points, hosts).values() for row in _measured(group, timeout_s, tell, log)]


def _measured(points: Sequence[Point], timeout_s: float, tell: Tell, log: real_run.CaseLog | None) -> list[CaseRow]:
    """Measure points that share topology, seed and placement, in one network."""
    scenario = points[0].scenario
    with BuiltNetwork(topology_builder.build(scenario.topology, seed=scenario.seed)) as network:
        return real_run.run(points, launcher(network, scenario.placement), timeout_s=timeout_s, tell=tell, log=log)


def launcher(network: BuiltNetwork, placement: object = None) -> Launcher:
    """Return a launcher that starts rank r on the r-th host of `placement`, or of the network without a placement."""
    hosts, first = placement if isinstance(placement, tuple) else network.hosts, priority()
    return Launcher(
        prefix=lambda rank: [*network.inside(hosts[rank]), *first],
        environment=lambda rank: {"GLOO_SOCKET_IFNAME": INTERFACE},
    )


def priority() -> tuple[str, ...]:
    """Return the command words PRIORITY, or () if they do not work on this machine: some containers forbid them."""
    if shutil.which(PRIORITY[0]) is None or subprocess.run([*PRIORITY, "true"], capture_output=True).returncode:
        return ()
    return PRIORITY
