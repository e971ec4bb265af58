"""The loop that adds up the longest waits along everything that transfers wait for; see `longest`."""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for, load_like
from simcoll.engine.kernels import waits as plain_waits
from simcoll.engine.kernels.records import Column
from simcoll.named_tuple import NamedTuple

jit = jit_for(__name__)
value = load_like(__name__, plain_waits).value


class LongestRun(NamedTuple):
    """The columns of one loop by row, of which there are so many `loops`: what each row waits for, `before` of a first
    row of a channel is its last, in the loop before; the end that lets it go is that of `credit_row`, `credit_loops`
    earlier. For how long it may keep its channel (`held`), and take to its end (`takes`); `lead` and `gap` are empty
    where they are 0. The other columns are written, `ends` for the last `deep` loops."""

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
    start: Column
    sent: Column
    complete: Column
    ends: Column
    deep: int


@jit
def longest(run: LongestRun) -> Any:
    """The latest time at which anything may be over, counted from when all have come."""
    loops, reads, chain, before, credit_row, credit_loops, held, takes, lead, gap, start, sent, complete, ends, deep = (
        run
    )
    rows, latest = len(reads), 0
    for loop in range(loops):
        now = loop % deep * rows
        for row in range(rows):
            t = 0
            if reads[row] >= 0:
                t = complete[reads[row]]
            if before[row] < row or loop > 0:
                t = max(t, max(sent[before[row]], start[before[row]] + value(gap, row)))
            if len(credit_row) and loop >= credit_loops[row]:
                t = max(t, ends[(loop - credit_loops[row]) % deep * rows + credit_row[row]])
            start[row] = t
            t += value(lead, row)
            sent[row] = t + held[row]
            t += takes[row]
            ends[now + row] = t
            if chain[row] >= 0:
                t = max(t, complete[chain[row]])
            complete[row] = t
            latest = max(latest, max(t, sent[row]))
    return latest
