"""Lower bounds: what no schedule can beat on a topology, whatever it does.

*Latency*: some rank must wait for the farthest rank whose data it needs, over the path of least latency.
*Bandwidth*: across every cut around some ranks the bytes that must leave and enter have to pass. Without reduction in
the network an all-reduce takes 2(n−1) transmissions of every byte, whoever makes them (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcoll.collectives import collective
from simcoll.model import PS_PER_S
from simcoll.schedule import Schedule
from simcoll.topology import Topology

SOURCES: Final = 8  # ranks from which least latencies are measured; fewer make the bound weaker, never wrong

Sizes = NDArray[np.int64]  # (n, blocks): bytes of each block of each rank's buffer
Crossing = Callable[[Sizes, NDArray[np.bool_], int], tuple[int, int]]  # → bytes that must leave, and enter, the inside


def lower_bound_ps(
    schedule: Schedule, topology: Topology, devices: Sequence[str], nbytes: int, itemsize: int, weights: object = None
) -> int:
    """The larger of the latency and the bandwidth bound, over all groups of the schedule."""
    return max(
        max(
            _latency_ps(schedule, group, topology, devices),
            _bandwidth_ps(schedule, group, topology, devices, nbytes, itemsize, weights),
        )
        for group in schedule.groups
    )


def _latency_ps(schedule: Schedule, group: Sequence[int], topology: Topology, devices: Sequence[str]) -> int:
    """The longest of the least latencies between ranks of which one must wait for the other."""
    n, root = len(group), schedule.root
    places = [devices[rank] for rank in group]
    if n == 1:
        return 0
    sources, targets = places[:: max(1, n // SOURCES)], places
    if schedule.collective in ("reduce", "gather"):
        targets = [places[root]]
    elif schedule.collective == "send_recv":
        sources, targets = [places[root]], [places[(root + 1) % n]]
    elif schedule.collective in ("broadcast", "scatter"):
        sources = [places[root]]
    return max(topology.least_latencies(source)[target] for source in sources for target in targets)


def _bandwidth_ps(
    schedule: Schedule,
    group: Sequence[int],
    topology: Topology,
    devices: Sequence[str],
    nbytes: int,
    itemsize: int,
    weights: object,
) -> int:
    contract, n = collective(schedule.collective), len(group)
    if n == 1 or schedule.collective == "barrier":
        return 0
    sizes = contract.sizes(nbytes, n, contract.blocks(n), schedule.root, itemsize, weights)
    places = [devices[rank] for rank in group]
    bound = 0
    for inside in _cuts(topology, places):
        mask = np.asarray([place in inside for place in places])
        if mask.all() or not mask.any():
            continue
        leave, enter = _CROSSING[schedule.collective](sizes, mask, schedule.root)
        out, into = topology.cut_bandwidth(inside)
        bound = max(bound, _passing_ps(leave, out), _passing_ps(enter, into))
    if schedule.collective == "all_reduce" and not schedule.agents:
        out = sum(topology.cut_bandwidth({place})[0] for place in places)
        bound = max(bound, _passing_ps(2 * (n - 1) * nbytes, out))
    return bound


def _passing_ps(nbytes: int, bandwidth: int) -> int:
    return nbytes * PS_PER_S // bandwidth if bandwidth else 0


def _cuts(topology: Topology, places: Sequence[str]) -> Iterator[set[str]]:
    """Sets of devices around some of the ranks: each rank alone, each node, each switch with the hosts below it."""
    yield from ({place} for place in places)
    yield from topology.enclosures(places)


def _reducing(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    return int(sizes[0].sum()), int(sizes[0].sum())


def _to_root(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    whole = int(sizes[0].sum())
    return (0, whole) if inside[root] else (whole, 0)


def _from_root(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    whole = int(sizes[root].sum())
    return (whole, 0) if inside[root] else (0, whole)


def _gathering(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    blocks = sizes.sum(axis=1)
    return int(blocks[inside].sum()), int(blocks[~inside].sum())


def _scattering(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    blocks = sizes[root]
    return int(blocks[~inside].sum()), int(blocks[inside].sum())


def _gathering_to_root(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    leave, enter = _gathering(sizes, inside, root)
    return (0, enter) if inside[root] else (leave, 0)


def _scattering_from_root(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    leave, enter = _scattering(sizes, inside, root)
    return (leave, 0) if inside[root] else (0, enter)


def _exchanging(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    return int(sizes[inside][:, ~inside].sum()), int(sizes[~inside][:, inside].sum())


def _to_next(sizes: Sizes, inside: NDArray[np.bool_], root: int) -> tuple[int, int]:
    whole, receiver = int(sizes[root].sum()), (root + 1) % len(inside)
    return (whole if inside[root] and not inside[receiver] else 0), (
        whole if inside[receiver] and not inside[root] else 0
    )


_CROSSING: Final[dict[str, Crossing]] = {
    "all_reduce": _reducing,
    "reduce": _to_root,
    "broadcast": _from_root,
    "all_gather": _gathering,
    "reduce_scatter": _scattering,
    "gather": _gathering_to_root,
    "scatter": _scattering_from_root,
    "all_to_all": _exchanging,
    "send_recv": _to_next,
}
