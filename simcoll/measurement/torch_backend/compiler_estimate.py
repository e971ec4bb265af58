"""Times that PyTorch's compiler expects of collectives: `torch._inductor.comm_analysis`, an inner module of torch."""

from __future__ import annotations

import functools
from collections.abc import Callable

TimeEstimate = Callable[[str, int, int, float, float], float | None]


@functools.cache
def compiler_estimate() -> TimeEstimate | None:
    """Return a function from collective, bytes, ranks and GB/s within and between nodes to a time in us, None for what
    it does not know; None where this torch has no such module.
    """
    try:
        from torch._inductor import comm_analysis, config
    except Exception:  # torch is optional, and its inner modules come and go
        return None

    def estimate(name: str, nbytes: int, ranks: int, inner: float, outer: float) -> float | None:
        coll = getattr(comm_analysis.NCCL_COLL, name.upper(), None)
        if coll is None:
            return None
        try:
            with config.patch(intra_node_bw=inner, inter_node_bw=outer):
                time = 1e3 * float(comm_analysis.estimate_nccl_collective_runtime_impl(nbytes, ranks, coll))
        except Exception:  # as above
            return None
        return time or None

    return estimate
