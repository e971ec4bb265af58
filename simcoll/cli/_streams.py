"""stdout and stderr of the command line: the door through which every text leaves.

It shows control characters as escapes, so that no name in a file can command the user's terminal, and it takes no harm
if its reader goes away.
"""

from __future__ import annotations

import codecs
import io
import os
from typing import Any, Final

from simcoll.errors import visible

PLAIN: Final = "simcoll.plain"  # how a stream writes what its encoding has not
_IN_ASCII: Final = {
    "→": "->",
    "←": "<-",
    "×": "x",
    "−": "-",
    "–": "-",
    "…": "...",
    "·": ".",
    "●": "o",
    "─": "-",
    "│": "|",
}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(each, "?") for each in error.object[error.start : error.end]), error.end


codecs.register_error(PLAIN, _in_ascii)


class _Lasting(io.FileIO):
    """A file whose reader may go away: from then on what is written goes nowhere."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


class _Door:
    """A text stream that writes control characters as `visible` shows them, and is the stream below for the rest."""

    def __init__(self, below: Any):
        self.below = below

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        self.below.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def door(stream: Any) -> Any:
    """The stream as a door for texts. A plain stream of this process also outlives its reader: `simcoll … 2>&1 | head`
    ends quietly, and only when its files are written. A stream that a caller put in its place is kept below the door.
    """
    if isinstance(stream, _Door):
        return stream
    if type(stream) is not io.TextIOWrapper:
        return _Door(stream)
    stream.flush()
    file = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
    return _Door(io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=stream.line_buffering))


def terminal_of(stream: Any) -> Any:
    """The stream below the door, for a program that moves the cursor; `visible` is then its own task."""
    return stream.below if isinstance(stream, _Door) else stream
