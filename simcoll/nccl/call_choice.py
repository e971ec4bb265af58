"""Derive the call that NCCL chooses: algorithm, protocol, channels, threads, or parts of point-to-point messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from simcoll.errors import RefusedError
from simcoll.nccl import p2p_messages, symmetric_kernels, tuner
from simcoll.nccl.algorithm_names import COLLECTIVES, SCHEDULES, TunedCollective, refusal
from simcoll.nccl.call import NcclCall
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.environment import EVERYTHING, Selection
from simcoll.nccl.protocols import figures, most_channels
from simcoll.nccl.tuner_constants import Constants
from simcoll.schedule.names import ALGORITHMS, NcclAlgorithm, Protocol


def choose(
    comm: Communicator,
    collective: str,
    nbytes: int,
    itemsize: int,
    version: str | None = None,
    *,
    algorithm: NcclAlgorithm | Literal["auto", "p2p"] = "auto",
    protocol: Protocol | Literal["auto"] = "auto",
    between: int = 0,
    left: Selection = EVERYTHING,
    registered: bool = False,
    graph: bool = False,
    zero: bool = False,
    switch_reduces: bool = True,
) -> NcclCall:
    """Return the call as NCCL would run it, with NCCL's own choices or with the given algorithm and protocol.

    If NCCL's first choice is not modelled, its next choice is returned. `between`: B/s between two GPUs of a node.
    `left`: the pairs of algorithm and protocol that NCCL_ALGO and NCCL_PROTO allow (point-to-point messages ignore it).
    `registered`: whether buffers are registered windows of all ranks, for which NCCL prefers a symmetric kernel.
    `graph`: whether the call is in a CUDA graph. `zero`: whether it may use no thread blocks, but copy engines.
    `switch_reduces`: whether NVSwitches can reduce this type with this operator. Raises RefusedError if no pair is
    left.
    """
    free = symmetric_kernels.may_be_taken(algorithm, protocol, left)
    windows = registered and free and symmetric_kernels.serve(comm, collective, version)
    copied = symmetric_kernels.copied_us(comm, collective, version, nbytes, graph, zero) if windows else 0.0
    if registered and zero and not copied:
        only = "copy engines are modelled for an all_gather on one node whose switch reduces"
        raise RefusedError(f"NCCL_CTA_POLICY=ZERO: {only}")
    if windows:
        by: Protocol = "Simple" if copied else symmetric_kernels.protocol(comm, collective, version, nbytes)
        return NcclCall(
            comm, collective, "nvls", by, nbytes, itemsize, 1, figures().threads.others, version=version,
            registered=True, copied_us=copied, by_itself=collective == "all_reduce",
        )  # fmt: skip
    if ("p2p", collective) in SCHEDULES:
        if protocol == "LL128":
            raise RefusedError(f"{comm.library.upper()} has no LL128 for {collective}; take LL or Simple")
        peers = 1 if collective == "send_recv" else comm.ranks
        message = -(-nbytes // (peers * itemsize)) * itemsize  # of equal ones, as nccl-tests has them
        parts = p2p_messages.parts(comm, message, peers, between, version, None if protocol == "auto" else protocol)
        by_itself = parts.protocol == p2p_messages.parts(comm, message, peers, between, version).protocol
        return NcclCall(
            comm, collective, "p2p", parts.protocol, nbytes, itemsize, 1, 0, parts=parts, by_itself=by_itself
        )
    served = next((name for name in COLLECTIVES if name == collective), None)
    if served is None:
        raise RefusedError(f"NCCL kernel costs exist for no {collective}; take a profile without kernels")
    modelled = frozenset(name for name in ALGORITHMS if (name, served) in SCHEDULES)
    algorithms = left.algorithms.get(served, modelled) & (modelled if algorithm == "auto" else modelled & {algorithm})
    protocols = left.protocols.get(served)
    if protocol != "auto":
        protocols = frozenset([protocol]) & (protocols or {protocol})
    selection = Selection({served: algorithms}, {served: protocols} if protocols else {})
    table = tuner.table(comm, version, selection, switch_reduces, [served])
    choice = table.choose(served, nbytes) if protocols is None or protocols else None
    if choice is None:
        under = "" if left == EVERYTHING else left.said or "NCCL_ALGO and NCCL_PROTO"
        has = tuner.table(comm, version, switch_reduces=switch_reduces, collectives=[served]).entries
        pairs = [(a, p) for _, a, p in has if a in modelled]
        unserved = algorithm in ("nvls", "nvls_tree") and served != "all_gather" and not switch_reduces
        why = "; NVSwitches do not reduce this type with this operator" * unserved
        raise RefusedError(refusal(comm.library, served, algorithm, protocol, under, pairs) + why)
    pair = choice.algorithm, choice.protocol
    shape = launch_shape(comm, table.constants, served, *pair, nbytes)
    limited = False
    if comm.min_channels is not None or comm.max_channels is not None:
        free_comm = replace(comm, min_channels=None, max_channels=None)
        limited = shape.channels != launch_shape(free_comm, table.constants, served, *pair, nbytes).channels
    everything = Selection({served: modelled}, {})
    itself = choice if free else tuner.table(comm, version, everything, switch_reduces, [served]).choose(served, nbytes)
    by_itself = itself is not None and (itself.algorithm, itself.protocol) == pair
    return NcclCall(
        comm, served, *pair, nbytes, itemsize, shape.channels, shape.threads, version=table.constants.release,
        limited=limited, by_itself=by_itself,
    )  # fmt: skip


class LaunchShape(NamedTuple):
    """The launch of a kernel: the number of thread blocks (one per channel), and of threads in each block."""

    channels: int
    threads: int


def launch_shape(
    communicator: Communicator,
    constants: Constants,
    collective: TunedCollective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
    nbytes: int,
) -> LaunchShape:
    """Return the number of channels and threads of a call of `nbytes` (the largest buffer of a rank). For small sizes
    NCCL reduces first the channels, then the threads, then channels with too little data."""
    threads, most = figures().threads, most_channels(collective, protocol, nbytes, constants.release)
    if algorithm in ("nvls", "nvls_tree"):
        return LaunchShape(min(most, communicator.nvls_channels(constants)), threads.others)
    wire = figures().protocols[protocol]
    ring = algorithm == "ring"
    least = wire.bytes_a_thread * (communicator.ranks if ring and protocol == "LL" else 1)
    wide = _most_threads(communicator, algorithm, protocol, constants.slow_ring_has_fewer_threads)
    narrow = max(1, min(communicator.channels, nbytes // (wide * least)))
    while nbytes < narrow * wide * least and wide % 128 == 0:
        wide //= 2
    if ring and protocol == "Simple":
        wide += threads.simple_ring_extra
    return LaunchShape(min(most, narrow), threads.others if algorithm in ("tree", "pat") else max(wide, threads.least))


def _most_threads(communicator: Communicator, algorithm: NcclAlgorithm, protocol: Protocol, fewer: bool) -> int:
    wire, threads, graph = figures().protocols[protocol], figures().threads, communicator.graphs["ring"]
    slow = fewer and graph.channels * graph.intra <= threads.slow_ring.below_GBps
    if protocol == "Simple" and algorithm == "ring" and slow:
        return threads.slow_ring.threads
    return threads.others if algorithm == "pat" else wire.threads
