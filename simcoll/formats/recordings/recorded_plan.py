"""Turn the recorded step of a job into a workload: a step that runs, is explained and varied like any other.

Calls keep their groups, sizes and order, and computations their measured times. Of recorders that know calls alone, the
host's time between two calls becomes computation. It waits for the former call if that call's measured end came before
the next one, or if it receives a message; else the call runs beside it.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from simcoll.config import yaml_tree
from simcoll.config.grouping import equal_groups, grouped
from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError
from simcoll.formats.recordings.events import Event, Group, Interval, Recording, What
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.schedule.names import DTYPES

COMPUTE: Final = "compute"  # the stream of computations, and their kind
MOST_OPERATIONS: Final = 20_000
Members = Mapping[Hashable, tuple[int, ...]]  # the ranks of each group, by its key
Heads = Mapping[int, int]  # the number of an interval, by its rank
_TORCH: Final = {row.torch: row.name for row in DTYPES}


def period(keys: Sequence[Hashable]) -> int:
    """Return how many calls a step has: the least number after which the later half of the calls repeats; all calls if
    they do not repeat.

    >>> period("xabcabcab"), period("abcbbb")
    (3, 6)
    """
    n = len(keys)
    repeats = (p for p in range(1, n // 2 + 1) if all(keys[i] == keys[i - p] for i in range(n - n // 2, n)))
    return next(repeats, n)


def plan(
    recordings: Sequence[Recording], system: str, gpus: int, notes: ImportLog, ranks: int | None = None,
    bucket_cap: int = 0,
) -> str:  # fmt: skip
    """Return the scenario of `document` as YAML, with the notes as comments."""
    scenario = document(recordings, system, gpus, notes, ranks, bucket_cap)
    remarks = [f"# {line}" for line in ["Made by simcoll import of a recorded job.", *str(notes).splitlines()]]
    return "\n".join([*remarks, yaml_tree.dump(scenario, inline=True)])


def document(
    recordings: Sequence[Recording], system: str, gpus: int, notes: ImportLog, ranks: int | None = None,
    bucket_cap: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Return a scenario with the recorded step of a job: of calls alone the last whole one. It runs on as many
    nodes of `system`, of `gpus` ranks each, as hold it. Ranks without a recording are replicas of the given rank below
    them. Raises InputError if the recordings hold neither a call that simcoll has nor computations."""
    members = _members(recordings)
    steps = {rec.rank: rec.intervals or _of_calls(rec, members) for rec in recordings if rec.rank is not None}
    steps = {rank: intervals for rank, intervals in sorted(steps.items()) if intervals}
    if not steps:
        problem = f"{recordings[0].source}: no finished collective and no message that simcoll knows"
        raise InputError(problem, "give dumps of a job that ran a step")
    calls = [(each.call, each.took) for intervals in steps.values() for each in intervals if each.call]
    known = [rank for event, _ in calls for rank in _ranks(event, members[event.group.key])]
    n = max(*known, *steps, *(rec.world - 1 for rec in recordings)) + 1 if known else max(steps) + 1
    grown = members
    if ranks is not None and ranks != n:
        if ranks < n:
            raise InputError(f"ranks={ranks}: the recorded job has {n}", "give a multiple of them")
        grown = {key: _grown(each, n, ranks) for key, each in members.items()}
        notes.assume(f"{ranks} ranks in place of {n}: groups that span the job grow, and keep the sizes of their calls")
        n = ranks
    if n > len(steps):
        notes.assume(f"{n - len(steps)} of {n} ranks have no recording: each is a replica of the given rank below it")
    operations = _Merge(steps, n, grown, members, notes).operations()
    operations = _in_buckets(operations, bucket_cap) if bucket_cap else operations
    dtypes = Counter[str]()
    for event, _ in calls:
        for dtype in event.what.dtypes[:1]:
            dtypes[_TORCH.get(dtype, "")] += event.what.nbytes(len(_ranks(event, members[event.group.key])))
    dtype = max((name for name in dtypes if name), key=lambda name: dtypes[name], default="float32")
    measured = any(took for _, took in calls) and grown is members and not bucket_cap
    item = next(row.itemsize for row in DTYPES if row.name == dtype)
    for operation in operations:
        if "size" in operation:  # calls of smaller types have whole elements of this one, too
            operation["size"] = f"{-(-operation['size'] // item) * item} B"
    longest = max(map(len, steps.values()))
    recorded = "1 rank" if len(steps) == 1 else f"{len(steps)} ranks"
    notes.read.append(f"{recorded}, a step of {longest} intervals a rank, {len(operations)} operations")
    nodes = -(-n // gpus)
    topology = {"system": system, **({"nodes": nodes} if nodes > 1 else {})}
    return {
        "name": "recorded-step",
        "topology": topology,
        "ranks": n,
        "dtype": dtype,
        "workload": {
            **({"measured_on": {**topology}} if measured else {}),
            "operations": operations,
        },
    }


def _members(recordings: Sequence[Recording]) -> Members:
    """Return the ranks of each group: those that files name, else all that recorded calls of it."""
    seen = defaultdict[Hashable, set[int]](set)
    for recording in recordings:
        events = [*recording.events, *(each.call for each in recording.intervals if each.call)]
        for group in {event.group for event in events}:
            seen[group.key] |= {*group.ranks} or {recording.rank or 0}
    return {key: tuple(sorted(ranks)) for key, ranks in seen.items()}


def _of_calls(recording: Recording, members: Members) -> list[Interval]:
    """Return the last step of a rank that recorded calls alone: each call on the stream of its group, behind the host's
    time since the call before. The step ends with a call of the rank's largest group, so that steps of ranks match."""
    events = [event for event in recording.events if event.done and _is_known(event.what)]
    if not events:
        return []
    length = period([(event.group.key, event.what) for event in events])
    sizes = {event.group: len(members[event.group.key]) for event in events[-length:]}
    largest = max(sizes, key=lambda group: (sizes[group], group.name))
    end = max(i for i, event in enumerate(events) if event.group is largest) + 1
    begin = max(0, end - length)
    found, former = list[Interval](), None
    for before, event in zip([None, *events][begin:end], events[begin:end], strict=True):
        ended = before and before.took_us and _ended(before) <= event.created
        waits = former is not None and bool(ended or (before and before.what.collective == "recv"))
        since = (_ended(before) if ended else before.created) if before else event.created
        found.append(Interval("host", COMPUTE, max(0, event.created - since), (former or 0,) if waits else ()))
        if len(_ranks(event, members[event.group.key])) > 1:
            former = len(found)
            found.append(Interval(event.what.collective, stream_of(event.group), 0, (former - 1,), event))
    return found


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


def stream_of(group: Group) -> str:
    """Return the stream of a group's calls: NCCL has one for each."""
    return f"group {group.description or group.name}"


def _grown(ranks: tuple[int, ...], n: int, more: int) -> tuple[int, ...]:
    """Return a group of a job of `n` ranks in one of `more` ranks: one that spans the job at equal distances grows.

    >>> _grown((1, 3), 4, 8), _grown((0, 1), 4, 8)
    ((1, 3, 5, 7), (0, 1))
    """
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else n
    return tuple(range(ranks[0], more, stride)) if ranks == tuple(range(ranks[0] % stride, n, stride)) else ranks


def _in_buckets(operations: Sequence[dict[str, Any]], cap: int) -> list[dict[str, Any]]:
    """Return operations in which all-reduces of equal groups are joined up to `cap` bytes, as buckets of gradients: a
    bucket is closed by the call with which it reaches the cap, and before work that waits for one of its calls."""
    found, held, instead = list[dict[str, Any]](), dict[str, dict[str, Any]](), dict[str, str]()
    for operation in operations:
        for key, open_ in [*held.items()]:
            if open_["name"] in operation.get("after", ()):
                del held[key]
        if operation.get("collective") == "all_reduce" and "size" in operation:
            key = str([operation.get(each) for each in ("stream", "ranks", "groups")])
            if before := held.pop(key, None):
                found.remove(before)
                instead[before["name"]] = operation["name"]
                after = dict.fromkeys([*before.get("after", ()), *operation.get("after", ())])
                operation = {**operation, "size": before["size"] + operation["size"], "after": [*after]}
                operation.pop("time", None)
            if operation["size"] < cap:
                held[key] = operation
        found.append(operation)

    def name(of: str) -> str:
        return name(instead[of]) if of in instead else of

    return [
        {**each, "after": [*dict.fromkeys(map(name, each["after"]))]} if "after" in each else each for each in found
    ]


class _Merge:
    """Merges the intervals of ranks to operations, in an order that keeps that of each rank. Equal work of several
    ranks is one operation, whose time is the median; so are equal calls that groups make at the same time."""

    def __init__(
        self, steps: Mapping[int, Sequence[Interval]], n: int, members: Members, recorded: Members, notes: ImportLog
    ):
        self.steps, self.n, self.members, self.recorded, self.notes = steps, n, members, recorded, notes
        given = [*steps]
        self.like = {rank: given[max(0, bisect.bisect(given, rank) - 1)] for rank in range(n)}  # whose replica it is
        self.replicas = grouped(range(n), self.like.__getitem__)
        self.keys = {rank: self._keys(intervals) for rank, intervals in steps.items()}
        self.made: dict[int, dict[int, str]] = {rank: {} for rank in steps}  # the operation of each interval
        self.groups: dict[Hashable, list[tuple[int, ...]]] = {}  # with those of replicas, by those of given ranks
        self.found: list[dict[str, Any]] = []

    def operations(self) -> list[dict[str, Any]]:
        """Return the operations of all ranks."""
        heads = dict.fromkeys(self.steps, 0)
        while heads := {rank: at for rank, at in self._next(heads) if at < len(self.steps[rank])}:
            working = {rank: at for rank, at in heads.items() if not self.steps[rank][at].call}
            for alike in grouped(working.items(), lambda head: self.steps[head[0]][head[1]]._replace(took=0)).values():
                took = statistics.median(self.steps[rank][at].took for rank, at in alike)
                replicas = [sorted(r for rank, _ in alike for r in self.replicas[rank])]
                self._add(dict(alike), {"time": f"{round(took)} ns"}, replicas)
            for calls in () if working else self._ready(heads):
                self._call(calls)
            if len(self.found) > MOST_OPERATIONS:
                raise InputError(f"a step of more than {MOST_OPERATIONS} operations", "give the files of fewer ranks")
        return self.found

    def _keys(self, intervals: Sequence[Interval]) -> list[Hashable]:
        """Return what tells each call from others, alike on all its ranks: which call of its group it is."""
        counted, keys = Counter[Hashable](), list[Hashable]()
        for each in intervals:
            if each.call is None:
                keys.append(None)
                continue
            members = self.members[each.call.group.key]
            key = each.call.group.key, _ranks(each.call, members) if each.call.what.peers else None
            counted[key] += 1
            keys.append((key, counted[key]))
        return keys

    def _next(self, heads: Heads) -> Iterator[tuple[int, int]]:
        """Yield the next interval of each rank."""
        for rank, at in heads.items():
            while at in self.made[rank]:
                at += 1
            yield rank, at

    def _together(self, rank: int, first: int) -> Iterator[tuple[int, int]]:
        """Yield the calls that a rank makes before it computes again, `first` and those that wait neither for others of
        them nor for their streams: the host launches them together, as a batch of messages."""
        streams = set[str]()
        for at, each in enumerate(self.steps[rank][first:], first):
            if each.call is None:
                return
            if at not in self.made[rank]:
                if each.stream not in streams and self.made[rank].keys() >= {*each.after}:
                    yield rank, at
                streams.add(each.stream)

    def _ready(self, heads: Heads) -> list[list[Heads]]:
        """Return the calls that all their ranks have reached: lists of equal calls of disjoint groups. `heads`: the
        next call of each rank."""
        for places in ([*heads.items()], [each for head in heads.items() for each in self._together(*head)]):
            waiting = [dict(call) for call in grouped(places, lambda place: self.keys[place[0]][place[1]]).values()]
            ready = [call for call in waiting if call.keys() >= {*self._group(self._head(call))} & {*self.steps}]
            if ready:
                break
        else:  # ranks make calls of several groups in several orders: the earliest goes first
            self.notes.warn("ranks make their calls in different orders; the plan takes the earliest first")
            ready = [min(waiting, key=lambda call: min(_created(self.steps[rank][at]) for rank, at in call.items()))]
        found = dict[Hashable, list[Heads]]()
        for call in ready:
            head, group = self._head(call), self._group(self._head(call))
            kind = self._size(head), _what(head).collective, _what(head).root, head.stream, len(group)
            others = {rank for each in found.get(kind, ()) for rank in self._group(self._head(each))}
            if not others & {*group}:
                found.setdefault(kind, []).append(call)
        return [*found.values()]

    def _head(self, call: Heads) -> Interval:
        return next(self.steps[rank][at] for rank, at in call.items())

    def _size(self, head: Interval) -> int:
        assert head.call
        return head.call.what.nbytes(len(_ranks(head.call, self.recorded[head.call.group.key])))

    def _group(self, head: Interval) -> tuple[int, ...]:
        assert head.call
        return _ranks(head.call, self.members[head.call.group.key])

    def _call(self, calls: Sequence[Heads]) -> None:
        """Add one operation of equal calls. Ranks without a recording take part as the ranks whose replicas they are:
        in a group of theirs, or in one with the same distances."""
        places = {rank: at for call in calls for rank, at in call.items()}
        heads = {rank: self.steps[rank][at] for rank, at in places.items()}
        everyone = [*heads]
        own = tuple(self._group(self._head(call)) for call in calls)
        groups = self.groups.setdefault((own, tuple(everyone)), [])
        taken = {rank for group in own for rank in group}
        for group in () if groups else own:
            groups.append(group)
            for shift in range(-min(group), self.n - max(group)):
                moved = tuple(rank + shift for rank in group)
                if not taken & {*moved} and all(self.like[r] in everyone and r not in self.steps for r in moved):
                    groups.append(moved)
                    taken |= {*moved}
        what, size = _what(heads[everyone[0]]), self._size(heads[everyone[0]])
        if not what.peers and len({_what(heads[rank]).collective for rank in everyone}) > 1:
            self.notes.warn("ranks disagree on some calls, as if files lacked events; the plan takes the lowest rank's")
        took = {rank: heads[rank].took for rank in everyone}
        call: dict[str, Any] = {"collective": "send_recv" if what.peers else what.collective}
        if what.root is not None and not 0 <= what.root < len(own[0]):
            problem = f"a {what.collective} names root {what.root}, but its group has {len(own[0])} ranks"
            raise InputError(f"{heads[everyone[0]].name}: {problem}", "record the trace once more")
        call |= {"root": what.root} if what.root else {}
        if what.root is None and COLLECTIVES[call["collective"]].rooted and not what.peers:
            self.notes.assume("calls whose root the recording does not name have the first rank of their group as root")
        if call["collective"] != "barrier" and (size or not all(took.values())):
            call["size"] = size or 1
        if all(took.values()):
            same = len({*took.values()}) == 1
            call["time"] = f"{took[everyone[0]]} ns" if same else {rank: f"{ns} ns" for rank, ns in took.items()}
        self._add(places, call, groups)

    def _add(self, places: Heads, what: dict[str, Any], groups: Sequence[Sequence[int]]) -> None:
        """Add an operation of an interval of each given rank."""
        head = self._head(places)
        name = f"{head.name} {len(self.found)}"
        after = sorted(
            {self.made[rank][before] for rank, at in places.items() for before in self.steps[rank][at].after}
        )
        kind = {"kind": head.kind} if head.kind != COMPUTE and not head.call else {}
        who = {"groups": _equal(groups, self.n)} if len(groups) > 1 else {"ranks": [*groups[0]]}
        who = {} if [*groups[0]] == [*range(self.n)] else who
        self.found.append(
            {"name": name, "stream": head.stream, **kind, **what, **who, **({"after": after} if after else {})}
        )
        for rank, at in places.items():
            self.made[rank][at] = name


def _equal(groups: Sequence[Sequence[int]], n: int) -> Any:
    """Return groups as the key `groups` has them: by size and distance if they are all ranks, else as lists.

    >>> _equal([(0, 2), (1, 3), (4, 6), (5, 7)], 8), _equal([(0, 2)], 8)
    ({'size': 2, 'apart': 2}, [[0, 2]])
    """
    listed = sorted(map(tuple, groups))
    first = listed[0]
    size, apart = len(first), first[1] - first[0] if len(first) > 1 else 1
    same = apart > 0 and len(groups) * size == n and n % (size * apart) == 0
    return (
        {"size": size, "apart": apart} if same and equal_groups(n, size, apart) == (*listed,) else [*map(list, groups)]
    )


def _what(head: Interval) -> What:
    assert head.call
    return head.call.what


def _created(head: Interval) -> int:
    assert head.call
    return head.call.created
