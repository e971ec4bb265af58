"""Schedules as JSON files, which `simcoll show --json` and `import` write, and scenarios and `simcoll verify` read."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np

from simcoll.config import input_files
from simcoll.config.lru import LruCache
from simcoll.errors import InputError, ScheduleError
from simcoll.schedule.collectives import collective
from simcoll.schedule.schedule import Schedule

MOST_BYTES: Final = 64 * 2**20  # to bound memory; about two million transfers
MOST: Final = 10**8  # most (rank, chunk) pairs of a schedule from a file
_KEYS: Final = {"collective": str, "algorithm": str, "ranks": int, "n_chunks": int, "transfers": list}
_WORDS: Final = {str: "text", int: "number", list: "list"}
_WHENCE: Final = "see `simcoll show --json`"
# Cache of schedules, as a file of a million transfers takes seconds to read, and each point of a sweep needs it. The
# limit is in transfers of 21 bytes each.
_RECENT: Final[LruCache[Schedule]] = LruCache(4_000_000, len)


def sent_fraction(schedule: Schedule) -> Fraction:
    """Return the largest share of the collective's size that any rank sends."""
    held = collective(schedule.collective)
    nbytes = schedule.n_chunks * schedule.n
    sizes = held.sizes(nbytes, schedule.n, schedule.n_chunks, schedule.root)
    each = int(sizes.max(initial=0))
    away = (schedule.src != schedule.dst) & (schedule.src < schedule.n)
    most = int(np.bincount(schedule.src[away], minlength=1).max())
    return Fraction(most * each, nbytes)


def counts(schedule: Schedule) -> dict[str, Any]:
    """Return the numbers of steps and messages, and the largest share of the collective's size that any rank sends."""
    return {
        "steps": schedule.n_steps,
        "messages": schedule.messages,
        "bytes_per_rank_fraction": float(sent_fraction(schedule)),
    }


def dump(schedule: Schedule) -> str:
    """Return a schedule as JSON."""
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
            "transfers": list(zip(*(column.tolist() for column in schedule.columns), strict=True)),
        }
    )


SUFFIX: Final = ".json"  # an algorithm with this ending is a file


def is_file(algorithm: str) -> bool:
    """Return whether the name of an algorithm is the path of a schedule file."""
    return algorithm.endswith(SUFFIX)


def text(path: str) -> str:
    """Return the text of a schedule file, see `input_files.bytes_of`; raises InputError."""
    cure = "give the path of a schedule as `simcoll import` writes it"
    data = input_files.bytes_of(Path(path), cure, MOST_BYTES, "give a schedule of fewer ranks")
    return data.decode("utf-8", errors="replace")


def read(path: str) -> Schedule:
    """Return the schedule of a file; raises InputError."""
    contents = text(path)
    return _RECENT.get((path, contents), lambda: parse(contents, path))


def looks(text: str) -> bool:
    """Return whether a JSON text has a schedule's keys."""
    return '"transfers"' in text and '"n_chunks"' in text


def parse(text: str, source: str) -> Schedule:
    """Return the schedule of JSON that `dump` wrote; raises InputError that names the mistake."""
    document = input_files.json_mapping(text, source, "give what `simcoll show --json` prints")
    for key, kind in _KEYS.items():
        if not isinstance(document.get(key), kind) or isinstance(document.get(key), bool):
            raise InputError(f"{source}:1:1: {key}: missing, or no {_WORDS[kind]}", _WHENCE)
    for i, row in enumerate(document["transfers"]):
        if (
            not isinstance(row, list)
            or len(row) != 6
            or not all(isinstance(x, int) for x in row)
            or row[5] not in (0, 1)
        ):
            problem = f"transfers.{i}: not [step, src, src_slot, dst, dst_slot, reduce]"
            raise InputError(f"{source}:1:1: {problem}", _WHENCE)
    agents, root = document.get("agents", 0), document.get("root", 0)
    limits = {
        "ranks": (document["ranks"], 1, MOST),
        "n_chunks": (document["n_chunks"], 1, MOST // max(1, document["ranks"])),
    }
    limits |= {"agents": (agents, 0, MOST), "root": (root, 0, document["ranks"] - 1)}
    for key, (value, least, most) in limits.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(f"{source}:1:1: {key}: {value!r} is out of range", f"write {least} … {most}")
    if not isinstance(document.get("pipelined", False), bool):
        raise InputError(f"{source}:1:1: pipelined: neither true nor false", "write true or false")
    try:
        collective(document["collective"])
        return Schedule.from_rows(
            document["transfers"],
            collective=document["collective"],
            algorithm=document["algorithm"],
            n=document["ranks"],
            n_chunks=document["n_chunks"],
            agents=agents,
            root=root,
            pipelined=document.get("pipelined", False),
        )
    except (ScheduleError, ValueError, OverflowError) as error:
        raise InputError(f"{source}:1:1: {error}") from None
