"""The oracle's cases as programs of the engines, message by message, each with a way of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from oracle import Change, Fault, Link, Message, Rules, Task

from simcoll.engine.binding import Columns, assemble
from simcoll.engine.link_changes import LinkChanges
from simcoll.engine.program import Program, ProgramRoutes, Tasks
from simcoll.engine.timing_model import Dependencies, Params, dependencies
from simcoll.schedule.schedule import Schedule

Case = tuple[list[Message], list[Link], Rules, dict[int, int]]


def program_of(
    messages: list[Message],
    links: list[Link],
    rules: Rules,
    arrivals: dict[int, int],
    waits: Callable[[Schedule], Dependencies] = dependencies,
    build: Callable[..., Program] = assemble,
) -> Program:
    """The oracle's case as a program, route by route."""
    rows = [
        (m.step, m.src, read, m.dst, written, m.reduce, 1, place > 0)
        for m in messages
        for place, (read, written) in enumerate(m.slots)
    ]
    n = 1 + max(max(m.src, m.dst) for m in messages)
    schedule = Schedule.from_rows(rows, collective="all_reduce", algorithm="random", n=n, n_chunks=1)
    bandwidths, latencies = (np.array(column) for column in zip(*links, strict=True))
    names = [f"link{i}" for i in range(len(links))]
    network = SimpleNamespace(bandwidths=bandwidths, latencies=latencies, link_names=names)
    params = Params(**{field: getattr(rules, field) for field in Rules.__dataclass_fields__})
    hop = np.cumsum([0, *(len(m.route) for m in messages)], dtype=np.int32)
    ends = schedule.src[schedule.heads], schedule.dst[schedule.heads]
    routes = ProgramRoutes(*ends, hop, np.array([link for m in messages for link in m.route], dtype=np.int32))
    sizes, kind = np.unique([m.nbytes for m in messages], return_inverse=True)
    number = np.array([m.channel for m in messages], dtype=np.int32)
    columns = Columns(np.arange(len(messages), dtype=np.int32), sizes, kind.astype(np.int32), number, *waits(schedule))
    return build(schedule, params, network, routes, columns, {r: t for r, t in arrivals.items() if r < n})


def joint_program_of(messages: list[Message], links: list[Link], rules: Rules, tasks: list[Task]) -> Program:
    """A case of several operations as a program: their rules by way, of which each message has its own."""
    kinds = list(dict.fromkeys(m.rules or rules for m in messages))
    plain = program_of(messages, links, rules, {})
    credit = np.full(len(messages), -1, np.int32)
    for i, m in enumerate(messages):
        slots = (m.rules or rules).slots
        same = [
            j for j in range(i) if (messages[j].src, messages[j].dst, messages[j].channel) == (m.src, m.dst, m.channel)
        ]
        credit[i] = same[-slots] if slots and len(same) >= slots else -1
    channel, side = (np.full(max(column, default=-1) + 1, -1, np.int32) for column in (plain.channel, plain.side))
    for i, m in enumerate(messages):
        assert m.tasks
        channel[plain.channel[i]], side[plain.side[i]] = m.tasks
    before = np.array([j for task in tasks for j in task.before], np.int32)
    first = np.cumsum([0, *(len(task.before) for task in tasks)], dtype=np.int32)
    sizes = np.array([m.nbytes for m in messages])
    return dataclasses.replace(
        plain,
        sizes=sizes,
        kind=np.arange(len(messages), dtype=np.int32),
        credit=credit,
        params=dataclasses.replace(plain.params, slots=1),
        tasks=Tasks(channel, side, np.array([t.duration for t in tasks]), first, before, np.arange(len(channel))),
        parts=tuple(Params(**{field: getattr(one, field) for field in Rules.__dataclass_fields__}) for one in kinds),
        part=np.array([kinds.index(m.rules or rules) for m in messages]),
        views=getattr(links, "views", 1),
    )


def changed(played: Program, messages: list[Message], faults: list[Fault]) -> Program:
    """A program of which each message has a way of its own, with links that change, and the ways then taken."""
    turns = sorted({fault.at for fault in faults if not isinstance(fault, Change)})
    rows = []
    force = np.tile(np.arange(len(messages), dtype=np.int32), (len(turns) + 1, 1))
    src, dst, hop, links = played.routes
    ends, ways = [], [links]
    for fault in faults:
        if isinstance(fault, Change):
            rows.append((fault.at, -1, fault.link, fault.bandwidth))
            continue
        turn = turns.index(fault.at) + 1
        rows += [(fault.at, turn, link, 0) for link in fault.links]
        for i, route in fault.routes.items():
            force[turn:, i] = len(messages) + len(ends)
            ends.append(i)
            ways.append(np.array(route, np.int32))
    at, turn, link, bandwidth = np.array(sorted(rows), np.int64).reshape(-1, 4).T
    whose = np.append(np.arange(len(messages)), ends).astype(np.int32)
    hop = np.append(hop, hop[-1] + np.cumsum([len(way) for way in ways[1:]])).astype(np.int32)
    routes = ProgramRoutes(src[whose], dst[whose], hop, np.concatenate(ways).astype(np.int32))
    part = None if played.part is None else played.part[whose]
    return dataclasses.replace(played, routes=routes, part=part, changes=LinkChanges(at, link, bandwidth, turn, force))
