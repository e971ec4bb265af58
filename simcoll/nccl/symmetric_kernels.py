"""Symmetric kernels: all-reduces of buffers that all ranks registered as windows (ncclCommWindowRegister).

GPUs read and write each other's buffers, so nothing is copied into NCCL's buffers, and there are no chunks. Small calls
go by flags: every GPU multicasts its data with a flag beside each word, and adds up what all sent. Larger calls go by
the switch: between two barriers of flags every GPU reduces a part by loads through the switch, and stores the sum to
all.

Source: NVIDIA/nccl 2.30, src/sym_kernels.cc: the kernels and the figures by which NCCL chooses. One published table
(H200, NCCL 2.30.4) shows that release 2.30 registers what one process for all GPUs captures in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from simcoll.nccl.communicator import Communicator
from simcoll.nccl.environment import EVERYTHING, Selection
from simcoll.nccl.tuner_constants import Generation, numbers

SYMMETRIC: Final = "symmetric"  # the name of NCCL's own choice; no variable names it
SINCE: Final = (2, 27)  # the first release with symmetric kernels
BY_ITSELF: Final = (2, 30)  # the first release that uses them unasked in graphs of one process
# NCCL's figures: us of both without data, and GiB/s by flags and by the switch.
_BY_FLAGS: Final[Mapping[Generation, tuple[float, float]]] = {"hopper": (4.5, 320), "blackwell": (11, 600)}
_BY_SWITCH: Final[Mapping[Generation, tuple[float, float]]] = {"hopper": (7.8, 480), "blackwell": (19.5, 1000)}
_OF_FLAGS: Final = 9  # bytes that NCCL counts for each byte by flags
BARRIERS: Final = 4  # hops: a flag goes and is seen, before and after
EXCHANGE: Final = 2  # hops: data go and are seen, sums are read


def serve(comm: Communicator, collective: str, version: str | None) -> bool:
    """Return whether a release (None: the newest) has a kernel modelled here: all_reduce where a switch reduces."""
    known = version is None or numbers(version) >= SINCE
    one = comm.library == "nccl" and comm.nodes == 1
    return collective == "all_reduce" and one and known and comm.graph("nvls") is not None


def adds(dtype: str, op: str) -> bool:
    """Return whether such kernels do what a call asks of elements: they add floats."""
    return op == "sum" and "float" in dtype


def may_be_taken(algorithm: str, protocol: str, left: Selection) -> bool:
    """Return whether NCCL may choose among all calls; only then it takes a symmetric kernel, which has no name."""
    return algorithm == protocol == "auto" and left == EVERYTHING


def registered_by_itself(version: str | None) -> bool:
    """Return whether a release (None: the newest) registers the buffers of a graph of one process with all GPUs."""
    return version is None or numbers(version) >= BY_ITSELF


def by_flags(comm: Communicator, nbytes: int) -> bool:
    """Return whether a call of `nbytes` goes by flags, which NCCL expects to take less time than the switch."""
    there = _reckoned_us(*_BY_FLAGS[comm.generation], _OF_FLAGS * comm.ranks * nbytes)
    return there <= _reckoned_us(*_BY_SWITCH[comm.generation], nbytes + nbytes / comm.ranks)


def _reckoned_us(least: float, peak: float, moved: float) -> float:
    """Return the time in us that NCCL expects for so many bytes: about the first us of moving them costs nothing.
    There are as many blocks as the peak needs."""
    beyond = moved * 1e6 / (peak * (1 << 30)) - 1
    return least + max(0.0, beyond) + math.log1p(math.exp(-abs(beyond)))
