"""Rules broken on purpose: the comparison with the oracle notices each."""

from __future__ import annotations

import ast
import importlib
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from oracle import Times, random_case, random_faults, random_tasks, simulate, simulate_faults, simulate_tasks
from oracle_programs import changed, joint_program_of, program_of

from simcoll.engine.program import Program
from simcoll.engine.timing_model import Dependencies

# Random cases in which a broken rule must show: the last two have chunks that come to a dead link at the worst moment.
CASES = (*range(40), 106, 153)

HEAP, WAITS, FIFO, FAIR = (f"simcoll.engine.compiled.{name}" for name in ("heap", "waits", "fifo_loop", "fair_loop"))
BINDING, WAITING = "simcoll.engine.binding", "simcoll.engine._dependencies"
TABLES = "simcoll.engine.compiled.link_tables"


class Mutation(NamedTuple):
    """Within a function, an expression or statements, each time they occur, and what takes their place."""

    module: str
    function: str
    before: str
    after: str


UNBROKEN = Mutation("", "", "", "")
TOUCH = "n_touched = touch(link, now, fabric, n_touched)"
BEGIN = "free_link[server] = r + s"
RECEIVE = "waits.receive(row, loop, run.layout)"
QUEUE = f"max(t, free_side[side[row]]) + {RECEIVE}"
SERVE = f"if there and {RECEIVE}:\n    state[i], there = SIDE, False\n    heaps.push(heap, t, key)"
AT_ONCE = f"if there and {RECEIVE}:\n    t = free_side[side[row]] = {QUEUE}"
COMPLETE = "t = max(t, progress.starts.when[before])"
READERS = "range(successors.first_reader[row], successors.first_reader[row + 1])"
CHAIN = "schedule.reduce[writer] | (before >= begun[writer])"

# By rule: what breaks it.
BROKEN: dict[str, Mutation] = {
    "ties go to the higher index": Mutation(HEAP, "sooner", "items[a] < items[b]", "items[a] > items[b]"),
    "a slow link upstream is forgotten": Mutation(FIFO, "travel", "max(r + s, tail)", "r + s"),
    "a link is held until the tail has passed": Mutation(FIFO, "travel", BEGIN, "free_link[server] = max(r + s, tail)"),
    "a channel's cap holds the link": Mutation(
        FIFO, "travel", BEGIN, "free_link[server] = r + max(s, value(layout.cap, kind))"
    ),
    "a channel's cap is forgotten": Mutation(FIFO, "travel", "r + max(s, value(layout.cap, kind))", "r + s"),
    "g is forgotten": Mutation(WAITS, "send", "max(t, ready)", "t"),
    "g counts from the head's coming": Mutation(
        FIFO, "travel", "when[i] + value(gap, layout.way[row])", "t + value(gap, layout.way[row])"
    ),
    "o_send counts twice": Mutation(
        WAITS, "start", "t + value(starts.lead, starts.way[row])", "t + 2 * value(starts.lead, starts.way[row])"
    ),
    "a flow is brought forward at an equal rate": Mutation(FAIR, "solve", "solved[c] != rate[c]", "True"),
    "the end of a flow is rounded down": Mutation(FAIR, "replan", "math.ceil(wait)", "math.floor(wait)"),
    "a whole flow at full rate is rounded twice": Mutation(
        FAIR, "replan", "whole[c] and rate[c] == fabric.most[c]", "False"
    ),
    "a cap does not limit its channel": Mutation(
        FAIR, "aim", "run.caps >= 0 and capacity[run.caps + c] < math.inf", "False"
    ),
    "rates do not rise when a flow has ended": Mutation(FAIR, "leave", TOUCH, "pass"),
    "receive sides do not queue": Mutation(FIFO, "go_on", QUEUE, f"t + {RECEIVE}"),
    "receive sides of fair links do not queue": Mutation(FAIR, "fair", "max(t, free_side[side[i]])", "t"),
    "receive sides serve in order of sending": Mutation(FIFO, "go_on", SERVE, AT_ONCE),
    "a version does not wait for the one before": Mutation(
        WAITS, "completes", "progress.state[before] != COMPLETE", "False"
    ),
    "a version that waited is complete at its end": Mutation(WAITS, "completes", COMPLETE, "pass"),
    "the data of a late rank are there at the start": Mutation(WAITS, "completes", "value(progress.came, row)", "0"),
    "one transfer reads a version": Mutation(WAITS, "settle", READERS, READERS.replace("+ 1]", "+ 1] - 1")),
    "a barrier opens at the end that comes last": Mutation(WAITS, "pass_barriers", "max(passed[1], t)", "t"),
    "one credit too many": Mutation(
        BINDING, "assemble", "ahead(connection, params.slots)", "ahead(connection, params.slots + 1)"
    ),
    "a reduction does not wait for what it adds to": Mutation(WAITING, "versions", CHAIN, "before >= begun[writer]"),
    "writes of one step do not wait for each other": Mutation(WAITING, "versions", CHAIN, "schedule.reduce[writer]"),
    "reads see what their own step wrote": Mutation(
        WAITING, "versions", "np.searchsorted(step, step)", "np.arange(count)"
    ),
    "links are merged that have two before them": Mutation(
        TABLES, "follows", "(before >= 0) & ~several", "(before >= 0)"
    ),
    "the widest link limits a flow": Mutation(
        FAIR, "aim", "capacity[link] < capacity[slowest]", "capacity[link] > capacity[slowest]"
    ),
}

BROKEN_TASKS = {  # in programs of several operations
    "a task is done with its transfers alone": Mutation(WAITS, "open_task", "t + tasks.duration[k]", "t"),
    "a task is done at what happens last in the queue": Mutation(WAITS, "count_down", "max(done[k], t)", "t"),
    "a task opens with the last that it waits for": Mutation(WAITS, "follow_up", "max(opened[b], done[k])", "done[k]"),
    "the data of a rank are there before it": Mutation(WAITS, "completes", "tasks.waits[k] > 0", "False"),
    "the data of a rank are there at the transfer's end": Mutation(WAITS, "completes", "max(t, tasks.opened[k])", "t"),
    "a version that waited for its rank is complete as it opens": Mutation(
        WAITS, "open_task", "max(t, starts.when[i])", "t"
    ),
    "a task does not wait for its sends": Mutation(
        WAITS, "send", "count_down(tasks.sender[row], t, tasks)", "count_down(tasks.sender[row], 0, tasks)"
    ),
    "a task does not wait for its receives": Mutation(
        WAITS, "settle", "count_down(receiver[row], t, progress.tasks)", "count_down(receiver[row], 0, progress.tasks)"
    ),
    "two views of a link serve at once": Mutation(FIFO, "travel", "link % run.servers", "min(link, run.servers - 1)"),
    "heads that come by two views come in order": Mutation(
        TABLES, "follows", "np.resize(views, self.links) == 1", "True"
    ),
    "an operation's gap is another's": Mutation(FIFO, "travel", "value(gap, layout.way[row])", "value(gap, 0)"),
    "an operation's gap is another's on fair links": Mutation(
        FAIR, "gone", "value(run.layout.gap, w)", "value(run.layout.gap, 0)"
    ),
}

BROKEN_CHANGES = {  # on links that change
    "the rest goes on at the old bandwidth": Mutation(
        FIFO,
        "serve",
        "wait = max(1, math.ceil(left))",
        "wait = run.layout.service[kind * run.layout.rates + changes.rate[e]]",
    ),
    "a dead link serves": Mutation(FIFO, "serve", "speed == 0.0", "False"),
    "chunks of a dead link are not sent again": Mutation(
        FIFO, "lost_at", "again = max(changes.at[e], came + 1)", "return -1"
    ),
    "a chunk that comes to a dead link is sent again too late": Mutation(FIFO, "lost_at", "came + 1", "came + 2"),
    "a link is free when it lost its chunk": Mutation(FIFO, "serve", "free if begun < 0 else at[e]", "free"),
    "a chunk that is sent again is sent twice": Mutation(FIFO, "travel", "changes.once[i] == 0", "True"),
    "a link that is back serves from when it went": Mutation(
        FIFO, "serve", "max(at[e], came, free)", "max(came, free)"
    ),
    "flows do not learn what limits them": Mutation(
        FAIR, "change", "n_touched = touch(link, now, fabric, n_touched)", "pass"
    ),
    "a flow that sets out later takes the old way": Mutation(
        FAIR, "set_out", "w = changes.turns.way_after[changes.turns.passed[0] * changes.turns.ways + w]", "pass"
    ),
    "flows go on where they were": Mutation(FAIR, "send_again", "w != turns.taken[i]", "False"),
    "flows set out on links as they were": Mutation(FAIR, "aim", "rate_of = changes.rate_of", "pass"),
}


class Replace(ast.NodeTransformer):
    """Puts one piece of code in the place of another wherever that stands, however it is laid out."""

    def __init__(self, mutation: Mutation) -> None:
        self.before = ast.parse(mutation.before).body
        self.text = list(map(ast.unparse, self.before))
        self.after = ast.parse(mutation.after).body
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        """A node with its parts replaced, or what takes its place."""
        if isinstance(self.before[0], ast.Expr) and isinstance(node, ast.expr) and ast.unparse(node) == self.text[0]:
            self.count += 1
            assert isinstance(self.after[0], ast.Expr)
            return self.after[0].value
        for name in ("body", "orelse"):
            lines, size = getattr(node, name, None), len(self.text)
            for at in range(len(lines) - size + 1) if isinstance(lines, list) else ():
                if list(map(ast.unparse, lines[at : at + size])) == self.text:
                    lines[at : at + size] = self.after
                    self.count += 1
        return self.generic_visit(node)


def load(name: str, mutation: Mutation = UNBROKEN, **others: ModuleType | Any) -> ModuleType:
    """A copy of a module, with a mutation if that is of this module, and with other things under some of its names."""
    copy = ModuleType(name)
    copy.__file__ = importlib.import_module(name).__file__
    exec(compiled(name, mutation if mutation.module == name else UNBROKEN), vars(copy))
    vars(copy).update(others)
    return copy


@cache
def compiled(name: str, mutation: Mutation) -> CodeType:
    """The code of a module with a mutation."""
    tree = ast.parse(Path(str(importlib.import_module(name).__file__)).read_text(encoding="utf-8"))
    if mutation is not UNBROKEN:
        (function,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == mutation.function]
        replace = Replace(mutation)
        replace.visit(function)
        assert replace.count, f"{name}.{mutation.function} has changed: {mutation.before!r} is not in it"
    return compile(ast.fix_missing_locations(tree), name, "exec")


def load_fast(mutation: Mutation) -> ModuleType:
    """The fast engine on copies of its kernels, one of them with a mutation."""
    heaps = load(HEAP, mutation)
    waits = load(WAITS, mutation, heaps=heaps)
    parts = {"heaps": heaps, "waits": waits, "value": waits.value}
    kernel_run = load(
        "simcoll.engine._compiled_run",
        fifo_loop=load(FIFO, mutation, **parts),
        fair_loop=load(FAIR, mutation, **parts),
        LinkTables=load(TABLES, mutation).LinkTables,
    )
    names = ("CompiledResult", "CompiledRun")
    return load("simcoll.engine.fast", waits=waits, **{name: getattr(kernel_run, name) for name in names})


def programs(mutation: Mutation) -> Callable[..., Program]:
    """Make programs of cases by the binding with a mutation."""
    waiting = load(WAITING, mutation)
    names = ("ahead", "inherited", "numbered")
    binding = load(BINDING, mutation, **{name: getattr(waiting, name) for name in names})
    return lambda *case: program_of(*case, lambda plan: Dependencies(*waiting.versions(plan)[:3]), binding.assemble)


Expected = tuple[Any, list[Times], list[Any]]  # a program, or the case of one; times of transfers and of tasks


def of_one(seed: int) -> Expected:
    """A random case of one operation, and what the oracle says of it."""
    case = random_case(random.Random(seed), contention=seed % 4 != 0)
    return case, simulate(*case), []


def of_several(seed: int) -> Expected:
    """A random program of several operations, and what the oracle says of its transfers and tasks."""
    case = random_tasks(random.Random(seed), contention=seed % 4 != 0, views=True)
    return joint_program_of(*case), *simulate_tasks(*case)


def of_changes(seed: int) -> Expected:
    """A random program on links that change, and what the oracle says of it."""
    rng = random.Random(seed)
    messages, links, rules, _ = random_case(rng, contention=seed % 4 != 0)
    plain = program_of(messages, links, rules, {})
    faults = random_faults(rng, messages, links, max(times.end or 0 for times in simulate(messages, links, rules)))
    return changed(plain, messages, faults), simulate_faults(messages, links, rules, (), faults)[0], []


KINDS: dict[Callable[[int], Expected], dict[str, Mutation]] = {
    of_one: BROKEN, of_several: BROKEN_TASKS, of_changes: BROKEN_CHANGES,
}  # fmt: skip
expected = cache(lambda kind, seed: kind(seed))


def agree(kind: Callable[[int], Expected], mutation: Mutation) -> bool:
    """Whether the fast engine, and the binding, with a mutation say of all cases what the oracle says."""
    fast, bound = load_fast(mutation), programs(mutation)
    for seed in CASES:
        case, transfers, tasks = expected(kind, seed)
        try:
            program = bound(*case) if kind is of_one else replace(case, memo={})  # which other mutations filled
            found = fast.run(program, compiled=False)
        except (IndexError, AssertionError, ZeroDivisionError):
            return False
        if (found is None) != any(row.end is None for row in transfers):
            return False
        if found is None:
            continue
        if any(not np.array_equal(getattr(found, f), [getattr(row, f) for row in transfers]) for f in Times._fields):
            return False
        if tasks and list(zip(found.opened, found.done, strict=True)) != tasks:
            return False
    return True


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_unbroken_they_agree(kind: Callable[[int], Expected]) -> None:
    """Copies of the modules with nothing replaced say what the oracle says."""
    assert agree(kind, UNBROKEN)


@pytest.mark.parametrize(("kind", "rule"), [(kind, rule) for kind, rules in KINDS.items() for rule in rules])
def test_a_broken_rule_is_noticed(kind: Callable[[int], Expected], rule: str) -> None:
    """Some case differs from the oracle's."""
    assert not agree(kind, KINDS[kind][rule])
