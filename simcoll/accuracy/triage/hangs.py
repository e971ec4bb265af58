"""Find out why a job stands still, from what its ranks recorded: who is missing, in which call, or who calls otherwise.

A rank waits in a call until all ranks of the group have joined it. Ranks that others wait for may wait themselves, in
calls of other groups: they are echoes. The cause is a rank that is missing and waits nowhere, a call that ranks make in
different ways, or groups whose calls ranks make in different orders. Lines of logs that say why a rank failed come
before these findings, which therefore have no time (`when`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from simcoll.accuracy.triage.findings import Confidence, Evidence, Finding, Where
from simcoll.formats.recordings.events import UNNAMED, Event, Group, Recording, What, elements

LONG_NS: Final = 60 * 10**9  # no call takes as long as this, while its rank records others
MOST_RANKS: Final = 2**20
GAPS: Final = 1.25  # ranks of an even row for each one that was seen, up to which the others are taken for missing
MOST_SHOWN: Final = 8  # calls of ranks that are shown as evidence
_INPUTS: Final = ("all_reduce", "reduce", "broadcast", "all_gather", "gather")  # whose inputs are equally large
_OUTPUTS: Final = ("reduce_scatter", "scatter")


def difference(one: What, other: What) -> str | None:
    """Return in what two ranks differ who make one call: its `collective`, `dtype` or `size`; None if they agree.

    What ranks may do differently does not count: shapes of equal size, the parts of all_to_all, data of a root alone.
    """
    if one == other:
        return None
    if one.collective != other.collective:
        return "collective"
    if one.dtypes and other.dtypes and {*one.dtypes} != {*other.dtypes}:
        return "dtype"
    sides = [(one.inputs, other.inputs)] if one.collective in _INPUTS else []
    sides += [(one.outputs, other.outputs)] if one.collective in _OUTPUTS else []
    differ = any(mine and its and elements(mine) != elements(its) for mine, its in sides)
    return "size" if differ else None


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks in words.

    >>> ranks_text([3]), ranks_text([0, 1, 2, 5])
    ('rank 3', 'ranks 0-2, 5')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    more = f" and {len(words) - 8} more" if len(words) > 8 else ""
    return ("rank " if len(runs) == 1 and runs[0][0] == runs[0][1] else "ranks ") + ", ".join(words[:8]) + more


class _Seen(NamedTuple):
    """A rank's recording, without its events."""

    source: str
    whole: bool
    timed_out: bool
    newest: int  # time of its last event


@dataclass
class _Wait:
    """An unfinished call, and who waits in it. `missing`: ranks that have not joined it; `absent`: without a dump."""

    event: Event
    waiting: dict[int, Event] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)

    @property
    def group(self) -> Group:
        """The group of the call."""
        return self.event.group

    @property
    def since(self) -> int:
        """When the first rank that waits joined the call, in ns."""
        return min(event.created for event in self.waiting.values())

    def __str__(self) -> str:
        return _call_text(self.event)


class Job:
    """What all ranks recorded. `add` recordings one by one; of their events only what the analysis needs is kept."""

    def __init__(self) -> None:
        self.seen: dict[int, _Seen] = {}
        self.events = 0
        self._groups: dict[tuple[object, ...], Group] = {}
        self._last: defaultdict[Group, dict[int, Event | int]] = defaultdict(dict)  # of each rank: last call, or number
        self._first: dict[tuple[Group, int, int], tuple[int, Event]] = {}  # call -> a rank that made it, and its event
        self._unlike: dict[tuple[Group, int, int], dict[int, Event]] = {}  # call -> ranks that made it otherwise
        self._open: defaultdict[tuple[Group, int], dict[int, Event]] = defaultdict(dict)
        self._messages: defaultdict[tuple[Group, str, tuple[int, int]], list[Event]] = defaultdict(list)

    def add(self, recording: Recording) -> None:
        """Take in what one rank recorded. The rank must be known, and not have been added."""
        rank, alias = recording.rank or 0, dict[Group, Group]()
        first, unlike, newest = self._first, self._unlike, 0
        before, oldest = dict[Group, tuple[int, int]](), dict[Group, int]()
        for event in recording.events:
            group = alias.get(event.group)
            if group is None:
                group = alias[event.group] = self._groups.setdefault(event.group.key, event.group)
            newest = max(newest, event.created, event.ended)
            if event.p2p:
                if event.what.peers:
                    self._messages[group, event.what.collective, event.what.peers].append(event)
                continue
            number, part = before.get(group, (-1, 0))
            part = part + 1 if number == event.number else 0
            before[group] = event.number, part
            if not event.done:
                self._open[group, event.number].setdefault(rank, event)
            lost = not recording.whole and len(recording.events) > 1
            if lost and oldest.setdefault(group, event.number) == event.number:
                continue  # it may be coalesced, and its first parts be lost
            call = group, event.number, part
            made = first.get(call)
            if made is None:
                first[call] = rank, event
            elif made[1].what != event.what and difference(made[1].what, event.what):
                unlike.setdefault(call, {made[0]: made[1]})[rank] = event
        for event in recording.events:
            self._last[alias[event.group]][rank] = event  # the last stays
        for group, number in recording.reached.items():
            self._last[self._groups.setdefault(group.key, group)].setdefault(rank, number)
        self.events += len(recording.events)
        self.seen[rank] = _Seen(recording.source, recording.whole, recording.timed_out, newest)

    # --- who waits, and for whom ---

    def members(self, group: Group) -> Collection[int]:
        """Return the ranks of a group: those that files name, else those that were seen in it, and ranks without a file
        where the distances between the seen ones leave few gaps."""
        if group.ranks:
            return group.ranks
        if group.name in ("0", UNNAMED) or len(self._last[group]) == 1:  # the default group has all; none waits alone
            return range(max(self.seen) + 1) if max(self.seen) < MOST_RANKS else self.seen.keys()
        seen = sorted(self._last[group])
        step = math.gcd(*(rank - seen[0] for rank in seen))
        few = step and (seen[-1] - seen[0]) // step < GAPS * len(seen)
        return {*seen, *(rank for rank in range(seen[0], seen[-1], step) if rank not in self.seen)} if few else seen

    def _has_joined(self, rank: int, group: Group, number: int) -> bool:
        last = self._last[group].get(rank)
        if last is None:
            return not self.seen[rank].whole  # its calls may have been lost
        return (last if isinstance(last, int) else last.number) >= number

    def waits(self) -> list[_Wait]:
        """Return the unfinished calls in which ranks wait: of each rank and group the first, for later ones queue."""
        fronts: dict[tuple[int, Group], int] = {}
        for (group, number), events in self._open.items():
            for rank in events:
                fronts[rank, group] = min(number, fronts.get((rank, group), number))
        found = []
        for (group, number), events in sorted(self._open.items(), key=lambda item: item[0][1]):
            waiting = {rank: event for rank, event in events.items() if fronts[rank, group] == number}
            if waiting:
                wait = _Wait(next(iter(waiting.values())), waiting)
                for rank in self.members(group):
                    if rank not in self.seen:
                        wait.absent.add(rank)
                    elif not self._has_joined(rank, group, number):
                        wait.missing.add(rank)
                found.append(wait)
        return [*found, *self._messages_that_wait()]

    def _messages_that_wait(self) -> Iterator[_Wait]:
        """Yield unfinished sends and receives whose peer has not called its part, where no event was lost."""
        for (group, name, peers), events in list(self._messages.items()):
            mine, its = peers if name == "send" else peers[::-1]
            if group.ranks and max(peers) < len(group.ranks):
                mine, its = group.ranks[mine], group.ranks[its]
            elif group.name != "0":
                continue
            position = next((i for i, event in enumerate(events) if not event.done), None)
            if position is None or mine not in self.seen or not self.seen[mine].whole:
                continue
            wait = _Wait(events[position], {mine: events[position]})
            if its not in self.seen:
                wait.absent.add(its)
            elif self.seen[its].whole:
                other = "recv" if name == "send" else "send"
                if len(self._messages.get((group, other, peers), ())) <= position:
                    wait.missing.add(its)
            yield wait

    # --- findings ---

    def findings(self) -> Iterator[Finding]:
        """Yield the cause of a hang and its echoes, or that all calls were finished or are under way."""
        if not self.events:
            yield Finding.of("no calls", {})
            return
        waits = self.waits()
        blocked = [wait for wait in waits if wait.missing or wait.absent]
        unlike = self._mismatch()
        if unlike:
            yield unlike
        if not waits:
            if not unlike:
                yield self._sound("all are finished")
            return
        waiting = {rank for wait in waits for rank in wait.waiting}
        missing = {rank for wait in waits for rank in wait.missing}
        idle = missing - waiting
        under_way = [wait for wait in waits if not wait.missing and not wait.absent]
        held_up = {rank for wait in under_way for rank in wait.waiting}
        causes: list[Finding] = []
        if idle:
            causes = [self._missing([wait for wait in blocked if wait.missing & idle], idle)]
        elif missing and not missing & held_up and not any(wait.absent for wait in blocked):
            causes = [self._crossed([wait for wait in blocked if wait.missing])]
        elif absent := [wait for wait in blocked if wait.absent]:
            causes = [self._dead(absent)]
        elif crossed := _reordered(under_way):
            causes = [self._crossed(crossed)]
        elif late := [wait for wait in under_way if self._is_stuck(wait)]:
            causes = [self._stuck(late, waits)]
        elif not unlike:
            yield self._of("under way", min(under_way, key=lambda wait: wait.since), {})
        yield from [] if unlike else causes
        if unlike or (causes and causes[0].role == "cause"):
            first = min(waits, key=lambda wait: wait.since)
            text = f"{ranks_text(waiting)} {_verb(waiting)}; the first in {first}"
            yield Finding("waits for others", text, "echo", evidence=self._shown(first.waiting), count=len(waiting))

    def _sound(self, state: str) -> Finding:
        absent = {rank for group in self._last for rank in self.members(group)} - {*self.seen}
        state += f". Of {ranks_text(absent)} there is no dump" if absent else ""
        found = Finding.of("sound", {"seen": ranks_text(self.seen), "events": self.events, "state": state})
        return replace(found, evidence=(Evidence.of(self.seen[min(self.seen)].source, None, found.text),))

    def _mismatch(self) -> Finding | None:
        """Return the first call that ranks make in different ways; finished ones count if their collectives differ."""
        calls = [
            (event.created, call)
            for call, made in self._unlike.items()
            for event in [min(made.values(), key=lambda event: event.created)]
            if call[:2] in self._open or self._kind(made) == "collective"
        ]
        if not calls:
            return None
        _, call = min(calls, key=lambda each: each[0])
        group, number, usual = call[0], call[1], self._first[call][1]
        kind = "order" if self._is_reordered(call) else self._kind(self._unlike[call])
        ways = defaultdict[tuple[str, str], dict[int, Event]](dict)
        for rank in self._last[group]:
            if self._has_joined(rank, group, number):
                event = self._unlike[call].get(rank, usual)
                ways[str(event.what), event.place][rank] = event
        odd, *_ = groups = sorted(ways.values(), key=lambda ranks: (len(ranks), -min(ranks)))
        words = "; ".join(f"{ranks_text(ranks)}: {_way(next(iter(ranks.values())))}" for ranks in groups)
        names = {"collective": "collectives", "dtype": "types of data", "size": "sizes", "order": "orders of calls"}
        said = {"number": number, "group": group, "kinds": names[kind], "ways": words}
        where = Where(rank=min(odd) if len(odd) == 1 else None, group=str(group), call=_short(next(iter(odd.values()))))
        shown = self._shown({min(ranks): ranks[min(ranks)] for ranks in groups})
        sure: Confidence = "clear" if call[:2] in self._open and group.name != UNNAMED else "likely"
        found = Finding.of("mismatched", said, confidence=sure, where=where, evidence=shown)
        return replace(found, cause=f"mismatched {kind}")

    def _kind(self, made: dict[int, Event]) -> str:
        one, *others = made.values()
        return next((kind for other in others if (kind := difference(one.what, other.what))), "collective")

    def _is_reordered(self, call: tuple[Group, int, int]) -> bool:
        """Return whether the collectives of a call and of the next one are exchanged between ranks."""
        after = self._unlike.get((call[0], call[1] + 1, 0), {})
        now = self._unlike[call]
        names = {rank: (now[rank].what.collective, after[rank].what.collective) for rank in now if rank in after}
        return len({*names.values()}) > 1 and len({frozenset(pair) for pair in names.values()}) == 1

    def _missing(self, waits: list[_Wait], idle: set[int]) -> Finding:
        wait = min(waits, key=lambda wait: (wait.since, wait.event.number))
        who = sorted(wait.missing & idle, key=lambda rank: (self._number(rank, wait.group), rank))
        one, last = ranks_text(who[:1]), self._last_event(who[0])
        said = {"missing": ranks_text(who), "first": one, "last": ""}
        said |= {"last": f"; {one} was last seen in {_call_text(last)}"} if last else {}
        events = {rank: event for rank in who if (event := self._last_event(rank))}
        return self._of("missing rank", wait, said, who[0], events, "clear" if self._is_stuck(wait) else None)

    def _crossed(self, waits: list[_Wait]) -> Finding:
        waits = sorted(waits, key=lambda wait: wait.since)[:4]
        words = "; ".join(f"{ranks_text(w.waiting)} in {w}, without {ranks_text(w.missing)}" for w in waits)
        events = {rank: event for wait in waits for rank, event in wait.waiting.items()}
        return self._of("mismatched order", waits[0], {"ways": words}, events=events)

    def _dead(self, waits: list[_Wait]) -> Finding:
        wait = min(waits, key=lambda wait: wait.since)
        absent = {rank for each in waits for rank in each.absent}
        later = absent - wait.absent
        said = {"missing": ranks_text(wait.absent), "absent": ranks_text(absent)}
        said["later"] = f", nor of {ranks_text(later)}" if later else ""
        if len(absent) >= len(self.seen):
            found = self._of("too few dumps", wait, said)
            return replace(found, role="symptom") if self._is_stuck(wait) else found
        return self._of("dead rank", wait, said, min(wait.absent) if len(wait.absent) == 1 else None)

    def _is_stuck(self, wait: _Wait) -> bool:
        """Return whether a rank waits for longer than any call takes: it gave up, or recorded others since then."""
        return any(
            self.seen[rank].timed_out or (event.created and self.seen[rank].newest - event.created > LONG_NS)
            for rank, event in wait.waiting.items()
        )

    def _stuck(self, late: list[_Wait], waits: list[_Wait]) -> Finding:
        wait = min(late, key=lambda wait: wait.since)
        if len(self.seen) == 1:
            return self._of("one waits", wait, {})
        ahead = [w for w in waits if w.group is wait.group and w.event.number > wait.event.number]
        if ahead:
            said = {"ahead": f"{ranks_text(ahead[0].waiting)} already in {ahead[0]}"}
            sure: Confidence | None = "open" if wait.group.name == UNNAMED else None
            return self._of(
                "ranks behind", wait, said, min(wait.waiting) if len(wait.waiting) == 1 else None, sure=sure
            )
        queued = [rank for rank, event in wait.waiting.items() if not event.started]
        if 0 < len(queued) < len(wait.waiting):
            said = {"queued": ranks_text(queued), "first": ranks_text(queued[:1])}
            return self._of("call not started", wait, said, queued[0])
        return self._of("stuck call", wait, {})

    def _of(
        self, key: str, wait: _Wait, said: Mapping[str, str], rank: int | None = None,
        events: Mapping[int, Event] | None = None, sure: Confidence | None = None,
    ) -> Finding:  # fmt: skip
        """Return a finding about a call; its evidence are `events`, and then those that wait in the call."""
        who = {"who": ranks_text(wait.waiting), "verb": _verb(wait.waiting), "wait": str(wait)}
        where = Where(rank=rank, group=str(wait.group), call=_short(wait.event))
        shown = self._shown({**(events or {}), **wait.waiting})
        return Finding.of(key, {**who, **said}, confidence=sure, where=where, evidence=shown)

    # --- words ---

    def _number(self, rank: int, group: Group) -> int:
        last = self._last[group].get(rank, -1)
        return last if isinstance(last, int) else last.number

    def _last_event(self, rank: int) -> Event | None:
        events = [last[rank] for last in self._last.values() if rank in last]
        return max((e for e in events if isinstance(e, Event)), key=lambda e: e.created, default=None)

    def _shown(self, events: Mapping[int, Event]) -> tuple[Evidence, ...]:
        """Return the evidence for the calls of ranks."""
        return tuple(
            Evidence.of(
                self.seen[rank].source,
                None,
                f"rank {rank}: {_call_text(event)}, {'finished' if event.done else 'not finished'}",
            )
            for rank, event in list(events.items())[:MOST_SHOWN]
        )


def _reordered(waits: Sequence[_Wait]) -> list[_Wait]:
    """Return the unfinished calls of two groups that ranks made in unlike orders, so that on each the later one waits
    for the earlier one: with those ranks as missing on which it has not started. Empty if there are none."""
    for one, other in itertools.combinations(waits, 2):
        pairs = {rank: (one.waiting[rank], other.waiting[rank]) for rank in one.waiting.keys() & other.waiting.keys()}
        first = {rank: a for rank, (a, b) in pairs.items() if a.created < b.created and not b.started}
        last = {rank: b for rank, (a, b) in pairs.items() if b.created < a.created and not a.started}
        if first and last:
            return [_Wait(one.event, first, {*last}), _Wait(other.event, last, {*first})]
    return []


def _verb(ranks: Collection[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _way(event: Event) -> str:
    return f"{event.what} at {event.place}" if event.place else str(event.what)


def _short(event: Event) -> str:
    return f"{event.number}: {_way(event)}"


def _call_text(event: Event) -> str:
    return f"call {event.number} of group {event.group}, {_way(event)}"
