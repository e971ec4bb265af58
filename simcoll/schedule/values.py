"""Work a schedule with numbers: what each rank holds before the first step and after each step.

The steps are those that `proof` proves and that engines time. Within a step all transfers read before any of them
writes; several writes to one slot apply in the order of the schedule.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.errors import InputError, did_you_mean
from simcoll.schedule.collectives import ALSO, NOTHING, OPERATORS, collective, contracts, cut_slots, promised, scaled
from simcoll.schedule.proof import Places, check_shape, moves, never_put
from simcoll.schedule.schedule import Schedule

Values = NDArray[Any]
MOST_CELLS: Final = 2_000_000  # (participant, slot) pairs, and numbers, of all states together
LARGEST: Final = 10**15  # of the numbers that ranks hand in: sums of many of them stay exact
_TWICE: Final = ("min", "max", "band", "bor")  # operators for which a contribution may count several times
_FORM: Final = "write a list of numbers for each rank, e.g. '[[1,2,3],[4,5,6]]', or random"


class Arrival(NamedTuple):
    """What a step writes into a slot: the `terms` that are reduced, in order, and the ranks that sent them. The first
    term is what the slot held, if it is reduced into. A single term is stored."""

    terms: list[Values]
    senders: list[int]


@dataclass(frozen=True)
class State:
    """What all participants hold after a step. `held`: by participant and slot the numbers, or None if there are none.
    `came`: what the step wrote, by participant and slot."""

    held: list[list[Values | None]]
    came: dict[tuple[int, int], Arrival]


def operator(name: str, op: str | None) -> str:
    """Return the operator of a collective: `op`, or by default `sum`, and for a barrier `max`, which does not mind
    counting a rank twice. Raises InputError for an unknown or useless operator."""
    contract = collective(name)
    op = ALSO.get(op or "", op)
    if op is None:
        return "max" if contract.at_least_once else "sum"
    if op not in OPERATORS:
        raise InputError(f"--op: {op!r} is no operator", did_you_mean(op, OPERATORS))
    if not contract.reduces:
        raise InputError(f"--op: {name} reduces nothing", "leave out --op")
    if contract.at_least_once and op not in _TWICE:
        raise InputError(f"--op: a {name} may count a rank twice, which changes a {op}", f"take {', '.join(_TWICE)}")
    return op


def worked(schedule: Schedule, rows: object, op: str | None = None) -> list[State]:
    """Return the states of a schedule: one before the first step, one after each step, and the end (see `finished`).

    `rows` and `op` are those of `states`. Raises InputError.

    >>> from simcoll import build
    >>> [state.held[0][0].tolist() for state in worked(build("all_reduce", "naive", 2), [[1, 2], [3, 4]])]
    [[1, 2], [4, 6], [4, 6], [4, 6]]
    """
    op = operator(schedule.collective, op)
    cells = (schedule.n_steps + 1) * schedule.participants * schedule.n_slots
    if cells > MOST_CELLS:
        raise InputError(f"--values: {schedule.n} ranks hold {cells} chunks in all steps", "take fewer ranks")
    handed = handed_in(schedule, rows, op)
    if (schedule.n_steps + 1) * schedule.participants * len(handed[0]) > MOST_CELLS:
        raise InputError("--values: too many numbers to show after each step", "give fewer numbers, or fewer ranks")
    with np.errstate(all="ignore"):
        found = list(played(schedule, handed, op))
    made = (state.held[participant][slot] for state in found for participant, slot in state.came)
    if not all(abs(number) <= sys.float_info.max for numbers in made if numbers is not None for number in numbers):
        raise InputError(f"--values: a {op} of them is beyond the range of numbers", "give smaller numbers")
    return [*found, finished(schedule, found[-1], op)]


def states(schedule: Schedule, values: object = "random", op: str | None = None) -> list[list[list[Any]]]:
    """Return the buffer of each rank before the first step of a schedule, and after each step, as lists of numbers.

    `values` has a list of numbers for each rank, its buffer; for all_gather and gather a rank's own block; for
    broadcast and scatter the root's list is enough. `random`: numbers from 0 to 9, one for each chunk. None
    stands where a number is undefined. `op` is sum by default; averages are divided in the last state. Raises
    InputError.

    >>> from simcoll import build
    >>> states(build("all_reduce", "naive", 2), [[1, 2], [3, 4]])
    [[[1, 2], [3, 4]], [[4, 6], [3, 4]], [[4, 6], [4, 6]]]
    """
    return buffers(schedule, worked(schedule, values, op))


def buffers(schedule: Schedule, found: Sequence[State]) -> list[list[list[Any]]]:
    """Return the buffers of all ranks, as `states` does, from what `worked` returns."""
    rows = (
        [state.held[rank][: schedule.n_chunks] for rank in range(schedule.n)] for state in [*found[:-2], *found[-1:]]
    )
    return [[[each for part in row if part is not None for each in part.tolist()] for row in state] for state in rows]


def played(schedule: Schedule, handed: Sequence[Values], op: str, weights: object = None) -> Iterator[State]:
    """Yield the states of a schedule of the whole buffers `handed` in, one 1-D array a rank, of one length and type.

    Buffers are as long as `size` counts them, so that a rank's block of an all_gather stands at its place. `op` is
    a key of OPERATORS. Raises ScheduleError if a step sends what was never put there.
    """
    check_shape(schedule)
    places, before = Places(schedule, None), np.nonzero(contracts(schedule, "before")[..., 0] != NOTHING)
    defined = np.zeros(len(places), np.bool_)
    defined[places.of(*before)] = True
    held: list[Values | None] = [None] * len(places)
    for rank, slices in cut_slots(schedule, len(handed[0]), weights).items():
        into = places.of(np.full(len(slices), rank), np.arange(len(slices))).tolist()
        for at, part in zip(into, slices, strict=True):
            held[at] = handed[rank][part]

    def state(came: dict[int, Arrival]) -> State:
        width = schedule.n_slots
        rows = [held[at : at + width] for at in range(0, len(held), width)]
        return State(rows, {divmod(at, width): arrival for at, arrival in came.items()})

    reached, last = 0, state({})
    for number, step, read, write in moves(schedule, None, places):
        yield from [last, *[state({})] * (number - reached)]
        if not defined[read].all():
            raise never_put(schedule, number, step, int(np.flatnonzero(~defined[read])[0]))
        sent, came = [held[at] for at in read.tolist()], dict[int, Arrival]()
        for at, term, reduce, sender in zip(write.tolist(), sent, step.reduce.tolist(), step.src.tolist(), strict=True):
            old = held[at] if reduce and defined[at] else None
            if old is None or at not in came:
                came[at] = Arrival([] if old is None else [old], [])
            came[at].terms.append(term)
            came[at].senders.append(sender)
            held[at], defined[at] = term if old is None else OPERATORS[op](old, term), True
        reached, last = number + 1, state(came)
    yield last


def finished(schedule: Schedule, state: State, op: str) -> State:
    """Return the state at the end: the last one, its sums divided by the number of ranks if `op` is `avg`."""
    held = [list(row) for row in state.held]
    for rank in range(schedule.n) if op == "avg" else ():
        for slot in promised(schedule, rank):
            if (numbers := held[rank][slot]) is not None:
                dtype = np.dtype(np.float64) if numbers.dtype == object else numbers.dtype
                held[rank][slot] = scaled(schedule, rank, numbers, dtype, op)
    return State(held, {})


# --- what ranks hand in ---


def handed_in(schedule: Schedule, rows: object, op: str) -> list[Values]:
    """Return the whole buffer of each rank, an array of Python numbers, from the numbers that ranks hand in (see
    `worked`). None stands for a number that nobody hands in."""
    owned = contracts(schedule, "before")[..., 0] != NOTHING
    shares = owned.sum(axis=1)
    if isinstance(rows, str) and rows == "random":
        rows = np.random.default_rng(0).integers(0, 10, (schedule.n, int(shares.max()))).tolist()
    lists = _numbers(schedule.n, rows, np.flatnonzero(shares).tolist())
    if op in ("band", "bor", "bxor") and not all(
        isinstance(number, int) for numbers in lists for number in numbers or ()
    ):
        raise InputError(f"--values: {op} works on whole numbers only", "give whole numbers, or another --op")
    length = next(len(numbers) for numbers in lists if numbers is not None)
    whole = length * schedule.n_chunks // int(shares.max())
    cuts = cut_slots(schedule, whole)
    found = [np.full(whole, None, object) for _ in range(schedule.n)]
    for rank, (numbers, into) in enumerate(zip(lists, found, strict=True)):
        if numbers is None or rank not in cuts:
            continue
        own = np.flatnonzero(owned[rank]).tolist() or range(schedule.n_chunks)
        at = np.concatenate([np.arange(whole)[cuts[rank][slot]] for slot in own])
        into[at] = numbers
    return found


def _numbers(n: int, rows: object, owners: list[int]) -> list[Any]:
    """Return a list of numbers for each of n ranks, all as long; None for a rank that hands in none. `owners` must hand
    in some; a single list is that of a single owner. Raises InputError."""
    given: Any = list(rows) if isinstance(rows, list | tuple | np.ndarray) else None
    if given is None:
        raise InputError(f"--values: {short(rows)} is no list of ranks", _FORM)
    if len(given) == len(owners) == 1:
        given = [given[0] if rank in owners else None for rank in range(n)]
    if len(given) != n:
        many = f"{len(given)} list{'s' * (len(given) != 1)}"
        raise InputError(f"--values: {many} of numbers for {n} ranks", f"give {n} lists")
    lists = [None if row is None and rank not in owners else _row(row, rank) for rank, row in enumerate(given)]
    wanted = len(lists[owners[0]] or ())
    for rank, row in enumerate(lists):
        if row is not None and len(row) != wanted:
            problem = f"rank {rank} has {len(row)} numbers, and rank {owners[0]} has {wanted}"
            raise InputError(f"--values: {problem}", "give all ranks as many numbers")
    return lists


def _row(row: object, rank: int) -> list[Any]:
    """Return the numbers of a list, or of lists of one length, as one list; raises InputError for anything else."""
    numbers = np.array(row, object).ravel().tolist() if isinstance(row, list | tuple | np.ndarray) else []
    if not numbers:
        raise InputError(f"--values: rank {rank}: {short(row)} is no list of numbers", _FORM)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= LARGEST:
            raise InputError(f"--values: rank {rank}: {short(number)} is no number from -10^15 to 10^15", _FORM)
    return numbers


# --- numbers in words ---


def named_slots(schedule: Schedule) -> dict[int, str]:
    """Return the slots of a schedule with their names: its chunks, and the scratch that it uses.

    >>> from simcoll import build
    >>> named_slots(build("all_reduce", "ring", 2))
    {0: 'chunk 0', 1: 'chunk 1'}
    """
    used = np.unique(schedule.by_slot().dst_slot)
    scratch = used[used >= schedule.n_chunks].tolist()
    return {s: f"chunk {s}" for s in range(schedule.n_chunks)} | {s: f"scratch {s}" for s in scratch}


def number_text(number: int | float | None) -> str:
    """Return a number as text, with at most 6 digits if it is no whole number; `·` if it is undefined.

    >>> number_text(12.0), number_text(1 / 3), number_text(None)
    ('12', '0.333333', '·')
    """
    if number is None:
        return "·"
    return str(int(number)) if number == int(number) and abs(number) < 10 * LARGEST else f"{number:.6g}"


_SIGNS: Final = {"sum": "+", "avg": "+", "product": "×", "band": "&", "bor": "|", "bxor": "^"}


def terms_text(op: str, terms: Sequence[int | float]) -> str:
    """Return numbers that are reduced, as a formula.

    >>> terms_text("sum", [1, 4, -2]), terms_text("max", [1, 4])
    ('1+4-2', 'max(1,4)')
    """
    texts = list(map(number_text, terms))
    return _SIGNS[op].join(texts).replace("+-", "-") if op in _SIGNS else f"{op}({','.join(texts)})"


def slot_text(op: str, state: State, participant: int, slot: int) -> str:
    """Return what a slot holds: its numbers with spaces between them. Numbers that the step stored stand behind `▸`;
    numbers that it reduced are written out: `1+4`."""
    numbers = state.held[participant][slot]
    arrival = state.came.get((participant, slot))
    if numbers is None or not len(numbers):
        return ""
    if arrival is None:
        return " ".join(map(number_text, numbers.tolist()))
    if len(arrival.terms) == 1:
        return "▸" + " ".join(map(number_text, arrival.terms[0].tolist()))
    columns = zip(*(term.tolist() for term in arrival.terms), strict=True)
    return " ".join(terms_text(op, column) for column in columns)
