"""All exceptions that simcoll raises; `SimcollError` is their base class.

Mistakes that a user can fix raise `InputError`, with one `Diagnostic` for each mistake. The command line then prints
one diagnostic a line and exits with 2. All other errors exit with 1.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final


class SimcollError(Exception):
    """Base class of all errors that simcoll raises on purpose.

    >>> import simcoll
    >>> try:
    ...     simcoll.build("all_reduce", "rng", 4)
    ... except simcoll.SimcollError as error:
    ...     print(error)
    'rng' is no algorithm for all_reduce; did you mean 'ring'?
    """

    exit_status = 1

    def __str__(self) -> str:
        return visible(super().__str__())


_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Return the text with control characters escaped as in Python, because they can change a terminal's state or
    reverse the direction of words. Line ends and tabs stay.

    >>> print(visible("\\x1b[2J all_reduce \\u202e"))
    \\x1b[2J all_reduce \\u202e
    """
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


@dataclass(frozen=True, order=True)
class Place:
    """A place in a file (or in a `--set` option): 1-based line and column."""

    source: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Diagnostic:
    """One mistake: `what` is wrong, its `cure` (what to write instead), the key (`path`) and the place in the file."""

    what: str
    cure: str = ""
    path: str = ""
    place: Place | None = None

    @classmethod
    def of(cls, text: object, path: str = "", place: Place | None = None, *, cure: str = "") -> Diagnostic:
        """Return the diagnostic for a text "problem; cure". If the text has no cure, `cure` is used."""
        problem, _, own = str(text).partition("; ")
        return cls(problem, own or cure, path, place)

    def __str__(self) -> str:
        text = f"{self.what}; {self.cure}" if self.cure else self.what
        parts = [str(self.place) if self.place else "", shortened(self.path), shortened(text)]
        return ": ".join(part for part in parts if part)


_LONG: Final = re.compile(r"(\S{60})\S{140,}(\S{20})")


def shortened(text: str) -> str:
    """Return a message with each word of more than 220 characters shortened to its two ends; input has any length.

    >>> shortened(f"{'9' * 5000!r} is no size") == f"'{'9' * 59}…{'9' * 19}' is no size"
    True
    """
    return _LONG.sub(r"\1…\2", text)


class InputError(SimcollError):
    """Wrong input, with a `Diagnostic` for every mistake found, in the order of the file.

    A single mistake may be given as a text with its cure (the fix) and its place, or as one text "problem; cure".
    """

    exit_status = 2

    def __init__(self, diagnostics: Iterable[Diagnostic] | str, cure: str = "", place: Place | None = None):
        if isinstance(diagnostics, str):
            diagnostics = [Diagnostic(diagnostics, cure, "", place) if cure else Diagnostic.of(diagnostics)]
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__("\n".join(str(d) for d in self.diagnostics))


class TopologyError(InputError):
    """A topology that cannot be built, e.g. because of a link without bandwidth or a missing route. `about`: the wrong
    device, or the two ends of the wrong link, if any; from it a reader of files finds the line of the mistake."""

    def __init__(self, diagnostics: Iterable[Diagnostic] | str, cure: str = "", *, about: tuple[str, ...] = ()):
        super().__init__(diagnostics, cure)
        self.about = about


class ScheduleError(SimcollError):
    """A malformed schedule, or one whose proof failed. `place` is `file:line` of the user's algorithm that made it, if
    any."""

    def __init__(self, problem: str, place: str = ""):
        self.problem, self.place = problem, place
        super().__init__(f"{place}: {problem}" if place else problem)

    def __reduce__(self) -> tuple[type[ScheduleError], tuple[str, str]]:
        return type(self), (self.problem, self.place)


class RefusedError(SimcollError):
    """An algorithm that does not support a request; the message says why, and which algorithms do. `path`: the scenario
    key at fault, if any."""

    def __init__(self, problem: str, path: str = ""):
        self.path = path
        super().__init__(problem)


class StuckError(SimcollError):
    """A run that cannot finish; the message names the rank, its step and the event it waits for. `when`: the simulated
    time (ps) at which the run gives up, if it does."""

    def __init__(self, problem: str, when: int | None = None):
        self.when = when
        super().__init__(problem)


class MeasureError(SimcollError):
    """A failed measurement: a rank died, hung or computed a result that violates the collective's contract."""


class BoundError(SimcollError):
    """A simulated time below a proved lower bound: always a bug of simcoll, never a mistake of the user."""


_OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def unwritable(path: Path, error: OSError) -> SimcollError:
    """Return the error for a file that cannot be written: SimcollError if the disk is full or broken, else InputError,
    because the user named a folder (e.g. by `-o`) that takes no files."""
    problem = f"{path}: cannot be written: {error.strerror}"
    if error.errno in _OF_THE_DISK:
        return SimcollError(f"{problem}; make room, or give another folder")
    return InputError(problem, "give another folder")


NO_MEMORY: Final = "not enough memory; take fewer ranks, larger chunks or fewer channels"  # message of a MemoryError


MOST_TOLD: Final = 60  # number of choices up to which a message lists all


_TWINS: Final = {"hgx-": "dgx-", "dgx-": "hgx-"}  # NVIDIA's own machine (DGX), and others' on NVIDIA's board (HGX)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most like a misspelt word; None if none is like it."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)), None)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the fix for a misspelt name: the nearest choice, else all choices, or for more than 60 a count and three.

    >>> did_you_mean("rng", ["ring", "tree"])
    "did you mean 'ring'?"
    >>> did_you_mean("H100", ["a100", "h100"])
    "did you mean 'h100'?"
    >>> did_you_mean("-1", ["0", "1"])  # numbers are not misspelt
    'choose from: 0, 1'
    """
    choices = sorted(choices)
    twin = (_TWINS.get(word[:4], word[:4]) + word[4:]).casefold()
    if twins := [choice for choice in choices if choice.casefold() == twin]:
        return f"did you mean {twins[0]!r}?"
    words = [choice for choice in choices if not choice.isdecimal()]
    if near := nearest(word, words):
        return f"did you mean {near!r}?"
    if len(choices) > MOST_TOLD:
        import difflib

        likest = difflib.get_close_matches(word, choices, n=3, cutoff=0)
        return f"there are {len(choices)}, e.g. {', '.join(likest)}"
    return f"choose from: {', '.join(choices)}"


def wrong(key: str, problem: str, cure: str) -> InputError:
    """Return an InputError about a key of the scenario. Later code adds the key's place in the file."""
    return InputError([Diagnostic(problem, cure, key)])
