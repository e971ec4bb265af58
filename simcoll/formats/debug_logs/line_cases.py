"""Lines of logs that name a cause, an echo of one, or what people take for one; `line_cases.yaml` has the table."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.formats.debug_logs.log_lines import LogLine

Role = Literal["cause", "echo", "harmless", "sound"]
MOST_SHAPES: Final = 50_000  # forms of lines that are kept, to bound memory
_NUMBERS: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")
_LARGE: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9]{4,}|[0-9]+(?:\.[0-9]+){3}")  # of a warning: small numbers are codes
# Only lines with one of these words are compared with the table, unless they are NCCL's.
_WORDS: Final = re.compile(
    r"[nNrR][cC][cC][lL]|[xX]id|XID|[eE]rror|ERROR|ail|FAIL|[cC][uU][dD][aA]|HIP|efa|EFA|OFI|mlx|[nN][vV][lL]ink|shm|"
    r"[mM]emory|OOM|oom|ime[dd]? ?out|imeout|[sS]ignal|egmentation|exitcode|ibv|sharp|nterface|efused|abric|Fatal|ACS|"
    r"link_|GPU|peermem|peer_mem|[wW]atchdog|libtorch|[mM]ismatch|checked in|memlock|MEMLOCK|Killed|files|"
    r"RUNNING|missing rank|wrong|[rR]emote daemon|lost co|amdgpu|AER|DataLoader|slots|"
    r"ORTE|orted|PRTE|mpi(?:run|exec)|ssh: |Host key|subset of ranks"
)


def _compiled(text: str) -> str:
    re.compile(text)
    return text


class LineCase(Model):
    """A row of the table; `line_cases.yaml` says what the keys mean."""

    cause: str
    pattern: Annotated[str, AfterValidator(_compiled)]
    role: Role = "cause"
    class_: str = Field(alias="class")
    text: str
    cure: str = ""
    source: str
    sample: str
    sure: Literal["clear", "likely", "open"] = "clear"
    slows: bool = False
    versions: str = ""
    only: Literal["", "incomplete", "sockets"] = ""
    level: str = ""

    @functools.cached_property
    def found(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self.pattern)


@dataclass
class Seen:
    """A case in a log: its first line with the place that it names, and how many lines there are."""

    case: LineCase
    line: LogLine
    place: dict[str, str]
    count: int = 1
    hosts: set[str] = field(default_factory=set)


class _File(Model):
    cases: tuple[LineCase, ...]


@functools.cache
def cases() -> tuple[LineCase, ...]:
    """Return the rows of the table."""
    return yaml_tree.validate(_File, [yaml_tree.read(Path(__file__).with_suffix(".yaml"))])[0].cases


def case_of(line: LogLine) -> LineCase | None:
    """Return the first row that fits a line, if any."""
    known = line.level is not None or _WORDS.search(line.text)
    fitting = (c for c in cases() if c.level in ("", line.level) and c.found.search(line.text))
    return next(fitting, None) if known else None


def shape(line: LogLine) -> str:
    """Return a line's level and text without numbers; of warnings small numbers stay, as they are codes."""
    return f"{line.level} {(_NUMBERS if line.level == 'INFO' else _LARGE).sub('#', line.text)}"


class CaseCounter:
    """Counts the cases of lines."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str | None, str], Seen] = {}  # by row, host, and place that the line names

    def add(self, line: LogLine, case: LineCase) -> None:
        """Count a line of a case."""
        place = self._place(case, line.text)
        named = place.get("device", ""), place.get("host", ""), place.get("peer", "").partition("<")[0]
        key = id(case), line.host, "".join(named)
        if key in self.seen:
            self.seen[key].count += 1
        elif len(self.seen) < MOST_SHAPES:
            self.seen[key] = Seen(case, line, place)

    @staticmethod
    def _place(case: LineCase, text: str) -> dict[str, str]:
        if not case.found.groupindex:
            return {}
        match = case.found.search(text)
        said = match.groupdict() if match else {}
        return {name.rstrip("2"): value for name, value in said.items() if value}


def first_of(seen: Iterable[Seen]) -> Seen | None:
    """Return the earliest one: by time stamps if all have one, else by lines."""
    every = list(seen)
    times = [each.line.time for each in every]
    if every and all(time is not None for time in times):
        return min(every, key=lambda each: (each.line.time or 0.0, each.line.number))
    return min(every, key=lambda each: each.line.number, default=None)
