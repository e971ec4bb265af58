"""Which ranks are recorded, and whether ranks that are recorded make the calls that the others wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from simcoll.dry_run.recorder import Call, RankRecord
from simcoll.dry_run.script import Job, record
from simcoll.errors import InputError

FEW: Final = 4  # ranks of a job that are all recorded
POINT_TO_POINT: Final = ("send", "recv")
_ANY_SIZE: Final = ("all_to_all", "gather", "scatter", "barrier")  # ranks may hand in different sizes


def record_differing(job: Job, everyone: bool) -> dict[int, RankRecord]:
    """Record the ranks that differ: the first and the last of each group, and those that send each other messages, as
    stages of a pipeline do. Of a job that is too large to compute for real, only rank 0 and its pipeline, or else the
    last rank. Of a small job, or if `everyone` is asked for, record all. Raises InputError for a script that fails, and
    for ranks of a group that make different calls."""
    ranks = set(range(job.world)) if everyone or job.world <= FEW else {0, job.world - 1}
    fake, ends = False, {0, job.world - 1}
    while True:
        found, failed = record(job, sorted(ranks), fake)
        if not fake and any(each.too_large for each in found.values()):
            fake = True
            continue
        sent = {rank: each for rank, each in found.items() if any(_messages(each))}
        alone = fake and ranks == ends  # follow rank 0's pipeline only
        more = {peer for rank, each in sent.items() if rank == 0 or not alone for peer in _partners(job, rank, each)}
        if not sent and len(ranks) == 2 < job.world and not fake:
            more = {call.ranks[-1] for part in found[0].parts if (call := part.call)}
        if more <= ranks:
            break
        ranks = {0} | more if alone else ranks | more
    if failed:
        raise failed
    check(found)
    return found


def _messages(each: RankRecord) -> Iterable[Call]:
    return (part.call for part in each.parts if part.call and part.call.collective in POINT_TO_POINT)


def _partners(job: Job, rank: int, each: RankRecord) -> set[int]:
    """Return the ranks that exchange messages with a rank, and, along the same distances, with each other."""
    found = set[int]()
    for call in _messages(each):
        if len(call.ranks) < job.world:
            found |= {*call.ranks}
        elif call.peer is not None:
            distance = abs(call.peer - rank) or 1
            found |= {*range(rank % distance, job.world, distance)} if job.world > 2 * distance else {call.peer}
    return found


def check(found: Mapping[int, RankRecord]) -> None:
    """Raise InputError if ranks of a group make different calls in it: on a cluster, they would wait for ever."""
    of_group = defaultdict[tuple[str, tuple[int, ...]], dict[int, list[Call]]](dict)
    for rank, each in found.items():
        for part in each.parts:
            if part.call and part.call.collective not in POINT_TO_POINT:
                of_group[part.call.group, part.call.ranks].setdefault(rank, []).append(part.call)
    for (_, ranks), calls in of_group.items():
        present = [rank for rank in ranks if rank in found]
        for other in present[1:]:
            _compare(present[0], calls.get(present[0], []), other, calls.get(other, []))


def _compare(one: int, calls: list[Call], other: int, others: list[Call]) -> None:
    for number in range(max(len(calls), len(others))):
        here, there = (each[number] if number < len(each) else None for each in (calls, others))
        if here and there and _what(here) == _what(there):
            continue
        said = [f"rank {rank} {_said(call)}" for rank, call in ((one, here), (other, there))]
        place = (there or here).place if there or here else ""  # type: ignore[union-attr]
        cure = "let all ranks of a group make the same calls"
        raise InputError(f"{place}: call {number} of a group: {' and '.join(said)}: the job would hang", cure)


def _what(call: Call) -> tuple[object, ...]:
    """Return what must be equal on all ranks. Pickled objects (of bytes) may have any length."""
    sized = call.collective not in _ANY_SIZE and call.dtype != "uint8"
    return call.collective, call.op, call.dtype if call.collective != "barrier" else "", call.size if sized else 0


def _said(call: Call | None) -> str:
    if call is None:
        return "makes no further one"
    return f"calls {call.collective} of {call.count} {call.dtype} ({call.place})"
