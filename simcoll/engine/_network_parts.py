"""Divide a network into parts, such as nodes, that affect each other only after some latency, and can run alone."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array, Numbers, distinct
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER

MOST_LEVELS: Final = 16  # of parts that must run in order; the up and down links of a fabric make fewer


class NetworkParts(NamedTuple):
    """A network divided into `many` parts, sorted by class: class c has the parts `classes[c]` to `classes[c + 1]` − 1.

    An event in a part of class c affects other parts of class d after `ahead[c, d]` ps at the earliest.
    `of_participant` and `of_link` hold the part of each. `visits` are all pairs (part, route) where transfers on the
    route may be on the heap of the part.
    """

    many: int
    classes: Numbers
    ahead: Numbers
    of_participant: Numbers
    of_link: Numbers
    visits: tuple[Numbers, Numbers]


def parts_of(program: Program, follows: Array, slots: int, least: int) -> NetworkParts:
    """Divide the network of a `fifo` program into parts. `follows`: see `LinkTables.follows`.

    A part affects another in two ways. A transfer's head reaches a link that needs an event, after the latencies in
    between. Or the end of a transfer starts others of its receiver, and with `slots` one of its sender, after the
    latencies of the last links or the time at the receive side. A part holds participants and their first links. Two
    participants, and the last link between them, are in one part if a route between them takes at most half as long as
    the longest. All other last links of routes to a part form one part, unless receive sides take time: so nodes affect
    each other only after a whole route there and back. A part that affects another within less than `least` ps comes
    before it, links before participants if possible. If no such order exists, there is one part.
    """
    (src, dst, hop, links), participants = program.routes, program.schedule.participants
    places = participants + len(program.bandwidths)
    begins = np.zeros(len(links) + 1, bool)  # where a run of links begins that a head passes in one event
    begins[:-1] = ~follows[links].astype(bool)
    some, none = np.flatnonzero(np.diff(hop)), np.flatnonzero(np.diff(hop) == 0)
    begins[hop[some]] = True
    first, joined = np.flatnonzero(begins[:-1]), np.flatnonzero(~begins[:-1])
    at, keeps = participants + links.astype(np.int64), program.by_way("o_recv")[some]
    reduces, late, whole = bool(program.by_kind("gamma").any()), keeps, keeps
    kept = reduces or bool(keeps.any())
    if len(some):
        late, whole = (np.add.reduceat(program.latencies[links], begin) for begin in (first, hop[some]))
    last = at[hop[some + 1] - 1]
    short = 2 * whole <= whole.max(initial=0)
    within = short | kept | (np.diff(hop)[some] == 1)
    label = labels(
        places,
        np.concatenate([at[joined - 1], src[some], src[some[short]], dst[some[within]], src[none]]),
        np.concatenate([at[joined], at[hop[some]], dst[some[short]], last[within], dst[none]]),
    )
    alone = ~np.isin(label[last], label[:participants])
    label = labels(
        2 * places,  # join the last links of all routes to a part, by an extra place behind all others
        np.append(np.arange(places), last[alone]),
        np.append(label, places + label[dst[some[alone]]]),
    )[:places]
    used = distinct(np.append(label[:participants], label[at]))
    part = np.minimum(np.searchsorted(used, label), len(used) - 1)
    here, way = part[at[first]], np.repeat(np.arange(len(src)), np.diff(hop))[first]
    final = np.append(way[1:] != way[:-1], True)[: len(way)]
    goes, over = ~final[:-1], late[final]
    if kept:
        over = np.where(keeps > 0, np.minimum(keeps, over), 0 if reduces else over)
    felt = [(here[:-1][goes], here[1:][goes], late[:-1][goes]), (here[final], part[dst[some]], over)]
    if slots:
        felt.append((here[final], part[src[some]], over))
    source, target, after = (np.concatenate(column) for column in zip(*felt, strict=True))
    apart = source != target
    source, target, after = source[apart], target[apart], after[apart]
    level = _in_order(part[:participants], source, target, after < least, len(used))
    if level is None:
        part, here, way = part * 0, np.zeros(len(src), np.int64), np.arange(len(src))
        level, source, target, after = np.zeros(1, np.int64), source[:0], target[:0], after[:0]
    levels = distinct(level)
    of_class = np.searchsorted(levels, level)
    ahead = np.full((len(levels), len(levels)), NEVER)
    np.minimum.at(ahead, (of_class[source], of_class[target]), after)
    number = np.argsort(np.argsort(level, kind="stable"))
    part, classes = number[part], np.append(0, np.cumsum(np.bincount(of_class)))
    visits = number[here], way
    return NetworkParts(len(level), classes, ahead, part[:participants], part[participants:], visits)


def _in_order(own: Numbers, before: Numbers, behind: Numbers, near: Array, count: int) -> Numbers | None:
    """Return a level for each part, so that in each `near` pair `before` is below `behind`. If possible, parts of links
    come first, in route order, then the parts with participants (`own`). None if impossible."""
    links = np.ones(count, bool)
    links[own] = False
    level = _levels(count, before, behind, near | (links[before] & links[behind]))
    if level is None or (near & links[behind] & ~links[before]).any():
        return _levels(count, before, behind, near)
    behind_links: Numbers = level + np.where(links, 0, level[links].max(initial=-1) + 1)
    return behind_links


def _levels(count: int, before: Numbers, behind: Numbers, which: Array) -> Numbers | None:
    """Return a level for each part, with `before` below `behind` in the pairs `which`; None if impossible."""
    before, behind = before[which], behind[which]
    level = np.zeros(count, np.int64)
    for _ in range(MOST_LEVELS):
        deeper = level.copy()
        np.maximum.at(deeper, behind, level[before] + 1)
        if (deeper == level).all():
            return level
        level = deeper
    return None


def labels(count: int, ends: Numbers, others: Numbers) -> Numbers:
    """Return the connected components of `count` places, joined by the pairs (`ends`, `others`): one label a place."""
    label = np.arange(count)
    while (label[ends] != label[others]).any():
        for a, b in ((label[ends], label[others]), (label[others], label[ends])):
            np.minimum.at(label, a, b)
        while (label[label] != label).any():
            label = label[label]
    return label
