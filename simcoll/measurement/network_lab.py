"""The network lab: the points of a scenario run for real, between hosts made on this machine.

`namespaces` builds the scenario's topology, `measure` runs the ranks in it, one on each host, over gloo and TCP. Links
are as slow as the scenario says, so they are what takes time and not the processor: contention, incast,
oversubscription and slow links are real. The latency of links is what Linux takes; the scenario's is not imposed.

Ranks go before everything else on the machine (PRIORITY). A rank that has to wait for a core while its link is idle
would measure the machine's other work.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Final

from simcoll.measurement import real_run
from simcoll.measurement.cases import CaseRow, Tell
from simcoll.measurement.launcher import Launcher, orderly_end
from simcoll.measurement.network_namespaces import BuiltNetwork
from simcoll.measurement.network_wiring import INTERFACE
from simcoll.scenario.scenario import Point
from simcoll.topology import systems

PRIORITY: Final = ("chrt", "--rr", "10")


def run(points: Sequence[Point], *, timeout_s: float = 60.0, tell: Tell = lambda line: None) -> list[CaseRow]:
    """Measure points, each between the hosts of its topology: rows of a measured table.

    Raises InputError without root and for topologies that cannot be built; else like `measure.run`.
    """
    alike: dict[str, list[Point]] = {}
    for point in points:
        scenario = point.scenario
        alike.setdefault(repr((scenario.topology, scenario.seed, scenario.placement)), []).append(point)
    with orderly_end():
        return [row for group in alike.values() for row in _measured(group, timeout_s, tell)]


def _measured(points: Sequence[Point], timeout_s: float, tell: Tell) -> list[CaseRow]:
    """The rows of points that run between the same hosts."""
    scenario = points[0].scenario
    with BuiltNetwork(systems.build(scenario.topology, seed=scenario.seed)) as network:
        return real_run.run(points, launcher(network, scenario.placement), timeout_s=timeout_s, tell=tell)


def launcher(network: BuiltNetwork, placement: object = None) -> Launcher:
    """Starts rank r on the r-th host, or on the r-th of the hosts that `placement` names."""
    hosts = placement if isinstance(placement, tuple) else network.hosts
    return Launcher(
        prefix=lambda rank: [*network.inside(hosts[rank]), *priority()],
        environment=lambda rank: {"GLOO_SOCKET_IFNAME": INTERFACE},
    )


@cache
def priority() -> tuple[str, ...]:
    """PRIORITY, where it is to be had: not in every container."""
    if shutil.which(PRIORITY[0]) is None or subprocess.run([*PRIORITY, "true"], capture_output=True).returncode:
        return ()
    return PRIORITY
