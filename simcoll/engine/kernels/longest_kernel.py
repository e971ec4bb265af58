"""The loop that adds up the longest waits along everything that transfers wait for; see `longest`."""

from __future__ import annotations

from typing import Any, NamedTuple

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.records import Column

NEVER = 2**62
jit = jit_for(__name__)
value = load_like(__name__, plain_waits).value


class LongestRun(NamedTuple):
    """The columns of one loop by row; there are `loops` of them. Each row waits for `reads`, `chain`, `before` (for the
    first row of a channel its last, in the loop before) and the end of `credit_row`, `credit_loops` earlier. `held` is
    how long it may keep its channel, `takes` how long to its end, in ps. `lead` and `gap` are empty where they are 0;
    so is `unsent`, 1 where the sender does not come. The other columns are written, NEVER where a row waits for such a
    sender; `ends` for the last `deep` loops."""

    loops: int
    reads: Column
    chain: Column
    before: Column
    credit_row: Column
    credit_loops: Column
    held: Column
    takes: Column
    lead: Column
    gap: Column
    unsent: Column
    start: Column
    sent: Column
    complete: Column
    ends: Column
    deep: int


@jit
def longest(run: LongestRun) -> Any:
    """Return the latest time at which anything may be over, but for what waits for ranks that do not come. It counts
    from when all others have come, and includes the pause of a channel before its next row."""
    rows, latest = len(run.reads), 0
    reads, chain, before, held, takes, deep = run.reads, run.chain, run.before, run.held, run.takes, run.deep
    credit_row, credit_loops, lead, gap = run.credit_row, run.credit_loops, run.lead, run.gap
    start, sent, complete, ends = run.start, run.sent, run.complete, run.ends
    for loop in range(run.loops):
        now = loop % deep * rows
        for row in range(rows):
            t = value(run.unsent, row) * NEVER
            if reads[row] >= 0:
                t = max(t, complete[reads[row]])
            if before[row] < row or loop > 0:
                t = max(t, max(sent[before[row]], start[before[row]] + value(gap, row)))
            if len(credit_row) and loop >= credit_loops[row]:
                t = max(t, ends[(loop - credit_loops[row]) % deep * rows + credit_row[row]])
            t = min(t, NEVER)
            start[row] = t
            if t < NEVER:
                t += value(lead, row)
                sent[row] = t + held[row]
                latest = max(latest, max(sent[row], start[row] + value(gap, row)))
                t += takes[row]
                latest = max(latest, t)
            else:
                sent[row] = t
            ends[now + row] = t
            if chain[row] >= 0:
                t = max(t, complete[chain[row]])
            complete[row] = t
            if t < NEVER:
                latest = max(latest, t)
    return latest
