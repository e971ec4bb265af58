"""Streams whose reader may go away."""

from __future__ import annotations

import codecs
import io
import os
from typing import Any, Final

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


def lasting(stream: Any) -> Any:
    """The stream, or where it is a plain one of this process, one that takes no harm if its reader goes away.

    So `simcoll … 2>&1 | head` ends quietly, and only when its files are written. What a caller put in place of a
    stream stays.
    """
    if type(stream) is not io.TextIOWrapper:
        return stream
    stream.flush()
    file = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
