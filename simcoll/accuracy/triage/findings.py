"""What readers of files yield: findings, each with its place in the job and its evidence in the files."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.errors import visible

Role = Literal["cause", "symptom", "echo", "undecided", "sound", "harmless", "excluded"]
Confidence = Literal["clear", "likely", "open"]
LONGEST: Final = 400  # characters of a line that is shown as evidence


@dataclass(frozen=True)
class Where:
    """A place in the job, with names that are fit to print. None: not known, or not of one place."""

    host: str | None = None
    rank: int | None = None
    device: str | None = None
    peer: str | None = None
    group: str | None = None
    call: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, visible(value) if isinstance(value, str) else value)


@dataclass(frozen=True)
class Evidence:
    """A line of a file (from 1 on; None for files without lines). Its text has no control characters, and is cut."""

    file: str
    line: int | None
    text: str

    @classmethod
    def of(cls, file: str, line: int | None, text: str) -> Evidence:
        """Return the evidence with its text made fit to print."""
        shown = visible(text[: 4 * LONGEST].strip())
        return cls(visible(file), line, shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…")


@dataclass(frozen=True)
class Finding:
    """One statement about the job, and what shows it.

    `role` says what it is worth:
    *cause*: something is broken, missing or set so that it explains the trouble;
    *symptom*: what goes wrong, which a cause may explain (slow rows, ranks that wait);
    *echo*: what others say because of a failure elsewhere (time-outs, closed connections);
    *undecided*: something may be wrong, but the files do not tell;
    *sound*: a part of the job is as it should be;
    *harmless*: what people often take for a cause, and what is none;
    *excluded*: a cause that the files rule out, for the reason in `text`.
    `when` orders findings of one role: seconds, or any number that grows with time. The surest cause wins,
    and of equally sure ones the earliest; those that only slow the job down (`slows`) come after those that stop it.
    """

    cause: str  # short name, e.g. "gpudirect off"; equal findings have equal names
    text: str  # a sentence
    role: Role = "cause"
    confidence: Confidence = "clear"
    cure: str = ""  # what to do next
    decides: tuple[str, ...] = ()  # measurements that would decide between this cause and others
    where: Where = Where()
    evidence: tuple[Evidence, ...] = ()
    when: float = math.inf
    count: int = 1  # how often it was seen
    slows: bool = False

    def __post_init__(self) -> None:
        for name, value in {"text": visible(self.text), "cure": visible(self.cure)}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "decides", tuple(map(visible, self.decides)))

    @classmethod
    def of(cls, key: str, said: Mapping[str, object], **more: Any) -> Finding:
        """Return the finding that `findings.yaml` has under a key, with `said` filled into its texts; `more` are
        further fields, which come before those of the file unless they are None."""
        row = _texts()[key]
        text, cure, decides = (line.format_map(said) for line in (row.text, row.cure, row.decides))
        fields = {"role": row.role, "confidence": row.sure, "decides": (decides,) if decides else ()}
        return cls(
            row.as_ or key,
            text,
            cure=cure,
            **{**fields, **{name: value for name, value in more.items() if value is not None}},
        )


class _Text(Model):
    as_: str = Field("", alias="as")
    role: Role = "cause"
    sure: Confidence = "clear"
    text: str = "{text}"
    cure: str = ""
    decides: str = ""


class _Texts(Model):
    texts: dict[str, _Text]


@functools.cache
def _texts() -> dict[str, _Text]:
    return yaml_tree.validate(_Texts, [yaml_tree.read(Path(__file__).with_suffix(".yaml"))])[0].texts


@dataclass
class Case:
    """What the user said, and what readers found out so far; readers of later kinds use what earlier ones noted.

    `on`: the machine that the user named, as `--on` takes it. `machine`: the same, or what files say.
    """

    on: str | None = None
    where: Sequence[str] = ()
    sets: Sequence[str] = ()
    tell: Callable[[str], None] = lambda line: None
    machine: str | None = None
    nodes: int | None = None
    said_by: Evidence | None = None  # what names the machine, if the user did not
    following: bool = False  # whether the commands of the measurements that would decide are asked for
    present: frozenset[str] = frozenset()  # the kinds of content among the files
    notes: dict[str, Any] = field(default_factory=dict)  # by kind: what its reader leaves for later readers
    details: dict[str, Any] = field(default_factory=dict)  # by kind: further content of the JSON document


@dataclass(frozen=True)
class Kind:
    """A kind of content. `looks` says whether a file has it, `read` gets all files that do, in the order given.

    A file may have several kinds (a table within a log). `read` yields findings, and may note facts in the `Case`.
    """

    name: str
    looks: Callable[[GivenFile], bool]
    read: Callable[[Sequence[GivenFile], Case], Iterator[Finding]]
