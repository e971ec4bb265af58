"""Compose the time of a plan from separate runs of its calls, if the calls do not delay each other on links.

The calls run one after the other. A call depends on the times at which its ranks arrive, and on how long earlier calls
keep its links busy; calls that agree in both run once. Each link is checked: the first message of a call must reach it
after the last message of all earlier calls. Then the composed times obey every rule of the joined program, and only one
solution does. If the check fails, the joined program has to run.

A call that shares no link with others is *hidden* at first: it does not run, only an upper bound of its end is computed
(see `upper_bound`). If every operation that waits for it waits longer for something else, such as computation, the call
never runs. A call whose ranks begin one by one as a hidden call ends is hidden, too. Such calls form a *chain*; the
bound of each holds whichever ranks are ahead. If some ranks reach a call so late that all other ranks stand still, the
past no longer matters: a new chain begins. Calls of a chain whose messages meet on a link run as one joined program.
"""

from __future__ import annotations

import functools
import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import Numbers
from simcoll.engine import fast
from simcoll.engine.call_program import CallProgram
from simcoll.engine.joined_program import Operation, join
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER, NONE, RoutedNetwork


class Hidden(NamedTuple):
    """An operation whose end is not computed yet. Its `call` runs only when another operation needs that end; `call` is
    None for a computation that launches the next hidden call. `chain`: the number of the chain's first operation. Times
    in ps: `opened`, the earliest start of each rank, exact for the first operation of a chain; `latest`, an upper bound
    of the end; `ahead`, an upper bound of the end on ranks that begin before others; `quiet`, an upper bound of the end
    of all work before the last rank arrives, or 0."""

    number: int
    call: CallProgram | None
    opened: Numbers
    latest: int
    chain: int
    ahead: int
    quiet: int = 0


class Opened(NamedTuple):
    """The times in ps at which ranks may begin an operation (`when`), and the `first` of them. After a `chain` of
    hidden operations they are lower bounds: a time up to `ahead` may become as late as `ahead`. Else `ahead` is 0.
    `known`: the state from which the times were computed, i.e. `_Composition.shown` and the chain's last operation."""

    when: Numbers
    first: int
    ahead: int
    chain: int
    known: tuple[int, Hidden] | None = None

    @property
    def latest(self) -> int:
        """The latest time in ps by which all ranks may begin."""
        return max(int(np.maximum.reduce(self.when, initial=0)), self.ahead)


class Taken(NamedTuple):
    """Two times in ps for each link, (links,): when its last message `came`, and when it is `free` again."""

    came: Numbers
    free: Numbers

    def copied(self) -> Taken:
        """Return a copy that shares no arrays with this one."""
        return Taken(*(column.copy() for column in self))


class Before(NamedTuple):
    """A checkpoint of a chain: the state of links, and the latest time in ps, before the operations from position
    `place` on ran. `met`: whether the first call among them meets messages of earlier calls."""

    place: int
    met: bool
    taken: Taken
    owner: Numbers
    last: int


class KnownCalls:
    """A cache of the results of calls that ran. Equal calls with equal arrivals run once."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, bytes], list[tuple[Numbers, fast.CallEnds]]] = {}

    def alike(self, call: CallProgram, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """Return the cached ends of an equal call, or None; see `CallProgram.alone` for the arguments. Calls also count
        as equal if a link is `busy` for different times but free before its first message comes."""
        now = busy[call.links]
        for before, ends in self._runs.get((id(call), came.tobytes()), ()):
            if ((now == before) | (np.maximum(now, before) <= ends.first[call.links])).all():
                return ends
        return None

    def alone(self, call: CallProgram, came: Numbers, busy: Numbers) -> fast.CallEnds | None:
        """Return the ends of the call, from the cache or from a run; None if it cannot finish."""
        if (ends := self.alike(call, came, busy)) is None and (ends := call.alone(came, busy)) is not None:
            self._runs.setdefault((id(call), came.tobytes()), []).append((busy[call.links], ends))
        return ends


least, most = np.minimum.reduce, np.maximum.reduce  # of a few numbers: methods take twice the time
MOST_JOINED: Final = 5_000_000  # transfers of joined programs, which take some 1 GB

Joined = dict[tuple[tuple[CallProgram | None, tuple[int, ...]], ...], Program]


def composed_ps(
    operations: Sequence[Operation],
    calls: Sequence[CallProgram | None],
    n: int,
    network: RoutedNetwork,
    ran: set[CallProgram] | None = None,
    joined: Joined | None = None,
    durations: Sequence[int | Numbers] | None = None,
) -> int | None:
    """Return the time in ps of a plan of `operations` on `n` ranks; None if calls delay each other on a link or cannot
    run separately. `calls` holds the call of each operation, None for computations. Calls that run are added to `ran`;
    only a call in `ran` may be skipped when no operation needs its end. `joined` caches the joined programs of chained
    calls, for further runs of the plan with other `durations`: times in ps in place of the durations of
    `operations`."""
    if not _apart(calls, network):
        return None
    known = set() if ran is None else ran, {} if joined is None else joined
    if durations is None:
        durations = [op.duration for op in operations]
    took = _Composition(operations, durations, calls, n, network, *known).took()
    return took if took is not None and took < NEVER else None


def _behind(after: Sequence[tuple[int, ...]]) -> tuple[Sequence[tuple[int, ...]], Sequence[int]]:
    """Return for each operation the operations that wait for it, and the number of operations it waits for."""
    behind = [list[int]() for _ in after]
    for number, all_before in enumerate(after):
        for before in dict.fromkeys(all_before):
            behind[before].append(number)
    return tuple(map(tuple, behind)), [len(set(all_before)) for all_before in after]


class _Composition:
    """The times of a plan in ps, computed operation by operation. `taken` holds the times of each link, and `owner` the
    operation of its last message. `done` holds for each operation when its work ends on each rank; for `hidden`
    operations these are lower bounds."""

    def __init__(
        self,
        operations: Sequence[Operation],
        durations: Sequence[int | Numbers],
        calls: Sequence[CallProgram | None],
        n: int,
        network: RoutedNetwork,
        ran: set[CallProgram],
        joined: Joined,
    ):
        self.operations, self.calls, self.ran, self.joined = operations, calls, ran, joined
        self.durations = durations
        self.network, links = network, len(network.bandwidths)
        self.taken = Taken(np.full(links, -NEVER), np.zeros(links, np.int64))
        self.owner, self.idle = np.zeros(links, np.int64), np.zeros(links, np.int64)
        self.done, self.hidden = dict[int, Numbers](), dict[int, Hidden]()
        self.chains = dict[int, list[Hidden]]()  # by the number of the chain's first operation
        self.anew = dict[int, int]()  # last operation of a chain -> first operation of the chain that follows it
        self.until = list[tuple[int, int]]()  # (latest end, number) of the hidden operations, sorted
        self.place, self.known, self.last = np.full(n, -1, np.int64), KnownCalls(), 0
        self.shown = 0  # how often a chain was taken out of the hidden operations
        self.behind, self.awaited = _behind([op.after for op in operations])

    def took(self) -> int | None:
        """Return the time in ps of the whole plan; None if calls delay each other on a link."""
        left = list(self.awaited)
        queue: list[tuple[int, int]] = []
        opened: dict[int, Opened] = {}
        ready = [number for number, before in enumerate(left) if not before]
        while ready or queue:
            for number in ready:
                if (when := self._opened(number)) is None:
                    return None
                opened[number] = when
                heapq.heappush(queue, (when.first, number))
            _, number = heapq.heappop(queue)  # about in the order in which operations begin on their first rank
            if not self._enter(number, opened.pop(number)):
                return None
            for after in self.behind[number]:
                left[after] -= 1
            ready = [after for after in self.behind[number] if not left[after]]
        self.last = max(self.last, int(most(np.concatenate([*self.done.values(), self.idle[:1]]), initial=0)))
        while self.until and self.until[-1][0] > self.last:
            if not self._uncover(self.hidden[self.until[-1][1]]):
                return None
        return self.last

    def _opened(self, number: int) -> Opened | None:
        """Return when ranks may begin operation `number`; None if a call that has to run cannot finish. If a hidden
        operation may end later than other predecessors, it runs first, unless `number` continues its chain."""
        while True:
            when = self._since(number)
            first = int(least(when, initial=NEVER))
            hidden = [self.hidden[before] for before in self.operations[number].after if before in self.hidden]
            late = [h for h in hidden if h.latest > first and h.latest > self._soonest(h.number, number, when)]
            if not late:
                return Opened(when, first, 0, number)
            last = max(late, key=lambda each: each.latest)
            if len(late) == 1 and self._goes_on(number, last):
                return Opened(when, first, last.ahead, last.chain, (self.shown, last))
            if not self._uncover(last):
                return None

    def _since(self, number: int) -> Numbers:
        """Return for each rank of operation `number` when its predecessors end there, in ps; lower bounds if hidden."""
        op = self.operations[number]
        ends = list[Numbers]()
        for before in op.after:
            done, shared = self.done[before], self._shared(before, op)
            ends.append(done if shared is None else np.where(shared >= 0, done[shared], 0))
        if len(ends) == 1:
            return ends[0]
        return functools.reduce(np.maximum, ends) if ends else np.zeros(len(op.ranks), np.int64)

    def _soonest(self, before: int, number: int, when: Numbers) -> int:
        """Return the earliest time in `when` (ps, by rank of operation `number`) of the ranks that also take part in
        operation `before`."""
        shared = self._shared(before, self.operations[number])
        return int(least(when if shared is None else when[shared >= 0], initial=NEVER))

    def _shared(self, before: int, op: Operation) -> Numbers | None:
        """Return for each rank of `op` its position among the ranks of operation `before`, or −1 if it is not one of
        them. Return None if both have equal ranks."""
        others, place = self.operations[before].ranks, self.place
        if others is op.ranks:
            return None
        place[others] = np.arange(len(others))
        found: Numbers = place[op.ranks]
        place[others] = -1
        return found

    def _goes_on(self, number: int, late: Hidden) -> bool:
        """Return whether operation `number` continues the chain whose last operation is `late`. It does if it is a call
        on equal ranks that may overlap with `late`, or a computation that launches only such a call."""
        if late is not self.chains[late.chain][-1]:
            return False
        if late.call is None:  # `late` launches this call
            return True
        only = number if self.calls[number] else self.behind[number][0] if len(self.behind[number]) == 1 else NONE
        call, ranks = self.calls[only], self.operations[late.number].ranks
        alike = only != NONE and call is not None and call.turns is not None and call.turns == late.call.turns
        return alike and all(self.operations[each].ranks is ranks for each in (number, only))

    def _enter(self, number: int, opened: Opened) -> bool:
        """Record when operation `number` begins. Return False if a call has to run, but cannot finish or delays other
        calls."""
        call = self.calls[number]
        if opened.chain != number and not self._stands(opened):  # hidden operations or the chain changed meanwhile
            if (now := self._opened(number)) is None:
                return False
            opened = now
        self.done[number] = opened.when + self.durations[number]
        if call is not None:
            return self._call(number, call, opened)
        if opened.chain != number:
            duration = self.durations[number]
            longest = duration if isinstance(duration, int) else int(most(duration, initial=0))
            times = opened.latest + longest, opened.chain, opened.ahead + longest
            self._hide(Hidden(number, None, opened.when, *times))
        return True

    def _stands(self, opened: Opened) -> bool:
        """Return whether `opened` is still valid: no hidden operation ran since, and its chain did not grow."""
        assert opened.known
        shown, last = opened.known
        return shown == self.shown and self.chains[opened.chain][-1] is last

    def _hide(self, new: Hidden) -> None:
        self.hidden[new.number] = new
        insort(self.until, (new.latest, new.number))
        self.chains.setdefault(new.chain, []).append(new)

    def _call(self, number: int, call: CallProgram, opened: Opened) -> bool:
        """Hide a call (see the module) if it shares no link with others and its end has an upper bound; else run it.
        Return whether it ends and delays no other call."""
        when, first, _, chain, _ = opened

        def meets(late: Hidden) -> bool:
            return late.call is not None and late.chain != chain and bool(np.isin(call.links, late.call.links).any())

        while late := next(filter(meets, self._under_way(first)), None):
            if not self._uncover(late):
                return False
        if chain != number and chain not in self.chains:  # the run of `late` included a part of this chain
            return self._enter(number, opened)
        met = self._met(self.taken, call, first)
        quiet = self._quiet(call, opened) if chain != number and not met else 0
        if quiet:
            self.anew[self.chains[chain][-1].number] = chain = number
            self.done[number] = np.maximum(self.done[number], int(when.max()))  # as all wait for the last rank
        follows = chain != number
        runs = call not in self.ran or (not follows and self.known.alike(call, when - first, self.idle))
        if not met and not runs and call.upper_bound_ps:
            latest = opened.latest + call.upper_bound_ps
            self._hide(Hidden(number, call, when, latest, chain, latest, quiet))
            return True
        if not follows:
            return self._run(number, call, when, self.taken if met else None, quiet) is not None
        return self._uncover(self.chains[chain][-1]) and self._enter(number, opened)

    def _quiet(self, call: CallProgram, opened: Opened) -> int:
        """Return the time in ps by which the early ranks of a call have done all they can before the late ranks come; 0
        if unknown. If the call shares no link with others, its result then does not depend on the arrivals of the early
        ranks."""
        late = opened.when[opened.when > opened.ahead]
        standing = call.quiet_ps(int(opened.when.argmax())) if len(late) else None
        if standing is None:
            return 0
        times = np.empty(len(late) + 1, np.int64)
        times[0], times[1:] = opened.ahead, np.sort(late)
        pauses = np.flatnonzero(times[1:] - times[:-1] > standing)
        return int(times[pauses[-1]]) + standing + 1 if len(pauses) else 0

    def _under_way(self, first: int) -> list[Hidden]:
        """Return the hidden operations that may end at time `first` (ps) or later."""
        return [self.hidden[number] for _, number in self.until[bisect_left(self.until, (first, NONE)) :]]

    def _met(self, taken: Taken, call: CallProgram, first: int) -> bool:
        """Return whether a call that begins at `first` ps finds earlier messages on its links, before or in service."""
        return any(most(column[call.links], initial=0) >= first for column in taken)

    def _uncover(self, late: Hidden) -> bool:
        """Run a hidden call, with all earlier calls of its chain and those later ones whose messages meet its own. All
        other calls on its links ended before it or begin after it. Return whether the calls that ran have ended."""
        chain = self._shown(late.chain)
        wanted, parts = chain.index(late), list[tuple[Before, Taken]]()
        for place, each in enumerate(chain):  # the chain may grow meanwhile
            when = self._begin(each, not place)
            if each.call is not None:
                met = bool(parts) and self._met(parts[-1][1], each.call, int(when.min()))
                if place > wanted and not met:
                    assert each.call.upper_bound_ps
                    latest = min(each.latest, int(when.max()) + each.call.upper_bound_ps)
                    first = each._replace(opened=when, latest=latest, ahead=latest)
                    for left in (first, *chain[place + 1 :]):
                        self._hide(left._replace(chain=each.number))
                    return True
                if not self._part(chain, place, parts, met):
                    return False
            if (behind := self.anew.pop(each.number, NONE)) != NONE:
                if behind in self.chains:
                    chain.extend(late._replace(quiet=0) for late in self._shown(behind))
                elif (call := self.calls[behind]) and self._met(parts[-1][1], call, int(self._since(behind).min())):
                    return False
        return True

    def _shown(self, chain: int) -> list[Hidden]:
        """Remove the operations of a chain from the hidden operations; return them."""
        shown, self.shown = self.chains.pop(chain), self.shown + 1
        for each in shown:
            del self.hidden[each.number]
            del self.until[bisect_left(self.until, (each.latest, each.number))]
        return shown

    def _begin(self, each: Hidden, first: bool) -> Numbers:
        """Record when an operation of a chain begins; return the start of each rank in ps. No predecessor is hidden."""
        when = each.opened if first else self._since(each.number)
        self.done[each.number] = when + self.durations[each.number]
        self.last = max(self.last, int(most(self.done[each.number], initial=0)))
        return when

    def _part(self, chain: list[Hidden], last: int, parts: list[tuple[Before, Taken]], met: bool) -> bool:
        """Run the operation at position `last` of a chain. If its messages meet messages of the operations before it,
        they run together as one program. Return whether they end and meet no message from before the chain."""
        before = Before(last, met, self.taken.copied(), self.owner.copy(), self.last)
        while True:
            ahead = parts[-1][1] if before.met else None
            taken = self._together(chain[before.place : last + 1], not before.place, ahead)
            if taken is not None:
                parts.append((before, taken))
                return True
            if ahead is None:
                return False
            before, _ = parts.pop()
            self.taken, self.owner, self.last = before.taken.copied(), before.owner.copy(), before.last

    def _together(self, chain: Sequence[Hidden], first: bool, before: Taken | None) -> Taken | None:
        """Run consecutive operations of a chain as one program. Return when the run leaves each link, or None as `_run`
        does. `first`: whether they are the first operations of the chain."""
        opened = [self._begin(each, first and not place) for place, each in enumerate(chain)]
        call, ranks = chain[0].call, self.operations[chain[0].number].ranks
        if len(chain) == 1 and call:
            return self._run(chain[0].number, call, opened[0], before, chain[0].quiet)
        key = self._key(chain)
        if key not in self.joined:
            if sum(each.call.transfers for each in chain if each.call) > MOST_JOINED:
                return None
            operations = list[Operation]()
            for of, after in key:
                operations.append(Operation(ranks))
                behind = len(operations) - 1, *(2 * place + 1 for place in after)
                operations.append(Operation(ranks, of.program if of else None, 0, behind))
            if sum(map(len, self.joined.values())) > MOST_JOINED:
                self.joined.clear()
            self.joined[key] = join(operations, len(self.place), self.network)
        start = int(opened[0].min())
        took = [np.broadcast_to(self.durations[each.number], len(ranks)) for each in chain]
        both = [column for pair in zip((when - start for when in opened), took, strict=True) for column in pair]
        program = self.joined[key]
        assert program.tasks
        tasks = replace(program.tasks, duration=np.concatenate(both).astype(np.int64))
        ends = fast.ends(replace(program, tasks=tasks), self._busy(before, start))
        if ends is None or (taken := self._take(ends, start, chain[-1].number, before, chain[0].quiet)) is None:
            return None
        for each, done in zip(chain, ends.done.reshape(-1, len(ranks))[1::2], strict=True):
            self.done[each.number] = done + start
        return taken

    def _key(self, chain: Sequence[Hidden]) -> tuple[tuple[CallProgram | None, tuple[int, ...]], ...]:
        """Return a key for the joined program of some operations of a chain: for each operation its call, and the
        positions in `chain` of the operations that it waits for."""
        place = {each.number: i for i, each in enumerate(chain)}
        after = (self.operations[each.number].after for each in chain)
        waits = (tuple(place[before] for before in numbers if before in place) for numbers in after)
        return tuple(zip((each.call for each in chain), waits, strict=True))

    def _run(
        self, number: int, call: CallProgram, opened: Numbers, before: Taken | None, quiet: int = 0
    ) -> Taken | None:
        """Run a call by itself and return when it leaves each link. Return None if it does not end, or if it meets
        messages that were on its links `before` it began. `quiet`: see `Hidden`."""
        first = int(opened.min())
        self.ran.add(call)
        alone = self.known.alone(call, opened - first, self._busy(before, first))
        if alone is None or (took := self._take(alone, first, number, before, quiet)) is None:
            return None
        np.maximum(self.done[number], alone.done + first, out=self.done[number])
        return took

    def _busy(self, before: Taken | None, first: int) -> Numbers:
        """Return how long each link is busy with the messages in `before`, in ps after the time `first`."""
        return self.idle if before is None else np.maximum(before.free - first, 0)

    def _take(self, ends: fast.CallEnds, first: int, number: int, before: Taken | None, quiet: int) -> Taken | None:
        """Update the links with the `ends` of a run that began at `first` ps, and return when the run leaves each link.
        Return None if it meets messages that were on the links `before` it began."""
        head, uses = ends.first + first, ends.last > -NEVER
        if before is not None:
            late = before is self.taken and (head == before.came) & (self.owner > number)
            if ((head < before.came) | late)[uses].any():
                return None
        came = np.maximum(ends.last + first, quiet)
        took = Taken(np.where(uses, came, -NEVER), np.where(uses, ends.free + first, 0))
        uses &= took.came >= self.taken.came  # a link with later messages keeps its times
        for column, new in zip(self.taken, took, strict=True):
            column[uses] = new[uses]
        self.owner[uses] = number
        self.last = max(self.last, ends.over + first)
        return took


def _apart(calls: Sequence[CallProgram | None], network: RoutedNetwork) -> bool:
    """Return whether calls may run separately: with `fifo` sharing, without barriers or blocking sends, and on the same
    links as `network`."""
    bound = list({id(call): call for call in calls if call is not None}.values())
    params = [call.params for call in bound]
    alone = all(p.sharing == "fifo" and not p.barrier and p.blocking == "no" for p in params)
    names = [call.network.link_names for call in bound]
    return alone and all(each is network.link_names or each == network.link_names for each in names)
