"""Many runs of one program that differ in numbers only: sizes, rates, latencies, overheads, arrivals.

The replay of `fast`, with a vector of all rows in place of each number: one pass over the transfers serves them all.
Whether the order of transfers is that of time is checked for each row by itself. Of rows of which it is not one is run
alone, and the order of its events is tried for the others; a row that went in no known order, and every program that
cannot be replayed, is run alone. So each row is what `run` gives, by `==`.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import numpy as np

from simcoll.config.arrays import Array, Numbers
from simcoll.engine._row_replay import OWN_ORDER, EventOrder, ReplayNumbers, RowReplay, events_of
from simcoll.engine.program import Program, totals_of
from simcoll.engine.run import MOST_HELD, Outcome, Policy, run
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import NEVER, service_ps
from simcoll.errors import InputError, SimcollError

T = TypeVar("T")

LEAST: Final = 4  # rows: fewer are quicker one by one
MOST_CELLS: Final = 500_000  # transfers times rows that are held at a time: 4 MB a column
MOST_SMALL: Final = 20_000  # transfers: of longer programs a run takes longer than all around it
MOST_ORDERS: Final = 6  # of the events of one program that are remembered
MOST_IN_VAIN: Final = 3  # to try an order costs about as much as a run
MOST_ROWS: Final = 1024  # beyond, vectors are as quick as they get


class AskedRun(NamedTuple):
    """A program, and how it is to be run."""

    program: Program
    policy: Policy = Policy()


Failure = SimcollError | MemoryError  # of a run
RunSteps = Generator[AskedRun, Outcome, T]
"""Work that asks for runs, one after the other, and gives a result; of several works alike runs are made together."""


def answered(steps: RunSteps[T]) -> T:
    """The result of steps whose runs are made one by one. Raises what these raise, and SimcollError of runs."""
    try:
        asked = next(steps)
        while True:
            answer = _alone(*asked)
            asked = steps.throw(answer) if isinstance(answer, Failure) else steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


def all_answered(every: Iterable[RunSteps[T]]) -> list[T]:
    """The results of several steps, of which none raises; each begins when it comes. Alike runs are made together,
    those that may not be alike when they are asked for."""
    results: dict[int, T] = {}
    waiting: dict[int, tuple[RunSteps[T], AskedRun]] = {}

    def go_on(number: int, steps: RunSteps[T], answer: Outcome | Failure | None) -> None:
        try:
            while True:
                if isinstance(answer, Failure):
                    asked = steps.throw(answer)
                else:
                    asked = next(steps) if answer is None else steps.send(answer)
                if _small(*asked):
                    waiting[number] = steps, asked
                    return
                answer = _alone(*asked)
        except StopIteration as done:
            results[number] = done.value

    for number, steps in enumerate(every):
        go_on(number, steps, None)
    while waiting:
        numbers, asking = list(waiting), list(waiting.values())
        waiting.clear()
        answers = run_all([asked for _, asked in asking])
        for number, (steps, _), answer in zip(numbers, asking, answers, strict=True):
            go_on(number, steps, answer)
    return [results[number] for number in sorted(results)]


def run_all(asked: Sequence[AskedRun]) -> list[Outcome | Failure]:
    """The outcome of each run, or the error that it raises; programs that are alike are run together."""
    found: dict[int, Outcome | Failure] = {}
    groups: dict[tuple[Hashable, ...], list[int]] = {}
    for number, (program, policy) in enumerate(asked):
        if _may_replay(program, policy):
            timed = policy.keep != "totals" and (policy.keep != "auto" or len(program) <= MOST_HELD)
            groups.setdefault((*_structure(program), timed), []).append(number)
    for (*_, kept), members in groups.items():
        size = max(1, min(MOST_ROWS, MOST_CELLS // len(asked[members[0]].program)))
        for first in range(0, len(members), size):
            block = members[first : first + size]
            if len(block) >= LEAST:
                found.update(_together({number: asked[number] for number in block}, kept is True))
    return [found[number] if number in found else _alone(*each) for number, each in enumerate(asked)]


def _together(asked: Mapping[int, AskedRun], kept: bool) -> dict[int, Outcome | Failure]:
    """Outcomes of alike runs: in the order of the program, or in one in which another such run went. The first of those
    that go in no known order is run alone, and its order is tried for the others."""
    first = next(iter(asked.values())).program
    orders: list[EventOrder] = first.once("orders", (first.way,), list)
    tried, found, left = [OWN_ORDER, *orders], dict[int, Outcome | Failure](), dict(asked)
    in_vain, new = 0, False  # new orders, one after the other, in which no other row went; whether this one is new
    while len(left) >= LEAST and tried:
        rows = _Rows([program for program, _ in left.values()], kept).outcomes(tried.pop(0))
        right = {number: row for number, row in zip(left, rows, strict=True) if row}
        found |= right
        left = {number: each for number, each in left.items() if number not in right}
        in_vain = in_vain + 1 if new and not right else 0
        if not tried and len(left) > LEAST and not first.params.barrier and in_vain < MOST_IN_VAIN:
            number = next(iter(left))
            program, policy = left.pop(number)
            found[number] = alone = _alone(program, replace(policy, keep="hops"))
            if isinstance(alone, Outcome) and alone.kept and alone.engine == "fast":
                orders.append(events_of(program, alone.kept, alone.totals.shortcut))
                tried, new = [orders[-1]], True
                del orders[:-MOST_ORDERS]
                found[number] = alone if kept else Outcome(alone.engine, alone.totals)
    return found


def makespans_ps(programs: Sequence[Program]) -> list[int | Failure]:
    """The end of each program, in ps, or the error that running it raises; programs that are alike are run together."""
    outcomes = run_all([AskedRun(program, Policy(keep="totals")) for program in programs])
    return [each if isinstance(each, Failure) else each.totals.makespan_ps for each in outcomes]


def _alone(program: Program, policy: Policy) -> Outcome | Failure:
    try:
        return run(program, policy)
    except (SimcollError, MemoryError) as error:  # of this row alone
        return error


def _small(program: Program, policy: Policy) -> bool:
    """Whether it is worth while to wait for others that are alike."""
    return len(program) <= MOST_SMALL and _may_replay(program, policy)


def _may_replay(program: Program, policy: Policy) -> bool:
    """Whether a replay may serve: the conditions of `fast`."""
    if not policy.shortcuts or policy.engine != "auto":
        return False
    apart = program.tasks or program.changes or program.part is not None or program.params.blocking != "no"
    return not apart and len(program) > 0 and bool(program.bandwidths[program.taken].all())


def _structure(program: Program) -> tuple[Hashable, ...]:
    """The columns that programs share which are run together, and not only what stands in them; and their rules."""
    shared = program.way, program.kind, program.routes.links, program.reads, program.credit, program.channel_before
    params = program.params
    return *map(id, shared), params.sharing, params.barrier, params.slots


class _Rows:
    """Programs that share their columns; numbers are vectors with an entry for each of them."""

    def __init__(self, programs: Sequence[Program], kept: bool):
        self.kept = kept  # whether times are
        self.programs, self.first, self.count = programs, programs[0], len(programs)
        self.used = self.first.taken

    def outcomes(self, order: EventOrder) -> list[Outcome | None]:
        """The outcome of each row; None where events come in another order, or where the clock might run out."""
        nothing: list[Outcome | None] = [None] * self.count
        try:
            service, caps, gammas = self._services()
        except InputError:  # beyond the clock: each row says so for itself
            return nothing
        latencies = np.stack([program.latencies[self.used] for program in self.programs], axis=1)
        overheads = [self._column(name) for name in ("o_send", "o_recv", "g")]
        arrivals = np.stack([program.arrivals for program in self.programs], axis=1)
        # in floats: what is too much for the clock may be too much for 64 bits as well
        columns = (service.reshape(-1, self.count), caps, gammas, latencies, np.stack(overheads))
        once = float(sum(column.max(axis=0, initial=0).astype(float).max() for column in columns))
        hops = int(np.diff(self.first.routes.hop).max(initial=1)) + 2
        if once * hops * len(self.first) + float(arrivals.max(initial=0)) >= NEVER:
            return nothing
        numbers = ReplayNumbers(service, caps, gammas, latencies, arrivals, *overheads)
        replay = RowReplay(self.first, self.used, self.kept, numbers)
        latest, in_order = replay.run(order)
        if not in_order.any():
            return nothing
        totals = totals_of(self.programs, latest.tolist(), order.shortcut)
        if not self.kept:
            return [Outcome("fast", sums) if right else None for sums, right in zip(totals, in_order, strict=True)]
        times = zip(*(column.T.copy() for column in replay.times), strict=True)
        rows = zip(self.programs, totals, times, in_order, strict=True)
        return [
            Outcome("fast", sums, Timeline(*each), program) if right else None for program, sums, each, right in rows
        ]

    def _column(self, name: str) -> Numbers:
        return np.array([getattr(program.params, name) for program in self.programs], np.int64)

    def _services(self) -> tuple[Numbers, Numbers, Numbers]:
        """The time of each size on each used link, (sizes, links, rows); by a channel's cap, and to be reduced,
        (sizes, rows), 0 where that is free."""
        sent = np.bincount(self.first.kind, minlength=len(self.first.sizes)) > 0
        service = np.zeros((len(sent), len(self.used), self.count), np.int64)
        caps, gammas = (np.zeros((len(sent), self.count), np.int64) for _ in range(2))
        known: dict[int, tuple[Array, Array]] = {}
        for row, program in enumerate(self.programs):
            if id(program.bandwidths) not in known:
                known[id(program.bandwidths)] = np.unique(program.bandwidths[self.used], return_inverse=True)
            rates, which = known[id(program.bandwidths)]
            for kind in np.flatnonzero(sent).tolist():
                size = int(program.sizes[kind])
                service[kind, :, row] = np.array([service_ps(size, rate) for rate in rates.tolist()])[which]
                for column, rate in ((caps, program.params.channel_bandwidth), (gammas, program.params.gamma)):
                    column[kind, row] = service_ps(size, rate) if rate else 0
        return service, caps, gammas
