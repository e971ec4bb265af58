"""Rules broken on purpose: the comparison with the oracle notices each."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from oracle import Times, random_case, random_faults, random_tasks, simulate, simulate_faults, simulate_tasks
from oracle_programs import Case, changed, joint_program_of, program_of

from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import Dependencies

CASES = 150  # random cases in which a broken rule must show

KERNEL, BINDING, WAYS = (
    "simcoll.engine.kernels.fast_kernel",
    "simcoll.engine.kernels.dependency_kernel",
    "simcoll.engine.kernels.link_tables",
)

BEGIN = "free_link[link] = r + s\n"
LEAD = "value(lead, way[i])"
TOUCH = "                n_touched = touch(c, now, paths, touched, mark, n_touched)\n                i,"
SERVE = (
    "                state[i] = SIDE\n                size = push(heap, size, tail, i)\n"
    "                if queue[0]:\n                    size = follow_up(go, state, complete, graph, heap, size)\n"
    "                continue\n"
)
AT_ONCE = "                tail = free_side[side[i]] = max(tail, free_side[side[i]]) + receive[i]\n"
READERS = "next_reader[i], first_reader[reads[i]] = first_reader[reads[i]], i"
CHAIN = "before if reduce[i] or before >= first else -1"

# By module and rule: the text as it stands, and what breaks it.
BROKEN: dict[str, dict[str, tuple[str, str]]] = {
    KERNEL: {
        "ties go to the higher index": ("items[other] < items[below]", "items[other] > items[below]"),
        "a slow link upstream is forgotten": ("tail = max(r + s, tail)", "tail = r + s"),
        "a link is held until the tail has passed": (BEGIN, "free_link[link] = max(r + s, tail)\n"),
        "a channel's cap holds the link": (BEGIN, "free_link[link] = r + max(s, value(cap, kind[i]))\n"),
        "a channel's cap is forgotten": ("r + max(s, value(cap, kind[i]))", "r + s"),
        "g is forgotten under fifo": ("max(tail, when[i] + pause)", "tail"),
        "g is forgotten under fair": ("max(gone, begun + value(gap, way[i]))", "gone"),
        "g counts from the head's coming": ("when[i] + pause", "t + pause"),
        "o_send counts twice": (f"push(heap, size, t + {LEAD}, i)", f"push(heap, size, t + 2 * {LEAD}, i)"),
        "a flow is brought forward at an equal rate": ("if solved[c] != rate[c]:", "if True:"),
        "the end of a flow is rounded down": ("math.ceil(wait)", "math.floor(wait)"),
        "a whole flow at full rate is rounded twice": ("if whole[c] and rate[c] == most[c]:", "if False:"),
        "narrow links of one flow do not limit it": ("if rate >= bound:", "if tightest < 0:"),
        "rates do not rise when a flow has ended": (TOUCH, "                i,"),
        "receive sides do not queue": ("max(t, free_side[side[i]]) + receive[i]", "t + receive[i]"),
        "receive sides serve in order of sending": (SERVE, AT_ONCE),
        "a version does not wait for the one before": ("before >= 0 and state[before] != COMPLETE", "False"),
        "a version that waited is complete at its end": ("t = max(t, when[i])\n\n", "t = when[i]\n\n"),
        "what a late rank holds is there at the start": ("value(came, i)", "0"),
        "one transfer reads a version": (READERS, "first_reader[reads[i]] = i"),
        "a barrier opens at the end that comes last": ("passed[1] = max(passed[1], t)", "passed[1] = t"),
        "replay does not check links": ("if t < last_link[link]:", "if False:"),
        "replay does not check receive sides": ("if tail < last_side[side[i]]:", "if False:"),
        "replay does not check whether flows meet": ("if t < free_link[link]:", "if False:"),
    },
    BINDING: {
        "one credit too many": ("if flying[g] < slots:", "if flying[g] <= slots:"),
        "a reduction does not wait for what it adds to": (CHAIN, "before if before >= first else -1"),
        "writes of one step do not wait for each other": (CHAIN, "before if reduce[i] else -1"),
        "reads see what their own step wrote": ("step[behind] == step[first]", "behind == first"),
    },
    WAYS: {
        "links are merged that have two before them": ("(lowest == highest) & (highest >= 0)", "highest >= 0"),
        "links of two channels are shared with nobody": ("(first < last)[links]", "(first > last)[links]"),
        "the widest link limits a flow": ("np.minimum, rank, self.links", "np.maximum, rank, self.links"),
    },
}

BROKEN_TASKS = {  # of the kernel, in programs of several operations
    "a task is done with its transfers alone": ("tell(k, t + duration[k], tasks)", "tell(k, t, tasks)"),
    "a task is done at what happens last in the queue": ("done[k] = max(done[k], t)", "done[k] = t"),
    "a task opens with the last that it waits for": ("max(opened[behind[e]], done[k])", "done[k]"),
    "what a rank brings is there before it": ("(k >= 0 and waits[k] > 0)", "False"),
    "what a rank brings is there at the transfer's end": ("whole = max(whole, opened[k])", "pass"),
    "what waited for its rank is complete as it opens": (
        "settle(added[e], max(t, when[added[e]])",
        "settle(added[e], t",
    ),
    "a task does not wait for what it sends": ("tell(tasks[0][i], t, tasks)", "tell(tasks[0][i], 0, tasks)"),
    "a task does not wait for what it receives": ("tell(receiver[i], t, tasks)", "tell(receiver[i], 0, tasks)"),
    "an operation's gap is another's": ("value(gap, way[i])", "value(gap, 0)"),
}

BROKEN_CHANGES = {  # of the kernel, on links that change
    "what is left goes on at the old bandwidth": ("wait = max(1, math.ceil(left))", "wait = service[kind + rate[e]]"),
    "a dead link serves": ("        if speed == 0.0:\n", "        if False:\n"),
    "what a dead link held is not sent again": ("if force[k * ways + way] != taken:", "if False:"),
    "what comes to a dead link is sent again too late": ("came + 1), turn[e]", "came + 2), turn[e]"),
    "a link is free when it lost its chunk": ("(free if begun < 0 else at[e]), again", "free, again"),
    "what is sent again is sent twice": ("told[i] == 0", "True"),
    "a link that is back serves from when it went": ("now = max(at[e], came, free)", "now = max(came, free)"),
    "flows do not learn what limits them": ("narrowest[owner[e]] = capped(", "capped("),
    "what sets out later takes the old way": ("w = taken[i] = force[turned * ways + w]", "taken[i] = w"),
    "flows go on where they were": ("if w != taken[on[c]]:", "if False:"),
    "flows set out on links as they were": ("most[c], due[c] = capacity[narrowest[c]]", "most[c], due[c] = 1.0"),
}


@cache
def expected(seed: int) -> tuple[Case, list[Times]]:
    """A random case and what the oracle says of it."""
    case = random_case(random.Random(seed), contention=seed % 4 != 0)
    return case, simulate(*case)


def load(name: str, old: str = "", new: str = "", **others: ModuleType | Any) -> ModuleType:
    """A copy of a module with one text replaced, and with other things under some of its names."""
    original = importlib.import_module(name)
    source = Path(str(original.__file__)).read_text(encoding="utf-8")
    assert old in source, f"{name} has changed: {old!r} is not in it"
    copy = ModuleType(name)
    copy.__file__ = original.__file__
    exec(compile(source.replace(old, new) if old else source, name, "exec"), vars(copy))
    vars(copy).update(others)
    return copy


Engine = Callable[[Case, bool], Timeline | None]


def engine(module: str, old: str, new: str) -> Engine:
    """The fast engine with a text of a module replaced: runs a case, with shortcuts or without."""
    kernel = load(KERNEL, *(old, new) if module == KERNEL else ())
    ways = load(WAYS, *(old, new) if module == WAYS else ())
    fast = load("simcoll.engine.fast", fast_kernel=kernel, LinkTables=ways.LinkTables)
    binding = load(
        "simcoll.engine._dependencies", dependency_kernel=load(BINDING, *(old, new) if module == BINDING else ())
    )
    names = ("credits", "inherited", "numbered", "predecessors")
    program = load("simcoll.engine.program", **{name: getattr(binding, name) for name in names})

    def run(case: Case, shortcuts: bool) -> Timeline | None:
        played = program_of(*case, lambda schedule: Dependencies(*binding.versions(schedule, False)), program.assemble)
        return fast.run(played, shortcuts, compiled=False).timeline  # type: ignore[no-any-return]

    return run


def agrees(run: Engine, seed: int) -> bool:
    """Whether an engine says what the oracle says."""
    case, times = expected(seed)
    for shortcuts in (False, True):
        try:
            found = run(case, shortcuts)
        except (IndexError, AssertionError):
            return False
        if found is None:
            return False
        for name in Times._fields:
            if not np.array_equal(getattr(found, name), [getattr(row, name) for row in times]):
                return False
    return True


def test_unbroken_they_agree() -> None:
    """Copies of the modules with nothing replaced say what the oracle says."""
    run = engine(KERNEL, "", "")
    assert all(agrees(run, seed) for seed in range(CASES))


@pytest.mark.parametrize(("module", "rule"), [(module, rule) for module in BROKEN for rule in BROKEN[module]])
def test_a_broken_rule_is_noticed(module: str, rule: str) -> None:
    """Some case differs from the oracle's."""
    run = engine(module, *BROKEN[module][rule])
    assert not all(agrees(run, seed) for seed in range(CASES))


@cache
def expected_tasks(seed: int) -> tuple[Any, Any]:
    """A random program of several operations, and what the oracle says of its transfers and tasks."""
    case = random_tasks(random.Random(seed), contention=seed % 4 != 0)
    return joint_program_of(*case), simulate_tasks(*case)


def agrees_on_tasks(old: str, new: str, seed: int) -> bool:
    """Whether the fast engine with a text of the kernel replaced says what the oracle says."""
    played, (transfers, tasks) = expected_tasks(seed)
    fast = load("simcoll.engine.fast", fast_kernel=load(KERNEL, old, new))
    try:
        found = fast.run(played, compiled=False).timeline
    except (IndexError, AssertionError):
        return False
    if found is None or list(zip(found.opened, found.done, strict=True)) != tasks:
        return False
    return all(getattr(found, f).tolist() == [getattr(row, f) for row in transfers] for f in Times._fields)


def test_unbroken_they_agree_on_tasks() -> None:
    """The same of programs of several operations."""
    assert all(agrees_on_tasks("", "", seed) for seed in range(CASES))


@pytest.mark.parametrize("rule", BROKEN_TASKS)
def test_a_broken_rule_of_tasks_is_noticed(rule: str) -> None:
    """Some case differs from the oracle's."""
    assert not all(agrees_on_tasks(*BROKEN_TASKS[rule], seed) for seed in range(CASES))


@cache
def expected_changes(seed: int) -> tuple[Any, Any]:
    """A random program on links that change, and what the oracle says of it."""
    rng = random.Random(seed)
    messages, links, rules, _ = random_case(rng, contention=seed % 4 != 0)
    plain = program_of(messages, links, rules, {})
    faults = random_faults(rng, messages, links, max(times.end or 0 for times in simulate(messages, links, rules)))
    return changed(plain, messages, faults), simulate_faults(messages, links, rules, (), faults)[0]


def agrees_on_changes(old: str, new: str, seed: int) -> bool:
    """Whether the fast engine with a text of the kernel replaced says what the oracle says."""
    played, transfers = expected_changes(seed)
    fast = load("simcoll.engine.fast", fast_kernel=load(KERNEL, old, new))
    try:
        found = fast.run(played, compiled=False).timeline
    except (IndexError, AssertionError, ZeroDivisionError):
        return False
    stuck = any(row.end is None for row in transfers)
    if found is None or stuck:
        return stuck and found is None
    return all(getattr(found, f).tolist() == [getattr(row, f) for row in transfers] for f in Times._fields)


def test_unbroken_they_agree_on_changes() -> None:
    """The same of links that change."""
    assert all(agrees_on_changes("", "", seed) for seed in range(CASES))


@pytest.mark.parametrize("rule", BROKEN_CHANGES)
def test_a_broken_rule_of_changes_is_noticed(rule: str) -> None:
    """Some case differs from the oracle's."""
    assert not all(agrees_on_changes(*BROKEN_CHANGES[rule], seed) for seed in range(CASES))
