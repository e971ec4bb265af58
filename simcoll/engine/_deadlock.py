"""Explain in words why a run cannot finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simcoll.engine.program import Program
from simcoll.engine.timing_model import NONE
from simcoll.errors import StuckError
from simcoll.units import exact_us, format_duration


class Reached(NamedTuple):
    """How far each transfer came before a run stopped: the times in ps of its milestones (or NONE), its route (`way`)
    and, with `blocking` sends, the transfers that it waited for."""

    started: Sequence[int]
    sent: Sequence[int]
    ended: Sequence[int]
    completed: Sequence[int]
    way: Sequence[int]
    blocking: Sequence[tuple[int, int]]


def stuck(program: Program, reached: Reached) -> StuckError:
    """Return the error to raise. It names the first transfer that did not end, and what this transfer waits for."""
    i = reached.ended.index(NONE)
    why, when = _missing(program, reached, i)
    return StuckError(f"the run cannot finish: {_in_words(program, i)} {why}", when)


def _in_words(program: Program, i: int) -> str:
    row = program.schedule.row(int(program.origin[i]))
    src, dst = (f"rank {p}" if p < program.schedule.n else f"switch {p}" for p in (row.src, row.dst))
    return f"step {row.step}: {src}, sending chunk {row.src_slot} to {dst},"


def _missing(program: Program, reached: Reached, i: int) -> tuple[str, int | None]:
    """Return in words what transfer `i` waits for, and the time in ps at which it gives up, or None."""
    if reached.started[i] != NONE:
        return _dead(program, reached, i)
    waits = {
        "the chunk to come from": (reached.completed, int(program.reads[i])),
        "its channel, kept by": (reached.sent, int(program.channel_before[i])),
        "a free slot, kept by": (reached.ended, int(program.credit[i])),
    }
    for what, (times, j) in waits.items():
        if j != NONE and times[j] == NONE:
            return f"waits for {what} {_in_words(program, j)[:-1]}", None
    for j in reached.blocking[i] if reached.blocking else ():
        if j != NONE and reached.ended[j] == NONE:
            why = {"sends-first": "all send before anyone receives", "even-odd": "both of a pair send first"}
            return (
                f"waits for a rank that is blocked in {_in_words(program, j)[:-1]}; {why[program.params.blocking]}",
                None,
            )
    return "waits for the barrier behind an earlier step", None


def _dead(program: Program, reached: Reached, i: int) -> tuple[str, int | None]:
    """Return in words the dead link that transfer `i` waits for, and the time in ps at which it gives up, or None."""
    changes, bandwidths = program.changes, program.bandwidths.copy()
    since: dict[int, int] = {}
    if changes:
        for at, link, bandwidth, turn in changes:
            bandwidths[link] = bandwidth
            since[link] = at if turn == NONE else since[link]
    _, _, hop, links = program.routes
    route = links[hop[reached.way[i]] : hop[reached.way[i] + 1]].tolist()
    dead = next(link for link in route if not bandwidths[link])
    problem = f"waits for link {program.link_names[dead]}, which is down"
    if not changes or dead not in since or dead not in changes.timeouts:
        return problem, None
    patience = changes.timeouts[dead]
    when = max(since[dead], reached.started[i]) + patience
    since_us, when_us = (exact_us(ps).rstrip("0").rstrip(".") for ps in (since[dead], when))
    return f"{problem} since {since_us} us; timed out at {when_us} us, after {format_duration(patience)}", when
