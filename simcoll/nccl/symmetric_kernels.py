"""Symmetric kernels: calls on buffers that all ranks registered as windows (ncclCommWindowRegister); and copy engines.

GPUs read and write each other's buffers, so nothing is copied into NCCL's buffers, and there are no chunks. Small calls
use flags: every GPU multicasts its data with a flag beside each word, and adds up the data of all. Larger calls use the
switch: between two barriers every GPU reduces a part by loads through the switch, and stores the sum to all GPUs.

Source: NVIDIA/nccl 2.30, src/sym_kernels.cc: the kernels, and the figures by which NCCL chooses. One published table
(H200, NCCL 2.30.4) shows that release 2.30 registers the buffers of CUDA graphs if one process drives all GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from simcoll.errors import RefusedError
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.environment import EVERYTHING, Selection
from simcoll.nccl.tuner_constants import SymmetricFigures, numbers, read
from simcoll.schedule.names import Protocol

SYMMETRIC: Final = "symmetric"  # the algorithm's name in results; no NCCL variable can select it
SINCE: Final = (2, 27)  # the first release with symmetric kernels
BY_ITSELF: Final = (2, 30)  # the first release that registers buffers of one process's graphs by itself
KERNELS: Final[Mapping[str, Mapping[Protocol, str]]] = {  # by collective: with flags, and through the switch
    "all_reduce": {"LL": "AllReduce_AGxLLMC_R", "Simple": "AllReduce_RSxLDMC_AGxSTMC"},
    "all_gather": {"LL": "AllGather_LLMC", "Simple": "AllGather_STMC"},
    "reduce_scatter": {"LL": "ReduceScatter_LL", "Simple": "ReduceScatter_LDMC"},
}
COPY_ENGINES: Final = "ce"  # the name of copy engines in results
COPIES_SINCE: Final = (2, 28)
_OF_FLAGS: Final = 9  # bytes that NCCL counts for each byte of data sent with flags
BARRIERS: Final = 4  # hops of two barriers: in each, a flag is sent and seen
EXCHANGE: Final = 2  # hops with flags: data are sent and seen


def serve(comm: Communicator, collective: str, version: str | None) -> bool:
    """Return whether a release (None: the default) has a symmetric kernel for a call, and simcoll models it: on one
    node with NVLS."""
    known = version is None or numbers(version) >= SINCE
    one = comm.library == "nccl" and comm.nodes == 1
    return collective in KERNELS and one and known and comm.graph("nvls") is not None


def copied_us(comm: Communicator, collective: str, version: str | None, nbytes: int, graph: bool, zero: bool) -> float:
    """Return the time in us of a call by copy engines without its data; 0 if blocks run the call. Copy engines run
    all-gathers of registered buffers where the user allows no blocks (`zero`), and large ones on Blackwell."""
    known = version is None or numbers(version) >= COPIES_SINCE
    figures = read("nccl", version).copy_engines.get(comm.generation) if known else None
    if figures is None or collective != "all_gather":
        return 0.0
    large = figures.by_itself_from is not None and nbytes > figures.by_itself_from
    base, each = figures.graph if graph else figures.launched
    return base + each * comm.ranks if zero or large else 0.0


def adds(dtype: str, op: str) -> bool:
    """Return whether symmetric kernels support an operator on a type; they only add floats."""
    return op == "sum" and "float" in dtype


def may_be_taken(algorithm: str, protocol: str, left: Selection) -> bool:
    """Return whether nothing restricts NCCL's choice. Only then it uses a symmetric kernel; no variable selects one."""
    return algorithm == protocol == "auto" and left == EVERYTHING


def registered_by_itself(version: str | None) -> bool:
    """Return whether a release (None: the newest) registers buffers of CUDA graphs if one process drives all GPUs."""
    return version is None or numbers(version) >= BY_ITSELF


def protocol(comm: Communicator, collective: str, version: str | None, nbytes: int) -> Protocol:
    """Return the protocol of a symmetric call of `nbytes`: LL if it uses flags, because NCCL expects the switch to be
    slower, or because NCCL_SYM_KERNEL allows nothing else. Raises RefusedError if it allows neither kernel."""
    kernels, figures = KERNELS[collective], _figures(comm, collective, version)
    left = kernels.values() if comm.symmetric_kernels is None else comm.symmetric_kernels
    allowed = [name for name, kernel in kernels.items() if kernel in left]
    if not allowed:
        raise RefusedError(f"NCCL_SYM_KERNEL: simcoll models {' and '.join(kernels.values())} only; allow one of them")
    return min(allowed, key=lambda name: _reckoned_us(comm, figures, name, _moved(comm, collective, name) * nbytes))


def most_GBps(comm: Communicator, collective: str, version: str | None, name: Protocol) -> float:  # noqa: N802
    """Return the GB/s of the buffer that the blocks of NCCL_SYM_CTAS move at most; infinity without this setting."""
    if not comm.symmetric_ctas:
        return math.inf
    limit = comm.symmetric_ctas * _figures(comm, collective, version).block * (1 << 30) / 1e9
    return limit / _moved(comm, collective, name)


def copied_GBps(comm: Communicator, version: str | None) -> float:  # noqa: N802
    """Return the GB/s of copy engines."""
    return read("nccl", version).copy_engines[comm.generation].GBps


def _figures(comm: Communicator, collective: str, version: str | None) -> SymmetricFigures:
    return next(rows for name, rows in read("nccl", version).symmetric.items() if name == collective)[comm.generation]


def _moved(comm: Communicator, collective: str, name: Protocol) -> float:
    """Return the bytes that NCCL counts for each byte of the buffer. An all_reduce sends all data to all ranks with
    flags; through the switch it reads the sums and stores its own part."""
    if collective != "all_reduce":
        return _OF_FLAGS if name == "LL" else 1
    return _OF_FLAGS * comm.ranks if name == "LL" else 1 + 1 / comm.ranks


def _reckoned_us(comm: Communicator, figures: SymmetricFigures, name: Protocol, moved: float) -> float:
    """Return the time in us that NCCL expects of a kernel: its time without data, and the transfer of `moved` bytes at
    its peak, of which about the first us is free. Without NCCL_SYM_CTAS the number of blocks suffices for the peak."""
    least, peak = figures.LL if name == "LL" else figures.Simple
    peak = min(peak, (comm.symmetric_ctas or math.inf) * figures.block)
    beyond = moved * 1e6 / (peak * (1 << 30)) - 1
    return least + max(0.0, beyond) + math.log1p(math.exp(-abs(beyond)))
