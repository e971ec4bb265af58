"""Max-min fair rates of flows, solved anew for those that are connected with a link where flows come or go.

A channel sends one transfer at a time, so flows are numbered by channel. A link that a single channel takes is left out
of `records.Paths`: there is nothing to share, and it only caps the rate of that channel's flow. Of all links of a flow
the `narrowest` is the cap, the lowest number among equals. It may be a shared link too: that gives a flow no more than
its bandwidth anyway.
"""

from __future__ import annotations

import math
from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import heap as plain_heap
from simcoll.engine.kernels.records import FairFabric, Flows

NEVER = 2**62
inner, inline = jit_for(__name__), jit_for(__name__, inline=True)
heaps = load_like(__name__, plain_heap)


@inline
def narrower(link: Any, other: Any, capacity: Any) -> Any:
    """Whether `link` limits more than `other`."""
    return capacity[link] < capacity[other] or (capacity[link] == capacity[other] and link < other)


@inner
def join(c: Any, now: Any, fabric: FairFabric, n_touched: Any) -> Any:
    """Flow `c` enters the lists of its links; returns how many links are touched."""
    path, length, width, _ = fabric.paths
    head, after, before, count = fabric.lists
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        first = head[link]
        after[e], before[e] = first, -1
        if first >= 0:
            before[first] = e
        head[link] = e
        count[link] += 1
        n_touched = touch(link, now, fabric, n_touched)
    return n_touched


@inner
def leave(c: Any, now: Any, fabric: FairFabric, n_touched: Any) -> Any:
    """Flow `c` leaves the lists of its links; returns how many links are touched."""
    path, length, width, _ = fabric.paths
    head, after, before, count = fabric.lists
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        if before[e] >= 0:
            after[before[e]] = after[e]
        else:
            head[link] = after[e]
        if after[e] >= 0:
            before[after[e]] = before[e]
        count[link] -= 1
        n_touched = touch(link, now, fabric, n_touched)
    return n_touched


@inline
def touch(link: Any, now: Any, fabric: FairFabric, n_touched: Any) -> Any:
    """Note that a link is to be solved again, once an instant."""
    if fabric.marked[link] != now:
        fabric.marked[link] = now
        fabric.touched[n_touched] = link
        n_touched += 1
    return n_touched


@inner
def connected(seed: Any, now: Any, fabric: FairFabric) -> Any:
    """Find the flows that are connected with link `seed`, and the links that they share; returns how many."""
    path, length, width, owner = fabric.paths
    links, flows, link_mark, flow_mark = fabric.component
    capacity, available, share, unfixed = fabric.levels
    (head, after, _, count), solved = fabric.lists, fabric.flows.solved
    n_links, n_flows, at, e = 0, 0, 0, head[seed]
    while True:
        while e >= 0:
            c = owner[e]
            if flow_mark[c] != now:
                flow_mark[c] = now
                flows[n_flows] = c
                n_flows += 1
                solved[c] = -1.0
                for other in range(c * width, c * width + length[c]):
                    link = path[other]
                    if link_mark[link] != now:
                        link_mark[link] = now
                        available[link], unfixed[link] = capacity[link], 0.0
                        if count[link] > 1:
                            share[link] = capacity[link] / count[link]
                            links[n_links] = link
                            n_links += 1
                    unfixed[link] += 1.0
            e = after[e]
        while at < n_links and unfixed[links[at]] == count[links[at]]:  # all its flows are found
            at += 1
        if at == n_links:
            return n_links, n_flows
        e = head[links[at]]
        at += 1


@inner
def fix(c: Any, rate: Any, fabric: FairFabric) -> None:
    """Give flow `c` its rate, and take that from its links; the share of the others never falls below it."""
    path, length, width, _ = fabric.paths
    _, available, share, unfixed = fabric.levels
    count = fabric.lists.count
    fabric.flows.solved[c] = rate
    for e in range(c * width, c * width + length[c]):
        link = path[e]
        if count[link] > 1:
            available[link] -= rate
            unfixed[link] -= 1.0
            share[link] = max(available[link] / unfixed[link], rate) if unfixed[link] > 0.0 else math.inf


@inner
def most_limited(n_flows: Any, fabric: FairFabric) -> Any:
    """The flow without a rate that one of its links limits most."""
    least, (_, flows, _, _), capacity = -1, fabric.component, fabric.levels.capacity
    solved, narrowest = fabric.flows.solved, fabric.flows.narrowest
    for a in range(n_flows):
        c = flows[a]
        if solved[c] < 0.0 and (least < 0 or narrower(narrowest[c], narrowest[least], capacity)):
            least = c
    return least


@inner
def fill(n_links: Any, n_flows: Any, fabric: FairFabric) -> None:
    """Progressive filling of the `component`: solves the rate of every flow in it. Rates never fall from one round to
    the next. No link is narrower than `bound`."""
    owner, (head, after, _, _), links = fabric.paths.owner, fabric.lists, fabric.component.links
    (capacity, _, share, _), solved, narrowest = fabric.levels, fabric.flows.solved, fabric.flows.narrowest
    left, first = n_flows, -1
    while left:
        rate, tightest, a = math.inf, -1, 0
        while a < n_links:
            link = links[a]
            if share[link] < rate or (share[link] == rate and link < tightest):
                rate, tightest = share[link], link
            elif share[link] == math.inf:  # nothing left to decide there
                n_links -= 1
                links[a] = links[n_links]
                continue
            a += 1
        if rate >= fabric.bound:  # a link that one flow has to itself may be the tightest
            if first < 0 or solved[first] >= 0.0:
                first = most_limited(n_flows, fabric)
            if (capacity[narrowest[first]], narrowest[first]) < (rate, tightest):
                fix(first, capacity[narrowest[first]], fabric)
                left -= 1
                continue
        e = head[tightest]
        while e >= 0:
            if solved[owner[e]] < 0.0:
                fix(owner[e], rate, fabric)
                left -= 1
            e = after[e]


@inner
def replan(c: Any, t: Any, flows: Flows) -> None:
    """Take up the new rate of flow `c` at time `t`: `due` is when its bytes are gone, NEVER if they do not move, or not
    within the range of the clock."""
    rest, since, rate, whole, due = flows.rest, flows.since, flows.rate, flows.whole, flows.due
    if rate[c] >= 0.0:
        rest[c] = max(0.0, rest[c] - (rate[c] * (t - since[c])) / 1e12)
        whole[c] = 0
    since[c], rate[c], due[c] = t, flows.solved[c], NEVER
    if rate[c] > 0.0:
        wait = rest[c] * 1e12 / rate[c]
        if whole[c] and rate[c] == flows.most[c]:
            due[c] = t + flows.full[c]
        elif wait < NEVER:
            due[c] = t + max(1, math.ceil(wait))


@inner
def solve(seed: Any, t: Any, now: Any, fabric: FairFabric, size: Any) -> Any:
    """New rates for all that is connected with link `seed`; returns the size of the heap of `ends`.

    Of these only the flows that end first are in that heap: their end changes the rates of the others.
    """
    members, flows, ends = fabric.component.flows, fabric.flows, fabric.ends
    solved, rate, due = flows.solved, flows.rate, flows.due
    n_links, n_flows = connected(seed, now, fabric)
    fill(n_links, n_flows, fabric)
    least = NEVER
    for a in range(n_flows):
        c = members[a]
        if solved[c] != rate[c]:
            replan(c, t, flows)
        least = min(least, due[c])
    for a in range(n_flows):
        c = members[a]
        if due[c] == least and least < NEVER:
            size = heaps.move(ends, size, least, c)
        elif ends.place[c] >= 0:
            size = heaps.drop(ends, size, c)
    return size
