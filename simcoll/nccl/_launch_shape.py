"""Channels and threads that NCCL gives a call: fewer of both for small sizes.

Source: NVIDIA/nccl, release 2.30, src/enqueue.cc: the rule and its figures.
"""

from __future__ import annotations

from typing import NamedTuple

from simcoll.nccl.call_names import TunedCollective
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.protocols import figures, most_channels
from simcoll.nccl.tuner_constants import Constants
from simcoll.schedule.names import NcclAlgorithm, Protocol


class LaunchShape(NamedTuple):
    """Thread blocks, one a channel, and the threads of each."""

    channels: int
    threads: int


def launch(
    communicator: Communicator,
    constants: Constants,
    collective: TunedCollective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
    nbytes: int,
) -> LaunchShape:
    """The shape of a call of `nbytes` (the largest buffer of a rank): small sizes lose channels first, then threads;
    then channels that would have too little to send."""
    threads, most = figures().threads, most_channels(collective, protocol, nbytes, constants.release)
    if algorithm in ("nvls", "nvls_tree"):
        return LaunchShape(min(most, communicator.nvls_channels(constants)), threads.others)
    wire = figures().protocols[protocol]
    ring = algorithm == "ring"
    least = wire.bytes_a_thread * (communicator.ranks if ring and protocol == "LL" else 1)
    wide = _most_threads(communicator, algorithm, protocol)
    narrow = max(1, min(communicator.channels, nbytes // (wide * least)))
    while nbytes < narrow * wide * least and wide % 128 == 0:
        wide //= 2
    if ring and protocol == "Simple":
        wide += threads.simple_ring_extra
    return LaunchShape(min(most, narrow), threads.others if algorithm in ("tree", "pat") else max(wide, threads.least))


def _most_threads(communicator: Communicator, algorithm: NcclAlgorithm, protocol: Protocol) -> int:
    wire, threads, graph = figures().protocols[protocol], figures().threads, communicator.graphs["ring"]
    slow = graph.channels * graph.intra <= threads.slow_ring.below_GBps
    if protocol == "Simple" and algorithm == "ring" and slow:
        return threads.slow_ring.threads
    return threads.others if algorithm == "pat" else wire.threads
