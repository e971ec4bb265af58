"""Symmetric kernels: all-reduces of buffers that all ranks registered as windows (ncclCommWindowRegister).

GPUs read and write each other's buffers, so nothing is copied into buffers of NCCL's, and there are no chunks. Small
calls go by flags: every GPU multicasts its data with a flag beside each word, and adds up what all sent. Larger ones go
by the switch: between two barriers of flags every GPU has a part reduced by loads through the switch, and stores the
sum to all.

Source: NVIDIA/nccl 2.30, src/sym_kernels.cc: the kernels and the figures by which NCCL chooses. That release 2.30
registers what one process for all GPUs captures in a CUDA graph is read from one published table (H200, NCCL 2.30.4).
"""

from __future__ import annotations

from typing import Final

from simcoll.nccl.communicator import Communicator
from simcoll.nccl.tuner_constants import numbers

SYMMETRIC: Final = "symmetric"  # the algorithm that is NCCL's own choice then, and that no variable names
SINCE: Final = (2, 27)  # the release from which there are such kernels
BY_ITSELF: Final = (2, 30)  # and from which graphs of one process have them without being asked
_BY_FLAGS_US, _BY_SWITCH_US = 4.5, 7.8  # which the two take of no data, as NCCL reckons for Hopper
_PEAK: Final = 320 << 30  # B/s of flags and data, as NCCL reckons for Hopper
BARRIERS: Final = 4  # hops: a flag goes and is seen, before and after
EXCHANGE: Final = 2  # hops: data go and are seen, sums are read


def serve(comm: Communicator, collective: str, version: str | None) -> bool:
    """Whether a release (None: the newest) has a kernel that is modelled here: all_reduce where a switch reduces."""
    known = version is None or numbers(version) >= SINCE
    one = comm.library == "nccl" and comm.nodes == 1
    return collective == "all_reduce" and one and known and comm.graph("nvls") is not None


def registered_by_itself(version: str | None) -> bool:
    """Whether a release (None: the newest) registers the buffers of a graph of one process with all GPUs."""
    return version is None or numbers(version) >= BY_ITSELF


def by_flags(ranks: int, nbytes: int) -> bool:
    """Whether a call of `nbytes` goes by flags: what a GPU gets takes less than barriers do."""
    return 2 * ranks * nbytes <= (_BY_SWITCH_US - _BY_FLAGS_US) * 1e-6 * _PEAK
