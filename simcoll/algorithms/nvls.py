"""Reduction inside the switch (NVLink SHARP): the switch adds what the ranks send and multicasts the sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.registry import Request, register
from simcoll.schedule import Step, send


@register("all_reduce", "nvls", pipelined=True, needs_agent=True)
def nvls_all_reduce(request: Request) -> Iterator[Step]:
    """Everyone sends its buffer to the switch, which reduces it and sends the result to everyone: 2 steps."""
    ranks, switch = np.arange(request.n), request.n
    if request.n > 1:
        yield send(ranks, switch, 0, reduce=True)
        yield send(switch, ranks, 0)
