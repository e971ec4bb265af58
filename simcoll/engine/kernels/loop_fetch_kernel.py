"""The processor fetches what a part of the network reads before that takes its turn in `loop_kernel`, so that it need
not wait for the memory then. One thing is known by another: a row by its entry on the heap, its way and state by the
row, a link by the way. So each is fetched a part before the next."""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import fetch_for, jit_for
from simcoll.engine.kernels.loop_records import LoopRun

ENTRIES = 8  # of a heap in a line of the cache
fetch, inline = fetch_for(__name__), jit_for(__name__, inline=True)


@inline
def heap(part: Any, run: LoopRun) -> None:
    """The heap of a part whose turn is three parts later."""
    top = run.parts.room[part]
    for entry in range(top, top + run.parts.size[part], ENTRIES):
        fetch(run.heap.times, entry)
        fetch(run.heap.items, entry)


@inline
def rows(part: Any, until: Any, run: LoopRun) -> None:
    """The rows of a part's events before `until`, two parts ahead."""
    times, items, top, (_, row_bits, _) = run.heap.times, run.heap.items, run.parts.room[part], run.keys
    for entry in range(top, top + run.parts.size[part]):
        if times[entry] < until:
            fetch(run.rows.way, (items[entry] & ((1 << row_bits) - 1)) * run.rows.apart)


@inline
def ways(part: Any, until: Any, run: LoopRun) -> None:
    """Their ways and state, and the rows of those who wait for them, a part ahead."""
    (_, row_bits, loop_bits), (when, state, first, wide), rows = run.keys, run.state, run.rows
    times, items, top, (hop, _), (src, dst) = run.heap.times, run.heap.items, run.parts.room[part], run.routes, run.ways
    for entry in range(top, top + run.parts.size[part]):
        if times[entry] < until:
            row, loop = (items[entry] & ((1 << row_bits) - 1)) * rows.apart, items[entry] >> row_bits
            way, i = rows.way[row], first[row] + (loop & ((1 << loop_bits) - 1)) * wide
            fetch(hop, way)
            fetch(src, way)
            fetch(dst, way)
            fetch(when, i)
            fetch(state, i)
            fetch(rows.way, max(0, rows.first_reader[row]))
            fetch(rows.way, max(0, rows.chain[row]))
            fetch(rows.way, max(0, rows.channel_after[row]))


@inline
def links(part: Any, until: Any, run: LoopRun) -> None:
    """The links to which they come, all at once, as the part's turn begins."""
    (_, row_bits, loop_bits), (_, state, first, wide), (hop, links) = run.keys, run.state, run.routes
    times, items, top, (rate_of, latency, _, _) = run.heap.times, run.heap.items, run.parts.room[part], run.net
    size = run.parts.size[part] if len(links) else 0
    for entry in range(top, top + size):
        if times[entry] < until:
            key = items[entry]
            row, loop = (key & ((1 << row_bits) - 1)) * run.rows.apart, (key >> row_bits) & ((1 << loop_bits) - 1)
            i = first[row] + loop * wide
            e = hop[run.rows.way[row]] + max(0, state[i])
            link = links[min(e, len(links) - 1)]  # behind its last link the next will do
            fetch(rate_of, link)
            fetch(latency, link)
            fetch(run.free.link, link)
            fetch(run.heads.first, link)
            fetch(run.heads.last, link)
            fetch(run.streams.of_link, link)
            fetch(run.streams.behind_link, link)
