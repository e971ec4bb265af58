"""The loop that computes an upper bound of a program's time; see `engine.upper_bound`."""

from __future__ import annotations

from typing import Any, NamedTuple

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.compiled import waits as plain_waits

NEVER = 2**62
jit = jit_for(__name__)
value = load_like(__name__, plain_waits).value


class UpperBoundRun(NamedTuple):
    """The columns of one loop by row; a run has `loops` loops. Each row waits for the rows `reads`, `chain` and
    `before` (for the first row of a channel, its last row in the previous loop), and for the end of `credit_row`,
    `credit_loops` loops earlier. `held` is the most time in ps until its channel may start the next row, `takes` the
    most until its end. `unsent` is 1 if the row's sender never comes; empty if all are 0. The other columns are
    results: NEVER if a row waits for such a sender. `ends` holds the last `deep` loops."""

    loops: int
    reads: Any
    chain: Any
    before: Any
    credit_row: Any
    credit_loops: Any
    held: Any
    takes: Any
    unsent: Any
    sent: Any
    complete: Any
    ends: Any
    deep: int


@jit
def upper_bound(run: UpperBoundRun) -> Any:
    """Return an upper bound in ps of when the run ends, apart from rows that wait for ranks that never come, and when
    channels may start again. It counts from the arrival of all other ranks."""
    rows, latest = len(run.reads), 0
    reads, chain, before, held, takes, deep = run.reads, run.chain, run.before, run.held, run.takes, run.deep
    credit_row, credit_loops, sent, complete, ends = run.credit_row, run.credit_loops, run.sent, run.complete, run.ends
    for loop in range(run.loops):
        now = loop % deep * rows
        for row in range(rows):
            t = value(run.unsent, row) * NEVER
            if reads[row] >= 0:
                t = max(t, complete[reads[row]])
            if before[row] < row or loop > 0:
                t = max(t, sent[before[row]])
            if len(credit_row) and loop >= credit_loops[row]:
                t = max(t, ends[(loop - credit_loops[row]) % deep * rows + credit_row[row]])
            t = min(t, NEVER)
            sent[row] = t
            if t < NEVER:
                sent[row] = t + held[row]
                t += takes[row]
                latest = max(latest, max(sent[row], t))
            ends[now + row] = t
            if chain[row] >= 0:
                t = max(t, complete[chain[row]])
            complete[row] = t
            if t < NEVER:
                latest = max(latest, t)
    return latest
