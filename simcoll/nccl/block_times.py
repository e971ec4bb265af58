"""Times of thread blocks: of LL's lines, and of the last of several blocks."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

from simcoll.engine.timing_model import PS_PER_S
from simcoll.nccl.kernel_costs import BlockCosts
from simcoll.nccl.protocols import figures

SPREAD: Final = 1 << 20  # bytes for which `Kernels.spread` is given
STORED: Final = 4 << 10  # bytes of LL for which `store` is given: a line for each of 512 threads


def lines_ps(block: BlockCosts, threads: int, nbytes: int, stores: float = 0.0) -> int:
    """Time that a block of LL takes for some bytes, in ps: for the first line of each thread, and for the others. It
    `stores` this share of them in its own output as well.

    A step ends with the last thread, so a line that not all threads have takes as long as one that all have.
    """
    line = threads * figures().protocols["LL"].bytes_a_thread
    first = min(nbytes, line) if block.first else 0
    others = -(-(nbytes - first) // line) * line if block.first else nbytes
    stored = block.store * stores * min(nbytes, line) / STORED
    return service(first, block.first) + service(others, block.rate) + round(stored)


def spread_ps(spread: float, blocks: int, moved: float, bandwidth: int, each: float = 1.0) -> int:
    """Delay of the last of several blocks behind the average one, in ps, that each move so many bytes; `each` of them
    have `bandwidth` B/s. `spread` is the standard deviation for 1 MiB, as a share of its time.

    What adds up grows with the root of what was moved. The expected largest of several normal deviates is Blom's
    (Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    if blocks < 2 or not bandwidth:
        return 0
    last = NormalDist().inv_cdf((blocks - 0.375) / (blocks + 0.25))
    return round(spread * last * math.sqrt(moved * SPREAD) * PS_PER_S * each / bandwidth)


def service(nbytes: int, bandwidth: int) -> int:
    """Time of `nbytes` at a bandwidth in B/s, in ps; 0 where that is 0, which means no limit."""
    return -(-nbytes * PS_PER_S // bandwidth) if bandwidth else 0
