"""Symmetric kernels: all-reduces of buffers that all ranks registered as windows (ncclCommWindowRegister).

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
from simcoll.nccl.tuner_constants import Generation, numbers
from simcoll.schedule.names import Protocol

SYMMETRIC: Final = "symmetric"  # the algorithm's name in results; no NCCL variable can select it
SINCE: Final = (2, 27)  # the first release with symmetric kernels
BY_ITSELF: Final = (2, 30)  # the first release that registers buffers of one process's graphs by itself
# NCCL's figures: (us without data, GiB/s), with flags and through the switch.
_BY_FLAGS: Final[Mapping[Generation, tuple[float, float]]] = {"hopper": (4.5, 320), "blackwell": (11, 600)}
_BY_SWITCH: Final[Mapping[Generation, tuple[float, float]]] = {"hopper": (7.8, 480), "blackwell": (19.5, 1000)}
_OF_A_BLOCK: Final[Mapping[Generation, float]] = {"hopper": 65, "blackwell": 55}  # GiB/s of a block
KERNELS: Final[Mapping[Protocol, str]] = {"LL": "AllReduce_AGxLLMC_R", "Simple": "AllReduce_RSxLDMC_AGxSTMC"}
_OF_FLAGS: Final = 9  # bytes that NCCL counts for each byte of data sent with flags
BARRIERS: Final = 4  # hops of two barriers: in each, a flag is sent and seen
EXCHANGE: Final = 2  # hops with flags: data are sent and seen


def serve(comm: Communicator, collective: str, version: str | None) -> bool:
    """Return whether a release (None: the newest) has a symmetric kernel for a call, and simcoll models it: all_reduce
    with NVLS."""
    known = version is None or numbers(version) >= SINCE
    one = comm.library == "nccl" and comm.nodes == 1
    return collective == "all_reduce" and one and known and comm.graph("nvls") is not None


def adds(dtype: str, op: str) -> bool:
    """Return whether symmetric kernels support an operator on a type; they only add floats."""
    return op == "sum" and "float" in dtype


def may_be_taken(algorithm: str, protocol: str, left: Selection) -> bool:
    """Return whether nothing restricts NCCL's choice. Only then it uses a symmetric kernel; no variable selects one."""
    return algorithm == protocol == "auto" and left == EVERYTHING


def registered_by_itself(version: str | None) -> bool:
    """Return whether a release (None: the newest) registers buffers of CUDA graphs if one process drives all GPUs."""
    return version is None or numbers(version) >= BY_ITSELF


def protocol(comm: Communicator, nbytes: int) -> Protocol:
    """Return the protocol of a symmetric call of `nbytes`: LL if it uses flags, because NCCL expects the switch to be
    slower, or because NCCL_SYM_KERNEL allows nothing else. Raises RefusedError if it allows neither kernel."""
    allowed = [
        name for name, kernel in KERNELS.items() if comm.symmetric_kernels is None or kernel in comm.symmetric_kernels
    ]
    if not allowed:
        raise RefusedError(f"NCCL_SYM_KERNEL: simcoll models {' and '.join(KERNELS.values())} only; allow one of them")
    return min(allowed, key=lambda name: _reckoned_us(comm, name, nbytes))


def most_GBps(comm: Communicator, flags: bool) -> float:  # noqa: N802
    """Return the GB/s of the buffer that the blocks of NCCL_SYM_CTAS move at most; infinity without this setting."""
    limit = comm.symmetric_ctas and comm.symmetric_ctas * _OF_A_BLOCK[comm.generation] * (1 << 30) / 1e9
    return limit / _moved(comm, "LL" if flags else "Simple") if limit else math.inf


def _moved(comm: Communicator, name: Protocol) -> float:
    """Return the bytes that NCCL counts for each byte of the buffer."""
    return _OF_FLAGS * comm.ranks if name == "LL" else 1 + 1 / comm.ranks


def _reckoned_us(comm: Communicator, name: Protocol, nbytes: int) -> float:
    """Return the time in us that NCCL expects of a kernel: its time without data, and the transfer at its peak, of
    which about the first us is free. Without NCCL_SYM_CTAS the number of blocks suffices for the peak."""
    least, peak = (_BY_FLAGS if name == "LL" else _BY_SWITCH)[comm.generation]
    peak = min(peak, (comm.symmetric_ctas or math.inf) * _OF_A_BLOCK[comm.generation])
    moved = _moved(comm, name) * nbytes
    beyond = moved * 1e6 / (peak * (1 << 30)) - 1
    return least + max(0.0, beyond) + math.log1p(math.exp(-abs(beyond)))
