"""The fast engine: it follows the rules of `event`, without a Python object for each event. Tests compare both by `==`.

A heap of (time, key) drives one of two loops, `fifo` or `fair`, which are in `kernels`. They run as plain Python for
small programs; for large programs numba compiles them, if it is installed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simcoll.config.numba_loader import Loops, choose
from simcoll.config.numpy_helpers import Array
from simcoll.engine._compiled_run import CompiledResult, CompiledRun, KeptTimes
from simcoll.engine.compiled import fair_loop, fifo_loop, waits
from simcoll.engine.looped import LoopedProgram
from simcoll.engine.program import Program
from simcoll.engine.timeline import CallEnds, Timeline, Totals
from simcoll.engine.timing_model import NEVER, too_late


def run(program: Program, compiled: bool | None = None, hops: bool = True) -> Timeline | None:
    """Return the timeline of a program; None if it cannot finish. `compiled` forces or forbids numba; by default numba
    is used if it is installed and saves time. Without `hops` the timeline lacks the intervals of links, which take the
    most memory."""
    _, result = _run(program, "hops" if hops else "times", compiled)
    return result and Timeline(*(np.asarray(column, np.int64) for column in result.columns))


def totals(program: Program | LoopedProgram, compiled: bool | None = None) -> Totals | None:
    """Return only the totals of a run, as times of transfers take most memory; None if it cannot finish."""
    _, result = _run(program, "nothing", compiled)
    if result is None:
        return None
    if isinstance(program, LoopedProgram):
        sums = program.one.totals(result.latest, "none")
        return replace(sums, messages=sums.messages * program.loops)
    if program.changes:
        program = program.as_it_went(np.asarray(result.columns[-1]))
    return program.totals(result.latest, "none")


def end_ps(program: Program, until: int = NEVER) -> int | None:
    """Return when a program ends, in ps; None if it cannot end. If it ends after `until`, the result may be any time
    after `until`."""
    _, result = _run(program, "nothing", None, until=until)
    return result and result.latest


def ends(program: Program | LoopedProgram, busy: Array, compiled: bool | None = None) -> CallEnds | None:
    """Return when a `fifo` program ends, by rank and by link; None if it cannot finish. Each link is occupied by others
    until `busy` (ps), (links,)."""
    run_, result = _run(program, "ends", compiled, busy)
    if result is None:
        return None
    first, last, free = (np.asarray(column, np.int64) for column in (*run_.heads, run_.free))
    free = np.where(last > -NEVER, free, -NEVER)
    return CallEnds(np.array(run_.ends[: run_.program.schedule.n], np.int64), first, last, free, result.latest)


def _run(
    program: Program | LoopedProgram,
    keep: KeptTimes,
    compiled: bool | None,
    busy: Array | None = None,
    until: int = NEVER,
) -> tuple[CompiledRun, CompiledResult | None]:
    """Run a program; the result is None if not all transfers ended. Raises InputError beyond the clock's range."""
    one = program.one if isinstance(program, LoopedProgram) else program
    fair = one.params.sharing == "fair"
    chosen = choose(len(program), compiled, fair_loop if fair else fifo_loop)
    run_ = CompiledRun(program, Loops(waits, chosen), keep, busy, until)
    result = run_.fair() if fair else run_.fifo()
    if result.ended < len(program) and result.latest <= until:
        return run_, None
    if result.latest >= NEVER:
        raise too_late("the run takes")
    return run_, result
