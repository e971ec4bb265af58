"""Schedules as JSON files, which `simcoll show --json` and `import` write, and scenarios and `simcoll verify` read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr, ValidationError

from simcoll.config import input_files
from simcoll.config.lru import LruCache
from simcoll.errors import InputError, ScheduleError
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import Schedule

Run = tuple[int, int]  # the first of some neighbouring slots, and their number

MOST_BYTES: Final = 64 * 2**20  # to bound memory; about two million transfers
MOST: Final = 10**8  # most (rank, chunk) pairs of a schedule from a file
# Cache of schedules, as a file of a million transfers takes seconds to read, and each point of a sweep needs it. The
# limit is in rows of 26 bytes each.
_RECENT: Final[LruCache[Schedule]] = LruCache(4_000_000, len)


FORM: Final = (
    "[step, sender, its slots, receiver, its slots, 0 or 1 to reduce], where slots are a number, [first, how many] or "
    "a list of such pairs; a list of the devices on its route may follow"
)
_Slots = StrictInt | tuple[StrictInt, StrictInt] | list[tuple[StrictInt, StrictInt]]  # slot, run, runs


_Plain = tuple[StrictInt, StrictInt, _Slots, StrictInt, _Slots, Literal[0, 1, False, True]]
_Routed = tuple[StrictInt, StrictInt, _Slots, StrictInt, _Slots, Literal[0, 1, False, True], tuple[StrictStr, ...]]


class _File(BaseModel):
    """The keys of a schedule file. A transfer is (step, src, src_slots, dst, dst_slots, reduce), where slots are one
    number, a run (first slot, number of slots), or a list of runs. It may end with its route: the names of all devices
    on it."""

    collective: StrictStr
    algorithm: StrictStr
    ranks: StrictInt = Field(ge=1, le=MOST)
    n_chunks: StrictInt = Field(ge=1, le=MOST)
    agents: StrictInt = Field(0, ge=0, le=MOST)
    root: StrictInt = Field(0, ge=0)
    pipelined: StrictBool = False
    transfers: list[_Plain | _Routed]


class Traffic(NamedTuple):
    """What ranks send and receive: the number of messages that the busiest rank sends, and the data as shares of the
    collective's size, on average and of the busiest rank."""

    messages: int
    sent_mean: Fraction
    sent_most: Fraction
    received_mean: Fraction
    received_most: Fraction


def traffic(schedule: Schedule) -> Traffic:
    """Return what the ranks of a schedule send and receive; switches that reduce do not count."""
    held, n = collective(schedule.collective), schedule.n
    nbytes = schedule.n_chunks * n
    each = int(held.sizes(nbytes, n, schedule.n_chunks, schedule.root).max(initial=0))
    away = schedule.src != schedule.dst
    shares: list[Fraction] = []
    for end in (schedule.src, schedule.dst):
        moved = np.bincount(end[away], schedule.count[away], minlength=n)[:n].astype(np.int64)
        shares += [Fraction(int(moved.sum()) * each, nbytes * n), Fraction(int(moved.max()) * each, nbytes)]
    messages = np.bincount(schedule.src[away & ~schedule.joins], minlength=n)[:n]
    return Traffic(int(messages.max()), *shares)


def counts(schedule: Schedule) -> dict[str, Any]:
    """Return the numbers of steps and messages, and shares of the collective's size that ranks send and receive."""
    found = traffic(schedule)
    shares = {name: float(value) for name, value in found._asdict().items() if isinstance(value, Fraction)}
    return {
        "steps": schedule.n_steps,
        "messages": schedule.messages,
        "bytes_per_rank_fraction": float(found.sent_most),
        "messages_per_rank": found.messages,
        **shares,
    }


def dump(schedule: Schedule, **more: object) -> str:
    """Return a schedule as JSON, with `more` keys at its end."""
    extra = {"agents": schedule.agents} if schedule.agents else {}
    extra |= {"root": schedule.root} if schedule.root else {}
    extra |= {"pipelined": True} if schedule.pipelined else {}
    return json.dumps(
        {
            "collective": schedule.collective,
            "algorithm": schedule.algorithm,
            "ranks": schedule.n,
            "n_chunks": schedule.n_chunks,
            **extra,
            "counts": counts(schedule),
            "transfers": list(_transfers(schedule)),
            **more,
        }
    )


def _transfers(schedule: Schedule) -> Iterator[tuple[Any, ...]]:
    """Yield each transfer as `_File` has it."""
    for rows in np.split(np.arange(len(schedule)), schedule.heads[1:]) if len(schedule) else ():
        step, src, _, dst, _, reduce = (column[rows[0]].item() for column in schedule.columns[:6])
        route = schedule.route[rows[0]]
        own = (schedule.routes[route],) if route >= 0 else ()
        read, written = (_slots(slot[rows], schedule.count[rows]) for slot in (schedule.src_slot, schedule.dst_slot))
        yield step, src, read, dst, written, reduce, *own


def _slots(first: NDArray[Any], count: NDArray[Any]) -> int | list[int] | list[list[int]]:
    """Return slots as a number, a run or a list of runs."""
    runs: list[list[int]] = np.stack([first, count], axis=1).tolist()
    if len(runs) > 1:
        return runs
    return runs[0] if runs[0][1] > 1 else runs[0][0]


def _schedule(found: _File) -> Schedule:
    """Return the schedule; raises ScheduleError if a transfer writes other runs than it reads, or no slot."""
    rows, route, routes, moved = list[tuple[int, ...]](), list[int](), dict[tuple[str, ...], int](), 0
    for number, (step, src, read, dst, written, reduce, *own) in enumerate(found.transfers):
        runs = [_runs(slots) for slots in (read, written)]
        counts = [[count for _, count in run] for run in runs]
        if counts[0] != counts[1]:
            raise ScheduleError(f"transfer {number} reads runs of {counts[0]} slots, but writes runs of {counts[1]}")
        if min(counts[0], default=0) < 1:
            raise ScheduleError(f"transfer {number} moves runs of {counts[0]} slots; each must have at least one")
        if (moved := moved + sum(counts[0])) > MOST:
            raise ScheduleError(f"its transfers move more than {MOST} slots")
        for place, ((src_slot, count), (dst_slot, _)) in enumerate(zip(*runs, strict=True)):
            rows.append((step, src, src_slot, dst, dst_slot, reduce, count, place > 0))
            route.append(routes.setdefault(own[0], len(routes)) if own else -1)
    fields = found.model_dump(exclude={"transfers", "ranks"})
    return Schedule.from_rows(rows, n=found.ranks, route=np.array(route, np.int32), routes=tuple(routes), **fields)


def _runs(slots: _Slots) -> Sequence[Run]:
    """Return the runs of what `_slots` returns."""
    if isinstance(slots, int):
        return [(slots, 1)]
    return [slots] if isinstance(slots, tuple) else slots


SUFFIX: Final = ".json"  # an algorithm with this ending is a file
_numbers: Final = itertools.count()


class MadeSchedule(str):
    """A schedule that was made in memory, where the name of a file is expected. No two have equal names."""

    schedule: Schedule

    @classmethod
    def of(cls, schedule: Schedule) -> MadeSchedule:
        """Return the name of a schedule, which `read` takes."""
        made = cls(f"{schedule.algorithm}-{next(_numbers)}{SUFFIX}")
        made.schedule = schedule
        return made


def is_file(algorithm: str) -> bool:
    """Return whether the name of an algorithm is the path of a schedule file."""
    return algorithm.endswith(SUFFIX)


def text(path: str) -> str:
    """Return the text of a schedule file (see `input_files.bytes_of`), or the name of a schedule that was made; raises
    InputError."""
    if isinstance(path, MadeSchedule):
        return str(path)
    cure = "give the path of a schedule as `simcoll import` writes it"
    data = input_files.bytes_of(Path(path), cure, MOST_BYTES, "give a schedule of fewer ranks")
    return data.decode("utf-8", errors="replace")


def read(path: str) -> Schedule:
    """Return the schedule of a file; raises InputError."""
    if isinstance(path, MadeSchedule):
        return path.schedule
    contents = text(path)
    return _RECENT.get((path, contents), lambda: parse(contents, path))


def looks(text: str) -> bool:
    """Return whether a JSON text has a schedule's keys."""
    return '"transfers"' in text and '"n_chunks"' in text


def parse(text: str, source: str) -> Schedule:
    """Return the schedule of JSON that `dump` wrote; raises InputError that names the mistake."""
    document = input_files.json_mapping(text, source, "give what `simcoll show --json` prints")
    try:
        found = _File.model_validate(document)
        collective(found.collective)
        if found.root >= found.ranks or found.ranks * found.n_chunks > MOST:
            raise ScheduleError(f"its root is none of its ranks, or it has more than {MOST} chunks")
        return _schedule(found)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"][0] == "transfers" and len(first["loc"]) > 1:  # what pydantic says names each form of slots
            raise InputError(f"{source}:1:1: transfers.{first['loc'][1]} is no transfer", f"write {FORM}") from None
        key = ".".join(map(str, first["loc"]))
        raise InputError(f"{source}:1:1: {key}: {first['msg']}", "see `simcoll show --json`") from None
    except (ScheduleError, ValueError, OverflowError) as error:
        raise InputError(f"{source}:1:1: {error}") from None
