"""Loops that find which transfers of a schedule wait for which, in the subset of Python that numba compiles.

Each is one pass over all transfers; see `_dependencies`. Indices of transfers are int32; −1 stands for none.
"""

from __future__ import annotations

from typing import Any

from simcoll.config.numba_loader import jit_for

jit = jit_for(__name__)


@jit
def versions(step: Any, read: Any, write: Any, reduce: Any, newest: Any, reads: Any, chain: Any) -> None:
    """Find for each transfer the version it reads and the one that its own waits for; see `timing_model.dependencies`.

    `read` and `write` number the slots that a transfer reads and writes, `newest` (slots,) is filled with −1.
    """
    first = 0
    while first < len(step):
        behind = first
        while behind < len(step) and step[behind] == step[first]:  # all reads of a step come before its writes
            reads[behind] = newest[read[behind]]
            behind += 1
        for i in range(first, behind):
            before = newest[write[i]]
            chain[i] = before if reduce[i] or before >= first else -1
            newest[write[i]] = i
        first = behind


@jit
def inherit(reads: Any, kind: Any) -> None:
    """Give each transfer that reads a copy the kind of the value from the start that was copied."""
    for i in range(len(reads)):
        if reads[i] >= 0:
            kind[i] = kind[reads[i]]


@jit
def number(keys: Any, table: Any) -> Any:
    """Replace keys by numbers in order of first use; return how many there are. `table` (keys,) is filled with −1."""
    used = 0
    for i in range(len(keys)):
        if table[keys[i]] < 0:
            table[keys[i]] = used
            used += 1
        keys[i] = table[keys[i]]
    return used


@jit
def predecessors(group: Any, last: Any, before: Any) -> None:
    """Find for each transfer the one before it in its group. `last` (groups,) is filled with −1."""
    for i in range(len(group)):
        before[i] = last[group[i]]
        last[group[i]] = i


@jit
def credits(group: Any, slots: Any, last: Any, oldest: Any, flying: Any, behind: Any, credit: Any) -> None:
    """Find for each transfer the one `slots` places before it in its group, or −1.

    By group: `last` (filled with −1), the `oldest` in flight and how many are `flying` (0); `behind` (transfers,) is
    room for who comes after whom.
    """
    for i in range(len(group)):
        g = group[i]
        if last[g] >= 0:
            behind[last[g]] = i
        else:
            oldest[g] = i
        last[g] = i
        if flying[g] < slots:
            flying[g] += 1
            credit[i] = -1
        else:
            credit[i] = oldest[g]
            oldest[g] = behind[oldest[g]]
