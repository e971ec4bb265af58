"""Channels of `loop_kernel` whose transfers need no heap pass their links: see `_loop_streams`."""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.loop_records import LoopRun

NEVER = 2**62
COMPLETE = plain_waits.COMPLETE
inline = jit_for(__name__, inline=True)
waits = load_like(__name__, plain_waits)
value = waits.value


@inline
def head_of(stream: Any, run: LoopRun) -> Any:
    """The time at which the next head of a stream comes to its link, NEVER as long as that is not known."""
    streams, (when, state, _, _) = run.streams, run.state
    head, i = streams.head[stream], streams.awaits[stream]
    if head == NEVER and state[i] == COMPLETE:
        head = leave(stream, max(streams.ready[stream], when[i]), run)
        streams.head[stream] = head
    return head


@inline
def look_ahead(stream: Any, ready: Any, run: LoopRun) -> None:
    """The next transfer of a stream, whose channel is `ready` at a time, awaits what it reads, if anything."""
    streams, loop = run.streams, run.streams.loop[stream]
    reads = streams.reads[streams.at[stream]]
    streams.head[stream], streams.ready[stream] = NEVER, ready
    if loop == run.loops:
        streams.awaits[stream] = 0  # which is never complete
    elif reads < 0:
        streams.head[stream] = leave(stream, ready, run)
    else:
        streams.awaits[stream] = reads + loop * run.state.wide


@inline
def leave(stream: Any, t: Any, run: LoopRun) -> Any:
    """The time at which the head of a transfer that may start at `t` comes to the link of its stream."""
    costs, streams = run.costs, run.streams
    return max(t, value(costs.here, streams.src[stream])) + value(costs.lead, streams.way[stream])


@inline
def next_of(begin: Any, behind: Any, t: Any, key: Any, run: LoopRun) -> Any:
    """The stream of a link, of those from `begin` on, whose head comes there first, and before the transfer with a key
    that comes at `t`; −1: none."""
    found = -1
    for stream in range(begin, behind):
        head = head_of(stream, run)
        if head < t:
            found, t = stream, head
        elif head == t and head < NEVER:  # keys lie far away
            first = key if found < 0 else own_key(found, run)
            if own_key(stream, run) < first:
                found = stream
    return found


@inline
def own_key(stream: Any, run: LoopRun) -> Any:
    """The key of the next transfer of a stream."""
    streams = run.streams
    return key_of(streams.row[streams.at[stream]], streams.loop[stream], run)


@inline
def pass_link(stream: Any, run: LoopRun) -> Any:
    """The next transfer of a stream passes its link; the one behind it is the next. Returns when its tail has come."""
    streams, costs, (rate_of, latency, service, rates) = run.streams, run.costs, run.net
    link, t, w = streams.link[stream], streams.head[stream], streams.way[stream]
    at, loop, s = streams.at[stream], streams.loop[stream], streams.takes[stream]
    kind = run.pieces.piece
    if loop >= streams.whole[stream]:
        kind = kind_of(streams.row[at], loop, run)
        s = service[kind * rates + rate_of[link]]
    waits.note(run.heads, link, t)
    r = max(t, run.free.link[link])
    run.free.link[link] = r + s
    sent = r + max(s, value(costs.cap, kind))
    ready = max(sent, t - value(costs.lead, w) + value(costs.gap, w))
    tail = sent + latency[link]
    if streams.slots:
        first, turn = stream * streams.slots, streams.turn[stream]
        streams.ends[first + turn] = tail
        turn = turn + 1 if turn + 1 < streams.slots else 0
        streams.turn[stream] = turn
        ready = max(ready, streams.ends[first + turn])
    if at + 1 < streams.begin[stream + 1]:
        streams.at[stream] = at + 1
    else:
        streams.at[stream], streams.loop[stream] = streams.begin[stream], loop + 1
        if loop + 1 == run.loops:  # all that it sent before came no later
            done, src, dst = run.done, streams.src[stream], streams.dst[stream]
            done[src], done[dst] = max(done[src], sent), max(done[dst], tail)
    look_ahead(stream, ready, run)
    return tail


@inline
def complete(dst: Any, t: Any, run: LoopRun) -> None:
    """A version that only streams await is complete at `t`."""
    run.done[dst] = max(run.done[dst], t)
    home, soonest = run.parts.home[dst], run.streams.soonest
    soonest[home] = min(soonest[home], t)


@inline
def receive_last(dst: Any, t: Any, run: LoopRun) -> None:
    """A participant has received at `t` what nobody waits for."""
    run.done[dst] = max(run.done[dst], t)


@inline
def key_of(row: Any, loop: Any, run: LoopRun) -> Any:
    """The key of a transfer."""
    step, row_bits, loop_bits = run.keys
    return ((((step[row] + loop) << loop_bits) | loop) << row_bits) | run.rows.number[row]


@inline
def kind_of(row: Any, loop: Any, run: LoopRun) -> Any:
    """The number of a transfer's size."""
    kind, whole, piece, nothing = run.pieces
    k = kind[run.rows.number[row]]
    return piece if loop < whole[k] else k if loop == whole[k] else nothing
