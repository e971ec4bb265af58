"""Turn the recorded calls of a job into a workload: a step that runs, is explained and varied like any other.

Calls keep their groups, sizes and order. The host's time between two calls becomes computation. It waits for the former
call if that call's measured end came before the next one, or if it receives a message; else the call runs beside it.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from simcoll.config import yaml_tree
from simcoll.config.grouping import grouped
from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError
from simcoll.formats.recordings.events import Event, Group, Recording, What
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.schedule.names import DTYPES

MOST_OPERATIONS: Final = 20_000
_TORCH: Final = {row.torch: row.name for row in DTYPES}


class _Part(NamedTuple):
    """What a rank does for one call: it computes for `gap` ns, after its former call if `waits`, and makes the call."""

    key: Hashable  # equal for all ranks of the call
    event: Event
    ranks: tuple[int, ...]
    gap: int
    waits: bool


def period(keys: Sequence[Hashable]) -> int:
    """Return how many calls a step has: the least number after which the later half of the calls repeats; all calls if
    they do not repeat.

    >>> period("xabcabcab"), period("abcbbb")
    (3, 6)
    """
    n = len(keys)
    repeats = (p for p in range(1, n // 2 + 1) if all(keys[i] == keys[i - p] for i in range(n - n // 2, n)))
    return next(repeats, n)


def plan(recordings: Sequence[Recording], system: str, gpus: int, notes: ImportLog) -> str:
    """Return a scenario (YAML) with the last whole step of a job, on as many nodes of `system`, of `gpus` ranks each,
    as hold it. Raises InputError if the recordings hold no call that simcoll has."""
    members = _members(recordings)
    steps = {rec.rank: _step(rec, members) for rec in recordings if rec.rank is not None}
    steps = {rank: parts for rank, parts in steps.items() if parts}
    if not steps:
        problem = f"{recordings[0].source}: no finished collective and no message that simcoll knows"
        raise InputError(problem, "give dumps of a job that ran a step")
    n = max(max(part.ranks) for parts in steps.values() for part in parts) + 1
    if n > len(steps):
        notes.assume(f"{n - len(steps)} of {n} ranks have no dump: they call what others wait for, and compute alike")
    operations = _operations(steps, notes)
    dtypes = Counter[str]()
    for parts in steps.values():
        for part in parts:
            for dtype in part.event.what.dtypes[:1]:
                dtypes[_TORCH.get(dtype, "")] += part.event.what.nbytes(len(part.ranks))
    dtype = max((name for name in dtypes if name), key=lambda name: dtypes[name], default="float32")
    longest = max(len(parts) for parts in steps.values())
    notes.read.append(f"{len(steps)} ranks, the last step of {longest} calls a rank, {len(operations)} operations")
    nodes = -(-n // gpus)
    document = {
        "name": "recorded-step",
        "topology": {"system": system, **({"nodes": nodes} if nodes > 1 else {})},
        **({"ranks": n} if n != nodes * gpus else {}),
        "dtype": dtype,
        "workload": {"operations": operations},
    }
    remarks = [f"# {line}" for line in ["Made by simcoll import of recorded calls.", *str(notes).splitlines()]]
    return "\n".join([*remarks, yaml_tree.dump(document, inline=True)])


def _members(recordings: Sequence[Recording]) -> dict[tuple[object, ...], tuple[int, ...]]:
    """Return the ranks of each group: those that files name, else all that recorded calls of it."""
    seen = defaultdict[tuple[object, ...], set[int]](set)
    for recording in recordings:
        for group in {event.group for event in recording.events}:
            seen[group.key] |= {*group.ranks} or {recording.rank or 0}
    return {key: tuple(sorted(ranks)) for key, ranks in seen.items()}


def _step(recording: Recording, members: dict[tuple[object, ...], tuple[int, ...]]) -> list[_Part]:
    """Return the last step of a rank. It ends with a call of the rank's largest group, so that steps of ranks match."""
    events = [event for event in recording.events if event.done and _is_known(event.what)]
    if not events:
        return []
    length = period([(event.group.key, event.what) for event in events])
    sizes = {event.group: len(members[event.group.key]) for event in events[-length:]}
    largest = max(sizes, key=lambda group: (sizes[group], group.name))
    end = max(i for i, event in enumerate(events) if event.group is largest) + 1
    begin = max(0, end - length)
    parts, counted = [], Counter[Hashable]()
    for before, event in zip([None, *events][begin:end], events[begin:end], strict=True):
        key = _key(event, members[event.group.key], counted)
        ended = before and before.took_us and _ended(before) <= event.created
        waits = bool(ended or (before and before.what.collective == "recv"))
        since = (_ended(before) if ended else before.created) if before else event.created
        parts.append(_Part(key, event, _ranks(event, members[event.group.key]), max(0, event.created - since), waits))
    return [part for part in parts if len(part.ranks) > 1]


def _is_known(what: What) -> bool:
    return what.collective in COLLECTIVES or what.peers is not None


def _ended(event: Event) -> int:
    """Return when a call with a measured duration ended, on the clock of its rank."""
    return (event.started or event.created) + round(1e3 * event.took_us)


def _ranks(event: Event, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks of a call: of a message the sender, then the receiver."""
    if event.what.peers is None:
        return members
    known = max(event.what.peers) < len(members)
    return tuple(members[peer] if known else peer for peer in event.what.peers)


def _key(event: Event, members: tuple[int, ...], counted: Counter[Hashable]) -> Hashable:
    """Return what tells a call of the step from others, alike on all its ranks: which call of the group it is."""
    pair = _ranks(event, members) if event.what.peers else None
    counted[event.group.key, pair] += 1
    return event.group.key, pair, counted[event.group.key, pair]


def _operations(steps: dict[int, list[_Part]], notes: ImportLog) -> list[dict[str, Any]]:
    """Return the operations of all ranks in an order that keeps that of each rank. Equal calls that groups make at the
    same time are one operation."""
    places = dict.fromkeys(steps, 0)
    found: list[dict[str, Any]] = []
    last: dict[int, str] = {}  # rank -> the operation that is its last call
    while heads := {rank: parts[places[rank]] for rank, parts in steps.items() if places[rank] < len(parts)}:
        waiting = defaultdict[Hashable, list[int]](list)
        for rank, part in heads.items():
            waiting[part.key].append(rank)
        ready = [
            ranks
            for ranks in waiting.values()
            if all(other in ranks or places.get(other) is None for other in heads[ranks[0]].ranks)
        ]
        if not ready:  # ranks make calls of several groups in several orders: the earliest goes first
            notes.warn("ranks make their calls in different orders; the plan takes the earliest first")
            ready = [min(waiting.values(), key=lambda ranks: min(heads[rank].event.created for rank in ranks))]
        first = heads[ready[0][0]]
        alike, taken = list[list[int]](), set[int]()
        for ranks in ready:
            part = heads[ranks[0]]
            if _alike(part, first) and not taken & {*part.ranks}:
                alike.append(ranks)
                taken |= {*part.ranks}
        together = [rank for ranks in alike for rank in ranks]
        groups = [list(heads[ranks[0]].ranks) for ranks in alike]
        found += _call(groups, {rank: heads[rank] for rank in together}, len(found), last)
        for rank in together:
            places[rank] += 1
            last[rank] = found[-1]["name"]
        if len(found) > MOST_OPERATIONS:
            raise InputError(f"a step of more than {MOST_OPERATIONS} operations", "give the dumps of fewer ranks")
    return found


def _alike(one: _Part, other: _Part) -> bool:
    """Return whether two calls of different groups may be one operation of the plan."""
    sizes = {part.event.what.nbytes(len(part.ranks)) for part in (one, other)}
    return len(sizes) == 1 and one.event.what.collective == other.event.what.collective and one.waits == other.waits


def _call(
    groups: list[list[int]], parts: Mapping[int, _Part], number: int, last: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Return the computations before a call, one for senders and one for receivers, and the call."""
    made, after, first = list[dict[str, Any]](), list[str](), next(iter(parts.values()))
    everyone, what = [rank for group in groups for rank in group], first.event.what
    for role, mine in grouped(parts.items(), lambda item: item[1].event.what.collective).items():
        ranks = [rank for rank, _ in mine] if what.peers else everyone
        before = sorted({last[rank] for rank, part in mine if part.waits and rank in last})
        if gap := round(statistics.median(part.gap for _, part in mine)):
            name = f"host {number + len(made)}" if len(ranks) == len(everyone) else f"host {number} {role}"
            made.append({"name": name, "time": f"{gap} ns", "ranks": ranks, **({"after": before} if before else {})})
            before = [name]
        after += before
    call: dict[str, Any] = {"name": f"{what.collective} {number}", "stream": _stream(first.event.group)}
    call["collective"] = "send_recv" if what.peers else what.collective
    if call["collective"] != "barrier":
        call["size"] = f"{what.nbytes(len(groups[0])) or 1} B"
    call |= {"ranks": groups[0]} if len(groups) == 1 else {"groups": groups}
    return [*made, {**call, **({"after": sorted({*after})} if after else {})}]


def _stream(group: Group) -> str:
    """Return the stream of a group's calls: NCCL has one for each."""
    return f"group {group.description or group.name}"
