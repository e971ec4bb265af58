"""Read what PyTorch's watchdog and torchrun print to stderr when a job hangs or a process dies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from simcoll.formats.recordings.events import UNNAMED, Event, Group, Recording, What
from simcoll.formats.recordings.flight_recorder import collective_of

# Lines of ProcessGroupNCCL.cpp; groups were numbered `[PG 1 Rank 3]` up to PyTorch 2.4, and calls were not before 1.13.
_TIMEOUT: Final = re.compile(
    r"\[Rank (?P<rank>\d{1,7})\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\((?:SeqNum=(?P<number>\d{1,18}), )?OpType=(?P<name>\w{1,40}),"
    r"(?: NumelIn=(?P<count>\d{1,18}), NumelOut=(?P<out>\d{1,18}),)?"
)
_STATUS: Final = re.compile(
    r"\[PG (?:ID )?(?P<pg>\w{1,64})(?: PG GUID (?P<name>[^\s(\]]{1,64})(?:\((?P<desc>[^)\n]{0,99})\))?)? "
    r"Rank (?P<rank>\d{1,7})\][^\n]{0,99}? (?:failure|Exception)[^\n]{0,99}?work(?: sequence id)?: "
    r"(?P<number>\d{1,18}),? [^\n]{0,40}?last enqueued(?: NCCL)? work: (?P<last>-?\d{1,18})"
)
_DEATH: Final = re.compile(
    r"Root Cause \(first observed failure\):.{0,99}?\n.{0,200}?host\s*: (?P<host>[^\s]{1,200}).{0,99}?\n"
    r".{0,99}?rank\s*: (?P<rank>\d{1,7}).{0,99}?\n.{0,99}?exitcode\s*: (?P<code>-?\d{1,9})",
    re.DOTALL,
)


class Death(NamedTuple):
    """The process that torchrun saw fail first. `code`: its exit status, or minus the number of the signal."""

    rank: int
    host: str
    code: int
    line: int


def looks(data: bytes) -> bool:
    """Return whether a text has lines of the watchdog, or torchrun's account of a failure."""
    return b"Watchdog caught collective operation timeout" in data or b"Root Cause (first observed failure)" in data


def read(text: str, source: str) -> Iterator[Recording]:
    """Yield for each rank that gave up waiting: the call in which it waited, and how far it had come in the group."""
    found: dict[int, tuple[int, What]] = {}
    for line in _TIMEOUT.finditer(text):
        name = collective_of(line["name"].lower())
        inputs, outputs = ((((int(line[side]),),) if line[side] else ()) for side in ("count", "out"))
        found.setdefault(int(line["rank"]), (int(line["number"] or 0), What(name, inputs, outputs)))
    groups = dict[tuple[str, str], Group]()
    ranks = dict[int, Recording]()
    for line in _STATUS.finditer(text):
        pair = line["name"] or line["pg"], line["desc"] or ""
        group, rank, number = groups.setdefault(pair, Group(*pair)), int(line["rank"]), int(line["number"])
        if rank not in ranks:
            what = found[rank][1] if rank in found and found[rank][0] == number else What("a collective")
            ranks[rank] = _waiting(source, rank, Event(group, number, what, "", False, 0))
            ranks[rank].reached[group] = int(line["last"])
    for rank, (number, what) in found.items():
        if rank not in ranks:
            group = groups.setdefault((UNNAMED, ""), Group(UNNAMED))
            ranks[rank] = _waiting(source, rank, Event(group, number, what, "", False, 0))
    yield from ranks.values()


def _waiting(source: str, rank: int, event: Event) -> Recording:
    return Recording(source, rank, [event], whole=False, timed_out=True)


def deaths(text: str) -> Iterator[Death]:
    """Yield the processes that torchrun names as root causes."""
    for said in _DEATH.finditer(text):
        yield Death(int(said["rank"]), said["host"], int(said["code"]), text.count("\n", 0, said.start("rank")) + 1)
