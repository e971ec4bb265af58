"""The loop that computes an upper bound of a program's time; see `engine.upper_bound`."""

from __future__ import annotations

from typing import Any, NamedTuple

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.compiled import waits as plain_waits

NEVER = 2**62
jit = jit_for(__name__)
value = load_like(__name__, plain_waits).value


class UpperBoundRun(NamedTuple):
    """The columns of one loop by row; a run has `loops` loops. Each row waits for the rows `reads` and `chain`, from
    its entry in `first_read` and `first_chain` to that of the next row; for the row `before` (for the first row of a
    channel, its last row in the previous loop), and for the end of `credit_row`, `credit_loops` loops earlier. `held`
    is the most time in ps until its channel may start the next row, `takes` the most until its end. `unsent` is 1 if
    the row's sender never comes; empty if all are 0. The other columns are results: NEVER if a row waits for such a
    sender. `ends` holds the last `deep` loops."""

    loops: int
    first_read: Any
    reads: Any
    first_chain: Any
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
    rows, latest = len(run.before), 0
    reads, chain, before, held, takes, deep = run.reads, run.chain, run.before, run.held, run.takes, run.deep
    credit_row, credit_loops, sent, complete, ends = run.credit_row, run.credit_loops, run.sent, run.complete, run.ends
    for loop in range(run.loops):
        now = loop % deep * rows
        for row in range(rows):
            t = value(run.unsent, row) * NEVER
            for e in range(run.first_read[row], run.first_read[row + 1]):
                t = max(t, complete[reads[e]])
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
            for e in range(run.first_chain[row], run.first_chain[row + 1]):
                t = max(t, complete[chain[e]])
            complete[row] = t
            if t < NEVER:
                latest = max(latest, t)
    return latest
