"""Reduction inside the switch (NVLink SHARP): the switch adds what the ranks send and multicasts the sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll import patterns
from simcoll.registry import Request, chunk_per_rank, register
from simcoll.steps import Part, send


@register("all_reduce", "nvls", pipelined=True, needs_agent=True, library=True)
def nvls_all_reduce(request: Request) -> Iterator[Part]:
    """Everyone sends its buffer to the switch, which reduces it and sends the result to everyone: 2 steps."""
    ranks, switch = np.arange(request.n), request.n
    if request.n > 1:
        yield send(ranks, switch, 0, reduce=True)
        yield send(switch, ranks, 0)


@register("all_gather", "nvls", chunks=chunk_per_rank, pipelined=True, needs_agent=True)
def nvls_all_gather(request: Request) -> Iterator[Part]:
    """Everyone sends its block to the switch, which sends it to all others: 2 steps, n blocks up and n(n−1) down."""
    rank, others = patterns.peers(request.n)
    if request.n > 1:
        yield send(rank, request.n, rank)
        yield send(request.n, others, rank)


@register("reduce_scatter", "nvls", chunks=chunk_per_rank, pipelined=True, needs_agent=True)
def nvls_reduce_scatter(request: Request) -> Iterator[Part]:
    """Everyone sends its buffer to the switch, which sends each its reduced block: 2 steps, n² blocks up, n down."""
    rank, switch = np.arange(request.n), request.n
    if request.n > 1:
        yield send(rank[:, None], switch, rank, reduce=True)
        yield send(switch, rank, rank)
