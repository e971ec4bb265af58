"""The fast engine: the rules of `event` without a Python object per event. Same integers, tested by `==`.

Two ways: `replay` takes transfers in index order as long as that is the order of time, which it checks as it runs;
otherwise a heap of (time, index) does, in the loop `fifo` or `fair`. The loops of `kernels` run as they are for small
programs and compiled by numba, where that is installed, for large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np

from simcoll.config.arrays import Array
from simcoll.config.numba_loader import Loops, choose
from simcoll.engine._kernel_run import KeptTimes, KernelResult, KernelRun
from simcoll.engine.kernels import fair_kernel, fifo_kernel, replay_kernel, waits
from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline, Totals
from simcoll.engine.timing_model import NEVER, too_late


class FastResult(NamedTuple):
    """The result of a run of the fast engine."""

    timeline: Timeline | None  # None if it could not finish
    shortcut: str  # "replay" or "none"
    compiled: bool


class RunEnd(NamedTuple):
    """The end of a run, in ps, and the shortcut that it took."""

    at: int
    shortcut: str


class CallEnds(NamedTuple):
    """The times at which each rank has sent and received all that is its own, (ranks,), or each task is done, (tasks,);
    at which the first and the last message comes to each link, and it is free again, (links,), NEVER, −NEVER and −NEVER
    where none comes; and at which all is over."""

    done: Array
    first: Array
    last: Array
    free: Array
    over: int


def run(
    program: Program,
    shortcuts: bool = True,
    compiled: bool | None = None,
    hops: bool = True,
    busy: Array | None = None,
) -> FastResult:
    """Replay a program if `shortcuts` are allowed and its order permits, else run it event by event.

    `compiled` forces or forbids numba; by default it is used where it is installed and pays. Without `hops` the
    timeline has no intervals of links, which take the most room. Links that serve others at first are `busy` until a
    time in ps, (links,), where they serve in turn and do not change.
    """
    played = _play(program, "hops" if hops else "times", shortcuts, compiled, busy)
    timeline = played.outcome and Timeline(*(np.asarray(column, np.int64) for column in played.outcome.columns))
    return FastResult(timeline, played.shortcut, played.run.loops.compiled)


def totals(program: Program, shortcuts: bool = True, compiled: bool | None = None) -> Totals | None:
    """Run a large program for its sums alone: the times of each transfer would take most of the memory. None if it
    could not finish."""
    _, outcome, shortcut = _play(program, "nothing", shortcuts, compiled)
    if outcome and program.changes:
        program = program.as_it_went(np.asarray(outcome.columns[-1]))
    return outcome and program.totals(outcome.latest, shortcut)


def end(program: Program, shortcuts: bool = True, until: int = NEVER) -> RunEnd | None:
    """The end of a program and nothing else of it, None if it could not finish; of one that takes longer than `until`
    (ps) any later time."""
    _, outcome, shortcut = _play(program, "nothing", shortcuts, None, until=until)
    return outcome and RunEnd(int(outcome.latest), shortcut)


def ends(program: Program, busy: Array, compiled: bool | None = None) -> CallEnds | None:
    """The ends of a program by ranks, or tasks where it has these, and by links, which serve in turn and are `busy` at
    first until a time in ps, (links,). None if it could not finish."""
    run_, outcome, _ = _play(program, "ends", True, compiled, busy)
    if outcome is None:
        return None
    if program.tasks:
        done = run_.done
    else:
        done = run_.give(program.arrivals.copy())
        ways = run_.gives(program.way, program.routes.src, program.routes.dst)
        run_.loops.run.latest_of_ranks(*ways, outcome.columns[1], outcome.columns[4], done)
        done = done[: program.schedule.n]
    first, last, free = (np.asarray(column, np.int64) for column in (*run_.heads, run_.free))
    free = np.where(last > -NEVER, free, -NEVER)
    return CallEnds(np.asarray(done, np.int64), first, last, free, outcome.latest)


class _Played(NamedTuple):
    """The outcome of a run, None if not all came to an end, and the shortcut taken."""

    run: KernelRun
    outcome: KernelResult | None
    shortcut: str


def _play(
    program: Program,
    keep: KeptTimes,
    shortcuts: bool,
    compiled: bool | None,
    busy: Array | None = None,
    until: int = NEVER,
) -> _Played:
    """Run a program in the first way in which all comes to an end, or that needs no shortcut and goes on beyond
    `until`. Raises InputError beyond the clock."""
    fair = program.params.sharing == "fair"
    ways: list[tuple[str, ModuleType, Callable[[KernelRun], KernelResult]]] = []
    run_: KernelRun | None = None
    if (
        shortcuts
        and not program.tasks
        and not program.changes
        and program.params.blocking == "no"
        and program.bandwidths[program.taken].all()
    ):
        ways.append(("replay", replay_kernel, KernelRun.replay))
    ways.append(("none", fair_kernel, KernelRun.fair) if fair else ("none", fifo_kernel, KernelRun.fifo))
    for shortcut, kernel, way in ways:
        chosen = choose(len(program), compiled, kernel)
        if run_ is None or run_.loops.compiled != chosen:
            run_ = KernelRun(program, Loops(waits, chosen), keep, busy, until)
        outcome = way(run_)
        if outcome.ended == len(program) or (shortcut == "none" and until < outcome.latest):
            if outcome.latest >= NEVER:
                raise too_late("the run takes")
            return _Played(run_, outcome, shortcut)
    assert run_
    return _Played(run_, None, "none")
