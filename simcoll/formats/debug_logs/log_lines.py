"""Take a log apart into lines: of NCCL's debug output `[time] host:pid:tid [device] file:line NCCL LEVEL text`, or not.

Launchers may have put labels before a line, and another line may have broken into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

FROM: Final = r":[0-9]+:[0-9]+ \[-?[0-9]*\] "  # after the host: process, thread, CUDA device
VARIABLE: Final = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?:=| set (?:by environment )?to )([^\s'\"]*[^\s'\".])?")
VERSION: Final = re.compile(r"[NR]CCL version\s*:?\s*([0-9]+(?:\.[0-9]+)+)")
RANK_LIST: Final = re.compile(  # nccl-tests' list of devices
    r"\bRank\s+(?P<rank>[0-9]+)\s+(?:Group\s+(?P<group>[0-9]+)\s+)?Pid\s+[0-9]+\s+on\s+(?P<host>\S+)\s+device\b"
    r"(?:\s+(?P<device>\S+)\s+\[\S*\]\s+(?P<gpu>[\w .+/-]{2,60}))?"
)
LONGEST: Final = 2000  # characters of a line that are looked at
BEFORE: Final = 600  # characters before `NCCL INFO` that hold host, process and device
_SAID: Final = re.compile(r" NCCL (INFO|WARN|ERROR|ABORT) ?")
_WHO: Final = re.compile(
    r"([\w.\-]{1,253})[>}\])]?:([0-9]{1,12}):[0-9]{1,12} \[(-?[0-9]*)\] (?:[0-9.]+ )?(\S{1,200}:[0-9]+ )?$"
)
_BARE: Final = re.compile(r"[^\w\[]{0,9}(?:\[(-?[0-9]*)\] )?(?:\S{1,200}:[0-9]+ )?NCCL (INFO|WARN|ERROR|ABORT) ?")
_TIME: Final = re.compile(r"\[?([0-9]{4}-[0-9]{2}-[0-9]{2})[ T_]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,6}))?")


class LogLine(NamedTuple):
    """A line of a log, from 1 on. Lines that are not of NCCL have no host, process, device and level."""

    number: int
    full: str
    text: str
    host: str | None = None
    pid: str | None = None
    device: str | None = None
    level: str | None = None

    @property
    def time(self) -> float | None:
        """The time stamp in seconds, if the line has one."""
        stamp = _TIME.search(self.full[:LONGEST])
        try:
            return datetime.fromisoformat(f"{stamp[1]}T{stamp[2]}").timestamp() if stamp else None
        except ValueError:
            return None


def lines(text: str) -> Iterator[LogLine]:
    """Yield the lines of a log; a line into which NCCL wrote several times is yielded once for each time."""
    for number, full in enumerate(text.split("\n"), 1):
        line = full[:LONGEST]
        if "NCCL " not in line:
            yield LogLine(number, line, line)
            continue
        said = list(_SAID.finditer(line))
        ends = [*(each.start() for each in said[1:]), len(line)]
        known = False
        for here, end in zip(said, ends, strict=False):
            who = _WHO.search(line, max(0, here.start() - BEFORE), here.start() + 1)
            if who:
                known = True
                yield LogLine(number, line, line[here.end() : end].rstrip(), who[1], who[2], who[3], here[1])
        if not known and (bare := _BARE.match(line)):  # as people paste it, without host and process
            yield LogLine(number, line, line[bare.end() :].rstrip(), None, None, bare[1], bare[2])
        elif not known:
            yield LogLine(number, line, line)
