"""Cut a network into parts, such as nodes, that affect each other late: until then each is run as if it were alone."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simcoll.config.arrays import Array, Numbers, distinct
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER

MOST_LEVELS: Final = 16  # levels; the links up and down of a fabric make fewer


class NetworkParts(NamedTuple):
    """A network cut into `many` parts, those of a class together: `classes` is where each class begins, and the end.

    An event in a part of class c affects other parts of class d `ahead[c, d]` ps later or more. `of_participant` and
    `of_link` are the part of each. `visits` are all pairs (part, way) where transfers of the way may be on the heap of
    the part.
    """

    many: int
    classes: Numbers
    ahead: Numbers
    of_participant: Numbers
    of_link: Numbers
    visits: tuple[Numbers, Numbers]


def parts_of(program: Program, follows: Array, slots: int, least: int) -> NetworkParts:
    """Cut a program's network, where links serve in turn, into parts. `follows`: see `LinkTables.follows`.

    A part affects another in two ways. A head goes on to a link that needs an event, after the latencies in between.
    The end of a transfer lets others of its receiver go, and one of its sender (`slots`), after the latencies of the
    last links or the time for which the receive side is kept. A part holds participants and their first links.
    Participants are together, with the last link between them, if a way between them takes at most half as long as the
    longest. Other last links of ways to a part are a part by themselves, unless receive sides are kept: so nodes affect
    each other by a whole way there and back. Parts that affect others within less than `least` ps stand before these,
    links before participants if possible. Where no order exists, there is one part.
    """
    (src, dst, hop, links), participants = program.routes, program.schedule.participants
    places = participants + len(program.bandwidths)
    begins = np.zeros(len(links) + 1, bool)  # where a segment begins that is passed in one event
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
        2 * places,  # join the last links of all ways to a part, by a place behind all others
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
    """Return a level for each of `count` parts that puts `near` pairs in order: if possible, links in the order of
    ways, then the parts that have participants, `own`. None where no order exists."""
    links = np.ones(count, bool)
    links[own] = False
    level = _levels(count, before, behind, near | (links[before] & links[behind]))
    if level is None or (near & links[behind] & ~links[before]).any():
        return _levels(count, before, behind, near)
    behind_links: Numbers = level + np.where(links, 0, level[links].max(initial=-1) + 1)
    return behind_links


def _levels(count: int, before: Numbers, behind: Numbers, which: Array) -> Numbers | None:
    """Return a level for each of `count` parts that puts each pair of `which` in order; None where no order exists."""
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
    """Return a number for each of `count` places, equal for places that pairs of `ends` and `others` connect."""
    label = np.arange(count)
    while (label[ends] != label[others]).any():
        for a, b in ((label[ends], label[others]), (label[others], label[ends])):
            np.minimum.at(label, a, b)
        while (label[label] != label).any():
            label = label[label]
    return label
