"""Read lines of NCCL Inspector: one JSON object for each call of a rank, with its time on the GPU.

Source of the format: NVIDIA/nccl, plugins/profiler/inspector (2.28 and later). The log holds the newest calls of each
communicator, so gaps in `coll_sn` are normal. A time includes waiting for other ranks.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Final

from simcoll.errors import InputError, visible
from simcoll.formats.recordings.events import Event, Group, Recording, What
from simcoll.formats.recordings.flight_recorder import collective_of

_CURE: Final = "give the lines as NCCL Inspector writes them (JSON)"


def looks(data: bytes) -> bool:
    """Return whether a text has lines of Inspector in JSON."""
    return data[:64].lstrip().startswith(b"{") and b'"coll_perf"' in data and b'"coll_sn"' in data


def read(text: str, source: str) -> list[Recording]:
    """Return the recordings of all communicators; raises InputError for lines of another form.

    A last line that is cut off is left out. Communicators number their ranks from 0, so a process has the rank that it
    has in its largest communicator.
    """
    lines = text.splitlines()
    largest = dict[tuple[str, str], tuple[int, int]]()  # process -> size of its largest communicator, and rank there
    events = defaultdict[tuple[str, str, str], list[Event]](list)
    groups = dict[str, Group]()
    for number, line in enumerate(lines, start=1):
        if '"coll_perf"' not in line:
            continue  # point-to-point calls, statistics
        try:
            record = json.loads(line)
            head, perf, about = record["header"], record["coll_perf"], record.get("metadata") or {}
            name, n, rank = str(head["id"])[:40], int(head["n_ranks"]), int(head["rank"])
            process = str(about.get("hostname")), str(about.get("pid", (name, rank)))
            largest[process] = max(largest.get(process, (0, 0)), (n, rank))
            group = groups.setdefault(name, Group(name, n=n, nodes=int(head.get("nnodes", 0))))
            what = What(collective_of(str(perf["coll"])[:40]), size=int(perf["coll_msg_size_bytes"]))
            ended = 1000 * int(about.get("dump_timestamp_us", 0))
            took = float(perf["coll_exec_time_us"])
            events[(*process, name)].append(Event(group, int(perf["coll_sn"]), what, "", True, 0, 0, ended, took))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            if number == len(lines):
                continue
            raise InputError(f"{source}:{number}: no line of Inspector: {visible(str(error))[:80]}", _CURE) from None
    return [Recording(source, largest[key[:2]][1], calls, whole=False) for key, calls in events.items()]
