"""The schedules and closed forms that the playground and the gallery show, as JavaScript that a page loads."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import numpy as np

from simcoll.schedule import algorithms, registry
from simcoll.schedule.collectives import COLLECTIVES, EXCHANGES, NOTHING, contracts
from simcoll.schedule.proof import prove
from simcoll.schedule.schedule import Schedule

RANKS: Final = (2, 3, 4, 5, 6, 7, 8, 12, 16)  # 16 ranks are what a timeline on a page can show


def script(ranks: tuple[int, ...] = RANKS) -> str:
    """`SIMCOLL` of the page: for each collective its promise and its algorithms, as `entry` gives them."""
    found = {
        name: {
            "promise": COLLECTIVES[name].summary,
            "sized": COLLECTIVES[name].busbw(2) > 0,  # a barrier moves no data, and has no bandwidth
            "operators": operators(name),
            "algorithms": {each.name: entry(each, ranks) for each in entries.values() if not each.needs_agent},
        }
        for name, entries in registry.ALGORITHMS.items()
        if name not in EXCHANGES[1:]  # the exchanges of experts look like all_to_all, and have no size of their own
    }
    return f"const SIMCOLL = {json.dumps(found, separators=(',', ':'))};\n"


def operators(name: str) -> list[str]:
    """The operators that the page offers for a collective; none for one that does not reduce."""
    if not COLLECTIVES[name].reduces:
        return []
    return ["max", "min"] if COLLECTIVES[name].at_least_once else ["sum", "product", "min", "max", "avg"]


def entry(algorithm: registry.Algorithm, ranks: tuple[int, ...]) -> dict[str, Any]:
    """What the page needs of an algorithm: its help, its closed form, and its proved schedules by number of ranks."""
    schedules = {n: algorithms.build(algorithm.collective, algorithm.name, n) for n in ranks}
    for schedule in schedules.values():
        prove(schedule)
    return {
        "help": algorithm.help,
        "cost": algorithm.cost or "",
        "forms": {n: form for n in ranks if (form := closed_form(algorithm, n))},
        "schedules": {n: listed(schedule) for n, schedule in schedules.items()},
    }


def closed_form(algorithm: registry.Algorithm, n: int) -> list[int] | None:
    """[a, p, q] where n ranks take a·alpha + p/q·beta·m on a full mesh; None where no form is claimed for n."""
    form = algorithm.closed_form(n)
    return form and [form[0], form[1].numerator, form[1].denominator]


def listed(schedule: Schedule) -> dict[str, Any]:
    """Blocks, chunks, messages and steps of a schedule: for each transfer sender, receiver, 1 if it reduces, and what
    it moves: from slot, to slot, and the chunk that it is of, whose size it has; -1 if it is of none. `owned` are the
    slots of each rank that hold data before, `promised` those that hold the result at the end; null: all."""
    contract = COLLECTIVES[schedule.collective]
    start = contract.table(contract.before, schedule.n, schedule.n_chunks, schedule.root).tolist()
    held = {
        (rank, slot): chunk
        for rank, slots in enumerate(start)
        for slot, (of, chunk) in enumerate(slots)
        if of != NOTHING
    }
    steps: list[list[tuple[int, int, int, list[tuple[int, int, int]]]]] = [[] for _ in range(schedule.n_steps)]
    rows = schedule.by_slot()
    for part in rows.steps():
        come: dict[tuple[int, int], int] = {}
        for row in map(rows.row, range(part.start, part.stop)):
            chunk = held.get((row.src, row.src_slot), NOTHING)
            if not row.joins:
                steps[row.step].append((row.src, row.dst, int(row.reduce), []))
            steps[row.step][-1][-1].append((row.src_slot, row.dst_slot, chunk))
            come[row.dst, row.dst_slot] = chunk
        held |= come
    blocks = contract.blocks(schedule.n)
    held_slots = {"owned": slots(schedule, "before"), "promised": slots(schedule, "after")}
    return {
        "blocks": blocks, "chunks": schedule.n_chunks, "messages": schedule.messages, "steps": steps, **held_slots
    }  # fmt: skip


def slots(schedule: Schedule, which: Literal["before", "after"]) -> list[list[int]] | None:
    """The slots of each rank that its contract names before or after; None for all slots of all ranks."""
    named = contracts(schedule, which)[..., 0] != NOTHING
    return None if named.all() else [np.flatnonzero(row).tolist() for row in named]
