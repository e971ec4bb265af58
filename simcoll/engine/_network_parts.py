"""Parts of a network that feel each other late, such as nodes: over some time each may be run as if it were alone."""

from __future__ import annotations

from typing import Final

import numpy as np

from simcoll.config.arrays import Array, Numbers, distinct
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER
from simcoll.named_tuple import NamedTuple

MOST_LEVELS: Final = 16  # of parts that feel each other soon: a fabric's links up and down are fewer


class NetworkParts(NamedTuple):
    """A network cut into `many` parts. An event in one is felt in those before it at least `ahead` ps later, and in
    those behind it, too, but for heads that come there. The columns are the part of each participant and of each link,
    and how many transfers of each way may be on the heap of each part: (part, way) of all places where they do."""

    many: int
    ahead: int
    of_participant: Numbers
    of_link: Numbers
    visits: tuple[Numbers, Numbers]


def parts_of(program: Program, follows: Array, slots: int, least: int) -> NetworkParts:
    """The parts of a program's network, where links serve in turn. `follows` says of which links heads pass without an
    event: see `LinkTables.follows`.

    A head that leaves a link for one that needs an event comes there after the latencies behind it. The end of a
    transfer lets go another of its sender (`slots`), and lies behind the latencies of the last links, or the time for
    which the receive side is kept. All else stays with one participant, whose first and last links are in its part.
    Parts that feel others within less than `least` ps, as trunks do, stand before these; there is one part where that
    cannot be.
    """
    (src, dst, hop, links), participants = program.routes, program.schedule.participants
    begins = np.zeros(len(links) + 1, bool)  # a segment of links that are passed in one event
    begins[:-1] = ~follows[links].astype(bool)
    some, none = np.flatnonzero(np.diff(hop)), np.flatnonzero(np.diff(hop) == 0)
    begins[hop[some]] = True
    first, joined = np.flatnonzero(begins[:-1]), np.flatnonzero(~begins[:-1])
    at = participants + links.astype(np.int64)
    ends = np.concatenate([at[joined - 1], src[some], dst[some], src[none]])
    others = np.concatenate([at[joined], at[hop[some]], at[hop[some + 1] - 1], dst[none]])
    label = _labels(participants + len(program.bandwidths), ends, others)
    used = distinct(np.append(label[:participants], label[at]))
    part = np.minimum(np.searchsorted(used, label), len(used) - 1)
    here, way = part[at[first]], np.repeat(np.arange(len(src)), np.diff(hop))[first]
    late = np.add.reduceat(program.latencies[links], first) if len(first) else np.zeros(0, np.int64)
    last = np.append(way[1:] != way[:-1], True)[: len(way)]
    felt = [(here[:-1][~last[:-1]], here[1:][~last[:-1]], late[:-1][~last[:-1]])]
    if slots:
        keeps = program.by_way("o_recv")[some]
        over = np.where(keeps > 0, np.minimum(keeps, late[last]), 0 if program.params.gamma else late[last])
        felt.append((part[dst[some]], part[src[some]], over))
    source, target, after = (np.concatenate(column) for column in zip(*felt, strict=True))
    apart = source != target
    near = apart & (after < least)
    number = _in_order(len(used), source[near], target[near])
    if number is None:
        return NetworkParts(
            1,
            NEVER,
            part[:participants] * 0,
            part[participants:] * 0,
            (np.zeros(len(src), np.int64), np.arange(len(src))),
        )
    part = number[part]
    ahead = int(after[apart & ~near].min(initial=NEVER))
    return NetworkParts(len(used), ahead, part[:participants], part[participants:], (number[here], way))


def _in_order(count: int, before: Numbers, behind: Numbers) -> Numbers | None:
    """New numbers for `count` parts, each pair of which comes in order; None where no order is theirs."""
    level = np.zeros(count, np.int64)
    for _ in range(MOST_LEVELS):
        deeper = level.copy()
        np.maximum.at(deeper, behind, level[before] + 1)
        if (deeper == level).all():
            return np.argsort(np.argsort(level, kind="stable"))
        level = deeper
    return None


def _labels(count: int, ends: Numbers, others: Numbers) -> Numbers:
    """A number for each of `count` places, equal for those that pairs of `ends` and `others` connect."""
    label = np.arange(count)
    while (label[ends] != label[others]).any():
        for a, b in ((label[ends], label[others]), (label[others], label[ends])):
            np.minimum.at(label, a, b)
        while (label[label] != label).any():
            label = label[label]
    return label
