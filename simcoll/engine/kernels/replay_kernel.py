"""The shortest loop of the fast engine: transfers in index order, as long as that is the order of time."""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.records import ReplayRun

NEVER = 2**62
jit, inline = jit_for(__name__), jit_for(__name__, inline=True)
waits = load_like(__name__, plain_waits)
value, note = waits.value, waits.note


@jit
def replay(run: ReplayRun) -> Any:
    """Run transfers without a heap. Returns how many were done before one came out of order, and the latest time.

    Exact if all were: the order used is then the order of (ready, index), and that solution is unique. Fair links
    (`slowest` is not empty) are exact as long as no two flows meet.
    """
    (way, _, side), (gap, _, receive, came), (hop, _), lead, here, _, slowest, _, before, free, last, times, _, _ = run
    (start, sent, arrive, end, complete), (reads, chain, credit, channel_before, step) = times, before
    (_, free_side), (_, last_side) = free, last
    open_step, passed, latest = -1, 0, 0
    for i in range(len(way)):
        t = value(here, way[i])
        if reads[i] >= 0:
            t = max(t, complete[reads[i]])
        if channel_before[i] >= 0:
            t = max(t, sent[channel_before[i]])
            if len(gap):
                t = max(t, start[channel_before[i]] + gap[way[i]])
        if len(credit) and credit[i] >= 0:
            t = max(t, end[credit[i]])
        if len(step):  # barriers
            if step[i] != open_step:
                open_step, passed = step[i], latest
            t = max(t, passed)
        if len(start):
            start[i] = t
        t += value(lead, way[i])
        if hop[way[i]] == hop[way[i] + 1]:
            sent[i] = tail = t + 1
        elif len(slowest):
            tail = flow(i, t, run)
        else:
            tail, t = cross(i, t, run)
        if tail < 0:
            return i, latest
        if len(arrive):
            arrive[i] = tail
        if value(receive, i):
            if tail < last_side[side[i]]:
                return i, latest
            last_side[side[i]] = tail
            tail = max(tail, free_side[side[i]]) + receive[i]
            free_side[side[i]] = tail
        if len(end):
            end[i] = tail
        complete[i] = max(tail, complete[chain[i]] if chain[i] >= 0 else value(came, i))
        latest = max(latest, t, tail)
    return len(way), latest


@inline
def flow(i: Any, t: Any, run: ReplayRun) -> Any:
    """Transfer `i` takes all its links at once from `t`; returns when its tail arrives, −1 if it meets another flow."""
    plan, costs, (hop, links), _, _, net, slowest, away, _, (free_link, _), _, times, hops, _ = run
    (_, _, service, rates), (hop_begin, hop_end, first_hop), w, kind = net, hops, plan.way[i], plan.kind[i]
    gone = t + max(service[kind * rates + slowest[w]], value(costs.cap, kind))
    for at in range(hop[w + 1] - hop[w]):
        link = links[hop[w] + at]
        if t < free_link[link]:
            return -1
        free_link[link] = gone
        if len(hop_begin):
            hop_begin[first_hop[i] + at], hop_end[first_hop[i] + at] = t, gone
    times.sent[i] = gone
    return gone + away[w]


@inline
def cross(i: Any, t: Any, run: ReplayRun) -> Any:
    """Transfer `i` takes one link after the other from `t`; returns when its tail arrives, −1 if it comes out of order,
    and when its head does; NEVER is all that is beyond the range of the clock."""
    plan, (_, cap, _, _), (hop, links), _, _, net, _, _, _, (free_link, _), (last_link, _), times, hops, heads = run
    (rate_of, latency, service, rates), (hop_begin, hop_end, first_hop), sent = net, hops, times.sent
    w, kind, tail = plan.way[i], plan.kind[i], 0
    for at in range(hop[w + 1] - hop[w]):
        link = links[hop[w] + at]
        if t < last_link[link]:
            return -1, t
        last_link[link] = t
        note(heads, link, t)
        s = service[kind * rates + rate_of[link]]
        r = max(t, free_link[link])
        free_link[link] = r + s
        if len(hop_begin):
            hop_begin[first_hop[i] + at], hop_end[first_hop[i] + at] = r, r + s
        if at == 0:
            tail = r + max(s, value(cap, kind))
            sent[i] = tail
        else:
            tail = max(r + s, tail)
        if tail >= NEVER:  # later sums must not come out negative
            return NEVER, NEVER
        t, tail = r + latency[link], tail + latency[link]  # of head and tail at the next link
    return tail, t
